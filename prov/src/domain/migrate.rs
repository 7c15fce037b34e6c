// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Migration of frequently accessed regions into memory that peers can map.

use crate::domain::state::DomainState;

/// Time in nanoseconds that the owner waits until peers have left a region. A copy takes less.
/// Otherwise the region stays, and the move can be tried again.
const LEAVE_NS: u64 = 2_000_000;

/// Migrates one region that is due.
#[cold]
pub(crate) fn migrate_candidate(st: &mut DomainState) {
    let Some(index) = st.mrs.next_hot() else {
        return;
    };
    let Some(key) = st.mrs.revoke(index) else {
        return;
    };
    // Peers that can map the memory have no windows on it.
    let slot = key.slot();
    // From now on peers send requests for this key, which are served afterwards.
    let end = scif::now_ns() + LEAVE_NS;
    let mut polls = 0;
    let mut left = true;
    while slot_in_use(st, slot) {
        if scif::now_ns() >= end {
            left = false;
            break;
        }
        polls += 1;
        scif::cpu_relax_or_yield(polls);
    }
    if left {
        st.mrs.move_in(index);
    }
    st.mrs.publish(index);
}

/// Whether a live, connected peer of any endpoint is executing an RMA on key slot `slot` now.
pub(crate) fn slot_in_use(st: &mut DomainState, slot: u32) -> bool {
    st.eps.iter_mut().any(|(_, e)| e.links.conns_accessing(slot).next().is_some())
}
