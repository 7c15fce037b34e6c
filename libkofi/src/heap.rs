// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copies of parts of an info in C's heap: attributes, addresses, keys and texts.
#![expect(unsafe_code, reason = "memory of C's heap")]

use std::ffi::{c_char, c_void};
use std::ptr;

use libfabric_sys::FI_ENOMEM;

use crate::ffi::{Errno, strdup, string};

/// Minimum size in bytes of each part, larger than in any release, so that a newer program reads
/// zeroes.
pub(crate) const MIN_PART_SIZE: usize = 512;

/// Returns zeroed memory of C's heap for a part; null without memory.
pub(crate) fn empty<T>() -> *mut T {
    // SAFETY: any size is valid.
    unsafe { libc::calloc(1, size_of::<T>().max(MIN_PART_SIZE)) }.cast()
}

/// Returns a copy of the first `len` bytes of a part; null without memory.
///
/// # Safety
/// `from` has `len` bytes, which is at most the size of a T.
pub(crate) unsafe fn copy<T>(from: *const T, len: usize) -> *mut T {
    let new = empty::<T>();
    if !new.is_null() {
        // SAFETY: `from` has `len` bytes by the caller's contract, `new` has space for at least a
        // T.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), new.cast::<u8>(), len) };
    }
    new
}

/// Returns a copy of bytes whose number is in another field; null for null, and without memory.
///
/// # Safety
/// `from` is null or has `len` bytes.
pub(crate) unsafe fn bytes(from: *const c_void, len: usize) -> *mut c_void {
    if from.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: any size is valid. At least one byte is allocated, so that null means: no memory.
    let new = unsafe { libc::calloc(1, len.max(1)) };
    if !new.is_null() {
        // SAFETY: both have `len` bytes.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), new.cast::<u8>(), len) };
    }
    new
}

/// Returns `FI_ENOMEM` when the copy of a non-null pointer is null.
pub(crate) fn there<T>(original: *mut T, copied: *mut T) -> Result<*mut T, Errno> {
    if copied.is_null() && !original.is_null() { Err(FI_ENOMEM) } else { Ok(copied) }
}

/// # Safety
/// `from` is null or has `len` bytes, at most the size of a T.
pub(crate) unsafe fn attribute<T>(from: *mut T, len: usize) -> Result<*mut T, Errno> {
    if from.is_null() {
        return Ok(from);
    }
    // SAFETY: the caller's contract.
    there(from, unsafe { copy(from, len) })
}

/// # Safety
/// `from` is null or a C string.
pub(crate) unsafe fn text(from: *mut c_char) -> Result<*mut c_char, Errno> {
    // SAFETY: the caller's contract.
    there(from, strdup(unsafe { string(from) }))
}
