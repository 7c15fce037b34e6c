// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Work queued to a domain until a counter reaches a threshold. Mirrors fi_trigger(3), "DEFERRED
//! WORK QUEUES".

use std::sync::Arc;

use scif_fabtests::fi::{Operation, WorkRequest};
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};
use super::trigger::{counter, silence, spec};

pub(crate) const CASES: &[Case] = &[
    case("work/every_kind", 2, every_kind),
    case("work/chain", 2, |r| chain(&Rig::open(r, &spec())?)),
    case("work/reports_when_asked", 2, reports),
    case("work/failures_count", 2, |r| failures(&Rig::open(r, &spec())?)),
    case("work/cancel_and_flush", 1, |r| cancel_and_flush(&Rig::open(r, &spec())?)),
    case("work/refused", 1, |r| work_refused(&Rig::open(r, &spec())?)),
];

pub(crate) fn place(remote: Remote, off: u64, len: usize) -> RmaIov {
    RmaIov { addr: remote.addr + off, len, key: remote.key }
}

/// Tests every kind of work: it starts at its threshold, and only its own counter reports it.
fn every_kind(rank: &Rank) -> Outcome {
    let all = sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE;
    let rig = Rig::open(rank, &spec().with(|request| request.counters = all))?;
    let mine = Buf::new(64);
    mine.store_u64(0, 5);
    mine.store_u64(16, 33);
    let (_mr, remotes) = rig.share(mine, REMOTE)?;
    let (trigger, done, own) = (counter(&rig)?, counter(&rig)?, counter(&rig)?);
    let peer = rig.peer();
    let at = from(&remotes, rank.peer(), 0)?;
    let word = |value: u64| Buf::of(&value.to_ne_bytes());
    let target = |op: u32| at.atomic(peer, sys::FI_UINT64, op, 0);
    let (got, fetched, swapped) = (Buf::new(8), Buf::new(8), Buf::new(8));
    let (plain, tagged) = (Buf::new(100_000), Buf::new(8));
    let work = [
        Operation::Recv { buf: plain, tag: None },
        Operation::Recv { buf: tagged, tag: Some(6) },
        Operation::Send { buf: Buf::pattern(100_000, 1), dest: peer, tag: None },
        Operation::Send { buf: word(66), dest: peer, tag: Some(6) },
        Operation::Write { buf: word(88), dest: peer, remote: place(at, 8, 8) },
        Operation::Read { buf: got, dest: peer, remote: place(at, 16, 8) },
        Operation::Atomic { target: target(sys::FI_SUM), operand: word(1) },
        Operation::Fetch { target: target(sys::FI_SUM), operand: word(2), result: fetched },
        Operation::Compare {
            target: target(sys::FI_CSWAP),
            operand: word(9),
            compare: word(8),
            result: swapped,
        },
        Operation::Set { cntr: &own, value: 20 },
        Operation::Add { cntr: &own, value: 3 },
    ];
    let operations = work.len() as u64 - 2;
    for (turn, operation) in work.into_iter().enumerate() {
        let counts = matches!(operation, Operation::Set { .. } | Operation::Add { .. });
        let request = WorkRequest {
            cntr: &trigger,
            threshold: turn as u64 + 1,
            completion: (!counts).then_some(&*done),
            context: 0x5000,
            flags: 0,
        };
        rig.domain.queue_work(&rig.ep, &request, operation)?;
    }
    rig.barrier()?;
    silence(&rig)?;
    check_eq!((done.read()?, own.read()?), (0, 0));
    trigger.add(operations + 2)?;
    // Waiting on the counter of the work is sufficient progress for all of it.
    rank.step("waiting for the counter of the work");
    done.wait(operations, -1)?;
    check_eq!(own.read()?, 23);
    check_eq!(plain.differs(100_000, 1), None);
    check_eq!((tagged.load_u64(0), got.load_u64(0)), (66, 33));
    check_eq!((fetched.load_u64(0), swapped.load_u64(0)), (6, 8));
    rig.barrier()?;
    check_eq!((mine.load_u64(0), mine.load_u64(8)), (9, 88));
    silence(&rig)?;
    for (_, cntr) in &rig.counters {
        check_eq!(cntr.read()?, 0, "counters of the endpoint have no part in this");
    }
    check_eq!((done.read()?, done.readerr()?), (operations, 0));
    rig.barrier()
}

/// Tests a chain in which completed work starts the next: a write, its counter, another counter, a
/// message.
fn chain(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    if rig.rank.index == 1 {
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1))?;
        rig.received(1)?;
        check_eq!(mine.load_u64(0), 77, "the write came before the message");
        return rig.barrier();
    }
    let at = from(&remotes, 1, 0)?;
    let [start, written, added, sent] =
        [counter(rig)?, counter(rig)?, counter(rig)?, counter(rig)?];
    let queue =
        |cntr: &Cntr, threshold: u64, completion: Option<&Cntr>, operation: Operation<'_>| {
            let request = WorkRequest {
                cntr,
                threshold,
                completion,
                context: 0,
                flags: sys::FI_DELIVERY_COMPLETE,
            };
            rig.domain.queue_work(&rig.ep, &request, operation)
        };
    let buf = Buf::new(8);
    let message = Operation::Send { buf, dest: rig.peer(), tag: None };
    queue(&added, 5, Some(&sent), message)?;
    queue(&written, 1, None, Operation::Add { cntr: &added, value: 5 })?;
    let write = Operation::Write {
        buf: Buf::of(&77_u64.to_ne_bytes()),
        dest: rig.peer(),
        remote: place(at, 0, 8),
    };
    queue(&start, 1, Some(&written), write)?;
    silence(rig)?;
    start.add(1)?;
    sent.wait(1, -1)?;
    check_eq!((written.read()?, added.read()?), (1, 5));
    // Work whose threshold is already reached starts when it is queued.
    queue(&start, 1, None, Operation::Set { cntr: &added, value: 1 })?;
    check_eq!(added.read()?, 1);
    rig.barrier()
}

/// Tests that work with `FI_COMPLETION` completes at its endpoint as well, once.
fn reports(rank: &Rank) -> Outcome {
    let rig =
        Rig::open(rank, &spec().with(|request| request.counters = sys::FI_SEND | sys::FI_RECV))?;
    let (trigger, own) = (counter(&rig)?, counter(&rig)?);
    let send = rank.index == 0;
    let bit = if send { sys::FI_SEND } else { sys::FI_RECV };
    let endpoints = Arc::clone(rig.counter(bit)?);
    for (at, done) in [&own, &endpoints].into_iter().enumerate() {
        let request = WorkRequest {
            cntr: &trigger,
            threshold: at as u64 + 1,
            completion: Some(done),
            context: 0x700 + at,
            flags: sys::FI_COMPLETION,
        };
        let (dest, buf) = (rig.peer(), Buf::new(8));
        let operation = if send {
            Operation::Send { buf, dest, tag: None }
        } else {
            Operation::Recv { buf, tag: None }
        };
        rig.domain.queue_work(&rig.ep, &request, operation)?;
    }
    trigger.add(2)?;
    for context in [0x700, 0x701] {
        if send {
            rig.sent(context)?;
        } else {
            rig.received(context)?;
        }
    }
    check_eq!((own.read()?, endpoints.read()?), (1, 2));
    rig.barrier()
}

/// Tests that failed work counts as an error of its counter, and starts the work that waits for
/// that counter.
fn failures(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        let (trigger, done, last) = (counter(rig)?, counter(rig)?, counter(rig)?);
        let request = |cntr, completion| WorkRequest {
            cntr,
            threshold: 1,
            completion,
            context: 0x99,
            flags: 0,
        };
        let nowhere = RmaIov { addr: 0, len: 8, key: 0xdead_beef };
        let operation = Operation::Write { buf: Buf::new(8), dest: rig.peer(), remote: nowhere };
        rig.domain.queue_work(&rig.ep, &request(&trigger, Some(&*done)), operation)?;
        let after = Operation::Add { cntr: &last, value: 1 };
        rig.domain.queue_work(&rig.ep, &request(&done, None), after)?;
        trigger.add(1)?;
        let error = rig.next_error(&rig.tx)?;
        check_eq!(error.context, 0x99);
        check_eq!((done.read()?, done.readerr()?), (0, 1));
        rig.wait("what follows the failure", || Ok((last.read()? == 1).then_some(())))?;
    }
    rig.barrier()
}

fn cancel_and_flush(rig: &Rig<'_>) -> Outcome {
    let (first, second, value) = (counter(rig)?, counter(rig)?, counter(rig)?);
    let request = |cntr| WorkRequest { cntr, threshold: 1, completion: None, context: 0, flags: 0 };
    let add = |by: u64| Operation::Add { cntr: &value, value: by };
    let gone = rig.domain.queue_work(&rig.ep, &request(&first), add(1))?;
    rig.domain.queue_work(&rig.ep, &request(&first), add(10))?;
    rig.domain.queue_work(&rig.ep, &request(&second), add(100))?;
    for cntr in [&first, &value] {
        check_eq!(cntr.close(), Err(Errno::EBUSY), "work refers to it");
    }
    rig.domain.cancel_work(gone)?;
    check_eq!(rig.domain.cancel_work(gone), Err(Errno::ENOENT));
    rig.domain.flush_work(Some(&second))?;
    first.add(1)?;
    second.add(1)?;
    check_eq!(value.read()?, 10);
    first.set(0)?;
    second.set(0)?;
    for cntr in [&first, &second] {
        rig.domain.queue_work(&rig.ep, &request(cntr), add(1000))?;
    }
    rig.domain.flush_work(None)?;
    first.add(1)?;
    second.add(1)?;
    check_eq!(value.read()?, 10);
    // Work that waits for an endpoint ends with it.
    first.set(0)?;
    let recv = Operation::Recv { buf: Buf::new(8), tag: None };
    rig.domain.queue_work(&rig.ep, &request(&first), recv)?;
    rig.ep.close()?;
    first.add(1)?;
    for cntr in [first, second, value] {
        check_eq!(cntr.close(), Ok(()));
    }
    Ok(())
}

fn work_refused(rig: &Rig<'_>) -> Outcome {
    let (trigger, other) = (counter(rig)?, counter(rig)?);
    let request =
        |completion| WorkRequest { cntr: &trigger, threshold: 1, completion, context: 0, flags: 0 };
    let add = Operation::Add { cntr: &other, value: 1 };
    let queue =
        |request: &WorkRequest<'_>, work| rig.domain.queue_work(&rig.ep, request, work).map(drop);
    check_eq!(queue(&request(Some(&*other)), add), Err(Errno::EINVAL));
    check_eq!(rig.domain.queue_invalid(&request(None), 99).map(drop), Err(Errno::ENOSYS));
    check_eq!(
        rig.domain.queue_invalid(&request(None), sys::FI_OP_SEND).map(drop),
        Err(Errno::EINVAL)
    );
    check_eq!(rig.domain.control_null(sys::FI_QUEUE_WORK), Err(Errno::EINVAL));
    check_eq!(rig.domain.control_null(sys::FI_CANCEL_WORK), Err(Errno::EINVAL));
    check_eq!(rig.domain.control_null(sys::FI_FLUSH_WORK), Ok(()));
    let recv = Operation::Recv { buf: Buf::new(8), tag: Some(1) };
    let peek = WorkRequest { flags: sys::FI_PEEK, ..request(None) };
    check_eq!(queue(&peek, recv), Err(Errno::ENOSYS));
    let inject = WorkRequest { flags: sys::FI_INJECT, ..request(None) };
    let send = Operation::Send { buf: Buf::new(8), dest: rig.to(0), tag: None };
    check_eq!(queue(&inject, send), Err(Errno::EBADFLAGS));
    let plain = Rig::open(rig.rank, &Spec::messages(false))?;
    let cntr = counter(&plain)?;
    let request = WorkRequest { cntr: &cntr, threshold: 0, completion: None, context: 0, flags: 0 };
    let set = Operation::Set { cntr: &cntr, value: 1 };
    check_eq!(
        plain.domain.queue_work(&plain.ep, &request, set).map(drop),
        Err(Errno::ENOSYS),
        "a domain without the capability"
    );
    Ok(())
}
