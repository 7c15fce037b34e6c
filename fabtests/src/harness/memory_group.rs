// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Control group with a memory limit for one process of a case, see cgroups(7). The kernel kills
//! the process if it exceeds the limit.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Fail, Outcome};

/// Mount points of the memory controller, in version 1 and 2, with the name of the limit file.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// Membership of this process in a control group of its own. Its end moves the process to the root
/// group and removes the group.
pub struct MemoryGroup {
    root: PathBuf,
    group: PathBuf,
}

impl MemoryGroup {
    /// Makes this process the only member of a new group with a limit of `bytes`.
    ///
    /// # Errors
    /// `NotHere` where this process may make no group, or groups have no memory limit.
    pub fn enter(bytes: u64) -> Outcome<MemoryGroup> {
        let not_here = |error: std::io::Error| {
            Fail::NotHere(format!("a control group with a memory limit: {error}"))
        };
        let (root, limit) = HIERARCHIES
            .into_iter()
            .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())
            .ok_or_else(|| Fail::NotHere("control groups are not mounted".into()))?;
        let root = PathBuf::from(root);
        let group = root.join(format!("scif-conformance-{}", std::process::id()));
        fs::create_dir(&group).map_err(not_here)?;
        let entered = MemoryGroup { root, group };
        fs::write(entered.group.join(limit), bytes.to_string()).map_err(not_here)?;
        move_to(&entered.group).map_err(not_here)?;
        Ok(entered)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A failure leaves the empty group, and the case fails by itself.
        let _ = move_to(&self.root).and_then(|()| fs::remove_dir(&self.group));
    }
}

/// Moves this process to a group.
fn move_to(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}
