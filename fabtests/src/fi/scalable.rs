// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scalable endpoints (fi_endpoint(3), "Scalable Endpoints"). Scalable endpoints and their contexts
//! are endpoints in C, and so are they in this client.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::ep::Ep;
use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::info::Info;

/// `fi_rx_addr`: address of context `index` of the endpoint `addr`, in a vector with `bits` context
/// bits.
pub fn rx_addr(addr: u64, index: u64, bits: u32) -> u64 {
    index << (u64::BITS - bits) | addr
}

impl Ep {
    /// `fi_scalable_ep`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn scalable(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut ep = ptr::null_mut();
        // SAFETY: the domain is open, the info outlives the call, and one pointer is written to
        // `ep`.
        Errno::check_int(unsafe {
            (ops.scalable_ep)(raw, info.as_ptr(), &raw mut ep, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, ep) }
    }

    /// `fi_tx_context` of a scalable endpoint.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn tx_context(
        self: &Arc<Ep>,
        index: i32,
        attr: Option<sys::fi_tx_attr>,
    ) -> Result<Arc<Ep>> {
        let (sep, ops) = self.ops()?;
        let mut attr = attr;
        let attr = attr.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut ep = ptr::null_mut();
        // SAFETY: the endpoint is open, the attributes outlive the call, and one pointer is written
        // to `ep`.
        Errno::check_int(unsafe { (ops.tx_ctx)(sep, index, attr, &raw mut ep, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { self.adopt_context(ep) }
    }

    /// `fi_rx_context` of a scalable endpoint.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn rx_context(
        self: &Arc<Ep>,
        index: i32,
        attr: Option<sys::fi_rx_attr>,
    ) -> Result<Arc<Ep>> {
        let (sep, ops) = self.ops()?;
        let mut attr = attr;
        let attr = attr.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut ep = ptr::null_mut();
        // SAFETY: the endpoint is open, the attributes outlive the call, and one pointer is written
        // to `ep`.
        Errno::check_int(unsafe { (ops.rx_ctx)(sep, index, attr, &raw mut ep, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { self.adopt_context(ep) }
    }
}
