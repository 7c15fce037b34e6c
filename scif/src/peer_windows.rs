// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows of a peer's memory keys, as an initiator of RMA sees them.
//!
//! Not about the exchange by which the peer describes them (`transport::scif`), nor about access
//! rights, which the caller checks.

use scif_ring::{KeyEntry, Mem};

use crate::failure::Failure;
use crate::memory::RemoteMem;
use crate::window_calls::{RmaMode, RmaWay};

/// Memory key of a peer whose pages lie in a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyWindow {
    /// Description of the key, as in a key table.
    pub entry: KeyEntry,
    /// Address of the first byte of the window in its owner.
    pub begin: u64,
    /// Length of the window in bytes.
    pub len: u64,
    /// Offset of the window in the registered address space of the peer.
    pub offset: i64,
}

impl KeyWindow {
    /// Returns the offset of a range of the owner's memory, if it lies in the window.
    pub(crate) fn offset_of(&self, remote: &RemoteMem) -> Option<i64> {
        let within = remote.addr.checked_sub(self.begin)?;
        let is_inside = within.checked_add(remote.len)? <= self.len;
        is_inside.then_some(self.offset.checked_add_unsigned(within)?)
    }
}

/// Result of a search for a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyLookup {
    /// Window that the peer described.
    Known(KeyWindow),
    /// The question to the peer is on its way.
    Queried,
    /// No window: the peer has to execute the operation.
    Absent,
}

/// Failure of an RMA on a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowError {
    /// The window no longer exists. A new search asks the peer again.
    Stale,
    /// The RMA failed; the peer has to execute the operation.
    Failed(Failure),
}

/// Numbers of calls, for a line of counters.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowCounts {
    /// Windows of own keys that were registered.
    pub registered: u64,
    /// Windows of own keys that were unregistered.
    pub unregistered: u64,
    /// Fences behind RMA by DMA that were ordered.
    pub fences: u64,
    /// Sends on the streams of established connections: doorbells, last frames, and records where
    /// the rings do not lie in windows.
    pub stream_sends: u64,
    /// Bytes of these sends.
    pub stream_bytes: u64,
}

/// Windows of the keys of one peer. No function waits for the peer, except an RMA by the CPU.
pub trait PeerWindows: Send {
    /// Looks up a key, and asks the peer for an unknown one.
    fn find(&mut self, key: u64) -> KeyLookup;

    /// Returns the executor of an operation of `len` bytes that need not follow others.
    fn mode(&self, way: RmaWay, len: usize) -> RmaMode;

    /// Starts RMA between local memory and an equally long range behind a key.
    ///
    /// # Errors
    /// A [`WindowError`]; part of the bytes may have been copied.
    fn start(
        &mut self,
        way: RmaWay,
        local: &[Mem],
        window: &KeyWindow,
        remote: &RemoteMem,
        mode: RmaMode,
    ) -> Result<(), WindowError>;

    /// Returns the number of RMAs by DMA that were started so far.
    fn started(&self) -> u64;

    /// Returns the number of RMAs by DMA that have ended, as the last fence stored it.
    fn ended(&self) -> u64;

    /// Orders a fence behind the RMAs by DMA, unless one follows the last of them already.
    ///
    /// # Errors
    /// The fence failed: the RMAs in progress that `ended` does not count will not be reported, and
    /// no window is left.
    fn fence(&mut self) -> Result<(), WindowError>;

    /// Whether the owner requests a notification of each finished RMA.
    fn notify(&self) -> bool;
}

debug_by_name!(PeerWindows);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_within_the_window() {
        let window = KeyWindow {
            entry: KeyEntry { base: 0x1080, len: 0x100, ..KeyEntry::default() },
            begin: 0x1000,
            len: 0x1000,
            offset: 0x7000,
        };
        let at = |addr, len| window.offset_of(&RemoteMem { addr, len });
        assert_eq!(at(0x1080, 0x100), Some(0x7080));
        assert_eq!(at(0x1fff, 1), Some(0x7fff));
        assert_eq!([at(0x1fff, 2), at(0xfff, 1), at(u64::MAX, 2)], [None; 3]);
    }
}
