// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cooperative copy of one large message: the sender claims parts from the front, the receiver from
//! the back, by compare-and-exchange on one word, until they meet.
//!
//! Not about: the copy itself, and the announcement and end of a message. Each claim is copied
//! within the call that took it, so the sender has at most one claim open at a time. A claim that
//! it could not copy is reported through the block, after which the sender claims no more. The
//! receiver completes when no part is left and none is open. The caller's own number of parts
//! bounds the counts of a hostile peer: an index is never out of range.

#![expect(unsafe_code, reason = "lays the block over raw shared memory")]

use crate::layout::ClaimBlock;
use crate::sync::Ordering;
use core::ops::Range;

/// Value of `back` in a closed block; above any number of parts.
const CLOSED: u64 = 0xff_ffff;
/// Maximum number of parts of one message.
pub const PARTS_MAX: u32 = 0xff_fffe;
/// Bit above the generation that marks a valid offer.
const OFFERED: u64 = 1 << 32;
/// Number of failed compare-and-exchange operations after which a call claims nothing. Only a peer
/// that writes garbage causes more failures.
const CAS_TRIES: usize = 64;

/// Destination of a message in its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Address in the receiver.
    pub dst_addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Length in bytes of each part but the last; not 0.
    pub part: u32,
    /// `len` divided by `part`, rounded up; at most [`PARTS_MAX`].
    pub parts: u32,
}

/// ClaimShare of the remaining parts that one claim takes: at least one part, and at most the
/// caller's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimShare {
    /// Half: large claims first, for few system calls, and small ones at the end, so that both
    /// sides finish together. Of an odd number the receiver, which begins earlier, takes the larger
    /// half.
    Half,
    /// All: for a side that continues with another message while the other side finishes this one.
    All,
}

/// The claims word, unpacked.
#[derive(Clone, Copy)]
struct ClaimWord {
    generation: u64,
    front: u64,
    back: u64,
}

impl ClaimWord {
    const fn unpack(word: u64) -> ClaimWord {
        ClaimWord { generation: word >> 48, front: word >> 24 & 0xff_ffff, back: word & 0xff_ffff }
    }

    const fn pack(self) -> u64 {
        self.generation << 48 | self.front << 24 | self.back
    }

    /// Whether an unclaimed part is left of a message of `parts` under `generation`. A closed block
    /// has none: its back is above any `parts`.
    const fn open(self, generation: u32, parts: u32) -> bool {
        self.generation == generation as u64 & 0xffff
            && parts <= PARTS_MAX
            && self.front + self.back < parts as u64
    }
}

#[expect(clippy::cast_possible_truncation, reason = "24 bits")]
const fn index(n: u64) -> u32 {
    n as u32
}

/// A view of one claim block, of either side.
#[derive(Debug)]
pub struct Claim {
    pub(crate) block: *const ClaimBlock,
}

// SAFETY: the block is shared memory made of atomics, not tied to a thread; the contract of `new`
// keeps it mapped.
unsafe impl Send for Claim {}
// SAFETY: every method is made of atomic accesses.
unsafe impl Sync for Claim {}

impl Claim {
    /// Returns a view of the block at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned to 64 and begins `CLAIM_BYTES` bytes that stay mapped readable and writable
    /// while the value exists.
    pub const unsafe fn new(ptr: *mut u8) -> Claim {
        Claim { block: ptr.cast::<ClaimBlock>().cast_const() }
    }

    #[inline(always)]
    fn block(&self) -> &ClaimBlock {
        // SAFETY: the contract of `new`; any bytes are a valid block, and it is made of atomics.
        unsafe { &*self.block }
    }

    /// Sender: prepares the block for the message that it announces next under `generation`.
    pub fn reset(&self, generation: u32) {
        let b = self.block();
        // The announcement is a ring record, whose publication orders these stores for the
        // receiver.
        b.offer.word.store(0, Ordering::Relaxed);
        b.parts.done.store(0, Ordering::Relaxed);
        b.parts.failed.store(0, Ordering::Relaxed);
        // SYNC POINT: pairs with the loads of `claims` in this file.
        let claims = ClaimWord { generation: u64::from(generation) & 0xffff, front: 0, back: 0 };
        b.parts.claims.store(claims.pack(), Ordering::Release);
    }

    /// Receiver: publishes the destination of the message.
    pub fn offer(&self, generation: u32, dst_addr: u64, len: u64, part: u32, parts: u32) {
        let o = &self.block().offer;
        o.dst_addr.store(dst_addr, Ordering::Relaxed);
        o.len.store(len, Ordering::Relaxed);
        o.part.store(part, Ordering::Relaxed);
        o.parts.store(parts, Ordering::Relaxed);
        // SYNC POINT: pairs with `Claim::peer_offer`.
        o.word.store(u64::from(generation) | OFFERED, Ordering::Release);
    }

    /// Sender: returns the destination of the message, once the receiver has published a valid one.
    /// The caller checks that `len` does not exceed its message.
    pub fn peer_offer(&self, generation: u32) -> Option<Offer> {
        let o = &self.block().offer;
        // SYNC POINT: pairs with `Claim::offer`.
        if o.word.load(Ordering::Acquire) != u64::from(generation) | OFFERED {
            return None;
        }
        let offer = Offer {
            dst_addr: o.dst_addr.load(Ordering::Relaxed),
            len: o.len.load(Ordering::Relaxed),
            part: o.part.load(Ordering::Relaxed),
            parts: o.parts.load(Ordering::Relaxed),
        };
        let sane = offer.part != 0
            && offer.parts <= PARTS_MAX
            && offer.len.div_ceil(u64::from(offer.part)) == u64::from(offer.parts)
            && offer.dst_addr.checked_add(offer.len).is_some();
        sane.then_some(offer)
    }

    /// Sender: claims the next parts from the front of `parts`, which come from the [`Offer`] that
    /// it checked. Takes `share` of the unclaimed parts, at least one and at most `most`. Returns
    /// `None` if no part is left, the block is closed or of another generation, or parts have
    /// failed.
    pub fn claim_front(
        &self,
        generation: u32,
        parts: u32,
        most: u32,
        share: ClaimShare,
    ) -> Option<Range<u32>> {
        // Only this side writes it: its own last value.
        if self.block().parts.failed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let half = |left: u32| left / 2;
        let (before, n) = self.claim((generation, parts), most, share, half, |c, n| ClaimWord {
            front: c.front + u64::from(n),
            ..c
        })?;
        let first = index(before.front);
        Some(first..first + n)
    }

    /// Sender: reports its last claim of `count` parts as copied (`ok`), or as failed and left to
    /// the receiver.
    pub fn complete_front(&self, count: u32, ok: bool) {
        let p = &self.block().parts;
        // Only this side writes them: its own last values.
        let done = p.done.load(Ordering::Relaxed);
        if !ok {
            // Parts are claimed in order, and one claim is open at a time: it begins at number
            // `done`.
            p.failed.store(done.saturating_add(1), Ordering::Relaxed);
        }
        // SYNC POINT: pairs with `Claim::done`: the bytes, or the failure, are written before the
        // count.
        p.done.store(done.saturating_add(count), Ordering::Release);
    }

    /// Receiver: claims the next parts from the back of its own `parts`, with the limits of
    /// [`claim_front`](Self::claim_front). Returns `None` if no part is left, or the block is
    /// closed or of another generation.
    pub fn claim_back(
        &self,
        generation: u32,
        parts: u32,
        most: u32,
        share: ClaimShare,
    ) -> Option<Range<u32>> {
        let half = |left: u32| left.div_ceil(2);
        let (before, n) = self.claim((generation, parts), most, share, half, |c, n| ClaimWord {
            back: c.back + u64::from(n),
            ..c
        })?;
        let end = parts - index(before.back);
        Some(end - n..end)
    }

    /// Claims parts of a generation with `next`. Returns the claims before that, and the number of
    /// parts taken.
    fn claim(
        &self,
        (generation, parts): (u32, u32),
        most: u32,
        share: ClaimShare,
        half: impl Fn(u32) -> u32,
        next: impl Fn(ClaimWord, u32) -> ClaimWord,
    ) -> Option<(ClaimWord, u32)> {
        let word = &self.block().parts.claims;
        // SYNC POINT: pairs with `Claim::reset` and the exchange below.
        let mut seen = word.load(Ordering::Acquire);
        for _ in 0..CAS_TRIES {
            let claims = ClaimWord::unpack(seen);
            if !claims.open(generation, parts) {
                return None;
            }
            let left = parts - index(claims.front + claims.back);
            let wanted = match share {
                ClaimShare::Half => half(left),
                ClaimShare::All => left,
            };
            let n = wanted.clamp(1, most.max(1));
            // SYNC POINT: pairs with the same exchange on the other side, and `Claim::close`.
            match word.compare_exchange(
                seen,
                next(claims, n).pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some((claims, n)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Receiver: returns the number of parts that the sender has finished. SYNC POINT: pairs with
    /// `Claim::complete_front`.
    fn done(&self) -> u32 {
        self.block().parts.done.load(Ordering::Acquire)
    }

    /// Returns the number of parts claimed from the front. SYNC POINT: pairs with the exchange in
    /// `Claim::claim`.
    fn front(&self) -> u32 {
        index(ClaimWord::unpack(self.block().parts.claims.load(Ordering::Acquire)).front)
    }

    /// Receiver: returns the number of parts that the sender has claimed and not finished. This
    /// does not grow once no part is left, or the block is closed.
    pub fn open_parts(&self) -> u32 {
        self.front().saturating_sub(self.done())
    }

    /// Receiver: returns the parts, of its own `parts`, that the sender claimed and could not copy.
    /// Called when no part is open.
    pub fn failed_front(&self, parts: u32) -> Option<Range<u32>> {
        // Acquires the store of `failed`.
        self.done();
        let first = self.block().parts.failed.load(Ordering::Relaxed).checked_sub(1)?;
        // A failed claim is the sender's last.
        let end = self.front().min(parts);
        (first < end).then_some(first..end)
    }

    /// Receiver: closes the block for further claims; returns the number of parts that the sender
    /// had claimed.
    pub fn close(&self) -> u32 {
        // SYNC POINT: pairs with the exchange in `Claim::claim`. A single instruction, so that no
        // peer can make it fail.
        index(ClaimWord::unpack(self.block().parts.claims.fetch_or(CLOSED, Ordering::AcqRel)).front)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::CLAIM_BYTES;

    #[repr(align(128))]
    struct ClaimMemory([u8; CLAIM_BYTES]);

    fn with(f: impl FnOnce(&Claim, &Claim)) {
        let mut block = ClaimMemory([0; CLAIM_BYTES]);
        let p = block.0.as_mut_ptr();
        // SAFETY: the block is aligned and outlives both views.
        let tx = unsafe { Claim::new(p) };
        // SAFETY: as above.
        let rx = unsafe { Claim::new(p) };
        f(&tx, &rx);
    }

    #[test]
    fn the_two_ends_meet() {
        with(|tx, rx| {
            tx.reset(7);
            assert_eq!(tx.peer_offer(7), None);
            rx.offer(7, 0x1000, 5 * 10 - 1, 10, 5);
            assert_eq!(tx.peer_offer(8), None);
            assert_eq!(
                tx.peer_offer(7),
                Some(Offer { dst_addr: 0x1000, len: 49, part: 10, parts: 5 })
            );
            assert_eq!(
                (
                    tx.claim_front(8, 5, 1, ClaimShare::Half),
                    rx.claim_back(6, 5, 1, ClaimShare::Half)
                ),
                (None, None)
            );
            assert_eq!(
                (
                    tx.claim_front(7, 5, 1, ClaimShare::Half),
                    rx.claim_back(7, 5, 1, ClaimShare::Half)
                ),
                (Some(0..1), Some(4..5))
            );
            assert_eq!(rx.open_parts(), 1);
            tx.complete_front(1, true);
            assert_eq!(
                (
                    tx.claim_front(7, 5, 1, ClaimShare::Half),
                    rx.claim_back(7, 5, 1, ClaimShare::Half),
                    rx.claim_back(7, 5, 1, ClaimShare::Half)
                ),
                (Some(1..2), Some(3..4), Some(2..3))
            );
            assert_eq!(
                (
                    tx.claim_front(7, 5, 1, ClaimShare::Half),
                    rx.claim_back(7, 5, 1, ClaimShare::Half)
                ),
                (None, None)
            );
            assert_eq!(rx.open_parts(), 1);
            tx.complete_front(1, false);
            assert_eq!(
                (rx.open_parts(), rx.failed_front(5), rx.failed_front(1)),
                (0, Some(1..2), None)
            );
            tx.reset(8);
            assert_eq!((rx.failed_front(5), rx.open_parts(), tx.peer_offer(7)), (None, 0, None));
        });
    }

    #[test]
    fn closing_and_failing_stop_the_sender() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.claim_front(1, 9, 1, ClaimShare::Half), Some(0..1));
            assert_eq!(rx.close(), 1);
            assert_eq!(
                (
                    tx.claim_front(1, 9, 1, ClaimShare::Half),
                    rx.claim_back(1, 9, 1, ClaimShare::Half),
                    rx.close()
                ),
                (None, None, 1)
            );
            tx.reset(2);
            assert_eq!(tx.claim_front(2, 9, 1, ClaimShare::Half), Some(0..1));
            tx.complete_front(1, false);
            assert_eq!(tx.claim_front(2, 9, 1, ClaimShare::Half), None);
            assert_eq!(
                (rx.claim_back(2, 9, 1, ClaimShare::Half), rx.failed_front(9)),
                (Some(8..9), Some(0..1))
            );
        });
    }

    #[test]
    fn claims_shrink_towards_the_end() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.claim_front(1, 16, 8, ClaimShare::Half), Some(0..8));
            assert_eq!(rx.claim_back(1, 16, 2, ClaimShare::Half), Some(14..16));
            assert_eq!(rx.open_parts(), 8);
            tx.complete_front(8, true);
            assert_eq!(tx.claim_front(1, 16, 8, ClaimShare::Half), Some(8..11));
            tx.complete_front(3, false);
            assert_eq!(rx.failed_front(16), Some(8..11));
            let mut left = 3;
            while let Some(taken) = rx.claim_back(1, 16, 8, ClaimShare::Half) {
                left -= taken.len();
            }
            assert_eq!((left, rx.open_parts()), (0, 0));
        });
    }

    #[test]
    fn the_odd_part_is_the_receivers() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(rx.claim_back(1, 3, 8, ClaimShare::Half), Some(1..3));
            assert_eq!(tx.claim_front(1, 3, 8, ClaimShare::Half), Some(0..1));
            tx.reset(2);
            assert_eq!(tx.claim_front(2, 3, 8, ClaimShare::Half), Some(0..1));
            assert_eq!(rx.claim_back(2, 3, 8, ClaimShare::Half), Some(2..3));
        });
    }

    #[test]
    fn claim_of_all_leaves_no_part() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.claim_front(1, 7, 4, ClaimShare::All), Some(0..4));
            assert_eq!(rx.claim_back(1, 7, 4, ClaimShare::All), Some(4..7));
            assert_eq!(tx.claim_front(1, 7, 4, ClaimShare::All), None);
            assert_eq!(rx.claim_back(1, 7, 4, ClaimShare::All), None);
        });
    }

    #[test]
    fn invalid_offers_are_ignored() {
        with(|tx, rx| {
            for (addr, len, part, parts) in [
                (0, 10, 0, 1),
                (0, 10, 5, 3),
                (0, 10, 5, 1),
                (u64::MAX, 10, 5, 2),
                (0, 0x200_0000, 1, 0x200_0000),
            ] {
                tx.reset(3);
                rx.offer(3, addr, len, part, parts);
                assert_eq!(tx.peer_offer(3), None);
            }
        });
    }
}
