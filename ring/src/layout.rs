// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Layout of shared memory: sizes, structs, and the assertions that fix them.
//!
//! Not about: the protocols over time (`spsc`, `doorbell`, `keytable`, `claim`). Every type is
//! valid for any bit pattern, holds offsets or counts and no pointer into shared memory, and is
//! listed in `docs/shm-layout.md`. A change of any byte requires a new [`LAYOUT`].

#![expect(unsafe_code, reason = "finds the pieces of a direction in raw memory")]

use crate::copy::{Mem, scrub_lines};
#[cfg(not(loom))]
use crate::error::LayoutError;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// Version of this layout. The owner of a region stores it in the region, and peers refuse another
/// value.
///
/// With `--cfg scif_other_layout` a build stands in for another release, in the test of two builds.
pub const LAYOUT: u32 = 0x5343_0005 + cfg!(scif_other_layout) as u32;

/// Number of slots, thus of unconsumed records, in one direction of a connection. Power of two.
pub const RING_SLOTS: usize = 256;
/// Size in bytes of the data area for bodies in one direction of a connection. Power of two.
pub const RING_DATA_BYTES: usize = 64 * 1024;
/// Maximum length in bytes of a record head: a cache line less the publication word.
pub const HEAD_MAX: usize = 56;
/// Maximum length in bytes of a record body: a quarter of the data area, so that an empty ring
/// always accepts one.
pub const BODY_MAX: usize = RING_DATA_BYTES / 4;
/// Maximum length in bytes of a body on the fast paths, `push_body` and `poll_body`. Longer bodies
/// gain nothing.
pub const SHORT_BODY_MAX: usize = 4096;
/// Number of failures of one-sided records that a direction holds. Models have few slots.
pub(crate) const FAILURES: usize = if cfg!(loom) { 8 } else { RING_SLOTS };
/// Offset in bytes of the slots in a direction.
pub const SLOTS_OFFSET: usize = 4096;
/// Offset in bytes of the data area in a direction.
pub const DATA_OFFSET: usize = SLOTS_OFFSET + RING_SLOTS * 64;
/// Size in bytes of one direction of a connection.
pub const DIRECTION_BYTES: usize = DATA_OFFSET + RING_DATA_BYTES;
/// Size in bytes of the control lines of a direction, where they lie apart from its slots.
pub const CREDITS_BYTES: usize = SLOTS_OFFSET;
/// Size in bytes of the shared reply line and the unused line beside it.
pub const REPLY_LINE_BYTES: usize = 128;
/// Maximum length in bytes of a record head in the reply line.
pub const REPLY_HEAD_MAX: usize = 24;
/// Alignment in bytes of a direction.
pub const DIRECTION_ALIGN: usize = 128;

/// Size in bytes of the doorbell page of an endpoint.
pub const BELL_BYTES: usize = 4096;
/// Number of bits in a doorbell. Rings with equal numbers modulo this value share a bit.
pub const BELL_BITS: usize = 4096;
/// Number of 64-bit words that hold the doorbell bits.
pub const BELL_WORDS: usize = BELL_BITS / 64;

/// Capacity of a key table in keys. Further keys are looked up by a message to the owner.
pub const KEY_SLOTS: usize = 65536;
/// Number of slots that may hold a given key, counted from its hash position. Bounds the cost of a
/// lookup.
pub const KEY_PROBE: usize = 16;
/// Size in bytes of a key table. The memory is sparse.
pub const KEYTABLE_BYTES: usize = 4096 + KEY_SLOTS * 64;
/// Size in bytes of a hazard pointer.
pub const HAZARD_BYTES: usize = 128;

/// Number of claim blocks per direction of a connection.
pub const CLAIM_BLOCKS: usize = 64;
/// Size in bytes of one claim block.
pub const CLAIM_BYTES: usize = 128;
/// Maximum size in bytes of one part of a large message. One claim takes one or more parts.
pub const CLAIM_PART_MAX: usize = 64 * 1024;

/// Control line written by the producer of a direction.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ProducerLine {
    pub(crate) layout: AtomicU32,
    /// Number of the first record that is not withdrawn.
    pub(crate) withdrawn: AtomicU64,
    /// Number below which withdrawn records were executed by the producer.
    pub(crate) settled: AtomicU64,
}

/// Control line written by the consumer of a direction. The producer reads it when the ring seems
/// full and after each push; it changes rarely.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ConsumerLine {
    /// Number of records consumed since the start.
    pub(crate) consumed: AtomicU64,
    /// Free-running position in the data area up to which bodies were consumed.
    pub(crate) consumed_data: AtomicU64,
    /// 1 while the consumer does not poll and requests its doorbell.
    pub(crate) idle: AtomicU32,
}

/// Line in which the consumer announces that it executes one-sided records. Written for each batch
/// of them, and read by the producer to withdraw records only.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ExecutingLine {
    /// 1 while the consumer executes.
    pub(crate) busy: AtomicU64,
}

/// Line in which the consumer publishes its progress with one-sided records.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ExecutedLine {
    /// Number of the first record that is not executed.
    pub(crate) count: AtomicU64,
    /// Number of executed records that have failed.
    pub(crate) failures: AtomicU64,
}

/// One record slot: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// lap number:16 | kind:8 | `head_len`:8 | `body_len`:32, from bit 0 up; stored last. 0 after
    /// the consumer has freed the record.
    pub(crate) word: AtomicU64,
    pub(crate) head: UnsafeCell<[u64; 7]>,
}

/// The shared reply line of a connection.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ReplyLine {
    pub(crate) halves: [ReplyHalf; 2],
}

/// Half of the reply line that one side writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReplyHalf {
    /// number + 1:40 | kind:8 | `head_len`:5 | count of replies taken from the peer:11, from bit 0
    /// up; stored last.
    pub(crate) word: AtomicU64,
    pub(crate) head: UnsafeCell<[u64; 3]>,
}

/// Control lines of a direction.
#[derive(Debug)]
#[repr(C)]
pub struct ControlLines {
    pub(crate) producer: ProducerLine,
    pub(crate) consumer: ConsumerLine,
    pub(crate) executing: ExecutingLine,
    pub(crate) executed: ExecutedLine,
    /// Error number:16 | number of the record + 1:48, from bit 0 up, for the last failure of each
    /// slot.
    pub(crate) failures: [AtomicU64; FAILURES],
}

/// The doorbell page of an endpoint.
#[derive(Debug)]
#[repr(C)]
pub struct BellPage<const WORDS: usize> {
    pub(crate) owner: BellOwner,
    pub(crate) summary: BellSummary,
    /// Bit `b` of word `w` is doorbell bit `64 w + b`.
    pub(crate) words: [AtomicU64; WORDS],
    pub(crate) polled: BellPolled,
}

/// Line of a doorbell that its owner writes.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BellOwner {
    pub(crate) layout: AtomicU32,
    /// 1 while the owner sleeps, or is about to, and needs a wake-up through the kernel.
    pub(crate) sleeping: AtomicU32,
}

/// Summary bits, one per doorbell word that may hold set bits.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BellSummary {
    pub(crate) bits: AtomicU64,
}

/// Line of a doorbell in which its owner publishes when it last polled. Peers read it seldom, so
/// its owner seldom loses the line.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BellPolled {
    /// Time in nanoseconds.
    pub(crate) time_ns: AtomicU64,
}

/// First line of a key table; the slots begin at 4096.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct KeyHeader {
    pub(crate) layout: AtomicU32,
    /// Notifications that the owner requests: bit 0, finished RMA; bit 1, frequently used keys.
    pub(crate) notify: AtomicU32,
}

/// One key slot.
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
    /// Offset of the region's whole pages in the memory that the owner exports; 0 for none.
    pub(crate) window: AtomicU64,
    pub(crate) window_len: AtomicU64,
}

/// Hazard pointer: "the writer executes RMA on slot n of the reader's key table".
#[derive(Debug)]
#[repr(C, align(128))]
pub struct HazardLine {
    /// Slot + 1; 0 for none.
    pub(crate) slot: AtomicU64,
}

/// The claim block by which sender and receiver divide the copy of one message.
#[derive(Debug)]
#[repr(C)]
pub struct ClaimBlock {
    pub(crate) offer: OfferLine,
    pub(crate) parts: PartLine,
}

/// Line written by the receiver.
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

/// Line in which both sides claim parts.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PartLine {
    /// back:24 | front:24 | generation:16, from bit 0 up.
    pub(crate) claims: AtomicU64,
    /// Number of parts from the front that the sender has finished.
    pub(crate) done: AtomicU32,
    /// Index + 1 of the first part of a claim that the sender could not copy; 0 for none.
    pub(crate) failed: AtomicU32,
}

/// The control lines, slots and data area of a direction.
#[derive(Clone, Copy)]
pub(crate) struct RingRegion {
    /// Control lines beside the slots, of which the producer's is used.
    pub(crate) lines: *const ControlLines,
    /// Control lines of which those of the consumer are used: the same, or in memory of the
    /// producer.
    pub(crate) credits: *const ControlLines,
    pub(crate) slots: *const Slot,
    pub(crate) area: DataArea,
}

#[cfg(not(loom))]
impl RingRegion {
    /// # Safety
    ///
    /// `base..base + len`, and `CREDITS_BYTES` bytes from `credits` on, stay mapped, readable and
    /// writable, while the value is used, and were zeroed when created.
    pub(crate) unsafe fn new(
        base: *mut u8,
        len: usize,
        credits: *mut u8,
    ) -> Result<RingRegion, LayoutError> {
        if len < DIRECTION_BYTES {
            return Err(LayoutError::TooShort { need: DIRECTION_BYTES, have: len });
        }
        if base.addr() % DIRECTION_ALIGN != 0 || credits.addr() % DIRECTION_ALIGN != 0 {
            return Err(LayoutError::Misaligned { need: DIRECTION_ALIGN });
        }
        Ok(RingRegion {
            lines: base.cast::<ControlLines>().cast_const(),
            credits: credits.cast::<ControlLines>().cast_const(),
            slots: base.wrapping_add(SLOTS_OFFSET).cast::<Slot>().cast_const(),
            area: DataArea { bytes: base.wrapping_add(DATA_OFFSET) },
        })
    }
}

impl RingRegion {
    #[inline(always)]
    pub(crate) fn lines(&self) -> &ControlLines {
        // SAFETY: `RingRegion::new` checked size and alignment, and its contract keeps the memory
        // mapped; any bytes are a valid ControlLines, and it is made of atomics.
        unsafe { &*self.lines }
    }

    /// Returns the control lines that the consumer writes.
    #[inline(always)]
    pub(crate) fn credits(&self) -> &ControlLines {
        // SAFETY: as in `lines`.
        unsafe { &*self.credits }
    }

    /// Returns the failure of record number `index` in a ring of `SLOTS`.
    #[expect(clippy::cast_possible_truncation, reason = "masked to less than SLOTS, a usize")]
    pub(crate) fn failure<const SLOTS: usize>(&self, index: u64) -> &AtomicU64 {
        const { assert!(SLOTS <= FAILURES) };
        let at = (index & (SLOTS as u64 - 1)) as usize;
        let [first, ..] = &self.credits().failures;
        self.credits().failures.get(at).unwrap_or(first)
    }

    /// Returns the slot of record number `index` in a ring of `SLOTS`.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to less than SLOTS, a usize")]
    pub(crate) fn slot<const SLOTS: usize>(&self, index: u64) -> &Slot {
        let at = (index & (SLOTS as u64 - 1)) as usize;
        // SAFETY: at < SLOTS, `RingRegion::new` checked that `SLOTS` aligned slots exist, and its
        // contract keeps them mapped; any bytes are a valid Slot, which consists of an atomic and a
        // cell.
        unsafe { &*self.slots.wrapping_add(at) }
    }
}

/// The data area. Under loom each line has a cell, so that loom reports a racing access to a body.
#[derive(Clone, Copy)]
pub(crate) struct DataArea {
    pub(crate) bytes: *mut u8,
    #[cfg(loom)]
    pub(crate) cells: *const crate::sync::UnsafeCell<()>,
}

impl DataArea {
    /// Returns the body at free-running position `start`, which does not cross the end of the area.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to less than DATA, a usize")]
    pub(crate) fn body<const DATA: usize>(&self, start: u64, len: usize) -> Mem {
        let offset = (start & (DATA as u64 - 1)) as usize;
        debug_assert!(offset + len <= DATA, "a body crosses the end of the area");
        // SAFETY: `body_start` chose a position from which len bytes lie inside the area, which
        // `RingRegion::new` checked and its contract keeps mapped; nothing makes a reference to it.
        unsafe { Mem::new(self.bytes.wrapping_add(offset), len) }
    }

    /// Writes to the lines of the body between positions `from` and `after`, so that this core owns
    /// them. Skipped lines at the end of the area are left alone.
    #[inline]
    pub(crate) fn scrub_body<const DATA: usize>(&self, from: u64, after: u64) {
        let end = (from | (DATA as u64 - 1)) + 1;
        let start = if after > end { end } else { from };
        let len = usize::try_from(after - start).unwrap_or(0);
        self.model_access::<DATA>(start, len, true);
        scrub_lines(&self.body::<DATA>(start, len));
    }

    /// Reports a read or write of the body to loom.
    #[inline(always)]
    #[cfg_attr(
        not(loom),
        expect(unused_variables, clippy::unused_self, reason = "only loom keeps watch")
    )]
    pub(crate) fn model_access<const DATA: usize>(&self, start: u64, len: usize, write: bool) {
        #[cfg(loom)]
        for line in 0..len.div_ceil(64) {
            let at = (start % DATA as u64 / 64) as usize + line;
            // SAFETY: the body lies inside the area, which has a cell for each line.
            let cell = unsafe { &*self.cells.wrapping_add(at) };
            if write { cell.with_mut(|_| ()) } else { cell.with(|_| ()) }
        }
    }
}

/// Returns the start of a body of `len` bytes in a data area of `area` bytes filled up to the
/// free-running position `pos`. A body that would cross the end of the area starts at its
/// beginning, in the next pass. Both sides compute this.
#[inline]
pub(crate) const fn body_start(pos: u64, len: usize, area: usize) -> u64 {
    let offset = pos & (area as u64 - 1);
    if offset + len as u64 > area as u64 { pos - offset + area as u64 } else { pos }
}

/// Returns the position after a body of `len` bytes at `start`: the next multiple of a line.
#[inline]
pub(crate) const fn body_end(start: u64, len: usize) -> u64 {
    start + (len as u64).next_multiple_of(64)
}

/// Returns the lap number after `lap`: 1 to 65535, so that a zeroed slot never matches.
#[inline]
pub(crate) const fn next_lap(lap: u16) -> u16 {
    if lap == u16::MAX { 1 } else { lap + 1 }
}

// The longest body fits an empty ring, even behind the longest skip at the end of the area. It fits
// even while the consumer has not published that it freed the last quarter.
const _: () = assert!(
    RING_DATA_BYTES.is_power_of_two() && RING_SLOTS.is_power_of_two() && BODY_MAX % 64 == 0
);
const _: () = assert!(RING_DATA_BYTES / 4 + 2 * BODY_MAX <= RING_DATA_BYTES);
const _: () = assert!(DIRECTION_BYTES == 86016 && DIRECTION_BYTES % 4096 == 0);

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

    pin!(ProducerLine, 128, 128, layout @ 0, withdrawn @ 8, settled @ 16);
    pin!(ConsumerLine, 128, 128, consumed @ 0, consumed_data @ 8, idle @ 16);
    pin!(ExecutingLine, 128, 128, busy @ 0);
    pin!(ExecutedLine, 128, 128, count @ 0, failures @ 8);
    pin!(
        ControlLines, 2560, 128,
        producer @ 0, consumer @ 128, executing @ 256, executed @ 384, failures @ 512
    );
    pin!(Slot, 64, 64, word @ 0, head @ 8);
    pin!(ReplyHalf, 32, 8, word @ 0, head @ 8);
    pin!(ReplyLine, 64, 64, halves @ 0);
    pin!(BellOwner, 128, 128, layout @ 0, sleeping @ 4);
    pin!(BellSummary, 128, 128, bits @ 0);
    pin!(BellPolled, 128, 128, time_ns @ 0);
    pin!(
        BellPage<BELL_WORDS>, 896, 128, owner @ 0, summary @ 128, words @ 256, polled @ 768
    );
    pin!(KeyHeader, 128, 128, layout @ 0, notify @ 4);
    pin!(
        KeySlot, 64, 64,
        generation @ 0, key @ 8, base @ 16, start @ 24, len @ 32, access @ 40,
        window @ 48, window_len @ 56
    );
    pin!(HazardLine, HAZARD_BYTES, 128, slot @ 0);
    pin!(OfferLine, 64, 64, word @ 0, dst_addr @ 8, len @ 16, part @ 24, parts @ 28);
    pin!(PartLine, 64, 64, claims @ 0, done @ 8, failed @ 12);
    pin!(ClaimBlock, CLAIM_BYTES, 64, offer @ 0, parts @ 64);
    const _: () = assert!(size_of::<BellPage<BELL_WORDS>>() <= BELL_BYTES);
    const _: () = assert!(size_of::<ControlLines>() <= SLOTS_OFFSET);
    const _: () = assert!(HEAD_MAX + 8 == size_of::<Slot>());
    const _: () = assert!(
        REPLY_HEAD_MAX + 8 == size_of::<ReplyHalf>() && size_of::<ReplyLine>() <= REPLY_LINE_BYTES
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_never_cross_the_end() {
        for pos in (0..3 * RING_DATA_BYTES as u64).step_by(64) {
            for len in [0, 1, 63, 64, 65, 4096, BODY_MAX - 1, BODY_MAX] {
                let start = body_start(pos, len, RING_DATA_BYTES);
                let offset = start % RING_DATA_BYTES as u64;
                assert!(
                    start >= pos
                        && start % 64 == 0
                        && offset + len as u64 <= RING_DATA_BYTES as u64
                );
                assert!(body_end(start, len) - pos <= 2 * BODY_MAX as u64);
            }
        }
    }

    #[test]
    fn lap_numbers_skip_zero() {
        assert_eq!(next_lap(1), 2);
        assert_eq!(next_lap(u16::MAX), 1);
    }
}
