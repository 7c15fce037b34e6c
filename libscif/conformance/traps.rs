// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Traps of mainline's driver for a program that calls it: its wait queues, its one worker for connects.
//!
//! Asked of that driver, and of `libscifdev.so` where it has the same traps (`SCIF_DEVICE_TRAPS`). Not about answers to
//! single calls (`driver_rows`).
#![expect(unsafe_code, reason = "epoll")]

use std::time::Duration;

use libc::{EINPROGRESS, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLOUT};

use crate::Case;
use crate::ioctl::*;
use crate::measured::{Who, who};
use crate::rig::{BLOCK, set_env, set_nonblocking, step_aside, within};

/// Bytes that a queue takes.
const QUEUE: usize = 4095;
/// Milliseconds in which a wakeup that never comes would have come.
const NEVER_MS: i32 = 300;
/// Milliseconds in which one comes.
const SOON_MS: i32 = 20_000;

/// A set of epoll(7).
struct Set(i32);

impl Set {
    fn new() -> Set {
        // SAFETY: makes a descriptor.
        Set(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    }

    fn change(&self, op: i32, fd: i32, events: i32) {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: 7,
        };
        // SAFETY: a live event.
        let rc = unsafe { libc::epoll_ctl(self.0, op, fd, &raw mut event) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Takes it out and puts it in again.
    fn renew(&self, fd: i32, events: i32) {
        self.change(EPOLL_CTL_DEL, fd, 0);
        self.change(EPOLL_CTL_ADD, fd, events);
    }

    /// What it tells of; 0: nothing in time.
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

    /// Whether poll(2) finds the set readable, as a set around it does.
    fn is_readable(&self, timeout_ms: i32) -> bool {
        let mut entry = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: a live entry; a raw system call, of which nobody in between knows.
        let n = unsafe { libc::syscall(libc::SYS_poll, &raw mut entry, 1, timeout_ms) };
        n == 1
    }
}

/// A connect under way: listener, opener, and the port.
fn under_way() -> (i32, i32, u32) {
    let (listener, opener) = (open(), open());
    let port = bind(listener);
    listen(listener, 4).unwrap();
    bind(opener);
    set_nonblocking(opener, true);
    assert_eq!(connect(opener, port), Err(EINPROGRESS));
    (listener, opener, port)
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

fn drain(fd: i32) {
    assert!(within(Duration::from_secs(20), || {
        message(fd, RECV, &mut [0; QUEUE], 0) == Ok(QUEUE as u32)
    }));
}

pub(crate) const CASES: &[Case] = &[
    ("a_set_that_has_it_while_it_connects_is_told_of_no_data", |_| {
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
    ("a_set_that_has_it_for_data_is_told_of_no_room", |_| {
        let (acceptor, opener, _) = connection();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        fill_queue(opener);
        set.change(EPOLL_CTL_MOD, opener, EPOLLIN | EPOLLOUT);
        assert_eq!(set.wait(0), 0, "full");
        drain(acceptor);
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
        assert!(!set.is_readable(0), "to a set around it as well");
        set.renew(opener, EPOLLIN | EPOLLOUT);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "in the right queues");
    }),
    ("a_wakeup_by_one_queue_shows_everything", |_| {
        let (acceptor, opener, _) = connection();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        fill_queue(opener);
        set.change(EPOLL_CTL_MOD, opener, EPOLLIN | EPOLLOUT);
        assert_eq!(set.wait(0), 0, "full");
        drain(acceptor);
        send(acceptor, b"data", 0).unwrap();
        assert_eq!(set.wait(SOON_MS), EPOLLIN | EPOLLOUT);
    }),
    ("once_not_ready_a_set_in_no_queue_hears_no_more", |_| {
        let (listener, opener, port) = under_way();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN | EPOLLOUT);
        let acceptor = accept(listener);
        assert_eq!(set.wait(SOON_MS), EPOLLOUT, "connected");
        connect(opener, port).unwrap();
        send(acceptor, b"data", 0).unwrap();
        assert!(within(Duration::from_secs(20), || set.wait(0) == EPOLLIN | EPOLLOUT));
        assert_eq!(message(opener, RECV, &mut [0; 8], 0), Ok(4));
        fill_queue(opener);
        assert_eq!(set.wait(0), 0, "full, and asked");
        drain(acceptor);
        send(acceptor, b"data", 0).unwrap();
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
    }),
    ("edges_are_told_where_every_queue_was_there", |_| {
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
    ("a_peers_end_wakes_both_queues_and_no_other", |_| {
        let (acceptor, opener, _) = connection();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        crate::rig::plain_close(acceptor);
        assert_ne!(set.wait(SOON_MS) & libc::EPOLLHUP, 0);
        let (listener, opener, port) = under_way();
        let set = Set::new();
        set.change(EPOLL_CTL_ADD, opener, EPOLLIN);
        let acceptor = accept(listener);
        assert!(within(Duration::from_secs(20), || connect(opener, port).is_ok()));
        assert_eq!(set.wait(0), 0, "nothing there");
        crate::rig::plain_close(acceptor);
        assert_eq!(set.wait(NEVER_MS), 0, "deaf");
    }),
    ("bytes_arrive_though_their_send_failed", |_| {
        if who() == Who::Mainline {
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
];
