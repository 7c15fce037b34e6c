// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Time from the death of a peer to the error of an operation that waits for it. Peers of another
//! host are dead once the network has refused messages for `FI_SCIF_NET_TIMEOUT`. A peer that makes
//! no call, or is stopped, is not dead, however long that takes.

use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

use super::coll::{barrier, join};
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("death_time/receiving", 2, |r| killed(r, DeathWait::Receive)),
    case("death_time/sending", 2, |r| killed(r, DeathWait::Send)),
    case("death_time/receiving_64m", 2, |r| killed(r, DeathWait::Fetch)),
    case("death_time/reading_64m", 2, |r| killed(r, DeathWait::Read)),
    case("death_time/allreduce", 3, allreduce),
    case("death_time/computing", 2, |r| silent(r, false)),
    case("death_time/stopped", 2, |r| silent(r, true)),
];

/// Maximum time from the death to the error.
const NOTICED_MAX: Duration = Duration::from_millis(2500);
/// Time for which a peer makes no call, unless `CONFORMANCE_SILENCE` has another number of seconds:
/// longer than a network refuses messages to a dead one.
const SILENCE: Duration = Duration::from_secs(4);
/// Length in bytes of a large message, or read.
const LARGE: usize = 64 << 20;
/// Context of the operation that waits.
const WAITING: usize = 1;

/// Operation that waits for the peer when it dies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DeathWait {
    /// Directed receive.
    Receive,
    /// One small send after another.
    Send,
    /// Receive of a large message.
    Fetch,
    /// Read of large memory.
    Read,
}

fn spec() -> Spec {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_DIRECTED_RECV;
    Spec::caps(caps)
}

/// Exchanges a small message with the peer, so that both are connected.
fn greet(rig: &Rig<'_>) -> Outcome {
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.peer(), 7, 0, 2))?;
    rig.post(|| rig.ep.tinject(Buf::new(8), rig.peer(), 7))?;
    rig.received(2)?;
    rig.barrier()
}

/// Checks the time since the death.
fn check_time(rank: &Rank, subject: &str, begin: Instant) -> Outcome {
    let elapsed = begin.elapsed();
    rank.figure(format_args!("{subject}: {} ms after the death", elapsed.as_millis()));
    check!(elapsed < NOTICED_MAX, "{subject}: the error came {elapsed:?} after the death");
    Ok(())
}

/// Runs the victim's side until it is killed.
fn die(rig: &Rig<'_>) -> Outcome {
    rig.rank.expect_death()?;
    rig.barrier()?;
    loop {
        rig.pump()?;
    }
}

fn killed(rank: &Rank, wait: DeathWait) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let is_large = matches!(wait, DeathWait::Fetch | DeathWait::Read);
    let buf = Buf::pattern(if is_large { LARGE } else { 8 }, 3);
    let (_mr, remotes) = rig.share(buf, REMOTE)?;
    greet(&rig)?;
    if rank.index == 1 {
        if wait == DeathWait::Fetch {
            for _ in 0..8 {
                rig.post(|| rig.ep.tsend(buf, rig.peer(), 1, 3))?;
            }
        }
        return die(&rig);
    }
    let there = from(&remotes, 1, 0)?;
    let post = || match wait {
        DeathWait::Receive | DeathWait::Fetch => rig.ep.trecv(buf, rig.peer(), 1, 0, WAITING),
        DeathWait::Send => rig.ep.tsend(buf, rig.peer(), 2, WAITING),
        DeathWait::Read => rig.ep.read(buf, rig.peer(), there.addr, there.key, WAITING),
    };
    rig.post(post)?;
    let queue = match wait {
        DeathWait::Receive | DeathWait::Fetch => &rig.rx,
        DeathWait::Send | DeathWait::Read => &rig.tx,
    };
    rig.barrier()?;
    if is_large {
        // In the middle of a large one.
        rig.next(queue)?;
        rig.post(post)?;
    }
    rank.kill(1)?;
    let begin = Instant::now();
    rank.step(format_args!("{wait:?} until the death is noticed"));
    let error = loop {
        match rig.wait("the end of an operation", || Ok(queue.take()))? {
            Err(error) => break error,
            Ok(_) => rig.post(post)?,
        }
    };
    check_eq!((error.context, error.err), (WAITING, Errno::ECONNRESET));
    check_time(rank, &format!("{wait:?}"), begin)
}

/// Tests two members of a collective operation, one on the host of the victim and one on another.
fn allreduce(rank: &Rank) -> Outcome {
    let rig = super::coll::rig(rank)?;
    let group = join(&rig, &[0, 1, 2])?;
    let address = group.addr()?;
    let sum = |context| Collective {
        kind: sys::FI_ALLREDUCE,
        buf: Buf::new(4096),
        result: Buf::new(4096),
        count: 512,
        datatype: sys::FI_UINT64,
        op: sys::FI_SUM,
        ..barrier(address, context)
    };
    sum(2).post(&rig.ep)?;
    rig.sent(2)?;
    if rank.index == 1 {
        return die(&rig);
    }
    sum(WAITING).post(&rig.ep)?;
    rig.barrier()?;
    if rank.index == 0 {
        rank.kill(1)?;
    }
    rank.barrier(&mut || Ok(()))?;
    let begin = Instant::now();
    let error = rig.next_error(&rig.tx)?;
    check_eq!((error.context, error.err), (WAITING, Errno::ECONNRESET));
    check_time(rank, "allreduce", begin)?;
    rig.barrier()
}

/// Tests a peer that makes no call for a while, or is stopped. What waits for it continues later.
fn silent(rank: &Rank, is_stopped: bool) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let given = std::env::var("CONFORMANCE_SILENCE").ok().and_then(|secs| secs.parse().ok());
    let silence = given.map_or(SILENCE, Duration::from_secs);
    let sizes = [8, 100_000, 4 << 20];
    let buf = Buf::pattern(*sizes.last().unwrap_or(&8), 3);
    greet(&rig)?;
    let receive = |size: usize| rig.ep.trecv(buf.sub(0, size), rig.peer(), size as u64, 0, size);
    if rank.index == 1 {
        rank.barrier(&mut || Ok(()))?;
        if !is_stopped {
            std::thread::sleep(silence);
        }
    } else {
        rank.barrier(&mut || Ok(()))?;
        if is_stopped {
            rank.stop(1)?;
        }
        for size in sizes {
            rig.post(|| receive(size))?;
            rig.post(|| rig.ep.tsend(buf.sub(0, size), rig.peer(), size as u64, 1))?;
        }
        let begin = Instant::now();
        let mut sent = 0;
        while begin.elapsed() < silence {
            rig.pump()?;
            while let Some(done) = rig.tx.take() {
                check!(done.is_ok(), "a peer that lives was buried: {done:?}");
                sent += 1;
            }
            check!(rig.rx.take().is_none(), "a receive ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_stopped {
            rank.resume(1)?;
        }
        for _ in sent..sizes.len() {
            rig.sent(1)?;
        }
    }
    for size in sizes {
        if rank.index == 1 {
            rig.post(|| receive(size))?;
        }
        check_eq!(rig.received(size)?.len, size);
        if rank.index == 1 {
            rig.post(|| rig.ep.tsend(buf.sub(0, size), rig.peer(), size as u64, 1))?;
            rig.sent(1)?;
        }
    }
    rig.barrier()
}
