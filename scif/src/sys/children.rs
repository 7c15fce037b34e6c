// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Child processes of tests. Not about the engine's own fork handling: see `fork`.
//!
//! All tests of a crate are threads of one process, and a child has copies of every descriptor: a
//! descriptor that another test closes meanwhile stays open in the child.

#![expect(unsafe_code, reason = "fork(2) and what follows it")]

use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of children that have not executed another program.
static ALIVE: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

fn alive() -> MutexGuard<'static, usize> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test has a child, and prevents new ones while the guard exists: then closing a
/// descriptor really closes its object.
pub fn none() -> MutexGuard<'static, usize> {
    ENDED.wait_while(alive(), |alive| *alive > 0).unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program, which inherits none of our descriptors.
pub fn spawn(program: &mut Command) -> std::process::Child {
    let _until_it_runs = alive();
    program.spawn().expect("a program to run")
}

/// A forked child.
pub struct Child(libc::pid_t);

/// Forks a child that runs `calls` and exits with the returned status: 0 to 255.
pub fn in_child(calls: impl FnOnce() -> i32) -> Child {
    let mut alive = alive();
    // SAFETY: the child only runs the calls under test, and exits without returning.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child could be made");
    *alive += 1;
    drop(alive);
    if pid == 0 {
        let code = calls();
        // SAFETY: _exit(2) runs no exit handler of the parent in the child.
        unsafe { libc::_exit(code) }
    }
    Child(pid)
}

impl Child {
    /// Returns the process id of the child.
    pub fn pid(&self) -> i32 {
        self.0
    }

    /// Waits for the child; returns its exit status, or -1 if it was killed or does not exist.
    pub fn result(mut self) -> i32 {
        self.wait()
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is a live integer that the call fills.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        let exited = ended == self.0 && libc::WIFEXITED(status);
        self.0 = 0;
        if exited { libc::WEXITSTATUS(status) } else { -1 }
    }
}

impl Drop for Child {
    /// Kills and reaps the child, if its test has failed.
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: the child has not been waited for, so its process id is still its own.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            self.wait();
        }
        *alive() -= 1;
        ENDED.notify_all();
    }
}
