// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Processors of a measurement.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{Fail, Outcome};

/// Returns the first two processors this process may run on; twice the same if there is only one.
pub fn two_cpus() -> Outcome<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let first = each.next().ok_or_else(|| Fail::here("no processor is allowed"))?;
    Ok([first, each.next().unwrap_or(first)])
}

/// Binds this thread to one processor.
pub fn pin(cpu: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the time for which the threads of this process have waited for a processor so far, as
/// `/proc/PID/schedstat` has it. A thread that sleeps does not wait. Zero without such a file.
#[must_use]
pub fn waited_for_processor() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waits = tasks.filter_map(|task| {
        let times = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        times.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waits.sum())
}
