// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Slices of a Rust program as memory that calls of the engine copy from and to.
//!
//! Not about memory that peers touch: only what a call has finished with when it returns.
#![expect(unsafe_code, reason = "names borrowed bytes for the length of a call")]

use scif_ring::Mem;

/// Runs `call` on bytes that it may only read, and keeps no copy of the name.
pub(crate) fn with_bytes<T>(bytes: &[u8], call: impl FnOnce(&Mem) -> T) -> T {
    // SAFETY: borrowed until `call` has returned; the callers pass calls that read and forget it.
    let mem = unsafe { Mem::new(bytes.as_ptr().cast_mut(), bytes.len()) };
    call(&mem)
}

/// Runs `call` on bytes that it may write, and keeps no copy of the name.
pub(crate) fn with_bytes_mut<T>(bytes: &mut [u8], call: impl FnOnce(&Mem) -> T) -> T {
    // SAFETY: borrowed by nobody else until `call` has returned; the callers pass calls that forget it.
    let mem = unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) };
    call(&mem)
}
