// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Slices of a Rust program as memory for the copies of the engine.
//!
//! Not about memory that peers access: only memory that a call no longer uses after its return.
#![expect(unsafe_code, reason = "names borrowed bytes for the length of a call")]

use scif_ring::Mem;

/// Runs `call` on bytes that it may only read. `call` must not keep the `Mem`.
pub fn with_bytes<T>(bytes: &[u8], call: impl FnOnce(&Mem) -> T) -> T {
    // SAFETY: borrowed until `call` has returned; the callers pass functions that only read and
    // keep no copy.
    let mem = unsafe { Mem::new(bytes.as_ptr().cast_mut(), bytes.len()) };
    call(&mem)
}

/// Runs `call` on bytes that it may write. `call` must not keep the `Mem`.
pub fn with_bytes_mut<T>(bytes: &mut [u8], call: impl FnOnce(&Mem) -> T) -> T {
    // SAFETY: borrowed exclusively until `call` has returned; the callers pass functions that keep
    // no copy.
    let mem = unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) };
    call(&mem)
}
