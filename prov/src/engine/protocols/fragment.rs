// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fragments: payloads that cross the ring in several records, on both sides. Used for large
//! messages without direct access, or where direct access is slower, and for data of reads.
//!
//! Not here: the decision for this method (`rendezvous`, `rma`).

use scif::trace::{EventKind, TraceEvent};
use scif::{ConnId, Connection, LONG_BODY_MAX};
use scif_ring::BODY_MAX;
use scif_ring::copy::{Mem, copy_iov, total_len};
use scif_ring::spsc::{PushError, Record};

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::tx_queue;
use crate::engine::protocols::{long_record, rendezvous};
use crate::engine::tables::incoming::RndvState;
use crate::engine::tables::op_table::{CtsReason, OpKind};
use crate::engine::tables::pending::FragmentedSend;
use crate::engine::tables::posted_writes::PostedWrites;
use crate::engine::types::envelope::{ProtocolError, RecordError};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Handles a request for fragments, or a fragment.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    match record.kind {
        wire::CTS => on_cts(ep, peer, &mut words)?,
        _ => {
            let (receive, offset) = (words.word(), words.word());
            on_stream(ep, env, peer, receive, offset, record.body)?;
        }
    }
    Ok(())
}

/// Handles a `CTS`: the receiver requests operation `id` as fragments.
fn on_cts(ep: &mut Endpoint, peer: PeerId, words: &mut Words<'_>) -> Result<(), ProtocolError> {
    let (id, receive, want, refused) = (words.word(), words.word(), words.word(), words.word());
    if refused != 0 {
        ep.peers.at_mut(peer).transfer.streamed = true;
    }
    let Some(op) = ep.ops.get_mut(id) else {
        return Ok(());
    };
    let want = usize::try_from(want).map_err(|_| ProtocolError)?;
    let asked = if refused == 0 { CtsReason::Chosen } else { CtsReason::Refused };
    // Only the payload of an announced message may be requested: the buffers of reads and
    // fetches are private. It is requested once, with one exception. A receiver that chose the
    // ring may later try a pull, be denied access, and request the payload again
    // (`CtsReason::Refused`).
    if op.peer != peer
        || want == 0
        || !matches!(op.op_kind, OpKind::Message | OpKind::Tagged)
        || want > op.len
        || op.kept.is_none() && total_len(op.iov.as_slice()) != op.len
        || op.asked >= asked
    {
        return Err(ProtocolError);
    }
    let event = TraceEvent::new(EventKind::CtsSeen, op.tag, want, id);
    ep.peers.note(peer, || event);
    let again = std::mem::replace(&mut op.asked, asked) != CtsReason::Never;
    let p = ep.peers.at_mut(peer);
    if again {
        // The first request is obsolete.
        p.queue
            .streams
            .retain(|stream| !matches!(stream, FragmentedSend::Message { op, .. } if *op == id));
    }
    p.queue.streams.push_back(FragmentedSend::Message { op: id, receive, done: 0, want });
    ep.peers.mark_busy(peer);
    Ok(())
}

/// Handles a fragment of a payload that this side requested.
fn on_stream(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    receive: u64,
    offset: u64,
    body: Mem,
) -> Result<(), ProtocolError> {
    let index = u32::try_from(receive & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let Some(m) = ep.rndv.incoming.get_mut(index) else {
        return Ok(());
    };
    if u64::from(m.stamp) != receive >> 32 || m.arrival.peer != peer {
        return Ok(());
    }
    let RndvState::Fragments { done } = &mut m.how else {
        return Err(ProtocolError);
    };
    if offset != *done as u64 || body.len() > m.want - *done {
        return Err(ProtocolError);
    }
    copy_iov(m.target.iov.as_slice(), *done, &[body], 0, body.len());
    *done += body.len();
    if *done == m.want {
        if let Some(at) = ep.rndv.order.iter().position(|i| *i == index) {
            rendezvous::end_incoming(ep, env, at, index, 0);
        }
    }
    Ok(())
}

/// Pushes replies to reads of `peer` that found no space, and the payloads before them.
pub(crate) fn push_replies(ep: &mut Endpoint, peer: PeerId) {
    let p = ep.peers.at(peer);
    let is_next = p.queue.control.is_empty() && !p.queue.streams.is_empty();
    if let Some(conn) = p.tx.filter(|_| is_next) {
        progress(ep, peer, conn);
    }
}

/// Pushes fragments to `peer`, the oldest payload first. Returns true if any entered the ring.
pub(crate) fn progress(ep: &mut Endpoint, peer: PeerId, conn: ConnId) -> bool {
    let mut pushed = false;
    loop {
        let p = ep.peers.at_mut(peer);
        let Some(stream) = p.queue.streams.front_mut() else {
            return pushed;
        };
        let Some(c) = ep.links.conn(conn) else {
            return pushed;
        };
        let (sent, finished) = match stream {
            FragmentedSend::Message { op, receive, done, want } => match ep.ops.get_mut(*op) {
                None => (Ok(0), true),
                Some(op) => {
                    let n = (*want - *done).min(BODY_MAX);
                    let head = Head::new().word(*receive).word(*done as u64);
                    let sent = match &op.kept {
                        Some(bytes) => {
                            let piece = bytes.get(*done..*done + n).unwrap_or_default();
                            c.tx().push_slice(wire::STREAM, head.as_slice(), piece)
                        }
                        None => {
                            c.tx().push(wire::STREAM, head.as_slice(), op.iov.as_slice(), *done, n)
                        }
                    };
                    if sent.is_ok() {
                        *done += n;
                    }
                    (sent.map(|()| n), *done == *want)
                }
            },
            FragmentedSend::Read { op, offset, bytes, done } => {
                let head = Head::new().word(*op).word(*offset + *done as u64);
                let left = bytes.get(*done..).unwrap_or_default();
                let sent = push_reply(c, &mut p.rma.posted, &head, left);
                *done += sent.unwrap_or(0);
                (sent, *done == bytes.len())
            }
        };
        match sent {
            Ok(n) => {
                pushed = true;
                ep.stats.ring.add(n);
                c.notify();
            }
            Err(_) => return pushed,
        }
        if finished {
            p.queue.end_stream();
        }
    }
}

/// Pushes a record of the reply to a read with the first of `bytes`, past the ring if possible.
/// Returns the number of its bytes.
fn push_reply(
    c: &mut Connection,
    posted: &mut PostedWrites,
    head: &Head,
    bytes: &[u8],
) -> Result<usize, PushError> {
    let long = bytes.get(..LONG_BODY_MAX).unwrap_or(bytes);
    let append = &mut |message: &mut Vec<u8>| message.extend_from_slice(long);
    if long_record::send(c, (wire::READ_DATA, head.as_slice()), long.len(), append) {
        return Ok(long.len());
    }
    let piece = bytes.get(..BODY_MAX).unwrap_or(bytes);
    let push = |c: &mut Connection| c.tx().push_slice(wire::READ_DATA, head.as_slice(), piece);
    tx_queue::push_one_sided(c, posted, push).map(|()| piece.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::op_table::{CompletionInfo, OutstandingOp};
    use crate::engine::tests::{Bed, buffer, head_of};
    use crate::engine::types::iov::Iov;

    #[test]
    fn only_the_payload_of_a_message_may_be_requested() {
        let mut pair = Bed::pair();
        let peer = pair[0].peer();
        let cases = [
            (OpKind::Message, 8, Ok(())),
            (OpKind::Read, 8, Err(())),
            (OpKind::Message, 9, Err(())),
        ];
        for (op_kind, want, expected) in cases {
            let label = CompletionInfo { op_kind, context: 0, flags: 0, tag: 0, len: 8 };
            let ep = &mut pair[0].ep;
            let id =
                ep.ops.insert(OutstandingOp::new(peer, label, Iov::new(&[buffer(vec![0; 8])])));
            let answer = on_cts(ep, peer, &mut Words::new(&head_of(&[id, 0, want, 1]), 32));
            assert_eq!(answer.map_err(|_| ()), expected, "{op_kind:?} {want}");
        }
        assert_eq!(pair[0].ep.peers.at(peer).queue.streams.len(), 1);
    }
}
