// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reads of memory that a peer exposes: by the engine of a network, or by RMA on a window.
//!
//! Not about the operations (`transport::net`, `transport::scif`), nor about messages that announce
//! memory.

use scif_ring::Mem;

/// Memory that one end of a connection exposes to its peer, as the peer names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WireMemory {
    /// Address in its owner, or offset in the registration, as the network demands. Offset of a
    /// window.
    pub addr: u64,
    /// Key of its registration; 0 for a window that stays registered.
    pub key: u64,
}

/// Result of the begin of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadBegun {
    /// In progress, under this number.
    Reading(u64),
    /// The network has no space for it now.
    Later,
    /// The memory cannot be read.
    Refused,
}

/// State of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadState {
    /// The destination may be written to.
    Reading,
    /// The destination contains the bytes.
    Done,
    /// The content of the destination is undefined.
    Failed,
}

/// Ability of a network to read memory of peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadSupport {
    /// No reads.
    None,
    /// Reads of one peer's memory are executed in any order.
    Unordered,
    /// Reads of one peer's memory are executed in the order in which they began.
    Ordered,
}

/// Access to memory of the peer of a connection. A read by a network goes on after the end of its
/// connection.
pub trait RemoteReads {
    /// Whether reads need the progress of the owner of the memory. Others advance only in `state`.
    fn need_owner(&self) -> bool {
        true
    }

    /// Returns the ability to read memory of the peer.
    fn support(&self) -> ReadSupport {
        ReadSupport::Unordered
    }

    /// Prepares for reads from a peer that has announced memory without exposing it.
    fn prepare(&mut self) {}

    /// Lets the peer read a range of our memory, until `Endpoint::revoke` of its key or the end
    /// of the connection. `None` if the peer cannot read it now.
    fn expose(&mut self, range: &Mem) -> Option<WireMemory>;

    /// Begins to read memory that the peer exposes into `to`. Its owner must not reuse `to` before
    /// the read has ended.
    fn read(&mut self, from: WireMemory, to: &Mem) -> ReadBegun;

    /// Returns the state of a read. The number of one that has ended is forgotten.
    fn state(&mut self, number: u64) -> ReadState;

    /// Waits until a read has ended, but only until `end_ns` of the monotonic clock. Then it
    /// closes the end of the network, which ends all reads and all connections over it.
    fn finish(&mut self, number: u64, end_ns: u64);
}

debug_by_name!(RemoteReads);
