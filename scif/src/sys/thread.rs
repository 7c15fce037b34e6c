// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Threads of the library inside somebody else's program: no signal is delivered to them.
//! See `pthread_sigmask(3)`.
#![expect(unsafe_code, reason = "signal masks")]

use std::mem::MaybeUninit;

/// Starts a thread in which every signal is blocked.
pub(crate) fn spawn_quiet(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is memory for the call to fill.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is filled, `old` is memory for the call to fill. The new thread inherits the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(run);
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    spawned.map(drop)
}
