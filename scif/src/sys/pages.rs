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

use super::process::last_errno;

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

fn parse(line: &str) -> Option<Area> {
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

/// What is mapped now between two addresses, in their order; whole areas.
pub(crate) fn areas(begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    let text = std::fs::read("/proc/self/maps")?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(parse)
        .filter(|area| area.begin < end && area.end > begin)
        .collect())
}

/// Threads of this process.
pub(crate) fn threads() -> usize {
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
/// `guard` other threads may store meanwhile; without, nobody else may run.
pub(crate) fn move_in(
    area: &Area,
    begin: usize,
    end: usize,
    fd: BorrowedFd<'_>,
    offset: u64,
    guard: Option<&StoreGuard>,
) -> Result<(), Errno> {
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

/// Moves pages of a memfd that are mapped at `begin..end`, in `area`, back to private memory.
pub(crate) fn move_back(
    area: &Area,
    begin: usize,
    end: usize,
    guard: Option<&StoreGuard>,
) -> Result<(), Errno> {
    let mut at = begin;
    while at < end {
        let len = PIECE.min(end - at);
        // SAFETY: without MAP_FIXED the kernel picks a range nobody uses.
        let fresh = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let held = guard.filter(|_| area.write);
        if let Some(guard) = held {
            guard.hold(at, len)?;
        }
        let mut moved = if area.read {
            // SAFETY: `fresh` is len bytes of ours; the range is mapped readable, as the kernel has just said, and
            // bytes that change meanwhile are only copied.
            unsafe { pointer(at).cast::<u8>().copy_to_nonoverlapping(fresh.cast(), len) };
            Ok(())
        } else {
            Err(Errno::ACCESS)
        };
        if moved.is_ok() {
            // SAFETY: `fresh` is ours; this gives it the protection of what it replaces.
            moved = unsafe { rustix::mm::mprotect(fresh, len, mprotect_flags(area)) };
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
        moved?;
        at += len;
    }
    Ok(())
}

fn mprotect_flags(area: &Area) -> rustix::mm::MprotectFlags {
    rustix::mm::MprotectFlags::from_bits_truncate(protection(area).bits())
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
    // SAFETY: changes no byte.
    let _ = unsafe { rustix::mm::madvise(pointer(at), len, Advice::LinuxDontFork) };
    Ok(())
}

/// Takes away what `reserve_for_program` gave and the program has not seen.
pub(crate) fn unmap_again(at: usize, len: usize) {
    // SAFETY: reserved by the caller, who has told nobody.
    let _ = unsafe { rustix::mm::munmap(pointer(at), len) };
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
        move_back(&moved, at, at + LEN, None).unwrap();
        let back = areas(at, at + LEN).unwrap().remove(0);
        assert!(!back.shared && back.file == FileId::default());
        assert_eq!(scif_ring::rmw::load(&word(at)), Some(78u64));
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
            move_back(&area, at, at + LEN, Some(&guard)).unwrap();
        }
        stop.set(true);
        let n = writer.join().unwrap();
        assert_eq!(scif_ring::rmw::load(&word(at + 64)), Some(n));
    }
}
