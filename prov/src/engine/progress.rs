// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Polling loop of an endpoint: first rings, then unfinished work, and at intervals connection
//! events and liveness.
//!
//! Not here: active and idle rings (`link_set`), and backpressure (`rx_throttle`).

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, LinkEvent, PortId, Reason, Refusal};
use scif_ring::layout::RING_SLOTS;
use scif_ring::spsc::PollOutcome;

use super::parting;
use super::peer_id::PeerId;
use super::quick::Queued;
use super::rx_throttle::BATCH;
use super::unmet::ALIVE_NS;
use super::{Env, EpState};
use crate::base::log::{Subsys, warn_about_peer};

/// Number of active rings up to which an empty poll is repeated once, after a pause.
const TWICE_MOST: usize = 4;
/// Polls between two readings of the clock, and thus the delay of all timed work.
pub(super) const CLOCK_EVERY: u32 = 8;
/// Interval in nanoseconds between polls of the sockets. A longer one delays accepts and connection
/// ends.
const LINKS_NS: u64 = 20_000;
/// Connections per liveness check. A smaller number delays `FI_ECONNRESET` with many peers.
const ALIVE_AT_ONCE: usize = 8;
/// Time in nanoseconds that a closing endpoint waits for ring space. Replies that are still queued
/// afterwards are lost.
const CLOSE_NS: u64 = 100_000_000;
/// Time in nanoseconds, at most `FI_SCIF_CONNECT_TIMEOUT`, that a closing endpoint waits for
/// connections with pending operations. Operations that are still pending afterwards are lost.
const CLOSE_CONNECT_NS: u64 = 3_000_000_000;

impl EpState {
    /// Polls the rings and advances all unfinished work. Never blocks.
    #[inline]
    pub(crate) fn progress(&mut self, env: &mut Env<'_>) {
        // Links, then doorbells, then rings: a wake-up or doorbell announces only records that are
        // already in the ring. A thread that sleeps after this poll has seen everything announced
        // before.
        self.links.polls = self.links.polls.wrapping_add(1);
        #[cfg(test)]
        let _ = super::tests::poison::strike(self.cfg.inject_size);
        self.throttle.more = false;
        if self.links.polls.is_multiple_of(CLOCK_EVERY) {
            self.housekeeping(env);
        }
        if self.links.sock.bell().any() {
            self.links.activate_rung();
        }
        if self.links.armed {
            self.links.cancel_poll_delay();
        }
        let (rings, armed) = (self.links.active.len(), self.links.armed);
        let most = self.throttle.budget(rings, armed, || self.recv.unexpected());
        if most > 0 && !self.poll_live(env, most) && self.has_only_to_wait() {
            // PAUSE: a tight poll takes the cache line away from the writing core. It also slows
            // the other hardware thread of this core.
            std::hint::spin_loop();
            if self.links.any_ready() {
                self.poll_live(env, most);
            }
        }
        if self.links.armed {
            self.links.flush_active();
        }
        if !self.rndv.order.is_empty() {
            self.run_incoming(env);
        }
        if !self.rndv.coop_sends.is_empty() {
            self.help();
        }
        if !self.rma_target.done.is_empty() {
            self.tell_done();
        }
        if !self.peers.busy.is_empty() {
            self.flush_busy(env);
        }
        self.recv.cq_was_empty =
            self.cfg.rx_cq.and_then(|c| env.cqs.get(c)).is_none_or(|cq| cq.is_empty());
    }

    /// Whether only the rings of a few peers can bring new work.
    #[inline]
    pub(super) fn has_only_to_wait(&self) -> bool {
        (1..=TWICE_MOST).contains(&self.links.active.len())
            && self.rndv.is_idle()
            && self.peers.busy.is_empty()
    }

    /// Handles at most `most` records of each active ring. Returns whether there were any.
    #[inline]
    fn poll_live(&mut self, env: &mut Env<'_>, most: usize) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(live) = self.links.active.get(at).copied() {
            let ready = self.links.conn(live.conn).is_some_and(|c| c.rx().ready());
            let taken = if ready {
                self.expect_answer(live);
                self.drain(env, live.conn, live.peer, most)
            } else {
                0
            };
            if taken > 0 {
                any = true;
                self.throttle.more |= taken == most;
                if let Some(l) = self.links.active.get_mut(at).filter(|l| l.conn == live.conn) {
                    l.empty = 0;
                }
            } else if self.links.note_empty_poll(at) {
                continue;
            }
            at += 1;
        }
        any
    }

    /// Handles up to `most` records of one ring and returns their number.
    #[inline]
    pub(crate) fn drain(
        &mut self,
        env: &mut Env<'_>,
        conn: ConnId,
        peer: PeerId,
        most: usize,
    ) -> usize {
        if self.links.rx_closed || self.peers.at(peer).overdrawn() {
            return 0;
        }
        for taken in 0..most {
            let more = match self.take_quick(env, conn, peer, &mut Queued) {
                PollOutcome::Consumed => true,
                PollOutcome::Unhandled => self.take_any(env, conn, peer),
                PollOutcome::Empty => false,
            };
            if !more {
                return taken;
            }
        }
        most
    }

    /// Starts the pending work of all busy peers.
    pub(super) fn flush_busy(&mut self, env: &mut Env<'_>) {
        let mut at = 0;
        while let Some(peer) = self.peers.busy.get(at).copied() {
            if self.flush_peer(env, peer) {
                self.peers.unmark_busy(at);
            } else {
                at += 1;
            }
        }
    }

    /// Does the timed work: sweep, connection events, expired connects, liveness.
    fn housekeeping(&mut self, env: &mut Env<'_>) {
        self.links.sweep();
        self.end_exhausted(env);
        self.see_off(env);
        let now = scif::now_ns();
        if now.saturating_sub(self.links.last_events_ns) >= LINKS_NS {
            self.links.last_events_ns = now;
            self.look_at_links(env);
            self.expire_connects(env, now);
            self.sweep_peers(env);
        }
        if now.saturating_sub(self.links.last_alive_ns) >= ALIVE_NS {
            self.links.last_alive_ns = now;
            self.look_at_lives(env);
            self.watch_sources(env, now);
        }
    }

    /// Handles connection events: accepts, completed handshakes and closes.
    pub(crate) fn look_at_links(&mut self, env: &mut Env<'_>) {
        let mut links = std::mem::take(&mut self.links.events);
        self.links.sock.poll_links(&mut links);
        self.on_links(env, &mut links);
        self.links.events = links;
    }

    /// Handles connection events without the lock that guards the receives of a peer provider.
    /// Messages, and ends of connections, wait until progress runs on behalf of that provider.
    pub(super) fn look_for_events(&mut self, env: &mut Env<'_>) {
        let mut links = std::mem::take(&mut self.links.events);
        self.links.sock.poll_links(&mut links);
        let mut ended = Vec::new();
        links.retain(|link| {
            let end = matches!(link, LinkEvent::Closed(..));
            if end {
                ended.push(*link);
            }
            !end
        });
        self.on_links(env, &mut links);
        for link in ended {
            let LinkEvent::Closed(conn, reason) = link else {
                continue;
            };
            if self.links.is_parting(conn) || self.cm_closed(env, conn, reason) {
                continue;
            }
            if self.links.peer_of(conn).is_some() {
                self.cm_over();
                links.push(link);
            } else {
                // This connection carried a request that has been answered.
                self.links.sock.close_conn(conn, CloseHow::Reset);
            }
        }
        self.links.events = links;
    }

    fn on_links(&mut self, env: &mut Env<'_>, links: &mut Vec<LinkEvent>) {
        // Closes come last, so that a reply over another connection is known before an operation
        // fails.
        links.sort_by_key(|link| matches!(link, LinkEvent::Closed(..)));
        let was_down = self.cm.as_ref().is_some_and(|cm| cm.is_down());
        for link in links.drain(..) {
            match link {
                LinkEvent::Accepted(conn, port) => self.accepted(env, conn, port),
                LinkEvent::Connected(conn) => self.connected(conn),
                LinkEvent::Closed(conn, reason) => self.lose(env, conn, reason),
            }
        }
        // The receives of a connection that ended just now are flushed by the next poll, unless a
        // thread sleeps. Until then the other endpoints of its queues receive messages that were
        // sent earlier.
        let Some(cm) = &self.cm else { return };
        if was_down || self.links.armed || !cm.is_down() {
            self.cm_step(env);
        }
    }

    /// Handles a connection that a peer has opened.
    fn accepted(&mut self, env: &mut Env<'_>, conn: ConnId, port: PortId) {
        if self.cm.is_some() {
            return self.cm_accepted(conn);
        }
        let peer = self.peer_at(port);
        self.links.add(conn, peer);
        self.end_former_lives(env, conn, peer, port);
        if self.links.conns_of(peer).all(|c| c != conn) {
            // The new connection ended together with an earlier one, or its process does not own
            // the port.
            return;
        }
        if self.peers.own == Some(peer) {
            self.peers.own_rx = Some(conn);
        }
        self.note_access(conn, peer);
        let p = self.peers.at_mut(peer);
        p.state.on_accepted();
        if p.tx.is_none() {
            p.tx = Some(conn);
        }
        self.seen(env, peer);
    }

    /// Ends connections of earlier incarnations of the peer at `port`. The new connection `conn`
    /// may be seen before the end of an old one. Requests over `conn` must not be answered over an
    /// old connection.
    fn end_former_lives(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId, port: PortId) {
        let former: Vec<ConnId> = self.links.conns_of(peer).filter(|old| *old != conn).collect();
        let Some(process) = self.links.conn(conn).map(|c| c.peer_process()) else {
            return;
        };
        for old in former {
            // A process that opened both connections closed the old one gracefully first.
            let mut links = Vec::new();
            self.links.sock.hear(old, &mut links);
            self.on_links(env, &mut links);
            let Some(c) = self.links.conn(old).filter(|c| c.peer_process() != process) else {
                continue;
            };
            let (up, alive) = (c.is_up(), c.alive_now());
            // A dying process may seem alive after it has lost its port, so ownership decides.
            let listener = self.links.sock.listener(port);
            if listener == Some(process.0) || !alive {
                if up {
                    self.lose(env, old, Reason::Died);
                }
            } else if listener.is_some() {
                self.refuse_impostor(conn, port, process.0);
                return;
            }
        }
    }

    /// Resets a new connection from a process that claims the port of another live peer. Nothing of
    /// it is read, and the peer's own connections stay.
    #[cold]
    fn refuse_impostor(&mut self, conn: ConnId, port: PortId, pid: i32) {
        self.links.active.retain(|live| live.conn != conn);
        self.links.sock.close_conn(conn, CloseHow::Reset);
        warn_about_peer(
            Subsys::EpCtrl,
            format_args!("process {pid} claims port {port} of another process; connection reset"),
        );
    }

    /// Handles the end of a handshake for a connection of this side.
    fn connected(&mut self, conn: ConnId) {
        let Some(peer) = self.links.peer_of(conn) else {
            return;
        };
        let p = self.peers.at_mut(peer);
        p.state.on_up();
        parting::note_answer(p.id);
        self.note_access(conn, peer);
    }

    /// Ends a connection: receives the records left in its ring, then fails the operations it
    /// carried.
    pub(crate) fn lose(&mut self, env: &mut Env<'_>, conn: ConnId, reason: Reason) {
        if self.links.is_parting(conn) || self.cm_closed(env, conn, reason) {
            return;
        }
        let Some(peer) = self.links.remove(conn) else {
            self.links.sock.close_conn(conn, CloseHow::Reset);
            return;
        };
        if !matches!(reason, Reason::Corrupt | Reason::Exhausted) {
            self.drain_last(env, conn, peer);
        }
        let process = self.links.conn(conn).map(|c| c.peer_process());
        // Made for receives only (`source_watch`), and nothing was sent over it.
        let unused = self.recv.unmet.note_ended(conn)
            && self.links.conn(conn).is_some_and(|c| c.tx().all_consumed())
            && self.peers.at(peer).queue.is_idle()
            && self.ops.of_peer(peer).is_empty();
        let was_up = self.links.conn(conn).is_some_and(|c| c.was_up());
        self.note_source_lost(peer, was_up);
        // Precedes all work on other connections of the peer, whose requests must not be answered
        // over this one.
        let sent_on_it = self.leave_tx(conn, peer);
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
            for twin in self.links.conns_of_process(peer, process) {
                self.drain_last(env, twin, peer);
            }
        }
        self.rma_target.on_conn_lost(conn);
        // A listener that hangs up is closing gracefully too.
        let died = !matches!(reason, Reason::Orderly | Reason::Refused(Refusal::Closed));
        let lost = match reason {
            Reason::Exhausted => fi::FI_ENOMEM,
            _ => fi::FI_ECONNRESET,
        };
        let how = if died { CloseHow::Reset } else { CloseHow::Orderly };
        self.part(env, conn, peer, (how, lost), sent_on_it);
        let p = self.peers.at_mut(peer);
        let id = p.id;
        // The peer exists, but denies access or refuses for now.
        let hindered = match reason {
            Reason::Denied if !p.state.was_up() => Some(fi::FI_EACCES),
            Reason::Refused(Refusal::Version | Refusal::Resources) if !p.state.was_up() => {
                Some(fi::FI_ECONNREFUSED)
            }
            _ => None,
        };
        if let Some(err) = hindered {
            crate::base::log::connect_failed(id, &reason, err);
        }
        if sent_on_it {
            let err = if let Some(err) = hindered {
                err
            } else if matches!(reason, Reason::Refused(_)) && !p.state.was_up() {
                fi::FI_ECONNREFUSED
            } else {
                lost
            };
            for op in self.ops.of_peer(peer) {
                if !self.is_set_apart(op) {
                    self.finish_op(env, peer, op, err);
                }
            }
            self.fail_pending(env, peer, err);
        }
        let twins = self.links.conns_of_process(peer, process);
        let gone = twins.is_empty();
        if self.cm.is_some() {
            self.cm_ended(env, died);
        } else if let Some(err) = hindered {
            // The peer is alive. If it has read none of our messages, no reply will come; if there
            // are none, its own messages may still come over a connection that it opens.
            if gone && !unused {
                self.fail_receives_from(env, peer, id, false, err);
            }
        } else if gone && died {
            self.bury(env, peer, id, lost, reason);
        } else {
            self.peers.at_mut(peer).state.on_closed(gone);
        }
        if gone {
            self.coll_lost(env, peer);
            self.departed(env, peer, died);
        }
        if unheard {
            self.start_over(env, &twins, reason);
        }
    }

    /// Ends `twins`, the other connections with a peer, after data over one connection was lost.
    /// After a simultaneous open the peer may have missed records sent over our connection:
    /// messages, and replies to requests over the other one. It would wait for such replies
    /// forever, so the other connection ends too and both sides notice. A peer over its memory
    /// limit is read no more, and its other connections end for the same reason.
    #[cold]
    fn start_over(&mut self, env: &mut Env<'_>, twins: &[ConnId], reason: Reason) {
        for &twin in twins {
            if matches!(reason, Reason::Exhausted) {
                self.lose(env, twin, reason);
                continue;
            }
            // A peer that closes gracefully announces it on this connection first.
            let mut links = Vec::new();
            self.links.sock.hear(twin, &mut links);
            self.on_links(env, &mut links);
            if self.links.conn(twin).is_some() {
                self.lose(env, twin, Reason::Reset);
            }
        }
    }

    /// Handles the records left in the ring of an ended connection. The bound of one ring capacity
    /// protects against a peer that keeps writing.
    fn drain_last(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
        if let Some(c) = self.links.conn(conn) {
            c.rx().cancel_poll_delay();
        }
        for _ in 0..RING_SLOTS.div_ceil(BATCH) {
            if self.drain(env, conn, peer, BATCH) < BATCH {
                return;
            }
        }
    }

    /// Stops sending over `conn`, which is in no ring list any more. Further sends use another
    /// connection with the peer, if there is one. Returns whether `conn` was used for sending.
    fn leave_tx(&mut self, conn: ConnId, peer: PeerId) -> bool {
        let other = self.links.conns_of(peer).next();
        let sent_on_it = self.peers.at(peer).tx == Some(conn);
        if sent_on_it {
            self.peers.reset_connection(peer);
            self.peers.at_mut(peer).tx = other;
        }
        sent_on_it
    }

    /// Checks the liveness of processes with outstanding work, a few at a time. This second check
    /// does not depend on the sockets.
    fn look_at_lives(&mut self, env: &mut Env<'_>) {
        for _ in 0..ALIVE_AT_ONCE.min(self.links.len()) {
            let Some(l) = self.links.next_to_check() else {
                continue;
            };
            let waits = self.recv.directed > 0
                || self.ops.any_of_peer(l.peer)
                || self.rndv.fetches_from(l.peer)
                || self.collects_from(l.peer)
                || self.peers.at(l.peer).busy;
            if waits && self.links.sock.conn(l.conn).is_some_and(|c| c.is_up() && !c.alive()) {
                self.lose(env, l.conn, Reason::Died);
            }
        }
    }

    /// Waits before the close until pending replies are in the ring, so that no peer waits in vain.
    /// Completed datagrams that were not fetched yet are waited for as well, since no error would
    /// report their loss. The same holds for connections being made: an injected message has no
    /// completion that could fail. A port without an answer is waited for once.
    ///
    /// With receives of a peer provider nothing is read, because that needs the lock of that
    /// provider.
    pub(crate) fn drain_before_close(&mut self, env: &mut Env<'_>) {
        self.recv.unmet.close();
        self.links.rx_closed = self.draws_from_another(env);
        let mut end = scif::now_ns() + CLOSE_NS;
        let connected =
            scif::now_ns() + CLOSE_CONNECT_NS.min(crate::base::env::env().connect_timeout_ns);
        loop {
            let now = scif::now_ns();
            let mut unfinished = !self.links.rx_closed && self.ops.kept() > 0;
            for p in self.peers.busy.iter().map(|p| self.peers.at(*p)) {
                unfinished |= p.tx.is_some() && !p.queue.is_idle();
                if !p.is_connecting() || p.queue.pending.is_empty() || parting::is_silent(p.id) {
                    continue;
                }
                if now < connected {
                    unfinished = true;
                    end = now + CLOSE_NS;
                } else {
                    parting::note_silent(p.id);
                }
            }
            if !unfinished || now >= end {
                break;
            }
            self.progress(env);
            std::thread::yield_now();
        }
    }
}
