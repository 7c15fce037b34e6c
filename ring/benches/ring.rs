// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Micro-benchmarks of the ring, on one thread and between two, and of the copies.
//!
//! Not about: processes and placement, which the two-process harness measures.

#![expect(
    unsafe_code,
    reason = "lays rings over its own memory; criterion's macro makes an undocumented main"
)]

use criterion::{Criterion, criterion_group, criterion_main};
use scif_ring::{Consumer, DIRECTION_BYTES, Producer};
use std::hint::black_box;

/// The memory of one direction, never freed.
fn ring() -> (Producer, Consumer) {
    let pages: &'static mut [Page] = vec![Page([0; 4096]); DIRECTION_BYTES / 4096].leak();
    let base = pages.as_mut_ptr().cast::<u8>();
    // SAFETY: aligned, zeroed, leaked, and these are its only users.
    let tx = unsafe { Producer::new(base, DIRECTION_BYTES) };
    // SAFETY: as above.
    let rx = unsafe { Consumer::new(base, DIRECTION_BYTES) };
    (
        tx.unwrap_or_else(|e| unreachable!("{e}")),
        rx.unwrap_or_else(|e| unreachable!("{e}")),
    )
}

#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; 4096]);

fn same_thread(c: &mut Criterion) {
    let (mut tx, mut rx) = ring();
    c.bench_function("push_head and peek, 16 bytes, one thread", |b| {
        b.iter(|| {
            let head = black_box([7u8; 16]);
            let _ = black_box(tx.push_head(1, &head));
            let kind = rx.peek().ok().flatten().map(|r| (r.kind, r.head[0]));
            rx.advance();
            kind
        });
    });
}

criterion_group!(benches, same_thread);
criterion_main!(benches);
