// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks the whole tree for layers, cycles, names, doc comments and width.
//!
//! Tables are in `layers.txt`, `banned.txt` and `exceptions.txt` beside this package; README.md
//! there says what the rules see and what they do not.
#![forbid(unsafe_code)]

mod arrows;
mod banned;
mod check;
mod cycles;
mod extract;
mod facts;
mod infer;
mod layers;
mod lexer;
mod names;
mod origin;
mod report;
mod shape;
mod source;
mod tables;
mod types;
mod violation;
mod width;
mod words;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use check::Tables;

/// Exceptions file, from the root of the tree.
const EXCEPTIONS: &str = "rules/exceptions.txt";

/// Checks layers, cycles, names, doc comments and width of the whole tree.
#[derive(Parser)]
#[command(name = "rules")]
struct Options {
    /// Root of the tree
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Print the number of violations per rule and file only
    #[arg(long)]
    count: bool,
    /// Compare the number of violations per rule with rules/limits.txt
    #[arg(long)]
    limits: bool,
    /// Print the frequency of words in comments; fail above the limits
    #[arg(long)]
    words: bool,
    /// Print the arrows of one crate; those of its cycles are marked
    #[arg(long, value_name = "CRATE")]
    arrows: Option<String>,
    /// Check this rule only; may be repeated
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse(), &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Output into a closed pipe is no failure worth a message.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "rules: {error}");
            ExitCode::from(2)
        }
    }
}

/// Reads the tree and prints the wanted report; returns whether all rules hold.
fn run(options: &Options, out: &mut impl Write) -> io::Result<bool> {
    for rule in &options.rule {
        if !violation::RULES.iter().any(|(_, name)| name == rule) {
            return Err(io::Error::other(format!("no rule {rule}")));
        }
    }
    let root = &options.root;
    let tables = Tables {
        crates: table(root, "rules/layers.txt", tables::layers)?,
        banned: table(root, "rules/banned.txt", tables::banned)?,
    };
    let exceptions = table(root, EXCEPTIONS, tables::exceptions)?;
    let sources = source::read(root)?;
    if options.words {
        return report::words(&sources, out);
    }
    if let Some(name) = &options.arrows {
        return report::arrows(&sources, &tables, name, out);
    }
    let mut found = violation::apply(check::run(&sources, &tables), &exceptions, EXCEPTIONS);
    found.retain(|v| options.rule.is_empty() || options.rule.contains(&v.rule.to_string()));
    if options.limits {
        let limits = table(root, "rules/limits.txt", tables::limits)?;
        return report::limits(&found, &limits, out);
    }
    report::violations(&found, options.count, out)?;
    Ok(found.is_empty())
}

/// Reads one table file.
fn table<T>(root: &Path, file: &str, parse: fn(&str) -> Result<T, String>) -> io::Result<T> {
    let text = std::fs::read_to_string(root.join(file))
        .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
    parse(&text).map_err(|error| io::Error::other(format!("{file}:{error}")))
}
