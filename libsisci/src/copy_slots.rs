// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings and sequences that copies have used, by their handles. A copy between known handles
//! looks up no table, takes no lock, and makes no call besides that of the copy.
//!
//! A handle is entered while the lock of the table of handles is held for reading, and removed
//! under the same lock, held for writing. So no slot has a handle that has ended. The handle of a
//! mapping ends before its memory is unmapped. A live handle is never evicted: with many objects,
//! those that find their slot taken are looked up in the table.

use std::sync::Mutex;

use scif::sys::fork;
use scif_ring::AtomicCounter;
use scif_ring::copy::has_fast_strings;

/// Number of slots. A handle has the slot of its lowest bits, which are those of its index.
const SLOTS: usize = 256;

/// Mapping that copies have used: one cache line.
#[repr(align(64))]
pub(crate) struct CopySlot {
    /// Handle, or [`free`]. Stored after the rest.
    handle: AtomicCounter,
    /// Number of the process, which a forked child does not have.
    process: AtomicCounter,
    addr: AtomicCounter,
    /// Length in bytes, for copies from the mapping.
    len: AtomicCounter,
    /// Length in bytes for copies to the mapping: 0 if it is read-only.
    writable: AtomicCounter,
    /// 1 on processors on which the string instruction is fast.
    strings: AtomicCounter,
}

impl CopySlot {
    const fn new(handle: u64) -> CopySlot {
        CopySlot {
            handle: AtomicCounter::new(handle),
            process: AtomicCounter::new(0),
            addr: AtomicCounter::new(0),
            len: AtomicCounter::new(0),
            writable: AtomicCounter::new(0),
            strings: AtomicCounter::new(0),
        }
    }

    /// Returns the address of a range that a copy reads or writes; `None` outside of the mapping.
    #[inline]
    pub(crate) fn range(&self, offset: usize, size: usize, read: bool) -> Option<usize> {
        let len = if read { &self.len } else { &self.writable };
        let (len, addr) = (word(len), word(&self.addr));
        let inside = offset <= len && size <= len - offset;
        inside.then(|| addr.wrapping_add(offset))
    }

    /// Whether the string instruction is fast.
    #[inline]
    pub(crate) fn has_fast_strings(&self) -> bool {
        self.strings.get_relaxed() != 0
    }
}

/// Mapping to enter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownMap {
    pub(crate) handle: usize,
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) writable: bool,
}

/// Known handles.
struct Known {
    maps: [CopySlot; SLOTS],
    /// Handles of sequences. Slot 0 remains empty: it is that of no sequence.
    sequences: [AtomicCounter; SLOTS],
}

static KNOWN: Known = Known {
    maps: {
        let mut maps = [const { CopySlot::new(0) }; SLOTS];
        let [first, ..] = &mut maps;
        *first = CopySlot::new(free(0));
        maps
    },
    sequences: [const { AtomicCounter::new(0) }; SLOTS],
};

/// Returns the word of a free slot, given a handle that has this slot: a number that no handle with
/// the slot has, nor NULL.
const fn free(handle: usize) -> u64 {
    if handle % SLOTS == 0 { 1 } else { 0 }
}
/// Held to enter a handle.
static ENTERING: Mutex<()> = Mutex::new(());

#[inline]
fn word(counter: &AtomicCounter) -> usize {
    usize::try_from(counter.get_relaxed()).unwrap_or(0)
}

fn slot_of<T>(slots: &[T; SLOTS], handle: usize) -> &T {
    let [first, ..] = slots;
    slots.get(handle % SLOTS).unwrap_or(first)
}

/// Returns the slot of a mapping, if it and the sequence are known. 0 is no sequence.
#[inline]
pub(crate) fn find(map: usize, sequence: usize) -> Option<&'static CopySlot> {
    let slot = slot_of(&KNOWN.maps, map);
    let known = slot.handle.get() == map as u64
        && slot_of(&KNOWN.sequences, sequence).get() == sequence as u64
        && slot.process.get_relaxed() == fork::generation();
    known.then_some(slot)
}

/// Enters a mapping and a sequence; 0 is none. The caller holds the lock of the table of handles
/// for reading, and has found both there.
pub(crate) fn enter(map: &KnownMap, sequence: usize) {
    // A forked child may find the lock taken for ever.
    let Ok(_entering) = ENTERING.try_lock() else { return };
    let slot = slot_of(&KNOWN.maps, map.handle);
    if slot.handle.get_relaxed() == free(map.handle) {
        slot.process.set_relaxed(fork::generation());
        slot.addr.set_relaxed(map.addr as u64);
        slot.len.set_relaxed(map.len as u64);
        slot.writable.set_relaxed(if map.writable { map.len as u64 } else { 0 });
        slot.strings.set_relaxed(u64::from(has_fast_strings()));
        slot.handle.set(map.handle as u64);
    }
    let known = slot_of(&KNOWN.sequences, sequence);
    if sequence % SLOTS != 0 && known.get_relaxed() == 0 {
        known.set(sequence as u64);
    }
}

/// Removes a handle that has ended. The caller holds the lock of the table of handles for writing.
pub(crate) fn remove(handle: usize) {
    let (map, sequence) = (slot_of(&KNOWN.maps, handle), slot_of(&KNOWN.sequences, handle));
    for (known, free) in [(&map.handle, free(handle)), (sequence, 0)] {
        if known.get_relaxed() == handle as u64 {
            known.set(free);
        }
    }
}

/// Removes all handles: those of a parent of this process.
pub(crate) fn clear() {
    for (index, (map, sequence)) in KNOWN.maps.iter().zip(&KNOWN.sequences).enumerate() {
        map.handle.set(free(index));
        sequence.set(0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Held by tests that enter handles.
    pub(crate) static ALONE: Mutex<()> = Mutex::new(());

    fn known(handle: usize, writable: bool) -> KnownMap {
        KnownMap { handle, addr: 0x1000, len: 100, writable }
    }

    #[test]
    fn known_handles_are_found_until_they_end() {
        let _alone = crate::lock::take(&ALONE);
        let (map, sequence) = (5 << 32 | 9, 7 << 32 | 11);
        for handle in [0, 1, SLOTS, usize::MAX, usize::MAX - SLOTS + 1] {
            assert!(find(handle, 0).is_none(), "{handle:#x} is no mapping");
        }
        assert!(find(map, 0).is_none());
        enter(&known(map, true), 0);
        assert!(find(map, 0).is_some() && find(map, sequence).is_none());
        enter(&known(map, true), sequence);
        let slot = find(map, sequence).unwrap();
        assert_eq!(slot.range(0, 100, false), Some(0x1000));
        assert_eq!(slot.range(96, 4, true), Some(0x1060));
        assert_eq!(slot.range(100, 0, true), Some(0x1064));
        for (offset, size) in [(96, 5), (101, 1), (usize::MAX, 2), (4, usize::MAX)] {
            assert_eq!(slot.range(offset, size, true), None, "{offset} {size}");
        }
        // Another handle with the same slot evicts none.
        let other = map + SLOTS;
        enter(&known(other, true), 0);
        assert!(find(other, 0).is_none() && find(map, 0).is_some());
        remove(other);
        assert!(find(map, sequence).is_some());
        remove(sequence);
        assert!(find(map, sequence).is_none() && find(map, 0).is_some());
        remove(map);
        assert!(find(map, 0).is_none());
        enter(&known(other, false), 0);
        assert_eq!(find(other, 0).unwrap().range(0, 4, false), None, "read-only");
        assert_eq!(find(other, 0).unwrap().range(0, 4, true), Some(0x1000));
        clear();
        assert!(find(other, 0).is_none());
        assert!(find(map, 1 << 32).is_none(), "slot 0 is that of no sequence");
        enter(&known(map, true), 1 << 32);
        assert!(find(map, 0).is_some() && find(map, 1 << 32).is_none());
        clear();
    }
}
