// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Outstanding transmit operations that wait for a reply of the peer, and their completions.
//!
//! The number of an operation travels to the peer and returns with the reply. It carries a
//! generation, and the peer is checked, so that a stale or invented number matches nothing.

use libfabric_sys as fi;
use scif::slab::{Slab, SlabId};

use crate::base::atomic_ops::element::AtomicKind;
use crate::engine::types::args::RmaIov;
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::PeerId;

/// Flag of an operation in progress whose context identifies a [`Note`].
pub(crate) const FLAG_DEFERRED_WORK: u64 = fi::FI_TRIGGER;

/// Flag of a record that is a part of a posted write, and does not complete it unless it is the
/// last one. No transmit operation accepts this flag from the application.
pub(crate) const FLAG_PART: u64 = fi::FI_PEEK;

/// Flag of a record that is a posted read, whose context is the number of its operation.
pub(crate) const FLAG_READ: u64 = fi::FI_DISCARD;

/// Destination of the report of queued work in progress.
#[derive(Debug)]
pub(crate) struct Note {
    pub context: usize,
    /// Whether a completion of the endpoint was requested too.
    pub report: bool,
    pub cntr: Option<u32>,
}

/// Returns the context of an operation in progress with a note. Contexts of the application are
/// addresses, and the last addresses are never valid.
pub(crate) fn mark(note: u32) -> usize {
    !(note as usize)
}

/// Kind of a completed operation, which determines the flags of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Message,
    Tagged,
    Write,
    Read,
    AtomicWrite,
    AtomicFetch,
    Collective,
}

impl OpKind {
    #[inline(always)]
    pub(crate) fn of_atomic(kind: AtomicKind) -> OpKind {
        match kind {
            AtomicKind::Write => OpKind::AtomicWrite,
            AtomicKind::Fetch | AtomicKind::Compare => OpKind::AtomicFetch,
        }
    }

    /// Returns the kind of a send.
    #[inline(always)]
    pub(crate) fn of(tag: Option<u64>) -> OpKind {
        if tag.is_some() { OpKind::Tagged } else { OpKind::Message }
    }

    #[inline]
    pub(crate) fn cq_flags(self) -> u64 {
        match self {
            OpKind::Message => fi::FI_SEND | fi::FI_MSG,
            OpKind::Tagged => fi::FI_SEND | fi::FI_TAGGED,
            OpKind::Write => fi::FI_RMA | fi::FI_WRITE,
            OpKind::Read => fi::FI_RMA | fi::FI_READ,
            OpKind::AtomicWrite => fi::FI_ATOMIC | fi::FI_WRITE,
            OpKind::AtomicFetch => fi::FI_ATOMIC | fi::FI_READ,
            OpKind::Collective => fi::FI_COLLECTIVE,
        }
    }
}

/// Properties of a posted operation that its completion reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionInfo {
    pub op_kind: OpKind,
    pub context: usize,
    pub flags: u64,
    pub tag: u64,
    pub len: usize,
}

/// Outstanding operation: the peer has to reply to it.
#[derive(Debug)]
pub(crate) struct OutstandingOp {
    pub peer: PeerId,
    pub op_kind: OpKind,
    pub context: usize,
    pub flags: u64,
    pub tag: u64,
    pub len: usize,
    /// Source of a message, destination of a read or fetch.
    pub iov: Iov,
    /// Copy of a datagram, which was complete when it was announced. The operation ends without a
    /// completion or error.
    pub kept: Option<Box<[u8]>>,
    /// Claim block of a large message, and the generation of its announcement.
    pub block: Option<(u8, u32)>,
    /// Reason of the last `CTS` for the payload.
    pub asked: CtsReason,
    /// Key by which the engine of a network reads the payload.
    pub exposed: Option<u64>,
    /// RMA operation that the network executes.
    pub network: Option<Box<NetworkOp>>,
    /// Bytes that a read still waits for.
    pub left: usize,
    /// Whether the target executes the operation in ring order. Later direct RMA must wait for it.
    pub ring_rma: bool,
    /// Time in nanoseconds of the last progress call before the table had it.
    pub since_ns: u64,
}

impl OutstandingOp {
    /// Creates an operation on the buffers `iov`.
    pub(crate) fn new(peer: PeerId, label: CompletionInfo, iov: Iov) -> OutstandingOp {
        OutstandingOp {
            peer,
            op_kind: label.op_kind,
            context: label.context,
            flags: label.flags,
            tag: label.tag,
            len: label.len,
            iov,
            kept: None,
            block: None,
            asked: CtsReason::Never,
            exposed: None,
            network: None,
            left: 0,
            ring_rma: false,
            since_ns: 0,
        }
    }

    /// Returns the properties that the completion reports.
    pub(crate) fn info(&self) -> CompletionInfo {
        let OutstandingOp { op_kind, context, flags, tag, len, .. } = *self;
        CompletionInfo { op_kind, context, flags, tag, len }
    }

    fn kept_len(&self) -> usize {
        self.kept.as_ref().map_or(0, |bytes| bytes.len())
    }
}

/// RMA operation that the network executes, for its repetition through the ring.
#[derive(Debug)]
pub(crate) struct NetworkOp {
    pub rma: RmaIov,
    pub data: Option<u64>,
    /// Whether the memory of the target is being read.
    pub is_reading: bool,
}

/// Reason of a receiver to request the payload of a message as fragments.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum CtsReason {
    #[default]
    Never,
    /// Choice of a receiver that could pull the payload.
    Chosen,
    /// No access, even if an earlier attempt used another method.
    Refused,
}

/// Table of outstanding operations.
#[derive(Debug)]
pub(crate) struct OpTable {
    ops: Slab<OutstandingOp, SlabId>,
    /// Number of outstanding messages, by peer.
    messages: Vec<u32>,
    /// Bytes of kept datagrams.
    kept: usize,
    /// Number that differs between incarnations of an endpoint. Generations begin with it, since
    /// peers may still owe replies to an earlier one.
    life: u32,
    /// Time in nanoseconds of the last progress call.
    pub(crate) clock_ns: u64,
    /// Work queued to the domain that this endpoint is executing.
    pub(crate) notes: Slab<Note>,
}

#[expect(clippy::cast_possible_truncation, reason = "an operation number is two u32 halves")]
fn slot(number: u64) -> SlabId {
    SlabId { index: number as u32, generation: (number >> 32) as u32 }
}

fn number(slot: SlabId) -> u64 {
    u64::from(slot.generation) << 32 | u64::from(slot.index)
}

impl OpTable {
    /// Creates an empty table. `life` distinguishes this endpoint from earlier ones at its port.
    #[expect(clippy::cast_possible_truncation, reason = "any 32 bits that change")]
    pub(crate) const fn new(life: u64) -> OpTable {
        let life = (life ^ life >> 32) as u32 | 1;
        OpTable {
            ops: Slab::with_generation(life),
            messages: Vec::new(),
            kept: 0,
            life,
            clock_ns: 0,
            notes: Slab::new(),
        }
    }

    /// Returns a number that differs between incarnations of an endpoint.
    #[inline]
    pub(crate) const fn life(&self) -> u32 {
        self.life
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds an operation and returns its number. Returns 0, the number of none, with 2^32 - 1
    /// operations.
    pub(crate) fn insert(&mut self, mut op: OutstandingOp) -> u64 {
        op.since_ns = self.clock_ns;
        self.kept += op.kept_len();
        if let Some(count) = self.messages_like(&op) {
            *count += 1;
        }
        self.ops.insert(op).map_or(0, number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut OutstandingOp> {
        self.ops.get_mut(slot(id))
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<OutstandingOp> {
        let op = self.ops.remove(slot(id))?;
        self.kept -= op.kept_len();
        if let Some(count) = self.messages_like(&op) {
            *count -= 1;
        }
        Some(op)
    }

    /// Returns the message counter for the peer of `op`, if `op` is a message.
    fn messages_like(&mut self, op: &OutstandingOp) -> Option<&mut u32> {
        if !matches!(op.op_kind, OpKind::Message | OpKind::Tagged) {
            return None;
        }
        let at = op.peer.index();
        if self.messages.len() <= at {
            self.messages.resize(at + 1, 0);
        }
        self.messages.get_mut(at)
    }

    /// Returns the bytes of kept datagrams that receivers have not taken.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Whether the payload of operation `id` is kept.
    pub(crate) fn is_kept(&self, id: u64) -> bool {
        self.ops.get(slot(id)).is_some_and(|op| op.kept.is_some())
    }

    /// Returns the number of messages to `peer` that await a reply.
    pub(crate) fn messages_to(&self, peer: PeerId) -> u32 {
        self.messages.get(peer.index()).copied().unwrap_or(0)
    }

    /// Returns the numbers of the operations to one peer, in slot order.
    pub(crate) fn of_peer(&self, peer: PeerId) -> Vec<u64> {
        let ops = self.ops.iter().filter(|(_, op)| op.peer == peer);
        ops.map(|(id, _)| number(id)).collect()
    }

    /// Returns the number of operations.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns the operations, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OutstandingOp> {
        self.ops.iter().map(|(_, op)| op)
    }

    /// Returns the operations, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OutstandingOp> {
        self.ops.iter_mut().map(|(_, op)| op)
    }

    /// Returns the peers of the operations, with repetitions.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.ops.iter().map(|(_, op)| op.peer)
    }

    /// Whether an operation to `peer` is incomplete. One that keeps its datagram counts as
    /// complete.
    pub(crate) fn any_incomplete(&self, peer: PeerId) -> bool {
        self.ops.iter().any(|(_, op)| op.peer == peer && op.kept.is_none())
    }

    pub(crate) fn any_of_peer(&self, peer: PeerId) -> bool {
        self.ops.iter().any(|(_, op)| op.peer == peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(peer: usize, op_kind: OpKind, kept: usize) -> OutstandingOp {
        let label = CompletionInfo { op_kind, context: 0, flags: 0, tag: 0, len: kept };
        OutstandingOp {
            kept: (kept > 0).then(|| vec![0; kept].into_boxed_slice()),
            ..OutstandingOp::new(PeerId::new(peer), label, Iov::new(&[]))
        }
    }

    #[test]
    fn a_number_names_one_operation() {
        let mut ops = OpTable::new(9);
        let first = ops.insert(op(0, OpKind::Read, 0));
        assert!(ops.get_mut(first).is_some() && ops.remove(first).is_some());
        let second = ops.insert(op(0, OpKind::Read, 0));
        assert_ne!(first, second);
        assert!(ops.get_mut(first).is_none() && ops.remove(first).is_none());
        assert!(ops.get_mut(second + 1).is_none(), "no such slot");
        assert!(!ops.is_empty());
    }

    #[test]
    fn messages_and_kept_bytes_are_counted() {
        let mut ops = OpTable::new(9);
        let (one, two) = (PeerId::new(1), PeerId::new(2));
        let read = ops.insert(op(1, OpKind::Read, 0));
        let sent = ops.insert(op(1, OpKind::Tagged, 0));
        let kept = ops.insert(op(2, OpKind::Message, 30));
        assert_eq!((ops.messages_to(one), ops.messages_to(two), ops.kept()), (1, 1, 30));
        assert_eq!([read, sent, kept].map(|id| ops.is_kept(id)), [false, false, true]);
        assert_eq!(ops.of_peer(one), [read, sent]);
        assert!(ops.any_of_peer(two) && !ops.any_incomplete(two), "a kept datagram is complete");
        for id in [read, sent, kept] {
            assert!(ops.remove(id).is_some());
        }
        assert_eq!((ops.messages_to(one), ops.messages_to(two), ops.kept()), (0, 0, 0));
        assert!(ops.is_empty() && ops.of_peer(one).is_empty());
    }
}
