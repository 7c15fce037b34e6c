// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! MADV_DONTFORK of the program's pages: detection, and transfer to the pages that replace them.
//! See `madvise(2)`.
//!
//! The kernel reports it in `/proc/self/smaps` only, which takes time for every page of the
//! process. Advice that changes one page of an area splits the area. So the opposite advice is
//! given, the split observed, and the advice reverted. Not about moving pages (`pages`).
#![expect(unsafe_code, reason = "gives advice about memory of the program")]

use std::ffi::c_void;

use rustix::mm::{Advice, MremapFlags};

use super::maps::{Area, areas};
use super::mmap::PAGE;
use super::{fork, smaps};

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

/// Excludes memory from forked children.
pub(super) fn set(at: usize, len: usize) {
    // SAFETY: changes no byte.
    let _ = unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxDontFork) };
}

/// Whether the page at `at`, and with it its area, is excluded from forked children. False if
/// nothing is mapped there.
pub(super) fn is_set(at: usize) -> bool {
    // A child forked meanwhile would receive an excluded page.
    let _section = fork::section();
    let Some(area) = area_of(at) else {
        return false;
    };
    let neighbours = [at.checked_add(PAGE), at.checked_sub(PAGE)];
    let inside = |page: &usize| (area.begin..area.end).contains(page);
    match neighbours.into_iter().flatten().find(inside) {
        Some(neighbour) => is_set_beside(at, neighbour),
        None if area.shared => is_set_of_copy(at),
        None => smaps::is_kept_from_children(at),
    }
}

fn area_of(at: usize) -> Option<Area> {
    areas(at, at.checked_add(PAGE)?).ok()?.pop()
}

/// Whether a page that shares an area with a neighbour is excluded from forked children.
fn is_set_beside(at: usize, neighbour: usize) -> bool {
    let are_one = || area_of(at).is_some_and(|area| (area.begin..area.end).contains(&neighbour));
    // SAFETY: changes no byte.
    if unsafe { rustix::mm::madvise(pointer(at), PAGE, Advice::LinuxDoFork) }.is_err() || are_one()
    {
        return false;
    }
    set(at, PAGE);
    // Otherwise the program is changing the mapping at this moment.
    are_one() || smaps::is_kept_from_children(neighbour)
}

/// Whether a single shared page is excluded from forked children. A second, longer mapping of it is
/// made for the test.
fn is_set_of_copy(at: usize) -> bool {
    // SAFETY: with old length 0 the original mapping stays unchanged; the new one has no other
    // user.
    let copy = unsafe { rustix::mm::mremap(pointer(at), 0, 2 * PAGE, MremapFlags::MAYMOVE) };
    copy.is_ok_and(|copy| {
        let begin = copy.expose_provenance();
        let is_set = is_set_beside(begin, begin + PAGE);
        // SAFETY: just mapped, and known to this function only.
        let _ = unsafe { rustix::mm::munmap(copy, 2 * PAGE) };
        is_set
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    /// Returns pages between two inaccessible ones, so that they form an area of their own.
    fn alone(pages: usize, shared: bool) -> usize {
        let all = (pages + 2) * PAGE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks an unused range.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                all,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        };
        let at = at.unwrap().wrapping_byte_add(PAGE);
        let fd = super::super::memfd::create("scif-test", all).unwrap();
        let fixed = MapFlags::FIXED;
        let made = if shared {
            // SAFETY: in the range just mapped.
            unsafe { rustix::mm::mmap(at, pages * PAGE, prot, fixed | MapFlags::SHARED, &fd, 0) }
        } else {
            // SAFETY: as above.
            unsafe { rustix::mm::mmap_anonymous(at, pages * PAGE, prot, fixed | MapFlags::PRIVATE) }
        };
        made.unwrap().expose_provenance()
    }

    #[test]
    fn the_mark_is_found_in_the_middle_of_other_memory() {
        let at = alone(8, false);
        set(at + 2 * PAGE, 3 * PAGE);
        for _ in 0..2 {
            let marked: Vec<bool> = (0..8).map(|page| is_set(at + page * PAGE)).collect();
            assert_eq!(marked, [false, false, true, true, true, false, false, false]);
        }
        assert_eq!(areas(at, at + 8 * PAGE).unwrap().len(), 3);
        super::super::pages::unmap(at - PAGE, 10 * PAGE).unwrap();
        assert!(!is_set(at), "nothing is there");
    }

    #[test]
    fn the_mark_is_found_and_left_as_it_is() {
        for shared in [false, true] {
            for pages in [1, 2, 9] {
                let at = alone(pages, shared);
                let is_marked = |page: usize| {
                    let there = areas(at, at + pages * PAGE).unwrap();
                    assert_eq!(there.len(), 1, "{there:?}");
                    is_set(at + page * PAGE)
                };
                for page in [0, pages / 2, pages - 1] {
                    assert!(!is_marked(page), "{pages} pages, shared {shared}");
                }
                set(at, pages * PAGE);
                for page in [0, pages / 2, pages - 1] {
                    assert!(is_marked(page), "{pages} pages, shared {shared}");
                }
                assert!(smaps::is_kept_from_children(at));
                super::super::pages::unmap(at - PAGE, (pages + 2) * PAGE).unwrap();
            }
        }
    }
}
