// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What a case does to its own process: take system calls away, lower limits, fork a child that lives on.
//!
//! A filter denies with EPERM, as a container's profile does, and stays for the life of the process (seccomp(2)).
#![expect(unsafe_code, reason = "seccomp and fork have no safe wrapper")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Fail, Outcome};

#[expect(clippy::cast_possible_truncation, reason = "every code of BPF has 16 bits")]
const fn stmt(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "every code of BPF has 16 bits")]
const fn skip_unless(k: u32, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf,
        k,
    }
}

/// From here on this process gets EPERM from `process_vm_readv(2)` and `process_vm_writev(2)`, in every thread.
///
/// # Errors
/// When the kernel refuses the filter.
pub fn deny_process_vm() -> Outcome {
    let load_nr = stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let deny = stmt(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs(),
    );
    let allow = stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let number = |nr: libc::c_long| u32::try_from(nr).map_err(Fail::here);
    let mut filter = [
        load_nr,
        skip_unless(number(libc::SYS_process_vm_readv)?, 1),
        deny,
        skip_unless(number(libc::SYS_process_vm_writev)?, 1),
        deny,
        allow,
    ];
    rustix::thread::set_no_new_privs(true)?;
    let prog = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(Fail::here)?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `prog` and the filter it points to live until the call returns, and the kernel copies them.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const prog,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(Fail::here(format_args!(
            "seccomp: {}",
            std::io::Error::last_os_error()
        )))
    }
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
