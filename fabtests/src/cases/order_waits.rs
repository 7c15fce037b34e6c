// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Orders that require a wait, `FI_ORDER_RAS` and `FI_ORDER_WAS`. An access to the memory of a peer
//! after a message to it takes effect after the peer has received the message. Mirrors
//! fi_endpoint(3), "Message Ordering".
//!
//! The target makes no progress during the access, so without the wait the initiator would complete
//! it. The duration of the attempt is no assertion: a shorter one would find less.

use std::time::{Duration, Instant};

use scif_fabtests::fi::{Result, RmaIoc};
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("order/write_after_message", 2, |r| after(r, Operation::Write)),
    case("order/read_after_message", 2, |r| after(r, Operation::Read)),
    case("order/atomic_after_message", 2, |r| after(r, Operation::Add)),
    case("order/atomic_read_after_message", 2, |r| after(r, Operation::Look)),
    case("order/after_message_in_one_process", 1, |r| {
        for operation in [Operation::Write, Operation::Read, Operation::Add, Operation::Look] {
            beside(r, operation).map_err(|fail| fail.with(format_args!("{operation:?}")))?;
        }
        Ok(())
    }),
];

/// Duration of the attempt to access the memory too early.
const EARLY: Duration = Duration::from_millis(40);
/// Contexts of the message and of the operation after it.
const MESSAGE: usize = 1;
const OPERATION: usize = 2;
/// Values of the word of the target before the message is received, and afterwards, unless the
/// operation changes it.
const BEFORE: u64 = 5;
const AFTER: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
    /// Addition with `FI_SUM`.
    Add,
    /// Read with `FI_ATOMIC_READ`.
    Look,
}

impl Operation {
    fn reads(self) -> bool {
        matches!(self, Operation::Read | Operation::Look)
    }

    /// Final value of the word of the target.
    fn leaves(self) -> u64 {
        match self {
            Operation::Write => 7,
            Operation::Add => BEFORE + 7,
            Operation::Read | Operation::Look => AFTER,
        }
    }

    /// Posts the operation once. A read stores into `word`, which is 7 otherwise.
    fn post(self, rig: &Rig<'_>, dest: u64, at: Remote, word: Buf) -> Result {
        let target = |op| at.atomic(dest, sys::FI_UINT64, op, OPERATION);
        let one = Ioc { buf: word, count: 1 };
        match self {
            Operation::Write => rig.ep.write(word, dest, at.addr, at.key, OPERATION),
            Operation::Read => rig.ep.read(word, dest, at.addr, at.key, OPERATION),
            Operation::Add => {
                let range = [RmaIoc { addr: at.addr, count: 1, key: at.key }];
                // Without these flags the operation may complete before it is executed.
                let flags = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
                rig.ep.atomicmsg(&target(sys::FI_SUM), &[one], &range, 0, flags)
            }
            Operation::Look => rig.ep.fetch_atomic(&target(sys::FI_ATOMIC_READ), one, word),
        }
    }
}

fn spec() -> Spec {
    let order = sys::FI_ORDER_SAS | sys::FI_ORDER_RAS | sys::FI_ORDER_WAS;
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC).with(|spec| {
        (spec.hints.tx.msg_order, spec.hints.rx.msg_order) = (order, order);
        spec.hints.data_progress = sys::FI_PROGRESS_MANUAL;
    })
}

/// Reads completions for [`EARLY`], in which the operation must not complete.
fn early(rig: &Rig<'_>, sent: &mut bool) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < EARLY {
        rig.pump()?;
        let mut done = false;
        take(rig, sent, &mut done)?;
        check!(!done, "done before the message was taken in");
        std::thread::yield_now();
    }
    Ok(())
}

/// Reads the available completions.
fn take(rig: &Rig<'_>, sent: &mut bool, done: &mut bool) -> Outcome {
    while let Some(entry) = rig.tx.take() {
        match entry.map_err(|error| Fail::here(format_args!("{error:?}")))?.context {
            MESSAGE => *sent = true,
            OPERATION => *done = true,
            other => return Err(Fail::here(format_args!("a completion of {other}"))),
        }
    }
    Ok(())
}

fn after(rank: &Rank, operation: Operation) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let granted = rig.info.tx().msg_order & (sys::FI_ORDER_RAS | sys::FI_ORDER_WAS);
    check_eq!(granted, sys::FI_ORDER_RAS | sys::FI_ORDER_WAS);
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    // The connection exists before the test.
    if rank.index == 0 {
        rig.complete(MESSAGE, || rig.ep.send(Buf::new(8), rig.peer(), MESSAGE))?;
    } else {
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, MESSAGE))?;
        rig.received(MESSAGE)?;
    }
    for (round, size) in [8, 3000, 20_000, 1 << 20].into_iter().enumerate() {
        // Unexpected in the even rounds, expected in the odd ones.
        let expected = round % 2 == 1;
        memory.put(0, &BEFORE.to_le_bytes());
        let buf = Buf::new(size);
        if expected && rank.index == 1 {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, MESSAGE))?;
        }
        rig.barrier()?;
        // A rank that has left the first barrier may still make progress in it.
        rank.barrier(&mut || Ok(()))?;
        if rank.index == 0 {
            let word = Buf::of(&7_u64.to_le_bytes());
            let at = from(&remotes, 1, 0)?;
            let (mut sent, mut done) = (false, false);
            rig.post(|| rig.ep.send(Buf::pattern(size, 3), rig.peer(), MESSAGE))?;
            rig.post(|| operation.post(&rig, rig.peer(), at, word))?;
            early(&rig, &mut sent)?;
            rank.barrier(&mut || Ok(()))?;
            rig.wait("message and deed", || {
                take(&rig, &mut sent, &mut done)?;
                Ok((sent && done).then_some(()))
            })?;
            let read = if operation.reads() { AFTER } else { 7 };
            check_eq!(word.load_u64(0), read, "{operation:?} behind {size} B was too early");
        } else {
            // No progress on this side until the initiator has made its attempt.
            rank.barrier(&mut || Ok(()))?;
            let have = memory.load_u64(0);
            check_eq!(have, BEFORE, "{operation:?} behind {size} B was too early");
            if operation.reads() {
                memory.put(0, &AFTER.to_le_bytes());
            }
            if !expected {
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, MESSAGE))?;
            }
            rig.received(MESSAGE)?;
            check_eq!(buf.differs(size, 3), None);
        }
        rig.barrier()?;
        if rank.index == 1 {
            check_eq!(memory.load_u64(0), operation.leaves());
        }
    }
    Ok(())
}

/// Tests the order between two endpoints of one process, whose memory the initiator accesses
/// directly.
fn beside(rank: &Rank, operation: Operation) -> Outcome {
    let rig = Rig::open_alone(rank, &spec())?;
    let other = Rig::open_in(rank, rig.info.dup()?, &rig.fabric, &rig.domain, &spec())?;
    let memory = Buf::new(4096);
    let (_mr, at) = rig.register(memory, REMOTE)?;
    let to = rig.av.insert(&other.ep.name()?)?;
    for size in [8, 8, 20_000] {
        memory.put(0, &BEFORE.to_le_bytes());
        let (word, buf) = (Buf::of(&7_u64.to_le_bytes()), Buf::new(size));
        let (mut sent, mut done) = (false, false);
        rig.post(|| rig.ep.send(Buf::pattern(size, 3), to, MESSAGE))?;
        rig.post(|| operation.post(&rig, to, at, word))?;
        early(&rig, &mut sent)?;
        check_eq!(memory.load_u64(0), BEFORE, "{operation:?} behind {size} B was too early");
        if operation.reads() {
            memory.put(0, &AFTER.to_le_bytes());
        }
        other.post(|| other.ep.recv(buf, sys::FI_ADDR_UNSPEC, MESSAGE))?;
        rig.wait("message and deed", || {
            other.pump()?;
            take(&rig, &mut sent, &mut done)?;
            Ok((sent && done).then_some(()))
        })?;
        other.received(MESSAGE)?;
        check_eq!(memory.load_u64(0), operation.leaves());
        check!(!operation.reads() || word.load_u64(0) == AFTER, "{operation:?} was too early");
    }
    Ok(())
}
