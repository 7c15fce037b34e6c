// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rule `layer`: each module has a layer, and no arrow points to a higher one.

use std::collections::BTreeMap;

use crate::arrows::{Arrow, End};
use crate::names::Crate;
use crate::tables::CrateEntry;
use crate::violation::{Rule, Violation};

/// Layer of a module: that of its entry, or of the nearest parent that has one.
fn layer(entry: &CrateEntry, module: &[String]) -> Option<u32> {
    if module.is_empty() {
        return entry.modules.get("crate").copied();
    }
    (1..=module.len()).rev().find_map(|length| {
        entry
            .modules
            .get(&module.iter().take(length).cloned().collect::<Vec<_>>().join("::"))
            .copied()
    })
}

/// Checks one crate; `crates` has the layer of each crate by name.
pub(crate) fn check(
    entry: &CrateEntry,
    names: &Crate<'_>,
    arrows: &[Arrow],
    crates: &BTreeMap<&str, u32>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if names.files.len() > 1 {
        found.append(&mut without_layer(entry, names));
    }
    for arrow in arrows {
        let Some(module) = names.files.get(&arrow.from) else {
            continue;
        };
        let (from, to, name) = match &arrow.to {
            End::Crate(to) => (Some(entry.layer), crates.get(to.as_str()).copied(), to.clone()),
            End::File(to) => match names.files.get(to) {
                Some(target) => (layer(entry, module), layer(entry, target), spelled(target)),
                None => continue,
            },
        };
        if let (Some(from), Some(to)) = (from, to) {
            if to > from {
                let text = format!(
                    "layer {from} uses {name} of layer {to}: `{}` ({} uses, {} calls)",
                    arrow.name, arrow.uses, arrow.calls
                );
                let path = names.path(arrow.from);
                found.push(Violation::new(Rule::Layer, path, arrow.line, &name, text));
            }
        }
    }
    found
}

/// Module path for output; `crate` for the root.
pub(crate) fn spelled(module: &[String]) -> String {
    if module.is_empty() { "crate".to_owned() } else { module.join("::") }
}

fn without_layer(entry: &CrateEntry, names: &Crate<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&file, module) in &names.files {
        if layer(entry, module).is_none() && !names.test_files.contains(&file) {
            let name = spelled(module);
            let text = format!("{name} of {} has no layer in the table", entry.name);
            found.push(Violation::new(Rule::Layer, names.path(file), 1, &name, text));
        }
    }
    for module in entry.modules.keys() {
        let path: Vec<String> = module.split("::").map(str::to_owned).collect();
        if module != "crate" && !names.modules.contains_key(&path) {
            let text = format!("the table has {module} of {}, which is not there", entry.name);
            found.push(Violation::new(Rule::Layer, &entry.root, 1, module, text));
        }
    }
    found
}
