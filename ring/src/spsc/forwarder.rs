// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transfer of records into a ring behind a write-combined mapping, such as one across PCIe.
//!
//! The processor may deliver stores to such a mapping in any order. So the producer writes a copy
//! of the ring in ordinary memory, and the forwarder writes the same bytes to the mapping, at the
//! same positions. A store fence precedes the publication words, and another one follows them. The
//! copy has the consumer's counters of the mapped ring, so it accepts only what fits there. The
//! producer's code and its fast paths are those of any ring.
//!
//! Not about: the counters of the consumer, which it writes across the other mapping.

#![expect(unsafe_code, reason = "names raw shared memory")]

use core::fmt;

#[cfg(not(loom))]
use crate::error::LayoutError;
use crate::layout::{
    HEAD_MAX, LAYOUT, RING_DATA_BYTES, RING_SLOTS, RingRegion, body_end, body_start, next_lap,
};
use crate::shared_word::store_fence;
use crate::sync::Ordering;

/// The forwarder of a direction as the product lays it out.
pub type Forwarder = ForwarderOf<RING_SLOTS, RING_DATA_BYTES>;

/// Transfer from the copy of a ring to the ring itself. Dropping it does nothing.
pub struct ForwarderOf<const SLOTS: usize, const DATA: usize> {
    copy: RingRegion,
    mapped: RingRegion,
    /// Number of records forwarded.
    next: u64,
    /// Position after the last body forwarded.
    data: u64,
    /// Number of the lap that contains `next`.
    lap: u16,
}

// SAFETY: the pointers name shared memory that is not tied to a thread; the contract of `new` makes
// this the only writer of the mapped ring.
unsafe impl<const SLOTS: usize, const DATA: usize> Send for ForwarderOf<SLOTS, DATA> {}

#[cfg(not(loom))]
impl Forwarder {
    /// Returns the forwarder from the ring at `copy`, whose consumer writes its words to `credits`,
    /// to the ring at `mapped`.
    ///
    /// # Errors
    ///
    /// A region is too short or misaligned.
    ///
    /// # Safety
    ///
    /// Each of the three meets the contract of [`Producer::apart`](crate::Producer::apart), and
    /// no producer writes to `mapped`.
    pub unsafe fn new(
        copy: *mut u8,
        mapped: *mut u8,
        len: usize,
        credits: *mut u8,
    ) -> Result<Forwarder, LayoutError> {
        // SAFETY: the caller's contract is the one of `RingRegion::new`.
        let copy = unsafe { RingRegion::new(copy, len, credits) }?;
        // SAFETY: as above.
        let mapped = unsafe { RingRegion::new(mapped, len, credits) }?;
        Ok(ForwarderOf::over(copy, mapped))
    }
}

impl<const SLOTS: usize, const DATA: usize> ForwarderOf<SLOTS, DATA> {
    fn over(copy: RingRegion, mapped: RingRegion) -> Self {
        // Ordered by the first publication. SYNC POINT: pairs with `ConsumerOf::check_layout`.
        mapped.lines().producer.layout.store(LAYOUT, Ordering::Relaxed);
        ForwarderOf { copy, mapped, next: 0, data: 0, lap: 1 }
    }

    /// Forwards all records that were pushed since the last call, by the same thread or one that
    /// it is synchronised with. Returns whether there was one.
    pub fn forward(&mut self) -> bool {
        let first = self.next;
        let (mut lap, mut data) = (self.lap, self.data);
        let mut end = first;
        // At most one lap: the producer has no more slots.
        while end - first < SLOTS as u64 {
            let Some(word) = self.published(end, lap) else { break };
            data = self.write(end, word, data);
            end += 1;
            lap = lap_after(lap, end, SLOTS);
        }
        if end == first {
            return false;
        }
        // Heads and bodies arrive before any publication word.
        store_fence();
        while self.next != end {
            let word = self.copy.slot::<SLOTS>(self.next).word.load(Ordering::Relaxed);
            // SYNC POINT: pairs with `ConsumerOf::peek`; the fence above orders the write-combined
            // stores before this one.
            self.mapped.slot::<SLOTS>(self.next).word.store(word, Ordering::Release);
            self.next += 1;
            self.lap = lap_after(self.lap, self.next, SLOTS);
        }
        self.data = data;
        // The words leave the write-combining buffers now.
        store_fence();
        true
    }

    /// Whether the consumer requests its doorbell. Read after a forward and `publish_fence`.
    pub fn consumer_idle(&self) -> bool {
        // SYNC POINT: as in `ProducerOf::consumer_idle`.
        self.copy.credits().consumer.idle.load(Ordering::Relaxed) != 0
    }

    /// Returns the publication word of record number `index`, if the producer has pushed it.
    fn published(&self, index: u64, lap: u16) -> Option<u64> {
        // SYNC POINT: pairs with `ProducerOf::publish`, usually of this thread.
        let word = self.copy.slot::<SLOTS>(index).word.load(Ordering::Acquire);
        let [s0, s1, ..] = word.to_le_bytes();
        (u16::from_le_bytes([s0, s1]) == lap).then_some(word)
    }

    /// Writes head and body of a record; returns the position after the body, which begins at or
    /// after `data`.
    fn write(&self, index: u64, word: u64, data: u64) -> u64 {
        let [.., b0, b1, b2, b3] = word.to_le_bytes();
        let len = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        let (from, to) = (self.copy.slot::<SLOTS>(index), self.mapped.slot::<SLOTS>(index));
        from.head.with(|from| {
            to.head.with_mut(|to| {
                // SAFETY: the heads of two slots: HEAD_MAX bytes each, in different mappings.
                unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), HEAD_MAX) }
            });
        });
        // Only our own producer writes the copy, so the length is valid.
        if len == 0 || len > DATA / 4 {
            return data;
        }
        let start = body_start(data, len, DATA);
        self.copy.area.model_access::<DATA>(start, len, false);
        self.mapped.area.model_access::<DATA>(start, len, true);
        self.mapped
            .area
            .body::<DATA>(start, len)
            .copy_from(&self.copy.area.body::<DATA>(start, len));
        body_end(start, len)
    }
}

/// Returns the lap of record number `index`, whose predecessor belongs to `lap`.
fn lap_after(lap: u16, index: u64, slots: usize) -> u16 {
    if index % (slots as u64) == 0 { next_lap(lap) } else { lap }
}

impl<const SLOTS: usize, const DATA: usize> fmt::Debug for ForwarderOf<SLOTS, DATA> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("next", &self.next)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}
