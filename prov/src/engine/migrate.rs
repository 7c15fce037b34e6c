// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Migration of frequently accessed memory. Initiators count accesses and report them to the owner,
//! which migrates the pages during progress.
//!
//! Not here: the moves of pages (`scif::Movable`) and the selection of keys (`mr::table`). An
//! initiator that needs a system call for each operation counts these by key, if the owner wants
//! hints. It reports each time the count has doubled.

use super::peer::Peer;
use super::peer_id::PeerId;
use super::wire::{self, Head};
use super::{DomainState, EpState, marked};

/// Time in nanoseconds that the owner waits until peers have left a region. A copy takes less.
/// Otherwise the region stays, and the move can be tried again.
const LEAVE_NS: u64 = 2_000_000;

impl EpState {
    /// Counts an access to `key` of `peer` that needed a system call, and reports it to the owner
    /// if due.
    pub(super) fn count_use(&mut self, peer: PeerId, slot: u32, key: u64, len: usize) {
        let p: &mut Peer = self.peers.at_mut(peer);
        if p.queue.is_quiet()
            && let Some(uses) = p.rma.uses.get_or_insert_default().count(slot, len)
        {
            let head = Head::new().word(key).word(u64::from(uses));
            self.control(peer, wire::HARD_USE, head, &[]);
        }
    }
}

/// Migrates one region that is due.
#[cold]
pub(super) fn move_hot(st: &mut DomainState) {
    let Some(index) = st.mrs.next_hot() else {
        return;
    };
    let Some(slot) = st.mrs.revoke(index) else {
        return;
    };
    // From now on peers send requests for this key, which are served afterwards.
    let end = scif::now_ns() + LEAVE_NS;
    let mut polls = 0;
    let mut left = true;
    while marked(st, slot) {
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
