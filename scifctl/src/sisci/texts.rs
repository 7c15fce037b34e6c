// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tables of SISCI objects.

use std::fmt::Write;

use scif::monitor::sisci::layout::{LOCAL_HOST_BIT, ObjectKind, VERSION, flag};
use scif::monitor::sisci::report::{SisciObject, SisciProcess};

use super::view::{INTERRUPTS, SisciView};
use crate::args::SisciList;
use crate::fabric::cut;
use crate::table::{bytes, columns};

/// Columns of the output. Longer lines are cut; JSON documents have everything.
const WIDTH: usize = 100;
/// Number of adapters that a node can have.
const ADAPTERS: u32 = 16;

/// Returns one table after the other, and lines about processes that are not shown completely.
pub(super) fn tables(lists: &[SisciList], view: &SisciView) -> String {
    let all: Vec<String> = lists.iter().map(|list| table(*list, view)).collect();
    let mut text = all.join("\n");
    for (node, count) in &view.hidden {
        let _ = writeln!(
            text,
            "node {node}: {count} processes publish no state that this scifctl reads; root reads \
             more"
        );
    }
    for process in &view.processes {
        if process.unpublished > 0 {
            let _ = writeln!(
                text,
                "process {}: {} more objects were made, which are not shown",
                process.pid, process.unpublished
            );
        }
        if let Some(version) = process.other_version {
            let _ = writeln!(
                text,
                "process {} publishes state of version {version}, and this scifctl reads {VERSION}",
                process.pid
            );
        }
    }
    text.lines().map(|line| cut(line, WIDTH) + "\n").collect()
}

fn table(list: SisciList, view: &SisciView) -> String {
    match list {
        SisciList::Nodes => nodes(view),
        SisciList::Segments => segments(view),
        SisciList::Connections => connections(view),
        SisciList::Maps => maps(view),
        SisciList::Interrupts => interrupts(view),
    }
}

/// Returns the name of the state of a process.
pub(super) fn state(process: &SisciProcess) -> &'static str {
    match process.state {
        'T' | 't' => "stopped",
        'Z' | 'X' | 'x' => "ended",
        _ => "online",
    }
}

/// Returns the names of the flags of an object.
pub(super) fn flags(object: &SisciObject) -> Vec<&'static str> {
    let set = flag::NAMES.iter().filter(|(bit, _)| object.flags & bit != 0);
    set.map(|(_, name)| *name).collect()
}

/// Returns the names of the adapters in the set of a segment.
pub(super) fn adapters(object: &SisciObject) -> Vec<String> {
    let has = |bit: &u32| object.adapter >> bit & 1 == 1;
    let numbers = (0..ADAPTERS).filter(has).map(|number| number.to_string());
    let host = Some("host".to_owned()).filter(|_| has(&LOCAL_HOST_BIT));
    numbers.chain(host).collect()
}

/// Returns the name of the adapter of a connection.
pub(super) fn adapter(object: &SisciObject) -> String {
    match object.adapter {
        number if number < u64::from(ADAPTERS) => number.to_string(),
        _ => "host".to_owned(),
    }
}

fn list(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

fn segment(object: &SisciObject) -> String {
    format!("{}:{}", object.node, object.number)
}

fn nodes(view: &SisciView) -> String {
    let row = |process: &SisciProcess| {
        let count = |kinds: &[ObjectKind]| {
            let objects = process.objects.iter().filter(|o| kinds.contains(&o.kind));
            if process.other_version.is_some() {
                "?".to_owned()
            } else {
                objects.count().to_string()
            }
        };
        let known = |number: u32| match process.other_version {
            Some(_) => "?".to_owned(),
            None => number.to_string(),
        };
        vec![
            known(process.node),
            process.pid.to_string(),
            state(process).to_owned(),
            known(process.adapters),
            count(&[ObjectKind::Segment]),
            count(&[ObjectKind::Connection]),
            count(&[ObjectKind::Map]),
            count(&INTERRUPTS),
            cut(&process.command, 16),
        ]
    };
    let mut all: Vec<&SisciProcess> = view.processes.iter().collect();
    all.sort_by_key(|process| (process.node, process.pid));
    let rows: Vec<Vec<String>> = all.into_iter().map(row).collect();
    let head = [
        "NODE",
        "PID",
        "STATE",
        "ADAPTERS",
        "SEGMENTS",
        "CONNECTIONS",
        "MAPS",
        "INTERRUPTS",
        "COMMAND",
    ];
    columns(&head, &rows)
}

fn segments(view: &SisciView) -> String {
    let row = |(process, object): (&SisciProcess, &SisciObject)| {
        vec![
            process.pid.to_string(),
            object.node.to_string(),
            object.number.to_string(),
            object.state.name().to_owned(),
            bytes(object.size),
            object.peers.to_string(),
            list(&adapters(object)),
            list(&flags(object)),
        ]
    };
    let rows: Vec<Vec<String>> = view.objects(&[ObjectKind::Segment]).map(row).collect();
    let head = ["PID", "NODE", "SEGMENT", "STATE", "BYTES", "CONNECTIONS", "ADAPTERS", "FLAGS"];
    columns(&head, &rows)
}

fn connections(view: &SisciView) -> String {
    let row = |(process, object): (&SisciProcess, &SisciObject)| {
        vec![
            process.pid.to_string(),
            process.node.to_string(),
            segment(object),
            object.owner.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            adapter(object),
            bytes(object.size),
            object.state.name().to_owned(),
            list(&flags(object)),
        ]
    };
    let rows: Vec<Vec<String>> = view.objects(&[ObjectKind::Connection]).map(row).collect();
    let head = ["PID", "NODE", "SEGMENT", "OWNER", "ADAPTER", "BYTES", "STATE", "FLAGS"];
    columns(&head, &rows)
}

fn maps(view: &SisciView) -> String {
    let row = |(process, object): (&SisciProcess, &SisciObject)| {
        let has = |bit: u64| object.flags & bit != 0;
        vec![
            process.pid.to_string(),
            process.node.to_string(),
            segment(object),
            format!("0x{:x}", object.offset),
            bytes(object.size),
            if has(flag::WRITABLE) { "rw" } else { "r-" }.to_owned(),
            if has(flag::REMOTE) { "remote" } else { "local" }.to_owned(),
            format!("0x{:x}", object.address),
        ]
    };
    let rows: Vec<Vec<String>> = view.objects(&[ObjectKind::Map]).map(row).collect();
    let head = ["PID", "NODE", "SEGMENT", "OFFSET", "BYTES", "PROT", "KIND", "ADDRESS"];
    columns(&head, &rows)
}

fn interrupts(view: &SisciView) -> String {
    let row = |(process, object): (&SisciProcess, &SisciObject)| {
        vec![
            process.pid.to_string(),
            object.kind.name().to_owned(),
            object.node.to_string(),
            object.number.to_string(),
            object.peers.to_string(),
            object.count.to_string(),
            list(&flags(object)),
        ]
    };
    let rows: Vec<Vec<String>> = view.objects(&INTERRUPTS).map(row).collect();
    columns(&["PID", "KIND", "NODE", "NUMBER", "PEERS", "COUNT", "FLAGS"], &rows)
}

#[cfg(test)]
mod tests {
    use scif::monitor::sisci::layout::ObjectState;

    use super::*;

    fn object(kind: ObjectKind, state: ObjectState) -> SisciObject {
        SisciObject {
            serial: 1,
            kind,
            state,
            node: 8,
            number: u32::MAX,
            adapter: 1 << 63 | 3,
            size: 70_000,
            offset: 4096,
            peers: 2,
            flags: flag::CALLBACK | flag::SHARED | flag::REMOTE | flag::WRITABLE,
            owner: Some(4711),
            address: 0x7f00_0000_1000,
            count: 1_000_000_000_000,
        }
    }

    fn view(objects: Vec<SisciObject>) -> SisciView {
        let process = SisciProcess {
            pid: 4_194_303,
            command: "program".to_owned(),
            state: 'S',
            node: 4,
            adapters: 2,
            unpublished: 5,
            objects,
            ..SisciProcess::default()
        };
        SisciView { processes: vec![process], hidden: [(8, 2)].into() }
    }

    #[test]
    fn each_list_has_its_row() {
        let view = view(vec![
            object(ObjectKind::Segment, ObjectState::Available),
            object(ObjectKind::Connection, ObjectState::NotOperational),
            object(ObjectKind::Map, ObjectState::Present),
            object(ObjectKind::DataInterrupt, ObjectState::Present),
        ]);
        let text = tables(&crate::sisci::view::LISTS, &view);
        for row in [
            "   4  4194303  online         2         1            1     1           1  program",
            "4194303     8  4294967295  available  68.3K            2  0,1,host  callback,shared",
            "4194303     4  8:4294967295   4711  host     68.3K  not-operational  callback,shared",
            "4194303     4  8:4294967295  0x1000  68.3K  rw    remote  0x7f0000001000",
            "4194303  data     8  4294967295      2  1000000000000  callback,shared",
            "node 8: 2 processes publish no state that this scifctl reads; root reads more",
            "process 4194303: 5 more objects were made, which are not shown",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn a_process_of_another_version_has_an_unknown_node() {
        let own = view(Vec::new()).processes;
        let other =
            SisciProcess { pid: 7, other_version: Some(VERSION + 1), ..SisciProcess::default() };
        let all = SisciView { processes: own.into_iter().chain([other]).collect(), ..view(vec![]) };
        let all = all.on_node(Some(8));
        let text = tables(&[SisciList::Nodes], &all);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["?", "7", "online", "?", "?", "?", "?", "?"], "{text}");
        assert!(text.contains("process 7 publishes state of version"), "{text}");
        assert!(!text.contains("4194303"), "a process of another node: {text}");
        let document = crate::sisci::document::lists(&[SisciList::Nodes], &all);
        assert!(document["nodes"][0]["node"].is_null(), "{document}");
    }

    #[test]
    fn lists_without_rows_have_a_head() {
        let text = tables(&[SisciList::Maps], &SisciView::default());
        assert_eq!(text, "PID  NODE  SEGMENT  OFFSET  BYTES  PROT  KIND  ADDRESS\n");
    }
}
