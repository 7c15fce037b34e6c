// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Both sides copy one large message: the sender takes parts from the front, the receiver from the back, by
//! compare-exchange on one word, until they meet.
//!
//! Not about: the copying, nor how the message is announced and finished. Each part is copied inside the
//! call that took it, so at most one part of the sender's is open at a time; a part it could not copy goes
//! back through the block, after which the sender takes no more. The receiver completes when nothing is
//! left to take and no part is open. Counts that a hostile peer makes up are bounded by the caller's own
//! number of parts: an index is never out of range.

#![expect(unsafe_code, reason = "lays the block over raw shared memory")]

use crate::layout::ClaimBlock;
use crate::sync::Ordering;
use core::ops::Range;

/// `back` of a block that is closed; no message has so many parts.
const CLOSED: u64 = 0xff_ffff;
/// Most parts of one message.
pub const PARTS_MAX: u32 = 0xff_fffe;
/// A valid offer has this bit above its generation.
const OFFERED: u64 = 1 << 32;
/// Lost compare-exchanges after which a call takes nothing: only a peer that writes garbage makes us lose
/// so often.
const TRIES: usize = 64;

/// Where the receiver of a message wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Address in the receiver.
    pub dst_addr: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of each part but the last; not 0.
    pub part: u32,
    /// `len` over `part`, rounded up; at most [`PARTS_MAX`].
    pub parts: u32,
}

/// How much of what is left one exchange takes: at least a part, and at most as many as its caller says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Half: large takes first, for few calls to the kernel, and small ones at the end, so that both sides finish together. Of an
    /// odd number the receiver, who begins earlier, takes the larger half.
    Half,
    /// All: for a side that goes on with another message while the other one finishes this.
    All,
}

/// The claims word, taken apart.
#[derive(Clone, Copy)]
struct Claims {
    generation: u64,
    front: u64,
    back: u64,
}

impl Claims {
    const fn unpack(word: u64) -> Claims {
        Claims {
            generation: word >> 48,
            front: word >> 24 & 0xff_ffff,
            back: word & 0xff_ffff,
        }
    }

    const fn pack(self) -> u64 {
        self.generation << 48 | self.front << 24 | self.back
    }

    /// Whether a part is left of a message of `parts` under `generation`. A closed block has none: its back
    /// is above any `parts`.
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

// SAFETY: the block is shared memory made of atomics, not tied to a thread; the contract of `new` keeps it
// mapped.
unsafe impl Send for Claim {}
// SAFETY: every method is made of atomic accesses.
unsafe impl Sync for Claim {}

impl Claim {
    /// The block at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned to 64 and begins `CLAIM_BYTES` bytes that stay mapped readable and writable for the
    /// life of the value.
    pub const unsafe fn new(ptr: *mut u8) -> Claim {
        Claim {
            block: ptr.cast::<ClaimBlock>().cast_const(),
        }
    }

    #[inline(always)]
    fn block(&self) -> &ClaimBlock {
        // SAFETY: the contract of `new`; any bytes are a valid block, and it is made of atomics.
        unsafe { &*self.block }
    }

    /// Sender: makes the block ready for the message it announces next under `generation`.
    pub fn reset(&self, generation: u32) {
        let b = self.block();
        // The announcement is a record of the ring, whose publication orders these for the receiver.
        b.offer.word.store(0, Ordering::Relaxed);
        b.parts.done.store(0, Ordering::Relaxed);
        b.parts.failed.store(0, Ordering::Relaxed);
        // SYNC POINT: pairs with the loads of `claims` in this file.
        let claims = Claims {
            generation: u64::from(generation) & 0xffff,
            front: 0,
            back: 0,
        };
        b.parts.claims.store(claims.pack(), Ordering::Release);
    }

    /// Receiver: says where the message goes.
    pub fn offer(&self, generation: u32, dst_addr: u64, len: u64, part: u32, parts: u32) {
        let o = &self.block().offer;
        o.dst_addr.store(dst_addr, Ordering::Relaxed);
        o.len.store(len, Ordering::Relaxed);
        o.part.store(part, Ordering::Relaxed);
        o.parts.store(parts, Ordering::Relaxed);
        // SYNC POINT: pairs with `Claim::offered`.
        o.word.store(u64::from(generation) | OFFERED, Ordering::Release);
    }

    /// Sender: where the message goes, once the receiver has said so and if it makes sense. The caller
    /// checks that `len` is not more than its message.
    pub fn offered(&self, generation: u32) -> Option<Offer> {
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

    /// Sender: takes the next parts from the front of `parts`, which come from the [`Offer`] it checked: `share` of what is left,
    /// at least one and at most `most`. `None` if there is none left, the block is closed or of another generation, or
    /// parts have failed.
    pub fn take_front(&self, generation: u32, parts: u32, most: u32, share: Share) -> Option<Range<u32>> {
        // Only this side writes it: its own last value.
        if self.block().parts.failed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let half = |left: u32| left / 2;
        let (before, n) = self.claim(generation, parts, most, share, half, |c, n| Claims {
            front: c.front + u64::from(n),
            ..c
        })?;
        let first = index(before.front);
        Some(first..first + n)
    }

    /// Sender: the `count` parts it took last are in place, or could not be copied and go to the receiver.
    pub fn front_done(&self, count: u32, ok: bool) {
        let p = &self.block().parts;
        // Only this side writes them: its own last values.
        let done = p.done.load(Ordering::Relaxed);
        if !ok {
            // Parts are taken in order, and one take is open at a time: it begins at number `done`.
            p.failed.store(done.saturating_add(1), Ordering::Relaxed);
        }
        // SYNC POINT: pairs with `Claim::done`: the bytes, or the failure, are there before the count.
        p.done.store(done.saturating_add(count), Ordering::Release);
    }

    /// Receiver: takes the next parts from the back of its own `parts`, as many as [`take_front`](Self::take_front) does. `None`
    /// if there is none left, or the block is closed or of another generation.
    pub fn take_back(&self, generation: u32, parts: u32, most: u32, share: Share) -> Option<Range<u32>> {
        let half = |left: u32| left.div_ceil(2);
        let (before, n) = self.claim(generation, parts, most, share, half, |c, n| Claims {
            back: c.back + u64::from(n),
            ..c
        })?;
        let end = parts - index(before.back);
        Some(end - n..end)
    }

    /// Claims as they were before `next` took parts of them, and how many it took.
    fn claim(
        &self,
        generation: u32,
        parts: u32,
        most: u32,
        share: Share,
        half: impl Fn(u32) -> u32,
        next: impl Fn(Claims, u32) -> Claims,
    ) -> Option<(Claims, u32)> {
        let word = &self.block().parts.claims;
        // SYNC POINT: pairs with `Claim::reset` and the exchange below.
        let mut seen = word.load(Ordering::Acquire);
        for _ in 0..TRIES {
            let claims = Claims::unpack(seen);
            if !claims.open(generation, parts) {
                return None;
            }
            let left = parts - index(claims.front + claims.back);
            let wanted = match share {
                Share::Half => half(left),
                Share::All => left,
            };
            let n = wanted.clamp(1, most.max(1));
            // SYNC POINT: pairs with the same exchange on the other side, and `Claim::close`.
            match word.compare_exchange(seen, next(claims, n).pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((claims, n)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Receiver: parts the sender is through with. SYNC POINT: pairs with `Claim::front_done`.
    fn done(&self) -> u32 {
        self.block().parts.done.load(Ordering::Acquire)
    }

    /// Parts taken from the front so far. SYNC POINT: pairs with the exchange in `Claim::claim`.
    fn front(&self) -> u32 {
        index(Claims::unpack(self.block().parts.claims.load(Ordering::Acquire)).front)
    }

    /// Receiver: parts the sender has taken and is not through with. Once nothing is left to take, or the
    /// block is closed, this does not grow.
    pub fn open_parts(&self) -> u32 {
        self.front().saturating_sub(self.done())
    }

    /// Receiver: of its own `parts`, those that a sender which is dead has taken and not finished.
    pub fn orphans(&self, parts: u32) -> Range<u32> {
        let front = self.front().min(parts);
        self.done().min(front)..front
    }

    /// Receiver: of its own `parts`, those that the sender took and could not copy. Asked when no part is open.
    pub fn failed_front(&self, parts: u32) -> Option<Range<u32>> {
        // Acquires what `failed` was stored before.
        self.done();
        let first = self.block().parts.failed.load(Ordering::Relaxed).checked_sub(1)?;
        // A failure is the sender's last take.
        let end = self.front().min(parts);
        (first < end).then_some(first..end)
    }

    /// Receiver: lets nobody claim any more; returns how many parts the sender had taken.
    pub fn close(&self) -> u32 {
        // SYNC POINT: pairs with the exchange in `Claim::claim`. One instruction, so no peer can make it
        // lose.
        index(Claims::unpack(self.block().parts.claims.fetch_or(CLOSED, Ordering::AcqRel)).front)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::CLAIM_BYTES;

    #[repr(align(128))]
    struct Block([u8; CLAIM_BYTES]);

    fn with(f: impl FnOnce(&Claim, &Claim)) {
        let mut block = Block([0; CLAIM_BYTES]);
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
            assert_eq!(tx.offered(7), None);
            rx.offer(7, 0x1000, 5 * 10 - 1, 10, 5);
            assert_eq!(tx.offered(8), None);
            assert_eq!(
                tx.offered(7),
                Some(Offer {
                    dst_addr: 0x1000,
                    len: 49,
                    part: 10,
                    parts: 5
                })
            );
            assert_eq!(
                (
                    tx.take_front(8, 5, 1, Share::Half),
                    rx.take_back(6, 5, 1, Share::Half)
                ),
                (None, None)
            );
            assert_eq!(
                (
                    tx.take_front(7, 5, 1, Share::Half),
                    rx.take_back(7, 5, 1, Share::Half)
                ),
                (Some(0..1), Some(4..5))
            );
            assert_eq!(rx.open_parts(), 1);
            tx.front_done(1, true);
            assert_eq!(
                (
                    tx.take_front(7, 5, 1, Share::Half),
                    rx.take_back(7, 5, 1, Share::Half),
                    rx.take_back(7, 5, 1, Share::Half)
                ),
                (Some(1..2), Some(3..4), Some(2..3))
            );
            assert_eq!(
                (
                    tx.take_front(7, 5, 1, Share::Half),
                    rx.take_back(7, 5, 1, Share::Half)
                ),
                (None, None)
            );
            assert_eq!((rx.open_parts(), rx.orphans(5)), (1, 1..2));
            tx.front_done(1, false);
            assert_eq!(
                (rx.open_parts(), rx.failed_front(5), rx.failed_front(1)),
                (0, Some(1..2), None)
            );
            tx.reset(8);
            assert_eq!(
                (rx.failed_front(5), rx.open_parts(), tx.offered(7)),
                (None, 0, None)
            );
        });
    }

    #[test]
    fn closing_and_failing_stop_the_sender() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.take_front(1, 9, 1, Share::Half), Some(0..1));
            assert_eq!(rx.close(), 1);
            assert_eq!(
                (
                    tx.take_front(1, 9, 1, Share::Half),
                    rx.take_back(1, 9, 1, Share::Half),
                    rx.close()
                ),
                (None, None, 1)
            );
            tx.reset(2);
            assert_eq!(tx.take_front(2, 9, 1, Share::Half), Some(0..1));
            tx.front_done(1, false);
            assert_eq!(tx.take_front(2, 9, 1, Share::Half), None);
            assert_eq!(
                (rx.take_back(2, 9, 1, Share::Half), rx.failed_front(9)),
                (Some(8..9), Some(0..1))
            );
        });
    }

    #[test]
    fn takes_are_large_first_and_small_at_the_end() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.take_front(1, 16, 8, Share::Half), Some(0..8));
            assert_eq!(rx.take_back(1, 16, 2, Share::Half), Some(14..16));
            assert_eq!(rx.open_parts(), 8);
            tx.front_done(8, true);
            assert_eq!(tx.take_front(1, 16, 8, Share::Half), Some(8..11));
            tx.front_done(3, false);
            assert_eq!(rx.failed_front(16), Some(8..11));
            let mut left = 3;
            while let Some(taken) = rx.take_back(1, 16, 8, Share::Half) {
                left -= taken.len();
            }
            assert_eq!((left, rx.open_parts()), (0, 0));
        });
    }

    #[test]
    fn the_odd_part_is_the_receivers() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(rx.take_back(1, 3, 8, Share::Half), Some(1..3));
            assert_eq!(tx.take_front(1, 3, 8, Share::Half), Some(0..1));
            tx.reset(2);
            assert_eq!(tx.take_front(2, 3, 8, Share::Half), Some(0..1));
            assert_eq!(rx.take_back(2, 3, 8, Share::Half), Some(2..3));
        });
    }

    #[test]
    fn a_take_of_all_leaves_none() {
        with(|tx, rx| {
            tx.reset(1);
            assert_eq!(tx.take_front(1, 7, 4, Share::All), Some(0..4));
            assert_eq!(rx.take_back(1, 7, 4, Share::All), Some(4..7));
            assert_eq!(tx.take_front(1, 7, 4, Share::All), None);
            assert_eq!(rx.take_back(1, 7, 4, Share::All), None);
        });
    }

    #[test]
    fn senseless_offers_are_not_seen() {
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
                assert_eq!(tx.offered(3), None);
            }
        });
    }
}
