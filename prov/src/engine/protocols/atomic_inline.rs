// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Inline atomics: one range of at most 8 bytes, executed by the target.
//!
//! An atomic that returns nothing and need not await the target completes when it is in the ring,
//! like a message. The key table of the target must permit it. It has no reply of its own. The
//! target reports at intervals how many it has executed (`DONE`), since direct operations must not
//! overtake them.
//!
//! Not here: other atomics (`atomic`, and `try_direct` without the target).

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::spsc::Record;

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::atomic_target::{SEGMENT, execute, rights};
use crate::engine::protocols::rma_target::{self, place};
use crate::engine::tables::op_table::{CompletionInfo, OpKind, OpTable, OutstandingOp};
use crate::engine::tables::peer::{AckCount, Peer};
use crate::engine::types::args::{AWAITS_TARGET, AtomicArgs, Effect, RmaIov};
use crate::engine::types::envelope::{ProtocolError, RecordError};
use crate::engine::types::iov::{Iov, gather_into};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, AtomicWord, Head, Words};

/// Bytes of an operand.
const OPERAND: usize = 8;

/// Whether an operation number is the stamp of an operation without a reply. Numbers of outstanding
/// operations have a non-zero upper half.
fn is_stamp(id: u64) -> bool {
    id >> 32 == 0
}

/// Returns the stamp of operations over the current connection. It differs from stamps of earlier
/// connections, of this endpoint or of an earlier endpoint at its port.
fn stamp(ops: &OpTable, peer: &Peer) -> u64 {
    u64::from(ops.life().wrapping_add(peer.life))
}

/// Sends an operation to a peer without pending work. Returns false if nothing was done.
pub(crate) fn try_inline(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &AtomicArgs<'_>,
) -> bool {
    let [segment] = a.rma else { return false };
    if segment.len > OPERAND || a.flags & fi::FI_FENCE != 0 || peer_conn::out_of_credits(ep, peer) {
        return false;
    }
    let (Ok(op), Ok(datatype)) = (u8::try_from(a.op), u8::try_from(a.datatype)) else {
        return false;
    };
    let Some(conn) = peer_conn::tx_conn(ep, peer) else {
        return false;
    };
    let needed = rights(a.op, a.kind != AtomicKind::Write);
    let at_once = a.kind == AtomicKind::Write
        && a.flags & AWAITS_TARGET == 0
        && permitted(ep, conn, segment, needed);
    let Some(c) = ep.links.conn(conn) else {
        return false;
    };
    let p = ep.peers.at_mut(peer);
    if !c.tx().room(0) {
        return false;
    }
    let (mut operand, mut compare) = ([0; OPERAND], [0; OPERAND]);
    gather_into(a.operand, &mut operand);
    gather_into(a.compare, &mut compare);
    let info = CompletionInfo {
        op_kind: OpKind::of_atomic(a.kind),
        context: a.context,
        flags: a.flags,
        tag: 0,
        len: segment.len,
    };
    let id = if at_once {
        stamp(&ep.ops, p)
    } else {
        let op = OutstandingOp::new(peer, info, Iov::new(a.result));
        ep.ops.insert(OutstandingOp { ring_rma: true, ..op })
    };
    let word = AtomicWord {
        op,
        datatype,
        kind: a.kind as u8,
        segments: 1,
        len: u16::try_from(segment.len).unwrap_or(0),
        has_data: a.data.is_some(),
    };
    let head = Head::new()
        .word(id)
        .word(word.pack())
        .word(segment.addr)
        .word(segment.key)
        .word(u64::from_ne_bytes(operand))
        .word(u64::from_ne_bytes(compare))
        .word(a.data.unwrap_or(0));
    if c.tx().push_head(wire::ATOMIC_LINE, head.as_slice()).is_err() {
        if !at_once {
            ep.ops.remove(id);
        }
        return false;
    }
    c.notify();
    p.rma.outstanding += 1;
    ep.stats.inline.add(segment.len);
    if at_once {
        completion::tx_complete(ep, env, info, 0);
    }
    true
}

/// Whether the key table of the target has the key and permits the operation.
fn permitted(ep: &mut Endpoint, conn: ConnId, segment: &RmaIov, needed: u64) -> bool {
    let keys = ep.links.conn(conn).and_then(|c| c.keys());
    keys.and_then(|keys| keys.find(segment.key))
        .is_some_and(|(_, _, entry)| place(&entry, segment, needed).is_ok())
}

/// Handles an inline atomic, or the report that such were executed.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    match record.kind {
        wire::ATOMIC_LINE => on_atomic_line(ep, env, peer, &mut words)?,
        _ => on_done(ep, peer, words.word(), words.word()),
    }
    Ok(())
}

/// Executes an inline atomic, as a target.
fn on_atomic_line(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    words: &mut Words<'_>,
) -> Result<(), ProtocolError> {
    let (id, word) = (words.word(), AtomicWord::unpack(words.word()));
    let (addr, key) = (words.word(), words.word());
    let (operand, compare) = (words.word().to_ne_bytes(), words.word().to_ne_bytes());
    let data = words.word();
    let kind = word.kind().ok_or(ProtocolError)?;
    let mut old = [0; OPERAND];
    let done = execute_line(env, word, kind, (addr, key), (&operand, &compare), &mut old)?;
    match done {
        _ if is_stamp(id) => count_done(ep, peer, id),
        Ok(()) if kind != AtomicKind::Write => {
            let head = Head::new().word(id).word(0).word(u64::from_ne_bytes(old));
            peer_conn::answer(ep, peer, wire::ATOMIC_REPLY, head, &[]);
        }
        _ => {
            let status = done.err().map_or(0, |err| u64::from(err.unsigned_abs()));
            peer_conn::answer(ep, peer, wire::ACK, Head::new().word(id).word(status), &[]);
        }
    }
    match done {
        Ok(()) => {
            let effect = Effect::of_atomic(kind != AtomicKind::Write, u32::from(word.op));
            let data = word.has_data.then_some(data);
            rma_target::rma_event(ep, env, peer, effect, data, (key, usize::from(word.len)));
        }
        // The initiator found the key in our table, but the region was closed since.
        Err(err) => {
            log::debug!(target: "ep_data", "an atomic of peer {peer} on key {key:#x} failed: {err}")
        }
    }
    Ok(())
}

fn count_done(ep: &mut Endpoint, peer: PeerId, stamp: u64) {
    let p = ep.peers.at_mut(peer);
    if p.rma.done.count == 0 || p.rma.done.stamp != stamp {
        if p.rma.done.count == 0 {
            ep.rma_target.done.push(peer);
        }
        p.rma.done = AckCount { stamp, count: 0 };
    }
    p.rma.done.count += 1;
}

/// Reports to peers how many of their operations without a reply were executed.
#[cold]
pub(crate) fn progress(ep: &mut Endpoint) {
    for peer in std::mem::take(&mut ep.rma_target.done) {
        let p = ep.peers.at_mut(peer);
        let AckCount { stamp, count } = std::mem::take(&mut p.rma.done);
        peer_conn::answer(ep, peer, wire::DONE, Head::new().word(stamp).word(count), &[]);
    }
}

/// Handles a report that `count` operations without a reply were executed.
fn on_done(ep: &mut Endpoint, peer: PeerId, reported: u64, count: u64) {
    let p = ep.peers.at_mut(peer);
    if reported == stamp(&ep.ops, p) {
        p.rma.outstanding =
            p.rma.outstanding.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
    }
}

/// Applies the operation. A range in one piece, the usual case, needs no segment list.
fn execute_line(
    env: &Env<'_>,
    word: AtomicWord,
    kind: AtomicKind,
    (addr, key): (u64, u64),
    (operand, compare): (&[u8; OPERAND], &[u8; OPERAND]),
    old: &mut [u8; OPERAND],
) -> Result<Result<(), Errno>, ProtocolError> {
    let len = usize::from(word.len);
    let (op, datatype) = (u32::from(word.op), u32::from(word.datatype));
    let operand = operand.get(..len).ok_or(ProtocolError)?;
    let compare = compare.get(..len).ok_or(ProtocolError)?;
    let old = old.get_mut(..len).ok_or(ProtocolError)?;
    let fetches = kind != AtomicKind::Write;
    if !crate::base::atomic_ops::valid(op, datatype, kind) {
        return Ok(Err(fi::FI_EOPNOTSUPP));
    }
    Ok(match env.mrs.piece(key, addr, len as u64, rights(op, fetches)) {
        Err(err) => Err(err),
        Ok(Some(target)) => {
            let old = if fetches { old } else { &mut [] };
            crate::base::atomic_ops::apply(op, datatype, &target, operand, compare, old)
        }
        Ok(None) => {
            let mut list = [0; SEGMENT];
            for (to, part) in list.chunks_exact_mut(8).zip([addr, len as u64, key]) {
                to.copy_from_slice(&part.to_ne_bytes());
            }
            let word = AtomicWord { segments: 1, ..word };
            match execute(env, word, kind, &list, (operand, compare), old) {
                (0, _) => Ok(()),
                (err, _) => Err(err),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Bed;

    #[test]
    fn acknowledgements_of_an_earlier_connection_do_not_count() {
        let mut pair = Bed::pair();
        let peer = pair[0].peer();
        let ep = &mut pair[0].ep;
        ep.peers.at_mut(peer).rma.outstanding = 5;
        let now = stamp(&ep.ops, ep.peers.at(peer));
        assert!(is_stamp(now) && !is_stamp(1 << 32));
        on_done(ep, peer, now + 1, 2);
        assert_eq!(ep.peers.at(peer).rma.outstanding, 5);
        on_done(ep, peer, now, 2);
        assert_eq!(ep.peers.at(peer).rma.outstanding, 3);
        on_done(ep, peer, now, 9);
        assert_eq!(ep.peers.at(peer).rma.outstanding, 0, "a peer may report too many");
    }
}
