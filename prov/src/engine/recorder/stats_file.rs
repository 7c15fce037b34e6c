// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! File of `FI_SCIF_STATS=json`: the traffic of all endpoints of the process. It is written when
//! the last open endpoint closes, and at the exit of the program if one is open.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scif::Maker;
use scif::sys::{file, fork};

use crate::base::env;
use crate::base::log::{Subsys, warn};
use crate::engine::recorder::traffic::EndpointTraffic;

/// Most closed endpoints of a report. A program that opens endpoints without end must not fill the
/// memory; the oldest are dropped, and the report tells their number.
const CLOSED_MAX: usize = 1024;

/// Endpoints of this process.
#[derive(Debug)]
struct Endpoints {
    /// Process that opened them.
    creator: Option<Maker>,
    list: Vec<Arc<Mutex<EndpointTraffic>>>,
    dropped: usize,
    /// Number of reports made, and number of the one in the file.
    made: u64,
    written: u64,
}

static ENDPOINTS: Mutex<Endpoints> = Mutex::new(Endpoints::of(None));

/// Report of the process at one time.
#[derive(Debug)]
struct ProcessReport {
    number: u64,
    path: PathBuf,
    text: String,
}

fn lock(traffic: &Mutex<EndpointTraffic>) -> MutexGuard<'_, EndpointTraffic> {
    traffic.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `use_them` with the endpoints. No forked child finds the lock taken.
fn with_endpoints<T>(use_them: impl FnOnce(&mut Endpoints) -> T) -> T {
    let _section = fork::section();
    use_them(&mut ENDPOINTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds an endpoint to the report. A forked child begins a report of its own.
pub(crate) fn enter(traffic: EndpointTraffic) -> Arc<Mutex<EndpointTraffic>> {
    with_endpoints(|all| {
        if all.creator.is_none() {
            // A forked child inherits the handler.
            scif::at_exit(at_exit);
        }
        if all.creator.is_none_or(Maker::is_ancestor) {
            *all = Endpoints::of(Some(Maker::here()));
        }
        if all.list.len() >= CLOSED_MAX {
            if let Some(at) = all.list.iter().position(|traffic| lock(traffic).is_closed()) {
                all.list.remove(at);
                all.dropped += 1;
            }
        }
        let traffic = Arc::new(Mutex::new(traffic));
        all.list.push(Arc::clone(&traffic));
        traffic
    })
}

/// Writes the file if no endpoint is open any more.
pub(crate) fn on_close() {
    let report = with_endpoints(|all| {
        all.list.iter().all(|traffic| lock(traffic).is_closed()).then(|| all.report())
    });
    if let Some(report) = report {
        report.save(|report| with_endpoints(|all| report.replace_file(all)));
    }
}

/// Writes the file at the exit of the program, unless all endpoints are closed. Waits for no lock,
/// since the thread that holds it may have ended.
fn at_exit() {
    let Ok(mut all) = ENDPOINTS.try_lock() else { return };
    let is_open = |traffic: &Arc<Mutex<EndpointTraffic>>| {
        traffic.try_lock().is_ok_and(|traffic| !traffic.is_closed())
    };
    let is_own = all.creator.is_some_and(|creator| !creator.is_ancestor());
    if is_own && all.list.iter().any(is_open) {
        all.report().save(|report| report.replace_file(&mut all));
    }
}

impl Endpoints {
    const fn of(creator: Option<Maker>) -> Endpoints {
        Endpoints { creator, list: Vec::new(), dropped: 0, made: 0, written: 0 }
    }

    /// Makes the report.
    fn report(&mut self) -> ProcessReport {
        let now = scif::now_ns();
        let json = |traffic: &Arc<Mutex<EndpointTraffic>>| Some(traffic.try_lock().ok()?.json(now));
        let endpoints: Vec<String> = self.list.iter().filter_map(json).collect();
        let rank = env::launcher().rank.map_or("null".to_owned(), |rank| rank.to_string());
        let pid = std::process::id();
        let text = format!(
            "{{\"format\":\"scif-stats\",\"version\":1,\"pid\":{pid},\"command\":{},\
             \"rank\":{rank},\"provider\":\"{}\",\"dropped\":{},\"endpoints\":[\n{}\n]}}\n",
            quoted(&command()),
            env!("CARGO_PKG_VERSION"),
            self.dropped,
            endpoints.join(",\n")
        );
        self.made += 1;
        let path = env::env().stats_dir.join(format!("scif-stats.{pid}.json"));
        ProcessReport { number: self.made, path, text }
    }
}

impl ProcessReport {
    /// Writes the report to a file beside, and calls `replace`, which gives that file its name.
    fn save(&self, replace: impl FnOnce(&ProcessReport) -> io::Result<()>) {
        let saved =
            scif::keep_errno(|| put(&self.beside(), &self.text).and_then(|()| replace(self)));
        if let Err(error) = saved {
            warn(
                Subsys::Core,
                format_args!(
                    "the counters cannot be written to {}: {error}. Set FI_SCIF_STATS_DIR to a \
                     directory that this user may write",
                    self.path.display()
                ),
            );
        }
    }

    /// Returns the name of the file while it is written. Two threads may write reports at once.
    fn beside(&self) -> PathBuf {
        self.path.with_extension(format!("json.{}.tmp", self.number))
    }

    /// Replaces the file of an earlier report by this one, unless a later one is there.
    fn replace_file(&self, all: &mut Endpoints) -> io::Result<()> {
        if all.written > self.number {
            return fs::remove_file(self.beside());
        }
        all.written = self.number;
        fs::rename(self.beside(), &self.path)
    }
}

/// Writes a file that only its user may read.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    File::from(file::create_own(&path)?).write_all(text.as_bytes())
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
    use scif::sys::children;

    use super::*;

    fn traffic() -> EndpointTraffic {
        EndpointTraffic::new(scif::PortId::new(0, 7), "rdm", 1)
    }

    /// Opens an endpoint in a forked child. Returns 0 if the report has it alone.
    fn enter_in_child() -> i32 {
        if ENDPOINTS.try_lock().is_err() {
            return 1;
        }
        enter(traffic());
        let has = with_endpoints(|all| (all.list.len(), all.creator));
        if has == (1, Some(Maker::here())) { 0 } else { 2 }
    }

    #[test]
    fn a_forked_child_finds_the_report_unlocked_and_begins_its_own() {
        // Registers the handlers of forks.
        let _node = crate::state::fabric::open_node().unwrap();
        lock(&enter(traffic())).close(2);
        let done = Mutex::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !*done.lock().unwrap() {
                    with_endpoints(|_| (0..1000).for_each(|_| std::hint::spin_loop()));
                }
            });
            let results = [(); 20].map(|()| children::in_child(enter_in_child).result());
            *done.lock().unwrap() = true;
            assert_eq!(results, [0; 20]);
        });
    }

    #[test]
    fn a_late_report_does_not_replace_a_later_one() {
        let dir = std::env::temp_dir().join(format!("scif-report-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let report = |number, text: &str| {
            let report = ProcessReport { number, path: dir.join("a.json"), text: text.to_owned() };
            put(&report.beside(), &report.text).unwrap();
            report
        };
        let mut all = Endpoints::of(None);
        let (first, second) = (report(1, "first"), report(2, "second"));
        second.replace_file(&mut all).unwrap();
        first.replace_file(&mut all).unwrap();
        assert_eq!(fs::read_to_string(dir.join("a.json")).unwrap(), "second");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_name_with_any_characters_is_a_json_string() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c?\"");
    }
}
