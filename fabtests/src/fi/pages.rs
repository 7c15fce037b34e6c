// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory whose pages a case handles itself: mapped, dropped, enlarged, unmapped and mapped again.
//!
//! Not about allocated memory, whose pages are the allocator's.
#![expect(unsafe_code, reason = "pages are handled by address")]

use std::ptr::null_mut;

use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use scif_ring::{Mem, rmw};

use super::Buf;

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What the kernel calls memory of a provider that its peers can map.
const WINDOW: &str = "/memfd:scif:moved";

impl Buf {
    /// Zeroed pages in a private mapping of their own, with a page on either side that is nobody's.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn private(len: usize) -> Result<Buf> {
        const PAGE: usize = 4096;
        let room = len.next_multiple_of(PAGE) + 2 * PAGE;
        // SAFETY: the kernel picks a range nobody uses.
        let at =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let at = at.cast::<u8>().wrapping_add(PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: inside the range just mapped, which nobody else knows.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), len.next_multiple_of(PAGE), RW, flags)? };
        Ok(Buf::at(at, len))
    }

    /// Puts fresh private pages where these are.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn renew(&self) -> Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the pages are this case's, which has no reference to them.
        unsafe { rustix::mm::mmap_anonymous(self.ptr().cast(), self.len(), RW, flags).map(drop) }
    }

    /// Tells the kernel that what they hold is not needed, as allocators do.
    ///
    /// # Errors
    /// Those of `madvise(2)`.
    pub fn drop_contents(&self) -> Result<()> {
        // SAFETY: the pages are this case's, which has no reference to them.
        unsafe { rustix::mm::madvise(self.ptr().cast(), self.len(), Advice::LinuxDontNeed) }
    }

    /// The same pages and more behind them, wherever the kernel puts them.
    ///
    /// # Errors
    /// Those of `mremap(2)`.
    pub fn enlarge(&self, len: usize) -> Result<Buf> {
        // SAFETY: the pages are this case's, which has no reference to them.
        let at = unsafe { rustix::mm::mremap(self.ptr().cast(), self.len(), len, MremapFlags::MAYMOVE)? };
        Ok(Buf::at(at.cast(), len))
    }

    /// `mlock(2)`
    ///
    /// # Errors
    /// Those of it.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: changes no byte.
        unsafe { rustix::mm::mlock(self.ptr().cast(), self.len()) }
    }

    /// `munmap(2)`
    ///
    /// # Errors
    /// Those of it.
    pub fn unmap(&self) -> Result<()> {
        // SAFETY: the pages are this case's, which has no reference to them.
        unsafe { rustix::mm::munmap(self.ptr().cast(), self.len()) }
    }

    /// Adds to an aligned word by an instruction of the processor; what it was.
    pub fn add_u64(&self, off: usize, n: u64) -> Option<u64> {
        let at = self.sub(off, 8);
        // SAFETY: eight bytes of memory that stays mapped while the case runs.
        let word = unsafe { Mem::new(at.ptr(), at.len()) };
        rmw::fetch_add(&word, n)
    }

    /// Whether its first byte lies on a page that peers of this process can map.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn in_window(&self) -> std::io::Result<bool> {
        let at = self.addr();
        Ok(windows()?.iter().any(|&(begin, end)| begin <= at && at < end))
    }
}

fn windows() -> std::io::Result<Vec<(usize, usize)>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let ours = maps.lines().filter(|line| line.contains(WINDOW));
    Ok(ours
        .filter_map(|line| {
            let (begin, end) = line.split(' ').next()?.split_once('-')?;
            Some((
                usize::from_str_radix(begin, 16).ok()?,
                usize::from_str_radix(end, 16).ok()?,
            ))
        })
        .collect())
}

/// Whether this process has mapped memory of a peer.
///
/// # Errors
/// When the kernel does not say.
pub fn maps_windows() -> std::io::Result<bool> {
    // No window of its own is as large.
    Ok(windows()?.iter().any(|(begin, end)| end - begin > 1 << 34))
}

/// Whether the kernel lets this process hold up stores to pages that move.
#[must_use]
pub fn may_hold_stores() -> bool {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: makes a descriptor; no memory is touched.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::O_CLOEXEC) };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: just made, and nobody else's.
            unsafe { libc::close(fd) };
            true
        }
        _ => false,
    }
}
