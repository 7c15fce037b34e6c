// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading of published state, and repeated output.

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use scif::monitor::layout;
use scif::monitor::report::{self, ProcessReport};
use serde_json::Value;

use crate::args::WatchOptions;
use crate::failure::{Problem, Result};

/// Escape sequence: to the upper left corner, and erase everything below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Returns the processes that this user may inspect.
pub(crate) fn processes() -> Result<Vec<ProcessReport>> {
    Ok(report::processes()?)
}

/// Returns the reason for which the state of a process cannot be read, and the remedy.
pub(super) fn other_version(process: &ProcessReport) -> Option<String> {
    let version = process.other_version?;
    Some(format!(
        "process {} publishes state of version {version}, this scifctl reads version {}: use the \
         scifctl of its release",
        process.pid,
        layout::VERSION
    ))
}

/// Returns the state of a process.
pub(crate) fn process(pid: i32) -> Result<ProcessReport> {
    match report::process_at(pid) {
        Ok(Some(process)) => match other_version(&process) {
            Some(text) => Err(Problem::Failed(text)),
            None => Ok(process),
        },
        Ok(None) => Err(Problem::Failed(format!(
            "process {pid} has no endpoint of the provider: 'scifctl endpoints' lists those that do"
        ))),
        Err(error) => Err(Problem::Failed(format!(
            "process {pid}: {error}; run as its user, on the same host and PID namespace"
        ))),
    }
}

/// Prints the tables or documents that `text` and `object` make, once or repeatedly.
pub(crate) fn repeat(
    options: &WatchOptions,
    mut now: impl FnMut() -> Result<(String, Value)>,
) -> Result<()> {
    let mut out = io::stdout().lock();
    let rounds = options.watch.map_or(1, |_| options.count.unwrap_or(u64::MAX));
    let clear = options.watch.is_some() && !options.json && out.is_terminal();
    for round in 0..rounds {
        if round > 0 {
            sleep(Duration::from_secs_f64(options.watch.unwrap_or(1.0)));
        }
        let (text, object) = now()?;
        if clear {
            out.write_all(CLEAR.as_bytes())?;
        } else if round > 0 && !options.json {
            out.write_all(b"\n")?;
        }
        if options.json {
            writeln!(out, "{object}")?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        out.flush()?;
    }
    Ok(())
}
