// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Detection of oversubscription: when an idle reader yields the processor, and whether it should
//! sleep instead.
//!
//! A wait begins with some microseconds of polls without a yield. Then a yield that returns at once
//! shows that no other process wants the processor. It doubles the number of empty polls until the
//! next yield, up to a maximum. A longer yield shows the turn of another process. From then on each
//! empty poll yields, until a yield returns at once, or, under oversubscription, until the wait
//! ends. So a program that computes between polls does not pay for yields that are of no use.
//!
//! With more processes than processors, each time slice of a waiting process delays one that has
//! work. A read must not block, so the sleep (`wait`) is short and ends with the first message.
//!
//! A reader sleeps only where yields are slow: other processes run then, and a yield may take as
//! long as the sleep. Sleeps must also prove useful. A program that waits for an event elsewhere
//! notices it only after the sleep.

/// Number of empty polls with which each wait begins, before it reads the clock. With fewer, a
/// short wait pays for the clock. With more, a program that yields by itself between its polls
/// notices oversubscription late.
const POLLS_BEFORE_CLOCK: u32 = 24;
/// Nanoseconds for which a wait polls before the first yield. They are long enough to catch a
/// message on its way, and short enough for ranks that share a core.
const SPIN_NS: u64 = 25_000;
/// Number of empty polls after which a wait yields, whatever the clock shows.
const SPIN_POLLS_MAX: u32 = 1 << 14;
/// Maximum number of empty polls from one yield to the next. With fewer, yields of no use cost a
/// program that polls between its computations more than a nanosecond a poll. With more, a process
/// that becomes runnable waits longer for its turn.
const YIELD_GAP_MAX: u32 = 512;
/// Time in nanoseconds between two yields. Above it, the number of polls between them no longer
/// grows. A program may yield by itself between two polls, as MPICH does. With a longer time, such
/// a program notices oversubscription late.
const YIELD_INTERVAL_NS: u64 = 8_000;
const YIELD_INTERVAL_MAX_NS: u64 = 2 * YIELD_INTERVAL_NS;
/// Duration in nanoseconds from which a yield counts as the turn of another process. A shorter one
/// returned at once, without a switch to another process and back.
const TURN_NS: u64 = 1_000;
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
/// Nanoseconds that a program may work between two polls and still count as waiting.
const WORK_NS: u64 = 3_000;
/// Number of longest yields that may pass between two yields, besides `WORK_NS`, since the program
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

/// Observations of the readers of a queue or counter since they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// Value of `empty` at which the next yield is due, or at which the wait begins.
    yield_at: u32,
    /// Number of empty polls since the last event or, plus a constant, since the last yield.
    empty: u32,
    /// Number of empty polls from one yield to the next.
    gap: u32,
    /// First reading of the clock in this wait, in nanoseconds; 0 before.
    spin_since: u64,
    /// Whether this wait has polled for long enough to yield.
    yields: bool,
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
        let yield_at = POLLS_BEFORE_CLOCK;
        Detector { credit: CREDIT, gap: 1, yield_at, ..Detector::default() }
    }

    /// Counts an empty poll. Returns whether to read the clock for [`Detector::is_yield_due`].
    #[inline(always)]
    pub(crate) fn note_empty(&mut self) -> bool {
        self.empty = self.empty.wrapping_add(1);
        if self.empty < self.yield_at {
            return false;
        }
        if self.empty == POLLS_BEFORE_CLOCK {
            self.begin_wait();
        }
        true
    }

    /// Returns whether to yield at `now`. If not, the clock is read again after half as many
    /// polls as there were so far.
    pub(crate) fn is_yield_due(&mut self, now: u64) -> bool {
        if self.spin_since == 0 {
            self.spin_since = now;
        }
        self.yields |= now.saturating_sub(self.spin_since) >= SPIN_NS;
        self.yields |= self.empty >= SPIN_POLLS_MAX;
        if !self.yields {
            self.yield_at = self.empty.saturating_add(self.empty / 2);
        }
        self.yields
    }

    /// Notes an event, which ends the wait.
    #[inline(always)]
    pub(crate) fn note_event(&mut self) {
        (self.yield_at, self.empty) = (POLLS_BEFORE_CLOCK, 0);
    }

    /// Returns the number of empty polls since the last event.
    #[cfg(test)]
    pub(crate) fn empty_polls(&self) -> u32 {
        self.empty
    }

    #[cold]
    fn begin_wait(&mut self) {
        self.reset();
        (self.spin_since, self.yields) = (0, false);
        self.credit = self.credit.max(CREDIT_MIN);
    }

    /// Discards the observations, since the program did other work between its reads.
    pub(crate) fn reset(&mut self) {
        let Detector { empty, yield_at, gap, spin_since, yields, credit, .. } = *self;
        *self =
            Detector { empty, yield_at, gap, spin_since, yields, credit, ..Detector::default() };
    }

    /// Records a yield between `begin` and `end`. Returns whether to sleep now.
    pub(crate) fn note_yield(&mut self, begin: u64, end: u64) -> bool {
        let first = self.since == 0;
        let between = if first { 0 } else { begin.saturating_sub(self.last) };
        if first || between > u64::from(self.gap) * WORK_NS + OWN_YIELDS * self.longest {
            self.reset();
            self.since = begin;
        }
        self.last = end;
        let took = end.saturating_sub(begin);
        self.gap = if took >= TURN_NS || self.oversubscribed {
            1
        } else if between < YIELD_INTERVAL_NS {
            (2 * self.gap).min(YIELD_GAP_MAX)
        } else if between <= YIELD_INTERVAL_MAX_NS {
            self.gap
        } else {
            (self.gap / 2).max(1)
        };
        self.empty = POLLS_BEFORE_CLOCK + 1;
        self.yield_at = self.empty + self.gap;
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
        self.yield_at = self.empty;
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

    /// Program that polls: each empty poll takes `poll` nanoseconds, each yield `took`.
    struct Program {
        detector: Detector,
        now: u64,
        poll: u64,
    }

    impl Program {
        fn new(poll: u64) -> Program {
            Program { detector: Detector::new(), now: 1_000_000, poll }
        }

        /// Polls until a yield is due. Returns the number of polls.
        fn poll_until_yield(&mut self) -> u32 {
            let mut polls = 1;
            while !(self.detector.note_empty() && self.detector.is_yield_due(self.now)) {
                self.now += self.poll;
                polls += 1;
            }
            self.now += self.poll;
            polls
        }

        fn yield_cpu(&mut self, took: u64) -> bool {
            let begin = self.now;
            self.now += took;
            self.detector.note_yield(begin, self.now)
        }

        /// Begins a wait in which yields take `took`. Returns the time from the first yield to the
        /// first sleep.
        fn wait(&mut self, took: u64) -> Option<u64> {
            self.detector.note_event();
            self.poll_until_yield();
            let begin = self.now;
            for _ in 0..10_000 {
                if self.yield_cpu(took) {
                    return Some(self.now - begin);
                }
                self.poll_until_yield();
            }
            None
        }
    }

    #[test]
    fn yields_that_return_at_once_become_rare() {
        let mut program = Program::new(10);
        assert!(u64::from(program.poll_until_yield()) * program.poll >= SPIN_NS);
        let mut gaps = Vec::new();
        for _ in 0..12 {
            assert!(!program.yield_cpu(300));
            gaps.push(program.poll_until_yield());
        }
        assert_eq!(gaps, [2, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512, 512]);
        // The next wait polls as long, and then yields as rarely.
        program.detector.note_event();
        assert!(u64::from(program.poll_until_yield()) * program.poll >= SPIN_NS);
        program.yield_cpu(300);
        assert_eq!(program.poll_until_yield(), YIELD_GAP_MAX);
    }

    #[test]
    fn slow_polls_yield_after_a_bounded_time() {
        let mut program = Program::new(1_000);
        program.poll_until_yield();
        for _ in 0..100 {
            assert!(!program.yield_cpu(300));
            let begin = program.now;
            program.poll_until_yield();
            assert!(program.now - begin <= YIELD_INTERVAL_MAX_NS);
        }
        // The program begins to yield by itself.
        program.poll = 12_000;
        for _ in 0..8 {
            program.yield_cpu(300);
            program.poll_until_yield();
        }
        program.yield_cpu(300);
        assert!(program.poll_until_yield() <= 4);
    }

    #[test]
    fn each_poll_yields_while_other_processes_run() {
        let mut program = Program::new(20);
        program.wait(300);
        program.yield_cpu(TURN_NS);
        for _ in 0..5 {
            assert_eq!(program.poll_until_yield(), 1);
            program.yield_cpu(12_000);
        }
        program.detector.note_event();
        assert!(program.poll_until_yield() > POLLS_BEFORE_CLOCK);
        assert!(!program.yield_cpu(300));
        assert_eq!(program.poll_until_yield(), 2);
    }

    #[test]
    fn an_event_ends_the_wait() {
        let mut program = Program::new(20);
        for _ in 0..1_000 {
            for _ in 1..POLLS_BEFORE_CLOCK {
                assert!(!program.detector.note_empty());
            }
            program.detector.note_event();
        }
    }

    #[test]
    fn sleeps_need_oversubscription_and_a_long_wait() {
        assert_eq!(Program::new(1_000).wait(SLOW_YIELD_NS - 1), None);
        assert!(Program::new(1_000).wait(SLOW_YIELD_NS).unwrap() >= SLEEP_AFTER_NS);
        // An MPI with yields of its own.
        assert!(Program::new(30_000).wait(12_000).unwrap() >= SLEEP_AFTER_NS);
        // A single process that uses whole time slices is not oversubscription.
        assert_eq!(Program::new(1_000).wait(3_000_000), None);
    }

    #[test]
    fn rare_interrupts_are_no_oversubscription() {
        let mut program = Program::new(200);
        for i in 0..1_000_000u64 {
            program.poll_until_yield();
            let took = if i % 2_000 == 0 { 5_000 } else { 300 };
            assert!(!program.yield_cpu(took), "{i}");
        }
    }

    #[test]
    fn a_program_that_works_between_reads_does_not_sleep() {
        assert_eq!(Program::new(100_000).wait(12_000), None);
        assert_eq!(Program::new(20_000).wait(SLOW_YIELD_NS), None);
        let mut program = Program::new(1_000);
        assert!(program.wait(12_000).is_some());
        program.detector.reset();
        assert!(!program.yield_cpu(12_000));
    }

    #[test]
    fn sleeps_without_an_event_use_up_the_credit() {
        let mut program = Program::new(0);
        program.wait(12_000).unwrap();
        let mut sleeps = 1;
        loop {
            program.now += 500_000;
            program.detector.note_sleep(SleepEnd::Other, program.now);
            program.detector.note_sleep(SleepEnd::Timeout, program.now);
            assert_eq!(program.poll_until_yield(), 1);
            if !program.yield_cpu(12_000) {
                break;
            }
            sleeps += 1;
        }
        assert_eq!(sleeps, CREDIT);
        // A completion was read after all.
        assert!(program.wait(12_000).is_some());
        let detector = &mut program.detector;
        assert_eq!(detector.credit, CREDIT_MIN);
        detector.note_sleep(SleepEnd::Event, 0);
        assert_eq!(detector.credit, CREDIT_MIN + EARNED);
        for _ in 0..1_000 {
            detector.note_sleep(SleepEnd::Event, 0);
        }
        assert_eq!(detector.credit, CREDIT_MAX);
        detector.disable();
        assert!(!program.yield_cpu(12_000));
    }
}
