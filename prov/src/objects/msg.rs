// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Untagged messages: `struct fi_ops_msg`, from C's arguments to the arguments of the data path.
//!
//! The `desc` arguments are ignored: memory need not be registered to be sent. Every call returns
//! at once. It fails with `-FI_EAGAIN` when the endpoint's queue is full and `-FI_EOPBADSTATE`
//! before `fi_enable`.
//!
//! Mirrors fi_msg(3).

use std::ffi::c_void;

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_msg, fid_ep, iovec};

use crate::base::buffers::{Buffers, buffer};
use crate::base::entry::{Object, guard, object};
use crate::base::errno::Errno;
use crate::engine::types::args::RecvArgs;
use crate::engine::types::args::SendArgs;
use crate::objects::endpoint::context::{RxCtx, TxCtx};
use crate::objects::endpoint::ep::Ep;
use crate::objects::endpoint::prefix::Prefixed;
use crate::objects::endpoint::srx::Srx;
use crate::objects::endpoint::transfer::{Receiver, Sender, message_tables};
use crate::objects::endpoint::trigger::Triggered;

message_tables!(fi::fi_ops_msg, fi::FI_OPS_MSG_NOSYS);

/// `fi_recv`
unsafe extern "C" fn recv<R: Receiver + Object>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard("fi_recv", || {
        // SAFETY: C passes an open endpoint or context.
        let ep = unsafe { object::<R, _>(ep) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let buf = unsafe { buffer(buf, len) }?;
        ep.recv(&RecvArgs {
            iov: &[buf],
            src,
            tag: None,
            context: context.expose_provenance(),
            flags: ep.rx_flags(),
        })
    })
}

/// `fi_recvv`
unsafe extern "C" fn recvv<R: Receiver + Object>(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard("fi_recvv", || {
        // SAFETY: C passes an open endpoint or context.
        let ep = unsafe { object::<R, _>(ep) }?;
        // SAFETY: the buffers belong to the operation until it completes.
        let iov = unsafe { Buffers::from_iovec(iov, count) }?;
        ep.recv(&RecvArgs {
            iov: iov.as_slice(),
            src,
            tag: None,
            context: context.expose_provenance(),
            flags: ep.rx_flags(),
        })
    })
}

/// `fi_recvmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown or contradicting flags.
unsafe extern "C" fn recvmsg<R: Receiver + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg,
    flags: u64,
) -> isize {
    guard("fi_recvmsg", || {
        // SAFETY: C passes an open endpoint or context.
        let ep = unsafe { object::<R, _>(ep) }?;
        // SAFETY: null or a message of the caller.
        let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: the buffers belong to the operation until it completes.
        unsafe { receive(ep, msg, flags) }
    })
}

/// Posts the receive that `msg` describes.
///
/// # Errors
/// Errors of `fi_recvmsg`.
///
/// # Safety
/// The list of `msg` has the length given in it, and its buffers belong to the operation until it
/// completes.
#[inline(always)]
pub(crate) unsafe fn receive<R: Receiver>(
    ep: &R,
    msg: &fi_msg,
    flags: u64,
) -> Result<isize, Errno> {
    let flags = ep.rx_msg_flags(flags)?;
    let iov = if flags & (fi::FI_PEEK | fi::FI_DISCARD) == 0 {
        // SAFETY: the buffers belong to the operation until it completes.
        unsafe { Buffers::from_iovec(msg.msg_iov, msg.iov_count) }?
    } else {
        Buffers::none()
    };
    ep.recv(&RecvArgs {
        iov: iov.as_slice(),
        src: msg.addr,
        tag: None,
        context: msg.context.expose_provenance(),
        flags,
    })
}

/// `fi_send`
unsafe extern "C" fn send<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard("fi_send", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let buf = unsafe { buffer(buf, len) }?;
        let flags = ep.tx_flags();
        ep.send(&SendArgs {
            iov: &[buf],
            tag: None,
            data: None,
            dest,
            context: context.expose_provenance(),
            flags,
        })
    })
}

/// `fi_sendv`
unsafe extern "C" fn sendv<S: Sender + Object>(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard("fi_sendv", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: the buffers belong to the operation until it completes.
        let iov = unsafe { Buffers::from_iovec(iov, count) }?;
        let flags = ep.tx_flags();
        ep.send(&SendArgs {
            iov: iov.as_slice(),
            tag: None,
            data: None,
            dest,
            context: context.expose_provenance(),
            flags,
        })
    })
}

/// `fi_sendmsg`
///
/// # Errors
/// `-FI_EBADFLAGS` for unknown flags.
unsafe extern "C" fn sendmsg<S: Sender + Object>(
    ep: *mut fid_ep,
    msg: *const fi_msg,
    flags: u64,
) -> isize {
    guard("fi_sendmsg", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: null or a message of the caller.
        let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: the buffers belong to the operation until it completes.
        unsafe { transmit(ep, msg, flags) }
    })
}

/// Posts the message that `msg` describes.
///
/// # Errors
/// Errors of `fi_sendmsg`.
///
/// # Safety
/// The list of `msg` has the length given in it, and its buffers belong to the operation until it
/// completes.
#[inline(always)]
pub(crate) unsafe fn transmit<S: Sender>(ep: &S, msg: &fi_msg, flags: u64) -> Result<isize, Errno> {
    let flags = ep.tx_msg_flags(flags)?;
    // SAFETY: the buffers belong to the operation until it completes.
    let iov = unsafe { Buffers::from_iovec(msg.msg_iov, msg.iov_count) }?;
    ep.send(&SendArgs {
        iov: iov.as_slice(),
        tag: None,
        data: (flags & fi::FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
        dest: msg.addr,
        context: msg.context.expose_provenance(),
        flags,
    })
}

/// `fi_inject`
///
/// # Errors
/// `-FI_EINVAL` for more than the inject size.
unsafe extern "C" fn inject<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest: fi_addr_t,
) -> isize {
    guard("fi_inject", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: the buffer is read before this call returns.
        let buf = unsafe { buffer(buf, len) }?;
        let flags = ep.inject_flags();
        ep.send(&SendArgs { iov: &[buf], tag: None, data: None, dest, context: 0, flags })
    })
}

/// `fi_senddata`
unsafe extern "C" fn senddata<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard("fi_senddata", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: the buffer belongs to the operation until it completes.
        let buf = unsafe { buffer(buf, len) }?;
        let flags = ep.tx_flags();
        ep.send(&SendArgs {
            iov: &[buf],
            tag: None,
            data: Some(data),
            dest,
            context: context.expose_provenance(),
            flags,
        })
    })
}

/// `fi_injectdata`
///
/// # Errors
/// `-FI_EINVAL` for more than the inject size.
unsafe extern "C" fn injectdata<S: Sender + Object>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
) -> isize {
    guard("fi_injectdata", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<S, _>(ep) }?;
        // SAFETY: the buffer is read before this call returns.
        let buf = unsafe { buffer(buf, len) }?;
        let flags = ep.inject_flags();
        ep.send(&SendArgs { iov: &[buf], tag: None, data: Some(data), dest, context: 0, flags })
    })
}
