// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests with a peer that writes garbage into shared memory between our operations: no panic, no
//! access outside, no endless loop.

#![expect(
    unsafe_code,
    clippy::cast_possible_truncation,
    reason = "lays structures over its own memory and names its own buffers; cuts are on purpose"
)]

mod memory;

use core::ptr::NonNull;

use memory::{Guarded, ring};
use proptest::collection::vec;
use proptest::prelude::*;
use scif_ring::layout::{DATA_OFFSET, SLOTS_OFFSET};
use scif_ring::spsc::{Execution, InlineRecord, PollOutcome};
use scif_ring::{
    BELL_BYTES, BODY_MAX, Bell, BellHandle, CLAIM_BYTES, Claim, ClaimShare, Corrupt,
    DIRECTION_BYTES, HAZARD_BYTES, HEAD_MAX, HazardPointer, KEYTABLE_BYTES, KeyReader, Mem,
    PushError, SHORT_BODY_MAX, STREAM_BYTES, SharedU64, StreamRx, StreamTx,
};

const CASES: u32 = if cfg!(miri) { 4 } else { 300 };

/// Returns an offset for garbage: mostly the control lines and the first slots, sometimes any
/// place.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..1024,
        3 => SLOTS_OFFSET..SLOTS_OFFSET + 64 * 64,
        1 => 0..DIRECTION_BYTES,
    ]
}

fn garbage() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), Just(0u8), Just(1u8), Just(0xffu8)]
}

/// Overwrites a word of shared memory.
fn poke(memory: &Guarded, at: usize, word: u64) {
    for (i, b) in word.to_le_bytes().into_iter().enumerate() {
        memory.scribble(at + i, b);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Garbage in the positions, stamps, bells and content of a stream: the result is other bytes
    /// or an error.
    #[test]
    fn scribbled_streams(
        steps in vec((vec((0usize..768, garbage()), 0..4), 0usize..5000, 1usize..5000), 1..200)
    ) {
        let memory = Guarded::new(STREAM_BYTES);
        let mut own = [0u64; 3];
        let words = NonNull::from(&mut own).cast::<u8>();
        // SAFETY: three words, aligned, which nothing else uses and which outlive the stream.
        let word =
            |i: usize| unsafe { SharedU64::new(words.map_addr(|at| at.saturating_add(8 * i))) };
        let base = NonNull::new(memory.base()).unwrap();
        // SAFETY: as long as a stream, zeroed, and outlives it.
        let tx = unsafe { StreamTx::new(base, word(0), word(1)) };
        // SAFETY: as above.
        let rx = unsafe { StreamRx::new(base, word(2)) };
        let (mut from, mut to) = (vec![3u8; 5000], vec![0u8; 5000]);
        // SAFETY: the bytes outlive every call and have no other user meanwhile.
        let src = unsafe { Mem::new(from.as_mut_ptr(), from.len()) };
        // SAFETY: as above.
        let dst = unsafe { Mem::new(to.as_mut_ptr(), to.len()) };
        let part = |of: &Mem, len| of.sub(0, len).unwrap();
        for (scribbles, out, into) in steps {
            for (at, byte) in scribbles {
                memory.scribble(at, byte);
            }
            prop_assert!(tx.push(&part(&src, out)).map_or(true, |n| n <= out));
            let _ = (
                tx.push_whole(&part(&src, out % 64 + 1)),
                tx.is_awaited(),
                tx.prepare_wake(),
                tx.next_fd_action(),
                tx.appears_full(),
            );
            prop_assert!(rx.pull(&part(&dst, into)).map_or(true, |n| n <= into));
            rx.announce_demand(into);
            let _ = (
                rx.stop_polling(),
                rx.prepare_wake(),
                rx.next_fd_action(),
                tx.repeat_wake(),
                rx.repeat_wake(),
            );
        }
    }

    #[test]
    fn scribbled_rings(
        steps in vec((vec((place(), garbage()), 0..6), 0usize..=BODY_MAX, any::<bool>()), 1..200)
    ) {
        let memory = Guarded::new(DIRECTION_BYTES);
        let (mut tx, mut rx) = ring(&memory);
        let mut bytes = vec![0x5au8; BODY_MAX];
        // SAFETY: the bytes outlive every push and have no other user.
        let body = unsafe { Mem::new(bytes.as_mut_ptr(), BODY_MAX) };
        let area = memory.base().addr() + DATA_OFFSET..=memory.base().addr() + DIRECTION_BYTES;
        let mut out = vec![0; BODY_MAX];
        for (scribbles, len, take) in steps {
            for (at, byte) in scribbles {
                memory.scribble(at, byte);
            }
            let pushed = tx.push(1, &[7; HEAD_MAX], &[body], 0, len);
            prop_assert!(!matches!(pushed, Err(PushError::TooLong)));
            let _ = tx.push_body(3, [1, 2], len % 3, &body.sub(0, len).unwrap());
            let _ = (tx.push_head(2, &[8; 9]), tx.consumer_idle(), tx.all_consumed(), tx.room(len));
            prop_assert!(tx.executed() <= tx.produced());
            let _ = (tx.failures(), tx.failure(tx.produced()), rx.next_kind());
            tx.begin_withdrawal();
            let _ = (tx.is_consumer_executing(), tx.published_head(tx.produced()));
            let held = tx.published_body(tx.body_position(len), len).unwrap();
            prop_assert!(area.contains(&held.addr()) && area.contains(&(held.addr() + len)));
            tx.end_withdrawal(tx.executed());
            if rx.begin_execution() == Execution::Execute {
                rx.note_failure(5);
                rx.publish_executed();
                rx.end_execution();
            }
            let mut seen = 0;
            let mut handler = |_, line: &InlineRecord<'_>| {
                seen = line.len().max(line.copy_payload(7, &body)).max(line.copy_payload(0, &body));
                let _ = (0..9).map(|at| line.word(at)).max();
                take
            };
            if rx.poll_inline(&mut handler) == PollOutcome::Unhandled {
                rx.poll_body(&mut handler);
            }
            prop_assert!(seen <= SHORT_BODY_MAX);
            if let Ok(Some(r)) = rx.peek() {
                prop_assert!(r.head().len() <= HEAD_MAX && r.body.len() <= BODY_MAX);
                if !r.body.is_empty() {
                    let (first, end) = (r.body.addr(), r.body.addr() + r.body.len());
                    prop_assert!(area.contains(&first) && area.contains(&end));
                }
                r.body.copy_to_slice(&mut out);
                if take {
                    rx.advance();
                }
            }
        }
        rx.flush();
        memory.check();
    }

    #[test]
    fn scribbled_claims(
        steps in vec(
            (vec((0usize..CLAIM_BYTES, garbage()), 0..4), any::<u32>(), 0u32..20, 0u8..8),
            1..100,
        )
    ) {
        let memory = Guarded::new(CLAIM_BYTES.next_multiple_of(4096));
        // SAFETY: aligned, and outlives the view.
        let claim = unsafe { Claim::new(memory.base()) };
        for (scribbles, generation, parts, what) in steps {
            for (at, byte) in scribbles {
                memory.scribble(at, byte);
            }
            let generation = generation % 3;
            match what {
                0 => claim.reset(generation),
                1 => claim.offer(generation, 8, u64::from(parts) * 5, 5, parts),
                2 => claim.complete_front(generation, parts % 2 == 0),
                3 => drop((claim.close(), claim.open_parts())),
                _ => {}
            }
            let (front, back) = (
                claim.claim_front(generation, parts, 8, ClaimShare::Half),
                claim.claim_back(generation, parts, 8, ClaimShare::Half),
            );
            for taken in [front, back, claim.failed_front(parts)].into_iter().flatten() {
                prop_assert!(taken.start < taken.end && taken.end <= parts);
            }
            if let Some(o) = claim.peer_offer(generation) {
                prop_assert!(o.part > 0 && o.len.div_ceil(u64::from(o.part)) == u64::from(o.parts));
            }
        }
        memory.check();
    }

    #[test]
    fn scribbled_bells_and_hazard_pointers(
        scribbles in vec((0usize..1024, garbage()), 0..200),
        bit in any::<usize>(),
    ) {
        let memory = Guarded::new(BELL_BYTES + HAZARD_BYTES.next_multiple_of(4096));
        // SAFETY: aligned, and outlives the views.
        let bell = unsafe { Bell::new(memory.base()) };
        // SAFETY: as above.
        let handle = unsafe { BellHandle::new(memory.base()) };
        // SAFETY: as above; the page after the bell.
        let hazard = unsafe { HazardPointer::new(memory.base().wrapping_add(BELL_BYTES)) };
        for (at, byte) in scribbles {
            memory.scribble(at, byte);
            memory.scribble(BELL_BYTES + at % HAZARD_BYTES, byte);
            let _ = (hazard.get(), handle.sleeping(), handle.compatible());
        }
        handle.ring(bit);
        let mut n = 0;
        bell.take(|_| n += 1);
        prop_assert!(n <= scif_ring::BELL_BITS);
        memory.check();
    }

    #[test]
    fn scribbled_key_tables(
        scribbles in vec((0usize..64 * 20, garbage()), 0..200),
        keys in vec(0u64..20, 1..20),
    ) {
        let memory = Guarded::new(KEYTABLE_BYTES);
        // SAFETY: aligned, and outlives the view.
        let reader = unsafe { KeyReader::new(memory.base()) };
        for (at, byte) in scribbles {
            memory.scribble(4096 + at, byte);
        }
        for key in keys {
            if let Some((slot, generation, entry)) = reader.find(key) {
                prop_assert!(entry.key == key && reader.revalidate(slot, generation));
            }
            let _ = reader.revalidate(u32::MAX, 2);
        }
        memory.check();
    }
}

fn word(lap: u64, head: u64, body: u64) -> u64 {
    lap | 1 << 16 | head << 24 | body << 32
}

#[test]
fn lengths_out_of_range_are_corrupt() {
    let cases = [
        (word(1, 57, 0), Corrupt::HeadLen(57)),
        (word(1, 255, 0), Corrupt::HeadLen(255)),
        (word(1, 0, BODY_MAX as u64 + 1), Corrupt::BodyLen(BODY_MAX as u32 + 1)),
        (word(1, 0, u64::from(u32::MAX)), Corrupt::BodyLen(u32::MAX)),
    ];
    for (w, expected) in cases {
        let memory = Guarded::new(DIRECTION_BYTES);
        let (_tx, mut rx) = ring(&memory);
        poke(&memory, SLOTS_OFFSET, w);
        assert_eq!(rx.peek().err(), Some(expected));
    }
}

#[test]
fn a_ring_of_another_layout_is_corrupt() {
    let memory = Guarded::new(DIRECTION_BYTES);
    let (mut tx, mut rx) = ring(&memory);
    poke(&memory, 0, 77);
    tx.push_head(1, &[]).unwrap();
    assert_eq!(rx.peek().err(), Some(Corrupt::Layout(77)));
}

#[test]
fn impossible_counters_are_rejected() {
    for wild in [u64::MAX, 257, 1 << 63, 300] {
        let memory = Guarded::new(DIRECTION_BYTES);
        let (mut tx, _rx) = ring(&memory);
        for _ in 0..256 {
            tx.push_head(1, &[]).unwrap();
        }
        poke(&memory, 128, wild);
        poke(&memory, 136, wild);
        assert_eq!(tx.push_head(1, &[]), Err(PushError::Full));
        assert!(!tx.all_consumed());
        poke(&memory, 128, 1);
        assert_eq!(tx.push_head(1, &[]), Ok(()));
        // A counter that runs backwards is not believed either.
        poke(&memory, 128, 0);
        assert_eq!(tx.push_head(1, &[]), Err(PushError::Full));
    }
}
