// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: peers that send messages without receives, and the memory of these messages.

use crate::engine::peers::peer_conn;
use crate::engine::protocols::eviction;
use scif_ring::AtomicCounter;

use super::*;
use crate::domain::calls::split;
use crate::engine::tables::unexpected::{DEAD_MAX, ENTRY_BYTES};

const MAX: u64 = 4 << 20;
const LEN: usize = 16 << 10;
const COST: u64 = LEN as u64 + ENTRY_BYTES;

fn limited() -> Stage {
    let stage = Stage::new();
    stage.with(|e| {
        e.recv.limits.max = MAX;
        e.recv.limits.process = Box::leak(Box::new(AtomicCounter::new(0)));
    });
    stage
}

/// Returns the bytes that the endpoint keeps.
fn kept(stage: &Stage) -> u64 {
    stage.with(|e| e.recv.limits.process.get())
}

impl RawPeer<'_> {
    /// Sends messages without a receive until they occupy `bytes` at the victim.
    fn flood(&mut self, conn: ConnId, bytes: u64) {
        let before = kept(self.stage);
        for _ in 0..bytes.div_ceil(COST) {
            self.send_msg(conn, wire::EAGER, &[], &[7; LEN]);
        }
        let stage = self.stage;
        stage.until(|| (kept(stage) >= before + bytes).then_some(()));
    }

    /// Sends messages without a receive until the connection ends.
    fn flood_until_reset(&mut self, conn: ConnId) {
        let mut events = Vec::new();
        for _ in 0..2 * MAX / COST {
            if !self.sock.conn(conn).is_some_and(|c| c.is_up()) {
                break;
            }
            self.try_send_msg(conn, wire::EAGER, &[], &[7; LEN]);
            self.stage.poll();
            self.sock.poll_links(&mut events);
        }
        if events.is_empty() {
            events.push(self.event());
        }
        assert_eq!(events, [LinkEvent::Closed(conn, Reason::Reset)]);
    }
}

#[test]
fn a_peer_is_reset_at_the_limit_of_its_unexpected_messages() {
    let stage = limited();
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    let (mut bad, number) = stage.peer();
    let conn = bad.connect();
    // An announced message that the peer never fetches.
    stage.send(number, 100_000);
    bad.flood(conn, MAX / 4);
    honest.flood(good, COST);
    bad.flood_until_reset(conn);
    let came = stage.until(|| stage.came());
    assert!(matches!(&came, Came::Failed(e) if e.err == fi::FI_ENOMEM), "{came:?}");
    assert_eq!(kept(&stage), COST, "what it left is given back, and no more");
    stage.recv(fi::FI_ADDR_UNSPEC, LEN, 1, 0);
    assert!(matches!(stage.came(), Some(Came::Done(c)) if c.len == LEN));
    assert_eq!(kept(&stage), 0);
    honest.check_service(good);
}

#[test]
fn peer_with_the_most_bytes_is_evicted() {
    let stage = limited();
    let (mut first, mut second, mut third) = (stage.peer().0, stage.peer().0, stage.peer().0);
    let conns = [first.connect(), second.connect(), third.connect()];
    first.flood(conns[0], MAX * 3 / 8);
    second.flood(conns[1], MAX * 15 / 32);
    // A peer below its share is not reset, however much the others hold.
    third.flood(conns[2], MAX / 8);
    third.send_msg(conns[2], wire::EAGER, &[], &[7; LEN]);
    for _ in 0..MAX / 4 / COST {
        third.send_msg(conns[2], wire::EAGER, &[], &[7; LEN]);
    }
    assert_eq!(second.event(), LinkEvent::Closed(conns[1], Reason::Reset));
    assert!(kept(&stage) <= MAX);
    assert_eq!(stage.with(|e| e.links.sock.conn_count()), 2);
}

#[test]
fn messages_of_dead_peers_stay_receivable_within_a_bound() {
    let stage = limited();
    let mut left = 0;
    for _ in 0..40 {
        let (mut peer, _) = stage.peer();
        let conn = peer.connect();
        peer.flood(conn, DEAD_MAX / 10);
        left += DEAD_MAX / 10;
        peer.sock.abandon();
        stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
        assert!(kept(&stage) <= DEAD_MAX);
    }
    assert!(left > 3 * DEAD_MAX && kept(&stage) > DEAD_MAX / 2);
    // The messages of the last peer are present.
    stage.recv(fi::FI_ADDR_UNSPEC, LEN, 1, 0);
    assert!(matches!(stage.came(), Some(Came::Done(c)) if c.len == LEN));
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    let before = kept(&stage);
    peer.flood(conn, DEAD_MAX + COST);
    peer.sock.abandon();
    stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
    assert_eq!(kept(&stage), before, "more than the bound goes at once");
}

#[test]
fn messages_of_a_restarted_peer_stay() {
    let stage = limited();
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    peer.flood(conn, DEAD_MAX + COST);
    let before = kept(&stage);
    // The end of the earlier incarnation is reported now. All peers are in one process, so the test
    // calls the handler.
    let id = peer.sock.id();
    let mut st = stage.domain.shared.gate.lock();
    let (e, mut env) = split(&mut st, stage.ep).unwrap();
    let number = peer_conn::peer_at(e, id);
    eviction::on_conn_lost(e, &mut env, number, true);
    drop(st);
    assert_eq!(kept(&stage), before, "they are of its next life");
    stage.recv(fi::FI_ADDR_UNSPEC, LEN, 1, 0);
    assert!(matches!(stage.came(), Some(Came::Done(c)) if c.len == LEN));
    // The messages exceed the limit once this incarnation ends too.
    peer.sock.abandon();
    stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
    assert_eq!(kept(&stage), 0);
}

#[test]
fn messages_of_closed_peers_are_evicted_when_memory_is_needed() {
    let stage = limited();
    for _ in 0..3 {
        let (mut peer, _) = stage.peer();
        let conn = peer.connect();
        peer.flood(conn, MAX * 3 / 10);
        peer.sock.close_conn(conn, scif::CloseHow::Orderly);
        stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
    }
    assert!(kept(&stage) > MAX * 8 / 10);
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    for _ in 0..MAX * 4 / 10 / COST {
        honest.send_msg(good, wire::EAGER, &[], &[7; LEN]);
    }
    stage.poll();
    assert!(kept(&stage) <= MAX);
    assert_eq!(stage.with(|e| e.links.sock.conn_count()), 1);
}
