// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `faults`: ranks that send, receive, access memory and join groups while they are killed and
//! stopped at random.
//!
//! The program is the parent, and starts itself again as each rank. The exit code is 0 only if
//! ranks were killed, every operation with a dead rank ended, and no other operation failed. Also,
//! no byte may be wrong, and nothing may be left behind.

mod args;
mod coll;
mod judge;
mod links;
mod net;
mod parent;
mod rank;
mod schedule;

use std::process::ExitCode;

use clap::Parser;
use scif_fabtests::harness::output::print_line;
use scif_fabtests::harness::rank::Target;
use scif_fabtests::harness::{Fail, Rank};

use args::Args;
use net::RANKS;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(index) = args.rank {
        return be_rank(&args, index);
    }
    let kind = format!("{:?}", args.kind).to_lowercase();
    print_line(&format!("storm of {kind} endpoints, seed {}", args.seed));
    let (passed, failed) = match parent::run(&args) {
        Ok(kills) => (kills, u64::from(kills == 0)),
        Err(Fail::Failed(why) | Fail::NotRun(why) | Fail::NotHere(why)) => {
            print_line(&format!(
                "FAIL     storm of {kind} endpoints, seed {}\n    {why}",
                args.seed
            ));
            (0, 1)
        }
    };
    print_line(&format!("storm of {kind} endpoints: {passed} passed, {failed} failed"));
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
