// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes to one peer: those in the ring, oldest first, and the choice between the ring and
//! direct access.
//!
//! A posted write is a record without a reply, which the target executes when it polls. A target
//! that was silent gets direct access until it is seen to poll again. It publishes the time of a
//! poll now and then, so the wait for it costs one load for each direct access.

use std::collections::VecDeque;

use scif_ring::copy::ticks;

use crate::base::errno::Errno;
use crate::engine::tables::parts_choice::PartsChoice;
use crate::engine::tables::write_queue::{CAPACITY, WriteQueue};
use crate::engine::types::args::RmaIov;

/// Largest distance in records from the oldest posted write to the next record. The ring keeps the
/// failures of the last 256 records.
const POSTED_MAX: u64 = 192;
const _: () = assert!(POSTED_MAX <= CAPACITY);
/// Interval in records at which a post polls first and passes every check. With a larger interval,
/// a program that posts without polls executes the writes of its peer late.
const CHECKPOINT: u64 = 16;
/// Ticks without progress, from the first poll that sees none, after which the writes are
/// withdrawn: 5 us at 2.5 GHz, the time of some direct accesses. With less, writes to a target that
/// is only slow are withdrawn.
const SILENT_TICKS: u64 = 12_500;
/// Ticks without progress after which a target that then executes counts as late: 2 us at 2.5 GHz.
/// A direct access would have taken less time, so the next accesses are direct.
const LATE_TICKS: u64 = 5_000;
/// Factor of these times while a write of several records is posted: one that the target executes
/// itself takes some microseconds. With less, two peers that write to each other count as silent.
const PARTS_PATIENCE: u64 = 4;
/// Ticks without progress in which the target may still count as prompt, because it posts writes
/// here: 100 us at 2.5 GHz. With more, a target that only posts delays the writes to it.
const POSTING_TICKS: u64 = 250_000;
/// Age in nanoseconds of the last published poll up to which a target counts as polling. A target
/// publishes the time of a poll every few microseconds, so with less a polling target counts as
/// silent.
const POLLED_NS: u64 = 20_000;
/// Ticks since the last progress for which the target counts as polling: 10 us at 2.5 GHz. After
/// that time each post reads the time that the target published, which costs a cache miss.
const HEARD_TICKS: u64 = 25_000;
/// Bounds of the number of direct accesses after a withdrawal, if the target has executed nothing
/// since the previous one. With fewer, a target that never polls delays more writes.
const DISTANCES: (u32, u32) = (16, 1 << 16);

/// Region of posted operations, as the target's key table showed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostingRegion {
    pub(crate) key: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl PostingRegion {
    /// Whether `segment` is a part of the region.
    #[inline(always)]
    fn contains(&self, segment: &RmaIov) -> bool {
        let end = || (segment.addr - self.start).checked_add(segment.len as u64);
        self.key == segment.key
            && segment.addr >= self.start
            && end().is_some_and(|end| end <= self.len)
    }
}

/// Result of the attempt to post an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Posting {
    /// All records are in the ring. The region is that of the operation.
    Done(PostingRegion),
    /// Some records are in the ring, and another path executes the whole operation.
    Begun,
    /// No record is in the ring.
    Untouched,
}

/// Posted write of several records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteInParts {
    /// Number of the first record.
    pub(crate) first: u64,
    /// Number of the last record; `u64::MAX` before it is pushed.
    pub(crate) last: u64,
    /// Length of the write in bytes.
    pub(crate) len: usize,
    /// First error of a record; 0 without one.
    pub(crate) err: Errno,
}

/// Time without progress of the target, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    /// Time of the first poll that saw no progress since the last one that did; 0 for none.
    begun: u64,
    /// Begin of the wait that counts: that time, or a later one at which this side executed writes
    /// of the target.
    counted_from: u64,
    /// Time from there to the last poll.
    waited: u64,
    /// Factor of the limits of that time at the last poll.
    patience: u64,
}

/// Posted writes to one peer.
#[derive(Debug, Default)]
pub(crate) struct PostedWrites {
    pub(crate) writes: WriteQueue,
    /// Writes of several records, oldest first.
    pub(crate) parts: VecDeque<WriteInParts>,
    /// Choice for these; `None` before the first.
    choice: Option<Box<PartsChoice>>,
    /// Number of failures that were found.
    pub(crate) failures: u64,
    /// Number of the record after the last posted operation or reply to one, if only such records
    /// lie between it and the records known to be consumed; else 0.
    pub(crate) one_sided_end: u64,
    /// Region of the last write that passed every check, while the target is prompt.
    pub(crate) last_region: Option<PostingRegion>,
    /// Number of writes since then that repeated it.
    pub(crate) repeats: u32,
    /// Number of polls of the endpoint before the last of these.
    pub(crate) posted_at: u32,
    stall: Stall,
    /// Time in ticks of the last progress or sign of life.
    heard_ticks: u64,
    /// Published time of the last poll of a silent target; `None` while the target is prompt.
    silent_since: Option<u64>,
    /// Number of the first record that follows operations that the target has to execute, so that
    /// it and later ones cannot be withdrawn before these are acknowledged; `None` without such.
    staying_from: Option<u64>,
    /// Whether writes are withdrawn, some at each poll.
    is_withdrawing: bool,
    /// Whether the target has executed a record since the last withdrawal.
    has_executed: bool,
    /// Direct accesses left until the next attempt by the ring.
    direct_left: u32,
    /// Last initial value of `direct_left`; 0 if the target executed a record before that
    /// withdrawal.
    distance: u32,
}

impl PostedWrites {
    /// Returns the number of writes in the ring.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether no write is in the ring.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether the oldest write must end before record number `produced` is pushed.
    #[inline]
    pub(crate) fn is_full(&self, produced: u64) -> bool {
        self.writes.front().is_some_and(|write| produced.saturating_sub(write.number) >= POSTED_MAX)
    }

    /// Whether a write to `segment` as record number `produced` repeats the last one, and the
    /// target was prompt since. The key table then need not be read again.
    #[inline(always)]
    pub(crate) fn is_repeated(&self, segment: &RmaIov, produced: u64) -> bool {
        self.last_region.is_some_and(|region| region.contains(segment))
            && self.one_sided_end == produced
            && produced % CHECKPOINT != 0
            && match self.writes.front() {
                Some(write) => produced.wrapping_sub(write.number) < POSTED_MAX,
                None => self.is_heard(ticks()),
            }
    }

    /// Ends a withdrawal: the next poll begins a new time without progress.
    pub(crate) fn end_withdrawal(&mut self) {
        self.stall = Stall::default();
        self.is_withdrawing = false;
    }

    /// Whether a poll is due before record number `produced` is pushed.
    #[inline]
    pub(crate) fn is_poll_due(&self, produced: u64) -> bool {
        produced % CHECKPOINT == 0 && !self.writes.is_empty()
    }

    /// Whether the next write takes the ring. If not, counts a direct access. `polled`: published
    /// time of the target's last poll.
    #[inline]
    pub(crate) fn take_ring(&mut self, polled: impl FnOnce() -> u64) -> bool {
        if self.direct_left > 0 {
            self.direct_left -= 1;
            return false;
        }
        let is_prompt = self.silent_since.is_none();
        if is_prompt && (!self.writes.is_empty() || self.is_heard(ticks())) {
            return true;
        }
        let polled = polled();
        self.silent_since != Some(polled) && self.judge(polled, scif::now_ns())
    }

    /// Whether the next write, of `len` bytes in several records, is to be posted if the target
    /// seems to poll. `now`: time in ticks. `is_initiating`: the target starts one-sided operations
    /// itself.
    pub(crate) fn takes_parts(
        &mut self,
        len: usize,
        now: u64,
        is_initiating: impl FnOnce() -> bool,
    ) -> bool {
        self.choice.get_or_insert_default().takes_ring(len, now, is_initiating)
    }

    /// Notes that a write of `len` bytes is refused, and so neither posted nor executed.
    pub(crate) fn note_refusal(&mut self, len: usize) {
        if let Some(choice) = &mut self.choice {
            choice.note_refusal(len);
        }
    }

    /// Whether the next execution of a long record of the target is to be timed.
    #[inline]
    pub(crate) fn times_service(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.times_service())
    }

    /// Notes that a long record of the target was executed here. `ticks`: its time, 0 without one.
    #[inline]
    pub(crate) fn note_service(&mut self, bytes: usize, ticks: u64) {
        if let Some(choice) = &mut self.choice {
            choice.note_service(bytes, ticks);
        }
    }

    /// Whether there was a sign of life shortly before `now`, in ticks.
    #[inline]
    fn is_heard(&self, now: u64) -> bool {
        self.heard_ticks != 0 && now.wrapping_sub(self.heard_ticks) < HEARD_TICKS
    }

    /// Whether a target that polled at `polled` is probably polling.
    fn judge(&mut self, polled: u64, now: u64) -> bool {
        let is_polling = now.saturating_sub(polled) < POLLED_NS;
        self.silent_since = (!is_polling).then_some(polled);
        if is_polling {
            self.heard_ticks = ticks();
        }
        is_polling
    }

    /// Notes a look at the target's progress. Returns true if the target was late (`has_moved`), or
    /// silent for so long that its writes are to be withdrawn (not `has_moved`).
    #[inline]
    pub(crate) fn note_poll(&mut self, has_moved: bool, now: impl FnOnce() -> u64) -> bool {
        if has_moved {
            // The time since the last poll may be a pause of this side.
            let is_late = self.stall.waited > LATE_TICKS * self.stall.patience;
            self.end_withdrawal();
            self.heard_ticks = ticks();
            self.has_executed = true;
            return is_late;
        }
        let now = now();
        if self.stall.begun == 0 {
            self.stall = Stall { begun: now, counted_from: now, ..Stall::default() };
        }
        self.stall.waited = now.saturating_sub(self.stall.counted_from);
        self.stall.patience = if self.parts.is_empty() { 1 } else { PARTS_PATIENCE };
        self.stall.waited > SILENT_TICKS * self.stall.patience
    }

    /// Notes that record `number` is pushed. `is_behind`: the target has yet to execute operations.
    #[inline]
    pub(crate) fn note_position(&mut self, number: u64, is_behind: bool) {
        self.staying_from = is_behind.then(|| self.staying_from.unwrap_or(number));
    }

    /// Returns the number from which on records must stay in the ring, because they follow
    /// operations of the target. `outstanding`: number of operations that it has yet to execute.
    pub(crate) fn staying_from(&mut self, outstanding: u32) -> u64 {
        if outstanding == 0 {
            self.staying_from = None;
        }
        self.staying_from.unwrap_or(u64::MAX)
    }

    /// Notes at `now`, in ticks, that this side has executed writes of the target. That took time,
    /// and the target was posting writes meanwhile.
    #[inline]
    pub(crate) fn note_served(&mut self, now: u64) {
        if now.saturating_sub(self.stall.begun) < POSTING_TICKS {
            self.stall.counted_from = self.stall.counted_from.max(now);
        }
    }

    /// Forgets the ring of a connection that is replaced or lost. The writes in it are failed by
    /// the loss.
    pub(crate) fn reset_connection(&mut self) {
        *self = PostedWrites {
            writes: std::mem::take(&mut self.writes),
            parts: std::mem::take(&mut self.parts),
            ..Self::default()
        };
    }

    /// Notes that the target executes or posts writes here, and so probably polls. `now`: time in
    /// ticks of the last reading of the clock, since a new one takes longer than an execution.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: u64) {
        self.direct_left = 0;
        self.silent_since = None;
        self.heard_ticks = self.heard_ticks.max(now);
        self.note_served(now);
    }

    /// Notes that the target, which published its last poll at `polled`, executed its records late:
    /// the next accesses are direct until it polls again.
    #[cold]
    pub(crate) fn note_late(&mut self, polled: u64) {
        self.forget_region();
        self.silent_since = Some(polled);
    }

    /// Notes the begin of a withdrawal. If the target has executed nothing since the last one, the
    /// number of direct accesses until the next attempt doubles, whatever the target publishes.
    #[cold]
    pub(crate) fn note_withdrawal(&mut self, polled: u64) {
        self.forget_region();
        if std::mem::replace(&mut self.is_withdrawing, true) {
            return;
        }
        self.silent_since = Some(polled);
        let has_executed = std::mem::take(&mut self.has_executed);
        self.distance = match self.distance {
            _ if has_executed => 0,
            distance => (distance * 2).clamp(DISTANCES.0, DISTANCES.1),
        };
        self.direct_left = self.distance;
    }

    /// Lets the next write pass every check.
    fn forget_region(&mut self) {
        self.last_region = None;
        self.repeats = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::args::RmaArgs;

    fn push(posted: &mut PostedWrites, number: u64) {
        let segment = RmaIov { addr: 100, len: 8, key: 5 };
        let args = RmaArgs {
            write: true,
            iov: &[],
            rma: &[segment],
            dest: 0,
            data: None,
            context: 0,
            flags: 0,
        };
        posted.writes.push(number, &args, &segment, None, true);
    }

    /// Makes the target appear silent for long enough that the writes are withdrawn.
    fn be_silent(posted: &mut PostedWrites, polled: u64) {
        assert!(!posted.note_poll(false, || 1) && !posted.note_poll(false, || 1 + SILENT_TICKS));
        assert!(posted.note_poll(false, || 2 + SILENT_TICKS));
        posted.note_withdrawal(polled);
        posted.end_withdrawal();
    }

    #[test]
    fn a_target_that_executes_nothing_is_tried_at_growing_distances() {
        let mut posted = PostedWrites::default();
        for distance in [16, 32, 64] {
            assert!(posted.take_ring(scif::now_ns));
            be_silent(&mut posted, 0);
            let direct = (0..1000).take_while(|_| !posted.take_ring(scif::now_ns)).count();
            assert_eq!(direct, distance);
        }
        assert!(!posted.note_poll(true, || 1), "prompt");
        be_silent(&mut posted, 5);
        assert!(!posted.take_ring(|| 5) && posted.take_ring(scif::now_ns));
    }

    #[test]
    fn silent_target_gets_direct_accesses() {
        let mut posted = PostedWrites::default();
        let polled = scif::now_ns() - POLLED_NS;
        assert!(!posted.take_ring(|| polled) && !posted.take_ring(|| polled));
        assert!(posted.take_ring(scif::now_ns));
        assert!(posted.take_ring(|| panic!("polled just now")));
    }

    #[test]
    fn a_new_ring_begins_without_failures() {
        let mut posted = PostedWrites { failures: 1, one_sided_end: 7, ..Default::default() };
        posted.reset_connection();
        assert_eq!((posted.failures, posted.one_sided_end), (0, 0));
    }

    #[test]
    fn old_writes_end_before_their_failures_are_overwritten() {
        let mut posted = PostedWrites::default();
        assert!(!posted.is_full(u64::MAX));
        push(&mut posted, 9);
        assert!(!posted.is_full(8 + POSTED_MAX) && posted.is_full(9 + POSTED_MAX));
    }

    #[test]
    fn a_write_repeats_the_last_one_while_the_target_is_prompt() {
        let region = PostingRegion { key: 5, start: 100, len: 16 };
        let mut posted =
            PostedWrites { last_region: Some(region), one_sided_end: 10, ..Default::default() };
        let repeats = |posted: &PostedWrites, key, addr, len| {
            posted.is_repeated(&RmaIov { addr, len, key }, 10)
        };
        assert!(!repeats(&posted, 5, 100, 8), "no sign of life");
        posted.note_heard(ticks());
        assert!(repeats(&posted, 5, 100, 8), "heard a moment ago");
        posted.heard_ticks = 0;
        push(&mut posted, 9);
        assert!(repeats(&posted, 5, 100, 8) && repeats(&posted, 5, 108, 8));
        assert!(!repeats(&posted, 6, 100, 8), "another key");
        for (addr, len) in [(99, 8), (109, 8), (117, 0), (u64::MAX, 8), (100, usize::MAX)] {
            assert!(!repeats(&posted, 5, addr, len), "{len} bytes at {addr}");
        }
        assert!(!posted.is_repeated(&RmaIov { addr: 100, len: 8, key: 5 }, 11));
        posted.note_late(7);
        assert!(!repeats(&posted, 5, 100, 8));
    }

    #[test]
    fn a_late_target_is_tried_after_its_next_poll() {
        let mut posted = PostedWrites::default();
        posted.note_heard(ticks());
        assert!(!posted.note_poll(false, || 1) && !posted.note_poll(false, || 2 + LATE_TICKS));
        assert!(posted.note_poll(true, || 3 + LATE_TICKS));
        posted.note_late(7);
        assert!(!posted.take_ring(|| 7) && posted.take_ring(scif::now_ns));
        posted.note_late(8);
        posted.note_heard(ticks());
        assert!(posted.take_ring(|| 8));
    }

    #[test]
    fn a_pause_of_this_side_is_not_charged_to_the_target() {
        let mut posted = PostedWrites::default();
        assert!(!posted.note_poll(false, || 1));
        assert!(!posted.note_poll(true, || 1 + 1000 * LATE_TICKS));
    }
}
