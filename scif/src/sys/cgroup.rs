// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory limit of this process's control groups, for both versions of the interface, see
//! cgroups(7).

use std::fs;

use super::errno::keep_errno;

/// Mount point of the hierarchies.
const ROOT: &str = "/sys/fs/cgroup";

/// Returns the least limit in bytes of the control groups of this process, `None` without one.
pub(super) fn memory_limit() -> Option<u64> {
    keep_errno(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        least_limit(&groups, |file| {
            // "max" of version 2 is not a number. Version 1 has a number beyond every memory
            // instead.
            fs::read_to_string(file).ok()?.trim().parse().ok()
        })
    })
}

/// Returns the least number that `read` returns for the limit files of `groups`, the text of
/// `/proc/self/cgroup`.
///
/// A limit applies to a group and everything below it. In a container the path may be the host's,
/// while only the container's own group is mounted. So the root is always checked too.
fn least_limit(groups: &str, read: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut least = None;
    for line in groups.lines().chain(["0::/", "0:memory:/"]) {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (hierarchy, file) = if controllers.is_empty() {
            ("", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut group = path.trim_end_matches('/');
        loop {
            let limit = read(&format!("{ROOT}{hierarchy}{group}/{file}"));
            least = least.into_iter().chain(limit).min();
            let Some(end) = group.rfind('/') else {
                break;
            };
            group = group.get(..end).unwrap_or_default();
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit on a machine with these limit files.
    fn least(groups: &str, files: &[(&str, u64)]) -> Option<u64> {
        least_limit(groups, |file| {
            let file = file.strip_prefix(ROOT)?;
            files.iter().find(|(name, _)| *name == file).map(|(_, limit)| *limit)
        })
    }

    #[test]
    fn the_limits_of_all_groups_above_hold() {
        let job = "0::/system.slice/slurmstepd.scope/job_7/step_0\n";
        let files = [
            ("/system.slice/slurmstepd.scope/job_7/memory.max", 5 << 30),
            ("/system.slice/slurmstepd.scope/job_7/step_0/memory.max", 6 << 30),
            ("/system.slice/other/memory.max", 1),
        ];
        assert_eq!(least(job, &files), Some(5 << 30));
        assert_eq!(least(job, &[]), None);
    }

    #[test]
    fn a_group_of_version_1_is_found_by_its_controller() {
        let job = "9:cpu,cpuacct:/job\n4:hugetlb,memory:/slurm/uid_1/job_7\n0::/\n";
        let files = [
            ("/memory/memory.limit_in_bytes", u64::MAX >> 1),
            ("/memory/slurm/uid_1/memory.limit_in_bytes", 3 << 30),
            ("/cpu/job/memory.max", 1),
        ];
        assert_eq!(least(job, &files), Some(3 << 30));
    }

    #[test]
    fn a_container_sees_the_limit_at_its_root() {
        assert_eq!(least("0::/\n", &[("/memory.max", 7)]), Some(7));
        assert_eq!(least("0::/../other\n", &[("/memory.max", 7)]), Some(7));
        assert_eq!(least("", &[("/memory/memory.limit_in_bytes", 8)]), Some(8));
        assert_eq!(least("garbage\n:\n", &[]), None);
    }
}
