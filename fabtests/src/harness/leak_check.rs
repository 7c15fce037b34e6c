// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Search for leftovers of a run: files in the directories that providers use, and processes.
//!
//! Files are compared with a listing from before the first case, so new files of other programs are
//! not counted.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::getuid;

/// Directories that are searched.
const PLACES: &[&str] = &["/dev/shm", "/tmp", "/run/shm"];

/// Files from before the run.
pub struct Before {
    files: BTreeSet<PathBuf>,
}

impl Before {
    /// Lists the directories, and makes this process the reaper of orphans so that all of them are
    /// counted.
    pub fn look() -> Before {
        // Without this setting orphans become children of init and are not counted; files are still
        // compared.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Before { files: PLACES.iter().flat_map(|place| listing(Path::new(place))).collect() }
    }

    /// Returns one line for each new leftover. A file belongs to this run if its name contains
    /// `mark` or the id of one of `pids`, because other programs may run on this machine.
    pub fn compare(&self, mark: &str, pids: &[u32]) -> Vec<String> {
        let mut found = Vec::new();
        for path in PLACES.iter().flat_map(|place| listing(Path::new(place))) {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let numbers: Vec<u32> = numbers_in(&name).collect();
            let of_ours = numbers.iter().any(|n| pids.contains(n));
            let of_others =
                numbers.iter().any(|n| *n > 1 && Path::new(&format!("/proc/{n}")).exists());
            let ours = of_ours || (name.contains(mark) && !of_others);
            if ours && !self.files.contains(&path) {
                found.push(format!("left behind: {}", path.display()));
            }
        }
        if let Ok(list) = std::fs::read_dir("/proc/self/task") {
            for thread in list.flatten() {
                let children =
                    std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                for pid in children.split_whitespace() {
                    found.push(format!("left running: process {pid}"));
                }
            }
        }
        found
    }
}

/// Returns the separate numbers in the name of a file. Digits in a name joined by hyphens do not
/// count: in UUIDs they are random.
fn numbers_in(name: &str) -> impl Iterator<Item = u32> {
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter_map(|word| word.parse().ok())
}

fn listing(place: &Path) -> Vec<PathBuf> {
    let me = getuid().as_raw();
    let Ok(list) = std::fs::read_dir(place) else {
        return Vec::new();
    };
    list.flatten()
        .filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == me))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::numbers_in;

    #[test]
    fn a_process_number_stands_alone() {
        assert_eq!(numbers_in("fi_shm:4841_0.lock").collect::<Vec<_>>(), [4841, 0]);
        assert_eq!(numbers_in("tool_01a91359-d919-4841-8068-c27a88d853e1").count(), 0);
    }
}
