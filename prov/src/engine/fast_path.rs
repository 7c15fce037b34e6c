// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fast path of receives: an inline message for one plain buffer that was posted earlier.
//!
//! Each function either completes its work or changes nothing, and then the slow path (`recv`)
//! decides. Both paths have the same effects. The fast path copies each part of a receive straight
//! from its source to its destination. A copy of the whole would be loaded in other pieces than it
//! was stored in, which causes a store-forwarding stall.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
use crate::engine::protocols::posted_write_target::{self, Batch};
use crate::engine::protocols::{atomic, atomic_inline, posted_records};
use crate::engine::tables::peer_table::{PeerTable, source_in};
use crate::engine::tables::recv_queues::RecvQueues;
use crate::engine::tables::tag_match::{PlainRecv, PostedRecv};
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

    /// Returns the number of completions that have bypassed the queue.
    fn bypassed(&self) -> usize;
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

    fn bypassed(&self) -> usize {
        0
    }
}

/// Number of active rings up to which a direct poll receives. With more, the records of each ring
/// are handled in turn by a full poll.
const DIRECT_RINGS: usize = 4;

/// Number of messages that a read of one completion handles in a backlog. The next reads find the
/// completions of the others in the queue, which takes fewer instructions than a poll for each.
const READ_AHEAD: usize = 16;

/// Result of a direct poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectPoll {
    /// At least one message was received. The number is that of the completions that have bypassed
    /// the queue.
    Received(usize),
    /// One-sided records were handled, which may have put entries into the queue.
    OneSided,
    /// No ring holds a record, and no other work is due.
    Empty,
    /// The rings were not polled: other work is due.
    Busy,
    /// Only a full poll can do the work that is due.
    Declined,
    /// A full poll was made, which may have put entries into the queue.
    Progressed,
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
        let expected = if line.has_body() { wire::EAGER } else { wire::EAGER | wire::INLINE };
        if kind & !(wire::TAGGED | wire::DATA) != expected || self.cfg.force_slow_path {
            return false;
        }
        let is_tagged = kind & wire::TAGGED != 0;
        if kind & wire::DATA != 0 {
            self.receive(is_tagged, true, line)
        } else {
            self.receive(is_tagged, false, line)
        }
    }
}

impl<D: CompletionSink> InlineRecv<'_, '_, D> {
    /// Receives a message if a plain receive is posted for it. Inlined once with and once without
    /// data.
    #[inline(always)]
    fn receive(self, is_tagged: bool, has_data: bool, line: &InlineRecord<'_>) -> bool {
        let InlineRecv { cfg, recv, env, peer, .. } = self;
        let words = usize::from(is_tagged) + usize::from(has_data);
        let Some(len) = line.payload_len(words) else {
            return false;
        };
        let tag = if is_tagged { line.word(0) } else { 0 };
        let data = if has_data { line.word(words - 1) } else { 0 };
        let Some(PlainRecv { to, context, flags, src }) =
            recv.queue(is_tagged).take_plain(peer, tag, len)
        else {
            return false;
        };
        line.copy_payload(words, &to);
        if src != ANY {
            recv.directed -= 1;
        }
        recv.last_peek_missed = false;
        self.stats.received.add(len);
        self.peers.note_arrival(peer, tag, len, context);
        if let Some(cntr) = cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
            cntr.add(1);
        }
        if flags & fi::FI_COMPLETION != 0 {
            if let Some(cq) = cfg.rx_cq {
                let class = if is_tagged { fi::FI_TAGGED } else { fi::FI_MSG };
                let with_data = if has_data { fi::FI_REMOTE_CQ_DATA } else { 0 };
                let c = Completion {
                    context,
                    flags: fi::FI_RECV | class | with_data,
                    len: len + cfg.prefix,
                    buf: to.addr(),
                    data,
                    tag,
                    src: source_in(cfg, self.peers, env.avs, peer),
                };
                self.to.deliver(env.cqs, cq, c);
            }
        }
        true
    }
}

/// Result of a direct poll of the rings.
enum RingScan {
    /// No ring holds a record, and no other work is due.
    Empty,
    /// The active ring at this index may hold a record.
    Ready(usize),
    /// The rings were not polled: other work is due.
    Busy,
}

/// Looks for the first ring with a record: one load per active ring, no clock and no pause, since
/// the caller may compute between polls.
#[inline(always)]
fn scan_rings(ep: &mut Endpoint) -> RingScan {
    if ep.links.armed || !ep.is_quiescent() || ep.links.sock.bell().any() {
        return RingScan::Busy;
    }
    ep.links.polls = ep.links.polls.wrapping_add(1);
    for at in 0..ep.links.active.len() {
        if ep.links.poll_ready(at).is_some() {
            return RingScan::Ready(at);
        }
    }
    RingScan::Empty
}

/// Polls the rings for a caller that has a full poll at hand. Returns true if there was nothing to
/// do.
#[inline(always)]
pub(crate) fn poll_empty(ep: &mut Endpoint, env: &Env<'_>) -> bool {
    let due = ep.links.is_clock_due(ep.links.polls.wrapping_add(1));
    let empty = !due && matches!(scan_rings(ep), RingScan::Empty);
    if empty {
        end_poll(ep, 0, 1, &ToQueue);
        ep.recv.note_cq(&ep.cfg, env.cqs);
    }
    empty
}

/// Polls the rings directly for a read of queue `cq`, which is empty and fed by this endpoint
/// alone. Handles at most `most` messages, whose completions go to `to` and bypass the queue, or
/// one-sided records. A read of no entries, or of a queue of sends, handles only the latter.
#[inline(always)]
pub(crate) fn poll_direct<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    cq: u32,
    most: usize,
    to: D,
) -> DirectPoll {
    #[cfg(test)]
    let _ = crate::engine::panic_test::strike(ep.cfg.inject_size);
    match scan_rings(ep) {
        RingScan::Empty => {
            end_poll(ep, 0, most.max(1), &to);
            if ep.cfg.rx_cq != Some(cq) {
                ep.recv.note_cq(&ep.cfg, env.cqs);
            }
            DirectPoll::Empty
        }
        RingScan::Ready(at) => poll_from(ep, &mut env.again(), (cq, at), most, to),
        RingScan::Busy => DirectPoll::Busy,
    }
}

/// Continues a direct poll for a read of queue `cq` at ring `at`, the first one that may hold a
/// record.
#[inline(always)]
pub(crate) fn poll_from<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (cq, at): (u32, usize),
    most: usize,
    to: D,
) -> DirectPoll {
    if ep.cfg.rx_cq != Some(cq) || most == 0 {
        take_one_sided(ep, env, at)
    } else {
        receive(ep, env, at, most, to)
    }
}

/// Continues a direct poll that receives. A function of its own, so that its state stays in
/// registers.
#[inline(never)]
fn receive<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    at: usize,
    most: usize,
    mut to: D,
) -> DirectPoll {
    let rings = ep.links.active.len();
    let Some(&link) = ep.links.active.get(at).filter(|_| rings <= DIRECT_RINGS) else {
        return DirectPoll::Declined;
    };
    expect_answer(ep, link);
    let (mut taken, mut outcome) = poll_ring(ep, env, link, most, &mut to);
    if outcome == PollOutcome::Unhandled && taken == 0 {
        if let Some(count @ 1..) = execute_front(ep, env, link) {
            return end_one_sided(ep, env, at, count);
        }
        outcome = recv_short(ep, env, link.conn, link.peer, &mut to);
        if outcome != PollOutcome::Consumed {
            return DirectPoll::Declined;
        }
        taken = 1;
    }
    if let Some(link) = ep.links.active.get_mut(at) {
        link.empty = u32::from(taken == 0);
    }
    let next = at + usize::from(outcome == PollOutcome::Empty);
    if taken < most && next < rings {
        return poll_rest(ep, env, (next, taken), most, to);
    }
    end_poll(ep, taken, most, &to)
}

/// Continues a direct poll that receives nothing: handles the one-sided records at the front of one
/// ring.
#[inline(never)]
fn take_one_sided(ep: &mut Endpoint, env: &mut Env<'_>, at: usize) -> DirectPoll {
    for at in at..ep.links.active.len() {
        let Some(link) = ep.links.poll_ready(at) else { continue };
        match execute_front(ep, env, link) {
            Some(0) => {
                if let Some(link) = ep.links.active.get_mut(at) {
                    link.empty = 1;
                }
            }
            Some(count) => return end_one_sided(ep, env, at, count),
            None => return DirectPoll::Declined,
        }
    }
    ep.throttle.more = false;
    ep.recv.note_cq(&ep.cfg, env.cqs);
    DirectPoll::Empty
}

/// Notes the end of a direct poll that has handled `count` one-sided records of active ring `at`.
#[inline(always)]
fn end_one_sided(ep: &mut Endpoint, env: &mut Env<'_>, at: usize, count: usize) -> DirectPoll {
    if let Some(link) = ep.links.active.get_mut(at) {
        link.empty = 0;
    }
    ep.throttle.more = count > 1;
    ep.recv.note_cq(&ep.cfg, env.cqs);
    DirectPoll::OneSided
}

/// Handles one-sided records at the front of a ring: a batch of posted operations, or short atomics
/// and replies. Returns their number; `None` if the ring needs a full poll.
#[inline]
pub(crate) fn execute_front(ep: &mut Endpoint, env: &mut Env<'_>, link: Link) -> Option<usize> {
    let Link { conn, peer, .. } = link;
    let next = ep.links.conn(conn)?.rx().next_kind();
    let is_posted = next.is_some_and(posted_write_target::is_posted);
    if !is_posted && !next.is_some_and(is_short) {
        return ep.links.conn(conn).is_some_and(|c| !c.rx().ready()).then_some(0);
    }
    if ep.links.rx_closed || ep.peers.at(peer).over_reply_limit() {
        return None;
    }
    expect_answer(ep, link);
    // The record that ends a wait is probably the only one. A look at the next one would wait for
    // its cache line, which the initiator has prefetched.
    let most = if link.empty == 0 { BATCH } else { 1 };
    if !is_posted {
        return take_short(ep, env, (conn, peer), most);
    }
    match posted_write_target::execute(ep, env, (conn, peer), most) {
        Batch::Handled(count) => Some(count),
        Batch::Other | Batch::Held | Batch::Panicked => None,
    }
}

/// Whether a record is an atomic in one line, the reply to one or to a read, or the report that
/// such atomics were executed.
#[inline(always)]
fn is_short(kind: u8) -> bool {
    matches!(kind, wire::ATOMIC_LINE | wire::ATOMIC_REPLY | wire::DONE | wire::READ_DATA)
}

/// Handles at most `most` short records at the front of a ring, of which there is one. Returns
/// their number; `None` if the first one has to be left to a full poll.
#[inline(never)]
fn take_short(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    from: (ConnId, PeerId),
    most: usize,
) -> Option<usize> {
    let mut taken = 0;
    while taken < most {
        let Some(c) = ep.links.conn(from.0) else { break };
        // Used in place: a move loads wider than the record was stored (store-forwarding stall).
        let next = c.rx().peek();
        let Ok(Some(record)) = &next else { break };
        if !is_short(record.kind) {
            break;
        }
        // A record that fails or causes a panic stays, and a full poll ends its connection.
        let handled = catch_unwind(AssertUnwindSafe(|| match record.kind {
            wire::ATOMIC_REPLY => atomic::on_record(ep, env, from, record),
            wire::READ_DATA => posted_records::on_read_data(ep, env, from, record),
            _ => atomic_inline::on_record(ep, env, from, record),
        }));
        if !matches!(handled, Ok(Ok(()))) {
            break;
        }
        ep.links.conn(from.0)?.rx().advance();
        taken += 1;
    }
    (taken > 0).then_some(taken)
}

/// Handles inline messages at the head of a ring, at most `most`, or a few more in a backlog.
/// Returns their number, and the outcome of the last poll.
#[inline(always)]
fn poll_ring<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    Link { conn, peer, .. }: Link,
    most: usize,
    to: &mut D,
) -> (usize, PollOutcome) {
    let Some(c) = ep.links.conn(conn) else {
        return (0, PollOutcome::Empty);
    };
    let (mut taken, mut limit) = (0, most.min(BATCH));
    loop {
        let (recv, peers, stats) = (&mut ep.recv, &mut ep.peers, &mut ep.stats);
        let handler = InlineRecv { cfg: &ep.cfg, recv, peers, stats, env, peer, to };
        let outcome = c.poll_inline(handler);
        if outcome != PollOutcome::Consumed {
            return (taken, outcome);
        }
        taken += 1;
        if taken == limit {
            if limit != 1 || !c.rx().has_backlog() {
                return (taken, outcome);
            }
            limit = READ_AHEAD;
        }
    }
}

/// Continues a direct poll at ring `at`, of which it has handled `taken` messages.
#[inline(never)]
fn poll_rest<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (at, mut taken): (usize, usize),
    most: usize,
    mut to: D,
) -> DirectPoll {
    let most = most.min(BATCH);
    let mut before = 0;
    for at in at..ep.links.active.len() {
        let Some(link) = ep.links.poll_ready(at) else {
            continue;
        };
        expect_answer(ep, link);
        let mut outcome = PollOutcome::Consumed;
        while taken < most && outcome == PollOutcome::Consumed {
            outcome = recv_inline(ep, env, link.conn, link.peer, &mut to);
            taken += usize::from(outcome == PollOutcome::Consumed);
        }
        if let Some(link) = ep.links.active.get_mut(at) {
            link.empty = u32::from(taken == before && outcome == PollOutcome::Empty);
        }
        if outcome == PollOutcome::Unhandled && taken == 0 {
            return DirectPoll::Declined;
        }
        if taken == most {
            break;
        }
        before = taken;
    }
    end_poll(ep, taken, most, &to)
}

/// Notes the end of a direct poll that has handled `taken` of at most `most` messages.
#[inline(always)]
fn end_poll<D: CompletionSink>(ep: &mut Endpoint, taken: usize, most: usize, to: &D) -> DirectPoll {
    ep.throttle.more = taken >= most;
    ep.recv.cq_was_empty = taken == 0;
    if taken > 0 { DirectPoll::Received(to.bypassed()) } else { DirectPoll::Empty }
}

/// Requests ownership of the next transmit line after the first record that ends a wait, since
/// a reply probably follows. The ring holds this record.
#[inline(always)]
pub(crate) fn expect_answer(ep: &mut Endpoint, Link { conn, peer, empty, .. }: Link) {
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
        c.tx().prefetch_record();
    }
}

/// Handles the next record of a ring, if it is an inline message, or one with a short body, with a
/// posted receive.
#[inline(always)]
pub(crate) fn recv_inline<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    to: &mut D,
) -> PollOutcome {
    match poll_record::<false, D>(ep, env, conn, peer, to) {
        PollOutcome::Unhandled => recv_short(ep, env, conn, peer, to),
        outcome => outcome,
    }
}

/// Variant of [`recv_inline`] for a message with a short body.
#[inline(never)]
fn recv_short<D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    to: &mut D,
) -> PollOutcome {
    poll_record::<true, D>(ep, env, conn, peer, to)
}

/// Shows the next record of a ring to the handler: one without a body, or with a `SHORT` one.
#[inline(always)]
fn poll_record<const SHORT: bool, D: CompletionSink>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    to: &mut D,
) -> PollOutcome {
    let Some(c) = ep.links.conn(conn) else {
        return PollOutcome::Empty;
    };
    let (recv, peers, stats) = (&mut ep.recv, &mut ep.peers, &mut ep.stats);
    let handler = InlineRecv { cfg: &ep.cfg, recv, peers, stats, env, peer, to };
    if SHORT { c.poll_body(handler) } else { c.poll_inline(handler) }
}

/// Posts a receive of one plain buffer if no unexpected message waits. Returns false if it did
/// nothing.
///
/// # Errors
/// `FI_EINVAL` or `FI_ENOAV` for a source that no address vector names.
#[inline(always)]
pub(crate) fn post_recv_fast(
    ep: &mut Endpoint,
    env: &Env<'_>,
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
        since_ns: ep.links.clock_ns(),
        multi: None,
    };
    ep.recv.queue(a.tag.is_some()).posted.push_back(posted);
    ep.peers.note_posted(src, tag, to.len(), a.context);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::channel::link_set::{Repeated, TICK_POLLS};
    use crate::engine::progress;
    use crate::engine::tests::{Bed, buffer, completed};

    #[test]
    fn empty_poll_declines_records_and_timed_work() {
        let mut pair = Bed::pair();
        let (from, to) = (buffer(vec![3; 8]), buffer(vec![0; 8]));
        let poll_empty = |bed: &mut Bed| bed.run(|ep, env| poll_empty(ep, env));
        pair[1].recv(&to);
        pair[0].send(&from).unwrap();
        let _sent = completed(&mut pair, 0);
        assert_eq!(completed(&mut pair, 1).len, 8);
        let full = (0..8 * TICK_POLLS).filter(|_| {
            let full = !poll_empty(&mut pair[1]);
            if full {
                pair[1].run(progress::progress);
            }
            full
        });
        let full = full.count();
        assert!((1..=8 + 1).contains(&full), "{full} of 64 polls had timed work");
        pair[0].send(&from).unwrap();
        for _ in 0..2 * TICK_POLLS {
            assert!(!poll_empty(&mut pair[1]), "a record waits");
        }
        pair[1].ep.links.armed = true;
        pair[1].run(progress::progress);
        assert!(!poll_empty(&mut pair[1]), "a thread is about to sleep");
    }

    #[test]
    fn repeated_poll_is_silent_until_a_record_arrives() {
        let mut pair = Bed::pair();
        let (from, to) = (buffer(vec![3; 8]), buffer(vec![0; 8]));
        let exchange = |pair: &mut [Bed; 2]| {
            pair[1].recv(&to);
            pair[0].send(&from).unwrap();
            let _sent = completed(pair, 0);
            assert_eq!(completed(pair, 1).len, 8);
        };
        exchange(&mut pair);
        exchange(&mut pair);
        let again = |bed: &mut Bed| bed.run(|ep, _| ep.links.poll_again());
        let is_silent = |bed: &mut Bed| again(bed) == Repeated::Silent;
        // The clock ends a sequence of repeated polls.
        let mut longest = 0;
        for _ in 0..8 {
            while !pair[1].run(|ep, env| poll_empty(ep, env)) {
                pair[1].run(progress::progress);
            }
            let polls = pair[1].ep.links.polls;
            let silent = (0..100 * TICK_POLLS).take_while(|_| is_silent(&mut pair[1])).count();
            assert_eq!(pair[1].ep.links.polls.wrapping_sub(polls) as usize, silent);
            longest = longest.max(silent);
        }
        assert!((1..100 * TICK_POLLS as usize).contains(&longest), "{longest} repeated polls");
        let is_due = |bed: &Bed| bed.ep.links.is_clock_due(bed.ep.links.polls.wrapping_add(1));
        while !pair[1].run(|ep, env| poll_empty(ep, env)) || is_due(&pair[1]) {
            pair[1].run(progress::progress);
        }
        pair[0].send(&from).unwrap();
        assert_eq!(again(&mut pair[1]), Repeated::Ready(0));
    }
}
