// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bytes of a message: a head, then a greeting or records.
//!
//! Not about their order or number (`stream`, `window`). The heads of
//! records have the byte order of their sender, so a greeting shows it, and a receiver with another
//! one refuses. Everything else is little endian. Every byte of a peer is checked here.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddrV4;

use scif_ring::layout::{BODY_MAX, HEAD_MAX, LAYOUT};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::key::{KeyProof, NONCE};
use super::wire::{LONG_BODY_MAX, MESSAGE_MAX};
use crate::addr::PortId;
use crate::error::Refusal;

/// Version of messages. A peer with another one is refused. All versions have the same
/// [`FrameHead`], the same kinds of greetings and refusals, and the same first bytes of a greeting.
pub(super) const VERSION: u16 = 7;
/// First bytes of a greeting.
const MAGIC: [u8; 4] = *b"ScNe";
/// Number in a greeting that shows the byte order of its sender.
const ORDER: [u8; 4] = 0x0102_0304_u32.to_ne_bytes();

/// Size in bytes of the head of a message.
pub(super) const HEAD: usize = size_of::<FrameHead>();
/// Size in bytes of a record before its head.
const RECORD: usize = 8;

const _: () = assert!(HEAD == 24);
const _: () = assert!(HEAD + RECORD + HEAD_MAX + LONG_BODY_MAX <= MESSAGE_MAX);

/// Kind of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FrameKind {
    /// First message of an opener.
    Greeting,
    /// First message of an acceptor.
    Welcome,
    /// Answer to a greeting with a proof of the key: the nonce of the acceptor, for another proof.
    /// Its sequence number has no meaning.
    Challenge,
    /// Answer to a greeting that is not accepted. For another version it contains a greeting.
    Refusal(Refusal),
    Records,
    /// One record with a long body.
    LongRecord,
    /// Credit alone, which is in the head.
    Credit,
    /// Question whether the peer still has the connection. Contains a greeting.
    Ping,
    /// Answer to a ping: no such connection. Its sequence number has no meaning.
    Unknown,
    /// Last message of a graceful close.
    Bye,
    /// Last message of a reset.
    Reset,
}

impl FrameKind {
    /// Whether a message of this kind may have that content. Records are checked one by one.
    pub(super) fn permits(self, content: &[u8]) -> bool {
        match self {
            FrameKind::Records | FrameKind::LongRecord => true,
            FrameKind::Greeting => {
                NetGreeting::decode(content).is_some_and(|(_, rest)| mark_and_proof(rest).is_some())
            }
            FrameKind::Ping => NetGreeting::decode(content).is_some_and(|(_, r)| r.is_empty()),
            FrameKind::Welcome => mark_and_proof(content).is_some(),
            FrameKind::Unknown => mark_of(content).is_some_and(|(_, rest)| rest.is_empty()),
            FrameKind::Challenge => content.len() == NONCE,
            FrameKind::Refusal(Refusal::Version) => {
                content.is_empty() || NetGreeting::decode(content).is_some()
            }
            _ => content.is_empty(),
        }
    }
}

/// First bytes of each message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FrameHead {
    kind: u8,
    /// Reason of a refusal.
    code: u8,
    zero: [u8; 2],
    credit: U32,
    token: U64,
    sequence: U32,
    /// Number of bytes that follow.
    len: U32,
}

impl FrameHead {
    /// Returns a head whose length is set by [`seal`].
    pub(super) fn new(kind: FrameKind, token: u64, sequence: u32, credit: u32) -> FrameHead {
        let (kind, code) = match kind {
            FrameKind::Greeting => (b'G', 0),
            FrameKind::Welcome => (b'W', 0),
            FrameKind::Challenge => (b'H', 0),
            FrameKind::Refusal(Refusal::Closed) => (b'N', 1),
            FrameKind::Refusal(Refusal::Version) => (b'N', 2),
            FrameKind::Refusal(Refusal::Resources) => (b'N', 3),
            FrameKind::Refusal(Refusal::Key) => (b'N', 4),
            FrameKind::Records => (b'D', 0),
            FrameKind::LongRecord => (b'L', 0),
            FrameKind::Credit => (b'C', 0),
            FrameKind::Ping => (b'P', 0),
            FrameKind::Unknown => (b'U', 0),
            FrameKind::Bye => (b'B', 0),
            FrameKind::Reset => (b'R', 0),
        };
        FrameHead {
            kind,
            code,
            zero: [0; 2],
            credit: credit.into(),
            token: token.into(),
            sequence: sequence.into(),
            len: 0.into(),
        }
    }

    /// Returns the number of records that the sender has taken out of its ring, modulo 2^32.
    pub(super) fn credit(&self) -> u32 {
        self.credit.get()
    }

    /// Returns the connection, by the random number that its opener chose.
    pub(super) fn token(&self) -> u64 {
        self.token.get()
    }

    /// Returns the number of messages that the sender has sent before over the connection, modulo
    /// 2^32.
    pub(super) fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// Decodes the kind.
    pub(super) fn kind(&self) -> Option<FrameKind> {
        Some(match (self.kind, self.code) {
            (b'G', 0) => FrameKind::Greeting,
            (b'W', 0) => FrameKind::Welcome,
            (b'H', 0) => FrameKind::Challenge,
            (b'N', 1) => FrameKind::Refusal(Refusal::Closed),
            (b'N', 2) => FrameKind::Refusal(Refusal::Version),
            (b'N', 3) => FrameKind::Refusal(Refusal::Resources),
            (b'N', 4) => FrameKind::Refusal(Refusal::Key),
            (b'D', 0) => FrameKind::Records,
            (b'L', 0) => FrameKind::LongRecord,
            (b'C', 0) => FrameKind::Credit,
            (b'P', 0) => FrameKind::Ping,
            (b'U', 0) => FrameKind::Unknown,
            (b'B', 0) => FrameKind::Bye,
            (b'R', 0) => FrameKind::Reset,
            _ => return None,
        })
    }
}

/// Returns a random number for a connection, or for a message of none.
pub(super) fn new_token() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Appends a head to an empty message.
pub(super) fn begin(message: &mut Vec<u8>, head: FrameHead) {
    message.extend_from_slice(head.as_bytes());
}

/// Writes the length of a finished message into its head.
#[expect(clippy::cast_possible_truncation, reason = "at most MESSAGE_MAX")]
pub(super) fn seal(message: &mut [u8]) {
    let len = message.len().saturating_sub(HEAD) as u32;
    if let Some(at) = message.get_mut(HEAD - 4..HEAD) {
        at.copy_from_slice(&len.to_le_bytes());
    }
}

/// Takes a message apart; `None` if it is none.
pub(super) fn open(message: &[u8]) -> Option<(FrameHead, &[u8])> {
    let (head, rest) = FrameHead::read_from_prefix(message).ok()?;
    (rest.len() == head.len.get() as usize).then_some((head, rest))
}

/// First bytes of a greeting. The mark of its sender follows, and the proof of a key may.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct NetGreeting {
    magic: [u8; 4],
    order: [u8; 4],
    layout: U32,
    pub(super) version: U16,
    node: U16,
    /// Port in the network, and the SCIF port.
    port: U16,
    zero: [u8; 2],
    ip: [u8; 4],
}

impl NetGreeting {
    pub(super) fn new(node: u16, name: SocketAddrV4) -> NetGreeting {
        NetGreeting {
            magic: MAGIC,
            order: ORDER,
            layout: LAYOUT.into(),
            version: VERSION.into(),
            node: node.into(),
            port: name.port().into(),
            zero: [0; 2],
            ip: name.ip().octets(),
        }
    }

    /// Returns the greeting and what follows it; `None` for bytes that are no greeting of any
    /// version.
    pub(super) fn decode(bytes: &[u8]) -> Option<(NetGreeting, &[u8])> {
        let (greeting, rest) = NetGreeting::read_from_prefix(bytes).ok()?;
        let name = greeting.name();
        let valid = greeting.magic == MAGIC && name.port() != 0 && !name.ip().is_unspecified();
        valid.then_some((greeting, rest))
    }

    /// Returns the name of the sender.
    pub(super) fn name(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip.into(), self.port.get())
    }

    /// Returns the port of the sender. Each new host takes memory until the process ends.
    pub(super) fn sender(&self) -> PortId {
        PortId::abroad(self.node.get(), self.name())
    }

    /// Returns the difference between both sides and a remedy, if they do not understand each
    /// other.
    pub(super) fn difference(&self) -> Option<String> {
        let (version, layout) = (self.version.get(), self.layout.get());
        if self.order != ORDER {
            return Some("it has another byte order. Run the job on hosts of one kind".to_owned());
        }
        ((version, layout) != (VERSION, LAYOUT)).then(|| {
            format!(
                "it has network version {version} with layout {layout:#x}, this process has \
                 {VERSION} with {LAYOUT:#x}. Install one version on all hosts"
            )
        })
    }
}

/// Name of a port in its messages, and its mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortMark {
    pub(super) greeting: NetGreeting,
    pub(super) mark: u64,
}

/// Takes the mark of the sender, a random number that tells its port from others at its name, off a
/// greeting or a reply.
pub(super) fn mark_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mark, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*mark), rest))
}

/// Takes the mark, and the proof behind it, if there is one.
pub(super) fn mark_and_proof(bytes: &[u8]) -> Option<(u64, Option<KeyProof>)> {
    let (mark, rest) = mark_of(bytes)?;
    Some((mark, proof_of(rest)?))
}

/// Returns the proof behind a greeting, if there is one; `None` for other bytes.
pub(super) fn proof_of(rest: &[u8]) -> Option<Option<KeyProof>> {
    if rest.is_empty() {
        return Some(None);
    }
    KeyProof::read_from_bytes(rest).ok().map(Some)
}

/// A record in a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct WireRecord<'a> {
    pub(super) kind: u8,
    pub(super) head: &'a [u8],
    pub(super) body: &'a [u8],
}

/// Returns the size in bytes of a record in a message.
pub(super) const fn record_size(head: usize, body: usize) -> usize {
    RECORD + head + body
}

/// Appends the first bytes of a record; its head and body follow.
pub(super) fn begin_record(message: &mut Vec<u8>, kind: u8, head_len: u8, body: usize) {
    #[expect(clippy::cast_possible_truncation, reason = "at most BODY_MAX")]
    let [a, b, c, d] = (body as u32).to_ne_bytes();
    message.extend([kind, head_len, 0, 0, a, b, c, d]);
}

/// Takes the first record of `bytes`; returns it with its size, or `None` if it is no valid one.
pub(super) fn next_record(bytes: &[u8]) -> Option<(WireRecord<'_>, usize)> {
    record_up_to(bytes, BODY_MAX)
}

/// Returns the record of a message that has one with a long body; `None` if it is no valid one.
pub(super) fn long_record(bytes: &[u8]) -> Option<WireRecord<'_>> {
    let (record, size) = record_up_to(bytes, LONG_BODY_MAX)?;
    (size == bytes.len() && !record.body.is_empty()).then_some(record)
}

fn record_up_to(bytes: &[u8], body_max: usize) -> Option<(WireRecord<'_>, usize)> {
    let (&[kind, head_len, _, _, a, b, c, d], rest) = bytes.split_first_chunk::<RECORD>()?;
    let (head_len, body_len) = (usize::from(head_len), u32::from_ne_bytes([a, b, c, d]) as usize);
    if head_len > HEAD_MAX || body_len > body_max {
        return None;
    }
    let (head, rest) = rest.split_at_checked(head_len)?;
    let body = rest.get(..body_len)?;
    Some((WireRecord { kind, head, body }, record_size(head_len, body_len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went_and_nothing_else_does() {
        let kinds = [
            FrameKind::Greeting,
            FrameKind::Welcome,
            FrameKind::Challenge,
            FrameKind::Refusal(Refusal::Closed),
            FrameKind::Refusal(Refusal::Version),
            FrameKind::Refusal(Refusal::Resources),
            FrameKind::Refusal(Refusal::Key),
            FrameKind::Records,
            FrameKind::LongRecord,
            FrameKind::Credit,
            FrameKind::Ping,
            FrameKind::Unknown,
            FrameKind::Bye,
            FrameKind::Reset,
        ];
        for kind in kinds {
            let mut message = Vec::new();
            begin(&mut message, FrameHead::new(kind, 1 << 63 | 5, 7, 9));
            message.extend(b"rest");
            seal(&mut message);
            let (head, rest) = open(&message).unwrap();
            assert_eq!((head.kind(), rest), (Some(kind), &b"rest"[..]));
            assert_eq!((head.token(), head.sequence(), head.credit()), (1 << 63 | 5, 7, 9));
            assert_eq!(open(&message[..message.len() - 1]), None, "too short");
            assert_eq!(open(&message[..HEAD - 1]), None);
            message.push(0);
            assert_eq!(open(&message), None, "too long");
            message.pop();
            message[0] = b'?';
            assert_eq!(open(&message).unwrap().0.kind(), None);
        }
    }

    #[test]
    fn a_greeting_names_its_sender_and_others_are_refused() {
        let name = SocketAddrV4::new([10, 77, 0, 3].into(), 43697);
        let good = NetGreeting::new(2, name);
        assert_eq!(NetGreeting::decode(good.as_bytes()), Some((good, &[][..])));
        assert_eq!(good.difference(), None);
        assert_eq!((good.name(), good.sender()), (name, PortId::abroad(2, name)));
        let order = [ORDER[3], ORDER[2], ORDER[1], ORDER[0]];
        for (other, words) in [
            (NetGreeting { version: (VERSION + 1).into(), ..good }, vec![VERSION + 1, VERSION]),
            (NetGreeting { layout: (LAYOUT - 1).into(), ..good }, vec![VERSION]),
            (NetGreeting { order, ..good }, vec![]),
        ] {
            // What follows belongs to the other version.
            let mut bytes = other.as_bytes().to_vec();
            bytes.extend(b"tail");
            assert_eq!(NetGreeting::decode(&bytes), Some((other, &b"tail"[..])));
            let text = other.difference().unwrap();
            assert!(words.iter().all(|word| text.contains(&word.to_string())), "{text}");
        }
        assert_eq!(mark_of(&[1, 0, 0, 0, 0, 0, 0, 0, 9]), Some((1, &[9][..])));
        assert_eq!((mark_of(&[1; 7]), mark_and_proof(&[1; 9])), (None, None));
        assert_eq!(proof_of(&[]), Some(None));
        assert_eq!(proof_of(b"tail"), None);
        assert!(proof_of(&[7; size_of::<KeyProof>()]).is_some_and(|proof| proof.is_some()));
        for bad in [
            NetGreeting { magic: *b"ScKe", ..good },
            NetGreeting { port: 0.into(), ..good },
            NetGreeting { ip: [0; 4], ..good },
        ] {
            assert_eq!(NetGreeting::decode(bad.as_bytes()), None);
        }
        assert_eq!(NetGreeting::decode(&good.as_bytes()[1..]), None);
    }

    #[test]
    fn records_are_taken_apart_within_their_limits() {
        let mut bytes = Vec::new();
        begin_record(&mut bytes, 9, 3, 2);
        bytes.extend(b"abcde");
        let record = WireRecord { kind: 9, head: b"abc", body: b"de" };
        assert_eq!(next_record(&bytes), Some((record, bytes.len())));
        for len in 0..bytes.len() {
            assert_eq!(next_record(&bytes[..len]), None, "{len} bytes");
        }
        let mut long = vec![0; MESSAGE_MAX];
        long[1] = u8::try_from(HEAD_MAX).unwrap() + 1;
        assert_eq!(next_record(&long), None);
        long[1] = 0;
        long[4..8].copy_from_slice(&u32::try_from(BODY_MAX + 1).unwrap().to_ne_bytes());
        assert_eq!(next_record(&long), None);
    }
}
