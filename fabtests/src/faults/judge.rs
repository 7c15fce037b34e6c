// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Verdicts of the storm's parent: the operations that may fail, and the time from a death to each
//! of its errors.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.

use std::collections::HashMap;

use scif_fabtests::payload::RankId;

/// Time in which a survivor was stopped: start and end.
type Stop = (u64, u64);

/// Deaths and stops so far, and the errors that followed.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    deaths: HashMap<RankId, u64>,
    /// Groups with their members, and the time at which a later group replaced them.
    groups: HashMap<u64, (Vec<RankId>, u64)>,
    stops: HashMap<RankId, Vec<Stop>>,
    /// Nanoseconds from a death, or from the posting if that was later, to the error.
    pub(crate) latencies: Vec<u64>,
    /// Latencies less the longest pause between two polls of the survivor. More ranks than cores
    /// cause such pauses.
    pub(crate) attended: Vec<u64>,
    /// Latencies of operations whose peer died before the provider found its listener. The provider
    /// cannot distinguish such a peer from one that starts late. The error therefore comes only
    /// after `FI_SCIF_CONNECT_TIMEOUT`.
    pub(crate) never_met: Vec<u64>,
    /// Times for receives from silent peers, which no send has ended.
    pub(crate) silent: Vec<u64>,
    pub(crate) group_latencies: Vec<u64>,
}

/// One failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Rank that reports the failure.
    pub(crate) at: RankId,
    pub(crate) posted: u64,
    pub(crate) ended: u64,
    /// Longest recent time in which the rank did not poll.
    pub(crate) pause: u64,
    /// Whether the error is a refusal by a peer that was never found at its address.
    pub(crate) never_met: bool,
    /// Whether nothing was sent to the peer.
    pub(crate) silent: bool,
}

impl Judge {
    /// Records a death; `now` is the time before the signal was sent.
    pub(crate) fn died(&mut self, id: RankId, now: u64) {
        self.deaths.insert(id, now);
    }

    pub(crate) fn is_dead(&self, id: RankId) -> bool {
        self.deaths.contains_key(&id)
    }

    pub(crate) fn stopped(&mut self, id: RankId, from: u64, until: u64) {
        self.stops.entry(id).or_default().push((from, until));
    }

    pub(crate) fn group(&mut self, number: u64, members: Vec<RankId>) {
        self.groups.insert(number, (members, u64::MAX));
    }

    /// Records the time from which the members may end a group, because a later one replaces it.
    pub(crate) fn superseded(&mut self, number: u64, now: u64) {
        if let Some((_, until)) = self.groups.get_mut(&number) {
            *until = (*until).min(now);
        }
    }

    pub(crate) fn group_is_broken(&self, number: u64) -> bool {
        self.groups
            .get(&number)
            .is_some_and(|(members, _)| members.iter().any(|id| self.is_dead(*id)))
    }

    /// Judges an error of an operation with `peer`.
    ///
    /// # Errors
    /// The complaint about a living peer.
    pub(crate) fn error(&mut self, failed: Failed, peer: RankId) -> Result<(), String> {
        let died = self.deaths.get(&peer).copied().filter(|died| *died <= failed.ended);
        let died = died.ok_or_else(|| format!("an operation with living rank {peer} failed"))?;
        let waited = self.waited(failed, died);
        if failed.never_met {
            self.never_met.push(waited);
        } else if failed.silent {
            self.silent.push(waited);
        } else {
            self.latencies.push(waited);
            self.attended.push(waited.saturating_sub(failed.pause));
        }
        Ok(())
    }

    /// Judges the end of a group.
    ///
    /// # Errors
    /// The complaint about a group whose members are all alive.
    pub(crate) fn group_error(&mut self, failed: Failed, number: u64) -> Result<(), String> {
        let (members, superseded) = self.groups.get(&number).ok_or("a group that never was")?;
        let died = members.iter().filter_map(|id| self.deaths.get(id)).min();
        if *superseded <= failed.ended {
            return Ok(());
        }
        let died = died.copied().filter(|died| *died <= failed.ended);
        let died = died.ok_or_else(|| format!("group {number} of living ranks failed"))?;
        let waited = self.waited(failed, died);
        self.group_latencies.push(waited);
        Ok(())
    }

    /// Returns the time since the failure was detectable: since death, posting, or the end of the
    /// survivor's last stop.
    fn waited(&self, failed: Failed, died: u64) -> u64 {
        let begin = died.max(failed.posted);
        let stops = self.stops.get(&failed.at).map_or(&[][..], Vec::as_slice);
        let last = stops.iter().filter(|(from, _)| *from < failed.ended);
        let begin = last.map(|(_, until)| *until).fold(begin, u64::max);
        failed.ended.saturating_sub(begin)
    }
}

/// Distribution of times in milliseconds: count, p50, p99, p99.9 and maximum.
pub(crate) fn distribution(times: &[u64]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |thousandths: usize| {
        let place = (sorted.len() * thousandths / 1000).min(sorted.len().saturating_sub(1));
        let us = sorted.get(place).copied().unwrap_or(0) / 1000;
        format!("{}.{:03}", us / 1000, us % 1000)
    };
    let above = sorted.iter().filter(|time| **time > 100_000_000).count();
    format!(
        "{} errors, p50 {} ms, p99 {} ms, p99.9 {} ms, longest {} ms, {above} above 100 ms",
        sorted.len(),
        at(500),
        at(990),
        at(999),
        at(1000)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RankId = RankId { slot: 0, life: 0 };
    const B: RankId = RankId { slot: 1, life: 4 };

    fn failed(posted: u64, ended: u64) -> Failed {
        Failed { at: A, posted, ended, pause: 4, never_met: false, silent: false }
    }

    #[test]
    fn only_the_dead_may_fail() {
        let mut judge = Judge::default();
        assert!(judge.error(failed(1, 50), B).is_err());
        judge.died(B, 40);
        assert!(judge.error(failed(1, 39), B).is_err(), "before the death");
        assert_eq!(judge.error(failed(1, 50), B), Ok(()));
        assert!(judge.error(failed(1, 50), A).is_err());
        assert_eq!((&judge.latencies[..], &judge.attended[..]), (&[10][..], &[6][..]));
        let unfound = Failed { never_met: true, ..failed(1, 70) };
        assert_eq!(judge.error(unfound, B), Ok(()));
        let silent = Failed { silent: true, ..failed(1, 80) };
        assert_eq!(judge.error(silent, B), Ok(()));
        assert_eq!(
            (&judge.latencies[..], &judge.never_met[..], &judge.silent[..]),
            (&[10][..], &[30][..], &[40][..])
        );
    }

    #[test]
    fn time_starts_when_the_failure_is_detectable() {
        let mut judge = Judge::default();
        judge.died(B, 40);
        judge.stopped(A, 30, 70);
        judge.stopped(A, 200, 300);
        for (posted, ended, waited) in [(1, 90, 20), (80, 90, 10), (1, 75, 5), (1, 301, 1)] {
            judge.error(failed(posted, ended), B).unwrap();
            assert_eq!(judge.latencies.pop(), Some(waited));
        }
    }

    #[test]
    fn a_group_ends_by_a_death_or_a_later_group() {
        let mut judge = Judge::default();
        judge.group(7, vec![A, B]);
        assert!(judge.group_error(failed(1, 50), 7).is_err());
        judge.superseded(7, 60);
        assert!(judge.group_error(failed(1, 50), 7).is_err());
        assert_eq!(judge.group_error(failed(1, 61), 7), Ok(()));
        assert_eq!(judge.group_latencies, []);
        judge.died(B, 45);
        assert!(judge.group_is_broken(7));
        assert_eq!(judge.group_error(failed(1, 50), 7), Ok(()));
        assert_eq!(judge.group_latencies, [5]);
        assert!(judge.group_error(failed(1, 50), 8).is_err());
    }

    #[test]
    fn the_distribution_names_its_parts() {
        let times: Vec<u64> = (1..=1000).map(|n| n * 1_000_000).collect();
        let text = distribution(&times);
        assert_eq!(
            text,
            "1000 errors, p50 501.000 ms, p99 991.000 ms, p99.9 1000.000 ms, longest 1000.000 ms, \
             900 above 100 ms"
        );
        assert!(distribution(&[]).starts_with("0 errors"));
    }
}
