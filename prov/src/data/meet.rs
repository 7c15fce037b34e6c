// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Two connections between the same two endpoints become one to send on.
//!
//! When both sides open one at once, each sends over its own. Then a message and the answer to it have no line in common
//! (`scif_ring::spsc`, answers). So the side with the higher port changes over to the connection of the other, at a moment when nothing of its
//! own is on the way: what it sends next is behind all that it sent. Not about: the end of connections; the one that is left stays open, and read.

use scif::ConnId;

use super::EpState;
use super::peer::Peer;

/// How often to look for such a moment: the counters that tell it are given back every 64 records.
pub(super) const TRIES: u8 = 200;

impl Peer {
    /// Whether nothing of ours is under way to it, but for records it may not have taken.
    fn owes_nothing(&self) -> bool {
        self.is_idle()
            && self.has_all_blocks()
            && self.ring_rma == 0
            && self.read_bytes == 0
            && self.owed == 0
    }
}

impl EpState {
    /// A record came from `peer` over `conn`, which is not `tx`, the one we send on. The one to send on from now on.
    #[cold]
    pub(super) fn meet(&mut self, peer: u32, tx: ConnId, conn: ConnId) -> ConnId {
        let ours = self.sock.id();
        let Some(p) = self.peers.get_mut(peer as usize).filter(|p| p.meetings > 0) else {
            return tx;
        };
        let theirs = self
            .sock
            .conn(conn)
            .is_some_and(|c| c.is_up() && c.is_direct() && !c.initiated());
        if p.id >= ours || !theirs {
            p.meetings = 0;
            return tx;
        }
        if !p.owes_nothing() || self.ops.any_of_peer(peer) {
            return tx;
        }
        p.meetings -= 1;
        let taken = self
            .sock
            .conn(tx)
            .is_some_and(|c| c.is_up() && c.is_direct() && c.initiated() && c.tx().all_consumed());
        if !taken {
            return tx;
        }
        p.meetings = 0;
        p.tx = Some(conn);
        conn
    }
}
