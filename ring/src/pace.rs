// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! When to look for the answer to an answer: not before about half of the time that the last ones took.
//!
//! A core that looks at a line takes it from the core that is about to write it. Whoever has just published knows that the peer
//! gets the line first, and reads it; a look before the peer has written its own half brings nothing and costs it the line.
//!
//! The times are the processor's ticks; where it counts none, nothing waits. Not about: how long to look before sleeping. Who is
//! about to sleep, or must know now, calls `stop`.

#![cfg_attr(
    all(target_arch = "x86_64", not(any(miri, loom))),
    expect(unsafe_code, reason = "reads the processor's counter of ticks")
)]

/// Longest wait, in ticks: some 400 ns. An answer that comes early is found late by no more.
const MOST: u64 = 1024;
/// An answer that takes longer is none that a core waits for.
const LONG: u64 = 8 * MOST;

/// The state of it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// What is waited for comes after this.
    from: u64,
    /// How long not to look.
    gap: u64,
    /// An answer was published, and nothing has come since.
    waiting: bool,
    /// It is too early to look.
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
    /// An answer was published just now.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.from = ticks();
        self.waiting = true;
        self.early = self.gap > 0;
    }

    /// Whether it is too early to look. A counter that goes back, as that of another core may, says no.
    #[inline(always)]
    pub(crate) fn is_early(&mut self) -> bool {
        if !self.early {
            return false;
        }
        self.early = ticks().wrapping_sub(self.from) < self.gap;
        self.early
    }

    /// From now on it is not.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.early = false;
    }

    /// Something came.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.early = false;
            self.learn(ticks().wrapping_sub(self.from));
        }
    }

    /// The answer took so long. One that was there at the first look may have been there earlier: then the gap becomes shorter,
    /// for it is less than the whole time.
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
