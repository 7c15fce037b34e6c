// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The shared reply line of a connection. A short record that replies to a record just received is
//! published in this line, half written by each side, instead of a ring slot.
//!
//! The replying core has just received the line, so writing it is cheap. Writing a ring slot would
//! need a read for ownership first, since the peer polls that slot. A reply has its number in the
//! ring like any other record, and its slot stays unchanged.
//!
//! INVARIANT: a half is rewritten only after its reader has confirmed that it took the content. The
//! count in the reader's own replies confirms it, or the counters of the ring do. The count is
//! stored with few bits, but an old count never equals the expected one. At most a ringful of
//! replies lies between them, and the bits distinguish more.
//!
//! Not about: which record is a reply, which the caller decides.

#![expect(unsafe_code, reason = "lays a line over raw shared memory")]

use crate::layout::{REPLY_HEAD_MAX, ReplyHalf, ReplyLine};
use crate::sync::Ordering;

/// Bits of the publication word: record number + 1, kind, head length, count of replies taken from
/// the peer.
const SEQUENCE_BITS: u32 = 40;
const KIND_BITS: u32 = 8;
const LEN_BITS: u32 = 5;
const KIND_SHIFT: u32 = SEQUENCE_BITS;
const LEN_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const ACK_SHIFT: u32 = LEN_SHIFT + LEN_BITS;
const ACK_BITS: u32 = u64::BITS - ACK_SHIFT;

const _: () = assert!(REPLY_HEAD_MAX < 1 << LEN_BITS && crate::layout::RING_SLOTS < 1 << ACK_BITS);

const fn low_bits(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// Whether record `number` may be looked up in a half whose previous record was `last - 1`. The
/// line stores only the low bits of a number, so an old record must not be taken for the expected
/// one.
#[inline(always)]
pub(crate) const fn is_recent(last: u64, number: u64) -> bool {
    number.wrapping_sub(last) < 1 << (SEQUENCE_BITS - 1)
}

/// Description of the record in a half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyRecord {
    pub(crate) kind: u8,
    /// Length of the head in bytes; at most [`REPLY_HEAD_MAX`], unless the writer is faulty.
    pub(crate) len: u8,
    pub(crate) peer_ack: PeerAck,
}

/// Low bits of the number of replies that the writer of a reply had taken.
#[derive(Clone, Copy, Debug)]
pub struct PeerAck(u64);

impl PeerAck {
    /// Whether `count` has the same low bits.
    #[inline(always)]
    pub(crate) const fn matches(self, count: u64) -> bool {
        self.0 == low_bits(count, ACK_BITS)
    }
}

/// A half of the reply line, for its writer and its reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyHalfRef {
    half: *const ReplyHalf,
}

impl ReplyHalfRef {
    /// Returns the first or `second` half of `line`.
    ///
    /// # Safety
    ///
    /// `line` is aligned, stays mapped, readable and writable, while the value is used, and was
    /// zeroed when created; one value publishes in the half.
    pub(crate) unsafe fn new(line: *const ReplyLine, second: bool) -> ReplyHalfRef {
        ReplyHalfRef { half: line.cast::<ReplyHalf>().wrapping_add(usize::from(second)) }
    }

    #[inline(always)]
    pub(crate) fn half(&self) -> &ReplyHalf {
        // SAFETY: the contract of `new`; any bytes are a valid half, and it is made of an atomic
        // and a cell.
        unsafe { &*self.half }
    }

    /// Returns the description of record `number`, if the half contains it.
    #[inline(always)]
    pub(crate) fn find(&self, number: u64) -> Option<ReplyRecord> {
        // SYNC POINT: pairs with `publish`. A single load, so that the checked value is the used
        // value.
        let word = self.half().word.load(Ordering::Acquire);
        if low_bits(word, SEQUENCE_BITS) != low_bits(number + 1, SEQUENCE_BITS) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "of so few bits")]
        Some(ReplyRecord {
            kind: low_bits(word >> KIND_SHIFT, KIND_BITS) as u8,
            len: low_bits(word >> LEN_SHIFT, LEN_BITS) as u8,
            peer_ack: PeerAck(word >> ACK_SHIFT),
        })
    }

    /// Publishes record `number`, whose head of `len` bytes was written. `taken`: number of replies
    /// taken from the peer.
    #[inline(always)]
    pub(crate) fn publish(&self, number: u64, kind: u8, len: usize, taken: u64) {
        // In use until now: loom reports a reader of the head.
        #[cfg(loom)]
        self.half().head.with_mut(|_| ());
        let number = low_bits(number + 1, SEQUENCE_BITS);
        let word =
            number | u64::from(kind) << KIND_SHIFT | (len as u64) << LEN_SHIFT | taken << ACK_SHIFT;
        // SYNC POINT: pairs with `find`: the head is written, and the replies counted as taken are
        // read, before the word is stored.
        self.half().word.store(word, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_by_its_number() {
        let line = ReplyLine::default();
        // SAFETY: the line outlives both views.
        let [first, second] =
            [false, true].map(|second| unsafe { ReplyHalfRef::new(&raw const line, second) });
        assert!(first.find(0).is_none(), "nothing is there");
        first.publish(0, 7, 24, 3);
        second.publish((1 << 50) + 3, 255, 0, 2049);
        let found = first.find(0).unwrap();
        assert!(found.peer_ack.matches(3) && !found.peer_ack.matches(2));
        assert_eq!((found.kind, found.len), (7, 24));
        let found = second.find((1 << 50) + 3).unwrap();
        assert!(found.peer_ack.matches(2049) && !found.peer_ack.matches(2048));
        assert_eq!((found.kind, found.len), (255, 0));
        assert!(first.find(1).is_none() && second.find(0).is_none());
        assert!(second.find(3).is_some() && !is_recent(4, (1 << 50) + 3), "so many records later");
    }
}
