// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The packets on a connection's socket, byte by byte.
//!
//! Not about the time of sending. A greeting is 48 bytes and carries descriptors; other packets are
//! one or two bytes. Both ends run on one host, so numbers are in its byte order. So is the magic,
//! which differs for another byte order.

use std::fmt;

use scif_ring::layout::LAYOUT;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Reason, Refusal};

/// Version of the packets. A listener refuses another one.
pub(crate) const VERSION: u16 = 3;
/// Maximum length of a packet in bytes.
pub(crate) const PACKET_MAX: usize = size_of::<Greeting>();

const MAGIC: u32 = u32::from_ne_bytes(*b"ScIf");

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
pub(crate) const WAKE: u8 = b'.';
const BYE: u8 = b'B';
const RESET: u8 = b'R';
const NO: u8 = b'N';
/// Packet type: request for the arena.
pub(crate) const ARENA_REQUEST: u8 = b'a';
/// Packet type: the arena, attached as a descriptor.
pub(crate) const ARENA: u8 = b'A';

/// Flag: the sender executes `membarrier` before it sleeps, and is reached by the `membarrier` of
/// others.
pub(crate) const MEMBARRIER: u8 = 1;
/// Flag: a key table is attached.
pub(crate) const KEYS: u8 = 2;

/// Description that each side sends of itself. HELLO is sent with descriptors [segment, doorbell,
/// keys?], WELCOME with [doorbell, keys?].
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Greeting {
    magic: u32,
    version: u16,
    kind: u8,
    pub(crate) flags: u8,
    /// Bit of the sender's doorbell for this connection.
    pub(crate) bell_bit: u32,
    /// Version of the shared memory. A listener refuses another one.
    layout: u32,
    /// A secret of the sender's process, and its address in that process.
    pub(crate) nonce: u64,
    pub(crate) nonce_addr: u64,
    /// Start time of the sender's process, in its own view; 0 if unknown.
    pub(crate) start: u64,
    /// Release of the sender, for messages only: major, minor, patch, and a zero.
    release: [u16; 4],
}

const _: () = assert!(size_of::<Greeting>() == 48);

impl Greeting {
    pub(crate) fn new(
        welcome: bool,
        flags: u8,
        bell_bit: u32,
        nonce: u64,
        nonce_addr: u64,
        start: u64,
    ) -> Self {
        let kind = if welcome { WELCOME } else { HELLO };
        Greeting {
            magic: MAGIC,
            version: VERSION,
            kind,
            flags,
            bell_bit,
            layout: LAYOUT,
            nonce,
            nonce_addr,
            start,
            release: RELEASE,
        }
    }

    /// Returns the refusal of a peer of another build. Its magic and versions lie at the same
    /// offsets in all builds, so that each side can name both.
    pub(crate) fn refusal() -> Self {
        Greeting { kind: NO, ..Greeting::new(false, 0, 0, 0, 0, 0) }
    }

    fn build(&self) -> Build {
        Build { release: self.release, version: self.version, layout: self.layout }
    }

    pub(crate) fn encode(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Returns the number of descriptors that must be attached.
    pub(crate) fn fds(&self) -> usize {
        1 + usize::from(self.kind == HELLO) + usize::from(self.flags & KEYS != 0)
    }
}

/// Versions of a build of the library. Builds are compatible if all but the release are equal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Build {
    release: [u16; 4],
    version: u16,
    layout: u32,
}

impl Build {
    /// Versions of this build.
    pub(crate) const OWN: Build = Build { release: RELEASE, version: VERSION, layout: LAYOUT };

    fn is_compatible(self) -> bool {
        (self.version, self.layout) == (VERSION, LAYOUT)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([major, minor, patch, _], version) = (self.release, self.version);
        let layout = self.layout;
        write!(f, "{major}.{minor}.{patch} (protocol {version}, layout {layout:#x})")
    }
}

/// Release of this build, as in a greeting.
const RELEASE: [u16; 4] = [
    number(env!("CARGO_PKG_VERSION_MAJOR")),
    number(env!("CARGO_PKG_VERSION_MINOR")),
    number(env!("CARGO_PKG_VERSION_PATCH")),
    0,
];

const _: () = assert!(RELEASE[0] < u16::MAX && RELEASE[1] < u16::MAX && RELEASE[2] < u16::MAX);

/// Returns the number that `digits` show, and `u16::MAX` if they show none.
const fn number(digits: &str) -> u16 {
    match u16::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => u16::MAX,
    }
}

/// A valid packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packet {
    Hello(Greeting),
    Welcome(Greeting),
    Wake,
    Bye,
    Reset,
    No(Reason),
    ArenaRequest,
    Arena,
}

/// Defect of an invalid packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BadPacket {
    /// Greeting or refusal of an incompatible build.
    Version(Build),
    Other,
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Packet, BadPacket> {
    match *bytes {
        [WAKE] => Ok(Packet::Wake),
        [BYE] => Ok(Packet::Bye),
        [RESET] => Ok(Packet::Reset),
        [ARENA_REQUEST] => Ok(Packet::ArenaRequest),
        [ARENA] => Ok(Packet::Arena),
        [NO, code] => reason(code).map(Packet::No).ok_or(BadPacket::Other),
        _ => {
            let greeting = Greeting::read_from_bytes(bytes).map_err(|_| BadPacket::Other)?;
            if greeting.magic != MAGIC {
                return Err(BadPacket::Other);
            }
            if !greeting.build().is_compatible() {
                return Err(BadPacket::Version(greeting.build()));
            }
            match greeting.kind {
                HELLO => Ok(Packet::Hello(greeting)),
                WELCOME => Ok(Packet::Welcome(greeting)),
                // The build is compatible, but shared memory that it sent was not.
                NO => Ok(Packet::No(Reason::Refused(Refusal::Version))),
                _ => Err(BadPacket::Other),
            }
        }
    }
}

pub(crate) fn bye() -> [u8; 1] {
    [BYE]
}

pub(crate) fn reset() -> [u8; 1] {
    [RESET]
}

/// Returns the packet of a refusal, except for another version: see [`Greeting::refusal`]. A reason
/// that is no refusal is sent as lack of resources.
pub(crate) fn no(reason: Reason) -> [u8; 2] {
    let code = match reason {
        Reason::Denied => 1,
        Reason::Refused(Refusal::Closed) => 3,
        Reason::Refused(Refusal::Resources | Refusal::Version | Refusal::Key)
        | Reason::Orderly
        | Reason::Died
        | Reason::Reset
        | Reason::Corrupt
        | Reason::Exhausted => 4,
    };
    [NO, code]
}

fn reason(code: u8) -> Option<Reason> {
    match code {
        1 => Some(Reason::Denied),
        3 => Some(Reason::Refused(Refusal::Closed)),
        4 => Some(Reason::Refused(Refusal::Resources)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_the_wire() {
        let hello = Greeting::new(false, KEYS, 17, 1, 2, 3);
        assert_eq!(decode(hello.encode()), Ok(Packet::Hello(hello)));
        assert_eq!(hello.fds(), 3);
        let welcome = Greeting::new(true, 0, 17, 1, 2, 3);
        assert_eq!(decode(welcome.encode()), Ok(Packet::Welcome(welcome)));
        assert_eq!(welcome.fds(), 1);
        assert_eq!(decode(&[WAKE]), Ok(Packet::Wake));
        assert_eq!(decode(&[ARENA_REQUEST]), Ok(Packet::ArenaRequest));
        assert_eq!(decode(&[ARENA]), Ok(Packet::Arena));
        assert_eq!(decode(&bye()), Ok(Packet::Bye));
        assert_eq!(decode(&reset()), Ok(Packet::Reset));
        for code in [1, 3, 4] {
            let why = reason(code).unwrap();
            assert_eq!(decode(&no(why)), Ok(Packet::No(why)));
        }
    }

    #[test]
    fn garbage_is_told_from_other_versions() {
        let good = Greeting::new(false, 0, 0, 0, 0, 0);
        for cut in 3..PACKET_MAX {
            assert_eq!(decode(&good.encode()[..cut]), Err(BadPacket::Other), "{cut}");
        }
        assert_eq!(decode(&[]), Err(BadPacket::Other));
        assert_eq!(decode(&[NO, 9]), Err(BadPacket::Other));
        assert_eq!(decode(&[7; PACKET_MAX]), Err(BadPacket::Other));
        let mut other = good;
        other.version = VERSION + 1;
        assert_eq!(decode(other.encode()), Err(BadPacket::Version(other.build())));
        other = good;
        other.layout = LAYOUT + 1;
        assert_eq!(decode(other.encode()), Err(BadPacket::Version(other.build())));
        other = Greeting::refusal();
        assert_eq!(
            decode(other.encode()),
            Ok(Packet::No(Reason::Refused(Refusal::Version))),
            "shared memory of a compatible build",
        );
        other.version = VERSION - 1;
        other.release = [0, 1, 9, 0];
        assert_eq!(decode(other.encode()), Err(BadPacket::Version(other.build())));
        assert_eq!(
            other.build().to_string(),
            format!("0.1.9 (protocol {}, layout {LAYOUT:#x})", VERSION - 1)
        );
        other = good;
        other.kind = b'x';
        assert_eq!(decode(other.encode()), Err(BadPacket::Other));
    }
}
