// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory whose pages a case manages itself: mapped, dropped, enlarged, unmapped and mapped again.
//!
//! Allocated memory is excluded, because its pages belong to the allocator.
#![expect(unsafe_code, reason = "pages are handled by address")]

use std::ptr::null_mut;

use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use scif_ring::{Mem, rmw};

use super::Buf;

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Name in `/proc/self/maps` of provider memory that peers can map.
const WINDOW: &str = "/memfd:scif:moved";

impl Buf {
    /// Returns zeroed pages in a separate private mapping, between two inaccessible pages.
    pub fn private(len: usize) -> Result<Buf> {
        const PAGE: usize = 4096;
        let room = len.next_multiple_of(PAGE) + 2 * PAGE;
        // SAFETY: the kernel chooses an unused range.
        let at = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let at = at.cast::<u8>().wrapping_add(PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: inside the range just mapped, which has no other user.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), len.next_multiple_of(PAGE), RW, flags)? };
        Ok(Buf::at(at, len))
    }

    /// Replaces the pages by new private pages.
    pub fn renew(&self) -> Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the pages belong to this case, which has no reference to them.
        unsafe { rustix::mm::mmap_anonymous(self.ptr().cast(), self.len(), RW, flags).map(drop) }
    }

    /// Drops the contents of the pages with `madvise(2)`, as allocators do.
    pub fn drop_contents(&self) -> Result<()> {
        // SAFETY: the pages belong to this case, which has no reference to them.
        unsafe { rustix::mm::madvise(self.ptr().cast(), self.len(), Advice::LinuxDontNeed) }
    }

    /// Enlarges the mapping and returns its possibly moved range.
    pub fn enlarge(&self, len: usize) -> Result<Buf> {
        // SAFETY: the pages belong to this case, which has no reference to them.
        let at = unsafe {
            rustix::mm::mremap(self.ptr().cast(), self.len(), len, MremapFlags::MAYMOVE)?
        };
        Ok(Buf::at(at.cast(), len))
    }

    /// Moves the pages to the range `to` with `mremap(2)`, and puts new private pages here.
    pub fn move_to(&self, to: Buf) -> Result<()> {
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: the pages of both ranges belong to this case, which has no reference to them.
        unsafe {
            rustix::mm::mremap_fixed(
                self.ptr().cast(),
                self.len(),
                to.len(),
                flags,
                to.ptr().cast(),
            )?;
        }
        self.renew()
    }

    /// Makes the pages read-only (`mprotect(2)`).
    pub fn forbid_stores(&self) -> Result<()> {
        // SAFETY: the pages belong to this case, which does not store to them afterwards.
        unsafe { rustix::mm::mprotect(self.ptr().cast(), self.len(), MprotectFlags::READ) }
    }

    /// Locks the pages in memory (`mlock(2)`).
    pub fn lock(&self) -> Result<()> {
        // SAFETY: changes no byte.
        unsafe { rustix::mm::mlock(self.ptr().cast(), self.len()) }
    }

    /// Unmaps the pages (`munmap(2)`).
    pub fn unmap(&self) -> Result<()> {
        // SAFETY: the pages belong to this case, which has no reference to them.
        unsafe { rustix::mm::munmap(self.ptr().cast(), self.len()) }
    }

    /// Adds to an aligned word with one processor instruction. Returns the former value.
    pub fn add_u64(&self, off: usize, n: u64) -> Option<u64> {
        let at = self.sub(off, 8);
        // SAFETY: eight bytes of memory that stays mapped during the case.
        let word = unsafe { Mem::new(at.ptr(), at.len()) };
        rmw::fetch_add(&word, n)
    }

    /// Whether the first byte lies on a page that peers of this process can map.
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
            Some((usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        })
        .collect())
}

/// Whether this process has mapped memory of a peer.
pub fn maps_windows() -> std::io::Result<bool> {
    // Windows of this process itself are smaller than 16 GiB.
    Ok(windows()?.iter().any(|(begin, end)| end - begin > 1 << 34))
}

/// Whether the kernel lets this process suspend writers of pages that move (userfaultfd write
/// protection).
#[must_use]
pub fn may_hold_stores() -> bool {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: creates a descriptor and accesses no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::O_CLOEXEC) };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the descriptor was just created and has no other owner.
            unsafe { libc::close(fd) };
            true
        }
        _ => false,
    }
}
