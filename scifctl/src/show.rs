// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Nodes, endpoints, connections and windows, as tables or JSON, once or repeatedly.
//!
//! Not about the source of the data (`scif_api::introspect`). An endpoint that several processes
//! share after a fork is listed for each of them.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use scif::Config;
use scif::monitor::report::ProcessReport;
use scif_api::introspect::{self, Endpoint, Node, Process, Registered};
use serde_json::{Value, json};

use crate::args::ListOptions;
use crate::fabric;
use crate::failure::{Problem, Result};
use crate::summary;
use crate::table::{bytes, columns, own, peer};

/// Escape sequence: to the upper left corner, and erase everything below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Objects to show.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum List {
    Nodes,
    Endpoints,
    Connections,
    /// One line per endpoint or process.
    WindowSummary,
    /// One line per window.
    Windows,
}

/// Bytes moved so far in messages and RMA, by process and endpoint.
type Moved = BTreeMap<(i32, u32), (u64, u64)>;

/// State of all processes at one time.
struct Seen {
    nodes: Vec<Node>,
    processes: Vec<Process>,
    /// Processes with endpoints of libfabric.
    fabric: Vec<ProcessReport>,
    at: Instant,
}

fn moved(endpoint: &Endpoint) -> (u64, u64) {
    (endpoint.sent + endpoint.received, endpoint.reads.1 + endpoint.writes.1)
}

/// Returns a process with its endpoints on `node`, if it has any.
fn on_node(mut process: ProcessReport, node: Option<u16>) -> Option<ProcessReport> {
    process.endpoints.retain(|endpoint| node.is_none_or(|only| only == endpoint.port.node));
    (!process.endpoints.is_empty()).then_some(process)
}

impl Seen {
    fn now(config: &Config, list: List, node: Option<u16>) -> Result<Seen> {
        let nodes = if list == List::Nodes { introspect::nodes(config)? } else { Vec::new() };
        let processes =
            if list == List::Nodes { Vec::new() } else { introspect::processes(config)? };
        let fabric = if list == List::Endpoints { fabric::processes()? } else { Vec::new() };
        let wanted = |number: u16| node.is_none_or(|only| only == number);
        Ok(Seen {
            nodes: nodes.into_iter().filter(|n| wanted(n.node)).collect(),
            processes: processes.into_iter().filter(|p| wanted(p.node)).collect(),
            fabric: fabric.into_iter().filter_map(|process| on_node(process, node)).collect(),
            at: Instant::now(),
        })
    }

    fn moved(&self) -> Moved {
        self.endpoints()
            .map(|(process, endpoint)| ((process.pid, endpoint.number), moved(endpoint)))
            .collect()
    }

    fn endpoints(&self) -> impl Iterator<Item = (&Process, &Endpoint)> {
        self.processes
            .iter()
            .flat_map(|process| process.endpoints.iter().map(move |endpoint| (process, endpoint)))
    }

    fn connections(&self) -> impl Iterator<Item = (&Process, &Endpoint)> {
        self.endpoints()
            .filter(|(_, endpoint)| matches!(endpoint.state, "CONNECTED" | "DISCONNECTED"))
    }

    fn windows(&self) -> impl Iterator<Item = (&Process, &Endpoint, &Registered)> {
        self.endpoints().flat_map(|(process, endpoint)| {
            endpoint.windows.iter().map(move |window| (process, endpoint, window))
        })
    }
}

/// Rates per second between two displays.
struct Rates {
    before: Moved,
    seconds: f64,
}

impl Rates {
    fn of(&self, process: &Process, endpoint: &Endpoint) -> (u64, u64) {
        let (messages, rma) = moved(endpoint);
        let before = self.before.get(&(process.pid, endpoint.number));
        let (messages_before, rma_before) = before.copied().unwrap_or((messages, rma));
        let rate = |n: u64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rate for people"
            )]
            let per_second = (n as f64 / self.seconds) as u64;
            per_second
        };
        (rate(messages.saturating_sub(messages_before)), rate(rma.saturating_sub(rma_before)))
    }
}

/// Shows a table once, or live.
pub(crate) fn show(config: &Config, list: List, options: &ListOptions) -> Result<()> {
    let mut out = io::stdout().lock();
    let rounds = match (options.live, options.count) {
        (None, _) => 1,
        (Some(_), count) => count.unwrap_or(u64::MAX),
    };
    let clear = options.live.is_some() && !options.json && out.is_terminal();
    let mut before: Option<Seen> = None;
    for round in 0..rounds {
        if round > 0 {
            sleep(Duration::from_secs_f64(options.live.unwrap_or(1.0)));
        }
        let seen = Seen::now(config, list, options.node)?;
        let rates = before.as_ref().map(|before| Rates {
            before: before.moved(),
            seconds: seen.at.duration_since(before.at).as_secs_f64().max(1e-6),
        });
        let text = if options.json {
            format!("{}\n", document(list, &seen, rates.as_ref()))
        } else {
            tables(list, &seen, rates.as_ref(), options.live.is_some())
        };
        if clear {
            out.write_all(CLEAR.as_bytes())?;
        } else if round > 0 && !options.json {
            out.write_all(b"\n")?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        before = Some(seen);
    }
    Ok(())
}

/// Shows the endpoints, connections and windows of one process that uses `scif.h`, or only its
/// connections.
pub(crate) fn show_process(config: &Config, pid: i32, all: bool, json: bool) -> Result<()> {
    let mut seen = Seen::now(config, List::Connections, None)?;
    seen.processes.retain(|process| process.pid == pid);
    if seen.processes.is_empty() {
        return Err(Problem::Failed(format!(
            "process {pid} has no endpoint of libfabric's provider or of scif.h that this user may \
             inspect: 'scifctl endpoints' lists those"
        )));
    }
    let text = match (json, all) {
        (true, true) => format!("{}\n", document(List::Endpoints, &seen, None)),
        (true, false) => format!("{}\n", document(List::Connections, &seen, None)),
        (false, true) => [List::Endpoints, List::Connections, List::Windows]
            .map(|list| tables(list, &seen, None, false))
            .join("\n"),
        (false, false) => tables(List::Connections, &seen, None, false),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

fn numbers<T: ToString>(values: &[T]) -> String {
    let all: Vec<String> = values.iter().map(ToString::to_string).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

fn pair((count, n): (u64, u64)) -> String {
    format!("{count}/{}", bytes(n))
}

fn tables(list: List, seen: &Seen, rates: Option<&Rates>, live: bool) -> String {
    let mut text = match list {
        List::Nodes => node_table(seen),
        List::Endpoints if seen.fabric.is_empty() => endpoint_table(seen),
        List::Endpoints => {
            let fabric = fabric::endpoint_table(&seen.fabric);
            match seen.endpoints().next() {
                Some(_) => format!("{fabric}\n{}", endpoint_table(seen)),
                None => fabric,
            }
        }
        List::Connections => connection_table(seen, rates, live),
        List::Windows => window_table(seen),
        List::WindowSummary => summary::of_windows(&seen.processes),
    };
    for process in &seen.processes {
        if let Some(why) = &process.denied {
            let line = format!(
                "process {} of node {} cannot be inspected: {why}\n",
                process.pid, process.node
            );
            text.push_str(&line);
        }
    }
    text
}

fn node_table(seen: &Seen) -> String {
    let rows: Vec<Vec<String>> = seen
        .nodes
        .iter()
        .map(|node| {
            let state = match (node.lost, node.processes.is_empty()) {
                (true, _) => "lost",
                (false, true) => "ports only",
                (false, false) => "online",
            };
            vec![
                node.node.to_string(),
                state.to_owned(),
                numbers(&node.processes),
                numbers(&node.ports),
            ]
        })
        .collect();
    columns(&["NODE", "STATE", "PROCESSES", "PORTS"], &rows)
}

fn endpoint_table(seen: &Seen) -> String {
    let rows: Vec<Vec<String>> = seen
        .endpoints()
        .map(|(process, endpoint)| {
            vec![
                process.pid.to_string(),
                numbers(&endpoint.descriptors),
                endpoint.state.to_owned(),
                own(endpoint),
                peer(endpoint).0,
                endpoint.windows.len().to_string(),
                bytes(endpoint.sent),
                bytes(endpoint.received),
                pair(endpoint.reads),
                pair(endpoint.writes),
            ]
        })
        .collect();
    let head =
        ["PID", "FD", "STATE", "OWN", "PEER", "WINDOWS", "SENT", "RECEIVED", "READS", "WRITES"];
    columns(&head, &rows)
}

fn connection_table(seen: &Seen, rates: Option<&Rates>, live: bool) -> String {
    let mut head = vec![
        "OWN", "PID", "PEER", "PID", "STATE", "SENT", "RECEIVED", "READS", "WRITES", "DMA",
        "MAPPED",
    ];
    if live {
        head.extend(["MSG/s", "RMA/s"]);
    }
    let rows: Vec<Vec<String>> = seen
        .connections()
        .map(|(process, endpoint)| {
            let (peer, peer_pid) = peer(endpoint);
            let mut row = vec![
                own(endpoint),
                process.pid.to_string(),
                peer,
                peer_pid,
                endpoint.state.to_owned(),
                bytes(endpoint.sent),
                bytes(endpoint.received),
                pair(endpoint.reads),
                pair(endpoint.writes),
                format!("{}/{}", endpoint.dma.1, endpoint.dma.0),
                endpoint.mapped.to_string(),
            ];
            if live {
                let (messages, rma) = rates.map_or((0, 0), |rates| rates.of(process, endpoint));
                row.extend([bytes(messages), bytes(rma)]);
            }
            row
        })
        .collect();
    columns(&head, &rows)
}

/// Returns one row per window: `windows --all`.
fn window_table(seen: &Seen) -> String {
    let rows: Vec<Vec<String>> = seen
        .windows()
        .map(|(process, endpoint, window)| {
            vec![
                process.pid.to_string(),
                own(endpoint),
                peer(endpoint).0,
                format!("0x{:x}", window.offset),
                bytes(window.len),
                protection(window),
                if window.mappable { "yes" } else { "no" }.to_owned(),
            ]
        })
        .collect();
    columns(&["PID", "OWN", "PEER", "OFFSET", "BYTES", "PROT", "MAPPABLE"], &rows)
}

fn protection(window: &Registered) -> String {
    let letter = |on: bool, letter: char| if on { letter } else { '-' };
    [letter(window.read, 'r'), letter(window.write, 'w')].iter().collect()
}

fn document(list: List, seen: &Seen, rates: Option<&Rates>) -> Value {
    let object = |(process, endpoint)| endpoint_object(process, endpoint, rates);
    let window = |(process, endpoint, window)| owned_window_object(process, endpoint, window);
    let (name, values): (_, Vec<Value>) = match list {
        List::Nodes => ("nodes", seen.nodes.iter().map(node_object).collect()),
        List::Endpoints => ("endpoints", seen.endpoints().map(object).collect()),
        List::Connections => ("connections", seen.connections().map(object).collect()),
        List::WindowSummary | List::Windows => ("windows", seen.windows().map(window).collect()),
    };
    let denied = |process: &Process| {
        let why = process.denied.as_ref()?;
        Some(json!({"pid": process.pid, "why": why}))
    };
    let denied: Vec<Value> = seen.processes.iter().filter_map(denied).collect();
    let document = json!({name: values, "denied": denied});
    if list != List::Endpoints {
        return document;
    }
    joined(document, json!({"fabric": fabric::endpoint_objects(&seen.fabric)}))
}

fn node_object(node: &Node) -> Value {
    json!({"node": node.node, "lost": node.lost, "processes": node.processes, "ports": node.ports})
}

fn window_object(window: &Registered) -> Value {
    json!({
        "offset": window.offset,
        "bytes": window.len,
        "read": window.read,
        "write": window.write,
        "mappable": window.mappable,
    })
}

fn owned_window_object(process: &Process, endpoint: &Endpoint, window: &Registered) -> Value {
    let owner = json!({
        "pid": process.pid,
        "node": endpoint.own.node,
        "port": endpoint.own.port,
        "descriptors": endpoint.descriptors,
    });
    joined(window_object(window), owner)
}

/// Returns an object with the members of both.
fn joined(mut object: Value, more: Value) -> Value {
    if let (Value::Object(members), Value::Object(more)) = (&mut object, more) {
        members.extend(more);
    }
    object
}

fn endpoint_object(process: &Process, endpoint: &Endpoint, rates: Option<&Rates>) -> Value {
    let peer = endpoint.peer.map(|(id, pid)| json!({"node": id.node, "port": id.port, "pid": pid}));
    let counted = |(count, n): (u64, u64)| json!({"count": count, "bytes": n});
    let object = json!({
        "pid": process.pid,
        "number": endpoint.number,
        "descriptors": endpoint.descriptors,
        "state": endpoint.state,
        "node": endpoint.own.node,
        "port": endpoint.own.port,
        "peer": peer,
        "sent": endpoint.sent,
        "received": endpoint.received,
        "reads": counted(endpoint.reads),
        "writes": counted(endpoint.writes),
        "dma": {"queued": endpoint.dma.0, "finished": endpoint.dma.1},
        "mapped": endpoint.mapped,
        "windows": endpoint.windows.iter().map(window_object).collect::<Vec<_>>(),
    });
    let Some(rates) = rates else { return object };
    let (messages, rma) = rates.of(process, endpoint);
    let rates = json!({"message_bytes_per_second": messages, "rma_bytes_per_second": rma});
    joined(object, rates)
}
