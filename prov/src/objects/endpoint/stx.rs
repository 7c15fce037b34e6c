// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "declares the C objects that calls may recover from pointers")]
//! Shared transmit context, as a C object.

use std::sync::Arc;

use libfabric_sys as fi;

use crate::base::entry;
use crate::domain::DomainShared;

/// Object behind `struct fid_stx`.
#[repr(C)]
pub(crate) struct Stx {
    pub(crate) fid: fi::fid_stx,
    pub(crate) shared: Arc<StxShared>,
}

// SAFETY: repr(C) with a fid_stx first; FI_CLASS_STX_CTX is in Stx objects only. An Arc of a Sync
// type follows the fid.
unsafe impl entry::Object for Stx {
    const FCLASS: usize = fi::FI_CLASS_STX_CTX;
}

entry::created_by!(Stx, |object| object.shared.dom.creator);

/// Transmit context, as shared with the endpoints bound to it.
#[derive(Debug)]
pub(crate) struct StxShared {
    pub(crate) dom: Arc<DomainShared>,
}
