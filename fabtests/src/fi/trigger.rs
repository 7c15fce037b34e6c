// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Triggered operations (fi_trigger(3)): calls with `FI_TRIGGER`, and work queued to a domain.
//!
//! Descriptions are never freed, because the provider may read them until the work is done.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::{Mutex, PoisonError};

use libfabric_sys as sys;

use super::buf::Buf;
use super::cntr::Cntr;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::Fid;
use super::one_sided::{AtomicTarget, RmaIov};

/// Operation that starts when the counter reaches its threshold.
#[derive(Debug, Clone, Copy)]
pub enum Operation<'a> {
    Send {
        buf: Buf,
        dest: u64,
        /// Tag of a tagged message.
        tag: Option<u64>,
    },
    Recv {
        buf: Buf,
        tag: Option<u64>,
    },
    Read {
        buf: Buf,
        dest: u64,
        remote: RmaIov,
    },
    Write {
        buf: Buf,
        dest: u64,
        remote: RmaIov,
    },
    /// Atomic operation on one element.
    Atomic {
        target: AtomicTarget,
        operand: Buf,
    },
    Fetch {
        target: AtomicTarget,
        operand: Buf,
        result: Buf,
    },
    Compare {
        target: AtomicTarget,
        operand: Buf,
        compare: Buf,
        result: Buf,
    },
    Set {
        cntr: &'a Cntr,
        value: u64,
    },
    Add {
        cntr: &'a Cntr,
        value: u64,
    },
}

/// Parameters of work for a domain.
#[derive(Debug, Clone, Copy)]
pub struct WorkRequest<'a> {
    pub cntr: &'a Cntr,
    pub threshold: u64,
    pub completion: Option<&'a Cntr>,
    pub context: usize,
    pub flags: u64,
}

/// Queued work, identified by its description.
#[derive(Debug, Clone, Copy)]
pub struct Work(*mut sys::fi_deferred_work);

/// Returns a context for a call with `FI_TRIGGER`: the operation waits until `cntr` reaches
/// `threshold`.
pub fn when(cntr: &Cntr, threshold: u64) -> Result<Buf> {
    when_event(sys::FI_TRIGGER_THRESHOLD, cntr.object.raw()?, threshold)
}

/// Returns a context that names an event and no counter.
pub fn when_nothing(event: u32) -> Result<Buf> {
    when_event(event, ptr::null_mut(), 0)
}

fn when_event(event: u32, cntr: *mut sys::fid_cntr, threshold: u64) -> Result<Buf> {
    let context = Buf::new(size_of::<sys::fi_triggered_context2>());
    context.put(0, &event.to_ne_bytes());
    context.put(8, &cntr.expose_provenance().to_ne_bytes());
    context.put(16, &threshold.to_ne_bytes());
    Ok(context)
}

/// Addresses of the descriptions, without which memcheck reports them as lost.
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn leak<T>(value: T) -> *mut T {
    let kept = Box::into_raw(Box::new(value));
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept.addr());
    kept
}

fn iov(buf: Buf) -> *const sys::iovec {
    leak(sys::iovec { iov_base: buf.ptr().cast(), iov_len: buf.len() })
}

fn ioc(buf: Buf) -> *mut sys::fi_ioc {
    leak(sys::fi_ioc { addr: buf.ptr().cast(), count: 1 })
}

fn message(buf: Buf, addr: u64, context: usize) -> sys::fi_msg {
    sys::fi_msg {
        msg_iov: iov(buf),
        desc: ptr::null_mut(),
        iov_count: 1,
        addr,
        context: ptr::without_provenance_mut(context),
        data: 0,
    }
}

fn tagged(buf: Buf, addr: u64, tag: u64, context: usize) -> sys::fi_msg_tagged {
    sys::fi_msg_tagged {
        msg_iov: iov(buf),
        desc: ptr::null_mut(),
        iov_count: 1,
        addr,
        tag,
        ignore: 0,
        context: ptr::without_provenance_mut(context),
        data: 0,
    }
}

fn access(buf: Buf, addr: u64, remote: RmaIov, context: usize) -> sys::fi_msg_rma {
    sys::fi_msg_rma {
        msg_iov: iov(buf),
        desc: ptr::null_mut(),
        iov_count: 1,
        addr,
        rma_iov: leak(sys::fi_rma_iov { addr: remote.addr, len: remote.len, key: remote.key }),
        rma_iov_count: 1,
        context: ptr::without_provenance_mut(context),
        data: 0,
    }
}

fn atomic(operand: Buf, target: AtomicTarget, context: usize) -> sys::fi_msg_atomic {
    sys::fi_msg_atomic {
        msg_iov: ioc(operand),
        desc: ptr::null_mut(),
        iov_count: 1,
        addr: target.dest,
        rma_iov: leak(sys::fi_rma_ioc { addr: target.addr, count: 1, key: target.key }),
        rma_iov_count: 1,
        datatype: target.datatype,
        op: target.op,
        context: ptr::without_provenance_mut(context),
        data: 0,
    }
}

fn fetch(result: Buf) -> sys::fi_msg_fetch {
    sys::fi_msg_fetch { msg_iov: ioc(result), desc: ptr::null_mut(), iov_count: 1 }
}

/// Returns the type of work for an operation, and its description.
fn describe(
    ep: *mut sys::fid_ep,
    spec: &WorkRequest<'_>,
    operation: Operation<'_>,
) -> Result<(u32, sys::fi_deferred_op)> {
    let (context, flags) = (spec.context, spec.flags);
    let counter = |cntr: &Cntr, value| -> Result<sys::fi_deferred_op> {
        Ok(sys::fi_deferred_op { cntr: leak(sys::fi_op_cntr { cntr: cntr.object.raw()?, value }) })
    };
    let untagged = |msg| sys::fi_deferred_op { msg: leak(sys::fi_op_msg { ep, msg, flags }) };
    let with_tag = |msg| sys::fi_deferred_op { tagged: leak(sys::fi_op_tagged { ep, msg, flags }) };
    let rma = |msg| sys::fi_deferred_op { rma: leak(sys::fi_op_rma { ep, msg, flags }) };
    Ok(match operation {
        Operation::Send { buf, dest, tag: None } => {
            (sys::FI_OP_SEND, untagged(message(buf, dest, context)))
        }
        Operation::Send { buf, dest, tag: Some(tag) } => {
            (sys::FI_OP_TSEND, with_tag(tagged(buf, dest, tag, context)))
        }
        Operation::Recv { buf, tag: None } => {
            let msg = message(buf, sys::FI_ADDR_UNSPEC, context);
            (sys::FI_OP_RECV, untagged(msg))
        }
        Operation::Recv { buf, tag: Some(tag) } => {
            let msg = tagged(buf, sys::FI_ADDR_UNSPEC, tag, context);
            (sys::FI_OP_TRECV, with_tag(msg))
        }
        Operation::Read { buf, dest, remote } => {
            (sys::FI_OP_READ, rma(access(buf, dest, remote, context)))
        }
        Operation::Write { buf, dest, remote } => {
            (sys::FI_OP_WRITE, rma(access(buf, dest, remote, context)))
        }
        Operation::Atomic { target, operand } => {
            let msg = atomic(operand, target, context);
            let atomic = leak(sys::fi_op_atomic { ep, msg, flags });
            (sys::FI_OP_ATOMIC, sys::fi_deferred_op { atomic })
        }
        Operation::Fetch { target, operand, result } => {
            let fetch_atomic = leak(sys::fi_op_fetch_atomic {
                ep,
                msg: atomic(operand, target, context),
                fetch: fetch(result),
                flags,
            });
            (sys::FI_OP_FETCH_ATOMIC, sys::fi_deferred_op { fetch_atomic })
        }
        Operation::Compare { target, operand, compare, result } => {
            let compare_atomic = leak(sys::fi_op_compare_atomic {
                ep,
                msg: atomic(operand, target, context),
                fetch: fetch(result),
                compare: sys::fi_msg_compare {
                    msg_iov: ioc(compare),
                    desc: ptr::null_mut(),
                    iov_count: 1,
                },
                flags,
            });
            (sys::FI_OP_COMPARE_ATOMIC, sys::fi_deferred_op { compare_atomic })
        }
        Operation::Set { cntr, value } => (sys::FI_OP_CNTR_SET, counter(cntr, value)?),
        Operation::Add { cntr, value } => (sys::FI_OP_CNTR_ADD, counter(cntr, value)?),
    })
}

impl Domain {
    /// `fi_control(FI_QUEUE_WORK)`. Counter operations receive the endpoint as well, though they
    /// need none.
    pub fn queue_work(
        &self,
        ep: &Ep,
        spec: &WorkRequest<'_>,
        operation: Operation<'_>,
    ) -> Result<Work> {
        let (op_type, op) = describe(ep.object.raw()?, spec, operation)?;
        self.queue_raw(spec, op_type, op)
    }

    /// `fi_control(FI_QUEUE_WORK)` with an unknown type of work.
    pub fn queue_invalid(&self, spec: &WorkRequest<'_>, op_type: u32) -> Result<Work> {
        let op = sys::fi_deferred_op { msg: ptr::null_mut() };
        self.queue_raw(spec, op_type, op)
    }

    fn queue_raw(
        &self,
        spec: &WorkRequest<'_>,
        op_type: u32,
        op: sys::fi_deferred_op,
    ) -> Result<Work> {
        let completion = spec.completion.map(|c| c.object.raw()).transpose()?;
        let work = leak(sys::fi_deferred_work {
            context: sys::fi_context2 { internal: [ptr::null_mut(); 8] },
            threshold: spec.threshold,
            triggering_cntr: spec.cntr.object.raw()?,
            completion_cntr: completion.unwrap_or(ptr::null_mut()),
            op_type,
            op,
        });
        self.work(sys::FI_QUEUE_WORK, work.cast())?;
        Ok(Work(work))
    }

    /// `fi_control(FI_CANCEL_WORK)`.
    pub fn cancel_work(&self, work: Work) -> Result {
        self.work(sys::FI_CANCEL_WORK, work.0.cast())
    }

    /// `fi_control(FI_FLUSH_WORK)` of all work, or of the work that waits for one counter.
    pub fn flush_work(&self, cntr: Option<&Cntr>) -> Result {
        let cntr = cntr.map(|c| c.object.raw()).transpose()?;
        self.work(sys::FI_FLUSH_WORK, cntr.unwrap_or(ptr::null_mut()).cast())
    }

    fn work(&self, command: i32, arg: *mut std::ffi::c_void) -> Result {
        let fid = self.object.raw_fid()?;
        let control = self.base_ops()?.control;
        // SAFETY: the domain is open; the argument has the type of the command and is never freed.
        Errno::check_int(unsafe { control(fid, command, arg) }).map(drop)
    }
}
