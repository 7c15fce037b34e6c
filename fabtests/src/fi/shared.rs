// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared contexts (fi_endpoint(3), "Shared Contexts"). A shared receive context is an endpoint in
//! C, and so it is in this client.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::ep::Ep;
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
    ///
    /// # Errors
    /// Errors of the call.
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

impl Ep {
    /// `fi_srx_context` with `FI_PEER`.
    ///
    /// # Safety
    /// `context` is a `struct fi_peer_srx_context` whose receive context outlives this one.
    pub(super) unsafe fn open_peer_srx(
        domain: &Arc<Domain>,
        context: *mut std::ffi::c_void,
    ) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_rx_attr { op_flags: sys::FI_PEER, ..sys::fi_rx_attr::default() };
        let mut srx = ptr::null_mut();
        // SAFETY: the domain is open, the context is the caller's, and one pointer is written to
        // `srx`.
        Errno::check_int(unsafe { (ops.srx_ctx)(raw, &raw mut attr, &raw mut srx, context) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, srx) }
    }

    /// `fi_srx_context`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn shared_receive(domain: &Arc<Domain>) -> Result<Arc<Ep>> {
        Ep::shared_receive_with(domain, 0)
    }

    /// `fi_srx_context` with these operation flags.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn shared_receive_with(domain: &Arc<Domain>, op_flags: u64) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_rx_attr { op_flags, ..sys::fi_rx_attr::default() };
        let mut srx = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `srx`.
        Errno::check_int(unsafe {
            (ops.srx_ctx)(raw, &raw mut attr, &raw mut srx, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, srx) }
    }
}
