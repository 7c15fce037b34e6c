// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arguments of the fence calls of `scif.h`, for the engine and for the drivers.

/// Side that issued the RMAs of a fence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FenceSide {
    /// RMAs of this side.
    Own,
    /// RMAs of the peer.
    Peer,
}

/// Value to store in a registered address space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Signal {
    /// Offset of the target.
    pub offset: i64,
    /// Value to store.
    pub value: u64,
}
