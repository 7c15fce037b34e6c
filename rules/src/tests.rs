// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Self-test: a small tree that fails for each rule, beside one that does not.

use crate::check::{self, Tables};
use crate::source::Source;
use crate::tables;
use crate::violation::Rule;

/// Checks a tree of `(path, text)` against a table of layers.
fn violations(layers: &str, files: &[(&str, &str)]) -> Vec<(Rule, String)> {
    let mut sources: Vec<Source> =
        files.iter().map(|(path, text)| Source::new(path, text)).collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let tables = Tables {
        crates: tables::layers(layers).unwrap(),
        banned: tables::banned("*nobody* none\n").unwrap(),
    };
    check::run(&sources, &tables).into_iter().map(|v| (v.rule, v.text)).collect()
}

/// Number of violations of `rule`; fails on one of another rule that is not `tolerated`.
#[track_caller]
fn count(rule: Rule, layers: &str, files: &[(&str, &str)]) -> usize {
    let found = violations(layers, files);
    assert!(found.iter().all(|(other, _)| *other == rule), "{found:?}");
    found.len()
}

const TWO: &str = "crate 0 c c/lib.rs\n1 crate\n0 low\n1 high\n";
const ROOT: (&str, &str) = ("c/lib.rs", "mod low; mod high;");

#[test]
fn an_import_upward() {
    let good = [ROOT, ("c/low.rs", "pub fn f() {}"), ("c/high.rs", "use crate::low::f;")];
    assert_eq!(count(Rule::Layer, TWO, &good), 0);
    let uses = [
        "use crate::high::f;",
        "fn g() { crate::high::f(); }",
        "use super::high; fn g() { high::f(); }",
        "use super::*; fn g() { high::f(); }",
        "fn g() { assert!(super::high::f() == ()); }",
        "mod inner { use super::super::high::f; }",
        "type T = crate::high::S;",
    ];
    for text in uses {
        let bad = [ROOT, ("c/low.rs", text), ("c/high.rs", "pub fn f() {} pub struct S;")];
        assert_eq!(count(Rule::Layer, TWO, &bad), 1, "{text}");
    }
}

#[test]
fn an_import_upward_through_a_re_export() {
    let root = ("c/lib.rs", "mod low; mod high; pub use high::S;");
    let bad = [root, ("c/low.rs", "use crate::S;"), ("c/high.rs", "pub struct S;")];
    assert_eq!(count(Rule::Layer, TWO, &bad), 1);
}

#[test]
fn a_call_upward() {
    let low = "pub struct S { pub n: u8 } pub struct T(pub S);";
    let high = "use crate::low::S; impl S { pub fn up(&self) -> u8 { 1 } }";
    let callers = [
        "impl S { fn down(&self) { self.up(); } }",
        "impl T { fn down(&self) { self.0.up(); } }",
        "fn g(s: &mut S) { s.up(); }",
        "fn g(s: Option<&S>) { if let Some(x) = s { x.up(); } }",
        "fn g(all: &[S]) { for x in all { x.up(); } }",
        "fn g() { let x = S { n: 1 }; x.up(); }",
        "fn make() -> S { S { n: 1 } } fn g() { make().up(); }",
        "fn g(x: &S) { S::up(x); }",
        "fn g() { (|x| x.up())(1); }",
        "fn g(s: &S) { assert_eq!(s.up(), 1); }",
    ];
    for caller in callers {
        let text = format!("{low}\n{caller}");
        let found = violations(TWO, &[ROOT, ("c/low.rs", &text), ("c/high.rs", high)]);
        let is = |rule| found.iter().filter(|(found, _)| *found == rule).count();
        assert_eq!((is(Rule::Layer), is(Rule::Cycle), found.len()), (1, 1, 2), "{caller}");
    }
}

#[test]
fn tests_may_use_anything() {
    let low = "#[cfg(test)] mod tests { use crate::high::f; #[test] fn g() { f(); } }";
    let good = [ROOT, ("c/low.rs", low), ("c/high.rs", "pub fn f() {}")];
    assert_eq!(count(Rule::Layer, TWO, &good), 0);
}

#[test]
fn a_crate_upward() {
    let layers = "crate 0 a a/lib.rs\ncrate 1 b b/lib.rs\n";
    let good = [("a/lib.rs", ""), ("b/lib.rs", "use a::X;")];
    assert_eq!(count(Rule::Layer, layers, &good), 0);
    let bad = [("a/lib.rs", "use b::X;"), ("b/lib.rs", "")];
    assert_eq!(count(Rule::Layer, layers, &bad), 1);
}

#[test]
fn a_module_without_layer_and_a_layer_without_module() {
    let files = [ROOT, ("c/low.rs", ""), ("c/high.rs", "")];
    assert_eq!(count(Rule::Layer, "crate 0 c c/lib.rs\n1 crate\n0 low\n", &files), 1);
    assert_eq!(count(Rule::Layer, &format!("{TWO}2 gone\n"), &files), 1);
}

#[test]
fn a_cycle_of_files() {
    let layers = "crate 0 c c/lib.rs\n0 crate low high\n";
    let low = ("c/low.rs", "use crate::high::f; pub fn g() {}");
    let bad = [ROOT, low, ("c/high.rs", "use crate::low::g; pub fn f() {}")];
    assert_eq!(count(Rule::Cycle, layers, &bad), 1);
    assert_eq!(count(Rule::Cycle, layers, &[ROOT, low, ("c/high.rs", "pub fn f() {}")]), 0);
}

#[test]
fn a_cycle_of_a_module_and_its_child() {
    let layers = "crate 0 c c/lib.rs\n0 crate a\n";
    let root = ("c/lib.rs", "mod a;");
    let child = ("c/a/b.rs", "pub fn f() { super::g(); }");
    let bad = [root, ("c/a.rs", "mod b; pub fn g() { b::f(); }"), child];
    assert_eq!(count(Rule::Cycle, layers, &bad), 1);
    let good = [root, ("c/a.rs", "mod b; pub use b::f; pub fn g() {}"), child];
    assert_eq!(count(Rule::Cycle, layers, &good), 0);
}

#[test]
fn a_cycle_through_a_re_export_of_a_sibling() {
    let layers = "crate 0 c c/lib.rs\n0 crate a b\n";
    let (root, user) =
        (("c/lib.rs", "mod a; mod b;"), ("c/b.rs", "use crate::a::g; pub fn f() {}"));
    for text in ["pub(crate) use crate::b::f;", "pub use super::b::f;"] {
        let text = format!("{text} pub fn g() {{}}");
        assert_eq!(count(Rule::Cycle, layers, &[root, ("c/a.rs", &text), user]), 1, "{text}");
    }
    assert_eq!(count(Rule::Cycle, layers, &[root, ("c/a.rs", "pub fn g() {}"), user]), 0);
}

#[test]
fn a_cycle_of_directories_without_one_of_files() {
    let layers = "crate 0 c c/lib.rs\n0 crate a b\n";
    let files = [
        ("c/lib.rs", "mod a; mod b;"),
        ("c/a/mod.rs", "pub mod x; pub mod y;"),
        ("c/a/x.rs", "use crate::b::z::f;"),
        ("c/a/y.rs", "pub fn g() {}"),
        ("c/b/mod.rs", "pub mod z;"),
        ("c/b/z.rs", "pub fn f() { crate::a::y::g(); }"),
    ];
    assert_eq!(count(Rule::Cycle, layers, &files), 1);
}

#[test]
fn an_impl_in_four_files() {
    let layers = "crate 0 c c/lib.rs\n0 a b d e\n1 crate\n";
    let part = "use crate::a::S; impl S { }";
    let root = ("c/lib.rs", "mod a; mod b; mod d; mod e;");
    let own = ("c/a.rs", "pub struct S; impl S {}");
    let bad = [root, own, ("c/b.rs", part), ("c/d.rs", part), ("c/e.rs", part)];
    assert_eq!(count(Rule::ImplFiles, layers, &bad), 1);
    let good = [root, own, ("c/b.rs", part), ("c/d.rs", part), ("c/e.rs", "")];
    assert_eq!(count(Rule::ImplFiles, layers, &good), 0);
}

#[test]
fn two_types_of_one_name() {
    let low = ("c/low.rs", "struct S;");
    for text in ["enum S {}", "type S = u8;", "#[cfg(test)] mod tests { struct S; }"] {
        assert_eq!(count(Rule::TypeName, TWO, &[ROOT, low, ("c/high.rs", text)]), 1, "{text}");
    }
    assert_eq!(count(Rule::TypeName, TWO, &[ROOT, low, ("c/high.rs", "fn S() {}")]), 0);
}

/// Checks one file that is a crate of its own.
#[track_caller]
fn count_in(rule: Rule, path: &str, text: &str) -> usize {
    count(rule, &format!("crate 0 c {path}\n"), &[(path, text)])
}

#[test]
fn doc_comments_by_their_first_word() {
    let words = [
        "What", "how", "Where", "who", "Whose", "which", "Why", "when", "Those", "that", "It",
        "It's", "they", "Nobody", "nothing", "So many", "As", "The same", "\"What\"",
    ];
    for word in words {
        for mark in ["///", "//!"] {
            let text = format!("\n{mark} {word} is here.\n{mark} What follows does not count.\n");
            let item = if mark == "///" { "fn f() {}" } else { "" };
            assert_eq!(count_in(Rule::DocWord, "c.rs", &(text + item)), 1, "{mark} {word}");
        }
    }
    for good in ["/// Whether it is.", "/// The samples.", "/// `what` is.", "// What is plain."] {
        assert_eq!(count_in(Rule::DocWord, "c.rs", &format!("{good}\nfn f() {{}}")), 0, "{good}");
    }
    assert_eq!(count_in(Rule::DocWord, "c.rs", "macro_rules! m { () => {\n/// What\n} }"), 1);
}

#[test]
fn a_banned_word() {
    assert_eq!(count_in(Rule::BannedWord, "c.rs", "fn for_nobody() {}"), 1);
    assert_eq!(count_in(Rule::BannedWord, "c.rs", "fn for_somebody() {}"), 0);
}

#[test]
fn a_wide_line() {
    assert_eq!(count_in(Rule::Width, "c.rs", &format!("// {}", "x".repeat(98))), 1);
    assert_eq!(count_in(Rule::Width, "c.rs", &format!("// {}", "x".repeat(97))), 0);
}

#[test]
fn a_struct_of_the_provider_with_many_fields() {
    let fields = |n: usize| (0..n).map(|i| format!("f{i}: u8,\n")).collect::<String>();
    let text = |n| format!("struct S {{ {} }}", fields(n));
    assert_eq!(count_in(Rule::Fields, "prov/src/lib.rs", &text(17)), 1);
    assert_eq!(count_in(Rule::Fields, "prov/src/lib.rs", &text(16)), 0);
    assert_eq!(count_in(Rule::Fields, "scif/src/lib.rs", &text(17)), 0);
}

#[test]
fn a_table_without_unit_tests() {
    let tests = "#[cfg(test)] mod tests { #[test] fn f() {} }";
    assert_eq!(count_in(Rule::UnitTests, "prov/src/tables/a.rs", "fn f() {}"), 1);
    assert_eq!(count_in(Rule::UnitTests, "prov/src/tables/a.rs", tests), 0);
}

#[test]
fn a_tree_that_the_table_does_not_know() {
    assert_eq!(count(Rule::Tree, "", &[("c.rs", "")]), 1);
    assert_eq!(count(Rule::Tree, "crate 0 c c.rs\n", &[]), 1);
    assert_eq!(count_in(Rule::Tree, "c.rs", "fn ("), 1);
    assert_eq!(count_in(Rule::Tree, "c.rs", "mod gone;"), 1);
}

#[test]
fn frequencies_of_words() {
    let text = "// What a day, said nobody: \"what!\"\nconst WHAT: &str = \"what\"; // asked\n";
    let (total, rows) = crate::words::frequencies([Source::new("c.rs", text)].iter());
    let counts: Vec<usize> = rows.iter().map(|row| row.count).collect();
    assert_eq!((total, counts), (7, vec![2, 0, 0, 1, 2]));
    assert!(rows.iter().filter(|row| row.count > 0).all(|row| row.rate > row.limit));
}
