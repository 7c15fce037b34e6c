// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What two providers say to each other: the kinds of ring records and the bytes of their heads.
//!
//! Not about how records travel (`scif_ring::spsc`) nor what they cause (`rx`, `rma`, `atomic`). Every field is read
//! from a local copy of the head, little endian, and any bit pattern decodes to something: what a field *means* is
//! checked where it is used. One host, one byte order: the encoding is native.

use scif_ring::HEAD_MAX;

use super::AtomicKind;

/// A message whose payload is in the record: base kind, low bits are [`TAGGED`] .. [`INLINE`].
pub(crate) const EAGER: u8 = 0x40;
/// A message announced; its payload stays with the sender until it is fetched, pushed or streamed.
pub(crate) const RTS: u8 = 0x50;
/// Low bits of [`EAGER`] and [`RTS`]: the head starts with a tag.
pub(crate) const TAGGED: u8 = 1;
/// The head carries remote CQ data.
pub(crate) const DATA: u8 = 2;
/// The head carries an operation number that wants an [`ACK`] once the payload is placed.
pub(crate) const WANT_ACK: u8 = 4;
/// The payload is the rest of the head.
pub(crate) const INLINE: u8 = 8;

/// The receiver has the whole payload of an announced message: {op, status}.
pub(crate) const FIN: u8 = 0x01;
/// The receiver asks for the payload through the ring: {op, receive number, bytes, whether it cannot reach the sender's memory}.
pub(crate) const CTS: u8 = 0x02;
/// A piece of a payload asked for by [`CTS`]: {receive number, offset} + body.
pub(crate) const STREAM: u8 = 0x03;
/// An operation is done at the target: {op, status}.
pub(crate) const ACK: u8 = 0x04;
/// Connection management of connected endpoints: the upper half of the kinds, {number} + the application's data.
pub(crate) const CM: u8 = 0x20;
/// To a passive endpoint: a request.
pub(crate) const CM_REQUEST: u8 = 0x20;
/// First in the ring of a connection that answers a request.
pub(crate) const CM_ACCEPT: u8 = 0x21;
/// From a passive endpoint: the request was refused.
pub(crate) const CM_REJECT: u8 = 0x22;
/// From a passive endpoint: the request was accepted, over another connection.
pub(crate) const CM_TAKEN: u8 = 0x23;
/// A piece of an RMA write executed by the target: {key, addr, op, data, flags, len, what is left of
/// its range at the target} + body.
pub(crate) const WRITE: u8 = 0x10;
/// A piece of an RMA read executed by the target: {key, addr, op, offset, len, flags}.
pub(crate) const READ: u8 = 0x11;
/// A piece of what a [`READ`] asked for: {op, offset} + body.
pub(crate) const READ_DATA: u8 = 0x12;
/// An atomic executed by the target: {op, data, operation, datatype, kind, segments, bytes} + body.
pub(crate) const ATOMIC: u8 = 0x13;
/// The answer to an [`ATOMIC`]: {op, status} + old values. To an [`ATOMIC_LINE`]: {op, status, old value}.
pub(crate) const ATOMIC_REPLY: u8 = 0x14;
/// An RMA operation was done by its initiator: {flags, data, len, key}: CQ data and counters of the target.
pub(crate) const RMA_EVENT: u8 = 0x15;

/// An atomic on one range of at most 8 bytes, executed by the target: {op, operation packed, addr, key, operand, compare, data}. An
/// op without an upper half is a stamp, and the atomic is answered by [`DONE`] only.
pub(crate) const ATOMIC_LINE: u8 = 0x17;
/// So many [`ATOMIC_LINE`] of one stamp are executed: {stamp, how many}.
pub(crate) const DONE: u8 = 0x05;

/// A key is used hard by its initiator, who has to ask the kernel each time: {key, how often}.
pub(crate) const HARD_USE: u8 = 0x16;

/// Collectives: a member is ready to join: {membership, its number of the group}.
pub(crate) const COLL_JOIN: u8 = 0x18;
/// It is no longer: {its number}.
pub(crate) const COLL_LEAVE: u8 = 0x19;
/// All members are ready: {the member's number, the group's identity}.
pub(crate) const COLL_START: u8 = 0x1a;
/// The group does not come about: {the member's number, why}.
pub(crate) const COLL_REFUSE: u8 = 0x1b;
/// A piece of a message between members: {group, operation, length of the message, offset} + body.
pub(crate) const COLL_DATA: u8 = 0x1c;
/// The group is at its end: {group, why, whether the others are to be told}.
pub(crate) const COLL_ABORT: u8 = 0x1d;

/// Flags of [`WRITE`] and [`READ`]: last piece of its operation.
pub(crate) const F_LAST: u64 = 1;
/// Flags of [`WRITE`]: remote CQ data is valid.
pub(crate) const F_DATA: u64 = 2;
/// Flags of [`RMA_EVENT`]: the operation was a read.
pub(crate) const F_READ: u64 = 4;
/// Flags of [`RMA_EVENT`]: the operation, which was a read, may have stored something as well.
pub(crate) const F_MODIFY: u64 = 8;

/// Builds a head from 64-bit words.
#[derive(Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    pub(crate) const fn new() -> Head {
        Head {
            bytes: [0; HEAD_MAX],
            len: 0,
        }
    }

    /// Appends one word; a head has room for seven.
    #[inline]
    pub(crate) fn word(mut self, value: u64) -> Head {
        if let Some(to) = self.bytes.get_mut(self.len..self.len + 8) {
            to.copy_from_slice(&value.to_ne_bytes());
            self.len += 8;
        }
        self
    }

    /// What is left behind the words, for an inline payload of `n` bytes.
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

/// What a message's record of the base kind `kind` begins with: the kind with its low bits, and a head with tag and data.
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

/// Reads a head word by word; missing words read as zero.
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    #[inline]
    pub(crate) fn new(head: &'a [u8; HEAD_MAX], len: u8) -> Words<'a> {
        Words {
            bytes: head.get(..usize::from(len)).unwrap_or_default(),
        }
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

    /// What follows the words read so far.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The fixed part of an [`ATOMIC`] packed in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicWord {
    pub op: u8,
    pub datatype: u8,
    /// 0 write, 1 fetch, 2 compare.
    pub kind: u8,
    pub segments: u8,
    /// Bytes of the operand list (and of the compare list, and of the answer).
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

    /// Its kind, if it is one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_in_order_and_then_the_rest() {
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
    fn a_head_never_grows_past_its_line() {
        let mut head = Head::new();
        for n in 0..9 {
            head = head.word(n);
        }
        assert_eq!(head.as_slice().len(), HEAD_MAX);
        assert!(head.tail(1).is_none());
    }

    #[test]
    fn the_atomic_word_keeps_its_fields() {
        let word = AtomicWord {
            op: 9,
            datatype: 13,
            kind: 2,
            segments: 8,
            len: 4096,
            has_data: true,
        };
        assert_eq!(AtomicWord::unpack(word.pack()), word);
    }
}
