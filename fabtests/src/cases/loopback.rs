// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Order of an operation on the own endpoint, or on another one of the process, before the effects
//! of later operations on peers.
//!
//! libfabric promises no order between two senders, but programs rely on this one. A program that
//! resets its own lock word and then queues up at another rank expects the reset before the reply
//! of the holder. No rank makes progress between its own operation and the reply of the peer to the
//! next one. The operations themselves are tested elsewhere.

use std::sync::Arc;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("loopback/messages", 2, |r| messages(r, false)),
    case("loopback/tagged", 2, |r| messages(r, true)),
    case("loopback/atomics", 2, |r| operations(r, Kind::Atomic)),
    case("loopback/writes", 2, |r| operations(r, Kind::Write)),
    case("loopback/many_unaligned_atomics", 1, many_unaligned),
    case("loopback/neighbour", 1, |r| neighbour(r, true)),
    case("loopback/neighbour_domain", 1, |r| neighbour(r, false)),
];

/// Number of rounds; the first includes the connects to the peer and to itself.
const ROUNDS: u64 = 20;
/// Bytes of a message larger than a ring.
const LARGE: usize = 200_000;

fn spec() -> Spec {
    Spec::caps(sys::FI_ATOMIC | sys::FI_RMA | sys::FI_MSG)
}

/// Tests a message of rank 1 to itself, then to rank 0, which replies: its own message arrives
/// first.
fn messages(rank: &Rank, tagged: bool) -> Outcome {
    rank.only_scif("other providers promise no such order")?;
    let rig = Rig::open(rank, &Spec::messages(tagged))?;
    let ep = &rig.ep;
    let send = |buf, to, context| match tagged {
        true => ep.tsend(buf, to, 1, context),
        false => ep.send(buf, to, context),
    };
    let recv = |buf, context| match tagged {
        true => ep.trecv(buf, sys::FI_ADDR_UNSPEC, 1, 0, context),
        false => ep.recv(buf, sys::FI_ADDR_UNSPEC, context),
    };
    for round in 0..ROUNDS {
        for size in [8, 1000, LARGE] {
            let own = Buf::pattern(size, round);
            let answer = Buf::pattern(size, round + 100);
            let first = Buf::new(size);
            let second = Buf::new(size);
            if rank.index == 0 {
                recv(first, 1)?;
                rig.received(1)?;
                send(answer, rig.to(1), 2)?;
                rank.barrier(&mut || Ok(()))?;
                rig.sent(2)?;
            } else {
                recv(first, 1)?;
                recv(second, 2)?;
                send(own, rig.to(1), 3)?;
                send(own, rig.to(0), 4)?;
                // If the peer may not read the memory of this rank, a large message needs its
                // progress.
                rank.barrier(&mut || if size == LARGE { rig.pump() } else { Ok(()) })?;
                let mut came = [rig.next(&rig.rx)?.context, rig.next(&rig.rx)?.context];
                came.sort_unstable();
                check_eq!(came, [1, 2]);
                check_eq!(first.differs(size, round), None, "round {round}, {size} B");
                check_eq!(second.differs(size, round + 100), None, "round {round}, {size} B");
                let mut went = [rig.next(&rig.tx)?.context, rig.next(&rig.tx)?.context];
                went.sort_unstable();
                check_eq!(went, [3, 4]);
            }
            rig.barrier()?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Atomic,
    Write,
}

/// Stores `value` in the word at `at`.
fn store(rig: &Rig<'_>, kind: Kind, dest: u64, at: Remote, value: Buf) -> Outcome {
    match kind {
        Kind::Write => rig.ep.write(value, dest, at.addr, at.key, 1)?,
        Kind::Atomic => {
            let place = target(dest, at, sys::FI_ATOMIC_WRITE);
            rig.ep.atomic(&place, Ioc { buf: value, count: 1 })?;
        }
    }
    Ok(())
}

fn target(dest: u64, at: Remote, op: u32) -> AtomicTarget {
    AtomicTarget { dest, addr: at.addr, key: at.key, datatype: sys::FI_UINT64, op, context: 1 }
}

/// Tests a store of rank 1 into its own memory before a message to rank 0, which stores there too:
/// the later store remains.
fn operations(rank: &Rank, kind: Kind) -> Outcome {
    rank.only_scif("other providers promise no such order")?;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    for round in 0..ROUNDS {
        let value = Buf::of(&(2 * round + 1 + u64::from(rank.index == 0)).to_le_bytes());
        if rank.index == 0 {
            wait_for_announcement(&rig)?;
            store(&rig, kind, rig.to(1), at, value)?;
            rank.barrier(&mut || Ok(()))?;
            rig.sent(1)?;
        } else {
            store(&rig, kind, rig.to(1), at, value)?;
            check_eq!(mine.load_u64(0), 2 * round + 1, "after the call, round {round}");
            rig.ep.send(Buf::NULL, rig.to(0), 2)?;
            rank.barrier(&mut || Ok(()))?;
            let mut went = [rig.next(&rig.tx)?.context, rig.next(&rig.tx)?.context];
            went.sort_unstable();
            check_eq!(went, [1, 2]);
        }
        rig.barrier()?;
        if rank.index == 1 {
            check_eq!(mine.load_u64(0), 2 * round + 2, "in the end, round {round}");
        }
    }
    rig.barrier()
}

/// Tests that operations on another endpoint of this process need no action of it once they are
/// connected.
fn neighbour(rank: &Rank, same_domain: bool) -> Outcome {
    rank.only_scif("other providers promise no such order")?;
    let rig = Rig::open(rank, &spec())?;
    let other = if same_domain {
        let info = rig.info.dup()?;
        Rig::open_in(rank, info, &Arc::clone(&rig.fabric), &Arc::clone(&rig.domain), &spec())?
    } else {
        Rig::open_alone(rank, &spec())?
    };
    let mine = Buf::new(64);
    let (_mr, at) =
        if same_domain { rig.register(mine, REMOTE)? } else { other.register(mine, REMOTE)? };
    let dest = rig.av.insert(&other.ep.name()?)?;
    announce(&rig, dest)?;
    wait_for_announcement(&other)?;
    let word = |value: u64| Buf::of(&value.to_le_bytes());
    let (result, back) = (Buf::new(8), Buf::new(8));
    for round in 0..ROUNDS {
        store(&rig, Kind::Write, dest, at, word(round + 5))?;
        rig.sent(1)?;
        rig.ep.read(back, dest, at.addr, at.key, 1)?;
        rig.sent(1)?;
        check_eq!(back.load_u64(0), round + 5);
        store(&rig, Kind::Atomic, dest, at, word(round))?;
        rig.sent(1)?;
        check_eq!(mine.load_u64(0), round);
        let one = Ioc { buf: word(1), count: 1 };
        rig.ep.fetch_atomic(&target(dest, at, sys::FI_SUM), one, result)?;
        rig.sent(1)?;
        check_eq!((result.load_u64(0), mine.load_u64(0)), (round, round + 1));
        let other_one = Ioc { buf: word(77), count: 1 };
        let place = target(dest, at, sys::FI_CSWAP);
        rig.ep.compare_atomic(&place, other_one, word(round + 1), result)?;
        rig.sent(1)?;
        check_eq!((result.load_u64(0), mine.load_u64(0)), (round + 1, 77));
    }
    check!(other.rx.kept() == 0);
    Ok(())
}

/// Tests many operations without a processor instruction, which use the ring. Each is complete when
/// posted, without a read of a queue.
fn many_unaligned(rank: &Rank) -> Outcome {
    const MANY: u64 = 5000;
    rank.only_scif("other providers promise no such order")?;
    let rig = Rig::open_alone(rank, &spec())?;
    let memory = Buf::new(16);
    let (_mr, at) = rig.register(memory, REMOTE)?;
    let me = rig.av.insert(&rig.ep.name()?)?;
    let one = Buf::of(&1_u64.to_le_bytes());
    let target = AtomicTarget { addr: at.addr + 1, ..at.sum(me, 0) };
    // Makes the connection to itself.
    rig.post(|| rig.ep.send(Buf::new(8), me, 1))?;
    for count in 1..=MANY {
        rig.ep.inject_atomic(&target, Ioc { buf: one, count: 1 })?;
        check_eq!(memory.get(1, 8), count.to_le_bytes());
    }
    Ok(())
}
