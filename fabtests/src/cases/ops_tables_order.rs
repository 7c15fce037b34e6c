// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Objects in the wrong order and place. An object closed before its children or bound objects is
//! busy and stays intact, and an invalid binding is refused. Mirrors fi_close in fi_fabric(3), and
//! the bind calls of each object.

use std::sync::Arc;

use scif_fabtests::harness::fail::Context;
use scif_fabtests::prelude::*;

use super::ops_tables::{Bench, bench};
use super::ops_tables_kinds::{Group, Scalable, owned};
use super::peer::needs_peers;

pub(crate) const CASES: &[Case] = &[
    case("slots/busy_parents", 1, busy),
    case("slots/busy_when_bound", 1, bound),
    case("slots/busy_scalable_endpoints", 1, scalable),
    case("slots/busy_groups", 1, groups),
    case("slots/busy_owners", 1, owners),
    case("slots/wrong_bindings", 1, wrong_bindings),
    case("slots/wrong_objects_to_wait_for", 1, wrong_waits),
];

pub(super) type Object = Arc<dyn Fid>;
/// Function that opens a child of the existing objects.
pub(super) type Open = fn(&Bench) -> Outcome<Object>;

/// Objects opened in a domain.
pub(super) const IN_DOMAIN: &[(&str, Open)] = &[
    ("an endpoint", |b| Ok(Ep::open(&b.domain, &b.info)?)),
    ("a vector", |b| Ok(Av::open(&b.domain, sys::FI_AV_UNSPEC, 1)?)),
    ("a queue", |b| Ok(b.cq(sys::FI_CQ_FORMAT_CONTEXT)?)),
    ("a counter", |b| Ok(Cntr::open(&b.domain, CntrAttr::default())?)),
    ("a region", |b| Ok(b.mr()?)),
    ("a shared receive context", |b| Ok(Ep::shared_receive(&b.domain)?)),
    ("a shared transmit context", |b| Ok(Stx::open(&b.domain)?)),
    ("a poll set", |b| Ok(Arc::new(PollSet::open(&b.domain, 0)?))),
];

/// Objects opened on a fabric, besides the domain.
pub(super) const ON_FABRIC: &[(&str, Open)] = &[
    ("an event queue", |b| Ok(b.eq(sys::FI_WAIT_UNSPEC)?)),
    ("a passive endpoint", |b| Ok(Pep::open(&b.fabric, &b.info)?)),
    ("a wait set", |b| Ok(Arc::new(WaitSet::open(&b.fabric, sys::FI_WAIT_FD, 0)?))),
];

/// Tests that a child keeps its parent open, and that the refused close changes neither.
fn busy(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    for (name, open) in IN_DOMAIN {
        for _ in 0..2 {
            let child = open(&bench).context(|| name)?;
            check_eq!(bench.domain.close(), Err(Errno::EBUSY), "the domain with {name}");
            check_eq!(bench.fabric.close(), Err(Errno::EBUSY), "the fabric with {name}");
            check_eq!(child.close(), Ok(()), "{name}");
        }
    }
    check_eq!(bench.domain.close(), Ok(()));
    for (name, open) in ON_FABRIC {
        for _ in 0..2 {
            let child = open(&bench).context(|| name)?;
            check_eq!(bench.fabric.close(), Err(Errno::EBUSY), "the fabric with {name}");
            check_eq!(child.close(), Ok(()), "{name}");
        }
    }
    check_eq!(bench.fabric.close(), Ok(()));
    Ok(())
}

/// Tests that a bound object stays open as long as the object it is bound to, enabled or not, and
/// that it is bound once.
fn bound(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    for enable in [false, true] {
        let bench = bench(rank, sys::FI_EP_RDM)?;
        let ep = Ep::open(&bench.domain, &bench.info)?;
        let av = Av::open(&bench.domain, sys::FI_AV_UNSPEC, 1)?;
        let cq = bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?;
        let eq = bench.eq(sys::FI_WAIT_UNSPEC)?;
        let cntr = Cntr::open(&bench.domain, CntrAttr::default())?;
        let srx = Ep::shared_receive(&bench.domain)?;
        let stx = Stx::open(&bench.domain)?;
        let all: [(&str, Object, u64); 6] = [
            ("the vector", av, 0),
            ("the queue", cq, sys::FI_TRANSMIT | sys::FI_RECV),
            ("the event queue", eq, 0),
            ("the counter", cntr, sys::FI_SEND),
            ("the shared receive context", srx, 0),
            ("the shared transmit context", stx, 0),
        ];
        for (name, object, flags) in &all {
            ep.bind(object.as_ref(), *flags).map_err(Fail::from).context(|| name)?;
            check_eq!(object.close(), Err(Errno::EBUSY), "{name}, bound");
        }
        if enable {
            ep.enable()?;
        }
        for (name, object, _) in &all {
            check_eq!(object.close(), Err(Errno::EBUSY), "{name}, enabled {enable}");
        }
        check_eq!(ep.close(), Ok(()));
        for (name, object, _) in &all {
            check_eq!(object.close(), Ok(()), "{name}, afterwards");
        }
        check_eq!(bench.domain.close(), Ok(()));
        check_eq!(bench.fabric.close(), Ok(()));
    }
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let eq = bench.eq(sys::FI_WAIT_UNSPEC)?;
    let pep = Pep::open(&bench.fabric, &bench.info)?;
    pep.bind(&*eq, 0)?;
    check_eq!(eq.close(), Err(Errno::EBUSY), "the event queue of a passive endpoint");
    check_eq!(pep.close(), Ok(()));
    bench.domain.bind(&*eq, 0)?;
    check_eq!(eq.close(), Err(Errno::EBUSY), "the event queue of a domain");
    let (mr, cntr) = (bench.mr()?, Cntr::open(&bench.domain, CntrAttr::default())?);
    mr.bind(&*cntr, sys::FI_REMOTE_WRITE)?;
    check_eq!(cntr.close(), Err(Errno::EBUSY), "the counter of a region");
    check_eq!(mr.close(), Ok(()));
    check_eq!(cntr.close(), Ok(()));
    check_eq!(bench.domain.close(), Ok(()));
    check_eq!(eq.close(), Ok(()));
    check_eq!(bench.fabric.close(), Ok(()));
    Ok(())
}

/// Tests a scalable endpoint, its contexts and their bound objects from the bottom up: each is busy
/// until the one above is closed.
fn scalable(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    for enable in [false, true] {
        let Scalable { bench, sep, av } = Scalable::open(rank)?;
        let (tx, rx) = (sep.tx_context(0, None)?, sep.rx_context(1, None)?);
        let (sent, received) =
            (bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?, bench.cq(sys::FI_CQ_FORMAT_CONTEXT)?);
        let cntr = Cntr::open(&bench.domain, CntrAttr::default())?;
        tx.bind(&*sent, sys::FI_TRANSMIT)?;
        tx.bind(&*cntr, sys::FI_SEND)?;
        rx.bind(&*received, sys::FI_RECV)?;
        if enable {
            tx.enable()?;
            rx.enable()?;
            sep.enable()?;
        }
        let all: [(&str, Object); 7] = [
            ("a transmit context", tx),
            ("a receive context", rx),
            ("the queue of what was sent", sent),
            ("the queue of what came", received),
            ("the counter", cntr),
            ("the endpoint", sep),
            ("the vector", av),
        ];
        let (contexts, below) = all.split_at(2);
        for (context, object) in contexts {
            // Queues of the closed context are free, but not those of the other; the common objects
            // are busy.
            for (name, other) in below
                .iter()
                .filter(|(name, _)| name.ends_with("endpoint") || name.ends_with("vector"))
            {
                check_eq!(other.close(), Err(Errno::EBUSY), "{name} before {context}");
            }
            check_eq!(bench.domain.close(), Err(Errno::EBUSY), "the domain before {context}");
            check_eq!(object.close(), Ok(()), "{context}, enabled {enable}");
        }
        for (name, object) in below {
            if *name == "the vector" {
                check_eq!(bench.domain.close(), Err(Errno::EBUSY), "the domain before {name}");
            }
            check_eq!(object.close(), Ok(()), "{name}, enabled {enable}");
        }
        check_eq!(bench.domain.close(), Ok(()));
        check_eq!(bench.fabric.close(), Ok(()));
    }
    Ok(())
}

/// Tests that a vector is busy while it has a set. The close of an endpoint ends its group, which
/// must still be closed.
fn groups(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let group = Group::open(rank)?;
    let set = AvSet::open(&group.av, AvSetAttr::NONE)?;
    check_eq!(group.av.close(), Err(Errno::EBUSY), "the vector of a set");
    check_eq!(group.bench.domain.close(), Err(Errno::EBUSY));
    check_eq!(set.close(), Ok(()));
    let mc = group.join(&[group.own])?;
    check_eq!(group.eq.close(), Err(Errno::EBUSY), "the queue of what was joined");
    check_eq!(group.ep.close(), Ok(()), "an endpoint in a group");
    check_eq!((group.eq.close(), group.av.close()), (Ok(()), Ok(())));
    check_eq!(mc.close(), Ok(()));
    Ok(())
}

/// Tests that objects of another provider are children and can be bound like any other.
fn owners(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    needs_peers(rank)?;
    let (bench, owner): (Bench, &'static Owner) = owned(rank)?;
    let ep = Ep::open(&bench.domain, &bench.info)?;
    let all: [(&str, Object, u64); 3] = [
        ("a queue", owner.open_cq(&bench.domain)?, sys::FI_TRANSMIT | sys::FI_RECV),
        ("a counter", owner.open_cntr(&bench.domain)?, sys::FI_SEND),
        ("a receive context", owner.open_srx(&bench.domain)?, 0),
    ];
    for (name, object, flags) in &all {
        ep.bind(object.as_ref(), *flags)?;
        check_eq!(object.close(), Err(Errno::EBUSY), "{name}, bound");
    }
    check_eq!(ep.close(), Ok(()));
    for (name, object, _) in &all {
        check_eq!(bench.domain.close(), Err(Errno::EBUSY), "the domain with {name}");
        check_eq!(object.close(), Ok(()), "{name}");
    }
    check_eq!(bench.domain.close(), Ok(()));
    check_eq!(bench.fabric.close(), Ok(()));
    Ok(())
}

/// Classes that may be bound to each class. All others are refused.
const BINDINGS: &[(usize, &[usize])] = &[
    (
        sys::FI_CLASS_EP,
        &[
            sys::FI_CLASS_AV,
            sys::FI_CLASS_CQ,
            sys::FI_CLASS_CNTR,
            sys::FI_CLASS_EQ,
            sys::FI_CLASS_SRX_CTX,
            sys::FI_CLASS_STX_CTX,
        ],
    ),
    (sys::FI_CLASS_PEP, &[sys::FI_CLASS_EQ]),
    (sys::FI_CLASS_DOMAIN, &[sys::FI_CLASS_EQ]),
    (sys::FI_CLASS_AV, &[sys::FI_CLASS_EQ]),
    (sys::FI_CLASS_MR, &[sys::FI_CLASS_EP, sys::FI_CLASS_CNTR]),
];

fn everything(bench: &Bench) -> Outcome<Vec<(&'static str, Object)>> {
    let mut all: Vec<(&str, Object)> = vec![
        ("the fabric", Arc::clone(&bench.fabric) as Object),
        ("the domain", Arc::clone(&bench.domain) as Object),
    ];
    for (name, open) in IN_DOMAIN.iter().chain(ON_FABRIC) {
        all.push((name, open(bench)?));
    }
    Ok(all)
}

fn wrong_bindings(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let all = everything(&bench)?;
    let mut refused = 0;
    for (to, object) in &all {
        let allowed = BINDINGS.iter().find(|(class, _)| object.class() == Ok(*class));
        for (name, other) in &all {
            let errno = match allowed {
                None => Errno::ENOSYS,
                // Bound objects could not be closed in the order of this list.
                Some((_, classes)) if classes.contains(&other.class()?) => continue,
                Some(_) => Errno::EINVAL,
            };
            check_eq!(object.bind(other.as_ref(), 0), Err(errno), "{name} to {to}");
            refused += 1;
        }
    }
    check_eq!(refused, all.len() * all.len() - 11);
    Ok(())
}

fn wrong_waits(rank: &Rank) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    for (name, object) in everything(&bench)? {
        let answer = bench.fabric.trywait(&[object.as_ref()]);
        let waits =
            matches!(object.class()?, sys::FI_CLASS_EQ | sys::FI_CLASS_CQ | sys::FI_CLASS_WAIT);
        check_eq!(answer, if waits { Ok(()) } else { Err(Errno::EINVAL) }, "{name}");
    }
    Ok(())
}
