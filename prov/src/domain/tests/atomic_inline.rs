// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: inline atomics, as a target and as an initiator.

use libfabric_sys as fi;
use scif::{LinkEvent, Reason};

use super::{Came, Stage, buffer};
use crate::base::atomic_ops::element::AtomicKind;
use crate::domain::calls::atomic;
use crate::engine::tests::sum_args;
use crate::engine::types::args::{AtomicArgs, RmaIov};
use crate::engine::types::wire::{self, AtomicWord};

/// Initial value of eight bytes of the memory with key 5.
const OLD: u64 = 0x0707_0707_0707_0707;
/// Number of an operation, and stamp of operations without a number.
const NUMBER: u64 = 9 << 32 | 3;
const STAMP: u64 = 4;

fn word(op: u32, kind: u8, len: u16) -> u64 {
    AtomicWord {
        op: u8::try_from(op).unwrap(),
        datatype: u8::try_from(fi::FI_UINT64).unwrap(),
        kind,
        segments: 1,
        len,
        has_data: false,
    }
    .pack()
}

#[test]
fn with_a_number_it_is_answered_and_with_a_stamp_it_is_counted() {
    let stage = Stage::new();
    stage.region(64);
    let (mut peer, _) = stage.peer();
    let conn = peer.connect();
    let swap = word(fi::FI_CSWAP, 2, 8);
    for (asked, answer) in [
        ([NUMBER, word(fi::FI_SUM, 1, 8), 0, 5, 1, 0, 0], vec![NUMBER, 0, OLD]),
        ([NUMBER, word(fi::FI_SUM, 0, 8), 0, 5, 1, 0, 0], vec![NUMBER, 0]),
        ([NUMBER, swap, 0, 5, 40, OLD + 2, 0], vec![NUMBER, 0, OLD + 2]),
        ([NUMBER, swap, 0, 5, 41, OLD + 2, 0], vec![NUMBER, 0, 40]),
        (
            [NUMBER, word(fi::FI_SUM, 0, 8), 60, 5, 1, 0, 0],
            vec![NUMBER, u64::from(fi::FI_EACCES.unsigned_abs())],
        ),
        (
            [NUMBER, word(fi::FI_SUM, 1, 8), 0, 6, 1, 0, 0],
            vec![NUMBER, u64::from(fi::FI_EINVAL.unsigned_abs())],
        ),
    ] {
        peer.send_msg(conn, wire::ATOMIC_LINE, &asked, b"");
        let (kind, words, body) = peer.recv_msg(conn);
        assert_eq!((words, body), (answer.clone(), 0), "{asked:x?}");
        assert_eq!(kind, if answer.len() == 3 { wire::ATOMIC_REPLY } else { wire::ACK });
    }
    // Operations without a reply are counted by stamp, whether they succeed or not.
    for (stamp, key) in [(STAMP, 5), (STAMP, 5), (STAMP, 6), (STAMP + 1, 5)] {
        peer.send_msg(
            conn,
            wire::ATOMIC_LINE,
            &[stamp, word(fi::FI_SUM, 0, 8), 8, key, 1, 0, 0],
            b"",
        );
    }
    let (mut reported, mut last) = (0, 0);
    while last != STAMP + 1 {
        let (kind, words, _) = peer.recv_msg(conn);
        assert_eq!(kind, wire::DONE);
        last = words[0];
        reported += words[1];
    }
    assert!((1..=4).contains(&reported), "{reported}");
    peer.send_msg(
        conn,
        wire::ATOMIC_LINE,
        &[NUMBER, word(fi::FI_ATOMIC_READ, 1, 8), 8, 5, 0, 0, 0],
        b"",
    );
    assert_eq!(peer.recv_msg(conn).1, [NUMBER, 0, OLD + 3]);
    peer.check_service(conn);
}

#[test]
fn an_invalid_record_ends_the_connection() {
    let stage = Stage::new();
    stage.region(64);
    for bad in [word(fi::FI_SUM, 0, 9), word(fi::FI_SUM, 3, 8)] {
        let (mut peer, _) = stage.peer();
        let conn = peer.connect();
        peer.send_msg(conn, wire::ATOMIC_LINE, &[NUMBER, bad, 0, 5, 1, 0, 0], b"");
        assert_eq!(peer.event(), LinkEvent::Closed(conn, Reason::Reset));
    }
}

/// Without a key table of the target the initiator does not know its access rights.
#[test]
fn without_a_key_table_the_atomic_completes_at_its_reply() {
    let stage = Stage::new();
    let (mut peer, number) = stage.peer();
    let conn = peer.connect();
    let result = [buffer(vec![0; 8])];
    for (kind, op) in [(AtomicKind::Write, fi::FI_SUM), (AtomicKind::Fetch, fi::FI_SUM)] {
        let (operand, rma) = ([buffer(vec![1; 8])], [RmaIov { addr: 16, len: 8, key: 77 }]);
        let result: &[_] = if kind == AtomicKind::Fetch { &result } else { &[] };
        let (dest, context) = (number, 0xa7);
        let args = AtomicArgs { kind, op, result, dest, context, ..sum_args(&operand, &rma) };
        atomic(&mut stage.domain.shared.gate.lock(), stage.ep, &args).unwrap();
        let (said, words, _) = peer.recv_msg(conn);
        assert_eq!((said, words[2], words[3]), (wire::ATOMIC_LINE, 16, 77));
        assert!(words[0] >> 32 != 0 && stage.came().is_none());
        // A report for a stamp that never existed does not affect this operation.
        peer.send_msg(conn, wire::DONE, &[words[0], u64::MAX], b"");
        match kind {
            AtomicKind::Write => peer.send_msg(conn, wire::ACK, &[words[0], 0], b""),
            _ => peer.send_msg(conn, wire::ATOMIC_REPLY, &[words[0], 0, 0x55], b""),
        }
        let came = stage.until(|| stage.came());
        assert!(matches!(came, Came::Done(c) if c.context == 0xa7), "{came:?}");
    }
    let mut got = [0; 8];
    result[0].copy_to_slice(&mut got);
    assert_eq!(u64::from_ne_bytes(got), 0x55);
}
