// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the limits of a process: descriptors, memory, processors, `/dev/shm`, and the
//! namespaces and control groups of a container.

use std::fs;

use scif::sys::probe::{self, Limits};

use super::finding::Finding;
use super::scene::Scene;
use crate::table::bytes;

/// Descriptors of a rank without its peers: of the MPI, its launcher and one endpoint.
const DESCRIPTORS_BESIDE_PEERS: u64 = 32;
/// Hard limit of descriptors below which jobs of usual sizes fail.
const DESCRIPTORS_FEW: u64 = 256;
/// Bytes below which a memory limit is too small for an MPI rank and its rings.
const MEMORY_MIN: u64 = 256 << 20;
/// Bytes of the largest memfd of an endpoint.
const FILE_MIN: u64 = 1 << 30;
/// Bytes of free space in `/dev/shm` that MPIs use for themselves.
const SHM_MIN: u64 = 16 << 20;
/// Inode numbers of the first namespaces (`include/linux/proc_ns.h`).
const FIRST_NAMESPACES: [(&str, &str); 2] = [("pid", "4026531836"), ("user", "4026531837")];

pub(crate) fn check(scene: &Scene) -> Vec<Finding> {
    let limits = probe::limits();
    vec![
        descriptors(&limits),
        locked_memory(&limits, scene.config.memlock),
        address_space(&limits),
        file_size(&limits),
        memory(scif::memory_limit()),
        processors(probe::processors().len(), processor_quota(scene)),
        dev_shm(scene),
        namespaces(scene),
    ]
}

fn descriptors(limits: &Limits) -> Finding {
    let subject = "descriptors";
    let Some(limit) = limits.descriptors else {
        return Finding::ok(subject, "no limit");
    };
    let peers = limit.saturating_sub(DESCRIPTORS_BESIDE_PEERS);
    let meaning = format!(
        "the hard limit is {limit} open files; each peer takes one, so a rank has at most about \
         {peers} peers"
    );
    let action = "ulimit -Hn above the number of ranks, in limits.conf or the unit of the launcher";
    match limit {
        0..=63 => {
            Finding::broken(subject, meaning + ", and fails with Too many open files", action)
        }
        64..DESCRIPTORS_FEW => Finding::slower(subject, meaning, action),
        _ => Finding::ok(subject, meaning),
    }
}

fn locked_memory(limits: &Limits, counted: bool) -> Finding {
    let subject = "locked memory";
    match limits.locked {
        None => Finding::ok(subject, "no limit"),
        Some(limit) if counted && limit < MEMORY_MIN => Finding::slower(
            subject,
            format!(
                "{} at most, and SCIF_MEMLOCK=1 counts registered pages: scif_register fails with \
                 ENOMEM above",
                bytes(limit)
            ),
            "ulimit -l unlimited, or unset SCIF_MEMLOCK",
        ),
        Some(limit) => {
            let text = format!("{} at most; nothing of scif locks memory", bytes(limit));
            Finding::ok(subject, text)
        }
    }
}

fn address_space(limits: &Limits) -> Finding {
    let subject = "address space";
    match limits.address_space {
        None => Finding::ok(subject, "no limit"),
        Some(limit) if limit < 4 * MEMORY_MIN => Finding::broken(
            subject,
            format!("{} at most: rings and arenas of peers cannot be mapped", bytes(limit)),
            "ulimit -v unlimited",
        ),
        Some(limit) => Finding::ok(subject, format!("{} at most", bytes(limit))),
    }
}

fn file_size(limits: &Limits) -> Finding {
    match limits.file_size {
        Some(limit) if limit < FILE_MIN => Finding::broken(
            "file size",
            format!("{} at most: memfds of endpoints are larger (sparse)", bytes(limit)),
            "ulimit -f unlimited",
        ),
        Some(limit) => Finding::ok("file size", format!("{} at most", bytes(limit))),
        None => Finding::ok("file size", "no limit"),
    }
}

fn memory(limit: u64) -> Finding {
    let meaning = format!("{} for this process (host, control group, ulimit -v, -d)", bytes(limit));
    if limit < MEMORY_MIN {
        let action = "raise the memory limit of the container or job";
        return Finding::slower(
            "memory",
            meaning + ": unexpected messages are dropped early",
            action,
        );
    }
    Finding::ok("memory", meaning)
}

/// Returns the processors that the control group of this process may use, as a number with a
/// fraction; `None` without limit.
fn processor_quota(scene: &Scene) -> Option<f64> {
    let groups = scene.read("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let read = |group: &str| scene.read(&format!("/sys/fs/cgroup{group}/cpu.max"));
    let text = read(path.trim_end_matches('/')).or_else(|| read(""))?;
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn processors(count: usize, quota: Option<f64>) -> Finding {
    let subject = "processors";
    let action = "give each rank its own processor (job script, --cpus of the container)";
    if let Some(quota) = quota {
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let enough = quota >= count as f64;
        if !enough {
            let meaning = format!(
                "the control group has time for {quota:.1} of {count} processors: ranks poll, and \
                 the kernel suspends them"
            );
            return Finding::slower(subject, meaning, action);
        }
    }
    if count < 2 {
        let meaning = "one: ranks poll by turns, and a message takes a change of processes";
        return Finding::slower(subject, meaning, action);
    }
    Finding::ok(subject, format!("{count}"))
}

fn dev_shm(scene: &Scene) -> Finding {
    let action = "mount a larger tmpfs there (docker run --shm-size=1g)";
    match probe::space(&scene.path("/dev/shm")) {
        Ok((size, free)) if free >= SHM_MIN => {
            Finding::ok("/dev/shm", format!("{} of {} free", bytes(free), bytes(size)))
        }
        Ok((size, free)) => Finding::slower(
            "/dev/shm",
            format!(
                "{} of {} free: MPIs keep segments there and may fail; scif does not use it",
                bytes(free),
                bytes(size)
            ),
            action,
        ),
        Err(errno) => Finding::slower(
            "/dev/shm",
            format!("{errno}: MPIs keep segments there and may fail; scif does not use it"),
            action,
        ),
    }
}

fn namespaces(scene: &Scene) -> Finding {
    let own = FIRST_NAMESPACES.iter().filter(|(name, first)| {
        fs::read_link(scene.path(&format!("/proc/self/ns/{name}")))
            .is_ok_and(|link| !link.to_string_lossy().contains(first))
    });
    let own: Vec<&str> = own.map(|(name, _)| *name).collect();
    if own.is_empty() {
        return Finding::ok("namespaces", "those of the host");
    }
    Finding::ok(
        "namespaces",
        format!(
            "its own {} namespace: ranks of one job must share it for direct copies (one \
             container, or --pid=host --userns=host)",
            own.join(" and ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn few_descriptors_are_named_with_the_remedy() {
        for (limit, state) in [(16, State::Broken), (100, State::Slower), (1024, State::Ok)] {
            let found = descriptors(&Limits { descriptors: Some(limit), ..Limits::default() });
            assert_eq!(found.state, state, "{limit}");
            assert!(state == State::Ok || found.action.contains("ulimit -Hn"));
        }
    }

    #[test]
    fn low_limits_are_named() {
        let low = Limits {
            descriptors: None,
            locked: Some(8 << 20),
            address_space: Some(1 << 20),
            file_size: Some(1 << 20),
        };
        assert_eq!(locked_memory(&low, false).state, State::Ok);
        assert!(locked_memory(&low, true).action.contains("SCIF_MEMLOCK"));
        assert_eq!(address_space(&low).state, State::Broken);
        assert_eq!(file_size(&low).state, State::Broken);
        assert_eq!(memory(1 << 20).state, State::Slower);
    }

    #[test]
    fn a_quota_or_a_single_processor_is_slower() {
        assert_eq!(processors(1, None).state, State::Slower);
        assert_eq!(processors(4, Some(1.5)).state, State::Slower);
        assert_eq!(processors(4, Some(4.0)).state, State::Ok);
        assert_eq!(processors(2, None).state, State::Ok);
    }
}
