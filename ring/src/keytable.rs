// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory keys that a peer can look up without asking their owner, and the marks that say who is using one.
//!
//! The table is written by its owner alone (peers map it read-only), each slot under its own generation
//! word. Not about: whether an access is allowed, nor whether `base` is sane: an owner that lies directs
//! its peers into its own memory only.
//!
//! Closing a key: the owner changes the generation, fences, waits until no mark names the slot. Using a
//! key: the initiator marks, fences, looks at the generation again, copies, clears the mark. One of the two
//! sees the other.

#![expect(unsafe_code, reason = "lays tables and marks over raw shared memory")]

#[cfg(not(loom))]
use crate::layout::SLOTS_OFFSET as TABLE_OFFSET;
use crate::layout::{KEY_PROBE, KEY_SLOTS, KeyHeader, KeySlot, LAYOUT, MarkLine};
use crate::sync::{Ordering, fence};
use crate::word::full_fence;

/// The table as the product lays it out, its owner's side.
pub type KeyTable = KeyTableOf<KEY_SLOTS>;
/// The table as the product lays it out, a peer's side.
pub type KeyReader = KeyReaderOf<KEY_SLOTS>;

/// Looks at a slot that keeps changing before it counts as free.
const TRIES: usize = 8;

/// What a key stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key itself.
    pub key: u64,
    /// Where the memory lies in its owner.
    pub base: u64,
    /// The address that RMA calls its first byte: `base`, or 0.
    pub start: u64,
    /// How many bytes.
    pub len: u64,
    /// What peers may do with it.
    pub access: u64,
    /// Where the first whole page of it lies in the memory its owner shows; 0: nowhere.
    pub window: u64,
    /// How many bytes from there on lie there.
    pub window_len: u64,
}

/// Bits of the word that says what an owner wants to be told.
const NOTIFY: u32 = 1;
const HINTS: u32 = 2;

/// Where the search for a key begins. Neighbouring keys lie in neighbouring slots, so that few keys touch
/// few pages.
#[expect(
    clippy::cast_possible_truncation,
    reason = "masked to less than SLOTS, a usize"
)]
const fn home<const SLOTS: usize>(key: u64) -> usize {
    let folded = key ^ (key >> 16) ^ (key >> 32) ^ (key >> 48);
    (folded & (SLOTS as u64 - 1)) as usize
}

/// Even generations alternate between free and holding a key; odd ones are passing.
const fn holds_key(generation: u64) -> bool {
    generation % 4 == 2
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<const SLOTS: usize> {
    pub(crate) header: *const KeyHeader,
    pub(crate) slots: *const KeySlot,
}

impl<const SLOTS: usize> Table<SLOTS> {
    #[inline(always)]
    fn header(&self) -> &KeyHeader {
        // SAFETY: the contract of `new` of the owner or reader; any bytes are a valid header, and it is
        // made of atomics.
        unsafe { &*self.header }
    }

    /// Slot `at`, counted modulo the size of the table.
    #[inline(always)]
    fn slot(&self, at: usize) -> &KeySlot {
        // SAFETY: at % SLOTS is a slot of the table, mapped by the contract of `new` of the owner or
        // reader; any bytes are a valid slot, and it is made of atomics.
        unsafe { &*self.slots.wrapping_add(at % SLOTS) }
    }

    /// The slots that may hold `key`.
    fn probe(key: u64) -> impl Iterator<Item = usize> {
        let probe = if KEY_PROBE < SLOTS { KEY_PROBE } else { SLOTS };
        (0..probe).map(move |i| (home::<SLOTS>(key) + i) % SLOTS)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "SLOTS is at most 65536")]
const fn number(at: usize) -> u32 {
    at as u32
}

/// The owner's side of a key table.
#[derive(Debug)]
pub struct KeyTableOf<const SLOTS: usize> {
    table: Table<SLOTS>,
}

// SAFETY: the table is shared memory made of atomics, not tied to a thread; the contract of `new` keeps it
// mapped.
unsafe impl<const SLOTS: usize> Send for KeyTableOf<SLOTS> {}
// SAFETY: what changes slots takes &mut self; the rest are single atomic accesses.
unsafe impl<const SLOTS: usize> Sync for KeyTableOf<SLOTS> {}

#[cfg(not(loom))]
impl KeyTable {
    /// The owner's side of the table laid over `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `KEYTABLE_BYTES` bytes that stay mapped readable and writable
    /// for the life of the value, were zeroed when created, and are written through this value only.
    pub unsafe fn new(base: *mut u8) -> KeyTable {
        KeyTableOf::over(Table {
            header: base.cast::<KeyHeader>().cast_const(),
            slots: base.wrapping_add(TABLE_OFFSET).cast::<KeySlot>().cast_const(),
        })
    }
}

impl<const SLOTS: usize> KeyTableOf<SLOTS> {
    pub(crate) fn over(table: Table<SLOTS>) -> Self {
        // SYNC POINT: pairs with `KeyReaderOf::compatible`, through whatever carries the table to a peer.
        table.header().layout.store(LAYOUT, Ordering::Relaxed);
        KeyTableOf { table }
    }

    /// Puts a key into the table; returns its slot. `None` if there is no room for it, or the key is there
    /// already: peers then ask the owner.
    pub fn insert(&mut self, e: KeyEntry) -> Option<u32> {
        let mut free = None;
        for at in Table::<SLOTS>::probe(e.key) {
            let slot = self.table.slot(at);
            // Only this side writes: its own last values.
            if !holds_key(slot.generation.load(Ordering::Relaxed)) {
                free = free.or(Some(at));
            } else if slot.key.load(Ordering::Relaxed) == e.key {
                return None;
            }
        }
        let at = free?;
        let slot = self.table.slot(at);
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.generation
            .store(generation.wrapping_add(1), Ordering::Relaxed);
        // SYNC POINT: pairs with the acquire fence in `KeyReaderOf::look`: who saw a field of the new entry
        // sees the odd generation.
        fence(Ordering::Release);
        slot.key.store(e.key, Ordering::Relaxed);
        slot.base.store(e.base, Ordering::Relaxed);
        slot.start.store(e.start, Ordering::Relaxed);
        slot.len.store(e.len, Ordering::Relaxed);
        slot.access.store(e.access, Ordering::Relaxed);
        slot.window.store(e.window, Ordering::Relaxed);
        slot.window_len.store(e.window_len, Ordering::Relaxed);
        // SYNC POINT: pairs with the first load in `KeyReaderOf::look`: the entry is there before its
        // generation.
        slot.generation
            .store(generation.wrapping_add(2), Ordering::Release);
        Some(number(at))
    }

    /// Takes a key out of the table. The caller then waits until no [`Mark`] of a living peer names the slot.
    pub fn remove(&mut self, slot: u32) {
        let slot = self.table.slot(slot as usize);
        let generation = slot.generation.load(Ordering::Relaxed);
        if !holds_key(generation) {
            debug_assert!(false, "a slot that holds no key is removed");
            return;
        }
        // SYNC POINT: pairs with `KeyReaderOf::still`. The fields stay: a reader that mixes them with this
        // generation drops them.
        slot.generation
            .store(generation.wrapping_add(2), Ordering::Release);
        // SYNC POINT: pairs with the fence in `Mark::set`. Each side writes one word and reads the other's:
        // only a total order of the two fences forbids that both read the old value (loom test
        // `mark_needs_both_fences`).
        fence(Ordering::SeqCst);
    }

    /// Says whether the owner wants to be told of finished RMA.
    pub fn set_notify(&mut self, on: bool) {
        self.want(NOTIFY, on);
    }

    /// Says whether the owner wants to be told which keys are used hard.
    pub fn set_hints(&mut self, on: bool) {
        self.want(HINTS, on);
    }

    fn want(&mut self, what: u32, on: bool) {
        let word = &self.table.header().notify;
        // Only this side writes.
        let others = word.load(Ordering::Relaxed) & !what;
        // SYNC POINT: pairs with `KeyReaderOf::notify` and `KeyReaderOf::hints`.
        word.store(others | if on { what } else { 0 }, Ordering::Release);
    }
}

/// A peer's side of a key table.
#[derive(Debug)]
pub struct KeyReaderOf<const SLOTS: usize> {
    pub(crate) table: Table<SLOTS>,
}

// SAFETY: the table is shared memory made of atomics, not tied to a thread; the contract of `new` keeps it
// mapped.
unsafe impl<const SLOTS: usize> Send for KeyReaderOf<SLOTS> {}
// SAFETY: every method only loads atomics.
unsafe impl<const SLOTS: usize> Sync for KeyReaderOf<SLOTS> {}

#[cfg(not(loom))]
impl KeyReader {
    /// A peer's side of the table laid over `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins `KEYTABLE_BYTES` bytes that stay mapped readable for the life of
    /// the value.
    pub const unsafe fn new(base: *const u8) -> KeyReader {
        KeyReaderOf {
            table: Table {
                header: base.cast::<KeyHeader>(),
                slots: base.wrapping_add(TABLE_OFFSET).cast::<KeySlot>(),
            },
        }
    }
}

impl<const SLOTS: usize> KeyReaderOf<SLOTS> {
    /// Whether the owner lays its table out as we do.
    pub fn compatible(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::over`, through whatever carried the table here.
        self.table.header().layout.load(Ordering::Relaxed) == LAYOUT
    }

    /// Looks up a key: its slot, the generation of what was found, and a consistent copy.
    ///
    /// Inlined, as `look` is, so that the copy stays in registers: stored by words and loaded in larger pieces, it would have to wait for the
    /// stores.
    #[inline(always)]
    pub fn find(&self, key: u64) -> Option<(u32, u64, KeyEntry)> {
        Table::<SLOTS>::probe(key).find_map(|at| {
            let (generation, entry) = self.look(at, key)?;
            Some((number(at), generation, entry))
        })
    }

    /// The entry in one slot, if it is for `key`.
    #[inline(always)]
    fn look(&self, at: usize, key: u64) -> Option<(u64, KeyEntry)> {
        let slot = self.table.slot(at);
        for _ in 0..TRIES {
            // SYNC POINT: pairs with the last store in `KeyTableOf::insert`.
            let generation = slot.generation.load(Ordering::Acquire);
            if generation.is_multiple_of(2) {
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

    /// Whether a slot still holds what was found under `generation`; looked at after [`Mark::set`], whose
    /// fence orders it.
    #[inline]
    pub fn still(&self, slot: u32, generation: u64) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::remove`.
        self.table.slot(slot as usize).generation.load(Ordering::Acquire) == generation
    }

    /// Whether the owner wants to be told of finished RMA.
    #[inline]
    pub fn notify(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::set_notify`.
        self.table.header().notify.load(Ordering::Acquire) & NOTIFY != 0
    }

    /// Whether the owner wants to be told which keys are used hard.
    #[inline]
    pub fn hints(&self) -> bool {
        // SYNC POINT: pairs with `KeyTableOf::set_hints`.
        self.table.header().notify.load(Ordering::Acquire) & HINTS != 0
    }
}

/// "I am in RMA on slot n": written by one side of a connection, read by the other, which owns the slot.
#[derive(Debug)]
pub struct Mark {
    pub(crate) line: *const MarkLine,
}

// SAFETY: the line is shared memory made of one atomic, not tied to a thread; the contract of `new` keeps
// it mapped.
unsafe impl Send for Mark {}
// SAFETY: every method is an atomic access.
unsafe impl Sync for Mark {}

impl Mark {
    /// The mark at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned to 128 and begins `MARK_BYTES` bytes that stay mapped readable, and writable for
    /// the side that sets it, for the life of the value, and were zeroed when created.
    pub const unsafe fn new(ptr: *mut u8) -> Mark {
        Mark {
            line: ptr.cast::<MarkLine>().cast_const(),
        }
    }

    #[inline(always)]
    fn line(&self) -> &MarkLine {
        // SAFETY: the contract of `new`; any bytes are a valid line, and it is made of an atomic.
        unsafe { &*self.line }
    }

    /// Marks a slot; the generation is looked at again after this.
    #[inline]
    pub fn set(&self, slot: u32) {
        self.line().slot.store(u64::from(slot) + 1, Ordering::Relaxed);
        // SYNC POINT: pairs with the fence in `KeyTableOf::remove`, which says why it must be SeqCst.
        full_fence();
    }

    /// Says that the RMA is over.
    #[inline]
    pub fn clear(&self) {
        // SYNC POINT: pairs with `Mark::get`: the copy ends before the mark does.
        self.line().slot.store(0, Ordering::Release);
    }

    /// The slot that is marked. The other side may write any number.
    #[inline]
    pub fn get(&self) -> Option<u32> {
        // SYNC POINT: pairs with `Mark::clear`.
        let word = self.line().slot.load(Ordering::Acquire);
        u32::try_from(word.checked_sub(1)?).ok()
    }
}
