// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA as the target: execution of requests, events, and the lookup of keys that both sides share.

use libfabric_sys as fi;
use scif::{ConnId, RemoteMem};
use scif_ring::copy::{Mem, copy_iov, total_len};
use scif_ring::keytable::KeyEntry;
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::{peer_conn, tx_queue};
use crate::engine::protocols::{fragment, long_record};
use crate::engine::tables::pending::FragmentedSend;
use crate::engine::types::args::{Effect, RmaIov};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::iov::{gather_into, zeros};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};
use crate::state::completion::Completion;

/// Largest read in one record, in bytes. It bounds the snapshot that the target allocates.
pub(crate) const READ_PIECE: usize = 64 * 1024;

/// Returns the access right that an operation needs.
pub(crate) fn right(write: bool) -> u64 {
    if write { fi::FI_REMOTE_WRITE } else { fi::FI_REMOTE_READ }
}

/// Returns the memory of one segment at the target, if its key permits the access `needed`.
#[inline(always)]
pub(crate) fn place(entry: &KeyEntry, segment: &RmaIov, needed: u64) -> Result<RemoteMem, Errno> {
    if entry.access & needed != needed {
        return Err(fi::FI_EACCES);
    }
    let len = segment.len as u64;
    let within = segment.addr.checked_sub(entry.start);
    match within.filter(|within| within.checked_add(len).is_some_and(|end| end <= entry.len)) {
        Some(within) => Ok(RemoteMem { addr: entry.base.wrapping_add(within), len }),
        None => Err(fi::FI_EACCES),
    }
}

/// Whether RMA must follow earlier messages (`FI_ORDER_WAS`, `FI_ORDER_RAS`) that are not
/// consumed yet.
#[inline]
pub(crate) fn waits_for_messages(
    ep: &mut Endpoint,
    conn: ConnId,
    peer: PeerId,
    write: bool,
) -> bool {
    let order = if write { fi::FI_ORDER_WAS } else { fi::FI_ORDER_RAS };
    ep.cfg.msg_order & order != 0 && !tx_queue::are_messages_consumed(ep, conn, peer)
}

/// Handles a request of an initiator, or its notice of an access that it has done itself.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    match record.kind {
        wire::WRITE => on_write(ep, env, conn, peer, &mut words, record.body),
        wire::READ => return on_read(ep, env, conn, peer, &mut words),
        wire::RMA_EVENT => {
            let (flags, data, len, key) = (words.word(), words.word(), words.word(), words.word());
            let data = (flags & wire::F_DATA != 0).then_some(data);
            let effect = match (flags & wire::F_READ != 0, flags & wire::F_MODIFY != 0) {
                (false, _) => Effect::Write,
                (true, false) => Effect::Read,
                (true, true) => Effect::ReadWrite,
            };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            rma_event(ep, env, peer, effect, data, (key, len));
        }
        _ => {
            let (key, uses) = (words.word(), words.word());
            env.mrs.note_remote_use(key, uses);
        }
    }
    Ok(())
}

/// Executes one record of a write, as a target.
fn on_write(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    words: &mut Words<'_>,
    body: Mem,
) {
    ep.rma_target.network.note_ring_write(conn);
    let (key, addr, id) = (words.word(), words.word(), words.word());
    let (data, flags, total) = (words.word(), words.word(), words.word());
    let mut to = Vec::new();
    // Nothing of a write that does not fit is written, not even the records that would fit.
    let left = words.word().max(body.len() as u64);
    match env.mrs.check(key, addr, left, fi::FI_REMOTE_WRITE, &mut to) {
        Ok(()) => {
            copy_iov(&to, 0, &[body], 0, body.len());
        }
        Err(err) => {
            ep.rma_target.write_errors.insert(conn, err);
        }
    }
    if flags & wire::F_LAST != 0 {
        let err = if ep.rma_target.write_errors.is_empty() {
            0
        } else {
            ep.rma_target.write_errors.remove(&conn).unwrap_or(0)
        };
        peer_conn::answer(
            ep,
            peer,
            wire::ACK,
            Head::new().word(id).word(u64::from(err.unsigned_abs())),
            &[],
        );
        if err == 0 {
            let data = (flags & wire::F_DATA != 0).then_some(data);
            rma_event(
                ep,
                env,
                peer,
                Effect::Write,
                data,
                (key, usize::try_from(total).unwrap_or(usize::MAX)),
            );
        }
    }
}

/// Executes a read, as a target. The bytes are taken now, so that later writes cannot overtake
/// it.
fn on_read(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    words: &mut Words<'_>,
) -> Result<(), RecordError> {
    let (key, addr, id) = (words.word(), words.word(), words.word());
    let (offset, len, flags) = (words.word(), words.word(), words.word());
    // The reply numbers its fragments from `offset` on.
    if len > READ_PIECE as u64 || offset.checked_add(len).is_none() {
        return Err(RecordError::ProtocolError);
    }
    let is_last = flags & wire::F_LAST != 0;
    // The initiator gets an error for the whole read, which is then no event.
    let failed = is_last
        && !ep.rma_target.failed_reads.is_empty()
        && ep.rma_target.failed_reads.remove(&conn) == Some(id);
    let mut from = Vec::new();
    match env.mrs.check(key, addr, len, fi::FI_REMOTE_READ, &mut from) {
        Ok(()) => {
            if !reply_past_ring(ep, peer, (id, offset), &from) {
                queue_reply(ep, peer, (id, offset), &from).ok_or(RecordError::NoMemory)?;
                fragment::push_replies(ep, peer);
            }
            if is_last && !failed {
                rma_event(
                    ep,
                    env,
                    peer,
                    Effect::Read,
                    None,
                    (key, usize::try_from(len).unwrap_or(0)),
                );
            }
        }
        Err(err) => {
            if !is_last {
                ep.rma_target.failed_reads.insert(conn, id);
            }
            let head = Head::new().word(id).word(u64::from(err.unsigned_abs())).word(len);
            peer_conn::answer(ep, peer, wire::ACK, head, &[]);
        }
    }
    Ok(())
}

/// Sends the reply to a read to a peer on another host, past the ring. Returns false if the reply
/// has to be queued.
fn reply_past_ring(
    ep: &mut Endpoint,
    peer: PeerId,
    (op, offset): (u64, u64),
    from: &[Mem],
) -> bool {
    let p = ep.peers.at(peer);
    let is_next = p.queue.control.is_empty() && p.queue.streams.is_empty();
    let Some(c) = p.tx.filter(|_| is_next).and_then(|conn| ep.links.conn(conn)) else {
        return false;
    };
    let (head, len) = (Head::new().word(op).word(offset), total_len(from));
    let append = &mut |message: &mut Vec<u8>| from.iter().for_each(|mem| mem.append_to(message));
    let is_sent = long_record::send(c, (wire::READ_DATA, head.as_slice()), len, append);
    if is_sent {
        ep.stats.ring.add(len);
    }
    is_sent
}

/// Takes the bytes of a read, and queues them as its reply. `offset`: their distance from the begin
/// of the read. Returns `None` if there is no memory.
pub(crate) fn queue_reply(
    ep: &mut Endpoint,
    peer: PeerId,
    (op, offset): (u64, u64),
    from: &[Mem],
) -> Option<()> {
    let mut bytes = zeros(total_len(from))?;
    gather_into(from, &mut bytes);
    let reply = FragmentedSend::Read { op, offset, bytes: bytes.into_boxed_slice(), done: 0 };
    let p = ep.peers.at_mut(peer);
    if !p.queue.answer_read(reply) {
        return None;
    }
    ep.peers.mark_busy(peer);
    Some(())
}

/// Writes, as a target, completions and counters for an access to local memory.
pub(crate) fn rma_event(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    effect: Effect,
    data: Option<u64>,
    (key, len): (u64, usize),
) {
    env.mrs.used(key);
    if ep.cfg.rma_event {
        let own = effect.counters(ep.cfg.cntr_remote_read, ep.cfg.cntr_remote_write);
        let (read, write) = (env.mrs.cntr_of(key, true), env.mrs.cntr_of(key, false));
        for cntr in own.into_iter().chain(effect.counters(read, write)).flatten() {
            if let Some(cntr) = env.cntrs.get_mut(cntr) {
                cntr.add(1);
            }
        }
    }
    let Some(data) = data else { return };
    let src = peer_conn::source_of(ep, env, peer);
    if let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
        let kind = if effect == Effect::Write { fi::FI_REMOTE_WRITE } else { fi::FI_REMOTE_READ };
        let flags = fi::FI_RMA | kind | fi::FI_REMOTE_CQ_DATA;
        cq.success(Completion { len, data, src, ..Completion::new(0, flags, 0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Bed;

    #[test]
    fn a_segment_lies_within_its_key() {
        let entry = KeyEntry {
            start: 100,
            base: 1000,
            len: 50,
            access: fi::FI_REMOTE_READ,
            ..KeyEntry::default()
        };
        let at = |addr, len| RmaIov { addr, len, key: 5 };
        let found = place(&entry, &at(110, 40), right(false)).unwrap();
        assert_eq!((found.addr, found.len), (1010, 40));
        for segment in [at(110, 41), at(99, 1), at(u64::MAX, 2)] {
            assert!(place(&entry, &segment, right(false)).is_err());
        }
        assert!(place(&entry, &at(110, 40), right(true)).is_err(), "no right to write");
    }

    #[test]
    fn an_access_is_counted_and_reported_with_its_data() {
        let mut pair = Bed::pair();
        let peer = pair[0].peer();
        pair[0].run(|ep, env| rma_event(ep, env, peer, Effect::Write, None, (5, 8)));
        assert!(pair[0].completion().is_none());
        pair[0].run(|ep, env| rma_event(ep, env, peer, Effect::Write, Some(77), (5, 8)));
        let c = pair[0].completion().unwrap().unwrap();
        assert_eq!((c.data, c.len), (77, 8));
        assert_eq!(pair[0].cntrs.get(0).unwrap().reached(false), 2);
    }
}
