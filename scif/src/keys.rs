// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory keys that a domain exports to its peers, in memory that only the domain can write.
//!
//! Not about access rights, nor about waiting for peers that execute RMA on a removed slot: their
//! marks are in the connections (`Endpoint::slot_in_use`).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use once_cell::sync::OnceCell;
use rustix::io::Errno;
use scif_ring::{KeyEntry, KeyTable};

use crate::arena::Arena;
use crate::error::Result;
use crate::export::Shared;
use crate::sys::errno::lock;
use crate::sys::fork;

/// Objects that an endpoint exports to its peers besides its doorbell.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    /// Key table of its domain.
    pub keys: Option<Arc<SharedKeys>>,
}

/// A key table and its memory.
#[derive(Debug)]
pub struct SharedKeys {
    table: Mutex<KeyTable>,
    generation: u64,
    /// Arena that peers can map, once it was created.
    arena: OnceCell<Arc<Arena>>,
    /// Last field, so that it is dropped last.
    shared: Shared,
}

impl SharedKeys {
    /// Returns an empty table in zeroed memory of `KEYTABLE_BYTES`.
    pub(crate) fn new(shared: Shared) -> Result<Arc<SharedKeys>> {
        let table = shared.map.key_table()?;
        Ok(Arc::new(SharedKeys {
            table: Mutex::new(table),
            generation: fork::generation(),
            arena: OnceCell::new(),
            shared,
        }))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the table; `None` in a forked child, which shares the memory, but does not own the
    /// table.
    fn table(&self) -> Option<MutexGuard<'_, KeyTable>> {
        if self.generation != fork::generation() {
            return None;
        }
        Some(lock(&self.table))
    }

    /// Exports a key; returns its slot. `None` if the slots for this key are full; peers then send
    /// a message to the owner.
    pub fn insert(&self, entry: KeyEntry) -> Option<u32> {
        self.table()?.insert(entry)
    }

    /// Removes a key. Peers may still execute RMA on it until no mark names `slot`.
    pub fn remove(&self, slot: u32) {
        if let Some(mut table) = self.table() {
            table.remove(slot);
        }
    }

    /// Sets whether peers must notify the owner of each finished RMA.
    pub fn set_notify(&self, on: bool) {
        if let Some(mut table) = self.table() {
            table.set_notify(on);
        }
    }

    /// Requests hints of frequently used keys from peers, so that their pages can be moved into the
    /// arena. Returns false if these peers cannot map it.
    pub fn set_hints(&self) -> bool {
        if self.shared.fd.is_none() {
            return false;
        }
        if let Some(mut table) = self.table() {
            table.set_hints(true);
        }
        true
    }

    /// Returns the arena, created at the first call that succeeds.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.shared.fd.as_ref()?;
        let made = self.arena.get_or_try_init(|| Arena::new().map(Arc::new));
        made.inspect_err(|errno: &Errno| {
            log::debug!(
                "arena for migration could not be created: {errno}; memory regions do not migrate, \
                 and peers access them by system calls. Raise the limits of files and file sizes \
                 (ulimit -n, ulimit -f)"
            );
        })
        .ok()
    }

    /// Returns the descriptor of the arena for a peer, if the arena exists.
    pub(crate) fn arena_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.arena.get()?.fd())
    }
}
