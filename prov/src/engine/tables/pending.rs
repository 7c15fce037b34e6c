// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations, records and payloads that wait for ring space or a connection.
//!
//! Not here: the attempts to start them (`send`, `rma`, `atomic`, `coll`, `fragment`).

use std::ops::Range;

use scif_ring::copy::{Mem, total_len};

use crate::engine::tables::op_table::{CompletionInfo, OpKind};
use crate::engine::types::args::RmaIov;
use crate::engine::types::iov::{Iov, gather, gather_into, sub_iov};
use crate::engine::types::wire::{AtomicWord, Head};

/// Source of a payload.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Buffers of the application.
    User(&'a [Mem]),
    /// Copy of the buffers, made because they must be reusable at once.
    Copied(&'a [u8]),
}

impl Source<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Source::User(iov) => total_len(iov),
            Source::Copied(bytes) => bytes.len(),
        }
    }

    /// Appends a copy of the payload to `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Source::User(iov) => iov.iter().for_each(|piece| piece.append_to(out)),
            Source::Copied(bytes) => out.extend_from_slice(bytes),
        }
    }

    /// Appends a copy of `len` bytes of the payload from `offset`.
    pub(crate) fn append_part(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        match self {
            Source::User(iov) => {
                sub_iov(iov, offset, len).iter().for_each(|piece| piece.append_to(out));
            }
            Source::Copied(bytes) => {
                out.extend_from_slice(bytes.get(offset..offset + len).unwrap_or_default());
            }
        }
    }

    #[inline]
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        match self {
            Source::User(iov) => gather_into(iov, out),
            Source::Copied(bytes) => out.copy_from_slice(bytes),
        }
    }
}

/// Payload held by a pending operation.
#[derive(Debug)]
pub(crate) enum OwnedPayload {
    User(Iov),
    Copied(Box<[u8]>),
}

impl OwnedPayload {
    /// Holds the buffers themselves, or a copy if they must be reusable now.
    pub(crate) fn new(iov: &[Mem], inject: bool) -> OwnedPayload {
        if inject {
            OwnedPayload::Copied(gather(iov).into_boxed_slice())
        } else {
            OwnedPayload::User(Iov::new(iov))
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            OwnedPayload::User(iov) => Source::User(iov.as_slice()),
            OwnedPayload::Copied(bytes) => Source::Copied(bytes),
        }
    }
}

/// Posted operation that has not entered the ring completely.
#[derive(Debug)]
pub(crate) enum PendingOp {
    Message {
        payload: OwnedPayload,
        tag: Option<u64>,
        data: Option<u64>,
        context: usize,
        flags: u64,
    },
    Rma(RmaOp),
    Atomic(AtomicOp),
    /// Part of a collective, without a completion of its own.
    Coll(CollOut),
}

impl PendingOp {
    pub(crate) fn label(&self) -> Option<CompletionInfo> {
        Some(match self {
            PendingOp::Message { payload, tag, context, flags, .. } => CompletionInfo {
                op_kind: OpKind::of(*tag),
                context: *context,
                flags: *flags,
                tag: tag.unwrap_or(0),
                len: payload.source().len(),
            },
            PendingOp::Rma(op) => op.label(),
            PendingOp::Atomic(op) => op.label(),
            PendingOp::Coll(_) => return None,
        })
    }

    /// Returns the number of an operation that has started.
    pub(crate) fn started(&self) -> Option<u64> {
        match self {
            PendingOp::Message { .. } => None,
            PendingOp::Rma(op) => op.started(),
            PendingOp::Atomic(_) | PendingOp::Coll(_) => None,
        }
    }
}

/// RMA operation that is pending or partly in the ring.
#[derive(Debug)]
pub(crate) struct RmaOp {
    pub(crate) write: bool,
    pub(crate) local: OwnedPayload,
    pub(crate) rma: Vec<RmaIov>,
    pub(crate) len: usize,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// Number of the operation once its first record is in the ring, and the position of the next
    /// record.
    pub(crate) id: Option<u64>,
    pub(crate) segment: usize,
    pub(crate) within: usize,
    pub(crate) offset: usize,
    /// Whether a direct access failed, so that the operation goes through the ring.
    pub(crate) through_ring: bool,
    /// Whether a network has refused the operation, which precedes all later ones.
    pub(crate) again: bool,
    /// Number of DMA operations that have ended once this one has, if DMA executes it.
    pub(crate) dma: Option<u64>,
    /// Claim block of an unfinished cooperative copy, and its generation.
    pub(crate) block: Option<(u8, u32)>,
}

impl RmaOp {
    pub(crate) fn op_kind(&self) -> OpKind {
        if self.write { OpKind::Write } else { OpKind::Read }
    }

    pub(crate) fn label(&self) -> CompletionInfo {
        CompletionInfo {
            op_kind: self.op_kind(),
            context: self.context,
            flags: self.flags,
            tag: 0,
            len: self.len,
        }
    }

    pub(crate) fn started(&self) -> Option<u64> {
        self.id
    }
}

/// Pending atomic with its finished record.
#[derive(Debug)]
pub(crate) struct AtomicOp {
    pub(crate) op_kind: OpKind,
    pub(crate) word: AtomicWord,
    pub(crate) data: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) result: Iov,
    pub(crate) len: usize,
    pub(crate) context: usize,
    pub(crate) flags: u64,
}

impl AtomicOp {
    pub(crate) fn label(&self) -> CompletionInfo {
        CompletionInfo {
            op_kind: self.op_kind,
            context: self.context,
            flags: self.flags,
            tag: 0,
            len: self.len,
        }
    }
}

/// Pending record or message of a collective for one peer.
#[derive(Debug)]
pub(crate) enum CollOut {
    /// Range of the working memory of an operation.
    Data {
        group: u64,
        seq: u64,
        range: Range<usize>,
        sent: usize,
        begun: bool,
    },
    Note {
        kind: u8,
        head: Head,
        group: u64,
    },
    /// No record: a connection suffices to detect the end of the peer.
    Touch {
        group: u64,
    },
}

impl CollOut {
    pub(crate) fn group(&self) -> u64 {
        match self {
            CollOut::Data { group, .. }
            | CollOut::Note { group, .. }
            | CollOut::Touch { group } => *group,
        }
    }
}

/// Payload that leaves through the ring in fragments.
#[derive(Debug)]
pub(crate) enum FragmentedSend {
    /// Payload requested by a `CTS`: the buffers of operation `op`, while that is outstanding.
    Message { op: u64, receive: u64, done: usize, want: usize },
    /// Data requested by a `READ`: a snapshot, so that later writes keep their order.
    Read { op: u64, offset: u64, bytes: Box<[u8]>, done: usize },
}

impl FragmentedSend {
    /// Returns the bytes that are stored for the peer.
    pub(crate) fn kept(&self) -> usize {
        match self {
            FragmentedSend::Message { .. } => 0,
            FragmentedSend::Read { bytes, .. } => bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::buffer;

    #[test]
    fn an_injected_payload_is_copied() {
        let from = buffer(vec![1; 8]);
        let iov = [from.sub(0, 8).unwrap()];
        let (held, copied) = (OwnedPayload::new(&iov, false), OwnedPayload::new(&iov, true));
        from.copy_from_slice(&[2; 8]);
        for (kept, expected) in [(held, 2), (copied, 1)] {
            let mut out = [0; 8];
            kept.source().copy_to(&mut out);
            assert_eq!((kept.source().len(), out), (8, [expected; 8]));
        }
    }

    #[test]
    fn a_part_of_a_collective_has_no_completion() {
        let op = PendingOp::Coll(CollOut::Touch { group: 4 });
        assert!(op.label().is_none() && op.started().is_none());
        let stream = FragmentedSend::Read { op: 1, offset: 0, bytes: Box::new([0; 5]), done: 0 };
        assert_eq!(stream.kept(), 5);
    }
}
