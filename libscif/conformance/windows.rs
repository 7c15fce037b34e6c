// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registering, unregistering and mapping.

use crate::api::{Api, Case};
use crate::placement::{case_port, server};
use crate::rig::*;
use libc::{EADDRINUSE, EFAULT, EINVAL, ENOMEM, ENXIO, EPERM};

const LEN: usize = 4 * PAGE;

/// Registers pages with a pattern at a fixed offset and returns their address.
fn window(api: &Api, epd: i32, pages_n: usize, offset: i64, prot: i32, seed: u8) -> usize {
    let at = filled(pages_n, pages_n * PAGE, seed);
    assert_eq!(api.register(epd, (at, pages_n * PAGE), offset, prot, FIXED), Ok(offset));
    at
}

pub(crate) const CASES: &[Case] = &[
    ("register_checks_its_arguments", |api| {
        let (a, _b) = loopback(api);
        let at = pages(4);
        let try_it = |at, len, offset, prot, flags| {
            api.register(a, (at, len), offset, prot, flags).map(|_| ())
        };
        assert_eq!(try_it(at, PAGE, 0, 4, 0), Err(EINVAL), "protection");
        assert_eq!(try_it(at, PAGE, 0, RW, 0x20), Err(EINVAL), "for the kernel");
        assert_eq!(try_it(at, PAGE, 0, RW, 1), Err(EINVAL));
        assert_eq!(try_it(at + 1, PAGE, 0, RW, 0), Err(EINVAL));
        assert_eq!(try_it(at, 0, 0, RW, 0), Err(EINVAL));
        assert_eq!(try_it(at, 100, 0, RW, 0), Err(EINVAL));
        assert_eq!(try_it(at, PAGE, 100, RW, FIXED), Err(EINVAL));
        assert_eq!(try_it(at, PAGE, -4096, RW, FIXED), Err(EINVAL));
        assert_eq!(try_it(at, PAGE, i64::MAX & !4095, RW, FIXED), Err(EINVAL));
        assert_eq!(try_it(64 * PAGE, PAGE, 0, RW, 0), Err(EFAULT), "nothing there");
        let hole = pages(3);
        unmap(hole + PAGE, PAGE);
        assert_eq!(try_it(hole, 3 * PAGE, 0, RW, 0), Err(EFAULT));
        protect(at, PAGE, libc::PROT_NONE);
        assert_eq!(try_it(at, PAGE, 0, RW, 0), Err(EFAULT));
        assert_eq!(
            try_it(at + PAGE, PAGE, -1, RW, 0),
            Ok(()),
            "without FIXED the offset says nothing"
        );
        assert_eq!(
            try_it(at + 2 * PAGE, PAGE, 0, 0, FIXED),
            Ok(()),
            "no protection at all, at offset 0"
        );
    }),
    ("offsets_are_allocated_from_the_top", |api| {
        let (a, _b) = loopback(api);
        let at = pages(4);
        assert_eq!(api.register(a, (at, PAGE), 0, RW, 0), Ok(0x7fff_ffff_ffff_e000));
        assert_eq!(
            api.register(a, (at + PAGE, 2 * PAGE), -0x5000, RW, 0),
            Ok(0x7fff_ffff_ffff_c000)
        );
        assert_eq!(api.register(a, (at + 3 * PAGE, PAGE), 0, RW, 0), Ok(0x7fff_ffff_ffff_b000));
    }),
    ("suggested_offset_is_used_or_a_near_one", |api| {
        let (a, b) = loopback(api);
        let at = pages(6);
        let suggest = |page: usize, n: usize, offset| {
            api.register(a, (at + page * PAGE, n * PAGE), offset, RW, 0)
        };
        assert_eq!(suggest(0, 1, 0x50000), Ok(0x50000));
        assert_eq!(suggest(1, 2, 0x50000), Ok(0x51000), "the nearest that is free");
        assert_eq!(suggest(3, 1, 0x50000), Ok(0x4f000));
        assert_eq!(suggest(4, 1, 0x60123), Ok(0x60000), "of whole pages");
        assert_eq!(api.unregister(a, 0x50000, PAGE), Ok(0));
        assert_eq!(suggest(0, 1, 0x50000), Ok(0x50000), "free again");
        let held = api.mmap(b, (0, PAGE), RW, 0, 0x60000).unwrap();
        assert_eq!(api.unregister(a, 0x60000, PAGE), Ok(0));
        assert_eq!(suggest(5, 1, 0x60000), Ok(0x5f000), "mapped, and not free yet");
        api.munmap(held, PAGE).unwrap();
        fill(at, PAGE, 5);
        let to = pages(1);
        assert_eq!(api.vreadfrom(b, to, PAGE, 0x50000, SYNC), Ok(0));
        assert!(holds(to, PAGE, 5));
    }),
    ("suggested_address_is_used", |api| {
        let (a, b) = loopback(api);
        window(api, a, 1, 0x10000, RW, 1);
        let free = pages(3);
        unmap(free, 3 * PAGE);
        let mapped = api.mmap(b, (free + PAGE, PAGE), RW, 0, 0x10000).unwrap();
        assert_eq!(mapped, free + PAGE);
        let other = api.mmap(b, (free + PAGE, PAGE), RW, 0, 0x10000).unwrap();
        assert_ne!(other, mapped, "nothing is replaced");
        assert!(holds(other, PAGE, 1) && holds(mapped, PAGE, 1));
    }),
    ("occupied_offset_is_refused", |api| {
        let (a, _b) = loopback(api);
        window(api, a, 2, 0x10000, RW, 1);
        let at = pages(4);
        for (offset, len) in
            [(0x10000, PAGE), (0x11000, PAGE), (0xf000, 4 * PAGE), (0xf000, 2 * PAGE)]
        {
            assert_eq!(
                api.register(a, (at, len), offset, RW, FIXED),
                Err(EADDRINUSE),
                "{offset:#x}"
            );
        }
        assert_eq!(api.register(a, (at, PAGE), 0xf000, RW, FIXED), Ok(0xf000));
        assert_eq!(api.unregister(a, 0x10000, 2 * PAGE), Ok(0));
        assert_eq!(api.register(a, (at + PAGE, PAGE), 0x11000, RW, FIXED), Ok(0x11000));
    }),
    ("endpoints_have_separate_address_spaces", |api| {
        let (a, b) = loopback(api);
        let (c, d) = loopback(api);
        for epd in [a, b, c, d] {
            window(api, epd, 1, 0x1000, RW, 1);
        }
    }),
    ("unregister_accepts_whole_windows_only", |api| {
        let (a, _b) = loopback(api);
        window(api, a, 2, 0x10000, RW, 1);
        window(api, a, 2, 0x12000, RW, 1);
        assert_eq!(api.unregister(a, 0x10000, 0), Err(EINVAL));
        assert_eq!(api.unregister(a, 0x10000, 100), Err(EINVAL));
        assert_eq!(api.unregister(a, 0x10100, PAGE), Err(EINVAL));
        assert_eq!(api.unregister(a, -4096, PAGE), Err(EINVAL));
        assert_eq!(api.unregister(a, 0x10000, PAGE), Err(ENXIO), "half a window");
        assert_eq!(api.unregister(a, 0x11000, PAGE), Err(ENXIO));
        assert_eq!(api.unregister(a, 0x50000, PAGE), Err(ENXIO));
        assert_eq!(api.unregister(a, 0x10000, 5 * PAGE), Err(ENXIO), "a hole at the end");
        assert_eq!(api.unregister(a, 0x10000, 4 * PAGE), Ok(0), "two at once");
        assert_eq!(api.unregister(a, 0x10000, 4 * PAGE), Err(ENXIO));
    }),
    ("memory_is_private_again_after_unregister", |api| {
        let (a, _b) = loopback(api);
        for _ in 0..3 {
            let at = window(api, a, 600, 0x100000, RW, 9);
            assert!(holds(at, 600 * PAGE, 9));
            fill(at, 600 * PAGE, 5);
            api.unregister(a, 0x100000, 600 * PAGE).unwrap();
            assert!(holds(at, 600 * PAGE, 5));
            fill(at, PAGE, 6);
            // Private memory reads as zeros after this, shared memory would not.
            crate::rig::dont_need(at, 600 * PAGE);
            assert!((0..600).all(|i| peek(at + i * PAGE) == 0), "private again");
        }
    }),
    ("rma_on_every_kind_of_memory", |api| {
        let (a, b) = loopback(api);
        static CONSTANT: [u64; 2048] = [0x0101_0101_0101_0101; 2048];
        let constant = (&raw const CONSTANT).expose_provenance().next_multiple_of(PAGE);
        let heap: Vec<u8> = vec![1; 3 * PAGE];
        let heap_at = heap.as_ptr().expose_provenance().next_multiple_of(PAGE);
        let stack = [1u8; 3 * PAGE];
        let stack_at = (&raw const stack).expose_provenance().next_multiple_of(PAGE);
        let shared =
            map(PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        let readonly = pages(1);
        for at in [shared, readonly] {
            for i in 0..PAGE {
                poke(at + i, 1);
            }
        }
        protect(readonly, PAGE, libc::PROT_READ);
        let target = pages(1);
        for (i, at) in [constant, heap_at, stack_at, shared, readonly].into_iter().enumerate() {
            let offset = 0x10000 * (i as i64 + 1);
            assert_eq!(api.register(a, (at, PAGE), offset, RW, FIXED), Ok(offset), "kind {i}");
            assert_eq!(api.vreadfrom(b, target, PAGE, offset, SYNC), Ok(0), "kind {i}");
            assert!((0..PAGE).all(|k| peek(target + k) == 1), "kind {i}");
            if i != 0 && i != 4 {
                poke(at + 7, 99);
                assert_eq!(api.vreadfrom(b, target, PAGE, offset, SYNC), Ok(0));
                assert_eq!(peek(target + 7), 99, "kind {i}: the same page");
            }
            assert_eq!(api.unregister(a, offset, PAGE), Ok(0));
        }
        drop(heap);
    }),
    ("mapping_shares_the_pages", |api| {
        server(api, |epd, cue| {
            let at = window(api, epd, 4, 0x10000, RW, 1);
            cue.meet();
            assert_eq!(peek(at + PAGE + 5), 200, "the peer's store is seen");
            poke(at + 2 * PAGE, 201);
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            let at = api.mmap(epd, (0, LEN), RW, 0, 0x10000).unwrap();
            assert!(holds(at, LEN, 1));
            poke(at + PAGE + 5, 200);
            cue.meet();
            assert_eq!(peek(at + 2 * PAGE), 201, "and ours by it");
            let middle = api.mmap(epd, (0, PAGE), 1, 0, 0x11000).unwrap();
            assert_eq!(peek(middle + 5), 200, "from the middle");
            assert_eq!(api.munmap(at, LEN), Ok(0));
            cue.notify();
        });
    }),
    ("mmap_checks_its_arguments", |api| {
        let (a, b) = loopback(api);
        window(api, a, 1, 0x10000, 1, 1);
        window(api, a, 1, 0x11000, RW, 2);
        window(api, a, 1, 0x20000, 2, 3);
        let try_it = |len, prot, offset| api.mmap(b, (0, len), prot, 0, offset).map(|_| ());
        assert_eq!(try_it(0, 1, 0x10000), Err(EINVAL));
        assert_eq!(try_it(PAGE, 1, 0x10010), Err(EINVAL));
        assert_eq!(try_it(PAGE, RW, 0x10000), Err(EPERM));
        assert_eq!(try_it(2 * PAGE, RW, 0x10000), Err(EPERM), "the first does not allow it");
        assert_eq!(try_it(PAGE, 1, 0x20000), Err(EPERM));
        assert_eq!(try_it(2 * PAGE, 1, 0x11000), Err(ENXIO), "a hole");
        assert_eq!(try_it(PAGE, 1, 0x90000), Err(ENXIO));
        assert_eq!(try_it(2 * PAGE, 1, 0x10000), Ok(()), "two windows that touch");
        assert_eq!(
            api.mmap(b, (0, PAGE), 1, libc::MAP_PRIVATE, 0x10000).map(|_| ()),
            Ok(()),
            "always shared"
        );
    }),
    ("mmap_fixed_replaces_a_mapping", |api| {
        let (a, b) = loopback(api);
        window(api, a, 2, 0x10000, RW, 7);
        let place = pages(4);
        assert_eq!(api.mmap(b, (place + PAGE, 2 * PAGE), RW, FIXED, 0x10000), Ok(place + PAGE));
        assert!(holds(place + PAGE, 2 * PAGE, 7));
        assert_eq!(peek(place), 0);
    }),
    ("mapping_of_several_windows_is_one_range", |api| {
        let (a, b) = loopback(api);
        let second = window(api, a, 1, 0x11000, RW, 2);
        let first = window(api, a, 1, 0x10000, RW, 1);
        let at = api.mmap(b, (0, 2 * PAGE), RW, 0, 0x10000).unwrap();
        assert!(holds(at, PAGE, 1) && holds(at + PAGE, PAGE, 2));
        poke(at + PAGE - 1, 33);
        poke(at + PAGE, 34);
        assert_eq!((peek(first + PAGE - 1), peek(second)), (33, 34));
    }),
    ("windows_share_pages", |api| {
        let (a, b) = loopback(api);
        let at = window(api, a, 4, 0x10000, RW, 1);
        assert_eq!(
            api.register(a, (at + PAGE, 2 * PAGE), 0x20000, RW, FIXED),
            Ok(0x20000),
            "some of the same pages"
        );
        assert_eq!(
            api.register(a, (at, 4 * PAGE), 0x30000, 1, FIXED),
            Ok(0x30000),
            "all of them, read only"
        );
        let one = api.mmap(b, (0, 4 * PAGE), RW, 0, 0x10000).unwrap();
        let two = api.mmap(b, (0, 2 * PAGE), RW, 0, 0x20000).unwrap();
        poke(one + PAGE + 3, 77);
        assert_eq!((peek(two + 3), peek(at + PAGE + 3)), (77, 77));
        api.munmap(one, 4 * PAGE).unwrap();
        api.unregister(a, 0x10000, 4 * PAGE).unwrap();
        poke(two + 4, 78);
        assert_eq!(peek(at + PAGE + 4), 78, "the others keep them");
        let target = pages(1);
        assert_eq!(api.vreadfrom(b, target, PAGE, 0x31000, SYNC), Ok(0));
        assert_eq!(peek(target + 4), 78);
    }),
    ("mapped_page_of_a_peer_cannot_be_registered", |api| {
        server(api, |epd, cue| {
            window(api, epd, 1, 0x10000, RW, 1);
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            let at = api.mmap(epd, (0, PAGE), RW, 0, 0x10000).unwrap();
            assert_eq!(api.register(epd, (at, PAGE), 0, RW, 0), Err(EFAULT));
            cue.notify();
        });
    }),
    ("window_keeps_pages_that_the_owner_unmaps", |api| {
        let (a, b) = loopback(api);
        let at = window(api, a, 4, 0x10000, RW, 1);
        unmap(at, 2 * PAGE);
        crate::rig::map_over(at + 2 * PAGE, 2 * PAGE);
        poke(at + 2 * PAGE, 250);
        let target = pages(4);
        assert_eq!(api.vreadfrom(b, target, LEN, 0x10000, SYNC), Ok(0));
        assert!(holds(target, LEN, 1));
        let mapped = api.mmap(b, (0, LEN), RW, 0, 0x10000).unwrap();
        assert!(holds(mapped, LEN, 1));
        assert_eq!(api.unregister(a, 0x10000, LEN), Ok(0));
        assert_eq!(peek(at + 2 * PAGE), 250, "what is there now was not touched");
    }),
    ("mapping_outlives_the_window_and_reserves_the_offset", |api| {
        server(api, |epd, cue| {
            let at = window(api, epd, 4, 0x10000, RW, 1);
            cue.meet();
            assert_eq!(api.unregister(epd, 0x10000, LEN), Ok(0));
            assert_eq!(api.unregister(epd, 0x10000, LEN), Err(ENXIO));
            let other = pages(4);
            for ways in 0..4 {
                assert_eq!(
                    api.register(epd, (other, PAGE), 0x10000, RW, FIXED),
                    Err(EADDRINUSE),
                    "{ways}"
                );
                poke(at, 40 + ways);
                cue.meet();
                assert_eq!(peek(at + 1), 50 + ways, "still the same pages");
                if ways == 3 {
                    break;
                }
            }
            assert_eq!(
                api.register(epd, (other, LEN), 0x10000, RW, FIXED),
                Ok(0x10000),
                "free after the last munmap"
            );
            cue.notify();
        })
        .client(|epd, cue| {
            cue.wait();
            let at = api.mmap(epd, (0, LEN), RW, 0, 0x10000).unwrap();
            cue.notify();
            for ways in 0..4u8 {
                cue.wait();
                assert_eq!(peek(at), 40 + ways);
                poke(at + 1, 50 + ways);
                assert_eq!(
                    api.vwriteto(epd, at, 8, 0x10000, SYNC),
                    Err(ENXIO),
                    "RMA does not find it"
                );
                match ways {
                    1 => unmap(at + PAGE, PAGE),
                    2 => crate::rig::map_over(at + 2 * PAGE, PAGE),
                    3 => unmap(at, LEN),
                    _ => {}
                }
                cue.notify();
            }
            cue.wait();
        });
    }),
    ("mapping_outlives_the_endpoint_of_the_peer", |api| {
        outlives(api, |epd| assert_eq!(api.close(epd), Ok(0)))
    }),
    ("mapping_outlives_the_process_of_the_peer", |api| outlives(api, |_| ())),
    ("deleted_window_ends_with_the_process_that_maps_it", |api| {
        server(api, |epd, cue| {
            window(api, epd, 1, 0x10000, RW, 1);
            cue.meet();
            api.unregister(epd, 0x10000, PAGE).unwrap();
            let other = pages(1);
            assert_eq!(api.register(epd, (other, PAGE), 0x10000, RW, FIXED), Err(EADDRINUSE));
            cue.notify();
        })
        .client(|epd, cue| {
            cue.wait();
            api.mmap(epd, (0, PAGE), RW, 0, 0x10000).unwrap();
            cue.meet();
        });
    }),
    ("pages_in_place_serve_rma_but_no_mapping", |api| {
        let (a, b) = loopback(api);
        let shared =
            map(PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        poke(shared + 9, 5);
        assert_eq!(api.register(a, (shared, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
        assert_eq!(api.mmap(b, (0, PAGE), RW, 0, 0x10000), Err(ENOMEM));
        let target = pages(1);
        assert_eq!(api.vreadfrom(b, target, 10, 0x10000, SYNC), Ok(0));
        assert_eq!(peek(target + 9), 5);
        poke(target, 6);
        assert_eq!(api.vwriteto(b, target, 1, 0x10000, SYNC), Ok(0));
        assert_eq!(peek(shared), 6);
    }),
    ("registration_loses_no_concurrent_store", |api| {
        let (a, _b) = loopback(api);
        let at = pages(64);
        let stop = std::sync::Arc::new(std::sync::Mutex::new(false));
        let writers: Vec<_> = (0..2)
            .map(|index| {
                let stop = std::sync::Arc::clone(&stop);
                std::thread::spawn(move || {
                    let mine = at + index * 8;
                    let mut n = 0u64;
                    while n % 64 != 0 || !*stop.lock().unwrap() {
                        for page in 0..64 {
                            assert_eq!(
                                crate::rig::peek64(mine + page * PAGE),
                                n,
                                "a store was lost"
                            );
                            crate::rig::poke64(mine + page * PAGE, n + 1);
                        }
                        n += 1;
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            assert_eq!(api.register(a, (at, 64 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            api.unregister(a, 0x10000, 64 * PAGE).unwrap();
        }
        *stop.lock().unwrap() = true;
        for writer in writers {
            writer.join().unwrap();
        }
    }),
    ("buffer_is_registered_again_after_its_connection", |api| {
        parent(|cue| {
            let (listener, _) = api.listener(case_port(), 1);
            cue.notify();
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            let at = window(api, epd, 4, 0x10000, RW, 1);
            cue.meet();
            assert_eq!(api.close(epd), Ok(0));
            let (c, d) = loopback(api);
            let seen = pages(4);
            for round in 2..4 {
                assert_eq!(
                    api.register(c, (at, LEN), 0x10000, RW, FIXED),
                    Ok(0x10000),
                    "while the old peer maps it"
                );
                fill(seen, LEN, round);
                assert_eq!(api.vwriteto(d, seen, LEN, 0x10000, SYNC), Ok(0));
                assert!(holds(at, LEN, round));
                assert_eq!(api.unregister(c, 0x10000, LEN), Ok(0));
            }
            cue.meet();
            assert_eq!(api.register(c, (at, LEN), 0x10000, RW, FIXED), Ok(0x10000));
            let mapped = api.mmap(d, (0, LEN), RW, 0, 0x10000).unwrap();
            assert!(holds(mapped, LEN, 3));
            poke(mapped + PAGE, 99);
            assert_eq!(peek(at + PAGE), 99, "a window like any other");
            assert_eq!(api.munmap(mapped, LEN), Ok(0));
            assert_eq!(api.close(c), Ok(0));
            crate::rig::dont_need(at, LEN);
            assert_eq!(peek(at + PAGE), 0, "private again");
        })
        .child(|cue| {
            cue.wait();
            let epd = api.open();
            api.connect(epd, 0, case_port()).unwrap();
            cue.wait();
            let at = api.mmap(epd, (0, LEN), RW, 0, 0x10000).unwrap();
            cue.meet();
            assert!(holds(at, LEN, 3), "still the same pages");
            unmap(at, LEN);
            assert_eq!(api.close(epd), Ok(0));
            cue.notify();
        });
    }),
    ("connections_closed_while_mapped_leak_nothing", |api| {
        let (c, _d) = loopback(api);
        let at = pages(1);
        let before = descriptors();
        // The owner unmaps the pages first, or the peer removes its mapping first.
        for owner_first in [true, false] {
            let peers: Vec<(i32, usize)> = (0..20)
                .map(|_| {
                    let (a, b) = loopback(api);
                    let own = window(api, a, 1, 0x10000, RW, 1);
                    let mapped = api.mmap(b, (0, PAGE), RW, 0, 0x10000).unwrap();
                    assert_eq!(api.close(a), Ok(0));
                    if owner_first {
                        unmap(own, PAGE);
                    }
                    (b, mapped)
                })
                .collect();
            for (b, mapped) in peers {
                unmap(mapped, PAGE);
                assert_eq!(api.close(b), Ok(0));
            }
            until("all are closed", || {
                assert_eq!(api.register(c, (at, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
                assert_eq!(api.unregister(c, 0x10000, PAGE), Ok(0));
                descriptors() <= before
            });
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("scif:arena"), "{maps}");
    }),
    ("failed_register_leaves_memory_unchanged", |api| {
        let (a, b) = loopback(api);
        // Several areas, the last of which ends before the range does, after several pieces.
        let (head, body) = (LEN, (5 << 20) + PAGE);
        let there = head + body;
        let len = there + 2 * PAGE;
        for with_window in [false, true] {
            let at = pages(len / PAGE);
            crate::rig::map_file_over(at + head, len - head, body);
            fill(at, there, 1);
            if with_window {
                assert_eq!(api.register(a, (at, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            }
            assert_eq!(api.register(a, (at, len), 0x100_0000, RW, FIXED), Err(EFAULT));
            assert_eq!(api.register(a, (at, len), 0, RW, 0), Err(EFAULT));
            assert_eq!(api.unregister(a, 0x100_0000, len), Err(ENXIO));
            assert_eq!(api.vwriteto(b, at, 8, 0x100_0000, SYNC), Err(ENXIO));
            assert!(holds(at, there, 1));
            let kept = if with_window { PAGE } else { 0 };
            if with_window {
                let mapped = api.mmap(b, (0, PAGE), RW, 0, 0x10000).unwrap();
                poke(mapped, 99);
                assert_eq!(peek(at), 99, "the window there was before is one still");
            }
            crate::rig::dont_need(at + kept, there - kept);
            assert!((kept..there).step_by(PAGE).all(|i| peek(at + i) == 0), "private still");
            fill(at + kept, there - kept, 2);
            let offset = 0x200_0000;
            assert_eq!(
                api.register(a, (at + kept, there - kept), offset, RW, FIXED),
                Ok(offset),
                "what is there can be registered"
            );
            let mapped = api.mmap(b, (0, there - kept), RW, 0, offset).unwrap();
            assert!(holds(mapped, there - kept, 2));
            assert_eq!(api.munmap(mapped, there - kept), Ok(0));
            assert_eq!(api.unregister(a, offset, there - kept), Ok(0));
        }
    }),
    ("close_moves_the_pages_back", |api| {
        let (a, _b) = loopback(api);
        let at = window(api, a, 4, 0x10000, RW, 1);
        api.close(a).unwrap();
        assert!(holds(at, LEN, 1));
        crate::rig::dont_need(at, LEN);
        assert_eq!(peek(at), 0, "private again");
    }),
];

/// Ends the owner of a window in some way after the peer has mapped it.
fn outlives(api: &Api, go: impl FnOnce(i32)) {
    server(api, |epd, cue| {
        cue.wait();
        let at = api.mmap(epd, (0, LEN), RW, 0, 0x10000).unwrap();
        assert!(holds(at, LEN, 1));
        cue.notify();
        until("the peer is gone", || api.send(epd, b"x", 0) == Err(libc::ECONNRESET));
        cue.wait();
        assert!(holds(at + 251, LEN - 251, 1));
        assert_eq!(peek(at), 77, "still the same pages");
        poke(at, 9);
        assert_eq!(peek(at), 9);
        assert_eq!(api.vreadfrom(epd, at, 8, 0x10000, SYNC), Err(libc::ECONNRESET));
        unmap(at, LEN);
    })
    .client(|epd, cue| {
        let at = window(api, epd, 4, 0x10000, RW, 1);
        cue.meet();
        go(epd);
        assert!(holds(at, LEN, 1), "its own memory stays");
        poke(at, 77);
        cue.notify();
    });
}
