// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records past the rings, over the network in memory.

use scif_ring::layout::{BODY_MAX, HEAD_MAX, RING_SLOTS};

use super::frame::{FrameHead, FrameKind, begin, begin_record, open, seal};
use super::tests::{Host, HostPair, pair};
use super::wire::{BODY_OUTSIDE, LONG_BODY_MAX, MESSAGE_MAX};
use crate::endpoint::CloseHow;
use crate::error::Reason;
use crate::outside_body::LongSend;
use crate::slab::ConnId;

impl Host {
    fn send_long(&mut self, id: ConnId, kind: u8, head: &[u8], body: &[u8]) -> bool {
        let append = &mut |message: &mut Vec<u8>| message.extend_from_slice(body);
        self.conn(id).send_long(kind, head, body.len(), append) == LongSend::Sent
    }

    /// Returns the next record, whose body may be outside the ring.
    fn receive_any(&mut self, id: ConnId) -> Option<(u8, Vec<u8>, Vec<u8>)> {
        let conn = self.conn(id);
        let record = conn.rx().peek().unwrap()?;
        let head = record.head().to_vec();
        let mut body = vec![0; record.body.len()];
        record.body.copy_to_slice(&mut body);
        let mut kind = record.kind;
        if kind == BODY_OUTSIDE {
            let outside = conn.take_body().expect("a body outside the ring");
            (kind, body) = (outside.kind(), outside.bytes().to_vec());
            conn.give_back(outside);
        }
        conn.rx().advance();
        conn.rx().flush();
        Some((kind, head, body))
    }
}

impl HostPair {
    /// Sends an empty record from `a` to `b`. Returns the connection, and the number of the next
    /// message.
    pub(super) fn next_message(&mut self) -> (u64, u32) {
        let HostPair { net, a, b, ab, .. } = self;
        net.state().held = true;
        assert!(a.send_record(*ab, 1, b"", b""));
        let mut next = (0, 0);
        net.change(b.name, |waiting| {
            let (head, _) = open(&waiting[0]).unwrap();
            next = (head.token(), head.sequence() + 1);
        });
        net.state().held = false;
        b.events();
        next
    }
}

/// Returns the record with that number. Some bodies are too long for the ring.
fn record(number: usize) -> (u8, Vec<u8>, Vec<u8>) {
    let byte = u8::try_from(number % 251).unwrap();
    let sizes = [0, 8, BODY_MAX, 1024, LONG_BODY_MAX, 5000, BODY_MAX + 1, 300];
    (byte | 0x40, vec![byte; number % (HEAD_MAX + 1)], vec![!byte; sizes[number * 7 % sizes.len()]])
}

#[test]
fn records_past_the_ring_keep_their_order_among_those_in_it() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let (mut sent, mut received, mut past) = (0, 0, 0);
    // The receiver takes little, then much, so that all windows become full and empty.
    for round in 0..3000 {
        net.state().room = Some(round % 7);
        loop {
            let (kind, head, body) = record(sent);
            if (sent % 3 != 0 || body.len() > BODY_MAX)
                && !body.is_empty()
                && a.send_long(ab, kind, &head, &body)
            {
                past += 1;
            } else if body.len() > BODY_MAX || !a.send_record(ab, kind, &head, &body) {
                break;
            }
            sent += 1;
        }
        net.state().room = None;
        b.events();
        for _ in 0..if round % 50 < 40 { 1 } else { 1000 } {
            let Some(found) = b.receive_any(ba) else { break };
            assert!(found == record(received), "record {received}");
            received += 1;
        }
        b.events();
        a.events();
    }
    for _ in 0..RING_SLOTS {
        a.events();
        b.events();
        while let Some(found) = b.receive_any(ba) {
            assert!(found == record(received), "record {received}");
            received += 1;
        }
    }
    assert!(sent == received && past > 1000 && sent - past > 1000, "{past} of {sent}, {received}");
}

#[test]
fn the_window_of_long_bodies_stops_a_sender_until_they_are_taken() {
    let HostPair { mut a, mut b, ab, ba, net } = pair();
    let body = vec![5; LONG_BODY_MAX];
    for _ in 0..10 {
        let sent = (0..).take_while(|_| a.send_long(ab, 7, b"head", &body)).count();
        assert_eq!(sent, 2);
        b.events();
        assert!(!a.send_long(ab, 7, b"head", &body), "no record was taken");
        assert!(a.send_record(ab, 8, b"short", b"body"), "the window of the ring is another one");
        for _ in 0..sent {
            assert_eq!(b.receive_any(ba).unwrap().2.len(), LONG_BODY_MAX);
        }
        b.events();
        assert_eq!(b.receive_any(ba), Some((8, b"short".to_vec(), b"body".to_vec())));
        a.events();
    }
    drop(net);
}

#[test]
fn long_bodies_outlive_their_connection() {
    let HostPair { mut a, mut b, ab, ba, net } = pair();
    assert!(a.send_long(ab, 7, b"one", &[1; 3000]) && a.send_long(ab, 8, b"two", &[2; 70]));
    a.endpoint.close_conn(ab, CloseHow::Orderly);
    assert_eq!(b.closed(ba), Reason::Orderly);
    assert_eq!(b.receive_any(ba), Some((7, b"one".to_vec(), vec![1; 3000])));
    assert_eq!(b.receive_any(ba), Some((8, b"two".to_vec(), vec![2; 70])));
    drop(net);
}

#[test]
fn invalid_long_records_end_their_connection() {
    let long = |head_len, body_len, rest: usize| {
        let mut bytes = Vec::new();
        begin_record(&mut bytes, 7, head_len, body_len);
        bytes.resize(bytes.len() + rest, 1);
        bytes
    };
    let cases = [
        (long(0, 0, 0), "no body"),
        (long(4, 0, 4), "a head alone"),
        (long(4, 10, 13), "too short"),
        (long(4, 10, 15), "too long"),
        (long(57, 10, 67), "too long a head"),
        (long(0, LONG_BODY_MAX + 1, LONG_BODY_MAX + 1), "too long a body"),
        (vec![7, 0, 0], "no record"),
    ];
    for (content, label) in cases {
        let mut pair = pair();
        let (token, next) = pair.next_message();
        let HostPair { net, mut b, ba, .. } = pair;
        let mut message = Vec::new();
        begin(&mut message, FrameHead::new(FrameKind::LongRecord, token, next, 0));
        message.extend(content);
        seal(&mut message);
        assert!(message.len() <= MESSAGE_MAX);
        net.forge(b.name, &message);
        assert_eq!(b.closed(ba), Reason::Corrupt, "{label}");
    }
}

#[test]
fn a_record_without_its_body_is_noticed() {
    let HostPair { mut a, mut b, ab, ba, net } = pair();
    assert!(a.send_record(ab, BODY_OUTSIDE, b"", b""));
    assert!(a.send_long(ab, 9, b"", &[3; 2000]));
    b.events();
    let conn = b.conn(ba);
    assert!(conn.rx().peek().unwrap().is_some() && conn.take_body().is_none());
    conn.rx().advance();
    assert_eq!(b.receive_any(ba), Some((9, Vec::new(), vec![3; 2000])));
    drop(net);
}
