// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The table of what can be seen of each call (`rows.txt`), held against the cases there are and the README.

/// The table: a row each line, `WHAT | CASE, CASE` or `WHAT | - REASON`.
const TABLE: &str = include_str!("rows.txt");
const README: &str = include_str!("../README.md");

/// How many rows have cases, and how many a reason for having none.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Count {
    pub(crate) tested: usize,
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
    let mut seen = Vec::new();
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
        count.tested += 1;
        for name in by.split(", ") {
            if !cases.iter().any(|case| case == name) {
                count.wrong.push(format!("no such case: {name}, for: {what}"));
            }
        }
    }
    count
}
