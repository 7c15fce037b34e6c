// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Polling loop of an endpoint: first rings, then unfinished work, and at intervals connection
//! events and liveness.
//!
//! Not here: active and idle rings (`link_set`), and backpressure (`rx_throttle`).

use scif::trace::{EventKind, TraceEvent};

use crate::engine::channel::link_set::TimedWork;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::{atomic_inline, network_rma, parting, rendezvous, srx};
use crate::engine::recorder::Done;
use crate::engine::tables::pending::FragmentedSend;
use crate::engine::tables::tag_match::PostedRecv;
use crate::engine::tables::unmet::ALIVE_NS;
use crate::engine::{
    connections, dispatch, fast_path, liveness, monitor, peer_sweep, source_watch,
};

/// Processor time in nanoseconds that a closing endpoint waits, since its peers last took
/// something. Replies and datagrams that they have not taken afterwards are lost.
const CLOSE_NS: u64 = 100_000_000;
/// Time in nanoseconds, from when all peers are connected, after which a close ends although they
/// still take something. Other threads of the domain wait meanwhile; the remaining data is lost.
const CLOSE_MAX_NS: u64 = 3_000_000_000;
/// Time in nanoseconds, at most `FI_SCIF_CONNECT_TIMEOUT`, that a closing endpoint waits for
/// connections with pending operations. Operations that are still pending afterwards are lost.
const CLOSE_CONNECT_NS: u64 = 3_000_000_000;

/// Polls the rings and advances all unfinished work. Never blocks.
#[inline]
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>) {
    // Links, then doorbells, then rings: a wake-up or doorbell announces only records that are
    // already in the ring. A thread that sleeps after this poll has seen everything announced
    // before.
    ep.links.polls = ep.links.polls.wrapping_add(1);
    #[cfg(test)]
    let _ = crate::engine::panic_test::strike(ep.cfg.inject_size);
    ep.throttle.more = false;
    if ep.links.is_clock_due(ep.links.polls) {
        housekeeping(ep, env);
    }
    advance(ep, env);
}

/// Polls the rings and advances all unfinished work, after the timed work of a poll.
pub(crate) fn advance(ep: &mut Endpoint, env: &mut Env<'_>) {
    if ep.links.sock.bell().any() {
        ep.links.activate_rung();
    }
    if ep.links.armed {
        ep.links.cancel_poll_delay();
    }
    let (rings, armed) = (ep.links.active.len(), ep.links.armed);
    let most = ep.throttle.budget(rings, armed, || ep.recv.unexpected());
    if most > 0 {
        poll_live(ep, env, most);
    }
    if ep.links.armed {
        ep.links.flush_active();
    }
    if !ep.rndv.is_idle() {
        rendezvous::progress(ep, env);
    }
    if !ep.rma_target.network.is_idle() {
        network_rma::progress(ep, env);
    }
    if !ep.rma_target.done.is_empty() {
        atomic_inline::progress(ep);
    }
    if !ep.peers.busy.is_empty() {
        dispatch::flush_busy(ep, env);
    }
    ep.recv.note_cq(&ep.cfg, env.cqs);
}

/// Handles at most `most` records of each active ring.
#[inline]
fn poll_live(ep: &mut Endpoint, env: &mut Env<'_>, most: usize) {
    let mut at = 0;
    while let Some(live) = ep.links.active.get(at).copied() {
        let ready = ep.links.conn(live.conn).is_some_and(|c| c.rx().ready());
        let taken = if ready {
            fast_path::expect_answer(ep, live);
            connections::drain(ep, env, live.conn, live.peer, most)
        } else {
            0
        };
        if taken > 0 {
            ep.throttle.more |= taken == most;
            if let Some(l) = ep.links.active.get_mut(at).filter(|l| l.conn == live.conn) {
                l.empty = 0;
            }
        } else if ep.links.note_empty_poll(at) {
            continue;
        }
        at += 1;
    }
}

/// Does the timed work that is due. Returns whether the caller must make a full poll.
pub(crate) fn housekeeping(ep: &mut Endpoint, env: &mut Env<'_>) -> bool {
    ep.links.sweep();
    match ep.links.timed_work() {
        TimedWork::All => do_timed_work(ep, env),
        TimedWork::Network => return connections::poll_network(ep, env),
        TimedWork::Nothing => return false,
    }
    true
}

/// Does all timed work: connection events, expired connects, liveness.
fn do_timed_work(ep: &mut Endpoint, env: &mut Env<'_>) {
    connections::end_exhausted(ep, env);
    parting::progress(ep, env);
    let now = scif::now_ns();
    let (before, expecting) = (ep.links.clock_ns(), ep.links.sock.is_expecting(now));
    ep.links.note_clock(now, expecting, ep.peers.has_unreported());
    ep.links.publish_poll(now, ep.stats.rma.ops);
    // Corrects the ages of receives, which the recorder then reads.
    monitor::note_tick(ep, before, now);
    if ep.peers.recorder.is_some() {
        note_tick(ep, before, now);
    }
    if ep.links.are_events_due(now) {
        connections::poll_connections(ep, env);
        liveness::expire_connects(ep, env, now);
        peer_sweep::sweep_peers(ep, env);
    } else if expecting || ep.links.is_look_due(now) {
        connections::poll_network(ep, env);
    }
    if now.saturating_sub(ep.links.last_alive_ns) >= ALIVE_NS {
        ep.links.last_alive_ns = now;
        liveness::check_liveness(ep, env);
        ep.links.unmap_closed();
        source_watch::watch_sources(ep, env, now);
    }
}

/// Notes a reading of the clock in the recorder.
#[cold]
fn note_tick(ep: &mut Endpoint, before: u64, now: u64) {
    let posted = ep.recv.tagged.posted.len() + ep.recv.msg.posted.len();
    let outstanding = posted > 0 || !ep.ops.is_empty() || !ep.peers.busy.is_empty();
    let done =
        Done { polls: ep.links.polls, received: ep.stats.received.ops, sent: ep.stats.sent.ops };
    let Some(recorder) = &mut ep.peers.recorder else { return };
    let Some(times) = recorder.tick((before, now), done, outstanding) else { return };
    for queue in [&ep.recv.tagged, &ep.recv.msg] {
        let since = queue.posted.newest().take_while(|posted| posted.since_ns >= times.start);
        for PostedRecv { src, tag, len, context, .. } in since.filter(|p| p.since_ns < times.end) {
            let id = *context as u64;
            ep.peers.note(*src, || TraceEvent::new(EventKind::RecvFound, *tag, *len, id));
        }
    }
}

/// Limit of the wait at a close. It is counted in processor time of the waiting thread: on a busy
/// host, peers run about as long as this thread while both are runnable. A thread that is stopped
/// loses nothing of it.
#[derive(Debug)]
struct CloseLimit {
    /// Smallest value of [`untaken`] so far, so that requests of peers do not prolong the wait.
    least: usize,
    end: u64,
}

impl CloseLimit {
    fn new(untaken: usize, now: u64) -> CloseLimit {
        CloseLimit { least: untaken, end: now + CLOSE_NS }
    }

    fn restart(&mut self, now: u64) {
        self.end = now + CLOSE_NS;
    }

    fn is_over(&mut self, untaken: usize, now: u64) -> bool {
        if untaken < self.least {
            self.least = untaken;
            self.restart(now);
        }
        now >= self.end
    }
}

/// Returns the processor time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    scif::thread_cpu_ns().1
}

/// Returns a number that decreases whenever a peer takes a part of what a close waits for.
fn untaken(ep: &Endpoint) -> usize {
    let (mut waiting, mut taken) = (ep.ops.kept(), 0);
    for p in ep.peers.busy.iter().map(|p| ep.peers.at(*p)) {
        waiting += p.queue.pending.len() + p.queue.control.len() + p.rma.posted.len();
        for stream in &p.queue.streams {
            match stream {
                FragmentedSend::Message { op, done, .. } if ep.ops.is_kept(*op) => taken += done,
                FragmentedSend::Message { done, want, .. } => waiting += want - done,
                FragmentedSend::Read { bytes, done, .. } => waiting += bytes.len() - done,
            }
        }
    }
    waiting.saturating_sub(taken)
}

/// Waits before the close until pending replies are in the ring, so that no peer waits in vain.
/// Completed datagrams that were not fetched yet are waited for as well, since no error would
/// report their loss. The same holds for connections being made: an injected message has no
/// completion that could fail. A port without an answer is waited for once.
///
/// With receives of a peer provider nothing is read, because that needs the lock of that
/// provider.
pub(crate) fn drain_before_close(ep: &mut Endpoint, env: &mut Env<'_>) {
    ep.recv.unmet.close();
    ep.links.rx_closed = srx::uses_peer_srx(ep, env);
    let mut limit = CloseLimit::new(untaken(ep), cpu_ns());
    let mut begun = scif::now_ns();
    let connected = begun + CLOSE_CONNECT_NS.min(crate::base::env::env().connect_timeout_ns);
    loop {
        let now = scif::now_ns();
        let mut unfinished = !ep.links.rx_closed && ep.ops.kept() > 0;
        for p in ep.peers.busy.iter().map(|p| ep.peers.at(*p)) {
            unfinished |= p.tx.is_some() && !(p.queue.is_idle() && p.rma.posted.is_empty());
            if !p.is_connecting() || p.queue.pending.is_empty() || parting::is_silent(p.id) {
                continue;
            }
            if now < connected {
                unfinished = true;
                begun = now;
                limit.restart(cpu_ns());
            } else {
                parting::note_silent(p.id);
            }
        }
        let is_late = now.saturating_sub(begun) > CLOSE_MAX_NS;
        if !unfinished || is_late || limit.is_over(untaken(ep), cpu_ns()) {
            break;
        }
        progress(ep, env);
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_waits_as_long_as_peers_take_something() {
        let mut limit = CloseLimit::new(3, 0);
        assert!(!limit.is_over(3, CLOSE_NS - 1));
        assert!(!limit.is_over(2, 2 * CLOSE_NS), "a peer has taken something");
        // Requests of peers, and replies to them, do not prolong it.
        for untaken in [4, 3, 2, 3, 2] {
            assert!(!limit.is_over(untaken, 3 * CLOSE_NS - 1));
        }
        assert!(limit.is_over(2, 3 * CLOSE_NS));
        limit.restart(3 * CLOSE_NS);
        assert!(!limit.is_over(2, 4 * CLOSE_NS - 1));
    }
}
