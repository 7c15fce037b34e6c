// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The memory both ranks of a pair share beside the provider: words to meet at, room to say a name, bytes to copy.
//!
//! Not about what is measured. A word is read and written through the ring's atomic accesses, a line apart from every
//! other one; bytes are only copied. The segment is a memfd of the parent, mapped once by each rank and never unmapped.
#![expect(
    unsafe_code,
    reason = "maps memory and names it for the ring, whose business its use is"
)]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use scif_fabtests::harness::{Fail, Outcome};
use scif_ring::{Mem, rmw};

/// Two lines, since a line and its neighbour are fetched together.
const STRIDE: usize = 128;
const WORDS: usize = 64;
const NAMES: usize = 16 << 10;
const NAME_ROOM: usize = 1024;
const SLOTS_AT: usize = 64 << 10;
/// Lines of the ring whose rate is a limit.
pub(crate) const SLOTS: usize = 256;
const BYTES_AT: usize = 1 << 20;
/// The largest message.
pub(crate) const LARGEST: usize = 4 << 20;
/// Length of a segment.
pub(crate) const LEN: usize = BYTES_AT + 2 * LARGEST;

/// What the words of a segment are for.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Use {
    Arrived0 = 0,
    Arrived1,
    Ball,
    Start0,
    Start1,
    End0,
    End1,
    Call,
    Consumed,
    Addr0,
    Addr1,
    Key0,
    Key1,
    Pid0,
    Pid1,
    Spare0,
    Spare1,
}

/// An aligned word in a line of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word(Mem);

impl Word {
    /// Reads it; whatever was written before the value it finds is seen too.
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        rmw::load(&self.0).unwrap_or(0)
    }

    /// Writes it, after whatever was written before.
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        let _ = rmw::store(&self.0, value);
    }
}

/// The mapped segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment(Mem);

/// Makes the memory of a segment, zeroed.
pub(crate) fn create() -> Outcome<File> {
    let fd = memfd_create("bench-segment", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, LEN as u64)?;
    Ok(File::from(fd))
}

/// Pages of this process alone, present and zeroed, never given back.
pub(crate) fn private(len: usize) -> Outcome<Mem> {
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    // SAFETY: just mapped with this length, readable and writable, and never unmapped.
    Ok(unsafe { Mem::new(at.cast(), len) })
}

impl Segment {
    /// Maps the segment that the parent holds open.
    pub(crate) fn open(path: &Path) -> Outcome<Segment> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < LEN as u64 {
            return Err(Fail::here("the segment is too short"));
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe { mmap(ptr::null_mut(), LEN, access, flags, file.as_fd(), 0) }?;
        // SAFETY: just mapped with this length, inside the file as just checked, and never unmapped.
        Ok(Segment(unsafe { Mem::new(at.cast(), LEN) }))
    }

    fn part(&self, off: usize, len: usize) -> Mem {
        self.0.sub(off, len).unwrap_or(Mem::empty())
    }

    /// The word for a use.
    pub(crate) fn word(&self, which: Use) -> Word {
        const _: () = assert!((Use::Spare1 as usize) < WORDS && WORDS * STRIDE <= NAMES);
        Word(self.part(which as usize * STRIDE, 8))
    }

    /// The word of a pair of uses that belongs to a rank.
    pub(crate) fn word_of(&self, rank: usize, both: [Use; 2]) -> Word {
        let [first, second] = both;
        self.word(if rank == 0 { first } else { second })
    }

    /// The two words of a line of the ring: a sequence number and what it carries.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked to less than SLOTS, a usize"
    )]
    pub(crate) fn slot(&self, index: u64) -> (Word, Word) {
        const _: () = assert!(SLOTS_AT + SLOTS * 64 <= BYTES_AT);
        let at = SLOTS_AT + (index & (SLOTS as u64 - 1)) as usize * 64;
        (Word(self.part(at, 8)), Word(self.part(at + 8, 8)))
    }

    /// The bytes a rank has for copies.
    pub(crate) fn bytes(&self, rank: usize) -> Mem {
        self.part(BYTES_AT + rank.min(1) * LARGEST, LARGEST)
    }

    /// Leaves a name for the other rank to take after the next meeting.
    pub(crate) fn put_name(&self, rank: usize, name: &[u8]) {
        let room = self.part(NAMES + rank * NAME_ROOM, NAME_ROOM);
        let mut bytes = (name.len() as u64).to_le_bytes().to_vec();
        bytes.extend(name);
        room.copy_from_slice(&bytes);
    }

    /// The name a rank left.
    pub(crate) fn name(&self, rank: usize) -> Vec<u8> {
        let room = self.part(NAMES + rank * NAME_ROOM, NAME_ROOM);
        let mut bytes = vec![0; NAME_ROOM];
        room.copy_to_slice(&mut bytes);
        let (len, rest) = bytes
            .split_first_chunk::<8>()
            .map_or((0, [].as_slice()), |(len, rest)| {
                (usize::try_from(u64::from_le_bytes(*len)).unwrap_or(0), rest)
            });
        rest.get(..len).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn two_mappings_are_one_memory() {
        let file = create().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (a, b) = (
            Segment::open(Path::new(&path)).unwrap(),
            Segment::open(Path::new(&path)).unwrap(),
        );
        a.word(Use::Ball).set(7);
        a.put_name(1, b"name");
        assert_eq!(b.word(Use::Ball).get(), 7);
        assert_eq!(b.word(Use::Call).get(), 0);
        assert_eq!((b.name(1), b.name(0)), (b"name".to_vec(), Vec::new()));
        assert_eq!(b.bytes(1).len(), LARGEST);
    }
}
