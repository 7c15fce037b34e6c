// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rules about types: `impl-files`, `type-name`, `fields`; and `unit-tests` of files.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::ItemKind;
use crate::names::{Crate, ItemId};
use crate::source::Source;
use crate::violation::{Rule, Violation};

/// Number of files that may hold `impl` blocks of one type.
const IMPL_FILES_MAX: usize = 3;

/// Number of fields of a struct of the provider above which it is split.
const FIELDS_MAX: usize = 16;

/// Directory whose structs are limited to `FIELDS_MAX`.
const FIELDS_BELOW: &str = "prov/";

/// Directories whose files need unit tests of their own.
const TESTED: [&str; 2] = ["/tables/", "/protocols/"];

/// Checks that `impl` blocks of one type, tests aside, stand in few files.
pub(crate) fn impl_files(names: &Crate<'_>) -> Vec<Violation> {
    let mut files: BTreeMap<ItemId, BTreeSet<usize>> = BTreeMap::new();
    for &file in names.files.keys().filter(|file| !names.test_files.contains(file)) {
        for block in names.facts(file).impls.iter().filter(|block| !block.test) {
            let module = names.module_of(file, &block.scope);
            if let Some(id) = names.type_item(&module, &block.ty) {
                files.entry(id).or_default().insert(file);
            }
        }
    }
    let mut found = Vec::new();
    for (id, files) in files.into_iter().filter(|(_, files)| files.len() > IMPL_FILES_MAX) {
        let Some(item) = names.item(id) else { continue };
        let paths: Vec<&str> = files.iter().map(|&file| names.path(file)).collect();
        let text = format!(
            "impl of {} in {} files, at most {IMPL_FILES_MAX}: {}",
            item.name,
            files.len(),
            paths.join(" ")
        );
        found.push(Violation::new(Rule::ImplFiles, names.path(id.0), item.line, &item.name, text));
    }
    found
}

/// Checks that no two types of a crate, tests included, have one name.
pub(crate) fn type_names(names: &Crate<'_>) -> Vec<Violation> {
    let mut first: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut found = Vec::new();
    for &file in names.files.keys() {
        for item in names.facts(file).items.iter().filter(|item| item.kind.is_type()) {
            let (other, line) = *first.entry(&item.name).or_insert((file, item.line));
            if (other, line) != (file, item.line) {
                let text = format!("type {} is also at {}:{line}", item.name, names.path(other));
                let path = names.path(file);
                found.push(Violation::new(Rule::TypeName, path, item.line, &item.name, text));
            }
        }
    }
    found
}

/// Checks the number of fields of structs of the provider.
pub(crate) fn fields(source: &Source) -> Vec<Violation> {
    let limited = source.path.starts_with(FIELDS_BELOW);
    let large = |item: &&crate::facts::Item| {
        limited && item.kind == ItemKind::Struct && item.fields.len() > FIELDS_MAX
    };
    let violation = |item: &crate::facts::Item| {
        let text = format!("{} has {} fields, at most {FIELDS_MAX}", item.name, item.fields.len());
        Violation::new(Rule::Fields, &source.path, item.line, &item.name, text)
    };
    source.facts.items.iter().filter(large).map(violation).collect()
}

/// Checks that a file in a directory of `TESTED` has unit tests.
pub(crate) fn unit_tests(source: &Source) -> Option<Violation> {
    let is_tested = TESTED.iter().any(|directory| source.path.contains(directory))
        && !source.path.ends_with("/mod.rs")
        && !source.path.ends_with("/tests.rs")
        && source.path.starts_with(FIELDS_BELOW);
    (is_tested && !source.facts.has_tests).then(|| {
        let text = "no unit tests in this file".to_owned();
        Violation::new(Rule::UnitTests, &source.path, 1, "", text)
    })
}
