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
//! state, calls `cancel`.

#![cfg_attr(
    all(target_arch = "x86_64", not(any(miri, loom))),
    expect(unsafe_code, reason = "reads the processor's counter of ticks")
)]

/// Maximum delay in ticks, about 400 ns. An early record is noticed at most this much late.
const DELAY_MAX_TICKS: u64 = 1024;
/// Time in ticks above which the arrival of a record halves the delay. A peer that takes longer
/// computes or sleeps, so its time predicts nothing.
const ARRIVAL_MAX_TICKS: u64 = 8 * DELAY_MAX_TICKS;

/// State of the poll delay for one ring.
#[derive(Debug, Default)]
pub(crate) struct PollDelay {
    /// Time in ticks at which our last reply was published.
    started_ticks: u64,
    /// Delay in ticks after a reply.
    delay_ticks: u64,
    /// Whether a reply was published and no record has arrived since.
    awaiting_record: bool,
    /// Whether polls are currently suppressed.
    holding_off: bool,
}

#[inline(always)]
fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: the instruction reads a counter; every x86-64 processor has it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    0
}

impl PollDelay {
    /// Starts the delay: a reply was published just now.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.started_ticks = ticks();
        self.awaiting_record = true;
        self.holding_off = self.delay_ticks > 0;
    }

    /// Whether polls are still suppressed. A counter that runs backwards, as between cores, ends
    /// the delay.
    #[inline(always)]
    pub(crate) fn is_holding_off(&mut self) -> bool {
        if !self.holding_off {
            return false;
        }
        self.holding_off = ticks().wrapping_sub(self.started_ticks) < self.delay_ticks;
        self.holding_off
    }

    /// Ends the delay at once.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        self.holding_off = false;
    }

    /// Notes the arrival of a record.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        if self.awaiting_record {
            self.awaiting_record = false;
            self.holding_off = false;
            self.update(ticks().wrapping_sub(self.started_ticks));
        }
    }

    /// Updates the delay from a record that was found `took` ticks after the reply. A record found
    /// at the first poll may have arrived during the delay. Then `took` is little more than the
    /// delay, which therefore shrinks.
    #[inline]
    fn update(&mut self, took: u64) {
        let target = if took > ARRIVAL_MAX_TICKS {
            0
        } else {
            (took * 5 / 8).min(DELAY_MAX_TICKS)
        };
        self.delay_ticks = if target < self.delay_ticks {
            u64::midpoint(self.delay_ticks, target)
        } else {
            self.delay_ticks + (target - self.delay_ticks).div_ceil(8)
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn delay_follows_the_replies() {
        let mut delay = PollDelay::default();
        let mut after = |took| {
            for _ in 0..100 {
                delay.update(took);
            }
            delay.delay_ticks
        };
        assert_eq!(after(800), 500);
        assert_eq!(after(5000), DELAY_MAX_TICKS);
        assert_eq!(after(160), 100);
        assert_eq!(after(ARRIVAL_MAX_TICKS + 1), 0);
        assert_eq!(after(u64::MAX), 0, "a counter that went back");
    }

    #[test]
    fn nothing_is_early_for_ever() {
        let mut delay = PollDelay::default();
        assert!(!delay.is_holding_off());
        delay.begin();
        assert!(!delay.is_holding_off(), "no answer has taken any time yet");
        for _ in 0..100 {
            delay.update(DELAY_MAX_TICKS);
        }
        delay.begin();
        while delay.is_holding_off() {}
        delay.begin();
        delay.cancel();
        assert!(!delay.is_holding_off());
        delay.begin();
        delay.started_ticks = u64::MAX / 2;
        assert!(!delay.is_holding_off(), "begun on a core that was ahead");
    }
}
