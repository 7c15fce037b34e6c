// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections that this side opens, until the peer has proved the key of the job.
//!
//! Not about the proofs (`key`). Without a key a connection takes records before the peer has
//! answered. With one it does not, since the peer may be refused, and records would seem sent.

use foldhash::{HashMap, HashMapExt};

use crate::addr::PortId;

/// Time in nanoseconds after an answer for which the owner may ask for the connection. Then the
/// port reports it like one that it accepts, since the peer may send over it. A longer time delays
/// the messages of that peer, a shorter one reports connections that are asked for.
const CLAIM_NS: u64 = 1_000_000;
/// Minimum number of polls after an answer, for an owner that polls rarely.
const CLAIM_POLLS: u32 = 8;

/// State of a pending connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PendingState {
    /// The peer has not answered.
    Unanswered,
    /// The peer has answered, or the connection has ended.
    Answered,
    /// The peer has answered, and the owner has another connection with it, so that it does not ask
    /// for this one.
    Superseded,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
struct Pending {
    token: u64,
    /// Time of the answer; 0 before.
    answered_ns: u64,
    /// Number of polls after the answer.
    polls: u32,
}

/// The connections, by their peer.
#[derive(Debug)]
pub(super) struct PendingConnects(HashMap<PortId, Pending>);

impl PendingConnects {
    pub(super) fn new() -> PendingConnects {
        PendingConnects(HashMap::new())
    }

    pub(super) fn add(&mut self, peer: PortId, token: u64) {
        self.0.insert(peer, Pending { token, answered_ns: 0, polls: 0 });
    }

    pub(super) fn token(&self, peer: PortId) -> Option<u64> {
        self.0.get(&peer).map(|pending| pending.token)
    }

    pub(super) fn remove(&mut self, peer: PortId) {
        self.0.remove(&peer);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all of them; returns their tokens.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        self.0.drain().map(|(_, pending)| pending.token).collect()
    }

    /// Removes those that the owner has not asked for in time after their answer, by the state of
    /// each peer and token; returns their tokens.
    pub(super) fn take_unclaimed(
        &mut self,
        now: u64,
        state: impl Fn(PortId, u64) -> PendingState,
    ) -> Vec<u64> {
        let mut unclaimed = Vec::new();
        self.0.retain(|peer, pending| {
            let is_over = match state(*peer, pending.token) {
                PendingState::Unanswered => return true,
                PendingState::Answered => pending.count(now),
                PendingState::Superseded => true,
            };
            if is_over {
                unclaimed.push(pending.token);
            }
            !is_over
        });
        unclaimed
    }

    /// Whether the peers of all of them have not answered.
    pub(super) fn are_unanswered(&self) -> bool {
        self.0.values().all(|pending| pending.answered_ns == 0)
    }
}

impl Pending {
    /// Notes a poll after the answer. Returns whether the time for the owner is over.
    fn count(&mut self, now: u64) -> bool {
        if self.answered_ns == 0 {
            self.answered_ns = now;
        }
        self.polls = self.polls.saturating_add(1);
        self.polls > CLAIM_POLLS && now.saturating_sub(self.answered_ns) > CLAIM_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answered_connections_are_unclaimed_after_a_while() {
        let mut pending = PendingConnects::new();
        let [answered, silent, met] = [1, 2, 3].map(|port| PortId::new(0, port));
        pending.add(answered, 11);
        pending.add(silent, 12);
        pending.add(met, 13);
        assert_eq!(pending.token(silent), Some(12));
        assert!(pending.are_unanswered());
        let mut take = |now| {
            pending.take_unclaimed(now, |_, token| match token {
                11 => PendingState::Answered,
                12 => PendingState::Unanswered,
                _ => PendingState::Superseded,
            })
        };
        assert_eq!(take(100), [13]);
        for _ in 1..CLAIM_POLLS {
            assert!(take(101 + CLAIM_NS).is_empty(), "the owner polls rarely");
        }
        assert!(take(100 + CLAIM_NS).is_empty(), "the owner polls often");
        assert_eq!(take(101 + CLAIM_NS), [11]);
        assert!(take(u64::MAX).is_empty());
        assert_eq!((pending.token(answered), pending.token(silent)), (None, Some(12)));
        assert!(pending.are_unanswered());
        assert_eq!(pending.take_all(), [12]);
        assert!(pending.is_empty());
    }
}
