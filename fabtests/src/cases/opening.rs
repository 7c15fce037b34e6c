// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Opening objects with every attribute, up to the reported limits. Mirrors fi_av(3), fi_cq(3),
//! fi_cntr(3), fi_eq(3), fi_domain(3), the attributes.
//!
//! Later operations on the objects are tested elsewhere.

use std::sync::Arc;

use scif_fabtests::harness::fail::Context;
use scif_fabtests::prelude::*;

/// Wait objects that queues and counters support.
const WAIT_OBJECTS: [sys::fi_wait_obj; 5] = [
    sys::FI_WAIT_NONE,
    sys::FI_WAIT_UNSPEC,
    sys::FI_WAIT_FD,
    sys::FI_WAIT_POLLFD,
    sys::FI_WAIT_YIELD,
];

pub(crate) const CASES: &[Case] = &[
    case("open/domains", 1, |r| domains(&rig(r)?)),
    case("open/vectors", 1, |r| vectors(&rig(r)?)),
    case("open/queues", 1, |r| queues(&rig(r)?)),
    case("open/event_queues", 1, |r| event_queues(&rig(r)?)),
    case("open/counters", 1, |r| counters(&rig(r)?)),
    case("open/counter_of_bytes", 1, counter_of_bytes),
    case("open/regions", 1, |r| regions(&rig(r)?)),
];

fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    if rank.target.prov == "scif" {
        Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_RMA))
    } else {
        Err(Fail::NotRun("answers of another provider".into()))
    }
}

/// Tests several domains of one info, each with an endpoint that sends to itself.
fn domains(rig: &Rig<'_>) -> Outcome {
    let mut open = Vec::new();
    for index in 0..16 {
        let domain = Domain::open(&rig.fabric, &rig.info)
            .map_err(Fail::from)
            .context(|| format!("domain {index}"))?;
        let (cq, av) =
            (Cq::open(&domain, CqAttr::default())?, Av::open(&domain, sys::FI_AV_TABLE, 1)?);
        let ep = Ep::open(&domain, &rig.info)?;
        ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.attach(&av, 0)?;
        ep.enable()?;
        let own = av.insert(&ep.name()?)?;
        open.push((domain, cq, ep, own));
    }
    for (index, (_, cq, ep, own)) in open.iter().enumerate() {
        ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, index)?;
        ep.inject(Buf::new(8), *own)?;
        let came = loop {
            match cq.read(1) {
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                other => break other?,
            }
        };
        check_eq!(came.first().map(|entry| entry.context), Some(index));
    }
    Ok(())
}

/// Tests every type with every flag; an unknown flag is refused.
fn vectors(rig: &Rig<'_>) -> Outcome {
    let name = rig.ep.name()?;
    for av_type in [sys::FI_AV_UNSPEC, sys::FI_AV_MAP, sys::FI_AV_TABLE] {
        for count in [0, 1, 100_000] {
            for flags in [0, sys::FI_EVENT, sys::FI_SYMMETRIC, sys::FI_READ, sys::FI_PEER] {
                let attr = AvAttr { av_type, count, flags, ..AvAttr::default() };
                let subject = || format!("type {av_type}, count {count}, flags {flags:#x}");
                let (av, _) =
                    Av::open_with(&rig.domain, &attr).map_err(Fail::from).context(subject)?;
                if flags != sys::FI_EVENT {
                    check_eq!(av.insert(&name), Ok(0), "{}", subject());
                    check_eq!(av.insert(&name), Ok(0), "{}, again", subject());
                    check_eq!(av.lookup(0, 64)?.0, name);
                }
            }
        }
    }
    let unknown = AvAttr { flags: 1 << 50, ..AvAttr::default() };
    check!(Av::open_with(&rig.domain, &unknown).is_err(), "an unknown flag");
    let too_many_bits = AvAttr { rx_ctx_bits: 64, ..AvAttr::default() };
    check!(Av::open_with(&rig.domain, &too_many_bits).is_err(), "64 bits of contexts");
    Ok(())
}

fn queues(rig: &Rig<'_>) -> Outcome {
    let open = |wait_obj, flags, size| {
        let attr = CqAttr { wait_obj, flags, size, ..CqAttr::default() };
        Cq::open(&rig.domain, attr)
    };
    for wait_obj in WAIT_OBJECTS {
        for flags in [0, sys::FI_AFFINITY] {
            open(wait_obj, flags, 1)
                .map_err(Fail::from)
                .context(|| format!("object {wait_obj}, flags {flags:#x}"))?;
        }
    }
    check_eq!(open(sys::FI_WAIT_MUTEX_COND, 0, 1).err(), Some(Errno::EINVAL));
    check_eq!(open(sys::FI_WAIT_SET, 0, 1).err(), Some(Errno::EINVAL), "no set");
    check!(open(sys::FI_WAIT_NONE, 1 << 50, 1).is_err(), "an unknown flag");
    let all: Vec<Arc<Cq>> =
        (0..1000).map(|_| open(sys::FI_WAIT_NONE, 0, 16)).collect::<Result<_, _>>()?;
    check_eq!(all.len(), 1000);
    Ok(())
}

fn event_queues(rig: &Rig<'_>) -> Outcome {
    let open = |wait_obj, flags, size| {
        let attr = EqAttr { wait_obj, flags, size };
        Eq::open(&rig.fabric, attr)
    };
    for wait_obj in WAIT_OBJECTS {
        for flags in [0, sys::FI_WRITE, sys::FI_WRITE | sys::FI_AFFINITY] {
            for size in [0, 1, 5000] {
                let eq = open(wait_obj, flags, size)
                    .map_err(Fail::from)
                    .context(|| format!("object {wait_obj}, flags {flags:#x}"))?;
                let written = eq.write(sys::FI_NOTIFY, 1, 2);
                check_eq!(written.is_ok(), flags & sys::FI_WRITE != 0);
            }
        }
    }
    check_eq!(open(sys::FI_WAIT_MUTEX_COND, 0, 1).err(), Some(Errno::EINVAL));
    check_eq!(open(sys::FI_WAIT_SET, 0, 1).err(), Some(Errno::EINVAL), "no set");
    check!(open(sys::FI_WAIT_NONE, 1 << 50, 1).is_err(), "an unknown flag");
    Ok(())
}

/// Tests as many independent counters as the domain reports.
fn counters(rig: &Rig<'_>) -> Outcome {
    let count = rig.info.domain().cntr_cnt;
    check!(count > 0);
    let all: Vec<Arc<Cntr>> = (0..count)
        .map(|_| Cntr::open(&rig.domain, CntrAttr::default()))
        .collect::<Result<_, _>>()?;
    for (value, cntr) in (1..).zip(&all) {
        cntr.set(value)?;
        cntr.seterr(value + 1)?;
    }
    for (value, cntr) in (1..).zip(&all) {
        check_eq!((cntr.read()?, cntr.readerr()?), (value, value + 1));
    }
    let open = |events, wait_obj, flags| {
        let attr = CntrAttr { events, wait_obj, flags };
        Cntr::open(&rig.domain, attr).map(drop)
    };
    for wait_obj in WAIT_OBJECTS {
        check_eq!(open(sys::FI_CNTR_EVENTS_COMP, wait_obj, 0), Ok(()), "object {wait_obj}");
    }
    let mutex = open(sys::FI_CNTR_EVENTS_COMP, sys::FI_WAIT_MUTEX_COND, 0);
    check_eq!(mutex, Err(Errno::EINVAL));
    check_eq!(open(99, sys::FI_WAIT_NONE, 0), Err(Errno::EINVAL), "unknown events");
    check!(open(sys::FI_CNTR_EVENTS_COMP, sys::FI_WAIT_NONE, 1 << 50).is_err(), "an unknown flag");
    Ok(())
}

/// Tests that counters count operations, not bytes.
fn counter_of_bytes(rank: &Rank) -> Outcome {
    needs_library(rank, version(1, 21), "counters of bytes")?;
    let rig = rig(rank)?;
    let open = |events, wait_obj| {
        let attr = CntrAttr { events, wait_obj, flags: 0 };
        Cntr::open(&rig.domain, attr).map(drop)
    };
    for wait_obj in [sys::FI_WAIT_NONE, sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let bytes = open(sys::FI_CNTR_EVENTS_BYTES, wait_obj);
        check_eq!(bytes, Err(Errno::ENOSYS), "object {wait_obj}");
        check_eq!(open(sys::FI_CNTR_EVENTS_COMP, wait_obj), Ok(()), "object {wait_obj}");
    }
    Ok(())
}

/// Tests every right alone and with every other, in each of the calls.
fn regions(rig: &Rig<'_>) -> Outcome {
    let rights = [
        sys::FI_SEND,
        sys::FI_RECV,
        sys::FI_READ,
        sys::FI_WRITE,
        sys::FI_REMOTE_READ,
        sys::FI_REMOTE_WRITE,
    ];
    let buf = Buf::new(4096);
    for set in 0..1_u64 << rights.len() {
        let chosen = rights.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        let request =
            MrRequest { access: chosen.map(|(_, right)| right).sum(), key: 1000 + set, flags: 0 };
        let pieces = [buf.sub(0, 64), buf.sub(1024, 64)];
        for mr in [
            Mr::reg(&rig.domain, buf, request)?,
            Mr::regattr(&rig.domain, &[buf], MrRequest { key: request.key + 100, ..request }, 1)?,
            Mr::regv(&rig.domain, &pieces, MrRequest { key: request.key + 200, ..request })?,
        ] {
            mr.key()?;
            check_eq!(mr.close(), Ok(()), "access {:#x}", request.access);
        }
    }
    Ok(())
}
