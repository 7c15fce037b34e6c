// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Threads of the library inside a foreign program, to which no signal is delivered, and work that
//! remains at an `exit` of the program. See `pthread_sigmask(3)`, `atexit(3)`.
#![expect(unsafe_code, reason = "signal masks, atexit")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

/// Starts a detached thread in which every signal is blocked.
pub fn spawn_quiet(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    spawn_joined(name, run).map(drop)
}

/// Starts a thread in which every signal is blocked, and that can be joined. A panic that ends it
/// is logged.
pub(crate) fn spawn_joined(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    // The new thread inherits the mask.
    with_signals_blocked(|| {
        std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(|| {
            OURS.set(true);
            if contained(run).is_none() {
                log::error!(
                    "internal error: thread {} has ended and its pending work is lost. Restart \
                         the program and report the error",
                    std::thread::current().name().unwrap_or_default()
                );
            }
        })
    })
}

/// Lets this thread preempt no other one when it wakes up: SCHED_BATCH in place of the default
/// policy. A real-time policy remains.
pub fn set_batch() {
    // SAFETY: reads the policy of this thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy != libc::SCHED_OTHER {
        return;
    }
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is a live structure.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const none) } != 0 {
        let error = std::io::Error::last_os_error();
        log::debug!("sched_setscheduler: {error}; a wake-up of this thread delays its waker");
    }
}

/// Runs code that may panic. Returns `None` after a panic, which the panic hook logs.
pub fn contained<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread belongs to the library; threads of the program then run besides it.
pub fn is_ours() -> bool {
    OURS.get()
}

/// Runs a function in this thread with every signal blocked.
pub(crate) fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is memory that the call fills.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is filled, `old` is memory that the call fills.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let done = run();
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    done
}

/// Whether a thread of this process with this name sleeps in accept4.
#[cfg(any(test, feature = "testing"))]
pub fn sleeps_in_accept(name: &str) -> bool {
    let accept4 = format!("{} ", libc::SYS_accept4);
    std::fs::read_dir("/proc/self/task").expect("the tasks of this process").flatten().any(|task| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        read("comm").trim() == name && read("syscall").starts_with(&accept4)
    })
}

type AtExit = Box<dyn Fn() + Send>;
static AT_EXIT: std::sync::Mutex<Vec<AtExit>> = std::sync::Mutex::new(Vec::new());

extern "C" fn exiting() {
    let all = AT_EXIT.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
    for run in all {
        run();
    }
}

/// Registers `run` for the exit of the program by `exit`, also in a forked child.
pub fn at_exit(run: impl Fn() + Send + 'static) {
    static INSTALL: std::sync::Once = std::sync::Once::new();
    INSTALL.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded (-z nodelete) and does not
        // unwind.
        if unsafe { libc::atexit(exiting) } != 0 {
            log::warn!(
                "atexit failed: asynchronous RMA in progress at exit will be lost. Call \
                 scif_fence_wait before exit"
            );
        }
    });
    if let Ok(mut all) = AT_EXIT.lock() {
        all.push(Box::new(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: reads the policy of this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_of_the_default_policy_becomes_a_batch_thread() {
        let before = policy();
        let expected = if before == libc::SCHED_OTHER { libc::SCHED_BATCH } else { before };
        let in_thread = || {
            set_batch();
            set_batch();
            policy()
        };
        assert_eq!(std::thread::spawn(in_thread).join().unwrap(), expected);
        assert_eq!(policy(), before, "that of other threads");
    }
}
