// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The suite of `scif.h`: what its calls promise, asked of the built library by C's own names, in several processes.
//!
//! `scif-conformance --lib PATH [FILTER]`. Each case runs in a process of its own, in a domain of its own, under a
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
mod connections;
mod fences;
mod life;
mod messages;
mod polling;
mod rig;
mod rma;
mod windows;

use api::Api;
use rig::{Process, set_env};

/// A case: its name and what it does.
pub(crate) type Case = (&'static str, fn(&Api));

/// How long a case may take before it counts as hanging.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(60);

fn main() -> std::process::ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut library, mut filter) = (None, String::new());
    while let Some(arg) = args.next() {
        if arg == "--lib" {
            library = args.next();
        } else {
            filter = arg;
        }
    }
    let Some(library) = library else {
        println!("usage: scif-conformance --lib PATH [FILTER]");
        return std::process::ExitCode::from(2);
    };
    let groups: [(&str, &[Case]); 7] = [
        ("connections", connections::CASES),
        ("messages", messages::CASES),
        ("polling", polling::CASES),
        ("windows", windows::CASES),
        ("rma", rma::CASES),
        ("fences", fences::CASES),
        ("life", life::CASES),
    ];
    let base = std::env::var("SCIF_DOMAIN").unwrap_or_else(|_| "conformance".to_owned());
    let base: String = base.chars().take(16).collect();
    let (mut passed, mut failed) = (0, 0);
    for (group, cases) in groups {
        for (name, case) in cases {
            let full = format!("{group}/{name}");
            if !full.contains(&filter) {
                continue;
            }
            let process = Process::start(|| {
                set_env("SCIF_DOMAIN", &format!("{base}-{}", std::process::id()));
                case(&Api::open_library(&library));
            });
            match process.end_within(WATCHDOG) {
                0 => {
                    passed += 1;
                    println!("ok   {full}");
                }
                status => {
                    failed += 1;
                    println!("FAIL {full} (status {status})");
                }
            }
        }
    }
    println!("{passed} passed; {failed} failed");
    std::process::ExitCode::from(u8::from(failed > 0 || passed == 0))
}
