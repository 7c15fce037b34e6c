// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large RMA of which a polling target copies parts, if the kernel permits it: data, the share of
//! the target, and the order of the last bytes.
//!
//! Rank 1 is the target. Operations with pauses and stops of the target are tested in `rma_mix`.

use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::rma::{REMOTE, announce, from, wait_for_announcement};
use super::windows::{counted, counter};

const STATS: &[(&str, &str)] = &[("FI_SCIF_STATS", "1")];

pub(crate) const CASES: &[Case] = &[
    case("coop_rma/writes", 2, |r| shared_with_target(r, true)).under(STATS).within(80),
    case("coop_rma/reads", 2, |r| shared_with_target(r, false)).under(STATS).within(80),
    case("coop_rma/last_bytes_come_last", 2, last_bytes_come_last),
];

/// Time after which a target counts as never copying. On a busy host it seldom runs while the
/// initiator copies.
const PATIENCE: Duration = Duration::from_secs(40);
/// Operations over one connection.
const OPERATIONS: usize = 10;
/// Lengths of the operations, in turns. The longest has two rounds, and the last part of another is
/// odd.
const LENGTHS: [usize; 5] = [1 << 20, 100_000, 777_777, (5 << 20) + 1, 256 << 10];
const LARGEST: usize = (5 << 20) + 1;

/// Operations to a target that polls arrive whole, and the target copies a part of some. Attempts
/// back off if the target takes no part, so each try has a connection of its own.
fn shared_with_target(rank: &Rank, write: bool) -> Outcome {
    rank.only_scif("its counters")?;
    let begun = Instant::now();
    loop {
        let text = counted(|| operate(rank, write))?;
        let (_, alone) = counter(&text, "process_vm")?;
        let own = alone + counter(&text, "both_sides")?.1;
        let all = (LENGTHS.iter().sum::<usize>() * (OPERATIONS / LENGTHS.len())) as u64;
        // Without direct copies there is nothing to share.
        let is_shared = rank.index == 0 && (own < all || alone == 0);
        let answers = rank.exchange(&[u8::from(is_shared)], &mut || Ok(()))?;
        if answers.iter().flatten().any(|answer| *answer == 1) {
            return Ok(());
        }
        check!(begun.elapsed() < PATIENCE, "the initiator has copied all {own} bytes");
    }
}

/// Executes operations of all lengths over one connection.
fn operate(rank: &Rank, write: bool) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(LARGEST), REMOTE)?;
    let to = from(&remotes, 1, 0)?;
    for (seed, len) in (0..OPERATIONS as u64).zip(LENGTHS.into_iter().cycle()) {
        if rank.index == 1 && !write {
            memory.fill_pattern(seed);
        }
        rig.barrier()?;
        if rank.index == 1 {
            wait_for_announcement(&rig)?;
            check_eq!(memory.differs(len, seed), None, "{len} B");
            continue;
        }
        let buf = if write { Buf::pattern(len, seed) } else { Buf::new(len) };
        rig.complete(1, || match write {
            true => rig.ep.write(buf, rig.peer(), to.addr, to.key, 1),
            false => rig.ep.read(buf, rig.peer(), to.addr, to.key, 1),
        })?;
        check_eq!(buf.differs(len, seed), None, "{len} B");
        announce(&rig, rig.peer())?;
    }
    rig.barrier()
}

/// Target that waits for the last bytes of a write finds all others there.
fn last_bytes_come_last(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 20;
    const STEP: usize = 4096;
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(LEN), REMOTE)?;
    let to = from(&remotes, 1, 0)?;
    for round in 1..=100 {
        if rank.index == 0 {
            let buf = Buf::new(LEN);
            buf.fill(u8::try_from(round).unwrap_or(0));
            rig.complete(1, || rig.ep.write(buf, rig.peer(), to.addr, to.key, 1))?;
        } else {
            let want = u64::from_ne_bytes([u8::try_from(round).unwrap_or(0); 8]);
            rig.wait("the last bytes", || Ok((memory.load_u64(LEN - 8) == want).then_some(())))?;
            // The parts in the middle are copied last. A copy of all bytes would take long enough
            // for them to arrive.
            for at in (0..LEN).step_by(STEP).map(|at| (at + LEN / 2) % LEN) {
                check_eq!(memory.load_u64(at), want, "round {round}, offset {at}");
            }
        }
        rig.barrier()?;
    }
    Ok(())
}
