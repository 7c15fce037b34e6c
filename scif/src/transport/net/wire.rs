// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The trait between the engine and a network.
//!
//! Not about the content of messages (`frame`).

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use scif_ring::Mem;

use super::key::JobKey;
use crate::error;
use crate::remote_reads::{ReadSupport, WireMemory};

/// Maximum size in bytes of a message. A longer one lets more records share a message, and occupies
/// more memory in each buffer of a receiver.
pub const MESSAGE_MAX: usize = LONG_BODY_MAX + 512;
/// Maximum length in bytes of the body of a record outside the rings. With a shorter one, long
/// messages take more system calls, or are read by the network, which takes one more round trip.
pub const LONG_BODY_MAX: usize = 64 * 1024;

/// Kind of a record in a ring whose body is outside the ring. The body has the true kind
/// (`OutsideBody::kind`).
pub const BODY_OUTSIDE: u8 = 0x0b;

/// Number of a peer of a wire, chosen by the wire.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct WirePeer(pub u64);

/// Event of a wire.
#[derive(Debug)]
pub enum WireEvent<'a> {
    /// A message of that length has arrived, in a buffer that may be taken, and is then given back
    /// later. Its sender is known from its content only.
    Message(&'a mut Vec<u8>, usize),
    /// Message to a peer that was lost, as later ones may be.
    Lost(WirePeer, &'a [u8]),
    /// The read with that number has ended.
    ReadEnded {
        /// Number given to `read`.
        number: u64,
        /// Whether the destination contains the bytes.
        is_done: bool,
    },
}

/// Answer of a network to a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadPosted {
    /// An event reports its end.
    Taken,
    /// The network has no space for it now.
    Later,
    /// The network cannot read this memory.
    Refused,
}

/// Time limits after which a peer counts as dead, in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerLimits {
    /// Time for which the network may refuse messages to a peer that has answered before. A shorter
    /// one ends connections during a short failure of the network.
    pub refused_ns: u64,
    /// Time for which pings may stay unanswered, while the owner waits for the peer; 0 for no
    /// limit. A limit also ends connections to processes that compute or are stopped for longer.
    pub silent_ns: u64,
}

/// End of a network: carries messages to ends with other names. Messages between two ends arrive
/// once and in order, or a loss is reported. Used by one thread at a time; no call blocks.
pub trait NetWire: Send {
    /// Returns the name by which peers reach this end.
    fn name(&self) -> SocketAddrV4;

    /// Returns the name of the network's provider, for lines of the log.
    fn provider(&self) -> &str;

    /// Returns the limits for peers, the same ones at each call.
    fn limits(&self) -> PeerLimits;

    /// Returns the key that peers must have, the same one at each call; `None` without.
    fn key(&self) -> Option<JobKey>;

    /// Returns the number of the peer with that name, for one use until `release`.
    ///
    /// # Errors
    /// The network cannot store the name.
    fn peer(&mut self, name: SocketAddrV4) -> error::Result<WirePeer>;

    /// Ends one use of a number that `peer` has returned. Messages in progress still arrive.
    fn release(&mut self, peer: WirePeer);

    /// Returns an empty buffer for a message, with capacity for [`MESSAGE_MAX`] bytes.
    fn buffer(&mut self) -> Vec<u8>;

    /// Takes back a buffer that an event gave away.
    fn give_back(&mut self, buffer: Vec<u8>) {
        drop(buffer);
    }

    /// Takes a message.
    ///
    /// # Errors
    /// The message, if the network cannot take it now.
    fn send(&mut self, to: WirePeer, message: Vec<u8>) -> Result<(), Vec<u8>>;

    /// Whether the network has space for a message. If so, a refusal of one concerns its peer.
    fn has_room(&self) -> bool;

    /// Returns the ability to read memory of peers, the same one at each call.
    fn read_support(&self) -> ReadSupport;

    /// Lets peers read a range of memory, until `revoke`. `None` if the network cannot do that.
    fn expose(&mut self, range: &Mem) -> Option<WireMemory>;

    /// Ends the exposure of memory: no read of it begins later.
    fn revoke(&mut self, key: u64);

    /// Begins to read memory of a peer into `to`, which the network writes until the read ends.
    fn read(&mut self, from: WirePeer, memory: WireMemory, to: &Mem, number: u64) -> ReadPosted;

    /// Closes the end for good: no read of it continues, and no message is sent.
    fn stop(&mut self);

    /// Makes progress and passes each event to `on`.
    fn poll(&mut self, on: &mut dyn FnMut(WireEvent<'_>));

    /// Whether the network has sent all messages that it took.
    fn is_quiet(&self) -> bool;

    /// Returns a descriptor that is readable when `poll` would find something; `None` if the
    /// network has none.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the descriptor will report every event from now on, so that the caller may sleep.
    fn may_sleep(&mut self) -> bool;
}

debug_by_name!(NetWire);
