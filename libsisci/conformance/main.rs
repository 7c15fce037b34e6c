// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Suite of `sisci_api.h`: tests the built library through its C functions, in several processes.
//!
//! `sisci-conformance --lib PATH [FILTER...]`. Each case runs in a process and a domain of its own,
//! under a watchdog. The last line has the counts. `--kills COUNT` kills as many
//! processes instead, and prints how soon the others saw it. `--calls COUNT` makes as many random
//! calls. `--seed N` repeats the order of either.
#![expect(clippy::unwrap_used, reason = "a case says what it expects by unwrapping it")]
#![expect(clippy::panic, reason = "as above")]
#![expect(clippy::print_stdout, reason = "a program")]
#![expect(clippy::indexing_slicing, reason = "a case that is wrong about a length has failed")]

mod api;
mod calls;
mod copies;
mod events;
mod faults;
mod general;
mod groups;
mod handles;
mod interrupts;
mod kills;
mod maps;
mod names;
mod queues;
mod random;
mod readme;
mod rig;
mod segments;
mod tables;
mod threads;

use std::process::ExitCode;
use std::time::Duration;

use scif_fabtests::harness::process::{Process, SIDE_FAILED, begin_case, kernel_places};

use api::Api;
use groups::GROUPS;
use rig::set_env;

/// Time after which a case counts as hanging.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Result of a run.
#[derive(Default)]
struct Sum {
    passed: usize,
    failed: usize,
}

fn run(sum: &mut Sum, library: &str, base: &str, name: &str, case: fn(&Api)) {
    let process = Process::start(|| {
        begin_case();
        set_env("SCIF_DOMAIN", &format!("{base}-{}", std::process::id()));
        case(&Api::open_library(library));
    });
    let status = process.end_within(WATCHDOG, |pid| {
        print!("{name} does not end; it sleeps in\n{}", kernel_places(pid));
    });
    match status {
        0 => println!("ok   {name}"),
        status if status == -SIDE_FAILED => {
            println!("FAIL {name} (another process of it failed)");
        }
        status => println!("FAIL {name} (status {status})"),
    }
    match status {
        0 => sum.passed += 1,
        _ => sum.failed += 1,
    }
}

fn main() -> ExitCode {
    let (mut library, mut filters, mut args) = (None, Vec::new(), std::env::args().skip(1));
    let (mut kills, mut calls, mut seed) = (None, None, u64::from(std::process::id()));
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|number| number.parse().ok());
        match arg.as_str() {
            "--kills" => kills = number(),
            "--calls" => calls = number(),
            "--seed" => seed = number().unwrap_or(seed),
            "--lib" => library = args.next(),
            _ => filters.push(arg),
        }
    }
    let Some(library) = library else {
        println!(
            "usage: sisci-conformance --lib PATH [FILTER... | --kills COUNT | --calls COUNT] \
             [--seed N]"
        );
        return ExitCode::from(2);
    };
    let base = std::env::var("SCIF_DOMAIN").unwrap_or_else(|_| "sisci".to_owned());
    let base: String = base.chars().take(16).collect();
    if kills.is_some() || calls.is_some() {
        set_env("SCIF_DOMAIN", &format!("{base}-{}", std::process::id()));
        begin_case();
        let api = Api::open_library(&library);
        if let Some(count) = kills {
            kills::run(&api, u32::try_from(count).unwrap(), seed);
        }
        if let Some(count) = calls {
            random::run(&api, count, seed);
        }
        return ExitCode::SUCCESS;
    }
    let mut sum = Sum::default();
    for (group, cases) in GROUPS.iter().chain(&[("readme", readme::CASES)]) {
        for (name, case) in *cases {
            let full = format!("{group}/{name}");
            if filters.is_empty() || filters.iter().any(|filter| full.contains(filter)) {
                run(&mut sum, &library, &base, &full, *case);
            }
        }
    }
    println!("{} passed; {} failed", sum.passed, sum.failed);
    ExitCode::from(u8::from(sum.failed > 0 || sum.passed == 0))
}
