// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Forks: state that parent and child share, state of each, and the effect of one's death on the
//! other. Source: section 3.5.1 and 3.5.2 of the User Guide.

use std::time::{Duration, Instant};

use scif_fabtests::harness::process::{Cue, Process};

use crate::api::Case;
use crate::fences::SELF;
use crate::placement::server;
use crate::rig::*;

/// Returns the number of bytes of windows that this process maps.
fn arenas_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("scif:arena"))
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .map(|(from, to)| [from, to].map(|n| usize::from_str_radix(n, 16).unwrap()))
        .map(|[from, to]| to - from)
        .sum()
}

/// Runs another program in place of this process.
fn run_sleep() {
    let error =
        std::os::unix::process::CommandExt::exec(std::process::Command::new("sleep").arg("60"));
    panic!("{error}");
}

/// Returns the name of the program that a process runs.
fn program(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

pub(crate) const CASES: &[Case] = &[
    ("scenario_of_the_guide", |api| {
        server(api, |epd, cue| {
            let at = filled(2, PAGE, 1);
            fill(at + PAGE, PAGE, 2);
            assert_eq!(api.register(epd, (at, 2 * PAGE), 0x30000, RW, FIXED), Ok(0x30000));
            cue.meet();
            let mapped = api.mmap(epd, (0, PAGE), RW, 0, 0x20000).unwrap();
            assert!(holds(mapped, PAGE, 1));
            poke(mapped + 9, 200);
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            parent(|child| {
                let mine = pages(1);
                assert_eq!(api.register(epd, (mine, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
                child.meet();
                // Into the child's page; the child reads the parent's.
                assert_eq!(api.readfrom(epd, 0x20000, PAGE, 0x30000, SYNC), Ok(0));
                child.meet();
                assert!(holds(mine, PAGE, 2));
                cue.meet();
                child.notify();
            })
            .child(|parent| {
                parent.wait();
                let mine = pages(1);
                assert_eq!(api.register(epd, (mine, PAGE), 0x20000, RW, FIXED), Ok(0x20000));
                parent.meet();
                assert!(holds(mine, PAGE, 1));
                assert_eq!(api.readfrom(epd, 0x10000, PAGE, 0x31000, SYNC), Ok(0));
                parent.meet();
                assert_eq!(peek(mine + 9), 200, "the peer's store");
            });
            cue.notify();
        });
    }),
    ("parent_works_after_the_kill_of_a_child", |api| {
        server(api, |epd, cue| {
            serve_mapped(api, epd, cue, 4);
        })
        .client(|epd, cue| {
            let (ready, child_ready) = Cue::pair();
            let child = Process::start(|| {
                let at = filled(1, PAGE, 5);
                assert_eq!(api.register(epd, (at, PAGE), 0x20000, RW, FIXED), Ok(0x20000));
                child_ready.notify();
                let _ = api.recv(epd, &mut [0; 8], BLOCK);
            });
            ready.wait();
            cue.meet();
            std::thread::sleep(Duration::from_millis(20));
            child.kill();
            assert_eq!(child.end(), -libc::SIGKILL);
            cue.notify();
            // Asleep before the byte arrives, in each possible call.
            for round in 0..4u8 {
                cue.notify();
                match round {
                    0 => assert_eq!(api.poll(epd, IN, 20_000), IN),
                    1 => assert_eq!(raw_poll(epd, IN, 20_000), IN),
                    2 => {}
                    _ => until("a byte", || api.poll(epd, IN, 0) == IN),
                }
                let mut byte = [9];
                assert_eq!(api.recv(epd, &mut byte, BLOCK), Ok(1));
                assert_eq!(byte, [round]);
            }
            let at = pages(1);
            assert_eq!(api.register(epd, (at, PAGE), 0x20000, RW, FIXED), Err(libc::EADDRINUSE));
            assert_eq!(
                api.writeto(epd, 0x20000, PAGE, 0x30000, SYNC),
                Ok(0),
                "from the child's window"
            );
            assert_eq!(api.vreadfrom(epd, at, PAGE, 0x30000, SYNC), Ok(0));
            assert_eq!((peek(at + 3), peek(at + 4)), (99, 4 ^ 5));
            cue.notify();
        });
    }),
    ("rma_is_fast_again_after_children_ended", |api| {
        server(api, |epd, cue| {
            for at in [0x10000, 0x20000, 0x30000] {
                api.register(epd, (pages(1), PAGE), at, RW, FIXED).unwrap();
            }
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            let from = pages(1);
            let write = |to| assert_eq!(api.vwriteto(epd, from, 8, to, SYNC), Ok(0));
            write(0x10000);
            assert_eq!(arenas_mapped(), PAGE, "mapped for more than one copy");
            for (to, by_exec) in [(0x20000, false), (0x30000, true)] {
                let (ready, child_ready) = Cue::pair();
                let child = Process::start(|| {
                    write(0x10000);
                    child_ready.notify();
                    if by_exec {
                        run_sleep();
                    }
                });
                ready.wait();
                if by_exec {
                    until("another program runs", || program(child.pid()) == "sleep");
                } else {
                    child.wait();
                }
                let keeps_again = || {
                    write(to);
                    write(0x10000);
                    arenas_mapped() >= 2 * PAGE
                };
                assert!(within(Duration::from_secs(20), keeps_again));
            }
            cue.notify();
        });
    }),
    ("rma_queued_by_a_child_before_exec_delays_no_fence", |api| {
        server(api, |epd, cue| {
            let len = 16 << 20;
            api.register(epd, (pages(len / PAGE), len), 0x10000, RW, FIXED).unwrap();
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            let len = 16 << 20;
            let from = filled(len / PAGE, len, 1);
            let child = Process::start(|| {
                // Far more than is copied before the other program begins.
                for _ in 0..100 {
                    assert_eq!(api.vwriteto(epd, from, len, 0x10000, 0), Ok(0));
                }
                run_sleep();
            });
            until("another program runs", || program(child.pid()) == "sleep");
            let begin = Instant::now();
            let mark = api.fence_mark(epd, SELF).unwrap();
            assert_eq!(api.fence_wait(epd, mark), Ok(0));
            assert!(begin.elapsed() < Duration::from_secs(30), "held up until it ended");
            assert_eq!(program(child.pid()), "sleep");
            cue.notify();
        });
    }),
    ("messages_are_fast_again_after_a_child_ended", |api| {
        server(api, |epd, cue| {
            Process::start(|| assert_eq!(api.recv(epd, &mut [0], 0), Ok(0))).wait();
            for _ in 0..4 {
                // Longer than the library takes to notice.
                std::thread::sleep(Duration::from_millis(20));
                cue.notify();
                assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            }
            cue.notify();
            // A receiver inside a call is woken, and its descriptor not changed.
            assert_eq!(api.recv(epd, &mut [0; 2], BLOCK), Ok(2));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(libc::ECONNRESET));
        })
        .client(|epd, cue| {
            for _ in 0..4 {
                cue.wait();
                assert_eq!(api.send(epd, &[1], BLOCK), Ok(1));
            }
            cue.wait();
            let other = std::os::unix::process::parent_id() as i32;
            until("it sleeps in its call", || sleeps(other));
            die_sending_to_a_socket();
            assert_eq!(api.send(epd, &[1], BLOCK), Ok(1));
            assert_eq!(api.send(epd, &[2], BLOCK), Ok(1));
        });
    }),
    ("child_has_copies_of_windows", |api| {
        let (a, b) = loopback(api);
        let at = pages(600);
        fill(at + PAGE, 599 * PAGE, 1);
        assert_eq!(api.register(a, (at, 600 * PAGE), 0x100000, RW, FIXED), Ok(0x100000));
        let mapped = api.mmap(b, (0, PAGE), RW, 0, 0x100000).unwrap();
        for round in 0..20u8 {
            fill(at, PAGE, round);
            let (parent, child) = Cue::pair();
            let process = Process::start(|| {
                child.wait();
                // The parent has stored since.
                assert!(holds(at, PAGE, round), "as it was at the fork");
                assert!(holds(at + PAGE, 599 * PAGE, 1));
                poke(at + 7, 250);
                child.notify();
            });
            fill(at, PAGE, 100);
            parent.meet();
            process.wait();
            assert!(holds(at, PAGE, 100), "the child stored into memory of its own");
            poke(mapped + 3, 77);
            assert_eq!(peek(at + 3), 77, "still the window");
        }
    }),
    ("child_inherits_no_window_with_dontfork", |api| {
        let (a, _b) = loopback(api);
        let at = pages(4);
        assert_eq!(api.register(a, (at, 4 * PAGE), 0x100000, RW, FIXED), Ok(0x100000));
        crate::rig::dont_fork(at, 2 * PAGE);
        Process::start(|| assert_eq!(peek(at + 2 * PAGE), 0)).wait();
        let gone = Process::start(|| {
            peek(at);
        });
        assert_eq!(gone.end(), -libc::SIGSEGV);
    }),
    ("pages_with_dontfork_keep_the_mark", |api| {
        let (a, b) = loopback(api);
        // In the middle of other memory, at its end, and all of it; in one piece, and in several.
        for (of, first, n) in [(8, 2, 4), (8, 7, 1), (3, 0, 3), (1, 0, 1), (1100, 30, 1050)] {
            let all = pages(of + 2) + PAGE;
            crate::rig::protect(all - PAGE, PAGE, libc::PROT_NONE);
            crate::rig::protect(all + of * PAGE, PAGE, libc::PROT_NONE);
            fill(all, of * PAGE, 1);
            let at = all + first * PAGE;
            crate::rig::dont_fork(at, n * PAGE);
            let child_has = |page: usize| {
                let child = Process::start(|| {
                    peek(all + page * PAGE);
                });
                match child.end() {
                    0 => true,
                    how => {
                        assert_eq!(how, -libc::SIGSEGV);
                        false
                    }
                }
            };
            let check = |when: &str| {
                assert!(!child_has(first) && !child_has(first + n - 1), "{n} of {of} {when}");
                for other in [first.checked_sub(1), Some(first + n).filter(|&page| page < of)] {
                    assert!(other.is_none_or(child_has), "{n} of {of} {when}: the others");
                }
                assert!(holds(all, of * PAGE, 1));
            };
            check("before");
            assert_eq!(api.register(a, (at, n * PAGE), 0x100000, RW, FIXED), Ok(0x100000));
            check("while registered");
            assert!(
                api.mmap(b, (0, n * PAGE), RW, 0, 0x100000)
                    .is_ok_and(|mapped| api.munmap(mapped, n * PAGE) == Ok(0))
            );
            assert_eq!(api.unregister(a, 0x100000, n * PAGE), Ok(0));
            check("afterwards");
        }
    }),
    ("fork_neither_waits_nor_inherits_a_held_lock", |api| {
        let (a, b) = loopback(api);
        let stop = std::sync::Arc::new(std::sync::Mutex::new(false));
        let over = |stop: &std::sync::Mutex<bool>| *stop.lock().unwrap();
        let work: [fn(&crate::api::Api, i32, i32); 4] = [
            |api, a, _| {
                let at = pages(4);
                api.register(a, (at, 4 * PAGE), 0x100000, RW, FIXED).unwrap();
                api.unregister(a, 0x100000, 4 * PAGE).unwrap();
                crate::rig::unmap(at, 4 * PAGE);
            },
            |api, _, _| {
                let epd = api.open();
                api.bind(epd, 0).unwrap();
                api.close(epd).unwrap();
            },
            |api, _, b| {
                let at = pages(128);
                api.register(b, (at, 128 * PAGE), 0x200000, RW, FIXED).unwrap();
                api.vwriteto(b, at, 8, 0x300000, 0).unwrap();
                api.writeto(b, 0x200000, 128 * PAGE, 0x400000, 0).unwrap();
                api.unregister(b, 0x200000, 128 * PAGE).unwrap();
                crate::rig::unmap(at, 128 * PAGE);
            },
            |api, a, b| {
                api.send(a, b"12345678", BLOCK).unwrap();
                api.recv(b, &mut [0; 8], BLOCK).unwrap();
            },
        ];
        let far = pages(256);
        api.register(a, (far, PAGE), 0x300000, RW, FIXED).unwrap();
        api.register(a, (far + PAGE, 128 * PAGE), 0x400000, RW, FIXED).unwrap();
        let threads: Vec<_> = work
            .into_iter()
            .map(|work| {
                let (api, stop) = (*api, std::sync::Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !over(&stop) {
                        work(&api, a, b);
                    }
                })
            })
            .collect();
        for _ in 0..60 {
            let child = Process::start(|| {
                let own = api.open();
                api.bind(own, 0).unwrap();
                api.close(own).unwrap();
                let at = pages(1);
                let offset = api.register(a, (at, PAGE), 0, RW, 0).unwrap();
                api.vwriteto(b, at, 8, 0x300000, SYNC).unwrap();
                api.unregister(a, offset, PAGE).unwrap();
                assert_eq!(api.poll(a, crate::rig::OUT, 10_000), crate::rig::OUT);
            });
            child.wait();
        }
        *stop.lock().unwrap() = true;
        for thread in threads {
            thread.join().unwrap();
        }
    }),
    ("caller_keeps_its_connection_while_others_fork", |api| {
        let (shared, _peer) = loopback(api);
        let connecting = {
            let api = *api;
            std::thread::spawn(move || {
                for round in 0..200u8 {
                    let (a, b) = loopback(&api);
                    let at = filled(1, PAGE, round);
                    assert_eq!(api.register(a, (at, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
                    let mapped = api.mmap(b, (0, PAGE), RW, 0, 0x10000).unwrap();
                    assert!(holds(mapped, PAGE, round));
                    assert_eq!(api.send(b, &[round], BLOCK), Ok(1));
                    let mut byte = [0];
                    assert_eq!(api.recv(a, &mut byte, BLOCK), Ok(1));
                    assert_eq!(byte, [round]);
                    crate::rig::unmap(mapped, PAGE);
                    api.close(b).unwrap();
                    api.close(a).unwrap();
                    crate::rig::unmap(at, PAGE);
                }
            })
        };
        while !connecting.is_finished() {
            // Uses the library: from then on the child handles events of all inherited endpoints.
            Process::start(|| {
                for _ in 0..20 {
                    assert_eq!(api.poll(shared, crate::rig::OUT, 10_000), crate::rig::OUT);
                    std::thread::sleep(Duration::from_micros(100));
                }
            })
            .wait();
        }
        connecting.join().unwrap();
    }),
    ("fork_inherits_no_lock_of_a_thread_that_moves_pages", |api| {
        let (a, b) = loopback(api);
        let pairs: Vec<_> = (0..100).map(|_| loopback(api)).collect();
        let moving = {
            let api = *api;
            std::thread::spawn(move || {
                for (c, d) in pairs {
                    let at = filled(64, 64 * PAGE, 1);
                    api.register(c, (at, 64 * PAGE), 0x10000, RW, FIXED).unwrap();
                    // In place: the pages move back after the end of their endpoint.
                    let offset = api.register(b, (at + PAGE, PAGE), 0, RW, 0).unwrap();
                    let mapped = api.mmap(d, (0, PAGE), RW, 0, 0x10000).unwrap();
                    api.close(c).unwrap();
                    crate::rig::unmap(mapped, PAGE);
                    api.close(d).unwrap();
                    api.unregister(b, offset, PAGE).unwrap();
                    assert!(holds(at, 64 * PAGE, 1));
                    crate::rig::unmap(at, 64 * PAGE);
                }
            })
        };
        while !moving.is_finished() {
            Process::start(|| {
                let at = pages(1);
                let offset = api.register(a, (at, PAGE), 0, RW, 0).unwrap();
                api.unregister(a, offset, PAGE).unwrap();
            })
            .wait();
        }
        moving.join().unwrap();
    }),
    ("fence_marks_cover_rma_of_all_sharers", |api| {
        const N: usize = 64 << 20;
        let (a, b) = loopback(api);
        let far = pages(N / PAGE + 1);
        assert_eq!(api.register(b, (far, N + PAGE), 0x1000_0000, RW, FIXED), Ok(0x1000_0000));
        let near = filled(N / PAGE, N, 4);
        assert_eq!(api.register(a, (near, N), 0x1000_0000, RW, FIXED), Ok(0x1000_0000));
        for kill in [false, true] {
            fill(far, PAGE, 0);
            poke(far + N - 1, 0);
            let (parent, child) = Cue::pair();
            let process = Process::start(|| {
                assert_eq!(api.writeto(a, 0x1000_0000, N, 0x1000_0000, 0), Ok(0));
                child.meet();
                if kill {
                    crate::rig::crash();
                }
                let mark = api.fence_mark(a, 1).unwrap();
                assert_eq!(api.fence_wait(a, mark), Ok(0));
                child.wait();
            });
            parent.wait();
            let mark = api.fence_mark(a, 1).unwrap();
            parent.notify();
            assert_eq!(api.writeto(a, 0x1000_0000, PAGE, 0x1000_0000 + N as i64, 0), Ok(0));
            assert_eq!(api.fence_wait(a, mark), Ok(0), "returns in any case");
            let all = peek(far + N - 1) == peek(near + N - 1);
            assert!(all || kill, "what the child had begun was waited for");
            if !kill {
                parent.notify();
            }
            process.end();
        }
        assert_eq!(api.unregister(a, 0x1000_0000, N), Ok(0));
        assert_eq!(api.unregister(b, 0x1000_0000, N + PAGE), Ok(0));
    }),
];
