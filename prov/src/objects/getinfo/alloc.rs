// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "builds C structures in C's heap")]
//! Lists of `fi_info` in C's heap. The host frees each structure with free(3). It copies each
//! structure with the size that the structure has in the host's own release.
//!
//! Therefore every structure comes from calloc(3), with more bytes than it has in any release. A
//! host newer than this source reads zeroes after the fields written here.

use std::ffi::{CStr, c_char};
use std::ptr;

use libfabric_sys::{
    FI_SOCKADDR_IN, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr,
};

use super::shape::InfoParts;
use crate::base::attr::NAME;

/// Minimum size in bytes of an info and its attributes. The largest was 120 bytes in every release
/// so far.
const ROOM: usize = 256;
/// Minimum size in bytes of a domain attribute, the only one that grew since 1.17.
const DOMAIN_ROOM: usize = 512;

const _: () = {
    assert!(size_of::<fi_info>() <= ROOM);
    assert!(size_of::<fi_tx_attr>() <= ROOM);
    assert!(size_of::<fi_rx_attr>() <= ROOM);
    assert!(size_of::<fi_ep_attr>() <= ROOM);
    assert!(size_of::<fi_fabric_attr>() <= ROOM);
    assert!(size_of::<fi_domain_attr>() <= DOMAIN_ROOM);
};

/// Returns the infos as a list; null for no info. `None` without memory.
pub(super) fn list(infos: &[InfoParts]) -> Option<*mut fi_info> {
    let mut head = ptr::null_mut();
    for info in infos.iter().rev() {
        let parts = fi_info { next: head, ..parts(info) };
        let node = if is_whole(&parts, info) { piece(parts, ROOM) } else { ptr::null_mut() };
        if node.is_null() {
            release_parts(&parts);
            free(head);
            return None;
        }
        head = node;
    }
    Some(head)
}

/// Frees a list made by [`list`].
pub(super) fn free(mut head: *mut fi_info) {
    // SAFETY: null or an info of the list, read before it is freed.
    while let Some(&info) = unsafe { head.as_ref() } {
        release_parts(&info);
        release(head);
        head = info.next;
    }
}

/// Returns an info whose parts are in C's heap, or null where memory ran out.
fn parts(from: &InfoParts) -> fi_info {
    let domain = |name| piece(fi_domain_attr { name, ..from.domain }, DOMAIN_ROOM);
    let prov_name = from.prov_name.as_deref().map_or(ptr::null_mut(), copy);
    let fabric = |name| {
        let attr = fi_fabric_attr { name, prov_name, ..from.fabric };
        piece(attr, ROOM)
    };
    fi_info {
        caps: from.caps,
        mode: from.mode,
        addr_format: FI_SOCKADDR_IN,
        src_addr: piece(from.src, 0).cast(),
        src_addrlen: from.src.len(),
        dest_addr: from.dest.map_or(ptr::null_mut(), |dest| piece(dest, 0)).cast(),
        dest_addrlen: from.dest.map_or(0, |dest| dest.len()),
        handle: from.handle,
        tx_attr: piece(from.tx, ROOM),
        rx_attr: piece(from.rx, ROOM),
        ep_attr: piece(from.ep, ROOM),
        domain_attr: with_name(domain),
        fabric_attr: with_name(fabric),
        ..fi_info::ZERO
    }
}

fn is_whole(parts: &fi_info, from: &InfoParts) -> bool {
    !parts.src_addr.is_null()
        && parts.dest_addr.is_null() == from.dest.is_none()
        && !parts.tx_attr.is_null()
        && !parts.rx_attr.is_null()
        && !parts.ep_attr.is_null()
        && !parts.domain_attr.is_null()
        && !parts.fabric_attr.is_null()
}

fn release_parts(info: &fi_info) {
    // SAFETY: null or an attribute made by `parts`.
    release(unsafe { info.domain_attr.as_ref() }.map_or(ptr::null_mut(), |domain| domain.name));
    // SAFETY: null or an attribute made by `parts`.
    if let Some(fabric) = unsafe { info.fabric_attr.as_ref() } {
        release(fabric.name);
        release(fabric.prov_name);
    }
    release(info.src_addr);
    release(info.dest_addr);
    release(info.tx_attr);
    release(info.rx_attr);
    release(info.ep_attr);
    release(info.domain_attr);
    release(info.fabric_attr);
}

/// Returns a part that owns a copy of the provider's name; null without memory for both.
fn with_name<T>(make: impl FnOnce(*mut c_char) -> *mut T) -> *mut T {
    let name = copy(NAME);
    let whole = if name.is_null() { ptr::null_mut() } else { make(name) };
    if whole.is_null() {
        release(name);
    }
    whole
}

/// Returns a copy of a string in C's heap; null without memory.
fn copy(name: &CStr) -> *mut c_char {
    // SAFETY: a C string.
    unsafe { libc::strdup(name.as_ptr()) }
}

/// Returns `value` in zeroed memory of C's heap, of at least `room` bytes; null without memory.
fn piece<T: Copy>(value: T, room: usize) -> *mut T {
    const { assert!(align_of::<T>() <= align_of::<libc::max_align_t>()) };
    // SAFETY: any size is valid, and a null result is checked.
    let memory = unsafe { libc::calloc(1, room.max(size_of::<T>())) }.cast::<T>();
    if !memory.is_null() {
        // SAFETY: of at least T's size and of calloc's alignment, which is T's or more.
        unsafe { memory.write(value) };
    }
    memory
}

fn release<T>(piece: *mut T) {
    // SAFETY: null or a part of C's heap made in this file, whose only owner releases it.
    unsafe { libc::free(piece.cast()) };
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::net::Ipv4Addr;

    use super::super::{matching::InfoRequest, shape::shape};
    use super::*;
    use crate::base::addr::Addr;
    use crate::base::attr::OFFERS;

    #[test]
    fn a_list_holds_everything_and_can_be_freed() {
        let host = libfabric_sys::fi_version(2, 5);
        let addr = Addr::this_host(Ipv4Addr::LOCALHOST, 9228);
        let info = shape(
            &OFFERS[0],
            &InfoRequest { version: host, host, hints: None },
            (addr, Some(addr)),
        );
        let head = list(&[info.clone(), info]).unwrap();
        // SAFETY: made above.
        let first = unsafe { *head };
        assert!(!first.next.is_null());
        assert_eq!(
            (first.src_addrlen, first.dest_addrlen, first.addr_format),
            (16, 16, FI_SOCKADDR_IN)
        );
        // SAFETY: made above.
        let domain = unsafe { *first.domain_attr };
        assert_eq!(domain.cq_data_size, 8);
        // SAFETY: made above.
        assert_eq!(unsafe { CStr::from_ptr(domain.name) }, c"scif");
        free(head);
    }

    #[test]
    fn no_infos_are_a_null_list() {
        assert_eq!(list(&[]), Some(ptr::null_mut()));
        free(ptr::null_mut());
    }
}
