// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Dispatch to the protocols: of a record by its kind, and of a pending operation by its class.

use libfabric_sys as fi;
use scif::{ConnId, Connection};
use scif_ring::copy::Mem;
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::protocols::send::OutgoingMsg;
use crate::engine::protocols::{
    atomic, atomic_inline, atomic_target, coll, coll_run, coop_rma, fragment, network_rma,
    posted_records, recv, rma, rma_target, send,
};
use crate::engine::tables::peer::Peer;
use crate::engine::tables::pending::PendingOp;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire;

/// Starts the pending work of all busy peers.
pub(crate) fn flush_busy(ep: &mut Endpoint, env: &mut Env<'_>) {
    let mut at = 0;
    while let Some(peer) = ep.peers.busy.get(at).copied() {
        if flush_peer(ep, env, peer) {
            ep.peers.unmark_busy(at);
        } else {
            at += 1;
        }
    }
}

/// Passes one record from the ring of `peer` to its protocol.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    record: &Record,
) -> Result<(), RecordError> {
    let from = (conn, peer);
    match record.kind {
        kind if matches!(kind & 0xf0, wire::EAGER | wire::RTS) => {
            recv::on_record(ep, env, from, record)
        }
        wire::FIN | wire::ACK => rma::on_record(ep, env, from, record),
        wire::READ_DATA => posted_records::on_read_data(ep, env, from, record),
        wire::CTS | wire::STREAM => fragment::on_record(ep, env, from, record),
        wire::WRITE | wire::READ | wire::RMA_EVENT | wire::ACCESS_HINT => {
            rma_target::on_record(ep, env, from, record)
        }
        wire::OUTSIDE => on_body_outside(ep, env, from, record),
        wire::NETWORK_WRITE..=wire::NETWORK_END => network_rma::on_record(ep, env, from, record),
        wire::COOP_RMA => coop_rma::on_record(ep, env, conn, record),
        wire::ATOMIC => atomic_target::on_record(ep, env, from, record),
        wire::ATOMIC_REPLY => atomic::on_record(ep, env, from, record),
        wire::ATOMIC_LINE | wire::DONE => atomic_inline::on_record(ep, env, from, record),
        wire::COLL_JOIN..=wire::COLL_ABORT => coll::on_record(ep, env, from, record),
        #[cfg(test)]
        crate::engine::panic_test::FATAL => {
            crate::engine::panic_test::strike(crate::engine::panic_test::STRUCK)
        }
        _ => Err(RecordError::ProtocolError),
    }
}

/// Passes a record whose body is outside the ring to its protocol.
fn on_body_outside(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let body = ep.links.conn(conn).and_then(Connection::take_body);
    // The handlers of other records rely on the length of a body in the ring.
    let takes_length = |kind: u8| match kind {
        wire::WRITE | wire::READ_DATA => true,
        kind => kind & 0xf0 == wire::EAGER && kind & wire::INLINE == 0,
    };
    let body = body.filter(|body| takes_length(body.kind())).ok_or(RecordError::ProtocolError)?;
    let handled = Mem::of_bytes(body.bytes(), |bytes| {
        let record = Record { kind: body.kind(), body: bytes, ..*record };
        on_record(ep, env, conn, peer, &record)
    });
    if let Some(conn) = ep.links.conn(conn) {
        conn.give_back(body);
    }
    handled
}

/// Starts pending work towards `peer`. Returns true when none is left.
pub(crate) fn flush_peer(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) -> bool {
    // Work that failed with its connection is no reason to connect again.
    let idle = |p: &Peer| p.queue.is_idle() && p.rma.posted.is_empty();
    if !ep.peers.at(peer).rma.posted.is_empty() {
        posted_records::progress(ep, env, peer);
    }
    if idle(ep.peers.at(peer)) {
        return true;
    }
    let Some(conn_id) = peer_conn::tx_conn(ep, peer) else {
        return false;
    };
    let mut pushed = false;
    let p = ep.peers.at_mut(peer);
    while let (Some(record), Some(conn)) = (p.queue.control.front(), ep.links.conn(conn_id)) {
        if conn.tx().push_slice(record.kind, record.head.as_slice(), &record.body).is_err() {
            conn.notify();
            return false;
        }
        pushed = true;
        p.queue.end_control();
    }
    // An operation may leave a control record that found the ring full. The next operation must
    // not overtake that record.
    while ep.peers.at(peer).queue.control.is_empty() {
        let Some(mut op) = ep.peers.at_mut(peer).queue.pending.pop_front() else { break };
        let may_start = network_rma::lets_start(ep, peer, &op);
        if !may_start || try_op(ep, env, peer, &mut op) == Submit::Retry {
            ep.peers.at_mut(peer).queue.pending.push_front(op);
            break;
        }
        pushed = true;
    }
    pushed |= fragment::progress(ep, peer, conn_id);
    if pushed {
        if let Some(conn) = ep.links.conn(conn_id) {
            conn.notify();
        }
    }
    idle(ep.peers.at(peer))
}

fn try_op(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, op: &mut PendingOp) -> Submit {
    match op {
        PendingOp::Message { payload, tag, data, context, flags } => {
            if *flags & fi::FI_FENCE != 0 && !tx_queue::fence_passed(ep, peer) {
                return Submit::Retry;
            }
            let payload = payload.source();
            let (tag, data, context, flags) = (*tag, *data, *context, *flags);
            send::submit(ep, env, peer, OutgoingMsg { payload, tag, data, context, flags })
        }
        PendingOp::Rma(op) => {
            posted_records::settle(ep, env, peer);
            rma::submit(ep, env, peer, op)
        }
        PendingOp::Atomic(op) => atomic::submit(ep, env, peer, op),
        PendingOp::Coll(out) => coll_run::submit(ep, env, peer, out),
    }
}

/// Fails every operation that is pending towards `peer`.
pub(crate) fn fail_pending(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, err: Errno) {
    let p = ep.peers.at_mut(peer);
    for op in std::mem::take(&mut p.queue.pending) {
        // A started operation has a number and is failed by it.
        if op.started().is_none() {
            if let Some(l) = op.label() {
                completion::tx_complete(ep, env, l, err);
            }
        }
        if let PendingOp::Coll(out) = op {
            coll_run::on_unsent(ep, env, peer, out.group(), err);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, connect};

    #[test]
    fn a_record_without_its_body_is_no_valid_one() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let [_, to] = &mut pair;
        let link = to.ep.links.active[0];
        let record = Record {
            kind: wire::OUTSIDE,
            head_len: 0,
            head: [0; scif_ring::HEAD_MAX],
            body: Mem::empty(),
        };
        let handled = to.run(|ep, env| on_record(ep, env, link.conn, link.peer, &record));
        assert_eq!(handled, Err(RecordError::ProtocolError));
    }
}
