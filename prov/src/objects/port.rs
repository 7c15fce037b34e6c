// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! SCIF ports of endpoints, as source addresses request them.
//!
//! The meaning of the bytes of an address is in `addr`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{Endpoint, Exports, NetWire, OpDecoder, PortId, SharedKeys};

use crate::base::addr::{self, Addr, AddrError, LocalHost};
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::base::reason;
use crate::domain::DomainShared;
use crate::engine::types::wire::operation;
use crate::net::{self, EndpointWire, NetDomain};
use crate::state::fabric::FabricShared;

/// Maximum number of ports tried until one is free in the network and on this host. Both choose at
/// random, so a second one is rare.
const NUMBERS: usize = 64;

/// Returns the IP address in the name of an endpoint whose source address was `src`.
pub(crate) fn ip_of(src: &[u8]) -> Ipv4Addr {
    Addr::from_bytes(src)
        .map(|a| a.ip)
        .filter(|ip| !ip.is_unspecified())
        .unwrap_or(Ipv4Addr::LOCALHOST)
}

/// Decodes an address. A failure is logged, with the `purpose` that the endpoint cannot fulfil.
fn decoded(bytes: &[u8], reader: LocalHost, purpose: &str) -> Result<PortId, Errno> {
    addr::decode(bytes, reader).map_err(|e| {
        reason::warn_about_call(Subsys::EpCtrl, format_args!("an endpoint cannot {purpose}: {e}"));
        match e {
            AddrError::Malformed => fi::FI_EINVAL,
            AddrError::OtherHost(_) | AddrError::OtherIp(_) => fi::FI_EADDRNOTAVAIL,
        }
    })
}

/// Returns the port that `src` requests; number 0, any port, when it is empty.
pub(crate) fn requested(fabric: &FabricShared, src: &[u8]) -> Result<PortId, Errno> {
    let reader = LocalHost::of(&fabric.node);
    if src.is_empty() {
        return Ok(PortId::new(reader.node, 0));
    }
    let id = decoded(src, reader, "have this address")?;
    if id.place != 0 {
        reason::warn_about_call(
            Subsys::EpCtrl,
            format_args!("an endpoint cannot have the address {id} of another host"),
        );
        return Err(fi::FI_EADDRNOTAVAIL);
    }
    if id.node == reader.node {
        return Ok(id);
    }
    reason::warn_about_call(
        Subsys::EpCtrl,
        format_args!(
            "an endpoint of node {} cannot have an address of node {}",
            reader.node, id.node
        ),
    );
    Err(fi::FI_EADDRNOTAVAIL)
}

/// Returns the port that a connected endpoint is to reach, on any node.
///
/// # Errors
/// `FI_EINVAL` for a malformed address, `FI_EADDRNOTAVAIL` for one of another host without a
/// network.
pub(crate) fn destination(fabric: &FabricShared, dst: &[u8]) -> Result<PortId, Errno> {
    decoded(dst, LocalHost::of(&fabric.node), "connect")
}

/// Binds the SCIF port that `src` requests, or any port without a request. With `networked`, other
/// hosts reach it as well, if the user has chosen a network.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL` for an address of another host, `FI_EINVAL` for a malformed
/// address, and errors of the system and of the network.
pub(crate) fn take_port(
    dom: &DomainShared,
    src: &[u8],
    networked: bool,
) -> Result<Endpoint, Errno> {
    let wanted = requested(&dom.fabric, src)?.port;
    match net::chosen(&dom.fabric.node) {
        providers if networked && !providers.is_empty() => {
            let net = dom.network(providers)?;
            bind_networked(&dom.fabric, net, Some(&dom.keys), (ip_of(src), wanted))
        }
        _ => bind(dom, wanted),
    }
}

/// Binds SCIF port `wanted` of a scalable endpoint at `ip`. Other hosts reach it as well, if the
/// user has chosen a network. A number in use is not logged, since the caller tries others.
///
/// # Errors
/// As [`take_port`].
pub(crate) fn take_next_port(
    dom: &DomainShared,
    ip: Ipv4Addr,
    wanted: u16,
) -> Result<Endpoint, Errno> {
    match net::chosen(&dom.fabric.node) {
        [] => bind(dom, wanted),
        providers => {
            let net = dom.network(providers)?;
            let keys = Some(&dom.keys);
            bind_number(&dom.fabric, net, keys, (ip, wanted))?.ok_or(fi::FI_EADDRINUSE)
        }
    }
}

/// Binds the SCIF port of a passive endpoint, as [`take_port`]. Its connections export no keys, so
/// peers get no memory access.
///
/// # Errors
/// As [`take_port`].
pub(crate) fn take_passive_port(fabric: &FabricShared, src: &[u8]) -> Result<Endpoint, Errno> {
    let wanted = requested(fabric, src)?.port;
    match net::chosen(&fabric.node) {
        [] => Endpoint::bind(&fabric.node, wanted, Exports { keys: None })
            .map_err(|e| errno::errno(&e)),
        providers => {
            let net = NetDomain::open(&fabric.net, providers)?;
            bind_networked(fabric, net, None, (ip_of(src), wanted))
        }
    }
}

/// Binds one number in the network and on this host.
fn bind_networked(
    fabric: &FabricShared,
    net: &Arc<NetDomain>,
    keys: Option<&Arc<SharedKeys>>,
    (ip, wanted): (Ipv4Addr, u16),
) -> Result<Endpoint, Errno> {
    for _ in 0..if wanted == 0 { NUMBERS } else { 1 } {
        if let Some(bound) = bind_number(fabric, net, keys, (ip, wanted))? {
            return Ok(bound);
        }
    }
    reason::warn_about_call(
        Subsys::EpCtrl,
        format_args!(
            "no port number is free both in the network {} and on this host: close endpoints, or \
             request another port",
            net.provider().to_string_lossy()
        ),
    );
    Err(fi::FI_EADDRINUSE)
}

/// Makes one attempt to bind one number in the network and on this host. `None`: another process
/// has that number on this host.
fn bind_number(
    fabric: &FabricShared,
    net: &Arc<NetDomain>,
    keys: Option<&Arc<SharedKeys>>,
    (ip, wanted): (Ipv4Addr, u16),
) -> Result<Option<Endpoint>, Errno> {
    let wire = EndpointWire::open(net, ip, wanted)?;
    let port = wire.name().port();
    let exports = Exports { keys: keys.map(Arc::clone) };
    let network: (Box<dyn NetWire>, OpDecoder) = (Box::new(wire), operation);
    match Endpoint::bind_over(&fabric.node, port, exports, Some(network)) {
        Err(scif::Error::PortInUse(_)) => Ok(None),
        bound => bound.map(Some).map_err(|e| errno::errno(&e)),
    }
}

/// Binds a SCIF port of the own node; any port for number 0.
///
/// # Errors
/// `FI_EADDRINUSE` and errors of the system.
pub(crate) fn bind(dom: &DomainShared, port: u16) -> Result<Endpoint, Errno> {
    let exports = Exports { keys: Some(Arc::clone(&dom.keys)) };
    Endpoint::bind(&dom.fabric.node, port, exports).map_err(|e| errno::errno(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_the_requested_ip_address() {
        let ten = Ipv4Addr::new(10, 0, 0, 9);
        assert_eq!(ip_of(&Addr::this_host(ten, 7).to_bytes()), ten);
        assert_eq!(
            ip_of(&Addr::this_host(Ipv4Addr::UNSPECIFIED, 7).to_bytes()),
            Ipv4Addr::LOCALHOST
        );
        assert_eq!(ip_of(&[]), Ipv4Addr::LOCALHOST);
    }
}
