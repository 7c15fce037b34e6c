// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sharers that get a port or a peer after the fork. All sharers see one endpoint. Source: section
//! 3.5.1 of the User Guide.

use std::time::Duration;

use scif_fabtests::harness::process::{Cue, Process};

use crate::api::{Api, Case};
use crate::placement::{case_port, node, server};
use crate::rig::*;
use libc::{ECONNREFUSED, ECONNRESET, EINPROGRESS, EINVAL, EISCONN};

fn accept(api: &Api, listener: i32) -> i32 {
    let (peer, epd) = api.accept(listener, BLOCK).unwrap();
    assert_eq!(peer.node, node(2));
    epd
}

fn connect(api: &Api, epd: i32) {
    assert!(api.connect(epd, node(1), case_port()).unwrap() > 1088);
}

/// Starts a child that never ends by itself.
fn sleeps(body: impl FnOnce()) -> Process {
    Process::start(|| {
        body();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    })
}

fn kill(child: Process) {
    child.kill();
    assert_eq!(child.end(), -libc::SIGKILL);
}

/// Runs a listener on node 1. A process on node 2 connects, forks a child, and dies by `signal`
/// before it can report. `asks` connects and forks. `ends` makes it die after the request and
/// returns the accepted endpoint; then the child continues.
fn leaves_to_its_heir(
    api: &Api,
    signal: i32,
    asks: impl FnOnce(i32, &Cue),
    ends: impl FnOnce(&Process, i32) -> i32,
) {
    let (mine, theirs) = Cue::pair();
    let asker = sleeps(|| {
        set_env("SCIF_NODE", "2");
        theirs.wait();
        let epd = api.open();
        set_nonblocking(epd, true);
        asks(epd, &theirs);
    });
    set_env("SCIF_NODE", "1");
    let (listener, _) = api.listener(case_port(), 4);
    mine.meet();
    let epd = ends(&asker, listener);
    assert_eq!(asker.end(), -signal);
    mine.notify();
    assert_eq!(api.send(epd, b"hi", BLOCK), Ok(2));
    let mut bytes = [0; 2];
    assert_eq!(api.recv(epd, &mut bytes, BLOCK), Ok(2));
    assert_eq!(&bytes, b"ho");
    assert_eq!(api.recv(epd, &mut bytes, BLOCK), Err(ECONNRESET));
}

/// Uses an endpoint in a child after another process started its connect.
fn inherits(api: &Api, epd: i32) {
    assert_eq!(api.poll(epd, OUT, 60_000), OUT);
    assert!(api.connect(epd, node(1), case_port()).unwrap() > 1088);
    let bytes = api.recv_array::<2>(epd);
    assert_eq!(&bytes, b"hi");
    // The rest of the connection's socket is handled meanwhile.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(api.send(epd, b"ho", BLOCK), Ok(2));
}

pub(crate) const CASES: &[Case] = &[
    ("child_forked_during_a_connect_receives_the_answer", |api| {
        leaves_to_its_heir(
            api,
            libc::SIGKILL,
            |epd, cue| {
                assert_eq!(api.connect(epd, node(1), case_port()), Err(EINPROGRESS));
                Process::start(|| {
                    outlive_parent();
                    assert_eq!(api.poll(epd, OUT, 0), 0);
                    cue.meet();
                    inherits(api, epd);
                });
            },
            |asker, listener| {
                asker.kill();
                until("it has gone", || asker.has_ended());
                accept(api, listener)
            },
        );
    }),
    ("another_sharer_completes_a_connect_whose_answer_was_read", |api| {
        leaves_to_its_heir(
            api,
            libc::SIGSYS,
            |epd, cue| {
                Process::start(|| {
                    outlive_parent();
                    // Without an earlier call of the library, only the dying process reads the
                    // answer.
                    cue.wait();
                    inherits(api, epd);
                });
                assert_eq!(api.connect(epd, node(1), case_port()), Err(EINPROGRESS));
                die_dropping_a_packet();
                cue.notify();
            },
            |_, listener| accept(api, listener),
        );
    }),
    ("another_sharer_times_out_the_connect", |api| {
        set_env("SCIF_CONNECT_TIMEOUT_MS", "1500");
        let (listener, port) = api.listener(0, 4);
        let epd = api.open();
        set_nonblocking(epd, true);
        let (mine, theirs) = Cue::pair();
        let child = sleeps(|| {
            assert_eq!(api.connect(epd, 0, port), Err(EINPROGRESS));
            theirs.notify();
        });
        mine.wait();
        kill(child);
        assert_eq!(raw_poll(epd, OUT, 20_000), OUT);
        assert_eq!(api.connect(epd, 0, port), Err(ECONNREFUSED));
        assert_eq!(api.accept(listener, 0).map(|_| ()), Err(libc::EAGAIN));
    }),
    ("connect_of_a_dead_caller_times_out", |api| {
        set_env("SCIF_CONNECT_TIMEOUT_MS", "400");
        let (listener, port) = api.listener(0, 4);
        // Bound, and no longer connecting.
        let given_up = |epd| until("it is given up", || api.bind(epd, 0) == Err(EINVAL));
        let waits = |epd| {
            let api = *api;
            drop(waits_in(move || api.connect(epd, 0, port)));
        };
        let (mine, theirs) = Cue::pair();
        let epd = api.open();
        let child = sleeps(|| {
            waits(epd);
            theirs.notify();
        });
        mine.wait();
        kill(child);
        assert_eq!(api.bind(epd, 0), Err(EISCONN));
        given_up(epd);
        // Forked while it waits.
        let child = sleeps(|| {
            let own = api.open();
            waits(own);
            Process::start(|| {
                outlive_parent();
                theirs.meet();
                given_up(own);
                theirs.notify();
            });
        });
        mine.wait();
        kill(child);
        mine.meet();
        assert_eq!(api.accept(listener, 0).map(|_| ()), Err(libc::EAGAIN));
    }),
    ("parent_uses_the_connection_of_its_child", |api| {
        server(api, |listener, cue| {
            let epd = accept(api, listener);
            let own = filled(1, PAGE, 7);
            assert_eq!(api.register(epd, (own, PAGE), 0x30000, RW, FIXED), Ok(0x30000));
            cue.notify();
            let mut bytes = [0; 6];
            assert_eq!(api.recv(epd, &mut bytes, BLOCK), Ok(6));
            assert_eq!(&bytes, b"abcdef", "one stream, whoever sends");
            assert_eq!(api.send(epd, b"123", BLOCK), Ok(3));
            cue.wait();
            assert!(holds(own, PAGE, 9), "written by the parent");
            let mapped = api.mmap(epd, (0, PAGE), RW, 0, 0x10000).unwrap();
            assert!(holds(mapped, PAGE, 9));
            poke(mapped + 1, 77);
            cue.notify();
            assert_eq!(api.recv(epd, &mut bytes, BLOCK), Err(ECONNRESET));
        })
        .opener(|epd, cue| {
            let (parent, child) = Cue::pair();
            let process = Process::start(|| {
                connect(api, epd);
                assert_eq!(api.send(epd, b"ab", BLOCK), Ok(2));
                child.meet();
                let bytes = api.recv_array::<2>(epd);
                assert_eq!(&bytes, b"12");
                child.meet();
            });
            parent.wait();
            assert_eq!(api.poll(epd, OUT, 0), OUT);
            assert_eq!(api.connect(epd, node(1), case_port()), Err(EISCONN));
            assert_eq!(api.bind(epd, 0), Err(EISCONN));
            assert_eq!(api.send(epd, b"cdef", BLOCK), Ok(4));
            cue.wait();
            assert_eq!(api.poll(epd, IN, 20_000), IN);
            assert_eq!(raw_poll(epd, IN, 20_000), IN);
            parent.meet();
            let mut byte = [0];
            assert_eq!(api.recv(epd, &mut byte, BLOCK), Ok(1));
            assert_eq!(byte, *b"3");
            let at = pages(1);
            assert_eq!(api.register(epd, (at, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            assert_eq!(api.readfrom(epd, 0x10000, PAGE, 0x30000, SYNC), Ok(0));
            assert!(holds(at, PAGE, 7));
            fill(at, PAGE, 9);
            assert_eq!(api.writeto(epd, 0x10000, PAGE, 0x30000, SYNC), Ok(0));
            let mark = api.fence_mark(epd, 1).unwrap();
            assert_eq!(api.fence_wait(epd, mark), Ok(0));
            cue.meet();
            assert_eq!(peek(at + 1), 77, "the peer's store");
            parent.notify();
            process.wait();
            api.close(epd).unwrap();
        });
    }),
    ("child_uses_the_connection_of_its_parent", |api| {
        server(api, |listener, _| {
            let epd = accept(api, listener);
            assert_eq!(api.send(epd, b"xyz", BLOCK), Ok(3));
            let mut bytes = [0; 4];
            assert_eq!(api.recv(epd, &mut bytes, BLOCK), Ok(4));
            assert_eq!(&bytes, b"next");
            assert_eq!(api.recv(epd, &mut bytes, BLOCK), Err(ECONNRESET));
        })
        .opener(|epd, _| {
            let (parent, child) = Cue::pair();
            let process = Process::start(|| {
                child.wait();
                assert_eq!(api.connect(epd, node(1), case_port()), Err(EISCONN));
                let bytes = api.recv_array::<3>(epd);
                assert_eq!(&bytes, b"xyz");
                child.meet();
                assert_eq!(api.send(epd, b"xt", BLOCK), Ok(2));
            });
            connect(api, epd);
            parent.meet();
            assert_eq!(api.send(epd, b"ne", BLOCK), Ok(2));
            api.close(epd).unwrap();
            parent.notify();
            process.wait();
        });
    }),
    ("kill_of_a_connected_sharer", |api| {
        server(api, |listener, cue| {
            let epd = accept(api, listener);
            let own = serve_mapped(api, epd, cue, 3);
            assert!(holds(own + 8, 8, 5 ^ 8));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET));
        })
        .opener(|epd, cue| {
            let (ready, child_ready) = Cue::pair();
            let child = Process::start(|| {
                connect(api, epd);
                let at = filled(1, PAGE, 5);
                assert_eq!(api.register(epd, (at, PAGE), 0x20000, RW, FIXED), Ok(0x20000));
                child_ready.notify();
                let _ = api.recv(epd, &mut [0; 8], BLOCK);
            });
            ready.wait();
            cue.meet();
            std::thread::sleep(Duration::from_millis(20));
            kill(child);
            cue.notify();
            for round in 0..3u8 {
                cue.notify();
                match round {
                    0 => assert_eq!(api.poll(epd, IN, 20_000), IN),
                    1 => assert_eq!(raw_poll(epd, IN, 20_000), IN),
                    _ => {}
                }
                let mut byte = [9];
                assert_eq!(api.recv(epd, &mut byte, BLOCK), Ok(1));
                assert_eq!(byte, [round]);
            }
            assert_eq!(api.writeto(epd, 0x20000, PAGE, 0x30000, SYNC), Ok(0));
            let at = pages(1);
            assert_eq!(api.vreadfrom(epd, at, PAGE, 0x30000, SYNC), Ok(0));
            assert_eq!((peek(at + 3), peek(at + 4)), (99, 4 ^ 5));
            cue.notify();
            // Last sharer.
            api.close(epd).unwrap();
        });
    }),
    ("kill_of_a_connecting_sharer", |api| {
        server(api, |listener, cue| {
            cue.wait();
            let epd = accept(api, listener);
            assert_eq!(api.send(epd, b"hi", BLOCK), Ok(2));
            let mut bytes = [0; 2];
            assert_eq!(api.recv(epd, &mut bytes, BLOCK), Ok(2));
            assert_eq!(&bytes, b"ho");
        })
        .opener(|epd, cue| {
            let child = Process::start(|| {
                let _ = api.connect(epd, node(1), case_port());
            });
            // Connecting, and no longer just bound.
            until("it connects", || api.bind(epd, 0) == Err(EISCONN));
            kill(child);
            cue.notify();
            until("it is connected", || api.poll(epd, OUT, 0) == OUT);
            let bytes = api.recv_array::<2>(epd);
            assert_eq!(&bytes, b"hi");
            assert_eq!(api.send(epd, b"ho", BLOCK), Ok(2));
            api.close(epd).unwrap();
        });
    }),
    ("one_sharer_connects_and_another_takes_the_result", |api| {
        server(api, |listener, cue| {
            cue.wait();
            let epd = accept(api, listener);
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        })
        .opener(|epd, cue| {
            set_nonblocking(epd, true);
            let (parent, child) = Cue::pair();
            let process = sleeps(|| {
                assert_eq!(api.connect(epd, node(1), case_port()), Err(EINPROGRESS));
                child.notify();
            });
            parent.wait();
            assert_eq!(api.connect(epd, node(1), case_port()), Err(EINPROGRESS));
            assert_eq!(api.poll(epd, OUT, 0), 0);
            cue.notify();
            assert_eq!(api.poll(epd, OUT, 20_000), OUT);
            assert_eq!(raw_poll(epd, OUT, 20_000), OUT);
            assert!(api.connect(epd, node(1), case_port()).unwrap() > 1088);
            assert_eq!(api.connect(epd, node(1), case_port()), Err(EISCONN));
            kill(process);
            assert_eq!(api.send(epd, b"!", BLOCK), Ok(1));
            api.close(epd).unwrap();
        });
    }),
    ("another_sharer_connects_after_a_refusal", |api| {
        server(api, |listener, _| {
            let epd = accept(api, listener);
            let mapped =
                api.recv(epd, &mut [0], BLOCK).map(|_| api.mmap(epd, (0, PAGE), RW, 0, 0x5000));
            assert!(holds(mapped.unwrap().unwrap(), PAGE, 3));
            assert_eq!(api.send(epd, b"!", BLOCK), Ok(1));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET));
        })
        .opener(|epd, _| {
            let (parent, child) = Cue::pair();
            let process = sleeps(|| {
                assert_eq!(api.connect(epd, node(1), case_port() + 1), Err(ECONNREFUSED));
                child.meet();
                let at = filled(1, PAGE, 3);
                assert_eq!(api.register(epd, (at, PAGE), 0x5000, RW, FIXED), Ok(0x5000));
                assert_eq!(api.send(epd, b"!", BLOCK), Ok(1));
            });
            parent.wait();
            assert_eq!(api.connect(epd, node(1), case_port() + 1), Err(ECONNREFUSED));
            connect(api, epd);
            parent.notify();
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            kill(process);
            api.close(epd).unwrap();
        });
    }),
    ("sharers_bind_listen_and_accept_in_turn", |api| {
        let shared = api.open();
        set_env("SCIF_NODE", "1");
        let (first, binder) = Cue::pair();
        let one = sleeps(|| {
            assert_eq!(api.bind(shared, case_port()), Ok(case_port().into()));
            binder.notify();
        });
        let (second, acceptor) = Cue::pair();
        let two = sleeps(|| {
            acceptor.wait();
            for _ in 0..2 {
                let (_, epd) = api.accept(shared, BLOCK).unwrap();
                assert_eq!(api.send(epd, b"2", BLOCK), Ok(1));
            }
            acceptor.notify();
        });
        first.wait();
        kill(one);
        assert_eq!(api.listen(shared, 4), Ok(0), "the port outlives who took it");
        second.notify();
        let connects = || {
            let epd = api.open();
            assert!(api.connect(epd, node(0), case_port()).unwrap() > 1088);
            let mut byte = [0];
            assert_eq!(api.recv(epd, &mut byte, BLOCK), Ok(1));
            byte[0]
        };
        assert_eq!(connects(), b'2');
        assert_eq!(connects(), b'2');
        second.wait();
        kill(two);
        let third = Process::start(|| assert_eq!(connects(), b'1'));
        assert_eq!(api.poll(shared, IN, 20_000), IN);
        let (_, epd) = api.accept(shared, BLOCK).unwrap();
        assert_eq!(api.send(epd, b"1", BLOCK), Ok(1));
        third.wait();
    }),
    ("requests_reach_other_sharers_of_a_killed_listener", |api| {
        let shared = api.open();
        assert_eq!(api.bind(shared, case_port()), Ok(case_port().into()));
        let (parent, child) = Cue::pair();
        let listens = sleeps(|| {
            assert_eq!(api.listen(shared, 4), Ok(0));
            child.notify();
        });
        parent.wait();
        let connects = Process::start(|| {
            std::thread::sleep(Duration::from_millis(100));
            let epd = api.open();
            assert!(api.connect(epd, node(0), case_port()).unwrap() > 1088);
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        });
        kill(listens);
        let (_, epd) = api.accept(shared, BLOCK).unwrap();
        assert_eq!(api.send(epd, b"1", BLOCK), Ok(1));
        connects.wait();
    }),
    ("end_of_the_peer_reaches_the_remaining_sharers", |api| {
        server(api, |listener, cue| {
            let epd = accept(api, listener);
            cue.wait();
            std::thread::sleep(Duration::from_millis(50));
            api.close(epd).unwrap();
        })
        .opener(|epd, cue| {
            let (parent, child) = Cue::pair();
            let process = sleeps(|| {
                connect(api, epd);
                child.notify();
            });
            parent.wait();
            kill(process);
            cue.notify();
            assert_eq!(raw_poll(epd, 0, 20_000) & HUP, HUP, "asleep, without a call before");
            assert_eq!(api.send(epd, b"1", BLOCK), Err(ECONNRESET));
        });
    }),
    ("end_of_the_last_sharer_reaches_the_peer", |api| {
        server(api, |listener, cue| {
            let epd = accept(api, listener);
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            cue.meet();
            // Two of three have ended.
            assert_eq!(api.poll(epd, IN, 50), 0);
            cue.notify();
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET));
        })
        .opener(|epd, cue| {
            Process::start(|| {
                connect(api, epd);
                assert_eq!(api.send(epd, b"1", BLOCK), Ok(1));
            })
            .wait();
            let (parent, child) = Cue::pair();
            let holder = sleeps(|| {
                assert_eq!(api.poll(epd, OUT, 0), OUT);
                child.notify();
            });
            parent.wait();
            cue.wait();
            api.close(epd).unwrap();
            cue.meet();
            kill(holder);
        });
    }),
    ("shared_endpoints_leak_nothing", |api| {
        server(api, |epd, _| {
            let (listener, _) = api.listener(case_port() + 1, 4);
            assert_eq!(api.send(epd, b"!", BLOCK), Ok(1));
            for _ in 0..40 {
                let new = accept(api, listener);
                assert_eq!(api.recv(new, &mut [0], BLOCK), Ok(1));
                assert_eq!(api.recv(new, &mut [0], BLOCK), Err(ECONNRESET));
                api.close(new).unwrap();
            }
        })
        .client(|epd, _| {
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            let mut before = 0;
            for round in 0..40 {
                let shared = api.open();
                let child = Process::start(|| {
                    assert!(api.connect(shared, node(1), case_port() + 1).unwrap() > 1088);
                });
                child.wait();
                assert_eq!(api.send(shared, b"1", BLOCK), Ok(1));
                api.close(shared).unwrap();
                if round == 5 {
                    before = descriptors();
                }
            }
            // The end that the last fork made stays open until the next fork or call.
            until("the descriptors of six rounds", || descriptors() <= before + 1);
        });
    }),
];
