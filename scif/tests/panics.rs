// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics of a library that has taken over the panic hook: one line each, few lines per second, no
//! backtrace.
//!
//! In a process of its own, since the hook is process-wide.

use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(record.args().to_string());
    }

    fn flush(&self) {}
}

#[test]
fn panics_are_logged_with_their_place_and_do_not_flood() {
    log::set_logger(&Lines).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    scif::logging::take_panics();
    let begin = std::time::Instant::now();
    for n in 0..1000 {
        assert!(catch_unwind(|| assert!(n > 1000, "number {n}")).is_err());
    }
    let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap();
    // Restores the hook, so that a failure below is visible.
    drop(std::panic::take_hook());
    let lines = LINES.lock().unwrap();
    let first = lines.first().unwrap();
    assert!(first.contains("scif/tests/panics.rs:") && first.ends_with("number 0"), "{first}");
    assert!(lines.len() <= 20 * (seconds + 1), "{lines:?}");
}
