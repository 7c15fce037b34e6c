// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "reads work requests of C")]
//! Work queued to a domain: operations and counter changes that wait for a counter.
//!
//! Mirrors fi_trigger(3), "DEFERRED WORK".

use std::sync::Arc;

use libfabric_sys as fi;

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::entry::{self, object};
use crate::base::errno::Errno;
use crate::domain::triggers::{Action, Condition, DeferredWork, Work};
use crate::domain::{DomainShared, triggered};
use crate::objects::atomic::{self, NO_LIST};
use crate::objects::endpoint::ep::Ep;
use crate::objects::endpoint::trigger::{Later, counter};
use crate::objects::{msg, rma, tagged};

/// Implements `FI_QUEUE_WORK` of a domain.
///
/// # Errors
/// `FI_EINVAL` for an incomplete or contradictory description, or an endpoint without `FI_TRIGGER`.
/// `FI_EDOMAIN` for objects of another domain, `FI_ENOSYS` for an unknown kind of work. Errors of
/// the calls that post such an operation.
///
/// # Safety
/// `work` is null or a description as in fi_trigger(3). The objects it refers to are open. Its
/// buffers belong to the operation until it completed or was cancelled.
pub(crate) unsafe fn queue_work(
    dom: &Arc<DomainShared>,
    work: *const fi::fi_deferred_work,
) -> Result<(), Errno> {
    if !dom.triggers {
        return Err(fi::FI_ENOSYS);
    }
    let id = work.addr();
    // SAFETY: null or a description, by the caller's contract.
    let work = unsafe { work.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: an open counter or null, by the caller's contract.
    let cntr = unsafe { counter(dom, work.triggering_cntr) }?;
    let when = Condition { cntr, threshold: work.threshold, errors: true };
    let completion = if work.completion_cntr.is_null() {
        None
    } else {
        // SAFETY: an open counter, by the caller's contract.
        Some(unsafe { counter(dom, work.completion_cntr) }?)
    };
    let queued = DeferredWork { id, completion };
    match work.op_type {
        fi::FI_OP_CNTR_SET | fi::FI_OP_CNTR_ADD if completion.is_some() => Err(fi::FI_EINVAL),
        fi::FI_OP_CNTR_SET | fi::FI_OP_CNTR_ADD => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.cntr };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            // SAFETY: an open counter or null, by the caller's contract.
            let cntr = unsafe { counter(dom, op.cntr) }?;
            let value = op.value;
            let action = if work.op_type == fi::FI_OP_CNTR_SET {
                Action::Set { cntr, value }
            } else {
                Action::Add { cntr, value }
            };
            let work = Work { action, ep: None, context: 0, flags: 0, queued: Some(queued) };
            triggered::post(&mut dom.gate.lock(), when, work)
        }
        // SAFETY: the caller's contract.
        _ => unsafe { WorkSlot { dom, when, queued }.queue_operation(work) }.map(|_| ()),
    }
}

/// Condition and identity of work to queue.
struct WorkSlot<'a> {
    dom: &'a Arc<DomainShared>,
    when: Condition,
    queued: DeferredWork,
}

impl WorkSlot<'_> {
    /// Returns `ep` for an operation that waits.
    ///
    /// # Safety
    /// `ep` is null or an open endpoint during the lifetime of the result.
    unsafe fn later<'e>(&self, ep: *const fi::fid_ep) -> Result<Later<'e>, Errno> {
        // SAFETY: an open endpoint or null, by the caller's contract.
        let ep = unsafe { object::<Ep, _>(ep) }?;
        entry::check_not_forked(ep.core.creator)?;
        if !Arc::ptr_eq(&ep.core.dom, self.dom) {
            return Err(fi::FI_EDOMAIN);
        }
        if !ep.core.triggers {
            return Err(fi::FI_EINVAL);
        }
        Ok(Later { ep, when: self.when, queued: Some(self.queued) })
    }

    /// Queues a message or a receive.
    ///
    /// # Safety
    /// The contract of [`queue_work`].
    unsafe fn queue_message(&self, work: &fi::fi_deferred_work) -> Result<isize, Errno> {
        match work.op_type {
            fi::FI_OP_SEND | fi::FI_OP_RECV => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.msg };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                if work.op_type == fi::FI_OP_SEND {
                    // SAFETY: the caller's contract.
                    unsafe { msg::transmit(&ep, &op.msg, op.flags) }
                } else {
                    // SAFETY: the caller's contract.
                    unsafe { msg::receive(&ep, &op.msg, op.flags) }
                }
            }
            fi::FI_OP_TSEND | fi::FI_OP_TRECV => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.tagged };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                if work.op_type == fi::FI_OP_TSEND {
                    // SAFETY: the caller's contract.
                    unsafe { tagged::transmit(&ep, &op.msg, op.flags) }
                } else {
                    // SAFETY: the caller's contract.
                    unsafe { tagged::receive(&ep, &op.msg, op.flags) }
                }
            }
            _ => Err(fi::FI_ENOSYS),
        }
    }

    /// Queues an RMA or an atomic operation, or another one of an endpoint.
    ///
    /// # Safety
    /// The contract of [`queue_work`].
    unsafe fn queue_operation(&self, work: &fi::fi_deferred_work) -> Result<isize, Errno> {
        match work.op_type {
            fi::FI_OP_READ | fi::FI_OP_WRITE => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.rma };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                // SAFETY: the caller's contract.
                unsafe { rma::start(&ep, &op.msg, op.flags, work.op_type == fi::FI_OP_WRITE) }
            }
            fi::FI_OP_ATOMIC => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.atomic };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                // SAFETY: the caller's contract.
                unsafe {
                    atomic::start(AtomicKind::Write, &ep, &op.msg, NO_LIST, NO_LIST, op.flags)
                }
            }
            fi::FI_OP_FETCH_ATOMIC => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.fetch_atomic };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                let result = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
                // SAFETY: the caller's contract.
                unsafe { atomic::start(AtomicKind::Fetch, &ep, &op.msg, NO_LIST, result, op.flags) }
            }
            fi::FI_OP_COMPARE_ATOMIC => {
                // SAFETY: the type selects this member; any pointer is a value of it.
                let op = unsafe { work.op.compare_atomic };
                // SAFETY: null or a description, by the caller's contract.
                let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: an open endpoint or null, by the caller's contract.
                let ep = unsafe { self.later(op.ep) }?;
                let compare = (op.compare.msg_iov, op.compare.iov_count);
                let result = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
                // SAFETY: the caller's contract.
                unsafe {
                    atomic::start(AtomicKind::Compare, &ep, &op.msg, compare, result, op.flags)
                }
            }
            // SAFETY: the caller's contract.
            _ => unsafe { self.queue_message(work) },
        }
    }
}

/// Implements `FI_CANCEL_WORK` of a domain: cancels the work queued with the description at this
/// address, if it has not started.
///
/// # Errors
/// `FI_ENOSYS` without the capability, `FI_EINVAL` without a description, `FI_ENOENT` when no such
/// work waits any more.
pub(crate) fn cancel_work(
    dom: &DomainShared,
    work: *const fi::fi_deferred_work,
) -> Result<(), Errno> {
    if !dom.triggers {
        return Err(fi::FI_ENOSYS);
    }
    if work.is_null() {
        return Err(fi::FI_EINVAL);
    }
    let id = work.addr();
    let mut st = dom.gate.lock();
    let taken = st.triggers.take(|_, work| work.queued.is_some_and(|q| q.id == id));
    if taken.is_empty() {
        return Err(fi::FI_ENOENT);
    }
    Ok(())
}

/// Implements `FI_FLUSH_WORK` of a domain: cancels all queued work that has not started, or the
/// work for one counter.
///
/// # Errors
/// `FI_ENOSYS` without the capability, `FI_EINVAL` for an object that is not a counter,
/// `FI_EDOMAIN` for a counter of another domain.
///
/// # Safety
/// `cntr` is null or an open object.
pub(crate) unsafe fn flush_work(
    dom: &Arc<DomainShared>,
    cntr: *const fi::fid_cntr,
) -> Result<(), Errno> {
    if !dom.triggers {
        return Err(fi::FI_ENOSYS);
    }
    let only = if cntr.is_null() {
        None
    } else {
        // SAFETY: the caller's contract.
        Some(unsafe { counter(dom, cntr) }?)
    };
    let mut st = dom.gate.lock();
    st.triggers.take(|cntr, work| work.queued.is_some() && only.is_none_or(|only| only == cntr));
    Ok(())
}
