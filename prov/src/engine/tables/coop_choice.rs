// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice for large RMA to one peer: a copy by the initiator alone, or together with the target.
//!
//! The target takes part only while it polls. It publishes the time of a poll now and then. If it
//! takes no part although it seemed to poll, the initiator copies the next operations alone, with
//! exponential backoff. If it takes part, both methods are measured at intervals
//! (`scif_ring::adaptive`).

use scif_ring::adaptive::Prober;

/// Number of length classes, by powers of two. The last one holds all longer operations.
const CLASSES: usize = 8;
/// Length in bytes of the shortest operation of the second class.
const SECOND_CLASS: usize = 256 * 1024;
/// Age in nanoseconds of the last published poll up to which a target counts as polling. With
/// less, a target that has just copied for itself counts as silent.
const POLLED_NS: u64 = 1_000_000;
/// Largest backoff in operations. An attempt in which the target takes no part costs some percent
/// of the operation. With a larger backoff, a target that begins to poll takes part late.
const BACKOFF_MAX: u32 = 256;

/// Method of one operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CoopMethod {
    /// The initiator copies alone.
    Alone,
    /// The initiator copies alone, and the time is a measurement.
    ProbedAlone,
    /// Both sides copy.
    Together,
}

/// State of the choice.
#[derive(Debug, Default)]
pub(crate) struct CoopChoice {
    /// Per length class: both sides, or as the alternative the initiator alone.
    probers: [Prober; CLASSES],
    /// Operations left until the next attempt.
    backoff_left: u32,
    /// Backoff after the last attempt; 0 if the target took part.
    backoff: u32,
}

impl CoopChoice {
    fn prober(&mut self, len: usize) -> Option<&mut Prober> {
        let class = (len / (SECOND_CLASS / 2)).max(1).ilog2();
        self.probers.get_mut((class as usize).min(CLASSES - 1))
    }

    /// Chooses the method for an operation of `len` bytes. `polled`: published time of the last
    /// poll, unless the target sleeps.
    pub(crate) fn choose(&mut self, len: usize, polled: Option<u64>, now: u64) -> CoopMethod {
        if polled.is_none_or(|polled| now.saturating_sub(polled) >= POLLED_NS) {
            return CoopMethod::Alone;
        }
        if self.backoff_left > 0 {
            self.backoff_left -= 1;
            return CoopMethod::Alone;
        }
        match self.prober(len) {
            Some(prober) if !prober.takes_alternative() => CoopMethod::Together,
            _ => CoopMethod::ProbedAlone,
        }
    }

    /// Notes the end of an operation. `taken`: its nanoseconds; `None` if the target should have
    /// taken part and did not.
    pub(crate) fn note_end(&mut self, len: usize, taken: Option<u64>) {
        let Some(taken) = taken else {
            self.backoff = (self.backoff * 2).clamp(1, BACKOFF_MAX);
            self.backoff_left = self.backoff;
            return;
        };
        self.backoff = 0;
        // The lengths of a class differ by a factor of two.
        let cost = (taken << 16) / len.max(1) as u64;
        if let Some(prober) = self.prober(len) {
            prober.record(u32::try_from(cost).unwrap_or(u32::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;
    const NOW: u64 = 1 << 40;

    #[test]
    fn attempts_with_a_silent_target_back_off() {
        let mut choice = CoopChoice::default();
        assert_eq!(choice.choose(LEN, None, NOW), CoopMethod::Alone);
        assert_eq!(choice.choose(LEN, Some(NOW - POLLED_NS), NOW), CoopMethod::Alone);
        for backoff in [1_usize, 2, 4, 8] {
            assert_eq!(choice.choose(LEN, Some(NOW - 1), NOW), CoopMethod::Together);
            choice.note_end(LEN, None);
            let alone = (0..1000)
                .take_while(|_| choice.choose(LEN, Some(NOW), NOW) == CoopMethod::Alone)
                .count();
            assert_eq!(alone, backoff);
        }
        choice.note_end(LEN, Some(1));
        choice.note_end(LEN, None);
        assert_eq!(choice.choose(LEN, Some(NOW), NOW), CoopMethod::Alone);
        assert_eq!(choice.choose(LEN, Some(NOW), NOW), CoopMethod::Together);
    }

    /// Returns the number of operations, of `count`, that the initiator copies alone.
    fn run(choice: &mut CoopChoice, count: usize, costs: [u64; 2]) -> usize {
        let mut alone = 0;
        for _ in 0..count {
            let is_alone = choice.choose(LEN, Some(NOW), NOW) == CoopMethod::ProbedAlone;
            alone += usize::from(is_alone);
            choice.note_end(LEN, Some(costs[usize::from(is_alone)]));
        }
        alone
    }

    #[test]
    fn the_faster_method_is_used() {
        let mut choice = CoopChoice::default();
        assert!(run(&mut choice, 1000, [20_000, 40_000]) < 50);
        let mut choice = CoopChoice::default();
        assert!(run(&mut choice, 1000, [40_000, 20_000]) > 800);
    }

    #[test]
    fn lengths_of_any_size_have_a_class() {
        let mut choice = CoopChoice::default();
        for len in [0, 1, 128 << 10, 1 << 30, usize::MAX] {
            assert!(choice.prober(len).is_some());
        }
    }
}
