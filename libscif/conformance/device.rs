// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of the device, called by a program without a library.
//!
//! Not about the measured answers of a driver (`driver_rows`), correct or not. Runs with
//! `SCIF_TRANSPORT=kernel` only, over a driver or over `libscifdev.so`.
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::CString;

use scif_fabtests::harness::process::Process;

use crate::api::{Case, called};
use crate::ioctl::*;
use crate::rig::{
    BLOCK, ERR, FIXED, HUP, IN, OUT, PAGE, dup, fill, holds, is_cloexec, pages, peek64,
    plain_close, poke64, protect, raw_poll, set_nonblocking, unmap, until,
};
use libc::{EFAULT, EINPROGRESS, EINVAL, ENOENT, ENOTCONN};

fn selected(fd: i32) -> (bool, bool) {
    // SAFETY: all zeroes is an empty set.
    let mut read: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: a live set, and a descriptor that fits.
    unsafe { libc::FD_SET(fd, &raw mut read) };
    let mut write = read;
    let mut zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: live sets and a time.
    let select =
        || unsafe { libc::select(fd + 1, &raw mut read, &raw mut write, none, &raw mut zero) };
    let n = called(&-1, select).unwrap();
    // SAFETY: a live set.
    let r = unsafe { libc::FD_ISSET(fd, &raw const read) };
    // SAFETY: a live set.
    let w = unsafe { libc::FD_ISSET(fd, &raw const write) };
    assert_eq!(n, i32::from(r) + i32::from(w));
    (r, w)
}

fn epoll_bits(fd: i32) -> u32 {
    // SAFETY: makes a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLOUT) as u32, u64: 0 };
    // SAFETY: live descriptors and an event.
    let rc = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(rc, 0);
    event.events = 0;
    // SAFETY: room for one event.
    unsafe { libc::epoll_wait(epoll, &raw mut event, 1, 0) };
    plain_close(epoll);
    event.events
}

fn ppoll_bits(fd: i32, events: i16, timeout_ms: i64) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: timeout_ms * 1_000_000 };
    // SAFETY: one live entry, a live time, no mask.
    let poll = || unsafe { libc::ppoll(&raw mut entry, 1, &raw const time, std::ptr::null()) };
    called(&-1, poll).unwrap();
    entry.revents
}

/// Makes a connection with an accepted endpoint that has no number yet. Returns listener, opener
/// and cookie.
fn unclaimed() -> (i32, i32, u64) {
    let (listener, opener) = (open(), open());
    let port = bind(listener);
    listen(listener, 4).unwrap();
    bind(opener);
    set_nonblocking(opener, true);
    assert_eq!(connect(opener, port), Err(EINPROGRESS));
    let (_, cookie) = accept_request(listener, BLOCK as u32).unwrap();
    assert_eq!(raw_poll(opener, OUT, -1), OUT);
    connect(opener, port).unwrap();
    (listener, opener, cookie)
}

pub(crate) const CASES: &[Case] = &[
    ("version_identifies_the_driver_generation", |_| {
        let fd = open();
        let version = if is_old() { Ok(1) } else { Err(EINVAL) };
        assert_eq!(raw(fd, GET_VERSION, 0), version);
        assert_eq!(raw(fd, 0xc008_7363, 0), Err(EINVAL), "an unknown one");
        assert_eq!(raw(fd, 0x5401, 0), Err(EINVAL), "of terminals");
    }),
    ("ioctls_of_the_other_generation_are_unknown", |_| {
        let fd = open();
        for (new, old) in NUMBERS.into_iter().filter(|(new, old)| new != old) {
            let mut words: Words = [0; 5];
            let other = if is_old() { new } else { old };
            assert_eq!(
                raw(fd, other, words.as_mut_ptr().expose_provenance()),
                Err(EINVAL),
                "{other:#x}"
            );
        }
    }),
    ("bind_uses_four_bytes", |_| {
        let fd = open();
        let words = call_with_words(fd, BIND, [0xaaaa_aaaa_0000_0000, 7, 0, 0, 0]).unwrap();
        assert!((1089..65536).contains(&low(words[0])));
        assert_eq!(words[0] >> 32, 0xaaaa_aaaa);
        assert_eq!(call_with_words(fd, BIND, [0; 5]), Err(EINVAL), "bound already");
    }),
    ("unmapped_arguments_are_efault", |_| {
        let (a, _b, _) = connection();
        let gone = pages(1);
        protect(gone, PAGE, libc::PROT_NONE);
        for call in 1..NUMBERS.len() {
            if ![LISTEN, FENCE_WAIT].contains(&call) {
                assert_eq!(call_with_number(a, call, 0), Err(EFAULT), "{call}");
                assert_eq!(call_with_number(a, call, gone), Err(EFAULT), "{call}");
            }
        }
        let readonly = pages(1);
        protect(readonly, PAGE, libc::PROT_READ);
        assert_eq!(call_with_number(open(), BIND, readonly), Err(EFAULT));
        assert_eq!(call_with_words(a, SEND, [gone as u64, two32(4, 0), 0, 0, 0]), Err(EFAULT));
        assert_eq!(call_with_words(a, FENCE_MARK, [1, gone as u64, 0, 0, 0]), Err(EFAULT));
        assert_eq!(raw_poll(_b, IN, 0), 0, "nothing was sent");
        send(_b, b"data", 0).unwrap();
        until("it has come", || raw_poll(a, IN, 0) == IN);
        assert_eq!(call_with_words(a, RECV, [readonly as u64, two32(4, 0), 0, 0, 0]), Err(EFAULT));
    }),
    ("unknown_cookie_is_enoent", |_| {
        let fd = open();
        for cookie in [0, 3, u64::MAX, 0x5c1f_0000_0000 | 3] {
            assert_eq!(put_accepted(fd, cookie), Err(ENOENT));
        }
    }),
    ("messages_by_ioctls", |_| {
        let (a, b, _) = connection();
        assert_eq!(send(a, b"hello", 0), Ok(5));
        let mut buffer = [0; 8];
        assert_eq!(message(b, RECV, &mut buffer[..5], BLOCK as u32), Ok(5));
        assert_eq!(&buffer[..5], b"hello");
        assert_eq!(message(b, RECV, &mut buffer, 0), Ok(0));
        assert_eq!(message(b, RECV, &mut [], 2), Ok(0), "no length, no look");
        assert_eq!(message(b, RECV, &mut buffer, 2), Err(EINVAL));
        assert_eq!(call_with_words(b, RECV, [0, two32(u32::MAX, 0), 0, 0, 0]), Err(EINVAL));
        let mut words: Words = [0, two32(4, 2), 0x1234, 0, 0];
        assert_eq!(raw(b, number(RECV), words.as_mut_ptr().expose_provenance()), Err(EINVAL));
        assert_eq!(words[2], 0x1234, "untouched after an error");
        assert_eq!(send(open(), b"x", 0), Err(ENOTCONN));
    }),
    ("windows_by_ioctls", |_| {
        let (a, b, _) = connection();
        let (near, far) = (pages(2), pages(2));
        fill(near, 2 * PAGE, 3);
        assert_eq!(register(a, near, 2 * PAGE, 0x10000, FIXED), Ok(0x10000));
        let at = register(b, far, 2 * PAGE, 0, 0).unwrap();
        assert!(at > 0x10000 && at % PAGE as i64 == 0);
        assert_eq!(copy(a, WRITETO, 0x10000, 2 * PAGE, at as u64, 4), Ok(()));
        assert!(holds(far, 2 * PAGE, 3));
        let memory = pages(2);
        assert_eq!(copy(a, VREADFROM, memory as u64, 2 * PAGE, at as u64, 4), Ok(()));
        assert!(holds(memory, 2 * PAGE, 3));
        fill(memory, 2 * PAGE, 4);
        assert_eq!(copy(a, VWRITETO, memory as u64, 2 * PAGE, at as u64, 4), Ok(()));
        assert!(holds(far, 2 * PAGE, 4));
        assert_eq!(copy(a, READFROM, 0x10000, 2 * PAGE, at as u64, 4), Ok(()));
        assert!(holds(near, 2 * PAGE, 4));
        let mapped = map(a, 2 * PAGE, at).unwrap();
        assert!(holds(mapped, 2 * PAGE, 4));
        poke64(mapped + PAGE, 77);
        assert_eq!(peek64(far + PAGE), 77);
        unmap(mapped, 2 * PAGE);
        assert_eq!(unregister(a, 0x10000, 2 * PAGE), Ok(()));
    }),
    ("fences_by_ioctls", |_| {
        let (a, b, _) = connection();
        let (near, far) = (pages(1), pages(1));
        register(a, near, PAGE, 0x1000, FIXED).unwrap();
        register(b, far, PAGE, 0x2000, FIXED).unwrap();
        for side in [1, 2] {
            assert_eq!(wait(a, mark(a, side).unwrap()), Ok(0));
        }
        assert_eq!(call_with_words(a, FENCE_MARK, [3, 0, 0, 0, 0]), Err(EINVAL), "the flags first");
        signal(a, (0x1000, 5), (0x2008, 6), 0x31).unwrap();
        until("both", || (peek64(near), peek64(far + 8)) == (5, 6));
    }),
    ("nodes_by_ioctls", |_| {
        let fd = open();
        let nodes = nodes(fd).unwrap();
        assert!(nodes.online >= 1 && nodes.own != u16::MAX);
    }),
    ("poll_ppoll_and_select_have_the_exact_bits", |_| {
        let fd = open();
        for bound in [false, true] {
            if bound {
                bind(fd);
            }
            assert_eq!(raw_poll(fd, IN | OUT, 0), ERR);
            assert_eq!(ppoll_bits(fd, IN | OUT, 50), ERR);
            assert_eq!(selected(fd), (true, true), "an error is both");
        }
        listen(fd, 1).unwrap();
        assert_eq!(raw_poll(fd, IN | OUT, 0), 0);
        assert_eq!(selected(fd), (false, false));
        let (a, b, _) = connection();
        assert_eq!((raw_poll(b, IN | OUT, 0), epoll_bits(b)), (OUT, libc::EPOLLOUT as u32));
        assert_eq!(selected(b), (false, true));
        assert_eq!(ppoll_bits(b, IN, 20), 0, "in time");
        send(a, b"hello", 0).unwrap();
        assert_eq!(raw_poll(b, IN, -1), IN);
        assert_eq!(epoll_bits(b), (libc::EPOLLIN | libc::EPOLLOUT) as u32);
        assert_eq!(selected(b), (true, true));
        assert_eq!(send(a, &[0; 9000], 0), Ok(4090));
        assert_eq!(raw_poll(a, IN | OUT, 0), 0, "full");
        plain_close(a);
        until("it hangs up", || raw_poll(b, 0, 0) == HUP);
        assert_eq!(raw_poll(b, IN | OUT, 0), IN | OUT | HUP);
        assert_eq!(message(b, RECV, &mut [0; 5000], 0), Ok(4095));
        assert_eq!(raw_poll(b, IN | OUT, 0), OUT | HUP);
        assert_eq!(ppoll_bits(b, IN, 0), HUP);
    }),
    ("poll_of_unmapped_memory_is_efault", |_| {
        open();
        let readonly = pages(1);
        protect(readonly, PAGE, libc::PROT_READ);
        for (at, n, errno) in
            [(0, 1, EFAULT), (64, 1, EFAULT), (readonly, 1, EFAULT), (64, u32::MAX.into(), EINVAL)]
        {
            let place = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: no memory exists at the address, as the error of the call shows.
            let rc = called(&-1, || unsafe { libc::poll(place, n, 0) });
            assert_eq!(rc, Err(errno), "poll of {n} at {at:#x}");
            let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: as above; a live time, no mask.
            let rc =
                called(&-1, || unsafe { libc::ppoll(place, n, &raw const time, std::ptr::null()) });
            assert_eq!(rc, Err(errno), "ppoll of {n} at {at:#x}");
        }
    }),
    ("signals_end_a_poll_unless_masked", |_| {
        let (_a, b, _) = connection();
        crate::rig::signals(2000, true);
        let mut entry = libc::pollfd { fd: b, events: IN, revents: 0 };
        // SAFETY: one live entry; no time, no mask.
        let rc = called(&-1, || unsafe {
            libc::ppoll(&raw mut entry, 1, std::ptr::null(), std::ptr::null())
        });
        assert_eq!(rc, Err(libc::EINTR));
        // SAFETY: all zeroes is a set of signals.
        let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a live set.
        unsafe { libc::sigaddset(&raw mut mask, libc::SIGALRM) };
        let time = libc::timespec { tv_sec: 0, tv_nsec: 30_000_000 };
        // SAFETY: one live entry, a time and a mask.
        let rc = called(&-1, || unsafe {
            libc::ppoll(&raw mut entry, 1, &raw const time, &raw const mask)
        });
        assert_eq!(rc, Ok(0), "they wait");
        crate::rig::no_signals();
    }),
    ("descriptors_keep_their_open_flags", |_| {
        assert!(!is_cloexec(open()));
        assert!(is_cloexec(open_with(libc::O_CLOEXEC)));
        let fd = open_with(libc::O_NONBLOCK);
        // SAFETY: reads flags of a descriptor.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, libc::O_NONBLOCK);
        let path = CString::new(path()).unwrap();
        // SAFETY: a C string.
        let at = unsafe { libc::openat(libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR) };
        assert!(bind(at) > 1088);
        assert!(std::fs::File::open("/dev/null").is_ok(), "and others are others");
    }),
    ("duplicates_and_forks_share_the_endpoint", |_| {
        let (a, b, _) = connection();
        let copy = dup(a);
        assert_eq!(send(copy, b"1", 0), Ok(1));
        Process::start(|| assert_eq!(send(a, b"2", 0), Ok(1))).wait();
        plain_close(a);
        assert_eq!(send(copy, b"3", 0), Ok(1));
        let mut buffer = [0; 3];
        assert_eq!(message(b, RECV, &mut buffer, BLOCK as u32), Ok(3));
        assert_eq!(&buffer, b"123");
        assert_eq!(raw_poll(b, IN | OUT, 0), OUT, "it lives with its last descriptor");
        plain_close(copy);
        until("it is gone", || raw_poll(b, 0, 0) == HUP);
    }),
    ("close_of_a_listener_closes_unclaimed_endpoints", |_| {
        let (listener, opener, cookie) = unclaimed();
        plain_close(listener);
        until("it is gone", || raw_poll(opener, 0, 0) & HUP == HUP);
        assert_eq!(put_accepted(open(), cookie), Err(ENOENT));
    }),
    ("unclaimed_endpoint_lives_until_the_last_close_of_its_listener", |_| {
        let (listener, opener, cookie) = unclaimed();
        let (copy, other) = (dup(listener), open());
        plain_close(listener);
        plain_close(other);
        assert_eq!(raw_poll(opener, HUP, 100), 0, "the listener exists");
        let acceptor = open();
        put_accepted(acceptor, cookie).unwrap();
        plain_close(copy);
        assert_eq!(send(acceptor, b"hello", 0), Ok(5));
    }),
];
