// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Changes of a connection over a network, from the message that causes them to the report.

use crate::error::Reason;

/// Changes that the link has not reported yet.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) up: bool,
    /// Records have arrived.
    pub(super) woken: bool,
    /// Reason of the end, reported once all records are in the ring.
    pub(super) end: Option<Reason>,
}

impl Changes {
    pub(super) fn is_any(&self) -> bool {
        self.up || self.woken || self.end.is_some()
    }

    /// Whether records have arrived and nothing else has changed. Notes that it is reported.
    pub(super) fn take_woken_alone(&mut self) -> bool {
        self.woken && !self.up && self.end.is_none() && std::mem::take(&mut self.woken)
    }
}
