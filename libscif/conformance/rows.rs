// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The table of what can be seen of each call (`rows.txt`), held against the cases there are and the README;
//! and the answers of `libscifdev.so` that are none of a driver, held against its own.

use crate::driver_rows;

/// The table: a row each line, `WHAT | CASE, CASE` or `WHAT | - REASON`.
const TABLE: &str = include_str!("rows.txt");
/// How the names of cases begin that ask a device for what a driver was measured to answer.
const DRIVER: &str = "driver/";
const README: &str = include_str!("../README.md");
/// Where it stands what `libscifdev.so` answers otherwise than a driver.
const DEVICE_README: &str = include_str!("../../scifdev/README.md");

/// How many rows have cases, and how many a reason for having none.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Count {
    pub(crate) tested: usize,
    /// All of whose cases need a device.
    pub(crate) of_a_device: usize,
    pub(crate) excused: usize,
    /// What is wrong with the table.
    pub(crate) wrong: Vec<String>,
}

/// Counts the rows; `cases` are the names there are.
pub(crate) fn count(cases: &[String]) -> Count {
    let mut count = Count::default();
    let rows = TABLE
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with('['));
    let (mut seen, mut named) = (Vec::new(), Vec::new());
    for row in rows {
        let Some((what, by)) = row.split_once(" | ") else {
            count.wrong.push(format!("no row: {row}"));
            continue;
        };
        if seen.contains(&what) {
            count.wrong.push(format!("twice: {what}"));
        }
        seen.push(what);
        if let Some(reason) = by.strip_prefix("- ") {
            count.excused += 1;
            // Lines of the README are broken where they are full.
            let said = README.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = format!("* {what}: {reason}.");
            if !said.contains(&line) {
                count.wrong.push(format!("not in the README: {line}"));
            }
            continue;
        }
        let by: Vec<&str> = by.split(", ").collect();
        if by.iter().all(|name| name.starts_with(DRIVER)) {
            count.of_a_device += 1;
        } else {
            count.tested += 1;
        }
        for name in by {
            if !cases.iter().any(|case| case == name) {
                count.wrong.push(format!("no such case: {name}, for: {what}"));
            }
            named.push(name);
        }
    }
    for case in cases.iter().filter(|case| case.starts_with(DRIVER)) {
        if !named.contains(&case.as_str()) {
            count.wrong.push(format!("in no row: {case}"));
        }
    }
    for row in driver_rows::rows() {
        for (answer, instead) in row.otherwise() {
            let line = format!(
                "| `{}`: {} | {} | {} | {} |",
                row.name, answer.what, answer.driver, instead.said, instead.why
            );
            if !DEVICE_README.lines().any(|said| said == line) {
                count.wrong.push(format!("not in scifdev/README.md: {line}"));
            }
        }
    }
    let lines = DEVICE_README
        .lines()
        .filter(|line| line.starts_with("| `") && line.contains("`: "))
        .count();
    let otherwise: usize = driver_rows::rows().map(|row| row.otherwise().count()).sum();
    if lines != otherwise {
        let more = format!("scifdev/README.md has {lines} answers of its own, of {otherwise}");
        count.wrong.push(more);
    }
    count
}
