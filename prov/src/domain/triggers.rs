// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations that wait for a counter, in the order of their thresholds.
//!
//! Semantics: fi_trigger(3).

use std::collections::BTreeMap;

use scif::slab::Slab;
use scif::sorted::SortedMap;

use crate::base::atomic_ops::element::AtomicKind;
use crate::engine::types::args::RmaIov;
use crate::engine::types::iov::Iov;
use crate::state::counter::CntrState;

/// Counter, and whether its failures count.
pub(crate) type WatchedCntr = (u32, bool);

/// Threshold, and an increasing sequence number.
pub(crate) type Turn = (u64, u64);

/// Condition that an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub cntr: u32,
    pub threshold: u64,
    /// Whether failures count like successes.
    pub errors: bool,
}

/// Operation or counter change to execute.
#[derive(Debug)]
pub(crate) enum Action {
    Send {
        iov: Iov,
        tag: Option<u64>,
        data: Option<u64>,
        dest: u64,
    },
    Recv {
        iov: Iov,
        tag: Option<(u64, u64)>,
        src: u64,
    },
    Rma {
        write: bool,
        iov: Iov,
        rma: Vec<RmaIov>,
        data: Option<u64>,
        dest: u64,
    },
    Atomic {
        kind: AtomicKind,
        op: u32,
        datatype: u32,
        /// Operand, compare and result lists.
        lists: [Iov; 3],
        rma: Vec<RmaIov>,
        data: Option<u64>,
        dest: u64,
    },
    Set {
        cntr: u32,
        value: u64,
    },
    Add {
        cntr: u32,
        value: u64,
    },
}

/// Properties of work queued to a domain, besides its operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredWork {
    /// Address of the application's structure, which identifies the work for a cancel.
    pub id: usize,
    pub completion: Option<u32>,
}

/// Operation or counter change that waits for a counter.
#[derive(Debug)]
pub(crate) struct Work {
    pub action: Action,
    /// Endpoint of an operation.
    pub ep: Option<u32>,
    pub context: usize,
    pub flags: u64,
    /// `None` for a triggered operation, which completes like any other.
    pub queued: Option<DeferredWork>,
}

impl Work {
    /// Returns the counter that the work itself changes.
    pub(crate) fn changes(&self) -> Option<u32> {
        match self.action {
            Action::Set { cntr, .. } | Action::Add { cntr, .. } => Some(cntr),
            _ => self.queued.and_then(|q| q.completion),
        }
    }
}

/// Waiting work of a domain.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    pub(crate) waiting: SortedMap<WatchedCntr, BTreeMap<Turn, Work>>,
    posted: u64,
}

impl Triggers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, when: Condition, work: Work) {
        self.posted += 1;
        let turn = (when.threshold, self.posted);
        let place = self.waiting.get_or_insert_with((when.cntr, when.errors), Default::default);
        place.insert(turn, work);
    }

    /// Removes the first work whose condition holds, except at the places in `held`.
    pub(crate) fn take_due(
        &mut self,
        cntrs: &Slab<CntrState>,
        held: &[WatchedCntr],
    ) -> Option<(WatchedCntr, Turn, Work)> {
        let reached = |(place, list): (&WatchedCntr, &BTreeMap<Turn, Work>)| {
            let now = cntrs.get(place.0)?.reached(place.1);
            let (turn, _) = list.first_key_value()?;
            (turn.0 <= now && !held.contains(place)).then_some((*place, *turn))
        };
        let (place, turn) = self.waiting.iter().find_map(reached)?;
        let list = self.waiting.get_mut(&place)?;
        let work = list.remove(&turn)?;
        if list.is_empty() {
            self.waiting.remove(&place);
        }
        Some((place, turn, work))
    }

    /// Removes all work that `choose` accepts. The first argument of `choose` is the counter.
    pub(crate) fn take(&mut self, mut choose: impl FnMut(u32, &Work) -> bool) -> Vec<Work> {
        let mut taken = Vec::new();
        for (place, list) in self.waiting.iter_mut() {
            let chosen = list.iter().filter(|(_, work)| choose(place.0, work));
            let turns: Vec<_> = chosen.map(|(turn, _)| *turn).collect();
            taken.extend(turns.iter().filter_map(|turn| list.remove(turn)));
        }
        self.waiting.retain(|_, list| !list.is_empty());
        taken
    }

    /// Whether some work waits for counter `cntr`, or will change it.
    pub(crate) fn uses_cntr(&self, cntr: u32) -> bool {
        let changes = |work: &Work| work.changes() == Some(cntr);
        self.waiting.iter().any(|(place, list)| place.0 == cntr || list.values().any(changes))
    }
}
