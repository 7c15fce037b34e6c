// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleepers: a message ends each kind of sleep soon, and a sleeper without messages uses almost no
//! processor time. Rank 1 sleeps, rank 0 sends.
//!
//! Lost wake-ups are tested in `wait`.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use scif_fabtests::harness::cpus::waited_for_processor;
use scif_fabtests::prelude::*;

use super::hosts;
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("sleepers/sread", 2, |r| sleeper(r, SleepKind::Sread)),
    case("sleepers/wait_set", 2, |r| sleeper(r, SleepKind::WaitSet)),
    case("sleepers/trywait_and_epoll", 2, |r| sleeper(r, SleepKind::Epoll)),
    case("sleepers/counter", 2, |r| sleeper(r, SleepKind::Counter)),
    case("sleepers/automatic_progress", 2, automatic),
];

/// Call in which a rank waits for a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SleepKind {
    Sread,
    WaitSet,
    Epoll,
    Counter,
    /// Polling reads, for comparison.
    Read,
}

const ROUNDS: usize = 200;
/// Pause before each message, in which the other rank falls asleep.
const PAUSE: Duration = Duration::from_millis(2);
/// Time without a message, over which processor time is measured.
const IDLE: Duration = Duration::from_secs(2);
/// Share of a processor, as a divisor, that an idle sleeper may use.
const IDLE_SHARE: u32 = 100;
/// Maximum time by which a sleep may delay half of all answers to another host. The time for which
/// both ranks wait for a processor does not count. The other half of the answers is not judged:
/// where other programs share the processors, the kernel's work for the network waits as well. A
/// sleep that ends by a timer delays most of the answers.
const LATE_MAX: Duration = Duration::from_millis(1);
/// Maximum on one host, over any transport and on busy machines.
const LATE_MAX_HERE: Duration = Duration::from_millis(10);

/// Objects of the rank that waits.
struct Sleeper {
    ep: Arc<Ep>,
    cq: Arc<Cq>,
    cntr: Arc<Cntr>,
    set: Option<WaitSet>,
}

impl Sleeper {
    fn open(rig: &Rig<'_>, kind: SleepKind) -> Outcome<Sleeper> {
        let set = match kind {
            SleepKind::WaitSet => {
                let set = WaitSet::open(&rig.fabric, sys::FI_WAIT_FD, 0);
                Some(supported("fi_wait_open", set)?)
            }
            _ => None,
        };
        let wait_obj = match kind {
            SleepKind::Sread => sys::FI_WAIT_UNSPEC,
            SleepKind::Epoll => sys::FI_WAIT_FD,
            _ => sys::FI_WAIT_NONE,
        };
        let cq = match &set {
            Some(set) => set.cq(&rig.domain)?,
            None => Cq::open(&rig.domain, CqAttr { wait_obj, ..CqAttr::default() })?,
        };
        let wait_obj = sys::FI_WAIT_UNSPEC;
        let cntr = Cntr::open(&rig.domain, CntrAttr { wait_obj, ..CntrAttr::default() })?;
        let ep = Ep::open(&rig.domain, &rig.info)?;
        ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.attach(&cntr, sys::FI_RECV)?;
        ep.attach(&rig.av, 0)?;
        ep.enable()?;
        Ok(Sleeper { ep, cq, cntr, set })
    }

    /// Waits for the message with that number, the first is 1, and takes its completion.
    fn wait(&self, rig: &Rig<'_>, kind: SleepKind, number: u64) -> Outcome {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let fd = match kind {
            SleepKind::Epoll => Some(self.cq.wait_fd()?),
            _ => None,
        };
        if let Some(fd) = &fd {
            epoll::add(&poller, fd.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        loop {
            let read = match kind {
                SleepKind::Sread => self.cq.sread(1, 0, -1),
                SleepKind::WaitSet => {
                    if let Some(set) = &self.set {
                        set.wait(-1)?;
                    }
                    self.cq.read(1)
                }
                SleepKind::Epoll => {
                    match rig.fabric.trywait(&[self.cq.as_ref()]) {
                        Ok(()) => {
                            let mut events = [epoll::Event {
                                flags: epoll::EventFlags::empty(),
                                data: epoll::EventData::new_u64(0),
                            }];
                            epoll::wait(&poller, &mut events, None)?;
                        }
                        Err(Errno::EAGAIN) => {}
                        Err(e) => return Err(e.into()),
                    }
                    self.cq.read(1)
                }
                SleepKind::Counter => {
                    self.cntr.wait(number, -1)?;
                    self.cq.read(1)
                }
                SleepKind::Read => self.cq.read(1),
            };
            match read {
                Ok(entries) if !entries.is_empty() => return Ok(()),
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn sleeper(rank: &Rank, kind: SleepKind) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false))?;
    let polled = talk(&rig, SleepKind::Read)?;
    let slept = talk(&rig, kind)?;
    if let (Some(polled), Some(slept)) = (polled, slept) {
        rank.figure(format_args!("{kind:?}: answer {slept:?}, {polled:?} of a poller"));
        check!(slept < polled + late_max(), "{slept:?} an answer, {polled:?} without a sleep");
    }
    rig.barrier()
}

fn late_max() -> Duration {
    if hosts::network().is_some() { LATE_MAX } else { LATE_MAX_HERE }
}

/// Waits for messages by one kind of sleep and answers them. Returns the time of an answer to rank
/// 0: the median with a sleep, else that of a quick one.
fn talk(rig: &Rig<'_>, kind: SleepKind) -> Outcome<Option<Duration>> {
    let rank = rig.rank;
    let sleeper = Sleeper::open(rig, kind)?;
    let names = rig.exchange(&sleeper.ep.name()?)?;
    let name = names.get(1).ok_or_else(|| Fail::here("no name"))?;
    let (from, to, there) = (Buf::new(8), Buf::new(8), rig.av.insert(name)?);
    let receive = |number: u64| -> Outcome {
        sleeper.wait(rig, kind, number)?;
        rig.post(|| sleeper.ep.recv(to, sys::FI_ADDR_UNSPEC, 1))
    };
    if rank.index == 1 {
        rig.post(|| sleeper.ep.recv(to, sys::FI_ADDR_UNSPEC, 1))?;
    }
    rig.barrier()?;
    let mut times = Vec::new();
    let mut waited = waited_for_processor();
    rank.step(format_args!("answers by {kind:?}"));
    for round in 1..=ROUNDS {
        if rank.index == 0 {
            std::thread::sleep(PAUSE);
            rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, 1))?;
            let (begin, before) = (Instant::now(), waited_for_processor());
            rig.post(|| rig.ep.inject(from, there))?;
            rig.received(1)?;
            let took = begin.elapsed();
            let waited = waited_for_processor().saturating_sub(before);
            let waited_there = Duration::from_nanos(to.load_u64(0));
            times.push(took.saturating_sub(waited + waited_there));
        } else {
            receive(round as u64)?;
            let now = waited_for_processor();
            let this = now.saturating_sub(std::mem::replace(&mut waited, now));
            from.store_u64(0, u64::try_from(this.as_nanos()).map_err(Fail::here)?);
            rig.post(|| sleeper.ep.inject(from, rig.to(0)))?;
        }
    }
    if kind != SleepKind::Read {
        rank.step(format_args!("idle in {kind:?}"));
        if rank.index == 0 {
            std::thread::sleep(IDLE);
            rig.post(|| rig.ep.inject(from, there))?;
        } else {
            let (begin, before) = (Instant::now(), sandbox::processor_time());
            receive(ROUNDS as u64 + 1)?;
            check_idle(rank, &format!("{kind:?}"), begin, before)?;
        }
    }
    rig.barrier()?;
    let part = if kind == SleepKind::Read { QUICK } else { HALF };
    Ok((rank.index == 0).then(|| not_exceeded(times, part)))
}

/// Share of the answers that determines the time of a poller, as a divisor. Other processes hardly
/// prolong it.
const QUICK: usize = 4;
/// Share of the answers that determines the time of a sleeper.
const HALF: usize = 2;

/// Returns the time that one in `part` of all answers do not exceed.
fn not_exceeded(mut times: Vec<Duration>, part: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() / part).copied().unwrap_or_default()
}

/// Checks the processor time since `begin`, when it was `before`.
fn check_idle(rank: &Rank, subject: &str, begin: Instant, before: Duration) -> Outcome {
    let (used, elapsed) = (sandbox::processor_time().saturating_sub(before), begin.elapsed());
    let percent = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
    rank.figure(format_args!("{subject}: idle {percent:.3} % of a processor"));
    check!(used * IDLE_SHARE < elapsed, "{used:?} of {elapsed:?}");
    Ok(())
}

/// Tests a target that makes no call: the thread of its domain sleeps.
fn automatic(rank: &Rank) -> Outcome {
    let spec = super::atomic::spec().with(|spec| {
        spec.hints.data_progress = sys::FI_PROGRESS_AUTO;
        spec.hints.control_progress = sys::FI_PROGRESS_AUTO;
    });
    let rig = Rig::open(rank, &spec)?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    let at = from(&remotes, 1, 0)?;
    if rank.index == 1 {
        // First with polls.
        rig.barrier()?;
        let before = waited_for_processor();
        rank.barrier(&mut || {
            std::thread::sleep(PAUSE);
            Ok(())
        })?;
        let waited = waited_for_processor().saturating_sub(before);
        let waited = u64::try_from(waited.as_nanos()).map_err(Fail::here)? / ROUNDS as u64;
        rank.exchange(&waited.to_le_bytes(), &mut || Ok(()))?;
        check_eq!(memory.load_u64(0), 2 * ROUNDS as u64);
        let (begin, before) = (Instant::now(), sandbox::processor_time());
        std::thread::sleep(IDLE);
        check_idle(rank, "automatic", begin, before)?;
        return rig.barrier();
    }
    let target = at.atomic(rig.peer(), sys::FI_UINT64, sys::FI_SUM, 1);
    let (one, old) = (Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 }, Buf::new(8));
    let measure = |part: usize| -> Outcome<Duration> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            std::thread::sleep(PAUSE);
            let (begin, before) = (Instant::now(), waited_for_processor());
            rig.complete(1, || rig.ep.fetch_atomic(&target, one, old))?;
            let took = begin.elapsed();
            times.push(took.saturating_sub(waited_for_processor().saturating_sub(before)));
        }
        Ok(not_exceeded(times, part))
    };
    let polled = measure(QUICK)?;
    rig.barrier()?;
    let slept = measure(HALF)?;
    rank.barrier(&mut || Ok(()))?;
    let parts = rank.exchange(&[], &mut || Ok(()))?;
    let waited = parts.get(1).and_then(|bytes| bytes.as_slice().try_into().ok());
    let waited = waited.map(u64::from_le_bytes).ok_or_else(|| Fail::here("no time"))?;
    let slept = slept.saturating_sub(Duration::from_nanos(waited));
    rank.figure(format_args!("automatic: atomic {slept:?}, {polled:?} at a poller"));
    check!(slept < polled + late_max(), "{slept:?} an atomic, {polled:?} at a poller");
    std::thread::sleep(IDLE);
    rig.barrier()
}
