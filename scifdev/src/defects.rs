// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Defects of mainline's driver in the answers to single calls (`SCIF_DEVICE_TRAPS`): connects of
//! unbound endpoints, lists of nodes, suggested offsets, read-only memory, closes with a mapping.
//!
//! Not about its wait queues (`sets`), nor about requests that time out and occupied offsets, which
//! the engine emulates.

use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use scif::{PortId, abi};
use scif_api::{Endpoints, Failure, Result};
use scif_ring::counter::AtomicCounter;

use crate::{memory, real};

const PAGE: u64 = 4096;
const WRITE: i32 = libc::PROT_WRITE;

/// Numbers of endpoints that the program has closed while it maps a window of their peers, and
/// their number.
static HELD: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
static HELD_COUNT: AtomicCounter = AtomicCounter::new(0);

fn has_traps(endpoints: &Endpoints) -> bool {
    endpoints.config().device_traps
}

/// Connects an unbound endpoint like the driver since 4.19: it takes a port, reports success and
/// does nothing else. The port stays in use, here until the process ends. `None`: the endpoint is
/// bound, the node is absent, or the traps are off.
pub(crate) fn connect_unbound(
    endpoints: &Endpoints,
    fd: RawFd,
    dst: PortId,
) -> Option<Result<u16>> {
    let is_unbound = has_traps(endpoints) && endpoints.is_bound(fd) == Ok(false);
    let is_online = || endpoints.nodes().is_ok_and(|(online, _)| online.contains(&dst.node));
    if !is_unbound || !is_online() {
        return None;
    }
    let lost = endpoints.open().and_then(|lost| endpoints.bind(lost, 0));
    log::error!(
        "connect of an unbound endpoint to {dst}: mainline's driver returns 0 without effect and \
         loses a port (SCIF_DEVICE_TRAPS). Bind the endpoint first"
    );
    Some(lost)
}

/// Returns how many numbers of a list of online nodes are written: the driver omits the last one if
/// no lower number is absent.
pub(crate) fn listed_nodes(endpoints: &Endpoints, online: &[u16]) -> usize {
    let highest = online.last().copied().map_or(0, usize::from);
    if has_traps(endpoints) { online.len().min(highest) } else { online.len() }
}

/// Returns the offset of a registration: the driver ignores one that is only suggested.
pub(crate) fn suggested_offset(endpoints: &Endpoints, reg: &abi::Reg) -> i64 {
    let is_ignored = has_traps(endpoints) && reg.flags & abi::MAP_FIXED == 0;
    if is_ignored { 0 } else { reg.offset }
}

/// Checks memory of a registration for writing: the driver pins its pages for writing.
///
/// # Errors
/// [`Failure::BadAddress`] for memory that this process cannot write to.
pub(crate) fn check_pinning(endpoints: &Endpoints, fd: RawFd, reg: &abi::Reg) -> Result<()> {
    let is_whole = reg.len > 0 && reg.len % PAGE == 0 && reg.addr % PAGE == 0;
    let is_for_writing = reg.prot & WRITE != 0 && reg.prot & !(WRITE | libc::PROT_READ) == 0;
    if !has_traps(endpoints) || !is_whole || !is_for_writing || endpoints.usable(fd).is_err() {
        return Ok(());
    }
    let (at, len) = (usize::try_from(reg.addr), usize::try_from(reg.len));
    match (at, len) {
        (Ok(at), Ok(len)) => memory::buffer(at, len, len, true).map(drop),
        _ => Err(Failure::BadAddress),
    }
}

/// Keeps an endpoint that is about to be closed while the program maps a window of its peer: a
/// mapping holds the driver's file, so the peer is not told of the close.
pub(crate) fn hold_mapped(endpoints: &Endpoints, fd: RawFd) {
    if !has_traps(endpoints) || endpoints.is_mapping(fd) != Ok(true) {
        return;
    }
    let Some(copy) = real::duplicate(fd) else { return };
    log::error!(
        "close of endpoint {fd} with a mapping of the peer's window: mainline's driver does not \
         tell the peer before the window is unmapped (SCIF_DEVICE_TRAPS). Unmap it first"
    );
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
    HELD_COUNT.add(1);
}

/// Closes the kept endpoints whose mappings the program has removed. Each call on a device does
/// this, since munmap(2) is not replaced.
pub(crate) fn release_unmapped(endpoints: &Endpoints) {
    if HELD_COUNT.get() == 0 {
        return;
    }
    // Another thread releases them at present.
    let Ok(mut held) = HELD.try_lock() else { return };
    held.retain(|&copy| {
        let is_mapped = endpoints.is_mapping(copy) == Ok(true);
        if !is_mapped {
            HELD_COUNT.sub(1);
            let _ = endpoints.close(copy);
        }
        is_mapped
    });
}
