// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Unit tests of moved pages: move, restore, races with other mappings.

use super::*;
use scif_ring::counter::AtomicFlag;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const LEN: usize = 3 << 20;

fn buffer() -> usize {
    buffer_near(0)
}

/// Returns a buffer far from addresses that the kernel picks itself: unmapped parts stay holes
/// despite mappings of other tests.
fn buffer_near(hint: usize) -> usize {
    // SAFETY: the kernel picks an unused range, at the hint or elsewhere.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            pointer(hint),
            LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    at.unwrap().expose_provenance()
}

fn word(at: usize) -> scif_ring::Mem {
    // SAFETY: within the buffer of the test, which stays mapped.
    unsafe { scif_ring::Mem::new(pointer(at).cast(), 8) }
}

#[test]
fn an_absent_page_is_found_and_brought_in() {
    let at = buffer();
    assert!(!are_present(at, LEN));
    let area = areas(at, at + LEN).unwrap().remove(0);
    populate(&area, at, LEN);
    assert!(are_present(at, LEN));
    let last = at + LEN - PAGE;
    // SAFETY: a page of the test.
    unsafe { rustix::mm::madvise(pointer(last), PAGE, Advice::LinuxDontNeed) }.unwrap();
    assert!(are_present(at, LEN - PAGE) && !are_present(at, LEN));
    populate(&area, at, LEN);
    assert!(are_present(at, LEN));
}

#[test]
fn pages_move_into_the_arena_and_back() {
    let at = buffer();
    let fd = memfd::create("scif-test", 1 << 30).unwrap();
    scif_ring::rmw::store(&word(at + PAGE), 77u64).unwrap();
    let area = areas(at, at + LEN).unwrap().remove(0);
    move_in(&area, at..at + LEN, fd.as_fd(), 8192, None, freely).unwrap();
    let moved = areas(at, at + LEN).unwrap().remove(0);
    assert!(moved.shared && moved.file == file_id(&fd).unwrap());
    scif_ring::rmw::store(&word(at), 78u64).unwrap();
    let mut bytes = [0u8; 8];
    rustix::io::pread(&fd, &mut bytes, 8192 + PAGE as u64).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 77);
    restore_and_free(&moved, at, at + LEN, None, fd.as_fd()).unwrap();
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0, "nothing is there twice");
    let back = areas(at, at + LEN).unwrap().remove(0);
    assert!(!back.shared && back.file == FileId::default());
    assert_eq!(scif_ring::rmw::load(&word(at)), Some(78u64));
}

#[test]
fn absent_pages_are_not_restored() {
    let at = buffer_near(64 << 30);
    let fd = memfd::create("scif-test", 1 << 30).unwrap();
    let area = areas(at, at + LEN).unwrap().remove(0);
    move_in(&area, at..at + LEN, fd.as_fd(), 0, None, freely).unwrap();
    let moved = areas(at, at + LEN).unwrap().remove(0);
    let maps = || std::fs::File::open("/proc/self/maps").unwrap();
    assert!(is_still(&moved, at, at + LEN) && is_listed(&maps(), &moved, at, at + LEN));
    unmap(at + PAGE, PAGE).unwrap();
    assert!(!is_still(&moved, at, at + LEN) && !is_listed(&maps(), &moved, at, at + LEN));
    assert!(is_listed(&maps(), &moved, at + 2 * PAGE, at + LEN));
    assert_eq!(restore(&moved, at, at + LEN, None, Some(fd.as_fd())), Err(Errno::STALE));
    assert_eq!(restore(&moved, at, at + 100, None, Some(fd.as_fd())), Err(Errno::INVAL));
    let left = areas(at, at + LEN).unwrap();
    assert!(!left.iter().any(|a| a.begin <= at + PAGE && a.end > at + PAGE));
    unmap(at, PAGE).unwrap();
    unmap(at + 2 * PAGE, LEN - 2 * PAGE).unwrap();
    // No load from the range: all of it is unmapped.
    assert_eq!(restore(&moved, at, at + LEN, None, Some(fd.as_fd())), Err(Errno::STALE));
}

#[test]
fn fresh_pages_in_place_of_unmapped_ones_are_not_filled_from_themselves() {
    const SMALL: usize = 16 * PAGE;
    let Some(guard) = WriteFence::new() else {
        println!("skipped: userfaultfd is refused");
        return;
    };
    let (requests, received) = std::sync::mpsc::channel::<(Area, OwnedFd)>();
    let (answer, answered) = std::sync::mpsc::channel();
    let guard = Arc::new(guard);
    let its = Arc::clone(&guard);
    // Started before the test unmaps memory, so that its stack does not take the unmapped
    // range.
    std::thread::spawn(move || {
        for (moved, fd) in received {
            let file = Some(fd.as_fd());
            answer.send(restore(&moved, moved.begin, moved.end, Some(&its), file)).unwrap();
        }
    });
    let mut reused = 0;
    for _ in 0..100 {
        let at = large::fresh(SMALL, 0).unwrap().expose_provenance();
        let fd = memfd::create("scif-test", SMALL).unwrap();
        let area = areas(at, at + SMALL).unwrap().remove(0);
        move_in(&area, at..at + SMALL, fd.as_fd(), 0, Some(&guard), freely).unwrap();
        let moved = areas(at, at + SMALL).unwrap().remove(0);
        unmap(at, SMALL).unwrap();
        requests.send((moved, fd)).unwrap();
        let outcome = answered.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(outcome, Ok(Err(Errno::STALE)), "a thread waits for itself");
        let fresh = large::fresh(SMALL, 0).unwrap().expose_provenance();
        reused += usize::from(fresh == at);
        unmap(fresh, SMALL).unwrap();
    }
    assert!(reused > 0, "the kernel never took the hole");
}

#[test]
fn a_mapping_of_another_kind_is_not_restored() {
    let Some(guard) = WriteFence::new() else {
        println!("skipped: userfaultfd is refused");
        return;
    };
    let at = large::fresh(LEN, 0).unwrap().expose_provenance();
    let fd = memfd::create("scif-test", LEN).unwrap();
    let area = areas(at, at + LEN).unwrap().remove(0);
    move_in(&area, at..at + LEN, fd.as_fd(), 0, Some(&guard), freely).unwrap();
    let moved = areas(at, at + LEN).unwrap().remove(0);
    let program = std::fs::File::open("/proc/self/exe").unwrap();
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: replaces pages of this test, to which nothing refers.
    unsafe {
        rustix::mm::mmap(pointer(at), LEN, ProtFlags::READ | ProtFlags::WRITE, flags, &program, 0)
    }
    .unwrap();
    let restored = restore(&moved, at, at + LEN, Some(&guard), Some(fd.as_fd()));
    assert_eq!(restored, Err(Errno::STALE));
    unmap(at, LEN).unwrap();
}

#[test]
fn stores_continue_if_pages_cannot_move() {
    let Some(guard) = WriteFence::new() else {
        println!("skipped: userfaultfd is refused");
        return;
    };
    let at = buffer();
    let stored = |n: u64| {
        let done = Arc::new(AtomicFlag::new(false));
        let (end, says) = (crate::now_ns() + 10_000_000_000, Arc::clone(&done));
        std::thread::spawn(move || {
            scif_ring::rmw::store(&word(at), n).unwrap();
            says.set(true);
        });
        while !done.get() && crate::now_ns() < end {
            std::thread::yield_now();
        }
        done.get()
    };
    let fd = memfd::create("scif-test", LEN).unwrap();
    let area = areas(at, at + LEN).unwrap().remove(0);
    let full = memfd::create("scif-test", LEN).unwrap();
    memfd::seal(&full, rustix::fs::SealFlags::WRITE).unwrap();
    let moved = move_in(&area, at..at + LEN, full.as_fd(), 0, Some(&guard), freely);
    assert_eq!(moved, Err(Errno::PERM));
    assert!(stored(1), "the pages stay as they were");
    move_in(&area, at..at + LEN, fd.as_fd(), 0, Some(&guard), freely).unwrap();
    let area = areas(at, at + LEN).unwrap().remove(0);
    let other = Area { file: FileId::default(), ..area };
    let moved = restore(&other, at, at + LEN, Some(&guard), Some(fd.as_fd()));
    assert_eq!(moved, Err(Errno::STALE));
    assert!(stored(2), "the pages stay shared");
    assert_eq!(scif_ring::rmw::load(&word(at)), Some(2u64));
}

#[test]
fn no_store_is_lost_while_pages_move() {
    let Some(guard) = WriteFence::new() else {
        println!("skipped: userfaultfd is refused");
        return;
    };
    let at = buffer();
    let fd = memfd::create("scif-test", 1 << 30).unwrap();
    let stop = Arc::new(AtomicFlag::new(false));
    let writer = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut n = 0u64;
            while !stop.get() {
                n += 1;
                // Reads the previous store back: a lost store shows as an older number.
                assert_eq!(scif_ring::rmw::fetch_add(&word(at + 64), 1u64), Some(n - 1));
                assert_eq!(scif_ring::rmw::fetch_add(&word(at + (2 << 20) + 8), 1u64), Some(n - 1));
            }
            n
        })
    };
    for round in 0..20u64 {
        let area = areas(at, at + LEN).unwrap().remove(0);
        move_in(&area, at..at + LEN, fd.as_fd(), round * LEN as u64, Some(&guard), freely).unwrap();
        let area = areas(at, at + LEN).unwrap().remove(0);
        restore(&area, at, at + LEN, Some(&guard), Some(fd.as_fd())).unwrap();
    }
    stop.set(true);
    let n = writer.join().unwrap();
    assert_eq!(scif_ring::rmw::load(&word(at + 64)), Some(n));
}
