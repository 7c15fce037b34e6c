// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Frames that cross data interrupts, and the card by which a process is found.
//!
//! A frame is the data of one interrupt: 16 bytes and a payload. All machines with the hardware are
//! little endian. Not about their order on a connection (`endpoint`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of frames and cards. A peer with another one is refused.
const VERSION: u8 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"scif-sci");

/// Size in bytes of a frame before its payload.
pub(super) const HEAD: usize = 16;
/// Size in bytes of a card.
pub(super) const CARD: usize = size_of::<Card>();
/// Size in bytes of the longest frame without data of a stream. Every library must carry it in one
/// interrupt.
pub(super) const FRAME_MIN: usize = HEAD + size_of::<ConnectRequest>();

const _: () = assert!(CARD == 32 && FRAME_MIN == 48 && size_of::<WindowCard>() == 32);

/// Content of the segment of a listening port.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Card {
    magic: u64,
    version: u32,
    pad: u32,
    interrupt: u32,
    presence: u32,
    nonce: u64,
}

/// Process as its peers reach it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct ProcessId {
    pub(super) node: u32,
    /// Number of its data interrupt.
    pub(super) interrupt: u32,
    /// Id of the segment whose end is its end.
    pub(super) presence: u32,
    /// Random number, since the others are used again by later processes.
    pub(super) nonce: u64,
}

impl Card {
    pub(super) fn of(process: ProcessId) -> Card {
        let ProcessId { interrupt, presence, nonce, .. } = process;
        Card { magic: MAGIC, version: u32::from(VERSION), pad: 0, interrupt, presence, nonce }
    }

    pub(super) fn encode(&self) -> [u8; CARD] {
        zerocopy::transmute!(*self)
    }

    /// Returns the process of a card on a node; `None` for other content.
    pub(super) fn decode(bytes: [u8; CARD], node: u32) -> Option<ProcessId> {
        let card: Card = zerocopy::transmute!(bytes);
        let is_ours = card.magic == MAGIC && card.version == u32::from(VERSION);
        let Card { interrupt, presence, nonce, .. } = card;
        is_ours.then_some(ProcessId { node, interrupt, presence, nonce })
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    /// Receiving end of the connection; 0 for a request to connect.
    token: u64,
    /// Number of the frame on its connection.
    number: u32,
    kind: u8,
    version: u8,
    len: u16,
}

/// Request to connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ConnectRequest {
    nonce: u64,
    /// Token of the connecting end.
    pub(super) token: u64,
    node: u32,
    interrupt: u32,
    presence: u32,
    /// Port of the listener.
    pub(super) port: u16,
    /// Port of the connecting end, or 0.
    pub(super) from: u16,
}

impl ConnectRequest {
    pub(super) fn new(process: ProcessId, token: u64, port: u16, from: u16) -> ConnectRequest {
        let ProcessId { node, interrupt, presence, nonce } = process;
        ConnectRequest { nonce, token, node, interrupt, presence, port, from }
    }

    /// Returns the connecting process.
    pub(super) fn process(&self) -> ProcessId {
        let ConnectRequest { nonce, node, interrupt, presence, .. } = *self;
        ProcessId { node, interrupt, presence, nonce }
    }
}

/// Window of the sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct WindowCard {
    pub(super) offset: i64,
    pub(super) len: u64,
    /// Offset in its segment.
    pub(super) start: u64,
    /// Id of its segment.
    pub(super) segment: u32,
    /// Permitted accesses: 1 to read, 2 to write, 4 by RMA (`windows`).
    pub(super) access: u32,
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FrameContent<'a> {
    Connect(ConnectRequest),
    /// Reply to a request: token of the accepting end.
    Accept(u64),
    /// Bytes of the stream.
    Data(&'a [u8]),
    /// Number of bytes of the stream that were received.
    Credit(u32),
    /// New window of the sender.
    Window(WindowCard),
    /// Request to unmap a window, by its offset.
    Withdraw(i64),
    /// Reply to that request.
    Left(i64),
    /// End of the connection, or refusal of a request.
    Close,
    /// Frame of a process to itself, whose length is measured.
    Measure(usize),
}

/// Frame that was received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Frame<'a> {
    pub(super) token: u64,
    pub(super) number: u32,
    pub(super) content: FrameContent<'a>,
}

const CONNECT: u8 = 1;
const ACCEPT: u8 = 2;
const DATA: u8 = 3;
const CREDIT: u8 = 4;
const WINDOW: u8 = 5;
const WITHDRAW: u8 = 6;
const VACATED: u8 = 7;
const CLOSE: u8 = 8;
const MEASURE: u8 = 9;

impl Frame<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let zeros;
        let (kind, payload): (u8, &[u8]) = match &self.content {
            FrameContent::Connect(request) => (CONNECT, request.as_bytes()),
            FrameContent::Accept(token) => (ACCEPT, token.as_bytes()),
            FrameContent::Data(bytes) => (DATA, bytes),
            FrameContent::Credit(bytes) => (CREDIT, bytes.as_bytes()),
            FrameContent::Window(card) => (WINDOW, card.as_bytes()),
            FrameContent::Withdraw(offset) => (WITHDRAW, offset.as_bytes()),
            FrameContent::Left(offset) => (VACATED, offset.as_bytes()),
            FrameContent::Close => (CLOSE, &[]),
            FrameContent::Measure(len) => {
                zeros = vec![0; *len];
                (MEASURE, &zeros)
            }
        };
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let head = Head { token: self.token, number: self.number, kind, version: VERSION, len };
        let mut bytes = Vec::with_capacity(HEAD + payload.len());
        bytes.extend(head.as_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Decodes a frame; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Frame<'_>> {
        let (head, payload) = Head::read_from_prefix(bytes).ok()?;
        if head.version != VERSION || usize::from(head.len) != payload.len() {
            return None;
        }
        let content = match head.kind {
            CONNECT => FrameContent::Connect(ConnectRequest::read_from_bytes(payload).ok()?),
            ACCEPT => FrameContent::Accept(u64::read_from_bytes(payload).ok()?),
            DATA => FrameContent::Data(payload),
            CREDIT => FrameContent::Credit(u32::read_from_bytes(payload).ok()?),
            WINDOW => FrameContent::Window(WindowCard::read_from_bytes(payload).ok()?),
            WITHDRAW => FrameContent::Withdraw(i64::read_from_bytes(payload).ok()?),
            VACATED => FrameContent::Left(i64::read_from_bytes(payload).ok()?),
            CLOSE if payload.is_empty() => FrameContent::Close,
            MEASURE => FrameContent::Measure(payload.len()),
            _ => return None,
        };
        Some(Frame { token: head.token, number: head.number, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: ProcessId = ProcessId { node: 8, interrupt: 3, presence: 77, nonce: 5 };

    #[test]
    fn frames_survive_and_garbage_does_not() {
        let request = ConnectRequest::new(PROCESS, 9, 1089, 7);
        assert_eq!(request.process(), PROCESS);
        let card = WindowCard { offset: 1 << 32, len: 4096, start: 8192, segment: 6, access: 3 };
        for content in [
            FrameContent::Connect(request),
            FrameContent::Accept(11),
            FrameContent::Data(b"bytes"),
            FrameContent::Data(b""),
            FrameContent::Credit(12),
            FrameContent::Window(card),
            FrameContent::Withdraw(13),
            FrameContent::Left(-1),
            FrameContent::Close,
            FrameContent::Measure(100),
        ] {
            let frame = Frame { token: 1, number: 2, content };
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame));
            let cut = &bytes[..bytes.len() - 1];
            assert_eq!(Frame::decode(cut), None, "{content:?}");
            let mut other = bytes.clone();
            other[13] += 1;
            assert_eq!(Frame::decode(&other), None, "another version");
            other = bytes;
            other[12] = 200;
            assert_eq!(Frame::decode(&other), None, "another kind");
        }
        assert_eq!(Frame::decode(&[]), None);
    }

    #[test]
    fn cards_name_a_process_and_others_are_refused() {
        let bytes = Card::of(PROCESS).encode();
        assert_eq!(Card::decode(bytes, 8), Some(PROCESS));
        assert_eq!(Card::decode([0; CARD], 8), None);
        let mut other = bytes;
        other[8] += 1;
        assert_eq!(Card::decode(other, 8), None, "another version");
    }
}
