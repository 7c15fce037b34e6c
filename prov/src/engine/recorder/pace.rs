// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Pace of an endpoint, by which its trace decides how much it records.

/// Longest average time in nanoseconds of a poll or message of a busy endpoint, and of sends that
/// share a time. With more, times of events become less exact; with fewer, a trace costs an
/// endpoint with small messages more.
pub(super) const BUSY_NS: u64 = 250;
/// Allowance for interrupts in each tick, in nanoseconds. With fewer, each interrupt makes a trace
/// dearer for some time; with more, longer computations are not noticed.
const PAUSE_NS: u64 = 20_000;
/// Number of consecutive ticks within the limit after which an endpoint is busy. With fewer, a
/// program that computes between its messages loses posts of receives from its trace.
const BUSY_TICKS: u32 = 32;
/// Number of them behind a late tick that follows [`LONG_TICKS`] others: an interrupt rather than a
/// program that has begun to compute. With more, a trace costs more on hosts with
/// frequent interrupts; with fewer, less is recorded of what follows a pause.
const AGAIN_TICKS: u32 = 4;
/// Number of consecutive ticks within the limit after which one late tick counts as an interrupt.
/// With fewer, a program that computes now and then is busy sooner again.
const LONG_TICKS: u32 = 256;

/// Numbers of polls and messages of one endpoint so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) polls: u32,
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl Done {
    /// Returns the number of polls and messages since `before`.
    fn since(self, before: Done) -> u64 {
        u64::from(self.polls.wrapping_sub(before.polls))
            .saturating_add(self.received.saturating_sub(before.received))
            .saturating_add(self.sent.saturating_sub(before.sent))
    }
}

/// Pace of the polls and messages of one endpoint, measured at its ticks.
#[derive(Debug, Default)]
pub(super) struct Pace {
    done: Done,
    busy_ticks: u32,
}

impl Pace {
    /// Notes a tick, `time` nanoseconds after the one before. Returns whether the program has done
    /// little else than to exchange messages at all the last ticks.
    pub(super) fn tick(&mut self, time: u64, done: Done) -> bool {
        let count = done.since(core::mem::replace(&mut self.done, done));
        let is_busy = time <= BUSY_NS.saturating_mul(count).saturating_add(PAUSE_NS);
        self.busy_ticks = match (is_busy, self.busy_ticks >= LONG_TICKS) {
            (true, _) => self.busy_ticks.saturating_add(1),
            (false, true) => BUSY_TICKS - AGAIN_TICKS,
            (false, false) => 0,
        };
        self.busy_ticks >= BUSY_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_busy_while_no_tick_is_late() {
        let limit = 8 * BUSY_NS + PAUSE_NS;
        let mut pace = Pace::default();
        let mut done = Done { polls: u32::MAX - 100, ..Done::default() };
        let mut busy = |time, messages: u64| {
            done.polls = done.polls.wrapping_add(8);
            done.received += messages / 2;
            done.sent += messages - messages / 2;
            pace.tick(time, done)
        };
        let steady = (0..2 * BUSY_TICKS).filter(|_| busy(limit, 0)).count();
        assert_eq!(steady, BUSY_TICKS as usize + 1);
        assert!(busy(limit + 4 * BUSY_NS, 4) && !busy(limit + 4 * BUSY_NS, 3));
        assert_eq!((0..BUSY_TICKS).filter(|_| busy(0, 0)).count(), 1);
    }

    #[test]
    fn one_late_tick_of_an_endpoint_that_was_long_busy_counts_as_an_interrupt() {
        let mut pace = Pace::default();
        let mut busy = |late| pace.tick(if late { 1_000_000 } else { 0 }, Done::default());
        let steady = (0..LONG_TICKS).filter(|_| busy(false)).count();
        assert_eq!(steady, (LONG_TICKS - BUSY_TICKS) as usize + 1);
        assert!(!busy(true));
        assert_eq!((0..AGAIN_TICKS).filter(|_| busy(false)).count(), 1);
        // The second one follows too soon.
        assert!(!busy(true));
        assert_eq!((0..BUSY_TICKS).filter(|_| busy(false)).count(), 1);
    }
}
