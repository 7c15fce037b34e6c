// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Suite of `scif.h`: tests the built library through its C functions, in several processes.
//!
//! `scif-conformance --lib PATH [FILTER]`. With `SCIF_TRANSPORT=kernel` it runs over a device, and
//! tests the device too; `--who` prints its kind. Each case runs in a process and a domain of its
//! own, under a watchdog. A case that the machine cannot run is skipped. The last line has the
//! counts.
#![expect(clippy::unwrap_used, reason = "a case says what it expects by unwrapping it")]
#![expect(clippy::panic, reason = "as above")]
#![expect(clippy::print_stdout, reason = "a program")]
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]
#![expect(clippy::cast_sign_loss, reason = "offsets and counts of the cases are small")]
#![expect(clippy::indexing_slicing, reason = "a case that is wrong about a length has failed")]

mod api;
mod bench;
mod bulk;
mod connections;
mod device;
mod driver_rows;
mod driver_windows;
mod edges;
mod excused;
mod fences;
mod forks;
mod ioctl;
mod life;
mod limits;
mod loans;
mod measured;
mod memory;
mod messages;
mod nodes;
mod placement;
mod polling;
mod rig;
mod rma;
mod rows;
mod sharers;
mod shown;
mod timers;
mod traps;
mod windows;

use std::process::ExitCode;
use std::time::Duration;

use scif_fabtests::harness::process::{Process, SIDE_FAILED, begin_case, kernel_places};

use api::{Api, Case};
use measured::{DriverKind, Row, driver_kind, is_online};
use placement::{has_traps, is_like_a_driver};
use rig::{on_device, set_env};

/// Time after which a case counts as hanging.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Group of cases that needs a device.
const DEVICE: &str = "device";
/// Group of cases that needs mainline's driver, or its traps.
const TRAPS: &str = "traps";

/// Groups of cases, in the order of a run.
const GROUPS: &[(&str, &[Case])] = &[
    ("connections", connections::CASES),
    ("messages", messages::CASES),
    ("polling", polling::CASES),
    ("windows", windows::CASES),
    ("rma", rma::CASES),
    ("fences", fences::CASES),
    ("forks", forks::CASES),
    ("sharers", sharers::CASES),
    ("life", life::CASES),
    ("nodes", nodes::CASES),
    (DEVICE, device::CASES),
    (TRAPS, traps::CASES),
    ("shown", shown::CASES),
    ("edges", edges::CASES),
    ("memory", memory::CASES),
    ("loans", loans::CASES),
    ("timers", timers::CASES),
    ("limits", limits::CASES),
];

/// Command line.
#[derive(Default)]
struct Args {
    library: Option<String>,
    filter: String,
    bench: bool,
    ask_kind: bool,
    cycles: Option<u64>,
}

impl Args {
    fn parse() -> Args {
        let (mut parsed, mut args) = (Args::default(), std::env::args().skip(1));
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--lib" => parsed.library = args.next(),
                "--bench" => parsed.bench = true,
                "--who" => parsed.ask_kind = true,
                "--cycles" => parsed.cycles = args.next().and_then(|n| n.parse().ok()),
                _ => parsed.filter = arg,
            }
        }
        parsed
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // The transport must not depend on the machine.
    if !on_device() {
        set_env("SCIF_TRANSPORT", "soft");
    }
    if on_device() && !describe_device() {
        return ExitCode::FAILURE;
    }
    if args.ask_kind {
        return ExitCode::SUCCESS;
    }
    let Some(library) = args.library else {
        println!(
            "usage: scif-conformance --who | --lib PATH [--bench [bulk]] [--cycles N] [FILTER]"
        );
        return ExitCode::from(2);
    };
    if args.bench {
        // `--bench bulk`: streams and registration only.
        bench::run(|| Api::open_library(&library), args.filter == "bulk");
        return ExitCode::SUCCESS;
    }
    let cycles = args.cycles.unwrap_or(life::CYCLES);
    set_env("CONFORMANCE_CYCLES", &cycles.to_string());
    let base = std::env::var("SCIF_DOMAIN").unwrap_or_else(|_| "conformance".to_owned());
    let suite = Suite {
        library,
        filter: args.filter,
        base: base.chars().take(16).collect(),
        watchdog: WATCHDOG + Duration::from_millis(100 * cycles),
    };
    let mut sum = Sum::default();
    for (group, cases) in GROUPS {
        if (*group == DEVICE && !on_device()) || (*group == TRAPS && !has_traps()) {
            continue;
        }
        for (name, case) in *cases {
            let full = format!("{group}/{name}");
            let excuse = excused::reason(&full).filter(|_| is_like_a_driver());
            suite.run_case(&mut sum, &full, excuse, || case(&Api::open_library(&suite.library)));
        }
    }
    if on_device() {
        suite.compare_rows(&mut sum);
    }
    if is_like_a_driver() {
        println!("{} not run of a driver", sum.excused);
    }
    check_tables(&mut sum);
    println!("{} passed; {} failed; {} stepped aside", sum.passed, sum.failed, sum.aside);
    ExitCode::from(u8::from(sum.failed > 0 || sum.passed == 0))
}

/// Prints the kind of the device. Returns false if there is none.
fn describe_device() -> bool {
    // Done before there are threads.
    if let Some(errno) = measured::no_device() {
        let why = std::io::Error::from_raw_os_error(errno);
        println!(
            "no SCIF device: open {}: {why}; load a driver, name its device in SCIF_DEVICE, \
             or preload libscifdev.so",
            ioctl::path()
        );
        return false;
    }
    let online = if is_online() { "" } else { ", where no node is online" };
    println!("over {}, {}{online}", driver_kind(), ioctl::path());
    true
}

/// Compares the tables of excuses and of rows with the names of the cases.
fn check_tables(sum: &mut Sum) {
    let names = GROUPS
        .iter()
        .flat_map(|(group, cases)| cases.iter().map(move |(name, _)| format!("{group}/{name}")))
        .chain(driver_rows::rows().map(Row::full_name));
    let names: Vec<String> = names.collect();
    for begin in excused::of_none(&names) {
        println!("FAIL excused.rs: no case: {begin}");
        sum.failed += 1;
    }
    let rows = rows::count(&names);
    for wrong in &rows.wrong {
        println!("FAIL rows.txt: {wrong}");
        sum.failed += 1;
    }
    if on_device() {
        println!("rows tested {}, excused {}", rows.tested + rows.of_a_device, rows.excused);
    } else {
        println!(
            "rows tested {}, excused {}, of a device alone {}",
            rows.tested, rows.excused, rows.of_a_device
        );
    }
}

/// Result of a run.
#[derive(Default)]
struct Sum {
    passed: usize,
    failed: usize,
    excused: usize,
    aside: usize,
}

/// Settings of all cases of a run.
struct Suite {
    library: String,
    filter: String,
    base: String,
    watchdog: Duration,
}

impl Suite {
    /// Runs a case in a process of its own, if the filter selects it. Returns whether it passed.
    fn run_case(
        &self,
        sum: &mut Sum,
        full: &str,
        excuse: Option<&str>,
        case: impl FnOnce(),
    ) -> bool {
        if !full.contains(&self.filter) {
            return false;
        }
        if let Some(reason) = excuse {
            sum.excused += 1;
            println!("not run {full}: {reason}");
            return false;
        }
        let process = Process::start(|| {
            begin_case();
            set_env("SCIF_DOMAIN", &format!("{}-{}", self.base, std::process::id()));
            case();
        });
        let status = process.end_within(self.watchdog, |pid| {
            print!("{full} does not end; it sleeps in\n{}", kernel_places(pid));
        });
        match status {
            0 => println!("ok   {full}"),
            rig::ASIDE => println!("stepped aside {full}"),
            status if status == -SIDE_FAILED => {
                println!("FAIL {full} (another process of it failed)");
            }
            status => println!("FAIL {full} (status {status})"),
        }
        match status {
            0 => sum.passed += 1,
            rig::ASIDE => sum.aside += 1,
            _ => sum.failed += 1,
        }
        status == 0
    }

    /// Tests the device against all measured answers of a driver, and prints how many were the
    /// driver's own.
    fn compare_rows(&self, sum: &mut Sum) {
        let driver_kind = driver_kind();
        if driver_kind == DriverKind::Mpss {
            sum.excused += driver_rows::rows().count();
            println!("not run driver/: it was mainline's driver that was measured");
            return;
        }
        let (mut own, mut other) = (0, 0);
        for row in driver_rows::rows() {
            let passed = self.run_case(sum, &row.full_name(), None, || {
                let wrong = row.judge(&(row.calls)(driver_kind), driver_kind);
                assert!(wrong.is_empty(), "{}", wrong.join("; "));
            });
            match (passed, row.is_drivers_own(driver_kind)) {
                (true, true) => own += 1,
                (true, false) => other += 1,
                (false, _) => {}
            }
        }
        println!(
            "of {driver_kind}: {own} rows as mainline's driver answers, \
             {other} as only what stands in for it does"
        );
    }
}
