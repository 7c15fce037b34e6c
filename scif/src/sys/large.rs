// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Huge pages (2 MiB), which have a single page table entry. Detects whether memory of the program
//! has them, restores them after a move, and finds addresses at which a file can be mapped with
//! them. See MADV_COLLAPSE and MADV_HUGEPAGE in `madvise(2)`.
//!
//! Not about huge pages of the pool (hugetlb), which do not move, nor about moving (`pages`).
#![expect(
    unsafe_code,
    reason = "asks for other pages under the program's bytes, and reserves addresses"
)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use scif_ring::counter::AtomicFlag;

use super::process::last_errno;
use super::smaps::{self, PageSizeHint};

/// Size in bytes of a huge page, and its alignment in memory and in a file.
pub const LARGE: usize = 2 << 20;
/// Number of attempts of MADV_COLLAPSE, which fails temporarily while other threads access the
/// memory. After them the memory keeps its small pages.
const TRIES: usize = 30;
/// Pause between two of these attempts.
const PAUSE: Duration = Duration::from_micros(100);

/// Returns begin and end of the whole huge pages that fit between two addresses, if any.
fn within(begin: usize, end: usize) -> Option<(usize, usize)> {
    let first = begin.checked_next_multiple_of(LARGE)?;
    let last = end - end % LARGE;
    (first < last).then_some((first, last))
}

/// Whether a whole huge page fits between two addresses, or offsets in a file.
pub(crate) fn holds(begin: usize, end: usize) -> bool {
    within(begin, end).is_some()
}

/// Returns the next position from `at` on with the same offset within a huge page as `like`.
pub fn next_like(at: u64, like: u64) -> Option<u64> {
    at.checked_add(like.wrapping_sub(at) % LARGE as u64)
}

/// Size in bytes of each of the three zones of a file into which pages move. The zone of a page
/// records its wanted page size. A move back therefore needs no second query of the kernel.
pub const ROOM_BYTES: u64 = 1 << 60;

impl PageSizeHint {
    /// Returns the wanted page size of the memory at `begin..end`, which lies in one area.
    /// `was_written`: private memory without a file, with all pages present. Cheap where the kernel
    /// can be queried for these addresses alone (Linux 6.7), or where no huge page fits.
    pub(super) fn at(begin: usize, end: usize, was_written: bool) -> PageSizeHint {
        if !holds(begin, end) {
            return PageSizeHint::Any;
        }
        match are_there(begin, end) {
            Some(true) => PageSizeHint::Large,
            // The program's advice cannot be read this way. A refusal of huge pages matters only
            // where the system gives them by default.
            Some(false) => {
                let refused = was_written && all_get_large() && refuses_large(begin, end);
                if refused { PageSizeHint::Small } else { PageSizeHint::Any }
            }
            None => smaps::wanted(begin, end),
        }
    }

    /// Returns the wanted page size from the zone of an offset in a file.
    pub(super) fn of(offset: u64) -> PageSizeHint {
        match offset / ROOM_BYTES {
            1 => PageSizeHint::Large,
            2 => PageSizeHint::Small,
            _ => PageSizeHint::Any,
        }
    }

    /// Whether new private memory at `begin..end` gets huge pages when it is first written.
    pub(super) fn gives_large(self, begin: usize, end: usize) -> bool {
        match self {
            PageSizeHint::Large => holds(begin, end),
            PageSizeHint::Any => holds(begin, end) && all_get_large(),
            PageSizeHint::Small => false,
        }
    }

    /// Returns the offset of its zone.
    pub fn room(self) -> u64 {
        match self {
            PageSizeHint::Any => 0,
            PageSizeHint::Large => ROOM_BYTES,
            PageSizeHint::Small => 2 * ROOM_BYTES,
        }
    }

    /// Sets the corresponding advice on memory of any kind.
    pub(super) fn advise(self, at: usize, len: usize) {
        let advice = match self {
            PageSizeHint::Any => return,
            PageSizeHint::Large => Advice::LinuxHugepage,
            PageSizeHint::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: changes no byte.
        let _ = unsafe { rustix::mm::madvise(pointer(at), len, advice) };
    }

    /// Makes huge pages of the whole ones in a range, if they are wanted, independent of the
    /// system's default. All pages must be present. Not for ranges with suspended stores, since it
    /// may allocate.
    pub(super) fn make(self, at: usize, len: usize) {
        static SAID: AtomicFlag = AtomicFlag::new(false);
        let Some((begin, end)) = within(at, at + len).filter(|_| self == PageSizeHint::Large)
        else {
            return;
        };
        if let Err(errno) = collapse(begin, end - begin) {
            if !SAID.swap(true) {
                log::warn!(
                    "registered memory has lost its huge pages: MADV_COLLAPSE: {errno}; accesses \
                     may be slower. Needs Linux 6.1 and free memory in blocks of 2 MiB; check \
                     /sys/kernel/mm/transparent_hugepage"
                );
            }
        }
    }
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<Scan>() == 96);
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// Whether a range contains huge pages. `None`: the kernel is older than Linux 6.7.
pub(super) fn are_there(begin: usize, end: usize) -> Option<bool> {
    use std::os::fd::AsRawFd;
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
    // Begin, end and kind of the first one.
    let mut found = [0u64; 3];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: begin as u64,
        end: end as u64,
        vec: found.as_mut_ptr().expose_provenance() as u64,
        vec_len: 1,
        category_mask: PAGE_IS_HUGE,
        return_mask: PAGE_IS_HUGE,
        ..Scan::default()
    };
    // SAFETY: `scan` is a live structure of the given size, and `found` holds the one region that
    // it requests.
    let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
    (n >= 0).then_some(n > 0)
}

/// Whether the system gives huge pages to all memory without MADV_NOHUGEPAGE.
fn all_get_large() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| modes.contains("[always]"))
}

/// Whether written private memory without a file, large enough for a huge page, refuses huge pages
/// while other memory does not.
fn refuses_large(begin: usize, end: usize) -> bool {
    // Outside of a whole huge page the kernel finds no place for one.
    let Some((at, _)) = within(begin, end) else {
        return false;
    };
    // A single page cannot become a huge page: the result shows only whether an attempt is
    // permitted.
    let is_refused = |at| collapse(at, 4096) == Err(Errno::INVAL);
    is_refused(at)
        && fresh(LARGE, 0).is_ok_and(|other| {
            // SAFETY: just mapped, and known to this function only. Untouched memory would refuse
            // too.
            let _ = unsafe { rustix::mm::madvise(other, 4096, Advice::LinuxPopulateWrite) };
            let is_odd = !is_refused(other.expose_provenance());
            // SAFETY: just mapped, and known to this function only.
            let _ = unsafe { rustix::mm::munmap(other, LARGE) };
            is_odd
        })
}

/// Makes huge pages of a range that consists of whole ones.
pub(super) fn collapse(at: usize, len: usize) -> Result<(), Errno> {
    let mut tries = TRIES;
    loop {
        // SAFETY: changes no byte.
        let rc = unsafe { libc::madvise(pointer(at), len, libc::MADV_COLLAPSE) };
        if rc == 0 {
            return Ok(());
        }
        let errno = last_errno();
        tries -= 1;
        if tries == 0 || ![Errno::AGAIN, Errno::BUSY].contains(&errno) {
            return Err(errno);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Reserves `len` bytes of inaccessible addresses. If a huge page fits, they have the same offset
/// within a huge page as `like`, the offset of the later content in its file.
pub(crate) fn reserve(len: usize, like: u64) -> Result<*mut c_void, Errno> {
    take(len, like, ProtFlags::empty(), MapFlags::NORESERVE)
}

/// Maps private memory, at addresses chosen like those of [`reserve`].
pub(super) fn fresh(len: usize, like: u64) -> Result<*mut c_void, Errno> {
    take(len, like, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
}

fn take(len: usize, like: u64, prot: ProtFlags, flags: MapFlags) -> Result<*mut c_void, Errno> {
    let flags = flags | MapFlags::PRIVATE;
    let skip = usize::try_from(like % LARGE as u64).unwrap_or(0);
    if !holds(skip, skip.checked_add(len).ok_or(Errno::NOMEM)?) {
        // SAFETY: without MAP_FIXED the kernel picks an unused range.
        return unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, flags) };
    }
    let all = len.checked_add(LARGE).ok_or(Errno::NOMEM)?;
    // SAFETY: as above.
    let begin = unsafe { rustix::mm::mmap_anonymous(null_mut(), all, prot, flags) }?;
    let before = skip.wrapping_sub(begin.addr()) % LARGE;
    let at = begin.wrapping_byte_add(before);
    for (end, more) in [(begin, before), (at.wrapping_byte_add(len), LARGE - before)] {
        if more != 0 {
            // SAFETY: in the range just mapped, outside the returned part.
            let _ = unsafe { rustix::mm::munmap(end, more) };
        }
    }
    Ok(at)
}

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_found() {
        assert_eq!(within(0, LARGE), Some((0, LARGE)));
        assert_eq!(within(4096, 2 * LARGE), Some((LARGE, 2 * LARGE)));
        assert_eq!(within(4096, 2 * LARGE - 4096), None);
        assert_eq!(within(LARGE, 4 * LARGE - 4096), Some((LARGE, 3 * LARGE)));
        assert_eq!(within(usize::MAX - 4096, usize::MAX), None);
    }

    #[test]
    fn the_page_size_follows_the_memory_and_the_address() {
        let len = 2 * LARGE;
        for (said, wanted) in [
            (PageSizeHint::Large, PageSizeHint::Large),
            (PageSizeHint::Small, PageSizeHint::Any),
            (PageSizeHint::Any, PageSizeHint::Any),
        ] {
            let at = fresh(len, 0).unwrap().expose_provenance();
            said.advise(at, len);
            // SAFETY: just mapped.
            unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxPopulateWrite) }.unwrap();
            let by_smaps = smaps::wanted(at, at + len);
            match are_there(at, at + len) {
                Some(any) if any || said != PageSizeHint::Large => {
                    assert_eq!(
                        any,
                        said == PageSizeHint::Large
                            || (all_get_large() && said == PageSizeHint::Any)
                    );
                    for from in [at, at + 4096, at + LARGE / 2] {
                        assert_eq!(
                            refuses_large(from, at + len),
                            said == PageSizeHint::Small,
                            "{from:x}"
                        );
                    }
                    if !all_get_large() {
                        assert_eq!(PageSizeHint::at(at, at + len, true), wanted);
                    }
                    assert!(said == PageSizeHint::Any || by_smaps == said);
                }
                _ => println!("skipped: no large pages, or nobody to ask"),
            }
            assert_eq!(PageSizeHint::at(at, at + LARGE - 4096, true), PageSizeHint::Any);
            assert_eq!(PageSizeHint::of(said.room()), said);
            assert_eq!(PageSizeHint::of(said.room() + ROOM_BYTES - 1), said);
            super::super::pages::unmap(at, len).unwrap();
        }
    }

    #[test]
    fn alignment_to_huge_pages_is_preserved() {
        let large = LARGE as u64;
        for like in [0, 4096, large - 4096, 7 * large + 8192] {
            for at in [0, 4096, large, 5 * large - 4096] {
                let next = next_like(at, like).unwrap();
                assert!(next >= at && next - at < large && next % large == like % large);
            }
        }
        assert_eq!(next_like(u64::MAX - 4096, 0), None);
    }

    #[test]
    fn addresses_have_the_requested_alignment() {
        for len in [4096, LARGE - 4096, LARGE, 3 * LARGE + 4096] {
            for like in [0, 4096, 5 * LARGE - 4096] {
                let at = reserve(len, like as u64).unwrap();
                let fits = holds(like, like + len);
                assert!(!fits || at.addr() % LARGE == like % LARGE);
                super::super::pages::unmap(at.expose_provenance(), len).unwrap();
            }
        }
    }
}
