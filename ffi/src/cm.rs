// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_cm.h`: names, connections, multicast groups.

use core::ffi::{c_int, c_void};

use crate::{fi_addr_t, fid, fid_ep, fid_pep, fid_t};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_mc {
    pub fid: fid,
    pub fi_addr: fi_addr_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: unsafe extern "C" fn(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int,
    pub getname: unsafe extern "C" fn(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub getpeer:
        unsafe extern "C" fn(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub connect: unsafe extern "C" fn(
        ep: *mut fid_ep,
        addr: *const c_void,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    pub listen: unsafe extern "C" fn(pep: *mut fid_pep) -> c_int,
    pub accept:
        unsafe extern "C" fn(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int,
    pub reject: unsafe extern "C" fn(
        pep: *mut fid_pep,
        handle: fid_t,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    pub shutdown: unsafe extern "C" fn(ep: *mut fid_ep, flags: u64) -> c_int,
    pub join: unsafe extern "C" fn(
        ep: *mut fid_ep,
        addr: *const c_void,
        flags: u64,
        mc: *mut *mut fid_mc,
        context: *mut c_void,
    ) -> c_int,
}

const _: () = assert!(size_of::<fi_ops_cm>() == 80);
