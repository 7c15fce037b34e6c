// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large pages, which one entry of the processor's tables maps: whether memory of the program lies on such, that it does
//! again after it has moved, and addresses at which large pages of a file can be mapped as such. See MADV_COLLAPSE and
//! MADV_HUGEPAGE in `madvise(2)`.
//!
//! Not about huge pages of the pool, which do not move, nor about moving (`pages`).
#![expect(
    unsafe_code,
    reason = "asks for other pages under the program's bytes, and reserves addresses"
)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use scif_ring::counter::Flag;

use super::process::last_errno;
use super::smaps;

/// Bytes of a large page, and what its place is a multiple of, in memory as in a file.
pub(crate) const LARGE: usize = 2 << 20;
/// How often the kernel is asked again when something was in its way, as another thread's access may be; and how long after.
const TRIES: usize = 30;
const PAUSE: Duration = Duration::from_micros(100);

/// The whole large pages that fit between two addresses, if one does: where they begin and end.
fn within(begin: usize, end: usize) -> Option<(usize, usize)> {
    let first = begin.checked_next_multiple_of(LARGE)?;
    let last = end - end % LARGE;
    (first < last).then_some((first, last))
}

/// Whether a whole large page fits between two addresses, or places in a file.
pub(crate) fn holds(begin: usize, end: usize) -> bool {
    within(begin, end).is_some()
}

/// The next place from `at` on that is as far from the last large page's as `like` is.
pub(crate) fn next_like(at: u64, like: u64) -> Option<u64> {
    at.checked_add(like.wrapping_sub(at) % LARGE as u64)
}

/// A file that pages move into may have three rooms, each of so many bytes: in which some lie says what was wanted of them. So
/// it is known to whoever moves them back, and asked of the kernel once.
pub(crate) const ROOM_BYTES: u64 = 1 << 60;

/// What kind of pages memory is to have that takes the place of other memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wanted {
    /// As the system likes.
    Any,
    /// Large ones: there were some, or the program had said MADV_HUGEPAGE.
    Large,
    /// Small ones: the program had said MADV_NOHUGEPAGE.
    Small,
}

impl Wanted {
    /// By what is at `begin..end`, in one area; `was_written`: private memory of no file, and none of its pages is missing. A
    /// look costs little where the kernel can be asked about these addresses alone (Linux 6.7), or where no large page fits.
    pub(super) fn at(begin: usize, end: usize, was_written: bool) -> Wanted {
        if !holds(begin, end) {
            return Wanted::Any;
        }
        match are_there(begin, end) {
            Some(true) => Wanted::Large,
            // What the program has said is not to be had so; that it wants none matters where all get some.
            Some(false) if was_written && all_get_large() && refuses_large(begin, end) => Wanted::Small,
            Some(false) => Wanted::Any,
            None => smaps::wanted(begin, end),
        }
    }

    /// By the place in a file with rooms.
    pub(super) fn of(offset: u64) -> Wanted {
        match offset / ROOM_BYTES {
            1 => Wanted::Large,
            2 => Wanted::Small,
            _ => Wanted::Any,
        }
    }

    /// Where its room begins.
    pub(crate) fn room(self) -> u64 {
        match self {
            Wanted::Any => 0,
            Wanted::Large => ROOM_BYTES,
            Wanted::Small => 2 * ROOM_BYTES,
        }
    }

    /// Says so of memory of any kind.
    pub(super) fn say(self, at: usize, len: usize) {
        let advice = match self {
            Wanted::Any => return,
            Wanted::Large => Advice::LinuxHugepage,
            Wanted::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: changes no byte.
        let _ = unsafe { rustix::mm::madvise(pointer(at), len, advice) };
    }

    /// If large ones are wanted: makes them of whole ones in a range, whatever the system gives to who does not ask. All its
    /// pages are there. Not for ranges where stores are held up: it may allocate.
    pub(super) fn make(self, at: usize, len: usize) {
        static SAID: Flag = Flag::new(false);
        let Some((begin, end)) = within(at, at + len).filter(|_| self == Wanted::Large) else {
            return;
        };
        if let Err(errno) = collapse(begin, end - begin)
            && !SAID.swap(true)
        {
            log::warn!(
                "memory of windows lies on small pages where it lay on large ones: MADV_COLLAPSE {errno}"
            );
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

/// Whether any pages of a range are large ones. `None`: the kernel is older than Linux 6.7.
pub(super) fn are_there(begin: usize, end: usize) -> Option<bool> {
    use std::os::fd::AsRawFd;
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
    // Beginning, end and kind of the first one.
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
    // SAFETY: `scan` is a live structure of the size it says, and `found` room for the one region it says.
    let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
    (n >= 0).then_some(n > 0)
}

/// Whether the system gives large pages to all who do not refuse them.
fn all_get_large() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| modes.contains("[always]"))
}

/// Whether private memory of no file, which has room for a large page and was written, is to have none, while other may.
fn refuses_large(begin: usize, end: usize) -> bool {
    // Elsewhere in it the kernel finds no room for one.
    let Some((at, _)) = within(begin, end) else {
        return false;
    };
    // Of one page none can be made: only whether that may be tried is said.
    let is_refused = |at| collapse(at, 4096) == Err(Errno::INVAL);
    is_refused(at)
        && fresh(LARGE, 0).is_ok_and(|other| {
            // SAFETY: just mapped, and nobody else knows it. Untouched memory would refuse too.
            let _ = unsafe { rustix::mm::madvise(other, 4096, Advice::LinuxPopulateWrite) };
            let is_odd = !is_refused(other.expose_provenance());
            // SAFETY: just mapped, and nobody else knows it.
            let _ = unsafe { rustix::mm::munmap(other, LARGE) };
            is_odd
        })
}

fn collapse(at: usize, len: usize) -> Result<(), Errno> {
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

/// `len` bytes of addresses at which nothing can be touched. If a large page of what is mapped there can be mapped as such
/// they lie as `like` does, the place of that in its file.
pub(crate) fn reserve(len: usize, like: u64) -> Result<*mut c_void, Errno> {
    take(len, like, ProtFlags::empty(), MapFlags::NORESERVE)
}

/// The same, as private memory.
pub(super) fn fresh(len: usize, like: u64) -> Result<*mut c_void, Errno> {
    take(len, like, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
}

fn take(len: usize, like: u64, prot: ProtFlags, flags: MapFlags) -> Result<*mut c_void, Errno> {
    let flags = flags | MapFlags::PRIVATE;
    let skip = usize::try_from(like % LARGE as u64).unwrap_or(0);
    if !holds(skip, skip.checked_add(len).ok_or(Errno::NOMEM)?) {
        // SAFETY: without MAP_FIXED the kernel picks a range nobody uses.
        return unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, flags) };
    }
    let all = len.checked_add(LARGE).ok_or(Errno::NOMEM)?;
    // SAFETY: as above.
    let begin = unsafe { rustix::mm::mmap_anonymous(null_mut(), all, prot, flags) }?;
    let before = skip.wrapping_sub(begin.addr()) % LARGE;
    let at = begin.wrapping_byte_add(before);
    for (end, more) in [(begin, before), (at.wrapping_byte_add(len), LARGE - before)] {
        if more != 0 {
            // SAFETY: in the range just mapped, outside of what is given out.
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
    fn what_is_wanted_shows_in_what_is_there_and_in_the_place() {
        let len = 2 * LARGE;
        for (said, wanted) in [
            (Wanted::Large, Wanted::Large),
            (Wanted::Small, Wanted::Any),
            (Wanted::Any, Wanted::Any),
        ] {
            let at = fresh(len, 0).unwrap().expose_provenance();
            said.say(at, len);
            // SAFETY: just mapped.
            unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxPopulateWrite) }.unwrap();
            let by_smaps = smaps::wanted(at, at + len);
            match are_there(at, at + len) {
                Some(any) if any || said != Wanted::Large => {
                    assert_eq!(
                        any,
                        said == Wanted::Large || (all_get_large() && said == Wanted::Any)
                    );
                    for from in [at, at + 4096, at + LARGE / 2] {
                        assert_eq!(refuses_large(from, at + len), said == Wanted::Small, "{from:x}");
                    }
                    if !all_get_large() {
                        assert_eq!(Wanted::at(at, at + len, true), wanted);
                    }
                    assert!(said == Wanted::Any || by_smaps == said);
                }
                _ => println!("skipped: no large pages, or nobody to ask"),
            }
            assert_eq!(Wanted::at(at, at + LARGE - 4096, true), Wanted::Any);
            assert_eq!(Wanted::of(said.room()), said);
            assert_eq!(Wanted::of(said.room() + ROOM_BYTES - 1), said);
            super::super::pages::unmap(at, len).unwrap();
        }
    }

    #[test]
    fn places_are_as_far_from_large_ones() {
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
    fn addresses_lie_as_they_are_to() {
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
