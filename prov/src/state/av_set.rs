// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Members of an address vector set.

use std::collections::HashSet;

use libfabric_sys as fi;
use scif::PortId;
use scif::slab::Slab;

use crate::base::errno::Errno;
use crate::state::av_table::AvState;

/// Members of a set.
#[derive(Debug)]
pub(crate) struct AvSetState {
    pub(crate) av: u32,
    /// Addresses in order, without duplicates.
    pub(crate) members: Vec<u64>,
    /// Address of the set in `fi_join_collective`.
    pub(crate) addr: u64,
}

/// Returns the addresses of a range with a stride that are in the vector.
pub(crate) fn in_range(av: &AvState, attr: &fi::fi_av_set_attr) -> Result<Vec<u64>, Errno> {
    let (start, end) = (attr.start_addr, attr.end_addr);
    if start == fi::FI_ADDR_NOTAVAIL && end == fi::FI_ADDR_NOTAVAIL {
        return Ok(Vec::new());
    }
    if start == fi::FI_ADDR_NOTAVAIL
        || end == fi::FI_ADDR_NOTAVAIL
        || attr.stride == 0
        || start > end
    {
        return Err(fi::FI_EINVAL);
    }
    let named = |addr: &u64| (start..=end).contains(addr) && (addr - start) % attr.stride == 0;
    Ok(av.addrs().filter(named).collect())
}

impl AvSetState {
    /// Appends the members of the other set that are missing.
    pub(crate) fn unite(&mut self, other: &[u64]) {
        let known: HashSet<u64> = self.members.iter().copied().collect();
        self.members.extend(other.iter().copied().filter(|addr| !known.contains(addr)));
    }

    /// Keeps the members that the other set contains (`common`) or lacks.
    pub(crate) fn keep(&mut self, other: &[u64], common: bool) {
        let other: HashSet<u64> = other.iter().copied().collect();
        self.members.retain(|addr| other.contains(addr) == common);
    }

    /// Returns the ports of the members.
    ///
    /// # Errors
    /// `FI_EINVAL` when one has been removed from the address vector.
    pub(crate) fn ports(&self, avs: &Slab<AvState>) -> Result<Vec<PortId>, Errno> {
        let av = avs.get(self.av).ok_or(fi::FI_EINVAL)?;
        self.members.iter().map(|addr| av.port_id(*addr).ok_or(fi::FI_EINVAL)).collect()
    }

    /// Index of the vector in `DomainState::avs`.
    pub(crate) fn av(&self) -> u32 {
        self.av
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &[u64]) -> AvSetState {
        AvSetState { av: 0, members: members.to_vec(), addr: 0 }
    }

    #[test]
    fn sets_keep_their_order() {
        let mut s = set(&[5, 1, 3]);
        s.unite(&[3, 9, 5, 0]);
        assert_eq!(s.members, [5, 1, 3, 9, 0]);
        s.keep(&[0, 1, 5, 77], true);
        assert_eq!(s.members, [5, 1, 0]);
        s.keep(&[1], false);
        assert_eq!(s.members, [5, 0]);
    }

    #[test]
    fn ranges_name_addresses_of_the_vector() {
        let mut av = AvState::default();
        for port in 0..10 {
            av.insert(PortId::new(0, port), [0; 16], None).unwrap();
        }
        assert_eq!(av.remove(4), Ok(()));
        let attr = |start_addr, end_addr, stride| fi::fi_av_set_attr {
            count: 0,
            start_addr,
            end_addr,
            stride,
            comm_key_size: 0,
            comm_key: std::ptr::null_mut(),
            flags: 0,
        };
        let none = fi::FI_ADDR_NOTAVAIL;
        assert_eq!(in_range(&av, &attr(none, none, 0)), Ok(vec![]));
        assert_eq!(in_range(&av, &attr(2, 7, 2)), Ok(vec![2, 6]));
        assert_eq!(in_range(&av, &attr(8, 1 << 60, 1)), Ok(vec![8, 9]));
        for (start, end, stride) in [(2, 7, 0), (7, 2, 1), (none, 7, 1), (2, none, 1)] {
            assert_eq!(in_range(&av, &attr(start, end, stride)), Err(fi::FI_EINVAL));
        }
    }
}
