// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The domain lock, which is elided where the application promises `FI_THREAD_DOMAIN`.
//!
//! Not about: shared memory, which never contains a lock of this kind. A shared lock is a
//! futex-based mutex. An elided lock is a plain flag without atomic instructions that detects a
//! nested entry. A panic under the lock does not poison it: the code that catches the panic decides
//! which state is still usable.

#![expect(unsafe_code, reason = "hands out &mut behind a lock that may be elided")]

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Function that runs the wait for a contended lock, and can save state that a system call changes.
pub type WaitWrapper = fn(&mut dyn FnMut());

/// Mode of a lock, and state of an elided one. `Held` is 0, which a processor compares without a
/// register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held = 0,
    Released,
    /// Released by `release_unchanged`.
    Unchanged,
    /// Not elided: the mutex is the lock. Never changes.
    Shared,
}

/// A value together with the lock that guards it.
pub struct ElidableLock<T> {
    hold: Cell<Hold>,
    /// Lock in shared mode. Its value is whether the last guard ended with `release_unchanged`.
    mutex: Mutex<bool>,
    around: WaitWrapper,
    value: UnsafeCell<T>,
}

// SAFETY: in shared mode the mutex admits one thread at a time to the value, and `hold` does not
// change; in elided mode the contract of `ElidableLock::elided` admits one thread to both.
unsafe impl<T: Send> Sync for ElidableLock<T> {}

impl<T> ElidableLock<T> {
    /// Returns a lock that any thread may take.
    pub const fn shared(value: T) -> ElidableLock<T> {
        ElidableLock::shared_with(value, |wait| wait())
    }

    /// Returns a lock that any thread may take; `around` wraps each wait for the present holder.
    pub const fn shared_with(value: T, around: WaitWrapper) -> ElidableLock<T> {
        ElidableLock::in_mode(Hold::Shared, around, value)
    }

    /// Returns an elided lock.
    ///
    /// # Safety
    ///
    /// No two threads use the lock at once: the end of one thread's last use happens before another
    /// thread's first.
    pub const unsafe fn elided(value: T) -> ElidableLock<T> {
        ElidableLock::in_mode(Hold::Released, |wait| wait(), value)
    }

    const fn in_mode(hold: Hold, around: WaitWrapper, value: T) -> ElidableLock<T> {
        let (hold, mutex) = (Cell::new(hold), Mutex::new(false));
        ElidableLock { hold, mutex, around, value: UnsafeCell::new(value) }
    }

    /// Takes the lock. Blocks while another thread holds it.
    ///
    /// # Panics
    ///
    /// Nested entry of an elided lock.
    #[inline]
    pub fn lock(&self) -> ElidableLockGuard<'_, T> {
        self.lock_noting().0
    }

    /// Takes the lock like [`lock`](Self::lock). Also returns whether the last holder ended with
    /// [`release_unchanged`](ElidableLockGuard::release_unchanged).
    ///
    /// # Panics
    ///
    /// Nested entry of an elided lock.
    #[inline(always)]
    pub fn lock_noting(&self) -> (ElidableLockGuard<'_, T>, bool) {
        let before = self.hold.get();
        let (held, unchanged) = if before == Hold::Released || before == Hold::Unchanged {
            self.hold.set(Hold::Held);
            (Held::Elided(&self.hold), before == Hold::Unchanged)
        } else {
            assert!(before == Hold::Shared, "elided gate entered twice");
            let mut held = match self.mutex.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(held)) => held.into_inner(),
                Err(TryLockError::WouldBlock) => lock_contended(&self.mutex, self.around),
            };
            let unchanged = core::mem::take(&mut *held);
            (Held::Shared(held), unchanged)
        };
        (ElidableLockGuard { value: &self.value, held: ManuallyDrop::new(held) }, unchanged)
    }

    /// Whether the lock is elided.
    #[inline]
    pub fn is_elided(&self) -> bool {
        self.hold.get() != Hold::Shared
    }

    /// Returns the value without locking; `&mut self` excludes every other holder.
    pub const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

#[cold]
fn lock_contended(mutex: &Mutex<bool>, around: WaitWrapper) -> MutexGuard<'_, bool> {
    let lock = || mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = None;
    around(&mut || held = Some(lock()));
    held.unwrap_or_else(lock)
}

impl<T> fmt::Debug for ElidableLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElidableLock").field("elided", &self.is_elided()).finish_non_exhaustive()
    }
}

/// Lock that a guard releases.
enum Held<'a> {
    // `MutexGuard` also keeps its guard on its thread.
    Shared(MutexGuard<'a, bool>),
    Elided(&'a Cell<Hold>),
}

/// Guard of a lock: grants access to the value and releases the lock when dropped.
#[must_use = "dropping the guard releases the lock"]
pub struct ElidableLockGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    /// Dropped by value, so that a guard that lives during a call need not be in memory.
    held: ManuallyDrop<Held<'a>>,
}

impl<T> ElidableLockGuard<'_, T> {
    /// Releases the lock, and records that the value did not change. The next
    /// [`lock_noting`](ElidableLock::lock_noting) reports it, unless the lock was taken meanwhile.
    #[inline(always)]
    pub fn release_unchanged(self) {
        let mut guard = ManuallyDrop::new(self);
        // SAFETY: taken once, since `ManuallyDrop` keeps the guard from being dropped.
        match unsafe { ManuallyDrop::take(&mut guard.held) } {
            Held::Shared(mut unchanged) => *unchanged = true,
            Held::Elided(hold) => hold.set(Hold::Unchanged),
        }
    }
}

impl<T> Deref for ElidableLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (mutex, or `Hold` and the contract of `elided`),
        // and &self bars a &mut.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for ElidableLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (mutex, or `Hold` and the contract of `elided`),
        // and &mut self is exclusive.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Drop for ElidableLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken once, since nothing else takes it and a guard is dropped once.
        match unsafe { ManuallyDrop::take(&mut self.held) } {
            Held::Shared(held) => drop(held),
            Held::Elided(hold) => hold.set(Hold::Released),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ElidableLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ElidableLockGuard").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    #[test]
    fn shared_lock_excludes() {
        let lock = Arc::new(ElidableLock::shared(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || (0..10_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*lock.lock(), 40_000);
        assert!(!lock.is_elided());
    }

    #[test]
    fn a_wait_runs_inside_the_given_function() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static WAITS: AtomicU32 = AtomicU32::new(0);
        let lock = ElidableLock::shared_with(1, |wait| {
            WAITS.fetch_add(1, Ordering::Relaxed);
            wait();
        });
        let held = lock.lock();
        assert_eq!(WAITS.load(Ordering::Relaxed), 0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *lock.lock() += 1);
            while WAITS.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            waits.join().unwrap();
        });
        assert_eq!(lock.into_inner(), 2);
    }

    #[test]
    fn a_panic_inside_leaves_both_kinds_usable() {
        // SAFETY: one thread.
        for lock in [ElidableLock::shared(1), unsafe { ElidableLock::elided(1) }] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let _inside = lock.lock();
                panic!("inside");
            }));
            assert!(caught.is_err());
            *lock.lock() += 1;
            assert_eq!(lock.into_inner(), 2);
        }
    }

    #[test]
    fn change_is_noted_until_the_next_holder() {
        // SAFETY: one thread.
        for lock in [ElidableLock::shared(1), unsafe { ElidableLock::elided(1) }] {
            let noted = || {
                let (guard, unchanged) = lock.lock_noting();
                guard.release_unchanged();
                unchanged
            };
            assert_eq!([(); 3].map(|()| noted()), [false, true, true]);
            *lock.lock() += 1;
            assert_eq!([(); 2].map(|()| noted()), [false, true], "another holder");
            drop(lock.lock_noting());
            assert!(!noted(), "a holder that did not promise it");
            assert_eq!(lock.into_inner(), 2);
        }
    }

    #[test]
    #[should_panic(expected = "elided gate entered twice")]
    fn elided_lock_rejects_nested_entry() {
        // SAFETY: one thread.
        let lock = unsafe { ElidableLock::elided(()) };
        let _outer = lock.lock();
        let _inner = lock.lock();
    }
}
