// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `conformance`: runs the cases against a provider through a given libfabric.
//!
//! The program is the parent, which runs the cases one after another. It starts itself again as
//! each rank of a case. The exit code is 0 only when at least one case ran and none failed.

mod cases;
mod excused;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use excused::Excuse;
use scif_fabtests::fi::Lib;
use scif_fabtests::harness::leak_check::Before;
use scif_fabtests::harness::output::print_line;
use scif_fabtests::harness::rank::Target;
use scif_fabtests::harness::sandbox::ReserveAllocator;
use scif_fabtests::harness::{Case, Fail, Rank, driver};

/// Allocator of this program: where a case uses up all memory, the rank itself continues.
#[global_allocator]
static ALLOCATOR: ReserveAllocator = ReserveAllocator::new();

/// Conformance of a libfabric provider, in real processes. FI_PROVIDER_PATH and FI_PROVIDER are
/// libfabric's own.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// The libfabric to load
    #[arg(long, default_value = "libfabric.so.1")]
    lib: PathBuf,
    /// The provider to test
    #[arg(long, default_value = "scif")]
    prov: String,
    #[command(flatten)]
    names: Names,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
    /// Count an unsupported feature as a failure, unless the library is too old for it; default for
    /// scif
    #[arg(long)]
    strict: bool,
    /// Run each case this often
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// The seed of random cases; CONFORMANCE_SEED does the same
    #[arg(long, env = "CONFORMANCE_SEED")]
    seed: Option<u64>,
    /// Run the cases of the harness itself instead, most of which must fail
    #[arg(long, hide = true)]
    harness_cases: bool,
    /// Run each process of a case under this command, with ten times the time limit
    #[arg(long, value_name = "COMMAND")]
    wrap: Option<String>,
    #[arg(long, hide = true)]
    rank_of: Option<String>,
    #[arg(long, hide = true, default_value_t = 0)]
    rank: usize,
    #[arg(long, hide = true, default_value_t = 0)]
    life: u32,
}

/// Selection of cases.
#[derive(Debug, clap::Args)]
struct Names {
    /// Run only cases whose name contains one of these
    filter: Vec<String>,
    /// Run only cases with exactly these names
    #[arg(long, requires = "filter")]
    exact: bool,
    /// Leave out cases whose name contains this
    #[arg(long)]
    skip: Vec<String>,
    /// The transport is a driver: leave out the cases that do not concern it, with the reasons
    #[arg(long)]
    over_driver: bool,
    /// Ranks are on several hosts: leave out the cases that concern one host, with the reasons
    #[arg(long, conflicts_with = "over_driver")]
    over_network: bool,
}

impl Names {
    /// Returns the cases that are not run.
    fn excused(&self) -> &'static [Excuse] {
        match (self.over_driver, self.over_network) {
            (true, _) => excused::OVER_A_DRIVER,
            (false, true) => excused::OVER_A_NETWORK,
            (false, false) => &[],
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(now.subsec_nanos()) ^ now.as_secs() << 20
    });
    let target = Target {
        lib: args.lib.clone(),
        prov: args.prov.clone(),
        seed,
        wrap: args
            .wrap
            .iter()
            .flat_map(|command| command.split_whitespace().map(str::to_owned))
            .collect(),
    };
    match &args.rank_of {
        Some(name) => be_rank(name, &args, target),
        None => be_parent(&args, &target),
    }
}

/// One rank of one case.
fn be_rank(name: &str, args: &Args, target: Target) -> ExitCode {
    let Some(case) =
        cases::all().into_iter().chain(cases::harness()).find(|case| case.name == name)
    else {
        return ExitCode::FAILURE;
    };
    let Ok(mut rank) = Rank::from_stdin(args.rank, case.ranks, args.life, target) else {
        return ExitCode::FAILURE;
    };
    let outcome = case.run_in(&mut rank);
    rank.report(&outcome);
    ExitCode::SUCCESS
}

fn be_parent(args: &Args, target: &Target) -> ExitCode {
    let everything: Vec<Case> =
        if args.harness_cases { cases::harness().collect() } else { cases::all() };
    let named = |case: &Case, word: &String| {
        if args.names.exact { case.name == word } else { case.name.contains(word.as_str()) }
    };
    let unknown =
        args.names.filter.iter().find(|word| !everything.iter().any(|case| named(case, word)));
    if let Some(word) = unknown {
        print_line(&format!("no case is named {word}; --list shows the names"));
        return ExitCode::FAILURE;
    }
    let wanted = |case: &Case| {
        (args.names.filter.is_empty() || args.names.filter.iter().any(|word| named(case, word)))
            && !args.names.skip.iter().any(|word| case.name.contains(word.as_str()))
    };
    let chosen: Vec<Case> = everything.into_iter().filter(wanted).collect();
    if args.list {
        for case in &chosen {
            print_line(&format!("{} ({} ranks)", case.name, case.ranks));
        }
        return ExitCode::SUCCESS;
    }
    let lib = match Lib::open(&args.lib) {
        Ok(lib) => lib,
        Err(e) => {
            print_line(&e);
            return ExitCode::FAILURE;
        }
    };
    print_line(&format!(
        "provider {}, libfabric {} ({}), {} cases, seed {}",
        args.prov,
        lib.version_text(),
        args.lib.display(),
        chosen.len(),
        target.seed
    ));
    let mut score = Score::default();
    let excused = args.names.excused();
    for begin in excused::of_none(excused) {
        print_line(&format!("FAIL     excused.rs: no case: {begin}"));
        score.failed += 1;
    }
    let before = Before::look();
    let strict = args.strict || args.prov == "scif";
    for _ in 0..args.repeat {
        for case in &chosen {
            if let Some(reason) = excused::reason(excused, case.name) {
                print_line(&format!("excused  {} ({reason})", case.name));
                score.excused += 1;
                continue;
            }
            run_one(case, target, strict, &mut score);
        }
    }
    for line in before.compare("scif", &score.pids) {
        score.failed += 1;
        print_line(&format!("FAIL     clean-up: {line}"));
    }
    for name in &score.names {
        print_line(&format!("failed: {name}"));
    }
    if score.not_run > 0 {
        print_line(&format!(
            "{} cases not run: the provider, or this libfabric, lacks the feature",
            score.not_run
        ));
    }
    if score.excused > 0 {
        print_line(&format!("{} cases excused: they do not concern this transport", score.excused));
    }
    print_line(&format!(
        "conformance (libfabric {}): {} passed, {} failed",
        lib.version_text(),
        score.passed,
        score.failed
    ));
    if score.failed == 0 && score.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Default)]
struct Score {
    passed: usize,
    failed: usize,
    not_run: usize,
    excused: usize,
    names: Vec<&'static str>,
    pids: Vec<u32>,
}

fn run_one(case: &Case, target: &Target, strict: bool, score: &mut Score) {
    if std::io::stdout().is_terminal() {
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "running  {}\r", case.name).and_then(|()| out.flush());
    }
    let start = Instant::now();
    let outcome = driver::run(case, target, &mut score.pids);
    let secs = start.elapsed().as_secs_f32();
    let (not_run, why) = match outcome {
        Ok(()) => {
            score.passed += 1;
            return print_line(&format!("pass     {} ({secs:.2} s)", case.name));
        }
        Err(Fail::NotHere(why)) => (true, why),
        Err(Fail::NotRun(why)) => (!strict, why),
        Err(Fail::Failed(why)) => (false, why),
    };
    if not_run {
        score.not_run += 1;
        return print_line(&format!("notrun   {} ({why})", case.name));
    }
    score.failed += 1;
    score.names.push(case.name);
    print_line(&format!("FAIL     {} ({secs:.2} s, seed {})\n    {why}", case.name, target.seed));
}
