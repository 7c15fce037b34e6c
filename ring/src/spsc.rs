// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a connection: a single-producer single-consumer ring of records in memory shared with
//! the peer.
//!
//! A record is a head of at most 56 bytes in the cache line of the word that publishes it, and a body of at
//! most [`BODY_MAX`](crate::BODY_MAX) in the data area beside. So a small message moves one line, with no
//! read-modify-write, no lock and no call. Not about: waking anybody (`doorbell`), what heads mean.
//!
//! Invariants. The consumer writes to a record only when it frees it, before it says so. Positions are private to
//! each side, which compute them by the same rule (`layout::body_start`); of shared words a side reads only the
//! publication word, once per look, and the consumer's two counters. A peer that writes garbage can therefore make
//! wrong heads, bodies and lengths, which are checked ([`Corrupt`]), but no access outside the ring. A consumer that
//! publishes counters that never were is not believed, and its ring stays full: that hurts itself alone.

#![expect(unsafe_code, reason = "lays the ring over raw shared memory")]

use crate::bypass::Bypass;
use crate::copy::{self, Mem};
pub use crate::error::{Corrupt, LayoutError, PushError};
use crate::layout::{DATA, HEAD_MAX, LAYOUT, Region, SLOTS, body_end, body_start, next_stamp};
use crate::sync::Ordering;
use core::fmt;

/// The producer of a direction as the product lays it out.
pub type Producer = ProducerOf<SLOTS, DATA>;
/// The consumer of a direction as the product lays it out.
pub type Consumer = ConsumerOf<SLOTS, DATA>;

/// One record, as found at one look.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// What the producer called it.
    pub kind: u8,
    /// Bytes of the head; at most [`HEAD_MAX`].
    pub head_len: u8,
    /// A private copy; what lies past `head_len` means nothing.
    pub head: [u8; HEAD_MAX],
    /// The body where it lies in shared memory: it may change at any time and is there until `advance`.
    pub body: Mem,
}

impl Record {
    /// The bytes of the head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or(&self.head)
    }
}

/// The head of a record where it lies in shared memory, lent to [`ConsumerOf::take_line`]: what is asked for twice may have
/// changed meanwhile, so ask once and use what you got.
#[derive(Debug)]
pub struct Line<'a> {
    head: *const u64,
    len: usize,
    _lent: core::marker::PhantomData<&'a ()>,
}

impl Line<'_> {
    /// Bytes of the head; at most [`HEAD_MAX`].
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Word `at` of the head, loaded now; 0 if the head does not reach so far.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        if at.saturating_mul(8).saturating_add(8) > self.len {
            return 0;
        }
        // SAFETY: the word lies in the head of a slot, seven aligned words. Volatile: one load, whatever the caller does.
        unsafe { self.head.wrapping_add(at).read_volatile() }
    }

    /// Copies what follows the first `words` words to `to`, as much as both have; returns how much.
    #[inline(always)]
    pub fn copy_tail(&self, words: usize, to: &Mem) -> usize {
        let at = words.saturating_mul(8).min(self.len);
        let n = to.len().min(self.len - at);
        // SAFETY: n bytes of the head lie there, `to` has as many by its contract, and no user buffer overlaps a slot.
        unsafe { copy::copy_apart(to.as_ptr(), self.head.cast::<u8>().wrapping_add(at), n) };
        n
    }
}

/// Who looks at the head of a record in place: a closure, or what wants to be sure that it is inlined.
pub trait LineTaker {
    /// Looks at a record of that kind; true: it was taken, and is freed.
    fn take(self, kind: u8, line: &Line<'_>) -> bool;
}

impl<F: FnOnce(u8, &Line<'_>) -> bool> LineTaker for F {
    #[inline(always)]
    fn take(self, kind: u8, line: &Line<'_>) -> bool {
        self(kind, line)
    }
}

/// What [`ConsumerOf::take_line`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing is published.
    Empty,
    /// A record was taken, and is freed.
    Taken,
    /// There is a record, untouched: for [`ConsumerOf::peek`].
    Other,
}

/// The side that publishes. Dropping it does nothing.
pub struct ProducerOf<const SLOTS: usize, const DATA: usize> {
    region: Region,
    /// Records published.
    produced: u64,
    /// `produced` may grow to this before the consumer's counter must be looked at again.
    limit: u64,
    /// Position after the last body.
    data: u64,
    /// The consumer's data counter when last looked at.
    data_seen: u64,
    bypass: Bypass,
    /// Of the lap `produced` is in.
    stamp: u16,
}

// SAFETY: the pointers name shared memory that is not tied to a thread; the contract of `new` makes this
// the only producer.
unsafe impl<const SLOTS: usize, const DATA: usize> Send for ProducerOf<SLOTS, DATA> {}

#[cfg(not(loom))]
impl Producer {
    /// The producer of the direction laid over `base`.
    ///
    /// # Errors
    ///
    /// The region is too short or misaligned.
    ///
    /// # Safety
    ///
    /// `base..base + len` is mapped readable and writable for the life of the value, was zeroed when
    /// created, and this is the only producer ever made over it.
    pub unsafe fn new(base: *mut u8, len: usize) -> Result<Producer, LayoutError> {
        // SAFETY: the caller's contract is the one of `Region::new`.
        let region = unsafe { Region::new(base, len) }?;
        Ok(ProducerOf::over(region))
    }
}

impl<const SLOTS: usize, const DATA: usize> ProducerOf<SLOTS, DATA> {
    /// A quarter of the area: with a quarter not yet given back and the worst skip, such a body still finds
    /// room.
    const BODY: usize = DATA / 4;

    pub(crate) fn over(region: Region) -> Self {
        // Ordered by the first publication. SYNC POINT: pairs with `ConsumerOf::check_layout`.
        region.lines().producer.layout.store(LAYOUT, Ordering::Relaxed);
        ProducerOf {
            region,
            produced: 0,
            limit: SLOTS as u64,
            data: 0,
            data_seen: 0,
            stamp: 1,
            bypass: Bypass::new(),
        }
    }

    /// A record is about to be pushed, in about the time a line takes from one core to another: an answer to what has just come.
    /// The consumer has looked at the slot and holds its line, which has to be taken from it before anything can be
    /// written; so it is asked for now, while the application makes up its answer. Much earlier would be as bad as late,
    /// since the consumer goes on looking.
    #[inline(always)]
    pub fn will_push(&self) {
        copy::will_write(self.region.slot::<SLOTS>(self.produced));
    }

    /// Publishes a record: `head`, and `len` bytes of `body` from `off` on.
    ///
    /// # Errors
    ///
    /// `Full` if there is no room now, `TooLong` if there never is or `body` has not so many bytes.
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
        self.region.area.touch::<DATA>(start, len, true);
        let to = self.region.area.body::<DATA>(start, len);
        let copied = self
            .bypass
            .write(len, |past| copy::copy_iov_to(&to, body, off, len, past));
        if copied != len {
            return Err(PushError::TooLong);
        }
        self.data = end;
        self.publish(kind, head.len(), len, |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length was
            // checked.
            unsafe { copy::copy_apart(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record whose head is the first `count` of `words` and then the bytes of `payload`: the hot case, without a
    /// copy on the way. A copy would be loaded in other pieces than it was stored in, and such a load waits for every earlier
    /// store, those of the last record's line included.
    ///
    /// # Errors
    ///
    /// `Full` if there is no room now, `TooLong` if words and payload do not fit a head.
    #[inline(always)]
    pub fn push_words(
        &mut self,
        kind: u8,
        words: [u64; 2],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let at = count.min(2) * 8;
        if payload.len() > HEAD_MAX - at {
            return Err(PushError::TooLong);
        }
        if !self.has_slot() {
            return Err(PushError::Full);
        }
        self.publish(kind, at + payload.len(), 0, |p| {
            if count > 0 {
                // SAFETY: p is the head of a slot: seven aligned words.
                unsafe { p.cast::<u64>().write(words[0]) };
            }
            if count > 1 {
                // SAFETY: as above.
                unsafe { p.cast::<u64>().wrapping_add(1).write(words[1]) };
            }
            // SAFETY: the payload was checked to fit behind the words, and no user buffer overlaps a slot.
            unsafe { copy::copy_apart(p.wrapping_add(at), payload.as_ptr(), payload.len()) };
        });
        Ok(())
    }

    /// As [`push`](Self::push), with a body of bytes that are ours.
    ///
    /// # Errors
    ///
    /// `Full` if there is no room now, `TooLong` if there never is.
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
        self.region.area.touch::<DATA>(start, body.len(), true);
        let to = self.region.area.body::<DATA>(start, body.len());
        self.bypass
            .write(body.len(), |past| copy::copy_slice_to(&to, body, past));
        self.data = end;
        self.publish(kind, head.len(), body.len(), |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length was
            // checked.
            unsafe { copy::copy_apart(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record that is only a head: the hot case.
    ///
    /// # Errors
    ///
    /// `Full` if there is no room now, `TooLong` if `head` is.
    #[inline]
    pub fn push_head(&mut self, kind: u8, head: &[u8]) -> Result<(), PushError> {
        if head.len() > HEAD_MAX {
            return Err(PushError::TooLong);
        }
        if !self.has_slot() {
            return Err(PushError::Full);
        }
        self.publish(kind, head.len(), 0, |p| {
            // SAFETY: p is the head of a slot, HEAD_MAX bytes, which no slice overlaps; the length was
            // checked.
            unsafe { copy::copy_apart(p, head.as_ptr(), head.len()) }
        });
        Ok(())
    }

    /// Publishes a record that is only a head of `head_len` bytes, written by `fill` into zeroed bytes.
    /// `fill` runs only if there is room.
    ///
    /// # Errors
    ///
    /// `Full` if there is no room now, `TooLong` if `head_len` is.
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
            let words = head.as_chunks::<8>().0;
            for (i, word) in words.iter().enumerate().take(head_len.div_ceil(8)) {
                // Word by word, so that a head whose fields are known stays in registers on its way.
                // SAFETY: i < 7, and p is the head of a slot, seven aligned words.
                unsafe { p.cast::<u64>().wrapping_add(i).write(u64::from_ne_bytes(*word)) };
            }
        });
        Ok(())
    }

    /// Whether a record with a body of `body_len` bytes would find room now.
    pub fn room(&mut self, body_len: usize) -> bool {
        body_len <= Self::BODY
            && self.has_slot()
            && (body_len == 0 || self.has_data(body_end(body_start(self.data, body_len, DATA), body_len)))
    }

    /// Whether the consumer has taken every record, as far as it has said so (see [`ConsumerOf::flush`]).
    pub fn all_consumed(&mut self) -> bool {
        self.refresh();
        self.limit == self.produced + SLOTS as u64
    }

    /// Whether the consumer asked for its bell; looked at after a push and `publish_fence`.
    #[inline]
    pub fn consumer_idle(&self) -> bool {
        // SYNC POINT: pairs with `ConsumerOf::set_idle`; the order comes from `publish_fence` here and
        // `sleeper_fence` or membarrier there.
        self.region.lines().consumer.idle.load(Ordering::Relaxed) != 0
    }

    /// Records published so far.
    #[inline]
    pub const fn produced(&self) -> u64 {
        self.produced
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

    /// Looks at the consumer's counters. One that goes back or past what was produced is not believed.
    fn refresh(&mut self) {
        let line = &self.region.lines().consumer;
        // SYNC POINT: pairs with `ConsumerOf::flush`: what the consumer gave back it no longer reads or writes.
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

    /// Fills the next slot, which is known to be free, and publishes it.
    #[inline(always)]
    fn publish(&mut self, kind: u8, head_len: usize, body_len: usize, fill: impl FnOnce(*mut u8)) {
        let slot = self.region.slot::<SLOTS>(self.produced);
        slot.head.with_mut(|p| fill(p.cast()));
        let word =
            u64::from(self.stamp) | u64::from(kind) << 16 | (head_len as u64) << 24 | (body_len as u64) << 32;
        // SYNC POINT: pairs with `ConsumerOf::peek`: head and body are there before the word is.
        slot.word.store(word, Ordering::Release);
        self.produced += 1;
        if self.produced & (SLOTS as u64 - 1) == 0 {
            self.stamp = next_stamp(self.stamp);
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

/// The side that takes. Dropping it does nothing.
pub struct ConsumerOf<const SLOTS: usize, const DATA: usize> {
    region: Region,
    /// Records taken.
    next: u64,
    /// Position after the last body taken.
    data: u64,
    /// What `data` becomes when the record last seen is freed.
    data_after: u64,
    /// `next` and `data` as the producer was told.
    told: u64,
    data_told: u64,
    /// 1 while a record that was seen is not freed.
    step: u64,
    /// Of the lap `next` is in.
    stamp: u16,
    #[cfg(loom)]
    body_seen: Option<(u64, usize)>,
}

// SAFETY: the pointers name shared memory that is not tied to a thread; the contract of `new` makes this
// the only consumer.
unsafe impl<const SLOTS: usize, const DATA: usize> Send for ConsumerOf<SLOTS, DATA> {}

#[cfg(not(loom))]
impl Consumer {
    /// The consumer of the direction laid over `base`.
    ///
    /// # Errors
    ///
    /// The region is too short or misaligned.
    ///
    /// # Safety
    ///
    /// `base..base + len` is mapped readable and writable for the life of the value, was zeroed when
    /// created, and this is the only consumer ever made over it.
    pub unsafe fn new(base: *mut u8, len: usize) -> Result<Consumer, LayoutError> {
        // SAFETY: the caller's contract is the one of `Region::new`.
        let region = unsafe { Region::new(base, len) }?;
        Ok(ConsumerOf::over(region))
    }
}

impl<const SLOTS: usize, const DATA: usize> ConsumerOf<SLOTS, DATA> {
    const BODY: usize = DATA / 4;

    pub(crate) fn over(region: Region) -> Self {
        ConsumerOf {
            region,
            next: 0,
            data: 0,
            data_after: 0,
            told: 0,
            data_told: 0,
            step: 0,
            stamp: 1,
            #[cfg(loom)]
            body_seen: None,
        }
    }

    /// Whether a record is published: one load, for loops that mostly find nothing. What it is, `peek` finds out.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`; `peek` loads again, with Acquire.
        let [s0, s1, ..] = slot.word.load(Ordering::Relaxed).to_le_bytes();
        u16::from_le_bytes([s0, s1]) == self.stamp
    }

    /// The next record, if one is published; the same one until [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// The producer wrote what ours never writes.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, Corrupt> {
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`. Loaded once: what is checked below is what is used.
        let [s0, s1, kind, head_len, b0, b1, b2, b3] = slot.word.load(Ordering::Acquire).to_le_bytes();
        if u16::from_le_bytes([s0, s1]) != self.stamp {
            return Ok(None);
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
            self.region.area.touch::<DATA>(start, len, false);
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
        copy::settle();
        self.data_after = after;
        self.step = 1;
        Ok(Some(Record {
            kind,
            head_len,
            head,
            body,
        }))
    }

    /// The hot case of [`peek`](Self::peek) and [`advance`](Self::advance) in one: a record without a body is shown to `taker`,
    /// its kind and its head in place, and freed if that says that it took it. Whatever is out of the ordinary is left
    /// to `peek`.
    #[inline(always)]
    pub fn take_line(&mut self, taker: impl LineTaker) -> Look {
        let slot = self.region.slot::<SLOTS>(self.next);
        // SYNC POINT: pairs with `ProducerOf::publish`. Loaded once: what is checked below is what is used.
        let word = slot.word.load(Ordering::Acquire);
        let [s0, s1, kind, head_len, ..] = word.to_le_bytes();
        if u16::from_le_bytes([s0, s1]) != self.stamp {
            return Look::Empty;
        }
        let len = usize::from(head_len);
        if word >> 32 != 0 || len > HEAD_MAX || self.next == 0 {
            return Look::Other;
        }
        // In use until it was taken: a producer that already writes there is found out in the model.
        let line = Line {
            head: slot.head.with(|p| p.cast()),
            len,
            _lent: core::marker::PhantomData,
        };
        let taken = taker.take(kind, &line);
        #[cfg(loom)]
        slot.head.with(|_| ());
        if !taken {
            return Look::Other;
        }
        copy::settle();
        self.step = 1;
        self.data_after = self.data;
        self.advance();
        Look::Taken
    }

    /// Frees the record last seen, if one was; its body must not be read after that. The producer is told
    /// each quarter of the ring, or at [`flush`](Self::flush).
    #[inline(always)]
    pub fn advance(&mut self) {
        // In use until now: a producer that already writes there is found out.
        #[cfg(loom)]
        if let Some((start, len)) = self.body_seen.take() {
            self.region.area.touch::<DATA>(start, len, false);
        }
        let step = core::mem::take(&mut self.step);
        if step != 0 {
            self.take_back();
        }
        self.next += step;
        self.data = self.data_after;
        if step != 0 && self.next & (SLOTS as u64 - 1) == 0 {
            self.stamp = next_stamp(self.stamp);
        }
        if self.next - self.told >= SLOTS as u64 / 4 || self.data - self.data_told >= DATA as u64 / 4 {
            self.flush();
        }
    }

    /// Writes into the lines of the record that is freed. A line that both cores hold the producer could not write before this core
    /// has answered that it let go, and its stores wait in line for that, 150 ns each between far cores; one that this core alone
    /// holds it fetches ahead, many at a time.
    #[inline(always)]
    fn take_back(&mut self) {
        // SYNC POINT: `flush` puts this before the producer's next store to it; until then only we look. No lap is stamped 0.
        self.region
            .slot::<SLOTS>(self.next)
            .word
            .store(0, Ordering::Relaxed);
        if self.data_after != self.data {
            self.region.area.take_back::<DATA>(self.data, self.data_after);
        }
    }

    /// Tells the producer all that was freed. Called when the ring has been empty for a while.
    #[inline(never)]
    pub fn flush(&mut self) {
        if self.told == self.next {
            return;
        }
        let line = &self.region.lines().consumer;
        // SYNC POINT: pairs with `ProducerOf::refresh`: our reads of the bodies and our writes to their lines end
        // before they may be overwritten.
        line.consumed_data.store(self.data, Ordering::Release);
        // SYNC POINT: as above, for the slots.
        line.consumed.store(self.next, Ordering::Release);
        self.told = self.next;
        self.data_told = self.data;
    }

    /// Asks the producer to ring the bell, or no more. After asking, the caller runs `sleeper_fence` (or
    /// membarrier) and looks at the ring once more.
    #[inline]
    pub fn set_idle(&mut self, idle: bool) {
        // SYNC POINT: pairs with `ProducerOf::consumer_idle`; ordered by the fences named there.
        self.region
            .lines()
            .consumer
            .idle
            .store(u32::from(idle), Ordering::Relaxed);
    }

    /// Records freed so far.
    #[inline]
    pub const fn consumed(&self) -> u64 {
        self.next
    }

    /// Looked at once, with the first record.
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
            .field("told", &self.told)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}
