// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of this process that peers can map.

use std::sync::Arc;

use crate::sys::fork::PrivateFd;
use crate::sys::mmap::Mapping;

/// Sides that may write memory exported to peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writers {
    Owner,
    Peers,
}

/// Memory of this process that peers can map.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) map: Arc<Mapping>,
    /// Descriptor for a peer in another address space.
    pub(crate) fd: Option<PrivateFd>,
}
