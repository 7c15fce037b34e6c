// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: members of groups that send arbitrary records.

use std::sync::Arc;

use libfabric_sys as fi;
use scif::{LinkEvent, PortId, Reason};

use super::{RawPeer, Stage};
use crate::domain::coll;
use crate::engine::connections;
use crate::engine::protocols::coll_run;
use crate::engine::tables::coll_group::READY_MAX;
use crate::engine::tables::coll_inbox::WAITING_MAX as INBOX_MAX;
use crate::engine::tables::peer::REPLY_QUEUE_MAX;
use crate::engine::types::wire;
use crate::state::eq_queue::EqShared;
use crate::state::waiters::WaitObj;

#[test]
fn records_of_unjoined_groups_are_not_kept() {
    let stage = Stage::like(|cfg| cfg.caps |= fi::FI_COLLECTIVE);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    for group in 1..100 {
        bad.send_msg(conn, wire::COLL_DATA, &[group, 1, 0, 0], b"");
        bad.send_msg(conn, wire::COLL_DATA, &[group, 2, 100, 50], &[1; 50]);
        bad.send_msg(conn, wire::COLL_ABORT, &[group, 5, 0], b"");
    }
    bad.check_service(conn);
    assert_eq!(stage.with(|e| e.coll.as_ref().unwrap().kept()), 0);
}

#[test]
fn ready_groups_of_a_peer_are_limited() {
    let stage = Stage::like(|cfg| cfg.caps |= fi::FI_COLLECTIVE);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    for number in 0..READY_MAX as u64 {
        bad.send_msg(conn, wire::COLL_JOIN, &[7, number], b"");
    }
    bad.check_service(conn);
    assert_eq!(stage.with(|e| e.coll.as_ref().unwrap().kept()), READY_MAX);
    bad.send_msg(conn, wire::COLL_JOIN, &[7, 0], b"");
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
    assert_eq!(stage.with(|e| e.coll.as_ref().unwrap().kept()), 0);
}

#[test]
fn unread_group_replies_are_charged_to_the_peer() {
    for (caps, kind, answer) in [
        (fi::FI_COLLECTIVE, wire::COLL_START, wire::COLL_ABORT),
        (0, wire::COLL_JOIN, wire::COLL_REFUSE),
    ] {
        let stage = Stage::like(|cfg| cfg.caps |= caps);
        let (mut bad, _) = stage.peer();
        let conn = bad.connect();
        let (mut refused, mut asked) = (0, 0_u64);
        while refused < 1000 {
            asked += 1;
            if bad.try_send_msg(conn, kind, &[asked, asked], b"") {
                refused = 0;
            } else {
                refused += 1;
            }
            stage.poll();
            assert!(asked < 1_000_000, "a flood without end");
        }
        let unanswered = stage.with(|e| e.peers.iter().map(|p| p.queue.reply_bytes).max());
        assert!(
            unanswered > Some(REPLY_QUEUE_MAX) && unanswered < Some(2 * REPLY_QUEUE_MAX),
            "{unanswered:?}"
        );
        assert_eq!(bad.recv_msg(conn).0, answer);
    }
}

#[test]
fn a_group_has_an_identity_of_its_own() {
    let stage = Stage::like(|cfg| cfg.caps |= fi::FI_COLLECTIVE);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    bad.send_msg(conn, wire::COLL_START, &[1, 0], b"");
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
}

/// Joins the group at address 1, of the endpoint under test and `other`.
fn join(stage: &Stage, other: &RawPeer<'_>) {
    let members: [PortId; 2] = [stage.with(|e| e.links.sock.id()), other.sock.id()];
    let mut st = stage.domain.shared.gate.lock();
    coll::join(&mut st, stage.ep, 1, &members, (0, 0)).unwrap();
}

fn kept(stage: &Stage) -> usize {
    stage.with(|e| e.coll.as_ref().unwrap().kept())
}

fn stage(port: u16) -> Stage {
    let stage = Stage::on(port, |cfg| cfg.caps |= fi::FI_COLLECTIVE);
    let fabric = Arc::clone(&stage.domain.shared.fabric);
    let eq = EqShared::new(fabric, &fi::fi_eq_attr::default(), WaitObj::None).unwrap();
    stage.with(|e| e.eq = Some(Arc::new(eq)));
    stage
}

#[test]
fn ended_groups_of_a_member_are_limited() {
    let stage = stage(0);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    join(&stage, &bad);
    for group in 1..=READY_MAX as u64 {
        bad.send_msg(conn, wire::COLL_ABORT, &[group, 5, 0], b"");
    }
    bad.check_service(conn);
    assert_eq!(kept(&stage), READY_MAX);
    bad.send_msg(conn, wire::COLL_ABORT, &[u64::MAX, 5, 0], b"");
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
    assert_eq!(kept(&stage), 0);
}

#[test]
fn a_member_that_is_too_far_ahead_is_not_read() {
    let stage = stage(0);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    join(&stage, &bad);
    let (mut said, mut refused) = (0, 0_u64);
    while refused < 1000 {
        assert!(said < 3 * INBOX_MAX as u64, "a flood without end");
        if bad.try_send_msg(conn, wire::COLL_DATA, &[77, said, 8, 0], &[1; 8]) {
            (said, refused) = (said + 1, 0);
        } else {
            refused += 1;
            stage.poll();
        }
    }
    assert_eq!(kept(&stage), INBOX_MAX);
    // The group ends, and its messages are read and dropped.
    coll::leave(&mut stage.domain.shared.gate.lock(), stage.ep, 1);
    stage.until(|| {
        bad.try_send_msg(conn, wire::COLL_DATA, &[77, said, 8, 0], &[1; 8]).then_some(())
    });
    bad.check_service(conn);
    assert_eq!(kept(&stage), 0);
}

#[test]
fn absent_members_are_forgotten() {
    // This member leads, since its port is the lower one.
    let stage = stage(5);
    let (peer, _) = stage.peer();
    join(&stage, &peer);
    stage.with(|e| (0..=READY_MAX).for_each(|_| coll_run::refuse(e, 1, fi::FI_ECANCELED)));
    assert_eq!(kept(&stage), READY_MAX);
}

#[test]
fn a_member_that_denies_access_ends_the_join() {
    // This member leads, since its port is the lower one.
    let stage = stage(6);
    let (peer, _) = stage.peer();
    join(&stage, &peer);
    let conn = stage.until(|| {
        stage.poll();
        stage.with(|e| e.links.active.first().map(|link| link.conn))
    });
    let eq = {
        let mut st = stage.domain.shared.gate.lock();
        let (e, mut env) = crate::domain::calls::split(&mut st, stage.ep).unwrap();
        connections::on_conn_lost(e, &mut env, conn, Reason::Denied);
        Arc::clone(e.eq.as_ref().unwrap())
    };
    let error = eq.take_error(false).unwrap().0;
    assert_eq!(error.err, fi::FI_EACCES);
}
