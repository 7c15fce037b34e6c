// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Trace of a process as a reader sees it. Its bytes may be anything: nothing in them is an index
//! or a length.

use scif_ring::{chunks, chunks_mut};

use crate::addr::PortId;
use crate::sys::time::now_ns;
use crate::trace::event::TraceEvent;
use crate::trace::layout::{
    CHUNK_WORDS, CHUNKS, COMMAND_WORDS, Field, MAGIC, RECORD_WORDS, RECORDS, decode,
};
use crate::trace::ring::clock;

/// Bytes of the largest trace.
pub const TRACE_MAX: u64 = super::layout::TRACE_BYTES as u64;

/// Event with its time and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub ns: u64,
    /// Endpoint that recorded the event.
    pub own: PortId,
    /// Peer; port 0 if none.
    pub peer: PortId,
    /// Event.
    pub event: TraceEvent,
}

/// Trace of one process.
#[derive(Clone, Debug, Default)]
pub struct TraceImage {
    /// Process.
    pub pid: u64,
    /// Rank that its launcher told.
    pub rank: Option<u64>,
    /// Name of the program.
    pub command: String,
    /// Events, the oldest first.
    pub records: Vec<TraceRecord>,
}

/// Number of bytes of a record.
const RECORD_BYTES: usize = 8 * RECORD_WORDS;

/// Removes from a copy of the trace of a running process every record that another copy, made
/// later, shows differently: it was being written. Also notes the time of the copy.
pub fn confirm(first: &mut [u8], second: &[u8]) {
    let mut again = second.chunks_exact(RECORD_BYTES).skip(RECORDS / RECORD_WORDS);
    for record in first.chunks_exact_mut(RECORD_BYTES).skip(RECORDS / RECORD_WORDS) {
        if again.next() != Some(&*record) {
            record.fill(0);
        }
    }
    for (field, value) in [(Field::EndTicks, clock()), (Field::EndNs, now_ns())] {
        if let Some(word) = chunks_mut(first).nth(field as usize) {
            *word = value.to_ne_bytes();
        }
    }
}

/// Clock of the records of a trace, in nanoseconds.
struct Scale {
    start: (u64, u64),
    end: (u64, u64),
}

impl Scale {
    /// Returns the time of a record in nanoseconds; `None` if no trace has it.
    fn ns(&self, ticks: u64) -> Option<u64> {
        let ticks = u128::from(ticks.checked_sub(self.start.0)?);
        let span = u128::from(self.end.0.checked_sub(self.start.0)?);
        let ns = u128::from(self.end.1.checked_sub(self.start.1)?);
        let since = u64::try_from(ticks * ns / span.max(1)).ok()?;
        self.start.1.checked_add(since)
    }
}

impl TraceImage {
    /// Reads the bytes of a trace.
    ///
    /// # Errors
    /// Text: the bytes are no trace, or one of another version.
    pub fn parse(bytes: &[u8]) -> Result<TraceImage, String> {
        let words: Vec<u64> = chunks(bytes).map(|word| u64::from_ne_bytes(*word)).collect();
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        let field = |field: Field| word(field as usize);
        if field(Field::Magic) != MAGIC {
            return Err("no trace of FI_SCIF_TRACE, or one of another version".to_owned());
        }
        let scale = Scale {
            start: (field(Field::StartTicks), field(Field::StartNs)),
            end: (field(Field::EndTicks), field(Field::EndNs)),
        };
        let name =
            (0..COMMAND_WORDS).flat_map(|at| word(Field::Command as usize + at).to_ne_bytes());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        let command = String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect();
        let node = u16::try_from(field(Field::Node)).unwrap_or(0);
        let mut records: Vec<TraceRecord> = chunks(words.get(RECORDS..).unwrap_or_default())
            .take(CHUNKS * CHUNK_WORDS / RECORD_WORDS)
            .filter_map(|&[time, names, tag, size]: &[u64; RECORD_WORDS]| {
                let (port, peer, event) = decode([names, tag, size]).filter(|_| time != 0)?;
                Some(TraceRecord { ns: scale.ns(time)?, own: PortId::new(node, port), peer, event })
            })
            .collect();
        records.sort_by_key(|record| record.ns);
        let rank = field(Field::Rank).checked_sub(1);
        Ok(TraceImage { pid: field(Field::Pid), rank, command, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::event::EventKind;
    use crate::trace::layout::CHUNK_RECORDS;
    use crate::trace::ring::TraceRing;

    const OWN: PortId = PortId::new(2, 7);
    const PEER: PortId = PortId::new(2, 8);

    fn ring() -> &'static TraceRing {
        Box::leak(Box::new(TraceRing::new("program", Some(5), 2).unwrap()))
    }

    fn bytes(ring: &TraceRing) -> Vec<u8> {
        let (map, len) = ring.end().unwrap();
        let mut bytes = vec![0; len];
        map.bytes_to_read(0, len).unwrap().copy_to_slice(&mut bytes);
        bytes
    }

    #[test]
    fn events_are_read_in_their_order() {
        let ring = ring();
        let mut writers = [ring.writer(OWN), ring.writer(PEER)];
        let before = now_ns();
        for n in 0..2000_usize {
            writers[n % 2].record(PEER, &TraceEvent::new(EventKind::SentRing, n as u64, n, 0));
        }
        let image = TraceImage::parse(&bytes(ring)).unwrap();
        assert_eq!((image.rank, image.command.as_str()), (Some(5), "program"));
        assert_eq!(image.pid, u64::from(std::process::id()));
        let tags: Vec<u64> = image.records.iter().map(|record| record.event.tag).collect();
        assert_eq!(tags, (0..2000).collect::<Vec<u64>>());
        let times = image.records.iter().map(|record| record.ns);
        assert!(times.clone().is_sorted() && times.clone().all(|ns| ns <= now_ns()));
        // The two clocks were not read at one instant.
        assert!(times.clone().all(|ns| ns + 1_000_000 >= before));
        assert_eq!((image.records[0].own, image.records[1].own), (OWN, PEER));
    }

    #[test]
    fn a_million_events_are_kept_beside_an_endpoint_with_few() {
        let ring = ring();
        let (mut few, mut many) = (ring.writer(PEER), ring.writer(OWN));
        few.record(PEER, &TraceEvent::new(EventKind::PeerUp, 0, 0, 0));
        for n in 0..3_000_000 {
            many.record(PEER, &TraceEvent::new(EventKind::Received, n, 8, n));
        }
        let image = TraceImage::parse(&bytes(ring)).unwrap();
        let kept = image.records.len();
        assert!(kept > 1_000_000, "{kept}");
        assert_eq!(image.records[0].event.kind, EventKind::PeerUp, "its chunk is still open");
        assert_eq!(image.records[kept - 1].event.tag, 2_999_999);
        drop(few);
        for n in 0..CHUNK_RECORDS as u64 {
            many.record(PEER, &TraceEvent::new(EventKind::Received, n, 8, n));
        }
        assert!(TraceImage::parse(&bytes(ring)).is_ok());
    }

    #[test]
    fn a_record_that_changes_between_two_copies_is_dropped() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        for tag in 0..10 {
            writer.record(PEER, &TraceEvent::new(EventKind::Received, tag, 8, 0));
        }
        let mut first = bytes(ring);
        let mut second = first.clone();
        let torn = 8 * (RECORDS + 3 * RECORD_WORDS + 2);
        second[torn] ^= 1;
        confirm(&mut first, &second);
        let tags: Vec<u64> =
            TraceImage::parse(&first).unwrap().records.iter().map(|r| r.event.tag).collect();
        assert_eq!(tags, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        for tag in 0..64 {
            writer.record(PEER, &TraceEvent::new(EventKind::Received, tag, 8, 0));
        }
        let good = bytes(ring);
        let good = good.get(..8 * (RECORDS + 64 * RECORD_WORDS)).unwrap();
        let mut seed = 0x1234_5678_9abc_def1_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..2000 {
            let mut bytes = good.to_vec();
            for _ in 0..1 + random() % 8 {
                let at = usize::try_from(random()).unwrap() % bytes.len();
                let places = [at, at % 128, at % (8 * RECORDS)];
                let place = places[usize::try_from(random() % 3).unwrap()];
                bytes[place] = random().to_le_bytes()[0];
            }
            bytes.truncate(bytes.len() - usize::try_from(random() % 100).unwrap());
            let _ = TraceImage::parse(&bytes);
        }
        assert!(TraceImage::parse(&[]).is_err());
    }
}
