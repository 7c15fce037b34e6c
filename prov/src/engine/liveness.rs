// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the processes of peers, and of connects without an answer.

use scif::Reason;

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::coll_run;
use crate::engine::tables::peer::PeerWork;
use crate::engine::types::peer_id::PeerId;
use crate::engine::{connections, dispatch, peer_failure};

/// Connections per liveness check. A smaller number delays `FI_ECONNRESET` with many peers.
const ALIVE_AT_ONCE: usize = 8;

/// Checks the liveness of processes with outstanding work, a few at a time. This second check
/// does not depend on the sockets.
pub(crate) fn check_liveness(ep: &mut Endpoint, env: &mut Env<'_>) {
    for _ in 0..ALIVE_AT_ONCE.min(ep.links.len()) {
        let Some(l) = ep.links.next_to_check() else {
            continue;
        };
        // A connected endpoint reports the end of its peer at any time.
        let waits = ep.cm.as_ref().is_some_and(|cm| cm.is_abroad())
            || ep.recv.directed > 0
            || ep.ops.any_of_peer(l.peer)
            || ep.rndv.fetches_from(l.peer)
            || ep.rma_target.network.concerns(l.peer)
            || coll_run::collects_from(ep, l.peer)
            || ep.peers.at(l.peer).work != PeerWork::None;
        let Some(c) = ep.links.sock.conn(l.conn).filter(|c| waits && c.is_up()) else { continue };
        c.probe();
        if !c.alive() {
            connections::on_conn_lost(ep, env, l.conn, Reason::Died);
        }
    }
}

/// Returns the error for operations to `peer` once connects have failed for too long. The flag is
/// true if the peer has ended, and false if it exists but cannot be reached.
fn connect_expired(ep: &Endpoint, peer: PeerId, now_ns: u64) -> Option<(Errno, bool)> {
    let p = ep.peers.at(peer);
    let timeout = crate::base::env::env().connect_timeout_ns;
    p.state.expired(now_ns, timeout).filter(|_| p.tx.is_none())
}

/// Fails work that waits for connections without a listener for too long.
pub(crate) fn expire_connects(ep: &mut Endpoint, env: &mut Env<'_>, now: u64) {
    let mut at = 0;
    while let Some(peer) = ep.peers.busy.get(at).copied() {
        at += 1;
        if let Some((err, gone)) = connect_expired(ep, peer, now) {
            let waited = ep.peers.at(peer).state.failing_for(now);
            ep.peers.reset_connection(peer);
            let p = ep.peers.at(peer);
            let (id, left, met) = (p.id, p.state.has_left(), p.state.was_there());
            if gone && !met {
                peer_conn::log_no_listener(ep, id, Some(waited));
            }
            dispatch::fail_pending(ep, env, peer, err);
            if gone && !left {
                peer_failure::fail_peer(
                    ep,
                    env,
                    peer,
                    id,
                    err,
                    "no listener at its address any more",
                );
            }
            coll_run::on_conn_lost(ep, env, peer);
        }
    }
}
