// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peers that connect, send one message and close, each at an address of its own. A server whose
//! address vector does not contain them keeps a bounded state.
//!
//! Rank 0 is the server. Rank 1 opens and closes the endpoints of the peers.

use std::ops::Range;
use std::sync::Arc;

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("transient_peers/leave_no_state", 2, leave_no_state),
    case("transient_peers/connect_and_close_at_once", 2, connect_and_close_at_once),
];

/// Number of rounds in which both ranks connect endpoints to each other.
const ROUNDS: u64 = 200;
/// Number of endpoints of each rank in a round.
const ENDPOINTS: usize = 8;
/// Number of rounds after which tables and heap have their size. The names of the last 1024 closed
/// endpoints of other hosts are kept.
const FIRST_ROUNDS: u64 = 130;
/// Bytes by which the resident memory may grow in the other rounds: 1900 for each endpoint. A
/// connection that stays has a hundred times as many.
const ROUNDS_GROWTH_MAX: u64 = 1 << 20;

/// Number of peers before the first measurement, after which tables and heap have their size.
const WARM_UP: usize = 500;
/// Number of peers between the two measurements, without another number in `CONFORMANCE_PEERS`:
/// `--wrap "env CONFORMANCE_PEERS=1000000"` also extends the time limit.
const MEASURED: usize = 3_000;
/// Number of peers that are connected at the same time.
const TOGETHER: usize = 50;
/// Ports of the peers. When all have been used, the first is used again.
const PORTS: Range<u16> = 10_000..60_000;
/// Bytes by which the resident memory of the server may grow, about 110 for each peer. A server
/// that remembered each peer would keep about 250 bytes for it.
const GROWTH_MAX: u64 = 320 << 10;
/// Growth limit for any larger number of peers, as SECURITY.md states it.
const GROWTH_MAX_OF_ALL: u64 = 1 << 20;

fn measured() -> usize {
    let other = std::env::var("CONFORMANCE_PEERS").ok();
    other.and_then(|count| count.parse().ok()).unwrap_or(MEASURED)
}

fn leave_no_state(rank: &Rank) -> Outcome {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_TAGGED).with(|spec| spec.eq = true);
    let mut rig = Rig::open(rank, &spec)?;
    if rig.info.addr_format() != sys::FI_SOCKADDR_IN {
        return Err(Fail::NotRun("addresses are not sockaddr_in".into()));
    }
    if rank.index == 0 {
        let idle = sandbox::open_files()?;
        serve(&rig, WARM_UP)?;
        let before = memory_without_peers(&rig, idle)?;
        rig.barrier()?;
        serve(&rig, measured())?;
        let grown = memory_without_peers(&rig, idle)?.saturating_sub(before);
        rank.step(format_args!("grew by {grown} bytes"));
        let limit = if measured() > MEASURED { GROWTH_MAX_OF_ALL } else { GROWTH_MAX };
        check!(grown <= limit, "{} peers left {grown} bytes", measured());
    } else {
        let mut ports = PORTS.cycle();
        for _ in 0..WARM_UP / TOGETHER {
            visit(&mut rig, &mut ports)?;
        }
        rig.barrier()?;
        for _ in 0..measured() / TOGETHER {
            visit(&mut rig, &mut ports)?;
        }
    }
    rig.barrier()
}

/// Returns the resident memory in bytes once every connection is closed, that is once no more than
/// `idle` descriptors are open.
fn memory_without_peers(rig: &Rig<'_>, idle: usize) -> Outcome<u64> {
    rig.wait("the end of all connections", || Ok((sandbox::open_files()? <= idle).then_some(())))?;
    sandbox::memory("VmRSS:")
}

/// Receives a message of each peer.
fn serve(rig: &Rig<'_>, peers: usize) -> Outcome {
    let to = Buf::new(8);
    for _ in 0..peers / TOGETHER {
        for _ in 0..TOGETHER {
            rig.post(|| rig.ep.trecv(to, sys::FI_ADDR_UNSPEC, 1, 0, 2))?;
        }
        for _ in 0..TOGETHER {
            rig.received(2)?;
        }
    }
    Ok(())
}

/// Opens an endpoint at the next free port.
fn open(rig: &mut Rig<'_>, ports: &mut impl Iterator<Item = u16>) -> Outcome<Arc<Ep>> {
    let mut name = rig.ep.name()?;
    for port in ports {
        if let Some(bytes) = name.get_mut(2..4) {
            bytes.copy_from_slice(&port.to_be_bytes());
        }
        rig.info.set_src_addr(&name);
        match Ep::open(&rig.domain, &rig.info) {
            Err(Errno::EADDRINUSE) => continue,
            opened => return enabled(rig, opened?),
        }
    }
    Err(Fail::here("no port is free"))
}

/// Opens some peers, delivers a message of each to the server, and closes them.
fn visit(rig: &mut Rig<'_>, ports: &mut impl Iterator<Item = u16>) -> Outcome {
    let peers: Vec<Arc<Ep>> = (0..TOGETHER).map(|_| open(rig, ports)).collect::<Outcome<_>>()?;
    let (from, flags) = (Buf::new(8), sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION);
    for ep in &peers {
        rig.post(|| ep.tsendmsg(&[from], TaggedMsg::to(rig.to(0), 1, 3), flags))?;
    }
    for _ in &peers {
        rig.sent(3)?;
    }
    Ok(())
}

/// Tests that the endpoints of two ranks connect to each other at the same time, and close while
/// messages are under way: each message before comes once, and no descriptor and no memory is left.
fn connect_and_close_at_once(rank: &Rank) -> Outcome {
    const LONGEST: usize = 40_000;
    const SIZES: [usize; 4] = [8, 3000, LONGEST, 200];
    let rig = Rig::open(rank, &Spec::messages(true))?;
    let idle = sandbox::open_files()?;
    // Of both receives, the sends, and the last send of each endpoint.
    let memory: Vec<Buf> = (0..4 * ENDPOINTS).map(|_| Buf::new(LONGEST)).collect();
    let part = |number: usize, len: usize| match memory.get(number) {
        Some(buf) => Ok(buf.sub(0, len)),
        None => Err(Fail::here("no such buffer")),
    };
    let mut before = 0;
    for round in 0..ROUNDS {
        if round == FIRST_ROUNDS {
            before = memory_without_peers(&rig, idle)?;
        }
        let endpoints: Vec<Arc<Ep>> =
            (0..ENDPOINTS).map(|_| open_any(&rig)).collect::<Outcome<_>>()?;
        let mut names = Vec::new();
        for ep in &endpoints {
            names.extend(ep.name()?);
        }
        let all = rig.exchange(&names)?;
        let theirs = all.get(rank.peer()).ok_or_else(|| Fail::here("no names of the peer"))?;
        let (count, peers) = rig.av.insert_many(theirs, ENDPOINTS, 0)?;
        check_eq!(count, ENDPOINTS);
        let seed = |from: usize, at: usize| round * 100 + (from * ENDPOINTS + at) as u64;
        let len = |at: usize| {
            SIZES
                .get((at + usize::try_from(round).unwrap_or(0)) % SIZES.len())
                .copied()
                .unwrap_or(8)
        };
        let mut bufs = Vec::new();
        // Endpoint `at` communicates with the same one of the peer, and sends to the next one.
        for (at, ep) in endpoints.iter().enumerate() {
            for from in [at, (at + ENDPOINTS - 1) % ENDPOINTS] {
                let buf = part(bufs.len(), len(from))?;
                let tag = u64::from(from != at);
                rig.post(|| ep.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, bufs.len()))?;
                bufs.push((buf, seed(rank.peer(), from)));
            }
        }
        rig.barrier()?;
        for (at, ep) in endpoints.iter().enumerate() {
            let from = part(2 * ENDPOINTS + at, len(at))?;
            from.fill_pattern(seed(rank.index, at));
            for (tag, to) in [(0, at), (1, (at + 1) % ENDPOINTS)] {
                let to = peers.get(to).copied().unwrap_or(sys::FI_ADDR_NOTAVAIL);
                rig.post(|| ep.tsend(from, to, tag, at))?;
            }
        }
        for _ in 0..2 * ENDPOINTS {
            let entry = rig.next(&rig.rx)?;
            let received = bufs.get(entry.context).ok_or_else(|| Fail::here("no such receive"))?;
            check_eq!(received.0.differs(entry.len, received.1), None);
            check_eq!(entry.len, received.0.len());
            rig.next(&rig.tx)?;
        }
        // A close waits for its own messages for a limited time only.
        rig.barrier()?;
        for (at, (ep, to)) in endpoints.iter().zip(&peers).enumerate() {
            let sent = ep.tsend(part(3 * ENDPOINTS + at, LONGEST)?, *to, 0, 1);
            check!(matches!(sent, Ok(()) | Err(Errno::EAGAIN)), "{sent:?}");
        }
        drop(endpoints);
        rig.av.remove(&peers, 0)?;
        // Of the sends that the close has cancelled, or not.
        rig.barrier()?;
        rig.pump()?;
        while rig.tx.take().is_some() {}
    }
    let grown = memory_without_peers(&rig, idle)?.saturating_sub(before);
    check!(grown <= ROUNDS_GROWTH_MAX, "{} rounds left {grown} bytes", ROUNDS - FIRST_ROUNDS);
    rig.barrier()
}

/// Opens an endpoint at any port.
fn open_any(rig: &Rig<'_>) -> Outcome<Arc<Ep>> {
    enabled(rig, Ep::open(&rig.domain, &rig.info)?)
}

/// Binds the objects of the rig to an endpoint, and enables it.
fn enabled(rig: &Rig<'_>, ep: Arc<Ep>) -> Outcome<Arc<Ep>> {
    ep.attach(&rig.av, 0)?;
    ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
    ep.attach(&rig.rx.cq, sys::FI_RECV)?;
    ep.enable()?;
    Ok(ep)
}
