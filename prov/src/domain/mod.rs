// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks, and the choice to run without a lock")]
//! Domains: the C object, and the state shared by all objects of the domain.
//!
//! One lock guards a domain. Objects returned to C hold the domain and an index into one of the
//! slabs of [`DomainState`]. The slabs are separate fields, so that they can be borrowed
//! independently. The lock is elided only if the application promised `FI_THREAD_DOMAIN` and no
//! thread of the library makes progress.
//!
//! Mirrors `struct fi_ops_domain` of `rdma/fi_domain.h`; fi_domain(3).

mod progress_thread;
pub(crate) mod wait;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{Maker, SharedKeys, Waiter};
use scif_ring::domain_lock::ElidableLock;

use self::wait::{Arms, Target};
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::base::slab::Slab;
use crate::base::{atomic_ops, entry, reason};
use crate::data::deferred::{self, Triggers};
use crate::data::shared::SrxState;
use crate::data::{self, EpState};
use crate::objects::ep::{self, trigger};
use crate::objects::eq::Eq;
use crate::objects::{av, cntr, collective, cq, mr, poll, sep, srx};
use crate::state::av_set::AvSetState;
use crate::state::av_table::AvState;
use crate::state::counter::CntrState;
use crate::state::cq_queue::CqState;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;
use crate::state::mr_table::MrTable;

use progress_thread::AutoProgress;

/// State guarded by the domain lock.
pub(crate) struct DomainState {
    pub(crate) eps: Slab<EpState>,
    pub(crate) cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
    pub(crate) avs: Slab<AvState>,
    pub(crate) mrs: MrTable,
    pub(crate) srxs: Slab<SrxState>,
    pub(crate) av_sets: Slab<AvSetState>,
    /// Number of joined collective groups (`struct fid_mc`) that the application holds.
    pub(crate) mcs: usize,
    /// Number of addresses assigned to AV sets and groups so far.
    coll_addrs: u64,
    /// Number of open shared transmit contexts.
    pub(crate) stxs: usize,
    /// Number of open scalable endpoints.
    pub(crate) seps: usize,
    /// Number of open poll sets.
    pub(crate) pollsets: usize,
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
            mcs: 0,
            coll_addrs: 0,
            stxs: 0,
            seps: 0,
            pollsets: 0,
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
    pub(crate) maker: Maker,
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
        f.debug_struct("DomainShared")
            .field("api", &self.api)
            .finish_non_exhaustive()
    }
}

/// Object behind `struct fid_domain`.
#[repr(C)]
pub(crate) struct Domain {
    fid: fi::fid_domain,
    pub(crate) shared: Arc<DomainShared>,
}

// SAFETY: repr(C) with a fid_domain first; FI_CLASS_DOMAIN is in Domain objects only. An Arc of
// Sync state follows the fid.
unsafe impl entry::Object for Domain {
    const FCLASS: usize = fi::FI_CLASS_DOMAIN;
}

impl entry::Made for Domain {
    fn maker(&self) -> Maker {
        self.shared.maker
    }
}

static FID_OPS: fi::fi_ops = fi::fi_ops {
    close,
    bind,
    control,
    ..fi::FI_OPS_NOSYS
};
static OPS: fi::fi_ops_domain = fi::fi_ops_domain {
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: sep::open,
    cntr_open: cntr::open,
    poll_open: poll::open,
    stx_ctx: srx::open_stx,
    srx_ctx: srx::open_srx,
    query_atomic,
    query_collective: collective::query,
    endpoint2,
    ..fi::FI_OPS_DOMAIN_NOSYS
};

/// Opens a domain for `fi_domain` and `fi_domain2`, after the fabric was recovered.
///
/// # Errors
/// `FI_EINVAL`: an info without domain attributes, or `FI_PEER`. `FI_EOPNOTSUPP`: other flags.
/// Errors of the system, when it is out of a resource.
///
/// # Safety
/// `info` is null, or an info whose attributes stay unchanged during the call.
pub(crate) unsafe fn open(
    fabric: &Arc<FabricShared>,
    info: *const fi::fi_info,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fi::fid_domain, Errno> {
    // fi_peer(3): a provider that does not import domains returns FI_EINVAL.
    if flags & fi::FI_PEER != 0 {
        return Err(fi::FI_EINVAL);
    }
    if flags != 0 {
        return Err(fi::FI_EOPNOTSUPP);
    }
    // SAFETY: the caller's contract.
    let info = unsafe { info.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: null, or unchanged during the call, by the caller's contract.
    let attr = unsafe { info.domain_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: null, or unchanged during the call, by the caller's contract.
    let connected = unsafe { info.ep_attr.as_ref() }.is_some_and(|ep| ep.type_ == fi::FI_EP_MSG);
    let events = connected || info.caps & fi::FI_COLLECTIVE != 0;
    Ok(entry::give(Domain::open(
        fabric,
        (info.caps, events),
        attr,
        context,
    )?))
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a domain", || {
        // SAFETY: an open domain of this provider, not closed concurrently, by the contract of
        // fi_close.
        unsafe { entry::own::<Domain, _>(fid) }?.shared.retire()?;
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Domain, _>(fid) }?);
        crate::base::log::settle();
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, other: *mut fi::fid, flags: u64) -> c_int {
    entry::guard_int("fi_domain_bind", || {
        // SAFETY: a live domain, by the contract of fi_domain_bind.
        let domain = unsafe { entry::own::<Domain, _>(fid) }?;
        // SAFETY: a live event queue or null, by the contract of fi_domain_bind; other classes are
        // refused.
        let eq = unsafe { entry::object::<Eq, _>(other) }?;
        domain.shared.bind_eq(eq.shared(), flags)
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a domain", || {
        // SAFETY: a live domain, by the contract of fi_control.
        let domain = unsafe { entry::own::<Domain, _>(fid) }?;
        match command {
            // SAFETY: arg is a struct fi_deferred_work, by the contract of fi_trigger(3).
            fi::FI_QUEUE_WORK => unsafe { trigger::queue_work(&domain.shared, arg.cast()) },
            fi::FI_CANCEL_WORK => trigger::cancel_work(&domain.shared, arg.cast()),
            // SAFETY: arg is null or a counter, by the contract of fi_trigger(3).
            fi::FI_FLUSH_WORK => unsafe { trigger::flush_work(&domain.shared, arg.cast()) },
            // SAFETY: arg is a struct fi_mr_map_raw, by the contract of fi_mr_map_raw.
            fi::FI_MAP_RAW_MR => unsafe { mr::map_raw(arg.cast()) },
            // A mapped key is the key itself.
            fi::FI_UNMAP_KEY => Ok(()),
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn query_atomic(
    _domain: *mut fi::fid_domain,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    attr: *mut fi::fi_atomic_attr,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_query_atomic", || {
        let (size, count) = reason::expected(fi::FI_EOPNOTSUPP, atomic_ops::query(datatype, op, flags))?;
        // SAFETY: null or space for the result, by the contract of fi_query_atomic.
        unsafe { entry::put(attr, fi::fi_atomic_attr { count, size }) }
    })
}

unsafe extern "C" fn endpoint2(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -fi::FI_EOPNOTSUPP;
    }
    // SAFETY: the contract of fi_endpoint, which fi_endpoint2 without flags has as well.
    unsafe { ep::open(domain, info, ep, context) }
}

impl Domain {
    fn open(
        fabric: &Arc<FabricShared>,
        (caps, events): (u64, bool),
        attr: &fi::fi_domain_attr,
        context: *mut c_void,
    ) -> Result<Box<Domain>, Errno> {
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
            maker: Maker::here(),
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
        Ok(Box::new(Domain {
            fid: fi::fid_domain {
                fid: fi::fid {
                    fclass: fi::FI_CLASS_DOMAIN,
                    context,
                    ops: &raw const FID_OPS,
                },
                ops: &raw const OPS,
                mr: &raw const mr::OPS,
            },
            shared,
        }))
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

    fn retire(&self) -> Result<(), Errno> {
        {
            let st = self.gate.lock();
            let queues = st.cqs.len() + st.cntrs.len() + st.srxs.len() + st.stxs + st.mcs + st.pollsets;
            let (eps, avs, mrs) = (st.eps.len() + st.seps, st.avs.len(), st.mrs.len());
            let objects = queues + eps + avs + mrs;
            if objects != 0 {
                let open = format_args!(
                    "fi_close of a domain with {eps} endpoints, {avs} address vectors, {mrs} memory regions and {queues} \
                     queues, counters and shared contexts"
                );
                return entry::told(Subsys::Fabric, open, Err(fi::FI_EBUSY));
            }
        }
        if let Some(auto) = &self.auto {
            auto.stop();
        }
        self.fabric.domains.sub(1);
        Ok(())
    }

    fn bind_eq(&self, eq: &Arc<EqShared>, flags: u64) -> Result<(), Errno> {
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
        data::close(st, ep);
    }
}

#[cfg(test)]
impl Domain {
    /// Opens a domain of its own fabric, for an application of interface version `api`.
    pub(crate) fn for_test(api: u32, attr: &fi::fi_domain_attr) -> Box<Domain> {
        let node = crate::objects::fabric::open_node().unwrap();
        let fabric = FabricShared::new(api, node);
        Domain::open(
            &fabric,
            (fi::FI_MSG | fi::FI_RMA, false),
            attr,
            std::ptr::null_mut(),
        )
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_closes_when_it_is_empty() {
        let attr = fi::fi_domain_attr {
            threading: fi::FI_THREAD_DOMAIN,
            ..fi::fi_domain_attr::default()
        };
        let domain = Domain::for_test(fi::fi_version(2, 0), &attr);
        assert!(domain.shared.gate.is_elided());
        let av = domain.shared.gate.lock().avs.insert(AvState::default()).unwrap();
        assert_eq!(domain.shared.retire(), Err(fi::FI_EBUSY));
        domain.shared.gate.lock().avs.remove(av);
        assert_eq!(domain.shared.retire(), Ok(()));
    }

    #[test]
    fn the_progress_thread_comes_and_goes() {
        let attr = fi::fi_domain_attr {
            threading: fi::FI_THREAD_DOMAIN,
            data_progress: fi::FI_PROGRESS_AUTO,
            ..fi::fi_domain_attr::default()
        };
        for nap_ms in [0, 5] {
            let domain = Domain::for_test(fi::fi_version(2, 0), &attr);
            assert!(!domain.shared.gate.is_elided());
            std::thread::sleep(std::time::Duration::from_millis(nap_ms));
            assert_eq!(domain.shared.retire(), Ok(()));
            assert_eq!(Arc::strong_count(&domain.shared), 1);
        }
    }

    #[test]
    fn registration_modes_of_old_and_new_applications() {
        assert_eq!(mr_modes(fi::FI_MR_UNSPEC), (false, false));
        assert_eq!(mr_modes(fi::FI_MR_BASIC), (true, true));
        assert_eq!(mr_modes(fi::FI_MR_SCALABLE), (false, false));
        assert_eq!(mr_modes(fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED), (true, false));
        assert_eq!(mr_modes(fi::FI_MR_PROV_KEY | fi::FI_MR_LOCAL), (false, true));
    }
}
