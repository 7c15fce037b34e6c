// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "recovers Rust objects from the pointers that C passes around")]
//! Boundary between libfabric's C calls and this crate. No panic crosses it, errors become
//! `-FI_E*`, and a `struct fid *` becomes a checked reference to its object.
//!
//! The calls themselves are in `objects`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use libfabric_sys as fi;
use libfabric_sys::fid;
use scif::{Maker, keep_errno};

use crate::base::errno::Errno;
use crate::base::log::{Subsys, warn};
use crate::base::reason;

/// Result of a call that panicked; the panic hook has logged the place
/// (`scif::logging::take_panics`).
const PANICKED: Errno = fi::FI_EOTHER;

/// Refuses a call in a forked child on an object of its parent, which owns the rings, the doorbell
/// and the lock.
///
/// Called before the lock is taken, since a thread that the child does not have may hold it.
///
/// # Errors
/// `FI_EOPBADSTATE`, logged once.
#[inline]
pub(crate) fn check_not_forked(creator: Maker) -> Result<(), Errno> {
    if creator.is_ancestor() {
        return Err(inherited());
    }
    Ok(())
}

#[cold]
fn inherited() -> Errno {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| {
        warn(
            Subsys::EpCtrl,
            format_args!(
                "process {}: call on an object that its parent opened before fork: FI_EOPBADSTATE. \
                 Open the fabric and its objects again in the child",
                std::process::id()
            ),
        );
    });
    reason::logged();
    fi::FI_EOPBADSTATE
}

/// Success value of an entry point that returns `int`.
pub(crate) trait Status {
    fn status(self) -> c_int;
}

impl Status for () {
    fn status(self) -> c_int {
        0
    }
}

impl Status for c_int {
    fn status(self) -> c_int {
        self
    }
}

/// Runs the body of an entry point that returns `ssize_t`, and logs an error under the name `call`.
///
/// Does not save `errno`: the data path leaves it unchanged, and the engine's wrappers of system
/// calls restore it.
#[inline]
pub(crate) fn guard(call: &'static str, body: impl FnOnce() -> Result<isize, Errno>) -> isize {
    // The result is one word in memory. A pair would be stored in narrower pieces than it is
    // loaded, which causes a store-forwarding stall.
    let word = || match body() {
        Ok(value) => value,
        Err(fi::FI_EAGAIN) => -(fi::FI_EAGAIN as isize),
        Err(errno) => {
            reason::log_refusal(call, errno);
            -(errno as isize)
        }
    };
    catch_unwind(AssertUnwindSafe(word)).unwrap_or(-(PANICKED as isize))
}

/// Runs the body of an entry point that returns `int`, like [`guard`], and restores `errno`.
#[inline]
pub(crate) fn guard_int<S: Status>(
    call: &'static str,
    body: impl FnOnce() -> Result<S, Errno>,
) -> c_int {
    let word = || match body() {
        Ok(value) => {
            reason::forget();
            value.status()
        }
        Err(errno) => {
            reason::log_refusal(call, errno);
            -errno
        }
    };
    reason::forget();
    keep_errno(|| catch_unwind(AssertUnwindSafe(word)).unwrap_or(-PANICKED))
}

/// Runs the body of an entry point whose C type cannot express an error. A panic returns
/// `on_panic`.
#[inline]
pub(crate) fn guard_or<R>(on_panic: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(on_panic)
}

/// Object that C holds by a pointer to the `struct fid` at its start.
///
/// # Safety
/// The type is `#[repr(C)]`. Its first field is `fid`, or one of libfabric's `fid_*` structs (which
/// begin with `struct fid`). Only objects of this type have [`Object::FCLASS`] as their
/// `fid.fclass`. The other fields are `Sync`, since C calls from any thread.
pub(crate) unsafe trait Object {
    const FCLASS: usize;
}

/// Checks the class of `ptr` and returns a reference to its object.
///
/// # Errors
/// `FI_EINVAL` for null or an object of another class.
///
/// # Safety
/// `ptr` is null or points to a `struct fid` of this provider that is not closed during `'a`.
#[inline]
pub(crate) unsafe fn object<'a, T: Object, F>(ptr: *const F) -> Result<&'a T, Errno> {
    // SAFETY: null or a struct fid, by the caller's contract.
    match unsafe { ptr.cast::<fid>().as_ref() } {
        // SAFETY: an fid of this class is the start of a T, by the contract of `Object`.
        Some(head) if head.fclass == T::FCLASS => Ok(unsafe { &*ptr.cast::<T>() }),
        _ => Err(fi::FI_EINVAL),
    }
}

/// Logs the error of a call, unless it was logged already. `call` is the call with its arguments.
#[track_caller]
pub(crate) fn log_err<T>(
    subsys: Subsys,
    call: fmt::Arguments<'_>,
    result: Result<T, Errno>,
) -> Result<T, Errno> {
    if let Err(errno) = &result {
        if *errno != fi::FI_EAGAIN && !reason::is_logged() {
            reason::log_line(subsys, call, *errno);
        }
    }
    result
}

/// Logs that a call is refused, with the reason, and returns `errno`.
#[track_caller]
pub(crate) fn refused<T>(
    subsys: Subsys,
    call: fmt::Arguments<'_>,
    errno: Errno,
) -> Result<T, Errno> {
    reason::warn_about_call(subsys, call);
    Err(errno)
}

/// Object that records the process in which it was created.
pub(crate) trait CreatedBy: Object {
    fn creator(&self) -> Maker;
}

/// Implements [`CreatedBy`]: `created_by!(Cq, |object| object.creator)`.
macro_rules! created_by {
    ($object:ty, |$this:ident| $creator:expr) => {
        impl $crate::base::entry::CreatedBy for $object {
            fn creator(&self) -> scif::Maker {
                let $this = self;
                $creator
            }
        }
    };
}
pub(crate) use created_by;

/// Like [`object`], but only in the process that created the object.
///
/// Used by every call that takes a lock or changes state visible to peers, and does not call
/// [`check_not_forked`] itself.
///
/// # Errors
/// `FI_EINVAL` for null or an object of another class, `FI_EOPBADSTATE` in a forked child of its
/// creator.
///
/// # Safety
/// The contract of [`object`].
pub(crate) unsafe fn own<'a, T: CreatedBy, F>(ptr: *const F) -> Result<&'a T, Errno> {
    // SAFETY: the caller's contract.
    let own = unsafe { object::<T, F>(ptr) }?;
    check_not_forked(own.creator())?;
    Ok(own)
}

/// Returns the class of the object at `ptr`, for calls that accept several.
///
/// # Errors
/// `FI_EINVAL` for null.
///
/// # Safety
/// `ptr` is null or points to a live `struct fid`.
pub(crate) unsafe fn class_of(ptr: *const fid) -> Result<usize, Errno> {
    // SAFETY: null or a live struct fid, by the caller's contract.
    unsafe { ptr.as_ref() }.map(|head| head.fclass).ok_or(fi::FI_EINVAL)
}

/// Passes an object to C. Returns the pointer to its `fid_*` start.
pub(crate) fn give<T: Object, F>(object: Box<T>) -> *mut F {
    Box::into_raw(object).cast::<F>()
}

/// Takes back, in `fi_close`, an object that [`give`] passed to C.
///
/// # Errors
/// `FI_EINVAL` for null or an object of another class.
///
/// # Safety
/// The contract of [`object`]. The object came from [`give`], and C does not use `ptr` after this
/// call.
pub(crate) unsafe fn take<T: Object, F>(ptr: *mut F) -> Result<Box<T>, Errno> {
    // SAFETY: the caller's contract.
    unsafe { object::<T, F>(ptr) }?;
    // SAFETY: a T by the check above, from Box::into_raw in `give`, and taken once by the caller's
    // contract.
    Ok(unsafe { Box::from_raw(ptr.cast::<T>()) })
}

/// Stores a result through a pointer that C passed.
///
/// # Errors
/// `FI_EINVAL` for null.
///
/// # Safety
/// `out` is null or valid for writing a `T`.
#[inline]
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Errno> {
    if out.is_null() {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: not null, and valid by the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Copies an address to the caller of `fi_getname` or a similar call, by their protocol for
/// lengths.
///
/// # Errors
/// `FI_EINVAL` without a length. `FI_ETOOSMALL` when it does not fit; the length is set in any
/// case.
///
/// # Safety
/// `addrlen` is null or valid. `addr` is null or has space for `*addrlen` bytes.
pub(crate) unsafe fn put_name(
    name: &[u8],
    addr: *mut c_void,
    addrlen: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: null or valid, by the caller's contract.
    let len = unsafe { addrlen.as_mut() }.ok_or(fi::FI_EINVAL)?;
    let room = std::mem::replace(len, name.len());
    if addr.is_null() || room == 0 {
        // The caller queries the length.
        return reason::expected(fi::FI_ETOOSMALL, Err(fi::FI_ETOOSMALL));
    }
    if room < name.len() {
        return Err(reason::because(
            fi::FI_ETOOSMALL,
            format_args!("an address has {} bytes, and there is room for {room}", name.len()),
        ));
    }
    // SAFETY: not null, long enough by the check above, and no part of `name`.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), addr.cast::<u8>(), name.len()) };
    Ok(())
}

/// Returns a size to the caller of `fi_getopt`.
///
/// # Errors
/// `FI_EINVAL` without a buffer or a length. `FI_ETOOSMALL` when it does not fit; the length is set
/// in any case.
///
/// # Safety
/// `optlen` is null or valid. `optval` is null or has space for `*optlen` bytes.
pub(crate) unsafe fn put_option(
    value: usize,
    optval: *mut c_void,
    optlen: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: null or valid, by the caller's contract.
    let len = unsafe { optlen.as_mut() }.ok_or(fi::FI_EINVAL)?;
    let room = std::mem::replace(len, size_of::<usize>());
    if room < size_of::<usize>() {
        return Err(fi::FI_ETOOSMALL);
    }
    if optval.is_null() {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: not null, and long enough by the check above; no alignment is required.
    unsafe { optval.cast::<usize>().write_unaligned(value) };
    Ok(())
}

/// Returns the string at a pointer from C; `None` for null.
///
/// # Safety
/// `s` is null or points to a string that ends in NUL and stays unchanged during `'a`.
pub(crate) unsafe fn string<'a>(s: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, and a string by the caller's contract.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) })
}

/// Returns a borrowed array from C; empty for a length of zero.
///
/// # Errors
/// `FI_EINVAL` for null with another length, a misaligned pointer, or a length that exceeds
/// `isize::MAX` bytes.
///
/// # Safety
/// `ptr` is null or points to `len` initialised elements that stay unchanged during `'a`.
#[inline]
pub(crate) unsafe fn slice<'a, T>(ptr: *const T, len: usize) -> Result<&'a [T], Errno> {
    if len == 0 {
        return Ok(&[]);
    }
    let bytes = len.checked_mul(size_of::<T>()).filter(|&b| isize::try_from(b).is_ok());
    if ptr.is_null() || !ptr.is_aligned() || bytes.is_none() {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: not null, aligned, of at most isize::MAX bytes, and initialised by the caller's
    // contract.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_return_values() {
        assert_eq!(guard("call", || Ok(7)), 7);
        assert_eq!(guard("call", || Err(fi::FI_EAGAIN)), -11);
        assert_eq!(guard("call", || Err(fi::FI_EINVAL)), -22);
        assert_eq!(guard_int("call", || Ok(())), 0);
        assert_eq!(guard_int("call", || Ok(3)), 3);
        assert_eq!(guard_int("call", || -> Result<(), Errno> { Err(fi::FI_EINVAL) }), -22);
    }

    #[test]
    fn a_panic_becomes_eother() {
        assert_eq!(guard("call", || panic!("on purpose")), -256);
        assert_eq!(guard_int("call", || -> Result<(), Errno> { panic!("on purpose") }), -256);
        assert_eq!(guard_or(9, || panic!("on purpose")), 9);
    }

    #[test]
    fn null_and_oversized_arrays_are_refused() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { slice::<u64>(std::ptr::null(), 0) }, Ok(&[][..]));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { slice::<u64>(std::ptr::null(), 1) }, Err(fi::FI_EINVAL));
        // SAFETY: the length is refused before the pointer is used.
        assert_eq!(unsafe { slice(&raw const ONE, usize::MAX) }, Err(fi::FI_EINVAL));
    }

    static ONE: u64 = 1;
}
