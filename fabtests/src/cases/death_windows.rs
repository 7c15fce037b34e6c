// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a peer that ends in the middle of an access over windows: registration, stores to a
//! mapped ring, DMA, fences, rendezvous. It is killed, stopped and killed later, or closes its
//! endpoint.
//!
//! Rank 0 survives: each of its operations ends, nothing writes to its buffers afterwards, and its
//! port is free after its close. No time is asserted. The same cases run on every transport.

use std::time::{Duration, Instant};

use rustix::process::Pid;
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

/// Settings with which DMA executes all RMA over the calls of `scif.h`.
const BY_DMA: &[(&str, &str)] = &[("SCIF_DMA_MIN", "0")];
/// Setting with which the close of a region waits for less than a case may take.
const SHORT: &[(&str, &str)] = &[("FI_SCIF_MR_CLOSE_TIMEOUT", "200ms")];
const SHORT_BY_DMA: &[(&str, &str)] =
    &[("SCIF_DMA_MIN", "0"), ("FI_SCIF_MR_CLOSE_TIMEOUT", "200ms")];
/// Setting with which the time limit of a case ends before a wait for one peer after the other.
const ONE_LIMIT: &[(&str, &str)] = &[("SCIF_DMA_MIN", "0"), ("FI_SCIF_MR_CLOSE_TIMEOUT", "4s")];

pub(crate) const CASES: &[Case] = &[
    case("death/register_killed", 2, |r| ends(r, Access::Register, End::Killed)),
    case("death/register_stopped", 2, |r| ends(r, Access::Register, End::Stopped)),
    case("death/register_closed", 2, |r| ends(r, Access::Register, End::Closed)),
    case("death/store_killed", 2, |r| ends(r, Access::Store, End::Killed)),
    case("death/store_stopped", 2, |r| ends(r, Access::Store, End::Stopped)),
    case("death/store_closed", 2, |r| ends(r, Access::Store, End::Closed)),
    case("death/dma_killed", 2, |r| ends(r, Access::Dma, End::Killed)).under(BY_DMA),
    case("death/dma_stopped", 2, |r| ends(r, Access::Dma, End::Stopped)).under(BY_DMA),
    case("death/dma_closed", 2, |r| ends(r, Access::Dma, End::Closed)).under(BY_DMA),
    case("death/fence_killed", 2, |r| ends(r, Access::Fence, End::Killed)).under(BY_DMA),
    case("death/fence_stopped", 2, |r| ends(r, Access::Fence, End::Stopped)).under(BY_DMA),
    case("death/fence_closed", 2, |r| ends(r, Access::Fence, End::Closed)).under(BY_DMA),
    case("death/rendezvous_killed", 2, |r| ends(r, Access::Rendezvous, End::Killed)),
    case("death/rendezvous_stopped", 2, |r| ends(r, Access::Rendezvous, End::Stopped)),
    case("death/rendezvous_closed", 2, |r| ends(r, Access::Rendezvous, End::Closed)),
    case("death/node_lost", 2, node_lost),
    case("death/region_written_by_a_stopped_peer", 2, stopped_in_a_region).under(SHORT).within(20),
    case("death/region_written_by_a_stopped_peer_by_dma", 2, stopped_in_a_region)
        .under(SHORT_BY_DMA)
        .within(20),
    case("death/region_written_by_three_stopped_peers", 4, |r| three_stopped(r, false))
        .under(ONE_LIMIT)
        .within(10),
    case("death/region_written_by_three_stopped_peers_after_the_close", 4, |r| {
        three_stopped(r, true)
    })
    .under(SHORT_BY_DMA),
    case("death/regions_closed_at_once_beside_a_stopped_peer", 2, closed_at_once)
        .under(ONE_LIMIT)
        .within(10),
];

const PAGE: usize = 4096;
const LARGE: usize = 1 << 20;
/// Regions of the victim, each with pages of its own.
const REGIONS: usize = 256;
/// Completions before the end, so that it comes in the middle.
const BEFORE: usize = 40;
/// Operations without a completion at any time.
const DEPTH: usize = 8;
const STREAM: usize = 0x100;
/// Writes outstanding of a peer that is stopped in the middle of one. They go to different memory,
/// since writes to the same memory wait for each other.
const PIECES: usize = 4;
/// Tag of the request to close, and of the messages of the stream.
const CLOSE: u64 = 0xc105e;
const TAG: u64 = 7;
/// Time for which a stopped victim stays alive, and for which late writes are looked for.
const STOPPED: Duration = Duration::from_millis(40);

/// Access in progress at the end of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Writes to a region of its own each.
    Register,
    /// Small messages.
    Store,
    Dma,
    /// Short writes, behind which fences are frequent.
    Fence,
    Rendezvous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    Stopped,
    Closed,
}

impl Access {
    fn len(self) -> usize {
        match self {
            Access::Register | Access::Store | Access::Fence => 8,
            Access::Dma | Access::Rendezvous => LARGE,
        }
    }
}

fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_DIRECTED_RECV)
}

fn ends(rank: &Rank, access: Access, end: End) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let region = access.len().max(PAGE);
    let memory = Buf::private(REGIONS * region.min(PAGE) + region)?;
    let mut regions = Vec::new();
    for n in 0..REGIONS {
        regions.push(rig.share(memory.sub(n * region.min(PAGE), region), REMOTE)?);
    }
    if rank.index == 1 {
        return victim(rig, access, end);
    }
    let there = regions.iter().map(|(_, remotes)| from(remotes, 1, 0)).collect::<Outcome<_>>()?;
    let survivor = SurvivorStream { rig: &rig, access, there };
    survivor.stream(end)?;
    drop(regions);
    let name = rig.ep.name()?;
    drop(rig);
    rank.barrier(&mut || Ok(()))?;
    // The port is free again, unless a thread still closes its connections.
    rank.step("opening the port again");
    loop {
        match Rig::open_at(rank, &spec(), &name) {
            Ok(_) => return Ok(()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Keeps the stream going until it is killed, or is told to close.
fn victim(rig: Rig<'_>, access: Access, end: End) -> Outcome {
    let close = Buf::new(8);
    rig.post(|| rig.ep.trecv(close, rig.to(0), CLOSE, 0, 1))?;
    let bufs: Vec<Buf> = (0..DEPTH).map(|_| Buf::new(access.len())).collect();
    let mut open = 0_usize;
    rig.barrier()?;
    loop {
        rig.pump()?;
        while let Some(ended) = rig.tx.take().or_else(|| rig.rx.take()) {
            match ended {
                Ok(entry) if entry.context == STREAM => open -= 1,
                Ok(_) if end == End::Closed => {
                    let rank = rig.rank;
                    drop(rig);
                    return rank.barrier(&mut || Ok(()));
                }
                other => return Err(Fail::here(format_args!("{other:?}"))),
            }
        }
        if matches!(access, Access::Store | Access::Rendezvous) {
            for &buf in bufs.iter().skip(open) {
                match rig.ep.trecv(buf, rig.to(0), TAG, 0, STREAM) {
                    Ok(()) => open += 1,
                    Err(Errno::EAGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        std::thread::yield_now();
    }
}

/// Side of the survivor.
struct SurvivorStream<'a, 'r> {
    rig: &'a Rig<'r>,
    access: Access,
    /// Regions of the victim.
    there: Vec<Remote>,
}

impl SurvivorStream<'_, '_> {
    /// Posts operation `number` of the stream.
    fn step(&self, number: usize, buf: Buf) -> scif_fabtests::fi::Result {
        let (ep, peer) = (&self.rig.ep, self.rig.peer());
        let own = if self.access == Access::Register { number % REGIONS } else { 0 };
        match (self.access, self.there.get(own)) {
            (Access::Store | Access::Rendezvous, _) | (_, None) => ep.tsend(buf, peer, TAG, STREAM),
            (_, Some(there)) if number % 2 == 1 && self.access == Access::Dma => {
                ep.read(buf, peer, there.addr, there.key, STREAM)
            }
            (_, Some(there)) => ep.write(buf, peer, there.addr, there.key, STREAM),
        }
    }

    /// Ends the victim, or its endpoint.
    fn strike(&self, end: End) -> Outcome {
        match end {
            End::Killed => self.rig.rank.kill(1),
            End::Stopped => self.rig.rank.stop(1),
            End::Closed => {
                self.rig.post(|| self.rig.ep.tinject(Buf::new(8), self.rig.peer(), CLOSE))
            }
        }
    }

    /// Runs the stream until the end of the victim has ended all operations.
    fn stream(&self, end: End) -> Outcome {
        let guard = Buf::pattern(2 * PAGE, 9);
        let len = self.access.len();
        let all = Buf::new(DEPTH * len);
        self.rig.barrier()?;
        let (mut open, mut done, mut posted) = (0_usize, 0, 0);
        let (mut failed, mut struck, mut is_alive) = (false, None, end == End::Stopped);
        self.rig.wait("the end of all operations", || {
            while let Some(ended) = self.rig.tx.take().or_else(|| self.rig.rx.take()) {
                open -= 1;
                match ended {
                    Ok(entry) => check_eq!(entry.context, STREAM),
                    Err(error) => {
                        check!(struck.is_some(), "{error:?}");
                        failed = true;
                    }
                }
                done += 1;
            }
            if done >= BEFORE && struck.is_none() {
                struck = Some(Instant::now());
                self.strike(end)?;
            }
            if is_alive && struck.is_some_and(|at: Instant| at.elapsed() > STOPPED) {
                is_alive = false;
                self.rig.rank.kill(1)?;
            }
            while !failed && open < DEPTH {
                match self.step(posted, all.sub(posted % DEPTH * len, len)) {
                    Ok(()) => (open, posted) = (open + 1, posted + 1),
                    Err(Errno::EAGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            Ok((failed && open == 0).then_some(()))
        })?;
        // The buffers are the program's again.
        all.fill_pattern(5);
        self.rig.silence(STOPPED)?;
        check_eq!(all.differs(all.len(), 5), None);
        check_eq!(guard.differs(guard.len(), 9), None);
        Ok(())
    }
}

/// Tests that a region can be closed while peers are stopped that write to it. The peers are killed
/// afterwards, and the memory is that of the program.
fn stopped_in_a_region(rank: &Rank) -> Outcome {
    stopped_writers(rank, false)
}

/// Fails unless processes may be stopped in the middle of a copy to a window.
fn need_windows() -> Outcome {
    let transport = std::env::var("FI_SCIF_TRANSPORT").unwrap_or_default();
    if transport != "scif" && transport != "sisci" {
        return Err(Fail::NotHere("peers copy to no windows by themselves".into()));
    }
    Ok(())
}

/// Tests the same with three peers, whose windows a thread removes if the endpoint is closed first.
fn three_stopped(rank: &Rank, closes_endpoint: bool) -> Outcome {
    need_windows()?;
    stopped_writers(rank, closes_endpoint)
}

/// Tests that regions with windows on one channel, closed by threads at once, wait for a stopped
/// peer at the same time.
fn closed_at_once(rank: &Rank) -> Outcome {
    need_windows()?;
    let rig = Rig::open(rank, &spec())?;
    let part = 16 * LARGE;
    let memory = Buf::private(PIECES * part)?;
    let mut regions = Vec::new();
    for piece in 0..PIECES {
        regions.push(rig.share(memory.sub(piece * part, part), REMOTE)?);
    }
    if rank.index == 1 {
        let there = regions.iter().map(|(_, remotes)| from(remotes, 0, 0));
        let there = there.collect::<Outcome<Vec<_>>>()?;
        let buf = Buf::pattern(part, 3);
        let write = |piece: usize| {
            let Some(to) = there.get(piece) else { return Ok(()) };
            rig.post(|| rig.ep.write(buf, rig.to(0), to.addr, to.key, piece))
        };
        rig.barrier()?;
        (0..PIECES).try_for_each(write)?;
        loop {
            write(rig.next(&rig.tx)?.context)?;
        }
    }
    rig.barrier()?;
    let written = |piece| memory.sub(piece * part, part).differs(part, 3).is_none();
    rig.wait("the first writes", || Ok((0..PIECES).all(written).then_some(())))?;
    rank.stop(1)?;
    rank.step("closing all regions at once");
    let closed: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            regions.iter().map(|(mr, _)| scope.spawn(move || mr.close())).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    for ended in closed {
        ended.map_err(|_| Fail::here("a panic"))??;
    }
    rank.kill(1)?;
    memory.fill_pattern(5);
    rig.silence(STOPPED)?;
    check_eq!(memory.differs(memory.len(), 5), None);
    Ok(())
}

fn stopped_writers(rank: &Rank, closes_endpoint: bool) -> Outcome {
    if std::env::var_os("FI_SCIF_TRANSPORT").is_some_and(|name| name == "kernel") {
        return Err(Fail::NotHere("no process is stopped inside a copy by a driver".into()));
    }
    let rig = Rig::open(rank, &spec())?;
    let part = 16 * LARGE;
    let memory = Buf::private((rank.count - 1) * part)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    if rank.index > 0 {
        let there = from(&remotes, 0, (rank.index - 1) * part)?;
        let buf = Buf::pattern(part, 3);
        // At any time, unless it is executed at once, another one waits behind the first.
        let write = |piece: usize| {
            let (at, len) = (piece * part / PIECES, part / PIECES);
            let addr = there.addr + at as u64;
            rig.post(|| rig.ep.write(buf.sub(at, len), rig.to(0), addr, there.key, piece))
        };
        rig.barrier()?;
        (0..PIECES).try_for_each(write)?;
        loop {
            write(rig.next(&rig.tx)?.context)?;
        }
    }
    rig.barrier()?;
    let written = |n| memory.sub((n - 1) * part, part).differs(part, 3).is_none();
    rig.wait("the first writes", || Ok((1..rank.count).all(written).then_some(())))?;
    (1..rank.count).try_for_each(|peer| rank.stop(peer))?;
    rank.step("closing the region of stopped peers");
    let mut rig = Some(rig);
    if closes_endpoint {
        drop(rig.take());
    }
    mr.close()?;
    (1..rank.count).try_for_each(|peer| rank.kill(peer))?;
    memory.fill_pattern(5);
    match rig {
        Some(rig) => rig.silence(STOPPED)?,
        None => std::thread::sleep(STOPPED),
    }
    check_eq!(memory.differs(memory.len(), 5), None);
    Ok(())
}

/// Tests that processes survive the loss of a node while they store to rings there: a driver has
/// removed the pages before the stream reports the end.
fn node_lost(rank: &Rank) -> Outcome {
    use scif_api::FailedNode;
    let transport = std::env::var("FI_SCIF_TRANSPORT").unwrap_or_default();
    if transport != "kernel" && transport != "scif" {
        return Err(Fail::NotHere("no calls of scif.h".into()));
    }
    // Other cases of the run keep their nodes.
    let domain = format!("lost-{}", rustix::process::getppid().map_or(0, Pid::as_raw_pid));
    sandbox::set_env("SCIF_DOMAIN", &domain)?;
    let rig = Rig::open(rank, &spec())?;
    let [from, to] = [Buf::new(8), Buf::new(8)];
    let (mut sends, mut receives, mut done, mut failed) = (0_usize, 0_usize, 0, false);
    let mut lost = None;
    rig.wait("the end of all sends", || {
        while let Some(ended) = rig.tx.take() {
            failed |= ended.is_err();
            (sends, done) = (sends - 1, done + 1);
        }
        while rig.rx.take().is_some() {
            receives -= 1;
        }
        if done >= BEFORE && lost.is_none() && rank.index == 0 {
            let config = scif::Config::from_env();
            lost = Some(std::thread::spawn(move || {
                FailedNode::within(&config, config.node, Duration::from_secs(20))
            }));
        }
        while !failed && receives < DEPTH {
            rig.ep.trecv(to, rig.peer(), TAG, 0, 2)?;
            receives += 1;
        }
        while !failed && sends < DEPTH {
            match rig.ep.tsend(from, rig.peer(), TAG, STREAM) {
                Ok(()) => sends += 1,
                Err(Errno::EAGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((failed && sends == 0).then_some(()))
    })?;
    let lost = lost.map(|thread| thread.join().map_err(|_| Fail::here("a panic")));
    rank.barrier(&mut || rig.pump())?;
    drop(lost);
    Ok(())
}
