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

/// A record in shared memory, lent to [`poll_inline`](crate::Consumer::poll_inline). The peer may
/// change it between two reads, so read each value once.
#[derive(Debug)]
pub struct InlineRecord<'a> {
    head: *const u64,
    len: usize,
    body: Mem,
    _lent: PhantomData<&'a ()>,
}

impl<'a> InlineRecord<'a> {
    /// Lends `len` bytes of the head at `head`: aligned words that stay mapped while lent.
    #[inline(always)]
    pub(super) const fn new(head: *const u64, len: usize) -> InlineRecord<'a> {
        InlineRecord { head, len, body: Mem::empty(), _lent: PhantomData }
    }

    /// Adds a body, which stays mapped while lent.
    #[inline(always)]
    pub(super) const fn with_body(self, body: Mem) -> InlineRecord<'a> {
        InlineRecord { body, ..self }
    }

    /// Whether the payload is the body, and not the rest of the head.
    #[inline(always)]
    pub fn has_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Returns the length in bytes of the payload after `words` words; `None` if the head is too
    /// short for them.
    #[inline(always)]
    pub fn payload_len(&self, words: usize) -> Option<usize> {
        let rest = self.len.checked_sub(8 * words)?;
        Some(if self.has_body() { self.body.len() } else { rest })
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

    /// Copies the payload to `to`, up to the shorter length; returns the number of bytes. The
    /// payload is the body, or else the bytes after the first `words` words.
    #[inline(always)]
    pub fn copy_payload(&self, words: usize, to: &Mem) -> usize {
        if self.has_body() {
            let n = to.len().min(self.body.len());
            // SAFETY: both have n bytes by their contract, and no user buffer overlaps the area.
            unsafe { copy::copy_disjoint(to.as_ptr(), self.body.as_ptr(), n) };
            return n;
        }
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
