// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of a peer that is a shared mapping there, mapped in this process as well.
//!
//! The kernel describes the mappings of both processes (`proc_pid_maps(5)`), so no word of the peer
//! is trusted: it has mapped the file itself, with the rights that are used. This process opens the
//! file by a descriptor of the peer, or maps its own mapping of the file again.
//!
//! Not about private memory, whose pages move (`migrate`).
//! INVARIANT: a mapped file cannot shrink, unless the user permits others: an access beyond the end
//! of a file ends the process by SIGBUS.

use rustix::io::Errno;

use crate::sys::memfd;
use crate::sys::mmap::Mapping;
use crate::sys::pages::{self, Area, FileId, PAGE};
use crate::sys::process::{self, own_word};
use crate::sys::process_vm::RemoteMem;

use scif_ring::{KeyEntry, Mem};

/// Number of mapped keys of a connection. Keys that are equal modulo this number share one place.
const KEYS: usize = 64;

/// Shared memory of peers that may be mapped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MapPolicy {
    /// None.
    Off,
    /// Memory that cannot shrink: sealed memfds, System V segments, shared anonymous mappings.
    #[default]
    Sealed,
    /// Also memfds without the seal and files in `/dev/shm`. A process that truncates one ends
    /// those that access it.
    Auto,
}

/// Reason for which memory was not mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unmapped {
    /// Not one shared mapping, or without the rights of the key, or of another kind.
    NotShared,
    /// The file may shrink.
    MayShrink,
    /// The file cannot be opened here, and is not mapped here.
    NotHere,
    /// The user or the system denies it.
    Denied,
}

/// Kind of a mapped file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Memfd,
    SystemV,
    /// Shared anonymous mapping, which only processes related by fork have.
    Anonymous,
    /// File in `/dev/shm`.
    Shm,
}

impl Kind {
    fn of(area: &Area) -> Option<Kind> {
        let has = |prefix| area.name.starts_with(prefix);
        // Names alone prove nothing: any file system may have a file of such a name.
        let memfd = memfd::create("scif:kind", 0).and_then(pages::file_id);
        if memfd.is_ok_and(|memfd| memfd.is_beside(&area.file)) {
            let kinds = [
                ("/memfd:", Kind::Memfd),
                ("/SYSV", Kind::SystemV),
                ("/dev/zero", Kind::Anonymous),
            ];
            return kinds.into_iter().find_map(|(prefix, kind)| has(prefix).then_some(kind));
        }
        let shm = pages::file_id_at("/dev/shm");
        shm.is_ok_and(|shm| shm.is_beside(&area.file)).then_some(Kind::Shm)
    }
}

/// Shared mapping of a peer over whole pages.
#[derive(Debug)]
pub(crate) struct PeerArea {
    pid: i32,
    area: Area,
    kind: Kind,
    write: bool,
}

/// Returns the shared mapping behind a range of memory of process `pid`.
pub(crate) fn find(pid: i32, region: &RemoteMem, write: bool) -> Result<PeerArea, Unmapped> {
    let at = region.address();
    let end = at.checked_add(region.len_bytes()).and_then(|e| e.checked_next_multiple_of(PAGE));
    let (begin, end) = (at - at % PAGE, end.ok_or(Unmapped::NotShared)?);
    let areas = pages::areas_between(pid, begin, end).map_err(|_| Unmapped::Denied)?;
    let first = areas.first().ok_or(Unmapped::NotShared)?;
    let mut reached = begin;
    for area in &areas {
        let is_one = area.file == first.file && area.origin() == first.origin();
        let permits = area.shared && area.read && (area.write || !write);
        if !is_one || !permits || area.begin > reached {
            return Err(Unmapped::NotShared);
        }
        reached = area.end;
    }
    let kind = Kind::of(first).filter(|_| begin < end && reached >= end);
    let area = Area { end, ..first.between(begin, first.end) };
    Ok(PeerArea { pid, area, kind: kind.ok_or(Unmapped::NotShared)?, write })
}

impl PeerArea {
    fn len(&self) -> usize {
        self.area.end - self.area.begin
    }

    /// Maps the file of this mapping into this process.
    pub(crate) fn map(self, policy: MapPolicy) -> Result<MappedArea, Unmapped> {
        let map = match (self.kind, policy) {
            (Kind::Memfd, _) => self.map_memfd(policy),
            (Kind::Anonymous, _) => self.duplicate_own(),
            (Kind::SystemV, _) if has_own_segments(self.pid) => self.duplicate_own(),
            (Kind::SystemV, _) => Err(Unmapped::NotHere),
            (Kind::Shm, MapPolicy::Auto) => self.duplicate_own().or_else(|_| self.map_named()),
            (Kind::Shm, _) => Err(Unmapped::MayShrink),
        }?;
        // The file may already end within the range. The read of the last word detects that; a
        // later change of size cannot shorten the file.
        let last = map.address() + self.len() - size_of::<u64>();
        own_word(last as u64).ok_or(Unmapped::MayShrink)?;
        Ok(MappedArea { begin: self.area.begin as u64, write: self.write, map })
    }

    fn map_memfd(&self, policy: MapPolicy) -> Result<Mapping, Unmapped> {
        let open = |pid| memfd::open_of(pid, self.area.file, self.write);
        let may_shrink = policy == MapPolicy::Auto;
        match open(self.pid).or_else(|_| open(process::pid())) {
            Ok(fd) if may_shrink || memfd::is_unshrinkable(&fd) => self.map_fd(fd),
            Ok(_) => Err(Unmapped::MayShrink),
            Err(_) if may_shrink => self.duplicate_own(),
            Err(_) => Err(Unmapped::NotHere),
        }
    }

    fn map_named(&self) -> Result<Mapping, Unmapped> {
        let fd = memfd::open_known(&self.area.name, self.area.file, self.write);
        self.map_fd(fd.map_err(|_| Unmapped::NotHere)?)
    }

    fn map_fd(&self, fd: std::os::fd::OwnedFd) -> Result<Mapping, Unmapped> {
        let denied = |_: Errno| Unmapped::Denied;
        Mapping::part(fd, self.area.offset, self.len(), self.write).map_err(denied)
    }

    /// Maps again a mapping of the file that this process has.
    fn duplicate_own(&self) -> Result<Mapping, Unmapped> {
        let (from, to) = (self.area.offset, self.area.last_offset());
        let ours = pages::areas_of_program().map_err(|_| Unmapped::Denied)?;
        let ours = ours.into_iter().find(|area| {
            let covers = area.offset <= from && area.last_offset() >= to;
            area.shows(self.area.file, from, to)
                && covers
                && area.read
                && (area.write || !self.write)
                && Kind::of(area) == Some(self.kind)
        });
        let at = ours.ok_or(Unmapped::NotHere)?.place(from);
        let map = Mapping::duplicate(at, self.len(), self.write).map_err(|_| Unmapped::Denied)?;
        // The program may have replaced its mapping meanwhile.
        if is_of(&map, self.len(), self.area.file, from, self.write) {
            Ok(map)
        } else {
            Err(Unmapped::NotHere)
        }
    }
}

/// Whether a mapping is of a part of a file, with the needed rights.
fn is_of(map: &Mapping, len: usize, file: FileId, offset: u64, write: bool) -> bool {
    let (begin, end) = (map.address(), map.address() + len);
    pages::areas(begin, end).is_ok_and(|areas| match areas.as_slice() {
        [area] => {
            let covers = area.begin <= begin && area.end >= end;
            let is_part = area.shared && area.file == file && area.write >= write;
            covers && is_part && area.origin() == offset.wrapping_sub(begin as u64)
        }
        _ => false,
    })
}

/// Whether a process has the System V segments of this one. Their inode numbers are unique within
/// an IPC namespace only.
fn has_own_segments(pid: i32) -> bool {
    let of = |process: &str| pages::file_id_at(&format!("/proc/{process}/ns/ipc"));
    matches!((of("self"), of(&pid.to_string())), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Shared mapping of a peer that is mapped here.
#[derive(Debug)]
pub(crate) struct MappedArea {
    /// Address of its first page in the peer.
    begin: u64,
    write: bool,
    map: Mapping,
}

impl MappedArea {
    #[inline(always)]
    fn get(&self, remote: &RemoteMem) -> Option<Mem> {
        let at = usize::try_from(remote.addr.wrapping_sub(self.begin)).ok()?;
        let len = remote.len_bytes();
        if self.write { self.map.bytes(at, len).ok() } else { self.map.bytes_to_read(at, len).ok() }
    }
}

/// Key of a peer whose memory is mapped here.
#[derive(Debug)]
pub struct MappedKey {
    slot: u32,
    generation: u64,
    entry: KeyEntry,
    area: MappedArea,
}

impl MappedKey {
    /// Returns its slot and generation in the key table, to be revalidated before an access.
    #[inline]
    #[must_use]
    pub fn place(&self) -> (u32, u64) {
        (self.slot, self.generation)
    }

    /// Returns its entry when the memory was mapped.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> &KeyEntry {
        &self.entry
    }

    /// Returns a range of its memory.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, remote: &RemoteMem) -> Option<Mem> {
        self.area.get(remote)
    }
}

/// Mapped memory behind keys of a peer.
#[derive(Debug)]
pub(crate) struct MappedKeys([Option<MappedKey>; KEYS]);

impl Default for MappedKeys {
    fn default() -> MappedKeys {
        MappedKeys([const { None }; KEYS])
    }
}

/// Returns the index of a key.
#[inline]
fn index(key: u64) -> usize {
    let [low, ..] = key.to_le_bytes();
    usize::from(low) % KEYS
}

impl MappedKeys {
    /// Returns a key that was mapped. It may be closed since.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<&MappedKey> {
        self.0.get(index(key))?.as_ref().filter(|mapped| mapped.entry.key == key)
    }

    /// Whether a key of the key table is mapped.
    pub(crate) fn has(&self, key: u64, place: (u32, u64)) -> bool {
        self.find(key).is_some_and(|mapped| mapped.place() == place)
    }

    /// Returns a range of the memory behind an entry of the key table. A faulty peer may have
    /// changed the rights.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        place: (u32, u64),
        entry: &KeyEntry,
        remote: &RemoteMem,
    ) -> Option<Mem> {
        let mapped = self.find(entry.key)?;
        let is_it = mapped.place() == place && mapped.entry.access == entry.access;
        if is_it { mapped.get(remote) } else { None }
    }

    pub(crate) fn insert(
        &mut self,
        (slot, generation): (u32, u64),
        entry: KeyEntry,
        area: MappedArea,
    ) {
        if let Some(place) = self.0.get_mut(index(entry.key)) {
            *place = Some(MappedKey { slot, generation, entry, area });
        }
    }

    /// Unmaps the memory of keys that `keep` refuses. Returns whether any is left.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32, u64) -> bool) -> bool {
        let mut left = false;
        for place in &mut self.0 {
            place.take_if(|key| !keep(key.slot, key.generation));
            left |= place.is_some();
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4 * PAGE;

    /// Returns a file of `LEN` bytes and a mapping of it.
    fn file(is_sealed: bool) -> (std::os::fd::OwnedFd, Mapping) {
        let fd = memfd::create("scif-test", LEN).unwrap();
        if is_sealed {
            memfd::seal(&fd, memfd::FIXED_SIZE).unwrap();
        }
        let map = Mapping::shared(&fd, LEN, true).unwrap();
        (fd, map)
    }

    fn region(map: &Mapping, offset: usize, len: usize) -> RemoteMem {
        RemoteMem { addr: (map.address() + offset) as u64, len: len as u64 }
    }

    fn mapped(region: &RemoteMem, write: bool, policy: MapPolicy) -> Result<MappedArea, Unmapped> {
        find(process::pid(), region, write)?.map(policy)
    }

    fn reason(region: &RemoteMem, write: bool, policy: MapPolicy) -> Option<Unmapped> {
        mapped(region, write, policy).err()
    }

    #[test]
    fn a_sealed_memfd_is_mapped_in_part() {
        const PARTS: [(usize, usize); 5] =
            [(0, LEN), (100, 8), (PAGE, PAGE), (PAGE - 4, 8), (LEN - 1, 1)];
        let (_fd, map) = file(true);
        for (byte, (offset, len)) in (1..).zip(PARTS) {
            let region = region(&map, offset, len);
            let area = mapped(&region, true, MapPolicy::Sealed).unwrap();
            let there = map.bytes(offset, len).unwrap();
            area.get(&region).unwrap().copy_from_slice(&vec![byte; len]);
            let mut seen = vec![0; len];
            there.copy_to_slice(&mut seen);
            assert_eq!(seen, vec![byte; len], "{len} bytes at {offset}");
            let outside = RemoteMem { addr: region.addr + 2 * LEN as u64, len: 1 };
            assert!(area.get(&outside).is_none());
            assert!(area.get(&RemoteMem { addr: region.addr - LEN as u64, len: 1 }).is_none());
        }
    }

    #[test]
    fn memory_that_may_shrink_is_mapped_on_request_only() {
        let (_fd, map) = file(false);
        let region = region(&map, 0, LEN);
        assert_eq!(reason(&region, true, MapPolicy::Sealed), Some(Unmapped::MayShrink));
        assert_eq!(reason(&region, true, MapPolicy::Auto), None);
    }

    #[test]
    fn a_mapping_beyond_the_end_of_its_file_is_not_mapped() {
        let fd = memfd::create("scif-test", LEN).unwrap();
        memfd::seal(&fd, memfd::FIXED_SIZE).unwrap();
        let map = Mapping::shared(&fd, 2 * LEN, true).unwrap();
        for (offset, len) in [(0, LEN + 1), (LEN, PAGE), (0, 2 * LEN)] {
            let region = region(&map, offset, len);
            assert_eq!(reason(&region, true, MapPolicy::Sealed), Some(Unmapped::MayShrink));
        }
        assert_eq!(reason(&region(&map, 0, LEN), true, MapPolicy::Sealed), None);
    }

    #[test]
    fn an_anonymous_mapping_is_mapped_again() {
        let map = Mapping::anonymous(LEN).unwrap();
        let region = region(&map, PAGE, 8);
        let area = mapped(&region, true, MapPolicy::Sealed).unwrap();
        area.get(&region).unwrap().copy_from_slice(&[7; 8]);
        drop(area);
        let mut seen = [0; 8];
        map.bytes(PAGE, 8).unwrap().copy_to_slice(&mut seen);
        assert_eq!(seen, [7; 8]);
    }

    #[test]
    fn private_and_read_only_memory_is_distinguished() {
        let private = Mapping::private(LEN).unwrap();
        let private = region(&private, 0, LEN);
        assert_eq!(reason(&private, true, MapPolicy::Auto), Some(Unmapped::NotShared));
        let (fd, _map) = file(true);
        let map = Mapping::shared(&fd, LEN, false).unwrap();
        let region = region(&map, 0, LEN);
        assert_eq!(reason(&region, true, MapPolicy::Auto), Some(Unmapped::NotShared));
        assert!(mapped(&region, false, MapPolicy::Sealed).unwrap().get(&region).is_some());
        let nothing = RemoteMem { addr: 1 << 13, len: 8 };
        assert_eq!(reason(&nothing, false, MapPolicy::Auto), Some(Unmapped::NotShared));
        let wrapped = RemoteMem { addr: u64::MAX - 4, len: 8 };
        assert_eq!(reason(&wrapped, false, MapPolicy::Auto), Some(Unmapped::NotShared));
    }

    #[test]
    fn a_key_is_mapped_until_its_generation_ends() {
        let (_fd, map) = file(true);
        let region = region(&map, 0, 8);
        let area = || mapped(&region, true, MapPolicy::Sealed).unwrap();
        let entry = |key, access| KeyEntry { key, access, ..KeyEntry::default() };
        let mut keys = MappedKeys::default();
        keys.insert((3, 2), entry(30, 1), area());
        keys.insert((5, 2), entry(50, 1), area());
        assert!(keys.get((3, 2), &entry(30, 1), &region).is_some());
        assert!(keys.get((3, 2), &entry(30, 3), &region).is_none(), "with other rights");
        assert!(keys.get((3, 6), &entry(30, 1), &region).is_none());
        assert!(keys.find(30 + KEYS as u64).is_none() && keys.find(30).is_some());
        assert!(keys.retain(|slot, _| slot == 5));
        assert!(!keys.has(30, (3, 2)) && keys.has(50, (5, 2)));
        assert!(!keys.retain(|_, _| false));
    }
}
