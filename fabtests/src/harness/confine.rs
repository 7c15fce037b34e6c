// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What a case does to its own process: take system calls away, lower limits, fork a child that lives on.
#![expect(
    unsafe_code,
    reason = "fork and processor time have no safe wrapper that fits"
)]

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Fail, Outcome, seccomp};

/// From here on this process gets EPERM from `process_vm_readv(2)` and `process_vm_writev(2)`, in every thread.
///
/// # Errors
/// When the kernel refuses the filter.
pub fn deny_process_vm() -> Outcome {
    seccomp::deny(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev])
}

/// User id of an ordinary user that owns nothing.
pub const NOBODY: u32 = 65534;

/// Becomes an ordinary user for good. Returns false if this process may not.
#[must_use]
pub fn become_nobody() -> bool {
    // SAFETY: changes the user of every thread of this process, and no memory.
    unsafe { libc::setuid(NOBODY) == 0 }
}

/// Makes this process see `kernel.yama.ptrace_scope` with this value, and get Yama's answer to an access that is not permitted:
/// EPERM from `process_vm_*(2)` on every process but itself. For systems without Yama as well.
///
/// # Errors
/// `NotHere` where this process may not mount, or has no `process_vm_*(2)` that Yama could deny; when the kernel refuses the
/// filter.
pub fn pretend_yama(scope: u32) -> Outcome {
    if !may_call_process_vm() {
        return Err(Fail::NotHere("process_vm is denied from the start".into()));
    }
    const KERNEL: &str = "/proc/sys/kernel";
    let boot = format!("{KERNEL}/random/boot_id");
    let boot_id = std::fs::read(&boot).unwrap_or_default();
    unshare(libc::CLONE_NEWNS, "mounting")?;
    let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    let mounted = rustix::mount::mount_change("/", private).and_then(|()| {
        rustix::mount::mount("none", KERNEL, "tmpfs", rustix::mount::MountFlags::empty(), None)
    });
    permitted(mounted, "mounting")?;
    for dir in ["random", "yama"] {
        std::fs::create_dir(format!("{KERNEL}/{dir}"))?;
    }
    std::fs::write(boot, boot_id)?;
    std::fs::write(format!("{KERNEL}/yama/ptrace_scope"), format!("{scope}\n"))?;
    seccomp::deny_on_others(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev])
}

/// Moves this thread, and all that it starts later, to a network namespace of its own.
///
/// # Errors
/// `NotHere` where this process may not.
pub fn leave_network() -> Outcome {
    unshare(libc::CLONE_NEWNET, "another network namespace")
}

fn unshare(flags: libc::c_int, what: &str) -> Outcome {
    // SAFETY: changes what this thread has of the system, and no memory.
    let done = match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    permitted(done, what)
}

/// Turns the answers of a system that withholds namespaces and mounts, as containers do, into `NotHere`: no right to it, denied
/// by a security module, or a limit of 0.
fn permitted<E: Into<std::io::Error>>(done: Result<(), E>, what: &str) -> Outcome {
    match done.map_err(Into::into) {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EPERM | libc::EACCES | libc::ENOSPC)
            ) =>
        {
            Err(Fail::NotHere(format!("{what} is not permitted: {error}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets a variable of this process's environment.
///
/// # Errors
/// None; as others that take something away.
pub fn set_env(name: &str, value: &str) -> Outcome {
    // SAFETY: a case calls it before anything starts a thread that reads the environment.
    unsafe { std::env::set_var(name, value) };
    Ok(())
}

/// Whether the system lets this process call `process_vm_readv(2)`.
#[must_use]
pub fn may_call_process_vm() -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: of this process, with two lists of no length.
    unsafe { libc::process_vm_readv(pid, std::ptr::null(), 0, std::ptr::null(), 0, 0) == 0 }
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
    let status = status_of(calls)?;
    if libc::WIFEXITED(status) {
        usize::try_from(libc::WEXITSTATUS(status)).map_err(Fail::here)
    } else {
        Err(Fail::here(format_args!(
            "the child was killed, status {status:#x}"
        )))
    }
}

/// The status with which a forked child ends that makes these calls, or its exit code.
fn status_of(calls: impl FnOnce() -> usize) -> Outcome<i32> {
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
    Ok(status)
}

/// Whether a forked child that has made these calls, and holds what they gave it, dies of SIGINT, of which it has said nothing.
///
/// # Errors
/// Those of `fork(2)` and `memfd_create(2)`, and when the calls fail.
pub fn dies_of_interrupt<T>(calls: impl FnOnce() -> Outcome<T>) -> Outcome<bool> {
    let mut why = File::from(memfd_create("why", MemfdFlags::CLOEXEC)?);
    let status = status_of(|| {
        // Shells have it ignored by what they start in the background.
        // SAFETY: the default action is no function of ours.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let held = calls();
        if let Err(fail) = &held {
            // The code says that they failed.
            let _ = rustix::io::write(&why, format!("{fail:?}").as_bytes());
            return 1;
        }
        // SAFETY: raise(3) takes any number.
        unsafe { libc::raise(libc::SIGINT) };
        0
    })?;
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
        let mut text = String::new();
        why.rewind()?;
        why.read_to_string(&mut text)?;
        return Err(Fail::here(format_args!("before the signal: {text}")));
    }
    Ok(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT)
}

/// From here on this process is killed by SIGALRM after so many seconds, unless it sets another alarm; 0 is none.
pub fn alarm(seconds: u32) {
    // SAFETY: alarm(2) touches no memory.
    unsafe { libc::alarm(seconds) };
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Makes `calls` while this thread is interrupted every few milliseconds by a signal whose handler does nothing;
/// `restart`: with `SA_RESTART`.
///
/// # Errors
/// Those of `sigaction(2)`.
pub fn interrupted<T>(restart: bool, calls: impl FnOnce() -> T) -> Outcome<T> {
    const BETWEEN: Duration = Duration::from_millis(3);
    // SAFETY: all zeroes is an action without flags, mask and handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: the action lives during the call, and its handler touches nothing.
    if unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: takes no argument.
    let here = unsafe { libc::pthread_self() };
    let (end, ended) = channel::<()>();
    Ok(std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(BETWEEN) == Err(RecvTimeoutError::Timeout) {
                // SAFETY: the thread waits for this one before it ends.
                unsafe { libc::pthread_kill(here, libc::SIGUSR1) };
            }
        });
        let out = calls();
        drop(end);
        out
    }))
}

/// Reads a byte that was freed, for a checker of memory to find.
pub fn read_freed_memory() {
    // SAFETY: malloc(3) takes any length.
    let block = black_box(unsafe { libc::malloc(64) });
    // SAFETY: null or a block of malloc(3), freed once.
    unsafe { libc::free(block) };
    let byte = black_box(block).cast_const().cast::<u8>();
    if !byte.is_null() {
        // SAFETY: none; the C library keeps the page, so nothing but a checker minds. The value is not used.
        black_box(unsafe { byte.read_volatile() });
    }
}

/// Allocates a block and forgets where, for a checker of memory to find.
pub fn lose_memory() {
    // SAFETY: malloc(3) takes any length.
    let block = unsafe { libc::malloc(4242) };
    black_box(block);
}

/// What `calls` make this process write to its standard error stream.
///
/// # Errors
/// Those of `memfd_create(2)` and `dup2(2)`.
pub fn stderr_of<T>(calls: impl FnOnce() -> T) -> Outcome<(T, String)> {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(rustix::fs::memfd_create(
        "stderr",
        rustix::fs::MemfdFlags::CLOEXEC,
    )?);
    let before = rustix::io::dup(std::io::stderr())?;
    // SAFETY: both are open.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&file), libc::STDERR_FILENO) };
    let out = calls();
    // SAFETY: as above.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&before), libc::STDERR_FILENO) };
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok((out, text))
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

/// Makes `calls` while this process can open no descriptor more. Afterwards it can open a few, and not many ever again.
///
/// # Errors
/// Those of `setrlimit(2)`, and when `/proc/self/fd` cannot be read.
pub fn without_more_files<T>(calls: impl FnOnce() -> T) -> Outcome<T> {
    with_files_left(0, calls)
}

/// As [`without_more_files`], where this process can open `left` descriptors.
///
/// # Errors
/// Those of it.
pub fn with_files_left<T>(left: usize, calls: impl FnOnce() -> T) -> Outcome<T> {
    const AFTERWARDS: u64 = 32;
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    let most = open
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok())
        .max()
        .unwrap_or(0);
    let limit = most + AFTERWARDS;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        },
    )?;
    let mut held = Vec::new();
    while let Ok(fd) = rustix::io::dup(std::io::stdin()) {
        held.push(fd);
    }
    held.truncate(held.len().saturating_sub(left));
    let out = calls();
    drop(held);
    Ok(out)
}

/// Makes `calls` while this process can map a few pages more and nothing as large as a connection.
///
/// # Errors
/// Those of `setrlimit(2)`, and when `/proc/self/status` cannot be read.
pub fn without_more_memory<T>(calls: impl FnOnce() -> T) -> Outcome<T> {
    /// What the allocator may still take, in one step of its own.
    const SPARE: u64 = 160 << 10;
    with_memory(SPARE, calls)
}

/// Makes `calls` while this process can map `spare` bytes more.
///
/// # Errors
/// Those of `setrlimit(2)`, and when `/proc/self/status` cannot be read.
pub fn with_memory<T>(spare: u64, calls: impl FnOnce() -> T) -> Outcome<T> {
    let before = getrlimit(Resource::As);
    let now = Rlimit {
        current: Some(memory("VmSize:")? + spare),
        maximum: before.maximum,
    };
    setrlimit(Resource::As, now)?;
    let out = calls();
    setrlimit(Resource::As, before)?;
    Ok(out)
}

/// Bytes that a line of `/proc/self/status` gives.
///
/// # Errors
/// When it cannot be read, or has no such line.
pub fn memory(line: &str) -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|l| l.strip_prefix(line));
    let kib: u64 = size
        .and_then(|size| size.split_whitespace().next())
        .ok_or_else(|| Fail::here(format_args!("no {line} in /proc/self/status")))?
        .parse()
        .map_err(Fail::here)?;
    Ok(kib << 10)
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

/// What a process holds of the system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    pub descriptors: usize,
    /// Mappings of memory without a name in any file system.
    pub mappings: usize,
    pub threads: usize,
}

impl Holdings {
    /// Those of this process now.
    ///
    /// # Errors
    /// When `/proc/self` cannot be read.
    pub fn now() -> Outcome<Holdings> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        Ok(Holdings {
            descriptors: open_files()?,
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            threads: std::fs::read_dir("/proc/self/task")?
                .flatten()
                .filter(|thread| !is_exiting(&thread.path()))
                .count(),
        })
    }
}

/// Whether a thread is on its way out. One that was joined is listed for a moment still.
fn is_exiting(thread: &Path) -> bool {
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(thread.join("stat")) else {
        return true;
    };
    // Behind the name, which may hold anything: state, five numbers, flags.
    let behind = stat.rsplit(')').next().unwrap_or_default();
    let flags = behind
        .split_whitespace()
        .nth(6)
        .and_then(|word| word.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

/// What this process has used of the processors.
#[must_use]
pub fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // By the C library, for memcheck hides the page of the kernel that would be called without it.
    // SAFETY: `time` is room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// How many descriptors this process has open.
///
/// # Errors
/// When `/proc/self/fd` cannot be read.
pub fn open_files() -> Outcome<usize> {
    // The directory's own descriptor is one of them.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}
