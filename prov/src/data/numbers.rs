// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peer numbers: assignment to ports, and reuse once nothing refers to a number.
//!
//! Clients that come and go, each with a port of its own, would otherwise leave an entry each. When
//! many entries have no connection, a sweep marks the entries that are still referenced and frees
//! the others. References are connections, addresses, receives, messages, operations and groups.
//! The sweep runs between two polls, when no running call holds a number.
//!
//! Not here: the consequences of a peer's end (`peer_failure`), and its messages (`unexpected`).

use scif::PortId;

use super::matching::ANY;
use super::peer::Peer;
use super::{Env, EpState};

/// Number of entries without a connection below which no sweep runs.
pub(super) const KEPT: usize = 256;
/// Port in a free entry. It does not identify one, since applications and malicious peers may name
/// port 0 too: see `FREE`.
const NOWHERE: PortId = PortId { node: 0, port: 0 };
/// Value of [`Peer::life`] in a free entry.
const FREE: u32 = 0;

/// State of the peer numbers of one endpoint.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Free numbers, the lowest last.
    free: Vec<u32>,
    /// Number of entries without a connection at which the next sweep is due.
    sweep_at: usize,
    /// Connection numbers assigned so far, see [`Peer::life`].
    lives: u32,
    /// Entries assigned so far, which is the number of peers met.
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

    /// Returns a connection number that no peer of this endpoint has had.
    pub(super) fn next_life(&mut self) -> u32 {
        self.lives = self.lives.wrapping_add(1).max(FREE + 1);
        self.lives
    }

    /// Returns the number of peers met. A peer whose entry was freed in between counts again.
    pub(super) fn met(&self) -> usize {
        self.met
    }
}

impl EpState {
    /// Assigns a number to the new peer at `id`.
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

    /// Returns the number of entries in use without a connection. Too low where peers have two.
    fn idle_peers(&self) -> usize {
        let in_use = self.peers.len() - self.numbers.free.len();
        in_use.saturating_sub(self.live.len() + self.resting.len())
    }

    /// Frees the unreferenced entries, if a sweep is due.
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
            if !used && peer.life != FREE {
                let gone = std::mem::replace(peer, Peer::new(NOWHERE, FREE));
                self.by_port.remove(&gone.id);
            }
        }
        // Releases the memory of many departed peers.
        while self.peers.pop_if(|p| p.life == FREE).is_some() {}
        let len = self.peers.len();
        self.peers.shrink_to(2 * len);
        self.by_port.shrink_to(2 * len);
        let free = self.peers.iter().zip(0..).filter(|(p, _)| p.life == FREE);
        self.numbers.free = free.map(|(_, number)| number).collect();
        self.numbers.free.reverse();
        self.numbers.sweep_at = KEPT.max(2 * self.idle_peers());
    }

    /// Returns for each entry whether anything but its port refers to it.
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
