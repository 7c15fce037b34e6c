// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: a panic on the data path ends one connection or one endpoint, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::engine::panic_test::FATAL;

#[test]
fn a_panic_while_a_record_is_handled_ends_its_connection_and_no_other() {
    let stage = Stage::new();
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    for _ in 0..3 {
        let (mut bad, number) = stage.peer();
        let conn = bad.connect();
        stage.send(number, 100_000);
        assert_eq!(bad.recv_msg(conn).0, wire::RTS);
        bad.send_msg(conn, FATAL, &[], b"");
        assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
        let came = stage.until(|| stage.came());
        assert!(matches!(&came, Came::Failed(e) if e.err == fi::FI_ECONNRESET), "{came:?}");
        honest.check_service(good);
    }
}

#[test]
fn a_panic_elsewhere_poisons_the_endpoint_once() {
    let stage = Stage::new();
    let (mut peer, number) = stage.peer();
    let conn = peer.connect();
    peer.check_service(conn);
    stage.send(number, 100_000);
    assert_eq!(peer.recv_msg(conn).0, wire::RTS);
    stage.recv(fi::FI_ADDR_UNSPEC, 64, 0x3c, 0);
    stage.with(|e| e.cfg.inject_size = crate::engine::panic_test::STRUCK);
    let poll = || catch_unwind(AssertUnwindSafe(|| stage.poll()));
    assert!(poll().is_err());
    // Later calls are refused before they reach the panic.
    let mut ended = Vec::new();
    for _ in 0..3 {
        assert!(poll().is_ok());
        while let Some(came) = stage.came() {
            let Came::Failed(e) = came else { panic!("{came:?}") };
            assert_eq!(e.err, fi::FI_EOTHER);
            ended.push(e.c.context);
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [0x3c, 0x5e]);
    let mut links = Vec::new();
    let begin = Instant::now();
    while links.is_empty() {
        peer.sock.poll_links(&mut links);
        assert!(begin.elapsed().as_secs() < 60);
    }
    assert_eq!(links, [LinkEvent::Closed(conn, Reason::Reset)]);
    let args = RecvArgs {
        iov: &[buffer(vec![0; 64])],
        src: fi::FI_ADDR_UNSPEC,
        tag: None,
        context: 1,
        flags: 0,
    };
    let posted = crate::domain::calls::recv(&mut stage.domain.shared.gate.lock(), stage.ep, &args);
    assert_eq!(posted, Err(fi::FI_EOTHER));
}
