// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Remote memory access: `struct fi_ops_rma`, from C's arguments to the arguments of the data path.
//!
//! The `desc` arguments are ignored: local memory need not be registered. The local buffers and the
//! remote ranges of a call have the same total length.
//!
//! Mirrors fi_rma(3).

use std::ffi::c_void;

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_msg_rma, fid_ep, iovec};
use scif_ring::total_len;

use crate::base::buffers::{Buffers, buffer};
use crate::base::entry::{Object, guard, object};
use crate::base::errno::Errno;
use crate::engine::types::args::{RmaArgs, RmaIov};
use crate::objects::endpoint::context::TxCtx;
use crate::objects::endpoint::ep::Ep;
use crate::objects::endpoint::transfer::{Ranges, Sender};
use crate::objects::endpoint::trigger::Triggered;

pub(crate) static OPS: fi::fi_ops_rma = ops::<Ep>();
/// Operations of an endpoint with triggered operations.
pub(crate) static TRIGGER_OPS: fi::fi_ops_rma = ops::<Triggered>();
/// Operations of a transmit context.
pub(crate) static TX_CTX_OPS: fi::fi_ops_rma = ops::<TxCtx>();

const fn ops<S: Sender + Object>() -> fi::fi_ops_rma {
    fi::fi_ops_rma {
        size: size_of::<fi::fi_ops_rma>(),
        read: read::<S>,
        readv: readv::<S>,
        readmsg: readmsg::<S>,
        write: write::<S>,
        writev: writev::<S>,
        writemsg: writemsg::<S>,
        inject: inject::<S>,
        writedata: writedata::<S>,
        injectdata: injectdata::<S>,
    }
}

/// Defines the entry points with one buffer. `desc`, `data` and `context` are arguments that not
/// every call has.
///
/// Inject calls fail with `-FI_EINVAL` for more than the inject size.
macro_rules! buffer_calls {
    ($($name:ident, $call:literal, $buf:ty, write: $write:literal, $flags:ident,
        [$($desc:ident)?] [$($data:ident)?] [$($context:ident)?];)*
    ) => {$(
        unsafe extern "C" fn $name<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: $buf,
            len: usize,
            $($desc: *mut c_void,)?
            $($data: u64,)?
            dest: fi_addr_t,
            addr: u64,
            key: u64,
            $($context: *mut c_void,)?
        ) -> isize {
            guard($call, || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffer belongs to the operation until it completes. An inject call
                // reads it before it returns.
                let buf = unsafe { buffer(buf, len) }?;
                ep.rma(&RmaArgs {
                    write: $write,
                    iov: &[buf],
                    rma: &[RmaIov { addr, len, key }],
                    dest,
                    data: None$(.or(Some($data)))?,
                    context: 0$( | $context.expose_provenance())?,
                    flags: ep.$flags(),
                })
            })
        }
    )*};
}

buffer_calls! {
    read, "fi_read", *mut c_void, write: false, read_flags, [_desc] [] [context];
    write, "fi_write", *const c_void, write: true, tx_flags, [_desc] [] [context];
    inject, "fi_inject_write", *const c_void, write: true, inject_flags, [] [] [];
    writedata, "fi_writedata", *const c_void, write: true, tx_flags, [_desc] [data] [context];
    injectdata, "fi_inject_writedata", *const c_void, write: true, inject_flags, [] [data] [];
}

/// Defines the entry points with a list of buffers.
macro_rules! list_calls {
    ($($name:ident, $call:literal, write: $write:literal, $flags:ident;)*) => {$(
        unsafe extern "C" fn $name<S: Sender + Object>(
            ep: *mut fid_ep,
            iov: *const iovec,
            _desc: *mut *mut c_void,
            count: usize,
            dest: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut c_void,
        ) -> isize {
            guard($call, || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffers belong to the operation until it completes.
                let iov = unsafe { Buffers::from_iovec(iov, count) }?;
                let iov = iov.as_slice();
                ep.rma_out_of_line(&RmaArgs {
                    write: $write,
                    iov,
                    rma: &[RmaIov { addr, len: total_len(iov), key }],
                    dest,
                    data: None,
                    context: context.expose_provenance(),
                    flags: ep.$flags(),
                })
            })
        }
    )*};
}

list_calls! {
    readv, "fi_readv", write: false, read_flags;
    writev, "fi_writev", write: true, tx_flags;
}

/// `fi_readmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags, also `FI_INJECT`: a buffer cannot be released before its data
/// arrives.
unsafe extern "C" fn readmsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> isize {
    guard("fi_readmsg", || {
        if flags & fi::FI_INJECT != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        // SAFETY: C passes an open endpoint, and a message or null.
        unsafe { post_msg::<S>(ep, msg, flags, false) }
    })
}

/// `fi_writemsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags.
unsafe extern "C" fn writemsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> isize {
    guard("fi_writemsg", || {
        // SAFETY: C passes an open endpoint, and a message or null.
        unsafe { post_msg::<S>(ep, msg, flags, true) }
    })
}

/// Implements the common part of `fi_readmsg` and `fi_writemsg`.
///
/// # Safety
/// `ep` is an open endpoint. `msg` is null or a message whose lists have the lengths given in it.
unsafe fn post_msg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
    write: bool,
) -> Result<isize, Errno> {
    // SAFETY: an open endpoint, by the caller's contract.
    let ep = unsafe { object::<S, _>(ep) }?;
    // SAFETY: null or a message, by the caller's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: the caller's contract.
    unsafe { start(ep, msg, flags, write) }
}

/// Posts the operation that `msg` describes.
///
/// # Safety
/// The lists of `msg` have the lengths given in it, and its buffers belong to the operation until
/// it completes.
pub(crate) unsafe fn start<S: Sender>(
    ep: &S,
    msg: &fi_msg_rma,
    flags: u64,
    write: bool,
) -> Result<isize, Errno> {
    let flags = ep.tx_msg_flags(flags)?;
    // SAFETY: the buffers belong to the operation until it completes.
    let iov = unsafe { Buffers::from_iovec(msg.msg_iov, msg.iov_count) }?;
    // SAFETY: a list of the length given in the message.
    let rma = unsafe { Ranges::from_rma_iov(msg.rma_iov, msg.rma_iov_count) }?;
    if rma.as_slice().is_empty() || rma.total()? != total_len(iov.as_slice()) {
        return Err(fi::FI_EINVAL);
    }
    ep.rma_out_of_line(&RmaArgs {
        write,
        iov: iov.as_slice(),
        rma: rma.as_slice(),
        dest: msg.addr,
        data: (write && flags & fi::FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
        context: msg.context.expose_provenance(),
        flags,
    })
}
