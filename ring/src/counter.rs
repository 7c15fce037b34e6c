// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Process-local flags and counters for modules that may not use atomics directly.
//!
//! Not about: shared memory. The plain names order memory: loads acquire, stores release, and they
//! pair with each other on the same object. The `_relaxed` names do not order.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A flag that any thread may read and change.
#[derive(Debug, Default)]
pub struct AtomicFlag(AtomicBool);

impl AtomicFlag {
    /// Returns a flag with the initial value `on`.
    pub const fn new(on: bool) -> AtomicFlag {
        AtomicFlag(AtomicBool::new(on))
    }

    /// Returns its value. SYNC POINT: pairs with `AtomicFlag::set` and `AtomicFlag::swap`.
    #[inline]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns its value without ordering.
    #[inline]
    pub fn get_relaxed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stores a value. SYNC POINT: pairs with `AtomicFlag::get` and `AtomicFlag::swap`.
    #[inline]
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Release);
    }

    /// Stores a value and returns the old one. SYNC POINT: pairs with every other method that
    /// orders.
    #[inline]
    pub fn swap(&self, on: bool) -> bool {
        self.0.swap(on, Ordering::AcqRel)
    }
}

/// A wrapping counter that any thread may read and change.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

impl AtomicCounter {
    /// Returns a counter with the initial value `n`.
    pub const fn new(n: u64) -> AtomicCounter {
        AtomicCounter(AtomicU64::new(n))
    }

    /// Returns its value. SYNC POINT: pairs with `AtomicCounter::{set, add, sub, swap, max}`.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns its value without ordering.
    #[inline]
    pub fn get_relaxed(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Stores a value. SYNC POINT: pairs with `AtomicCounter::get`.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }

    /// Stores a value without ordering.
    #[inline]
    pub fn set_relaxed(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds and returns the old value. SYNC POINT: pairs with `AtomicCounter::get`.
    #[inline]
    pub fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::AcqRel)
    }

    /// Adds without ordering and returns the old value.
    #[inline]
    pub fn add_relaxed(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Subtracts and returns the old value. SYNC POINT: pairs with `AtomicCounter::get`.
    #[inline]
    pub fn sub(&self, n: u64) -> u64 {
        self.0.fetch_sub(n, Ordering::AcqRel)
    }

    /// Stores a value and returns the old one. SYNC POINT: pairs with every other method that
    /// orders.
    #[inline]
    pub fn swap(&self, n: u64) -> u64 {
        self.0.swap(n, Ordering::AcqRel)
    }

    /// Raises it to at least `n` and returns the old value. SYNC POINT: pairs with
    /// `AtomicCounter::get`.
    #[inline]
    pub fn max(&self, n: u64) -> u64 {
        self.0.fetch_max(n, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_and_count() {
        let f = AtomicFlag::new(false);
        f.set(true);
        assert!(f.get() && f.get_relaxed() && f.swap(false) && !f.get());
        let c = AtomicCounter::new(3);
        assert_eq!((c.add(2), c.sub(1), c.swap(9), c.max(12), c.get()), (3, 5, 4, 9, 12));
        c.set(1);
        c.set_relaxed(2);
        assert_eq!((c.add_relaxed(5), c.get_relaxed()), (2, 7));
    }
}
