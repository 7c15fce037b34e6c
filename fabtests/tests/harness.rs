// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of the harness: it distinguishes a hang from a crash from a failure, names the rank, and
//! leaves no process running. It runs its own cases, which need a libfabric to load but no
//! provider.

use std::process::{Command, Output};

#[expect(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_process_end_is_distinguished() {
    let output = conformance(&["--harness-cases"]);
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    for expected in [
        "pass     harness/meets",
        "FAIL     harness/fails",
        "rank 1 fails on purpose",
        "FAIL     harness/crashes",
        "rank 1 died of signal 6 after: about to crash",
        "FAIL     harness/hangs",
        "no end after 1 s:",
        "rank 0 waits at a barrier",
        "its last step",
        "sleeping on purpose",
        "pass     harness/kills_and_respawns",
        "pass     harness/forks",
        "pass     harness/denies",
        "FAIL     harness/lacks",
        "notrun   harness/is_too_new (no library has it: since libfabric 999.0)",
        "6 passed, 4 failed",
    ] {
        assert!(said.contains(expected), "no {expected:?} in\n{said}");
    }
    assert!(!said.contains("left "), "{said}");
}

#[test]
fn nothing_run_is_no_success() {
    let output = conformance(&["--harness-cases", "meets", "--skip", "meets"]);
    assert!(!output.status.success());
    assert!(text(&output).contains("0 passed, 0 failed"), "{}", text(&output));
}

#[test]
fn the_name_of_no_case_is_no_success() {
    let output = conformance(&["--harness-cases", "meets", "no/such/case"]);
    assert!(!output.status.success());
    let said = text(&output);
    assert!(said.contains("no case is named no/such/case"), "{said}");
}

#[test]
fn a_filter_that_fits_and_passes_is_success() {
    let output = conformance(&["--harness-cases", "meets", "forks"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("2 passed, 0 failed"));
}

#[test]
fn names_are_unique_and_areas_are_many() {
    let output = conformance(&["--list"]);
    let said = text(&output);
    let mut names: Vec<&str> =
        said.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two cases have one name");
    assert!(count > 250, "{count} cases");
    let mut areas: Vec<&str> = names.iter().filter_map(|name| name.split('/').next()).collect();
    areas.dedup();
    assert!(areas.len() >= 20, "{areas:?}");
}
