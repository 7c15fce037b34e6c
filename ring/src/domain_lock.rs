// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The domain lock, which is elided where the application promises `FI_THREAD_DOMAIN`.
//!
//! Not about: shared memory, which never contains a lock of this kind. A shared gate is a
//! futex-based mutex. An elided gate is a plain flag without atomic instructions that detects a
//! nested entry. A panic under the gate does not poison it: the code that catches the panic decides
//! which state is still usable.

#![expect(unsafe_code, reason = "hands out &mut behind a lock that may be elided")]

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Function that runs the wait for a contended lock, and can save state that a system call changes.
pub type Around = fn(&mut dyn FnMut());

enum Mode {
    Shared(Mutex<()>, Around),
    Elided(Cell<bool>),
}

/// A value together with the lock that guards it.
pub struct Gate<T> {
    mode: Mode,
    value: UnsafeCell<T>,
}

// SAFETY: in shared mode the mutex admits one thread at a time to the value; in elided mode the
// contract of `Gate::elided` does.
unsafe impl<T: Send> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// Returns a gate that any thread may enter.
    pub const fn shared(value: T) -> Gate<T> {
        Gate::shared_with(value, |wait| wait())
    }

    /// Returns a gate that any thread may enter; `around` wraps each wait for the present holder.
    pub const fn shared_with(value: T, around: Around) -> Gate<T> {
        Gate {
            mode: Mode::Shared(Mutex::new(()), around),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns a gate without a lock.
    ///
    /// # Safety
    ///
    /// No two threads use the gate at once: the end of one thread's last use happens before another
    /// thread's first.
    pub const unsafe fn elided(value: T) -> Gate<T> {
        Gate {
            mode: Mode::Elided(Cell::new(false)),
            value: UnsafeCell::new(value),
        }
    }

    /// Enters the gate. Blocks while another thread holds it.
    ///
    /// # Panics
    ///
    /// Nested entry of an elided gate.
    #[inline]
    pub fn lock(&self) -> GateGuard<'_, T> {
        let held = match &self.mode {
            Mode::Shared(mutex, around) => Some(match mutex.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(held)) => held.into_inner(),
                Err(TryLockError::WouldBlock) => lock_contended(mutex, *around),
            }),
            Mode::Elided(busy) => {
                assert!(!busy.replace(true), "elided gate entered twice");
                None
            }
        };
        GateGuard {
            gate: self,
            _held: held,
            _value: PhantomData,
        }
    }

    /// Whether the gate has no lock.
    #[inline]
    pub const fn is_elided(&self) -> bool {
        matches!(self.mode, Mode::Elided(_))
    }

    /// Returns the value without entering; `&mut self` excludes every other holder.
    pub const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Consumes the gate and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

#[cold]
fn lock_contended(mutex: &Mutex<()>, around: Around) -> MutexGuard<'_, ()> {
    let lock = || mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = None;
    around(&mut || held = Some(lock()));
    held.unwrap_or_else(lock)
}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("elided", &self.is_elided())
            .finish_non_exhaustive()
    }
}

/// Guard of a gate: grants access to the value and leaves the gate when dropped.
#[must_use = "dropping the guard leaves the gate"]
pub struct GateGuard<'a, T> {
    gate: &'a Gate<T>,
    // `MutexGuard` also keeps this guard on its thread.
    _held: Option<MutexGuard<'a, ()>>,
    // Makes the guard `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

impl<T> Deref for GateGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (mutex, or busy flag and the contract of `elided`),
        // and &self bars a &mut.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for GateGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (mutex, or busy flag and the contract of `elided`),
        // and &mut self is exclusive.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for GateGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Mode::Elided(busy) = &self.gate.mode {
            busy.set(false);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for GateGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GateGuard").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    #[test]
    fn shared_gate_excludes() {
        let gate = Arc::new(Gate::shared(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let gate = Arc::clone(&gate);
                std::thread::spawn(move || (0..10_000).for_each(|_| *gate.lock() += 1))
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*gate.lock(), 40_000);
        assert!(!gate.is_elided());
    }

    #[test]
    fn a_wait_runs_inside_the_given_function() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static WAITS: AtomicU32 = AtomicU32::new(0);
        let gate = Gate::shared_with(1, |wait| {
            WAITS.fetch_add(1, Ordering::Relaxed);
            wait();
        });
        let held = gate.lock();
        assert_eq!(WAITS.load(Ordering::Relaxed), 0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *gate.lock() += 1);
            while WAITS.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            waits.join().unwrap();
        });
        assert_eq!(gate.into_inner(), 2);
    }

    #[test]
    fn a_panic_inside_leaves_both_kinds_usable() {
        // SAFETY: one thread.
        for gate in [Gate::shared(1), unsafe { Gate::elided(1) }] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let _inside = gate.lock();
                panic!("inside");
            }));
            assert!(caught.is_err());
            *gate.lock() += 1;
            assert_eq!(gate.into_inner(), 2);
        }
    }

    #[test]
    #[should_panic(expected = "elided gate entered twice")]
    fn an_elided_gate_is_not_entered_from_inside() {
        // SAFETY: one thread.
        let gate = unsafe { Gate::elided(()) };
        let _outer = gate.lock();
        let _inner = gate.lock();
    }
}
