// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Snapshots of the outstanding operations and peers of an endpoint for other processes (scifctl).
//!
//! A snapshot is taken by a poll that has read the clock anyway, and before a sleep. Between
//! snapshots a poll stores its time only.
//!
//! Not here: the counters, which change in place (`tables::monitor`).

use libfabric_sys as fi;
use scif::monitor::layout::{
    CopyPath, OP_WORDS, OPS_LISTED, OpKind as Kind, OpState, PEER_WORDS, PEERS_LISTED,
    PeerState as Shown, UNKNOWN, op, ops, peer, peers,
};
use scif::monitor::{keep_peers, port_word};
use scif::{Access, Connection, now_ns};
use scif_ring::SnapshotWriter;
use zerocopy::IntoBytes;

use crate::engine::endpoint::Endpoint;
use crate::engine::exit_stats;
use crate::engine::tables::monitor::QueuedOp;
use crate::engine::tables::op_table::OpKind;
use crate::engine::tables::peer::Peer;
use crate::engine::tables::tag_match::{Payload, Queue};
use crate::engine::types::peer_id::{ANY, PeerId};

/// Interval in nanoseconds between two polls from which on the program was away. Operations posted
/// in between count as posted at the second poll.
const AWAY_NS: u64 = 1_000_000;
/// Operations of one kind and state in a snapshot.
const LISTED_EACH: usize = 6;
/// Operations awaiting a reply that are examined for the oldest. More are only counted.
const EXAMINED: usize = 256;

/// Shows an enabled endpoint to other processes.
pub(crate) fn publish(ep: &mut Endpoint) {
    exit_stats::register();
    let ep_type = match (ep.cfg.connected, ep.cfg.datagram) {
        (true, _) => fi::FI_EP_MSG,
        (false, true) => fi::FI_EP_DGRAM,
        (false, false) => fi::FI_EP_RDM,
    };
    ep.stats.record().publish(ep.links.sock.id(), ep_type, ep.links.sock.network_provider());
    take(ep, now_ns(), true);
}

/// Notes a reading of the clock by a poll, and takes the snapshots that are due. `before`: the
/// reading before.
#[inline]
pub(crate) fn note_tick(ep: &mut Endpoint, before: u64, now: u64) {
    ep.stats.record().note_progress(now);
    ep.ops.clock_ns = now;
    if now.saturating_sub(before) > AWAY_NS {
        count_from(ep, before, now);
    }
    if now >= ep.stats.ops_due_ns {
        let with_peers = now >= ep.stats.peers_due_ns;
        take(ep, now, with_peers);
    }
}

/// Takes a snapshot before a thread may sleep for long.
pub(crate) fn note_sleep(ep: &mut Endpoint) {
    let now = now_ns();
    ep.stats.record().note_progress(now);
    ep.stats.record().set_asleep(true);
    let with_peers = now >= ep.stats.peers_due_ns;
    take(ep, now, with_peers);
}

/// Sets the times of operations posted since the reading `before` of the clock to just before
/// `now`. The next call finds `now` only in operations posted since, so that it moves no time again
/// where all polls are rare.
#[cold]
#[inline(never)]
fn count_from(ep: &mut Endpoint, before: u64, now: u64) {
    let move_on = |since: &mut u64| {
        if *since == before {
            *since = now - 1;
        }
    };
    for queue in [&mut ep.recv.msg, &mut ep.recv.tagged] {
        queue.posted.iter_mut().for_each(|posted| move_on(&mut posted.since_ns));
    }
    ep.ops.iter_mut().for_each(|op| move_on(&mut op.since_ns));
}

/// Takes the snapshots.
#[inline(never)]
fn take(ep: &mut Endpoint, now: u64, with_peers: bool) {
    note_foreign(ep);
    if ep.stats.record().is_published() {
        let listed = operations(ep, now);
        ep.stats.record().write_ops(|copy| put_ops(ep, copy, &listed, now));
        if with_peers {
            put_peers(ep, now);
        }
    }
    ep.stats.schedule(now, now_ns(), with_peers);
}

/// Takes over the counts of the network, if there is one.
pub(crate) fn note_foreign(ep: &mut Endpoint) {
    if let Some(counts) = ep.links.sock.carried() {
        ep.stats.foreign = counts.into();
    }
}

/// Operation for a snapshot.
struct Listed {
    kind: Kind,
    state: OpState,
    peer: PeerId,
    tag: u64,
    ignore: u64,
    len: usize,
    done: usize,
    since_ns: u64,
}

fn kind_of(kind: OpKind) -> Kind {
    match kind {
        OpKind::Message => Kind::Send,
        OpKind::Tagged => Kind::SendTagged,
        OpKind::Write => Kind::Write,
        OpKind::Read => Kind::Read,
        OpKind::AtomicWrite => Kind::Atomic,
        OpKind::AtomicFetch => Kind::FetchAtomic,
        OpKind::Collective => Kind::Collective,
    }
}

/// Returns the oldest operations of each kind.
fn operations(ep: &mut Endpoint, now: u64) -> Vec<Listed> {
    let mut listed = Vec::new();
    receives(&ep.recv.tagged, Kind::RecvTagged, &mut listed);
    receives(&ep.recv.msg, Kind::Recv, &mut listed);
    for incoming in ep.rndv.order.iter().filter_map(|at| ep.rndv.incoming.get(*at)) {
        if listed.len() >= OPS_LISTED - LISTED_EACH {
            break;
        }
        let kind = if incoming.target.tagged { Kind::RecvTagged } else { Kind::Recv };
        listed.push(Listed {
            kind,
            state: OpState::Transfer,
            peer: incoming.peer(),
            tag: incoming.arrival.tag,
            ignore: 0,
            len: incoming.arrival.len,
            done: incoming.done(),
            since_ns: incoming.since_ns,
        });
    }
    let mut outstanding: Vec<Listed> = ep
        .ops
        .iter()
        .take(EXAMINED)
        .map(|op| Listed {
            kind: kind_of(op.op_kind),
            state: OpState::Announced,
            peer: op.peer,
            tag: op.tag,
            ignore: 0,
            len: op.len,
            done: 0,
            since_ns: op.since_ns,
        })
        .collect();
    outstanding.sort_unstable_by_key(|op| op.since_ns);
    listed.extend(outstanding.into_iter().take(LISTED_EACH));
    queued(ep, now, &mut listed);
    listed.truncate(OPS_LISTED);
    listed
}

/// Adds the oldest receives and unexpected messages of a queue.
fn receives(queue: &Queue, kind: Kind, listed: &mut Vec<Listed>) {
    let state = OpState::Unmatched;
    let posted = queue.posted.oldest().filter(|posted| posted.multi.is_none());
    listed.extend(posted.take(LISTED_EACH).map(|posted| Listed {
        kind,
        state,
        peer: posted.src,
        tag: posted.tag,
        ignore: posted.ignore,
        len: posted.len,
        done: 0,
        since_ns: posted.since_ns,
    }));
    let unexpected = queue.unexpected.oldest().take(LISTED_EACH);
    listed.extend(unexpected.map(|message| Listed {
        kind: Kind::Unexpected,
        state,
        peer: message.peer,
        tag: message.tag,
        ignore: 0,
        len: message.len,
        done: 0,
        since_ns: message.since_ns,
    }));
}

/// Adds the oldest operation that waits for ring space or a connection, of a few peers.
fn queued(ep: &mut Endpoint, now: u64, listed: &mut Vec<Listed>) {
    let sent = ep.stats.sent.ops;
    let first = |peer: PeerId| {
        let info = ep.peers.at(peer).queue.pending.front()?.label()?;
        let key = QueuedOp { peer, context: info.context, tag: info.tag, len: info.len, sent };
        Some((key, info.op_kind))
    };
    let busy = ep.peers.busy.iter();
    let found: Vec<(QueuedOp, OpKind)> =
        busy.filter_map(|peer| first(*peer)).take(LISTED_EACH).collect();
    let keys: Vec<QueuedOp> = found.iter().map(|(key, _)| *key).collect();
    let times = ep.stats.first_seen(&keys, now);
    listed.extend(found.into_iter().zip(times).map(|((key, kind), since_ns)| Listed {
        kind: kind_of(kind),
        state: OpState::Pending,
        peer: key.peer,
        tag: key.tag,
        ignore: 0,
        len: key.len,
        done: 0,
        since_ns,
    }));
}

fn count(n: usize) -> u64 {
    n as u64
}

fn put_ops(ep: &Endpoint, copy: &SnapshotWriter, listed: &[Listed], now: u64) {
    let queues = [&ep.recv.msg, &ep.recv.tagged];
    let multi_recvs = ep.recv.multis.len();
    let posted: usize = queues.iter().map(|queue| queue.posted.len()).sum();
    let here = |payload: &Payload| match payload {
        Payload::Here(bytes) => bytes.len(),
        Payload::There(_) => 0,
    };
    // A longer backlog is only counted, because the snapshot must not take long.
    let kept = queues.iter().flat_map(|queue| queue.unexpected.oldest().take(EXAMINED));
    let pending: usize =
        ep.peers.busy.iter().map(|peer| ep.peers.at(*peer).queue.pending.len()).sum();
    copy.put(ops::TIME_NS, now);
    copy.put(ops::LISTED, count(listed.len()));
    copy.put(ops::RECEIVES, count(posted.saturating_sub(multi_recvs)));
    copy.put(ops::MULTI_RECVS, count(multi_recvs));
    copy.put(ops::UNEXPECTED, count(ep.recv.unexpected()));
    copy.put(ops::UNEXPECTED_BYTES, count(kept.map(|message| here(&message.payload)).sum()));
    copy.put(ops::OUTSTANDING, count(ep.ops.len()));
    copy.put(ops::PENDING, count(pending));
    copy.put(ops::INCOMING, count(ep.rndv.order.len()));
    for (at, word) in ep.stats.counters().as_bytes().chunks_exact(8).enumerate() {
        let word = word.first_chunk().copied().unwrap_or_default();
        copy.put(ops::COUNTERS + at, u64::from_ne_bytes(word));
    }
    for (at, shown) in listed.iter().enumerate() {
        let first = ops::FIRST + at * OP_WORDS;
        copy.put(first + op::KIND, shown.kind as u64 | (shown.state as u64) << 8);
        let port = ep.peers.get(shown.peer).map(|peer| port_word(peer.id));
        copy.put(first + op::PEER, port.filter(|_| shown.peer != ANY).unwrap_or(UNKNOWN));
        copy.put(first + op::TAG, shown.tag);
        copy.put(first + op::IGNORE, shown.ignore);
        copy.put(first + op::LEN, count(shown.len));
        copy.put(first + op::DONE, count(shown.done));
        copy.put(first + op::SINCE_NS, shown.since_ns);
    }
}

fn state_of(peer: &Peer) -> Shown {
    if peer.state.has_failed() {
        Shown::Failed
    } else if peer.state.has_left() {
        Shown::Left
    } else if peer.tx.is_some() {
        Shown::Connected
    } else if peer.is_connecting() {
        Shown::Connecting
    } else {
        Shown::Unconnected
    }
}

/// Connections of a peer, as a snapshot shows them.
#[derive(Clone, Copy, Default)]
struct Traffic {
    pid: i32,
    sent: u64,
    received: u64,
    sent_bytes: u64,
    received_bytes: u64,
    path: Option<CopyPath>,
}

/// Returns the path of large messages and RMA over a connection.
fn path_of(conn: &mut Connection) -> CopyPath {
    if conn.peer().network_name().is_some() {
        return CopyPath::Network;
    }
    if conn.windows().is_some() {
        return CopyPath::Window;
    }
    match conn.memory().access() {
        Access::Mapped => CopyPath::Mapped,
        Access::ProcessVm => CopyPath::ProcessVm,
        Access::None => CopyPath::Ring,
    }
}

/// Takes the snapshot of the peers: those with a connection first.
fn put_peers(ep: &mut Endpoint, now: u64) {
    let known: Vec<PeerId> = ep.peers.in_use().collect();
    let mut traffic: Vec<(PeerId, Traffic)> = Vec::new();
    let links: Vec<_> = ep.links.iter().copied().take(2 * PEERS_LISTED).collect();
    for link in links {
        let Some(conn) = ep.links.sock.conn(link.conn) else { continue };
        let found = Traffic {
            pid: conn.peer_pid(),
            sent: conn.tx().produced(),
            received: conn.rx().consumed(),
            sent_bytes: conn.bytes_sent(),
            received_bytes: conn.bytes_received(),
            path: conn.is_up().then(|| path_of(conn)),
        };
        match traffic.iter_mut().find(|(peer, _)| *peer == link.peer) {
            // After a simultaneous open there are two connections.
            Some((_, sum)) => {
                sum.sent += found.sent;
                sum.received += found.received;
                sum.sent_bytes += found.sent_bytes;
                sum.received_bytes += found.received_bytes;
            }
            None => traffic.push((link.peer, found)),
        }
    }
    let connected: Vec<PeerId> = traffic.iter().map(|(peer, _)| *peer).collect();
    let others = known.iter().filter(|peer| !connected.contains(peer)).take(PEERS_LISTED);
    traffic.extend(others.map(|peer| (*peer, Traffic::default())));
    traffic.truncate(PEERS_LISTED);
    let pids: Vec<i32> =
        traffic.iter().filter(|(_, seen)| seen.path.is_some()).map(|(_, seen)| seen.pid).collect();
    keep_peers(&pids);
    let (table, ops) = (&ep.peers, &ep.ops);
    ep.stats.record().write_peers(|copy| {
        copy.put(peers::TIME_NS, now);
        copy.put(peers::LISTED, count(traffic.len()));
        copy.put(peers::KNOWN, count(known.len()));
        for (at, (id, seen)) in traffic.iter().enumerate() {
            let (first, entry) = (peers::FIRST + at * PEER_WORDS, table.at(*id));
            let path = seen.path.unwrap_or(CopyPath::Unknown);
            copy.put(first + peer::PORT, port_word(entry.id));
            copy.put(first + peer::STATE, state_of(entry) as u64 | (path as u64) << 8);
            copy.put(first + peer::PID, u64::try_from(seen.pid).unwrap_or(0));
            copy.put(first + peer::SENT, seen.sent);
            copy.put(first + peer::RECEIVED, seen.received);
            copy.put(first + peer::PENDING, count(entry.queue.pending.len()));
            copy.put(first + peer::OUTSTANDING, u64::from(ops.messages_to(*id)));
            let errno = entry.state.refusal().unwrap_or(0);
            copy.put(first + peer::ERRNO, u64::from(errno.unsigned_abs()));
            let copied = entry.transfer.copied;
            copy.put(first + peer::SENT_BYTES, seen.sent_bytes + copied.sent);
            copy.put(first + peer::RECEIVED_BYTES, seen.received_bytes + copied.received);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::peer::CopiedBytes;
    use crate::engine::tests::{Bed, buffer, completed};

    #[test]
    fn both_sides_count_the_bytes_beside_the_rings() {
        let len = 1 << 20;
        let mut pair = Bed::pair();
        let (from, to) = (buffer(vec![7; len]), buffer(vec![0; len]));
        let peers = [pair[0].peer(), pair[1].peer()];
        let copied = |pair: &[Bed; 2]| {
            [0, 1].map(|at| {
                let CopiedBytes { sent, received } =
                    pair[at].ep.peers.at(peers[at]).transfer.copied;
                (sent, received)
            })
        };
        let ringed = |bed: &mut Bed| {
            let peer = bed.peer();
            let conn = bed.ep.peers.at(peer).tx.unwrap();
            bed.ep.links.conn(conn).unwrap().bytes_sent()
        };
        for round in 1..=8 {
            pair[1].recv(&to);
            pair[0].send(&from).unwrap();
            assert_eq!(completed(&mut pair, 1).len, len);
            completed(&mut pair, 0);
            let [(sent, none), (_, received)] = copied(&pair);
            let in_ring = ringed(&mut pair[0]);
            // A payload of which the receiver requests fragments goes through the ring.
            let all = round * len as u64;
            let beside = sent == received && sent % len as u64 == 0;
            assert!(beside && none == 0, "{sent} {received} {none}");
            assert!((all..all + 400_000).contains(&(sent + in_ring)), "{sent} {in_ring} of {all}");
        }
        assert!(pair[0].ep.links.sock.carried().is_none());
        let counts = &pair[0].ep.stats.foreign;
        assert_eq!((counts.sent.ops, counts.received.ops, counts.rma.ops), (0, 0, 0));
    }

    #[test]
    fn the_age_of_a_receive_grows_between_rare_polls() {
        let mut pair = Bed::pair();
        pair[1].recv(&buffer(vec![0; 8]));
        let ep = &mut pair[1].ep;
        let first = ep.links.clock_ns();
        let late: Vec<u64> = (1..4).map(|n| first + 2 * n * AWAY_NS).collect();
        let since = |ep: &mut Endpoint| {
            let posted = ep.recv.queue(true).posted.iter_mut().next();
            posted.map(|posted| posted.since_ns)
        };
        note_tick(ep, first, late[0]);
        let begun = since(ep);
        assert!(begun > Some(late[0] - AWAY_NS), "the program was away before the poll");
        note_tick(ep, late[0], late[1]);
        note_tick(ep, late[1], late[2]);
        assert_eq!(since(ep), begun);
    }
}
