// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the peers in the domain: processes of other users, stopped processes, lost nodes.
//!
//! Nothing is sent to a process. Owners of sockets are found by the descriptors in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use scif::sys::process;
use scif_api::introspect;

use super::finding::Finding;
use super::scene::Scene;

const SUBJECT: &str = "domain";

pub(crate) fn check(scene: &Scene) -> Vec<Finding> {
    let own_uid = process::uid();
    let domain = scene.config.domain.clone().unwrap_or_else(|| own_uid.to_string());
    let Some(list) = scene.read("/proc/net/unix") else {
        return vec![Finding::broken(
            SUBJECT,
            "/proc/net/unix cannot be read: other processes are not found",
            "mount /proc",
        )];
    };
    let sockets = sockets(&list, &domain);
    let owners = owners(scene, &sockets);
    let mut found = Vec::new();
    let pids: BTreeSet<i32> = owners.values().copied().collect();
    let others: BTreeSet<u32> = pids
        .iter()
        .filter_map(|pid| process::owner(*pid))
        .filter(|uid| *uid != own_uid && !scene.config.allow_uids.contains(uid))
        .collect();
    if !others.is_empty() {
        found.push(foreign(&domain, &others));
    }
    if sockets.len() > owners.len() && scene.config.allow_uids.is_empty() {
        found.push(hidden(&domain, sockets.len() - owners.len()));
    }
    let stopped = pids.iter().filter(|pid| is_stopped(scene, **pid)).map(ToString::to_string);
    let stopped: Vec<String> = stopped.collect();
    if !stopped.is_empty() {
        found.push(Finding::slower(
            SUBJECT,
            format!("stopped processes, for which their peers wait: {}", stopped.join(" ")),
            format!("kill -CONT {}, or end them", stopped.join(" ")),
        ));
    }
    for node in introspect::nodes(&scene.config).unwrap_or_default() {
        if node.lost {
            found.push(Finding::broken(
                SUBJECT,
                format!("node {} is lost: connects to it fail with ENODEV", node.node),
                format!("scifctl node restore {}", node.node),
            ));
        }
    }
    if found.is_empty() {
        let text = format!("{domain}: {} processes, all of this user", pids.len());
        found.push(Finding::ok(SUBJECT, text));
    }
    found
}

fn foreign(domain: &str, others: &BTreeSet<u32>) -> Finding {
    let uids: Vec<String> = others.iter().map(ToString::to_string).collect();
    Finding::broken(
        SUBJECT,
        format!(
            "SCIF_DOMAIN {domain} has processes of user {}: connections between users fail with \
             EACCES, and their ports are taken",
            uids.join(", ")
        ),
        "set another SCIF_DOMAIN, or SCIF_ALLOW_UIDS on both sides (SECURITY.md)",
    )
}

fn hidden(domain: &str, count: usize) -> Finding {
    Finding::slower(
        SUBJECT,
        format!(
            "SCIF_DOMAIN {domain} has {count} sockets of processes that are not visible here. \
             Connections to another user fail with EACCES. Large messages to another pid \
             namespace go through the ring"
        ),
        "set another SCIF_DOMAIN, or SCIF_ALLOW_UIDS for another user (SECURITY.md), or let \
         containers share a pid namespace (docker run --pid=host)",
    )
}

/// Returns the inodes of the listening sockets with names in the domain.
fn sockets(list: &str, domain: &str) -> BTreeSet<String> {
    /// Flag of a listening socket (`__SO_ACCEPTCON`).
    const LISTENS: &str = "00010000";
    let prefix = format!("@scif/{domain}/");
    let inode = |line: &str| {
        let mut fields = line.split_whitespace();
        let flags = fields.nth(3)?;
        let inode = fields.nth(2)?;
        let name = fields.next()?;
        (flags == LISTENS && name.starts_with(&prefix)).then(|| inode.to_owned())
    };
    list.lines().filter_map(inode).collect()
}

/// Returns a process for each of the sockets that one visible process has.
fn owners(scene: &Scene, sockets: &BTreeSet<String>) -> BTreeMap<String, i32> {
    let mut found = BTreeMap::new();
    if sockets.is_empty() {
        return found;
    }
    let entries = fs::read_dir(scene.path("/proc")).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let descriptors = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        for target in descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()) {
            let target = target.to_string_lossy();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if let Some(inode) = inode.filter(|inode| sockets.contains(*inode)) {
                found.insert(inode.to_owned(), pid);
            }
        }
    }
    found
}

fn is_stopped(scene: &Scene, pid: i32) -> bool {
    let text = scene.read(&format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_of_the_domain_count() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
             0: 2 0 00010000 0005 01 101 @scif/abc/0/2050\n\
             0: 2 0 00000000 0005 03 102 @scif/abc/0/2050/7.1\n\
             0: 2 0 00010000 0005 01 103 @scif/abcd/0/2050\n\
             0: 2 0 00010000 0005 01 104\n";
        assert_eq!(sockets(list, "abc"), BTreeSet::from(["101".to_owned()]));
        let found = foreign("abc", &BTreeSet::from([77, 78]));
        assert!(found.meaning.contains("user 77, 78"), "{}", found.meaning);
        assert!(found.action.contains("SCIF_DOMAIN"));
    }
}
