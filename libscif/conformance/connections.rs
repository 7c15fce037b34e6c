// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Opening, binding, listening, connecting, accepting, nodes: states, ports and errors.

use std::time::Duration;

use scif_fabtests::harness::process::Process;
use scif_fabtests::harness::sandbox::become_ordinary_user;

use crate::api::{Api, Case};
use crate::placement::{case_port, node, server};
use crate::rig::*;
use libc::{
    EACCES, EAGAIN, EBADF, ECONNREFUSED, EFAULT, EINPROGRESS, EINVAL, EISCONN, ENODEV, ENOTCONN,
    ENOTTY, EOPNOTSUPP,
};

pub(crate) const CASES: &[Case] = &[
    ("open_of_a_required_device_returns_its_errno", |api| {
        set_env("SCIF_TRANSPORT", "kernel");
        for (device, errno) in [("/nowhere/scif", libc::ENOENT), ("/dev", libc::EISDIR)] {
            set_env("SCIF_DEVICE", device);
            assert_eq!(api.try_open(), Err(errno), "{device}");
            assert_eq!(api.nodes(4).0, Err(errno), "{device}");
        }
        let path = format!("/tmp/scif-conformance-{}", std::process::id());
        std::fs::write(&path, "").unwrap();
        let forbidden = std::os::unix::fs::PermissionsExt::from_mode(0o000);
        std::fs::set_permissions(&path, forbidden).unwrap();
        set_env("SCIF_DEVICE", &path);
        let absent = Process::start(|| {
            if become_ordinary_user() {
                assert_eq!(api.try_open(), Err(EACCES));
            }
        });
        let ended = absent.end();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ended, 0);
    }),
    ("open_is_close_on_exec_and_accept_is_not", |api| {
        let (acceptor, opener) = loopback(api);
        assert!(is_cloexec(opener) && !is_cloexec(acceptor));
        assert_eq!(api.fd(opener), opener);
    }),
    ("open_fails_with_emfile", |api| {
        limit_descriptors(512);
        let mut all = Vec::new();
        let failed = loop {
            match api.try_open() {
                Ok(epd) if all.len() < 512 => all.push(epd),
                other => break other,
            }
        };
        assert_eq!(failed, Err(libc::EMFILE));
        api.close(all.pop().unwrap()).unwrap();
        api.try_open().unwrap();
    }),
    ("calls_on_other_descriptors_fail_with_ebadf_or_enotty", |api| {
        let epd = api.open();
        api.close(epd).unwrap();
        assert_eq!(api.bind(epd, 0), Err(EBADF));
        assert_eq!(api.close(epd), Err(EBADF));
        assert_eq!(api.send(-1, b"x", 0), Err(EBADF));
        let other = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&other);
        assert_eq!(api.bind(fd, 0), Err(ENOTTY));
        assert_eq!(api.recv(fd, &mut [0], 0), Err(ENOTTY));
        assert_eq!(api.register(fd, (0, 4096), 0, 3, 0), Err(ENOTTY));
    }),
    ("bind_returns_the_requested_or_a_dynamic_port", |api| {
        let (a, b) = (api.open(), api.open());
        assert_eq!(api.bind(a, 3000), Ok(3000));
        assert!(api.bind(b, 0).unwrap() > 1088);
        assert_eq!(api.bind(a, 3001), Err(EINVAL), "bound already");
        let c = api.open();
        assert_eq!(api.bind(c, 3000), Err(EINVAL), "in use");
        api.close(a).unwrap();
        assert_eq!(api.bind(c, 3000), Ok(3000), "free again");
    }),
    ("reserved_ports_require_a_capability", |api| {
        let (a, b) = (api.open(), api.open());
        if become_ordinary_user() {
            assert_eq!(api.bind(a, 1023), Err(EACCES));
            assert_eq!(api.bind(b, 1024), Ok(1024));
            assert_eq!(api.bind(b, 1), Err(EACCES), "before the state");
        } else {
            assert_eq!(api.bind(a, 1), Err(EACCES));
        }
    }),
    ("all_calls_on_an_unbound_endpoint", |api| {
        let epd = api.open();
        assert_eq!(api.listen(epd, 1), Err(EINVAL));
        assert_eq!(api.accept(epd, 0), Err(EINVAL));
        unconnected(api, epd);
        assert_eq!(api.poll(epd, IN | OUT, 0), ERR);
    }),
    ("all_calls_on_a_bound_endpoint", |api| {
        let epd = api.open();
        api.bind(epd, 0).unwrap();
        assert_eq!(api.bind(epd, 0), Err(EINVAL));
        assert_eq!(api.accept(epd, 0), Err(EINVAL));
        unconnected(api, epd);
        assert_eq!(api.poll(epd, IN | OUT, 0), ERR);
        assert_eq!(api.listen(epd, 1), Ok(0));
    }),
    ("all_calls_on_a_listening_endpoint", |api| {
        let (epd, _) = api.listener(0, 1);
        assert_eq!(api.bind(epd, 0), Err(EISCONN));
        assert_eq!(api.listen(epd, 1), Err(EISCONN));
        assert_eq!(api.connect(epd, 0, 7), Err(EOPNOTSUPP));
        assert_eq!(api.accept(epd, 0), Err(EAGAIN));
        assert_eq!(api.accept(epd, 2), Err(EINVAL));
        assert_eq!(api.accept_null(epd), Err(EINVAL));
        unconnected(api, epd);
        assert_eq!(api.poll(epd, IN | OUT, 0), 0);
    }),
    ("all_calls_on_a_connected_endpoint", |api| {
        let (acceptor, opener) = loopback(api);
        for epd in [acceptor, opener] {
            assert_eq!(api.bind(epd, 0), Err(EISCONN));
            assert_eq!(api.listen(epd, 1), Err(EISCONN));
            assert_eq!(api.connect(epd, 0, 7), Err(EISCONN));
            assert_eq!(api.accept(epd, 0), Err(EINVAL));
            assert_eq!(api.poll(epd, IN | OUT, 0), OUT);
        }
    }),
    ("all_calls_on_a_disconnected_endpoint", |api| {
        let (acceptor, opener) = loopback(api);
        api.close(acceptor).unwrap();
        until("disconnected", || api.poll(opener, 0, 0) != 0);
        assert_eq!(api.bind(opener, 0), Err(EISCONN));
        assert_eq!(api.listen(opener, 1), Err(EINVAL));
        assert_eq!(api.connect(opener, 0, 7), Err(EINVAL));
        assert_eq!(api.accept(opener, 0), Err(EINVAL));
        let reset = Err(libc::ECONNRESET);
        assert_eq!(api.send(opener, b"x", 0), reset);
        assert_eq!(api.recv(opener, &mut [0], 0), reset);
        assert_eq!(api.register(opener, (4096, 4096), 0, 3, 0).map(|_| 0), reset);
        assert_eq!(api.unregister(opener, 0, 4096), reset);
        assert_eq!(api.writeto(opener, 0, 8, 0, 0), reset);
        assert_eq!(api.vreadfrom(opener, 4096, 8, 0, 0), reset);
        assert_eq!(api.fence_mark(opener, 1), reset);
        assert_eq!(api.fence_wait(opener, 0), reset);
        assert_eq!(api.fence_signal(opener, (0, 0), (0, 0), 0x11), reset);
        assert_eq!(api.mmap(opener, (0, 4096), 3, 0, 0).map(|_| 0), reset);
    }),
    ("connect_fails_without_node_or_listener", |api| {
        let epd = api.open();
        assert_eq!(api.connect(epd, 777, case_port()), Err(ENODEV), "no such node");
        assert_eq!(api.connect(epd, 0, case_port()), Err(ECONNREFUSED), "no listener");
        assert_eq!(api.bind(epd, 0), Err(EINVAL), "bound by the attempt, and still");
        assert_eq!(api.connect(epd, 0, 0), Err(ECONNREFUSED), "nobody is at port 0");
        assert_eq!(api.connect_null(epd), Err(EINVAL));
        let bound = api.open();
        api.bind(bound, case_port()).unwrap();
        assert_eq!(api.connect(epd, 0, case_port()), Err(ECONNREFUSED), "bound and not listening");
        api.listen(bound, 0).unwrap();
        assert_eq!(api.connect(epd, 0, case_port()), Err(ECONNREFUSED), "no backlog, no room");
        assert_eq!(api.connect(bound, 777, 1), Err(ENODEV), "the node before the state");
    }),
    ("connect_is_refused_until_the_peer_listens", |api| {
        parent(|cue| {
            set_env("SCIF_NODE", "2");
            let epd = api.open();
            for _ in 0..3 {
                assert_eq!(api.connect(epd, node(1), case_port()), Err(ECONNREFUSED), "nobody yet");
            }
            let port = api.bind(epd, 0);
            assert_eq!(port, Err(EINVAL), "bound by the first attempt");
            cue.notify();
            let mut connected = Err(ECONNREFUSED);
            until("the other has started", || {
                connected = api.connect(epd, node(1), case_port());
                connected != Err(ECONNREFUSED)
            });
            assert!(connected.unwrap() > 1088);
            assert_eq!(api.send(epd, b"late", BLOCK), Ok(4));
            cue.wait();
        })
        .child(|cue| {
            cue.wait();
            set_env("SCIF_NODE", "1");
            let listener = api.open();
            api.bind(listener, case_port()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            api.listen(listener, 1).unwrap();
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            assert_eq!(api.recv(epd, &mut [0; 4], BLOCK), Ok(4));
            cue.notify();
        });
    }),
    ("connect_returns_the_port_bound_before", |api| {
        server(api, |epd, cue| {
            cue.wait();
            api.close(epd).unwrap();
        })
        .client(|_, cue| {
            let epd = api.open();
            assert_eq!(api.bind(epd, 4321), Ok(4321));
            assert_eq!(api.connect(epd, 999, 1), Err(ENODEV));
            cue.notify();
        });
    }),
    ("accept_returns_the_address_of_the_peer", |api| {
        let listener = api.open();
        let port = api.bind(listener, 0).unwrap();
        api.listen(listener, 1).unwrap();
        let opener = api.open();
        api.bind(opener, 5555).unwrap();
        set_nonblocking(opener, true);
        assert_eq!(api.connect(opener, 0, port.try_into().unwrap()), Err(EINPROGRESS));
        let (peer, epd) = api.accept(listener, BLOCK).unwrap();
        assert_eq!((peer.node, peer.port), (0, 5555));
        assert_eq!(api.send(epd, b"hello", BLOCK), Ok(5));
    }),
    ("result_of_a_nonblocking_connect_is_returned_once", |api| {
        let (listener, port) = api.listener(0, 1);
        let opener = api.open();
        let own = api.bind(opener, 0).unwrap();
        set_nonblocking(opener, true);
        assert_eq!(api.connect(opener, 0, port), Err(EINPROGRESS));
        assert_eq!(api.poll(opener, IN | OUT, 0), 0);
        assert_eq!(api.connect(opener, 0, port), Err(EINPROGRESS));
        assert_eq!(api.poll(listener, IN, -1), IN);
        api.accept(listener, 0).unwrap();
        assert_eq!(api.poll(opener, OUT, -1), OUT);
        assert_eq!(api.connect(opener, 0, port), Ok(own));
        assert_eq!(api.connect(opener, 0, port), Err(EISCONN));
        assert_eq!(api.poll(opener, IN | OUT, 0), OUT);
    }),
    ("refusal_of_a_nonblocking_connect_is_returned_once", |api| {
        let (listener, port) = api.listener(0, 1);
        let opener = api.open();
        set_nonblocking(opener, true);
        assert_eq!(api.connect(opener, 0, port), Err(EINPROGRESS));
        api.close(listener).unwrap();
        assert_eq!(api.poll(opener, OUT, -1), OUT);
        assert_eq!(api.connect(opener, 0, port), Err(ECONNREFUSED));
        assert_eq!(api.bind(opener, 0), Err(EINVAL), "bound, and may try again");
    }),
    ("backlog_limits_waiting_requests", |api| {
        for backlog in [1, 3] {
            let (listener, port) = api.listener(0, backlog);
            let opener = || {
                let epd = api.open();
                set_nonblocking(epd, true);
                api.connect(epd, 0, port)
            };
            for _ in 0..backlog {
                assert_eq!(opener(), Err(EINPROGRESS));
            }
            assert_eq!(opener(), Err(ECONNREFUSED), "no room for one more than {backlog}");
            api.accept(listener, 0).unwrap();
            assert_eq!(opener(), Err(EINPROGRESS), "room again");
        }
    }),
    ("connect_times_out_without_accept", |api| {
        set_env("SCIF_CONNECT_TIMEOUT_MS", "50");
        let (listener, port) = api.listener(0, 1);
        let opener = api.open();
        assert_eq!(api.connect(opener, 0, port), Err(ECONNREFUSED));
        assert_eq!(api.bind(opener, 0), Err(EINVAL), "bound again");
        assert_eq!(api.accept(listener, 0), Err(EAGAIN), "who gave up is skipped");
        assert_eq!(api.poll(listener, IN, 0), 0);
    }),
    ("nonblocking_connect_times_out_without_accept", |api| {
        set_env("SCIF_CONNECT_TIMEOUT_MS", "400");
        let (listener, port) = api.listener(0, 2);
        let opener = api.open();
        let own = api.bind(opener, 0).unwrap();
        set_nonblocking(opener, true);
        for round in 0..2 {
            let begin = std::time::Instant::now();
            assert_eq!(api.connect(opener, 0, port), Err(EINPROGRESS), "round {round}");
            assert_eq!(raw_poll(opener, OUT, 20_000), OUT, "its descriptor says so");
            assert!(begin.elapsed() >= std::time::Duration::from_millis(400));
            assert_eq!(api.poll(opener, IN | OUT, 0), OUT);
            assert_eq!(api.connect(opener, 0, port), Err(ECONNREFUSED));
            assert_eq!(api.poll(opener, IN | OUT, 0), ERR, "collected once");
            assert_eq!(api.accept(listener, 0), Err(EAGAIN), "who gave up is skipped");
        }
        assert_eq!(api.connect(opener, 0, port), Err(EINPROGRESS));
        let (_, accepted) = api.accept(listener, BLOCK).unwrap();
        assert_eq!(api.poll(opener, OUT, -1), OUT);
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(api.connect(opener, 0, port), Ok(own), "what was accepted stays");
        assert_eq!(api.send(opener, b"x", 0), Ok(1));
        assert_eq!(api.recv(accepted, &mut [0], BLOCK), Ok(1));
    }),
    ("connects_time_out_in_any_order", |api| {
        set_env("SCIF_CONNECT_TIMEOUT_MS", "2000");
        let (listener, port) = api.listener(0, 64);
        let openers: Vec<i32> = (0..32)
            .map(|_| {
                let epd = api.open();
                set_nonblocking(epd, true);
                assert_eq!(api.connect(epd, 0, port), Err(EINPROGRESS));
                std::thread::sleep(std::time::Duration::from_millis(1));
                epd
            })
            .collect();
        // Requests that were closed or accepted do not wait any more.
        let (kept, closed) = (openers[0], openers[5]);
        api.accept(listener, 0).unwrap();
        api.close(closed).unwrap();
        for &opener in openers.iter().filter(|&&epd| epd != closed) {
            assert_eq!(api.poll(opener, OUT, 20_000), OUT);
            let answer = api.connect(opener, 0, port).map(|_| ());
            let expected = if opener == kept { Ok(()) } else { Err(ECONNREFUSED) };
            assert_eq!(answer, expected);
        }
        assert_eq!(api.accept(listener, 0), Err(EAGAIN));
    }),
    ("accept_skips_requests_of_dead_callers", |api| {
        parent(|cue| {
            let (listener, _) = api.listener(case_port(), 4);
            let child = Process::start(|| {
                let epd = api.open();
                set_nonblocking(epd, true);
                assert_eq!(api.connect(epd, 0, case_port()), Err(EINPROGRESS));
            });
            child.wait();
            assert_eq!(api.accept(listener, 0), Err(EAGAIN));
            cue.notify();
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            assert_eq!(api.send(epd, b"ok", BLOCK), Ok(2));
            cue.wait();
        })
        .child(|cue| {
            cue.wait();
            let epd = api.open();
            api.connect(epd, 0, case_port()).unwrap();
            assert_eq!(api.recv(epd, &mut [0; 2], BLOCK), Ok(2));
            cue.notify();
        });
    }),
    ("close_of_a_listener_refuses_waiting_requests_only", |api| {
        let (listener, port) = api.listener(0, 4);
        let (first, second) = (api.open(), api.open());
        for epd in [first, second] {
            set_nonblocking(epd, true);
            assert_eq!(api.connect(epd, 0, port), Err(EINPROGRESS));
        }
        let (_, accepted) = api.accept(listener, 0).unwrap();
        api.close(listener).unwrap();
        assert_eq!(api.poll(second, OUT, -1), OUT);
        assert_eq!(api.connect(second, 0, port), Err(ECONNREFUSED));
        assert_eq!(api.poll(first, OUT, -1), OUT);
        api.connect(first, 0, port).unwrap();
        assert_eq!(api.send(first, b"abc", BLOCK), Ok(3));
        assert_eq!(api.recv(accepted, &mut [0; 3], BLOCK), Ok(3));
        let again = api.open();
        assert_eq!(api.bind(again, port), Ok(port.into()), "the port is free with its listener");
    }),
    ("blocked_accept_ends_at_the_close_of_its_listener", |api| {
        let (listener, _) = api.listener(0, 4);
        let waiting = {
            let api = *api;
            waits_in(move || api.accept(listener, BLOCK))
        };
        api.close(listener).unwrap();
        assert_eq!(waiting.join().unwrap(), Err(libc::EINTR));
    }),
    ("accept_ignores_o_nonblock", |api| {
        let (listener, port) = api.listener(0, 4);
        set_nonblocking(listener, true);
        let waiting = {
            let api = *api;
            waits_in(move || api.accept(listener, BLOCK).map(|_| ()))
        };
        api.connect(api.open(), 0, port).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }),
    ("accepted_endpoints_share_the_port_of_the_listener", |api| {
        let (listener, port) = api.listener(0, 32);
        let openers: Vec<i32> = (0..20)
            .map(|_| {
                let epd = api.open();
                set_nonblocking(epd, true);
                assert_eq!(api.connect(epd, 0, port), Err(EINPROGRESS));
                epd
            })
            .collect();
        for opener in openers {
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            assert_eq!(api.poll(opener, OUT, -1), OUT);
            api.connect(opener, 0, port).unwrap();
            assert_eq!(api.send(opener, &[7], BLOCK), Ok(1));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        }
    }),
    ("nodes_with_a_process_are_listed", |api| {
        server(api, |_, cue| {
            let (n, nodes, own) = api.nodes(8);
            assert_eq!((n, &nodes[..2], own), (Ok(2), &[1, 2][..], 1));
            let (n, nodes, _) = api.nodes(1);
            assert_eq!(
                (n, &nodes[..]),
                (Ok(2), &[1][..]),
                "as many as fit, and how many there are"
            );
            assert_eq!(api.nodes_null(), Err(EFAULT));
            cue.notify();
            until("the other node is gone", || api.nodes(8).0 == Ok(1));
            let epd = api.open();
            assert_eq!(api.connect(epd, 2, case_port()), Err(ECONNREFUSED), "it may come back");
        })
        .client(|_, cue| {
            assert_eq!(api.nodes(8).2, 2);
            cue.wait();
        });
    }),
    ("domains_are_separate", |api| {
        parent(|cue| {
            api.listener(case_port(), 1);
            cue.meet();
        })
        .child(|cue| {
            cue.wait();
            set_env("SCIF_DOMAIN", &format!("other-{}", std::process::id()));
            let epd = api.open();
            assert_eq!(api.connect(epd, 0, case_port()), Err(ECONNREFUSED));
            assert_eq!(api.bind(epd, 0), Err(EINVAL));
            cue.notify();
        });
    }),
    ("duplicated_descriptor_is_the_same_endpoint", |api| {
        let (acceptor, opener) = loopback(api);
        let copy = dup(opener);
        assert_eq!(api.send(copy, b"ab", BLOCK), Ok(2));
        api.close(opener).unwrap();
        assert_eq!(
            api.send(copy, b"c", BLOCK),
            Ok(1),
            "the endpoint lives with its last descriptor"
        );
        let buffer = api.recv_array::<3>(acceptor);
        assert_eq!(&buffer, b"abc");
        plain_close(copy);
        until("the peer sees the end", || api.send(acceptor, b"x", 0) == Err(libc::ECONNRESET));
    }),
    ("reused_descriptor_number_is_another_endpoint", |api| {
        let (_acceptor, opener) = loopback(api);
        plain_close(opener);
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        dup_to(std::os::fd::AsRawFd::as_raw_fd(&reader), opener);
        assert_eq!(api.recv(opener, &mut [0], 0), Err(ENOTTY));
        assert_eq!(api.send(opener, &[0; 8000], 0), Err(ENOTTY));
        plain_close(opener);
        let again = dup(api.open());
        assert_eq!(api.send(again, b"x", 0), Err(ENOTCONN));
    }),
];

/// Checks the errors of an endpoint without a connection.
fn unconnected(api: &Api, epd: i32) {
    let not = Err(ENOTCONN);
    assert_eq!(api.send(epd, b"abcd", 0), not);
    assert_eq!(api.recv(epd, &mut [0; 4], BLOCK), not);
    assert_eq!(api.send(epd, b"", 0), Ok(0));
    assert_eq!(api.recv(epd, &mut [], 2), Ok(0), "no length, no look");
    assert_eq!(api.send_null(epd, -1, 0), Err(EINVAL));
    assert_eq!(api.send(epd, b"x", 2), Err(EINVAL));
    assert_eq!(api.register(epd, (4096, 4096), 0, 3, 0).map(|_| 0), not);
    assert_eq!(api.register(epd, (4096, 4096), 0, 3, 1).map(|_| 0), Err(EINVAL), "arguments first");
    assert_eq!(api.unregister(epd, 0, 4096), not);
    assert_eq!(api.readfrom(epd, 0, 8, 0, 0), not);
    assert_eq!(api.writeto(epd, 0, 8, 0, 0), not);
    assert_eq!(api.vreadfrom(epd, 4096, 8, 0, 0), not);
    assert_eq!(api.vwriteto(epd, 4096, 8, 0, 0), not);
    assert_eq!(api.fence_mark(epd, 1), not);
    assert_eq!(api.fence_mark(epd, 3), not, "the state before the flags");
    assert_eq!(api.fence_wait(epd, 0), not);
    assert_eq!(api.fence_signal(epd, (0, 0), (0, 0), 0x11), not);
    assert_eq!(api.mmap(epd, (0, 4096), 3, 0, 0).map(|_| 0), not);
}
