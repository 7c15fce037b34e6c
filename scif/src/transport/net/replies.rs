// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! StrayReplies to processes without a connection, and refusals by peers.
//!
//! Not about the reasons for a refusal (`key`, `frame`). Each name that gets an answer takes memory
//! in the address vector of the network, and any process can send a greeting under any name. So the
//! number of names is limited.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddrV4;

use foldhash::{HashMap, HashMapExt};

use super::frame::{FrameKind, NetGreeting, mark_and_proof};
use super::key::{KeyCheck, OwnKey};
use crate::error::Refusal;

/// Maximum number of names without a connection that get answers. Each takes memory in the address
/// vector of the network until the endpoint closes. Peers at further names wait until their own
/// timeout.
const ANSWERED_MAX: usize = 1024;
/// Maximum number of names with a line in the log, and of refusals that are remembered. Further
/// names have no line, and each operation to them opens a connection.
const NAMES_MAX: usize = 1024;
/// Time in nanoseconds after a refusal for which no other connection to the peer is opened. A
/// longer one delays the first message after the peer was restarted, a shorter one sends more
/// greetings.
const REFUSED_NS: u64 = 1_000_000_000;
/// Difference that a refusal for the key does not tell, and the remedy.
const KEY_ADVICE: &str = "it has another FI_SCIF_NET_KEY, or only one of both processes has one. \
                          Set one value on all hosts";

/// Answer to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrayReply {
    pub(super) to: SocketAddrV4,
    pub(super) token: u64,
    pub(super) kind: FrameKind,
}

#[derive(Debug)]
pub(super) struct StrayReplies {
    provider: String,
    waiting: Vec<StrayReply>,
    /// Names that got an answer.
    answered: HashSet<SocketAddrV4>,
    /// Names with a line in the log.
    logged: HashSet<SocketAddrV4>,
    /// Peers that have refused this process, with the time.
    refusals: HashMap<SocketAddrV4, (Refusal, u64)>,
}

impl StrayReplies {
    pub(super) fn new(provider: &str) -> StrayReplies {
        StrayReplies {
            provider: provider.to_owned(),
            waiting: Vec::new(),
            answered: HashSet::new(),
            logged: HashSet::new(),
            refusals: HashMap::new(),
        }
    }

    pub(super) fn push(&mut self, to: SocketAddrV4, token: u64, kind: FrameKind) {
        self.waiting.push(StrayReply { to, token, kind });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes all answers.
    pub(super) fn take(&mut self) -> Vec<StrayReply> {
        std::mem::take(&mut self.waiting)
    }

    /// Whether an answer may be sent, and notes its name. A challenge follows a proof of the key,
    /// and its name gets a connection.
    pub(super) fn permits(&mut self, answer: &StrayReply) -> bool {
        if answer.kind == FrameKind::Challenge {
            return true;
        }
        if self.answered.len() >= ANSWERED_MAX && !self.answered.contains(&answer.to) {
            log::debug!(
                "answer to {} over {} was not sent: too many names without a connection. That peer \
                 waits until its own timeout",
                answer.to,
                self.provider
            );
            return false;
        }
        self.answered.insert(answer.to);
        true
    }

    /// Returns the answer to a greeting that gets no connection. `rest` follows the greeting.
    pub(super) fn unfit(
        &mut self,
        key: &OwnKey,
        token: u64,
        (greeting, rest): (&NetGreeting, &[u8]),
    ) -> Option<FrameKind> {
        let name = greeting.name();
        if let Some(difference) = greeting.difference() {
            self.log_refused(name, format_args!("{difference}"));
            return Some(FrameKind::Refusal(Refusal::Version));
        }
        let Some((_, proof)) = mark_and_proof(rest) else {
            self.log_refused(name, format_args!("its greeting is invalid"));
            return Some(FrameKind::Refusal(Refusal::Version));
        };
        match key.check(token, name, proof) {
            KeyCheck::Same => None,
            KeyCheck::Challenge => Some(FrameKind::Challenge),
            KeyCheck::Repeated => Some(FrameKind::Refusal(Refusal::Closed)),
            KeyCheck::Different(how) => {
                let why = format_args!("FI_SCIF_NET_KEY: {how}. Set one value on all hosts");
                self.log_refused(name, why);
                Some(FrameKind::Refusal(Refusal::Key))
            }
        }
    }

    /// Logs a greeting that this side refuses, once for each name.
    pub(super) fn log_refused(&mut self, name: SocketAddrV4, why: fmt::Arguments<'_>) {
        if self.is_new(name) {
            log::warn!("the endpoint at {name} over {} was refused: {why}", self.provider);
        }
    }

    /// Notes that a peer has refused this process at time `now`, and logs it once for each name.
    /// `content` is that of the refusal.
    pub(super) fn note_refusal(
        &mut self,
        name: SocketAddrV4,
        refusal: Refusal,
        content: &[u8],
        now: u64,
    ) {
        let difference = match refusal {
            Refusal::Key => KEY_ADVICE.to_owned(),
            Refusal::Version => NetGreeting::decode(content)
                .and_then(|(greeting, _)| greeting.difference())
                .unwrap_or_else(|| "it has another version".to_owned()),
            Refusal::Closed | Refusal::Resources => return,
        };
        if self.refusals.len() < NAMES_MAX || self.refusals.contains_key(&name) {
            self.refusals.insert(name, (refusal, now));
        }
        if self.is_new(name) {
            log::warn!(
                "the endpoint at {name} over {} has refused this process: {difference}",
                self.provider
            );
        }
    }

    /// Returns the refusal of a peer for a short time after it.
    pub(super) fn refusal(&mut self, name: SocketAddrV4, now: u64) -> Option<Refusal> {
        let (refusal, at) = self.refusals.get(&name).copied()?;
        if now.saturating_sub(at) < REFUSED_NS {
            return Some(refusal);
        }
        self.refusals.remove(&name);
        None
    }

    /// Forgets the refusals of a peer that has sent a valid greeting.
    pub(super) fn forget_refusal(&mut self, name: SocketAddrV4) {
        self.refusals.remove(&name);
    }

    /// Returns the number of names with a line in the log.
    #[cfg(test)]
    pub(super) fn logged_names(&self) -> usize {
        self.logged.len()
    }

    /// Whether the name has no line in the log yet, and may have one.
    fn is_new(&mut self, name: SocketAddrV4) -> bool {
        self.logged.len() < NAMES_MAX && self.logged.insert(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> SocketAddrV4 {
        SocketAddrV4::new([10, 1, 1, 1].into(), u16::try_from(number).unwrap() + 1)
    }

    #[test]
    fn names_are_limited_except_for_challenges() {
        let mut answers = StrayReplies::new("double");
        let answer = |at, kind| StrayReply { to: name(at), token: 1, kind };
        for at in 0..ANSWERED_MAX {
            assert!(answers.permits(&answer(at, FrameKind::Unknown)));
        }
        assert!(!answers.permits(&answer(ANSWERED_MAX, FrameKind::Unknown)));
        assert!(answers.permits(&answer(0, FrameKind::Refusal(Refusal::Key))));
        assert!(answers.permits(&answer(ANSWERED_MAX, FrameKind::Challenge)));
        for at in 0..NAMES_MAX {
            assert!(answers.is_new(name(at)) && !answers.is_new(name(at)));
        }
        assert!(!answers.is_new(name(NAMES_MAX)));
    }

    #[test]
    fn a_refusal_is_remembered_for_a_while_or_until_the_peer_greets() {
        let mut answers = StrayReplies::new("double");
        answers.note_refusal(name(0), Refusal::Key, &[], 7);
        answers.note_refusal(name(1), Refusal::Version, &[1], 7);
        answers.note_refusal(name(2), Refusal::Closed, &[], 7);
        assert_eq!(answers.refusal(name(0), 6 + REFUSED_NS), Some(Refusal::Key));
        assert_eq!(answers.refusal(name(1), 7), Some(Refusal::Version));
        assert_eq!(answers.refusal(name(2), 7), None);
        answers.forget_refusal(name(1));
        assert_eq!(answers.refusal(name(1), 7), None);
        assert_eq!(answers.refusal(name(0), 7 + REFUSED_NS), None);
        assert!(answers.refusals.is_empty());
    }
}
