// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "the choice to run without a lock")]
//! Domain: the state shared by all its objects.
//!
//! One lock guards a domain. Objects returned to C hold the domain and an index into one of the
//! slabs of [`DomainState`]. The slabs are separate fields, so that they can be borrowed
//! independently. The lock is elided only if the application promised `FI_THREAD_DOMAIN` and no
//! thread of the library makes progress.

pub(crate) mod bindings;
pub(crate) mod calls;
pub(crate) mod cm;
pub(crate) mod coll;
pub(crate) mod migrate;
mod progress_handle;
mod progress_thread;
pub(crate) mod srx;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod triggered;
pub(crate) mod triggers;
pub(crate) mod wait;

use std::ffi::{CStr, c_int};
use std::sync::{Arc, OnceLock};

use libfabric_sys as fi;
use scif::{KeyRights, Maker};
use scif_ring::domain_lock::ElidableLock;

use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::engine::endpoint::Endpoint;
use crate::engine::monitor;
use crate::net::NetDomain;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;
use crate::state::mr_table::MrTable;

use progress_handle::AutoProgress;
pub(crate) use state::{DomainShared, DomainState, Target};

impl DomainShared {
    /// Returns the network to other hosts, which is opened if there is none.
    ///
    /// # Errors
    /// As [`NetDomain::open`].
    pub(crate) fn network(&self, providers: &[&'static CStr]) -> Result<&Arc<NetDomain>, Errno> {
        if !self.gate.is_elided() {
            return NetDomain::open(&self.net, providers);
        }
        // SAFETY: only calls on the domain's objects use the network of the domain, and the
        // application serialises them as it does for the elided gate.
        unsafe { NetDomain::open_serial(&self.net, providers) }
    }

    /// Opens a domain for an application that requested `caps`; `events`: whether an event queue
    /// drives connections or groups.
    ///
    /// # Errors
    /// Errors of the system, when it is out of a resource.
    pub(crate) fn open(
        fabric: &Arc<FabricShared>,
        (caps, events): (u64, bool),
        attr: &fi::fi_domain_attr,
    ) -> Result<Arc<DomainShared>, Errno> {
        let auto = attr.data_progress == fi::FI_PROGRESS_AUTO;
        // Also without RMA capabilities: another endpoint of the domain may have them.
        let keys = fabric.node.key_table().map_err(|e| errno::errno(&e))?;
        keys.permit_windows(KeyRights { read: fi::FI_REMOTE_READ, write: fi::FI_REMOTE_WRITE });
        let (virt_addr, prov_key) = mr_modes(attr.mr_mode);
        let state = DomainState::new(MrTable::new(virt_addr, prov_key, Some(Arc::clone(&keys))));
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
            net: OnceLock::new(),
        });
        if let Some(auto) = &shared.auto {
            shared.gate.lock().auto_waiter = Some(Arc::clone(&auto.waiter));
            progress_thread::start(auto, &shared)?;
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
                return entry::log_err(
                    Subsys::Fabric,
                    format_args!(
                        "fi_close of a domain with {eps} endpoints, {avs} address vectors, {mrs} \
                    memory regions and {queues} \
                     queues, counters and shared contexts"
                    ),
                    Err(fi::FI_EBUSY),
                );
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
    pub(crate) fn add_ep(&self, ep: Endpoint) -> Result<u32, Errno> {
        let mut st = self.gate.lock();
        let index = st.eps.insert(ep).ok_or(fi::FI_ENOMEM)?;
        if let Err(errno) = bindings::bind_wide(&mut st, index) {
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
        bindings::watch_ep(st, ep)?;
        let state = st.eps.get_mut(ep).ok_or(fi::FI_EINVAL)?;
        if let Some(auto) = &self.auto {
            auto.add(state)?;
        }
        state.enabled = true;
        monitor::publish(state);
        Ok(())
    }

    /// Wakes the threads that sleep on queues or counters of endpoint `ep`, so that they make
    /// progress.
    pub(crate) fn notify_sleepers(&self, st: &mut DomainState, ep: u32) {
        bindings::notify_sleepers(st, ep);
        if let Some(auto) = &self.auto {
            auto.wake();
        }
    }

    /// Makes endpoint `ep` report to completion queue `cq`.
    pub(crate) fn bind_cq(&self, st: &mut DomainState, ep: u32, cq: u32) -> Result<(), Errno> {
        bindings::bind_ep(st, Target::Cq(cq), ep)
    }

    /// Makes endpoint `ep` report to counter `cntr`.
    pub(crate) fn bind_cntr(&self, st: &mut DomainState, ep: u32, cntr: u32) -> Result<(), Errno> {
        bindings::bind_ep(st, Target::Cntr(cntr), ep)
    }

    /// Closes endpoint `ep`, which used address vector `av`, and removes all references to it.
    pub(crate) fn close_ep(&self, ep: u32, av: Option<u32>) {
        let mut guard = self.gate.lock();
        let st = &mut *guard;
        for cq in 0..st.cqs.bound() {
            bindings::unbind_ep(st, Target::Cq(cq), ep);
        }
        for cntr in 0..st.cntrs.bound() {
            bindings::unbind_ep(st, Target::Cntr(cntr), ep);
        }
        if let (Some(auto), Some(state)) = (&self.auto, st.eps.get(ep)) {
            auto.remove(state);
        }
        st.auto_armed.retain(|armed| *armed != ep);
        bindings::forget_ep(st, ep);
        triggered::forget_ep(st, ep);
        if let Some(av) = av.and_then(|av| st.avs.get_mut(av)) {
            av.endpoints = av.endpoints.saturating_sub(1);
        }
        let port = st.eps.get(ep).map(|state| state.links.sock.id());
        for (_, srx) in st.srxs.iter_mut() {
            srx.eps.retain(|bound| *bound != ep);
            srx.forget(port);
        }
        calls::close(st, ep);
    }
}
