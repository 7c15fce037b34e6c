// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Words by which a waiting side of a byte stream requests its wake-up: a bell word for its
//! descriptor, and a futex word for its sleepers.
//!
//! Not about: the queue (`stream`), and the way a side waits.
//!
//! INVARIANT of a bell word. `IDLE`: the waiter polls the queue and needs no signal. `ARMED`: the
//! descriptor shows no readiness, and the side that changes the queue must signal it. `RINGING`:
//! that side is about to signal it. `RUNG`: the descriptor shows readiness, or the waiter is about
//! to make it do so.

use crate::shared_word::{SharedU32, full_fence};

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

/// Action on a waiter's descriptor before the waiter may rely on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Settle {
    /// None: the descriptor shows the correct state.
    Done,
    /// Make the descriptor show readiness.
    Show,
    /// Clear the descriptor, call [`Waiting::armed`], and repeat the query.
    Hide,
    /// Repeat the query: the peer is about to signal the descriptor.
    Wait,
}

/// Wake-ups owed by the side that made a change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tell {
    /// The waiter's descriptor must be signalled; then call [`Waiting::rang`].
    pub ring: bool,
    /// Sleepers on [`Waiting::seq`] must be woken; the word has been incremented.
    pub wake: bool,
}

/// Words of one kind of waiting: for bytes, or for space.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub(crate) bell: SharedU32,
    pub(crate) sleepers: SharedU32,
    pub(crate) seq: SharedU32,
}

impl Waiting {
    /// Whether `tell` would find a waiter.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.bell.get_relaxed() == ARMED || self.sleepers.get_relaxed() != 0
    }

    /// Returns the wake-ups owed after publishing or freeing. SYNC POINT: pairs with `settle` and
    /// `sleep_begins`, by the full fences on both sides.
    #[inline]
    pub(crate) fn tell(&self) -> Tell {
        Tell {
            ring: self.bell.get_relaxed() == ARMED && self.bell.compare_exchange(ARMED, RINGING),
            wake: self.sleepers.get_relaxed() != 0 && {
                self.seq.add(1);
                true
            },
        }
    }

    /// Returns the wake-ups that a process may have left undone when it died between a change and
    /// its wake-ups. `ready`: whether the awaited condition holds.
    pub(crate) fn retell(&self, ready: bool) -> Tell {
        self.seq.add(1);
        Tell {
            ring: self.bell.get_relaxed() == RINGING || ready && self.bell.compare_exchange(ARMED, RINGING),
            wake: true,
        }
    }

    /// Notes that the waiter polls by itself from now on and needs no wake-up.
    #[inline]
    pub fn enter(&self) {
        if self.bell.get_relaxed() == ARMED {
            self.bell.compare_exchange(ARMED, IDLE);
        }
    }

    /// Prefetches the bell word for a `leave` that follows.
    #[inline]
    pub(crate) fn will_leave(&self) {
        self.bell.prefetch_for_write();
    }

    /// Arms the bell if the waiter polled by itself; returns whether it did. The waiter then checks
    /// the queue once more.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        if self.bell.get_relaxed() != IDLE {
            return false;
        }
        self.bell.set(ARMED);
        // SYNC POINT: pairs with the fence before `tell` (store buffer litmus test).
        full_fence();
        true
    }

    /// Notes that the descriptor shows readiness now.
    #[inline]
    pub fn rung(&self) {
        self.bell.set(RUNG);
    }

    /// Notes that the side that owed the signal has sent it, unless the waiter gave up waiting and
    /// has set the bell word since. A plain store would lose the waiter's next request (loom test
    /// `stream_late_ring_needs_the_comparison`).
    #[inline]
    pub fn rang(&self) {
        self.bell.compare_exchange(RINGING, RUNG);
    }

    /// Notes that the descriptor shows no readiness now.
    #[inline]
    pub fn armed(&self) {
        self.bell.set(ARMED);
    }

    /// Whether the descriptor may show readiness.
    #[inline]
    pub fn shows(&self) -> bool {
        self.bell.get() >= RINGING
    }

    /// Returns the action that the descriptor needs, given the state of the queue. Called by the
    /// waiting side.
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
                    if self.bell.compare_exchange(ARMED, RUNG) {
                        return Settle::Show;
                    }
                }
                // IDLE, which only the waiting side ends, or a value that no correct side writes.
                _ => self.bell.set(ARMED),
            }
        }
    }

    /// Whether the descriptor, which should show nothing, may be cleared once more: after a wait
    /// was given up, the peer may still have signalled it (loom test
    /// `stream_late_ring_needs_the_second_hiding`). [`Waiting::armed`] follows.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.bell.compare_exchange(ARMED, RUNG)
    }

    /// Takes over the bell from a peer that never finished signalling; returns whether it
    /// succeeded. If true, clear the descriptor, call [`Waiting::armed`], and repeat the query.
    #[inline]
    pub fn give_up_waiting(&self) -> bool {
        self.bell.compare_exchange(RINGING, RUNG)
    }

    /// Takes over the bell after a process of the waiting side died, perhaps asleep, or between
    /// signalling the descriptor and recording it. No other process of that side may wait. If true,
    /// clear the descriptor, call [`Waiting::armed`], and repeat the query. If false, the peer is
    /// about to signal the descriptor.
    pub fn doubt(&self) -> bool {
        self.sleepers.set(0);
        [RUNG, IDLE, ARMED]
            .into_iter()
            .any(|said| self.bell.compare_exchange(said, RUNG))
    }

    /// Registers a sleeper; returns the value of the word to sleep on. The caller checks the queue
    /// once more, sleeps while the word has that value, then calls `sleep_ends`.
    #[inline]
    pub fn sleep_begins(&self) -> u32 {
        self.sleepers.add(1);
        let seq = self.seq.get();
        full_fence();
        seq
    }

    /// Removes a sleeper registered by `sleep_begins`.
    #[inline]
    pub fn sleep_ends(&self) {
        self.sleepers.sub(1);
    }

    /// Returns the word to sleep on.
    #[inline]
    pub fn seq(&self) -> SharedU32 {
        self.seq
    }

    /// Increments the word for a reason outside the queue; the caller wakes all sleepers.
    #[inline]
    pub fn disturb(&self) {
        self.seq.add(1);
    }
}

#[cfg(loom)]
impl Waiting {
    /// Variant of `sleep_begins` without its fence, for a loom model that must fail.
    pub fn sleep_begins_without_fence(&self) -> u32 {
        self.sleepers.add(1);
        self.seq.get()
    }
}
