// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Incoming messages on the slow path, from a ring record to the receive and its completion.
//!
//! A peer may write anything into a record. Lengths are bounded by the ring, numbers are looked up
//! in tables, and an invalid record resets its connection.

use libfabric_sys as fi;
use scif::ConnId;
use scif::trace::{EventKind, TraceEvent};
use scif_ring::copy::{copy_iov, total_len};
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::completions::{multi_recv, recv_completion};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::{peer_conn, sep_source};
use crate::engine::protocols::{eviction, rendezvous, srx};
use crate::engine::tables::multi::Multi;
use crate::engine::tables::op_table::FLAG_DEFERRED_WORK;
use crate::engine::tables::tag_match::{Payload, PostedRecv, UnexpectedMsg};
use crate::engine::types::args::RecvArgs;
use crate::engine::types::envelope::{MsgEnvelope, MultiRecvId, RecordError, RecvTarget};
use crate::engine::types::iov::{Iov, bytes_of, copy_of, scatter};
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::rts::Rts;
use crate::engine::types::wire::{self, Head, Words};

/// Handles a message, or the announcement of a large one.
#[inline]
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let kind = record.kind;
    let mut words = Words::new(&record.head, record.head_len);
    let tagged = kind & wire::TAGGED != 0;
    let tag = if tagged { words.word() } else { 0 };
    let data = (kind & wire::DATA != 0).then(|| words.word());
    let mut arrival = MsgEnvelope { peer, tag, data, len: 0 };
    if kind & 0xf0 == wire::EAGER {
        return on_eager(ep, env, (tagged, arrival), words, record);
    }
    let rts = Rts::decode(conn, &mut words, record.body)?;
    arrival.len = rts.len();
    on_rts(ep, env, tagged, arrival, rts)
}

/// Handles an eager message.
#[inline]
fn on_eager(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (tagged, arrival): (bool, MsgEnvelope),
    mut words: Words<'_>,
    record: &Record,
) -> Result<(), RecordError> {
    let ack = (record.kind & wire::WANT_ACK != 0).then(|| words.word());
    let inline = words.rest();
    let is_inline = record.kind & wire::INLINE != 0;
    let len = if is_inline { inline.len() } else { record.body.len() };
    let arrival = MsgEnvelope { len, ..arrival };
    let MsgEnvelope { peer, tag, data, .. } = arrival;
    match match_posted(ep, env, tagged, peer, tag, len) {
        Some(target) => {
            let copied = match (is_inline, target.iov.as_slice()) {
                (true, [one]) => one.copy_from_slice(inline),
                (true, many) => scatter(many, inline),
                (false, to) => copy_iov(to, 0, std::slice::from_ref(&record.body), 0, target.room),
            };
            if let Some(id) = ack {
                peer_conn::answer(ep, peer, wire::ACK, Head::new().word(id).word(0), &[]);
            }
            recv_completion::complete_recv(ep, env, &target, &arrival, copied.min(target.room), 0);
        }
        None => {
            let (bytes, charge) = eviction::keep_bytes(ep, env, peer, len, || {
                if is_inline { copy_of(inline) } else { bytes_of(&record.body) }
            })?;
            let payload = Payload::Here(bytes);
            let since_ns = ep.links.clock_ns();
            srx::enqueue_unexpected(
                ep,
                env,
                tagged,
                UnexpectedMsg { peer, tag, data, len, ack, payload, since_ns, charge },
            )?;
        }
    }
    Ok(())
}

/// Handles the announcement of a large message.
fn on_rts(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    arrival: MsgEnvelope,
    rts: Rts,
) -> Result<(), RecordError> {
    let MsgEnvelope { peer, tag, data, len } = arrival;
    ep.peers.note(peer, || TraceEvent::new(EventKind::RtsSeen, tag, len, rts.op()));
    match match_posted(ep, env, tagged, peer, tag, len) {
        Some(target) => rendezvous::start(ep, env, target, arrival, rts),
        None => {
            let ((), charge) = eviction::keep_bytes(ep, env, peer, rts.kept(), || Some(()))?;
            let payload = Payload::There(rts);
            let since_ns = ep.links.clock_ns();
            srx::enqueue_unexpected(
                ep,
                env,
                tagged,
                UnexpectedMsg { peer, tag, data, len, ack: None, payload, since_ns, charge },
            )?;
        }
    }
    Ok(())
}

/// Finds and removes the receive for a message of `len` bytes. Releases multi-receive buffers
/// that are too full for it.
#[inline]
pub(crate) fn match_posted(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    peer: PeerId,
    tag: u64,
    len: usize,
) -> Option<RecvTarget> {
    let source = sep_source::match_source(ep, env, peer);
    loop {
        let Some(at) = ep.recv.queue(tagged).match_arrival(source, tag) else {
            return srx::take_shared(ep, env, tagged, peer, tag, len);
        };
        let multi = ep.recv.queue(tagged).posted.get_mut(at)?.multi;
        let Some(many) = multi else {
            let posted = ep.recv.take(tagged, at)?;
            return Some(posted.into_target(tagged));
        };
        let MultiRecvId::Own(number) = many else { return None };
        if let Some(target) = reserve(ep, env, tagged, at, number, len) {
            return Some(target);
        }
    }
}

/// Reserves a part of multi-receive buffer `number`, whose list entry is `at`. Returns `None`
/// if the message does not fit.
fn reserve(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    at: u32,
    number: u32,
    len: usize,
) -> Option<RecvTarget> {
    let piece = ep.recv.multis.get_mut(number)?.reserve(len, ep.cfg.min_multi_recv);
    let flags = ep.recv.queue(tagged).posted.get_mut(at).map_or(0, |p| p.flags);
    if piece.as_ref().is_none_or(|piece| piece.last) {
        ep.recv.take(tagged, at);
        multi_recv::release(ep, env, MultiRecvId::Own(number));
    }
    piece.map(|piece| piece.target(tagged, flags, MultiRecvId::Own(number)))
}

/// Posts a receive on the slow path, or matches it with an unexpected message.
#[inline(never)]
pub(crate) fn post(ep: &mut Endpoint, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<(), Errno> {
    let src = sep_source::wanted_peer(ep, env, a.src)?;
    let tagged = a.tag.is_some();
    let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
    let len = total_len(a.iov);
    let multi = if a.flags & fi::FI_MULTI_RECV != 0 {
        let [base] = a.iov else {
            return Err(fi::FI_EINVAL);
        };
        let multi = Multi::new(*base, a.context);
        Some(MultiRecvId::Own(ep.recv.multis.insert(multi).ok_or(fi::FI_ENOMEM)?))
    } else {
        None
    };
    ep.peers.note_posted(src, tag, len, a.context);
    let posted = PostedRecv {
        tag,
        ignore,
        src,
        iov: if a.flags & FLAG_DEFERRED_WORK == 0 { Iov::new(a.iov) } else { Iov::list(a.iov) },
        len,
        context: a.context,
        flags: a.flags,
        since_ns: ep.links.clock_ns(),
        multi,
    };
    if multi.is_none() {
        if let Some(at) = sep_source::match_unexpected(ep, env, tagged, src, tag, ignore) {
            if let Some(m) = ep.recv.queue(tagged).unexpected.remove(at) {
                receive_unexpected(ep, env, posted.into_target(tagged), m);
            }
            return Ok(());
        }
    }
    if src != ANY
        && ep.cfg.watches_sources()
        && ep.peers.at(src).tx.is_none()
        && !ep.peers.at(src).state.has_failed()
        && ep.peers.own != Some(src)
    {
        ep.recv.unmet.note();
    }
    let at = ep.recv.post(tagged, posted);
    if let Some(many) = multi {
        fill(ep, env, many, tagged, (src, tag, ignore));
    }
    if src != ANY && ep.peers.at(src).state.has_failed() {
        if let Some(posted) = ep.recv.queue(tagged).posted.remove(at) {
            recv_completion::fail_posted(ep, env, tagged, posted, fi::FI_ECONNRESET);
        }
    }
    Ok(())
}

/// Receives an unexpected message into its matched receive.
pub(crate) fn receive_unexpected(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    target: RecvTarget,
    m: UnexpectedMsg,
) {
    ep.throttle.note_drained();
    let arrival = MsgEnvelope { peer: m.peer, tag: m.tag, data: m.data, len: m.len };
    ep.peers
        .note(m.peer, || TraceEvent::new(EventKind::Matched, m.tag, m.len, target.context as u64));
    match m.payload {
        Payload::Here(bytes) => {
            let copied = scatter(target.iov.as_slice(), &bytes).min(target.room);
            if let Some(id) = m.ack {
                peer_conn::answer(ep, m.peer, wire::ACK, Head::new().word(id).word(0), &[]);
            }
            recv_completion::complete_recv(ep, env, &target, &arrival, copied, 0);
        }
        Payload::There(rts) => rendezvous::start(ep, env, target, arrival, rts),
    }
}

/// Receives unexpected messages into a buffer that was just posted, until it is full.
pub(crate) fn fill(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    many: MultiRecvId,
    tagged: bool,
    (src, tag, ignore): (PeerId, u64, u64),
) {
    while multi_recv::buffer(ep, env, many).is_some_and(|buffer| !buffer.retired) {
        let Some(at) = sep_source::match_unexpected(ep, env, tagged, src, tag, ignore) else {
            break;
        };
        let waiting = ep.recv.queue(tagged).unexpected.get_mut(at);
        let Some((peer, tag, len)) = waiting.map(|m| (m.peer, m.tag, m.len)) else {
            return;
        };
        let Some(target) = match_posted(ep, env, tagged, peer, tag, len) else {
            return;
        };
        if let Some(message) = ep.recv.queue(tagged).unexpected.remove(at) {
            receive_unexpected(ep, env, target, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;

    use crate::engine::tests::{Bed, buffer, bytes_of, completed, poll_until};

    #[test]
    fn an_unexpected_message_waits_for_its_receive() {
        let mut pair = Bed::pair();
        pair[0].send(&buffer(vec![5; 200])).unwrap();
        completed(&mut pair, 0);
        poll_until(&mut pair, |pair| (pair[1].ep.recv.unexpected() == 1).then_some(()));
        let to = buffer(vec![0; 200]);
        pair[1].recv(&to);
        assert_eq!((completed(&mut pair, 1).tag, bytes_of(&to)), (7, vec![5; 200]));
    }

    #[test]
    fn a_message_that_does_not_fit_is_cut() {
        let mut pair = Bed::pair();
        let to = buffer(vec![0; 4]);
        pair[1].recv(&to);
        pair[0].send(&buffer(vec![6; 10])).unwrap();
        let error = poll_until(&mut pair, |pair| pair[1].completion()).unwrap_err();
        assert_eq!((error.err, error.olen, bytes_of(&to)), (fi::FI_ETRUNC, 6, vec![6; 4]));
    }
}
