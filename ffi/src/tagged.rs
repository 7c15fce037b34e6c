// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_tagged.h`: tagged messages.

use core::ffi::c_void;

use crate::nosys::table;
use crate::{fi_addr_t, fid_ep, iovec};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_tagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

table! { FI_OPS_TAGGED_NOSYS;
pub struct fi_ops_tagged {
    pub size: usize,
    pub recv: "fi_trecv" (ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
        src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> isize,
    pub recvv: "fi_trecvv" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void,
        count: usize, src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> isize,
    pub recvmsg: "fi_trecvmsg" (ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize,
    pub send: "fi_tsend" (ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
        dest_addr: fi_addr_t, tag: u64, context: *mut c_void) -> isize,
    pub sendv: "fi_tsendv" (ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void,
        count: usize, dest_addr: fi_addr_t, tag: u64, context: *mut c_void) -> isize,
    pub sendmsg: "fi_tsendmsg" (ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize,
    pub inject: "fi_tinject" (ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t,
        tag: u64) -> isize,
    pub senddata: "fi_tsenddata" (ep: *mut fid_ep, buf: *const c_void, len: usize,
        desc: *mut c_void, data: u64, dest_addr: fi_addr_t, tag: u64,
        context: *mut c_void) -> isize,
    pub injectdata: "fi_tinjectdata" (ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64,
        dest_addr: fi_addr_t, tag: u64) -> isize,
}
}

const _: () = {
    assert!(size_of::<fi_msg_tagged>() == 64);
    assert!(size_of::<fi_ops_tagged>() == 80);
};
