// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic processor instructions on aligned user memory.
//!
//! Not about: data types, operators, larger or misaligned operands, which need a lock. Every
//! function returns `None` if the memory is too short for the word or not aligned to it.

#![expect(unsafe_code, reason = "makes atomics of raw user memory")]

use crate::copy::Mem;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A word that the processor updates atomically: `u8`, `u16`, `u32` or `u64`.
pub trait AtomicPrimitive: Copy + Eq + sealed::Sealed {
    /// The atomic of that width.
    #[doc(hidden)]
    type Atomic;
    #[doc(hidden)]
    fn load(a: &Self::Atomic) -> Self;
    #[doc(hidden)]
    fn store(a: &Self::Atomic, v: Self);
    #[doc(hidden)]
    fn swap(a: &Self::Atomic, v: Self) -> Self;
    #[doc(hidden)]
    fn add(a: &Self::Atomic, v: Self) -> Self;
    #[doc(hidden)]
    fn and(a: &Self::Atomic, v: Self) -> Self;
    #[doc(hidden)]
    fn or(a: &Self::Atomic, v: Self) -> Self;
    #[doc(hidden)]
    fn xor(a: &Self::Atomic, v: Self) -> Self;
    #[doc(hidden)]
    fn exchange(a: &Self::Atomic, current: Self, new: Self) -> Result<Self, Self>;
    #[doc(hidden)]
    fn exchange_weak(a: &Self::Atomic, current: Self, new: Self) -> Result<Self, Self>;
}

mod sealed {
    pub trait Sealed {}
}

// SYNC POINT: the accesses below pair with each other, in any process, and with the application's
// atomics on the same word. A load (acquire) makes visible everything written before the store
// (release) of the loaded value.
macro_rules! word {
    ($t:ty, $a:ty) => {
        impl sealed::Sealed for $t {}
        // An atomic of this width has the size and validity of the word.
        const _: () =
            assert!(size_of::<$a>() == size_of::<$t>() && align_of::<$a>() == size_of::<$t>());
        impl AtomicPrimitive for $t {
            type Atomic = $a;
            #[inline(always)]
            fn load(a: &$a) -> $t {
                a.load(Ordering::Acquire)
            }
            #[inline(always)]
            fn store(a: &$a, v: $t) {
                a.store(v, Ordering::Release);
            }
            #[inline(always)]
            fn swap(a: &$a, v: $t) -> $t {
                a.swap(v, Ordering::AcqRel)
            }
            #[inline(always)]
            fn add(a: &$a, v: $t) -> $t {
                a.fetch_add(v, Ordering::AcqRel)
            }
            #[inline(always)]
            fn and(a: &$a, v: $t) -> $t {
                a.fetch_and(v, Ordering::AcqRel)
            }
            #[inline(always)]
            fn or(a: &$a, v: $t) -> $t {
                a.fetch_or(v, Ordering::AcqRel)
            }
            #[inline(always)]
            fn xor(a: &$a, v: $t) -> $t {
                a.fetch_xor(v, Ordering::AcqRel)
            }
            #[inline(always)]
            fn exchange(a: &$a, current: $t, new: $t) -> Result<$t, $t> {
                a.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
            }
            #[inline(always)]
            fn exchange_weak(a: &$a, current: $t, new: $t) -> Result<$t, $t> {
                a.compare_exchange_weak(current, new, Ordering::AcqRel, Ordering::Acquire)
            }
        }
    };
}

word!(u8, AtomicU8);
word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// Returns the atomic at the beginning of `target`.
#[inline(always)]
fn atomic<T: AtomicPrimitive>(target: &Mem) -> Option<&T::Atomic> {
    if target.len() < size_of::<T>() || target.addr() % size_of::<T>() != 0 {
        return None;
    }
    // SAFETY: length and alignment were checked above for an atomic, which has the size and
    // alignment of its word (asserted in `word!`); readable and writable while the Mem is used, by
    // the contract of `Mem::new`.
    Some(unsafe { &*target.as_ptr().cast::<T::Atomic>() })
}

/// Replaces the word by `f` of its value; returns the old value. `f` may run more than once.
#[inline]
pub fn update<T: AtomicPrimitive>(target: &Mem, mut f: impl FnMut(T) -> T) -> Option<T> {
    let a = atomic::<T>(target)?;
    let mut old = T::load(a);
    loop {
        match T::exchange_weak(a, old, f(old)) {
            Ok(was) => return Some(was),
            Err(now) => old = now,
        }
    }
}

/// Reads the word.
#[inline]
pub fn load<T: AtomicPrimitive>(target: &Mem) -> Option<T> {
    Some(T::load(atomic::<T>(target)?))
}

/// Writes the word.
#[inline]
pub fn store<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<()> {
    T::store(atomic::<T>(target)?, v);
    Some(())
}

/// Writes the word; returns the old value.
#[inline]
pub fn swap<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<T> {
    Some(T::swap(atomic::<T>(target)?, v))
}

/// Adds to the word with wrapping; returns the old value.
#[inline]
pub fn fetch_add<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<T> {
    Some(T::add(atomic::<T>(target)?, v))
}

/// Bitwise AND on the word; returns the old value.
#[inline]
pub fn fetch_and<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<T> {
    Some(T::and(atomic::<T>(target)?, v))
}

/// Bitwise OR on the word; returns the old value.
#[inline]
pub fn fetch_or<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<T> {
    Some(T::or(atomic::<T>(target)?, v))
}

/// Bitwise XOR on the word; returns the old value.
#[inline]
pub fn fetch_xor<T: AtomicPrimitive>(target: &Mem, v: T) -> Option<T> {
    Some(T::xor(atomic::<T>(target)?, v))
}

/// Writes `new` if the word equals `current`. Returns `Ok` with the old value on success, otherwise
/// `Err` with the present value.
#[inline]
pub fn compare_exchange<T: AtomicPrimitive>(
    target: &Mem,
    current: T,
    new: T,
) -> Option<Result<T, T>> {
    Some(T::exchange(atomic::<T>(target)?, current, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// # Safety
    ///
    /// The contract of `Mem::new` holds for the words behind `words`.
    unsafe fn mem(words: &mut [u64; 2]) -> Mem {
        // SAFETY: the caller's contract.
        unsafe { Mem::new(words.as_mut_ptr().cast(), 16) }
    }

    fn each<T: AtomicPrimitive + From<u8> + core::fmt::Debug>() {
        let mut words = [0u64; 2];
        // SAFETY: the words outlive the Mem and are not used otherwise meanwhile.
        let m = unsafe { mem(&mut words) };
        let n = T::from;
        assert_eq!(store(&m, n(12)), Some(()));
        assert_eq!(fetch_add(&m, n(3)), Some(n(12)));
        assert_eq!(fetch_and(&m, n(9)), Some(n(15)));
        assert_eq!(fetch_or(&m, n(6)), Some(n(9)));
        assert_eq!(fetch_xor(&m, n(1)), Some(n(15)));
        assert_eq!(swap(&m, n(7)), Some(n(14)));
        assert_eq!(compare_exchange(&m, n(8), n(1)), Some(Err(n(7))));
        assert_eq!(compare_exchange(&m, n(7), n(1)), Some(Ok(n(7))));
        assert_eq!(update(&m, |old: T| if old == n(1) { n(40) } else { old }), Some(n(1)));
        assert_eq!(load(&m), Some(n(40)));
        assert_eq!(load::<T>(&m.sub(0, size_of::<T>() - 1).unwrap()), None);
        if size_of::<T>() > 1 {
            assert_eq!(load::<T>(&m.sub(1, 15).unwrap()), None);
        }
        assert_eq!(load::<T>(&m.sub(size_of::<T>(), size_of::<T>()).unwrap()), Some(n(0)));
    }

    #[test]
    fn every_width() {
        each::<u8>();
        each::<u16>();
        each::<u32>();
        each::<u64>();
    }

    #[test]
    fn threads_lose_no_update() {
        let mut words = [0u64; 2];
        // SAFETY: the words outlive the threads and are not used otherwise meanwhile.
        let m = unsafe { mem(&mut words) };
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| (0..rounds).for_each(|_| assert!(update(&m, |v: u64| v + 1).is_some())));
                s.spawn(|| (0..rounds).for_each(|_| assert!(fetch_add(&m, 1u64).is_some())));
            }
        });
        assert_eq!(load::<u64>(&m), Some(4 * rounds));
    }
}
