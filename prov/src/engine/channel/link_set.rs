// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections of an endpoint and their rings, active or idle.
//!
//! Every poll reads the active rings. A ring that stays empty long enough becomes idle: its peer
//! rings the doorbell of the endpoint after the next record. A periodic sweep also polls one idle
//! ring at a time, so that a lost doorbell delays a message but never loses it.
//!
//! Not here: the records in the rings (`progress`), and the end of a connection (`progress`,
//! `parting`).

use std::ops::Range;

use scif::{CloseHow, ConnId, Connection, Endpoint, LinkEvent};
use scif_ring::BELL_BITS;
use scif_ring::copy::ticks;

use crate::base::errno::Errno;
use crate::engine::types::peer_id::PeerId;

/// Distance of polls in nanoseconds from which each one may read the clock: the cost of that is
/// small beside the distance.
const RARE_POLL_NS: u64 = 1000;
/// Bounds in nanoseconds of the interval between polls of the sockets, which doubles with each one
/// that finds nothing. A longer one delays accepts and connection ends. A shorter one costs a
/// program that always polls a system call as often: 5 % of its time for 1 us every 20 us.
const EVENTS_NS: Range<u64> = 20_000..160_000;
/// Time in nanoseconds between two looks at the network while no message is expected. A longer one
/// delays the first message after a pause, a shorter one those of this host, by 0.4 us for each
/// look.
const LOOK_NS: u64 = 10_000;
/// Empty polls of a ring after which its consumed counter is published. A larger number delays
/// fences of the peer.
const FLUSH_AFTER: u32 = 64;
/// Empty polls after which a ring becomes idle while more than `ACTIVE_ALWAYS` rings are active. A
/// smaller number costs more doorbells.
const IDLE_AFTER_POLLS: u32 = 1024;
/// Empty polls after which a ring becomes idle while few rings are active and others are idle.
const IDLE_AFTER_POLLS_LONG: u32 = 65_536;
/// Largest number of active rings that counts as few: polling them costs less than reactivation.
pub(crate) const ACTIVE_ALWAYS: usize = 8;
/// Polls between two sweep steps, each of which polls one idle ring; a multiple of
/// `TICK_POLLS_CLOSE`. Applies until every idle ring was polled once since the last one became
/// idle. The peer of that ring may have published a record before it saw the idle flag.
pub(crate) const SWEEP_EVERY: u32 = 64;
/// Polls between two sweep steps otherwise. They are rare, since the polled line is seldom in the
/// cache. If a malicious peer has erased a doorbell bit, its record is found after up to this many
/// polls for each idle ring.
pub(crate) const SWEEP_SLOW: u32 = 1024;
/// Polls between two readings of the clock, and thus the delay of all timed work.
pub(crate) const TICK_POLLS: u32 = 8;
/// Polls between two readings of the clock while polls follow each other closely. With fewer, an
/// empty poll is dearer by more of the cost of the clock.
const TICK_POLLS_CLOSE: u32 = 64;
/// Ticks between two rounds of timed work while a message of another host is expected, some 10 us.
/// A longer one delays timed work, a shorter one delays looks at the network by the work.
const ROUND_TICKS: u64 = 25_000;
/// Ticks between two looks at the network while a peer of this host talks: some 1 us. A longer one
/// delays messages of other hosts, a shorter one those of this host, by 0.3 us for each look.
const LOOK_TICKS: u64 = 2_500;
/// Number of polls without a record after which a peer of this host no longer talks. A larger one
/// delays messages of other hosts, a smaller one those of this host.
const TALK_POLLS: u32 = 64;
/// Nanoseconds from one poll to the next up to which polls follow each other closely. With more,
/// connection events are late by some more microseconds.
const CLOSE_POLL_NS: u64 = 125;

/// Connection in the list of active or idle rings, with its number of empty polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) conn: ConnId,
    pub(crate) peer: PeerId,
    pub(crate) empty: u32,
    /// Whether the peer is on another host.
    pub(crate) is_far: bool,
}

/// Work of a poll at which the clock is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedWork {
    /// All timed work.
    All,
    /// A look at the network.
    Network,
    /// No work: the last look was just now, and a peer of this host talks.
    Nothing,
}

/// Result of a repeated poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// There is still nothing to do.
    Silent,
    /// The active ring at this index may hold a record.
    Ready(usize),
    /// Other work is due.
    Other,
}

/// Connection that has ended and is not closed yet.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) conn: ConnId,
    pub(crate) peer: PeerId,
    pub(crate) how: CloseHow,
    /// Messages announced over the connection, and the error they end with.
    pub(crate) ops: Vec<u64>,
    pub(crate) err: Errno,
}

/// Readings of the clock by polls.
#[derive(Debug)]
struct ClockPace {
    /// Polls between two readings, a power of two.
    every: u32,
    /// Time of the last one in nanoseconds.
    last_ns: u64,
    /// Time of the last one in ticks.
    last_ticks: u64,
    /// Whether a message of another host is expected.
    is_expecting: bool,
    /// Time of the last look at the network in ticks.
    looked_ticks: u64,
    /// Number of RMA operations of the endpoint at the last published poll.
    rma_ops: u64,
}

/// Answers to records of other hosts that are in the rings, and not sent. So the answers to all
/// records of a batch are one message of the network.
#[derive(Debug, Default)]
struct Answers {
    /// Whether a batch of records is handled.
    are_collected: bool,
    conns: Vec<ConnId>,
}

/// Polls of the sockets.
#[derive(Debug)]
struct SocketPace {
    /// Time of the last one in nanoseconds.
    last_ns: u64,
    /// Nanoseconds from the last one to the next.
    every_ns: u64,
    /// Time of the last look at the network without an expected message, in nanoseconds.
    looked_ns: u64,
    /// Whether endpoints of the domain that nobody polls may have to send to other hosts.
    is_relay_due: bool,
}

/// Connections of one endpoint, and the state of their polling.
pub(crate) struct LinkSet {
    pub(crate) sock: Endpoint,
    pub(crate) active: Vec<Link>,
    /// Idle rings, and the index of the one that the last sweep step polled.
    pub(crate) idle: Vec<Link>,
    idle_next: usize,
    /// Sweep steps left until every idle ring has been polled since the last ring became idle.
    pub(crate) sweep_left: usize,
    /// Connections that have ended and are not closed yet.
    pub(crate) parting: Vec<Parting>,
    /// Whether the endpoint is closing and reads its rings no more.
    pub(crate) rx_closed: bool,
    /// Whether a thread sleeps on this endpoint or is about to.
    pub(crate) armed: bool,
    /// Connection events to handle. Between polls only ends that wait for progress remain.
    pub(crate) events: Vec<LinkEvent>,
    /// Number of polls, wrapping.
    pub(crate) polls: u32,
    clock: ClockPace,
    sockets: SocketPace,
    pub(crate) last_alive_ns: u64,
    alive_next: usize,
    /// Connections with mapped shared memory of their peers, each once.
    mapping: Vec<ConnId>,
    answers: Answers,
}

impl LinkSet {
    pub(crate) fn new(sock: Endpoint) -> LinkSet {
        LinkSet {
            sock,
            active: Vec::new(),
            idle: Vec::new(),
            idle_next: 0,
            sweep_left: 0,
            parting: Vec::new(),
            rx_closed: false,
            armed: false,
            events: Vec::new(),
            polls: 0,
            clock: ClockPace {
                every: 1,
                last_ns: 0,
                last_ticks: 0,
                is_expecting: false,
                looked_ticks: 0,
                rma_ops: 0,
            },
            sockets: SocketPace {
                last_ns: 0,
                every_ns: EVENTS_NS.start,
                looked_ns: 0,
                is_relay_due: false,
            },
            last_alive_ns: 0,
            alive_next: 0,
            mapping: Vec::new(),
            answers: Answers::default(),
        }
    }

    /// Returns a connection. The calls have refused a forked child before they get here.
    #[inline(always)]
    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.sock.conn_here(id)
    }

    /// Whether the poll with number `poll` reads the clock and does the timed work.
    #[inline(always)]
    pub(crate) fn is_clock_due(&self, poll: u32) -> bool {
        poll & (self.clock.every - 1) == 0
    }

    /// Returns the time in nanoseconds of the last reading of the clock, 0 before the first.
    #[inline(always)]
    pub(crate) fn clock_ns(&self) -> u64 {
        self.clock.last_ns
    }

    /// Returns the time in ticks of the last reading of the clock, 0 before the first.
    #[inline(always)]
    pub(crate) fn clock_ticks(&self) -> u64 {
        self.clock.last_ticks
    }

    /// Notes a reading of the clock, and decides how many polls follow before the next one: none
    /// while a message of another host is `expected`, since a poll of the links finds it. None
    /// either between rare polls while something is `pending` that only full polls advance.
    pub(crate) fn note_clock(&mut self, now: u64, expected: bool, pending: bool) {
        let since = now.saturating_sub(std::mem::replace(&mut self.clock.last_ns, now));
        self.clock.last_ticks = ticks();
        self.clock.is_expecting = expected;
        let is_close = since <= u64::from(self.clock.every) * CLOSE_POLL_NS;
        let is_rare = since > u64::from(self.clock.every) * RARE_POLL_NS;
        self.clock.every = match (expected, is_close) {
            (true, _) => 1,
            (false, true) => TICK_POLLS_CLOSE,
            (false, false) if pending && is_rare => 1,
            (false, false) => TICK_POLLS,
        };
    }

    /// Returns the work of a poll at which the clock is due, and notes that it is done.
    pub(crate) fn timed_work(&mut self) -> TimedWork {
        let clock = &mut self.clock;
        let now = ticks();
        // Without a counter, the time since the last round is unknown.
        if !clock.is_expecting
            || self.armed
            || now == 0
            || now.wrapping_sub(clock.last_ticks) >= ROUND_TICKS
        {
            return TimedWork::All;
        }
        if now.wrapping_sub(clock.looked_ticks) < LOOK_TICKS
            && self.active.iter().any(|link| !link.is_far && link.empty < TALK_POLLS)
        {
            return TimedWork::Nothing;
        }
        clock.looked_ticks = now;
        TimedWork::Network
    }

    /// Publishes the time of a poll. `rma_ops`: number of RMA operations of the endpoint so far.
    #[inline]
    pub(crate) fn publish_poll(&mut self, now_ns: u64, rma_ops: u64) {
        let before = std::mem::replace(&mut self.clock.rma_ops, rma_ops);
        self.sock.bell().set_polled(now_ns, before != rma_ops);
    }

    /// Whether the sockets are to be polled at `now`. If so, notes that they are.
    pub(crate) fn are_events_due(&mut self, now: u64) -> bool {
        let is_due = now.saturating_sub(self.sockets.last_ns) >= self.sockets.every_ns;
        if is_due {
            self.sockets.last_ns = now;
            self.sockets.is_relay_due = self.sock.network_name().is_some();
        }
        is_due
    }

    /// Whether to look at the network although no message is expected. If so, notes that the caller
    /// does.
    pub(crate) fn is_look_due(&mut self, now: u64) -> bool {
        let since = now.saturating_sub(self.sockets.looked_ns);
        let is_due = since >= LOOK_NS && self.sock.network_name().is_some();
        if is_due {
            self.sockets.looked_ns = now;
        }
        is_due
    }

    /// Whether other endpoints of the domain are to send to other hosts, since the sockets were
    /// polled. Notes that they do.
    pub(crate) fn take_relay_due(&mut self) -> bool {
        std::mem::take(&mut self.sockets.is_relay_due)
    }

    /// Notes the result of a poll of the sockets, which decides when the next one is due.
    pub(crate) fn note_events(&mut self, is_active: bool) {
        let longer = (self.sockets.every_ns * 2).min(EVENTS_NS.end);
        self.sockets.every_ns = if is_active { EVENTS_NS.start } else { longer };
    }

    /// Makes the next reading of the clock poll the sockets.
    pub(crate) fn expect_events(&mut self) {
        self.sockets.last_ns = 0;
    }

    /// Adds a connection with `peer`, whose ring is active.
    pub(crate) fn add(&mut self, conn: ConnId, peer: PeerId) {
        let is_far = self.conn(conn).is_some_and(|c| c.peer().place != 0);
        self.active.push(Link { conn, peer, empty: 0, is_far });
    }

    /// Removes a connection from its list. Returns its peer, or `None` if it is in none.
    pub(crate) fn remove(&mut self, conn: ConnId) -> Option<PeerId> {
        let is_it = |link: &Link| link.conn == conn;
        if let Some(at) = self.active.iter().position(is_it) {
            return Some(self.active.swap_remove(at).peer);
        }
        let at = self.idle.iter().position(is_it)?;
        Some(self.remove_idle(at).peer)
    }

    /// Returns the number of connections in the lists.
    pub(crate) fn len(&self) -> usize {
        self.active.len() + self.idle.len()
    }

    /// Returns the connections in the lists.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.active.iter().chain(&self.idle)
    }

    /// Returns the connections with `peer`.
    pub(crate) fn conns_of(&self, peer: PeerId) -> impl Iterator<Item = ConnId> {
        self.iter().filter(move |l| l.peer == peer).map(|l| l.conn)
    }

    /// Returns the peer of a connection in the lists.
    pub(crate) fn peer_of(&self, conn: ConnId) -> Option<PeerId> {
        self.iter().find(|l| l.conn == conn).map(|l| l.peer)
    }

    /// Returns the connections with `peer` whose other end is process `of`.
    ///
    /// After a simultaneous open there are two, and replies to requests over one arrive over the
    /// other. Both end with the peer. The end that is seen first must not fail operations that were
    /// answered.
    pub(crate) fn conns_of_process(&mut self, peer: PeerId, of: Option<(i32, u64)>) -> Vec<ConnId> {
        let mut conns: Vec<ConnId> = self.conns_of(peer).collect();
        conns.retain(|id| self.sock.conn(*id).map(|c| c.peer_process()) == of);
        conns
    }

    /// Returns the connections whose live peers are accessing key slot `slot`.
    pub(crate) fn conns_accessing(&mut self, slot: u32) -> impl Iterator<Item = ConnId> {
        let conns: Vec<ConnId> = self.iter().map(|l| l.conn).collect();
        conns.into_iter().filter(move |id| {
            self.sock.conn(*id).is_some_and(|c| c.peer_mark().get() == Some(slot) && c.alive())
        })
    }

    /// Returns the next connection whose liveness is checked, in turn.
    pub(crate) fn next_to_check(&mut self) -> Option<Link> {
        self.alive_next = (self.alive_next + 1) % self.len().max(1);
        let at = self.alive_next;
        let idle = || self.idle.get(at - self.active.len());
        self.active.get(at).or_else(idle).copied()
    }

    /// Begins a batch of records, whose answers are collected.
    #[inline(always)]
    pub(crate) fn collect_answers(&mut self) {
        self.answers.are_collected = true;
    }

    /// Makes the peer of `conn` poll its ring, which has an answer; a peer on another host at the
    /// end of the batch.
    #[inline]
    pub(crate) fn notify_of_answer(&mut self, conn: ConnId) {
        let LinkSet { sock, answers, .. } = self;
        let Some(c) = sock.conn_here(conn) else { return };
        if !answers.are_collected || c.peer().place == 0 {
            c.notify();
        } else if answers.conns.last() != Some(&conn) {
            answers.conns.push(conn);
        }
    }

    /// Ends a batch of records, and sends the answers.
    #[inline(always)]
    pub(crate) fn end_answers(&mut self) {
        self.answers.are_collected = false;
        if !self.answers.conns.is_empty() {
            self.send_answers();
        }
    }

    #[inline(never)]
    fn send_answers(&mut self) {
        while let Some(conn) = self.answers.conns.pop() {
            if let Some(c) = self.conn(conn) {
                c.notify();
            }
        }
    }

    /// Notes that shared memory of the peer of `conn` was mapped.
    pub(crate) fn note_mapping(&mut self, conn: ConnId) {
        if !self.mapping.contains(&conn) {
            self.mapping.push(conn);
        }
    }

    /// Returns the number of connections with mapped shared memory of their peers.
    #[cfg(test)]
    pub(crate) fn mapping_count(&self) -> usize {
        self.mapping.len()
    }

    /// Unmaps shared memory of peers whose keys were closed.
    pub(crate) fn unmap_closed(&mut self) {
        let LinkSet { mapping, sock, .. } = self;
        mapping.retain(|conn| sock.conn(*conn).is_some_and(Connection::unmap_closed));
    }

    /// Whether `conn` has ended and waits for its peer.
    pub(crate) fn is_parting(&self, conn: ConnId) -> bool {
        self.parting.iter().any(|p| p.conn == conn)
    }

    /// Cancels the poll delay of the active rings, before a sleep or after a wake-up.
    #[cold]
    pub(crate) fn cancel_poll_delay(&mut self) {
        for link in &self.active {
            if let Some(c) = self.sock.conn(link.conn) {
                c.rx().cancel_poll_delay();
            }
        }
    }

    /// Returns the connection of active ring `at` if the ring may hold a record. Counts an empty
    /// poll otherwise. The first poll after a record always returns it, since more may follow.
    #[inline(always)]
    pub(crate) fn poll_ready(&mut self, at: usize) -> Option<Link> {
        let LinkSet { active, sock, .. } = self;
        let link = active.get_mut(at)?;
        if link.empty == 0 || sock.conn_here(link.conn).is_some_and(|c| c.rx().ready()) {
            return Some(*link);
        }
        link.empty = link.empty.saturating_add(1);
        None
    }

    /// Whether the last full poll has handled records of other hosts.
    pub(crate) fn has_far_records(&self) -> bool {
        self.active.iter().any(|link| link.is_far && link.empty == 0)
    }

    /// Repeats a poll of the active rings and of the doorbell that found nothing.
    #[inline(always)]
    pub(crate) fn poll_again(&mut self) -> Repeated {
        let LinkSet { active, sock, polls, clock, .. } = self;
        let poll = polls.wrapping_add(1);
        if poll & (clock.every - 1) == 0 || sock.bell().any() {
            return Repeated::Other;
        }
        for (at, link) in active.iter_mut().enumerate() {
            match sock.conn_here(link.conn).and_then(|c| c.rx().ready_again()) {
                // A number of 0 after an overflow causes one full poll of the ring.
                Some(false) => link.empty = link.empty.wrapping_add(1),
                Some(true) => {
                    *polls = poll;
                    return Repeated::Ready(at);
                }
                None => return Repeated::Other,
            }
        }
        *polls = poll;
        Repeated::Silent
    }

    /// Publishes the consumed counters before a sleep, since the polls that would publish them may
    /// not come. Fences of peers, and RMA in message order, wait for these counters.
    #[cold]
    pub(crate) fn flush_active(&mut self) {
        for link in &self.active {
            if let Some(c) = self.sock.conn(link.conn) {
                c.rx().flush();
            }
        }
    }

    /// Counts an empty poll of active ring `at`. Returns true if the ring became idle and another
    /// ring took its index.
    #[inline]
    pub(crate) fn note_empty_poll(&mut self, at: usize) -> bool {
        // With many peers, only the rings of active senders should be polled.
        let idle_after = match self.active.len() {
            0 | 1 => None,
            few if few <= ACTIVE_ALWAYS => (!self.idle.is_empty()).then_some(IDLE_AFTER_POLLS_LONG),
            _ => Some(IDLE_AFTER_POLLS),
        };
        let Some(link) = self.active.get_mut(at) else {
            return false;
        };
        link.empty = link.empty.saturating_add(1);
        if link.empty >= FLUSH_AFTER {
            if let Some(c) = self.sock.conn(link.conn) {
                c.rx().flush();
            }
        }
        if idle_after.is_none_or(|after| link.empty < after) {
            return false;
        }
        let Some(c) = self.sock.conn(link.conn) else {
            return false;
        };
        c.rx().set_idle(true);
        if !matches!(c.rx().peek(), Ok(None)) {
            c.rx().set_idle(false);
            link.empty = 0;
            return false;
        }
        let link = self.active.swap_remove(at);
        self.idle.push(link);
        self.sweep_left = self.idle.len();
        true
    }

    /// Activates the idle rings whose doorbell bits are set.
    #[cold]
    pub(crate) fn activate_rung(&mut self) {
        let mut words = [0_u64; BELL_BITS / 64];
        self.sock.bell().take(|bit| {
            if let Some(word) = words.get_mut(bit / 64) {
                *word |= 1 << (bit % 64);
            }
        });
        let is_rung = |conn: ConnId| {
            let bit = conn.index as usize % BELL_BITS;
            words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
        };
        let mut at = 0;
        while let Some(idle) = self.idle.get(at).copied() {
            if is_rung(idle.conn) {
                self.activate(at);
            } else {
                at += 1;
            }
        }
    }

    fn remove_idle(&mut self, at: usize) -> Link {
        let taken = self.idle.swap_remove(at);
        if self.sweep_left > 0 {
            // The last ring has moved to index `at`.
            self.sweep_left = self.idle.len();
        }
        taken
    }

    /// Activates the idle ring at index `at`.
    fn activate(&mut self, at: usize) {
        let mut link = self.remove_idle(at);
        link.empty = 0;
        if let Some(c) = self.sock.conn(link.conn) {
            c.rx().set_idle(false);
        }
        self.active.push(link);
    }

    /// Whether the idle ring at index `at` holds no record.
    fn is_quiet(&mut self, at: usize) -> bool {
        let conn = self.idle.get(at).and_then(|link| self.sock.conn(link.conn));
        conn.is_some_and(|c| matches!(c.rx().peek(), Ok(None)))
    }

    /// Polls the next idle ring, in turn, if a sweep step is due.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        let every = if self.sweep_left > 0 { SWEEP_EVERY } else { SWEEP_SLOW };
        if self.polls % every == 0 {
            self.sweep_step();
        }
    }

    fn sweep_step(&mut self) {
        self.sweep_left = self.sweep_left.saturating_sub(1);
        if self.idle.is_empty() {
            return;
        }
        self.idle_next = (self.idle_next + 1) % self.idle.len();
        if !self.is_quiet(self.idle_next) {
            self.activate(self.idle_next);
        }
    }

    /// Activates every idle ring that holds a record.
    pub(crate) fn activate_all(&mut self) {
        let mut at = 0;
        while at < self.idle.len() {
            if self.is_quiet(at) {
                at += 1;
            } else {
                self.activate(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, connect};

    #[test]
    fn polls_of_the_sockets_become_rarer_until_one_finds_something() {
        let links = &mut Bed::new(|_| {}).ep.links;
        let mut now = 1 << 40;
        let mut next = |links: &mut LinkSet, is_active| {
            assert!(links.are_events_due(now));
            links.note_events(is_active);
            let since = now;
            while !links.are_events_due(now) {
                now += 1000;
            }
            links.expect_events();
            now - since
        };
        links.note_events(true);
        assert_eq!(
            [(); 5].map(|()| next(links, false)),
            [40_000, 80_000, 160_000, 160_000, 160_000]
        );
        assert_eq!(next(links, true), 20_000);
        assert!(links.are_events_due(now), "expected");
    }

    #[test]
    fn rare_polls_read_the_clock_each_time_while_work_is_pending() {
        let links = &mut Bed::new(|_| {}).ep.links;
        let mut now = 1 << 40;
        let mut every = |links: &mut LinkSet, poll_ns: u64, pending| {
            for _ in 0..2 {
                now += u64::from(links.clock.every) * poll_ns;
                links.note_clock(now, false, pending);
            }
            links.clock.every
        };
        assert_eq!(every(links, 20, true), TICK_POLLS_CLOSE);
        assert_eq!(every(links, 500, true), TICK_POLLS);
        assert_eq!(every(links, 5000, false), TICK_POLLS);
        assert_eq!(every(links, 5000, true), 1);
        assert_eq!(every(links, 20, true), TICK_POLLS_CLOSE);
    }

    #[test]
    fn polls_look_at_the_network_between_rounds_of_timed_work() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let links = &mut pair[0].ep.links;
        let now = scif::now_ns();
        links.note_clock(now, false, false);
        assert_eq!(links.timed_work(), TimedWork::All, "nothing is expected");
        links.note_clock(now, true, false);
        assert_eq!(links.clock.every, 1);
        for link in &mut links.active {
            link.empty = TALK_POLLS;
        }
        let looks = (0..).take_while(|_| links.timed_work() == TimedWork::Network).count();
        assert!(looks > 0, "the first round is just over");
        assert_eq!(links.timed_work(), TimedWork::All, "due until the clock is read");
        links.active[0].empty = 0;
        // Other work of this machine may interrupt the test.
        let is_spared = (0..1000).any(|_| {
            links.note_clock(now, true, false);
            let first = links.timed_work();
            first == TimedWork::Network && links.timed_work() == TimedWork::Nothing
        });
        assert!(is_spared, "a peer of this host talks");
        links.active[0].is_far = true;
        let looks_each_time = (0..1000).any(|_| {
            links.note_clock(now, true, false);
            [links.timed_work(), links.timed_work()] == [TimedWork::Network; 2]
        });
        assert!(looks_each_time, "no peer of this host talks");
        links.armed = true;
        assert_eq!(links.timed_work(), TimedWork::All, "before a sleep");
    }

    #[test]
    fn answers_to_peers_of_this_host_are_not_collected() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let links = &mut pair[0].ep.links;
        let conn = links.active[0].conn;
        links.collect_answers();
        links.notify_of_answer(conn);
        assert!(links.answers.are_collected && links.answers.conns.is_empty());
        links.answers.conns.push(conn);
        links.end_answers();
        assert!(!links.answers.are_collected && links.answers.conns.is_empty());
    }

    #[test]
    fn an_endpoint_without_a_network_never_looks_at_one() {
        let mut pair = Bed::pair();
        assert!(!pair[0].ep.links.is_look_due(u64::MAX));
    }
}
