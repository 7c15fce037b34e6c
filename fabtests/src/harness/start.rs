// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Start and end of the process of one rank: control socket, output, and the process group of its
//! children.
//!
//! The protocol is in [`super::control`], and the driver evaluates exit codes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};

use super::control::pair;

/// Process with its control socket as standard input, and all of its output.
#[derive(Debug)]
pub struct Started {
    pub child: Child,
    pub control: OwnedFd,
    pub output: File,
}

/// Starts `command` in a process group of its own.
pub fn start(command: &mut Command) -> std::io::Result<Started> {
    let (control, theirs) = pair()?;
    let output = File::from(memfd_create("rank-output", MemfdFlags::CLOEXEC)?);
    let child = command
        .stdin(Stdio::from(theirs))
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0)
        .spawn()?;
    Ok(Started { child, control, output })
}

/// Returns the process group of a rank that [`start`] started, from the id of its leader.
#[must_use]
pub fn group_of(leader: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(leader).ok()?)
}

/// Kills and reaps the remaining members of `groups`, whose leaders have been waited for. Orphans
/// of a leader are children of this process, which must be a subreaper
/// ([`super::leak_check::Before::look`]).
pub fn end_groups(groups: &[Pid]) {
    for &group in groups {
        loop {
            match waitpgid(group, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                // A child of this process is in the group, so its id has not been reused.
                Ok(None) => {
                    let _ = kill_process_group(group, Signal::KILL);
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => break,
            }
        }
    }
}
