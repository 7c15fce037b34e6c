// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The line in which two sides answer each other: a short record that answers one that has just come is published in a line of the
//! connection, whose halves the two sides write, and not in its slot.
//!
//! Who answers there writes a line that its core has just been given. A slot it would have to take from the peer first, who looks at
//! it all the time. Such a record has its number in the ring like any other, and its slot stays as it is.
//!
//! INVARIANT: a half is written again only when its reader has said that it took what was there: by the count that goes with each
//! of its own answers, or by the counters of the ring. A count that was left long ago is not taken for a new one: between the two lie
//! at most a ringful of answers, and its bits tell more apart. Not about: when a record is an answer, which the caller knows.

#![expect(unsafe_code, reason = "lays a line over raw shared memory")]

use crate::layout::{ANSWER_MAX, AnswerHalf, AnswerLine};
use crate::sync::Ordering;

/// Of the word: the record's number and one, its kind, the length of its head, how many answers of the peer were taken.
const NUMBER_BITS: u32 = 40;
const KIND_BITS: u32 = 8;
const LEN_BITS: u32 = 5;
const KIND_AT: u32 = NUMBER_BITS;
const LEN_AT: u32 = KIND_AT + KIND_BITS;
const TAKEN_AT: u32 = LEN_AT + LEN_BITS;
const TAKEN_BITS: u32 = u64::BITS - TAKEN_AT;

const _: () = assert!(ANSWER_MAX < 1 << LEN_BITS && crate::layout::SLOTS < 1 << TAKEN_BITS);

const fn low(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// Whether record `number` may be in a half in which record `last`, less one, was the last: a number has more bits than the line
/// has for it, and what was left long ago must not be taken for the one that is waited for.
#[inline(always)]
pub(crate) const fn reaches(last: u64, number: u64) -> bool {
    number.wrapping_sub(last) < 1 << (NUMBER_BITS - 1)
}

/// What a half says of the record in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) kind: u8,
    /// Of the head; at most [`ANSWER_MAX`], unless its writer lies.
    pub(crate) len: u8,
    pub(crate) taken: Taken,
}

/// How many answers its writer had taken, as an answer says it: the low bits of that.
#[derive(Clone, Copy, Debug)]
pub struct Taken(u64);

impl Taken {
    /// Whether it is `count`.
    #[inline(always)]
    pub(crate) const fn is(self, count: u64) -> bool {
        self.0 == low(count, TAKEN_BITS)
    }
}

/// A half of the line, as its writer and its reader have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    half: *const AnswerHalf,
}

impl Answers {
    /// The first or `second` half of `line`.
    ///
    /// # Safety
    ///
    /// `line` is aligned, stays mapped, readable and writable, as long as the value is used, and was zeroed when created; one
    /// value publishes in the half.
    pub(crate) unsafe fn new(line: *const AnswerLine, second: bool) -> Answers {
        Answers {
            half: line.cast::<AnswerHalf>().wrapping_add(usize::from(second)),
        }
    }

    #[inline(always)]
    pub(crate) fn half(&self) -> &AnswerHalf {
        // SAFETY: the contract of `new`; any bytes are a valid half, and it is made of an atomic and a cell.
        unsafe { &*self.half }
    }

    /// Record `number`, if it is here.
    #[inline(always)]
    pub(crate) fn find(&self, number: u64) -> Option<Found> {
        // SYNC POINT: pairs with `publish`. Loaded once: what is checked is what is used.
        let word = self.half().word.load(Ordering::Acquire);
        if low(word, NUMBER_BITS) != low(number + 1, NUMBER_BITS) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "of so few bits")]
        Some(Found {
            kind: low(word >> KIND_AT, KIND_BITS) as u8,
            len: low(word >> LEN_AT, LEN_BITS) as u8,
            taken: Taken(word >> TAKEN_AT),
        })
    }

    /// Publishes record `number`, with a head of `len` bytes that `fill` writes; `taken`: how many answers of the peer were taken.
    #[inline(always)]
    pub(crate) fn publish(&self, number: u64, kind: u8, len: usize, taken: u64, fill: impl FnOnce(*mut u8)) {
        self.half().head.with_mut(|p| fill(p.cast()));
        let number = low(number + 1, NUMBER_BITS);
        let word = number | u64::from(kind) << KIND_AT | (len as u64) << LEN_AT | taken << TAKEN_AT;
        // SYNC POINT: pairs with `find`: the head is there before the word is, and what is counted as taken has been read.
        self.half().word.store(word, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_by_its_number() {
        let line = AnswerLine::default();
        // SAFETY: the line outlives both views.
        let [first, second] = [false, true].map(|second| unsafe { Answers::new(&raw const line, second) });
        assert!(first.find(0).is_none(), "nothing is there");
        first.publish(0, 7, 24, 3, |_| ());
        second.publish((1 << 50) + 3, 255, 0, 2049, |_| ());
        let found = first.find(0).unwrap();
        assert!(found.taken.is(3) && !found.taken.is(2));
        assert_eq!((found.kind, found.len), (7, 24));
        let found = second.find((1 << 50) + 3).unwrap();
        assert!(found.taken.is(2049) && !found.taken.is(2048));
        assert_eq!((found.kind, found.len), (255, 0));
        assert!(first.find(1).is_none() && second.find(0).is_none());
        assert!(
            second.find(3).is_some() && !reaches(4, (1 << 50) + 3),
            "so many records later"
        );
    }
}
