// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Packets on the socket of a connection between two endpoints of `scif.h`, with the descriptors
//! they carry.
//!
//! Not about the time at which they are sent. A packet has 32 bytes: magic with version, kind, and
//! three arguments. An endpoint of the provider that connects to such a socket, or is connected to
//! by one, reads another magic and is rejected.

use scif_ring::{chunks, chunks_mut};

const MAGIC: [u8; 8] = *b"SCIFepd3";

/// Size of a packet in bytes.
pub(crate) const PACKET: usize = 32;

/// Number of descriptors of a `Hello`: the segment, the opener's window table, its arena, its
/// doorbell.
pub(crate) const HELLO_FDS: usize = 4;
/// Number of descriptors of a `Welcome`: the acceptor's window table, its arena, its doorbell.
pub(crate) const WELCOME_FDS: usize = 3;

/// Message from one side to the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packet {
    /// Opener's first packet.
    Hello,
    /// Acceptor's answer: connected.
    Welcome,
    /// Acceptor's answer: not connected.
    Refuse,
    /// Graceful close.
    Bye,
    /// Question whether the peer still maps anything of a range of the sender's arena, which holds
    /// the window of this serial number. With length 0: of that window's pages in other arenas of
    /// the sender. Answered by `Mapped`.
    MappedQuery { serial: u32, at: u64, len: u64 },
    /// Answer to `MappedQuery`.
    Mapped { serial: u32, mapped: bool },
    /// Request of an administrator to a process: close your connections with this node. Answered by
    /// `Ended`.
    Lose(u32),
    /// Number of connections that ended.
    Ended(u32),
    /// Question to a process whether it responds. Answered by the same packet.
    Echo(u32),
    /// Request to the process that keeps a node lost: stop. Answered by the same packet.
    Restore,
}

impl Packet {
    pub(crate) fn encode(self) -> [u8; PACKET] {
        let (kind, serial, a, b) = match self {
            Packet::Hello => (1u32, 0, 0, 0),
            Packet::Welcome => (2, 0, 0, 0),
            Packet::Refuse => (3, 0, 0, 0),
            Packet::Bye => (4, 0, 0, 0),
            Packet::MappedQuery { serial, at, len } => (5, serial, at, len),
            Packet::Mapped { serial, mapped } => (6, serial, u64::from(mapped), 0),
            Packet::Lose(node) => (7, node, 0, 0),
            Packet::Ended(n) => (8, n, 0, 0),
            Packet::Echo(n) => (9, n, 0, 0),
            Packet::Restore => (10, 0, 0, 0),
        };
        let mut bytes = [0; PACKET];
        for (to, from) in bytes.iter_mut().zip(
            MAGIC
                .iter()
                .chain(&kind.to_le_bytes())
                .chain(&serial.to_le_bytes())
                .chain(&a.to_le_bytes())
                .chain(&b.to_le_bytes()),
        ) {
            *to = *from;
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Packet> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let (serial, rest) = rest.split_first_chunk::<4>()?;
        let (a, rest) = rest.split_first_chunk::<8>()?;
        let (b, rest) = rest.split_first_chunk::<8>()?;
        if *magic != MAGIC || !rest.is_empty() {
            return None;
        }
        let serial = u32::from_le_bytes(*serial);
        let (at, len) = (u64::from_le_bytes(*a), u64::from_le_bytes(*b));
        match u32::from_le_bytes(*kind) {
            1 => Some(Packet::Hello),
            2 => Some(Packet::Welcome),
            3 => Some(Packet::Refuse),
            4 => Some(Packet::Bye),
            5 => Some(Packet::MappedQuery { serial, at, len }),
            6 => Some(Packet::Mapped { serial, mapped: at != 0 }),
            7 => Some(Packet::Lose(serial)),
            8 => Some(Packet::Ended(serial)),
            9 => Some(Packet::Echo(serial)),
            10 => Some(Packet::Restore),
            _ => None,
        }
    }
}

/// Size in bytes of a packet in a hand-off.
pub(crate) const HANDOFF_BYTES: usize = 16;

/// Content of a packet in a hand-off.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum HandoffKind {
    /// Socket of the port.
    Port = 1,
    /// Socket of the port, segment, own arena, socket of the request.
    Request = 2,
    /// Descriptors of a `Request`, then the peer's table, its arena, its doorbell.
    Connection = 3,
}

/// Packet in a hand-off, sent with its descriptors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Left {
    pub(crate) number: u32,
    pub(crate) kind: HandoffKind,
    pub(crate) peer_pid: i32,
    /// Whether the kernel counts the owners of the own arena.
    pub(crate) counted: bool,
}

impl Left {
    pub(crate) fn new(kind: HandoffKind, peer_pid: i32, counted: bool) -> Left {
        Left { number: 0, kind, peer_pid, counted }
    }

    pub(crate) fn encode(self) -> [u8; HANDOFF_BYTES] {
        let words = [
            self.number.to_le_bytes(),
            (self.kind as u32).to_le_bytes(),
            self.peer_pid.to_le_bytes(),
            u32::from(self.counted).to_le_bytes(),
        ];
        let mut bytes = [0; HANDOFF_BYTES];
        for (to, word) in chunks_mut(&mut bytes).zip(words) {
            *to = word;
        }
        bytes
    }

    pub(crate) fn decode(bytes: [u8; HANDOFF_BYTES]) -> Option<Left> {
        let mut words = chunks(&bytes).copied();
        let [number, kind, peer_pid, counted] =
            [words.next()?, words.next()?, words.next()?, words.next()?];
        Some(Left {
            number: u32::from_le_bytes(number),
            kind: match u32::from_le_bytes(kind) {
                1 => HandoffKind::Port,
                2 => HandoffKind::Request,
                3 => HandoffKind::Connection,
                _ => return None,
            },
            peer_pid: i32::from_le_bytes(peer_pid),
            counted: u32::from_le_bytes(counted) != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_and_others_do_not() {
        for packet in [
            Packet::Hello,
            Packet::Welcome,
            Packet::Refuse,
            Packet::Bye,
            Packet::MappedQuery { serial: 7, at: 1 << 39, len: u64::MAX },
            Packet::Mapped { serial: u32::MAX, mapped: true },
            Packet::Lose(4),
            Packet::Ended(0),
            Packet::Echo(5),
            Packet::Restore,
        ] {
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        for kind in [HandoffKind::Port, HandoffKind::Request, HandoffKind::Connection] {
            let mut left = Left::new(kind, -2, kind == HandoffKind::Request);
            left.number = u32::MAX;
            assert_eq!(Left::decode(left.encode()), Some(left));
        }
        assert_eq!(Left::decode([0; HANDOFF_BYTES]), None);
        let mut bytes = Packet::Hello.encode();
        assert_eq!(Packet::decode(&bytes[..31]), None);
        bytes[8] = 99;
        assert_eq!(Packet::decode(&bytes), None);
        bytes[8] = 1;
        bytes[0] = b'x';
        assert_eq!(Packet::decode(&bytes), None);
    }
}
