// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Robust mutexes in memory that only the sharers of one endpoint map. They exclude threads and
//! forked processes alike, and the kernel releases the lock of a dead owner. See
//! `pthread_mutexattr_setrobust(3)`.
//!
//! Never in memory that a peer can write.
#![expect(unsafe_code, reason = "pthread mutexes live at an address of the caller's choice")]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

/// Size in bytes of a lock.
pub(crate) const LOCK_BYTES: usize = 64;

/// Offset of the word that records the death of an owner.
const DIED: usize = LOCK_BYTES - size_of::<u32>();

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= DIED);

/// A lock in shared memory.
#[derive(Debug)]
pub struct SharedLock(NonNull<libc::pthread_mutex_t>);

// SAFETY: a process-shared mutex may be used from any thread of any process.
unsafe impl Send for SharedLock {}
// SAFETY: as above.
unsafe impl Sync for SharedLock {}

/// Guard of a lock; the thread that took the lock releases it by dropping the guard.
#[derive(Debug)]
pub struct Held<'a>(&'a SharedLock, std::marker::PhantomData<*mut ()>);

impl SharedLock {
    /// Creates the lock at `at`.
    ///
    /// # Safety
    /// `at` is aligned to 64 and begins `LOCK_BYTES` zero bytes without another use, in which no
    /// lock was created before. They stay mapped shared and writable while the value and every
    /// forked copy of it exists.
    pub(crate) unsafe fn make(at: NonNull<u8>) -> SharedLock {
        let at = at.cast::<libc::pthread_mutex_t>();
        let mut attr = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: `attr` is memory that the call initialises.
        unsafe { libc::pthread_mutexattr_init(attr.as_mut_ptr()) };
        // SAFETY: initialised above.
        unsafe {
            libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED)
        };
        // SAFETY: as above.
        unsafe { libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) };
        // SAFETY: the caller's contract permits initialising `at`; `attr` is initialised.
        unsafe { libc::pthread_mutex_init(at.as_ptr(), attr.as_ptr()) };
        // SAFETY: initialised above and not used again.
        unsafe { libc::pthread_mutexattr_destroy(attr.as_mut_ptr()) };
        SharedLock(at)
    }

    /// Takes the lock. A dead owner has left single words, not structures: a caller that ignores
    /// [`Held::owner_died`] uses them as they are.
    pub fn lock(&self) -> Held<'_> {
        // SAFETY: created by `make`, mapped since.
        let rc = unsafe { libc::pthread_mutex_lock(self.0.as_ptr()) };
        self.taken(rc);
        Held(self, std::marker::PhantomData)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        // SAFETY: as in `lock`.
        let rc = unsafe { libc::pthread_mutex_trylock(self.0.as_ptr()) };
        (rc != libc::EBUSY).then(|| {
            self.taken(rc);
            Held(self, std::marker::PhantomData)
        })
    }

    /// Returns a guard for a lock that this thread took and kept ([`Held::keep`]).
    #[inline]
    pub fn kept(&self) -> Held<'_> {
        Held(self, std::marker::PhantomData)
    }

    fn taken(&self, rc: i32) {
        if rc == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, whose former owner died.
            unsafe { libc::pthread_mutex_consistent(self.0.as_ptr()) };
            // SAFETY: within the lock's bytes, which only the thread with the mutex uses.
            unsafe { self.died().write(1) };
        }
    }

    fn died(&self) -> *mut u32 {
        self.0.as_ptr().wrapping_byte_add(DIED).cast()
    }
}

impl Held<'_> {
    /// Whether an owner died, and [`Held::recovered`] has not been called since.
    pub fn owner_died(&self) -> bool {
        // SAFETY: as in `taken`; zero in new memory, by the contract of `make`.
        unsafe { self.0.died().read() != 0 }
    }

    /// Keeps the lock taken beyond this guard, until this thread calls [`SharedLock::kept`].
    #[inline]
    pub fn keep(self) {
        let _ = ManuallyDrop::new(self);
    }

    /// Notes that the state left by a dead owner was repaired.
    pub fn recovered(&self) {
        // SAFETY: as in `owner_died`.
        unsafe { self.0.died().write(0) };
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: taken by this thread: a `Held` cannot leave it (PhantomData of a raw pointer).
        unsafe { libc::pthread_mutex_unlock(self.0.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::Mapping;

    #[test]
    fn a_lock_excludes_and_is_freed() {
        let map = Mapping::anonymous(4096).unwrap();
        let at = NonNull::new(map.bytes(0, LOCK_BYTES).unwrap().as_ptr()).unwrap();
        // SAFETY: a page of the test, mapped until its end.
        let lock = unsafe { SharedLock::make(at) };
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
        lock.lock().keep();
        assert!(lock.try_lock().is_none());
        drop(lock.kept());
        drop(lock.lock());
    }

    /// Every later owner learns that an owner died, until one of them notes the repair.
    #[test]
    fn the_death_of_an_owner_is_remembered() {
        let map = Mapping::anonymous(4096).unwrap();
        let at = NonNull::new(map.bytes(0, LOCK_BYTES).unwrap().as_ptr()).unwrap();
        // SAFETY: as above; the child has a copy of the value and the same memory.
        let lock = unsafe { SharedLock::make(at) };
        assert!(!lock.lock().owner_died());
        let child = crate::sys::children::in_child(|| {
            let _ = std::mem::ManuallyDrop::new(lock.lock());
            7
        });
        assert_eq!(child.result(), 7);
        assert!(lock.try_lock().is_some_and(|held| held.owner_died()));
        let held = lock.lock();
        assert!(held.owner_died());
        held.recovered();
        drop(held);
        assert!(!lock.lock().owner_died());
    }
}
