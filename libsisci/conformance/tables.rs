// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tables of `libsisci/README.md`: functions and flags with their cases, and the excused ones.

use std::collections::BTreeSet;

const README: &str = include_str!("../README.md");
const MAP: &str = include_str!("../sisci.map");

/// Row of the table of functions.
pub(crate) struct Row {
    pub(crate) function: &'static str,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) case: &'static str,
}

/// Returns the cells of the rows of the table that begins with a line, without its first two lines.
fn table(first: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = README.split_once(first).unwrap();
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    rows.map(cells).collect()
}

/// Returns the names in code spans.
fn spans(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the rows of implemented functions.
pub(crate) fn implemented() -> Vec<Row> {
    let rows = table("| function | flags | case |").into_iter().filter_map(|cells| {
        let function = spans(cells[0]).pop()?;
        Some(Row { function, flags: spans(cells[1]), case: cells[2] })
    });
    rows.collect()
}

/// Returns the names of excused functions, sorted.
pub(crate) fn excused() -> Vec<String> {
    let rows = table("| functions | reason |");
    assert!(rows.iter().all(|cells| cells.len() == 2 && !cells[1].is_empty()), "a reason");
    let mut names: Vec<String> =
        rows.iter().flat_map(|cells| spans(cells[0])).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Returns the names of excused flags.
pub(crate) fn excused_flags() -> Vec<&'static str> {
    let rows = table("| flags | answer | reason |");
    assert!(rows.iter().all(|cells| cells.len() == 3 && !cells[2].is_empty()), "a reason");
    rows.iter().flat_map(|cells| spans(cells[0])).collect()
}

/// Returns the functions that the library exports.
pub(crate) fn exported() -> BTreeSet<&'static str> {
    let names = MAP.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let is_function = |name: &&str| {
        !name.starts_with('_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    names.filter(is_function).collect()
}

/// Whether the text has a sentence, over line ends.
pub(crate) fn says(sentence: &str) -> bool {
    let words: Vec<&str> = README.split_whitespace().collect();
    words.join(" ").contains(sentence)
}
