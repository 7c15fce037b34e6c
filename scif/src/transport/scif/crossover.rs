// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Lengths from which RMA by DMA takes less time than by the CPU, measured once for each node of
//! peers.
//!
//! Both sides measure while they agree on the place of rings, in threads: the data areas of the
//! rings are unused then. Not about implementations that name the length themselves
//! ([`WindowCalls::dma_min`]).

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use scif_ring::{AtomicCounter, Mem};

use crate::failure::Failure;
use crate::fence::Signal;
use crate::segment::WINDOW_DATA;
use crate::sorted::SortedMap;
use crate::sys::errno::lock;
use crate::sys::mmap::Mapping;
use crate::sys::time::{cpu_relax_or_yield, now_ns, thread_cpu_ns};
use crate::window_calls::{RmaMode, RmaWay, WindowCalls};

/// Lengths in bytes that are compared, in ascending order: copies by the CPU over a bus may take a
/// millisecond for the greatest. DMA of fewer bytes is not measured.
const LENGTHS: [usize; 4] = [4096, 8192, 16384, LONGEST];
/// Greatest of them in bytes, half of the data area of a ring.
const LONGEST: usize = 32768;
/// Number of RMAs of each kind. The fastest one counts, so that an interruption does not.
const REPEATS: u32 = 3;
/// Time in nanoseconds for each direction. Beyond it no further length is compared, so that a first
/// message is hardly delayed.
const LIMIT_NS: u64 = 300_000;
/// Time in nanoseconds for the end of DMA that has begun. Later it may still write, and the rings
/// cannot lie in these windows.
const DMA_LIMIT_NS: u64 = 1_000_000_000;
/// Length in bytes from which DMA executes an RMA that was not measured, or where the CPU was
/// faster at the greatest length: it leaves the processor to the program.
const DEFAULT: u64 = 256 << 10;
/// Offset in a window of the word of fences, behind the bytes that are copied.
const WORD: usize = WINDOW_DATA + LONGEST;

/// Lengths in bytes from which RMA is left to DMA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Crossover {
    pub(super) read: u64,
    pub(super) write: u64,
}

/// Lengths of one node. Its channels share them, so that a channel which was opened before the end
/// of the measurement follows the result.
#[derive(Debug)]
pub(super) struct NodeLengths {
    read: AtomicCounter,
    write: AtomicCounter,
}

/// State of the measurement for one node.
#[derive(Debug)]
struct NodeMeasurement {
    /// Whether it has begun, and perhaps failed.
    has_begun: bool,
    lengths: Arc<NodeLengths>,
}

/// Measurements by node. The lengths are the default until one succeeds.
static MEASURED: Mutex<SortedMap<u16, NodeMeasurement>> = Mutex::new(SortedMap::new());

/// Buffers of failed measurements, which DMA may still use.
static ABANDONED: Mutex<Vec<Arc<Mapping>>> = Mutex::new(Vec::new());

impl Crossover {
    /// Returns the same length for both directions.
    pub(super) fn at(len: u64) -> Crossover {
        Crossover { read: len, write: len }
    }
}

impl NodeLengths {
    /// Returns lengths of their own, which no measurement changes.
    pub(super) fn fixed(Crossover { read, write }: Crossover) -> Arc<NodeLengths> {
        let (read, write) = (AtomicCounter::new(read), AtomicCounter::new(write));
        Arc::new(NodeLengths { read, write })
    }

    /// Returns the lengths for peers on a node.
    pub(super) fn of(node: u16) -> Arc<NodeLengths> {
        Arc::clone(&lock(&MEASURED).get_or_insert_with(node, Default::default).lengths)
    }

    /// Returns the length of one direction. The two are independent of each other.
    pub(super) fn of_way(&self, way: RmaWay) -> u64 {
        match way {
            RmaWay::Read => self.read.get_relaxed(),
            RmaWay::Write => self.write.get_relaxed(),
        }
    }

    fn set(&self, Crossover { read, write }: Crossover) {
        self.read.set_relaxed(read);
        self.write.set_relaxed(write);
    }
}

impl Default for NodeMeasurement {
    fn default() -> NodeMeasurement {
        let lengths = NodeLengths::fixed(Crossover::at(DEFAULT));
        NodeMeasurement { has_begun: false, lengths }
    }
}

/// Clocks in nanoseconds.
#[derive(Clone, Copy)]
struct Clocks<'a> {
    now: &'a dyn Fn() -> u64,
    /// Processor time of this thread, which an interruption does not lengthen.
    cpu: &'a dyn Fn() -> u64,
}

/// Least times of one length in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct LeastTimes {
    cpu: u64,
    dma: u64,
}

impl LeastTimes {
    /// Whether DMA takes at most nine tenths of the time: a smaller difference may be noise. Times
    /// of zero are none.
    fn favour_dma(self) -> bool {
        self.dma > 0 && self.dma.saturating_mul(10) <= self.cpu.saturating_mul(9)
    }
}

/// Failed measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Unmeasured {
    failure: Failure,
    /// Whether DMA may still be in progress.
    may_write: bool,
}

/// Windows of an unused connection on both sides.
pub(super) struct UnusedWindows<'a> {
    pub(super) calls: &'a dyn WindowCalls,
    pub(super) fd: RawFd,
    /// Memory of this side, and its offset.
    pub(super) own: &'a Arc<Mapping>,
    pub(super) own_offset: i64,
    /// Offset of the peer's window.
    pub(super) peer_offset: i64,
}

/// Measures the lengths for a node, unless that was done or the implementation names one. Returns
/// whether rings may lie in the windows: not if DMA may still write to them.
pub(super) fn measure_once(node: u16, windows: &UnusedWindows<'_>) -> bool {
    measure_by(Clocks { now: &now_ns, cpu: &|| thread_cpu_ns().1 }, node, windows)
}

/// Does the work of [`measure_once`] by these clocks.
fn measure_by(clocks: Clocks<'_>, node: u16, windows: &UnusedWindows<'_>) -> bool {
    if windows.calls.dma_min().is_some() {
        return true;
    }
    let lengths = {
        let mut measured = lock(&MEASURED);
        let of_node = measured.get_or_insert_with(node, Default::default);
        if std::mem::replace(&mut of_node.has_begun, true) {
            return true;
        }
        Arc::clone(&of_node.lengths)
    };
    let begun = (clocks.now)();
    match windows.measure(clocks) {
        Ok(crossover) => {
            log::debug!(
                "RMA of peers on node {node} by DMA: reads from {} bytes on, writes from {}; \
                 measured in {} us. SCIF_DMA_MIN sets another length",
                crossover.read,
                crossover.write,
                (clocks.now)().saturating_sub(begun) / 1000
            );
            lengths.set(crossover);
            true
        }
        Err(Unmeasured { failure, may_write }) => {
            log::debug!(
                "RMA between the rings of node {node}: {failure}; DMA executes RMA from {DEFAULT} \
                 bytes on. SCIF_DMA_MIN sets another length"
            );
            !may_write
        }
    }
}

impl UnusedWindows<'_> {
    fn measure(&self, clocks: Clocks<'_>) -> Result<Crossover, Unmeasured> {
        let failed = |failure| Unmeasured { failure, may_write: false };
        let buffer = Mapping::private(LONGEST).map_err(|errno| failed(Failure::Os(errno)))?;
        let buffer = Arc::new(buffer);
        let mut fences = 0;
        let mut cross = |way| self.cross(way, &buffer, &mut fences, clocks);
        let measured = cross(RmaWay::Write)
            .and_then(|write| Ok(Crossover { write, read: cross(RmaWay::Read)? }));
        if measured.is_err_and(|unmeasured| unmeasured.may_write) {
            lock(&ABANDONED).push(buffer);
        }
        measured
    }

    /// Returns the first length from which on DMA was faster at each length compared.
    fn cross(
        &self,
        way: RmaWay,
        buffer: &Mapping,
        fences: &mut u64,
        clocks: Clocks<'_>,
    ) -> Result<u64, Unmeasured> {
        let end = (clocks.now)() + LIMIT_NS;
        let mut first = None;
        for len in LENGTHS {
            let least = self.compare(way, (buffer, len), fences, (clocks, end))?;
            let len = len as u64;
            first = if least.favour_dma() { first.or(Some(len)) } else { None };
            // The next length takes twice the time.
            let next = 2 * u64::from(REPEATS) * least.cpu.saturating_add(least.dma);
            if (clocks.now)().saturating_add(next) > end {
                break;
            }
        }
        Ok(first.unwrap_or(DEFAULT))
    }

    /// Measures one length. Repeats until `end`.
    fn compare(
        &self,
        way: RmaWay,
        (buffer, len): (&Mapping, usize),
        fences: &mut u64,
        (clocks, end): (Clocks<'_>, u64),
    ) -> Result<LeastTimes, Unmeasured> {
        let failed = |failure| Unmeasured { failure, may_write: false };
        let near = buffer.bytes(0, len).map_err(|_| failed(Failure::Broken))?;
        let mut least = LeastTimes { cpu: u64::MAX, dma: u64::MAX };
        for _ in 0..REPEATS {
            let begun = (clocks.cpu)();
            self.transfer(way, &near, RmaMode::Cpu).map_err(failed)?;
            least.cpu = least.cpu.min((clocks.cpu)().saturating_sub(begun));
            *fences += 1;
            let begun = (clocks.now)();
            self.transfer(way, &near, RmaMode::Dma).map_err(failed)?;
            self.wait(*fences, begun + DMA_LIMIT_NS, clocks)
                .map_err(|failure| Unmeasured { failure, may_write: true })?;
            let ended = (clocks.now)();
            least.dma = least.dma.min(ended.saturating_sub(begun));
            if ended > end {
                break;
            }
        }
        Ok(least)
    }

    fn transfer(&self, way: RmaWay, near: &Mem, mode: RmaMode) -> Result<(), Failure> {
        let far = self.peer_offset + WINDOW_DATA as i64;
        self.calls.transfer(self.fd, way, near, far, mode)
    }

    /// Waits until a fence behind all RMAs has stored a number.
    fn wait(&self, number: u64, end: u64, clocks: Clocks<'_>) -> Result<(), Failure> {
        let word = self.own.word64(WORD).map_err(|_| Failure::Broken)?;
        let offset = self.own_offset + WORD as i64;
        self.calls.signal_after_own(self.fd, Signal { offset, value: number })?;
        let mut polls = 0;
        while word.get() != number {
            if (clocks.now)() > end {
                return Err(Failure::Os(Errno::TIMEDOUT));
            }
            polls += 1;
            cpu_relax_or_yield(polls);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::WINDOW_BYTES;
    use crate::window_calls::WindowAccess;

    const OWN: i64 = 1 << 20;
    const PEER: i64 = 1 << 21;
    const PAGE_NS: u64 = 1000;
    /// Time of a CPU that is taken from a thread, longer than a measurement.
    const INTERRUPTION_NS: u64 = 3_000_000;

    /// Calls whose times come from a model.
    #[derive(Clone, Copy, Debug)]
    struct Times {
        /// Time in nanoseconds of a page by the CPU: of reads, and of writes.
        cpu: (u64, u64),
        /// Time in nanoseconds of any RMA by DMA. `None`: its end is never reported.
        dma: Option<u64>,
        /// Number of the copy by the CPU, and of the DMA, that is interrupted.
        interrupted: (usize, usize),
        named: Option<u64>,
    }

    impl Times {
        fn new(cpu_ns: u64, dma: Option<u64>) -> Times {
            Times { cpu: (cpu_ns, cpu_ns), dma, interrupted: (0, 0), named: None }
        }
    }

    #[derive(Debug)]
    struct TimedCalls {
        times: Times,
        own: Arc<Mapping>,
        /// Time, processor time, copies by the CPU, and by DMA.
        state: Mutex<(u64, u64, usize, usize)>,
    }

    impl WindowCalls for TimedCalls {
        fn register_at(
            &self,
            _: RawFd,
            _: (usize, usize),
            _: i64,
            _: WindowAccess,
        ) -> Result<(), Failure> {
            Err(Failure::NotSupported)
        }

        fn unregister(&self, _: RawFd, _: i64, _: usize) -> Result<(), Failure> {
            Err(Failure::NotSupported)
        }

        fn transfer(
            &self,
            _: RawFd,
            way: RmaWay,
            near: &Mem,
            far: i64,
            mode: RmaMode,
        ) -> Result<(), Failure> {
            assert_eq!(far, PEER + WINDOW_DATA as i64, "an unused part of the window");
            let pages = near.len() as u64 / 4096;
            let (now, cpu, copies, dmas) = &mut *lock(&self.state);
            let Times { cpu: (read, write), dma, interrupted, .. } = self.times;
            let (took, is_interrupted) = match mode {
                RmaMode::Cpu => {
                    *copies += 1;
                    let took = pages * if way == RmaWay::Read { read } else { write };
                    *cpu += took;
                    (took, *copies == interrupted.0)
                }
                RmaMode::Dma => {
                    *dmas += 1;
                    (dma.unwrap_or(0), *dmas == interrupted.1)
                }
            };
            *now += took + if is_interrupted { INTERRUPTION_NS } else { 0 };
            Ok(())
        }

        fn dma_min(&self) -> Option<u64> {
            self.times.named
        }

        fn signal_after_own(&self, _: RawFd, signal: Signal) -> Result<(), Failure> {
            if self.times.dma.is_some() {
                let at = usize::try_from(signal.offset - OWN).unwrap();
                assert!(at >= WINDOW_DATA + LONGEST, "where the peer copies");
                self.own.word64(at).unwrap().set(signal.value);
            }
            Ok(())
        }
    }

    impl TimedCalls {
        fn new(times: Times) -> TimedCalls {
            let own = Arc::new(Mapping::private(WINDOW_BYTES).unwrap());
            TimedCalls { times, own, state: Mutex::default() }
        }

        fn windows(&self) -> UnusedWindows<'_> {
            UnusedWindows {
                calls: self,
                fd: -1,
                own: &self.own,
                own_offset: OWN,
                peer_offset: PEER,
            }
        }
    }

    /// Calls a function with the windows and the clocks of these times. Returns its result, and
    /// the time in nanoseconds.
    fn timed<R>(times: Times, call: impl Fn(&UnusedWindows<'_>, Clocks<'_>) -> R) -> (R, u64) {
        let calls = TimedCalls::new(times);
        // Each reading takes 1 ns. The wait for a fence without an end takes larger steps.
        let step = if times.dma.is_some() { 1 } else { 1_000_000 };
        let now = || {
            let mut state = lock(&calls.state);
            state.0 += step;
            state.0
        };
        let result = call(&calls.windows(), Clocks { now: &now, cpu: &|| lock(&calls.state).1 });
        let took = lock(&calls.state).0;
        (result, took)
    }

    fn measured(times: Times) -> (Result<Crossover, Unmeasured>, u64) {
        timed(times, |windows, clocks| windows.measure(clocks))
    }

    #[test]
    fn dma_begins_where_it_takes_less_time() {
        let cases = [
            (PAGE_NS / 2, 4096),
            (3 * PAGE_NS, 16384),
            (9 * PAGE_NS, DEFAULT),
            // A difference like noise.
            (8 * PAGE_NS - 100, DEFAULT),
        ];
        for (dma, expected) in cases {
            let (result, took) = measured(Times::new(PAGE_NS, Some(dma)));
            assert_eq!(result, Ok(Crossover::at(expected)), "{dma} ns");
            assert!(took < 1_000_000, "{took} ns");
        }
        // Loads over a bus are slow, stores are not. The second length would exceed the limit.
        let times = Times { cpu: (500_000, PAGE_NS), ..Times::new(0, Some(7 * PAGE_NS)) };
        let (result, took) = measured(times);
        assert_eq!(result, Ok(Crossover { read: 4096, write: 32768 }));
        assert!(took < 1_000_000, "{took} ns");
    }

    #[test]
    fn times_of_zero_are_no_measurement() {
        let favours = |cpu, dma| LeastTimes { cpu, dma }.favour_dma();
        assert!(favours(10, 9) && !favours(10, 10));
        assert!(!favours(10, 0) && !favours(0, 10) && !favours(0, 0));
    }

    #[test]
    fn an_interruption_makes_dma_no_faster() {
        for number in 1..20 {
            for (dma, expected) in [(9 * PAGE_NS, DEFAULT), (2 * PAGE_NS / 3, 4096)] {
                let times = Times::new(PAGE_NS, Some(dma));
                let by_cpu = Times { interrupted: (number, 0), ..times };
                assert_eq!(measured(by_cpu).0, Ok(Crossover::at(expected)), "copy {number}");
                let by_dma = measured(Times { interrupted: (0, number), ..times }).0.unwrap();
                assert!(by_dma.read >= expected && by_dma.write >= expected, "DMA {number}");
            }
        }
    }

    #[test]
    fn windows_with_dma_in_progress_carry_no_rings() {
        let failure = Failure::Os(Errno::TIMEDOUT);
        let (result, _) = measured(Times::new(PAGE_NS, None));
        assert_eq!(result, Err(Unmeasured { failure, may_write: true }));
    }

    #[test]
    fn a_node_is_measured_once_and_never_with_a_named_length() {
        const NODE: u16 = u16::MAX;
        let named = Times { named: Some(7), ..Times::new(PAGE_NS, Some(1)) };
        for (times, copies) in [(named, false), (Times::new(PAGE_NS, Some(1)), true)] {
            for again in [false, true] {
                let calls = TimedCalls::new(times);
                assert!(measure_once(NODE, &calls.windows()));
                assert_eq!(lock(&calls.state).2 > 0, copies && !again, "{times:?} {again}");
            }
        }
    }

    #[test]
    fn lengths_known_before_a_measurement_follow_it() {
        const NODE: u16 = u16::MAX - 1;
        let early = NodeLengths::of(NODE);
        let both = |lengths: &NodeLengths| [RmaWay::Read, RmaWay::Write].map(|w| lengths.of_way(w));
        assert_eq!(both(&early), [DEFAULT; 2]);
        let (may_carry, _) = timed(Times::new(PAGE_NS, Some(PAGE_NS / 2)), |windows, clocks| {
            measure_by(clocks, NODE, windows)
        });
        assert!(may_carry);
        assert_eq!([&early, &NodeLengths::of(NODE)].map(|lengths| both(lengths)), [[4096; 2]; 2]);
    }
}
