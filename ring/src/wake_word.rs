// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Words by which a waiting side of a byte stream requests its wake-up: a wake-up word for its
//! descriptor, and a futex word for its sleepers.
//!
//! Not about: the queue (`stream`), and the way a side waits.
//!
//! INVARIANT of a wake-up word. `IDLE`: the waiter polls the queue and needs no signal. `ARMED`:
//! the descriptor shows no readiness, and the side that changes the queue must signal it.
//! `RINGING`: that side is about to signal it. `RUNG`: the descriptor shows readiness, or the
//! waiter is about to make it do so.

use crate::shared_word::{SharedU32, full_fence};

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

/// Action on a waiter's descriptor before the waiter may rely on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FdAction {
    /// None: the descriptor shows the correct state.
    Done,
    /// Make the descriptor show readiness.
    Signal,
    /// Clear the descriptor, call [`WakeWords::armed`], and repeat the query.
    Clear,
    /// Repeat the query: the peer is about to signal the descriptor.
    Wait,
}

/// Wake-ups owed by the side that made a change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Wakeups {
    /// The waiter's descriptor must be signalled; then call [`WakeWords::complete_signal`].
    pub ring: bool,
    /// Sleepers on [`WakeWords::seq`] must be woken; the word has been incremented.
    pub wake: bool,
}

/// Words of one kind of waiting: for bytes, or for space.
#[derive(Clone, Copy, Debug)]
pub struct WakeWords {
    pub(crate) state: SharedU32,
    pub(crate) sleepers: SharedU32,
    pub(crate) seq: SharedU32,
}

impl WakeWords {
    /// Whether `prepare_wake` would find a waiter.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.state.get_relaxed() == ARMED || self.sleepers.get_relaxed() != 0
    }

    /// Returns the wake-ups owed after publishing or freeing. SYNC POINT: pairs with
    /// `next_fd_action` and `sleep_begins`, by the full fences on both sides.
    #[inline]
    pub(crate) fn prepare_wake(&self) -> Wakeups {
        Wakeups {
            ring: self.state.get_relaxed() == ARMED && self.state.compare_exchange(ARMED, RINGING),
            wake: self.sleepers.get_relaxed() != 0 && {
                self.seq.add(1);
                true
            },
        }
    }

    /// Returns the wake-ups that a process may have left undone when it died between a change and
    /// its wake-ups. `ready`: whether the awaited condition holds.
    pub(crate) fn repeat_wake(&self, ready: bool) -> Wakeups {
        self.seq.add(1);
        Wakeups {
            ring: self.state.get_relaxed() == RINGING
                || ready && self.state.compare_exchange(ARMED, RINGING),
            wake: true,
        }
    }

    /// Notes that the waiter polls by itself from now on and needs no wake-up.
    #[inline]
    pub fn start_polling(&self) {
        if self.state.get_relaxed() == ARMED {
            self.state.compare_exchange(ARMED, IDLE);
        }
    }

    /// Prefetches the wake-up word for a `stop_polling` that follows.
    #[inline]
    pub(crate) fn prefetch_wake_word(&self) {
        self.state.prefetch_for_write();
    }

    /// Arms the wake-up word if the waiter polled by itself; returns whether it did. The waiter
    /// then checks the queue once more.
    #[inline]
    pub(crate) fn stop_polling(&self) -> bool {
        if self.state.get_relaxed() != IDLE {
            return false;
        }
        self.state.set(ARMED);
        // SYNC POINT: pairs with the fence before `prepare_wake` (store buffer litmus test).
        full_fence();
        true
    }

    /// Notes that the descriptor shows readiness now.
    #[inline]
    pub fn rung(&self) {
        self.state.set(RUNG);
    }

    /// Notes that the side that owed the signal has sent it, unless the waiter gave up waiting and
    /// has set the wake-up word since. A plain store would lose the waiter's next request (loom
    /// test `stream_late_ring_needs_the_comparison`).
    #[inline]
    pub fn complete_signal(&self) {
        self.state.compare_exchange(RINGING, RUNG);
    }

    /// Notes that the descriptor shows no readiness now.
    #[inline]
    pub fn armed(&self) {
        self.state.set(ARMED);
    }

    /// Whether the descriptor may show readiness.
    #[inline]
    pub fn is_signalled(&self) -> bool {
        self.state.get() >= RINGING
    }

    /// Returns the action that the descriptor needs, given the state of the queue. Called by the
    /// waiting side.
    #[inline]
    pub(crate) fn next_fd_action(&self, ready: impl Fn() -> bool) -> FdAction {
        loop {
            match self.state.get() {
                RUNG if ready() => return FdAction::Done,
                RUNG => return FdAction::Clear,
                RINGING => {
                    return if ready() { FdAction::Done } else { FdAction::Wait };
                }
                ARMED => {
                    full_fence();
                    if !ready() {
                        return FdAction::Done;
                    }
                    if self.state.compare_exchange(ARMED, RUNG) {
                        return FdAction::Signal;
                    }
                }
                // IDLE, which only the waiting side ends, or a value that no correct side writes.
                _ => self.state.set(ARMED),
            }
        }
    }

    /// Whether the descriptor, which should show nothing, may be cleared once more: after a wait
    /// was given up, the peer may still have signalled it (loom test
    /// `stream_late_ring_needs_the_second_hiding`). [`WakeWords::armed`] follows.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.state.compare_exchange(ARMED, RUNG)
    }

    /// Takes over the wake-up word from a peer that never finished signalling; returns whether it
    /// succeeded. If true, clear the descriptor, call [`WakeWords::armed`], and repeat the query.
    #[inline]
    pub fn give_up_waiting(&self) -> bool {
        self.state.compare_exchange(RINGING, RUNG)
    }

    /// Takes over the wake-up word after a process of the waiting side died, perhaps asleep, or
    /// between signalling the descriptor and recording it. No other process of that side may wait.
    /// If true, clear the descriptor, call [`WakeWords::armed`], and repeat the query. If false,
    /// the peer is about to signal the descriptor.
    pub fn reset_after_crash(&self) -> bool {
        self.sleepers.set(0);
        [RUNG, IDLE, ARMED].into_iter().any(|from| self.state.compare_exchange(from, RUNG))
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
    pub fn advance_seq(&self) {
        self.seq.add(1);
    }
}

#[cfg(loom)]
impl WakeWords {
    /// Variant of `sleep_begins` without its fence, for a loom model that must fail.
    pub fn sleep_begins_without_fence(&self) -> u32 {
        self.sleepers.add(1);
        self.seq.get()
    }
}
