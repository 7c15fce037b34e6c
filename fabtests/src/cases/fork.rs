// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of forked children, which have the objects of their parent in memory and must not use
//! them. Every call in a child returns an error, and the parent loses nothing. Children that
//! outlive their parent are in `death` and `restart`.

use std::sync::{Mutex, PoisonError};

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("fork/child_is_refused", 2, |r| child(r, sys::FI_PROGRESS_MANUAL)),
    case("fork/child_is_refused_under_auto_progress", 2, |r| child(r, sys::FI_PROGRESS_AUTO)),
    case("fork/child_exits", 2, |r| exits(r, sys::FI_PROGRESS_MANUAL)),
    case("fork/child_exits_under_auto_progress", 2, |r| exits(r, sys::FI_PROGRESS_AUTO)),
    case("fork/child_closes", 2, |r| closes(r, sys::FI_PROGRESS_MANUAL)),
    case("fork/child_closes_under_auto_progress", 2, |r| closes(r, sys::FI_PROGRESS_AUTO)),
];

const WAITING: usize = 20;

fn child(rank: &Rank, progress: u32) -> Outcome {
    rank.only_scif("the state of a forked child depends on the provider")?;
    let spec = super::atomic::spec().with(|spec| {
        spec.hints.caps |= sys::FI_TAGGED;
        spec.hints.data_progress = progress;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
        spec.counters = sys::FI_SEND;
    });
    let rig = Rig::open(rank, &spec)?;
    let (_mr, remotes) = rig.share(Buf::new(4096), REMOTE)?;
    let there = from(&remotes, rank.peer(), 0)?;
    exchange(&rig, 1)?;
    if rank.index == 1 {
        for number in 0..WAITING {
            rig.complete(number, || {
                rig.ep.send(Buf::pattern(64, number as u64), rig.peer(), number)
            })?;
        }
        rig.barrier()?;
        rig.barrier()?;
        return exchange(&rig, 2);
    }
    // Arrived messages stay unread before the fork, because a child that read them would take them
    // away.
    rank.barrier(&mut || Ok(()))?;
    let (ep, to, buf) = (&rig.ep, rig.peer(), Buf::new(64));
    let place = there.sum(to, 1);
    let one = Ioc { buf, count: 1 };
    let cntr = rig.counter(sys::FI_SEND)?;
    let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
    let eq = Eq::open(&rig.fabric, attr)?;
    let wrong = sandbox::in_child(|| {
        let calls: [Result; 14] = [
            ep.send(buf, to, 1),
            ep.inject(buf, to),
            ep.tsend(buf, to, 1, 1),
            ep.recv(buf, sys::FI_ADDR_UNSPEC, 1),
            ep.trecv(buf, to, 1, 0, 1),
            ep.write(buf, to, there.addr, there.key, 1),
            ep.read(buf, to, there.addr, there.key, 1),
            ep.atomic(&place, one),
            ep.fetch_atomic(&place, one, Buf::new(8)),
            rig.rx.cq.read(1).map(drop),
            rig.rx.cq.sread(1, 0, -1).map(drop),
            cntr.wait(1 << 20, -1),
            eq.read(0).map(drop),
            eq.sread(-1, 0).map(drop),
        ];
        let wrong = calls.iter().position(|call| *call != Err(Errno::EOPBADSTATE));
        wrong.map_or(0, |at| at + 1)
    })?;
    check_eq!(wrong, 0, "the number of a call that was not refused");
    for number in 0..WAITING {
        let to = Buf::new(64);
        rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, number))?;
        rig.received(number)?;
        check_eq!(to.differs(64, number as u64), None);
    }
    rig.barrier()?;
    exchange(&rig, 2)
}

/// Tests children that exit with the exit handlers of libraries, while messages of the parent are
/// under way in both directions.
#[expect(clippy::exit, reason = "the exit handlers are what the child tests")]
fn exits(rank: &Rank, progress: u32) -> Outcome {
    const CHILDREN: u64 = 10;
    let spec = Spec::messages(true).with(|spec| spec.hints.data_progress = progress);
    let rig = Rig::open(rank, &spec)?;
    exchange(&rig, 1)?;
    for child in 0..CHILDREN {
        let to = Buf::new(300_000);
        rig.post(|| rig.ep.trecv(to, rig.peer(), 3, 0, 1))?;
        rig.post(|| rig.ep.tsend(Buf::pattern(300_000, child), rig.peer(), 3, 2))?;
        let status = sandbox::in_child(|| {
            sandbox::alarm(20);
            std::process::exit(7)
        })?;
        check_eq!(status, 7);
        rig.received(1)?;
        rig.sent(2)?;
        check_eq!(to.differs(300_000, child), None);
    }
    rig.barrier()?;
    exchange(&rig, 2)
}

/// Tests close, cancel and lookup in a child. They are refused, whatever locks other threads of the
/// parent held at the fork, without an effect on the parent. The child may open new objects.
fn closes(rank: &Rank, progress: u32) -> Outcome {
    const FORKS: usize = 40;
    rank.only_scif("the state of a forked child depends on the provider")?;
    let spec = super::atomic::spec().with(|spec| {
        spec.hints.caps |= sys::FI_TAGGED;
        spec.hints.data_progress = progress;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
        spec.counters = sys::FI_SEND;
        spec.eq = true;
    });
    let rig = Rig::open(rank, &spec)?;
    let (mr, _) = rig.share(Buf::new(4096), REMOTE)?;
    exchange(&rig, 1)?;
    if rank.index == 1 {
        rig.barrier()?;
        return exchange(&rig, 2);
    }
    let cntr = rig.counter(sys::FI_SEND)?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let name = rig.ep.name()?;
    let done = Mutex::new(false);
    let is_done = || *done.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = std::thread::scope(|scope| {
        // Holds the locks most of the time.
        scope.spawn(|| {
            while !is_done() {
                let _ = (cntr.read(), rig.ep.cancel(99), eq.read(0), rig.av.lookup(0, 16));
            }
        });
        let forked = (0..FORKS).try_for_each(|_| {
            let wrong = sandbox::in_child(|| {
                sandbox::alarm(20);
                let calls: [Result; 19] = [
                    rig.ep.cancel(99),
                    rig.ep.name().map(drop),
                    rig.ep.set_name(&name),
                    rig.ep.getopt(sys::FI_OPT_MIN_MULTI_RECV).map(drop),
                    rig.ep.enable(),
                    rig.ep.bind(rig.av.as_ref(), 0),
                    rig.av.insert(&name).map(drop),
                    rig.av.lookup(0, 16).map(drop),
                    cntr.add(1),
                    rig.fabric.trywait(&[eq.as_ref()]),
                    Eq::open(&rig.fabric, EqAttr::default()).map(drop),
                    Cntr::open(&rig.domain, CntrAttr::default()).map(drop),
                    mr.close(),
                    rig.ep.close(),
                    rig.av.close(),
                    cntr.close(),
                    rig.rx.cq.close(),
                    eq.close(),
                    rig.domain.close(),
                ];
                let wrong = calls.iter().position(|call| *call != Err(Errno::EOPBADSTATE));
                match wrong {
                    Some(at) => at + 1,
                    // An endpoint of the child.
                    None if own_message(rank, &spec).is_ok() => 0,
                    None => 100,
                }
            })?;
            check_eq!(wrong, 0, "the number of a call that was not refused");
            Ok(())
        });
        *done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        forked
    });
    outcome?;
    rig.barrier()?;
    exchange(&rig, 2)
}

/// Sends a message from a new endpoint to itself.
fn own_message(rank: &Rank, spec: &Spec) -> Outcome {
    let rig = Rig::open_alone(rank, spec)?;
    let own = rig.av.insert(&rig.ep.name()?)?;
    rig.post(|| rig.ep.trecv(Buf::new(64), sys::FI_ADDR_UNSPEC, 1, 0, 1))?;
    rig.post(|| rig.ep.tsend(Buf::new(64), own, 1, 2))?;
    rig.received(1)?;
    rig.sent(2)?;
    Ok(())
}

/// Exchanges messages in both directions.
fn exchange(rig: &Rig<'_>, seed: u64) -> Outcome {
    for size in [8, 4000, 300_000] {
        let (from, to) = (Buf::pattern(size, seed), Buf::new(size));
        rig.post(|| rig.ep.trecv(to, sys::FI_ADDR_UNSPEC, 7, 0, 100))?;
        rig.post(|| rig.ep.tsend(from, rig.peer(), 7, 200))?;
        rig.received(100)?;
        rig.sent(200)?;
        check_eq!(to.differs(size, seed), None);
    }
    rig.barrier()
}
