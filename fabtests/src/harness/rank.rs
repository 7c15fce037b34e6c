// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What one process of a case can ask of the others and of its parent.
//!
//! Waiting for the others never blocks the caller's own progress: barriers and exchanges call `idle` until the answer
//! is there, because a provider with manual progress moves its peers' data only when it is called.

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::{Answer, Say};
use super::{Fail, Outcome, Rng};

/// What is tested.
#[derive(Debug, Clone)]
pub struct Target {
    /// The `libfabric.so.1` to load.
    pub lib: PathBuf,
    /// The provider to ask for.
    pub prov: String,
    /// The seed of this run.
    pub seed: u64,
    /// The command that each process of a case is run under, and its arguments; empty for none.
    pub wrap: Vec<String>,
}

/// What the usual set-up makes otherwise than a case asks, where another case runs it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    /// The kind of endpoint in place of a reliable one (`FI_EP_*`); 0 is as the case asks.
    pub ep_type: u32,
    /// Bound to a transmit context that endpoints can share.
    pub shared_tx: bool,
    /// Bound to a receive context that endpoints can share, to which all receives are posted.
    pub shared_rx: bool,
    /// Messages have a prefix (`FI_MSG_PREFIX`).
    pub prefix: bool,
}

/// One process of a case.
pub struct Rank {
    /// Which one, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// How often this rank was started before: 0, or more after [`Rank::respawn`].
    pub life: u32,
    /// What is tested.
    pub target: Target,
    /// What the usual set-up makes otherwise than a case asks.
    pub setup: Setup,
    /// Set once the usual set-up has made an endpoint that way.
    pub made: OnceLock<()>,
    control: OwnedFd,
}

impl Rank {
    /// The rank whose control socket is standard input.
    ///
    /// # Errors
    /// When standard input cannot be duplicated.
    pub fn from_stdin(index: usize, count: usize, life: u32, target: Target) -> std::io::Result<Rank> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let control = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Rank {
            index,
            count,
            life,
            target,
            setup: Setup::default(),
            made: OnceLock::new(),
            control,
        })
    }

    /// The same rank again, for a case that runs another one.
    fn again(&self) -> Outcome<Rank> {
        Ok(Rank {
            index: self.index,
            count: self.count,
            life: self.life,
            target: self.target.clone(),
            setup: self.setup,
            made: OnceLock::new(),
            control: self.control.try_clone()?,
        })
    }

    /// The same rank again, for a case that runs another one several times with different seeds.
    ///
    /// # Errors
    /// When the control socket cannot be duplicated.
    pub fn with_seed(&self, seed: u64) -> Outcome<Rank> {
        let mut rank = self.again()?;
        rank.target.seed = seed;
        Ok(rank)
    }

    /// The same rank again, for a case that runs another one with endpoints that are set up otherwise.
    ///
    /// # Errors
    /// When the control socket cannot be duplicated.
    pub fn with_setup(&self, setup: Setup) -> Outcome<Rank> {
        let mut rank = self.again()?;
        rank.setup = setup;
        Ok(rank)
    }

    /// Waits until every living rank is here, calling `idle` meanwhile.
    ///
    /// # Errors
    /// When the parent has gone, and those of `idle`.
    pub fn barrier(&self, idle: &mut dyn FnMut() -> Outcome) -> Outcome {
        Say::Barrier.send(&self.control)?;
        self.answer(idle).map(drop)
    }

    /// Gives `mine` to every living rank and takes theirs, in rank order; a dead rank's part is empty.
    ///
    /// # Errors
    /// When the parent has gone, and those of `idle`.
    pub fn exchange(&self, mine: &[u8], idle: &mut dyn FnMut() -> Outcome) -> Outcome<Vec<Vec<u8>>> {
        Say::Exchange(mine.to_vec()).send(&self.control)?;
        match self.answer(idle)? {
            Answer::Parts(parts) => Ok(parts),
            Answer::Go => Err(Fail::here("the parent answered an exchange without parts")),
        }
    }

    /// Kills a rank with SIGKILL; it is dead and reaped when this returns. What it forked lives on.
    ///
    /// # Errors
    /// When the parent has gone.
    pub fn kill(&self, rank: usize) -> Outcome {
        Say::Kill(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Starts a killed rank again, with a higher [`Rank::life`].
    ///
    /// # Errors
    /// When the parent has gone.
    pub fn respawn(&self, rank: usize) -> Outcome {
        Say::Respawn(rank).send(&self.control)?;
        self.answer(&mut || Ok(())).map(drop)
    }

    /// Announces that this process will die as part of the case.
    ///
    /// # Errors
    /// When the parent has gone.
    pub fn expect_death(&self) -> Outcome {
        Ok(Say::ExpectDeath.send(&self.control)?)
    }

    /// Tells the parent what this rank does from here on; it is what the watchdog reports.
    pub fn step(&self, what: impl Display) {
        // Without a parent there is nobody to tell, and the next barrier says so.
        let _ = Say::Step(what.to_string()).send(&self.control);
    }

    /// A stream of random numbers that every rank of the run has the same of.
    pub fn shared_rng(&self) -> Rng {
        Rng::new(self.target.seed)
    }

    /// A stream of random numbers of this rank alone.
    pub fn own_rng(&self) -> Rng {
        let mine = u64::try_from(self.index).unwrap_or(0).wrapping_add(1);
        Rng::new(
            self.target
                .seed
                .wrapping_add(mine.wrapping_mul(0xd134_2543_de82_ef95)),
        )
    }

    /// The next rank, around.
    pub fn next(&self) -> usize {
        (self.index + 1) % self.count.max(1)
    }

    /// The other of two ranks.
    pub fn peer(&self) -> usize {
        1 - self.index.min(1)
    }

    /// Sends bytes to a parent that is no driver of cases.
    ///
    /// # Errors
    /// When the parent has gone.
    pub fn tell(&self, bytes: &[u8]) -> Outcome {
        Ok(Say::Exchange(bytes.to_vec()).send(&self.control)?)
    }

    /// Takes the next message of such a parent, if there is one.
    ///
    /// # Errors
    /// When the parent has gone.
    pub fn hear(&self) -> Outcome<Option<Vec<Vec<u8>>>> {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match Answer::recv(&self.control)? {
            Some(Answer::Parts(parts)) => Ok(Some(parts)),
            Some(Answer::Go) => Ok(None),
            None => Err(Fail::here("the parent has gone")),
        }
    }

    /// Reports how the case ended here.
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
            let ready = match poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 50_000,
                }),
            ) {
                Ok(n) => n > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(e) => return Err(e.into()),
            };
            if ready {
                return Answer::recv(&self.control)?.ok_or_else(|| Fail::here("the parent has gone"));
            }
        }
    }
}
