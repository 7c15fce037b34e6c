// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice for writes of some kilobytes to one polling peer: records in the ring, or direct access.
//!
//! Through the ring both cores copy, and no system call is made. If both sides write at the same
//! time, each core copies twice, and direct access may be faster. Only the time distinguishes the
//! cases, so both methods are measured at intervals. The measure is the time from the start of one
//! operation to the start of the next, which contains all waits, and for the ring those operations
//! that found the target silent.
//!
//! * Group: a single operation may leave its copies to later ones, so many of them are measured.
//! * Run: the groups of one method that are measured together.
//! * Busy target: of two peers that write to each other, each would gain from the ring, whose
//!   second copy the other makes, and lose by direct access as long as it makes copies for the
//!   other. So the time of these copies does not count for direct access. The ring is charged for
//!   the copies of a busy target that makes none here.
//! * Backoff: each run that the challenger loses doubles the interval to its next one.

/// Length in bytes of the longest operation that always takes the ring.
const ALWAYS_MAX: usize = 4 * 1024;
/// Number of length classes above it, by powers of two. The last one holds all longer operations.
const CLASSES: usize = 4;
/// Bytes of a group. With less, most of a group lies in the ring, uncopied, when it is measured.
const GROUP_BYTES: usize = 128 * 1024;
/// Groups of a run. The first half is not measured, since both peers have to begin it. With fewer,
/// the runs of two peers do not overlap.
const RUN: u32 = 16;
/// Groups after which the challenger's run ends if each has cost half as much again as those of the
/// method in use, or more. With fewer, one disturbance decides. With more, a run costs more.
const TRIAL: u32 = 3;
/// Groups of the method in use between two runs of the challenger, the measured run included. With
/// fewer, the challenger costs more. Multiplied by at most `1 << MISSES_MAX`.
const INTERVAL_MIN: u32 = 128;
/// Number of runs in a row that the challenger has to win. With one, a disturbance of the other
/// method gives it the next groups.
const WINS: u32 = 2;
/// Largest number of lost runs in a row that count: the challenger then has a sixty-fifth of all
/// groups.
const MISSES_MAX: u32 = 3;
/// Interval, in executions of the target's long records, at which one is timed. With a smaller one,
/// the readings of the clock slow these executions.
const TIMED_EVERY: u32 = 16;
/// Divisor of the cost of the method in use: a challenger has to save at least this part (5 %).
const MIN_GAIN: u64 = 20;

/// Cost of one run: the smaller one of those of two parts of its second half, since a disturbance
/// only raises a cost.
#[derive(Clone, Copy, Debug, Default)]
struct RunCost([u64; 2]);

impl RunCost {
    /// Adds the cost of group `at` of the run.
    fn add(&mut self, at: u32, cost: u64) {
        let part = at.checked_sub(RUN / 2).map(|at| at / (RUN / 4));
        if let Some(sum) = part.and_then(|part| self.0.get_mut(part as usize)) {
            *sum = sum.saturating_add(cost);
        }
    }

    fn lowest(self) -> u64 {
        self.0[0].min(self.0[1])
    }
}

/// State of one length class.
#[derive(Clone, Copy, Debug)]
struct ClassChoice {
    /// Whether direct access is the method in use.
    is_direct: bool,
    /// Number of runs that the challenger has lost in a row.
    misses: u32,
    /// Number of runs that it has won in a row.
    wins: u32,
    /// Groups until the next run of the challenger; 0 during it.
    left: u32,
    /// Groups of that run so far.
    groups: u32,
    /// Cost of the last run of the method in use, and of the current one of the challenger.
    costs: [RunCost; 2],
    /// Cost of the challenger's cheapest group in its current run.
    least: u64,
}

impl ClassChoice {
    /// Begins with a run of the ring. One won run then suffices for direct access.
    const FIRST: ClassChoice = ClassChoice {
        is_direct: false,
        misses: 0,
        wins: WINS - 1,
        left: RUN,
        groups: 0,
        costs: [RunCost([0; 2]); 2],
        least: u64::MAX,
    };

    fn takes_ring(&self) -> bool {
        self.is_direct == (self.left == 0)
    }

    /// Notes the end of a group.
    fn note_group(&mut self, cost: u64) {
        let [in_use, challenger] = &mut self.costs;
        if self.left > 0 {
            if self.left <= RUN {
                in_use.add(RUN - self.left, cost);
            }
            self.left -= 1;
            return;
        }
        challenger.add(self.groups, cost);
        self.groups += 1;
        let to_beat = in_use.lowest();
        self.least = self.least.min(cost);
        let per_group = to_beat / u64::from(RUN / 4);
        let is_hopeless = self.groups >= TRIAL && self.least > per_group + per_group / 2;
        if self.groups < RUN && !is_hopeless {
            return;
        }
        let has_won = !is_hopeless && challenger.lowest() < to_beat - to_beat / MIN_GAIN;
        let wins = if has_won { self.wins + 1 } else { 0 };
        if has_won && wins < WINS {
            *self = ClassChoice {
                wins,
                is_direct: self.is_direct,
                misses: self.misses,
                ..ClassChoice::FIRST
            };
            return;
        }
        let misses = if has_won { 0 } else { (self.misses + 1).min(MISSES_MAX) };
        let is_direct = self.is_direct != has_won;
        let left = INTERVAL_MIN << misses;
        *self = ClassChoice { is_direct, misses, left, wins: 0, ..ClassChoice::FIRST };
    }

    /// Begins the current run again.
    fn restart(&mut self) {
        self.left = self.left.max(RUN);
        (self.groups, self.costs, self.least) = (0, Default::default(), u64::MAX);
    }
}

/// State of the choice.
#[derive(Debug)]
pub(crate) struct PartsChoice {
    classes: [ClassChoice; CLASSES],
    /// ClassChoice of the current group.
    current: usize,
    /// Bytes of the current group so far.
    bytes: usize,
    /// Time in ticks at which it began; 0 for no group.
    begun_ticks: u64,
    /// Bytes of the target's long records that this side has executed during the group.
    served_bytes: usize,
    /// Number of these executions so far, wrapping.
    services: u32,
    /// Average cost of these executions, in ticks for each KiB; 0 before the first.
    copy_cost: u64,
}

/// Returns the cost of `bytes`: ticks for each KiB.
fn cost_of(ticks: u64, bytes: usize) -> u64 {
    ticks.saturating_mul(1024) / bytes.max(1) as u64
}

impl Default for PartsChoice {
    fn default() -> PartsChoice {
        PartsChoice {
            classes: [ClassChoice::FIRST; CLASSES],
            current: 0,
            bytes: 0,
            begun_ticks: 0,
            served_bytes: 0,
            services: 0,
            copy_cost: 0,
        }
    }
}

impl PartsChoice {
    /// Returns the class of operations of `len` bytes; `None` for those that have no choice.
    fn class(len: usize) -> Option<usize> {
        let class = (len.saturating_sub(1) / ALWAYS_MAX).checked_ilog2()?;
        Some((class as usize).min(CLASSES - 1))
    }

    /// Whether an operation of `len` bytes that starts at `now`, in ticks, takes the ring.
    /// `is_initiating`: the target starts one-sided operations itself.
    pub(crate) fn takes_ring(
        &mut self,
        len: usize,
        now: u64,
        is_initiating: impl FnOnce() -> bool,
    ) -> bool {
        let Some(at) = Self::class(len) else { return true };
        if at != self.current {
            let former = std::mem::replace(&mut self.current, at);
            self.classes.get_mut(former).into_iter().for_each(ClassChoice::restart);
            self.begun_ticks = 0;
        }
        let Some(class) = self.classes.get_mut(at) else { return true };
        if self.begun_ticks != 0 && self.bytes >= GROUP_BYTES {
            let taken = now.saturating_sub(self.begun_ticks);
            let cost = cost_of(taken, self.bytes);
            class.note_group(if !class.takes_ring() {
                let served = self.copy_cost.saturating_mul(self.served_bytes as u64);
                cost.saturating_sub(served / self.bytes as u64)
            } else if self.served_bytes < self.bytes / 2 && is_initiating() {
                cost + if self.copy_cost > 0 { self.copy_cost } else { cost }
            } else {
                cost
            });
            self.begun_ticks = 0;
        }
        if self.begun_ticks == 0 {
            (self.begun_ticks, self.bytes) = (now, 0);
            self.served_bytes = 0;
        }
        self.bytes += len;
        class.takes_ring()
    }

    /// Notes that the last operation, of `len` bytes, was refused. It will start again.
    pub(crate) fn note_refusal(&mut self, len: usize) {
        if Self::class(len) == Some(self.current) {
            self.bytes = self.bytes.saturating_sub(len);
        }
    }

    /// Whether the next execution of a long record of the target is to be timed.
    #[inline]
    pub(crate) fn times_service(&self) -> bool {
        self.services % TIMED_EVERY == 0
    }

    /// Notes that a long record of the target was executed here. `ticks`: its time, 0 without one.
    pub(crate) fn note_service(&mut self, bytes: usize, ticks: u64) {
        self.served_bytes += bytes;
        self.services = self.services.wrapping_add(1);
        if ticks > 0 {
            let cost = cost_of(ticks, bytes);
            self.copy_cost = match self.copy_cost {
                0 => cost,
                // An interruption must not appear as a slow copy.
                average => (average * 7 + cost.min(average * 2)) / 8,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 16 * 1024;
    /// Operations of a group.
    const GROUP: usize = GROUP_BYTES / LEN;
    /// Operations of the first two runs.
    const FIRST_RUNS: usize = 2 * RUN as usize * GROUP;

    /// Runs `count` operations with a fixed time per method, ring and direct. Returns the number of
    /// those through the ring.
    fn run(choice: &mut PartsChoice, count: usize, len: usize, ticks: [u64; 2]) -> usize {
        let mut now = choice.begun_ticks.max(1);
        let mut by_ring = 0;
        for _ in 0..count {
            let takes_ring = choice.takes_ring(len, now, || false);
            by_ring += usize::from(takes_ring);
            now += ticks[usize::from(!takes_ring)];
        }
        by_ring
    }

    #[test]
    fn classes_are_powers_of_two() {
        for (len, class) in [(1, None), (4096, None), (4097, Some(0)), (8192, Some(0))] {
            assert_eq!(PartsChoice::class(len), class, "{len} bytes");
        }
        for (len, class) in [(8193, 1), (16_384, 1), (16_385, 2), (32_769, 3), (1 << 30, 3)] {
            assert_eq!(PartsChoice::class(len), Some(class), "{len} bytes");
        }
    }

    #[test]
    fn each_class_takes_the_faster_method_and_notices_a_change() {
        let mut choice = PartsChoice::default();
        let all = 1000 * GROUP;
        assert_eq!(run(&mut choice, all, 4096, [20_000, 9000]), all, "no choice");
        assert_eq!(run(&mut choice, FIRST_RUNS / 2, LEN, [9000, 20_000]), FIRST_RUNS / 2);
        assert!(run(&mut choice, all, LEN, [9000, 20_000]) > all * 9 / 10);
        run(&mut choice, 2 * all, LEN, [20_000, 9000]);
        assert!(run(&mut choice, all, LEN, [20_000, 9000]) < all / 10);
        let first_run = FIRST_RUNS / 2 / 4;
        assert_eq!(run(&mut choice, 100, 4 * LEN, [20_000, 9000]), first_run, "another class");
    }

    /// Ends the current run of the method in use, and the run of its challenger.
    fn challenge(class: &mut ClassChoice, [ring, direct]: [u64; 2]) {
        for in_use in [true, false] {
            while (class.left > 0) == in_use {
                class.note_group(if class.takes_ring() { ring } else { direct });
            }
        }
    }

    #[test]
    fn the_first_won_run_decides_and_later_two_in_a_row() {
        let mut class = ClassChoice::FIRST;
        challenge(&mut class, [20, 10]);
        assert!(class.is_direct);
        for _ in 0..3 {
            challenge(&mut class, [20, 30]);
            challenge(&mut class, [20, 10]);
            assert!(class.is_direct, "after a disturbance of one run");
        }
        challenge(&mut class, [20, 30]);
        assert_eq!((class.is_direct, class.left), (true, RUN));
        challenge(&mut class, [20, 30]);
        assert!(!class.is_direct);
    }

    #[test]
    fn a_run_that_is_clearly_slower_ends_early() {
        for (direct, groups) in [(26_000, RUN), (50_000, TRIAL)] {
            let mut choice = PartsChoice::default();
            let all = 2 * RUN as usize * GROUP + GROUP;
            let by_ring = run(&mut choice, all, LEN, [20_000, direct]);
            assert_eq!(all - by_ring, groups as usize * GROUP, "{direct}");
        }
    }

    #[test]
    fn refused_operations_are_not_counted() {
        let mut choice = PartsChoice::default();
        for now in 0..2 * FIRST_RUNS as u64 {
            assert!(choice.takes_ring(LEN, now + 1, || false));
            choice.note_refusal(LEN);
        }
    }

    #[test]
    fn a_small_gain_changes_nothing() {
        let mut choice = PartsChoice::default();
        run(&mut choice, FIRST_RUNS + 1, LEN, [10_000, 9800]);
        assert_eq!(run(&mut choice, 100, LEN, [10_000, 9800]), 100);
    }

    /// Runs two peers that write to each other. `ticks`: time of a copy into the ring, of one out
    /// of it, and of a direct access. Returns whether each mostly takes the ring in the end.
    fn run_two(ticks: [u64; 3]) -> [bool; 2] {
        let [into, out, direct] = ticks;
        let mut choices = [PartsChoice::default(), PartsChoice::default()];
        // The peers do not begin at the same time.
        let (mut times, mut by_ring) = ([1, 77 * into], [true; 2]);
        let mut last = [0; 2];
        for count in 0..200 * FIRST_RUNS {
            let at = usize::from(times[1] < times[0]);
            let choice = &mut choices[at];
            if by_ring[1 - at] {
                times[at] += out;
                choice.note_service(LEN, if choice.times_service() { out } else { 0 });
            }
            by_ring[at] = choice.takes_ring(LEN, times[at], || true);
            times[at] += if by_ring[at] { into } else { direct };
            if count >= 150 * FIRST_RUNS {
                last[at] += if by_ring[at] { 1 } else { -1 };
            }
        }
        last.map(|balance| balance > 0)
    }

    #[test]
    fn two_peers_that_write_to_each_other_find_the_faster_method() {
        assert_eq!(run_two([6000, 6000, 9000]), [false; 2]);
        assert_eq!(run_two([6000, 6000, 20_000]), [true; 2]);
        assert_eq!(run_two([3000, 9000, 9000]), [false; 2]);
    }

    #[test]
    fn a_group_of_several_classes_is_not_measured() {
        let mut choice = PartsChoice::default();
        for now in 1..10_000 {
            let ticks = now * 100_000;
            let mut takes = |len, now| choice.takes_ring(len, now, || false);
            assert!(takes(LEN, ticks) && takes(4 * LEN, ticks + 9));
        }
    }
}
