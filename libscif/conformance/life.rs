// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Forks, deaths, and resources that remain.

use scif_fabtests::harness::process::Process;

use crate::api::Case;
use crate::placement::server;
use crate::rig::*;
use libc::ECONNRESET;
use std::time::Duration;

/// Number of times a peer connects, transfers and is killed, unless the command line sets another.
pub(crate) const CYCLES: u64 = 200;
/// Number of killed peers after which one closes.
const KILLS: u64 = 4;
/// Number of areas and pages by which the survivor's allocator may grow, whatever the number of
/// cycles. An arena for a thread that had none is two areas, and not all freed pages are returned.
const MORE_AREAS: usize = 4;
const MORE_PAGES: u64 = 128;
/// Number of cycles for one more page, 64 bytes each: a leak of 1 KiB a cycle is found with 600
/// cycles.
const CYCLES_A_PAGE: u64 = 64;

pub(crate) const CASES: &[Case] = &[
    ("a_forked_child_shares_the_stream", |api| {
        server(api, |epd, _| {
            let mut buffer = [0; 6];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(6));
            assert_eq!(&buffer, b"abcdef", "one stream, whoever sends");
            assert_eq!(api.send(epd, b"1234", BLOCK), Ok(4));
            assert_eq!(api.recv(epd, &mut buffer[..1], BLOCK), Ok(1));
        })
        .client(|epd, _| {
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
        });
    }),
    ("endpoint_lives_until_its_last_sharer_ends", |api| {
        server(api, |epd, cue| {
            let mut buffer = [0; 5];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(5));
            assert_eq!(&buffer, b"child");
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(ECONNRESET));
            cue.notify();
        })
        .client(|epd, cue| {
            let child = Process::start(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert_eq!(api.send(epd, b"child", BLOCK), Ok(5));
            });
            api.close(epd).unwrap();
            child.wait();
            cue.wait();
        });
    }),
    ("endpoint_is_usable_after_a_sharer_was_killed_inside_a_call", |api| {
        server(api, |epd, cue| {
            cue.wait();
            assert_eq!(api.send(epd, b"alive", BLOCK), Ok(5));
            cue.wait();
        })
        .client(|epd, cue| {
            let child = Process::start(|| {
                let _ = api.recv(epd, &mut [0; 8], BLOCK);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            child.kill();
            assert_eq!(child.end(), -libc::SIGKILL);
            cue.notify();
            let buffer = api.recv_array::<5>(epd);
            assert_eq!(&buffer, b"alive");
            cue.notify();
        });
    }),
    ("window_of_a_child_belongs_to_the_endpoint", |api| {
        server(api, |epd, cue| {
            cue.wait();
            let at = pages(2);
            assert_eq!(api.vreadfrom(epd, at, 2 * PAGE, 0x20000, SYNC), Ok(0));
            assert!(holds(at, 2 * PAGE, 3));
            cue.notify();
        })
        .client(|epd, cue| {
            let child = Process::start(|| {
                let at = filled(2, 2 * PAGE, 3);
                assert_eq!(api.register(epd, (at, 2 * PAGE), 0x20000, RW, FIXED), Ok(0x20000));
            });
            child.wait();
            // The child has ended; the window exists.
            let at = pages(2);
            assert_eq!(api.register(epd, (at, PAGE), 0x20000, RW, FIXED), Err(libc::EADDRINUSE));
            cue.meet();
        });
    }),
    ("kill_is_detected", |api| {
        let (listener, _) = api.listener(2050, 1);
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
    ("ended_processes_leak_nothing", |api| {
        let (listener, _) = api.listener(2050, 8);
        let round = |killed: bool| {
            let child = Process::start(|| {
                set_env("SCIF_NODE", "0");
                let epd = api.open();
                api.connect(epd, 0, 2050).unwrap();
                let at = pages(4);
                api.register(epd, (at, 4 * PAGE), 0x1000, RW, FIXED).unwrap();
                api.send(epd, b"x", BLOCK).unwrap();
                api.recv(epd, &mut [0], BLOCK).unwrap();
                if killed {
                    crate::rig::crash();
                }
                api.close(epd).unwrap();
            });
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            let at = pages(4);
            api.recv(epd, &mut [0], BLOCK).unwrap();
            assert_eq!(api.vreadfrom(epd, at, 4 * PAGE, 0x1000, SYNC), Ok(0));
            api.register(epd, (at, 4 * PAGE), 0x1000, RW, FIXED).unwrap();
            api.send(epd, b"y", BLOCK).unwrap();
            until("the end", || api.poll(epd, 0, 10) != 0);
            api.close(epd).unwrap();
            crate::rig::unmap(at, 4 * PAGE);
            assert_eq!(child.end(), if killed { -libc::SIGKILL } else { 0 });
        };
        let areas = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let of_library = maps.lines().filter(|l| l.contains("scif")).count();
            (of_library, maps.lines().count())
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
            statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
        };
        let cycles = std::env::var("CONFORMANCE_CYCLES").map_or(0, |n| n.parse().unwrap());
        let run = |cycles: u64| {
            let mut closed = 0;
            for i in 1..=cycles {
                round(true);
                if i % KILLS == 0 {
                    round(false);
                    closed += 1;
                }
            }
            closed
        };
        run(2 * KILLS);
        let memory = resident();
        let before = (descriptors(), areas(), sockets());
        let closed = run(cycles);
        let mut after = before;
        let mut grown = 0;
        let limit = MORE_PAGES + cycles / CYCLES_A_PAGE;
        // The last closed resources may be in use for a moment.
        let settled = || {
            after = (descriptors(), areas(), sockets());
            grown = resident().saturating_sub(memory);
            let (of_library, all) = after.1;
            after.0 <= before.0
                && of_library <= before.1.0
                && all <= before.1.1 + MORE_AREAS
                && after.2 <= before.2
                && grown <= limit
        };
        let found = within(Duration::from_secs(60), settled);
        println!(
            "     {cycles} cycles ended by a kill, {closed} by scif_close; \
             {grown} pages more, of {limit}"
        );
        assert!(
            found,
            "descriptors, areas (of the library, all) and sockets of the survivor: \
             {before:?}, {after:?}"
        );
    }),
];
