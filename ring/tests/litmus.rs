// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Litmus tests on the processor at hand: two threads meet at a barrier, race, and compare what
//! each has seen. The loom models cover all executions that the language permits; these runs show
//! that the compiled instructions forbid the same outcomes.

#![expect(
    unsafe_code,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "lays structures over its own memory and indexes its own arrays"
)]

mod memory;

use memory::{Guarded, ring};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scif_ring::{
    BELL_BYTES, Bell, BellHandle, DIRECTION_BYTES, HAZARD_BYTES, HazardPointer, KEYTABLE_BYTES,
    KeyEntry, KeyReader, KeyTable, SharedU32, full_fence, publish_fence, sleeper_fence,
};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of races of a litmus test.
const ROUNDS: u32 = if cfg!(miri) { 50 } else { 300_000 };
/// Number of runs of a litmus test within which a race without fences must show the outcome that
/// the fences forbid.
const CONTROL_RUNS: u32 = 100;
/// Distance of two words, in bytes, so that they never share a pair of cache lines.
const APART: usize = 256;

/// Held during a litmus test, so that two tests do not share the processors.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// One side of a race. Both sides call the methods in this order for rounds 1, 2, 3 and so on; all
/// calls of one method on both sides end before the next method begins.
trait Side {
    fn prepare(&mut self, _round: u32) {}
    /// Returns whether this side saw the access of the other.
    fn race(&mut self, round: u32) -> bool;
    fn finish(&mut self, _round: u32) {}
}

/// A side without preparation.
struct Race<F>(F);

impl<F: FnMut(u32) -> bool> Side for Race<F> {
    fn race(&mut self, round: u32) -> bool {
        (self.0)(round)
    }
}

fn word(memory: &Guarded, number: usize) -> SharedU32 {
    // SAFETY: aligned, zeroed and inside of the memory, which outlives the threads of the test.
    unsafe { SharedU32::new(NonNull::new(memory.base().wrapping_add(number * APART)).unwrap()) }
}

/// Announces `step` to the other side and waits until it has announced as much.
fn meet(mine: SharedU32, theirs: SharedU32, step: u32) {
    mine.set(step);
    let mut polls = 0_u32;
    while theirs.get() < step {
        polls += 1;
        if polls % 1000 == 0 {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Runs one side. Returns for each round whether it saw the other.
fn run(
    side: &mut impl Side,
    words: [SharedU32; 2],
    rounds: u32,
    delay: fn(u32) -> (u32, u32),
) -> Vec<bool> {
    let [mine, theirs] = words;
    (1..=rounds)
        .map(|round| {
            side.prepare(round);
            meet(mine, theirs, 3 * round - 2);
            // The distance of both accesses varies, since the barrier releases one side later. It
            // does so in pauses, and in steps of some instructions: the store buffers of two
            // threads of one core, or of an emulator, delay a store for a few nanoseconds only.
            let (pauses, steps) = delay(round);
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            for step in 0..steps {
                std::hint::black_box(step);
            }
            let seen = side.race(round);
            meet(mine, theirs, 3 * round - 1);
            side.finish(round);
            meet(mine, theirs, 3 * round);
            seen
        })
        .collect()
}

/// Binds the calling thread to one processor, a different one for each `side`. The scheduler could
/// otherwise leave both sides on one processor, where no store buffer is between them.
fn bind(side: usize) {
    if cfg!(miri) {
        return;
    }
    let allowed = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    if let Some(cpu) = cpus.nth(side) {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).unwrap();
    }
}

/// Number of rounds in which neither, only the second, only the first and both saw the other.
fn outcomes(rounds: u32, mut a: impl Side + Send, mut b: impl Side + Send) -> [u32; 4] {
    let _alone = PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Guarded::new(4096);
    let (one, two) = (word(&memory, 0), word(&memory, 1));
    let mut count = [0; 4];
    thread::scope(|s| {
        let first = s.spawn(move || {
            bind(0);
            run(&mut a, [one, two], rounds, |round| (round % 8, round / 64 % 16))
        });
        let second = s.spawn(move || {
            bind(1);
            run(&mut b, [two, one], rounds, |round| (round / 8 % 8, round / 1024 % 16))
        });
        for (a, b) in first.join().unwrap().into_iter().zip(second.join().unwrap()) {
            count[2 * usize::from(a) + usize::from(b)] += 1;
        }
    });
    count
}

/// Each side stores its word and loads the other's. The fence is inlined: a call through a pointer
/// takes long enough in an emulator to empty a store buffer.
fn store_buffer(rounds: u32, fence: impl Fn() + Copy + Send) -> [u32; 4] {
    let memory = Guarded::new(4096);
    let (x, y) = (word(&memory, 0), word(&memory, 1));
    let side = |mine: SharedU32, theirs: SharedU32| {
        Race(move |round| {
            mine.set_relaxed(round);
            fence();
            theirs.get_relaxed() == round
        })
    };
    outcomes(rounds, side(x, y), side(y, x))
}

/// Without fences both sides miss each other, on every processor with store buffers. So the other
/// litmus tests have races.
#[test]
#[cfg_attr(miri, ignore = "runs no store buffers")]
fn store_buffers_are_seen_without_fences() {
    if thread::available_parallelism().unwrap().get() < 2 {
        println!("not tried here: threads of one processor do not race");
        return;
    }
    let seen = (0..CONTROL_RUNS).any(|_| store_buffer(ROUNDS, || ())[0] > 0);
    assert!(seen, "no store buffer was seen");
}

#[test]
fn full_fences_order_store_buffers() {
    assert_eq!(store_buffer(ROUNDS, full_fence)[0], 0);
}

#[test]
fn release_and_acquire_pass_a_message() {
    let memory = Guarded::new(4096);
    let (data, flag) = (word(&memory, 0), word(&memory, 1));
    let sender = Race(move |round| {
        data.set_relaxed(round);
        flag.set(round);
        true
    });
    // Whether the message was complete, or is not there yet.
    let receiver = Race(move |round| flag.get() != round || data.get_relaxed() == round);
    assert_eq!(outcomes(ROUNDS, sender, receiver), [0, 0, 0, ROUNDS]);
}

#[test]
fn no_load_sees_a_later_store() {
    let memory = Guarded::new(4096);
    let (x, y) = (word(&memory, 0), word(&memory, 1));
    let side = |mine: SharedU32, theirs: SharedU32| {
        Race(move |round| {
            let seen = theirs.get() == round;
            mine.set(round);
            seen
        })
    };
    assert_eq!(outcomes(ROUNDS, side(x, y), side(y, x))[3], 0);
}

struct Initiator {
    keys: KeyReader,
    hazard: HazardPointer,
    found: Option<(u32, u64)>,
}

impl Side for Initiator {
    fn prepare(&mut self, _: u32) {
        // The owner may insert the entry later than this lookup.
        while self.found.is_none() {
            self.found = self.keys.find(1).map(|(slot, generation, _)| (slot, generation));
        }
    }

    /// Whether the key was closed.
    fn race(&mut self, _: u32) -> bool {
        let (slot, generation) = self.found.take().unwrap();
        self.hazard.set(slot);
        !self.keys.revalidate(slot, generation)
    }

    fn finish(&mut self, _: u32) {
        self.hazard.clear();
    }
}

struct Owner {
    keys: KeyTable,
    hazard: HazardPointer,
    slot: u32,
}

impl Side for Owner {
    fn prepare(&mut self, _: u32) {
        self.slot = self.keys.insert(KeyEntry { key: 1, ..KeyEntry::default() }).unwrap();
    }

    /// Whether an initiator is inside.
    fn race(&mut self, _: u32) -> bool {
        self.keys.remove(self.slot);
        self.hazard.get() == Some(self.slot)
    }
}

#[test]
fn a_hazard_pointer_or_the_removal_is_seen() {
    let (table, line) = (Guarded::new(KEYTABLE_BYTES), Guarded::new(HAZARD_BYTES));
    // SAFETY: aligned, zeroed, and outlives both sides.
    let keys = unsafe { KeyTable::new(table.base()) };
    // SAFETY: as above.
    let reader = unsafe { KeyReader::new(table.base()) };
    // SAFETY: as above.
    let [hazard, seen] = [(); 2].map(|()| unsafe { HazardPointer::new(line.base()) });
    let owner = Owner { keys, hazard: seen, slot: 0 };
    let initiator = Initiator { keys: reader, hazard, found: None };
    assert_eq!(outcomes(ROUNDS, initiator, owner)[0], 0);
    table.check();
}

struct Sender {
    ring: scif_ring::Producer,
    bell: BellHandle,
}

impl Side for Sender {
    /// Whether the receiver sleeps, so that it is woken.
    fn race(&mut self, _: u32) -> bool {
        self.ring.push_head(1, &[]).unwrap();
        publish_fence(false);
        self.bell.sleeping()
    }
}

struct Sleeper {
    ring: scif_ring::Consumer,
    bell: Bell,
}

impl Side for Sleeper {
    /// Whether there is a record, so that it does not sleep.
    fn race(&mut self, _: u32) -> bool {
        self.bell.set_sleeping(true);
        sleeper_fence();
        self.ring.peek().unwrap().is_some()
    }

    fn finish(&mut self, _: u32) {
        self.bell.set_sleeping(false);
        assert!(self.ring.peek().unwrap().is_some());
        self.ring.advance();
        self.ring.flush();
    }
}

#[test]
fn a_sleeper_sees_the_record_or_is_woken() {
    let (slots, page) = (Guarded::new(DIRECTION_BYTES), Guarded::new(BELL_BYTES));
    let (tx, rx) = ring(&slots);
    // SAFETY: aligned, zeroed, and outlives both sides.
    let bell = unsafe { Bell::new(page.base()) };
    // SAFETY: as above.
    let handle = unsafe { BellHandle::new(page.base()) };
    let (sender, sleeper) = (Sender { ring: tx, bell: handle }, Sleeper { ring: rx, bell });
    assert_eq!(outcomes(ROUNDS, sender, sleeper)[0], 0);
    slots.check();
}
