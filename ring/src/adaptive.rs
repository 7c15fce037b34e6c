// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Online choice between two methods where the machine and the program decide which one is faster.
//!
//! * Probe: at intervals, the method in use and its challenger take turns for a few uses each.
//! * Compare: the lowest cost of such a run counts, since a disturbance only raises a cost.
//! * Hysteresis: the challenger must win all pairs of runs. Each probe that it loses doubles the
//!   interval to the next one.
//!
//! Not about: the measure and the unit of the cost, which are the caller's. A caller that needs a
//! minimum gain for the alternative scales its cost.

/// Uses before the first probe, and between a change of method and the next probe. The challenger
/// has at most six uses of a probe, so at most 8 % of all.
const INTERVAL_MIN: u16 = 64;
/// Largest number of lost probes in a row that count. Each doubles the interval, so it is at most
/// 512 uses. A lost probe has three uses of the challenger: one that is four times as slow then
/// costs 2 %. A larger interval delays the adaptation to a change.
const MISSES_MAX: u8 = 3;
/// Uses in a row of one method in a probe. The first is not measured, because the other method left
/// its traces in the caches. Two measured uses tolerate one disturbance.
const RUN: u16 = 3;
/// Pairs of runs that the challenger must win. With one, a disturbed run would change the method.
const PAIRS: u16 = 2;
/// Uses by which an unusable measurement postpones the next probe. So a probe begins only while
/// more than two of three uses can be measured.
const POSTPONED: u16 = 2;

/// Chooser between a default method and an alternative.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prober {
    /// Whether the alternative is in use, apart from probes.
    alternative: bool,
    /// Number of probes lost in a row.
    misses: u8,
    /// Uses since the last probe, those of the current probe included.
    uses: u16,
    /// Lowest cost in the current run.
    lowest: u32,
    /// Lowest cost in the last run of the method in use.
    to_beat: u32,
}

impl Prober {
    /// Position of the next use in the current probe; `None` outside probes.
    #[inline]
    const fn step(&self) -> Option<u16> {
        self.uses.checked_sub(INTERVAL_MIN << self.misses)
    }

    /// Whether the cost of the next use is needed.
    #[inline]
    pub const fn is_probing(&self) -> bool {
        self.step().is_some()
    }

    /// Whether the next use takes the alternative.
    #[inline]
    pub fn takes_alternative(&self) -> bool {
        self.alternative ^ self.step().is_some_and(|step| step / RUN % 2 == 1)
    }

    /// Records one use. The cost matters in probes only.
    #[inline]
    pub fn record(&mut self, cost: u32) {
        let step = self.step();
        self.uses += 1;
        if let Some(step) = step {
            self.compare(step / RUN, step % RUN, cost);
        }
    }

    #[cold]
    fn compare(&mut self, run: u16, at: u16, cost: u32) {
        self.lowest = if at == 0 { u32::MAX } else { self.lowest.min(cost) };
        if at < RUN - 1 {
            return;
        }
        if run % 2 == 0 {
            self.to_beat = self.lowest;
        } else if self.lowest >= self.to_beat {
            self.wait((self.misses + 1).min(MISSES_MAX));
        } else if run == 2 * PAIRS - 1 {
            self.alternative = !self.alternative;
            self.wait(0);
        }
    }

    const fn wait(&mut self, misses: u8) {
        (self.uses, self.misses) = (0, misses);
    }

    /// Discards the current probe, if any: a use was not comparable.
    pub const fn interrupt(&mut self) {
        if self.is_probing() {
            self.wait(self.misses);
        }
    }

    /// Records a use under a condition in which the alternative is not usable.
    pub fn postpone(&mut self) {
        if self.is_probing() {
            self.fall_back();
        }
        self.uses = self.uses.saturating_sub(POSTPONED);
    }

    /// Returns to the default method, since the alternative failed. The next probe is far away.
    pub fn fall_back(&mut self) {
        self.alternative = false;
        self.wait(MISSES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_MAX: u16 = INTERVAL_MIN << MISSES_MAX;

    /// Records `count` uses with a fixed cost per method, default and alternative. Returns the
    /// number of uses of the alternative.
    fn run(prober: &mut Prober, count: u16, costs: [u32; 2]) -> u16 {
        let mut alternatives = 0;
        for _ in 0..count {
            let alternative = prober.takes_alternative();
            alternatives += u16::from(alternative);
            prober.record(costs[usize::from(alternative)]);
        }
        alternatives
    }

    #[test]
    fn takes_the_cheaper_method_and_notices_a_change() {
        let mut prober = Prober::default();
        assert_eq!(run(&mut prober, INTERVAL_MIN, [20, 9]), 0);
        assert!(prober.is_probing());
        assert_eq!(run(&mut prober, 2 * PAIRS * RUN, [20, 9]), PAIRS * RUN);
        assert_eq!(run(&mut prober, INTERVAL_MIN, [20, 9]), INTERVAL_MIN);
        assert!(run(&mut prober, 5000, [20, 9]) > 4900);
        assert!(
            run(&mut prober, INTERVAL_MAX + 2 * PAIRS * RUN, [6, 9]) <= INTERVAL_MAX + PAIRS * RUN
        );
        assert!(!prober.takes_alternative());
    }

    #[test]
    fn lost_probes_are_short_and_become_rare() {
        let mut prober = Prober::default();
        for interval in [64, 128, 256, 512, 512] {
            assert_eq!(run(&mut prober, interval, [6, 9]), 0);
            assert_eq!(run(&mut prober, 2 * RUN, [6, 9]), RUN);
            assert!(!prober.is_probing());
        }
        let mut prober = Prober::default();
        assert_eq!(run(&mut prober, 1000, [0, 0]), 4 * RUN, "a clock that stands still");
    }

    #[test]
    fn one_disturbed_use_in_a_run_decides_nothing() {
        for (costs, change) in [([20, 9], true), ([6, 9], false)] {
            for disturbed in 0..2 * PAIRS * RUN {
                let mut prober = Prober::default();
                run(&mut prober, INTERVAL_MIN, costs);
                run(&mut prober, disturbed, costs);
                prober.record(1000);
                run(&mut prober, 2 * PAIRS * RUN, costs);
                assert_eq!(prober.alternative, change, "{costs:?} {disturbed}");
            }
        }
    }

    #[test]
    fn nothing_is_probed_while_the_alternative_is_unusable() {
        let mut prober = Prober::default();
        for _ in 0..10_000 {
            assert!(!prober.takes_alternative());
            prober.postpone();
            assert_eq!(run(&mut prober, POSTPONED, [20, 9]), 0);
        }
        run(&mut prober, INTERVAL_MIN + 2 * PAIRS * RUN, [20, 9]);
        assert!(prober.takes_alternative());
        prober.fall_back();
        assert_eq!(run(&mut prober, INTERVAL_MAX, [20, 9]), 0);
        run(&mut prober, RUN, [20, 9]);
        assert!(prober.takes_alternative(), "a probe");
        prober.interrupt();
        assert_eq!(run(&mut prober, INTERVAL_MAX, [20, 9]), 0);
        run(&mut prober, RUN, [20, 9]);
        prober.postpone();
        assert_eq!(run(&mut prober, INTERVAL_MAX, [20, 9]), 0);
    }
}
