// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Descriptors of the monitoring memory of peers. A process that is killed takes its own
//! descriptor with it; readers then find the memory at its peers.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use super::layout::{NAME, process};
use super::report::{Seen, map_of};
use crate::sys::errno::{self, keep_errno};
use crate::sys::fork::{self, Maker, PrivateFd};
use crate::sys::memfd;
use crate::sys::process::{ProcessState, nofile, pid, state_of};
use crate::sys::time::now_ns;

/// Number of peers whose memory a process keeps. A larger one takes more descriptors, and shows
/// more killed ranks of jobs that have more ranks than this.
const KEPT_MAX: usize = 16;
/// Limit of open files from which on a process keeps descriptors. Below it they are scarce.
const NOFILE_MIN: u64 = 256;
/// Nanoseconds after the last connection with a peer from which on its memory is released if it
/// lives. A longer time keeps descriptors of peers that have left.
const LEFT_NS: u64 = 1_000_000_000;
/// Number of descriptors of a peer that are examined. A larger one finds the memory in more
/// programs, and delays the poll that looks for it.
const EXAMINED: usize = 256;

/// Peer of this process.
#[derive(Debug)]
struct KeptPeer {
    pid: i32,
    /// Memory of the peer; `None` if it publishes none, or may not be inspected.
    memory: Option<PrivateFd>,
    /// Monotonic time in nanoseconds at which an endpoint was last connected with it.
    connected_ns: u64,
}

/// Peers whose memory this process keeps.
#[derive(Debug, Default)]
struct KeptPeers {
    creator: Option<Maker>,
    list: Vec<KeptPeer>,
}

static KEPT: Mutex<KeptPeers> = Mutex::new(KeptPeers { creator: None, list: Vec::new() });

/// Runs `use_them` with the peers of this process. No forked child finds the lock taken.
fn with_kept<T>(use_them: impl FnOnce(&mut KeptPeers) -> T) -> T {
    let _section = fork::section();
    let mut kept = errno::lock(&KEPT);
    if kept.creator.is_none_or(Maker::is_ancestor) {
        *kept = KeptPeers { creator: Some(Maker::here()), list: Vec::new() };
    }
    keep_errno(|| use_them(&mut kept))
}

/// Keeps the memory of connected peers, given by process id: of one more with each call. Releases
/// the memory of peers that have left, but not of those that have died with open endpoints.
pub fn keep_peers(pids: &[i32]) {
    if nofile() >= NOFILE_MIN {
        with_kept(|kept| kept.update(pids, now_ns()));
    }
}

/// Releases the memory of all peers.
pub(super) fn release_all() {
    with_kept(|kept| kept.list.clear());
}

/// Returns the memory of a peer.
fn open(peer: i32) -> Option<OwnedFd> {
    let seen = Seen::of(peer)?;
    let found = memfd::open_named(peer, NAME, EXAMINED).ok()?;
    found.into_iter().find(|fd| map_of(fd).is_some_and(|map| seen.owns(&map)))
}

impl KeptPeer {
    /// Whether the peer has died with open endpoints.
    fn has_died(&self) -> bool {
        let Some(memory) = &self.memory else { return false };
        memfd::word_of(memory, process::OPEN).is_some_and(|open| open != 0) && self.has_ended()
    }

    /// Whether the peer has ended, or ends. The kernel releases its lock late.
    fn has_ended(&self) -> bool {
        self.memory.as_ref().is_none_or(|memory| !memfd::is_locked(memory))
            || !matches!(state_of(self.pid), ProcessState::Seen(stat) if !stat.ended)
    }
}

impl KeptPeers {
    fn update(&mut self, pids: &[i32], now: u64) {
        for peer in self.list.iter_mut().filter(|peer| pids.contains(&peer.pid)) {
            peer.connected_ns = now;
        }
        // Each endpoint calls with its own peers.
        let is_recent = |peer: &KeptPeer| now.saturating_sub(peer.connected_ns) < LEFT_NS;
        self.list.retain(|peer| is_recent(peer) || peer.has_died());
        let is_new = |peer: &&i32| {
            **peer > 0 && **peer != pid() && self.list.iter().all(|kept| kept.pid != **peer)
        };
        // Each process begins elsewhere, so that the peers of a large job keep different ones.
        let first = usize::try_from(pid()).unwrap_or(0) % pids.len().max(1);
        let (before, after) = pids.split_at_checked(first).unwrap_or_default();
        let Some(peer) = after.iter().chain(before).find(is_new).copied() else { return };
        if self.list.len() >= KEPT_MAX {
            let Some(at) = self.list.iter().position(KeptPeer::has_ended) else { return };
            self.list.remove(at);
        }
        let memory = open(peer).map(PrivateFd::new);
        self.list.push(KeptPeer { pid: peer, memory, connected_ns: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortId;
    use crate::monitor::report::{ENDED, ProcessReport, process_at, processes};
    use crate::monitor::{EndpointRecord, ProcessIdentity, publish_process};
    use crate::sys::children::{self, Child};
    use crate::sys::mmap::Mapping;

    /// Starts a child with an endpoint. It closes the endpoint and ends when the word is not 0 any
    /// more.
    fn child_with_endpoint(port: PortId, ends: &Mapping) -> Child {
        let child = children::in_child(|| {
            publish_process(ProcessIdentity::of_tests);
            let mut record: EndpointRecord<[u64; 4]> = EndpointRecord::open();
            record[0] = 41;
            record.publish(port, 3, None);
            while ends.word64(0).is_ok_and(|word| word.get() == 0) {
                std::thread::yield_now();
            }
            drop(record);
            0
        });
        while !has_endpoint(process_at(child.pid()).ok().flatten(), port) {
            std::thread::yield_now();
        }
        child
    }

    fn has_endpoint(process: Option<ProcessReport>, port: PortId) -> bool {
        process.is_some_and(|process| process.endpoints.iter().any(|open| open.port == port))
    }

    /// Whether the memory of an ended process disappears. Children of other tests inherit the
    /// descriptors that this process has open at the fork.
    fn is_forgotten(pid: i32) -> bool {
        let end = now_ns() + 20_000_000_000;
        while process_at(pid).is_ok() && now_ns() < end {
            std::thread::yield_now();
        }
        process_at(pid).is_err()
    }

    fn pids_of(peers: &KeptPeers) -> Vec<i32> {
        peers.list.iter().map(|peer| peer.pid).collect()
    }

    #[test]
    fn a_killed_process_is_read_at_its_peer() {
        let ends = Mapping::anonymous(4096).unwrap();
        let port = PortId::new(4, 702);
        let child = child_with_endpoint(port, &ends);
        let killed = child.pid();
        let mut peers = KeptPeers::default();
        peers.update(&[killed, pid()], 1);
        peers.update(&[killed, pid()], 2);
        assert_eq!(pids_of(&peers), [killed]);
        let all = processes().unwrap();
        assert_eq!(all.iter().filter(|process| process.pid == killed).count(), 1, "living");
        drop(child);
        let report = process_at(killed).unwrap().unwrap();
        assert_eq!((report.state, report.endpoints.len()), (ENDED, 1));
        assert_eq!((report.endpoints[0].port, report.endpoints[0].counters[0]), (port, 41));
        assert!(!report.command.is_empty());
        peers.update(&[], u64::MAX);
        assert!(process_at(killed).is_ok(), "kept without a connection");
        drop(peers);
        assert!(is_forgotten(killed));
    }

    #[test]
    fn the_memory_of_a_peer_that_has_left_is_released() {
        let ends = Mapping::anonymous(4096).unwrap();
        let child = child_with_endpoint(PortId::new(4, 703), &ends);
        let mut peers = KeptPeers::default();
        peers.update(&[child.pid()], 1);
        peers.update(&[], LEFT_NS);
        assert_eq!(pids_of(&peers), [child.pid()], "perhaps connected with another endpoint");
        peers.update(&[], LEFT_NS + 1);
        assert_eq!(pids_of(&peers), [0; 0]);
        peers.update(&[child.pid()], 1);
        ends.word64(0).unwrap().set(1);
        let left = child.pid();
        assert_eq!(child.result(), 0);
        assert!(is_forgotten(left), "its endpoint was closed");
        peers.update(&[], u64::MAX);
        assert_eq!(pids_of(&peers), [0; 0]);
    }

    #[test]
    fn dead_peers_make_room_for_living_ones() {
        let ends = Mapping::anonymous(4096).unwrap();
        let living = child_with_endpoint(PortId::new(4, 704), &ends);
        let mut peers = KeptPeers::default();
        let dead = || KeptPeer { pid: pid(), memory: None, connected_ns: 5 };
        peers.list.extend((0..KEPT_MAX).map(|_| dead()));
        peers.update(&[living.pid()], 6);
        assert_eq!(peers.list.len(), KEPT_MAX);
        let last = peers.list.last().unwrap();
        assert!(last.pid == living.pid() && !last.has_ended());
    }

    #[test]
    fn a_forked_child_keeps_nothing_of_its_parent() {
        // Registers the handlers of forks.
        publish_process(ProcessIdentity::of_tests);
        with_kept(|kept| {
            kept.list.push(KeptPeer { pid: -1, memory: None, connected_ns: u64::MAX });
        });
        let child = children::in_child(|| with_kept(|kept| i32::from(kept.list.is_empty())));
        assert_eq!(child.result(), 1);
        release_all();
    }
}
