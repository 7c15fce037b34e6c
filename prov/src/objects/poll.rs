// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: objects and contexts come and go as C pointers")]
//! Poll sets: progress and readiness of several queues and counters of a domain in one call.
//!
//! A member cannot be closed before it is removed. Deprecated since libfabric 2.0, but still
//! supported.
//!
//! Mirrors `struct fi_ops_poll` of `rdma/fi_eq.h`; fi_poll(3).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;

use crate::base::entry;
use crate::base::errno::Errno;
use crate::domain::{DomainShared, Target, wait};
use crate::objects::cntr::Cntr;
use crate::objects::cq::Cq;
use crate::objects::handle::Domain;

/// Queue or counter in the set.
#[derive(Clone, Copy, Debug)]
struct PollMember {
    target: Target,
    /// Context with which the application opened it.
    context: usize,
}

/// Object behind `struct fid_poll`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Poll {
    fid: fi::fid_poll,
    dom: Arc<DomainShared>,
    members: Mutex<Vec<PollMember>>,
}

// SAFETY: repr(C) with a fid_poll first; FI_CLASS_POLL is in Poll objects only. The fields after
// the fid are Sync.
unsafe impl entry::Object for Poll {
    const FCLASS: usize = fi::FI_CLASS_POLL;
}

entry::created_by!(Poll, |object| object.dom.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_poll = fi::fi_ops_poll { poll, poll_add, poll_del, ..fi::FI_OPS_POLL_NOSYS };

/// `fi_poll_open`
///
/// # Errors
/// `-FI_EINVAL` for flags, since none are defined.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_poll_attr,
    pollset: *mut *mut fi::fid_poll,
) -> c_int {
    entry::guard_int("fi_poll_open", || {
        // SAFETY: a live domain, by the contract of fi_poll_open.
        let domain = unsafe { entry::own::<Domain, _>(domain) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if attr.flags != 0 || pollset.is_null() {
            return Err(fi::FI_EINVAL);
        }
        domain.shared.gate.lock().open.pollsets += 1;
        let new = Box::new(Poll {
            fid: fi::fid_poll {
                fid: fi::fid {
                    fclass: fi::FI_CLASS_POLL,
                    context: std::ptr::null_mut(),
                    ops: &raw const FID_OPS,
                },
                ops: &raw const OPS,
            },
            dom: Arc::clone(&domain.shared),
            members: Mutex::default(),
        });
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(pollset, entry::give(new)) }
    })
}

/// # Errors
/// `-FI_EBUSY`: the set has members.
unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a poll set", || {
        // SAFETY: an open set of this provider, not closed concurrently, by the contract of
        // fi_close.
        let set = unsafe { entry::own::<Poll, _>(fid) }?;
        if !set.members().is_empty() {
            return Err(fi::FI_EBUSY);
        }
        let mut st = set.dom.gate.lock();
        st.open.pollsets = st.open.pollsets.saturating_sub(1);
        drop(st);
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Poll, _>(fid) }?);
        Ok(())
    })
}

/// `fi_poll_add`
///
/// # Errors
/// `-FI_EINVAL` for an object that is neither queue nor counter, a member, or flags. `-FI_EDOMAIN`
/// for an object of another domain.
unsafe extern "C" fn poll_add(
    set: *mut fi::fid_poll,
    event_fid: *mut fi::fid,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_poll_add", || {
        // SAFETY: a live set, by the contract of fi_poll_add.
        let set = unsafe { entry::own::<Poll, _>(set) }?;
        // SAFETY: null or a live object, by the contract of fi_poll_add.
        set.add(unsafe { member(&set.dom, event_fid) }?, flags)
    })
}

/// `fi_poll_del`
///
/// # Errors
/// Errors of `fi_poll_add`; `-FI_EINVAL` for an object that is no member.
unsafe extern "C" fn poll_del(
    set: *mut fi::fid_poll,
    event_fid: *mut fi::fid,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_poll_del", || {
        // SAFETY: a live set, by the contract of fi_poll_del.
        let set = unsafe { entry::own::<Poll, _>(set) }?;
        // SAFETY: null or a live object, by the contract of fi_poll_del.
        set.remove(unsafe { member(&set.dom, event_fid) }?, flags)
    })
}

/// `fi_poll`
///
/// Returns the number of contexts written: one for each member that has an event, at most `count`.
unsafe extern "C" fn poll(
    set: *mut fi::fid_poll,
    context: *mut *mut c_void,
    count: c_int,
) -> c_int {
    entry::guard_int("fi_poll", || {
        // SAFETY: a live set, by the contract of fi_poll.
        let set = unsafe { entry::own::<Poll, _>(set) }?;
        let count = usize::try_from(count).map_err(|_| fi::FI_EINVAL)?;
        if context.is_null() && count > 0 {
            return Err(fi::FI_EINVAL);
        }
        let ready = set.look(count);
        for (at, found) in ready.iter().enumerate() {
            // SAFETY: below count, for which C passes space.
            let to = unsafe { context.add(at) };
            // SAFETY: as above.
            unsafe { to.write(std::ptr::with_exposed_provenance_mut(*found)) };
        }
        c_int::try_from(ready.len()).map_err(|_| fi::FI_EINVAL)
    })
}

/// Returns `fid` as a member of a set of this domain.
///
/// # Safety
/// `fid` is null or a live object.
unsafe fn member(dom: &Arc<DomainShared>, fid: *const fi::fid) -> Result<PollMember, Errno> {
    // SAFETY: the caller's contract.
    let (of, target) = match unsafe { entry::class_of(fid) }? {
        fi::FI_CLASS_CQ => {
            // SAFETY: as above, and of that class.
            let cq = unsafe { entry::object::<Cq, _>(fid) }?;
            (cq.domain(), Target::Cq(cq.index()))
        }
        fi::FI_CLASS_CNTR => {
            // SAFETY: as above, and of that class.
            let cntr = unsafe { entry::object::<Cntr, _>(fid) }?;
            (cntr.domain(), Target::Cntr(cntr.index()))
        }
        _ => return Err(fi::FI_EINVAL),
    };
    if !Arc::ptr_eq(of, dom) {
        return Err(fi::FI_EDOMAIN);
    }
    // SAFETY: a live object, by the caller's contract.
    let head = unsafe { fid.as_ref() }.ok_or(fi::FI_EINVAL)?;
    Ok(PollMember { target, context: head.context.expose_provenance() })
}

impl Poll {
    fn members(&self) -> MutexGuard<'_, Vec<PollMember>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, new: PollMember, flags: u64) -> Result<(), Errno> {
        let mut members = self.members();
        if flags != 0 || members.iter().any(|m| m.target == new.target) {
            return Err(fi::FI_EINVAL);
        }
        wait::hold(&mut self.dom.gate.lock(), new.target)?;
        members.push(new);
        Ok(())
    }

    fn remove(&self, old: PollMember, flags: u64) -> Result<(), Errno> {
        let mut members = self.members();
        let at = members.iter().position(|m| m.target == old.target);
        let at = at.filter(|_| flags == 0).ok_or(fi::FI_EINVAL)?;
        members.remove(at);
        wait::release(&mut self.dom.gate.lock(), old.target);
        Ok(())
    }

    /// Makes progress on all members. Returns the contexts of at most `most` members that have an
    /// event.
    fn look(&self, most: usize) -> Vec<usize> {
        let members = self.members();
        let mut guard = self.dom.gate.lock();
        let st = &mut *guard;
        for member in members.iter() {
            wait::progress_all(st, member.target);
        }
        let ready = |m: &&PollMember| match m.target {
            Target::Cq(_) => wait::has_news(st, m.target),
            Target::Cntr(index) => st.cntrs.get_mut(index).is_some_and(|c| c.poll()),
        };
        members.iter().filter(ready).take(most).map(|m| m.context).collect()
    }
}
