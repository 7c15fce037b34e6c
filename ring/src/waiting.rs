// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The words by which a side of a byte stream that waits is told: its bell, and what it sleeps on.
//!
//! Not the queue (`stream`), nor who waits how.
//!
//! INVARIANT of a bell word: `RUNG` means that a token lies in the waiter's descriptor or that the space is made known, or that
//! the waiter is about to see to that; `ARMED` that none does and whoever makes a change must say so; `RINGING` that the
//! other side is about to; `IDLE` that the waiter looks for itself.

use crate::word::{Word32, full_fence};

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

/// What is to be done for a waiter's descriptor before it may be left alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Settle {
    /// Nothing: it shows what is so.
    Done,
    /// Make it show readiness.
    Show,
    /// Make it show none, then say [`Waiting::armed`] and ask again.
    Hide,
    /// The peer is about to make it show readiness: ask again.
    Wait,
}

/// What a change asks of the side that made it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tell {
    /// The waiter's descriptor must be made to show it; then [`Waiting::rang`].
    pub ring: bool,
    /// Sleepers must be woken, on [`Waiting::seq`], which has been moved on.
    pub wake: bool,
}

/// The words of one kind of waiting: for bytes, or for space.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub(crate) bell: Word32,
    pub(crate) sleepers: Word32,
    pub(crate) seq: Word32,
}

impl Waiting {
    /// Whether `tell` has anything to do.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.bell.get_relaxed() == ARMED || self.sleepers.get_relaxed() != 0
    }

    /// After publishing or freeing: who is to be told. SYNC POINT: pairs with `settle` and `sleep_begins`, by the fence
    /// here and there.
    #[inline]
    pub(crate) fn tell(&self) -> Tell {
        Tell {
            ring: self.bell.get_relaxed() == ARMED && self.bell.change(ARMED, RINGING),
            wake: self.sleepers.get_relaxed() != 0 && {
                self.seq.add(1);
                true
            },
        }
    }

    /// In the place of somebody who died between changing something and telling: what it may have left undone. `ready`: whether
    /// there is what is waited for.
    pub(crate) fn retell(&self, ready: bool) -> Tell {
        self.seq.add(1);
        Tell {
            ring: self.bell.get_relaxed() == RINGING || ready && self.bell.change(ARMED, RINGING),
            wake: true,
        }
    }

    /// The waiter looks for itself from now on and need not be told.
    #[inline]
    pub fn enter(&self) {
        if self.bell.get_relaxed() == ARMED {
            self.bell.change(ARMED, IDLE);
        }
    }

    /// `leave` will follow.
    #[inline]
    pub(crate) fn will_leave(&self) {
        self.bell.will_write();
    }

    /// The waiter no longer looks for itself, if it did; whether it did. It looks once more after this.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        if self.bell.get_relaxed() != IDLE {
            return false;
        }
        self.bell.set(ARMED);
        // SYNC POINT: pairs with the fence before `tell`.
        full_fence();
        true
    }

    /// The descriptor shows readiness now.
    #[inline]
    pub fn rung(&self) {
        self.bell.set(RUNG);
    }

    /// The side that was to tell has made the descriptor show readiness; unless the waiter gave up waiting for that and has said
    /// since what it shows: a plain store would hide that the descriptor is to be rung again (loom test
    /// `stream_late_ring_needs_the_comparison`).
    #[inline]
    pub fn rang(&self) {
        self.bell.change(RINGING, RUNG);
    }

    /// The descriptor shows none now.
    #[inline]
    pub fn armed(&self) {
        self.bell.set(ARMED);
    }

    /// Whether the descriptor may show readiness.
    #[inline]
    pub fn shows(&self) -> bool {
        self.bell.get() >= RINGING
    }

    /// What the descriptor needs, given a look at the queue. The caller is the waiting side.
    #[inline]
    pub(crate) fn settle(&self, ready: impl Fn() -> bool) -> Settle {
        loop {
            match self.bell.get() {
                RUNG if ready() => return Settle::Done,
                RUNG => return Settle::Hide,
                RINGING => return if ready() { Settle::Done } else { Settle::Wait },
                ARMED => {
                    full_fence();
                    if !ready() {
                        return Settle::Done;
                    }
                    if self.bell.change(ARMED, RUNG) {
                        return Settle::Show;
                    }
                }
                // IDLE, which only the waiting side ends, or what no side of ours writes.
                _ => self.bell.set(ARMED),
            }
        }
    }

    /// Whether the descriptor, which is to show nothing, may be hidden once more: a peer that was given up waiting for may have
    /// made it show something since (loom test `stream_late_ring_needs_the_second_hiding`). [`Waiting::armed`] follows.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.bell.change(ARMED, RUNG)
    }

    /// The peer never finished ringing: what the descriptor shows is ours to say, if this is true. Make it show none, then say
    /// [`Waiting::armed`] and ask again.
    #[inline]
    pub fn give_up_waiting(&self) -> bool {
        self.bell.change(RINGING, RUNG)
    }

    /// One of the waiting side died, perhaps asleep, or between making the descriptor show something and saying so. Nobody else of
    /// that side waits. If this is true, make it show none, say [`Waiting::armed`] and ask again; if not, the peer is about to
    /// make it show readiness.
    pub fn doubt(&self) -> bool {
        self.sleepers.set(0);
        [RUNG, IDLE, ARMED]
            .into_iter()
            .any(|said| self.bell.change(said, RUNG))
    }

    /// The word a sleeper sleeps on, and its value; the caller looks at the queue once more, then sleeps while the
    /// word has that value, then says `sleep_ends`.
    #[inline]
    pub fn sleep_begins(&self) -> u32 {
        self.sleepers.add(1);
        let seq = self.seq.get();
        full_fence();
        seq
    }

    /// See `sleep_begins`.
    #[inline]
    pub fn sleep_ends(&self) {
        self.sleepers.sub(1);
    }

    /// The word to sleep on.
    #[inline]
    pub fn seq(&self) -> Word32 {
        self.seq
    }

    /// Moves the word on for a reason outside the queue; the caller wakes all sleepers.
    #[inline]
    pub fn disturb(&self) {
        self.seq.add(1);
    }
}

#[cfg(loom)]
impl Waiting {
    /// `sleep_begins` as it must not be.
    pub fn sleep_begins_without_fence(&self) -> u32 {
        self.sleepers.add(1);
        self.seq.get()
    }
}
