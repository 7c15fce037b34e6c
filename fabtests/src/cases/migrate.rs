// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Migration of frequently accessed registered memory to an arena that peers can map, and back
//! after the close of the region. Only the speed may change.
//!
//! Rank 1 owns the memory. Its list of mappings shows a migration, as the manual page documents.

use scif_fabtests::fi::{maps_windows, may_hold_stores};
use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::call_variants;
use super::rma::{REMOTE, announce, from, wait_for_announcement};

const AUTO: &[(&str, &str)] = &[("FI_SCIF_MR_MIGRATE", "auto")];
const PAGE: usize = 4096;
/// Bytes of a region: several moves of pages, the last of them partial.
const LEN: usize = (5 << 20) + 3 * PAGE;

pub(crate) const CASES: &[Case] = &[
    case("migrate/all_sizes", 2, all_sizes).under(AUTO),
    case("migrate/atomics_of_everybody", 3, atomics_of_everybody).under(AUTO),
    case("migrate/atomics_around_a_line", 2, atomics_around_a_line).under(AUTO),
    case("migrate/no_store_is_lost", 2, |r| no_store_is_lost(&open(r)?)).under(AUTO),
    case("migrate/write_then_send", 2, |r| write_then_send(&open(r)?)).under(AUTO),
    case("migrate/unless_told_to", 2, |r| unless_told_to(&open(r)?)),
    case("migrate/fork", 2, fork).under(AUTO),
    case("migrate/free_and_reuse", 2, |r| free_and_reuse(&open(r)?)).under(AUTO),
    case("migrate/contents_dropped", 2, |r| contents_dropped(&open(r)?)).under(AUTO),
    case("migrate/enlarged", 2, |r| enlarged(&open(r)?)).under(AUTO),
    case("migrate/unmapped", 2, unmapped).under(AUTO),
    case("migrate/two_domains", 2, |r| two_domains(&open(r)?)).under(AUTO),
    case("migrate/key_used_again", 2, |r| key_used_again(&open(r)?)).under(AUTO),
    case("migrate/key_used_again_moves_soon", 2, |r| moves_soon(&open(r)?)).under(AUTO),
    case("migrate/stores_cannot_be_held", 2, stores_cannot_be_held).under(AUTO),
    case("migrate/memory_that_stays", 2, |r| memory_that_stays(&open(r)?)).under(AUTO),
    case("migrate/without_process_vm", 2, all_sizes)
        .under(&[("FI_SCIF_MR_MIGRATE", "auto"), ("FI_SCIF_PROCESS_VM", "0")]),
    case("migrate/owner_killed", 3, |r| killed(r, 1)).under(AUTO),
    case("migrate/peer_killed", 3, |r| killed(r, 0)).under(AUTO),
];

fn open(rank: &Rank) -> Outcome<Rig<'_>> {
    rank.only_scif("the access to memory depends on the provider")?;
    if !may_hold_stores() {
        return Err(Fail::NotHere("the system refuses userfaultfd: nothing moves".into()));
    }
    Rig::open(rank, &spec())
}

fn sum(dest: u64, at: Remote) -> AtomicTarget {
    at.sum(dest, 3)
}

fn one() -> Ioc {
    Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 }
}

/// Writes a word and waits for the completion.
fn put(rig: &Rig<'_>, at: Remote, value: u64) -> Outcome {
    let word = Buf::of(&value.to_le_bytes());
    rig.complete(1, || rig.ep.write(word, rig.to(1), at.addr, at.key, 1)).map(drop)
}

/// Uses the memory of rank 1 from both ranks until it has migrated and rank 0 has mapped it.
fn warm(rig: &Rig<'_>, memory: Buf, at: Remote) -> Outcome {
    if rig.rank.index == 1 {
        rig.wait("the pages to move", || Ok(memory.in_window()?.then_some(())))?;
        announce(rig, rig.peer())?;
        return wait_for_announcement(rig);
    }
    rig.post(|| rig.ep.recv(Buf::NULL, sys::FI_ADDR_UNSPEC, 0x407))?;
    let word = Buf::new(8);
    loop {
        rig.complete(1, || rig.ep.read(word, rig.peer(), at.addr, at.key, 1))?;
        if let Some(done) = rig.rx.take() {
            check_eq!(done.map_err(|e| Fail::here(format_args!("{e:?}")))?.context, 0x407);
            break;
        }
    }
    while !maps_windows()? {
        rig.complete(1, || rig.ep.read(word, rig.peer(), at.addr, at.key, 1))?;
    }
    announce(rig, rig.peer())
}

/// Tests reads and writes of all sizes anywhere in a region with partial pages at its ends.
fn all_sizes(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let whole = Buf::private(LEN)?;
    let memory = whole.sub(100, LEN - 300);
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    if rank.index == 1 {
        memory.fill_pattern(77);
    }
    rig.barrier()?;
    warm(&rig, memory.sub(PAGE, 8), at)?;
    if rank.index == 0 {
        let back = Buf::new(LEN);
        rig.complete(1, || rig.ep.read(back.sub(0, memory.len()), rig.peer(), at.addr, at.key, 1))?;
        check_eq!(back.differs(memory.len(), 77), None, "moving has changed nothing");
    }
    rig.barrier()?;
    for &size in call_variants::SIZES.iter().filter(|&&size| size <= 4 << 20) {
        for off in [0, 67, PAGE - 100, 2 * PAGE + 3, memory.len() - size] {
            let seed = (size + off) as u64;
            if rank.index == 0 {
                let there = from(&remotes, 1, off)?;
                let (buf, back) = (Buf::pattern(size, seed), Buf::new(size));
                rig.complete(1, || rig.ep.write(buf, rig.peer(), there.addr, there.key, 1))?;
                rig.complete(2, || rig.ep.read(back, rig.peer(), there.addr, there.key, 2))?;
                check_eq!(back.differs(size, seed), None, "{size} B at {off}");
                announce(&rig, rig.peer())?;
                wait_for_announcement(&rig)?;
            } else {
                wait_for_announcement(&rig)?;
                check_eq!(memory.sub(off, size).differs(size, seed), None, "{size} B at {off}");
                announce(&rig, rig.peer())?;
            }
        }
    }
    rig.barrier()
}

/// Tests that no addition to a word is lost while its page migrates. The owner adds by instructions
/// and by the library, and two peers add as well.
fn atomics_of_everybody(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 20_000;
    let rig = open(rank)?;
    let memory = Buf::private(2 * PAGE)?;
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 64)?;
    let (place, one, old) = (sum(rig.to(1), at), one(), Buf::new(8));
    for round in 0..ROUNDS {
        if rank.index == 1 {
            memory.add_u64(64, 1);
            rig.pump()?;
        } else if round % 2 == 0 {
            rig.complete(3, || rig.ep.fetch_atomic(&place, one, old))?;
        } else {
            rig.complete(3, || rig.ep.atomic(&place, one))?;
        }
        if rank.index == 1 && round % 64 == 0 {
            rig.complete(3, || rig.ep.atomic(&place, one))?;
        }
    }
    if rank.index == 1 {
        rig.wait("the pages to move", || Ok(memory.in_window()?.then_some(())))?;
        wait_for_announcement(&rig)?;
        wait_for_announcement(&rig)?;
        check_eq!(memory.load_u64(64), 3 * ROUNDS + ROUNDS.div_ceil(64));
    } else {
        // Operations that waited for the target have completed when this one has, because it
        // follows them.
        put(&rig, from(&remotes, 1, PAGE + 8 * rank.index)?, 7)?;
        announce(&rig, rig.to(1))?;
    }
    rig.barrier()
}

/// Tests operands of a cache line, one element less and more, and of two lines, of the narrowest
/// and the widest type. The old values are returned, each element changes once, and its neighbours
/// do not.
fn atomics_around_a_line(rank: &Rank) -> Outcome {
    const AT: usize = 192;
    let rig = open(rank)?;
    let memory = Buf::private(2 * PAGE)?;
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    warm(&rig, memory, from(&remotes, 1, 0)?)?;
    for (datatype, width) in [(sys::FI_UINT8, 1), (sys::FI_UINT64, 8)] {
        for count in [63 / width, 64 / width, 64 / width + 1, 128 / width] {
            let (len, area) = (count * width, 3 * AT);
            if rank.index == 1 {
                memory.sub(0, area).fill(0x11);
                rig.barrier()?;
                rig.barrier()?;
                let mut expected = vec![0x11; area];
                expected
                    .get_mut(AT..AT + len)
                    .ok_or_else(|| Fail::here("outside"))?
                    .fill(0x11 + 2 * 0x22);
                check_eq!(memory.get(0, area), expected, "{count} of {width} B");
                continue;
            }
            rig.barrier()?;
            let at = from(&remotes, 1, AT)?;
            let place = AtomicTarget { datatype, ..sum(rig.peer(), at) };
            let (buf, old) = (Buf::new(len), Buf::new(len));
            buf.fill(0x22);
            rig.complete(3, || rig.ep.fetch_atomic(&place, Ioc { buf, count }, old))?;
            check_eq!(old.bytes(), vec![0x11; len], "{count} of {width} B");
            rig.complete(3, || rig.ep.atomic(&place, Ioc { buf, count }))?;
            // Operations that waited for the target have completed when this one has, because it
            // follows them.
            put(&rig, from(&remotes, 1, PAGE)?, 7)?;
            rig.barrier()?;
        }
    }
    rig.barrier()
}

/// Counts in three words of the memory until `is_done`. Returns a count that was lost.
fn store_until(memory: Buf, is_done: impl Fn() -> bool) -> Option<u64> {
    let places = [2 * PAGE, (3 << 20) + 128, LEN - 64];
    let mut last = places.map(|off| memory.load_u64(off));
    while !is_done() {
        for (off, last) in places.iter().zip(&mut last) {
            if memory.load_u64(*off) != *last {
                return Some(*last);
            }
            *last += 1;
            memory.store_u64(*off, *last);
        }
    }
    None
}

/// Tests that no store of a thread of the owner is lost, as seen by owner and peer, however often
/// the pages migrate and return.
fn no_store_is_lost(rig: &Rig<'_>) -> Outcome {
    let memory = Buf::private(LEN)?;
    for round in 0..4_usize {
        let (mr, remotes) = rig.share(memory, REMOTE)?;
        let at = from(&remotes, 1, (2 << 20) - 8)?;
        if rig.rank.index == 0 {
            warm(rig, memory, at)?;
            for n in 0..1000 {
                put(rig, at, n)?;
            }
            put(rig, at, round as u64 + 7)?;
            announce(rig, rig.peer())?;
            rig.barrier()?;
            continue;
        }
        let done = std::sync::Mutex::new(false);
        let is_done = || *done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lost = std::thread::scope(|scope| -> Outcome<Option<u64>> {
            let storing = scope.spawn(|| store_until(memory, is_done));
            let outcome = (|| {
                warm(rig, memory, at)?;
                wait_for_announcement(rig)?;
                check_eq!(memory.load_u64((2 << 20) - 8), round as u64 + 7);
                mr.close()?;
                check!(!memory.in_window()?, "the pages are private again");
                Ok(())
            })();
            *done.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
            let lost = storing.join().map_err(|_| Fail::here("the thread"))?;
            outcome.map(|()| lost)
        })?;
        check_eq!(lost, None, "a store was lost");
        check_eq!(memory.load_u64((2 << 20) - 8), round as u64 + 7);
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a message sent after writes arrives after their data.
fn write_then_send(rig: &Rig<'_>) -> Outcome {
    let memory = Buf::private(LEN)?;
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    warm(rig, memory, at)?;
    for (round, size) in (0..60_u64).zip([8, 4096, 70_000, 5 << 20].into_iter().cycle()) {
        if rig.rank.index == 0 {
            let buf = Buf::pattern(size, round);
            rig.post(|| rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
            rig.post(|| rig.ep.send(Buf::of(&round.to_le_bytes()), rig.peer(), 2))?;
            let both = rig.next(&rig.tx)?.context + rig.next(&rig.tx)?.context;
            check_eq!(both, 3);
            wait_for_announcement(rig)?;
        } else {
            let said = Buf::new(8);
            rig.post(|| rig.ep.recv(said, sys::FI_ADDR_UNSPEC, 4))?;
            rig.received(4)?;
            check_eq!(said.load_u64(0), round);
            check_eq!(memory.differs(size, round), None, "{size} B");
            announce(rig, rig.peer())?;
        }
    }
    rig.barrier()
}

/// Tests that no memory migrates by default.
fn unless_told_to(rig: &Rig<'_>) -> Outcome {
    if std::env::var_os("FI_SCIF_MR_MIGRATE").is_some() {
        return Err(Fail::NotHere("FI_SCIF_MR_MIGRATE is set".into()));
    }
    stays(rig, Buf::private(64 * PAGE)?)
}

/// Checks that the pages of a region stay in place during any use, with correct results.
fn stays(rig: &Rig<'_>, memory: Buf) -> Outcome {
    let (_mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 64)?;
    if rig.rank.index == 0 {
        for n in 0..1500 {
            put(rig, at, n)?;
        }
        let (place, one) = (sum(rig.peer(), at), one());
        for _ in 0..100 {
            rig.complete(3, || rig.ep.atomic(&place, one))?;
        }
        put(rig, from(&remotes, 1, 128)?, 5)?;
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        check!(!memory.in_window()?, "it has moved");
        check_eq!(memory.load_u64(64), 1499 + 100);
    }
    rig.barrier()
}

/// Tests that a forked child has a private copy of the memory at the fork, unaffected by later
/// stores.
fn fork(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let memory = Buf::private(3 * PAGE)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    warm(&rig, memory, at)?;
    if rank.index == 0 {
        for n in 0..3 {
            put(&rig, at, 100 + n)?;
            announce(&rig, rig.peer())?;
            wait_for_announcement(&rig)?;
        }
        return rig.barrier();
    }
    for n in 0..3 {
        wait_for_announcement(&rig)?;
        check_eq!(memory.load_u64(0), 100 + n);
        memory.store_u64(PAGE, n);
        let wrong = scif_fabtests::harness::sandbox::in_child(|| {
            let private = memory.in_window().is_ok_and(|shown| !shown);
            let same = memory.load_u64(0) == 100 + n && memory.load_u64(PAGE) == n;
            memory.fill(0xee);
            usize::from(!private) + 2 * usize::from(!same)
        })?;
        check_eq!(wrong, 0, "1: shared with the child; 2: other contents");
        check_eq!((memory.load_u64(0), memory.load_u64(PAGE)), (100 + n, n));
        check!(memory.in_window()?, "it has not moved for that");
        announce(&rig, rig.peer())?;
    }
    rig.barrier()?;
    mr.close()?;
    check_eq!((memory.load_u64(0), memory.load_u64(PAGE)), (102, 2));
    Ok(())
}

/// Tests that pages are ordinary after the close of their last region. Dropped contents read as
/// zero, and a peer that had mapped the pages cannot access the new contents.
fn free_and_reuse(rig: &Rig<'_>) -> Outcome {
    let memory = Buf::private(LEN)?;
    for round in 1..4 {
        let (mr, remotes) = rig.share(memory, REMOTE)?;
        let at = from(&remotes, 1, 0)?;
        warm(rig, memory, at)?;
        if rig.rank.index == 0 {
            put(rig, at, round)?;
            announce(rig, rig.peer())?;
            rig.barrier()?;
            // The key is no longer valid.
            let word = Buf::new(8);
            rig.failure(&rig.tx, 1, || rig.ep.write(word, rig.peer(), at.addr, at.key, 1))?;
            rig.barrier()?;
            mr.close()?;
            continue;
        }
        wait_for_announcement(rig)?;
        memory.sub(8, LEN - 8).fill(3);
        mr.close()?;
        check!(!memory.in_window()?, "the pages are private again");
        check_eq!(memory.load_u64(0), round);
        check!(memory.get(8, LEN - 8).iter().all(|&byte| byte == 3), "contents changed");
        memory.drop_contents()?;
        check!(memory.bytes().iter().all(|&byte| byte == 0), "zeros are expected");
        rig.barrier()?;
        rig.barrier()?;
        check!(memory.bytes().iter().all(|&byte| byte == 0), "a closed key was written");
    }
    Ok(())
}

/// Tests that dropping the contents of migrated registered memory keeps them, as documented, and
/// that the key stays valid.
fn contents_dropped(rig: &Rig<'_>) -> Outcome {
    let memory = Buf::private(4 * PAGE)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    warm(rig, memory, at)?;
    if rig.rank.index == 0 {
        put(rig, at, 11)?;
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        put(rig, at, 12)?;
        announce(rig, rig.peer())?;
        return rig.barrier();
    }
    wait_for_announcement(rig)?;
    memory.drop_contents()?;
    check_eq!(memory.load_u64(0), 11);
    announce(rig, rig.peer())?;
    wait_for_announcement(rig)?;
    check_eq!(memory.load_u64(0), 12);
    mr.close()?;
    check_eq!(memory.load_u64(0), 12);
    memory.drop_contents()?;
    check_eq!(memory.load_u64(0), 0);
    rig.barrier()
}

/// Tests that memory enlarged while registered does not extend into other migrated regions, and
/// that it can be enlarged after the close of its region.
fn enlarged(rig: &Rig<'_>) -> Outcome {
    for pages in [1, 5] {
        let (first, second) = (Buf::private(pages * PAGE)?, Buf::private(pages * PAGE)?);
        let (mr, remotes) = rig.share(first, REMOTE)?;
        let (mr2, remotes2) = rig.share(second, REMOTE)?;
        let (at, at2) = (from(&remotes, 1, 0)?, from(&remotes2, 1, 0)?);
        warm(rig, first, at)?;
        warm(rig, second, at2)?;
        if rig.rank.index == 0 {
            put(rig, at, 21)?;
            put(rig, at2, 22)?;
            announce(rig, rig.peer())?;
            wait_for_announcement(rig)?;
            put(rig, at2, 23)?;
            announce(rig, rig.peer())?;
            rig.barrier()?;
            continue;
        }
        wait_for_announcement(rig)?;
        // Refused, as mremap(2) refuses to enlarge a range of several mappings, or followed by new
        // memory.
        let mut now = first;
        if let Ok(more) = first.enlarge(64 * PAGE) {
            check!(
                more.get(pages * PAGE, (64 - pages) * PAGE).iter().all(|&b| b == 0),
                "not fresh"
            );
            more.sub(pages * PAGE, (64 - pages) * PAGE).fill(9);
            now = more.sub(0, pages * PAGE);
        }
        check_eq!((now.load_u64(0), second.load_u64(0)), (21, 22));
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        check_eq!((now.load_u64(0), second.load_u64(0)), (21, 23));
        mr.close()?;
        mr2.close()?;
        check!(!now.in_window()? && !second.in_window()?, "private again");
        check_eq!((now.load_u64(0), second.load_u64(0)), (21, 23));
        let more = now.enlarge(128 * PAGE)?;
        check_eq!(more.load_u64(0), 21);
        more.sub(pages * PAGE, 100 * PAGE).fill(4);
        check_eq!(second.load_u64(0), 23);
        rig.barrier()?;
    }
    Ok(())
}

/// Tests memory that the program wrongly unmaps while it is registered. A peer accesses the former
/// pages or their replacement as long as the key is open. The close leaves the replacement in
/// place.
fn unmapped(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let memory = Buf::private(8 * PAGE)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    warm(&rig, memory, at)?;
    if rank.index == 0 {
        put(&rig, at, 31)?;
        announce(&rig, rig.peer())?;
        wait_for_announcement(&rig)?;
        put(&rig, at, 32)?;
        let back = Buf::new(8);
        rig.complete(1, || rig.ep.read(back, rig.peer(), at.addr, at.key, 1))?;
        check!([1, 31, 32].contains(&back.load_u64(0)), "{}", back.load_u64(0));
        announce(&rig, rig.peer())?;
        return rig.barrier();
    }
    wait_for_announcement(&rig)?;
    // Some pages are unmapped, others replaced.
    memory.sub(0, 2 * PAGE).renew()?;
    memory.sub(4 * PAGE, PAGE).unmap()?;
    memory.store_u64(0, 1);
    memory.store_u64(2 * PAGE, 2);
    announce(&rig, rig.peer())?;
    wait_for_announcement(&rig)?;
    let here = memory.load_u64(0);
    check!([1, 32].contains(&here), "{here}");
    mr.close()?;
    check!(!memory.sub(2 * PAGE, PAGE).in_window()?, "private again");
    check_eq!((memory.load_u64(0), memory.load_u64(2 * PAGE)), (here, 2));
    rig.barrier()
}

/// Tests memory registered in two domains, as with two devices: no update is lost, and the memory
/// migrates for the remaining domain.
fn two_domains(rig: &Rig<'_>) -> Outcome {
    let other = Rig::open(rig.rank, &spec())?;
    let memory = Buf::private(3 * PAGE)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    let (mr2, remotes2) = other.share(memory, REMOTE)?;
    let (at, at2) = (from(&remotes, 1, 0)?, from(&remotes2, 1, 0)?);
    let both = |n: u64| -> Outcome {
        if rig.rank.index == 0 {
            let (place, place2, one) = (sum(rig.peer(), at), sum(other.peer(), at2), one());
            for round in 0..n {
                rig.post(|| rig.ep.atomic(&place, one))?;
                other.post(|| other.ep.atomic(&place2, one))?;
                rig.sent(3)?;
                other.sent(3)?;
                put(rig, from(&remotes, 1, PAGE)?, round)?;
                put(&other, from(&remotes2, 1, 2 * PAGE)?, round)?;
            }
            announce(rig, rig.peer())?;
            announce(&other, other.peer())
        } else {
            // The atomics of each endpoint are executed before the later message of that endpoint,
            // not before messages of the other.
            let both = [rig, &other];
            for one in both {
                one.post(|| one.ep.recv(Buf::NULL, sys::FI_ADDR_UNSPEC, 0x22))?;
            }
            let mut said = 0;
            rig.wait("the other side", || {
                other.pump()?;
                memory.add_u64(0, 1);
                memory.add_u64(0, u64::MAX);
                for done in both.iter().filter_map(|one| one.rx.take()) {
                    done.map_err(|e| Fail::here(format_args!("{e:?}")))?;
                    said += 1;
                }
                Ok((said == both.len()).then_some(()))
            })
        }
    };
    both(2000)?;
    if rig.rank.index == 1 {
        check_eq!(memory.load_u64(0), 4000);
        check_eq!((memory.load_u64(PAGE), memory.load_u64(2 * PAGE)), (1999, 1999));
        check!(!memory.in_window()?, "in use by two it stays");
    }
    rig.barrier()?;
    if rig.rank.index == 1 {
        mr2.close()?;
    }
    rig.barrier()?;
    warm(rig, memory, at)?;
    // Registered again in the other domain, which may neither move nor lose it.
    let (mr2, remotes2) = other.share(memory, REMOTE)?;
    if rig.rank.index == 0 {
        let place = sum(other.peer(), from(&remotes2, 1, 0)?);
        for _ in 0..1000 {
            other.post(|| other.ep.atomic(&place, one()))?;
            other.sent(3)?;
        }
        announce(&other, other.peer())?;
    } else {
        other.post(|| other.ep.recv(Buf::NULL, sys::FI_ADDR_UNSPEC, 0x22))?;
        other.wait("the other side", || {
            rig.pump()?;
            Ok(other.rx.take().map(drop))
        })?;
        check_eq!(memory.load_u64(0), 5000);
        // The last close moves it back.
        mr.close()?;
        check!(memory.in_window()?, "still in use");
        mr2.close()?;
        check!(!memory.in_window()?, "private again");
        check_eq!(memory.load_u64(0), 5000);
    }
    rig.barrier()
}

/// Tests that a key reused for other memory gives access to that memory.
fn key_used_again(rig: &Rig<'_>) -> Outcome {
    let bufs = [Buf::private(2 * PAGE)?, Buf::private(2 * PAGE)?, Buf::private(64 * PAGE)?];
    for (round, &memory) in bufs.iter().enumerate() {
        let spec = scif_fabtests::fi::MrRequest { access: REMOTE, key: 77, flags: 0 };
        let mr = scif_fabtests::fi::Mr::reg(&rig.domain, memory, spec)?;
        let mine = rig.ready_region(&mr, memory)?;
        let at = from(&rig.exchange_remote(mine)?, 1, 0)?;
        warm(rig, memory, at)?;
        if rig.rank.index == 0 {
            put(rig, at, 50 + round as u64)?;
            announce(rig, rig.peer())?;
        } else {
            wait_for_announcement(rig)?;
            for (other, buf) in bufs.iter().enumerate() {
                let want = if other <= round { 50 + other as u64 } else { 0 };
                check_eq!(buf.load_u64(0), want, "{other} in round {round}");
            }
        }
        rig.barrier()?;
        mr.close()?;
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a region migrates after a few accesses, even if a closed region with the same key was
/// accessed often. Consecutive windows of MPI programs have the same key.
fn moves_soon(rig: &Rig<'_>) -> Outcome {
    for (stays, uses) in [(true, 5000), (false, 300)] {
        let memory = Buf::private(2 * PAGE)?;
        if stays {
            memory.lock()?;
        }
        let spec = scif_fabtests::fi::MrRequest { access: REMOTE, key: 77, flags: 0 };
        let mr = scif_fabtests::fi::Mr::reg(&rig.domain, memory, spec)?;
        let mine = rig.ready_region(&mr, memory)?;
        let at = from(&rig.exchange_remote(mine)?, 1, 0)?;
        if rig.rank.index == 0 {
            (0..uses).try_for_each(|n| put(rig, at, n))?;
            announce(rig, rig.peer())?;
        } else {
            wait_for_announcement(rig)?;
            (0..1000).try_for_each(|_| rig.pump())?;
            check_eq!(memory.in_window()?, !stays);
        }
        rig.barrier()?;
        mr.close()?;
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that without userfaultfd write protection no memory migrates, with correct results.
pub(super) fn stores_cannot_be_held(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    if rank.index == 1 {
        scif_fabtests::harness::seccomp::deny(&[libc::SYS_userfaultfd])?;
    }
    let memory = Buf::private(64 * PAGE)?;
    let done = std::sync::Mutex::new(false);
    let is_done = || *done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done() {
                memory.add_u64(3 * PAGE, 1);
            }
        });
        let outcome = stays(&rig, memory);
        *done.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
        outcome
    })
}

/// Tests that shared memory, locked memory and partial pages do not migrate.
fn memory_that_stays(rig: &Rig<'_>) -> Outcome {
    stays(rig, Buf::shared(4 * PAGE)?)?;
    stays(rig, Buf::private(4 * PAGE)?.sub(8, PAGE - 8))?;
    let locked = Buf::private(4 * PAGE)?;
    locked.lock()?;
    stays(rig, locked)
}

/// Tests the death of the owner, or of the peer, while the peer uses mapped memory. The others
/// continue.
fn killed(rank: &Rank, victim: usize) -> Outcome {
    let rig = open(rank)?;
    let memory = Buf::private(LEN)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    if rank.index != 2 {
        warm(&rig, memory, at)?;
    }
    rig.barrier()?;
    if rank.index == victim {
        let buf = Buf::new(1 << 20);
        loop {
            if rank.index == 0 {
                // The owner may close the region before this rank is killed.
                let written = rig.post(|| rig.ep.write(buf, rig.to(1), at.addr, at.key, 1));
                drop(written.and_then(|()| rig.sent(1)));
            } else {
                rig.pump()?;
            }
        }
    }
    if rank.index == 2 {
        rank.kill(victim)?;
    }
    if rank.index == 0 {
        // Until the death of the owner is noticed, writes hit its pages, which still exist; then
        // they fail.
        rig.wait("the error", || {
            match rig.ep.write(Buf::new(8), rig.to(1), at.addr, at.key, 1) {
                Ok(()) | Err(scif_fabtests::fi::Errno::EAGAIN) => {}
                Err(_) => return Ok(Some(())),
            }
            Ok(std::iter::from_fn(|| rig.tx.take()).any(|done| done.is_err()).then_some(()))
        })?;
    }
    if rank.index == 1 {
        mr.close()?;
        check!(!memory.in_window()?, "private again");
        memory.fill(1);
    }
    rig.barrier()
}
