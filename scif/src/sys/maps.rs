// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings in the address space of a process. See `proc_pid_maps(5)`.
//!
//! Not about their use (`pages`).
#![expect(unsafe_code, reason = "asks by an ioctl")]

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::parts::parts;
use super::process::{self, last_errno};

/// Number of reads of a list that changes during each read, after which an error is returned. With
/// fewer, calls fail in programs that map memory continually.
const TRIES: u32 = 100;
/// Size in bytes of the buffer for parts of the list, where nothing may be allocated. A line
/// without the name of the area is shorter.
const LINES: usize = 1024;

/// An area of addresses as the kernel lists it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "permissions as the kernel lists them")]
pub struct Area {
    pub begin: usize,
    pub end: usize,
    pub read: bool,
    pub write: bool,
    pub(crate) exec: bool,
    pub shared: bool,
    /// Offset of `begin` in the file.
    pub offset: u64,
    pub file: FileId,
    pub name: String,
}

/// Identity of a mapped file; inode 0 for none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FileId {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub ino: u64,
}

impl FileId {
    fn of(stat: &rustix::fs::Stat) -> FileId {
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        FileId { major, minor, ino: stat.st_ino }
    }

    /// Whether both files are on one device.
    pub fn is_beside(&self, other: &FileId) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }
}

pub fn file_id(fd: impl AsFd) -> Result<FileId, Errno> {
    rustix::fs::fstat(fd).map(|stat| FileId::of(&stat))
}

/// Returns the identity of the file or directory at a path.
pub fn file_id_at(path: &str) -> Result<FileId, Errno> {
    rustix::fs::stat(path).map(|stat| FileId::of(&stat))
}

pub(super) fn parse(line: &str) -> Option<Area> {
    let (area, name) = parse_apart(line)?;
    let name = name.to_owned();
    Some(Area { name, ..area })
}

/// Returns the area without its name, and the name. Allocates nothing.
fn parse_apart(line: &str) -> Option<(Area, &str)> {
    let mut parts = line.splitn(6, ' ');
    let (begin, end) = parts.next()?.split_once('-')?;
    let perms = parts.next()?.as_bytes();
    let offset = u64::from_str_radix(parts.next()?, 16).ok()?;
    let (major, minor) = parts.next()?.split_once(':')?;
    let ino = parts.next()?.parse().ok()?;
    let area = Area {
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
        name: String::new(),
    };
    Some((area, parts.next().unwrap_or("").trim_start()))
}

impl Area {
    /// Whether it maps an arena of a `scif.h` connection.
    pub fn is_of_arena(&self) -> bool {
        self.shared && self.name.starts_with("/memfd:scif:arena")
    }

    /// Returns the difference of file offsets and addresses.
    pub fn origin(&self) -> u64 {
        self.offset.wrapping_sub(self.begin as u64)
    }

    /// Returns the end of the area as an offset in the file.
    pub fn last_offset(&self) -> u64 {
        self.offset.saturating_add((self.end - self.begin) as u64)
    }

    /// Returns the address of a file offset in the area.
    pub fn place(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.offset))
            .map_or(self.end, |n| self.end.min(self.begin + n))
    }

    /// Returns the part between two addresses.
    pub fn between(&self, begin: usize, end: usize) -> Area {
        let begin = begin.max(self.begin);
        Area {
            begin,
            end: end.min(self.end),
            offset: self.offset + (begin - self.begin) as u64,
            ..self.clone()
        }
    }

    /// Whether it maps any part of a range of a file.
    pub fn shows(&self, file: FileId, from: u64, to: u64) -> bool {
        self.shared && self.file == file && self.offset < to && self.last_offset() > from
    }
}

/// Returns the present mappings between two addresses in ascending order, as whole areas.
///
/// # Errors
/// The system's. EAGAIN: other threads map and unmap continuously.
pub fn areas(begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    listed("/proc/self/maps", begin, end)
}

/// Returns the present mappings of another process between two addresses, as [`areas`] does.
pub fn areas_between(pid: i32, begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    listed(&format!("/proc/{pid}/maps"), begin, end)
}

fn listed(list: &str, begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    for _ in 0..TRIES {
        let areas = read(list, begin, end)?;
        // The kernel lists areas one by one: two may have been merged meanwhile.
        let apart = |pair: &[Area]| matches!(pair, [one, next] if one.end <= next.begin);
        if areas.windows(2).all(apart) {
            return Ok(areas);
        }
    }
    Err(Errno::AGAIN.into())
}

fn read(list: &str, begin: usize, end: usize) -> std::io::Result<Vec<Area>> {
    let maps = std::fs::File::open(list)?;
    if end != usize::MAX {
        if let Some(areas) = query(&maps, begin, end) {
            return Ok(areas);
        }
    }
    parse_all(maps, begin, end)
}

/// Returns all present mappings except the library's own mappings for copies.
pub fn areas_of_program() -> std::io::Result<Vec<Area>> {
    Ok(except_parts(&areas(0, usize::MAX)?))
}

/// Returns what the areas have outside the library's own mappings.
pub fn except_parts(areas: &[Area]) -> Vec<Area> {
    let _section = super::fork::section();
    let parts = parts();
    let mut out = Vec::new();
    for area in areas {
        let mut begin = area.begin;
        // Includes one that begins before the area and reaches into it.
        let before = parts.before(&begin).last();
        let within = parts.since(&begin).iter().take_while(|(from, _)| *from < area.end);
        for &(from, to) in before.into_iter().chain(within) {
            if from > begin {
                out.push(area.between(begin, from));
            }
            begin = begin.max(to);
        }
        if begin < area.end {
            out.push(area.between(begin, area.end));
        }
    }
    out
}

/// Returns the present mappings of another process; empty if it has ended, `None` if they are not
/// visible.
pub fn areas_of(pid: i32) -> Option<Vec<Area>> {
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"));
    match maps.and_then(|maps| parse_all(maps, 0, usize::MAX)) {
        Ok(areas) => Some(areas),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Some(Vec::new()),
        // With hidepid the file is missing for a running process as well.
        Err(error)
            if error.raw_os_error() == Some(libc::ENOENT)
                && process::state_of(pid) == process::ProcessState::Gone =>
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

/// Reads the list from the present position without allocation: areas have no names.
pub(super) fn each_area(
    mut maps: impl std::io::Read,
    mut see: impl FnMut(&Area),
) -> std::io::Result<()> {
    let mut buffer = [0u8; LINES];
    let mut filled = 0;
    let mut tell = |line: &[u8]| {
        let text = line.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        if let Some((area, _)) = parse_apart(text) {
            see(&area);
        }
    };
    // Whether the next bytes are the end of a line that was already reported.
    let mut told = false;
    loop {
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let n = maps.read(room)?;
        filled += n;
        let mut rest = buffer.get(..filled).unwrap_or_default();
        while let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, next) = rest.split_at(at + 1);
            if !told {
                tell(line);
            }
            told = false;
            rest = next;
        }
        if rest.len() == LINES {
            // The rest of a line that exceeds the buffer belongs to a name.
            if !told {
                tell(rest);
            }
            told = true;
            filled = 0;
        } else {
            let left = rest.len();
            buffer.copy_within(filled - left..filled, 0);
            filled = left;
        }
        if n == 0 {
            return Ok(());
        }
    }
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) vma_flags: u64,
    page_size: u64,
    pub(super) offset: u64,
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
    pub(super) fn file(&self) -> FileId {
        FileId { major: self.major, minor: self.minor, ino: self.inode }
    }
}

/// Queries the area at an address, or the next one. Allocates nothing.
pub(super) fn query_area(maps: &std::fs::File, at: usize, name: &mut [u8]) -> Result<Query, Errno> {
    use std::os::fd::AsRawFd;
    let mut q = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        addr: at as u64,
        name_size: u32::try_from(name.len()).unwrap_or(0),
        name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr().expose_provenance() as u64 },
        ..Query::default()
    };
    // SAFETY: `q` is a live structure of the given size, and `name` has the given number of bytes.
    let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut q) };
    if rc == 0 { Ok(q) } else { Err(last_errno()) }
}

/// Queries each area by address, at a cost independent of other mappings. `None`: the kernel is
/// older than Linux 6.11, or a name is too long.
fn query(maps: &std::fs::File, begin: usize, end: usize) -> Option<Vec<Area>> {
    let mut areas = Vec::new();
    let mut at = begin;
    while at < end {
        let mut name = [0u8; NAME_BYTES];
        let q = match query_area(maps, at, &mut name) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    const PAGE: usize = 4096;
    const LEN: usize = 16 * PAGE;

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

    /// Reader that returns a limited number of bytes at once, like the kernel.
    struct InParts<'a>(&'a [u8], usize);

    impl std::io::Read for InParts<'_> {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            let n = self.1.min(room.len());
            self.0.read(room.get_mut(..n).unwrap())
        }
    }

    #[test]
    fn lines_of_any_length_are_read_in_parts_of_any_length() {
        let names = [0, 30, 900, LINES, 2 * LINES, 5000, 1].map(|n| "\u{e9}n".repeat(n / 3));
        let mut text = String::new();
        for (at, name) in names.iter().enumerate() {
            text += &format!("{at}0000-{at}8000 rw-s 0000{at}000 00:01 {at} /{name}\n");
        }
        let wanted: Vec<Area> = text.lines().filter_map(parse).collect();
        assert_eq!(wanted.len(), names.len());
        for part in [1, 7, 100, LINES - 1, LINES, 4096] {
            let mut seen = Vec::new();
            each_area(InParts(text.as_bytes(), part), |area| seen.push(area.clone())).unwrap();
            let nameless = wanted.iter().map(|area| Area { name: String::new(), ..area.clone() });
            assert!(nameless.eq(seen), "in parts of {part}");
        }
    }

    #[test]
    fn areas_by_address_are_those_of_the_list() {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // Far from addresses that the kernel picks itself, so that the hole stays one despite
        // mappings of other tests.
        let far = std::ptr::with_exposed_provenance_mut(80 << 30);
        // SAFETY: the kernel picks an unused range, at the hint or elsewhere.
        let at = unsafe { rustix::mm::mmap_anonymous(far, LEN, prot, MapFlags::PRIVATE) };
        let at = at.unwrap().expose_provenance();
        super::super::pages::unmap(at + PAGE, PAGE).unwrap();
        let maps = || std::fs::File::open("/proc/self/maps").unwrap();
        // Neighbouring memory belongs to other tests.
        let clipped = |areas: &[Area]| {
            let here = areas.iter().filter(|area| area.begin < at + LEN && area.end > at);
            here.map(|area| area.between(at, at + LEN)).collect::<Vec<_>>()
        };
        let listed = clipped(&parse_all(maps(), at, at + LEN).unwrap());
        assert_eq!(listed.len(), 2, "with a hole");
        match query(&maps(), at, at + LEN) {
            Some(asked) => assert_eq!(clipped(&asked), listed),
            None => println!("skipped: no PROCMAP_QUERY"),
        }
        let mut seen = Vec::new();
        each_area(&maps(), |area| seen.push(area.clone())).unwrap();
        assert_eq!(clipped(&seen), listed);
        assert!(listed.iter().all(|area| {
            areas_of(process::pid())
                .unwrap()
                .iter()
                .any(|other| other.begin <= area.begin && other.end >= area.end)
        }));
    }
}
