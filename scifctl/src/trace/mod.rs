// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Traces of `FI_SCIF_TRACE`: a listing, the JSON format of Chrome and Perfetto, or a copy.

mod perfetto;
mod source;

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use scif::trace::{TraceImage, TraceRecord};

use crate::args::TraceOptions;
use crate::failure::{Problem, Result};
use crate::table::columns;

/// Reads the traces, and writes them in the form that the options name.
///
/// # Errors
/// A source has no trace, or the output cannot be written.
pub(crate) fn run(options: &TraceOptions) -> Result<()> {
    // The output may be one of the sources, so it is opened after all of them are read.
    let sources: Vec<Vec<u8>> =
        options.sources.iter().map(|source| source::bytes_of(source)).collect::<Result<_>>()?;
    if options.raw {
        let mut out = output(options.output.as_deref())?;
        for bytes in &sources {
            out.write_all(bytes)?;
        }
        return Ok(out.flush()?);
    }
    let mut traces = Vec::new();
    for (source, bytes) in options.sources.iter().zip(sources) {
        let trace = TraceImage::parse(&bytes);
        traces.push(trace.map_err(|why| Problem::Failed(format!("{source}: {why}")))?);
    }
    let mut out = output(options.output.as_deref())?;
    if options.perfetto {
        perfetto::write(&traces, &mut out)?;
    } else {
        out.write_all(listing(&traces, options.last).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Opens the output: a file, or the standard output.
fn output(file: Option<&Path>) -> Result<BufWriter<Box<dyn Write>>> {
    let Some(file) = file else { return Ok(BufWriter::new(Box::new(io::stdout()))) };
    let mut created = OpenOptions::new();
    let opened = created.write(true).create(true).truncate(true).mode(0o600).open(file);
    let opened = opened.map_err(|e| Problem::Failed(format!("{}: {e}", file.display())))?;
    Ok(BufWriter::new(Box::new(opened)))
}

/// Returns a line for each of the last events of all traces.
fn listing(traces: &[TraceImage], last: usize) -> String {
    let mut all: Vec<(&TraceImage, &TraceRecord)> = traces
        .iter()
        .flat_map(|trace| trace.records.iter().map(move |record| (trace, record)))
        .collect();
    all.sort_by_key(|(_, record)| record.ns);
    let count = all.len();
    let first = all.first().map_or(0, |(_, record)| record.ns);
    let rows: Vec<Vec<String>> = all
        .iter()
        .skip(count.saturating_sub(last))
        .map(|(trace, record)| row(trace, record, first))
        .collect();
    let head = ["SECONDS", "RANK", "OWN", "EVENT", "PEER", "TAG", "BYTES", "ID", "ERRNO"];
    format!("{}{} of {count} events\n", columns(&head, &rows), rows.len())
}

fn row(trace: &TraceImage, record: &TraceRecord, first: u64) -> Vec<String> {
    let (event, ns) = (record.event, record.ns.saturating_sub(first));
    let dash = || "-".to_owned();
    vec![
        format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
        trace.rank.map_or_else(|| format!("pid {}", trace.pid), |rank| rank.to_string()),
        record.own.to_string(),
        event.kind.name().to_owned(),
        if record.peer.port == 0 { dash() } else { record.peer.to_string() },
        format!("0x{:x}", event.tag),
        event.len.to_string(),
        format!("{:06x}", event.id),
        if event.err == 0 { dash() } else { event.err.to_string() },
    ]
}

#[cfg(test)]
mod tests {
    use scif::PortId;
    use scif::trace::{EventKind, TraceEvent, TraceRing};

    use super::*;
    use crate::hostile::{INPUTS, Words};

    /// Returns the bytes of a trace with one event of each kind, and the offset of the events.
    fn good_trace() -> (Vec<u8>, usize) {
        let ring = TraceRing::new("program", Some(5), 2).unwrap();
        let empty = ring.end().unwrap().1;
        let ring: &'static TraceRing = Box::leak(Box::new(ring));
        let mut writer = ring.writer(PortId::new(2, 7));
        for (at, kind) in EventKind::ALL.iter().enumerate() {
            writer.record(writer.names(PortId::new(2, 8)), &TraceEvent::new(*kind, 5, at, 9));
        }
        let mut bytes = vec![0; empty + 32 * (1 + EventKind::ALL.len())];
        let (map, _) = ring.end().unwrap();
        map.bytes_to_read(0, bytes.len()).unwrap().copy_to_slice(&mut bytes);
        (bytes, empty)
    }

    #[test]
    fn any_trace_is_listed_and_converted() {
        let (good, events) = good_trace();
        assert_eq!(TraceImage::parse(&good).unwrap().records.len(), EventKind::ALL.len());
        let mut words = Words(0x1234_5678_9abc_def1);
        let mut read = 0;
        for _ in 0..INPUTS {
            let mut bytes = good.clone();
            words.spoil(&mut bytes[events..]);
            if words.below(2) == 0 {
                words.spoil(&mut bytes[8..128]);
            }
            if words.below(16) == 0 {
                words.spoil(&mut bytes);
                bytes.truncate(words.below(good.len()));
            }
            let Ok(image) = TraceImage::parse(&bytes) else { continue };
            read += 1;
            let traces = [image];
            assert!(!listing(&traces, 10).is_empty());
            perfetto::write(&traces, &mut io::sink()).unwrap();
        }
        assert!(read > INPUTS / 2, "{read}");
    }

    #[test]
    fn the_last_events_of_all_processes_are_listed_in_one_order() {
        let own = PortId::new(0, 61_000);
        let record = |ns, kind| TraceRecord {
            ns,
            own,
            peer: PortId::new(0, 61_001),
            event: TraceEvent::new(kind, 0x1234_5678_9abc_def0, 4 << 20, 0xff_ffff).failed(111),
        };
        let trace = |pid, records| TraceImage { pid, records, ..TraceImage::default() };
        let traces = [
            trace(4_000_001, vec![record(5, EventKind::PeerUp), record(9, EventKind::Shared)]),
            trace(4_000_002, vec![record(7, EventKind::SentInline)]),
        ];
        let text = listing(&traces, 2);
        assert!(text.ends_with("2 of 3 events\n"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("send inline") && lines[1].starts_with("0.000000002"), "{text}");
        assert!(lines[2].contains("shared copy"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
    }
}
