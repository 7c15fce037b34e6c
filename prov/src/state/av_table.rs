// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Contents of an address vector: peers by dense index, and indexes by peer.
//!
//! The bytes of an address are in `addr`. `FI_AV_MAP` and `FI_AV_TABLE` behave alike: an address
//! gets the lowest free index, and a removed index is reused. The identity of an entry is its SCIF
//! address. A repeated insertion returns the existing index and counts, so that the entry is freed
//! after as many removals. Lookup returns the bytes inserted first.
//!
//! In a vector with bits for receive contexts the upper bits of an `fi_addr_t` select a context.
//! The port of a context follows the first port of its endpoint. A lookup by port returns the
//! endpoint to which the port belongs.
//!
//! The addresses of a vector with a name are shared with other processes (`shared`).
//!
//! The source of a message is reported as the index, or as the user identifier set for it
//! (`FI_AV_USER_ID`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use libfabric_sys as fi;
use scif::PortId;

use super::av_shared::SharedAv;
use super::port_range::PortRange;
use crate::base::addr::ADDR_LEN;
use crate::base::errno::Errno;

/// Maximum number of bits for receive contexts in a vector. fi_av_open refuses more.
pub(crate) const RX_CTX_BITS_MAX: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct AvEntry {
    id: PortId,
    bytes: [u8; ADDR_LEN],
    /// Number of insertions minus removals; 0 marks a free index.
    refs: u32,
    /// Version of the vector after the last insertion of the address.
    inserted: u64,
    range: PortRange,
    /// User identifier reported in place of the index.
    user: Option<u64>,
}

/// Addresses of one vector.
#[derive(Debug, Default)]
pub(crate) struct AvState {
    entries: Vec<AvEntry>,
    free: BinaryHeap<Reverse<u32>>,
    by_id: HashMap<PortId, u32>,
    /// Number that changes with every insertion and removal, which invalidates data derived from
    /// the vector.
    pub(crate) version: u64,
    /// Number of endpoints bound to the vector.
    pub(crate) endpoints: u32,
    /// Number of upper bits of an `fi_addr_t` that select a receive context.
    bits: u32,
    /// Upper bound on the number of ports that any one address covers.
    widest: u16,
    /// Whether a source without a user identifier is reported as `FI_ADDR_NOTAVAIL`.
    users: bool,
    /// Shared addresses, used in place of `entries` in a vector with a name.
    shared: Option<SharedAv>,
    /// User identifiers reported in place of the indexes of shared addresses.
    user_ids: HashMap<u64, u64>,
    /// Number of AV sets made from the vector.
    pub(crate) sets: u32,
}

impl AvState {
    pub(crate) fn new(count: usize, bits: u32, users: bool) -> AvState {
        // The count is a guess of the application, so it only sizes a bounded reservation.
        let count = count.min(4096);
        AvState {
            entries: Vec::with_capacity(count),
            by_id: HashMap::with_capacity(count),
            bits,
            users,
            ..AvState::default()
        }
    }

    /// Returns an empty state backed by the addresses of `shared`.
    pub(crate) fn of_shared(shared: SharedAv, bits: u32, users: bool) -> AvState {
        AvState { shared: Some(shared), ..AvState::new(0, bits, users) }
    }

    fn entry(&self, fi_addr: u64) -> Option<AvEntry> {
        let at = usize::try_from(fi_addr).ok()?;
        let Some(shared) = &self.shared else {
            return self.entries.get(at).filter(|e| e.refs != 0).copied();
        };
        let posted = shared.get(at)?;
        Some(AvEntry {
            id: posted.id,
            bytes: posted.bytes,
            refs: 1,
            inserted: 0,
            range: posted.range,
            user: self.user_ids.get(&fi_addr).copied(),
        })
    }

    /// Returns an upper bound on the indexes; every address without a context is below it.
    pub(crate) fn bound(&self) -> usize {
        self.shared.as_ref().map_or(self.entries.len(), SharedAv::count)
    }

    /// Whether the addresses are private, so that a failed lookup stays valid until `version`
    /// changes.
    pub(crate) fn is_own(&self) -> bool {
        self.shared.is_none()
    }

    /// Returns `fi_addr` without the receive context in its upper bits.
    pub(crate) fn without_context(&self, fi_addr: u64) -> u64 {
        match self.bits {
            0 => fi_addr,
            bits => fi_addr & u64::MAX >> bits,
        }
    }

    fn context(&self, fi_addr: u64) -> u64 {
        match self.bits {
            0 => 0,
            bits => fi_addr >> (u64::BITS - bits),
        }
    }

    /// Returns all addresses in order of their indexes.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = u64> {
        (0..self.bound() as u64).filter(|at| self.entry(*at).is_some())
    }

    /// Returns the port of the peer that an `fi_addr_t` names.
    #[inline]
    pub(crate) fn port_id(&self, fi_addr: u64) -> Option<PortId> {
        let entry = self.entry(self.without_context(fi_addr))?;
        let behind = u16::try_from(self.context(fi_addr)).ok()?;
        let port = entry.id.port.checked_add(behind)?;
        (behind < entry.range.rx).then_some(PortId { port, ..entry.id })
    }

    /// Returns the index of the endpoint to which port `id` belongs.
    fn index_of(&self, id: PortId) -> Option<u32> {
        if let Some(shared) = &self.shared {
            return shared.index_of(id);
        }
        let exact = self.by_id.get(&id).copied();
        exact.or_else(|| {
            (1..self.widest).find_map(|behind| {
                let port = id.port.checked_sub(behind)?;
                let index = *self.by_id.get(&PortId { port, ..id })?;
                self.entries.get(index as usize)?.range.holds(behind).then_some(index)
            })
        })
    }

    /// Returns the address to report as the source when `id` sends; `None` if it was not inserted.
    #[inline]
    pub(crate) fn find(&self, id: PortId) -> Option<u64> {
        let index = u64::from(self.index_of(id)?);
        match self.entry(index)?.user {
            Some(user) => Some(user),
            None if self.users => Some(fi::FI_ADDR_NOTAVAIL),
            None => Some(index),
        }
    }

    /// Returns the first port of the endpoint to which `id` belongs, if it was inserted.
    pub(crate) fn whole(&self, id: PortId) -> Option<PortId> {
        self.entry(u64::from(self.index_of(id)?)).map(|e| e.id)
    }

    /// Returns the version of the vector after the last insertion of an address; 0 for a shared
    /// vector, which does not record it.
    pub(crate) fn inserted_at(&self, fi_addr: u64) -> u64 {
        self.entry(self.without_context(fi_addr)).map_or(0, |e| e.inserted)
    }

    /// Returns the address as first inserted.
    pub(crate) fn bytes(&self, fi_addr: u64) -> Option<[u8; ADDR_LEN]> {
        self.entry(fi_addr).map(|e| e.bytes)
    }

    /// Returns the address, as first inserted, of the endpoint to which port `id` belongs.
    pub(crate) fn bytes_of(&self, id: PortId) -> Option<[u8; ADDR_LEN]> {
        self.bytes(u64::from(self.index_of(id)?))
    }

    /// Adds a peer. A given `user` is reported as the source in place of its index.
    ///
    /// # Errors
    /// `FI_ENOMEM` when the vector is full, and errors of a shared vector.
    pub(crate) fn insert(
        &mut self,
        id: PortId,
        bytes: [u8; ADDR_LEN],
        user: Option<u64>,
    ) -> Result<u64, Errno> {
        let Some(shared) = &self.shared else {
            return self.insert_own(id, bytes, user).ok_or(fi::FI_ENOMEM);
        };
        let index = u64::from(shared.insert(id, bytes)?);
        if let Some(user) = user {
            self.user_ids.insert(index, user);
        }
        self.version += 1;
        Ok(index)
    }

    fn insert_own(&mut self, id: PortId, bytes: [u8; ADDR_LEN], user: Option<u64>) -> Option<u64> {
        if let Some(index) = self.by_id.get(&id).copied() {
            if let Some(entry) = self.entries.get_mut(index as usize) {
                entry.refs = entry.refs.checked_add(1)?;
                entry.user = user.or(entry.user);
                self.version += 1;
                entry.inserted = self.version;
                return Some(u64::from(index));
            }
        }
        self.version += 1;
        let range = PortRange::of(&bytes, self.bits);
        let new = AvEntry { id, bytes, refs: 1, inserted: self.version, range, user };
        let index = if let Some(Reverse(index)) = self.free.pop() {
            *self.entries.get_mut(index as usize)? = new;
            index
        } else {
            let index = u32::try_from(self.entries.len())
                .ok()
                .filter(|i| *i != u32::MAX && u64::from(*i) <= u64::MAX >> 1 >> self.bits)?;
            self.entries.push(new);
            index
        };
        self.widest = self.widest.max(range.ports());
        self.by_id.insert(id, index);
        Some(u64::from(index))
    }

    /// Sets the identifier reported in place of index `fi_addr`. Returns false if the index is not
    /// in use.
    pub(crate) fn set_user(&mut self, fi_addr: u64, user: u64) -> bool {
        if self.shared.is_some() {
            let known = self.entry(fi_addr).is_some();
            if known {
                self.user_ids.insert(fi_addr, user);
                self.version += 1;
            }
            return known;
        }
        let Some(entry) = usize::try_from(fi_addr)
            .ok()
            .and_then(|at| self.entries.get_mut(at))
            .filter(|e| e.refs != 0)
        else {
            return false;
        };
        entry.user = Some(user);
        self.version += 1;
        true
    }

    /// Undoes one insertion.
    ///
    /// # Errors
    /// `FI_EINVAL` when `fi_addr` is not in use, and errors of a shared vector.
    pub(crate) fn remove(&mut self, fi_addr: u64) -> Result<(), Errno> {
        let Some(shared) = &self.shared else {
            return self.remove_own(fi_addr).then_some(()).ok_or(fi::FI_EINVAL);
        };
        shared.remove(usize::try_from(fi_addr).map_err(|_| fi::FI_EINVAL)?)?;
        self.version += 1;
        Ok(())
    }

    fn remove_own(&mut self, fi_addr: u64) -> bool {
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
    use crate::base::addr::{Addr, ContextCounts};

    fn id(port: u16) -> PortId {
        PortId::new(0, port)
    }

    fn bytes(b: u8) -> [u8; ADDR_LEN] {
        [b; ADDR_LEN]
    }

    #[test]
    fn indexes_are_dense_and_the_lowest_is_reused() {
        let mut av = AvState::new(usize::MAX, 0, false);
        for p in 0..5u8 {
            assert_eq!(av.insert(id(u16::from(p)), bytes(p), None), Ok(u64::from(p)));
        }
        assert_eq!(av.remove(3), Ok(()));
        assert_eq!(av.remove(1), Ok(()));
        assert!(av.port_id(1).is_none());
        assert!(av.find(id(1)).is_none());
        assert_eq!(av.insert(id(50), bytes(50), None), Ok(1));
        assert_eq!(av.insert(id(51), bytes(51), None), Ok(3));
        assert_eq!(av.insert(id(52), bytes(52), None), Ok(5));
        assert_eq!(av.port_id(3), Some(id(51)));
        assert_eq!(av.find(id(52)), Some(5));
    }

    #[test]
    fn duplicates_are_counted() {
        let mut av = AvState::default();
        assert_eq!(av.insert(id(7), bytes(1), None), Ok(0));
        let version = av.version;
        assert_eq!(av.insert(id(7), bytes(2), None), Ok(0));
        assert!(av.version > version);
        assert_eq!(av.inserted_at(0), av.version);
        assert_eq!(av.bytes(0), Some(bytes(1)));
        assert_eq!(av.remove(0), Ok(()));
        assert_eq!(av.port_id(0), Some(id(7)));
        assert_eq!(av.remove(0), Ok(()));
        assert!(av.remove(0).is_err());
        assert!(av.version > version);
        assert_eq!(av.insert(id(7), bytes(2), None), Ok(0));
        assert_eq!(av.bytes(0), Some(bytes(2)));
    }

    #[test]
    fn unknown_addresses_are_refused() {
        let mut av = AvState::default();
        assert!(av.port_id(0).is_none());
        assert!(av.bytes(u64::MAX).is_none());
        assert!(av.remove(u64::MAX).is_err());
        assert!(av.remove(0).is_err());
        assert_eq!(av.insert(id(1), bytes(0), None), Ok(0));
        assert!(av.port_id(1 << 32).is_none());
    }

    const THIRD: u64 = 2 << 62;

    fn typed(port: u16) -> [u8; ADDR_LEN] {
        Addr::this_host(std::net::Ipv4Addr::LOCALHOST, port).to_bytes()
    }

    #[test]
    fn upper_bits_name_a_context() {
        let mut av = AvState::new(0, 2, false);
        assert_eq!(av.insert(id(100), typed(100), None), Ok(0));
        assert_eq!(av.port_id(0), Some(id(100)));
        assert_eq!(av.port_id(THIRD), Some(id(102)));
        assert_eq!(av.port_id(THIRD | 1), None);
        assert_eq!(av.without_context(THIRD | 1), 1);
        assert_eq!(av.find(id(107)), Some(0));
        assert_eq!(av.find(id(108)), None);
        assert_eq!(av.find(id(99)), None);
        assert_eq!(av.whole(id(107)), Some(id(100)));
    }

    #[test]
    fn scalable_endpoint_reports_its_number_of_ports() {
        let group = ContextCounts::new(2, 1).unwrap();
        let ip = std::net::Ipv4Addr::LOCALHOST;
        let named = Addr::of_group(ip, id(100), 7, group).to_bytes();
        for bits in [0, 2] {
            let mut av = AvState::new(0, bits, false);
            assert_eq!(av.insert(id(100), named, None), Ok(0));
            assert_eq!(av.find(id(102)), Some(0));
            assert_eq!(av.find(id(103)), None);
            assert_eq!(av.insert(id(101), bytes(0), None), Ok(1), "an endpoint there now");
            assert_eq!(av.find(id(101)), Some(1));
        }
        let mut av = AvState::new(0, 2, false);
        assert_eq!(av.insert(id(100), named, None), Ok(0));
        assert_eq!(av.port_id(THIRD), None, "it has two");
    }

    #[test]
    fn user_ids_replace_indexes() {
        let mut av = AvState::new(0, 0, false);
        assert_eq!(av.insert(id(7), bytes(1), Some(70)), Ok(0));
        assert_eq!(av.insert(id(8), bytes(2), None), Ok(1));
        assert_eq!((av.find(id(7)), av.find(id(8))), (Some(70), Some(1)));
        let mut av = AvState::new(0, 0, true);
        assert_eq!(av.insert(id(7), bytes(1), None), Ok(0));
        assert_eq!(av.find(id(7)), Some(fi::FI_ADDR_NOTAVAIL));
        let version = av.version;
        assert!(av.set_user(0, 70));
        assert!(av.version > version);
        assert_eq!(av.find(id(7)), Some(70));
        assert!(!av.set_user(1, 71));
    }
}
