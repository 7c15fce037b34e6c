// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Adaptive poll delay after a published reply: 5/8 of the time after which the peer's next record
//! arrived in recent exchanges.
//!
//! A poll fetches the cache line from the core that is about to write it. If the peer has not
//! written its half of the reply line yet, the poll finds nothing. The peer then has to fetch the
//! line back.
//!
//! Times are ticks of the processor's time stamp counter; without one, no poll is delayed. Not
//! about: the time to poll before sleeping. A caller that is about to sleep, or needs the current
//! state, calls `stop`.

#![cfg_attr(
    all(target_arch = "x86_64", not(any(miri, loom))),
    expect(unsafe_code, reason = "reads the processor's counter of ticks")
)]

/// Maximum delay in ticks, about 400 ns. An early record is noticed at most this much late.
const MOST: u64 = 1024;
/// Time in ticks above which the arrival of a record halves the delay. A peer that takes longer
/// computes or sleeps, so its time predicts nothing.
const LONG: u64 = 8 * MOST;

/// State of the poll delay for one ring.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time in ticks at which our last reply was published.
    from: u64,
    /// Delay in ticks after a reply.
    gap: u64,
    /// Whether a reply was published and no record has arrived since.
    waiting: bool,
    /// Whether polls are currently suppressed.
    early: bool,
}

#[inline(always)]
fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: the instruction reads a counter; every x86-64 processor has it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    0
}

impl Pace {
    /// Starts the delay: a reply was published just now.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.from = ticks();
        self.waiting = true;
        self.early = self.gap > 0;
    }

    /// Whether polls are still suppressed. A counter that runs backwards, as between cores, ends
    /// the delay.
    #[inline(always)]
    pub(crate) fn is_early(&mut self) -> bool {
        if !self.early {
            return false;
        }
        self.early = ticks().wrapping_sub(self.from) < self.gap;
        self.early
    }

    /// Ends the delay at once.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.early = false;
    }

    /// Notes the arrival of a record.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.early = false;
            self.learn(ticks().wrapping_sub(self.from));
        }
    }

    /// Updates the delay from a record that was found `took` ticks after the reply. A record found
    /// at the first poll may have arrived during the delay. Then `took` is little more than the
    /// delay, which therefore shrinks.
    #[inline]
    fn learn(&mut self, took: u64) {
        let gap = if took > LONG { 0 } else { (took * 5 / 8).min(MOST) };
        self.gap = if gap < self.gap {
            u64::midpoint(self.gap, gap)
        } else {
            self.gap + (gap - self.gap).div_ceil(8)
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_gap_follows_the_answers() {
        let mut pace = Pace::default();
        let mut after = |took| {
            for _ in 0..100 {
                pace.learn(took);
            }
            pace.gap
        };
        assert_eq!(after(800), 500);
        assert_eq!(after(5000), MOST);
        assert_eq!(after(160), 100);
        assert_eq!(after(LONG + 1), 0);
        assert_eq!(after(u64::MAX), 0, "a counter that went back");
    }

    #[test]
    fn nothing_is_early_for_ever() {
        let mut pace = Pace::default();
        assert!(!pace.is_early());
        pace.begin();
        assert!(!pace.is_early(), "no answer has taken any time yet");
        for _ in 0..100 {
            pace.learn(MOST);
        }
        pace.begin();
        while pace.is_early() {}
        pace.begin();
        pace.stop();
        assert!(!pace.is_early());
        pace.begin();
        pace.from = u64::MAX / 2;
        assert!(!pace.is_early(), "begun on a core that was ahead");
    }
}
