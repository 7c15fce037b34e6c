// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Addresses of a vector that several processes share by its name.
//!
//! The addresses are in a shared table (`scif::SharedTable`), in the order in which any of the
//! processes inserted them. An index is never reused: an index that a process kept names the
//! original address or none. Other processes may write arbitrary values to the table, so each
//! address read from it is validated like one from the application.
//!
//! ```text
//! words of 64 bits
//!     0  CAPACITY   the fi_addr_t of each address, FI_ADDR_NOTAVAIL after the last (up to the end
//!                   of its page)
//!  HEAD  1          MAGIC
//!     +1 1          number of addresses, written after the addresses it counts
//!  HEAD + 16        for each address: insertions minus removals; its sixteen bytes; unused
//! ```
//!
//! Mirrors fi_av(3), "name" and "map_addr".

use std::cell::RefCell;
use std::collections::HashMap;

use libfabric_sys as fi;
use scif::{Node, PortId, SharedTable};
use scif_ring::chunks;

use super::port_range::PortRange;
use crate::base::addr::{self, ADDR_LEN, LocalHost};
use crate::base::errno::{self, Errno};

/// Number of addresses that a shared vector accepts over its lifetime. Later insertions fail with
/// `FI_ENOMEM`.
pub(crate) const CAPACITY: usize = 1 << 16;
/// Index of the word with `MAGIC`.
const HEAD: usize = CAPACITY;
/// Index of the word with the number of addresses.
const COUNT: usize = HEAD + 1;
/// Index of the first word of the entries.
const ENTRIES: usize = HEAD + 16;
/// Number of words in an entry.
const ENTRY_WORDS: usize = 4;
/// Number of words in the table.
const WORDS: usize = ENTRIES + ENTRY_WORDS * CAPACITY;
/// Value that identifies the table and the version of its layout.
const MAGIC: u64 = u64::from_ne_bytes(*b"ScIfAv01");
/// Number of words in a page. `map_addr` is filled with `FI_ADDR_NOTAVAIL` one page at a time.
const PAGE_WORDS: usize = 512;

/// Local index from ports to addresses, for the part of the table read so far.
#[derive(Debug, Default)]
struct Index {
    by_id: HashMap<PortId, u32>,
    read: u32,
    widest: u16,
}

/// Handle of one process on a shared vector.
#[derive(Debug)]
pub(crate) struct SharedAv {
    board: SharedTable,
    reader: LocalHost,
    bits: u32,
    index: RefCell<Index>,
}

/// One address in the shared table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedEntry {
    pub(crate) id: PortId,
    pub(crate) bytes: [u8; ADDR_LEN],
    pub(crate) range: PortRange,
}

impl SharedAv {
    /// Opens the vector `name`: read-only, or for changes, in which case it is created if missing.
    ///
    /// # Errors
    /// `FI_ENOENT` when there is none to read. `FI_EINVAL` for a name longer than 64 bytes, or one
    /// used by an object of another kind. Errors of the system.
    pub(crate) fn open(
        node: &Node,
        name: &str,
        read_only: bool,
        bits: u32,
    ) -> Result<SharedAv, Errno> {
        let opened = if read_only {
            SharedTable::open_to_read(node, name, WORDS)
        } else {
            let mut fill = vec![(HEAD, MAGIC)];
            fill.extend((0..PAGE_WORDS).map(|at| (at, fi::FI_ADDR_NOTAVAIL)));
            SharedTable::open(node, name, WORDS, &fill)
        };
        let board = opened.map_err(|e| errno::errno(&e))?;
        if board.load(HEAD) != Some(MAGIC) {
            return Err(fi::FI_EINVAL);
        }
        Ok(SharedAv { board, reader: LocalHost::of(node), bits, index: RefCell::default() })
    }

    /// Returns the local address of the array with the `fi_addr_t` of each address.
    pub(crate) fn map_addr(&self) -> usize {
        self.board.address()
    }

    pub(crate) fn count(&self) -> usize {
        let count = self.board.load(COUNT).and_then(|n| usize::try_from(n).ok());
        count.unwrap_or(0).min(CAPACITY)
    }

    fn word(&self, at: usize, word: usize) -> Option<u64> {
        if at >= self.count() {
            return None;
        }
        self.board.load(ENTRIES + ENTRY_WORDS * at + word)
    }

    fn refs(&self, at: usize) -> u64 {
        self.word(at, 0).unwrap_or(0)
    }

    /// Returns the address at index `at`, if it is valid and has not been removed.
    pub(crate) fn get(&self, at: usize) -> Option<SharedEntry> {
        if self.refs(at) == 0 {
            return None;
        }
        let (low, high) = (self.word(at, 1)?, self.word(at, 2)?);
        let mut bytes = [0; ADDR_LEN];
        let words = [low.to_ne_bytes(), high.to_ne_bytes()];
        for (to, from) in bytes.iter_mut().zip(words.as_flattened()) {
            *to = *from;
        }
        Some(SharedEntry {
            id: addr::decode(&bytes, self.reader).ok()?,
            bytes,
            range: PortRange::of(&bytes, self.bits),
        })
    }

    /// Returns the index of the address whose first port is `id`.
    fn exact(&self, id: PortId) -> Option<u32> {
        let mut index = self.index.borrow_mut();
        let count = u32::try_from(self.count()).unwrap_or(0);
        for at in index.read..count {
            if let Some(posted) = self.get(at as usize) {
                index.by_id.insert(posted.id, at);
                index.widest = index.widest.max(posted.range.ports());
            }
        }
        index.read = index.read.max(count);
        let at = *index.by_id.get(&id)?;
        // Another process may have removed or overwritten it, so the entry is checked again.
        self.get(at as usize).filter(|posted| posted.id == id).map(|_| at)
    }

    /// Returns the index of the endpoint to which port `id` belongs.
    pub(crate) fn index_of(&self, id: PortId) -> Option<u32> {
        self.exact(id).or_else(|| {
            let widest = self.index.borrow().widest;
            (1..widest).find_map(|behind| {
                let port = id.port.checked_sub(behind)?;
                let at = self.exact(PortId { port, ..id })?;
                self.get(at as usize)?.range.holds(behind).then_some(at)
            })
        })
    }

    /// Adds an address, or raises its insertion count.
    ///
    /// # Errors
    /// `FI_EACCES` for a read-only vector, `FI_ENOMEM` when it is full, and errors of the system.
    pub(crate) fn insert(&self, id: PortId, bytes: [u8; ADDR_LEN]) -> Result<u32, Errno> {
        let _locked = self.lock()?;
        if let Some(at) = self.exact(id) {
            let place = ENTRIES + ENTRY_WORDS * at as usize;
            self.board.store(place, self.refs(at as usize).saturating_add(1));
            return Ok(at);
        }
        let at = self.count();
        if at >= CAPACITY {
            return Err(fi::FI_ENOMEM);
        }
        if at % PAGE_WORDS == 0 {
            for place in at..at + PAGE_WORDS {
                self.board.store(place, fi::FI_ADDR_NOTAVAIL);
            }
        }
        let place = ENTRIES + ENTRY_WORDS * at;
        for (word, value) in chunks(&bytes).enumerate() {
            self.board.store(place + 1 + word, u64::from_ne_bytes(*value));
        }
        self.board.store(place, 1);
        self.board.store(at, at as u64);
        self.board.store(COUNT, at as u64 + 1);
        u32::try_from(at).map_err(|_| fi::FI_ENOMEM)
    }

    /// Undoes one insertion.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address, `FI_EACCES` for a read-only vector, and errors
    /// of the system.
    pub(crate) fn remove(&self, at: usize) -> Result<(), Errno> {
        let _locked = self.lock()?;
        let refs = self.refs(at).checked_sub(1).ok_or(fi::FI_EINVAL)?;
        self.board.store(ENTRIES + ENTRY_WORDS * at, refs);
        if refs == 0 {
            self.board.store(at, fi::FI_ADDR_NOTAVAIL);
        }
        Ok(())
    }

    fn lock(&self) -> Result<scif::SharedTableLock<'_>, Errno> {
        if !self.board.is_writable() {
            return Err(fi::FI_EACCES);
        }
        self.board.lock().map_err(|e| errno::errno(&e))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::base::addr::Addr;

    fn bytes(port: u16) -> [u8; ADDR_LEN] {
        Addr::this_host(Ipv4Addr::LOCALHOST, port).to_bytes()
    }

    #[test]
    fn insertions_are_visible_to_other_processes() {
        let node = crate::state::fabric::open_node().unwrap();
        let name = format!("shared-av-{}", std::process::id());
        let id = |port| PortId::new(node.id(), port);
        assert_eq!(SharedAv::open(&node, &name, true, 0).err(), Some(fi::FI_ENOENT));
        let one = SharedAv::open(&node, &name, false, 0).unwrap();
        let other = SharedAv::open(&node, &name, false, 0).unwrap();
        let reader = SharedAv::open(&node, &name, true, 0).unwrap();
        assert_eq!(one.insert(id(10), bytes(10)), Ok(0));
        assert_eq!(other.insert(id(11), bytes(11)), Ok(1));
        assert_eq!(other.insert(id(10), bytes(10)), Ok(0));
        assert_eq!(reader.index_of(id(11)), Some(1));
        assert_eq!(reader.get(0).map(|p| p.id), Some(id(10)));
        assert_eq!(reader.insert(id(12), bytes(12)), Err(fi::FI_EACCES));
        assert_eq!(reader.remove(0), Err(fi::FI_EACCES));
        assert_eq!(one.remove(0), Ok(()));
        assert_eq!(reader.index_of(id(10)), Some(0));
        assert_eq!(other.remove(0), Ok(()));
        assert_eq!(one.remove(0), Err(fi::FI_EINVAL));
        assert_eq!(reader.index_of(id(10)), None);
        assert_eq!(one.insert(id(10), bytes(10)), Ok(2), "an index is used once");
        assert_eq!(reader.index_of(id(10)), Some(2));
        let stored: Vec<_> = (0..4).map(|at| reader.board.load(at)).collect();
        let none = Some(fi::FI_ADDR_NOTAVAIL);
        assert_eq!(stored, [none, Some(1), Some(2), none]);
    }

    #[test]
    fn garbage_in_the_shared_table_names_no_peer() {
        let node = crate::state::fabric::open_node().unwrap();
        let name = format!("garbage-av-{}", std::process::id());
        let av = SharedAv::open(&node, &name, false, 0).unwrap();
        av.board.store(COUNT, u64::MAX);
        assert_eq!(av.count(), CAPACITY);
        assert!(av.get(0).is_none());
        av.board.store(ENTRIES, 1);
        av.board.store(ENTRIES + 1, 0x5555);
        assert!(av.get(0).is_none());
        assert!(av.get(usize::MAX / 64).is_none());
        let first = PortId::new(node.id(), 10);
        assert_eq!(av.index_of(first), None);
        assert_eq!(av.insert(first, bytes(10)), Err(fi::FI_ENOMEM));
        av.board.store(HEAD, 0);
        assert_eq!(SharedAv::open(&node, &name, false, 0).err(), Some(fi::FI_EINVAL));
    }
}
