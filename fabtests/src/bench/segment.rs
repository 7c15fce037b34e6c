// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that both ranks of a pair share besides the provider: words for barriers, space for
//! names, bytes to copy.
//!
//! Words are accessed with the atomic operations of the ring crate, each on a separate line; bytes
//! are only copied. The segment is a memfd of the parent, mapped once by each rank and never
//! unmapped.
#![expect(unsafe_code, reason = "maps memory and names it for the ring, whose business its use is")]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use scif_fabtests::harness::{Fail, Outcome};
use scif_ring::{Mem, rmw};

/// Bytes between words: two cache lines, because adjacent lines are fetched together.
const STRIDE: usize = 128;
const WORDS: usize = 64;
const NAMES: usize = 16 << 10;
const NAME_ROOM: usize = 1024;
const SLOTS_AT: usize = 64 << 10;
/// Number of lines in the ring whose rate is a limit.
pub(crate) const SLOTS: usize = 256;
const BYTES_AT: usize = 1 << 20;
/// Bytes of the largest message, and of each rank's memory for copies.
pub(crate) const LARGEST: usize = 4 << 20;
/// Length of a segment in bytes.
pub(crate) const LEN: usize = BYTES_AT + 2 * LARGEST;

/// Uses of the words of a segment.
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

/// Aligned word on a separate cache line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word(Mem);

impl Word {
    /// Loads the word with acquire ordering.
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        rmw::load(&self.0).unwrap_or(0)
    }

    /// Stores the word with release ordering.
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        let _ = rmw::store(&self.0, value);
    }
}

/// Mapped segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment(Mem);

/// Creates the zeroed memory of a segment.
pub(crate) fn create() -> Outcome<File> {
    let fd = memfd_create("bench-segment", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, LEN as u64)?;
    Ok(File::from(fd))
}

/// Returns private pages, present and zeroed, which are never freed.
pub(crate) fn private(len: usize) -> Outcome<Mem> {
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address chosen by the kernel overlaps no memory in use.
    let at =
        unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
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
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no memory in use.
        let at = unsafe { mmap(ptr::null_mut(), LEN, access, flags, file.as_fd(), 0) }?;
        // SAFETY: just mapped with this length, inside the file as checked above, and never
        // unmapped.
        Ok(Segment(unsafe { Mem::new(at.cast(), LEN) }))
    }

    fn part(&self, off: usize, len: usize) -> Mem {
        self.0.sub(off, len).unwrap_or(Mem::empty())
    }

    /// Returns the word for a use.
    pub(crate) fn word(&self, which: Use) -> Word {
        const _: () = assert!((Use::Spare1 as usize) < WORDS && WORDS * STRIDE <= NAMES);
        Word(self.part(which as usize * STRIDE, 8))
    }

    /// Returns the word of a rank, out of a pair of uses.
    pub(crate) fn word_of(&self, rank: usize, both: [Use; 2]) -> Word {
        let [first, second] = both;
        self.word(if rank == 0 { first } else { second })
    }

    /// Returns the two words of a line of the ring: sequence number and payload.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to less than SLOTS, a usize")]
    pub(crate) fn slot(&self, index: u64) -> (Word, Word) {
        const _: () = assert!(SLOTS_AT + SLOTS * 64 <= BYTES_AT);
        let at = SLOTS_AT + (index & (SLOTS as u64 - 1)) as usize * 64;
        (Word(self.part(at, 8)), Word(self.part(at + 8, 8)))
    }

    /// Returns the bytes of a rank for copies.
    pub(crate) fn bytes(&self, rank: usize) -> Mem {
        self.part(BYTES_AT + rank.min(1) * LARGEST, LARGEST)
    }

    /// Stores a name, which the other rank reads after the next barrier.
    pub(crate) fn put_name(&self, rank: usize, name: &[u8]) {
        let room = self.part(NAMES + rank * NAME_ROOM, NAME_ROOM);
        let mut bytes = (name.len() as u64).to_le_bytes().to_vec();
        bytes.extend(name);
        room.copy_from_slice(&bytes);
    }

    /// Returns the name that a rank has stored.
    pub(crate) fn name(&self, rank: usize) -> Vec<u8> {
        let room = self.part(NAMES + rank * NAME_ROOM, NAME_ROOM);
        let mut bytes = vec![0; NAME_ROOM];
        room.copy_to_slice(&mut bytes);
        let (len, rest) =
            bytes.split_first_chunk::<8>().map_or((0, [].as_slice()), |(len, rest)| {
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
        let (a, b) =
            (Segment::open(Path::new(&path)).unwrap(), Segment::open(Path::new(&path)).unwrap());
        a.word(Use::Ball).set(7);
        a.put_name(1, b"name");
        assert_eq!(b.word(Use::Ball).get(), 7);
        assert_eq!(b.word(Use::Call).get(), 0);
        assert_eq!((b.name(1), b.name(0)), (b"name".to_vec(), Vec::new()));
        assert_eq!(b.bytes(1).len(), LARGEST);
    }
}
