// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests with networks that break their promises, and with peers that violate the protocol: right
//! data or the end of the connection, and the endpoint continues to serve.

use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use scif_ring::layout::{BODY_MAX, HEAD_MAX, RING_SLOTS};
use zerocopy::IntoBytes;

use super::double::{NetDouble, change};
use super::frame::{
    FrameHead, FrameKind, HEAD, NetGreeting, begin, begin_record, long_record, next_record, open,
    seal,
};
use super::mux::NetMux;
use super::outside::OutsideBodies;
use super::wire::{BODY_OUTSIDE, LONG_BODY_MAX, MESSAGE_MAX};
use crate::addr::PortId;
use crate::error::{Error, Reason};
use crate::outside_body::LongSend;
use crate::segment::{Side, Views};
use crate::slab::ConnId;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate};

const CASES: u32 = if cfg!(miri) { 2 } else { 200 };
const HOUR_NS: u64 = 3_600_000_000_000;
/// Rounds of probes and polls after which a connection hangs.
const ROUNDS: usize = 400;
const ID: ConnId = ConnId { index: 0, generation: 1 };
/// Size in bytes of a greeting.
const GREETING: usize = size_of::<NetGreeting>() + size_of::<u64>();
/// Letters of all kinds of messages.
const KINDS: &[u8] = b"GWHNDLCPUBR";

fn name(host: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 3, host), 70 + u16::from(host))
}

/// Kind, head and body of a record.
type SentRecord = (u8, Vec<u8>, Vec<u8>);

/// Returns the record with that number of one side.
fn record(side: usize, number: usize) -> SentRecord {
    let sizes = [0, 8, BODY_MAX, 300, LONG_BODY_MAX, 5000, BODY_MAX + 1, 1024];
    let byte = u8::try_from((number * 2 + side) % 251).unwrap();
    let body = vec![!byte; sizes[number * 5 % sizes.len()]];
    (byte | 0x40, vec![byte; number % (HEAD_MAX + 1)], body)
}

/// One side of a connection, with its owner's ends of the rings.
struct OwnerSide {
    number: usize,
    mux: NetMux,
    token: u64,
    views: Views,
    bodies: OutsideBodies,
    sent: usize,
    received: usize,
    end: Option<Reason>,
}

impl OwnerSide {
    /// Sends the next record, if there is space for it.
    fn push(&mut self) {
        let (kind, head, body) = record(self.number, self.sent);
        let is_sent = if body.len() > BODY_MAX || self.sent % 3 == 1 && !body.is_empty() {
            let append = &mut |message: &mut Vec<u8>| message.extend_from_slice(&body);
            let sent = self.mux.send_long(self.token, (kind, &head), body.len(), append);
            sent == LongSend::Sent
        } else {
            self.views.tx.push_slice(kind, &head, &body).is_ok()
        };
        self.sent += usize::from(is_sent);
        self.mux.flush(self.token);
    }

    /// Takes messages and changes.
    fn poll(&mut self) {
        self.mux.poll(&mut Vec::new());
        for _ in 0..4 {
            self.mux.move_bodies(self.token, &mut self.bodies);
            match change(&mut self.mux, self.token) {
                Some(LinkUpdate::Closed(reason)) => self.end = Some(reason),
                Some(LinkUpdate::Up(_) | LinkUpdate::Wake) => {}
                _ => break,
            }
        }
    }

    /// Reads a record. Returns it unless there is none.
    fn read(&mut self) -> Option<SentRecord> {
        let number = self.views.rx.consumed();
        let record = self.views.rx.peek().unwrap()?;
        let (mut kind, head) = (record.kind, record.head().to_vec());
        let mut body = vec![0; record.body.len()];
        record.body.copy_to_slice(&mut body);
        if kind == BODY_OUTSIDE {
            self.mux.move_bodies(self.token, &mut self.bodies);
            if let Some(outside) = self.bodies.take(number) {
                (kind, body) = (outside.kind(), outside.bytes().to_vec());
            }
        }
        self.views.rx.advance();
        self.views.rx.flush();
        Some((kind, head, body))
    }

    /// Reads a record, which must be the next one of the peer.
    fn check_next(&mut self) -> bool {
        let Some(found) = self.read() else { return false };
        assert!(found == record(1 - self.number, self.received), "record {}", self.received);
        self.received += 1;
        true
    }
}

/// Two hosts with one connection.
struct FaultStage {
    net: NetDouble,
    sides: [OwnerSide; 2],
    /// Messages that the network delays, each with the number of its receiver.
    late: Vec<(usize, Vec<u8>)>,
    now: u64,
}

impl FaultStage {
    fn new() -> FaultStage {
        let net = NetDouble::default();
        let [mut a, mut b] = [0, 1].map(|host| net.mux(name(host)).unwrap());
        let (token, segment) = a.connect(PortId::abroad(0, name(1)), ID).unwrap();
        b.poll(&mut Vec::new());
        let accepted = b.accept(ID).unwrap().segment;
        let opener = Views::new(segment, Side::Opener).unwrap();
        let acceptor = Views::new(accepted, Side::Acceptor).unwrap();
        let side = |number, mux, views| OwnerSide {
            number,
            mux,
            token,
            views,
            bodies: OutsideBodies::default(),
            sent: 0,
            received: 0,
            end: None,
        };
        let mut sides = [side(0, a, opener), side(1, b, acceptor)];
        sides.iter_mut().for_each(OwnerSide::poll);
        sides.iter_mut().for_each(OwnerSide::poll);
        FaultStage { net, sides, late: Vec::new(), now: now_ns() }
    }

    fn step(&mut self, step: &NetStep) {
        let FaultStage { net, sides, late, now } = self;
        match *step {
            NetStep::Push(side, count) => (0..count).for_each(|_| sides[side].push()),
            NetStep::Read(side, count) => {
                for _ in 0..count {
                    sides[side].check_next();
                }
            }
            NetStep::Poll(side) => sides[side].poll(),
            NetStep::Probe(side) => {
                *now += HOUR_NS;
                sides[side].mux.probe(sides[side].token, *now);
            }
            NetStep::Room(room) => net.state().room = room,
            NetStep::Full(is_full) => net.state().is_full = is_full,
            NetStep::Fault(to, at, ref fault) => net.change(to_name(to), |messages| {
                let Some(at) = (!messages.is_empty()).then(|| at.index(messages.len())) else {
                    return;
                };
                match *fault {
                    Fault::Lost => drop(messages.remove(at)),
                    Fault::Repeated => messages.push_back(messages[at].clone()),
                    Fault::Late => late.extend(messages.remove(at).map(|message| (to, message))),
                    Fault::Swapped(with) => messages.swap(at, with.index(messages.len())),
                    Fault::Cut(len) => messages[at].truncate(len),
                    Fault::Field(byte, value) => {
                        // It may be cut.
                        messages[at].get_mut(byte).into_iter().for_each(|byte| *byte = value);
                    }
                }
            }),
            NetStep::Deliver => {
                for (to, message) in late.drain(..) {
                    net.forge(to_name(to), &message);
                }
            }
        }
    }

    /// Lets the network work again, and probes, polls and reads until the connection has delivered
    /// everything or ended at both sides.
    fn settle(&mut self) {
        (self.net.state().room, self.net.state().is_full) = (None, false);
        for _ in 0..ROUNDS {
            let [a, b] = &self.sides;
            let is_complete = a.received == b.sent && b.received == a.sent;
            match (a.end, b.end) {
                (None, None) if is_complete => return,
                (Some(_), Some(_)) => return,
                _ => {}
            }
            self.now += HOUR_NS;
            for side in &mut self.sides {
                side.mux.probe(side.token, self.now);
                side.poll();
                while side.check_next() {}
            }
        }
        let [a, b] = &self.sides;
        panic!(
            "a hang: {} of {} and {} of {} arrived, ends {:?} {:?}",
            b.received, a.sent, a.received, b.sent, a.end, b.end
        );
    }
}

fn to_name(side: usize) -> SocketAddrV4 {
    name(u8::try_from(side).unwrap())
}

/// Checks that two ports exchange a record over a new connection.
fn check_service(from: &mut NetMux, to: &mut NetMux, at: SocketAddrV4) {
    let id = ConnId { index: 7, generation: 7 };
    let begin = now_ns();
    let (token, segment) = loop {
        match from.connect(PortId::abroad(0, at), id) {
            Ok(connected) => break connected,
            Err(error) => assert!(matches!(error, Error::Again), "{error}"),
        }
        assert!(now_ns() - begin < 20_000_000_000, "no connection");
    };
    let mut tx = Views::new(segment, Side::Opener).unwrap().tx;
    tx.push_slice(3, b"honest", b"body").unwrap();
    let mut rx = None;
    while now_ns() - begin < 20_000_000_000 {
        from.flush(token);
        from.poll(&mut Vec::new());
        to.poll(&mut Vec::new());
        while let Some(accepted) = to.accept(id) {
            if accepted.token == token {
                rx = Some(Views::new(accepted.segment, Side::Acceptor).unwrap().rx);
            }
        }
        if let Some(record) = rx.as_mut().and_then(|rx| rx.peek().unwrap()) {
            assert_eq!((record.kind, record.head()), (3, &b"honest"[..]));
            from.close(token, CloseKind::Graceful);
            to.poll(&mut Vec::new());
            to.close(token, CloseKind::Abandon);
            return;
        }
    }
    panic!("an honest peer was not served");
}

/// Violation of what a network promises, for one message on its way.
#[derive(Clone, Debug)]
enum Fault {
    Lost,
    Repeated,
    Late,
    Swapped(Index),
    Cut(usize),
    /// Other value of one byte of the head.
    Field(usize, u8),
}

#[derive(Clone, Debug)]
enum NetStep {
    Push(usize, usize),
    Read(usize, usize),
    Poll(usize),
    Probe(usize),
    Room(Option<usize>),
    Full(bool),
    Fault(usize, Index, Fault),
    Deliver,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Lost),
        Just(Fault::Repeated),
        Just(Fault::Late),
        any::<Index>().prop_map(Fault::Swapped),
        (0..HEAD).prop_map(Fault::Cut),
        (0..HEAD, any::<u8>()).prop_map(|(at, value)| Fault::Field(at, value)),
        (0..HEAD, 0_u8..4).prop_map(|(at, value)| Fault::Field(at, value)),
        select(KINDS).prop_map(|kind| Fault::Field(0, kind)),
    ]
}

/// Returns one step of a network that delays, refuses, and keeps its promises.
fn honest_step() -> impl Strategy<Value = NetStep> {
    prop_oneof![
        6 => (0..2_usize, 1..12_usize).prop_map(|(side, count)| NetStep::Push(side, count)),
        4 => (0..2_usize, 1..20_usize).prop_map(|(side, count)| NetStep::Read(side, count)),
        6 => (0..2_usize).prop_map(NetStep::Poll),
        1 => (0..2_usize).prop_map(NetStep::Probe),
        2 => proptest::option::of(0..4_usize).prop_map(NetStep::Room),
        1 => any::<bool>().prop_map(NetStep::Full),
    ]
}

fn any_step() -> impl Strategy<Value = NetStep> {
    prop_oneof![
        20 => honest_step(),
        1 => (0..2_usize, any::<Index>(), fault())
            .prop_map(|(to, at, fault)| NetStep::Fault(to, at, fault)),
        1 => Just(NetStep::Deliver),
    ]
}

/// Side that gets the messages of a hostile peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Victim {
    Opener,
    Acceptor,
    /// An opener without an answer so far.
    Unanswered,
}

impl Victim {
    /// Returns the number of the next message: an answer, or one behind an answer, or one behind a
    /// greeting and the confirmation of its answer.
    fn next_message(self) -> u32 {
        match self {
            Victim::Unanswered => 0,
            Victim::Opener => 1,
            Victim::Acceptor => 2,
        }
    }
}

/// Message of a hostile peer: kind, changes of its true sequence number and credit, and content.
type HostileMessage = (u8, u32, u32, Vec<HostileRecord>);
/// Kind of a record, lengths that it claims, and the bytes that follow.
type HostileRecord = (u8, u8, u32, usize);

fn hostile_message() -> impl Strategy<Value = HostileMessage> {
    let number = || prop_oneof![20 => Just(0), 1 => any::<u32>(), 1 => 1..9_u32];
    let len = prop_oneof![
        6 => 0..300_u32,
        2 => 16_300..16_500_u32,
        1 => 65_000..66_000_u32,
        1 => any::<u32>(),
    ];
    let kind = prop_oneof![Just(BODY_OUTSIDE), any::<u8>()];
    let head_len = prop_oneof![9 => 0..57_u8, 1 => any::<u8>()];
    // Mostly as many bytes as claimed.
    let record = (kind, head_len, len, prop_oneof![9 => Just(0), 1 => 1..70_000_usize]);
    let kinds =
        prop_oneof![20 => Just(b'D'), 6 => Just(b'L'), 3 => select(KINDS), 1 => any::<u8>()];
    (kinds, number(), number(), vec(record, 0..6))
}

/// Returns the content of a message, at most what a network takes.
fn content(records: &[HostileRecord]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(kind, head_len, body_len, other_len) in records {
        begin_record(&mut bytes, kind, head_len, body_len as usize);
        let follow = match other_len {
            0 => usize::from(head_len) + body_len as usize,
            len => len,
        };
        bytes.resize(bytes.len() + follow.min(MESSAGE_MAX), 0x5a);
    }
    bytes.truncate(MESSAGE_MAX - HEAD);
    bytes
}

fn message(kind: FrameKind, token: u64, content: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    begin(&mut message, FrameHead::new(kind, token, 0, 0));
    message.extend_from_slice(content);
    seal(&mut message);
    message
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_taken_apart_within_their_bounds(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..300),
            vec(hostile_message(), 1..2).prop_map(|messages| content(&messages[0].3)),
        ],
    ) {
        let range = bytes.as_ptr_range();
        let within = |part: &[u8]| {
            let part = part.as_ptr_range();
            part.start == part.end || range.start <= part.start && part.end <= range.end
        };
        if let Some((head, rest)) = open(&bytes) {
            prop_assert_eq!(rest.len() + HEAD, bytes.len());
            let _ = (head.kind(), head.token(), head.sequence(), head.credit());
        }
        if let Some((greeting, rest)) = NetGreeting::decode(&bytes) {
            prop_assert!(greeting.name().port() != 0 && within(rest));
        }
        let mut rest = &bytes[..];
        while let Some((record, size)) = next_record(rest) {
            prop_assert!(within(record.head) && within(record.body) && size <= rest.len());
            prop_assert!(record.head.len() <= HEAD_MAX && record.body.len() <= BODY_MAX);
            rest = &rest[size..];
        }
        if let Some(record) = long_record(&bytes) {
            prop_assert!(within(record.head) && within(record.body));
            prop_assert!(record.body.len() <= LONG_BODY_MAX);
        }
    }

    #[test]
    fn greetings_of_any_bytes_are_refused_or_ignored(
        changes in vec((0..GREETING, any::<u8>()), 1..4),
        len in prop_oneof![9 => Just(GREETING), 1 => 0..60_usize],
    ) {
        let net = NetDouble::default();
        let [mut a, mut b] = [0, 1].map(|host| net.mux(name(host)).unwrap());
        let good = NetGreeting::new(0, name(1));
        let mut bytes = good.as_bytes().to_vec();
        bytes.extend([1; 8]);
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes.resize(len, 0);
        net.forge(name(0), &message(FrameKind::Greeting, 9, &bytes));
        a.poll(&mut Vec::new());
        let accepted = a.accept(ID).is_some();
        // Node, port and address may be those of another sender.
        let permitted = bytes.len() == GREETING && bytes[..14] == good.as_bytes()[..14];
        prop_assert!(permitted || !accepted);
        check_service(&mut b, &mut a, name(0));
    }

    #[test]
    fn a_network_that_delays_and_refuses_delivers_everything(
        steps in vec(honest_step(), 1..120),
    ) {
        let mut stage = FaultStage::new();
        steps.iter().for_each(|step| stage.step(step));
        stage.settle();
        let [a, b] = &stage.sides;
        prop_assert_eq!((a.end, b.end), (None, None));
        prop_assert_eq!((a.received, b.received), (b.sent, a.sent));
    }

    #[test]
    fn a_network_that_breaks_its_promises_delivers_right_data_or_ends_the_connection(
        steps in vec(any_step(), 1..120),
    ) {
        let mut stage = FaultStage::new();
        steps.iter().for_each(|step| stage.step(step));
        stage.settle();
        let [a, b] = &mut stage.sides;
        check_service(&mut a.mux, &mut b.mux, name(1));
    }

    #[test]
    fn messages_of_a_hostile_peer_end_its_connection_only(
        messages in vec(hostile_message(), 1..40),
        victim in select(&[Victim::Opener, Victim::Acceptor, Victim::Unanswered][..]),
    ) {
        let mut stage = FaultStage::new();
        let number = usize::from(victim == Victim::Acceptor);
        let mut sequence = victim.next_message();
        let side = &mut stage.sides[number];
        let _fifth = stage.net.end(name(5));
        if victim == Victim::Unanswered {
            let (token, segment) = side.mux.connect(PortId::abroad(0, name(5)), ID).unwrap();
            (side.token, side.views) = (token, Views::new(segment, Side::Opener).unwrap());
        }
        for (at, (kind, ahead, credit, records)) in messages.into_iter().enumerate() {
            let claimed = sequence.wrapping_add(ahead);
            let mut bytes = Vec::new();
            begin(&mut bytes, FrameHead::new(FrameKind::Records, side.token, claimed, credit));
            bytes[0] = kind;
            bytes.extend(content(&records));
            seal(&mut bytes);
            stage.net.forge(to_name(number), &bytes);
            side.poll();
            sequence = claimed.wrapping_add(1);
            if at % 3 == 0 {
                side.read();
            }
        }
        side.poll();
        let kept = std::iter::from_fn(|| side.read()).count();
        prop_assert!(kept <= RING_SLOTS);
        let mut third = stage.net.mux(name(7)).unwrap();
        check_service(&mut third, &mut side.mux, to_name(number));
        check_service(&mut side.mux, &mut third, name(7));
    }
}
