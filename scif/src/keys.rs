// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory keys that a domain exports to its peers, in memory that only the domain can write.
//!
//! Not about access rights, nor about waiting for peers that execute RMA on a removed slot: their
//! marks are in the connections (`Endpoint::slot_in_use`).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

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

/// Bits of [`KeyEntry::access`] that let peers read and write the memory of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyRights {
    /// Bit that lets peers read.
    pub read: u64,
    /// Bit that lets peers write.
    pub write: u64,
}

/// Slot of a key, and the generation of the slot while it holds that key. No other key of the
/// table ever has the same one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct KeyPlace {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// Key that was removed from a table, while peers may still access its memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemovedKey(KeyPlace);

impl RemovedKey {
    /// Returns the slot that marks of peers may still name.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.0.slot
    }
}

/// Keys whose windows are removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RevokedKeys {
    /// A key that was removed from the table.
    One(KeyPlace),
    /// Every key: peers ask for them again.
    All,
}

/// Holder of windows on the memory of keys. All holders hide their windows before one of them
/// waits, so that the limits of these waits begin together.
pub(crate) trait WindowRevoker: Send + Sync {
    /// Hides the windows on the memory of keys from accesses that have not begun.
    fn hide(&self, keys: RevokedKeys);

    /// Removes the hidden windows of these keys. Returns after the accesses in progress.
    fn remove(&self, keys: RevokedKeys);
}

debug_by_name!(WindowRevoker);

/// A key table and its memory.
#[derive(Debug)]
pub struct SharedKeys {
    table: Mutex<KeyTable>,
    generation: u64,
    /// Rights of windows; without them no key gets one.
    rights: OnceCell<KeyRights>,
    revokers: Mutex<Vec<Weak<dyn WindowRevoker>>>,
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
            rights: OnceCell::new(),
            revokers: Mutex::default(),
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

    /// Removes a key. Peers may still execute RMA on it until no mark names `slot`, and until
    /// [`SharedKeys::remove_windows`] has returned.
    pub fn remove(&self, slot: u32) -> RemovedKey {
        // A forked child has no windows: no key has this generation.
        let generation = self.table().map_or(0, |mut table| table.remove(slot));
        RemovedKey(KeyPlace { slot, generation })
    }

    /// Removes the windows on the memory of a removed key. Returns after the accesses in progress,
    /// so the caller holds no lock that others need.
    pub fn remove_windows(&self, key: RemovedKey) {
        self.revoke(RevokedKeys::One(key.0));
    }

    /// Sets whether peers must notify the owner of each finished RMA. Peers with windows know it
    /// after [`SharedKeys::remove_all_windows`].
    pub fn set_notify(&self, on: bool) {
        if let Some(mut table) = self.table() {
            table.set_notify(on);
        }
    }

    /// Removes all windows, so that peers ask for their keys again. Returns after the accesses in
    /// progress.
    pub fn remove_all_windows(&self) {
        self.revoke(RevokedKeys::All);
    }

    fn revoke(&self, keys: RevokedKeys) {
        let revokers = self.revokers();
        revokers.iter().for_each(|revoker| revoker.hide(keys));
        revokers.iter().for_each(|revoker| revoker.remove(keys));
    }

    /// Permits windows on the memory of keys, with the meaning of their access rights. Only the
    /// first call has an effect.
    pub fn permit_windows(&self, rights: KeyRights) {
        let _ = self.rights.set(rights);
    }

    pub(crate) fn rights(&self) -> Option<KeyRights> {
        self.rights.get().copied()
    }

    /// Adds a revoker of windows, which is told about each later removal of a key.
    pub(crate) fn add_revoker(&self, revoker: Weak<dyn WindowRevoker>) {
        let mut revokers = lock(&self.revokers);
        revokers.retain(|revoker| revoker.strong_count() > 0);
        revokers.push(revoker);
    }

    /// Returns the revokers of windows. They are called without the lock, since they may wait.
    fn revokers(&self) -> Vec<Arc<dyn WindowRevoker>> {
        lock(&self.revokers).iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the place and the content of a key, and whether its owner requests notifications.
    pub(crate) fn find(&self, key: u64) -> (Option<(KeyPlace, KeyEntry)>, bool) {
        let Ok(reader) = self.shared.map.key_reader() else { return (None, false) };
        let found = reader.find(key);
        let found = found.map(|(slot, generation, entry)| (KeyPlace { slot, generation }, entry));
        (found, reader.notify())
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
