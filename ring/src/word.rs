// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Single words of shared memory that several processes read and change.
//!
//! Not about: what they mean. The plain names order: a value that is read brings with it what was written before it
//! was stored; read-modify-writes do both. Pairs are named where the words are used.

#![expect(unsafe_code, reason = "makes atomics of words of shared memory")]

use core::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Puts every access of this thread before it in front of every access after it, as all processors see them.
#[inline]
pub fn full_fence() {
    // SYNC POINT: pairs with itself: of two threads that each store a word, run this, and load the other's word, at
    // least one sees the other's store. Only a total order of the fences gives that.
    //
    // x86-64: a locked instruction orders loads and stores of ordinary memory just as MFENCE does, which waits for more
    // than that. It is on a word of our own stack, since that line is ours already.
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: adds no bit to a word below the stack pointer, where the program's stack is mapped: it stays what it was.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    crate::sync::fence(Ordering::SeqCst);
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
            /// The word at `at`.
            ///
            /// # Safety
            ///
            /// `at` is aligned for the word, which stays mapped readable (and writable, for those methods that write)
            /// until the last use of this value and its copies.
            pub const unsafe fn new(at: NonNull<u8>) -> $name {
                $name(at.cast())
            }

            #[inline(always)]
            fn atomic(&self) -> &$atomic {
                // SAFETY: aligned and mapped by the contract of `new`; any bits are a valid value.
                unsafe { self.0.as_ref() }
            }

            /// Its address, for the kernel to sleep on.
            #[inline]
            pub fn as_ptr(&self) -> *mut $int {
                self.0.as_ptr().cast()
            }

            /// Its value. SYNC POINT: acquires; pairs with every method that stores.
            #[inline]
            pub fn get(&self) -> $int {
                self.atomic().load(Ordering::Acquire)
            }

            /// Its value, ordering nothing.
            #[inline]
            pub fn get_relaxed(&self) -> $int {
                self.atomic().load(Ordering::Relaxed)
            }

            /// Stores. SYNC POINT: releases; pairs with `get`.
            #[inline]
            pub fn set(&self, n: $int) {
                self.atomic().store(n, Ordering::Release);
            }

            /// Stores, ordering nothing.
            #[inline]
            pub fn set_relaxed(&self, n: $int) {
                self.atomic().store(n, Ordering::Relaxed);
            }

            /// Adds, wrapping; returns what it was. SYNC POINT: pairs with every method that orders.
            #[inline]
            pub fn add(&self, n: $int) -> $int {
                self.atomic().fetch_add(n, Ordering::AcqRel)
            }

            /// Subtracts, wrapping; returns what it was. SYNC POINT: pairs with every method that orders.
            #[inline]
            pub fn sub(&self, n: $int) -> $int {
                self.atomic().fetch_sub(n, Ordering::AcqRel)
            }

            /// Stores and returns what it was. SYNC POINT: pairs with every method that orders.
            #[inline]
            pub fn swap(&self, n: $int) -> $int {
                self.atomic().swap(n, Ordering::AcqRel)
            }

            /// Stores `new` if it is `from`; whether it was. SYNC POINT: pairs with every method that orders.
            #[inline]
            pub fn change(&self, from: $int, new: $int) -> bool {
                self.atomic()
                    .compare_exchange(from, new, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            }
        }
    };
}

word!(Word32, u32, AtomicU32, "A word of 32 bits.");
word!(Word64, u64, AtomicU64, "A word of 64 bits.");

impl Word32 {
    /// Asks the processor for its line, to be written soon: a hint.
    #[inline]
    pub(crate) fn will_write(&self) {
        crate::copy::will_write(self.atomic());
    }
}

/// An array of words.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    base: NonNull<u8>,
    count: usize,
}

// SAFETY: a place and a number; what may be done there is the contract of `Words::new`.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// `count` words from `base` on.
    ///
    /// # Safety
    ///
    /// As [`Word64::new`], for each of them.
    pub const unsafe fn new(base: NonNull<u8>, count: usize) -> Words {
        Words { base, count }
    }

    /// One of them, if there are so many.
    #[inline]
    pub fn get(&self, i: usize) -> Option<Word64> {
        (i < self.count).then(|| {
            let at = self.base.map_addr(|at| at.saturating_add(8 * i));
            // SAFETY: one of the words of the contract of `new`.
            unsafe { Word64::new(at) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_what_was_written() {
        let mut memory = [0u64; 2];
        let at = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: the array outlives the words, is aligned to 8, and is not used otherwise meanwhile.
        let wide = unsafe { Word64::new(at) };
        // SAFETY: as above; eight bytes on is within the array.
        let narrow = unsafe { Word32::new(at.map_addr(|at| at.saturating_add(8))) };
        wide.set(u64::MAX);
        assert_eq!(
            (wide.add(2), wide.sub(1), wide.swap(7), wide.get()),
            (u64::MAX, 1, 0, 7)
        );
        assert!(narrow.change(0, 3) && !narrow.change(0, 4));
        narrow.set_relaxed(narrow.get_relaxed() + 1);
        full_fence();
        assert_eq!(narrow.get(), 4);
        assert_eq!(narrow.as_ptr().addr() - wide.as_ptr().addr(), 8);
    }
}
