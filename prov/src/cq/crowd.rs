// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! When a reader that finds nothing had better sleep than take turns: among more processes than processors each turn of one that
//! waits is a turn that those which have something to do wait for.
//!
//! Not about how it sleeps (`wait`). A read promises not to block, so a nap is short, taken only where a yield does the same
//! (others run for as long as they like), ends with the first message, and has to prove its worth: a program may wait for
//! something else than this queue, and find it only after the nap.

/// A yield that takes longer has let somebody else run, or the kernel had something to do.
const TURN_NS: u64 = 2_000;
/// So many of them within such a time make a crowd.
const TURNS: u32 = 8;
const TURNS_NS: u64 = 2_000_000;
/// Answers that are on their way come within less, collectives in a crowd too.
const PATIENCE_NS: u64 = 500_000;
/// What may lie between two reads of a program that does nothing but wait: its own work, and yields of its own, which may take
/// several times as long as the longest of ours (up to a bound).
const WORK_NS: u64 = 3_000;
const OWN_YIELDS: u64 = 4;
const LONGEST_NS: u64 = 100_000;
/// The longest nap.
pub(super) const NAP_NS: u64 = 500_000;
/// Naps in which nothing came, before there are no more: at first, and the most that those which something ended earn.
const CREDIT: u32 = 512;
const MOST_CREDIT: u32 = 1 << 14;
/// What one of those earns, and what each wait that ends well brings along for another try.
const EARNED: u32 = 64;
const TRY: u32 = 16;

/// How a nap ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By something for the reader.
    ByNews,
    /// By time, with nothing in the queue.
    ByTime,
    /// Neither, or it never began: says nothing about the next one.
    Otherwise,
}

/// What the readers of a queue have met with since they began to wait.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// When they began, and when they yielded last; 0: not yet.
    since: u64,
    last: u64,
    /// The longest yield.
    longest: u64,
    /// Long yields, and when the first of them ended.
    turns: u32,
    first_turn: u64,
    is_one: bool,
    credit: u32,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        Crowd {
            credit: CREDIT,
            ..Crowd::default()
        }
    }

    /// Something was found before: a wait begins.
    pub(super) fn new_wait(&mut self) {
        self.start_over();
        self.credit = self.credit.max(TRY);
    }

    /// The program has done something else meanwhile.
    pub(super) fn start_over(&mut self) {
        *self = Crowd {
            credit: self.credit,
            ..Crowd::default()
        };
    }

    /// A reader yielded between `begin` and `end`; whether to nap now.
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

    /// A nap is over at `now`.
    pub(super) fn napped(&mut self, ended: Ended, now: u64) {
        self.last = now;
        self.credit = match ended {
            Ended::ByNews => (self.credit + EARNED).min(MOST_CREDIT),
            Ended::ByTime => self.credit.saturating_sub(1),
            Ended::Otherwise => self.credit,
        };
    }

    /// Nobody naps in this wait: there is nothing to sleep on, or somebody would be kept waiting.
    pub(super) fn give_up(&mut self) {
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// Waits as long as a nap needs, by yields that take `took` with `between` them; the time, if it comes to one.
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
        // An MPI that yields as we do.
        assert!(wait(&mut crowd, 12_000, 30_000).unwrap() >= PATIENCE_NS);
        // One process that takes whole time slices is no crowd.
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
        // Something was found after all.
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
