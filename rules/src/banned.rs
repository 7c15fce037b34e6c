// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rule `banned-word`: names that the glossary replaces, where they are declared.

use std::collections::BTreeSet;

use crate::source::Source;
use crate::tables::Banned;
use crate::violation::{Rule, Violation};

/// Checks the names that a file declares; each name counts once per file.
pub(crate) fn check(source: &Source, table: &[Banned]) -> Vec<Violation> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for declared in &source.facts.declared {
        let banned = table
            .iter()
            .find(|entry| source.path.starts_with(&entry.scope) && matches(entry, &declared.name));
        if let Some(entry) = banned {
            if seen.insert(&declared.name) {
                let text = format!("`{}`: the glossary has {}", declared.name, entry.instead);
                let (path, line) = (&source.path, declared.line);
                found.push(Violation::new(Rule::BannedWord, path, line, &declared.name, text));
            }
        }
    }
    found
}

fn matches(entry: &Banned, name: &str) -> bool {
    match entry.name.strip_prefix('*').and_then(|name| name.strip_suffix('*')) {
        Some(word) => words(name).any(|part| part == word),
        None => entry.name == name,
    }
}

/// Words of an identifier in lower case, of snake case and of camel case.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::new();
    let mut lower = false;
    for c in name.chars() {
        if c == '_' || (lower && c.is_uppercase()) {
            spaced.push(' ');
        }
        lower = c.is_lowercase() || c.is_numeric();
        spaced.extend(c.to_lowercase());
    }
    let words: Vec<String> =
        spaced.split([' ', '_']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str, path: &str) -> Vec<String> {
        let entry = |scope: &str, name: &str| Banned {
            scope: scope.to_owned(),
            name: name.to_owned(),
            instead: "x".to_owned(),
        };
        let table = [entry("prov/", "Deliver"), entry("", "*nobody*"), entry("", "take_quick")];
        let found = check(&Source::new(path, code), &table);
        found.into_iter().map(|violation| violation.key).collect()
    }

    #[test]
    fn whole_names_and_words_inside() {
        let code = "struct Deliver; fn take_quick() { let for_nobody = 1; } enum E { NobodyElse }";
        let names = ["Deliver", "take_quick", "for_nobody", "NobodyElse"];
        assert_eq!(found(code, "prov/a.rs"), names);
    }

    #[test]
    fn a_scope_limits_an_entry() {
        assert!(found("struct Deliver;", "scif/a.rs").is_empty());
    }

    #[test]
    fn uses_of_foreign_names_are_no_declarations() {
        assert!(found("fn f() { other::take_quick(); }", "prov/a.rs").is_empty());
    }
}
