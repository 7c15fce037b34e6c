// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Nodes, endpoints, connections and windows, as tables or JSON, once or repeatedly.
//!
//! Not about the source of the data (`scif_api::look`). An endpoint that several processes share
//! after a fork is listed for each of them.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use scif::Config;
use scif_api::look::{self, Endpoint, Node, Process, Registered};

use crate::Result;
use crate::args::{Args, What};
use crate::json::{self, Object};
use crate::summary;
use crate::table::{bytes, columns};

/// Escape sequence: to the upper left corner, and erase everything below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Bytes moved so far in messages and RMA, by process and endpoint.
type Moved = BTreeMap<(i32, u32), (u64, u64)>;

/// State of all processes at one time.
struct Seen {
    nodes: Vec<Node>,
    processes: Vec<Process>,
    at: Instant,
}

fn moved(endpoint: &Endpoint) -> (u64, u64) {
    (
        endpoint.sent + endpoint.received,
        endpoint.reads.1 + endpoint.writes.1,
    )
}

impl Seen {
    fn now(config: &Config, what: What, node: Option<u16>) -> Result<Seen> {
        let nodes = if what == What::Nodes {
            look::nodes(config)?
        } else {
            Vec::new()
        };
        let processes = if what == What::Nodes {
            Vec::new()
        } else {
            look::processes(config)?
        };
        let wanted = |number: u16| node.is_none_or(|only| only == number);
        Ok(Seen {
            nodes: nodes.into_iter().filter(|n| wanted(n.node)).collect(),
            processes: processes.into_iter().filter(|p| wanted(p.node)).collect(),
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
            endpoint
                .windows
                .iter()
                .map(move |window| (process, endpoint, window))
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
        (
            rate(messages.saturating_sub(messages_before)),
            rate(rma.saturating_sub(rma_before)),
        )
    }
}

/// Shows a table once, or live.
pub(crate) fn show(config: &Config, what: What, args: &Args) -> Result<()> {
    let mut out = io::stdout().lock();
    let rounds = match (args.live, args.count) {
        (None, _) => 1,
        (Some(_), count) => count.unwrap_or(u64::MAX),
    };
    let clear = args.live.is_some() && !args.json && out.is_terminal();
    let mut before: Option<Seen> = None;
    for round in 0..rounds {
        if round > 0 {
            sleep(Duration::from_secs_f64(args.live.unwrap_or(1.0)));
        }
        let seen = Seen::now(config, what, args.node)?;
        let rates = before.as_ref().map(|before| Rates {
            before: before.moved(),
            seconds: seen.at.duration_since(before.at).as_secs_f64().max(1e-6),
        });
        let text = if args.json {
            format!("{}\n", document(what, &seen, rates.as_ref()))
        } else {
            tables(what, &seen, rates.as_ref(), args)
        };
        if clear {
            out.write_all(CLEAR.as_bytes())?;
        } else if round > 0 && !args.json {
            out.write_all(b"\n")?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        before = Some(seen);
    }
    Ok(())
}

fn numbers<T: ToString>(values: &[T]) -> String {
    let all: Vec<String> = values.iter().map(ToString::to_string).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(",")
    }
}

fn pair((count, n): (u64, u64)) -> String {
    format!("{count}/{}", bytes(n))
}

/// Returns node and port of the peer, and its process id; a dash for each unknown one.
pub(crate) fn peer(endpoint: &Endpoint) -> (String, String) {
    endpoint.peer.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |(id, pid)| {
            (
                id.to_string(),
                if pid > 0 { pid.to_string() } else { "-".to_owned() },
            )
        },
    )
}

/// Returns node and port of the endpoint; a dash for the port of an unbound one.
pub(crate) fn own(endpoint: &Endpoint) -> String {
    if endpoint.own.port == 0 {
        format!("{}:-", endpoint.own.node)
    } else {
        endpoint.own.to_string()
    }
}

fn tables(what: What, seen: &Seen, rates: Option<&Rates>, args: &Args) -> String {
    let (live, all) = (args.live.is_some(), args.all);
    let mut text = match what {
        What::Nodes => node_table(seen),
        What::Endpoints => endpoint_table(seen),
        What::Connections => connection_table(seen, rates, live),
        What::Windows if all => window_table(seen),
        What::Windows => summary::of_windows(&seen.processes),
    };
    for process in &seen.processes {
        if let Some(why) = &process.denied {
            let line = format!(
                "process {} of node {} shows nothing: {why}\n",
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
    let head = [
        "PID", "FD", "STATE", "OWN", "PEER", "WINDOWS", "SENT", "RECEIVED", "READS", "WRITES",
    ];
    columns(&head, &rows)
}

fn connection_table(seen: &Seen, rates: Option<&Rates>, live: bool) -> String {
    let mut head = vec![
        "OWN", "PID", "PEER", "PID", "STATE", "SENT", "RECEIVED", "READS", "WRITES", "DMA", "MAPPED",
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
    columns(
        &["PID", "OWN", "PEER", "OFFSET", "BYTES", "PROT", "MAPPABLE"],
        &rows,
    )
}

fn protection(window: &Registered) -> String {
    let letter = |on: bool, letter: char| if on { letter } else { '-' };
    [letter(window.read, 'r'), letter(window.write, 'w')]
        .iter()
        .collect()
}

fn document(what: What, seen: &Seen, rates: Option<&Rates>) -> String {
    let denied = seen.processes.iter().filter_map(|process| {
        let why = process.denied.as_ref()?;
        Some(Object::new().with("pid", process.pid).with_text("why", why))
    });
    let (name, values) = match what {
        What::Nodes => ("nodes", json::list(seen.nodes.iter().map(node_object))),
        What::Endpoints => (
            "endpoints",
            json::list(seen.endpoints().map(|(p, e)| endpoint_object(p, e, rates))),
        ),
        What::Connections => (
            "connections",
            json::list(seen.connections().map(|(p, e)| endpoint_object(p, e, rates))),
        ),
        What::Windows => (
            "windows",
            json::list(seen.windows().map(|(process, endpoint, window)| {
                window_object(window)
                    .with("pid", process.pid)
                    .with("node", endpoint.own.node)
                    .with("port", endpoint.own.port)
                    .with("descriptors", json::list(&endpoint.descriptors))
            })),
        ),
    };
    Object::new()
        .with(name, values)
        .with("denied", json::list(denied))
        .to_string()
}

fn node_object(node: &Node) -> Object {
    Object::new()
        .with("node", node.node)
        .with("lost", node.lost)
        .with("processes", json::list(&node.processes))
        .with("ports", json::list(&node.ports))
}

fn window_object(window: &Registered) -> Object {
    Object::new()
        .with("offset", window.offset)
        .with("bytes", window.len)
        .with("read", window.read)
        .with("write", window.write)
        .with("mappable", window.mappable)
}

fn endpoint_object(process: &Process, endpoint: &Endpoint, rates: Option<&Rates>) -> Object {
    let peer = endpoint.peer.map_or_else(
        || "null".to_owned(),
        |(id, pid)| {
            Object::new()
                .with("node", id.node)
                .with("port", id.port)
                .with("pid", pid)
                .to_string()
        },
    );
    let counted = |(count, n): (u64, u64)| Object::new().with("count", count).with("bytes", n);
    let mut object = Object::new()
        .with("pid", process.pid)
        .with("number", endpoint.number)
        .with("descriptors", json::list(&endpoint.descriptors))
        .with_text("state", endpoint.state)
        .with("node", endpoint.own.node)
        .with("port", endpoint.own.port)
        .with("peer", peer)
        .with("sent", endpoint.sent)
        .with("received", endpoint.received)
        .with("reads", counted(endpoint.reads))
        .with("writes", counted(endpoint.writes))
        .with(
            "dma",
            Object::new()
                .with("queued", endpoint.dma.0)
                .with("finished", endpoint.dma.1),
        )
        .with("mapped", endpoint.mapped)
        .with("windows", json::list(endpoint.windows.iter().map(window_object)));
    if let Some(rates) = rates {
        let (messages, rma) = rates.of(process, endpoint);
        object = object
            .with("message_bytes_per_second", messages)
            .with("rma_bytes_per_second", rma);
    }
    object
}
