// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arrows between the files of a crate, and from it to other crates.
//!
//! An arrow is an import, a path or a method call outside of tests. `mod` declarations and
//! re-exports are none: a re-export gives a name, and its users point at the item itself.

use std::collections::BTreeMap;

use crate::facts::Path;
use crate::infer::{Callee, Types};
use crate::names::{Crate, Target};

/// End of an arrow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    File(usize),
    Crate(String),
}

/// First use of one file by another, and the number of such uses.
#[derive(Clone, Debug)]
pub(crate) struct Arrow {
    pub from: usize,
    pub to: End,
    pub line: usize,
    /// Path or method as written.
    pub name: String,
    pub uses: usize,
    /// Number of uses that are method calls.
    pub calls: usize,
}

/// Number of method calls by the way in which their type was found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub typed: usize,
    pub by_name: usize,
    pub unknown: usize,
}

/// Returns the arrows of a crate, sorted by their ends.
pub(crate) fn of(names: &Crate<'_>) -> (Vec<Arrow>, Coverage) {
    let types = Types::new(names);
    let mut collect = Collect { found: BTreeMap::new(), names, types: &types };
    let mut coverage = Coverage::default();
    for &file in names.files.keys().filter(|file| !names.test_files.contains(file)) {
        collect.imports(file);
        collect.paths(file);
        collect.calls(file, &mut coverage);
    }
    (collect.found.into_values().collect(), coverage)
}

struct Collect<'a> {
    found: BTreeMap<(usize, End), Arrow>,
    names: &'a Crate<'a>,
    types: &'a Types<'a>,
}

impl Collect<'_> {
    fn add(&mut self, from: usize, to: End, line: usize, name: &str, call: bool) {
        // Code behind a statement's own `cfg(test)` may call into tests.
        let in_tests = matches!(to, End::File(to) if self.names.test_files.contains(&to));
        if to == End::File(from) || in_tests {
            return;
        }
        let new = || Arrow { from, to: to.clone(), line, name: name.to_owned(), uses: 0, calls: 0 };
        let arrow = self.found.entry((from, to.clone())).or_insert_with(new);
        arrow.uses += 1;
        arrow.calls += usize::from(call);
    }

    fn imports(&mut self, file: usize) {
        for import in self.names.facts(file).imports.iter().filter(|import| !import.test) {
            let module = self.names.module_of(file, &import.scope);
            // A module that is imported is used by a path, and a glob by the names behind it.
            let counts = match self.names.resolve(&module, &import.path) {
                Some(Target::Item(id, _)) => !import.public || !self.is_below(id.0, &module),
                Some(Target::Crate(_)) => !import.public,
                _ => false,
            };
            if counts {
                self.path(file, &module, &import.path, import.line);
            }
        }
    }

    /// Whether `file` is the one of `module` or of a module inside it, which `module` re-exports.
    fn is_below(&self, file: usize, module: &Path) -> bool {
        self.names.files.get(&file).is_some_and(|path| path.starts_with(module))
    }

    fn paths(&mut self, file: usize) {
        for used in &self.names.facts(file).paths {
            let module = self.names.module_of(file, &used.scope);
            self.path(file, &module, &used.path, used.line);
        }
    }

    fn path(&mut self, file: usize, module: &Path, path: &Path, line: usize) {
        let name = path.join("::");
        match self.names.resolve(module, path) {
            Some(Target::Item(id, behind)) => {
                self.add(file, End::File(id.0), line, &name, false);
                if let Some(method) = behind.first() {
                    for to in self.types.associated(id, method) {
                        self.add(file, End::File(to), line, &name, true);
                    }
                }
            }
            Some(Target::Module(to)) if path.len() > 1 => {
                if let Some(to) = self.names.modules.get(&to) {
                    self.add(file, End::File(to.file), line, &name, false);
                }
            }
            Some(Target::Crate(to)) => self.add(file, End::Crate(to), line, &name, false),
            _ => {}
        }
    }

    fn calls(&mut self, file: usize, coverage: &mut Coverage) {
        for call in &self.names.facts(file).calls {
            let module = self.names.module_of(file, &call.scope);
            match self.types.callee(&module, &call.receiver, &call.method) {
                Callee::Typed(files) => {
                    coverage.typed += 1;
                    for to in files {
                        self.add(file, End::File(to), call.line, &call.method, true);
                    }
                }
                Callee::ByName(to) => {
                    coverage.by_name += 1;
                    self.add(file, End::File(to), call.line, &call.method, true);
                }
                Callee::Unknown => coverage.unknown += 1,
            }
        }
    }
}
