// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registered address space of one endpoint: its windows in the order of their offsets, in memory
//! that the peer can read but not write. The progress of its RMAs (`sharers`) precedes them.
//!
//! Not about the pages behind a window. A deleted window keeps its entry until its pages are
//! released: lookups skip it, and its offsets stay occupied. The table is a seqlock: the writer,
//! one sharer at a time, makes `seq` odd, changes entries and makes it even. A reader that sees a
//! change repeats the read. A peer trusts nothing in it: an entry is copied, checked, then used.
//!
//! | offset | content |
//! |---|---|
//! | 0 | seq; 8 number of windows |
//! | 64 | RMAs queued so far |
//! | 192 | mappings of the peer's windows made so far |
//! | 200 | calls copying now, of sharers without a place |
//! | 256 | only for this side: windows made so far; 264 bytes of its arena allocated |
//! | 512 | places of sharers, 64 bytes each |
//! | 4096 | windows, 40 bytes each: offset, length, place, protection and kind, serial, process |

use scif::sys::large;
use scif::sys::mmap::Mapping;
use scif::sys::smaps::PageSizeHint;
use scif::sys::time::{cpu_relax_or_yield, now_ns};
use scif_ring::{SharedU64, SharedWords, full_fence};

use super::sharers::{Copying, Own, SHARER_WORDS, SHARERS_MAX, Sharers};

use crate::failure::{Failure, Result};

/// Maximum number of windows of one endpoint. More give ENOMEM.
pub(crate) const WINDOWS_MAX: usize = 32768;
pub(crate) const ENTRY_WORDS: usize = 5;
pub(crate) const ENTRIES: usize = 4096;
/// Size of a table in bytes.
pub(crate) const TABLE_BYTES: usize = ENTRIES + WINDOWS_MAX * ENTRY_WORDS * 8;
/// Size of an arena in bytes: sparse, in three zones by page size (`large::ROOM_BYTES`). No part is
/// allocated twice. A zone lasts for three years of registrations at 10 GB a second.
pub const ARENA_BYTES: usize = 3 << 60;
/// Number of attempts of a disturbed reader before it reads the clock. With fewer, short changes of
/// the table pay for the clock.
const TRIES: u32 = 128;
/// Time in nanoseconds for which a reader waits for the end of a change. A writer can lose its
/// processor within a change. After that time the table counts as broken.
const CHANGE_NS: u64 = 1_000_000_000;

const PAGE: u64 = 4096;
/// Largest offset, as of `off_t`.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Location of the pages of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// In the arena of the side that registered them, at this offset.
    Arena(u64),
    /// Not moved, at this address of this process.
    Unmoved { addr: u64, pid: i32 },
}

impl Place {
    /// Returns the place `n` bytes further.
    pub(crate) fn after(self, n: u64) -> Place {
        match self {
            Place::Arena(at) => Place::Arena(at.wrapping_add(n)),
            Place::Unmoved { addr, pid } => Place::Unmoved { addr: addr.wrapping_add(n), pid },
        }
    }
}

/// Window of a registered address space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Window {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) place: Place,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whether lookups skip it. A mapping of the peer may still use its pages.
    pub(crate) deleted: bool,
    /// Sequence number of the window. Entries with the same number are parts of one window.
    pub(crate) serial: u32,
}

/// Bit of a deleted window in the word of protection and kind.
const DELETED: u64 = 4;
/// Index of that word.
const FLAGS: usize = 3;

impl Window {
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Returns its range of the arena.
    pub(crate) fn in_arena(&self) -> Option<(u64, u64)> {
        match self.place {
            Place::Arena(at) => Some((at, at.saturating_add(self.len))),
            Place::Unmoved { .. } => None,
        }
    }

    /// Returns the addresses of a process at which it has pages in place.
    pub(crate) fn unmoved(&self, process: i32) -> Option<(u64, u64)> {
        match self.place {
            Place::Unmoved { addr, pid } if pid == process => {
                Some((addr, addr.saturating_add(self.len)))
            }
            Place::Unmoved { .. } | Place::Arena(_) => None,
        }
    }

    fn encode(&self) -> [u64; ENTRY_WORDS] {
        let (place, kind, pid) = match self.place {
            Place::Arena(at) => (at, 0u64, 0u32),
            Place::Unmoved { addr, pid } => (addr, 1, u32::from_ne_bytes(pid.to_ne_bytes())),
        };
        let flags = u64::from(self.read)
            | u64::from(self.write) << 1
            | u64::from(self.deleted) << 2
            | kind << 8;
        let process = u64::from(self.serial) << 32 | u64::from(pid);
        [self.offset, self.len, place, flags, process]
    }

    /// Decodes a window, if the words form a valid one.
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(crate) fn decode(words: [u64; ENTRY_WORDS]) -> Option<Window> {
        let [offset, len, place, flags, process] = words;
        let whole = [offset, len, place].iter().all(|n| n % PAGE == 0);
        if !whole || len == 0 || offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX + 1) {
            return None;
        }
        let place = match flags >> 8 {
            0 if place.checked_add(len).is_some_and(|end| end <= ARENA_BYTES as u64) => {
                Place::Arena(place)
            }
            1 if place.checked_add(len).is_some() => {
                Place::Unmoved { addr: place, pid: process as i32 }
            }
            _ => return None,
        };
        Some(Window {
            offset,
            len,
            place,
            read: flags & 1 != 0,
            write: flags & 2 != 0,
            deleted: flags & DELETED != 0,
            serial: (process >> 32) as u32,
        })
    }
}

/// Run of bytes in one window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Run {
    pub(crate) window: Window,
    /// Offset from the beginning of the window.
    pub(crate) skip: u64,
    pub(crate) len: u64,
}

impl Run {
    pub(crate) fn place(&self) -> Place {
        self.window.place.after(self.skip)
    }
}

/// Table for reading.
#[derive(Debug)]
pub(crate) struct Table {
    front: SharedWords,
    entries: SharedWords,
    pub(crate) sharers: Sharers,
    _map: Mapping,
}

const SEQ: usize = 0;
const COUNT: usize = 1;
const QUEUED: usize = 8;
const MAPPED: usize = 24;
const OTHERS_COPYING: usize = 25;
/// Offset of the places of the sharers.
pub(crate) const SHARERS_AT: usize = 512;
const SERIALS: usize = 32;
const GIVEN: usize = 33;

impl Table {
    pub(crate) fn over(map: Mapping) -> Result<Table> {
        let front = map.words(0, ENTRIES / 8)?;
        let word = |i: usize| front.get(i).ok_or(Failure::Broken);
        Ok(Table {
            front,
            entries: map.words(ENTRIES, WINDOWS_MAX * ENTRY_WORDS)?,
            sharers: Sharers::over(
                map.words(SHARERS_AT, SHARERS_MAX * SHARER_WORDS)?,
                word(QUEUED)?,
                word(OTHERS_COPYING)?,
            ),
            _map: map,
        })
    }

    fn front(&self, i: usize) -> Result<SharedU64> {
        self.front.get(i).ok_or(Failure::Broken)
    }

    /// Returns how many times this side has mapped a window of the other side.
    pub(crate) fn mappings(&self) -> Result<u64> {
        Ok(self.front(MAPPED)?.get())
    }

    fn entry(&self, i: usize) -> Option<Window> {
        let mut words = [0; ENTRY_WORDS];
        for (k, word) in words.iter_mut().enumerate() {
            *word = self.entries.get(i * ENTRY_WORDS + k)?.get_relaxed();
        }
        Window::decode(words)
    }

    fn offset(&self, i: usize) -> u64 {
        self.entries.get(i * ENTRY_WORDS).map_or(u64::MAX, |word| word.get_relaxed())
    }

    /// Passes the windows, from the last one that begins at or before `offset`, to `each` until it
    /// returns false. After a change by the writer, the walk starts again with a new value of
    /// `fresh`.
    fn walk<T>(
        &self,
        offset: u64,
        mut fresh: impl FnMut() -> T,
        mut each: impl FnMut(&mut T, Window) -> bool,
    ) -> Result<T> {
        let seq = self.front(SEQ)?;
        let (mut tries, mut disturbed_ns) = (0_u32, None);
        loop {
            tries = tries.saturating_add(1);
            if tries > TRIES {
                let since = *disturbed_ns.get_or_insert_with(now_ns);
                if now_ns() - since > CHANGE_NS {
                    return Err(Failure::Broken);
                }
            }
            let before = seq.get();
            if before % 2 == 1 {
                cpu_relax_or_yield(tries);
                continue;
            }
            let count =
                usize::try_from(self.front(COUNT)?.get_relaxed()).map_or(0, |n| n.min(WINDOWS_MAX));
            let (mut low, mut high) = (0, count);
            while low < high {
                let middle = usize::midpoint(low, high);
                if self.offset(middle) <= offset {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let mut told = fresh();
            for i in low.saturating_sub(1)..count {
                if !self.entry(i).is_some_and(|window| each(&mut told, window)) {
                    break;
                }
            }
            // SYNC POINT: pairs with `OwnTable::change`. The entries were read before `seq` is read
            // again.
            full_fence();
            if seq.get() == before {
                return Ok(told);
            }
        }
    }

    /// Splits `len` bytes at `offset` into runs of windows.
    ///
    /// # Errors
    /// [`Failure::NoWindow`] where one is missing, [`Failure::NotPermitted`] where one does not
    /// allow the access; the lower offset decides.
    pub(crate) fn runs(&self, offset: u64, len: u64, read: bool, write: bool) -> Result<Vec<Run>> {
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= OFFSET_MAX + 1)
            .ok_or(Failure::NoWindow)?;
        let found = self.walk(
            offset,
            || (offset, Ok(Vec::new())),
            |(at, runs), window| {
                let Ok(list) = runs else { return false };
                if window.offset > *at || window.end() <= *at || window.deleted {
                    return false;
                }
                if (read && !window.read) || (write && !window.write) {
                    *runs = Err(Failure::NotPermitted);
                    return false;
                }
                let skip = *at - window.offset;
                let len = (window.len - skip).min(end - *at);
                list.push(Run { window, skip, len });
                *at += len;
                *at < end
            },
        )?;
        let (reached, runs) = found;
        let runs = runs?;
        if reached < end { Err(Failure::NoWindow) } else { Ok(runs) }
    }

    /// Whether any window, also a deleted one, touches the range.
    pub(crate) fn touches(&self, offset: u64, len: u64) -> Result<bool> {
        let end = offset.saturating_add(len);
        self.walk(
            offset,
            || false,
            |hit, window| {
                *hit |= window.offset < end && window.end() > offset;
                !*hit && window.offset < end
            },
        )
    }

    /// Returns the window that contains the byte at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Result<Option<Window>> {
        self.walk(
            offset,
            || None,
            |found, window| {
                if !window.deleted && window.offset <= offset && window.end() > offset {
                    *found = Some(window);
                }
                false
            },
        )
    }

    /// Returns every window, deleted ones too.
    pub(crate) fn all(&self) -> Result<Vec<Window>> {
        self.walk(0, Vec::new, |list, window| {
            list.push(window);
            true
        })
    }
}

/// Table for writing, by the side that owns it, one sharer at a time.
#[derive(Debug)]
pub(crate) struct OwnTable(Table, Own);

impl std::ops::Deref for OwnTable {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}

impl OwnTable {
    pub(crate) fn over(map: Mapping) -> Result<OwnTable> {
        // Fails unless the mapping is writable.
        map.word64(0)?;
        Ok(OwnTable(Table::over(map)?, Own::default()))
    }

    /// Whether this process has a place among the sharers, or gets one now.
    pub(crate) fn take_place(&self) -> bool {
        self.1.place(&self.0.sharers).is_some()
    }

    /// Queues one more RMA and returns its number. `None`: it must be executed at once.
    pub(crate) fn queue(&self) -> Result<Option<u64>> {
        self.1.queue(&self.0.sharers)
    }

    /// Marks a queued RMA as finished.
    pub(crate) fn finish(&self, ticket: u64) -> Result<()> {
        self.1.finish(&self.0.sharers, ticket)
    }

    /// Marks a call as copying, see [`Own::copying`].
    pub(crate) fn copying(&self) -> Result<Copying> {
        self.1.copying(&self.0.sharers)
    }

    /// Returns the serial number of a new window.
    pub(crate) fn next_serial(&self) -> Result<u32> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "wraps after 2^31 windows: 31 bits go over the wire"
        )]
        Ok((self.0.front(SERIALS)?.add(1) + 1) as u32 & 0x7fff_ffff)
    }

    /// Whether there is space for `windows` more entries.
    pub(crate) fn has_room(&self, windows: usize) -> Result<bool> {
        let count = usize::try_from(self.0.front(COUNT)?.get_relaxed()).map_or(WINDOWS_MAX, |n| n);
        Ok(count.saturating_add(windows) <= WINDOWS_MAX)
    }

    /// Allocates a new range of the arena, in the zone of the wanted page size, for the pages at
    /// `addr`. Whole huge pages there can stay huge in the arena.
    pub(crate) fn take_arena(&self, wanted: PageSizeHint, addr: usize, len: u64) -> Result<u64> {
        let given = self.0.front(GIVEN)?;
        loop {
            let before = given.get();
            let at = match wanted {
                PageSizeHint::Large => large::next_like(before, addr as u64),
                PageSizeHint::Any | PageSizeHint::Small => Some(before),
            };
            let (at, end) = at
                .and_then(|at| Some((at, at.checked_add(len)?)))
                .filter(|&(_, end)| end <= large::ROOM_BYTES)
                .ok_or(Failure::NoMemory)?;
            if given.compare_exchange(before, end) {
                return Ok(wanted.room() + at);
            }
        }
    }

    /// Whether any part of the arena was ever allocated.
    pub(crate) fn has_given(&self) -> Result<bool> {
        Ok(self.0.front(GIVEN)?.get() != 0)
    }

    /// Counts a mapping of a peer's window that is being made.
    pub(crate) fn map_one(&self) -> Result<()> {
        self.0.front(MAPPED)?.add(1);
        Ok(())
    }

    /// Changes entries. `how` gets their number and returns the new number.
    fn change<T>(&self, how: impl FnOnce(&SharedWords, usize) -> Result<(T, usize)>) -> Result<T> {
        let seq = self.0.front(SEQ)?;
        let count = self.0.front(COUNT)?;
        let before = usize::try_from(count.get_relaxed()).map_or(0, |n| n.min(WINDOWS_MAX));
        seq.set_relaxed(seq.get_relaxed() | 1);
        // SYNC POINT: pairs with the fence in `Table::walk`. A reader that sees a store made below
        // sees `seq` odd.
        full_fence();
        let done = how(&self.0.entries, before);
        if let Ok((_, after)) = &done {
            count.set_relaxed(*after as u64);
        }
        seq.set((seq.get_relaxed() | 1).wrapping_add(1));
        done.map(|(value, _)| value)
    }

    /// Returns the index of the first entry with an offset not below `offset`.
    fn first(&self, count: usize, offset: u64) -> usize {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.0.offset(middle) < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Adds a window that overlaps no other.
    pub(crate) fn insert(&self, window: Window) -> Result<()> {
        self.change(|entries, count| {
            if count >= WINDOWS_MAX {
                return Err(Failure::NoMemory);
            }
            let at = self.first(count, window.offset) * ENTRY_WORDS;
            for i in (at..count * ENTRY_WORDS).rev() {
                copy(entries, i, i + ENTRY_WORDS);
            }
            for (k, n) in window.encode().into_iter().enumerate() {
                put(entries, at + k, n);
            }
            Ok(((), count + 1))
        })
    }

    /// Marks the windows with offsets in the range as deleted, so that lookups skip them.
    pub(crate) fn delete(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        self.change(|entries, count| {
            for i in self.first(count, offset)..count {
                if self.0.offset(i) >= end {
                    break;
                }
                if let Some(word) = entries.get(i * ENTRY_WORDS + FLAGS) {
                    word.set_relaxed(word.get_relaxed() | DELETED);
                }
            }
            Ok(((), count))
        })
    }

    /// Removes the deleted windows selected by `gone`.
    pub(crate) fn forget(&self, gone: impl Fn(&Window) -> bool) -> Result<()> {
        self.change(|entries, count| {
            let mut kept = 0;
            for i in 0..count {
                if self.0.entry(i).is_some_and(|w| w.deleted && gone(&w)) {
                    continue;
                }
                let words = if kept == i { 0 } else { ENTRY_WORDS };
                (0..words).for_each(|k| copy(entries, i * ENTRY_WORDS + k, kept * ENTRY_WORDS + k));
                kept += 1;
            }
            Ok(((), kept))
        })
    }

    /// Returns the highest free range of `len` bytes; the driver allocates offsets from the top
    /// down too. Only for the writer.
    pub(crate) fn free(&self, len: u64) -> Result<u64> {
        // The last page of the space is never allocated.
        let mut ceiling = OFFSET_MAX + 1 - PAGE;
        let count =
            usize::try_from(self.0.front(COUNT)?.get_relaxed()).map_or(0, |n| n.min(WINDOWS_MAX));
        for i in (0..count).rev() {
            let Some(window) = self.0.entry(i) else {
                continue;
            };
            let end = window.end();
            if end <= ceiling && ceiling - end >= len {
                break;
            }
            ceiling = ceiling.min(window.offset);
        }
        ceiling.checked_sub(len).ok_or(Failure::NoMemory)
    }

    /// Returns the start of the free range of `len` bytes that is nearest to `offset`, a multiple
    /// of the page size. Only for the writer.
    pub(crate) fn free_near(&self, offset: u64, len: u64) -> Result<u64> {
        let end = OFFSET_MAX + 1 - PAGE;
        let count =
            usize::try_from(self.0.front(COUNT)?.get_relaxed()).map_or(0, |n| n.min(WINDOWS_MAX));
        let mut nearest = None;
        let mut begin = 0;
        for window in (0..count).filter_map(|i| self.0.entry(i)).map(Some).chain([None]) {
            let last = window.map_or(end, |window| window.offset).checked_sub(len);
            if let Some(last) = last.filter(|&last| last >= begin) {
                let at = offset.clamp(begin, last);
                if nearest.is_none_or(|other| at.abs_diff(offset) < offset.abs_diff(other)) {
                    nearest = Some(at);
                }
            }
            begin = window.map_or(end, |window| window.end().max(begin));
        }
        nearest.ok_or(Failure::NoMemory)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.all().unwrap().len()
    }
}

fn put(entries: &SharedWords, i: usize, n: u64) {
    if let Some(word) = entries.get(i) {
        word.set_relaxed(n);
    }
}

fn copy(entries: &SharedWords, from: usize, to: usize) {
    if let Some(word) = entries.get(from) {
        put(entries, to, word.get_relaxed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> OwnTable {
        OwnTable::over(Mapping::anonymous(TABLE_BYTES).unwrap()).unwrap()
    }

    fn window(offset: u64, pages: u64, prot: u8) -> Window {
        Window {
            offset,
            len: pages * PAGE,
            place: Place::Arena(offset % (1 << 30)),
            read: prot & 1 != 0,
            write: prot & 2 != 0,
            deleted: false,
            serial: 1,
        }
    }

    #[test]
    fn ranges_span_adjacent_windows() {
        let table = table();
        for w in [window(0x3000, 1, 3), window(0x1000, 2, 3), window(0x6000, 1, 1)] {
            table.insert(w).unwrap();
        }
        let runs = table.runs(0x1800, 0x2000, true, true).unwrap();
        assert_eq!(
            runs.iter().map(|r| (r.skip, r.len)).collect::<Vec<_>>(),
            [(0x800, 0x1800), (0, 0x800)]
        );
        assert_eq!(table.runs(0x3000, 0x1001, true, false), Err(Failure::NoWindow));
        assert_eq!(table.runs(0x6000, 8, false, true), Err(Failure::NotPermitted));
        assert_eq!(
            table.runs(0x6000, 0x2000, false, true),
            Err(Failure::NotPermitted),
            "in their order"
        );
        assert_eq!(table.runs(0, 8, true, false), Err(Failure::NoWindow));
        assert_eq!(table.runs(u64::MAX, 8, true, false), Err(Failure::NoWindow));
        assert!(table.touches(0x2000, 0x1000).unwrap() && !table.touches(0x4000, 0x2000).unwrap());
        table.delete(0x1000, 0x3000).unwrap();
        assert_eq!(table.runs(0x1000, 8, true, false), Err(Failure::NoWindow));
        assert_eq!(table.at(0x1000), Ok(None));
        assert!(table.touches(0x1000, 0x1000).unwrap(), "its offset is taken");
        assert_eq!(table.len(), 3);
        table.forget(|w| w.offset == 0x1000).unwrap();
        assert_eq!(table.len(), 2);
        table.forget(|_| true).unwrap();
        assert_eq!(table.all().unwrap(), [window(0x6000, 1, 1)]);
        assert!(!table.touches(0x1000, 0x3000).unwrap());
    }

    #[test]
    fn a_reader_waits_for_a_writer_without_a_processor() {
        let table = table();
        let changes = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let slow = table.change(|_, count| {
                    changes.wait();
                    std::thread::sleep(std::time::Duration::from_millis(300));
                    Ok(((), count))
                });
                slow.unwrap();
            });
            changes.wait();
            assert_eq!(table.at(0x1000), Ok(None));
        });
        table.front(SEQ).unwrap().set(1);
        assert_eq!(table.at(0x1000), Err(Failure::Broken), "a change without end");
    }

    #[test]
    fn offsets_are_allocated_from_the_top() {
        let table = table();
        let give = |pages: u64| {
            let offset = table.free(pages * PAGE).unwrap();
            table.insert(window(offset, pages, 3)).unwrap();
            offset
        };
        assert_eq!(give(1), 0x7fff_ffff_ffff_e000);
        assert_eq!(give(2), 0x7fff_ffff_ffff_c000);
        assert_eq!(give(1), 0x7fff_ffff_ffff_b000);
        table.delete(0x7fff_ffff_ffff_c000, 2 * PAGE).unwrap();
        assert_eq!(
            table.free(PAGE).unwrap(),
            0x7fff_ffff_ffff_a000,
            "not what is deleted and may be mapped"
        );
        table.forget(|_| true).unwrap();
        assert_eq!(table.free(PAGE).unwrap(), 0x7fff_ffff_ffff_d000, "what is free again");
    }

    #[test]
    fn suggested_or_nearest_free_offset_is_used() {
        let table = table();
        let give = |offset: u64, pages: u64| {
            let at = table.free_near(offset, pages * PAGE).unwrap();
            table.insert(window(at, pages, 3)).unwrap();
            at
        };
        assert_eq!(give(0x50000, 1), 0x50000);
        assert_eq!(give(0x50000, 2), 0x51000, "nearer than below");
        assert_eq!(give(0x50000, 1), 0x4f000, "nearer than above");
        assert_eq!(give(0x52000, 1), 0x53000);
        assert_eq!(give(0x1000, 1), 0x1000);
        assert_eq!(give(0x1000, 1), 0, "the first of two as near");
        let top = 0x7fff_ffff_ffff_f000;
        assert_eq!(give(top, 1), top - PAGE, "the last page is never given out");
        assert_eq!(give(top, 2), top - 3 * PAGE);
        let room = top - 3 * PAGE - 0x54000;
        assert_eq!(table.free_near(0, room + PAGE), Err(Failure::NoMemory));
        assert_eq!(table.free_near(0, room), Ok(0x54000), "the only gap as long");
        assert_eq!(table.free_near(0, u64::MAX), Err(Failure::NoMemory));
    }

    #[test]
    fn an_arena_outlasts_the_registrations_of_a_process() {
        let table = table();
        let large = 1 << 40;
        for i in 0..10_000 {
            assert_eq!(table.take_arena(PageSizeHint::Any, 0, large), Ok(i * large));
        }
        let room = large::ROOM_BYTES;
        assert_eq!(table.take_arena(PageSizeHint::Any, 0, room), Err(Failure::NoMemory));
    }

    #[test]
    fn huge_pages_are_aligned_in_an_arena() {
        let table = table();
        let large = large::LARGE as u64;
        let take = |wanted: PageSizeHint, addr, len| {
            table.take_arena(wanted, addr, len).unwrap() - wanted.room()
        };
        assert_eq!(take(PageSizeHint::Any, large::LARGE, PAGE), 0);
        assert_eq!(take(PageSizeHint::Large, 5 * large::LARGE, 2 * large), large);
        assert_eq!(take(PageSizeHint::Small, large::LARGE - 4096, large), 3 * large);
        assert_eq!(take(PageSizeHint::Large, large::LARGE - 4096, large + PAGE), 5 * large - PAGE);
        assert_eq!(
            table.take_arena(PageSizeHint::Small, 0, ARENA_BYTES as u64 / 3),
            Err(Failure::NoMemory)
        );
    }

    #[test]
    fn invalid_entries_are_no_windows() {
        let table = table();
        table.insert(window(0x1000, 1, 3)).unwrap();
        let len = table.entries.get(1).unwrap();
        for bad in [0, 1, u64::MAX, 1 << 62] {
            len.set(bad);
            assert_eq!(table.runs(0x1000, 8, true, false), Err(Failure::NoWindow));
        }
    }
}
