// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "the choice to run without a lock")]
//! Domain: the state shared by all its objects.
//!
//! One lock guards a domain. Objects returned to C hold the domain and an index into one of the
//! slabs of [`DomainState`]. The slabs are separate fields, so that they can be borrowed
//! independently. The lock is elided only if the application promised `FI_THREAD_DOMAIN` and no
//! thread of the library makes progress.

mod progress_thread;
pub(crate) mod wait;

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{Maker, SharedKeys, Waiter};
use scif_ring::domain_lock::ElidableLock;

use self::wait::{Arms, Target};
use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::base::slab::Slab;
use crate::engine::deferred::{self, Triggers};
use crate::engine::shared::SrxState;
use crate::engine::{self, EpState};
use crate::state::av_set::AvSetState;
use crate::state::av_table::AvState;
use crate::state::counter::CntrState;
use crate::state::cq_queue::CqState;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;
use crate::state::mr_table::MrTable;

use progress_thread::AutoProgress;

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
    pub(crate) eps: Slab<EpState>,
    pub(crate) cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
    pub(crate) avs: Slab<AvState>,
    pub(crate) mrs: MrTable,
    pub(crate) srxs: Slab<SrxState>,
    pub(crate) av_sets: Slab<AvSetState>,
    pub(crate) open: OpenCounts,
    /// Number of addresses assigned to AV sets and groups so far.
    coll_addrs: u64,
    pub(crate) arms: Arms,
    /// Operations that wait for a counter.
    pub(crate) triggers: Triggers,
    /// Endpoints armed by the sleeping progress thread.
    auto_armed: Vec<u32>,
    /// Wait object of the progress thread, if there is one.
    auto_waiter: Option<Arc<Waiter>>,
    /// Event queue for registrations, if the application requested their events.
    pub(crate) mr_events: Option<Arc<EqShared>>,
    /// Event queue of the domain, held so that it cannot be closed before the domain.
    eq: Option<Arc<EqShared>>,
    /// Queue or counter that was read last.
    pub(crate) last_read: Target,
}

impl DomainState {
    fn new(mrs: MrTable) -> DomainState {
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
            last_read: Target::Cq(0),
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
    /// Keys that peers may look up; `None` when the application requested no capability that needs
    /// them.
    pub(crate) keys: Option<Arc<SharedKeys>>,
    auto: Option<AutoProgress>,
}

impl fmt::Debug for DomainShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainShared").field("api", &self.api).finish_non_exhaustive()
    }
}

impl DomainShared {
    /// Opens a domain for an application that requested `caps`; `events` tells whether an event
    /// queue drives connections or groups.
    ///
    /// # Errors
    /// Errors of the system, when it is out of a resource.
    pub(crate) fn open(
        fabric: &Arc<FabricShared>,
        (caps, events): (u64, bool),
        attr: &fi::fi_domain_attr,
    ) -> Result<Arc<DomainShared>, Errno> {
        let auto = attr.data_progress == fi::FI_PROGRESS_AUTO;
        let keys = if caps == 0 || caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0 {
            Some(fabric.node.key_table().map_err(|e| errno::errno(&e))?)
        } else {
            None
        };
        let (virt_addr, prov_key) = mr_modes(attr.mr_mode);
        let state = DomainState::new(MrTable::new(virt_addr, prov_key, keys.clone()));
        let gate = if attr.threading == fi::FI_THREAD_DOMAIN && !auto && !events {
            // SAFETY: by FI_THREAD_DOMAIN the application promises to serialise all calls on the
            // domain's objects. Without a progress thread, and without an event queue that drives
            // connections, no other thread uses the state.
            unsafe { ElidableLock::elided(state) }
        } else {
            ElidableLock::shared_with(state, |wait| scif::keep_errno(wait))
        };
        let shared = Arc::new(DomainShared {
            gate,
            fabric: Arc::clone(fabric),
            creator: Maker::here(),
            api: fabric.api_version,
            triggers: caps & fi::FI_TRIGGER != 0,
            keys,
            auto: if auto { Some(AutoProgress::new()?) } else { None },
        });
        if let Some(auto) = &shared.auto {
            shared.gate.lock().auto_waiter = Some(Arc::clone(&auto.waiter));
            auto.start(&shared)?;
        }
        fabric.domains.add_relaxed(1);
        Ok(shared)
    }
}

/// Returns whether peers use addresses (else offsets), and whether the provider chooses keys (else
/// the application).
fn mr_modes(mode: c_int) -> (bool, bool) {
    match mode {
        fi::FI_MR_BASIC => (true, true),
        fi::FI_MR_SCALABLE => (false, false),
        bits => (bits & fi::FI_MR_VIRT_ADDR != 0, bits & fi::FI_MR_PROV_KEY != 0),
    }
}

impl DomainShared {
    /// Whether a thread of the library makes progress.
    pub(crate) fn is_auto(&self) -> bool {
        self.auto.is_some()
    }

    /// Ends a domain without open objects.
    ///
    /// # Errors
    /// `FI_EBUSY`: an object is open.
    pub(crate) fn retire(&self) -> Result<(), Errno> {
        {
            let st = self.gate.lock();
            let queues = st.cqs.len()
                + st.cntrs.len()
                + st.srxs.len()
                + st.open.stxs
                + st.open.mcs
                + st.open.pollsets;
            let (eps, avs, mrs) = (st.eps.len() + st.open.seps, st.avs.len(), st.mrs.len());
            let objects = queues + eps + avs + mrs;
            if objects != 0 {
                let open = format_args!(
                    "fi_close of a domain with {eps} endpoints, {avs} address vectors, {mrs} memory regions and {queues} \
                     queues, counters and shared contexts"
                );
                return entry::log_err(Subsys::Fabric, open, Err(fi::FI_EBUSY));
            }
        }
        if let Some(auto) = &self.auto {
            auto.stop();
        }
        self.fabric.domains.sub(1);
        Ok(())
    }

    /// Binds an event queue, for registrations too if `flags` request it.
    ///
    /// # Errors
    /// `FI_EINVAL`: a queue is bound. `FI_EBADFLAGS`: other flags.
    pub(crate) fn bind_eq(&self, eq: &Arc<EqShared>, flags: u64) -> Result<(), Errno> {
        if flags & !fi::FI_REG_MR != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        let mut st = self.gate.lock();
        if st.eq.is_some() {
            return Err(fi::FI_EINVAL);
        }
        st.eq = Some(Arc::clone(eq));
        if flags & fi::FI_REG_MR != 0 {
            st.mr_events = Some(Arc::clone(eq));
        }
        Ok(())
    }

    /// Adds a new endpoint. Returns its index in [`DomainState::eps`].
    ///
    /// # Errors
    /// `FI_ENOMEM`: too many endpoints. Errors of the system, when its descriptor cannot be
    /// watched.
    pub(crate) fn add_ep(&self, ep: EpState) -> Result<u32, Errno> {
        let mut st = self.gate.lock();
        let index = st.eps.insert(ep).ok_or(fi::FI_ENOMEM)?;
        if let Err(errno) = wait::bind_wide(&mut st, index) {
            drop(st);
            self.close_ep(index, None);
            return Err(errno);
        }
        Ok(index)
    }

    /// Enables endpoint `ep`. Sleeping threads watch it only from now on. Before, no call would
    /// take its messages, and these threads would be woken again and again.
    ///
    /// # Errors
    /// Errors of the system, when its descriptor cannot be watched.
    pub(crate) fn enable_ep(&self, st: &mut DomainState, ep: u32) -> Result<(), Errno> {
        wait::watch_ep(st, ep)?;
        let state = st.eps.get_mut(ep).ok_or(fi::FI_EINVAL)?;
        if let Some(auto) = &self.auto {
            auto.add(state)?;
        }
        state.enabled = true;
        Ok(())
    }

    /// Wakes the threads that sleep on queues or counters of endpoint `ep`, so that they make
    /// progress.
    pub(crate) fn rouse(&self, st: &mut DomainState, ep: u32) {
        wait::rouse(st, ep);
        if let Some(auto) = &self.auto {
            auto.wake();
        }
    }

    /// Makes endpoint `ep` report to completion queue `cq`.
    ///
    /// # Errors
    /// See [`wait::bind_ep`].
    pub(crate) fn bind_cq(&self, st: &mut DomainState, ep: u32, cq: u32) -> Result<(), Errno> {
        wait::bind_ep(st, Target::Cq(cq), ep)
    }

    /// Makes endpoint `ep` report to counter `cntr`.
    ///
    /// # Errors
    /// See [`wait::bind_ep`].
    pub(crate) fn bind_cntr(&self, st: &mut DomainState, ep: u32, cntr: u32) -> Result<(), Errno> {
        wait::bind_ep(st, Target::Cntr(cntr), ep)
    }

    /// Closes endpoint `ep`, which used address vector `av`, and removes all references to it.
    pub(crate) fn close_ep(&self, ep: u32, av: Option<u32>) {
        let mut guard = self.gate.lock();
        let st = &mut *guard;
        for cq in 0..st.cqs.bound() {
            wait::unbind_ep(st, Target::Cq(cq), ep);
        }
        for cntr in 0..st.cntrs.bound() {
            wait::unbind_ep(st, Target::Cntr(cntr), ep);
        }
        if let (Some(auto), Some(state)) = (&self.auto, st.eps.get(ep)) {
            auto.remove(state);
        }
        st.auto_armed.retain(|armed| *armed != ep);
        wait::forget_ep(st, ep);
        deferred::forget_ep(st, ep);
        if let Some(av) = av.and_then(|av| st.avs.get_mut(av)) {
            av.endpoints = av.endpoints.saturating_sub(1);
        }
        let port = st.eps.get(ep).map(|state| state.links.sock.id());
        for (_, srx) in st.srxs.iter_mut() {
            srx.eps.retain(|bound| *bound != ep);
            srx.forget(port);
        }
        engine::close(st, ep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_modes_of_old_and_new_applications() {
        assert_eq!(mr_modes(fi::FI_MR_UNSPEC), (false, false));
        assert_eq!(mr_modes(fi::FI_MR_BASIC), (true, true));
        assert_eq!(mr_modes(fi::FI_MR_SCALABLE), (false, false));
        assert_eq!(mr_modes(fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED), (true, false));
        assert_eq!(mr_modes(fi::FI_MR_PROV_KEY | fi::FI_MR_LOCAL), (false, true));
    }
}
