// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sources of traces: files, and the memory of running, stopped or hung processes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use scif::trace::{MEMFD_NAME, TRACE_MAX, TraceImage, confirm};

use crate::failure::{Problem, Result};

/// Returns the bytes of a trace: of a process, if `source` is a number, else of a file.
///
/// # Errors
/// There is no such process or file, or it has no trace.
pub(super) fn bytes_of(source: &str) -> Result<Vec<u8>> {
    match source.parse::<u32>() {
        Ok(pid) => of_process(pid),
        Err(_) => {
            read(Path::new(source)).map_err(|error| Problem::Failed(format!("{source}: {error}")))
        }
    }
}

/// Reads at most the bytes of the largest trace.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(TRACE_MAX).unwrap_or(u64::MAX);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the trace of a process twice, so that records that are being written are left out.
fn of_process(pid: u32) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        let advice = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ". Only its user may read the trace",
            _ => "",
        };
        Problem::Failed(format!("process {pid}: {error}{advice}"))
    };
    let Some(path) = memory_of(pid).map_err(failed)? else {
        return Err(Problem::Failed(format!(
            "process {pid} has no trace: start it with FI_SCIF_TRACE=FILE, and with an endpoint of \
             the provider scif"
        )));
    };
    let mut bytes = read(&path).map_err(failed)?;
    let again = read(&path).map_err(failed)?;
    confirm(&mut bytes, &again);
    Ok(bytes)
}

/// Returns the descriptor of the trace of a process, as a path.
fn memory_of(pid: u32) -> std::io::Result<Option<PathBuf>> {
    let wanted = format!("/memfd:{MEMFD_NAME}");
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        // A descriptor may be closed meanwhile. Others are not opened, since that may block.
        let target = std::fs::read_link(&path).unwrap_or_default();
        let name = target.to_string_lossy();
        if name.strip_suffix(" (deleted)").unwrap_or(&name) == wanted {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the name of a process: rank, program and number.
pub(super) fn title(trace: &TraceImage) -> String {
    let rank = trace.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
    format!("{rank}{} ({})", trace.command, trace.pid)
}
