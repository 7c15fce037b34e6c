// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Requests that a listener has taken out of its socket before their hello arrived.
//!
//! A caller that is stopped between its connect and its hello must not hold up later callers.
//! Requests with a hello are in `connect`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use scif::sys::descriptor;
use scif::sys::fork::PrivateFd;

use crate::failure::Result;
use crate::lock::take;

/// Maximum number of silent callers of a listener; beyond it the oldest is refused. A larger number
/// lets them occupy more descriptors.
const SILENT_MAX: usize = 64;

/// Silent callers of a listener, in the order of their requests. A forked child has none of them.
#[derive(Debug, Default)]
pub(crate) struct SilentCallers(Mutex<VecDeque<PrivateFd>>);

impl SilentCallers {
    /// Adds a caller, and calls `watch` with its socket: what it then reports finds the caller.
    ///
    /// # Errors
    /// Errors of `watch`.
    pub(crate) fn keep(
        &self,
        socket: OwnedFd,
        watch: impl FnOnce(&PrivateFd) -> Result<()>,
    ) -> Result<()> {
        let mut callers = take(&self.0);
        if callers.len() >= SILENT_MAX {
            callers.pop_front();
        }
        callers.push_back(PrivateFd::new(socket));
        callers.back().map_or(Ok(()), watch)
    }

    /// Removes the first caller that has spoken or left.
    pub(crate) fn next(&self) -> Option<OwnedFd> {
        let mut callers = take(&self.0);
        callers.retain(|caller| !caller.is_inherited());
        let at = callers.iter().position(descriptor::readable)?;
        callers.remove(at).and_then(PrivateFd::release)
    }

    /// Whether a caller has spoken or left.
    pub(crate) fn any(&self) -> bool {
        take(&self.0).iter().any(|caller| !caller.is_inherited() && descriptor::readable(caller))
    }

    /// Refuses all callers.
    pub(crate) fn clear(&self) {
        take(&self.0).clear();
    }
}
