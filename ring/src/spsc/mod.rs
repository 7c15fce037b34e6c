// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a connection: a single-producer single-consumer ring of records in memory shared with
//! the peer.
//!
//! A record is a head of at most 56 bytes in the cache line of the word that publishes it, and a body of at
//! most [`BODY_MAX`](crate::BODY_MAX) in the data area beside. So a small message moves one line, with no
//! read-modify-write, no lock and no call. Not about: waking anybody (`doorbell`), what heads mean.
//!
//! A short answer to what has just come may be published in a line beside (`answer`) instead of its slot, which then stays as it is.
//!
//! Invariants. The consumer writes to a record only when it frees it, before it says so. Positions are private to
//! each side, which compute them by the same rule (`layout::body_start`); of shared words a side reads only the
//! publication word, once per look, and the consumer's two counters. A peer that writes garbage can therefore make
//! wrong heads, bodies and lengths, which are checked ([`Corrupt`]), but no access outside the ring. A consumer that
//! publishes counters that never were is not believed, and its ring stays full: that hurts itself alone.

#![expect(unsafe_code, reason = "looks at heads where they lie")]

mod consumer;
mod producer;

pub use consumer::ConsumerOf;
pub use producer::ProducerOf;

pub use crate::answer::Taken;
use crate::copy::{self, Mem};
pub use crate::error::{Corrupt, LayoutError, PushError};
use crate::layout::{DATA, HEAD_MAX, SLOTS};

/// The producer of a direction as the product lays it out.
pub type Producer = ProducerOf<SLOTS, DATA>;
/// The consumer of a direction as the product lays it out.
pub type Consumer = ConsumerOf<SLOTS, DATA>;

/// One record, as found at one look.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// What the producer called it.
    pub kind: u8,
    /// Bytes of the head; at most [`HEAD_MAX`].
    pub head_len: u8,
    /// A private copy; what lies past `head_len` means nothing.
    pub head: [u8; HEAD_MAX],
    /// The body where it lies in shared memory: it may change at any time and is there until `advance`.
    pub body: Mem,
}

impl Record {
    /// The bytes of the head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or(&self.head)
    }
}

/// The head of a record where it lies in shared memory, lent to [`ConsumerOf::take_line`]: what is asked for twice may have
/// changed meanwhile, so ask once and use what you got.
#[derive(Debug)]
pub struct Line<'a> {
    head: *const u64,
    len: usize,
    _lent: core::marker::PhantomData<&'a ()>,
}

impl Line<'_> {
    /// Bytes of the head; at most [`HEAD_MAX`].
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Word `at` of the head, loaded now; 0 if the head does not reach so far.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        if at.saturating_mul(8).saturating_add(8) > self.len {
            return 0;
        }
        // SAFETY: the word lies within `len` bytes of the head of a slot or of an answer, aligned words. Volatile: one load, whatever the caller does.
        unsafe { self.head.wrapping_add(at).read_volatile() }
    }

    /// Copies what follows the first `words` words to `to`, as much as both have; returns how much.
    #[inline(always)]
    pub fn copy_tail(&self, words: usize, to: &Mem) -> usize {
        let at = words.saturating_mul(8).min(self.len);
        let n = to.len().min(self.len - at);
        // SAFETY: n bytes of the head lie there, `to` has as many by its contract, and no user buffer overlaps a slot.
        unsafe { copy::copy_apart(to.as_ptr(), self.head.cast::<u8>().wrapping_add(at), n) };
        n
    }
}

/// Who looks at the head of a record in place: a closure, or what wants to be sure that it is inlined.
pub trait LineTaker {
    /// Looks at a record of that kind; true: it was taken, and is freed.
    fn take(self, kind: u8, line: &Line<'_>) -> bool;
}

impl<F: FnOnce(u8, &Line<'_>) -> bool> LineTaker for F {
    #[inline(always)]
    fn take(self, kind: u8, line: &Line<'_>) -> bool {
        self(kind, line)
    }
}

/// What [`ConsumerOf::take_line`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing is published.
    Empty,
    /// A record was taken, and is freed.
    Taken,
    /// There is a record, untouched: for [`ConsumerOf::peek`].
    Other,
}
