// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The `errno` of C, which the interfaces on top leave unchanged in a successful call.
//!
//! The entry points of these interfaces restore it, except for libfabric's calls that send and
//! poll. There each wrapper of a system call restores it, and over a driver each entry point of a
//! port or link. [`lock`] restores it too, since a lock of the standard library may sleep in
//! futex(2). [`ErrnoKeepingAllocator`] restores it, since malloc(3) sets it where it fails, and
//! also where it succeeds after brk(2) failed.
#![expect(unsafe_code, reason = "errno is a variable of C")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Runs `call`, and restores the `errno` from before it.
#[inline]
pub fn keep_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: takes no argument and returns the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for this thread while it runs.
    let before = unsafe { *errno };
    let value = call();
    // SAFETY: as above.
    unsafe { *errno = before };
    value
}

/// The allocator of the C library, which leaves `errno` unchanged.
///
/// A library whose entry points do not restore `errno` has it as its global allocator.
#[derive(Debug)]
pub struct ErrnoKeepingAllocator;

// SAFETY: each function passes its arguments to the same function of `System`, which meets the
// contract.
unsafe impl GlobalAlloc for ErrnoKeepingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        keep_errno(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        keep_errno(|| unsafe { System.dealloc(ptr, layout) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        keep_errno(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        keep_errno(|| unsafe { System.realloc(ptr, layout, new_size) })
    }
}

/// Takes a lock, which a panic does not poison, and leaves `errno` unchanged.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let waited = keep_errno(|| mutex.lock());
            waited.unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use scif_ring::AtomicFlag;

    use super::*;
    use crate::sys::fork;

    /// Runs `take` in two threads until `errno` changes or the time is over. Returns the errno of
    /// both.
    fn contend(take: fn()) -> [i32; 2] {
        const TIME: Duration = Duration::from_millis(300);
        let begin = Instant::now();
        let stop = AtomicFlag::new(false);
        let run = || {
            // SAFETY: takes no argument and returns the address of this thread's errno.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: valid for this thread while it runs.
            unsafe { *errno = 4711 };
            // SAFETY: as above.
            while !stop.get() && begin.elapsed() < TIME && unsafe { *errno } == 4711 {
                take();
            }
            stop.set(true);
            // SAFETY: as above.
            unsafe { *errno }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(run);
            [run(), other.join().unwrap()]
        })
    }

    #[test]
    fn waiting_for_a_lock_preserves_errno() {
        static LOCK: Mutex<u64> = Mutex::new(0);
        /// Holds a lock for about as long as a waiter spins before it sleeps.
        fn hold() {
            for _ in 0..200 {
                std::hint::spin_loop();
            }
        }
        let cases: [(&str, fn()); 3] = [
            ("a mutex", || {
                let _held = lock(&LOCK);
                hold();
            }),
            ("the registry of descriptors", || {
                let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
                drop(fork::PrivateFd::new(fd));
            }),
            ("a section beside a forking thread", || {
                drop(fork::section());
                let _forking = fork::gate_as_a_forking_thread();
                hold();
            }),
        ];
        for (name, take) in cases {
            assert_eq!(contend(take), [4711; 2], "{name}");
        }
    }

    #[test]
    fn failed_allocation_preserves_errno() {
        let layout = Layout::array::<u8>(isize::MAX as usize).unwrap();
        // SAFETY: takes no argument and returns the address of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        for zeroed in [false, true] {
            // SAFETY: valid for this thread while it runs.
            unsafe { *errno = 4711 };
            let memory = if zeroed {
                // SAFETY: the size is not 0.
                unsafe { ErrnoKeepingAllocator.alloc_zeroed(layout) }
            } else {
                // SAFETY: the size is not 0.
                unsafe { ErrnoKeepingAllocator.alloc(layout) }
            };
            assert!(memory.is_null(), "zeroed: {zeroed}");
            // SAFETY: as above.
            assert_eq!(unsafe { *errno }, 4711, "zeroed: {zeroed}");
        }
    }

    #[test]
    fn failing_inner_calls_preserve_errno() {
        // SAFETY: takes no argument and returns the address of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: valid for this thread while it runs.
        unsafe { *errno = 4711 };
        assert!(keep_errno(|| std::fs::metadata("/nowhere/at/all")).is_err());
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 4711);
    }
}
