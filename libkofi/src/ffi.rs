// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Boundary to C: no panic crosses it, errors become negative numbers, pointers become references
//! or slices.
//!
//! The calls themselves are elsewhere.
#![expect(unsafe_code, reason = "pointers from C")]

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys::{FI_EOTHER, fi_provider};

/// Positive error number of libfabric. C sees it negated.
pub(crate) type Errno = c_int;

/// Runs the body of a function that returns 0 or a negative number.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) => -errno,
        Err(_) => -FI_EOTHER,
    }
}

/// Runs the body of a function whose type cannot express an error.
pub(crate) fn guard_or<R>(on_panic: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(on_panic)
}

/// Converts the result of a provider: libfabric's functions return 0 or a negative number.
pub(crate) fn answered(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(code.saturating_abs()) }
}

/// # Safety
/// `text` is null or a C string that stays unchanged during `'a`.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: a C string by the caller's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Returns the name in a provider's description.
///
/// # Safety
/// `provider` is null or a description whose name is null or a C string.
pub(crate) unsafe fn provider_name<'a>(provider: *const fi_provider) -> Option<&'a CStr> {
    // SAFETY: null or a description, by the caller's contract.
    let name = unsafe { provider.as_ref() }?.name;
    // SAFETY: null or a C string, by the caller's contract.
    unsafe { string(name) }
}

/// Returns a copy in C's heap, to be freed by free(3). Null if `text` is `None` or memory is short.
pub(crate) fn strdup(text: Option<&CStr>) -> *mut c_char {
    // SAFETY: a C string.
    text.map_or(std::ptr::null_mut(), |text| unsafe { libc::strdup(text.as_ptr()) })
}

/// Frees memory of C's heap.
///
/// # Safety
/// `piece` is null or came from malloc(3) and is not used any more.
pub(crate) unsafe fn release<T>(piece: *mut T) {
    // SAFETY: the caller's contract.
    unsafe { libc::free(piece.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_errors_become_numbers() {
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!(guard(|| Err(22)), -22);
        assert_eq!(guard(|| panic!("on purpose")), -FI_EOTHER);
        assert_eq!(guard_or(7, || panic!("on purpose")), 7);
        assert_eq!(answered(-61), Err(61));
        assert_eq!(answered(0), Ok(()));
    }
}
