// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Remaining cases: endpoints that are connecting, exhausted limits, and the priority of two
//! errors.

use scif_fabtests::harness::process::Process;

use crate::api::Case;
use crate::placement::{case_port, server};
use crate::rig::*;
use libc::{
    EADDRINUSE, EBADF, ECONNREFUSED, ECONNRESET, EFAULT, EINVAL, EISCONN, EMFILE, ENODEV, ENOTCONN,
    ENXIO, EPERM,
};

fn window(api: &crate::api::Api, epd: i32, offset: i64, prot: i32) -> usize {
    let at = pages(1);
    api.register(epd, (at, PAGE), offset, prot, FIXED).unwrap();
    at
}

pub(crate) const CASES: &[Case] = &[
    ("all_calls_on_a_connecting_endpoint", |api| {
        let (listener, port) = api.listener(0, 2);
        let blocked = api.open();
        let connecting = {
            let api = *api;
            std::thread::spawn(move || api.connect(blocked, 0, port).map(|_| ()))
        };
        until("it waits", || api.poll(listener, IN, 0) == IN);
        let later = api.open();
        set_nonblocking(later, true);
        assert_eq!(api.connect(later, 0, port), Err(libc::EINPROGRESS));
        for (epd, connect, bits) in [(blocked, EISCONN, ERR), (later, libc::EINPROGRESS, 0)] {
            assert_eq!(api.bind(epd, 0), Err(EISCONN));
            assert_eq!(api.listen(epd, 1), Err(EISCONN));
            assert_eq!(api.connect(epd, 0, port), Err(connect));
            assert_eq!(api.accept(epd, 0).map(|_| ()), Err(EINVAL));
            assert_eq!(api.send(epd, b"x", 0), Err(ENOTCONN));
            assert_eq!(api.recv(epd, &mut [0], 0), Err(ENOTCONN));
            assert_eq!(api.register(epd, (pages(1), PAGE), 0, RW, 0), Err(ENOTCONN));
            assert_eq!(api.unregister(epd, 0, PAGE), Err(ENOTCONN));
            assert_eq!(api.writeto(epd, 0, 8, 0, 0), Err(ENOTCONN));
            assert_eq!(api.vreadfrom(epd, 0, 8, 0, 0), Err(ENOTCONN));
            assert_eq!(api.fence_mark(epd, 1), Err(ENOTCONN));
            assert_eq!(api.mmap(epd, (0, PAGE), 1, 0, 0), Err(ENOTCONN));
            assert_eq!(api.poll(epd, IN | OUT, 0), bits);
        }
        api.accept(listener, BLOCK).unwrap();
        connecting.join().unwrap().unwrap();
        api.accept(listener, BLOCK).unwrap();
        api.close(listener).unwrap();
    }),
    ("close_ends_a_connect_in_progress", |api| {
        let (listener, port) = api.listener(0, 2);
        let opener = api.open();
        set_nonblocking(opener, true);
        assert_eq!(api.connect(opener, 0, port), Err(libc::EINPROGRESS));
        api.close(opener).unwrap();
        assert_eq!(api.accept(listener, 0).map(|_| ()), Err(libc::EAGAIN));
    }),
    ("refused_endpoint_can_connect_again", |api| {
        let epd = api.open();
        let own = api.bind(epd, 0).unwrap();
        assert_eq!(api.connect(epd, 0, case_port()), Err(ECONNREFUSED));
        let (listener, _) = api.listener(case_port(), 1);
        let accepting = {
            let api = *api;
            std::thread::spawn(move || api.accept(listener, BLOCK).unwrap())
        };
        assert_eq!(api.connect(epd, 0, case_port()), Ok(own), "under the port it had");
        assert_eq!(i32::from(accepting.join().unwrap().0.port), own);
    }),
    ("accept_fails_with_emfile", |api| {
        let (listener, _) = api.listener(case_port(), 1);
        let child = Process::start(|| {
            let epd = api.open();
            let _ = api.connect(epd, 0, case_port());
        });
        until("a request", || api.poll(listener, IN, 0) == IN);
        limit_descriptors(descriptors() as u64 - 1);
        assert_eq!(api.accept(listener, BLOCK).map(|_| ()), Err(EMFILE));
        child.kill();
        child.end();
    }),
    ("signal_ends_or_restarts_an_accept", |api| {
        let (listener, _) = api.listener(case_port(), 1);
        signals(2000, false);
        assert_eq!(api.accept(listener, BLOCK).map(|_| ()), Err(libc::EINTR));
        signals(2000, true);
        let child = Process::start(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let epd = api.open();
            api.connect(epd, 0, case_port()).unwrap();
        });
        assert_eq!(api.accept(listener, BLOCK).map(|_| ()), Ok(()));
        no_signals();
        child.wait();
    }),
    ("parent_keeps_its_window_after_a_fork", |api| {
        let (a, b) = loopback(api);
        let at = filled(2, 2 * PAGE, 1);
        api.register(a, (at, 2 * PAGE), 0x10000, RW, FIXED).unwrap();
        let (ready, go) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let child = Process::start(|| {
            go.recv(&mut [0; 8]).unwrap();
        });
        // To pages that a child has too: copy-on-write would separate them from the window.
        fill(at, 2 * PAGE, 7);
        let seen = pages(2);
        assert_eq!(api.vreadfrom(b, seen, 2 * PAGE, 0x10000, SYNC), Ok(0));
        assert!(holds(seen, 2 * PAGE, 7));
        fill(seen, PAGE, 9);
        assert_eq!(api.vwriteto(b, seen, PAGE, 0x10000, SYNC), Ok(0));
        assert!(holds(at, PAGE, 9));
        ready.send(&[1]).unwrap();
        child.wait();
    }),
    ("both_sides_close_at_once", |api| {
        for _ in 0..200 {
            let (a, b) = loopback(api);
            assert_eq!(api.send(a, b"lost", BLOCK), Ok(4));
            let other = {
                let api = *api;
                std::thread::spawn(move || api.close(b))
            };
            assert_eq!(api.close(a), Ok(0));
            assert_eq!(other.join().unwrap(), Ok(0));
        }
    }),
    ("close_discards_unreceived_bytes_without_waiting", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.send(a, &[1; 4095], 0), Ok(4095));
        assert_eq!(api.send(b, b"mine", 0), Ok(4));
        assert_eq!(api.close(b), Ok(0), "with its queue full");
        assert_eq!(api.poll(a, IN | OUT, -1) & (IN | HUP), IN | HUP);
        assert_eq!(api.recv(a, &mut [0; 8], BLOCK), Ok(4));
        assert_eq!(api.recv(a, &mut [0; 8], BLOCK), Err(ECONNRESET));
    }),
    ("invalid_pointer_affects_its_own_process_only", |api| {
        server(api, |epd, cue| {
            assert_eq!(api.recv(epd, &mut [0; 4], BLOCK), Ok(4));
            assert_eq!(api.send(epd, b"back", BLOCK), Ok(4));
            cue.wait();
        })
        .client(|epd, cue| {
            let gone = pages(1);
            crate::rig::unmap(gone, PAGE);
            let wild = |answer| assert_eq!(answer, Err(EFAULT));
            let sender = Process::start(|| wild(api.send_from(epd, gone, 4)));
            assert!([0, -libc::SIGSEGV].contains(&sender.end()));
            assert_eq!(api.send(epd, b"mine", BLOCK), Ok(4), "for its relatives all goes on");
            until("four bytes", || api.poll(epd, IN, 0) == IN);
            let receiver = Process::start(|| wild(api.recv_to(epd, gone, 2)));
            assert!([0, -libc::SIGSEGV].contains(&receiver.end()));
            // A driver may have removed bytes from the queue before it detected the invalid
            // address.
            let left = api.recv(epd, &mut [0; 4], 0).unwrap();
            assert!(left == 4 || left == 2);
            cue.notify();
        });
    }),
    ("poll_checks_its_arguments", |api| {
        assert_eq!(api.poll_null(1), Err(EFAULT));
        assert_eq!(api.poll_null(0), Ok(0));
        assert_eq!(api.poll_null(u32::MAX), Err(EINVAL), "the number first");
        let readonly = pages(1);
        protect(readonly, PAGE, libc::PROT_READ);
        for (at, subject) in [(64, "nothing is there"), (readonly, "nothing can be written")] {
            assert_eq!(api.poll_at(at, 1), Err(EFAULT), "{subject}");
            assert_eq!(api.poll_at(at, 0), Ok(0), "nothing is looked at");
            assert_eq!(api.poll_at(at, u32::MAX), Err(EINVAL));
        }
        limit_descriptors(64);
        let mut entries = vec![libc::pollfd { fd: -1, events: IN, revents: 0 }; 65];
        assert_eq!(api.poll_all(&mut entries, 0), Err(EINVAL), "more than there can be");
        let (a, _b) = loopback(api);
        assert_eq!(api.poll(a, IN, 1 << 32), 0, "a timeout is cut to an int");
    }),
    ("get_node_ids_into_an_empty_array", |api| {
        api.open();
        let (n, _, own) = api.nodes(0);
        assert_eq!((n, own), (Ok(1), 0));
    }),
    ("first_error_of_a_range_is_returned", |api| {
        let (a, b) = loopback(api);
        window(api, a, 0x10000, RW);
        window(api, a, 0x11000, RW);
        window(api, b, 0x20000, 1);
        let at = pages(2);
        assert_eq!(
            api.writeto(a, 0x10000, 2 * PAGE, 0x20000, SYNC),
            Err(EPERM),
            "before the hole behind it"
        );
        assert_eq!(api.readfrom(a, 0x10000, 2 * PAGE, 0x20000, SYNC), Err(ENXIO));
        assert_eq!(
            api.readfrom(a, 0x11000, 2 * PAGE, 0x20000, SYNC),
            Err(ENXIO),
            "the local side first"
        );
        assert_eq!(api.vreadfrom(a, at, 2 * PAGE, 0x20000, SYNC), Err(ENXIO));
        assert_eq!(api.mmap(a, (0, 2 * PAGE), RW, 0, 0x20000), Err(EPERM));
        assert_eq!(api.mmap(a, (0, 2 * PAGE), 1, 0, 0x20000), Err(ENXIO));
        assert_eq!(api.mmap(a, (0, PAGE), 1, 0, -4096), Err(ENXIO));
        assert_eq!(api.mmap(9999, (0, PAGE), 1, 0, 0), Err(EBADF));
    }),
    ("fence_signal_lies_in_one_window", |api| {
        let (a, b) = loopback(api);
        window(api, a, 0x10000, RW);
        window(api, a, 0x11000, RW);
        window(api, b, 0x10000, 1);
        assert_eq!(api.fence_signal(a, (0x10ffc, 1), (0, 0), 0x11), Err(ENXIO), "half in each");
        assert_eq!(api.fence_signal(a, (0x10ff8, 1), (0, 0), 0x11), Ok(0));
        assert_eq!(api.fence_signal(a, (0, 0), (0x10000, 1), 0x21), Err(EPERM));
    }),
    ("fence_wait_by_another_thread", |api| {
        server(api, |epd, cue| {
            let at = pages(256);
            api.register(epd, (at, 256 * PAGE), 0x100_0000, RW, FIXED).unwrap();
            cue.meet();
            assert!(holds(at, 256 * PAGE, 7));
        })
        .client(|epd, cue| {
            let at = filled(256, 256 * PAGE, 7);
            api.register(epd, (at, 256 * PAGE), 0x100_0000, RW, FIXED).unwrap();
            cue.wait();
            assert_eq!(api.writeto(epd, 0x100_0000, 256 * PAGE, 0x100_0000, 0), Ok(0));
            let mark = api.fence_mark(epd, 1).unwrap();
            let api = *api;
            let waiting = std::thread::spawn(move || api.fence_wait(epd, mark));
            assert_eq!(waiting.join().unwrap(), Ok(0), "by another thread");
            cue.notify();
        });
    }),
    ("forked_child_inherits_no_mapping", |api| {
        let (a, b) = loopback(api);
        window(api, a, 0x10000, RW);
        let at = api.mmap(b, (0, PAGE), RW, 0, 0x10000).unwrap();
        assert!(is_mapped(at));
        Process::start(|| assert!(!is_mapped(at))).wait();
    }),
    ("core_dump_omits_mappings", |api| {
        let (a, b) = loopback(api);
        window(api, a, 0x10000, RW);
        let at = api.mmap(b, (0, PAGE), RW, 0, 0x10000).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_it = smaps.split_once(&format!("\n{at:x}-")).expect("it is mapped there").1;
        let flags = of_it.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" dd") && flags.contains(" dc"), "{flags}");
    }),
    ("mapping_of_any_part_of_windows", |api| {
        let (a, b) = loopback(api);
        let at = pages(4);
        api.register(a, (at, 2 * PAGE), 0x10000, RW, FIXED).unwrap();
        api.register(a, (at + 2 * PAGE, 2 * PAGE), 0x12000, RW, FIXED).unwrap();
        fill(at, 4 * PAGE, 3);
        let mapped = api.mmap(b, (0, 2 * PAGE), RW, 0, 0x11000).unwrap();
        for i in 0..2 * PAGE {
            assert_eq!(crate::rig::peek(mapped + i), crate::rig::peek(at + PAGE + i));
        }
        assert_eq!(api.munmap(mapped, PAGE), Ok(0), "a part of it");
        assert_eq!(api.unregister(a, 0x10000, 2 * PAGE), Ok(0));
        assert_eq!(
            api.register(a, (at, 2 * PAGE), 0x10000, RW, FIXED),
            Ok(0x10000),
            "nothing maps that any more"
        );
        assert_eq!(api.unregister(a, 0x12000, 2 * PAGE), Ok(0));
        assert_eq!(
            api.register(a, (at + 2 * PAGE, 2 * PAGE), 0x12000, RW, FIXED),
            Err(EADDRINUSE),
            "that it does"
        );
    }),
    ("v_calls_use_no_registered_address_space", |api| {
        let (a, b) = loopback(api);
        window(api, b, 0x10000, RW);
        let at = pages(64);
        for _ in 0..64 {
            assert_eq!(api.vwriteto(a, at, 8, 0x10000, 0), Ok(0));
        }
        assert_eq!(
            api.register(a, (at, PAGE), 0, RW, 0),
            Ok(0x7fff_ffff_ffff_e000),
            "the topmost is free"
        );
    }),
    ("connect_checks_the_node_first", |api| {
        let (a, _b) = loopback(api);
        assert_eq!(api.connect(a, 999, case_port()), Err(ENODEV));
        let closed = api.open();
        api.close(closed).unwrap();
        assert_eq!(api.connect(closed, 999, case_port()), Err(EBADF));
    }),
    ("lengths_and_flags_are_checked_before_the_state", |api| {
        let epd = api.open();
        assert_eq!(api.send(epd, b"", 0), Ok(0), "nothing to send needs no peer");
        assert_eq!(api.recv(epd, &mut [], 2), Ok(0));
        assert_eq!(api.send_null(epd, -1, 0), Err(EINVAL));
        assert_eq!(api.send(epd, b"x", 2), Err(EINVAL));
        assert_eq!(api.recv(epd, &mut [0], 2), Err(EINVAL));
        assert_eq!(api.send(epd, b"x", 0), Err(ENOTCONN));
        assert_eq!(api.register(epd, (1, PAGE), 0, RW, 0), Err(EINVAL));
        assert_eq!(api.unregister(epd, 0, 1), Err(EINVAL));
        assert_eq!(api.send_null(epd, 4, 0), Err(ENOTCONN), "the state before the buffer");
    }),
];
