// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fast path of receives: an inline message for one plain buffer that was posted earlier.
//!
//! Each function either completes its work or changes nothing, and then the slow path (`recv`)
//! decides. Both paths have the same effects. The fast path copies each part of a receive straight
//! from its source to its destination. A copy of the whole would be loaded in other pieces than it
//! was stored in, which causes a store-forwarding stall.

use libfabric_sys as fi;
use scif::ConnId;
use scif::slab::Slab;
use scif_ring::spsc::{InlineHandler, InlineRecord, PollOutcome};

use crate::base::errno::Errno;
use crate::engine::channel::link_set::Link;
use crate::engine::channel::rx_throttle::BATCH;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::{merge, peer_conn};
use crate::engine::tables::peer_table::{PeerTable, source_in};
use crate::engine::tables::recv_queues::RecvQueues;
use crate::engine::tables::tag_match::PostedRecv;
use crate::engine::types::args::{EpConfig, RecvArgs};
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::stats::Stats;
use crate::engine::types::wire;
use crate::state::completion::Completion;
use crate::state::cq_queue::CqState;

/// Destination of the completions of receives.
pub(crate) trait CompletionSink {
    /// Delivers completion `c`, which belongs to queue `cq` of `cqs`.
    fn deliver(&mut self, cqs: &mut Slab<CqState>, cq: u32, c: Completion);
}

/// Delivery into the completion queue.
pub(crate) struct ToQueue;

impl CompletionSink for ToQueue {
    #[inline(always)]
    fn deliver(&mut self, cqs: &mut Slab<CqState>, cq: u32, c: Completion) {
        if let Some(cq) = cqs.get_mut(cq) {
            cq.success(c);
        }
    }
}

/// Number of active rings up to which a direct poll receives. With more, the records of each ring
/// are handled in turn by a full poll.
const DIRECT_RINGS: usize = 4;

/// Result of a direct poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectPoll {
    /// At least one message was received.
    Received,
    /// No ring holds a record, and no other work is due.
    Empty,
    /// Only a full poll can do the work that is due.
    Declined,
}

/// Handler of an inline message, with the state it needs.
struct InlineRecv<'a, 'e, D> {
    cfg: &'a EpConfig,
    recv: &'a mut RecvQueues,
    peers: &'a mut PeerTable,
    stats: &'a mut Stats,
    env: &'a mut Env<'e>,
    peer: PeerId,
    to: &'a mut D,
}

impl<D: CompletionSink> InlineHandler for InlineRecv<'_, '_, D> {
    /// Receives an inline message if a plain receive is posted for it.
    #[inline(always)]
    fn take(self, kind: u8, line: &InlineRecord<'_>) -> bool {
        let InlineRecv { cfg, env, peer, .. } = self;
        if kind & !(wire::TAGGED | wire::DATA) != wire::EAGER | wire::INLINE || cfg.force_slow_path
        {
            return false;
        }
        let (is_tagged, has_data) = (kind & wire::TAGGED != 0, kind & wire::DATA != 0);
        let words = usize::from(is_tagged) + usize::from(has_data);
        let Some(len) = line.len().checked_sub(8 * words) else {
            return false;
        };
        let tag = if is_tagged { line.word(0) } else { 0 };
        let data = if has_data { line.word(words - 1) } else { 0 };
        let (queue, mut cq_flags) = if is_tagged {
            (&mut self.recv.tagged, fi::FI_RECV | fi::FI_TAGGED)
        } else {
            (&mut self.recv.msg, fi::FI_RECV | fi::FI_MSG)
        };
        if has_data {
            cq_flags |= fi::FI_REMOTE_CQ_DATA;
        }
        let Some((at, posted)) = queue.receive_for(peer, tag) else {
            return false;
        };
        let &PostedRecv { iov: Iov::One([ref to]), multi: None, context, flags, src, .. } = posted
        else {
            return false;
        };
        if len > to.len() {
            return false;
        }
        line.copy_tail(words, to);
        let buf = to.addr();
        queue.posted.forget(at);
        self.recv.directed -= usize::from(src != ANY);
        self.recv.last_peek_missed = false;
        self.stats.received.add(len);
        if let Some(cntr) = cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
            cntr.add(1);
        }
        if flags & fi::FI_COMPLETION != 0
            && let Some(cq) = cfg.rx_cq
        {
            let c = Completion {
                context,
                flags: cq_flags,
                len: len + cfg.prefix,
                buf,
                data,
                tag,
                src: source_in(cfg, self.peers, env.avs, peer),
            };
            self.to.deliver(env.cqs, cq, c);
        }
        true
    }
}

/// Polls the rings directly for a read of queue `cq`, which is empty and fed by this endpoint
/// alone. Handles at most `most` messages, whose completions go to `to` and bypass the queue. An
/// empty poll costs one load per active ring, no clock and no pause, since its caller may compute
/// between polls.
#[inline(always)]
pub(crate) fn poll_direct(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    cq: u32,
    most: usize,
    to: &mut impl CompletionSink,
) -> DirectPoll {
    #[cfg(test)]
    let _ = crate::engine::panic_test::strike(ep.cfg.inject_size);
    if ep.cfg.rx_cq != Some(cq)
        || most == 0
        || ep.links.armed
        || ep.links.is_clock_due(ep.links.polls.wrapping_add(1))
        || !ep.is_quiescent()
        || ep.links.sock.bell().any()
    {
        return DirectPoll::Declined;
    }
    let (rings, most) = (ep.links.active.len(), most.min(BATCH));
    let mut taken = 0;
    for at in 0..rings {
        if taken == most {
            break;
        }
        let Some(link) = ep.links.poll_ready(at) else {
            continue;
        };
        if rings > DIRECT_RINGS {
            return DirectPoll::Declined;
        }
        expect_answer(ep, link);
        let before = taken;
        let mut outcome = PollOutcome::Unhandled;
        while taken < most {
            outcome = recv_inline(ep, env, link.conn, link.peer, to);
            if outcome != PollOutcome::Consumed {
                break;
            }
            taken += 1;
        }
        if let Some(link) = ep.links.active.get_mut(at) {
            link.empty = u32::from(taken == before && outcome == PollOutcome::Empty);
        }
        if outcome == PollOutcome::Unhandled && taken == 0 {
            return DirectPoll::Declined;
        }
    }
    ep.links.polls = ep.links.polls.wrapping_add(1);
    ep.throttle.more = taken == most;
    ep.recv.cq_was_empty = taken == 0;
    if taken > 0 { DirectPoll::Received } else { DirectPoll::Empty }
}

/// Requests ownership of the next transmit line after the first record that ends a wait, since
/// a reply probably follows. The ring holds this record.
#[inline(always)]
pub(crate) fn expect_answer(ep: &mut Endpoint, Link { conn, peer, empty }: Link) {
    if empty == 0 {
        return;
    }
    let Some(tx) = ep.peers.at(peer).tx else {
        return;
    };
    let Some(c) = ep.links.conn(conn) else {
        return;
    };
    if tx == conn && c.tx().last_was_reply() {
        return;
    }
    let tx = if tx == conn { tx } else { merge::merge_conns(ep, peer, tx, conn) };
    if let Some(c) = ep.links.conn(tx) {
        c.tx().prefetch_slot();
    }
}

/// Handles the next record of a ring, if it is an inline message with a posted receive.
#[inline(always)]
pub(crate) fn recv_inline(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    to: &mut impl CompletionSink,
) -> PollOutcome {
    let Some(c) = ep.links.conn(conn) else {
        return PollOutcome::Empty;
    };
    c.poll_inline(InlineRecv {
        cfg: &ep.cfg,
        recv: &mut ep.recv,
        peers: &mut ep.peers,
        stats: &mut ep.stats,
        env,
        peer,
        to,
    })
}

/// Posts a receive of one plain buffer if no unexpected message waits. Returns false if it did
/// nothing.
///
/// # Errors
/// `FI_EINVAL` or `FI_ENOAV` for a source that no address vector names.
#[inline(always)]
pub(crate) fn post_recv_fast(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &RecvArgs<'_>,
) -> Result<bool, Errno> {
    let &[to] = a.iov else { return Ok(false) };
    let (queue, (tag, ignore)) = match a.tag {
        Some(tag) => (&ep.recv.tagged, tag),
        None => (&ep.recv.msg, (0, u64::MAX)),
    };
    if a.flags & fi::FI_MULTI_RECV != 0 || queue.unexpected.len() != 0 {
        return Ok(false);
    }
    let mut src = ANY;
    if ep.cfg.directed && a.src != fi::FI_ADDR_UNSPEC {
        src = peer_conn::peer_of(ep, env, a.src)?;
        let p = ep.peers.at(src);
        if p.state.has_failed() || p.tx.is_none() && ep.peers.own != Some(src) {
            return Ok(false);
        }
        ep.recv.directed += 1;
    }
    let posted = PostedRecv {
        tag,
        ignore,
        src,
        iov: Iov::One([to]),
        len: to.len(),
        context: a.context,
        flags: a.flags,
        multi: None,
    };
    ep.recv.queue(a.tag.is_some()).posted.push_back(posted);
    Ok(true)
}
