// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reuse of peer numbers once nothing refers to them.
//!
//! Clients that come and go, each with a port of its own, would otherwise leave an entry each. When
//! many entries have no connection, a sweep marks the entries that are still referenced and frees
//! the others. References are connections, addresses, receives, messages, operations and groups.
//! The sweep runs between two polls, when no running call holds a number.
//!
//! Not here: the consequences of a peer's end (`peer_failure`), and its messages (`unexpected`).

use super::peer::Peer;
use super::peer_id::PeerId;
use super::{Env, EpState};

impl EpState {
    /// Frees the unreferenced entries of the peer table, if a sweep is due.
    #[inline]
    pub(super) fn sweep_peers(&mut self, env: &Env<'_>) {
        let conns = self.links.len();
        if self.peers.sweep_is_due(conns) {
            let used = self.used(env);
            self.peers.sweep(&used, conns);
        }
    }

    /// Returns for each entry whether anything but its port refers to it.
    #[cold]
    fn used(&self, env: &Env<'_>) -> Vec<bool> {
        let av = env.avs.get(self.cfg.av);
        let is_used = |p: &Peer| p.is_in_use() || av.is_some_and(|av| av.whole(p.id).is_some());
        let mut used: Vec<bool> = self.peers.iter().map(is_used).collect();
        let mut mark = |peer: PeerId| {
            if let Some(used) = used.get_mut(peer.index()) {
                *used = true;
            }
        };
        self.links.iter().for_each(|live| mark(live.peer));
        self.peers.own.into_iter().for_each(&mut mark);
        self.peers.addressed().for_each(&mut mark);
        self.peers.busy.iter().copied().for_each(&mut mark);
        self.rma_target.done.iter().copied().for_each(&mut mark);
        self.ops.peers().for_each(&mut mark);
        self.rndv.incoming.iter().for_each(|(_, m)| mark(m.peer()));
        self.recv.claimed.values().for_each(|m| mark(m.peer));
        for queue in [&self.recv.msg, &self.recv.tagged] {
            queue.posted.iter().for_each(|p| mark(p.src));
            queue.unexpected.iter().for_each(|m| mark(m.peer));
        }
        if let Some(srx) = self.cfg.srx.and_then(|srx| env.srxs.get(srx)) {
            srx.peers_at(self.links.sock.id()).for_each(&mut mark);
        }
        self.connected_peer().into_iter().for_each(&mut mark);
        if let Some(coll) = &self.coll {
            coll.peers().for_each(&mut mark);
        }
        used
    }
}
