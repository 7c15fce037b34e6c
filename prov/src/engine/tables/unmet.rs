// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sources of directed receives without a connection, and the times of the attempts to connect.
//!
//! Not here: the attempts themselves (`source_watch`).

use scif::{ConnId, PortId};

use crate::engine::types::peer_id::PeerId;
use crate::engine::types::peer_state::RECONNECT_NS;

/// Interval in nanoseconds between liveness checks. A longer one delays `FI_ECONNRESET`.
pub(crate) const ALIVE_NS: u64 = 5_000_000;
/// Number of open directed receives for which two scans are one liveness check further apart. It
/// bounds the time spent in scans to about a percent.
const RECEIVES_PER_SCAN: usize = 512;
/// Maximum number of attempts per liveness check. A larger number makes a single poll longer; an
/// attempt takes about 0.1 ms.
const ATTEMPTS_PER_CHECK: usize = 4;
/// Pause in nanoseconds after the first refused attempt. A shorter one burdens the start of jobs.
const PAUSE_MIN_NS: u64 = ALIVE_NS;
/// Longest pause in nanoseconds between two refused attempts. A peer that starts and dies within it
/// is not noticed.
pub(crate) const PAUSE_MAX_NS: u64 = 1_000_000_000;
/// Number of attempts with a full backlog after which a source counts as tried. A larger number
/// keeps the program from sleep for longer, about 5 ms each.
const FULL_BACKLOGS_MAX: u8 = 50;

/// Source of an open receive that has no connection, or one that is not up yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmet {
    pub(crate) peer: PeerId,
    pub(crate) id: PortId,
    /// Time of the next attempt in nanoseconds.
    due_ns: u64,
    /// Pause in nanoseconds after the next attempt.
    pause_ns: u64,
    /// Time in nanoseconds since which all attempts were refused; 0: the last one was not.
    refused_since_ns: u64,
    /// Whether an attempt was made.
    tried: bool,
    /// Number of attempts that found a full backlog.
    full_backlogs: u8,
}

impl Unmet {
    /// Sets the time of the attempt that follows the present one.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.tried = true;
        self.due_ns = now_ns + self.pause_ns;
    }

    /// Notes an attempt that found a full backlog. It counts as made after [`FULL_BACKLOGS_MAX`] of
    /// them, so that a stopped source does not keep the program from sleep.
    pub(crate) fn note_full_backlog(&mut self) {
        self.full_backlogs = self.full_backlogs.saturating_add(1);
        self.tried = self.full_backlogs >= FULL_BACKLOGS_MAX;
    }

    /// Doubles the pause after an attempt with an answer.
    pub(crate) fn slow_down(&mut self) {
        self.pause_ns = PAUSE_MAX_NS.min(2 * self.pause_ns);
    }

    /// Notes whether the source has refused. Returns true once it has refused for
    /// [`RECONNECT_NS`].
    pub(crate) fn note_answer(&mut self, refused: bool, now_ns: u64) -> bool {
        if !refused {
            self.refused_since_ns = 0;
        } else if self.refused_since_ns == 0 {
            self.refused_since_ns = now_ns;
        }
        refused && now_ns.saturating_sub(self.refused_since_ns) >= RECONNECT_NS
    }
}

/// Sources without a connection, by ascending peer number.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent conditions")]
pub(crate) struct UnmetSources {
    list: Vec<Unmet>,
    /// Whether a source may exist without any attempt to connect to it.
    untried: bool,
    /// Whether a source that awaits its first attempt may be missing in the list.
    noted: bool,
    /// Connections that were made for receives only.
    made: Vec<ConnId>,
    /// Whether the endpoint closes and makes no more connections.
    closing: bool,
    /// Whether a source may be missing in the list.
    incomplete: bool,
    scanned_ns: u64,
}

impl UnmetSources {
    /// Returns whether a source awaits its first attempt. Only polls make it.
    pub(crate) fn is_untried(&self) -> bool {
        self.untried
    }

    /// Notes a receive from a source that has no connection.
    pub(crate) fn note(&mut self) {
        self.untried = true;
        self.noted = true;
        self.incomplete = true;
    }

    /// Notes connections made for receives only.
    pub(crate) fn note_made(&mut self, conns: &mut Vec<ConnId>) {
        self.made.append(conns);
    }

    /// Notes the end of a connection. Returns whether it was made for receives only.
    pub(crate) fn note_ended(&mut self, conn: ConnId) -> bool {
        let at = self.made.iter().position(|made| *made == conn);
        at.map(|at| self.made.swap_remove(at)).is_some()
    }

    /// Forgets earlier refusals of `peer`.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.list.retain(|u| u.peer != peer);
    }

    /// Removes all sources, after the end of the last receive.
    pub(crate) fn clear(&mut self) {
        self.list = Vec::new();
        self.untried = false;
        self.noted = false;
        self.incomplete = false;
    }

    /// Ends all attempts, before the endpoint closes.
    pub(crate) fn close(&mut self) {
        self.clear();
        self.closing = true;
    }

    /// Returns whether the endpoint closes.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether the open receives, `receives` in number, have to be scanned for sources.
    pub(crate) fn wants_scan(&self, receives: usize, now_ns: u64) -> bool {
        let checks = 1 + (receives / RECEIVES_PER_SCAN) as u64;
        (self.incomplete || self.is_due(now_ns))
            && now_ns.saturating_sub(self.scanned_ns) >= checks.saturating_mul(ALIVE_NS)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.list.iter().any(|u| u.due_ns <= now_ns)
    }

    /// Sets the sources, by ascending peer number. Known ones keep their pauses. The attempts at
    /// ports below `own` begin one liveness check later.
    pub(crate) fn set(&mut self, sources: &[(PeerId, PortId)], own: PortId, now_ns: u64) {
        self.scanned_ns = now_ns;
        self.noted = false;
        self.incomplete = false;
        let former = std::mem::take(&mut self.list);
        self.list = sources
            .iter()
            .map(|&(peer, id)| {
                let known = former.binary_search_by_key(&peer, |u| u.peer).ok();
                let known = known.and_then(|at| former.get(at)).filter(|u| u.id == id);
                known.copied().unwrap_or(Unmet {
                    peer,
                    id,
                    due_ns: now_ns + if own < id { 0 } else { ALIVE_NS },
                    pause_ns: PAUSE_MIN_NS,
                    refused_since_ns: 0,
                    tried: false,
                    full_backlogs: 0,
                })
            })
            .collect();
        self.note_tried();
    }

    /// Calls `attempt` for the sources that are due, a few at most: those due for the longest.
    pub(crate) fn attempt_due(&mut self, now_ns: u64, attempt: impl FnMut(&mut Unmet)) {
        if !self.is_due(now_ns) {
            return;
        }
        let sources = self.list.iter_mut();
        let mut due: Vec<&mut Unmet> = sources.filter(|u| u.due_ns <= now_ns).collect();
        if due.len() > ATTEMPTS_PER_CHECK {
            due.select_nth_unstable_by_key(ATTEMPTS_PER_CHECK, |u| u.due_ns);
            due.truncate(ATTEMPTS_PER_CHECK);
        }
        due.into_iter().for_each(attempt);
        self.note_tried();
    }

    /// Updates [`UnmetSources::is_untried`].
    fn note_tried(&mut self) {
        self.untried = self.noted || self.list.iter().any(|u| !u.tried);
    }

    #[cfg(test)]
    pub(crate) fn longest_pause(&self) -> u64 {
        self.list.iter().map(|u| u.pause_ns).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest number of addresses of a node that peers of one job have.
    const MANY: usize = 10_000;

    fn id(port: usize) -> PortId {
        let port = u16::try_from(port).unwrap_or(u16::MAX);
        PortId::new(0, port)
    }

    #[test]
    fn many_sources_are_tried_a_few_at_a_time_and_once_within_13_s() {
        let mut unmet = UnmetSources::default();
        let sources: Vec<_> = (0..MANY).map(|at| (PeerId::new(at), id(at + 2))).collect();
        unmet.note();
        let (mut now_ns, mut scans, mut most) = (ALIVE_NS, 0, 0);
        let mut tried = std::collections::HashSet::new();
        while unmet.is_untried() {
            now_ns += ALIVE_NS;
            if unmet.wants_scan(sources.len(), now_ns) {
                scans += 1;
                unmet.set(&sources, id(1), now_ns);
            }
            let mut attempts = 0;
            unmet.attempt_due(now_ns, |source| {
                source.begin(now_ns);
                source.slow_down();
                // Nobody answers until each has been tried.
                source.due_ns = u64::MAX;
                attempts += 1;
                assert!(tried.insert(source.peer), "twice: {source:?}");
            });
            most = most.max(attempts);
        }
        assert_eq!((tried.len(), most), (MANY, ATTEMPTS_PER_CHECK));
        assert!(now_ns < 13_000_000_000, "{now_ns} ns");
        assert!(scans <= 1 + now_ns / (20 * ALIVE_NS), "{scans} scans");
        unmet.clear();
        assert_eq!((unmet.list.capacity(), unmet.is_untried()), (0, false));
    }

    #[test]
    fn full_backlog_of_a_source_prevents_sleep_for_a_limited_time() {
        let mut unmet = UnmetSources::default();
        unmet.note();
        unmet.set(&[(PeerId::new(7), id(9))], id(1), 0);
        let mut checks = 0;
        while unmet.is_untried() {
            checks += 1;
            assert!(checks <= u64::from(FULL_BACKLOGS_MAX), "no end");
            unmet.attempt_due(checks * ALIVE_NS, |source| {
                source.begin(checks * ALIVE_NS);
                source.note_full_backlog();
            });
        }
        assert_eq!(checks, u64::from(FULL_BACKLOGS_MAX));
    }

    #[test]
    fn connections_for_receives_are_known_until_their_end() {
        let mut unmet = UnmetSources::default();
        let conn = ConnId { index: 1, generation: 2 };
        unmet.note_made(&mut vec![conn]);
        assert!(unmet.note_ended(conn) && !unmet.note_ended(conn));
    }

    #[test]
    fn reused_peer_number_restarts_the_attempts() {
        let (mut unmet, seven) = (UnmetSources::default(), PeerId::new(7));
        unmet.set(&[(seven, id(9))], id(1), 0);
        for attempt in 1..20 {
            unmet.attempt_due(attempt * PAUSE_MAX_NS, |source| {
                source.begin(attempt * PAUSE_MAX_NS);
                source.slow_down();
            });
        }
        unmet.set(&[(seven, id(9))], id(1), 0);
        assert_eq!((unmet.longest_pause(), unmet.is_untried()), (PAUSE_MAX_NS, false));
        unmet.set(&[(seven, id(10))], id(1), 0);
        assert_eq!((unmet.longest_pause(), unmet.is_untried()), (PAUSE_MIN_NS, true));
    }
}
