// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters: alone, of endpoints, of regions; and waiting. Mirrors fi_cntr(3).

use std::sync::Arc;
use std::time::Duration;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("cntr/alone", 1, alone),
    case("cntr/wait_alone", 1, |r| wait_alone(&Rig::open(r, &Spec::messages(false))?)),
    case("cntr/wait_woken", 1, wait_woken),
    case("cntr/no_wait_object", 1, |r| no_wait_object(&Rig::open(r, &Spec::messages(false))?)),
    case("cntr/messages", 2, messages),
    case("cntr/without_queues", 2, without_queues),
    case("cntr/wait_for_messages", 2, wait_for_messages),
    case("cntr/rma", 2, rma),
    case("cntr/remote_events", 2, remote_events),
    case("cntr/region_events", 2, region_events),
    case("cntr/errors", 2, errors),
    case("cntr/wait_ends_with_an_error", 2, wait_error),
    case("cntr/busy_close", 1, |r| busy_close(&Rig::open(r, &Spec::messages(false))?)),
    case("cntr/bound_after_enable", 2, bound_late),
    case("cntr/bound_while_waited_for", 2, bound_while_waited_for),
];

fn open(rig: &Rig<'_>, wait_obj: u32) -> Outcome<Arc<Cntr>> {
    supported("fi_cntr_open", Cntr::open(&rig.domain, CntrAttr { wait_obj, ..CntrAttr::default() }))
}

fn alone(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false))?;
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_NONE] {
        let cntr = open(&rig, wait_obj)?;
        check_eq!((cntr.read()?, cntr.readerr()?), (0, 0));
        cntr.add(5)?;
        cntr.add(7)?;
        check_eq!(cntr.read()?, 12);
        cntr.set(3)?;
        check_eq!(cntr.read()?, 3);
        cntr.adderr(2)?;
        cntr.adderr(2)?;
        check_eq!((cntr.read()?, cntr.readerr()?), (3, 4));
        cntr.seterr(1)?;
        check_eq!((cntr.read()?, cntr.readerr()?), (3, 1));
        check_eq!(cntr.class()?, sys::FI_CLASS_CNTR);
    }
    Ok(())
}

fn wait_alone(rig: &Rig<'_>) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let cntr = match Cntr::open(&rig.domain, CntrAttr { wait_obj, ..CntrAttr::default() }) {
            Err(Errno::ENOSYS | Errno::EINVAL) if rig.rank.target.prov != "scif" => continue,
            other => other?,
        };
        check_eq!(cntr.wait(1, 0), Err(Errno::ETIMEDOUT));
        check_eq!(cntr.wait(1, 10), Err(Errno::ETIMEDOUT));
        cntr.add(4)?;
        check_eq!(cntr.wait(4, 0), Ok(()));
        check_eq!(cntr.wait(3, -1), Ok(()));
        check_eq!(cntr.wait(5, 5), Err(Errno::ETIMEDOUT));
    }
    Ok(())
}

/// Tests that another thread wakes a sleeping waiter.
fn wait_woken(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| spec.hints.threading = sys::FI_THREAD_SAFE),
    )?;
    let cntr = open(&rig, sys::FI_WAIT_UNSPEC)?;
    for round in 1..=20 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3));
                cntr.add(1)
            });
            cntr.wait(round, -1)
        })?;
    }
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(3));
            cntr.adderr(1)
        });
        cntr.wait(1000, -1)
    });
    check_eq!(error, Err(Errno::EAVAIL));
    Ok(())
}

fn no_wait_object(rig: &Rig<'_>) -> Outcome {
    let cntr = open(rig, sys::FI_WAIT_NONE)?;
    if rig.rank.target.prov != "scif" && cntr.wait(1, 0) == Err(Errno::ENOSYS) {
        return Err(Fail::NotRun("waiting without a wait object".into()));
    }
    // Without a wait object the call polls.
    for timeout_ms in [0, 1, 20] {
        check_eq!(cntr.wait(1, timeout_ms), Err(Errno::ETIMEDOUT), "{timeout_ms} ms");
    }
    cntr.add(1)?;
    check_eq!(cntr.wait(1, 0), Ok(()));
    Ok(())
}

/// Tests that sends and receives are counted one by one, injected ones included.
fn messages(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.counters = sys::FI_SEND | sys::FI_RECV);
    let rig = Rig::open(rank, &spec)?;
    for (round, size) in [8, 4096, 100_000].into_iter().enumerate() {
        let base = round as u64 * 3;
        if rank.index == 0 {
            rig.post(|| rig.ep.send(Buf::new(size), rig.peer(), 1))?;
            rig.post(|| rig.ep.inject(Buf::new(8), rig.peer()))?;
            rig.post(|| rig.ep.senddata(Buf::new(size), 1, rig.peer(), 2))?;
            rig.counted(sys::FI_SEND, base + 3)?;
            rig.next(&rig.tx)?;
            rig.next(&rig.tx)?;
        } else {
            for _ in 0..3 {
                rig.post(|| rig.ep.recv(Buf::new(size), sys::FI_ADDR_UNSPEC, 1))?;
            }
            rig.counted(sys::FI_RECV, base + 3)?;
            for _ in 0..3 {
                rig.next(&rig.rx)?;
            }
        }
        rig.barrier()?;
    }
    let (bit, other) =
        if rank.index == 0 { (sys::FI_SEND, sys::FI_RECV) } else { (sys::FI_RECV, sys::FI_SEND) };
    check_eq!((rig.counter(bit)?.read()?, rig.counter(other)?.read()?), (9, 0));
    Ok(())
}

/// Tests that an enabled endpoint accepts a counter for each direction without one, as OpenSHMEM
/// needs.
fn bound_late(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::caps(sys::FI_RMA | sys::FI_MSG))?;
    let (messages, accesses) = (open(&rig, sys::FI_WAIT_UNSPEC)?, open(&rig, sys::FI_WAIT_UNSPEC)?);
    rig.ep.attach(&messages, sys::FI_SEND | sys::FI_RECV)?;
    rig.ep.attach(&accesses, sys::FI_READ)?;
    rig.ep.attach(&accesses, sys::FI_WRITE)?;
    for (cntr, taken) in [(&messages, sys::FI_READ), (&accesses, sys::FI_SEND)] {
        check_eq!(rig.ep.bind(cntr.as_ref(), taken), Err(Errno::EINVAL), "{taken:#x}");
    }
    let (_mr, remotes) = rig.share(Buf::new(64), REMOTE)?;
    if rank.index == 0 {
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        rig.post(|| rig.ep.inject(Buf::new(8), rig.peer()))?;
        rig.wait("the sends", || Ok((messages.read()? == 2).then_some(())))?;
        let at = from(&remotes, 1, 0)?;
        rig.post(|| rig.ep.write(Buf::new(8), rig.peer(), at.addr, at.key, 2))?;
        rig.post(|| rig.ep.read(Buf::new(8), rig.peer(), at.addr, at.key, 3))?;
        rig.wait("the accesses", || Ok((accesses.read()? == 2).then_some(())))?;
    } else {
        for context in 0..2 {
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, context))?;
        }
        rig.wait("the receives", || Ok((messages.read()? == 2).then_some(())))?;
    }
    rig.barrier()?;
    check_eq!((messages.readerr()?, accesses.readerr()?), (0, 0));
    Ok(())
}

/// Tests a thread that sleeps on a counter before an endpoint is bound: messages to the endpoint
/// wake it.
fn bound_while_waited_for(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.threading = sys::FI_THREAD_SAFE);
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::new(8), rig.peer(), 1))?;
    } else {
        let cntr = open(&rig, sys::FI_WAIT_UNSPEC)?;
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| cntr.wait(1, -1));
            // Long enough for the thread to be asleep in most cases.
            std::thread::sleep(Duration::from_millis(30));
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1))?;
            let attached = rig.ep.attach(&cntr, sys::FI_RECV);
            if attached.is_err() {
                cntr.add(1)?;
            }
            attached?;
            rank.barrier(&mut || Ok(()))?;
            check_eq!(sleeper.join().map_err(|_| Fail::here("the sleeper panicked"))?, Ok(()));
            Ok(())
        })?;
    }
    rig.barrier()
}

/// Tests counters in place of queues.
fn without_queues(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| {
        spec.counters = sys::FI_SEND | sys::FI_RECV;
        spec.queues = Queues::Unbound;
    });
    let rig = Rig::open(rank, &spec)?;
    let buf = Buf::new(5000);
    for round in 1..=50 {
        if rank.index == 0 {
            rig.post(|| rig.ep.send(Buf::pattern(5000, round), rig.peer(), 1))?;
            rig.counted(sys::FI_SEND, round)?;
        } else {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
            rig.counted(sys::FI_RECV, round)?;
            check_eq!(buf.differs(5000, round), None);
        }
    }
    rig.barrier()
}

/// Tests that `fi_cntr_wait` makes the progress that its operations need.
fn wait_for_messages(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.counters = sys::FI_SEND | sys::FI_RECV);
    let rig = Rig::open(rank, &spec)?;
    rank.step("waiting in fi_cntr_wait");
    let sizes = [8, 5000, 100_000].into_iter().cycle();
    for (round, size) in (1..=200_u64).zip(sizes) {
        let buf = Buf::new(size);
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
        if rank.index == 0 {
            rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
            rig.counter(sys::FI_RECV)?.wait(round, -1)?;
        } else {
            rig.counter(sys::FI_RECV)?.wait(round, -1)?;
            rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
        }
        rig.counter(sys::FI_SEND)?.wait(round, -1)?;
    }
    rig.barrier()
}

fn rma(rank: &Rank) -> Outcome {
    let spec = Spec::caps(sys::FI_RMA | sys::FI_ATOMIC | sys::FI_MSG)
        .with(|spec| spec.counters = sys::FI_READ | sys::FI_WRITE);
    let rig = Rig::open(rank, &spec)?;
    let (_mr, remotes) = rig.share(Buf::new(200_000), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        for (round, size) in [8, 4096, 200_000].into_iter().enumerate() {
            let round = round as u64 + 1;
            let (buf, peer) = (Buf::new(size), rig.peer());
            rig.post(|| rig.ep.write(buf, peer, at.addr, at.key, 1))?;
            rig.post(|| rig.ep.inject_write(Buf::new(8), peer, at.addr, at.key))?;
            rig.post(|| rig.ep.read(buf, peer, at.addr, at.key, 2))?;
            let place = at.sum(peer, 3);
            let one = Ioc { buf: Buf::new(8), count: 1 };
            rig.post(|| rig.ep.atomic(&place, one))?;
            rig.post(|| rig.ep.fetch_atomic(&place, one, Buf::new(8)))?;
            // fi_write, fi_inject_write and fi_atomic count as writes; fi_read and fi_fetch_atomic
            // as reads.
            rig.counted(sys::FI_WRITE, round * 3)?;
            rig.counted(sys::FI_READ, round * 2)?;
        }
        for _ in 0..12 {
            rig.next(&rig.tx)?;
        }
        rig.silence(Duration::from_millis(5))?;
        check_eq!(
            (rig.counter(sys::FI_WRITE)?.read()?, rig.counter(sys::FI_READ)?.read()?),
            (9, 6)
        );
    }
    rig.barrier()
}

/// Tests `FI_RMA_EVENT`: the target counts remote accesses.
fn remote_events(rank: &Rank) -> Outcome {
    let spec = Spec::caps(sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT | sys::FI_MSG)
        .with(|spec| spec.counters = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE);
    let rig = Rig::open(rank, &spec)?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(200_000), REMOTE)?;
    for (round, size) in [8, 4096, 200_000].into_iter().enumerate() {
        let round = round as u64 + 1;
        if rank.index == 0 {
            let (at, peer) = (from(&remotes, 1, 0)?, rig.peer());
            let buf = Buf::pattern(size, round);
            rig.post(|| rig.ep.write(buf, peer, at.addr, at.key, 1))?;
            rig.post(|| rig.ep.inject_write(Buf::of(&buf.get(0, 8)), peer, at.addr, at.key))?;
            rig.complete(1, || rig.ep.read(Buf::new(size), peer, at.addr, at.key, 2))?;
            rig.sent(2)?;
        } else {
            rig.counted(sys::FI_REMOTE_WRITE, 2 * round)?;
            check_eq!(mine.differs(size, round), None, "counted before it was there");
            rig.counted(sys::FI_REMOTE_READ, round)?;
        }
        rig.barrier()?;
    }
    if rank.index == 1 {
        let values =
            (rig.counter(sys::FI_REMOTE_WRITE)?.read()?, rig.counter(sys::FI_REMOTE_READ)?.read()?);
        check_eq!(values, (6, 3));
    }
    Ok(())
}

/// Tests that a counter of one region counts accesses to that region only.
fn region_events(rank: &Rank) -> Outcome {
    let spec = Spec::caps(sys::FI_RMA | sys::FI_RMA_EVENT | sys::FI_MSG);
    let rig = Rig::open(rank, &spec)?;
    let (watched, other) = (Buf::new(65_536), Buf::new(65_536));
    let (mr, watched_at) = rig.share(watched, REMOTE)?;
    let (_other, other_at) = rig.share(other, REMOTE)?;
    let cntr = open(&rig, sys::FI_WAIT_UNSPEC)?;
    supported("binding a counter to a region", mr.bind(cntr.as_ref(), sys::FI_REMOTE_WRITE))?;
    rig.barrier()?;
    if rank.index == 0 {
        let (at, beside, peer) = (from(&watched_at, 1, 0)?, from(&other_at, 1, 0)?, rig.peer());
        for size in [8, 65_536] {
            let buf = Buf::pattern(size, 4);
            rig.complete(1, || rig.ep.write(buf, peer, beside.addr, beside.key, 1))?;
            rig.complete(1, || rig.ep.write(buf, peer, at.addr, at.key, 1))?;
        }
        rig.barrier()?;
    } else {
        rig.wait("the region's counter", || Ok((cntr.read()? >= 2).then_some(())))?;
        check_eq!(watched.differs(65_536, 4), None);
        rig.barrier()?;
        check_eq!(cntr.read()?, 2);
    }
    drop(mr);
    rig.barrier()
}

/// Tests that a failed operation counts as an error, not as completed.
fn errors(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.counters = sys::FI_SEND | sys::FI_RECV);
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::new(100), rig.peer(), 1))?;
    } else {
        rig.post(|| rig.ep.recv(Buf::new(10), sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.ep.recv(Buf::new(10), sys::FI_ADDR_UNSPEC, 2))?;
        rig.barrier()?;
        check_eq!(rig.next_error(&rig.rx)?.err, Errno::ETRUNC);
        rig.ep.cancel(2)?;
        check_eq!(rig.next_error(&rig.rx)?.err, Errno::ECANCELED);
        let cntr = rig.counter(sys::FI_RECV)?;
        check_eq!(cntr.read()?, 0);
        check!(cntr.readerr()? >= 1, "no error was counted");
    }
    rig.barrier()
}

fn wait_error(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.counters = sys::FI_RECV);
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::new(100), rig.peer(), 1))?;
        rig.barrier()
    } else {
        rig.post(|| rig.ep.recv(Buf::new(10), sys::FI_ADDR_UNSPEC, 1))?;
        rig.barrier()?;
        rank.step("waiting in fi_cntr_wait for an error");
        let cntr = rig.counter(sys::FI_RECV)?;
        // The receive may have failed already during the barrier.
        let seen = cntr.readerr()? > 0;
        check!(seen || cntr.wait(1, -1) == Err(Errno::EAVAIL));
        rig.barrier()
    }
}

fn busy_close(rig: &Rig<'_>) -> Outcome {
    let cntr = open(rig, sys::FI_WAIT_UNSPEC)?;
    let ep = Ep::open(&rig.domain, &rig.info)?;
    supported("binding a counter", ep.bind(cntr.as_ref(), sys::FI_SEND))?;
    check_eq!(cntr.close(), Err(Errno::EBUSY));
    drop(ep);
    match cntr.close() {
        Ok(()) => Ok(()),
        Err(e) => Err(Fail::here(e)),
    }
}
