// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Output: violations, counts, word frequencies, arrows.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use crate::arrows::End;
use crate::check::{self, Tables};
use crate::layers::spelled;
use crate::source::Source;
use crate::violation::{Violation, per_file, per_rule};
use crate::{cycles, words};

/// Prints violations, or with `count` their number per file, and the number per rule.
///
/// # Errors
/// Errors of the output.
pub(crate) fn violations(found: &[Violation], count: bool, out: &mut impl Write) -> io::Result<()> {
    for (rule, total) in per_rule(found) {
        if count {
            writeln!(out, "{rule}: {total}")?;
            for (path, number) in per_file(found, rule) {
                writeln!(out, "  {number:5} {path}")?;
            }
        }
    }
    if count {
        return Ok(());
    }
    for violation in found {
        writeln!(out, "{violation}")?;
    }
    for (rule, total) in per_rule(found) {
        writeln!(out, "{rule}: {total}")?;
    }
    Ok(())
}

/// Prints a line for each rule with its number of violations and its limit, then the sum; returns
/// whether no number is above its limit.
///
/// # Errors
/// Errors of the output.
pub(crate) fn limits(
    found: &[Violation],
    limits: &BTreeMap<String, usize>,
    out: &mut impl Write,
) -> io::Result<bool> {
    let (mut passed, mut failed) = (0, 0);
    for (rule, total) in per_rule(found) {
        let limit = limits.get(&rule.to_string()).copied().unwrap_or(0);
        let verdict = match total.cmp(&limit) {
            Ordering::Greater => "FAIL",
            Ordering::Equal => "ok  ",
            Ordering::Less => "ok, and rules/limits.txt can be lowered:",
        };
        *(if total > limit { &mut failed } else { &mut passed }) += 1;
        writeln!(out, "{verdict} {rule}: {total} of at most {limit}")?;
    }
    writeln!(out, "{passed} passed, {failed} failed")?;
    Ok(failed == 0)
}

/// Prints the frequency of words in comments of Rust files, in all and per top directory.
///
/// # Errors
/// Errors of the output.
pub(crate) fn words(sources: &[Source], out: &mut impl Write) -> io::Result<bool> {
    let (total, rows) = words::frequencies(sources.iter());
    let comments = words::doc_comments(sources);
    writeln!(out, "{total} words of comments, {comments} doc comments")?;
    for row in &rows {
        let verdict = if row.rate < row.limit { "" } else { "  above" };
        let (words, rate, limit) = (&row.words, row.rate, row.limit);
        writeln!(
            out,
            "{words:15} {rate:6.2} per 1,000, limit {limit:.1} ({}){verdict}",
            row.count
        )?;
    }
    let top = |source: &Source| source.path.split('/').next().unwrap_or("").to_owned();
    let directories: BTreeSet<String> =
        sources.iter().filter(|source| source.is_rust()).map(top).collect();
    for directory in directories {
        let (total, rows) =
            words::frequencies(sources.iter().filter(|source| top(source) == directory));
        let rates: Vec<String> =
            rows.iter().map(|row| format!("{} {:.2}", row.words, row.rate)).collect();
        writeln!(out, "  {directory:12} {total:7} words: {}", rates.join(", "))?;
    }
    Ok(rows.iter().all(|row| row.rate < row.limit))
}

/// Prints the arrows of the crate `name`: those of cycles first, then all.
///
/// # Errors
/// Errors of the output; a crate that the table has not.
pub(crate) fn arrows(
    sources: &[Source],
    tables: &Tables,
    name: &str,
    out: &mut impl Write,
) -> io::Result<bool> {
    let checked = check::crates(sources, tables, &mut Vec::new());
    let Some(checked) = checked.iter().find(|checked| checked.entry.name == name) else {
        return Err(io::Error::other(format!("no crate {name} in the table of layers")));
    };
    let (names, coverage) = (&checked.names, checked.coverage);
    for cycle in cycles::find(names, &checked.arrows) {
        writeln!(out, "cycle in {}: {}", spelled(&cycle.module), cycle.members.join(" "))?;
        for (from, to, arrow) in &cycle.arrows {
            let (path, line) = (names.path(arrow.from), arrow.line);
            let (name, uses, calls) = (&arrow.name, arrow.uses, arrow.calls);
            writeln!(out, "  {from} -> {to}: {path}:{line}: `{name}` {uses} uses, {calls} calls")?;
        }
    }
    for arrow in &checked.arrows {
        let to = match &arrow.to {
            End::Crate(name) => format!("crate {name}"),
            End::File(file) => names.files.get(file).map_or(String::new(), |m| spelled(m)),
        };
        let from = names.files.get(&arrow.from).map_or(String::new(), |m| spelled(m));
        let (path, line) = (names.path(arrow.from), arrow.line);
        let (name, uses, calls) = (&arrow.name, arrow.uses, arrow.calls);
        writeln!(out, "{from} => {to}: {path}:{line}: `{name}` {uses} uses, {calls} calls")?;
    }
    writeln!(
        out,
        "method calls: {} by type, {} by a unique name, {} not resolved",
        coverage.typed, coverage.by_name, coverage.unknown
    )?;
    Ok(true)
}
