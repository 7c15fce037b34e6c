// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Micro-benchmarks of the ring on one thread and between two threads, of the domain lock, and of
//! the copies.
//!
//! Not about: processes and their placement, which the two-process bench measures. `cargo bench -p
//! scif-ring [-- name]`.

#![expect(unsafe_code, reason = "lays rings over its own memory and names its own buffers")]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use scif_ring::spsc::InlineRecord;
use scif_ring::{Consumer, DIRECTION_BYTES, ElidableLock, Mem, Producer, chunks_mut};
use std::alloc::{Layout, alloc_zeroed};
use std::hint::{black_box, spin_loop};

/// Returns zeroed pages that are never freed.
fn pages(len: usize) -> *mut u8 {
    let layout = Layout::from_size_align(len, 4096).unwrap_or_else(|e| unreachable!("{e}"));
    // SAFETY: every caller passes a length other than 0.
    unsafe { alloc_zeroed(layout) }
}

fn ring() -> (Producer, Consumer) {
    let base = pages(DIRECTION_BYTES);
    // SAFETY: aligned, zeroed, never freed, and these are its only users.
    let tx = unsafe { Producer::new(base, DIRECTION_BYTES) };
    // SAFETY: as above.
    let rx = unsafe { Consumer::new(base, DIRECTION_BYTES) };
    (tx.unwrap_or_else(|e| unreachable!("{e}")), rx.unwrap_or_else(|e| unreachable!("{e}")))
}

fn mem(len: usize) -> Mem {
    // SAFETY: never freed.
    unsafe { Mem::new(pages(len), len) }
}

fn take(rx: &mut Consumer) -> Option<u8> {
    let r = rx.peek().ok()??;
    let byte = r.head[0];
    rx.advance();
    Some(byte)
}

fn one_thread(c: &mut Criterion) {
    let (mut tx, mut rx) = ring();
    for len in [8usize, 24, 56] {
        c.bench_function(&format!("push_head + take, {len} bytes"), |b| {
            b.iter(|| {
                let head = black_box([7u8; 56]);
                let _ = black_box(tx.push_head(1, head.get(..len).unwrap_or(&[])));
                take(&mut rx)
            });
        });
    }
    let to = mem(56);
    c.bench_function("push_words + take_line, tag and 8 bytes", |b| {
        b.iter(|| {
            let payload = black_box(to.sub(8, 8)).unwrap_or(Mem::empty());
            let _ = black_box(tx.push_words(1, [black_box(7), 0], 1, &payload));
            rx.poll_inline(|_, line: &InlineRecord<'_>| {
                line.copy_payload(1, &to) == 8 && line.word(0) == 7
            })
        });
    });
    c.bench_function("push_with + take, 24 bytes", |b| {
        b.iter(|| {
            let n = black_box(7u64);
            let _ = black_box(tx.push_with(1, 24, |h| {
                for word in chunks_mut(h).take(3) {
                    *word = n.to_le_bytes();
                }
            }));
            take(&mut rx)
        });
    });
    let from = mem(16384);
    for len in [64usize, 4096, 16384] {
        c.bench_function(&format!("push + take, body of {len}"), |b| {
            b.iter(|| {
                let _ = black_box(tx.push(1, &[1; 24], &[from], 0, len));
                take(&mut rx)
            });
        });
    }
    c.bench_function("peek, empty", |b| b.iter(|| rx.peek().is_ok_and(|r| r.is_none())));
    c.bench_function("consumer_idle", |b| b.iter(|| tx.consumer_idle()));
}

fn two_threads(c: &mut Criterion) {
    let (mut ping, mut ping_rx) = ring();
    let (mut pong, mut pong_rx) = ring();
    let echo = std::thread::spawn(move || {
        loop {
            match take(&mut ping_rx) {
                Some(0) => break,
                Some(b) => {
                    let _ = pong.push_head(1, &[b; 8]);
                }
                None => spin_loop(),
            }
        }
    });
    c.bench_function("round trip, 8 bytes, two threads", |b| {
        b.iter(|| {
            let _ = ping.push_head(1, &[1; 8]);
            loop {
                if let Some(b) = take(&mut pong_rx) {
                    break b;
                }
                spin_loop();
            }
        });
    });
    let _ = ping.push_head(1, &[0; 8]);
    let _ = echo.join();

    let (mut tx, mut rx) = ring();
    let sink = std::thread::spawn(move || {
        loop {
            match take(&mut rx) {
                Some(0) => break,
                Some(_) => {}
                None => rx.flush(),
            }
        }
    });
    c.bench_function("rate, 8 bytes, two threads", |b| {
        b.iter(|| {
            while tx.push_head(1, &[1; 8]).is_err() {
                spin_loop();
            }
        });
    });
    while tx.push_head(1, &[0; 8]).is_err() {
        spin_loop();
    }
    let _ = sink.join();
}

fn locks(c: &mut Criterion) {
    let shared = ElidableLock::shared(0u64);
    c.bench_function("gate, shared", |b| b.iter(|| *shared.lock() += 1));
    // SAFETY: one thread.
    let elided = unsafe { ElidableLock::elided(0u64) };
    c.bench_function("gate, elided", |b| b.iter(|| *elided.lock() += 1));
}

/// Compares the product's copy, which may use non-temporal stores, with the C library's, over
/// memory larger than the caches of one core.
fn copies(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    group.sample_size(20);
    const POOL: usize = 256 << 20;
    let (from, to) = (mem(POOL), mem(POOL));
    from.copy_from(&to);
    for mib in [1usize, 2, 4, 8, 16, 64] {
        let len = mib << 20;
        group.throughput(Throughput::Bytes(len as u64));
        for (name, stride) in [("reused", 0), ("fresh", len)] {
            let mut at = 0;
            let mut next = move || {
                at = (at + stride) % POOL;
                at
            };
            let mut again = next;
            group.bench_function(BenchmarkId::new(format!("product, {name}"), len), |b| {
                b.iter_batched(
                    &mut next,
                    |at| to.sub(at, len).zip(from.sub(at, len)).map(|(t, f)| t.copy_from(&f)),
                    BatchSize::PerIteration,
                );
            });
            group.bench_function(BenchmarkId::new(format!("libc, {name}"), len), |b| {
                b.iter_batched(
                    &mut again,
                    |at| {
                        let (t, f) = (to.as_ptr().wrapping_add(at), from.as_ptr().wrapping_add(at));
                        // SAFETY: at + len <= POOL in both pools.
                        unsafe { t.copy_from(f, len) };
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
}

criterion_group!(benches, one_thread, two_threads, locks, copies);
criterion_main!(benches);
