// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading and writing windows of the peer.

use scif_fabtests::harness::process::Process;

use crate::api::{Api, Case};
use crate::placement::server;
use crate::rig::*;
use libc::{ECONNRESET, EFAULT, EINVAL, ENXIO, EPERM};

fn window(api: &Api, epd: i32, pages_n: usize, offset: i64, prot: i32) -> usize {
    let at = pages(pages_n);
    assert_eq!(api.register(epd, (at, pages_n * PAGE), offset, prot, FIXED), Ok(offset));
    at
}

pub(crate) const CASES: &[Case] = &[
    ("every_alignment_and_length", |api| {
        let (a, b) = loopback(api);
        let (near, far) = (window(api, a, 4, 0x10000, RW), window(api, b, 4, 0x20000, RW));
        let memory = pages(4);
        fill(near, 4 * PAGE, 1);
        fill(memory, 4 * PAGE, 2);
        for (i, len) in [1, 7, 63, 64, 65, 127, 1000, 4095, 4097, 9001].into_iter().enumerate() {
            for (from, to) in [(0, 0), (1, 1), (3, 60), (64, 1), (4090, 4000)] {
                let flags = [0, SYNC, 1, 8, SYNC | 8, 2][i % 6];
                let check = |seed: u8, at: usize, off: usize, start: usize| {
                    (0..len).all(|k| peek(at + off + k) == pattern(start + k, seed))
                };
                fill(far, 4 * PAGE, 0);
                assert_eq!(api.writeto(a, 0x10000 + from, len, 0x20000 + to, flags), Ok(0));
                assert!(check(1, far, to as usize, from as usize), "writeto {len} {from} {to}");
                assert_eq!(
                    peek(far + to as usize + len),
                    pattern(to as usize + len, 0),
                    "not one more"
                );
                assert_eq!(
                    api.vwriteto(a, memory + from as usize, len, 0x20000 + to, flags),
                    Ok(0)
                );
                assert!(check(2, far, to as usize, from as usize), "vwriteto");
                fill(far, 4 * PAGE, 3);
                assert_eq!(
                    api.vreadfrom(a, memory + from as usize, len, 0x20000 + to, flags),
                    Ok(0)
                );
                assert!(check(3, memory, from as usize, to as usize), "vreadfrom");
                assert_eq!(api.readfrom(a, 0x10000 + from, len, 0x20000 + to, flags), Ok(0));
                assert!(check(3, near, from as usize, to as usize), "readfrom");
                fill(near, 4 * PAGE, 1);
                fill(memory, 4 * PAGE, 2);
            }
        }
    }),
    ("ranges_span_adjacent_windows", |api| {
        let (a, b) = loopback(api);
        let near = [window(api, a, 1, 0x10000, RW), window(api, a, 2, 0x11000, RW)];
        let far = [window(api, b, 2, 0x20000, RW), window(api, b, 1, 0x22000, RW)];
        fill(near[0], PAGE, 1);
        fill(near[1], 2 * PAGE, 2);
        assert_eq!(api.writeto(a, 0x10800, 2 * PAGE, 0x20800, SYNC), Ok(0));
        assert_eq!(peek(far[0] + 0x800), pattern(0x800, 1));
        assert_eq!(peek(far[0] + 0x1000), pattern(0, 2));
        assert_eq!(peek(far[1] + 0x7ff), pattern(0x17ff, 2));
        assert_eq!(
            api.writeto(a, 0x10800, 3 * PAGE, 0x20000, SYNC),
            Err(ENXIO),
            "past the end here"
        );
        assert_eq!(
            api.writeto(a, 0x10000, 3 * PAGE, 0x20001, SYNC),
            Err(ENXIO),
            "past the end there"
        );
    }),
    ("rma_checks_its_arguments", |api| {
        let (a, b) = loopback(api);
        window(api, a, 1, 0x10000, RW);
        window(api, b, 1, 0x20000, RW);
        assert_eq!(api.writeto(a, 0x10000, 0, 0x20000, 0), Err(EINVAL));
        assert_eq!(api.vwriteto(a, 0x10000, 0, 0x20000, 0), Err(EINVAL));
        assert_eq!(
            api.writeto(a, 0x10000, 8, 0x20000, 0x10),
            Err(EINVAL),
            "no flag of these is known"
        );
        assert_eq!(
            api.writeto(a, 0x10000, 8, 0x20000, 0x1f),
            Ok(0),
            "an unknown one beside known ones"
        );
        assert_eq!(api.writeto(a, 0x30000, 8, 0x20000, 0), Err(ENXIO));
        assert_eq!(api.writeto(a, 0x10000, 8, 0x30000, 0), Err(ENXIO));
        assert_eq!(api.writeto(a, 0x10000, 8, -8, 0), Err(ENXIO));
        assert_eq!(api.readfrom(a, -8, 8, 0x20000, 0), Err(ENXIO));
        assert_eq!(api.writeto(a, 0x10000, usize::MAX, 0x20000, 0), Err(ENXIO));
    }),
    ("windows_enforce_their_protection", |api| {
        let (a, b) = loopback(api);
        for epd in [a, b] {
            window(api, epd, 1, 0x10000, 1);
            window(api, epd, 1, 0x20000, 2);
            window(api, epd, 1, 0x30000, 0);
            window(api, epd, 1, 0x40000, RW);
        }
        let (r, w, none, rw) = (0x10000, 0x20000, 0x30000, 0x40000);
        for (near, far, ok) in [
            (r, w, true),
            (rw, rw, true),
            (w, w, false),
            (r, r, false),
            (none, w, false),
            (r, none, false),
        ] {
            assert_eq!(
                api.writeto(a, near, 8, far, SYNC),
                if ok { Ok(0) } else { Err(EPERM) },
                "{near:x} {far:x}"
            );
            assert_eq!(
                api.readfrom(a, far, 8, near, SYNC),
                if ok { Ok(0) } else { Err(EPERM) },
                "{near:x} {far:x}"
            );
        }
        let at = pages(1);
        assert_eq!(api.vwriteto(a, at, 8, r, 0), Err(EPERM));
        assert_eq!(api.vreadfrom(a, at, 8, w, 0), Err(EPERM));
    }),
    ("unmapped_local_memory_is_efault", |api| {
        let (a, b) = loopback(api);
        window(api, b, 4, 0x20000, RW);
        assert_eq!(api.vreadfrom(a, 0, 8, 0x20000, SYNC), Err(EFAULT));
        assert_eq!(api.vwriteto(a, 64, 8, 0x20000, 0), Err(EFAULT));
        let hole = pages(3);
        unmap(hole + PAGE, PAGE);
        assert_eq!(api.vwriteto(a, hole, 3 * PAGE, 0x20000, 0), Err(EFAULT));
        let readonly = pages(1);
        crate::rig::protect(readonly, PAGE, libc::PROT_READ);
        assert_eq!(api.vreadfrom(a, readonly, 8, 0x20000, 0), Err(EFAULT));
        assert_eq!(api.vwriteto(a, readonly, 8, 0x20000, 0), Ok(0));
    }),
    ("deleted_window_is_enxio", |api| {
        let (a, b) = loopback(api);
        window(api, b, 1, 0x20000, RW);
        let at = pages(1);
        assert_eq!(api.vwriteto(a, at, 8, 0x20000, SYNC), Ok(0));
        api.unregister(b, 0x20000, PAGE).unwrap();
        assert_eq!(api.vwriteto(a, at, 8, 0x20000, SYNC), Err(ENXIO), "at once");
    }),
    ("large_transfers_between_processes", |api| {
        const N: usize = 16 << 20;
        server(api, |epd, cue| {
            let at = window(api, epd, N / PAGE, 0x1000_0000, RW);
            cue.meet();
            assert!(holds(at, N, 4));
            fill(at, N, 5);
            cue.meet();
        })
        .client(|epd, cue| {
            let at = window(api, epd, N / PAGE, 0x2000_0000, RW);
            fill(at, N, 4);
            cue.wait();
            assert_eq!(api.writeto(epd, 0x2000_0000, N, 0x1000_0000, 0), Ok(0));
            let mark = api.fence_mark(epd, 1).unwrap();
            assert_eq!(api.fence_wait(epd, mark), Ok(0));
            cue.meet();
            assert_eq!(api.readfrom(epd, 0x2000_0000, N, 0x1000_0000, SYNC), Ok(0));
            assert!(holds(at, N, 5));
            cue.notify();
        });
    }),
    ("ordered_rma_writes_the_last_byte_last", |api| {
        const N: usize = 1 << 20;
        server(api, |epd, cue| {
            let at = window(api, epd, N / PAGE, 0x10000, RW);
            for round in 1..=20u8 {
                cue.notify();
                crate::rig::until("the last byte", || peek(at + N - 1) == round);
                assert!((0..N).step_by(997).all(|i| peek(at + i) == round), "round {round}");
            }
            cue.notify();
        })
        .client(|epd, cue| {
            let at = window(api, epd, N / PAGE, 0x20_0000, RW);
            for round in 1..=20u8 {
                for i in 0..N {
                    poke(at + i, round);
                }
                cue.wait();
                assert_eq!(api.writeto(epd, 0x20_0000, N, 0x10000, 8), Ok(0));
                let mark = api.fence_mark(epd, 1).unwrap();
                api.fence_wait(epd, mark).unwrap();
            }
            cue.wait();
        });
    }),
    ("local_memory_is_unmapped_during_a_v_transfer", |api| {
        const N: usize = 16 << 20;
        let (a, b) = loopback(api);
        let far = window(api, b, N / PAGE, 0x1000_0000, RW);
        for way in 0..4 {
            let at = filled(N / PAGE, N, 6);
            let begun = if way % 2 == 0 {
                api.vwriteto(a, at, N, 0x1000_0000, 0)
            } else {
                api.vreadfrom(a, at, N, 0x1000_0000, 0)
            };
            assert_eq!(begun, Ok(0));
            if way < 2 {
                unmap(at, N);
            } else {
                protect(at, N, libc::PROT_NONE);
            }
            let mark = api.fence_mark(a, 1).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert!((0..N).step_by(97).all(|i| [0, pattern(i, 6)].contains(&peek(far + i))));
        }
        let at = filled(N / PAGE, N, 7);
        assert_eq!(api.vwriteto(a, at, N, 0x1000_0000, SYNC), Ok(0));
        assert!(holds(far, N, 7), "and all goes on");
    }),
    ("fence_completes_a_v_transfer", |api| {
        const N: usize = 8 << 20;
        let (a, b) = loopback(api);
        let far = window(api, b, N / PAGE, 0x1000_0000, RW);
        let at = pages(N / PAGE);
        for round in 1..20u8 {
            fill(at, N, round);
            assert_eq!(api.vwriteto(a, at, N, 0x1000_0000, 0), Ok(0));
            let mark = api.fence_mark(a, 1).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert_eq!(peek(far + N - 1), pattern(N - 1, round));
            assert!(round != 19 || holds(far, N, round));
            poke(far + 5, 99);
            assert_eq!(api.vreadfrom(a, at, N, 0x1000_0000, 0), Ok(0));
            let mark = api.fence_mark(a, 1).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert_eq!(peek(at + 5), 99);
        }
    }),
    ("exit_completes_rma_in_progress", |api| {
        assert_eq!(goes_in_flight(api, |_| crate::rig::leave()), 100);
    }),
    ("close_completes_rma_for_the_peer", |api| {
        assert_eq!(goes_in_flight(api, |epd| assert_eq!(api.close(epd), Ok(0))), 100);
    }),
    ("crash_with_rma_in_progress_ends_the_connection", |api| {
        // The first bytes arrived. The last had not, or the round is repeated.
        let in_flight = (0..ROUNDS).any(|_| {
            let came = goes_in_flight(api, |epd| {
                let there = api.mmap(epd, (0, PAGE), 1, 0, 0x1000_0000).unwrap();
                until("it has begun", || peek(there) != 0);
                crate::rig::crash();
            });
            (1..100).contains(&came)
        });
        assert!(in_flight, "no kill came while bytes were on their way");
    }),
    ("unregister_waits_for_rma_in_progress", |api| {
        const N: usize = 32 << 20;
        let (a, b) = loopback(api);
        let near = window(api, a, N / PAGE, 0x1000_0000, RW);
        let far = window(api, b, N / PAGE, 0x1000_0000, RW);
        fill(near, N, 7);
        assert_eq!(api.writeto(a, 0x1000_0000, N, 0x1000_0000, 0), Ok(0));
        assert_eq!(api.unregister(b, 0x1000_0000, N), Ok(0));
        assert!(holds(far, N, 7), "all of it came before the pages went");
    }),
    ("close_waits_for_rma_in_progress", |api| {
        const N: usize = 32 << 20;
        let (a, b) = loopback(api);
        let near = window(api, a, N / PAGE, 0x1000_0000, RW);
        let far = window(api, b, N / PAGE, 0x1000_0000, RW);
        fill(near, N, 8);
        assert_eq!(api.writeto(a, 0x1000_0000, N, 0x1000_0000, 0), Ok(0));
        api.close(a).unwrap();
        assert!(holds(far, N, 8));
    }),
];

/// Number of attempts to kill a peer in the middle of a transfer.
const ROUNDS: usize = 20;

/// Ends a peer with 64 MiB in flight. Returns how many of a hundred pages arrived.
fn goes_in_flight(api: &Api, leave: impl FnOnce(i32)) -> usize {
    const N: usize = 64 << 20;
    // With this seed no byte is 0, the initial value.
    const SEED: u8 = 255;
    let mut came = 0;
    let (mine, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let other = Process::start(|| {
        let epd = api.open();
        theirs.recv(&mut [0]).unwrap();
        api.connect(epd, 0, 2050).unwrap();
        let at = window(api, epd, N / PAGE, 0x1000_0000, RW);
        fill(at, N, SEED);
        assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        assert_eq!(api.writeto(epd, 0x1000_0000, N, 0x1000_0000, 0), Ok(0));
        leave(epd);
    });
    let (listener, _) = api.listener(2050, 1);
    mine.send(&[1]).unwrap();
    let (_, epd) = api.accept(listener, BLOCK).unwrap();
    let at = window(api, epd, N / PAGE, 0x1000_0000, RW);
    assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
    until("the end", || api.poll(epd, 0, 10) != 0);
    assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET));
    for page in 0..100 {
        let place = N / 100 * page;
        came += usize::from(peek(at + place) == pattern(place, SEED));
        assert!([0, pattern(place, SEED)].contains(&peek(at + place)));
    }
    assert_eq!(api.vreadfrom(epd, at, 8, 0x1000_0000, SYNC), Err(ECONNRESET));
    assert_eq!(api.close(epd), Ok(0));
    assert_eq!(api.close(listener), Ok(0));
    unmap(at, N);
    other.end();
    came
}
