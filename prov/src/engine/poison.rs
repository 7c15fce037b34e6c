// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics on the data path, and the state after them.
//!
//! A panic while a record is handled ends the connection of the record (`breach`). Any other panic
//! leaves the endpoint half changed, so it is poisoned. Its operations end with `FI_EOTHER` in the
//! next progress call, and its connections are reset. Later calls are refused, so that the same
//! panic does not recur in each of them.
//!
//! Not here: the log (`scif::logging`), and the return of a call (`entry`).

use libfabric_sys as fi;
use scif::{CloseHow, ConnId};

use crate::engine::completions::{completion, recv_completion};
use crate::engine::dispatch;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::{coll_run, parting, posted_records};
use crate::state::eq_queue::EqError;

pub(crate) fn end_everything(ep: &mut Endpoint, env: &mut Env<'_>) {
    let err = fi::FI_EOTHER;
    let fetched = parting::end_fetches(ep);
    for (target, arrival) in fetched {
        recv_completion::complete_recv(ep, env, &target, &arrival, 0, err);
    }
    for tagged in [true, false] {
        for posted in ep.recv.queue(tagged).posted.extract(|_| true) {
            recv_completion::fail_posted(ep, env, tagged, posted, err);
        }
        ep.recv.queue(tagged).unexpected.retain(|_| false);
    }
    coll_run::end_all(ep, env, err);
    for peer in ep.peers.ids() {
        for op in ep.ops.of_peer(peer) {
            completion::finish_op(ep, env, peer, op, err);
        }
        posted_records::on_conn_lost(ep, env, peer, err);
        dispatch::fail_pending(ep, env, peer, err);
    }
    let conns: Vec<ConnId> = ep.links.sock.conns().collect();
    for conn in conns {
        ep.links.sock.close_conn(conn, CloseHow::Reset);
    }
    ep.links.active.clear();
    ep.links.idle.clear();
    ep.peers.busy.clear();
    if let Some(eq) = &ep.eq {
        eq.push_error(EqError {
            fid: ep.fid,
            context: ep.context,
            data: fi::FI_ADDR_NOTAVAIL,
            err,
            prov_errno: -err,
            err_data: Vec::new(),
        });
    }
}
