// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Defects and surprises of mainline's driver on a connection, over the stand-in driver with these
//! traps: wait queues of epoll, full queues, the end of a peer, windows.
//!
//! The table in `docs/scif-calls.md` names the defect of each case. Only the case of the sleeper
//! looks at the time.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::harness::seccomp;
use scif_fabtests::prelude::*;

use super::atomic::spec as rma_spec;
use super::rma::{REMOTE, announce, from, wait_for_announcement};
use super::stand_in::{REPORT, compute, needs_traps, without_reports};
use super::windows::{counted, counter};

/// Setting that prints the counters of an endpoint when it closes.
const COUNTERS: &[(&str, &str)] = &[("FI_SCIF_STATS", "1")];

pub(crate) const CASES: &[Case] = &[
    case("driver/sleeper_is_woken", 2, sleeper).within(60),
    case("driver/full_stream", 2, full_stream).within(60),
    case("driver/bytes_before_the_close", 2, |r| bytes_before_the_close(r, true)),
    case("driver/bytes_before_the_welcome", 2, |r| bytes_before_the_close(r, false)),
    case("driver/stalled_send", 2, stalled_send).under(&[("SCIF_DEVICE_STALL", "200")]),
    case("driver/mapped_rings_at_a_close", 2, mapped_rings).under(COUNTERS),
    case("driver/windows_of_two_regions", 2, two_regions).under(COUNTERS),
    case("driver/read_only_memory", 2, read_only_memory).under(COUNTERS),
    case("driver/protection", 2, protection),
];

const PAGE: usize = 4096;
const POLL_PAUSE: Duration = Duration::from_millis(1);

fn spec() -> Spec {
    Spec::messages(false)
}

/// Makes the pages of windows unmovable, so that records cross the stream.
fn relay_records() -> Outcome {
    seccomp::deny(&[libc::SYS_userfaultfd])
}

/// Ranks send in turn after a pause, in which the other one sleeps on the descriptor of its queue.
/// The driver wakes only sets of epoll that were in the right wait queue when the endpoint was
/// added. A sleep of the whole limit is late: without that queue other events end it, and later.
/// Half of the rounds may be late, since a busy host delays messages too.
fn sleeper(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 10;
    const PAUSE: Duration = Duration::from_millis(20);
    const LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    needs_traps()?;
    let rig = Rig::open(rank, &spec().with(|spec| spec.wait_obj = sys::FI_WAIT_FD))?;
    let mut late = 0;
    for round in 0..2 * ROUNDS {
        let buf = Buf::pattern(64, round as u64);
        if (round + rank.index) % 2 == 0 {
            std::thread::sleep(PAUSE);
            rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
            continue;
        }
        buf.fill(0);
        rig.post(|| rig.ep.recv(buf, rig.peer(), 2))?;
        let mut is_late = false;
        loop {
            match rig.fabric.trywait(&[rig.rx.cq.as_ref()]) {
                Ok(()) => {
                    let fd = rig.rx.cq.wait_fd()?;
                    is_late |= poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&LIMIT))? == 0;
                }
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
            match rig.rx.cq.read(1) {
                Ok(entries) if !entries.is_empty() => break,
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        check_eq!(buf.differs(64, round as u64), None, "round {round}");
        late += usize::from(is_late);
    }
    rank.step(format_args!("late in {late} of {ROUNDS} rounds"));
    check!(late <= ROUNDS / 2, "late in {late} of {ROUNDS} rounds");
    rig.barrier()
}

/// The queue of a connection takes 4095 bytes. A full one refuses a send by returning 0, and the
/// sender's poll for space needs another wait queue. All messages arrive although their sender
/// makes no call after their completion.
fn full_stream(rank: &Rank) -> Outcome {
    const MESSAGES: usize = 16;
    const LEN: usize = 2048;
    needs_traps()?;
    relay_records()?;
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 0 {
        announce(&rig, rig.peer())?;
        rig.barrier()?;
        for n in 0..MESSAGES {
            let buf = Buf::pattern(LEN, n as u64);
            rig.complete(n, || rig.ep.send(buf, rig.peer(), n))?;
        }
        compute(rank)?;
        return rig.barrier();
    }
    wait_for_announcement(&rig)?;
    rig.barrier()?;
    for n in 0..MESSAGES {
        let buf = Buf::new(LEN);
        rig.post(|| rig.ep.recv(buf, rig.peer(), n))?;
        rig.received(n)?;
        check_eq!(buf.differs(LEN, n as u64), None, "message {n}");
    }
    rig.rank.barrier(&mut || rig.pump())?;
    rig.barrier()
}

/// A send to a closed peer is ECONNRESET while bytes of that peer are left in the queue. They are
/// received all the same. The first call after the close is a send: of a message if the ranks have
/// `met` before, else of the answer to the peer's greeting.
fn bytes_before_the_close(rank: &Rank, met: bool) -> Outcome {
    const MESSAGES: usize = 8;
    needs_traps()?;
    relay_records()?;
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 1 {
        if met {
            announce(&rig, rig.peer())?;
            wait_for_announcement(&rig)?;
        }
        compute(rank)?;
        for n in 0..MESSAGES {
            rig.complete(n, || rig.ep.send(Buf::pattern(64, n as u64), rig.peer(), n))?;
        }
        drop(rig);
        wait_for_closes()?;
        return compute(rank);
    }
    if met {
        wait_for_announcement(&rig)?;
        announce(&rig, rig.peer())?;
    }
    // No call from here on until the peer has closed, so that its bytes wait in the driver.
    compute(rank)?;
    compute(rank)?;
    if met {
        // Progress would receive them first.
        rig.ep.send(Buf::new(8), rig.peer(), 1)?;
    }
    for n in 0..MESSAGES {
        let buf = Buf::new(64);
        rig.post(|| rig.ep.recv(buf, rig.peer(), 2))?;
        rig.received(2)?;
        check_eq!(buf.differs(64, n as u64), None, "message {n}");
    }
    Ok(())
}

/// A driver fails a send with ENODEV after 3 s, although the peer gets its bytes. The stand-in does
/// so with every n-th send of a process. Each send ends with success or ECONNRESET, and no message
/// arrives twice.
fn stalled_send(rank: &Rank) -> Outcome {
    const MESSAGES: u64 = 700;
    needs_traps()?;
    relay_records()?;
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 0 {
        let mut reset = 0;
        for number in 1..=MESSAGES {
            rig.post(|| rig.ep.send(Buf::of(&number.to_ne_bytes()), rig.peer(), 1))?;
            match rig.wait("the end of a send", || Ok(rig.tx.take()))? {
                Ok(_) => {}
                Err(error) if error.err == Errno::ECONNRESET => reset += 1,
                Err(error) => return Err(Fail::here(format_args!("{error:?}"))),
            }
        }
        rank.step(format_args!("{reset} sends were reset"));
        return rig.barrier();
    }
    let to = Buf::new(8);
    let post = || rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, 2));
    post()?;
    let (mut last, mut lost) = (0, 0);
    rank.barrier(&mut || {
        rig.pump()?;
        while let Some(ended) = rig.rx.take() {
            ended.map_err(|error| Fail::here(format_args!("{error:?}")))?;
            let number = to.load_u64(0);
            check!(number > last, "{number} came after {last}");
            lost += number - last - 1;
            last = number;
            post()?;
        }
        Ok(())
    })?;
    rank.step(format_args!("{lost} messages were lost"));
    check!(last > MESSAGES / 2, "the connection was not made again after {last}");
    Ok(())
}

/// Returns the number of threads that close endpoints.
fn closing_threads() -> Outcome<usize> {
    let mut count = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let name = std::fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        count += usize::from(name.trim_end() == "scif-close");
    }
    Ok(count)
}

/// Waits until all endpoints that this process has closed are closed in the driver.
fn wait_for_closes() -> Outcome {
    while closing_threads()? > 0 {
        std::thread::sleep(POLL_PAUSE);
    }
    Ok(())
}

/// A mapping of a window keeps a closed endpoint open in the driver, and its peer is not told. No
/// endpoint is closed with its rings mapped.
fn mapped_rings(rank: &Rank) -> Outcome {
    const MESSAGES: u64 = 100;
    without_reports(|| {
        let text = counted(|| {
            let rig = Rig::open(rank, &spec())?;
            let buf = Buf::new(8);
            for number in 0..MESSAGES {
                if number % 2 == rank.index as u64 {
                    rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
                } else {
                    rig.post(|| rig.ep.recv(buf, rig.peer(), 2))?;
                    rig.received(2)?;
                }
            }
            rig.barrier()
        })?;
        check!(!text.contains(REPORT), "{text}");
        check!(counter(&text, "stream")?.0 < MESSAGES / 2, "no rings in windows: {text}");
        wait_for_closes()
    })
}

/// The driver does not refuse an offset of a window that is in use, and ignores one that is only
/// suggested. Each of two regions is written through its own window, while the target computes.
fn two_regions(rank: &Rank) -> Outcome {
    needs_traps()?;
    let text = counted(|| {
        let rig = Rig::open(rank, &rma_spec())?;
        let memory = [Buf::private(PAGE)?, Buf::private(PAGE)?];
        let (_first, first) = rig.share(memory[0], REMOTE)?;
        let (_second, second) = rig.share(memory[1], REMOTE)?;
        if rank.index == 1 {
            wait_for_announcement(&rig)?;
            compute(rank)?;
            for (n, buf) in memory.iter().enumerate() {
                check_eq!(buf.differs(PAGE, n as u64), None, "region {n}");
            }
            return rig.barrier();
        }
        announce(&rig, rig.peer())?;
        for (n, remotes) in [first, second].iter().enumerate() {
            let (there, buf) = (from(remotes, 1, 0)?, Buf::pattern(PAGE, n as u64));
            rig.complete(n, || rig.ep.write(buf, rig.peer(), there.addr, there.key, n))?;
        }
        rank.barrier(&mut || rig.pump())?;
        rig.barrier()
    })?;
    if rank.index == 0 {
        check_eq!(counter(&text, "fallbacks")?.0, 0, "{text}");
    }
    Ok(())
}

/// The driver pins the pages of a window for writing, and refuses read-only ones with EFAULT. Such
/// a region is read all the same: its owner executes the operation.
fn read_only_memory(rank: &Rank) -> Outcome {
    needs_traps()?;
    let text = counted(|| {
        let rig = Rig::open(rank, &rma_spec())?;
        let memory = Buf::private(PAGE)?;
        memory.fill_pattern(7);
        memory.forbid_stores()?;
        let (_mr, remotes) = rig.share(memory, REMOTE)?;
        if rank.index == 1 {
            let (there, buf) = (from(&remotes, 0, 0)?, Buf::new(PAGE));
            rig.complete(1, || rig.ep.read(buf, rig.peer(), there.addr, there.key, 1))?;
            check_eq!(buf.differs(PAGE, 7), None);
        }
        rig.barrier()
    })?;
    if rank.index == 1 {
        check_eq!(counter(&text, "fallbacks")?.0, 1, "{text}");
    }
    Ok(())
}

/// The driver answers a forbidden RMA with EPERM, the documents say EACCES. Operations fail with
/// EACCES.
fn protection(rank: &Rank) -> Outcome {
    needs_traps()?;
    let rig = Rig::open(rank, &rma_spec())?;
    let (readable, writable) = (Buf::pattern(PAGE, 3), Buf::new(PAGE));
    let (_r, read_only) = rig.share(readable, sys::FI_REMOTE_READ)?;
    let (_w, write_only) = rig.share(writable, sys::FI_REMOTE_WRITE)?;
    if rank.index == 0 {
        let (r, w) = (from(&read_only, 1, 0)?, from(&write_only, 1, 0)?);
        let buf = Buf::new(PAGE);
        rig.complete(1, || rig.ep.read(buf, rig.peer(), r.addr, r.key, 1))?;
        check_eq!(buf.differs(PAGE, 3), None);
        rig.complete(2, || rig.ep.write(buf, rig.peer(), w.addr, w.key, 2))?;
        let write = || rig.ep.write(buf, rig.peer(), r.addr, r.key, 3);
        check_eq!(rig.failure(&rig.tx, 3, write)?, Errno::EACCES);
        let read = || rig.ep.read(buf, rig.peer(), w.addr, w.key, 4);
        check_eq!(rig.failure(&rig.tx, 4, read)?, Errno::EACCES);
    }
    rig.barrier()
}
