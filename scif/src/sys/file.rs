// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Files of a runtime directory: removed, and locked with flock(2).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub(crate) fn unlink(path: &Path) -> Result<(), Errno> {
    rustix::fs::unlink(path)
}

/// Opens a file to lock, made if there is none.
pub(crate) fn open_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
}

/// Takes the lock, released when the descriptor closes; `WOULDBLOCK` if somebody else has it.
pub(crate) fn try_lock(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)
}
