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
use crate::engine::types::args::{AtomicArgs, RmaIov};
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

/// Defines the entry points with one buffer a list. The arguments before `dest` follow the kind.
/// Inject calls have no `context`.
///
/// Inject calls fail with `-FI_EINVAL` for more than the inject size.
macro_rules! buffer_calls {
    ($($name:ident, $call:literal, $kind:ident, $flags:ident, [$($desc:ident)?]
        [$($compare:ident, $compare_desc:ident)?] [$($result:ident, $result_desc:ident)?]
        [$($context:ident)?];)*
    ) => {$(
        unsafe extern "C" fn $name<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            $($desc: *mut c_void,)?
            $($compare: *const c_void, $compare_desc: *mut c_void,)?
            $($result: *mut c_void, $result_desc: *mut c_void,)?
            dest: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            $($context: *mut c_void,)?
        ) -> isize {
            guard($call, || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                let len = bytes(AtomicKind::$kind, op, datatype, count)?;
                // SAFETY: the buffer belongs to the operation until it completes. An inject call
                // reads it before it returns.
                let operand = unsafe { buffer(buf, len) }?;
                $(
                    // SAFETY: the buffer belongs to the operation until it completes.
                    let $compare = unsafe { buffer($compare, len) }?;
                )?
                $(
                    // SAFETY: the buffer belongs to the operation until it completes.
                    let $result = unsafe { buffer($result, len) }?;
                )?
                let args = AtomicArgs {
                    kind: AtomicKind::$kind,
                    op,
                    datatype,
                    operand: &[operand],
                    compare: &[$($compare)?],
                    result: &[$($result)?],
                    rma: &[RmaIov { addr, len, key }],
                    dest,
                    data: None,
                    context: 0$( | $context.expose_provenance())?,
                    flags: ep.$flags(),
                };
                post(ep, &args)
            })
        }
    )*};
}

buffer_calls! {
    write, "fi_atomic", Write, tx_flags, [_desc] [] [] [context];
    inject, "fi_inject_atomic", Write, inject_flags, [] [] [] [];
    readwrite, "fi_fetch_atomic", Fetch, tx_flags, [_desc] [] [result, _result_desc] [context];
    compwrite, "fi_compare_atomic", Compare, tx_flags, [_desc] [compare, _compare_desc]
        [result, _result_desc] [context];
}

/// Defines the entry points with lists of buffers, plain and in a message. The arguments in
/// parentheses follow the kind. Calls with a message fail with `-FI_EBADFLAGS` for unknown flags.
macro_rules! list_calls {
    ($($name:ident, $call:literal, $msg_name:ident, $msg_call:literal, $kind:ident,
        ($($arg:ident: $type:ty),*),
        compare: $compare:expr, result: $result:expr;)*
    ) => {$(
        unsafe extern "C" fn $name<S: Sender + Object>(
            ep: *mut fid_ep,
            iov: *const fi_ioc,
            _desc: *mut *mut c_void,
            count: usize,
            $($arg: $type,)*
            dest: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut c_void,
        ) -> isize {
            guard($call, || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                let kind = AtomicKind::$kind;
                let size = bytes(kind, op, datatype, 1)?;
                let lists = [$compare, $result];
                // SAFETY: the buffers belong to the operation until it completes.
                let lists = unsafe { Lists::from_ioc(op, (iov, count), lists, size) }?;
                let sized = if kind == AtomicKind::Write { &lists.operand } else { &lists.result };
                let args = AtomicArgs {
                    kind,
                    op,
                    datatype,
                    operand: lists.operand.as_slice(),
                    compare: lists.compare.as_slice(),
                    result: lists.result.as_slice(),
                    rma: &[RmaIov { addr, len: total_len(sized.as_slice()), key }],
                    dest,
                    data: None,
                    context: context.expose_provenance(),
                    flags: ep.tx_flags(),
                };
                post(ep, &args)
            })
        }

        unsafe extern "C" fn $msg_name<S: Sender + Object>(
            ep: *mut fid_ep,
            msg: *const fi_msg_atomic,
            $($arg: $type,)*
            flags: u64,
        ) -> isize {
            guard($msg_call, || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: null or a message of the caller.
                let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: lists of the given lengths, whose buffers belong to the operation until
                // it completes.
                unsafe { start(AtomicKind::$kind, ep, msg, $compare, $result, flags) }
            })
        }
    )*};
}

list_calls! {
    writev, "fi_atomicv", writemsg, "fi_atomicmsg", Write, (),
        compare: NO_LIST, result: NO_LIST;
    readwritev, "fi_fetch_atomicv", readwritemsg, "fi_fetch_atomicmsg", Fetch,
        (result: *mut fi_ioc, _result_desc: *mut *mut c_void, results: usize),
        compare: NO_LIST, result: (result.cast_const(), results);
    compwritev, "fi_compare_atomicv", compwritemsg, "fi_compare_atomicmsg", Compare,
        (compare: *const fi_ioc, _compare_desc: *mut *mut c_void, compares: usize,
         result: *mut fi_ioc, _result_desc: *mut *mut c_void, results: usize),
        compare: (compare, compares), result: (result.cast_const(), results);
}

/// Defines the calls that return the maximum number of elements in one operation.
macro_rules! valid_calls {
    ($($name:ident, $call:literal, $kind:ident;)*) => {$(
        unsafe extern "C" fn $name<S: Object>(
            ep: *mut fid_ep,
            datatype: fi_datatype,
            op: fi_op,
            count: *mut usize,
        ) -> c_int {
            guard_int($call, || {
                // SAFETY: C passes an open endpoint.
                unsafe { object::<S, _>(ep) }?;
                let most = atomic_ops::query_kind(datatype, op, AtomicKind::$kind);
                let (_, most) = expected(fi::FI_EOPNOTSUPP, most)?;
                // SAFETY: null or space for a size.
                unsafe { put(count, most) }
            })
        }
    )*};
}

valid_calls! {
    writevalid, "fi_atomicvalid", Write;
    readwritevalid, "fi_fetch_atomicvalid", Fetch;
    compwritevalid, "fi_compare_atomicvalid", Compare;
}

/// List from C with its length.
pub(crate) type IocList = (*const fi_ioc, usize);
pub(crate) const NO_LIST: IocList = (std::ptr::null(), 0);

/// Posts the operation that `msg` describes.
///
/// # Safety
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
    let operand = (msg.msg_iov, msg.iov_count);
    // SAFETY: the buffers belong to the operation until it completes.
    let lists = unsafe { Lists::from_ioc(msg.op, operand, [compare, result], size) }?;
    // SAFETY: a list of the length given in the message.
    let rma = unsafe { Ranges::from_rma_ioc(msg.rma_iov, msg.rma_iov_count, size) }?;
    rma.total()?;
    let args = AtomicArgs {
        kind,
        op: msg.op,
        datatype: msg.datatype,
        operand: lists.operand.as_slice(),
        compare: lists.compare.as_slice(),
        result: lists.result.as_slice(),
        rma: rma.as_slice(),
        dest: msg.addr,
        data: (flags & fi::FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
        context: msg.context.expose_provenance(),
        flags,
    };
    post(ep, &args)
}

/// Local buffers of a call.
struct Lists {
    operand: Buffers,
    compare: Buffers,
    result: Buffers,
}

impl Lists {
    /// Converts the lists of a call, without the operand of `FI_ATOMIC_READ`, which is ignored.
    ///
    /// # Safety
    /// The contract of [`Buffers::from_ioc`] for each list.
    #[inline]
    unsafe fn from_ioc(
        op: u32,
        operand: IocList,
        [compare, result]: [IocList; 2],
        size: usize,
    ) -> Result<Lists, Errno> {
        let operand = if op == fi::FI_ATOMIC_READ { NO_LIST } else { operand };
        // SAFETY: the caller's contract.
        let convert = |list: IocList| unsafe { Buffers::from_ioc(list.0, list.1, size) };
        Ok(Lists {
            operand: convert(operand)?,
            compare: convert(compare)?,
            result: convert(result)?,
        })
    }
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
