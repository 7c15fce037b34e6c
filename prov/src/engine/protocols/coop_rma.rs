// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cooperative RMA: a large write or read of which the initiator and a polling target copy parts.
//!
//! The initiator announces the copy by a record, and claims parts from the back. The target claims
//! parts from the front as soon as it polls. A part is copied within the call that claimed it, so
//! a target that does not poll delays nothing. If the target does not finish a claimed part in
//! time, because it is stopped, it executes the whole operation again in ring order.
//!
//! Not here: claims (`scif_ring::Claim`), the copy by the initiator alone, and operations in ring
//! order (`rma`).

use std::ops::Range;

use scif::{Access, AccessError, ConnId, RemoteMem};
use scif_ring::copy::Mem;
use scif_ring::spsc::Record;

use crate::base::env::{self, RmaPath};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::coop_parts::{self, FrontCopy};
use crate::engine::protocols::key_maps::{self, UsePath};
use crate::engine::protocols::rma_target::{place, right};
use crate::engine::protocols::window_rma::NotDirect;
use crate::engine::tables::coop_choice::CoopMethod;
use crate::engine::tables::incoming::{PART_MIN, part_size, takes};
use crate::engine::types::args::RmaIov;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Shortest operation in bytes that both sides copy. For shorter ones the fixed costs of the
/// record and of a second system call exceed the gain.
pub(crate) const COOP_RMA_MIN: usize = 96 * 1024;
/// Bytes at the end of a write that the initiator copies after all others. Programs may wait for
/// the last bytes of a write and then use all of them.
const TAIL: usize = 64;
/// Largest number of bytes of one record. It bounds the time for which a target copies for one
/// peer before it polls its other rings.
const ROUND_MAX: usize = 4 * 1024 * 1024;
/// Time in nanoseconds for which the initiator waits for parts of the target. The longest claim
/// takes less, unless the target is stopped. With less time, a slow target executes operations
/// twice.
const UNFINISHED_NS: u64 = 200_000;

/// Memory on both sides of one operation.
#[derive(Clone, Copy, Debug)]
struct CoopRanges<'a> {
    write: bool,
    local: &'a Mem,
    segment: &'a RmaIov,
    /// Address of `segment` in the target.
    remote: u64,
}

/// End of one round.
enum RoundEnd {
    /// Number of bytes that the initiator has copied.
    Copied(usize),
    /// Claim block with parts that the target has not finished.
    Unfinished((u8, u32)),
    Failed,
}

/// Executes an operation together with its target. Returns `None` if the initiator should execute
/// it alone.
pub(crate) fn run(
    ep: &mut Endpoint,
    (peer, conn): (PeerId, ConnId),
    write: bool,
    (iov, rma): (&[Mem], &[RmaIov]),
) -> Option<Result<(), NotDirect>> {
    let ([local], [segment]) = (iov, rma) else { return None };
    let settings = env::env();
    if !settings.coop_copy
        || !settings.process_vm
        || settings.migrate
        || ep.cfg.rma_path == RmaPath::Direct
        || ep.peers.own == Some(peer)
    {
        return None;
    }
    let c = ep.links.conn(conn)?;
    let is_reached = c.memory().access() == Access::ProcessVm && c.alive_recently();
    if !is_reached || !c.is_up() || !c.is_direct() || c.windows().is_some() {
        return None;
    }
    let (slot, generation, entry) = c.keys()?.find(segment.key)?;
    let is_plain = entry.window == 0 && !c.is_mapped(segment.key, (slot, generation));
    let remote = place(&entry, segment, right(write)).ok().filter(|_| is_plain)?.addr;
    let (is_polled, polled, begin) = (c.is_polled(), c.polled_ns(), scif::now_ns());
    let choice = ep.peers.at_mut(peer).rma.coop.get_or_insert_default();
    let is_alone = match choice.choose(segment.len, is_polled.then_some(polled), begin) {
        CoopMethod::Alone => return None,
        CoopMethod::ProbedAlone => true,
        CoopMethod::Together => false,
    };
    let c = ep.links.conn(conn)?;
    c.my_mark().set(slot);
    let is_open = c.keys().is_some_and(|keys| keys.revalidate(slot, generation));
    let ranges = CoopRanges { write, local, segment, remote };
    let done = if is_open { copy(ep, (peer, conn), ranges, is_alone) } else { None };
    ep.links.conn(conn)?.my_mark().clear();
    let taken = scif::now_ns().saturating_sub(begin);
    if let Some(choice) = &mut ep.peers.at_mut(peer).rma.coop {
        let is_shared = matches!(done, Some(Ok(true)));
        choice.note_end(segment.len, (is_alone || is_shared).then_some(taken));
    }
    let done = done?;
    ep.peers.at_mut(peer).transfer.copied.note(write, segment.len);
    key_maps::note_use(ep, peer, segment.key, segment.len, UsePath::SystemCall(generation));
    Some(done.map(drop))
}

/// Copies an operation in rounds. Returns whether the target has copied parts, and `None` after an
/// error.
fn copy(
    ep: &mut Endpoint,
    to: (PeerId, ConnId),
    ranges: CoopRanges<'_>,
    mut is_alone: bool,
) -> Option<Result<bool, NotDirect>> {
    let tail = if ranges.write { TAIL } else { 0 };
    let (mut offset, mut own, len) = (0, 0, ranges.segment.len);
    while offset < len {
        let n = (len - tail - offset).min(ROUND_MAX);
        if is_alone || n < COOP_RMA_MIN {
            copy_part(ep, to.1, &ranges, (offset, len - offset)).ok()?;
            ep.stats.process_vm.add(len - offset);
            own += len - offset;
            break;
        }
        match copy_round(ep, to, &ranges, (offset, n))? {
            RoundEnd::Copied(bytes) => {
                // A target that has copied nothing in this round is not polling.
                is_alone = bytes == n;
                own += bytes;
            }
            RoundEnd::Unfinished(block) => return Some(Err(NotDirect::Unfinished(block))),
            RoundEnd::Failed => return None,
        }
        offset += n;
    }
    Some(Ok(own < len))
}

/// Copies the `n` bytes at `offset` together with the target. Returns `None` without space in the
/// ring or a claim block.
fn copy_round(
    ep: &mut Endpoint,
    (peer, conn): (PeerId, ConnId),
    ranges: &CoopRanges<'_>,
    (offset, n): (usize, usize),
) -> Option<RoundEnd> {
    let part = part_size(n, true);
    let parts = u32::try_from(n.div_ceil(part)).ok()?;
    let c = ep.links.conn(conn)?;
    // A block that was reset for a record must not stay open without it: a record of an earlier
    // generation with the same number could claim its parts.
    if !c.tx().room(0) {
        return None;
    }
    let (block, generation) = ep.peers.at_mut(peer).blocks.take()?;
    let flags = if ranges.write { wire::F_WRITE } else { 0 };
    let head = Head::new()
        .word(ranges.segment.key)
        .word(ranges.segment.addr.wrapping_add(offset as u64))
        .word((ranges.local.addr() as u64).wrapping_add(offset as u64))
        .word(n as u64)
        .word(part as u64)
        .word(u64::from(block) | u64::from(generation) << 32)
        .word(flags);
    let claim = c.tx_claim(usize::from(block));
    claim.reset(generation);
    if c.tx().push_head(wire::COOP_RMA, head.as_slice()).is_err() {
        claim.close();
        ep.peers.at_mut(peer).blocks.give_back(block);
        return None;
    }
    c.notify();
    let (most, share) = takes(parts, false);
    let mut own = 0;
    let mut is_failed = false;
    let span = |parts: &Range<u32>| {
        let begin = parts.start as usize * part;
        (offset + begin, (parts.len() * part).min(n.saturating_sub(begin)))
    };
    while let Some(taken) = claim.claim_back(generation, parts, most, share) {
        let piece = span(&taken);
        own += piece.1;
        if copy_part(ep, conn, ranges, piece).is_err() {
            is_failed = true;
            break;
        }
    }
    claim.close();
    let mut polls = 0;
    let begin = scif::now_ns();
    while claim.open_parts() > 0 {
        if scif::now_ns().saturating_sub(begin) > UNFINISHED_NS {
            return Some(RoundEnd::Unfinished((block, generation)));
        }
        polls += 1;
        scif::cpu_relax_or_yield(polls);
    }
    if let Some(failed) = claim.failed_front(parts).filter(|_| !is_failed) {
        let piece = span(&failed);
        is_failed = copy_part(ep, conn, ranges, piece).is_err();
        own += piece.1;
    }
    ep.peers.at_mut(peer).blocks.give_back(block);
    ep.stats.coop_copy.add(own);
    Some(if is_failed { RoundEnd::Failed } else { RoundEnd::Copied(own) })
}

/// Copies `len` bytes at `offset` of an operation, as its initiator.
fn copy_part(
    ep: &mut Endpoint,
    conn: ConnId,
    ranges: &CoopRanges<'_>,
    (offset, len): (usize, usize),
) -> Result<(), AccessError> {
    let c = ep.links.conn(conn).ok_or(AccessError::Gone)?;
    let local = ranges.local.sub(offset, len).ok_or(AccessError::Gone)?;
    let remote =
        RemoteMem { addr: ranges.remote.wrapping_add(offset as u64), len: local.len() as u64 };
    let memory = c.memory();
    if ranges.write { memory.write(&[local], &[remote]) } else { memory.read(&[local], &[remote]) }
}

/// Copies parts of an operation, as its target.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    let (key, addr, source) = (words.word(), words.word(), words.word());
    let (len, part, place, flags) = (words.word(), words.word(), words.word(), words.word());
    let write = flags & wire::F_WRITE != 0;
    let (Ok(n), Ok(part)) = (usize::try_from(len), usize::try_from(part)) else {
        return Err(RecordError::ProtocolError);
    };
    // Many small parts would occupy this side for long.
    if n > ROUND_MAX || part < PART_MIN || source.checked_add(len).is_none() {
        return Err(RecordError::ProtocolError);
    }
    let (block, generation) = (place & 0xffff_ffff, place >> 32);
    let (Ok(block), Ok(generation)) = (usize::try_from(block), u32::try_from(generation)) else {
        return Err(RecordError::ProtocolError);
    };
    let parts = u32::try_from(n.div_ceil(part)).unwrap_or(u32::MAX);
    // Without this side, the initiator copies everything. One poll copies for a bounded time.
    if !ep.rma_target.coop.admits(ep.links.polls, n) {
        return Ok(());
    }
    let Ok(Some(memory)) = env.mrs.piece(key, addr, len, right(write)) else { return Ok(()) };
    let Some(c) = ep.links.conn(conn) else { return Ok(()) };
    if c.memory().access() != Access::ProcessVm || !env::env().process_vm || !c.enter() {
        return Ok(());
    }
    let copy = FrontCopy {
        generation,
        part,
        parts,
        local: memory,
        remote: source,
        write: !write,
        limits: takes(parts, false),
    };
    // The initiator copies the parts that failed here.
    let _ = coop_parts::copy_front(c, &c.rx_claim(block), &copy, &mut ep.stats);
    c.exit();
    // This copy took longer than the interval between two polls.
    ep.links.publish_poll(scif::now_ns(), ep.stats.rma.ops);
    Ok(())
}

#[cfg(test)]
mod tests {
    use scif_ring::HEAD_MAX;

    use super::*;
    use crate::engine::tests::{Bed, buffer, head_of};

    #[test]
    fn only_well_formed_offers_are_accepted() {
        let mut bed = Bed::new(|_| {});
        let memory = buffer(vec![0; 2 * PART_MIN]);
        bed.register(&[memory.sub(0, 2 * PART_MIN).unwrap()]);
        let mut offer = |source: u64, len: usize, part: usize| {
            let head = head_of(&[5, 0, source, len as u64, part as u64, 1 << 32, wire::F_WRITE]);
            let head_len = u8::try_from(HEAD_MAX).unwrap();
            let record = Record { kind: wire::COOP_RMA, head_len, head, body: Mem::empty() };
            let conn = ConnId { index: 0, generation: 1 };
            bed.run(|ep, env| on_record(ep, env, conn, &record)).is_ok()
        };
        assert!(offer(0, 2 * PART_MIN, PART_MIN), "no such connection: nothing is copied");
        for (source, len, part) in [
            (0, ROUND_MAX + 1, PART_MIN),
            (0, 2 * PART_MIN, PART_MIN - 1),
            (0, 2 * PART_MIN, 0),
            (u64::MAX, 2 * PART_MIN, PART_MIN),
        ] {
            assert!(!offer(source, len, part), "{len} bytes in parts of {part} at {source}");
        }
    }
}
