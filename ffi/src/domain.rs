// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/fi_domain.h`: domain, address vector, memory region.
//!
//! The constants of this header are in `flags`.

use core::ffi::{c_char, c_int, c_void};

use crate::nosys::table;
use crate::{
    fi_addr_t, fi_atomic_attr, fi_av_type, fi_cntr_attr, fi_collective_attr, fi_cq_attr, fi_info,
    fi_poll_attr, fi_rx_attr, fi_tx_attr, fid, fid_av_set, fid_cntr, fid_cq, fid_ep, fid_poll,
    fid_stx, iovec,
};

/// `enum fi_datatype`: `FI_INT8` and so on.
pub type fi_datatype = u32;
/// `enum fi_op`: `FI_MIN` and so on.
pub type fi_op = u32;
/// `enum fi_collective_op`: `FI_BARRIER` and so on.
pub type fi_collective_op = u32;
/// `enum fi_hmem_iface`: `FI_HMEM_*`.
pub type fi_hmem_iface = u32;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_av_attr {
    pub type_: fi_av_type,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_av_set_attr {
    pub count: usize,
    pub start_addr: fi_addr_t,
    pub end_addr: fi_addr_t,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

table! { FI_OPS_AV_NOSYS;
pub struct fi_ops_av {
    pub size: usize,
    pub insert: "fi_av_insert" (av: *mut fid_av, addr: *const c_void, count: usize,
        fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> c_int,
    pub insertsvc: "fi_av_insertsvc" (av: *mut fid_av, node: *const c_char, service: *const c_char,
        fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void) -> c_int,
    pub insertsym: "fi_av_insertsym" (av: *mut fid_av, node: *const c_char, nodecnt: usize,
        service: *const c_char, svccnt: usize, fi_addr: *mut fi_addr_t, flags: u64,
        context: *mut c_void) -> c_int,
    pub remove: "fi_av_remove" (av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize,
        flags: u64) -> c_int,
    pub lookup: "fi_av_lookup" (av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void,
        addrlen: *mut usize) -> c_int,
    pub straddr: "fi_av_straddr" (av: *mut fid_av, addr: *const c_void, buf: *mut c_char,
        len: *mut usize) -> *const c_char,
    pub av_set: "fi_av_set" (av: *mut fid_av, attr: *mut fi_av_set_attr,
        av_set: *mut *mut fid_av_set, context: *mut c_void) -> c_int,
    /// Since 1.20.
    pub insert_auth_key: "fi_av_insert_auth_key" (av: *mut fid_av, auth_key: *const c_void,
        auth_key_size: usize, fi_addr: *mut fi_addr_t, flags: u64) -> c_int,
    /// Since 1.20.
    pub lookup_auth_key: "fi_av_lookup_auth_key" (av: *mut fid_av, fi_addr: fi_addr_t,
        auth_key: *mut c_void, auth_key_size: *mut usize) -> c_int,
    /// Since 1.20.
    pub set_user_id: "fi_av_set_user_id" (av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t,
        flags: u64) -> c_int,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Since 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

/// Since 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_auth_key {
    pub av: *mut fid_av,
    pub src_addr: fi_addr_t,
}

/// Union of device numbers in [`fi_mr_attr`]; `reserved` covers all of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
    /// Since 2.5.
    pub rocr: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    /// Since 1.20 a union with `dmabuf: *const fi_mr_dmabuf`, which is valid with the flag
    /// `FI_MR_DMABUF`.
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: fi_hmem_iface,
    pub device: fi_mr_device,
    /// Since 1.19.
    pub hmem_data: *mut c_void,
    /// Since 1.22.
    pub page_size: usize,
    /// Since 2.0.
    pub base_mr: *const fid_mr,
    /// Since 2.0.
    pub sub_mr_cnt: usize,
}

/// Argument of `FI_REFRESH`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}

table! { FI_OPS_DOMAIN_NOSYS;
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: "fi_av_open" (domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av,
        context: *mut c_void) -> c_int,
    pub cq_open: "fi_cq_open" (domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq,
        context: *mut c_void) -> c_int,
    pub endpoint: "fi_endpoint" (domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep,
        context: *mut c_void) -> c_int,
    pub scalable_ep: "fi_scalable_ep" (domain: *mut fid_domain, info: *mut fi_info,
        sep: *mut *mut fid_ep, context: *mut c_void) -> c_int,
    pub cntr_open: "fi_cntr_open" (domain: *mut fid_domain, attr: *mut fi_cntr_attr,
        cntr: *mut *mut fid_cntr, context: *mut c_void) -> c_int,
    pub poll_open: "fi_poll_open" (domain: *mut fid_domain, attr: *mut fi_poll_attr,
        pollset: *mut *mut fid_poll) -> c_int,
    pub stx_ctx: "fi_stx_context" (domain: *mut fid_domain, attr: *mut fi_tx_attr,
        stx: *mut *mut fid_stx, context: *mut c_void) -> c_int,
    pub srx_ctx: "fi_srx_context" (domain: *mut fid_domain, attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep, context: *mut c_void) -> c_int,
    pub query_atomic: "fi_query_atomic" (domain: *mut fid_domain, datatype: fi_datatype, op: fi_op,
        attr: *mut fi_atomic_attr, flags: u64) -> c_int,
    pub query_collective: "fi_query_collective" (domain: *mut fid_domain, coll: fi_collective_op,
        attr: *mut fi_collective_attr, flags: u64) -> c_int,
    pub endpoint2: "fi_endpoint2" (domain: *mut fid_domain, info: *mut fi_info,
        ep: *mut *mut fid_ep, flags: u64, context: *mut c_void) -> c_int,
}
}

table! { FI_OPS_MR_NOSYS;
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: "fi_mr_reg" (fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64,
        requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void) -> c_int,
    pub regv: "fi_mr_regv" (fid: *mut fid, iov: *const iovec, count: usize, access: u64,
        offset: u64, requested_key: u64, flags: u64, mr: *mut *mut fid_mr,
        context: *mut c_void) -> c_int,
    pub regattr: "fi_mr_regattr" (fid: *mut fid, attr: *const fi_mr_attr, flags: u64,
        mr: *mut *mut fid_mr) -> c_int,
}
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}

const _: () = {
    assert!(size_of::<fi_av_attr>() == 48);
    assert!(size_of::<fi_ops_av>() == 88);
    assert!(size_of::<fid_av>() == 32);
    assert!(size_of::<fid_mr>() == 40);
    assert!(size_of::<fi_mr_attr>() == 112);
    assert!(size_of::<fi_ops_domain>() == 96);
    assert!(size_of::<fi_ops_mr>() == 32);
    assert!(size_of::<fid_domain>() == 40);
};
