// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Automatic data progress: operations reach a peer that makes no libfabric call at all.
//!
//! The target waits in a barrier of the harness, or sleeps, until the initiator is done. A provider
//! that needs calls of the target hangs, which the time limit reports; no time is asserted.

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("progress_auto/first_write", 2, first_write),
    case("progress_auto/first_atomic", 2, first_atomic),
    case("progress_auto/sleeping_target", 2, sleeping),
    case("progress_auto/delivery_of_messages", 2, messages),
    case("progress_auto/counters_and_data", 2, events),
    case("progress_auto/reads_and_wide_atomics", 2, reads),
    case("progress_auto/endpoint_without_reads", 2, deserted),
];

fn spec() -> Spec {
    super::atomic::spec().with(|spec| {
        spec.hints.data_progress = sys::FI_PROGRESS_AUTO;
        spec.hints.control_progress = sys::FI_PROGRESS_AUTO;
        spec.hints.tx.op_flags = sys::FI_DELIVERY_COMPLETE;
    })
}

/// Opens the endpoint and shares the memory of the target. Rank 1 then makes no call until the next
/// barrier of the harness.
fn start<'r>(rank: &'r Rank, spec: &Spec) -> Outcome<(Rig<'r>, Buf, scif_fabtests::rig::Remote)> {
    let rig = Rig::open(rank, spec)?;
    check_eq!(rig.info.domain().data_progress, sys::FI_PROGRESS_AUTO);
    let (memory, mr, remotes) = rig.share_buf(Buf::new(5 << 20), REMOTE)?;
    // The region stays open until the process ends.
    std::thread::spawn(move || {
        let _keep = mr;
        loop {
            std::thread::park();
        }
    });
    let at = from(&remotes, 1, 0)?;
    Ok((rig, memory, at))
}

fn absent(rank: &Rank) -> Outcome {
    rank.barrier(&mut || {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    })
}

fn first_write(rank: &Rank) -> Outcome {
    let (rig, memory, at) = start(rank, &spec())?;
    if rank.index == 1 {
        absent(rank)?;
        check_eq!(memory.differs(4 << 20, 3), None);
        return rig.barrier();
    }
    for size in [8, 100_000, 4 << 20] {
        let buf = Buf::pattern(size, 3);
        rig.complete(1, || rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
    }
    rig.barrier()?;
    rig.barrier()
}

fn place(rig: &Rig<'_>, at: scif_fabtests::rig::Remote, datatype: u32) -> AtomicTarget {
    at.atomic(rig.peer(), datatype, sys::FI_SUM, 1)
}

fn first_atomic(rank: &Rank) -> Outcome {
    let (rig, memory, at) = start(rank, &spec())?;
    if rank.index == 1 {
        absent(rank)?;
        check_eq!(memory.load_u64(0), 10);
        return rig.barrier();
    }
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    let target = place(&rig, at, sys::FI_UINT64);
    for round in 0..10 {
        let old = Buf::new(8);
        rig.complete(1, || rig.ep.fetch_atomic(&target, one, old))?;
        check_eq!(old.load_u64(0), round);
    }
    rig.barrier()?;
    rig.barrier()
}

/// Tests a target that sleeps and only polls its memory, for the first write and the first atomic
/// of the initiator.
fn sleeping(rank: &Rank) -> Outcome {
    let (rig, memory, at) = start(rank, &spec())?;
    if rank.index == 1 {
        // No call is made until both values have arrived; the time limit ends a wait for missing
        // ones.
        while (memory.load_u64(0), memory.load_u64(64)) != (1, 42) {
            std::thread::sleep(Duration::from_millis(100));
        }
        rank.barrier(&mut || Ok(()))?;
        return rig.barrier();
    }
    rig.complete(2, || {
        rig.ep.write(Buf::of(&42_u64.to_le_bytes()), rig.peer(), at.addr + 64, at.key, 2)
    })?;
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    let target = place(&rig, at, sys::FI_UINT64);
    rig.complete(1, || rig.ep.atomic(&target, one))?;
    rank.barrier(&mut || Ok(()))?;
    rig.barrier()
}

/// Tests that messages, including large ones, reach their posted buffers.
fn messages(rank: &Rank) -> Outcome {
    let (rig, ..) = start(rank, &spec())?;
    let sizes = [8, 5000, 100_000, 4 << 20];
    if rank.index == 1 {
        let bufs: Vec<Buf> = sizes.iter().map(|&size| Buf::new(size)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
        }
        rank.barrier(&mut || Ok(()))?;
        absent(rank)?;
        for (buf, size) in bufs.iter().zip(sizes) {
            check_eq!(buf.differs(size, size as u64), None);
        }
        for index in 0..sizes.len() {
            rig.received(index)?;
        }
        return rig.barrier();
    }
    rank.barrier(&mut || Ok(()))?;
    for size in sizes {
        let buf = Buf::pattern(size, size as u64);
        rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
    }
    rank.barrier(&mut || Ok(()))?;
    rig.barrier()
}

/// Tests that the events of the target are in its queue and counters when it reads them.
fn events(rank: &Rank) -> Outcome {
    let spec = spec().with(|spec| {
        spec.hints.caps |= sys::FI_RMA_EVENT;
        spec.counters = sys::FI_REMOTE_WRITE;
    });
    let (rig, memory, at) = start(rank, &spec)?;
    if rank.index == 1 {
        absent(rank)?;
        rig.counted(sys::FI_REMOTE_WRITE, 20)?;
        for round in 0..10 {
            check_eq!(rig.next(&rig.rx)?.data, round);
        }
        check_eq!(memory.load_u64(0), 9);
        return rig.barrier();
    }
    for round in 0..10_u64 {
        let word = Buf::of(&round.to_le_bytes());
        rig.complete(1, || rig.ep.writedata(word, round, rig.peer(), (at.addr, at.key), 1))?;
        rig.complete(2, || rig.ep.write(word, rig.peer(), at.addr, at.key, 2))?;
    }
    rank.barrier(&mut || Ok(()))?;
    rig.barrier()
}

fn reads(rank: &Rank) -> Outcome {
    let (rig, memory, at) = start(rank, &spec())?;
    memory.sub(4096, 2 << 20).fill_pattern(8);
    rig.barrier()?;
    if rank.index == 1 {
        absent(rank)?;
        check!(memory.get(0, 16) == 10_u128.to_le_bytes());
        return rig.barrier();
    }
    let back = Buf::new(2 << 20);
    rig.complete(2, || rig.ep.read(back, rig.peer(), at.addr + 4096, at.key, 2))?;
    check_eq!(back.differs(2 << 20, 8), None);
    let one = Ioc { buf: Buf::of(&1_u128.to_le_bytes()), count: 1 };
    let target = place(&rig, at, sys::FI_UINT128);
    for _ in 0..10 {
        rig.complete(1, || rig.ep.fetch_atomic(&target, one, Buf::new(16)))?;
    }
    rank.barrier(&mut || Ok(()))?;
    rig.barrier()
}

/// Tests a target that waits at one endpoint for a message that the initiator sends after traffic
/// with another endpoint, which is not polled.
fn deserted(rank: &Rank) -> Outcome {
    let spec = spec();
    let rig = Rig::open(rank, &spec)?;
    let other = Rig::open_in(rank, rig.info.dup()?, &rig.fabric, &rig.domain, &spec)?.meet()?;
    let sizes = [8, 5000, 4 << 20];
    let bufs: Vec<Buf> = sizes.iter().map(|&size| Buf::new(size)).collect();
    if rank.index == 1 {
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| other.ep.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
        }
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 9)?;
        rank.barrier(&mut || Ok(()))?;
        rig.received(9)?;
        for (buf, size) in bufs.iter().zip(sizes) {
            check_eq!(buf.differs(size, size as u64), None);
        }
        return rig.barrier();
    }
    rank.barrier(&mut || Ok(()))?;
    for size in sizes {
        let buf = Buf::pattern(size, size as u64);
        other.post(|| other.ep.send(buf, other.peer(), 1))?;
        other.sent(1)?;
    }
    rig.complete(2, || rig.ep.send(Buf::new(8), rig.peer(), 2))?;
    rig.barrier()
}
