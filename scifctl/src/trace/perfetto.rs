// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Traces in the JSON format of Chrome, which Perfetto reads: a process for each process, a track
//! for each endpoint, an interval for each receive and each large message, and an arrow from the
//! announcement of a message to its arrival.

use std::collections::HashMap;
use std::io::{self, Write};

use scif::PortId;
use scif::trace::{EventKind, TraceImage, TraceRecord};
use serde_json::{Value, json};

use crate::trace::source::title;

/// Writes the document of some traces. Times count from the first event of all.
///
/// # Errors
/// Errors of the output.
pub(super) fn write(traces: &[TraceImage], out: &mut impl Write) -> io::Result<()> {
    let first = traces.iter().filter_map(|trace| Some(trace.records.first()?.ns)).min();
    let first = first.unwrap_or(0);
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut comma = "\n";
    let mut put = |event: &Value| {
        let written = write!(out, "{comma}{event}");
        comma = ",\n";
        written
    };
    for trace in traces {
        for name in names(trace) {
            put(&name)?;
        }
        let mut receives = OpenReceives::default();
        for record in &trace.records {
            let ends_receive = receives.note(record);
            for event in events(trace.pid, record, (first, ends_receive)) {
                put(&event)?;
            }
        }
    }
    writeln!(out, "\n]}}")
}

/// Receives of a process that have begun, with their number. The trace of a busy endpoint does not
/// show the begin of each.
#[derive(Debug, Default)]
struct OpenReceives(HashMap<(PortId, u64), usize>);

impl OpenReceives {
    /// Notes an event. Returns whether it ends a receive that has begun.
    fn note(&mut self, record: &TraceRecord) -> bool {
        let receive = (record.own, record.event.id);
        match record.event.kind {
            EventKind::RecvPosted | EventKind::RecvFound => {
                *self.0.entry(receive).or_default() += 1;
                false
            }
            EventKind::Received => self.0.get_mut(&receive).is_some_and(|count| {
                let begun = *count > 0;
                *count = count.saturating_sub(1);
                begun
            }),
            _ => false,
        }
    }
}

/// Returns the names of the process and its tracks.
fn names(trace: &TraceImage) -> Vec<Value> {
    let mut ports: Vec<_> = trace.records.iter().map(|record| record.own).collect();
    ports.sort_unstable();
    ports.dedup();
    let name = |kind: &str, tid: u16, name: &str| {
        json!({
            "ph": "M", "name": kind, "pid": trace.pid, "tid": tid, "args": {"name": name},
        })
    };
    let mut names = vec![name("process_name", 0, &title(trace))];
    if let Some(rank) = trace.rank {
        names.push(json!({
            "ph": "M", "name": "process_sort_index", "pid": trace.pid, "args": {"sort_index": rank},
        }));
    }
    names.extend(ports.iter().map(|own| name("thread_name", own.port, &format!("endpoint {own}"))));
    names
}

/// Returns microseconds since the first event.
fn micros(ns: u64, first: u64) -> Value {
    let ns = ns.saturating_sub(first);
    let text = format!("{}.{:03}", ns / 1000, ns % 1000);
    text.parse::<f64>().map_or(Value::Null, |us| json!(us))
}

/// Returns the event itself, then the ends of intervals and arrows at it. `first`: time of the
/// first event of all. `ends_receive`: whether it ends a receive whose begin is shown.
fn events(pid: u64, record: &TraceRecord, (first, ends_receive): (u64, bool)) -> Vec<Value> {
    let TraceRecord { own, peer, event, .. } = record;
    let ts = micros(record.ns, first);
    let at = |ph: &str, name: &str, category: &str| {
        json!({
            "ph": ph, "name": name, "cat": category, "pid": pid, "tid": own.port, "ts": ts,
        })
    };
    let with = |mut object: Value, name: &str, value: Value| {
        if let Value::Object(members) = &mut object {
            members.insert(name.to_owned(), value);
        }
        object
    };
    let args = json!({
        "peer": peer.to_string(),
        "tag": format!("0x{:x}", event.tag),
        "bytes": event.len,
        "id": event.id,
        "errno": event.err,
    });
    let instant = with(at("X", event.kind.name(), "event"), "dur", json!(0));
    let mut all = vec![with(instant, "args", args)];
    // Receives are found by their context, messages by sender, receiver and number.
    let receive = format!("r{own}/{}", event.id);
    let sent = format!("m{own}/{peer}/{}", event.id);
    let arrived = format!("m{peer}/{own}/{}", event.id);
    let interval = |ph: &str, name: &str, category: &str, id: &str| {
        // Intervals are local to a process: both sides of a message have one.
        with(at(ph, name, category), "id2", json!({"local": id}))
    };
    let arrow = |ph: &str, id: &str| {
        let arrow = with(at(ph, "message", "message"), "id", json!(id));
        if ph == "f" { with(arrow, "bp", json!("e")) } else { arrow }
    };
    match event.kind {
        EventKind::RecvPosted | EventKind::RecvFound => {
            all.push(interval("b", "receive", "receive", &receive));
        }
        EventKind::Received if ends_receive => {
            all.push(interval("e", "receive", "receive", &receive));
        }
        EventKind::RtsSent => {
            all.push(interval("b", "large send", "send", &sent));
            all.push(arrow("s", &sent));
        }
        EventKind::Ended => all.push(interval("e", "large send", "send", &sent)),
        EventKind::RtsSeen => {
            all.push(arrow("f", &arrived));
            all.push(interval("b", "announced", "arrival", &arrived));
        }
        EventKind::PullBegun | EventKind::Offered | EventKind::CtsSent => {
            all.push(interval("b", "copy", "arrival", &arrived));
        }
        EventKind::Pulled | EventKind::Shared | EventKind::Streamed => {
            all.push(interval("e", "copy", "arrival", &arrived));
            all.push(interval("e", "announced", "arrival", &arrived));
        }
        _ => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use scif::trace::TraceEvent;

    use super::*;

    const SENDER: PortId = PortId::new(0, 7);
    const RECEIVER: PortId = PortId::new(0, 8);

    fn trace(pid: u64, own: PortId, peer: PortId, events: &[(u64, EventKind)]) -> TraceImage {
        let record = |(ns, kind): &(u64, EventKind)| TraceRecord {
            ns: *ns,
            own,
            peer,
            event: TraceEvent::new(*kind, 5, 100_000, 9),
        };
        TraceImage {
            pid,
            rank: Some(pid - 100),
            command: "app".to_owned(),
            records: events.iter().map(record).collect(),
        }
    }

    #[test]
    fn a_large_message_is_an_interval_on_both_sides_and_an_arrow() {
        let traces = [
            trace(
                100,
                SENDER,
                RECEIVER,
                &[(1_000_500, EventKind::RtsSent), (1_009_000, EventKind::Ended)],
            ),
            trace(
                101,
                RECEIVER,
                SENDER,
                &[
                    (1_000_000, EventKind::RecvPosted),
                    (1_002_000, EventKind::RtsSeen),
                    (1_003_000, EventKind::PullBegun),
                    (1_008_000, EventKind::Pulled),
                    (1_008_100, EventKind::Received),
                ],
            ),
        ];
        let mut text = Vec::new();
        write(&traces, &mut text).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        assert_eq!((of("X").len(), of("b").len(), of("e").len()), (7, 4, 4));
        let (starts, ends) = (of("s"), of("f"));
        assert_eq!(starts[0]["id"], ends[0]["id"]);
        assert_eq!((&starts[0]["ts"], &ends[0]["ts"]), (&json!(0.5), &json!(2.0)));
        for begin in of("b") {
            let same = |e: &&Value| ["id2", "pid", "cat", "name"].iter().all(|m| e[m] == begin[m]);
            assert_eq!(of("e").into_iter().filter(same).count(), 1, "{begin}");
        }
        assert_eq!(of("M")[0]["args"]["name"], "rank 0: app (100)");
    }
}
