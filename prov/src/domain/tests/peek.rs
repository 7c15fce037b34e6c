// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: discarded messages.

use libfabric_sys as fi;

use super::{Came, Stage};
use crate::engine::types::wire;

#[test]
fn a_discarded_message_was_not_received() {
    let stage = Stage::new();
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    peer.send_msg(conn, wire::EAGER, &[], &[7; 100]);
    let came = stage.until(|| {
        stage.recv(fi::FI_ADDR_UNSPEC, 0, 3, fi::FI_PEEK | fi::FI_DISCARD);
        stage.came().filter(|came| matches!(came, Came::Done(_)))
    });
    assert!(matches!(came, Came::Done(c) if c.context == 3 && c.len == 100), "{came:?}");
    let received = || stage.with(|e| (e.stats.received.ops, e.stats.received.bytes));
    assert_eq!(received(), (0, 0));
    peer.check_service(conn);
    assert_eq!(received().0, 1);
}
