// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA and atomics that must fail: unknown keys, closed keys, ranges outside a region, missing
//! rights. The call or an error entry reports the failure to the initiator. The memory of the
//! target is untouched, and both ranks continue.

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("bad_rma/unknown_key", 2, |r| unknown_key(&Rig::open(r, &spec())?)),
    case("bad_rma/outside", 2, |r| outside(&Rig::open(r, &spec())?)),
    case("bad_rma/rights", 2, |r| rights(&Rig::open(r, &spec())?)),
    case("bad_rma/closed_key", 2, |r| closed_key(&Rig::open(r, &spec())?)),
    case("bad_rma/key_used_again", 2, |r| key_used_again(&Rig::open(r, &spec())?)),
    case("bad_rma/close_under_fire", 2, |r| close_under_fire(&Rig::open(r, &spec())?)),
    case("bad_rma/inject_fails_aloud", 2, |r| inject_fails_aloud(&Rig::open(r, &spec())?)),
    case("bad_rma/atomics", 2, atomics),
];

fn spec() -> Spec {
    super::rma::spec()
}

/// Returns the error of a transmit operation that must fail.
#[track_caller]
fn failure(rig: &Rig<'_>, call: impl FnMut() -> Result, context: usize) -> Outcome<Errno> {
    rig.failure(&rig.tx, context, call)
}

/// Permitted errors for an unknown key, and for a range or right that is not granted.
const NO_KEY: &[Errno] = &[Errno::EINVAL];
const NO_RIGHT: &[Errno] = &[Errno::EACCES];

#[track_caller]
fn one_of(error: Errno, allowed: &[Errno], subject: &str) -> Outcome {
    if allowed.contains(&error) {
        Ok(())
    } else {
        Err(Fail::here(format_args!("{subject} failed with {error}")))
    }
}

fn unknown_key(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        for key in [at.key + 1, 0, u64::MAX, u64::MAX - 1, 1 << 63] {
            for size in [8, 4096] {
                let buf = Buf::pattern(size, 1);
                let peer = rig.peer();
                one_of(
                    failure(rig, || rig.ep.write(buf, peer, at.addr, key, 5), 5)?,
                    NO_KEY,
                    "write",
                )?;
                one_of(
                    failure(rig, || rig.ep.read(buf, peer, at.addr, key, 6), 6)?,
                    NO_KEY,
                    "read",
                )?;
            }
        }
        rig.complete(7, || rig.ep.write(Buf::pattern(8, 2), rig.peer(), at.addr, at.key, 7))?;
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        check_eq!(mine.differs(8, 2), None);
        check!(mine.get(8, 4088).iter().all(|&byte| byte == 0));
    }
    rig.barrier()
}

fn outside(rig: &Rig<'_>) -> Outcome {
    let all = Buf::new(3 * 65_536);
    let mine = all.sub(65_536, 65_536);
    let (_mr, remotes) = rig.share(mine, REMOTE)?;
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let end = at.addr + 65_536;
        for (addr, size) in [
            (end, 1),
            (end - 7, 8),
            (end - 4095, 4096),
            (at.addr, 65_537),
            (at.addr.wrapping_sub(1), 8),
            (at.addr.wrapping_sub(1), 1),
            (u64::MAX - 3, 4),
            (u64::MAX - 3, 8),
            (end + (1 << 40), 8),
            (end, 65_536),
        ] {
            let buf = Buf::pattern(size, 1);
            let peer = rig.peer();
            let error = failure(rig, || rig.ep.write(buf, peer, addr, at.key, 5), 5)
                .map_err(|fail| fail.with(format_args!("write of {size} at {addr:#x}")))?;
            one_of(error, NO_RIGHT, "write")?;
            let error = failure(rig, || rig.ep.read(buf, peer, addr, at.key, 6), 6)
                .map_err(|fail| fail.with(format_args!("read of {size} at {addr:#x}")))?;
            one_of(error, NO_RIGHT, "read")?;
        }
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        check!(all.bytes().iter().all(|&byte| byte == 0), "memory outside or inside was written");
    }
    rig.barrier()
}

fn rights(rig: &Rig<'_>) -> Outcome {
    let (readable, writable) = (Buf::pattern(9000, 3), Buf::new(9000));
    let (_r, read_only) = rig.share(readable, sys::FI_REMOTE_READ)?;
    let (_w, write_only) = rig.share(writable, sys::FI_REMOTE_WRITE)?;
    if rig.rank.index == 0 {
        let (r, w, peer) = (from(&read_only, 1, 0)?, from(&write_only, 1, 0)?, rig.peer());
        for size in [8, 9000] {
            let buf = Buf::new(size);
            one_of(
                failure(rig, || rig.ep.write(buf, peer, r.addr, r.key, 5), 5)?,
                NO_RIGHT,
                "write",
            )?;
            one_of(
                failure(rig, || rig.ep.read(buf, peer, w.addr, w.key, 6), 6)?,
                NO_RIGHT,
                "read",
            )?;
            rig.complete(7, || rig.ep.read(buf, peer, r.addr, r.key, 7))?;
            check_eq!(buf.differs(size, 3), None);
            rig.complete(8, || rig.ep.write(buf, peer, w.addr, w.key, 8))?;
        }
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        check_eq!(readable.differs(9000, 3), None);
        check_eq!(writable.differs(9000, 3), None);
    }
    rig.barrier()
}

/// Tests that a key is invalid once its region is closed, also for earlier users.
fn closed_key(rig: &Rig<'_>) -> Outcome {
    let (mine, mr, remotes) = rig.share_buf(Buf::new(65_536), REMOTE)?;
    let at = from(&remotes, rig.rank.peer(), 0)?;
    if rig.rank.index == 0 {
        rig.complete(1, || rig.ep.write(Buf::pattern(8, 1), rig.peer(), at.addr, at.key, 1))?;
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        drop(mr);
        mine.fill(0);
    }
    rig.barrier()?;
    if rig.rank.index == 0 {
        for size in [8, 65_536] {
            let (buf, peer) = (Buf::pattern(size, 2), rig.peer());
            one_of(
                failure(rig, || rig.ep.write(buf, peer, at.addr, at.key, 5), 5)?,
                NO_KEY,
                "write",
            )?;
            one_of(
                failure(rig, || rig.ep.read(buf, peer, at.addr, at.key, 6), 6)?,
                NO_KEY,
                "read",
            )?;
        }
    }
    rig.barrier()?;
    check!(
        rig.rank.index == 0 || mine.bytes().iter().all(|&byte| byte == 0),
        "a closed region was written"
    );
    Ok(())
}

/// Tests that a key reused for another region gives access to the new memory only.
fn key_used_again(rig: &Rig<'_>) -> Outcome {
    let mode = rig.info.domain().mr_mode;
    if mode & (sys::FI_MR_PROV_KEY | sys::FI_MR_BASIC) != 0 {
        return Err(Fail::NotRun("keys are the provider's".into()));
    }
    let (old, new) = (Buf::new(8192), Buf::new(4096));
    let reg = |buf: Buf| Mr::reg(&rig.domain, buf, MrRequest { access: REMOTE, key: 42, flags: 0 });
    let mr = reg(old)?;
    let before = rig.exchange_remote(rig.ready_region(&mr, old)?)?;
    if rig.rank.index == 0 {
        let at = from(&before, 1, 0)?;
        rig.complete(1, || rig.ep.write(Buf::pattern(64, 1), rig.peer(), at.addr, at.key, 1))?;
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
    }
    drop(mr);
    old.fill(0);
    let mr = reg(new)?;
    let after = rig.exchange_remote(rig.ready_region(&mr, new)?)?;
    if rig.rank.index == 0 {
        let (at, peer) = (from(&after, 1, 0)?, rig.peer());
        rig.complete(2, || rig.ep.write(Buf::pattern(64, 2), peer, at.addr, at.key, 2))?;
        let buf = Buf::new(16);
        one_of(
            failure(rig, || rig.ep.write(buf, peer, at.addr + 4090, at.key, 3), 3)?,
            NO_RIGHT,
            "write",
        )?;
        announce(rig, peer)?;
    } else {
        wait_for_announcement(rig)?;
        check_eq!(new.differs(64, 2), None);
        check!(old.bytes().iter().all(|&byte| byte == 0), "the old region was written");
    }
    rig.barrier()
}

/// Tests the close of a region during writes: after `fi_close` no access hits the memory.
fn close_under_fire(rig: &Rig<'_>) -> Outcome {
    for size in [8, 4096, 500_000] {
        let (mine, mr, remotes) = rig.share_buf(Buf::new(500_000), REMOTE)?;
        if rig.rank.index == 0 {
            let at = from(&remotes, 1, 0)?;
            let mut good = 0_u32;
            loop {
                let buf = Buf::pattern(size, u64::from(good % 7));
                let ended = match rig.ep.write(buf, rig.peer(), at.addr, at.key, 100) {
                    Ok(()) => rig
                        .wait("the write or its error", || Ok(rig.tx.take()))?
                        .map_err(|error| error.err),
                    Err(error) => Err(error),
                };
                match ended {
                    Ok(_) => good += 1,
                    Err(Errno::EAGAIN) => rig.pump()?,
                    Err(error) => {
                        one_of(error, NO_KEY, "write")?;
                        break;
                    }
                }
                if good == 3 {
                    announce(rig, rig.peer())?;
                    good += 1;
                }
            }
        } else {
            wait_for_announcement(rig)?;
            drop(mr);
            mine.fill(0xee);
            for _ in 0..50 {
                rig.pump()?;
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            check!(
                mine.bytes().iter().all(|&byte| byte == 0xee),
                "{size} B: written after the close"
            );
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a failed injected write has an error entry, though it has no completion.
fn inject_fails_aloud(rig: &Rig<'_>) -> Outcome {
    let (_mr, remotes) = rig.share(Buf::new(64), REMOTE)?;
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let (buf, peer) = (Buf::new(8), rig.peer());
        let error = failure(rig, || rig.ep.inject_write(buf, peer, at.addr, at.key + 99), 0)?;
        one_of(error, NO_KEY, "inject")?;
    }
    rig.barrier()
}

fn atomics(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_ATOMIC))?;
    let (mine, read_only) = (Buf::new(64), Buf::new(64));
    let (_mr, remotes) = rig.share(mine, REMOTE)?;
    let (_ro, read_onlys) = rig.share(read_only, sys::FI_REMOTE_READ)?;
    if rank.index == 0 {
        let (at, ro) = (from(&remotes, 1, 0)?, from(&read_onlys, 1, 0)?);
        let place = |addr, key| AtomicTarget::sum(rig.peer(), addr, key, 9);
        let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
        let result = Buf::new(8);
        for (target, allowed, subject) in [
            (place(at.addr, at.key + 7), NO_KEY, "unknown key"),
            (place(at.addr + 64, at.key), NO_RIGHT, "behind the end"),
            (place(at.addr + 57, at.key), NO_RIGHT, "over the end"),
            (place(ro.addr, ro.key), NO_RIGHT, "read only"),
        ] {
            one_of(failure(&rig, || rig.ep.atomic(&target, one), 9)?, allowed, subject)?;
            one_of(
                failure(&rig, || rig.ep.fetch_atomic(&target, one, result), 9)?,
                allowed,
                subject,
            )?;
        }
        let target = place(at.addr, at.key);
        rig.complete(9, || rig.ep.fetch_atomic(&target, one, result))?;
        check_eq!(result.load_u64(0), 0);
        announce(&rig, rig.peer())?;
    } else {
        wait_for_announcement(&rig)?;
        check_eq!(mine.load_u64(0), 1);
        check!(mine.get(8, 56).iter().chain(&read_only.bytes()).all(|&byte| byte == 0));
    }
    rig.barrier()
}
