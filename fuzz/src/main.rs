// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fuzz`: a victim, its honest client, newcomers, and attackers that speak the protocol with false
//! contents.
//!
//! The victim is a process of libfabric with the provider, or of `scif.h`, in a build with debug
//! assertions and overflow checks. The run fails when the victim dies, panics, uses too much
//! memory, or delays its honest client or a newcomer.

mod args;
mod attacker;
mod calls;
mod handshake;
mod honest;
mod mutate;
mod newcomer;
mod parent;
mod scribble;
mod victim;

use std::process::ExitCode;

use clap::Parser;
use scif_fabtests::harness::Rank;
use scif_fabtests::harness::rank::Target as Provider;

use args::{Args, Role, Target};

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(role) = args.role else {
        return parent::run(&args);
    };
    let provider = Provider {
        lib: args.lib.clone(),
        prov: "scif".to_owned(),
        seed: args.seed,
        wrap: Vec::new(),
    };
    let Ok(rank) = Rank::from_stdin(args.index, 3 + args.attackers, args.life, provider) else {
        return ExitCode::FAILURE;
    };
    let outcome = match (role, args.target) {
        (Role::Attacker, Target::Scif) => calls::attack(&rank, &args),
        (Role::Attacker, _) => attacker::run(&rank, &args),
        (Role::Victim, Target::Scif) => calls::victim(&rank),
        (Role::Victim, _) => victim::run(&rank, &args),
        (Role::Honest, Target::Scif) => calls::honest(&rank, &args),
        (Role::Honest, _) => honest::run(&rank, &args),
        (Role::Newcomer, _) => newcomer::run(&rank, &args),
    };
    rank.report(&outcome);
    ExitCode::from(u8::from(outcome.is_err()))
}
