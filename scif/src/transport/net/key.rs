// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Key of a job, and proofs that a process has it.
//!
//! Not about the messages that carry proofs (`frame`, `stream`). A proof is an HMAC-SHA-256 under
//! the key. It is valid for one connection, by the token that the opener chose, and for one port
//! that accepts, by its nonce, which is a random number. The acceptor remembers the tokens of a
//! nonce, so no proof can be used again. The first greeting to a peer does not know its nonce. The
//! peer answers it with a challenge.

use std::fmt;
use std::net::SocketAddrV4;

use foldhash::{HashSet, HashSetExt};
use hmac_sha256::HMAC;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::segment::Side;

/// Life of an acceptor that the opener does not know yet.
pub(super) const NO_NONCE: u64 = 0;
/// Size in bytes of a nonce, as a challenge contains it.
pub(super) const NONCE: usize = size_of::<U64>();
/// Maximum number of challenges that an opener answers. Further ones are ignored, so that a peer
/// cannot make it greet for ever.
const CHALLENGES_MAX: u32 = 8;
/// Number of connections after which an acceptor chooses another nonce. With a larger one it keeps
/// more tokens. With a smaller one more openers are asked for another proof.
const TOKENS_MAX: usize = 4096;
/// First bytes of what a proof covers, so that the key has no other use.
const PURPOSE: &[u8; 12] = b"scif network";

/// Key that all processes of a job have.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct JobKey(&'static [u8]);

impl JobKey {
    /// Returns the key with that text; `None` if it is empty.
    #[must_use]
    pub fn new(text: &'static str) -> Option<JobKey> {
        (!text.is_empty()).then_some(JobKey(text.as_bytes()))
    }
}

impl fmt::Debug for JobKey {
    /// Omits the key, so that no log contains it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Subject of a proof.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Claim {
    pub(super) token: u64,
    /// Name of the side that opens the connection.
    pub(super) opener: SocketAddrV4,
    /// Name of the side that accepts it, so that no other process can pass the proof on.
    pub(super) acceptor: SocketAddrV4,
    /// Life of the side that accepts it.
    pub(super) nonce: u64,
}

/// Proof in a greeting or a welcome.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(super) struct KeyProof {
    nonce: U64,
    mac: [u8; 32],
}

impl KeyProof {
    /// Returns the proof of one side.
    pub(super) fn new(key: JobKey, side: Side, claim: &Claim) -> KeyProof {
        let mac = digest(key, side, claim).finalize();
        KeyProof { nonce: claim.nonce.into(), mac }
    }

    /// Whether the other side has the key, by its proof for `claim`.
    fn is_valid(&self, key: JobKey, side: Side, claim: &Claim) -> bool {
        self.nonce == claim.nonce && digest(key, side, claim).finalize_verify(&self.mac)
    }
}

fn digest(key: JobKey, side: Side, claim: &Claim) -> HMAC {
    let mut digest = HMAC::new(key.0);
    digest.update(PURPOSE);
    digest.update([u8::from(side == Side::Opener)]);
    digest.update(claim.token.to_le_bytes());
    digest.update(claim.nonce.to_le_bytes());
    for name in [claim.opener, claim.acceptor] {
        digest.update(name.ip().octets());
        digest.update(name.port().to_le_bytes());
    }
    digest
}

/// Result of the check of a greeting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyCheck {
    /// Both sides have one key, or none.
    Same,
    /// The proof has opened a connection before.
    Repeated,
    /// The opener has the key, and does not know the nonce of this side.
    Challenge,
    /// Difference, for the log.
    Different(&'static str),
}

/// Key of this side, its name and its nonce.
#[derive(Clone, Debug)]
pub(super) struct OwnKey {
    key: Option<JobKey>,
    name: SocketAddrV4,
    pub(super) nonce: u64,
    /// Tokens of the connections that were accepted by proofs over the nonce.
    accepted: HashSet<u64>,
}

impl OwnKey {
    pub(super) fn new(key: Option<JobKey>, name: SocketAddrV4, random: u64) -> OwnKey {
        OwnKey { key, name, nonce: random.max(NO_NONCE + 1), accepted: HashSet::new() }
    }

    /// Whether connections need proofs.
    pub(super) fn is_required(&self) -> bool {
        self.key.is_some()
    }

    /// Checks the greeting of `opener` for connection `token`.
    pub(super) fn check(
        &self,
        token: u64,
        opener: SocketAddrV4,
        proof: Option<KeyProof>,
    ) -> KeyCheck {
        let (key, proof) = match (self.key, proof) {
            (None, None) => return KeyCheck::Same,
            (None, Some(_)) => return KeyCheck::Different("it has one, this process has none"),
            (Some(_), None) => return KeyCheck::Different("it has none, this process has one"),
            (Some(key), Some(proof)) => (key, proof),
        };
        let claim = Claim { token, opener, acceptor: self.name, nonce: proof.nonce.get() };
        if !proof.is_valid(key, Side::Opener, &claim) {
            KeyCheck::Different("it has another one than this process")
        } else if claim.nonce != self.nonce {
            KeyCheck::Challenge
        } else if self.accepted.contains(&token) {
            KeyCheck::Repeated
        } else {
            KeyCheck::Same
        }
    }

    /// Notes that this side has accepted a connection, so that its proof is not valid again.
    /// `random`: source of another nonce.
    pub(super) fn note_accepted(&mut self, token: u64, random: impl FnOnce() -> u64) {
        if self.key.is_none() {
            return;
        }
        if self.accepted.len() >= TOKENS_MAX {
            self.accepted.clear();
            self.nonce = random().max(NO_NONCE + 1);
        }
        self.accepted.insert(token);
    }

    /// Returns the proofs of a connection that this side opens; `None` without a key.
    pub(super) fn of_opener(&self, token: u64, acceptor: SocketAddrV4) -> Option<StreamKey> {
        let claim = Claim { token, opener: self.name, acceptor, nonce: NO_NONCE };
        StreamKey::new(self.key, Side::Opener, claim)
    }

    /// Returns the proofs of a connection that this side accepts; `None` without a key.
    pub(super) fn of_acceptor(&self, token: u64, opener: SocketAddrV4) -> Option<StreamKey> {
        let claim = Claim { token, opener, acceptor: self.name, nonce: self.nonce };
        StreamKey::new(self.key, Side::Acceptor, claim)
    }
}

/// Proofs of both sides of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamKey {
    key: JobKey,
    side: Side,
    claim: Claim,
    /// Number of challenges answered.
    challenges: u32,
}

impl StreamKey {
    fn new(key: Option<JobKey>, side: Side, claim: Claim) -> Option<StreamKey> {
        key.map(|key| StreamKey { key, side, claim, challenges: 0 })
    }

    /// Returns the proof of this side.
    pub(super) fn proof(&self) -> KeyProof {
        KeyProof::new(self.key, self.side, &self.claim)
    }

    /// Whether `bytes` are the proof of the other side.
    pub(super) fn is_proved(&self, bytes: &[u8]) -> bool {
        KeyProof::read_from_bytes(bytes)
            .is_ok_and(|proof| proof.is_valid(self.key, self.side.other(), &self.claim))
    }

    /// Takes a challenge. Returns whether the greeting is to be sent again.
    pub(super) fn take_challenge(&mut self, bytes: &[u8]) -> bool {
        let Ok(nonce) = U64::read_from_bytes(bytes) else { return false };
        let nonce = nonce.get();
        let is_new = nonce != self.claim.nonce && nonce != NO_NONCE;
        let is_taken = self.side == Side::Opener && is_new && self.challenges < CHALLENGES_MAX;
        if is_taken {
            self.challenges += 1;
            self.claim.nonce = nonce;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Option<JobKey> {
        JobKey::new(text)
    }

    fn opener() -> SocketAddrV4 {
        SocketAddrV4::new([10, 1, 1, 1].into(), 4000)
    }

    fn acceptor() -> SocketAddrV4 {
        SocketAddrV4::new([10, 1, 1, 2].into(), 4000)
    }

    #[test]
    fn no_text_is_no_key_and_no_text_of_a_key_is_shown() {
        assert_eq!(key(""), None);
        assert!(!format!("{:?}", OwnKey::new(key("secret"), opener(), 1)).contains("secret"));
    }

    #[test]
    fn keys_are_the_same_or_the_difference_is_named() {
        for (ours, theirs, word) in [
            (None, None, None),
            (key("a"), key("a"), None),
            (None, key("a"), Some("this process has none")),
            (key("a"), None, Some("it has none")),
            (key("a"), key("b"), Some("another one")),
            (key("a"), key("a "), Some("another one")),
        ] {
            let own = OwnKey::new(ours, acceptor(), 77);
            let peer = OwnKey::new(theirs, opener(), 99);
            let mut stream = peer.of_opener(5, acceptor());
            if let Some(stream) = &mut stream {
                let first = own.check(5, opener(), Some(stream.proof()));
                assert_ne!(first, KeyCheck::Same, "the nonce of the acceptor is unknown");
                assert!(stream.take_challenge(own.nonce.as_bytes()));
            }
            let proof = stream.map(|stream| stream.proof());
            match own.check(5, opener(), proof) {
                KeyCheck::Different(text) => assert!(word.is_some_and(|w| text.contains(w))),
                KeyCheck::Same => assert_eq!(word, None),
                KeyCheck::Challenge | KeyCheck::Repeated => panic!("not accepted"),
            }
        }
    }

    #[test]
    fn a_proof_is_of_one_connection_two_names_one_life_and_one_side() {
        let own = OwnKey::new(key("a"), acceptor(), 77);
        let peer = OwnKey::new(key("a"), opener(), 99);
        let mut stream = peer.of_opener(5, acceptor()).unwrap();
        assert_eq!(own.check(5, opener(), Some(stream.proof())), KeyCheck::Challenge);
        assert!(stream.take_challenge(&own.nonce.to_le_bytes()));
        let proof = stream.proof();
        assert_eq!(own.check(5, opener(), Some(proof)), KeyCheck::Same);
        let is_different = |check| matches!(check, KeyCheck::Different(_));
        assert!(is_different(own.check(6, opener(), Some(proof))));
        let other = SocketAddrV4::new(*opener().ip(), 4001);
        assert!(is_different(own.check(5, other, Some(proof))));
        let third = OwnKey::new(key("a"), other, 77);
        assert!(is_different(third.check(5, opener(), Some(proof))), "passed on");
        let later = OwnKey::new(key("a"), acceptor(), 78);
        assert_eq!(later.check(5, opener(), Some(proof)), KeyCheck::Challenge);
        let moved = KeyProof { nonce: 78.into(), ..proof };
        assert!(is_different(later.check(5, opener(), Some(moved))));

        let answer = own.of_acceptor(5, opener()).unwrap();
        assert!(stream.is_proved(answer.proof().as_bytes()));
        assert!(!stream.is_proved(proof.as_bytes()), "the opener's own proof");
        assert!(!stream.is_proved(&[]) && !stream.is_proved(&proof.as_bytes()[1..]));
        for foreign in [OwnKey::new(key("b"), acceptor(), 77), third] {
            let answer = foreign.of_acceptor(5, opener()).unwrap();
            assert!(!stream.is_proved(answer.proof().as_bytes()));
        }
    }

    #[test]
    fn a_proof_opens_one_connection_and_the_nonce_changes_before_it_is_forgotten() {
        let mut own = OwnKey::new(key("a"), acceptor(), 77);
        let proof = |token, nonce: u64| {
            let mut stream = OwnKey::new(key("a"), opener(), 99).of_opener(token, acceptor());
            assert!(stream.as_mut().unwrap().take_challenge(&nonce.to_le_bytes()));
            stream.map(|stream| stream.proof())
        };
        for token in 1..=TOKENS_MAX as u64 {
            assert_eq!(own.nonce, 77);
            own.note_accepted(token, || 78);
        }
        assert_eq!(own.check(1, opener(), proof(1, 77)), KeyCheck::Repeated);
        assert_eq!(own.check(0, opener(), proof(0, 77)), KeyCheck::Same);
        own.note_accepted(0, || 78);
        assert_eq!(own.check(1, opener(), proof(1, 77)), KeyCheck::Challenge);
        assert_eq!(own.check(1, opener(), proof(1, 78)), KeyCheck::Same);
        let mut open = OwnKey::new(None, acceptor(), 77);
        open.note_accepted(1, || 78);
        assert!(open.accepted.is_empty(), "without a key");
    }

    #[test]
    fn challenges_are_answered_once_each_and_not_for_ever() {
        let own = OwnKey::new(key("a"), opener(), 77);
        assert!(!own.of_acceptor(5, acceptor()).unwrap().take_challenge(&[1; 8]));
        let mut stream = own.of_opener(5, acceptor()).unwrap();
        for bytes in [&[][..], &[1; 7], &[1; 9], &[0; 8]] {
            assert!(!stream.take_challenge(bytes), "{bytes:?}");
        }
        for nonce in 1..=u64::from(CHALLENGES_MAX) {
            assert!(stream.take_challenge(&nonce.to_le_bytes()));
            assert!(!stream.take_challenge(&nonce.to_le_bytes()), "repeated");
        }
        assert!(!stream.take_challenge(&[9; 8]));
    }
}
