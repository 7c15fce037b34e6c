// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! When a reader that finds nothing had better sleep than take turns: among more processes than processors each turn of one that
//! waits is a turn that those which have something to do wait for.
//!
//! Not about how it sleeps (`wait`). A read promises not to block, so a nap is short, taken only where a yield does the same
//! (others run for as long as they like), ends with the first message, and has to prove its worth: a program may wait for
//! something else than this queue, and find it only after the nap.

/// A yield that takes longer has let somebody else run.
const TURN_NS: u64 = 2_000;
/// So many of them make a crowd.
const TURNS: u32 = 8;
/// Answers that are on their way come within less, collectives in a crowd too.
const PATIENCE_NS: u64 = 500_000;
/// The longest nap.
pub(super) const NAP_NS: u64 = 500_000;
/// Naps in which nothing came, before there are no more: at first, and the most that those in which something came earn.
const CREDIT: u32 = 512;
const MOST_CREDIT: u32 = 1 << 15;
/// What one earns in which something came, and what each wait brings along for another try.
const EARNED: u32 = 2048;
const TRY: u32 = 16;

/// What a queue's readers have met with.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// When the queue was found empty for long.
    since: u64,
    /// Long yields since then.
    turns: u32,
    credit: u32,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        Crowd {
            since: 0,
            turns: 0,
            credit: CREDIT,
        }
    }

    /// Somebody yielded between `begin` and `end`, for the first time since something was found or once more; whether to nap now.
    pub(super) fn yielded(&mut self, first: bool, begin: u64, end: u64) -> bool {
        if first {
            (self.since, self.turns) = (begin, 0);
            self.credit = self.credit.max(TRY);
        }
        if end.saturating_sub(begin) < TURN_NS {
            return false;
        }
        self.turns = self.turns.saturating_add(1);
        self.turns >= TURNS && end.saturating_sub(self.since) >= PATIENCE_NS && self.credit > 0
    }

    /// A nap is over, with something in the queue or without.
    pub(super) fn napped(&mut self, something_came: bool) {
        self.credit = if something_came {
            (self.credit + EARNED).min(MOST_CREDIT)
        } else {
            self.credit.saturating_sub(1)
        };
    }

    /// There is nothing to sleep on.
    pub(super) fn give_up(&mut self) {
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = TURN_NS;

    /// Waits as long as a nap needs, by yields that take `took`; the time, if it comes to one.
    fn wait(crowd: &mut Crowd, took: u64) -> Option<u64> {
        let mut now = 1_000_000;
        for i in 0..1_000 {
            if crowd.yielded(i == 0, now, now + took) {
                return Some(now + took - 1_000_000);
            }
            now += took + 1_000;
        }
        None
    }

    #[test]
    fn naps_come_late_and_in_a_crowd_only() {
        let mut crowd = Crowd::new();
        assert_eq!(wait(&mut crowd, LONG - 1), None);
        assert!(wait(&mut crowd, LONG).unwrap() >= PATIENCE_NS);
        // One process that takes a time slice is no crowd.
        let mut crowd = Crowd::new();
        assert!(!crowd.yielded(true, 0, 3_000_000));
        assert!(!crowd.yielded(false, 3_000_000, 3_000_400));
        assert!(wait(&mut crowd, 3_000_000).unwrap() >= u64::from(TURNS) * 3_000_000);
    }

    #[test]
    fn who_never_finds_anything_after_a_nap_stops_napping() {
        let mut crowd = Crowd::new();
        assert!(wait(&mut crowd, LONG).is_some());
        for _ in 0..CREDIT {
            assert!(crowd.yielded(false, 0, 1 << 30));
            crowd.napped(false);
        }
        assert!(!crowd.yielded(false, 0, 1 << 30));
        // Something was found after all.
        assert!(wait(&mut crowd, LONG).is_some());
        assert_eq!(crowd.credit, TRY);
        crowd.napped(true);
        assert_eq!(crowd.credit, TRY + EARNED);
        for _ in 0..100 {
            crowd.napped(true);
        }
        assert_eq!(crowd.credit, MOST_CREDIT);
        crowd.give_up();
        assert!(!crowd.yielded(false, 0, 1 << 30));
    }
}
