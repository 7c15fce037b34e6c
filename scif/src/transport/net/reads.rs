// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reads of peers' memory that are in progress, and own memory that peers may read.
//!
//! Not about the announcements of such memory, which are records. A read belongs to no connection:
//! it may end after the connection over which its memory was announced.

use std::collections::HashMap;

use crate::remote_reads::ReadState;

/// Time in nanoseconds after the last exposure or message for which peers are expected to read
/// exposed memory. A longer one slows traffic inside the host, while a peer computes. After it, the
/// network is looked at as rarely as without exposed memory.
const EXPOSED_NS: u64 = 2_000_000;

/// Reads and exposures of the end of a network.
#[derive(Debug, Default)]
pub(super) struct NetReads {
    /// Reads that the owner still asks for.
    reads: HashMap<u64, ReadState>,
    last: u64,
    /// Number of reads that the network has not ended.
    open: usize,
    /// Connections by the keys of memory that their peers may read.
    exposed: HashMap<u64, u64>,
    /// Time of the last exposure.
    exposed_ns: u64,
}

impl NetReads {
    /// Returns the number for the next read.
    pub(super) fn next_number(&self) -> u64 {
        self.last.wrapping_add(1)
    }

    /// Notes that the read with the next number has begun.
    pub(super) fn note_begun(&mut self) -> u64 {
        self.last = self.next_number();
        self.reads.insert(self.last, ReadState::Reading);
        self.open += 1;
        self.last
    }

    pub(super) fn note_ended(&mut self, number: u64, is_done: bool) {
        if let Some(state) = self.reads.get_mut(&number) {
            if *state == ReadState::Reading {
                *state = if is_done { ReadState::Done } else { ReadState::Failed };
                self.open -= 1;
            }
        }
    }

    /// Notes that the network ends all reads.
    pub(super) fn note_stopped(&mut self) {
        let open = self.reads.values_mut().filter(|state| **state == ReadState::Reading);
        open.for_each(|state| *state = ReadState::Failed);
        self.open = 0;
    }

    /// Returns the state of a read, and forgets one that has ended.
    pub(super) fn state(&mut self, number: u64) -> ReadState {
        match self.reads.get(&number) {
            Some(ReadState::Reading) => ReadState::Reading,
            _ => self.reads.remove(&number).unwrap_or(ReadState::Failed),
        }
    }

    /// Whether the network has not ended that read.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.reads.get(&number) == Some(&ReadState::Reading)
    }

    pub(super) fn note_exposed(&mut self, key: u64, token: u64, now: u64) {
        self.exposed.insert(key, token);
        self.exposed_ns = now;
    }

    /// Removes exposed memory; returns whether it was exposed.
    pub(super) fn revoke(&mut self, key: u64) -> bool {
        self.exposed.remove(&key).is_some()
    }

    /// Removes the memory exposed to the peer of a connection, and returns its keys.
    pub(super) fn revoke_all(&mut self, token: u64) -> Vec<u64> {
        let of_peer = self.exposed.iter().filter(|(_, to)| **to == token);
        let keys: Vec<u64> = of_peer.map(|(key, _)| *key).collect();
        self.exposed.retain(|_, to| *to != token);
        keys
    }

    /// Whether an event is due: the end of a read, or a record that a peer has read our memory. A
    /// peer that does not begin soon may compute for long. `heard_ns`: time of the last message.
    pub(super) fn is_expecting(&self, now: u64, heard_ns: u64) -> bool {
        let since = now.saturating_sub(self.exposed_ns.max(heard_ns));
        self.open > 0 || !self.exposed.is_empty() && since < EXPOSED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_ends_once_and_is_forgotten_when_asked() {
        let mut reads = NetReads::default();
        let (first, second) = (reads.note_begun(), reads.note_begun());
        assert!(first != second && reads.is_open(first) && reads.is_expecting(u64::MAX, 0));
        reads.note_ended(first, true);
        reads.note_ended(first, false);
        assert_eq!(reads.state(second), ReadState::Reading);
        assert_eq!(reads.state(first), ReadState::Done);
        assert_eq!(reads.state(first), ReadState::Failed, "forgotten");
        reads.note_stopped();
        assert!(!reads.is_open(second) && !reads.is_expecting(0, 0));
        assert_eq!(reads.state(second), ReadState::Failed);
    }

    #[test]
    fn memory_is_revoked_by_key_and_by_connection() {
        let mut reads = NetReads::default();
        for (key, token) in [(1, 10), (2, 10), (3, 30)] {
            reads.note_exposed(key, token, 0);
        }
        assert!(reads.revoke(1) && !reads.revoke(1));
        assert_eq!(reads.revoke_all(10), [2]);
        assert!(reads.is_expecting(EXPOSED_NS - 1, 0) && !reads.is_expecting(EXPOSED_NS, 0));
        assert!(reads.is_expecting(EXPOSED_NS, 1), "the peer has just sent a message");
        assert!(reads.revoke(3) && !reads.is_expecting(0, 0));
    }
}
