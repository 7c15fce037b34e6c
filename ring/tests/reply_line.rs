// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of the reply line: order with the records of the ring, reuse of a half, and hostile peers.

#![expect(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "lays rings over its own memory and names its own buffers; it says what it counted"
)]

mod memory;

use memory::Guarded;
use scif_ring::spsc::{InlineRecord, PollOutcome};
use scif_ring::{Consumer, DIRECTION_BYTES, Mem, Producer, PushError, REPLY_LINE_BYTES};

const LINE: usize = 2 * DIRECTION_BYTES;
const ROUNDS: u64 = if cfg!(miri) { 500 } else { 200_000 };

/// One end of a connection, with counts of the records it sends and expects.
struct Side {
    tx: Producer,
    rx: Consumer,
    sent: u64,
    seen: u64,
    replies: u64,
}

fn memory() -> Guarded {
    Guarded::new(LINE + REPLY_LINE_BYTES)
}

/// Returns both ends, each of which has taken its first record, which `poll_inline` leaves to
/// `peek`. They must be dropped before the memory.
fn sides(memory: &Guarded) -> [Side; 2] {
    let mut sides = fresh(memory);
    for turn in 0..2 {
        assert_eq!(sides[turn].send(), Some(false), "nothing has come");
        assert!(sides[1 - turn].take());
    }
    sides
}

fn fresh(memory: &Guarded) -> [Side; 2] {
    [0, 1].map(|mine: usize| {
        let at = |which: usize| memory.base().wrapping_add(which * DIRECTION_BYTES);
        let line = memory.base().wrapping_add(LINE);
        // SAFETY: aligned and zeroed; every test drops the ends before the memory, and makes them
        // once.
        let mut tx = unsafe { Producer::new(at(mine), DIRECTION_BYTES) }.unwrap();
        // SAFETY: as above.
        let mut rx = unsafe { Consumer::new(at(1 - mine), DIRECTION_BYTES) }.unwrap();
        // SAFETY: as above; each producer has its half.
        unsafe { tx.set_reply_line(line, mine == 1) };
        // SAFETY: as above.
        unsafe { rx.set_reply_line(line, mine == 0) };
        Side { tx, rx, sent: 0, seen: 0, replies: 0 }
    })
}

impl Side {
    /// Sends the next number as a tag with a short payload; returns whether it used the reply line.
    /// `None` if the ring is full.
    fn send(&mut self) -> Option<bool> {
        let n = self.sent;
        let mut bytes = [n as u8; 8];
        // SAFETY: the bytes outlive the calls, which are the only use.
        let payload = unsafe { Mem::new(bytes.as_mut_ptr(), n as usize % 9) };
        let words = [n, 0];
        let replied = self.tx.push_reply(n as u8, words, 1, &payload, self.rx.replies_taken());
        if replied {
            self.rx.start_poll_delay();
            self.replies += 1;
        } else {
            match self.tx.push_words(n as u8, words, 1, &payload) {
                Ok(()) => {}
                Err(PushError::Full) => return None,
                Err(e) => panic!("{e:?}"),
            }
        }
        self.sent += 1;
        Some(replied)
    }

    /// Sends a longer record, which never uses the reply line.
    fn send_long(&mut self) -> bool {
        let n = self.sent;
        let pushed = self.tx.push_slice(n as u8, &n.to_le_bytes(), &[n as u8; 100]);
        self.sent += u64::from(pushed.is_ok());
        pushed.is_ok()
    }

    fn check(&mut self, kind: u8, number: u64, payload: &[u8]) {
        assert_eq!((kind, number), (self.seen as u8, self.seen), "out of order");
        assert!(payload.iter().all(|b| *b == self.seen as u8), "another's bytes");
        self.seen += 1;
    }

    /// Takes the next record in place, if it has no body. Returns false if none is published.
    fn take(&mut self) -> bool {
        self.rx.cancel_poll_delay();
        let mut got = None;
        let look = self.rx.poll_inline(|kind, line: &InlineRecord<'_>| {
            got = Some((kind, line.word(0), line.len() - 8, line.word(1)));
            true
        });
        match look {
            PollOutcome::Consumed => {
                let (kind, number, len, payload) = got.unwrap();
                // A line gives whole words; a part of a word has to be copied.
                let whole = payload.to_le_bytes();
                self.check(kind, number, if len == 8 { &whole } else { &[] });
                self.tx.expect_reply(self.rx.take_peer_ack());
                true
            }
            PollOutcome::Unhandled => self.take_copy(),
            PollOutcome::Empty => false,
        }
    }

    /// Takes the next record as a copy.
    fn take_copy(&mut self) -> bool {
        let Some(record) = self.rx.peek().unwrap() else {
            return false;
        };
        let number = u64::from_le_bytes(*record.head().first_chunk().unwrap());
        let mut body = [0; 100];
        let n = record.body.copy_to_slice(&mut body);
        let (kind, tail) = (record.kind, record.head()[8..].to_vec());
        self.check(kind, number, &tail);
        assert!(body[..n].iter().all(|b| *b == kind));
        self.rx.advance();
        true
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

#[test]
fn replies_keep_ring_order() {
    let memory = memory();
    let mut sides = sides(&memory);
    let mut seed = 7;
    for _ in 0..ROUNDS {
        let dice = random(&mut seed);
        let [a, b] = &mut sides;
        let (side, other) = if dice % 2 == 0 { (a, b) } else { (b, a) };
        match dice / 2 % 16 {
            0..6 => {
                side.send();
            }
            6 => {
                side.send_long();
            }
            7 => {
                side.take_copy();
            }
            8 => side.rx.flush(),
            9 => while side.take() {},
            _ => {
                side.take();
            }
        }
        assert!(side.seen <= other.sent && other.seen <= side.sent);
    }
    for turn in 0..2 {
        while sides[turn].take() {}
        assert_eq!(sides[turn].seen, sides[1 - turn].sent, "something was lost");
    }
    for side in &sides {
        assert!(side.replies > side.sent / 100, "{} of {}", side.replies, side.sent);
        println!("{} records, {} of them answers", side.sent, side.replies);
    }
    memory.check();
}

#[test]
fn ping_pong_uses_no_slot() {
    let memory = memory();
    let [mut a, mut b] = sides(&memory);
    assert_eq!(a.send(), Some(false), "nothing has come");
    for _ in 0..1000 {
        assert!(b.take());
        assert_eq!(b.send(), Some(true));
        assert!(a.take());
        assert_eq!(a.send(), Some(true));
    }
    assert_eq!(a.send(), Some(false), "one for each that came");
}

#[test]
fn half_is_free_once_its_reply_is_acked() {
    let memory = memory();
    let [mut a, mut b] = sides(&memory);
    b.send();
    b.send();
    assert!(a.take());
    assert_eq!(a.send(), Some(true));
    assert!(a.take());
    assert_eq!(a.send(), Some(false), "the one before lies there");
    assert!(b.take() && b.take());
    // The counters of the ring also confirm old replies.
    b.rx.flush();
    b.send_long();
    b.send_long();
    assert!(a.take() && a.tx.all_consumed());
    assert_eq!(a.seen, 4);
    b.tx.prefetch_record();
    a.tx.expect_reply(None);
    assert_eq!(a.send(), Some(true));
    assert!(a.take() && b.take());
}

/// A reply left before a thousand others must not free the half of a reply that was not taken.
#[test]
fn stale_ack_frees_nothing() {
    let memory = memory();
    let [mut a, mut b] = sides(&memory);
    a.send();
    assert!(b.take());
    // Two records in slots, then the reply, which says that none of a's replies was taken.
    b.send_long();
    b.send_long();
    assert_eq!(b.send(), Some(false), "what was pushed first was no answer");
    a.send();
    assert!(b.take());
    assert_eq!(b.send(), Some(true));
    for _ in 0..3000 {
        a.send();
        assert!(b.take());
    }
    assert!(a.take());
    a.tx.expect_reply(None);
    assert_eq!(a.send(), Some(true), "its first, not taken yet");
    while a.take() {}
    assert_eq!(a.seen, 5);
    assert_eq!(a.send(), Some(false));
    assert!(b.take() && b.take());
    assert_eq!(b.seen, a.sent);
}

#[test]
fn replies_between_threads() {
    let memory = memory();
    let [mut a, mut b] = sides(&memory);
    let until = |step: &mut dyn FnMut() -> bool| {
        while !step() {
            std::thread::yield_now();
        }
    };
    let (rounds, each) = (ROUNDS / 4, 50);
    std::thread::scope(|s| {
        s.spawn(move || {
            for round in 1..=rounds {
                until(&mut || a.send().is_some());
                if round % each == 0 {
                    until(&mut || a.send_long());
                    until(&mut || a.take());
                }
                until(&mut || a.take());
            }
            println!("{} records, {} of them answers", a.sent, a.replies);
            assert!(a.replies > a.sent / 2);
        });
        s.spawn(move || {
            for _ in 0..rounds + rounds / each {
                until(&mut || b.take());
                until(&mut || b.send().is_some());
            }
        });
    });
    memory.check();
}

/// Random bytes in the reply line yield a wrong record or none, and no access outside the memory.
#[test]
fn corrupt_reply_line_is_harmless() {
    let memory = memory();
    let [mut a, mut b] = sides(&memory);
    let (mut seed, mut corrupt, mut taken) = (1, 0_u32, 0_u32);
    b.send();
    for round in 0..ROUNDS {
        for at in 0..64 {
            if random(&mut seed) % 4 == 0 {
                memory.scribble(LINE + at, random(&mut seed) as u8);
            }
        }
        // Most random numbers differ from the expected one; this one is set to it.
        if round % 3 == 0 {
            for (at, byte) in (a.rx.consumed() + 1).to_le_bytes().iter().take(5).enumerate() {
                memory.scribble(LINE + 32 + at, *byte);
            }
        }
        a.rx.cancel_poll_delay();
        let look = a.rx.poll_inline(|_, line: &InlineRecord<'_>| {
            let mut bytes = [0_u8; 64];
            // SAFETY: the bytes outlive the copy, which is the only use.
            let to = unsafe { Mem::new(bytes.as_mut_ptr(), 64) };
            assert!(line.len() <= 24 && line.copy_payload(1, &to) <= 16);
            true
        });
        match look {
            PollOutcome::Consumed => {
                taken += 1;
                a.tx.expect_reply(a.rx.take_peer_ack());
                a.send();
            }
            PollOutcome::Unhandled => match a.rx.peek() {
                Ok(Some(record)) => {
                    assert!(record.head().len() <= 56);
                    a.rx.advance();
                }
                Ok(None) => {}
                Err(_) => corrupt += 1,
            },
            PollOutcome::Empty => {}
        }
    }
    assert!(corrupt > 0 && taken > 0);
    println!("{taken} records, {corrupt} refused");
    memory.check();
}
