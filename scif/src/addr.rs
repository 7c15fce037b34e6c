// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Names of an endpoint on a host, and of the host.
//!
//! Not about the encoding in a fabric address, nor about socket names. Mirrors `struct scif_portID`
//! of `scif.h`.

use std::fmt;
use std::net::SocketAddrV4;
use std::ops::RangeInclusive;
use std::path::Path;

use rustix::io::Errno;

use crate::places;
use crate::sys::process;
use crate::sys::time::now_ns;

/// Ports assigned on bind without a port number. Lower ports are reserved for services with known
/// numbers.
pub const DYNAMIC_PORTS: RangeInclusive<u16> = 1089..=u16::MAX;

/// Returns all dynamic ports, beginning with one that no other process has tried lately. A socket
/// of the port shows whether it is free.
pub fn dynamic_ports() -> impl Iterator<Item = u16> {
    let hint = first_choice(now_ns(), process::pid());
    DYNAMIC_PORTS.skip(hint).chain(DYNAMIC_PORTS.take(hint))
}

/// Returns the offset in the dynamic ports at which process `pid` begins its search for a free one,
/// `nanoseconds` after the start of the host.
///
/// Searches within 0.6 s begin at different ports, unless they begin in one millisecond and their
/// pids are equal modulo 97. So operations that name a dead endpoint end before its port comes up
/// again. Pids alone do not suffice: in containers they are all alike. Nor does the clock alone:
/// two processes may begin in one millisecond.
fn first_choice(nanoseconds: u64, pid: i32) -> usize {
    let milliseconds = nanoseconds / 1_000_000 % DYNAMIC_PORTS.len() as u64;
    let place = milliseconds * 97 + u64::from(pid.unsigned_abs() % 97);
    usize::try_from(place).unwrap_or(0) % DYNAMIC_PORTS.len()
}

/// A port of a node: the identity of an endpoint on its host.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId {
    /// SCIF node.
    pub node: u16,
    /// Port on that node; 0 for none.
    pub port: u16,
    /// Host, as this process numbers it (`places`); 0 for this one. It has no meaning to others.
    pub place: u32,
}

impl PortId {
    /// Returns a port of this host.
    #[must_use]
    pub const fn new(node: u16, port: u16) -> PortId {
        PortId { node, port, place: 0 }
    }

    /// Returns the port of the endpoint of `node` that others reach at `name` over a network.
    #[must_use]
    pub fn abroad(node: u16, name: SocketAddrV4) -> PortId {
        PortId { node, port: name.port(), place: places::number_of(*name.ip()) }
    }

    /// Returns the name of a port of another host in its network; `None` for one of this host.
    #[must_use]
    pub fn network_name(&self) -> Option<SocketAddrV4> {
        Some(SocketAddrV4::new(places::ip_of(self.place)?, self.port))
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network_name() {
            None => write!(f, "{}:{}", self.node, self.port),
            Some(name) => write!(f, "{name} (node {})", self.node),
        }
    }
}

/// Returns 32 bits that are equal for two processes exactly if they can reach each other's
/// endpoints by number. They depend on the boot of this host, the network namespace or the
/// directory of the sockets, and the domain. Never 0.
pub(crate) fn host_hash(runtime_dir: Option<&Path>, domain: &str) -> Result<u32, Errno> {
    let (device, inode) = match runtime_dir {
        Some(dir) => process::file_id(dir)?,
        None => process::network_namespace(),
    };
    let mut bytes = process::host_ids();
    bytes.push(u8::from(runtime_dir.is_some()));
    bytes.extend(device.to_le_bytes());
    bytes.extend(inode.to_le_bytes());
    bytes.extend(domain.as_bytes());
    Ok(fold(&bytes))
}

/// Returns the counterpart of [`host_hash`] where a driver connects hosts. Its nodes cannot
/// identify their network, so the value depends on the domain only.
pub(crate) fn network_hash(domain: Option<&str>) -> u32 {
    let mut bytes = b"SCIF driver\0".to_vec();
    bytes.extend(domain.unwrap_or_default().as_bytes());
    fold(&bytes)
}

/// Returns the FNV-1a hash, folded from 64 bits to 32.
fn fold(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
    u32::from_le_bytes([a ^ e, b ^ f, c ^ g, d ^ h]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_of_half_a_second_begin_at_different_ports() {
        let start = 86_400_000_123_456_789;
        let choices: std::collections::HashSet<usize> = (0..600)
            .flat_map(|at| (500..597).map(move |pid| (start + at * 1_000_000, pid)))
            .map(|(nanoseconds, pid)| first_choice(nanoseconds, pid))
            .collect();
        assert_eq!(choices.len(), 600 * 97);
    }

    #[test]
    fn each_dynamic_port_is_tried_once() {
        let mut ports: Vec<u16> = dynamic_ports().collect();
        ports.sort_unstable();
        assert!(ports.into_iter().eq(DYNAMIC_PORTS));
    }

    #[test]
    fn hash_is_stable_and_distinguishes_hosts() {
        let here = host_hash(None, "0").unwrap();
        assert_ne!(here, 0);
        assert_eq!(here, host_hash(None, "0").unwrap());
        assert_ne!(here, host_hash(Some(Path::new("/")), "0").unwrap());
        assert_ne!(here, host_hash(None, "x").unwrap());
        assert_ne!(here, network_hash(None));
        assert_ne!(network_hash(Some("x")), network_hash(None));
        assert_ne!(
            host_hash(Some(Path::new("/")), "0").unwrap(),
            host_hash(Some(Path::new("/proc")), "0").unwrap()
        );
        assert!(host_hash(Some(Path::new("/does/not/exist")), "0").is_err());
    }

    #[test]
    fn ports_of_other_hosts_are_distinct_and_have_their_names() {
        let name = |ip: [u8; 4]| SocketAddrV4::new(ip.into(), 4711);
        let (a, b) = (name([10, 77, 0, 1]), name([10, 77, 0, 2]));
        let here = PortId::new(3, 4711);
        assert_eq!(here.network_name(), None);
        assert_eq!(here.to_string(), "3:4711");
        let there = PortId::abroad(3, a);
        assert_eq!((there.network_name(), there.port), (Some(a), 4711));
        assert_eq!(there.to_string(), "10.77.0.1:4711 (node 3)");
        assert_eq!(there, PortId::abroad(3, a));
        assert!(there != here && there != PortId::abroad(3, b) && there != PortId::abroad(4, a));
    }

    #[test]
    fn fold_has_known_values() {
        assert_eq!(fold(b""), 0xcbf2_9ce4 ^ 0x8422_2325);
        assert_eq!(fold(b"a"), 0xaf63_dc4c ^ 0x8601_ec8c);
    }
}
