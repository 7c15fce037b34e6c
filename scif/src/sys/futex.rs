// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleeping on a word of memory shared between processes. See `futex(2)`.
//!
//! Without a time limit the sleep is one the kernel restarts after a signal whose handler has SA_RESTART; after another
//! it ends with EINTR. With a limit every signal ends it.
#![expect(
    unsafe_code,
    reason = "futex(2) has no safe wrapper that leaves the word shared"
)]

use rustix::io::Errno;
use scif_ring::Word32;

use super::process::last_errno;

/// Sleeps while `word` is `value`. EAGAIN: it was not. May end for no reason.
pub(crate) fn wait(word: &Word32, value: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let limit = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let limit_at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is mapped while its handle is used (contract of `Word32::new`), and the kernel only reads it;
    // `limit_at` is null or a live timespec.
    let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit_at) };
    if rc == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake_all(word: &Word32) {
    // SAFETY: only the address is used, as the name of a queue.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
