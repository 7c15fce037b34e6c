// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large RMA with peers on other hosts: the network reads the bytes from user memory into user
//! memory.
//!
//! A write is announced with a key of the network for its source. The target reads the source into
//! the region, and acknowledges the write. For a read, the target exposes the range until the
//! initiator has read it. In both cases the target checks the access, and later operations wait at
//! the initiator until this one has ended. Only operations of the same kind start meanwhile.
//!
//! Not here: their state (`tables::network_rma`), and early ends (`network_rma_end`). An operation
//! that the network refuses goes through the ring (`rma`), as do those with lists of ranges at the
//! wrong side.

use libfabric_sys as fi;
use scif::{ConnId, LONG_BODY_MAX, ReadBegun, ReadState, ReadSupport, WireMemory};
use scif_ring::copy::Mem;
use scif_ring::spsc::Record;

use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::Submit;
use crate::engine::protocols::rma_target;
use crate::engine::tables::network_rma::{
    Exposure, IN_PROGRESS_MAX, Lane, NetworkRma, Pull, PullFor, PullResult,
};
use crate::engine::tables::op_table::{NetworkOp, OpKind, OutstandingOp};
use crate::engine::tables::pending::{OwnedPayload, PendingOp, RmaOp};
use crate::engine::tables::rma_state::RmaTarget;
use crate::engine::types::args::{Effect, RmaArgs, RmaIov};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Shortest operation in bytes that the network executes. The bytes of a shorter one are one record
/// past the ring, whose copies cost less than the second round trip.
pub(crate) const NETWORK_RMA_MIN: usize = LONG_BODY_MAX + 1;
/// Bytes of the body of an announced write: address and key of the network.
const SOURCE_BYTES: usize = 16;

/// Whether an operation has the form that the network executes.
fn is_fit(write: bool, iov: &[Mem], rma: &[RmaIov]) -> bool {
    matches!(rma, [segment] if segment.len >= NETWORK_RMA_MIN) && (!write || iov.len() == 1)
}

/// Whether an operation may start while others to the same peer are in progress.
fn may_join(
    ep: &mut Endpoint,
    peer: PeerId,
    (write, flags): (bool, u64),
    (iov, rma): (&[Mem], &[RmaIov]),
) -> bool {
    let p = ep.peers.at(peer);
    let held = p.queue.held;
    if held.write != write
        || held.count as usize >= IN_PROGRESS_MAX
        || flags & (fi::FI_FENCE | fi::FI_INJECT) != 0
        || !is_fit(write, iov, rma)
    {
        return false;
    }
    // The target orders writes to the same bytes.
    write || p.tx.is_some_and(|conn| support(ep, conn) == ReadSupport::Ordered)
}

/// Whether a new operation may start while others to the same peer are in progress, and none waits.
pub(crate) fn joins(ep: &mut Endpoint, peer: PeerId, a: &RmaArgs<'_>) -> bool {
    let queue = &ep.peers.at(peer).queue;
    queue.held.count > 0
        && queue.pending.is_empty()
        && queue.control.is_empty()
        && may_join(ep, peer, (a.write, a.flags), (a.iov, a.rma))
}

/// Whether the first pending operation may start, in view of those that the network executes.
pub(crate) fn lets_start(ep: &mut Endpoint, peer: PeerId, op: &PendingOp) -> bool {
    if ep.peers.at(peer).queue.held.count == 0 {
        return true;
    }
    match op {
        PendingOp::Rma(RmaOp {
            write,
            flags,
            local: OwnedPayload::User(iov),
            rma,
            id: None,
            through_ring: false,
            ..
        }) => may_join(ep, peer, (*write, *flags), (iov.as_slice(), rma)),
        _ => false,
    }
}

/// Returns the ability of the network of a connection to read memory of the peer.
fn support(ep: &mut Endpoint, conn: ConnId) -> ReadSupport {
    let reads = ep.links.conn(conn).and_then(|c| c.remote_reads());
    reads.filter(|reads| reads.need_owner()).map_or(ReadSupport::None, |reads| reads.support())
}

/// Starts an operation. Returns `None` if it has to go through the ring.
pub(crate) fn start(ep: &mut Endpoint, peer: PeerId, conn: ConnId, op: &RmaOp) -> Option<Submit> {
    let OwnedPayload::User(iov) = &op.local else { return None };
    let (&[rma], true) = (op.rma.as_slice(), !op.through_ring) else { return None };
    if !is_fit(op.write, iov.as_slice(), &op.rma) || support(ep, conn) == ReadSupport::None {
        return None;
    }
    let c = ep.links.conn(conn)?;
    if !c.tx().room(SOURCE_BYTES) {
        return Some(Submit::Retry);
    }
    let mut source = None;
    if op.write {
        source = c.remote_reads()?.expose(&iov.contiguous()?);
        if source.is_none() {
            // Nothing may overtake the operations in progress through the ring.
            let is_held = ep.peers.at(peer).queue.held.count > 0;
            return is_held.then_some(Submit::Retry);
        }
    }
    let id = ep.ops.insert(OutstandingOp {
        exposed: source.map(|memory| memory.key),
        ring_rma: true,
        network: Some(Box::new(NetworkOp { rma, data: op.data, is_reading: false })),
        ..OutstandingOp::new(peer, op.label(), iov.clone())
    });
    let c = ep.links.conn(conn)?;
    let head = Head::new().word(rma.key).word(rma.addr).word(id);
    let pushed = match source {
        Some(WireMemory { addr, key }) => {
            let flags = if op.data.is_some() { wire::F_DATA } else { 0 };
            let head = head.word(op.data.unwrap_or(0)).word(flags).word(op.len as u64);
            let body = [addr.to_ne_bytes(), key.to_ne_bytes()].concat();
            c.tx().push_slice(wire::NETWORK_WRITE, head.as_slice(), &body)
        }
        None => c.tx().push_head(wire::NETWORK_READ, head.word(op.len as u64).as_slice()),
    };
    if pushed.is_err() {
        ep.ops.remove(id);
        source.into_iter().for_each(|memory| ep.links.sock.revoke(memory.key));
        return Some(Submit::Retry);
    }
    c.notify();
    let p = ep.peers.at_mut(peer);
    p.rma.outstanding += 1;
    p.queue.held.add(op.write);
    if op.write {
        p.transfer.copied.note(true, op.len);
    }
    Some(Submit::Done)
}

/// Handles an announced write, a request for a key, and their answers.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    match record.kind {
        wire::NETWORK_WRITE => on_write(ep, env, (conn, peer), &mut words, record.body),
        wire::NETWORK_READ => on_read(ep, env, (conn, peer), &mut words),
        wire::NETWORK_KEY => on_key(ep, env, (conn, peer), &mut words),
        wire::NETWORK_REFUSED => on_refused(ep, peer, words.word()),
        _ => {
            on_end(ep, env, (conn, peer), words.word(), words.word() != 0);
            Ok(())
        }
    }
}

/// Handles an announced write, as its target.
fn on_write(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    words: &mut Words<'_>,
    body: Mem,
) -> Result<(), RecordError> {
    let (key, addr, op) = (words.word(), words.word(), words.word());
    let (data, flags, len) = (words.word(), words.word(), words.word());
    let mut source = [0; SOURCE_BYTES];
    if body.copy_to_slice(&mut source) != SOURCE_BYTES || len == 0 {
        return Err(RecordError::ProtocolError);
    }
    let mut source = Words::of(&source);
    let from = WireMemory { addr: source.word(), key: source.word() };
    let is_readable = support(ep, conn) != ReadSupport::None;
    let Some((at, lane)) = ep.rma_target.network.lane(conn, peer) else { return Ok(()) };
    if lane.pulls.len() >= 2 * IN_PROGRESS_MAX {
        return Err(RecordError::ProtocolError);
    }
    let mut to = Vec::new();
    let result = if lane.refuses || !is_readable {
        PullResult::Refused
    } else {
        match env.mrs.check(key, addr, len, fi::FI_REMOTE_WRITE, &mut to) {
            Ok(()) => PullResult::Good,
            Err(err) => PullResult::Failed(err),
        }
    };
    let data = (flags & wire::F_DATA != 0).then_some(data);
    // Ends in the order of the records, also if it is refused.
    lane.pulls.push_back(Pull::new(PullFor::Write { op, key, data }, from, to, result));
    advance(ep, env, at);
    ep.rma_target.network.sweep();
    Ok(())
}

/// Handles a request to expose memory, as the target of a read.
fn on_read(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    words: &mut Words<'_>,
) -> Result<(), RecordError> {
    let (key, addr, op, len) = (words.word(), words.word(), words.word(), words.word());
    let Some((_, lane)) = ep.rma_target.network.lane(conn, peer) else { return Ok(()) };
    if lane.exposed.len() >= IN_PROGRESS_MAX || len == 0 {
        return Err(RecordError::ProtocolError);
    }
    let memory = match env.mrs.piece(key, addr, len, fi::FI_REMOTE_READ) {
        Ok(memory) => memory,
        Err(err) => {
            let head = Head::new().word(op).word(u64::from(err.unsigned_abs()));
            peer_conn::answer(ep, peer, wire::ACK, head, &[]);
            ep.rma_target.network.sweep();
            return Ok(());
        }
    };
    let is_readable = support(ep, conn) != ReadSupport::None;
    let reads = ep.links.conn(conn).and_then(|c| c.remote_reads());
    let exposed = match (memory.filter(|_| is_readable), reads) {
        (Some(memory), Some(reads)) => reads.expose(&memory).map(|exposed| (exposed, memory.len())),
        _ => None,
    };
    let (kind, head) = match exposed {
        None => (wire::NETWORK_REFUSED, Head::new().word(op)),
        Some((WireMemory { addr, key: network_key }, len)) => {
            if let Some((_, lane)) = ep.rma_target.network.lane(conn, peer) {
                lane.exposed.push(Exposure { network_key, key, len, is_revoked: false });
            }
            (wire::NETWORK_KEY, Head::new().word(op).word(addr).word(network_key))
        }
    };
    peer_conn::answer(ep, peer, kind, head, &[]);
    ep.rma_target.network.sweep();
    Ok(())
}

/// Handles the end of a peer's read, as its target.
fn on_end(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    network_key: u64,
    is_done: bool,
) {
    let Some((_, lane)) = ep.rma_target.network.lane(conn, peer) else { return };
    let at = lane.exposed.iter().position(|exposure| exposure.network_key == network_key);
    let ended = at.map(|at| lane.exposed.remove(at));
    ep.rma_target.network.sweep();
    let Some(Exposure { key, len, .. }) = ended else { return };
    ep.links.sock.revoke(network_key);
    if is_done {
        ep.peers.at_mut(peer).transfer.copied.note(true, len);
        rma_target::rma_event(ep, env, peer, Effect::Read, None, (key, len));
    }
}

/// Begins an own read whose memory the target has exposed.
fn on_key(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    words: &mut Words<'_>,
) -> Result<(), RecordError> {
    let (id, from) = (words.word(), WireMemory { addr: words.word(), key: words.word() });
    let Some(op) = ep.ops.get_mut(id).filter(|op| op.peer == peer && op.op_kind == OpKind::Read)
    else {
        return Err(RecordError::ProtocolError);
    };
    let asked = op.network.as_mut().filter(|network| !network.is_reading);
    let Some(network) = asked else { return Err(RecordError::ProtocolError) };
    network.is_reading = true;
    let pull =
        Pull::new(PullFor::Read { op: id }, from, op.iov.as_slice().to_vec(), PullResult::Good);
    let Some((at, lane)) = ep.rma_target.network.lane(conn, peer) else { return Ok(()) };
    lane.pulls.push_back(pull);
    advance(ep, env, at);
    ep.rma_target.network.sweep();
    Ok(())
}

/// Handles the refusal of an operation: it has to go through the ring.
fn on_refused(ep: &mut Endpoint, peer: PeerId, id: u64) -> Result<(), RecordError> {
    let op = ep.ops.get_mut(id).filter(|op| op.peer == peer);
    let network = op.and_then(|op| op.network.as_ref());
    if network.is_none_or(|network| network.is_reading) {
        return Err(RecordError::ProtocolError);
    }
    repeat(ep, peer, id);
    Ok(())
}

/// Makes an operation pending again, through the ring, before all others but those that were
/// refused earlier.
fn repeat(ep: &mut Endpoint, peer: PeerId, id: u64) {
    let Some(op) = ep.ops.remove(id) else { return };
    let write = op.op_kind == OpKind::Write;
    let info = op.info();
    let (Some(network), true) = (op.network, op.peer == peer) else { return };
    if let Some(key) = op.exposed {
        ep.links.sock.revoke(key);
    }
    ep.stats.denials.fallbacks += 1;
    let op = RmaOp {
        write,
        local: OwnedPayload::User(op.iov),
        rma: vec![network.rma],
        len: info.len,
        data: network.data,
        context: info.context,
        flags: info.flags,
        id: None,
        segment: 0,
        within: 0,
        offset: 0,
        through_ring: true,
        again: true,
        dma: None,
        block: None,
    };
    let p = ep.peers.at_mut(peer);
    p.rma.outstanding = p.rma.outstanding.saturating_sub(1);
    p.queue.held.remove();
    let is_again = |op: &&PendingOp| matches!(op, PendingOp::Rma(RmaOp { again: true, .. }));
    let at = p.queue.pending.iter().take_while(is_again).count();
    p.queue.pending.insert(at, PendingOp::Rma(op));
    ep.peers.mark_busy(peer);
}

/// Advances the reads of all peers' memory.
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>) {
    for at in (0..ep.rma_target.network.lanes.len()).rev() {
        advance(ep, env, at);
    }
    ep.rma_target.network.sweep();
}

/// Begins the reads over one connection that can begin, and ends the operations whose reads have
/// ended.
fn advance(ep: &mut Endpoint, env: &mut Env<'_>, at: usize) {
    begin_reads(ep, at);
    while let Some((lane, pull)) = take_ended(ep, at) {
        end(ep, env, lane, &pull);
        begin_reads(ep, at);
    }
}

/// Begins the reads over one connection, in their order.
fn begin_reads(ep: &mut Endpoint, at: usize) {
    let Endpoint { rma_target: RmaTarget { network: NetworkRma { lanes }, .. }, links, .. } = ep;
    let Some(lane) = lanes.get_mut(at) else { return };
    for index in 0..lane.pulls.len() {
        let is_begun = lane.pulls.get(index).is_none_or(|pull| pull.next_piece().is_none());
        if is_begun {
            continue;
        }
        let reads = links.conn(lane.conn).and_then(|c| c.remote_reads());
        if !lane.may_begin(index) {
            return;
        }
        let Some(pull) = lane.pulls.get_mut(index) else { return };
        let Some(reads) = reads else {
            pull.result = PullResult::Refused;
            continue;
        };
        while let Some((from, to)) = pull.next_piece() {
            match reads.read(from, to) {
                ReadBegun::Reading(number) => pull.note_begun(number),
                ReadBegun::Later => return,
                ReadBegun::Refused => pull.result = PullResult::Refused,
            }
        }
    }
}

/// Removes the oldest operation over a connection if its reads have ended.
fn take_ended(ep: &mut Endpoint, at: usize) -> Option<(LaneId, Pull)> {
    let Endpoint { rma_target: RmaTarget { network: NetworkRma { lanes }, .. }, links, .. } = ep;
    let lane = lanes.get_mut(at)?;
    let Lane { conn, peer, is_lost, .. } = *lane;
    let pull = lane.pulls.front_mut()?;
    if !pull.reads.is_empty() {
        let reads = links.conn(conn).and_then(|c| c.remote_reads())?;
        let result = &mut pull.result;
        pull.reads.retain(|number| match reads.state(*number) {
            ReadState::Reading => true,
            ReadState::Done => false,
            ReadState::Failed => {
                if *result == PullResult::Good {
                    *result = PullResult::Refused;
                }
                false
            }
        });
    }
    if !pull.has_ended() {
        return None;
    }
    let pull = lane.pulls.pop_front()?;
    lane.refuses |=
        matches!((pull.purpose, pull.result), (PullFor::Write { .. }, PullResult::Refused));
    Some((LaneId { peer, is_lost }, pull))
}

/// Peer of a connection, and whether that has ended.
#[derive(Clone, Copy, Debug)]
struct LaneId {
    peer: PeerId,
    is_lost: bool,
}

/// Ends an operation whose reads have ended.
fn end(ep: &mut Endpoint, env: &mut Env<'_>, LaneId { peer, is_lost }: LaneId, pull: &Pull) {
    match (pull.purpose, pull.result) {
        (PullFor::LostRead { .. }, _) => {}
        (PullFor::Write { .. }, _) if is_lost => {}
        (PullFor::Write { op, .. }, PullResult::Refused) => {
            peer_conn::answer(ep, peer, wire::NETWORK_REFUSED, Head::new().word(op), &[]);
        }
        (PullFor::Write { op, key, data }, result) => {
            let err = match result {
                PullResult::Failed(err) => err,
                PullResult::Good | PullResult::Refused => 0,
            };
            let head = Head::new().word(op).word(u64::from(err.unsigned_abs()));
            peer_conn::answer(ep, peer, wire::ACK, head, &[]);
            if err == 0 {
                ep.peers.at_mut(peer).transfer.copied.note(false, pull.len());
                rma_target::rma_event(ep, env, peer, Effect::Write, data, (key, pull.len()));
            }
        }
        (PullFor::Read { op }, result) => {
            let is_done = result == PullResult::Good;
            let head = Head::new().word(pull.from.key).word(u64::from(is_done));
            peer_conn::control(ep, peer, wire::NETWORK_END, head, &[]);
            if let Some(network) = ep.ops.get_mut(op).and_then(|op| op.network.as_mut()) {
                network.is_reading = false;
            }
            if is_done {
                ep.peers.at_mut(peer).transfer.copied.note(false, pull.len());
                completion::finish_op(ep, env, peer, op, 0);
            } else {
                repeat(ep, peer, op);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use scif_ring::HEAD_MAX;

    use super::*;
    use crate::engine::tables::op_table::CompletionInfo;
    use crate::engine::tests::{Bed, buffer, bytes_of, completed, connect, head_of, poll_until};
    use crate::engine::types::iov::Iov;

    const LEN: usize = 2 * NETWORK_RMA_MIN;

    /// Connects two endpoints, the second with a region under key 5, and returns the number of a
    /// write or read that the first one waits for as if a network executed it.
    fn waiting(write: bool) -> ([Bed; 2], Mem, Mem, u64) {
        let mut pair = Bed::pair();
        let (memory, local) = (buffer(vec![1; LEN]), buffer(vec![2; LEN]));
        pair[1].register(&[memory.sub(0, LEN).unwrap()]);
        connect(&mut pair);
        let peer = pair[0].peer();
        let op_kind = if write { OpKind::Write } else { OpKind::Read };
        let info =
            CompletionInfo { op_kind, context: 9, flags: fi::FI_COMPLETION, tag: 0, len: LEN };
        let ep = &mut pair[0].ep;
        let rma = RmaIov { addr: 0, len: LEN, key: 5 };
        let id = ep.ops.insert(OutstandingOp {
            ring_rma: true,
            network: Some(Box::new(NetworkOp { rma, data: None, is_reading: false })),
            ..OutstandingOp::new(peer, info, Iov::new(&[local.sub(0, LEN).unwrap()]))
        });
        let p = ep.peers.at_mut(peer);
        p.rma.outstanding += 1;
        p.queue.held.add(write);
        (pair, memory, local, id)
    }

    fn push(bed: &mut Bed, kind: u8, words: &[u64], body: &[u8]) {
        let peer = bed.peer();
        let head = words.iter().fold(Head::new(), |head, word| head.word(*word));
        bed.run(|ep, _| peer_conn::control(ep, peer, kind, head, body));
    }

    #[test]
    fn operations_without_a_network_go_through_the_ring() {
        for write in [true, false] {
            let (mut pair, memory, local, id) = waiting(write);
            if write {
                let words = [5, 0, id, 0, 0, LEN as u64];
                push(&mut pair[0], wire::NETWORK_WRITE, &words, &[0; SOURCE_BYTES]);
            } else {
                push(&mut pair[0], wire::NETWORK_READ, &[5, 0, id, LEN as u64], &[]);
            }
            assert_eq!(completed(&mut pair, 0).context, 9);
            assert!(bytes_of(&memory) == bytes_of(&local), "write: {write}");
            let peer = pair[0].peer();
            let p = pair[0].ep.peers.at(peer);
            assert!(p.queue.is_quiet() && pair[0].ep.ops.is_empty());
            poll_until(&mut pair, |pair| {
                pair[1].ep.rma_target.network.lanes.is_empty().then_some(())
            });
        }
    }

    #[test]
    fn later_operations_wait_for_those_of_the_network() {
        let (mut pair, _memory, local, id) = waiting(true);
        pair[0].send(&local.sub(0, 8).unwrap()).unwrap();
        pair[1].recv(&buffer(vec![0; 8]));
        for _ in 0..1000 {
            pair.iter_mut().for_each(|bed| bed.run(crate::engine::progress::progress));
            assert!(pair[0].completion().is_none() && pair[1].completion().is_none());
        }
        let peer = pair[0].peer();
        pair[0].run(|ep, env| completion::finish_op(ep, env, peer, id, 0));
        assert_eq!((completed(&mut pair, 0).context, completed(&mut pair, 0).context), (9, 1));
        assert_eq!(completed(&mut pair, 1).len, 8);
    }

    #[test]
    fn only_well_formed_records_are_accepted() {
        let (mut pair, _memory, _local, id) = waiting(false);
        let peer = pair[0].peer();
        let conn = pair[0].ep.peers.at(peer).tx.unwrap();
        let take = |pair: &mut [Bed; 2], kind, words: &[u64], body: Mem| {
            let head_len = u8::try_from(HEAD_MAX).unwrap();
            let record = Record { kind, head_len, head: head_of(words), body };
            pair[0].run(|ep, env| on_record(ep, env, (conn, peer), &record)).is_ok()
        };
        let none = Mem::empty;
        assert!(!take(&mut pair, wire::NETWORK_WRITE, &[5, 0, 1, 0, 0, 8], none()), "no source");
        let source = buffer(vec![0; SOURCE_BYTES]);
        let body = source.sub(0, SOURCE_BYTES).unwrap();
        assert!(!take(&mut pair, wire::NETWORK_WRITE, &[5, 0, 1, 0, 0, 0], body), "no bytes");
        assert!(!take(&mut pair, wire::NETWORK_READ, &[5, 0, 1, 0], none()));
        assert!(!take(&mut pair, wire::NETWORK_REFUSED, &[id + 1], none()), "no such operation");
        assert!(!take(&mut pair, wire::NETWORK_KEY, &[id + 1, 0, 7], none()));
        assert!(take(&mut pair, wire::NETWORK_END, &[7, 1], none()), "nothing is exposed");
        assert!(take(&mut pair, wire::NETWORK_KEY, &[id, 0, 7], none()));
        assert!(
            pair[0].ep.rma_target.network.lanes.is_empty() && pair[0].ep.ops.is_empty(),
            "refused"
        );
        assert!(!take(&mut pair, wire::NETWORK_KEY, &[id, 0, 7], none()), "once only");
    }
}
