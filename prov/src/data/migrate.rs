// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that peers use hard: noticed by its initiators, told to its owner, moved by the owner while it makes progress.
//!
//! Not about how pages move (`scif::Movable`) nor which keys are due (`mr::table`). An initiator that has to ask the kernel for
//! each operation counts them by key, where the owner wants to know, and says so each time the count has doubled.

use super::peer::Peer;
use super::wire::{self, Head};
use super::{DomainState, EpState, marked};

/// Keys whose use is counted apart, for each peer; others share a count.
const COUNTS: usize = 16;
/// Uses of which an owner is told first.
const FIRST: u32 = 64;
/// Bytes that weigh as much as one more operation.
const BYTES: usize = 32 * 1024;
/// How long the owner waits for peers to leave a region that is to move: a copy takes less, and it can try again.
const LEAVE_NS: u64 = 2_000_000;

/// How often the keys of a peer were used.
#[derive(Debug, Default)]
pub(super) struct Uses([u32; COUNTS]);

impl Uses {
    /// One more use of a slot; how many there were if that is to be told.
    fn count(&mut self, slot: u32, len: usize) -> Option<u32> {
        let count = self.0.get_mut(slot as usize % COUNTS)?;
        let before = *count;
        *count = before.saturating_add(u32::try_from(1 + len / BYTES).unwrap_or(u32::MAX));
        (*count >= FIRST && before.checked_ilog2() != count.checked_ilog2()).then_some(*count)
    }
}

impl EpState {
    /// An operation on `key` of `peer` had to go by way of the kernel, and its owner wants to know.
    pub(super) fn count_use(&mut self, peer: u32, slot: u32, key: u64, len: usize) {
        let told = self
            .peers
            .get_mut(peer as usize)
            .filter(|p| p.is_quiet())
            .and_then(|p: &mut Peer| p.uses.get_or_insert_default().count(slot, len));
        if let Some(uses) = told {
            let head = Head::new().word(key).word(u64::from(uses));
            self.control(peer, wire::HARD_USE, head, &[]);
        }
    }
}

/// Moves one region that is due.
#[cold]
pub(super) fn move_hot(st: &mut DomainState) {
    let Some(index) = st.mrs.next_hot() else { return };
    let Some(slot) = st.mrs.withdraw(index) else {
        return;
    };
    // From now on peers ask for what they want there, and are served after this.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_told_as_they_double() {
        let mut uses = Uses::default();
        let told: Vec<u32> = (0..1000).filter_map(|_| uses.count(5, 8)).collect();
        assert_eq!(told, [64, 128, 256, 512]);
        assert_eq!(uses.count(6, 8), None);
        assert_eq!(uses.count(6 + 16, 64 * BYTES), Some(66));
    }
}
