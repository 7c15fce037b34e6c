// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The doorbell of an endpoint: one page in which peers mark the rings to poll, and in which the
//! owner publishes whether it sleeps.
//!
//! Not about: the wake-up of a sleeper, which needs the kernel. A doorbell is a hint: every peer
//! can write the page, so bits may be set or erased without cause. The owner bounds the effect by a
//! poll of idle rings, and a check of the clock, at intervals.

#![expect(unsafe_code, reason = "lays the bell over raw shared memory")]

use crate::layout::{BELL_WORDS, BellPage, LAYOUT};
use crate::sync::{Ordering, fence};
use core::sync::atomic::compiler_fence;

/// Bit of a published time, set if the owner has started one-sided operations since the previous
/// publication. Peers read it as a nanosecond of the time too.
const INITIATING: u64 = 1;

/// The owner's side of the doorbell, in the product's layout.
pub type Bell = BellOf<BELL_WORDS>;
/// A peer's side of the doorbell, in the product's layout.
pub type BellHandle = BellHandleOf<BELL_WORDS>;

/// Fence of a producer after a push, before it reads `consumer_idle` or `sleeping`. `asymmetric`:
/// the sleeper executes `membarrier`, which then orders this thread too; otherwise both sides
/// fence.
#[inline(always)]
pub fn publish_fence(asymmetric: bool) {
    if asymmetric {
        compiler_fence(Ordering::SeqCst);
    } else {
        // SYNC POINT: pairs with `sleeper_fence` (store buffer litmus test). Each side writes one
        // word and reads the other's: only a total order of the two fences forbids that both read
        // the old value (loom test `sleep_needs_both_fences`).
        fence(Ordering::SeqCst);
    }
}

/// Fence of a consumer after `set_idle(true)` or `set_sleeping(true)`, before its last poll of the
/// rings, where `membarrier` is not used.
#[inline]
pub fn sleeper_fence() {
    // SYNC POINT: pairs with `publish_fence`, whose comment gives the reason for SeqCst.
    fence(Ordering::SeqCst);
}

/// The owner's side of a doorbell.
#[derive(Debug)]
pub struct BellOf<const WORDS: usize> {
    pub(crate) page: *const BellPage<WORDS>,
}

// SAFETY: the page is shared memory made of atomics, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl<const WORDS: usize> Send for BellOf<WORDS> {}
// SAFETY: every method is one or more atomic accesses.
unsafe impl<const WORDS: usize> Sync for BellOf<WORDS> {}

impl<const WORDS: usize> BellOf<WORDS> {
    /// Returns the owner's side of the doorbell at `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `BELL_BYTES` bytes that stay mapped readable and
    /// writable while the value exists and were zeroed when created.
    pub unsafe fn new(base: *mut u8) -> Self {
        let bell = BellOf { page: base.cast::<BellPage<WORDS>>().cast_const() };
        // SYNC POINT: pairs with `BellHandleOf::compatible`, through the channel that carried the
        // page to the peer.
        bell.page().owner.layout.store(LAYOUT, Ordering::Relaxed);
        bell
    }

    #[inline(always)]
    fn page(&self) -> &BellPage<WORDS> {
        // SAFETY: the contract of `new`; any bytes are a valid page, and it is made of atomics.
        unsafe { &*self.page }
    }

    /// Whether a bit may be set: one load.
    #[inline]
    pub fn any(&self) -> bool {
        // `take` orders the access, if a bit is set.
        self.page().summary.bits.load(Ordering::Relaxed) != 0
    }

    /// Clears all set bits and calls `f` with each of them.
    pub fn take(&self, mut f: impl FnMut(usize)) {
        // SYNC POINT: pairs with the `fetch_or` of the summary in `BellHandleOf::ring`.
        let mut summary = self.page().summary.bits.swap(0, Ordering::AcqRel);
        while summary != 0 {
            let w = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            // A peer may set summary bits for words that do not exist.
            let Some(word) = self.page().words.get(w) else {
                break;
            };
            // SYNC POINT: pairs with the `fetch_or` of the word in `BellHandleOf::ring`: the record
            // was published before the bit.
            let mut bits = word.swap(0, Ordering::AcqRel);
            // SYNC POINT: pairs with `publish_fence`: a peer that still saw its bit set has
            // published before the polls that follow.
            fence(Ordering::SeqCst);
            while bits != 0 {
                f(w * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Publishes whether the owner is about to sleep. After `true` the owner runs `sleeper_fence`
    /// (or membarrier) and polls its rings once more before it sleeps.
    #[inline]
    pub fn set_sleeping(&self, sleeping: bool) {
        // SYNC POINT: pairs with `BellHandleOf::sleeping`; ordered by the fences named in this
        // file.
        self.page().owner.sleeping.store(u32::from(sleeping), Ordering::Relaxed);
    }

    /// Publishes the time of a poll. `is_initiating`: the owner has started one-sided operations
    /// since the previous publication.
    #[inline]
    pub fn set_polled(&self, time_ns: u64, is_initiating: bool) {
        // A hint, which orders nothing.
        let word = time_ns & !INITIATING | if is_initiating { INITIATING } else { 0 };
        self.page().polled.time_ns.store(word, Ordering::Relaxed);
    }

    /// Whether the owner last set `sleeping`, unless a peer overwrote the word.
    #[inline]
    pub fn is_sleeping(&self) -> bool {
        self.page().owner.sleeping.load(Ordering::Relaxed) != 0
    }
}

/// A peer's side of a doorbell.
#[derive(Debug)]
pub struct BellHandleOf<const WORDS: usize> {
    pub(crate) page: *const BellPage<WORDS>,
}

// SAFETY: the page is shared memory made of atomics, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl<const WORDS: usize> Send for BellHandleOf<WORDS> {}
// SAFETY: every method is one or more atomic accesses.
unsafe impl<const WORDS: usize> Sync for BellHandleOf<WORDS> {}

impl<const WORDS: usize> BellHandleOf<WORDS> {
    /// Returns a peer's side of the doorbell at `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `BELL_BYTES` bytes that stay mapped readable and
    /// writable while the value exists.
    pub const unsafe fn new(base: *mut u8) -> Self {
        BellHandleOf { page: base.cast::<BellPage<WORDS>>().cast_const() }
    }

    #[inline(always)]
    fn page(&self) -> &BellPage<WORDS> {
        // SAFETY: the contract of `new`; any bytes are a valid page, and it is made of atomics.
        unsafe { &*self.page }
    }

    /// Whether the owner uses our layout of the page.
    pub fn compatible(&self) -> bool {
        // SYNC POINT: pairs with `BellOf::new`, through the channel that carried the page.
        self.page().owner.layout.load(Ordering::Relaxed) == LAYOUT
    }

    /// Whether the owner sleeps and needs a wake-up through the kernel. Read after a push and
    /// `publish_fence`.
    #[inline]
    pub fn sleeping(&self) -> bool {
        // SYNC POINT: pairs with `BellOf::set_sleeping`; ordered by the fences named in this file.
        self.page().owner.sleeping.load(Ordering::Relaxed) != 0
    }

    /// Returns the time of a recent poll of the owner, in nanoseconds of its clock; 0 for none.
    #[inline]
    pub fn polled_ns(&self) -> u64 {
        self.page().polled.time_ns.load(Ordering::Relaxed)
    }

    /// Whether the owner started one-sided operations between its last two publications.
    #[inline]
    pub fn is_initiating(&self) -> bool {
        self.polled_ns() & INITIATING != 0
    }

    /// Sets a bit, counted modulo the size of the doorbell. Called after a push and
    /// `publish_fence`. Bits that are already set are not written.
    #[inline]
    pub fn ring(&self, bit: usize) {
        let w = bit / 64 % WORDS;
        let Some(word) = self.page().words.get(w) else {
            return;
        };
        let mask = 1 << (bit % 64);
        // SYNC POINT: pairs with the `swap` of the word in `BellOf::take`.
        if word.load(Ordering::Relaxed) & mask == 0 {
            word.fetch_or(mask, Ordering::AcqRel);
        }
        // Also needed when the bit was set: its setter may not have reached this point yet.
        let summary = &self.page().summary.bits;
        // SYNC POINT: pairs with the `swap` of the summary in `BellOf::take`.
        if summary.load(Ordering::Relaxed) & (1 << w) == 0 {
            summary.fetch_or(1 << w, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::{BELL_BITS, BELL_BYTES};

    #[repr(align(4096))]
    struct BellMemory([u8; BELL_BYTES]);

    #[test]
    fn bits_are_returned_once() {
        let mut page = Box::new(BellMemory([0; BELL_BYTES]));
        let base = page.0.as_mut_ptr();
        // SAFETY: the page is aligned, zeroed and outlives both.
        let bell = unsafe { Bell::new(base) };
        // SAFETY: as above.
        let handle = unsafe { BellHandle::new(base) };
        assert!(handle.compatible() && !bell.any());
        for bit in [0, 63, 64, 4095, BELL_BITS + 7, 63] {
            handle.ring(bit);
        }
        assert!(bell.any());
        let mut seen = Vec::new();
        bell.take(|b| seen.push(b));
        assert_eq!(seen, [0, 7, 63, 64, 4095]);
        bell.take(|_| panic!("taken twice"));
        assert!(!bell.any());
        bell.set_sleeping(true);
        assert!(handle.sleeping() && bell.is_sleeping());
        bell.set_sleeping(false);
        assert!(!handle.sleeping());
        assert_eq!(handle.polled_ns(), 0);
        bell.set_polled(7, false);
        assert_eq!((handle.polled_ns(), handle.is_initiating()), (6, false));
        bell.set_polled(6, true);
        assert_eq!((handle.polled_ns(), handle.is_initiating()), (7, true));
    }

    #[test]
    fn a_page_of_ones_is_bounded() {
        let mut page = Box::new(BellMemory([0xff; BELL_BYTES]));
        // SAFETY: the page is aligned and outlives the bell.
        let bell = unsafe { Bell::new(page.0.as_mut_ptr()) };
        let mut n = 0;
        bell.take(|b| {
            assert!(b < BELL_BITS);
            n += 1;
        });
        assert_eq!(n, BELL_BITS);
    }
}
