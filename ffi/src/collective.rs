// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_collective.h`: collective operations and the address sets of their
//! members.

use core::ffi::{c_int, c_void};

use crate::nosys::table;
use crate::{fi_addr_t, fi_atomic_attr, fi_collective_op, fi_datatype, fi_ioc, fi_op, fid, fid_ep};

table! { FI_OPS_AV_SET_NOSYS;
pub struct fi_ops_av_set {
    pub size: usize,
    pub set_union: "fi_av_set_union" (dst: *mut fid_av_set, src: *const fid_av_set) -> c_int,
    pub intersect: "fi_av_set_intersect" (dst: *mut fid_av_set, src: *const fid_av_set) -> c_int,
    pub diff: "fi_av_set_diff" (dst: *mut fid_av_set, src: *const fid_av_set) -> c_int,
    pub insert: "fi_av_set_insert" (set: *mut fid_av_set, addr: fi_addr_t) -> c_int,
    pub remove: "fi_av_set_remove" (set: *mut fid_av_set, addr: fi_addr_t) -> c_int,
    pub addr: "fi_av_set_addr" (set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_av_set {
    pub fid: fid,
    pub ops: *const fi_ops_av_set,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fi_collective_attr {
    pub op: fi_op,
    pub datatype: fi_datatype,
    pub datatype_attr: fi_atomic_attr,
    pub max_members: usize,
    pub mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_collective_addr {
    pub set: *const fid_av_set,
    pub coll_addr: fi_addr_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_collective {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub coll_addr: fi_addr_t,
    pub root_addr: fi_addr_t,
    pub coll: fi_collective_op,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub context: *mut c_void,
}

table! { FI_OPS_COLLECTIVE_NOSYS;
pub struct fi_ops_collective {
    pub size: usize,
    pub barrier: "fi_barrier" (ep: *mut fid_ep, coll_addr: fi_addr_t,
        context: *mut c_void) -> isize,
    pub broadcast: "fi_broadcast" (ep: *mut fid_ep, buf: *mut c_void, count: usize,
        desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
        flags: u64, context: *mut c_void) -> isize,
    pub alltoall: "fi_alltoall" (ep: *mut fid_ep, buf: *const c_void, count: usize,
        desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void) -> isize,
    pub allreduce: "fi_allreduce" (ep: *mut fid_ep, buf: *const c_void, count: usize,
        desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
        datatype: fi_datatype, op: fi_op, flags: u64, context: *mut c_void) -> isize,
    pub allgather: "fi_allgather" (ep: *mut fid_ep, buf: *const c_void, count: usize,
        desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void) -> isize,
    pub reduce_scatter: "fi_reduce_scatter" (ep: *mut fid_ep, buf: *const c_void, count: usize,
        desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
        datatype: fi_datatype, op: fi_op, flags: u64, context: *mut c_void) -> isize,
    pub reduce: "fi_reduce" (ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t,
        datatype: fi_datatype, op: fi_op, flags: u64, context: *mut c_void) -> isize,
    pub scatter: "fi_scatter" (ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void) -> isize,
    pub gather: "fi_gather" (ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void) -> isize,
    pub msg: "a collective transfer" (ep: *mut fid_ep, msg: *const fi_msg_collective,
        resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
        flags: u64) -> isize,
    pub barrier2: "fi_barrier2" (ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64,
        context: *mut c_void) -> isize,
}
}

const _: () = assert!(size_of::<fi_ops_collective>() == 96);
