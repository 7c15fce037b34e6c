// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What a case does to its own process: take system calls away, lower limits, fork a child that lives on.
#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Fail, Outcome, seccomp};

/// From here on this process gets EPERM from `process_vm_readv(2)` and `process_vm_writev(2)`, in every thread.
///
/// # Errors
/// When the kernel refuses the filter.
pub fn deny_process_vm() -> Outcome {
    seccomp::deny(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev])
}

/// Forks a child that only sleeps until the harness kills the group; it has every mapping of its parent, and every
/// descriptor that no fork handler has closed. When this returns the handlers have run in the child.
///
/// # Errors
/// Those of `fork(2)` and `pipe(2)`.
pub fn fork_sleeper() -> Outcome {
    let (here, there) = rustix::pipe::pipe()?;
    // SAFETY: the child calls nothing but write(2) and pause(2), so no lock another thread held at the fork matters.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            // Nobody could be told of a failure; the parent would wait in vain, which the watchdog reports.
            let _ = rustix::io::write(&there, &[1]);
            loop {
                // SAFETY: pause(2) takes no argument and touches no memory.
                unsafe { libc::pause() };
            }
        }
        _ => {
            let mut byte = [0_u8; 1];
            rustix::io::read(&here, &mut byte[..])?;
            Ok(())
        }
    }
}

/// Runs `calls` in a forked child, which ends with its result: 0 to 255.
///
/// # Errors
/// Those of `fork(2)` and `waitpid(2)`, and when the child is killed by a signal.
pub fn in_child(calls: impl FnOnce() -> usize) -> Outcome<usize> {
    // SAFETY: the child runs the calls of the case, which are what is tested; it never returns from here.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error().into()),
        0 => {
            let code = i32::try_from(calls()).unwrap_or(255);
            // SAFETY: _exit(2) runs nothing of the parent's in the child.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    };
    let mut status = 0;
    // SAFETY: `status` is room for the answer.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(std::io::Error::last_os_error().into());
    }
    if libc::WIFEXITED(status) {
        usize::try_from(libc::WEXITSTATUS(status)).map_err(Fail::here)
    } else {
        Err(Fail::here(format_args!(
            "the child was killed, status {status:#x}"
        )))
    }
}

/// Lowers the soft limit of open descriptors; the hard one stays.
///
/// # Errors
/// Those of `setrlimit(2)`.
pub fn limit_open_files(soft: u64) -> Outcome {
    let now = getrlimit(Resource::Nofile);
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(soft),
            maximum: now.maximum,
        },
    )?)
}

/// Sends SIGKILL to this very process.
///
/// # Errors
/// Those of `kill(2)`; it does not return otherwise.
pub fn die() -> Outcome {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    loop {
        std::thread::park();
    }
}

/// How many descriptors this process has open.
///
/// # Errors
/// When `/proc/self/fd` cannot be read.
pub fn open_files() -> Outcome<usize> {
    // The directory's own descriptor is one of them.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}
