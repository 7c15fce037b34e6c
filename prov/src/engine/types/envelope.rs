// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Destination and properties of an incoming message, and the reasons to refuse a record.

use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::PeerId;
use crate::state::peer_owner::PeerRxEntry;

/// Number of a buffer, with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultiRecvId {
    /// Buffer of this endpoint.
    Own(u32),
    /// Buffer of the shared receive context.
    Shared(u32),
}

/// Destination of a message: one receive, or a part of a multi-receive buffer.
#[derive(Debug)]
pub(crate) struct RecvTarget {
    pub tagged: bool,
    pub iov: Iov,
    pub room: usize,
    pub context: usize,
    pub flags: u64,
    pub multi: Option<MultiRecvId>,
    /// Entry of a peer provider that this receive belongs to.
    pub entry: Option<PeerRxEntry>,
}

impl RecvTarget {
    /// Creates the destination of a message of its own.
    pub(crate) fn new(
        tagged: bool,
        iov: Iov,
        room: usize,
        context: usize,
        flags: u64,
    ) -> RecvTarget {
        RecvTarget { tagged, iov, room, context, flags, multi: None, entry: None }
    }
}

/// Properties of a message that the completion of its receive reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MsgEnvelope {
    pub peer: PeerId,
    pub tag: u64,
    pub data: Option<u64>,
    pub len: usize,
}

/// Record that no correct peer sends.
#[derive(Debug)]
pub(crate) struct ProtocolError;

/// Reason to end the connection of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordError {
    /// Record that no correct peer sends.
    ProtocolError,
    /// No memory is left for the data that the record brings.
    NoMemory,
}

impl From<ProtocolError> for RecordError {
    fn from(ProtocolError: ProtocolError) -> RecordError {
        RecordError::ProtocolError
    }
}
