// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of unexpected messages: limits for a peer and for the process, and the order of eviction.
//!
//! An unexpected message is copied out of the ring, and the peer controls how many there are. Each
//! is charged to its sender and to the process until it is received or dropped. Beyond the limit
//! (`FI_SCIF_UNEXPECTED_MAX`), or without memory, messages are dropped: first those of peers
//! without a connection, then those of the peer that holds the most. The connection of that peer
//! is reset.
//!
//! Not here: tag matching (`tag_match`) and backpressure on correct senders (`progress`).

use std::sync::Arc;

use scif_ring::AtomicCounter;

/// Bytes charged for a message besides its payload: its description and the allocator overhead.
pub(crate) const ENTRY_BYTES: u64 = 256;
/// Bytes granted to every peer. A peer with fewer is never reset because of the process limit.
pub(crate) const SHARE_MIN: u64 = 1 << 20;
/// Bytes of messages of dead peers that an endpoint keeps. Beyond, the messages of the peer that
/// died first are all dropped.
pub(crate) const DEAD_MAX: u64 = 1 << 20;
/// Number of departed peers at which peers without messages are removed from the list.
pub(crate) const PRUNE_AT: usize = 64;

/// Bytes charged in this process.
static PROCESS: AtomicCounter = AtomicCounter::new(0);

/// Bytes charged for one message; released when the message is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    pub(crate) peer: Arc<AtomicCounter>,
    pub(crate) process: &'static AtomicCounter,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.peer.sub(self.bytes);
        self.process.sub(self.bytes);
    }
}

/// Messages of a peer without a connection.
#[derive(Debug)]
pub(crate) struct Departed {
    pub(crate) load: Arc<AtomicCounter>,
    pub(crate) died: bool,
}

/// Limits and accounting of one endpoint.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Limit in bytes for the process. One peer may hold half of it.
    pub(crate) max: u64,
    pub(crate) process: &'static AtomicCounter,
    /// Peers without a connection, in the order of their departure.
    pub(crate) departed: Vec<Departed>,
    pub(crate) prune_at: usize,
    /// Whether some peer is [`super::peer::EXHAUSTED`].
    pub(crate) exhausted: bool,
}

impl Limits {
    pub(crate) fn new(max: usize) -> Limits {
        Limits {
            max: (max as u64).max(2 * SHARE_MIN),
            process: &PROCESS,
            departed: Vec::new(),
            prune_at: PRUNE_AT,
            exhausted: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_message_is_no_longer_charged() {
        static TOTAL: AtomicCounter = AtomicCounter::new(0);
        let peer = Arc::new(AtomicCounter::new(0));
        peer.add(40);
        TOTAL.add(100);
        drop(Charge { bytes: 40, peer: Arc::clone(&peer), process: &TOTAL });
        assert_eq!((peer.get(), TOTAL.get()), (0, 60));
    }

    #[test]
    fn the_limit_leaves_the_share_of_two_peers() {
        assert_eq!(Limits::new(0).max, 2 * SHARE_MIN);
        assert_eq!(Limits::new(64 << 20).max, 64 << 20);
    }
}
