// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_cm.h`: names, connections, multicast groups.

use core::ffi::{c_int, c_void};

use crate::nosys::table;
use crate::{fi_addr_t, fid, fid_ep, fid_pep, fid_t};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_mc {
    pub fid: fid,
    pub fi_addr: fi_addr_t,
}

table! { FI_OPS_CM_NOSYS;
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: "fi_setname" (fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int,
    pub getname: "fi_getname" (fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub getpeer: "fi_getpeer" (ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub connect: "fi_connect" (ep: *mut fid_ep, addr: *const c_void, param: *const c_void,
        paramlen: usize) -> c_int,
    pub listen: "fi_listen" (pep: *mut fid_pep) -> c_int,
    pub accept: "fi_accept" (ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int,
    pub reject: "fi_reject" (pep: *mut fid_pep, handle: fid_t, param: *const c_void,
        paramlen: usize) -> c_int,
    pub shutdown: "fi_shutdown" (ep: *mut fid_ep, flags: u64) -> c_int,
    pub join: "fi_join" (ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc,
        context: *mut c_void) -> c_int,
}
}

const _: () = assert!(size_of::<fi_ops_cm>() == 80);
