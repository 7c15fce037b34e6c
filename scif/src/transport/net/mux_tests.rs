// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of the multiplexer over the double: pings, deaths, names and their limits.

use std::net::{Ipv4Addr, SocketAddrV4};

use zerocopy::IntoBytes;

use super::double::{NetDouble, change};
use super::frame::{FrameHead, FrameKind, NetGreeting, begin, seal};
use super::mux::NetMux;
use crate::addr::PortId;
use crate::error::{Error, Reason};
use crate::slab::ConnId;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate};

/// Probes the peer of a connection at a time in the future.
fn probe(mux: &mut NetMux, token: u64, now: u64) {
    mux.probe(token, now);
    mux.poll(&mut Vec::new());
}

pub(super) struct MuxPair {
    pub(super) net: NetDouble,
    pub(super) a: NetMux,
    pub(super) b: NetMux,
    pub(super) token: u64,
    pub(super) names: [SocketAddrV4; 2],
}

pub(super) fn muxes() -> MuxPair {
    muxes_over(NetDouble::default())
}

fn muxes_over(net: NetDouble) -> MuxPair {
    let names = [1, 2].map(|host| SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, host), 77));
    let [mut a, mut b] = names.map(|name| net.mux(name).unwrap());
    let id = ConnId { index: 0, generation: 1 };
    let (token, _) = a.connect(PortId::abroad(0, names[1]), id).unwrap();
    b.poll(&mut Vec::new());
    assert!(b.accept(id).is_some());
    a.poll(&mut Vec::new());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Up(_))));
    MuxPair { net, a, b, token, names }
}

const HOUR_NS: u64 = 3_600_000_000_000;

#[test]
fn a_living_peer_answers_pings_and_one_that_computes_is_not_dead() {
    let MuxPair { net, mut a, mut b, token, .. } = muxes();
    let now = now_ns();
    let before = net.state().sent;
    a.probe(token, now);
    assert_eq!(net.state().sent, before, "a message of the peer has just arrived");
    probe(&mut a, token, now + HOUR_NS);
    b.poll(&mut Vec::new());
    a.poll(&mut Vec::new());
    assert_eq!(net.state().sent, before + 2, "ping and answer");
    for minute in 1..=60 {
        probe(&mut a, token, now + HOUR_NS + minute * HOUR_NS / 60);
    }
    assert!(change(&mut a, token).is_none());
    b.poll(&mut Vec::new());
    a.poll(&mut Vec::new());
    assert!(change(&mut a, token).is_none() && change(&mut b, token).is_none());
}

#[test]
fn a_peer_that_answers_no_ping_is_dead_where_the_user_limits_that() {
    let net = NetDouble::default();
    net.state().silent_ns = HOUR_NS;
    let MuxPair { net, mut a, mut b, token, .. } = muxes_over(net);
    let now = now_ns();
    for half in 1..=6 {
        // An answer in between begins the time again.
        probe(&mut a, token, now + half * HOUR_NS);
        probe(&mut a, token, now + half * HOUR_NS + HOUR_NS / 2);
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
        assert!(change(&mut a, token).is_none());
    }
    let sent = net.state().sent;
    let mut ready = Vec::new();
    a.probe(token, now + 10 * HOUR_NS);
    a.probe(token, now + 11 * HOUR_NS);
    a.poll(&mut ready);
    assert!(ready.is_empty() && net.state().sent > sent, "the limit itself is not above it");
    a.probe(token, now + 11 * HOUR_NS + 1);
    a.poll(&mut ready);
    assert_eq!(ready.len(), 1);
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(Reason::Died))));
}

#[test]
fn forged_names_take_bounded_memory() {
    let MuxPair { net, mut a, mut b, names, .. } = muxes();
    let offered = net.state().offered;
    let named = net.state().named;
    for number in 0..5000_u16 {
        let name = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), number + 1);
        let kind = if number % 2 == 0 { FrameKind::Ping } else { FrameKind::Greeting };
        let mut greeting = NetGreeting::new(0, name);
        greeting.version = u16::MAX.into();
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(kind, u64::from(number), 0, 0));
        message.extend(greeting.as_bytes());
        seal(&mut message);
        net.forge(names[0], &message);
    }
    a.poll(&mut Vec::new());
    let answers = net.state().offered - offered;
    assert!((1..=1024).contains(&answers), "{answers} answers");
    assert_eq!(net.state().named, named);
    // The peer of a connection gets its answers all the same.
    let id = ConnId { index: 1, generation: 1 };
    let (token, _) = b.connect(PortId::abroad(0, names[0]), id).unwrap();
    a.poll(&mut Vec::new());
    assert!(a.accept(id).is_some());
    b.poll(&mut Vec::new());
    assert!(matches!(change(&mut b, token), Some(LinkUpdate::Up(_))));
}

#[test]
fn a_process_that_took_the_place_of_a_dead_one_says_so() {
    let MuxPair { net, mut a, token, names, b, .. } = muxes();
    drop(b);
    let mut other = net.mux(names[1]).unwrap();
    probe(&mut a, token, now_ns() + HOUR_NS);
    other.poll(&mut Vec::new());
    let mut ready = Vec::new();
    a.poll(&mut ready);
    assert!(!ready.is_empty());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(Reason::Died))));
}

#[test]
fn a_hundred_lives_under_one_name_get_nothing_of_a_former_one() {
    let MuxPair { net, mut a, mut b, mut token, names } = muxes();
    let id = ConnId { index: 1, generation: 1 };
    let mut former: Vec<Vec<u8>> = Vec::new();
    for round in 1..=100 {
        // Arrives when its sender is dead.
        probe(&mut b, token, now_ns() + HOUR_NS);
        net.change(names[0], |messages| former.extend(messages.drain(..)));
        drop(b);
        b = net.mux(names[1]).unwrap();
        probe(&mut a, token, now_ns() + HOUR_NS);
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
        let closed = change(&mut a, token);
        assert!(matches!(closed, Some(LinkUpdate::Closed(Reason::Died))), "round {round}");
        (token, _) = a.connect(PortId::abroad(0, names[1]), id).unwrap();
        b.poll(&mut Vec::new());
        assert!(b.accept(id).is_some());
        a.poll(&mut Vec::new());
        assert!(matches!(change(&mut a, token), Some(LinkUpdate::Up(_))), "round {round}");
        b.poll(&mut Vec::new());
        assert_eq!(former.len(), round);
        former.iter().for_each(|message| net.forge(names[0], message));
        let mut ready = Vec::new();
        for _ in 0..2 {
            a.poll(&mut ready);
            b.poll(&mut ready);
        }
        assert!(ready.is_empty() && b.accept(id).is_none(), "round {round}");
        assert!(
            change(&mut a, token).is_none() && change(&mut b, token).is_none(),
            "round {round}"
        );
    }
}

#[test]
fn a_connect_to_the_name_of_a_dead_process_waits_for_another_one() {
    let MuxPair { net, mut a, token, names, b } = muxes();
    let (there, id) = (PortId::abroad(0, names[1]), ConnId { index: 1, generation: 1 });
    drop(b);
    net.lose(names[1], names[0]);
    a.poll(&mut Vec::new());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(Reason::Died))));
    let mut again = 0;
    let refused = loop {
        match a.connect(there, id) {
            Err(Error::Again) => again += 1,
            other => break other,
        }
    };
    assert!(matches!(refused, Err(Error::Refused(id)) if id == there) && again > 0);
    let mut other = net.mux(names[1]).unwrap();
    let (token, _) = loop {
        match a.connect(there, id) {
            Ok(connected) => break connected,
            Err(error) => assert!(matches!(error, Error::Refused(_)), "{error}"),
        }
    };
    other.poll(&mut Vec::new());
    assert!(other.accept(id).is_some());
    a.poll(&mut Vec::new());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Up(_))));
    // A greeting shows a new process as well, without a message to it.
    drop(other);
    net.lose(names[1], names[0]);
    a.poll(&mut Vec::new());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(Reason::Died))));
    let mut last = net.mux(names[1]).unwrap();
    let _ = last.connect(PortId::abroad(0, names[0]), id).unwrap();
    a.poll(&mut Vec::new());
    net.state().room = Some(0);
    assert!(a.connect(there, id).is_ok());
    net.state().room = None;
    assert_eq!(net.state().named, 2, "one of each end");
}

#[test]
fn a_connect_to_the_name_of_a_closed_endpoint_is_refused() {
    let MuxPair { mut a, mut b, token, names, .. } = muxes();
    let (there, id) = (PortId::abroad(0, names[1]), ConnId { index: 1, generation: 1 });
    b.close(token, CloseKind::Graceful);
    drop(b);
    a.poll(&mut Vec::new());
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(Reason::Orderly))));
    let refused = loop {
        match a.connect(there, id) {
            Err(Error::Again) => {}
            other => break other,
        }
    };
    assert!(matches!(refused, Err(Error::Refused(id)) if id == there));
    assert!(a.is_quiet(), "a close would wait");
}

#[test]
fn a_greeting_from_the_address_of_a_dead_process_ends_its_connections_only() {
    let MuxPair { net, mut a, mut b, token, names } = muxes();
    let id = ConnId { index: 1, generation: 1 };
    let (second, _) = b.connect(PortId::abroad(0, names[0]), id).unwrap();
    let mut poll = |b: &mut NetMux| {
        for _ in 0..4 {
            a.poll(&mut Vec::new());
            a.accept(id);
            b.poll(&mut Vec::new());
        }
        change(&mut a, token)
    };
    assert!(poll(&mut b).is_none(), "a second connection of the same process");
    drop(b);
    let mut other = net.mux(names[1]).unwrap();
    let (third, _) = other.connect(PortId::abroad(0, names[0]), id).unwrap();
    assert!(matches!(poll(&mut other), Some(LinkUpdate::Closed(Reason::Died))));
    assert!(matches!(change(&mut a, second), Some(LinkUpdate::Closed(Reason::Died))));
    assert!(change(&mut a, third).is_none());
}

#[test]
fn refusals_for_longer_than_a_failure_lasts_are_a_death() {
    let (mut full, mut dead) = (muxes(), muxes());
    full.net.state().is_full = true;
    dead.net.state().room = Some(0);
    for pair in [&mut full, &mut dead] {
        probe(&mut pair.a, pair.token, now_ns() + HOUR_NS);
        assert!(pair.a.is_expecting(u64::MAX), "the ping is tried again");
    }
    let mut ready = Vec::new();
    while ready.is_empty() {
        full.a.poll(&mut ready);
        assert!(ready.is_empty(), "a network without space says nothing about a peer");
        dead.a.poll(&mut ready);
    }
    let closed = change(&mut dead.a, dead.token);
    assert!(matches!(closed, Some(LinkUpdate::Closed(Reason::Died))));
    assert!(change(&mut full.a, full.token).is_none());
}
