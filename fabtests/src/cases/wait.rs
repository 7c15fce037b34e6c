// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleeping: blocking reads, descriptors, signals. Every case ends only if no wake-up is lost; none
//! asserts a time. Mirrors fi_cq(3), fi_poll(3).

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scif_fabtests::prelude::*;

use super::call_variants::check_bytes;
use super::rma::REMOTE;

pub(crate) const CASES: &[Case] = &[
    case("wait/timeouts", 1, timeouts),
    case("wait/signal", 1, signal),
    case("wait/sread_unspec", 2, |r| ping_pong(r, sys::FI_WAIT_UNSPEC, How::Sread)),
    case("wait/sread_fd", 2, |r| ping_pong(r, sys::FI_WAIT_FD, How::Sread)),
    case("wait/sread_yield", 2, |r| ping_pong(r, sys::FI_WAIT_YIELD, How::Sread)),
    case("wait/sreadfrom", 2, |r| ping_pong(r, sys::FI_WAIT_UNSPEC, How::Sreadfrom)),
    case("wait/descriptor", 2, |r| ping_pong(r, sys::FI_WAIT_FD, How::Poll)),
    case("wait/large_sread", 2, |r| large(r, How::Sread)),
    case("wait/large_descriptor", 2, |r| large(r, How::Poll)),
    case("wait/threshold", 2, threshold),
    case("wait/several_queues", 2, several_queues),
    case("wait/many_senders", 4, many_senders),
    case("wait/reading_under_oversubscription", 6, oversubscribed),
    case("wait/sleeping_target", 2, sleeping_target),
    case("wait/trywait_with_queued_entries", 1, trywait_pending),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Sread,
    Sreadfrom,
    Poll,
    /// Polling reads, as in programs that never sleep.
    Read,
}

fn spec(wait_obj: u32) -> Spec {
    Spec::messages(false).with(|spec| {
        spec.wait_obj = wait_obj;
        spec.queues = Queues::One;
    })
}

/// Sleeps until the queue has entries, and returns them.
fn sleep(rig: &Rig<'_>, how: How) -> Outcome<Vec<Entry>> {
    let cq = &rig.rx.cq;
    loop {
        let read = match how {
            How::Sread => cq.sread(16, 0, -1),
            How::Sreadfrom => cq.sreadfrom(16, -1),
            How::Read => cq.read(16),
            How::Poll => {
                match rig.fabric.trywait(&[cq.as_ref()]) {
                    Ok(()) => {
                        let fd = cq.wait_fd()?;
                        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
                    }
                    Err(Errno::EAGAIN) => {}
                    Err(e) => return Err(e.into()),
                }
                cq.read(16)
            }
        };
        match read {
            Ok(entries) if !entries.is_empty() => return Ok(entries),
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(Errno::EAVAIL) => return Err(Fail::here(format_args!("{:?}", cq.readerr(0)?))),
            Err(e) => return Err(e.into()),
        }
    }
}

fn timeouts(rank: &Rank) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD, sys::FI_WAIT_YIELD] {
        let rig = Rig::open(rank, &spec(wait_obj))?;
        for timeout in [0, 1, 30] {
            check_eq!(rig.rx.cq.sread(1, 0, timeout), Err(Errno::EAGAIN));
            check_eq!(rig.rx.cq.sreadfrom(1, timeout), Err(Errno::EAGAIN));
        }
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.ep.send(Buf::new(8), rig.to(0), 2))?;
        let mut seen = 0;
        while seen < 2 {
            seen += sleep(&rig, How::Sread)?.len();
        }
    }
    Ok(())
}

/// Tests that a signal ends a sleeping read, or the next one, without an entry.
fn signal(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &spec(sys::FI_WAIT_UNSPEC).with(|spec| spec.hints.threading = sys::FI_THREAD_SAFE),
    )?;
    let cq = &rig.rx.cq;
    rank.step("signalling before sleeping");
    for _ in 0..10 {
        cq.signal()?;
        check_eq!(cq.sread(1, 0, -1), Err(Errno::EAGAIN));
    }
    rank.step("signalling a sleeper");
    for _ in 0..20 {
        let read = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                cq.signal()
            });
            cq.sread(1, 0, -1)
        });
        check_eq!(read, Err(Errno::EAGAIN));
    }
    Ok(())
}

/// Tests six ranks on one processor (oversubscription), of which two communicate while the others
/// wait.
fn oversubscribed(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 2000;
    let allowed = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap_or(0));
    sched_setaffinity(None, &one)?;
    let rig = Rig::open(rank, &spec(sys::FI_WAIT_NONE))?;
    let buf = Buf::new(64);
    for other in (1..rank.count).filter(|&other| rank.index == 0 || rank.index == other) {
        let peer = rig.to(if rank.index == 0 { other } else { 0 });
        for round in 0..ROUNDS {
            let sends = (round % 2 == 0) == (rank.index == 0);
            if sends {
                buf.store_u64(0, round);
                rig.post(|| rig.ep.send(buf, peer, 2))?;
            } else {
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
            }
            let entries = drained(&rig, How::Read)?;
            check!(
                entries.len() == 1
                    && entries.iter().all(|entry| entry.context == if sends { 2 } else { 1 })
            );
            check_eq!(buf.load_u64(0), round);
        }
    }
    rig.barrier()
}

/// Tests a ping-pong in which both sides sleep in every turn. The pauses vary, so that falling
/// asleep and waking race.
fn ping_pong(rank: &Rank, wait_obj: u32, how: How) -> Outcome {
    const ROUNDS: u64 = 3000;
    let rig = Rig::open(rank, &spec(wait_obj))?;
    let mut rng = rank.own_rng();
    let (from, to) = (Buf::new(64), Buf::new(64));
    rank.step("ping-pong asleep");
    for round in 0..ROUNDS {
        let mine = round % 2 == rank.index as u64;
        let context = if mine { 2 } else { 1 };
        if mine {
            for _ in 0..rng.below(3000) {
                std::hint::spin_loop();
            }
            from.store_u64(0, round);
            rig.post(|| rig.ep.send(from, rig.peer(), context))?;
        } else {
            rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, context))?;
        }
        let entries = drained(&rig, how)?;
        check!(entries.iter().all(|entry| entry.context == context), "round {round}: {entries:x?}");
        check!(mine || to.load_u64(0) == round);
    }
    rig.barrier()
}

/// Returns the entries that the rig has read already, or the next ones after a sleep.
fn drained(rig: &Rig<'_>, how: How) -> Outcome<Vec<Entry>> {
    let mut out = Vec::new();
    while let Some(done) = rig.rx.take() {
        out.push(done.map_err(|error| Fail::here(format_args!("{error:?}")))?);
    }
    if out.is_empty() { sleep(rig, how) } else { Ok(out) }
}

/// Tests that messages of many steps make progress although both sides sleep between the steps.
fn large(rank: &Rank, how: How) -> Outcome {
    let rig = Rig::open(rank, &spec(sys::FI_WAIT_FD))?;
    for size in [100_000, 4 << 20] {
        let bufs: Vec<Buf> = (0..6).map(|index| Buf::pattern(size, index)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            if rank.index == 0 {
                rig.post(|| rig.ep.send(buf, rig.peer(), index))?;
            } else {
                buf.fill(0);
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
            }
        }
        rank.step(format_args!("{size} B asleep"));
        let mut done = 0;
        while done < bufs.len() {
            done += drained(&rig, how)?.len();
        }
        for (index, buf) in bufs.iter().enumerate() {
            check_bytes(buf, size, index as u64, 0)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a read with a threshold returns when that many entries have arrived.
fn threshold(rank: &Rank) -> Outcome {
    let spec = spec(sys::FI_WAIT_UNSPEC).with(|spec| spec.wait_cond = sys::FI_CQ_COND_THRESHOLD);
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        rig.barrier()?;
        for index in 0..8 {
            std::thread::sleep(Duration::from_millis(1));
            rig.complete(index, || rig.ep.send(Buf::new(8), rig.peer(), index))?;
        }
    } else {
        for index in 0..8 {
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, index))?;
        }
        rig.barrier()?;
        let mut seen = 0;
        rank.step("reading with a threshold");
        while seen < 8 {
            match rig.rx.cq.sread(16, 8 - seen, 200) {
                Ok(entries) => seen += entries.len(),
                Err(Errno::EAGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    rig.barrier()
}

/// Tests one sleep on the descriptors of two queues and an event queue.
fn several_queues(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.wait_obj = sys::FI_WAIT_FD);
    let rig = Rig::open(rank, &spec)?;
    let (tx, rx) = (&rig.tx.cq, &rig.rx.cq);
    let (tx_fd, rx_fd) = (tx.wait_fd()?, rx.wait_fd()?);
    rank.step("sleeping on several queues");
    for round in 0..500 {
        let size = if round % 10 == 0 { 200_000 } else { 16 };
        rig.post(|| rig.ep.recv(Buf::new(size), sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.ep.send(Buf::new(size), rig.peer(), 2))?;
        let mut open = 2;
        while rig.tx.take().is_some() || rig.rx.take().is_some() {
            open -= 1;
        }
        while open > 0 {
            match rig.fabric.trywait(&[tx.as_ref(), rx.as_ref()]) {
                Ok(()) => {
                    let mut fds =
                        [PollFd::new(&tx_fd, PollFlags::IN), PollFd::new(&rx_fd, PollFlags::IN)];
                    poll(&mut fds, None)?;
                }
                Err(Errno::EAGAIN) => {}
                Err(e) => return Err(e.into()),
            }
            rig.pump()?;
            while let Some(done) = rig.tx.take().or_else(|| rig.rx.take()) {
                done.map_err(|error| Fail::here(format_args!("{error:?}")))?;
                open -= 1;
            }
        }
    }
    rig.barrier()
}

/// Tests concurrent wake-ups of one sleeper by several peers.
fn many_senders(rank: &Rank) -> Outcome {
    const COUNT: usize = 1000;
    let rig = Rig::open(rank, &spec(sys::FI_WAIT_UNSPEC))?;
    if rank.index == 0 {
        for index in 0..16 {
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, index))?;
        }
        rank.step("receiving asleep");
        let mut done = 0;
        while done < COUNT * (rank.count - 1) {
            for entry in drained(&rig, How::Sread)? {
                done += 1;
                rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, entry.context))?;
            }
        }
    } else {
        let mut rng = rank.own_rng();
        for _ in 0..COUNT {
            rig.complete(1, || rig.ep.send(Buf::new(8), rig.to(0), 1))?;
            if rng.one_in(50) {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    }
    rig.barrier()
}

/// Tests that a target asleep in its queue executes operations that need it: atomics on wide types
/// and writes with data.
fn sleeping_target(rank: &Rank) -> Outcome {
    let spec = super::atomic::spec().with(|spec| {
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
        spec.queues = Queues::One;
    });
    let rig = Rig::open(rank, &spec)?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    if rank.index == 1 {
        rank.step("asleep while others work here");
        let mut last = 0;
        while last != 50 {
            for entry in drained(&rig, How::Sread)? {
                check!(entry.data > last, "{} after {last}", entry.data);
                last = entry.data;
            }
        }
        check_eq!(mine.load_u64(0), 50);
        return rig.barrier();
    }
    let at = super::rma::from(&remotes, 1, 0)?;
    let place = at.atomic(rig.peer(), sys::FI_UINT128, sys::FI_SUM, 1);
    let one = scif_fabtests::fi::Ioc { buf: Buf::of(&1_u128.to_le_bytes()), count: 1 };
    for round in 1..=50 {
        std::thread::sleep(Duration::from_millis(1));
        rig.complete(1, || rig.ep.fetch_atomic(&place, one, Buf::new(16)))?;
        rig.complete(2, || {
            rig.ep.writedata(Buf::new(8), round, rig.peer(), (at.addr + 64, at.key), 2)
        })?;
    }
    rig.barrier()
}

/// Tests that `fi_trywait` forbids a sleep while there are entries.
fn trywait_pending(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec(sys::FI_WAIT_FD))?;
    let cq = rig.rx.cq.as_ref();
    for _ in 0..100 {
        check_eq!(rig.fabric.trywait(&[cq]), Ok(()));
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        rig.ep.send(Buf::new(8), rig.to(0), 2)?;
        rank.step("asking until it says not to sleep");
        while rig.fabric.trywait(&[cq]) == Ok(()) {
            std::thread::yield_now();
        }
        let mut seen = 0;
        while seen < 2 {
            rig.pump()?;
            while rig.rx.take().is_some() {
                seen += 1;
            }
        }
    }
    Ok(())
}
