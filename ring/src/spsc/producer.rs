// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The producer of a ring.

#![expect(unsafe_code, reason = "writes records into raw shared memory")]

use core::fmt;

use crate::chunks::chunks;
use crate::copy::{self, Mem};
#[cfg(not(loom))]
use crate::error::LayoutError;
use crate::error::PushError;
#[cfg(not(loom))]
use crate::layout::ReplyLine;
use crate::layout::{
    HEAD_MAX, LAYOUT, REPLY_HEAD_MAX, RING_DATA_BYTES, RING_SLOTS, RingRegion, SHORT_BODY_MAX,
    Slot, body_end, body_start, next_lap,
};
use crate::nt_policy::NtPolicy;
use crate::reply_line::{PeerAck, ReplyHalfRef, is_recent};
use crate::sync::Ordering;

/// Maximum length in bytes of a body whose lines are demoted in a stream. Longer ones made streams
/// slower.
const DEMOTE_MAX: usize = 256;
/// Number of records from the next one to the prefetched one. With fewer, its line arrives late.
const AHEAD: u64 = 3;

/// The producer of a direction as the product lays it out.
pub type Producer = ProducerOf<RING_SLOTS, RING_DATA_BYTES>;

/// The producer of a ring. Dropping it does nothing.
pub struct ProducerOf<const SLOTS: usize, const DATA: usize> {
    pub(super) region: RingRegion,
    /// Number of records published.
    produced: u64,
    /// Value of `produced` up to which slots are known to be free. Beyond it the consumer's counter
    /// is loaded again.
    limit: u64,
    /// Position after the last body.
    pub(super) data: u64,
    /// The consumer's data counter when last loaded.
    data_seen: u64,
    /// Bytes of the next body to prefetch: those of the last short body since the last refresh.
    body_expected: usize,
    nt_policy: NtPolicy,
    /// Number of the lap that contains `produced`.
    lap: u16,
    /// Our half of the reply line.
    reply_half: Option<ReplyHalfRef>,
    /// Whether the next record may use the reply line, if there is one.
    reply_next: bool,
    /// Number of replies published in the reply line.
    replies_pushed: u64,
    /// Value of `produced` after the last of them.
    reply_end: u64,
    /// Whether a reply of the consumer has confirmed that it took that one. Otherwise only its
    /// consumed counter can show this.
    reply_acked: bool,
}

// SAFETY: the pointers name shared memory that is not tied to a thread; the contract of `new` makes
// this the only producer.
unsafe impl<const SLOTS: usize, const DATA: usize> Send for ProducerOf<SLOTS, DATA> {}

#[cfg(not(loom))]
impl Producer {
    /// Returns the producer of the direction at `base`.
    ///
    /// # Errors
    ///
    /// The region is too short or misaligned.
    ///
    /// # Safety
    ///
    /// `base..base + len` is mapped readable and writable while the value exists, was zeroed when
    /// created, and this is the only producer ever made over it.
    pub unsafe fn new(base: *mut u8, len: usize) -> Result<Producer, LayoutError> {
        // SAFETY: the caller's contract.
        unsafe { Producer::apart(base, len, base) }
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
    ) -> Result<Producer, LayoutError> {
        // SAFETY: the caller's contract is the one of `RingRegion::new`.
        let region = unsafe { RingRegion::new(base, len, credits) }?;
        Ok(ProducerOf::over(region))
    }

    /// Sets the first or `second` half of `line` as the destination of replies.
    ///
    /// # Safety
    ///
    /// `line` meets the contract of [`new`](Self::new), with `REPLY_LINE_BYTES` bytes aligned to
    /// that size. Each of the two producers of a connection has its own half.
    pub unsafe fn set_reply_line(&mut self, line: *mut u8, second: bool) {
        // SAFETY: the caller's contract.
        self.attach_reply_half(unsafe { ReplyHalfRef::new(line.cast::<ReplyLine>(), second) });
    }
}

impl<const SLOTS: usize, const DATA: usize> ProducerOf<SLOTS, DATA> {
    /// Maximum body length, a quarter of the area: it fits even with one quarter not yet published
    /// as free and the worst skip.
    const BODY: usize = DATA / 4;

    pub(crate) fn over(region: RingRegion) -> Self {
        // Ordered by the first publication. SYNC POINT: pairs with `ConsumerOf::check_layout`.
        region.lines().producer.layout.store(LAYOUT, Ordering::Relaxed);
        ProducerOf {
            region,
            produced: 0,
            limit: SLOTS as u64,
            data: 0,
            data_seen: 0,
            body_expected: 0,
            lap: 1,
            nt_policy: NtPolicy::default(),
            reply_half: None,
            reply_next: false,
            replies_pushed: 0,
            reply_end: 0,
            reply_acked: true,
        }
    }

    pub(crate) fn attach_reply_half(&mut self, reply_half: ReplyHalfRef) {
        self.reply_half = Some(reply_half);
    }

    /// Prefetches the next slot for writing, shortly before a reply is pushed, and also the next
    /// body if the last record had a short one. The polling consumer holds the lines, so the stores
    /// need a read for ownership, which now overlaps with work of the application. A much earlier
    /// prefetch is useless, because the consumer polls the lines again.
    #[inline(always)]
    pub fn prefetch_record(&self) {
        copy::prefetch_for_write(self.region.slot::<SLOTS>(self.produced));
        if self.body_expected != 0 {
            let start = body_start(self.data, self.body_expected, DATA);
            copy::prefetch_lines(&self.region.area.body::<DATA>(start, self.body_expected));
        }
    }

    /// Whether the next record may be a reply to one just taken.
    #[inline(always)]
    pub const fn may_reply(&self) -> bool {
        self.reply_next && self.reply_half.is_some()
    }

    /// Whether the last record was a reply. The next one is then likely a reply too, and its slot
    /// needs no prefetch.
    #[inline(always)]
    pub const fn last_was_reply(&self) -> bool {
        self.produced != 0 && self.reply_end == self.produced
    }

    /// Notes that a record of the consumer was taken: the next push may be a reply to it. If the
    /// record was a reply, `peer_ack` is the number of replies that the consumer had taken.
    #[inline(always)]
    pub fn expect_reply(&mut self, peer_ack: Option<PeerAck>) {
        self.reply_next = true;
        self.reply_acked |= peer_ack.is_some_and(|ack| ack.matches(self.replies_pushed));
    }

    /// Pretends that the consumer took the last reply, for a loom model that must fail.
    #[cfg(loom)]
    pub fn assume_reply_acked(&mut self) {
        self.reply_acked = true;
    }

    /// Prefetches the slot that comes `AHEAD` records later for writing, if it is free, and its
    /// body, if the records have bodies of `len` bytes. For a caller that pushes many records and
    /// has little time between them: the stores to a slot would wait for its line, and all later
    /// stores with them.
    #[inline(always)]
    pub fn prefetch_ahead(&self, len: usize) {
        let ahead = self.produced + AHEAD;
        if ahead >= self.limit {
            return;
        }
        copy::prefetch_for_write(self.region.slot::<SLOTS>(ahead));
        if (1..=DEMOTE_MAX).contains(&len) {
            let start = body_start(self.data + AHEAD * body_end(0, len), len, DATA);
            if body_end(start, len) - self.data_seen <= DATA as u64 {
                copy::prefetch_lines(&self.region.area.body::<DATA>(start, len));
            }
        }
    }

    /// Publishes a record like `push_words`, but in the reply line. Applies to the first record
    /// after `expect_reply`, if it is short enough and the consumer has taken the previous reply.
    /// Returns false without effect otherwise. `taken`: number of the consumer's replies that were
    /// taken.
    #[inline(always)]
    pub fn push_reply(
        &mut self,
        kind: u8,
        words: [u64; 2],
        count: usize,
        payload: &Mem,
        taken: u64,
    ) -> bool {
        let len = count.min(2) * 8 + payload.len();
        let Some(half) = self.reply_half.filter(|_| self.reply_next && len <= REPLY_HEAD_MAX)
        else {
            return false;
        };
        let free = self.reply_acked || self.reply_end <= self.limit - SLOTS as u64;
        if !free || !is_recent(self.reply_end, self.produced) || !self.has_slot() {
            return false;
        }
        let head = half.half().head.with_mut(|p| p.cast());
        // SAFETY: the head of a half: three aligned words; the length was checked.
        unsafe { fill_words(head, words, count, payload) };
        half.publish(self.produced, kind, len, taken);
        copy::demote(head);
        self.count_pushed();
        self.replies_pushed += 1;
        self.reply_end = self.produced;
        self.reply_acked = false;
        true
    }

    /// Publishes a record: `head`, and `len` bytes of `body` from `off` on.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if the record exceeds the limits or
    /// `body` is too short.
    #[inline]
    pub fn push(
        &mut self,
        kind: u8,
        head: &[u8],
        body: &[Mem],
        off: usize,
        len: usize,
    ) -> Result<(), PushError> {
        if len == 0 {
            return self.push_head(kind, head);
        }
        if head.len() > HEAD_MAX || len > Self::BODY {
            return Err(PushError::TooLong);
        }
        let start = body_start(self.data, len, DATA);
        let end = body_end(start, len);
        if !self.has_slot() || !self.has_data(end) {
            return Err(PushError::Full);
        }
        self.region.area.model_access::<DATA>(start, len, true);
        let to = self.region.area.body::<DATA>(start, len);
        let copied = self
            .nt_policy
            .write(len, |non_temporal| copy::copy_iov_to(&to, body, off, len, non_temporal));
        if copied != len {
            return Err(PushError::TooLong);
        }
        self.data = end;
        self.publish(kind, head.len(), len, |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length
            // was checked.
            unsafe { copy::copy_disjoint(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record whose head is the first `count` of `words` followed by `payload`. Fast
    /// path, without an intermediate copy, whose loads in other widths than its stores would cause
    /// a store-forwarding stall.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if words and payload do not fit a
    /// head.
    #[inline(always)]
    pub fn push_words<const N: usize>(
        &mut self,
        kind: u8,
        words: [u64; N],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let at = count.min(N) * 8;
        if payload.len() > HEAD_MAX - at {
            return Err(PushError::TooLong);
        }
        if !self.has_slot() {
            return Err(PushError::Full);
        }
        let slot = self.region.slot::<SLOTS>(self.produced);
        let head = slot.head.with_mut(|p| p.cast());
        // SAFETY: the head of a slot: seven aligned words; the length was checked.
        unsafe { fill_words(head, words, count, payload) };
        self.publish(kind, at + payload.len(), 0, |_| ());
        copy::demote(head);
        Ok(())
    }

    /// Publishes a record whose head is the first `count` of `words`, with `payload` as its body.
    /// Fast path of [`push`](Self::push) for a short body.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if the payload exceeds
    /// [`SHORT_BODY_MAX`].
    #[inline(always)]
    pub fn push_body<const N: usize>(
        &mut self,
        kind: u8,
        words: [u64; N],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let len = payload.len();
        if len > SHORT_BODY_MAX.min(Self::BODY) {
            return Err(PushError::TooLong);
        }
        let start = body_start(self.data, len, DATA);
        let end = body_end(start, len);
        if !self.has_slot() || !self.has_data(end) {
            return Err(PushError::Full);
        }
        self.region.area.model_access::<DATA>(start, len, true);
        let to = self.region.area.body::<DATA>(start, len);
        if !self.reply_next || self.body_expected < len {
            // Otherwise `prefetch_record` has done so.
            copy::prefetch_lines(&to);
        }
        // SAFETY: both have len bytes by their contract, and no user buffer overlaps the area.
        unsafe { copy::copy_disjoint(to.as_ptr(), payload.as_ptr(), len) };
        self.data = end;
        self.body_expected = len;
        let is_reply = self.reply_next;
        let slot = core::ptr::from_ref(self.region.slot::<SLOTS>(self.produced));
        self.publish(kind, count.min(N) * 8, len, |p| {
            // SAFETY: p is the head of a slot: seven aligned words.
            unsafe { fill_words(p, words, count, &Mem::empty()) }
        });
        if is_reply || len <= DEMOTE_MAX {
            copy::demote(slot);
            copy::demote_lines(&to);
        }
        Ok(())
    }

    /// Variant of [`push`](Self::push) for a body in a slice.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if the record exceeds the limits.
    #[inline]
    pub fn push_slice(&mut self, kind: u8, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        if body.is_empty() {
            return self.push_head(kind, head);
        }
        if head.len() > HEAD_MAX || body.len() > Self::BODY {
            return Err(PushError::TooLong);
        }
        let start = body_start(self.data, body.len(), DATA);
        let end = body_end(start, body.len());
        if !self.has_slot() || !self.has_data(end) {
            return Err(PushError::Full);
        }
        self.region.area.model_access::<DATA>(start, body.len(), true);
        let to = self.region.area.body::<DATA>(start, body.len());
        self.nt_policy
            .write(body.len(), |non_temporal| copy::copy_slice_to(&to, body, non_temporal));
        self.data = end;
        self.publish(kind, head.len(), body.len(), |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length
            // was checked.
            unsafe { copy::copy_disjoint(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record that is only a head: the frequent case.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if `head` exceeds its limit.
    #[inline]
    pub fn push_head(&mut self, kind: u8, head: &[u8]) -> Result<(), PushError> {
        if head.len() > HEAD_MAX {
            return Err(PushError::TooLong);
        }
        if !self.has_slot() {
            return Err(PushError::Full);
        }
        self.publish(kind, head.len(), 0, |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length
            // was checked.
            unsafe { copy::copy_disjoint(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record that is only a head of `head_len` bytes, which `fill` writes into zeroed
    /// bytes. `fill` runs only if the ring has space.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no space at present; `TooLong` if `head_len` exceeds its limit.
    #[inline]
    pub fn push_with(
        &mut self,
        kind: u8,
        head_len: usize,
        fill: impl FnOnce(&mut [u8; HEAD_MAX]),
    ) -> Result<(), PushError> {
        if head_len > HEAD_MAX {
            return Err(PushError::TooLong);
        }
        if !self.has_slot() {
            return Err(PushError::Full);
        }
        let mut head = [0; HEAD_MAX];
        fill(&mut head);
        self.publish(kind, head_len, 0, |p| {
            for (i, word) in chunks(&head).enumerate().take(head_len.div_ceil(8)) {
                // Word by word, so that a head with known fields stays in registers. SAFETY: i < 7,
                // and p is the head of a slot, seven aligned words.
                unsafe { p.cast::<u64>().wrapping_add(i).write(u64::from_ne_bytes(*word)) };
            }
        });
        Ok(())
    }

    /// Whether a record with a body of `body_len` bytes would fit now.
    pub fn room(&mut self, body_len: usize) -> bool {
        body_len <= Self::BODY
            && self.has_slot()
            && (body_len == 0
                || self.has_data(body_end(body_start(self.data, body_len, DATA), body_len)))
    }

    /// Whether a quarter of the ring stays free after one more record of any length. Refuses
    /// records that are not urgent, so that others still fit if the consumer stops.
    #[inline]
    pub fn has_reserve(&mut self) -> bool {
        self.is_reserve_seen() || {
            self.refresh();
            self.is_reserve_seen()
        }
    }

    #[inline]
    fn is_reserve_seen(&self) -> bool {
        self.limit - self.produced > SLOTS as u64 / 4
            && self.data - self.data_seen <= DATA as u64 / 2
    }

    /// Whether the consumer has published that it took every record, see
    /// [`flush`](crate::Consumer::flush).
    pub fn all_consumed(&mut self) -> bool {
        self.consumed() == self.produced
    }

    /// Returns the number of records that the consumer has published as taken, see
    /// [`flush`](crate::Consumer::flush).
    pub fn consumed(&mut self) -> u64 {
        self.refresh();
        self.limit - SLOTS as u64
    }

    /// Whether the consumer requests its doorbell. Read after a push and `publish_fence`.
    #[inline]
    pub fn consumer_idle(&self) -> bool {
        // SYNC POINT: pairs with `ConsumerOf::set_idle`; ordered by `publish_fence` on this side
        // and `sleeper_fence` or membarrier on the other.
        self.region.credits().consumer.idle.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of records published.
    #[inline]
    pub const fn produced(&self) -> u64 {
        self.produced
    }

    /// Returns the number of bytes of the cache lines of all records published, with their bodies.
    pub const fn bytes(&self) -> u64 {
        self.produced * size_of::<Slot>() as u64 + self.data
    }

    #[inline(always)]
    fn has_slot(&mut self) -> bool {
        self.produced != self.limit || self.has_slot_after_refresh()
    }

    #[cold]
    #[inline(never)]
    fn has_slot_after_refresh(&mut self) -> bool {
        self.refresh();
        self.produced != self.limit
    }

    #[inline(always)]
    fn has_data(&mut self, end: u64) -> bool {
        end - self.data_seen <= DATA as u64 || self.has_data_after_refresh(end)
    }

    #[cold]
    #[inline(never)]
    fn has_data_after_refresh(&mut self, end: u64) -> bool {
        self.refresh();
        end - self.data_seen <= DATA as u64
    }

    /// Loads the consumer's counters. Ignores a counter that runs backwards or past the produced
    /// records.
    fn refresh(&mut self) {
        self.body_expected = 0;
        let line = &self.region.credits().consumer;
        // SYNC POINT: pairs with `ConsumerOf::flush`: the consumer no longer accesses freed slots.
        let consumed = line.consumed.load(Ordering::Acquire);
        // SYNC POINT: as above, for the bodies.
        let data = line.consumed_data.load(Ordering::Acquire);
        let consumed_seen = self.limit - SLOTS as u64;
        if (consumed_seen..=self.produced).contains(&consumed) {
            self.limit = consumed + SLOTS as u64;
        }
        if (self.data_seen..=self.data).contains(&data) {
            self.data_seen = data;
        }
    }

    /// Fills the next slot, which must be free, and publishes it.
    #[inline(always)]
    fn publish(&mut self, kind: u8, head_len: usize, body_len: usize, fill: impl FnOnce(*mut u8)) {
        let slot = self.region.slot::<SLOTS>(self.produced);
        slot.head.with_mut(|p| fill(p.cast()));
        let word = u64::from(self.lap)
            | u64::from(kind) << 16
            | (head_len as u64) << 24
            | (body_len as u64) << 32;
        // SYNC POINT: pairs with `ConsumerOf::peek`: head and body are written before the word.
        slot.word.store(word, Ordering::Release);
        self.count_pushed();
    }

    /// Counts one more published record.
    #[inline(always)]
    fn count_pushed(&mut self) {
        self.reply_next = false;
        self.produced += 1;
        if self.produced & (SLOTS as u64 - 1) == 0 {
            self.lap = next_lap(self.lap);
        }
    }
}

impl<const SLOTS: usize, const DATA: usize> fmt::Debug for ProducerOf<SLOTS, DATA> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("produced", &self.produced)
            .field("limit", &self.limit)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// Writes the first `count` of `words` and then the payload.
///
/// # Safety
///
/// `p` is aligned for words, has space for all of that, and no user buffer overlaps it.
#[inline(always)]
unsafe fn fill_words<const N: usize>(p: *mut u8, words: [u64; N], count: usize, payload: &Mem) {
    for (i, word) in words.into_iter().enumerate().take(count) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<u64>().wrapping_add(i).write(word) };
    }
    // SAFETY: as above.
    unsafe {
        copy::copy_disjoint(p.wrapping_add(count.min(N) * 8), payload.as_ptr(), payload.len())
    };
}
