// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Key table, in which peers look up memory keys without a message to the owner, and hazard
//! pointers that name the slot in use.
//!
//! Only the owner writes the table (peers map it read-only); each slot has a generation word, which
//! works as a seqlock. Not about: access rights, and the validity of `base`: a false address
//! directs peers only into the owner's own memory.
//!
//! To close a key, the owner changes the generation, fences, and waits until no hazard pointer
//! names the slot. To use a key, the initiator sets its hazard pointer, fences, reads the
//! generation again, copies, and clears the hazard pointer. One of the two sees the other (store
//! buffer litmus test).

#![expect(unsafe_code, reason = "lays tables and hazard pointers over raw shared memory")]

#[cfg(not(loom))]
use crate::layout::SLOTS_OFFSET as TABLE_OFFSET;
use crate::layout::{HazardLine, KEY_PROBE, KEY_SLOTS, KeyHeader, KeySlot, LAYOUT};
use crate::shared_word::full_fence;
use crate::sync::{Ordering, fence};

/// The owner's side of the key table, in the product's layout.
pub type KeyTable = KeyTableOf<KEY_SLOTS>;
/// A peer's side of the key table, in the product's layout.
pub type KeyReader = KeyReaderOf<KEY_SLOTS>;

/// Number of reads of a slot that keeps changing after which it counts as free.
const READ_TRIES: usize = 8;

/// Content of one key slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key itself.
    pub key: u64,
    /// Address of the memory in its owner.
    pub base: u64,
    /// Address that RMA uses for the first byte: `base`, or 0.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights of peers, as bits.
    pub access: u64,
    /// Offset of the first whole page in the memory that the owner exports; 0 for none.
    pub window: u64,
    /// Length in bytes of the exported part from that offset on.
    pub window_len: u64,
}

/// Bits of the word of requested notifications.
const FLAG_NOTIFY: u32 = 1;
const FLAG_HINTS: u32 = 2;

/// Returns the slot at which the search for a key begins. Neighbouring keys use neighbouring slots,
/// so that few keys touch few pages.
#[expect(clippy::cast_possible_truncation, reason = "masked to less than SLOTS, a usize")]
const fn home<const SLOTS: usize>(key: u64) -> usize {
    let folded = key ^ (key >> 16) ^ (key >> 32) ^ (key >> 48);
    (folded & (SLOTS as u64 - 1)) as usize
}

/// Whether a slot of this generation holds a key. Even generations alternate between free and in
/// use; odd ones mark a change in progress.
const fn holds_key(generation: u64) -> bool {
    generation % 4 == 2
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyTableRef<const SLOTS: usize> {
    pub(crate) header: *const KeyHeader,
    pub(crate) slots: *const KeySlot,
}

impl<const SLOTS: usize> KeyTableRef<SLOTS> {
    #[inline(always)]
    fn header(&self) -> &KeyHeader {
        // SAFETY: the contract of `new` of the owner or reader; any bytes are a valid header, and
        // it is made of atomics.
        unsafe { &*self.header }
    }

    /// Returns slot `at`, counted modulo the size of the table.
    #[inline(always)]
    fn slot(&self, at: usize) -> &KeySlot {
        // SAFETY: at % SLOTS is a slot of the table, mapped by the contract of `new` of the owner
        // or reader; any bytes are a valid slot, and it is made of atomics.
        unsafe { &*self.slots.wrapping_add(at % SLOTS) }
    }

    /// Returns the slots that may hold `key`.
    fn probe(key: u64) -> impl Iterator<Item = usize> {
        let probe = if KEY_PROBE < SLOTS { KEY_PROBE } else { SLOTS };
        (0..probe).map(move |i| (home::<SLOTS>(key) + i) % SLOTS)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "SLOTS is at most 65536")]
const fn slot_number(at: usize) -> u32 {
    at as u32
}

/// The owner's side of a key table.
#[derive(Debug)]
pub struct KeyTableOf<const SLOTS: usize> {
    table: KeyTableRef<SLOTS>,
}

// SAFETY: the table is shared memory made of atomics, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl<const SLOTS: usize> Send for KeyTableOf<SLOTS> {}
// SAFETY: methods that change slots take &mut self; the others are single atomic accesses.
unsafe impl<const SLOTS: usize> Sync for KeyTableOf<SLOTS> {}

#[cfg(not(loom))]
impl KeyTable {
    /// Returns the owner's side of the table at `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `KEYTABLE_BYTES` bytes that stay mapped readable and
    /// writable while the value exists. They were zeroed when created, and are written through this
    /// value only.
    pub unsafe fn new(base: *mut u8) -> KeyTable {
        KeyTableOf::over(KeyTableRef {
            header: base.cast::<KeyHeader>().cast_const(),
            slots: base.wrapping_add(TABLE_OFFSET).cast::<KeySlot>().cast_const(),
        })
    }
}

impl<const SLOTS: usize> KeyTableOf<SLOTS> {
    pub(crate) fn over(table: KeyTableRef<SLOTS>) -> Self {
        // SYNC POINT: pairs with `KeyReaderOf::compatible`, through the channel that carries the
        // table to a peer.
        table.header().layout.store(LAYOUT, Ordering::Relaxed);
        KeyTableOf { table }
    }

    /// Inserts a key and returns its slot. Returns `None` if the slots for this key are full, or
    /// the key is present: peers then send a message to the owner.
    pub fn insert(&mut self, e: KeyEntry) -> Option<u32> {
        let mut free = None;
        for at in KeyTableRef::<SLOTS>::probe(e.key) {
            let slot = self.table.slot(at);
            // Only this side writes: the owner's own last values.
            if !holds_key(slot.generation.load(Ordering::Relaxed)) {
                free = free.or(Some(at));
            } else if slot.key.load(Ordering::Relaxed) == e.key {
                return None;
            }
        }
        let at = free?;
        let slot = self.table.slot(at);
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.generation.store(generation.wrapping_add(1), Ordering::Relaxed);
        // SYNC POINT: pairs with the acquire fence in `KeyReaderOf::read_slot`: a reader of a new
        // field sees the odd generation.
        fence(Ordering::Release);
        slot.key.store(e.key, Ordering::Relaxed);
        slot.base.store(e.base, Ordering::Relaxed);
        slot.start.store(e.start, Ordering::Relaxed);
        slot.len.store(e.len, Ordering::Relaxed);
        slot.access.store(e.access, Ordering::Relaxed);
        slot.window.store(e.window, Ordering::Relaxed);
        slot.window_len.store(e.window_len, Ordering::Relaxed);
        // SYNC POINT: pairs with the first load in `KeyReaderOf::read_slot`: the entry is written
        // before its generation.
        slot.generation.store(generation.wrapping_add(2), Ordering::Release);
        Some(slot_number(at))
    }

    /// Removes a key from the table. Returns the generation that its slot had. The caller then
    /// waits until no [`HazardPointer`] of a live peer names the slot.
    pub fn remove(&mut self, slot: u32) -> u64 {
        let slot = self.table.slot(slot as usize);
        let generation = slot.generation.load(Ordering::Relaxed);
        if !holds_key(generation) {
            debug_assert!(false, "a slot that holds no key is removed");
            return generation;
        }
        // SYNC POINT: pairs with `KeyReaderOf::revalidate`. The fields stay: a reader that mixes
        // them with this generation drops them.
        slot.generation.store(generation.wrapping_add(2), Ordering::Release);
        // SYNC POINT: pairs with the fence in `HazardPointer::set` (store buffer litmus test). Each
        // side writes one word and reads the other's: only a total order of the two fences forbids
        // that both read the old value (loom test `hazard_needs_both_fences`).
        fence(Ordering::SeqCst);
        generation
    }

    /// Sets whether the owner requests a notification of finished RMA.
    pub fn set_notify(&mut self, on: bool) {
        self.set_flag(FLAG_NOTIFY, on);
    }

    /// Sets whether the owner requests hints about frequently used keys.
    pub fn set_hints(&mut self, on: bool) {
        self.set_flag(FLAG_HINTS, on);
    }

    fn set_flag(&mut self, flag: u32, on: bool) {
        let word = &self.table.header().notify;
        // Only this side writes.
        let others = word.load(Ordering::Relaxed) & !flag;
        // SYNC POINT: pairs with `KeyReaderOf::notify` and `KeyReaderOf::hints`.
        word.store(others | if on { flag } else { 0 }, Ordering::Release);
    }
}

/// A peer's side of a key table.
#[derive(Debug)]
pub struct KeyReaderOf<const SLOTS: usize> {
    pub(crate) table: KeyTableRef<SLOTS>,
}

// SAFETY: the table is shared memory made of atomics, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl<const SLOTS: usize> Send for KeyReaderOf<SLOTS> {}
// SAFETY: every method only loads atomics.
unsafe impl<const SLOTS: usize> Sync for KeyReaderOf<SLOTS> {}

#[cfg(not(loom))]
impl KeyReader {
    /// Returns a peer's side of the table at `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `KEYTABLE_BYTES` bytes that stay mapped readable while
    /// the value exists.
    pub const unsafe fn new(base: *const u8) -> KeyReader {
        KeyReaderOf {
            table: KeyTableRef {
                header: base.cast::<KeyHeader>(),
                slots: base.wrapping_add(TABLE_OFFSET).cast::<KeySlot>(),
            },
        }
    }
}

impl<const SLOTS: usize> KeyReaderOf<SLOTS> {
    /// Whether the owner uses our layout of the table.
    pub fn compatible(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::over`, through the channel that carried the table.
        self.table.header().layout.load(Ordering::Relaxed) == LAYOUT
    }

    /// Looks up a key: returns its slot, the generation found, and a consistent copy.
    ///
    /// Inlined, as `read_slot` is, so that the copy stays in registers. A copy stored by words and
    /// loaded in larger pieces causes store-forwarding stalls.
    #[inline(always)]
    pub fn find(&self, key: u64) -> Option<(u32, u64, KeyEntry)> {
        KeyTableRef::<SLOTS>::probe(key).find_map(|at| {
            let (generation, entry) = self.read_slot(at, key)?;
            Some((slot_number(at), generation, entry))
        })
    }

    /// Returns the entry in one slot, if it is for `key`.
    #[inline(always)]
    fn read_slot(&self, at: usize, key: u64) -> Option<(u64, KeyEntry)> {
        let slot = self.table.slot(at);
        for _ in 0..READ_TRIES {
            // SYNC POINT: pairs with the last store in `KeyTableOf::insert`.
            let generation = slot.generation.load(Ordering::Acquire);
            if generation % 2 == 0 {
                if !holds_key(generation) || slot.key.load(Ordering::Relaxed) != key {
                    return None;
                }
                let entry = KeyEntry {
                    key,
                    base: slot.base.load(Ordering::Relaxed),
                    start: slot.start.load(Ordering::Relaxed),
                    len: slot.len.load(Ordering::Relaxed),
                    access: slot.access.load(Ordering::Relaxed),
                    window: slot.window.load(Ordering::Relaxed),
                    window_len: slot.window_len.load(Ordering::Relaxed),
                };
                // SYNC POINT: pairs with the release fence in `KeyTableOf::insert`.
                fence(Ordering::Acquire);
                if slot.generation.load(Ordering::Relaxed) == generation {
                    return Some((generation, entry));
                }
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Whether a slot still has `generation`, as found earlier. Read after [`HazardPointer::set`],
    /// whose fence orders the load.
    #[inline]
    pub fn revalidate(&self, slot: u32, generation: u64) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::remove`.
        self.table.slot(slot as usize).generation.load(Ordering::Acquire) == generation
    }

    /// Whether the owner requests a notification of finished RMA.
    #[inline]
    pub fn notify(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::set_notify`.
        self.table.header().notify.load(Ordering::Acquire) & FLAG_NOTIFY != 0
    }

    /// Whether the owner requests hints about frequently used keys.
    #[inline]
    pub fn hints(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::set_hints`.
        self.table.header().notify.load(Ordering::Acquire) & FLAG_HINTS != 0
    }
}

/// Hazard pointer "RMA on slot n is in progress": written by one side of a connection, read by the
/// other, which owns the slot.
#[derive(Debug)]
pub struct HazardPointer {
    pub(crate) line: *const HazardLine,
}

// SAFETY: the line is shared memory made of one atomic, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl Send for HazardPointer {}
// SAFETY: every method is an atomic access.
unsafe impl Sync for HazardPointer {}

impl HazardPointer {
    /// Returns the hazard pointer at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned to 128 and begins `HAZARD_BYTES` bytes that were zeroed when created. They
    /// stay mapped readable, and writable for the side that sets the hazard pointer, while the
    /// value exists.
    pub const unsafe fn new(ptr: *mut u8) -> HazardPointer {
        HazardPointer { line: ptr.cast::<HazardLine>().cast_const() }
    }

    #[inline(always)]
    fn line(&self) -> &HazardLine {
        // SAFETY: the contract of `new`; any bytes are a valid line, and it is made of an atomic.
        unsafe { &*self.line }
    }

    /// Names a slot. The caller then reads the generation again.
    #[inline]
    pub fn set(&self, slot: u32) {
        self.line().slot.store(u64::from(slot) + 1, Ordering::Relaxed);
        // SYNC POINT: pairs with the fence in `KeyTableOf::remove`, whose comment gives the reason
        // for SeqCst.
        full_fence();
    }

    /// Clears the hazard pointer after the RMA.
    #[inline]
    pub fn clear(&self) {
        // SYNC POINT: pairs with `HazardPointer::get`: the copy ends before the pointer is cleared.
        self.line().slot.store(0, Ordering::Release);
    }

    /// Returns the named slot. The other side may write any number.
    #[inline]
    pub fn get(&self) -> Option<u32> {
        // SYNC POINT: pairs with `HazardPointer::clear`.
        let word = self.line().slot.load(Ordering::Acquire);
        u32::try_from(word.checked_sub(1)?).ok()
    }
}
