// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registered memory of a domain, with access rights by key.
//!
//! A region has one address space, `start..start + len`, that covers its parts in order. `start` is
//! the address of the first part if the domain uses virtual addresses, else 0. Regions of one part
//! are also published in the key table, in which peers look them up without a message. The others
//! are accessed through the ring, where [`MrTable::check`] decides. Regions without remote access
//! have no key.
//!
//! Rules: fi_mr(3).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::slab::Slab;
use scif::{Movable, RemovedKey, SharedKeys, Unmoved};
use scif_ring::copy::Mem;
use scif_ring::keytable::KeyEntry;

use crate::base::errno::Errno;

/// Access rights that a peer can have.
const REMOTE: u64 = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;

/// Memory of a region: nearly always one part.
#[derive(Debug)]
enum RegionParts {
    One(Mem),
    Several(Box<[Mem]>),
}

impl RegionParts {
    fn as_slice(&self) -> &[Mem] {
        match self {
            RegionParts::One(piece) => std::slice::from_ref(piece),
            RegionParts::Several(pieces) => pieces,
        }
    }
}

#[derive(Debug)]
struct MrEntry {
    /// Key, or `FI_KEY_NOTAVAIL` without remote access.
    key: u64,
    pieces: RegionParts,
    start: u64,
    len: u64,
    access: u64,
    /// Slot in the key table, while the region is published.
    slot: Option<u32>,
    /// Counters of reads and of modifications.
    cntr_read: Option<u32>,
    cntr_write: Option<u32>,
    /// Region of which this is a part, and number of parts of this region.
    base: Option<u32>,
    parts: u32,
    /// Migration state, of regions whose pages may move.
    movable: Option<Box<MigrationCandidate>>,
}

impl MrEntry {
    /// Returns the counters with the flags that bind them.
    fn counters(&mut self) -> [(u64, &mut Option<u32>); 2] {
        [(fi::FI_REMOTE_READ, &mut self.cntr_read), (fi::FI_REMOTE_WRITE, &mut self.cntr_write)]
    }
}

/// Region whose pages may move, with the number of accesses by peers.
#[derive(Debug)]
struct MigrationCandidate {
    pages: Movable,
    uses: u64,
    /// Number of accesses after which the pages move. It grows with the number of pages and after
    /// each failed attempt.
    due: u64,
}

/// Number of accesses by peers after which a region of few pages moves. A lower one moves pages
/// that are rarely used.
const ACCESS_HINT: u64 = 64;
/// Remainder of a removed region that must wait for its peers.
#[derive(Debug)]
pub(crate) struct Left {
    /// Key through which peers may still access the memory.
    pub(crate) key: Option<RemovedKey>,
    /// Pages of the region, dropped after the last access so that they can move back.
    pages: Option<Box<MigrationCandidate>>,
}

impl Left {
    /// Releases the pages, after the last access of a peer.
    pub(crate) fn settle(self) {
        drop(self.pages);
    }
}

/// Region to register.
#[derive(Debug)]
pub(crate) struct Region<'a> {
    pub(crate) iov: &'a [Mem],
    pub(crate) access: u64,
    pub(crate) requested_key: u64,
    /// Index of the region that contains this one.
    pub(crate) base: Option<u32>,
}

/// Hasher for keys chosen by an application or counted by this table: one multiplication spreads
/// them well enough.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// All regions of one domain.
#[derive(Debug)]
pub(crate) struct MrTable {
    entries: Slab<MrEntry>,
    by_key: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    shared: Option<Arc<SharedKeys>>,
    virt_addr: bool,
    prov_key: bool,
    next_key: u64,
    /// Whether pages may move.
    migrates: bool,
    /// Regions that are to move.
    hot: Vec<u32>,
}

impl MrTable {
    /// Creates a table. `virt_addr`: peers use target addresses, not offsets; `prov_key`: this
    /// table chooses the keys.
    pub(crate) fn new(virt_addr: bool, prov_key: bool, shared: Option<Arc<SharedKeys>>) -> MrTable {
        let migrates =
            crate::base::env::env().migrate && shared.as_ref().is_some_and(|keys| keys.set_hints());
        MrTable {
            entries: Slab::new(),
            by_key: HashMap::default(),
            shared,
            virt_addr,
            prov_key,
            next_key: 1,
            migrates,
            hot: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Makes peers notify this process of their direct accesses, since a counter counts them. The
    /// caller removes all windows afterwards.
    pub(crate) fn request_access_events(&self) {
        if let Some(shared) = &self.shared {
            shared.set_notify(true);
        }
    }

    fn choose_key(&mut self, requested: u64) -> Result<u64, Errno> {
        if !self.prov_key {
            return if self.by_key.contains_key(&requested) {
                Err(fi::FI_ENOKEY)
            } else {
                Ok(requested)
            };
        }
        loop {
            let key = self.next_key;
            self.next_key = self.next_key.wrapping_add(1);
            if key != fi::FI_KEY_NOTAVAIL && !self.by_key.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Adds a region. Returns its index.
    ///
    /// # Errors
    /// `FI_EINVAL`: no parts, a part that wraps around the address space, or a part outside its
    /// base. `FI_ENOKEY`: the key is in use. `FI_ENOMEM`: too many regions.
    pub(crate) fn register(&mut self, region: &Region<'_>) -> Result<u32, Errno> {
        let first = region.iov.first().ok_or(fi::FI_EINVAL)?;
        let mut len = 0u64;
        for piece in region.iov {
            piece.addr().checked_add(piece.len()).ok_or(fi::FI_EINVAL)?;
            len = len.checked_add(piece.len() as u64).ok_or(fi::FI_EINVAL)?;
        }
        let start = if self.virt_addr { first.addr() as u64 } else { 0 };
        start.checked_add(len).ok_or(fi::FI_EINVAL)?;
        if let Some(base) = region.base {
            self.holds(base, region.iov)?;
        }
        let remote = region.access & REMOTE != 0;
        let key = if remote { self.choose_key(region.requested_key)? } else { fi::FI_KEY_NOTAVAIL };
        let pieces = match region.iov {
            [one] => RegionParts::One(*one),
            many => RegionParts::Several(many.into()),
        };
        let movable = match &pieces {
            RegionParts::One(piece)
                if self.migrates && region.access & fi::FI_REMOTE_WRITE != 0 =>
            {
                let pages = Movable::new(piece.addr(), piece.len());
                let due = ACCESS_HINT + pages.pages() as u64;
                Some(Box::new(MigrationCandidate { pages, uses: 0, due }))
            }
            _ => None,
        };
        let entry = MrEntry {
            key,
            pieces,
            start,
            len,
            access: region.access,
            slot: None,
            cntr_read: None,
            cntr_write: None,
            base: region.base,
            parts: 0,
            movable,
        };
        let index = self.entries.insert(entry).ok_or(fi::FI_ENOMEM)?;
        if remote {
            self.by_key.insert(key, index);
            self.publish(index);
        }
        if let Some(base) = region.base.and_then(|b| self.entries.get_mut(b)) {
            base.parts += 1;
        }
        Ok(index)
    }

    /// Checks that every part of `iov` lies in a part of region `base`.
    fn holds(&self, base: u32, iov: &[Mem]) -> Result<(), Errno> {
        let base = self.entries.get(base).ok_or(fi::FI_EINVAL)?.pieces.as_slice();
        let inside = |part: &Mem| {
            base.iter().any(|piece| {
                part.addr()
                    .checked_sub(piece.addr())
                    .and_then(|off| off.checked_add(part.len()))
                    .is_some_and(|end| end <= piece.len())
            })
        };
        if iov.iter().all(inside) { Ok(()) } else { Err(fi::FI_EINVAL) }
    }

    /// Publishes a region of one part in the key table. If the table is full, peers access the
    /// region through the ring.
    pub(crate) fn publish(&mut self, index: u32) {
        let Some(shared) = &self.shared else { return };
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let RegionParts::One(piece) = &entry.pieces else {
            return;
        };
        let (window, window_len) = entry.movable.as_ref().map_or((0, 0), |hot| hot.pages.window());
        entry.slot = shared.insert(KeyEntry {
            key: entry.key,
            base: piece.addr() as u64,
            start: entry.start,
            len: entry.len,
            access: entry.access & REMOTE,
            window,
            window_len,
        });
    }

    /// Revokes a region from direct access: from now on peers use the ring. Returns the key
    /// through which peers may still access it.
    pub(crate) fn revoke(&mut self, index: u32) -> Option<RemovedKey> {
        let slot = self.entries.get_mut(index)?.slot.take()?;
        Some(self.shared.as_ref()?.remove(slot))
    }

    /// Whether regions move that peers access frequently.
    #[inline]
    pub(crate) fn migrates(&self) -> bool {
        self.migrates
    }

    /// Records an operation on a region that this process executed for a peer.
    #[inline]
    pub(crate) fn used(&mut self, key: u64) {
        if self.migrates {
            self.warm(key, 1);
        }
    }

    /// Records the number of direct accesses that a peer reported; peers report it at each
    /// doubling.
    pub(crate) fn note_remote_use(&mut self, key: u64, uses: u64) {
        if self.migrates {
            self.warm(key, (uses / 2).max(ACCESS_HINT));
        }
    }

    #[cold]
    fn warm(&mut self, key: u64, uses: u64) {
        let Some(&index) = self.by_key.get(&key) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let (Some(hot), Some(_)) = (&mut entry.movable, entry.slot) else {
            return;
        };
        hot.uses = hot.uses.saturating_add(uses);
        if hot.uses >= hot.due
            && hot.pages.window().0 == 0
            && hot.pages.pages() > 0
            && !self.hot.contains(&index)
        {
            self.hot.push(index);
        }
    }

    /// Whether a region is to move.
    #[inline]
    pub(crate) fn has_hot(&self) -> bool {
        !self.hot.is_empty()
    }

    /// Returns the next region that is to move and can.
    pub(crate) fn next_hot(&mut self) -> Option<u32> {
        let index = self.hot.pop()?;
        let may = self.movable(index)?.pages.may_move();
        self.moved(index, may).then_some(index)
    }

    /// Moves the pages of a region that was revoked and that no peer accesses.
    pub(crate) fn move_in(&mut self, index: u32) {
        let Some(keys) = self.shared.clone() else {
            return;
        };
        if let Some(hot) = self.movable(index) {
            let moved = hot.pages.move_in(&keys);
            self.moved(index, moved);
        }
    }

    fn movable(&mut self, index: u32) -> Option<&mut MigrationCandidate> {
        self.entries.get_mut(index)?.movable.as_deref_mut()
    }

    /// Schedules a failed move for later, with a doubled threshold unless other users of the pages
    /// caused the failure.
    fn moved(&mut self, index: u32, moved: Result<(), Unmoved>) -> bool {
        if let (Err(why), Some(hot)) = (moved, self.movable(index)) {
            log::debug!(
                target: "mr",
                "{} frequently accessed pages could not be migrated: {why:?}",
                hot.pages.pages()
            );
            hot.uses = 0;
            if why != Unmoved::Busy {
                hot.due = hot.due.saturating_mul(2);
            }
        }
        moved.is_ok()
    }

    /// Removes a region. Peers may still access its memory through the returned key. After that,
    /// the result must be settled.
    ///
    /// # Errors
    /// `FI_EINVAL`: no such region. `FI_EBUSY`: other regions are parts of it.
    pub(crate) fn remove(&mut self, index: u32) -> Result<Left, Errno> {
        if self.entries.get(index).ok_or(fi::FI_EINVAL)?.parts != 0 {
            return Err(fi::FI_EBUSY);
        }
        let key = self.revoke(index);
        self.hot.retain(|hot| *hot != index);
        let mut pages = None;
        if let Some(entry) = self.entries.remove(index) {
            pages = entry.movable;
            if entry.access & REMOTE != 0 {
                self.by_key.remove(&entry.key);
            }
            if let Some(base) = entry.base.and_then(|b| self.entries.get_mut(b)) {
                base.parts = base.parts.saturating_sub(1);
            }
        }
        Ok(Left { key, pages })
    }

    /// Counts accesses to a region in counter `cntr`: reads with `FI_REMOTE_READ` among `flags`,
    /// modifications with `FI_REMOTE_WRITE`. Direct accesses would not be counted, so the region is
    /// revoked. Returns the key through which peers may still access it.
    ///
    /// # Errors
    /// `FI_EINVAL`: no such region, or a counter counts these accesses already.
    pub(crate) fn bind_cntr(
        &mut self,
        index: u32,
        cntr: u32,
        flags: u64,
    ) -> Result<Option<RemovedKey>, Errno> {
        self.can_bind_cntr(index, flags)?;
        let entry = self.entries.get_mut(index).ok_or(fi::FI_EINVAL)?;
        for (_, place) in entry.counters().into_iter().filter(|(flag, _)| flags & flag != 0) {
            *place = Some(cntr);
        }
        Ok(self.revoke(index))
    }

    /// Checks that a region can have a counter for these accesses.
    pub(crate) fn can_bind_cntr(&mut self, index: u32, flags: u64) -> Result<(), Errno> {
        let entry = self.entries.get_mut(index).ok_or(fi::FI_EINVAL)?;
        let mut counters = entry.counters().into_iter();
        if counters.any(|(flag, place)| flags & flag != 0 && place.is_some()) {
            return Err(fi::FI_EINVAL);
        }
        Ok(())
    }

    /// Whether a region counts in counter `cntr`.
    pub(crate) fn uses_cntr(&self, cntr: u32) -> bool {
        self.entries.iter().any(|(_, e)| [e.cntr_read, e.cntr_write].contains(&Some(cntr)))
    }

    /// Returns the key of a region, `FI_KEY_NOTAVAIL` when it has none.
    pub(crate) fn key(&self, index: u32) -> u64 {
        self.entries.get(index).map_or(fi::FI_KEY_NOTAVAIL, |e| e.key)
    }

    /// Returns the first address of a region as used by peers.
    pub(crate) fn start(&self, index: u32) -> u64 {
        self.entries.get(index).map_or(0, |e| e.start)
    }

    fn by_key(&self, key: u64) -> Option<&MrEntry> {
        self.entries.get(*self.by_key.get(&key)?)
    }

    /// Returns the counter of reads, or else of modifications, of the region with this key.
    pub(crate) fn cntr_of(&self, key: u64, read: bool) -> Option<u32> {
        let entry = self.by_key(key)?;
        if read { entry.cntr_read } else { entry.cntr_write }
    }

    /// Returns the memory at `addr..addr + len` of region `key`, if it allows `access` and has one
    /// part.
    pub(crate) fn piece(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> Result<Option<Mem>, Errno> {
        let (entry, skip, len) = self.range(key, addr, len, access)?;
        let [piece] = entry.pieces.as_slice() else {
            return Ok(None);
        };
        Ok(piece.sub(skip, len))
    }

    /// Returns the address space of region `key`, if it allows `access` and has one part: its start
    /// and its memory.
    pub(crate) fn whole(&self, key: u64, access: u64) -> Option<(u64, Mem)> {
        let entry = self.by_key(key).filter(|entry| access & !entry.access == 0)?;
        let RegionParts::One(piece) = &entry.pieces else { return None };
        Some((entry.start, *piece))
    }

    /// Returns the region `key`, with offset and length of `addr..addr + len` in it.
    fn range(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> Result<(&MrEntry, usize, usize), Errno> {
        let entry = self.by_key(key).ok_or(fi::FI_EINVAL)?;
        if access & !entry.access != 0 {
            return Err(fi::FI_EACCES);
        }
        let offset = addr.checked_sub(entry.start).ok_or(fi::FI_EACCES)?;
        let end = offset.checked_add(len).ok_or(fi::FI_EACCES)?;
        if end > entry.len {
            return Err(fi::FI_EACCES);
        }
        // Within `entry.len`, which is a sum of usize lengths.
        let skip = usize::try_from(offset).map_err(|_| fi::FI_EACCES)?;
        Ok((entry, skip, usize::try_from(len).map_err(|_| fi::FI_EACCES)?))
    }

    /// Writes the memory at `addr..addr + len` of region `key` to `out` (cleared first), if it
    /// allows `access`.
    ///
    /// # Errors
    /// `FI_EINVAL`: no such key. `FI_EACCES`: out of bounds, or not allowed.
    pub(crate) fn check(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
        out: &mut Vec<Mem>,
    ) -> Result<(), Errno> {
        out.clear();
        let (entry, mut skip, mut left) = self.range(key, addr, len, access)?;
        for piece in entry.pieces.as_slice() {
            if left == 0 {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let n = left.min(piece.len() - skip);
            out.push(piece.sub(skip, n).ok_or(fi::FI_EACCES)?);
            skip = 0;
            left -= n;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "describes memory that no test touches")]
mod tests {
    use super::*;

    const RW: u64 = REMOTE;

    fn mem(addr: usize, len: usize) -> Mem {
        // SAFETY: no test reads or writes through it.
        unsafe { Mem::new(std::ptr::without_provenance_mut(addr), len) }
    }

    fn region(iov: &[Mem], access: u64, key: u64) -> Region<'_> {
        Region { iov, access, requested_key: key, base: None }
    }

    fn table(virt_addr: bool, prov_key: bool) -> MrTable {
        MrTable::new(virt_addr, prov_key, None)
    }

    fn look(
        t: &MrTable,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> Result<Vec<(usize, usize)>, Errno> {
        let mut out = vec![mem(1, 1)];
        t.check(key, addr, len, access, &mut out)?;
        Ok(out.iter().map(|m| (m.addr(), m.len())).collect())
    }

    #[test]
    fn offsets_or_addresses() {
        let iov = [mem(0x1000, 0x100)];
        let mut offset = table(false, false);
        offset.register(&region(&iov, RW, 5)).unwrap();
        assert_eq!(look(&offset, 5, 0x10, 0x20, RW), Ok(vec![(0x1010, 0x20)]));
        assert_eq!(look(&offset, 5, 0x1000, 1, RW), Err(fi::FI_EACCES));
        let mut virt = table(true, false);
        virt.register(&region(&iov, RW, 5)).unwrap();
        assert_eq!(look(&virt, 5, 0x1010, 0x20, RW), Ok(vec![(0x1010, 0x20)]));
        assert_eq!(look(&virt, 5, 0xfff, 1, RW), Err(fi::FI_EACCES));
        assert_eq!(virt.start(0), 0x1000);
    }

    #[test]
    fn bounds_and_rights() {
        let mut t = table(false, false);
        t.register(&region(&[mem(0, 64)], fi::FI_REMOTE_READ | fi::FI_SEND, 0)).unwrap();
        assert_eq!(look(&t, 0, 0, 64, fi::FI_REMOTE_READ), Ok(vec![(0, 64)]));
        assert_eq!(look(&t, 0, 64, 0, fi::FI_REMOTE_READ), Ok(vec![]));
        assert_eq!(look(&t, 0, 1, 64, fi::FI_REMOTE_READ), Err(fi::FI_EACCES));
        assert_eq!(look(&t, 0, u64::MAX, 2, fi::FI_REMOTE_READ), Err(fi::FI_EACCES));
        assert_eq!(look(&t, 0, 0, 1, fi::FI_REMOTE_WRITE), Err(fi::FI_EACCES));
        assert_eq!(look(&t, 1, 0, 1, fi::FI_REMOTE_READ), Err(fi::FI_EINVAL));
    }

    #[test]
    fn a_list_is_one_space() {
        let mut t = table(false, true);
        let iov = [mem(1000, 10), mem(5000, 0), mem(2000, 10), mem(3000, 10)];
        let index = t.register(&region(&iov, RW, 77)).unwrap();
        let key = t.key(index);
        assert_eq!(look(&t, key, 5, 20, RW), Ok(vec![(1005, 5), (2000, 10), (3000, 5)]));
        assert_eq!(look(&t, key, 10, 10, RW), Ok(vec![(2000, 10)]));
        assert_eq!(look(&t, key, 29, 1, RW), Ok(vec![(3009, 1)]));
        assert_eq!(look(&t, key, 29, 2, RW), Err(fi::FI_EACCES));
    }

    #[test]
    fn keys() {
        let iov = [mem(64, 64)];
        let mut user = table(false, false);
        let first = user.register(&region(&iov, RW, 9)).unwrap();
        assert_eq!(user.register(&region(&iov, RW, 9)), Err(fi::FI_ENOKEY));
        let local = user.register(&region(&iov, fi::FI_SEND | fi::FI_READ, 9)).unwrap();
        assert_eq!(user.key(local), fi::FI_KEY_NOTAVAIL);
        assert_eq!(user.remove(first).map(|left| left.key), Ok(None));
        assert_eq!(user.remove(first).map(|left| left.key), Err(fi::FI_EINVAL));
        assert_eq!(look(&user, 9, 0, 1, RW), Err(fi::FI_EINVAL));
        user.register(&region(&iov, RW, 9)).unwrap();
        assert_eq!(user.remove(local).map(|left| left.key), Ok(None));
        assert!(look(&user, 9, 0, 1, RW).is_ok());

        let mut prov = table(false, true);
        prov.next_key = fi::FI_KEY_NOTAVAIL - 1;
        let keys: Vec<u64> = (0..4)
            .map(|_| {
                let index = prov.register(&region(&iov, RW, 9)).unwrap();
                prov.key(index)
            })
            .collect();
        assert_eq!(keys, [u64::MAX - 1, 0, 1, 2]);
    }

    #[test]
    fn impossible_regions_are_refused() {
        let mut t = table(true, true);
        assert_eq!(t.register(&region(&[], RW, 0)), Err(fi::FI_EINVAL));
        assert_eq!(t.register(&region(&[mem(usize::MAX - 1, 4)], RW, 0)), Err(fi::FI_EINVAL));
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn part_lies_in_its_base_and_keeps_it_alive() {
        let mut t = table(false, true);
        let base = t.register(&region(&[mem(4096, 4096)], fi::FI_SEND, 0)).unwrap();
        let inside = [mem(5000, 100)];
        let outside = [mem(8000, 4096)];
        let part = |iov| Region { base: Some(base), ..region(iov, RW, 0) };
        assert_eq!(t.register(&part(&outside)), Err(fi::FI_EINVAL));
        let index = t.register(&part(&inside)).unwrap();
        assert_eq!(t.remove(base).map(|left| left.key), Err(fi::FI_EBUSY));
        assert_eq!(look(&t, t.key(index), 0, 100, RW), Ok(vec![(5000, 100)]));
        t.remove(index).unwrap();
        t.remove(base).unwrap();
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn one_counter_of_a_region_for_each_way() {
        let mut t = table(false, false);
        let index = t.register(&region(&[mem(0, 8)], RW, 3)).unwrap();
        let counters = |t: &MrTable| (t.cntr_of(3, true), t.cntr_of(3, false));
        assert_eq!(counters(&t), (None, None));
        assert_eq!(t.bind_cntr(index, 6, fi::FI_REMOTE_READ), Ok(None));
        assert_eq!(counters(&t), (Some(6), None));
        assert_eq!(t.bind_cntr(index, 7, RW), Err(fi::FI_EINVAL));
        assert_eq!(counters(&t), (Some(6), None));
        assert!(t.uses_cntr(6) && !t.uses_cntr(7));
        assert_eq!(t.bind_cntr(index, 7, fi::FI_REMOTE_WRITE), Ok(None));
        assert_eq!(counters(&t), (Some(6), Some(7)));
        assert!(t.uses_cntr(6) && t.uses_cntr(7));
    }
}
