// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Dispatch to the protocols: of a record by its kind, and of a pending operation by its class.

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::protocols::send::OutgoingMsg;
use crate::engine::protocols::{
    atomic, atomic_inline, atomic_target, coll, coll_run, fragment, recv, rma, rma_target, send,
};
use crate::engine::tables::peer::Peer;
use crate::engine::tables::pending::PendingOp;
use crate::engine::types::args::Effect;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Words};

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

/// Handles one record from the ring of `peer`.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    record: &Record,
) -> Result<(), RecordError> {
    if record.kind & 0xf0 == wire::EAGER {
        return recv::on_eager(ep, env, peer, record);
    }
    let mut words = Words::new(&record.head, record.head_len);
    match record.kind {
        kind if kind & 0xf0 == wire::RTS => recv::on_rts(ep, env, conn, peer, record),
        wire::FIN | wire::ACK => {
            let (id, status, bytes) = (words.word(), words.word(), words.word());
            rma::on_ack(ep, env, peer, id, status, bytes);
            Ok(())
        }
        wire::CTS => Ok(fragment::on_cts(ep, peer, &mut words)?),
        wire::STREAM => {
            let (receive, offset) = (words.word(), words.word());
            Ok(fragment::on_stream(ep, env, peer, receive, offset, record.body)?)
        }
        wire::WRITE => Ok(rma_target::on_write(ep, env, conn, peer, &mut words, record.body)?),
        wire::READ => rma_target::on_read(ep, env, conn, peer, &mut words),
        wire::READ_DATA => {
            let (id, offset) = (words.word(), words.word());
            rma::on_read_data(ep, env, peer, id, offset, record.body);
            Ok(())
        }
        wire::ATOMIC => atomic_target::on_atomic(ep, env, peer, &mut words, record.body),
        wire::ATOMIC_REPLY => {
            let (id, status, old) = (words.word(), words.word(), words.word());
            atomic::on_atomic_reply(ep, env, peer, id, status, (old, record.body));
            Ok(())
        }
        wire::ATOMIC_LINE => Ok(atomic_inline::on_atomic_line(ep, env, peer, &mut words)?),
        wire::DONE => {
            let (stamp, count) = (words.word(), words.word());
            atomic_inline::on_done(ep, peer, stamp, count);
            Ok(())
        }
        wire::RMA_EVENT => {
            let (flags, data, len, key) = (words.word(), words.word(), words.word(), words.word());
            let data = (flags & wire::F_DATA != 0).then_some(data);
            let effect = match (flags & wire::F_READ != 0, flags & wire::F_MODIFY != 0) {
                (false, _) => Effect::Write,
                (true, false) => Effect::Read,
                (true, true) => Effect::ReadWrite,
            };
            rma_target::rma_event(
                ep,
                env,
                peer,
                effect,
                data,
                (key, usize::try_from(len).unwrap_or(usize::MAX)),
            );
            Ok(())
        }
        wire::ACCESS_HINT => {
            let (key, uses) = (words.word(), words.word());
            env.mrs.note_remote_use(key, uses);
            Ok(())
        }
        wire::COLL_JOIN..=wire::COLL_ABORT => {
            coll::on_coll(ep, env, peer, record.kind, &mut words, record.body)
        }
        #[cfg(test)]
        crate::engine::panic_test::FATAL => {
            crate::engine::panic_test::strike(crate::engine::panic_test::STRUCK)
        }
        _ => Err(RecordError::ProtocolError),
    }
}

/// Starts pending work towards `peer`. Returns true when none is left.
pub(crate) fn flush_peer(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) -> bool {
    // Work that failed with its connection is no reason to connect again.
    let idle = |p: &Peer| p.queue.is_quiet() && p.queue.streams.is_empty();
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
    while ep.peers.at(peer).queue.control.is_empty()
        && let Some(mut op) = ep.peers.at_mut(peer).queue.pending.pop_front()
    {
        if try_op(ep, env, peer, &mut op) == Submit::Retry {
            ep.peers.at_mut(peer).queue.pending.push_front(op);
            break;
        }
        pushed = true;
    }
    pushed |= fragment::push_fragments(ep, peer, conn_id);
    if pushed && let Some(conn) = ep.links.conn(conn_id) {
        conn.notify();
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
            send::try_send(ep, env, peer, OutgoingMsg { payload, tag, data, context, flags })
        }
        PendingOp::Rma(op) => rma::try_rma(ep, env, peer, op),
        PendingOp::Atomic(op) => atomic::try_atomic(ep, env, peer, op),
        PendingOp::Coll(out) => coll_run::try_coll(ep, env, peer, out),
    }
}

/// Fails every operation that is pending towards `peer`.
pub(crate) fn fail_pending(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, err: Errno) {
    let p = ep.peers.at_mut(peer);
    for op in std::mem::take(&mut p.queue.pending) {
        // A started operation has a number and is failed by it.
        if op.started().is_none()
            && let Some(l) = op.label()
        {
            completion::tx_complete(ep, env, l, err);
        }
        if let PendingOp::Coll(out) = op {
            coll_run::coll_unsent(ep, env, peer, out.group(), err);
        }
    }
}
