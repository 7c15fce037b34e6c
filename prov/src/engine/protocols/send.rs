// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Outgoing messages, and pending operations of all kinds.
//!
//! A short message travels in the ring: inline if it fits the header of its record, else in the
//! body. A longer one is announced (`rendezvous`). An operation that finds the ring full is pending
//! in the queue of its peer. The queue keeps the order, and nothing overtakes it.

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif::{Access, Connection, LONG_BODY_MAX, LongSend};
use scif_ring::copy::{Mem, total_len};
use scif_ring::spsc::PushError;
use scif_ring::{BODY_MAX, HEAD_MAX, SHORT_BODY_MAX};

use crate::base::env::EAGER_AUTO;
use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::protocols::long_record::LONG_MIN;
use crate::engine::protocols::network_read;
use crate::engine::tables::op_table::{CompletionInfo, FLAG_DEFERRED_WORK, OpKind, OutstandingOp};
use crate::engine::tables::peer::MAX_UNACKED_MSGS;
use crate::engine::tables::pending::{OwnedPayload, PendingOp, Source};
use crate::engine::types::args::{AWAITS_TARGET, SendArgs};
use crate::engine::types::iov::{Iov, gather};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::rts::{BOTH_SIDES_MIN, NETWORK_KEY};
use crate::engine::types::wire;

/// Bytes of datagrams that are kept for receivers. A datagram beyond the limit completes only when
/// its receiver has taken it.
const KEPT_MAX: usize = 64 << 20;

/// Bytes that cross the ring, by two copies, in each nanosecond of a system call that would copy
/// them once. The figure is for mid cores and includes what a direct copy of these bytes takes.
const RING_BYTES_PER_NS: u64 = 12;

/// Longest payload in bytes that `send_small` sends as a body. With longer ones, a stream of 1 KiB
/// messages is slower, since the sender then waits for space in the ring.
const DIRECT_BODY_MAX: usize = 256;

/// Bytes of messages above [`BODY_MAX`] that are sent to a peer on another host before one is
/// announced. Its receive shows that the peer does not only collect them. A larger number lets
/// messages without a receive occupy more memory there.
const LONG_BYTES_MAX: usize = 16 << 20;

/// Message on the slow path.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingMsg<'a> {
    pub payload: Source<'a>,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub context: usize,
    pub flags: u64,
}

impl OutgoingMsg<'_> {
    fn info(&self) -> CompletionInfo {
        let (op_kind, tag) = (OpKind::of(self.tag), self.tag.unwrap_or(0));
        let (context, flags, len) = (self.context, self.flags, self.payload.len());
        CompletionInfo { op_kind, context, flags, tag, len }
    }
}

/// Sends a message, or makes it pending.
#[inline(always)]
pub(crate) fn post(ep: &mut Endpoint, env: &mut Env<'_>, a: &SendArgs<'_>) -> Result<(), Errno> {
    if send_small(ep, env, a)? {
        return Ok(());
    }
    let peer = peer_conn::peer_of(ep, env, a.dest)?;
    if send_short(ep, env, peer, a) { Ok(()) } else { send_any(ep, env, peer, a) }
}

/// Sends an inline message on the fast path, or one with a body of at most [`DIRECT_BODY_MAX`]
/// bytes, from the arguments straight into the record. The peer must be connected, with nothing
/// pending. Returns false if nothing was done.
///
/// # Errors
/// `FI_EINVAL` or `FI_ENOAV` for a destination that no address vector names.
#[inline(always)]
pub(crate) fn send_small(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &SendArgs<'_>,
) -> Result<bool, Errno> {
    let peer = peer_conn::peer_of(ep, env, a.dest)?;
    let [payload] = a.iov else { return Ok(false) };
    if a.flags & (fi::FI_FENCE | AWAITS_TARGET | FLAG_DEFERRED_WORK) != 0
        || payload.len() > DIRECT_BODY_MAX
    {
        return Ok(false);
    }
    let (kind, words, count) = envelope_words(a);
    if payload.len() > HEAD_MAX - 8 * count {
        // Copies of the arguments, so that the caller keeps its own in registers.
        return Ok(send_short(ep, &mut env.again(), peer, &SendArgs { ..*a }));
    }
    let Some(conn) = quiet_conn(ep, peer) else { return Ok(false) };
    if conn.push_words(kind | wire::INLINE, words, count, payload).is_err() {
        return Ok(false);
    }
    conn.notify();
    let stats = &mut *ep.stats;
    stats.inline.add(payload.len());
    stats.sent.add(payload.len());
    note_sent(ep, env, a, (peer, EventKind::SentInline, payload.len()));
    Ok(true)
}

/// Variant of [`send_small`] for a message with a short body.
#[inline(never)]
fn send_short(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, a: &SendArgs<'_>) -> bool {
    let [payload] = a.iov else { return false };
    let most = SHORT_BODY_MAX.min(crate::base::env::env().eager_size);
    if a.flags & (fi::FI_FENCE | AWAITS_TARGET | FLAG_DEFERRED_WORK) != 0 || payload.len() > most {
        return false;
    }
    if payload.len() >= LONG_MIN && ep.peers.at(peer).id.place != 0 {
        return false;
    }
    let Some(conn) = quiet_conn(ep, peer) else { return false };
    let (kind, words, count) = envelope_words(a);
    let fits_head = payload.len() + 8 * count <= HEAD_MAX;
    if fits_head || conn.push_body(kind, words, count, payload).is_err() {
        return false;
    }
    conn.notify();
    let stats = &mut *ep.stats;
    stats.ring.add(payload.len());
    stats.sent.add(payload.len());
    note_sent(ep, env, a, (peer, EventKind::SentRing, payload.len()));
    true
}

/// Returns the connection to a peer for which nothing is pending.
#[inline(always)]
fn quiet_conn(ep: &mut Endpoint, peer: PeerId) -> Option<&mut Connection> {
    let p = ep.peers.at(peer);
    p.tx.filter(|_| p.queue.is_quiet()).and_then(|id| ep.links.conn(id))
}

/// Returns the kind of an eager message, the words of its header, and their number.
#[inline(always)]
fn envelope_words(a: &SendArgs<'_>) -> (u8, [u64; 2], usize) {
    match (a.tag, a.data) {
        (Some(tag), None) => (wire::EAGER | wire::TAGGED, [tag, 0], 1),
        (Some(tag), Some(data)) => (wire::EAGER | wire::TAGGED | wire::DATA, [tag, data], 2),
        (None, None) => (wire::EAGER, [0, 0], 0),
        (None, Some(data)) => (wire::EAGER | wire::DATA, [data, 0], 1),
    }
}

/// Completes a message to `peer` that is in the ring and counted.
#[inline(always)]
fn note_sent(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &SendArgs<'_>,
    (peer, kind, len): (PeerId, EventKind, usize),
) {
    let (op_kind, tag) = (OpKind::of(a.tag), a.tag.unwrap_or(0));
    let info = CompletionInfo { op_kind, context: a.context, flags: a.flags, tag, len };
    ep.peers.note_sent(peer, kind, tag, (len, a.context));
    completion::tx_posted(ep, env, info, 0);
}

/// Sends a message on the slow path, or makes it pending.
#[inline(never)]
fn send_any(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &SendArgs<'_>,
) -> Result<(), Errno> {
    let quiet = ep.peers.at(peer).queue.is_quiet();
    if quiet && (a.flags & fi::FI_FENCE == 0 || tx_queue::fence_passed(ep, peer)) {
        let SendArgs { iov, tag, data, context, flags, .. } = *a;
        let message = OutgoingMsg { payload: Source::User(iov), tag, data, context, flags };
        if submit(ep, env, peer, message) == Submit::Done {
            return Ok(());
        }
    }
    let inject = a.flags & fi::FI_INJECT != 0;
    tx_queue::check_room(ep, peer)?;
    let payload = OwnedPayload::new(a.iov, inject);
    tx_queue::defer(
        ep,
        peer,
        PendingOp::Message {
            payload,
            tag: a.tag,
            data: a.data,
            context: a.context,
            flags: a.flags,
        },
    );
    Ok(())
}

/// Returns the length in bytes up to which a message is copied through the ring although the peer
/// could copy it directly. Two copies through the ring then take less time than the system call.
fn eager_limit(conn: &Connection) -> usize {
    let set = crate::base::env::env().eager_size;
    if set != EAGER_AUTO {
        return set;
    }
    let bytes = conn.memory().call_ns().saturating_mul(RING_BYTES_PER_NS);
    usize::try_from(bytes).unwrap_or(BODY_MAX).clamp(SHORT_BODY_MAX, BODY_MAX)
}

/// Whether a completion or counter depends on the placement of the payload at the target.
fn wants_ack(ep: &Endpoint, flags: u64) -> bool {
    flags & AWAITS_TARGET != 0
        && (flags & (fi::FI_COMPLETION | FLAG_DEFERRED_WORK) != 0 || ep.cfg.cntr_send.is_some())
}

/// Tries to put a message into the ring, or to announce it.
pub(crate) fn submit(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    message: OutgoingMsg<'_>,
) -> Submit {
    let Some(conn_id) = peer_conn::tx_conn(ep, peer) else {
        return Submit::Retry;
    };
    let OutgoingMsg { payload, tag, data, flags, .. } = message;
    let info = message.info();
    let len = info.len;
    let want_ack = wants_ack(ep, flags);
    let Some(conn) = ep.links.conn(conn_id) else {
        return Submit::Retry;
    };
    let env_cfg = crate::base::env::env();
    // Whether the receiver can copy the payload directly. Otherwise an announced payload would
    // cross the ring anyway.
    let copied_once = || {
        let streamed = ep.peers.at(peer).transfer.streamed;
        env_cfg.process_vm && !streamed && conn.memory().access() != Access::None
    };
    let is_far = ep.peers.at(peer).id.place != 0 && len >= LONG_MIN;
    let eager_max = if is_far && ep.peers.at(peer).transfer.long_bytes < LONG_BYTES_MAX {
        env_cfg.eager_size.clamp(BODY_MAX, LONG_BODY_MAX)
    } else {
        BODY_MAX
    };
    let long = len > eager_max || len > eager_limit(conn) && copied_once();
    if long && flags & fi::FI_INJECT == 0 {
        let Source::User(iov) = payload else {
            return Submit::Retry;
        };
        return send_rts(ep, env, peer, iov, &message);
    }
    let (mut kind, mut head) = wire::envelope(wire::EAGER, tag, data);
    let inline = len + head.as_slice().len() + if want_ack { 8 } else { 0 } <= HEAD_MAX;
    let mut ack = None;
    if want_ack {
        if !conn.tx().room(if inline || len > BODY_MAX { 0 } else { len })
            || ep.ops.messages_to(peer) >= MAX_UNACKED_MSGS
        {
            return Submit::Retry;
        }
        let op = OutstandingOp::new(peer, info, Iov::new(&[]));
        kind |= wire::WANT_ACK;
        head = head.word(*ack.insert(ep.ops.insert(op)));
    }
    let pushed = if inline {
        kind |= wire::INLINE;
        if let Some(tail) = head.tail(len) {
            payload.copy_to(tail);
        }
        of_push(conn.tx().push_head(kind, head.as_slice()))
    } else {
        push_with_body(conn, (kind, head.as_slice()), &payload, is_far)
    };
    if pushed != LongSend::Sent {
        if let Some(id) = ack {
            ep.ops.remove(id);
        }
        // The ring may be full of replies for long, and an announcement fits behind them.
        return match payload {
            Source::User(iov) if pushed == LongSend::Behind => {
                send_rts(ep, env, peer, iov, &message)
            }
            _ => Submit::Retry,
        };
    }
    if len > BODY_MAX {
        ep.peers.at_mut(peer).transfer.long_bytes += len;
    }
    conn.notify();
    ep.stats.sent.add(len);
    let kind = if inline {
        ep.stats.inline.add(len);
        EventKind::SentInline
    } else {
        ep.stats.ring.add(len);
        EventKind::SentRing
    };
    ep.peers.note(peer, || TraceEvent::new(kind, info.tag, len, info.context as u64));
    if !want_ack {
        completion::tx_complete(ep, env, info, 0);
    }
    Submit::Done
}

fn of_push(pushed: Result<(), PushError>) -> LongSend {
    if pushed.is_ok() { LongSend::Sent } else { LongSend::Later }
}

/// Pushes a message with a body into the ring; to a peer on another host past it if possible, and
/// always if the ring cannot contain the body.
fn push_with_body(
    conn: &mut Connection,
    (kind, head): (u8, &[u8]),
    payload: &Source<'_>,
    is_far: bool,
) -> LongSend {
    let len = payload.len();
    if is_far {
        let append = &mut |message: &mut Vec<u8>| payload.append_to(message);
        let sent = conn.send_long(kind, head, len, append);
        if sent == LongSend::Sent || len > BODY_MAX {
            return sent;
        }
    }
    of_push(match payload {
        Source::User(iov) => conn.tx().push(kind, head, iov, 0, len),
        Source::Copied(bytes) => conn.tx().push_slice(kind, head, bytes),
    })
}

/// Announces a message whose payload stays here until the receiver fetches it. The payload of a
/// datagram is copied and the datagram completed: its sender must not wait for a receive that
/// may never be posted. A network reads the payload only while the sender makes progress, so there
/// the datagram completes later, and its sender knows until when to do so.
fn send_rts(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    iov: &[Mem],
    message: &OutgoingMsg<'_>,
) -> Submit {
    let len = total_len(iov);
    if ep.ops.messages_to(peer) >= MAX_UNACKED_MSGS {
        return Submit::Retry;
    }
    let p = ep.peers.at_mut(peer);
    let Some(conn) = p.tx.and_then(|id| ep.links.conn(id)) else {
        return Submit::Retry;
    };
    let owned = ep.cfg.datagram
        && message.flags & AWAITS_TARGET == 0
        && !conn.remote_reads().is_some_and(|reads| reads.need_owner())
        && ep.ops.kept().saturating_add(len) <= KEPT_MAX;
    let mut list = Vec::new();
    if iov.len() > 1 && !owned {
        for piece in iov {
            list.extend_from_slice(&(piece.addr() as u64).to_ne_bytes());
            list.extend_from_slice(&(piece.len() as u64).to_ne_bytes());
        }
    }
    if list.len() > BODY_MAX || !conn.tx().room(list.len()) {
        return Submit::Retry;
    }
    let mut block = None;
    if iov.len() == 1 && !owned && len >= BOTH_SIDES_MIN && crate::base::env::env().coop_copy {
        block = p.blocks.take();
        if let Some((number, generation)) = block {
            conn.tx_claim(usize::from(number)).reset(generation);
        }
    }
    let kept = owned.then(|| gather(iov).into_boxed_slice());
    let mut addr = match &kept {
        Some(bytes) => bytes.as_ptr().expose_provenance(),
        None => iov.first().map_or(0, Mem::addr),
    } as u64;
    let exposed = match iov {
        [payload] if !owned => network_read::expose(conn, payload),
        _ => None,
    };
    let info = message.info();
    let op = OutstandingOp {
        kept,
        block,
        exposed: exposed.map(|memory| memory.key),
        ..OutstandingOp::new(peer, info, Iov::new(if owned { &[] } else { iov }))
    };
    let id = ep.ops.insert(op);
    let (kind, head) = wire::envelope(wire::RTS, message.tag, message.data);
    let mut misc =
        block.map_or(0, |(b, generation)| (u64::from(b) + 1) | u64::from(generation) << 16);
    if let Some(memory) = exposed {
        (addr, misc) = (memory.addr, misc | NETWORK_KEY);
    }
    let mut head = head.word(id).word(len as u64).word(addr).word(misc);
    if let Some(memory) = exposed {
        head = head.word(memory.key);
    }
    if conn.tx().push_slice(kind, head.as_slice(), &list).is_err() {
        ep.ops.remove(id);
        if let Some((block, _)) = block {
            p.blocks.give_back(block);
        }
        if let Some(memory) = exposed {
            ep.links.sock.revoke(memory.key);
        }
        return Submit::Retry;
    }
    conn.notify();
    if block.is_some() {
        ep.rndv.coop_sends.push_back(id);
    }
    ep.stats.sent.add(len);
    ep.peers.note(peer, || TraceEvent::new(EventKind::RtsSent, info.tag, len, id));
    if owned {
        completion::tx_complete(ep, env, info, 0);
    }
    Submit::Done
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;

    use crate::engine::tests::{Bed, buffer, bytes_of, completed};

    #[test]
    fn a_message_waits_for_its_connection_and_then_arrives() {
        let mut pair = Bed::pair();
        let to = buffer(vec![0; 8]);
        pair[1].recv(&to);
        pair[0].send(&buffer(vec![9; 8])).unwrap();
        assert_eq!(completed(&mut pair, 0).context, 1);
        assert_eq!((completed(&mut pair, 1).len, bytes_of(&to)), (8, vec![9; 8]));
    }

    #[test]
    fn the_transmit_queue_is_bounded() {
        let mut pair = Bed::pair();
        let from = buffer(vec![1; 8]);
        let peer = pair[0].peer();
        pair[0].ep.peers.at_mut(peer).state.retry_at_ns = u64::MAX;
        let posted: Vec<_> = (0..5).map(|_| pair[0].send(&from)).collect();
        assert_eq!(posted, [Ok(()), Ok(()), Ok(()), Ok(()), Err(fi::FI_EAGAIN)]);
    }
}
