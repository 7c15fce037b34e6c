// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A case: its name, the number of its processes, and the function that each of them runs.

use super::{Fail, Outcome, Rank, Setup};

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Unique name, `area/subject`.
    pub name: &'static str,
    /// Number of processes that take part.
    pub ranks: usize,
    /// Time limit in seconds. After it the process group is killed and the case has failed.
    pub timeout_secs: u64,
    /// Environment of the processes. `{dir}` in a value is a new directory, removed at the end.
    pub env: &'static [(&'static str, &'static str)],
    /// Changes to the usual set-up, for a case that runs again over other endpoints.
    pub setup: Setup,
    /// Function that every process runs.
    pub run: fn(&Rank) -> Outcome,
}

/// Returns a case with the usual time limit of 180 seconds. A case takes a small part of that, even
/// where ten processes compete for each processor.
pub const fn case(name: &'static str, ranks: usize, run: fn(&Rank) -> Outcome) -> Case {
    Case { name, ranks, timeout_secs: 180, env: &[], setup: Setup::PLAIN, run }
}

impl Case {
    /// Returns the case with another time limit in seconds.
    #[must_use]
    pub const fn within(mut self, secs: u64) -> Case {
        self.timeout_secs = secs;
        self
    }

    /// Returns the case with another environment.
    #[must_use]
    pub const fn under(mut self, env: &'static [(&'static str, &'static str)]) -> Case {
        self.env = env;
        self
    }

    /// Runs the case in one process.
    ///
    /// # Errors
    /// Errors of the case, and a failure if the case never opened endpoints with its set-up.
    pub fn run_in(&self, rank: &mut Rank) -> Outcome {
        rank.setup = self.setup;
        (self.run)(rank)?;
        if self.setup != Setup::PLAIN && rank.made.get().is_none() {
            return Err(Fail::here("the case opens its endpoints by itself"));
        }
        Ok(())
    }
}
