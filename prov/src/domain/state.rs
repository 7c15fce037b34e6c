// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of a domain, which its lock guards, and the part that all its objects hold.
//!
//! The slabs of [`DomainState`] are separate fields, so that they can be borrowed independently.

use std::fmt;
use std::sync::{Arc, OnceLock};

use scif::slab::Slab;
use scif::{Maker, SharedKeys, Waiter};
use scif_ring::domain_lock::ElidableLock;

use crate::domain::progress_handle::AutoProgress;
use crate::domain::triggers::Triggers;
use crate::engine::endpoint::Endpoint;
use crate::engine::tables::srx_state::SrxState;
use crate::net::NetDomain;
use crate::state::av_set::AvSetState;
use crate::state::av_table::AvState;
use crate::state::counter::CntrState;
use crate::state::cq_queue::CqState;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;
use crate::state::mr_table::MrTable;

/// Object of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Cq(u32),
    Cntr(u32),
}

/// Objects that were read last, at most two, each in one word. Both were read since the last change
/// of the domain, or there is one only. Many programs read a queue of sends and one of receives in
/// turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastRead {
    last: u64,
    other: u64,
}

impl LastRead {
    const NONE: u64 = u64::MAX;

    #[inline(always)]
    pub(crate) fn new(target: Target) -> LastRead {
        LastRead { last: LastRead::word(target), other: LastRead::NONE }
    }

    #[inline(always)]
    fn word(target: Target) -> u64 {
        const IS_CNTR: u64 = 1 << u32::BITS;
        match target {
            Target::Cq(index) => u64::from(index),
            Target::Cntr(index) => u64::from(index) | IS_CNTR,
        }
    }

    #[inline(always)]
    pub(crate) fn is(self, target: Target) -> bool {
        let word = LastRead::word(target);
        self.last == word || self.other == word
    }

    /// Notes a read of `target`. `unchanged`: the domain has not changed since the last read.
    /// Returns whether no other object was read since the last read of `target`, apart from reads
    /// without a change between them.
    #[inline(always)]
    pub(crate) fn note(&mut self, target: Target, unchanged: bool) -> bool {
        let word = LastRead::word(target);
        if !unchanged {
            let is_repeated = self.last == word && self.other == LastRead::NONE;
            if !is_repeated {
                *self = LastRead::new(target);
            }
            return is_repeated;
        }
        let is_repeated = self.is(target);
        if !is_repeated {
            *self = LastRead { last: word, other: self.last };
        }
        is_repeated
    }
}

/// Number of waits for which each endpoint is armed.
#[derive(Debug, Default)]
pub(crate) struct Arms(Vec<u32>);

impl Arms {
    pub(crate) fn count(&mut self, ep: u32) -> Option<&mut u32> {
        let at = ep as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0.get_mut(at)
    }
}

/// Numbers of open objects without a slab of their own.
#[derive(Debug, Default)]
pub(crate) struct OpenCounts {
    /// Joined collective groups (`struct fid_mc`).
    pub(crate) mcs: usize,
    /// Shared transmit contexts.
    pub(crate) stxs: usize,
    /// Scalable endpoints.
    pub(crate) seps: usize,
    /// Poll sets.
    pub(crate) pollsets: usize,
}

/// State guarded by the domain lock.
pub(crate) struct DomainState {
    pub(crate) eps: Slab<Endpoint>,
    pub(crate) cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
    pub(crate) avs: Slab<AvState>,
    pub(crate) mrs: MrTable,
    pub(crate) srxs: Slab<SrxState>,
    pub(crate) av_sets: Slab<AvSetState>,
    pub(crate) open: OpenCounts,
    /// Number of addresses assigned to AV sets and groups so far.
    pub(crate) coll_addrs: u64,
    pub(crate) arms: Arms,
    /// Operations that wait for a counter.
    pub(crate) triggers: Triggers,
    /// Endpoints armed by the sleeping progress thread.
    pub(crate) auto_armed: Vec<u32>,
    /// Wait object of the progress thread, if there is one.
    pub(crate) auto_waiter: Option<Arc<Waiter>>,
    /// Event queue for registrations, if the application requested their events.
    pub(crate) mr_events: Option<Arc<EqShared>>,
    /// Event queue of the domain, held so that it cannot be closed before the domain.
    pub(crate) eq: Option<Arc<EqShared>>,
    /// Queue or counter that was read last.
    pub(crate) last_read: LastRead,
}

impl DomainState {
    pub(crate) fn new(mrs: MrTable) -> DomainState {
        DomainState {
            eps: Slab::new(),
            cqs: Slab::new(),
            cntrs: Slab::new(),
            avs: Slab::new(),
            mrs,
            srxs: Slab::new(),
            av_sets: Slab::new(),
            open: OpenCounts::default(),
            coll_addrs: 0,
            arms: Arms::default(),
            triggers: Triggers::default(),
            auto_armed: Vec::new(),
            auto_waiter: None,
            mr_events: None,
            eq: None,
            last_read: LastRead::new(Target::Cq(0)),
        }
    }

    /// Wakes the progress thread if it sleeps. It does not know how soon work posted meanwhile is
    /// due.
    pub(crate) fn wake_auto(&self) {
        if let Some(waiter) = self.auto_waiter.as_ref().filter(|_| !self.auto_armed.is_empty()) {
            waiter.signal();
        }
    }

    /// Returns a new `fi_addr_t` for a set or a group, distinct from all addresses of address
    /// vectors.
    pub(crate) fn next_coll_addr(&mut self) -> u64 {
        const FIRST: u64 = 1 << 62;
        self.coll_addrs += 1;
        FIRST + self.coll_addrs
    }
}

/// Part of a domain that all its objects hold.
pub(crate) struct DomainShared {
    pub(crate) gate: ElidableLock<DomainState>,
    pub(crate) fabric: Arc<FabricShared>,
    pub(crate) creator: Maker,
    /// Interface version for which the application was written.
    pub(crate) api: u32,
    /// Whether the domain was opened for triggered operations and queued work.
    pub(crate) triggers: bool,
    /// Keys that peers may look up.
    pub(crate) keys: Arc<SharedKeys>,
    pub(crate) auto: Option<AutoProgress>,
    /// Network to other hosts, once an endpoint uses one.
    pub(crate) net: OnceLock<Arc<NetDomain>>,
}

impl fmt::Debug for DomainShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainShared").field("api", &self.api).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_objects_read_in_turn_are_remembered_until_a_change() {
        let [a, b, c] = [Target::Cq(0), Target::Cq(1), Target::Cntr(0)];
        let mut read = LastRead::new(a);
        assert!(read.note(a, false) && read.note(a, true));
        assert!(!read.note(b, true) && read.is(a) && read.is(b) && !read.is(c));
        assert!(read.note(a, true) && read.note(b, true));
        assert!(!read.note(b, false), "another one was read between");
        assert!(read.is(b) && !read.is(a), "changed since");
        assert!(read.note(b, false), "the same again");
        assert!(!read.note(a, false) && !read.note(c, true) && !read.note(b, true));
        assert!(!read.is(a) && read.is(b) && read.is(c), "two at most");
    }
}
