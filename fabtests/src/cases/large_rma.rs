// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large RMA in progress together with others: order of accesses to the same bytes, events, and the
//! close of the region meanwhile. Between hosts a network executes these operations.

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("large_rma/writes_to_the_same_bytes", 2, writes_to_the_same_bytes),
    case("large_rma/read_between_writes", 2, read_between_writes),
    case("large_rma/regions_and_buffers_of_pieces", 2, pieces),
    case("large_rma/remote_data_in_order", 2, remote_data),
    case("large_rma/no_access_after_the_close_of_the_region", 2, close_meanwhile),
];

const LEN: usize = 1 << 20;
/// Lengths of operations, shorter and longer than those that a network executes.
const LENGTHS: [usize; 6] = [200_000, 40_000, 100, LEN, 32 << 10, 20_000];

/// Returns an endpoint that relies on all orders of RMA.
fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    let order = sys::FI_ORDER_RAW | sys::FI_ORDER_WAR | sys::FI_ORDER_WAW | sys::FI_ORDER_SAW;
    let spec = spec().with(|spec| {
        spec.hints.tx.msg_order |= order;
        spec.hints.rx.msg_order |= order;
    });
    Rig::open(rank, &spec)
}

/// Takes the completions of all outstanding operations.
fn finish(rig: &Rig<'_>, outstanding: usize) -> Outcome {
    for _ in 0..outstanding {
        rig.next(&rig.tx)?;
    }
    Ok(())
}

/// Writes of all lengths that end at one byte leave the last one, before a message that follows
/// them arrives.
fn writes_to_the_same_bytes(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(LEN), REMOTE)?;
    for round in 0..20_u64 {
        let seed = |at: usize| round * 100 + at as u64;
        if rank.index == 0 {
            for (at, len) in LENGTHS.into_iter().enumerate() {
                let (buf, to) = (Buf::pattern(len, seed(at)), from(&remotes, 1, LEN - len)?);
                rig.post(|| rig.ep.write(buf, rig.peer(), to.addr, to.key, at))?;
            }
            finish(&rig, LENGTHS.len())?;
            announce(&rig, rig.peer())?;
        } else {
            wait_for_announcement(&rig)?;
            let last = LENGTHS.len() - 1;
            let len = LENGTHS.last().copied().unwrap_or(0);
            let end = memory.sub(LEN - len, len);
            check_eq!(end.differs(len, seed(last)), None, "round {round}");
        }
        rig.barrier()?;
    }
    Ok(())
}

/// A read returns the bytes of the write before it, not those of the write after it.
fn read_between_writes(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let (_memory, _mr, remotes) = rig.share_buf(Buf::new(LEN), REMOTE)?;
    if rank.index == 0 {
        let to = from(&remotes, 1, 0)?;
        for round in 0..10_u64 {
            for len in LENGTHS {
                let (old, new) = (Buf::pattern(len, round), Buf::pattern(len, round + 50));
                let (back, again) = (Buf::new(len), Buf::new(len));
                rig.post(|| rig.ep.write(old, rig.peer(), to.addr, to.key, 1))?;
                rig.post(|| rig.ep.read(back, rig.peer(), to.addr, to.key, 2))?;
                rig.post(|| rig.ep.write(new, rig.peer(), to.addr, to.key, 3))?;
                rig.post(|| rig.ep.read(again, rig.peer(), to.addr, to.key, 4))?;
                finish(&rig, 4)?;
                check_eq!(back.differs(len, round), None, "{len} B");
                check_eq!(again.differs(len, round + 50), None, "{len} B");
            }
        }
    }
    rig.barrier()
}

/// Regions of several pieces, and lists of local buffers, are accessed as one range.
fn pieces(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    if rig.info.domain().mr_iov_limit < 3 || rig.info.domain().mr_mode & sys::FI_MR_VIRT_ADDR != 0 {
        return Err(Fail::NotRun("regions of several pieces".into()));
    }
    let all = Buf::new(LEN);
    let parts = [(500_000, 100_000), (7, 70_001), (200_000, 150_000)];
    let parts: Vec<Buf> = parts.iter().map(|(at, len)| all.sub(*at, *len)).collect();
    let total: usize = parts.iter().map(Buf::len).sum();
    let request = MrRequest { access: REMOTE, key: rig.fresh_key(), flags: 0 };
    let mr = Mr::regv(&rig.domain, &parts, request)?;
    let remotes = rig.exchange_remote(Remote { addr: 0, key: mr.key()?, len: total })?;
    if rank.index == 1 {
        for seed in 0..3 {
            wait_for_announcement(&rig)?;
            let joined: Vec<u8> = parts.iter().flat_map(Buf::bytes).collect();
            check_eq!(Buf::of(&joined).differs(total, seed), None);
        }
        return rig.barrier();
    }
    let to = from(&remotes, 1, 0)?;
    for seed in 0..3 {
        let (buf, back) = (Buf::pattern(total, seed), Buf::new(total));
        let lists = [1, 2, 4].map(|count| buf.split(count));
        let list = lists.get(usize::try_from(seed).unwrap_or(0)).map_or(&[][..], Vec::as_slice);
        let at = [RmaIov { addr: to.addr, len: total, key: to.key }];
        let message = || RmaMsg::at(rig.peer(), &at, 1);
        rig.complete(1, || rig.ep.writemsg(list, message(), sys::FI_COMPLETION))?;
        announce(&rig, rig.peer())?;
        rig.complete(1, || rig.ep.readmsg(&back.split(3), message(), sys::FI_COMPLETION))?;
        check_eq!(back.differs(total, seed), None);
        rig.complete(1, || rig.ep.readmsg(&[back], message(), sys::FI_COMPLETION))?;
        check_eq!(back.differs(total, seed), None);
    }
    rig.barrier()
}

/// Remote data of writes arrives once for each write and after its bytes, in the order of the
/// writes.
fn remote_data(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 20;
    let rig = rig(rank)?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(LEN), REMOTE)?;
    let to = from(&remotes, 1, 0)?;
    for round in 0..ROUNDS {
        if rank.index == 0 {
            for (at, len) in LENGTHS.into_iter().enumerate() {
                let (buf, data) = (Buf::pattern(len, round), round * 10 + at as u64);
                rig.post(|| rig.ep.writedata(buf, data, rig.peer(), (to.addr, to.key), at))?;
            }
            finish(&rig, LENGTHS.len())?;
        } else {
            let mut written = 0;
            for (at, len) in LENGTHS.into_iter().enumerate() {
                let entry = rig.next(&rig.rx)?;
                check_eq!(entry.flags & sys::FI_REMOTE_CQ_DATA, sys::FI_REMOTE_CQ_DATA);
                check_eq!(entry.data, round * 10 + at as u64);
                written = written.max(len);
                check_eq!(memory.differs(written, round), None, "{len} B");
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// The close of a region ends all access to it. Operations of the peer fail then, and none before.
fn close_meanwhile(rank: &Rank) -> Outcome {
    const OUTSTANDING: usize = 8;
    let rig = rig(rank)?;
    for round in 0..6 {
        let (memory, mr, remotes) = rig.share_buf(Buf::new(LEN), REMOTE)?;
        if rank.index == 1 {
            let until = std::time::Instant::now() + Duration::from_millis(20 + 7 * round);
            while std::time::Instant::now() < until {
                rig.progress()?;
            }
            drop(mr);
            memory.fill(0xee);
            rig.barrier()?;
            check!(memory.bytes().iter().all(|byte| *byte == 0xee), "written after the close");
            continue;
        }
        let to = from(&remotes, 1, 0)?;
        let (mut open, mut has_failed) = (0, false);
        while !has_failed || open > 0 {
            if !has_failed && open < OUTSTANDING {
                let buf = Buf::pattern(LEN, round);
                rig.post(|| match round % 2 {
                    0 => rig.ep.write(buf, rig.peer(), to.addr, to.key, 1),
                    _ => rig.ep.read(buf, rig.peer(), to.addr, to.key, 1),
                })?;
                open += 1;
                continue;
            }
            match rig.wait("the end of an operation", || Ok(rig.tx.take()))? {
                Ok(_) => {}
                Err(error) => {
                    check_eq!(error.err, Errno::EINVAL, "{error:?}");
                    has_failed = true;
                }
            }
            open -= 1;
        }
        rig.barrier()?;
    }
    Ok(())
}
