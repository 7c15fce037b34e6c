// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Random times of the storm, all from one seed, and the verdict on the resources of a survivor.

use std::fmt;
use std::time::Duration;

use scif_fabtests::harness::Rng;

use super::net::RANKS;

/// Source of the lifetimes and stops of one run.
#[derive(Debug)]
pub(crate) struct Schedule {
    rng: Rng,
}

/// Time until the death of a rank, from its start or from the moment the others know its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    FromStart(Duration),
    FromName(Duration),
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Schedule {
        Schedule { rng: Rng::new(seed.wrapping_mul(3)) }
    }

    fn ms(&mut self, least: usize, range: usize) -> Duration {
        let us = self.rng.below(range * 1000);
        Duration::from_millis(least as u64) + Duration::from_micros(us as u64)
    }

    /// Returns the time until the death of a rank. One in four dies while it starts or connects,
    /// the others later.
    pub(crate) fn life(&mut self) -> Life {
        if self.rng.one_in(4) {
            Life::FromStart(self.ms(0, 60))
        } else {
            Life::FromName(self.ms(60, 400))
        }
    }

    /// Time between two stops.
    pub(crate) fn calm(&mut self) -> Duration {
        self.ms(20, 300)
    }

    /// Rank to stop, duration of the stop, and whether the rank is killed meanwhile.
    pub(crate) fn stop(&mut self, ranks: usize) -> (usize, Duration, bool) {
        let length = if self.rng.one_in(8) { self.ms(100, 300) } else { self.ms(1, 60) };
        (self.rng.below(ranks), length, self.rng.one_in(3))
    }
}

/// Resources of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) descriptors: u64,
    pub(crate) mappings: u64,
    pub(crate) resident_kib: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} mappings, {} KiB resident",
            self.descriptors, self.mappings, self.resident_kib
        )
    }
}

/// Growth that is no leak: connections with all peers instead of none, at ten mappings each, and an
/// arena of the allocator.
const SPARE: Usage =
    Usage { descriptors: RANKS as u64, mappings: 10 * (RANKS as u64 - 1) + 10, resident_kib: 4096 };
/// Number of descriptors for each peer, in shared memory.
pub(crate) const OF_A_PEER: u64 = 5;
/// Number of descriptors for each peer over the stand-in driver: two endpoints after a simultaneous
/// open, at eight descriptors each.
pub(crate) const OF_A_PEER_OVER_A_DRIVER: u64 = 16;
/// Number of samples in a third from which the median of resident memory is judged. Earlier samples
/// include first accesses to buffers.
const RESIDENT_MIN: usize = 20;

/// Returns a complaint if the median of the last third of a series is above the median of the
/// middle third. A connected peer has `of_a_peer` descriptors.
pub(crate) fn growth(series: &[Usage], of_a_peer: u64) -> Option<String> {
    let third = series.len() / 3;
    let (early, late) = (series.get(third..2 * third)?, series.get(2 * third..)?);
    if third < 3 {
        return None;
    }
    let by = |of: fn(&Usage) -> u64, spare: u64, label: &str| {
        let median = |part: &[Usage]| {
            let mut values: Vec<u64> = part.iter().map(of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied()
        };
        let (before, after) = (median(early)?, median(late)?);
        (after > before + spare).then(|| format!("{label} grow from {before} to {after}"))
    };
    by(|usage| usage.descriptors, SPARE.descriptors * of_a_peer, "descriptors")
        .or_else(|| by(|usage| usage.mappings, SPARE.mappings, "mappings"))
        .or_else(|| {
            let settled = third >= RESIDENT_MIN;
            settled
                .then(|| by(|usage| usage.resident_kib, SPARE.resident_kib, "resident KiB"))
                .flatten()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_storm() {
        let of = |seed| {
            let mut schedule = Schedule::new(seed);
            (0..100)
                .map(|_| (schedule.life(), schedule.calm(), schedule.stop(6)))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
        assert!(of(5).iter().all(|(_, _, (slot, ..))| *slot < 6));
    }

    #[test]
    fn growth_is_distinguished_from_noise() {
        let series = |each: u64| -> Vec<Usage> {
            (0..90)
                .map(|n| Usage {
                    descriptors: 30 + n % 10 + n * each,
                    mappings: 100 + n % 7,
                    resident_kib: 9000 + n % 100,
                })
                .collect()
        };
        assert_eq!(growth(&series(0), OF_A_PEER), None);
        assert!(growth(&series(2), OF_A_PEER).is_some_and(|why| why.starts_with("descriptors")));
        // A short run on a loaded machine: few connections first, all of them at the end.
        let short = |last: Usage| {
            let first = Usage { descriptors: 17, mappings: 57, resident_kib: 161_988 };
            growth(&[[first; 6].as_slice(), &[last; 3]].concat(), OF_A_PEER)
        };
        let all = Usage { descriptors: 37, mappings: 81, resident_kib: 175_300 };
        assert_eq!(short(all), None);
        let leaked = Usage { descriptors: 57, ..all };
        assert!(short(leaked).is_some());
        assert_eq!(growth(&[], OF_A_PEER), None);
    }
}
