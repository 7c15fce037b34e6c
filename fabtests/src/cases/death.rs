// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a peer killed during traffic: outstanding operations with it fail, receives from any
//! source stay, and traffic with the others continues.
//!
//! Rank 0 survives, rank 1 is killed, rank 2 is a bystander. Single operations may succeed or fail,
//! because that is a race, but each of them must end. The time is not checked.

use std::time::Duration;

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::call_variants;
use super::rma::{REMOTE, from};

const SMALL: usize = 8;
const MIDDLE: usize = 64 << 10;
const LARGE: usize = 4 << 20;

pub(crate) const CASES: &[Case] = &[
    case("death/sending_8", 3, |r| killed(r, Traffic::Send, SMALL, false)),
    case("death/sending_64k", 3, |r| killed(r, Traffic::Send, MIDDLE, false)),
    case("death/sending_4m", 3, |r| killed(r, Traffic::Send, LARGE, false)),
    case("death/receiving_8", 3, |r| killed(r, Traffic::Receive, SMALL, false)),
    case("death/receiving_64k", 3, |r| killed(r, Traffic::Receive, MIDDLE, false)),
    case("death/receiving_4m", 3, |r| killed(r, Traffic::Receive, LARGE, false)),
    case("death/writing_8", 3, |r| killed(r, Traffic::Write, SMALL, false)),
    case("death/writing_64k", 3, |r| killed(r, Traffic::Write, MIDDLE, false)),
    case("death/writing_4m", 3, |r| killed(r, Traffic::Write, LARGE, false)),
    case("death/reading_8", 3, |r| killed(r, Traffic::Read, SMALL, false)),
    case("death/reading_64k", 3, |r| killed(r, Traffic::Read, MIDDLE, false)),
    case("death/reading_4m", 3, |r| killed(r, Traffic::Read, LARGE, false)),
    case("death/atomics", 3, |r| killed(r, Traffic::Atomic, SMALL, false)),
    case("death/wide_atomics", 3, |r| killed(r, Traffic::WideAtomic, 16, false)),
    case("death/written_to_8", 3, |r| killed(r, Traffic::Target, SMALL, false)),
    case("death/written_to_64k", 3, |r| killed(r, Traffic::Target, MIDDLE, false)),
    case("death/written_to_4m", 3, |r| killed(r, Traffic::Target, LARGE, false)),
    case("death/idle", 3, |r| killed(r, Traffic::None, SMALL, false)),
    case("death/forked_sending_8", 3, |r| killed(r, Traffic::Send, SMALL, true)),
    case("death/forked_sending_64k", 3, |r| killed(r, Traffic::Send, MIDDLE, true)),
    case("death/forked_sending_4m", 3, |r| killed(r, Traffic::Send, LARGE, true)),
    case("death/forked_receiving_8", 3, |r| killed(r, Traffic::Receive, SMALL, true)),
    case("death/forked_receiving_64k", 3, |r| killed(r, Traffic::Receive, MIDDLE, true)),
    case("death/forked_receiving_4m", 3, |r| killed(r, Traffic::Receive, LARGE, true)),
    case("death/forked_writing_4m", 3, |r| killed(r, Traffic::Write, LARGE, true)),
    case("death/forked_reading_64k", 3, |r| killed(r, Traffic::Read, MIDDLE, true)),
    case("death/forked_wide_atomics", 3, |r| killed(r, Traffic::WideAtomic, 16, true)),
    case("death/forked_idle", 3, |r| killed(r, Traffic::None, SMALL, true)),
    case("death/asleep_in_the_queue", 2, asleep),
    case("death/asleep_on_a_descriptor", 2, asleep_on_descriptor),
    case("death/asleep_on_a_counter", 2, asleep_on_counter),
    case("death/before_the_first_word", 2, |r| before_first_word(&Rig::open(r, &spec())?)),
    case("death/unexpected_messages", 2, |r| unexpected(&Rig::open(r, &spec())?)),
    case("death/of_a_claimed_message", 2, |r| claimed(&Rig::open(r, &spec())?)),
    case("death/by_closing", 2, by_closing),
    case("death/open_receives_if_so_configured", 2, open_receives)
        .under(&[("FI_SCIF_PEER_DEATH", "any")]),
];

/// Traffic at the time of the death, seen from the survivor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Send,
    Receive,
    Write,
    Read,
    Atomic,
    WideAtomic,
    /// The victim writes into the memory of the survivor.
    Target,
    None,
}

/// Number of outstanding operations.
const DEPTH: usize = 4;
const STREAM: usize = 0x100;
const DIRECTED: usize = 0x200;
const OPEN: usize = 0x300;

fn spec() -> Spec {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_DIRECTED_RECV;
    Spec::caps(caps).with(|spec| {
        spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
        spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
        spec.eq = true;
    })
}

fn killed(rank: &Rank, traffic: Traffic, size: usize, forked: bool) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let (_mr, remotes) = rig.share(Buf::new(size.max(4096)), REMOTE)?;
    match rank.index {
        0 => survivor(&rig, traffic, size, &remotes),
        1 => victim(&rig, traffic, size, &remotes, forked),
        _ => bystander(&rig),
    }
}

/// Posts one operation of the stream, seen from the survivor.
fn step(rig: &Rig<'_>, traffic: Traffic, buf: Buf, there: Remote) -> Result {
    let (ep, peer) = (&rig.ep, rig.to(1));
    let wide = traffic == Traffic::WideAtomic;
    let place = there.atomic(
        peer,
        if wide { sys::FI_UINT128 } else { sys::FI_UINT64 },
        sys::FI_SUM,
        STREAM,
    );
    match traffic {
        Traffic::Send => ep.send(buf, peer, STREAM),
        Traffic::Receive => ep.recv(buf, peer, STREAM),
        Traffic::Write => ep.write(buf, peer, there.addr, there.key, STREAM),
        Traffic::Read => ep.read(buf, peer, there.addr, there.key, STREAM),
        Traffic::Atomic | Traffic::WideAtomic => {
            ep.fetch_atomic(&place, Ioc { buf, count: 1 }, Buf::new(16))
        }
        Traffic::Target | Traffic::None => Err(Errno::EAGAIN),
    }
}

/// Runs the victim's side until it is killed.
fn victim(
    rig: &Rig<'_>,
    traffic: Traffic,
    size: usize,
    remotes: &[Remote],
    forked: bool,
) -> Outcome {
    if forked {
        sandbox::fork_sleeper()?;
    }
    let bufs: Vec<Buf> = (0..DEPTH).map(|_| Buf::new(size)).collect();
    let there = from(remotes, 0, 0)?;
    // All connections exist before the traffic begins.
    greet(rig)?;
    rig.barrier()?;
    let mut open = 0_usize;
    loop {
        rig.pump()?;
        for queue in [&rig.tx, &rig.rx] {
            while queue.take().is_some() {
                open = open.saturating_sub(1);
            }
        }
        for &buf in bufs.iter().skip(open) {
            let posted = match traffic {
                Traffic::Send => rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, STREAM),
                Traffic::Receive => rig.ep.send(buf, rig.to(0), STREAM),
                Traffic::Target => rig.ep.write(buf, rig.to(0), there.addr, there.key, STREAM),
                _ => break,
            };
            match posted {
                Ok(()) => open += 1,
                Err(Errno::EAGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        std::thread::yield_now();
    }
}

/// Sends one small message from every rank to every other.
fn greet(rig: &Rig<'_>) -> Outcome {
    for other in (0..rig.rank.count).filter(|&other| other != rig.rank.index) {
        rig.post(|| rig.ep.tinject(Buf::new(4), rig.to(other), 0x9ee7))?;
        rig.post(|| rig.ep.trecv(Buf::new(4), rig.to(other), 0x9ee7, 0, 0x9ee7))?;
    }
    for _ in 1..rig.rank.count {
        rig.received(0x9ee7)?;
    }
    Ok(())
}

fn bystander(rig: &Rig<'_>) -> Outcome {
    greet(rig)?;
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.to(1), 1, 0, DIRECTED))?;
    rig.barrier()?;
    // The victim is dead when the survivor reaches the next barrier.
    rig.barrier()?;
    check_eq!(rig.next_error(&rig.rx)?.context, DIRECTED);
    // The bystander fills the survivor's open receive, and all other traffic works.
    rig.complete(1, || rig.ep.tsend(Buf::pattern(64, 7), rig.to(0), 2, 1))?;
    talk(rig, 0)?;
    rig.barrier()
}

/// Exchanges messages of all kinds between the two remaining ranks.
fn talk(rig: &Rig<'_>, other: usize) -> Outcome {
    for size in [8, 20_000, 1 << 20] {
        let (from, to) = (Buf::pattern(size, 5), Buf::new(size));
        rig.post(|| rig.ep.recv(to, rig.to(other), 1))?;
        rig.post(|| rig.ep.send(from, rig.to(other), 2))?;
        rig.received(1)?;
        rig.sent(2)?;
        check_eq!(to.differs(size, 5), None);
    }
    Ok(())
}

fn survivor(rig: &Rig<'_>, traffic: Traffic, size: usize, remotes: &[Remote]) -> Outcome {
    let there = from(remotes, 1, 0)?;
    greet(rig)?;
    let open_buf = Buf::new(64);
    for _ in 0..3 {
        rig.post(|| rig.ep.trecv(Buf::new(size), rig.to(1), 1, 0, DIRECTED))?;
    }
    rig.post(|| rig.ep.trecv(open_buf, sys::FI_ADDR_UNSPEC, 2, 0, OPEN))?;
    rig.barrier()?;
    let bufs: Vec<Buf> = (0..DEPTH).map(|_| Buf::new(size.max(16))).collect();
    let streams = !matches!(traffic, Traffic::Target | Traffic::None);
    let enough = if size >= LARGE { 6 } else { 60 };
    let (mut open, mut done) = (0_usize, 0);
    if streams {
        rig.rank.step("streaming before the blow");
        while done < enough {
            rig.pump()?;
            while let Some(ended) = rig.tx.take().or_else(|| rig.rx.take()) {
                let entry = ended
                    .map_err(|error| Fail::here(format_args!("before the blow: {error:?}")))?;
                check_eq!(entry.context, STREAM);
                open -= 1;
                done += 1;
            }
            open += fill(rig, traffic, &bufs, open, there)?;
            std::thread::yield_now();
        }
        open += fill(rig, traffic, &bufs, open, there)?;
    } else {
        std::thread::sleep(Duration::from_millis(if traffic == Traffic::Target { 30 } else { 1 }));
    }
    rig.rank.kill(1)?;
    rig.barrier()?;
    let (mut directed, mut filled) = (0, false);
    rig.wait("the end of everything under way", || {
        while let Some(ended) = rig.tx.take().or_else(|| rig.rx.take()) {
            match ended {
                Ok(entry) if entry.context == STREAM => open -= 1,
                Err(error) if error.context == STREAM => open -= 1,
                Err(error) if error.context == DIRECTED => directed += 1,
                // Rank 2 may have noticed the death earlier and continued.
                Ok(entry) if entry.context == OPEN => filled = true,
                other => return Err(Fail::here(format_args!("{other:x?}"))),
            }
        }
        Ok((open == 0 && directed == 3).then_some(()))
    })?;
    check_reported_loss(rig)?;
    // No new operation to the dead peer succeeds.
    for attempt in [Traffic::Send, Traffic::Write, Traffic::Read, Traffic::Atomic] {
        rig.failure(&rig.tx, STREAM, || step(rig, attempt, Buf::new(64), there))?;
    }
    // Receives from any source are still posted.
    if !filled {
        check_eq!(rig.received(OPEN)?.len, 64);
    }
    check_eq!(open_buf.differs(64, 7), None);
    talk(rig, 2)?;
    let (buf, other) = (Buf::new(4096), from(remotes, 2, 0)?);
    rig.complete(8, || rig.ep.write(buf, rig.to(2), other.addr, other.key, 8))?;
    rig.barrier()
}

/// Keeps the stream full. Returns the number of operations posted.
fn fill(
    rig: &Rig<'_>,
    traffic: Traffic,
    bufs: &[Buf],
    open: usize,
    there: Remote,
) -> Outcome<usize> {
    let mut posted = 0;
    for &buf in bufs.iter().skip(open) {
        match step(rig, traffic, buf, there) {
            Ok(()) => posted += 1,
            Err(Errno::EAGAIN) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(posted)
}

/// Checks that the event queue has an entry that names the dead peer.
fn check_reported_loss(rig: &Rig<'_>) -> Outcome {
    if rig.rank.target.prov != "scif" {
        return Ok(());
    }
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    rig.wait("the event", || match eq.read(0) {
        Err(Errno::EAGAIN) => Ok(None),
        Err(Errno::EAVAIL) => Ok(Some(())),
        other => Err(Fail::here(format_args!("{other:?}"))),
    })?;
    let error = eq.readerr()?;
    check_eq!(error.data, rig.to(1));
    check!(error.err > 0 && !error.err_data.is_empty(), "{error:?}");
    check_eq!(eq.read(0), Err(Errno::EAGAIN));
    Ok(())
}

/// Opens two ranks that have exchanged messages. Rank 1 dies once rank 0 has announced that it
/// sleeps.
fn spoken<'r>(rank: &'r Rank, spec: &Spec) -> Outcome<Option<Rig<'r>>> {
    let rig = Rig::open(rank, spec)?;
    greet(&rig)?;
    if rank.index == 1 {
        rank.expect_death()?;
        rig.barrier()?;
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            rig.pump()?;
        }
        sandbox::die()?;
        return Ok(None);
    }
    Ok(Some(rig))
}

fn asleep(rank: &Rank) -> Outcome {
    let spec = spec().with(|spec| spec.wait_obj = sys::FI_WAIT_UNSPEC);
    let Some(rig) = spoken(rank, &spec)? else {
        return Ok(());
    };
    rig.post(|| rig.ep.recv(Buf::new(8), rig.to(1), 5))?;
    rig.barrier()?;
    rank.step("asleep in fi_cq_sread");
    loop {
        match rig.rx.cq.sread(1, 0, -1) {
            Err(Errno::EAVAIL) => break,
            Err(Errno::EAGAIN) => {}
            other => return Err(Fail::here(format_args!("{other:?}"))),
        }
    }
    check_eq!(rig.rx.cq.readerr(0)?.context, 5);
    Ok(())
}

fn asleep_on_descriptor(rank: &Rank) -> Outcome {
    use rustix::event::{PollFd, PollFlags, poll};
    let spec = spec().with(|spec| spec.wait_obj = sys::FI_WAIT_FD);
    let Some(rig) = spoken(rank, &spec)? else {
        return Ok(());
    };
    rig.post(|| rig.ep.recv(Buf::new(8), rig.to(1), 5))?;
    rig.barrier()?;
    let fd = rig.rx.cq.wait_fd()?;
    rank.step("asleep in poll");
    loop {
        match rig.rx.cq.read(1) {
            Err(Errno::EAVAIL) => break,
            Err(Errno::EAGAIN) => {}
            other => return Err(Fail::here(format_args!("{other:?}"))),
        }
        if rig.fabric.trywait(&[rig.rx.cq.as_ref()]).is_ok() {
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
        }
    }
    check_eq!(rig.rx.cq.readerr(0)?.context, 5);
    Ok(())
}

fn asleep_on_counter(rank: &Rank) -> Outcome {
    let spec = spec().with(|spec| spec.counters = sys::FI_RECV);
    let Some(rig) = spoken(rank, &spec)? else {
        return Ok(());
    };
    rig.post(|| rig.ep.recv(Buf::new(8), rig.to(1), 5))?;
    rig.barrier()?;
    rank.step("asleep in fi_cntr_wait");
    let cntr = rig.counter(sys::FI_RECV)?;
    check_eq!(cntr.wait(1000, -1), Err(Errno::EAVAIL));
    check_eq!(cntr.readerr()?, 1);
    Ok(())
}

/// Tests that a peer that died before its first message is unreachable, not waited for.
fn before_first_word(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 1 {
        rig.rank.expect_death()?;
        return sandbox::die();
    }
    rig.rank.kill(1)?;
    for size in [8, 100_000] {
        rig.failure(&rig.tx, 3, || rig.ep.send(Buf::new(size), rig.to(1), 3))?;
    }
    Ok(())
}

/// Tests unexpected messages of a dead peer. Complete ones may still be received. Ones that were
/// only announced are lost: they never fill a buffer, and a receive from any source stays posted.
fn unexpected(rig: &Rig<'_>) -> Outcome {
    greet(rig)?;
    if rig.rank.index == 1 {
        for size in [8, 100, LARGE] {
            rig.post(|| rig.ep.tsend(Buf::pattern(size, 1), rig.to(0), size as u64, 1))?;
        }
        rig.rank.expect_death()?;
        rig.barrier()?;
        return sandbox::die();
    }
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.to(1), 1, 0, DIRECTED))?;
    rig.barrier()?;
    rig.rank.kill(1)?;
    // The failure of the directed receive shows that the death was noticed.
    check_eq!(rig.next_error(&rig.rx)?.context, DIRECTED);
    for size in [LARGE, 8, 100] {
        let buf = Buf::new(size);
        rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, size as u64, 0, size))?;
    }
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        rig.pump()?;
    }
    for size in [LARGE, 8, 100] {
        rig.ep.cancel(size)?;
    }
    let mut cancelled = Vec::new();
    for _ in 0..3 {
        match rig.wait("what became of the receives", || Ok(rig.rx.take()))? {
            Ok(entry) => check_eq!(entry.len, entry.context, "a whole message"),
            Err(error) => {
                check_eq!(error.err, Errno::ECANCELED);
                cancelled.push(error.context);
            }
        }
    }
    check!(cancelled.contains(&LARGE), "a message without its payload was received");
    Ok(())
}

fn claimed(rig: &Rig<'_>) -> Outcome {
    greet(rig)?;
    if rig.rank.index == 1 {
        rig.post(|| rig.ep.tsend(Buf::pattern(LARGE, 1), rig.to(0), 6, 1))?;
        rig.rank.expect_death()?;
        rig.barrier()?;
        return sandbox::die();
    }
    let context = Buf::new(64);
    let claim = sys::FI_PEEK | sys::FI_CLAIM | sys::FI_COMPLETION;
    rig.rank.step("looking for the message");
    loop {
        rig.post(|| {
            rig.ep.trecvmsg(&[], TaggedMsg::from(sys::FI_ADDR_UNSPEC, 6, 0, context.addr()), claim)
        })?;
        if rig.wait("the answer", || Ok(rig.rx.take()))?.is_ok() {
            break;
        }
    }
    rig.barrier()?;
    rig.rank.kill(1)?;
    let (buf, any) = (Buf::new(LARGE), sys::FI_ADDR_UNSPEC);
    let take = sys::FI_CLAIM | sys::FI_COMPLETION;
    rig.failure(&rig.rx, context.addr(), || {
        rig.ep.trecvmsg(&[buf], TaggedMsg::from(any, 6, 0, context.addr()), take)
    })?;
    Ok(())
}

/// Tests that operations to a peer that has closed its endpoint fail.
fn by_closing(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    greet(&rig)?;
    call_variants::plain_message(&rig, 100, call_variants::Timing::Expected)?;
    if rank.index == 1 {
        drop(rig);
        return rank.barrier(&mut || Ok(()));
    }
    rig.barrier()?;
    // Messages sent before the close is noticed may still enter the ring of the closed peer.
    rank.step("sending until the close is noticed");
    loop {
        rig.post(|| rig.ep.send(Buf::new(8), rig.to(1), 3))?;
        if rig.wait("the send or its failure", || Ok(rig.tx.take()))?.is_err() {
            return Ok(());
        }
    }
}

/// Tests the setting with which the death of a peer fails open receives.
fn open_receives(rank: &Rank) -> Outcome {
    rank.only_scif("a setting of another provider")?;
    let Some(rig) = spoken(rank, &spec())? else {
        return Ok(());
    };
    rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 5))?;
    rig.post(|| rig.ep.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, 0, u64::MAX, 6))?;
    rig.barrier()?;
    let failed = rig.next_error(&rig.rx)?.context + rig.next_error(&rig.rx)?.context;
    check_eq!(failed, 11);
    Ok(())
}
