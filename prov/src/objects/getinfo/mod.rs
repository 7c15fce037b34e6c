// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "the thunk of fi_getinfo")]
//! `fi_getinfo`: the offers of the provider that fit a program's request.
//!
//! Hints are read once into safe values (`hints`) and compared with the tables of `attr`
//! (`matching`). Fitting offers become answers (`shape`) in memory that C can own (`alloc`). An
//! answer is always accepted as hints of the next call.
//!
//! Mirrors fi_getinfo(3).

mod alloc;
mod hints;
mod matching;
pub(crate) mod owned;
mod shape;

use std::ffi::{CStr, c_char, c_int};
use std::net::Ipv4Addr;

use libfabric_sys::{FI_EINVAL, FI_ENODATA, FI_ENOMEM, FI_NUMERICHOST, FI_SOURCE, fi_info};

use crate::base::addr::{Addr, AddrError, LocalHost};
use crate::base::attr::OFFERS;
use crate::base::entry::{guard_int, put, string};
use crate::base::env;
use crate::base::errno::Errno;
use crate::base::log::{Subsys, info};
use crate::base::net_settings::NetChoice;
use crate::base::{host, reason, resolve};
use crate::net;
use hints::Hints;
use shape::{Addrs, InfoParts};

/// `getinfo`
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guard_int("fi_getinfo", || {
        let host = host::version();
        // SAFETY: null or a C string, by the contract of fi_getinfo.
        let node = unsafe { string(node) };
        // SAFETY: null or a C string, by the contract of fi_getinfo.
        let service = unsafe { string(service) };
        // SAFETY: null or an info in the layout of the host library, by the contract of fi_getinfo.
        let hints = unsafe { hints::read(hints, host) };
        let request = GetInfoArgs { version, host, node, service, flags, hints };
        // No match is no error: libfabric queries every provider, and most have no fitting offer.
        let infos = reason::expected(FI_ENODATA, answer(&request))?;
        let list = alloc::list(&infos).ok_or(FI_ENOMEM)?;
        // SAFETY: null or the caller's space for the result.
        unsafe { put(info, list) }.inspect_err(|_| alloc::free(list))
    })
}

/// Arguments of one call.
struct GetInfoArgs<'a> {
    /// Interface version for which the program was written; 0 accepts any.
    version: u32,
    /// Version of the calling library.
    host: u32,
    node: Option<&'a CStr>,
    service: Option<&'a CStr>,
    flags: u64,
    hints: Option<Hints<'a>>,
}

fn answer(request: &GetInfoArgs<'_>) -> Result<Vec<InfoParts>, Errno> {
    if request.flags & FI_SOURCE != 0 && request.node.is_none() && request.service.is_none() {
        return Err(FI_EINVAL);
    }
    let asked = matching::InfoRequest {
        version: request.version,
        host: request.host,
        hints: request.hints.as_ref(),
    };
    let fitting: Vec<_> = OFFERS
        .iter()
        .filter(|offer| match matching::check(offer, &asked) {
            Ok(()) => true,
            Err(miss) => {
                info(
                    Subsys::Core,
                    format_args!(
                        "endpoint type {} does not match the hints: {miss}",
                        offer.ep_type
                    ),
                );
                false
            }
        })
        .collect();
    // Names are resolved only after an offer matched: layered providers often query without a
    // match.
    if fitting.is_empty() {
        return Err(FI_ENODATA);
    }
    let addrs = addresses(request)?;
    Ok(fitting.into_iter().map(|offer| shape::shape(offer, &asked, addrs)).collect())
}

fn addresses(request: &GetInfoArgs<'_>) -> Result<Addrs, Errno> {
    let hinted = |bytes: Option<&[u8]>| match bytes {
        None => Ok(None),
        Some(bytes) => Addr::from_bytes(bytes).map(Some).ok_or(FI_ENODATA),
    };
    let hints = request.hints.as_ref();
    let mut source = hinted(hints.and_then(|h| h.src))?;
    let mut dest = hinted(hints.and_then(|h| h.dest))?;
    if request.node.is_some() || request.service.is_some() {
        let numeric = request.flags & FI_NUMERICHOST != 0;
        let (ip, port) =
            resolve::resolve(request.node, request.service, numeric).ok_or(FI_ENODATA)?;
        let named = Some(Addr::this_host(ip, port));
        if request.flags & FI_SOURCE != 0 { source = named } else { dest = named }
    }
    let named = hints.is_some_and(Hints::names_provider);
    for addr in [source, dest].into_iter().flatten() {
        reachable(addr, named)?;
    }
    // The source has the address of a peer on this host, but not of one on another.
    let ip = dest.map(|addr| addr.ip).filter(|ip| resolve::is_local(*ip));
    let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST);
    Ok((source.unwrap_or(Addr::this_host(ip, 0)), dest))
}

/// Checks that an address belongs to this host. An address with a host identity comes from an
/// endpoint of this provider. Without one it may be meant for other providers, unless the hints
/// contain the name of this one (`named`).
fn reachable(addr: Addr, named: bool) -> Result<(), Errno> {
    let bare = LocalHost { node: 0, host: 0, networked: false };
    if addr.host == 0 && addr.port_id(bare, resolve::is_local).is_ok() {
        return Ok(());
    }
    if addr.host == 0 && !named && env::env().net.choice == NetChoice::None {
        info(Subsys::Core, format_args!("{}", AddrError::OtherIp(addr.ip)));
        return Err(FI_ENODATA);
    }
    let node = crate::state::fabric::open_node().map_err(|_| {
        info(
            Subsys::Core,
            format_args!(
                "address {addr}: no SCIF node could be opened to compare it with: FI_ENODATA"
            ),
        );
        FI_ENODATA
    })?;
    addr.port_id(LocalHost::of(&node), resolve::is_local).map(drop).map_err(|why| {
        crate::base::log::foreign_address(&why, &node, net::suggested);
        FI_ENODATA
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(
        node: Option<&'a CStr>,
        service: Option<&'a CStr>,
        flags: u64,
    ) -> GetInfoArgs<'a> {
        let host = libfabric_sys::fi_version(2, 5);
        GetInfoArgs { version: host, host, node, service, flags, hints: None }
    }

    const OWN: Addr = Addr::this_host(Ipv4Addr::LOCALHOST, 0);

    #[test]
    fn source_needs_something_to_resolve() {
        assert_eq!(answer(&request(None, None, FI_SOURCE)).err(), Some(FI_EINVAL));
    }

    #[test]
    fn source_address_is_always_set() {
        assert_eq!(addresses(&request(None, None, 0)), Ok((OWN, None)));
        let dest = Addr::this_host(Ipv4Addr::new(127, 0, 0, 2), 9228);
        let found = addresses(&request(Some(c"127.0.0.2"), Some(c"9228"), 0));
        assert_eq!(found, Ok((Addr::this_host(dest.ip, 0), Some(dest))));
    }

    #[test]
    fn flags_select_source_or_destination() {
        let port = Addr { port: 9228, ..OWN };
        assert_eq!(addresses(&request(None, Some(c"9228"), FI_SOURCE)), Ok((port, None)));
        assert_eq!(addresses(&request(None, Some(c"9228"), 0)), Ok((OWN, Some(port))));
    }

    #[test]
    fn other_hosts_and_unknown_names_have_no_data() {
        // TEST-NET-1 is assigned to no host (RFC 5737).
        assert_eq!(addresses(&request(Some(c"192.0.2.77"), None, 0)), Err(FI_ENODATA));
        assert_eq!(
            addresses(&request(Some(c"no such host"), None, FI_NUMERICHOST)),
            Err(FI_ENODATA)
        );
    }

    #[test]
    fn hinted_addresses_are_kept_unless_replaced() {
        let source = Addr::this_host(Ipv4Addr::new(127, 0, 0, 3), 77).to_bytes();
        let dest = Addr::this_host(Ipv4Addr::new(127, 0, 0, 4), 78).to_bytes();
        let mut request = request(None, None, 0);
        request.hints = Some(Hints { src: Some(&source), dest: Some(&dest), ..Hints::default() });
        assert_eq!(
            addresses(&request),
            Ok((Addr::from_bytes(&source).unwrap(), Addr::from_bytes(&dest)))
        );
        request.service = Some(c"79");
        assert_eq!(addresses(&request).unwrap().1, Some(Addr { port: 79, ..OWN }));
        request.hints = Some(Hints { src: Some(&source[..8]), ..Hints::default() });
        assert_eq!(addresses(&request), Err(FI_ENODATA));
    }
}
