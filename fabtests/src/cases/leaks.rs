// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests for leaks: descriptors, shared mappings and threads are counted before and after. They
//! cover each kind of object with its dependent objects, traffic with several peers, and the death
//! of one of them.

use std::sync::Arc;

use scif_fabtests::fi::{Operation, WorkRequest};
use scif_fabtests::harness::fail::Context;
use scif_fabtests::harness::sandbox::Holdings;
use scif_fabtests::prelude::*;

use super::ops_tables::bench;
use super::ops_tables_kinds::{Group, Scalable};
use super::ops_tables_order::{IN_DOMAIN, ON_FABRIC};
use super::peer::{needs_peers, side_with};
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("leaks/objects", 1, objects),
    case("leaks/objects_of_several", 1, objects_of_several),
    case("leaks/buffers_filled_by_a_peer", 1, peer_filled),
    case("leaks/traffic", 4, |r| traffic(r, sys::FI_PROGRESS_MANUAL)),
    case("leaks/traffic_under_auto_progress", 4, |r| traffic(r, sys::FI_PROGRESS_AUTO)),
    case("leaks/a_peer_is_killed", 4, killed),
    case("leaks/connections", 1, connections),
];

/// Number of repetitions after the first, which may leave one-time resources of the process.
const ROUNDS: usize = 5;

/// Time limit in milliseconds for an event. It guards against hangs; no measurement uses it.
const PATIENCE_MS: i32 = 20_000;

/// Repeats an action and checks that the resources after all repetitions equal those after the
/// first.
fn no_trace(subject: &str, mut act: impl FnMut() -> Outcome) -> Outcome {
    act()?;
    let before = Holdings::now()?;
    for _ in 0..ROUNDS {
        act()?;
    }
    check_eq!(Holdings::now()?, before, "{subject}");
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

/// Function that opens, uses and closes an object with all its dependent objects.
type Cycle = fn(&Rank) -> Outcome;

/// Objects that need more than a domain. Each function closes all it opens.
const OF_SEVERAL: &[(&str, Cycle)] = &[
    ("a named vector", |r| {
        let spec = Spec::caps(sys::FI_MSG | sys::FI_SHARED_AV);
        let rig = Rig::open_alone(r, &spec)?;
        let name = format!("leaks.{:x}", r.target.seed);
        let attr = AvAttr { name: Some(&name), ..AvAttr::default() };
        // A second opener reads the entries of the first.
        let (av, _) = Av::open_with(&rig.domain, &attr)?;
        let (again, _) = Av::open_with(&rig.domain, &attr)?;
        let addr = av.insert(&rig.ep.name()?)?;
        again.lookup(addr, 64)?;
        again.close()?;
        Ok(av.close()?)
    }),
    ("a vector that tells of its events", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let eq = bench.eq(sys::FI_WAIT_UNSPEC)?;
        let av = Av::open_named(&bench.domain, sys::FI_AV_TABLE, 4, None, sys::FI_EVENT)?;
        av.bind(&*eq, 0)?;
        av.close()?;
        Ok(eq.close()?)
    }),
    ("a scalable endpoint with contexts", |r| {
        let Scalable { bench, sep, .. } = Scalable::open(r)?;
        let mut contexts = Vec::new();
        for index in 0..2 {
            let cq = bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?;
            let (tx, rx) = (sep.tx_context(index, None)?, sep.rx_context(index, None)?);
            tx.attach(&cq, sys::FI_TRANSMIT)?;
            rx.attach(&cq, sys::FI_RECV)?;
            tx.enable()?;
            rx.enable()?;
            contexts.extend([tx, rx]);
        }
        sep.enable()?;
        contexts.iter().try_for_each(|context| context.close())?;
        Ok(sep.close()?)
    }),
    ("a set of addresses", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        Ok(AvSet::open(&bench.av()?, AvSetAttr::NONE)?.close()?)
    }),
    ("groups, joined and never joined by others", |r| {
        let group = Group::open(r)?;
        let (alone, waiting) = (group.join(&[group.own])?, group.join(&[group.own, group.other])?);
        group.eq.sread(PATIENCE_MS, 0)?;
        alone.close()?;
        waiting.close()?;
        Ok(group.ep.close()?)
    }),
    ("an alias, closed before its endpoint and behind it", |r| {
        for alias_first in [true, false] {
            let rig = Rig::open_alone(r, &Spec::messages(false))?;
            let alias = rig.ep.alias(sys::FI_TRANSMIT | sys::FI_COMPLETION)?;
            let own = rig.av.insert(&rig.ep.name()?)?;
            rig.post(|| alias.send(Buf::new(8), own, 1))?;
            let (one, other) = if alias_first { (&alias, &rig.ep) } else { (&rig.ep, &alias) };
            one.close()?;
            other.close()?;
        }
        Ok(())
    }),
    ("queued work, done, flushed and left", |r| {
        let rig = Rig::open(r, &super::trigger::spec())?;
        let (cntr, value) = (super::trigger::counter(&rig)?, super::trigger::counter(&rig)?);
        for threshold in [1, 2, 3] {
            let spec = WorkRequest {
                cntr: &cntr,
                threshold,
                completion: Some(&value),
                context: 0,
                flags: 0,
            };
            let send = Operation::Send { buf: Buf::new(100_000), dest: rig.to(0), tag: None };
            rig.domain.queue_work(&rig.ep, &spec, send)?;
            if threshold == 2 {
                rig.ep.recv(Buf::new(100_000), sys::FI_ADDR_UNSPEC, 1)?;
                cntr.add(1)?;
                rig.received(1)?;
                rig.domain.flush_work(None)?;
            }
        }
        // Waiting work ends with its endpoint; the counters are busy until then.
        check_eq!(cntr.close(), Err(Errno::EBUSY));
        rig.ep.close()?;
        cntr.close()?;
        Ok(value.close()?)
    }),
];

fn objects_of_several(rank: &Rank) -> Outcome {
    for (name, scene) in OF_SEVERAL {
        rank.step(name);
        no_trace(name, || scene(rank)).context(|| name)?;
    }
    Ok(())
}

/// Tests a queue, a counter and a receive context of another provider, with an endpoint that uses
/// them and an unreceived message.
fn peer_filled(rank: &Rank) -> Outcome {
    needs_peers(rank)?;
    no_trace("what a peer fills", || {
        let side = side_with(rank, &super::peer::spec())?;
        let own = side.meet()?.first().copied().unwrap_or(0);
        for tag in [1, 2] {
            side.post(|ep| ep.tsend(Buf::new(100_000), own, tag, 1))?;
        }
        side.until(|owner| owner.waiting() == 2)?;
        side.owner.receive(Some((1, 0)), Buf::new(100_000), 2)?;
        side.written(2)?;
        drop(side);
        Ok(())
    })
}

fn spec(progress: u32) -> Spec {
    super::atomic::spec().with(|spec| {
        spec.hints.caps |= sys::FI_TAGGED | sys::FI_RMA;
        spec.hints.data_progress = progress;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
        spec.counters = sys::FI_SEND;
        spec.eq = true;
    })
}

/// Sends messages by all protocols to all others, and reads the memory of each.
fn talk(rig: &Rig<'_>, others: &[usize]) -> Outcome {
    const LENS: [usize; 4] = [8, 3000, 60_000, 1 << 20];
    let (mr, remotes) = rig.share(Buf::new(4096), REMOTE)?;
    for &other in others {
        for (at, len) in LENS.into_iter().enumerate() {
            rig.post(|| rig.ep.trecv(Buf::new(len), sys::FI_ADDR_UNSPEC, at as u64, 0, 1))?;
            rig.post(|| rig.ep.tsend(Buf::new(len), rig.to(other), at as u64, 2))?;
        }
        let there = from(&remotes, other, 0)?;
        let place = there.sum(rig.to(other), 3);
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
        let rig = Rig::open(rank, &spec(progress))?;
        talk(&rig, &others)?;
        drop(rig);
        // The others also release what they share with this rank.
        rank.barrier(&mut || Ok(()))
    })
}

/// Tests the death of the last rank during a message, with other operations posted for it.
fn killed(rank: &Rank) -> Outcome {
    const SIZE: usize = 4 << 20;
    let victim = rank.count - 1;
    let others: Vec<usize> = (0..rank.count).filter(|other| *other != rank.index).collect();
    // One-time resources of the process.
    {
        let rig = Rig::open(rank, &spec(sys::FI_PROGRESS_MANUAL))?;
        talk(&rig, &others)?;
    }
    rank.barrier(&mut || Ok(()))?;
    let before = Holdings::now()?;
    let rig = Rig::open(rank, &spec(sys::FI_PROGRESS_MANUAL))?;
    talk(&rig, &others)?;
    if rank.index == victim {
        let buf = Buf::new(SIZE);
        for other in 0..victim {
            rig.post(|| rig.ep.tsend(buf, rig.to(other), 9, 1))?;
        }
        rig.barrier()?;
        // The rank is killed in this barrier.
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

/// Tests connections between endpoints of one process: shut down from either side, rejected, and
/// never accepted.
fn connections(rank: &Rank) -> Outcome {
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
    no_trace("connections", || {
        let (eq, cq) = (Eq::open(&bench.fabric, attr)?, bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?);
        let pep = Pep::open(&bench.fabric, &bench.info)?;
        pep.attach(&eq)?;
        pep.listen()?;
        let endpoint = |info: &Info| -> Outcome<Arc<Ep>> {
            let ep = Ep::open(&bench.domain, info)?;
            ep.attach(&eq, 0)?;
            ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
            Ok(ep)
        };
        // The request that stays unread comes last.
        for end in [1, 2, 3, 0] {
            let caller = endpoint(&bench.info)?;
            caller.connect(&pep.name()?, &[])?;
            if end == 0 {
                continue;
            }
            let request = loop {
                // Events of former endpoints may come first.
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
