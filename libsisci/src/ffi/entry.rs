// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Boundary to C: no panic crosses it, a failure becomes a `sci_error_t`, and pointers are checked.

#![expect(unsafe_code, reason = "errno, and places of the program for results")]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use scif_ring::Mem;

use crate::callback::Action;
use crate::error::{Failure, Outcome, SciError, fail};
use crate::objects::{self, Handled};

/// Handle of the program: a number in the form of a pointer.
pub(crate) type Handle = *mut c_void;

/// `SCI_CALLBACK_CANCEL`
const CANCEL: u32 = 1;

/// Returns the object behind a handle.
///
/// # Errors
/// `IllegalParameter`, `NotInitialized`.
pub(crate) fn object<T: Handled>(handle: Handle) -> Outcome<Arc<T>> {
    objects::find(handle.addr())
}

/// Runs a call. Returns its result with errno as it was before, or `failed` with the code written
/// to `error`; errno is then the one of a failed system call.
pub(crate) fn guard<T>(error: *mut u32, failed: T, call: impl FnOnce() -> Outcome<T>) -> T {
    // SAFETY: takes no argument and returns the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the address is valid for this thread as long as it runs.
    let before = unsafe { *errno };
    let outcome = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure { code: SciError::System, errno: None }));
    let (value, code, number) = match outcome {
        Ok(value) => (value, SciError::Ok, before),
        Err(Failure { code, errno }) => {
            (failed, code, errno.map_or(before, rustix::io::Errno::raw_os_error))
        }
    };
    // SAFETY: as above.
    unsafe { *errno = number };
    if !error.is_null() {
        // SAFETY: not null; by the caller's contract space for a sci_error_t.
        unsafe { error.write_unaligned(code.number()) };
    }
    value
}

/// Checks flags of the program.
///
/// # Errors
/// `IllegalFlag` for a flag outside of `legal`.
pub(crate) fn check_flags(flags: u32, legal: u32) -> Outcome<()> {
    if flags & !legal == 0 { Ok(()) } else { fail(SciError::IllegalFlag) }
}

/// Writes a result.
///
/// # Errors
/// `IllegalParameter` for NULL.
///
/// # Safety
/// `at` is NULL or space for a `T`.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Outcome<()> {
    if at.is_null() {
        return fail(SciError::IllegalParameter);
    }
    // SAFETY: not null; the rest is the caller's contract.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Reads an argument.
///
/// # Errors
/// `IllegalParameter` for NULL.
///
/// # Safety
/// `at` is NULL or a valid `T`, of which all bit patterns are valid.
pub(crate) unsafe fn get<T: Copy>(at: *const T) -> Outcome<T> {
    if at.is_null() {
        return fail(SciError::IllegalParameter);
    }
    // SAFETY: not null; the rest is the caller's contract.
    Ok(unsafe { at.read_unaligned() })
}

/// Checks that a result can be written.
///
/// # Errors
/// `IllegalParameter` for NULL.
pub(crate) fn need<T>(at: *const T) -> Outcome<()> {
    if at.is_null() { fail(SciError::IllegalParameter) } else { Ok(()) }
}

/// Makes a [`Mem`] of memory of the program.
///
/// # Errors
/// `IllegalParameter` for NULL, `OutOfRange` for a length above the limit of an object.
///
/// # Safety
/// `at..at + len` is memory of the program that this call may access.
pub(crate) unsafe fn memory(at: *mut c_void, len: usize) -> Outcome<Mem> {
    need(at)?;
    if isize::try_from(len).is_err() {
        return fail(SciError::OutOfRange);
    }
    // SAFETY: not null and not longer than an object can be; the rest is the caller's contract.
    Ok(unsafe { Mem::new(at.cast(), len) })
}

/// Handle of an object that its callback will receive, set once the object has one.
#[derive(Clone, Default)]
pub(crate) struct OwnHandle(Arc<OnceLock<usize>>);

impl OwnHandle {
    pub(crate) fn get(&self) -> Handle {
        std::ptr::without_provenance_mut(self.0.get().copied().unwrap_or(0))
    }

    /// Makes the handle of an object, writes it for the program, and begins the object's work. No
    /// handle is left after a failure.
    ///
    /// # Errors
    /// `IllegalParameter` for NULL, `ApiNospc`, errors of `begin`.
    ///
    /// # Safety
    /// `at` is NULL or space for a handle.
    pub(crate) unsafe fn publish<T: Handled>(
        &self,
        object: &Arc<T>,
        at: *mut Handle,
        begin: impl FnOnce() -> Outcome<()>,
    ) -> Outcome<()> {
        let handle = objects::insert(Arc::clone(object))?;
        let _ = self.0.set(handle);
        // SAFETY: the caller's contract.
        unsafe { put(at, std::ptr::without_provenance_mut(handle)) }
            .and_then(|()| begin())
            .inspect_err(|_| objects::remove(handle))
    }
}

/// Converts the result of a callback.
pub(crate) fn action(number: u32) -> Action {
    if number == CANCEL { Action::Cancel } else { Action::Continue }
}

/// Logs that a function has no implementation, once for each.
pub(crate) fn not_supported<T>(name: &'static str) -> Outcome<T> {
    static SAID: scif::logging::OnceEach<&str> = scif::logging::OnceEach::new(64);
    if SAID.first(name) {
        log::warn!(
            "{name}: SCI_ERR_NOT_SUPPORTED: this library has no hardware for it. The table of \
             functions in libsisci/README.md names alternatives"
        );
    }
    fail(SciError::NotSupported)
}
