// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the limits of a process: descriptors, memory, processors, `/dev/shm`, and the
//! namespaces and control groups of a container.

use std::fs;
use std::path::Path;

use scif::sys::probe::{self, Limits};

use super::env::Environment;
use super::finding::Finding;
use super::inputs::Inputs;
use crate::table::bytes;

/// Descriptors of a rank without its peers: of the MPI, its launcher and one endpoint.
const DESCRIPTORS_BESIDE_PEERS: u64 = 32;
/// Descriptors of the opener of a connection over `scif.h` without a driver
/// (`FI_SCIF_TRANSPORT=scif`); the acceptor has one less.
const DESCRIPTORS_OVER_SCIF: u64 = 8;
/// Number of peers below which jobs of usual sizes fail.
const PEERS_FEW: u64 = 224;
/// Bytes below which a memory limit is too small for an MPI rank and its rings.
const MEMORY_MIN: u64 = 256 << 20;
/// Bytes of the largest memfd that the provider always needs, the table of keys of a domain.
const FILE_MIN: u64 = (4 << 20) + 4096;
/// Bytes of the file into which memory of `fi_mr_reg` moves, sparse.
const FILE_OF_KEYS: u64 = scif::ARENA_BYTES as u64;
/// Bytes of the file into which windows of `scif.h` move, sparse.
const FILE_OF_WINDOWS: u64 = scif_api::ARENA_BYTES as u64;
/// Bytes of free space in `/dev/shm` that MPIs use for themselves.
const SHM_MIN: u64 = 16 << 20;
/// Inode numbers of the first namespaces (`include/linux/proc_ns.h`).
const FIRST_NAMESPACES: [(&str, &str); 2] = [("pid", "4026531836"), ("user", "4026531837")];

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let limits = probe::limits();
    vec![
        descriptors(&limits, &inputs.env),
        locked_memory(&limits, inputs.config.memlock),
        address_space(&limits),
        file_size(&limits, &inputs.env),
        memory(scif::memory_limit()),
        processors(probe::processors().len(), processor_quota(inputs)),
        dev_shm(inputs),
        namespaces(inputs),
    ]
}

fn descriptors(limits: &Limits, env: &Environment) -> Finding {
    let subject = "descriptors";
    let Some(limit) = limits.descriptors else {
        return Finding::ok(subject, "no limit");
    };
    let each = if env.is("FI_SCIF_TRANSPORT", "scif") { DESCRIPTORS_OVER_SCIF } else { 1 };
    let peers = limit.saturating_sub(DESCRIPTORS_BESIDE_PEERS) / each;
    let meaning = format!(
        "the hard limit is {limit} open files; each peer takes {each}, so a rank has at most about \
         {peers} peers"
    );
    let action = "ulimit -Hn above the number of ranks, in limits.conf or the unit of the launcher";
    match limit {
        0..=63 => {
            Finding::broken(subject, meaning + ", and fails with Too many open files", action)
        }
        _ if peers < PEERS_FEW => Finding::slower(subject, meaning, action),
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

fn file_size(limits: &Limits, env: &Environment) -> Finding {
    let subject = "file size";
    let Some(limit) = limits.file_size.filter(|limit| *limit < FILE_OF_WINDOWS) else {
        return Finding::ok(subject, "enough for the sparse files of scif");
    };
    let consequence = if limit < FILE_MIN {
        "fi_domain and scif_connect fail with ENOMEM"
    } else if env.is("FI_SCIF_TRANSPORT", "scif") {
        "scif_connect fails with ENOMEM, and the provider, which uses it \
         (FI_SCIF_TRANSPORT=scif), connects with no peer"
    } else if limit < FILE_OF_KEYS && env.is("FI_SCIF_MR_MIGRATE", "auto") {
        "scif_connect fails with ENOMEM. The provider works, but FI_SCIF_MR_MIGRATE=auto has no \
         effect"
    } else {
        "scif_connect fails with ENOMEM. The provider works"
    };
    let meaning = format!("{} at most: {consequence}", bytes(limit));
    Finding::broken(subject, meaning, "ulimit -f unlimited")
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

/// Returns the processors that the control groups of this process may use, as a number with a
/// fraction; `None` without limit. A limit of a group applies to all groups below it.
fn processor_quota(inputs: &Inputs) -> Option<f64> {
    let text = inputs.read("/proc/self/cgroup").unwrap_or_default();
    let mut least = None;
    // In a container the paths may be the host's, so the root is always checked too.
    for line in text.lines().chain(["0::/", "0:cpu:/"]) {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let first_version = controllers.split(',').any(|name| name == "cpu");
        if !first_version && !controllers.is_empty() {
            continue;
        }
        for group in Path::new(path).ancestors() {
            let group = group.to_string_lossy();
            let quota = quota_of(inputs, group.trim_end_matches('/'), first_version);
            least = least.into_iter().chain(quota).reduce(f64::min);
        }
    }
    least
}

/// Returns the processors that one control group may use, see cgroups(7).
fn quota_of(inputs: &Inputs, group: &str, first_version: bool) -> Option<f64> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0);
    if first_version {
        let read =
            |file| number(&inputs.read(&format!("/sys/fs/cgroup/cpu{group}/cpu.cfs_{file}"))?);
        return Some(read("quota_us")? / read("period_us")?);
    }
    let text = inputs.read(&format!("/sys/fs/cgroup{group}/cpu.max"))?;
    let (quota, period) = text.split_once(' ')?;
    Some(number(quota)? / number(period)?)
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

fn dev_shm(inputs: &Inputs) -> Finding {
    let action = "mount a larger tmpfs there (docker run --shm-size=1g)";
    match probe::space(&inputs.path("/dev/shm")) {
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

fn namespaces(inputs: &Inputs) -> Finding {
    let own = FIRST_NAMESPACES.iter().filter(|(name, first)| {
        fs::read_link(inputs.path(&format!("/proc/self/ns/{name}")))
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
            let limits = Limits { descriptors: Some(limit), ..Limits::default() };
            let found = descriptors(&limits, &Environment::default());
            assert_eq!(found.state, state, "{limit}");
            assert!(state == State::Ok || found.action.contains("ulimit -Hn"));
        }
        let over_scif = Environment::of(&[("FI_SCIF_TRANSPORT", "scif")]);
        let limits = Limits { descriptors: Some(1024), ..Limits::default() };
        let found = descriptors(&limits, &over_scif);
        assert!(found.state == State::Slower && found.meaning.ends_with("about 124 peers"));
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
        assert_eq!(memory(1 << 20).state, State::Slower);
    }

    #[test]
    fn a_limit_of_file_sizes_names_its_victims() {
        let found = |limit, env: &[(&str, &str)]| {
            let limits = Limits { file_size: Some(limit), ..Limits::default() };
            file_size(&limits, &Environment::of(env))
        };
        assert!(found(1 << 20, &[]).meaning.contains("fi_domain"));
        let found_at_10g = found(10 << 30, &[]);
        assert_eq!(found_at_10g.state, State::Broken);
        assert_eq!(
            found_at_10g.meaning,
            "10G at most: scif_connect fails with ENOMEM. The provider works"
        );
        for (limit, pair, text) in [
            (10 << 30, ("FI_SCIF_MR_MIGRATE", "auto"), "MIGRATE=auto has no effect"),
            (100 << 30, ("FI_SCIF_MR_MIGRATE", "auto"), "provider works"),
            (100 << 30, ("FI_SCIF_TRANSPORT", "scif"), "connects with no peer"),
        ] {
            assert!(found(limit, &[pair]).meaning.contains(text), "{limit} {pair:?}");
        }
        assert_eq!(found(u64::MAX, &[]).state, State::Ok);
        assert_eq!(file_size(&Limits::default(), &Environment::default()).state, State::Ok);
    }

    #[test]
    fn the_quotas_of_all_groups_above_hold() {
        let quota = |groups: &str, files: &[(&str, &str)]| {
            let root = std::env::temp_dir().join(format!("scifctl-{}-quota", std::process::id()));
            let inputs = Inputs {
                root: root.clone(),
                env: Environment::default(),
                config: scif::Config::default(),
            };
            for (name, text) in [("/proc/self/cgroup", groups)].iter().chain(files) {
                let file = inputs.path(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let quota = processor_quota(&inputs);
            fs::remove_dir_all(root).unwrap();
            quota
        };
        let job = "0::/slurm/job_7/step_0\n";
        let of_job = ("/sys/fs/cgroup/slurm/job_7/cpu.max", "150000 100000\n");
        let of_step = ("/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n");
        assert_eq!(quota(job, &[of_job, of_step]), Some(1.5));
        assert_eq!(quota(job, &[of_step]), None);
        assert_eq!(quota("0::/../x\n", &[("/sys/fs/cgroup/cpu.max", "50000 100000")]), Some(0.5));
        let first = [
            ("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000\n"),
            ("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota("4:cpu,cpuacct:/a/b\n9:memory:/c\n", &first), Some(2.0));
        assert_eq!(quota("4:memory:/a\n", &first), None);
    }

    #[test]
    fn a_quota_or_a_single_processor_is_slower() {
        assert_eq!(processors(1, None).state, State::Slower);
        assert_eq!(processors(4, Some(1.5)).state, State::Slower);
        assert_eq!(processors(4, Some(4.0)).state, State::Ok);
        assert_eq!(processors(2, None).state, State::Ok);
    }
}
