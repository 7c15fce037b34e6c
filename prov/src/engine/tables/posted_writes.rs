// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes to one peer: those in the ring, oldest first, and the choice between the ring and
//! direct access.
//!
//! A posted write is a record without a reply, which the target executes when it polls. A target
//! that was late gets direct access, and at growing distances one more write by the ring.

use std::collections::VecDeque;

use crate::engine::tables::op_table::CompletionInfo;
use crate::engine::types::args::RmaIov;

/// Largest distance in records from the oldest posted write to the next record. The ring keeps the
/// failures of the last 256 records.
const POSTED_MAX: u64 = 192;
/// Nanoseconds without progress after which the writes to a target that was prompt are withdrawn.
/// A shorter time withdraws while the target copies a large message.
const PROMPT_NS: u64 = 20_000;
/// Nanoseconds of the same kind for a target that was late: the time of some direct accesses.
const PROBE_NS: u64 = 10_000;
/// Nanoseconds without progress after which a target that then does execute counts as late.
const LATE_NS: u64 = 10_000;
/// Smallest and largest number of direct accesses between two attempts by the ring.
const DISTANCES: (u32, u32) = (16, 1 << 16);

/// Write in the ring that the target has not executed, as far as known.
#[derive(Debug)]
pub(crate) struct PostedWrite {
    /// Number of its record.
    pub(crate) number: u64,
    pub(crate) segment: RmaIov,
    /// Position of the body; `None` if the payload is in the head.
    pub(crate) body: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) info: CompletionInfo,
}

/// Posted writes to one peer.
#[derive(Debug, Default)]
pub(crate) struct PostedWrites {
    pub(crate) writes: VecDeque<PostedWrite>,
    /// Number of failures that were found.
    pub(crate) failures: u64,
    /// Number of the record after the last posted write, if only posted writes lie between it and
    /// the records known to be consumed; else 0.
    pub(crate) only_writes_end: u64,
    /// Time of the first poll without progress since the last progress; 0 for none.
    stalled_ns: u64,
    /// Direct accesses left until the next attempt by the ring.
    direct_left: u32,
    /// Distance between attempts; 0 while the target is prompt.
    distance: u32,
}

impl PostedWrites {
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

    /// Notes that no write is in the ring, so the next poll begins a new time without progress.
    pub(crate) fn note_settled(&mut self) {
        self.stalled_ns = 0;
    }

    /// Whether the next write takes the ring. Counts a direct access otherwise.
    #[inline]
    pub(crate) fn take_ring(&mut self) -> bool {
        let ring = self.direct_left == 0;
        self.direct_left = self.direct_left.saturating_sub(1);
        ring
    }

    /// Whether the last poll found no progress.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled_ns != 0
    }

    /// Notes a poll of the target's progress. Returns true if the writes are to be withdrawn.
    #[inline]
    pub(crate) fn note_poll(&mut self, has_moved: bool, now: impl FnOnce() -> u64) -> bool {
        if has_moved {
            if self.stalled_ns == 0 {
                return false;
            }
            let late = now().saturating_sub(std::mem::take(&mut self.stalled_ns)) > LATE_NS;
            if late {
                self.note_late()
            } else {
                self.distance = 0
            }
            return false;
        }
        if self.stalled_ns == 0 {
            self.stalled_ns = now();
            return false;
        }
        let limit = if self.distance == 0 { PROMPT_NS } else { PROBE_NS };
        now().saturating_sub(self.stalled_ns) > limit
    }

    /// Forgets the ring of a connection that is replaced or lost. The writes in it are failed by
    /// the loss.
    pub(crate) fn reset_connection(&mut self) {
        *self = PostedWrites { writes: std::mem::take(&mut self.writes), ..Self::default() };
    }

    /// Notes that the target posts writes here, and so probably polls: the next write takes the
    /// ring.
    #[inline]
    pub(crate) fn note_heard(&mut self) {
        self.direct_left = 0;
    }

    /// Notes that the target did not execute in time: the next accesses are direct.
    pub(crate) fn note_late(&mut self) {
        self.stalled_ns = 0;
        self.distance = (self.distance * 2).clamp(DISTANCES.0, DISTANCES.1);
        self.direct_left = self.distance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::op_table::OpKind;

    #[test]
    fn a_silent_target_is_tried_at_growing_distances() {
        let mut posted = PostedWrites::default();
        for distance in [16, 32, 64] {
            assert!(posted.take_ring());
            assert!(!posted.note_poll(false, || 1));
            assert!(posted.note_poll(false, || 2 + PROMPT_NS));
            posted.note_late();
            assert_eq!((0..1000).take_while(|_| !posted.take_ring()).count(), distance);
        }
        assert!(!posted.note_poll(false, || 1) && posted.is_stalled());
        assert!(!posted.note_poll(true, || 1 + LATE_NS), "prompt");
        assert!(posted.take_ring() && posted.take_ring());
    }

    #[test]
    fn a_new_ring_begins_without_failures() {
        let mut posted = PostedWrites { failures: 1, only_writes_end: 7, ..Default::default() };
        posted.reset_connection();
        assert_eq!((posted.failures, posted.only_writes_end), (0, 0));
    }

    #[test]
    fn old_writes_end_before_their_failures_are_overwritten() {
        let mut posted = PostedWrites::default();
        assert!(!posted.is_full(u64::MAX));
        let info = CompletionInfo { op_kind: OpKind::Write, context: 0, flags: 0, tag: 0, len: 0 };
        let segment = RmaIov::default();
        posted.writes.push_back(PostedWrite { number: 9, segment, body: None, data: None, info });
        assert!(!posted.is_full(8 + POSTED_MAX) && posted.is_full(9 + POSTED_MAX));
    }

    #[test]
    fn a_late_target_counts_as_silent() {
        let mut posted = PostedWrites::default();
        assert!(!posted.note_poll(false, || 1));
        assert!(!posted.note_poll(true, || 2 + LATE_NS));
        assert!(!posted.take_ring() && !posted.is_stalled());
        posted.note_heard();
        assert!(posted.take_ring());
    }
}
