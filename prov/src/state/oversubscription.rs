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
const SLOW_YIELD_NS: u64 = 2_000;
/// Number of slow yields within `WINDOW_NS` nanoseconds that indicates oversubscription.
const SLOW_YIELDS: u32 = 8;
/// Period in nanoseconds in which slow yields are counted. A longer one mistakes rare interrupts
/// for oversubscription.
const WINDOW_NS: u64 = 2_000_000;
/// Nanoseconds of waiting before the first sleep. Replies on their way arrive sooner, and so do
/// collectives under oversubscription.
const SLEEP_AFTER_NS: u64 = 500_000;
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
pub(crate) const SLEEP_NS: u64 = 500_000;
/// Initial number of credits. A sleep that times out costs one, and without credits a reader does
/// not sleep.
const CREDIT: u32 = 512;
/// Maximum number of credits that useful sleeps can earn.
const CREDIT_MAX: u32 = 1 << 14;
/// Number of credits earned by a sleep that an event ended.
const EARNED: u32 = 64;
/// Minimum number of credits at the start of each wait, so that sleeping is tried again.
const CREDIT_MIN: u32 = 16;

/// Outcome of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepEnd {
    /// An event for the reader.
    Event,
    /// The timeout, with an empty queue.
    Timeout,
    /// Neither, or the sleep never began. It does not predict the next one.
    Other,
}

/// Observations of the readers of a queue since they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// Start of the wait in nanoseconds; 0 before the first yield.
    since: u64,
    /// End of the last yield or sleep in nanoseconds.
    last: u64,
    /// Duration in nanoseconds of the longest slow yield.
    longest: u64,
    /// Number of slow yields in the current period.
    slow_yields: u32,
    /// Time in nanoseconds at which the first of them ended.
    window_start: u64,
    oversubscribed: bool,
    credit: u32,
}

impl Detector {
    pub(crate) fn new() -> Detector {
        Detector { credit: CREDIT, ..Detector::default() }
    }

    /// Begins a new wait, after a read that returned a completion.
    pub(crate) fn new_wait(&mut self) {
        self.reset();
        self.credit = self.credit.max(CREDIT_MIN);
    }

    /// Discards the observations, since the program did other work between its reads.
    pub(crate) fn reset(&mut self) {
        *self = Detector { credit: self.credit, ..Detector::default() };
    }

    /// Records a yield between `begin` and `end`. Returns whether to sleep now.
    pub(crate) fn note_yield(&mut self, begin: u64, end: u64) -> bool {
        let between = begin.saturating_sub(self.last);
        if self.since == 0 || between > WORK_NS + OWN_YIELDS * self.longest {
            self.reset();
            self.since = begin;
        }
        self.last = end;
        let took = end.saturating_sub(begin);
        if took < SLOW_YIELD_NS {
            return false;
        }
        self.longest = took.clamp(self.longest, LONGEST_NS);
        if self.slow_yields == 0 || end.saturating_sub(self.window_start) > WINDOW_NS {
            (self.slow_yields, self.window_start) = (0, end);
        }
        self.slow_yields = self.slow_yields.saturating_add(1);
        self.oversubscribed |= self.slow_yields >= SLOW_YIELDS;
        self.oversubscribed && end.saturating_sub(self.since) >= SLEEP_AFTER_NS && self.credit > 0
    }

    /// Records the end of a sleep at `now`.
    pub(crate) fn note_sleep(&mut self, ended: SleepEnd, now: u64) {
        self.last = now;
        self.credit = match ended {
            SleepEnd::Event => (self.credit + EARNED).min(CREDIT_MAX),
            SleepEnd::Timeout => self.credit.saturating_sub(1),
            SleepEnd::Other => self.credit,
        };
    }

    /// Disables sleeping for this wait, where no wait object is available or a sleep would delay
    /// other work.
    pub(crate) fn disable(&mut self) {
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// Simulates a wait of yields that take `took` with pauses of `between`. Returns the time until
    /// the first sleep.
    fn wait(detector: &mut Detector, took: u64, between: u64) -> Option<u64> {
        let mut now = START;
        detector.new_wait();
        for _ in 0..10_000 {
            if detector.note_yield(now, now + took) {
                return Some(now + took - START);
            }
            now += took + between;
        }
        None
    }

    #[test]
    fn sleeps_need_oversubscription_and_a_long_wait() {
        let mut detector = Detector::new();
        assert_eq!(wait(&mut detector, SLOW_YIELD_NS - 1, 1_000), None);
        assert!(wait(&mut detector, SLOW_YIELD_NS, 1_000).unwrap() >= SLEEP_AFTER_NS);
        // An MPI with yields of its own.
        assert!(wait(&mut detector, 12_000, 30_000).unwrap() >= SLEEP_AFTER_NS);
        // A single process that uses whole time slices is not oversubscription.
        assert_eq!(wait(&mut detector, 3_000_000, 1_000), None);
    }

    #[test]
    fn rare_interrupts_are_no_oversubscription() {
        let mut detector = Detector::new();
        let mut now = START;
        for i in 0..1_000_000u64 {
            let took = if i % 2_000 == 0 { 5_000 } else { 300 };
            assert!(!detector.note_yield(now, now + took), "{i}");
            now += took + 200;
        }
    }

    #[test]
    fn a_program_that_works_between_reads_does_not_sleep() {
        let mut detector = Detector::new();
        assert_eq!(wait(&mut detector, 12_000, 100_000), None);
        assert_eq!(wait(&mut detector, SLOW_YIELD_NS, 20_000), None);
        assert!(wait(&mut detector, 12_000, 1_000).is_some());
        detector.reset();
        assert!(!detector.note_yield(START, START + 12_000));
    }

    #[test]
    fn sleeps_without_an_event_use_up_the_credit() {
        let mut detector = Detector::new();
        let mut now = START + wait(&mut detector, 12_000, 1_000).unwrap();
        let mut sleeps = 0;
        while detector.note_yield(now, now + 12_000) {
            detector.note_sleep(SleepEnd::Other, now + 12_000);
            assert!(detector.note_yield(now + 12_000, now + 24_000));
            detector.note_sleep(SleepEnd::Timeout, now + 524_000);
            now += 525_000;
            sleeps += 1;
        }
        assert_eq!(sleeps, CREDIT);
        // A completion was read after all.
        assert!(wait(&mut detector, 12_000, 1_000).is_some());
        assert_eq!(detector.credit, CREDIT_MIN);
        detector.note_sleep(SleepEnd::Event, 0);
        assert_eq!(detector.credit, CREDIT_MIN + EARNED);
        for _ in 0..1_000 {
            detector.note_sleep(SleepEnd::Event, 0);
        }
        assert_eq!(detector.credit, CREDIT_MAX);
        detector.disable();
        assert!(!detector.note_yield(now, now + 12_000));
    }
}
