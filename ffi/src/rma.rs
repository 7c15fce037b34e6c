// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_rma.h`: remote memory access.

use core::ffi::c_void;

use crate::nosys::table;
use crate::{fi_addr_t, fid_ep, iovec};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fi_rma_ioc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

table! { FI_OPS_RMA_NOSYS;
pub struct fi_ops_rma {
    pub size: usize,
    pub read: "fi_read" (ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
        src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize,
    pub readv: "fi_readv" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize,
    pub readmsg: "fi_readmsg" (ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
    pub write: "fi_write" (ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
        dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize,
    pub writev: "fi_writev" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void,
        count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> isize,
    pub writemsg: "fi_writemsg" (ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
    pub inject: "fi_inject_write" (ep: *mut fid_ep, buf: *const c_void, len: usize,
        dest_addr: fi_addr_t, addr: u64, key: u64) -> isize,
    pub writedata: "fi_writedata" (ep: *mut fid_ep, buf: *const c_void, len: usize,
        desc: *mut c_void, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64,
        context: *mut c_void) -> isize,
    pub injectdata: "fi_inject_writedata" (ep: *mut fid_ep, buf: *const c_void, len: usize,
        data: u64, dest_addr: fi_addr_t, addr: u64, key: u64) -> isize,
}
}

const _: () = {
    assert!(size_of::<fi_rma_iov>() == 24);
    assert!(size_of::<fi_rma_ioc>() == 24);
    assert!(size_of::<fi_msg_rma>() == 64);
    assert!(size_of::<fi_ops_rma>() == 80);
};
