// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The consumer of a ring.

#![expect(unsafe_code, reason = "reads records out of raw shared memory")]

use core::fmt;

use super::record::{InlineHandler, InlineRecord, PollOutcome, Record};
use crate::copy::{self, Mem};
use crate::error::Corrupt;
#[cfg(not(loom))]
use crate::error::LayoutError;
#[cfg(not(loom))]
use crate::layout::ReplyLine;
use crate::layout::{
    HEAD_MAX, LAYOUT, REPLY_HEAD_MAX, RING_DATA_BYTES, RING_SLOTS, RingRegion, SHORT_BODY_MAX,
    Slot, body_end, body_start, next_lap,
};
use crate::poll_delay::PollDelay;
use crate::reply_line::{PeerAck, ReplyHalfRef, ReplyRecord, is_recent};
use crate::shared_word::store_fence;
use crate::sync::Ordering;

/// Number of records in a row, each found at the first poll, that show a backlog.
const BACKLOG: u32 = 4;
/// Distance in records between the record taken and the one that is prefetched in a backlog.
const AHEAD: u64 = 10;
/// Maximum length in bytes of a body that is prefetched in a backlog. Longer ones made streams
/// slower.
const AHEAD_BODY_MAX: usize = 256;

/// Memory to which a consumer stores its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreditMemory {
    Ordinary,
    /// Behind a write-combined mapping: a store leaves the processor at the next store fence.
    WriteCombined,
}

/// The consumer of a direction as the product lays it out.
pub type Consumer = ConsumerOf<RING_SLOTS, RING_DATA_BYTES>;

/// The consumer of a ring. Dropping it does nothing.
pub struct ConsumerOf<const SLOTS: usize, const DATA: usize> {
    pub(super) region: RingRegion,
    /// Number of records taken.
    pub(super) next: u64,
    /// Position after the last body taken.
    data: u64,
    /// Value of `data` once the record last seen is freed.
    data_after: u64,
    /// Value of `next` last published to the producer.
    published: u64,
    /// Value of `data` last published to the producer.
    data_published: u64,
    /// Whether a record that was seen is not freed.
    peeked: bool,
    /// Whether a record with a short body was taken since the last flush, and the next one likely
    /// has one too.
    body_expected: bool,
    /// Number of records taken on the fast paths since a poll found none.
    streak: u32,
    /// Number of the lap that contains `next`.
    pub(super) lap: u16,
    /// The producer's half of the reply line.
    reply_half: Option<ReplyHalfRef>,
    /// Whether the record last seen lies in the reply line.
    in_reply_line: bool,
    /// Number of replies taken from the reply line.
    replies_taken: u64,
    /// Value of `next` after the last of them.
    reply_end: u64,
    /// Count carried by the reply last taken, until `take_peer_ack` returns it.
    peer_ack: Option<PeerAck>,
    poll_delay: PollDelay,
    credit_memory: CreditMemory,
    #[cfg(loom)]
    body_seen: Option<(u64, usize)>,
}

// SAFETY: the pointers name shared memory that is not tied to a thread; the contract of `new` makes
// this the only consumer.
unsafe impl<const SLOTS: usize, const DATA: usize> Send for ConsumerOf<SLOTS, DATA> {}

#[cfg(not(loom))]
impl Consumer {
    /// Returns the consumer of the direction at `base`.
    ///
    /// # Errors
    ///
    /// The region is too short or misaligned.
    ///
    /// # Safety
    ///
    /// `base..base + len` is mapped readable and writable while the value exists, was zeroed when
    /// created, and this is the only consumer ever made over it.
    pub unsafe fn new(base: *mut u8, len: usize) -> Result<Consumer, LayoutError> {
        // SAFETY: the caller's contract.
        unsafe { Consumer::apart(base, len, base) }
    }

    /// Variant of [`new`](Self::new) for a direction in which the consumer writes its words to the
    /// `CREDITS_BYTES` bytes at `credits`, and not beside the slots.
    ///
    /// # Errors
    ///
    /// Errors of [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// The contract of [`new`](Self::new), also for `credits`.
    pub unsafe fn apart(
        base: *mut u8,
        len: usize,
        credits: *mut u8,
    ) -> Result<Consumer, LayoutError> {
        // SAFETY: the caller's contract is the one of `RingRegion::new`.
        let region = unsafe { RingRegion::new(base, len, credits) }?;
        Ok(ConsumerOf::over(region))
    }

    /// Sets the first or `second` half of `line` as the source of replies.
    ///
    /// # Safety
    ///
    /// `line` meets the contract of [`new`](Self::new), with `REPLY_LINE_BYTES` bytes aligned to
    /// that size. The half belongs to the producer of this direction.
    pub unsafe fn set_reply_line(&mut self, line: *mut u8, second: bool) {
        // SAFETY: the caller's contract.
        self.attach_reply_half(unsafe { ReplyHalfRef::new(line.cast::<ReplyLine>(), second) });
    }
}

impl<const SLOTS: usize, const DATA: usize> ConsumerOf<SLOTS, DATA> {
    const BODY: usize = DATA / 4;

    pub(crate) fn over(region: RingRegion) -> Self {
        ConsumerOf {
            region,
            next: 0,
            data: 0,
            data_after: 0,
            published: 0,
            data_published: 0,
            peeked: false,
            body_expected: false,
            streak: 0,
            lap: 1,
            reply_half: None,
            in_reply_line: false,
            replies_taken: 0,
            reply_end: 0,
            peer_ack: None,
            poll_delay: PollDelay::default(),
            credit_memory: CreditMemory::Ordinary,
            #[cfg(loom)]
            body_seen: None,
        }
    }

    pub(crate) fn attach_reply_half(&mut self, reply_half: ReplyHalfRef) {
        self.reply_half = Some(reply_half);
    }

    /// Makes each publication of counters leave the processor at once: they lie behind a
    /// write-combined mapping.
    pub fn fence_credits(&mut self) {
        self.credit_memory = CreditMemory::WriteCombined;
    }

    /// Whether a record is published, for polling loops. `peek` reads its content. Returns false
    /// during the poll delay after [`start_poll_delay`](Self::start_poll_delay), unless
    /// [`cancel_poll_delay`](Self::cancel_poll_delay) ended it.
    #[inline(always)]
    pub fn ready(&mut self) -> bool {
        if self.poll_delay.is_holding_off() {
            return false;
        }
        if self.body_expected {
            self.prefetch_body();
        }
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`; `peek` loads again, with Acquire.
        let [s0, s1, ..] = slot.word.load(Ordering::Relaxed).to_le_bytes();
        let found = u16::from_le_bytes([s0, s1]) == self.lap || self.find_reply().is_some();
        if !found {
            self.streak = 0;
            self.poll_delay.note_empty();
        }
        found
    }

    /// Whether a record is published, for a caller whose last poll was [`ready`](Self::ready) and
    /// found none. Returns `None` if `ready` would change the state.
    #[inline(always)]
    pub fn ready_again(&self) -> Option<bool> {
        if self.poll_delay.is_started() || self.body_expected {
            return None;
        }
        let slot = self.region.slot::<SLOTS>(self.next);
        // `ready` loads again, and `peek` with Acquire.
        let [s0, s1, ..] = slot.word.load(Ordering::Relaxed).to_le_bytes();
        Some(u16::from_le_bytes([s0, s1]) == self.lap || self.find_reply().is_some())
    }

    /// Prefetches the line in which the next body begins. It then arrives together with the slot,
    /// not after it. While the body is not written, this core owns the line.
    #[inline(always)]
    fn prefetch_body(&self) {
        copy::prefetch(&self.region.area.body::<DATA>(self.data, 1));
    }

    #[inline(always)]
    fn find_reply(&self) -> Option<(ReplyHalfRef, ReplyRecord)> {
        let reply_half = self.reply_half.filter(|_| is_recent(self.reply_end, self.next))?;
        Some((reply_half, reply_half.find(self.next)?))
    }

    /// Starts the poll delay: a reply was just published to the producer, whose next record cannot
    /// arrive earlier.
    #[inline(always)]
    pub fn start_poll_delay(&mut self) {
        self.poll_delay.begin();
    }

    /// Ends the poll delay, for a caller that is about to sleep.
    #[inline]
    pub fn cancel_poll_delay(&mut self) {
        self.poll_delay.cancel();
    }

    /// Returns the number of replies taken from the reply line.
    #[inline(always)]
    pub const fn replies_taken(&self) -> u64 {
        self.replies_taken
    }

    /// Takes the count that the last reply carried: the number of our replies that its writer had
    /// taken.
    #[inline(always)]
    pub fn take_peer_ack(&mut self) -> Option<PeerAck> {
        // Most records carry none, and need no store.
        if self.peer_ack.is_some() { self.peer_ack.take() } else { None }
    }

    /// Returns the next record, if one is published; the same record until
    /// [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// The producer wrote data that no correct producer writes.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, Corrupt> {
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`. A single load, so that the checked value is
        // the used value.
        let [s0, s1, kind, head_len, b0, b1, b2, b3] =
            slot.word.load(Ordering::Acquire).to_le_bytes();
        if u16::from_le_bytes([s0, s1]) != self.lap {
            return self.peek_reply();
        }
        if self.next == 0 {
            self.check_layout()?;
        }
        let body_len = u32::from_le_bytes([b0, b1, b2, b3]);
        if usize::from(head_len) > HEAD_MAX {
            return Err(Corrupt::HeadLen(head_len));
        }
        let mut body = Mem::empty();
        let mut after = self.data;
        if body_len != 0 {
            let len = body_len as usize;
            if len > Self::BODY {
                return Err(Corrupt::BodyLen(body_len));
            }
            let start = body_start(self.data, len, DATA);
            after = body_end(start, len);
            self.region.area.model_access::<DATA>(start, len, false);
            #[cfg(loom)]
            {
                self.body_seen = Some((start, len));
            }
            body = self.region.area.body::<DATA>(start, len);
        }
        let mut head = [0; HEAD_MAX];
        slot.head.with(|p| {
            // SAFETY: p is the head of a slot: HEAD_MAX readable bytes, apart from the local copy.
            unsafe { head.as_mut_ptr().copy_from_nonoverlapping(p.cast(), HEAD_MAX) }
        });
        copy::compiler_barrier();
        self.data_after = after;
        self.in_reply_line = false;
        self.peeked = true;
        Ok(Some(Record { kind, head_len, head, body }))
    }

    fn peek_reply(&mut self) -> Result<Option<Record>, Corrupt> {
        let Some((reply_half, ReplyRecord { kind, len, .. })) = self.find_reply() else {
            return Ok(None);
        };
        if self.next == 0 {
            self.check_layout()?;
        }
        if usize::from(len) > REPLY_HEAD_MAX {
            return Err(Corrupt::HeadLen(len));
        }
        let mut head = [0; HEAD_MAX];
        reply_half.half().head.with(|p| {
            // SAFETY: p is the head of a half: REPLY_HEAD_MAX readable bytes, apart from the local
            // copy.
            unsafe { head.as_mut_ptr().copy_from_nonoverlapping(p.cast(), REPLY_HEAD_MAX) }
        });
        copy::compiler_barrier();
        self.data_after = self.data;
        self.in_reply_line = true;
        self.peeked = true;
        Ok(Some(Record { kind, head_len: len, head, body: Mem::empty() }))
    }

    /// Fast path of [`peek`](Self::peek) and [`advance`](Self::advance) combined. Shows a record
    /// without a body to `handler`, kind and head in place, and frees it if `handler` accepts it.
    /// All other cases are left to `poll_body` and `peek`.
    #[inline(always)]
    pub fn poll_inline(&mut self, handler: impl InlineHandler) -> PollOutcome {
        if self.poll_delay.is_holding_off() {
            return PollOutcome::Empty;
        }
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`. A single load, so that the checked value is
        // the used value.
        let word = slot.word.load(Ordering::Acquire);
        let [s0, s1, kind, head_len, ..] = word.to_le_bytes();
        if u16::from_le_bytes([s0, s1]) != self.lap {
            self.streak = 0;
            return self.poll_reply(handler);
        }
        let len = usize::from(head_len);
        if word >> 32 != 0 || len > HEAD_MAX || self.next == 0 {
            return PollOutcome::Unhandled;
        }
        // In use until taken: loom reports a producer that already writes to it.
        let line = InlineRecord::new(slot.head.with(|p| p.cast()), len);
        let taken = handler.take(kind, &line);
        #[cfg(loom)]
        slot.head.with(|_| ());
        if !taken {
            return PollOutcome::Unhandled;
        }
        self.prefetch_backlog();
        self.note_consumed(false, None)
    }

    /// Variant of [`poll_inline`](Self::poll_inline) for a record that it left unhandled. Takes one
    /// with a short body.
    #[inline(always)]
    pub fn poll_body(&mut self, handler: impl InlineHandler) -> PollOutcome {
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`. A single load, so that the checked value is
        // the used value.
        let [s0, s1, kind, head_len, b0, b1, b2, b3] =
            slot.word.load(Ordering::Acquire).to_le_bytes();
        let (head_len, len) =
            (usize::from(head_len), u32::from_le_bytes([b0, b1, b2, b3]) as usize);
        if u16::from_le_bytes([s0, s1]) != self.lap
            || head_len > HEAD_MAX
            || !(1..=SHORT_BODY_MAX.min(Self::BODY)).contains(&len)
            || self.next == 0
        {
            return PollOutcome::Unhandled;
        }
        let start = body_start(self.data, len, DATA);
        self.region.area.model_access::<DATA>(start, len, false);
        let body = self.region.area.body::<DATA>(start, len);
        // For writing, since `scrub_record` writes to the lines.
        copy::prefetch_lines(&body);
        let head = slot.head.with(|p| p.cast());
        let line = InlineRecord::new(head, head_len).with_body(body);
        if !handler.take(kind, &line) {
            return PollOutcome::Unhandled;
        }
        #[cfg(loom)]
        {
            slot.head.with(|_| ());
            self.body_seen = Some((start, len));
        }
        if len <= AHEAD_BODY_MAX && self.prefetch_backlog() {
            let end = body_end(start, len);
            let ahead = body_start(end + (AHEAD - 1) * (end - start), len, DATA);
            copy::prefetch_lines(&self.region.area.body::<DATA>(ahead, len));
        }
        let outcome = self.note_consumed(false, Some(body_end(start, len)));
        self.body_expected = true;
        self.prefetch_body();
        outcome
    }

    /// Variant of [`poll_inline`](Self::poll_inline) for a record in the reply line.
    #[inline(always)]
    fn poll_reply(&mut self, handler: impl InlineHandler) -> PollOutcome {
        let Some((reply_half, found)) = self.find_reply() else {
            self.poll_delay.note_empty();
            return PollOutcome::Empty;
        };
        let len = usize::from(found.len);
        if len > REPLY_HEAD_MAX || self.next == 0 {
            return PollOutcome::Unhandled;
        }
        let line = InlineRecord::new(reply_half.half().head.with(|p| p.cast()), len);
        let taken = handler.take(found.kind, &line);
        #[cfg(loom)]
        reply_half.half().head.with(|_| ());
        if !taken {
            return PollOutcome::Unhandled;
        }
        self.peer_ack = Some(found.peer_ack);
        self.note_consumed(true, None)
    }

    /// Whether the last records were all found at the first poll, so that more probably follow.
    #[inline(always)]
    pub const fn has_backlog(&self) -> bool {
        self.streak > BACKLOG
    }

    /// Counts a record found at the first poll. In a backlog, prefetches a later slot for writing,
    /// since `scrub_record` writes to it. The producer is ahead, so it does not lose a line that it
    /// is about to write. It takes the slot freed last from the shared cache. Returns whether there
    /// is a backlog.
    #[inline(always)]
    fn prefetch_backlog(&mut self) -> bool {
        self.streak = self.streak.wrapping_add(1);
        if self.has_backlog() {
            copy::prefetch_for_write(self.region.slot::<SLOTS>(self.next + AHEAD));
            copy::demote(self.region.slot::<SLOTS>(self.next.wrapping_sub(1)));
        }
        self.has_backlog()
    }

    /// Frees the record just handled; `after`: position after its body, if it has one.
    #[inline(always)]
    fn note_consumed(&mut self, in_reply_line: bool, after: Option<u64>) -> PollOutcome {
        copy::compiler_barrier();
        self.free(in_reply_line, after);
        PollOutcome::Consumed
    }

    /// Frees the record last seen, if any; its body must not be read afterwards. The counters are
    /// published to the producer at each quarter of the ring, or at [`flush`](Self::flush).
    #[inline(always)]
    pub fn advance(&mut self) {
        if self.peeked {
            self.free(self.in_reply_line, Some(self.data_after));
        }
    }

    /// Frees the next record; `after`: position after its body, if it has one.
    #[inline(always)]
    fn free(&mut self, in_reply_line: bool, after: Option<u64>) {
        // In use until now: loom reports a producer that already writes to it.
        #[cfg(loom)]
        if let Some((start, len)) = self.body_seen.take() {
            self.region.area.model_access::<DATA>(start, len, false);
        }
        self.poll_delay.end();
        if in_reply_line {
            self.replies_taken += 1;
            self.reply_end = self.next + 1;
        } else {
            self.scrub_record(after);
        }
        self.peeked = false;
        self.next += 1;
        if let Some(after) = after {
            self.data = after;
        }
        let ends_quarter = self.next % (SLOTS as u64 / 4).max(1) == 0;
        if ends_quarter && self.next % (SLOTS as u64) == 0 {
            self.lap = next_lap(self.lap);
        }
        if ends_quarter || after.is_some_and(|after| after - self.data_published >= DATA as u64 / 4)
        {
            self.flush();
        }
    }

    /// Writes to the lines of the freed record, so that this core owns them. The producer can then
    /// prefetch many of them for writing at once. For a line that both cores share, each store of
    /// the producer would wait for a read for ownership, 150 ns between distant cores.
    #[inline(always)]
    fn scrub_record(&mut self, after: Option<u64>) {
        // SYNC POINT: `flush` orders this store before the producer's next store to the slot; until
        // then only this side reads it. No lap has number 0.
        self.region.slot::<SLOTS>(self.next).word.store(0, Ordering::Relaxed);
        if let Some(after) = after.filter(|after| *after != self.data) {
            self.region.area.scrub_body::<DATA>(self.data, after);
        }
    }

    /// Publishes all freed records to the producer. Called when the ring has been empty for a
    /// while.
    #[inline(never)]
    pub fn flush(&mut self) {
        if self.published == self.next {
            return;
        }
        let line = &self.region.credits().consumer;
        // SYNC POINT: pairs with `ProducerOf::refresh`: our accesses to the bodies end before they
        // may be overwritten.
        line.consumed_data.store(self.data, Ordering::Release);
        // SYNC POINT: as above, for the slots.
        line.consumed.store(self.next, Ordering::Release);
        if self.credit_memory == CreditMemory::WriteCombined {
            // Either counter may arrive first: each bounds another resource, and is monotone.
            store_fence();
        }
        self.published = self.next;
        self.data_published = self.data;
        self.body_expected = false;
    }

    /// Sets whether the producer must ring the doorbell. After `true` the caller runs
    /// `sleeper_fence` (or membarrier) and polls the ring once more.
    #[inline]
    pub fn set_idle(&mut self, idle: bool) {
        // SYNC POINT: pairs with `ProducerOf::consumer_idle`; ordered by the fences named in that
        // function.
        let flag = &self.region.credits().consumer.idle;
        flag.store(u32::from(idle), Ordering::Relaxed);
        if self.credit_memory == CreditMemory::WriteCombined {
            store_fence();
            if idle {
                // The fence does not order the flag before records that cross it on their way. The
                // answer to a load pushes those ahead of it, and the next poll finds them.
                std::hint::black_box(flag.load(Ordering::Relaxed));
            }
        }
    }

    /// Whether the producer must ring the doorbell, unless a peer overwrote the flag.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // Written by this side only, so it orders nothing.
        self.region.credits().consumer.idle.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of records freed.
    #[inline]
    pub const fn consumed(&self) -> u64 {
        self.next
    }

    /// Returns the number of bytes of the cache lines of all records freed, with their bodies.
    pub const fn bytes(&self) -> u64 {
        self.next * size_of::<Slot>() as u64 + self.data
    }

    /// Checks the producer's layout version, once, with the first record.
    #[cold]
    fn check_layout(&self) -> Result<(), Corrupt> {
        // SYNC POINT: pairs with `ProducerOf::over`, through the publication of the first record.
        match self.region.lines().producer.layout.load(Ordering::Relaxed) {
            LAYOUT => Ok(()),
            other => Err(Corrupt::Layout(other)),
        }
    }
}

impl<const SLOTS: usize, const DATA: usize> fmt::Debug for ConsumerOf<SLOTS, DATA> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("next", &self.next)
            .field("published", &self.published)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}
