// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mapping of memory of a peer that is accessed frequently.
//!
//! An initiator counts by key the operations for which it needs a system call or the target. Each
//! time the count has doubled, it maps the memory if it is shared memory (`Connection::map_key`).
//! Otherwise it reports the count to the owner if that wants hints, which then may move the memory
//! (`domain::migrate`).

use libfabric_sys as fi;
use scif::MapPolicy;

use crate::base::env;
use crate::engine::endpoint::Endpoint;
use crate::engine::peers::peer_conn;
use crate::engine::types::access_counts;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head};

/// Way of an operation on memory that is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsePath {
    /// System call of this side, on a key of this generation.
    SystemCall(u64),
    /// Record that the target executes and counts itself.
    Target,
}

/// Counts an operation of `len` bytes on memory that is not mapped here.
#[inline]
pub(crate) fn note_use(ep: &mut Endpoint, peer: PeerId, key: u64, len: usize, path: UsePath) {
    note_uses(ep, peer, key, access_counts::accesses(len), path);
}

/// Counts `more` operations on memory that is not mapped here.
#[inline]
pub(crate) fn note_uses(ep: &mut Endpoint, peer: PeerId, key: u64, more: u32, path: UsePath) {
    let uses = &mut ep.peers.at_mut(peer).rma.uses;
    let generation = match path {
        UsePath::SystemCall(generation) => Some(generation),
        UsePath::Target => None,
    };
    if let Some(count) = uses.get_or_insert_default().count(key, generation, more) {
        on_frequent_use(ep, peer, key, count, path);
    }
}

#[cold]
fn on_frequent_use(ep: &mut Endpoint, peer: PeerId, key: u64, count: u32, path: UsePath) {
    let Some(conn) = ep.peers.at(peer).tx else { return };
    let Some(c) = ep.links.conn(conn) else { return };
    let policy = env::env().map;
    if policy != MapPolicy::Off {
        let pid = c.peer_pid();
        match scif::keep_errno(|| c.map_key(key, fi::FI_REMOTE_WRITE, policy)) {
            Ok(0) => return,
            Ok(len) => {
                log::debug!(
                    target: "mr",
                    "{len} bytes of shared memory of process {pid} behind key {key:#x} were mapped"
                );
                ep.stats.maps.add(len);
                if let Some(uses) = &mut ep.peers.at_mut(peer).rma.uses {
                    // Another region may get the same key later.
                    uses.restart(key);
                }
                ep.links.note_mapping(conn);
                return;
            }
            Err(why) => log::debug!(
                target: "mr",
                "memory of process {pid} behind key {key:#x} was not mapped: {why:?}"
            ),
        }
    }
    let Some(c) = ep.links.conn(conn) else { return };
    let hints = c.keys().is_some_and(|keys| keys.hints());
    if hints && path != UsePath::Target && ep.peers.at(peer).queue.is_quiet() {
        let head = Head::new().word(key).word(u64::from(count));
        peer_conn::control(ep, peer, wire::ACCESS_HINT, head, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, connect};

    #[test]
    fn a_connection_is_noted_once_until_nothing_is_mapped() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let peer = pair[0].peer();
        let ep = &mut pair[0].ep;
        let conn = ep.peers.at(peer).tx.unwrap();
        (0..3).for_each(|_| ep.links.note_mapping(conn));
        assert_eq!(ep.links.mapping_count(), 1);
        ep.links.unmap_closed();
        assert_eq!(ep.links.mapping_count(), 0);
    }

    #[test]
    fn memory_of_this_process_is_not_mapped() {
        let mut pair = Bed::pair();
        pair[1].register(&[buffer(vec![0; 64])]);
        connect(&mut pair);
        let peer = pair[0].peer();
        let ep = &mut pair[0].ep;
        (0..200).for_each(|_| note_use(ep, peer, 5, 8, UsePath::SystemCall(2)));
        assert_eq!(ep.links.mapping_count(), 0);
        assert_eq!(
            ep.peers.at_mut(peer).rma.uses.get_or_insert_default().count(5, Some(2), 1),
            None
        );
        assert_eq!(
            (0..60).find_map(|_| ep.peers.at_mut(peer).rma.uses.as_mut()?.count(5, Some(2), 1)),
            Some(256)
        );
    }
}
