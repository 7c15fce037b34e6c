// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! scifctl: shows nodes, endpoints, connections and windows, and the state of libfabric jobs; sends
//! pings, measures bandwidth, and loses nodes. Checks the system.
//!
//! Contains the dispatch of the commands. See scifctl(1).

mod args;
mod bandwidth;
mod doctor;
mod fabric;
mod failure;
#[cfg(test)]
mod hostile;
mod node;
mod report;
mod show;
mod sisci;
mod summary;
mod table;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;

use args::{Args, Command, NodeCommand};
use clap::Parser;
use failure::{Problem, Result};
use scif::Config;
use show::List;

fn run(command: &Command) -> Result<ExitCode> {
    let config = Config::from_env();
    match command {
        Command::Doctor(options) => Ok(doctor::run(&config, options)),
        Command::Probe(part) => doctor::probe(&config, part).map(|()| ExitCode::SUCCESS),
        other => run_other(&config, other).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs a command whose exit status is success or failure.
fn run_other(config: &Config, command: &Command) -> Result<()> {
    for warning in &config.warnings {
        writeln!(io::stderr(), "scifctl: {warning}")?;
    }
    let show = |list, options| show::show(config, list, options);
    match command {
        Command::Nodes(options) => show(List::Nodes, options),
        Command::Endpoints(options) => show(List::Endpoints, options),
        Command::Peers { pid, options } if !fabric::has_endpoints(*pid) => {
            show::show_process(config, *pid, false, options.json)
        }
        Command::Dump { pid, options } if !fabric::has_endpoints(*pid) => {
            show::show_process(config, *pid, true, options.json)
        }
        Command::Peers { pid, options } => fabric::peers(*pid, options),
        Command::Dump { pid, options } => fabric::dump(*pid, options),
        Command::Job(options) => fabric::job(options),
        Command::Top(options) => fabric::top(options),
        Command::Stats { pid, options } => fabric::stats(*pid, options),
        Command::Connections(options) => show(List::Connections, options),
        Command::Windows { options, all: false } => show(List::WindowSummary, options),
        Command::Windows { options, all: true } => show(List::Windows, options),
        Command::Sisci(options) => sisci::show(config, options),
        Command::Ping { node, count, json } => node::ping(config, *node, *count, *json),
        Command::Bw(options) => bandwidth::run(config, options),
        Command::Node(NodeCommand::Lose { node }) => node::lose(*node),
        Command::Node(NodeCommand::Hold { node }) => node::hold(config, *node),
        Command::Node(NodeCommand::Restore { node }) => node::restore(config, *node),
        Command::Report(options) => report::run(options),
        Command::Trace(options) => trace::run(options),
        Command::Doctor(_) | Command::Probe(_) => Ok(()),
    }
}

fn main() -> ExitCode {
    // A failure to print cannot be reported.
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            let of_doctor = std::env::args_os().nth(1).is_some_and(|word| word == "doctor");
            return match u8::try_from(error.exit_code()) {
                Ok(0) => ExitCode::SUCCESS,
                Ok(code) if !of_doctor => ExitCode::from(code),
                _ => ExitCode::from(doctor::FAILED),
            };
        }
    };
    match run(&args.command) {
        Ok(status) => status,
        Err(Problem::Silent) => ExitCode::SUCCESS,
        Err(Problem::Failed(reason)) => {
            let _ = writeln!(io::stderr(), "scifctl: {reason}");
            ExitCode::FAILURE
        }
    }
}
