// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The program's own pages: moving pages into a memfd and back without losing a store, and mapping
//! a peer's exports at an address chosen by the program. See `userfaultfd(2)`, `mmap(2)`.
//!
//! Not about the decision to move pages, nor about the list of mappings (`maps`).
#![expect(unsafe_code, reason = "maps over memory of the program, as the program asks")]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::errno::keep_errno;
pub use super::guard::WriteFence;
use super::large::{self, LARGE};
pub use super::maps::{
    Area, FileId, areas, areas_between, areas_of, areas_of_program, file_id, file_id_at,
};
use super::maps::{each_area, query_area};
use super::mmap::Mapping;
pub use super::mmap::PAGE;
use super::process::last_errno;
use super::smaps::PageSizeHint;
use super::thread::with_signals_blocked;
use super::{dontfork, memfd};

/// Held while a piece moves in: two threads that copy the same pages would each map their own copy.
static MOVING: Mutex<()> = Mutex::new(());
/// Number of bytes above the present stack frame that callers may store to during a page move.
/// Ample, but not more than the thread data at the top of a stack: memory beyond belongs to the
/// program.
const CALLERS: usize = 4 << 10;
/// Number of bytes below the present stack frame that called functions may use meanwhile: ample.
const CALLED: usize = 32 << 10;

/// Returns the number of threads of this process; `usize::MAX` if it is unknown.
#[must_use]
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count)
}

fn protection(area: &Area) -> ProtFlags {
    let mut prot = ProtFlags::empty();
    prot.set(ProtFlags::READ, area.read);
    prot.set(ProtFlags::WRITE, area.write);
    prot.set(ProtFlags::EXEC, area.exec);
    prot
}

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

/// Returns the wanted page size of the pages at `begin..end` in `area` when they move.
pub fn wanted(area: &Area, begin: usize, end: usize) -> PageSizeHint {
    if !large::holds(begin, end) {
        return PageSizeHint::Any;
    }
    // A store makes small pages of huge pages that are shared with a forked child.
    if large::are_there(begin, end) == Some(true) {
        return PageSizeHint::Large;
    }
    // The kind of pages that are not present is unknown.
    populate(area, begin, end - begin);
    PageSizeHint::at(begin, end, area.write && area.file.ino == 0)
}

/// Moves the private pages at `begin..end`, which lie in `area`, to `offset` of a memfd that is
/// mapped in their place. With `guard`, other threads may store meanwhile; without, no other thread
/// may run. `hold` is called for each piece, and its result is kept until the piece has moved.
/// After an error some pages may have moved. The caller then drops the guard, for which stores to
/// other pages may wait, and moves back the pages that show the memfd.
///
/// # Errors
/// `ESTALE`: the pages no longer match `area`, for example because another thread has moved them,
/// or `hold` returned `None`. `ENOMEM`: no memory, or the limit of file sizes is too low. `EBUSY`:
/// the range contains the stack in use.
pub fn move_in<H>(
    area: &Area,
    Range { start: begin, end }: Range<usize>,
    fd: BorrowedFd<'_>,
    offset: u64,
    guard: Option<&WriteFence>,
    hold: impl Fn(usize, usize) -> Option<H>,
) -> Result<(), Errno> {
    if is_stack_in_use(begin, end) {
        return Err(Errno::BUSY);
    }
    if !memfd::may_reach(offset.saturating_add((end - begin) as u64)) {
        return Err(Errno::NOMEM);
    }
    {
        // Not between the enumeration by a forking thread and its fork: the child would not know
        // that it has to copy.
        let _section = super::fork::section();
        super::fork::moved(make_own_copies);
    }
    let wanted = PageSizeHint::of(offset);
    let is_childless = dontfork::is_set(begin);
    let mut at = begin;
    while at < end {
        let len = piece(at, end);
        let to = offset + (at - begin) as u64;
        if wanted == PageSizeHint::Large {
            make_huge_hole(fd, to, len);
        }
        let _section = super::fork::section();
        let _held = hold(at, at + len).ok_or(Errno::STALE)?;
        let _moving = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_private(area, at, at + len) {
            return Err(Errno::STALE);
        }
        populate(area, at, len);
        with_writers_blocked(area, at, len, guard, || {
            copy_out(at, len, fd, to)?;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            // SAFETY: replaces the program's pages by shared ones with the same bytes, protection
            // and address; stores of others are suspended or impossible (this function's contract).
            unsafe { rustix::mm::mmap(pointer(at), len, protection(area), flags, fd, to) }?;
            if is_childless {
                dontfork::set(at, len);
            }
            Ok(())
        })?;
        wanted.advise(at, len);
        at += len;
    }
    // The kernel preserves stores of other threads meanwhile.
    wanted.make(begin, end - begin);
    Ok(())
}

/// Whether stores to the private pages from `at` on can be suspended.
pub fn can_hold(guard: &WriteFence, at: usize) -> bool {
    // Not while another thread has protected them.
    let _section = super::fork::section();
    let _moving = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    guard.can_hold(at)
}

/// Whether a range contains stack of this thread that is used while pages move.
#[inline(never)]
pub fn is_stack_in_use(begin: usize, end: usize) -> bool {
    let here = 0u8;
    let here = (&raw const here).addr();
    begin < here.saturating_add(CALLERS) && end > here.saturating_sub(CALLED)
}

/// Replaces a piece of an area while no thread stores to it. Other threads are suspended by the
/// guard, if any. Signal handlers of this thread are blocked: they would wait for this thread
/// itself, or their stores would be lost.
#[inline(never)]
fn with_writers_blocked(
    area: &Area,
    at: usize,
    len: usize,
    guard: Option<&WriteFence>,
    replace: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    with_signals_blocked(|| {
        let held = match guard.filter(|_| area.write) {
            Some(guard) => guard.hold(at, len)?,
            None => None,
        };
        let replaced = replace();
        if let Some(guard) = held {
            guard.let_go(at, len, replaced.is_ok());
        }
        replaced
    })
}

/// Allocates a huge page of a memfd for a piece that is about to be written there. Small pages
/// would first be written, then copied into a huge page. After a failure the piece gets small pages
/// at first.
fn make_huge_hole(fd: BorrowedFd<'_>, offset: u64, len: usize) {
    if len != LARGE {
        return;
    }
    let Ok(map) = Mapping::part(fd, offset, len, true) else {
        return;
    };
    // MADV_COLLAPSE needs one page that is present.
    if touch(map.address(), PAGE, true).is_ok() {
        let _ = large::collapse(map.address(), len);
    }
}

/// Permits every piece, as `hold` of [`move_in`].
pub(crate) fn freely(_begin: usize, _end: usize) -> Option<()> {
    Some(())
}

/// Whether the range still has private pages: those of `area`, or others that replaced them.
fn is_private(area: &Area, begin: usize, end: usize) -> bool {
    let is_like = |now: &Area| !now.shared && now.file == area.file;
    areas(begin, end).is_ok_and(|areas| !areas.is_empty() && areas.iter().all(is_like))
}

/// Returns the length of the next piece to move, which limits the memory in use twice. No piece
/// combines a part of a huge page with other pages.
fn piece(at: usize, end: usize) -> usize {
    (LARGE - at % LARGE).min(end - at)
}

/// Brings in the pages of a writable area, since absent pages could not be protected. EINVAL before
/// Linux 5.14: the pages then stay absent, and the guard reports whether that is safe.
fn populate(area: &Area, at: usize, len: usize) {
    // For pages of a file the query reports the page cache, not the mapping.
    let is_anonymous = area.file.ino == 0;
    if area.write && !(is_anonymous && are_present(at, len)) {
        // SAFETY: keeps the content of the pages.
        let _ = unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxPopulateWrite) };
    }
}

/// Whether all pages of anonymous memory are present. `populate` takes fifty times as long for
/// present pages.
fn are_present(at: usize, len: usize) -> bool {
    let mut states = [0u8; LARGE / PAGE];
    (at..at + len).step_by(LARGE).all(|begin| {
        let len = LARGE.min(at + len - begin);
        // SAFETY: writes a byte for each page, and there is space for those of LARGE bytes.
        let query_area = || unsafe { libc::mincore(pointer(begin), len, states.as_mut_ptr()) };
        keep_errno(query_area) == 0 && states.iter().take(len / PAGE).all(|state| state & 1 != 0)
    })
}

/// Names of the memfds into which pages move: for connections of `scif.h`, for domains of the
/// provider, and for pinned pages.
pub const ARENA_NAME: &str = "scif:arena";
pub(crate) const WINDOW_NAME: &str = "scif:moved";
pub const PINNED_NAME: &str = "scif:pinned";

/// Copies windows and pinned pages in a forked child, before the program runs in it. The shared
/// pages become private memory of the child with the parent's content. The child does not inherit
/// the library's own mappings, nor mappings of peers.
fn make_own_copies() {
    // The name of a memfd never changes.
    let names =
        [ARENA_NAME, WINDOW_NAME, PINNED_NAME].map(|name| format!("/memfd:{name} (deleted)"));
    for area in areas(0, usize::MAX).unwrap_or_default() {
        if !area.shared || !names.contains(&area.name) {
            continue;
        }
        if let Err(errno) = restore(&area, area.begin, area.end, None, None) {
            // Absent memory is better than the parent's.
            log::warn!(
                "forked child {}: {} bytes of registered memory could not be copied: {errno}; an \
                 access raises SIGSEGV. Free memory, or raise the memory limit of the process or \
                 container",
                std::process::id(),
                area.end - area.begin
            );
            let _ = unmap(area.begin, area.end - area.begin);
        }
    }
}

/// Writes a range of memory to a file through the kernel: an absent page causes EFAULT.
fn copy_out(at: usize, len: usize, fd: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let mut done = 0;
    while done < len {
        let to = i64::try_from(offset + done as u64).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel reads memory of this process and returns EFAULT for unmapped memory.
        let n = unsafe { libc::pwrite(fd.as_raw_fd(), pointer(at + done), len - done, to) };
        match usize::try_from(n) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(n) => done += n,
            Err(_) if last_errno() == Errno::INTR => {}
            Err(_) => return Err(last_errno()),
        }
    }
    Ok(())
}

/// Fills `to` with bytes of a file.
fn copy_in(fd: BorrowedFd<'_>, mut offset: u64, to: *mut c_void, len: usize) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let mut done = 0;
    while done < len {
        let from = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: the caller's `to` is `len` bytes known to the caller only; `done` is below `len`.
        let n =
            unsafe { libc::pread(fd.as_raw_fd(), to.wrapping_byte_add(done), len - done, from) };
        match usize::try_from(n) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(n) => {
                done += n;
                offset += n as u64;
            }
            Err(_) if last_errno() == Errno::INTR => {}
            Err(_) => return Err(last_errno()),
        }
    }
    Ok(())
}

/// Whether `begin..end` still shows the part of the file that it did as part of `area`.
///
/// Allocates nothing. Threads with suspended stores to the range may hold the allocator's locks,
/// and stores of the allocator to the range would be lost.
fn is_still(area: &Area, begin: usize, end: usize) -> bool {
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else {
        return false;
    };
    let mut at = begin;
    while at < end {
        let Ok(q) = query_area(&maps, at, &mut []) else {
            return is_listed(&maps, area, begin, end);
        };
        let same = q.vma_flags & 8 != 0
            && q.file() == area.file
            && q.start <= at as u64
            && q.offset.wrapping_sub(q.start) == area.origin();
        let (true, Ok(next)) = (same, usize::try_from(q.end)) else {
            return false;
        };
        at = next;
    }
    true
}

/// Variant of [`is_still`] that reads the list of areas.
fn is_listed(maps: &std::fs::File, area: &Area, begin: usize, end: usize) -> bool {
    let mut at = begin;
    let read = each_area(maps, |now| {
        let same = now.shared && now.file == area.file && now.origin() == area.origin();
        if same && (now.begin..now.end).contains(&at) {
            at = now.end;
        }
    });
    read.is_ok() && at >= end
}

/// Moves whole pages of a memfd, mapped at `begin..end` in `area`, back to private memory. With
/// `file`, that memfd, the kernel copies the bytes: another thread may unmap the range at any time,
/// and a load from it would crash the program. Without `file`, no other thread may run.
///
/// # Errors
/// `ESTALE`: the range has another content by now, which stays. `EBUSY`: it contains the stack in
/// use.
pub fn restore(
    area: &Area,
    begin: usize,
    end: usize,
    guard: Option<&WriteFence>,
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    restore_each(area, begin, end, guard, file, false)
}

/// Variant of [`restore`] for pages without another user: each piece is freed in the memfd as
/// soon as it has moved.
pub fn restore_and_free(
    area: &Area,
    begin: usize,
    end: usize,
    guard: Option<&WriteFence>,
    file: BorrowedFd<'_>,
) -> Result<(), Errno> {
    restore_each(area, begin, end, guard, Some(file), true)
}

fn restore_each(
    area: &Area,
    begin: usize,
    end: usize,
    guard: Option<&WriteFence>,
    file: Option<BorrowedFd<'_>>,
    frees: bool,
) -> Result<(), Errno> {
    if begin % PAGE != 0 || end % PAGE != 0 {
        // mremap(2) would round up.
        return Err(Errno::INVAL);
    }
    // A forked child has to move its stack too.
    if file.is_some() && is_stack_in_use(begin, end) {
        return Err(Errno::BUSY);
    }
    let wanted = PageSizeHint::of(area.offset);
    // A single mapping, so that the pieces merge into one area again.
    let all = large::fresh(end - begin, begin as u64)?;
    if all.addr() < end && all.addr() + (end - begin) > begin {
        // The range was unmapped meanwhile, and the fresh pages lie there. Filled from themselves,
        // they would fault in this thread, which would wait for itself.
        // SAFETY: the range is ours, and nothing refers to it yet.
        let _ = unsafe { rustix::mm::munmap(all, end - begin) };
        return Err(Errno::STALE);
    }
    wanted.advise(all.expose_provenance(), end - begin);
    // A forked child has no pages that are excluded from it.
    if file.is_some() && dontfork::is_set(begin) {
        dontfork::set(all.expose_provenance(), end - begin);
    }
    let gives_large = wanted.gives_large(begin, end);
    let mut at = begin;
    while at < end {
        let len = piece(at, end);
        let fresh = all.wrapping_byte_add(at - begin);
        let moved = with_writers_blocked(area, at, len, guard, || {
            if let Some(file) = file {
                // Filled pages are small.
                let fill = |guard: &WriteFence| guard.fill(fresh.expose_provenance(), at, len);
                if gives_large || !guard.is_some_and(fill) {
                    copy_in(file, area.offset + (at - area.begin) as u64, fresh, len)?;
                }
            } else if area.read {
                // SAFETY: `fresh` is `len` bytes of ours; the range is mapped readable according to
                // the kernel, and no other thread runs that could unmap it.
                unsafe { pointer(at).cast::<u8>().copy_to_nonoverlapping(fresh.cast(), len) };
            } else {
                return Err(Errno::ACCESS);
            }
            // SAFETY: `fresh` is ours; it gets the protection of the pages that it replaces.
            unsafe { rustix::mm::mprotect(fresh, len, mprotect_flags(area)) }?;
            // Without a file no other thread runs.
            if file.is_some() && !is_still(area, at, at + len) {
                return Err(Errno::STALE);
            }
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: replaces the shared pages by private ones with the same bytes and protection
            // at the same address; stores of others are suspended or impossible (this function's
            // contract).
            unsafe { rustix::mm::mremap_fixed(fresh, len, len, flags, pointer(at)) }.map(drop)
        });
        if let Err(errno) = moved {
            // SAFETY: the range from `fresh` on is ours and was not moved.
            let _ = unsafe { rustix::mm::munmap(fresh, end - at) };
            // The write fence refuses mappings of other kinds with EINVAL.
            let stays = file.is_none() || is_still(area, at, at + len);
            return Err(if stays { errno } else { Errno::STALE });
        }
        if let Some(file) = file.filter(|_| frees) {
            discard(file, area.offset + (at - area.begin) as u64, len as u64);
        }
        at += len;
    }
    // Most have been huge since their first byte: this then changes nothing.
    wanted.make(begin, end - begin);
    Ok(())
}

/// Makes a page an area of its own. mremap(2) does not enlarge a mapping of several areas, so a
/// window cannot be extended into memory behind it.
///
/// The page is excluded from core dumps for that; no other property can be set and reverted.
pub(crate) fn set_apart(at: usize, apart: bool) {
    let advice = if apart { Advice::LinuxDontDump } else { Advice::LinuxDoDump };
    // SAFETY: changes no byte.
    let _ = unsafe { rustix::mm::madvise(pointer(at), PAGE, advice) };
}

fn mprotect_flags(area: &Area) -> rustix::mm::MprotectFlags {
    rustix::mm::MprotectFlags::from_bits_truncate(protection(area).bits())
}

/// Checks that a range of the program is readable, or writable if `write`, and brings its pages in.
pub fn touch(at: usize, len: usize, write: bool) -> Result<(), Errno> {
    let begin = at - at % PAGE;
    let end = at.checked_add(len).ok_or(Errno::FAULT)?;
    let how = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: changes no byte.
    match unsafe { rustix::mm::madvise(pointer(begin), end - begin, how) } {
        // Before Linux 5.14, or an unsuitable range: the list of areas decides.
        Err(Errno::INVAL) => {
            let areas = areas(begin, end).map_err(|_| Errno::FAULT)?;
            let mut reached = begin;
            for area in &areas {
                if area.begin > reached || !(if write { area.write } else { area.read }) {
                    return Err(Errno::FAULT);
                }
                reached = area.end;
            }
            if reached < end { Err(Errno::FAULT) } else { Ok(()) }
        }
        other => other,
    }
}

/// Frees pages of a memfd.
pub fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = rustix::fs::fallocate(fd, how, offset, len) {
        log::debug!(
            "{len} bytes of an arena could not be freed: fallocate: {errno}; they stay in memory \
             until the arena is closed"
        );
    }
}

/// Whether a range lies within writable private memory that continues before and behind it, like
/// memory from an allocator. Its pages may have moved into an arena.
pub fn is_within_memory(begin: usize, end: usize) -> bool {
    let (Some(before), Some(behind)) = (begin.checked_sub(PAGE), end.checked_add(PAGE)) else {
        return false;
    };
    let is_memory = |area: &Area| {
        let is_private = !area.shared && area.file.ino == 0 && !area.name.starts_with("[stack");
        area.write && (is_private || area.is_of_arena())
    };
    let mut reached = before;
    for area in areas(before, behind).unwrap_or_default() {
        if area.begin > reached || !is_memory(&area) {
            return false;
        }
        reached = area.end;
    }
    reached >= behind
}

/// Maps new private memory in place of memory that the program gives up.
pub fn put_private(begin: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the program has declared that it no longer uses the range.
    unsafe { rustix::mm::mmap_anonymous(pointer(begin), len, prot, flags) }.map(drop)
}

/// Reserves `len` bytes of addresses for the program: at `hint` if that range is free, or with
/// MAP_FIXED exactly at `hint`, in place of any mapping. Without a hint they have the same offset
/// within a huge page as `like`, so that huge pages can be mapped.
pub fn reserve_for_program(
    hint: usize,
    len: usize,
    fixed: bool,
    like: u64,
) -> Result<usize, Errno> {
    if hint == 0 && !fixed {
        return Ok(large::reserve(len, like)?.expose_provenance());
    }
    let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    flags.set(MapFlags::FIXED, fixed);
    // SAFETY: the program gives up the range that it passes with MAP_FIXED; otherwise the kernel
    // picks an unused range.
    let at = unsafe { rustix::mm::mmap_anonymous(pointer(hint), len, ProtFlags::empty(), flags) }?;
    Ok(at.expose_provenance())
}

/// Maps part of a memfd over a range just returned by `reserve_for_program` and known to the caller
/// only.
pub fn map_for_program(
    at: usize,
    len: usize,
    read: bool,
    write: bool,
    fd: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), Errno> {
    let mut prot = ProtFlags::empty();
    prot.set(ProtFlags::READ, read);
    prot.set(ProtFlags::WRITE, write);
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
    // SAFETY: reserved by the caller, and not published yet.
    unsafe { rustix::mm::mmap(pointer(at), len, prot, flags, fd, offset) }?;
    // As with a driver, neither a forked child nor a core dump gets the peer's memory.
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: changes no byte.
        let _ = unsafe { rustix::mm::madvise(pointer(at), len, advice) };
    }
    Ok(())
}

/// Replaces an area that `map_for_program` made by an empty file: an access raises SIGBUS.
pub fn make_absent(area: &Area) -> Result<(), Errno> {
    let fd = super::memfd::create("scif:lost", 0)?;
    let mut prot = ProtFlags::empty();
    prot.set(ProtFlags::READ, area.read);
    prot.set(ProtFlags::WRITE, area.write);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the program got that range from this library, as memory that ends with its node; it
    // stays mapped.
    unsafe { rustix::mm::mmap(pointer(area.begin), area.end - area.begin, prot, flags, &fd, 0) }?;
    Ok(())
}

/// Calls munmap(2) on a range from `reserve_for_program`: before the program knows it, or on its
/// request.
pub fn unmap(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: no reference of ours points into memory given to the program, which answers for its
    // own.
    unsafe { rustix::mm::munmap(pointer(at), len) }
}

#[cfg(test)]
mod tests;
