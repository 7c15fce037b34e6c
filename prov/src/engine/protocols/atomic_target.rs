// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomics as the target, which executes them in ring order.
//!
//! The effect on the operands is in `atomic_ops`.

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::chunks;
use scif_ring::copy::Mem;
use scif_ring::spsc::Record;

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::rma_target;
use crate::engine::types::args::Effect;
use crate::engine::types::envelope::{ProtocolError, RecordError};
use crate::engine::types::iov::{bytes_of, zeros};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, AtomicWord, Head, Words};

/// Bytes of one segment in the body of a record: address, length, key.
pub(crate) const SEGMENT: usize = 24;

/// Returns the access rights that an operation needs.
pub(crate) fn rights(op: u32, fetches: bool) -> u64 {
    let write = if op == fi::FI_ATOMIC_READ { 0 } else { fi::FI_REMOTE_WRITE };
    write | if fetches { fi::FI_REMOTE_READ } else { 0 }
}

/// Executes an atomic and replies to it, as a target.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    let (id, data) = (words.word(), words.word());
    let word = AtomicWord::unpack(words.word());
    let bytes = bytes_of(&record.body).ok_or(RecordError::NoMemory)?;
    let len = usize::from(word.len);
    let (list, operands) =
        bytes.split_at_checked(usize::from(word.segments) * SEGMENT).ok_or(ProtocolError)?;
    let (operand, compare) = operands.split_at_checked(len).ok_or(ProtocolError)?;
    let kind = word.kind().ok_or(ProtocolError)?;
    if kind == AtomicKind::Compare && compare.len() != len {
        return Err(RecordError::ProtocolError);
    }
    let mut result = zeros(len).ok_or(RecordError::NoMemory)?;
    let (err, key) = execute(env, word, kind, list, (operand, compare), &mut result);
    if err != 0 || kind == AtomicKind::Write {
        peer_conn::answer(
            ep,
            peer,
            wire::ACK,
            Head::new().word(id).word(u64::from(err.unsigned_abs())),
            &[],
        );
    } else {
        peer_conn::answer(ep, peer, wire::ATOMIC_REPLY, Head::new().word(id).word(0), &result);
    }
    if err == 0 {
        let effect = Effect::of_atomic(kind != AtomicKind::Write, u32::from(word.op));
        rma_target::rma_event(ep, env, peer, effect, word.has_data.then_some(data), (key, len));
    }
    Ok(())
}

/// Applies the operation segment by segment. Checks all segments before it changes the first.
pub(crate) fn execute(
    env: &Env<'_>,
    word: AtomicWord,
    kind: AtomicKind,
    list: &[u8],
    (operand, compare): (&[u8], &[u8]),
    result: &mut [u8],
) -> (Errno, u64) {
    let (op, datatype) = (u32::from(word.op), u32::from(word.datatype));
    if !crate::base::atomic_ops::valid(op, datatype, kind) {
        return (fi::FI_EOPNOTSUPP, 0);
    }
    let right = rights(op, kind != AtomicKind::Write);
    let mut targets: Vec<Mem> = Vec::new();
    let mut first_key = None;
    let mut total = 0usize;
    for segment in list.chunks_exact(SEGMENT) {
        let mut words = chunks(segment).map(|w| u64::from_ne_bytes(*w));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of};

    #[test]
    fn rights_follow_the_effect() {
        assert_eq!(rights(fi::FI_SUM, false), fi::FI_REMOTE_WRITE);
        assert_eq!(rights(fi::FI_ATOMIC_READ, true), fi::FI_REMOTE_READ);
        assert_eq!(rights(fi::FI_SUM, true), fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
    }

    #[test]
    fn all_segments_are_checked_before_the_first_changes() {
        let mut bed = Bed::new(|_| {});
        let memory = buffer(vec![1; 16]);
        bed.register(&[memory.sub(0, 16).unwrap()]);
        let segment = |addr: u64, key: u64| [addr, 8, key].map(u64::to_ne_bytes).concat();
        let op = u8::try_from(fi::FI_SUM).unwrap();
        let word = AtomicWord {
            op,
            datatype: u8::try_from(fi::FI_UINT8).unwrap(),
            kind: AtomicKind::Write as u8,
            segments: 2,
            len: 16,
            has_data: false,
        };
        for (second, expected) in [(segment(8, 6), 1), (segment(8, 5), 3)] {
            let list = [segment(0, 5), second].concat();
            let (err, _) = bed.run(|_, env| {
                execute(env, word, AtomicKind::Write, &list, (&[2; 16], &[]), &mut [])
            });
            assert_eq!((err == 0, bytes_of(&memory)), (expected == 3, vec![expected; 16]));
        }
    }
}
