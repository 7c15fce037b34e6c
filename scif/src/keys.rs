// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The memory keys a domain shows its peers, in memory that only it can write.
//!
//! Not about what a key allows, nor about waiting for peers that are in RMA on a removed slot: their marks are in
//! the connections (`Endpoint::slot_in_use`).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use scif_ring::{KEYTABLE_BYTES, KeyEntry, KeyTable};

use crate::error::Result;
use crate::migrate::Arena;
use crate::node::Node;
use crate::sys::fork;
use crate::transport::{Shared, Writers};

/// What an endpoint shows its peers besides its bell.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    /// The keys of its domain.
    pub keys: Option<Arc<SharedKeys>>,
}

/// A key table and the memory it lies in.
#[derive(Debug)]
pub struct SharedKeys {
    table: Mutex<KeyTable>,
    generation: u64,
    /// Where memory is that peers can map, once there is any.
    arena: OnceLock<Option<Arc<Arena>>>,
    /// Last, so that it goes last.
    shared: Shared,
}

impl SharedKeys {
    /// An empty table for endpoints of `node`.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(node: &Node) -> Result<Arc<SharedKeys>> {
        let shared = node
            .transport()
            .share("scif:keys", KEYTABLE_BYTES, Writers::Owner)?;
        let table = shared.map.key_table()?;
        Ok(Arc::new(SharedKeys {
            table: Mutex::new(table),
            generation: fork::generation(),
            arena: OnceLock::new(),
            shared,
        }))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The table, unless this is a forked child: it shares the memory, but the table is the parent's.
    fn table(&self) -> Option<MutexGuard<'_, KeyTable>> {
        if self.generation != fork::generation() {
            return None;
        }
        Some(self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shows a key. `None`: no room near its place; peers then ask the owner.
    pub fn insert(&self, entry: KeyEntry) -> Option<u32> {
        self.table()?.insert(entry)
    }

    /// Takes a key out. Peers may still be in RMA on it until nobody marks `slot`.
    pub fn remove(&self, slot: u32) {
        if let Some(mut table) = self.table() {
            table.remove(slot);
        }
    }

    /// Whether peers shall tell the owner of each RMA they finish.
    pub fn set_notify(&self, on: bool) {
        if let Some(mut table) = self.table() {
            table.set_notify(on);
        }
    }

    /// Asks peers to tell the owner which keys they use hard, so that their pages move to where peers can map them. False:
    /// these peers cannot.
    pub fn set_hints(&self) -> bool {
        if self.shared.fd.is_none() {
            return false;
        }
        if let Some(mut table) = self.table() {
            table.set_hints(true);
        }
        true
    }

    /// What peers can map, made now if there is none.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.shared.fd.as_ref()?;
        let made = self.arena.get_or_init(|| {
            Arena::new()
                .inspect_err(|errno| log::debug!("no memory that peers could map: {errno}"))
                .ok()
                .map(Arc::new)
        });
        made.as_ref()
    }

    /// The same, if there is any, for a peer.
    pub(crate) fn arena_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.arena.get()?.as_ref()?.fd())
    }
}
