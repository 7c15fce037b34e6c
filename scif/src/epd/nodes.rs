// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Which nodes there are: a node is a group of processes that named it, and is online while one of them lives.
//!
//! Each process that uses `scif.h` binds a socket under its node's name; the kernel lists the names, and takes them
//! away with the process. Not about ports. Source: `scif_get_nodeIDs`.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::life::Life;
use crate::sys::{process, unix};

/// Names of bound Unix sockets, one a line, in the last column.
const LIST: &str = "/proc/net/unix";

/// The nodes of one domain that are online.
pub(crate) fn online(domain: &str) -> std::io::Result<BTreeSet<u16>> {
    // Names are bytes: one that is not text is none of ours.
    Ok(parse(&String::from_utf8_lossy(&std::fs::read(LIST)?), domain))
}

fn parse(list: &str, domain: &str) -> BTreeSet<u16> {
    list.lines()
        .filter_map(|line| {
            let name = line.rsplit(' ').next()?.strip_prefix("@scif/")?;
            let (node, _) = name.strip_prefix(domain)?.strip_prefix('/')?.split_once('/')?;
            node.parse().ok()
        })
        .collect()
}

/// Says that this process is on `node`, as long as the descriptor lives.
pub(crate) fn appear(domain: &str, node: u16) -> Result<OwnedFd, Errno> {
    let pid = process::pid();
    let start = Life::of(pid).start().unwrap_or(0);
    let socket = unix::socket()?;
    // Two libraries of one process are there twice.
    for copy in 0..64 {
        let name = format!("scif/{domain}/{node}/p/{pid}.{start}.{copy}");
        match unix::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_domain_count() {
        let list = "Num RefCount\n0000: 0002 0 10000 0005 01 11 @scif/0/3/p/17.4.0\n\
                    0000: 2 0 0 5 1 12 @scif/0/4/2050\n0: 2 0 0 5 1 13 @scif/00/5/1\n0: 2 0 0 5 1 14 /tmp/@scif/0/9/p\n";
        assert_eq!(parse(list, "0"), BTreeSet::from([3, 4]));
        assert_eq!(parse(list, "7"), BTreeSet::new());
    }

    #[test]
    fn a_process_appears_and_goes() {
        let domain = format!("test-{}", process::pid());
        let one = appear(&domain, 9).unwrap();
        let two = appear(&domain, 9).unwrap();
        drop(one);
        assert_eq!(online(&domain).unwrap(), BTreeSet::from([9]));
        drop(two);
        // A child that another test starts right now holds it until it runs its program.
        while !online(&domain).unwrap().is_empty() {
            std::thread::yield_now();
        }
    }
}
