// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! scif_poll, and poll, select and epoll on the descriptors.

use crate::api::Case;
use crate::placement::server;
use crate::rig::*;

fn entry(fd: i32, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

pub(crate) const CASES: &[Case] = &[
    ("poll_bits_of_a_connection", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.poll(a, IN | OUT, 0), OUT);
        assert_eq!(api.send(a, &[0; 5000], 0), Ok(4095));
        assert_eq!(api.poll(a, IN | OUT, 0), 0, "full");
        assert_eq!(api.poll(b, IN | OUT, 0), IN | OUT);
        assert_eq!(api.poll(b, OUT, 0), OUT, "only what was asked for");
        assert_eq!(api.recv(b, &mut [0], 0), Ok(1));
        assert_eq!(api.poll(a, OUT, 0), OUT, "one more byte fits");
    }),
    ("poll_bits_after_the_close_of_the_peer", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.send(a, b"hello", 0), Ok(5));
        api.close(a).unwrap();
        assert_eq!(api.poll(b, IN | OUT, 0), IN | OUT | HUP);
        assert_eq!(api.poll(b, 0, 0), HUP, "unasked");
        assert_eq!(api.recv(b, &mut [0; 5], 0), Ok(5));
        assert_eq!(api.poll(b, IN | OUT, 0), OUT | HUP);
    }),
    ("listener_is_readable_while_a_request_waits", |api| {
        let (listener, port) = api.listener(0, 4);
        assert_eq!(api.poll(listener, IN | OUT, 0), 0);
        assert_eq!(raw_poll(listener, IN, 0), 0);
        for _ in 0..2 {
            let epd = api.open();
            set_nonblocking(epd, true);
            assert!(api.connect(epd, 0, port).is_err());
        }
        assert_eq!(api.poll(listener, IN | OUT, -1), IN);
        until("the descriptor shows it", || raw_poll(listener, IN, 100) == IN);
        api.accept(listener, 0).unwrap();
        until("the descriptor shows another one", || raw_poll(listener, IN, 100) == IN);
        api.accept(listener, 0).unwrap();
        assert_eq!(api.poll(listener, IN, 0), 0);
        assert_eq!(raw_poll(listener, IN, 0), 0);
    }),
    ("poll_ends_with_data_or_at_its_timeout", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.poll(b, IN, 30), 0);
        let sender = {
            let api = *api;
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(30));
                api.send(a, b"x", 0)
            })
        };
        assert_eq!(api.poll(b, IN, -1), IN);
        sender.join().unwrap().unwrap();
    }),
    ("poll_of_all_kinds_of_descriptors", |api| {
        let (_a, b) = loopback(api);
        let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut writer, b"x").unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let closed = api.open();
        api.close(closed).unwrap();
        let unbound = api.open();
        let gone = unbound + 50;
        let mut entries =
            [entry(b, IN), entry(other, IN), entry(gone, IN), entry(-1, IN), entry(unbound, 0)];
        assert_eq!(api.poll_all(&mut entries, 0), Ok(3));
        let bits: Vec<i16> = entries.iter().map(|e| e.revents).collect();
        assert_eq!(bits, [0, IN, libc::POLLNVAL, 0, ERR]);
        assert_eq!(api.poll_all(&mut [], 1), Ok(0));
    }),
    ("signal_ends_a_poll", |api| {
        let (_a, b) = loopback(api);
        signals(2000, true);
        assert_eq!(
            api.poll_all(&mut [entry(b, IN)], -1),
            Err(libc::EINTR),
            "poll is never restarted"
        );
    }),
    ("descriptor_is_readable_exactly_with_data", |api| {
        let (a, b) = loopback(api);
        for round in 0..200 {
            assert_eq!(raw_poll(b, IN, 0), 0, "round {round}");
            assert_eq!(api.send(a, b"abc", 0), Ok(3));
            assert_eq!(raw_poll(b, IN, 0), IN);
            assert_eq!(api.recv(b, &mut [0; 2], if round % 2 == 0 { 0 } else { BLOCK }), Ok(2));
            assert_eq!(raw_poll(b, IN, 0), IN, "one is left");
            assert_eq!(api.recv(b, &mut [0; 2], 0), Ok(1));
            assert_eq!(api.recv(b, &mut [0; 2], 0), Ok(0));
        }
    }),
    ("descriptor_is_writable_exactly_with_space", |api| {
        let (a, b) = loopback(api);
        for round in 0..50 {
            assert_eq!(raw_poll(a, OUT, 0), OUT, "round {round}");
            assert_eq!(api.send(a, &[0; 5000], 0), Ok(4095));
            assert_eq!(raw_poll(a, OUT, 0), 0);
            assert_eq!(api.recv(b, &mut [0; 1], 0), Ok(1));
            assert_eq!(raw_poll(a, OUT, 0), OUT);
            assert_eq!(api.recv(b, &mut [0; 5000], 0), Ok(4094));
        }
    }),
    ("epoll_wait_misses_no_event", |api| {
        const ROUNDS: u32 = 5000;
        server(api, |epd, _| {
            let mut seen = 0;
            while seen < ROUNDS {
                assert_eq!(raw_poll(epd, IN, -1) & IN, IN);
                let mut buffer = [0; 64];
                let n = api.recv(epd, &mut buffer, 0).unwrap();
                seen += n.unsigned_abs();
                if seen % 7 == 0 {
                    assert_eq!(api.send(epd, b"k", BLOCK), Ok(1));
                }
            }
            assert_eq!(raw_poll(epd, OUT, 0), OUT);
            api.send(epd, b"z", BLOCK).unwrap();
        })
        .client(|epd, _| {
            let mut acks = 0;
            for i in 0..ROUNDS {
                assert_eq!(api.send(epd, b"m", BLOCK), Ok(1));
                if i % 3 == 0 {
                    acks += api.recv(epd, &mut [0; 16], 0).unwrap();
                }
            }
            let mut last = 0;
            while last != b'z' {
                assert_eq!(raw_poll(epd, IN, -1) & IN, IN);
                let mut buffer = [0; 16];
                let n = api.recv(epd, &mut buffer, 0).unwrap();
                acks += n;
                if n > 0 {
                    last = buffer[n as usize - 1];
                }
            }
            assert!(acks > 0);
        });
    }),
    ("unconnected_descriptor_has_no_poll_bits", |api| {
        let epd = api.open();
        let shown = if on_device() { ERR } else { 0 };
        assert_eq!(raw_poll(epd, IN | OUT, 0), shown);
        api.bind(epd, 0).unwrap();
        assert_eq!(raw_poll(epd, IN | OUT, 0), shown);
    }),
    ("descriptor_hangs_up_with_the_peer", |api| {
        let (a, b) = loopback(api);
        plain_close(a);
        until("it hangs up", || raw_poll(b, 0, 100) & HUP != 0);
        let for_ever = if on_device() { 0 } else { IN };
        assert_eq!(raw_poll(b, IN | OUT, 0), for_ever | OUT | HUP);
    }),
    ("data_sent_before_the_accept_is_readable", |api| {
        let (listener, port) = api.listener(0, 4);
        for _ in 0..50 {
            let opener = api.open();
            set_nonblocking(opener, true);
            assert!(api.connect(opener, 0, port).is_err());
            let (_, epd) = api.accept(listener, BLOCK).unwrap();
            assert_eq!(api.send(epd, b"early", 0), Ok(5));
            assert_eq!(api.poll(opener, OUT, -1), OUT);
            api.connect(opener, 0, port).unwrap();
            assert_eq!(raw_poll(opener, IN, 1000), IN);
            assert_eq!(api.poll(opener, IN | OUT, 0), IN | OUT);
            api.close(opener).unwrap();
            api.close(epd).unwrap();
        }
    }),
];
