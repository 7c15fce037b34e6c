// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomics, as initiator and as target. The target executes them in ring order, unless the
//! initiator can (`try_direct`).
//!
//! The effect on the operands is in `atomic_ops`.

use libfabric_sys as fi;
use scif::ConnId;
use scif::trace::{EventKind, TraceEvent};
use scif_ring::spsc::Record;

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::protocols::atomic_target::SEGMENT;
use crate::engine::protocols::key_maps::{self, UsePath};
use crate::engine::protocols::{atomic_direct, atomic_inline};
use crate::engine::tables::op_table::{OpKind, OutstandingOp};
use crate::engine::tables::pending::{AtomicOp, PendingOp};
use crate::engine::types::args::AtomicArgs;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::iov::{Iov, gather, scatter};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, AtomicWord, Head, Words};

/// Counts an atomic of `len` bytes.
fn note_posted(ep: &mut Endpoint, peer: PeerId, a: &AtomicArgs<'_>, len: usize) {
    ep.stats.atomics.add(len);
    ep.peers.note(peer, || TraceEvent::new(EventKind::Atomic, 0, len, a.context as u64));
}

/// Tries an atomic directly, then inline, then as a record with a body. Else it becomes
/// pending.
pub(crate) fn post(ep: &mut Endpoint, env: &mut Env<'_>, a: &AtomicArgs<'_>) -> Result<(), Errno> {
    let peer = peer_conn::peer_of(ep, env, a.dest)?;
    let len: usize = a.rma.iter().map(|r| r.len).sum();
    let quiet = ep.peers.at(peer).queue.is_quiet();
    if quiet && atomic_direct::try_direct_early(ep, env, peer, a) {
        note_posted(ep, peer, a, len);
        return Ok(());
    }
    if let [segment] = a.rma {
        key_maps::note_use(ep, peer, segment.key, len, UsePath::Target);
    }
    if quiet && atomic_inline::try_inline(ep, env, peer, a) {
        note_posted(ep, peer, a, len);
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
        op_kind: OpKind::of_atomic(a.kind),
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
    if quiet && submit(ep, env, peer, &mut op) == Submit::Done {
        note_posted(ep, peer, a, len);
        return Ok(());
    }
    tx_queue::check_room(ep, peer)?;
    note_posted(ep, peer, a, len);
    tx_queue::defer(ep, peer, PendingOp::Atomic(op));
    Ok(())
}

/// Tries to execute a pending atomic, or to push its record.
pub(crate) fn submit(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    op: &mut AtomicOp,
) -> Submit {
    let Some(conn_id) = peer_conn::tx_conn(ep, peer) else {
        return Submit::Retry;
    };
    if peer_conn::out_of_credits(ep, peer)
        || op.flags & fi::FI_FENCE != 0 && !tx_queue::fence_passed(ep, peer)
    {
        return Submit::Retry;
    }
    if atomic_direct::try_direct(ep, env, peer, conn_id, op) {
        return Submit::Done;
    }
    let Some(c) = ep.links.conn(conn_id) else {
        return Submit::Retry;
    };
    if !c.tx().room(op.body.len()) {
        return Submit::Retry;
    }
    let id = ep.ops.insert(OutstandingOp {
        ring_rma: true,
        ..OutstandingOp::new(peer, op.label(), op.result.clone())
    });
    let head = Head::new().word(id).word(op.data).word(op.word.pack());
    if c.tx().push_slice(wire::ATOMIC, head.as_slice(), &op.body).is_err() {
        ep.ops.remove(id);
        return Submit::Retry;
    }
    c.notify();
    ep.peers.at_mut(peer).rma.outstanding += 1;
    ep.stats.ring.add(op.body.len());
    Submit::Done
}

/// Handles the old values of a fetching atomic: a list in the body, or a single value.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    let (id, status, old) = (words.word(), words.word(), words.word());
    let body = record.body;
    let Some(op) = ep.ops.get_mut(id) else {
        return Ok(());
    };
    if op.peer != peer || op.op_kind != OpKind::AtomicFetch || body.len() > op.len {
        return Ok(());
    }
    if body.is_empty() {
        let old = old.to_ne_bytes();
        scatter(op.iov.as_slice(), old.get(..op.len).unwrap_or_default());
    } else {
        scif_ring::copy::copy_iov(op.iov.as_slice(), 0, &[body], 0, body.len());
    }
    let err = if status == 0 { 0 } else { fi::FI_EOTHER };
    completion::finish_op(ep, env, peer, id, err);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of, completed, connect, sum_args};

    /// Adds 1 to `len` bytes at the target.
    fn add(bed: &mut Bed, len: usize) -> Result<(), i32> {
        let operand = [buffer(vec![1; len])];
        let rma = [crate::engine::types::args::RmaIov { addr: 0, len, key: 5 }];
        let args = AtomicArgs { datatype: fi::FI_UINT8, ..sum_args(&operand, &rma) };
        bed.run(|ep, env| post(ep, env, &args))
    }

    #[test]
    fn an_atomic_changes_the_memory_of_its_key() {
        let mut pair = Bed::pair();
        let memory = buffer(vec![0; 100]);
        pair[1].register(&[memory.sub(0, 100).unwrap()]);
        connect(&mut pair);
        for len in [8, 100] {
            add(&mut pair[0], len).unwrap();
            assert_eq!(completed(&mut pair, 0).context, 4);
        }
        crate::engine::tests::poll_until(&mut pair, |_| {
            let bytes = bytes_of(&memory);
            (bytes[..8] == [2; 8] && bytes[8..] == [1; 92]).then_some(())
        });
        assert_eq!(add(&mut pair[0], 1 << 16), Err(fi::FI_EINVAL), "too long for a record");
    }
}
