// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The suite of `scif.h`: what its calls promise, asked of the built library by C's own names, in several processes.
//!
//! `scif-conformance --lib PATH [FILTER]`; with `SCIF_TRANSPORT=kernel` over a device, and of that device. Each case runs in a process of its own, in a domain of its own, under a
//! watchdog. The last line counts.
#![expect(clippy::unwrap_used, reason = "a case says what it expects by unwrapping it")]
#![expect(clippy::panic, reason = "as above")]
#![expect(clippy::print_stdout, reason = "a program")]
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]
#![expect(clippy::cast_sign_loss, reason = "offsets and counts of the cases are small")]
#![expect(
    clippy::indexing_slicing,
    reason = "a case that is wrong about a length has failed"
)]

mod api;
mod bench;
mod connections;
mod device;
mod edges;
mod excused;
mod fences;
mod forks;
mod holders;
mod life;
mod limits;
mod memory;
mod messages;
mod nodes;
mod polling;
mod rig;
mod rma;
mod rows;
mod shown;
mod timers;
mod windows;

use api::Api;
use rig::{Process, on_device, on_driver, set_env};

/// A case: its name and what it does.
pub(crate) type Case = (&'static str, fn(&Api));

/// How long a case may take before it counts as hanging.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(120);

fn main() -> std::process::ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut library, mut filter) = (None, String::new());
    let (mut bench, mut cycles) = (false, life::CYCLES);
    while let Some(arg) = args.next() {
        if arg == "--lib" {
            library = args.next();
        } else if arg == "--bench" {
            bench = true;
        } else if arg == "--cycles" {
            cycles = args.next().and_then(|n| n.parse().ok()).unwrap_or(cycles);
        } else {
            filter = arg;
        }
    }
    let Some(library) = library else {
        println!("usage: scif-conformance --lib PATH [--bench] [--cycles N] [FILTER]");
        return std::process::ExitCode::from(2);
    };
    // What is tested is not left to what the machine has.
    if !on_device() {
        set_env("SCIF_TRANSPORT", "soft");
    }
    if bench {
        bench::run(|| Api::open_library(&library));
        return std::process::ExitCode::SUCCESS;
    }
    set_env("SCIF_CONFORMANCE_CYCLES", &cycles.to_string());
    let groups: &[(&str, &[Case])] = &[
        ("connections", connections::CASES),
        ("messages", messages::CASES),
        ("polling", polling::CASES),
        ("windows", windows::CASES),
        ("rma", rma::CASES),
        ("fences", fences::CASES),
        ("forks", forks::CASES),
        ("holders", holders::CASES),
        ("life", life::CASES),
        ("nodes", nodes::CASES),
        ("device", if on_device() { device::CASES } else { &[] }),
        ("shown", shown::CASES),
        ("edges", edges::CASES),
        ("memory", memory::CASES),
        ("timers", timers::CASES),
        ("limits", limits::CASES),
    ];
    let driver = on_driver();
    if driver {
        println!("over the driver of this system");
    }
    let base = std::env::var("SCIF_DOMAIN").unwrap_or_else(|_| "conformance".to_owned());
    let base: String = base.chars().take(16).collect();
    let (mut passed, mut failed, mut excused) = (0, 0, 0);
    for (group, cases) in groups {
        for (name, case) in *cases {
            let full = format!("{group}/{name}");
            if !full.contains(&filter) {
                continue;
            }
            if let Some(reason) = excused::reason(&full).filter(|_| driver) {
                excused += 1;
                println!("not asked {full}: {reason}");
                continue;
            }
            let process = Process::start(|| {
                rig::begin_case();
                set_env("SCIF_DOMAIN", &format!("{base}-{}", std::process::id()));
                case(&Api::open_library(&library));
            });
            match process.end_within(WATCHDOG + std::time::Duration::from_millis(100 * cycles)) {
                0 => {
                    passed += 1;
                    println!("ok   {full}");
                }
                status if status == -rig::SIDE_FAILED => {
                    failed += 1;
                    println!("FAIL {full} (another process of it failed)");
                }
                status => {
                    failed += 1;
                    println!("FAIL {full} (status {status})");
                }
            }
        }
    }
    if driver {
        println!("{excused} not asked of a driver");
    }
    let names: Vec<String> = groups
        .iter()
        .flat_map(|(group, cases)| cases.iter().map(move |(name, _)| format!("{group}/{name}")))
        .collect();
    let rows = rows::count(&names);
    for wrong in &rows.wrong {
        println!("FAIL rows.txt: {wrong}");
        failed += 1;
    }
    println!("rows tested {}, excused {}", rows.tested, rows.excused);
    println!("{passed} passed; {failed} failed");
    std::process::ExitCode::from(u8::from(failed > 0 || passed == 0))
}
