// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! scifctl: shows nodes, endpoints, connections and windows; sends pings, measures bandwidth, and
//! loses nodes.
//!
//! Contains the command line. See scifctl(1).
#![forbid(unsafe_code)]

mod args;
mod bandwidth;
mod json;
mod node;
mod show;
mod summary;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use args::{Args, Command};
use scif::Config;

const USAGE: &str = "\
usage: scifctl COMMAND [OPTION]...

What there is; disturbs nobody:
  nodes          nodes, their processes and ports
  endpoints      endpoints of every process, with their counters
  connections    those that are connected, or were
  windows        registered memory, a line an endpoint
    --json         as JSON, one document a line
    --live[=S]     again every S seconds (1), with rates where there are any
    --count=N      so many times, with --live
    --node=N       of this node only
    --all          with windows: a line each

What works:
  ping NODE      asks the processes of a node whether they answer
    --count=N      so many times (4)
    --json         as JSON
  bw [NODE:PORT] bandwidth to a `scifctl bw --serve`, or to one that is started for it
    --serve[=PORT] be the other side; prints its port
    --max=BYTES    largest transfer (4194304)
    --progress     show the bar even if no terminal is there
    --json         as JSON

What gets lost:
  node lose N    ends every connection with node N; it stays lost until it is restored
  node restore N

  --help, --version

Who sees whom: SCIF_DOMAIN, else the user. See scifctl(1).
";

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Invalid command line.
    Usage(String),
    /// Failure of the command.
    Failed(String),
    /// Closed output: the reader has left, so nothing is reported.
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

fn run() -> Result<()> {
    let args = Args::parse(std::env::args().skip(1))?;
    let config = Config::from_env();
    for warning in &config.warnings {
        writeln!(io::stderr(), "scifctl: {warning}")?;
    }
    match &args.command {
        Command::Help => Ok(io::stdout().write_all(USAGE.as_bytes())?),
        Command::Version => Ok(writeln!(io::stdout(), "scifctl {}", env!("CARGO_PKG_VERSION"))?),
        Command::Show(what) => show::show(&config, *what, &args),
        Command::Ping(number) => node::ping(&config, *number, &args),
        Command::Bandwidth(to) => bandwidth::measure(&config, *to, &args),
        Command::Serve(port) => bandwidth::serve(&config, *port),
        Command::Lose(number) => node::lose(*number),
        Command::Hold(number) => node::hold(&config, *number),
        Command::Restore(number) => node::restore(&config, *number),
    }
}

fn main() -> ExitCode {
    let problem = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(problem) => problem,
    };
    // A failure to report the problem cannot be reported.
    match problem {
        Problem::Usage(what) => {
            let _ = writeln!(io::stderr(), "scifctl: {what}\nTry 'scifctl --help'.");
            ExitCode::from(2)
        }
        Problem::Failed(what) => {
            let _ = writeln!(io::stderr(), "scifctl: {what}");
            ExitCode::FAILURE
        }
        Problem::Silent => ExitCode::SUCCESS,
    }
}
