// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "owns a C structure")]
//! Infos that the provider keeps: the info of a passive endpoint, and the infos of its connection
//! requests.
//!
//! The info of a connection request is complete: a program opens a domain and an endpoint with it,
//! as with one from `fi_getinfo`.

use std::ffi::CStr;

use libfabric_sys::fi_info;

use super::{alloc, hints, shape};
use crate::base::addr::ADDR_LEN;
use crate::base::entry::string;
use crate::base::host;

/// Address of an info in C's heap, freed on drop unless it passes to the application.
#[derive(Debug)]
pub(crate) struct OwnedInfo(usize);

impl OwnedInfo {
    /// Copies an info of a program; `None` for an incomplete info or without memory.
    ///
    /// # Safety
    /// `info` is null or an info in the layout of the host library, unchanged during the call.
    pub(crate) unsafe fn copy(info: *const fi_info) -> Option<OwnedInfo> {
        // SAFETY: the caller's contract.
        let shaped = unsafe { shaped(info) }?;
        OwnedInfo::of(shaped)
    }

    /// Returns a copy with other addresses and a handle.
    pub(crate) fn with_addresses(
        &self,
        src: [u8; ADDR_LEN],
        dest: [u8; ADDR_LEN],
        handle: usize,
    ) -> Option<OwnedInfo> {
        // SAFETY: a complete info of this provider, freed only on drop.
        let shaped = unsafe { shaped(std::ptr::with_exposed_provenance(self.0)) }?;
        OwnedInfo::of(shape::InfoParts {
            src,
            dest: Some(dest),
            handle: std::ptr::with_exposed_provenance_mut(handle),
            ..shaped
        })
    }

    fn of(info: shape::InfoParts) -> Option<OwnedInfo> {
        alloc::list(&[info]).map(|list| OwnedInfo(list.expose_provenance()))
    }

    /// Returns the address of the info.
    pub(crate) fn addr(&self) -> usize {
        self.0
    }

    /// Passes the info to the application, which frees it.
    pub(crate) fn give(mut self) {
        self.0 = 0;
    }
}

impl Drop for OwnedInfo {
    fn drop(&mut self) {
        alloc::free(std::ptr::with_exposed_provenance_mut(self.0));
    }
}

/// # Safety
/// `info` is null or an info in the layout of the host library.
unsafe fn shaped(info: *const fi_info) -> Option<shape::InfoParts> {
    // SAFETY: the caller's contract.
    let hints = unsafe { hints::read(info, host::version()) }?;
    let mut fabric = hints.fabric?;
    // SAFETY: null or a C string, as all names in an info.
    let prov_name = unsafe { string(fabric.prov_name) }.map(CStr::to_owned);
    fabric.prov_name = std::ptr::null_mut();
    let mut domain = hints.domain?;
    (domain.auth_key, domain.auth_key_size) = (std::ptr::null_mut(), 0);
    let mut ep = hints.ep?;
    (ep.auth_key, ep.auth_key_size) = (std::ptr::null_mut(), 0);
    let addr = |bytes: Option<&[u8]>| bytes.and_then(|b| b.first_chunk::<ADDR_LEN>().copied());
    Some(shape::InfoParts {
        caps: hints.caps,
        mode: hints.mode,
        src: addr(hints.src).unwrap_or_default(),
        dest: addr(hints.dest),
        handle: std::ptr::null_mut(),
        tx: hints.tx?,
        rx: hints.rx?,
        ep,
        domain,
        fabric,
        prov_name,
    })
}
