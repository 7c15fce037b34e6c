// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Two threads on one structure, with more repetitions than the loom models can cover.

#![expect(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "lays structures over its own memory and names its own buffers; cuts are on purpose"
)]

mod memory;

use memory::{Guarded, ring, ring_apart, ring_forwarded};
use scif_ring::{
    BODY_MAX, CLAIM_BYTES, CREDITS_BYTES, Claim, ClaimShare, Consumer, DIRECTION_BYTES,
    KEYTABLE_BYTES, KeyEntry, KeyReader, KeyTable, Mem, Producer, PushError,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Number of records of the ring test; bodies are up to `BODY_MAX`.
const RECORDS: u64 = if cfg!(miri) { 300 } else { 300_000 };

fn body_len(i: u64) -> usize {
    match i % 7 {
        0..4 => 0,
        4 => (i * 37 % 300) as usize,
        5 => (i * 7919 % 9000) as usize,
        _ => {
            if i % 5 == 0 {
                BODY_MAX
            } else {
                64
            }
        }
    }
}

/// Polls until there is a value.
fn waited<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = poll() {
            return value;
        }
        thread::yield_now();
    }
}

#[test]
fn a_ring_between_threads() {
    let memory = Guarded::new(DIRECTION_BYTES);
    exchange(ring(&memory), || ());
    memory.check();
}

/// Neither side loads or stores a word of the other in its own half: the producer's words lie with
/// the slots, the consumer's apart.
#[test]
fn ring_with_separate_credits_between_threads() {
    let (memory, credits) = (Guarded::new(DIRECTION_BYTES), Guarded::new(CREDITS_BYTES));
    exchange(ring_apart(&memory, &credits), || ());
    memory.check();
    credits.check();
    let written = |memory: &Guarded, bytes: std::ops::Range<usize>| {
        bytes.into_iter().any(|at| memory.peek(at) != 0)
    };
    assert!(written(&memory, 0..128), "the layout, by the producer");
    assert!(!written(&memory, 128..4096), "nothing by the consumer");
    assert!(written(&credits, 128..256), "the consumed counters");
    assert!(!written(&credits, 0..128), "nothing by the producer");
}

/// The producer writes a copy of the ring, and the forwarder the ring itself.
#[test]
fn a_forwarded_ring_between_threads() {
    let (copy, mapped) = (Guarded::new(DIRECTION_BYTES), Guarded::new(DIRECTION_BYTES));
    let credits = Guarded::new(CREDITS_BYTES);
    let (tx, rx, mut forwarder) = ring_forwarded(&copy, &mapped, &credits);
    exchange((tx, rx), || {
        forwarder.forward();
    });
    for memory in [&copy, &mapped, &credits] {
        memory.check();
    }
}

/// Sends records from one thread to another; `publish` runs after each push.
fn exchange((mut tx, mut rx): (Producer, Consumer), mut publish: impl FnMut() + Send) {
    thread::scope(|s| {
        s.spawn(move || {
            let mut bytes = vec![0u8; BODY_MAX];
            for i in 0..RECORDS {
                let len = body_len(i);
                bytes[..len].fill(i as u8);
                // SAFETY: the bytes outlive the push, which is the only use.
                let body = unsafe { Mem::new(bytes.as_mut_ptr(), len) };
                while tx.push(i as u8, &i.to_le_bytes(), &[body], 0, len) == Err(PushError::Full) {
                    thread::yield_now();
                }
                publish();
            }
            while !tx.all_consumed() {
                thread::yield_now();
            }
        });
        s.spawn(move || {
            let mut bytes = vec![0u8; BODY_MAX];
            for i in 0..RECORDS {
                let r = waited(|| rx.peek().unwrap());
                let n = r.body.copy_to_slice(&mut bytes);
                assert_eq!((r.kind, r.head(), n), (i as u8, &i.to_le_bytes()[..], body_len(i)));
                assert!(bytes[..n].iter().all(|b| *b == i as u8));
                rx.advance();
            }
            rx.flush();
        });
    });
}

#[test]
fn a_claim_between_threads() {
    const PARTS: u32 = 40;
    let rounds = if cfg!(miri) { 3 } else { 3000 };
    let memory = Guarded::new(CLAIM_BYTES.next_multiple_of(4096));
    // SAFETY: aligned, and outlives the views.
    let tx = unsafe { Claim::new(memory.base()) };
    // SAFETY: as above.
    let rx = unsafe { Claim::new(memory.base()) };
    let mut by_sender = 0;
    for round in 0..rounds {
        let copied: Vec<AtomicU32> = (0..PARTS).map(|_| AtomicU32::new(0)).collect();
        tx.reset(round);
        thread::scope(|s| {
            let sender = s.spawn(|| {
                let offer = waited(|| tx.peer_offer(round));
                let mut n = 0;
                while let Some(taken) = tx.claim_front(
                    round,
                    offer.parts,
                    4,
                    if round % 2 == 0 { ClaimShare::Half } else { ClaimShare::All },
                ) {
                    let ok = !taken.contains(&(round % 50));
                    let count = taken.end - taken.start;
                    let add = |part| copied[part as usize].fetch_add(1, Ordering::Relaxed);
                    taken.filter(|_| ok).map(add).for_each(drop);
                    n += count;
                    tx.complete_front(count, ok);
                }
                n
            });
            rx.offer(round, 0, u64::from(PARTS) * 8, 8, PARTS);
            while let Some(taken) = rx.claim_back(round, PARTS, 4, ClaimShare::Half) {
                for part in taken {
                    copied[part as usize].fetch_add(1, Ordering::Relaxed);
                }
                thread::yield_now();
            }
            while rx.open_parts() > 0 {
                thread::yield_now();
            }
            for part in rx.failed_front(PARTS).unwrap_or_default() {
                copied[part as usize].fetch_add(1, Ordering::Relaxed);
            }
            assert!(copied.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            by_sender += sender.join().unwrap();
        });
    }
    assert!(cfg!(miri) || by_sender > 0, "the sender never helped");
}

#[test]
fn a_key_table_between_threads() {
    let entry = |key: u64, n: u64| KeyEntry {
        key,
        base: n,
        start: n + 1,
        len: n + 2,
        access: n + 3,
        window: n + 4,
        window_len: n + 5,
    };
    let rounds: u64 = if cfg!(miri) { 50 } else { 100_000 };
    let memory = Guarded::new(KEYTABLE_BYTES);
    // SAFETY: aligned, zeroed, and outlives both sides.
    let mut owner = unsafe { KeyTable::new(memory.base()) };
    // SAFETY: as above.
    let reader = unsafe { KeyReader::new(memory.base()) };
    assert!(reader.compatible() && !reader.notify());
    owner.set_hints(true);
    assert!(reader.hints() && !reader.notify());
    owner.set_notify(true);
    owner.set_hints(false);
    thread::scope(|s| {
        s.spawn(|| {
            for n in 0..rounds {
                let slots = [1, 65537].map(|key| owner.insert(entry(key, n * 10)).unwrap());
                slots.into_iter().for_each(|slot| {
                    owner.remove(slot);
                });
            }
        });
        s.spawn(|| {
            for n in 0..rounds {
                let key = if n % 2 == 0 { 1 } else { 65537 };
                if let Some((_, _, e)) = reader.find(key) {
                    assert_eq!(e, entry(key, e.base));
                }
            }
        });
    });
    assert!(reader.notify() && !reader.hints() && reader.find(1).is_none());
    memory.check();
}

#[test]
fn a_key_table_fills_and_empties() {
    let memory = Guarded::new(KEYTABLE_BYTES);
    // SAFETY: aligned, zeroed, and outlives both sides.
    let mut owner = unsafe { KeyTable::new(memory.base()) };
    // SAFETY: as above.
    let reader = unsafe { KeyReader::new(memory.base()) };
    let key = |i: u64| KeyEntry { key: i << 16 | i, base: i, ..KeyEntry::default() };
    // All of these hash to one slot: sixteen fit, wrapping around the end or not.
    let slots: Vec<u32> = (0..16).map(|i| owner.insert(key(i)).unwrap()).collect();
    assert_eq!(owner.insert(key(16)), None);
    assert_eq!(owner.insert(key(3)), None, "a key is there once");
    let (slot, generation, found) = reader.find(key(15).key).unwrap();
    assert_eq!((slot, found), (slots[15], key(15)));
    owner.remove(slots[15]);
    assert!(!reader.revalidate(slot, generation) && reader.find(key(15).key).is_none());
    assert_eq!(owner.insert(key(16)), Some(slot));
    assert!(!reader.revalidate(slot, generation));
    for (i, slot) in slots.iter().enumerate().take(15) {
        assert_eq!(reader.find(key(i as u64).key).unwrap().0, *slot);
    }
}
