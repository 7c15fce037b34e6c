// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Entries of a completion queue: completed and failed operations.
//!
//! Mirrors `fi_cq_tagged_entry` and `fi_cq_err_entry` of `rdma/fi_eq.h`; fi_cq(3).

use libfabric_sys as fi;

/// One completed operation. The first six fields are `struct fi_cq_tagged_entry`. Every other entry
/// format is a prefix of it, so that an entry is returned by copying the first bytes of this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// Source: an `fi_addr_t`, or `FI_ADDR_NOTAVAIL`.
    pub(crate) src: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(Completion, context) == offset_of!(fi::fi_cq_tagged_entry, op_context));
    assert!(offset_of!(Completion, flags) == offset_of!(fi::fi_cq_tagged_entry, flags));
    assert!(offset_of!(Completion, len) == offset_of!(fi::fi_cq_tagged_entry, len));
    assert!(offset_of!(Completion, buf) == offset_of!(fi::fi_cq_tagged_entry, buf));
    assert!(offset_of!(Completion, data) == offset_of!(fi::fi_cq_tagged_entry, data));
    assert!(offset_of!(Completion, tag) == offset_of!(fi::fi_cq_tagged_entry, tag));
    assert!(offset_of!(Completion, src) == size_of::<fi::fi_cq_tagged_entry>());
    assert!(size_of::<fi::fi_cq_entry>() == offset_of!(Completion, flags));
    assert!(size_of::<fi::fi_cq_msg_entry>() == offset_of!(Completion, buf));
    assert!(size_of::<fi::fi_cq_data_entry>() == offset_of!(Completion, tag));
};

impl Completion {
    /// Creates a completion without data and without a source.
    #[inline(always)]
    pub(crate) fn new(context: usize, flags: u64, tag: u64) -> Completion {
        Completion { context, flags, tag, src: fi::FI_ADDR_NOTAVAIL, ..Completion::default() }
    }
}

/// Failed operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CqError {
    pub(crate) c: Completion,
    /// Positive `FI_E*`.
    pub(crate) err: i32,
    pub(crate) prov_errno: i32,
    /// Number of bytes that did not fit the receive buffer.
    pub(crate) olen: usize,
    /// Error data; empty if there is none.
    pub(crate) err_data: Vec<u8>,
}

impl CqError {
    /// Creates the entry of an operation that failed with `err`, of which `olen` bytes did not fit.
    pub(crate) fn new(c: Completion, err: i32, olen: usize) -> CqError {
        CqError { c, err, prov_errno: -err, olen, err_data: Vec::new() }
    }
}
