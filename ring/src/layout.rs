// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What lies where in shared memory: sizes, structs and the assertions that pin them.
//!
//! Not about: what the words mean over time (`spsc`, `doorbell`, `keytable`, `claim`). Every type here is
//! valid for any bit pattern, holds offsets or counts and no pointer into shared memory, and is listed in
//! `docs/shm-layout.md`. Changing a byte means a new [`LAYOUT`].

#![expect(unsafe_code, reason = "finds the pieces of a direction in raw memory")]

use crate::copy::{Mem, take_lines};
#[cfg(not(loom))]
use crate::error::LayoutError;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// Version of everything in this file; the owner of each region writes it into the region.
pub const LAYOUT: u32 = 0x5343_0003;

/// Records one direction of a connection holds.
pub const SLOTS: usize = 256;
/// Bytes of bodies one direction of a connection holds.
pub const DATA: usize = 64 * 1024;
/// Longest head of a record: what is left of a cache line after the publication word.
pub const HEAD_MAX: usize = 56;
/// Longest body of one record: a quarter of the data area, so that one always fits in the end.
pub const BODY_MAX: usize = DATA / 4;
/// Offset of the slots in a direction.
pub const SLOTS_OFFSET: usize = 4096;
/// Offset of the data area in a direction.
pub const DATA_OFFSET: usize = SLOTS_OFFSET + SLOTS * 64;
/// Bytes of one direction of a connection.
pub const DIRECTION_BYTES: usize = DATA_OFFSET + DATA;
/// Bytes of the line of answers, with the one beside it that nobody uses.
pub const ANSWER_BYTES: usize = 128;
/// Longest head of a record in it.
pub const ANSWER_MAX: usize = 24;
/// Alignment a direction needs.
pub const DIRECTION_ALIGN: usize = 128;

/// Bytes of the bell of an endpoint.
pub const BELL_BYTES: usize = 4096;
/// Bits of a bell.
pub const BELL_BITS: usize = 4096;
/// Words that hold them.
pub const BELL_WORDS: usize = BELL_BITS / 64;

/// Keys a table can hold.
pub const KEY_SLOTS: usize = 65536;
/// Slots that may hold a given key, counted from the one it hashes to.
pub const KEY_PROBE: usize = 16;
/// Bytes of a key table; sparse.
pub const KEYTABLE_BYTES: usize = 4096 + KEY_SLOTS * 64;
/// Bytes of a mark.
pub const MARK_BYTES: usize = 128;

/// Claim blocks per direction of a connection.
pub const CLAIM_BLOCKS: usize = 64;
/// Bytes of one claim block.
pub const CLAIM_BYTES: usize = 128;
/// Largest part of a large message that is claimed at once.
pub const PART: usize = 64 * 1024;

/// Written by the producer of a direction.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ProducerLine {
    pub(crate) layout: AtomicU32,
}

/// Written by the consumer of a direction, read by the producer when the ring looks full and after a push.
/// Changes rarely.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ConsumerLine {
    /// Records consumed since the beginning.
    pub(crate) consumed: AtomicU64,
    /// Position in the data area, free-running, up to which bodies were consumed.
    pub(crate) consumed_data: AtomicU64,
    /// 1 when the consumer does not poll and wants its bell rung.
    pub(crate) idle: AtomicU32,
}

/// One record: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// stamp:16 | kind:8 | `head_len`:8 | `body_len`:32, from bit 0 up; stored last. 0 when the consumer has freed the record.
    pub(crate) word: AtomicU64,
    pub(crate) head: UnsafeCell<[u64; 7]>,
}

/// The line in which both sides of a connection answer each other.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct AnswerLine {
    pub(crate) halves: [AnswerHalf; 2],
}

/// What one side writes of it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AnswerHalf {
    /// number + 1:40 | kind:8 | `head_len`:5 | answers taken of the peer:11, from bit 0 up; stored last.
    pub(crate) word: AtomicU64,
    pub(crate) head: UnsafeCell<[u64; 3]>,
}

/// Control lines of a direction.
#[derive(Debug)]
#[repr(C)]
pub struct Lines {
    pub(crate) producer: ProducerLine,
    pub(crate) consumer: ConsumerLine,
}

/// The bell of an endpoint.
#[derive(Debug)]
#[repr(C)]
pub struct BellPage<const WORDS: usize> {
    pub(crate) owner: BellOwner,
    pub(crate) summary: BellSummary,
    /// Bit `b` of word `w` is bell bit `64 w + b`.
    pub(crate) words: [AtomicU64; WORDS],
}

/// What the owner of a bell writes.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BellOwner {
    pub(crate) layout: AtomicU32,
    /// 1 while the owner sleeps, or is about to, and needs a wake-up outside shared memory.
    pub(crate) sleeping: AtomicU32,
}

/// One bit per word of the bell that may hold set bits.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BellSummary {
    pub(crate) bits: AtomicU64,
}

/// First line of a key table; the slots begin at 4096.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct KeyHeader {
    pub(crate) layout: AtomicU32,
    /// What the owner wants to be told: bit 0, of finished RMA; bit 1, which keys are used hard.
    pub(crate) notify: AtomicU32,
}

/// One key.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct KeySlot {
    /// Modulo 4: 0 free, 2 holds a key, odd while it changes.
    pub(crate) generation: AtomicU64,
    pub(crate) key: AtomicU64,
    pub(crate) base: AtomicU64,
    pub(crate) start: AtomicU64,
    pub(crate) len: AtomicU64,
    pub(crate) access: AtomicU64,
    /// Where the whole pages of the memory lie in what its owner shows; 0: nowhere.
    pub(crate) window: AtomicU64,
    pub(crate) window_len: AtomicU64,
}

/// "The writer is in RMA on slot n of the reader's key table."
#[derive(Debug)]
#[repr(C, align(128))]
pub struct MarkLine {
    /// Slot + 1; 0 for none.
    pub(crate) slot: AtomicU64,
}

/// The block over which both sides share the copying of one message.
#[derive(Debug)]
#[repr(C)]
pub struct ClaimBlock {
    pub(crate) offer: OfferLine,
    pub(crate) parts: PartLine,
}

/// Written by the receiver.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct OfferLine {
    /// generation:32 | 1 << 32; stored last; 0 for none.
    pub(crate) word: AtomicU64,
    pub(crate) dst_addr: AtomicU64,
    pub(crate) len: AtomicU64,
    pub(crate) part: AtomicU32,
    pub(crate) parts: AtomicU32,
}

/// Claimed by both.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PartLine {
    /// back:24 | front:24 | generation:16, from bit 0 up.
    pub(crate) claims: AtomicU64,
    /// Parts from the front that the sender is through with.
    pub(crate) done: AtomicU32,
    /// Index + 1 of the part the sender could not copy; 0 for none.
    pub(crate) failed: AtomicU32,
}

/// The three pieces of a direction.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) lines: *const Lines,
    pub(crate) slots: *const Slot,
    pub(crate) area: Area,
}

#[cfg(not(loom))]
impl Region {
    /// # Safety
    ///
    /// `base..base + len` stays mapped, readable and writable, as long as the value is used, and was zeroed
    /// when created.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Result<Region, LayoutError> {
        if len < DIRECTION_BYTES {
            return Err(LayoutError::TooShort {
                need: DIRECTION_BYTES,
                have: len,
            });
        }
        if !base.addr().is_multiple_of(DIRECTION_ALIGN) {
            return Err(LayoutError::Misaligned {
                need: DIRECTION_ALIGN,
            });
        }
        Ok(Region {
            lines: base.cast::<Lines>().cast_const(),
            slots: base.wrapping_add(SLOTS_OFFSET).cast::<Slot>().cast_const(),
            area: Area {
                bytes: base.wrapping_add(DATA_OFFSET),
            },
        })
    }
}

impl Region {
    #[inline(always)]
    pub(crate) fn lines(&self) -> &Lines {
        // SAFETY: `Region::new` checked size and alignment, and its contract keeps the memory mapped; any
        // bytes are a valid Lines, and it is made of atomics.
        unsafe { &*self.lines }
    }

    /// The slot of record number `index` in a ring of `SLOTS`.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked to less than SLOTS, a usize"
    )]
    pub(crate) fn slot<const SLOTS: usize>(&self, index: u64) -> &Slot {
        let at = (index & (SLOTS as u64 - 1)) as usize;
        // SAFETY: at < SLOTS, and `Region::new` checked that as many slots lie there, aligned; its contract
        // keeps them mapped; any bytes are a valid Slot, and it is made of an atomic and a cell.
        unsafe { &*self.slots.wrapping_add(at) }
    }
}

/// The data area. Under loom each line of it has a cell, so that a body read or written out of turn is a
/// race that is found.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub(crate) bytes: *mut u8,
    #[cfg(loom)]
    pub(crate) cells: *const crate::sync::UnsafeCell<()>,
}

impl Area {
    /// The body at free-running position `start`, which does not cross the end.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked to less than DATA, a usize"
    )]
    pub(crate) fn body<const DATA: usize>(&self, start: u64, len: usize) -> Mem {
        let offset = (start & (DATA as u64 - 1)) as usize;
        debug_assert!(offset + len <= DATA, "a body crosses the end of the area");
        // SAFETY: `body_start` chose a position from which len bytes lie inside the area, which
        // `Region::new` checked and its contract keeps mapped; nothing makes a reference to it.
        unsafe { Mem::new(self.bytes.wrapping_add(offset), len) }
    }

    /// Writes into the lines of the body that takes the area from position `from` to `after`, but not into those that it skipped.
    #[inline]
    pub(crate) fn take_back<const DATA: usize>(&self, from: u64, after: u64) {
        let end = (from | (DATA as u64 - 1)) + 1;
        let start = if after > end { end } else { from };
        let len = usize::try_from(after - start).unwrap_or(0);
        self.touch::<DATA>(start, len, true);
        take_lines(&self.body::<DATA>(start, len));
    }

    /// Tells loom that the body is being read or written.
    #[inline(always)]
    #[cfg_attr(
        not(loom),
        expect(unused_variables, clippy::unused_self, reason = "only loom keeps watch")
    )]
    pub(crate) fn touch<const DATA: usize>(&self, start: u64, len: usize, write: bool) {
        #[cfg(loom)]
        for line in 0..len.div_ceil(64) {
            let at = (start % DATA as u64 / 64) as usize + line;
            // SAFETY: the body lies inside the area, which has a cell for each line.
            let cell = unsafe { &*self.cells.wrapping_add(at) };
            if write {
                cell.with_mut(|_| ())
            } else {
                cell.with(|_| ())
            }
        }
    }
}

/// Start of a body of `len` bytes when the data area of `area` bytes is filled up to the free-running
/// position `pos`: there if it fits before the end, else at the next start of the area. Both sides compute
/// this.
#[inline]
pub(crate) const fn body_start(pos: u64, len: usize, area: usize) -> u64 {
    let offset = pos & (area as u64 - 1);
    if offset + len as u64 > area as u64 {
        pos - offset + area as u64
    } else {
        pos
    }
}

/// Position after a body of `len` bytes that starts at `start`: the next multiple of a line.
#[inline]
pub(crate) const fn body_end(start: u64, len: usize) -> u64 {
    start + (len as u64).next_multiple_of(64)
}

/// The stamp of the lap after the one stamped `stamp`: 1 to 65535, so that a zeroed slot never matches.
#[inline]
pub(crate) const fn next_stamp(stamp: u16) -> u16 {
    if stamp == u16::MAX { 1 } else { stamp + 1 }
}

// A full ring whose consumer has not published its last quarter still takes the longest body after the
// worst skip.
const _: () = assert!(DATA.is_power_of_two() && SLOTS.is_power_of_two() && BODY_MAX.is_multiple_of(64));
const _: () = assert!(DATA / 4 + 2 * BODY_MAX <= DATA);
const _: () = assert!(DIRECTION_BYTES == 86016 && DIRECTION_BYTES.is_multiple_of(4096));

#[cfg(not(loom))]
mod pins {
    //! The bytes, as `docs/shm-layout.md` has them.
    use super::*;
    use core::mem::{align_of, offset_of, size_of};

    macro_rules! pin {
        ($t:ty, $size:expr, $align:expr $(, $field:ident @ $at:expr)*) => {
            const _: () = assert!(size_of::<$t>() == $size && align_of::<$t>() == $align);
            $(const _: () = assert!(offset_of!($t, $field) == $at);)*
        };
    }

    pin!(ProducerLine, 128, 128, layout @ 0);
    pin!(ConsumerLine, 128, 128, consumed @ 0, consumed_data @ 8, idle @ 16);
    pin!(Lines, 256, 128, producer @ 0, consumer @ 128);
    pin!(Slot, 64, 64, word @ 0, head @ 8);
    pin!(AnswerHalf, 32, 8, word @ 0, head @ 8);
    pin!(AnswerLine, 64, 64, halves @ 0);
    pin!(BellOwner, 128, 128, layout @ 0, sleeping @ 4);
    pin!(BellSummary, 128, 128, bits @ 0);
    pin!(BellPage<BELL_WORDS>, 768, 128, owner @ 0, summary @ 128, words @ 256);
    pin!(KeyHeader, 128, 128, layout @ 0, notify @ 4);
    pin!(KeySlot, 64, 64, generation @ 0, key @ 8, base @ 16, start @ 24, len @ 32, access @ 40, window @ 48, window_len @ 56);
    pin!(MarkLine, MARK_BYTES, 128, slot @ 0);
    pin!(OfferLine, 64, 64, word @ 0, dst_addr @ 8, len @ 16, part @ 24, parts @ 28);
    pin!(PartLine, 64, 64, claims @ 0, done @ 8, failed @ 12);
    pin!(ClaimBlock, CLAIM_BYTES, 64, offer @ 0, parts @ 64);
    const _: () = assert!(size_of::<BellPage<BELL_WORDS>>() <= BELL_BYTES);
    const _: () = assert!(size_of::<Lines>() <= SLOTS_OFFSET);
    const _: () = assert!(HEAD_MAX + 8 == size_of::<Slot>());
    const _: () =
        assert!(ANSWER_MAX + 8 == size_of::<AnswerHalf>() && size_of::<AnswerLine>() <= ANSWER_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_never_cross_the_end() {
        for pos in (0..3 * DATA as u64).step_by(64) {
            for len in [0, 1, 63, 64, 65, 4096, BODY_MAX - 1, BODY_MAX] {
                let start = body_start(pos, len, DATA);
                let offset = start % DATA as u64;
                assert!(start >= pos && start.is_multiple_of(64) && offset + len as u64 <= DATA as u64);
                assert!(body_end(start, len) - pos <= 2 * BODY_MAX as u64);
            }
        }
    }

    #[test]
    fn stamps_skip_zero() {
        assert_eq!(next_stamp(1), 2);
        assert_eq!(next_stamp(u16::MAX), 1);
    }
}
