// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records of a ring, as its consumer sees them.

#![expect(unsafe_code, reason = "looks at heads where they lie")]

use core::marker::PhantomData;

use crate::copy::{self, Mem};
use crate::layout::HEAD_MAX;

/// One record, as found by one poll.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Kind chosen by the producer.
    pub kind: u8,
    /// Length of the head in bytes; at most [`HEAD_MAX`].
    pub head_len: u8,
    /// Private copy of the head; bytes past `head_len` have no meaning.
    pub head: [u8; HEAD_MAX],
    /// The body in shared memory. The peer may change it at any time; it stays valid until
    /// `advance`.
    pub body: Mem,
}

impl Record {
    /// Returns the bytes of the head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or(&self.head)
    }
}

/// Head of a record in shared memory, lent to [`poll_inline`](crate::Consumer::poll_inline). The
/// peer may change it between two reads, so read each value once.
#[derive(Debug)]
pub struct InlineRecord<'a> {
    head: *const u64,
    len: usize,
    _lent: PhantomData<&'a ()>,
}

impl<'a> InlineRecord<'a> {
    /// Lends `len` bytes of the head at `head`: aligned words that stay mapped while lent.
    #[inline(always)]
    pub(super) const fn new(head: *const u64, len: usize) -> InlineRecord<'a> {
        InlineRecord { head, len, _lent: PhantomData }
    }

    /// Returns the length of the head in bytes; at most [`HEAD_MAX`].
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the head is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns word `at` of the head, loaded now; 0 beyond its end.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        if at.saturating_mul(8).saturating_add(8) > self.len {
            return 0;
        }
        // SAFETY: the word lies within the first `len` bytes of the head of a slot or reply, which
        // is an array of aligned words. Volatile: exactly one load in any caller.
        unsafe { self.head.wrapping_add(at).read_volatile() }
    }

    /// Copies the bytes after the first `words` words to `to`, up to the shorter length; returns
    /// their number.
    #[inline(always)]
    pub fn copy_tail(&self, words: usize, to: &Mem) -> usize {
        let at = words.saturating_mul(8).min(self.len);
        let n = to.len().min(self.len - at);
        // SAFETY: the head has n bytes from `at` on, `to` has n bytes by its contract, and no user
        // buffer overlaps a slot.
        unsafe { copy::copy_disjoint(to.as_ptr(), self.head.cast::<u8>().wrapping_add(at), n) };
        n
    }
}

/// Handler of a record head in place: a closure, or a type whose method is always inlined.
pub trait InlineHandler {
    /// Inspects a record of that kind. Returns true if the record was consumed and is to be freed.
    fn take(self, kind: u8, line: &InlineRecord<'_>) -> bool;
}

impl<F: FnOnce(u8, &InlineRecord<'_>) -> bool> InlineHandler for F {
    #[inline(always)]
    fn take(self, kind: u8, line: &InlineRecord<'_>) -> bool {
        self(kind, line)
    }
}

/// Result of [`poll_inline`](crate::Consumer::poll_inline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// No record is published.
    Empty,
    /// A record was consumed and freed.
    Consumed,
    /// A record is published and untouched: for [`peek`](crate::Consumer::peek).
    Unhandled,
}
