// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Credits of a connection: the records that its sender may still send.
//!
//! A sender has at most one ring of records and bodies outstanding, beyond what the receiver has
//! taken out of its ring. So everything that arrives has a place, and a slow receiver stops its own
//! senders only. Records are consumed in order, so their number tells also the bytes.

use std::collections::VecDeque;

use scif_ring::layout::{RING_DATA_BYTES, RING_SLOTS};

use super::wire::LONG_BODY_MAX;

/// Number of records after whose consumption a credit is sent alone: half a ring. A larger number
/// stops the sender, a smaller one sends more messages.
const DUE_RECORDS: usize = RING_SLOTS / 2;
/// Size in bytes of the bodies in the ring after whose consumption a credit is sent alone.
const DUE_BYTES: usize = RING_DATA_BYTES / 2;
/// Size in bytes of the bodies outside the ring after whose consumption a credit is sent alone,
/// more than one of the longest. So the answer to one takes its credit along. A sender that is
/// stopped always has as many outstanding.
const DUE_LONG_BYTES: usize = LONG_BODY_MAX + 1;

/// Size in bytes of the bodies outside the ring that may be outstanding. A smaller one stops the
/// sender, a larger one occupies more memory at a slow receiver.
const LONG_BYTES: usize = 2 * LONG_BODY_MAX;

/// Body of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RecordBody {
    pub(super) len: usize,
    /// Whether the body is outside the ring.
    pub(super) is_long: bool,
}

impl RecordBody {
    pub(super) fn in_ring(len: usize) -> RecordBody {
        RecordBody { len, is_long: false }
    }

    pub(super) fn long(len: usize) -> RecordBody {
        RecordBody { len, is_long: true }
    }
}

/// Bodies of the records that are outstanding, oldest first.
#[derive(Debug, Default)]
struct Outstanding {
    bodies: VecDeque<RecordBody>,
    /// Bytes in the ring, and outside it.
    bytes: usize,
    long_bytes: usize,
}

impl Outstanding {
    fn has_room(&self, body: RecordBody) -> bool {
        let has_bytes = if body.is_long {
            self.long_bytes + body.len <= LONG_BYTES
        } else {
            self.bytes + body.len <= RING_DATA_BYTES
        };
        has_bytes && self.bodies.len() < RING_SLOTS
    }

    fn push(&mut self, body: RecordBody) {
        self.bodies.push_back(body);
        *if body.is_long { &mut self.long_bytes } else { &mut self.bytes } += body.len;
    }

    /// Removes the oldest `count` records; returns false if there are fewer.
    fn pop(&mut self, count: usize) -> bool {
        if count > self.bodies.len() {
            return false;
        }
        for _ in 0..count {
            let Some(body) = self.bodies.pop_front() else { return false };
            *if body.is_long { &mut self.long_bytes } else { &mut self.bytes } -= body.len;
        }
        true
    }

    /// Whether the bodies of the oldest `count` records have enough bytes for a credit.
    fn is_due(&self, count: usize) -> bool {
        let (mut bytes, mut long_bytes) = (0, 0);
        for body in self.bodies.iter().take(count) {
            *if body.is_long { &mut long_bytes } else { &mut bytes } += body.len;
        }
        bytes >= DUE_BYTES || long_bytes >= DUE_LONG_BYTES
    }
}

/// Window of a sender.
#[derive(Debug, Default)]
pub(super) struct SendWindow {
    outstanding: Outstanding,
    /// Number of records that the receiver has reported as consumed, modulo 2^32.
    credited: u32,
}

impl SendWindow {
    /// Whether one more record with that body may be sent.
    pub(super) fn has_room(&self, body: RecordBody) -> bool {
        self.outstanding.has_room(body)
    }

    pub(super) fn note_sent(&mut self, body: RecordBody) {
        self.outstanding.push(body);
    }

    /// Notes a credit; returns false for one that reports more records than were sent.
    pub(super) fn note_credit(&mut self, credit: u32) -> bool {
        let newly = credit.wrapping_sub(self.credited);
        self.credited = credit;
        self.outstanding.pop(newly as usize)
    }
}

/// Window of a receiver.
#[derive(Debug, Default)]
pub(super) struct ReceiveWindow {
    /// Records that the sender does not know to be consumed.
    outstanding: Outstanding,
    /// Number of records reported as consumed, modulo 2^32.
    credited: u32,
}

impl ReceiveWindow {
    /// Notes a record; returns false if its sender had no credit for it.
    pub(super) fn note_received(&mut self, body: RecordBody) -> bool {
        let permitted = self.outstanding.has_room(body);
        self.outstanding.push(body);
        permitted
    }

    /// Whether so much is outstanding that a credit may become due.
    pub(super) fn is_watched(&self) -> bool {
        let Outstanding { bodies, bytes, long_bytes } = &self.outstanding;
        bodies.len() >= DUE_RECORDS || *bytes >= DUE_BYTES || *long_bytes >= DUE_LONG_BYTES
    }

    /// Whether a credit for `consumed` records is due, although no message takes it along.
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
    pub(super) fn is_due(&self, consumed: u64) -> bool {
        let newly = (consumed as u32).wrapping_sub(self.credited) as usize;
        newly >= DUE_RECORDS || newly > 0 && self.outstanding.is_due(newly)
    }

    /// Returns the credit for `consumed` records, which is sent now.
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
    pub(super) fn credit(&mut self, consumed: u64) -> u32 {
        let credit = consumed as u32;
        // Never more than were received: the ring holds no others.
        self.outstanding.pop(credit.wrapping_sub(self.credited) as usize);
        self.credited = credit;
        credit
    }
}

#[cfg(test)]
mod tests {
    use scif_ring::layout::BODY_MAX;

    use super::*;

    /// Both windows in step: what the sender permits, the receiver accepts.
    #[test]
    fn a_sender_never_stops_for_ever_and_never_has_too_much() {
        let in_ring = [0, 1, 255, 256, 4096, BODY_MAX - 1, BODY_MAX].map(RecordBody::in_ring);
        let long = [1, 4096, BODY_MAX, LONG_BODY_MAX - 1, LONG_BODY_MAX].map(RecordBody::long);
        for body in in_ring.into_iter().chain(long) {
            let (mut sender, mut receiver) = (SendWindow::default(), ReceiveWindow::default());
            // Beyond 2^32 records, the numbers wrap.
            let start = u64::from(u32::MAX) - 300;
            sender.credited = u32::try_from(start).unwrap();
            receiver.credited = sender.credited;
            let (mut sent, mut consumed) = (start, start);
            for _ in 0..50 {
                let before = sent;
                while sender.has_room(body) {
                    sender.note_sent(body);
                    assert!(receiver.note_received(body));
                    sent += 1;
                }
                assert!(sent > before && receiver.is_watched());
                while !receiver.is_due(consumed) {
                    consumed += 1;
                    assert!(consumed <= sent, "a credit is due before all is consumed");
                }
                assert!(sender.note_credit(receiver.credit(consumed)));
            }
        }
    }

    #[test]
    fn too_much_and_false_credits_are_noticed() {
        let mut receiver = ReceiveWindow::default();
        for _ in 0..RING_SLOTS {
            assert!(receiver.note_received(RecordBody::in_ring(0)));
        }
        assert!(!receiver.note_received(RecordBody::in_ring(0)), "more records than a ring has");
        let mut receiver = ReceiveWindow::default();
        for _ in 0..RING_DATA_BYTES / BODY_MAX {
            assert!(receiver.note_received(RecordBody::in_ring(BODY_MAX)));
        }
        for _ in 0..LONG_BYTES / LONG_BODY_MAX {
            assert!(receiver.note_received(RecordBody::long(LONG_BODY_MAX)));
        }
        assert!(!receiver.note_received(RecordBody::long(1)), "more bytes outside the ring");
        assert!(!receiver.note_received(RecordBody::in_ring(1)), "more bytes than a ring has");
        let mut sender = SendWindow::default();
        sender.note_sent(RecordBody::in_ring(3));
        assert!(!sender.note_credit(2), "only one was sent");
        assert!(SendWindow::default().note_credit(0));
    }
}
