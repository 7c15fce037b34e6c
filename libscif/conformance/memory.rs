// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows over every kind of memory, and the state of a window after its owner, or a process that
//! maps it, ends in every way.

use scif_fabtests::harness::process::{Cue, Process};

use crate::api::{Api, Case};
use crate::placement::{case_port, node, server};
use crate::rig::*;
use libc::{EADDRINUSE, ECONNRESET, ENOMEM, ENXIO};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const N: usize = 4;
const LEN: usize = N * PAGE;
const AT: i64 = 0x10000;
const HUGE: usize = 2 << 20;

/// Checks RMA in both directions between a peer and a window over pages with the pattern of seed 1.
fn serves(api: &Api, peer: i32, at: usize, len: usize) {
    let seen = pages(len / PAGE);
    assert_eq!(api.vreadfrom(peer, seen, len, AT, SYNC), Ok(0));
    assert!(holds(seen, len, 1));
    poke(at + len - 1, 200);
    assert_eq!(api.vreadfrom(peer, seen, 1, AT + len as i64 - 1, SYNC), Ok(0));
    assert_eq!(peek(seen), 200, "the same pages");
    fill(seen, len, 2);
    assert_eq!(api.vwriteto(peer, seen, len, AT, SYNC), Ok(0));
    assert!(holds(at, len, 2));
    fill(at, len, 1);
}

/// Checks a window that can be mapped, over memory that belongs to the program before and after.
fn maps(api: &Api, at: usize, len: usize) {
    let (a, b) = loopback(api);
    fill(at, len, 1);
    assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
    serves(api, b, at, len);
    let mapped = api.mmap(b, (0, len), RW, 0, AT).unwrap();
    assert!(holds(mapped, len, 1));
    poke(mapped + PAGE, 201);
    assert_eq!(peek(at + PAGE), 201);
    fill(at, len, 1);
    assert_eq!(api.munmap(mapped, len), Ok(0));
    assert_eq!(api.unregister(a, AT, len), Ok(0));
    assert!(holds(at, len, 1));
}

/// Checks a window over pages that cannot be moved.
fn stays(api: &Api, at: usize, len: usize) {
    let (a, b) = loopback(api);
    fill(at, len, 1);
    assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
    serves(api, b, at, len);
    assert_eq!(api.mmap(b, (0, PAGE), RW, 0, AT), Err(ENOMEM));
    assert_eq!(api.unregister(a, AT, len), Ok(0));
    assert!(holds(at, len, 1));
}

/// Registers and unregisters in one process, while a forked child of the peer maps and ends in some
/// way. Then the offset is free.
fn freed_by(api: &Api, go: impl Fn(usize)) {
    server(api, |epd, cue| {
        let at = filled(N, LEN, 1);
        assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT));
        cue.meet();
        assert_eq!(api.unregister(epd, AT, LEN), Ok(0));
        assert_eq!(
            api.register(epd, (at, LEN), AT, RW, FIXED),
            Err(EADDRINUSE),
            "while it is mapped"
        );
        cue.meet();
        assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT), "free again");
        cue.notify();
    })
    .client(|epd, cue| {
        cue.wait();
        let (mine, childs) = Cue::pair();
        let child = Process::start(|| {
            let at = api.mmap(epd, (0, LEN), RW, 0, AT).unwrap();
            assert!(holds(at, LEN, 1));
            childs.meet();
            go(at);
            childs.meet();
        });
        mine.wait();
        cue.meet();
        mine.notify();
        until("it has gone", || child.has_ended() || mine.is_notified());
        cue.meet();
        child.kill();
        child.end();
    });
}

/// Ends the owner of a window in some way while its peer maps it. The pages keep their content.
fn outlives(api: &Api, go: impl FnOnce(i32), rma: i32) {
    let (cue, owners) = Cue::pair();
    let owner = Process::start(|| {
        set_env("SCIF_NODE", "2");
        owners.wait();
        let epd = api.open();
        api.connect(epd, node(1), case_port()).unwrap();
        let at = filled(N, LEN, 1);
        assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT));
        owners.meet();
        poke(at, 77);
        go(epd);
        owners.meet();
        assert_eq!(peek(at + 1), 78, "the peer's store");
        owners.meet();
    });
    set_env("SCIF_NODE", "1");
    let (listener, _) = api.listener(case_port(), 1);
    cue.notify();
    let (_, epd) = api.accept(listener, BLOCK).unwrap();
    cue.wait();
    let at = api.mmap(epd, (0, LEN), RW, 0, AT).unwrap();
    cue.notify();
    until("it has gone", || owner.has_ended() || cue.is_notified());
    until("RMA says so", || api.vreadfrom(epd, pages(1), 8, AT, SYNC) == Err(rma));
    assert_eq!(api.vwriteto(epd, pages(1), 8, AT, SYNC), Err(rma));
    assert_eq!(peek(at), 77, "its last store");
    poke(at + 1, 78);
    poke(at + LEN - 1, 79);
    assert_eq!((peek(at + 1), peek(at + LEN - 1)), (78, 79));
    if !owner.has_ended() {
        cue.meet();
        assert_eq!(peek(at + 1), 78);
        owner.kill();
    }
    owner.end();
    assert_eq!((peek(at), peek(at + 1), peek(at + LEN - 1)), (77, 78, 79), "also after it");
    until("its end", || api.vreadfrom(epd, pages(1), 8, AT, SYNC) == Err(ECONNRESET));
    unmap(at, LEN);
}

/// Allocates memory of whole huge pages with the pattern of seed 1, if the system has huge pages.
fn large_pages(n: usize) -> usize {
    let len = n * HUGE;
    let at = pages((len + HUGE) / PAGE).next_multiple_of(HUGE);
    wants_huge_pages(at, len);
    fill(at, len, 1);
    if of_kind(at, len, "AnonHugePages") < len {
        step_aside("no transparent huge pages");
    }
    at
}

/// Whether the areas of a range have `n` huge pages of a kind, and still request them.
fn are_large(at: usize, len: usize, kind: &str, n: usize) -> bool {
    let wanted = smaps_values(at, len, "VmFlags").iter().all(|flags| flags.contains(" hg"));
    wanted && of_kind(at, len, kind) >= n * HUGE
}

const OF_FILES: &str = "ShmemPmdMapped";
const PRIVATE: &str = "AnonHugePages";

/// Counts in all of these words until `stop`.
fn count_until(stop: &Mutex<bool>, places: &std::iter::StepBy<std::ops::Range<usize>>) {
    let mut n = 0;
    while !*stop.lock().unwrap() {
        for place in places.clone() {
            assert_eq!(peek64(place), n, "a store was lost");
            poke64(place, n + 1);
        }
        n += 1;
    }
}

pub(crate) const CASES: &[Case] = &[
    ("huge_pages_are_preserved", |api| {
        server(api, |epd, cue| {
            let all = large_pages(5);
            // Three of them, and a page of the one before and of the one behind.
            let (at, len) = (all + HUGE - PAGE, 3 * HUGE + 2 * PAGE);
            fill(at, len, 1);
            assert_eq!(api.register(epd, (at, len), AT, RW, FIXED), Ok(AT));
            assert!(are_large(at, len, OF_FILES, 3));
            assert!(holds(at, len, 1));
            Process::start(|| {
                assert!(are_large(at, len, PRIVATE, 3), "a child's copies");
                assert!(holds(at, len, 1));
            })
            .wait();
            cue.meet();
            assert!(holds(at, len, 3), "the peer's stores");
            assert!(are_large(at, len, OF_FILES, 3), "whatever the peer does");
            assert_eq!(api.unregister(epd, AT, len), Ok(0));
            assert!(are_large(at, len, PRIVATE, 3));
            assert!(holds(at, len, 3) && !lies_in_an_arena(at, len));
            // Registered again until the connection ends.
            assert_eq!(api.register(epd, (at, len), AT, 1, FIXED), Ok(AT));
            assert!(are_large(at, len, OF_FILES, 3));
            assert_eq!(api.close(epd), Ok(0));
            assert!(are_large(at, len, PRIVATE, 3));
            assert!(holds(at, len, 3) && !lies_in_an_arena(at, len));
            cue.notify();
        })
        .client(|epd, cue| {
            cue.wait();
            let len = 3 * HUGE + 2 * PAGE;
            let at = api.mmap(epd, (0, len), RW, 0, AT).unwrap();
            assert!(holds(at, len, 1));
            assert!(of_kind(at, len, OF_FILES) >= 3 * HUGE, "the mapping");
            let seen = pages(len / PAGE);
            assert_eq!(api.vreadfrom(epd, seen, len, AT, SYNC), Ok(0));
            assert!(holds(seen, len, 1));
            fill(seen, len, 3);
            assert_eq!(api.vwriteto(epd, seen, len, AT, SYNC), Ok(0));
            assert!(holds(at, len, 3));
            assert!(of_kind(0, usize::MAX, OF_FILES) >= 6 * HUGE, "the library's own mapping");
            assert_eq!(api.munmap(at, len), Ok(0));
            cue.meet();
        });
    }),
    ("huge_pages_are_preserved_under_stores", |api| {
        let (a, b) = loopback(api);
        for n in [4, 1] {
            let len = n * HUGE;
            let at = large_pages(n);
            let stop = Arc::new(Mutex::new(false));
            let writers: Vec<_> = (1..3)
                .map(|index| {
                    let (stop, mine) = (Arc::clone(&stop), at + index * 8);
                    let places = (mine..mine + len).step_by(PAGE);
                    places.clone().for_each(|place| poke64(place, 0));
                    std::thread::spawn(move || count_until(&stop, &places))
                })
                .collect();
            for _ in 0..10 {
                assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
                assert!(are_large(at, len, OF_FILES, n));
                let mapped = api.mmap(b, (0, len), RW, 0, AT).unwrap();
                assert_eq!(peek(mapped + 7), peek(at + 7));
                assert_eq!(api.munmap(mapped, len), Ok(0));
                assert_eq!(api.unregister(a, AT, len), Ok(0));
                assert!(are_large(at, len, PRIVATE, n));
            }
            *stop.lock().unwrap() = true;
            for writer in writers {
                writer.join().unwrap();
            }
        }
    }),
    ("huge_page_advice_is_preserved", |api| {
        let (a, _b) = loopback(api);
        let len = 2 * HUGE;
        let all = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|modes| modes.contains("[always]"));
        // On a system where all memory gets huge pages the refusal matters, elsewhere the request.
        let advice = [(" hg", wants_huge_pages as fn(usize, usize)), (" nh", wants_no_huge_pages)];
        for (flag, call_with_words) in advice.into_iter().filter(|(flag, _)| all || *flag == " hg")
        {
            let at = pages((len + HUGE) / PAGE).next_multiple_of(HUGE);
            call_with_words(at, len);
            fill(at, len, 1);
            let says = || smaps_values(at, len, "VmFlags").iter().all(|flags| flags.contains(flag));
            if !says() || (flag == " hg" && of_kind(at, len, PRIVATE) == 0) {
                step_aside("no transparent huge pages");
            }
            assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
            assert!(says(), "while it is registered");
            assert_eq!(api.unregister(a, AT, len), Ok(0));
            assert!(says(), "afterwards");
            assert!(holds(at, len, 1));
        }
        // Repeated with a child that has the pages too.
        let at = large_pages(2);
        let (_mine, childs) = Cue::pair();
        let child = Process::start(|| childs.wait());
        assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
        assert!(are_large(at, len, OF_FILES, 2));
        assert_eq!(api.unregister(a, AT, len), Ok(0));
        assert!(are_large(at, len, PRIVATE, 2));
        child.kill();
        child.end();
        if !all {
            let at = pages((len + HUGE) / PAGE).next_multiple_of(HUGE);
            fill(at, len, 1);
            assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
            assert_eq!(api.unregister(a, AT, len), Ok(0));
            assert!(!smaps_values(at, len, "VmFlags").iter().any(|flags| flags.contains(" hg")));
        }
    }),
    ("huge_pages_become_small_without_free_ones", |api| {
        let at = large_pages(2);
        deny_collapsing();
        maps(api, at, 2 * HUGE);
        assert!(are_large(at, 2 * HUGE, PRIVATE, 2), "once they are private again");
        let (a, _b) = loopback(api);
        assert_eq!(api.register(a, (at, 2 * HUGE), AT, RW, FIXED), Ok(AT));
        let given =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap();
        if given.contains("[never]") || given.contains("[deny]") {
            assert!(are_large(at, 2 * HUGE, OF_FILES, 0), "refused, and there all the same");
        }
    }),
    ("stores_during_a_plain_close_are_kept", |api| {
        // The library's thread moves the pages back, beside the only thread of the program.
        let len = 32 << 20;
        for _ in 0..3 {
            let (a, b) = loopback(api);
            let at = map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 3);
            let places = (at..at + len).step_by(PAGE);
            places.clone().for_each(|place| poke64(place, 0));
            assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
            plain_close(a);
            let mut n = 0;
            let begin = Instant::now();
            while lies_in_an_arena(at, len) || begin.elapsed() < Duration::from_millis(200) {
                for place in places.clone() {
                    assert_eq!(peek64(place), n, "a store was lost");
                    poke64(place, n + 1);
                }
                n += 1;
                assert!(begin.elapsed() < Duration::from_secs(30), "they do not move back");
            }
            api.close(b).unwrap();
            unmap(at, len);
        }
    }),
    ("threads_registering_the_same_pages_share_them", |api| {
        let (len, buffer) = (256 * PAGE, pages(256));
        for round in 0..60 {
            let ((a, b), (c, d)) = (loopback(api), loopback(api));
            let at = map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 3);
            fill(at, len, 1);
            let together = Barrier::new(2);
            std::thread::scope(|scope| {
                for epd in [a, c] {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        assert_eq!(
                            api.register(epd, (at, len), AT, RW, FIXED),
                            Ok(AT),
                            "round {round}"
                        );
                    });
                }
            });
            fill(at, len, 7);
            for peer in [b, d] {
                fill(buffer, len, 0);
                assert_eq!(api.vreadfrom(peer, buffer, len, AT, SYNC), Ok(0));
                assert!(holds(buffer, len, 7), "round {round}: a window of something else");
            }
            for epd in [a, b, c, d] {
                api.close(epd).unwrap();
            }
            unmap(at, len);
        }
    }),
    ("memory_is_registered_during_rma_to_it", |api| {
        let (n, (a, b), (c, d)) = (1024, loopback(api), loopback(api));
        let (from, at) = (pages(n), pages(n));
        let len = n * PAGE;
        assert_eq!(api.register(b, (from, len), AT, RW, FIXED), Ok(AT));
        for round in 0..40u8 {
            // Whole pages, or parts of the first and the last, where the remaining bytes belong
            // to the program.
            let beside = if round % 4 < 2 { 0 } else { 100 };
            let (to, part) = (at + beside, len - 2 * beside);
            fill(from, len, round);
            fill(at, beside, !round);
            fill(to + part, beside, !round);
            assert_eq!(api.vreadfrom(a, to, part, AT, 0), Ok(0));
            let mark = api.fence_mark(a, 1).unwrap();
            // The pages of the target move there now, and back in the next round.
            if round % 2 == 0 {
                assert_eq!(api.register(c, (at, len), AT, RW, FIXED), Ok(AT));
            } else {
                assert_eq!(api.unregister(c, AT, len), Ok(0));
            }
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert!(holds(to, part, round), "round {round}: bytes are lost");
            let kept = holds(at, beside, !round) && holds(to + part, beside, !round);
            assert!(kept, "round {round}: the program's are lost");
        }
        // RMAs that a fence reports as done block no move.
        for _ in 0..20 {
            assert_eq!(api.register(c, (at, len), AT, RW, FIXED), Ok(AT));
            assert_eq!(api.vreadfrom(a, at, len, AT, 0), Ok(0));
            let mark = api.fence_mark(a, 1).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert_eq!(api.unregister(c, AT, len), Ok(0));
            assert!(!lies_in_an_arena(at, len));
        }
        for epd in [a, b, c, d] {
            api.close(epd).unwrap();
        }
    }),
    ("signal_handler_stores_to_memory_being_registered", |api| {
        let (len, (a, b)) = (2 * HUGE, loopback(api));
        let (at, beside) = (pages(len / PAGE), pages(1));
        count_signals(50, Some([at, beside]));
        for _ in 0..100 {
            assert_eq!(api.register(a, (at, len), AT, RW, FIXED), Ok(AT));
            assert_eq!(api.unregister(a, AT, len), Ok(0));
        }
        count_signals(0, None);
        assert_ne!(peek64(beside), 0, "no signal came");
        assert_eq!(peek64(at), peek64(beside), "stores are lost");
        for epd in [a, b] {
            api.close(epd).unwrap();
        }
    }),
    ("pages_of_windows_in_place_do_not_move", |api| {
        // The connection of their arena ends, or only its window.
        for closes in [true, false] {
            for plain in [false, true] {
                let ((a, b), (c, d)) = (loopback(api), loopback(api));
                let at = filled(N, LEN, 1);
                assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
                // Two of its pages, over another connection.
                let (used, half) = (at + PAGE, LEN / 2);
                assert_eq!(api.register(c, (used, half), AT, RW, FIXED), Ok(AT));
                if closes {
                    api.close(a).unwrap();
                    api.close(b).unwrap();
                } else {
                    assert_eq!(api.unregister(a, AT, LEN), Ok(0));
                }
                assert!(lies_in_an_arena(used, half), "its peer may be at them");
                assert!(!lies_in_an_arena(at, PAGE), "nobody is at the others");
                assert!(!lies_in_an_arena(used + half, PAGE));
                assert!(holds(at, LEN, 1));
                let seen = filled(2, half, 5);
                assert_eq!(api.vwriteto(d, seen, half, AT, SYNC), Ok(0));
                assert!(holds(used, half, 5));
                if plain {
                    plain_close(c);
                } else {
                    assert_eq!(api.unregister(c, AT, half), Ok(0));
                    assert!(!lies_in_an_arena(at, LEN), "nobody is at them any more");
                }
                until("they are private again", || !lies_in_an_arena(at, LEN));
                assert!(holds(used, half, 5));
                dont_need(at, LEN);
                assert_eq!(peek(used), 0);
            }
        }
    }),
    ("transparent_huge_pages_move_and_are_mapped", |api| {
        let len = 2 * HUGE;
        let at = pages((len + HUGE) / PAGE).next_multiple_of(HUGE);
        wants_huge_pages(at, len);
        maps(api, at, len);
    }),
    ("hugetlb_pages_do_not_move", |api| match huge_pages(HUGE) {
        Some(at) => stays(api, at, HUGE),
        None => step_aside("no huge pages in the pool"),
    }),
    ("shared_memory_does_not_move", |api| {
        stays(api, map(LEN, libc::MAP_SHARED | libc::MAP_ANONYMOUS, 3), LEN);
        stays(api, map_file(LEN, None, libc::MAP_SHARED), LEN);
        for directory in ["/dev/shm", "/tmp"] {
            let path = format!("{directory}/scif-conformance-{}", std::process::id());
            stays(api, map_file(LEN, Some(&path), libc::MAP_SHARED), LEN);
        }
    }),
    ("private_file_mapping_moves_and_is_mapped", |api| {
        maps(api, map_file(LEN, None, libc::MAP_PRIVATE), LEN);
        let path = format!("/tmp/scif-conformance-{}", std::process::id());
        maps(api, map_file(LEN, Some(&path), libc::MAP_PRIVATE), LEN);
    }),
    ("private_file_mapping_is_registered_with_other_threads", |api| {
        let path = format!("/tmp/scif-conformance-{}", std::process::id());
        let in_memory = map_file(LEN, None, libc::MAP_PRIVATE);
        let on_disk = map_file(LEN, Some(&path), libc::MAP_PRIVATE);
        for at in [in_memory, on_disk] {
            let (a, b) = loopback(api);
            let ends = Arc::new(Mutex::new(false));
            let word = at + LEN - 8;
            let storing = {
                let ends = Arc::clone(&ends);
                std::thread::spawn(move || {
                    let mut n = peek64(word);
                    while !*ends.lock().unwrap() {
                        n += 1;
                        poke64(word, n);
                        assert_eq!(peek64(word), n, "a store is lost");
                    }
                    n
                })
            };
            fill(at, LEN - PAGE, 1);
            for _ in 0..200 {
                assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
                assert_eq!(api.unregister(a, AT, LEN), Ok(0));
            }
            assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
            serves(api, b, at, LEN - PAGE);
            // Memory with stores that cannot be blocked stays in place, and cannot be mapped.
            match api.mmap(b, (0, LEN), RW, 0, AT) {
                Ok(mapped) => assert_eq!(api.munmap(mapped, LEN), Ok(0)),
                refused => assert_eq!((refused, at), (Err(ENOMEM), on_disk)),
            }
            assert_eq!(api.unregister(a, AT, LEN), Ok(0));
            *ends.lock().unwrap() = true;
            assert_eq!(storing.join().unwrap(), peek64(word), "a store is lost");
            assert!(holds(at, LEN - PAGE, 1));
        }
    }),
    ("another_thread_moves_a_stack_back", |api| {
        let (a, b) = loopback(api);
        let (turn, stack) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(0)));
        let thread = {
            let (api, turn, stack) = (*api, Arc::clone(&turn), Arc::clone(&stack));
            std::thread::spawn(move || {
                // Far from the top, which holds the thread's own data.
                let top = std::hint::black_box([0u8; 16 * PAGE]);
                *stack.lock().unwrap() = (&raw const top).expose_provenance();
                turn.wait();
                turn.wait();
                // The call runs on the registered stack.
                assert_eq!(api.unregister(a, AT, LEN), Ok(0));
                turn.wait();
                turn.wait();
                assert_eq!(std::hint::black_box(&top), &[0u8; 16 * PAGE]);
            })
        };
        turn.wait();
        let at = *stack.lock().unwrap() / PAGE * PAGE + PAGE - LEN;
        assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
        let seen = pages(N);
        assert_eq!(api.vreadfrom(b, seen, LEN, AT, SYNC), Ok(0));
        turn.wait();
        turn.wait();
        assert_eq!(api.vreadfrom(b, seen, PAGE, AT, SYNC), Err(ENXIO));
        let memory = pages(1);
        until("the next that comes by takes them back", || {
            assert_eq!(api.register(a, (memory, PAGE), AT, RW, FIXED), Ok(AT));
            assert_eq!(api.unregister(a, AT, PAGE), Ok(0));
            !lies_in_an_arena(at, LEN)
        });
        turn.wait();
        thread.join().unwrap();
    }),
    ("pages_registered_over_two_connections_serve_both", |api| {
        let ((a, b), (c, d)) = (loopback(api), loopback(api));
        let at = filled(N, LEN, 1);
        assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
        assert_eq!(api.register(c, (at, LEN), AT, RW, FIXED), Ok(AT));
        serves(api, b, at, LEN);
        serves(api, d, at, LEN);
        let mapped = api.mmap(b, (0, LEN), RW, 0, AT).unwrap();
        let other = api.mmap(d, (0, LEN), RW, 0, AT).unwrap();
        let seen = filled(N, LEN, 3);
        assert_eq!(api.vwriteto(d, seen, LEN, AT, SYNC), Ok(0));
        assert!(holds(at, LEN, 3) && holds(mapped, LEN, 3) && holds(other, LEN, 3));
        assert_eq!(api.munmap(other, LEN), Ok(0));
        fill(at, LEN, 1);
        // In either order.
        assert_eq!(api.unregister(a, AT, LEN), Ok(0));
        assert_eq!(api.munmap(mapped, LEN), Ok(0));
        serves(api, d, at, LEN);
        assert_eq!(api.register(a, (at, LEN), AT, RW, FIXED), Ok(AT));
        assert_eq!(api.unregister(c, AT, LEN), Ok(0));
        serves(api, b, at, LEN);
        api.close(a).unwrap();
        assert!(holds(at, LEN, 1));
        dont_need(at, LEN);
        assert_eq!(peek(at), 0, "private again");
        fill(at, LEN, 1);
        assert_eq!(api.register(c, (at, LEN), AT, RW, FIXED), Ok(AT));
        assert!(api.mmap(d, (0, LEN), RW, 0, AT).is_ok());
    }),
    ("window_unmapped_by_its_owner_serves_the_peer", |api| {
        server(api, |epd, cue| {
            let at = filled(N, LEN, 1);
            assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT));
            unmap(at, PAGE);
            map_over(at + PAGE, PAGE);
            protect(at + 2 * PAGE, PAGE, libc::PROT_NONE);
            cue.meet();
            assert_eq!(peek(at + PAGE), 0, "what is there now is not the window");
            assert_eq!(peek(at + 3 * PAGE), 9, "what still is, is");
            let own = pages(N);
            assert_eq!(api.register(epd, (own, LEN), 2 * AT, RW, FIXED), Ok(2 * AT));
            cue.meet();
            assert!(holds(own, PAGE, 4), "its own transfers reach the window too");
            cue.notify();
        })
        .client(|epd, cue| {
            cue.wait();
            let seen = pages(N);
            assert_eq!(api.vreadfrom(epd, seen, LEN, AT, SYNC), Ok(0));
            assert!(holds(seen, LEN, 1));
            let mapped = api.mmap(epd, (0, LEN), RW, 0, AT).unwrap();
            assert!(holds(mapped, LEN, 1));
            fill(seen, LEN, 4);
            assert_eq!(api.vwriteto(epd, seen, LEN, AT, SYNC), Ok(0));
            assert!(holds(mapped, LEN, 4));
            poke(mapped + 3 * PAGE, 9);
            cue.meet();
            assert_eq!(api.vwriteto(epd, mapped, PAGE, 2 * AT, SYNC), Ok(0));
            cue.meet();
        });
    }),
    ("pages_move_back_after_a_connection_within_a_process", |api| {
        // The end is handled by the call, or, after close(2), by the library's thread.
        for plain in [false, true] {
            for _ in 0..20 {
                let (a, b) = loopback(api);
                let at = pages(1);
                poke(at, 1);
                assert_eq!(api.register(a, (at, PAGE), AT, RW, FIXED), Ok(AT));
                let mapped = api.mmap(b, (0, PAGE), RW, 0, AT).unwrap();
                unmap(mapped, PAGE);
                if plain {
                    plain_close(a);
                    until("its end", || api.send(b, b"x", 0) == Err(ECONNRESET));
                } else {
                    api.close(a).unwrap();
                }
                until("it is private again", || {
                    poke(at, 1);
                    dont_need(at, PAGE);
                    peek(at) == 0
                });
                api.close(b).unwrap();
                unmap(at, PAGE);
            }
        }
    }),
    ("offset_is_free_after_munmap_by_the_peer", |api| {
        freed_by(api, |at| unmap(at, LEN));
    }),
    ("offset_is_free_after_the_last_part_is_unmapped", |api| {
        freed_by(api, |at| {
            for page in 0..N {
                unmap(at + page * PAGE, PAGE);
            }
        });
    }),
    ("offset_is_free_after_the_mapping_is_replaced", |api| {
        freed_by(api, |at| map_over(at, LEN));
    }),
    ("offset_is_free_after_exit_of_the_peer", |api| freed_by(api, |_| leave())),
    ("offset_is_free_after_kill_of_the_peer", |api| freed_by(api, |_| crash())),
    ("mapping_outlives_the_registration", |api| {
        outlives(api, |epd| assert_eq!(api.unregister(epd, AT, LEN), Ok(0)), ENXIO);
    }),
    ("mapping_outlives_the_endpoint_of_the_owner", |api| {
        outlives(api, |epd| assert_eq!(api.close(epd), Ok(0)), ECONNRESET);
    }),
    ("mapping_outlives_the_exit_of_the_owner", |api| {
        outlives(api, |_| leave(), ECONNRESET);
    }),
    ("mapping_outlives_the_kill_of_the_owner", |api| {
        outlives(api, |_| crash(), ECONNRESET);
    }),
    ("close_does_not_wait_for_a_stopped_peer", |api| {
        let (listener, _) = api.listener(case_port(), 1);
        let peer = Process::start(|| {
            let epd = api.open();
            api.connect(epd, 0, case_port()).unwrap();
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            let at = api.mmap(epd, (0, LEN), RW, 0, AT).unwrap();
            assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
            until("the end", || api.send(epd, b"x", 0) == Err(ECONNRESET));
            assert_eq!(peek(at), 5, "what it maps stays");
        });
        let (_, epd) = api.accept(listener, BLOCK).unwrap();
        let at = pages(N);
        assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT));
        assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
        assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        peer.stop();
        // The stopped peer does not answer, so the window counts as mapped.
        assert_eq!(api.close(epd), Ok(0));
        poke(at, 5);
        peer.resume();
        peer.wait();
    }),
    ("stores_of_a_forked_child_reach_the_peer", |api| {
        parent(|cue| {
            let (listener, _) = api.listener(case_port(), 1);
            cue.notify();
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            let at = pages(1);
            api.register(epd, (at, PAGE), AT, RW, FIXED).unwrap();
            assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
            until("the child's store", || peek(at) == 5);
            cue.notify();
        })
        .child(|cue| {
            cue.wait();
            let epd = api.open();
            api.connect(epd, 0, case_port()).unwrap();
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            Process::start(|| poke(api.mmap(epd, (0, PAGE), RW, 0, AT).unwrap(), 5)).wait();
            cue.wait();
        });
    }),
];
