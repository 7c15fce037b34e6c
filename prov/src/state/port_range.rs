// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Ports that the address of an endpoint covers.

use crate::base::addr::{ADDR_LEN, Addr, ContextCounts};
use crate::base::attr::MAX_CONTEXTS;

/// Number of consecutive ports that an address covers, starting at the named one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    /// Number of receive contexts.
    pub(crate) rx: u16,
    /// Number of all ports.
    ports: u16,
}

impl PortRange {
    const ONE: PortRange = PortRange { rx: 1, ports: 1 };

    /// Returns the range that an inserted address covers, in a vector with `bits` for receive
    /// contexts.
    pub(crate) fn of(bytes: &[u8; ADDR_LEN], bits: u32) -> PortRange {
        let addr = Addr::from_bytes(bytes);
        let count = |n: usize| u16::try_from(n).unwrap_or(1);
        match addr.and_then(|a| a.group) {
            Some(group) => PortRange { rx: count(group.rx()), ports: count(group.ports()) },
            // A user typed this address without a number of contexts: assume as many as `bits` can
            // select.
            None if bits > 0 && addr.is_some_and(|a| a.host == 0) => {
                let most = MAX_CONTEXTS.min(1 << bits);
                let group = ContextCounts::new(most, most);
                PortRange { rx: count(most), ports: count(group.map_or(1, ContextCounts::ports)) }
            }
            None => PortRange::ONE,
        }
    }

    /// Whether the range includes the port at offset `behind` from the first.
    pub(crate) fn holds(self, behind: u16) -> bool {
        behind < self.ports
    }

    pub(crate) fn ports(self) -> u16 {
        self.ports
    }
}
