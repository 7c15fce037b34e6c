// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Receives of an endpoint and its unexpected messages, tagged and untagged.
//!
//! Not here: tag matching (`matching`), and the work after a match (`rx`).

use std::collections::HashMap;

use super::matching::{Arrived, Posted, Queue};
use super::multi::Multi;
use super::peer_id::{ANY, PeerId};
use super::unexpected::Limits;
use super::unmet::UnmetSources;
use crate::base::slab::Slab;
use crate::state::peer_owner::PeerRxEntry;

/// Posted receives and unexpected messages of one endpoint.
pub(super) struct RecvQueues {
    pub(super) msg: Queue,
    pub(super) tagged: Queue,
    pub(super) multis: Slab<Multi>,
    /// Claimed messages, by context.
    pub(super) claimed: HashMap<usize, Arrived>,
    /// Number of posted directed receives. While there are any, liveness checks cover all peers.
    pub(super) directed: usize,
    /// Whether the receive completion queue was empty after the last poll (see `peek`).
    pub(super) cq_was_empty: bool,
    /// Whether the last peek found nothing and no receive has completed since.
    pub(super) last_peek_missed: bool,
    /// Entry of a peer provider for the unexpected message that is being received.
    pub(super) unmatched: Option<PeerRxEntry>,
    pub(super) limits: Limits,
    /// Sources without a connection.
    pub(super) unmet: UnmetSources,
}

impl RecvQueues {
    /// Creates empty queues. `unexpected_max`: limit in bytes for the unexpected messages of the
    /// process.
    pub(super) fn new(unexpected_max: usize) -> RecvQueues {
        RecvQueues {
            msg: Queue::new(),
            tagged: Queue::new(),
            multis: Slab::new(),
            claimed: HashMap::new(),
            directed: 0,
            cq_was_empty: false,
            last_peek_missed: false,
            unmatched: None,
            limits: Limits::new(unexpected_max),
            unmet: UnmetSources::default(),
        }
    }

    #[inline(always)]
    pub(super) fn queue(&mut self, tagged: bool) -> &mut Queue {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }

    /// Returns the number of unexpected messages.
    #[inline]
    pub(super) fn unexpected(&self) -> usize {
        self.tagged.unexpected.len() + self.msg.unexpected.len()
    }

    /// Adds a receive and returns its index.
    pub(super) fn post(&mut self, tagged: bool, posted: Posted) -> u32 {
        self.directed += usize::from(posted.src != ANY);
        self.queue(tagged).posted.push_back(posted)
    }

    /// Returns whether a receive names `peer`.
    pub(super) fn names(&self, peer: PeerId) -> bool {
        let mut posted = self.msg.posted.iter().chain(self.tagged.posted.iter());
        posted.any(|p| p.src == peer)
    }

    /// Removes the receive at index `at`, which has its message.
    #[inline]
    pub(super) fn take(&mut self, tagged: bool, at: u32) -> Option<Posted> {
        let posted = self.queue(tagged).posted.remove(at)?;
        self.directed -= usize::from(posted.src != ANY);
        Some(posted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::iov::Iov;

    fn posted(src: PeerId) -> Posted {
        Posted {
            tag: 0,
            ignore: 0,
            src,
            iov: Iov::new(&[]),
            len: 0,
            context: 0,
            flags: 0,
            multi: None,
        }
    }

    #[test]
    fn directed_receives_are_counted_while_they_wait() {
        let mut recv = RecvQueues::new(0);
        let peer = PeerId::new(3);
        let first = recv.post(true, posted(peer));
        let any = recv.post(true, posted(ANY));
        let other = recv.post(false, posted(peer));
        assert_eq!(recv.directed, 2);
        assert!(recv.names(peer) && !recv.names(PeerId::new(4)));
        assert!(recv.take(true, any).is_some() && recv.take(true, any).is_none());
        assert_eq!(recv.directed, 2);
        assert!(recv.take(false, other).is_some() && recv.take(true, first).is_some());
        assert_eq!(recv.directed, 0);
    }
}
