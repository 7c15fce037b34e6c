// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Nodes of a domain: a node is a group of processes that named it, online while one of them
//! exists.
//!
//! Each process that uses `scif.h` binds a socket under its node's name. The kernel lists the names
//! and removes them with the process. Not about ports. Source: `scif_get_nodeIDs`.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use scif::Config;
use scif::liveness::ProcessProof;
use scif::sys::{process, unix};

/// List of bound Unix sockets, one a line, with the name in the last column.
const LIST: &str = "/proc/net/unix";
/// Number of names for one process, one for each library in it that uses `scif.h`.
const NAMES: usize = 64;
/// Suffix after the node in the name of its lost-node marker.
const LOST: &str = "lost";

/// Time for which a call waits for room in the queues of markers, of all nodes together. A trusted
/// process empties its queue at once. Another user may delay each call by this time.
const MARKER_WAIT: Duration = Duration::from_millis(200);
/// Backlog of questions that wait.
pub(crate) const QUESTIONS: i32 = 64;

pub(crate) fn marker(domain: &str, node: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("scif/{domain}/{node}/lost").as_bytes())
}

/// Returns the end of the wait for all markers of one call.
pub(crate) fn marker_deadline() -> Instant {
    Instant::now() + MARKER_WAIT
}

/// Whether a trusted user holds the marker of `node`. A marker whose queue is full at the deadline
/// is not trusted, because its owner is unknown.
pub(crate) fn is_lost(
    domain: &str,
    node: u16,
    deadline: Instant,
    trusted: impl Fn(u32) -> bool,
) -> bool {
    let Ok((socket, name)) = unix::socket().and_then(|socket| Ok((socket, marker(domain, node)?)))
    else {
        return false;
    };
    loop {
        match unix::connect(&socket, &name) {
            Ok(()) => return unix::credentials(&socket).is_ok_and(|peer| trusted(peer.uid)),
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return false,
        }
    }
}

pub(crate) fn domain_of(config: &Config) -> String {
    let own = || process::uid().to_string();
    config.domain.clone().unwrap_or_else(own)
}

/// Reads the kernel's list. A name that is not UTF-8 text is not one of ours. A failure is logged,
/// because callers continue as if no other process existed.
fn list() -> std::io::Result<String> {
    static WARNED: Once = Once::new();
    let read = std::fs::read(LIST).inspect_err(|error| {
        WARNED.call_once(|| {
            log::warn!(
                "{LIST} cannot be read: {error}; nodes and processes of others are not listed, \
                 and the loss of a node does not reach them. Mount /proc"
            );
        });
    });
    Ok(String::from_utf8_lossy(&read?).into_owned())
}

/// Reads the list twice. The kernel builds it in pieces, and a socket that closes in between may
/// hide another one.
pub(crate) fn list_twice() -> std::io::Result<String> {
    Ok(list()? + &list()?)
}

/// Returns the online nodes of a domain, without the nodes that a trusted user has lost.
pub(crate) fn online(
    domain: &str,
    trusted: impl Fn(u32) -> bool,
) -> std::io::Result<BTreeSet<u16>> {
    let list = list_twice()?;
    let mut nodes = parse(&list, domain);
    let deadline = marker_deadline();
    for (node, rest) in names(&list, domain) {
        if rest == LOST && is_lost(domain, node, deadline, &trusted) {
            nodes.remove(&node);
        }
    }
    Ok(nodes)
}

/// Iterates over the names bound in a domain, as node and rest of the name.
pub(crate) fn names<'a>(list: &'a str, domain: &'a str) -> impl Iterator<Item = (u16, &'a str)> {
    list.lines().filter_map(move |line| {
        let name = line.rsplit(' ').next()?.strip_prefix("@scif/")?;
        let (node, rest) = name.strip_prefix(domain)?.strip_prefix('/')?.split_once('/')?;
        Some((node.parse().ok()?, rest))
    })
}

/// Process that uses `scif.h`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Presence {
    pub(crate) node: u16,
    pub(crate) pid: i32,
    /// Name of the socket at which the process answers questions.
    pub(crate) name: String,
}

/// Returns all processes of a domain.
pub(crate) fn presences(domain: &str) -> std::io::Result<Vec<Presence>> {
    let list = list_twice()?;
    let mut found: Vec<Presence> = names(&list, domain)
        .filter_map(|(node, rest)| {
            let pid = rest.strip_prefix("p/")?.split('.').next()?.parse().ok()?;
            let name = format!("scif/{domain}/{node}/{rest}");
            Some(Presence { node, pid, name })
        })
        .collect();
    found.sort_by(|a, b| (a.node, a.pid, &a.name).cmp(&(b.node, b.pid, &b.name)));
    // The list was read twice, and shows each waiting question under the name of the listener.
    found.dedup();
    Ok(found)
}

fn parse(list: &str, domain: &str) -> BTreeSet<u16> {
    names(list, domain).filter(|(_, rest)| *rest != LOST).map(|(node, _)| node).collect()
}

/// Makes this process present on `node`, as long as the descriptor is open.
///
/// # Errors
/// EADDRINUSE: all names of the process are taken.
pub(crate) fn appear(domain: &str, node: u16) -> Result<OwnedFd, Errno> {
    let pid = process::pid();
    let start = ProcessProof::of(pid).start().unwrap_or(0);
    let socket = unix::socket()?;
    // Two libraries of one process appear twice.
    for copy in 0..NAMES {
        let name = format!("scif/{domain}/{node}/p/{pid}.{start}.{copy}");
        match unix::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Err(Errno::ADDRINUSE) => continue,
            bound => bound?,
        }
        unix::listen(&socket, QUESTIONS)?;
        return Ok(socket);
    }
    log::warn!(
        "all {NAMES} names of process {pid} on node {node} are taken ({}): the process cannot use \
         SCIF. Look for the sockets @scif/{domain}/{node}/p/{pid} in {LIST}",
        Errno::ADDRINUSE
    );
    Err(Errno::ADDRINUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_domain_count() {
        let list = "Num RefCount\n0000: 0002 0 10000 0005 01 11 @scif/0/3/p/17.4.0\n\
                    0000: 2 0 0 5 1 12 @scif/0/4/2050\n0: 2 0 0 5 1 13 @scif/00/5/1\n\
                    0: 2 0 0 5 1 14 /tmp/@scif/0/9/p\n";
        assert_eq!(parse(list, "0"), BTreeSet::from([3, 4]));
        assert_eq!(parse(list, "7"), BTreeSet::new());
        assert_eq!(parse("0: 2 0 0 5 1 12 @scif/0/6/lost\n", "0"), BTreeSet::new());
    }

    #[test]
    fn only_a_marker_of_a_trusted_user_counts() {
        let domain = format!("marker-{}", process::pid());
        let owner = unix::socket().unwrap();
        unix::bind(&owner, &marker(&domain, 9).unwrap()).unwrap();
        unix::listen(&owner, 1).unwrap();
        let is_lost = |node, trusted: fn(u32) -> bool| {
            super::is_lost(&domain, node, marker_deadline(), trusted)
        };
        assert!(is_lost(9, |uid| uid == process::uid()));
        assert!(!is_lost(9, |_| false));
        let full = |socket: &OwnedFd| {
            unix::connect(socket, &marker(&domain, 9).unwrap()) == Err(Errno::AGAIN)
        };
        let callers = std::iter::repeat_with(|| unix::socket().unwrap());
        let callers: Vec<OwnedFd> = callers.take_while(|socket| !full(socket)).collect();
        assert!(!is_lost(9, |_| true), "the queue is full: {} callers", callers.len());
        drop(unix::accept(&owner).unwrap());
        assert!(is_lost(9, |_| true));
        assert!(!is_lost(8, |_| true));
    }

    #[test]
    fn process_appears_and_disappears() {
        let _alone = scif::sys::children::none();
        let domain = format!("test-{}", process::pid());
        let one = appear(&domain, 9).unwrap();
        let two = appear(&domain, 9).unwrap();
        drop(one);
        assert_eq!(online(&domain, |_| true).unwrap(), BTreeSet::from([9]));
        drop(two);
        assert_eq!(online(&domain, |_| true).unwrap(), BTreeSet::new());
    }

    #[test]
    fn a_process_without_a_free_name_is_refused() {
        let domain = format!("names-{}", process::pid());
        let all: Vec<OwnedFd> = (0..NAMES).map(|_| appear(&domain, 9).unwrap()).collect();
        assert_eq!(appear(&domain, 9).err(), Some(Errno::ADDRINUSE));
        drop(all);
    }
}
