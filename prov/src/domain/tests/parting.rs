// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: peers that stay inside a copy when their connection ends. The operations on that memory
//! end last, and nothing waits for these peers.

use super::*;
use crate::engine::peers::peer_conn;
use crate::engine::progress;
use crate::engine::protocols::parting::is_silent;
use crate::engine::tables::incoming::RndvState;

impl Stage {
    /// Polls until the connection of the honest peer is the only one.
    fn one_is_left(&self) {
        self.until(|| self.with(|e| (e.links.len() == 1).then_some(())));
    }

    /// Polls for a while in which no completion may arrive and no poll may wait. A loaded machine
    /// may delay some.
    fn nothing_comes(&self) {
        const POLLS: usize = 1000;
        let mut long = 0;
        for _ in 0..POLLS {
            let begin = scif::now_ns();
            self.poll();
            long += usize::from(scif::now_ns() - begin >= WITHDRAW_NS);
            assert!(self.came().is_none());
            assert!(long < POLLS / 20, "{long} polls took {WITHDRAW_NS} ns or more");
        }
    }
}

#[test]
fn a_message_ends_when_its_receiver_is_out_of_its_memory() {
    let stage = Stage::new();
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    for _ in 0..3 {
        let (mut liar, number) = stage.peer();
        let conn = liar.connect();
        stage.send(number, 100_000);
        assert_eq!(liar.recv_msg(conn).0, wire::RTS);
        let inside = liar.sock.conn(conn).unwrap();
        assert!(inside.enter());
        liar.send_msg(conn, 0x7f, &[], b"");
        stage.one_is_left();
        stage.nothing_comes();
        honest.check_service(good);
        assert!(!liar.sock.conn(conn).unwrap().enter(), "nobody enters again");
        let came = stage.until(|| stage.came());
        assert!(
            matches!(&came, Came::Failed(e) if e.c.context == 0x5e && e.err == fi::FI_ECONNRESET),
            "{came:?}"
        );
        assert_eq!(liar.event(), LinkEvent::Closed(conn, Reason::Reset));
        assert_eq!(stage.with(|e| e.links.sock.conn_count()), 1);
    }
}

#[test]
fn a_receive_ends_when_its_sender_writes_into_it_no_more() {
    const LEN: usize = 32 << 20;
    const PART: usize = 1 << 20;
    const PARTS: u32 = 32;
    let stage = Stage::new();
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    let (mut liar, _) = stage.peer();
    let conn = liar.connect();
    let from = buffer(vec![1; LEN]);
    let claim = liar.sock.conn(conn).unwrap().tx_claim(3);
    claim.reset(9);
    stage.recv(fi::FI_ADDR_UNSPEC, LEN, 0xb0f, 0);
    let misc = 4 | 9 << 16;
    liar.send_msg(conn, wire::RTS, &[1, LEN as u64, from.addr() as u64, misc], b"");
    stage.until(|| stage.with(|e| e.rndv.order.front().copied()));
    // Within one process the victim copies alone. Simulates a peer in another process.
    stage.with(|e| {
        let index = e.rndv.order.front().copied().unwrap();
        e.rndv.incoming.get_mut(index).unwrap().how = RndvState::CoopCopy {
            block: 3,
            generation: 9,
            part: PART,
            parts: PARTS,
            repeated: false,
            own: 0,
        };
    });
    let taken = claim.claim_front(9, PARTS, 1, scif_ring::ClaimShare::Half);
    assert_eq!(taken, Some(0..1));
    liar.send_msg(conn, 0x7f, &[], b"");
    stage.one_is_left();
    stage.nothing_comes();
    honest.check_service(good);
    claim.complete_front(1, true);
    let came = stage.until(|| stage.came());
    assert!(
        matches!(&came, Came::Failed(e) if e.c.context == 0xb0f && e.err == fi::FI_ECONNRESET),
        "{came:?}"
    );
    stage.until(|| stage.with(|e| (e.links.sock.conn_count() == 1).then_some(())));
    assert!(stage.with(|e| e.links.parting.is_empty()));
}

#[test]
fn a_receive_of_an_announced_message_fails_after_the_end() {
    let stage = Stage::new();
    let (mut liar, number) = stage.peer();
    let conn = liar.connect();
    stage.send(number, 100_000);
    assert_eq!(liar.recv_msg(conn).0, wire::RTS);
    let from = buffer(vec![1; 100_000]);
    liar.send_msg(conn, wire::RTS, &[1, 100_000, from.addr() as u64, 0], b"");
    stage.until(|| (stage.with(|e| e.recv.msg.unexpected.len()) == 1).then_some(()));
    assert!(liar.sock.conn(conn).unwrap().enter());
    liar.sock.close_conn(conn, scif::CloseHow::Orderly);
    stage.until(|| (stage.with(|e| e.links.parting.len()) == 1).then_some(()));
    stage.recv(fi::FI_ADDR_UNSPEC, 100_000, 0xb0f, 0);
    let came = stage.until(|| stage.came());
    assert!(
        matches!(&came, Came::Failed(e) if e.c.context == 0xb0f && e.err == fi::FI_ECONNRESET),
        "{came:?}"
    );
}

#[test]
fn a_close_waits_for_a_silent_port_once() {
    let stage = Stage::new();
    let (mut peer, address) = stage.peer();
    let port = peer.sock.id();
    // Its connection is being made by a driver, which gives no answer.
    let retry_at = |ns| {
        stage.with(|e| {
            let number = peer_conn::peer_at(e, port);
            e.peers.at_mut(number).state.retry_at_ns = ns;
        });
    };
    retry_at(u64::MAX);
    stage.send(address, 8);
    let [first, second] = [(), ()].map(|()| {
        let mut st = stage.domain.shared.gate.lock();
        let (e, mut env) = crate::domain::calls::split(&mut st, stage.ep).unwrap();
        let begin = scif::now_ns();
        progress::drain_before_close(e, &mut env);
        scif::now_ns() - begin
    });
    assert!(second < first / 2, "{first} ns, then {second} ns");
    assert!(is_silent(port));
    retry_at(0);
    peer.event();
    stage.until(|| (!is_silent(port)).then_some(()));
}
