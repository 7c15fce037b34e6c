// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: RMA executed by the target.

use super::Stage;
use crate::engine::types::wire;
use crate::state::counter::CntrState;
use crate::state::waiters::WaitState;

/// Number of a read with two parts.
const READ: u64 = 1;

#[test]
fn a_read_with_a_failed_part_is_no_event_at_the_target() {
    let stage = Stage::new();
    stage.region(4096);
    let mut st = stage.domain.shared.gate.lock();
    let cntr = st.cntrs.insert(CntrState::new(WaitState::none())).unwrap();
    drop(st);
    stage.with(|e| (e.cfg.rma_event, e.cfg.cntr_remote_read) = (true, Some(cntr)));
    let reads = || {
        let st = stage.domain.shared.gate.lock();
        st.cntrs.get(cntr).unwrap().reached(false)
    };
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    // Key 6 does not exist.
    peer.send_msg(conn, wire::READ, &[6, 0, READ, 0, 8, 0], b"");
    assert_eq!(peer.recv_msg(conn).0, wire::ACK);
    peer.send_msg(conn, wire::READ, &[5, 0, READ, 8, 8, wire::F_LAST], b"");
    assert_eq!(peer.recv_msg(conn).0, wire::READ_DATA);
    assert_eq!(reads(), 0);
    // A failed part of a read that was abandoned concerns no other read.
    peer.send_msg(conn, wire::READ, &[6, 0, READ + 1, 0, 8, 0], b"");
    assert_eq!(peer.recv_msg(conn).0, wire::ACK);
    for (number, read) in (1..=2).zip(READ + 2..) {
        peer.send_msg(conn, wire::READ, &[5, 0, read, 0, 8, wire::F_LAST], b"");
        assert_eq!(peer.recv_msg(conn).0, wire::READ_DATA);
        assert_eq!(reads(), number);
    }
    assert!(stage.with(|e| e.rma_target.failed_reads.is_empty()));
}
