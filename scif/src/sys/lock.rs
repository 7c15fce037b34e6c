// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Locks in memory that only the holders of one endpoint map: they exclude threads and forked processes alike, and the
//! death of a holder frees them. See `pthread_mutexattr_setrobust(3)`.
//!
//! Never in memory a peer can write.
#![expect(
    unsafe_code,
    reason = "pthread mutexes live at an address of the caller's choice"
)]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

/// Bytes a lock takes.
pub(crate) const LOCK_BYTES: usize = 64;

/// Where in it is said that a holder died inside.
const DIED: usize = LOCK_BYTES - size_of::<u32>();

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= DIED);

/// A lock in shared memory.
#[derive(Debug)]
pub(crate) struct SharedLock(NonNull<libc::pthread_mutex_t>);

// SAFETY: that is what a process-shared mutex is for.
unsafe impl Send for SharedLock {}
// SAFETY: as above.
unsafe impl Sync for SharedLock {}

/// Held; freed when dropped, by the thread that took it.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a SharedLock, std::marker::PhantomData<*mut ()>);

impl SharedLock {
    /// Makes the lock that lies at `at`.
    ///
    /// # Safety
    /// `at` is aligned to 64 and begins `LOCK_BYTES` bytes, mapped shared and writable for the life of the value and of
    /// every forked copy of it, all zero, that nobody uses otherwise and in which no lock was made before.
    pub(crate) unsafe fn make(at: NonNull<u8>) -> SharedLock {
        let at = at.cast::<libc::pthread_mutex_t>();
        let mut attr = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: `attr` is memory for the call to initialise.
        unsafe { libc::pthread_mutexattr_init(attr.as_mut_ptr()) };
        // SAFETY: initialised above.
        unsafe { libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED) };
        // SAFETY: as above.
        unsafe { libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) };
        // SAFETY: `at` is ours to initialise (caller's contract), `attr` is initialised.
        unsafe { libc::pthread_mutex_init(at.as_ptr(), attr.as_ptr()) };
        // SAFETY: initialised above and not used again.
        unsafe { libc::pthread_mutexattr_destroy(attr.as_mut_ptr()) };
        SharedLock(at)
    }

    /// Takes it. A holder that died inside has left words, not structures: they are used as they are, by who does not care for
    /// [`Held::owner_died`].
    pub(crate) fn lock(&self) -> Held<'_> {
        // SAFETY: made by `make`, mapped since.
        let rc = unsafe { libc::pthread_mutex_lock(self.0.as_ptr()) };
        self.taken(rc);
        Held(self, std::marker::PhantomData)
    }

    /// Takes it if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<Held<'_>> {
        // SAFETY: as in `lock`.
        let rc = unsafe { libc::pthread_mutex_trylock(self.0.as_ptr()) };
        (rc != libc::EBUSY).then(|| {
            self.taken(rc);
            Held(self, std::marker::PhantomData)
        })
    }

    /// Has again what this thread took and kept ([`Held::keep`]).
    #[inline]
    pub(crate) fn kept(&self) -> Held<'_> {
        Held(self, std::marker::PhantomData)
    }

    fn taken(&self, rc: i32) {
        if rc == libc::EOWNERDEAD {
            // SAFETY: this thread has the mutex, whose former owner died.
            unsafe { libc::pthread_mutex_consistent(self.0.as_ptr()) };
            // SAFETY: within the lock's bytes, which the thread that has the mutex alone uses.
            unsafe { self.died().write(1) };
        }
    }

    fn died(&self) -> *mut u32 {
        self.0.as_ptr().wrapping_byte_add(DIED).cast()
    }
}

impl Held<'_> {
    /// Whether somebody died inside, and nobody has said [`Held::mended`] since.
    pub(crate) fn owner_died(&self) -> bool {
        // SAFETY: as in `taken`; zero in new memory, as `make` asks.
        unsafe { self.0.died().read() != 0 }
    }

    /// Leaves it taken, until this thread says [`SharedLock::kept`].
    #[inline]
    pub(crate) fn keep(self) {
        let _ = ManuallyDrop::new(self);
    }

    /// What the dead may have left undone is done.
    pub(crate) fn mended(&self) {
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
        // SAFETY: a page of our own, mapped until the end of the test.
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

    /// Until somebody says that it is mended, everybody learns that a holder died inside.
    #[test]
    fn who_died_inside_is_remembered() {
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
        held.mended();
        drop(held);
        assert!(!lock.lock().owner_died());
    }
}
