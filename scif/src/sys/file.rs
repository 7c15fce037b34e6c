// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Removal of files in a runtime directory, and locks on files by flock(2).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub(crate) fn unlink(path: &Path) -> Result<(), Errno> {
    rustix::fs::unlink(path)
}

/// Opens a file to lock, and creates it if it does not exist.
pub(crate) fn open_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
}

/// Takes the lock, released when the descriptor closes; `WOULDBLOCK` if another process has it.
pub(crate) fn try_lock(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)
}

/// Releases the lock of `try_lock` before the descriptor closes.
pub(crate) fn unlock(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::flock(fd, FlockOperation::Unlock)
}

/// Opens the same file again, so that its locks exclude those of the other descriptor.
pub(crate) fn reopen(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
