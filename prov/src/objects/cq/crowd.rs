// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Detection of oversubscription: whether an idle reader of a completion queue should sleep instead
//! of yielding.
//!
//! With more processes than processors, each time slice of a waiting process delays one that has
//! work. A read must not block, so the sleep (`wait`) is short and ends with the first message.
//!
//! A reader sleeps only where yields are slow: other processes run then, and a yield may take as
//! long as the sleep. Sleeps must also prove useful. A program that waits for an event elsewhere
//! notices it only after the sleep.

/// Duration in nanoseconds above which a yield counts as slow: another process ran, or the kernel
/// had work.
const TURN_NS: u64 = 2_000;
/// Number of slow yields within `TURNS_NS` nanoseconds that indicates oversubscription.
const TURNS: u32 = 8;
/// Period in nanoseconds in which slow yields are counted. A longer one mistakes rare interrupts
/// for oversubscription.
const TURNS_NS: u64 = 2_000_000;
/// Nanoseconds of waiting before the first sleep. Replies on their way arrive sooner, and so do
/// collectives under oversubscription.
const PATIENCE_NS: u64 = 500_000;
/// Nanoseconds that a program may work between two reads and still count as waiting.
const WORK_NS: u64 = 3_000;
/// Number of longest yields that may pass between two reads, besides `WORK_NS`, since the program
/// may yield as well. A longer pause restarts the detection.
const OWN_YIELDS: u64 = 4;
/// Maximum in nanoseconds of the longest yield in that sum. Without it one long time slice would
/// permit pauses of many milliseconds.
const LONGEST_NS: u64 = 100_000;
/// Maximum duration of a sleep in nanoseconds. A longer one delays a program that waits for another
/// event.
pub(super) const NAP_NS: u64 = 500_000;
/// Initial number of credits. A sleep that times out costs one, and without credits a reader does
/// not sleep.
const CREDIT: u32 = 512;
/// Maximum number of credits that useful sleeps can earn.
const MOST_CREDIT: u32 = 1 << 14;
/// Number of credits earned by a sleep that an event ended.
const EARNED: u32 = 64;
/// Minimum number of credits at the start of each wait, so that sleeping is tried again.
const TRY: u32 = 16;

/// Outcome of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// An event for the reader.
    ByNews,
    /// The timeout, with an empty queue.
    ByTime,
    /// Neither, or the sleep never began. It does not predict the next one.
    Otherwise,
}

/// Observations of the readers of a queue since they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Start of the wait in nanoseconds; 0 before the first yield.
    since: u64,
    /// End of the last yield or sleep in nanoseconds.
    last: u64,
    /// Duration in nanoseconds of the longest slow yield.
    longest: u64,
    /// Number of slow yields in the current period.
    turns: u32,
    /// Time in nanoseconds at which the first of them ended.
    first_turn: u64,
    is_one: bool,
    credit: u32,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd { credit: CREDIT, ..Crowd::default() }
    }

    /// Begins a new wait, after a read that returned a completion.
    pub(crate) fn new_wait(&mut self) {
        self.start_over();
        self.credit = self.credit.max(TRY);
    }

    /// Discards the observations, since the program did other work between its reads.
    pub(super) fn start_over(&mut self) {
        *self = Crowd { credit: self.credit, ..Crowd::default() };
    }

    /// Records a yield between `begin` and `end`. Returns whether to sleep now.
    pub(super) fn yielded(&mut self, begin: u64, end: u64) -> bool {
        let between = begin.saturating_sub(self.last);
        if self.since == 0 || between > WORK_NS + OWN_YIELDS * self.longest {
            self.start_over();
            self.since = begin;
        }
        self.last = end;
        let took = end.saturating_sub(begin);
        if took < TURN_NS {
            return false;
        }
        self.longest = took.clamp(self.longest, LONGEST_NS);
        if self.turns == 0 || end.saturating_sub(self.first_turn) > TURNS_NS {
            (self.turns, self.first_turn) = (0, end);
        }
        self.turns = self.turns.saturating_add(1);
        self.is_one |= self.turns >= TURNS;
        self.is_one && end.saturating_sub(self.since) >= PATIENCE_NS && self.credit > 0
    }

    /// Records the end of a sleep at `now`.
    pub(super) fn napped(&mut self, ended: Ended, now: u64) {
        self.last = now;
        self.credit = match ended {
            Ended::ByNews => (self.credit + EARNED).min(MOST_CREDIT),
            Ended::ByTime => self.credit.saturating_sub(1),
            Ended::Otherwise => self.credit,
        };
    }

    /// Disables sleeping for this wait, where no wait object is available or a sleep would delay
    /// other work.
    pub(super) fn give_up(&mut self) {
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// Simulates a wait of yields that take `took` with pauses of `between`. Returns the time until
    /// the first sleep.
    fn wait(crowd: &mut Crowd, took: u64, between: u64) -> Option<u64> {
        let mut now = START;
        crowd.new_wait();
        for _ in 0..10_000 {
            if crowd.yielded(now, now + took) {
                return Some(now + took - START);
            }
            now += took + between;
        }
        None
    }

    #[test]
    fn naps_come_late_and_in_a_crowd_only() {
        let mut crowd = Crowd::new();
        assert_eq!(wait(&mut crowd, TURN_NS - 1, 1_000), None);
        assert!(wait(&mut crowd, TURN_NS, 1_000).unwrap() >= PATIENCE_NS);
        // An MPI with yields of its own.
        assert!(wait(&mut crowd, 12_000, 30_000).unwrap() >= PATIENCE_NS);
        // A single process that uses whole time slices is not oversubscription.
        assert_eq!(wait(&mut crowd, 3_000_000, 1_000), None);
    }

    #[test]
    fn interrupts_now_and_then_make_no_crowd() {
        let mut crowd = Crowd::new();
        let mut now = START;
        for i in 0..1_000_000u64 {
            let took = if i % 2_000 == 0 { 5_000 } else { 300 };
            assert!(!crowd.yielded(now, now + took), "{i}");
            now += took + 200;
        }
    }

    #[test]
    fn who_does_something_between_the_reads_does_not_nap() {
        let mut crowd = Crowd::new();
        assert_eq!(wait(&mut crowd, 12_000, 100_000), None);
        assert_eq!(wait(&mut crowd, TURN_NS, 20_000), None);
        assert!(wait(&mut crowd, 12_000, 1_000).is_some());
        crowd.start_over();
        assert!(!crowd.yielded(START, START + 12_000));
    }

    #[test]
    fn who_never_finds_anything_after_a_nap_stops_napping() {
        let mut crowd = Crowd::new();
        let mut now = START + wait(&mut crowd, 12_000, 1_000).unwrap();
        let mut naps = 0;
        while crowd.yielded(now, now + 12_000) {
            crowd.napped(Ended::Otherwise, now + 12_000);
            assert!(crowd.yielded(now + 12_000, now + 24_000));
            crowd.napped(Ended::ByTime, now + 524_000);
            now += 525_000;
            naps += 1;
        }
        assert_eq!(naps, CREDIT);
        // A completion was read after all.
        assert!(wait(&mut crowd, 12_000, 1_000).is_some());
        assert_eq!(crowd.credit, TRY);
        crowd.napped(Ended::ByNews, 0);
        assert_eq!(crowd.credit, TRY + EARNED);
        for _ in 0..1_000 {
            crowd.napped(Ended::ByNews, 0);
        }
        assert_eq!(crowd.credit, MOST_CREDIT);
        crowd.give_up();
        assert!(!crowd.yielded(now, now + 12_000));
    }
}
