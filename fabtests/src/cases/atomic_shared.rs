// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations of several ranks on the same memory: no update is lost or torn, whichever side
//! executes it. Single operations are tested in `atomic`.

use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::numbers::encode;
use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("atomic_shared/sum_from_all", 4, |r| sum_from_all(r, 0)),
    case("atomic_shared/sum_from_all_misaligned", 4, |r| sum_from_all(r, 3)),
    case("atomic_shared/cswap_from_all", 3, cswap_from_all),
    case("atomic_shared/tickets", 3, tickets),
    case("atomic_shared/wide_from_all", 3, wide_from_all),
    case("atomic_shared/all_sizes_of_one_word", 3, all_sizes),
];

/// Tests that no addition is lost when all ranks, the target included, add to one word.
fn sum_from_all(rank: &Rank, off: usize) -> Outcome {
    const ROUNDS: usize = 2000;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(128), REMOTE)?;
    let at = from(&remotes, 0, off)?;
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    let result = Buf::new(8);
    let place = at.sum(rig.to(0), 1);
    let mut last = None;
    for round in 0..ROUNDS {
        if round % 3 == 0 {
            rig.complete(1, || rig.ep.fetch_atomic(&place, one, result))?;
            let seen = result.load_u64(0);
            check!(last.is_none_or(|last| last < seen), "{seen} after {last:?}");
            last = Some(seen);
        } else {
            rig.complete(1, || rig.ep.atomic(&place, one))?;
        }
    }
    if rank.index != 0 {
        announce(&rig, rig.to(0))?;
    } else {
        for _ in 1..rank.count {
            wait_for_announcement(&rig)?;
        }
        let total = u64::from_le_bytes(mine.get(off, 8).try_into().unwrap_or_default());
        check_eq!(total, (ROUNDS * rank.count) as u64);
    }
    rig.barrier()
}

/// Tests that ranks draw each ticket of a counter once, by many fetching additions at a time and by
/// compare-and-swaps in between. With ranks on two hosts, one is on the host of the counter.
fn tickets(rank: &Rank) -> Outcome {
    const DRAWS: usize = 100_000;
    const WINDOW: usize = 32;
    /// Context of a compare-and-swap.
    const SWAP: usize = WINDOW;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(8), REMOTE)?;
    let at = from(&remotes, 0, 0)?;
    let mut drawn = Bitmap(Vec::new());
    if rank.index != 0 {
        // At most one compare-and-swap for ten additions draws a ticket.
        drawn.0.resize(DRAWS * (rank.count - 1) / 7, 0);
        let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
        let (results, compared, swapped) = (Buf::new(8 * WINDOW + 8), Buf::new(8), Buf::new(8));
        let result = |slot: usize| results.sub(8 * slot, 8);
        let mut free: Vec<usize> = (0..WINDOW).collect();
        let (mut posted, mut ended, mut guess) = (0, 0, 0);
        let mut is_swapping = false;
        while ended < DRAWS || is_swapping {
            if let Some(slot) = free.pop().filter(|_| posted < DRAWS) {
                let place = at.sum(rig.to(0), slot);
                rig.post(|| rig.ep.fetch_atomic(&place, one, result(slot)))?;
                posted += 1;
                continue;
            }
            // A successful one draws a ticket as well.
            if ended % 10 == 0 && guess != 0 && !is_swapping && ended < DRAWS {
                is_swapping = true;
                compared.store_u64(0, guess);
                swapped.store_u64(0, guess + 1);
                let place = at.atomic(rig.to(0), sys::FI_UINT64, sys::FI_CSWAP, SWAP);
                let operand = Ioc { buf: swapped, count: 1 };
                rig.post(|| rig.ep.compare_atomic(&place, operand, compared, result(SWAP)))?;
            }
            let slot = rig.next(&rig.tx)?.context;
            let seen = result(slot).load_u64(0);
            if slot != SWAP {
                drawn.set(seen)?;
                (ended, guess) = (ended + 1, seen + 1);
                free.push(slot);
            } else {
                is_swapping = false;
                if seen == compared.load_u64(0) {
                    drawn.set(seen)?;
                }
            }
        }
    }
    rig.barrier()?;
    let mut all = Bitmap(Vec::new());
    for part in rig.exchange(&drawn.0)? {
        all.join(&part)?;
    }
    if rank.index == 0 {
        let count = mine.load_u64(0);
        check!(count >= (DRAWS * (rank.count - 1)) as u64, "{count} tickets");
        check_eq!(all.count(), count);
        check!(all.has_first(count), "a ticket was skipped");
    }
    rig.barrier()
}

/// Set of small numbers.
struct Bitmap(Vec<u8>);

impl Bitmap {
    fn set(&mut self, number: u64) -> Outcome {
        let at = usize::try_from(number / 8).map_err(Fail::here)?;
        let bits = self.0.get_mut(at).ok_or_else(|| Fail::here(format_args!("{number}")))?;
        check!(*bits & 1 << (number % 8) == 0, "{number} was drawn twice by one rank");
        *bits |= 1 << (number % 8);
        Ok(())
    }

    /// Adds a disjoint set.
    fn join(&mut self, other: &[u8]) -> Outcome {
        self.0.resize(self.0.len().max(other.len()), 0);
        for (mine, bits) in self.0.iter_mut().zip(other) {
            check!(*mine & bits == 0, "two ranks drew one ticket");
            *mine |= bits;
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Whether it contains the first `count` numbers.
    fn has_first(&self, count: u64) -> bool {
        let is_in = |number: u64| {
            let bits = usize::try_from(number / 8).ok().and_then(|at| self.0.get(at));
            bits.is_some_and(|bits| bits & 1 << (number % 8) != 0)
        };
        (0..count).all(is_in)
    }
}

/// Tests a lock made of compare-and-swap, which guards plain memory.
fn cswap_from_all(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 300;
    let flags = sys::FI_DELIVERY_COMPLETE;
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.tx.op_flags = flags))?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(128), REMOTE)?;
    let at = from(&remotes, 0, 0)?;
    let word = |value: u64| Buf::of(&value.to_le_bytes());
    let (free, taken, old, guarded) =
        (word(0), word(1 + rank.index as u64), Buf::new(8), Buf::new(8));
    let place = at.atomic(rig.to(0), sys::FI_UINT64, sys::FI_CSWAP, 1);
    for _ in 0..ROUNDS {
        loop {
            rig.complete(1, || {
                rig.ep.compare_atomic(&place, Ioc { buf: taken, count: 1 }, free, old)
            })?;
            if old.load_u64(0) == 0 {
                break;
            }
        }
        rig.complete(2, || rig.ep.read(guarded, rig.to(0), at.addr + 64, at.key, 2))?;
        guarded.store_u64(0, guarded.load_u64(0) + 1);
        rig.complete(3, || rig.ep.write(guarded, rig.to(0), at.addr + 64, at.key, 3))?;
        let release = AtomicTarget { op: sys::FI_ATOMIC_WRITE, context: 4, ..place };
        rig.complete(4, || rig.ep.atomic(&release, Ioc { buf: free, count: 1 }))?;
    }
    rig.barrier()?;
    check!(
        rank.index != 0 || mine.load_u64(64) == ROUNDS * rank.count as u64,
        "{} of all",
        mine.load_u64(64)
    );
    Ok(())
}

/// Tests types wider than a machine word, and floating point, from all ranks.
fn wide_from_all(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 500;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(256), REMOTE)?;
    let at = from(&remotes, 0, 0)?;
    let places = [
        (sys::FI_UINT128, 0_u64),
        (sys::FI_DOUBLE, 32),
        (sys::FI_FLOAT_COMPLEX, 48),
        (sys::FI_DOUBLE_COMPLEX, 64),
        (sys::FI_LONG_DOUBLE, 96),
        (sys::FI_INT8, 120),
        (sys::FI_UINT16, 122),
    ];
    for (datatype, off) in places {
        let place =
            AtomicTarget { addr: at.addr + off, ..at.atomic(rig.to(0), datatype, sys::FI_SUM, 1) };
        let zero = Ioc { buf: Buf::of(&encode(datatype, 0)), count: 1 };
        let rounds = if datatype == sys::FI_INT8 { 40 } else { ROUNDS };
        let one = Ioc { buf: Buf::of(&encode(datatype, 1)), count: 1 };
        // Without the imaginary part of an encoded 1.
        let complex = matches!(datatype, sys::FI_FLOAT_COMPLEX | sys::FI_DOUBLE_COMPLEX);
        let operand = if complex { zero } else { one };
        for _ in 0..rounds {
            rig.complete(1, || rig.ep.atomic(&place, operand))?;
        }
    }
    if rank.index != 0 {
        announce(&rig, rig.to(0))?;
    } else {
        for _ in 1..rank.count {
            wait_for_announcement(&rig)?;
        }
        let all = (ROUNDS * rank.count) as f64;
        check_eq!(mine.load_u64(0), (ROUNDS * rank.count) as u64, "uint128");
        check_eq!(f64::from_bits(mine.load_u64(32)), all, "double");
        #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
        let complex = [0.0, all as f32].map(f32::to_le_bytes).concat();
        check_eq!(mine.get(48, 8), complex, "float complex");
        check_eq!(mine.get(64, 16), [0.0, all].map(f64::to_le_bytes).concat(), "double complex");
        check_eq!(mine.get(120, 1), vec![120_u8], "int8");
        check_eq!(mine.get(122, 2), 1500_u16.to_le_bytes().to_vec(), "uint16");
    }
    rig.barrier()
}

/// Tests that small types within one word do not disturb their neighbours.
fn all_sizes(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 1000;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    let at = from(&remotes, 0, 0)?;
    // Rank 0 uses the byte, rank 1 the half word, rank 2 the word.
    let (datatype, off) = match rank.index {
        0 => (sys::FI_UINT8, 0),
        1 => (sys::FI_UINT16, 2),
        _ => (sys::FI_UINT32, 4),
    };
    let place =
        AtomicTarget { addr: at.addr + off, ..at.atomic(rig.to(0), datatype, sys::FI_SUM, 1) };
    let one = Ioc { buf: Buf::of(&encode(datatype, 1)), count: 1 };
    for _ in 0..ROUNDS {
        rig.complete(1, || rig.ep.atomic(&place, one))?;
    }
    if rank.index != 0 {
        announce(&rig, rig.to(0))?;
    } else {
        for _ in 1..rank.count {
            wait_for_announcement(&rig)?;
        }
        check_eq!(mine.load_u64(0), (ROUNDS << 32) | (ROUNDS << 16) | (ROUNDS & 0xff));
    }
    rig.barrier()
}
