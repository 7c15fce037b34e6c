// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice between cached and non-temporal stores for record bodies.
//!
//! The lines of the data area that a producer writes again are in the cache of the consumer's core.
//! Between near cores it costs little to fetch them back. Between distant cores (another socket,
//! another part of the cache) non-temporal stores may cost less, although the consumer then fetches
//! the body from memory. So both are measured at intervals.
//!
//! Not about: the copy itself (`copy`).

use crate::copy;

/// Length in bytes from which non-temporal stores are considered. Shorter bodies gain little.
const NT_BODY_MIN: usize = 12 * 1024;
/// Number of bodies per comparison, alternately cached and non-temporal. A comparison starts every
/// 256 bodies.
const TRIAL_BODIES: u8 = 6;
/// Factor by which non-temporal stores must be faster to be chosen, because the consumer reads
/// memory more slowly than a cache.
const MIN_SPEEDUP: u16 = 2;

/// Statistics of one producer. Kept small, because every push uses their line.
#[derive(Debug)]
pub(crate) struct NtPolicy {
    bodies_since_trial: u8,
    /// Number of pairs in the current comparison that non-temporal stores won.
    wins: u8,
    /// Whether non-temporal stores won the last comparison.
    non_temporal: bool,
    /// Ticks for 4 KiB with cached stores in the last measurement.
    cached_cost: u16,
}

impl NtPolicy {
    pub(crate) const fn new() -> NtPolicy {
        NtPolicy {
            bodies_since_trial: 0,
            wins: 0,
            non_temporal: false,
            cached_cost: 0,
        }
    }

    /// Writes a body of `len` bytes through `write`, whose argument requests non-temporal stores.
    #[inline]
    pub(crate) fn write<T>(&mut self, len: usize, write: impl FnOnce(bool) -> T) -> T {
        if len < NT_BODY_MIN {
            return write(false);
        }
        if self.bodies_since_trial < TRIAL_BODIES {
            return self.compare(len, write);
        }
        self.bodies_since_trial = self.bodies_since_trial.wrapping_add(1);
        write(self.non_temporal)
    }

    #[cold]
    fn compare<T>(&mut self, len: usize, write: impl FnOnce(bool) -> T) -> T {
        let non_temporal = self.bodies_since_trial % 2 == 1;
        let begun = copy::ticks();
        let done = write(non_temporal);
        self.record_cost(non_temporal, len, copy::ticks().wrapping_sub(begun));
        done
    }

    fn record_cost(&mut self, non_temporal: bool, len: usize, ticks: u64) {
        let ticks = ticks.saturating_mul(4096) / len.max(1) as u64;
        let ticks = u16::try_from(ticks).unwrap_or(u16::MAX);
        if self.bodies_since_trial == 0 {
            self.wins = 0;
        }
        if non_temporal {
            self.wins += u8::from(self.cached_cost > ticks.saturating_mul(MIN_SPEEDUP));
        } else {
            self.cached_cost = ticks;
        }
        self.bodies_since_trial += 1;
        if self.bodies_since_trial == TRIAL_BODIES {
            self.non_temporal = self.wins > TRIAL_BODIES / 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a comparison of bodies of `lens` bytes, cached and non-temporal, that take `ticks` per
    /// 4 KiB. Pair `disturbed` has its times swapped. Returns the result.
    fn compared(lens: [usize; 2], ticks: [u64; 2], disturbed: Option<u8>) -> bool {
        let mut policy = NtPolicy::new();
        for i in 0..TRIAL_BODIES {
            let way = usize::from(i % 2);
            let ticks = ticks[if disturbed == Some(i / 2) { 1 - way } else { way }];
            policy.record_cost(way == 1, lens[way], ticks * lens[way] as u64 / 4096);
        }
        policy.non_temporal
    }

    #[test]
    fn chooses_non_temporal_stores_if_twice_as_fast() {
        let same = [2 * NT_BODY_MIN; 2];
        assert!(compared(same, [1000, 400], None));
        assert!(!compared(same, [1000, 600], None));
        assert!(compared(same, [1000, 400], Some(1)), "two of three");
        assert!(!compared(same, [400, 1000], Some(1)), "one of three");
        assert!(
            compared([NT_BODY_MIN, 2 * NT_BODY_MIN], [1000, 400], None),
            "for each byte"
        );
        assert!(
            !compared([2 * NT_BODY_MIN, NT_BODY_MIN], [1000, 600], None),
            "for each byte"
        );
        assert!(compared(same, [100_000, 20_000], None), "more than is kept");
        assert!(!compared(same, [100_000, 60_000], None), "more than is kept");
        assert!(!compared(same, [0, 0], None), "a clock that stands still");
    }

    #[test]
    fn compares_again_and_leaves_short_bodies_alone() {
        let mut policy = NtPolicy::new();
        (0..TRIAL_BODIES)
            .for_each(|i| policy.record_cost(i % 2 == 1, NT_BODY_MIN, if i % 2 == 1 { 100 } else { 1000 }));
        assert!(!policy.write(NT_BODY_MIN - 1, |non_temporal| non_temporal));
        assert!(
            (u32::from(TRIAL_BODIES)..256).all(|_| policy.write(NT_BODY_MIN, |non_temporal| non_temporal))
        );
        let ways: Vec<bool> = (0..TRIAL_BODIES)
            .map(|_| policy.write(NT_BODY_MIN, |non_temporal| non_temporal))
            .collect();
        assert_eq!(ways, [false, true, false, true, false, true]);
    }
}
