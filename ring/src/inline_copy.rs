// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copy of a short message in the line that publishes it. The bytes of the last push lie beside the
//! producer's position. So a waiting consumer fetches one line of the other core instead of two.
//!
//! Not the queue itself: the bytes are also in the queue, and a consumer that is late, or finds the
//! copy of another push, reads them from the queue.
//!
//! INVARIANT: a stamp other than 0 names the position after the bytes in this copy, and their
//! number. No position is named twice (within 2^58 bytes). The stamp works as a seqlock.

use crate::chunks::{chunks, chunks_mut};
use crate::copy::Mem;
use crate::shared_word::{SharedU64, SharedWords};
use crate::sync::{Ordering, fence};

/// Maximum length in bytes of a short message.
#[cfg(not(loom))]
pub const INLINE_MAX: usize = 48;
/// Maximum in the loom models, which need longer messages as well.
#[cfg(loom)]
pub const INLINE_MAX: usize = 1;
pub(crate) const WORDS: usize = INLINE_MAX.div_ceil(8);
pub(crate) const INLINE_BYTES: usize = 8 * WORDS;
/// Buffer for one short message, in whole words.
pub(crate) type InlineBytes = [u8; INLINE_BYTES];
/// Number of bits of the stamp that hold the byte count.
const COUNT_BITS: u32 = 6;

const _: () = assert!(INLINE_MAX < 1 << COUNT_BITS);

/// Words of the copy in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineCopy {
    pub(crate) stamp: SharedU64,
    pub(crate) words: SharedWords,
}

impl InlineCopy {
    /// Stores the `n` bytes of a push that ends at position `head`, before that position is
    /// published.
    #[inline]
    pub(crate) fn publish(&self, head: u64, bytes: &InlineBytes, n: usize) {
        self.invalidate();
        self.put(head, bytes, n);
    }

    /// Invalidates the copy before new bytes are stored.
    #[inline]
    fn invalidate(&self) {
        self.stamp.set_relaxed(0);
        // SYNC POINT: pairs with the fence in `take`: a reader of one of the following words finds
        // no older stamp afterwards.
        fence(Ordering::Release);
    }

    #[inline]
    fn put(&self, head: u64, bytes: &InlineBytes, n: usize) {
        for (i, word) in chunks(bytes).enumerate().take(n.div_ceil(8)) {
            if let Some(place) = self.words.get(i) {
                place.set_relaxed(u64::from_ne_bytes(*word));
            }
        }
        // SYNC POINT: pairs with the load in `take`.
        self.stamp.set(head << COUNT_BITS | n as u64);
    }

    /// Takes the last `ready` bytes before position `head` into `dst`, as far as it reaches, if the
    /// copy holds them all. Returns the number of bytes.
    #[inline]
    pub(crate) fn take(&self, head: u64, ready: usize, dst: &Mem) -> Option<usize> {
        // SYNC POINT: pairs with the store in `publish`: the words are written before the stamp.
        let stamp = self.stamp.get();
        let n = (stamp & ((1 << COUNT_BITS) - 1)) as usize;
        if stamp >> COUNT_BITS != head << COUNT_BITS >> COUNT_BITS || n > INLINE_MAX || ready > n {
            return None;
        }
        let mut bytes = [0; INLINE_BYTES];
        for (i, word) in chunks_mut(&mut bytes).enumerate().take(n.div_ceil(8)) {
            *word = self.words.get(i)?.get_relaxed().to_ne_bytes();
        }
        // SYNC POINT: pairs with the fence in `publish`: words of another push are detected by
        // their stamp.
        fence(Ordering::Acquire);
        if self.stamp.get_relaxed() != stamp {
            return None;
        }
        Some(dst.copy_from_slice(bytes.get(n - ready..n)?))
    }

    /// Variant of `publish` without invalidation, for a loom model that must fail.
    #[cfg(loom)]
    pub(crate) fn overwrite(&self, head: u64, bytes: &InlineBytes, n: usize) {
        self.put(head, bytes, n);
    }

    /// Variant of `publish` without the fence, for a loom model that must fail.
    #[cfg(loom)]
    pub(crate) fn publish_without_fence(&self, head: u64, bytes: &InlineBytes, n: usize) {
        self.stamp.set_relaxed(0);
        self.put(head, bytes, n);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![expect(
        unsafe_code,
        clippy::indexing_slicing,
        reason = "memory of the tests, and what they got"
    )]

    use super::*;
    use core::ptr::NonNull;

    fn inline_copy(memory: &mut [u64; 1 + WORDS]) -> InlineCopy {
        let at = NonNull::from(memory).cast::<u8>();
        InlineCopy {
            // SAFETY: the array is aligned, outlives the view in every test, and is not used
            // otherwise meanwhile.
            stamp: unsafe { SharedU64::new(at) },
            // SAFETY: as above; the words follow the stamp.
            words: unsafe { SharedWords::new(at.map_addr(|at| at.saturating_add(8)), WORDS) },
        }
    }

    fn mem(bytes: &mut [u8]) -> Mem {
        // SAFETY: the slices of the tests outlive the Mem and are not used meanwhile.
        unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    fn taken(copy: &InlineCopy, head: u64, ready: usize, room: usize) -> Option<Vec<u8>> {
        let mut dst = vec![0; room];
        copy.take(head, ready, &mem(&mut dst)).map(|n| dst[..n].to_vec())
    }

    #[test]
    fn published_bytes_are_found_by_position() {
        let mut memory = [0; 1 + WORDS];
        let copy = inline_copy(&mut memory);
        assert_eq!(taken(&copy, 0, 1, 8), None, "nothing was left");
        let src: Vec<u8> = (1..=48).collect();
        for n in 1..=48 {
            copy.publish(1000 + n as u64, src.first_chunk().unwrap(), n);
            assert_eq!(taken(&copy, 1000 + n as u64, n, 64).as_deref(), Some(&src[..n]));
        }
        assert_eq!(taken(&copy, 1048, 5, 64).as_deref(), Some(&src[43..]), "the last ones");
        assert_eq!(taken(&copy, 1048, 5, 2).as_deref(), Some(&src[43..45]), "in parts");
        assert_eq!(taken(&copy, 1048, 49, 64), None, "more than are here");
        assert_eq!(taken(&copy, 1049, 1, 64), None, "others");
    }

    #[test]
    fn impossible_stamp_is_rejected() {
        let mut memory = [0; 1 + WORDS];
        let copy = inline_copy(&mut memory);
        for count in 49..64 {
            copy.stamp.set(1000 << COUNT_BITS | count);
            assert_eq!(taken(&copy, 1000, 1, 64), None);
        }
    }
}
