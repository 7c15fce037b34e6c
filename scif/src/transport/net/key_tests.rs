// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Keys of jobs over the network in memory, and refusals.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::double::{NetDouble, change};
use super::frame::{FrameHead, FrameKind, HEAD, NetGreeting, begin, begin_record, open, seal};
use super::key::JobKey;
use super::mux::NetMux;
use super::stream::Accepted;
use super::tests::Host;
use crate::addr::PortId;
use crate::endpoint::LinkEvent;
use crate::error::{Error, Reason, Refusal};
use crate::segment::Side;
use crate::slab::ConnId;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate};

/// Polls after which a test has waited in vain.
const POLLS: usize = 100_000;

fn name(host: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 3, host), 77)
}

fn there(host: u8) -> PortId {
    PortId::abroad(0, name(host))
}

fn id(index: u32) -> ConnId {
    ConnId { index, generation: 1 }
}

/// Returns the port of a host with that key.
fn mux(net: &NetDouble, host: u8, key: &'static str) -> NetMux {
    net.state().key = JobKey::new(key);
    net.mux(name(host)).unwrap()
}

/// Lets both sides work until a connect of `a` has a result other than `Again`.
fn connect(a: &mut NetMux, b: &mut NetMux, to: PortId) -> Result<u64, Error> {
    for _ in 0..POLLS {
        match a.connect(to, id(0)) {
            Err(Error::Again) => {}
            other => return other.map(|(token, _)| token),
        }
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
    }
    panic!("no result");
}

/// Returns the messages that wait for a host.
fn waiting(net: &NetDouble, host: u8) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    net.change(name(host), |waiting| messages.extend(waiting.iter().cloned()));
    messages
}

fn kinds(messages: &[Vec<u8>]) -> Vec<Option<FrameKind>> {
    messages.iter().map(|message| open(message).unwrap().0.kind()).collect()
}

#[test]
fn a_connection_takes_records_once_both_sides_have_proved_the_key() {
    let net = NetDouble::default();
    let key = "a key of several words";
    let (mut a, mut b) = (mux(&net, 1, key), mux(&net, 2, key));
    let mut seen = Vec::new();
    for kind in [FrameKind::Greeting, FrameKind::Greeting] {
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
        assert_eq!(kinds(&waiting(&net, 2)), [Some(kind)]);
        assert!(b.accept(id(0)).is_none());
        seen.extend(waiting(&net, 2));
        b.poll(&mut Vec::new());
        seen.extend(waiting(&net, 1));
        a.poll(&mut Vec::new());
    }
    let accepted = b.accept(id(0)).unwrap();
    assert_eq!((accepted.peer, accepted.side), (there(1), Side::Acceptor));
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again, "the welcome is under way");
    seen.extend(waiting(&net, 1));
    a.poll(&mut Vec::new());
    let (token, _) = a.connect(there(2), id(0)).unwrap();
    let mut ready = Vec::new();
    a.poll(&mut ready);
    assert_eq!(ready, [id(0)]);
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Up(_))));
    assert!(change(&mut a, token).is_none());
    let expected = [FrameKind::Greeting, FrameKind::Challenge, FrameKind::Greeting];
    assert_eq!(kinds(&seen)[..3], expected.map(Some));
    let bytes = seen.concat();
    assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()));
    assert_eq!(token, accepted.token);
}

#[test]
fn records_cross_with_a_key_also_if_both_connect_at_once() {
    let net = NetDouble::default();
    net.state().key = JobKey::new("k");
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    let mut all = [Vec::new(), Vec::new()];
    // Each side asks until it has a connection, be it one that the other opened.
    for _ in 0..100 {
        for (host, to, conns) in [(0, b.id(), 0), (1, a.id(), 1)] {
            let host = if host == 0 { &mut a } else { &mut b };
            if all[conns].is_empty() {
                match host.endpoint.connect(to) {
                    Ok(conn) => all[conns].push(conn),
                    Err(error) => assert_eq!(error, Error::Again),
                }
            }
            let accepted = host.events().into_iter().filter_map(|event| match event {
                LinkEvent::Accepted(conn, _) => Some(conn),
                _ => None,
            });
            all[conns].extend(accepted);
        }
    }
    let [of_a, of_b] = all;
    assert_eq!((of_a.len(), of_b.len()), (2, 2), "each connection is known to both");
    for &conn in &of_a {
        assert!(a.send_record(conn, 1, b"from a", b""));
    }
    for &conn in &of_b {
        assert!(b.send_record(conn, 2, b"from b", b""));
    }
    for _ in 0..3 {
        a.events();
        b.events();
    }
    for &conn in &of_a {
        assert_eq!(a.receive_record(conn).map(|(kind, ..)| kind), Some(2));
    }
    for &conn in &of_b {
        assert_eq!(b.receive_record(conn).map(|(kind, ..)| kind), Some(1));
    }
}

#[test]
fn a_peer_with_another_key_is_refused_and_others_go_on() {
    for (ours, theirs) in [("k", "K"), ("k", ""), ("", "k")] {
        let net = NetDouble::default();
        let (mut a, mut b, mut other) =
            (mux(&net, 1, ours), mux(&net, 2, ours), mux(&net, 3, theirs));
        let rejected = Error::Rejected { port: there(1), refusal: Refusal::Key };
        match connect(&mut other, &mut a, there(1)) {
            Err(error) => assert_eq!(error, rejected),
            // Without a key a connection takes records before the answer.
            Ok(token) => {
                assert_eq!(theirs, "");
                a.poll(&mut Vec::new());
                other.poll(&mut Vec::new());
                let reason = Reason::Refused(Refusal::Key);
                let closed = change(&mut other, token);
                assert!(matches!(closed, Some(LinkUpdate::Closed(r)) if r == reason));
            }
        }
        let offered = net.state().offered;
        assert_eq!(other.connect(there(1), id(1)).unwrap_err(), rejected);
        assert_eq!(net.state().offered, offered, "no other greeting so soon");
        assert!(a.accept(id(0)).is_none());
        assert_eq!(a.logged_names(), 1);
        assert_eq!(other.logged_names(), 1);
        // In the other direction too.
        let to_other = connect(&mut a, &mut other, there(3));
        let rejected = Error::Rejected { port: there(3), refusal: Refusal::Key };
        assert!(to_other.is_ok() == ours.is_empty(), "{to_other:?}");
        if let Err(error) = to_other {
            assert_eq!(error, rejected);
        }
        for _ in 0..3 {
            a.poll(&mut Vec::new());
            other.poll(&mut Vec::new());
        }
        assert!(other.accept(id(0)).is_none());
        assert_eq!((a.logged_names(), other.logged_names()), (1, 1), "one line for each peer");
        // Peers with our key.
        connect(&mut a, &mut b, there(2)).unwrap();
        b.poll(&mut Vec::new());
        assert!(b.accept(id(0)).is_some());
        assert_eq!(b.logged_names(), 0);
    }
}

#[test]
fn a_refused_process_tries_again_later_and_a_valid_greeting_ends_that() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, "one"), mux(&net, 2, "two"));
    assert!(matches!(connect(&mut a, &mut b, there(2)), Err(Error::Rejected { .. })));
    drop(b);
    let mut b = mux(&net, 2, "one");
    let begin = now_ns();
    let token = loop {
        match connect(&mut a, &mut b, there(2)) {
            Ok(token) => break token,
            Err(error) => assert!(matches!(error, Error::Rejected { .. }), "{error}"),
        }
    };
    assert!(now_ns() > begin);
    a.close(token, CloseKind::Reset);
    drop(b);
    let mut b = mux(&net, 2, "two");
    while connect(&mut a, &mut b, there(2)).is_ok() {}
    assert!(matches!(a.connect(there(2), id(0)), Err(Error::Rejected { .. })));
    drop(b);
    let mut b = mux(&net, 2, "one");
    connect(&mut b, &mut a, there(1)).unwrap();
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
}

/// Sends both greetings of a connection from `a` to `b`, and returns them.
fn greet(net: &NetDouble, a: &mut NetMux, b: &mut NetMux) -> Vec<Vec<u8>> {
    let mut greetings = Vec::new();
    for _ in 0..2 {
        let _ = a.connect(there(2), id(0));
        greetings.extend(waiting(net, 2));
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
    }
    greetings
}

#[test]
fn a_greeting_of_a_former_connection_opens_no_other() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, "k"), mux(&net, 2, "k"));
    let greetings = greet(&net, &mut a, &mut b);
    assert!(b.accept(id(0)).is_some());
    drop((a, b));
    let mut later = mux(&net, 2, "k");
    let _a = net.end(name(1));
    for greeting in &greetings {
        net.forge(name(2), greeting);
    }
    later.poll(&mut Vec::new());
    assert!(later.accept(id(0)).is_none());
    assert_eq!(kinds(&waiting(&net, 1)), [Some(FrameKind::Challenge); 2]);
    // Under another name, or for another connection.
    for at in [8, HEAD + 20] {
        let mut forged = greetings[1].clone();
        forged[at] ^= 1;
        net.forge(name(2), &forged);
        later.poll(&mut Vec::new());
        assert!(later.accept(id(0)).is_none());
    }
}

#[test]
fn an_acceptor_without_the_key_is_refused() {
    for content in [&[1; 8][..], &[7; 48]] {
        let net = NetDouble::default();
        let mut a = mux(&net, 1, "k");
        let _impostor = net.end(name(2));
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
        let token = open(&waiting(&net, 2)[0]).unwrap().0.token();
        let mut welcome = Vec::new();
        begin(&mut welcome, FrameHead::new(FrameKind::Welcome, token, 0, 0));
        welcome.extend(content);
        seal(&mut welcome);
        net.forge(name(1), &welcome);
        a.poll(&mut Vec::new());
        let rejected = Error::Rejected { port: there(2), refusal: Refusal::Key };
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), rejected);
    }
}

#[test]
fn a_connection_that_its_owner_does_not_ask_for_is_accepted() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, "k"), mux(&net, 2, "k"));
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
    let accepted = (0..POLLS).find_map(|_| {
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
        a.accept(id(0))
    });
    let Accepted { token, peer, side, .. } = accepted.unwrap();
    assert_eq!((peer, side), (there(2), Side::Opener));
    assert_eq!(b.accept(id(0)).unwrap().token, token);
    assert!(change(&mut a, token).is_none() && a.accept(id(1)).is_none());
    // The next one is another.
    assert_eq!(a.connect(there(2), id(1)).unwrap_err(), Error::Again);
    b.poll(&mut Vec::new());
    a.refuse_all();
    b.poll(&mut Vec::new());
    assert!(a.is_quiet());
}

#[test]
fn the_end_of_a_pending_connection_is_an_error_of_the_connect() {
    let net = NetDouble::default();
    let (mut a, b) = (mux(&net, 1, "k"), mux(&net, 2, "k"));
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
    let token = open(&waiting(&net, 2)[0]).unwrap().0.token();
    let mut reset = Vec::new();
    begin(&mut reset, FrameHead::new(FrameKind::Reset, token, 0, 0));
    seal(&mut reset);
    net.forge(name(1), &reset);
    a.poll(&mut Vec::new());
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Refused(there(2)));
    drop(b);
    net.lose(name(2), name(1));
    a.poll(&mut Vec::new());
    assert!(a.connect(there(2), id(0)).is_err());
}

#[test]
fn both_sides_name_both_versions_and_the_next_connect_is_rejected() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, ""), mux(&net, 2, ""));
    let (token, _) = a.connect(there(2), id(0)).unwrap();
    net.change(name(2), |waiting| {
        // The version is behind magic, byte order and layout. A later one may have more bytes.
        let greeting = &mut waiting[0];
        greeting[HEAD + 12] ^= 1;
        greeting.extend(b"more");
        seal(greeting);
    });
    b.poll(&mut Vec::new());
    assert!(b.accept(id(0)).is_none());
    let refusal = waiting(&net, 1).remove(0);
    let (head, content) = open(&refusal).unwrap();
    assert_eq!(head.kind(), Some(FrameKind::Refusal(Refusal::Version)));
    let (own, _) = NetGreeting::decode(content).unwrap();
    assert_eq!(own, NetGreeting::new(0, name(2)));
    a.poll(&mut Vec::new());
    let reason = Reason::Refused(Refusal::Version);
    assert!(matches!(change(&mut a, token), Some(LinkUpdate::Closed(r)) if r == reason));
    let rejected = Error::Rejected { port: there(2), refusal: Refusal::Version };
    assert_eq!(a.connect(there(2), id(0)).unwrap_err(), rejected);
    assert_eq!((a.logged_names(), b.logged_names()), (1, 1));
}

#[test]
fn an_acceptor_that_sends_before_its_proof_is_no_peer() {
    let mut record = Vec::new();
    begin_record(&mut record, 7, 0, 0);
    for (kind, content) in [(FrameKind::Records, &record[..]), (FrameKind::Credit, &[])] {
        let net = NetDouble::default();
        let mut a = mux(&net, 1, "k");
        let impostor = net.end(name(2));
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
        let token = open(&waiting(&net, 2)[0]).unwrap().0.token();
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(kind, token, 0, 0));
        message.extend(content);
        seal(&mut message);
        net.forge(name(1), &message);
        a.poll(&mut Vec::new());
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Refused(there(2)), "{kind:?}");
        // It keeps no other process out.
        drop(impostor);
        let mut b = mux(&net, 2, "k");
        assert!(connect(&mut a, &mut b, there(2)).is_ok(), "{kind:?}");
    }
}

#[test]
fn a_process_that_follows_one_without_an_answer_is_greeted() {
    let net = NetDouble::default();
    let mut a = mux(&net, 1, "k");
    // Its network takes all greetings, and it answers none.
    let silent = net.end(name(2));
    let begin = now_ns();
    while net.state().sent < 5 {
        assert_eq!(a.connect(there(2), id(0)).unwrap_err(), Error::Again);
        a.poll(&mut Vec::new());
    }
    drop(silent);
    let mut b = mux(&net, 2, "k");
    loop {
        match a.connect(there(2), id(0)) {
            Ok(_) => break,
            Err(error) => assert_eq!(error, Error::Again),
        }
        a.poll(&mut Vec::new());
        b.poll(&mut Vec::new());
        assert!(now_ns() - begin < 20_000_000_000, "no connection");
    }
    assert!(b.accept(id(0)).is_some());
}

#[test]
fn a_process_without_the_key_passes_on_no_proof_of_another() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, "k"), mux(&net, 3, "k"));
    let _impostor = net.end(name(2));
    for _ in 0..4 {
        match a.connect(there(2), id(0)) {
            Ok(_) => panic!("the proof of another process"),
            Err(Error::Again | Error::Rejected { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let mut greetings = Vec::new();
        net.change(name(2), |messages| greetings.extend(messages.drain(..)));
        greetings.iter().for_each(|greeting| net.forge(name(3), greeting));
        b.poll(&mut Vec::new());
        a.poll(&mut Vec::new());
        assert!(b.accept(id(0)).is_none());
    }
}

#[test]
fn a_greeting_of_a_connection_that_has_ended_opens_no_other() {
    let net = NetDouble::default();
    let (mut a, mut b) = (mux(&net, 1, "k"), mux(&net, 2, "k"));
    let greetings = greet(&net, &mut a, &mut b);
    let token = b.accept(id(0)).unwrap().token;
    a.poll(&mut Vec::new());
    assert_eq!(a.connect(there(2), id(0)).unwrap().0, token);
    a.close(token, CloseKind::Reset);
    b.poll(&mut Vec::new());
    assert!(matches!(change(&mut b, token), Some(LinkUpdate::Closed(Reason::Reset))));
    a.poll(&mut Vec::new());
    net.forge(name(2), &greetings[1]);
    b.poll(&mut Vec::new());
    assert!(b.accept(id(0)).is_none());
    assert!(connect(&mut a, &mut b, there(2)).is_ok(), "a new one");
}
