// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counter: the numbers of successes and failures, and the values that the application has read.

use crate::state::waiters::WaitState;

/// State of the counter, which the data path changes.
#[derive(Debug)]
pub(crate) struct CntrState {
    value: u64,
    errors: u64,
    /// Values that the application read last.
    seen: (u64, u64),
    /// Values that the application read last through a poll set, or set itself.
    polled: (u64, u64),
    /// Number of polls of the endpoint at the last read.
    polls: u32,
    pub(crate) waits: WaitState,
}

impl CntrState {
    pub(crate) fn new(waits: WaitState) -> CntrState {
        CntrState { value: 0, errors: 0, seen: (0, 0), polled: (0, 0), polls: 0, waits }
    }

    /// Counts `n` successes.
    #[inline]
    pub(crate) fn add(&mut self, n: u64) {
        self.value = self.value.wrapping_add(n);
        self.waits.notify();
    }

    /// Counts `n` failures.
    pub(crate) fn add_err(&mut self, n: u64) {
        self.errors = self.errors.wrapping_add(n);
        self.waits.notify();
    }

    pub(crate) fn set(&mut self, value: u64) {
        self.value = value;
        self.waits.notify();
    }

    pub(crate) fn set_err(&mut self, value: u64) {
        self.errors = value;
        self.waits.notify();
    }

    /// Returns the number of failures.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the value that triggered operations compare with their thresholds: successes, plus
    /// failures if they count.
    pub(crate) fn reached(&self, errors: bool) -> u64 {
        if errors { self.value.saturating_add(self.errors) } else { self.value }
    }

    /// Returns the increments since the last call.
    pub(crate) fn take(&mut self) -> (u64, u64) {
        let (value, errors) = self.seen;
        let (now, failed) = self.look();
        (now.wrapping_sub(value), failed.wrapping_sub(errors))
    }

    /// Returns the values, and records that the application has read them.
    pub(crate) fn look(&mut self) -> (u64, u64) {
        self.seen = (self.value, self.errors);
        self.seen
    }

    /// Returns the values, and records that the application has read them after that number of
    /// polls.
    #[inline]
    pub(crate) fn look_at(&mut self, polls: u32) -> (u64, u64) {
        self.polls = polls;
        self.look()
    }

    /// Whether the values have changed and the endpoint was polled since the last read, so that a
    /// program which only reads values makes progress.
    #[inline]
    pub(crate) fn has_changed_since(&self, polls: u32) -> bool {
        self.polls != polls && self.changed()
    }

    pub(crate) fn changed(&self) -> bool {
        self.seen != (self.value, self.errors)
    }

    /// Whether the values changed since the last call of this function.
    pub(crate) fn poll(&mut self) -> bool {
        std::mem::replace(&mut self.polled, (self.value, self.errors)) != self.polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_changed_until_it_is_read() {
        let mut c = CntrState::new(WaitState::none());
        assert!(!c.changed());
        c.add(2);
        c.add_err(1);
        assert!(c.changed());
        assert_eq!(c.look(), (2, 1));
        assert!(!c.changed());
        c.set(2);
        assert!(!c.changed());
        c.set(7);
        c.set_err(3);
        assert_eq!(c.look(), (7, 3));
        c.set(u64::MAX);
        c.add(1);
        assert_eq!(c.look(), (0, 3));
    }

    #[test]
    fn a_change_counts_for_a_read_only_after_a_poll() {
        let mut c = CntrState::new(WaitState::none());
        assert_eq!(c.look_at(7), (0, 0));
        assert!(!c.has_changed_since(8), "no change");
        c.add(1);
        assert!(!c.has_changed_since(7), "no poll");
        assert!(c.has_changed_since(8));
        assert_eq!(c.look_at(8), (1, 0));
        assert!(!c.has_changed_since(9));
    }
}
