// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Import of objects of another provider into a domain (`FI_PEER`).
//!
//! Completions are collected in a queue or counter of this provider, and handed to the owner when
//! the owner reads that object. This happens outside of the domain lock, in the owner's thread,
//! under any lock that the owner holds. Receive contexts are called while messages arrive.
//! Therefore a domain with automatic progress has no peers.
//!
//! Mirrors fi_peer(3).

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::domain::{DomainShared, srx};
use crate::state::peer_owner::{PeerRecv, PeerRxEntry, WaitingMessages, is_known};

/// Checks that objects can be imported into a domain.
///
/// # Errors
/// `FI_EINVAL` if the host has another layout of them, or the domain has automatic progress.
pub(crate) fn check(dom: &DomainShared) -> Result<(), Errno> {
    if !is_known() || dom.is_auto() {
        return Err(fi::FI_EINVAL);
    }
    Ok(())
}

impl WaitingMessages for DomainShared {
    fn start(&self, srx: u32, id: u32, entry: PeerRxEntry, recv: PeerRecv) -> Result<(), Errno> {
        srx::start(&mut self.gate.lock(), srx, id, entry, recv)
    }

    fn discard(&self, srx: u32, number: u32) {
        srx::discard(&mut self.gate.lock(), srx, number);
    }

    fn source(&self, srx: u32, number: u32) -> u64 {
        srx::source(&self.gate.lock(), srx, number)
    }
}

/// Notifies the owners of receive contexts after addresses were inserted into vector `av`.
pub(crate) fn addresses_changed(dom: &DomainShared, av: u32) {
    let owners = srx::owners(&dom.gate.lock(), av);
    for srx in owners {
        srx.addresses_changed();
    }
}
