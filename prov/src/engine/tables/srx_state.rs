// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Receives of a shared receive context, and the messages that wait at a peer provider.
//!
//! Semantics: fi_endpoint(3), "Shared Contexts".

use std::sync::Arc;

use scif::PortId;
use scif::slab::Slab;

use crate::base::attr::MIN_MULTI_RECV;
use crate::engine::tables::multi::Multi;
use crate::engine::tables::tag_match::{List, PostedRecv, UnexpectedMsg};
use crate::engine::types::envelope::MultiRecvId;
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::PeerId;
use crate::state::peer_owner::PeerSrx;

/// Receive that no endpoint has taken yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) src: u64,
    pub(crate) iov: Iov,
    pub(crate) len: usize,
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// Number of the multi-receive buffer that this entry stands for, if any.
    pub(crate) multi: Option<u32>,
}

/// Receives of one context, and the endpoints that take from them.
#[derive(Debug)]
pub(crate) struct SrxState {
    pub(crate) msg: List<Waiting>,
    pub(crate) tagged: List<Waiting>,
    /// Multi-receive buffers of the context, until their last message has arrived.
    pub(crate) multis: Slab<Multi>,
    /// Free bytes below which such a buffer is released.
    pub min_multi_recv: usize,
    /// Endpoints bound to the context.
    pub eps: Vec<u32>,
    /// Context of a peer provider that this one stands for. The receives then belong to that
    /// provider.
    pub owner: Option<Arc<PeerSrx>>,
    /// Messages whose entries wait at the peer provider.
    pub(crate) unexpected: Slab<Unexpected>,
}

/// Message whose entry waits at a peer provider.
#[derive(Debug)]
pub(crate) struct Unexpected {
    /// Port of the endpoint that holds the message.
    pub(crate) port: PortId,
    pub(crate) tagged: bool,
    /// `None` after the message was dropped, or its endpoint closed.
    pub(crate) message: Option<UnexpectedMsg>,
}

impl SrxState {
    pub(crate) const fn new() -> SrxState {
        SrxState {
            msg: List::new(),
            tagged: List::new(),
            multis: Slab::new(),
            min_multi_recv: MIN_MULTI_RECV,
            eps: Vec::new(),
            owner: None,
            unexpected: Slab::new(),
        }
    }

    /// Drops the messages of the endpoint at `port`, which is closed.
    pub(crate) fn forget(&mut self, port: Option<PortId>) {
        if let Some(port) = port {
            self.forget_messages(port, |_| true);
        }
    }

    /// Drops the messages at the endpoint at `port` that `dropped` accepts.
    pub(crate) fn forget_messages(
        &mut self,
        port: PortId,
        dropped: impl Fn(&UnexpectedMsg) -> bool,
    ) {
        for (_, waiting) in self.unexpected.iter_mut() {
            if waiting.port == port && waiting.message.as_ref().is_some_and(&dropped) {
                waiting.message = None;
            }
        }
    }

    /// Returns the senders of the messages at the endpoint at `port`, with repetitions.
    pub(crate) fn peers_at(&self, port: PortId) -> impl Iterator<Item = PeerId> {
        let here = self.unexpected.iter().filter(move |(_, u)| u.port == port);
        here.filter_map(|(_, u)| Some(u.message.as_ref()?.peer))
    }

    pub(crate) fn list(&mut self, tagged: bool) -> &mut List<Waiting> {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }
}

impl Waiting {
    pub(crate) fn posted(self, src: PeerId, always: u64) -> PostedRecv {
        PostedRecv {
            tag: self.tag,
            ignore: self.ignore,
            src,
            iov: self.iov,
            len: self.len,
            context: self.context,
            flags: self.flags | always,
            since_ns: 0,
            multi: self.multi.map(MultiRecvId::Shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(context: usize) -> Waiting {
        let (tag, ignore, src, len, flags) = (9, 0, 0, 0, 1);
        Waiting { tag, ignore, src, iov: Iov::new(&[]), len, context, flags, multi: Some(3) }
    }

    #[test]
    fn a_receive_keeps_its_class_and_gains_the_flags_of_the_endpoint() {
        let mut srx = SrxState::new();
        srx.list(true).push_back(waiting(5));
        assert_eq!((srx.msg.len(), srx.tagged.len()), (0, 1));
        let posted = waiting(5).posted(PeerId::new(2), 6);
        assert_eq!((posted.tag, posted.context, posted.flags), (9, 5, 7));
        assert!(matches!(posted.multi, Some(MultiRecvId::Shared(3))));
    }

    #[test]
    fn messages_of_a_closed_endpoint_are_forgotten() {
        let mut srx = SrxState::new();
        let [closed, open] = [1, 2].map(|port| PortId::new(0, port));
        for port in [closed, open] {
            srx.unexpected.insert(Unexpected { port, tagged: true, message: None }).unwrap();
        }
        srx.forget(Some(closed));
        srx.forget(None);
        assert_eq!(srx.unexpected.iter().count(), 2, "the peer provider still has the entries");
        assert_eq!(srx.peers_at(open).count(), 0);
    }
}
