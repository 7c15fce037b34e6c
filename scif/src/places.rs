// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Numbers of other hosts: each IP address of a network gets one, in the order of its first use.
//!
//! Not about the reachability of a host. The numbers are exact, unlike a hash, and valid in this
//! process only: none is sent to a peer or written to shared memory.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Known hosts. Number `n` stands for the host at index `n - 1`.
#[derive(Debug, Default)]
struct KnownHosts {
    hosts: Vec<Ipv4Addr>,
    numbers: HashMap<Ipv4Addr, u32>,
}

static PLACES: Mutex<Option<KnownHosts>> = Mutex::new(None);

fn places() -> MutexGuard<'static, Option<KnownHosts>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of the host at `ip`; never 0.
pub(crate) fn number_of(ip: Ipv4Addr) -> u32 {
    let mut places = places();
    let KnownHosts { hosts, numbers } = places.get_or_insert_default();
    *numbers.entry(ip).or_insert_with(|| {
        hosts.push(ip);
        u32::try_from(hosts.len()).unwrap_or(u32::MAX)
    })
}

/// Returns the address of the host with number `place`; `None` for this host, number 0.
pub(crate) fn ip_of(place: u32) -> Option<Ipv4Addr> {
    let at = usize::try_from(place.checked_sub(1)?).ok()?;
    places().as_ref()?.hosts.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_number() {
        let hosts = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
        let numbers = hosts.map(number_of);
        assert!(numbers[0] != numbers[1] && !numbers.contains(&0));
        assert_eq!(hosts.map(number_of), numbers);
        assert_eq!(numbers.map(ip_of), hosts.map(Some));
        assert_eq!((ip_of(0), ip_of(u32::MAX)), (None, None));
    }
}
