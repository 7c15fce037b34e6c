// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Order of the samples, and selection of the valid ones.
//!
//! Providers and limits take turns at one test and size before the next begins, so that changes of
//! the machine affect all of them alike. A sample is valid if the placement was the same before and
//! after, with hardly any involuntary context switch. Otherwise it is repeated, a few times. The
//! first pass accepts any placement. The second waits for two cores and adds missing samples,
//! starting with the figures that have an aim.

use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

use scif_fabtests::harness::{Fail, Outcome};

use super::limits::Limit;
use super::pair::{BenchError, Pair, Subject};
use super::placement::{NEAR_BELOW_PS, Placement, Probes};
use super::protocol::{Kind, Measured, Order, Reply, Sample, Test};

/// Time limit of one order, for hangs only: a window of the largest messages takes 0.1 s over
/// sockets.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Minimum and maximum time of one sample, in nanoseconds.
const SHORTEST_NS: u64 = 4_000_000;
const LONGEST_NS: u64 = 60_000_000;
/// Placements on two cores.
const APART: &[Placement] = &[Placement::Far, Placement::Mid];
/// Numbers of peers beside which an empty poll is measured.
const POLL_PEERS: [usize; 2] = [1, 16];
/// Number of failures at one test after which a subject skips that test.
const TRIES: u32 = 2;

/// Plan of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) tests: Vec<Test>,
    pub(crate) sizes: Vec<usize>,
    /// Number of samples kept of each cell.
    pub(crate) samples: usize,
    pub(crate) budget: Duration,
    /// Time after `budget` in which the figures with an aim may still obtain samples of two
    /// cores.
    pub(crate) patience: Duration,
    /// Maximum number of involuntary context switches in a quiet sample.
    pub(crate) switches: u64,
}

/// One sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) value: f64,
    pub(crate) ps: u64,
    pub(crate) noisy: bool,
}

/// One subject at one test and size.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) subject: usize,
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) taken: Vec<Value>,
    /// Whether one-sided operations needed the target in the library.
    pub(crate) inside: bool,
    pub(crate) error: Option<BenchError>,
    count: u64,
    failures: u32,
}

/// Numbers of dropped samples by reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    pub(crate) flipped: usize,
    pub(crate) switched: usize,
    pub(crate) near: usize,
}

/// State of a run.
pub(crate) struct Sampler<'a> {
    pub(crate) subjects: &'a [Subject],
    pub(crate) cells: Vec<Series>,
    pub(crate) probes: Probes,
    pub(crate) dropped: Dropped,
    /// Number of cells left out for lack of time.
    pub(crate) left_out: usize,
    plan: &'a Plan,
    /// Whether a figure has an aim.
    has_aim: fn(Test, usize) -> bool,
    cpus: [usize; 2],
    pairs: Vec<Option<Pair>>,
    started: Instant,
}

/// Subjects at one test and size, which take turns.
struct Group {
    test: Test,
    size: usize,
    /// Indices among the cells.
    cells: Range<usize>,
    rounds: usize,
}

/// Result of an attempt to take a sample.
enum Attempt {
    Value(Measured, Sample),
    /// The processors are nearer than requested.
    Misplaced,
    Failed,
}

/// Returns the requested sizes that are useful for a test.
pub(crate) fn sizes_of(test: Test, wanted: &[usize]) -> Vec<usize> {
    if test.kind() == Kind::Poll {
        return POLL_PEERS.to_vec();
    }
    let fits = |size: usize| match (test, test.kind()) {
        (_, Kind::Rate) | (Test::WritePoll | Test::SumLat | Test::FetchLat | Test::CswapLat, _) => {
            size == 8
        }
        (Test::WriteLat | Test::ReadLat, _) => size <= 64 << 10,
        (_, Kind::Bandwidth) => size > 8,
        (_, Kind::Touched) => size >= 16 << 10,
        _ => true,
    };
    wanted.iter().copied().filter(|&size| fits(size)).collect()
}

impl<'a> Sampler<'a> {
    pub(crate) fn new(
        subjects: &'a [Subject],
        plan: &'a Plan,
        has_aim: fn(Test, usize) -> bool,
        cpus: [usize; 2],
    ) -> Sampler<'a> {
        Sampler {
            subjects,
            cells: Vec::new(),
            probes: Probes::default(),
            dropped: Dropped::default(),
            left_out: 0,
            plan,
            has_aim,
            cpus,
            pairs: subjects.iter().map(|_| None).collect(),
            started: Instant::now(),
        }
    }

    /// Takes all samples.
    pub(crate) fn run(&mut self) -> Outcome {
        let mut groups = Vec::new();
        for &test in &self.plan.tests {
            groups.extend(sizes_of(test, &self.plan.sizes).into_iter().map(|size| (test, size)));
        }
        let members = |test, size| -> Vec<usize> {
            let serves = |subject: &Subject| {
                !subject.limit
                    || Limit::from_name(&subject.provider)
                        .is_some_and(|limit| limit.serves(test, size))
            };
            let all = self.subjects.iter().enumerate();
            all.filter(|(_, subject)| serves(subject)).map(|(index, _)| index).collect()
        };
        let plan: Vec<(Test, usize, Vec<usize>)> =
            groups.into_iter().map(|(test, size)| (test, size, members(test, size))).collect();
        let mut left: usize = plan.iter().map(|(_, _, members)| members.len()).sum();
        let all = left;
        // The second pass has the rest.
        let budget = self.plan.budget * 4 / 5;
        let mut groups = Vec::new();
        for (test, size, members) in &plan {
            if self.started.elapsed() > budget * 5 / 4 {
                self.left_out += left;
                break;
            }
            let time = budget.saturating_sub(self.started.elapsed());
            let samples = u64::try_from(left * (self.plan.samples + 1)).map_err(Fail::here)?;
            let each = u64::try_from(time.as_nanos()).map_err(Fail::here)? / samples.max(1);
            // One third is spent on starting, warming up, probing and repeating.
            let target = (each * 2 / 3).clamp(SHORTEST_NS, LONGEST_NS);
            let share = u32::try_from(samples.max(1)).map_err(Fail::here)?;
            let members_share =
                u32::try_from(members.len() * (self.plan.samples + 1)).map_err(Fail::here)?;
            let until = Instant::now() + time * 3 / 2 * members_share / share;
            let percent = 100 * (all - left) / all.max(1);
            groups.push(self.group(*test, *size, members, (target, until), percent));
            left -= members.len();
        }
        self.come_apart(&mut groups);
        self.pairs.clear();
        Ok(())
    }

    /// Sends an order to the pair of a subject, which is started at its first order.
    fn order(&mut self, index: usize, order: &Order) -> Result<Vec<Reply>, BenchError> {
        let (Some(subject), Some(slot)) = (self.subjects.get(index), self.pairs.get_mut(index))
        else {
            return Err(BenchError::Broken("no such subject".into()));
        };
        let [first, second] = self.cpus;
        let pair = match slot {
            Some(pair) => pair,
            None => slot.insert(Pair::start(subject, &[Some(first), Some(second)])?),
        };
        let replies = pair.order(order, PATIENCE);
        if replies.is_err() {
            *slot = None;
        }
        replies
    }

    /// Takes samples of a test and size in any placement. After `until` only the first sample of
    /// each is begun.
    fn group(
        &mut self,
        test: Test,
        size: usize,
        members: &[usize],
        (target_ns, until): (u64, Instant),
        percent: usize,
    ) -> Group {
        let first = self.cells.len();
        for &subject in members {
            self.cells.push(Series {
                subject,
                test,
                size,
                taken: Vec::new(),
                // Without the target's library calls, completion has too many different meanings.
                inside: test.is_atomic(),
                error: self.error_before(subject, test),
                count: 0,
                failures: 0,
            });
        }
        for round in 0..3 * self.plan.samples {
            // A machine that gives the ranks little time takes fewer samples, not longer.
            if round > 0 && Instant::now() > until {
                break;
            }
            let open: Vec<usize> =
                (first..self.cells.len()).filter(|&at| self.lacks(at, &Placement::ALL)).collect();
            if open.is_empty() {
                break;
            }
            for (turn, at) in open.into_iter().enumerate() {
                progress(&self.line(&format!("{percent:3} %"), at, round), turn + round == 0);
                self.one(at, target_ns, 0);
            }
        }
        Group { test, size, cells: first..self.cells.len(), rounds: 0 }
    }

    /// Waits until the processors are on different cores, as often as that happens, and takes the
    /// missing samples then.
    fn come_apart(&mut self, groups: &mut [Group]) {
        const PAUSE: Duration = Duration::from_millis(20);
        let (soft, has_aim) = (self.plan.budget, self.has_aim);
        groups.sort_by_key(|group| !has_aim(group.test, group.size));
        let mut waited = 0_u32;
        loop {
            let elapsed = self.started.elapsed();
            let most = 3 * self.plan.samples;
            let open = groups.iter_mut().find(|group| {
                (elapsed < soft || has_aim(group.test, group.size))
                    && group.rounds < most
                    && group.cells.clone().any(|at| self.lacks(at, APART))
            });
            let Some(group) = open.filter(|_| elapsed < soft + self.plan.patience) else {
                return;
            };
            let round = group.rounds;
            let lacking: Vec<usize> =
                group.cells.clone().filter(|&at| self.lacks(at, APART)).collect();
            let mut misplaced = false;
            for at in lacking {
                progress(&self.line("apart", at, round), waited == 0);
                misplaced = self.one(at, SHORTEST_NS, NEAR_BELOW_PS);
                if misplaced {
                    break;
                }
            }
            if misplaced {
                waited += 1;
                std::thread::sleep(PAUSE);
            } else {
                group.rounds += 1;
            }
        }
    }

    /// Returns the trouble of an earlier size: a feature missing at one size is missing at all.
    fn error_before(&self, subject: usize, test: Test) -> Option<BenchError> {
        let same = self.cells.iter().filter(|cell| cell.subject == subject && cell.test == test);
        same.filter_map(|cell| cell.error.clone())
            .find(|error| matches!(error, BenchError::Lacks(_)))
    }

    /// Whether a cell lacks quiet samples of each placement and can still obtain them.
    fn lacks(&self, at: usize, places: &[Placement]) -> bool {
        let Some(cell) = self.cells.get(at) else {
            return false;
        };
        let good = |place: Placement| {
            cell.taken.iter().filter(move |taken| !taken.noisy && Placement::of(taken.ps) == place)
        };
        cell.error.is_none() && places.iter().all(|&place| good(place).count() < self.plan.samples)
    }

    fn line(&self, stage: &str, at: usize, round: usize) -> String {
        let (test, size, label) = self.cells.get(at).map_or(("", 0, ""), |cell| {
            let label = self.subjects.get(cell.subject).map_or("", |subject| &subject.label);
            (cell.test.word(), cell.size, label)
        });
        format!(
            "{stage}  {test} {} {label}  round {} of {}  dropped: {} flipped, {} switched  {:.0} s",
            size_name(size),
            round + 1,
            self.plan.samples,
            self.dropped.flipped,
            self.dropped.switched,
            self.started.elapsed().as_secs_f32()
        )
    }

    /// Takes one sample of a cell, after calibration if necessary. Returns true when a line's round
    /// trip is shorter than `least_ps`, in which case no sample is taken.
    fn one(&mut self, at: usize, target_ns: u64, least_ps: u64) -> bool {
        let Some(cell) = self.cells.get(at) else {
            return false;
        };
        if cell.count == 0 {
            let mut count = if cell.test.kind() == Kind::HalfTrip { 8 } else { 1 };
            // The first run includes one-time costs; the second is representative.
            for share in [10, 1] {
                let Attempt::Value(measured, _) = self.attempt(at, count, 0) else {
                    return false;
                };
                count = (target_ns / share * count / measured.ns.max(1)).clamp(1, 1 << 30);
            }
            if let Some(cell) = self.cells.get_mut(at) {
                cell.count = count;
            }
        }
        let count = self.cells.get(at).map_or(1, |cell| cell.count);
        let (measured, sample) = match self.attempt(at, count, least_ps) {
            Attempt::Value(measured, sample) => (measured, sample),
            Attempt::Misplaced => return true,
            Attempt::Failed => return false,
        };
        let before = Placement::of(measured.before_ps);
        self.probes.add(measured.before_ps);
        self.probes.add(measured.after_ps);
        if before != Placement::of(measured.after_ps) {
            self.dropped.flipped += 1;
            return false;
        }
        let noisy = measured.switches > self.plan.switches;
        self.dropped.switched += usize::from(noisy);
        if let Some(cell) = self.cells.get_mut(at) {
            cell.taken.push(Value {
                value: cell.test.value(cell.size, sample.count, measured.ns),
                ps: measured.before_ps,
                noisy,
            });
        }
        false
    }

    /// Executes one run of a cell's test.
    fn attempt(&mut self, at: usize, count: u64, least_ps: u64) -> Attempt {
        let Some(cell) = self.cells.get(at) else {
            return Attempt::Failed;
        };
        let subject = cell.subject;
        let mut sample =
            Sample { test: cell.test, size: cell.size, count, inside: cell.inside, least_ps };
        loop {
            let outcome = self.order(subject, &Order::Run(sample));
            let Some(cell) = self.cells.get_mut(at) else {
                return Attempt::Failed;
            };
            match outcome.map(|replies| replies.into_iter().next()) {
                Ok(Some(Reply::Measured(measured))) if measured.stalled => {
                    sample.inside = true;
                    cell.inside = true;
                }
                Ok(Some(Reply::Measured(measured))) => return Attempt::Value(measured, sample),
                // Not added to the probes: many from one wait would outnumber the others.
                Ok(Some(Reply::Misplaced(_))) => {
                    self.dropped.near += 1;
                    return Attempt::Misplaced;
                }
                Ok(_) => return Attempt::Failed,
                Err(error) => {
                    cell.failures += 1;
                    if cell.failures >= TRIES || matches!(error, BenchError::Lacks(_)) {
                        cell.error = Some(error);
                    }
                    return Attempt::Failed;
                }
            }
        }
    }
}

/// Returns a size with K or M as its unit.
pub(crate) fn size_name(size: usize) -> String {
    if size >= 1 << 20 && size % (1 << 20) == 0 {
        format!("{}M", size >> 20)
    } else if size >= 1 << 10 && size % (1 << 10) == 0 {
        format!("{}K", size >> 10)
    } else {
        size.to_string()
    }
}

/// Shows progress on standard error: on a terminal every line in place, elsewhere only lines that
/// are `worth` one.
pub(crate) fn progress(line: &str, worth: bool) {
    let mut err = std::io::stderr().lock();
    // Standard error may be closed; the results are written anyway.
    let _ = if err.is_terminal() {
        write!(err, "\r\x1b[K{line}").and_then(|()| err.flush())
    } else if worth && !line.is_empty() {
        writeln!(err, "{line}")
    } else {
        Ok(())
    };
}
