// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Settings that select other protocols than usual: eager for large messages, RMA executed by the
//! target. The results are the same.

use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::call_variants::{self, RecvCall, SendCall, Timing};
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("ring/long_eager_messages", 2, eager).under(&[("FI_SCIF_EAGER_SIZE", "1M")]),
    case("ring/nothing_eager", 2, eager).under(&[("FI_SCIF_EAGER_SIZE", "0")]),
    case("ring/reads_counted_once", 2, counted_once).under(BY_THE_TARGET),
    case("ring/many_requests_in_both_directions", 2, both_ask).under(BY_THE_TARGET),
    case("ring/single_large_messages", 2, alone).within(60),
    case("ring/sender_elsewhere", 2, elsewhere).within(60),
];

/// Setting that denies access to the memory of peers.
const BY_THE_TARGET: &[(&str, &str)] = &[("FI_SCIF_PROCESS_VM", "0")];

/// Tests large messages one by one, enough of each size for every rendezvous protocol to be probed.
/// Both sides use the buffers in between, and the sender is sometimes busy. Each message arrives
/// whole, by any protocol.
fn alone(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 300;
    let rig = Rig::open(rank, &spec())?;
    for size in [48 << 10, 60_001, 64 << 10, 300_000] {
        let (out, into) = (Buf::new(size), Buf::new(size));
        for round in 0..ROUNDS {
            let seed = |from: usize| (size + 2 * round + from) as u64;
            rig.post(|| rig.ep.recv(into, rig.peer(), 1))?;
            let (me, peer) = (rank.index, 1 - rank.index);
            if me == 0 {
                out.fill_pattern(seed(me));
                rig.post(|| rig.ep.send(out, rig.peer(), 2))?;
                if round % 61 == 60 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                rig.sent(2)?;
            }
            rig.received(1)?;
            check_eq!(into.differs(size, seed(peer)), None);
            if me == 1 {
                out.fill_pattern(seed(me));
                rig.complete(2, || rig.ep.send(out, rig.peer(), 2))?;
            }
        }
    }
    rig.barrier()
}

/// Tests large messages one by one, where one sender does not call the library before its message
/// is received. The receiver falls back to pull, also if it had requested the message through the
/// ring.
fn elsewhere(rank: &Rank) -> Outcome {
    const SIZE: usize = 60_000;
    const MESSAGES: usize = 90;
    // If the sender's memory cannot be read, its progress is needed.
    let needed = rank.target.prov != "scif" || !sandbox::may_call_process_vm();
    for absent in (60..MESSAGES).step_by(2) {
        let rig = Rig::open(rank, &spec())?;
        let mut outside = || if needed { rig.pump() } else { Ok(()) };
        for message in 0..MESSAGES {
            let seed = (absent * MESSAGES + message) as u64;
            if rank.index == 0 {
                rig.post(|| rig.ep.send(Buf::pattern(SIZE, seed), rig.peer(), 2))?;
                if message == absent {
                    rank.barrier(&mut outside)?;
                }
                rig.sent(2)?;
                continue;
            }
            let into = Buf::new(SIZE);
            rig.post(|| rig.ep.recv(into, rig.peer(), 1))?;
            rig.received(1)?;
            check_eq!(into.differs(SIZE, seed), None);
            if message == absent {
                rank.barrier(&mut outside)?;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests sizes around a slot, a record, and the eager setting.
fn eager(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    for size in [1, 40, 41, 56, 57, 16_383, 16_384, 16_385, 100_000, 1 << 20, (1 << 20) + 1] {
        for timing in [Timing::Expected, Timing::Unexpected] {
            call_variants::one_message(&rig, SendCall::Send, RecvCall::Recv, false, size, timing)?;
            call_variants::one_message(
                &rig,
                SendCall::Flags(sys::FI_DELIVERY_COMPLETE),
                RecvCall::Recv,
                false,
                size,
                timing,
            )?;
        }
    }
    Ok(())
}

/// Tests that a read in many fragments is one operation for the counter of its target.
fn counted_once(rank: &Rank) -> Outcome {
    const READS: u64 = 5;
    let spec = spec().with(|spec| {
        spec.hints.caps |= sys::FI_RMA_EVENT;
        spec.counters = sys::FI_REMOTE_READ;
    });
    let rig = Rig::open(rank, &spec)?;
    let (_mr, remotes) = rig.share(Buf::pattern(1 << 20, 3), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        for _ in 0..READS {
            let back = Buf::new(1 << 20);
            rig.complete(1, || rig.ep.read(back, rig.peer(), at.addr, at.key, 1))?;
            check_eq!(back.differs(1 << 20, 3), None);
        }
        rig.barrier()?;
        return rig.barrier();
    }
    rig.counted(sys::FI_REMOTE_READ, READS)?;
    rig.barrier()?;
    check_eq!(rig.counter(sys::FI_REMOTE_READ)?.read()?, READS);
    rig.barrier()
}

/// Tests two ranks that request more from each other than the rings and the reply limit hold. Each
/// polls for replies only when no further request is accepted. Neither waits forever.
fn both_ask(rank: &Rank) -> Outcome {
    const SIZE: usize = 1 << 20;
    const READS: usize = 40;
    const ATOMICS: u64 = 4000;
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::pattern(SIZE + 64, 3), REMOTE)?;
    memory.sub(SIZE, 64).fill(0);
    rig.barrier()?;
    let at = from(&remotes, rank.peer(), 0)?;
    let backs: Vec<Buf> = (0..READS).map(|_| Buf::new(SIZE)).collect();
    let mut open = 0;
    for &back in &backs {
        open += 1;
        rig.post(|| rig.ep.read(back, rig.peer(), at.addr, at.key, 1))?;
    }
    let wide = AtomicTarget {
        addr: at.addr + SIZE as u64,
        ..at.atomic(rig.peer(), sys::FI_UINT128, sys::FI_SUM, 2)
    };
    let one = Ioc { buf: Buf::of(&1_u128.to_le_bytes()), count: 1 };
    for _ in 0..ATOMICS {
        open += 1;
        let old = Buf::new(16);
        loop {
            match rig.ep.fetch_atomic(&wide, one, old) {
                Ok(()) => break,
                Err(Errno::EAGAIN) => rig.pump()?,
                Err(e) => return Err(e.into()),
            }
        }
    }
    for _ in 0..open {
        rig.next(&rig.tx)?;
    }
    for back in backs {
        check_eq!(back.differs(SIZE, 3), None);
    }
    rig.barrier()?;
    check_eq!(memory.get(SIZE, 16), u128::from(ATOMICS).to_le_bytes());
    rig.barrier()
}
