// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: peers that come and go, each with a port of its own, and the entries they leave.

use std::ops::Range;
use std::sync::Arc;

use scif::{Config, Node, PortId, TransportKind};

use super::*;
use crate::engine::tables::peer_table::KEPT;
use crate::engine::types::peer_id::PeerId;

/// Number of peers, more than are kept.
const MANY: u16 = 600;
const _: () = assert!(MANY as usize > 2 * KEPT);
/// Entries in addition to the kept ones, of peers that come between two sweeps.
const SLACK: usize = 64;

/// Returns a SCIF node whose ports belong to one test.
fn node(number: u16) -> Arc<Node> {
    let config = Config {
        node: number,
        domain: Some(format!("test-{}", std::process::id())),
        ..Config::default()
    };
    Node::open(config, TransportKind::Soft).unwrap()
}

impl Stage {
    /// Creates a peer that no address names.
    fn stranger(&self, node: &Arc<Node>, port: u16) -> RawPeer<'_> {
        let sock = scif::Endpoint::bind(node, port, Exports::default()).unwrap();
        RawPeer { stage: self, sock }
    }

    /// Connects and closes one peer at each port, every second one without a graceful close.
    fn strangers(&self, node: &Arc<Node>, ports: Range<u16>) {
        for port in ports {
            let mut peer = self.stranger(node, port);
            peer.connect();
            if port % 2 == 0 {
                peer.sock.abandon();
            }
        }
        self.until(|| self.strangers_are_gone().then_some(()));
    }

    /// Whether the endpoint has no connection, except those that it opened itself to the sources of
    /// its receives and that no peer has accepted.
    fn strangers_are_gone(&self) -> bool {
        self.with(|e| {
            let accepted = |peer| e.peers.at(peer).state.was_up();
            !e.links.iter().any(|l| accepted(l.peer))
        })
    }

    /// Inserts the port `id` and returns its address.
    fn insert(&self, id: PortId) -> u64 {
        let mut st = self.domain.shared.gate.lock();
        let av = st.avs.get_mut(self.av).unwrap();
        av.insert(id, [0; crate::base::addr::ADDR_LEN], None).unwrap()
    }

    fn remove(&self, address: u64) {
        let mut st = self.domain.shared.gate.lock();
        st.avs.get_mut(self.av).unwrap().remove(address).unwrap();
    }

    fn number_of(&self, id: PortId) -> Option<PeerId> {
        self.with(|e| e.peers.at_port(id))
    }
}

#[test]
fn transient_peers_leave_a_bounded_number_of_entries() {
    let stage = Stage::new();
    stage.strangers(&node(11), 1..5_001);
    let ((entries, ports), met) = stage.with(|e| (e.peers.sizes(), e.peers.met()));
    assert!(
        entries <= 2 * (KEPT + SLACK) && ports <= KEPT + SLACK,
        "{entries} entries, {ports} ports"
    );
    assert_eq!(met, 5_000);
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    peer.check_service(conn);
}

#[test]
fn many_concurrent_transient_peers_leave_bounded_entries() {
    let stage = Stage::new();
    let node = node(12);
    let mut many_peers: Vec<RawPeer<'_>> =
        (1..MANY).map(|port| stage.stranger(&node, port)).collect();
    for peer in &mut many_peers {
        peer.connect();
    }
    let full = stage.with(|e| e.peers.len());
    assert_eq!(full, usize::from(MANY) - 1, "each that is there has an entry");
    drop(many_peers);
    // The entries of the last peers are freed with the next ones.
    stage.strangers(&node, MANY..2 * MANY);
    let left = stage.with(|e| e.peers.sizes().0);
    assert!(left <= 2 * (KEPT + SLACK), "{left} of {full} entries are left");
}

#[test]
fn peer_number_is_kept_while_a_message_or_receive_uses_it() {
    let stage = Stage::new();
    let node = node(13);
    let mut early = stage.stranger(&node, 1);
    let conn = early.connect();
    early.send_msg(conn, wire::EAGER | wire::INLINE, &[0x7e57], b"");
    let id = early.sock.id();
    let number = stage
        .until(|| stage.number_of(id).filter(|_| stage.with(|e| e.recv.msg.unexpected.len() == 1)));
    early.sock.abandon();
    stage.strangers(&node, 2..MANY);
    assert_eq!(stage.number_of(id), Some(number));
    stage.recv(fi::FI_ADDR_UNSPEC, 64, 0x3c, 0);
    let came = stage.until(|| stage.came());
    let expected = (0x3c, 8, fi::FI_ADDR_NOTAVAIL);
    assert!(matches!(came, Came::Done(c) if (c.context, c.len, c.src) == expected), "{came:?}");
    stage.strangers(&node, MANY..2 * MANY);
    assert_eq!(stage.number_of(id), None, "nothing needs it any more");
}

#[test]
fn receive_from_a_removed_address_matches_that_peer_only() {
    let stage = Stage::new();
    let node = node(14);
    let mut named = stage.stranger(&node, 1);
    let id = named.sock.id();
    let address = stage.insert(id);
    stage.recv(address, 64, 0x3d, 0);
    let number = stage.number_of(id);
    stage.remove(address);
    for port in 2..MANY {
        let mut peer = stage.stranger(&node, port);
        let conn = peer.connect();
        peer.send_msg(conn, wire::EAGER | wire::INLINE, &[u64::from(port)], b"");
    }
    stage.until(|| stage.strangers_are_gone().then_some(()));
    assert!(stage.came().is_none(), "no stranger fills it");
    assert_eq!((stage.number_of(id), number.is_some()), (number, true));
    let conn = named.connect();
    named.send_msg(conn, wire::EAGER | wire::INLINE, &[1], b"");
    let came = stage.until(|| stage.came());
    assert!(matches!(came, Came::Done(c) if c.context == 0x3d), "{came:?}");
}

#[test]
fn peer_with_an_address_stays_dead() {
    let stage = Stage::new();
    let node = node(15);
    let mut named = stage.stranger(&node, 1);
    let id = named.sock.id();
    let address = stage.insert(id);
    named.connect();
    named.sock.abandon();
    stage.strangers(&node, 2..MANY);
    stage.recv(address, 64, 0x3e, 0);
    let came = stage.came();
    assert!(
        matches!(&came, Some(Came::Failed(e)) if (e.c.context, e.err) == (0x3e, fi::FI_ECONNRESET)),
        "{came:?}"
    );
    stage.remove(address);
    // The use of another address drops the cached number of the removed one.
    let (_other, other) = stage.peer();
    stage.recv(other, 64, 0x3f, 0);
    stage.strangers(&node, MANY..2 * MANY);
    assert_eq!(stage.number_of(id), None);
}

#[test]
fn an_address_of_port_0_has_a_number_of_its_own() {
    let stage = Stage::new();
    let id = PortId::new(0, 0);
    let address = stage.insert(id);
    stage.recv(address, 64, 0x40, 0);
    let number = stage.number_of(id).unwrap();
    for ports in [1..MANY, MANY..2 * MANY] {
        stage.strangers(&node(17), ports);
        let owner = stage.with(|e| e.peers.get(number).map(|p| p.id));
        assert_eq!(owner, Some(id), "its number is another peer's");
    }
    assert!(stage.came().is_none(), "no stranger ends its receive");
}

#[test]
fn acks_of_a_former_connection_do_not_reach_the_next_peer() {
    let stage = Stage::new();
    let node = node(16);
    let mut lives = std::collections::HashSet::new();
    for port in 1..MANY {
        let mut peer = stage.stranger(&node, port);
        peer.connect();
        let id = peer.sock.id();
        let life = stage.with(|e| e.peers.at_port(id).map(|peer| e.peers.at(peer).life));
        assert!(life.is_some_and(|life| lives.insert(life)), "{port}: {life:?}");
        peer.sock.abandon();
    }
}
