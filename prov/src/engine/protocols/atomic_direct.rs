// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomics that the initiator executes itself: on memory of its own process or in a mapped window,
//! with operands for which the CPU has atomic instructions.
//!
//! The target executes all others (`atomic`). It also detects the errors: a possibly invalid
//! operation is left to it.

use libfabric_sys as fi;
use scif::{Access, ConnId};
use scif_ring::{Mem, chunks};

use crate::base::atomic_ops::element::AtomicKind;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::atomic_target::{SEGMENT, rights};
use crate::engine::protocols::rma_target::{self, place};
use crate::engine::tables::op_table::{CompletionInfo, OpKind};
use crate::engine::tables::pending::AtomicOp;
use crate::engine::types::args::{AtomicArgs, Effect, RmaIov};
use crate::engine::types::iov::{gather_into, scatter};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head};

/// Widest operand in bytes with atomic instructions. The target executes wider ones.
const WIDEST: usize = 8;
/// Bytes of operands up to which an operation is tried before its record is built.
const SHORT: usize = 64;

/// Operation on one segment, with its operands.
struct DirectAtomic<'a> {
    op_kind: OpKind,
    kind: u8,
    op: u32,
    datatype: u32,
    segment: RmaIov,
    operand: &'a [u8],
    compare: &'a [u8],
    result: &'a [Mem],
    data: Option<u64>,
    context: usize,
    flags: u64,
}

/// Executes `op` and completes it. Returns false if nothing was done and the target has to.
pub(crate) fn try_direct(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    conn: ConnId,
    op: &AtomicOp,
) -> bool {
    let Some((list, operands)) = op.body.split_at_checked(SEGMENT * usize::from(op.word.segments))
    else {
        return false;
    };
    let (Ok(segment), Some((operand, compare))) =
        (<&[u8; SEGMENT]>::try_from(list), operands.split_at_checked(op.len))
    else {
        return false;
    };
    let mut words = chunks(segment).map(|w| u64::from_ne_bytes(*w));
    let (Some(addr), Some(_), Some(key)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let request = DirectAtomic {
        op_kind: op.op_kind,
        kind: op.word.kind,
        op: u32::from(op.word.op),
        datatype: u32::from(op.word.datatype),
        // The only segment is as long as the operands.
        segment: RmaIov { addr, len: op.len, key },
        operand,
        compare,
        result: op.result.as_slice(),
        data: op.word.has_data.then_some(op.data),
        context: op.context,
        flags: op.flags,
    };
    finish_here(ep, env, peer, conn, &request)
}

/// Executes an atomic before its record is built, which would take longer than most operations
/// do.
pub(crate) fn try_direct_early(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &AtomicArgs<'_>,
) -> bool {
    let [segment] = a.rma else { return false };
    if segment.len > SHORT || a.flags & fi::FI_FENCE != 0 || peer_conn::out_of_credits(ep, peer) {
        return false;
    }
    let Some(conn) = peer_conn::tx_conn(ep, peer) else {
        return false;
    };
    let (mut operand, mut compare) = ([0; SHORT], [0; SHORT]);
    gather_into(a.operand, &mut operand);
    let len = segment.len;
    let compares = a.kind == AtomicKind::Compare;
    if compares {
        gather_into(a.compare, &mut compare);
    }
    let request = DirectAtomic {
        op_kind: OpKind::of_atomic(a.kind),
        kind: a.kind as u8,
        op: a.op,
        datatype: a.datatype,
        segment: *segment,
        operand: operand.get(..len).unwrap_or_default(),
        compare: compare.get(..if compares { len } else { 0 }).unwrap_or_default(),
        result: a.result,
        data: a.data,
        context: a.context,
        flags: a.flags,
    };
    finish_here(ep, env, peer, conn, &request)
}

fn finish_here(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    conn: ConnId,
    op: &DirectAtomic<'_>,
) -> bool {
    let Some(at) = execute_here(ep, peer, conn, op) else {
        return false;
    };
    let len = op.segment.len;
    if op.data.is_some() || at.notify {
        let mut flags = match Effect::of_atomic(op.op_kind == OpKind::AtomicFetch, op.op) {
            Effect::Write => 0,
            Effect::Read => wire::F_READ,
            Effect::ReadWrite => wire::F_READ | wire::F_MODIFY,
        };
        if op.data.is_some() {
            flags |= wire::F_DATA;
        }
        let head = Head::new().word(flags).word(op.data.unwrap_or(0)).word(len as u64);
        peer_conn::control(ep, peer, wire::RMA_EVENT, head.word(at.key), &[]);
    }
    ep.stats.mapped.add(len);
    let (op_kind, context, flags) = (op.op_kind, op.context, op.flags);
    completion::tx_complete(ep, env, CompletionInfo { op_kind, context, flags, tag: 0, len }, 0);
    true
}

/// Finds the memory as RMA does, and applies the operation as the target would.
fn execute_here(
    ep: &mut Endpoint,
    peer: PeerId,
    conn: ConnId,
    op: &DirectAtomic<'_>,
) -> Option<DirectAccess> {
    let size = crate::base::atomic_ops::size_of(op.datatype).filter(|size| *size <= WIDEST)?;
    let modifies = op.op != fi::FI_ATOMIC_READ;
    if ep.peers.at(peer).rma.is_outstanding()
        || rma_target::waits_for_messages(ep, conn, peer, modifies)
    {
        return None;
    }
    let c = ep.links.conn(conn)?;
    if !c.is_up() {
        return None;
    }
    let near = c.memory().access() == Access::Mapped;
    let key = op.segment.key;
    let needed = rights(op.op, op.op_kind == OpKind::AtomicFetch);
    let keys = c.keys()?;
    let (slot, generation, entry) = keys.find(key)?;
    let remote = place(&entry, &op.segment, needed).ok()?;
    if remote.addr % (size as u64) != 0 {
        return None;
    }
    let target = if near {
        c.memory().here(&remote)?
    } else {
        c.mapped((slot, generation), &entry, &remote)?
    };
    let keys = c.keys()?;
    let (mut short, mut long);
    let old: &mut [u8] = if op.kind == AtomicKind::Write as u8 {
        &mut []
    } else if op.segment.len <= SHORT {
        short = [0; SHORT];
        short.get_mut(..op.segment.len)?
    } else {
        long = [0; crate::base::atomic_ops::MAX_ATOMIC_BYTES];
        long.get_mut(..op.segment.len)?
    };
    c.my_mark().set(slot);
    let done = keys.revalidate(slot, generation)
        && crate::base::atomic_ops::apply(op.op, op.datatype, &target, op.operand, op.compare, old)
            .is_ok();
    c.my_mark().clear();
    if !done {
        return None;
    }
    let notify = keys.notify();
    scatter(op.result, old);
    Some(DirectAccess { key, notify })
}

/// Remaining work for an executed operation.
struct DirectAccess {
    key: u64,
    /// Whether the target counts operations on its memory.
    notify: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of, connect, sum_args};

    #[test]
    fn only_aligned_operands_are_executed_directly() {
        let mut pair = Bed::pair();
        let memory = buffer(vec![0; 64]);
        pair[1].register(&[memory.sub(0, 64).unwrap()]);
        connect(&mut pair);
        let peer = pair[0].peer();
        let aligned = (8 - memory.addr() % 8) as u64 % 8;
        for (addr, expected) in [(aligned, true), (aligned + 1, false)] {
            let (operand, rma) = ([buffer(vec![1; 8])], [RmaIov { addr, len: 8, key: 5 }]);
            let args = AtomicArgs { flags: 0, ..sum_args(&operand, &rma) };
            let done = pair[0].run(|ep, env| try_direct_early(ep, env, peer, &args));
            assert_eq!(done, expected, "at {addr}");
        }
        assert_eq!(bytes_of(&memory).iter().map(|b| usize::from(*b)).sum::<usize>(), 8);
    }
}
