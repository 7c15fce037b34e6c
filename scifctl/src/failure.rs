// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Failures of a command.

use std::io;

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Failure of the command, with the text for the user.
    Failed(String),
    /// Failure that is not reported: the reader has closed the output, or knows the reason.
    Silent,
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Problem::Silent
        } else {
            Problem::Failed(error.to_string())
        }
    }
}

/// Result of a command.
pub(crate) type Result<T> = std::result::Result<T, Problem>;
