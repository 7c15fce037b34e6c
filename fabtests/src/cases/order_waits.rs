// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Orders that require a wait, `FI_ORDER_RAS` and `FI_ORDER_WAS`. An access to the memory of a peer
//! after a message to it takes effect after the peer has received the message. Mirrors
//! fi_endpoint(3), "Message Ordering".
//!
//! The target makes no progress during the access, so without the wait the initiator would complete
//! it. The duration of the attempt is no assertion: a shorter one would find less.

use std::time::{Duration, Instant};

use libfabric_sys as sys;
use scif_fabtests::fi::{AtomicTarget, Buf, Ioc, Result, RmaIoc};
use scif_fabtests::harness::{Case, Fail, Outcome, Rank, case};
use scif_fabtests::rig::{Ask, Remote, Rig};
use scif_fabtests::{check, check_eq};

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("order/write_after_message", 2, |r| after(r, Deed::Write)),
    case("order/read_after_message", 2, |r| after(r, Deed::Read)),
    case("order/atomic_after_message", 2, |r| after(r, Deed::Add)),
    case("order/atomic_read_after_message", 2, |r| after(r, Deed::Look)),
    case("order/after_message_in_one_process", 1, |r| {
        for deed in [Deed::Write, Deed::Read, Deed::Add, Deed::Look] {
            beside(r, deed).map_err(|fail| fail.with(format_args!("{deed:?}")))?;
        }
        Ok(())
    }),
];

/// Duration of the attempt to access the memory too early.
const EARLY: Duration = Duration::from_millis(40);
/// Contexts of the message and of the operation after it.
const MESSAGE: usize = 1;
const DEED: usize = 2;
/// Values of the word of the target before the message is received, and afterwards, unless the
/// operation changes it.
const BEFORE: u64 = 5;
const AFTER: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Write,
    Read,
    /// Addition with `FI_SUM`.
    Add,
    /// Read with `FI_ATOMIC_READ`.
    Look,
}

impl Deed {
    fn reads(self) -> bool {
        matches!(self, Deed::Read | Deed::Look)
    }

    /// Final value of the word of the target.
    fn leaves(self) -> u64 {
        match self {
            Deed::Write => 7,
            Deed::Add => BEFORE + 7,
            Deed::Read | Deed::Look => AFTER,
        }
    }

    /// Posts the operation once. A read stores into `word`, which is 7 otherwise.
    fn post(self, rig: &Rig<'_>, dest: u64, at: Remote, word: Buf) -> Result {
        let target = |op| AtomicTarget {
            dest,
            addr: at.addr,
            key: at.key,
            datatype: sys::FI_UINT64,
            op,
            context: DEED,
        };
        let one = Ioc { buf: word, count: 1 };
        match self {
            Deed::Write => rig.ep.write(word, dest, at.addr, at.key, DEED),
            Deed::Read => rig.ep.read(word, dest, at.addr, at.key, DEED),
            Deed::Add => {
                let range = [RmaIoc {
                    addr: at.addr,
                    count: 1,
                    key: at.key,
                }];
                // Without these flags the operation may complete before it is executed.
                let flags = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
                rig.ep.atomicmsg(&target(sys::FI_SUM), &[one], &range, 0, flags)
            }
            Deed::Look => rig.ep.fetch_atomic(&target(sys::FI_ATOMIC_READ), one, word),
        }
    }
}

fn ask() -> Ask {
    let order = sys::FI_ORDER_SAS | sys::FI_ORDER_RAS | sys::FI_ORDER_WAS;
    Ask::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC).with(|ask| {
        (ask.hints.tx.msg_order, ask.hints.rx.msg_order) = (order, order);
        ask.hints.data_progress = sys::FI_PROGRESS_MANUAL;
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
        match entry
            .map_err(|error| Fail::here(format_args!("{error:?}")))?
            .context
        {
            MESSAGE => *sent = true,
            DEED => *done = true,
            other => return Err(Fail::here(format_args!("a completion of {other}"))),
        }
    }
    Ok(())
}

fn after(rank: &Rank, deed: Deed) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    let granted = rig.info.tx().msg_order & (sys::FI_ORDER_RAS | sys::FI_ORDER_WAS);
    check_eq!(granted, sys::FI_ORDER_RAS | sys::FI_ORDER_WAS);
    let memory = Buf::new(4096);
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    // The connection exists before the test.
    if rank.index == 0 {
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), MESSAGE))?;
        rig.sent(MESSAGE)?;
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
            rig.post(|| deed.post(&rig, rig.peer(), at, word))?;
            early(&rig, &mut sent)?;
            rank.barrier(&mut || Ok(()))?;
            rig.wait("message and deed", || {
                take(&rig, &mut sent, &mut done)?;
                Ok((sent && done).then_some(()))
            })?;
            let read = if deed.reads() { AFTER } else { 7 };
            check_eq!(word.load_u64(0), read, "{deed:?} behind {size} B was too early");
        } else {
            // No progress on this side until the initiator has made its attempt.
            rank.barrier(&mut || Ok(()))?;
            let have = memory.load_u64(0);
            check_eq!(have, BEFORE, "{deed:?} behind {size} B was too early");
            if deed.reads() {
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
            check_eq!(memory.load_u64(0), deed.leaves());
        }
    }
    Ok(())
}

/// Tests the order between two endpoints of one process, whose memory the initiator accesses
/// directly.
fn beside(rank: &Rank, deed: Deed) -> Outcome {
    let rig = Rig::open_alone(rank, &ask())?;
    let other = Rig::open_in(rank, rig.info.dup()?, &rig.fabric, &rig.domain, &ask())?;
    let memory = Buf::new(4096);
    let (_mr, at) = rig.register(memory, REMOTE)?;
    let to = rig.av.insert(&other.ep.name()?)?;
    for size in [8, 8, 20_000] {
        memory.put(0, &BEFORE.to_le_bytes());
        let (word, buf) = (Buf::of(&7_u64.to_le_bytes()), Buf::new(size));
        let (mut sent, mut done) = (false, false);
        rig.post(|| rig.ep.send(Buf::pattern(size, 3), to, MESSAGE))?;
        rig.post(|| deed.post(&rig, to, at, word))?;
        early(&rig, &mut sent)?;
        check_eq!(
            memory.load_u64(0),
            BEFORE,
            "{deed:?} behind {size} B was too early"
        );
        if deed.reads() {
            memory.put(0, &AFTER.to_le_bytes());
        }
        other.post(|| other.ep.recv(buf, sys::FI_ADDR_UNSPEC, MESSAGE))?;
        rig.wait("message and deed", || {
            other.pump()?;
            take(&rig, &mut sent, &mut done)?;
            Ok((sent && done).then_some(()))
        })?;
        other.received(MESSAGE)?;
        check_eq!(memory.load_u64(0), deed.leaves());
        check!(
            !deed.reads() || word.load_u64(0) == AFTER,
            "{deed:?} was too early"
        );
    }
    Ok(())
}
