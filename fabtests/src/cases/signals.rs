// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Waiting calls while the program handles signals. By fi_cq(3) and fi_eq(3) a waiting read ends
//! with `FI_EAGAIN` when its thread is signaled. The calls fi_cntr_wait and fi_wait have no such
//! end and continue. Neither loses an event. A process without a handler is killed by the signal.
//!
//! The call `fi_cq_signal` is tested in `wait`.

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::call_variants::check_bytes;

pub(crate) const CASES: &[Case] = &[
    case("signals/queue", 1, queue),
    case("signals/queue_below_its_threshold", 1, threshold),
    case("signals/event_queue", 1, |r| event_queue(&Rig::open(r, &Spec::messages(false))?)),
    case("signals/counter", 1, |r| counter(&Rig::open(r, &Spec::messages(false))?)),
    case("signals/wait_set", 1, |r| wait_set(&Rig::open(r, &Spec::messages(false))?)),
    case("signals/transfers", 2, transfers),
    case("signals/interrupt_kills", 1, |r| interrupt_kills(r, sys::FI_PROGRESS_MANUAL))
        .under(NO_HANDLERS),
    case("signals/interrupt_kills_under_auto_progress", 1, |r| {
        interrupt_kills(r, sys::FI_PROGRESS_AUTO)
    })
    .under(NO_HANDLERS),
];

/// Settings against signal handlers that libraries of other providers install when a libfabric
/// loads them.
const NO_HANDLERS: &[(&str, &str)] = &[("IPATH_NO_BACKTRACE", "1"), ("HFI_NO_BACKTRACE", "1")];

/// Actions without and with `SA_RESTART`, which make no difference for the system calls of a wait.
const ACTIONS: [bool; 2] = [false, true];

fn spec(wait_obj: u32) -> Spec {
    Spec::messages(false).with(|spec| {
        spec.wait_obj = wait_obj;
        spec.queues = Queues::One;
    })
}

fn queue(rank: &Rank) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let rig = Rig::open(rank, &spec(wait_obj))?;
        let cq = &rig.rx.cq;
        for restart in ACTIONS {
            rank.step("asleep, with nothing to come");
            for _ in 0..5 {
                let read = sandbox::interrupted(restart, || cq.sread(1, 0, -1))?;
                check_eq!(read, Err(Errno::EAGAIN), "restart {restart}");
                let read = sandbox::interrupted(restart, || cq.sreadfrom(1, -1))?;
                check_eq!(read, Err(Errno::EAGAIN), "restart {restart}");
            }
            rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
            rig.post(|| rig.ep.send(Buf::new(8), rig.to(0), 2))?;
            let mut seen = Vec::new();
            while seen.len() < 2 {
                seen.extend(some(&rig, restart)?.iter().map(|entry| entry.context));
            }
            seen.sort_unstable();
            check_eq!(seen, vec![1, 2]);
        }
    }
    Ok(())
}

/// Tests that SIGINT kills a process that never set its action, whatever it has open: the provider
/// handles no signal. No library is loaded before the fork.
fn interrupt_kills(rank: &Rank, progress: u32) -> Outcome {
    let spec = spec(sys::FI_WAIT_UNSPEC).with(|spec| spec.hints.data_progress = progress);
    let died = sandbox::dies_of_interrupt(|| {
        let rig = Rig::open_alone(rank, &spec)?;
        let own = rig.av.insert(&rig.ep.name()?)?;
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        rig.post(|| rig.ep.inject(Buf::new(8), own))?;
        rig.received(1)?;
        Ok(rig)
    })?;
    check!(died, "the process lived on, or ended otherwise");
    Ok(())
}

/// Returns the entries of a read that may be interrupted.
fn some(rig: &Rig<'_>, restart: bool) -> Outcome<Vec<Entry>> {
    let mut out = Vec::new();
    while let Some(done) = rig.rx.take() {
        out.push(done.map_err(|error| Fail::here(format_args!("{error:?}")))?);
    }
    if !out.is_empty() {
        return Ok(out);
    }
    match sandbox::interrupted(restart, || rig.rx.cq.sread(16, 0, -1))? {
        Ok(entries) => Ok(entries),
        Err(Errno::EAGAIN) => Ok(out),
        Err(Errno::EAVAIL) => Err(Fail::here(format_args!("{:?}", rig.rx.cq.readerr(0)?))),
        Err(e) => Err(e.into()),
    }
}

/// Tests that a signal returns fewer entries than the threshold, as a timeout does.
fn threshold(rank: &Rank) -> Outcome {
    let spec = spec(sys::FI_WAIT_UNSPEC).with(|spec| spec.wait_cond = sys::FI_CQ_COND_THRESHOLD);
    let rig = Rig::open(rank, &spec)?;
    for restart in ACTIONS {
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        rig.post(|| rig.ep.inject(Buf::new(8), rig.to(0)))?;
        rank.step("waiting for two where one comes");
        let read = sandbox::interrupted(restart, || rig.rx.cq.sread(2, 2, -1))?;
        check_eq!(read.map(|list| list.len()), Ok(1), "restart {restart}");
    }
    Ok(())
}

fn event_queue(rig: &Rig<'_>) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let attr = EqAttr { wait_obj, flags: sys::FI_WRITE, ..EqAttr::default() };
        let eq = Eq::open(&rig.fabric, attr)?;
        for restart in ACTIONS {
            rig.rank.step("asleep, with no event to come");
            for _ in 0..5 {
                let read = sandbox::interrupted(restart, || eq.sread(-1, 0))?;
                check_eq!(read.map(drop), Err(Errno::EAGAIN), "restart {restart}");
            }
            eq.write(sys::FI_NOTIFY, 7, 8)?;
            let event = sandbox::interrupted(restart, || eq.sread(-1, 0))??;
            check_eq!((event.event, event.context), (sys::FI_NOTIFY, 7));
        }
    }
    Ok(())
}

/// Adds to a counter after many signals.
fn later(cntr: &Cntr, calls: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(60));
            cntr.add(1)
        });
        calls()
    })
}

fn counter(rig: &Rig<'_>) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let attr = CntrAttr { wait_obj, ..CntrAttr::default() };
        let cntr = supported("fi_cntr_open", Cntr::open(&rig.domain, attr))?;
        for (value, restart) in (1..).zip(ACTIONS) {
            rig.rank.step("waiting for a counter");
            let waited = sandbox::interrupted(restart, || later(&cntr, || cntr.wait(value, -1)))?;
            check_eq!(waited, Ok(()), "restart {restart}");
            let waited = sandbox::interrupted(restart, || cntr.wait(value + 1, 30))?;
            check_eq!(waited, Err(Errno::ETIMEDOUT), "restart {restart}");
        }
    }
    Ok(())
}

fn wait_set(rig: &Rig<'_>) -> Outcome {
    let set = WaitSet::open(&rig.fabric, sys::FI_WAIT_UNSPEC, 0);
    let set = supported("fi_wait_open", set)?;
    let cntr = set.cntr(&rig.domain)?;
    for restart in ACTIONS {
        rig.rank.step("waiting for a set");
        let waited = sandbox::interrupted(restart, || later(&cntr, || set.wait(-1)))?;
        check_eq!(waited, Ok(()), "restart {restart}");
        cntr.read()?;
        let waited = sandbox::interrupted(restart, || set.wait(30))?;
        check_eq!(waited, Err(Errno::ETIMEDOUT), "restart {restart}");
    }
    Ok(())
}

/// Tests messages of every length, one after another, with both sides asleep and interrupted.
fn transfers(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec(sys::FI_WAIT_UNSPEC))?;
    for (round, size) in [8, 3000, 100_000, 4 << 20].into_iter().cycle().take(24).enumerate() {
        let (out, into) = (Buf::pattern(size, round as u64), Buf::new(size));
        rank.step(format_args!("{size} B while signals are handled"));
        rig.post(|| rig.ep.recv(into, sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.ep.send(out, rig.peer(), 2))?;
        let mut seen = 0;
        while seen < 2 {
            let entries = some(&rig, round % 2 == 0)?;
            check!(entries.len() <= 2, "{entries:x?}");
            seen += entries.len();
        }
        check_bytes(&into, size, round as u64, 0)?;
        rig.barrier()?;
    }
    rig.barrier()
}
