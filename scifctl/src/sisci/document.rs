// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! JSON documents of SISCI objects.

use scif::monitor::sisci::layout::{ObjectKind, flag};
use scif::monitor::sisci::report::{SisciObject, SisciProcess};
use serde_json::{Map, Value, json};

use super::texts::{adapter, adapters, flags, state};
use super::view::{INTERRUPTS, SisciView};
use crate::args::SisciList;

/// Returns the lists under their names.
pub(super) fn lists(lists: &[SisciList], view: &SisciView) -> Value {
    let mut document = Map::new();
    for list in lists {
        let objects = |kinds: &[ObjectKind], object: fn(&SisciProcess, &SisciObject) -> Value| {
            view.objects(kinds).map(|(p, o)| object(p, o)).collect()
        };
        let (name, values): (_, Vec<Value>) = match list {
            SisciList::Nodes => ("nodes", view.processes.iter().map(node).collect()),
            SisciList::Segments => ("segments", objects(&[ObjectKind::Segment], segment)),
            SisciList::Connections => {
                ("connections", objects(&[ObjectKind::Connection], connection))
            }
            SisciList::Maps => ("maps", objects(&[ObjectKind::Map], mapping)),
            SisciList::Interrupts => ("interrupts", objects(&INTERRUPTS, interrupt)),
        };
        document.insert(name.to_owned(), values.into());
    }
    let hidden = view.hidden.iter().map(|(node, count)| json!({"node": node, "processes": count}));
    document.insert("hidden".to_owned(), hidden.collect());
    Value::Object(document)
}

fn node(process: &SisciProcess) -> Value {
    let known = |number: u32| process.other_version.is_none().then_some(number);
    json!({
        "node": known(process.node),
        "pid": process.pid,
        "command": process.command,
        "state": state(process),
        "adapters": known(process.adapters),
        "unpublished": process.unpublished,
        "other_version": process.other_version,
    })
}

fn segment(process: &SisciProcess, object: &SisciObject) -> Value {
    json!({
        "pid": process.pid,
        "node": object.node,
        "segment": object.number,
        "state": object.state.name(),
        "bytes": object.size,
        "connections": object.peers,
        "adapters": adapters(object),
        "flags": flags(object),
    })
}

fn connection(process: &SisciProcess, object: &SisciObject) -> Value {
    json!({
        "pid": process.pid,
        "own_node": process.node,
        "node": object.node,
        "segment": object.number,
        "owner": object.owner,
        "adapter": adapter(object),
        "bytes": object.size,
        "state": object.state.name(),
        "flags": flags(object),
    })
}

fn mapping(process: &SisciProcess, object: &SisciObject) -> Value {
    json!({
        "pid": process.pid,
        "own_node": process.node,
        "node": object.node,
        "segment": object.number,
        "offset": object.offset,
        "bytes": object.size,
        "write": object.flags & flag::WRITABLE != 0,
        "remote": object.flags & flag::REMOTE != 0,
        "address": object.address,
    })
}

fn interrupt(process: &SisciProcess, object: &SisciObject) -> Value {
    json!({
        "pid": process.pid,
        "kind": object.kind.name(),
        "node": object.node,
        "number": object.number,
        "peers": object.peers,
        "count": object.count,
        "flags": flags(object),
    })
}
