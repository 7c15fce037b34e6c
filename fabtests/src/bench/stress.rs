// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Measurements that need more than two living ranks: the cost of a thousand idle peers, and the
//! time until a death is noticed.

use std::time::Duration;

use scif_fabtests::harness::Fail;

use super::os::now_ns;
use super::pair::{BenchError, Pair, Subject};
use super::placement::{NEAR_BELOW_PS, Placement};
use super::protocol::{Measured, Order, Reply, Sample, Test};
use super::sampler::progress;

/// Number of endpoints without peers whose cost is measured.
const STARTS: u64 = 32;
/// Number of processes over which the idle peers are spread.
const HOMES: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// Cost of idle peers.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleCost {
    /// Half round trips of eight bytes in microseconds, without and with idle peers, taken in
    /// turns.
    pub(crate) without: Vec<f64>,
    pub(crate) with: Vec<f64>,
    /// Nearest placement of a sample.
    pub(crate) placement: Placement,
    /// Whether some samples were taken while other programs ran.
    pub(crate) noisy: bool,
    /// Resident bytes of the process for each peer, and descriptors for each peer of the second
    /// half.
    pub(crate) bytes_each: f64,
    pub(crate) fds_each: f64,
    /// Microseconds and resident bytes of an endpoint without peers.
    pub(crate) endpoint_us: f64,
    pub(crate) endpoint_bytes: f64,
}

fn numbers(reply: Option<Reply>) -> Result<Vec<u64>, BenchError> {
    match reply {
        Some(Reply::Numbers(list)) => Ok(list),
        other => Err(BenchError::Broken(format!("an odd answer: {other:?}"))),
    }
}

/// Measures latency with and without `peers` idle peers in turns, `samples` of each.
pub(crate) fn idle(
    subject: &Subject,
    cpus: [usize; 2],
    peers: u64,
    samples: usize,
    switches: u64,
) -> Result<IdleCost, BenchError> {
    progress(&format!("{peers} idle peers of {}: round 1 of {samples}", subject.label), false);
    let [first, second] = cpus;
    let pinned = [Some(first), Some(second)];
    let (lonely, popular) = (Pair::start(subject, &pinned)?, Pair::start(subject, &pinned)?);
    let latency = |pair: &Pair, count, least_ps| -> Result<Option<Measured>, BenchError> {
        let sample = Sample { test: Test::TaggedLat, size: 8, count, inside: false, least_ps };
        match pair.order(&Order::Run(sample), PATIENCE)?.into_iter().next() {
            Some(Reply::Measured(measured)) => Ok(Some(measured)),
            Some(Reply::Misplaced(_)) => Ok(None),
            other => Err(BenchError::Broken(format!("an odd answer: {other:?}"))),
        }
    };
    // Both ranks have opened and used all objects before their process is weighed.
    let warm = latency(&popular, 1000, 0)?.unwrap_or_default();
    latency(&lonely, 1000, 0)?;
    let count = (30_000_000 * 1000 / warm.ns.max(1)).clamp(100, 1 << 24);
    let weigh = || -> Result<Vec<u64>, BenchError> {
        popular.send_order(0, &Order::Weigh)?;
        numbers(Some(popular.answer(0, PATIENCE)?))
    };
    let before = weigh()?;
    popular.send_order(0, &Order::Name)?;
    let Reply::Bytes(name) = popular.answer(0, PATIENCE)? else {
        return Err(BenchError::Broken("an odd answer to the question for a name".into()));
    };
    let mut homes = Vec::new();
    let mut invite = |clients: u64| -> Result<Vec<u64>, BenchError> {
        popular.send_order(0, &Order::Adopt(clients))?;
        let there = homes.len();
        for home in 0..HOMES / 2 {
            let share = clients / (HOMES / 2) + u64::from(home < clients % (HOMES / 2));
            let pair = Pair::start(subject, &[None])?;
            pair.send_order(0, &Order::Visit(share, name.clone()))?;
            homes.push(pair);
        }
        for home in homes.iter().skip(there) {
            home.answer(0, PATIENCE)?;
        }
        popular.answer(0, PATIENCE)?;
        weigh()
    };
    // In two halves: the one-time needs of the endpoint itself fall into the first half.
    let half = peers / 2;
    let (between, after) = (invite(half)?, invite(peers - half)?);
    let mut cost = IdleCost::default();
    let fresh = Pair::start(subject, &[Some(first)])?;
    fresh.send_order(0, &Order::Start(STARTS))?;
    if let [ns, bytes] = numbers(Some(fresh.answer(0, PATIENCE)?))?.as_slice() {
        (cost.endpoint_us, cost.endpoint_bytes) = (ratio(*ns, 1000), ratio(*bytes, 1));
    }
    if let ([bytes, _], [_, fds], [bytes_after, fds_after]) =
        (before.as_slice(), between.as_slice(), after.as_slice())
    {
        cost.bytes_each = ratio(bytes_after.saturating_sub(*bytes), peers);
        cost.fds_each = ratio(fds_after.saturating_sub(*fds), peers - half);
    }
    for round in 0..20 * samples {
        if cost.with.len().min(cost.without.len()) >= samples {
            break;
        }
        // After ten times as many rounds as samples, near or disturbed samples are accepted.
        let patient = round < 10 * samples;
        let wanted_ps = if patient { NEAR_BELOW_PS } else { 0 };
        let (Some(without), Some(with)) =
            (latency(&lonely, count, wanted_ps)?, latency(&popular, count, wanted_ps)?)
        else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        // A pair of samples is comparable only with one undisturbed placement.
        let probes = [without.before_ps, without.after_ps, with.before_ps, with.after_ps];
        let (least, most) = (probes.iter().min().copied(), probes.iter().max().copied());
        let steady = least.is_some_and(|least| most.is_some_and(|most| most < 2 * least));
        let noisy = without.switches.max(with.switches) > switches;
        if steady && (!noisy || !patient) {
            cost.placement = cost.placement.max(Placement::of(least.unwrap_or(0)));
            cost.noisy |= noisy;
            cost.without.push(Test::TaggedLat.value(8, count, without.ns));
            cost.with.push(Test::TaggedLat.value(8, count, with.ns));
        }
    }
    Ok(cost)
}

#[expect(clippy::cast_precision_loss, reason = "bytes and descriptors of one process")]
fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

/// Notice of a death by a survivor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Notice {
    /// An error completion after this many milliseconds.
    Completion(f64),
    /// A refused call after this many milliseconds.
    Refusal(f64),
    /// No notice before the rank gave up.
    Never,
}

/// Kills one rank during traffic; the survivor is the sender or the receiver.
pub(crate) fn death(
    subject: &Subject,
    cpus: [usize; 2],
    size: usize,
    survivor_sends: bool,
) -> Result<Notice, BenchError> {
    let [first, second] = cpus;
    let mut pair = Pair::start(subject, &[Some(first), Some(second)])?;
    pair.order(&Order::Direct, PATIENCE)?;
    for rank in 0..2 {
        pair.send_order(rank, &Order::Suffer(size, survivor_sends))?;
    }
    std::thread::sleep(Duration::from_millis(150));
    let killed = now_ns();
    pair.kill(1)?;
    let end = numbers(Some(pair.answer(0, Duration::from_secs(10))?))?;
    let (&[at, how], true) = (end.as_slice().try_into().unwrap_or(&[0, 0]), end.len() == 2) else {
        return Err(Fail::here("an odd account of a death").into());
    };
    if at != 0 && at < killed {
        return Err(Fail::here("an error came before the death").into());
    }
    let ms = ratio(at.saturating_sub(killed), 1_000_000);
    Ok(match how {
        0 => Notice::Never,
        1 => Notice::Completion(ms),
        _ => Notice::Refusal(ms),
    })
}
