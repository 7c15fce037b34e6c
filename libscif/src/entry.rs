// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Boundary to C: no panic crosses it, a failure becomes errno, and memory of the program becomes a
//! checked [`Mem`].

#![expect(unsafe_code, reason = "errno, and memory that a C program names")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_int, c_void};
use once_cell::sync::OnceCell;
use scif::Config;
use scif_api::{Backend, Failure, Result};
use scif_ring::Mem;

static ENDPOINTS: OnceCell<Backend> = OnceCell::new();

/// Returns the endpoints of this process, made by the first call that needs them and succeeds.
fn endpoints() -> Result<&'static Backend> {
    ENDPOINTS.get_or_try_init(|| {
        let config = Config::from_env();
        scif::logging::log_to_stderr("libscif", config.log);
        Backend::new(config)
    })
}

/// Runs a call. Returns its result with errno as it was before, or `failed` with errno set.
pub(crate) fn guard<T>(failed: T, call: impl FnOnce(&Backend) -> Result<T>) -> T {
    // SAFETY: takes no argument and returns the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the address is valid for this thread as long as it runs.
    let before = unsafe { *errno };
    let (value, number) = match catch_unwind(AssertUnwindSafe(|| endpoints().and_then(call))) {
        Ok(Ok(value)) => (value, before),
        Ok(Err(failure)) => (failed, failure.raw_os_error()),
        Err(_) => (failed, libc::EIO),
    };
    // SAFETY: as above.
    unsafe { *errno = number };
    value
}

/// Makes a [`Mem`] of memory that the program passes, to be copied from or to.
///
/// # Errors
/// [`Failure::BadAddress`] for NULL, [`Failure::Invalid`] for a length above the limit of an
/// object.
///
/// # Safety
/// `at..at + len` is memory of the program that this call may access.
pub(crate) unsafe fn memory(at: *mut c_void, len: usize) -> Result<Mem> {
    if at.is_null() {
        return Err(Failure::BadAddress);
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::Invalid);
    }
    // SAFETY: not null and not longer than an object can be; the rest is the caller's contract.
    Ok(unsafe { Mem::new(at.cast(), len) })
}

/// Converts a length or count, which must not be negative.
///
/// # Errors
/// [`Failure::Invalid`].
pub(crate) fn length(len: c_int) -> Result<usize> {
    usize::try_from(len).map_err(|_| Failure::Invalid)
}

/// Converts a number for C.
pub(crate) fn count(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| Failure::Invalid)
}
