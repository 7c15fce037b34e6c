// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: objects come as C pointers")]
//! Wait sets: one descriptor, and one blocking call, for several queues and counters.
//!
//! Each member has its own descriptor, and the set watches these. Waiting on a set does the same as
//! a program that calls `fi_trywait` for each member and polls all descriptors. Deprecated since
//! libfabric 2.0, but still supported.
//!
//! Mirrors `struct fi_ops_wait` of `rdma/fi_eq.h`; fi_poll(3), "fi_wait_open".

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as fi;
use scif::{Maker, Waiter, cpu_relax_or_yield, now_ns};

use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::domain::wait::{self, has_news};
use crate::domain::{DomainShared, Target};
use crate::objects::handle::Fabric;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;
use crate::state::waiters::{TIMER_SLEEP_NS, WaitObj, poll_list};

/// Member of a set.
#[derive(Debug)]
pub(crate) enum SetEntry {
    Of(Arc<DomainShared>, Target),
    Eq(Weak<EqShared>),
}

impl SetEntry {
    fn is(&self, other: &SetEntry) -> bool {
        match (self, other) {
            (SetEntry::Of(dom, target), SetEntry::Of(of, this)) => {
                Arc::ptr_eq(dom, of) && target == this
            }
            (SetEntry::Eq(eq), SetEntry::Eq(this)) => Weak::ptr_eq(eq, this),
            _ => false,
        }
    }

    fn try_wait(&self) -> Result<(), Errno> {
        match self {
            SetEntry::Of(dom, target) => wait::try_wait(dom, *target, |st| has_news(st, *target)),
            SetEntry::Eq(eq) => eq.upgrade().map_or(Ok(()), |eq| eq.try_wait()),
        }
    }
}

/// Set, as shared with its members.
#[derive(Debug)]
pub(crate) struct SetShared {
    /// Fabric, held so that it cannot be closed.
    _fabric: Arc<FabricShared>,
    obj: WaitObj,
    waiter: Waiter,
    members: Mutex<Vec<SetEntry>>,
    creator: Maker,
}

/// Object behind `struct fid_wait`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct WaitSet {
    fid: fi::fid_wait,
    shared: Arc<SetShared>,
}

// SAFETY: repr(C) with a fid_wait first; FI_CLASS_WAIT is in WaitSet objects only. An Arc of a Sync
// type follows the fid.
unsafe impl entry::Object for WaitSet {
    const FCLASS: usize = fi::FI_CLASS_WAIT;
}

entry::created_by!(WaitSet, |object| object.shared.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_wait = fi::fi_ops_wait { wait, ..fi::FI_OPS_WAIT_NOSYS };

/// `fi_wait_open`
///
/// # Errors
/// `-FI_EINVAL` for flags, and for wait objects that a set does not support. Errors of the system,
/// when no descriptor is left.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    attr: *mut fi::fi_wait_attr,
    waitset: *mut *mut fi::fid_wait,
) -> c_int {
    entry::guard_int("fi_wait_open", || {
        // SAFETY: a live fabric, by the contract of fi_wait_open.
        let fabric = unsafe { entry::own::<Fabric, _>(fabric) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        let obj = WaitObj::from_c(attr.wait_obj)?;
        if attr.flags != 0 || obj == WaitObj::None || waitset.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let shared = SetShared {
            _fabric: Arc::clone(fabric.shared()),
            obj,
            waiter: Waiter::new().map_err(|e| errno::errno(&e))?,
            members: Mutex::default(),
            creator: Maker::here(),
        };
        let new = Box::new(WaitSet {
            fid: fi::fid_wait {
                fid: fi::fid {
                    fclass: fi::FI_CLASS_WAIT,
                    context: std::ptr::null_mut(),
                    ops: &raw const FID_OPS,
                },
                ops: &raw const OPS,
            },
            shared: Arc::new(shared),
        });
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(waitset, entry::give(new)) }
    })
}

/// # Errors
/// `-FI_EBUSY`: an object that was opened with the set is still open.
unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a wait set", || {
        // SAFETY: an open set of this provider, not closed concurrently, by the contract of
        // fi_close.
        let set = unsafe { entry::own::<WaitSet, _>(fid) }?;
        if Arc::strong_count(&set.shared) > 1 {
            return Err(fi::FI_EBUSY);
        }
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<WaitSet, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a wait set", || {
        // SAFETY: a live set, by the contract of fi_control.
        let set = &unsafe { entry::own::<WaitSet, _>(fid) }?.shared;
        let fd = set.waiter.fd().as_raw_fd();
        match command {
            // SAFETY: space for the wait object's kind, by the contract of FI_GETWAITOBJ.
            fi::FI_GETWAITOBJ => unsafe { entry::put(arg.cast(), set.obj.to_c()) },
            fi::FI_GETWAIT if set.obj == WaitObj::Yield => Err(fi::FI_ENODATA),
            // SAFETY: a list of descriptors, by the contract of FI_GETWAIT.
            fi::FI_GETWAIT if set.obj == WaitObj::PollFd => unsafe { poll_list(fd, arg.cast()) },
            // SAFETY: space for a descriptor, by the contract of FI_GETWAIT.
            fi::FI_GETWAIT => unsafe { entry::put(arg.cast(), fd) },
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// `fi_wait`
///
/// Sleeps until a member has an event, or may have one; the caller then reads its members. Negative
/// timeouts never end.
///
/// # Errors
/// `-FI_ETIMEDOUT`.
unsafe extern "C" fn wait(set: *mut fi::fid_wait, timeout: c_int) -> c_int {
    entry::guard_int("fi_wait", || {
        // SAFETY: a live set, by the contract of fi_wait.
        unsafe { entry::own::<WaitSet, _>(set) }?.shared.wait(timeout)
    })
}

/// Returns the kind of wait object that `obj` selects. For `FI_WAIT_SET` it also returns the set.
///
/// # Errors
/// `FI_EINVAL`: `obj` is not supported, or `obj` is `FI_WAIT_SET` and `set` is null.
/// `FI_EOPBADSTATE`: the parent process opened the set before it forked this one.
///
/// # Safety
/// `set` is an open wait set when `obj` is `FI_WAIT_SET`.
pub(crate) unsafe fn wait_object(
    obj: fi::fi_wait_obj,
    set: *const fi::fid_wait,
) -> Result<(WaitObj, Option<Arc<SetShared>>), Errno> {
    if obj != fi::FI_WAIT_SET {
        return Ok((WaitObj::from_c(obj)?, None));
    }
    // SAFETY: a live set, by the caller's contract.
    let set = unsafe { entry::own::<WaitSet, _>(set) }?;
    Ok((WaitObj::Set, Some(Arc::clone(&set.shared))))
}

/// Membership of an open queue or counter.
#[derive(Debug)]
pub(crate) struct SetMember {
    set: Arc<SetShared>,
    member: SetEntry,
    waiter: Arc<Waiter>,
}

impl SetMember {
    /// Makes `target` a member of `set`, if there is one.
    ///
    /// # Errors
    /// Errors of the system, when its descriptor cannot be watched.
    pub(crate) fn join(
        set: Option<Arc<SetShared>>,
        dom: &Arc<DomainShared>,
        target: Target,
        waiter: Option<Arc<Waiter>>,
    ) -> Result<Option<SetMember>, Errno> {
        let (Some(set), Some(waiter)) = (set, waiter) else {
            return Ok(None);
        };
        let member = || SetEntry::Of(Arc::clone(dom), target);
        set.add(member(), waiter.fd())?;
        Ok(Some(SetMember { set, member: member(), waiter }))
    }
}

impl Drop for SetMember {
    fn drop(&mut self) {
        self.set.remove(&self.member, self.waiter.fd());
    }
}

impl WaitSet {
    pub(crate) fn shared(&self) -> &SetShared {
        &self.shared
    }
}

impl SetShared {
    fn members(&self) -> MutexGuard<'_, Vec<SetEntry>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a member, whose descriptor is `fd`.
    ///
    /// # Errors
    /// Errors of the system, when the descriptor cannot be watched.
    pub(crate) fn add(&self, member: SetEntry, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.waiter.add(fd).map_err(|e| errno::errno(&e))?;
        self.members().push(member);
        Ok(())
    }

    /// Removes a member if `is_over` returns true. The check runs under the lock of the members: a
    /// thread that polls a member holds this lock and a reference to the member.
    pub(crate) fn remove_if(
        &self,
        member: &SetEntry,
        fd: BorrowedFd<'_>,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let mut members = self.members();
        let over = is_over();
        if over {
            self.waiter.remove(fd);
            members.retain(|m| !m.is(member));
        }
        over
    }

    /// Removes a member that is closed.
    pub(crate) fn remove(&self, member: &SetEntry, fd: BorrowedFd<'_>) {
        self.waiter.remove(fd);
        self.members().retain(|m| !m.is(member));
    }

    /// Implements `fi_trywait`.
    ///
    /// # Errors
    /// `FI_EAGAIN`: a member has an event.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        self.members().iter().try_for_each(SetEntry::try_wait)
    }

    fn wait(&self, timeout_ms: c_int) -> Result<(), Errno> {
        let deadline =
            u64::try_from(timeout_ms).ok().map(|ms| now_ns().saturating_add(ms * 1_000_000));
        let mut polls = 0;
        loop {
            match self.try_wait() {
                Err(fi::FI_EAGAIN) => return Ok(()),
                other => other?,
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(now_ns()));
            if left == Some(0) {
                return Err(fi::FI_ETIMEDOUT);
            }
            if self.obj == WaitObj::Yield {
                polls += 1;
                cpu_relax_or_yield(polls);
                continue;
            }
            let timeout_ns = left.map_or(TIMER_SLEEP_NS, |left| left.min(TIMER_SLEEP_NS));
            // The result is ignored: the members are polled in any case.
            self.waiter.wait(Some(timeout_ns)).map_err(|e| errno::errno(&e))?;
        }
    }
}
