// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Anonymous memory with a descriptor, so that it can be handed to another process, and the seals that make
//! it safe to map what another process hands to us. See `memfd_create(2)`, F_ADD_SEALS in `fcntl(2)`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// No one can change the size any more: what is mapped stays backed.
pub(crate) const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Why a received descriptor was not mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unfit {
    /// Not a memfd, or one whose size its sender could still change, or writable where it must not be.
    Seals,
    Size,
}

/// A sparse memfd of `len` bytes, zeroed, not sealed yet.
pub(crate) fn create(name: &str, len: usize) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL is unknown before Linux 6.3.
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// Adds `seals` and forbids any further one.
pub(crate) fn seal(fd: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(fd, seals | SealFlags::SEAL)
}

/// Whether a descriptor somebody sent us may be mapped: a memfd of exactly `len` bytes with at least `seals`.
pub(crate) fn check(fd: impl AsFd, len: usize, seals: SealFlags) -> Result<(), Unfit> {
    // EINVAL for anything that is no memfd (or hugetlb file, whose size then differs).
    let has = rustix::fs::fcntl_get_seals(&fd).map_err(|_| Unfit::Seals)?;
    if !has.contains(seals) {
        return Err(Unfit::Seals);
    }
    // The size is read after the seal was seen, so it is final.
    let stat = rustix::fs::fstat(&fd).map_err(|_| Unfit::Size)?;
    if u64::try_from(stat.st_size) == Ok(len as u64) {
        Ok(())
    } else {
        Err(Unfit::Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_and_sizes_are_checked() {
        let fd = create("scif-test", 8192).unwrap();
        assert_eq!(check(&fd, 8192, FIXED_SIZE), Err(Unfit::Seals));
        seal(&fd, FIXED_SIZE).unwrap();
        assert_eq!(check(&fd, 8192, FIXED_SIZE), Ok(()));
        assert_eq!(check(&fd, 4096, FIXED_SIZE), Err(Unfit::Size));
        assert_eq!(
            check(&fd, 8192, FIXED_SIZE | SealFlags::FUTURE_WRITE),
            Err(Unfit::Seals)
        );
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(check(&event, 0, FIXED_SIZE), Err(Unfit::Seals));
    }
}
