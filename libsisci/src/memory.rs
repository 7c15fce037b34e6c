// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of a segment: a sealed memfd that its owner and all connected processes map.
//!
//! Not about the program's mappings (`map`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use scif::sys::fork::PrivateFd;
use scif::sys::memfd::{self, FIXED_SIZE};
use scif::sys::mmap::{Mapping, PAGE};
use scif::sys::pages::{self, Area, WriteFence};
use scif_ring::Mem;

use crate::error::{Outcome, SciError, fail};
use crate::lock::take;

/// Number of threads of the library besides the one that starts with the first DMA queue. Without a
/// thread of the program besides the caller, nothing stores to pages while they move.
const OWN_THREADS: usize = 2;

/// Memory of a segment.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: PrivateFd,
    size: usize,
    /// Mapping of the library for transfers, made by the first of them.
    view: OnceLock<Mapping>,
    making: Mutex<()>,
    /// Range of the program whose pages moved into the memfd.
    program: Option<(usize, usize)>,
}

/// Returns the means to suspend stores of other threads of the program.
///
/// # Errors
/// `NotAvailable` if there are such threads and the system refuses.
fn store_guard() -> Outcome<Option<WriteFence>> {
    if let Some(guard) = WriteFence::new() {
        return Ok(Some(guard));
    }
    if pages::threads() <= 1 + OWN_THREADS { Ok(None) } else { fail(SciError::NotAvailable) }
}

/// Whether pages of an area can move: private memory without a file, no stack.
fn is_movable(area: &Area) -> bool {
    let special = area.name.starts_with("[stack") || area.name.contains("huge");
    area.read && area.write && !area.shared && area.file.ino == 0 && !special
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

    /// Makes memory of pages of the program, which keep address and content
    /// (`SCIRegisterSegmentMemory`).
    ///
    /// # Errors
    /// `SizeAlignment` for parts of pages; `IllegalAddress` for memory that is not plain private
    /// memory of the program; `NotAvailable` if the pages cannot move now.
    pub(crate) fn of_program(addr: usize, size: usize) -> Outcome<Memory> {
        if size == 0 || size % PAGE != 0 {
            return fail(SciError::SizeAlignment);
        }
        let end = addr.checked_add(size).ok_or(SciError::IllegalAddress)?;
        if addr == 0 || addr % PAGE != 0 {
            return fail(SciError::IllegalAddress);
        }
        let areas = pages::areas(addr, end).map_err(|_| SciError::Nospc)?;
        let mut reached = addr;
        for area in &areas {
            if area.begin > reached || !is_movable(area) {
                return fail(SciError::IllegalAddress);
            }
            reached = area.end;
        }
        if reached < end {
            return fail(SciError::IllegalAddress);
        }
        let mut memory = Memory::new(size)?;
        let guard = store_guard()?;
        for area in &areas {
            let (from, to) = (area.begin.max(addr), area.end.min(end));
            let offset = (from - addr) as u64;
            let hold = |_: usize, _: usize| Some(());
            let moved = pages::move_in(area, from..to, memory.fd(), offset, guard.as_ref(), hold);
            if let Err(errno) = moved {
                drop(guard);
                memory.program = Some((addr, end));
                memory.restore();
                scif::logging::warn_about_call!(
                    "SCIRegisterSegmentMemory: pages at {from:#x} did not move: {errno}; \
                     SCI_ERR_NOT_AVAILABLE. Use memory that is mapped for the segment alone"
                );
                return fail(SciError::NotAvailable);
            }
        }
        memory.program = Some((addr, end));
        Ok(memory)
    }

    /// Moves the pages of the program back to private memory. Pages that cannot move remain shared
    /// with the memfd, with their content.
    pub(crate) fn restore(&self) {
        let Some((addr, end)) = self.program else { return };
        let (Ok(areas), Ok(file)) = (pages::areas(addr, end), pages::file_id(&self.fd)) else {
            return;
        };
        let Ok(guard) = store_guard() else { return };
        for area in areas.iter().filter(|area| area.shared && area.file == file) {
            let (from, to) = (area.begin.max(addr), area.end.min(end));
            let fd = Some(self.fd.as_fd());
            if let Err(errno) = pages::restore(area, from, to, guard.as_ref(), fd) {
                log::debug!("pages at {from:#x} stay in the memory of a removed segment: {errno}");
            }
        }
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
        let fd = PrivateFd::new(fd);
        let (view, making) = (OnceLock::new(), Mutex::new(()));
        Memory { fd, size, view, making, program: None }
    }

    /// Returns the size in bytes that the owner requested.
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
    fn memory_of_the_program_moves_there_and_back() {
        let own = Mapping::private(2 * PAGE).unwrap();
        let addr = own.address();
        own.bytes(PAGE, 4).unwrap().copy_from_slice(&[1, 2, 3, 4]);
        let memory = Memory::of_program(addr, 2 * PAGE).unwrap();
        let mut got = [0; 4];
        memory.bytes(PAGE, 4).unwrap().copy_to_slice(&mut got);
        assert_eq!(got, [1, 2, 3, 4]);
        memory.bytes(0, 4).unwrap().copy_from_slice(&[5; 4]);
        own.bytes(0, 4).unwrap().copy_to_slice(&mut got);
        assert_eq!(got, [5; 4], "one memory");
        memory.restore();
        memory.bytes(0, 4).unwrap().copy_from_slice(&[6; 4]);
        own.bytes(0, 4).unwrap().copy_to_slice(&mut got);
        assert_eq!(got, [5; 4], "private again");
        for (addr, size, code) in [
            (addr, 100, SciError::SizeAlignment),
            (addr + 8, PAGE, SciError::IllegalAddress),
            (0, PAGE, SciError::IllegalAddress),
            (usize::MAX - PAGE + 1, 2 * PAGE, SciError::IllegalAddress),
        ] {
            let failed = Memory::of_program(addr, size).err().map(|failure| failure.code);
            assert_eq!(failed, Some(code), "{addr:#x} {size}");
        }
    }

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
