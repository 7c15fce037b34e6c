// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The doctor: checks of this system, of the MPIs on it and of their settings.
//!
//! Each family of checks is a module with a function `check` that returns findings. Nothing is
//! changed, but launchers and `ompi_info` run. Tests that might damage or hang a process run in
//! processes of their own: probes.

mod devices;
mod domain;
mod env;
mod finding;
mod inputs;
mod kernel;
mod library;
mod limits;
mod mpi;
mod network;
mod provider;
mod render;
mod settings;
mod sisci;
mod sisci_library;
mod speed;

use std::io::{self, Write};
use std::process::ExitCode;

use scif::Config;

use crate::args::{DoctorOptions, Probe};
use crate::failure::Result;
use env::Environment;
use finding::Finding;
use inputs::Inputs;

/// Families of checks, in the order of the report.
static FAMILIES: [fn(&Inputs) -> Vec<Finding>; 9] = [
    kernel::check,
    limits::check,
    devices::check,
    settings::check,
    system_libfabric,
    mpi::check,
    sisci::check,
    domain::check,
    speed::check,
];

/// Exit status if the findings cannot be printed, or the command line is invalid.
pub(crate) const FAILED: u8 = 3;

/// Checks the libfabric of the system, which an MPI with its own does not need, and its network.
fn system_libfabric(inputs: &Inputs) -> Vec<Finding> {
    let (mut found, library) = provider::check(inputs, mpi::has_own_libfabric(inputs));
    found.extend(library.map(|library| network::check(inputs, &library)));
    found
}

/// Runs all checks and prints their findings. The exit status is the worst state, also if the
/// reader goes away.
pub(crate) fn run(config: &Config, options: &DoctorOptions) -> ExitCode {
    let inputs = Inputs {
        root: options.root.clone(),
        env: Environment::of_process(),
        config: config.clone(),
    };
    let findings: Vec<Finding> = FAMILIES.iter().flat_map(|check| check(&inputs)).collect();
    let mut out = io::stdout().lock();
    let printed = if options.json {
        writeln!(out, "{}", render::document(&findings))
    } else {
        write!(out, "{}", render::table(&findings))
    };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "scifctl: the findings cannot be printed: {error}");
            ExitCode::from(FAILED)
        }
        _ => ExitCode::from(render::worst(&findings).exit_status()),
    }
}

/// Runs one probe.
pub(crate) fn probe(config: &Config, probe: &Probe) -> Result<()> {
    match probe {
        Probe::Memory { ptracer } => kernel::keep_memory(*ptracer),
        Probe::Speed { first, second } => speed::measure(config, [*first, *second]),
        Probe::Serve { domain } => speed::serve(config, domain),
        Probe::Libfabric { file } => library::describe(file),
        Probe::Sisci { file } => sisci_library::describe(file),
        Probe::Copy { pid, address } => kernel::copy_memory(*pid, *address),
    }
}
