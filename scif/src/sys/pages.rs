// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The program's own pages: what lies at an address, moving pages into a memfd and back without losing a store, and
//! mapping what a peer shows at an address of the program's choice. See `proc_pid_maps(5)`, `userfaultfd(2)`, `mmap(2)`.
//!
//! Not about why pages are moved.
#![expect(unsafe_code, reason = "maps over memory of the program, as the program asks")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::process::{self, last_errno};

/// Pages are moved in pieces of so many bytes: while one moves it is there twice.
const PIECE: usize = 2 << 20;
/// Unit of registration.
pub(crate) const PAGE: usize = 4096;

/// A run of addresses as the kernel lists it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Area {
    pub(crate) begin: usize,
    pub(crate) end: usize,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) exec: bool,
    pub(crate) shared: bool,
    /// Of `begin` in the file.
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    pub(crate) name: String,
}

/// Which file is mapped; inode 0: none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct FileId {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) ino: u64,
}

pub(crate) fn file_id(fd: impl AsFd) -> Result<FileId, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(FileId {
        major: rustix::fs::major(stat.st_dev),
        minor: rustix::fs::minor(stat.st_dev),
        ino: stat.st_ino,
    })
}

pub(super) fn parse(line: &str) -> Option<Area> {
    let mut parts = line.splitn(6, ' ');
    let (begin, end) = parts.next()?.split_once('-')?;
    let perms = parts.next()?.as_bytes();
    let offset = u64::from_str_radix(parts.next()?, 16).ok()?;
    let (major, minor) = parts.next()?.split_once(':')?;
    let ino = parts.next()?.parse().ok()?;
    Some(Area {
        begin: usize::from_str_radix(begin, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        read: perms.first() == Some(&b'r'),
        write: perms.get(1) == Some(&b'w'),
        exec: perms.get(2) == Some(&b'x'),
        shared: perms.get(3) == Some(&b's'),
        offset,
        file: FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            ino,
        },
        name: parts.next().unwrap_or("").trim_start().to_owned(),
    })
}

impl Area {
    /// What its offsets are ahead of its addresses.
    pub(crate) fn origin(&self) -> u64 {
        self.offset.wrapping_sub(self.begin as u64)
    }

    /// The end of it, in the file.
    pub(crate) fn last_offset(&self) -> u64 {
        self.offset.saturating_add((self.end - self.begin) as u64)
    }

    /// Where an offset of the file is that lies in it.
    pub(crate) fn place(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.offset)).map_or(self.end, |n| self.end.min(self.begin + n))
    }

    /// The part of it between two addresses.
    pub(crate) fn between(&self, begin: usize, end: usize) -> Area {
        let begin = begin.max(self.begin);
        Area {
            begin,
            end: end.min(self.end),
            offset: self.offset + (begin - self.begin) as u64,
            ..self.clone()
        }
    }

    /// Whether it shows anything of a range of a file.
    pub(crate) fn shows(&self, file: FileId, from: u64, to: u64) -> bool {
        self.shared && self.file == file && self.offset < to && self.last_offset() > from
    }
}

/// What is mapped now between two addresses, in their order; whole areas.
pub(crate) fn areas(begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    let maps = std::fs::File::open("/proc/self/maps")?;
    if end != usize::MAX
        && let Some(areas) = query(&maps, begin, end)
    {
        return Ok(areas);
    }
    parse_all(maps, begin, end)
}

/// What is mapped now, but for what the library has mapped for copying.
pub(crate) fn areas_of_program() -> std::io::Result<Vec<Area>> {
    super::mmap::with_parts(|parts| {
        let mut out = Vec::new();
        for area in areas(0, usize::MAX)? {
            let mut begin = area.begin;
            // Also one that begins before it and reaches into it.
            let before = parts.range(..begin).next_back();
            for (&from, &to) in before.into_iter().chain(parts.range(area.begin..area.end)) {
                if from > begin {
                    out.push(area.between(begin, from));
                }
                begin = begin.max(to);
            }
            if begin < area.end {
                out.push(area.between(begin, area.end));
            }
        }
        Ok(out)
    })
}

/// What is mapped now in another process: nothing in one that has ended. `None`: that is not to be seen.
pub(crate) fn areas_of(pid: i32) -> Option<Vec<Area>> {
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"));
    match maps.and_then(|maps| parse_all(maps, 0, usize::MAX)) {
        Ok(areas) => Some(areas),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Some(Vec::new()),
        // With hidepid the file is missing for the living as well.
        Err(error)
            if error.raw_os_error() == Some(libc::ENOENT) && process::look(pid) == process::Sight::Gone =>
        {
            Some(Vec::new())
        }
        Err(_) => None,
    }
}

fn parse_all(mut maps: std::fs::File, begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut maps, &mut text)?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(parse)
        .filter(|area| area.begin < end && area.end > begin)
        .collect())
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const NAME_BYTES: usize = 256;

impl Query {
    fn file(&self) -> FileId {
        FileId {
            major: self.major,
            minor: self.minor,
            ino: self.inode,
        }
    }
}

/// Asks for the area at an address, or the next one. Allocates nothing.
fn ask(maps: &std::fs::File, at: usize, name: &mut [u8]) -> Result<Query, Errno> {
    use std::os::fd::AsRawFd;
    let mut q = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        addr: at as u64,
        name_size: u32::try_from(name.len()).unwrap_or(0),
        name_addr: if name.is_empty() {
            0
        } else {
            name.as_mut_ptr().expose_provenance() as u64
        },
        ..Query::default()
    };
    // SAFETY: `q` is a live structure of the size it says, and `name` room for as many bytes as it says.
    let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut q) };
    if rc == 0 { Ok(q) } else { Err(last_errno()) }
}

/// Asks for each area by address, whose cost does not grow with what else is mapped. `None`: the kernel is older than
/// Linux 6.11, or a name is too long.
fn query(maps: &std::fs::File, begin: usize, end: usize) -> Option<Vec<Area>> {
    let mut areas = Vec::new();
    let mut at = begin;
    while at < end {
        let mut name = [0u8; NAME_BYTES];
        let q = match ask(maps, at, &mut name) {
            Ok(q) => q,
            Err(errno) => return (errno == Errno::NOENT).then_some(areas),
        };
        let (from, to) = (usize::try_from(q.start).ok()?, usize::try_from(q.end).ok()?);
        if from >= end {
            break;
        }
        let len = usize::try_from(q.name_size).ok()?.saturating_sub(1);
        areas.push(Area {
            begin: from,
            end: to,
            read: q.vma_flags & 1 != 0,
            write: q.vma_flags & 2 != 0,
            exec: q.vma_flags & 4 != 0,
            shared: q.vma_flags & 8 != 0,
            offset: q.offset,
            file: q.file(),
            name: String::from_utf8_lossy(name.get(..len)?).into_owned(),
        });
        at = to;
    }
    Some(areas)
}

/// Threads of this process; more than there can be where the system does not say.
#[must_use]
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count)
}

const UFFD_API: u64 = 0xAA;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const USER_MODE_ONLY: libc::c_int = 1;
const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOCTL_WAKE: libc::c_ulong = 0x8010_aa02;
const IOCTL_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;

/// Holds up the stores of other threads to a range while its pages move.
#[derive(Debug)]
pub(crate) struct StoreGuard(OwnedFd);

impl StoreGuard {
    /// `None`: the kernel, a limit or a filter refuses.
    pub(crate) fn new() -> Option<StoreGuard> {
        let open = |flags: libc::c_int| {
            // SAFETY: makes a descriptor; no memory is touched.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) };
            i32::try_from(fd).ok().filter(|&fd| fd >= 0)
        };
        // Without the flag also stores by the kernel (a read into the range) are held up; that needs privilege.
        let fd = open(0).or_else(|| open(USER_MODE_ONLY))?;
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        let guard = StoreGuard(fd);
        let mut api = [UFFD_API, FEATURE_WP | FEATURE_WP_SHMEM, 0];
        guard.control(IOCTL_API, &mut api).ok()?;
        Some(guard)
    }

    fn control<const N: usize>(&self, request: libc::c_ulong, argument: &mut [u64; N]) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        // SAFETY: `argument` is live and has the size that is coded into `request` (tested by use: the kernel checks).
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// From now on stores to the range wait. Every page of it must be there.
    fn hold(&self, at: usize, len: usize) -> Result<(), Errno> {
        let (at, len) = (at as u64, len as u64);
        self.control(IOCTL_REGISTER, &mut [at, len, REGISTER_MODE_WP, 0])?;
        self.control(IOCTL_WRITEPROTECT, &mut [at, len, WRITEPROTECT_MODE_WP])
    }

    /// The stores that waited go on, to what is there now.
    fn let_go(&self, at: usize, len: usize) {
        let _ = self.control(IOCTL_WAKE, &mut [at as u64, len as u64]);
    }
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

/// Moves the private pages at `begin..end`, which lie in `area`, to `offset` of a memfd mapped there instead. With
/// `guard` other threads may store meanwhile; without, nobody else may run. After an error some may have moved: the caller
/// drops the guard, for which stores to others may wait, and moves back what shows the memfd.
pub(crate) fn move_in(
    area: &Area,
    begin: usize,
    end: usize,
    fd: BorrowedFd<'_>,
    offset: u64,
    guard: Option<&StoreGuard>,
) -> Result<(), Errno> {
    {
        // Not between the look of a thread that forks and its fork: the child would not know that it has to copy.
        let _section = super::fork::section();
        super::fork::moved();
    }
    let mut at = begin;
    while at < end {
        let len = PIECE.min(end - at);
        let to = offset + (at - begin) as u64;
        if area.write {
            // Pages that are not there yet could not be held. EINVAL before Linux 5.14: then they are touched by
            // nobody, and the guard says whether that is safe.
            // SAFETY: keeps what the pages hold.
            let _ = unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxPopulateWrite) };
        }
        let held = guard.filter(|_| area.write);
        if let Some(guard) = held {
            guard.hold(at, len)?;
        }
        let moved = copy_out(at, len, fd, to).and_then(|()| {
            // SAFETY: replaces the program's pages by shared ones with the same bytes, protection and address; stores
            // of others are held up or impossible (this function's contract).
            unsafe {
                rustix::mm::mmap(
                    pointer(at),
                    len,
                    protection(area),
                    MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
                    fd,
                    to,
                )
            }
            .map(drop)
        });
        if let Some(guard) = held {
            guard.let_go(at, len);
        }
        moved?;
        at += len;
    }
    Ok(())
}

/// Names of the memfds that pages are moved into: for connections of `scif.h`, and for domains of the provider.
pub(crate) const ARENA_NAME: &str = "scif:arena";
pub(crate) const WINDOW_NAME: &str = "scif:moved";

/// In a forked child, before the program runs there: what a fork shares of windows becomes memory of the child's own, with
/// what the parent had there. What the library itself maps, and mappings of peers, a child does not have.
pub(crate) fn make_own_copies() {
    // Nothing ever takes a memfd's name away, nor adds to it.
    let names = [ARENA_NAME, WINDOW_NAME].map(|name| format!("/memfd:{name} (deleted)"));
    for area in areas(0, usize::MAX).unwrap_or_default() {
        if !area.shared || !names.contains(&area.name) {
            continue;
        }
        if let Err(errno) = move_back(&area, area.begin, area.end, None, None) {
            // Better not there than the parent's.
            log::warn!(
                "a forked child loses {} bytes of windows: {errno}",
                area.end - area.begin
            );
            let _ = unmap(area.begin, area.end - area.begin);
        }
    }
}

/// Writes a range of memory to a file, by the kernel's hand: a page that is not there is EFAULT.
fn copy_out(at: usize, len: usize, fd: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let mut done = 0;
    while done < len {
        let to = i64::try_from(offset + done as u64).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel reads memory of this process and answers EFAULT where there is none.
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
        // SAFETY: the caller's `to` is `len` bytes that nobody else knows; `done` is below.
        let n = unsafe { libc::pread(fd.as_raw_fd(), to.wrapping_byte_add(done), len - done, from) };
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
/// Stores to the range are held up meanwhile, of threads that may hold the allocator's locks too: where the kernel can be asked
/// by address nothing is allocated.
fn is_still(area: &Area, begin: usize, end: usize) -> bool {
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else {
        return false;
    };
    let mut at = begin;
    while at < end {
        let Ok(q) = ask(&maps, at, &mut []) else {
            return is_listed(area, begin, end);
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

/// The same by the list of areas.
fn is_listed(area: &Area, begin: usize, end: usize) -> bool {
    let there = areas(begin, end).unwrap_or_default();
    let covered: usize = there
        .iter()
        .filter(|a| a.shared && a.file == area.file && a.origin() == area.origin())
        .map(|a| a.end.min(end) - a.begin.max(begin))
        .sum();
    covered == end - begin
}

/// Moves pages of a memfd that are mapped at `begin..end`, in `area`, back to private memory. With `file`, that memfd, the
/// bytes come from there: another thread of the program may unmap the range at any time, and a load from it would be the
/// program's end. Without, nobody else may run.
///
/// # Errors
/// `ESTALE`: something else is there by now; that stays.
pub(crate) fn move_back(
    area: &Area,
    begin: usize,
    end: usize,
    guard: Option<&StoreGuard>,
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    // All in one, so that the pieces become one area again.
    // SAFETY: without MAP_FIXED the kernel picks a range nobody uses.
    let all = unsafe {
        rustix::mm::mmap_anonymous(
            null_mut(),
            end - begin,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    let mut at = begin;
    while at < end {
        let len = PIECE.min(end - at);
        let fresh = all.wrapping_byte_add(at - begin);
        let held = guard.filter(|_| area.write);
        let mut moved = held.map_or(Ok(()), |guard| guard.hold(at, len));
        if moved.is_ok() {
            moved = if let Some(file) = file {
                copy_in(file, area.offset + (at - area.begin) as u64, fresh, len)
            } else if area.read {
                // SAFETY: `fresh` is len bytes of ours; the range is mapped readable, as the kernel has just said, and
                // nobody else runs who could unmap it.
                unsafe { pointer(at).cast::<u8>().copy_to_nonoverlapping(fresh.cast(), len) };
                Ok(())
            } else {
                Err(Errno::ACCESS)
            };
        }
        if moved.is_ok() {
            // SAFETY: `fresh` is ours; this gives it the protection of what it replaces.
            moved = unsafe { rustix::mm::mprotect(fresh, len, mprotect_flags(area)) };
        }
        // Without a file nobody else runs, and to look would be to allocate, perhaps from the very pages just copied.
        if moved.is_ok() && file.is_some() && !is_still(area, at, at + len) {
            moved = Err(Errno::STALE);
        }
        if moved.is_ok() {
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: replaces the shared pages by private ones with the same bytes and protection at the same address;
            // stores of others are held up or impossible (this function's contract).
            moved = unsafe { rustix::mm::mremap_fixed(fresh, len, len, flags, pointer(at)) }.map(drop);
        }
        if let Some(guard) = held {
            guard.let_go(at, len);
        }
        if moved.is_err() {
            // SAFETY: from `fresh` on it is ours and was not moved.
            let _ = unsafe { rustix::mm::munmap(fresh, end - at) };
        }
        moved?;
        at += len;
    }
    Ok(())
}

/// Makes a page an area of its own: mremap(2) enlarges no mapping of several areas, so that nobody comes from the end of a
/// window into what is behind it in the memfd.
///
/// What makes it one is that it is left out of core dumps; nothing else can be set and taken back.
pub(crate) fn set_apart(at: usize, apart: bool) {
    let advice = if apart {
        Advice::LinuxDontDump
    } else {
        Advice::LinuxDoDump
    };
    // SAFETY: changes no byte.
    let _ = unsafe { rustix::mm::madvise(pointer(at), PAGE, advice) };
}

fn mprotect_flags(area: &Area) -> rustix::mm::MprotectFlags {
    rustix::mm::MprotectFlags::from_bits_truncate(protection(area).bits())
}

/// Makes sure that a range of the program's can be read, or written if `write`: brings its pages in.
pub(crate) fn touch(at: usize, len: usize, write: bool) -> Result<(), Errno> {
    let begin = at - at % PAGE;
    let end = at.checked_add(len).ok_or(Errno::FAULT)?;
    let how = if write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: changes no byte.
    match unsafe { rustix::mm::madvise(pointer(begin), end - begin, how) } {
        // Before Linux 5.14, or a range that cannot be: the list of areas tells.
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
pub(crate) fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = rustix::fs::fallocate(fd, how, offset, len) {
        log::debug!("pages of a window stay: fallocate {errno}");
    }
}

/// Reserves `len` bytes of addresses for the program: at `hint` if nobody is there, or, as it asked for with MAP_FIXED,
/// exactly there in place of whatever is.
pub(crate) fn reserve_for_program(hint: usize, len: usize, fixed: bool) -> Result<usize, Errno> {
    let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    flags.set(MapFlags::FIXED, fixed);
    // SAFETY: the program gives up what it names with MAP_FIXED; else the kernel picks a range nobody uses.
    let at = unsafe { rustix::mm::mmap_anonymous(pointer(hint), len, ProtFlags::empty(), flags) }?;
    Ok(at.expose_provenance())
}

/// Maps part of a memfd over a range that `reserve_for_program` has just given and nobody else knows.
pub(crate) fn map_for_program(
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
    // SAFETY: reserved by the caller, who has told nobody yet.
    unsafe { rustix::mm::mmap(pointer(at), len, prot, flags, fd, offset) }?;
    // Of the peer's memory a forked child has nothing, nor a core dump, as of a driver's.
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: changes no byte.
        let _ = unsafe { rustix::mm::madvise(pointer(at), len, advice) };
    }
    Ok(())
}

/// Replaces an area that `map_for_program` made by one of no file: touching it is SIGBUS.
pub(crate) fn make_absent(area: &Area) -> Result<(), Errno> {
    let fd = super::memfd::create("scif:lost", 0)?;
    let mut prot = ProtFlags::empty();
    prot.set(ProtFlags::READ, area.read);
    prot.set(ProtFlags::WRITE, area.write);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the program has that range from us, as memory that ends with the node it is of; it stays mapped.
    unsafe { rustix::mm::mmap(pointer(area.begin), area.end - area.begin, prot, flags, &fd, 0) }?;
    Ok(())
}

/// munmap(2), of what `reserve_for_program` gave: before the program has seen it, or because the program says so.
pub(crate) fn unmap(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: no reference of ours goes into what was given to the program, which answers for its own.
    unsafe { rustix::mm::munmap(pointer(at), len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;
    use scif_ring::counter::Flag;
    use std::sync::Arc;

    const LEN: usize = 3 << 20;

    fn buffer() -> usize {
        // SAFETY: the kernel picks a range nobody uses.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        at.unwrap().expose_provenance()
    }

    fn word(at: usize) -> scif_ring::Mem {
        // SAFETY: within the buffer of the test, which stays mapped.
        unsafe { scif_ring::Mem::new(pointer(at).cast(), 8) }
    }

    #[test]
    fn lines_of_maps_are_understood() {
        let area = parse("7f00-8f00 rw-s 00001000 00:01 1034 /memfd:scif:arena (deleted)").unwrap();
        assert_eq!(
            (area.begin, area.end, area.offset, area.file.ino),
            (0x7f00, 0x8f00, 0x1000, 1034)
        );
        assert!(area.read && area.write && area.shared && !area.exec);
        assert_eq!(area.name, "/memfd:scif:arena (deleted)");
        assert_eq!(
            parse("00400000-00452000 r-xp 00000000 08:02 0").map(|a| a.name),
            Some(String::new())
        );
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn areas_by_address_are_those_of_the_list() {
        let at = buffer();
        unmap(at + PAGE, PAGE).unwrap();
        let maps = || std::fs::File::open("/proc/self/maps").unwrap();
        let listed = parse_all(maps(), at, at + LEN).unwrap();
        assert_eq!(listed.len(), 2, "with a hole");
        match query(&maps(), at, at + LEN) {
            Some(asked) => assert_eq!(asked, listed),
            None => println!("skipped: no PROCMAP_QUERY"),
        }
        assert!(listed.iter().all(|area| {
            areas_of(super::super::process::pid())
                .unwrap()
                .iter()
                .any(|other| other.begin <= area.begin && other.end >= area.end)
        }));
    }

    #[test]
    fn pages_move_there_and_back() {
        let at = buffer();
        let fd = memfd::create("scif-test", 1 << 30).unwrap();
        scif_ring::rmw::store(&word(at + PAGE), 77u64).unwrap();
        let area = areas(at, at + LEN).unwrap().remove(0);
        move_in(&area, at, at + LEN, fd.as_fd(), 8192, None).unwrap();
        let moved = areas(at, at + LEN).unwrap().remove(0);
        assert!(moved.shared && moved.file == file_id(&fd).unwrap());
        scif_ring::rmw::store(&word(at), 78u64).unwrap();
        let mut bytes = [0u8; 8];
        rustix::io::pread(&fd, &mut bytes, 8192 + PAGE as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 77);
        move_back(&moved, at, at + LEN, None, None).unwrap();
        let back = areas(at, at + LEN).unwrap().remove(0);
        assert!(!back.shared && back.file == FileId::default());
        assert_eq!(scif_ring::rmw::load(&word(at)), Some(78u64));
    }

    #[test]
    fn what_is_not_there_any_more_is_not_moved_back() {
        let at = buffer();
        let fd = memfd::create("scif-test", 1 << 30).unwrap();
        let area = areas(at, at + LEN).unwrap().remove(0);
        move_in(&area, at, at + LEN, fd.as_fd(), 0, None).unwrap();
        let moved = areas(at, at + LEN).unwrap().remove(0);
        unmap(at + PAGE, PAGE).unwrap();
        assert_eq!(
            move_back(&moved, at, at + LEN, None, Some(fd.as_fd())),
            Err(Errno::STALE)
        );
        let left = areas(at, at + LEN).unwrap();
        assert!(!left.iter().any(|a| a.begin <= at + PAGE && a.end > at + PAGE));
        unmap(at, PAGE).unwrap();
        unmap(at + 2 * PAGE, LEN - 2 * PAGE).unwrap();
        // No load of the range: all of it is gone.
        assert_eq!(
            move_back(&moved, at, at + LEN, None, Some(fd.as_fd())),
            Err(Errno::STALE)
        );
    }

    #[test]
    fn no_store_is_lost_while_pages_move() {
        let Some(guard) = StoreGuard::new() else {
            println!("skipped: userfaultfd is refused");
            return;
        };
        let at = buffer();
        let fd = memfd::create("scif-test", 1 << 30).unwrap();
        let stop = Arc::new(Flag::new(false));
        let writer = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut n = 0u64;
                while !stop.get() {
                    n += 1;
                    // Read back what was stored before: a lost store shows as an older number.
                    assert_eq!(scif_ring::rmw::fetch_add(&word(at + 64), 1u64), Some(n - 1));
                    assert_eq!(
                        scif_ring::rmw::fetch_add(&word(at + (2 << 20) + 8), 1u64),
                        Some(n - 1)
                    );
                }
                n
            })
        };
        for round in 0..20u64 {
            let area = areas(at, at + LEN).unwrap().remove(0);
            move_in(&area, at, at + LEN, fd.as_fd(), round * LEN as u64, Some(&guard)).unwrap();
            let area = areas(at, at + LEN).unwrap().remove(0);
            move_back(&area, at, at + LEN, Some(&guard), Some(fd.as_fd())).unwrap();
        }
        stop.set(true);
        let n = writer.join().unwrap();
        assert_eq!(scif_ring::rmw::load(&word(at + 64)), Some(n));
    }
}
