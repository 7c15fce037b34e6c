// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints of the libfabric provider, from the state that their processes publish.
//!
//! Not about the endpoints of `scif.h` (`show`).

mod activity;
mod document;
mod job;
mod texts;
mod top;
mod waits;
mod watch;

use crate::args::WatchOptions;
use crate::failure::Result;
use watch::{process, repeat};

pub(crate) use document::endpoints as endpoint_objects;
pub(crate) use texts::endpoints as endpoint_table;
pub(crate) use top::top;
pub(crate) use watch::processes;

/// Whether a process publishes endpoints of the provider.
pub(crate) fn has_endpoints(pid: i32) -> bool {
    process(pid).is_ok()
}

/// Shows the peers of a process.
pub(crate) fn peers(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let (process, all) = (process(pid)?, processes()?);
        Ok((texts::peers(&process, &all), document::process(&process, &all)))
    })
}

/// Shows everything that a process publishes.
pub(crate) fn dump(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let (process, all) = (process(pid)?, processes()?);
        Ok((texts::dump(&process, &all), document::process(&process, &all)))
    })
}

/// Shows the processes of this user's jobs, and which of them wait for which.
pub(crate) fn job(options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let all = processes()?;
        let job = job::Job::of(&all, scif::now_ns());
        Ok((job.text(), job.document()))
    })
}

/// Prints the counters of a process, as FI_SCIF_STATS=1 does when an endpoint closes.
pub(crate) fn stats(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let process = process(pid)?;
        Ok((texts::stats(&process), document::stats(&process)))
    })
}
