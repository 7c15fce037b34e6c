// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Pings to the processes of a node, loss and restoration of a node.
//!
//! A lost node needs a process that keeps it lost: `node lose` leaves one behind, which ends with
//! `node restore`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use scif::Config;
use scif_api::{self, FailedNode, Failure};
use serde_json::json;

use crate::failure::{Problem, Result};

/// Last line of the process left behind.
const HELD: &str = "held";
/// Prefix of its line before a problem.
const FAILED: &str = "failed: ";

#[expect(clippy::cast_precision_loss, reason = "tenths, to be printed")]
fn microseconds(ns: u64) -> f64 {
    (ns / 100) as f64 / 10.0
}

/// Sends pings to the processes of a node, a second apart.
pub(crate) fn ping(config: &Config, node: u16, count: u64, as_json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut silent = false;
    for round in 0..count {
        if round > 0 {
            sleep(Duration::from_secs(1));
        }
        let answers = scif_api::ping(config, node).map_err(|failure| match failure {
            Failure::NoNode => Problem::Failed(format!("node {node} is not online")),
            other => Problem::Failed(format!("node {node}: {other}")),
        })?;
        for (pid, took) in answers {
            silent |= took.is_none();
            if as_json {
                let took = took.map(microseconds);
                writeln!(out, "{}", json!({"node": node, "pid": pid, "microseconds": took}))?;
            } else if let Some(ns) = took {
                writeln!(out, "node {node} process {pid}: {:.1} us", microseconds(ns))?;
            } else {
                writeln!(out, "node {node} process {pid}: no answer within a second")?;
            }
        }
    }
    if silent { Err(Problem::Failed("not every process answered".to_owned())) } else { Ok(()) }
}

/// Loses a node: starts the process that does, and forwards its output.
pub(crate) fn lose(node: u16) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["node", "hold", &node.to_string()])
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = child.stdout.take().map(BufReader::new);
    let mut out = io::stdout().lock();
    for line in said.into_iter().flat_map(BufRead::lines) {
        let line = line?;
        if line == HELD {
            return Ok(());
        }
        if let Some(cause) = line.strip_prefix(FAILED) {
            return Err(Problem::Failed(cause.to_owned()));
        }
        writeln!(out, "{line}")?;
    }
    Err(Problem::Failed(format!(
        "node {node}: the process that held the loss has ended; run 'scifctl node lose' again"
    )))
}

/// Loses a node and keeps it lost. Prints the lines for `lose` on the standard output.
pub(crate) fn hold(config: &Config, node: u16) -> Result<()> {
    let mut out = io::stdout().lock();
    let (lost, answers) = match FailedNode::new(config, node) {
        Ok(done) => done,
        Err(failure) => {
            let cause = match failure {
                Failure::InUse => "already lost".to_owned(),
                other => other.to_string(),
            };
            writeln!(out, "{FAILED}node {node}: {cause}")?;
            return Err(Problem::Silent);
        }
    };
    writeln!(
        out,
        "node {node} is lost: {} processes notified, {} connection ends closed",
        answers.answered.len() + answers.silent.len(),
        answers.ended
    )?;
    if !answers.silent.is_empty() {
        writeln!(out, "no answer within a second: {}", json!(answers.silent))?;
    }
    writeln!(out, "{HELD}")?;
    out.flush()?;
    drop(out);
    lost.hold().map_err(|failure| Problem::Failed(failure.to_string()))
}

/// Restores a node.
pub(crate) fn restore(config: &Config, node: u16) -> Result<()> {
    scif_api::restore(config, node).map_err(|failure| {
        Problem::Failed(match failure {
            Failure::NoNode => format!("node {node} is not lost"),
            Failure::NoAccess => format!(
                "node {node}: lost by another user, or its holder did not answer within 10 s \
                 (EACCES); run as that user or as root"
            ),
            other => format!("node {node}: {other}"),
        })
    })?;
    Ok(writeln!(io::stdout(), "node {node} is restored")?)
}
