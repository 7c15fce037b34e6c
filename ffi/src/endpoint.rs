// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_endpoint.h`: endpoints, their options, untagged messages.

use core::ffi::{c_int, c_void};

use crate::nosys::table;
use crate::{
    fi_addr_t, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_rma, fi_ops_tagged, fi_rx_attr,
    fi_tx_attr, fid, fid_t, iovec,
};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    pub data: u64,
}

table! { FI_OPS_EP_NOSYS;
pub struct fi_ops_ep {
    pub size: usize,
    pub cancel: "fi_cancel" (fid: fid_t, context: *mut c_void) -> isize,
    pub getopt: "fi_getopt" (fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void,
        optlen: *mut usize) -> c_int,
    pub setopt: "fi_setopt" (fid: fid_t, level: c_int, optname: c_int, optval: *const c_void,
        optlen: usize) -> c_int,
    pub tx_ctx: "fi_tx_context" (sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr,
        tx_ep: *mut *mut fid_ep, context: *mut c_void) -> c_int,
    pub rx_ctx: "fi_rx_context" (sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep, context: *mut c_void) -> c_int,
    pub rx_size_left: "fi_rx_size_left" (ep: *mut fid_ep) -> isize,
    pub tx_size_left: "fi_tx_size_left" (ep: *mut fid_ep) -> isize,
}
}

table! { FI_OPS_MSG_NOSYS;
pub struct fi_ops_msg {
    pub size: usize,
    pub recv: "fi_recv" (ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
        src_addr: fi_addr_t, context: *mut c_void) -> isize,
    pub recvv: "fi_recvv" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        src_addr: fi_addr_t, context: *mut c_void) -> isize,
    pub recvmsg: "fi_recvmsg" (ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    pub send: "fi_send" (ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
        dest_addr: fi_addr_t, context: *mut c_void) -> isize,
    pub sendv: "fi_sendv" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        dest_addr: fi_addr_t, context: *mut c_void) -> isize,
    pub sendmsg: "fi_sendmsg" (ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    pub inject: "fi_inject" (ep: *mut fid_ep, buf: *const c_void, len: usize,
        dest_addr: fi_addr_t) -> isize,
    pub senddata: "fi_senddata" (ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
        data: u64, dest_addr: fi_addr_t, context: *mut c_void) -> isize,
    pub injectdata: "fi_injectdata" (ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64,
        dest_addr: fi_addr_t) -> isize,
}
}

/// Endpoint. The tables after `fid` may be null if an endpoint was opened without that capability.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const fi_ops_atomic,
    pub collective: *const fi_ops_collective,
}

/// Passive endpoint, which listens.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_pep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
}

/// Shared transmit context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_stx {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
}

const _: () = {
    assert!(size_of::<fi_msg>() == 48);
    assert!(size_of::<fi_ops_ep>() == 64);
    assert!(size_of::<fi_ops_msg>() == 80);
    assert!(size_of::<fid_ep>() == 80);
    assert!(size_of::<fid_pep>() == 40);
    assert!(size_of::<fid_stx>() == 32);
};
