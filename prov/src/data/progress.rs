// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The polling loop of an endpoint: rings first, then what is half done, then now and then the links and the lives behind them.
//!
//! Rings of peers that talk are looked at in every poll. A ring silent for long goes to rest: its peer rings the endpoint's
//! bell before it expects to be read, and now and then a poll also looks at one resting ring, so that a lost bell delays a
//! message and never loses it.

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, LinkEvent, PortId, Reason, Refusal};
use scif_ring::BELL_BITS;
use scif_ring::layout::SLOTS;
use scif_ring::spsc::Look;

use super::peer::Peer;
use super::quick::Queued;
use super::{Env, EpState, Live};

/// Records taken from one ring before the next one's turn.
pub(crate) const BATCH: usize = 32;
/// So many messages without a receive are a backlog. In so many polls after one of them was received no more is read than was received
/// (somewhat more from very many peers): who sends faster than its messages are received is held back by its ring.
const BACKLOG: usize = 256;
const CATCH_UP: u32 = 8;
/// Empty polls after which the consumed counter of a ring is published.
const FLUSH_AFTER: u32 = 64;
/// Empty polls after which a ring goes to rest, when many rings are live.
const REST_AFTER: u32 = 1024;
/// The same when few are live while others rest.
const REST_AFTER_LONG: u32 = 65_536;
/// So few live rings do not rest soon: looking at them costs less than waking them.
pub(super) const LIVE_ALWAYS: usize = 8;
/// So few live rings are looked at twice, with a pause between, in a poll that would be empty.
const TWICE_MOST: usize = 4;
/// Polls between two looks at the clock.
pub(super) const CLOCK_EVERY: u32 = 8;
/// Polls between two looks at a resting ring, a multiple of the above: a lost bell costs as many for each such ring. The few while
/// one of them may have gone to rest just before its peer saw that, the many from then on: the line looked at is hardly ever in the
/// cache, and only a peer that means harm erases bells.
pub(super) const SWEEP_EVERY: u32 = 64;
pub(super) const SWEEP_SELDOM: u32 = 1024;
/// Time between two looks at the sockets.
const LINKS_NS: u64 = 20_000;
/// Time between two looks at the processes we wait for.
const ALIVE_NS: u64 = 5_000_000;
/// Processes looked at each time.
const ALIVE_AT_ONCE: usize = 8;
/// How long a closing endpoint waits for the ring to take its last answers.
const CLOSE_NS: u64 = 100_000_000;
/// Most nanoseconds, below `FI_SCIF_CONNECT_TIMEOUT`, for which a closing endpoint waits for connections under way that operations
/// wait for. Beyond it these are lost.
const CLOSE_CONNECT_NS: u64 = 3_000_000_000;

impl EpState {
    #[inline]
    pub(crate) fn progress(&mut self, env: &mut Env<'_>) {
        // Links, then bells, then rings: what a wake-up or a bell announces is in the ring before it, and whoever sleeps
        // after this has seen everything that was announced.
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
            // What a waiting core asks for without a pause, it takes out of the hands of the core that writes it; and two
            // hardware threads of one core share what the pause leaves alone.
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
        if !self.busy.is_empty() {
            self.flush_busy(env);
        }
        self.settled = self
            .cfg
            .rx_cq
            .and_then(|c| env.cqs.get(c))
            .is_none_or(|cq| cq.is_empty());
    }

    /// Somebody is about to sleep, or was woken: it is not too early to look.
    #[cold]
    pub(super) fn look_now(&mut self) {
        for live in &self.live {
            if let Some(c) = self.sock.conn(live.conn) {
                c.rx().look_now();
            }
        }
    }

    /// A message was received that had waited for it.
    pub(super) fn received_late(&mut self) {
        self.catching_up = CATCH_UP;
        self.late += 1;
    }

    /// How many records this poll takes from each ring: one or none while the program is receiving what came before. But not where
    /// somebody is about to sleep, whom nothing would wake for what was left.
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

    /// Whether nothing but the rings of few peers can bring anything.
    #[inline]
    pub(super) fn has_only_to_wait(&self) -> bool {
        (1..=TWICE_MOST).contains(&self.live.len())
            && self.incoming_order.is_empty()
            && self.helping.is_empty()
            && self.busy.is_empty()
    }

    #[inline]
    fn any_ready(&mut self) -> bool {
        let EpState { live, sock, .. } = self;
        live.iter()
            .any(|l| sock.conn(l.conn).is_some_and(|c| c.rx().ready()))
    }

    /// Takes what the live rings hold, at most so many records of each. True if it was anything.
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

    /// Tells peers what was taken, since the polls after which they would be told may not come: a fence of theirs, or RMA in
    /// the order of messages, waits for it.
    #[cold]
    fn flush_live(&mut self) {
        for live in &self.live {
            if let Some(c) = self.sock.conn(live.conn) {
                c.rx().flush();
            }
        }
    }

    /// One more empty look at the live ring `at`. True when it went to rest, and another stands in its place.
    #[inline]
    fn silent(&mut self, at: usize) -> bool {
        // Where there are many peers, those that talk are to be the only ones looked at.
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

    /// Handles up to `most` records of one ring; returns how many there were.
    #[inline]
    pub(crate) fn drain(&mut self, env: &mut Env<'_>, conn: ConnId, peer: u32, most: usize) -> usize {
        if self.deaf || self.peers.get(peer as usize).is_some_and(Peer::overdrawn) {
            return 0;
        }
        for taken in 0..most {
            let more = match self.take_quick(env, conn, peer, &mut Queued) {
                Look::Taken => true,
                Look::Other => self.take_any(env, conn, peer),
                Look::Empty => false,
            };
            if !more {
                return taken;
            }
        }
        most
    }

    /// Makes the rings live again whose peers rang, and one resting ring in turn.
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
            // The last one has another place now.
            self.not_swept = self.resting.len();
        }
        taken
    }

    fn wake(&mut self, at: usize) {
        let mut live = self.take_resting(at);
        live.empty = 0;
        if let Some(c) = self.sock.conn(live.conn) {
            c.rx().set_idle(false);
        }
        self.live.push(live);
    }

    /// Looks at one resting ring, in turn.
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

    /// Makes every resting ring live again that holds something.
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

    pub(super) fn flush_busy(&mut self, env: &mut Env<'_>) {
        let mut at = 0;
        while let Some(peer) = self.busy.get(at).copied() {
            if self.flush_peer(env, peer) {
                self.busy.swap_remove(at);
                if let Some(p) = self.peers.get_mut(peer as usize) {
                    p.busy = false;
                }
            } else {
                at += 1;
            }
        }
    }

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

    /// Accepts, completes handshakes, and hears of closed connections.
    pub(crate) fn look_at_links(&mut self, env: &mut Env<'_>) {
        let mut links = std::mem::take(&mut self.links);
        self.sock.poll_links(&mut links);
        self.on_links(env, &mut links);
        self.links = links;
    }

    /// The same where the lock of whoever owns the receives is not ours: its messages stay where they are until progress is made
    /// on its behalf, and the ends of connections with them.
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
                // One that carried a request, and has been answered.
                self.sock.close_conn(conn, CloseHow::Reset);
            }
        }
        self.links = links;
    }

    fn on_links(&mut self, env: &mut Env<'_>, links: &mut Vec<LinkEvent>) {
        // Before anything is given up all is known that may have been answered over another connection.
        links.sort_by_key(|link| matches!(link, LinkEvent::Closed(..)));
        let was_down = self.cm.as_ref().is_some_and(|cm| cm.is_down());
        for link in links.drain(..) {
            match link {
                LinkEvent::Accepted(conn, port) => self.accepted(env, conn, port),
                LinkEvent::Connected(conn) => self.connected(conn),
                LinkEvent::Closed(conn, reason) => self.lose(env, conn, reason),
            }
        }
        // What a connection that ended just now takes along waits for the next look, unless somebody sleeps on it: until then
        // the other endpoints of its queues hear what was sent to them before.
        let Some(cm) = &self.cm else { return };
        if was_down || self.armed || !cm.is_down() {
            self.cm_step(env);
        }
    }

    fn accepted(&mut self, env: &mut Env<'_>, conn: ConnId, port: PortId) {
        if self.cm.is_some() {
            return self.cm_accepted(conn);
        }
        let peer = self.peer_at(port);
        self.live.push(Live { conn, peer, empty: 0 });
        self.end_former_lives(env, conn, peer, port);
        if self.conns_of(peer).all(|c| c != conn) {
            // It ended with a former one.
            return;
        }
        if self.own == Some(peer) {
            self.own_rx = Some(conn);
        }
        self.note_access(conn, peer);
        if let Some(p) = self.peers.get_mut(peer as usize) {
            p.was_up = true;
            p.dead = false;
            p.left = false;
            if p.tx.is_none() {
                p.tx = Some(conn);
            }
        }
        self.seen(env, peer);
    }

    /// A peer that has come back under its old port may be heard of before its former life's end is. What it asks over the new
    /// connection `conn` must not be answered over an old one.
    fn end_former_lives(&mut self, env: &mut Env<'_>, conn: ConnId, peer: u32, port: PortId) {
        let former: Vec<ConnId> = self.conns_of(peer).filter(|old| *old != conn).collect();
        let Some(process) = self.sock.conn(conn).map(|c| c.peer_process()) else {
            return;
        };
        for old in former {
            // The same process said goodbye on the old connection before it opened this one.
            let mut links = Vec::new();
            self.sock.hear(old, &mut links);
            self.on_links(env, &mut links);
            // Another process: the port is its own, unless the old one lives and this one only says so. A dying process may
            // seem to live after it has lost its port, so the port decides.
            let other = self
                .sock
                .conn(old)
                .is_some_and(|c| c.is_up() && c.peer_process() != process);
            if other {
                let owner = self.sock.listener(port) == Some(process.0);
                if owner || self.sock.conn(old).is_some_and(|c| !c.alive_now()) {
                    self.lose(env, old, Reason::Died);
                }
            }
        }
    }

    /// The connections with `peer`.
    pub(super) fn conns_of(&self, peer: u32) -> impl Iterator<Item = ConnId> {
        self.live
            .iter()
            .chain(&self.resting)
            .filter(move |l| l.peer == peer)
            .map(|l| l.conn)
    }

    fn connected(&mut self, conn: ConnId) {
        let peer = self
            .live
            .iter()
            .chain(&self.resting)
            .find(|l| l.conn == conn)
            .map(|l| l.peer);
        let Some(peer) = peer else { return };
        if let Some(p) = self.peers.get_mut(peer as usize) {
            p.was_up = true;
        }
        self.note_access(conn, peer);
    }

    /// Ends a connection: what its ring still holds is received, what it carried fails.
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
        // Now: what is asked over the peer's other connections, heard next, is not to be answered over this one.
        let sent_on_it = self.leave_tx(conn, peer);
        let unheard = match reason {
            // Nothing more of the peer is read, over none of its connections.
            Reason::Exhausted => true,
            // A listener that closed says so on its own connections, or they are those of its next life.
            Reason::Refused(Refusal::Closed) => false,
            // Answers to what came over its own may have been lost with it.
            Reason::Reset | Reason::Corrupt => sent_on_it,
            _ => sent_on_it && self.sock.conn(conn).is_some_and(|c| !c.was_up()),
        };
        if matches!(reason, Reason::Orderly | Reason::Died) {
            for twin in self.conns_of_process(peer, process) {
                self.drain_last(env, twin, peer);
            }
        }
        self.write_errors.remove(&conn);
        // A listener that hangs up is being closed in order as well.
        let died = !matches!(reason, Reason::Orderly | Reason::Refused(Refusal::Closed));
        let lost = match reason {
            Reason::Exhausted => fi::FI_ENOMEM,
            _ => fi::FI_ECONNRESET,
        };
        let how = if died { CloseHow::Reset } else { CloseHow::Orderly };
        self.part(env, conn, peer, (how, lost), sent_on_it);
        let Some(p) = self.peers.get_mut(peer as usize) else {
            return;
        };
        let id = p.id;
        // It is there, and we may not talk to it, or not now.
        let hindered = match reason {
            Reason::Denied if !p.was_up => Some(fi::FI_EACCES),
            Reason::Refused(Refusal::Version | Refusal::Resources) if !p.was_up => Some(fi::FI_ECONNREFUSED),
            _ => None,
        };
        if let Some(err) = hindered {
            crate::log::hindered(id, &reason, err);
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
                // It lives, and has read nothing of what was sent: no answer will come.
                self.fail_receives_from(env, peer, id, false, err);
            }
        } else if gone && died {
            self.bury(env, peer, id, lost);
        } else if let Some(p) = self.peers.get_mut(peer as usize) {
            p.left = gone;
        }
        if gone {
            self.coll_lost(env, peer);
            self.departed(env, peer, died);
        }
        if unheard {
            self.start_over(env, &twins, reason);
        }
    }

    /// When both sides connected at once and the peer has not accepted our connection, or it was reset, the peer has not read all of
    /// what was sent over it: messages, and answers to what came over its own, for which it would wait for ever. So that one
    /// ends too, and both sides hear of it. A peer that sends more than can be kept is not read any further: its last connection
    /// ends for the reason of the first.
    #[cold]
    fn start_over(&mut self, env: &mut Env<'_>, twins: &[ConnId], reason: Reason) {
        for &twin in twins {
            if matches!(reason, Reason::Exhausted) {
                self.lose(env, twin, reason);
                continue;
            }
            // Unless the peer is closing in order, which it says there first.
            let mut links = Vec::new();
            self.sock.hear(twin, &mut links);
            self.on_links(env, &mut links);
            if self.sock.conn(twin).is_some() {
                self.lose(env, twin, Reason::Reset);
            }
        }
    }

    /// Takes what an ended connection's ring still holds: a ringful and no more, for whoever goes on writing could hold us.
    fn drain_last(&mut self, env: &mut Env<'_>, conn: ConnId, peer: u32) {
        if let Some(c) = self.sock.conn(conn) {
            c.rx().look_now();
        }
        for _ in 0..SLOTS.div_ceil(BATCH) {
            if self.drain(env, conn, peer, BATCH) < BATCH {
                return;
            }
        }
    }

    /// Stops sending over `conn`, which is no longer among the live ones: over another connection with the peer from now on,
    /// if it holds one. Whether anything was sent over it.
    fn leave_tx(&mut self, conn: ConnId, peer: u32) -> bool {
        let other = self.conns_of(peer).next();
        match self.peers.get_mut(peer as usize) {
            Some(p) if p.tx == Some(conn) => {
                p.reset_connection(self.numbers.next_life());
                p.tx = other;
                true
            }
            _ => false,
        }
    }

    /// The connections with `peer` at whose other end that very process is.
    ///
    /// When both sides connected at once there are two, and the answers to what we sent over one come over the other. Both end
    /// with the peer, and whichever is heard of first must not fail what was answered.
    fn conns_of_process(&mut self, peer: u32, process: Option<(i32, u64)>) -> Vec<ConnId> {
        let mut conns: Vec<ConnId> = self.conns_of(peer).collect();
        conns.retain(|id| self.sock.conn(*id).map(|c| c.peer_process()) == process);
        conns
    }

    /// The second proof of life: the processes we wait for, a few at a time.
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
                || self.peers.get(l.peer as usize).is_some_and(|p| p.busy);
            if waits && self.sock.conn(l.conn).is_some_and(|c| c.is_up() && !c.alive()) {
                self.lose(env, l.conn, Reason::Died);
            }
        }
    }

    /// Before the endpoint goes: answers that wait for room are given a moment, so that no peer waits for them in vain, and
    /// datagrams that are complete here and not fetched are too, for nothing tells the program that they were not. Connections
    /// under way are waited for as well: an injected message that needs one has no completion that could fail.
    ///
    /// Where receives are another provider's nothing more is read: its lock is needed for that, and is not ours to take.
    pub(crate) fn drain_before_close(&mut self, env: &mut Env<'_>) {
        self.deaf = self.draws_from_another(env);
        let mut end = scif::now_ns() + CLOSE_NS;
        let connected = scif::now_ns() + CLOSE_CONNECT_NS.min(crate::env::env().connect_timeout_ns);
        loop {
            let now = scif::now_ns();
            let mut unfinished = !self.deaf && self.ops.kept() > 0;
            for p in self.busy.iter().filter_map(|p| self.peers.get(*p as usize)) {
                unfinished |= p.tx.is_some() && !p.is_idle();
                if p.is_connecting() && !p.pending.is_empty() && now < connected {
                    unfinished = true;
                    end = now + CLOSE_NS;
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
