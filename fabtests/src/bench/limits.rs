// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Limits of the machine, measured by the same ranks in the same run. A cache line is handed over,
//! and lines pass through a ring. One processor or both copy, in shared memory and across
//! processes.
//!
//! Limits are bounds, not targets: no matching, no completions, no protection. No provider is used.

use std::cell::Cell;

use rustix::process::{Pid, getpid};
use scif_fabtests::harness::{Fail, Outcome};
use scif_ring::Mem;

use super::os::{copy_across, let_peer_in, now_ns};
use super::protocol::{Kind, Sample, Test, WINDOW};
use super::segment::{LARGEST, SLOTS, Use, private};
use super::shm_barrier::ShmBarrier;
use super::touch;

/// Limit of the machine, named like a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A cache line that moves to the other processor and back; lines through a ring.
    Line,
    /// One processor copies between two places in shared memory.
    Copy,
    /// Each of the two processors copies one half.
    Copy2,
    /// The receiver reads the memory of the sender.
    ProcessVm,
    /// The receiver reads one half while the sender writes the other half.
    ProcessVm2,
}

impl Limit {
    pub(crate) const ALL: [Limit; 5] =
        [Limit::Line, Limit::Copy, Limit::Copy2, Limit::ProcessVm, Limit::ProcessVm2];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Limit::Line => "line",
            Limit::Copy => "copy",
            Limit::Copy2 => "copy2",
            Limit::ProcessVm => "process_vm",
            Limit::ProcessVm2 => "process_vm2",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Limit> {
        Limit::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Whether this limit bounds the test at this size.
    pub(crate) fn serves(self, test: Test, size: usize) -> bool {
        match (self, test) {
            (Limit::Line, Test::TaggedLat) => size == 8,
            (Limit::Line, Test::TaggedRate) => true,
            (Limit::Line, _) => false,
            (_, Test::TaggedBw | Test::TaggedTouched) => size >= 4096,
            (_, _) => false,
        }
    }
}

/// One rank of a pair that measures a limit.
pub(crate) struct Bounds {
    limit: Limit,
    /// Number of lines passed through the ring so far.
    passed: Cell<u64>,
    own: Mem,
    peer: Pid,
    /// Address of the memory of the other rank, in its address space.
    theirs: u64,
}

impl Bounds {
    /// Exchanges addresses with the other rank, which makes the same call.
    pub(crate) fn open(limit: Limit, barrier: &ShmBarrier) -> Outcome<Bounds> {
        let_peer_in();
        let own = match limit {
            Limit::Copy | Limit::Copy2 => barrier.segment.bytes(barrier.rank),
            _ => private(LARGEST)?,
        };
        touch::write_mem(&own, 1);
        barrier.mine([Use::Addr0, Use::Addr1]).set(own.addr() as u64);
        let pid = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        barrier.mine([Use::Pid0, Use::Pid1]).set(pid);
        barrier.meet_idly();
        let pid =
            i32::try_from(barrier.theirs([Use::Pid0, Use::Pid1]).get()).map_err(Fail::here)?;
        Ok(Bounds {
            limit,
            passed: Cell::new(0),
            own,
            peer: Pid::from_raw(pid).ok_or_else(|| Fail::here("no peer"))?,
            theirs: barrier.theirs([Use::Addr0, Use::Addr1]).get(),
        })
    }

    /// Time in nanoseconds of one sample, after `warm` untimed iterations.
    pub(crate) fn run(&self, barrier: &ShmBarrier, sample: &Sample, warm: u64) -> Outcome<u64> {
        match sample.test.kind() {
            Kind::HalfTrip => {
                barrier.meet_idly();
                let start = now_ns();
                super::placement::round_trips(barrier, sample.count);
                Ok(now_ns() - start)
            }
            Kind::Rate => Ok(self.pass(barrier, sample.count * WINDOW as u64)),
            Kind::Touched => self.touched(barrier, sample.size, warm, sample.count),
            Kind::Bandwidth | Kind::Single | Kind::Poll => {
                self.stream(barrier, sample.size, warm * WINDOW as u64)?;
                self.stream(barrier, sample.size, sample.count * WINDOW as u64)
            }
        }
    }

    /// Passes `count` lines from rank 0 to rank 1, each with eight bytes beside its sequence
    /// number.
    fn pass(&self, barrier: &ShmBarrier, count: u64) -> u64 {
        const TELL: u64 = SLOTS as u64 / 8;
        let consumed = barrier.segment.word(Use::Consumed);
        let first = self.passed.get();
        let last = first + count;
        self.passed.set(last);
        barrier.meet_idly();
        let start = now_ns();
        if barrier.rank == 0 {
            let mut free_until = consumed.get() + SLOTS as u64;
            for index in first..last {
                while index >= free_until {
                    free_until = consumed.get() + SLOTS as u64;
                }
                let (sequence, payload) = barrier.segment.slot(index);
                payload.set(index);
                sequence.set(index + 1);
            }
            while consumed.get() < last {
                std::hint::spin_loop();
            }
        } else {
            for index in first..last {
                let (sequence, payload) = barrier.segment.slot(index);
                while sequence.get() != index + 1 {
                    std::hint::spin_loop();
                }
                std::hint::black_box(payload.get());
                if (index + 1) % TELL == 0 || index + 1 == last {
                    consumed.set(index + 1);
                }
            }
        }
        now_ns() - start
    }

    /// Executes the part of this rank in moving `size` bytes from rank 0 to rank 1.
    #[inline]
    fn part(&self, barrier: &ShmBarrier, size: usize) -> Outcome {
        let both = matches!(self.limit, Limit::Copy2 | Limit::ProcessVm2);
        let half = if both { size / 2 } else { 0 };
        let (off, len) = if barrier.rank == 0 { (0, half) } else { (half, size - half) };
        if len == 0 {
            return Ok(());
        }
        let part =
            |mem: &Mem| mem.sub(off, len).ok_or_else(|| Fail::here("larger than the buffers"));
        match self.limit {
            Limit::Copy | Limit::Copy2 => {
                let to = part(&barrier.segment.bytes(1))?;
                to.copy_from(&part(&barrier.segment.bytes(0))?);
                Ok(())
            }
            _ => copy_across(
                self.peer,
                &part(&self.own)?,
                self.theirs + off as u64,
                barrier.rank == 0,
            ),
        }
    }

    /// Time from the first start to the last end of `work` in both ranks.
    fn together(&self, barrier: &ShmBarrier, work: impl FnOnce() -> Outcome) -> Outcome<u64> {
        let (starts, ends) = ([Use::Start0, Use::Start1], [Use::End0, Use::End1]);
        barrier.meet_idly();
        barrier.mine(starts).set(now_ns());
        work()?;
        barrier.mine(ends).set(now_ns());
        barrier.meet_idly();
        let start = barrier.mine(starts).get().min(barrier.theirs(starts).get());
        let end = barrier.mine(ends).get().max(barrier.theirs(ends).get());
        Ok(end.saturating_sub(start))
    }

    fn stream(&self, barrier: &ShmBarrier, size: usize, count: u64) -> Outcome<u64> {
        self.together(barrier, || (0..count).try_for_each(|_| self.part(barrier, size)))
    }

    fn touched(&self, barrier: &ShmBarrier, size: usize, warm: u64, count: u64) -> Outcome<u64> {
        let mine = self.own.sub(0, size).ok_or_else(|| Fail::here("larger than the buffers"))?;
        let mut total = 0;
        for turn in 0..warm + count {
            if barrier.rank == 0 {
                touch::write_mem(&mine, turn);
            }
            let time = self.together(barrier, || self.part(barrier, size))?;
            if turn >= warm {
                total += time;
            }
            if barrier.rank == 1 {
                touch::read_mem(&mine);
            }
        }
        Ok(total)
    }
}
