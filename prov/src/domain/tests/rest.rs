// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: idle rings and lost doorbells.

use libfabric_sys as fi;
use scif::ConnId;

use super::{RawPeer, Stage};
use crate::engine::channel::link_set::{ACTIVE_ALWAYS, SWEEP_EVERY, SWEEP_SLOW};
use crate::engine::types::wire;

/// Number of peers beyond `ACTIVE_ALWAYS`.
const TOO_MANY: usize = 4;

/// Creates enough peers to make some rings idle. Returns them with their connections.
fn many_peers(stage: &Stage) -> Vec<(RawPeer<'_>, ConnId)> {
    let connected = || {
        let (mut peer, _) = stage.peer();
        let conn = peer.connect();
        (peer, conn)
    };
    std::iter::repeat_with(connected).take(ACTIVE_ALWAYS + TOO_MANY).collect()
}

#[test]
fn sweep_visits_each_idle_ring_when_one_ends() {
    let stage = Stage::new();
    let mut peers = many_peers(&stage);
    let sweep_left = || stage.with(|e| (e.links.idle.len(), e.links.sweep_left));
    // Near the end of a sweep.
    stage.until(|| matches!(sweep_left(), (TOO_MANY, 1)).then_some(()));
    let ended = stage.with(|e| e.links.idle.first().map(|l| e.peers.at(l.peer).id));
    peers.retain(|(peer, _)| Some(peer.sock.id()) != ended);
    let (left, round) = stage.until(|| Some(sweep_left()).filter(|&(idle, _)| idle < TOO_MANY));
    assert_eq!(left, round, "the last one has another place");
}

#[test]
fn a_lost_bell_delays_a_message_and_loses_none() {
    let stage = Stage::new();
    let mut peers = many_peers(&stage);
    let at_rest = || {
        let ids = stage.with(|e| {
            let peers = e.links.idle.iter().map(|l| e.peers.at(l.peer));
            peers.map(|p| p.id).collect::<Vec<_>>()
        });
        (!ids.is_empty()).then_some(ids)
    };
    stage.until(at_rest);
    // First just after a ring became idle, then after a sweep over all of them.
    for every in [SWEEP_EVERY, SWEEP_SLOW] {
        let ids = at_rest().unwrap();
        assert_eq!(stage.with(|e| e.links.sweep_left > 0), every == SWEEP_EVERY);
        let (peer, conn) = peers.iter_mut().find(|(p, _)| ids.contains(&p.sock.id())).unwrap();
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
        stage.until(|| {
            stage.with(|e| {
                let few = e.links.active.len() <= ACTIVE_ALWAYS;
                (few && e.links.sweep_left == 0).then_some(())
            })
        });
    }
}
