// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations of rank 0 on the memory of rank 1: RMA and atomics.
//!
//! During the timed part the target stays outside the library and polls a word of the segment,
//! unless the sample requests otherwise. If operations make no progress then, the target enters the
//! library to finish the sample, and the sample is marked. The provider is then measured with its
//! target inside the library.

use std::cell::Cell;
use std::ops::Range;

use scif_fabtests::prelude::*;

use super::os::now_ns;
use super::port::{Far, Port, refused};
use super::protocol::{Kind, Test, WINDOW};
use super::segment::Use;
use super::shm_barrier::ShmBarrier;
use super::touch;

const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;
const OVER: u64 = 2;

/// Number of operations after which the target may call the library, in an untimed pause. Some
/// providers report each operation to the target in a finite queue.
const AT_ONCE: u64 = 512;
/// Nanoseconds without any completion after which the target is called into the library.
const PATIENCE_NS: u64 = 60_000_000;
/// Number of empty polls between two reads of the clock, which would slow down every poll.
const LOOK: u32 = 4096;
/// Minimum number of clock reads before the target is called in. A rank without a processor for a
/// while has not waited for its target.
const LOOKS: u32 = 32;

/// Operations of one kind and size on a port.
pub(crate) struct OneSided<'a> {
    pub(crate) port: &'a Port,
    pub(crate) barrier: &'a ShmBarrier,
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) inside: bool,
    pub(crate) stalled: Cell<bool>,
}

impl OneSided<'_> {
    /// Time in nanoseconds of `count` iterations after `warm` untimed ones.
    pub(crate) fn run(&self, warm: u64, count: u64) -> Outcome<u64> {
        if self.test.kind() == Kind::Touched {
            return self.touched(warm, count);
        }
        if self.test == Test::WritePoll {
            return self.bounced(warm, count);
        }
        let window = if self.test.kind() == Kind::Single { 1 } else { WINDOW };
        let most = (AT_ONCE / window as u64).max(1);
        let mut time = 0;
        for (turns, timed) in [(warm, false), (count, true)] {
            let mut left = turns;
            while left > 0 {
                let turns = left.min(most);
                let ns = self.bout(turns, window)?;
                time += if timed { ns } else { 0 };
                left -= turns;
            }
        }
        Ok(time)
    }

    /// Publishes whether the target calls the library, before both ranks meet.
    fn place_target(&self) {
        if self.barrier.rank == 0 {
            let inside = self.inside || self.stalled.get();
            let call = self.barrier.segment.word(Use::Call);
            call.set(if inside { INSIDE } else { OUTSIDE });
        }
    }

    /// Time of `turns` windows with the target in its chosen place; before and after, it calls the
    /// library.
    fn bout(&self, turns: u64, window: usize) -> Outcome<u64> {
        let call = self.barrier.segment.word(Use::Call);
        self.place_target();
        self.barrier.meet(|| self.port.progress())?;
        let mut time = 0;
        if self.barrier.rank == 0 {
            time = self.initiate(turns, window)?;
            call.set(OVER);
        } else {
            while call.get() != OVER {
                self.idle()?;
                std::hint::spin_loop();
            }
            for _ in 0..WINDOW {
                self.port.progress()?;
            }
        }
        self.barrier.meet(|| self.port.progress())?;
        Ok(time)
    }

    fn touched(&self, warm: u64, count: u64) -> Outcome<u64> {
        self.place_target();
        self.barrier.meet(|| self.port.progress())?;
        let time = if self.barrier.rank == 0 {
            self.initiate_touched(warm, count)?
        } else {
            self.endure_touched(warm + count)?;
            0
        };
        self.barrier.meet(|| self.port.progress())?;
        Ok(time)
    }

    /// Time of `count` round trips in which both ranks poll a word of their own memory and write it
    /// back to the other rank.
    fn bounced(&self, warm: u64, count: u64) -> Outcome<u64> {
        let far = self.far()?;
        let mine = self.port.into.sub(0, 8);
        let mut time = 0;
        for (turns, timed) in [(warm, false), (count, true)] {
            let mut turn = 0;
            while turn < turns {
                // Between bouts each rank makes progress for the other.
                mine.store_u64(0, 0);
                for _ in 0..WINDOW {
                    self.barrier.meet(|| self.port.progress())?;
                }
                let until = turns.min(turn + AT_ONCE);
                let start = now_ns();
                self.bounce(far, turn..until)?;
                turn = until;
                time += if timed { now_ns() - start } else { 0 };
                self.barrier.meet(|| self.port.progress())?;
            }
        }
        Ok(time)
    }

    /// Bounces the word, from the value after each of `turns`.
    #[inline]
    fn bounce(&self, far: Far, turns: Range<u64>) -> Outcome {
        let (mine, out) = (self.port.into.sub(0, 8), self.port.out.sub(0, 8));
        let first = self.barrier.rank == 0;
        let mut sent = self.port.sent();
        for turn in turns {
            if !first {
                self.see(mine, turn + 1)?;
            }
            out.store_u64(0, turn + 1);
            self.post(far)?;
            sent += 1;
            self.wait(sent)?;
            if first {
                self.see(mine, turn + 1)?;
            }
        }
        Ok(())
    }

    /// Waits for a word, outside the library unless it takes more than 16,384 polls.
    fn see(&self, mine: Buf, turn: u64) -> Outcome {
        const LONG: u32 = 1 << 14;
        let mut polls = 0_u32;
        while mine.load_u64(0) != turn {
            polls = polls.saturating_add(1);
            if self.inside || polls > LONG {
                self.port.progress()?;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Makes progress for the waiting target, if it is inside the library.
    fn idle(&self) -> Outcome {
        if self.barrier.segment.word(Use::Call).get() == INSIDE {
            self.port.progress()?;
        }
        Ok(())
    }

    fn initiate(&self, turns: u64, window: usize) -> Outcome<u64> {
        let far = self.far()?;
        let mut sent = self.port.sent();
        let start = now_ns();
        for _ in 0..turns {
            for _ in 0..window {
                self.post(far)?;
            }
            sent += window as u64;
            self.wait(sent)?;
        }
        Ok(now_ns() - start)
    }

    fn initiate_touched(&self, warm: u64, count: u64) -> Outcome<u64> {
        let far = self.far()?;
        let out = self.port.out.sub(0, self.size);
        let mut sent = self.port.sent();
        let mut total = 0;
        for turn in 0..warm + count {
            touch::write(out, turn);
            self.barrier.meet(|| self.port.progress())?;
            let start = now_ns();
            self.post(far)?;
            sent += 1;
            self.wait(sent)?;
            if turn >= warm {
                total += now_ns() - start;
            }
            self.barrier.meet(|| self.port.progress())?;
        }
        Ok(total)
    }

    fn endure_touched(&self, count: u64) -> Outcome {
        for _ in 0..count {
            self.barrier.meet(|| self.idle())?;
            self.barrier.meet(|| self.idle())?;
            self.port.progress()?;
            touch::read(self.port.into.sub(0, self.size));
        }
        Ok(())
    }

    fn far(&self) -> Outcome<Far> {
        self.port.far.ok_or_else(|| Fail::here("nothing is exposed"))
    }

    /// Posts one operation.
    #[inline]
    fn post(&self, far: Far) -> Outcome {
        let Port { ep, peer, out, .. } = self.port;
        let (buf, word) = (out.sub(0, self.size), |at| out.sub(at, 8));
        let operand = Ioc { buf: word(0), count: 1 };
        let at = |op| AtomicTarget {
            dest: *peer,
            addr: far.addr,
            key: far.key,
            datatype: sys::FI_UINT64,
            op,
            context: 3,
        };
        let call = || match self.test {
            Test::ReadLat | Test::ReadBw | Test::ReadRate => {
                ep.read(buf, *peer, far.addr, far.key, 3)
            }
            Test::SumLat | Test::SumRate => ep.atomic(&at(sys::FI_SUM), operand),
            Test::FetchLat | Test::FetchRate => {
                ep.fetch_atomic(&at(sys::FI_SUM), operand, word(64))
            }
            Test::CswapLat | Test::CswapRate => {
                let (compare, result): (Buf, Buf) = (word(128), word(64));
                ep.compare_atomic(&at(sys::FI_CSWAP), operand, compare, result)
            }
            _ => ep.write(buf, *peer, far.addr, far.key, 3),
        };
        let mut watch = Watch::default();
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN) => {
                    if self.port.poll_sent()? == 0 {
                        self.look(&mut watch);
                    }
                    self.port.poll_received()?;
                }
                Err(e) => return Err(refused(e)),
            }
        }
    }

    /// Waits until `until` operations have completed in total.
    #[inline]
    fn wait(&self, until: u64) -> Outcome {
        let mut watch = Watch::default();
        while self.port.sent() < until {
            if self.port.poll_sent()? == 0 {
                self.look(&mut watch);
            }
        }
        Ok(())
    }

    /// Counts an empty poll, and calls the target into the library after [`PATIENCE_NS`] without a
    /// completion.
    #[inline]
    fn look(&self, watch: &mut Watch) {
        watch.polls += 1;
        if watch.polls >= LOOK {
            watch.polls = 0;
            watch.looks += 1;
            let now = now_ns();
            if watch.since == 0 {
                watch.since = now;
            } else if watch.looks > LOOKS && now - watch.since > PATIENCE_NS && !self.inside {
                self.barrier.segment.word(Use::Call).set(INSIDE);
                self.stalled.set(true);
            }
        }
    }
}

#[derive(Default)]
struct Watch {
    polls: u32,
    looks: u32,
    since: u64,
}
