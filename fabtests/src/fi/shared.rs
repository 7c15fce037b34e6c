// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared transmit contexts (fi_endpoint(3), "Shared Contexts").
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::{Object, is_fid};

/// A shared transmit context.
#[derive(Debug)]
pub struct Stx {
    object: Object<sys::fid_stx>,
    _domain: Arc<Domain>,
}

is_fid!(Stx);

impl Stx {
    /// `fi_stx_context`.
    pub fn open(domain: &Arc<Domain>) -> Result<Arc<Stx>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_tx_attr::default();
        let mut stx = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `stx`.
        Errno::check_int(unsafe {
            (ops.stx_ctx)(raw, &raw mut attr, &raw mut stx, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(stx) }?;
        Ok(Arc::new(Stx { object, _domain: Arc::clone(domain) }))
    }
}
