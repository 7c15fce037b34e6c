// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Random mix of one-sided operations and messages over all paths, to a target that pauses at
//! random. Data, order and number of all of them are checked.
//!
//! Each seed is another mix: ten runs with other values of `--seed` make 10^6 operations.

use std::time::{Duration, Instant};

use libfabric_sys as sys;
use scif_fabtests::fi::{Buf, Entry, Errno, Ioc, Result};
use scif_fabtests::harness::{Case, Fail, Outcome, Rank, Rng, case};
use scif_fabtests::rig::{Remote, Rig, Spec};
use scif_fabtests::{check, check_eq};

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("rma/mix_to_a_target_that_pauses", 2, |rank| mix(rank, false, &SHORT)),
    case("rma/mix_in_both_directions", 2, |rank| mix(rank, true, &SHORT)),
    case("rma/large_mix_to_a_target_that_pauses", 2, |rank| mix(rank, false, &LARGE)),
    case("rma/large_mix_in_both_directions", 2, |rank| mix(rank, true, &LARGE)),
];

/// Size of a mix. A run takes about a second.
struct MixSize {
    /// Number of operations of a side.
    operations: u64,
    /// Largest length of an operation, in bytes.
    largest: usize,
    /// Number of operations of which one, on average, has a length up to `largest`. The others are
    /// short.
    one_large_in: usize,
}

const SHORT: MixSize = MixSize { operations: 100_000, largest: 64 << 10, one_large_in: 16 };
/// Mix with cooperative copies, which a target may be stopped in.
const LARGE: MixSize = MixSize { operations: 3_000, largest: AREA, one_large_in: 3 };
/// Bytes that are written and read at random, behind the words below.
const AREA: usize = 512 << 10;
/// Offsets of the number of the last message, and of the sum of all atomics.
const MAILBOX: usize = 0;
const SUM: usize = 8;
/// Offset of the area.
const AT: usize = 64;
/// Largest number of operations in flight, each with a buffer for the largest one.
const SLOTS: usize = 48;
/// Number of posted receives, so that messages seldom come unexpected.
const RECEIVES: usize = 16;
/// Longest time without progress for one operation to a stopped target.
const STOPPED: Duration = Duration::from_millis(10);

/// Memory of one operation, and the bytes that a read or an atomic must return.
struct Slot {
    buf: Buf,
    expected: Vec<u8>,
}

/// One side of the mix.
struct MixSide<'r> {
    rig: &'r Rig<'r>,
    size: &'static MixSize,
    rng: Rng,
    to: Remote,
    mine: Buf,
    /// Contents of the peer's memory.
    shadow: Vec<u8>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    inbox: Vec<Buf>,
    pauses: bool,
    /// Operation before which the stopped peer continues; `None` while the peer runs.
    stopped: Option<u64>,
    sums: u64,
    messages: u64,
    data: u64,
    seen_messages: u64,
    seen_data: u64,
    /// Number of writes with data of the peer, once it has ended.
    ended: Option<u64>,
}

fn mix(rank: &Rank, both: bool, size: &'static MixSize) -> Outcome {
    let rma = sys::FI_ORDER_RAW | sys::FI_ORDER_WAR | sys::FI_ORDER_WAW;
    let atomics = sys::FI_ORDER_ATOMIC_RAR | sys::FI_ORDER_ATOMIC_RAW | sys::FI_ORDER_ATOMIC_WAR;
    let order = rma | atomics | sys::FI_ORDER_ATOMIC_WAW | sys::FI_ORDER_SAS | sys::FI_ORDER_SAW;
    let rig = Rig::open(
        rank,
        &Spec::caps(sys::FI_RMA | sys::FI_MSG | sys::FI_ATOMIC).with(|spec| {
            spec.hints.tx.msg_order = order;
            spec.hints.rx.msg_order = order;
        }),
    )?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(AT + AREA), REMOTE)?;
    let mut side = MixSide {
        rig: &rig,
        size,
        rng: rank.own_rng(),
        to: from(&remotes, rank.peer(), 0)?,
        mine,
        shadow: vec![0; AT + AREA],
        slots: (0..SLOTS)
            .map(|_| Slot { buf: Buf::new(size.largest), expected: Vec::new() })
            .collect(),
        free: (0..SLOTS).collect(),
        inbox: (0..RECEIVES).map(|_| Buf::new(16)).collect(),
        pauses: both || rank.index == 1,
        stopped: None,
        sums: 0,
        messages: 0,
        data: 0,
        seen_messages: 0,
        seen_data: 0,
        ended: None,
    };
    for index in 0..RECEIVES {
        side.receive(index)?;
    }
    rig.barrier()?;
    if both || rank.index == 0 {
        for operation in 0..size.operations {
            side.operate()?;
            side.pause();
            if !both {
                side.stop_or_continue(operation)?;
            }
        }
        side.go_on()?;
        side.check_memory()?;
    }
    side.send(true)?;
    rig.wait("the end of the peer", || {
        side.look()?;
        side.pause();
        let done = side.ended == Some(side.seen_data) && side.free.len() == SLOTS;
        Ok(done.then_some(()))
    })?;
    rig.barrier()
}

impl MixSide<'_> {
    fn receive(&self, index: usize) -> Outcome {
        let Some(buf) = self.inbox.get(index) else { return Err(Fail::here("no such receive")) };
        self.rig.post(|| self.rig.ep.recv(*buf, sys::FI_ADDR_UNSPEC, index))
    }

    /// Handles all completions that have arrived.
    fn look(&mut self) -> Outcome {
        while let Some(sent) = self.rig.tx.take() {
            let Entry { context, .. } = sent.map_err(|e| Fail::here(format_args!("{e:?}")))?;
            let Some(slot) = self.slots.get_mut(context) else {
                return Err(Fail::here(format_args!("an unknown context {context}")));
            };
            let expected = std::mem::take(&mut slot.expected);
            let have = slot.buf.get(0, expected.len());
            check!(have == expected, "{} bytes differ from those written", expected.len());
            check!(!self.free.contains(&context), "two completions of one operation");
            self.free.push(context);
        }
        while let Some(received) = self.rig.rx.take() {
            let entry = received.map_err(|e| Fail::here(format_args!("{e:?}")))?;
            if entry.flags & sys::FI_RMA != 0 {
                check_eq!(entry.data, self.seen_data, "data out of order");
                self.seen_data += 1;
                continue;
            }
            let Some(message) = self.inbox.get(entry.context) else {
                return Err(Fail::here("an unknown receive"));
            };
            let (number, ended) = (message.load_u64(0), message.load_u64(8));
            check_eq!(number, self.seen_messages, "messages out of order");
            self.seen_messages += 1;
            let written = self.mine.load_u64(MAILBOX);
            check!(written >= number, "message {number} overtook its write, {written} is there");
            if ended != 0 {
                self.ended = Some(ended - 1);
            }
            self.receive(entry.context)?;
        }
        Ok(())
    }

    /// Posts an operation. To a stopped peer it is given up after a while, with false.
    fn post(&mut self, call: impl Fn(&Self) -> Result) -> Outcome<bool> {
        let begun = Instant::now();
        loop {
            match call(self) {
                Ok(()) => return Ok(true),
                Err(Errno::EAGAIN) => {}
                Err(e) => return Err(Fail::here(format_args!("posting: {e}"))),
            }
            if self.stopped.is_some() && begun.elapsed() > STOPPED {
                self.go_on()?;
            }
            self.rig.pump()?;
            self.look()?;
        }
    }

    /// Returns the number of a slot, after progress if there is none or at random.
    fn slot(&mut self) -> Outcome<usize> {
        let begun = Instant::now();
        while self.free.is_empty() || self.rng.one_in(8) {
            if self.stopped.is_some() && begun.elapsed() > STOPPED {
                self.go_on()?;
            }
            self.rig.pump()?;
            self.look()?;
        }
        self.free.pop().ok_or_else(|| Fail::here("no slot"))
    }

    fn part(&self, slot: usize, at: usize, len: usize) -> Buf {
        self.slots.get(slot).map_or(Buf::NULL, |slot| slot.buf.sub(at, len))
    }

    /// Notes the bytes of the peer's memory that an operation must return.
    fn expect_shadow(&mut self, slot: usize, at: usize, len: usize) {
        let bytes = self.shadow.get(at..at + len).unwrap_or_default().to_vec();
        self.expect(slot, bytes);
    }

    fn expect(&mut self, slot: usize, bytes: Vec<u8>) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.expected = bytes;
        }
    }

    /// Posts one operation at random.
    fn operate(&mut self) -> Outcome {
        match self.rng.below(16) {
            0..=7 => self.write(false),
            8..=9 => self.write(true),
            10..=12 => self.read(),
            13..=14 => self.add(),
            _ if self.stopped.is_none() => self.send(false),
            _ => Ok(()),
        }
    }

    /// Returns a random range of the area.
    fn range(&mut self) -> (usize, usize) {
        let most = match self.rng.below(16) {
            _ if self.rng.one_in(self.size.one_large_in) => self.size.largest,
            0..=8 => 64,
            _ => 4096,
        };
        let len = 1 + self.rng.below(most);
        (AT + self.rng.below(AREA - len + 1), len)
    }

    fn remember(&mut self, at: usize, bytes: &[u8]) {
        if let Some(shadow) = self.shadow.get_mut(at..at + bytes.len()) {
            shadow.copy_from_slice(bytes);
        }
    }

    fn write(&mut self, with_data: bool) -> Outcome {
        let (at, len) = self.range();
        let slot = self.slot()?;
        let buf = self.part(slot, 0, len);
        buf.fill_pattern(self.rng.next_u64());
        self.remember(at, &buf.bytes());
        let (addr, key, data) = (self.to.addr + at as u64, self.to.key, self.data);
        let injects = len <= self.rig.info.tx().inject_size && self.rng.one_in(3);
        self.post(|side| {
            let (ep, dest) = (&side.rig.ep, side.rig.peer());
            match (with_data, injects) {
                (false, false) => ep.write(buf, dest, addr, key, slot),
                (true, false) => ep.writedata(buf, data, dest, (addr, key), slot),
                (false, true) => ep.inject_write(buf, dest, addr, key),
                (true, true) => ep.inject_writedata(buf, data, dest, addr, key),
            }
        })?;
        self.data += u64::from(with_data);
        if injects {
            self.free.push(slot);
        }
        Ok(())
    }

    fn read(&mut self) -> Outcome {
        let (at, len) = self.range();
        let slot = self.slot()?;
        self.expect_shadow(slot, at, len);
        let (buf, addr, key) = (self.part(slot, 0, len), self.to.addr + at as u64, self.to.key);
        self.post(|side| side.rig.ep.read(buf, side.rig.peer(), addr, key, slot)).map(drop)
    }

    /// Adds to the sum, with or without fetching its value.
    fn add(&mut self) -> Outcome {
        let slot = self.slot()?;
        let (value, fetches) = (1 + self.rng.next_u64() % 9, self.rng.one_in(2));
        let (buf, operand) = (self.part(slot, 0, 8), self.part(slot, 8, 8));
        operand.store_u64(0, value);
        if fetches {
            self.expect(slot, self.sums.to_le_bytes().to_vec());
        }
        self.sums += value;
        let at = Remote { addr: self.to.addr + SUM as u64, ..self.to };
        self.post(|side| {
            let at = at.sum(side.rig.peer(), slot);
            let operand = Ioc { buf: operand, count: 1 };
            if fetches {
                side.rig.ep.fetch_atomic(&at, operand, buf)
            } else {
                side.rig.ep.atomic(&at, operand)
            }
        })
        .map(drop)
    }

    /// Writes the number of a message, and sends the message without a wait between.
    fn send(&mut self, is_last: bool) -> Outcome {
        let (word, slot) = (self.slot()?, self.slot()?);
        let (number, addr, key) = (self.messages, self.to.addr + MAILBOX as u64, self.to.key);
        let buf = self.part(word, 0, 8);
        buf.store_u64(0, number);
        self.post(|side| side.rig.ep.write(buf, side.rig.peer(), addr, key, word))?;
        let buf = self.part(slot, 0, 16);
        buf.store_u64(0, number);
        buf.store_u64(8, if is_last { self.data + 1 } else { 0 });
        self.post(|side| side.rig.ep.send(buf, side.rig.peer(), slot))?;
        self.messages += 1;
        Ok(())
    }

    /// Pauses at random between two looks for records.
    fn pause(&mut self) {
        if !self.pauses || !self.rng.one_in(500) {
            return;
        }
        let time = Duration::from_micros(1 << self.rng.below(13));
        if self.rng.one_in(2) {
            return std::thread::sleep(time);
        }
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// Stops the peer for some operations at random.
    fn stop_or_continue(&mut self, operation: u64) -> Outcome {
        match self.stopped {
            Some(end) if operation >= end => self.go_on(),
            None if self.rng.one_in(3000) => {
                self.stopped = Some(operation + 1 + self.rng.next_u64() % 100);
                self.rig.rank.stop(self.rig.rank.peer())
            }
            _ => Ok(()),
        }
    }

    fn go_on(&mut self) -> Outcome {
        match self.stopped.take() {
            Some(_) => self.rig.rank.resume(self.rig.rank.peer()),
            None => Ok(()),
        }
    }

    /// Reads all of the peer's memory, once every operation is complete.
    fn check_memory(&mut self) -> Outcome {
        for at in (AT..AT + AREA).step_by(self.size.largest) {
            let slot = self.slot()?;
            let len = self.size.largest;
            self.expect_shadow(slot, at, len);
            let (buf, addr) = (self.part(slot, 0, len), self.to.addr + at as u64);
            let key = self.to.key;
            self.post(|side| side.rig.ep.read(buf, side.rig.peer(), addr, key, slot))?;
        }
        let slot = self.slot()?;
        self.expect(slot, self.sums.to_le_bytes().to_vec());
        let (buf, addr, key) = (self.part(slot, 0, 8), self.to.addr + SUM as u64, self.to.key);
        let at =
            Remote { addr, key, len: 8 }.atomic(self.rig.peer(), sys::FI_UINT64, sys::FI_SUM, slot);
        let zero = Ioc { buf: Buf::new(8), count: 1 };
        self.post(|side| side.rig.ep.fetch_atomic(&at, zero, buf)).map(drop)
    }
}
