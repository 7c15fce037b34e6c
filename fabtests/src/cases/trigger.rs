// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Triggered operations: calls with `FI_TRIGGER`. Mirrors fi_trigger(3), whose deferred work is
//! tested in `work`.

use std::sync::Arc;
use std::time::Duration;

use scif_fabtests::fi::{when, when_nothing};
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("trigger/thresholds_in_order", 2, |r| thresholds(r, sys::FI_EP_RDM)),
    case("trigger/datagrams", 2, |r| thresholds(r, sys::FI_EP_DGRAM)),
    case("trigger/every_call", 2, |r| every_call(&Rig::open(r, &spec())?)),
    case("trigger/receives", 2, |r| receives(&Rig::open(r, &spec())?)),
    case("trigger/alias", 2, alias),
    case("trigger/own_completions", 2, own_completions),
    case("trigger/many_at_once", 2, many_at_once),
    case("trigger/wakes_a_reader", 2, wakes_a_reader),
    case("trigger/progress_auto", 2, progress_auto),
    case("trigger/cancel", 1, |r| cancel(&Rig::open(r, &spec())?)),
    case("trigger/refused", 1, |r| refused(&Rig::open(r, &spec())?)),
    case("trigger/shared_receives", 1, |r| shared_receives(&Rig::open(r, &spec())?)),
    case("trigger/no_contexts", 1, |r| no_contexts(&Rig::open(r, &spec())?)),
];

pub(crate) fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_TRIGGER).with(
        |spec| {
            spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
            spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
        },
    )
}

pub(crate) fn counter(rig: &Rig<'_>) -> Outcome<Arc<Cntr>> {
    let attr = CntrAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..CntrAttr::default() };
    supported("fi_cntr_open", Cntr::open(&rig.domain, attr))
}

pub(crate) fn silence(rig: &Rig<'_>) -> Outcome {
    rig.silence(Duration::from_millis(5))
}

/// Tests that the lowest threshold comes first, however late it was posted, equal ones in the order
/// of posting, and all when the counter jumps.
fn thresholds(rank: &Rank, ep_type: u32) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.ep_type = ep_type))?;
    if rank.index == 1 {
        let buf = Buf::new(8);
        for expected in [10, 21, 22, 30, 40] {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
            rig.received(1)?;
            check_eq!(buf.load_u64(0), expected);
        }
        return rig.barrier();
    }
    let cntr = counter(&rig)?;
    let send = |threshold: u64, value: u64| -> Outcome<usize> {
        let (context, buf) = (when(&cntr, threshold)?, Buf::of(&value.to_ne_bytes()));
        let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
        rig.ep.sendmsg(&[buf], rig.peer(), context.addr(), 0, flags)?;
        Ok(context.addr())
    };
    let forty = send(4, 40)?;
    let thirty = send(3, 30)?;
    let ten = send(1, 10)?;
    let (first, second) = (send(2, 21)?, send(2, 22)?);
    silence(&rig)?;
    cntr.add(1)?;
    rig.sent(ten)?;
    silence(&rig)?;
    cntr.set(3)?;
    for context in [first, second, thirty] {
        rig.sent(context)?;
    }
    // Errors do not count towards the threshold.
    cntr.adderr(1)?;
    silence(&rig)?;
    cntr.add(1)?;
    rig.sent(forty)?;
    check!(cntr.close().is_ok(), "a counter that nothing waits for can be closed");
    rig.barrier()
}

/// Tests that each data transfer call takes effect when its counter reaches the threshold.
fn every_call(rig: &Rig<'_>) -> Outcome {
    let mine = Buf::new(64);
    mine.store_u64(0, 5);
    let (_mr, remotes) = rig.share(mine, REMOTE)?;
    if rig.rank.index == 1 {
        for tag in [None, Some(7), Some(8)] {
            let buf = Buf::new(8);
            match tag {
                None => rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?,
                Some(tag) => rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, 1))?,
            }
            rig.received(1)?;
        }
        rig.barrier()?;
        check_eq!((mine.load_u64(0), mine.load_u64(8)), (9, 77));
        return Ok(());
    }
    let (cntr, peer) = (counter(rig)?, rig.peer());
    let at = from(&remotes, 1, 0)?;
    let alias = rig.ep.alias(sys::FI_TRANSMIT | sys::FI_TRIGGER | sys::FI_COMPLETION)?;
    let mut contexts = Vec::new();
    let mut next = || -> Outcome<usize> {
        let context = when(&cntr, contexts.len() as u64 + 1)?.addr();
        contexts.push(context);
        Ok(context)
    };
    let word = |value: u64| Buf::of(&value.to_ne_bytes());
    let target = |op: u32, context: usize| at.atomic(peer, sys::FI_UINT64, op, context);
    let one = |value: u64| Ioc { buf: word(value), count: 1 };
    let (got, old, before) = (Buf::new(8), Buf::new(8), Buf::new(8));
    alias.send(word(1), peer, next()?)?;
    alias.tsend(word(1), peer, 7, next()?)?;
    let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
    rig.ep.tsendmsg(&[word(1)], TaggedMsg::to(peer, 8, next()?), flags)?;
    alias.write(word(77), peer, at.addr + 8, at.key, next()?)?;
    alias.read(got, peer, at.addr + 8, at.key, next()?)?;
    alias.atomic(&target(sys::FI_SUM, next()?), one(1))?;
    alias.fetch_atomic(&target(sys::FI_SUM, next()?), one(2), old)?;
    alias.compare_atomic(&target(sys::FI_CSWAP, next()?), one(9), word(8), before)?;
    silence(rig)?;
    for context in contexts {
        cntr.add(1)?;
        rig.sent(context)?;
    }
    check_eq!((got.load_u64(0), old.load_u64(0), before.load_u64(0)), (77, 6, 8));
    rig.barrier()
}

/// Tests that a waiting receive does not match an arriving message.
fn receives(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        for value in [1_u64, 2] {
            let buf = Buf::of(&value.to_ne_bytes());
            rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
        }
        rig.complete(1, || rig.ep.tsend(Buf::of(&3_u64.to_ne_bytes()), rig.peer(), 5, 1))?;
        return rig.barrier();
    }
    let cntr = counter(rig)?;
    let (late, tagged, now) = (Buf::new(8), Buf::new(8), Buf::new(8));
    let (context, other) = (when(&cntr, 1)?.addr(), when(&cntr, 2)?.addr());
    let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
    rig.ep.recvmsg(&[late], sys::FI_ADDR_UNSPEC, context, flags)?;
    rig.ep.trecvmsg(&[tagged], TaggedMsg::from(sys::FI_ADDR_UNSPEC, 5, 0, other), flags)?;
    rig.ep.recv(now, sys::FI_ADDR_UNSPEC, 2)?;
    rig.received(2)?;
    check_eq!(now.load_u64(0), 1);
    silence(rig)?;
    cntr.add(1)?;
    rig.received(context)?;
    check_eq!(late.load_u64(0), 2);
    silence(rig)?;
    cntr.add(1)?;
    rig.received(other)?;
    check_eq!(tagged.load_u64(0), 3);
    rig.barrier()
}

/// Tests the flag as a default of an alias, without an effect on the endpoint itself.
fn alias(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.counters = sys::FI_WRITE))?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let alias = rig.ep.alias(sys::FI_TRANSMIT | sys::FI_TRIGGER)?;
        let context = when(rig.counter(sys::FI_WRITE)?, 1)?;
        let (second, first) = (Buf::pattern(64, 2), Buf::pattern(64, 1));
        alias.write(second, rig.peer(), at.addr, at.key, context.addr())?;
        silence(&rig)?;
        // The completion of this write counts and starts the other one.
        rig.complete(1, || rig.ep.write(first, rig.peer(), at.addr, at.key, 1))?;
        rig.sent(context.addr())?;
        rig.counted(sys::FI_WRITE, 2)?;
    }
    rig.barrier()?;
    if rank.index == 1 {
        check_eq!(mine.differs(64, 2), None);
    }
    Ok(())
}

/// Tests that each round trip starts the next without the application: arriving messages start
/// replies.
fn own_completions(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 50;
    let rig = Rig::open(rank, &spec().with(|spec| spec.counters = sys::FI_RECV))?;
    for _ in 0..ROUNDS {
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1))?;
    }
    rig.barrier()?;
    let cntr = Arc::clone(rig.counter(sys::FI_RECV)?);
    for round in 0..ROUNDS {
        // Rank 1 replies to the first message of rank 0, which replies to that.
        let threshold = if rank.index == 0 { round } else { round + 1 };
        let (context, buf) = (when(&cntr, threshold)?, Buf::of(&round.to_ne_bytes()));
        let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
        rig.ep.sendmsg(&[buf], rig.peer(), context.addr(), 0, flags)?;
    }
    for _ in 0..ROUNDS {
        rig.next(&rig.rx)?;
        rig.next(&rig.tx)?;
    }
    check_eq!(cntr.read()?, ROUNDS);
    rig.barrier()
}

/// Tests more operations than the transmit queue can hold: the excess waits.
fn many_at_once(rank: &Rank) -> Outcome {
    const MANY: u64 = 5000;
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.tx.size = 16))?;
    if rank.index == 0 {
        let cntr = counter(&rig)?;
        let context = when(&cntr, 1)?.addr();
        for value in 0..MANY {
            let (buf, flags) =
                (Buf::of(&value.to_ne_bytes()), sys::FI_TRIGGER | sys::FI_COMPLETION);
            rig.ep.sendmsg(&[buf], rig.peer(), context, 0, flags)?;
        }
        cntr.add(1)?;
        for _ in 0..MANY {
            rig.sent(context)?;
        }
    } else {
        let buf = Buf::new(8);
        for value in 0..MANY {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
            rig.received(1)?;
            check_eq!(buf.load_u64(0), value);
        }
    }
    rig.barrier()
}

/// Tests that a thread that sleeps for a completion makes the progress that starts the waiting
/// operation.
fn wakes_a_reader(rank: &Rank) -> Outcome {
    let with_waits = spec().with(|spec| {
        spec.counters = sys::FI_RECV;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
    });
    let rig = Rig::open(rank, &with_waits)?;
    if rank.index == 0 {
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        let context = when(rig.counter(sys::FI_RECV)?, 1)?;
        let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
        rig.ep.sendmsg(&[Buf::new(8)], rig.peer(), context.addr(), 0, flags)?;
        rig.barrier()?;
        rank.step("sleeping in fi_cq_sread");
        let found = rig.tx.cq.sread(1, 0, -1)?;
        check_eq!(found.first().map(|e| e.context), Some(context.addr()));
    } else {
        rig.barrier()?;
        std::thread::sleep(Duration::from_millis(50));
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 2))?;
        rig.received(2)?;
    }
    rig.barrier()
}

/// Tests automatic progress, without any call.
fn progress_auto(rank: &Rank) -> Outcome {
    let auto = spec().with(|spec| {
        spec.counters = sys::FI_RECV;
        spec.hints.data_progress = sys::FI_PROGRESS_AUTO;
        spec.hints.control_progress = sys::FI_PROGRESS_AUTO;
    });
    let rig = Rig::open(rank, &auto)?;
    if rank.index == 0 {
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        let context = when(rig.counter(sys::FI_RECV)?, 1)?;
        let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
        rig.ep.sendmsg(&[Buf::new(8)], rig.peer(), context.addr(), 0, flags)?;
        rig.barrier()?;
        // Progress by the provider alone.
        rank.barrier(&mut || Ok(()))?;
    } else {
        rig.barrier()?;
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 2))?;
        rig.received(2)?;
        rank.barrier(&mut || rig.pump())?;
    }
    Ok(())
}

fn cancel(rig: &Rig<'_>) -> Outcome {
    let cntr = counter(rig)?;
    let (first, second) = (when(&cntr, 1)?.addr(), when(&cntr, 1)?.addr());
    let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
    for context in [first, second] {
        rig.ep.recvmsg(&[Buf::new(8)], sys::FI_ADDR_UNSPEC, context, flags)?;
    }
    let send = when(&cntr, 2)?.addr();
    rig.ep.tsendmsg(&[Buf::new(8)], TaggedMsg::to(rig.to(0), 3, send), flags)?;
    check_eq!(cntr.close(), Err(Errno::EBUSY));
    rig.ep.cancel(first)?;
    let error = rig.next_error(&rig.rx)?;
    check_eq!((error.context, error.err), (first, Errno::ECANCELED));
    rig.ep.cancel(send)?;
    let error = rig.next_error(&rig.tx)?;
    check_eq!((error.context, error.err), (send, Errno::ECANCELED));
    // A started receive is an ordinary one.
    cntr.add(1)?;
    rig.ep.cancel(second)?;
    check_eq!(rig.next_error(&rig.rx)?.context, second);
    rig.ep.cancel(second)?;
    silence(rig)?;
    check_eq!(cntr.close(), Ok(()));
    Ok(())
}

/// Tests that a shared context has no triggered operations, unlike the other operations of its
/// endpoints.
fn shared_receives(rig: &Rig<'_>) -> Outcome {
    let srx = supported("fi_srx_context", Ep::shared_receive(&rig.domain))?;
    let ep = Ep::open(&rig.domain, &rig.info)?;
    ep.attach(&rig.av, 0)?;
    ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
    ep.attach(&rig.rx.cq, sys::FI_RECV)?;
    ep.attach(&srx, 0)?;
    ep.enable()?;
    let own = rig.av.insert(&ep.name()?)?;
    let cntr = counter(rig)?;
    let (context, flags) = (when(&cntr, 1)?.addr(), sys::FI_TRIGGER | sys::FI_COMPLETION);
    let (buf, any) = (Buf::new(8), sys::FI_ADDR_UNSPEC);
    check_eq!(srx.recvmsg(&[buf], any, context, flags), Err(Errno::EBADFLAGS));
    check_eq!(
        srx.trecvmsg(&[buf], TaggedMsg::from(any, 1, 0, context), flags),
        Err(Errno::EBADFLAGS)
    );
    srx.recv(buf, any, 1)?;
    ep.sendmsg(&[Buf::of(&7_u64.to_ne_bytes())], own, context, 0, flags)?;
    silence(rig)?;
    cntr.add(1)?;
    rig.received(1)?;
    rig.sent(context)?;
    check_eq!(buf.load_u64(0), 7);
    Ok(())
}

/// Tests that an info with the capability opens no scalable endpoint, and that an info with several
/// contexts lacks the capability.
fn no_contexts(rig: &Rig<'_>) -> Outcome {
    let mut info = rig.info.dup()?;
    info.set_contexts(2, 2);
    check!(Ep::scalable(&rig.domain, &info).is_err(), "a scalable endpoint with triggers");
    Ok(())
}

fn refused(rig: &Rig<'_>) -> Outcome {
    let (cntr, to, flags) = (counter(rig)?, rig.to(0), sys::FI_TRIGGER);
    let send = |context: usize, flags: u64| rig.ep.sendmsg(&[Buf::new(8)], to, context, 0, flags);
    check_eq!(send(0, flags), Err(Errno::EINVAL), "no condition");
    let nothing = when_nothing(sys::FI_TRIGGER_THRESHOLD)?.addr();
    check_eq!(send(nothing, flags), Err(Errno::EINVAL), "no counter");
    let device = when_nothing(sys::FI_TRIGGER_XPU)?.addr();
    check_eq!(send(device, flags), Err(Errno::ENOSYS), "no device");
    let context = when(&cntr, 1)?.addr();
    check_eq!(send(context, flags | sys::FI_INJECT), Err(Errno::EBADFLAGS));
    let alias = rig.ep.alias(sys::FI_TRANSMIT | flags)?;
    check_eq!(alias.inject(Buf::new(8), to), Err(Errno::EINVAL));
    let peek = rig.ep.trecvmsg(&[], TaggedMsg::from(to, 1, 0, context), flags | sys::FI_PEEK);
    check_eq!(peek, Err(Errno::EBADFLAGS));
    // A counter of another domain.
    let other = Rig::open(rig.rank, &spec())?;
    let foreign = counter(&other)?;
    check_eq!(send(when(&foreign, 1)?.addr(), flags), Err(Errno::EDOMAIN));
    // Without the capability the flag is unknown.
    let plain = Rig::open(rig.rank, &Spec::messages(false))?;
    check_eq!(plain.info.caps() & sys::FI_TRIGGER, 0);
    let cntr = counter(&plain)?;
    let context = when(&cntr, 0)?.addr();
    let send = plain.ep.sendmsg(&[Buf::new(8)], plain.to(0), context, 0, flags);
    check_eq!(send, Err(Errno::EBADFLAGS));
    check_eq!(plain.ep.alias(sys::FI_TRANSMIT | flags).map(drop), Err(Errno::EBADFLAGS));
    silence(rig)
}
