// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Numbers of the peers of an endpoint.

use std::fmt;

use scif::PortId;

/// Number of a peer: a valid index into the peer table of its endpoint, or [`ANY`].
///
/// A number stays valid while anything refers to it (`peer_sweep`). Numbers from a peer never
/// become one: records name operations and receives, and the peer follows from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerId(u32);

/// Any source: no directed receive, or `FI_ADDR_UNSPEC`.
pub(crate) const ANY: PeerId = PeerId(u32::MAX);

/// Port of no peer, and of a free entry of the table. It identifies neither, since applications and
/// malicious peers may name port 0 too.
pub(crate) const NOWHERE: PortId = PortId::new(0, 0);

impl PeerId {
    /// Returns the number of the entry at `index`. An index beyond all numbers gives [`ANY`].
    pub(crate) fn new(index: usize) -> PeerId {
        u32::try_from(index).map_or(ANY, PeerId)
    }

    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
