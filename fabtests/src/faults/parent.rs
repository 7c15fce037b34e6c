// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parent of the storm: starts the ranks, kills and stops them at random, replaces dead ranks, and
//! judges every failure that the survivors report.
//!
//! Rank 0 is stopped but never killed: its descriptors, mappings and memory must not grow.

mod report;
mod state;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use scif_fabtests::harness::leak_check::Before;
use scif_fabtests::harness::output::now_ns;
use scif_fabtests::harness::start::{Started, end_groups, group_of, start};
use scif_fabtests::harness::{Fail, Outcome};

use super::args::Args;
use super::net::{Kind, RANKS};
use super::schedule::{Life, OF_A_PEER, OF_A_PEER_OVER_A_DRIVER, growth};
use scif_fabtests::payload::RankId;

use state::{Parent, Process, send_word, signal};

/// Time without a message after which a rank that is not stopped counts as hanging, which fails the
/// run.
const SILENCE: Duration = Duration::from_secs(15);
/// Time limit for the outstanding operations at the end, and for the exit of a rank.
const ENDING: Duration = Duration::from_secs(30);
/// Settings in the environment of a rank, one drawn for each incarnation. Ranks of the other kind
/// ignore them.
const SETTINGS: [Option<(&str, &str)>; 8] = [
    None,
    None,
    None,
    Some(("SCIF_DMA_MIN", "4096")),
    Some(("SCIF_SPIN_US", "0")),
    Some(("FI_SCIF_MR_MIGRATE", "auto")),
    Some(("FI_SCIF_PROCESS_VM", "0")),
    Some(("FI_SCIF_BOTH_SIDES", "0")),
];

/// Runs the storm and returns the number of kills.
pub(crate) fn run(args: &Args) -> Outcome<u64> {
    let before = Before::look();
    let mut parent = Parent::new(args);
    let outcome = parent.storm().map_err(|fail| {
        let others = parent.other_failures();
        fail.followed_by(others + &parent.where_all_are())
    });
    for rank in &mut parent.ranks {
        // Ranks that have exited normally are reaped already.
        let _ = rank.child.kill();
        let _ = rank.child.wait();
    }
    // A rank killed between a fork and the end of the child leaves an orphan for a moment, which is
    // no fault of the library.
    let groups: Vec<Pid> = parent.pids.iter().filter_map(|&pid| group_of(pid)).collect();
    end_groups(&groups);
    parent.print_results();
    outcome?;
    let left = before.compare("scif", &parent.pids);
    let left: Vec<String> = left.into_iter().chain(sockets_of(&parent.domain)?).collect();
    if !left.is_empty() {
        return Err(Fail::here(left.join("\n    ")));
    }
    let over_a_driver = std::env::var_os("FI_SCIF_TRANSPORT")
        .is_some_and(|name| name == "kernel" || name == "scif" || name == "sisci");
    let of_a_peer = if over_a_driver { OF_A_PEER_OVER_A_DRIVER } else { OF_A_PEER };
    if let Some(complaint) = growth(&parent.held, of_a_peer) {
        return Err(Fail::here(complaint));
    }
    if parent.judge.latencies.is_empty() {
        return Err(Fail::here("no operation failed: nothing was tested"));
    }
    if let Some(bound) = args.p999_ms {
        parent.judge.latencies.sort_unstable();
        let at = parent.judge.latencies.len() * 999 / 1000;
        let found = parent.judge.latencies.get(at).copied().unwrap_or(0) / 1_000_000;
        if found > bound {
            return Err(Fail::here(format_args!("p99.9 is {found} ms, more than {bound}")));
        }
    }
    Ok(parent.kills)
}

/// Returns the Unix sockets with names of a domain. The list is read twice: the kernel builds it in
/// pieces, and a socket that closes in between may hide another one.
fn sockets_of(domain: &str) -> Outcome<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for _ in 0..2 {
        let list = std::fs::read("/proc/net/unix")?;
        let list = String::from_utf8_lossy(&list);
        let ours = list.lines().filter(|line| line.contains(domain));
        found.extend(ours.map(str::to_owned));
    }
    Ok(found)
}

impl Parent<'_> {
    fn storm(&mut self) -> Outcome {
        for slot in 0..RANKS {
            let slot = u8::try_from(slot).map_err(Fail::here)?;
            self.spawn(RankId { slot, life: 0 })?;
        }
        let begin = Instant::now();
        let limit = Duration::from_secs(self.args.seconds);
        let over = |parent: &Parent<'_>| match parent.args.kills {
            Some(kills) => parent.kills >= kills,
            // A short run on a busy machine continues until there are failures to judge.
            None => {
                begin.elapsed() >= limit
                    && (parent.is_conclusive() || begin.elapsed() >= 10 * limit)
            }
        };
        while !over(self) {
            self.inject_faults()?;
            self.start_group()?;
            self.step()?;
        }
        self.end()
    }

    /// Whether a rank was killed and an operation with it failed.
    fn is_conclusive(&self) -> bool {
        self.kills > 0 && !self.judge.latencies.is_empty()
    }

    /// Lets outstanding operations end and all ranks exit.
    fn end(&mut self) -> Outcome {
        for rank in &mut self.ranks {
            rank.stopped = rank.stopped.map(|(from, _)| (from, Instant::now()));
        }
        self.resume()?;
        self.wait_for("the last ranks", |parent| {
            parent.ranks.iter().all(|rank| rank.intro.is_some())
        })?;
        self.judge.superseded(self.group, now_ns());
        for word in ["group 0", "drain"] {
            for rank in &mut self.ranks {
                rank.drained = false;
                send_word(rank, word);
            }
        }
        self.wait_for("the operations under way", |parent| {
            parent.ranks.iter().all(|rank| rank.drained)
        })?;
        for rank in &self.ranks {
            send_word(rank, "quit");
        }
        let begin = Instant::now();
        for rank in &mut self.ranks {
            loop {
                match rank.child.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => {
                        return Err(Fail::here(format_args!("rank {} ended: {status}", rank.id)));
                    }
                    None if begin.elapsed() > ENDING => {
                        return Err(Fail::here(format_args!("rank {} does not exit", rank.id)));
                    }
                    // Unread reports must not block its exit.
                    None => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        Ok(())
    }

    fn wait_for(&mut self, event: &str, so: impl Fn(&Parent<'_>) -> bool) -> Outcome {
        let begin = Instant::now();
        while !so(self) {
            if begin.elapsed() > ENDING {
                return Err(Fail::here(format_args!("waited {} s for {event}", ENDING.as_secs())));
            }
            self.step()?;
        }
        Ok(())
    }

    fn spawn(&mut self, id: RankId) -> Outcome {
        let mut command = Command::new(&self.args.rank_program);
        let setting = self.rng.pick(&SETTINGS).flatten();
        command.envs(setting).env("SCIF_DOMAIN", &self.domain).args(self.args.of_rank(id));
        let Started { child, control, output } = start(&mut command)?;
        self.pids.push(child.id());
        let (killed_at, lives_on) = match self.schedule.life() {
            Life::FromStart(time) => (Instant::now() + time, None),
            Life::FromName(time) => (Instant::now() + ENDING, Some(time)),
        };
        let process = Process {
            id,
            child,
            control,
            output,
            intro: None,
            last_word: Instant::now(),
            stopped: None,
            setting,
            killed_at,
            lives_on,
            drained: false,
        };
        match self.ranks.get_mut(usize::from(id.slot)) {
            Some(place) => *place = process,
            None => self.ranks.push(process),
        }
        let names: Vec<String> = self.ranks.iter().filter_map(|rank| rank.intro.clone()).collect();
        if let Some(rank) = self.ranks.get(usize::from(id.slot)) {
            names.iter().for_each(|intro| send_word(rank, intro));
        }
        Ok(())
    }

    /// Kills the ranks that are due, and stops one now and then.
    fn inject_faults(&mut self) -> Outcome {
        let time = Instant::now();
        for slot in 1..self.ranks.len() {
            if self.ranks.get(slot).is_some_and(|rank| rank.killed_at <= time) {
                self.kill(slot)?;
            }
        }
        if time >= self.next_stop {
            self.next_stop = time + self.schedule.calm();
            let (slot, length, dies) = self.schedule.stop(RANKS);
            if let Some(rank) = self.ranks.get_mut(slot).filter(|rank| rank.stopped.is_none()) {
                let at = now_ns();
                signal(&rank.child, Signal::STOP)?;
                rank.stopped = Some((at, time + length));
                if dies && slot > 0 {
                    rank.killed_at = time + length / 2;
                }
                self.stops += 1;
            }
        }
        Ok(())
    }

    fn kill(&mut self, slot: usize) -> Outcome {
        let Some(rank) = self.ranks.get_mut(slot) else {
            return Ok(());
        };
        let id = rank.id;
        self.judge.died(id, now_ns());
        rank.child.kill()?;
        rank.child.wait()?;
        rank.intro = None;
        self.kills += 1;
        self.group_open.retain(|open| *open != id);
        let word = format!("gone {id}");
        for rank in self.ranks.iter().filter(|rank| rank.id != id) {
            send_word(rank, &word);
        }
        self.spawn(RankId {
            slot: id.slot,
            life: id.life.checked_add(1).ok_or_else(|| Fail::here("too many lives"))?,
        })
    }

    fn resume(&mut self) -> Outcome {
        for rank in &mut self.ranks {
            let Some((from, until)) = rank.stopped else {
                continue;
            };
            if until <= Instant::now() {
                signal(&rank.child, Signal::CONT)?;
                rank.stopped = None;
                rank.last_word = Instant::now();
                self.judge.stopped(rank.id, from, now_ns());
            }
        }
        Ok(())
    }

    /// Starts a group if the last one has ended at all its living members, or has existed long
    /// enough.
    fn start_group(&mut self) -> Outcome {
        let ready = Instant::now() >= self.next_group && self.group_open.is_empty();
        if self.args.kind != Kind::Rdm || !ready {
            return Ok(());
        }
        let rng = &mut self.rng;
        let members: Vec<RankId> = self
            .ranks
            .iter()
            .filter(|rank| rank.intro.is_some() && !rng.one_in(4))
            .map(|rank| rank.id)
            .collect();
        self.next_group = Instant::now() + Duration::from_millis(200 + self.rng.below(600) as u64);
        if members.len() < 2 {
            return Ok(());
        }
        self.judge.superseded(self.group, now_ns());
        self.group += 1;
        self.groups += 1;
        self.judge.group(self.group, members.clone());
        let list: Vec<String> = members.iter().map(RankId::to_string).collect();
        let word = format!("group {} {}", self.group, list.join(" "));
        for rank in self.ranks.iter().filter(|rank| members.contains(&rank.id)) {
            send_word(rank, &word);
        }
        self.group_open = members;
        Ok(())
    }

    /// Receives messages of the ranks and handles them.
    fn step(&mut self) -> Outcome {
        self.resume()?;
        let mut fds: Vec<PollFd<'_>> =
            self.ranks.iter().map(|rank| PollFd::new(&rank.control, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<usize> = fds
            .iter()
            .enumerate()
            .filter(|(_, fd)| fd.revents().contains(PollFlags::IN))
            .map(|(slot, _)| slot)
            .collect();
        for slot in ready {
            self.receive(slot)?;
        }
        for rank in &mut self.ranks {
            if let Some(status) = rank.child.try_wait()? {
                return Err(Fail::here(format_args!("rank {} ended by itself: {status}", rank.id)));
            }
            if rank.stopped.is_none() && rank.last_word.elapsed() > SILENCE {
                return Err(Fail::here(format_args!("rank {} hangs", rank.id)));
            }
        }
        Ok(())
    }
}
