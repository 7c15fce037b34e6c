// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Atomic operations on remote memory: `struct fi_ops_atomic`, from C's arguments to the arguments
//! of the data path.
//!
//! The operations themselves are in `atomic_ops`. Every list of a call has the same number of
//! elements, at most [`MAX_ATOMIC_BYTES`] of them in bytes. `FI_ATOMIC_READ` takes no operand. The
//! `desc` arguments are ignored. Calls with an undefined combination of operation and datatype fail
//! with `-FI_EOPNOTSUPP`.
//!
//! Mirrors fi_atomic(3).

use std::ffi::{c_int, c_void};

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fid_ep};
use scif_ring::{Mem, total_len};

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::atomic_ops::{self, MAX_ATOMIC_BYTES};
use crate::base::buffers::{Buffers, buffer};
use crate::base::entry::{Object, guard, guard_int, object, put};
use crate::base::errno::Errno;
use crate::base::reason::expected;
use crate::engine::types::args::AtomicArgs;
use crate::engine::types::args::RmaIov;
use crate::objects::endpoint::context::TxCtx;
use crate::objects::endpoint::ep::Ep;
use crate::objects::endpoint::transfer::{Ranges, Sender};
use crate::objects::endpoint::trigger::Triggered;

pub(crate) static OPS: fi::fi_ops_atomic = ops::<Ep>();
/// Operations of an endpoint with triggered operations.
pub(crate) static TRIGGER_OPS: fi::fi_ops_atomic = ops::<Triggered>();
/// Operations of a transmit context.
pub(crate) static TX_CTX_OPS: fi::fi_ops_atomic = ops::<TxCtx>();

const fn ops<S: Sender + Object>() -> fi::fi_ops_atomic {
    fi::fi_ops_atomic {
        size: size_of::<fi::fi_ops_atomic>(),
        write: write::<S>,
        writev: writev::<S>,
        writemsg: writemsg::<S>,
        inject: inject::<S>,
        readwrite: readwrite::<S>,
        readwritev: readwritev::<S>,
        readwritemsg: readwritemsg::<S>,
        compwrite: compwrite::<S>,
        compwritev: compwritev::<S>,
        compwritemsg: compwritemsg::<S>,
        writevalid: writevalid::<S>,
        readwritevalid: readwritevalid::<S>,
        compwritevalid: compwritevalid::<S>,
    }
}

/// `fi_atomic`
unsafe extern "C" fn write<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_atomic", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let len = bytes(AtomicKind::Write, op, datatype, count)?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let operand = unsafe { buffer(buf, len) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Write,
            op,
            datatype,
            operand: &[operand],
            compare: &[],
            result: &[],
            rma: &[RmaIov { addr, len, key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_atomicv`
unsafe extern "C" fn writev<S: Sender + Object>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_atomicv", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let size = bytes(AtomicKind::Write, op, datatype, 1)?;
        // SAFETY: the buffers belong to the operation until it completes.
        let operand = unsafe { Buffers::from_ioc(iov, count, size) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Write,
            op,
            datatype,
            operand: operand.as_slice(),
            compare: &[],
            result: &[],
            rma: &[RmaIov { addr, len: total_len(operand.as_slice()), key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_atomicmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags.
unsafe extern "C" fn writemsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: C passes an open endpoint, and a message or null. The call has no lists of its own.
    guard("fi_atomicmsg", || unsafe {
        post_msg::<S>(AtomicKind::Write, ep, msg, NO_LIST, NO_LIST, flags)
    })
}

/// `fi_inject_atomic`
///
/// # Errors
/// `-FI_EINVAL` for more than the inject size.
unsafe extern "C" fn inject<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    guard("fi_inject_atomic", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let len = bytes(AtomicKind::Write, op, datatype, count)?;
        // SAFETY: the buffer is read before this call returns.
        let operand = unsafe { buffer(buf, len) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Write,
            op,
            datatype,
            operand: &[operand],
            compare: &[],
            result: &[],
            rma: &[RmaIov { addr, len, key }],
            dest,
            data: None,
            context: 0,
            flags: ep.inject_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_fetch_atomic`
unsafe extern "C" fn readwrite<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_fetch_atomic", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let len = bytes(AtomicKind::Fetch, op, datatype, count)?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let operand = unsafe { buffer(buf, len) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let result = unsafe { buffer(result, len) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Fetch,
            op,
            datatype,
            operand: &[operand],
            compare: &[],
            result: &[result],
            rma: &[RmaIov { addr, len, key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_fetch_atomicv`
unsafe extern "C" fn readwritev<S: Sender + Object>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_fetch_atomicv", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let size = bytes(AtomicKind::Fetch, op, datatype, 1)?;
        // SAFETY: the buffers belong to the operation until it completes.
        let operand = unsafe { operands(op, iov, count, size) }?;
        // SAFETY: the buffers belong to the operation until it completes.
        let result = unsafe { Buffers::from_ioc(resultv, result_count, size) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Fetch,
            op,
            datatype,
            operand: operand.as_slice(),
            compare: &[],
            result: result.as_slice(),
            rma: &[RmaIov { addr, len: total_len(result.as_slice()), key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_fetch_atomicmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags.
unsafe extern "C" fn readwritemsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = (resultv.cast_const(), result_count);
    // SAFETY: C passes an open endpoint, a message or null, and a list of the given length.
    guard("fi_fetch_atomicmsg", || unsafe {
        post_msg::<S>(AtomicKind::Fetch, ep, msg, NO_LIST, result, flags)
    })
}

/// `fi_compare_atomic`
unsafe extern "C" fn compwrite<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_compare_atomic", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let len = bytes(AtomicKind::Compare, op, datatype, count)?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let operand = unsafe { buffer(buf, len) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let compare = unsafe { buffer(compare, len) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let result = unsafe { buffer(result, len) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Compare,
            op,
            datatype,
            operand: &[operand],
            compare: &[compare],
            result: &[result],
            rma: &[RmaIov { addr, len, key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_compare_atomicv`
unsafe extern "C" fn compwritev<S: Sender + Object>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard("fi_compare_atomicv", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        let size = bytes(AtomicKind::Compare, op, datatype, 1)?;
        // SAFETY: the buffers belong to the operation until it completes.
        let operand = unsafe { Buffers::from_ioc(iov, count, size) }?;
        // SAFETY: the buffers belong to the operation until it completes.
        let compare = unsafe { Buffers::from_ioc(comparev, compare_count, size) }?;
        // SAFETY: the buffers belong to the operation until it completes.
        let result = unsafe { Buffers::from_ioc(resultv, result_count, size) }?;
        let args = AtomicArgs {
            kind: AtomicKind::Compare,
            op,
            datatype,
            operand: operand.as_slice(),
            compare: compare.as_slice(),
            result: result.as_slice(),
            rma: &[RmaIov { addr, len: total_len(result.as_slice()), key }],
            dest,
            data: None,
            context: context.expose_provenance(),
            flags: ep.tx_flags(),
        };
        post(ep, &args)
    })
}

/// `fi_compare_atomicmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags.
unsafe extern "C" fn compwritemsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compare, result) = ((comparev, compare_count), (resultv.cast_const(), result_count));
    // SAFETY: C passes an open endpoint, a message or null, and lists of the given lengths.
    guard("fi_compare_atomicmsg", || unsafe {
        post_msg::<S>(AtomicKind::Compare, ep, msg, compare, result, flags)
    })
}

/// `fi_atomicvalid`
unsafe extern "C" fn writevalid<S: Object>(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    guard_int("fi_atomicvalid", || {
        // SAFETY: C passes an open endpoint.
        unsafe { object::<S, _>(ep) }?;
        // SAFETY: null or space for a size.
        unsafe { put(count, expected(fi::FI_EOPNOTSUPP, most(AtomicKind::Write, op, datatype))?) }
    })
}

/// `fi_fetch_atomicvalid`
unsafe extern "C" fn readwritevalid<S: Object>(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    guard_int("fi_fetch_atomicvalid", || {
        // SAFETY: C passes an open endpoint.
        unsafe { object::<S, _>(ep) }?;
        // SAFETY: null or space for a size.
        unsafe { put(count, expected(fi::FI_EOPNOTSUPP, most(AtomicKind::Fetch, op, datatype))?) }
    })
}

/// `fi_compare_atomicvalid`
unsafe extern "C" fn compwritevalid<S: Object>(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    guard_int("fi_compare_atomicvalid", || {
        // SAFETY: C passes an open endpoint.
        unsafe { object::<S, _>(ep) }?;
        // SAFETY: null or space for a size.
        unsafe { put(count, expected(fi::FI_EOPNOTSUPP, most(AtomicKind::Compare, op, datatype))?) }
    })
}

/// List from C with its length.
pub(crate) type IocList = (*const fi_ioc, usize);
pub(crate) const NO_LIST: IocList = (std::ptr::null(), 0);

/// Implements the `*msg` calls.
///
/// # Safety
///
/// `ep` is an open endpoint. `msg` is null or a message whose lists have the lengths given in it.
/// `compare` and `result` have the lengths beside their pointers.
unsafe fn post_msg<S: Sender + Object>(
    kind: AtomicKind,
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compare: IocList,
    result: IocList,
    flags: u64,
) -> Result<isize, Errno> {
    // SAFETY: an open endpoint, by the caller's contract.
    let ep = unsafe { object::<S, _>(ep) }?;
    // SAFETY: null or a message, by the caller's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: the caller's contract.
    unsafe { start(kind, ep, msg, compare, result, flags) }
}

/// Posts the operation that `msg` describes.
///
/// # Errors
///
/// Errors of `fi_atomicmsg` and the similar calls.
///
/// # Safety
///
/// The lists of `msg` have the lengths given in it, `compare` and `result` the lengths beside their
/// pointers. The buffers belong to the operation until it completes.
pub(crate) unsafe fn start<S: Sender>(
    kind: AtomicKind,
    ep: &S,
    msg: &fi_msg_atomic,
    compare: IocList,
    result: IocList,
    flags: u64,
) -> Result<isize, Errno> {
    let flags = ep.tx_msg_flags(flags)?;
    let size = bytes(kind, msg.op, msg.datatype, 1)?;
    // SAFETY: the buffers belong to the operation until it completes.
    let operand = unsafe { operands(msg.op, msg.msg_iov, msg.iov_count, size) }?;
    // SAFETY: the buffers belong to the operation until it completes.
    let compare = unsafe { Buffers::from_ioc(compare.0, compare.1, size) }?;
    // SAFETY: the buffers belong to the operation until it completes.
    let result = unsafe { Buffers::from_ioc(result.0, result.1, size) }?;
    // SAFETY: a list of the length given in the message.
    let rma = unsafe { Ranges::from_rma_ioc(msg.rma_iov, msg.rma_iov_count, size) }?;
    rma.total()?;
    let args = AtomicArgs {
        kind,
        op: msg.op,
        datatype: msg.datatype,
        operand: operand.as_slice(),
        compare: compare.as_slice(),
        result: result.as_slice(),
        rma: rma.as_slice(),
        dest: msg.addr,
        data: (flags & fi::FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
        context: msg.context.expose_provenance(),
        flags,
    };
    post(ep, &args)
}

/// Converts the operand list, which is ignored for `FI_ATOMIC_READ`.
///
/// # Safety
///
/// The contract of [`Buffers::from_ioc`].
unsafe fn operands(
    op: u32,
    iov: *const fi_ioc,
    count: usize,
    size: usize,
) -> Result<Buffers, Errno> {
    if op == fi::FI_ATOMIC_READ {
        return Ok(Buffers::none());
    }
    // SAFETY: the caller's contract.
    unsafe { Buffers::from_ioc(iov, count, size) }
}

/// Returns the size in bytes of `count` elements, for a valid combination of operation and
/// datatype.
#[inline]
fn bytes(kind: AtomicKind, op: u32, datatype: u32, count: usize) -> Result<usize, Errno> {
    if !atomic_ops::valid(op, datatype, kind) {
        return Err(fi::FI_EOPNOTSUPP);
    }
    let size = atomic_ops::size_of(datatype).ok_or(fi::FI_EOPNOTSUPP)?;
    count.checked_mul(size).ok_or(fi::FI_EINVAL)
}

/// Returns the maximum number of elements in one call.
fn most(kind: AtomicKind, op: u32, datatype: u32) -> Result<usize, Errno> {
    atomic_ops::query_kind(datatype, op, kind).map(|(_, count)| count)
}

/// Checks that the lists have equal lengths, and posts the operation.
fn post<S: Sender>(ep: &S, args: &AtomicArgs<'_>) -> Result<isize, Errno> {
    let len = args.rma.iter().map(|r| r.len).sum();
    let fits = |list: &[Mem]| total_len(list) == len;
    let read = args.op == fi::FI_ATOMIC_READ;
    let agree = (1..=MAX_ATOMIC_BYTES).contains(&len)
        && (read || fits(args.operand))
        && (args.kind != AtomicKind::Compare || fits(args.compare))
        && (args.kind == AtomicKind::Write || fits(args.result));
    if !agree {
        return Err(fi::FI_EINVAL);
    }
    if read { ep.atomic(&AtomicArgs { operand: &[], ..*args }) } else { ep.atomic(args) }
}
