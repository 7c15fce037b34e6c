// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory regions as objects: keys, limits, closing. Mirrors fi_mr(3). Accesses to regions are
//! tested in `rma`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, announce, from, spec, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("mr/requested_keys", 1, |r| requested_keys(&Rig::open(r, &spec())?)),
    case("mr/given_keys", 1, given_keys),
    case("mr/same_key_twice", 1, |r| same_key(&Rig::open(r, &spec())?)),
    case("mr/limits", 1, limits),
    case("mr/local_only", 1, |r| local_only(&Rig::open(r, &spec())?)),
    case("mr/binds_and_controls", 1, |r| binds_and_controls(&Rig::open(r, &spec())?)),
    case("mr/thousands", 2, thousands),
    case("mr/same_memory_twice", 2, |r| same_memory(&Rig::open(r, &spec())?)),
    case("mr/busy_domain", 1, |r| busy_domain(&Rig::open(r, &spec())?)),
    case("mr/raw_keys", 2, raw_keys),
    case("mr/refresh", 2, refresh),
    case("mr/events_of_registrations", 1, events),
    case("mr/memory_of_devices", 1, devices),
    case("mr/part_of_a_region", 2, part),
    case("mr/part_outside_its_region", 1, outside),
];

fn user_keys(rig: &Rig<'_>) -> bool {
    rig.info.domain().mr_mode & (sys::FI_MR_PROV_KEY | sys::FI_MR_BASIC) == 0
}

fn with_key(key: u64) -> MrRequest {
    MrRequest { access: REMOTE, key, flags: 0 }
}

fn requested_keys(rig: &Rig<'_>) -> Outcome {
    check!(user_keys(rig), "mode {:#x}", rig.info.domain().mr_mode);
    let buf = Buf::new(64);
    let most = match rig.info.domain().mr_key_size {
        8.. => u64::MAX - 1,
        size => (1 << (8 * size)) - 1,
    };
    for key in [0, 1, 77, most / 2, most] {
        let mr = Mr::reg(&rig.domain, buf, with_key(key))?;
        check_eq!(mr.key()?, key);
        check_eq!(mr.class()?, sys::FI_CLASS_MR);
    }
    Ok(())
}

fn given_keys(rank: &Rank) -> Outcome {
    // The one mode with provider keys that a provider without need for them accepts.
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.mr_mode = sys::FI_MR_BASIC))?;
    check!(!user_keys(&rig), "mode {:#x}", rig.info.domain().mr_mode);
    let buf = Buf::new(64);
    let regions: Vec<_> =
        (0..100).map(|_| Mr::reg(&rig.domain, buf, with_key(5))).collect::<Result<_, _>>()?;
    let keys: BTreeSet<u64> = regions.iter().map(|mr| mr.key()).collect::<Result<_, _>>()?;
    check_eq!(keys.len(), 100);
    check!(!keys.contains(&sys::FI_KEY_NOTAVAIL));
    Ok(())
}

fn same_key(rig: &Rig<'_>) -> Outcome {
    let buf = Buf::new(64);
    let first = Mr::reg(&rig.domain, buf, with_key(9))?;
    check_eq!(Mr::reg(&rig.domain, buf, with_key(9)).err(), Some(Errno::ENOKEY));
    check_eq!(Mr::regv(&rig.domain, &[buf], with_key(9)).err(), Some(Errno::ENOKEY));
    check_eq!(Mr::regattr(&rig.domain, &[buf], with_key(9), 0).err(), Some(Errno::ENOKEY));
    drop(first);
    check!(Mr::reg(&rig.domain, buf, with_key(9)).is_ok(), "a closed region keeps its key");
    Ok(())
}

fn limits(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let buf = Buf::new(64);
    let limit = rig.info.domain().mr_iov_limit;
    check!(limit >= 1);
    let most = vec![buf; limit];
    let more = vec![buf; limit + 1];
    check!(Mr::regv(&rig.domain, &most, with_key(1)).is_ok());
    check_eq!(Mr::regv(&rig.domain, &more, with_key(2)).err(), Some(Errno::EINVAL));
    check_eq!(Mr::regattr(&rig.domain, &more, with_key(2), 0).err(), Some(Errno::EINVAL));
    check_eq!(Mr::regv(&rig.domain, &[], with_key(3)).err(), Some(Errno::EINVAL));
    check_eq!(Mr::regattr(&rig.domain, &[], with_key(3), 0).err(), Some(Errno::EINVAL));
    let flagged = MrRequest { flags: 1 << 50, ..with_key(4) };
    check!(Mr::reg(&rig.domain, buf, flagged).is_err(), "unknown flags were taken");
    Ok(())
}

/// Tests that regions without remote access need no key: any number of them may have the same one,
/// which gives no access. Their descriptors serve sends and receives.
fn local_only(rig: &Rig<'_>) -> Outcome {
    let buf = Buf::pattern(64, 1);
    let mut regions = Vec::new();
    for access in
        [0, sys::FI_SEND, sys::FI_RECV, sys::FI_READ | sys::FI_WRITE, sys::FI_SEND | sys::FI_RECV]
    {
        let spec = MrRequest { access, key: 0, flags: 0 };
        regions.push(Mr::reg(&rig.domain, buf, spec)?);
    }
    rig.failure(&rig.tx, 1, || rig.ep.read(Buf::new(8), rig.to(0), 0, 0, 1))?;
    let with_key = Mr::reg(&rig.domain, Buf::new(8), with_key(0))?;
    check_eq!(with_key.key()?, 0);
    for mr in &regions {
        let into = Buf::new(64);
        let (from, into) = (buf.described(mr.desc()?), into.described(mr.desc()?));
        rig.post(|| rig.ep.recv(into, sys::FI_ADDR_UNSPEC, 2))?;
        rig.post(|| rig.ep.send(from, rig.to(0), 3))?;
        rig.received(2)?;
        rig.sent(3)?;
        check_eq!(into.differs(64, 1), None);
    }
    Ok(())
}

/// Tests that the bind and enable calls of programs for other modes have no ill effect.
fn binds_and_controls(rig: &Rig<'_>) -> Outcome {
    let mr = Mr::reg(&rig.domain, Buf::new(64), with_key(1))?;
    if rig.rank.target.prov == "scif" {
        check_eq!(mr.bind(rig.ep.as_ref(), 0), Ok(()));
        check_eq!(mr.enable(), Ok(()));
    }
    check!(mr.control_null(12_345).is_err());
    check!(mr.bind(rig.tx.cq.as_ref(), 0).is_err(), "a region was bound to a queue");
    check_eq!(mr.ops_open(c"nobody"), Err(Errno::ENOSYS));
    Ok(())
}

/// Tests thousands of regions, opened and closed in irregular order; each key gives access to its
/// own memory.
fn thousands(rank: &Rank) -> Outcome {
    const COUNT: usize = 3000;
    let rig = Rig::open(rank, &spec())?;
    let all = Buf::new(COUNT * 64);
    let mut regions = Vec::new();
    for index in 0..COUNT {
        let mr = Mr::reg(&rig.domain, all.sub(index * 64, 64), with_key(index as u64))?;
        regions.push(Some(mr));
    }
    // Every third region is closed and opened again.
    for index in (0..COUNT).step_by(3) {
        if let Some(slot) = regions.get_mut(index) {
            *slot = None;
            *slot = Some(Mr::reg(&rig.domain, all.sub(index * 64, 64), with_key(index as u64))?);
        }
    }
    let (_keep, base) = rig.register(all, REMOTE)?;
    let remotes = rig.exchange_remote(base)?;
    let absolute = rig.info.domain().mr_mode & (sys::FI_MR_VIRT_ADDR | sys::FI_MR_BASIC) != 0;
    if rank.index == 0 {
        let there = from(&remotes, 1, 0)?.addr;
        for index in 0..COUNT {
            let addr = if absolute { there + index as u64 * 64 } else { 0 };
            let buf = Buf::of(&(index as u64 + 1).to_le_bytes());
            rig.complete(1, || rig.ep.write(buf, rig.peer(), addr, index as u64, 1))?;
        }
        announce(&rig, rig.peer())?;
    } else {
        wait_for_announcement(&rig)?;
        for index in 0..COUNT {
            check_eq!(all.load_u64(index * 64), index as u64 + 1);
        }
    }
    rig.barrier()
}

/// Tests several regions of the same memory with different rights.
fn same_memory(rig: &Rig<'_>) -> Outcome {
    let (buf, _r, readable) = rig.share_buf(Buf::new(8192), sys::FI_REMOTE_READ)?;
    let (w, writable) = rig.share(buf.sub(4096, 64), sys::FI_REMOTE_WRITE)?;
    if rig.rank.index == 0 {
        let (r, w) = (from(&readable, 1, 0)?, from(&writable, 1, 0)?);
        rig.complete(1, || rig.ep.write(Buf::pattern(64, 1), rig.peer(), w.addr, w.key, 1))?;
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        let back = Buf::new(64);
        rig.complete(2, || rig.ep.read(back, rig.peer(), r.addr + 4096, r.key, 2))?;
        check_eq!(back.differs(64, 1), None);
    } else {
        wait_for_announcement(rig)?;
        drop(w);
        announce(rig, rig.peer())?;
    }
    rig.barrier()
}

fn busy_domain(rig: &Rig<'_>) -> Outcome {
    let domain = Domain::open(&rig.fabric, &rig.info)?;
    let mr = Mr::reg(&domain, Buf::new(64), with_key(1))?;
    check_eq!(domain.close(), Err(Errno::EBUSY));
    drop(mr);
    check_eq!(domain.close(), Ok(()));
    Ok(())
}

/// Tests that a key transferred in its raw form, and mapped, equals the key.
fn raw_keys(rank: &Rank) -> Outcome {
    const LEN: usize = 4096;
    let rig = Rig::open(rank, &spec())?;
    let region = Buf::pattern(LEN, rank.index as u64);
    let (mr, remote) = rig.register(region, REMOTE)?;
    let Err((short, needed)) = mr.raw_attr(0) else {
        return Err(Fail::here("a key in no bytes"));
    };
    check_eq!(short, Errno::ETOOSMALL);
    let (base, raw) = mr.raw_attr(needed).map_err(|(e, _)| e)?;
    check_eq!(raw.len(), needed);
    let (_, more) = mr.raw_attr(needed + 100).map_err(|(e, _)| e)?;
    check_eq!(more, raw);
    let told = [base.to_ne_bytes().as_slice(), &remote.addr.to_ne_bytes(), &raw].concat();
    let parts = rig.exchange(&told)?;
    let theirs = parts.get(rank.peer()).ok_or_else(|| Fail::here("nothing heard"))?;
    let (head, key) = theirs.split_at_checked(16).ok_or_else(|| Fail::here("too little heard"))?;
    let word = |at: usize| {
        let bytes = head.get(at..).and_then(<[u8]>::first_chunk::<8>);
        bytes.copied().map(u64::from_ne_bytes).ok_or_else(|| Fail::here("too little heard"))
    };
    let (base, addr) = (word(0)?, word(8)?);
    check_eq!(Mr::map_raw(&rig.domain, base, &[1, 2, 3]), Err(Errno::EINVAL));
    let mapped = Mr::map_raw(&rig.domain, base, key)?;
    let back = Buf::new(LEN);
    rig.complete(1, || rig.ep.read(back, rig.peer(), addr, mapped, 1))?;
    check_eq!(back.differs(LEN, rank.peer() as u64), None);
    check_eq!(Mr::unmap_key(&rig.domain, mapped), Ok(()));
    rig.barrier()
}

/// Tests that pages replaced under a region belong to the region, with and without a refresh call.
fn refresh(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 16;
    let rig = Rig::open(rank, &spec())?;
    let region = Buf::shared(LEN)?;
    region.fill_pattern(1);
    let (mr, remotes) = rig.share(region, REMOTE)?;
    let remote = from(&remotes, rank.peer(), 0)?;
    let back = Buf::new(LEN);
    for seed in [1, 2] {
        region.fill_pattern(seed);
        check_eq!(mr.refresh(&[region.sub(0, 4096)], 0), Ok(()));
        check_eq!(mr.refresh(&[], 0), Ok(()));
        rig.barrier()?;
        rig.complete(1, || rig.ep.read(back, rig.peer(), remote.addr, remote.key, 1))?;
        check_eq!(back.differs(LEN, seed), None);
        rig.barrier()?;
    }
    Ok(())
}

/// Opens an endpoint of this provider; other providers promise other results.
fn rig_of_ours(rank: &Rank) -> Outcome<Rig<'_>> {
    if rank.target.prov == "scif" {
        Rig::open(rank, &spec())
    } else {
        Err(Fail::NotRun("answers of another provider".into()))
    }
}

/// Tests that a domain with an event queue for registrations reports each successful one, from any
/// call.
fn events(rank: &Rank) -> Outcome {
    const PATIENCE_MS: i32 = 20_000;
    const CONTEXT: usize = 0x77;
    let rig = rig_of_ours(rank)?;
    let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
    let (eq, silent) = (Eq::open(&rig.fabric, attr)?, Eq::open(&rig.fabric, attr)?);
    let domain = Domain::open(&rig.fabric, &rig.info)?;
    for flags in [sys::FI_SEND, sys::FI_REG_MR | sys::FI_SEND, 1 << 50] {
        let bound = domain.bind(eq.as_ref(), flags);
        check_eq!(bound, Err(Errno::EBADFLAGS), "flags {flags:#x}");
    }
    // None of these calls has bound the queue.
    check_eq!(domain.bind(eq.as_ref(), sys::FI_REG_MR), Ok(()));
    for again in [&eq, &silent] {
        for flags in [0, sys::FI_REG_MR] {
            let bound = domain.bind(again.as_ref(), flags);
            check_eq!(bound, Err(Errno::EINVAL), "flags {flags:#x}");
        }
    }
    let buf = Buf::new(4096);
    let regions = [
        (Mr::reg(&domain, buf, with_key(1))?, 0),
        (Mr::regattr(&domain, &[buf], with_key(2), CONTEXT)?, CONTEXT),
        (Mr::regv(&domain, &[buf], with_key(3))?, 0),
    ];
    check_eq!(Mr::reg(&domain, buf, with_key(2)).err(), Some(Errno::ENOKEY), "refused");
    for (mr, context) in &regions {
        let event = eq.sread(PATIENCE_MS, 0)?;
        check_eq!((event.event, event.fid), (sys::FI_MR_COMPLETE, mr.address()?));
        check_eq!((event.context, event.data), (*context, 0));
        check_eq!(event.len, size_of::<sys::fi_eq_entry>());
    }
    check_eq!(eq.read(0), Err(Errno::EAGAIN), "no more than that");
    // Without the flag there are no such events.
    let other = Domain::open(&rig.fabric, &rig.info)?;
    check_eq!(other.bind(silent.as_ref(), 0), Ok(()));
    drop(Mr::reg(&other, buf, with_key(1))?);
    check_eq!(silent.read(0), Err(Errno::EAGAIN));
    check_eq!(eq.close(), Err(Errno::EBUSY), "the domain has it");
    drop(regions);
    check_eq!((domain.close(), other.close()), (Ok(()), Ok(())));
    check_eq!((eq.close(), silent.close()), (Ok(()), Ok(())));
    Ok(())
}

/// Tests that device memory is refused, and that only one call accepts the flag for it.
fn devices(rank: &Rank) -> Outcome {
    needs_library(rank, version(1, 20), "memory of devices by descriptor")?;
    let rig = rig_of_ours(rank)?;
    let (buf, file) = (Buf::new(4096), std::fs::File::open("/dev/zero")?);
    check_eq!(
        Mr::regattr_dmabuf(&rig.domain, file.as_fd(), buf, with_key(1)).err(),
        Some(Errno::EOPNOTSUPP)
    );
    let flagged = MrRequest { flags: sys::FI_MR_DMABUF, ..with_key(1) };
    check_eq!(Mr::reg(&rig.domain, buf, flagged).err(), Some(Errno::EBADFLAGS));
    check_eq!(Mr::regv(&rig.domain, &[buf], flagged).err(), Some(Errno::EBADFLAGS));
    // The key is free.
    Mr::reg(&rig.domain, buf, with_key(1))?;
    Ok(())
}

/// Tests that a part of a region has its own key, and keeps the region open.
fn part(rank: &Rank) -> Outcome {
    const LEN: usize = 1024;
    needs_library(rank, version(2, 0), "parts of regions")?;
    let rig = rig_of_ours(rank)?;
    let whole = Buf::new(4 * LEN);
    let (base, _) = rig.register(whole, sys::FI_REMOTE_READ)?;
    let sub = |at: usize| -> Outcome<_> {
        let spec = with_key(rig.fresh_key());
        let mr = Mr::regattr_within(&rig.domain, &[whole.sub(at * LEN, LEN)], spec, base.as_ref())?;
        check_eq!(mr.key()?, spec.key);
        Ok(mr)
    };
    let (inside, last) = (sub(1)?, sub(3)?);
    check_eq!(base.close(), Err(Errno::EBUSY), "two parts");
    let remotes = rig.exchange_remote(rig.ready_region(&inside, whole.sub(LEN, LEN))?)?;
    let at = from(&remotes, rank.peer(), 0)?;
    let mine = Buf::pattern(LEN, rank.index as u64);
    rig.complete(1, || rig.ep.write(mine, rig.peer(), at.addr, at.key, 1))?;
    announce(&rig, rig.peer())?;
    wait_for_announcement(&rig)?;
    let theirs = rank.peer() as u64;
    check_eq!(whole.sub(LEN, LEN).differs(LEN, theirs), None);
    let back = Buf::new(LEN);
    rig.complete(2, || rig.ep.read(back, rig.peer(), at.addr, at.key, 2))?;
    check_eq!(back.differs(LEN, rank.index as u64), None);
    // Accesses end with the part, although the region continues.
    let error = rig.failure(&rig.tx, 3, || {
        rig.ep.read(Buf::new(8), rig.peer(), at.addr + LEN as u64 - 4, at.key, 3)
    })?;
    check_eq!(error, Errno::EACCES);
    rig.barrier()?;
    check_eq!(inside.close(), Ok(()));
    check_eq!(base.close(), Err(Errno::EBUSY), "one part");
    check_eq!(last.close(), Ok(()));
    check_eq!(base.close(), Ok(()));
    rig.barrier()
}

/// Tests that ranges outside the region, and regions of another domain, are refused as parts.
fn outside(rank: &Rank) -> Outcome {
    const LEN: usize = 1024;
    needs_library(rank, version(2, 0), "parts of regions")?;
    let rig = rig_of_ours(rank)?;
    let all = Buf::new(8 * LEN);
    let pieces = [all.sub(LEN, 2 * LEN), all.sub(4 * LEN, 2 * LEN)];
    let base = Mr::regv(&rig.domain, &pieces, with_key(1))?;
    let within = |bufs: &[Buf]| Mr::regattr_within(&rig.domain, bufs, with_key(2), base.as_ref());
    for (at, len) in [
        (0, LEN),
        (LEN - 1, 2),
        (3 * LEN - 1, 2),
        (3 * LEN, LEN),
        (2 * LEN, 3 * LEN),
        (6 * LEN, 1),
        (0, 8 * LEN),
    ] {
        let refused = within(&[all.sub(at, len)]).err();
        check_eq!(refused, Some(Errno::EINVAL), "{len} B at {at}");
    }
    let half = within(&[pieces[0], all.sub(0, 1)]).err();
    check_eq!(half, Some(Errno::EINVAL), "one of two pieces");
    let elsewhere = Domain::open(&rig.fabric, &rig.info)?;
    let inside = [all.sub(LEN, LEN)];
    let foreign = Mr::regattr_within(&elsewhere, &inside, with_key(2), base.as_ref());
    check_eq!(foreign.err(), Some(Errno::EINVAL), "another domain");
    // A refused call holds no reference.
    let all_of_it = within(&pieces)?;
    check_eq!(base.close(), Err(Errno::EBUSY));
    drop(all_of_it);
    check_eq!(base.close(), Ok(()));
    check_eq!(elsewhere.close(), Ok(()));
    Ok(())
}
