// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "reads conditions and work requests of C")]
//! Conversion of operations that wait for a counter from C descriptions to descriptions of
//! [`triggered`]: calls with `FI_TRIGGER`, and work queued to a domain.
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

use super::ep::{Ep, Handle};
use super::flags::{CLASSES, RX_MSG_FLAGS, TX_MSG_FLAGS};
use super::prefix;
use super::transfer::{Receiver, Sender};
use crate::base::entry::{self, Object, object};
use crate::base::errno::Errno;
use crate::domain::triggers::{Action, Condition, DeferredWork, Work};
use crate::domain::{DomainShared, triggered};
use crate::engine::types::args::{AtomicArgs, RecvArgs, RmaArgs, SendArgs};
use crate::engine::types::iov::Iov;
use crate::objects::cntr::Cntr;

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
pub(crate) unsafe fn counter(
    dom: &Arc<DomainShared>,
    cntr: *const fi::fid_cntr,
) -> Result<u32, Errno> {
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
        let posted = self.0.rma_out_of_line(args);
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
pub(crate) struct Later<'a> {
    pub(crate) ep: &'a Ep,
    pub(crate) when: Condition,
    pub(crate) queued: Option<DeferredWork>,
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
