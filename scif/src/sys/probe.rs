// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Questions to the kernel for a diagnosis: limits, features, processors. See getrlimit(2),
//! pidfd_open(2), statvfs(3), sched_setaffinity(2).
//!
//! Only the processor of the calling thread is changed.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Limits of this process; `None` without limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    /// Number of descriptors up to which the soft limit may be raised.
    pub descriptors: Option<u64>,
    /// Bytes of locked memory.
    pub locked: Option<u64>,
    /// Bytes of address space.
    pub address_space: Option<u64>,
    /// Bytes of a file, memfds included.
    pub file_size: Option<u64>,
}

/// Returns the limits of this process.
pub fn limits() -> Limits {
    let soft = |resource| getrlimit(resource).current;
    Limits {
        descriptors: getrlimit(Resource::Nofile).maximum,
        locked: super::process::lockable(),
        address_space: soft(Resource::As),
        file_size: soft(Resource::Fsize),
    }
}

/// Opens a descriptor of this process, and closes it.
///
/// # Errors
/// Errors of pidfd_open(2).
pub fn pidfd() -> Result<(), Errno> {
    pidfd_open(getpid(), PidfdFlags::empty()).map(drop)
}

/// Returns size and free space in bytes of a mounted file system.
///
/// # Errors
/// Errors of statvfs(3).
pub fn space(path: &Path) -> Result<(u64, u64), Errno> {
    let found = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok((bytes(found.f_blocks), bytes(found.f_bavail)))
}

/// Returns the processors on which this thread may run.
pub fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Restricts this thread to one processor. A failure only makes measurements less steady.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_plausible() {
        assert!(limits().descriptors.is_none_or(|n| n > 2));
        let (size, free) = space(Path::new("/")).unwrap();
        assert!(size >= free && size > 0);
        let all = processors();
        let first = *all.first().unwrap();
        std::thread::spawn(move || {
            pin(first);
            assert_eq!(processors(), [first]);
        })
        .join()
        .unwrap();
        assert_eq!(processors(), all);
    }
}
