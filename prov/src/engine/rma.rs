// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA, as initiator and as target.
//!
//! The initiator does all the work where it can: it finds the key in the key table of the target,
//! sets its hazard pointer, and copies directly. Otherwise the target executes the operation in
//! ring order. An operation is direct only while no earlier one to the same peer remains in the
//! ring.

use std::collections::HashMap;

use libfabric_sys as fi;
use scif::{Access, AccessError, ConnId, RemoteMem};
use scif_ring::BODY_MAX;
use scif_ring::copy::{Mem, copy_iov, total_len};
use scif_ring::keytable::KeyEntry;

use super::envelope::{ProtocolError, RecordError};
use super::iov::{Iov, gather_into, sub_iov, zeros};
use super::ops::{OutOp, What};
use super::peer::{READ_WINDOW, is_denied, note_denial};
use super::peer_id::PeerId;
use super::pending::{Kept, OutStream, RmaOp, Source, TxOp};
use super::tx::Tried;
use super::wire::{self, Head, Words};
use super::{Effect, Env, EpState, Errno, RmaArgs, RmaIov};
use crate::state::completion::Completion;

/// Largest read in one record, in bytes. It bounds the snapshot that the target allocates.
const READ_PIECE: usize = 64 * 1024;
/// State of an endpoint as the target of accesses.
#[derive(Debug, Default)]
pub(super) struct RmaTarget {
    /// Errors of writes whose fragments are still arriving, by connection.
    pub(super) write_errors: HashMap<ConnId, Errno>,
    /// Reads of which a part failed and the last part has not arrived, by connection.
    pub(super) failed_reads: HashMap<ConnId, u64>,
    /// Peers whose one-sided operations without a reply were executed and must be acknowledged.
    pub(super) done: Vec<PeerId>,
}

impl RmaTarget {
    /// Drops the state of a connection that has ended.
    pub(super) fn on_conn_lost(&mut self, conn: ConnId) {
        self.write_errors.remove(&conn);
        self.failed_reads.remove(&conn);
    }
}

/// Reason why an operation was not direct.
enum NotDirect {
    /// The target has to execute it.
    Ring,
    /// The operation is impossible.
    Failed(Errno),
}

/// Returns the access right that an operation needs.
fn right(write: bool) -> u64 {
    if write { fi::FI_REMOTE_WRITE } else { fi::FI_REMOTE_READ }
}

/// Returns the memory of one segment at the target, if its key permits the access `needed`.
#[inline(always)]
pub(super) fn place(entry: &KeyEntry, segment: &RmaIov, needed: u64) -> Result<RemoteMem, Errno> {
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

impl EpState {
    /// Executes an RMA operation directly, or sends it to the target, or makes it pending.
    pub(crate) fn post_rma(&mut self, env: &mut Env<'_>, a: &RmaArgs<'_>) -> Result<(), Errno> {
        let peer = self.peer_of(env, a.dest)?;
        let len = total_len(a.iov);
        if a.rma.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len)) != Some(len) {
            return Err(fi::FI_EINVAL);
        }
        self.stats.rma.add(len);
        let quiet = self.peers.at(peer).queue.is_quiet();
        let now = quiet && (a.flags & fi::FI_FENCE == 0 || self.fence_passed(peer));
        if now {
            match self.direct(peer, a.write, a.iov, a.rma) {
                Ok(()) => {
                    self.finish_direct(env, peer, a.write, a.rma, len, a.data, a.context, a.flags);
                    return Ok(());
                }
                Err(NotDirect::Failed(err)) => {
                    let what = if a.write { What::Write } else { What::Read };
                    self.tx_complete(env, what, a.context, a.flags, 0, len, err);
                    return Ok(());
                }
                Err(NotDirect::Ring) => {}
            }
        }
        self.check_room(peer)?;
        let mut op = RmaOp {
            write: a.write,
            local: Kept::new(a.iov, a.flags & fi::FI_INJECT != 0 && a.write),
            rma: a.rma.to_vec(),
            len,
            data: a.data,
            context: a.context,
            flags: a.flags,
            id: None,
            segment: 0,
            within: 0,
            offset: 0,
            through_ring: false,
        };
        if now && self.try_rma(env, peer, &mut op) == Tried::Sent {
            return Ok(());
        }
        self.defer(peer, TxOp::Rma(op));
        Ok(())
    }

    /// Whether RMA must follow earlier messages (`FI_ORDER_WAS`, `FI_ORDER_RAS`) that are not
    /// consumed yet.
    pub(super) fn waits_for_messages(&mut self, conn: ConnId, write: bool) -> bool {
        let order = if write { fi::FI_ORDER_WAS } else { fi::FI_ORDER_RAS };
        let in_order = self.cfg.msg_order & order != 0;
        in_order && self.links.conn(conn).is_some_and(|c| !c.tx().all_consumed())
    }

    /// Tries to execute a pending RMA operation, or to push its remaining records.
    pub(crate) fn try_rma(&mut self, env: &mut Env<'_>, peer: PeerId, op: &mut RmaOp) -> Tried {
        let Some(conn) = self.tx_conn(peer) else {
            return Tried::Later;
        };
        if op.id.is_none() {
            if op.flags & fi::FI_FENCE != 0 && !self.fence_passed(peer)
                || self.waits_for_messages(conn, op.write)
                || self.out_of_credits(peer)
            {
                return Tried::Later;
            }
            if !self.links.conn(conn).is_some_and(|c| c.is_up()) {
                return Tried::Later;
            }
            if let (Source::User(iov), false) = (op.local.source(), op.through_ring) {
                match self.direct(peer, op.write, iov, &op.rma) {
                    Ok(()) => {
                        let (data, context, flags) = (op.data, op.context, op.flags);
                        self.finish_direct(
                            env, peer, op.write, &op.rma, op.len, data, context, flags,
                        );
                        return Tried::Sent;
                    }
                    Err(NotDirect::Failed(err)) => {
                        self.tx_complete(env, op.what(), op.context, op.flags, 0, op.len, err);
                        return Tried::Sent;
                    }
                    Err(NotDirect::Ring) => {
                        let denied = self.links.conn(conn).is_some_and(|c| is_denied(c));
                        self.stats.fallbacks += u64::from(denied);
                    }
                }
            }
            op.through_ring = true;
            if !self.links.conn(conn).is_some_and(|c| c.tx().room(BODY_MAX)) {
                return Tried::Later;
            }
            if let Some(err) = self.refused(conn, op) {
                self.tx_complete(env, op.what(), op.context, op.flags, 0, op.len, err);
                return Tried::Sent;
            }
            let iov = match &op.local {
                Kept::User(iov) => iov.clone(),
                Kept::Copied(_) => Iov::new(&[]),
            };
            op.id = Some(self.ops.insert(OutOp {
                left: op.len,
                ring_rma: true,
                ..OutOp::new(peer, op.label(), iov)
            }));
            self.peers.at_mut(peer).rma.outstanding += 1;
        }
        let Some(id) = op.id else { return Tried::Later };
        if self.ops.get_mut(id).is_none() {
            // The target refused an earlier record: the operation has ended, and the rest is not
            // sent.
            return Tried::Sent;
        }
        if op.write { self.push_write(conn, id, op) } else { self.push_read(peer, conn, id, op) }
    }

    fn push_write(&mut self, conn: ConnId, id: u64, op: &mut RmaOp) -> Tried {
        let Some(c) = self.links.conn(conn) else {
            return Tried::Later;
        };
        loop {
            let segment = op.rma.get(op.segment).copied().unwrap_or_default();
            let n = (segment.len - op.within).min(BODY_MAX);
            let last = op.offset + n == op.len;
            let mut flags = if last { wire::F_LAST } else { 0 };
            if op.data.is_some() {
                flags |= wire::F_DATA;
            }
            let head = Head::new()
                .word(segment.key)
                .word(segment.addr.wrapping_add(op.within as u64))
                .word(id)
                .word(op.data.unwrap_or(0))
                .word(flags)
                .word(op.len as u64)
                .word((segment.len - op.within) as u64);
            let pushed = match op.local.source() {
                Source::User(iov) => c.tx().push(wire::WRITE, head.as_slice(), iov, op.offset, n),
                Source::Copied(bytes) => {
                    let piece = bytes.get(op.offset..op.offset + n).unwrap_or_default();
                    c.tx().push_slice(wire::WRITE, head.as_slice(), piece)
                }
            };
            if pushed.is_err() {
                c.notify();
                return Tried::Later;
            }
            self.stats.ring.add(n);
            op.offset += n;
            op.within += n;
            if op.within == segment.len {
                op.segment += 1;
                op.within = 0;
            }
            if last {
                c.notify();
                return Tried::Sent;
            }
        }
    }

    fn push_read(&mut self, peer: PeerId, conn: ConnId, id: u64, op: &mut RmaOp) -> Tried {
        let Some(c) = self.links.conn(conn) else {
            return Tried::Later;
        };
        let p = self.peers.at_mut(peer);
        loop {
            let segment = op.rma.get(op.segment).copied().unwrap_or_default();
            let n = (segment.len - op.within).min(READ_PIECE);
            if p.rma.read_bytes > 0 && p.rma.read_bytes + n as u64 > READ_WINDOW {
                c.notify();
                return Tried::Later;
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
                return Tried::Later;
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
                return Tried::Sent;
            }
        }
    }

    /// Executes the operation now, in the memory of the target.
    fn direct(
        &mut self,
        peer: PeerId,
        write: bool,
        iov: &[Mem],
        rma: &[RmaIov],
    ) -> Result<(), NotDirect> {
        let p = self.peers.at(peer);
        let conn_id = p.tx.ok_or(NotDirect::Ring)?;
        if p.rma.outstanding > 0 || self.waits_for_messages(conn_id, write) {
            return Err(NotDirect::Ring);
        }
        let c = self.links.conn(conn_id).ok_or(NotDirect::Ring)?;
        if !c.is_up() {
            return Err(NotDirect::Ring);
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
            if !near && let Some(window) = c.window(&entry, &remote) {
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
            // The process id of a dead peer may belong to another process. The ring path detects a
            // dead peer.
            if !reached || !near && !c.alive_recently() {
                c.my_mark().clear();
                return Err(NotDirect::Ring);
            }
            let done = match iov {
                [one] if rma.len() == 1 => {
                    let local = std::slice::from_ref(one);
                    if write {
                        c.memory().write(local, &[remote])
                    } else {
                        c.memory().read(local, &[remote])
                    }
                }
                _ => {
                    let local = sub_iov(iov, offset, segment.len);
                    if write {
                        c.memory().write(&local, &[remote])
                    } else {
                        c.memory().read(&local, &[remote])
                    }
                }
            };
            c.my_mark().clear();
            match done {
                Ok(()) => {}
                Err(AccessError::Gone) => return Err(NotDirect::Failed(fi::FI_ECONNRESET)),
                Err(AccessError::Denied) => {
                    c.memory_mut().deny();
                    note_denial(c, self.peers.at_mut(peer), &mut self.stats);
                    return Err(NotDirect::Ring);
                }
                Err(error) => {
                    self.stats.fallbacks += 1;
                    crate::base::log::fall_back(c.peer(), c.peer_pid(), &error);
                    return Err(NotDirect::Ring);
                }
            }
            offset += segment.len;
            if !near {
                asked = Some((slot, segment.key, c.keys().is_some_and(|keys| keys.hints())));
            }
        }
        match asked {
            None => self.stats.mapped.add(offset),
            Some((slot, key, hints)) => {
                self.stats.process_vm.add(offset);
                if hints {
                    self.count_use(peer, slot, key, offset);
                }
            }
        }
        Ok(())
    }

    /// Returns the error of an operation, if the key table already shows it, before its first
    /// record enters the ring. Otherwise the target could find the error in a later record, with
    /// the earlier ones already written to its memory. Keys that the table lacks are checked by the
    /// target.
    fn refused(&mut self, conn: ConnId, op: &RmaOp) -> Option<Errno> {
        let keys = self.links.conn(conn)?.keys()?;
        op.rma.iter().find_map(|segment| {
            let (_, _, entry) = keys.find(segment.key)?;
            place(&entry, segment, right(op.write)).err()
        })
    }

    /// Completes a direct operation, and notifies the target if it counts accesses or expects CQ
    /// data.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one operation, from either of its two forms"
    )]
    fn finish_direct(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        write: bool,
        rma: &[RmaIov],
        len: usize,
        data: Option<u64>,
        context: usize,
        flags: u64,
    ) {
        let conn = self.peers.at(peer).tx;
        let notify = conn
            .and_then(|id| self.links.conn(id))
            .is_some_and(|c| c.keys().is_some_and(|k| k.notify()));
        if data.is_some() || notify {
            let mut word = if write { 0 } else { wire::F_READ };
            if data.is_some() {
                word |= wire::F_DATA;
            }
            let key = rma.first().map_or(0, |r| r.key);
            let head = Head::new().word(word).word(data.unwrap_or(0)).word(len as u64).word(key);
            self.control(peer, wire::RMA_EVENT, head, &[]);
        }
        self.tx_complete(
            env,
            if write { What::Write } else { What::Read },
            context,
            flags,
            0,
            len,
            0,
        );
    }

    /// Handles an acknowledgement: an operation ended at its target, or failed there.
    pub(crate) fn on_ack(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        id: u64,
        status: u64,
        bytes: u64,
    ) {
        let p = self.peers.at_mut(peer);
        p.rma.read_bytes = p.rma.read_bytes.saturating_sub(bytes);
        let err =
            if status == 0 { 0 } else { i32::try_from(status).unwrap_or(fi::FI_EOTHER).max(1) };
        self.finish_op(env, peer, id, err);
    }

    /// Executes one record of a write, as a target.
    pub(crate) fn on_write(
        &mut self,
        env: &mut Env<'_>,
        conn: ConnId,
        peer: PeerId,
        words: &mut Words<'_>,
        body: Mem,
    ) -> Result<(), ProtocolError> {
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
                self.rma_target.write_errors.insert(conn, err);
            }
        }
        if flags & wire::F_LAST != 0 {
            let err = if self.rma_target.write_errors.is_empty() {
                0
            } else {
                self.rma_target.write_errors.remove(&conn).unwrap_or(0)
            };
            self.answer(
                peer,
                wire::ACK,
                Head::new().word(id).word(u64::from(err.unsigned_abs())),
                &[],
            );
            if err == 0 {
                let data = (flags & wire::F_DATA != 0).then_some(data);
                self.rma_event(
                    env,
                    peer,
                    Effect::Write,
                    data,
                    usize::try_from(total).unwrap_or(usize::MAX),
                    key,
                );
            }
        }
        Ok(())
    }

    /// Executes a read, as a target. The bytes are taken now, so that later writes cannot overtake
    /// it.
    pub(crate) fn on_read(
        &mut self,
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
            && !self.rma_target.failed_reads.is_empty()
            && self.rma_target.failed_reads.remove(&conn) == Some(id);
        let mut from = Vec::new();
        match env.mrs.check(key, addr, len, fi::FI_REMOTE_READ, &mut from) {
            Ok(()) => {
                let mut bytes = zeros(total_len(&from)).ok_or(RecordError::NoMemory)?;
                gather_into(&from, &mut bytes);
                let data =
                    OutStream::Read { op: id, offset, bytes: bytes.into_boxed_slice(), done: 0 };
                if !self.peers.at_mut(peer).queue.answer_read(data) {
                    return Err(RecordError::NoMemory);
                }
                let conn = self.peers.at(peer).tx;
                if let Some(conn) = conn {
                    self.flush_streams(peer, conn);
                }
                self.peers.mark_busy(peer);
                if is_last && !failed {
                    self.rma_event(
                        env,
                        peer,
                        Effect::Read,
                        None,
                        usize::try_from(len).unwrap_or(0),
                        key,
                    );
                }
            }
            Err(err) => {
                if !is_last {
                    self.rma_target.failed_reads.insert(conn, id);
                }
                let head = Head::new().word(id).word(u64::from(err.unsigned_abs())).word(len);
                self.answer(peer, wire::ACK, head, &[]);
            }
        }
        Ok(())
    }

    /// Handles a fragment of the data that a read requested.
    pub(crate) fn on_read_data(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        id: u64,
        offset: u64,
        body: Mem,
    ) {
        let p = self.peers.at_mut(peer);
        p.rma.read_bytes = p.rma.read_bytes.saturating_sub(body.len() as u64);
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        if op.peer != peer || op.what != What::Read {
            return;
        }
        let off = usize::try_from(offset).unwrap_or(usize::MAX);
        if off.checked_add(body.len()).is_none_or(|end| end > op.len) {
            return;
        }
        copy_iov(op.iov.as_slice(), off, &[body], 0, body.len());
        op.left = op.left.saturating_sub(body.len());
        if op.left == 0 {
            self.finish_op(env, peer, id, 0);
        }
    }

    /// Writes, as a target, completions and counters for an access to local memory.
    pub(crate) fn rma_event(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        effect: Effect,
        data: Option<u64>,
        len: usize,
        key: u64,
    ) {
        env.mrs.used(key);
        if self.cfg.rma_event {
            let own = effect.counters(self.cfg.cntr_remote_read, self.cfg.cntr_remote_write);
            let (read, write) = (env.mrs.cntr_of(key, true), env.mrs.cntr_of(key, false));
            for cntr in own.into_iter().chain(effect.counters(read, write)).flatten() {
                if let Some(cntr) = env.cntrs.get_mut(cntr) {
                    cntr.add(1);
                }
            }
        }
        let Some(data) = data else { return };
        let src = self.source_of(env, peer);
        if let Some(cq) = self.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
            let kind =
                if effect == Effect::Write { fi::FI_REMOTE_WRITE } else { fi::FI_REMOTE_READ };
            let flags = fi::FI_RMA | kind | fi::FI_REMOTE_CQ_DATA;
            cq.success(Completion { len, data, src, ..Completion::new(0, flags, 0) });
        }
    }
}
