// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections over the network in memory, between endpoints of several hosts in one process.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use scif_ring::Mem;
use scif_ring::layout::{BODY_MAX, HEAD_MAX, RING_SLOTS};

use super::double::{DECODER, NetDouble};
use super::frame::{FrameHead, FrameKind, begin, open, seal};
use crate::addr::PortId;
use crate::config::Config;
use crate::connection::Connection;
use crate::endpoint::{CloseHow, Endpoint, LinkEvent};
use crate::error::{Reason, Refusal};
use crate::keys::Exports;
use crate::node::{Node, TransportKind};
use crate::remote_reads::{ReadBegun, ReadState, WireMemory};
use crate::slab::ConnId;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;

/// Polls after which a test has waited in vain.
const POLLS: usize = 100_000;

/// One host with one endpoint.
pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    pub(super) name: SocketAddrV4,
}

impl Host {
    pub(super) fn new(net: &NetDouble, number: u8) -> Host {
        let node = Node::open(Config::default(), TransportKind::Local).unwrap();
        let name = SocketAddrV4::new(Ipv4Addr::new(10, 1, 1, number), 2000 + u16::from(number));
        let wire = Some((net.end(name), DECODER));
        let exports = Exports::default();
        let endpoint = Endpoint::bind_over(&node, name.port(), exports, wire).unwrap();
        Host { endpoint, name }
    }

    /// Returns the port as other hosts know it.
    pub(super) fn id(&self) -> PortId {
        PortId::abroad(self.endpoint.id().node, self.name)
    }

    pub(super) fn events(&mut self) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        self.endpoint.poll_links(&mut events);
        events
    }

    pub(super) fn conn(&mut self, id: ConnId) -> &mut Connection {
        self.endpoint.conn(id).unwrap()
    }

    pub(super) fn send_record(&mut self, id: ConnId, kind: u8, head: &[u8], body: &[u8]) -> bool {
        let conn = self.conn(id);
        let pushed = conn.tx().push_slice(kind, head, body).is_ok();
        conn.notify();
        pushed
    }

    pub(super) fn receive_record(&mut self, id: ConnId) -> Option<(u8, Vec<u8>, Vec<u8>)> {
        let rx = self.conn(id).rx();
        let record = rx.peek().unwrap()?;
        let mut body = vec![0; record.body.len()];
        record.body.copy_to_slice(&mut body);
        rx.advance();
        Some((record.kind, record.head().to_vec(), body))
    }

    pub(super) fn closed(&mut self, id: ConnId) -> Reason {
        for _ in 0..POLLS {
            for event in self.events() {
                match event {
                    LinkEvent::Closed(which, reason) if which == id => return reason,
                    _ => {}
                }
            }
        }
        panic!("the connection has not ended");
    }

    pub(super) fn accepted(&mut self) -> (ConnId, PortId) {
        for _ in 0..POLLS {
            for event in self.events() {
                if let LinkEvent::Accepted(id, from) = event {
                    return (id, from);
                }
            }
        }
        panic!("no connection was accepted");
    }
}

pub(super) struct HostPair {
    pub(super) net: NetDouble,
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) ab: ConnId,
    pub(super) ba: ConnId,
}

pub(super) fn pair() -> HostPair {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    let ab = a.endpoint.connect(b.id()).unwrap();
    let (ba, from) = b.accepted();
    assert_eq!(from, a.id());
    assert!(a.events().contains(&LinkEvent::Connected(ab)));
    // The confirmation.
    assert!(b.events().is_empty());
    HostPair { net, a, b, ab, ba }
}

#[test]
fn records_of_an_endpoint_without_polls_are_sent_by_others() {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    assert!(!a.endpoint.is_sending(now_ns()));
    let ab = a.endpoint.connect(b.id()).unwrap();
    assert!(a.send_record(ab, 1, b"head", b"body"));
    let (ba, _) = b.accepted();
    assert!(b.events().is_empty());
    assert_eq!(b.receive_record(ba), None, "the answer of the peer is not taken");
    assert!(a.endpoint.is_sending(now_ns()));
    assert!(!a.endpoint.is_sending(now_ns() + 3_600_000_000_000), "the peer has stopped");
    a.endpoint.relay();
    b.events();
    assert_eq!(b.receive_record(ba), Some((1, b"head".to_vec(), b"body".to_vec())));
    assert!(!a.endpoint.is_sending(now_ns()));
    // The next poll reports what was found meanwhile, once.
    assert_eq!(a.events(), [LinkEvent::Connected(ab)]);
    assert_eq!(a.events(), []);
    // The network takes nothing for a while.
    net.state().is_full = true;
    assert!(a.send_record(ab, 2, b"", b"") && a.endpoint.is_sending(now_ns()));
    a.endpoint.relay();
    net.state().is_full = false;
    a.endpoint.relay();
    b.events();
    assert_eq!(b.receive_record(ba), Some((2, vec![], vec![])));
    assert!(!a.endpoint.is_sending(now_ns()));
}

#[test]
fn records_of_every_size_cross_in_order_in_both_directions() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let sizes = [0, 1, 8, 4000, BODY_MAX - 1, BODY_MAX];
    let record = |i: usize| {
        let byte = u8::try_from(i % 251).unwrap();
        (byte, vec![byte; i % (HEAD_MAX + 1)], vec![!byte; sizes[i % sizes.len()]])
    };
    let (mut sent, mut received, mut answered) = (0, 0, 0);
    let mut polls = 0;
    while answered < 3000 {
        polls += 1;
        assert!(polls < POLLS, "{sent} sent, {received} received, {answered} answered");
        // The network takes little at a time.
        net.state().room = Some(polls % 4);
        let (kind, head, body) = record(sent);
        if sent < 3000 && a.send_record(ab, kind, &head, &body) {
            sent += 1;
        }
        b.events();
        while received < sent && b.conn(ba).tx().room(BODY_MAX) {
            let Some(got) = b.receive_record(ba) else { break };
            assert_eq!(got, record(received));
            assert!(b.send_record(ba, got.0, &got.1, &got.2));
            received += 1;
        }
        b.conn(ba).rx().flush();
        b.conn(ba).notify();
        a.events();
        while let Some(got) = a.receive_record(ab) {
            assert_eq!(got, record(answered));
            answered += 1;
        }
        a.conn(ab).rx().flush();
    }
}

#[test]
fn records_cross_again_after_a_rest() {
    let HostPair { mut a, mut b, ab, ba, .. } = pair();
    for round in 0..2_u8 {
        for byte in 0..100 {
            let body = vec![byte ^ round; 3000];
            assert!(a.send_record(ab, 1, &[byte], &body));
            a.events();
            b.events();
            assert_eq!(b.receive_record(ba), Some((1, vec![byte], body)));
            b.conn(ba).rx().flush();
        }
        let begin = now_ns();
        while now_ns() - begin < 1_100_000_000 {
            a.events();
            b.events();
        }
    }
}

#[test]
fn records_pushed_before_the_answer_arrive_after_the_greeting() {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    net.state().room = Some(0);
    let ab = a.endpoint.connect(b.id()).unwrap();
    assert!(a.send_record(ab, 7, b"early", b""));
    assert!(b.events().is_empty(), "the network has taken nothing yet");
    net.state().room = None;
    assert!(!a.events().contains(&LinkEvent::Connected(ab)));
    let (ba, _) = b.accepted();
    assert!(b.receive_record(ba).is_none(), "held until the answer");
    assert!(a.events().contains(&LinkEvent::Connected(ab)));
    b.events();
    assert_eq!(b.receive_record(ba), Some((7, b"early".to_vec(), Vec::new())));
}

#[test]
fn first_messages_that_the_network_loses_are_repeated() {
    for lost in 0..4 {
        let net = NetDouble::default();
        let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
        let ab = a.endpoint.connect(b.id()).unwrap();
        assert!(a.send_record(ab, 7, b"early", b""));
        let (mut ba, mut answered, mut got) = (None, false, Vec::new());
        let begin = now_ns();
        // The greeting, the welcome, or both.
        let lose = |name, round| {
            if lost & (1 << round) != 0 && now_ns() - begin < 20_000_000 {
                net.change(name, VecDeque::clear);
            }
        };
        while got.len() < 2 {
            assert!(now_ns() - begin < 10_000_000_000, "lost {lost}: {got:?}");
            lose(b.name, 0);
            for event in b.events() {
                if let LinkEvent::Accepted(id, _) = event {
                    assert!(b.send_record(id, 8, b"reply", b""));
                    assert!(ba.replace(id).is_none(), "accepted twice");
                }
            }
            lose(a.name, 1);
            answered |= a.events().contains(&LinkEvent::Connected(ab));
            got.extend(ba.and_then(|id| b.receive_record(id)));
            got.extend(a.receive_record(ab));
        }
        assert!(answered);
        got.sort_unstable();
        assert_eq!(got[0], (7, b"early".to_vec(), Vec::new()));
        assert_eq!(got[1], (8, b"reply".to_vec(), Vec::new()));
        // Repetitions on their way have no effect.
        let end = now_ns() + 200_000_000;
        while now_ns() < end {
            assert!(a.events().is_empty() && b.events().is_empty());
        }
    }
}

#[test]
fn a_receiver_that_does_not_read_stops_its_sender_and_keeps_at_most_one_ring() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let body = vec![5; BODY_MAX];
    let (mut pushed, before) = (0, net.state().sent);
    for _ in 0..1000 {
        pushed += usize::from(a.send_record(ab, 1, b"", &body));
        a.events();
        b.events();
    }
    // One ring at the receiver, and one that waits at the sender.
    assert!(pushed <= 2 * 4, "{pushed} records of a quarter of a ring");
    assert!(net.state().sent - before <= 4);
    let mut received = 0;
    for _ in 0..POLLS {
        while b.receive_record(ba).is_some() {
            received += 1;
        }
        b.conn(ba).rx().flush();
        b.events();
        a.events();
        if received == pushed {
            return;
        }
    }
    panic!("{received} of {pushed} arrived");
}

#[test]
fn gaps_repetitions_and_reordering_reset_the_connection() {
    type Change = fn(&mut VecDeque<Vec<u8>>);
    let changes: [Change; 3] = [
        |waiting| drop(waiting.pop_front()),
        |waiting| waiting.swap(0, 1),
        |waiting| {
            let again = waiting[0].clone();
            waiting.push_front(again);
        },
    ];
    for change in changes {
        let HostPair { net, mut a, mut b, ab, ba } = pair();
        net.state().held = true;
        assert!(a.send_record(ab, 1, b"first", b"") && a.send_record(ab, 2, b"second", b""));
        net.change(b.name, change);
        net.state().held = false;
        assert_eq!(b.closed(ba), Reason::Corrupt);
        b.endpoint.close_conn(ba, CloseHow::Reset);
        assert_eq!(a.closed(ab), Reason::Reset);
    }
}

#[test]
fn messages_of_hostile_peers_end_their_connection_or_are_ignored() {
    let next_head = |net: &NetDouble, to: SocketAddrV4| {
        let mut head = None;
        net.change(to, |waiting| head = Some(open(&waiting[0]).unwrap().0));
        head.unwrap()
    };
    for (kind, credit, rest) in [
        (FrameKind::Records, 0, &b"not a record"[..]),
        (FrameKind::Records, 0, &[1, 57, 0, 0, 0, 0, 0, 0]),
        (FrameKind::Records, 0, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        (FrameKind::Credit, 1, &[]),
        (FrameKind::Welcome, 0, &[]),
    ] {
        let HostPair { net, mut a, mut b, ab, ba } = pair();
        net.state().held = true;
        assert!(a.send_record(ab, 1, b"", b""));
        let head = next_head(&net, b.name);
        net.change(b.name, VecDeque::clear);
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(kind, head.token(), head.sequence(), credit));
        message.extend_from_slice(rest);
        seal(&mut message);
        net.forge(b.name, &message);
        net.state().held = false;
        assert_eq!(b.closed(ba), Reason::Corrupt, "{kind:?}");
    }
    // Only an opener sends greetings.
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    net.state().held = true;
    assert!(b.send_record(ba, 1, b"", b""));
    let head = next_head(&net, a.name);
    let mut greeting = Vec::new();
    begin(&mut greeting, FrameHead::new(FrameKind::Greeting, head.token(), head.sequence(), 0));
    seal(&mut greeting);
    net.forge(a.name, &greeting);
    net.state().held = false;
    assert_eq!(a.closed(ab), Reason::Corrupt);
    // Of no connection, too short, or no message at all.
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let mut stray = Vec::new();
    begin(&mut stray, FrameHead::new(FrameKind::Bye, 1, 0, 0));
    seal(&mut stray);
    let mut greeting = Vec::new();
    begin(&mut greeting, FrameHead::new(FrameKind::Greeting, 2, 0, 0));
    greeting.extend(b"hello");
    seal(&mut greeting);
    for message in [&stray[..], &stray[..23], b"GET / HTTP/1.1\r\n\r\n", b"", &greeting] {
        net.forge(b.name, message);
    }
    assert!(b.events().is_empty());
    assert!(a.send_record(ab, 3, b"still here", b""));
    b.events();
    assert_eq!(b.receive_record(ba), Some((3, b"still here".to_vec(), Vec::new())));
}

#[test]
fn more_records_than_credit_permits_end_the_connection() {
    let mut pair = pair();
    let (token, first) = pair.next_message();
    let HostPair { net, mut b, ba, .. } = pair;
    for sequence in first..first + u32::try_from(RING_SLOTS).unwrap() {
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(FrameKind::Records, token, sequence, 0));
        message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        seal(&mut message);
        net.forge(b.name, &message);
    }
    assert_eq!(b.closed(ba), Reason::Corrupt);
    let kept = std::iter::from_fn(|| b.receive_record(ba)).count();
    assert_eq!(kept, RING_SLOTS, "records that had credit remain to be read");
}

#[test]
fn a_close_delivers_earlier_records() {
    let HostPair { mut a, mut b, ab, ba, net } = pair();
    for i in 0..10 {
        assert!(a.send_record(ab, i, b"last words", b""));
    }
    a.endpoint.close_conn(ab, CloseHow::Orderly);
    assert_eq!(b.closed(ba), Reason::Orderly);
    for i in 0..10 {
        assert_eq!(b.receive_record(ba), Some((i, b"last words".to_vec(), Vec::new())));
    }
    drop(net);
}

#[test]
fn ends_have_their_reasons() {
    let HostPair { mut a, mut b, ab, ba, .. } = pair();
    b.endpoint.close_conn(ba, CloseHow::Reset);
    assert_eq!(a.closed(ab), Reason::Reset);

    let HostPair { net, mut a, b, ab, .. } = pair();
    let name = b.name;
    b.endpoint.abandon();
    net.lose(name, a.name);
    assert_eq!(a.closed(ab), Reason::Died);

    // A listener that closes before it accepts.
    let net = NetDouble::default();
    let (mut a, b) = (Host::new(&net, 1), Host::new(&net, 2));
    let ab = a.endpoint.connect(b.id()).unwrap();
    drop(b);
    assert_eq!(a.closed(ab), Reason::Refused(Refusal::Closed));
}

#[test]
fn another_version_is_refused() {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    let ab = a.endpoint.connect(b.id()).unwrap();
    net.change(b.name, |waiting| {
        let [greeting] = waiting.make_contiguous() else { panic!("one message") };
        // The version is behind magic, byte order and layout.
        greeting[super::frame::HEAD + 12] ^= 1;
    });
    assert!(b.events().is_empty());
    assert_eq!(a.closed(ab), Reason::Refused(Refusal::Version));
}

#[test]
fn both_may_connect_at_once_and_local_peers_do_without_the_network() {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    let ab = a.endpoint.connect(b.id()).unwrap();
    let ba = b.endpoint.connect(a.id()).unwrap();
    let (accepted_b, _) = b.accepted();
    let (accepted_a, _) = a.accepted();
    assert!(a.send_record(ab, 1, b"over mine", b"") && b.send_record(ba, 2, b"over mine", b""));
    for _ in 0..3 {
        a.events();
        b.events();
    }
    assert_eq!(b.receive_record(accepted_b).map(|(kind, ..)| kind), Some(1));
    assert_eq!(a.receive_record(accepted_a).map(|(kind, ..)| kind), Some(2));

    let sent = net.state().sent;
    let own = a.endpoint.id();
    assert_eq!(own.place, 0);
    let to_self = a.endpoint.connect(own).unwrap();
    let (from_self, _) = a.accepted();
    assert!(a.send_record(to_self, 9, b"near", b""));
    assert_eq!(a.receive_record(from_self).map(|(kind, ..)| kind), Some(9));
    assert_eq!(net.state().sent, sent);
}

#[test]
fn a_message_is_expected_soon_after_one_came() {
    let HostPair { mut a, mut b, ab, ba, .. } = pair();
    assert!(a.send_record(ab, 1, b"", b""));
    b.events();
    let now = crate::sys::time::now_ns();
    assert!(b.endpoint.is_expecting(now));
    let later = now + 3_600_000_000_000;
    assert!(!b.endpoint.is_expecting(later));
    assert!(b.send_record(ba, 1, b"", b""));
    assert!(b.endpoint.is_expecting(later), "an answer");
    assert!(!b.endpoint.is_expecting(2 * later));
    let plain = Node::open(Config::default(), TransportKind::Local).unwrap();
    let plain = Endpoint::bind(&Arc::clone(&plain), 0, Exports::default()).unwrap();
    assert!(!plain.is_expecting(now));
}

/// Returns memory that lives as long as the test.
pub(super) fn memory(bytes: Vec<u8>) -> Mem {
    let map = Box::leak(Box::new(Mapping::private(bytes.len()).unwrap()));
    let memory = map.bytes(0, bytes.len()).unwrap();
    memory.copy_from_slice(&bytes);
    memory
}

#[test]
fn exposed_memory_is_read_until_it_is_revoked() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let (from, to) = (memory((0..100).collect()), memory(vec![0; 30]));
    let exposed = a.conn(ab).remote_reads().unwrap().expose(&from).unwrap();
    assert!(a.endpoint.is_expecting(now_ns()), "the peer reads only while this side polls");
    let part = WireMemory { addr: exposed.addr + 20, ..exposed };
    net.state().no_reads = true;
    assert_eq!(b.conn(ba).remote_reads().unwrap().read(part, &to), ReadBegun::Later);
    net.state().no_reads = false;
    net.state().held = true;
    let reads = b.conn(ba).remote_reads().unwrap();
    let ReadBegun::Reading(number) = reads.read(part, &to) else { panic!("refused") };
    b.events();
    assert_eq!(b.conn(ba).remote_reads().unwrap().state(number), ReadState::Reading);
    assert!(b.endpoint.is_expecting(u64::MAX));
    net.state().held = false;
    b.events();
    assert_eq!(b.conn(ba).remote_reads().unwrap().state(number), ReadState::Done);
    let mut read = vec![0; 30];
    to.copy_to_slice(&mut read);
    assert_eq!(read, (20..50).collect::<Vec<u8>>());

    a.endpoint.revoke(exposed.key);
    assert!(net.state().exposed.is_empty() && !a.endpoint.is_expecting(u64::MAX));
    let reads = b.conn(ba).remote_reads().unwrap();
    let ReadBegun::Reading(number) = reads.read(part, &to) else { panic!("refused") };
    b.events();
    assert_eq!(b.conn(ba).remote_reads().unwrap().state(number), ReadState::Failed);
}

#[test]
fn the_end_of_a_connection_revokes_its_memory_and_no_read_begins_after_it() {
    for how in [CloseHow::Orderly, CloseHow::Reset] {
        let HostPair { net, mut a, mut b, ab, ba } = pair();
        let from = memory(vec![1; 8]);
        let exposed = a.conn(ab).remote_reads().unwrap().expose(&from).unwrap();
        a.endpoint.close_conn(ab, how);
        assert!(net.state().exposed.is_empty());
        b.closed(ba);
        let reads = b.conn(ba).remote_reads().unwrap();
        assert_eq!(reads.read(exposed, &from), ReadBegun::Refused);
        assert_eq!(reads.expose(&from), None);
    }
    // By the peer.
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    assert!(a.conn(ab).remote_reads().unwrap().expose(&memory(vec![1; 8])).is_some());
    b.endpoint.close_conn(ba, CloseHow::Reset);
    a.closed(ab);
    assert!(net.state().exposed.is_empty());
}

#[test]
fn a_read_that_does_not_end_in_time_is_ended_with_the_network() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let exposed = a.conn(ab).remote_reads().unwrap().expose(&memory(vec![1; 8])).unwrap();
    let reads = b.conn(ba).remote_reads().unwrap();
    let ReadBegun::Reading(first) = reads.read(exposed, &memory(vec![0; 8])) else { panic!() };
    reads.finish(first, u64::MAX);
    net.state().held = true;
    let ReadBegun::Reading(second) = reads.read(exposed, &memory(vec![0; 8])) else { panic!() };
    reads.finish(second, 0);
    net.state().held = false;
    assert_eq!(reads.state(second), ReadState::Failed);
    assert_eq!(reads.read(exposed, &memory(vec![0; 8])), ReadBegun::Refused);
}

#[test]
fn a_reset_before_the_network_took_the_greeting_leaves_nothing() {
    let net = NetDouble::default();
    let (mut a, mut b) = (Host::new(&net, 1), Host::new(&net, 2));
    for is_taken in [false, true] {
        net.state().room = if is_taken { None } else { Some(0) };
        let ab = a.endpoint.connect(b.id()).unwrap();
        assert!(!a.endpoint.may_sleep(), "the double announces nothing");
        a.endpoint.close_conn(ab, CloseHow::Reset);
        net.state().room = None;
        a.events();
        let accepted = b.events().iter().any(|event| matches!(event, LinkEvent::Accepted(..)));
        assert_eq!(accepted, is_taken);
    }
}
