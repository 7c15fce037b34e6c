// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "reads a C structure and what it points to")]
//! Hints of a program, read once into safe values.
//!
//! The host library allocated them at its own size. Fields added by a later release are read only
//! from hosts that have them.

use std::ffi::CStr;
use std::{mem, ptr};

use libfabric_sys::{
    fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr, fi_version, fid_t,
};

use crate::base::entry::string;

/// `struct fi_info` of a program. Missing attributes are `None`. Pointers inside the attributes
/// must not be dereferenced; the data they refer to is in the fields beside them.
#[derive(Clone, Debug)]
pub(super) struct Hints<'a> {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src: Option<&'a [u8]>,
    pub(super) dest: Option<&'a [u8]>,
    /// Handle that only `fi_endpoint` interprets.
    pub(super) handle: fid_t,
    pub(super) tx: Option<fi_tx_attr>,
    pub(super) rx: Option<fi_rx_attr>,
    pub(super) ep: Option<fi_ep_attr>,
    pub(super) domain: Option<fi_domain_attr>,
    pub(super) domain_name: Option<&'a CStr>,
    pub(super) fabric: Option<fi_fabric_attr>,
    pub(super) fabric_name: Option<&'a CStr>,
    pub(super) prov_name: Option<&'a CStr>,
}

impl Hints<'_> {
    /// Whether the hints contain the name of this provider.
    pub(super) fn names_provider(&self) -> bool {
        self.prov_name.is_some_and(|name| name == crate::base::attr::NAME)
    }
}

impl Default for Hints<'_> {
    fn default() -> Self {
        Hints {
            caps: 0,
            mode: 0,
            addr_format: 0,
            src: None,
            dest: None,
            handle: ptr::null_mut(),
            tx: None,
            rx: None,
            ep: None,
            domain: None,
            domain_name: None,
            fabric: None,
            fabric_name: None,
            prov_name: None,
        }
    }
}

/// Returns the size in bytes of `struct fi_domain_attr` in a library of version `host`.
fn domain_attr_len(host: u32) -> usize {
    let all = size_of::<fi_domain_attr>();
    if host >= fi_version(2, 5) {
        all
    } else if host >= fi_version(2, 0) {
        mem::offset_of!(fi_domain_attr, max_cntr_value)
    } else if host >= fi_version(1, 20) {
        mem::offset_of!(fi_domain_attr, max_group_id)
    } else {
        mem::offset_of!(fi_domain_attr, max_ep_auth_key)
    }
}

/// # Safety
/// `info` is null or points to an info in the layout of library version `host`, unchanged during
/// `'a`.
pub(super) unsafe fn read<'a>(info: *const fi_info, host: u32) -> Option<Hints<'a>> {
    // SAFETY: null or an info, whose size never changed, by the caller's contract.
    let info = unsafe { info.as_ref() }?;
    // SAFETY: null or an attribute whose size never changed, by the caller's contract.
    let fabric = unsafe { info.fabric_attr.as_ref() }.copied();
    // SAFETY: as above.
    let ep = unsafe { info.ep_attr.as_ref() }.copied();
    // SAFETY: as above.
    let tx = unsafe { info.tx_attr.as_ref() }.copied();
    // SAFETY: as above.
    let rx = unsafe { info.rx_attr.as_ref() }.copied();
    // SAFETY: null or the size of such a host's attribute.
    let domain = unsafe { prefix(info.domain_attr, domain_attr_len(host)) };
    // SAFETY: null or src_addrlen bytes.
    let src = unsafe { bytes(info.src_addr.cast(), info.src_addrlen) };
    // SAFETY: null or dest_addrlen bytes.
    let dest = unsafe { bytes(info.dest_addr.cast(), info.dest_addrlen) };
    Some(Hints {
        caps: info.caps,
        mode: info.mode,
        addr_format: info.addr_format,
        src,
        dest,
        handle: info.handle,
        tx,
        rx,
        ep,
        domain,
        // SAFETY: null or a C string.
        domain_name: domain.and_then(|d| unsafe { string(d.name) }),
        fabric,
        // SAFETY: null or a C string.
        fabric_name: fabric.and_then(|f| unsafe { string(f.name) }),
        // SAFETY: null or a C string.
        prov_name: fabric.and_then(|f| unsafe { string(f.prov_name) }),
    })
}

/// Copies a domain attribute of which only the first `len` bytes exist; the rest is zero.
///
/// # Safety
/// `from` is null or `len` bytes of it can be read.
unsafe fn prefix(from: *const fi_domain_attr, len: usize) -> Option<fi_domain_attr> {
    if from.is_null() {
        return None;
    }
    let mut to = fi_domain_attr::ZERO;
    let len = len.min(size_of::<fi_domain_attr>());
    // SAFETY: len bytes can be read (caller's contract) and written (min above); two objects do not
    // overlap.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut to).cast::<u8>(), len) };
    Some(to)
}

/// # Safety
/// `from` is null or points to `len` bytes that stay unchanged during `'a`.
unsafe fn bytes<'a>(from: *const u8, len: usize) -> Option<&'a [u8]> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller's contract; an impossible length is refused by the callee.
    unsafe { crate::base::entry::slice(from, len) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_attribute_has_the_size_of_each_release() {
        let len = |major, minor| domain_attr_len(fi_version(major, minor));
        assert_eq!(
            [len(1, 17), len(1, 20), len(2, 0), len(2, 4), len(2, 5), len(2, 6)],
            [192, 200, 208, 208, 224, 224]
        );
    }

    #[test]
    fn new_fields_of_old_hosts_are_not_read() {
        let mut domain = fi_domain_attr::ZERO;
        domain.mr_cnt = 5;
        domain.max_ep_auth_key = 6;
        domain.max_cntr_value = 7;
        let info = fi_info { domain_attr: &raw mut domain, ..fi_info::ZERO };
        // SAFETY: a whole info.
        let old = unsafe { read(&raw const info, fi_version(1, 17)) }.unwrap().domain.unwrap();
        assert_eq!((old.mr_cnt, old.max_ep_auth_key, old.max_cntr_value), (5, 0, 0));
        // SAFETY: a whole info.
        let new = unsafe { read(&raw const info, fi_version(2, 5)) }.unwrap().domain.unwrap();
        assert_eq!((new.mr_cnt, new.max_ep_auth_key, new.max_cntr_value), (5, 6, 7));
    }

    #[test]
    fn null_is_no_hints() {
        // SAFETY: null is allowed.
        assert!(unsafe { read(ptr::null(), fi_version(2, 5)) }.is_none());
    }
}
