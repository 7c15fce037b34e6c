// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Runs all rules on a tree.

use std::collections::{BTreeMap, BTreeSet};

use crate::arrows::{self, Arrow, Coverage};
use crate::names::Crate;
use crate::source::Source;
use crate::tables::{Banned, CrateEntry};
use crate::violation::{Rule, Violation};
use crate::{banned, cycles, layers, shape, width, words};

/// Tables that the rules read.
#[derive(Default)]
pub(crate) struct Tables {
    pub crates: Vec<CrateEntry>,
    pub banned: Vec<Banned>,
}

/// Crate of the table with its arrows.
pub(crate) struct Checked<'a> {
    pub entry: &'a CrateEntry,
    pub names: Crate<'a>,
    pub arrows: Vec<Arrow>,
    pub coverage: Coverage,
}

/// Reads the modules and arrows of each crate; a root that is missing is a violation.
pub(crate) fn crates<'a>(
    sources: &'a [Source],
    tables: &'a Tables,
    found: &mut Vec<Violation>,
) -> Vec<Checked<'a>> {
    let others: Vec<String> = tables.crates.iter().map(|entry| entry.name.clone()).collect();
    let mut checked = Vec::new();
    for entry in &tables.crates {
        let root = sources.binary_search_by(|source| source.path.cmp(&entry.root));
        let Ok(root) = root else {
            let text = format!("the root of {} in the table is missing", entry.name);
            found.push(Violation::new(Rule::Tree, &entry.root, 1, &entry.name, text));
            continue;
        };
        let names = Crate::new(&entry.name, sources, root, &others);
        let (arrows, coverage) = arrows::of(&names);
        checked.push(Checked { entry, names, arrows, coverage });
    }
    checked
}

/// Returns all violations of the tree, before exceptions.
pub(crate) fn run(sources: &[Source], tables: &Tables) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in sources {
        found.append(&mut width::check(source));
        if let Some(error) = &source.facts.error {
            let text = format!("not parsed: {error}");
            found.push(Violation::new(Rule::Tree, &source.path, 1, "", text));
        }
        found.append(&mut words::doc_words(source));
        found.append(&mut banned::check(source, &tables.banned));
        found.append(&mut shape::fields(source));
        found.extend(shape::unit_tests(source));
    }
    let levels: BTreeMap<&str, u32> =
        tables.crates.iter().map(|entry| (entry.name.as_str(), entry.layer)).collect();
    let mut reached = BTreeSet::new();
    for checked in crates(sources, tables, &mut found) {
        let Checked { entry, names, arrows, .. } = &checked;
        reached.extend(names.files.keys().copied());
        for (file, line, name) in &names.missing {
            let text = format!("mod {name} has no file");
            found.push(Violation::new(Rule::Tree, names.path(*file), *line, name, text));
        }
        found.append(&mut layers::check(entry, names, arrows, &levels));
        found.append(&mut cycles::check(names, arrows));
        found.append(&mut shape::impl_files(names));
        found.append(&mut shape::type_names(names));
    }
    for (file, source) in sources.iter().enumerate() {
        if source.is_rust() && !reached.contains(&file) {
            let text = "in no crate of the table of layers".to_owned();
            found.push(Violation::new(Rule::Tree, &source.path, 1, "", text));
        }
    }
    found.sort();
    found.dedup();
    found
}
