// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/providers/fi_peer.h`, in the layout of libfabric 2.3 and later: queues,
//! counters and receive contexts of one provider that another one fills.

use core::ffi::{c_int, c_void};

use crate::{fi_addr_t, fi_cq_err_entry, fid, fid_ep, iovec};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_cq_owner {
    pub size: usize,
    pub write: unsafe extern "C" fn(
        cq: *mut fid_peer_cq,
        context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        src: fi_addr_t,
    ) -> isize,
    pub writeerr:
        unsafe extern "C" fn(cq: *mut fid_peer_cq, err_entry: *const fi_cq_err_entry) -> isize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_peer_cq {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cq_owner,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_peer_cq_context {
    pub size: usize,
    pub cq: *mut fid_peer_cq,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_cntr_owner {
    pub size: usize,
    pub inc: unsafe extern "C" fn(cntr: *mut fid_peer_cntr),
    pub incerr: unsafe extern "C" fn(cntr: *mut fid_peer_cntr),
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_peer_cntr {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cntr_owner,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_peer_cntr_context {
    pub size: usize,
    pub cntr: *mut fid_peer_cntr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_peer_rx_entry {
    pub srx: *mut fid_peer_srx,
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
    pub cq_data: u64,
    pub flags: u64,
    pub context: *mut c_void,
    pub count: usize,
    pub desc: *mut *mut c_void,
    pub peer_context: *mut c_void,
    pub owner_context: *mut c_void,
    pub iov: *mut iovec,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_peer_match_attr {
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
}

/// Type of `get_msg` and `get_tag`.
pub type fi_peer_get = unsafe extern "C" fn(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    entry: *mut *mut fi_peer_rx_entry,
) -> c_int;
/// Type of the functions for one entry.
pub type fi_peer_act = unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> c_int;
/// Type of the function that returns the source of an entry's message.
pub type fi_peer_get_addr = unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> fi_addr_t;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_srx_owner {
    pub size: usize,
    pub get_msg: fi_peer_get,
    pub get_tag: fi_peer_get,
    pub queue_msg: fi_peer_act,
    pub queue_tag: fi_peer_act,
    /// Optional; owners that never need it set it to null.
    pub foreach_unspec_addr:
        Option<unsafe extern "C" fn(srx: *mut fid_peer_srx, get_addr: fi_peer_get_addr)>,
    pub free_entry: unsafe extern "C" fn(entry: *mut fi_peer_rx_entry),
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_srx_peer {
    pub size: usize,
    pub start_msg: fi_peer_act,
    pub start_tag: fi_peer_act,
    pub discard_msg: fi_peer_act,
    pub discard_tag: fi_peer_act,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_peer_srx {
    pub ep_fid: fid_ep,
    pub owner_ops: *mut fi_ops_srx_owner,
    pub peer_ops: *const fi_ops_srx_peer,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_peer_srx_context {
    pub size: usize,
    pub srx: *mut fid_peer_srx,
}

const _: () = {
    assert!(size_of::<fid_peer_cq>() == 32);
    assert!(size_of::<fi_ops_cq_owner>() == 24);
    assert!(size_of::<fi_ops_cntr_owner>() == 24);
    assert!(size_of::<fi_peer_rx_entry>() == 96);
    assert!(size_of::<fi_ops_srx_owner>() == 56);
    assert!(size_of::<fi_ops_srx_peer>() == 40);
    assert!(size_of::<fid_peer_srx>() == 96);
};
