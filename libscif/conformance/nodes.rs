// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loss of a node: the errors of each call afterwards, and the view of an administrator.
//!
//! A node is lost through the engine, as by `scifctl node lose`; the library is tested.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use scif_fabtests::harness::process::{Cue, Process};
use scif_fabtests::harness::sandbox::become_ordinary_user;

use crate::api::{Api, Case};
use crate::placement::{case_port, server};
use crate::rig::*;
use libc::{ECONNREFUSED, ECONNRESET, EINVAL, EISCONN, ENODEV};
use scif::Config;
use scif_api::{Answers, FailedNode, Failure, restore};

/// Loses a node with a long time-out, so that all processes answer on a busy machine.
fn lose(node: u16) -> (FailedNode, Answers) {
    lose_within(node, 30)
}

fn lose_within(node: u16, seconds: u64) -> (FailedNode, Answers) {
    FailedNode::within(&Config::from_env(), node, Duration::from_secs(seconds)).unwrap()
}

/// Maps a page of a node in a process, loses the node and touches the page. Returns how the process
/// ends.
fn maps_and_loses(api: &Api, how: &str) -> i32 {
    let (ready, is_ready) = UnixDatagram::pair().unwrap();
    let owner = Process::start(|| {
        set_env("SCIF_NODE", "1");
        let (listener, _) = api.listener(case_port(), 1);
        ready.send(b"r").unwrap();
        let (_, epd) = api.accept(listener, BLOCK).unwrap();
        api.register(epd, (pages(1), PAGE), 0x1000, RW, 0x10).unwrap();
        api.send(epd, b"r", BLOCK).unwrap();
        assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET));
    });
    is_ready.recv(&mut [0; 8]).unwrap();
    let child = Process::start(|| {
        set_env("SCIF_NODE_LOST", how);
        set_env("SCIF_NODE", "2");
        let epd = api.open();
        api.connect(epd, 1, case_port()).unwrap();
        api.recv(epd, &mut [0], BLOCK).unwrap();
        let at = api.mmap(epd, (0, PAGE), RW, 0, 0x1000).unwrap();
        peek(at);
        let _lost = lose(1);
        if how == "absent" {
            peek(at);
        } else {
            std::thread::sleep(Duration::from_secs(20));
        }
    });
    let ended = child.end();
    owner.wait();
    ended
}

/// Binds the lost-node marker of `node`. Returns it, and the sockets that fill its queue.
fn marker(node: u16, is_full: bool) -> (OwnedFd, Vec<OwnedFd>) {
    let name = format!("scif/{}/{node}/lost", std::env::var("SCIF_DOMAIN").unwrap());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let socket = || {
        let flags = SocketFlags::NONBLOCK;
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    };
    let listener = socket();
    net::bind(&listener, &name).unwrap();
    // The questions of the case leave their connections in the queue.
    net::listen(&listener, if is_full { 0 } else { 64 }).unwrap();
    let callers = std::iter::repeat_with(socket).take(if is_full { 2 } else { 0 });
    let callers: Vec<_> = callers.map(|caller| (net::connect(&caller, &name), caller)).collect();
    assert_eq!(
        callers.last().map(|(connected, _)| *connected),
        is_full.then_some(Err(Errno::AGAIN))
    );
    (listener, callers.into_iter().map(|(_, caller)| caller).collect())
}

pub(crate) const CASES: &[Case] = &[
    ("every_call_reports_the_lost_node", |api| {
        server(api, |epd, cue| {
            let at = pages(1);
            api.register(epd, (at, PAGE), 0x1000, RW, 0x10).unwrap();
            cue.meet();
            let (_lost, answers) = lose(2);
            // A side that learns of the other's end first has no connection left to end.
            assert!((1..=2).contains(&answers.ended));
            assert_eq!(answers.answered.len(), 2, "both sides");
            assert!(answers.silent.is_empty());
            assert_eq!(api.poll(epd, IN | OUT, 0), IN | OUT | HUP);
            assert_eq!(api.send(epd, b"x", 0), Err(ECONNRESET));
            let mut buffer = [0; 8];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(5), "what came before");
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(ECONNRESET));
            assert_eq!(api.register(epd, (at, PAGE), 0, RW, 0), Err(ECONNRESET));
            assert_eq!(api.unregister(epd, 0x1000, PAGE), Err(ECONNRESET));
            assert_eq!(api.vreadfrom(epd, at, PAGE, 0x1000, SYNC), Err(ECONNRESET));
            assert_eq!(api.vwriteto(epd, at, PAGE, 0x1000, SYNC), Err(ECONNRESET));
            assert_eq!(api.readfrom(epd, 0x1000, 8, 0x1000, SYNC), Err(ECONNRESET));
            assert_eq!(api.writeto(epd, 0x1000, 8, 0x1000, SYNC), Err(ECONNRESET));
            assert_eq!(api.mmap(epd, (0, PAGE), 1, 0, 0x1000), Err(ECONNRESET));
            assert_eq!(api.fence_mark(epd, 1), Err(ECONNRESET));
            assert_eq!(api.fence_wait(epd, 0), Err(ECONNRESET));
            assert_eq!(api.fence_signal(epd, (0x1000, 1), (0x1000, 1), 0x31), Err(ECONNRESET));
            assert_eq!(api.bind(epd, 0), Err(EISCONN));
            assert_eq!(api.listen(epd, 1), Err(EINVAL));
            assert_eq!(api.connect(epd, 2, case_port()), Err(ENODEV), "before the state");
            let fresh = api.open();
            assert_eq!(api.connect(fresh, 2, case_port()), Err(ENODEV));
            assert_eq!(api.poll(fresh, IN, 0), ERR);
            assert_eq!(api.nodes(4).1[..2], [1, u16::MAX], "not online");
            assert_eq!(api.close(epd), Ok(0));
            cue.meet();
        })
        .client(|epd, cue| {
            cue.wait();
            assert_eq!(api.send(epd, b"early", BLOCK), Ok(5));
            cue.notify();
            assert_eq!(api.recv(epd, &mut [0; 8], BLOCK), Err(ECONNRESET), "it is woken");
            cue.wait();
            let fresh = api.open();
            assert_eq!(api.connect(fresh, 1, case_port()), Err(ENODEV), "nor from there");
            cue.notify();
        });
    }),
    ("pages_of_a_lost_node_are_unreadable", |api| {
        server(api, |epd, cue| {
            let at = filled(2, 2 * PAGE, 5);
            api.register(epd, (at, 2 * PAGE), 0x1000, RW, 0x10).unwrap();
            cue.meet();
            assert!(holds(at, 2 * PAGE, 5), "the owner keeps them");
        })
        .client(|epd, cue| {
            cue.wait();
            let at = api.mmap(epd, (0, 2 * PAGE), RW, 0, 0x1000).unwrap();
            let own = filled(1, PAGE, 9);
            assert!(holds(at, 2 * PAGE, 5));
            let (_lost, _) = lose(1);
            assert_eq!(api.munmap(at + PAGE, PAGE), Ok(0), "it is a mapping still");
            assert!(holds(own, PAGE, 9), "nothing else is gone");
            // A direct access would end the process, so the kernel reads the page.
            let fd = std::fs::File::open("/proc/self/mem").unwrap();
            let mut byte = [0];
            assert!(std::os::unix::fs::FileExt::read_at(&fd, &mut byte, at as u64).is_err());
            cue.notify();
        });
    }),
    ("access_to_a_page_of_a_lost_node_is_sigbus", |api| {
        assert_eq!(maps_and_loses(api, "absent"), -libc::SIGBUS);
    }),
    ("processes_with_mappings_are_killed_on_request", |api| {
        assert_eq!(maps_and_loses(api, "kill"), -libc::SIGKILL);
    }),
    ("connect_in_progress_ends_with_the_node", |api| {
        parent(|cue| {
            set_env("SCIF_NODE", "1");
            let (listener, _) = api.listener(case_port(), 4);
            cue.meet();
            let (lost, _) = lose(1);
            cue.meet();
            assert_eq!(api.accept(listener, 0).map(|_| ()), Err(libc::EAGAIN), "nobody is left");
            drop(lost);
            cue.notify();
            api.accept(listener, BLOCK).unwrap();
        })
        .child(|cue| {
            set_env("SCIF_NODE", "2");
            cue.wait();
            let later = api.open();
            set_nonblocking(later, true);
            assert_eq!(api.connect(later, 1, case_port()), Err(libc::EINPROGRESS));
            let waiting = {
                let api = *api;
                std::thread::spawn(move || {
                    let epd = api.open();
                    api.connect(epd, 1, case_port())
                })
            };
            std::thread::sleep(Duration::from_millis(100));
            cue.meet();
            assert_eq!(waiting.join().unwrap(), Err(ENODEV));
            assert_eq!(api.poll(later, OUT, -1), OUT);
            assert_eq!(api.connect(later, 1, case_port()), Err(ENODEV));
            cue.meet();
            set_nonblocking(later, false);
            assert!(
                api.connect(later, 1, case_port()).is_ok(),
                "it is back, and so is the endpoint"
            );
        });
    }),
    ("restored_node_accepts_connections", |api| {
        server(api, |epd, cue| {
            // A connect that is in progress when its node is lost fails.
            cue.wait();
            let (lost, _) = lose(2);
            let again = FailedNode::new(&Config::from_env(), 2);
            assert_eq!(again.map(|_| ()), Err(Failure::InUse));
            let holding = std::thread::spawn(move || lost.hold());
            let (fresh, _) = api.listener(case_port(), 1);
            restore(&Config::from_env(), 2).unwrap();
            holding.join().unwrap().unwrap();
            assert_eq!(restore(&Config::from_env(), 2), Err(Failure::NoNode));
            cue.notify();
            let (peer, new) = api.accept(fresh, BLOCK).unwrap();
            assert_eq!(peer.node, 2);
            assert_eq!(api.recv(new, &mut [0; 3], BLOCK), Ok(3));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Err(ECONNRESET), "the old stays");
        })
        .client(|epd, cue| {
            cue.meet();
            let fresh = api.open();
            api.connect(fresh, 1, case_port()).unwrap();
            assert_eq!(api.send(fresh, b"new", BLOCK), Ok(3));
            assert_eq!(api.send(epd, b"old", BLOCK), Err(ECONNRESET));
        });
    }),
    ("loss_does_not_affect_other_nodes", |api| {
        server(api, |epd, cue| {
            cue.wait();
            let (_lost, answers) = lose(7);
            assert_eq!((answers.ended, answers.answered.len()), (0, 2), "{answers:?}");
            let free = api.open();
            assert_eq!(api.connect(free, 2, case_port() + 1), Err(ECONNREFUSED));
            assert_eq!(api.connect(free, 7, case_port()), Err(ENODEV));
            // Then the message is delivered.
            assert_eq!(api.send(epd, b"ok", BLOCK), Ok(2));
            cue.wait();
        })
        .client(|epd, cue| {
            cue.notify();
            assert_eq!(api.recv(epd, &mut [0; 2], BLOCK), Ok(2));
            cue.notify();
        });
    }),
    ("marker_of_another_user_is_ignored", |api| {
        need_another_user();
        server(api, |_, cue| {
            for is_full in [false, true] {
                let (ready, theirs) = Cue::pair();
                let other = Process::start(|| {
                    assert!(become_ordinary_user());
                    // A change of the user keeps it alive anyway, for ever.
                    outlive_parent();
                    let _marker = marker(2, is_full);
                    theirs.meet();
                });
                ready.wait();
                let fresh = api.open();
                let refused = api.connect(fresh, 2, case_port() + 1);
                assert_eq!(refused, Err(ECONNREFUSED), "full {is_full}");
                assert_eq!(api.nodes(4).1[..2], [1, 2], "full {is_full}");
                ready.notify();
                other.wait();
            }
            cue.notify();
        })
        .client(|_, cue| cue.wait());
    }),
    ("silent_process_is_reported", |api| {
        let child = Process::start(|| {
            set_env("SCIF_NODE", "4");
            api.open();
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        set_env("SCIF_NODE", "3");
        api.open();
        until("the other is there", || api.nodes(4).0 == Ok(2));
        child.stop();
        let (_lost, answers) = lose_within(4, 4);
        assert_eq!(answers.silent, [child.pid()]);
        assert_eq!(answers.answered, [i32::try_from(std::process::id()).unwrap()]);
        child.kill();
        child.end();
    }),
];
