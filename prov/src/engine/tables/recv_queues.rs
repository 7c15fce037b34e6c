// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Receives of an endpoint and its unexpected messages, tagged and untagged.
//!
//! Not here: tag matching (`tag_match`), and the work after a match (`recv`).

use std::collections::HashMap;

use scif::slab::Slab;

use crate::engine::tables::multi::Multi;
use crate::engine::tables::tag_match::{PostedRecv, Queue, UnexpectedMsg};
use crate::engine::tables::unexpected::Limits;
use crate::engine::tables::unmet::UnmetSources;
use crate::engine::types::args::EpConfig;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::state::cq_queue::CqState;
use crate::state::peer_owner::PeerRxEntry;

/// Posted receives and unexpected messages of one endpoint.
pub(crate) struct RecvQueues {
    pub(crate) msg: Queue,
    pub(crate) tagged: Queue,
    pub(crate) multis: Slab<Multi>,
    /// Claimed messages, by context.
    pub(crate) claimed: HashMap<usize, UnexpectedMsg>,
    /// Number of posted directed receives. While there are any, liveness checks cover all peers.
    pub(crate) directed: usize,
    /// Whether the receive completion queue was empty after the last poll (see `peek`).
    pub(crate) cq_was_empty: bool,
    /// Whether the last peek found nothing and no receive has completed since.
    pub(crate) last_peek_missed: bool,
    /// Entry of a peer provider for the unexpected message that is being received.
    pub(crate) unmatched: Option<PeerRxEntry>,
    pub(crate) limits: Limits,
    /// Sources without a connection.
    pub(crate) unmet: UnmetSources,
}

impl RecvQueues {
    /// Creates empty queues. `unexpected_max`: limit in bytes for the unexpected messages of the
    /// process.
    pub(crate) fn new(unexpected_max: usize) -> RecvQueues {
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

    /// Notes whether the receive completion queue is empty after a poll.
    #[inline]
    pub(crate) fn note_cq(&mut self, cfg: &EpConfig, cqs: &Slab<CqState>) {
        self.cq_was_empty = cfg.rx_cq.and_then(|c| cqs.get(c)).is_none_or(CqState::is_empty);
    }

    #[inline(always)]
    pub(crate) fn queue(&mut self, tagged: bool) -> &mut Queue {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }

    /// Returns the number of unexpected messages.
    #[inline]
    pub(crate) fn unexpected(&self) -> usize {
        self.tagged.unexpected.len() + self.msg.unexpected.len()
    }

    /// Adds a receive and returns its index.
    pub(crate) fn post(&mut self, tagged: bool, posted: PostedRecv) -> u32 {
        self.directed += usize::from(posted.src != ANY);
        self.queue(tagged).posted.push_back(posted)
    }

    /// Returns whether a receive names `peer`.
    pub(crate) fn names(&self, peer: PeerId) -> bool {
        let mut posted = self.msg.posted.iter().chain(self.tagged.posted.iter());
        posted.any(|p| p.src == peer)
    }

    /// Removes the receive at index `at`, which has its message.
    #[inline]
    pub(crate) fn take(&mut self, tagged: bool, at: u32) -> Option<PostedRecv> {
        let posted = self.queue(tagged).posted.remove(at)?;
        self.directed -= usize::from(posted.src != ANY);
        Some(posted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::tag_match::tests::posted;

    #[test]
    fn directed_receives_are_counted_while_they_wait() {
        let mut recv = RecvQueues::new(0);
        let peer = PeerId::new(3);
        let first = recv.post(true, posted(0, 0, peer));
        let any = recv.post(true, posted(0, 0, ANY));
        let other = recv.post(false, posted(0, 0, peer));
        assert_eq!(recv.directed, 2);
        assert!(recv.names(peer) && !recv.names(PeerId::new(4)));
        assert!(recv.take(true, any).is_some() && recv.take(true, any).is_none());
        assert_eq!(recv.directed, 2);
        assert!(recv.take(false, other).is_some() && recv.take(true, first).is_some());
        assert_eq!(recv.directed, 0);
    }
}
