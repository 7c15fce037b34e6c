// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Result of one check of the doctor.

/// Severity of a finding; its number is the exit status.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum State {
    Ok,
    /// Everything works, but slower, or not by scif.
    Slower,
    Broken,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Slower => "slower",
            State::Broken => "broken",
        }
    }

    pub(crate) fn exit_status(self) -> u8 {
        match self {
            State::Ok => 0,
            State::Slower => 1,
            State::Broken => 2,
        }
    }
}

/// Line of the report.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    pub(crate) subject: String,
    /// Cause and consequence.
    pub(crate) meaning: String,
    /// Remedy; empty if nothing is to be done.
    pub(crate) action: String,
}

impl Finding {
    pub(crate) fn ok(subject: &str, meaning: impl Into<String>) -> Finding {
        Finding::new(State::Ok, subject, meaning, "")
    }

    pub(crate) fn slower(
        subject: &str,
        meaning: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        Finding::new(State::Slower, subject, meaning, action)
    }

    pub(crate) fn broken(
        subject: &str,
        meaning: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        Finding::new(State::Broken, subject, meaning, action)
    }

    pub(crate) fn new(
        state: State,
        subject: &str,
        meaning: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        let (meaning, action) = (meaning.into(), action.into());
        Finding { state, subject: subject.to_owned(), meaning, action }
    }
}
