// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registered memory that is a shared mapping: the initiator maps it after some operations. Only
//! the speed may change.
//!
//! Rank 1 owns the memory. The list of mappings of rank 0 shows what it has mapped.

use libfabric_sys as sys;
use scif_fabtests::fi::{
    AtomicTarget, Buf, Fid, Ioc, Mr, SharedFile, attach_segment, is_process_vm_permitted,
    mappings_of, new_segment, unlink_shm,
};
use scif_fabtests::harness::{Case, Fail, Outcome, Rank, case, sandbox};
use scif_fabtests::rig::{Remote, Rig};
use scif_fabtests::{check, check_eq};

use super::atomic::spec;
use super::rma::{REMOTE, announce, from, wait_for_announcement};

const AUTO: &[(&str, &str)] = &[("FI_SCIF_MAP", "auto")];
const OFF: &[(&str, &str)] = &[("FI_SCIF_MAP", "off")];
const RING: &[(&str, &str)] = &[("FI_SCIF_RMA", "ring")];
const NO_PROCESS_VM: &[(&str, &str)] = &[("FI_SCIF_PROCESS_VM", "0")];
const PAGE: usize = 4096;
const LEN: usize = 64 * PAGE;
/// Number of operations that suffices for memory to be mapped, with a margin.
const MANY: u64 = 200;
const NAME: &str = "fabtests-mapped";

pub(crate) const CASES: &[Case] = &[
    case("mapped/all_sizes", 2, all_sizes),
    case("mapped/all_sizes_by_the_ring", 2, all_sizes).under(RING),
    case("mapped/all_sizes_without_process_vm", 2, all_sizes).under(NO_PROCESS_VM),
    case("mapped/unless_told_not_to", 2, |r| memfd(r, true, 0)).under(OFF),
    case("mapped/memory_that_may_shrink", 2, |r| memfd(r, false, 0)),
    case("mapped/memory_that_may_shrink_by_request", 2, |r| memfd(r, false, 1)).under(AUTO),
    case("mapped/system_v", 2, system_v),
    case("mapped/file_of_both", 2, |r| file_of_both(r, true)).under(AUTO),
    case("mapped/file_of_both_may_shrink", 2, |r| file_of_both(r, false)),
    case("mapped/file_of_the_owner", 2, file_of_the_owner).under(AUTO),
    case("mapped/atomics_of_everybody", 3, atomics_of_everybody),
    case("mapped/read_only", 2, read_only),
    case("mapped/closed", 2, closed),
    case("mapped/address_used_again", 2, address_used_again),
    case("mapped/unmapped_and_replaced", 2, unmapped_and_replaced),
    case("mapped/contents_dropped", 2, contents_dropped),
    case("mapped/huge_pages", 2, huge_pages),
    case("mapped/fork", 2, fork),
    case("mapped/truncated", 2, truncated),
];

/// Opens a set-up whose new mappings rank 0 can count.
fn open(rank: &Rank) -> Outcome<Rig<'_>> {
    rank.only_scif("the access to memory depends on the provider")?;
    Rig::open(rank, &spec())
}

/// Returns `count`, or 0 where the system denies access to the memory of other processes, so that
/// none is mapped.
fn if_permitted(count: usize) -> usize {
    if is_process_vm_permitted() { count } else { 0 }
}

/// Writes a word and waits for the completion.
fn put(rig: &Rig<'_>, at: Remote, value: u64) -> Outcome {
    let word = Buf::of(&value.to_le_bytes());
    rig.complete(1, || rig.ep.write(word, rig.to(1), at.addr, at.key, 1)).map(drop)
}

/// Reads a word.
fn get(rig: &Rig<'_>, at: Remote) -> Outcome<u64> {
    let word = Buf::new(8);
    rig.complete(1, || rig.ep.read(word, rig.to(1), at.addr, at.key, 1))?;
    Ok(word.load_u64(0))
}

/// Writes a word of rank 1 as often as needed before memory is mapped, at last `value`.
fn put_often(rig: &Rig<'_>, at: Remote, value: u64) -> Outcome {
    (0..MANY).try_for_each(|n| put(rig, at, n))?;
    put(rig, at, value)
}

/// Shares memory of rank 1, while rank 0 shares other memory.
fn share(rig: &Rig<'_>, memory: Option<Buf>) -> Outcome<(std::sync::Arc<Mr>, Remote)> {
    let (mr, remotes) = rig.share(memory.unwrap_or(Buf::new(8)), REMOTE)?;
    Ok((mr, from(&remotes, 1, 0)?))
}

fn at(remote: Remote, offset: usize) -> Remote {
    Remote { addr: remote.addr + offset as u64, ..remote }
}

/// Lets the other rank continue.
fn pass(rig: &Rig<'_>) -> Outcome {
    announce(rig, rig.peer())
}

/// Tests reads and writes of all sizes in the middle of a file.
fn all_sizes(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, 2 * LEN, true)?;
    let whole = if rank.index == 1 { Some(file.map(PAGE, LEN, true)?) } else { None };
    let (_mr, remote) = share(&rig, whole.map(|whole| whole.sub(100, LEN - 300)))?;
    if rank.index == 0 {
        put_often(&rig, remote, 1)?;
        check_eq!(mappings_of(NAME)?, if_permitted(1));
    }
    rig.barrier()?;
    let len = LEN - 300;
    for size in [1, 7, 8, 64, 100, PAGE - 1, PAGE, 3 * PAGE + 5, 16 * PAGE, len] {
        for offset in [0, 67, PAGE - 104, len - size].into_iter().filter(|o| o + size <= len) {
            let seed = (size + offset) as u64;
            if let Some(whole) = whole {
                wait_for_announcement(&rig)?;
                let here = whole.sub(100 + offset, size);
                check_eq!(here.differs(size, seed), None, "{size} B at {offset}");
            } else {
                let (buf, back, there) =
                    (Buf::pattern(size, seed), Buf::new(size), at(remote, offset));
                rig.complete(1, || rig.ep.write(buf, rig.peer(), there.addr, there.key, 1))?;
                rig.complete(2, || rig.ep.read(back, rig.peer(), there.addr, there.key, 2))?;
                check_eq!(back.differs(size, seed), None, "{size} B at {offset}");
            }
            if rank.index == 0 {
                pass(&rig)?
            };
            rig.barrier()?;
        }
    }
    Ok(())
}

/// Tests a memfd that is mapped by rank 0 as often as expected, with correct results.
fn memfd(rank: &Rank, is_sealed: bool, expected: usize) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, is_sealed)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    used_by_rank_0(&rig, memory, 8, expected)
}

/// Uses memory of rank 1 and checks the results, and the number of new mappings of rank 0.
fn used_by_rank_0(rig: &Rig<'_>, memory: Option<Buf>, offset: usize, more: usize) -> Outcome {
    let (_mr, remote) = share(rig, memory)?;
    if let (1, Some(memory)) = (rig.rank.index, memory) {
        wait_for_announcement(rig)?;
        check_eq!(memory.load_u64(offset), 5);
        memory.store_u64(offset, 6);
        pass(rig)?;
    } else {
        let before = mappings_of(NAME)? + mappings_of("/SYSV")?;
        put_often(rig, at(remote, offset), 5)?;
        check_eq!(mappings_of(NAME)? + mappings_of("/SYSV")?, before + if_permitted(more));
        pass(rig)?;
        wait_for_announcement(rig)?;
        check_eq!(get(rig, at(remote, offset))?, 6);
    }
    rig.barrier()
}

/// Tests a System V segment that both ranks have attached.
fn system_v(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let made = if rank.index == 1 { Some(new_segment(LEN - 100)?) } else { None };
    let id = made.map_or(0, |(id, _)| id);
    let ids = rig.exchange(&id.to_le_bytes())?;
    let id = ids.get(1).and_then(|id| id.as_slice().try_into().ok()).map_or(0, i32::from_le_bytes);
    let memory = match made {
        Some((_, memory)) => memory,
        None => attach_segment(id, LEN - 100)?,
    };
    rig.barrier()?;
    used_by_rank_0(&rig, Some(memory.sub(PAGE, LEN - 100 - PAGE)), LEN - PAGE - 200, 1)?;
    if rank.index == 0 {
        check_eq!(memory.load_u64(LEN - 200), 6);
    }
    Ok(())
}

/// Tests a file in `/dev/shm` that both ranks have mapped at different addresses, without its name.
/// Rank 0 unmaps its own mapping and uses the address for other memory.
fn file_of_both(rank: &Rank, is_mapped: bool) -> Outcome {
    let rig = open(rank)?;
    let name = shm_name(&rig)?;
    let file = SharedFile::shm(&name, 2 * LEN)?;
    let mine = file.map(0, 2 * LEN, true)?;
    rig.barrier()?;
    if rank.index == 1 {
        unlink_shm(&name)?;
    }
    rig.barrier()?;
    used_by_rank_0(&rig, Some(mine.sub(LEN, LEN)), 800, usize::from(is_mapped))?;
    let (_mr, remote) = share(&rig, Some(mine.sub(PAGE, LEN)))?;
    if rank.index == 0 {
        put_often(&rig, remote, 7)?;
        check_eq!(mine.load_u64(PAGE), 7);
        mine.renew()?;
        put(&rig, remote, 8)?;
        check_eq!(mine.load_u64(PAGE), 0);
        pass(&rig)?;
    } else {
        wait_for_announcement(&rig)?;
        check_eq!(mine.load_u64(PAGE), 8);
    }
    rig.barrier()
}

/// Returns a name of a file in `/dev/shm` for both ranks.
fn shm_name(rig: &Rig<'_>) -> Outcome<String> {
    let ids = rig.exchange(std::process::id().to_string().as_bytes())?;
    let owner = ids.get(1).map(|id| String::from_utf8_lossy(id)).unwrap_or_default();
    Ok(format!("{NAME}-{owner}"))
}

/// Tests a file in `/dev/shm` that only its owner has mapped.
fn file_of_the_owner(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let name = shm_name(&rig)?;
    let memory =
        if rank.index == 1 { Some(SharedFile::shm(&name, LEN)?.map(0, LEN, true)?) } else { None };
    let outcome = used_by_rank_0(&rig, memory, 16, 1);
    if rank.index == 1 {
        unlink_shm(&name)?;
    }
    outcome
}

/// Tests that no addition to a word is lost while it becomes mapped. The owner adds by instructions
/// and by the library, and two peers add as well.
fn atomics_of_everybody(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 5000;
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    let (_mr, remote) = share(&rig, memory)?;
    let (word, old) = (at(remote, 64), Buf::new(8));
    let target: AtomicTarget = word.sum(rig.to(1), 3);
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    for round in 0..ROUNDS {
        if let Some(memory) = memory {
            memory.add_u64(64, 1);
            rig.pump()?;
        } else if round % 2 == 0 {
            rig.complete(3, || rig.ep.fetch_atomic(&target, one, old))?;
        } else {
            rig.complete(3, || rig.ep.atomic(&target, one))?;
        }
        if rank.index == 1 && round % 64 == 0 {
            rig.complete(3, || rig.ep.atomic(&target, one))?;
        }
    }
    if let Some(memory) = memory {
        wait_for_announcement(&rig)?;
        wait_for_announcement(&rig)?;
        check_eq!(memory.load_u64(64), 3 * ROUNDS + ROUNDS.div_ceil(64));
    } else {
        check_eq!(mappings_of(NAME)?, if_permitted(1));
        // Atomics that waited for the target have completed when this write has, which follows
        // them.
        put(&rig, at(remote, PAGE + 8 * rank.index), 7)?;
        announce(&rig, rig.to(1))?;
    }
    rig.barrier()
}

/// Tests memory that its owner has mapped for reading: a peer reads it from a mapping.
fn read_only(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let mut memory = Buf::new(8);
    if rank.index == 1 {
        memory = file.map(0, LEN, false)?;
        let writable = file.map(0, PAGE, true)?;
        writable.store_u64(80, 9);
        writable.unmap()?;
    }
    let (_mr, remotes) = rig.share(memory, sys::FI_REMOTE_READ)?;
    let there = from(&remotes, 1, 80)?;
    if rank.index == 0 {
        for _ in 0..MANY {
            check_eq!(get(&rig, there)?, 9);
        }
        check_eq!(mappings_of(NAME)?, if_permitted(1));
        let word = Buf::new(8);
        rig.failure(&rig.tx, 1, || rig.ep.write(word, rig.peer(), there.addr, there.key, 1))?;
        check_eq!(get(&rig, there)?, 9);
    }
    rig.barrier()
}

/// Tests that the close of a key ends access and mapping, and that another key of the same memory
/// is usable.
fn closed(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    for round in 1..40 {
        let (mr, remote) = share(&rig, memory)?;
        if rank.index == 0 {
            put_often(&rig, remote, round)?;
            check_eq!(mappings_of(NAME)?, if_permitted(1));
        }
        rig.barrier()?;
        if let Some(memory) = memory {
            check_eq!(memory.load_u64(0), round);
        }
        mr.close()?;
        rig.barrier()?;
        if rank.index == 0 {
            let word = Buf::new(8);
            rig.failure(&rig.tx, 1, || rig.ep.write(word, rig.peer(), remote.addr, remote.key, 1))?;
            rig.wait("the end of the mapping", || Ok((mappings_of(NAME)? == 0).then_some(())))?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a key of new memory at a former address, of another file or private, gives access to
/// that memory.
fn address_used_again(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let files =
        [SharedFile::memfd(NAME, LEN, true)?, SharedFile::memfd("fabtests-other", LEN, true)?];
    let mut address = 0;
    for (round, file) in (1..7_u64).zip(files.iter().map(Some).chain([None]).cycle()) {
        let mut memory = None;
        if rank.index == 1 {
            let fresh = match file {
                Some(file) => file.map(0, LEN, true)?,
                None => Buf::private(LEN)?,
            };
            fresh.fill(0);
            address = if round == 1 { fresh.addr() } else { address };
            memory = Some(fresh);
        }
        let (mr, remote) = share(&rig, memory)?;
        if let Some(memory) = memory {
            wait_for_announcement(&rig)?;
            check_eq!(memory.load_u64(0), round, "at {:#x}, first {address:#x}", memory.addr());
            mr.close()?;
            memory.unmap()?;
        } else {
            put_often(&rig, remote, round)?;
            pass(&rig)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests memory that the program wrongly unmaps, or maps over, while it is registered: a peer
/// accesses the former pages, and no other memory.
fn unmapped_and_replaced(rank: &Rank) -> Outcome {
    if !is_process_vm_permitted() {
        return Err(Fail::NotHere("the owner would access the unmapped memory itself".into()));
    }
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    let (mr, remote) = share(&rig, memory)?;
    if let Some(memory) = memory {
        wait_for_announcement(&rig)?;
        memory.renew()?;
        pass(&rig)?;
        wait_for_announcement(&rig)?;
        check!([0, 12].contains(&memory.load_u64(0)), "{}", memory.load_u64(0));
        let again = file.map(0, PAGE, true)?;
        check_eq!(again.load_u64(0), 12, "the file has it");
        memory.unmap()?;
        pass(&rig)?;
        wait_for_announcement(&rig)?;
        check_eq!(again.load_u64(0), 13);
        mr.close()?;
    } else {
        put_often(&rig, remote, 11)?;
        pass(&rig)?;
        for value in [12, 13] {
            wait_for_announcement(&rig)?;
            put(&rig, remote, value)?;
            check_eq!(get(&rig, remote)?, value);
            pass(&rig)?;
        }
    }
    rig.barrier()
}

/// Tests that peers see pages that the owner dropped or freed as the owner does.
fn contents_dropped(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    let (_mr, remote) = share(&rig, memory)?;
    if let Some(memory) = memory {
        for value in [31, 0] {
            wait_for_announcement(&rig)?;
            memory.drop_contents()?;
            if value == 0 {
                memory.remove_contents()?;
            }
            check_eq!(memory.load_u64(0), value);
            pass(&rig)?;
            wait_for_announcement(&rig)?;
            check_eq!(memory.load_u64(0), 32);
            memory.store_u64(0, 31);
            pass(&rig)?;
        }
    } else {
        put_often(&rig, remote, 31)?;
        for value in [31, 0] {
            pass(&rig)?;
            wait_for_announcement(&rig)?;
            check_eq!(get(&rig, remote)?, value);
            put(&rig, remote, 32)?;
            pass(&rig)?;
            wait_for_announcement(&rig)?;
        }
        check_eq!(mappings_of(NAME)?, if_permitted(1));
    }
    rig.barrier()
}

/// Tests a file with huge pages, where the system gives them.
fn huge_pages(rank: &Rank) -> Outcome {
    const HUGE: usize = 2 << 20;
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, 3 * HUGE, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, 3 * HUGE, true)?) } else { None };
    if let Some(memory) = memory {
        memory.request_huge_pages()?;
        memory.fill(1);
    }
    used_by_rank_0(&rig, memory.map(|memory| memory.sub(HUGE - 8, HUGE + 16)), HUGE, 1)
}

/// Tests that a child of the owner shares the memory as before, and that a child of the initiator
/// has no mapping of it.
fn fork(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    let file = SharedFile::memfd(NAME, LEN, true)?;
    let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
    let (_mr, remote) = share(&rig, memory)?;
    if let Some(memory) = memory {
        wait_for_announcement(&rig)?;
        let wrong = sandbox::in_child(|| {
            let same = memory.load_u64(0) == 41;
            memory.store_u64(0, 42);
            usize::from(!same)
        })?;
        check_eq!((wrong, memory.load_u64(0)), (0, 42));
        pass(&rig)?;
    } else {
        put_often(&rig, remote, 41)?;
        check_eq!(mappings_of(NAME)?, if_permitted(1));
        check_eq!(sandbox::in_child(|| mappings_of(NAME).unwrap_or(9))?, 0);
        put(&rig, remote, 41)?;
        pass(&rig)?;
        wait_for_announcement(&rig)?;
        check_eq!(get(&rig, remote)?, 42);
    }
    rig.barrier()
}

/// Tests that by default a truncation ends no process: a sealed file refuses it, and any other is
/// not mapped. The write is executed once the file is as long as before.
fn truncated(rank: &Rank) -> Outcome {
    let rig = open(rank)?;
    for is_sealed in [true, false] {
        let file = SharedFile::memfd(NAME, LEN, is_sealed)?;
        let memory = if rank.index == 1 { Some(file.map(0, LEN, true)?) } else { None };
        let (mr, remote) = share(&rig, memory)?;
        if let Some(memory) = memory {
            wait_for_announcement(&rig)?;
            check_eq!(file.set_len(0).is_err(), is_sealed);
            rank.exchange(&[], &mut || Ok(()))?;
            // Rank 0 writes here, while this one executes nothing.
            rank.exchange(&[], &mut || Ok(()))?;
            if !is_sealed {
                file.set_len(LEN)?;
            }
            wait_for_announcement(&rig)?;
            check_eq!(memory.load_u64(LEN - 8), 52);
        } else {
            put_often(&rig, at(remote, LEN - 8), 51)?;
            check_eq!(mappings_of(NAME)?, if_permitted(usize::from(is_sealed)));
            pass(&rig)?;
            rank.exchange(&[], &mut || Ok(()))?;
            let word = Buf::of(&52_u64.to_le_bytes());
            let there = at(remote, LEN - 8);
            rig.post(|| rig.ep.write(word, rig.peer(), there.addr, there.key, 1))?;
            rank.exchange(&[], &mut || Ok(()))?;
            rig.sent(1)?;
            pass(&rig)?;
        }
        rig.barrier()?;
        mr.close()?;
        rig.barrier()?;
        if rank.index == 0 && mappings_of(NAME)? > 0 {
            rig.wait("the end of the mapping", || Ok((mappings_of(NAME)? == 0).then_some(())))?;
        }
        rig.barrier()?;
    }
    Ok(())
}
