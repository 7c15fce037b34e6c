// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Traps of mainline's driver for a program that calls it: its wait queues, its single worker for
//! connects. Also the defects that the library corrects.
//!
//! Runs over that driver, and over `libscifdev.so` with the same traps (`SCIF_DEVICE_TRAPS`). Not
//! about answers to single calls (`driver_rows`).
#![expect(unsafe_code, reason = "epoll")]

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libc::{EINPROGRESS, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLOUT};
use scif_fabtests::harness::process::{Cue, Process};

use crate::api::Case;
use crate::ioctl::*;
use crate::measured::{DriverKind, driver_kind};
use crate::rig::{
    BLOCK, FIXED, HUP, IN, OUT, PAGE, RW, loopback, pages, plain_close, raw_poll, set_env,
    set_nonblocking, step_aside, within,
};

/// Capacity of a queue in bytes.
const QUEUE: usize = 4095;
/// Milliseconds after which a wake-up counts as missing.
const NEVER_MS: i32 = 300;
/// Milliseconds within which a wake-up must arrive.
const SOON_MS: i32 = 20_000;
const SOON: Duration = Duration::from_millis(SOON_MS as u64);

/// Set of epoll(7).
struct Set(i32);

impl Set {
    fn new() -> Set {
        // SAFETY: makes a descriptor.
        Set(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    }

    fn change(&self, op: i32, fd: i32, events: i32) {
        self.change_as(7, op, fd, events);
    }

    fn change_as(&self, name: u64, op: i32, fd: i32, events: i32) {
        let mut event = libc::epoll_event { events: events as u32, u64: name };
        // SAFETY: a live event.
        let rc = unsafe { libc::epoll_ctl(self.0, op, fd, &raw mut event) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Removes an endpoint and adds it again.
    fn renew(&self, fd: i32, events: i32) {
        self.change(EPOLL_CTL_DEL, fd, 0);
        self.change(EPOLL_CTL_ADD, fd, events);
    }

    /// Returns the reported events; 0 if none arrived in time.
    fn wait(&self, timeout_ms: i32) -> i32 {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = unsafe { libc::epoll_wait(self.0, &raw mut event, 1, timeout_ms) };
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        if n == 0 {
            return 0;
        }
        assert_eq!({ event.u64 }, 7, "the program's own name");
        event.events as i32
    }

    /// Returns the name of one reported descriptor.
    fn wait_for_one(&self) -> u64 {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = unsafe { libc::epoll_wait(self.0, &raw mut event, 1, SOON_MS) };
        assert_eq!(n, 1, "{}", std::io::Error::last_os_error());
        event.u64
    }

    /// Whether poll(2) finds the set readable, as a set around it does.
    fn is_readable(&self, timeout_ms: i32) -> bool {
        let mut entry = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        let mut limit = libc::timespec {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
        };
        let (entry, limit) = (&raw mut entry, &raw mut limit);
        let mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: a live entry and time; a raw system call, which no library intercepts.
        let n = unsafe { libc::syscall(libc::SYS_ppoll, entry, 1_usize, limit, mask, 0_usize) };
        n == 1
    }
}

/// Starts a connect: listener, opener, and the port.
fn under_way() -> (i32, i32, u32) {
    let (listener, port) = listening();
    let opener = open();
    bind(opener);
    set_nonblocking(opener, true);
    assert_eq!(connect(opener, port), Err(EINPROGRESS));
    (listener, opener, port)
}

fn listening() -> (i32, u32) {
    let fd = open();
    let port = bind(fd);
    listen(fd, 4).unwrap();
    (fd, port)
}

/// Starts a thread in a call that does not return for a while.
fn waits_for_worker(
    call: impl FnOnce() -> Result<(), i32> + Send + 'static,
) -> std::thread::JoinHandle<Result<(), i32>> {
    let thread = std::thread::spawn(call);
    std::thread::sleep(Duration::from_millis(NEVER_MS as u64));
    assert!(!thread.is_finished(), "did not wait");
    thread
}

fn accept(listener: i32) -> i32 {
    let acceptor = open();
    let (_, cookie) = accept_request(listener, BLOCK as u32).unwrap();
    put_accepted(acceptor, cookie).unwrap();
    acceptor
}

fn fill_queue(fd: i32) {
    assert_eq!(send(fd, &[1; QUEUE], 0), Ok(QUEUE as u32));
    assert_eq!(send(fd, &[1], 0), Ok(0), "one more");
}

/// Makes a set that has `opener` for data, and then for space too since its queue is full.
fn set_without_room(opener: i32) -> Set {
    let set = Set::new();
    set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
    fill_queue(opener);
    set.change(EPOLL_CTL_MOD, opener, EPOLLIN | EPOLLOUT);
    assert_eq!(set.wait(0), 0, "full");
    set
}

fn drain(fd: i32) {
    assert!(within(SOON, || { message(fd, RECV, &mut [0; QUEUE], 0) == Ok(QUEUE as u32) }));
}

pub(crate) const CASES: &[Case] = &[
    ("epoll_set_added_during_connect_misses_data", |_| {
        let (listener, opener, port) = under_way();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN | EPOLLOUT);
        let acceptor = accept(listener);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "connected");
        connect(opener, port).unwrap();
        set.change(EPOLL_CTL_MOD, opener, EPOLLIN);
        assert_eq!(set.wait(0), 0, "nothing there");
        send(acceptor, b"data", 0).unwrap();
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
        assert!(!set.is_readable(0), "to a set around it as well");
        set.renew(opener, EPOLLIN);
        assert_eq!(set.wait(SOON_MS), EPOLLIN, "in the right queue");
    }),
    ("epoll_set_added_for_data_misses_space", |_| {
        let (acceptor, opener, _) = connection();
        let set = set_without_room(opener);
        drain(acceptor);
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
        assert!(!set.is_readable(0), "to a set around it as well");
        set.renew(opener, EPOLLIN | EPOLLOUT);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "in the right queues");
    }),
    ("wakeup_by_one_queue_reports_all_bits", |_| {
        let (acceptor, opener, _) = connection();
        let set = set_without_room(opener);
        drain(acceptor);
        send(acceptor, b"data", 0).unwrap();
        assert_eq!(set.wait(SOON_MS), EPOLLIN | EPOLLOUT);
    }),
    ("epoll_set_in_no_queue_misses_later_events", |_| {
        let (listener, opener, port) = under_way();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN | EPOLLOUT);
        let acceptor = accept(listener);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "connected");
        connect(opener, port).unwrap();
        send(acceptor, b"data", 0).unwrap();
        assert!(within(SOON, || set.wait(0) == EPOLLIN | EPOLLOUT));
        assert_eq!(message(opener, RECV, &mut [0; 8], 0), Ok(4));
        fill_queue(opener);
        assert_eq!(set.wait(0), 0, "full, and asked");
        drain(acceptor);
        send(acceptor, b"data", 0).unwrap();
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
    }),
    ("epoll_wait_serves_ready_descriptors_in_turn", |_| {
        let set = Set::new();
        for name in 0..3 {
            let (acceptor, opener, _) = connection();
            send(acceptor, b"data", 0).unwrap();
            assert_eq!(raw_poll(opener, IN, SOON_MS), IN);
            set.change_as(name, EPOLL_CTL_ADD, opener, EPOLLIN);
        }
        let (reader, mut writer) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        set.change_as(3, EPOLL_CTL_ADD, reader.as_raw_fd(), EPOLLIN);
        let reported: BTreeSet<u64> = (0..16).map(|_| set.wait_for_one()).collect();
        assert_eq!(reported, BTreeSet::from([0, 1, 2, 3]));
    }),
    ("edge_trigger_works_in_all_queues", |_| {
        let (acceptor, opener, _) = connection();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN | EPOLLOUT | EPOLLET);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "as it is when added");
        assert_eq!(set.wait(0), 0, "once");
        for _ in 0..3 {
            send(acceptor, b"data", 0).unwrap();
            assert_eq!(set.wait(SOON_MS), EPOLLIN | EPOLLOUT);
            assert_eq!(set.wait(0), 0, "once");
            assert_eq!(message(opener, RECV, &mut [0; 8], 0), Ok(4));
            fill_queue(opener);
            drain(acceptor);
            assert_eq!(set.wait(SOON_MS), EPOLLOUT, "room");
        }
    }),
    ("end_of_the_peer_wakes_both_queues_only", |_| {
        let (acceptor, opener, _) = connection();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        plain_close(acceptor);
        assert_ne!(set.wait(SOON_MS) & libc::EPOLLHUP, 0);
        let (listener, opener, port) = under_way();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        let acceptor = accept(listener);
        assert!(within(SOON, || connect(opener, port).is_ok()));
        assert_eq!(set.wait(0), 0, "nothing there");
        plain_close(acceptor);
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
    }),
    ("bytes_of_a_failed_send_arrive", |_| {
        if driver_kind() == DriverKind::Mainline {
            step_aside("the queue of a driver's node is not filled at will");
        }
        set_env("SCIF_DEVICE_STALL", "2");
        let (acceptor, opener, _) = connection();
        assert_eq!(send(opener, b"one", 0), Ok(3));
        assert_eq!(send(opener, b"two", 0), Err(libc::ENODEV));
        assert_eq!(send(opener, b"three", 0), Ok(5));
        let mut bytes = [0; 16];
        assert_eq!(message(acceptor, RECV, &mut bytes, 0), Ok(11));
        assert_eq!(bytes[..11], *b"onetwothree");
    }),
    ("connects_are_serialised", |_| {
        let (silent, first, silent_port) = under_way();
        assert_eq!(raw_poll(silent, IN, SOON_MS), IN, "being made");
        let other = listening();
        // Made by another process: the system has one worker.
        let (mine, theirs) = Cue::pair();
        let process = Process::start(|| {
            let second = open();
            bind(second);
            set_nonblocking(second, true);
            assert_eq!(connect(second, other.1), Err(EINPROGRESS));
            theirs.notify();
            assert!(within(SOON, || connect(second, other.1).is_ok()));
        });
        mine.wait();
        assert_eq!(raw_poll(other.0, IN, NEVER_MS), 0, "not asked yet");
        accept(silent);
        assert_eq!(raw_poll(other.0, IN, SOON_MS), IN, "its turn");
        accept(other.0);
        assert!(within(SOON, || connect(first, silent_port).is_ok()));
        process.wait();
    }),
    ("result_of_a_connect_waits_for_the_next_one", |_| {
        let (listener, first, port) = under_way();
        accept(listener);
        assert_eq!(raw_poll(first, OUT, SOON_MS), OUT, "connected");
        let (silent, second, silent_port) = under_way();
        assert_eq!(raw_poll(silent, IN, SOON_MS), IN, "being made");
        let collecting = waits_for_worker(move || connect(first, port).map(drop));
        accept(silent);
        collecting.join().unwrap().unwrap();
        connect(second, silent_port).unwrap();
    }),
    ("close_during_a_connect_waits_for_the_answer", |_| {
        let (listener, opener, _) = under_way();
        assert_eq!(raw_poll(listener, IN, SOON_MS), IN, "being made");
        let closing = waits_for_worker(move || {
            plain_close(opener);
            Ok(())
        });
        let acceptor = accept(listener);
        closing.join().unwrap().unwrap();
        assert_ne!(raw_poll(acceptor, HUP, SOON_MS) & HUP, 0);
    }),
    ("library_refuses_fixed_offsets_that_the_driver_replaces", |api| {
        let (a, _b) = loopback(api);
        let at = pages(5);
        let fixed = |page: usize, n: usize, offset| {
            api.register(a, (at + page * PAGE, n * PAGE), offset, RW, FIXED)
        };
        assert_eq!(fixed(0, 1, 0x10000), Ok(0x10000));
        assert_eq!(fixed(1, 1, 0x11000), Ok(0x11000));
        assert_eq!(fixed(2, 3, 0xf000), Err(libc::EADDRINUSE));
    }),
    ("library_lists_the_node_that_the_driver_omits", |api| {
        let raw = nodes(open()).unwrap();
        assert!(raw.listed < raw.online, "the driver omits none");
        let (online, listed, own) = api.nodes(64);
        assert_eq!(online, Ok(raw.online as i32));
        assert!(listed[..raw.online as usize].contains(&own), "{listed:?}");
    }),
    ("accept_of_a_timed_out_request_is_enotrecoverable", |_| {
        if driver_kind() == DriverKind::Mainline {
            step_aside("nothing but a new start ends that on a driver");
        }
        set_env("SCIF_CONNECT_TIMEOUT_MS", "100");
        let (listener, opener, port) = under_way();
        assert_eq!(raw_poll(opener, OUT, SOON_MS), OUT, "given up");
        assert_eq!(connect(opener, port), Err(libc::ECONNREFUSED));
        let accepted = accept_request(listener, BLOCK as u32);
        assert_eq!(accepted.err(), Some(libc::ENOTRECOVERABLE));
    }),
];
