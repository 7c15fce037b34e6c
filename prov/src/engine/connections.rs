// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections of an endpoint: their records, events and ends.
//!
//! The end of a connection drains its ring, and an invalid record ends its connection. Hence both
//! are in one module.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, LinkEvent, PortId, Reason, Refusal, ShownPid};
use scif_ring::layout::RING_SLOTS;
use scif_ring::spsc::PollOutcome;

use crate::base::errno::Errno;
use crate::base::log::{Subsys, warn_about_peer};
use crate::engine::channel::rx_throttle::BATCH;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::fast_path::{self, ToQueue};
use crate::engine::parts::Env;
use crate::engine::peers::{peer_conn, sep_source};
use crate::engine::protocols::posted_write_target::Batch;
use crate::engine::protocols::{
    cm, coll_run, eviction, network_rma_end, parting, posted_records, posted_write_target, srx,
};
use crate::engine::tables::peer::EXHAUSTED;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire;
use crate::engine::{dispatch, peer_failure, source_watch};

/// Maximum number of connections with one peer. Two are open after a simultaneous open, others
/// until the ends of earlier incarnations are seen. Each one makes an accept of the peer slower.
pub(crate) const CONNS_OF_PEER: usize = 16;

/// Handles the next record of a ring on the slow path. Returns false if there is none, or the
/// connection is gone.
#[inline(never)]
pub(crate) fn take_any(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) -> bool {
    let Some(c) = ep.links.conn(conn) else {
        return false;
    };
    match c.rx().peek() {
        Ok(None) => return false,
        Ok(Some(record)) => {
            // Inner panic boundary, inside that of the call: a peer that causes a panic ends
            // only its own connection.
            let handled = catch_unwind(AssertUnwindSafe(|| {
                dispatch::on_record(ep, env, conn, peer, &record)
            }));
            if matches!(handled, Ok(Ok(()))) {
                if let Some(c) = ep.links.conn(conn) {
                    c.rx().advance();
                    // The ring publishes by the bytes it contains, and the body was outside.
                    if record.kind == wire::OUTSIDE {
                        c.rx().flush();
                    }
                }
                return true;
            }
            // Done before anything else is received, since the end of a connection drains
            // others.
            srx::free_unmatched(ep);
            match handled {
                Ok(Err(RecordError::NoMemory)) => {
                    end_for_memory(ep, env, conn, peer);
                    return false;
                }
                Ok(_) => {}
                Err(_) => {
                    end_for_panic(ep, env, conn, peer);
                    return false;
                }
            }
        }
        Err(_) => {}
    }
    corrupt(ep, env, conn, peer);
    false
}

#[cold]
fn corrupt(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
    let port = ep.peers.at(peer).id;
    warn_about_peer(
        Subsys::EpData,
        format_args!(
            "peer {port} wrote an invalid record into its ring; connection reset. Check that \
             both sides have the same version"
        ),
    );
    on_conn_lost(ep, env, conn, Reason::Corrupt);
}

/// Ends a connection after one of its records caused a panic.
#[cold]
fn end_for_panic(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
    let id = ep.peers.at(peer).id;
    warn_about_peer(
        Subsys::EpData,
        format_args!("internal error while a record of peer {id} was handled; connection reset"),
    );
    on_conn_lost(ep, env, conn, Reason::Corrupt);
}

/// Ends the connections of peers that do not leave key slot `slot`.
#[cold]
pub(crate) fn evict_accessors(ep: &mut Endpoint, env: &mut Env<'_>, slot: u32) {
    let inside: Vec<ConnId> = ep.links.conns_accessing(slot).collect();
    for conn in inside {
        if let Some(c) = ep.links.conn(conn) {
            let (port, process) = (c.peer(), ShownPid(c.peer_pid()));
            warn_about_peer(
                Subsys::EpData,
                format_args!(
                    "{process} at {port} stays inside a memory region that is being closed; \
                    its connection is reset. Stopped in the middle of a copy, it will \
                     finish that copy when it is continued"
                ),
            );
        }
        on_conn_lost(ep, env, conn, Reason::Reset);
    }
}

/// Ends the accesses of peers on other hosts to region `key`, which take too long.
#[cold]
pub(crate) fn evict_readers(ep: &mut Endpoint, env: &mut Env<'_>, key: u64) {
    let reading: Vec<ConnId> = ep.rma_target.network.exposures_revoked(key).collect();
    for conn in reading {
        if let Some(port) = ep.links.conn(conn).map(|c| c.peer()) {
            warn_about_peer(
                Subsys::EpData,
                format_args!(
                    "{port} has not ended its read of a memory region that is being closed; its \
                     connection is reset"
                ),
            );
        }
        on_conn_lost(ep, env, conn, Reason::Reset);
    }
    network_rma_end::end_reads_into(ep, key);
}

/// Handles up to `most` records of one ring and returns their number.
#[inline]
pub(crate) fn drain(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    most: usize,
) -> usize {
    if ep.links.rx_closed || ep.peers.at(peer).over_reply_limit() {
        return 0;
    }
    let mut taken = 0;
    ep.links.collect_answers();
    while taken < most {
        let count = match fast_path::recv_inline(ep, env, conn, peer, &mut ToQueue) {
            PollOutcome::Consumed => 1,
            PollOutcome::Unhandled => {
                match posted_write_target::execute(ep, env, (conn, peer), most - taken) {
                    Batch::Handled(count) => count,
                    Batch::Other => usize::from(take_any(ep, env, conn, peer)),
                    Batch::Held => 0,
                    Batch::Panicked => {
                        end_for_panic(ep, env, conn, peer);
                        0
                    }
                }
            }
            PollOutcome::Empty => 0,
        };
        if count == 0 {
            break;
        }
        taken += count;
    }
    ep.links.end_answers();
    taken
}

/// Handles connection events: accepts, completed handshakes and closes.
pub(crate) fn poll_connections(ep: &mut Endpoint, env: &mut Env<'_>) {
    let mut links = std::mem::take(&mut ep.links.events);
    let is_active = ep.links.sock.poll_links(&mut links);
    on_links(ep, env, &mut links);
    ep.links.events = links;
    let is_connecting = ep.peers.busy.iter().any(|peer| ep.peers.at(*peer).is_connecting());
    ep.links.note_events(is_active || is_connecting);
}

/// Looks at the network, and handles the events of its connections. Returns whether there were any.
pub(crate) fn poll_network(ep: &mut Endpoint, env: &mut Env<'_>) -> bool {
    let mut links = std::mem::take(&mut ep.links.events);
    ep.links.sock.poll_network(&mut links);
    if let Some(counts) = ep.links.sock.carried() {
        ep.stats.foreign = counts.into();
    }
    let found = !links.is_empty();
    if found {
        on_links(ep, env, &mut links);
        ep.links.expect_events();
    }
    ep.links.events = links;
    found
}

/// Handles connection events without the lock that guards the receives of a peer provider.
/// Messages, and ends of connections, wait until progress runs on behalf of that provider.
pub(crate) fn look_for_events(ep: &mut Endpoint, env: &mut Env<'_>) {
    let mut links = std::mem::take(&mut ep.links.events);
    ep.links.sock.poll_links(&mut links);
    let mut ended = Vec::new();
    links.retain(|link| {
        let end = matches!(link, LinkEvent::Closed(..));
        if end {
            ended.push(*link);
        }
        !end
    });
    on_links(ep, env, &mut links);
    for link in ended {
        let LinkEvent::Closed(conn, reason) = link else {
            continue;
        };
        if ep.links.is_parting(conn) || cm::on_setup_lost(ep, env, conn, reason) {
            continue;
        }
        if ep.links.peer_of(conn).is_some() {
            cm::on_conn_closing(ep);
            links.push(link);
        } else {
            // This connection carried a request that has been answered.
            ep.links.sock.close_conn(conn, CloseHow::Reset);
        }
    }
    ep.links.events = links;
}

fn on_links(ep: &mut Endpoint, env: &mut Env<'_>, links: &mut Vec<LinkEvent>) {
    // Closes come last, so that a reply over another connection is known before an operation
    // fails.
    links.sort_by_key(|link| matches!(link, LinkEvent::Closed(..)));
    let was_down = ep.cm.as_ref().is_some_and(|cm| cm.is_down());
    for link in links.drain(..) {
        match link {
            LinkEvent::Accepted(conn, port) => accepted(ep, env, conn, port),
            LinkEvent::Connected(conn) => connected(ep, conn),
            LinkEvent::Closed(conn, reason) => on_conn_lost(ep, env, conn, reason),
        }
    }
    // The receives of a connection that ended just now are flushed by the next poll, unless a
    // thread sleeps. Until then the other endpoints of its queues receive messages that were
    // sent earlier.
    let Some(cm) = &ep.cm else { return };
    if was_down || ep.links.armed || !cm.is_down() {
        cm::progress(ep, env);
    }
}

/// Handles a connection that a peer has opened.
fn accepted(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, port: PortId) {
    if ep.cm.is_some() {
        return cm::on_accepted(ep, conn);
    }
    let peer = peer_conn::peer_at(ep, port);
    if ep.links.conns_of(peer).count() >= CONNS_OF_PEER {
        return refuse_surplus(ep, conn, port);
    }
    ep.links.add(conn, peer);
    drop_stale_conns(ep, env, conn, peer, port);
    if ep.links.conns_of(peer).all(|c| c != conn) {
        // The new connection ended together with an earlier one, or its process does not own
        // the port.
        return;
    }
    if ep.peers.own == Some(peer) {
        ep.peers.own_rx = Some(conn);
    }
    peer_conn::note_access(ep, conn, peer);
    let p = ep.peers.at_mut(peer);
    p.state.on_accepted();
    if p.tx.is_none() {
        p.tx = Some(conn);
    }
    sep_source::seen(ep, env, peer);
}

/// Ends connections of earlier incarnations of the peer at `port`. The new connection `conn`
/// may be seen before the end of an old one. Requests over `conn` must not be answered over an
/// old connection.
fn drop_stale_conns(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    port: PortId,
) {
    let former: Vec<ConnId> = ep.links.conns_of(peer).filter(|old| *old != conn).collect();
    let Some(process) = ep.links.conn(conn).map(|c| c.peer_process()) else {
        return;
    };
    for old in former {
        // A process that opened both connections closed the old one gracefully first.
        let mut links = Vec::new();
        ep.links.sock.poll_connection(old, &mut links);
        on_links(ep, env, &mut links);
        let Some(c) = ep.links.conn(old).filter(|c| c.peer_process() != process) else {
            continue;
        };
        let (up, alive) = (c.is_up(), c.alive_now());
        // A dying process may seem alive after it has lost its port, so ownership decides.
        let listener = ep.links.sock.listener(port);
        if listener == Some(process.0) || !alive {
            if up {
                on_conn_lost(ep, env, old, Reason::Died);
            }
        } else if listener.is_some() {
            refuse_impostor(ep, conn, port, process.0);
            return;
        }
    }
}

/// Resets a new connection from a process that claims the port of another live peer. Nothing of
/// it is read, and the peer's own connections stay.
#[cold]
fn refuse_impostor(ep: &mut Endpoint, conn: ConnId, port: PortId, pid: i32) {
    ep.links.active.retain(|live| live.conn != conn);
    ep.links.sock.close_conn(conn, CloseHow::Reset);
    warn_about_peer(
        Subsys::EpCtrl,
        format_args!("{} claims port {port} of another process; connection reset", ShownPid(pid)),
    );
}

/// Resets a new connection from a peer that has too many.
#[cold]
fn refuse_surplus(ep: &mut Endpoint, conn: ConnId, port: PortId) {
    let process = ShownPid(ep.links.conn(conn).map_or(0, |c| c.peer_pid()));
    ep.links.sock.close_conn(conn, CloseHow::Reset);
    warn_about_peer(
        Subsys::EpCtrl,
        format_args!(
            "{process} at {port} opens more than {CONNS_OF_PEER} connections; the new one is \
             reset"
        ),
    );
}

/// Handles the end of a handshake for a connection of this side.
fn connected(ep: &mut Endpoint, conn: ConnId) {
    let Some(peer) = ep.links.peer_of(conn) else {
        return;
    };
    let p = ep.peers.at_mut(peer);
    p.state.on_up();
    parting::note_answer(p.id);
    peer_conn::note_access(ep, conn, peer);
    cm::on_connected(ep, conn);
}

/// Ends a connection: receives the records left in its ring, then fails the operations it
/// carried.
pub(crate) fn on_conn_lost(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, reason: Reason) {
    if ep.links.is_parting(conn) || cm::on_setup_lost(ep, env, conn, reason) {
        return;
    }
    let Some(peer) = ep.links.remove(conn) else {
        ep.links.sock.close_conn(conn, CloseHow::Reset);
        return;
    };
    if !matches!(reason, Reason::Corrupt | Reason::Exhausted) {
        drain_last(ep, env, conn, peer);
    }
    let process = ep.links.conn(conn).map(|c| c.peer_process());
    // Made for receives only (`source_watch`), and nothing was sent over it.
    let unused = ep.recv.unmet.note_ended(conn)
        && ep.links.conn(conn).is_some_and(|c| c.tx().all_consumed())
        && ep.peers.at(peer).queue.is_idle()
        && ep.ops.of_peer(peer).is_empty();
    let was_up = ep.links.conn(conn).is_some_and(|c| c.was_up());
    source_watch::note_source_lost(ep, peer, was_up);
    if ep.peers.at(peer).tx == Some(conn) {
        posted_records::complete_executed(ep, env, peer);
    }
    // Precedes all work on other connections of the peer, whose requests must not be answered
    // over this one.
    let sent_on_it = leave_tx(ep, conn, peer);
    let unheard = match reason {
        // No connection of the peer is read any more.
        Reason::Exhausted => true,
        // A listener that closed reports it on its own connections; otherwise they belong to
        // its next incarnation.
        Reason::Refused(Refusal::Closed) => false,
        // Replies to requests over the peer's own connection may have been lost with this one.
        Reason::Reset | Reason::Corrupt => sent_on_it,
        _ => sent_on_it && !was_up,
    };
    if matches!(reason, Reason::Orderly | Reason::Died) {
        for duplicate in ep.links.conns_of_process(peer, process) {
            drain_last(ep, env, duplicate, peer);
        }
    }
    ep.rma_target.on_conn_lost(conn);
    // A listener that hangs up is closing gracefully too.
    let died = !matches!(reason, Reason::Orderly | Reason::Refused(Refusal::Closed));
    let lost = match reason {
        Reason::Exhausted => fi::FI_ENOMEM,
        _ => fi::FI_ECONNRESET,
    };
    let how = if died { CloseHow::Reset } else { CloseHow::Orderly };
    parting::on_conn_lost(ep, env, conn, peer, (how, lost), sent_on_it);
    let p = ep.peers.at(peer);
    let (id, was_met) = (p.id, p.state.was_up());
    let connect_errno = if was_met { None } else { refusal_errno(reason) };
    if let Some(err) = connect_errno {
        // The network logs it for each peer.
        if reason != Reason::Refused(Refusal::Key) {
            crate::base::log::connect_failed(id, &reason, err);
        }
    }
    if sent_on_it {
        let refused = matches!(reason, Reason::Refused(_)) && !was_met;
        let err = connect_errno.unwrap_or(if refused { fi::FI_ECONNREFUSED } else { lost });
        fail_sent(ep, env, peer, err);
    }
    let duplicates = ep.links.conns_of_process(peer, process);
    let gone = duplicates.is_empty();
    if ep.cm.is_some() {
        cm::on_conn_lost(ep, env, died);
    } else if let Some(err) = connect_errno {
        // The peer is alive. If it has read none of our messages, no reply will come; if there
        // are none, its own messages may still come over a connection that it opens.
        if gone && !unused {
            peer_failure::fail_receives_from(ep, env, peer, id, false, err);
        }
    } else if gone && died {
        peer_failure::fail_peer(ep, env, peer, id, lost, reason);
    } else {
        ep.peers.at_mut(peer).state.on_closed(gone);
    }
    if gone {
        coll_run::on_conn_lost(ep, env, peer);
        eviction::on_conn_lost(ep, env, peer, died);
    }
    if unheard {
        reset_duplicate_conns(ep, env, &duplicates, reason);
    }
}

/// Ends all connections that carry messages.
pub(crate) fn end_all(ep: &mut Endpoint, env: &mut Env<'_>, reason: Reason) {
    let conns: Vec<ConnId> = ep.links.iter().map(|l| l.conn).collect();
    for conn in conns {
        on_conn_lost(ep, env, conn, reason);
    }
}

/// Returns the error of operations to a peer that exists, but denies access or refuses for now.
fn refusal_errno(reason: Reason) -> Option<Errno> {
    match reason {
        Reason::Denied => Some(fi::FI_EACCES),
        Reason::Refused(Refusal::Version | Refusal::Resources | Refusal::Key) => {
            Some(fi::FI_ECONNREFUSED)
        }
        _ => None,
    }
}

/// Fails the operations that a lost connection carried, and those that wait for it.
fn fail_sent(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, err: Errno) {
    for op in ep.ops.of_peer(peer) {
        if !parting::is_set_apart(ep, op) {
            completion::finish_op(ep, env, peer, op, err);
        }
    }
    posted_records::on_conn_lost(ep, env, peer, err);
    dispatch::fail_pending(ep, env, peer, err);
}

/// Ends `twins`, the other connections with a peer, after data over one connection was lost.
/// After a simultaneous open the peer may have missed records sent over our connection:
/// messages, and replies to requests over the other one. It would wait for such replies
/// forever, so the other connection ends too and both sides notice. A peer over its memory
/// limit is read no more, and its other connections end for the same reason.
#[cold]
fn reset_duplicate_conns(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    duplicates: &[ConnId],
    reason: Reason,
) {
    for &duplicate in duplicates {
        if matches!(reason, Reason::Exhausted) {
            on_conn_lost(ep, env, duplicate, reason);
            continue;
        }
        // A peer that closes gracefully announces it on this connection first.
        let mut links = Vec::new();
        ep.links.sock.poll_connection(duplicate, &mut links);
        on_links(ep, env, &mut links);
        if ep.links.conn(duplicate).is_some() {
            on_conn_lost(ep, env, duplicate, Reason::Reset);
        }
    }
}

/// Handles the records left in the ring of an ended connection. The bound of one ring capacity
/// protects against a peer that keeps writing.
fn drain_last(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
    if let Some(c) = ep.links.conn(conn) {
        c.rx().cancel_poll_delay();
    }
    for _ in 0..RING_SLOTS.div_ceil(BATCH) {
        if drain(ep, env, conn, peer, BATCH) < BATCH {
            return;
        }
    }
}

/// Stops sending over `conn`, which is in no ring list any more. Further sends use another
/// connection with the peer, if there is one. Returns whether `conn` was used for sending.
fn leave_tx(ep: &mut Endpoint, conn: ConnId, peer: PeerId) -> bool {
    let other = ep.links.conns_of(peer).next();
    let sent_on_it = ep.peers.at(peer).tx == Some(conn);
    if sent_on_it {
        ep.peers.reset_connection(peer);
        ep.peers.at_mut(peer).tx = other;
    }
    sent_on_it
}

/// Resets the connections of peers marked by [`Endpoint::exhaust`].
#[inline]
pub(crate) fn end_exhausted(ep: &mut Endpoint, env: &mut Env<'_>) {
    if std::mem::take(&mut ep.recv.limits.exhausted) {
        end_all_exhausted(ep, env);
    }
}

#[cold]
fn end_all_exhausted(ep: &mut Endpoint, env: &mut Env<'_>) {
    loop {
        let over = |peer: PeerId| ep.peers.at(peer).queue.reply_bytes == EXHAUSTED;
        let found = ep.links.iter().find(|l| over(l.peer));
        let Some((conn, peer)) = found.map(|l| (l.conn, l.peer)) else {
            return;
        };
        end_for_memory(ep, env, conn, peer);
    }
}

/// Resets a connection whose messages exceed the memory limits.
#[cold]
pub(crate) fn end_for_memory(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
    let (id, held) = (ep.peers.at(peer).id, eviction::unexpected_of(ep, peer));
    eviction::drop_unexpected_of(ep, env, peer);
    let process = ShownPid(ep.links.conn(conn).map_or(0, |c| c.peer_pid()));
    warn_about_peer(
        Subsys::EpData,
        format_args!(
            "{process} at {id} sends more than can be kept; {held} bytes of its messages had \
             no receive, {} bytes those of all peers, at most {} are kept \
             (FI_SCIF_UNEXPECTED_MAX): connection reset with error {}",
            ep.recv.limits.process.get(),
            ep.recv.limits.max,
            fi::FI_ENOMEM
        ),
    );
    on_conn_lost(ep, env, conn, Reason::Exhausted);
}
