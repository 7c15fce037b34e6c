// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Distance of the two processors. Hypervisors move virtual processors between cores and hardware
//! threads of one core, which changes every figure several times over.
//!
//! A probe hands a cache line back and forth between the ranks. Its round trip shows the placement.
//! The borders are constant, so that a placement means the same in every run.

use super::os::now_ns;
use super::segment::Use;
use super::shm_barrier::ShmBarrier;

const BATCHES: usize = 11;
const TRIPS: u64 = 100;

/// Round trip in picoseconds below which the processors are two hardware threads of a core.
pub(crate) const NEAR_BELOW_PS: u64 = 80_000;
/// Round trip in picoseconds below which two cores share a cache.
const MID_BELOW_PS: u64 = 180_000;

/// Hands a line to the other rank and back `count` times.
#[inline]
pub(crate) fn round_trips(barrier: &ShmBarrier, count: u64) {
    let ball = barrier.segment.word(Use::Ball);
    // The last round left it at an even number that both ranks see.
    let mut at = ball.get() & !1;
    barrier.meet_idly();
    for _ in 0..count {
        if barrier.rank == 0 {
            ball.set(at + 1);
            while ball.get() != at + 2 {
                std::hint::spin_loop();
            }
        } else {
            while ball.get() != at + 1 {
                std::hint::spin_loop();
            }
            ball.set(at + 2);
        }
        at += 2;
    }
}

/// Measures the median round trip of a line in picoseconds; both ranks receive the result.
pub(crate) fn probe(barrier: &ShmBarrier) -> u64 {
    let result = barrier.segment.word(Use::Spare0);
    let mut batches = [0_u64; BATCHES];
    for batch in &mut batches {
        barrier.meet_idly();
        let start = now_ns();
        round_trips(barrier, TRIPS);
        *batch = now_ns() - start;
    }
    batches.sort_unstable();
    if barrier.rank == 0 {
        let median = batches.get(BATCHES / 2).copied().unwrap_or(0);
        result.set(median * 1000 / TRIPS);
    }
    barrier.meet_idly();
    let ps = result.get();
    barrier.meet_idly();
    ps
}

/// Distance of two processors.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    #[default]
    Far,
    Mid,
    Near,
}

impl Placement {
    pub(crate) const ALL: [Placement; 3] = [Placement::Far, Placement::Mid, Placement::Near];

    /// Returns the placement that a round trip shows.
    pub(crate) const fn of(ps: u64) -> Placement {
        match ps {
            ..NEAR_BELOW_PS => Placement::Near,
            NEAR_BELOW_PS..MID_BELOW_PS => Placement::Mid,
            _ => Placement::Far,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Placement::Far => "far",
            Placement::Mid => "mid",
            Placement::Near => "near",
        }
    }

    /// Name in files of samples that other programs disturbed.
    pub(crate) const fn noisy_word(self) -> &'static str {
        match self {
            Placement::Far => "far-noisy",
            Placement::Mid => "mid-noisy",
            Placement::Near => "near-noisy",
        }
    }
}

/// Probes of a run, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    seen: Vec<u64>,
}

impl Probes {
    pub(crate) fn add(&mut self, ps: u64) {
        let at = self.seen.partition_point(|&have| have < ps);
        self.seen.insert(at, ps);
    }

    /// Describes the probes of each placement.
    pub(crate) fn describe(&self) -> String {
        let groups = Placement::ALL.map(|place| {
            let first = self.seen.partition_point(|&ps| Placement::of(ps) > place);
            let end = self.seen.partition_point(|&ps| Placement::of(ps) >= place);
            let group = self.seen.get(first..end).unwrap_or_default();
            let word = place.word();
            match (group.first(), group.get(group.len() / 2), group.last()) {
                (Some(least), Some(median), Some(most)) => format!(
                    "{word}: {} probes of {} ns ({} to {})",
                    group.len(),
                    median / 1000,
                    least / 1000,
                    most / 1000
                ),
                _ => format!("{word}: none"),
            }
        });
        format!("round trip of a line, {}", groups.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_divide_the_placements() {
        let at = |ns: u64| Placement::of(ns * 1000);
        assert_eq!([36, 79].map(at), [Placement::Near; 2]);
        assert_eq!([80, 118, 179].map(at), [Placement::Mid; 3]);
        assert_eq!([180, 410].map(at), [Placement::Far; 2]);
    }

    #[test]
    fn a_description_counts_each_placement() {
        let mut probes = Probes::default();
        for ns in [240, 36, 118, 250, 110, 260] {
            probes.add(ns * 1000);
        }
        assert_eq!(
            probes.describe(),
            "round trip of a line, far: 3 probes of 250 ns (240 to 260); \
             mid: 2 probes of 118 ns (110 to 118); near: 1 probes of 36 ns (36 to 36)"
        );
    }
}
