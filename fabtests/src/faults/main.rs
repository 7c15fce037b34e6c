// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `faults`: ranks that send, receive, access memory and join groups while they are killed and
//! stopped at random.
//!
//! The program is the parent, and starts itself again as each rank. The exit code is 0 only if
//! ranks were killed, every operation with a dead rank ended, and no other operation failed. Also,
//! no byte may be wrong, and nothing may be left behind.

mod coll;
mod judge;
mod links;
mod net;
mod parent;
mod rank;
mod schedule;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use scif_fabtests::harness::rank::Target;
use scif_fabtests::harness::{Fail, Rank};

use net::{Kind, RANKS};
use scif_fabtests::payload::RankId;

/// Kills and stops ranks of a libfabric provider
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Args {
    /// The libfabric to load
    #[arg(long, default_value = "libfabric.so.1")]
    lib: PathBuf,
    /// The provider to test
    #[arg(long, default_value = "scif")]
    prov: String,
    /// Kind of endpoint
    #[arg(long, value_enum, default_value = "rdm")]
    kind: Kind,
    /// Duration of the storm, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// End after this many kills, however long that takes
    #[arg(long)]
    kills: Option<u64>,
    /// Program of the ranks, in place of this one
    #[arg(long, default_value = "/proc/self/exe")]
    rank_program: PathBuf,
    /// Give ranks low limits of all resources
    #[arg(long)]
    limits: bool,
    /// Fail if the 99.9th percentile from death to error is longer
    #[arg(long)]
    p999_ms: Option<u64>,
    /// The seed; FAULTS_SEED does the same
    #[arg(long, env = "FAULTS_SEED", default_value_t = 1)]
    seed: u64,
    #[arg(long, hide = true)]
    rank: Option<usize>,
    #[arg(long, hide = true, default_value_t = 0)]
    life: u32,
}

impl Args {
    /// Arguments with which the program runs as one rank.
    fn of_rank(&self, who: RankId) -> Vec<OsString> {
        let words = [
            "--lib".into(),
            self.lib.clone().into_os_string(),
            "--prov".into(),
            self.prov.clone().into(),
            "--kind".into(),
            format!("{:?}", self.kind).to_lowercase().into(),
            "--seed".into(),
            self.seed.to_string().into(),
            "--rank".into(),
            who.slot.to_string().into(),
            "--life".into(),
            who.life.to_string().into(),
        ];
        let limits = self.limits.then(|| "--limits".into());
        words.into_iter().chain(limits).collect()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(index) = args.rank {
        return be_rank(&args, index);
    }
    let kind = format!("{:?}", args.kind).to_lowercase();
    say(&format!("storm of {kind} endpoints, seed {}", args.seed));
    let (passed, failed) = match parent::run(&args) {
        Ok(kills) => (kills, u64::from(kills == 0)),
        Err(Fail::Failed(why) | Fail::NotRun(why) | Fail::NotHere(why)) => {
            say(&format!(
                "FAIL     storm of {kind} endpoints, seed {}\n    {why}",
                args.seed
            ));
            (0, 1)
        }
    };
    say(&format!(
        "storm of {kind} endpoints: {passed} passed, {failed} failed"
    ));
    ExitCode::from(u8::from(failed > 0))
}

fn be_rank(args: &Args, index: usize) -> ExitCode {
    let target = Target {
        lib: args.lib.clone(),
        prov: args.prov.clone(),
        seed: args.seed,
        wrap: Vec::new(),
    };
    let Ok(rank) = Rank::from_stdin(index, RANKS, args.life, target) else {
        return ExitCode::FAILURE;
    };
    let outcome = rank::run(&rank, args.kind);
    rank.report(&outcome);
    ExitCode::from(u8::from(outcome.is_err()))
}

/// Nanoseconds of the clock that all processes share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub(crate) fn say(line: &str) {
    // Standard output may be closed; the exit code still reports the result.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
