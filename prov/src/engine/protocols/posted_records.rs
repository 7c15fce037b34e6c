// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records of posted writes and reads in the ring of their initiator: waits for space, ends, and
//! withdrawals.
//!
//! A record ends when the target has executed it. If the target is silent, records are withdrawn,
//! some at each poll, and this side executes them directly, in order.
//!
//! Not here: the operations (`posted_write`, `posted_parts`, `posted_read`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::{Access, ConnId, Connection};
use scif_ring::SHORT_BODY_MAX;
use scif_ring::copy::{Mem, ticks};
use scif_ring::spsc::Record;

use crate::base::env::{self, RmaPath};
use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::tx_queue;
use crate::engine::protocols::fragment;
use crate::engine::protocols::posted_write_target::{self, Batch};
use crate::engine::protocols::rma;
use crate::engine::protocols::rma_target::{self, place, right};
use crate::engine::protocols::window_rma::RmaKind;
use crate::engine::tables::op_table::{CompletionInfo, FLAG_DEFERRED_WORK, FLAG_PART, FLAG_READ};
use crate::engine::tables::posted_writes::PostingRegion;
use crate::engine::tables::write_queue::PostedWrite;
use crate::engine::types::args::{EpConfig, RmaArgs, RmaIov};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::stats::Stats;
use crate::engine::types::wire;

/// Largest write in bytes that is posted as one record. With more, records take the slower path of
/// long bodies through the ring. With fewer, writes up to this size take the longer path of parts.
pub(crate) const POSTED_MAX: usize = SHORT_BODY_MAX;
/// Number of polls for which a withdrawal waits for the end of an execution, with the domain lock
/// held. With fewer, a withdrawal often fails while the target copies, and is tried again.
const EXECUTION_POLLS: u32 = 50;
/// Largest number of writes that one withdrawal executes. With more, the target waits for its ring
/// for longer than the time between two of its polls.
const WITHDRAWN_MAX: usize = 4;
/// Largest number of writes of the peer that a post executes, which bounds the time of the post.
pub(crate) const SERVED_MAX: usize = 64;
/// Interval, in direct operations, at which one of them also executes writes of the peer. A smaller
/// interval makes writes to a silent target slower.
const SERVED_EVERY: u64 = 4;
/// Interval, in operations, at which one of them also publishes the time of a poll; a multiple of
/// `SERVED_EVERY`. With a smaller interval, peers lose the cache line of that time more often.
const SHOWN_EVERY: u64 = 8;

/// Whether the end of a write is reported, unless it fails.
#[inline(always)]
pub(crate) fn is_reported(cfg: &EpConfig, a: &RmaArgs<'_>) -> bool {
    a.flags & (fi::FI_COMPLETION | FLAG_DEFERRED_WORK) != 0 || cfg.cntr_write.is_some()
}

/// Whether a direct operation also executes operations of the peer.
#[inline]
pub(crate) fn is_service_due(stats: &Stats) -> bool {
    stats.rma.ops % SERVED_EVERY == 0
}

/// Waits for space in the ring for one more record while the target executes writes. Returns the
/// region of `segment`; `None` if no operation on it can be posted. `write`: it is a write.
pub(crate) fn await_space(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    segment: &RmaIov,
    write: bool,
) -> Option<PostingRegion> {
    if ep.peers.own == Some(peer) {
        return None;
    }
    // A direct operation would first wait until all posted ones are executed.
    wait_for(ep, env, peer, |ep| {
        !ep.peers.at(peer).rma.posted.is_empty() && lacks_space(ep, (conn, peer))
    });
    if lacks_space(ep, (conn, peer)) || rma_target::waits_for_messages(ep, conn, peer, write) {
        return None;
    }
    let path = ep.cfg.rma_path;
    region_of(ep.links.conn(conn)?, path, segment, write)
}

/// Whether the ring has no space for one more posted operation. Withdrawn records stay in the ring
/// of a silent target, and must not fill it, so a reserve remains.
#[inline]
fn lacks_space(ep: &mut Endpoint, (conn, peer): (ConnId, PeerId)) -> bool {
    let Some(c) = ep.links.conn(conn) else { return true };
    let (produced, has_reserve) = (c.tx().produced(), c.tx().has_reserve());
    !has_reserve || ep.peers.at(peer).rma.posted.is_full(produced)
}

/// Pushes one record by `push`, which returns the position of its body: write `a` to `segment`.
/// Returns false if the ring has no space.
#[inline(always)]
pub(crate) fn push_record(
    ep: &mut Endpoint,
    (conn, peer): (ConnId, PeerId),
    (a, segment): (&RmaArgs<'_>, &RmaIov),
    is_reported: bool,
    push: impl FnOnce(&mut Connection) -> Option<Option<u64>>,
) -> bool {
    let Some(c) = ep.links.conn(conn) else { return false };
    let p = ep.peers.at_mut(peer);
    let (number, is_behind) = (c.tx().produced(), p.rma.outstanding > 0);
    let posted = &mut p.rma.posted;
    let pushed = tx_queue::push_one_sided(c, posted, |c| push(c).ok_or(()));
    let Ok(body) = pushed else { return false };
    posted.note_position(number, is_behind);
    c.notify();
    posted.writes.push(number, a, segment, body, is_reported);
    ep.peers.mark_posted(peer, is_reported);
    true
}

/// Returns the region of `segment`, if the target seems to poll, and the key is permitted and not
/// mapped here.
#[inline]
fn region_of(
    c: &Connection,
    path: RmaPath,
    segment: &RmaIov,
    write: bool,
) -> Option<PostingRegion> {
    let reachable = c.memory().access() == Access::ProcessVm && env::env().process_vm;
    if !c.is_up() || !c.is_direct() || !reachable && path != RmaPath::Ring || !c.is_polled() {
        return None;
    }
    let (slot, generation, entry) = c.keys()?.find(segment.key)?;
    let is_plain = entry.window == 0 && !c.is_mapped(segment.key, (slot, generation));
    place(&entry, segment, right(write)).ok().filter(|_| is_plain)?;
    Some(PostingRegion { key: segment.key, start: entry.start, len: entry.len })
}

/// Returns the length in bytes of the words before a payload in the head: key, address, CQ data.
pub(crate) fn words_before(data: Option<u64>) -> usize {
    if data.is_some() { 24 } else { 16 }
}

/// Executes the writes of a peer for a caller that may post many operations without a poll. Two
/// such callers would otherwise wait for each other. Returns whether there were any.
pub(crate) fn serve(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) -> bool {
    let mut left = SERVED_MAX;
    while left > 0 && !ep.links.rx_closed && !ep.peers.at(peer).over_reply_limit() {
        match posted_write_target::execute(ep, env, (conn, peer), left) {
            Batch::Handled(count) => left = left.saturating_sub(count),
            Batch::Other if take_reply(ep, env, (conn, peer)) => left -= 1,
            _ => break,
        }
    }
    // A caller that only posts gets no full poll, which would push them.
    fragment::push_replies(ep, peer);
    if ep.stats.rma.ops % SHOWN_EVERY == 0 {
        ep.links.publish_poll(scif::now_ns(), ep.stats.rma.ops);
    }
    left < SERVED_MAX
}

/// Handles data that a read requested. They may end the read, and prove that earlier writes are
/// executed, which are therefore completed first.
pub(crate) fn on_read_data(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    from: (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let front = ep.peers.at(from.1).rma.posted.writes.front();
    if front.is_some_and(|write| write.info().flags & FLAG_READ == 0) {
        complete(ep, env, from.1);
    }
    rma::on_record(ep, env, from, record)
}

/// Handles the reply to a read at the front of a ring. Returns false if there is none, or a full
/// poll has to handle it.
#[cold]
fn take_reply(ep: &mut Endpoint, env: &mut Env<'_>, from: (ConnId, PeerId)) -> bool {
    let Some(c) = ep.links.conn(from.0) else { return false };
    let Ok(Some(record)) = c.rx().peek() else { return false };
    if record.kind != wire::READ_DATA {
        return false;
    }
    // A record that causes a panic stays, and a full poll ends its connection.
    let handled = catch_unwind(AssertUnwindSafe(|| on_read_data(ep, env, from, &record)));
    let is_handled = matches!(handled, Ok(Ok(())));
    if let Some(c) = ep.links.conn(from.0).filter(|_| is_handled) {
        c.rx().advance();
    }
    is_handled
}

/// Completes the writes that the target has executed. Withdraws some of the others if the target
/// has been silent for too long; returns true if that fails. Called by each poll while writes are
/// posted.
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) -> bool {
    if complete(ep, env, peer) {
        return false;
    }
    let rma = &mut ep.peers.at_mut(peer).rma;
    let Some(oldest) = rma.posted.writes.front().map(|write| write.number) else { return false };
    if !rma.posted.note_poll(false, now_ticks) {
        return false;
    }
    let end = rma.posted.staying_from(rma.outstanding);
    if oldest >= end {
        rma.posted.end_withdrawal();
        return true;
    }
    let polled = polled_ns(ep, peer);
    ep.peers.at_mut(peer).rma.posted.note_withdrawal(polled);
    let is_stuck = !run_withdrawal(ep, env, peer, end);
    let posted = &mut ep.peers.at_mut(peer).rma.posted;
    if is_stuck || posted.is_empty() {
        posted.end_withdrawal();
    }
    is_stuck
}

/// Completes the writes that the target has executed, and judges the time that it took. Returns
/// whether there were any.
#[inline]
fn complete(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) -> bool {
    let has_moved = complete_executed(ep, env, peer);
    if has_moved && ep.peers.at_mut(peer).rma.posted.note_poll(true, now_ticks) {
        let polled = polled_ns(ep, peer);
        ep.peers.at_mut(peer).rma.posted.note_late(polled);
    }
    has_moved
}

/// Returns the published time of the target's last poll; 0 without a connection.
#[cold]
fn polled_ns(ep: &mut Endpoint, peer: PeerId) -> u64 {
    let conn = ep.peers.at(peer).tx;
    conn.and_then(|id| ep.links.conn(id)).map_or(0, |c| c.polled_ns())
}

/// Returns the time in ticks, from the clock where the processor has no counter.
#[inline]
pub(crate) fn now_ticks() -> u64 {
    match ticks() {
        0 => scif::now_ns() * 5 / 2,
        now => now,
    }
}

/// Completes all posted writes to `peer` before a direct operation, if possible.
#[inline]
pub(crate) fn settle(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) {
    wait_for(ep, env, peer, |ep| !ep.peers.at(peer).rma.posted.is_empty());
}

/// Waits while `is_due` is true and the target executes writes or they can be withdrawn. Meanwhile
/// executes writes of the peer.
#[inline]
pub(crate) fn wait_for(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    is_due: impl Fn(&mut Endpoint) -> bool,
) {
    while is_due(ep) && !progress(ep, env, peer) {
        let is_served = ep.peers.at(peer).tx.is_some_and(|conn| serve(ep, env, conn, peer));
        if is_served {
            ep.peers.at_mut(peer).rma.posted.note_served(now_ticks());
        }
    }
}

/// Completes the writes that the target has executed. Returns whether there were any.
pub(crate) fn complete_executed(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) -> bool {
    let Some(conn) = ep.peers.at(peer).tx else { return false };
    let Some(c) = ep.links.conn(conn) else { return false };
    let (executed, failures) = (c.tx().executed(), c.tx().failures());
    let mut has_moved = false;
    loop {
        let posted = &mut ep.peers.at_mut(peer).rma.posted;
        let Some(write) = posted.writes.front().filter(|write| write.number < executed) else {
            return has_moved;
        };
        let (number, info) = (write.number, write.info());
        posted.writes.drop_front();
        has_moved = true;
        let has_failures = posted.failures != failures;
        let err = if has_failures { error_of(ep, conn, peer, number) } else { 0 };
        end_record(ep, env, peer, (number, info), err);
    }
}

/// Ends a record: completes its write, unless that has other records, or a read that has failed.
#[inline(always)]
fn end_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    (number, info): (u64, CompletionInfo),
    err: Errno,
) {
    if info.flags & (FLAG_PART | FLAG_READ) == 0 {
        completion::tx_complete(ep, env, info, err);
    } else if info.flags & FLAG_READ == 0 {
        end_part(ep, env, peer, (number, info), err);
    } else if err != 0 {
        // Without an error, the reply ends the read.
        end_read(ep, env, peer, info, err);
    }
}

/// Ends a read without a reply of the target.
#[cold]
fn end_read(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, info: CompletionInfo, err: Errno) {
    let bytes = &mut ep.peers.at_mut(peer).rma.read_bytes;
    *bytes = bytes.saturating_sub(info.len as u64);
    completion::finish_op(ep, env, peer, info.context as u64, err);
}

/// Returns the error of executed write `number`, or 0 if it succeeded.
#[cold]
fn error_of(ep: &mut Endpoint, conn: ConnId, peer: PeerId, number: u64) -> Errno {
    let Some(c) = ep.links.conn(conn) else { return 0 };
    let posted = &mut ep.peers.at_mut(peer).rma.posted;
    let Some(failure) = c.tx().failure(number) else { return 0 };
    posted.failures = posted.failures.wrapping_add(1);
    Errno::from(failure).max(1)
}

/// Withdraws the writes before record `staying_from` that the target has not executed, and executes
/// at most [`WITHDRAWN_MAX`] of them directly. The others are given back to the target, so that
/// this side soon polls again. If the target is still executing, all are given back. If a direct
/// access fails, its write and all later ones are. Returns whether any write has ended.
#[cold]
fn run_withdrawal(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, staying_from: u64) -> bool {
    let Some(conn) = ep.peers.at(peer).tx else { return false };
    let Some(c) = ep.links.conn(conn) else { return false };
    c.tx().begin_withdrawal();
    let end = c.tx().produced();
    let mut polls = 0;
    while c.tx().is_consumer_executing() && polls < EXECUTION_POLLS {
        polls += 1;
        std::hint::spin_loop();
    }
    // A target that was stopped during an execution must not find its records withdrawn when it
    // continues.
    let is_withdrawn = polls < EXECUTION_POLLS;
    let mut has_ended = complete_executed(ep, env, peer);
    let (mut given_back, mut left) = (end, WITHDRAWN_MAX);
    while let Some(write) = ep.peers.at(peer).rma.posted.writes.front().copied() {
        let is_ours = is_withdrawn && left > 0 && write.number < end.min(staying_from);
        if !is_ours || !execute(ep, env, (conn, peer), &write) {
            given_back = write.number.min(end);
            break;
        }
        ep.peers.at_mut(peer).rma.posted.writes.drop_front();
        has_ended = true;
        left -= 1;
    }
    if let Some(c) = ep.links.conn(conn) {
        c.tx().end_withdrawal(given_back);
        // The target may have found a withdrawn record and fallen asleep. The records behind it
        // then need a wake-up.
        c.notify();
    }
    has_ended
}

/// Executes a withdrawn operation. Returns false if the target must execute it.
fn execute(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    write: &PostedWrite,
) -> bool {
    let len = write.segment.len;
    if write.info().flags & FLAG_READ != 0 {
        let id = write.info().context as u64;
        // Without an operation, the connection has ended.
        let Some(into) = ep.ops.get_mut(id).map(|op| op.iov.clone()) else { return true };
        let kind = RmaKind { write: false, inject: false };
        let done = rma::reach(ep, peer, conn, kind, into.as_slice(), &[write.segment]);
        if done.is_ok() {
            ep.stats.writes.withdrawn.add(len);
            end_read(ep, env, peer, write.info(), 0);
        }
        return done.is_ok();
    }
    let Some(c) = ep.links.conn(conn) else { return false };
    let payload = match write.body {
        Some(position) => c.tx().published_body(position, len),
        None => c.tx().published_head(write.number).sub(words_before(write.data), len),
    };
    let payload: Mem = payload.unwrap_or(Mem::empty());
    let rma = [write.segment];
    let kind = RmaKind { write: true, inject: true };
    if rma::reach(ep, peer, conn, kind, &[payload], &rma).is_err() {
        // The target finds the error too, and publishes it in order.
        return false;
    }
    // The target frees the record, and then reports its data in the order of the ring.
    ep.stats.writes.withdrawn.add(len);
    end_record(ep, env, peer, (write.number, write.info()), 0);
    true
}

/// Fails the posted writes to `peer` with its connection.
pub(crate) fn on_conn_lost(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, err: Errno) {
    let posted = &mut ep.peers.at_mut(peer).rma.posted;
    let parts = std::mem::take(&mut posted.parts);
    let mut lost = std::mem::take(posted).writes;
    posted.parts = parts;
    while let Some(write) = lost.front() {
        end_record(ep, env, peer, (write.number, write.info()), err);
        lost.drop_front();
    }
}

/// Ends record `number` of a write, and with its last record the write.
#[cold]
fn end_part(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    (number, info): (u64, CompletionInfo),
    err: Errno,
) {
    let parts = &mut ep.peers.at_mut(peer).rma.posted.parts;
    // Without such a write, another path executes it.
    let Some(write) = parts.front_mut().filter(|write| number >= write.first) else { return };
    if write.err == 0 {
        write.err = err;
    }
    if number == write.last {
        let (len, err) = (write.len, write.err);
        parts.pop_front();
        let flags = info.flags & !FLAG_PART;
        completion::tx_complete(ep, env, CompletionInfo { len, flags, ..info }, err);
    }
}

#[cfg(test)]
mod tests {
    use scif::Reason;

    use super::*;
    use crate::engine::tests::{
        Bed, buffer, bytes_of, completed, poll_until, post_write, posting_pair,
    };
    use crate::engine::{connections, progress};
    use crate::state::mr_table::Region;

    fn write(bed: &mut Bed, addr: u64, bytes: Vec<u8>, data: Option<u64>) {
        post_write(bed, (5, addr), &[buffer(bytes)], data);
    }

    #[test]
    fn writes_of_some_kilobytes_end_while_the_target_executes_others() {
        let (mut pair, _memory) = posting_pair(5000);
        for _ in 0..6 {
            write(&mut pair[0], 0, vec![7; 2048], None);
        }
        let peer = pair[1].peer();
        let conn = pair[1].ep.peers.at(peer).tx.unwrap();
        let execute = |ep: &mut Endpoint, env: &mut Env<'_>| {
            posted_write_target::execute(ep, env, (conn, peer), SERVED_MAX)
        };
        for _ in 0..3 {
            assert_eq!(pair[1].run(execute), Batch::Handled(2));
            let peer = pair[0].peer();
            assert!(pair[0].run(|ep, env| complete_executed(ep, env, peer)));
            assert!([(); 2].iter().all(|()| pair[0].completion().is_some()));
            assert!(pair[0].completion().is_none());
        }
    }

    #[test]
    fn write_behind_operations_of_the_target_is_posted_and_stays() {
        let (mut pair, memory) = posting_pair(64);
        write(&mut pair[0], 0, vec![1; 8], None);
        pair[1].run(progress::progress);
        assert_eq!(completed(&mut pair, 0).len, 8);
        let peer = pair[0].peer();
        pair[0].ep.peers.at_mut(peer).rma.outstanding = 1;
        write(&mut pair[0], 0, vec![2; 8], None);
        assert_eq!(pair[0].ep.stats.writes.posted.ops, 2);
        let run = |bed: &mut Bed, time| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < time && bed.ep.stats.writes.withdrawn.ops == 0 {
                bed.run(progress::progress);
            }
        };
        run(&mut pair[0], std::time::Duration::from_millis(2));
        assert_eq!((pair[0].ep.stats.writes.withdrawn.ops, bytes_of(&memory)[0]), (0, 1));
        pair[0].ep.peers.at_mut(peer).rma.outstanding = 0;
        run(&mut pair[0], std::time::Duration::from_secs(60));
        assert_eq!((pair[0].ep.stats.writes.withdrawn.ops, bytes_of(&memory)[0]), (1, 2));
    }

    #[test]
    fn writes_to_a_silent_target_are_withdrawn_and_executed_once() {
        let (mut pair, memory) = posting_pair(64);
        for byte in 1..=4 {
            write(&mut pair[0], u64::from(byte), vec![byte; 2], Some(u64::from(byte)));
        }
        let begun = std::time::Instant::now();
        for _ in 0..4 {
            while pair[0].completion().is_none() {
                pair[0].run(progress::progress);
                assert!(begun.elapsed().as_secs() < 60, "the target polls nothing");
            }
        }
        assert_eq!(bytes_of(&memory)[..7], [0, 1, 2, 3, 4, 4, 0]);
        assert_eq!(pair[0].ep.stats.writes.withdrawn.ops, 4);
        memory.copy_from_slice(&[0; 64]);
        for data in 1..=4 {
            assert_eq!(completed(&mut pair, 1).data, data);
        }
        assert_eq!(bytes_of(&memory), [0; 64], "executed again");
        write(&mut pair[0], 0, vec![6; 2], None);
        pair[1].run(progress::progress);
        assert_eq!(completed(&mut pair, 0).context, 3);
        assert_eq!(pair[0].ep.stats.writes.withdrawn.ops, 4, "the records behind are executed");
    }

    #[test]
    fn withdrawn_writes_leave_space_for_messages() {
        for len in [8, POSTED_MAX] {
            let (mut pair, _memory) = posting_pair(5000);
            for _ in 0..400 {
                write(&mut pair[0], 0, vec![1; len], None);
            }
            let (peer, ep) = (pair[0].peer(), &mut pair[0].ep);
            let conn = ep.peers.at(peer).tx.unwrap();
            let tx = ep.links.conn(conn).unwrap().tx();
            assert!(tx.produced() <= 200 && tx.room(scif_ring::BODY_MAX), "{len} bytes");
            assert!((1..400).contains(&ep.stats.writes.posted.ops), "{len} bytes");
        }
    }

    #[test]
    fn data_keeps_its_order_when_records_are_given_back() {
        let (mut pair, memory) = posting_pair(64);
        let region = Region {
            iov: &[buffer(vec![0; 8])],
            access: fi::FI_REMOTE_WRITE,
            requested_key: 6,
            base: None,
        };
        pair[1].run(|_, env| env.mrs.register(&region).map(drop)).unwrap();
        for (key, data) in [(5, 1), (6, 2), (5, 3)] {
            post_write(&mut pair[0], (key, data), &[buffer(vec![9])], Some(data));
        }
        pair[1].run(|_, env| env.mrs.remove(1).map(drop)).unwrap();
        while pair[0].ep.stats.writes.withdrawn.ops == 0 {
            pair[0].run(progress::progress);
        }
        assert_eq!(bytes_of(&memory)[..4], [0, 9, 0, 0], "the rest is given back");
        assert_eq!([completed(&mut pair, 1).data, completed(&mut pair, 1).data], [1, 3]);
        let mut ends = || poll_until(&mut pair, |pair| pair[0].completion()).is_ok();
        assert_eq!([ends(), ends(), ends()], [true, false, true]);
    }

    #[test]
    fn an_initiator_that_dies_in_a_withdrawal_delays_nothing() {
        let (mut pair, memory) = posting_pair(64);
        write(&mut pair[0], 0, vec![1], None);
        let peer = pair[0].peer();
        let conn = pair[0].ep.peers.at(peer).tx.unwrap();
        pair[0].ep.links.conn(conn).unwrap().tx().begin_withdrawal();
        pair[1].run(progress::progress);
        let held = pair[1].ep.links.iter().next().copied().unwrap();
        pair[1].run(|ep, env| connections::on_conn_lost(ep, env, held.conn, Reason::Died));
        assert_eq!((pair[1].ep.links.len(), bytes_of(&memory)[0]), (0, 0));
    }

    #[test]
    fn the_end_of_a_connection_fails_posted_writes() {
        let (mut pair, _memory) = posting_pair(64);
        write(&mut pair[0], 0, vec![1; 8], None);
        let peer = pair[0].peer();
        pair[0].run(|ep, env| on_conn_lost(ep, env, peer, fi::FI_ECONNRESET));
        assert_eq!(pair[0].completion().unwrap().unwrap_err().err, fi::FI_ECONNRESET);
    }
}
