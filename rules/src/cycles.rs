// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rule `cycle`: no cycle of modules in a crate.
//!
//! Each module is examined with its children as wholes: a cycle of files shows at the module that
//! holds all of them, and so does a cycle of directories without a cycle of files.

use std::collections::{BTreeMap, BTreeSet};

use crate::arrows::{Arrow, End};
use crate::facts::Path;
use crate::layers::spelled;
use crate::names::Crate;
use crate::violation::{Rule, Violation};

/// Cycle of a module's children, or of the module itself (`self`) and some of them.
pub(crate) struct Cycle {
    pub module: Path,
    pub members: Vec<String>,
    /// Arrows between the members: start, end and the arrow below.
    pub arrows: Vec<(String, String, Arrow)>,
}

type Graph = BTreeMap<String, BTreeMap<String, Vec<Arrow>>>;

/// Returns the cycles of a crate.
pub(crate) fn find(names: &Crate<'_>, arrows: &[Arrow]) -> Vec<Cycle> {
    let mut levels: BTreeMap<Path, Graph> = BTreeMap::new();
    for arrow in arrows {
        let End::File(to) = arrow.to else { continue };
        let (Some(from), Some(to)) = (names.files.get(&arrow.from), names.files.get(&to)) else {
            continue;
        };
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let child = |path: &Path| path.get(shared).cloned().unwrap_or("self".to_owned());
        let level: Path = from.iter().take(shared).cloned().collect();
        let graph = levels.entry(level).or_default();
        graph.entry(child(to)).or_default();
        let ends = graph.entry(child(from)).or_default();
        ends.entry(child(to)).or_default().push(arrow.clone());
    }
    let mut cycles = Vec::new();
    for (module, graph) in levels {
        for members in components(&graph) {
            if members.len() > 1 {
                let arrows = within(&graph, &members);
                cycles.push(Cycle { module: module.clone(), members, arrows });
            }
        }
    }
    cycles
}

fn within(graph: &Graph, members: &[String]) -> Vec<(String, String, Arrow)> {
    let mut found = Vec::new();
    for from in members {
        for (to, arrows) in graph.get(from).into_iter().flatten() {
            if members.contains(to) {
                found.extend(arrows.iter().map(|a| (from.clone(), to.clone(), a.clone())));
            }
        }
    }
    found
}

/// Returns the strongly connected components: sets of nodes that reach each other.
fn components(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|node| (node, reachable(graph, node))).collect();
    let mut left: BTreeSet<&String> = graph.keys().collect();
    let mut found = Vec::new();
    while let Some(node) = left.pop_first() {
        let reaches = |a: &String, b: &String| reach.get(a).is_some_and(|set| set.contains(b));
        let mut members = vec![node.clone()];
        members.extend(
            left.iter()
                .filter(|other| reaches(node, other) && reaches(other, node))
                .map(|n| (*n).clone()),
        );
        left.retain(|other| !members.contains(other));
        found.push(members);
    }
    found
}

fn reachable<'a>(graph: &'a Graph, start: &'a String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for next in graph.get(node).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(next) {
                open.push(next);
            }
        }
    }
    found
}

/// Checks one crate.
pub(crate) fn check(names: &Crate<'_>, arrows: &[Arrow]) -> Vec<Violation> {
    let violation = |cycle: Cycle| {
        let file = names.modules.get(&cycle.module).map_or(0, |module| module.file);
        let text = format!(
            "{} modules of {} {} use each other: {}",
            cycle.members.len(),
            names.name,
            spelled(&cycle.module),
            cycle.members.join(" ")
        );
        Violation::new(Rule::Cycle, names.path(file), 1, &spelled(&cycle.module), text)
    };
    find(names, arrows).into_iter().map(violation).collect()
}
