// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Body of a record that is outside the ring, in the buffer in which it arrived.
//!
//! Not about the order of such bodies (`transport::net::outside`).

use std::ops::Range;

/// Answer to a record that is to be sent past the ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LongSend {
    /// The network has it, or keeps it until it can send it.
    Sent,
    /// The peer or the network has no space for it now, or the ring must carry it.
    Later,
    /// Records in the ring must be sent first, for which the peer has no space now.
    Behind,
}

/// Body of a record, and the kind of that record.
#[derive(Debug)]
pub struct OutsideBody {
    /// Number of records that the connection delivered before this one.
    number: u64,
    kind: u8,
    buffer: Vec<u8>,
    range: Range<usize>,
}

impl OutsideBody {
    /// Returns the body of a record with that number and kind: a range of `buffer`.
    pub(crate) fn new(
        (number, kind): (u64, u8),
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> OutsideBody {
        OutsideBody { number, kind, buffer, range }
    }

    /// Returns the number of records that the connection delivered before this one.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the kind of the record.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Returns the bytes of the body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns the buffer, for later messages.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// Numbers of bytes of bodies outside the rings of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutsideBytes {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_range_of_its_buffer() {
        let body = OutsideBody::new((4, 7), vec![1, 2, 3, 4], 1..3);
        assert_eq!((body.number(), body.kind(), body.bytes()), (4, 7, &[2, 3][..]));
        assert_eq!(body.into_buffer(), [1, 2, 3, 4]);
        assert!(OutsideBody::new((0, 0), Vec::new(), 1..3).bytes().is_empty());
    }
}
