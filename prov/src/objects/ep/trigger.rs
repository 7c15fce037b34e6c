// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "reads conditions and work requests of C")]
//! Conversion of operations that wait for a counter from C descriptions to descriptions of
//! [`deferred`]: calls with `FI_TRIGGER`, and work queued to a domain.
//!
//! Endpoints opened with the capability `FI_TRIGGER` have operation tables of their own; the others
//! pay no cost. A description is copied when it is posted, so only the buffers it refers to must
//! stay valid. A call with `FI_TRIGGER` takes its condition from a `struct fi_triggered_context`
//! and completes like any other operation. Queued work completes in its own counter. It completes
//! at its endpoint only if its flags request that, or when it fails.
//!
//! A waiting operation cannot be injected, since its buffer is read when it starts. Calls with
//! peek, claim or discard cannot wait.
//!
//! Mirrors fi_trigger(3).

use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;

use super::post::{CLASSES, RX_MSG_FLAGS, Receiver, Sender, TX_MSG_FLAGS};
use super::prefix;
use super::{Ep, Handle};
use crate::base::atomic_ops::element::AtomicKind;
use crate::base::entry::{self, Object, object};
use crate::base::errno::Errno;
use crate::domain::DomainShared;
use crate::domain::triggered;
use crate::domain::triggers::Action;
use crate::domain::triggers::Condition;
use crate::domain::triggers::DeferredWork;
use crate::domain::triggers::Work;
use crate::engine::types::args::AtomicArgs;
use crate::engine::types::args::RecvArgs;
use crate::engine::types::args::RmaArgs;
use crate::engine::types::args::SendArgs;
use crate::engine::types::iov::Iov;
use crate::objects::atomic::{self, NO_LIST};
use crate::objects::cntr::Cntr;
use crate::objects::{msg, rma, tagged};

/// Flags of receives that query or take an unexpected message and cannot wait.
const LOOKS: u64 = fi::FI_PEEK | fi::FI_CLAIM | fi::FI_DISCARD;

/// Endpoint opened with triggered operations.
#[repr(transparent)]
pub(crate) struct Triggered(Ep);

// SAFETY: a transparent wrapper of an endpoint; all such objects are of the class of endpoints.
unsafe impl Object for Triggered {
    const FCLASS: usize = <Ep as Object>::FCLASS;
}

impl Triggered {
    /// Starts the triggered operations that are due, since the call may have changed a counter.
    fn settle(&self) {
        // In a forked child the call has failed, and the lock belongs to the parent.
        if entry::check_not_forked(self.0.core.creator).is_ok() {
            triggered::run(&mut self.0.core.dom.gate.lock());
        }
    }

    /// Returns the endpoint for an operation that waits for the condition in its context.
    fn later(&self, context: usize) -> Result<Later<'_>, Errno> {
        entry::check_not_forked(self.0.core.creator)?;
        // SAFETY: with FI_TRIGGER a call passes a struct fi_triggered_context, by the contract of
        // fi_trigger(3).
        let when = unsafe { condition(&self.0.core.dom, context) }?;
        Ok(Later { ep: &self.0, when, queued: None })
    }
}

/// Reads the condition that a context describes.
///
/// # Safety
/// `context` is null or the address of a `struct fi_triggered_context`, whose counter is open.
unsafe fn condition(dom: &Arc<DomainShared>, context: usize) -> Result<Condition, Errno> {
    let context = ptr::with_exposed_provenance::<fi::fi_triggered_context>(context);
    if !context.is_aligned() {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: null or a context that is valid until its operation completes, by the caller's
    // contract.
    let context = unsafe { context.as_ref() }.ok_or(fi::FI_EINVAL)?;
    if context.event_type != fi::FI_TRIGGER_THRESHOLD {
        return Err(fi::FI_ENOSYS);
    }
    // SAFETY: the event type selects this member; any bytes are a value of it.
    let threshold = unsafe { context.trigger.threshold };
    // SAFETY: an open counter or null, by the caller's contract.
    let cntr = unsafe { counter(dom, threshold.cntr) }?;
    Ok(Condition { cntr, threshold: threshold.threshold as u64, errors: false })
}

/// Returns the index of a counter of this domain.
///
/// # Safety
/// `cntr` is null or an open counter.
unsafe fn counter(dom: &Arc<DomainShared>, cntr: *const fi::fid_cntr) -> Result<u32, Errno> {
    // SAFETY: the caller's contract.
    let cntr = unsafe { object::<Cntr, _>(cntr) }?;
    if !Arc::ptr_eq(cntr.domain(), dom) {
        return Err(fi::FI_EDOMAIN);
    }
    Ok(cntr.index())
}

impl Handle for Triggered {
    fn ep(&self) -> &Ep {
        &self.0
    }
}

impl Sender for Triggered {
    fn tx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        Ok(self.0.tx_msg_flags(flags & !fi::FI_TRIGGER)? | flags & fi::FI_TRIGGER)
    }

    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        if args.flags & fi::FI_TRIGGER != 0 {
            return self.later(args.context)?.send(args);
        }
        let iov = prefix::message(&self.0, args.iov)?;
        let posted = self.0.send(&SendArgs { iov: iov.as_slice(), ..*args });
        self.settle();
        posted
    }

    fn rma(&self, args: &RmaArgs<'_>) -> Result<isize, Errno> {
        if args.flags & fi::FI_TRIGGER != 0 {
            return self.later(args.context)?.rma(args);
        }
        let posted = self.0.rma(args);
        self.settle();
        posted
    }

    fn atomic(&self, args: &AtomicArgs<'_>) -> Result<isize, Errno> {
        if args.flags & fi::FI_TRIGGER != 0 {
            return self.later(args.context)?.atomic(args);
        }
        let posted = self.0.atomic(args);
        self.settle();
        posted
    }
}

impl Receiver for Triggered {
    fn rx_flags(&self) -> u64 {
        self.0.rx_flags()
    }

    fn rx_always(&self) -> u64 {
        self.0.rx_always()
    }

    fn rx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        if flags & fi::FI_TRIGGER != 0 && flags & LOOKS != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        Ok(self.0.rx_msg_flags(flags & !fi::FI_TRIGGER)? | flags & fi::FI_TRIGGER)
    }

    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        if args.flags & fi::FI_TRIGGER != 0 {
            return self.later(args.context)?.recv(args);
        }
        if self.0.core.prefixed {
            prefix::check_recv(args)?;
        }
        let posted = if args.flags & (fi::FI_PEEK | fi::FI_DISCARD) == 0 {
            let iov = prefix::message(&self.0, args.iov)?;
            self.0.recv(&RecvArgs { iov: iov.as_slice(), ..*args })
        } else {
            self.0.recv(args)
        };
        self.settle();
        posted
    }
}

/// Endpoint for operations that wait for a counter: posting to it queues.
struct Later<'a> {
    ep: &'a Ep,
    when: Condition,
    queued: Option<DeferredWork>,
}

impl Later<'_> {
    fn post(&self, action: Action, context: usize, flags: u64) -> Result<isize, Errno> {
        if flags & fi::FI_INJECT != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        let work = Work {
            action,
            ep: Some(self.ep.core.idx()),
            context,
            flags: flags & !fi::FI_TRIGGER,
            queued: self.queued,
        };
        triggered::post(&mut self.ep.core.dom.gate.lock(), self.when, work)?;
        Ok(0)
    }
}

impl Handle for Later<'_> {
    fn ep(&self) -> &Ep {
        self.ep
    }
}

impl Sender for Later<'_> {
    /// Returns the flags without an implied `FI_COMPLETION`: queued work completes at its endpoint
    /// only on request.
    fn tx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        if flags & !(TX_MSG_FLAGS | CLASSES) != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        Ok(flags & TX_MSG_FLAGS)
    }

    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        let action = Action::Send {
            iov: Iov::new(prefix::message(self.ep, args.iov)?.as_slice()),
            tag: args.tag,
            data: args.data,
            dest: args.dest,
        };
        self.post(action, args.context, args.flags)
    }

    fn rma(&self, args: &RmaArgs<'_>) -> Result<isize, Errno> {
        let action = Action::Rma {
            write: args.write,
            iov: Iov::new(args.iov),
            rma: args.rma.to_vec(),
            data: args.data,
            dest: args.dest,
        };
        self.post(action, args.context, args.flags)
    }

    fn atomic(&self, args: &AtomicArgs<'_>) -> Result<isize, Errno> {
        let action = Action::Atomic {
            kind: args.kind,
            op: args.op,
            datatype: args.datatype,
            lists: [args.operand, args.compare, args.result].map(Iov::list),
            rma: args.rma.to_vec(),
            data: args.data,
            dest: args.dest,
        };
        self.post(action, args.context, args.flags)
    }
}

impl Receiver for Later<'_> {
    fn rx_flags(&self) -> u64 {
        0
    }

    fn rx_always(&self) -> u64 {
        0
    }

    fn rx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        if flags & !(RX_MSG_FLAGS | CLASSES) != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        // A multi-receive buffer has no single completion to report.
        if flags & (LOOKS | fi::FI_MULTI_RECV) != 0 {
            return Err(fi::FI_ENOSYS);
        }
        Ok(flags & RX_MSG_FLAGS)
    }

    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        if self.ep.core.prefixed {
            prefix::check_recv(args)?;
        }
        if args.flags & fi::FI_MULTI_RECV != 0 && args.iov.len() != 1 {
            return Err(fi::FI_EINVAL);
        }
        let action = Action::Recv {
            iov: Iov::new(prefix::message(self.ep, args.iov)?.as_slice()),
            tag: args.tag,
            src: args.src,
        };
        self.post(action, args.context, args.flags)
    }
}

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
        _ => unsafe { queue_operation(dom, work, when, queued) },
    }
}

/// Handles the part of [`queue_work`] for work of endpoints.
///
/// # Safety
/// The contract of [`queue_work`].
unsafe fn queue_operation(
    dom: &Arc<DomainShared>,
    work: &fi::fi_deferred_work,
    when: Condition,
    queued: DeferredWork,
) -> Result<(), Errno> {
    let later = |ep: *mut fi::fid_ep| {
        // SAFETY: an open endpoint or null, by the caller's contract.
        let ep = unsafe { object::<Ep, _>(ep) }?;
        entry::check_not_forked(ep.core.creator)?;
        if !Arc::ptr_eq(&ep.core.dom, dom) {
            return Err(fi::FI_EDOMAIN);
        }
        if !ep.core.triggers {
            return Err(fi::FI_EINVAL);
        }
        Ok(Later { ep, when, queued: Some(queued) })
    };
    let posted = match work.op_type {
        fi::FI_OP_SEND | fi::FI_OP_RECV => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.msg };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            let ep = later(op.ep)?;
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
            let ep = later(op.ep)?;
            if work.op_type == fi::FI_OP_TSEND {
                // SAFETY: the caller's contract.
                unsafe { tagged::transmit(&ep, &op.msg, op.flags) }
            } else {
                // SAFETY: the caller's contract.
                unsafe { tagged::receive(&ep, &op.msg, op.flags) }
            }
        }
        fi::FI_OP_READ | fi::FI_OP_WRITE => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.rma };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            // SAFETY: the caller's contract.
            unsafe {
                rma::start(&later(op.ep)?, &op.msg, op.flags, work.op_type == fi::FI_OP_WRITE)
            }
        }
        fi::FI_OP_ATOMIC => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.atomic };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            let ep = later(op.ep)?;
            // SAFETY: the caller's contract.
            unsafe { atomic::start(AtomicKind::Write, &ep, &op.msg, NO_LIST, NO_LIST, op.flags) }
        }
        fi::FI_OP_FETCH_ATOMIC => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.fetch_atomic };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            let ep = later(op.ep)?;
            let result = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
            // SAFETY: the caller's contract.
            unsafe { atomic::start(AtomicKind::Fetch, &ep, &op.msg, NO_LIST, result, op.flags) }
        }
        fi::FI_OP_COMPARE_ATOMIC => {
            // SAFETY: the type selects this member; any pointer is a value of it.
            let op = unsafe { work.op.compare_atomic };
            // SAFETY: null or a description, by the caller's contract.
            let op = unsafe { op.as_ref() }.ok_or(fi::FI_EINVAL)?;
            let ep = later(op.ep)?;
            let compare = (op.compare.msg_iov, op.compare.iov_count);
            let result = (op.fetch.msg_iov.cast_const(), op.fetch.iov_count);
            // SAFETY: the caller's contract.
            unsafe { atomic::start(AtomicKind::Compare, &ep, &op.msg, compare, result, op.flags) }
        }
        _ => Err(fi::FI_ENOSYS),
    };
    posted.map(|_| ())
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
