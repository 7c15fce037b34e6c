// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of a segment: a sealed memfd that its owner and all connected processes map.
//!
//! Not about the program's mappings (`map`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use scif::sys::fork::PrivateFd;
use scif::sys::memfd::{self, FIXED_SIZE};
use scif::sys::mmap::{Mapping, PAGE};
use scif_ring::Mem;

use crate::error::{Outcome, SciError, fail};
use crate::lock::take;

/// Memory of a segment.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: PrivateFd,
    size: usize,
    /// Mapping of the library for transfers, made by the first of them.
    view: OnceLock<Mapping>,
    making: Mutex<()>,
}

/// Returns the size of the memfd of a segment: whole pages.
fn whole_pages(size: usize) -> Outcome<usize> {
    match size.checked_next_multiple_of(PAGE) {
        Some(whole) if isize::try_from(whole).is_ok() => Ok(whole),
        _ => fail(SciError::Nospc),
    }
}

impl Memory {
    /// Makes zeroed memory.
    ///
    /// # Errors
    /// `Nospc` for more than the machine has.
    pub(crate) fn new(size: usize) -> Outcome<Memory> {
        let whole = whole_pages(size)?;
        if whole as u64 > scif::memory_limit() {
            return fail(SciError::Nospc);
        }
        let fd = memfd::create("sisci:segment", whole)?;
        memfd::seal(&fd, FIXED_SIZE)?;
        Ok(Memory::over(fd, size))
    }

    /// Takes over memory of a peer.
    ///
    /// # Errors
    /// `ConnectionRefused` for a descriptor that is not memory of this size.
    pub(crate) fn of_peer(fd: OwnedFd, size: u64) -> Outcome<Memory> {
        let size = usize::try_from(size).map_err(|_| SciError::ConnectionRefused)?;
        match memfd::check(&fd, whole_pages(size)?, FIXED_SIZE) {
            Ok(()) if size > 0 => Ok(Memory::over(fd, size)),
            _ => {
                scif::logging::warn_about_peer!(
                    "memory of a segment: not a sealed memfd of {size} bytes; refused. The owner \
                     is no correct SISCI library"
                );
                fail(SciError::ConnectionRefused)
            }
        }
    }

    fn over(fd: OwnedFd, size: usize) -> Memory {
        Memory { fd: PrivateFd::new(fd), size, view: OnceLock::new(), making: Mutex::new(()) }
    }

    /// Returns the size in bytes that the owner asked for.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Checks a range.
    ///
    /// # Errors
    /// `OutOfRange` if it does not lie inside.
    pub(crate) fn check(&self, offset: usize, len: usize) -> Outcome<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => fail(SciError::OutOfRange),
        }
    }

    /// Returns bytes for a transfer by the library. The memory outlives their use.
    ///
    /// # Errors
    /// `OutOfRange`; `Nospc` without address space.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Outcome<Mem> {
        self.check(offset, len)?;
        if self.view.get().is_none() {
            let _making = take(&self.making);
            if self.view.get().is_none() {
                let view = Mapping::shared(&self.fd, whole_pages(self.size)?, true)?;
                let _ = self.view.set(view);
            }
        }
        let view = self.view.get().ok_or(SciError::System)?;
        view.bytes(offset, len).map_err(|_| SciError::OutOfRange.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_peer_is_checked() {
        let own = Memory::new(5000).unwrap();
        let copy = || own.fd().try_clone_to_owned().unwrap();
        let peer = Memory::of_peer(copy(), 5000).unwrap();
        own.bytes(4990, 4).unwrap().copy_from_slice(&[1, 2, 3, 4]);
        let mut got = [0; 4];
        peer.bytes(4990, 4).unwrap().copy_to_slice(&mut got);
        assert_eq!(got, [1, 2, 3, 4]);
        let code = |result: Outcome<Mem>| result.err().map(|failure| failure.code);
        assert_eq!(code(peer.bytes(4990, 11)), Some(SciError::OutOfRange));
        assert_eq!(code(peer.bytes(usize::MAX, 2)), Some(SciError::OutOfRange));
        for size in [0, 9000, u64::MAX] {
            assert!(Memory::of_peer(copy(), size).is_err(), "{size}");
        }
    }
}
