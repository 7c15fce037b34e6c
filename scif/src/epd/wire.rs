// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The bytes on the socket of a connection between two endpoints of `scif.h`, and which descriptors ride along.
//!
//! Not about when they are sent. A packet is 16 bytes: magic with version, kind, an argument. A provider's endpoint
//! that connects here, or is connected to, finds another magic and is turned away.

const MAGIC: [u8; 8] = *b"SCIFepd1";

/// Bytes of a packet.
pub(crate) const PACKET: usize = 16;

/// Descriptors of a `Hello`: the segment, the opener's table of windows, its arena, its doorbell.
pub(crate) const HELLO_FDS: usize = 4;
/// Descriptors of a `Welcome`: the acceptor's table of windows, its arena, its doorbell.
pub(crate) const WELCOME_FDS: usize = 3;

/// What one side tells the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packet {
    /// The opener's first word.
    Hello,
    /// The acceptor's answer: connected.
    Welcome,
    /// The acceptor's answer: not connected.
    Refuse,
    /// Everything was said.
    Bye,
    /// Do you still map the window of this serial number? Answered by `Mapped`.
    AskMapped(u32),
    /// The serial number, shifted left by one, plus 1 if it is mapped.
    Mapped(u32),
}

impl Packet {
    pub(crate) fn encode(self) -> [u8; PACKET] {
        let (kind, argument) = match self {
            Packet::Hello => (1u32, 0),
            Packet::Welcome => (2, 0),
            Packet::Refuse => (3, 0),
            Packet::Bye => (4, 0),
            Packet::AskMapped(serial) => (5, serial),
            Packet::Mapped(answer) => (6, answer),
        };
        let mut bytes = [0; PACKET];
        for (to, from) in bytes.iter_mut().zip(
            MAGIC
                .iter()
                .chain(&kind.to_le_bytes())
                .chain(&argument.to_le_bytes()),
        ) {
            *to = *from;
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Packet> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let (argument, rest) = rest.split_first_chunk::<4>()?;
        if *magic != MAGIC || !rest.is_empty() {
            return None;
        }
        let argument = u32::from_le_bytes(*argument);
        match u32::from_le_bytes(*kind) {
            1 => Some(Packet::Hello),
            2 => Some(Packet::Welcome),
            3 => Some(Packet::Refuse),
            4 => Some(Packet::Bye),
            5 => Some(Packet::AskMapped(argument)),
            6 => Some(Packet::Mapped(argument)),
            _ => None,
        }
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
            Packet::AskMapped(7),
            Packet::Mapped(u32::MAX),
        ] {
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        let mut bytes = Packet::Hello.encode();
        assert_eq!(Packet::decode(&bytes[..15]), None);
        bytes[8] = 9;
        assert_eq!(Packet::decode(&bytes), None);
        bytes[8] = 1;
        bytes[0] = b'x';
        assert_eq!(Packet::decode(&bytes), None);
    }
}
