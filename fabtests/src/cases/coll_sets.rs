// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vector sets; supported and refused collectives. Mirrors fi_av_set(3), fi_collective(3).

use std::sync::Arc;

use scif_fabtests::prelude::*;

use super::coll::{barrier, joined, set_of, spec};

pub(crate) const CASES: &[Case] = &[
    case("coll/offered_when_asked", 1, offered),
    case("coll/sets", 1, |r| sets(&Rig::open(r, &spec())?)),
    case("coll/query", 1, |r| query(&Rig::open(r, &spec())?)),
    case("coll/errors", 1, |r| errors(&Rig::open(r, &spec())?)),
];

fn offered(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    let caps = |spec: &Spec| -> Outcome<u64> {
        let list = offers(rank, lib, &spec.hints)?;
        Ok(list.first().ok_or_else(|| Fail::here("an empty list"))?.caps())
    };
    check_eq!(caps(&Spec::default())? & sys::FI_COLLECTIVE, 0);
    check_eq!(caps(&Spec::caps(sys::FI_TAGGED))? & sys::FI_COLLECTIVE, 0);
    check!(caps(&spec())? & sys::FI_COLLECTIVE != 0);
    // Without the capability there is no join operation.
    let rig = Rig::open(rank, &Spec::messages(true).with(|spec| spec.eq = true))?;
    let set = set_of(&rig, &[0])?;
    check_eq!(Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 0).err(), Some(Errno::ENOSYS));
    check_eq!(barrier(1, 0).post(&rig.ep), Err(Errno::ENOSYS));
    Ok(())
}

/// Returns the members of a set in order, found by removing them.
fn members(set: &Arc<AvSet>, universe: &[u64]) -> Outcome<Vec<u64>> {
    let mut found = Vec::new();
    for addr in universe {
        if set.remove(*addr).is_ok() {
            found.push(*addr);
        }
    }
    Ok(found)
}

fn sets(rig: &Rig<'_>) -> Outcome {
    let name = rig.ep.name()?;
    let av = Av::open(&rig.domain, sys::FI_AV_TABLE, 16)?;
    let all: Vec<u64> = (1..=12_u8)
        .map(|port| {
            // Another port of this host.
            let mut name = name.clone();
            if let Some(byte) = name.get_mut(2) {
                *byte ^= port;
            }
            av.insert(&name)
        })
        .collect::<Result<_, _>>()?;
    check_eq!(all, (0..12).collect::<Vec<u64>>());
    let open = |attr| AvSet::open(&av, attr);
    let range = |start, end, stride| AvSetAttr { start, end, stride, flags: 0 };
    let of = |list: &[u64]| -> Outcome<Arc<AvSet>> {
        let set = open(AvSetAttr::NONE)?;
        for addr in list {
            set.insert(*addr)?;
        }
        Ok(set)
    };
    check_eq!(members(&open(AvSetAttr::NONE)?, &all)?, Vec::<u64>::new());
    check_eq!(members(&open(range(1, 11, 3))?, &all)?, vec![1, 4, 7, 10]);
    check_eq!(members(&open(range(10, 99, 1))?, &all)?, vec![10, 11]);
    let universe = AvSetAttr { flags: sys::FI_UNIVERSE | sys::FI_BARRIER_SET, ..AvSetAttr::NONE };
    check_eq!(members(&open(universe)?, &all)?, all);
    for bad in [range(1, 2, 0), range(2, 1, 1), range(1, sys::FI_ADDR_NOTAVAIL, 1)] {
        check_eq!(open(bad).err(), Some(Errno::EINVAL));
    }
    let unknown = AvSetAttr { flags: 1, ..AvSetAttr::NONE };
    check_eq!(open(unknown).err(), Some(Errno::EBADFLAGS));
    let b = of(&[9, 2, 5])?;
    let changed = |how: fn(&AvSet, &AvSet) -> Result<(), Errno>| -> Outcome<Vec<u64>> {
        let a = of(&[5, 1, 9])?;
        check!(a.addr()? != b.addr()?, "two sets have one address");
        how(&a, &b)?;
        members(&a, &all)
    };
    check_eq!(changed(AvSet::union)?, vec![1, 2, 5, 9]);
    check_eq!(changed(AvSet::intersect)?, vec![5, 9]);
    check_eq!(changed(AvSet::diff)?, vec![1]);
    check_eq!(b.insert(100), Err(Errno::EINVAL));
    check_eq!(b.remove(1), Err(Errno::EINVAL));
    b.insert(1)?;
    check_eq!(b.insert(1), Err(Errno::EINVAL));
    let other = AvSet::open(&rig.av, AvSetAttr::NONE)?;
    check_eq!(b.union(&other), Err(Errno::EINVAL));
    check_eq!(b.class()?, sys::FI_CLASS_AV_SET);
    check_eq!(av.close(), Err(Errno::EBUSY));
    b.close()?;
    check_eq!(av.close(), Ok(()));
    Ok(())
}

fn query(rig: &Rig<'_>) -> Outcome {
    let spec = |kind, datatype, op| rig.domain.query_collective(kind, datatype, op, 0);
    check!(spec(sys::FI_BARRIER, sys::FI_VOID, sys::FI_NOOP).is_ok());
    for kind in
        [sys::FI_BROADCAST, sys::FI_ALLTOALL, sys::FI_ALLGATHER, sys::FI_SCATTER, sys::FI_GATHER]
    {
        let (size, count, members) = spec(kind, sys::FI_DOUBLE, sys::FI_NOOP)?;
        check_eq!(size, 8);
        check!(count > 1 << 30 && members > 1 << 20);
        check_eq!(spec(kind, sys::FI_VOID, sys::FI_NOOP).err(), Some(Errno::EOPNOTSUPP));
    }
    for kind in [sys::FI_ALLREDUCE, sys::FI_REDUCE, sys::FI_REDUCE_SCATTER] {
        check_eq!(spec(kind, sys::FI_FLOAT, sys::FI_MAX)?.0, 4);
        for (datatype, op) in [
            (sys::FI_FLOAT, sys::FI_BXOR),
            (sys::FI_UINT64, sys::FI_NOOP),
            (sys::FI_UINT64, sys::FI_ATOMIC_WRITE),
            (sys::FI_UINT64, sys::FI_CSWAP),
            (99, sys::FI_SUM),
        ] {
            check_eq!(spec(kind, datatype, op).err(), Some(Errno::EOPNOTSUPP));
        }
    }
    check_eq!(spec(99, sys::FI_UINT8, sys::FI_SUM).err(), Some(Errno::EOPNOTSUPP));
    check_eq!(
        rig.domain.query_collective(sys::FI_BARRIER, sys::FI_VOID, sys::FI_NOOP, 1 << 40).err(),
        Some(Errno::EBADFLAGS)
    );
    Ok(())
}

fn errors(rig: &Rig<'_>) -> Outcome {
    let set = set_of(rig, &[0])?;
    let join = |parent, set: Option<&AvSet>, flags| Mc::join(&rig.ep, parent, set, flags, 1).err();
    let addr = set.addr()?;
    check_eq!(join(addr, None, 0), Some(Errno::EINVAL));
    check_eq!(join(addr, Some(&set), sys::FI_INJECT), Some(Errno::EBADFLAGS));
    // No set and no group has this address.
    check_eq!(join(0, Some(&set), 0), Some(Errno::EINVAL));
    let empty = set_of(rig, &[])?;
    check_eq!(join(empty.addr()?, Some(&empty), 0), Some(Errno::EINVAL));
    check_eq!(join(empty.addr()?, Some(&set), 0), Some(Errno::EINVAL));
    let other_av = Av::open(&rig.domain, sys::FI_AV_TABLE, 1)?;
    let other = AvSet::open(&other_av, AvSetAttr::NONE)?;
    check_eq!(join(other.addr()?, Some(&other), 0), Some(Errno::EINVAL));
    let mute = Rig::open(rig.rank, &spec().with(|spec| spec.eq = false))?;
    let its = set_of(&mute, &[0])?;
    check_eq!(Mc::join(&mute.ep, its.addr()?, Some(&its), 0, 1).err(), Some(Errno::ENOEQ));

    let mc = Mc::join(&rig.ep, sys::FI_ADDR_NOTAVAIL, Some(&set), 0, 5)?;
    joined(rig, &mc, 5)?;
    check_eq!(mc.class()?, sys::FI_CLASS_MC);
    let group = mc.addr()?;
    let buf = Buf::new(64);
    let reduce = Collective {
        kind: sys::FI_REDUCE,
        buf,
        result: buf,
        count: 8,
        root: rig.to(0),
        datatype: sys::FI_UINT64,
        op: sys::FI_SUM,
        ..barrier(group, 6)
    };
    for (bad, err) in [
        (barrier(addr, 0), Errno::EINVAL),
        (barrier(12345, 0), Errno::EINVAL),
        (Collective { flags: sys::FI_PEEK, ..barrier(group, 0) }, Errno::EBADFLAGS),
        (Collective { root: 77, ..reduce }, Errno::EINVAL),
        (Collective { op: sys::FI_CSWAP, ..reduce }, Errno::EOPNOTSUPP),
        (Collective { datatype: 500, ..reduce }, Errno::EOPNOTSUPP),
        (Collective { count: usize::MAX / 4, ..reduce }, Errno::EINVAL),
        (
            // More than a process can allocate, and less than the maximum length.
            Collective { kind: sys::FI_ALLTOALL, count: 1 << 43, ..reduce },
            Errno::ENOMEM,
        ),
        (Collective { buf: Buf::null(64), ..reduce }, Errno::EFAULT),
    ] {
        check_eq!(bad.post(&rig.ep), Err(err), "{bad:?}");
    }
    check_eq!(rig.domain.close(), Err(Errno::EBUSY));
    reduce.post(&rig.ep)?;
    check_eq!(rig.sent(6)?.flags, sys::FI_COLLECTIVE);
    mc.close()?;
    check_eq!(reduce.post(&rig.ep), Err(Errno::EINVAL));
    Ok(())
}
