// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! File of `FI_SCIF_STATS=json`: the traffic of all endpoints of the process. It is written when
//! the last open endpoint closes, and at the exit of the program if one is open.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scif::Maker;

use crate::base::env;
use crate::base::log::{Subsys, warn};
use crate::engine::recorder::traffic::EndpointTraffic;

/// Most closed endpoints of a report. A program that opens endpoints without end must not fill the
/// memory; the oldest are dropped, and the report tells their number.
const CLOSED_MAX: usize = 1024;

/// Endpoints of this process.
#[derive(Debug, Default)]
struct Endpoints {
    /// Process that opened them. A forked child reports nothing.
    creator: Option<Maker>,
    list: Vec<Arc<Mutex<EndpointTraffic>>>,
    dropped: usize,
}

static ENDPOINTS: Mutex<Endpoints> =
    Mutex::new(Endpoints { creator: None, list: Vec::new(), dropped: 0 });

fn lock(traffic: &Mutex<EndpointTraffic>) -> MutexGuard<'_, EndpointTraffic> {
    traffic.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an endpoint to the report.
pub(crate) fn enter(traffic: EndpointTraffic) -> Arc<Mutex<EndpointTraffic>> {
    let mut all = ENDPOINTS.lock().unwrap_or_else(PoisonError::into_inner);
    if all.creator.is_none() {
        all.creator = Some(Maker::here());
        scif::at_exit(at_exit);
    }
    if all.list.len() >= CLOSED_MAX
        && let Some(at) = all.list.iter().position(|traffic| lock(traffic).is_closed())
    {
        all.list.remove(at);
        all.dropped += 1;
    }
    let traffic = Arc::new(Mutex::new(traffic));
    all.list.push(Arc::clone(&traffic));
    traffic
}

/// Writes the file if no endpoint is open any more.
pub(crate) fn on_close() {
    let all = ENDPOINTS.lock().unwrap_or_else(PoisonError::into_inner);
    if all.list.iter().all(|traffic| lock(traffic).is_closed()) {
        write(&all);
    }
}

/// Writes the file at the exit of the program, unless all endpoints are closed. Waits for no lock,
/// since the thread that holds it may have ended.
fn at_exit() {
    let Ok(all) = ENDPOINTS.try_lock() else { return };
    let is_open = |traffic: &Arc<Mutex<EndpointTraffic>>| {
        traffic.try_lock().is_ok_and(|traffic| !traffic.is_closed())
    };
    if all.list.iter().any(is_open) {
        write(&all);
    }
}

/// Writes the file, in the process that opened the endpoints only.
fn write(all: &Endpoints) {
    if all.creator.is_none_or(Maker::is_ancestor) {
        return;
    }
    let now = scif::now_ns();
    let endpoints: Vec<String> =
        all.list.iter().filter_map(|traffic| Some(traffic.try_lock().ok()?.json(now))).collect();
    let rank = env::launcher().rank.map_or("null".to_owned(), |rank| rank.to_string());
    let text = format!(
        "{{\"format\":\"scif-stats\",\"version\":1,\"pid\":{},\"command\":{},\"rank\":{rank},\
         \"provider\":\"{}\",\"dropped\":{},\"endpoints\":[\n{}\n]}}\n",
        std::process::id(),
        quoted(&command()),
        env!("CARGO_PKG_VERSION"),
        all.dropped,
        endpoints.join(",\n")
    );
    let path = env::env().stats_dir.join(format!("scif-stats.{}.json", std::process::id()));
    scif::keep_errno(|| {
        if let Err(error) = put(&path, &text) {
            warn(
                Subsys::Core,
                format_args!(
                    "the counters cannot be written to {}: {error}. Set FI_SCIF_STATS_DIR to a \
                     directory that this user may write",
                    path.display()
                ),
            );
        }
    });
}

/// Writes a file that only its user may read.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// Returns the name of the program.
pub(super) fn command() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned()
}

/// Returns a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push('?'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_any_characters_is_a_json_string() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c?\"");
    }
}
