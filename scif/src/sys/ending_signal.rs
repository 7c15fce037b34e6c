// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handlers of signals that end the program, where it has none of its own. See `sigaction(2)`,
//! `signal-safety(7)`.
#![expect(unsafe_code, reason = "signal handlers")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use super::errno::keep_errno;

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

/// Runs what is to run before a signal ends the program, for a handler of another module.
pub(super) fn run_before_end() {
    if let Some(run) = RUN.get() {
        run();
    }
}

extern "C" fn ending(signal: i32) {
    keep_errno(run_before_end);
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
