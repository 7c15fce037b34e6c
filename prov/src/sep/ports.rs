// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The SCIF ports of a scalable endpoint: one a context, next to each other, receive contexts first.
//!
//! So the first port, which the address names, and the index of a context give its port; and whoever knows the first and how many
//! there are knows whose a port is. All are taken when the endpoint is opened, so that nobody comes between them.

use scif::Endpoint;

use crate::addr::Group;
use crate::domain::DomainShared;
use crate::entry::Errno;
use crate::ep::name;

use libfabric_sys as fi;

/// Ranges tried when the first port may be any: something else can lie behind it.
const TRIES: usize = 256;

/// The port of one context.
#[derive(Debug)]
enum Slot {
    /// Taken, for a context that is yet to be opened.
    Reserved(Endpoint),
    /// The context has it.
    Open,
    /// Given up with the context.
    Closed,
}

/// The ports of one endpoint.
#[derive(Debug)]
pub(super) struct Ports {
    first: u16,
    slots: Vec<Slot>,
}

impl Ports {
    /// Takes as many ports as `group` has contexts: from the one that `src` names on, or any.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` when one is taken, and what [`name::take_port`] says.
    pub(super) fn take(dom: &DomainShared, src: &[u8], group: Group) -> Result<Ports, Errno> {
        let wanted = name::wanted(&dom.fabric, src)?.port;
        let mut taken = Err(fi::FI_EADDRINUSE);
        for _ in 0..if wanted == 0 { TRIES } else { 1 } {
            let first = name::bind(dom, wanted)?;
            taken = row(dom, first, group.ports());
            if taken.as_ref().err() != Some(&fi::FI_EADDRINUSE) {
                break;
            }
        }
        taken
    }

    pub(super) fn first(&self) -> u16 {
        self.first
    }

    pub(super) fn any_open(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Open))
    }

    /// Whether no context was opened so far.
    pub(super) fn untouched(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Reserved(_)))
    }

    /// Gives port `at` to its context.
    ///
    /// # Errors
    /// `FI_EBUSY` while that is open, `FI_EINVAL` when there is none; those of taking a port that an earlier context gave up.
    pub(super) fn open(&mut self, dom: &DomainShared, at: usize) -> Result<Endpoint, Errno> {
        let slot = self.slots.get_mut(at).ok_or(fi::FI_EINVAL)?;
        match std::mem::replace(slot, Slot::Open) {
            Slot::Reserved(port) => Ok(port),
            Slot::Open => Err(fi::FI_EBUSY),
            Slot::Closed => {
                let port = port_at(self.first, at).ok_or(fi::FI_EINVAL);
                let bound = port.and_then(|port| name::bind(dom, port));
                if bound.is_err() {
                    *slot = Slot::Closed;
                }
                bound
            }
        }
    }

    /// The context of port `at` is closed.
    pub(super) fn close(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot::Closed;
        }
    }
}

fn port_at(first: u16, at: usize) -> Option<u16> {
    first.checked_add(u16::try_from(at).ok()?)
}

/// The ports behind `first`, which is taken.
fn row(dom: &DomainShared, first: Endpoint, count: usize) -> Result<Ports, Errno> {
    let number = first.id().port;
    let mut slots = vec![Slot::Reserved(first)];
    for at in 1..count {
        // Behind the last port there is none.
        let port = port_at(number, at).ok_or(fi::FI_EADDRINUSE)?;
        slots.push(Slot::Reserved(name::bind(dom, port)?));
    }
    Ok(Ports { first: number, slots })
}
