// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of the table of visible behaviour (`rows.txt`) against the cases and the README; and of
//! the answers in which `libscifdev.so` differs from a driver, against its README.

use crate::driver_rows;

/// Table with one row a line: `BEHAVIOUR | CASE, CASE` or `BEHAVIOUR | - REASON`.
const TABLE: &str = include_str!("rows.txt");
/// Prefix of cases that compare a device with the measured answers of a driver.
const DRIVER: &str = "driver/";
const README: &str = include_str!("../README.md");
/// Document of the answers in which `libscifdev.so` differs from a driver.
const DEVICE_README: &str = include_str!("../../scifdev/README.md");

/// Numbers of rows with cases, and of rows with a reason for none.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Count {
    pub(crate) tested: usize,
    /// Rows whose cases all need a device.
    pub(crate) of_a_device: usize,
    pub(crate) excused: usize,
    /// Errors in the table.
    pub(crate) wrong: Vec<String>,
}

/// Counts the rows; `cases` are the existing names.
pub(crate) fn count(cases: &[String]) -> Count {
    let mut count = Count::default();
    let rows = TABLE
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with('['));
    let (mut seen, mut named) = (Vec::new(), Vec::new());
    for row in rows {
        let Some((subject, by)) = row.split_once(" | ") else {
            count.wrong.push(format!("no row: {row}"));
            continue;
        };
        if seen.contains(&subject) {
            count.wrong.push(format!("twice: {subject}"));
        }
        seen.push(subject);
        if let Some(reason) = by.strip_prefix("- ") {
            count.excused += 1;
            // Lines of the README are wrapped.
            let said = README.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = format!("* {subject}: {reason}.");
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
                count.wrong.push(format!("no such case: {name}, for: {subject}"));
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
                row.name, answer.subject, answer.driver, instead.said, instead.why
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
