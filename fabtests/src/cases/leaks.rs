// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Who has closed everything holds nothing: descriptors, shared mappings and threads are counted before and after, for
//! each kind of object, after traffic with several peers, and after one of them was killed.

use std::sync::Arc;

use libfabric_sys as sys;
use scif_fabtests::check_eq;
use scif_fabtests::fi::{AtomicTarget, Buf, Ep, Eq, EqAttr, Errno, Fid, Info, Ioc, Pep};
use scif_fabtests::harness::confine::Holdings;
use scif_fabtests::harness::{Case, Fail, Outcome, Rank, case};
use scif_fabtests::rig::{Ask, Rig};

use super::rma::{REMOTE, from};
use super::slots::bench;
use super::slots_order::{IN_DOMAIN, ON_FABRIC};

pub(crate) const CASES: &[Case] = &[
    case("leaks/objects", 1, objects),
    case("leaks/traffic", 4, |r| traffic(r, sys::FI_PROGRESS_MANUAL)),
    case("leaks/traffic_under_auto_progress", 4, |r| {
        traffic(r, sys::FI_PROGRESS_AUTO)
    }),
    case("leaks/a_peer_is_killed", 4, killed),
    case("leaks/connections", 1, connections),
];

/// How often each thing is done after the first time, which may leave what a process needs once.
const ROUNDS: usize = 5;

/// Does something until nothing is new, and once more often than that: what it holds in the end it held before.
fn no_trace(what: &str, mut act: impl FnMut() -> Outcome) -> Outcome {
    act()?;
    let before = Holdings::now()?;
    for _ in 0..ROUNDS {
        act()?;
    }
    check_eq!(Holdings::now()?, before, "{what}");
    Ok(())
}

fn objects(rank: &Rank) -> Outcome {
    no_trace("fabric and domain", || bench(rank, sys::FI_EP_RDM).map(drop))?;
    for (name, open) in IN_DOMAIN.iter().chain(ON_FABRIC) {
        let bench = bench(rank, sys::FI_EP_MSG)?;
        no_trace(name, || open(&bench)?.close().map_err(Fail::from))?;
    }
    no_trace("everything at once", || {
        let bench = bench(rank, sys::FI_EP_MSG)?;
        let all: Vec<_> = IN_DOMAIN
            .iter()
            .chain(ON_FABRIC)
            .map(|(_, open)| open(&bench))
            .collect::<Outcome<_>>()?;
        all.iter().try_for_each(|object| Ok(object.close()?))
    })
}

fn ask(progress: u32) -> Ask {
    super::atomic::ask().with(|ask| {
        ask.hints.caps |= sys::FI_TAGGED | sys::FI_RMA;
        ask.hints.data_progress = progress;
        ask.wait_obj = sys::FI_WAIT_UNSPEC;
        ask.counters = sys::FI_SEND;
        ask.eq = true;
    })
}

/// Messages of all ways with everybody, and a look into everybody's memory.
fn talk(rig: &Rig<'_>, others: &[usize]) -> Outcome {
    const LENS: [usize; 4] = [8, 3000, 60_000, 1 << 20];
    let memory = Buf::new(4096);
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    for &other in others {
        for (at, len) in LENS.into_iter().enumerate() {
            rig.post(|| rig.ep.trecv(Buf::new(len), sys::FI_ADDR_UNSPEC, at as u64, 0, 1))?;
            rig.post(|| rig.ep.tsend(Buf::new(len), rig.to(other), at as u64, 2))?;
        }
        let there = from(&remotes, other, 0)?;
        let place = AtomicTarget {
            dest: rig.to(other),
            addr: there.addr,
            key: there.key,
            datatype: sys::FI_UINT64,
            op: sys::FI_SUM,
            context: 3,
        };
        let buf = Buf::new(8);
        rig.post(|| rig.ep.write(buf, rig.to(other), there.addr, there.key, 4))?;
        rig.post(|| rig.ep.fetch_atomic(&place, Ioc { buf, count: 1 }, Buf::new(8)))?;
    }
    for _ in 0..others.len() * (LENS.len() + 2) {
        rig.next(&rig.tx)?;
    }
    for _ in 0..others.len() * LENS.len() {
        rig.next(&rig.rx)?;
    }
    rig.barrier()?;
    mr.close()?;
    Ok(())
}

fn traffic(rank: &Rank, progress: u32) -> Outcome {
    let others: Vec<usize> = (0..rank.count).filter(|other| *other != rank.index).collect();
    no_trace("traffic", || {
        let rig = Rig::open(rank, &ask(progress))?;
        talk(&rig, &others)?;
        drop(rig);
        // The others let go of what they share with us as well.
        rank.barrier(&mut || Ok(()))
    })
}

/// The last rank dies in the middle of a message, and with what else was posted for it.
fn killed(rank: &Rank) -> Outcome {
    const SIZE: usize = 4 << 20;
    let victim = rank.count - 1;
    let others: Vec<usize> = (0..rank.count).filter(|other| *other != rank.index).collect();
    // What a process needs once.
    {
        let rig = Rig::open(rank, &ask(sys::FI_PROGRESS_MANUAL))?;
        talk(&rig, &others)?;
    }
    rank.barrier(&mut || Ok(()))?;
    let before = Holdings::now()?;
    let rig = Rig::open(rank, &ask(sys::FI_PROGRESS_MANUAL))?;
    talk(&rig, &others)?;
    if rank.index == victim {
        let buf = Buf::new(SIZE);
        for other in 0..victim {
            rig.post(|| rig.ep.tsend(buf, rig.to(other), 9, 1))?;
        }
        rig.barrier()?;
        // Killed here.
        return rig.barrier();
    }
    rig.post(|| rig.ep.tsend(Buf::new(SIZE), rig.to(victim), 9, 7))?;
    rig.barrier()?;
    if rank.index == 0 {
        rank.kill(victim)?;
    }
    let error = rig.next_error(&rig.tx)?;
    check_eq!((error.context, error.err), (7, Errno::ECONNRESET));
    let left: Vec<usize> = others.iter().copied().filter(|other| *other != victim).collect();
    talk(&rig, &left)?;
    drop(rig);
    rank.barrier(&mut || Ok(()))?;
    check_eq!(Holdings::now()?, before, "after the death of a peer");
    Ok(())
}

/// Connections between endpoints of one process, hung up from either side, refused, and never answered.
fn connections(rank: &Rank) -> Outcome {
    const PATIENCE_MS: i32 = 20_000;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let attr = EqAttr {
        wait_obj: sys::FI_WAIT_UNSPEC,
        ..EqAttr::default()
    };
    no_trace("connections", || {
        let (eq, cq) = (
            Eq::open(&bench.fabric, attr)?,
            bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?,
        );
        let pep = Pep::open(&bench.fabric, &bench.info)?;
        pep.attach(&eq)?;
        pep.listen()?;
        let endpoint = |info: &Info| -> Outcome<Arc<Ep>> {
            let ep = Ep::open(&bench.domain, info)?;
            ep.attach(&eq, 0)?;
            ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
            Ok(ep)
        };
        // Last the one that nobody hears of.
        for end in [1, 2, 3, 0] {
            let caller = endpoint(&bench.info)?;
            caller.connect(&pep.name()?, &[])?;
            if end == 0 {
                continue;
            }
            let request = loop {
                // What is left of the endpoints before comes between.
                let event = eq.sread_cm(&bench.info, 0, PATIENCE_MS)?;
                if let Some(info) = event.info {
                    break info;
                }
            };
            if end == 1 {
                pep.reject(&request, &[])?;
                continue;
            }
            let answerer = endpoint(&request)?;
            answerer.accept(&[])?;
            for _ in 0..2 {
                check_eq!(eq.sread_cm(&bench.info, 0, PATIENCE_MS)?.event, sys::FI_CONNECTED);
            }
            caller.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
            let hangs_up = if end == 2 { &caller } else { &answerer };
            hangs_up.shutdown(0)?;
        }
        Ok(())
    })
}
