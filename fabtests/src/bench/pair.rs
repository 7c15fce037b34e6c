// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parent's side of two ranks or of a single rank: starts them, sends orders, waits for replies,
//! and ends them.
//!
//! After any failure a pair is unusable: one side may wait in shared memory forever.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use scif_fabtests::harness::control::pair as sockets;
use scif_fabtests::harness::{Fail, Outcome};

use super::protocol::{Order, Reply, receive_reply, send_word};
use super::segment;

/// Subject of a measurement: a provider in a library, or a limit of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Name in tables and files.
    pub(crate) label: String,
    /// Name of the provider for libfabric, or name of the limit.
    pub(crate) provider: String,
    pub(crate) lib: PathBuf,
    /// Version of the library, once read.
    pub(crate) version: String,
    pub(crate) limit: bool,
    /// Whether process_vm_readv and process_vm_writev are denied.
    pub(crate) denied: bool,
    /// Whether targets are shared memory that peers can map.
    pub(crate) shared: bool,
    /// Environment variables of its ranks.
    pub(crate) settings: &'static [(&'static str, &'static str)],
}

/// Reason for a missing reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BenchError {
    /// The provider lacks the feature.
    Lacks(String),
    /// The provider has the feature, but it failed.
    Broken(String),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Lacks(why) => write!(f, "not offered: {why}"),
            BenchError::Broken(why) => write!(f, "failed: {why}"),
        }
    }
}

impl From<Fail> for BenchError {
    fn from(fail: Fail) -> BenchError {
        match fail {
            Fail::NotRun(why) | Fail::NotHere(why) => BenchError::Lacks(why),
            Fail::Failed(why) => BenchError::Broken(why),
        }
    }
}

struct Side {
    child: Child,
    control: OwnedFd,
    output: File,
}

/// Running ranks of one subject.
pub(crate) struct Pair {
    sides: Vec<Side>,
    _segment: File,
}

impl Pair {
    /// Starts one rank per given processor; `None` leaves the placement of a rank to the kernel.
    pub(crate) fn start(subject: &Subject, cpus: &[Option<usize>]) -> Outcome<Pair> {
        let segment = segment::create()?;
        let place = format!("/proc/{}/fd/{}", std::process::id(), segment.as_raw_fd());
        let mut pair = Pair { sides: Vec::new(), _segment: segment };
        for (rank, cpu) in cpus.iter().enumerate() {
            let (control, theirs) = sockets()?;
            let output = File::from(memfd_create("bench-output", MemfdFlags::CLOEXEC)?);
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args([
                    "--rank-of",
                    &subject.provider,
                    "--rank",
                    &rank.to_string(),
                    "--segment",
                    &place,
                ])
                .arg("--lib")
                .arg(&subject.lib)
                .stdin(Stdio::from(theirs))
                .stdout(Stdio::null())
                .stderr(output.try_clone()?);
            if let Some(cpu) = cpu {
                command.args(["--cpu", &cpu.to_string()]);
            }
            if subject.denied {
                command.arg("--deny-process-vm");
            }
            if subject.shared {
                command.arg("--shared-memory");
            }
            command.envs(subject.settings.iter().copied());
            pair.sides.push(Side { child: command.spawn()?, control, output });
        }
        Ok(pair)
    }

    /// Sends an order without waiting.
    pub(crate) fn send_order(&self, rank: usize, order: &Order) -> Result<(), BenchError> {
        let side = self.sides.get(rank).ok_or_else(|| BenchError::Broken("no such rank".into()))?;
        send_word(&side.control, order)
            .map_err(|e| BenchError::Broken(self.obituary(&e.to_string())))
    }

    /// Sends the same order to all ranks and waits for their replies, in rank order.
    pub(crate) fn order(&self, order: &Order, limit: Duration) -> Result<Vec<Reply>, BenchError> {
        for rank in 0..self.sides.len() {
            self.send_order(rank, order)?;
        }
        let deadline = Instant::now() + limit;
        let mut replies: Vec<Option<Reply>> = vec![None; self.sides.len()];
        while replies.iter().any(Option::is_none) {
            let waiting: Vec<usize> =
                (0..replies.len()).filter(|&rank| replies.get(rank) == Some(&None)).collect();
            let rank = self.wait(&waiting, deadline)?;
            let reply = self.take(rank)?;
            if let Some(slot) = replies.get_mut(rank) {
                *slot = Some(reply);
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// Waits for the reply of one rank.
    pub(crate) fn answer(&self, rank: usize, limit: Duration) -> Result<Reply, BenchError> {
        let rank = self.wait(&[rank], Instant::now() + limit)?;
        self.take(rank)
    }

    /// Waits until one of these ranks has a message, and returns its index.
    fn wait(&self, ranks: &[usize], deadline: Instant) -> Result<usize, BenchError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BenchError::Broken(self.obituary("no answer in time")));
            }
            let controls = ranks.iter().filter_map(|&rank| self.sides.get(rank));
            let mut fds: Vec<PollFd<'_>> = controls
                .map(|side| PollFd::from_borrowed_fd(side.control.as_fd(), PollFlags::IN))
                .collect();
            let timeout = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(BenchError::Broken(e.to_string())),
            }
            let ready = ranks.iter().zip(&fds).find(|(_, fd)| !fd.revents().is_empty());
            if let Some((&rank, _)) = ready {
                return Ok(rank);
            }
        }
    }

    fn take(&self, rank: usize) -> Result<Reply, BenchError> {
        let side = self.sides.get(rank).ok_or_else(|| BenchError::Broken("no such rank".into()))?;
        match receive_reply(&side.control) {
            Ok(Some(Reply::Lacks(why))) => Err(BenchError::Lacks(why)),
            Ok(Some(Reply::Failed(why))) => Err(BenchError::Broken(self.obituary(&why))),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(BenchError::Broken(self.obituary(&format!("rank {rank} died")))),
            Err(e) => Err(BenchError::Broken(self.obituary(&format!("rank {rank}: {e}")))),
        }
    }

    /// Kills one rank and reaps it.
    pub(crate) fn kill(&mut self, rank: usize) -> Outcome {
        if let Some(side) = self.sides.get_mut(rank) {
            side.child.kill()?;
            side.child.wait()?;
        }
        Ok(())
    }

    /// Returns a reason with the last output line of each rank.
    fn obituary(&self, why: &str) -> String {
        let mut text = why.to_owned();
        for side in &self.sides {
            let mut bytes = Vec::new();
            let read = side.output.try_clone().and_then(|mut output| {
                output.rewind()?;
                output.read_to_end(&mut bytes)
            });
            let last = String::from_utf8_lossy(&bytes);
            if let (Ok(_), Some(line)) = (read, last.lines().rfind(|line| !line.trim().is_empty()))
            {
                text.push_str(" | ");
                text.push_str(line.trim());
            }
        }
        text
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for side in &mut self.sides {
            // The rank may have ended by itself.
            let _ = side.child.kill();
        }
        for side in &mut self.sides {
            let _ = side.child.wait();
        }
    }
}
