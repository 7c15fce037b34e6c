// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Contents of a completion queue: successes in a ring, errors in a list, one order over both.
//!
//! Endpoints, locks and C pointers are elsewhere. A completion is never lost. The ring has the size
//! that the application requested, up to a limit, and further entries go to an overflow list. An
//! error records the number of successes pushed before it. A reader gets these first, then only the
//! error until it is taken.
//!
//! Semantics: fi_cq(3).

use std::collections::VecDeque;

use crate::state::completion::{Completion, CqError};
use crate::state::oversubscription::Detector;
use crate::state::peer_owner::PeerRxEntry;
use crate::state::waiters::WaitState;

/// Number of entries when the application requests no size.
const DEFAULT_SIZE: usize = 1024;
/// Maximum number of entries in the ring, which is resident memory. A larger queue keeps the rest
/// in the overflow list.
const MAX_RING: usize = 16 * 1024;

/// Number of entries read without progress after which one read makes progress even if enough
/// entries are ready. A larger one delays other operations, a smaller one costs a poll more often.
const LOOK_EVERY: u64 = 64;

/// `enum fi_cq_format` after the resolution of UNSPEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Context,
    Msg,
    Data,
    Tagged,
}

/// State of the completion queue, to which the data path adds completions.
#[derive(Debug)]
pub(crate) struct CqState {
    ring: Box<[Completion]>,
    /// Number of entries put into the ring so far. The ring's length is a power of two.
    tail: usize,
    /// Number of entries taken from the ring so far.
    head: usize,
    /// Entries that follow the last one of the ring.
    overflow: VecDeque<Completion>,
    /// Errors, each with the number of successes pushed before it.
    errors: VecDeque<(u64, CqError)>,
    pushed: u64,
    popped: u64,
    /// Value of `popped` when a read last made progress.
    looked: u64,
    pub(crate) detector: Detector,
    /// Error data lent to the application until its next `fi_cq_readerr`.
    pub(crate) lent: Vec<u8>,
    pub(crate) waits: WaitState,
    /// Receives to give back after the queued completions, in a queue that stands for one of
    /// another provider.
    receives: Option<Vec<PeerRxEntry>>,
}

impl CqState {
    pub(crate) fn new(size: usize, waits: WaitState) -> CqState {
        let size = if size == 0 { DEFAULT_SIZE } else { size };
        let slots = size.min(MAX_RING).next_power_of_two();
        CqState {
            ring: vec![Completion::default(); slots].into_boxed_slice(),
            tail: 0,
            head: 0,
            overflow: VecDeque::new(),
            errors: VecDeque::new(),
            pushed: 0,
            popped: 0,
            looked: 0,
            detector: Detector::new(),
            lent: Vec::new(),
            waits,
            receives: None,
        }
    }

    /// Makes [`CqState::take_all`] give back the receives of another provider.
    pub(crate) fn keep_receives(&mut self) {
        self.receives = Some(Vec::new());
    }

    /// Keeps a receive of another provider until its completion is taken. Returns it if this queue
    /// keeps none.
    pub(crate) fn give_back(&mut self, held: PeerRxEntry) -> Option<PeerRxEntry> {
        match &mut self.receives {
            Some(list) => {
                list.push(held);
                None
            }
            None => Some(held),
        }
    }

    /// Takes all entries in order, and the receives to give back after their delivery.
    pub(crate) fn take_all(&mut self) -> (Vec<Result<Completion, CqError>>, Vec<PeerRxEntry>) {
        let mut ended = Vec::new();
        loop {
            self.drain(usize::MAX, |_, c| ended.push(Ok(*c)));
            match self.take_error() {
                Some(e) => ended.push(Err(e)),
                None => break,
            }
        }
        let held = self.receives.as_mut().map(std::mem::take);
        (ended, held.unwrap_or_default())
    }

    /// Adds a successful completion.
    #[inline(always)]
    pub(crate) fn success(&mut self, c: Completion) {
        self.pushed += 1;
        let mask = self.ring.len() - 1;
        let room = self.tail.wrapping_sub(self.head) <= mask && self.overflow.is_empty();
        // The slot is found first, so that the fields are written directly into it.
        match self.ring.get_mut(self.tail & mask) {
            Some(slot) if room => {
                self.tail = self.tail.wrapping_add(1);
                *slot = c;
            }
            _ => {
                if let Some(slot) = self.spill() {
                    *slot = c;
                }
            }
        }
        self.waits.notify();
    }

    /// Returns a new slot in the overflow list.
    #[cold]
    #[inline(never)]
    fn spill(&mut self) -> Option<&mut Completion> {
        self.overflow.push_back(Completion::default());
        self.overflow.back_mut()
    }

    /// Adds an error completion.
    pub(crate) fn error(&mut self, e: CqError) {
        self.errors.push_back((self.pushed, e));
        self.waits.notify();
    }

    /// Whether there is neither a success nor an error to read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.popped == self.pushed && self.errors.is_empty()
    }

    /// Number of successes ahead of the first error.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        let limit = match self.errors.front() {
            None => self.pushed,
            Some((before, _)) => *before,
        };
        usize::try_from(limit - self.popped).unwrap_or(usize::MAX)
    }

    /// Notes that a read has just made progress.
    #[inline(always)]
    pub(crate) fn note_progress(&mut self) {
        self.looked = self.popped;
    }

    /// Whether a read must make progress although enough entries are ready.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.popped - self.looked >= LOOK_EVERY;
        if due {
            self.note_progress();
        }
        due
    }

    /// Takes the oldest success, if it is in the ring and a read of it needs neither progress nor
    /// checks of errors and waits.
    #[inline(always)]
    pub(crate) fn pop_ready(&mut self) -> Option<&Completion> {
        if self.head == self.tail
            || !self.errors.is_empty()
            || self.popped - self.looked >= LOOK_EVERY
            || self.waits.fd_is_armed()
        {
            return None;
        }
        let mask = self.ring.len() - 1;
        let c = self.ring.get(self.head & mask)?;
        self.head = self.head.wrapping_add(1);
        self.popped += 1;
        Some(c)
    }

    /// Whether an error is next or follows some successes.
    #[inline]
    pub(crate) fn has_error(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Whether an error is next: a read returns -FI_EAVAIL until it is taken.
    #[inline]
    pub(crate) fn error_is_next(&self) -> bool {
        match self.errors.front() {
            None => false,
            Some((before, _)) => *before == self.popped,
        }
    }

    /// Passes up to `max` successes to `put`, oldest first. Returns their number.
    #[inline]
    pub(crate) fn drain(&mut self, max: usize, mut put: impl FnMut(usize, &Completion)) -> usize {
        let n = max.min(self.ready());
        for i in 0..n {
            if self.head == self.tail {
                let Some(c) = self.overflow.pop_front() else {
                    return i;
                };
                put(i, &c);
            } else {
                let mask = self.ring.len() - 1;
                let Some(c) = self.ring.get(self.head & mask) else {
                    return i;
                };
                put(i, c);
                self.head = self.head.wrapping_add(1);
            }
            self.popped += 1;
        }
        n
    }

    /// Takes the error if it is next.
    pub(crate) fn take_error(&mut self) -> Option<CqError> {
        if self.error_is_next() { self.errors.pop_front().map(|(_, e)| e) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(size: usize) -> CqState {
        CqState::new(size, WaitState::none())
    }

    fn done(context: usize) -> Completion {
        Completion { context, ..Completion::default() }
    }

    fn failed(context: usize) -> CqError {
        CqError { c: done(context), err: 5, ..CqError::default() }
    }

    fn take(q: &mut CqState, max: usize) -> Vec<usize> {
        let mut out = Vec::new();
        let n = q.drain(max, |i, c| {
            assert_eq!(i, out.len());
            out.push(c.context);
        });
        assert_eq!(n, out.len());
        out
    }

    #[test]
    fn sizes_are_rounded_and_bounded() {
        assert_eq!(queue(0).ring.len(), DEFAULT_SIZE);
        assert_eq!(queue(1).ring.len(), 1);
        assert_eq!(queue(100).ring.len(), 128);
        assert_eq!(queue(usize::MAX).ring.len(), MAX_RING);
    }

    #[test]
    fn order_survives_overflow() {
        let mut q = queue(4);
        let mut next = 0;
        let mut expected = 0;
        for round in 0..50 {
            for _ in 0..(round % 11) {
                q.success(done(next));
                next += 1;
            }
            for context in take(&mut q, round % 7) {
                assert_eq!(context, expected);
                expected += 1;
            }
            assert_eq!(q.ready(), next - expected);
        }
        for context in take(&mut q, usize::MAX) {
            assert_eq!(context, expected);
            expected += 1;
        }
        assert_eq!(next, expected);
        assert!(q.is_empty());
        assert!(q.overflow.is_empty());
    }

    #[test]
    fn successes_ahead_of_an_error_come_first() {
        let mut q = queue(2);
        (0..3).for_each(|i| q.success(done(i)));
        q.error(failed(100));
        q.error(failed(101));
        q.success(done(3));
        q.error(failed(102));
        assert!(!q.error_is_next());
        assert!(q.take_error().is_none());
        assert_eq!(take(&mut q, 2), [0, 1]);
        assert_eq!(take(&mut q, 9), [2]);
        assert!(q.error_is_next());
        assert_eq!(take(&mut q, 9), []);
        assert_eq!(q.take_error().unwrap().c.context, 100);
        assert_eq!(take(&mut q, 9), []);
        assert_eq!(q.take_error().unwrap().c.context, 101);
        assert!(q.take_error().is_none());
        assert_eq!(take(&mut q, 9), [3]);
        assert_eq!(q.take_error().unwrap().c.context, 102);
        assert!(q.is_empty());
    }

    #[test]
    fn the_ring_wraps() {
        let mut q = queue(4);
        q.head = usize::MAX - 1;
        q.tail = usize::MAX - 1;
        (0..6).for_each(|i| q.success(done(i)));
        assert_eq!(q.overflow.len(), 2);
        assert_eq!(take(&mut q, 9), [0, 1, 2, 3, 4, 5]);
    }
}
