// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Children of tests. Not about what the engine does where the program forks: see `fork`.
//!
//! All tests of a crate are threads of one process, and a child has copies of every descriptor: what another test closes
//! meanwhile is still open there.

#![expect(unsafe_code, reason = "fork(2) and what follows it")]

use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many there are that have not run another program.
static ALIVE: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

fn alive() -> MutexGuard<'static, usize> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No test has a child, or gets one, while this is held: the last close of a descriptor is one.
pub(crate) fn none() -> MutexGuard<'static, usize> {
    ENDED
        .wait_while(alive(), |alive| *alive > 0)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program. It has none of our descriptors.
pub(crate) fn spawn(program: &mut Command) -> std::process::Child {
    let _until_it_runs = alive();
    program.spawn().unwrap()
}

/// A forked child.
pub(crate) struct Child(libc::pid_t);

/// Forks a child that makes `calls` and ends with what they give: 0 to 255.
pub(crate) fn in_child(calls: impl FnOnce() -> i32) -> Child {
    let mut alive = alive();
    // SAFETY: the child makes the calls that are tested, and never returns from here.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child could be made");
    *alive += 1;
    drop(alive);
    if pid == 0 {
        let code = calls();
        // SAFETY: _exit(2) runs nothing of the parent's in the child.
        unsafe { libc::_exit(code) }
    }
    Child(pid)
}

impl Child {
    /// What it gave; -1 if it was killed, or there is none.
    pub(crate) fn result(mut self) -> i32 {
        self.wait()
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is room for the answer.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        let exited = ended == self.0 && libc::WIFEXITED(status);
        self.0 = 0;
        if exited { libc::WEXITSTATUS(status) } else { -1 }
    }
}

impl Drop for Child {
    /// Whatever is left of it when its test has failed ends here.
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: a child that was not waited for, so the number is still its own.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            self.wait();
        }
        *alive() -= 1;
        ENDED.notify_all();
    }
}
