// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address format of the provider: sixteen bytes that any libfabric program can treat as a `struct
//! sockaddr_in`.
//!
//! ```text
//!  0  2  sin_family   AF_INET, byte order of the machine
//!  2  2  sin_port     the SCIF port, network byte order
//!  4  4  sin_addr     over a network, the IP address of its end, which has the SCIF port as
//!                     well; else only checked to be an address of this host
//!  8  2  sin_zero     SCIF node, network byte order
//! 10  1               receive contexts, and
//! 11  1               transmit contexts of a scalable endpoint, whose ports follow `sin_port`
//!                     in this order; else zero
//! 12  4               host, network byte order: hash of the properties that let two processes
//!                     connect; 0 = "this host"
//! ```
//!
//! An address without a host (all of `sin_zero` zero) was typed by a user or returned by a
//! resolver. One with a host was returned by `fi_getname`. The identity is (host, node, port),
//! without `sin_addr` and contexts.
//!
//! Names and interfaces of the machine are in `resolve`, stored addresses in `av`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use scif::{PortId, TransportKind};

use crate::base::attr::MAX_CONTEXTS;
use crate::base::env::env;
use crate::base::net_settings::NetChoice;

/// Length of an address in bytes: `sizeof(struct sockaddr_in)`.
pub(crate) const ADDR_LEN: usize = 16;

/// `AF_INET`, as the value of `sin_family`.
const AF_INET: u16 = 2;

/// Fields of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Addr {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) node: u16,
    /// Hash of the host. 0 is this host, and then `node` is 0 and means the node of the process
    /// that decodes it.
    pub(crate) host: u32,
    /// Contexts of a scalable endpoint.
    pub(crate) group: Option<ContextCounts>,
}

/// Number of contexts of a scalable endpoint, and thus of its consecutive ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContextCounts {
    rx: u8,
    tx: u8,
}

impl ContextCounts {
    /// Returns a group; `None` for numbers of contexts that no endpoint has.
    pub(crate) fn new(rx: usize, tx: usize) -> Option<ContextCounts> {
        let count = |count: usize| {
            u8::try_from(count.max(1)).ok().filter(|c| usize::from(*c) <= MAX_CONTEXTS)
        };
        Some(ContextCounts { rx: count(rx)?, tx: count(tx)? })
    }

    pub(crate) fn rx(self) -> usize {
        usize::from(self.rx)
    }

    pub(crate) fn tx(self) -> usize {
        usize::from(self.tx)
    }

    /// Returns the number of ports of the endpoint.
    pub(crate) fn ports(self) -> usize {
        self.rx() + self.tx()
    }
}

/// Node and host of the process that decodes an address, which decide whether the address is local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalHost {
    pub(crate) node: u16,
    pub(crate) host: u32,
    /// Whether other hosts can be reached over a network.
    pub(crate) networked: bool,
}

impl LocalHost {
    pub(crate) fn of(node: &scif::Node) -> LocalHost {
        let networked = env().net.choice != NetChoice::None && node.kind() == TransportKind::Soft;
        LocalHost { node: node.id(), host: node.host_hash(), networked }
    }
}

/// Reason for which an address has no SCIF port on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddrError {
    /// Too short, or not of the family `AF_INET`.
    Malformed,
    /// Address with the identity of another host.
    OtherHost(Addr),
    /// IP address that is not of this host, in an address without identity.
    OtherIp(Ipv4Addr),
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddrError::Malformed => write!(f, "the address is not a struct sockaddr_in"),
            AddrError::OtherHost(a) => write!(
                f,
                "the endpoint at {a} cannot be reached from here: it is on another host or in \
                 another network namespace, or its process has another SCIF_DOMAIN, \
                 SCIF_RUNTIME_DIR or, without SCIF_DOMAIN, another user; set SCIF_DOMAIN and \
                 SCIF_RUNTIME_DIR alike in all processes of a job (containers of one host share a \
                 directory)"
            ),
            AddrError::OtherIp(ip) => write!(f, "{ip} is not an address of this host"),
        }
    }
}

impl Addr {
    /// Returns an address as a user types it: this host, the node of the decoding process.
    pub(crate) const fn this_host(ip: Ipv4Addr, port: u16) -> Addr {
        Addr { ip, port, node: 0, host: 0, group: None }
    }

    /// Returns the name of a scalable endpoint whose first port is `id`.
    pub(crate) const fn of_group(
        ip: Ipv4Addr,
        id: PortId,
        host: u32,
        group: ContextCounts,
    ) -> Addr {
        Addr { ip, port: id.port, node: id.node, host, group: Some(group) }
    }

    /// Decodes the bytes; `None` when they are too short or of another family.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Addr> {
        let bytes: &[u8; ADDR_LEN] = bytes.first_chunk()?;
        let [f0, f1, p0, p1, a, b, c, d, n0, n1, rx, tx, h0, h1, h2, h3] = *bytes;
        if u16::from_ne_bytes([f0, f1]) != AF_INET {
            return None;
        }
        let host = u32::from_be_bytes([h0, h1, h2, h3]);
        // Without a host, a program may have left the rest of sin_zero uninitialised.
        let node = if host == 0 { 0 } else { u16::from_be_bytes([n0, n1]) };
        let group = if host == 0 || (rx, tx) == (0, 0) {
            None
        } else {
            ContextCounts::new(usize::from(rx), usize::from(tx))
        };
        Some(Addr {
            ip: Ipv4Addr::new(a, b, c, d),
            port: u16::from_be_bytes([p0, p1]),
            node,
            host,
            group,
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; ADDR_LEN] {
        let [f0, f1] = AF_INET.to_ne_bytes();
        let [p0, p1] = self.port.to_be_bytes();
        let [a, b, c, d] = self.ip.octets();
        let [n0, n1] = self.node.to_be_bytes();
        let [h0, h1, h2, h3] = self.host.to_be_bytes();
        let (rx, tx) = self.group.map_or((0, 0), |g| (g.rx, g.tx));
        [f0, f1, p0, p1, a, b, c, d, n0, n1, rx, tx, h0, h1, h2, h3]
    }

    /// Returns the SCIF port of this address.
    ///
    /// # Errors
    /// [`AddrError::OtherHost`] and [`AddrError::OtherIp`] for an address of another host.
    pub(crate) fn port_id(
        &self,
        reader: LocalHost,
        is_local_ip: impl FnOnce(Ipv4Addr) -> bool,
    ) -> Result<PortId, AddrError> {
        let name = SocketAddrV4::new(self.ip, self.port);
        if self.host == 0 {
            return match is_local_ip(self.ip) {
                true => Ok(PortId::new(reader.node, self.port)),
                false if reader.networked => Ok(PortId::abroad(reader.node, name)),
                false => Err(AddrError::OtherIp(self.ip)),
            };
        }
        // The hash of two hosts may agree, so the IP address decides as well.
        if self.host == reader.host && (!reader.networked || is_local_ip(self.ip)) {
            return Ok(PortId::new(self.node, self.port));
        }
        match reader.networked {
            true => Ok(PortId::abroad(self.node, name)),
            false => Err(AddrError::OtherHost(*self)),
        }
    }
}

/// Text of the address in libfabric's form: `fi_sockaddr_in://127.0.0.1:7471`.
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fi_sockaddr_in://{}:{}", self.ip, self.port)
    }
}

/// Returns the bytes of a SCIF port's own name, as `fi_getname` returns it.
pub(crate) fn encode(ip: Ipv4Addr, id: PortId, host: u32) -> [u8; ADDR_LEN] {
    Addr { ip, port: id.port, node: id.node, host, group: None }.to_bytes()
}

/// Returns the address of a peer: for one of another host the address in the network, since the
/// hash of its host is not known.
pub(crate) fn encode_peer(id: PortId, host: u32) -> [u8; ADDR_LEN] {
    match id.network_name() {
        Some(name) => Addr::this_host(*name.ip(), name.port()).to_bytes(),
        None => encode(Ipv4Addr::LOCALHOST, id, host),
    }
}

/// Returns the SCIF port of an address for `reader`.
pub(crate) fn decode(bytes: &[u8], reader: LocalHost) -> Result<PortId, AddrError> {
    Addr::from_bytes(bytes)
        .ok_or(AddrError::Malformed)?
        .port_id(reader, crate::base::resolve::is_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: LocalHost = LocalHost { node: 3, host: 0xdead_beef, networked: false };
    const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

    #[test]
    fn bytes_are_those_of_a_sockaddr_in() {
        let bytes = encode(LOOPBACK, PortId::new(0x0102, 7471), 0x0a0b_0c0d);
        assert_eq!(bytes[..2], 2u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 7471u16.to_be_bytes());
        assert_eq!(bytes[4..8], [127, 0, 0, 1]);
        assert_eq!(bytes[8..], [1, 2, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
    }

    #[test]
    fn name_round_trips() {
        for (node, port, host) in [(0, 0, 1), (7, 65535, u32::MAX), (u16::MAX, 1, 0x8000_0000)] {
            let a = Addr { ip: Ipv4Addr::new(10, 0, 0, 9), port, node, host, group: None };
            assert_eq!(Addr::from_bytes(&a.to_bytes()), Some(a));
            let scalable = Addr { group: ContextCounts::new(3, 64), ..a };
            assert!(scalable.group.is_some());
            assert_eq!(Addr::from_bytes(&scalable.to_bytes()), Some(scalable));
        }
    }

    #[test]
    fn an_address_without_host_is_of_the_readers_node() {
        let a = Addr::this_host(LOOPBACK, 9228);
        assert_eq!(a.port_id(HERE, |_| true), Ok(PortId::new(3, 9228)));
        assert_eq!(a.port_id(HERE, |_| false), Err(AddrError::OtherIp(LOOPBACK)));
    }

    #[test]
    fn litter_in_sin_zero_without_a_host_is_ignored() {
        let mut bytes = Addr::this_host(LOOPBACK, 1).to_bytes();
        bytes[8] = 0x55;
        bytes[10] = 0xaa;
        assert_eq!(Addr::from_bytes(&bytes), Some(Addr::this_host(LOOPBACK, 1)));
    }

    #[test]
    fn numbers_of_contexts_have_bounds() {
        assert_eq!(ContextCounts::new(0, 0), ContextCounts::new(1, 1));
        assert_eq!(ContextCounts::new(64, 3).map(ContextCounts::ports), Some(67));
        assert_eq!(ContextCounts::new(65, 1), None);
        assert_eq!(ContextCounts::new(1, usize::MAX), None);
    }

    #[test]
    fn identity_ignores_the_ip_address() {
        let a =
            Addr { ip: Ipv4Addr::new(8, 8, 8, 8), port: 5, node: 9, host: HERE.host, group: None };
        assert_eq!(a.port_id(HERE, |_| false), Ok(PortId::new(9, 5)));
        let other = Addr { host: 1, ..a };
        assert_eq!(other.port_id(HERE, |_| true), Err(AddrError::OtherHost(other)));
    }

    #[test]
    fn other_hosts_are_ports_abroad_where_there_is_a_network() {
        let here = LocalHost { networked: true, ..HERE };
        let ip = Ipv4Addr::new(10, 77, 0, 2);
        let abroad = |node| Ok(PortId::abroad(node, SocketAddrV4::new(ip, 5)));
        let typed = Addr::this_host(ip, 5);
        assert_eq!(typed.port_id(here, |_| false), abroad(3));
        assert_eq!(typed.port_id(here, |_| true), Ok(PortId::new(3, 5)));
        let named = Addr { node: 9, host: 1, ..typed };
        assert_eq!(named.port_id(here, |_| false), abroad(9));
        assert_eq!(named.port_id(here, |_| true), abroad(9), "another domain on this host");
        let alike = Addr { host: HERE.host, ..named };
        assert_eq!(alike.port_id(here, |_| false), abroad(9), "another host with an equal hash");
        assert_eq!(alike.port_id(here, |_| true), Ok(PortId::new(9, 5)));
    }

    #[test]
    fn short_and_invalid_bytes_are_malformed() {
        let good = Addr::this_host(LOOPBACK, 1).to_bytes();
        assert_eq!(Addr::from_bytes(&good[..15]), None);
        assert_eq!(Addr::from_bytes(&[]), None);
        let mut v6 = good;
        v6[..2].copy_from_slice(&10u16.to_ne_bytes());
        assert_eq!(decode(&v6, HERE), Err(AddrError::Malformed));
    }

    #[test]
    fn text_is_the_one_of_fi_av_straddr() {
        assert_eq!(Addr::this_host(LOOPBACK, 9228).to_string(), "fi_sockaddr_in://127.0.0.1:9228");
    }
}
