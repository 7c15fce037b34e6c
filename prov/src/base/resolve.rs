// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "getaddrinfo and getifaddrs of the C library: lists of C structs")]
//! Name resolution: the IPv4 address and port of a node and a service name, and the IPv4 addresses
//! of this host.
//!
//! The meaning of an address for SCIF is in `addr`.
//!
//! Mirrors getaddrinfo(3) and getifaddrs(3).

use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::ptr;

/// Returns the IPv4 address and port of `node` and `service`; the loopback address without a node,
/// port 0 without a service. `None` when either does not resolve.
pub(crate) fn resolve(
    node: Option<&CStr>,
    service: Option<&CStr>,
    numeric_host: bool,
) -> Option<(Ipv4Addr, u16)> {
    if node.is_none() && service.is_none() {
        return Some((Ipv4Addr::LOCALHOST, 0));
    }
    // SAFETY: addrinfo consists of integers and nullable pointers, for which zero is valid.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_INET;
    // One entry per address. Services of a single protocol still resolve.
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_flags = if numeric_host { libc::AI_NUMERICHOST } else { 0 };
    let as_ptr = |s: Option<&CStr>| s.map_or(ptr::null(), CStr::as_ptr);
    let mut list: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: both strings are null or end in NUL (CStr), hints is initialised, list receives the
    // result.
    let status = unsafe {
        libc::getaddrinfo(as_ptr(node), as_ptr(service), &raw const hints, &raw mut list)
    };
    if status != 0 {
        return None;
    }
    // SAFETY: getaddrinfo succeeded, so list is null or its first entry, alive until freeaddrinfo
    // below.
    let first = unsafe { list.as_ref() };
    // SAFETY: ai_addr is null or points at ai_addrlen bytes of a socket address.
    let found = first.and_then(|info| unsafe { sockaddr_v4(info.ai_addr) });
    if !list.is_null() {
        // SAFETY: list came from getaddrinfo and is not used below.
        unsafe { libc::freeaddrinfo(list) };
    }
    found
}

/// Whether `ip` is an address of this host: the loopback net, the unspecified address, or one of an
/// interface.
pub(crate) fn is_local(ip: Ipv4Addr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: list receives the result.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return false;
    }
    let mut found = false;
    let mut next = list;
    // SAFETY: next is null or an entry of the list, alive until freeifaddrs below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: ifa_addr is null or points at a whole socket address of its family.
        found |= unsafe { sockaddr_v4(entry.ifa_addr) }.is_some_and(|(own, _)| own == ip);
        next = entry.ifa_next;
    }
    if !list.is_null() {
        // SAFETY: list came from getifaddrs and is not used below.
        unsafe { libc::freeifaddrs(list) };
    }
    found
}

/// Returns address and port of a socket address of family `AF_INET`; `None` for others.
///
/// # Safety
/// `addr` is null or points to a socket address of the length of its family.
unsafe fn sockaddr_v4(addr: *const libc::sockaddr) -> Option<(Ipv4Addr, u16)> {
    // SAFETY: the caller's contract.
    let family = unsafe { addr.as_ref() }?.sa_family;
    if i32::from(family) != libc::AF_INET {
        return None;
    }
    // SAFETY: the family guarantees a sockaddr_in (caller's contract); the read needs no alignment.
    let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
    Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_request_is_loopback() {
        assert_eq!(resolve(None, None, false), Some((Ipv4Addr::LOCALHOST, 0)));
    }

    #[test]
    fn numbers_resolve_without_a_name_server() {
        assert_eq!(
            resolve(Some(c"10.1.2.3"), Some(c"9228"), true),
            Some((Ipv4Addr::new(10, 1, 2, 3), 9228))
        );
        assert_eq!(resolve(None, Some(c"9228"), false), Some((Ipv4Addr::LOCALHOST, 9228)));
        assert_eq!(resolve(Some(c"localhost"), None, true), None);
        assert_eq!(resolve(Some(c"127.0.0.1"), Some(c"no such service"), true), None);
    }

    #[test]
    fn own_addresses_are_local_and_others_are_not() {
        assert!(is_local(Ipv4Addr::LOCALHOST));
        assert!(is_local(Ipv4Addr::new(127, 8, 9, 1)));
        assert!(is_local(Ipv4Addr::UNSPECIFIED));
        // TEST-NET-1 is assigned to no host (RFC 5737).
        assert!(!is_local(Ipv4Addr::new(192, 0, 2, 77)));
        assert!(!is_local(Ipv4Addr::BROADCAST));
    }
}
