// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: idle rings and lost doorbells.

use libfabric_sys as fi;
use scif::ConnId;

use super::super::progress::{LIVE_ALWAYS, SWEEP_EVERY, SWEEP_SELDOM};
use super::super::wire;
use super::{Peer, Stage};

/// Number of peers beyond `LIVE_ALWAYS`.
const TOO_MANY: usize = 4;

/// Creates enough peers to make some rings idle. Returns them with their connections.
fn crowd(stage: &Stage) -> Vec<(Peer<'_>, ConnId)> {
    let connected = || {
        let (mut peer, _) = stage.peer();
        let conn = peer.connect();
        (peer, conn)
    };
    std::iter::repeat_with(connected)
        .take(LIVE_ALWAYS + TOO_MANY)
        .collect()
}

#[test]
fn each_ring_at_rest_is_looked_at_also_where_one_of_them_ends() {
    let stage = Stage::new();
    let mut peers = crowd(&stage);
    let not_swept = || stage.with(|e| (e.resting.len(), e.not_swept));
    // Near the end of a sweep.
    stage.until(|| matches!(not_swept(), (TOO_MANY, 1)).then_some(()));
    let ended = stage.with(|e| e.resting.first().map(|l| e.peers.at(l.peer).id));
    peers.retain(|(peer, _)| Some(peer.sock.id()) != ended);
    let (left, round) = stage.until(|| Some(not_swept()).filter(|&(resting, _)| resting < TOO_MANY));
    assert_eq!(left, round, "the last one has another place");
}

#[test]
fn a_lost_bell_delays_a_message_and_loses_none() {
    let stage = Stage::new();
    let mut peers = crowd(&stage);
    let at_rest = || {
        let ids = stage.with(|e| {
            let peers = e.resting.iter().map(|l| e.peers.at(l.peer));
            peers.map(|p| p.id).collect::<Vec<_>>()
        });
        (!ids.is_empty()).then_some(ids)
    };
    stage.until(at_rest);
    // First just after a ring became idle, then after a sweep over all of them.
    for every in [SWEEP_EVERY, SWEEP_SELDOM] {
        let ids = at_rest().unwrap();
        assert_eq!(stage.with(|e| e.not_swept > 0), every == SWEEP_EVERY);
        let (peer, conn) = peers
            .iter_mut()
            .find(|(p, _)| ids.contains(&p.sock.id()))
            .unwrap();
        let tx = peer.sock.conn(*conn).unwrap().tx();
        tx.push_slice(wire::EAGER, &[], b"without a bell").unwrap();
        stage.recv(fi::FI_ADDR_UNSPEC, 64, 0x600d, 0);
        let most = every as usize * (TOO_MANY + 1);
        let polls = (1..=most).find(|_| {
            stage.poll();
            stage.came().is_some()
        });
        assert!(polls.is_some(), "not within {most} polls");
        // The activated ring makes another one idle.
        stage.until(|| stage.with(|e| (e.live.len() <= LIVE_ALWAYS && e.not_swept == 0).then_some(())));
    }
}
