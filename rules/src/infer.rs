// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Types of receivers, and the files in which the methods called on them stand.
//!
//! Wrappers are transparent: a method that `Option<Peer>` or `Vec<Peer>` gets is looked for in
//! `Peer`. A receiver of unknown type counts only if exactly one type of the crate has the method.
//! Neither the standard library nor another crate may have a method of that name.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{ItemKind, Origin, Ty};
use crate::names::{Crate, ItemId, Target};

/// Length of a chain of types above which the search ends.
const DEPTH_MAX: usize = 8;

/// Methods of the standard library that no receiver of unknown type is resolved by.
const STD_METHODS: &str = "\
    abs add all and and_then any append as_bytes as_deref as_deref_mut as_mut as_mut_ptr as_ptr \
    as_ref as_slice as_str borrow borrow_mut bytes cast chain chars checked_add checked_mul \
    checked_sub chunks clear clone cloned cmp collect compare_exchange contains contains_key \
    copied copy_from_slice count count_ones dedup drain drop end ends_with entry enumerate eq \
    err expect extend fetch_add fetch_or fetch_sub fill filter filter_map find find_map first \
    flat_map flatten flush fmt fold for_each fuse get get_mut get_or_init hash id index insert \
    into into_inner into_iter is_empty is_err is_none is_ok is_some iter iter_mut join keys kill \
    last leading_zeros len lines load lock map map_err max max_by_key min min_by_key name ne \
    next next_back nth ok ok_or offset open or or_default or_else or_insert parent parse path \
    peek pop pop_back pop_front position product push push_back push_front push_str range read \
    read_exact recv remove repeat replace reserve resize retain rev round rotate_left \
    saturating_add saturating_sub send seek set skip sort sort_by sort_by_key spawn split \
    split_at split_off start starts_with step_by store sub sum swap swap_remove take take_while \
    then then_some to_owned to_string to_vec trim truncate try_from try_into try_lock unlock \
    unwrap unwrap_or unwrap_or_default unwrap_or_else update values values_mut wait wake with \
    wrapping_add wrapping_mul wrapping_sub write write_all write_str zip";

/// Type of a value: the item if it is of this crate, and its arguments.
#[derive(Clone, Debug, Default)]
struct Known {
    id: Option<ItemId>,
    args: Vec<Known>,
}

/// Method of a type: file, and its result as known in that file.
#[derive(Clone)]
struct Found {
    file: usize,
    result: Option<Known>,
}

/// Result of looking for the method of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// Files of the method of a known type; empty if the type gets it from elsewhere.
    Typed(Vec<usize>),
    /// File of the only method of this name.
    ByName(usize),
    Unknown,
}

/// Types, fields and methods of a crate.
pub(crate) struct Types<'a> {
    names: &'a Crate<'a>,
    methods: BTreeMap<ItemId, BTreeMap<&'a str, Vec<Found>>>,
    targets: BTreeMap<ItemId, Known>,
    by_name: BTreeMap<&'a str, BTreeSet<ItemId>>,
    /// Methods that no receiver of unknown type is resolved by: of traits and of other crates.
    ambiguous: BTreeSet<&'a str>,
}

impl<'a> Types<'a> {
    pub(crate) fn new(names: &'a Crate<'a>) -> Self {
        let mut this = Types {
            names,
            methods: BTreeMap::new(),
            targets: BTreeMap::new(),
            by_name: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
        };
        for &file in names.files.keys() {
            this.add_file(file);
        }
        let others = names.sources.iter().enumerate();
        for (_, other) in others.filter(|(file, _)| !names.files.contains_key(file)) {
            let methods = other.facts.impls.iter().flat_map(|block| &block.methods);
            this.ambiguous.extend(methods.map(|method| method.name.as_str()));
        }
        this
    }

    fn add_file(&mut self, file: usize) {
        let facts = self.names.facts(file);
        for block in &facts.impls {
            let module = self.names.module_of(file, &block.scope);
            let Some(id) = self.names.type_item(&module, &block.ty) else {
                continue;
            };
            if let Some(target) = &block.target {
                let target = self.known(&module, target, 0);
                self.targets.insert(id, target);
            }
            for method in &block.methods {
                let result = method.result.as_ref().map(|ty| self.known(&module, ty, 0));
                self.add(id, &method.name, Found { file, result });
            }
        }
        for (index, item) in facts.items.iter().enumerate() {
            let module = self.names.module_of(file, &item.scope);
            for method in &item.methods {
                let result = method.result.as_ref().map(|ty| self.known(&module, ty, 0));
                self.add((file, index), &method.name, Found { file, result });
                self.ambiguous.insert(&method.name);
            }
        }
    }

    fn add(&mut self, id: ItemId, name: &'a str, found: Found) {
        self.methods.entry(id).or_default().entry(name).or_default().push(found);
        self.by_name.entry(name).or_default().insert(id);
    }

    fn known(&self, module: &[String], ty: &Ty, depth: usize) -> Known {
        let args = || ty.args.iter().map(|arg| self.known(module, arg, depth)).collect();
        let id = match self.names.resolve(module, &ty.path) {
            Some(Target::Item(id, _)) => id,
            _ => {
                return Known { id: None, args: args() };
            }
        };
        match self.names.item(id) {
            Some(item) if item.kind == ItemKind::Alias && depth < DEPTH_MAX => {
                let module = self.names.module_of(id.0, &item.scope);
                let of = item.ty.clone().unwrap_or_default();
                self.known(&module, &of, depth + 1)
            }
            Some(item) if item.kind.is_type() => Known { id: Some(id), args: args() },
            _ => Known { id: None, args: args() },
        }
    }

    /// Searches `of`, then its `Deref` target, then its arguments.
    fn search<T>(
        &self,
        of: &Known,
        depth: usize,
        find: &dyn Fn(&Self, ItemId) -> Option<T>,
    ) -> Option<T> {
        if depth > DEPTH_MAX {
            return None;
        }
        let own = of.id.and_then(|id| find(self, id));
        own.or_else(|| {
            let target = of.id.and_then(|id| self.targets.get(&id))?;
            self.search(target, depth + 1, find)
        })
        .or_else(|| of.args.iter().rev().find_map(|arg| self.search(arg, depth + 1, find)))
    }

    fn method(&self, of: &Known, name: &str) -> Option<Vec<Found>> {
        self.search(of, 0, &|this, id| this.methods.get(&id)?.get(name).cloned())
    }

    fn field(&self, of: &Known, name: &str) -> Option<Known> {
        self.search(of, 0, &|this, id| {
            let item = this.names.item(id)?;
            let (_, ty) = item.fields.iter().find(|(field, _)| field == name)?;
            Some(this.known(&this.names.module_of(id.0, &item.scope), ty, 0))
        })
    }

    fn value_of(&self, module: &[String], origin: &Origin) -> Option<Known> {
        match origin {
            Origin::Of(ty) if *ty == Ty::default() => None,
            Origin::Of(ty) => Some(self.known(module, ty, 0)),
            Origin::Field(of, name) => self.field(&self.value_of(module, of)?, name),
            Origin::Method(of, name) => {
                let of = self.value_of(module, of)?;
                match self.method(&of, name) {
                    Some(found) => found.first()?.result.clone(),
                    None => Some(of),
                }
            }
            Origin::Path(path) => self.path_value(module, path),
            Origin::Unknown => None,
        }
    }

    fn path_value(&self, module: &[String], path: &[String]) -> Option<Known> {
        let Target::Item(id, behind) = self.names.resolve(module, path)? else {
            return None;
        };
        let item = self.names.item(id)?;
        if let Some(found) =
            behind.first().and_then(|name| self.methods.get(&id)?.get(name.as_str()))
        {
            return found.first()?.result.clone();
        }
        match (&item.ty, item.kind.is_type()) {
            (_, true) => Some(Known { id: Some(id), args: Vec::new() }),
            (Some(ty), false) => Some(self.known(&self.names.module_of(id.0, &item.scope), ty, 0)),
            (None, false) => None,
        }
    }

    /// Returns the files of the associated function `name` of type `id`.
    pub(crate) fn associated(&self, id: ItemId, name: &str) -> Vec<usize> {
        let found = self.methods.get(&id).and_then(|methods| methods.get(name));
        found.into_iter().flatten().map(|found| found.file).collect()
    }

    /// Returns the callee of `receiver.method()`, called in `module`.
    pub(crate) fn callee(&self, module: &[String], receiver: &Origin, method: &str) -> Callee {
        if let Some(of) = self.value_of(module, receiver) {
            let found = self.method(&of, method).unwrap_or_default();
            return Callee::Typed(found.iter().map(|found| found.file).collect());
        }
        if STD_METHODS.split_whitespace().any(|name| name == method) {
            return Callee::Unknown;
        }
        let owner = match self.by_name.get(method) {
            Some(owners) if owners.len() == 1 && !self.ambiguous.contains(method) => owners.first(),
            _ => None,
        };
        let files = owner.map(|&id| self.associated(id, method)).unwrap_or_default();
        files.first().map_or(Callee::Unknown, |&file| Callee::ByName(file))
    }
}
