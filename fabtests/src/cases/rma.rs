// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Remote memory access: every call, every size, every mode of keys and addresses. Mirrors
//! fi_rma(3) and fi_mr(3).
//!
//! Access without calls of the target is tested in `progress_auto`, failures in `bad_rma`.

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::call_variants;

pub(crate) const CASES: &[Case] = &[
    case("rma/write", 2, |r| writes(r, Put::Write)),
    case("rma/writev", 2, |r| writes(r, Put::Writev)),
    case("rma/writemsg", 2, |r| writes(r, Put::Writemsg(0))),
    case("rma/writemsg_inject", 2, |r| writes(r, Put::Writemsg(sys::FI_INJECT))),
    case("rma/writemsg_delivery_complete", 2, |r| {
        writes(r, Put::Writemsg(sys::FI_DELIVERY_COMPLETE))
    }),
    case("rma/writemsg_transmit_complete", 2, |r| {
        writes(r, Put::Writemsg(sys::FI_TRANSMIT_COMPLETE))
    }),
    case("rma/writemsg_cq_data", 2, |r| writes(r, Put::Writemsg(sys::FI_REMOTE_CQ_DATA))),
    case("rma/inject_write", 2, |r| writes(r, Put::Inject)),
    case("rma/writedata", 2, |r| writes(r, Put::Writedata)),
    case("rma/inject_writedata", 2, |r| writes(r, Put::Injectdata)),
    case("rma/read", 2, |r| reads(r, Get::Read)),
    case("rma/readv", 2, |r| reads(r, Get::Readv)),
    case("rma/readmsg", 2, |r| reads(r, Get::Readmsg)),
    case("rma/scattered", 2, |r| scattered(&Rig::open(r, &spec())?)),
    case("rma/itself", 1, |r| itself(&Rig::open(r, &spec())?)),
    case("rma/read_after_write", 2, read_after_write),
    case("rma/many_outstanding", 2, many_outstanding),
    case("rma/both_at_once", 2, |r| both_at_once(&Rig::open(r, &spec())?)),
    case("rma/all_at_one", 4, all_at_one),
    case("rma/write_then_send", 2, |r| write_then_send(&Rig::open(r, &spec())?)),
    case("rma/mode_none", 2, |r| mode(r, 0)),
    case("rma/mode_virt_addr", 2, |r| mode(r, sys::FI_MR_VIRT_ADDR)),
    case("rma/mode_prov_key", 2, |r| mode(r, sys::FI_MR_PROV_KEY)),
    case("rma/mode_allocated", 2, |r| mode(r, sys::FI_MR_ALLOCATED)),
    case("rma/mode_virt_prov_alloc", 2, |r| mode(r, VIRT_PROV_ALLOC)),
    case("rma/mode_local", 2, |r| mode(r, sys::FI_MR_LOCAL | VIRT_PROV_ALLOC)),
    case("rma/mode_endpoint", 2, |r| mode(r, sys::FI_MR_ENDPOINT | VIRT_PROV_ALLOC)),
    case("rma/mode_everything", 2, |r| mode(r, EVERYTHING)),
    case("rma/mode_basic", 2, |r| mode(r, sys::FI_MR_BASIC)),
    case("rma/mode_scalable", 2, |r| mode(r, sys::FI_MR_SCALABLE)),
    case("rma/regions_of_pieces", 2, |r| regions_of_pieces(&Rig::open(r, &spec())?)),
    case("rma/selective_completion", 2, selective),
    case("rma/memory_of_every_kind", 2, |r| memory_kinds(&Rig::open(r, &spec())?)),
    case("rma/domain_opened_for_messages", 2, message_domain).under(&[("FI_SCIF_STATS", "1")]),
];

const VIRT_PROV_ALLOC: i32 = sys::FI_MR_VIRT_ADDR | sys::FI_MR_PROV_KEY | sys::FI_MR_ALLOCATED;
const EVERYTHING: i32 = VIRT_PROV_ALLOC | sys::FI_MR_LOCAL | sys::FI_MR_ENDPOINT | sys::FI_MR_RAW;
pub(crate) const REMOTE: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
const LARGEST: usize = (4 << 20) + 4096;
/// Odd offset, so that no access is aligned by accident.
const AT: usize = 67;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    Write,
    Writev,
    Writemsg(u64),
    Inject,
    Writedata,
    Injectdata,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Get {
    Read,
    Readv,
    Readmsg,
}

impl Put {
    fn injects(self) -> bool {
        matches!(self, Put::Inject | Put::Injectdata)
            || matches!(self, Put::Writemsg(flags) if flags & sys::FI_INJECT != 0)
    }

    fn silent(self) -> bool {
        matches!(self, Put::Inject | Put::Injectdata)
    }

    fn has_data(self) -> bool {
        matches!(self, Put::Writedata | Put::Injectdata)
            || matches!(self, Put::Writemsg(flags) if flags & sys::FI_REMOTE_CQ_DATA != 0)
    }
}

/// Returns requirements for RMA that a later message announces.
pub(crate) fn spec() -> Spec {
    Spec::caps(sys::FI_RMA | sys::FI_MSG).with(|spec| {
        spec.hints.tx.msg_order = sys::FI_ORDER_SAS | sys::FI_ORDER_SAW;
        spec.hints.rx.msg_order = sys::FI_ORDER_SAS | sys::FI_ORDER_SAW;
    })
}

/// Writes to the peer, with context 1.
fn put(rig: &Rig<'_>, how: Put, buf: Buf, at: Remote, data: u64) -> Result {
    let (ep, dest, context) = (&rig.ep, rig.peer(), 1);
    let pieces = || buf.split(rig.info.tx().iov_limit.clamp(1, 3));
    match how {
        Put::Write => ep.write(buf, dest, at.addr, at.key, context),
        Put::Writev => ep.writev(&pieces(), dest, at.addr, at.key, context),
        Put::Writemsg(flags) => {
            let to = [RmaIov { addr: at.addr, len: buf.len(), key: at.key }];
            ep.writemsg(
                &pieces(),
                RmaMsg { data, ..RmaMsg::at(dest, &to, context) },
                flags | sys::FI_COMPLETION,
            )
        }
        Put::Inject => ep.inject_write(buf, dest, at.addr, at.key),
        Put::Writedata => ep.writedata(buf, data, dest, (at.addr, at.key), context),
        Put::Injectdata => ep.inject_writedata(buf, data, dest, at.addr, at.key),
    }
}

fn get(rig: &Rig<'_>, how: Get, buf: Buf, src: u64, at: Remote, context: usize) -> Result {
    let ep = &rig.ep;
    let pieces = || buf.split(rig.info.tx().iov_limit.clamp(1, 4));
    match how {
        Get::Read => ep.read(buf, src, at.addr, at.key, context),
        Get::Readv => ep.readv(&pieces(), src, at.addr, at.key, context),
        Get::Readmsg => {
            let from = [RmaIov { addr: at.addr, len: buf.len(), key: at.key }];
            ep.readmsg(&pieces(), RmaMsg::at(src, &from, context), sys::FI_COMPLETION)
        }
    }
}

/// Returns the region of another rank, from an offset on.
pub(crate) fn from(remotes: &[Remote], rank: usize, off: usize) -> Outcome<Remote> {
    let mut remote = *remotes.get(rank).ok_or_else(|| Fail::here("no such rank"))?;
    remote.addr += off as u64;
    remote.len -= off;
    Ok(remote)
}

/// Sends an empty message after earlier writes, which announces their data.
pub(crate) fn announce(rig: &Rig<'_>, dest: u64) -> Outcome {
    rig.complete(0xa11, || rig.ep.send(Buf::NULL, dest, 0xa11)).map(drop)
}

/// Waits for [`announce`].
pub(crate) fn wait_for_announcement(rig: &Rig<'_>) -> Outcome {
    rig.post(|| rig.ep.recv(Buf::NULL, sys::FI_ADDR_UNSPEC, 0xea4))?;
    rig.received(0xea4).map(drop)
}

fn check_put(rig: &Rig<'_>, context: usize) -> Outcome {
    let entry = rig.sent(context)?;
    check_eq!(
        entry.flags & (sys::FI_RMA | sys::FI_WRITE),
        sys::FI_RMA | sys::FI_WRITE,
        "{:#x}",
        entry.flags
    );
    Ok(())
}

fn check_got(rig: &Rig<'_>, context: usize) -> Outcome {
    let entry = rig.sent(context)?;
    check_eq!(
        entry.flags & (sys::FI_RMA | sys::FI_READ),
        sys::FI_RMA | sys::FI_READ,
        "{:#x}",
        entry.flags
    );
    Ok(())
}

fn writes(rank: &Rank, how: Put) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(LARGEST), REMOTE)?;
    let limit = if how.injects() { rig.info.tx().inject_size } else { LARGEST - AT };
    for &size in call_variants::SIZES.iter().filter(|&&size| size <= limit) {
        let (seed, data) = (size as u64 + 1, 0x00c0_ffee);
        if rank.index == 0 {
            let buf = Buf::pattern(size, seed);
            let at = from(&remotes, 1, AT)?;
            rig.post(|| put(&rig, how, buf, at, data))?;
            if how.injects() {
                buf.fill(0);
            }
            if !how.silent() {
                check_put(&rig, 1)?;
            }
            announce(&rig, rig.peer())?;
            wait_for_announcement(&rig)?;
        } else {
            if how.has_data() {
                let entry = rig.next(&rig.rx)?;
                let want = sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
                check_eq!(entry.flags & want, want, "flags {:#x}", entry.flags);
                check_eq!(entry.data, data);
                check_eq!(entry.len, size);
                // The data is visible when the event is.
                check_eq!(mine.sub(AT, size).differs(size, seed), None);
            }
            wait_for_announcement(&rig)?;
            check_eq!(mine.sub(AT, size).differs(size, seed), None, "{how:?} {size} B");
            check!(mine.get(0, AT).iter().all(|&byte| byte == 0), "bytes before were written");
            let after = mine.get(AT + size, (LARGEST - AT - size).min(4096));
            check!(after.iter().all(|&byte| byte == 0), "bytes after were written");
            mine.sub(AT, size).fill(0);
            announce(&rig, rig.peer())?;
        }
    }
    rig.barrier()
}

fn reads(rank: &Rank, how: Get) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::pattern(LARGEST, 77), REMOTE)?;
    if rank.index == 0 {
        for &size in call_variants::SIZES {
            let buf = Buf::new(size + 64);
            let at = from(&remotes, 1, AT)?;
            rig.post(|| get(&rig, how, buf.sub(0, size), rig.peer(), at, 2))?;
            check_got(&rig, 2)?;
            check_eq!(buf.get(0, size) == mine.get(AT, size), true, "{how:?} {size} B");
            check!(buf.get(size, 64).iter().all(|&byte| byte == 0), "bytes after were written");
        }
    }
    rig.barrier()
}

/// Tests several local and several remote ranges whose boundaries differ.
fn scattered(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(LARGEST), REMOTE)?;
    let (local, remote) = (rig.info.tx().iov_limit.min(4), rig.info.tx().rma_iov_limit.min(4));
    for size in [40, 4096, 70_001, 1 << 20] {
        // Remote ranges with gaps of at least a page between them, in descending order.
        let piece = size / remote;
        let place = |index: usize| (remote - 1 - index) * (piece + 4096 + remote) + 13;
        let len = |index: usize| {
            if index + 1 == remote { size - piece * (remote - 1) } else { piece }
        };
        if rig.rank.index == 0 {
            let at = from(&remotes, 1, 0)?;
            let to: Vec<RmaIov> = (0..remote)
                .map(|index| RmaIov {
                    addr: at.addr + place(index) as u64,
                    len: len(index),
                    key: at.key,
                })
                .collect();
            let (buf, back) = (Buf::pattern(size, 5), Buf::new(size));
            rig.post(|| {
                rig.ep.writemsg(
                    &buf.split(local),
                    RmaMsg::at(rig.peer(), &to, 1),
                    sys::FI_COMPLETION,
                )
            })?;
            check_put(rig, 1)?;
            announce(rig, rig.peer())?;
            wait_for_announcement(rig)?;
            rig.post(|| {
                rig.ep.readmsg(
                    &back.split(local),
                    RmaMsg::at(rig.peer(), &to, 2),
                    sys::FI_COMPLETION,
                )
            })?;
            check_got(rig, 2)?;
            check_eq!(back.differs(size, 5), None);
        } else {
            wait_for_announcement(rig)?;
            let joined: Vec<u8> =
                (0..remote).flat_map(|index| mine.get(place(index), len(index))).collect();
            check_eq!(Buf::of(&joined).differs(size, 5), None, "{size} B");
            announce(rig, rig.peer())?;
        }
        rig.barrier()?;
        mine.fill(0);
        rig.barrier()?;
    }
    Ok(())
}

fn itself(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(LARGEST), REMOTE)?;
    let at = from(&remotes, 0, AT)?;
    for &size in call_variants::SIZES {
        let (buf, back) = (Buf::pattern(size, 3), Buf::new(size));
        rig.post(|| rig.ep.write(buf, rig.to(0), at.addr, at.key, 1))?;
        check_put(rig, 1)?;
        rig.post(|| rig.ep.read(back, rig.to(0), at.addr, at.key, 2))?;
        check_got(rig, 2)?;
        check_eq!(back.differs(size, 3), None);
        check_eq!(mine.sub(AT, size).differs(size, 3), None);
    }
    Ok(())
}

/// Tests that with the order requested a read posted directly after a write returns its data.
fn read_after_write(rank: &Rank) -> Outcome {
    let order = sys::FI_ORDER_RAW | sys::FI_ORDER_WAW;
    let rig = Rig::open(
        rank,
        &spec().with(|spec| {
            spec.hints.tx.msg_order |= order;
            spec.hints.rx.msg_order |= order;
        }),
    )?;
    let (_mr, remotes) = rig.share(Buf::new(LARGEST), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, AT)?;
        for &size in
            call_variants::SIZES.iter().filter(|&&size| size <= rig.info.ep().max_order_raw_size)
        {
            let (old, new, back) = (Buf::pattern(size, 8), Buf::pattern(size, 9), Buf::new(size));
            rig.post(|| rig.ep.write(old, rig.peer(), at.addr, at.key, 1))?;
            rig.post(|| rig.ep.write(new, rig.peer(), at.addr, at.key, 2))?;
            rig.post(|| rig.ep.read(back, rig.peer(), at.addr, at.key, 3))?;
            for _ in 0..3 {
                rig.next(&rig.tx)?;
            }
            check_eq!(back.differs(size, 9), None, "{size} B");
        }
    }
    rig.barrier()
}

fn many_outstanding(rank: &Rank) -> Outcome {
    const COUNT: usize = 2000;
    let rig = Rig::open(rank, &spec())?;
    for size in [8, 1000, 20_000] {
        let (mine, _mr, remotes) = rig.share_buf(Buf::new(COUNT * size), REMOTE)?;
        if rank.index == 0 {
            let mut open = 0;
            for index in 0..COUNT {
                let buf = Buf::pattern(size, index as u64);
                let at = from(&remotes, 1, index * size)?;
                rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, index))?;
                open += 1;
                while rig.tx.kept() > 0 {
                    rig.next(&rig.tx)?;
                    open -= 1;
                }
            }
            for _ in 0..open {
                rig.next(&rig.tx)?;
            }
            announce(&rig, rig.peer())?;
        } else {
            wait_for_announcement(&rig)?;
            for index in 0..COUNT {
                check_eq!(
                    mine.sub(index * size, size).differs(size, index as u64),
                    None,
                    "{size} B {index}"
                );
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests concurrent writes and reads by both ranks, each on the memory of the other.
fn both_at_once(rig: &Rig<'_>) -> Outcome {
    let (target, source) = (Buf::new(LARGEST), Buf::pattern(LARGEST, rig.rank.index as u64));
    let (_mr, targets) = rig.share(target, REMOTE)?;
    let (_mr, sources) = rig.share(source, REMOTE)?;
    let (mine, other) = (rig.rank.index as u64, 1 - rig.rank.index as u64);
    for &size in call_variants::SIZES {
        let (to, at) = (from(&targets, rig.rank.peer(), 0)?, from(&sources, rig.rank.peer(), 0)?);
        let (buf, back) = (Buf::pattern(size, mine + 10), Buf::new(size));
        rig.post(|| rig.ep.write(buf, rig.peer(), to.addr, to.key, 1))?;
        rig.post(|| rig.ep.read(back, rig.peer(), at.addr, at.key, 2))?;
        let done = rig.next(&rig.tx)?.context + rig.next(&rig.tx)?.context;
        check_eq!(done, 3);
        check_eq!(back.differs(size, other), None);
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        check_eq!(target.differs(size, other + 10), None);
        rig.barrier()?;
    }
    Ok(())
}

/// Tests concurrent writes of three ranks to one.
fn all_at_one(rank: &Rank) -> Outcome {
    const PART: usize = 300_000;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(PART * rank.count), REMOTE)?;
    for size in [8, 5000, PART] {
        if rank.index == 0 {
            for _ in 1..rank.count {
                wait_for_announcement(&rig)?;
            }
            for from in 1..rank.count {
                check_eq!(mine.sub(from * PART, size).differs(size, from as u64), None);
            }
        } else {
            let at = from(&remotes, 0, rank.index * PART)?;
            let buf = Buf::pattern(size, rank.index as u64);
            rig.post(|| rig.ep.write(buf, rig.to(0), at.addr, at.key, 1))?;
            check_put(&rig, 1)?;
            announce(&rig, rig.to(0))?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a message sent directly after a write, before its completion, arrives after its data.
fn write_then_send(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(LARGEST), REMOTE)?;
    for &size in call_variants::SIZES {
        if rig.rank.index == 0 {
            let at = from(&remotes, 1, 0)?;
            let buf = Buf::pattern(size, size as u64);
            rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
            rig.post(|| rig.ep.send(Buf::NULL, rig.peer(), 2))?;
            rig.next(&rig.tx)?;
            rig.next(&rig.tx)?;
        } else {
            wait_for_announcement(rig)?;
            check_eq!(mine.differs(size, size as u64), None, "{size} B");
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that keys and addresses follow the mode: the mode answered to a program that offers
/// `mr_mode`, and `mr_mode` itself for a domain opened with it.
fn mode(rank: &Rank, mr_mode: i32) -> Outcome {
    let offers = spec().with(|spec| spec.hints.mr_mode = mr_mode);
    let rig = Rig::open(rank, &offers)?;
    let have = rig.info.domain().mr_mode;
    let of_old = mr_mode == sys::FI_MR_BASIC || mr_mode == sys::FI_MR_SCALABLE;
    if !of_old && mr_mode != 0 {
        check_eq!(have & !mr_mode, 0, "a mode was returned that was not offered");
    }
    one_write(&rig)?;
    drop(rig);
    if rank.target.prov != "scif" {
        // A domain of another provider may be opened with the answered mode only.
        return Ok(());
    }
    check_eq!(have, if of_old { mr_mode } else { 0 }, "a mode that is not needed");
    // Raw keys are tested in `mr/raw_keys`.
    let opened = mr_mode & !sys::FI_MR_RAW;
    let rig = Rig::open(rank, &offers.with(|spec| spec.opened_mr_mode = Some(opened)))?;
    check_eq!(rig.info.domain().mr_mode, opened);
    one_write(&rig)
}

fn one_write(rig: &Rig<'_>) -> Outcome {
    let (rank, have) = (rig.rank, rig.info.domain().mr_mode);
    let (mine, mr, remotes) = rig.share_buf(Buf::new(10_000), REMOTE)?;
    let described = Buf::pattern(5000, 6);
    let (local, _) = rig.register(described, sys::FI_READ | sys::FI_WRITE | sys::FI_SEND)?;
    if have & (sys::FI_MR_PROV_KEY | sys::FI_MR_BASIC) == 0 {
        // The requested key is used.
        check_eq!(mr.key()?, 0x1000);
    } else {
        // The requested key is ignored.
        let spec = MrRequest { access: REMOTE, key: 0x1000, flags: 0 };
        let other = Mr::reg(&rig.domain, mine, spec)?;
        check!(other.key()? != mr.key()?, "one key for two regions");
    }
    let at = from(&remotes, rank.peer(), 100)?;
    let buf = described.described(local.desc()?);
    rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
    check_put(rig, 1)?;
    announce(rig, rig.peer())?;
    wait_for_announcement(rig)?;
    check_eq!(mine.sub(100, 5000).differs(5000, 6), None);
    rig.barrier()
}

/// Tests that a region of several ranges is one range of addresses.
fn regions_of_pieces(rig: &Rig<'_>) -> Outcome {
    let mode = rig.info.domain().mr_mode;
    let count = rig.info.domain().mr_iov_limit.min(3);
    if count < 2 || mode & (sys::FI_MR_VIRT_ADDR | sys::FI_MR_BASIC) != 0 {
        return Err(Fail::NotRun("regions of several pieces".into()));
    }
    let all = Buf::new(60_000);
    let pieces: Vec<Buf> = [(40_000, 10_000), (100, 20_000), (25_000, 7)]
        .iter()
        .take(count)
        .map(|&(at, len)| all.sub(at, len))
        .collect();
    let total: usize = pieces.iter().map(Buf::len).sum();
    for attr in [false, true] {
        let spec = MrRequest { access: REMOTE, key: rig.fresh_key(), flags: 0 };
        let mr = if attr {
            Mr::regattr(&rig.domain, &pieces, spec, 0)?
        } else {
            Mr::regv(&rig.domain, &pieces, spec)?
        };
        let remotes = rig.exchange_remote(Remote { addr: 0, key: mr.key()?, len: total })?;
        let at = from(&remotes, rig.rank.peer(), 0)?;
        let (buf, back) = (Buf::pattern(total, 4), Buf::new(total));
        rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
        check_put(rig, 1)?;
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        let joined: Vec<u8> = pieces.iter().flat_map(Buf::bytes).collect();
        check_eq!(Buf::of(&joined).differs(total, 4), None);
        rig.post(|| rig.ep.read(back, rig.peer(), at.addr, at.key, 2))?;
        check_got(rig, 2)?;
        check_eq!(back.differs(total, 4), None);
        // Across the boundary of the first two.
        let small = Buf::new(20);
        rig.post(|| rig.ep.read(small, rig.peer(), at.addr + 9_990, at.key, 3))?;
        check_got(rig, 3)?;
        check_eq!(small.bytes() == buf.get(9_990, 20), true);
        rig.barrier()?;
    }
    Ok(())
}

fn selective(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.selective = true))?;
    let (_mr, remotes) = rig.share(Buf::new(1000), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let to = [RmaIov { addr: at.addr, len: 8, key: at.key }];
        let buf = Buf::new(8);
        rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
        rig.post(|| rig.ep.read(buf, rig.peer(), at.addr, at.key, 2))?;
        rig.post(|| rig.ep.writemsg(&[buf], RmaMsg::at(rig.peer(), &to, 3), 0))?;
        rig.post(|| rig.ep.writemsg(&[buf], RmaMsg::at(rig.peer(), &to, 4), sys::FI_COMPLETION))?;
        check_put(&rig, 4)?;
        rig.post(|| rig.ep.readmsg(&[buf], RmaMsg::at(rig.peer(), &to, 5), sys::FI_COMPLETION))?;
        check_got(&rig, 5)?;
        rig.silence(std::time::Duration::from_millis(20))?;
    }
    rig.barrier()
}

/// Tests regions in the heap, in private and in shared mappings.
fn memory_kinds(rig: &Rig<'_>) -> Outcome {
    for (kind, mine) in
        [("heap", Buf::new(200)), ("mapping", Buf::new(1 << 20)), ("shared", Buf::shared(1 << 20)?)]
    {
        let (_mr, remotes) = rig.share(mine, REMOTE)?;
        let at = from(&remotes, rig.rank.peer(), 0)?;
        for size in [8, 200, 65_536, 1 << 20].into_iter().filter(|&size| size <= mine.len()) {
            let buf = Buf::pattern(size, 2);
            rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
            check_put(rig, 1)?;
            announce(rig, rig.peer())?;
            wait_for_announcement(rig)?;
            check_eq!(mine.differs(size, 2), None, "{kind} {size} B");
            rig.barrier()?;
            mine.fill(0);
            rig.barrier()?;
        }
    }
    Ok(())
}

/// Tests an endpoint with RMA in a domain that was opened for messages only, as Open MPI 5 does.
/// Its operations do not pass the ring.
fn message_domain(rank: &Rank) -> Outcome {
    rank.only_scif("the paths of another provider")?;
    if !sandbox::may_call_process_vm() {
        return Err(Fail::NotHere("process_vm is denied".into()));
    }
    let (done, text) = sandbox::stderr_of(|| -> Outcome {
        let first = |spec: &Spec| -> Outcome<_> {
            let info = offers(rank, load(rank)?, &spec.hints)?.into_iter().next();
            info.ok_or_else(|| Fail::here("an empty list"))
        };
        let messages = first(&Spec::messages(true))?;
        let fabric = Fabric::open(&messages)?;
        let domain = Domain::open(&fabric, &messages)?;
        let rig = Rig::open_in(rank, first(&spec())?, &fabric, &domain, &spec())?.meet()?;
        let (_mr, remotes) = rig.share(Buf::new(LARGEST), REMOTE)?;
        for size in [8, 16 << 10, LARGEST] {
            let at = from(&remotes, rank.peer(), 0)?;
            rig.post(|| rig.ep.write(Buf::pattern(size, 5), rig.peer(), at.addr, at.key, 1))?;
            check_put(&rig, 1)?;
            let back = Buf::new(size);
            rig.post(|| rig.ep.read(back, rig.peer(), at.addr, at.key, 2))?;
            rig.sent(2)?;
            check_eq!(back.differs(size, 5), None, "{size} B");
        }
        rig.barrier()
    })?;
    done?;
    check!(text.contains(" rma 6/") && text.contains(" ring 0/0 "), "{text}");
    Ok(())
}
