// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Protocol between two providers: kinds of ring records and layout of their headers.
//!
//! Not here: the transport of records (`scif_ring::spsc`) and their effects (`dispatch`, `rma`,
//! `atomic`). Every field is read from a local copy of the header, and any bit pattern decodes to
//! some value. The user of a field checks its meaning. Both sides share one host, so the byte order
//! is native.

use scif::CarriedOp;
use scif_ring::HEAD_MAX;

use crate::base::atomic_ops::element::AtomicKind;

/// Message with its payload in the record. The low bits are [`TAGGED`] .. [`INLINE`].
pub(crate) const EAGER: u8 = 0x40;
/// Announced message. Its payload stays with the sender until it is pulled, pushed or sent as
/// fragments.
pub(crate) const RTS: u8 = 0x50;
/// Write executed by the target, without a reply: {key, addr} and CQ data if [`DATA`], + payload.
/// The low bits are [`LAST_PART`], [`DATA`], [`PART`] and [`INLINE`].
pub(crate) const POSTED_WRITE: u8 = 0x60;
/// Read executed by the target, which replies by [`READ_DATA`]: {key, addr, op, len}. Like a
/// [`POSTED_WRITE`], the initiator may withdraw it.
pub(crate) const POSTED_READ: u8 = 0x70;
/// Low bit of [`EAGER`] and [`RTS`]: the header begins with a tag.
pub(crate) const TAGGED: u8 = 1;
/// Low bit: the header carries remote CQ data.
pub(crate) const DATA: u8 = 2;
/// Low bit of [`POSTED_WRITE`]: part of a write that later records complete.
pub(crate) const PART: u8 = 4;
/// Low bit of [`POSTED_WRITE`]: last part of a write. The header ends with the length of the write.
pub(crate) const LAST_PART: u8 = 1;
/// Low bit: the header carries an operation number for an [`ACK`] after placement of the payload.
pub(crate) const WANT_ACK: u8 = 4;
/// Low bit: the payload is the rest of the header.
pub(crate) const INLINE: u8 = 8;
/// Complete arrival of an announced payload: {op, status}.
pub(crate) const FIN: u8 = 0x01;
/// Request of the receiver for fragments: {op, receive number, bytes, whether it cannot reach the
/// sender's memory}.
pub(crate) const CTS: u8 = 0x02;
/// Fragment of a payload requested by [`CTS`]: {receive number, offset} + body.
pub(crate) const STREAM: u8 = 0x03;
/// End of an operation at the target: {op, status}.
pub(crate) const ACK: u8 = 0x04;
/// Write whose payload the target reads by the network: {key, addr, op, data, flags, len} + address
/// and key of the network.
pub(crate) const NETWORK_WRITE: u8 = 0x06;
/// Read by the network, which the target prepares: {key, addr, op, len}.
pub(crate) const NETWORK_READ: u8 = 0x07;
/// Reply to a [`NETWORK_READ`]: {op, address and key of the network}.
pub(crate) const NETWORK_KEY: u8 = 0x08;
/// Reply to a [`NETWORK_WRITE`] or [`NETWORK_READ`] that has to go through the ring: {op}.
pub(crate) const NETWORK_REFUSED: u8 = 0x09;
/// End of a read by the network: {key of the network, whether the bytes have arrived}.
pub(crate) const NETWORK_END: u8 = 0x0a;
/// Record whose body is outside the ring, see `Connection::take_body`.
pub(crate) const OUTSIDE: u8 = scif::BODY_OUTSIDE;
/// Connection management of connected endpoints. The upper half of the kind, {number} + data of the
/// application.
pub(crate) const CM: u8 = 0x20;
/// Connection request, to a passive endpoint.
pub(crate) const CM_REQUEST: u8 = 0x20;
/// Acceptance of a request, first record of a new connection.
pub(crate) const CM_ACCEPT: u8 = 0x21;
/// Refusal of a request, from a passive endpoint.
pub(crate) const CM_REJECT: u8 = 0x22;
/// Acceptance of a request over another connection, from a passive endpoint.
pub(crate) const CM_TAKEN: u8 = 0x23;
/// Fragment of an RMA write executed by the target: {key, addr, op, data, flags, len, bytes of its
/// range at the target that are left} + body.
pub(crate) const WRITE: u8 = 0x10;
/// Part of an RMA read executed by the target: {key, addr, op, offset, len, flags}.
pub(crate) const READ: u8 = 0x11;
/// Fragment of data requested by a [`READ`] or [`POSTED_READ`]: {op, offset} + body.
pub(crate) const READ_DATA: u8 = 0x12;
/// Atomic executed by the target: {op, data, operation, datatype, kind, segments, bytes} + body.
pub(crate) const ATOMIC: u8 = 0x13;
/// Reply to an [`ATOMIC`]: {op, status} + old values. To an [`ATOMIC_LINE`]: {op, status, old
/// value}.
pub(crate) const ATOMIC_REPLY: u8 = 0x14;
/// Notice of an RMA operation done by its initiator, for CQ data and counters of the target:
/// {flags, data, len, key}.
pub(crate) const RMA_EVENT: u8 = 0x15;
/// Atomic on one range of at most 8 bytes, executed by the target: {op, operation packed, addr,
/// key, operand, compare, data}. An op with an upper half of zero is a stamp, and only [`DONE`]
/// acknowledges the atomic.
pub(crate) const ATOMIC_LINE: u8 = 0x17;
/// Count of executed [`ATOMIC_LINE`] operations of one stamp: {stamp, count}.
pub(crate) const DONE: u8 = 0x05;
/// Notice of frequent access to a key by an initiator that needs a system call each time: {key,
/// count}.
pub(crate) const ACCESS_HINT: u8 = 0x16;
/// Offer to copy parts of a large RMA operation: {key, addr, address at the initiator, bytes, bytes
/// of a part, claim block and generation, flags}.
pub(crate) const COOP_RMA: u8 = 0x1e;
/// Collectives: readiness of a member to join: {membership, its number of the group}.
pub(crate) const COLL_JOIN: u8 = 0x18;
/// Withdrawal of that readiness: {its number}.
pub(crate) const COLL_LEAVE: u8 = 0x19;
/// Start of a group, since all members are ready: {the member's number, the group's identity}.
pub(crate) const COLL_START: u8 = 0x1a;
/// Failure to create a group: {the member's number, reason}.
pub(crate) const COLL_REFUSE: u8 = 0x1b;
/// Fragment of a message between members: {group, operation, length of the message, offset} + body.
pub(crate) const COLL_DATA: u8 = 0x1c;
/// End of a group: {group, reason, whether to notify the others}.
pub(crate) const COLL_ABORT: u8 = 0x1d;
/// Flag of [`WRITE`] and [`READ`]: last record of its operation.
pub(crate) const F_LAST: u64 = 1;
/// Flag of [`WRITE`]: remote CQ data is valid.
pub(crate) const F_DATA: u64 = 2;
/// Flag of [`RMA_EVENT`]: the operation was a read.
pub(crate) const F_READ: u64 = 4;
/// Flag of [`RMA_EVENT`]: the operation was a read that may also have stored a value.
pub(crate) const F_MODIFY: u64 = 8;
/// Flag of [`COOP_RMA`]: the operation is a write.
pub(crate) const F_WRITE: u64 = 16;

/// Header under construction, as 64-bit words.
#[derive(Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    pub(crate) const fn new() -> Head {
        Head { bytes: [0; HEAD_MAX], len: 0 }
    }

    /// Appends one word. A header holds seven; further ones are dropped.
    #[inline]
    pub(crate) fn word(mut self, value: u64) -> Head {
        if let Some(to) = self.bytes.get_mut(self.len..self.len + 8) {
            to.copy_from_slice(&value.to_ne_bytes());
            self.len += 8;
        }
        self
    }

    /// Returns the space after the words, for an inline payload of `n` bytes.
    #[inline]
    pub(crate) fn tail(&mut self, n: usize) -> Option<&mut [u8]> {
        let at = self.len;
        let to = self.bytes.get_mut(at..at.checked_add(n)?)?;
        self.len = at + n;
        Some(to)
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Returns the kind of a message record with its low bits, and a header with tag and data.
#[inline]
pub(crate) fn envelope(mut kind: u8, tag: Option<u64>, data: Option<u64>) -> (u8, Head) {
    let mut head = Head::new();
    if let Some(tag) = tag {
        kind |= TAGGED;
        head = head.word(tag);
    }
    if let Some(data) = data {
        kind |= DATA;
        head = head.word(data);
    }
    (kind, head)
}

/// Reader of a header, word by word. Missing words read as zero.
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    #[inline]
    pub(crate) fn new(head: &'a [u8; HEAD_MAX], len: u8) -> Words<'a> {
        Words { bytes: head.get(..usize::from(len)).unwrap_or_default() }
    }

    /// Reads the words of a body.
    pub(crate) fn of(bytes: &'a [u8]) -> Words<'a> {
        Words { bytes }
    }

    #[inline]
    pub(crate) fn word(&mut self) -> u64 {
        match self.bytes.split_first_chunk::<8>() {
            Some((word, rest)) => {
                self.bytes = rest;
                u64::from_ne_bytes(*word)
            }
            None => {
                self.bytes = &[];
                0
            }
        }
    }

    /// Returns the bytes after the words read so far.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Fixed part of an [`ATOMIC`], packed into one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicWord {
    pub op: u8,
    pub datatype: u8,
    /// 0 write, 1 fetch, 2 compare.
    pub kind: u8,
    pub segments: u8,
    /// Bytes of the operand list; also of the compare list and of the reply.
    pub len: u16,
    pub has_data: bool,
}

impl AtomicWord {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.op)
            | u64::from(self.datatype) << 8
            | u64::from(self.kind) << 16
            | u64::from(self.segments) << 24
            | u64::from(self.len) << 32
            | u64::from(self.has_data) << 48
    }

    /// Returns the kind of the atomic, if it is valid.
    pub(crate) fn kind(self) -> Option<AtomicKind> {
        [AtomicKind::Write, AtomicKind::Fetch, AtomicKind::Compare]
            .get(usize::from(self.kind))
            .copied()
    }

    pub(crate) fn unpack(word: u64) -> AtomicWord {
        let [op, datatype, kind, segments, l0, l1, has_data, _] = word.to_le_bytes();
        AtomicWord {
            op,
            datatype,
            kind,
            segments,
            len: u16::from_le_bytes([l0, l1]),
            has_data: has_data & 1 == 1,
        }
    }
}

/// Returns the operation that begins with a record, and the length of its payload. `None` for other
/// records of an operation, and for those of none. A record of a peer may be any.
pub(crate) fn operation(kind: u8, head: &[u8], body_len: usize) -> Option<CarriedOp> {
    let word = |at: usize| {
        let bytes = head.get(8 * at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let is = |bit: u8| kind & bit != 0;
    let envelope = usize::from(is(TAGGED)) + usize::from(is(DATA));
    Some(match kind {
        EAGER..RTS => {
            let words = envelope + usize::from(is(WANT_ACK));
            let inline = if is(INLINE) { head.len().saturating_sub(8 * words) } else { 0 };
            CarriedOp::Message((inline + body_len) as u64)
        }
        RTS..POSTED_WRITE => CarriedOp::Message(word(envelope + 1)),
        COLL_DATA if word(3) == 0 => CarriedOp::Message(word(2)),
        // Each ends with its last record, which shows its length.
        WRITE if word(4) & F_LAST != 0 => CarriedOp::OneSided(word(5)),
        READ if word(5) & F_LAST != 0 => CarriedOp::OneSided(word(3).wrapping_add(word(4))),
        NETWORK_WRITE => CarriedOp::OneSided(word(5)),
        NETWORK_READ => CarriedOp::OneSided(word(3)),
        ATOMIC => CarriedOp::OneSided(u64::from(AtomicWord::unpack(word(2)).len)),
        ATOMIC_LINE => CarriedOp::OneSided(u64::from(AtomicWord::unpack(word(1)).len)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_payload_round_trip() {
        let mut head = Head::new().word(7).word(u64::MAX);
        head.tail(3).unwrap().copy_from_slice(b"abc");
        let mut bytes = [0; HEAD_MAX];
        bytes[..19].copy_from_slice(head.as_slice());
        let mut words = Words::new(&bytes, 19);
        assert_eq!(words.word(), 7);
        assert_eq!(words.word(), u64::MAX);
        assert_eq!(words.rest(), b"abc");
        assert_eq!(words.word(), 0, "a head that is too short reads as zero");
    }

    #[test]
    fn an_operation_is_counted_by_one_of_its_records() {
        let atomic =
            AtomicWord { op: 1, datatype: 2, kind: 1, segments: 1, len: 48, has_data: false };
        let message = |len| Some(CarriedOp::Message(len));
        let one_sided = |len| Some(CarriedOp::OneSided(len));
        let rows: [(u8, &[u64], usize, Option<CarriedOp>); 17] = [
            (EAGER, &[], 300, message(300)),
            (EAGER | TAGGED | DATA, &[7, 8], 300, message(300)),
            (EAGER | TAGGED | INLINE, &[7, 0, 0], 0, message(16)),
            (EAGER | TAGGED | DATA | WANT_ACK | INLINE, &[7, 8, 9, 0], 0, message(8)),
            (EAGER | TAGGED | INLINE, &[], 0, message(0)),
            (RTS | TAGGED, &[7, 1, 1 << 20, 0, 0], 0, message(1 << 20)),
            (RTS, &[1, 1 << 20, 0, 0], 32, message(1 << 20)),
            (RTS, &[], 0, message(0)),
            (COLL_DATA, &[1, 2, 20_000, 0], 16_384, message(20_000)),
            (COLL_DATA, &[1, 2, 20_000, 16_384], 3616, None),
            (WRITE, &[1, 2, 3, 0, 0, 50_000, 0], 16_384, None),
            (WRITE, &[1, 2, 3, 0, F_LAST, 50_000, 0], 848, one_sided(50_000)),
            (READ, &[1, 2, 3, 65_536, 100, F_LAST], 0, one_sided(65_636)),
            (NETWORK_WRITE, &[1, 2, 3, 0, 0, 99_000], 16, one_sided(99_000)),
            (NETWORK_READ, &[1, 2, 3, 98_000], 0, one_sided(98_000)),
            (ATOMIC, &[1, 0, atomic.pack()], 48, one_sided(48)),
            (ATOMIC_LINE, &[1, atomic.pack()], 0, one_sided(48)),
        ];
        for (kind, words, body_len, expected) in rows {
            let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(operation(kind, &head, body_len), expected, "{kind:#x} {words:?}");
        }
        for kind in [FIN, CTS, STREAM, ACK, READ_DATA, ATOMIC_REPLY, RMA_EVENT, DONE, CM_REQUEST] {
            assert_eq!(operation(kind, &[0xff; HEAD_MAX], 100), None, "{kind:#x}");
        }
    }

    #[test]
    fn a_head_never_grows_past_its_line() {
        let mut head = Head::new();
        for n in 0..9 {
            head = head.word(n);
        }
        assert_eq!(head.as_slice().len(), HEAD_MAX);
        assert!(head.tail(1).is_none());
    }

    #[test]
    fn atomic_word_round_trips() {
        let word =
            AtomicWord { op: 9, datatype: 13, kind: 2, segments: 8, len: 4096, has_data: true };
        assert_eq!(AtomicWord::unpack(word.pack()), word);
    }
}
