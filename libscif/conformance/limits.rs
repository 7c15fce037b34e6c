// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Resources that a system can deny: userfaultfd, descriptors, memory that may be locked.

use scif_fabtests::harness::process::Process;
use scif_fabtests::harness::sandbox::become_ordinary_user;

use crate::api::Case;
use crate::placement::{case_port, node};
use crate::rig::*;
use libc::{EINVAL, EIO, ENOMEM, ENOSYS};
use std::sync::{Arc, Mutex};

/// Thread that counts up in the first word of each page and checks every number it wrote, until it
/// is stopped.
struct Writer {
    stop: Arc<Mutex<bool>>,
    thread: std::thread::JoinHandle<()>,
}

impl Writer {
    fn start(at: usize, pages: usize) -> Writer {
        let stop = Arc::new(Mutex::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut n = 0u64;
            while n % 64 != 0 || !*told.lock().unwrap() {
                for page in 0..pages {
                    assert_eq!(peek64(at + page * PAGE), n, "a store was lost");
                    poke64(at + page * PAGE, n + 1);
                }
                n += 1;
            }
        });
        Writer { stop, thread }
    }

    fn end(self) {
        *self.stop.lock().unwrap() = true;
        self.thread.join().unwrap();
    }
}

pub(crate) const CASES: &[Case] = &[
    ("file_size_limit_is_enomem", |api| {
        let (listener, caller) = (api.open(), api.open());
        api.bind(listener, case_port()).unwrap();
        api.listen(listener, 1).unwrap();
        // Windows lie in sparse files larger than any memory.
        limit_files(100 << 30);
        assert_eq!(api.connect(caller, node(0), case_port()), Err(ENOMEM));
        limit_files(u64::MAX);
        api.close(listener).unwrap();
        let (a, _b) = loopback(api);
        limit_files(64 << 10);
        let at = filled(256, 256 * PAGE, 1);
        assert_eq!(api.register(a, (at, 256 * PAGE), 0, RW, 0), Err(ENOMEM));
        assert!(holds(at, 256 * PAGE, 1));
    }),
    ("kernel_without_future_write_seal_is_enosys", |api| {
        let (listener, caller) = (api.open(), api.open());
        api.bind(listener, case_port()).unwrap();
        api.listen(listener, 1).unwrap();
        deny_seal();
        assert_eq!(api.connect(caller, node(0), case_port()), Err(ENOSYS));
    }),
    ("without_userfaultfd_a_single_thread_moves_pages", |api| {
        let (a, b) = loopback(api);
        deny_userfaultfd();
        let at = filled(4, 4 * PAGE, 1);
        assert_eq!(api.register(a, (at, 4 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
        let mapped = api.mmap(b, (0, 4 * PAGE), RW, 0, 0x10000).unwrap();
        assert!(holds(mapped, 4 * PAGE, 1));
        poke(mapped + PAGE, 77);
        assert_eq!(peek(at + PAGE), 77);
        // With another thread they cannot move back without risking its stores. They stay, and keep
        // their content.
        let writer = Writer::start(pages(1), 1);
        api.munmap(mapped, 4 * PAGE).unwrap();
        assert_eq!(api.unregister(a, 0x10000, 4 * PAGE), Ok(0));
        assert_eq!(peek(at + PAGE), 77);
        poke(at + PAGE, pattern(PAGE, 1));
        assert!(holds(at, 4 * PAGE, 1));
        assert_eq!(api.register(a, (at, 4 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
        let mapped = api.mmap(b, (0, 4 * PAGE), RW, 0, 0x10000).unwrap();
        assert!(holds(mapped, 4 * PAGE, 1));
        writer.end();
    }),
    ("without_userfaultfd_threads_register_in_place", |api| {
        let (a, b) = loopback(api);
        deny_userfaultfd();
        const N: usize = 16;
        let at = pages(N);
        let writer = Writer::start(at, N);
        let seen = pages(N);
        for _ in 0..50 {
            assert_eq!(api.register(a, (at, N * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            assert_eq!(api.mmap(b, (0, PAGE), 1, 0, 0x10000), Err(ENOMEM));
            assert_eq!(api.vreadfrom(b, seen, N * PAGE, 0x10000, SYNC), Ok(0));
            let (first, last) = (peek64(seen), peek64(seen + (N - 1) * PAGE));
            poke(seen + 8, 5);
            assert_eq!(api.vwriteto(b, seen + 8, 1, 0x10008, SYNC), Ok(0));
            assert_eq!(peek(at + 8), 5, "the same pages");
            poke(at + 8, 0);
            assert!(peek64(at) >= first && peek64(at + (N - 1) * PAGE) >= last);
            assert_eq!(api.unregister(a, 0x10000, N * PAGE), Ok(0));
        }
        writer.end();
    }),
    ("windows_in_place_of_another_user_are_not_accessed", |api| {
        set_env("SCIF_ALLOW_UIDS", "0,65534");
        need_another_user();
        let other = Process::start(|| {
            assert!(become_ordinary_user());
            deny_userfaultfd();
            let writer = Writer::start(pages(1), 1);
            let (epd, at) = (api.open(), pages(1));
            fill(at, PAGE, 1);
            until("the listener", || api.connect(epd, node(0), case_port()).is_ok());
            assert_eq!(api.register(epd, (at, PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
            assert!(holds(at, PAGE, 1), "written to by another user's process");
            writer.end();
        });
        let (listener, _) = api.listener(case_port(), 1);
        let (_, epd) = api.accept(listener, BLOCK).unwrap();
        assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        let here = pages(1);
        assert_eq!(api.vreadfrom(epd, here, 8, 0x10000, SYNC), Err(EIO));
        assert_eq!(api.vwriteto(epd, here, 8, 0x10000, SYNC), Err(EIO));
        assert_eq!(peek64(here), 0);
        api.send(epd, b"x", BLOCK).unwrap();
        assert_eq!(other.end(), 0);
    }),
    ("without_userfaultfd_pages_left_in_the_arena_register_again", |api| {
        let ((a, b), (c, d)) = (loopback(api), loopback(api));
        deny_userfaultfd();
        let (at, seen) = (pages(4), pages(4));
        fill(at, 4 * PAGE, 1);
        assert_eq!(api.register(a, (at, 4 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
        let writer = Writer::start(pages(1), 1);
        api.close(a).unwrap();
        api.close(b).unwrap();
        assert!(holds(at, 4 * PAGE, 1));
        assert_eq!(api.register(c, (at, 4 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
        assert_eq!(api.vreadfrom(d, seen, 4 * PAGE, 0x10000, SYNC), Ok(0));
        assert!(holds(seen, 4 * PAGE, 1));
        assert_eq!(api.unregister(c, 0x10000, 4 * PAGE), Ok(0));
        writer.end();
        until("nobody is left who could lose a store", || {
            assert_eq!(api.register(c, (at, 4 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
            let mapped = api.mmap(d, (0, 4 * PAGE), RW, 0, 0x10000);
            assert!(mapped.is_err() || mapped.is_ok_and(|mapped| holds(mapped, 4 * PAGE, 1)));
            mapped.is_ok() || api.unregister(c, 0x10000, 4 * PAGE) != Ok(0)
        });
    }),
    ("without_userfaultfd_strict_registration_fails", |api| {
        set_env("SCIF_WINDOW_STRICT", "1");
        let (a, b) = loopback(api);
        deny_userfaultfd();
        let (busy, at) = (pages(1), pages(2));
        let writer = Writer::start(busy, 1);
        assert_eq!(api.register(a, (at, PAGE), 0x10000, RW, FIXED), Err(ENOMEM));
        writer.end();
        // Once its thread has ended the pages can move.
        until("the thread is gone", || {
            api.register(a, (at, PAGE), 0x10000, RW, FIXED) == Ok(0x10000)
        });
        assert!(api.mmap(b, (0, PAGE), RW, 0, 0x10000).is_ok());
    }),
    ("thousands_of_windows_at_a_limit_of_1024_descriptors", |api| {
        limit_descriptors(1024);
        let (a, b) = loopback(api);
        const N: usize = 4000;
        let before = descriptors();
        let at = pages(N);
        for i in 0..N {
            poke64(at + i * PAGE, i as u64);
            let offset = (i * 2 * PAGE) as i64;
            let prot = if i % 2 == 0 { RW } else { 1 };
            assert_eq!(api.register(a, (at + i * PAGE, PAGE), offset, prot, FIXED), Ok(offset));
        }
        let seen = pages(1);
        for i in 0..N {
            let offset = (i * 2 * PAGE) as i64;
            assert_eq!(api.vreadfrom(b, seen, 8, offset, SYNC), Ok(0));
            assert_eq!(peek64(seen), i as u64);
        }
        let mapped: Vec<usize> =
            (0..N).map(|i| api.mmap(b, (0, PAGE), 1, 0, (i * 2 * PAGE) as i64).unwrap()).collect();
        assert!(mapped.iter().enumerate().all(|(i, &place)| peek64(place) == i as u64));
        until("no descriptor for a window", || descriptors() <= before);
        for (i, &place) in mapped.iter().enumerate().step_by(40) {
            assert_eq!(api.unregister(a, (i * 2 * PAGE) as i64, PAGE), Ok(0));
            assert_eq!(api.munmap(place, PAGE), Ok(0));
        }
        api.close(a).unwrap();
        assert!((0..N).all(|i| peek64(at + i * PAGE) == i as u64));
    }),
    ("endpoint_has_at_most_32768_windows", |api| {
        const MOST: i64 = 32768;
        let (a, b) = loopback(api);
        let (at, other) = (pages(1), pages(1));
        fill(at, PAGE, 1);
        for i in 0..MOST {
            let offset = i * PAGE as i64;
            assert_eq!(api.register(a, (at, PAGE), offset, RW, FIXED), Ok(offset));
        }
        poke(other, 9);
        let beyond = MOST * PAGE as i64;
        assert_eq!(api.register(a, (other, PAGE), beyond, RW, FIXED), Err(ENOMEM));
        assert_eq!(api.register(a, (other, PAGE), 0, RW, 0), Err(ENOMEM));
        crate::rig::dont_need(other, PAGE);
        assert_eq!(peek(other), 0, "its pages were left alone");
        let seen = pages(1);
        assert_eq!(api.vreadfrom(b, seen, PAGE, beyond - PAGE as i64, SYNC), Ok(0));
        assert!(holds(seen, PAGE, 1));
        assert_eq!(api.unregister(a, 0, PAGE), Ok(0));
        assert_eq!(api.register(a, (other, PAGE), beyond, RW, FIXED), Ok(beyond));
    }),
    ("registered_pages_count_as_locked_on_request", |api| {
        set_env("SCIF_MEMLOCK", "1");
        limit_locked(8 * PAGE as u64);
        let ((a, b), (c, _d)) = (loopback(api), loopback(api));
        let at = pages(16);
        let register = |epd, n: usize, offset: i64| {
            api.register(epd, (at, n * PAGE), offset, RW, FIXED).map(|_| ())
        };
        assert_eq!(register(a, 9, 0x10000), Err(ENOMEM));
        assert_eq!(register(a, 4, 0x10000), Ok(()));
        assert_eq!(register(b, 3, 0x10000), Ok(()), "of every endpoint");
        assert_eq!(register(c, 2, 0x10000), Err(ENOMEM));
        assert_eq!(register(c, 1, 0x10000), Ok(()));
        assert_eq!(register(c, 1, 0x20000), Err(ENOMEM));
        assert_eq!(api.register(c, (at, 100), 0, RW, 0), Err(EINVAL), "arguments first");
        assert_eq!(api.unregister(b, 0x10000, 3 * PAGE), Ok(0));
        assert_eq!(register(c, 4, 0x20000), Err(ENOMEM));
        assert_eq!(register(c, 3, 0x20000), Ok(()));
        api.close(a).unwrap();
        assert_eq!(register(c, 4, 0x30000), Ok(()), "a closed one's no more");
    }),
    ("registered_pages_do_not_count_as_locked_by_default", |api| {
        limit_locked(8 * PAGE as u64);
        let (a, _b) = loopback(api);
        assert_eq!(api.register(a, (pages(64), 64 * PAGE), 0x10000, RW, FIXED), Ok(0x10000));
    }),
];
