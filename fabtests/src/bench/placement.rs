// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Distance of the two processors. Hypervisors move virtual processors between cores and hardware
//! threads of one core, which changes every figure several times over.
//!
//! A probe hands a cache line back and forth between the ranks. The limit for near is derived from
//! the probes of the run. They fall into two groups, and the border is in the widest gap between
//! them.

use super::os::now_ns;
use super::segment::Use;
use super::shm_barrier::ShmBarrier;

const BATCHES: usize = 11;
const TRIPS: u64 = 100;

/// Border in picoseconds if the probes form only one group. Two hardware threads of a core need
/// less for a round trip, two cores need more.
const UNTOLD_PS: u64 = 90_000;
/// Ratio below which two groups count as one.
const APART: u64 = 2;
/// Round trip in picoseconds above which a group is not near: its probes were disturbed.
const NEAR_MOST_PS: u64 = 120_000;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    Far,
    Near,
}

impl Placement {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Placement::Far => "far",
            Placement::Near => "near",
        }
    }
}

/// Probes of a run and the border derived from them.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    seen: Vec<u64>,
}

impl Probes {
    pub(crate) fn add(&mut self, ps: u64) {
        let at = self.seen.partition_point(|&have| have < ps);
        self.seen.insert(at, ps);
    }

    /// Returns the border: the geometric middle of the widest gap, if the probes form two groups.
    pub(crate) fn border_ps(&self) -> u64 {
        // One stray value is no group.
        let few = (self.seen.len() / 50).max(1);
        let inner = self.seen.get(few..self.seen.len().saturating_sub(few)).unwrap_or_default();
        let gaps = inner.iter().zip(inner.iter().skip(1)).filter(|(low, _)| **low < NEAR_MOST_PS);
        let widest = gaps.max_by(|(a, b), (c, d)| (*b * **c).cmp(&(*d * **a)));
        match widest {
            Some((&low, &high)) if high > APART * low.max(1) => (low.max(1) * high).isqrt(),
            _ => UNTOLD_PS,
        }
    }

    pub(crate) fn place(&self, ps: u64) -> Placement {
        if ps < self.border_ps() { Placement::Near } else { Placement::Far }
    }

    /// Describes the groups and the border between them.
    #[expect(clippy::cast_precision_loss, reason = "shown with no digit after the point")]
    pub(crate) fn describe(&self) -> String {
        let border = self.border_ps();
        let (near, far) = self.seen.split_at(self.seen.partition_point(|&ps| ps < border));
        let group = |name: &str, group: &[u64]| match (
            group.first(),
            group.get(group.len() / 2),
            group.last(),
        ) {
            (Some(least), Some(median), Some(most)) => format!(
                "{name}: {} probes of {:.0} ns ({:.0} to {:.0})",
                group.len(),
                *median as f64 / 1e3,
                *least as f64 / 1e3,
                *most as f64 / 1e3
            ),
            _ => format!("{name}: none"),
        };
        format!(
            "round trip of a line, {}; {}; border {:.0} ns",
            group("far", far),
            group("near", near),
            border as f64 / 1e3
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(values: &[u64]) -> Probes {
        let mut probes = Probes::default();
        values.iter().for_each(|&ns| probes.add(ns * 1000));
        probes
    }

    #[test]
    fn two_groups_are_told_apart() {
        let probes = probes(&[36, 240, 250, 37, 230, 260, 35, 245, 300, 38]);
        assert!((40_000..220_000).contains(&probes.border_ps()));
        assert_eq!(probes.place(50_000), Placement::Near);
        assert_eq!(probes.place(180_000), Placement::Far);
    }

    #[test]
    fn one_group_is_judged_by_itself() {
        assert_eq!(probes(&[230, 240, 250, 260]).place(235_000), Placement::Far);
        assert_eq!(probes(&[30, 31, 32, 33]).place(31_000), Placement::Near);
        assert_eq!(Probes::default().place(235_000), Placement::Far);
    }

    #[test]
    fn a_stray_probe_makes_no_group() {
        let mut values = vec![240; 60];
        values.push(5000);
        assert_eq!(probes(&values).border_ps(), UNTOLD_PS);
    }
}
