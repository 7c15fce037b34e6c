// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Trace of a process as a reader sees it. Its bytes may be anything: nothing in them is an index
//! or a length.

use scif_ring::{KEPT, chunks, chunks_mut};

use crate::addr::PortId;
use crate::sys::time::now_ns;
use crate::trace::event::TraceEvent;
use crate::trace::layout::{
    CHUNK_RECORDS, CHUNKS, COMMAND_WORDS, Field, MAGIC, RECORD_WORDS, RECORDS, decode,
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
        let records: Vec<&[u64; RECORD_WORDS]> =
            chunks(words.get(RECORDS..).unwrap_or_default()).collect();
        let mut records: Vec<TraceRecord> = records
            .chunks(CHUNK_RECORDS)
            .take(CHUNKS)
            .flat_map(|chunk| {
                // An arrival that is kept is the last event of its endpoint.
                let newest = chunk.iter().map(|record| record[0]).max().unwrap_or(0);
                let newest = if newest == KEPT { scale.start.0 } else { newest };
                chunk.iter().skip(1).chain(chunk.first()).map(move |record| match **record {
                    [KEPT, ref rest @ ..] => (newest, *rest),
                    [time, ref rest @ ..] => (time, *rest),
                })
            })
            .filter_map(|(time, rest)| {
                let (port, peer, event) = decode(rest).filter(|_| time != 0)?;
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
        let torn = 8 * (RECORDS + 4 * RECORD_WORDS + 2);
        second[torn] ^= 1;
        confirm(&mut first, &second);
        let tags: Vec<u64> =
            TraceImage::parse(&first).unwrap().records.iter().map(|r| r.event.tag).collect();
        assert_eq!(tags, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn arrivals_share_one_reading_with_the_next_event() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        let mut record = |kind, tag| writer.record(PEER, &TraceEvent::new(kind, tag, 8, 0));
        record(EventKind::SentInline, 0);
        writer.note_progress(true);
        let mut record = |kind, tag| writer.record(PEER, &TraceEvent::new(kind, tag, 8, 0));
        record(EventKind::Received, 1);
        let image = || TraceImage::parse(&bytes(ring)).unwrap().records;
        let kept = image();
        assert_eq!((kept[1].event.tag, kept[1].ns), (1, kept[0].ns), "the time is not known yet");
        record(EventKind::SentInline, 2);
        (3..100).for_each(|tag| record(EventKind::Received, tag));
        let after = image();
        assert_eq!(after[1].ns, after[2].ns);
        let tags: Vec<u64> = after.iter().map(|record| record.event.tag).collect();
        assert_eq!(tags, (0..100).collect::<Vec<u64>>());
        let mut times: Vec<u64> = after.iter().map(|record| record.ns).collect();
        times.dedup();
        assert_eq!(times.len(), 2 + 97 / 16, "a reading for 16 arrivals");
        writer.note_progress(false);
        writer.record(PEER, &TraceEvent::new(EventKind::Received, 100, 8, 0));
        let last = image();
        assert_eq!((last[99].event.tag, last.len()), (99, 101));
        assert!(last[98].ns < last[99].ns && last[99].ns < last[100].ns);
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
