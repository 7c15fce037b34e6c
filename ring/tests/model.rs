// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Random operations on one thread: the ring compared with a queue, the copies compared with
//! slices.

#![expect(
    unsafe_code,
    clippy::cast_possible_truncation,
    reason = "lays the ring over its own memory and names its own buffers; cuts are on purpose"
)]

mod memory;

use memory::{Guarded, ring};
use proptest::collection::vec;
use proptest::prelude::*;
use scif_ring::layout::{DATA_OFFSET, RING_DATA_BYTES, SLOTS_OFFSET};
use scif_ring::spsc::{InlineRecord, PollOutcome};
use scif_ring::{
    BODY_MAX, DIRECTION_BYTES, HEAD_MAX, LayoutError, Mem, PushError, Record, SHORT_BODY_MAX,
    copy_iov, slice_iov, total_len,
};
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Op {
    Push { kind: u8, head: usize, body: usize, split: usize },
    PushHead { kind: u8, head: usize },
    PushWith { kind: u8, head: usize },
    PushBody { kind: u8, words: usize, body: usize },
    Peek,
    Take,
    PollInline,
    Flush,
}

fn body_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..200,
        2 => 200usize..5000,
        1 => Just(0usize),
        1 => Just(BODY_MAX),
        1 => Just(BODY_MAX - 63),
        1 => Just(BODY_MAX + 1),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u8>(), 0usize..=HEAD_MAX + 1, body_len(), any::<usize>())
            .prop_map(|(kind, head, body, split)| Op::Push { kind, head, body, split }),
        3 => (any::<u8>(), 0usize..=HEAD_MAX + 1)
            .prop_map(|(kind, head)| Op::PushHead { kind, head }),
        2 => (any::<u8>(), 0usize..=HEAD_MAX + 1)
            .prop_map(|(kind, head)| Op::PushWith { kind, head }),
        4 => (any::<u8>(), 0usize..3, body_len())
            .prop_map(|(kind, words, body)| Op::PushBody { kind, words, body }),
        2 => Just(Op::Peek),
        4 => Just(Op::Take),
        4 => Just(Op::PollInline),
        1 => Just(Op::Flush),
    ]
}

/// Returns bytes that depend on their origin.
fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31) ^ i.wrapping_mul(7) ^ (i >> 8)) as u8).collect()
}

fn mem(bytes: &mut [u8]) -> Mem {
    // SAFETY: every test uses its Mems only while the named bytes exist, and accesses the bytes
    // only between uses.
    unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn body_of(r: &Record) -> Vec<u8> {
    let mut body = vec![0; r.body.len()];
    r.body.copy_to_slice(&mut body);
    body
}

type Expected = (u8, Vec<u8>, Vec<u8>);

fn check(expected: &Expected, r: &Record) {
    assert_eq!((r.kind, r.head(), body_of(r)), (expected.0, &expected.1[..], expected.2.clone()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 200 }))]

    #[test]
    fn ring_is_a_queue(ops in vec(op(), 1..if cfg!(miri) { 60 } else { 2000 })) {
        let memory = Guarded::new(DIRECTION_BYTES);
        let (mut tx, mut rx) = ring(&memory);
        let mut queue: VecDeque<Expected> = VecDeque::new();
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push { kind, head, body, split } => {
                    let h = bytes(n, head);
                    let mut b = bytes(n + 1, body + 3);
                    let cut = split % (b.len() + 1);
                    let (left, right) = b.split_at_mut(cut);
                    let iov = [mem(left), Mem::empty(), mem(right)];
                    let room = tx.room(body);
                    let pushed = tx.push(kind, &h, &iov, 3, body);
                    if head > HEAD_MAX || body > BODY_MAX {
                        prop_assert_eq!(pushed, Err(PushError::TooLong));
                    } else {
                        prop_assert_eq!(pushed.is_ok(), room);
                        if room {
                            queue.push_back((kind, h, b.split_off(3)));
                        }
                    }
                }
                Op::PushHead { kind, head } => {
                    let h = bytes(n, head);
                    match tx.push_head(kind, &h) {
                        Ok(()) => queue.push_back((kind, h, Vec::new())),
                        Err(PushError::TooLong) => prop_assert!(head > HEAD_MAX),
                        Err(PushError::Full) => prop_assert!(queue.len() > 128),
                    }
                }
                Op::PushWith { kind, head } => {
                    let h = bytes(n, head);
                    match tx.push_with(kind, head, |to| to[..head].copy_from_slice(&h)) {
                        Ok(()) => queue.push_back((kind, h, Vec::new())),
                        Err(PushError::TooLong) => prop_assert!(head > HEAD_MAX),
                        Err(PushError::Full) => prop_assert!(queue.len() > 128),
                    }
                }
                Op::PushBody { kind, words, body } => {
                    let (room, mut b) = (tx.room(body), bytes(n, body));
                    let pushed = tx.push_body(kind, [n as u64; 2], words, &mem(&mut b));
                    if body > SHORT_BODY_MAX {
                        prop_assert_eq!(pushed, Err(PushError::TooLong));
                    } else {
                        prop_assert_eq!(pushed.is_ok(), room);
                        if room {
                            queue.push_back((kind, (n as u64).to_ne_bytes().repeat(words), b));
                        }
                    }
                }
                Op::Peek => match (rx.peek().unwrap(), queue.front()) {
                    (Some(r), Some(e)) => check(e, &r),
                    (r, e) => prop_assert!(r.is_none() && e.is_none()),
                },
                Op::Take => match (rx.peek().unwrap(), queue.pop_front()) {
                    (Some(r), Some(e)) => {
                        check(&e, &r);
                        rx.advance();
                    }
                    (r, e) => prop_assert!(r.is_none() && e.is_none()),
                },
                Op::PollInline => {
                    let mut out = [0; SHORT_BODY_MAX];
                    let mut seen = None;
                    let mut take = |kind, line: &InlineRecord<'_>| {
                        let words = [line.word(0), line.word(6), line.word(7)];
                        let n = line.copy_payload(n % 3, &mem(&mut out));
                        seen = Some((kind, line.len(), words, n));
                        n % 2 == 0
                    };
                    let look = match rx.poll_inline(&mut take) {
                        PollOutcome::Unhandled => rx.poll_body(&mut take),
                        look => look,
                    };
                    let Some((kind, head, body)) = queue.front() else {
                        prop_assert_eq!((look, seen), (PollOutcome::Empty, None));
                        continue;
                    };
                    let Some((k, len, words, copied)) = seen else {
                        prop_assert_eq!(look, PollOutcome::Unhandled);
                        prop_assert!(body.len() > SHORT_BODY_MAX || rx.consumed() == 0);
                        continue;
                    };
                    let word = |at: usize| {
                        head.get(at..at + 8)
                            .map_or(0, |w| u64::from_ne_bytes(w.try_into().unwrap()))
                    };
                    let tail = if body.is_empty() {
                        head.get(8 * (n % 3)..).unwrap_or_default()
                    } else {
                        body
                    };
                    prop_assert_eq!((k, len, words), (*kind, head.len(), [word(0), word(48), 0]));
                    prop_assert_eq!(&out[..copied], tail);
                    prop_assert_eq!(
                        look,
                        if copied % 2 == 0 { PollOutcome::Consumed } else { PollOutcome::Unhandled }
                    );
                    if look == PollOutcome::Consumed {
                        queue.pop_front();
                    }
                }
                Op::Flush => {
                    rx.flush();
                    prop_assert_eq!(tx.all_consumed(), queue.is_empty());
                }
            }
        }
        prop_assert_eq!(tx.produced() - rx.consumed(), queue.len() as u64);
        memory.check();
    }

    #[test]
    fn short_and_long_copies_copy(len in 0usize..300, from in 0usize..40, to in 0usize..40) {
        let mut src = bytes(1, 400);
        let mut dst = bytes(2, 400);
        let mut expected = dst.clone();
        expected[to..to + len].copy_from_slice(&src[from..from + len]);
        let n = mem(&mut dst[to..to + len]).copy_from(&mem(&mut src[from..from + len + 1]));
        prop_assert_eq!((n, &dst), (len, &expected));
        let mut out = bytes(3, 400);
        prop_assert_eq!(mem(&mut src).copy_to_slice(&mut out[..len]), len);
        prop_assert_eq!(&out[..len], &src[..len]);
        prop_assert_eq!(&out[len..], &bytes(3, 400)[len..]);
        prop_assert_eq!(mem(&mut dst).copy_from_slice(&out[..len]), len);
        prop_assert_eq!(&dst[..len], &out[..len]);
    }

    #[test]
    fn overlapping_copies_move(len in 0usize..200, from in 0usize..100, to in 0usize..100) {
        let mut both = bytes(5, 300);
        let mut expected = both.clone();
        expected.copy_within(from..from + len, to);
        let all = mem(&mut both);
        prop_assert_eq!(all.sub(to, len).unwrap().copy_from(&all.sub(from, len).unwrap()), len);
        prop_assert_eq!(both, expected);
    }

    #[test]
    fn lists_are_copied_as_one_run(
        src_lens in vec(0usize..90, 0..6),
        dst_lens in vec(0usize..90, 0..6),
        src_off in 0usize..200,
        dst_off in 0usize..200,
        max in 0usize..400,
    ) {
        let mut src: Vec<Vec<u8>> =
            src_lens.iter().enumerate().map(|(i, n)| bytes(i, *n)).collect();
        let mut dst: Vec<Vec<u8>> =
            dst_lens.iter().enumerate().map(|(i, n)| bytes(100 + i, *n)).collect();
        let flat_src = src.concat();
        let mut expected = dst.concat();
        let n = flat_src
            .len()
            .saturating_sub(src_off)
            .min(expected.len().saturating_sub(dst_off))
            .min(max);
        if n > 0 {
            expected[dst_off..dst_off + n].copy_from_slice(&flat_src[src_off..src_off + n]);
        }
        let from: Vec<Mem> = src.iter_mut().map(|v| mem(v)).collect();
        let to: Vec<Mem> = dst.iter_mut().map(|v| mem(v)).collect();
        prop_assert_eq!(total_len(&from), flat_src.len());
        prop_assert_eq!(copy_iov(&to, dst_off, &from, src_off, max), n);
        let mut sliced = vec![Mem::empty(); 2];
        slice_iov(&from, src_off, max, &mut sliced);
        let wanted: Vec<u8> = flat_src.iter().copied().skip(src_off).take(max).collect();
        prop_assert_eq!(total_len(&sliced), wanted.len());
        prop_assert!(sliced.iter().all(|m| !m.is_empty()));
        let mut seen = vec![0; wanted.len()];
        copy_iov(&[mem(&mut seen)], 0, &sliced, 0, usize::MAX);
        prop_assert_eq!(seen, wanted);
        prop_assert_eq!(dst.concat(), expected);
    }
}

#[test]
fn copies_by_string_copy_or_refuse() {
    let mut copied = 0;
    for (len, from, to) in [
        (3071, 0, 20_000),
        (3072, 1, 20_000),
        (4096, 20_000, 3),
        (8192, 0, 8192),
        (8193, 0, 20_000),
        (5000, 0, 4999),
        (5000, 0, 1),
        (5000, 1, 0),
        (5000, 7, 7),
    ] {
        let mut bytes: Vec<u8> = (0..40_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut expected = bytes.clone();
        let all = mem(&mut bytes);
        let (source, target) = (all.sub(from, len).unwrap(), all.sub(to, len).unwrap());
        if target.copy_by_string(&source) {
            copied += 1;
            expected.copy_within(from..from + len, to);
        }
        assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
    }
    let is_native = cfg!(all(target_arch = "x86_64", not(miri)));
    // Of the last four, only the copy to lower addresses does not overwrite its source.
    assert_eq!(copied, if is_native { 4 } else { 0 });
    let (mut short, mut long) = ([1; 4000], [0; 5000]);
    assert!(!mem(&mut long).copy_by_string(&mem(&mut short)), "lengths differ");
}

#[test]
fn huge_copies_copy() {
    if cfg!(miri) {
        return;
    }
    let len = scif_ring::copy::NT_THRESHOLD + 4097;
    let mut src = bytes(9, len + 64);
    for (from, to) in [(0, 0), (1, 3), (64, 17)] {
        let mut dst = vec![0xee; len + 64];
        assert_eq!(mem(&mut dst[to..to + len]).copy_from(&mem(&mut src[from..from + len])), len);
        assert_eq!(dst[to..to + len], src[from..from + len]);
        assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xee));
    }
}

#[test]
fn parts_of_a_mem_stay_inside() {
    let mut b = [0; 10];
    let m = mem(&mut b);
    assert_eq!(m.sub(3, 7).map(|s| (s.addr() - m.addr(), s.len())), Some((3, 7)));
    assert_eq!(m.sub(10, 0).map(|s| s.len()), Some(0));
    for (off, len) in [(3, 8), (11, 0), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(m.sub(off, len).is_none());
    }
}

#[test]
fn a_list_too_short_publishes_nothing() {
    let memory = Guarded::new(DIRECTION_BYTES);
    let (mut tx, mut rx) = ring(&memory);
    let mut b = [1; 10];
    assert_eq!(tx.push(1, &[], &[mem(&mut b)], 3, 8), Err(PushError::TooLong));
    assert!(rx.peek().unwrap().is_none());
    assert_eq!(tx.push(1, &[], &[mem(&mut b)], 3, 7), Ok(()));
    assert_eq!(rx.peek().unwrap().unwrap().body.len(), 7);
}

#[test]
fn lap_number_wraps() {
    let memory = Guarded::new(DIRECTION_BYTES);
    let (mut tx, mut rx) = ring(&memory);
    let laps = if cfg!(miri) { 3 } else { 65_540 };
    for i in 0..laps * scif_ring::RING_SLOTS as u64 {
        tx.push_head(1, &i.to_le_bytes()).unwrap();
        assert_eq!(rx.peek().unwrap().unwrap().head(), i.to_le_bytes());
        rx.advance();
        if i % 100_003 == 0 {
            assert!(rx.peek().unwrap().is_none());
        }
    }
    rx.flush();
    assert!(tx.all_consumed());
}

/// The consumer writes to each line of a freed record and to nothing else, so that its core alone
/// owns them.
#[test]
fn freed_lines_are_scrubbed() {
    let memory = Guarded::new(DIRECTION_BYTES);
    let (mut tx, mut rx) = ring(&memory);
    let word = |n: usize| (0..8).any(|i| memory.peek(SLOTS_OFFSET + 64 * n + i) != 0);
    let mut at = 0;
    // The last body does not fit before the end of the area, and starts at its beginning.
    for (n, len) in [1, 65, BODY_MAX, BODY_MAX, BODY_MAX, BODY_MAX].into_iter().enumerate() {
        let mut body = vec![0xff; len];
        tx.push(1, &[], &[mem(&mut body)], 0, len).unwrap();
        assert!(rx.peek().unwrap().is_some() && word(n));
        if at + len > RING_DATA_BYTES {
            at = 0;
        }
        let before: Vec<u8> = (0..RING_DATA_BYTES).map(|i| memory.peek(DATA_OFFSET + i)).collect();
        rx.advance();
        assert!(!word(n));
        for (i, byte) in before.into_iter().enumerate() {
            let freed = (at..at + len).contains(&i) && i % 64 == 0;
            let now = memory.peek(DATA_OFFSET + i);
            assert_eq!(now, if freed { 0 } else { byte }, "byte {i}, record {n}");
        }
        at += len.next_multiple_of(64);
        rx.flush();
    }
}

#[test]
fn idle_is_seen_by_the_producer() {
    let memory = Guarded::new(DIRECTION_BYTES);
    let (tx, mut rx) = ring(&memory);
    assert!(!tx.consumer_idle());
    rx.set_idle(true);
    assert!(tx.consumer_idle());
    rx.set_idle(false);
    assert!(!tx.consumer_idle());
}

#[test]
fn invalid_regions_are_rejected() {
    let memory = Guarded::new(DIRECTION_BYTES);
    // SAFETY: refused before any access.
    let short = unsafe { scif_ring::Producer::new(memory.base(), DIRECTION_BYTES - 1) };
    assert_eq!(
        short.err(),
        Some(LayoutError::TooShort { need: DIRECTION_BYTES, have: DIRECTION_BYTES - 1 })
    );
    // SAFETY: as above.
    let odd = unsafe { scif_ring::Consumer::new(memory.base().wrapping_add(64), DIRECTION_BYTES) };
    assert_eq!(odd.err(), Some(LayoutError::Misaligned { need: 128 }));
}

/// Sizes of frequently used structs: private memory per connection on each side.
#[test]
fn sizes_of_hot_structs() {
    assert_eq!(size_of::<scif_ring::Producer>(), 120);
    assert_eq!(size_of::<scif_ring::Consumer>(), 160);
    assert_eq!(size_of::<Record>(), 80);
    assert_eq!(size_of::<Mem>(), 16);
    assert_eq!(size_of::<scif_ring::Claim>(), 8);
    assert_eq!(size_of::<scif_ring::HazardPointer>(), 8);
    assert_eq!(size_of::<scif_ring::Bell>(), 8);
}
