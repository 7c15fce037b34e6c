// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Evidence that the peer of a connection lives.
//!
//! Not about the messages themselves (`stream`). A network reports the death of a peer only for
//! what is in flight at that moment. Later it takes no message to that peer, for as long as it is
//! asked. So an owner that waits for a peer sends pings: a network that takes them reaches a living
//! host, even while the process computes. A process that is stopped or computes is not dead, unless
//! the user has set a limit for answers.

use super::wire::PeerLimits;
use crate::addr::PortId;

/// Time in nanoseconds without a message of the peer after which a ping is sent, and between two
/// pings. A longer one delays the news of a death, a shorter one costs both sides messages.
const PING_NS: u64 = 200_000_000;
/// Number of pings without an answer after which they become rare, so that they do not fill the
/// buffers of a peer that is stopped.
const PINGS_OFTEN: u32 = 250;
/// Time in nanoseconds between two rare pings.
const PING_RARELY_NS: u64 = 10_000_000_000;
/// Time in nanoseconds for which a network may refuse messages to a peer before a line of the log
/// names that peer. A shorter one would log peers that compute and make no progress.
const SLOW_NS: u64 = 10_000_000_000;

/// Evidence of one peer.
#[derive(Debug)]
pub(super) struct PeerWatch {
    limits: PeerLimits,
    /// Random number of the peer's end of the network; 0 before it is known.
    mark: u64,
    /// Time of the last message of the peer; 0 before the first.
    received_ns: u64,
    /// Time of the last ping.
    pinged_ns: u64,
    /// Number of pings since the last message of the peer, and the time of the first of them.
    unanswered: u32,
    unanswered_ns: u64,
    /// Time since which the network refuses messages; 0 while it takes them.
    refused_ns: u64,
    /// Whether the network has lost a message to the peer, to which it was connected.
    was_met: bool,
    is_logged: bool,
}

impl PeerWatch {
    pub(super) fn new(limits: PeerLimits) -> PeerWatch {
        PeerWatch {
            limits,
            mark: 0,
            received_ns: 0,
            pinged_ns: 0,
            unanswered: 0,
            unanswered_ns: 0,
            refused_ns: 0,
            was_met: false,
            is_logged: false,
        }
    }

    pub(super) fn note_received(&mut self, now: u64) {
        self.received_ns = now;
        self.unanswered = 0;
    }

    /// Notes the random number of the peer's end of the network.
    pub(super) fn note_mark(&mut self, mark: u64) {
        self.mark = mark;
    }

    /// Whether that end is known, and has the random number `mark`.
    pub(super) fn is_of_mark(&self, mark: u64) -> bool {
        mark != 0 && self.mark == mark
    }

    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    pub(super) fn has_received(&self) -> bool {
        self.received_ns != 0
    }

    /// Returns whether a ping is due, while the owner waits for the peer, and notes it.
    pub(super) fn take_ping(&mut self, now: u64) -> bool {
        let pause = if self.unanswered < PINGS_OFTEN { PING_NS } else { PING_RARELY_NS };
        // Before the first message of the peer, the greeting is on its way.
        if self.received_ns == 0 || now < self.received_ns.max(self.pinged_ns).saturating_add(pause)
        {
            return false;
        }
        self.pinged_ns = now;
        if self.unanswered == 0 {
            self.unanswered_ns = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        true
    }

    /// Whether pings have been unanswered for longer than the limit. Logs it.
    pub(super) fn is_silent(&self, now: u64, peer: PortId, provider: &str) -> bool {
        let silence = now.saturating_sub(self.unanswered_ns);
        if self.limits.silent_ns == 0 || self.unanswered == 0 || silence <= self.limits.silent_ns {
            return false;
        }
        log::warn!(
            "connection to {peer} over {provider}: no answer to {} pings in {} ms; connection \
             ended. Check the host of that process; if it computes for longer, raise \
             FI_SCIF_NET_SILENCE",
            self.unanswered,
            silence / 1_000_000
        );
        true
    }

    /// Notes the loss of a message to the peer. Refusals that follow show its death.
    pub(super) fn note_lost(&mut self) {
        self.was_met = true;
    }

    /// Notes that the network has taken a message.
    pub(super) fn note_taken(&mut self) {
        (self.refused_ns, self.is_logged) = (0, false);
    }

    /// Notes that the network does not take a message to `peer`. Returns true if the peer is dead.
    pub(super) fn note_refused(&mut self, now: u64, peer: PortId, provider: &str) -> bool {
        if self.refused_ns == 0 {
            self.refused_ns = now;
        }
        let refused = now.saturating_sub(self.refused_ns);
        if self.received_ns != 0 || self.was_met {
            return refused > self.limits.refused_ns;
        }
        if refused > SLOW_NS && !std::mem::replace(&mut self.is_logged, true) {
            log::warn!(
                "{provider} has taken no message to {peer} for {} s, and is tried again. Check \
                 that its process runs and that no firewall is between the hosts",
                SLOW_NS / 1_000_000_000
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED_NS: u64 = 2_000_000_000;
    const LIMITS: PeerLimits = PeerLimits { refused_ns: REFUSED_NS, silent_ns: 0 };

    #[test]
    fn silence_has_a_limit_only_where_it_is_set() {
        let peer = PortId::new(0, 1);
        let limited = PeerLimits { silent_ns: 3 * PING_NS, ..LIMITS };
        let [mut endless, mut watch] = [LIMITS, limited].map(PeerWatch::new);
        let begin = 5;
        for watch in [&mut endless, &mut watch] {
            watch.note_received(begin);
            assert!(!watch.is_silent(u64::MAX, peer, "double"), "no ping was sent");
            assert!(watch.take_ping(begin + PING_NS) && watch.take_ping(begin + 2 * PING_NS));
        }
        assert!(!endless.is_silent(u64::MAX, peer, "double"));
        assert!(!watch.is_silent(begin + 4 * PING_NS, peer, "double"));
        assert!(watch.is_silent(begin + 4 * PING_NS + 1, peer, "double"));
        watch.note_received(begin + 4 * PING_NS);
        assert!(!watch.is_silent(u64::MAX, peer, "double"));
    }

    #[test]
    fn pings_follow_silence_and_become_rare() {
        let mut watch = PeerWatch::new(LIMITS);
        assert!(!watch.take_ping(u64::MAX), "no message has arrived yet");
        let mut now = 1_000;
        watch.note_received(now);
        assert!(!watch.take_ping(now));
        for _ in 0..PINGS_OFTEN {
            now += PING_NS;
            assert!(watch.take_ping(now) && !watch.take_ping(now));
        }
        assert!(!watch.take_ping(now + PING_NS) && watch.take_ping(now + PING_RARELY_NS));
        watch.note_received(now + PING_RARELY_NS);
        assert!(watch.take_ping(now + PING_RARELY_NS + PING_NS), "often again");
    }

    #[test]
    fn only_a_peer_that_has_answered_dies_by_refusals() {
        let peer = PortId::new(0, 1);
        let mut watch = PeerWatch::new(LIMITS);
        assert!(!watch.note_refused(5, peer, "double"));
        assert!(!watch.note_refused(5 + 10 * SLOW_NS, peer, "double") && watch.is_logged);
        let mut lost = PeerWatch::new(LIMITS);
        lost.note_lost();
        assert!(!lost.note_refused(5, peer, "double"));
        assert!(lost.note_refused(6 + REFUSED_NS, peer, "double"));
        watch.note_received(7);
        watch.note_taken();
        assert!(!watch.note_refused(10, peer, "double"));
        assert!(!watch.note_refused(10 + REFUSED_NS, peer, "double"));
        watch.note_taken();
        assert!(!watch.note_refused(11 + REFUSED_NS, peer, "double"), "it was taken in between");
        assert!(watch.note_refused(12 + 2 * REFUSED_NS, peer, "double"));
    }
}
