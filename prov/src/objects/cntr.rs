// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks")]
//! Counters: the number of operations that completed, and the number that failed.
//!
//! The operations that count are in `data`, the sleep of a waiting thread is in `wait`. Reading a
//! counter makes progress on the endpoints bound to it. Byte counters are not supported.
//!
//! Mirrors `struct fi_ops_cntr` of `rdma/fi_eq.h`; fi_cntr(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::Maker;

use crate::base::entry;
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::domain::{DomainShared, DomainState, Target, bindings, calls, triggered, wait};
use crate::engine::channel::link_set::Repeated;
use crate::engine::endpoint::Endpoint;
use crate::objects::handle::Domain;
use crate::objects::peer_import;
use crate::objects::wait_set::{SetMember, wait_object};
use crate::state::counter::CntrState;
use crate::state::peer_owner::PeerCntr;
use crate::state::waiters::{self, WaitObj, WaitState};

/// Object behind `struct fid_cntr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cntr {
    fid: fi::fid_cntr,
    dom: Arc<DomainShared>,
    creator: Maker,
    index: u32,
    _set: Option<SetMember>,
    /// Counter of another provider for which this one stands.
    owner: Option<PeerCntr>,
}

// SAFETY: repr(C) with a fid_cntr first; FI_CLASS_CNTR is in Cntr objects only. The fields after
// the fid are Sync; the domain lock guards everything else.
unsafe impl entry::Object for Cntr {
    const FCLASS: usize = fi::FI_CLASS_CNTR;
}

entry::created_by!(Cntr, |object| object.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_cntr =
    fi::fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr, ..fi::FI_OPS_CNTR_NOSYS };

/// Operations of a counter that stands for one of another provider: the application reads the
/// owner's counter.
static PEER_OPS: fi::fi_ops_cntr = fi::fi_ops_cntr { read: read_peer, ..fi::FI_OPS_CNTR_NOSYS };

/// `fi_cntr_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cntr_attr,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_cntr_open", || {
        // SAFETY: a live domain, by the contract of fi_cntr_open.
        let domain = unsafe { entry::own::<Domain, _>(domain) }?;
        // SAFETY: null (all defaults), or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() };
        if cntr.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let is_peer = attr.is_some_and(|attr| attr.flags & fi::FI_PEER != 0);
        let owner = is_peer.then(|| {
            peer_import::check(&domain.shared)?;
            // SAFETY: the context has the type that this flag requires, by the contract of
            // fi_peer(3).
            unsafe { PeerCntr::import(context) }
        });
        let new =
            owner.transpose().and_then(|owner| Cntr::open(&domain.shared, attr, owner, context));
        let new = entry::log_err(Subsys::EpCtrl, format_args!("fi_cntr_open"), new)?;
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(cntr, entry::give(new)) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a counter", || {
        // SAFETY: an open counter of this provider, not closed concurrently, by the contract of
        // fi_close.
        let retired = unsafe { entry::own::<Cntr, _>(fid) }?.retire();
        entry::log_err(Subsys::EpCtrl, format_args!("fi_close of a counter"), retired)?;
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Cntr, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a counter", || {
        // SAFETY: a live counter, by the contract of fi_control.
        let cntr = unsafe { entry::own::<Cntr, _>(fid) }?;
        let guard = cntr.dom.gate.lock();
        let waits = &guard.cntrs.get(cntr.index).ok_or(fi::FI_EINVAL)?.waits;
        // SAFETY: arg has the type that the command takes, by the contract of fi_control.
        unsafe { waiters::control(waits, command, arg) }
    })
}

unsafe extern "C" fn read(cntr: *mut fi::fid_cntr) -> u64 {
    entry::guard_or(0, || {
        // SAFETY: a live counter, by the contract of fi_cntr_read.
        unsafe { entry::own::<Cntr, _>(cntr) }.map_or(0, |c| c.read().0)
    })
}

/// Makes progress and hands the increments to the owner.
unsafe extern "C" fn read_peer(cntr: *mut fi::fid_cntr) -> u64 {
    entry::guard_or(0, || {
        // SAFETY: a live counter, by the contract of fi_cntr_read.
        if let Ok(cntr) = unsafe { entry::own::<Cntr, _>(cntr) } {
            cntr.flush_to_owner();
        }
        0
    })
}

unsafe extern "C" fn readerr(cntr: *mut fi::fid_cntr) -> u64 {
    entry::guard_or(0, || {
        // SAFETY: a live counter, by the contract of fi_cntr_readerr.
        unsafe { entry::own::<Cntr, _>(cntr) }.map_or(0, |c| c.read().1)
    })
}

unsafe extern "C" fn add(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    entry::guard_int("fi_cntr_add", || {
        // SAFETY: a live counter, by the contract of fi_cntr_add.
        unsafe { entry::own::<Cntr, _>(cntr) }?.change(|c| c.add(value))
    })
}

unsafe extern "C" fn set(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    entry::guard_int("fi_cntr_set", || {
        // SAFETY: a live counter, by the contract of fi_cntr_set.
        unsafe { entry::own::<Cntr, _>(cntr) }?.change(|c| c.set(value))
    })
}

unsafe extern "C" fn adderr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    entry::guard_int("fi_cntr_adderr", || {
        // SAFETY: a live counter, by the contract of fi_cntr_adderr.
        unsafe { entry::own::<Cntr, _>(cntr) }?.change(|c| c.add_err(value))
    })
}

unsafe extern "C" fn seterr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    entry::guard_int("fi_cntr_seterr", || {
        // SAFETY: a live counter, by the contract of fi_cntr_seterr.
        unsafe { entry::own::<Cntr, _>(cntr) }?.change(|c| c.set_err(value))
    })
}

unsafe extern "C" fn wait(cntr: *mut fi::fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    entry::guard_int("fi_cntr_wait", || {
        // SAFETY: a live counter, by the contract of fi_cntr_wait.
        unsafe { entry::own::<Cntr, _>(cntr) }?.wait(threshold, timeout)
    })
}

impl Cntr {
    fn open(
        dom: &Arc<DomainShared>,
        attr: Option<&fi::fi_cntr_attr>,
        owner: Option<PeerCntr>,
        context: *mut c_void,
    ) -> Result<Box<Cntr>, Errno> {
        let (obj, set) = match attr {
            None => (WaitObj::None, None),
            Some(attr) if attr.flags & !fi::FI_PEER != 0 => return Err(fi::FI_EINVAL),
            Some(attr) => match attr.events {
                // SAFETY: a live set where one is required, by the contract of fi_cntr_open.
                fi::FI_CNTR_EVENTS_COMP => unsafe { wait_object(attr.wait_obj, attr.wait_set) }?,
                fi::FI_CNTR_EVENTS_BYTES => return Err(fi::FI_ENOSYS),
                _ => return Err(fi::FI_EINVAL),
            },
        };
        let state = CntrState::new(WaitState::new(obj)?);
        let waiter = state.waits.waiter().map(Arc::clone);
        let index = dom.gate.lock().cntrs.insert(state).ok_or(fi::FI_ENOMEM)?;
        let set = match SetMember::join(set, dom, Target::Cntr(index), waiter) {
            Ok(set) => set,
            Err(err) => {
                dom.gate.lock().cntrs.remove(index);
                return Err(err);
            }
        };
        Ok(Box::new(Cntr {
            fid: fi::fid_cntr {
                fid: fi::fid {
                    fclass: fi::FI_CLASS_CNTR,
                    // The context of a peer counter was only the means to pass the owner's counter.
                    context: if owner.is_none() { context } else { std::ptr::null_mut() },
                    ops: &raw const FID_OPS,
                },
                ops: if owner.is_none() { &raw const OPS } else { &raw const PEER_OPS },
            },
            dom: Arc::clone(dom),
            creator: Maker::here(),
            index,
            _set: set,
            owner,
        }))
    }

    /// Domain of this counter.
    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.dom
    }

    /// Index in `DomainState::cntrs`.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    fn target(&self) -> Target {
        Target::Cntr(self.index)
    }

    fn retire(&self) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let state = st.cntrs.get(self.index).ok_or(fi::FI_EINVAL)?;
        let fed = if state.waits.is_wide() {
            st.eps.iter().any(|(_, ep)| ep.cfg.counts_in(self.index))
        } else {
            !state.waits.endpoints().is_empty()
        };
        let bound = fed || state.waits.is_held();
        let noted =
            |ep: &Endpoint| ep.ops.notes.iter().any(|(_, note)| note.cntr == Some(self.index));
        let awaited = st.triggers.uses_cntr(self.index) || st.eps.iter().any(|(_, ep)| noted(ep));
        if bound || awaited || st.mrs.uses_cntr(self.index) {
            return Err(fi::FI_EBUSY);
        }
        wait::disarm_fd(&mut st, self.target());
        bindings::narrow(&mut st, self.index);
        st.cntrs.remove(self.index);
        Ok(())
    }

    #[inline(always)]
    fn read(&self) -> (u64, u64) {
        let (mut guard, unchanged) = self.dom.gate.lock_noting();
        let st = &mut *guard;
        if unchanged {
            if let Some(seen) = self.read_again(st) {
                guard.release_unchanged();
                return seen;
            }
        }
        st.last_read.note(self.target(), unchanged);
        let waits = st.cntrs.get(self.index).map(|c| &c.waits).filter(|w| !w.fd_is_armed());
        let alone = match waits.map(WaitState::endpoints) {
            Some(&[ep]) if st.triggers.is_empty() => Some(ep),
            _ => None,
        };
        if let Some(seen) = alone.and_then(|ep| self.read_changed(st, ep)) {
            return seen;
        }
        let is_empty = alone.is_some_and(|ep| calls::poll_empty(st, ep));
        if !is_empty {
            self.poll(st);
        }
        let polls = alone.and_then(|ep| calls::polls(st, ep)).unwrap_or(0);
        let seen = st.cntrs.get_mut(self.index).map_or((0, 0), |c| c.look_at(polls));
        if is_empty {
            guard.release_unchanged();
        }
        seen
    }

    /// Returns values that another call has changed which polled endpoint `ep`, such as a read of a
    /// queue. A second poll would look at the network again, and delay the program.
    #[inline(always)]
    fn read_changed(&self, st: &mut DomainState, ep: u32) -> Option<(u64, u64)> {
        let polls = calls::polls(st, ep)?;
        let cntr = st.cntrs.get_mut(self.index)?;
        cntr.has_changed_since(polls).then(|| cntr.look_at(polls))
    }

    /// Repeats a read whose poll found nothing, since no call has changed the domain since.
    /// Returns `None` if there is something to do, or another object was read.
    #[inline(always)]
    fn read_again(&self, st: &mut DomainState) -> Option<(u64, u64)> {
        let DomainState { cntrs, eps, last_read, .. } = st;
        let cntr = cntrs.get_mut(self.index).filter(|_| last_read.is(self.target()))?;
        match *cntr.waits.endpoints() {
            [ep] if calls::poll_again(eps, ep) == Repeated::Silent => {
                let polls = eps.get(ep).map_or(0, |ep| ep.links.polls);
                Some(cntr.look_at(polls))
            }
            _ => None,
        }
    }

    /// Makes progress, unless a poll of the rings finds nothing to do.
    #[inline(never)]
    fn poll(&self, st: &mut DomainState) {
        if st.cntrs.get(self.index).is_some_and(|c| c.waits.fd_is_armed()) {
            wait::disarm_fd(st, self.target());
        }
        wait::poll_all(st, self.target());
    }

    /// Makes progress, and passes the increments to the owner outside of the lock, since the owner
    /// may call back.
    fn flush_to_owner(&self) {
        let Some(owner) = &self.owner else { return };
        let counted = {
            let mut st = self.dom.gate.lock();
            if st.cntrs.get(self.index).is_some_and(|c| c.waits.fd_is_armed()) {
                wait::disarm_fd(&mut st, self.target());
            }
            wait::progress_all(&mut st, self.target());
            st.cntrs.get_mut(self.index).map_or((0, 0), CntrState::take)
        };
        owner.add(counted);
    }

    fn change(&self, how: impl FnOnce(&mut CntrState)) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let cntr = st.cntrs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        how(cntr);
        cntr.poll();
        if !st.triggers.is_empty() {
            triggered::run(&mut st);
        }
        Ok(())
    }

    /// Waits for a threshold. Without a wait object it polls, since programs also wait on such
    /// counters.
    fn wait(&self, threshold: u64, timeout: c_int) -> Result<(), Errno> {
        entry::check_not_forked(self.creator)?;
        let errors = {
            let mut st = self.dom.gate.lock();
            let state = st.cntrs.get(self.index).ok_or(fi::FI_EINVAL)?;
            let errors = state.errors();
            wait::disarm_fd(&mut st, self.target());
            errors
        };
        let outcome = wait::block(&self.dom, self.target(), timeout, |st| {
            let (value, now) = st.cntrs.get_mut(self.index)?.look();
            if value >= threshold {
                return Some(Ok(()));
            }
            (now != errors).then_some(Err(fi::FI_EAVAIL))
        })?;
        outcome.unwrap_or(Err(fi::FI_ETIMEDOUT))
    }

    /// Implements `fi_trywait`.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        wait::try_wait(&self.dom, self.target(), |st| {
            st.cntrs.get(self.index).is_some_and(CntrState::changed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::args::EpConfig;

    #[test]
    fn waiting_ends_by_value_by_error_and_by_time() {
        let domain = Domain::for_test(fi::fi_version(2, 0), &fi::fi_domain_attr::default());
        let open = |attr: Option<&fi::fi_cntr_attr>| {
            Cntr::open(&domain.shared, attr, None, std::ptr::null_mut())
        };
        let attr = fi::fi_cntr_attr { wait_obj: fi::FI_WAIT_UNSPEC, ..fi::fi_cntr_attr::default() };
        let cntr = open(Some(&attr)).unwrap();
        assert_eq!(cntr.wait(0, 0), Ok(()));
        assert_eq!(cntr.wait(1, 0), Err(fi::FI_ETIMEDOUT));
        assert_eq!(cntr.wait(1, 10), Err(fi::FI_ETIMEDOUT));
        for (change, outcome) in [
            (CntrState::add as fn(&mut CntrState, u64), Ok(())),
            (CntrState::add_err, Err(fi::FI_EAVAIL)),
        ] {
            let (dom, index) = (Arc::clone(&domain.shared), cntr.index);
            let other = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                change(dom.gate.lock().cntrs.get_mut(index).unwrap(), 1);
            });
            let threshold = cntr.read().0 + 1;
            assert_eq!(cntr.wait(threshold, -1), outcome);
            other.join().unwrap();
        }
        assert_eq!(cntr.read(), (1, 1));
        assert_eq!(cntr.retire(), Ok(()));

        let idle = open(None).unwrap();
        assert_eq!(idle.wait(0, 0), Ok(()));
        assert_eq!(idle.wait(1, 1), Err(fi::FI_ETIMEDOUT));
        assert_eq!(idle.retire(), Ok(()));
        let bytes =
            fi::fi_cntr_attr { events: fi::FI_CNTR_EVENTS_BYTES, ..fi::fi_cntr_attr::default() };
        assert_eq!(open(Some(&bytes)).map(|_| ()), Err(fi::FI_ENOSYS));
    }

    #[test]
    fn a_value_that_a_poll_has_changed_is_read_without_another_poll() {
        let domain = Domain::for_test(fi::fi_version(2, 0), &fi::fi_domain_attr::default());
        let dom = &domain.shared;
        let cntr = Cntr::open(dom, None, None, std::ptr::null_mut()).unwrap();
        let cfg = EpConfig { cntr_write: Some(cntr.index), ..EpConfig::default() };
        let sock = scif::Endpoint::bind(&dom.fabric.node, 0, scif::Exports::default()).unwrap();
        let ep = dom.add_ep(Endpoint::new(cfg, sock)).unwrap();
        bindings::bind_ep(&mut dom.gate.lock(), cntr.target(), ep).unwrap();
        dom.enable_ep(&mut dom.gate.lock(), ep).unwrap();
        let polls = || calls::polls(&dom.gate.lock(), ep).unwrap();
        for value in 1..=3 {
            assert_eq!(cntr.read().0, value - 1);
            let before = polls();
            dom.gate.lock().cntrs.get_mut(cntr.index).unwrap().add(1);
            assert_eq!(cntr.read().0, value);
            assert_ne!(polls(), before, "a program that only writes and reads makes progress");
            dom.gate.lock().cntrs.get_mut(cntr.index).unwrap().add(1);
            calls::progress(&mut dom.gate.lock(), ep);
            let before = polls();
            assert_eq!((cntr.read().0, polls()), (value + 1, before));
            assert_eq!(cntr.read().0, value + 1);
            assert_ne!(polls(), before);
            cntr.change(|c| c.set(value)).unwrap();
            assert_eq!(cntr.read().0, value);
        }
        dom.close_ep(ep, None);
        assert_eq!(cntr.retire(), Ok(()));
    }
}
