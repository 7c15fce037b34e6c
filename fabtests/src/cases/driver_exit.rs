// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a process that calls `exit` with open endpoints over a driver: mainline's driver keeps
//! the port of an endpoint with a window and a mapping. The stand-in driver reports such endpoints.

use std::fs::File;
use std::time::Duration;

use rustix::process::{Pid, getppid};
use scif_fabtests::harness::sandbox;
use scif_fabtests::prelude::*;

use super::stand_in::{REPORT, needs_traps};

pub(crate) const CASES: &[Case] =
    &[case("driver/exit_with_open_endpoints", 2, exit_with_open_endpoints)];

const PAUSE: Duration = Duration::from_millis(1);

/// Rank 1 exits with an endpoint whose rings lie in windows. Its exit handler leaves no mapping,
/// and its port is free afterwards.
fn exit_with_open_endpoints(rank: &Rank) -> Outcome {
    needs_traps()?;
    let run = getppid().map_or(0, Pid::as_raw_pid);
    let report = std::env::temp_dir().join(format!("scif-exit-{run}"));
    if rank.index == 1 {
        sandbox::send_stderr_to(&File::create(&report)?)?;
    }
    let spec = Spec::messages(false);
    let rig = Rig::open(rank, &spec)?;
    let names = rig.exchange(&rig.ep.name()?)?;
    let pids = rig.exchange(&std::process::id().to_le_bytes())?;
    let (from, to) = (Buf::pattern(64, 5), Buf::new(64));
    rig.post(|| rig.ep.recv(to, rig.peer(), 1))?;
    rig.complete(2, || rig.ep.send(from, rig.peer(), 2))?;
    rig.received(1)?;
    rig.barrier()?;
    if rank.index == 1 {
        // Never closed: the process exits after the report of this rank.
        Box::leak(Box::new(rig));
        return Ok(());
    }
    let [name, pid] = [&names, &pids].map(|list| list.get(1));
    let pid = pid.and_then(|part| part.as_slice().try_into().ok()).map(u32::from_le_bytes);
    let (Some(name), Some(pid)) = (name, pid) else { return Err(Fail::here("no peer")) };
    rank.step("waiting for the exit of the peer");
    let has_exited = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
    };
    while !has_exited() {
        rig.pump()?;
        std::thread::sleep(PAUSE);
    }
    let text = std::fs::read_to_string(&report)?;
    std::fs::remove_file(&report)?;
    check!(!text.contains(REPORT), "{text}");
    drop(rig);
    rank.step("opening the port of the peer");
    loop {
        match Rig::open_at(rank, &spec, name) {
            Ok(_) => return Ok(()),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
