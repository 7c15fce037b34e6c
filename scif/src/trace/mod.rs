// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Events of the protocols of an endpoint, for reports and traces.
//!
//! A trace lies in shared memory that other processes of the user can read ([`TraceRing`]). It is
//! written to a file at the exit of the program, and by a signal that ends it.

mod event;
mod image;
mod layout;
mod ring;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::sys::{crash, ending_signal, memfd, thread};

pub use event::{EventKind, TraceEvent};
pub use image::{TRACE_MAX, TraceImage, TraceRecord, confirm};
pub use layout::TraceNames;
pub use ring::{TraceRing, TraceWriter};

/// Trace of this process, and the file for it.
static TRACE: OnceLock<(CString, TraceRing)> = OnceLock::new();

/// Starts the trace of this process, unless it is started. Its file is `file` with the process
/// number appended.
///
/// # Errors
/// The memory cannot be allocated, or the name contains a NUL. EPERM: this process is a forked
/// child of the one that started the trace.
pub fn start(
    file: &Path,
    command: &str,
    rank: Option<u64>,
    node: u16,
) -> Result<&'static TraceRing, rustix::io::Errno> {
    if let Some((_, ring)) = TRACE.get() {
        return if ring.is_inherited() { Err(rustix::io::Errno::PERM) } else { Ok(ring) };
    }
    let mut name = file.as_os_str().as_bytes().to_vec();
    name.extend(format!(".{}", std::process::id()).bytes());
    let name = CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    let ring = TraceRing::new(command, rank, node)?;
    if TRACE.set((name, ring)).is_ok() {
        thread::at_exit(write_at_exit);
        ending_signal::at_ending_signal(write_now);
    }
    TRACE.get().map(|(_, ring)| ring).ok_or(rustix::io::Errno::NOMEM)
}

/// Opens the trace of a process to read, in its memory; `None` if it has none.
///
/// # Errors
/// The process does not exist, or may not be inspected.
pub fn of_process(pid: i32) -> io::Result<Option<File>> {
    let found = memfd::open_named(pid, ring::MEMFD_NAME, usize::MAX)?;
    Ok(found.into_iter().next().map(File::from))
}

fn write() -> Result<(), rustix::io::Errno> {
    let Some((file, ring)) = TRACE.get() else { return Ok(()) };
    let Some((map, len)) = ring.end() else { return Ok(()) };
    crash::write_file(file, map, len)
}

/// Writes the file in a signal handler, which cannot report an error.
fn write_now() {
    let _ = write();
}

fn write_at_exit() {
    if let Err(errno) = write() {
        let file = TRACE.get().map_or("".into(), |(file, _)| file.to_string_lossy());
        log::warn!(
            "the trace cannot be written to {file}: {errno}. Set FI_SCIF_TRACE to a file in a \
             directory that this user may write"
        );
    }
}
