// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Modules of one crate, and the items that paths name.
//!
//! Follows imports, re-exports and globs. Knows neither macros that make items nor generated
//! files; a path into them ends at the module that is known.

use std::collections::BTreeMap;

use crate::facts::{Facts, Import, Item, ItemKind, Path, Ty};
use crate::source::Source;

/// Length of a chain of re-exports above which a path counts as unknown.
const DEPTH_MAX: usize = 8;

/// Item of a crate: file and index within the items of the file.
pub(crate) type ItemId = (usize, usize);

/// Module of a crate, a file or inline.
#[derive(Default)]
pub(crate) struct Module {
    pub file: usize,
    pub test: bool,
    children: Vec<String>,
    items: BTreeMap<String, Vec<ItemId>>,
    imports: BTreeMap<String, Vec<Path>>,
    globs: Vec<Path>,
}

/// Result of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Item, and the rest of the path behind it: a method, a variant.
    Item(ItemId, Path),
    Module(Path),
    /// Crate of the table, by name.
    Crate(String),
}

/// Crate: modules by path, and the files they stand in.
pub(crate) struct Crate<'a> {
    pub name: String,
    pub sources: &'a [Source],
    /// Modules by path; the root has the empty one.
    pub modules: BTreeMap<Path, Module>,
    /// Module path of each file of the crate.
    pub files: BTreeMap<usize, Path>,
    /// Files that belong to tests.
    pub test_files: Vec<usize>,
    pub others: Vec<String>,
    /// `mod name;` without a file: file, line and name.
    pub missing: Vec<(usize, usize, String)>,
}

impl<'a> Crate<'a> {
    /// Finds the modules of the crate whose root is `root`; `others` are the names of all crates.
    pub(crate) fn new(name: &str, sources: &'a [Source], root: usize, others: &[String]) -> Self {
        let mut this = Crate {
            name: name.to_owned(),
            sources,
            modules: BTreeMap::new(),
            files: BTreeMap::new(),
            test_files: Vec::new(),
            others: others.to_vec(),
            missing: Vec::new(),
        };
        this.load(root, Path::new(), false);
        this
    }

    pub(crate) fn facts(&self, file: usize) -> &'a Facts {
        static NONE: Facts = Facts {
            mods: Vec::new(),
            items: Vec::new(),
            impls: Vec::new(),
            imports: Vec::new(),
            paths: Vec::new(),
            calls: Vec::new(),
            declared: Vec::new(),
            comments: Vec::new(),
            has_tests: false,
            error: None,
        };
        self.sources.get(file).map_or(&NONE, |source| &source.facts)
    }

    pub(crate) fn path(&self, file: usize) -> &'a str {
        self.sources.get(file).map_or("", |source| &source.path)
    }

    pub(crate) fn item(&self, id: ItemId) -> Option<&'a Item> {
        self.facts(id.0).items.get(id.1)
    }

    /// Module path of code in `file` inside the inline modules `scope`.
    pub(crate) fn module_of(&self, file: usize, scope: &[String]) -> Path {
        let base = self.files.get(&file).cloned().unwrap_or_default();
        base.into_iter().chain(scope.iter().cloned()).collect()
    }

    /// Loads the module at `base` from `file`, and its children.
    fn load(&mut self, file: usize, base: Path, test: bool) {
        if self.files.contains_key(&file) {
            return;
        }
        self.files.insert(file, base.clone());
        if test {
            self.test_files.push(file);
        }
        let facts = self.facts(file);
        self.modules.entry(base.clone()).or_default().file = file;
        for decl in &facts.mods {
            let parent = self.module_of(file, &decl.scope);
            let mut path = parent.clone();
            path.push(decl.name.clone());
            self.modules.entry(parent).or_default().children.push(decl.name.clone());
            if decl.inline {
                let module = self.modules.entry(path).or_default();
                (module.file, module.test) = (file, decl.test || test);
                continue;
            }
            match self.find(file, &base, decl) {
                Some(child) => self.load(child, path, test || decl.test),
                None => self.missing.push((file, decl.line, decl.name.clone())),
            }
        }
        for (index, item) in facts.items.iter().enumerate() {
            let module = self.module_of(file, &item.scope);
            let items = &mut self.modules.entry(module).or_default().items;
            items.entry(item.name.clone()).or_default().push((file, index));
        }
        for import in &facts.imports {
            self.import(file, import);
        }
    }

    fn import(&mut self, file: usize, import: &Import) {
        let module = self.module_of(file, &import.scope);
        let module = self.modules.entry(module).or_default();
        if import.glob {
            module.globs.push(import.path.clone());
        } else {
            module.imports.entry(import.alias.clone()).or_default().push(import.path.clone());
        }
    }

    /// Returns the file of `mod name;`, by the rules of the language.
    fn find(&self, file: usize, base: &[String], decl: &crate::facts::ModDecl) -> Option<usize> {
        let path = self.path(file);
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let own = base.is_empty() || name == "mod.rs";
        let stem = name.trim_end_matches(".rs");
        let mut inside = if own { directory.to_owned() } else { format!("{directory}/{stem}") };
        for scope in &decl.scope {
            inside = format!("{inside}/{scope}");
        }
        let candidates = match &decl.path_attr {
            Some(path) => vec![format!("{directory}/{path}")],
            None => {
                let name = &decl.name;
                vec![format!("{inside}/{name}.rs"), format!("{inside}/{name}/mod.rs")]
            }
        };
        candidates.iter().find_map(|path| {
            let path = path.trim_start_matches('/');
            self.sources.binary_search_by(|source| source.path.as_str().cmp(path)).ok()
        })
    }

    /// Returns the target of `path` as written in `module`.
    pub(crate) fn resolve(&self, module: &[String], path: &[String]) -> Option<Target> {
        self.resolve_from(module, path, 0)
    }

    fn resolve_from(&self, module: &[String], path: &[String], depth: usize) -> Option<Target> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.walk(&[], rest, depth),
            "self" => return self.walk(module, rest, depth),
            "super" => {
                let (_, parent) = module.split_last()?;
                return if rest.first().is_some_and(|next| next == "super") {
                    self.resolve_from(parent, rest, depth)
                } else {
                    self.walk(parent, rest, depth)
                };
            }
            _ => {}
        }
        match self.lookup(module, first, rest.is_empty(), depth) {
            Some(found) => self.follow(found, rest, depth),
            None => self.others.contains(first).then(|| Target::Crate(first.clone())),
        }
    }

    fn walk(&self, module: &[String], path: &[String], depth: usize) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else {
            return Some(Target::Module(module.to_vec()));
        };
        match self.lookup(module, first, rest.is_empty(), depth) {
            Some(found) => self.follow(found, rest, depth),
            None => Some(Target::Module(module.to_vec())),
        }
    }

    fn follow(&self, found: Target, rest: &[String], depth: usize) -> Option<Target> {
        match found {
            Target::Module(module) if !rest.is_empty() => self.walk(&module, rest, depth),
            Target::Item(id, mut behind) => {
                behind.extend(rest.iter().cloned());
                Some(Target::Item(id, behind))
            }
            found => Some(found),
        }
    }

    /// Returns what `name` means in `module`; `last` prefers items to modules of the same name.
    fn lookup(&self, module: &[String], name: &str, last: bool, depth: usize) -> Option<Target> {
        let m = self.modules.get(module)?;
        let item = || m.items.get(name)?.first().map(|&id| Target::Item(id, Path::new()));
        let child = || {
            let found = m.children.iter().any(|child| child == name);
            let path: Path = module.iter().cloned().chain([name.to_owned()]).collect();
            found.then_some(Target::Module(path))
        };
        let imported = || {
            m.imports.get(name)?.iter().find_map(|path| {
                let own = path.first().is_some_and(|first| first == name);
                if own && self.others.iter().any(|other| other == name) {
                    return Some(Target::Crate(name.to_owned()));
                }
                if own && path.len() == 1 {
                    return None;
                }
                self.resolve_from(module, path, depth + 1)
            })
        };
        let globbed = || {
            m.globs.iter().find_map(|path| match self.resolve_from(module, path, depth + 1)? {
                Target::Module(from) if from != module => self.lookup(&from, name, last, depth + 1),
                _ => None,
            })
        };
        if depth > DEPTH_MAX {
            return None;
        }
        if last {
            item().or_else(imported).or_else(child).or_else(globbed)
        } else {
            child().or_else(imported).or_else(item).or_else(globbed)
        }
    }

    /// Returns the type item that `ty` names in `module`; aliases are followed.
    pub(crate) fn type_item(&self, module: &[String], ty: &Ty) -> Option<ItemId> {
        let mut at = self.resolve(module, &ty.path)?;
        for _ in 0..DEPTH_MAX {
            let Target::Item(id, _) = at else { return None };
            let item = self.item(id)?;
            match &item.ty {
                Some(of) if item.kind == ItemKind::Alias => {
                    at = self.resolve(&self.module_of(id.0, &item.scope), &of.path)?;
                }
                _ => return item.kind.is_type().then_some(id),
            }
        }
        None
    }
}
