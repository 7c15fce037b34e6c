// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_eq.h`: event queue, completion queue, counter, wait set, poll set.

use core::ffi::{c_char, c_int, c_void};

use crate::nosys::table;
use crate::{fi_addr_t, fi_info, fid, fid_t};

/// `enum fi_wait_obj`: `FI_WAIT_*`.
pub type fi_wait_obj = u32;
/// `enum fi_cq_format`: `FI_CQ_FORMAT_*`.
pub type fi_cq_format = u32;
/// `enum fi_cq_wait_cond`: `FI_CQ_COND_*`.
pub type fi_cq_wait_cond = u32;
/// `enum fi_cntr_events`: `FI_CNTR_EVENTS_*`.
pub type fi_cntr_events = u32;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fi_wait_attr {
    pub wait_obj: fi_wait_obj,
    pub flags: u64,
}

table! { FI_OPS_WAIT_NOSYS;
/// Deprecated since 2.0.
pub struct fi_ops_wait {
    pub size: usize,
    pub wait: "fi_wait" (waitset: *mut fid_wait, timeout: c_int) -> c_int,
}
}

/// Deprecated since 2.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_wait {
    pub fid: fid,
    pub ops: *const fi_ops_wait,
}

/// Argument of `FI_GETWAIT` for `FI_WAIT_POLLFD`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_wait_pollfd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut libc::pollfd,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fi_poll_attr {
    pub flags: u64,
}

table! { FI_OPS_POLL_NOSYS;
/// Deprecated since 2.0.
pub struct fi_ops_poll {
    pub size: usize,
    pub poll: "fi_poll" (pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int,
    pub poll_add: "fi_poll_add" (pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int,
    pub poll_del: "fi_poll_del" (pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int,
}
}

/// Deprecated since 2.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_poll {
    pub fid: fid,
    pub ops: *const fi_ops_poll,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_set: *mut fid_wait,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// Connection event; connection data of any length follows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    pub info: *mut fi_info,
    pub data: [u8; 0],
}

table! { FI_OPS_EQ_NOSYS;
pub struct fi_ops_eq {
    pub size: usize,
    pub read: "fi_eq_read" (eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize,
        flags: u64) -> isize,
    pub readerr: "fi_eq_readerr" (eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize,
    pub write: "fi_eq_write" (eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize,
        flags: u64) -> isize,
    pub sread: "fi_eq_sread" (eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize,
        timeout: c_int, flags: u64) -> isize,
    pub strerror: "fi_eq_strerror" (eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void,
        buf: *mut c_char, len: usize) -> *const c_char,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_entry {
    pub op_context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    /// Since 1.5: entries of an older interface lack it.
    pub err_data_size: usize,
    /// Since 1.20.
    pub src_addr: fi_addr_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
}

table! { FI_OPS_CQ_NOSYS;
pub struct fi_ops_cq {
    pub size: usize,
    pub read: "fi_cq_read" (cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize,
    pub readfrom: "fi_cq_readfrom" (cq: *mut fid_cq, buf: *mut c_void, count: usize,
        src_addr: *mut fi_addr_t) -> isize,
    pub readerr: "fi_cq_readerr" (cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize,
    pub sread: "fi_cq_sread" (cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void,
        timeout: c_int) -> isize,
    pub sreadfrom: "fi_cq_sreadfrom" (cq: *mut fid_cq, buf: *mut c_void, count: usize,
        src_addr: *mut fi_addr_t, cond: *const c_void, timeout: c_int) -> isize,
    pub signal: "fi_cq_signal" (cq: *mut fid_cq) -> c_int,
    pub strerror: "fi_cq_strerror" (cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void,
        buf: *mut c_char, len: usize) -> *const c_char,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cntr_attr {
    pub events: fi_cntr_events,
    pub wait_obj: fi_wait_obj,
    pub wait_set: *mut fid_wait,
    pub flags: u64,
}

table! { FI_OPS_CNTR_NOSYS;
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: "fi_cntr_read" (cntr: *mut fid_cntr) -> u64,
    pub readerr: "fi_cntr_readerr" (cntr: *mut fid_cntr) -> u64,
    pub add: "fi_cntr_add" (cntr: *mut fid_cntr, value: u64) -> c_int,
    pub set: "fi_cntr_set" (cntr: *mut fid_cntr, value: u64) -> c_int,
    pub wait: "fi_cntr_wait" (cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int,
    pub adderr: "fi_cntr_adderr" (cntr: *mut fid_cntr, value: u64) -> c_int,
    pub seterr: "fi_cntr_seterr" (cntr: *mut fid_cntr, value: u64) -> c_int,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *const fi_ops_cntr,
}

const _: () = {
    assert!(size_of::<fi_eq_attr>() == 32);
    assert!(size_of::<fi_ops_eq>() == 48);
    assert!(size_of::<fid_eq>() == 32);
    assert!(size_of::<fi_eq_cm_entry>() == 16);
    assert!(size_of::<fi_cq_err_entry>() == 88);
    assert!(size_of::<fi_cq_attr>() == 40);
    assert!(size_of::<fi_ops_cq>() == 64);
    assert!(size_of::<fid_cq>() == 32);
    assert!(size_of::<fi_cntr_attr>() == 24);
    assert!(size_of::<fi_ops_cntr>() == 64);
    assert!(size_of::<fid_cntr>() == 32);
};
