// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Models of one-sided records that the consumer executes or the producer withdraws.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{spawn, yield_now};
use scif_ring::model::direction;
use scif_ring::spsc::{ConsumerOf, Execution};

/// Side that omits its fence, so that the model must fail.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Unfenced {
    Neither,
    Consumer,
    Producer,
}

/// Kind of a one-sided record, and of a message.
const WRITE: u8 = 1;
const MESSAGE: u8 = 2;

/// Handles the next record after `begun`.
fn take(rx: &mut ConsumerOf<4, 256>, begun: Execution, execute: impl Fn(u64)) {
    match begun {
        Execution::Hold => yield_now(),
        Execution::Skip => rx.advance(),
        Execution::Execute => {
            execute(rx.consumed());
            rx.advance();
            rx.publish_executed();
            rx.end_execution();
        }
    }
}

/// Two one-sided records and a message, while the producer withdraws what is not executed and gives
/// the records from number `own` on back. Each record is executed once, before the message is
/// taken.
pub(crate) fn withdrawal(unfenced: Unfenced, own: u64) {
    let (mut tx, mut rx) = direction::<4, 256>();
    let memory: Arc<[UnsafeCell<i32>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
    let target = Arc::clone(&memory);
    let execute = |memory: &[UnsafeCell<i32>; 2], record: u64| {
        // SAFETY: the model checks that no other access races with this write.
        memory[record as usize].with_mut(|p| unsafe { *p += 1 });
    };
    for kind in [WRITE, WRITE, MESSAGE] {
        tx.push_head(kind, &[]).unwrap();
    }
    let t = spawn(move || {
        while let Some(record) = rx.peek().unwrap() {
            if record.kind == MESSAGE {
                rx.advance();
                break;
            }
            let begun = match unfenced {
                Unfenced::Consumer => rx.begin_execution_without_fence(),
                _ => rx.begin_execution(),
            };
            take(&mut rx, begun, |record| execute(&target, record));
        }
        for cell in target.iter() {
            // SAFETY: the model checks that no other access races with this read.
            assert_eq!(cell.with(|p| unsafe { *p }), 1);
        }
    });
    match unfenced {
        Unfenced::Producer => tx.begin_withdrawal_without_fence(),
        _ => tx.begin_withdrawal(),
    }
    while tx.is_consumer_executing() {
        yield_now();
    }
    let executed = tx.executed();
    let own = own.max(executed);
    for record in executed..own.min(2) {
        execute(&memory, record);
    }
    // The message, record number 2, is withdrawn only together with all records before it.
    tx.end_withdrawal(if own < 2 { own } else { 3 });
    t.join().unwrap();
}

/// A one-sided record that the producer withdraws and executes if `own`, or gives back, and one
/// that it pushes meanwhile. Both are executed once, in order.
pub(crate) fn push_during_withdrawal(own: bool) {
    let (mut tx, mut rx) = direction::<4, 256>();
    let memory = Arc::new(UnsafeCell::new([0; 2]));
    let target = Arc::clone(&memory);
    let execute = |memory: &UnsafeCell<[i32; 2]>, record: u64| {
        // SAFETY: the model checks that no other access races with this write.
        memory.with_mut(|p| unsafe {
            assert_eq!((*p)[1], 0, "out of order");
            (*p)[record as usize] += 1;
        });
    };
    tx.push_head(WRITE, &[]).unwrap();
    let t = spawn(move || {
        while rx.consumed() < 2 {
            if rx.peek().unwrap().is_none() {
                yield_now();
                continue;
            }
            let begun = rx.begin_execution();
            take(&mut rx, begun, |record| execute(&target, record));
        }
        // SAFETY: the model checks that no other access races with this read.
        assert_eq!(target.with(|p| unsafe { *p }), [1, 1]);
    });
    tx.begin_withdrawal();
    tx.push_head(WRITE, &[]).unwrap();
    while tx.is_consumer_executing() {
        yield_now();
    }
    let executed = tx.executed().min(1);
    if own && executed == 0 {
        execute(&memory, 0);
    }
    tx.end_withdrawal(if own { 1 } else { executed });
    t.join().unwrap();
}
