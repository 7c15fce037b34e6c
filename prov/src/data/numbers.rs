// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Numbers of peers: given to ports that are met, and taken back from those that nothing refers to any more.
//!
//! Clients that come and go, each at a port of its own, would otherwise leave an entry each. When many entries have no
//! connection, a sweep marks every entry that a connection, an address, a receive, a message, an operation or a group leads to.
//! The others are free. The sweep runs between two polls, when no call under way holds a number.
//!
//! Not about what a peer's end means (`peer_failure`), nor about the messages it leaves behind (`unexpected`).

use scif::PortId;

use super::matching::ANY;
use super::peer::Peer;
use super::{Env, EpState};

/// Entries without a connection that stay in any case.
pub(super) const KEPT: usize = 256;
/// Port of a free entry. Nothing listens there.
const NOWHERE: PortId = PortId { node: 0, port: 0 };

/// Bookkeeping of the numbers of one endpoint.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Free numbers, the lowest last.
    free: Vec<u32>,
    /// Number of entries without a connection from which on the next sweep is due.
    sweep_at: usize,
    /// Lives given out, see [`Peer::life`].
    lives: u32,
    /// Entries given out, which is the number of peers met.
    met: usize,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers {
            free: Vec::new(),
            sweep_at: KEPT,
            lives: 0,
            met: 0,
        }
    }

    /// A life that no peer of this endpoint has had.
    pub(super) fn next_life(&mut self) -> u32 {
        self.lives = self.lives.wrapping_add(1);
        self.lives
    }

    /// Number of peers met, one that was forgotten in between counted again.
    pub(super) fn met(&self) -> usize {
        self.met
    }
}

impl EpState {
    /// Number for a peer at `id`, which has none.
    pub(super) fn new_number(&mut self, id: PortId) -> u32 {
        let peer = Peer::new(id, self.numbers.next_life());
        self.numbers.met += 1;
        if let Some(number) = self.numbers.free.pop()
            && let Some(entry) = self.peers.get_mut(number as usize)
        {
            *entry = peer;
            return number;
        }
        self.peers.push(peer);
        u32::try_from(self.peers.len() - 1).unwrap_or(ANY - 1)
    }

    /// Number of entries in use that have no connection. Too low where peers have two.
    fn idle_peers(&self) -> usize {
        let in_use = self.peers.len() - self.numbers.free.len();
        in_use.saturating_sub(self.live.len() + self.resting.len())
    }

    /// Frees the entries that nothing refers to, if a sweep is due.
    #[inline]
    pub(super) fn sweep_peers(&mut self, env: &Env<'_>) {
        if self.idle_peers() >= self.numbers.sweep_at {
            self.free_unreferenced(env);
        }
    }

    #[cold]
    fn free_unreferenced(&mut self, env: &Env<'_>) {
        let used = self.used(env);
        for (peer, used) in self.peers.iter_mut().zip(used) {
            if !used && peer.id != NOWHERE {
                let gone = std::mem::replace(peer, Peer::new(NOWHERE, 0));
                self.by_port.remove(&gone.id);
            }
        }
        // After a crowd has left its memory goes too.
        while self.peers.pop_if(|p| p.id == NOWHERE).is_some() {}
        let len = self.peers.len();
        self.peers.shrink_to(2 * len);
        self.by_port.shrink_to(2 * len);
        let free = self.peers.iter().zip(0..).filter(|(p, _)| p.id == NOWHERE);
        self.numbers.free = free.map(|(_, number)| number).collect();
        self.numbers.free.reverse();
        self.numbers.sweep_at = KEPT.max(2 * self.idle_peers());
    }

    /// Tells of each entry whether anything but its port leads to it.
    fn used(&self, env: &Env<'_>) -> Vec<bool> {
        let av = env.avs.get(self.cfg.av);
        let is_used = |p: &Peer| p.is_in_use() || av.is_some_and(|av| av.whole(p.id).is_some());
        let mut used: Vec<bool> = self.peers.iter().map(is_used).collect();
        let mut mark = |peer: u32| {
            if let Some(used) = used.get_mut(peer as usize) {
                *used = true;
            }
        };
        self.live
            .iter()
            .chain(&self.resting)
            .for_each(|live| mark(live.peer));
        self.own.into_iter().for_each(&mut mark);
        self.by_av.iter().copied().for_each(&mut mark);
        self.busy.iter().copied().for_each(&mut mark);
        self.done.iter().copied().for_each(&mut mark);
        self.ops.peers().for_each(&mut mark);
        self.incoming.iter().for_each(|(_, m)| mark(m.peer()));
        self.claimed.values().for_each(|m| mark(m.peer));
        for queue in [&self.msg, &self.tagged] {
            queue.posted.iter().for_each(|p| mark(p.src));
            queue.unexpected.iter().for_each(|m| mark(m.peer));
        }
        if let Some(srx) = self.cfg.srx.and_then(|srx| env.srxs.get(srx)) {
            srx.peers_at(self.sock.id()).for_each(&mut mark);
        }
        self.connected_peer().into_iter().for_each(&mut mark);
        if let Some(coll) = &self.coll {
            coll.peers().for_each(&mut mark);
        }
        used
    }
}
