// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Restrictions that a case puts on its own process: denied system calls, lower limits, forked
//! children that outlive it.
#![expect(unsafe_code, reason = "fork and processor time have no safe wrapper that fits")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::process::Process;
use super::{Fail, Outcome, seccomp};

/// Makes `process_vm_readv(2)` and `process_vm_writev(2)` fail with EPERM from now on, in every
/// thread.
pub fn deny_process_vm() -> Outcome {
    seccomp::deny(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev])
}

/// User id of an unprivileged user that owns no file.
pub const ORDINARY_USER: u32 = 65534;

/// Becomes an unprivileged user permanently. Returns false if this process may not.
#[must_use]
pub fn become_ordinary_user() -> bool {
    // SAFETY: setuid(2) changes the user of every thread, and no memory.
    unsafe { libc::setuid(ORDINARY_USER) == 0 }
}

/// Makes this process see `scope` as `kernel.yama.ptrace_scope`, and makes `process_vm_*(2)` on
/// every other process fail with EPERM, as Yama does. Works on systems without Yama as well.
///
/// # Errors
/// `NotHere` where this process may not mount, or has no `process_vm_*(2)` that Yama could deny.
/// Otherwise when the kernel refuses the filter.
pub fn pretend_yama(scope: u32) -> Outcome {
    if !may_call_process_vm() {
        return Err(Fail::NotHere("process_vm is denied from the start".into()));
    }
    const KERNEL: &str = "/proc/sys/kernel";
    let boot = format!("{KERNEL}/random/boot_id");
    let boot_id = std::fs::read(&boot).unwrap_or_default();
    unshare(libc::CLONE_NEWNS, "mounting")?;
    let private =
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
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

/// Moves this thread, and all threads and processes it starts later, to a new network namespace.
///
/// # Errors
/// `NotHere` where this process may not.
pub fn leave_network() -> Outcome {
    unshare(libc::CLONE_NEWNET, "another network namespace")
}

fn unshare(flags: libc::c_int, subject: &str) -> Outcome {
    // SAFETY: unshare(2) changes namespaces of this thread, and no memory.
    let done = match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    permitted(done, subject)
}

/// Turns the errors of a system that withholds namespaces and mounts, as containers do, into
/// `NotHere`. The causes are a missing right, a denial by a security module, or a limit of 0.
fn permitted<E: Into<std::io::Error>>(done: Result<(), E>, subject: &str) -> Outcome {
    match done.map_err(Into::into) {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSPC)) =>
        {
            Err(Fail::NotHere(format!("{subject} is not permitted: {error}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets a variable of the environment of this process.
pub fn set_env(name: &str, value: &str) -> Outcome {
    // SAFETY: called before the case starts a thread that reads the environment.
    unsafe { std::env::set_var(name, value) };
    Ok(())
}

/// Whether the system lets this process call `process_vm_readv(2)`.
#[must_use]
pub fn may_call_process_vm() -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: both lists are empty, so no memory is accessed.
    unsafe { libc::process_vm_readv(pid, std::ptr::null(), 0, std::ptr::null(), 0, 0) == 0 }
}

/// Forks a child that sleeps until the harness kills the group. The child has every mapping of its
/// parent, and every descriptor that no fork handler has closed. On return the fork handlers have
/// run in the child.
pub fn fork_sleeper() -> Outcome {
    let (here, there) = rustix::pipe::pipe()?;
    // The child calls only write(2) and pause(2), so locks of other threads do not matter.
    Process::fork(|| {
        // The child cannot report a failure. The parent would then wait, which the time limit
        // reports.
        let _ = rustix::io::write(&there, &[1]);
        loop {
            // SAFETY: pause(2) takes no argument and touches no memory.
            unsafe { libc::pause() };
        }
    })?;
    rustix::io::read(&here, &mut [0_u8; 1][..])?;
    Ok(())
}

/// Runs `calls` in a forked child, which exits with the result as its code: 0 to 255.
///
/// # Errors
/// Errors of `fork(2)` and `waitpid(2)`, and when the child is killed by a signal.
pub fn in_child(calls: impl FnOnce() -> usize) -> Outcome<usize> {
    let status = status_of(calls)?;
    if libc::WIFEXITED(status) {
        usize::try_from(libc::WEXITSTATUS(status)).map_err(Fail::here)
    } else {
        Err(Fail::here(format_args!("the child was killed, status {status:#x}")))
    }
}

/// Returns the wait status of a forked child that runs `calls` and exits with the result.
fn status_of(calls: impl FnOnce() -> usize) -> Outcome<i32> {
    Ok(Process::fork(|| i32::try_from(calls()).unwrap_or(255))?.status()?)
}

/// Whether SIGINT kills a forked child that has run `calls` and holds their result, with the
/// default action of the signal.
///
/// # Errors
/// Errors of `fork(2)` and `memfd_create(2)`, and when the calls fail.
pub fn dies_of_interrupt<T>(calls: impl FnOnce() -> Outcome<T>) -> Outcome<bool> {
    let mut why = File::from(memfd_create("why", MemfdFlags::CLOEXEC)?);
    let status = status_of(|| {
        // Shells start background processes with SIGINT ignored. SAFETY: the default action is not
        // a function of this process.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let held = calls();
        if let Err(fail) = &held {
            // The exit code reports the failure as well.
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

/// Makes SIGALRM kill this process after `seconds`, unless it sets another alarm. 0 cancels the
/// alarm.
pub fn alarm(seconds: u32) {
    // SAFETY: alarm(2) touches no memory.
    unsafe { libc::alarm(seconds) };
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Runs `calls` while a signal interrupts this thread every 3 milliseconds. The handler is empty.
/// `restart` sets `SA_RESTART`.
pub fn interrupted<T>(restart: bool, calls: impl FnOnce() -> T) -> Outcome<T> {
    const BETWEEN: Duration = Duration::from_millis(3);
    // SAFETY: all zeroes is a valid action without flags, mask and handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: the action outlives the call, and its handler accesses no memory.
    if unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: pthread_self(3) takes no argument.
    let here = unsafe { libc::pthread_self() };
    let (end, ended) = channel::<()>();
    Ok(std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(BETWEEN) == Err(RecvTimeoutError::Timeout) {
                // SAFETY: thread `here` joins this thread before it ends.
                unsafe { libc::pthread_kill(here, libc::SIGUSR1) };
            }
        });
        let out = calls();
        drop(end);
        out
    }))
}

/// Reads a byte that was freed, for a memory checker to find.
pub fn read_freed_memory() {
    // SAFETY: malloc(3) takes any length.
    let block = black_box(unsafe { libc::malloc(64) });
    // SAFETY: null or a block of malloc(3), freed once.
    unsafe { libc::free(block) };
    let byte = black_box(block).cast_const().cast::<u8>();
    if !byte.is_null() {
        // SAFETY: none. The C library keeps the page mapped, so only a checker objects; the value
        // is not used.
        black_box(unsafe { byte.read_volatile() });
    }
}

/// Allocates a block and drops its address, for a memory checker to find.
pub fn lose_memory() {
    // SAFETY: malloc(3) takes any length.
    let block = unsafe { libc::malloc(4242) };
    black_box(block);
}

/// Sends the standard error stream of this process to a file, until the process ends.
///
/// # Errors
/// Errors of `dup2(2)`.
pub fn send_stderr_to(file: &File) -> Outcome {
    // SAFETY: both descriptors are open.
    match unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(file), libc::STDERR_FILENO) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

/// Returns the result of `calls` and the text that this process wrote to standard error meanwhile.
pub fn stderr_of<T>(calls: impl FnOnce() -> T) -> Outcome<(T, String)> {
    use std::io::{Read, Seek};
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC)?);
    let before = rustix::io::dup(std::io::stderr())?;
    // SAFETY: both descriptors are open.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&file), libc::STDERR_FILENO) };
    let out = calls();
    // SAFETY: as above.
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&before), libc::STDERR_FILENO) };
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok((out, text))
}

/// Lowers the soft limit of open descriptors; the hard limit stays.
pub fn limit_open_files(soft: u64) -> Outcome {
    let now = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: now.maximum })?)
}

/// Runs `calls` while this process can open no further descriptor. Afterwards it can open at most
/// 32 more.
pub fn without_more_files<T>(calls: impl FnOnce() -> T) -> Outcome<T> {
    with_files_left(0, calls)
}

/// Runs `calls` while this process can open `left` more descriptors, as [`without_more_files`]
/// does.
pub fn with_files_left<T>(left: usize, calls: impl FnOnce() -> T) -> Outcome<T> {
    const AFTERWARDS: u64 = 32;
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    let most =
        open.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max().unwrap_or(0);
    let limit = most + AFTERWARDS;
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    let mut held = Vec::new();
    while let Ok(fd) = rustix::io::dup(std::io::stdin()) {
        held.push(fd);
    }
    held.truncate(held.len().saturating_sub(left));
    let out = calls();
    drop(held);
    Ok(out)
}

/// Runs `calls` while this process can map a few more pages, but no block as large as a connection.
pub fn without_more_memory<T>(calls: impl FnOnce() -> T) -> Outcome<T> {
    /// Bytes that the allocator may still take, in one of its own steps.
    const SPARE: u64 = 160 << 10;
    with_memory(SPARE, calls)
}

/// Runs `calls` while this process can map `spare` bytes more.
pub fn with_memory<T>(spare: u64, calls: impl FnOnce() -> T) -> Outcome<T> {
    let before = getrlimit(Resource::As);
    let now = Rlimit { current: Some(memory("VmSize:")? + spare), maximum: before.maximum };
    setrlimit(Resource::As, now)?;
    let out = calls();
    setrlimit(Resource::As, before)?;
    Ok(out)
}

/// Size of the reserve in bytes: the small buffers of a case of some thousand operations.
const RESERVE_LEN: usize = 4 << 20;

/// Global allocator of a program that [`with_memory`] limits: the allocator of the C library, then
/// a reserve that the provider under test cannot use. Memory of the reserve is used once.
#[derive(Debug)]
pub struct ReserveAllocator {
    memory: UnsafeCell<[u8; RESERVE_LEN]>,
    /// Bytes of the reserve in use.
    used: Mutex<usize>,
}

// SAFETY: `used`, under its lock, gives each byte of the memory to one allocation only.
unsafe impl Sync for ReserveAllocator {}

impl ReserveAllocator {
    /// Creates an allocator whose reserve is unused.
    #[expect(clippy::new_without_default, reason = "a static needs a constant function")]
    pub const fn new() -> Self {
        Self { memory: UnsafeCell::new([0; RESERVE_LEN]), used: Mutex::new(0) }
    }

    /// Takes memory from the reserve, filled with zeros. Null if too little is left.
    fn take(&self, layout: Layout) -> *mut u8 {
        let base = self.memory.get().cast::<u8>();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = *used + base.wrapping_add(*used).align_offset(layout.align());
        match begin.checked_add(layout.size()) {
            Some(end) if end <= RESERVE_LEN => {
                *used = end;
                base.wrapping_add(begin)
            }
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether the reserve contains `ptr`.
    fn contains(&self, ptr: *mut u8) -> bool {
        let base = self.memory.get().cast::<u8>().addr();
        (base..base + RESERVE_LEN).contains(&ptr.addr())
    }
}

// SAFETY: memory is the C library's, or unused memory of the reserve of that size and alignment,
// which is never given out again.
unsafe impl GlobalAlloc for ReserveAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() { self.take(layout) } else { memory }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if memory.is_null() { self.take(layout) } else { memory }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if !self.contains(ptr) {
            // SAFETY: the C library's memory, and the caller's contract is the same.
            unsafe { System.dealloc(ptr, layout) };
        }
    }
}

/// Returns the bytes that a line of `/proc/self/status` reports.
///
/// # Errors
/// If the file cannot be read, or has no such line.
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

/// Sends SIGKILL to this process.
///
/// # Errors
/// Errors of `kill(2)`; otherwise the call does not return.
pub fn die() -> Outcome {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    loop {
        std::thread::park();
    }
}

/// System resources of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    pub descriptors: usize,
    /// Mappings of memfds.
    pub mappings: usize,
    pub threads: usize,
}

impl Holdings {
    /// Counts the resources of this process.
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

/// Returns descriptors, mappings and resident KiB of this process, as the beat of a storm's rank
/// carries them.
pub fn usage() -> Outcome<String> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let resident = memory("VmRSS:")? >> 10;
    Ok(format!("{} {} {resident}", open_files()?, maps.lines().count()))
}

/// Whether a thread is exiting. A joined thread stays listed for a moment.
fn is_exiting(thread: &Path) -> bool {
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(thread.join("stat")) else {
        return true;
    };
    // After the name, which may contain any character: state, five numbers, flags.
    let behind = stat.rsplit(')').next().unwrap_or_default();
    let flags = behind.split_whitespace().nth(6).and_then(|word| word.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

/// Returns the processor time that this process has used.
#[must_use]
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The C library makes the call, because memcheck hides the vDSO that would be called otherwise.
    // SAFETY: `time` is valid for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Returns the number of open descriptors of this process.
pub fn open_files() -> Outcome<usize> {
    // The descriptor of the directory itself is one of them.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}
