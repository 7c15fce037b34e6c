// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: background connects to the sources of directed receives.

use crate::engine::{connections, source_watch};
use std::time::{Duration, Instant};

use scif::{LinkEvent, Reason};

use super::{Came, Stage};
use crate::engine::tables::unmet::{ALIVE_NS, PAUSE_MAX_NS};

fn poll_for(stage: &Stage, time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        stage.poll();
    }
}

/// Runs a liveness check for sources at a given time, without any other progress. Returns the
/// number of connections afterwards.
fn check_at(stage: &Stage, now_ns: u64) -> usize {
    let mut st = stage.domain.shared.gate.lock();
    let (e, mut env) = crate::domain::calls::split(&mut st, stage.ep).unwrap();
    source_watch::watch_sources(e, &mut env, now_ns);
    e.links.sock.conn_count()
}

fn wants_poll(stage: &Stage) -> bool {
    crate::domain::calls::wants_poll(&stage.domain.shared.gate.lock(), stage.ep)
}

fn is_reset(came: &Came) -> bool {
    matches!(came, Came::Failed(e) if e.err == super::fi::FI_ECONNRESET)
}

#[test]
fn each_living_source_is_connected_to_once() {
    const SOURCES: usize = 40;
    let stage = Stage::new();
    let mut peers: Vec<_> = (0..SOURCES).map(|_| stage.peer()).collect();
    for (_, number) in &peers {
        for context in 0..3 {
            stage.recv(*number, 64, context, 0);
        }
    }
    for (peer, _) in &mut peers {
        peer.event_of(|event| matches!(event, LinkEvent::Accepted(..)));
    }
    poll_for(&stage, Duration::from_millis(100));
    assert_eq!(stage.with(|e| e.links.sock.conn_count()), SOURCES);
    assert!(stage.came().is_none(), "a receive ended");
    let (last, _) = peers.pop().unwrap();
    last.sock.abandon();
    for _ in 0..3 {
        let came = stage.until(|| stage.came());
        assert!(is_reset(&came), "{came:?}");
    }
    poll_for(&stage, Duration::from_millis(100));
    assert!(stage.came().is_none(), "a receive from a living peer ended");
}

#[test]
fn of_two_endpoints_the_one_with_the_lower_port_connects_first() {
    // Dynamic ports are higher than 61 to 64.
    for (ours, theirs, first) in [(61, 0, 1), (0, 62, 0), (63, 64, 1)] {
        let stage = Stage::on(ours, |_| {});
        let (_peer, number) = stage.peer_on(theirs);
        stage.recv(number, 64, 1, 0);
        let begin = scif::now_ns();
        assert_eq!(check_at(&stage, begin), first, "{ours} {theirs}");
        assert_eq!(check_at(&stage, begin + ALIVE_NS), 1, "{ours} {theirs}");
    }
}

#[test]
fn a_thread_polls_until_each_source_was_tried_once() {
    let stage = Stage::new();
    let (peer, number) = stage.peer_on(65);
    drop(peer);
    assert!(!wants_poll(&stage));
    stage.recv(number, 64, 1, 0);
    assert!(wants_poll(&stage), "a sleep would delay the attempt");
    let begin = scif::now_ns();
    check_at(&stage, begin);
    check_at(&stage, begin + ALIVE_NS);
    assert!(!wants_poll(&stage), "it was refused, and nothing is to be done");
    let (peer, number) = stage.peer_on(66);
    drop(peer);
    stage.recv(number, 64, 2, 0);
    for context in [1, 2] {
        crate::domain::triggered::cancel_operation(
            &mut stage.domain.shared.gate.lock(),
            stage.ep,
            context,
        )
        .unwrap();
    }
    check_at(&stage, begin + 2 * ALIVE_NS);
    assert!(!wants_poll(&stage), "there is no receive");
}

#[test]
fn refusing_source_is_tried_rarely_and_fails_no_receive() {
    for reason in [Reason::Denied, Reason::Refused(scif::Refusal::Resources)] {
        let stage = Stage::new();
        let (_peer, number) = stage.peer();
        stage.recv(number, 64, 1, 0);
        let begin = scif::now_ns();
        let mut attempts = 0;
        for check in 0..2000 {
            if check_at(&stage, begin + check * ALIVE_NS) == 0 {
                continue;
            }
            attempts += 1;
            let mut st = stage.domain.shared.gate.lock();
            let (e, mut env) = crate::domain::calls::split(&mut st, stage.ep).unwrap();
            let conn = e.links.active.first().unwrap().conn;
            connections::on_conn_lost(e, &mut env, conn, reason);
        }
        // 8 while the pause grows to a second, then one each second of these 10.
        assert!((8..=18).contains(&attempts), "{attempts} attempts in 10 s");
        assert!(stage.came().is_none(), "the receive ended");
    }
}

#[test]
fn unstarted_source_is_tried_rarely_and_fails_no_receive() {
    let stage = Stage::new();
    let (peer, number) = stage.peer_on(71);
    let id = peer.sock.id();
    drop(peer);
    stage.recv(number, 64, 1, 0);
    let pause = || stage.with(|e| e.recv.unmet.longest_pause());
    stage.until(|| (pause() == PAUSE_MAX_NS).then_some(()));
    let (waited, dead) = stage.with(|e| {
        let p = e.peers.iter().find(|p| p.id == id).unwrap();
        (p.state.failing_for(u64::MAX) > 0, p.state.has_failed())
    });
    assert!(!waited, "the time limit of a later send runs already");
    assert!(!dead && stage.came().is_none(), "a peer that never was counts as dead");
    // It starts.
    let (mut peer, _) = stage.peer_on(id.port);
    peer.event_of(|event| matches!(event, LinkEvent::Accepted(..)));
    assert!(stage.came().is_none());
}

#[test]
fn reached_source_is_dead_after_refusals() {
    let stage = Stage::new();
    let (peer, number) = stage.peer_on(72);
    let id = peer.sock.id();
    drop(peer);
    stage.recv(number, 64, 1, 0);
    stage.with(|e| {
        let peer = e.peers.at_port(id).unwrap();
        e.peers.at_mut(peer).state.on_up();
    });
    let came = stage.until(|| stage.came());
    assert!(is_reset(&came), "{came:?}");
}

#[test]
fn end_of_a_peer_that_is_no_source_does_not_prevent_sleep() {
    let stage = Stage::new();
    let (absent, number) = stage.peer_on(73);
    drop(absent);
    stage.recv(number, 64, 1, 0);
    let begin = scif::now_ns();
    check_at(&stage, begin);
    check_at(&stage, begin + ALIVE_NS);
    let (mut other, _) = stage.peer();
    let conn = other.connect();
    other.check_service(conn);
    other.sock.abandon();
    stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
    assert!(!wants_poll(&stage), "the only source was tried");
}

#[test]
fn a_closing_endpoint_makes_no_connection() {
    let stage = Stage::new();
    let (_peer, number) = stage.peer();
    stage.recv(number, 64, 1, 0);
    stage.with(|e| e.recv.unmet.close());
    let begin = scif::now_ns();
    check_at(&stage, begin);
    assert_eq!(check_at(&stage, begin + ALIVE_NS), 0);
}
