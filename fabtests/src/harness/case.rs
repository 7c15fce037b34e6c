// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A case: its name, how many processes it takes, and how one of them ends.
//!
//! `?` turns an error into a [`Fail`] that remembers the line it stood in, so a case reads as straight code and a
//! failure still says where. Not about how the processes are run: that is the driver.

use std::fmt::Display;
use std::panic::Location;

use super::Rank;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// `area/what`, unique.
    pub name: &'static str,
    /// How many processes take part.
    pub ranks: usize,
    /// After this the group is killed and the case has failed.
    pub timeout_secs: u64,
    /// Environment of the processes; `{dir}` in a value is a fresh directory, removed in the end.
    pub env: &'static [(&'static str, &'static str)],
    /// What every process runs.
    pub run: fn(&Rank) -> Outcome,
}

/// A case with the usual watchdog: many times what a case takes where ten others want each processor.
pub const fn case(name: &'static str, ranks: usize, run: fn(&Rank) -> Outcome) -> Case {
    Case {
        name,
        ranks,
        timeout_secs: 180,
        env: &[],
        run,
    }
}

impl Case {
    /// The same case with more time.
    #[must_use]
    pub const fn within(mut self, secs: u64) -> Case {
        self.timeout_secs = secs;
        self
    }

    /// The same case in another environment.
    #[must_use]
    pub const fn under(mut self, env: &'static [(&'static str, &'static str)]) -> Case {
        self.env = env;
        self
    }
}

/// Why a process did not pass.
#[derive(Debug, Clone)]
pub enum Fail {
    /// The provider says it has no such feature.
    NotRun(String),
    /// The library is too old for it, or the system refuses what it takes, whatever the provider has.
    NotHere(String),
    /// The provider, or the case, is wrong.
    Failed(String),
}

/// How a process ends.
pub type Outcome<T = ()> = Result<T, Fail>;

impl Fail {
    /// A failure that names the caller's line.
    #[track_caller]
    pub fn here(what: impl Display) -> Fail {
        let at = Location::caller();
        Fail::Failed(format!("{}:{}: {what}", at.file(), at.line()))
    }

    /// The same end with a word in front of the reason.
    #[must_use]
    pub fn with(self, context: impl Display) -> Fail {
        match self {
            Fail::NotRun(why) => Fail::NotRun(format!("{context}: {why}")),
            Fail::NotHere(why) => Fail::NotHere(format!("{context}: {why}")),
            Fail::Failed(why) => Fail::Failed(format!("{context}: {why}")),
        }
    }
}

impl From<std::io::Error> for Fail {
    #[track_caller]
    fn from(error: std::io::Error) -> Fail {
        Fail::here(error)
    }
}

impl From<rustix::io::Errno> for Fail {
    #[track_caller]
    fn from(error: rustix::io::Errno) -> Fail {
        Fail::here(error)
    }
}

/// Adds what was being tried to a result that failed.
pub trait Context<T> {
    /// # Errors
    /// Those of `self`, with `what()` in front.
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T> Context<T> for Outcome<T> {
    fn context<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|fail| fail.with(what()))
    }
}

/// Ends the case as failed unless the condition holds.
#[macro_export]
macro_rules! check {
    ($cond:expr $(,)?) => {
        if !$cond {
            return Err($crate::harness::Fail::here(concat!("expected ", stringify!($cond))));
        }
    };
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err($crate::harness::Fail::here(format_args!($($arg)+)));
        }
    };
}

/// Ends the case as failed unless both sides are equal.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::harness::Fail::here(format_args!(
                        "{} is {left:?}, expected {right:?}",
                        stringify!($left)
                    )));
                }
            }
        }
    };
    ($left:expr, $right:expr, $($arg:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::harness::Fail::here(format_args!(
                        "{}: {} is {left:?}, expected {right:?}",
                        format_args!($($arg)+),
                        stringify!($left)
                    )));
                }
            }
        }
    };
}
