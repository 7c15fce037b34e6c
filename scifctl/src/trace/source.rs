// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sources of traces: files, and the memory of running, stopped or hung processes.

use std::fs::File;
use std::io::{Read, Seek};

use scif::trace::{self, TRACE_MAX, TraceImage, confirm};

use crate::failure::{Problem, Result};

/// Returns the bytes of a trace: of a process, if `source` is a number, else of a file.
///
/// # Errors
/// There is no such process or file, or it has no trace.
pub(super) fn bytes_of(source: &str) -> Result<Vec<u8>> {
    match source.parse::<i32>() {
        Ok(pid) => of_process(pid),
        Err(_) => File::open(source)
            .and_then(read)
            .map_err(|error| Problem::Failed(format!("{source}: {error}"))),
    }
}

/// Reads at most the bytes of the largest trace.
fn read(file: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(TRACE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the trace of a process twice, so that records that are being written are left out.
fn of_process(pid: i32) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        let advice = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ". Only its user may read the trace",
            _ => "",
        };
        Problem::Failed(format!("process {pid}: {error}{advice}"))
    };
    let Some(mut memory) = trace::of_process(pid).map_err(failed)? else {
        return Err(Problem::Failed(format!(
            "process {pid} has no trace: start it with FI_SCIF_TRACE=FILE, and with an endpoint of \
             the provider scif"
        )));
    };
    let mut bytes = read(&memory).map_err(failed)?;
    let again = memory.rewind().and_then(|()| read(&memory)).map_err(failed)?;
    confirm(&mut bytes, &again);
    Ok(bytes)
}

/// Returns the name of a process: rank, program and number.
pub(super) fn title(trace: &TraceImage) -> String {
    let rank = trace.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
    format!("{rank}{} ({})", trace.command, trace.pid)
}
