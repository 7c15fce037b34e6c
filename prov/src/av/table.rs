// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What an address vector holds: peers by dense index, and back.
//!
//! Not about the bytes of an address (`addr`) nor about C. `FI_AV_MAP` and `FI_AV_TABLE` are the same: an address goes
//! to the lowest free index, a removed index is used again. Identity is the SCIF address; inserting it again gives the
//! index it has and counts, so the entry goes when it was removed as often. The bytes first inserted are kept for lookup.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use scif::PortId;

use crate::addr::ADDR_LEN;

#[derive(Clone, Copy, Debug)]
struct AvEntry {
    id: PortId,
    bytes: [u8; ADDR_LEN],
    /// Times inserted and not removed; 0 marks a free index.
    refs: u32,
}

/// The addresses of one vector.
#[derive(Debug, Default)]
pub(crate) struct AvState {
    entries: Vec<AvEntry>,
    free: BinaryHeap<Reverse<u32>>,
    by_id: HashMap<PortId, u32>,
    /// Changes with every insertion and removal, so that what was derived from the vector can be kept until then.
    pub(crate) version: u64,
    /// Endpoints bound to it.
    pub(crate) endpoints: u32,
}

impl AvState {
    pub(crate) fn with_capacity(count: usize) -> AvState {
        // The count is the application's guess: worth a reservation, not worth trusting.
        let count = count.min(4096);
        AvState {
            entries: Vec::with_capacity(count),
            by_id: HashMap::with_capacity(count),
            ..AvState::default()
        }
    }

    fn entry(&self, fi_addr: u64) -> Option<&AvEntry> {
        self.entries
            .get(usize::try_from(fi_addr).ok()?)
            .filter(|e| e.refs != 0)
    }

    /// The peer an `fi_addr_t` names.
    #[inline]
    pub(crate) fn port_id(&self, fi_addr: u64) -> Option<PortId> {
        self.entry(fi_addr).map(|e| e.id)
    }

    /// The `fi_addr_t` of a peer, when it was inserted.
    #[inline]
    pub(crate) fn find(&self, id: PortId) -> Option<u64> {
        self.by_id.get(&id).map(|index| u64::from(*index))
    }

    /// The address as it was inserted.
    pub(crate) fn bytes(&self, fi_addr: u64) -> Option<[u8; ADDR_LEN]> {
        self.entry(fi_addr).map(|e| e.bytes)
    }

    /// Adds a peer; `None` when the vector cannot take more.
    pub(crate) fn insert(&mut self, id: PortId, bytes: [u8; ADDR_LEN]) -> Option<u64> {
        if let Some(entry) = self
            .by_id
            .get(&id)
            .and_then(|index| self.entries.get_mut(*index as usize))
        {
            entry.refs = entry.refs.checked_add(1)?;
            return self.find(id);
        }
        let new = AvEntry { id, bytes, refs: 1 };
        let index = if let Some(Reverse(index)) = self.free.pop() {
            *self.entries.get_mut(index as usize)? = new;
            index
        } else {
            let index = u32::try_from(self.entries.len())
                .ok()
                .filter(|i| *i != u32::MAX)?;
            self.entries.push(new);
            index
        };
        self.by_id.insert(id, index);
        self.version += 1;
        Some(u64::from(index))
    }

    /// Removes one insertion; false when `fi_addr` names nothing.
    pub(crate) fn remove(&mut self, fi_addr: u64) -> bool {
        let Ok(index) = u32::try_from(fi_addr) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(index as usize).filter(|e| e.refs != 0) else {
            return false;
        };
        entry.refs -= 1;
        if entry.refs == 0 {
            self.by_id.remove(&entry.id);
            self.free.push(Reverse(index));
            self.version += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(port: u16) -> PortId {
        PortId { node: 0, port }
    }

    fn bytes(b: u8) -> [u8; ADDR_LEN] {
        [b; ADDR_LEN]
    }

    #[test]
    fn indexes_are_dense_and_the_lowest_is_reused() {
        let mut av = AvState::with_capacity(usize::MAX);
        for p in 0..5u8 {
            assert_eq!(av.insert(id(u16::from(p)), bytes(p)), Some(u64::from(p)));
        }
        assert!(av.remove(3));
        assert!(av.remove(1));
        assert!(av.port_id(1).is_none());
        assert!(av.find(id(1)).is_none());
        assert_eq!(av.insert(id(50), bytes(50)), Some(1));
        assert_eq!(av.insert(id(51), bytes(51)), Some(3));
        assert_eq!(av.insert(id(52), bytes(52)), Some(5));
        assert_eq!(av.port_id(3), Some(id(51)));
        assert_eq!(av.find(id(52)), Some(5));
    }

    #[test]
    fn duplicates_are_counted() {
        let mut av = AvState::default();
        assert_eq!(av.insert(id(7), bytes(1)), Some(0));
        let version = av.version;
        assert_eq!(av.insert(id(7), bytes(2)), Some(0));
        assert_eq!(av.version, version);
        assert_eq!(av.bytes(0), Some(bytes(1)));
        assert!(av.remove(0));
        assert_eq!(av.port_id(0), Some(id(7)));
        assert!(av.remove(0));
        assert!(!av.remove(0));
        assert!(av.version > version);
        assert_eq!(av.insert(id(7), bytes(2)), Some(0));
        assert_eq!(av.bytes(0), Some(bytes(2)));
    }

    #[test]
    fn unknown_addresses_are_refused() {
        let mut av = AvState::default();
        assert!(av.port_id(0).is_none());
        assert!(av.bytes(u64::MAX).is_none());
        assert!(!av.remove(u64::MAX));
        assert!(!av.remove(0));
        av.insert(id(1), bytes(0));
        assert!(av.port_id(1 << 32).is_none());
    }
}
