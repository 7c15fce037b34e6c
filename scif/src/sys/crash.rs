// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handlers of signals that end the program, where it has none of its own, and files written
//! without an allocation. See `sigaction(2)`, `signal-safety(7)`.
#![expect(unsafe_code, reason = "signal handlers, and a write of mapped memory")]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use rustix::io::Errno;

use super::errno::keep_errno;
use super::file;
use super::mmap::Mapping;

/// Signals that end a program which does not handle them: errors of the program, and requests of
/// launchers and users.
const ENDING: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGTERM,
    libc::SIGINT,
];

static RUN: OnceLock<fn()> = OnceLock::new();

extern "C" fn ending(signal: i32) {
    keep_errno(|| {
        if let Some(run) = RUN.get() {
            run();
        }
    });
    // SAFETY: raise is safe in a handler. SA_RESETHAND has restored the default action, which ends
    // the program when this handler returns.
    unsafe { libc::raise(signal) };
}

/// Makes `run` run before a signal ends the program, for signals with the default action. `run` may
/// only do what is safe in a signal handler. Only the first call has an effect.
pub(crate) fn at_ending_signal(run: fn()) {
    if RUN.set(run).is_err() {
        return;
    }
    for signal in ENDING {
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: reads the action of a signal into a struct of this function.
        let known = unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } == 0;
        // SAFETY: filled by the successful call.
        if !known || unsafe { old.assume_init_ref() }.sa_sigaction != libc::SIG_DFL {
            continue;
        }
        // SAFETY: zeros are a valid action, with an empty mask.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        new.sa_sigaction = ending as *const () as usize;
        new.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: `ending` does only what is safe in a handler, and is never unloaded.
        unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
    }
}

/// Writes the first `len` bytes of a mapping to a file that only its user may read. Safe in a
/// signal handler.
///
/// # Errors
/// Errors of [`file::create_own`] and write(2); INVAL: the mapping is shorter.
pub(crate) fn write_file(path: &CStr, map: &Mapping, len: usize) -> Result<(), Errno> {
    let at = map.at(0, len, 1, false).map_err(|_| Errno::INVAL)?;
    let fd = file::create_own(path)?;
    let mut done = 0;
    while done < len {
        let from = at.cast_const().wrapping_add(done).cast();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
        // SAFETY: `at` checked the range, which stays mapped; the kernel only reads it.
        let written = unsafe { libc::write(fd, from, len - done) };
        match usize::try_from(written) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(_) => match super::process::last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
    Ok(())
}
