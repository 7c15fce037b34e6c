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
