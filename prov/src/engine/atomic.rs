// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomics, as initiator and as target. The target executes them in ring order, unless the
//! initiator can (`atomic_here`).
//!
//! The effect on the operands is in `atomic_ops`.

use libfabric_sys as fi;
use scif_ring::copy::Mem;

use super::envelope::{ProtocolError, RecordError};
use super::iov::{Iov, bytes_of, gather, zeros};
use super::ops::{OutOp, What};
use super::peer_id::PeerId;
use super::pending::{AtomicOp, TxOp};
use super::rx::scatter;
use super::tx::Tried;
use super::wire::{self, AtomicWord, Head, Words};
use super::{AtomicArgs, Effect, Env, EpState, Errno};
use crate::base::atomic_ops::element::AtomicKind;

/// Bytes of one segment in the body of a record: address, length, key.
pub(super) const SEGMENT: usize = 24;

/// Returns the access rights that an operation needs.
pub(super) fn rights(op: u32, fetches: bool) -> u64 {
    let write = if op == fi::FI_ATOMIC_READ { 0 } else { fi::FI_REMOTE_WRITE };
    write | if fetches { fi::FI_REMOTE_READ } else { 0 }
}

impl EpState {
    /// Tries an atomic directly, then inline, then as a record with a body. Else it becomes
    /// pending.
    pub(crate) fn post_atomic(
        &mut self,
        env: &mut Env<'_>,
        a: &AtomicArgs<'_>,
    ) -> Result<(), Errno> {
        let peer = self.peer_of(env, a.dest)?;
        let len: usize = a.rma.iter().map(|r| r.len).sum();
        let quiet = self.peers.at(peer).queue.is_quiet();
        if quiet && self.atomic_at_once(env, peer, a) {
            self.stats.atomics.add(len);
            return Ok(());
        }
        if quiet && self.atomic_in_line(env, peer, a) {
            self.stats.atomics.add(len);
            return Ok(());
        }
        let mut body = Vec::with_capacity(a.rma.len() * SEGMENT + 2 * len);
        for segment in a.rma {
            body.extend_from_slice(&segment.addr.to_ne_bytes());
            body.extend_from_slice(&(segment.len as u64).to_ne_bytes());
            body.extend_from_slice(&segment.key.to_ne_bytes());
        }
        // FI_ATOMIC_READ has no operand. Zeros keep the shape of the record.
        let mut operand = gather(a.operand);
        operand.resize(len, 0);
        body.append(&mut operand);
        if a.kind == AtomicKind::Compare {
            let mut compare = gather(a.compare);
            compare.resize(len, 0);
            body.append(&mut compare);
        }
        let narrow = |v: u32| u8::try_from(v).map_err(|_| fi::FI_EINVAL);
        let mut op = AtomicOp {
            what: What::of_atomic(a.kind),
            word: AtomicWord {
                op: narrow(a.op)?,
                datatype: narrow(a.datatype)?,
                kind: a.kind as u8,
                segments: u8::try_from(a.rma.len()).map_err(|_| fi::FI_EINVAL)?,
                len: u16::try_from(len).map_err(|_| fi::FI_EINVAL)?,
                has_data: a.data.is_some(),
            },
            data: a.data.unwrap_or(0),
            body,
            result: Iov::new(a.result),
            len,
            context: a.context,
            flags: a.flags,
        };
        self.stats.atomics.add(len);
        if quiet && self.try_atomic(env, peer, &mut op) == Tried::Sent {
            return Ok(());
        }
        self.check_room(peer)?;
        self.defer(peer, TxOp::Atomic(op));
        Ok(())
    }

    /// Tries to execute a pending atomic, or to push its record.
    pub(crate) fn try_atomic(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        op: &mut AtomicOp,
    ) -> Tried {
        let Some(conn_id) = self.tx_conn(peer) else {
            return Tried::Later;
        };
        if self.out_of_credits(peer) || op.flags & fi::FI_FENCE != 0 && !self.fence_passed(peer) {
            return Tried::Later;
        }
        if self.atomic_here(env, peer, conn_id, op) {
            return Tried::Sent;
        }
        let Some(c) = self.links.conn(conn_id) else {
            return Tried::Later;
        };
        if !c.tx().room(op.body.len()) {
            return Tried::Later;
        }
        let id = self
            .ops
            .insert(OutOp { ring_rma: true, ..OutOp::new(peer, op.label(), op.result.clone()) });
        let head = Head::new().word(id).word(op.data).word(op.word.pack());
        if c.tx().push_slice(wire::ATOMIC, head.as_slice(), &op.body).is_err() {
            self.ops.remove(id);
            return Tried::Later;
        }
        c.notify();
        self.peers.at_mut(peer).rma.outstanding += 1;
        self.stats.ring.add(op.body.len());
        Tried::Sent
    }

    /// Executes an atomic and replies to it, as a target.
    pub(crate) fn on_atomic(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        words: &mut Words<'_>,
        body: Mem,
    ) -> Result<(), RecordError> {
        let (id, data) = (words.word(), words.word());
        let word = AtomicWord::unpack(words.word());
        let bytes = bytes_of(&body).ok_or(RecordError::NoMemory)?;
        let len = usize::from(word.len);
        let (list, operands) =
            bytes.split_at_checked(usize::from(word.segments) * SEGMENT).ok_or(ProtocolError)?;
        let (operand, compare) = operands.split_at_checked(len).ok_or(ProtocolError)?;
        let kind = word.kind().ok_or(ProtocolError)?;
        if kind == AtomicKind::Compare && compare.len() != len {
            return Err(RecordError::ProtocolError);
        }
        let mut result = zeros(len).ok_or(RecordError::NoMemory)?;
        let (err, key) = execute(env, word, kind, list, operand, compare, &mut result);
        if err != 0 || kind == AtomicKind::Write {
            self.answer(
                peer,
                wire::ACK,
                Head::new().word(id).word(u64::from(err.unsigned_abs())),
                &[],
            );
        } else {
            self.answer(peer, wire::ATOMIC_REPLY, Head::new().word(id).word(0), &result);
        }
        if err == 0 {
            let effect = Effect::of_atomic(kind != AtomicKind::Write, u32::from(word.op));
            self.rma_event(env, peer, effect, word.has_data.then_some(data), len, key);
        }
        Ok(())
    }

    /// Handles the old values of a fetching atomic: a list in the body, or a single value.
    pub(crate) fn on_atomic_reply(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        id: u64,
        status: u64,
        (old, body): (u64, Mem),
    ) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        if op.peer != peer || op.what != What::AtomicFetch || body.len() > op.len {
            return;
        }
        if body.is_empty() {
            let old = old.to_ne_bytes();
            scatter(op.iov.as_slice(), old.get(..op.len).unwrap_or_default());
        } else {
            scif_ring::copy::copy_iov(op.iov.as_slice(), 0, &[body], 0, body.len());
        }
        let err = if status == 0 { 0 } else { fi::FI_EOTHER };
        self.finish_op(env, peer, id, err);
    }
}

/// Applies the operation segment by segment. Checks all segments before it changes the first.
pub(super) fn execute(
    env: &Env<'_>,
    word: AtomicWord,
    kind: AtomicKind,
    list: &[u8],
    operand: &[u8],
    compare: &[u8],
    result: &mut [u8],
) -> (Errno, u64) {
    let (op, datatype) = (u32::from(word.op), u32::from(word.datatype));
    if !crate::base::atomic_ops::valid(op, datatype, kind) {
        return (fi::FI_EOPNOTSUPP, 0);
    }
    let right = rights(op, kind != AtomicKind::Write);
    let (segments, _) = list.as_chunks::<SEGMENT>();
    let mut targets: Vec<Mem> = Vec::new();
    let mut first_key = None;
    let mut total = 0usize;
    for segment in segments {
        let mut words = segment.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w));
        let mut next = || words.next().unwrap_or(0);
        let (addr, len, key) = (next(), next(), next());
        first_key.get_or_insert(key);
        let mut pieces = Vec::new();
        if let Err(err) = env.mrs.check(key, addr, len, right, &mut pieces) {
            return (err, key);
        }
        total = total.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
        targets.append(&mut pieces);
    }
    let key = first_key.unwrap_or(0);
    if total != operand.len() {
        return (fi::FI_EINVAL, key);
    }
    let mut at = 0;
    for target in targets {
        let end = at + target.len();
        let none: &[u8] = &[];
        let applied = crate::base::atomic_ops::apply(
            op,
            datatype,
            &target,
            operand.get(at..end).unwrap_or(none),
            compare.get(at..end).unwrap_or(none),
            result.get_mut(at..end).unwrap_or_default(),
        );
        if let Err(err) = applied {
            return (err, key);
        }
        at = end;
    }
    (0, key)
}
