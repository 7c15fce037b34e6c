// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fork, death, and what is left behind.

use crate::Case;
use crate::rig::{
    BLOCK, FIXED, PAGE, Process, RW, SYNC, descriptors, fill, holds, pages, set_env, two, until, within,
};
use libc::ECONNRESET;
use std::time::Duration;

/// How often a peer connects, transfers and dies, unless the command line says otherwise.
pub(crate) const CYCLES: u64 = 200;

pub(crate) const CASES: &[Case] = &[
    ("a_forked_child_shares_the_stream", |api| {
        two(
            api,
            |epd, _| {
                let mut buffer = [0; 6];
                assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(6));
                assert_eq!(&buffer, b"abcdef", "one stream, whoever sends");
                assert_eq!(api.send(epd, b"1234", BLOCK), Ok(4));
                assert_eq!(api.recv(epd, &mut buffer[..1], BLOCK), Ok(1));
            },
            |epd, _| {
                assert_eq!(api.send(epd, b"ab", BLOCK), Ok(2));
                Process::start(|| assert_eq!(api.send(epd, b"cd", BLOCK), Ok(2))).wait();
                assert_eq!(api.send(epd, b"ef", BLOCK), Ok(2));
                let mut buffer = [0; 2];
                Process::start(|| {
                    let mut buffer = [0; 2];
                    assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(2));
                    assert_eq!(&buffer, b"12");
                })
                .wait();
                assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(2));
                assert_eq!(&buffer, b"34");
                assert_eq!(api.send(epd, b"!", BLOCK), Ok(1));
            },
        );
    }),
    ("an_endpoint_lives_with_its_last_holder", |api| {
        two(
            api,
            |epd, cue| {
                let mut buffer = [0; 5];
                assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(5));
                assert_eq!(&buffer, b"child");
                assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(ECONNRESET));
                cue.tell();
            },
            |epd, cue| {
                let child = Process::start(|| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    assert_eq!(api.send(epd, b"child", BLOCK), Ok(5));
                });
                api.close(epd).unwrap();
                child.wait();
                cue.wait();
            },
        );
    }),
    (
        "a_holder_killed_inside_a_call_leaves_the_endpoint_usable",
        |api| {
            two(
                api,
                |epd, cue| {
                    cue.wait();
                    assert_eq!(api.send(epd, b"alive", BLOCK), Ok(5));
                    cue.wait();
                },
                |epd, cue| {
                    let child = Process::start(|| {
                        let _ = api.recv(epd, &mut [0; 8], BLOCK);
                    });
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    child.kill();
                    assert_eq!(child.end(), -libc::SIGKILL);
                    cue.tell();
                    let mut buffer = [0; 5];
                    assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(5));
                    assert_eq!(&buffer, b"alive");
                    cue.tell();
                },
            );
        },
    ),
    ("a_childs_window_is_the_endpoints", |api| {
        two(
            api,
            |epd, cue| {
                cue.wait();
                let at = pages(2);
                assert_eq!(api.vreadfrom(epd, at, 2 * PAGE, 0x20000, SYNC), Ok(0));
                assert!(holds(at, 2 * PAGE, 3));
                cue.tell();
            },
            |epd, cue| {
                let child = Process::start(|| {
                    let at = pages(2);
                    fill(at, 2 * PAGE, 3);
                    assert_eq!(api.register(epd, at, 2 * PAGE, 0x20000, RW, FIXED), Ok(0x20000));
                });
                child.wait();
                // The child is gone; the window is not.
                let at = pages(2);
                assert_eq!(
                    api.register(epd, at, PAGE, 0x20000, RW, FIXED),
                    Err(libc::EADDRINUSE)
                );
                cue.tell();
                cue.wait();
            },
        );
    }),
    ("kill_is_noticed", |api| {
        let listener = api.open();
        api.bind(listener, 2050).unwrap();
        api.listen(listener, 1).unwrap();
        for _ in 0..20 {
            let child = Process::start(|| {
                let epd = api.open();
                api.connect(epd, 0, 2050).unwrap();
                api.send(epd, b"bye", BLOCK).unwrap();
                loop {
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
            });
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            let mut buffer = [0; 3];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(3));
            child.kill();
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(ECONNRESET));
            assert_eq!(child.end(), -libc::SIGKILL);
            api.close(epd).unwrap();
        }
    }),
    ("nothing_is_left_behind", |api| {
        let listener = api.open();
        api.bind(listener, 2050).unwrap();
        api.listen(listener, 8).unwrap();
        let round = |i: usize| {
            let child = Process::start(|| {
                set_env("SCIF_NODE", "0");
                let epd = api.open();
                api.connect(epd, 0, 2050).unwrap();
                let at = pages(4);
                api.register(epd, at, 4 * PAGE, 0x1000, RW, FIXED).unwrap();
                api.send(epd, b"x", BLOCK).unwrap();
                api.recv(epd, &mut [0], BLOCK).unwrap();
                if i.is_multiple_of(2) {
                    crate::rig::crash();
                }
                api.close(epd).unwrap();
            });
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            let at = pages(4);
            api.recv(epd, &mut [0], BLOCK).unwrap();
            assert_eq!(api.vreadfrom(epd, at, 4 * PAGE, 0x1000, SYNC), Ok(0));
            api.register(epd, at, 4 * PAGE, 0x1000, RW, FIXED).unwrap();
            api.send(epd, b"y", BLOCK).unwrap();
            until("the end", || api.poll(epd, 0, 10) != 0);
            api.close(epd).unwrap();
            crate::rig::unmap(at, 4 * PAGE);
            child.end();
        };
        let mappings = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .filter(|l| l.contains("scif"))
                .count()
        };
        let sockets = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
                .filter(|to| to.to_string_lossy().starts_with("socket:"))
                .count()
        };
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        (0..4).for_each(round);
        let memory = resident();
        let before = (descriptors(), mappings(), sockets());
        let cycles = std::env::var("SCIF_CONFORMANCE_CYCLES").map_or(0, |n| n.parse().unwrap());
        (0..cycles).for_each(round);
        let mut after = before;
        // What was closed last may be in use for a moment still.
        let settled = || {
            after = (descriptors(), mappings(), sockets());
            after.0 <= before.0 && after.1 <= before.1 && after.2 <= before.2 && resident() < memory + 256
        };
        let found = within(Duration::from_secs(60), settled);
        assert!(
            found,
            "descriptors, mappings and sockets of the survivor: {before:?}, {after:?}; pages: {memory}, {}",
            resident()
        );
    }),
];
