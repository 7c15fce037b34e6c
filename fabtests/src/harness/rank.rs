// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Requests of one process of a case to the others and to its parent.
//!
//! A wait for the others never blocks the progress of the caller. Barriers and exchanges call
//! `idle` until the reply arrives, because a provider with manual progress moves data of its peers
//! only when it is called.

use std::fmt::Display;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};

use super::control::{Answer, Say};
use super::{Fail, Outcome, Rng};

/// Object under test.
#[derive(Debug, Clone)]
pub struct Target {
    /// The `libfabric.so.1` to load.
    pub lib: PathBuf,
    /// Name of the provider.
    pub prov: String,
    /// Seed of this run.
    pub seed: u64,
    /// Command under which each process of a case runs, and its arguments; empty for none.
    pub wrap: Vec<String>,
}

/// Changes to the usual set-up of a case that runs again over other endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Kind of endpoint in place of a reliable one (`FI_EP_*`); 0 leaves the kind to the case.
    pub ep_type: u32,
    /// Whether endpoints are bound to a shared transmit context.
    pub shared_tx: bool,
    /// Whether endpoints are bound to a shared receive context, to which all receives are posted.
    pub shared_rx: bool,
    /// Whether messages have a prefix (`FI_MSG_PREFIX`).
    pub prefix: bool,
}

impl Setup {
    /// Usual set-up without changes.
    pub const PLAIN: Setup =
        Setup { ep_type: 0, shared_tx: false, shared_rx: false, prefix: false };
}

/// One process of a case.
pub struct Rank {
    /// Index of the rank, from 0.
    pub index: usize,
    /// Number of ranks.
    pub count: usize,
    /// Number of earlier starts of this rank: 0, or more after [`Rank::respawn`].
    pub life: u32,
    /// Object under test.
    pub target: Target,
    /// Changes to the usual set-up.
    pub setup: Setup,
    /// Set once the usual set-up has made an endpoint with the changes of `setup`.
    pub made: Arc<OnceLock<()>>,
    control: OwnedFd,
}

impl Rank {
    /// Returns the rank whose control socket is standard input.
    ///
    /// # Errors
    /// If standard input cannot be duplicated.
    pub fn from_stdin(
        index: usize,
        count: usize,
        life: u32,
        target: Target,
    ) -> std::io::Result<Rank> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let control = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Rank { index, count, life, target, setup: Setup::PLAIN, made: Arc::default(), control })
    }

    /// Returns a copy of this rank with another seed, for a case that runs another case several
    /// times.
    pub fn with_seed(&self, seed: u64) -> Outcome<Rank> {
        let mut target = self.target.clone();
        target.seed = seed;
        Ok(Rank {
            target,
            made: Arc::clone(&self.made),
            control: self.control.try_clone()?,
            ..*self
        })
    }

    /// Returns `NotRun` and the reason `otherwise` if another provider is under test.
    pub fn only_scif(&self, otherwise: &str) -> Outcome {
        if self.target.prov == "scif" { Ok(()) } else { Err(Fail::NotRun(otherwise.into())) }
    }

    /// Waits until every running rank has entered the barrier, calling `idle` meanwhile.
    ///
    /// # Errors
    /// If the parent has gone, and the errors of `idle`.
    pub fn barrier(&self, idle: &mut dyn FnMut() -> Outcome) -> Outcome {
        Say::Barrier.send(&self.control)?;
        self.answer(idle).map(drop)
    }

    /// Sends `mine` to every running rank and returns all contributions, in rank order. That of a
    /// dead rank is empty.
    ///
    /// # Errors
    /// If the parent has gone, and the errors of `idle`.
    pub fn exchange(
        &self,
        mine: &[u8],
        idle: &mut dyn FnMut() -> Outcome,
    ) -> Outcome<Vec<Vec<u8>>> {
        Say::Exchange(mine.to_vec()).send(&self.control)?;
        match self.answer(idle)? {
            Answer::Parts(parts) => Ok(parts),
            Answer::Go => Err(Fail::here("the parent answered an exchange without parts")),
        }
    }

    /// Kills a rank with SIGKILL; on return it is dead and reaped. Its forked children survive.
    pub fn kill(&self, rank: usize) -> Outcome {
        Say::Kill(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Sends SIGSTOP to a rank until [`Rank::resume`] or [`Rank::kill`]. The parent sends it, since
    /// a rank may live in another PID namespace. The rank stops at an arbitrary instruction, soon
    /// after the return.
    pub fn stop(&self, rank: usize) -> Outcome {
        Say::Stop(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Continues a stopped rank.
    pub fn resume(&self, rank: usize) -> Outcome {
        Say::Resume(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Starts a killed rank again, with a higher [`Rank::life`].
    pub fn respawn(&self, rank: usize) -> Outcome {
        Say::Respawn(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Announces that this process will die as part of the case.
    pub fn expect_death(&self) -> Outcome {
        Ok(Say::ExpectDeath.send(&self.control)?)
    }

    /// Reports the current step of this rank, which a report of a hang repeats.
    pub fn step(&self, subject: impl Display) {
        // A lost parent is reported by the next barrier.
        let _ = Say::Step(subject.to_string()).send(&self.control);
    }

    /// Appends a figure to the file that `CONFORMANCE_FIGURES` names, if it is set.
    pub fn figure(&self, text: impl Display) {
        let Some(path) = std::env::var_os("CONFORMANCE_FIGURES") else { return };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let line = format!("rank {}: {text}\n", self.index);
        // A figure is not a result of the case.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    /// Returns a random number generator with the same numbers in every rank of the run.
    pub fn shared_rng(&self) -> Rng {
        Rng::new(self.target.seed)
    }

    /// Returns a random number generator of this rank alone.
    pub fn own_rng(&self) -> Rng {
        let mine = u64::try_from(self.index).unwrap_or(0).wrapping_add(1);
        Rng::new(self.target.seed.wrapping_add(mine.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// Index of the next rank, cyclically.
    pub fn next(&self) -> usize {
        (self.index + 1) % self.count.max(1)
    }

    /// Index of the other of two ranks.
    pub fn peer(&self) -> usize {
        1 - self.index.min(1)
    }

    /// Sends bytes to a parent that is not a driver of cases.
    pub fn send_to_parent(&self, bytes: &[u8]) -> Outcome {
        Ok(Say::Exchange(bytes.to_vec()).send(&self.control)?)
    }

    /// Receives the next message of a parent that is not a driver of cases, if there is one.
    ///
    /// Kills this process if the parent has closed its end. A parent that kills a rank through a
    /// wrapper closes it before the rank has died, and a killed rank must not close its endpoints.
    pub fn receive_from_parent(&self) -> Outcome<Option<Vec<Vec<u8>>>> {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match Answer::recv(&self.control) {
            Ok(Some(Answer::Parts(parts))) => Ok(Some(parts)),
            Ok(Some(Answer::Go)) => Ok(None),
            Ok(None) | Err(rustix::io::Errno::CONNRESET) => {
                kill_process(getpid(), Signal::KILL)?;
                Err(Fail::here("the parent has gone"))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Reports the result of the case in this rank.
    pub fn report(&self, outcome: &Outcome) {
        let word = match outcome {
            Ok(()) => Say::Passed,
            Err(Fail::NotRun(why)) => Say::NotRun(why.clone()),
            Err(Fail::NotHere(why)) => Say::NotHere(why.clone()),
            Err(Fail::Failed(why)) => Say::Failed(why.clone()),
        };
        let _ = word.send(&self.control);
    }

    fn answer(&self, idle: &mut dyn FnMut() -> Outcome) -> Outcome<Answer> {
        loop {
            idle()?;
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            let ready = match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000 })) {
                Ok(n) => n > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(e) => return Err(e.into()),
            };
            if ready {
                return Answer::recv(&self.control)?
                    .ok_or_else(|| Fail::here("the parent has gone"));
            }
        }
    }
}
