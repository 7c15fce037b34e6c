// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that is registered over several connections: every peer maps the same pages, for any
//! time.

use scif_fabtests::harness::process::{Cue, Process};

use crate::api::{Api, Case};
use crate::placement::{case_port, node};
use crate::rig::*;
use libc::EADDRINUSE;

const N: usize = 4;
const LEN: usize = N * PAGE;
const AT: i64 = 0x10000;

/// Registers memory at the common offset.
fn register(api: &Api, epd: i32, at: usize) {
    assert_eq!(api.register(epd, (at, LEN), AT, RW, FIXED), Ok(AT));
}

fn map(api: &Api, epd: i32) -> usize {
    api.mmap(epd, (0, LEN), RW, 0, AT).unwrap()
}

/// Makes an owner with a connection to each of two other processes.
fn three(api: &Api, owner: impl FnOnce([i32; 2], [&Cue; 2]), peer: impl Fn(usize, i32, &Cue)) {
    let ((first, first_peer), (second, second_peer)) = (Cue::pair(), Cue::pair());
    let others = [&first_peer, &second_peer].map(|cue| {
        let number = usize::from(std::ptr::eq(cue, &raw const second_peer));
        Process::start(|| {
            set_env("SCIF_NODE", "2");
            cue.wait();
            let epd = api.open();
            api.connect(epd, node(1), case_port()).unwrap();
            peer(number, epd, cue);
        })
    });
    set_env("SCIF_NODE", "1");
    let (listener, _) = api.listener(case_port(), 2);
    let epds = [&first, &second].map(|cue| {
        cue.notify();
        api.accept(listener, BLOCK).unwrap().1
    });
    api.close(listener).unwrap();
    owner(epds, [&first, &second]);
    for other in others {
        other.wait();
    }
}

pub(crate) const CASES: &[Case] = &[
    ("two_peers_map_the_same_pages", |api| {
        three(
            api,
            |epds, cues| {
                let at = filled(N, LEN, 1);
                epds.iter().for_each(|&epd| register(api, epd, at));
                cues.iter().for_each(|cue| cue.notify());
                cues.iter().for_each(|cue| cue.wait());
                assert_eq!((peek(at), peek(at + 1)), (100, 101), "each peer's store");
                poke(at + 2, 77);
                cues.iter().for_each(|cue| cue.notify());
                cues.iter().for_each(|cue| cue.wait());
                // The owner releases everything in this order and by different means; the mappings
                // stay.
                assert_eq!(api.unregister(epds[1], AT, LEN), Ok(0));
                assert_eq!(
                    api.register(epds[1], (at, LEN), AT, RW, FIXED),
                    Err(EADDRINUSE),
                    "mapped still"
                );
                assert_eq!(api.unregister(epds[0], AT, LEN), Ok(0));
                unmap(at, LEN);
                api.close(epds[0]).unwrap();
                let other = filled(N, LEN, 9);
                assert_eq!(api.register(epds[1], (other, LEN), 2 * AT, RW, FIXED), Ok(2 * AT));
                assert_eq!(api.unregister(epds[1], 2 * AT, LEN), Ok(0));
                cues.iter().for_each(|cue| cue.notify());
                cues.iter().for_each(|cue| cue.wait());
            },
            |number, epd, cue| {
                cue.wait();
                let mapped = map(api, epd);
                assert_eq!(peek(mapped + LEN - 1), pattern(LEN - 1, 1));
                poke(mapped + number, 100 + number as u8);
                cue.meet();
                assert_eq!(peek(mapped + 2), 77);
                assert_eq!((peek(mapped), peek(mapped + 1)), (100, 101));
                cue.meet();
                assert_eq!((peek(mapped), peek(mapped + 1), peek(mapped + 2)), (100, 101, 77));
                assert_eq!(peek(mapped + LEN - 1), pattern(LEN - 1, 1));
                cue.notify();
            },
        );
    }),
    ("pages_are_private_after_the_last_unmap", |api| {
        let ((a, b), (c, d)) = (loopback(api), loopback(api));
        let at = filled(N, LEN, 1);
        register(api, a, at);
        register(api, c, at);
        let (mine, other) = (map(api, b), map(api, d));
        assert_eq!(api.unregister(c, AT, LEN), Ok(0));
        assert_eq!(api.unregister(a, AT, LEN), Ok(0));
        poke(at, 55);
        assert_eq!((peek(mine), peek(other)), (55, 55));
        api.munmap(mine, LEN).unwrap();
        // A registration checks again.
        let more = pages(1);
        let call_with_words = || {
            let window = api.register(a, (more, PAGE), 0, RW, 0).unwrap();
            assert_eq!(api.unregister(a, window, PAGE), Ok(0));
        };
        call_with_words();
        poke(at, 56);
        assert_eq!(peek(other), 56, "one maps them");
        api.munmap(other, LEN).unwrap();
        until("they are back", || {
            assert_eq!(api.register(c, (more, PAGE), AT, RW, FIXED), Ok(AT));
            assert_eq!(api.unregister(c, AT, PAGE), Ok(0));
            call_with_words();
            !lies_in_an_arena(at, LEN)
        });
        assert_eq!(peek(at), 56);
        assert_eq!(peek(at + LEN - 1), pattern(LEN - 1, 1));
        dont_need(at, LEN);
        assert_eq!(peek(at), 0);
    }),
    ("mapping_of_a_loan_outlives_both_connections", |api| {
        let ((a, b), (c, d)) = (loopback(api), loopback(api));
        let at = filled(N, LEN, 1);
        register(api, a, at);
        register(api, c, at);
        let mapped = map(api, d);
        api.close(c).unwrap();
        api.close(d).unwrap();
        assert_eq!(api.unregister(a, AT, LEN), Ok(0));
        poke(at, 55);
        assert_eq!(peek(mapped), 55, "the same pages");
        api.close(a).unwrap();
        api.close(b).unwrap();
        poke(at, 56);
        assert_eq!(peek(mapped), 56);
        unmap(at, LEN);
        assert_eq!((peek(mapped), peek(mapped + 1)), (56, pattern(1, 1)));
        api.munmap(mapped, LEN).unwrap();
    }),
    ("window_with_many_loans_is_written_by_all", |api| {
        let at = filled(N, LEN, 1);
        let ends: Vec<(i32, i32)> = (0..5).map(|_| loopback(api)).collect();
        ends.iter().for_each(|&(owner, _)| register(api, owner, at));
        let maps: Vec<usize> = ends.iter().map(|&(_, peer)| map(api, peer)).collect();
        for (i, &(_, peer)) in ends.iter().enumerate() {
            let from = filled(1, PAGE, 10 + i as u8);
            assert_eq!(api.vwriteto(peer, from, PAGE, AT + PAGE as i64, SYNC), Ok(0));
            assert!(maps.iter().all(|&mapped| holds(mapped + PAGE, PAGE, 10 + i as u8)));
        }
    }),
];
