// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Log lines that cannot flood: each cause once in a process, and a limited number of lines that
//! others can cause.
//!
//! Three kinds of lines, by what can repeat them:
//!
//! - A property of the system or of the settings, such as a system call that is denied: once for
//!   each cause and process, with a static [`OnceEach`] (or `std::sync::Once` where there is one
//!   cause only).
//! - A peer: within [`PEERS`], by [`warn_about_peer!`] in this file and by the functions of the
//!   same name of the provider's log.
//! - The program itself, such as a refused call in a loop: within [`CALLS`].
//!
//! Suppressed lines are counted, and one line reports them. Lines at debug and trace are not
//! limited. No function of this file is on the path of a message: the clock is read only before a
//! line is printed.

use std::any::Any;
use std::fmt;
use std::io::Write;
use std::panic::{Location, PanicHookInfo};
use std::sync::{Mutex, Once, OnceLock};

use rustix::io::Errno;
use scif_ring::Limiter;

use super::errno::lock;
use super::time::now_ns;

/// Causes that have been logged in this process.
#[derive(Debug)]
pub struct OnceEach<C> {
    said: Mutex<Vec<C>>,
    most: usize,
}

impl<C: Eq> OnceEach<C> {
    /// Returns an empty set that takes at most `most` causes; later ones are not logged, so that a
    /// peer cannot make it grow.
    #[must_use]
    pub const fn new(most: usize) -> OnceEach<C> {
        OnceEach { said: Mutex::new(Vec::new()), most }
    }

    /// Whether this is the first call with `cause`, which the caller then logs.
    pub fn first(&self, cause: C) -> bool {
        let mut said = lock(&self.said);
        let is_first = said.len() < self.most && !said.contains(&cause);
        if is_first {
            said.push(cause);
        }
        is_first
    }
}

/// Limit shared by all log lines of one kind of origin in this process.
#[derive(Debug)]
pub struct Budget {
    limiter: Limiter,
    /// Limit of final reports: a peer may make a program open and close objects at any rate.
    last: Limiter,
    rate: &'static str,
}

/// Returns the limit of final reports: two at once, and one in four seconds while more are due.
const fn last() -> Limiter {
    Limiter::new(2, 2_000_000_000)
}

/// Lines that peers can cause: at most 10 in any second, over all peers.
pub static PEERS: Budget = Budget {
    limiter: Limiter::new(4, 250_000_000),
    last: last(),
    rate: "at most 10 lines a second that peers cause",
};

/// Lines about calls of the program that are refused: the first 64 at once, then 5 a second,
/// reports included.
pub static CALLS: Budget = Budget {
    limiter: Limiter::new(64, 200_000_000),
    last: last(),
    rate: "at most 10 lines a second about refused calls, after the first 64",
};

/// Lines about panics, which are errors of this library that a peer may know how to cause.
static PANICS: Budget = Budget {
    limiter: Limiter::new(4, 250_000_000),
    last: last(),
    rate: "at most 10 lines a second about internal errors",
};

/// Replaces the panic hook of this copy of the standard library by one that logs one line without a
/// backtrace.
///
/// For libraries that C loads: each has the standard library to itself, so only panics of its own
/// code arrive at the hook. Not for Rust programs that link this crate.
pub fn take_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(log_panic)));
}

/// Logger of a library that C loads, which writes to the standard error stream.
struct StderrLog {
    library: &'static str,
}

impl log::Log for StderrLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // A failure to write the log cannot be reported.
            let _ = writeln!(std::io::stderr(), "{}: {}", self.library, record.args());
        }
    }

    fn flush(&self) {}
}

/// Writes log lines up to `level`, and panics of this library, to the standard error stream, with
/// its name. Not for Rust programs that link this crate.
pub fn log_to_stderr(library: &'static str, level: log::LevelFilter) {
    static LOG: OnceLock<StderrLog> = OnceLock::new();
    if log::set_logger(LOG.get_or_init(|| StderrLog { library })).is_ok() {
        log::set_max_level(level);
    }
    take_panics();
}

/// Returns the text of a panic, which is a string of either kind.
fn payload_text(payload: &dyn Any) -> Option<&str> {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
}

#[cold]
fn log_panic(info: &PanicHookInfo<'_>) {
    let message = payload_text(info.payload()).unwrap_or("no message");
    let (file, line) = info.location().map_or(("", 0), |at: &Location<'_>| (at.file(), at.line()));
    if log::log_enabled!(log::Level::Error) && PANICS.allows(|report| log::error!("{report}")) {
        log::error!("internal error at {file}:{line}, please report it: {message}");
    }
}

impl Budget {
    /// Whether one more line may be logged now. `report` logs the line about suppressed ones, which
    /// precedes it.
    ///
    /// Only for lines that would be printed: others must not use up the budget.
    #[cold]
    pub fn allows(&self, report: impl FnOnce(fmt::Arguments<'_>)) -> bool {
        let Some(suppressed) = self.limiter.grant(now_ns()) else {
            return false;
        };
        self.report(suppressed, report);
        true
    }

    /// Reports the suppressed lines that no later line has reported, unless a report was made just
    /// before. For the end of an object of the program.
    #[cold]
    pub fn settle(&self, report: impl FnOnce(fmt::Arguments<'_>)) {
        if self.limiter.has_suppressed() && self.last.grant(now_ns()).is_some() {
            self.report(self.limiter.take_suppressed(), report);
        }
    }

    fn report(&self, suppressed: u64, report: impl FnOnce(fmt::Arguments<'_>)) {
        if suppressed > 0 {
            report(format_args!("{suppressed} similar lines suppressed: {}", self.rate));
        }
    }
}

/// Logs at warn, once for each call, that the system denies a call that a feature needs. Other
/// errors, such as short memory, are left to the caller.
#[cold]
pub(crate) fn warn_of_denied(call: &'static str, errno: Errno, consequence: &str, remedy: &str) {
    static SAID: OnceEach<&str> = OnceEach::new(32);
    if matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL)
        && SAID.first(call)
    {
        log::warn!(
            "{call}: {errno}: {consequence}. A seccomp filter (of a container), a security module \
             or an old kernel denies the call: {remedy}"
        );
    }
}

/// Reports the suppressed lines of the engine that no later line has reported, at the end of an
/// endpoint.
pub fn settle() {
    for budget in [&PEERS, &CALLS] {
        budget.settle(|report| log::warn!("{report}"));
    }
}

/// Logs a line at warn within a budget.
#[doc(hidden)]
#[macro_export]
macro_rules! warn_within {
    ($budget:ident, $($arg:tt)+) => {
        if log::log_enabled!(log::Level::Warn)
            && $crate::logging::$budget.allows(|report| log::warn!("{report}"))
        {
            log::warn!($($arg)+);
        }
    };
}

/// Logs a line at warn that a peer, or another sharer of an endpoint, can cause.
#[doc(hidden)]
#[macro_export]
macro_rules! warn_about_peer {
    ($($arg:tt)+) => { $crate::warn_within!(PEERS, $($arg)+) };
}

/// Logs a line at warn that the program can cause by a call.
#[doc(hidden)]
#[macro_export]
macro_rules! warn_about_call {
    ($($arg:tt)+) => { $crate::warn_within!(CALLS, $($arg)+) };
}

pub use crate::{warn_about_call, warn_about_peer};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_logged_once_and_their_number_is_limited() {
        static SAID: OnceEach<(i32, &str)> = OnceEach::new(3);
        assert!(SAID.first((1, "a")) && SAID.first((2, "a")));
        assert!(!SAID.first((1, "a")) && SAID.first((1, "b")));
        assert!(!SAID.first((9, "beyond the limit")) && !SAID.first((2, "a")));
    }

    #[test]
    fn suppression_report_precedes_the_next_line() {
        let budget = Budget { limiter: Limiter::new(2, 1_000_000), last: last(), rate: "a test" };
        let mut reports = Vec::new();
        let mut suppressed = 0;
        while reports.is_empty() {
            if !budget.allows(|report| reports.push(report.to_string())) {
                suppressed += 1;
            }
        }
        assert_eq!(reports, [format!("{suppressed} similar lines suppressed: a test")]);
        while budget.allows(|_| ()) {}
        budget.settle(|report| reports.push(report.to_string()));
        budget.settle(|report| reports.push(report.to_string()));
        assert_eq!(reports.len(), 2);
    }

    #[test]
    fn last_reports_are_limited_as_well() {
        let budget =
            Budget { limiter: Limiter::new(2, u64::MAX / 8), last: last(), rate: "a test" };
        let begin = now_ns();
        let mut reported = Vec::new();
        for _ in 0..1000 {
            // An object that a peer caused a line about, and that is closed.
            let _ = budget.allows(|_| ());
            budget.settle(|report| reported.push(report.to_string()));
        }
        let seconds = usize::try_from((now_ns() - begin) / 1_000_000_000).unwrap();
        assert!((1..=2 + seconds).contains(&reported.len()), "{reported:?}");
    }
}
