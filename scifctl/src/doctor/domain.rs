// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the peers in the domain: processes of other users, stopped processes, lost nodes.
//!
//! The checks send no process a message. Owners of sockets are found by the descriptors in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use scif::sys::process;
use scif_api::introspect;

use super::finding::Finding;
use super::inputs::Inputs;

const SUBJECT: &str = "domain";

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let own_uid = process::uid();
    let domain = inputs.config.domain.clone().unwrap_or_else(|| own_uid.to_string());
    let prefixes = prefixes(&domain, inputs.config.runtime_dir.as_deref());
    let read = || Some(sockets(&inputs.read("/proc/net/unix")?, &prefixes));
    let Some(sockets) = read() else {
        return vec![Finding::broken(
            SUBJECT,
            "/proc/net/unix cannot be read: other processes are not found",
            "mount /proc",
        )];
    };
    let owners = owners(inputs, &sockets);
    // A process that has ended meanwhile is not hidden.
    let left = read().unwrap_or_default();
    let unseen = sockets.intersection(&left).filter(|inode| !owners.contains_key(*inode)).count();
    let mut found = Vec::new();
    let pids: BTreeSet<i32> = owners.values().copied().collect();
    let processes = pids.iter().filter_map(|pid| process::owner(*pid));
    let processes = processes.filter(|uid| !inputs.config.allow_uids.contains(uid));
    let files = inputs.config.runtime_dir.iter().flat_map(|dir| owners_of_files(dir, &domain));
    let others: BTreeSet<u32> = processes.chain(files).filter(|uid| *uid != own_uid).collect();
    if !others.is_empty() {
        found.push(foreign(&domain, &others));
    }
    if unseen > 0 && inputs.config.allow_uids.is_empty() {
        found.push(hidden(&domain, unseen));
    }
    let stopped = pids.iter().filter(|pid| is_stopped(inputs, **pid)).map(ToString::to_string);
    let stopped: Vec<String> = stopped.collect();
    if !stopped.is_empty() {
        found.push(Finding::slower(
            SUBJECT,
            format!("stopped processes, for which their peers wait: {}", stopped.join(" ")),
            format!("kill -CONT {}, or end them", stopped.join(" ")),
        ));
    }
    for node in introspect::nodes(&inputs.config).unwrap_or_default() {
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

/// Returns the first parts of names of sockets in the domain: abstract, and of files in the runtime
/// directory, each after its blank in the kernel's list.
fn prefixes(domain: &str, runtime_dir: Option<&Path>) -> Vec<String> {
    let file = runtime_dir.map(|dir| dir.join(format!("{domain}.")).display().to_string());
    [Some(format!("@scif/{domain}/")), file]
        .into_iter()
        .flatten()
        .map(|n| format!(" {n}"))
        .collect()
}

/// Returns the inodes of the listening sockets with names that begin with one of the prefixes.
fn sockets(list: &str, prefixes: &[String]) -> BTreeSet<String> {
    /// Flag of a listening socket (`__SO_ACCEPTCON`).
    const LISTENS: &str = "00010000";
    let inode = |line: &str| {
        let mut fields = line.split_whitespace();
        let flags = fields.nth(3)?;
        let inode = fields.nth(2)?;
        let named = prefixes.iter().any(|prefix| line.contains(prefix));
        (flags == LISTENS && named).then(|| inode.to_owned())
    };
    list.lines().filter_map(inode).collect()
}

/// Returns the owners of the domain's sockets in a runtime directory. In another network namespace
/// the kernel's list lacks them.
fn owners_of_files(dir: &Path, domain: &str) -> BTreeSet<u32> {
    let prefix = format!("{domain}.");
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
    files.filter_map(|file| Some(file.metadata().ok()?.uid())).collect()
}

/// Returns, for each socket (by inode) that a visible process has open, the id of one such process.
fn owners(inputs: &Inputs, sockets: &BTreeSet<String>) -> BTreeMap<String, i32> {
    let mut found = BTreeMap::new();
    if sockets.is_empty() {
        return found;
    }
    let entries = fs::read_dir(inputs.path("/proc")).into_iter().flatten().flatten();
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

fn is_stopped(inputs: &Inputs, pid: i32) -> bool {
    let text = inputs.read(&format!("/proc/{pid}/stat")).unwrap_or_default();
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
             0: 2 0 00010000 0005 01 104\n\
             0: 2 0 00010000 0005 01 105 /run/s c/abc.0.2050\n\
             0: 2 0 00010000 0005 01 106 /run/s c/abcd.0.2050\n";
        let found = |dir: Option<&str>| sockets(list, &prefixes("abc", dir.map(Path::new)));
        assert_eq!(found(None), BTreeSet::from(["101".to_owned()]));
        assert_eq!(found(Some("/run/s c")), BTreeSet::from(["101", "105"].map(str::to_owned)));
        let dir = std::env::temp_dir().join(format!("scifctl-{}-domain", process::pid()));
        fs::create_dir_all(dir.join("abc.0.2050")).unwrap();
        let owners = ["abc", "ab"].map(|domain| owners_of_files(&dir, domain));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(owners, [BTreeSet::from([process::uid()]), BTreeSet::new()]);
        let found = foreign("abc", &BTreeSet::from([77, 78]));
        assert!(found.meaning.contains("user 77, 78"), "{}", found.meaning);
        assert!(found.action.contains("SCIF_DOMAIN"));
    }
}
