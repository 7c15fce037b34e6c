// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The `errno` of C, which the interfaces on top leave unchanged in a successful call.
//!
//! Their edges restore it, except in libfabric's calls that send and poll. In these, each wrapper
//! of a system call restores it, and over a driver each entry point of a port or link.
#![expect(unsafe_code, reason = "errno is a variable of C")]

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_calls_inside_leave_no_trace() {
        // SAFETY: takes no argument and returns the address of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: valid for this thread while it runs.
        unsafe { *errno = 4711 };
        assert!(keep_errno(|| std::fs::metadata("/nowhere/at/all")).is_err());
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 4711);
    }
}
