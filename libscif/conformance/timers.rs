// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A signal every millisecond in every call that waits, with and without SA_RESTART, and with and
//! without O_NONBLOCK on the descriptor.

use scif_fabtests::harness::process::Process;

use crate::api::{Api, Case};
use crate::placement::{case_port, node, server};
use crate::rig::*;
use libc::EINTR;
use std::time::Duration;

const EVERY_US: i64 = 1000;
/// Bytes of a stream that takes longer than many signals.
const STREAM: usize = 200_000;
const WINDOW: i64 = 0x1000_0000;
const BIG: usize = 32 << 20;

/// Returns the number of bytes that a call moved, 0 if a signal interrupted it. Counts the calls
/// that a signal shortened.
fn moved(answer: Result<i32, i32>, wanted: usize, cut: &mut u32) -> usize {
    let done = match answer {
        Ok(done) => done as usize,
        Err(EINTR) => 0,
        Err(errno) => panic!("errno {errno}"),
    };
    *cut += u32::from(done < wanted);
    done
}

/// Runs `body` without O_NONBLOCK and with it, each in a process that has not used the library yet.
fn each_way(body: impl Fn(bool)) {
    for nonblock in [false, true] {
        Process::start(|| body(nonblock)).wait();
    }
}

/// Sends a stream in pieces with pauses, while one side gets signals. If they end its calls, the
/// other side continues once that has happened.
fn stream(api: &Api, restart: bool, sends: bool) {
    each_way(|nonblock| {
        server(api, |epd, cue| {
            set_nonblocking(epd, nonblock);
            let mut bytes: Vec<u8> = (0..STREAM).map(|i| pattern(i, 5)).collect();
            if !sends {
                bytes.fill(0);
            }
            signals(EVERY_US, restart);
            let (mut done, mut cut) = (0, 0);
            while done < STREAM {
                let rest = &mut bytes[done..];
                let wanted = rest.len();
                let answer =
                    if sends { api.send(epd, rest, BLOCK) } else { api.recv(epd, rest, BLOCK) };
                let before = cut;
                done += moved(answer, wanted, &mut cut);
                if !restart && (before, cut) == (0, 1) {
                    cue.notify();
                }
            }
            no_signals();
            assert!((0..STREAM).all(|i| bytes[i] == pattern(i, 5)));
            assert_eq!(cut == 0, restart, "cut short {cut} times");
            cue.wait();
        })
        .client(|epd, cue| {
            let mut bytes: Vec<u8> = (0..STREAM).map(|i| pattern(i, 5)).collect();
            if sends {
                bytes.fill(0);
            }
            for (i, piece) in bytes.chunks_mut(STREAM / 20).enumerate() {
                if i == 1 && !restart {
                    cue.wait();
                }
                std::thread::sleep(Duration::from_millis(3));
                let answer =
                    if sends { api.recv(epd, piece, BLOCK) } else { api.send(epd, piece, BLOCK) };
                assert_eq!(answer, Ok(piece.len() as i32));
            }
            assert!((0..STREAM).all(|i| bytes[i] == pattern(i, 5)));
            cue.notify();
        });
    });
}

/// Connects long after the accept has begun, and once a signal has ended it, if one does.
fn accept(api: &Api, restart: bool) {
    each_way(|nonblock| {
        server(api, |_, cue| {
            let (listener, _) = api.listener(case_port() + 1, 1);
            set_nonblocking(listener, nonblock);
            signals(EVERY_US, restart);
            if restart {
                cue.notify();
            }
            let mut interrupted = 0;
            let epd = loop {
                match api.accept(listener, BLOCK) {
                    Ok((_, epd)) => break epd,
                    Err(EINTR) => interrupted += 1,
                    Err(errno) => panic!("errno {errno}"),
                }
                if interrupted == 1 {
                    cue.notify();
                }
            };
            no_signals();
            assert_eq!(interrupted == 0, restart, "interrupted {interrupted} times");
            assert_eq!(api.send(epd, b"here", BLOCK), Ok(4));
            cue.wait();
        })
        .client(|_, cue| {
            cue.wait();
            std::thread::sleep(Duration::from_millis(30));
            let epd = api.open();
            api.connect(epd, node(1), case_port() + 1).unwrap();
            assert_eq!(api.recv(epd, &mut [0; 4], BLOCK), Ok(4));
            cue.notify();
        });
    });
}

/// Makes large transfers with fences. If signals end a wait, repeats them until one has.
fn fences(api: &Api, restart: bool) {
    const ROUNDS: u8 = 8;
    server(api, |epd, cue| {
        let at = pages(BIG / PAGE);
        api.register(epd, (at, BIG), WINDOW, RW, FIXED).unwrap();
        cue.wait();
        let mut interrupted = 0;
        for round in 0..=u8::MAX {
            let last = round + 1 >= ROUNDS && (restart || interrupted > 0);
            set_nonblocking(epd, round % 2 == 1);
            fill(at, BIG, round);
            signals(EVERY_US, restart);
            assert_eq!(api.writeto(epd, WINDOW, BIG, WINDOW, 0), Ok(0));
            let mark = api.fence_mark(epd, 1).unwrap();
            loop {
                match api.fence_wait(epd, mark) {
                    Ok(_) => break,
                    Err(EINTR) => interrupted += 1,
                    Err(errno) => panic!("errno {errno}"),
                }
            }
            no_signals();
            assert_eq!(api.send(epd, &[last.into()], BLOCK), Ok(1));
            cue.wait();
            if last {
                break;
            }
        }
        assert_eq!(interrupted == 0, restart, "interrupted {interrupted} times");
    })
    .client(|epd, cue| {
        let at = pages(BIG / PAGE);
        api.register(epd, (at, BIG), WINDOW, RW, FIXED).unwrap();
        for round in 0..=u8::MAX {
            cue.notify();
            let mut last = [0];
            assert_eq!(api.recv(epd, &mut last, BLOCK), Ok(1));
            assert!(holds(at, BIG, round), "all of it is there after the fence");
            if last == [1] {
                break;
            }
        }
        cue.notify();
    });
}

pub(crate) const CASES: &[Case] = &[
    ("send_continues_after_signals_with_sa_restart", |api| {
        stream(api, true, true);
    }),
    ("send_returns_the_bytes_moved_before_a_signal", |api| {
        stream(api, false, true);
    }),
    ("recv_continues_after_signals_with_sa_restart", |api| {
        stream(api, true, false);
    }),
    ("recv_returns_the_bytes_moved_before_a_signal", |api| {
        stream(api, false, false);
    }),
    ("accept_continues_after_signals_with_sa_restart", |api| {
        accept(api, true);
    }),
    ("signal_ends_an_accept_without_loss_of_a_request", |api| {
        accept(api, false);
    }),
    ("fence_continues_after_signals_with_sa_restart", |api| fences(api, true)),
    ("signal_ends_a_fence_wait_that_can_be_repeated", |api| {
        fences(api, false);
    }),
];
