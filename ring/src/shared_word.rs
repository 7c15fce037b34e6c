// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Single words of shared memory that several processes read and change.
//!
//! Not about: the meaning of the words. The plain names order memory: loads acquire, stores
//! release, read-modify-write operations do both. The users of the words name the pairs.

#![expect(unsafe_code, reason = "makes atomics of words of shared memory")]

use core::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Orders all earlier memory accesses of this thread before all later ones, for all processors.
#[inline]
pub fn full_fence() {
    // SYNC POINT: pairs with itself (store buffer litmus test). If two threads each store one word,
    // run this fence and load the other word, at least one sees the other's store. Only a total
    // order of the fences guarantees that.
    //
    // x86-64: a locked instruction orders loads and stores of ordinary memory like MFENCE, which
    // also waits for other kinds of access. The operand lies on our own stack, so this core already
    // owns its line.
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: the stack below the stack pointer is mapped, and OR with 0 leaves the word unchanged.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    crate::sync::fence(Ordering::SeqCst);
}

/// Orders all earlier stores of this thread before all later ones, also stores to write-combined
/// memory, and empties the buffers that combine them.
#[inline]
pub fn store_fence() {
    // SYNC POINT: pairs with the Acquire load of the word that is stored after the fence. For
    // ordinary memory the Release store of that word is sufficient.
    crate::sync::fence(Ordering::Release);
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: SSE, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

macro_rules! word {
    ($name:ident, $int:ty, $atomic:ty, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug)]
        pub struct $name(NonNull<$atomic>);

        // SAFETY: the word is an atomic in memory that no thread owns.
        unsafe impl Send for $name {}
        // SAFETY: every method is one atomic access.
        unsafe impl Sync for $name {}

        impl $name {
            /// Returns a view of the word at `at`.
            ///
            /// # Safety
            ///
            /// `at` is aligned for the word. The word stays mapped readable, and writable for the
            /// methods that write, until the last use of this value and its copies.
            pub const unsafe fn new(at: NonNull<u8>) -> $name {
                $name(at.cast())
            }

            #[inline(always)]
            fn atomic(&self) -> &$atomic {
                // SAFETY: aligned and mapped by the contract of `new`; any bits are a valid value.
                unsafe { self.0.as_ref() }
            }

            /// Returns its address, on which the kernel can let threads sleep.
            #[inline]
            pub fn as_ptr(&self) -> *mut $int {
                self.0.as_ptr().cast()
            }

            /// Returns its value. SYNC POINT: acquires; pairs with every method that stores.
            #[inline]
            pub fn get(&self) -> $int {
                self.atomic().load(Ordering::Acquire)
            }

            /// Returns its value without ordering.
            #[inline]
            pub fn get_relaxed(&self) -> $int {
                self.atomic().load(Ordering::Relaxed)
            }

            /// Stores a value. SYNC POINT: releases; pairs with `get`.
            #[inline]
            pub fn set(&self, n: $int) {
                self.atomic().store(n, Ordering::Release);
            }

            /// Stores a value without ordering.
            #[inline]
            pub fn set_relaxed(&self, n: $int) {
                self.atomic().store(n, Ordering::Relaxed);
            }

            /// Adds with wrapping and returns the old value. SYNC POINT: pairs with every method
            /// that orders.
            #[inline]
            pub fn add(&self, n: $int) -> $int {
                self.atomic().fetch_add(n, Ordering::AcqRel)
            }

            /// Subtracts with wrapping and returns the old value. SYNC POINT: pairs with every
            /// method that orders.
            #[inline]
            pub fn sub(&self, n: $int) -> $int {
                self.atomic().fetch_sub(n, Ordering::AcqRel)
            }

            /// Stores a value and returns the old one. SYNC POINT: pairs with every method that
            /// orders.
            #[inline]
            pub fn swap(&self, n: $int) -> $int {
                self.atomic().swap(n, Ordering::AcqRel)
            }

            /// Compare-and-exchange: stores `new` if the word equals `from`; returns whether it
            /// did. SYNC POINT: pairs with every method that orders.
            #[inline]
            pub fn compare_exchange(&self, from: $int, new: $int) -> bool {
                self.atomic()
                    .compare_exchange(from, new, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            }
        }
    };
}

word!(SharedU32, u32, AtomicU32, "A word of 32 bits.");
word!(SharedU64, u64, AtomicU64, "A word of 64 bits.");

impl SharedU32 {
    /// Prefetches its cache line for writing: a hint to the processor.
    #[inline]
    pub(crate) fn prefetch_for_write(&self) {
        crate::copy::prefetch_for_write(self.atomic());
    }
}

/// An array of 64-bit words.
#[derive(Clone, Copy, Debug)]
pub struct SharedWords {
    base: NonNull<u8>,
    count: usize,
}

// SAFETY: only an address and a count; the contract of `SharedWords::new` permits the accesses.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Returns a view of `count` words from `base` on.
    ///
    /// # Safety
    ///
    /// Each of the words satisfies the contract of [`SharedU64::new`].
    pub const unsafe fn new(base: NonNull<u8>, count: usize) -> SharedWords {
        SharedWords { base, count }
    }

    /// Returns word `i`, or `None` beyond the end.
    #[inline]
    pub fn get(&self, i: usize) -> Option<SharedU64> {
        (i < self.count).then(|| {
            let at = self.base.map_addr(|at| at.saturating_add(8 * i));
            // SAFETY: i < count, so the contract of `new` covers the word.
            unsafe { SharedU64::new(at) }
        })
    }

    /// Returns a cursor that stores `count` records from word `i` on, or `None` beyond the end. The
    /// first one is the place of a record that it keeps.
    pub fn records(&self, i: usize, count: usize) -> Option<RecordCursor> {
        let end = count.checked_mul(RECORD_WORDS)?.checked_add(i)?;
        if count < 2 || end > self.count {
            return None;
        }
        let word = |n: usize| self.base.map_addr(|at| at.saturating_add(8 * n));
        Some(RecordCursor {
            next: word(i + RECORD_WORDS),
            last: word(end - RECORD_WORDS),
            keeper: word(i),
            keeps: false,
            arrivals_end: NonNull::dangling(),
            sends_end: NonNull::dangling(),
        })
    }
}

/// Words of a record: two records fill a cache line.
const RECORD_WORDS: usize = 4;
/// Bytes of a record.
const RECORD: usize = 8 * RECORD_WORDS;
/// Bytes of a short record.
const SHORT: usize = RECORD / 2;

/// First word of a record that a cursor keeps.
pub const KEPT: u64 = 1;

/// Bit of the first word of each short record. Other records have none with it.
pub const SHORT_BIT: u64 = 1 << 63;

/// Kind of a run: records in succession that share what the first one says.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Run of arrivals.
    Arrivals,
    /// Run of sends.
    Sends,
}

/// Position in an array of words, from which on one writer stores records of four words, and in
/// runs also short ones of two words.
///
/// Two short records lie in the place of one record. The first word behind the last record is 0, so
/// that a reader knows where the records of a run end.
///
/// It can keep one record in a place of its own, whose cache line is always present, until the
/// first word is known.
///
/// A cursor is as long usable as the words of its array.
#[derive(Debug)]
pub struct RecordCursor {
    /// Address of the next record, or of the second half of a place.
    next: NonNull<u8>,
    /// Address of the last record, which is left to a kept one.
    last: NonNull<u8>,
    keeper: NonNull<u8>,
    keeps: bool,
    /// Addresses where the run of each kind ends, at most `last`; no addresses of the array where
    /// there is no run.
    arrivals_end: NonNull<u8>,
    sends_end: NonNull<u8>,
}

// SAFETY: only addresses and a flag; the contract of `SharedWords::new` permits the accesses.
unsafe impl Send for RecordCursor {}
// SAFETY: as above.
unsafe impl Sync for RecordCursor {}

impl RecordCursor {
    /// Returns a cursor without room.
    #[must_use]
    pub const fn full() -> RecordCursor {
        let nowhere = NonNull::dangling();
        let (next, last, keeper) = (nowhere, nowhere, nowhere);
        let (arrivals_end, sends_end) = (nowhere, nowhere);
        RecordCursor { next, last, keeper, keeps: false, arrivals_end, sends_end }
    }

    /// Whether there is no room.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.next >= self.last
    }

    /// Returns the address of the next record, which changes with each stored one.
    #[must_use]
    pub fn place(&self) -> usize {
        self.next.addr().get()
    }

    /// Whether a record is kept.
    #[inline]
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Stores the next record, and returns whether there was room. The first word, which is not 0,
    /// is 0 while the others change. Prefetches the line `ahead` bytes on for writing.
    ///
    /// SYNC POINT: each store releases the ones before it. A reader that acquires a word of this
    /// record therefore finds 0 or the new first word afterwards.
    #[inline]
    pub fn put(&mut self, record: [u64; RECORD_WORDS], ahead: usize) -> bool {
        self.put_before(self.last, record, ahead)
    }

    /// Begins a run with room for `count` short records, fewer at the end. Another record takes the
    /// room of two. The run before ends.
    pub fn begin_run(&mut self, run: Run, count: usize) {
        self.end_runs();
        let end = self.next.map_addr(|at| at.saturating_add(SHORT.saturating_mul(count)));
        *self.run_end(run) = end.min(self.last);
    }

    /// Whether a run has room.
    #[inline]
    #[must_use]
    pub fn is_in_run(&self, run: Run) -> bool {
        self.next < self.end_of(run)
    }

    /// Ends the run.
    #[inline]
    pub fn end_runs(&mut self) {
        (self.arrivals_end, self.sends_end) = (NonNull::dangling(), NonNull::dangling());
    }

    #[inline(always)]
    fn end_of(&self, run: Run) -> NonNull<u8> {
        match run {
            Run::Arrivals => self.arrivals_end,
            Run::Sends => self.sends_end,
        }
    }

    #[inline(always)]
    fn run_end(&mut self, run: Run) -> &mut NonNull<u8> {
        match run {
            Run::Arrivals => &mut self.arrivals_end,
            Run::Sends => &mut self.sends_end,
        }
    }

    /// Stores the next record in the same way, and returns whether the run has room for it.
    pub fn put_in_run(&mut self, run: Run, record: [u64; RECORD_WORDS], ahead: usize) -> bool {
        self.put_before(self.end_of(run), record, ahead)
    }

    /// Stores a short record in the same way. Its first word gets [`SHORT_BIT`].
    #[inline(always)]
    pub fn put_short(&mut self, run: Run, [first, second]: [u64; 2], ahead: usize) -> bool {
        let at = self.next;
        if at >= self.end_of(run) {
            return false;
        }
        crate::copy::prefetch_for_write(at.as_ptr().wrapping_add(ahead));
        // SAFETY: `SharedWords::records` has found whole records up to `last` inside. A run ends at
        // `last` or before it, so the words of this half and of the next one are inside. The first
        // word is 0 since the record before was stored.
        let words = [0, 1, 2].map(|n| unsafe { word(at, n) });
        words[2].set_relaxed(0);
        words[1].set(second);
        words[0].set(first | SHORT_BIT);
        // SAFETY: as above.
        self.next = unsafe { at.add(SHORT) };
        true
    }

    /// Returns the address of the next record of four words: the first half of a place.
    #[inline(always)]
    fn place_of_record(&self) -> NonNull<u8> {
        let half = self.next.addr().get().wrapping_sub(self.keeper.addr().get()) % RECORD;
        self.next.map_addr(|at| at.saturating_add(half))
    }

    /// Stores the next record, if it begins before `end`, an address of this cursor.
    #[inline(always)]
    fn put_before(&mut self, end: NonNull<u8>, record: [u64; RECORD_WORDS], ahead: usize) -> bool {
        let at = self.place_of_record();
        if at >= end {
            return false;
        }
        crate::copy::prefetch_for_write(at.as_ptr().wrapping_add(ahead));
        // SAFETY: `SharedWords::records` has found whole records up to `last` inside, and `end` is
        // `last` or before it. So the record ends at `last` or before.
        let next = unsafe { at.add(RECORD) };
        // SAFETY: as above; there is a record at `last`.
        unsafe { word(next, 0) }.set_relaxed(0);
        // SAFETY: as above.
        unsafe { store(at, record) };
        self.next = next;
        true
    }

    /// Keeps a record whose first word is not known yet, and returns whether there was room for it.
    /// A record that is kept already is replaced.
    #[inline]
    pub fn keep(&mut self, [second, third, fourth]: [u64; RECORD_WORDS - 1]) -> bool {
        if self.is_full() {
            return false;
        }
        // SAFETY: a cursor with room has its keeper inside, as `SharedWords::records` has found.
        unsafe { store(self.keeper, [KEPT, second, third, fourth]) };
        self.keeps = true;
        true
    }

    /// Stores the kept record with this first word as the next record, which may be the last one.
    #[inline]
    pub fn put_kept(&mut self, first: u64) {
        let at = self.place_of_record();
        if !core::mem::take(&mut self.keeps) || at > self.last {
            return;
        }
        // SAFETY: a cursor that keeps a record had room for it.
        let [kept, second, third, fourth] = [0, 1, 2, 3].map(|n| unsafe { word(self.keeper, n) });
        let record = [first, second.get_relaxed(), third.get_relaxed(), fourth.get_relaxed()];
        // SAFETY: `SharedWords::records` has found the last record inside, which ends at the end of
        // the array or before.
        let next = unsafe { at.add(RECORD) };
        if at < self.last {
            // SAFETY: there is a record at `last`.
            unsafe { word(next, 0) }.set_relaxed(0);
        }
        // SAFETY: as above.
        unsafe { store(at, record) };
        kept.set(0);
        self.next = next;
    }
}

/// Returns word `n` of the record at `at`.
///
/// # Safety
///
/// The contract of [`SharedWords::new`] covers the record, and `n` is below [`RECORD_WORDS`].
#[inline(always)]
unsafe fn word(at: NonNull<u8>, n: usize) -> SharedU64 {
    // SAFETY: the word is inside of the record.
    let at = unsafe { at.add(8 * n) };
    // SAFETY: by the contract of this function.
    unsafe { SharedU64::new(at) }
}

/// Stores the record at `at`, the first word last.
///
/// # Safety
///
/// The contract of [`SharedWords::new`] covers the record.
#[inline(always)]
unsafe fn store(at: NonNull<u8>, [first, second, third, fourth]: [u64; RECORD_WORDS]) {
    // SAFETY: by the contract of this function.
    let words = [0, 1, 2, 3].map(|n| unsafe { word(at, n) });
    words[0].set_relaxed(0);
    words[1].set(second);
    words[2].set(third);
    words[3].set(fourth);
    words[0].set(first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_their_last_value() {
        let mut memory = [0u64; 2];
        let at = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the array outlives the words, is aligned to 8, and is not used otherwise
        // meanwhile.
        let wide = unsafe { SharedU64::new(at) };
        // SAFETY: as above; eight bytes on is within the array.
        let narrow = unsafe { SharedU32::new(at.map_addr(|at| at.saturating_add(8))) };
        wide.set(u64::MAX);
        assert_eq!((wide.add(2), wide.sub(1), wide.swap(7), wide.get()), (u64::MAX, 1, 0, 7));
        assert!(narrow.compare_exchange(0, 3) && !narrow.compare_exchange(0, 4));
        narrow.set_relaxed(narrow.get_relaxed() + 1);
        full_fence();
        assert_eq!(narrow.get(), 4);
        assert_eq!(narrow.as_ptr().addr() - wide.as_ptr().addr(), 8);
    }

    #[test]
    fn records_are_stored_as_far_as_there_is_room() {
        let mut memory = [7u64; 18];
        let count = memory.len();
        let at = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the array outlives the words, and is not used otherwise meanwhile.
        let words = unsafe { SharedWords::new(at, count) };
        assert!(words.records(0, 5).is_none() && words.records(1, usize::MAX).is_none());
        assert!(words.records(0, 1).is_none());
        let now = || (0..count).filter_map(|i| Some(words.get(i)?.get())).collect::<Vec<u64>>();
        let mut cursor = words.records(1, 4).unwrap();
        assert!(cursor.put([1, 2, 3, 4], 1000) && cursor.keep([6, 7, 8]) && cursor.keeps());
        assert_eq!(now()[1..9], [KEPT, 6, 7, 8, 1, 2, 3, 4]);
        assert!(cursor.put([9; 4], 0) && !cursor.put([10; 4], 0) && !cursor.keep([10; 3]));
        cursor.put_kept(5);
        cursor.put_kept(11);
        cursor.begin_run(Run::Sends, 1);
        assert!(!cursor.put_in_run(Run::Sends, [12; 4], 0), "no room");
        assert!(!cursor.put_short(Run::Sends, [12; 2], 0) && !cursor.is_in_run(Run::Sends));
        assert_eq!(now()[1..], [0, 6, 7, 8, 1, 2, 3, 4, 9, 9, 9, 9, 5, 6, 7, 8, 7]);
    }
    #[test]
    fn a_run_has_room_for_as_many_records_as_it_began_with() {
        let mut memory = [0u64; 4 * 8];
        let count = memory.len();
        let at = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the array outlives the words, and is not used otherwise meanwhile.
        let words = unsafe { SharedWords::new(at, count) };
        let mut cursor = words.records(0, 8).unwrap();
        assert!(!cursor.put_in_run(Run::Sends, [1; 4], 0));
        cursor.begin_run(Run::Sends, 3);
        let mut put = |run| cursor.put_in_run(run, [1; 4], 0);
        assert_eq!(
            [Run::Arrivals, Run::Sends, Run::Sends, Run::Sends].map(&mut put),
            [false, true, true, false]
        );
        cursor.begin_run(Run::Sends, 2);
        cursor.begin_run(Run::Arrivals, usize::MAX / 64);
        let mut put = |run| cursor.put_in_run(run, [1; 4], 0);
        assert!(!put(Run::Sends), "the run before has ended");
        assert_eq!((0..9).filter(|_| put(Run::Arrivals)).count(), 4);
        assert!(cursor.is_full());
        assert!(!RecordCursor::full().put_in_run(Run::Arrivals, [1; 4], 0));
    }

    #[test]
    fn two_short_records_have_the_place_of_one() {
        let mut memory = [7u64; 4 * 5 + 1];
        let count = memory.len();
        let at = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the array outlives the words, and is not used otherwise meanwhile.
        let words = unsafe { SharedWords::new(at, count) };
        let now = || (5..count).filter_map(|i| Some(words.get(i)?.get())).collect::<Vec<u64>>();
        let mut cursor = words.records(1, 5).unwrap();
        cursor.begin_run(Run::Arrivals, 5);
        assert!(!cursor.put_short(Run::Sends, [1, 2], 0));
        assert!(cursor.put_short(Run::Arrivals, [1, 2], 0));
        let first = SHORT_BIT | 1;
        assert_eq!(now()[..5], [first, 2, 0, 7, 7]);
        assert!(cursor.put_short(Run::Arrivals, [1, 3], 0));
        assert_eq!(now()[..6], [first, 2, first, 3, 0, 7]);
        assert!(cursor.put_short(Run::Arrivals, [1, 4], 0) && cursor.put([9; 4], 0));
        assert_eq!(now(), [first, 2, first, 3, first, 4, 0, 7, 9, 9, 9, 9, 0, 7, 7, 7]);
        assert!(cursor.is_full() && !cursor.put_short(Run::Arrivals, [1, 5], 0));
        let mut cursor = words.records(1, 5).unwrap();
        assert!(cursor.put([8; 4], 0) && cursor.put([8; 4], 0));
        cursor.begin_run(Run::Sends, usize::MAX);
        assert!(cursor.put_short(Run::Sends, [1, 2], 0) && cursor.keep([6; 3]));
        cursor.put_kept(5);
        assert_eq!(now()[8..], [first, 2, 0, 9, 5, 6, 6, 6]);
    }
}
