// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters of regions and the accesses that they count. Mirrors fi_mr(3), "fi_mr_bind".

use std::sync::Arc;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] =
    &[case("cntr/region_reads_and_writes", 2, each_way), case("cntr/region_binding", 1, binding)];

fn spec() -> Spec {
    Spec::caps(sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT | sys::FI_MSG)
}

fn open(rig: &Rig<'_>) -> Outcome<Arc<Cntr>> {
    let attr = CntrAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..CntrAttr::default() };
    supported("fi_cntr_open", Cntr::open(&rig.domain, attr))
}

/// Tests counters by direction: one for reads counts no writes, and one for writes no reads. A
/// fetching atomic is both, unless it only reads: OpenSHMEM waits for swaps with a counter of
/// writes. A counter of both counts each access once.
fn each_way(rank: &Rank) -> Outcome {
    const LEN: usize = 200_000;
    let rig = Rig::open(rank, &spec())?;
    let [read, write, apart_read, apart_write, both] = [0; 5].map(|_| open(&rig));
    let (read, write, both) = (read?, write?, both?);
    let apart = (apart_read?, apart_write?);
    let mut regions = Vec::new();
    for counters in [
        vec![(&read, sys::FI_REMOTE_READ)],
        vec![(&write, sys::FI_REMOTE_WRITE)],
        vec![(&apart.0, sys::FI_REMOTE_READ), (&apart.1, sys::FI_REMOTE_WRITE)],
        vec![(&both, sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE)],
    ] {
        let (mr, at) = rig.share(Buf::new(LEN), REMOTE)?;
        for (cntr, flags) in counters {
            mr.bind(cntr.as_ref(), flags)?;
        }
        regions.push((mr, at));
    }
    rig.barrier()?;
    if rank.index == 0 {
        for (_, remotes) in &regions {
            let (at, peer) = (from(remotes, 1, 0)?, rig.peer());
            for size in [8, 4096, LEN] {
                let buf = Buf::new(size);
                rig.complete(1, || rig.ep.read(buf, peer, at.addr, at.key, 1))?;
                rig.complete(1, || rig.ep.write(buf, peer, at.addr, at.key, 1))?;
            }
            let place = at.sum(peer, 1);
            let one = Ioc { buf: Buf::new(8), count: 1 };
            rig.complete(1, || rig.ep.atomic(&place, one))?;
            // A short and a longer operation use different protocols.
            for count in [1, 4] {
                let many = Ioc { buf: Buf::new(8 * count), count };
                rig.complete(1, || rig.ep.fetch_atomic(&place, many, Buf::new(8 * count)))?;
                let look = AtomicTarget { op: sys::FI_ATOMIC_READ, ..place };
                rig.complete(1, || rig.ep.fetch_atomic(&look, many, Buf::new(8 * count)))?;
            }
        }
    } else {
        // Three reads, three writes, an atomic, two that fetch and two that only read; `both` is
        // updated last.
        rig.wait("the counters", || Ok((both.read()? >= 11).then_some(())))?;
        check_eq!((read.read()?, write.read()?), (7, 6));
        check_eq!((apart.0.read()?, apart.1.read()?), (7, 6));
    }
    rig.barrier()?;
    if rank.index == 1 {
        check_eq!((both.read()?, both.readerr()?), (11, 0));
    }
    rig.barrier()
}

/// Tests the flags of a binding, and that each direction has one counter.
fn binding(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let (mr, _) = rig.register(Buf::new(64), REMOTE)?;
    let (first, second) = (open(&rig)?, open(&rig)?);
    for flags in [0, sys::FI_READ, sys::FI_REMOTE_WRITE | sys::FI_SEND] {
        check_eq!(mr.bind(first.as_ref(), flags), Err(Errno::EBADFLAGS));
    }
    mr.bind(first.as_ref(), sys::FI_REMOTE_READ)?;
    for flags in [sys::FI_REMOTE_READ, REMOTE] {
        check_eq!(mr.bind(second.as_ref(), flags), Err(Errno::EINVAL));
    }
    mr.bind(second.as_ref(), sys::FI_REMOTE_WRITE)?;
    check_eq!(mr.bind(first.as_ref(), sys::FI_REMOTE_WRITE), Err(Errno::EINVAL));
    // Closed before its counters, which it keeps open.
    drop(mr);
    Ok(())
}
