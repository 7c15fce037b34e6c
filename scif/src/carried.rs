// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counts of the operations that a network carries between hosts.
//!
//! Not about their records, which the owner of the connections decodes (`NetWire::decoder`).

/// Number of operations, and their bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpCount {
    /// Operations.
    pub ops: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl OpCount {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.ops += 1;
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// Operation of a program that begins with a record, with the length of its payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CarriedOp {
    /// Message.
    Message(u64),
    /// RMA or atomic.
    OneSided(u64),
}

/// Function that returns the operation of a record, by its kind, its head and the length of its
/// body. `None`: it belongs to an operation that an earlier record has begun, or to none.
pub type OpDecoder = fn(u8, &[u8], usize) -> Option<CarriedOp>;

/// Operations of an endpoint with peers on other hosts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CarriedCounts {
    /// Messages that were given to the network.
    pub sent: OpCount,
    /// Messages that have arrived.
    pub received: OpCount,
    /// RMA and atomics of this side.
    pub one_sided: OpCount,
    /// Reads of memory that the network executes for this side: payloads of messages and RMA.
    pub reads: OpCount,
}

/// Counts, with the decoder of the records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    decode: OpDecoder,
    pub(crate) counts: CarriedCounts,
}

impl Tally {
    pub(crate) fn new(decode: OpDecoder) -> Tally {
        Tally { decode, counts: CarriedCounts::default() }
    }

    /// Counts a record that is given to the network.
    pub(crate) fn note_sent(&mut self, kind: u8, head: &[u8], body_len: usize) {
        match (self.decode)(kind, head, body_len) {
            Some(CarriedOp::Message(len)) => self.counts.sent.add(len),
            Some(CarriedOp::OneSided(len)) => self.counts.one_sided.add(len),
            None => {}
        }
    }

    /// Counts a record of a peer, whose lengths may be any.
    pub(crate) fn note_received(&mut self, kind: u8, head: &[u8], body_len: usize) {
        if let Some(CarriedOp::Message(len)) = (self.decode)(kind, head, body_len) {
            self.counts.received.add(len);
        }
    }
}
