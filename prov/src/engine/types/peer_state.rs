// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of a peer as its connections and the attempts to connect show it: met, present, left or
//! failed.
//!
//! Not here: the connections themselves (`peer_conn`), and what follows from an end
//! (`peer_failure`).

use libfabric_sys as fi;

use crate::base::errno::Errno;

/// Time in nanoseconds for which a connect to a known peer without a listener is retried, as the
/// peer may be restarting. After it operations fail with `FI_ECONNRESET`. For a peer that was never
/// reached `FI_SCIF_CONNECT_TIMEOUT` applies.
pub(crate) const RECONNECT_NS: u64 = 50_000_000;
/// Pause in nanoseconds between two connect attempts. A longer one delays the first message.
const RETRY_NS: u64 = 50_000;
/// Share of the time for which connects have failed with an error number: the pause before the next
/// one, so that success comes at most that much later.
const PAUSE_SHARE: u64 = 16;
/// Maximum of that pause in nanoseconds.
const PAUSE_MAX_NS: u64 = 50_000_000;

/// Closest contact with a peer so far.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Contact {
    Never,
    /// A connect has found the listener. A missing listener then means the end of the peer.
    Listener,
    /// A connection was up.
    Up,
}

/// Presence of a peer since it was last seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    Present,
    /// Closed gracefully. Sends fail, but receives wait for its return.
    Left,
    /// Died. Operations to it and receives from it fail.
    Failed,
}

/// Reason for which connects fail, and the time in nanoseconds since which they do.
#[derive(Clone, Copy, Debug)]
struct Failing {
    since_ns: u64,
    /// Error that prevents a connection to an existing peer; 0 if no listener was found.
    errno: Errno,
}

#[derive(Debug)]
pub(crate) struct PeerState {
    contact: Contact,
    presence: Presence,
    failing: Option<Failing>,
    /// Version of the address vector when the peer failed.
    failed_at: u64,
    /// Time in nanoseconds before which no connect is attempted; 0: none failed.
    pub(crate) retry_at_ns: u64,
}

impl PeerState {
    pub(crate) const fn new() -> PeerState {
        PeerState {
            contact: Contact::Never,
            presence: Presence::Present,
            failing: None,
            failed_at: 0,
            retry_at_ns: 0,
        }
    }

    /// Whether a connection with the peer was up.
    pub(crate) fn was_up(&self) -> bool {
        self.contact == Contact::Up
    }

    /// Whether this endpoint has found the peer at its port before.
    pub(crate) fn was_there(&self) -> bool {
        self.contact > Contact::Never
    }

    /// Whether the peer died and has not been seen since.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.presence == Presence::Failed
    }

    /// Whether the peer closed gracefully and has not been seen since.
    pub(crate) fn has_left(&self) -> bool {
        self.presence == Presence::Left
    }

    /// Notes a connect that has found the listener.
    pub(crate) fn on_listener(&mut self) {
        self.contact = self.contact.max(Contact::Listener);
        self.presence = Presence::Present;
        self.failing = None;
    }

    /// Notes that a connection is up.
    pub(crate) fn on_up(&mut self) {
        self.contact = Contact::Up;
    }

    /// Notes a connection that the peer has opened.
    pub(crate) fn on_accepted(&mut self) {
        self.on_up();
        self.presence = Presence::Present;
    }

    /// Notes another sign of life.
    pub(crate) fn on_seen(&mut self) {
        if self.has_failed() {
            self.presence = Presence::Present;
        }
    }

    /// Notes a graceful end. The peer has left if that was its last connection, unless another
    /// context of its endpoint has died.
    pub(crate) fn on_closed(&mut self, last: bool) {
        if last {
            if !self.has_failed() {
                self.presence = Presence::Left;
            }
        } else if self.has_left() {
            self.presence = Presence::Present;
        }
    }

    /// Notes the death of the peer while the address vector has version `av_version`.
    pub(crate) fn on_failed(&mut self, av_version: u64) {
        self.presence = Presence::Failed;
        self.failed_at = av_version;
    }

    /// Notes that the address of the peer was last inserted in version `inserted_at` of the address
    /// vector. An insertion after its death names a new process at the same address.
    pub(crate) fn on_inserted(&mut self, inserted_at: u64) {
        if self.has_failed() && inserted_at > self.failed_at {
            self.presence = Presence::Present;
            self.reset_attempts();
        }
    }

    /// Forgets the attempts to connect.
    pub(crate) fn reset_attempts(&mut self) {
        self.failing = None;
        self.retry_at_ns = 0;
    }

    /// Delays the next connect after an attempt at time `now`.
    pub(crate) fn delay_connect(&mut self, now: u64) {
        self.retry_at_ns = now + RETRY_NS;
    }

    /// Notes a failed connect. `errno`: error that prevents a connection to an existing peer; 0 if
    /// no listener was found. Returns whether connects fail for a new reason: each of the two
    /// cases, no listener and no access, has its own time limit.
    pub(crate) fn on_connect_failed(&mut self, now: u64, errno: Errno) -> bool {
        let is_new = match &mut self.failing {
            Some(failing) if (failing.errno == 0) == (errno == 0) => {
                failing.errno = errno;
                false
            }
            failing => {
                let since_ns = now;
                *failing = Some(Failing { since_ns, errno });
                true
            }
        };
        if errno != 0 && errno != fi::FI_ETIMEDOUT {
            // A lack of a resource often lasts, and each attempt costs a thread over a driver.
            let pause = self.failing_for(now) / PAUSE_SHARE;
            self.retry_at_ns = now + pause.clamp(RETRY_NS, PAUSE_MAX_NS);
        }
        is_new
    }

    /// Returns the time in nanoseconds for which connects have failed.
    pub(crate) fn failing_for(&self, now: u64) -> u64 {
        self.failing.map_or(0, |f| now.saturating_sub(f.since_ns))
    }

    /// Returns the error that prevents a connection to an existing peer, while one does.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        self.failing.map(|failing| failing.errno).filter(|errno| *errno != 0)
    }

    /// Whether a connect was attempted and nothing has refused it so far.
    pub(crate) fn is_connecting(&self) -> bool {
        let unanswered = self.failing.is_none_or(|f| f.errno == fi::FI_ETIMEDOUT);
        self.retry_at_ns != 0 && unanswered
    }

    /// Returns the error for operations to the peer, once connects have failed for longer than the
    /// limit. For a peer that was never reached the limit is `timeout` nanoseconds. The flag is
    /// true if the peer has ended, and false if it exists but cannot be reached.
    pub(crate) fn expired(&self, now: u64, timeout: u64) -> Option<(Errno, bool)> {
        let failing = self.failing?;
        let limit = if self.was_there() && failing.errno == 0 {
            RECONNECT_NS.min(timeout)
        } else {
            timeout
        };
        (self.failing_for(now) > limit).then_some(match failing.errno {
            0 if self.was_there() => (fi::FI_ECONNRESET, true),
            0 => (fi::FI_ECONNREFUSED, true),
            errno => (errno, false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 10 * RECONNECT_NS;

    #[test]
    fn a_failed_peer_is_present_when_seen_again() {
        let seen: [fn(&mut PeerState); 3] =
            [PeerState::on_listener, PeerState::on_accepted, PeerState::on_seen];
        for on_seen in seen {
            let mut state = PeerState::new();
            state.on_failed(1);
            assert!(state.has_failed() && !state.has_left());
            on_seen(&mut state);
            assert!(!state.has_failed());
        }
    }

    #[test]
    fn only_an_insertion_after_the_death_names_a_living_peer() {
        let mut state = PeerState::new();
        state.on_failed(7);
        state.on_inserted(7);
        assert!(state.has_failed(), "the address was inserted before");
        state.on_inserted(8);
        assert!(!state.has_failed());
    }

    #[test]
    fn a_peer_has_left_with_its_last_connection() {
        let mut state = PeerState::new();
        state.on_accepted();
        state.on_closed(false);
        assert!(!state.has_left());
        state.on_closed(true);
        state.on_seen();
        assert!(state.has_left() && state.was_up(), "only a connection ends it");
        state.on_listener();
        assert!(!state.has_left() && state.was_up());
    }

    #[test]
    fn a_peer_with_a_dead_context_does_not_leave() {
        let mut state = PeerState::new();
        state.on_accepted();
        state.on_failed(1);
        state.on_closed(true);
        assert!(state.has_failed() && !state.has_left());
    }

    #[test]
    fn connects_that_lack_a_resource_become_rare() {
        let mut state = PeerState::new();
        let (mut now, mut attempts) = (0, 0);
        while state.expired(now, TIMEOUT).is_none() {
            state.on_connect_failed(now, fi::FI_ENOMEM);
            attempts += 1;
            now = now.max(state.retry_at_ns);
        }
        assert!(attempts < 300, "{attempts}");
        let mut refused = PeerState::new();
        refused.delay_connect(now);
        refused.on_connect_failed(now, 0);
        assert_eq!(refused.retry_at_ns, now + RETRY_NS, "a listener may appear at any time");
    }

    #[test]
    fn connects_are_given_up_by_their_reason() {
        let rows = [
            ("never there", false, 0, TIMEOUT, (fi::FI_ECONNREFUSED, true)),
            ("was there", true, 0, RECONNECT_NS, (fi::FI_ECONNRESET, true)),
            ("no access", true, fi::FI_EACCES, TIMEOUT, (fi::FI_EACCES, false)),
        ];
        for (case, was_there, errno, limit, outcome) in rows {
            let mut state = PeerState::new();
            if was_there {
                state.on_listener();
            }
            assert!(state.on_connect_failed(7, errno), "{case}");
            assert!(!state.on_connect_failed(8, errno), "{case}");
            assert_eq!(state.expired(7 + limit, TIMEOUT), None, "{case}");
            assert_eq!(state.expired(8 + limit, TIMEOUT), Some(outcome), "{case}");
            state.reset_attempts();
            assert_eq!(state.expired(u64::MAX, TIMEOUT), None, "{case}");
        }
    }

    #[test]
    fn a_new_reason_restarts_the_time_limit() {
        let mut state = PeerState::new();
        state.on_connect_failed(0, 0);
        assert!(state.on_connect_failed(TIMEOUT, fi::FI_EACCES));
        assert_eq!(state.failing_for(TIMEOUT + 5), 5);
        assert!(!state.on_connect_failed(TIMEOUT + 6, fi::FI_EPERM), "another error, one reason");
    }

    #[test]
    fn a_connect_is_in_progress_until_it_is_refused() {
        let mut state = PeerState::new();
        assert!(!state.is_connecting());
        state.delay_connect(100);
        assert!(state.is_connecting() && state.retry_at_ns == 100 + RETRY_NS);
        state.on_connect_failed(100, fi::FI_ETIMEDOUT);
        assert!(state.is_connecting());
        state.on_connect_failed(100, 0);
        assert!(!state.is_connecting());
    }
}
