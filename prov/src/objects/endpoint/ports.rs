// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! SCIF ports of a scalable endpoint: one per context, consecutive, receive contexts first.
//!
//! The port of a context follows from the first port, which the address names, and its index.
//! Conversely, the first port and the number of contexts suffice to find the endpoint to which a
//! port belongs. All ports are bound when the endpoint is opened, so that no other endpoint binds
//! one of them.

use std::net::Ipv4Addr;

use scif::Endpoint;

use crate::base::addr::ContextCounts;
use crate::base::errno::Errno;
use crate::domain::DomainShared;
use crate::objects::port;

use libfabric_sys as fi;

/// Number of ranges tried when the first port may be any, since a port after it may be in use.
/// After them the endpoint is refused with `FI_EADDRINUSE`.
const TRIES: usize = 256;

/// Port of one context.
#[derive(Debug)]
enum PortSlot {
    /// Bound, for a context that is not open yet.
    Reserved(Endpoint),
    /// Owned by the open context.
    Open,
    /// Released with the context.
    Closed,
}

/// Ports of one endpoint.
#[derive(Debug)]
pub(super) struct Ports {
    first: u16,
    /// IP address in the name of the endpoint.
    ip: Ipv4Addr,
    slots: Vec<PortSlot>,
}

impl Ports {
    /// Binds a port for each context of `group`: from the one that `src` names on, or any.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` when one is in use, and errors of [`port::take_port`].
    pub(super) fn take(
        dom: &DomainShared,
        src: &[u8],
        group: ContextCounts,
    ) -> Result<Ports, Errno> {
        let wanted = port::requested(&dom.fabric, src)?.port;
        let mut taken = Err(fi::FI_EADDRINUSE);
        for _ in 0..if wanted == 0 { TRIES } else { 1 } {
            let first = port::take_port(dom, src, true)?;
            let ip = first.network_name().map_or_else(|| port::ip_of(src), |name| *name.ip());
            taken = row(dom, (first, ip), group.ports());
            if taken.as_ref().err() != Some(&fi::FI_EADDRINUSE) {
                break;
            }
        }
        taken
    }

    pub(super) fn first(&self) -> u16 {
        self.first
    }

    pub(super) fn name_ip(&self) -> Ipv4Addr {
        self.ip
    }

    pub(super) fn any_open(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, PortSlot::Open))
    }

    /// Whether no context was opened so far.
    pub(super) fn untouched(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, PortSlot::Reserved(_)))
    }

    /// Returns port `at` for its context.
    ///
    /// # Errors
    /// `FI_EBUSY` while that context is open, `FI_EINVAL` when it does not exist. Errors of binding
    /// a port that an earlier context released.
    pub(super) fn open(&mut self, dom: &DomainShared, at: usize) -> Result<Endpoint, Errno> {
        let slot = self.slots.get_mut(at).ok_or(fi::FI_EINVAL)?;
        match std::mem::replace(slot, PortSlot::Open) {
            PortSlot::Reserved(port) => Ok(port),
            PortSlot::Open => Err(fi::FI_EBUSY),
            PortSlot::Closed => {
                let port = port_at(self.first, at).ok_or(fi::FI_EINVAL);
                let bound = port.and_then(|port| port::take_next_port(dom, self.ip, port));
                if bound.is_err() {
                    *slot = PortSlot::Closed;
                }
                bound
            }
        }
    }

    /// Records that the context of port `at` is closed.
    pub(super) fn close(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = PortSlot::Closed;
        }
    }
}

fn port_at(first: u16, at: usize) -> Option<u16> {
    first.checked_add(u16::try_from(at).ok()?)
}

/// Binds the ports that follow `first`.
fn row(
    dom: &DomainShared,
    (first, ip): (Endpoint, Ipv4Addr),
    count: usize,
) -> Result<Ports, Errno> {
    let number = first.id().port;
    let mut slots = vec![PortSlot::Reserved(first)];
    for at in 1..count {
        // No port follows the last one.
        let port = port_at(number, at).ok_or(fi::FI_EADDRINUSE)?;
        slots.push(PortSlot::Reserved(port::take_next_port(dom, ip, port)?));
    }
    Ok(Ports { first: number, ip, slots })
}
