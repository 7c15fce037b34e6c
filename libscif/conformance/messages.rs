// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sending and receiving: counts, order, ends, signals.

use scif_fabtests::harness::process::Process;

use crate::api::Case;
use crate::placement::server;
use crate::rig::{BLOCK, OUT, loopback, no_signals, pattern, signals, until, waits_in};
use libc::{ECONNRESET, EFAULT, EINTR, EINVAL};

const QUEUE: usize = 4095;

/// Repeats a call, which signals end early, until it has moved `len` bytes.
fn despite_signals(len: usize, mut step: impl FnMut(usize) -> Result<i32, i32>) {
    signals(1000, false);
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(n) => done += n as usize,
            Err(errno) => assert_eq!(errno, EINTR),
        }
    }
    no_signals();
}

pub(crate) const CASES: &[Case] = &[
    ("empty_queue_takes_4095_bytes", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.send(a, &[7; 20000], 0), Ok(4095));
        assert_eq!(api.send(a, &[7; 20000], 0), Ok(0));
        let mut buffer = [0; 20000];
        assert_eq!(api.recv(b, &mut buffer, 0), Ok(4095));
        assert_eq!(api.recv(b, &mut buffer, 0), Ok(0));
        assert_eq!(api.send(a, &[7; 20000], 0), Ok(4095));
    }),
    ("thousand_one_byte_sends_fit", |api| {
        let (a, b) = loopback(api);
        for i in 0..1024 {
            assert_eq!(api.send(a, &[(i % 256) as u8], 0), Ok(1));
        }
        let buffer = api.recv_array::<1024>(b);
        assert!(buffer.iter().enumerate().all(|(i, byte)| *byte == (i % 256) as u8));
    }),
    ("flags_and_lengths_are_checked", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.send(a, b"", 2), Ok(0));
        assert_eq!(api.send(a, b"x", 2), Err(EINVAL));
        assert_eq!(api.send(a, b"x", 3), Ok(1), "bit 0 is what counts");
        assert_eq!(api.recv(b, &mut [0], 2), Err(EINVAL));
        assert_eq!(api.recv_null(b, -1, 0), Err(EINVAL));
        assert_eq!(api.send_null(a, 4, 0), Err(EFAULT));
        assert_eq!(api.recv_null(b, 4, 0), Err(EFAULT));
    }),
    ("order_is_kept_without_message_boundaries", |api| {
        let (a, b) = loopback(api);
        for part in ["on", "ce ", "upon", " a time"] {
            assert_eq!(api.send(a, part.as_bytes(), BLOCK), Ok(part.len() as i32));
        }
        let mut buffer = [0; 16];
        assert_eq!(api.recv(b, &mut buffer[..6], BLOCK), Ok(6));
        assert_eq!(&buffer[..6], b"once u");
        assert_eq!(api.recv(b, &mut buffer, 0), Ok(10));
    }),
    ("blocking_receive_returns_all_requested_bytes", |api| {
        server(api, |epd, cue| {
            cue.wait();
            for chunk in 0..10 {
                let bytes: Vec<u8> = (0..1000).map(|i| pattern(chunk * 1000 + i, 3)).collect();
                assert_eq!(api.send(epd, &bytes, BLOCK), Ok(1000));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            cue.wait();
        })
        .client(|epd, cue| {
            cue.notify();
            let mut buffer = vec![0; 10000];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(10000));
            assert!(buffer.iter().enumerate().all(|(i, byte)| *byte == pattern(i, 3)));
            cue.notify();
        });
    }),
    ("long_messages_in_both_directions", |api| {
        const LEN: usize = 8 << 20;
        let body = |epd: i32, seed: u8| {
            let out: Vec<u8> = (0..LEN).map(|i| pattern(i, seed)).collect();
            let sending = {
                let api = *api;
                std::thread::spawn(move || assert_eq!(api.send(epd, &out, BLOCK), Ok(LEN as i32)))
            };
            let mut buffer = vec![0; LEN];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(LEN as i32));
            assert!(buffer.iter().enumerate().all(|(i, byte)| *byte == pattern(i, 9 - seed)));
            sending.join().unwrap();
        };
        server(api, |epd, _| body(epd, 4)).client(|epd, _| body(epd, 5));
    }),
    ("nonblocking_send_is_limited_to_the_queue_despite_demand", |api| {
        server(api, |epd, cue| {
            cue.wait();
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(api.send(epd, &[1; 40_000], 0), Ok(4095));
            assert_eq!(api.send(epd, &[1; 15_905 + QUEUE], BLOCK), Ok(20_000));
            cue.wait();
            assert_eq!(api.send(epd, &[2; 40_000], 0), Ok(0), "4095 bytes wait");
            cue.notify();
        })
        .client(|epd, cue| {
            cue.notify();
            let mut buffer = vec![0; 20_000];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(20_000));
            cue.meet();
            assert_eq!(api.recv(epd, &mut buffer, 0), Ok(4095));
        });
    }),
    ("long_messages_are_complete_despite_interrupted_calls", |api| {
        const LEN: usize = 16 << 20;
        server(api, |epd, cue| {
            let out: Vec<u8> = (0..LEN).map(|i| pattern(i, 6)).collect();
            despite_signals(LEN, |done| api.send(epd, &out[done..], BLOCK));
            cue.wait();
        })
        .client(|epd, cue| {
            let mut buffer = vec![0; LEN];
            despite_signals(LEN, |done| api.recv(epd, &mut buffer[done..], BLOCK));
            assert!(buffer.iter().enumerate().all(|(i, byte)| *byte == pattern(i, 6)));
            cue.notify();
        });
    }),
    ("small_messages_in_ping_pong", |api| {
        const ROUNDS: u64 = 2000;
        server(api, |epd, _| {
            for i in 0..ROUNDS {
                assert_eq!(api.send(epd, &i.to_ne_bytes(), BLOCK), Ok(8));
                let back = api.recv_array::<8>(epd);
                assert_eq!(u64::from_ne_bytes(back), i);
            }
        })
        .client(|epd, _| {
            for _ in 0..ROUNDS {
                let bytes = api.recv_array::<8>(epd);
                assert_eq!(api.send(epd, &bytes, BLOCK), Ok(8));
            }
        });
    }),
    ("stalled_connection_does_not_delay_another", |api| {
        let (a, _b) = loopback(api);
        let (c, d) = loopback(api);
        assert_eq!(api.send(a, &[0; QUEUE + 1], 0), Ok(4095));
        let stalled = {
            let api = *api;
            std::thread::spawn(move || api.send(a, b"more", BLOCK))
        };
        for _ in 0..100 {
            assert_eq!(api.send(c, b"go", BLOCK), Ok(2));
            assert_eq!(api.recv(d, &mut [0; 2], BLOCK), Ok(2));
        }
        api.close(_b).unwrap();
        assert_eq!(stalled.join().unwrap(), Err(ECONNRESET));
    }),
    ("bytes_sent_before_the_close_are_received", |api| {
        let (a, b) = loopback(api);
        assert_eq!(api.send(a, b"hello", BLOCK), Ok(5));
        api.close(a).unwrap();
        let mut buffer = [0; 10];
        assert_eq!(api.send(b, b"x", 0), Err(ECONNRESET), "at once");
        assert_eq!(api.recv(b, &mut buffer[..3], 0), Ok(3));
        assert_eq!(api.recv(b, &mut buffer, BLOCK), Ok(2), "less than asked for");
        assert_eq!(api.recv(b, &mut buffer, BLOCK), Err(ECONNRESET));
        assert_eq!(api.recv(b, &mut buffer, 0), Err(ECONNRESET));
    }),
    ("blocked_receiver_is_woken_by_the_close_of_the_peer", |api| {
        server(api, |epd, cue| {
            cue.notify();
            let mut buffer = [0; 10];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(4));
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(ECONNRESET));
        })
        .client(|epd, cue| {
            cue.wait();
            assert_eq!(api.send(epd, b"last", BLOCK), Ok(4));
            std::thread::sleep(std::time::Duration::from_millis(20));
            api.close(epd).unwrap();
        });
    }),
    ("blocked_call_ends_at_the_close_of_its_endpoint", |api| {
        let (_a, b) = loopback(api);
        let waiting = {
            let api = *api;
            waits_in(move || api.recv(b, &mut [0; 4], BLOCK))
        };
        api.close(b).unwrap();
        assert_eq!(waiting.join().unwrap(), Err(ECONNRESET));
    }),
    ("blocked_sender_is_woken_by_the_death_of_the_peer", |api| {
        let mut process = None;
        let (listener, _) = api.listener(2060, 1);
        process.replace(Process::start(|| {
            let epd = api.open();
            api.connect(epd, 0, 2060).unwrap();
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }));
        let (_, epd) = api.accept(listener, BLOCK).unwrap();
        let killer = {
            let (api, process) = (*api, process.unwrap());
            std::thread::spawn(move || {
                until("the queue is full", || api.poll(epd, OUT, 0) == 0);
                std::thread::sleep(std::time::Duration::from_millis(50));
                process.kill();
                process.end()
            })
        };
        assert_eq!(api.send(epd, &[1; 9000], BLOCK), Ok(4095), "as far as it came");
        assert_eq!(api.send(epd, b"x", BLOCK), Err(ECONNRESET));
        assert_eq!(killer.join().unwrap(), -libc::SIGKILL);
        until("nothing is left", || api.recv(epd, &mut [0], 0) == Err(ECONNRESET));
    }),
    ("signals_with_sa_restart_do_not_end_a_call", |api| {
        server(api, |epd, cue| {
            signals(1000, true);
            api.recv_array::<64>(epd);
            assert_eq!(api.send(epd, &[5; 10_000], BLOCK), Ok(10_000));
            no_signals();
            cue.notify();
        })
        .client(|epd, cue| {
            for _ in 0..4 {
                std::thread::sleep(std::time::Duration::from_millis(15));
                assert_eq!(api.send(epd, &[1; 16], BLOCK), Ok(16));
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(api.recv(epd, &mut [0; 10_000], BLOCK), Ok(10_000));
            cue.wait();
        });
    }),
    ("signals_without_sa_restart_end_a_call", |api| {
        server(api, |epd, cue| {
            signals(1000, false);
            let mut buffer = [0; 64];
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Err(EINTR));
            no_signals();
            cue.notify();
            until("three bytes", || api.poll(epd, crate::rig::IN, 0) != 0);
            std::thread::sleep(std::time::Duration::from_millis(5));
            signals(1000, false);
            assert_eq!(api.recv(epd, &mut buffer, BLOCK), Ok(3), "what there was");
            assert_eq!(api.send(epd, &[0; 9000], BLOCK), Ok(4095), "what fitted");
            no_signals();
            cue.notify();
        })
        .client(|epd, cue| {
            cue.wait();
            assert_eq!(api.send(epd, b"abc", BLOCK), Ok(3));
            cue.wait();
        });
    }),
    ("o_nonblock_does_not_affect_messages", |api| {
        let (a, b) = loopback(api);
        crate::rig::set_nonblocking(b, true);
        let sender = {
            let api = *api;
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                api.send(a, b"late", BLOCK)
            })
        };
        assert_eq!(api.recv(b, &mut [0; 4], BLOCK), Ok(4));
        assert_eq!(sender.join().unwrap(), Ok(4));
    }),
    ("concurrent_sends_of_one_endpoint_do_not_interleave", |api| {
        let (a, b) = loopback(api);
        let senders: Vec<_> = (1..=4u8)
            .map(|index| {
                let api = *api;
                std::thread::spawn(move || {
                    assert_eq!(api.send(a, &vec![index; 50_000], BLOCK), Ok(50_000))
                })
            })
            .collect();
        let mut buffer = vec![0; 200_000];
        assert_eq!(api.recv(b, &mut buffer, BLOCK), Ok(200_000));
        let changes = buffer.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 3, "whole messages, one after the other");
        for sender in senders {
            sender.join().unwrap();
        }
    }),
];
