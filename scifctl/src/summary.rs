// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Summary of registered windows by endpoint or by process, so that a job fits a screen.
//!
//! A job registers thousands of windows; `windows --all` lists them one by one.

use scif_api::introspect::{Endpoint, Process, Registered};

use crate::table::{bytes, columns, own, peer};

/// Number of rows up to which each endpoint has its own row. With more endpoints, there is one row
/// per process.
const MAX_ENDPOINT_ROWS: usize = 32;

/// Totals over a set of windows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Totals {
    windows: u64,
    bytes: u64,
    writable: u64,
    mappable: u64,
}

impl Totals {
    fn of<'a>(windows: impl Iterator<Item = &'a Registered>) -> Totals {
        windows.fold(Totals::default(), |sum, window| Totals {
            windows: sum.windows + 1,
            bytes: sum.bytes.saturating_add(window.len),
            writable: sum.writable + u64::from(window.write),
            mappable: sum.mappable + u64::from(window.mappable),
        })
    }

    fn cells(self) -> [String; 4] {
        [
            self.windows.to_string(),
            bytes(self.bytes),
            self.writable.to_string(),
            self.mappable.to_string(),
        ]
    }
}

fn endpoint_totals(endpoint: &Endpoint) -> Totals {
    Totals::of(endpoint.windows.iter())
}

fn process_totals(process: &Process) -> Totals {
    Totals::of(process.endpoints.iter().flat_map(|endpoint| &endpoint.windows))
}

fn row(names: &[String], totals: Totals) -> Vec<String> {
    names.iter().cloned().chain(totals.cells()).collect()
}

/// Returns a table with one row for each endpoint that has windows, and a last line with the
/// totals. If these rows are too many, there is one row for each process instead.
pub(crate) fn of_windows(processes: &[Process]) -> String {
    let with_windows = |process: &Process| process_totals(process).windows > 0;
    let endpoints: Vec<(&Process, &Endpoint)> = processes
        .iter()
        .flat_map(|process| process.endpoints.iter().map(move |endpoint| (process, endpoint)))
        .filter(|(_, endpoint)| !endpoint.windows.is_empty())
        .collect();
    let table = if endpoints.len() <= MAX_ENDPOINT_ROWS {
        let rows: Vec<Vec<String>> = endpoints
            .iter()
            .map(|(process, endpoint)| {
                let names = [process.pid.to_string(), own(endpoint), peer(endpoint).0];
                row(&names, endpoint_totals(endpoint))
            })
            .collect();
        columns(&["PID", "OWN", "PEER", "WINDOWS", "BYTES", "WRITABLE", "MAPPABLE"], &rows)
    } else {
        let rows: Vec<Vec<String>> = processes
            .iter()
            .filter(|process| with_windows(process))
            .map(|process| {
                let used = process.endpoints.iter().filter(|e| !e.windows.is_empty());
                let names =
                    [process.pid.to_string(), process.node.to_string(), used.count().to_string()];
                row(&names, process_totals(process))
            })
            .collect();
        columns(&["PID", "NODE", "ENDPOINTS", "WINDOWS", "BYTES", "WRITABLE", "MAPPABLE"], &rows)
    };
    let all = Totals::of(endpoints.iter().flat_map(|(_, endpoint)| &endpoint.windows));
    format!(
        "{table}{} windows, {}; 'scifctl windows --all' lists each\n",
        all.windows,
        bytes(all.bytes)
    )
}

#[cfg(test)]
mod tests {
    use scif::PortId;

    use super::*;

    /// Makes a process with `endpoints` endpoints that have `windows` windows of 4 KiB each, every
    /// other one mappable.
    fn process(pid: i32, endpoints: u16, windows: u64) -> Process {
        let window = |i: u64| Registered {
            offset: i * 4096,
            len: 4096,
            read: true,
            write: true,
            mappable: i % 2 == 0,
        };
        let endpoint = |port: u16| Endpoint {
            own: PortId::new(1, port),
            windows: (0..windows).map(window).collect(),
            ..Endpoint::default()
        };
        Process {
            pid,
            node: 1,
            endpoints: (1..=endpoints).map(endpoint).collect(),
            ..Process::default()
        }
    }

    #[test]
    fn each_endpoint_with_windows_has_a_row() {
        let text = of_windows(&[process(7, 1, 0), process(8, 2, 4)]);
        assert_eq!(text.lines().count(), 4, "{text}");
        let expected = ["8", "1:1", "-", "4", "16K", "4", "2"];
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, expected);
        assert!(text.ends_with("8 windows, 32K; 'scifctl windows --all' lists each\n"));
    }

    #[test]
    fn a_job_of_four_ranks_fits_forty_lines() {
        for endpoints in [3, 8, 9, 200] {
            let job: Vec<Process> =
                (0..4).map(|rank| process(100 + rank, endpoints, 120)).collect();
            let lines = of_windows(&job).lines().count();
            assert!(lines <= 40, "{endpoints} endpoints a rank: {lines} lines");
        }
    }

    #[test]
    fn no_windows_are_a_total_of_none() {
        let text = of_windows(&[]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("0 windows, 0"));
    }
}
