// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One endpoint with hundreds of peers: other processes open hundreds of endpoints each, and all of
//! them exchange data with rank 0.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scif_fabtests::fi::hold_to_errno;
use scif_fabtests::harness::cpus::{pin, two_cpus};
use scif_fabtests::harness::output::print_line;
use scif_fabtests::prelude::*;

use super::hosts;
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("many_peers/three_hundred", 4, |r| hub(r, 100)).within(180),
    case("many_peers/few_descriptors", 4, few_descriptors).within(180),
    case("many_peers/many_processes", 24, processes).within(180),
    case("many_peers/idle", 2 * PROCESSES + 2, idle).within(240),
];

const SIZES: &[usize] = &[8, 3000, 40_000];
/// Number of processes with idle endpoints. Between hosts, all of them are on the other host.
const PROCESSES: usize = 3;

fn few_descriptors(rank: &Rank) -> Outcome {
    sandbox::limit_open_files(96)?;
    hub(rank, 50)
}

fn id(from: usize, ep: usize) -> u64 {
    ((from as u64) << 32) | ep as u64
}

fn hub(rank: &Rank, each: usize) -> Outcome {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_RMA | sys::FI_SOURCE).with(|spec| {
        spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
        spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
        spec.sources = true;
    });
    let rig = Rig::open(rank, &spec)?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(64 * each), REMOTE)?;
    if rank.index == 0 { center(&rig, each, &remotes) } else { leaves(&rig, each, memory) }
}

fn leaves(rig: &Rig<'_>, each: usize, memory: Buf) -> Outcome {
    let mut eps: Vec<Arc<Ep>> = vec![Arc::clone(&rig.ep)];
    while eps.len() < each {
        let ep = Ep::open(&rig.domain, &rig.info)?;
        ep.attach(&rig.av, 0)?;
        ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
        ep.attach(&rig.rx.cq, sys::FI_RECV)?;
        ep.enable()?;
        eps.push(ep);
    }
    let names: Vec<Vec<u8>> = eps.iter().map(|ep| ep.name()).collect::<Result<_, _>>()?;
    rig.exchange(&names.concat())?;
    let center = rig.to(0);
    for (round, &size) in SIZES.iter().enumerate() {
        let replies: Vec<Buf> = (0..each).map(|_| Buf::new(size)).collect();
        for (index, (ep, &reply)) in eps.iter().zip(&replies).enumerate() {
            rig.post(|| ep.recv(reply, sys::FI_ADDR_UNSPEC, index))?;
            let me = id(rig.rank.index, index);
            rig.post(|| ep.senddata(Buf::pattern(size, me + round as u64), me, center, index))?;
        }
        for _ in 0..each {
            rig.next(&rig.tx)?;
            rig.next(&rig.rx)?;
        }
        for (index, reply) in replies.iter().enumerate() {
            let me = id(rig.rank.index, index);
            check_eq!(reply.differs(size, me + 1000 + round as u64), None, "endpoint {index}");
        }
        rig.barrier()?;
    }
    rig.barrier()?;
    // Rank 0 has written a word through each endpoint.
    rig.barrier()?;
    for index in 0..each {
        check_eq!(memory.load_u64(index * 64), id(rig.rank.index, index) + 1);
    }
    rig.barrier()
}

fn center(rig: &Rig<'_>, each: usize, remotes: &[scif_fabtests::rig::Remote]) -> Outcome {
    let parts = rig.exchange(&[])?;
    let mut numbers = vec![Vec::new(); rig.rank.count];
    for (numbers, names) in numbers.iter_mut().zip(&parts).skip(1) {
        for name in names.chunks(names.len() / each) {
            numbers.push(rig.av.insert(name)?);
        }
    }
    let number = |from: usize, ep: usize| -> Outcome<u64> {
        let found = numbers.get(from).and_then(|list| list.get(ep));
        found.copied().ok_or_else(|| Fail::here("no such endpoint"))
    };
    let all = each * (rig.rank.count - 1);
    for (round, &size) in SIZES.iter().enumerate() {
        let bufs: Vec<Buf> = (0..32).map(|_| Buf::new(size)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
        }
        let mut posted = bufs.len();
        for _ in 0..all {
            let entry = rig.next(&rig.rx)?;
            let buf = *bufs.get(entry.context).ok_or_else(|| Fail::here("no such buffer"))?;
            check_eq!(buf.differs(size, entry.data + round as u64), None);
            let from = usize::try_from(entry.data >> 32).map_err(Fail::here)?;
            let ep = usize::try_from(entry.data & 0xffff_ffff).map_err(Fail::here)?;
            check_eq!(entry.src, Some(number(from, ep)?));
            let reply = Buf::pattern(size, entry.data + 1000 + round as u64);
            let to = number(from, ep)?;
            rig.post(|| rig.ep.send(reply, to, 1))
                .map_err(|fail| fail.with(format_args!("to endpoint {ep} of rank {from}")))?;
            if posted < all {
                posted += 1;
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, entry.context))?;
            }
        }
        for _ in 0..all {
            rig.next(&rig.tx)?;
        }
        rig.barrier()?;
    }
    rig.barrier()?;
    for from_rank in 1..rig.rank.count {
        for ep in 0..each {
            let at = from(remotes, from_rank, ep * 64)?;
            let word = Buf::of(&(id(from_rank, ep) + 1).to_le_bytes());
            let to = number(from_rank, ep)?;
            rig.complete(2, || {
                rig.ep.writemsg(&[word], RmaMsg::at(to, &[rma_iov(at)], 2), COMPLETE)
            })?;
        }
    }
    rig.barrier()?;
    rig.barrier()
}

const COMPLETE: u64 = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;

fn rma_iov(at: scif_fabtests::rig::Remote) -> scif_fabtests::fi::RmaIov {
    scif_fabtests::fi::RmaIov { addr: at.addr, len: 8, key: at.key }
}

/// Tests two dozen processes, each connected with each.
fn processes(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(true))?;
    for size in [8, 20_000] {
        let into: Vec<Buf> = (0..rank.count).map(|_| Buf::new(size)).collect();
        for (other, &buf) in into.iter().enumerate() {
            rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, other as u64, 0, other))?;
        }
        for other in 0..rank.count {
            let buf = Buf::pattern(size, id(rank.index, other));
            rig.post(|| rig.ep.tsend(buf, rig.to(other), rank.index as u64, other))?;
        }
        for _ in 0..rank.count {
            rig.next(&rig.tx)?;
            rig.next(&rig.rx)?;
        }
        for (other, buf) in into.iter().enumerate() {
            check!(buf.differs(size, id(other, rank.index)).is_none(), "from rank {other}");
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Number of messages in each direction of a connection, before it is idle.
const MESSAGES: usize = 34;
/// Size in bytes of each of them. All of them are more than the bodies that a ring holds.
const MESSAGE: usize = 2000;
/// Number of endpoints of a process with idle ones, without another number in `CONFORMANCE_PEERS`:
/// each poll of such a process looks at all of them.
const EACH: usize = 32;
/// Growth limit in bytes of the hub's memory for each idle peer, without the memory that the
/// network's provider keeps for a peer.
const IDLE_MAX: u64 = 24 << 10;
/// Time after which the memory of connections without messages is released.
const RELEASED: Duration = Duration::from_millis(1500);
/// Rank with the connections to idle endpoints.
const HUB: usize = 0;
/// Rank on the other host that talks to the hub.
const PARTNER: usize = 1;
/// Rank on the host of the hub without connections to idle endpoints.
const ALONE: usize = 2;
/// Rank on the host of the hub with as many connections of the network's provider alone.
const BARE_HUB: usize = 4;
/// Number of times that the hub talks, and the rank without idle peers.
const BLOCKS: usize = 40;
/// Number of round trips each time.
const ROUND_TRIPS: usize = 50;
/// Maximum median of round trips with idle peers, as a multiple of that without.
const SLOWER_MAX: f64 = 1.05;

/// Tests that peers that have filled their rings once leave little memory, and do not slow a live
/// pair. The ranks with odd numbers above 1 have the endpoints. All of them exchange messages with
/// the hub, and then, over a network, with a hub of the network's provider.
fn idle(rank: &Rank) -> Outcome {
    let each = std::env::var("CONFORMANCE_PEERS").ok().and_then(|count| count.parse().ok());
    let each: usize = each.unwrap_or(EACH);
    if hosts::network().is_some() {
        // The network's provider may change errno.
        hold_to_errno(false);
    }
    let rig = Rig::open(rank, &Spec::messages(false))?;
    let (grown, _eps) = growth(&rig, HUB, each)?;
    let Some(net) = hosts::network().filter(|_| rank.target.prov == "scif") else {
        print_figures(rank, &format!("{} peers: {grown} bytes each", PROCESSES * each));
        check!(rank.index != HUB || grown <= IDLE_MAX, "{grown} bytes a peer");
        return rig.barrier();
    };
    let ratio = slowdown(&rig)?;
    let mut bare_rank = rank.with_seed(rank.target.seed)?;
    bare_rank.target.prov = net;
    let bare_rig = Rig::open(&bare_rank, &Spec::messages(false))?;
    let (bare, _bare_eps) = growth(&bare_rig, BARE_HUB, each)?;
    let parts = bare_rig.exchange(&bare.to_le_bytes())?;
    let bare = parts.get(BARE_HUB).and_then(|bytes| bytes.as_slice().try_into().ok());
    let bare = u64::from_le_bytes(bare.ok_or_else(|| Fail::here("no growth"))?);
    let figures = format!(
        "{} peers: {grown} bytes each, {bare} of the network alone; latency {ratio:.3} of that \
         without them",
        PROCESSES * each
    );
    print_figures(rank, &figures);
    if rank.index == HUB {
        check!(grown <= bare + IDLE_MAX, "{figures}");
        check!(ratio <= SLOWER_MAX, "{figures}");
    }
    bare_rig.barrier()?;
    rig.barrier()
}

fn print_figures(rank: &Rank, figures: &str) {
    if rank.index == HUB {
        print_line(figures);
        rank.figure(figures);
    }
}

/// Connects many endpoints with those of the rank `hub`, each of which exchanges messages with it.
/// Returns the growth of the memory of this rank for each of them, and its own ones.
fn growth(rig: &Rig<'_>, hub: usize, each: usize) -> Outcome<(u64, Vec<Arc<Ep>>)> {
    let has_endpoints = rig.rank.index % 2 == 1 && rig.rank.index != PARTNER;
    let count = if has_endpoints { each } else { 0 };
    let eps: Vec<Arc<Ep>> = (0..count).map(|_| another(rig)).collect::<Outcome<_>>()?;
    let names: Vec<Vec<u8>> = eps.iter().map(|ep| ep.name()).collect::<Result<_, _>>()?;
    let names = rig.exchange(&names.concat())?;
    let mut peers = Vec::new();
    for names in names.iter().filter(|names| rig.rank.index == hub && !names.is_empty()) {
        let (count, addresses) = rig.av.insert_many(names, each, 0)?;
        check_eq!(count, each);
        peers.push(addresses);
    }
    // Buffers that all connections share have their size after the first half.
    let half = each / 2;
    exchange_with_all(rig, hub, (&eps, &peers), 0..half)?;
    let memory = memory_at_rest(rig, hub)?;
    exchange_with_all(rig, hub, (&eps, &peers), half..each)?;
    let grown = memory_at_rest(rig, hub)?.saturating_sub(memory);
    Ok((grown / (PROCESSES * (each - half)) as u64, eps))
}

/// Returns the latency of the hub, which has idle peers, as a multiple of that of a rank without.
/// Both talk to one rank in turns.
fn slowdown(rig: &Rig<'_>) -> Outcome<f64> {
    let [first, second] = two_cpus()?;
    let index = rig.rank.index;
    match index {
        HUB | ALONE => pin(first)?,
        PARTNER => pin(second)?,
        _ => {}
    }
    let mut medians = Vec::new();
    for block in 0..BLOCKS {
        let order = if block % 2 == 0 { [HUB, ALONE] } else { [ALONE, HUB] };
        for rank in order {
            if index == rank || index == PARTNER {
                let median = round_trip(rig, if index == PARTNER { rank } else { PARTNER })?;
                medians.extend(median.as_secs_f64().to_le_bytes());
            }
            asleep(rig)?;
        }
    }
    let parts = rig.exchange(&medians)?;
    let of = |rank: usize| -> Vec<f64> {
        let words = parts.get(rank).map_or(&[][..], Vec::as_slice).chunks_exact(8);
        words.filter_map(|word| word.try_into().ok()).map(f64::from_le_bytes).collect()
    };
    let pairs = of(HUB).into_iter().zip(of(ALONE));
    let mut ratios: Vec<f64> = pairs.map(|(hub, alone)| hub / alone).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    check_eq!(ratios.len(), BLOCKS);
    ratios.get(BLOCKS / 2).copied().ok_or_else(|| Fail::here("no round trip"))
}

/// Exchanges messages between the hub, which has the addresses `peers` by process, and some of the
/// endpoints of each process.
fn exchange_with_all(
    rig: &Rig<'_>,
    hub: usize,
    (eps, peers): (&[Arc<Ep>], &[Vec<u64>]),
    some: Range<usize>,
) -> Outcome {
    for at in some {
        for _ in peers {
            receive_all(rig, &rig.ep)?;
        }
        for addresses in peers {
            let to = addresses.get(at).copied().unwrap_or(sys::FI_ADDR_NOTAVAIL);
            send_all(rig, &rig.ep, to)?;
        }
        if let Some(ep) = eps.get(at) {
            send_all(rig, ep, rig.to(hub))?;
            receive_all(rig, ep)?;
        }
    }
    Ok(())
}

/// Returns the memory of this process once the connections of the hub rest: its polls release them,
/// and all other ranks sleep meanwhile.
fn memory_at_rest(rig: &Rig<'_>, hub: usize) -> Outcome<u64> {
    rig.barrier()?;
    if rig.rank.index == hub {
        let end = Instant::now() + RELEASED;
        rig.wait("the rest of all connections", || Ok((Instant::now() > end).then_some(())))?;
        // Each look at the connections takes 256 polls.
        for _ in 0..256 * 100 {
            rig.pump()?;
        }
    }
    let memory = sandbox::memory("RssAnon:")?;
    asleep(rig)?;
    Ok(memory)
}

/// Waits for all ranks, asleep.
fn asleep(rig: &Rig<'_>) -> Outcome {
    rig.rank.barrier(&mut || {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })
}

/// Opens an endpoint with the queues of the first one.
fn another(rig: &Rig<'_>) -> Outcome<Arc<Ep>> {
    let ep = Ep::open(&rig.domain, &rig.info)?;
    ep.attach(&rig.av, 0)?;
    ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
    ep.attach(&rig.rx.cq, sys::FI_RECV)?;
    ep.enable()?;
    Ok(ep)
}

/// Returns the median of round trips with the first endpoint of another rank.
fn round_trip(rig: &Rig<'_>, other: usize) -> Outcome<Duration> {
    let (from, into) = (Buf::new(8), Buf::new(8));
    let mut times = vec![Duration::ZERO; ROUND_TRIPS];
    for time in &mut times {
        let begin = Instant::now();
        rig.post(|| rig.ep.recv(into, sys::FI_ADDR_UNSPEC, 1))?;
        if rig.rank.index == PARTNER {
            rig.next(&rig.rx)?;
            rig.post(|| rig.ep.send(from, rig.to(other), 2))?;
        } else {
            rig.post(|| rig.ep.send(from, rig.to(other), 2))?;
            rig.next(&rig.rx)?;
        }
        rig.next(&rig.tx)?;
        *time = begin.elapsed();
    }
    times.sort_unstable();
    times.get(ROUND_TRIPS / 2).copied().ok_or_else(|| Fail::here("no round trip"))
}

fn send_all(rig: &Rig<'_>, ep: &Ep, to: u64) -> Outcome {
    let from = Buf::pattern(MESSAGE, 1);
    for at in 0..MESSAGES {
        rig.post(|| ep.send(from, to, at))?;
    }
    for _ in 0..MESSAGES {
        rig.next(&rig.tx)?;
    }
    Ok(())
}

fn receive_all(rig: &Rig<'_>, ep: &Ep) -> Outcome {
    let into = Buf::new(MESSAGE);
    for at in 0..MESSAGES {
        rig.post(|| ep.recv(into, sys::FI_ADDR_UNSPEC, at))?;
    }
    for _ in 0..MESSAGES {
        check_eq!(rig.next(&rig.rx)?.len, MESSAGE);
    }
    check_eq!(into.differs(MESSAGE, 1), None);
    Ok(())
}
