// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Live view of rates: one row for each process, with its busiest and its most silent peer.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use scif::monitor::report::{self, EndpointReport, PeerReport, ProcessReport};
use serde_json::{Value, json};

use super::activity::Activity;
use super::texts;
use super::waits::owner;
use super::watch::{processes, repeat};
use crate::args::WatchOptions;
use crate::failure::Result;
use crate::table::{bytes, columns};

/// Interval between the two readings of a single display.
const FIRST: Duration = Duration::from_millis(200);

/// State at one time.
struct Reading {
    all: Vec<ProcessReport>,
    at: Instant,
}

impl Reading {
    fn now() -> Result<Reading> {
        // A process that has ended has no rates.
        let mut all = processes()?;
        all.retain(|process| process.state != report::ENDED);
        Ok(Reading { all, at: Instant::now() })
    }
}

/// Paths of the provider, as counters name them.
const PATHS: [(&str, &str); 5] = [
    ("inline", "inline_bytes"),
    ("ring", "ring_bytes"),
    ("both_sides", "coop_copy_bytes"),
    ("process_vm", "process_vm_bytes"),
    ("mapped", "mapped_bytes"),
];

/// Shows the rates of all processes, in place.
pub(crate) fn top(options: &WatchOptions) -> Result<()> {
    let mut before = Reading::now()?;
    sleep(FIRST);
    repeat(options, || {
        let now = Reading::now()?;
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-6);
        let rows: Vec<Row> =
            now.all.iter().map(|process| Row::of(process, &before, &now, seconds)).collect();
        before = now;
        Ok((text(&rows), json!({"processes": rows.iter().map(Row::document).collect::<Vec<_>>()})))
    })
}

/// Rates of a process.
struct Row {
    pid: i32,
    rank: Option<u64>,
    activity: &'static str,
    sent: u64,
    received: u64,
    sent_bytes: u64,
    received_bytes: u64,
    rma: u64,
    path: &'static str,
    busiest: Option<String>,
    most_silent: Option<String>,
}

fn sum(process: &ProcessReport, counter: &str) -> u64 {
    let values = process.endpoints.iter().map(|endpoint| endpoint.counter(counter));
    values.fold(0, u64::wrapping_add)
}

impl Row {
    fn of(process: &ProcessReport, before: &Reading, now: &Reading, seconds: f64) -> Row {
        let old = before.all.iter().find(|old| old.pid == process.pid);
        let grown = |counter: &str| {
            let before = old.map_or(0, |old| sum(old, counter));
            sum(process, counter).saturating_sub(before)
        };
        let rate = |counter: &str| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rate for people"
            )]
            let per_second = (grown(counter) as f64 / seconds) as u64;
            per_second
        };
        let path = PATHS.iter().map(|(path, counter)| (grown(counter), *path)).max();
        let (busiest, most_silent) = extremes(process, old, &now.all);
        Row {
            pid: process.pid,
            rank: process.rank,
            activity: Activity::of(process, scif::now_ns()).name(),
            sent: rate("sent_ops"),
            received: rate("received_ops"),
            sent_bytes: rate("sent_bytes"),
            received_bytes: rate("received_bytes"),
            rma: rate("rma_ops"),
            path: path.filter(|(grown, _)| *grown > 0).map_or("-", |(_, path)| path),
            busiest,
            most_silent,
        }
    }

    fn document(&self) -> Value {
        json!({
            "pid": self.pid,
            "rank": self.rank,
            "activity": self.activity,
            "messages_sent_per_second": self.sent,
            "messages_received_per_second": self.received,
            "bytes_sent_per_second": self.sent_bytes,
            "bytes_received_per_second": self.received_bytes,
            "rma_per_second": self.rma,
            "path": self.path,
            "busiest_peer": self.busiest,
            "most_silent_peer": self.most_silent,
        })
    }
}

/// Returns the peers with most and with fewest records since the state `old`.
fn extremes(
    process: &ProcessReport,
    old: Option<&ProcessReport>,
    all: &[ProcessReport],
) -> (Option<String>, Option<String>) {
    let key = |endpoint: &EndpointReport, peer: &PeerReport| (endpoint.number, peer.port);
    let records = |peer: &PeerReport| peer.sent.wrapping_add(peer.received);
    let before: BTreeMap<_, u64> = old
        .iter()
        .flat_map(|old| &old.endpoints)
        .flat_map(|endpoint| endpoint.peers.iter().map(move |peer| (endpoint, peer)))
        .map(|(endpoint, peer)| (key(endpoint, peer), records(peer)))
        .collect();
    let mut moved: Vec<(u64, String)> = process
        .endpoints
        .iter()
        .flat_map(|endpoint| endpoint.peers.iter().map(move |peer| (endpoint, peer)))
        .map(|(endpoint, peer)| {
            let since = before.get(&key(endpoint, peer)).copied().unwrap_or(0);
            let name = owner(all, endpoint, peer.port).and_then(|process| process.rank);
            let name = name.map_or_else(|| peer.port.to_string(), |rank| rank.to_string());
            (records(peer).saturating_sub(since), name)
        })
        .collect();
    moved.sort_by_key(|(records, _)| *records);
    let busiest = moved.last().filter(|(records, _)| *records > 0);
    (busiest.map(|(_, name)| name.clone()), moved.first().map(|(_, name)| name.clone()))
}

fn text(rows: &[Row]) -> String {
    let dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.pid.to_string(),
                row.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
                row.activity.to_owned(),
                row.sent.to_string(),
                row.received.to_string(),
                bytes(row.sent_bytes),
                bytes(row.received_bytes),
                row.rma.to_string(),
                row.path.to_owned(),
                texts::cut(&dash(&row.busiest), 8),
                texts::cut(&dash(&row.most_silent), 8),
            ]
        })
        .collect();
    let head = [
        "PID", "RANK", "ACTIVITY", "SENT/s", "RECVD/s", "OUT B/s", "IN B/s", "RMA/s", "PATH",
        "BUSIEST", "SILENT",
    ];
    columns(&head, &rows)
}
