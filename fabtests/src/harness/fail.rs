// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Result of a process of a case.
//!
//! `?` turns an error into a [`Fail`] that holds the line of its origin, so a case reads as
//! straight code.

use std::fmt::Display;
use std::panic::Location;

/// Reason for which a process did not pass.
#[derive(Debug, Clone)]
pub enum Fail {
    /// The provider reports that it lacks the feature.
    NotRun(String),
    /// The library is too old for the feature, or the system denies a call that the case needs.
    NotHere(String),
    /// The provider or the case has a fault.
    Failed(String),
}

/// Result of a process.
pub type Outcome<T = ()> = Result<T, Fail>;

impl Fail {
    /// Returns a failure that names the line of the caller.
    #[track_caller]
    pub fn here(subject: impl Display) -> Fail {
        let at = Location::caller();
        Fail::Failed(format!("{}:{}: {subject}", at.file(), at.line()))
    }

    /// Returns the result with `context` in front of its reason.
    #[must_use]
    pub fn with(self, context: impl Display) -> Fail {
        self.map(|why| format!("{context}: {why}"))
    }

    /// Returns the result with `details` on the lines after its reason.
    #[must_use]
    pub fn followed_by(self, details: impl Display) -> Fail {
        self.map(|why| format!("{why}\n{details}"))
    }

    fn map(self, text: impl FnOnce(String) -> String) -> Fail {
        match self {
            Fail::NotRun(why) => Fail::NotRun(text(why)),
            Fail::NotHere(why) => Fail::NotHere(text(why)),
            Fail::Failed(why) => Fail::Failed(text(why)),
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

/// Addition of context to a result that failed.
pub trait Context<T> {
    /// # Errors
    /// Errors of `self`, with `what()` in front.
    fn context<D: Display>(self, subject: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T> Context<T> for Outcome<T> {
    fn context<D: Display>(self, subject: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|fail| fail.with(subject()))
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
