// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parent of a case: starts the ranks, replies to them, enforces the time limit, and leaves no
//! process running.
//!
//! Each rank is a process group of its own, so that children of a rank end with it. A SIGKILL that
//! a case requests hits the rank alone. The time limit is a guard against hangs, never a
//! measurement.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, kill_process_group};

use super::control::{Answer, Say};
use super::rank::Target;
use super::start::{Started, end_groups, group_of, start};
use super::{Case, Fail, Outcome};

/// Maximum characters of one rank's output in a report.
const EXCERPT: usize = 6000;

/// State of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Running,
    /// The rank reported that it passed; its teardown belongs to the case too.
    Ending,
    Passed,
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Waiting {
    No,
    Barrier,
    Exchange(Vec<u8>),
}

struct RunningRank {
    child: Child,
    control: OwnedFd,
    output: File,
    state: State,
    waiting: Waiting,
    may_die: bool,
    step: Option<(Instant, String)>,
}

/// One run of one case.
pub struct Run<'a> {
    case: &'a Case,
    target: &'a Target,
    started: Instant,
    ranks: Vec<RunningRank>,
    lives: Vec<u32>,
    /// Directory for `{dir}` in the environment of the case.
    dir: Option<PathBuf>,
    /// Every process started.
    pids: Vec<u32>,
    /// Process groups of ranks that were replaced.
    groups: Vec<Pid>,
}

/// Returns the arguments with which the driver starts a rank.
pub fn rank_args(case: &Case, target: &Target, index: usize, life: u32) -> Vec<std::ffi::OsString> {
    let words = [
        "--lib".into(),
        target.lib.clone().into_os_string(),
        "--prov".into(),
        target.prov.clone().into(),
        "--seed".into(),
        target.seed.to_string().into(),
        "--rank-of".into(),
        case.name.into(),
        "--rank".into(),
        index.to_string().into(),
        "--life".into(),
        life.to_string().into(),
    ];
    words.to_vec()
}

/// Runs a case to its end; afterwards none of its processes exists. Appends their process ids to
/// `pids`.
///
/// # Errors
/// [`Fail`] with the report of everything known about the failure.
pub fn run(case: &Case, target: &Target, pids: &mut Vec<u32>) -> Outcome {
    let mut run = Run {
        case,
        target,
        started: Instant::now(),
        ranks: Vec::new(),
        lives: vec![0; case.ranks],
        dir: None,
        pids: Vec::new(),
        groups: Vec::new(),
    };
    let mut outcome = Ok(());
    if case.env.iter().any(|(_, value)| value.contains("{dir}")) {
        match fresh_dir() {
            Ok(dir) => run.dir = Some(dir),
            Err(e) => return Err(Fail::Failed(format!("cannot make a directory: {e}"))),
        }
    }
    for index in 0..case.ranks {
        match run.spawn(index, 0) {
            Ok(process) => run.ranks.push(process),
            Err(e) => {
                outcome = Err(Fail::Failed(format!("cannot start rank {index}: {e}")));
                break;
            }
        }
    }
    if outcome.is_ok() {
        outcome = run.watch();
    }
    if let Err(Fail::Failed(why)) = &mut outcome {
        why.push_str(&run.outputs());
    }
    pids.append(&mut run.pids);
    run.end();
    outcome
}

impl Run<'_> {
    fn spawn(&mut self, index: usize, life: u32) -> std::io::Result<RunningRank> {
        let dir =
            self.dir.as_deref().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
        let env = self.case.env.iter().map(|(name, value)| (name, value.replace("{dir}", &dir)));
        let mut command = match self.target.wrap.split_first() {
            None => Command::new("/proc/self/exe"),
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg(std::env::current_exe()?);
                command
            }
        };
        command.envs(env).args(rank_args(self.case, self.target, index, life));
        let Started { child, control, output } = start(&mut command)?;
        self.pids.push(child.id());
        Ok(RunningRank {
            child,
            control,
            output,
            state: State::Running,
            waiting: Waiting::No,
            may_die: false,
            step: None,
        })
    }

    /// Returns the time limit of the case in seconds, five times longer under a wrapper command.
    fn patience_secs(&self) -> u64 {
        let factor = if self.target.wrap.is_empty() { 1 } else { 5 };
        self.case.timeout_secs * factor
    }

    fn watch(&mut self) -> Outcome {
        let limit = Duration::from_secs(self.patience_secs());
        loop {
            if self.ranks.iter().all(|rank| matches!(rank.state, State::Passed | State::Dead)) {
                return Ok(());
            }
            let Some(left) = limit.checked_sub(self.started.elapsed()) else {
                return Err(Fail::Failed(self.hang_report()));
            };
            let ready = self.wait_for_words(left)?;
            for index in ready {
                self.receive_from(index)?;
            }
            for index in 0..self.ranks.len() {
                self.notice_end(index)?;
            }
            self.answer_meetings()?;
        }
    }

    fn wait_for_words(&self, left: Duration) -> Outcome<Vec<usize>> {
        let open: Vec<usize> = self
            .ranks
            .iter()
            .enumerate()
            .filter(|(_, rank)| rank.state == State::Running)
            .map(|(index, _)| index)
            .collect();
        let tick = if open.len() < self.ranks.len() {
            Duration::from_millis(2)
        } else {
            Duration::from_millis(200)
        };
        let mut fds: Vec<PollFd<'_>> = open
            .iter()
            .filter_map(|&index| self.ranks.get(index))
            .map(|rank| PollFd::new(&rank.control, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(left.min(tick)).map_err(Fail::here)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = open.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(&index, _)| index).collect())
    }

    /// Receives one message of a rank and acts on it.
    fn receive_from(&mut self, index: usize) -> Outcome {
        let Some(rank) = self.ranks.get_mut(index) else {
            return Ok(());
        };
        if rank.state != State::Running {
            return Ok(());
        }
        let word = match Say::recv(&rank.control) {
            Ok(word) => word,
            Err(rustix::io::Errno::CONNRESET) => None,
            Err(e) => return Err(e.into()),
        };
        match word {
            Some(Say::Barrier) => rank.waiting = Waiting::Barrier,
            Some(Say::Exchange(part)) => rank.waiting = Waiting::Exchange(part),
            Some(Say::Step(text)) => rank.step = Some((Instant::now(), text)),
            Some(Say::ExpectDeath) => rank.may_die = true,
            Some(Say::Passed) => rank.state = State::Ending,
            Some(Say::NotRun(why)) => return Err(Fail::NotRun(why)),
            Some(Say::NotHere(why)) => return Err(Fail::NotHere(why)),
            Some(Say::Failed(why)) => {
                return Err(Fail::Failed(format!(
                    "rank {index}: {why}{}",
                    self.other_failures(index)
                )));
            }
            Some(Say::Kill(victim)) => {
                self.kill(victim)?;
                self.answer(index, &Answer::Go);
            }
            Some(Say::Stop(other)) => {
                self.signal(other, Signal::STOP)?;
                self.answer(index, &Answer::Go);
            }
            Some(Say::Resume(other)) => {
                self.signal(other, Signal::CONT)?;
                self.answer(index, &Answer::Go);
            }
            Some(Say::Respawn(dead)) => {
                self.respawn(dead)?;
                self.answer(index, &Answer::Go);
            }
            // The rank has closed its end: it is dying, and its exit status gives the cause.
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        Ok(())
    }

    /// Returns the failures that other ranks report in the next 400 ms. A rank that fails takes its
    /// peers along, and the first report need not be the cause.
    fn other_failures(&self, index: usize) -> String {
        let mut text = String::new();
        let end = Instant::now() + Duration::from_millis(400);
        for (other, rank) in self.ranks.iter().enumerate() {
            if other == index || rank.state != State::Running {
                continue;
            }
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let mut fds = [PollFd::new(&rank.control, PollFlags::IN)];
                let timeout =
                    Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
                if !matches!(poll(&mut fds, Some(&timeout)), Ok(ready) if ready > 0) {
                    break;
                }
                match Say::recv(&rank.control) {
                    Ok(Some(Say::Failed(why))) => {
                        text.push_str(&format!("\n    rank {other}: {why}"))
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
        text
    }

    /// Handles the end of a process.
    fn notice_end(&mut self, index: usize) -> Outcome {
        let Some(rank) = self.ranks.get_mut(index) else {
            return Ok(());
        };
        if !matches!(rank.state, State::Running | State::Ending) {
            return Ok(());
        }
        let Some(status) = rank.child.try_wait()? else {
            return Ok(());
        };
        if rank.state == State::Running {
            // A message sent before the death still counts.
            if let Ok(true) = has_word(&rank.control) {
                return self.receive_from(index);
            }
        }
        let ending = rank.state == State::Ending;
        rank.state = if ending { State::Passed } else { State::Dead };
        if ending && !status.success() {
            return Err(Fail::Failed(format!("rank {index} passed, then {}", manner(status))));
        }
        if !ending && !rank.may_die {
            let step = rank.step.as_ref().map_or("its start", |(_, step)| step);
            return Err(Fail::Failed(format!("rank {index} {} after: {step}", manner(status))));
        }
        Ok(())
    }

    fn kill(&mut self, victim: usize) -> Outcome {
        if let Some(rank) = self.ranks.get_mut(victim) {
            rank.may_die = true;
            rank.child.kill()?;
            rank.child.wait()?;
            rank.state = State::Dead;
            rank.waiting = Waiting::No;
        }
        Ok(())
    }

    /// Sends `signal` to a rank with its wrapper and children.
    fn signal(&self, index: usize, signal: Signal) -> Outcome {
        let group = self.ranks.get(index).and_then(|rank| group_of(rank.child.id()));
        Ok(kill_process_group(group.ok_or_else(|| Fail::here("no such rank"))?, signal)?)
    }

    fn respawn(&mut self, index: usize) -> Outcome {
        let life = self.lives.get_mut(index).map_or(0, |life| {
            *life += 1;
            *life
        });
        let fresh = self.spawn(index, life)?;
        if let Some(slot) = self.ranks.get_mut(index) {
            let old = std::mem::replace(slot, fresh);
            self.groups.extend(group_of(old.child.id()));
        }
        Ok(())
    }

    /// Releases a barrier or an exchange once every running rank has entered it.
    fn answer_meetings(&mut self) -> Outcome {
        let running = || self.ranks.iter().filter(|rank| rank.state == State::Running);
        if running().count() == 0 || running().any(|rank| rank.waiting == Waiting::No) {
            return Ok(());
        }
        let barriers = running().filter(|rank| rank.waiting == Waiting::Barrier).count();
        let answer = if barriers == running().count() {
            Answer::Go
        } else if barriers == 0 {
            let part = |rank: &RunningRank| match (&rank.state, &rank.waiting) {
                (State::Running, Waiting::Exchange(part)) => part.clone(),
                _ => Vec::new(),
            };
            Answer::Parts(self.ranks.iter().map(part).collect())
        } else {
            return Err(Fail::Failed("some ranks are at a barrier, others in an exchange".into()));
        };
        for index in 0..self.ranks.len() {
            if self.ranks.get(index).is_some_and(|rank| rank.state == State::Running) {
                self.answer(index, &answer);
            }
        }
        for rank in &mut self.ranks {
            rank.waiting = Waiting::No;
        }
        Ok(())
    }

    fn answer(&self, index: usize, answer: &Answer) {
        if let Some(rank) = self.ranks.get(index) {
            // The closed socket of a dead rank is noticed later.
            let _ = answer.send(rank.control.as_fd());
        }
    }

    fn hang_report(&self) -> String {
        let mut report = format!("no end after {} s:", self.patience_secs());
        for (index, rank) in self.ranks.iter().enumerate() {
            let at = match (&rank.state, &rank.waiting) {
                (State::Passed, _) => "has passed".to_owned(),
                (State::Dead, _) => "is dead".to_owned(),
                (State::Ending, _) => {
                    format!("has passed and hangs in {}", kernel_place(rank.child.id()))
                }
                (State::Running, Waiting::Barrier) => "waits at a barrier".to_owned(),
                (State::Running, Waiting::Exchange(_)) => "waits in an exchange".to_owned(),
                (State::Running, Waiting::No) => {
                    format!("hangs in {}", kernel_place(rank.child.id()))
                }
            };
            report.push_str(&format!("\n    rank {index} {at}"));
            if let Some((when, step)) = &rank.step {
                report.push_str(&format!(
                    "; its last step, {:.1} s ago: {step}",
                    when.elapsed().as_secs_f32()
                ));
            }
        }
        report
    }

    fn outputs(&mut self) -> String {
        let mut text = String::new();
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let mut bytes = Vec::new();
            if rank.output.rewind().and_then(|()| rank.output.read_to_end(&mut bytes)).is_err()
                || bytes.is_empty()
            {
                continue;
            }
            let from = bytes.len().saturating_sub(EXCERPT);
            let tail = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned();
            text.push_str(&format!("\n    output of rank {index}:"));
            for line in tail.lines() {
                text.push_str("\n      ");
                text.push_str(line);
            }
        }
        text
    }

    /// Kills and reaps the remaining processes.
    fn end(mut self) {
        for rank in &mut self.ranks {
            self.groups.extend(group_of(rank.child.id()));
            // The process has ended by itself or is killed here; both need the wait.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
        end_groups(&self.groups);
        if let Some(dir) = &self.dir {
            // The search for leftovers reports files that cannot be removed.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Creates a directory for this run.
fn fresh_dir() -> std::io::Result<PathBuf> {
    let name = format!("scif-conformance-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir)?;
    Ok(dir)
}

/// Whether a message of the rank is queued, not only the end of its stream.
fn has_word(control: &OwnedFd) -> rustix::io::Result<bool> {
    let mut byte = [0_u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(control, &mut byte[..], flags).map(|(len, _)| len > 0)
}

fn manner(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("died of signal {signal}"),
        (None, Some(code)) => format!("exited with {code}"),
        (None, None) => "ended".into(),
    }
}

/// Returns the kernel's view of a process: its state and the function in which it sleeps.
fn kernel_place(pid: u32) -> String {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let status = read("status");
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .map_or("?", str::trim)
        .to_owned();
    let wchan = read("wchan");
    let place = if wchan.is_empty() || wchan == "0" { "user code".to_owned() } else { wchan };
    format!("{place} ({state})")
}
