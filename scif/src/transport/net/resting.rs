// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections whose rings may contain pages, until they rest and the pages are released.
//!
//! Not about whether a ring is empty (`stream`). A connection between hosts has 188 KiB of rings in
//! each process, and a job with many peers talks to few of them at a time.

use std::collections::VecDeque;

/// Time in nanoseconds without a message after which a connection rests. A shorter one costs
/// connections that pause page faults, a longer one keeps their memory.
const REST_NS: u64 = 1_000_000_000;
/// Number of polls between two visits. With fewer, the clock costs more than 0.1 ns a poll.
const POLLS: u32 = 256;
/// Maximum number of connections in one visit, each of which takes a system call.
const CONNECTIONS: usize = 16;

/// Connection at its last visit.
#[derive(Debug)]
struct Visited {
    token: u64,
    at_ns: u64,
    /// Number of messages of both directions.
    messages: u64,
}

/// Answer of a connection that may rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PageRelease {
    /// The pages are released, or the connection does not exist.
    Done,
    /// The connection has exchanged this number of messages, or cannot release its pages yet.
    Busy(u64),
}

/// Connections with pages, those with the oldest visit first.
#[derive(Debug, Default)]
pub(super) struct RestingList {
    list: VecDeque<Visited>,
    polls: u32,
}

impl RestingList {
    /// Adds a connection, which is not in the list.
    pub(super) fn add(&mut self, token: u64, now: u64) {
        self.list.push_back(Visited { token, at_ns: now, messages: 0 });
    }

    /// Whether a reading of the clock is due. Called once a poll.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls % POLLS == 0 && !self.list.is_empty()
    }

    /// Visits connections. `release` gets a token and the number of messages at the last visit.
    pub(super) fn visit(&mut self, now: u64, mut release: impl FnMut(u64, u64) -> PageRelease) {
        for _ in 0..CONNECTIONS.min(self.list.len()) {
            let Some(Visited { token, at_ns, messages }) = self.list.pop_front() else { return };
            if now.saturating_sub(at_ns) < REST_NS {
                self.list.push_front(Visited { token, at_ns, messages });
                return;
            }
            if let PageRelease::Busy(messages) = release(token, messages) {
                self.list.push_back(Visited { token, at_ns: now, messages });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Visits at the time `now`; returns the tokens that were asked for.
    fn visited(list: &mut RestingList, now: u64, answer: impl Fn(u64) -> PageRelease) -> Vec<u64> {
        let mut tokens = Vec::new();
        list.visit(now, |token, messages| {
            tokens.push(token);
            answer(messages)
        });
        tokens
    }

    #[test]
    fn connections_are_visited_until_they_rest() {
        let mut list = RestingList::default();
        list.add(1, 0);
        list.add(2, 5);
        assert_eq!(visited(&mut list, REST_NS - 1, PageRelease::Busy), []);
        assert_eq!(visited(&mut list, REST_NS, |_| PageRelease::Busy(7)), [1]);
        assert_eq!(
            visited(&mut list, 2 * REST_NS, |messages| {
                if messages == 7 { PageRelease::Done } else { PageRelease::Busy(messages) }
            }),
            [2, 1]
        );
        assert_eq!(visited(&mut list, 4 * REST_NS, |_| PageRelease::Done), [2]);
        assert_eq!(visited(&mut list, 9 * REST_NS, |_| PageRelease::Done), []);
    }

    #[test]
    fn looks_are_rare_and_bounded() {
        let mut list = RestingList::default();
        assert!((0..2 * POLLS).all(|_| !list.is_due()), "without connections");
        (0..100).for_each(|token| list.add(token, 0));
        let due = (0..4 * POLLS).filter(|_| list.is_due()).count();
        assert_eq!(due, 4);
        assert_eq!(visited(&mut list, REST_NS, |_| PageRelease::Done).len(), CONNECTIONS);
    }
}
