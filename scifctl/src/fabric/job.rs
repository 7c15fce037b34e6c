// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Jobs as graphs: each process, the operations that it waits for, and the cycles among these.

use std::collections::BTreeMap;
use std::fmt::Write;

use scif::monitor::report::ProcessReport;
use serde_json::{Value, json};

use super::activity::{Activity, duration, silence};
use super::waits::{self, Wait, describe, name};
use super::{document, texts};
use crate::table::columns;

/// Waits that the text shows for one process.
const SHOWN: usize = 4;

/// Processes of this user's jobs, with their waits.
pub(crate) struct Job<'a> {
    now: u64,
    members: Vec<(&'a ProcessReport, Vec<Wait<'a>>)>,
}

impl<'a> Job<'a> {
    /// Returns the jobs of the processes `all` at time `now`.
    pub(crate) fn of(all: &'a [ProcessReport], now: u64) -> Job<'a> {
        let used = all.iter().filter(|process| !process.endpoints.is_empty());
        let mut members: Vec<_> =
            used.map(|process| (process, waits::of(process, all, now))).collect();
        members.sort_by(|(a, _), (b, _)| (&a.job, a.rank, a.pid).cmp(&(&b.job, b.rank, b.pid)));
        Job { now, members }
    }

    /// Returns the processes that each process waits for, by process id.
    fn edges(&self) -> BTreeMap<i32, Vec<i32>> {
        let peers = |waits: &[Wait<'_>]| {
            let mut pids: Vec<i32> = waits.iter().filter_map(|wait| Some(wait.peer?.pid)).collect();
            pids.sort_unstable();
            pids.dedup();
            pids
        };
        self.members.iter().map(|(process, waits)| (process.pid, peers(waits))).collect()
    }

    fn name_of(&self, pid: i32) -> String {
        let member = self.members.iter().find(|(process, _)| process.pid == pid);
        member.map_or_else(|| format!("process {pid}"), |(process, _)| name(process))
    }

    /// Returns sentences about what keeps the job from moving on.
    fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        for cycle in cycles(&self.edges()) {
            let names: Vec<String> =
                cycle.iter().chain(cycle.first()).map(|pid| self.name_of(*pid)).collect();
            found.push(format!("deadlock: {}", names.join(" waits for ")));
        }
        for (process, _) in &self.members {
            let waiting = self.waiting_for(process.pid);
            let blocks = match &waiting[..] {
                [] => String::new(),
                names => format!("; awaited by {}", texts::cut(&names.join(", "), 30)),
            };
            let text = match Activity::of(process, self.now) {
                Activity::Stopped => format!("is stopped{blocks}"),
                Activity::Ended => format!("has ended{blocks}"),
                Activity::Away(ns) if !waiting.is_empty() => format!(
                    "has made no call for {}, {}{blocks}",
                    duration(ns),
                    if process.state == 'R' { "running" } else { "not running" }
                ),
                _ => continue,
            };
            found.push(format!("{} (pid {}) {text}", name(process), process.pid));
        }
        found
    }

    fn waiting_for(&self, pid: i32) -> Vec<String> {
        let edges = self.edges();
        let waiting = edges.iter().filter(|(_, peers)| peers.contains(&pid));
        waiting.map(|(from, _)| self.name_of(*from)).collect()
    }

    pub(crate) fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .members
            .iter()
            .map(|(process, waits)| {
                let last = process.endpoints.iter().map(|endpoint| silence(endpoint, self.now));
                vec![
                    process.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
                    process.pid.to_string(),
                    Activity::of(process, self.now).name().to_owned(),
                    last.min().map_or_else(|| "-".to_owned(), duration),
                    self.awaited(waits),
                    texts::cut(&process.command, 15),
                ]
            })
            .collect();
        let head = ["RANK", "PID", "ACTIVITY", "LAST CALL", "WAITS FOR", "COMMAND"];
        let mut text = columns(&head, &rows);
        for (process, waits) in self.members.iter().filter(|(_, waits)| !waits.is_empty()) {
            for wait in waits.iter().take(SHOWN) {
                text.push_str(&texts::fold(&format!("{}: {}", name(process), describe(wait))));
            }
            if waits.len() > SHOWN {
                let more = waits.len() - SHOWN;
                let _ =
                    writeln!(text, "{}: {more} more: scifctl dump {}", name(process), process.pid);
            }
        }
        for finding in self.findings() {
            text.push_str(&texts::fold(&finding));
        }
        text
    }

    /// Returns the names of the processes that end the waits.
    fn awaited(&self, waits: &[Wait<'_>]) -> String {
        let mut names: Vec<String> = waits
            .iter()
            .map(|wait| match (wait.op.peer, wait.peer) {
                (None, _) => "any".to_owned(),
                (_, Some(process)) => {
                    process.rank.map_or_else(|| process.pid.to_string(), |rank| rank.to_string())
                }
                (Some(port), None) => port.to_string(),
            })
            .collect();
        names.sort();
        names.dedup();
        if names.is_empty() { "-".to_owned() } else { texts::cut(&names.join(","), 30) }
    }

    pub(crate) fn document(&self) -> Value {
        let process = |(process, waits): &(&ProcessReport, Vec<Wait<'_>>)| {
            json!({
                "pid": process.pid,
                "rank": process.rank,
                "job": process.job,
                "command": process.command,
                "activity": Activity::of(process, self.now).name(),
                "silent_ns": process.endpoints.iter().map(|e| silence(e, self.now)).min(),
                "waits": waits.iter().map(|wait| document::wait(wait)).collect::<Vec<_>>(),
            })
        };
        let cycles: Vec<Value> = cycles(&self.edges())
            .iter()
            .map(|cycle| {
                json!(cycle.iter().map(|pid| {
                    let member = self.members.iter().find(|(process, _)| process.pid == *pid);
                    json!({"pid": pid, "rank": member.and_then(|(process, _)| process.rank)})
                }).collect::<Vec<_>>())
            })
            .collect();
        json!({
            "processes": self.members.iter().map(process).collect::<Vec<_>>(),
            "cycles": cycles,
            "findings": self.findings(),
        })
    }
}

/// Returns the cycles of a graph, each once and from its smallest member on. Among cycles through
/// the same edge only the first is found.
fn cycles(edges: &BTreeMap<i32, Vec<i32>>) -> Vec<Vec<i32>> {
    let mut found: Vec<Vec<i32>> = Vec::new();
    let mut finished = Vec::new();
    for start in edges.keys() {
        // Depth-first, with the number of edges tried at each member of the path.
        let mut path: Vec<(i32, usize)> = vec![(*start, 0)];
        while let Some((at, tried)) = path.last_mut() {
            let next = edges.get(at).and_then(|peers| peers.get(*tried)).copied();
            *tried += 1;
            let Some(next) = next else {
                finished.extend(path.pop().map(|(at, _)| at));
                continue;
            };
            if let Some(first) = path.iter().position(|(at, _)| *at == next) {
                let mut cycle: Vec<i32> = path.iter().skip(first).map(|(at, _)| *at).collect();
                let least =
                    cycle.iter().enumerate().min_by_key(|(_, at)| **at).map_or(0, |(i, _)| i);
                cycle.rotate_left(least);
                if !found.contains(&cycle) {
                    found.push(cycle);
                }
            } else if !finished.contains(&next) {
                path.push((next, 0));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found_once() {
        let edges = |list: &[(i32, &[i32])]| {
            list.iter().map(|(from, to)| (*from, to.to_vec())).collect::<BTreeMap<_, _>>()
        };
        assert!(cycles(&edges(&[(1, &[2]), (2, &[3]), (3, &[])])).is_empty());
        assert_eq!(cycles(&edges(&[(1, &[2]), (2, &[1]), (3, &[1])])), [vec![1, 2]]);
        assert_eq!(cycles(&edges(&[(7, &[7])])), [vec![7]]);
        let two = cycles(&edges(&[(4, &[5]), (5, &[6]), (6, &[4]), (8, &[9]), (9, &[8, 4])]));
        assert_eq!(two, [vec![4, 5, 6], vec![8, 9]]);
    }
}
