// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A violation, the exceptions that excuse it, and counts per rule and file.

use std::collections::BTreeMap;
use std::fmt;

/// Number of exceptions above which the exceptions themselves are a violation.
pub(crate) const EXCEPTIONS_MAX: usize = 10;

/// Rule that a violation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    Tree,
    Layer,
    Cycle,
    ImplFiles,
    TypeName,
    DocWord,
    BannedWord,
    Width,
    Fields,
    UnitTests,
    Exception,
}

/// Rules with the names by which output and exceptions call them.
pub(crate) const RULES: [(Rule, &str); 11] = [
    (Rule::Tree, "tree"),
    (Rule::Layer, "layer"),
    (Rule::Cycle, "cycle"),
    (Rule::ImplFiles, "impl-files"),
    (Rule::TypeName, "type-name"),
    (Rule::DocWord, "doc-word"),
    (Rule::BannedWord, "banned-word"),
    (Rule::Width, "width"),
    (Rule::Fields, "fields"),
    (Rule::UnitTests, "unit-tests"),
    (Rule::Exception, "exception"),
];

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = RULES.iter().find(|(rule, _)| rule == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// One violation: a line of the output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    pub path: String,
    pub line: usize,
    pub rule: Rule,
    /// Name by which an exception excuses this violation: a type, a module, a word.
    pub key: String,
    pub text: String,
}

impl Violation {
    pub(crate) fn new(rule: Rule, path: &str, line: usize, key: &str, text: String) -> Self {
        Self { path: path.to_owned(), line, rule, key: key.to_owned(), text }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

/// One line of the exceptions file: `RULE PATH KEY | REASON`.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    pub line: usize,
    pub rule: String,
    pub path: String,
    /// Key of the violation, or `*` for each of the file.
    pub key: String,
    pub reason: String,
}

impl Exception {
    fn excuses(&self, violation: &Violation) -> bool {
        self.rule == violation.rule.to_string()
            && self.path == violation.path
            && (self.key == "*" || self.key == violation.key)
    }
}

/// Removes excused violations; adds one for each exception that is unused or without reason, and
/// one if there are too many.
pub(crate) fn apply(found: Vec<Violation>, exceptions: &[Exception], file: &str) -> Vec<Violation> {
    let fault = |line, text| Violation::new(Rule::Exception, file, line, "", text);
    let mut faults = Vec::new();
    for exception in exceptions {
        if exception.reason.is_empty() {
            faults.push(fault(exception.line, "exception without a reason".to_owned()));
        }
        if !found.iter().any(|violation| exception.excuses(violation)) {
            let text = format!("excuses nothing: {} {}", exception.rule, exception.path);
            faults.push(fault(exception.line, text));
        }
    }
    if exceptions.len() > EXCEPTIONS_MAX {
        let text = format!("{} exceptions, at most {EXCEPTIONS_MAX}", exceptions.len());
        faults.push(fault(1, text));
    }
    let excused = |violation: &Violation| exceptions.iter().any(|e| e.excuses(violation));
    let mut left: Vec<_> = found.into_iter().filter(|violation| !excused(violation)).collect();
    left.append(&mut faults);
    left.sort();
    left
}

/// Returns the number of violations per rule, with a zero for each rule that holds.
pub(crate) fn per_rule(violations: &[Violation]) -> Vec<(Rule, usize)> {
    let count = |rule| violations.iter().filter(|violation| violation.rule == rule).count();
    RULES.iter().map(|&(rule, _)| (rule, count(rule))).collect()
}

/// Returns files with violations of `rule` and their numbers, most first.
pub(crate) fn per_file(violations: &[Violation], rule: Rule) -> Vec<(&str, usize)> {
    let mut counts = BTreeMap::new();
    for violation in violations.iter().filter(|violation| violation.rule == rule) {
        *counts.entry(violation.path.as_str()).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(path, count)| (std::cmp::Reverse(count), path));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(key: &str) -> Violation {
        Violation::new(Rule::Fields, "prov/src/env.rs", 7, key, "many fields".to_owned())
    }

    fn exception(key: &str, reason: &str) -> Exception {
        Exception {
            line: 1,
            rule: "fields".to_owned(),
            path: "prov/src/env.rs".to_owned(),
            key: key.to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn an_exception_excuses_its_key_only() {
        let left =
            apply(vec![violation("Env"), violation("Peer")], &[exception("Env", "why")], "e");
        assert_eq!(left, [violation("Peer")]);
    }

    #[test]
    fn an_unused_exception_is_a_violation() {
        let left = apply(vec![], &[exception("Env", "why")], "e");
        assert!(matches!(&left[..], [v] if v.text.contains("excuses nothing")));
    }

    #[test]
    fn an_exception_without_reason_is_a_violation() {
        let left = apply(vec![violation("Env")], &[exception("Env", "")], "e");
        assert!(matches!(&left[..], [v] if v.text.contains("without a reason")));
    }

    #[test]
    fn too_many_exceptions_are_a_violation() {
        let many = vec![exception("Env", "why"); EXCEPTIONS_MAX + 1];
        let left = apply(vec![violation("Env")], &many, "e");
        assert!(matches!(&left[..], [v] if v.text.contains("at most 10")));
    }
}
