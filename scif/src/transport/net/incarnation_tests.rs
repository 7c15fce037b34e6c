// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Several connections with one process, and processes that follow each other at one name.

use std::net::{Ipv4Addr, SocketAddrV4};

use zerocopy::IntoBytes;

use super::double::{NetDouble, change};
use super::frame::{FrameHead, FrameKind, NetGreeting, begin, seal};
use super::mux::NetMux;
use super::mux_tests::{MuxPair, muxes};
use crate::addr::PortId;
use crate::error::Reason;
use crate::slab::ConnId;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate};

const HOUR_NS: u64 = 3_600_000_000_000;
const ID: ConnId = ConnId { index: 1, generation: 1 };

fn has_died(mux: &mut NetMux, token: u64) -> bool {
    matches!(change(mux, token), Some(LinkUpdate::Closed(Reason::Died)))
}

/// Opens a second connection of both, by `b`.
fn connect_back(pair: &mut MuxPair) -> u64 {
    let MuxPair { a, b, names, .. } = pair;
    let (token, _) = b.connect(PortId::abroad(0, names[0]), ID).unwrap();
    a.poll(&mut Vec::new());
    assert!(a.accept(ID).is_some());
    b.poll(&mut Vec::new());
    assert!(matches!(change(b, token), Some(LinkUpdate::Up(_))));
    a.poll(&mut Vec::new());
    token
}

/// Lets a new process follow the one of `b` at its name.
fn follow(net: &NetDouble, pair: MuxPair) -> (NetMux, NetMux) {
    let MuxPair { a, b, names, .. } = pair;
    drop(b);
    (a, net.mux(names[1]).unwrap())
}

/// An owner that has got the end of one connection would send over another one.
#[test]
fn the_death_of_a_process_ends_all_its_connections() {
    for by_opener in [true, false] {
        let mut pair = muxes();
        let (first, second) = (pair.token, connect_back(&mut pair));
        let probed = if by_opener { first } else { second };
        let net = pair.net.clone();
        let (mut a, mut other) = follow(&net, pair);
        a.probe(probed, now_ns() + HOUR_NS);
        other.poll(&mut Vec::new());
        let mut ready = Vec::new();
        a.poll(&mut ready);
        assert!(has_died(&mut a, probed));
        if !by_opener {
            // Another process could have sent that answer, so a ping of the other one decides.
            other.poll(&mut ready);
            a.poll(&mut ready);
        }
        assert!(has_died(&mut a, if by_opener { second } else { first }), "by opener: {by_opener}");
    }
}

#[test]
fn refusals_end_all_connections_of_a_process_at_once() {
    let mut pair = muxes();
    let (first, second) = (pair.token, connect_back(&mut pair));
    let MuxPair { net, mut a, .. } = pair;
    net.state().room = Some(0);
    a.probe(first, now_ns() + HOUR_NS);
    while !has_died(&mut a, first) {
        assert!(change(&mut a, second).is_none());
        a.poll(&mut Vec::new());
    }
    assert!(has_died(&mut a, second));
}

#[test]
fn a_living_process_that_lacks_a_connection_keeps_the_others() {
    let mut pair = muxes();
    let (first, second) = (pair.token, connect_back(&mut pair));
    let MuxPair { mut a, mut b, net, .. } = pair;
    b.close(second, CloseKind::Abandon);
    a.probe(second, now_ns() + HOUR_NS);
    b.poll(&mut Vec::new());
    a.poll(&mut Vec::new());
    assert!(has_died(&mut a, second));
    assert!(change(&mut a, first).is_none() && change(&mut b, first).is_none());
    drop(net);
}

#[test]
fn a_message_to_a_former_process_that_is_lost_late_ends_no_later_connection() {
    let pair = muxes();
    let (net, token, names) = (pair.net.clone(), pair.token, pair.names);
    // A message of the first connection, which is lost after the second one is up.
    let mut late = Vec::new();
    let mut a = pair.a;
    a.probe(token, now_ns() + HOUR_NS);
    net.change(names[1], |messages| late.extend(messages.pop_front()));
    let (mut a, mut other) = follow(&net, MuxPair { a, ..pair });
    let (later, _) = other.connect(PortId::abroad(0, names[0]), ID).unwrap();
    for _ in 0..4 {
        a.poll(&mut Vec::new());
        a.accept(ID);
        other.poll(&mut Vec::new());
    }
    assert!(has_died(&mut a, token));
    net.report_loss(names[0], &late[0]);
    let sent = net.state().sent;
    a.poll(&mut Vec::new());
    assert!(change(&mut a, later).is_none(), "of another process");
    assert!(net.state().sent > sent, "it is asked whether it lives");
}

/// Side whose peers another process claims to be.
struct ForgedPeer {
    net: NetDouble,
    to: SocketAddrV4,
    mark: u64,
}

impl ForgedPeer {
    const TOKEN: u64 = 77;

    fn send(&self, kind: FrameKind, sequence: u32, parts: &[&[u8]]) {
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(kind, ForgedPeer::TOKEN, sequence, 0));
        parts.iter().for_each(|part| message.extend_from_slice(part));
        seal(&mut message);
        self.net.forge(self.to, &message);
    }

    /// Opens a connection under `name`.
    fn connect(&self, a: &mut NetMux, name: SocketAddrV4) {
        let greeting = NetGreeting::new(0, name);
        self.send(FrameKind::Greeting, 0, &[greeting.as_bytes(), &self.mark.to_le_bytes()]);
        a.poll(&mut Vec::new());
        assert!(a.accept(ID).is_some());
        self.send(FrameKind::Credit, 1, &[]);
    }

    fn say_unknown(&self) {
        self.send(FrameKind::Unknown, 0, &[&(self.mark ^ 1).to_le_bytes()]);
    }
}

/// A process knows the marks of its peers, and can greet under any name.
#[test]
fn a_forged_mark_ends_no_connection_of_its_owner() {
    for is_own_name in [true, false] {
        let mut pair = muxes();
        let second = connect_back(&mut pair);
        let MuxPair { net, mut a, b, token, names } = pair;
        let hostile = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 9), 79);
        let _hostile = net.end(hostile);
        let name = if is_own_name { hostile } else { names[1] };
        let forged = ForgedPeer { net: net.clone(), to: names[0], mark: b.own.mark };
        forged.connect(&mut a, name);
        forged.say_unknown();
        a.poll(&mut Vec::new());
        assert!(has_died(&mut a, ForgedPeer::TOKEN));
        assert!(change(&mut a, token).is_none(), "by its own name: {is_own_name}");
        assert!(change(&mut a, second).is_none(), "by its own name: {is_own_name}");
        drop(b);
    }
}

#[test]
fn a_forged_mark_ends_no_connection_while_its_own_is_closed() {
    let mut pair = muxes();
    let second = connect_back(&mut pair);
    let MuxPair { net, mut a, b, token, names } = pair;
    let forged = ForgedPeer { net: net.clone(), to: names[0], mark: b.own.mark };
    forged.connect(&mut a, names[1]);
    a.poll(&mut Vec::new());
    // The last message waits for the network.
    net.state().room = Some(0);
    a.close(ForgedPeer::TOKEN, CloseKind::Graceful);
    assert!(!a.is_quiet());
    forged.say_unknown();
    a.poll(&mut Vec::new());
    net.state().room = None;
    a.poll(&mut Vec::new());
    assert!(change(&mut a, token).is_none() && change(&mut a, second).is_none());
    assert!(a.is_quiet());
    drop(b);
}
