// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Exchange of the first messages of a connection: greeting, welcome, confirmation.
//!
//! Not about their bytes (`frame`). A network that connects on demand can lose its first message
//! without a report. `tcp` of libfabric 2.5.1 does so when both hosts connect at the same time: one
//! of two sockets is closed, with what was sent over it. So each side holds its records until the
//! other one has answered, and the opener repeats its greeting.

use super::frame::FrameKind;
use crate::segment::Side;

/// Time in nanoseconds until the greeting is repeated, which doubles each time. A longer one delays
/// a connection whose greeting was lost, a shorter one repeats more to peers that compute.
const PAUSE_NS: u64 = 50_000_000;
/// Maximum number of times a greeting is sent. Later ones go over a socket that both hosts keep, so
/// the peer has one of them.
const ATTEMPTS: u32 = 5;

/// State of one side.
#[derive(Debug)]
pub(super) struct Handshake {
    side: Side,
    /// Whether the first message is to be sent.
    is_due: bool,
    /// Number of times the network has taken it.
    attempts: u32,
    /// Time of the last of them.
    sent_ns: u64,
    is_answered: bool,
    /// Whether this side has ended the connection, so that nothing is repeated.
    is_over: bool,
}

impl Handshake {
    pub(super) fn new(side: Side) -> Handshake {
        Handshake {
            side,
            is_due: true,
            attempts: 0,
            sent_ns: 0,
            is_answered: false,
            is_over: false,
        }
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// Whether the first message is to be sent, for the first time or again.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns the first message, if it is to be sent.
    pub(super) fn take_due(&mut self) -> Option<FrameKind> {
        let first = match self.side {
            Side::Opener => FrameKind::Greeting,
            Side::Acceptor => FrameKind::Welcome,
        };
        std::mem::take(&mut self.is_due).then_some(first)
    }

    /// Notes that the network has taken a message, which is a first one before the answer.
    pub(super) fn note_taken(&mut self, now: u64) {
        if !self.may_send() {
            self.attempts = self.attempts.saturating_add(1);
            self.sent_ns = now;
        }
    }

    /// Whether the network has taken the first message.
    pub(super) fn is_taken(&self) -> bool {
        self.attempts > 0
    }

    /// Notes a message of the peer that is not a greeting. Returns whether it is the first.
    pub(super) fn note_answer(&mut self) -> bool {
        !std::mem::replace(&mut self.is_answered, true)
    }

    /// Whether the first answer of the peer may be of that kind. An acceptor proves the key before
    /// it sends records, or ends the connection.
    pub(super) fn permits_first(&self, kind: FrameKind) -> bool {
        use FrameKind::{Bye, Refusal, Reset, Welcome};
        self.side == Side::Acceptor || matches!(kind, Welcome | Refusal(_) | Bye | Reset)
    }

    /// Notes a greeting. Returns false if this side does not expect one.
    pub(super) fn note_greeting(&mut self) -> bool {
        // The answer to the last one may be lost.
        self.ask();
        self.side == Side::Acceptor
    }

    /// Makes the answer to a greeting due again, which reaches a peer that lives.
    pub(super) fn ask(&mut self) {
        self.is_due |= self.side == Side::Acceptor && !self.may_send();
    }

    /// Notes that this side ends the connection. Its last records do not wait for the peer.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Makes an unanswered greeting due after its pause.
    pub(super) fn check(&mut self, now: u64) {
        let pause = PAUSE_NS << self.attempts.saturating_sub(1).min(ATTEMPTS);
        if self.is_repeating() && now.saturating_sub(self.sent_ns) >= pause {
            self.is_due = true;
        }
    }

    /// Makes a greeting without an answer due after the longest pause, however often it was sent.
    pub(super) fn ask_follower(&mut self, now: u64) {
        let is_over = self.attempts >= ATTEMPTS && !self.may_send();
        self.is_due |= is_over && now.saturating_sub(self.sent_ns) >= PAUSE_NS << ATTEMPTS;
    }

    /// Makes the greeting due again, for a proof that the peer asks for.
    pub(super) fn prove(&mut self) {
        self.is_due |= !self.may_send();
    }

    /// Makes a lost greeting due. Returns false if it was sent too often, or more may be lost.
    pub(super) fn retry(&mut self) -> bool {
        let may_retry = self.side == Side::Opener && (self.is_due || self.is_repeating());
        self.is_due |= may_retry;
        may_retry
    }

    /// Whether the greeting may have to be repeated.
    pub(super) fn is_repeating(&self) -> bool {
        self.side == Side::Opener && !self.may_send() && !self.is_due && self.attempts < ATTEMPTS
    }

    /// Whether messages behind the first one may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.is_answered || self.is_over
    }

    /// Whether this is a repeated answer, which has no effect.
    pub(super) fn is_repeated(&self, kind: FrameKind) -> bool {
        self.side == Side::Opener && self.is_answered && kind == FrameKind::Welcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_repeated_until_the_answer_and_not_for_ever() {
        let mut opener = Handshake::new(Side::Opener);
        let (mut now, mut sent) = (7, 0);
        while opener.is_due() || opener.is_repeating() {
            if opener.take_due().is_some() {
                opener.note_taken(now);
                sent += 1;
            }
            now += PAUSE_NS / 2;
            opener.check(now);
        }
        assert_eq!(sent, ATTEMPTS);
        assert!(now < 20 * PAUSE_NS, "{now} ns");
        let mut opener = Handshake::new(Side::Opener);
        assert_eq!(opener.take_due(), Some(FrameKind::Greeting));
        assert!(!opener.is_taken());
        opener.note_taken(7);
        assert!(opener.is_taken());
        assert!(!opener.may_send() && !opener.is_repeated(FrameKind::Welcome));
        assert!(opener.note_answer() && !opener.note_answer());
        opener.check(u64::MAX);
        assert!(opener.may_send() && !opener.is_due() && !opener.is_repeating());
        assert!(opener.is_repeated(FrameKind::Welcome));
        assert!(!opener.note_greeting(), "an opener expects none");
    }

    #[test]
    fn a_greeting_is_sent_again_with_a_proof() {
        let mut opener = Handshake::new(Side::Opener);
        opener.take_due();
        opener.note_taken(7);
        opener.prove();
        assert_eq!(opener.take_due(), Some(FrameKind::Greeting));
        opener.note_answer();
        opener.prove();
        assert!(!opener.is_due());
    }

    #[test]
    fn nothing_is_repeated_at_the_end() {
        for side in [Side::Opener, Side::Acceptor] {
            let mut handshake = Handshake::new(side);
            assert!(!handshake.may_send());
            handshake.end();
            assert!(handshake.may_send() && handshake.take_due().is_some(), "sent once");
            handshake.note_taken(7);
            handshake.check(u64::MAX);
            handshake.ask();
            handshake.note_greeting();
            assert!(!handshake.is_due() && !handshake.is_repeating());
        }
    }

    #[test]
    fn an_acceptor_answers_each_greeting_until_it_is_confirmed() {
        let mut acceptor = Handshake::new(Side::Acceptor);
        for _ in 0..3 {
            assert_eq!(acceptor.take_due(), Some(FrameKind::Welcome));
            acceptor.note_taken(7);
            acceptor.check(u64::MAX);
            assert!(!acceptor.is_due() && !acceptor.is_repeating());
            assert!(acceptor.note_greeting());
        }
        acceptor.take_due();
        assert!(acceptor.note_answer() && acceptor.note_greeting() && !acceptor.is_due());
    }
}
