// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reuse of peer numbers once nothing refers to them.
//!
//! Clients that come and go, each with a port of its own, would otherwise leave an entry each. When
//! many entries have no connection, a sweep marks the entries that are still referenced and frees
//! the others. References are connections, addresses, receives, messages, operations and groups.
//! The sweep runs between two polls, when no running call holds a number.
//!
//! Not here: the consequences of a peer's end (`peer_failure`), and its messages (`unexpected`).

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::tables::peer::Peer;
use crate::engine::types::peer_id::PeerId;

/// Frees the unreferenced entries of the peer table, if a sweep is due.
#[inline]
pub(crate) fn sweep_peers(ep: &mut Endpoint, env: &Env<'_>) {
    let conns = ep.links.len();
    if ep.peers.sweep_is_due(conns) {
        let used = used(ep, env);
        ep.peers.sweep(&used, conns);
    }
}

/// Returns for each entry whether anything but its port refers to it.
#[cold]
fn used(ep: &Endpoint, env: &Env<'_>) -> Vec<bool> {
    let av = env.avs.get(ep.cfg.av);
    let is_used = |p: &Peer| p.is_in_use() || av.is_some_and(|av| av.whole(p.id).is_some());
    let mut used: Vec<bool> = ep.peers.iter().map(is_used).collect();
    let mut mark = |peer: PeerId| {
        if let Some(used) = used.get_mut(peer.index()) {
            *used = true;
        }
    };
    ep.links.iter().for_each(|live| mark(live.peer));
    ep.peers.own.into_iter().for_each(&mut mark);
    ep.peers.addressed().for_each(&mut mark);
    ep.peers.busy.iter().copied().for_each(&mut mark);
    ep.rma_target.done.iter().copied().for_each(&mut mark);
    ep.ops.peers().for_each(&mut mark);
    ep.rndv.incoming.iter().for_each(|(_, m)| mark(m.peer()));
    ep.rma_target.network.peers().for_each(&mut mark);
    ep.recv.claimed.values().for_each(|m| mark(m.peer));
    for queue in [&ep.recv.msg, &ep.recv.tagged] {
        queue.posted.iter().for_each(|p| mark(p.src));
        queue.unexpected.iter().for_each(|m| mark(m.peer));
    }
    if let Some(srx) = ep.cfg.srx.and_then(|srx| env.srxs.get(srx)) {
        srx.peers_at(ep.links.sock.id()).for_each(&mut mark);
    }
    peer_conn::connected_peer(ep).into_iter().for_each(&mut mark);
    if let Some(coll) = &ep.coll {
        coll.peers().for_each(&mut mark);
    }
    used
}
