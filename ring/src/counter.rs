// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Process-local flags and counts for rooms that may not name atomics.
//!
//! Not about: shared memory. The plain names order (reads acquire, writes release, and pair with each other
//! on the same object); the `_relaxed` ones do not.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A flag any thread may read and change.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// A flag that starts as `on`.
    pub const fn new(on: bool) -> Flag {
        Flag(AtomicBool::new(on))
    }

    /// Its value. SYNC POINT: pairs with `Flag::set` and `Flag::swap`.
    #[inline]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Its value, ordering nothing.
    #[inline]
    pub fn get_relaxed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it. SYNC POINT: pairs with `Flag::get` and `Flag::swap`.
    #[inline]
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Release);
    }

    /// Sets it and returns what it was. SYNC POINT: pairs with every other method that orders.
    #[inline]
    pub fn swap(&self, on: bool) -> bool {
        self.0.swap(on, Ordering::AcqRel)
    }
}

/// A number any thread may read and change; wraps.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// A count that starts at `n`.
    pub const fn new(n: u64) -> Count {
        Count(AtomicU64::new(n))
    }

    /// Its value. SYNC POINT: pairs with `Count::{set, add, sub, swap, max}`.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Its value, ordering nothing.
    #[inline]
    pub fn get_relaxed(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it. SYNC POINT: pairs with `Count::get`.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }

    /// Sets it, ordering nothing.
    #[inline]
    pub fn set_relaxed(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds and returns what it was. SYNC POINT: pairs with `Count::get`.
    #[inline]
    pub fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::AcqRel)
    }

    /// Adds and returns what it was, ordering nothing.
    #[inline]
    pub fn add_relaxed(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Subtracts and returns what it was. SYNC POINT: pairs with `Count::get`.
    #[inline]
    pub fn sub(&self, n: u64) -> u64 {
        self.0.fetch_sub(n, Ordering::AcqRel)
    }

    /// Sets it and returns what it was. SYNC POINT: pairs with every other method that orders.
    #[inline]
    pub fn swap(&self, n: u64) -> u64 {
        self.0.swap(n, Ordering::AcqRel)
    }

    /// Raises it to at least `n` and returns what it was. SYNC POINT: pairs with `Count::get`.
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
        let f = Flag::new(false);
        f.set(true);
        assert!(f.get() && f.get_relaxed() && f.swap(false) && !f.get());
        let c = Count::new(3);
        assert_eq!(
            (c.add(2), c.sub(1), c.swap(9), c.max(12), c.get()),
            (3, 5, 4, 9, 12)
        );
        c.set(1);
        c.set_relaxed(2);
        assert_eq!((c.add_relaxed(5), c.get_relaxed()), (2, 7));
    }
}
