// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Suspension of stores to a range by other threads, by userfaultfd write protection. See
//! `userfaultfd(2)`.
//!
//! Not about the change of the range meanwhile (`pages`).
#![expect(unsafe_code, reason = "userfaultfd is a call and ioctls without names in a library")]

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::logging::warn_of_denied;
use super::mmap::PAGE;
use super::process::last_errno;

const UFFD_API: u64 = 0xAA;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const USER_MODE_ONLY: libc::c_int = 1;
const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOCTL_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const IOCTL_WAKE: libc::c_ulong = 0x8010_aa02;
const IOCTL_COPY: libc::c_ulong = 0xc028_aa03;
const IOCTL_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;

/// Suspends the stores of other threads to a range while its pages move.
#[derive(Debug)]
pub struct WriteFence {
    fd: OwnedFd,
    needed: bool,
}

fn open(flags: libc::c_int) -> Option<OwnedFd> {
    // SAFETY: creates a descriptor; no memory is accessed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: just created, and owned by this function alone.
    Some(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) })
}

impl WriteFence {
    /// Returns a guard; `None` if the kernel, a limit or a filter refuses.
    pub fn new() -> Option<WriteFence> {
        // Without the flag, stores by the kernel (a read into the range) are suspended too; that
        // needs privilege.
        let fd = open(0).or_else(|| open(USER_MODE_ONLY));
        let guard = fd.and_then(|fd| WriteFence::of(fd, true));
        if guard.is_none() {
            let consequence = "registered memory of a program with threads is not moved, so peers \
                               cannot map it and RMA is slower";
            let remedy = "set vm.unprivileged_userfaultfd to 1, or permit userfaultfd in the \
                          seccomp profile of the container";
            warn_of_denied("userfaultfd", last_errno(), consequence, remedy);
        }
        guard
    }

    /// Returns a guard for ranges to which no thread of the program can store, and threads of the
    /// library hardly ever do. Pages that cannot be protected are moved unprotected. Stores by the
    /// kernel are never suspended, since they may execute earlier requests of the program
    /// (io_uring) in this thread.
    pub fn not_needed() -> Option<WriteFence> {
        WriteFence::of(open(USER_MODE_ONLY)?, false)
    }

    fn of(fd: OwnedFd, needed: bool) -> Option<WriteFence> {
        let guard = WriteFence { fd, needed };
        let mut api = [UFFD_API, FEATURE_WP | FEATURE_WP_SHMEM, 0];
        guard.control(IOCTL_API, &mut api).ok()?;
        Some(guard)
    }

    fn control<const N: usize>(
        &self,
        request: libc::c_ulong,
        argument: &mut [u64; N],
    ) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        // SAFETY: `argument` is live and has the size encoded in `request` (every use is tested,
        // and the kernel checks it).
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Suspends stores to the range until `let_go`. All its pages must be present. Returns `None`
    /// if stores are not suspended and need not be.
    pub(super) fn hold(&self, at: usize, len: usize) -> Result<Option<&WriteFence>, Errno> {
        match self.protect(at, len) {
            Ok(()) => Ok(Some(self)),
            Err(_) if !self.needed => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether stores to a page can be suspended. Not possible for files on a disk, nor in a range
    /// that the program itself registered.
    pub(super) fn can_hold(&self, at: usize) -> bool {
        let mut register = [at as u64, PAGE as u64, REGISTER_MODE_WP, 0];
        let can = self.control(IOCTL_REGISTER, &mut register).is_ok();
        if can {
            let _ = self.control(IOCTL_UNREGISTER, &mut [at as u64, PAGE as u64]);
        }
        can
    }

    fn protect(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut register = [at as u64, len as u64, REGISTER_MODE_WP, 0];
        self.control(IOCTL_REGISTER, &mut register)?;
        let mut protect = [at as u64, len as u64, WRITEPROTECT_MODE_WP];
        self.control(IOCTL_WRITEPROTECT, &mut protect).inspect_err(|_| self.let_go(at, len, false))
    }

    /// Fills absent private pages at `to` with the bytes at `from`. The kernel need not zero them
    /// first, as it does for pages that a read from a file fills. Returns whether it succeeded;
    /// otherwise some of the pages may be filled.
    pub(super) fn fill(&self, to: usize, from: usize, len: usize) -> bool {
        let (to, from, len) = (to as u64, from as u64, len as u64);
        if self.control(IOCTL_REGISTER, &mut [to, len, REGISTER_MODE_MISSING, 0]).is_err() {
            return false;
        }
        let filled = self.control(IOCTL_COPY, &mut [to, from, len, 0, 0]).is_ok();
        // Otherwise an access to the pages that are still absent would wait for the guard.
        self.control(IOCTL_UNREGISTER, &mut [to, len]).is_ok() && filled
    }

    /// Resumes the suspended stores. They go to the pages that are present now, which are other
    /// ones if the protected pages were `replaced`.
    pub(super) fn let_go(&self, at: usize, len: usize, replaced: bool) {
        let mut range = [at as u64, len as u64];
        if !replaced {
            // Ends the protection, or the stores would be suspended again until the guard is
            // dropped. Until then this thread might wait for a lock that one of the storing threads
            // holds.
            let _ = self.control(IOCTL_UNREGISTER, &mut range);
        }
        let _ = self.control(IOCTL_WAKE, &mut range);
    }
}
