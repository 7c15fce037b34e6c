// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA, as initiator.
//!
//! The initiator does all the work where it can: it finds the key in the key table of the target,
//! sets its hazard pointer, and copies directly. Otherwise the target executes the operation in
//! ring order. An operation is direct only while no earlier one to the same peer remains in the
//! ring.
//!
//! Not here: the target (`rma_target`), and the mapping of memory that is accessed frequently
//! (`key_maps`).

use libfabric_sys as fi;
use scif::sys::slice::with_bytes;
use scif::trace::{EventKind, TraceEvent};
use scif::{Access, AccessError, ConnId, Connection, LONG_BODY_MAX, RemoteMem};
use scif_ring::BODY_MAX;
use scif_ring::copy::{Mem, copy_iov, total_len};
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::protocols::coop_rma::{self, COOP_RMA_MIN};
use crate::engine::protocols::key_maps::{self, UsePath};
use crate::engine::protocols::long_record;
use crate::engine::protocols::network_rma;
use crate::engine::protocols::rma_target::{self, READ_PIECE, place, right};
use crate::engine::protocols::window_rma::{self, DmaState, NotDirect, RmaKind};
use crate::engine::tables::op_table::{CompletionInfo, CtsReason, OpKind, OutstandingOp};
use crate::engine::tables::peer::{READ_WINDOW, is_denied, note_denial};
use crate::engine::tables::pending::{OwnedPayload, PendingOp, RmaOp, Source};
use crate::engine::types::args::{RmaArgs, RmaIov};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::iov::{Iov, sub_iov};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Counts an RMA operation of `len` bytes.
fn note_posted(ep: &mut Endpoint, peer: PeerId, a: &RmaArgs<'_>, len: usize) {
    ep.stats.rma.add(len);
    let kind = if a.write { EventKind::Write } else { EventKind::Read };
    ep.peers.note(peer, || TraceEvent::new(kind, 0, len, a.context as u64));
}

/// Executes an RMA operation directly, or sends it to the target, or makes it pending.
pub(crate) fn post(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &RmaArgs<'_>,
) -> Result<(), Errno> {
    let len = total_len(a.iov);
    if a.rma.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len)) != Some(len) {
        return Err(fi::FI_EINVAL);
    }
    let quiet = ep.peers.at(peer).queue.is_quiet();
    let joins = !quiet && network_rma::joins(ep, peer, a);
    let now = (quiet || joins) && (a.flags & fi::FI_FENCE == 0 || tx_queue::fence_passed(ep, peer));
    let (mut dma, mut block) = (None, None);
    let by_relay = window_rma::follows_relay(ep, peer, a.write, a.flags);
    if !quiet && !by_relay && window_rma::may_follow(ep, peer, a) {
        tx_queue::check_room(ep, peer)?;
        dma = window_rma::follow(ep, peer, a);
    }
    if now && !by_relay {
        let op_kind = if a.write { OpKind::Write } else { OpKind::Read };
        let info = CompletionInfo { op_kind, context: a.context, flags: a.flags, tag: 0, len };
        let kind = RmaKind { write: a.write, inject: a.flags & fi::FI_INJECT != 0 };
        match direct(ep, peer, kind, a.iov, a.rma) {
            Ok(()) => {
                note_posted(ep, peer, a, len);
                finish_direct(ep, env, peer, a.rma, a.data, info);
                return Ok(());
            }
            Err(NotDirect::Failed(err)) => {
                note_posted(ep, peer, a, len);
                completion::tx_complete(ep, env, info, err);
                return Ok(());
            }
            Err(NotDirect::Started(number)) => dma = Some(number),
            Err(NotDirect::Unfinished(unfinished)) => block = Some(unfinished),
            Err(NotDirect::Ring | NotDirect::Later) => {}
        }
    }
    tx_queue::check_room(ep, peer)?;
    note_posted(ep, peer, a, len);
    if let Some(segment) = a.rma.first() {
        key_maps::note_use(ep, peer, segment.key, len, UsePath::Target);
    }
    let mut op = RmaOp {
        write: a.write,
        local: OwnedPayload::new(a.iov, a.flags & fi::FI_INJECT != 0 && a.write),
        rma: a.rma.to_vec(),
        len,
        data: a.data,
        context: a.context,
        flags: a.flags,
        id: None,
        segment: 0,
        within: 0,
        offset: 0,
        through_ring: by_relay || block.is_some(),
        again: false,
        dma,
        block,
    };
    if now && dma.is_none() && submit(ep, env, peer, &mut op) == Submit::Done {
        return Ok(());
    }
    tx_queue::defer(ep, peer, PendingOp::Rma(op));
    Ok(())
}

/// Executes an operation on one range of shared memory that is mapped here. Returns false if
/// nothing was done.
#[inline]
pub(crate) fn try_mapped(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &RmaArgs<'_>,
) -> bool {
    let ([segment], [local]) = (a.rma, a.iov) else { return false };
    let len = segment.len;
    let p = ep.peers.at(peer);
    let Some(conn) = p.tx.filter(|_| p.queue.is_quiet() && !p.rma.is_outstanding()) else {
        return false;
    };
    if len != local.len()
        || a.flags & fi::FI_FENCE != 0
        || rma_target::waits_for_messages(ep, conn, peer, a.write)
    {
        return false;
    }
    let Some(c) = ep.links.conn(conn).filter(|c| c.is_up()) else { return false };
    let (Some(keys), Some(mapped)) = (c.keys(), c.mapped_key(segment.key)) else { return false };
    let Ok(remote) = place(mapped.entry(), segment, right(a.write)) else { return false };
    let Some(window) = mapped.get(&remote) else { return false };
    let (slot, generation) = mapped.place();
    c.my_mark().set(slot);
    let is_open = keys.revalidate(slot, generation);
    if is_open {
        if a.write {
            window.copy_from(local)
        } else {
            local.copy_from(&window)
        };
    }
    c.my_mark().clear();
    if !is_open {
        return false;
    }
    let is_plain = a.data.is_none() && !keys.notify();
    note_posted(ep, peer, a, len);
    ep.stats.mapped.add(len);
    let op_kind = if a.write { OpKind::Write } else { OpKind::Read };
    let info = CompletionInfo { op_kind, context: a.context, flags: a.flags, tag: 0, len };
    if is_plain {
        completion::tx_complete(ep, env, info, 0);
    } else {
        finish_direct(ep, env, peer, a.rma, a.data, info);
    }
    true
}

/// Tries to execute a pending RMA operation, or to push its remaining records.
pub(crate) fn submit(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, op: &mut RmaOp) -> Submit {
    let Some(conn) = peer_conn::tx_conn(ep, peer) else {
        return Submit::Retry;
    };
    if let Some(number) = op.dma {
        match window_rma::state_of(ep, conn, number) {
            DmaState::Complete => {
                finish_direct(ep, env, peer, &op.rma, op.data, op.label());
                return Submit::Done;
            }
            DmaState::InProgress => return Submit::Retry,
            DmaState::Lost => {
                op.dma = None;
                op.through_ring = true;
            }
        }
    }
    if op.id.is_none() {
        if op.flags & fi::FI_FENCE != 0 && !tx_queue::fence_passed(ep, peer)
            || rma_target::waits_for_messages(ep, conn, peer, op.write)
            || peer_conn::out_of_credits(ep, peer)
        {
            return Submit::Retry;
        }
        if !ep.links.conn(conn).is_some_and(|c| c.is_up()) {
            return Submit::Retry;
        }
        if !op.through_ring {
            if let Some(outcome) = attempt(ep, peer, op) {
                match outcome {
                    Ok(()) => {
                        finish_direct(ep, env, peer, &op.rma, op.data, op.label());
                        return Submit::Done;
                    }
                    Err(NotDirect::Failed(err)) => {
                        completion::tx_complete(ep, env, op.label(), err);
                        return Submit::Done;
                    }
                    Err(NotDirect::Later) => return Submit::Retry,
                    Err(NotDirect::Started(number)) => {
                        op.dma = Some(number);
                        return Submit::Retry;
                    }
                    Err(NotDirect::Unfinished(block)) => op.block = Some(block),
                    Err(NotDirect::Ring) => {
                        let denied = ep.links.conn(conn).is_some_and(|c| is_denied(c));
                        ep.stats.denials.fallbacks += u64::from(denied);
                    }
                }
            }
        }
        if let Some(submitted) = network_rma::start(ep, peer, conn, op) {
            return submitted;
        }
        op.through_ring = true;
        if !ep.links.conn(conn).is_some_and(|c| c.tx().room(BODY_MAX)) {
            return Submit::Retry;
        }
        if let Some(err) = refused(ep, conn, op) {
            completion::tx_complete(ep, env, op.label(), err);
            return Submit::Done;
        }
        let iov = match &op.local {
            OwnedPayload::User(iov) => iov.clone(),
            OwnedPayload::Copied(_) => Iov::new(&[]),
        };
        op.id = Some(ep.ops.insert(OutstandingOp {
            left: op.len,
            block: op.block,
            ring_rma: true,
            ..OutstandingOp::new(peer, op.label(), iov)
        }));
        ep.peers.at_mut(peer).rma.outstanding += 1;
    }
    let Some(id) = op.id else { return Submit::Retry };
    if ep.ops.get_mut(id).is_none() {
        // The target refused an earlier record: the operation has ended, and the rest is not
        // sent.
        return Submit::Done;
    }
    if op.write { push_write(ep, conn, id, op) } else { push_read(ep, peer, conn, id, op) }
}

/// Tries to execute a pending operation directly. `None`: its payload is a copy, which only windows
/// take.
fn attempt(ep: &mut Endpoint, peer: PeerId, op: &RmaOp) -> Option<Result<(), NotDirect>> {
    match op.local.source() {
        Source::User(iov) => {
            let kind = RmaKind { write: op.write, inject: false };
            Some(direct(ep, peer, kind, iov, &op.rma))
        }
        Source::Copied(bytes) => {
            let conn = ep.peers.at(peer).tx?;
            ep.links.conn(conn)?.windows()?;
            Some(with_bytes(bytes, |mem| {
                let kind = RmaKind { write: op.write, inject: true };
                direct(ep, peer, kind, std::slice::from_ref(mem), &op.rma)
            }))
        }
    }
}

/// Returns the header of a record of a write with a body of `n` bytes.
fn write_head(id: u64, op: &RmaOp, segment: &RmaIov, n: usize) -> Head {
    let mut flags = if op.offset + n == op.len { wire::F_LAST } else { 0 };
    if op.data.is_some() {
        flags |= wire::F_DATA;
    }
    Head::new()
        .word(segment.key)
        .word(segment.addr.wrapping_add(op.within as u64))
        .word(id)
        .word(op.data.unwrap_or(0))
        .word(flags)
        .word(op.len as u64)
        .word((segment.len - op.within) as u64)
}

/// Pushes one record of a write, past the ring if possible. Returns the number of its bytes, or
/// `None` if there is no space.
fn push_piece(c: &mut Connection, id: u64, op: &RmaOp, segment: &RmaIov) -> Option<usize> {
    let (left, payload) = (segment.len - op.within, op.local.source());
    let n = left.min(LONG_BODY_MAX);
    let head = write_head(id, op, segment, n);
    let append = &mut |message: &mut Vec<u8>| payload.append_part(op.offset, n, message);
    if long_record::send(c, (wire::WRITE, head.as_slice()), n, append) {
        return Some(n);
    }
    let n = left.min(BODY_MAX);
    let head = write_head(id, op, segment, n);
    let pushed = match payload {
        Source::User(iov) => c.tx().push(wire::WRITE, head.as_slice(), iov, op.offset, n),
        Source::Copied(bytes) => {
            let piece = bytes.get(op.offset..op.offset + n).unwrap_or_default();
            c.tx().push_slice(wire::WRITE, head.as_slice(), piece)
        }
    };
    pushed.is_ok().then_some(n)
}

fn push_write(ep: &mut Endpoint, conn: ConnId, id: u64, op: &mut RmaOp) -> Submit {
    let Some(c) = ep.links.conn(conn) else {
        return Submit::Retry;
    };
    loop {
        let segment = op.rma.get(op.segment).copied().unwrap_or_default();
        let Some(n) = push_piece(c, id, op, &segment) else {
            c.notify();
            return Submit::Retry;
        };
        let last = op.offset + n == op.len;
        ep.stats.ring.add(n);
        op.offset += n;
        op.within += n;
        if op.within == segment.len {
            op.segment += 1;
            op.within = 0;
        }
        if last {
            c.notify();
            return Submit::Done;
        }
    }
}

fn push_read(ep: &mut Endpoint, peer: PeerId, conn: ConnId, id: u64, op: &mut RmaOp) -> Submit {
    let Some(c) = ep.links.conn(conn) else {
        return Submit::Retry;
    };
    let p = ep.peers.at_mut(peer);
    loop {
        let segment = op.rma.get(op.segment).copied().unwrap_or_default();
        let n = (segment.len - op.within).min(READ_PIECE);
        if p.rma.read_bytes > 0 && p.rma.read_bytes + n as u64 > READ_WINDOW {
            c.notify();
            return Submit::Retry;
        }
        let head = Head::new()
            .word(segment.key)
            .word(segment.addr.wrapping_add(op.within as u64))
            .word(id)
            .word(op.offset as u64)
            .word(n as u64)
            .word(if op.offset + n == op.len { wire::F_LAST } else { 0 });
        if c.tx().push_head(wire::READ, head.as_slice()).is_err() {
            c.notify();
            return Submit::Retry;
        }
        p.rma.read_bytes += n as u64;
        op.offset += n;
        op.within += n;
        if op.within == segment.len {
            op.segment += 1;
            op.within = 0;
        }
        if op.offset == op.len {
            c.notify();
            return Submit::Done;
        }
    }
}

/// Copies between local buffers and the memory of the target.
#[inline]
fn access_memory(
    c: &Connection,
    write: bool,
    local: &[Mem],
    remote: RemoteMem,
) -> Result<(), AccessError> {
    if write { c.memory().write(local, &[remote]) } else { c.memory().read(local, &[remote]) }
}

/// Executes the operation now, in the memory of the target.
fn direct(
    ep: &mut Endpoint,
    peer: PeerId,
    kind: RmaKind,
    iov: &[Mem],
    rma: &[RmaIov],
) -> Result<(), NotDirect> {
    let p = ep.peers.at(peer);
    let conn_id = p.tx.ok_or(NotDirect::Ring)?;
    if p.rma.is_outstanding() || rma_target::waits_for_messages(ep, conn_id, peer, kind.write) {
        return Err(NotDirect::Ring);
    }
    if rma.iter().all(|segment| segment.len < COOP_RMA_MIN) {
        return reach(ep, peer, conn_id, kind, iov, rma);
    }
    let done = match coop_rma::run(ep, (peer, conn_id), kind.write, (iov, rma)) {
        Some(done) => done,
        None => reach(ep, peer, conn_id, kind, iov, rma),
    };
    // The copy took longer than the interval between two polls, and the program probably polls
    // next. Its peers should not take it for silent.
    ep.links.publish_poll(scif::now_ns(), ep.stats.rma.ops);
    done
}

/// Executes the operation in the memory of the target, whatever is outstanding.
pub(crate) fn reach(
    ep: &mut Endpoint,
    peer: PeerId,
    conn_id: ConnId,
    kind: RmaKind,
    iov: &[Mem],
    rma: &[RmaIov],
) -> Result<(), NotDirect> {
    let write = kind.write;
    let c = ep.links.conn(conn_id).ok_or(NotDirect::Ring)?;
    if !c.is_up() {
        return Err(NotDirect::Ring);
    }
    if c.windows().is_some() {
        return window_rma::reach(ep, conn_id, kind, iov, rma);
    }
    let access = c.memory().access();
    let near = access == Access::Mapped;
    let reached = near || access == Access::ProcessVm && crate::base::env::env().process_vm;
    let mut offset = 0;
    let mut asked = None;
    for segment in rma {
        let keys = c.keys().ok_or(NotDirect::Ring)?;
        let (slot, generation, entry) = keys.find(segment.key).ok_or(NotDirect::Ring)?;
        let remote = place(&entry, segment, right(write)).map_err(NotDirect::Failed)?;
        c.my_mark().set(slot);
        if !keys.revalidate(slot, generation) {
            c.my_mark().clear();
            return Err(NotDirect::Ring);
        }
        if !near {
            if let Some(window) = c.mapped((slot, generation), &entry, &remote) {
                match iov {
                    [one] if rma.len() == 1 && write => window.copy_from(one),
                    [one] if rma.len() == 1 => one.copy_from(&window),
                    _ if write => copy_iov(&[window], 0, iov, offset, segment.len),
                    _ => copy_iov(iov, offset, &[window], 0, segment.len),
                };
                c.my_mark().clear();
                offset += segment.len;
                continue;
            }
        }
        // The process id of a dead peer may belong to another process. The ring path detects a
        // dead peer.
        if !reached || !near && !c.alive_recently() {
            c.my_mark().clear();
            return Err(NotDirect::Ring);
        }
        let done = match iov {
            [one] if rma.len() == 1 => access_memory(c, write, std::slice::from_ref(one), remote),
            _ => access_memory(c, write, &sub_iov(iov, offset, segment.len), remote),
        };
        c.my_mark().clear();
        match done {
            Ok(()) => {}
            Err(AccessError::Gone) => return Err(NotDirect::Failed(fi::FI_ECONNRESET)),
            Err(AccessError::Denied) => {
                c.memory_mut().deny();
                note_denial(c, ep.peers.at_mut(peer), &mut ep.stats);
                return Err(NotDirect::Ring);
            }
            Err(error) => {
                ep.stats.denials.fallbacks += 1;
                crate::base::log::fall_back(c.peer(), c.peer_pid(), &error);
                return Err(NotDirect::Ring);
            }
        }
        offset += segment.len;
        if !near {
            asked = Some((segment.key, generation));
        }
    }
    ep.peers.at_mut(peer).transfer.copied.note(write, offset);
    match asked {
        None => ep.stats.mapped.add(offset),
        Some((key, generation)) => {
            ep.stats.process_vm.add(offset);
            key_maps::note_use(ep, peer, key, offset, UsePath::SystemCall(generation));
        }
    }
    Ok(())
}

/// Returns the error of an operation, if the key table already shows it, before its first
/// record enters the ring. Otherwise the target could find the error in a later record, with
/// the earlier ones already written to its memory. Keys that the table lacks are checked by the
/// target.
fn refused(ep: &mut Endpoint, conn: ConnId, op: &RmaOp) -> Option<Errno> {
    let keys = ep.links.conn(conn)?.keys()?;
    op.rma.iter().find_map(|segment| {
        let (_, _, entry) = keys.find(segment.key)?;
        place(&entry, segment, right(op.write)).err()
    })
}

/// Completes a direct operation, and notifies the target if it counts accesses or expects CQ
/// data.
pub(crate) fn finish_direct(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    rma: &[RmaIov],
    data: Option<u64>,
    info: CompletionInfo,
) {
    let conn = ep.peers.at(peer).tx;
    let notify = conn.and_then(|id| ep.links.conn(id)).is_some_and(|c| match c.keys() {
        Some(keys) => keys.notify(),
        None => c.windows().is_some_and(|windows| windows.notify()),
    });
    if data.is_some() || notify {
        let mut word = if info.op_kind == OpKind::Write { 0 } else { wire::F_READ };
        if data.is_some() {
            word |= wire::F_DATA;
        }
        let key = rma.first().map_or(0, |r| r.key);
        let head = Head::new().word(word).word(data.unwrap_or(0)).word(info.len as u64).word(key);
        peer_conn::control(ep, peer, wire::RMA_EVENT, head, &[]);
    }
    completion::tx_complete(ep, env, info, 0);
}

/// Handles the end of an operation at its target, or data that a read requested.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    let id = words.word();
    match record.kind {
        wire::READ_DATA => on_read_data(ep, env, peer, id, words.word(), record.body),
        _ => {
            if record.kind == wire::FIN {
                // A payload that was requested has gone through the ring.
                let beside = ep.ops.get_mut(id).filter(|op| op.asked == CtsReason::Never);
                let len = beside.map_or(0, |op| op.len);
                let transfer = &mut ep.peers.at_mut(peer).transfer;
                transfer.long_bytes = 0;
                transfer.copied.note(true, len);
            }
            on_ack(ep, env, peer, id, words.word(), words.word());
        }
    }
    Ok(())
}

/// Handles an acknowledgement: an operation ended at its target, or failed there.
fn on_ack(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, id: u64, status: u64, bytes: u64) {
    let p = ep.peers.at_mut(peer);
    p.rma.read_bytes = p.rma.read_bytes.saturating_sub(bytes);
    let err = if status == 0 { 0 } else { i32::try_from(status).unwrap_or(fi::FI_EOTHER).max(1) };
    completion::finish_op(ep, env, peer, id, err);
}

/// Handles a fragment of the data that a read requested.
fn on_read_data(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    id: u64,
    offset: u64,
    body: Mem,
) {
    let p = ep.peers.at_mut(peer);
    p.rma.read_bytes = p.rma.read_bytes.saturating_sub(body.len() as u64);
    let Some(op) = ep.ops.get_mut(id) else {
        return;
    };
    if op.peer != peer || op.op_kind != OpKind::Read || op.network.is_some() {
        return;
    }
    let off = usize::try_from(offset).unwrap_or(usize::MAX);
    if off.checked_add(body.len()).is_none_or(|end| end > op.len) {
        return;
    }
    copy_iov(op.iov.as_slice(), off, &[body], 0, body.len());
    op.left = op.left.saturating_sub(body.len());
    if op.left == 0 {
        completion::finish_op(ep, env, peer, id, 0);
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;

    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of, completed, connect, poll_until};

    fn write(bed: &mut Bed, key: u64, len: usize) -> Result<(), i32> {
        let iov = [buffer(vec![4; 8])];
        let args = RmaArgs {
            write: true,
            iov: &iov,
            rma: &[RmaIov { addr: 0, len, key }],
            dest: 0,
            data: None,
            context: 3,
            flags: fi::FI_COMPLETION,
        };
        let peer = bed.peer();
        bed.run(|ep, env| post(ep, env, peer, &args))
    }

    #[test]
    fn a_write_reaches_the_memory_of_its_key_only() {
        let mut pair = Bed::pair();
        let memory = buffer(vec![0; 16]);
        pair[1].register(&[memory.sub(0, 16).unwrap()]);
        connect(&mut pair);
        assert_eq!(write(&mut pair[0], 5, 9), Err(fi::FI_EINVAL), "the lengths differ");
        write(&mut pair[0], 5, 8).unwrap();
        assert_eq!(completed(&mut pair, 0).context, 3);
        let mut expected = vec![4; 8];
        expected.resize(16, 0);
        assert_eq!(bytes_of(&memory), expected);
        write(&mut pair[0], 6, 8).unwrap();
        assert!(poll_until(&mut pair, |pair| pair[0].completion()).is_err(), "no such key");
    }

    #[test]
    fn operation_without_room_is_not_counted() {
        let mut pair = Bed::pair();
        let accepted = (0..100_000).take_while(|_| write(&mut pair[0], 5, 8).is_ok()).count();
        assert_eq!(write(&mut pair[0], 5, 8), Err(fi::FI_EAGAIN));
        assert_eq!(pair[0].ep.stats.rma.ops, accepted as u64);
    }
}
