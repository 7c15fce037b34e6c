// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operating system services for a measurement: time, counts, and the copies between
//! processes that are a limit of the machine.
//!
//! Shared memory is in `segment`.
#![expect(unsafe_code, reason = "these system calls have no safe wrapper")]

use std::mem::MaybeUninit;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
pub(crate) use scif_fabtests::harness::output::now_ns;
use scif_fabtests::harness::{Fail, Outcome};
use scif_ring::Mem;

/// Number of involuntary context switches of this process.
pub(crate) fn involuntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is large enough for one rusage.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid rusage, and the call may have filled it.
    let usage = unsafe { usage.assume_init() };
    if rc == 0 { usage.ru_nivcsw.unsigned_abs() } else { 0 }
}

/// Raises the soft limit of open descriptors to the hard limit.
pub(crate) fn raise_open_files() -> Outcome {
    let now = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?)
}

/// Permits every process of this user to access the memory of this one, where Yama permits
/// descendants only. Kernels without Yama fail the call and have no such limit.
pub(crate) fn let_peer_in() {
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}

fn iovec(mem: &Mem) -> libc::iovec {
    libc::iovec { iov_base: mem.as_ptr().cast(), iov_len: mem.len() }
}

/// Executes one `process_vm_readv` (or `writev`) between `local` and as many bytes at `remote` in
/// another process.
#[inline]
pub(crate) fn copy_across(pid: Pid, local: &Mem, remote: u64, write: bool) -> Outcome {
    let mine = iovec(local);
    let theirs = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(remote).map_err(Fail::here)?),
        iov_len: local.len(),
    };
    let pid = pid.as_raw_nonzero().get();
    let done = if write {
        // SAFETY: both lists have one element; `local` is readable, and the kernel checks the
        // remote range.
        unsafe { libc::process_vm_writev(pid, &raw const mine, 1, &raw const theirs, 1, 0) }
    } else {
        // SAFETY: both lists have one element; `local` is writable, and the kernel checks the
        // remote range.
        unsafe { libc::process_vm_readv(pid, &raw const mine, 1, &raw const theirs, 1, 0) }
    };
    if usize::try_from(done) == Ok(local.len()) {
        Ok(())
    } else {
        Err(Fail::NotRun(format!("process_vm: {}", std::io::Error::last_os_error())))
    }
}
