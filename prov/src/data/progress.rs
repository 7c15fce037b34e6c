// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Polling loop of an endpoint: first rings, then unfinished work, and at intervals connection
//! events and liveness.
//!
//! Every poll reads the active rings. A ring that stays empty long enough becomes idle: its peer
//! rings the doorbell of the endpoint after the next record. A periodic sweep also polls one idle
//! ring at a time, so that a lost doorbell delays a message but never loses it.

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, LinkEvent, PortId, Reason, Refusal};
use scif_ring::BELL_BITS;
use scif_ring::layout::RING_SLOTS;
use scif_ring::spsc::PollOutcome;

use super::parting;
use super::peer_id::PeerId;
use super::quick::Queued;
use super::{Env, EpState, Live};
use crate::base::log::{Subsys, warn_about_peer};

/// Records read from one ring before the next ring is polled. A larger batch lets a busy peer delay
/// the others.
pub(crate) const BATCH: usize = 32;
/// High-water mark of unexpected messages. At or above it the throttle applies, and reads about as
/// many records as the application takes messages. The ring of a fast sender then fills
/// (backpressure). With more than `BATCH` active rings it reads somewhat more.
const BACKLOG: usize = 256;
/// Number of polls for which the throttle applies after the application has taken an unexpected
/// message. Reading then continues, since the application may wait for a message that is behind
/// them. A larger number holds senders back longer.
const CATCH_UP: u32 = 8;
/// Empty polls of a ring after which its consumed counter is published. A larger number delays
/// fences of the peer.
const FLUSH_AFTER: u32 = 64;
/// Empty polls after which a ring becomes idle while more than `LIVE_ALWAYS` rings are active. A
/// smaller number costs more doorbells.
const REST_AFTER: u32 = 1024;
/// Empty polls after which a ring becomes idle while few rings are active and others are idle.
const REST_AFTER_LONG: u32 = 65_536;
/// Largest number of active rings that counts as few: polling them costs less than reactivation.
pub(super) const LIVE_ALWAYS: usize = 8;
/// Number of active rings up to which an empty poll is repeated once, after a pause.
const TWICE_MOST: usize = 4;
/// Polls between two readings of the clock, and thus the delay of all timed work.
pub(super) const CLOCK_EVERY: u32 = 8;
/// Polls between two sweep steps, each of which polls one idle ring; a multiple of `CLOCK_EVERY`.
/// Applies until every idle ring was polled once since the last one became idle. The peer of that
/// ring may have published a record before it saw the idle flag.
pub(super) const SWEEP_EVERY: u32 = 64;
/// Polls between two sweep steps otherwise. They are rare, since the polled line is seldom in the
/// cache. If a malicious peer has erased a doorbell bit, its record is found after up to this many
/// polls for each idle ring.
pub(super) const SWEEP_SELDOM: u32 = 1024;
/// Interval in nanoseconds between polls of the sockets. A longer one delays accepts and connection
/// ends.
const LINKS_NS: u64 = 20_000;
/// Interval in nanoseconds between liveness checks. A longer one delays `FI_ECONNRESET`.
const ALIVE_NS: u64 = 5_000_000;
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
        self.polls = self.polls.wrapping_add(1);
        #[cfg(test)]
        let _ = super::tests::poison::strike(self.cfg.inject_size);
        self.more = false;
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.housekeeping(env);
        }
        if self.sock.bell().any() {
            self.wake_resting();
        }
        if self.armed {
            self.look_now();
        }
        let most = self.appetite();
        if most > 0 && !self.poll_live(env, most) && self.has_only_to_wait() {
            // PAUSE: a tight poll takes the cache line away from the writing core. It also slows
            // the other hardware thread of this core.
            std::hint::spin_loop();
            if self.any_ready() {
                self.poll_live(env, most);
            }
        }
        if self.armed {
            self.flush_live();
        }
        if !self.incoming_order.is_empty() {
            self.run_incoming(env);
        }
        if !self.helping.is_empty() {
            self.help();
        }
        if !self.done.is_empty() {
            self.tell_done();
        }
        if !self.peers.busy.is_empty() {
            self.flush_busy(env);
        }
        self.settled = self
            .cfg
            .rx_cq
            .and_then(|c| env.cqs.get(c))
            .is_none_or(|cq| cq.is_empty());
    }

    /// Cancels the poll delay of the active rings, before a sleep or after a wake-up.
    #[cold]
    pub(super) fn look_now(&mut self) {
        for live in &self.live {
            if let Some(c) = self.sock.conn(live.conn) {
                c.rx().cancel_poll_delay();
            }
        }
    }

    /// Notes that the application has taken an unexpected message, which starts the throttle.
    pub(super) fn received_late(&mut self) {
        self.catching_up = CATCH_UP;
        self.late += 1;
    }

    /// Returns the number of records that this poll reads from each ring: at most one while the
    /// throttle applies. The throttle does not apply while a thread is about to sleep, since no
    /// doorbell would announce the unread records.
    #[inline]
    fn appetite(&mut self) -> usize {
        if self.catching_up == 0 {
            return BATCH;
        }
        self.catching_up -= 1;
        let waiting = self.tagged.unexpected.len() + self.msg.unexpected.len();
        if waiting < BACKLOG || self.armed {
            return BATCH;
        }
        self.more = true;
        if self.late < self.live.len().min(BATCH) {
            return 0;
        }
        self.late = 0;
        1
    }

    /// Whether only the rings of a few peers can bring new work.
    #[inline]
    pub(super) fn has_only_to_wait(&self) -> bool {
        (1..=TWICE_MOST).contains(&self.live.len())
            && self.incoming_order.is_empty()
            && self.helping.is_empty()
            && self.peers.busy.is_empty()
    }

    #[inline]
    fn any_ready(&mut self) -> bool {
        let EpState { live, sock, .. } = self;
        live.iter()
            .any(|l| sock.conn(l.conn).is_some_and(|c| c.rx().ready()))
    }

    /// Handles at most `most` records of each active ring. Returns whether there were any.
    #[inline]
    fn poll_live(&mut self, env: &mut Env<'_>, most: usize) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(live) = self.live.get(at).copied() {
            let ready = self.sock.conn(live.conn).is_some_and(|c| c.rx().ready());
            let taken = if ready {
                self.expect_answer(live);
                self.drain(env, live.conn, live.peer, most)
            } else {
                0
            };
            if taken > 0 {
                any = true;
                self.more |= taken == most;
                if let Some(l) = self.live.get_mut(at).filter(|l| l.conn == live.conn) {
                    l.empty = 0;
                }
            } else if self.silent(at) {
                continue;
            }
            at += 1;
        }
        any
    }

    /// Publishes the consumed counters before a sleep, since the polls that would publish them may
    /// not come. Fences of peers, and RMA in message order, wait for these counters.
    #[cold]
    fn flush_live(&mut self) {
        for live in &self.live {
            if let Some(c) = self.sock.conn(live.conn) {
                c.rx().flush();
            }
        }
    }

    /// Counts an empty poll of active ring `at`. Returns true if the ring became idle and another
    /// ring took its index.
    #[inline]
    fn silent(&mut self, at: usize) -> bool {
        // With many peers, only the rings of active senders should be polled.
        let rest_after = match self.live.len() {
            0 | 1 => None,
            few if few <= LIVE_ALWAYS => (!self.resting.is_empty()).then_some(REST_AFTER_LONG),
            _ => Some(REST_AFTER),
        };
        let Some(live) = self.live.get_mut(at) else {
            return false;
        };
        live.empty = live.empty.saturating_add(1);
        if live.empty == FLUSH_AFTER
            && let Some(c) = self.sock.conn(live.conn)
        {
            c.rx().flush();
        }
        if rest_after.is_none_or(|after| live.empty < after) {
            return false;
        }
        let Some(c) = self.sock.conn(live.conn) else {
            return false;
        };
        c.rx().set_idle(true);
        if !matches!(c.rx().peek(), Ok(None)) {
            c.rx().set_idle(false);
            live.empty = 0;
            return false;
        }
        let live = self.live.swap_remove(at);
        self.resting.push(live);
        self.not_swept = self.resting.len();
        true
    }

    /// Handles up to `most` records of one ring and returns their number.
    #[inline]
    pub(crate) fn drain(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId, most: usize) -> usize {
        if self.deaf || self.peers.at(peer).overdrawn() {
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

    /// Activates the idle rings whose doorbell bits are set.
    #[cold]
    fn wake_resting(&mut self) {
        let mut bits = [false; BELL_BITS];
        self.sock.bell().take(|bit| {
            if let Some(b) = bits.get_mut(bit) {
                *b = true;
            }
        });
        let mut at = 0;
        while let Some(rest) = self.resting.get(at).copied() {
            if bits.get(rest.conn.index as usize % BELL_BITS).is_some_and(|b| *b) {
                self.wake(at);
            } else {
                at += 1;
            }
        }
    }

    fn take_resting(&mut self, at: usize) -> Live {
        let taken = self.resting.swap_remove(at);
        if self.not_swept > 0 {
            // The last ring has moved to index `at`.
            self.not_swept = self.resting.len();
        }
        taken
    }

    /// Activates the idle ring at index `at`.
    fn wake(&mut self, at: usize) {
        let mut live = self.take_resting(at);
        live.empty = 0;
        if let Some(c) = self.sock.conn(live.conn) {
            c.rx().set_idle(false);
        }
        self.live.push(live);
    }

    /// Polls the next idle ring, in turn.
    fn sweep(&mut self) {
        self.not_swept = self.not_swept.saturating_sub(1);
        if self.resting.is_empty() {
            return;
        }
        self.resting_next = (self.resting_next + 1) % self.resting.len();
        let at = self.resting_next;
        let Some(rest) = self.resting.get(at).copied() else {
            return;
        };
        let quiet = self
            .sock
            .conn(rest.conn)
            .is_some_and(|c| matches!(c.rx().peek(), Ok(None)));
        if !quiet {
            self.wake(at);
        }
    }

    /// Activates every idle ring that holds a record.
    pub(crate) fn rouse(&mut self) {
        let mut at = 0;
        while let Some(rest) = self.resting.get(at).copied() {
            if self
                .sock
                .conn(rest.conn)
                .is_some_and(|c| matches!(c.rx().peek(), Ok(None)))
            {
                at += 1;
            } else {
                self.wake(at);
            }
        }
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
        let every = if self.not_swept > 0 {
            SWEEP_EVERY
        } else {
            SWEEP_SELDOM
        };
        if self.polls.is_multiple_of(every) {
            self.sweep();
        }
        self.end_exhausted(env);
        self.see_off(env);
        let now = scif::now_ns();
        if now.saturating_sub(self.last_links_ns) >= LINKS_NS {
            self.last_links_ns = now;
            self.look_at_links(env);
            self.expire_connects(env, now);
            self.sweep_peers(env);
        }
        if now.saturating_sub(self.last_alive_ns) >= ALIVE_NS {
            self.last_alive_ns = now;
            self.look_at_lives(env);
        }
    }

    /// Handles connection events: accepts, completed handshakes and closes.
    pub(crate) fn look_at_links(&mut self, env: &mut Env<'_>) {
        let mut links = std::mem::take(&mut self.links);
        self.sock.poll_links(&mut links);
        self.on_links(env, &mut links);
        self.links = links;
    }

    /// Handles connection events without the lock that guards the receives of a peer provider.
    /// Messages, and ends of connections, wait until progress runs on behalf of that provider.
    pub(super) fn look_for_events(&mut self, env: &mut Env<'_>) {
        let mut links = std::mem::take(&mut self.links);
        self.sock.poll_links(&mut links);
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
            if self.is_parting(conn) || self.cm_closed(env, conn, reason) {
                continue;
            }
            if self.live.iter().chain(&self.resting).any(|l| l.conn == conn) {
                self.cm_over();
                links.push(link);
            } else {
                // This connection carried a request that has been answered.
                self.sock.close_conn(conn, CloseHow::Reset);
            }
        }
        self.links = links;
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
        if was_down || self.armed || !cm.is_down() {
            self.cm_step(env);
        }
    }

    /// Handles a connection that a peer has opened.
    fn accepted(&mut self, env: &mut Env<'_>, conn: ConnId, port: PortId) {
        if self.cm.is_some() {
            return self.cm_accepted(conn);
        }
        let peer = self.peer_at(port);
        self.live.push(Live { conn, peer, empty: 0 });
        self.end_former_lives(env, conn, peer, port);
        if self.conns_of(peer).all(|c| c != conn) {
            // The new connection ended together with an earlier one, or its process does not own
            // the port.
            return;
        }
        if self.peers.own == Some(peer) {
            self.peers.own_rx = Some(conn);
        }
        self.note_access(conn, peer);
        let p = self.peers.at_mut(peer);
        p.was_up = true;
        p.dead = false;
        p.left = false;
        if p.tx.is_none() {
            p.tx = Some(conn);
        }
        self.seen(env, peer);
    }

    /// Ends connections of earlier incarnations of the peer at `port`. The new connection `conn`
    /// may be seen before the end of an old one. Requests over `conn` must not be answered over an
    /// old connection.
    fn end_former_lives(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId, port: PortId) {
        let former: Vec<ConnId> = self.conns_of(peer).filter(|old| *old != conn).collect();
        let Some(process) = self.sock.conn(conn).map(|c| c.peer_process()) else {
            return;
        };
        for old in former {
            // A process that opened both connections closed the old one gracefully first.
            let mut links = Vec::new();
            self.sock.hear(old, &mut links);
            self.on_links(env, &mut links);
            let Some(c) = self.sock.conn(old).filter(|c| c.peer_process() != process) else {
                continue;
            };
            let (up, alive) = (c.is_up(), c.alive_now());
            // A dying process may seem alive after it has lost its port, so ownership decides.
            let listener = self.sock.listener(port);
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
        self.live.retain(|live| live.conn != conn);
        self.sock.close_conn(conn, CloseHow::Reset);
        warn_about_peer(
            Subsys::EpCtrl,
            format_args!("process {pid} claims port {port} of another process; connection reset"),
        );
    }

    /// Returns the connections with `peer`.
    pub(super) fn conns_of(&self, peer: PeerId) -> impl Iterator<Item = ConnId> {
        self.live
            .iter()
            .chain(&self.resting)
            .filter(move |l| l.peer == peer)
            .map(|l| l.conn)
    }

    /// Handles the end of a handshake for a connection of this side.
    fn connected(&mut self, conn: ConnId) {
        let peer = self
            .live
            .iter()
            .chain(&self.resting)
            .find(|l| l.conn == conn)
            .map(|l| l.peer);
        let Some(peer) = peer else { return };
        let p = self.peers.at_mut(peer);
        p.was_up = true;
        parting::note_answer(p.id);
        self.note_access(conn, peer);
    }

    /// Ends a connection: receives the records left in its ring, then fails the operations it
    /// carried.
    pub(crate) fn lose(&mut self, env: &mut Env<'_>, conn: ConnId, reason: Reason) {
        if self.is_parting(conn) || self.cm_closed(env, conn, reason) {
            return;
        }
        let found = self
            .live
            .iter()
            .position(|l| l.conn == conn)
            .map(|at| self.live.swap_remove(at))
            .or_else(|| {
                let at = self.resting.iter().position(|l| l.conn == conn)?;
                Some(self.take_resting(at))
            });
        let Some(Live { peer, .. }) = found else {
            self.sock.close_conn(conn, CloseHow::Reset);
            return;
        };
        if !matches!(reason, Reason::Corrupt | Reason::Exhausted) {
            self.drain_last(env, conn, peer);
        }
        let process = self.sock.conn(conn).map(|c| c.peer_process());
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
            _ => sent_on_it && self.sock.conn(conn).is_some_and(|c| !c.was_up()),
        };
        if matches!(reason, Reason::Orderly | Reason::Died) {
            for twin in self.conns_of_process(peer, process) {
                self.drain_last(env, twin, peer);
            }
        }
        self.write_errors.remove(&conn);
        self.failed_reads.remove(&conn);
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
            Reason::Denied if !p.was_up => Some(fi::FI_EACCES),
            Reason::Refused(Refusal::Version | Refusal::Resources) if !p.was_up => Some(fi::FI_ECONNREFUSED),
            _ => None,
        };
        if let Some(err) = hindered {
            crate::base::log::hindered(id, &reason, err);
        }
        if sent_on_it {
            let err = if let Some(err) = hindered {
                err
            } else if matches!(reason, Reason::Refused(_)) && !p.was_up {
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
        let twins = self.conns_of_process(peer, process);
        let gone = twins.is_empty();
        if self.cm.is_some() {
            self.cm_ended(env, died);
        } else if let Some(err) = hindered {
            if gone {
                // The peer is alive and has read none of the messages, so no reply will come.
                self.fail_receives_from(env, peer, id, false, err);
            }
        } else if gone && died {
            self.bury(env, peer, id, lost, reason);
        } else {
            self.peers.at_mut(peer).left = gone;
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
            self.sock.hear(twin, &mut links);
            self.on_links(env, &mut links);
            if self.sock.conn(twin).is_some() {
                self.lose(env, twin, Reason::Reset);
            }
        }
    }

    /// Handles the records left in the ring of an ended connection. The bound of one ring capacity
    /// protects against a peer that keeps writing.
    fn drain_last(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
        if let Some(c) = self.sock.conn(conn) {
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
        let other = self.conns_of(peer).next();
        let sent_on_it = self.peers.at(peer).tx == Some(conn);
        if sent_on_it {
            self.peers.reset_connection(peer);
            self.peers.at_mut(peer).tx = other;
        }
        sent_on_it
    }

    /// Returns the connections with `peer` whose other end is process `process`.
    ///
    /// After a simultaneous open there are two, and replies to requests over one arrive over the
    /// other. Both end with the peer. The end that is seen first must not fail operations that were
    /// answered.
    fn conns_of_process(&mut self, peer: PeerId, process: Option<(i32, u64)>) -> Vec<ConnId> {
        let mut conns: Vec<ConnId> = self.conns_of(peer).collect();
        conns.retain(|id| self.sock.conn(*id).map(|c| c.peer_process()) == process);
        conns
    }

    /// Checks the liveness of processes with outstanding work, a few at a time. This second check
    /// does not depend on the sockets.
    fn look_at_lives(&mut self, env: &mut Env<'_>) {
        let total = self.live.len() + self.resting.len();
        for _ in 0..ALIVE_AT_ONCE.min(total) {
            self.alive_next = (self.alive_next + 1) % (self.live.len() + self.resting.len()).max(1);
            let at = self.alive_next;
            let Some(l) = self
                .live
                .get(at)
                .or_else(|| self.resting.get(at - self.live.len()))
                .copied()
            else {
                continue;
            };
            let waits = self.directed > 0
                || self.ops.any_of_peer(l.peer)
                || self.fetches_from(l.peer)
                || self.collects_from(l.peer)
                || self.peers.at(l.peer).busy;
            if waits && self.sock.conn(l.conn).is_some_and(|c| c.is_up() && !c.alive()) {
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
        self.deaf = self.draws_from_another(env);
        let mut end = scif::now_ns() + CLOSE_NS;
        let connected = scif::now_ns() + CLOSE_CONNECT_NS.min(crate::base::env::env().connect_timeout_ns);
        loop {
            let now = scif::now_ns();
            let mut unfinished = !self.deaf && self.ops.kept() > 0;
            for p in self.peers.busy.iter().map(|p| self.peers.at(*p)) {
                unfinished |= p.tx.is_some() && !p.is_idle();
                if !p.is_connecting() || p.pending.is_empty() || parting::is_silent(p.id) {
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
