// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Exhaustive loom models of the protocols of this crate.
//!
//! Not about: the layout over raw memory, sizes, hostile peers. Run with `RUSTFLAGS="--cfg loom"
//! cargo test -p scif-ring --release --test loom [name]`; without the cfg the binary is empty.
//!
//! Bounds: two threads (three for the doorbell); rings of at most 8 slots and 512 bytes; at most 8
//! records and 3 parts; streams of 3 bytes, or 4 if demanded, with at most 6 sent; at most 3
//! preemptions per execution, 2 for the doorbell. A model named `…needs…` omits a fence and must
//! fail, which shows that its counterpart can fail.

#![cfg_attr(
    loom,
    expect(
        unsafe_code,
        clippy::print_stdout,
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "a test: it says what it ran, and its indexes and counts are its own"
    )
)]

#[cfg(not(loom))]
fn main() {}

#[cfg(loom)]
fn main() -> std::process::ExitCode {
    models::run()
}

#[cfg(loom)]
mod streams;

#[cfg(loom)]
mod withdrawal;

#[cfg(loom)]
mod models {
    use crate::streams::{
        Without, late_ring, stream_bytes_in_order, stream_closed_by_the_receiver,
        stream_closed_by_the_sender, stream_demanded, stream_descriptor, stream_short,
        stream_sleepers, teller_killed, waiter_killed,
    };
    use crate::withdrawal::{Unfenced, push_during_withdrawal, withdrawal};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use loom::thread::{spawn, yield_now};
    use scif_ring::keytable::KeyEntry;
    use scif_ring::model::{
        bell, claim, connection, direction, hazard_pointer, keys, set_hazard_without_fence,
    };
    use scif_ring::spsc::{InlineRecord, PollOutcome};
    use scif_ring::{ClaimShare, PushError, StreamTx, publish_fence, sleeper_fence};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::ExitCode;
    use std::sync::atomic::AtomicUsize;

    struct Model {
        name: &'static str,
        preemptions: usize,
        /// Whether the model must find an error.
        broken: bool,
        body: fn(),
    }

    const fn model(name: &'static str, preemptions: usize, body: fn()) -> Model {
        Model { name, preemptions, broken: false, body }
    }

    const fn broken(name: &'static str, body: fn()) -> Model {
        Model { name, preemptions: 3, broken: true, body }
    }

    const MODELS: &[Model] = &[
        model("ring_heads", 3, ring_heads),
        model("ring_lines", 3, ring_lines),
        model("ring_replies", 3, || ring_replies(false)),
        broken("ring_replies_need_the_previous_ack", || ring_replies(true)),
        model("ring_bodies", 3, || ring_bodies(false)),
        model("ring_short_bodies", 3, || ring_bodies(true)),
        model("ring_full_then_flushed", 3, ring_full_then_flushed),
        model("withdrawal_executes_once", 3, || withdrawal(Unfenced::Neither, 2)),
        model("withdrawal_gives_back", 3, || withdrawal(Unfenced::Neither, 1)),
        model("withdrawal_and_push", 3, || push_during_withdrawal(true)),
        model("withdrawal_gives_back_before_a_push", 3, || push_during_withdrawal(false)),
        broken("withdrawal_needs_the_fence_of_the_consumer", || withdrawal(Unfenced::Consumer, 2)),
        broken("withdrawal_needs_the_fence_of_the_producer", || withdrawal(Unfenced::Producer, 2)),
        model("idle_and_push", 3, || idle_and_push(false)),
        broken("sleep_needs_both_fences", || idle_and_push(true)),
        model("sleeping_and_push", 3, || sleeping_and_push(false)),
        broken("sleeping_needs_both_fences", || sleeping_and_push(true)),
        model("stream_bytes_in_order", 3, stream_bytes_in_order),
        model("stream_short_in_order", 3, || {
            stream_short(|tx, byte| assert_eq!(tx.push(byte), Ok(1)))
        }),
        broken("stream_short_needs_the_invalidation", || stream_short(StreamTx::push_overwriting)),
        broken("stream_short_needs_the_fence_of_the_sender", || {
            stream_short(StreamTx::push_without_fence)
        }),
        model("stream_sleepers_are_woken", 2, || stream_sleepers(Without::Nothing, false)),
        model("stream_sleepers_are_woken_by_a_stop_of_polling", 2, || {
            stream_sleepers(Without::Nothing, true)
        }),
        model("stream_demanded_bytes_arrive", 2, stream_demanded),
        broken("stream_sleepers_need_the_fence_of_the_sleeper", || {
            stream_sleepers(Without::SleepersFence, false)
        }),
        broken("stream_sleepers_need_the_fence_of_the_sender", || {
            stream_sleepers(Without::SendersFence, false)
        }),
        model("stream_descriptor_shows_bytes_left", 3, || stream_descriptor(true, false)),
        model("stream_descriptor_shows_bytes_left_by_a_stop_of_polling", 3, || {
            stream_descriptor(true, true)
        }),
        broken("stream_descriptor_needs_the_fence_if_left", || stream_descriptor(false, true)),
        broken("stream_descriptor_needs_the_fence", || stream_descriptor(false, false)),
        model("stream_late_ring_hides_nothing", 3, || late_ring(2, true, true)),
        broken("stream_late_ring_needs_the_comparison", || late_ring(2, false, true)),
        model("stream_late_ring_is_hidden", 3, || late_ring(1, true, true)),
        broken("stream_late_ring_needs_the_second_hiding", || late_ring(1, true, false)),
        model("stream_teller_killed", 3, || teller_killed(true)),
        broken("stream_teller_killed_needs_the_repeated_wake", || teller_killed(false)),
        model("stream_waiter_killed_before_it_did", 3, || waiter_killed(true, false)),
        model("stream_waiter_killed_before_it_said", 3, || waiter_killed(true, true)),
        broken("stream_waiter_killed_needs_the_reset", || waiter_killed(false, false)),
        model("stream_closed_by_the_sender", 2, stream_closed_by_the_sender),
        model("stream_closed_by_the_receiver", 2, stream_closed_by_the_receiver),
        model("bell_loses_nothing", 2, bell_loses_nothing),
        model("keys_are_read_whole", 3, keys_are_read_whole),
        model("hazard_or_removal_is_seen", 3, || hazard_or_removal_is_seen(true)),
        broken("hazard_needs_both_fences", || hazard_or_removal_is_seen(false)),
        model("hazard_or_revocation_is_seen", 3, || hazard_or_revocation_is_seen(true)),
        broken("revocation_needs_both_fences", || hazard_or_revocation_is_seen(false)),
        model("claim_each_part_once", 3, || claim_parts(3, None)),
        model("claim_failed_part_goes_back", 3, || claim_parts(3, Some(1))),
        model("claim_closed", 3, claim_closed),
    ];

    /// Number of executions of the running model.
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);

    pub(crate) fn run() -> ExitCode {
        let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
        // Makes loom's scheduler install its panic hook before any of ours.
        loom::model(|| ());
        let (mut ran, mut executions, mut failed) = (0, 0, 0);
        for m in MODELS.iter().filter(|m| only.as_ref().is_none_or(|o| m.name.contains(o.as_str())))
        {
            EXECUTIONS.store(0, std::sync::atomic::Ordering::Relaxed);
            let started = std::time::Instant::now();
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(m.preemptions);
            builder.max_branches = 10_000;
            let body = m.body;
            // A model that fails as expected: its panic message is suppressed.
            let hook = m.broken.then(std::panic::take_hook);
            if m.broken {
                std::panic::set_hook(Box::new(|_| ()));
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                builder.check(move || {
                    EXECUTIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    body();
                });
            }));
            if let Some(hook) = hook {
                std::panic::set_hook(hook);
            }
            let n = EXECUTIONS.load(std::sync::atomic::Ordering::Relaxed);
            let ok = n > 0 && outcome.is_err() == m.broken;
            let word = match (ok, m.broken) {
                (true, false) => "ok",
                (true, true) => "ok (fails, as it must)",
                (false, _) => "FAILED",
            };
            println!(
                "loom {:32} {n:8} executions {:7.2} s  {word}",
                m.name,
                started.elapsed().as_secs_f64()
            );
            ran += 1;
            executions += n;
            failed += usize::from(!ok);
        }
        println!(
            "loom models: {} passed, {failed} failed, in {executions} executions",
            ran - failed
        );
        if ran == 0 || failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// Heads over more than one lap of four slots: each arrives complete and in order, and no slot
    /// is written while it is read.
    fn ring_heads() {
        const N: u8 = 5;
        let (mut tx, mut rx) = direction::<4, 256>();
        let t = spawn(move || {
            for i in 0..N {
                while tx.push_head(i, &[i; 9]) == Err(PushError::Full) {
                    yield_now();
                }
            }
        });
        for i in 0..N {
            let r = loop {
                match rx.peek().unwrap() {
                    Some(r) => break r,
                    None => yield_now(),
                }
            };
            assert_eq!((r.kind, r.head()), (i, &[i; 9][..]));
            rx.advance();
        }
        assert!(rx.peek().unwrap().is_none());
        t.join().unwrap();
    }

    /// Heads read in place: each is complete while it is read, and one that is not accepted stays.
    fn ring_lines() {
        const N: u8 = 5;
        let (mut tx, mut rx) = direction::<4, 256>();
        let t = spawn(move || {
            for i in 0..N {
                while tx.push_head(i, &[i; 9]) == Err(PushError::Full) {
                    yield_now();
                }
            }
        });
        for i in 0..N {
            loop {
                let look = rx.poll_inline(|kind, line: &InlineRecord<'_>| {
                    assert_eq!((kind, line.len()), (i, 9));
                    assert_eq!(line.word(0), u64::from_ne_bytes([i; 8]));
                    assert_eq!(line.word(1), 0);
                    i % 2 == 1
                });
                match look {
                    PollOutcome::Consumed => break,
                    PollOutcome::Empty => yield_now(),
                    PollOutcome::Unhandled => {
                        assert_eq!(rx.peek().unwrap().unwrap().head(), [i; 9]);
                        rx.advance();
                        break;
                    }
                }
            }
        }
        assert_eq!(rx.poll_inline(|_, _: &InlineRecord<'_>| true), PollOutcome::Empty);
        t.join().unwrap();
    }

    /// Replies of both sides, in the reply line and in slots: all records arrive in order, and no
    /// half is written while it is read. `over`: one side does not wait until its reply was taken.
    fn ring_replies(over: bool) {
        const N: u8 = 2;
        let [(mut a_tx, mut a_rx), (mut b_tx, mut b_rx)] = connection::<4, 256>();
        let nothing = scif_ring::Mem::empty();
        b_tx.push_head(0, &[0; 8]).unwrap();
        b_tx.push_head(1, &[1; 8]).unwrap();
        let t = spawn(move || {
            for i in 0..N {
                while b_rx.poll_inline(|kind, line: &InlineRecord<'_>| {
                    assert_eq!((kind, line.word(0)), (i, u64::from(i)));
                    true
                }) != PollOutcome::Consumed
                {
                    match b_rx.peek().unwrap() {
                        Some(record) => {
                            assert_eq!(record.kind, i);
                            b_rx.advance();
                            break;
                        }
                        None => yield_now(),
                    }
                }
                b_tx.expect_reply(b_rx.take_peer_ack());
            }
            assert!(b_tx.push_reply(2, [2, 0], 1, &nothing, b_rx.replies_taken()));
        });
        let mut replies = 0;
        for i in 0..N {
            assert!(a_rx.peek().unwrap().is_some_and(|record| record.kind == i));
            a_rx.advance();
            a_tx.expect_reply(None);
            if over {
                a_tx.assume_reply_acked();
            }
            let words = [u64::from(i), 0];
            if a_tx.push_reply(i, words, 1, &nothing, a_rx.replies_taken()) {
                replies += 1;
            } else {
                a_tx.push_words(i, words, 1, &nothing).unwrap();
            }
        }
        assert!(over || replies == 1);
        while a_rx.poll_inline(|kind, line: &InlineRecord<'_>| (kind, line.word(0)) == (2, 2))
            != PollOutcome::Consumed
        {
            yield_now();
        }
        a_tx.expect_reply(a_rx.take_peer_ack());
        assert!(a_tx.push_reply(3, [3, 0], 1, &nothing, a_rx.replies_taken()));
        t.join().unwrap();
    }

    /// Bodies that fill the area of eight lines before the slots, skip its end and wrap around:
    /// none is written while it is read.
    fn ring_bodies(short: bool) {
        const LENS: [usize; 6] = [128, 1, 128, 100, 127, 64];
        let (mut tx, mut rx) = direction::<8, 512>();
        let t = spawn(move || {
            for (i, len) in LENS.into_iter().enumerate() {
                let mut bytes = [i as u8 + 1; 128];
                // SAFETY: the bytes outlive the push, which is the only use.
                let body = unsafe { scif_ring::Mem::new(bytes.as_mut_ptr(), len) };
                while Err(PushError::Full)
                    == if short {
                        tx.push_body(i as u8, [0; 2], 0, &body)
                    } else {
                        tx.push(i as u8, &[], &[body], 0, len)
                    }
                {
                    yield_now();
                }
            }
        });
        for (i, len) in LENS.into_iter().enumerate() {
            let mut bytes = [0; 128];
            // SAFETY: the bytes have no other use during the poll.
            let to = unsafe { scif_ring::Mem::new(bytes.as_mut_ptr(), 128) };
            while short && i > 0 {
                let all = |_, line: &InlineRecord<'_>| line.copy_payload(0, &to) == len;
                match rx.poll_body(all) {
                    PollOutcome::Consumed => break,
                    _ => yield_now(),
                }
            }
            if short && i > 0 {
                assert!(bytes[..len].iter().all(|b| *b == i as u8 + 1));
                continue;
            }
            let r = loop {
                match rx.peek().unwrap() {
                    Some(r) => break r,
                    None => yield_now(),
                }
            };
            assert_eq!((r.kind, r.body.copy_to_slice(&mut bytes)), (i as u8, len));
            assert!(bytes[..len].iter().all(|b| *b == i as u8 + 1));
            rx.advance();
        }
        t.join().unwrap();
    }

    /// A consumer of eight slots publishes every second record: the producer finds space for all,
    /// and `all_consumed` holds after the last flush.
    fn ring_full_then_flushed() {
        let (mut tx, mut rx) = direction::<8, 256>();
        for i in 0..8 {
            tx.push_head(i, &[]).unwrap();
        }
        let t = spawn(move || {
            for _ in 0..3 {
                assert!(rx.peek().unwrap().is_some());
                rx.advance();
            }
            rx.flush();
            rx
        });
        let mut pushed = 0;
        while pushed < 3 {
            match tx.push_head(9, &[]) {
                Ok(()) => pushed += 1,
                Err(_) => yield_now(),
            }
        }
        assert!(!tx.all_consumed());
        let mut rx = t.join().unwrap();
        while rx.peek().unwrap().is_some() {
            rx.advance();
        }
        rx.flush();
        assert!(tx.all_consumed());
    }

    /// A consumer that becomes idle while a record is pushed finds the record, or the producer sees
    /// it idle.
    fn idle_and_push(asymmetric: bool) {
        let (mut tx, mut rx) = direction::<4, 256>();
        let rung = Arc::new(AtomicBool::new(false));
        let rings = Arc::clone(&rung);
        let t = spawn(move || {
            tx.push_head(1, &[]).unwrap();
            publish_fence(asymmetric);
            if tx.consumer_idle() {
                rings.store(true, Ordering::Relaxed);
            }
        });
        rx.set_idle(true);
        sleeper_fence();
        let seen = rx.peek().unwrap().is_some();
        t.join().unwrap();
        assert!(seen || rung.load(Ordering::Relaxed), "a record nobody looks for");
    }

    /// An endpoint that goes to sleep while a record is pushed finds the record, or is woken.
    fn sleeping_and_push(asymmetric: bool) {
        let (mut tx, mut rx) = direction::<4, 256>();
        let (bell, [handle, _]) = bell::<1>();
        let woken = Arc::new(AtomicBool::new(false));
        let wakes = Arc::clone(&woken);
        let t = spawn(move || {
            tx.push_head(1, &[]).unwrap();
            publish_fence(asymmetric);
            if handle.sleeping() {
                wakes.store(true, Ordering::Relaxed);
            }
        });
        bell.set_sleeping(true);
        sleeper_fence();
        let seen = rx.peek().unwrap().is_some();
        t.join().unwrap();
        assert!(seen || woken.load(Ordering::Relaxed), "a sleeper nobody wakes");
    }

    /// Two peers set one bit while the owner takes it: after the last ring, a record not yet seen
    /// is still announced.
    fn bell_loses_nothing() {
        let (bell, handles) = bell::<1>();
        let news = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let threads: Vec<_> = handles
            .into_iter()
            .enumerate()
            .map(|(i, handle)| {
                let news = Arc::clone(&news);
                spawn(move || {
                    news[i].store(1, Ordering::Release);
                    publish_fence(false);
                    handle.ring(5);
                })
            })
            .collect();
        let mut seen = [false; 2];
        let mut look = |bell: &scif_ring::doorbell::BellOf<1>| {
            bell.take(|bit| {
                assert_eq!(bit, 5);
                for (seen, news) in seen.iter_mut().zip(news.iter()) {
                    *seen |= news.load(Ordering::Acquire) == 1;
                }
            });
        };
        look(&bell);
        for t in threads {
            t.join().unwrap();
        }
        look(&bell);
        assert_eq!(seen, [true; 2]);
    }

    fn entry(key: u64) -> KeyEntry {
        KeyEntry {
            key,
            base: key * 10,
            start: key * 11,
            len: key * 12,
            access: key * 13,
            window: key * 14,
            window_len: key * 15,
        }
    }

    /// A slot that changes from one key to another is never read half and half.
    fn keys_are_read_whole() {
        let (mut owner, reader) = keys::<1>();
        let slot = owner.insert(entry(1)).unwrap();
        let t = spawn(move || {
            owner.remove(slot);
            assert_eq!(owner.insert(entry(2)), Some(slot));
        });
        for key in [1, 2] {
            if let Some((at, generation, found)) = reader.find(key) {
                assert_eq!((at, found), (slot, entry(key)));
                assert_eq!(generation % 4, 2);
            }
        }
        t.join().unwrap();
        assert_eq!(reader.find(1), None);
        assert_eq!(reader.find(2).unwrap().2, entry(2));
    }

    /// Memory freed after the removal of its key, and the wait for hazard pointers, is not written
    /// by a copy.
    fn hazard_or_removal_is_seen(fenced: bool) {
        let (mut owner, reader) = keys::<1>();
        let slot = owner.insert(entry(1)).unwrap();
        let [mine, theirs] = hazard_pointer();
        let memory = Arc::new(loom::cell::UnsafeCell::new(0));
        let target = Arc::clone(&memory);
        let t = spawn(move || {
            let Some((slot, generation, _)) = reader.find(1) else {
                return;
            };
            if fenced {
                mine.set(slot)
            } else {
                set_hazard_without_fence(&mine, slot)
            }
            if reader.revalidate(slot, generation) {
                target.with_mut(|_| ());
            }
            mine.clear();
        });
        owner.remove(slot);
        while theirs.get() == Some(slot) {
            yield_now();
        }
        memory.with_mut(|_| ());
        t.join().unwrap();
    }

    /// An owner that announces its revocation by a hazard pointer waits for an initiator inside, or
    /// the initiator sees the hazard pointer.
    fn hazard_or_revocation_is_seen(fenced: bool) {
        let [inside, seen_inside] = hazard_pointer();
        let [leave, seen_left] = hazard_pointer();
        let memory = Arc::new(loom::cell::UnsafeCell::new(0));
        let announced = Arc::clone(&memory);
        let t = spawn(move || {
            if fenced {
                inside.set(9)
            } else {
                set_hazard_without_fence(&inside, 9)
            }
            if seen_left.get().is_none() {
                announced.with(|_| ());
            }
            inside.clear();
        });
        leave.set(9);
        while seen_inside.get() == Some(9) {
            yield_now();
        }
        memory.with_mut(|_| ());
        t.join().unwrap();
    }

    /// Every part is copied by exactly one side, and is in place when the receiver completes.
    fn claim_parts(parts: u32, fails: Option<u32>) {
        let [tx, rx] = claim();
        tx.reset(3);
        let memory: Arc<Vec<_>> =
            Arc::new((0..parts).map(|_| loom::cell::UnsafeCell::new(0)).collect());
        let target = Arc::clone(&memory);
        let copy = |memory: &[loom::cell::UnsafeCell<i32>], part: u32| {
            // SAFETY: the model checks that no other access races with this write.
            memory[part as usize].with_mut(|p| unsafe { *p += 1 });
        };
        let t = spawn(move || {
            let offer = loop {
                match tx.peer_offer(3) {
                    Some(offer) => break offer,
                    None => yield_now(),
                }
            };
            assert_eq!((offer.dst_addr, offer.parts), (0x40, parts));
            while let Some(taken) = tx.claim_front(3, offer.parts, 8, ClaimShare::Half) {
                let ok = fails.is_none_or(|f| !taken.contains(&f));
                let count = taken.end - taken.start;
                if ok {
                    taken.for_each(|part| copy(&target, part));
                }
                tx.complete_front(count, ok);
            }
        });
        rx.offer(3, 0x40, u64::from(parts) * 8, 8, parts);
        while let Some(taken) = rx.claim_back(3, parts, 8, ClaimShare::Half) {
            taken.for_each(|part| copy(&memory, part));
        }
        while rx.open_parts() > 0 {
            yield_now();
        }
        for part in rx.failed_front(parts).unwrap_or_default() {
            assert_eq!(Some(part), fails);
            copy(&memory, part);
        }
        for cell in memory.iter() {
            // SAFETY: the model checks that no other access races with this read.
            assert_eq!(cell.with(|p| unsafe { *p }), 1);
        }
        t.join().unwrap();
    }

    /// After the receiver has closed and no part is open, no peer writes its memory.
    fn claim_closed() {
        let [tx, rx] = claim();
        tx.reset(3);
        rx.offer(3, 0, 24, 8, 3);
        let memory = Arc::new(loom::cell::UnsafeCell::new(()));
        let target = Arc::clone(&memory);
        let t = spawn(move || {
            while let Some(taken) = tx.claim_front(3, 3, 8, ClaimShare::Half) {
                target.with_mut(|_| ());
                tx.complete_front(taken.end - taken.start, true);
            }
        });
        let taken = rx.close();
        while rx.open_parts() > 0 {
            yield_now();
        }
        memory.with_mut(|_| ());
        assert_eq!(rx.close(), taken);
        t.join().unwrap();
    }
}
