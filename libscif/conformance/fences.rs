// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Marks, waits and signals.

use crate::api::{Api, Case};
use crate::placement::server;
use crate::rig::*;
use libc::{EFAULT, EINVAL, ENXIO, EPERM};

pub(crate) const SELF: i32 = 1;
const PEER: i32 = 2;
const LOCAL: i32 = 0x10;
const REMOTE: i32 = 0x20;
const BIG: usize = 32 << 20;
const DATA: i64 = 0x1000_0000;
const WORDS: i64 = 0x1000;

fn window(api: &Api, epd: i32, pages_n: usize, offset: i64, prot: i32) -> usize {
    let at = pages(pages_n);
    assert_eq!(api.register(epd, (at, pages_n * PAGE), offset, prot, FIXED), Ok(offset));
    at
}

pub(crate) const CASES: &[Case] = &[
    ("fences_check_their_arguments", |api| {
        let (a, b) = loopback(api);
        let at = window(api, a, 1, WORDS, RW);
        window(api, a, 1, 0x5000, 1);
        window(api, b, 1, WORDS, RW);
        for flags in [0, 3, 4, 8] {
            assert_eq!(api.fence_mark(a, flags), Err(EINVAL));
            assert_eq!(api.fence_mark_null(a, flags), Err(EINVAL), "the flags first");
        }
        assert_eq!(api.fence_mark_null(a, SELF), Err(EFAULT));
        assert!(api.fence_mark(a, SELF).unwrap() >= 0);
        assert!(api.fence_mark(a, PEER).unwrap() < 0);
        assert_eq!(api.fence_wait(a, 0x7000_0000), Err(EINVAL), "no such mark");
        let signal = |loff, roff, flags| api.fence_signal(a, (loff, 1), (roff, 2), flags);
        assert_eq!(signal(WORDS, WORDS, SELF), Err(EINVAL), "no target");
        assert_eq!(signal(WORDS, WORDS, LOCAL), Err(EINVAL), "no side");
        assert_eq!(signal(WORDS, WORDS, SELF | PEER | LOCAL), Err(EINVAL));
        assert_eq!(signal(WORDS + 2, WORDS, SELF | LOCAL), Err(EINVAL));
        assert_eq!(signal(WORDS, WORDS + 2, SELF | LOCAL), Ok(0), "not used, not looked at");
        assert_eq!(signal(WORDS + 4, 0, SELF | LOCAL), Ok(0), "four are enough");
        assert_eq!(signal(WORDS + 4092, 0, SELF | LOCAL), Err(ENXIO), "eight bytes must fit");
        assert_eq!(signal(0x5000, 0, SELF | LOCAL), Err(EPERM));
        assert_eq!(signal(0x9000, 0, SELF | LOCAL), Err(ENXIO));
        assert_eq!(signal(WORDS, 0x9000, PEER | REMOTE), Err(ENXIO));
        assert_eq!(signal(0x5000, 0, PEER | LOCAL), Err(ENXIO), "whatever the peer would find");
        poke64(at, 0);
        assert_eq!(signal(WORDS, 0x9000, SELF | LOCAL | REMOTE), Err(ENXIO));
        assert_eq!(peek64(at), 1, "the local one has happened");
    }),
    ("fence_signals_without_rma_in_progress_are_immediate", |api| {
        let (a, b) = loopback(api);
        let (near, far) = (window(api, a, 1, WORDS, RW), window(api, b, 1, WORDS, RW));
        for side in [SELF, PEER] {
            poke64(near, 0);
            poke64(far + 8, 0);
            assert_eq!(
                api.fence_signal(
                    a,
                    (WORDS, 0x1122_3344_5566_7788),
                    (WORDS + 8, 9),
                    side | LOCAL | REMOTE
                ),
                Ok(0)
            );
            assert_eq!((peek64(near), peek64(far + 8)), (0x1122_3344_5566_7788, 9));
        }
        assert_eq!(api.fence_signal(a, (0, 0), (WORDS + 20, u64::MAX), SELF | REMOTE), Ok(0));
        assert_eq!(
            (peek64(far + 16) >> 32, peek64(far + 24) & 0xffff_ffff),
            (0xffff_ffff, 0xffff_ffff)
        );
    }),
    ("fence_mark_covers_all_earlier_rma", |api| {
        let (a, b) = loopback(api);
        let near = window(api, a, BIG / PAGE, DATA, RW);
        let far = window(api, b, BIG / PAGE, DATA, RW);
        for seed in 1..5 {
            fill(near, BIG, seed);
            assert_eq!(api.writeto(a, DATA, BIG, DATA, 0), Ok(0));
            let mark = api.fence_mark(a, SELF).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
            assert!(holds(far, BIG, seed));
            assert_eq!(api.fence_wait(a, mark), Ok(0), "an old mark is done");
        }
    }),
    ("fence_wait_covers_rma_of_a_computing_peer", |api| {
        server(api, |epd, cue| {
            let at = window(api, epd, BIG / PAGE, DATA, RW);
            cue.meet();
            let mark = api.fence_mark(epd, PEER).unwrap();
            assert_eq!(api.fence_wait(epd, mark), Ok(0));
            assert!(holds(at, BIG, 3), "all that the peer had begun");
            cue.notify();
        })
        .client(|epd, cue| {
            let at = window(api, epd, BIG / PAGE, DATA, RW);
            fill(at, BIG, 3);
            cue.wait();
            assert_eq!(api.writeto(epd, DATA, BIG, DATA, 0), Ok(0));
            cue.notify();
            // The peer computes, and makes no call.
            cue.wait();
        });
    }),
    ("fence_signal_follows_the_data", |api| {
        server(api, |epd, cue| {
            let data = window(api, epd, BIG / PAGE, DATA, RW);
            let words = window(api, epd, 1, WORDS, RW);
            for round in 1..6u8 {
                cue.notify();
                until("the signal", || peek64(words) == u64::from(round));
                assert!(holds(data, BIG, round), "round {round}");
            }
            cue.notify();
        })
        .client(|epd, cue| {
            let data = window(api, epd, BIG / PAGE, DATA, RW);
            let words = window(api, epd, 1, WORDS, RW);
            for round in 1..6u8 {
                cue.wait();
                fill(data, BIG, round);
                assert_eq!(api.writeto(epd, DATA, BIG, DATA, 0), Ok(0));
                let value = u64::from(round);
                assert_eq!(
                    api.fence_signal(epd, (WORDS, value), (WORDS, value), SELF | LOCAL | REMOTE),
                    Ok(0)
                );
                until("the local signal", || peek64(words) == value);
            }
            cue.wait();
        });
    }),
    ("fence_signal_follows_rma_of_the_peer", |api| {
        server(api, |epd, cue| {
            let data = window(api, epd, BIG / PAGE, DATA, RW);
            let words = window(api, epd, 1, WORDS, RW);
            cue.meet();
            assert_eq!(api.fence_signal(epd, (WORDS, 7), (WORDS, 8), PEER | LOCAL | REMOTE), Ok(0));
            until("the signal", || peek64(words) == 7);
            assert!(holds(data, BIG, 2));
            cue.wait();
        })
        .client(|epd, cue| {
            let data = window(api, epd, BIG / PAGE, DATA, RW);
            let words = window(api, epd, 1, WORDS, RW);
            fill(data, BIG, 2);
            cue.wait();
            assert_eq!(api.writeto(epd, DATA, BIG, DATA, 0), Ok(0));
            cue.notify();
            until("the peer's signal", || peek64(words) == 8);
            cue.notify();
        });
    }),
    ("fence_wait_restarts_after_signals", |api| {
        let (a, b) = loopback(api);
        window(api, a, BIG / PAGE, DATA, RW);
        window(api, b, BIG / PAGE, DATA, RW);
        signals(1000, true);
        for _ in 0..20 {
            assert_eq!(api.writeto(a, DATA, BIG, DATA, 0), Ok(0));
            let mark = api.fence_mark(a, SELF).unwrap();
            assert_eq!(api.fence_wait(a, mark), Ok(0));
        }
        no_signals();
    }),
];
