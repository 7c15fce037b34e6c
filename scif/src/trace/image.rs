// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Trace of a process as a reader sees it. Its bytes may be anything: nothing in them is an index
//! or a length.

use scif_ring::{KEPT, SHORT_BIT, chunks, chunks_mut};

use crate::addr::PortId;
use crate::trace::event::TraceEvent;
use crate::trace::layout::{
    CHUNK_RECORDS, CHUNKS, COMMAND_WORDS, Field, MAGIC, RECORD_WORDS, RECORDS, decode, lengthen,
};
use crate::trace::ring::clocks;

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
        let same = again.next().map_or(0, |again| same_bytes(record, again));
        if let Some(changed) = record.get_mut(same..) {
            changed.fill(0);
        }
    }
    let (ticks, ns) = clocks();
    for (field, value) in [(Field::EndTicks, ticks), (Field::EndNs, ns)] {
        if let Some(word) = chunks_mut(first).nth(field as usize) {
            *word = value.to_ne_bytes();
        }
    }
}

/// Returns how many of the first bytes of a record are the same in another copy: all, none, or
/// those of the first of two short records.
fn same_bytes(record: &[u8], again: &[u8]) -> usize {
    const HALF: usize = RECORD_BYTES / 2;
    if record == again {
        return RECORD_BYTES;
    }
    let first = chunks(record).next().map_or(0, |word| u64::from_ne_bytes(*word));
    let is_same = first & SHORT_BIT != 0 && record.get(..HALF) == again.get(..HALF);
    if is_same { HALF } else { 0 }
}

/// Clock of the records of a trace, in nanoseconds.
struct Scale {
    start: (u64, u64),
    end: (u64, u64),
}

impl Scale {
    /// Reads the scale from the words of a trace.
    fn of(words: &[u64]) -> Scale {
        let field = |field: Field| words.get(field as usize).copied().unwrap_or(0);
        Scale {
            start: (field(Field::StartTicks), field(Field::StartNs)),
            end: (field(Field::EndTicks), field(Field::EndNs)),
        }
    }

    /// Returns the time of a record in nanoseconds; `None` if no trace has it.
    fn ns(&self, ticks: u64) -> Option<u64> {
        let ticks = u128::from(ticks.checked_sub(self.start.0)?);
        let span = u128::from(self.end.0.checked_sub(self.start.0)?);
        let ns = u128::from(self.end.1.checked_sub(self.start.1)?);
        let since = u64::try_from(ticks * ns / span.max(1)).ok()?;
        self.start.1.checked_add(since)
    }
}

/// Record with its time.
type TimedWords = (u64, [u64; RECORD_WORDS - 1]);

/// Returns the records of a chunk in the order in which they were made since its first place.
/// Behind the newest one, older ones may follow.
fn records_of(chunk: &[&[u64; RECORD_WORDS]], start: u64) -> Vec<TimedWords> {
    let mut records = Vec::with_capacity(2 * CHUNK_RECORDS);
    // Time and names of the last record, which short ones have as well.
    let mut head = None;
    for [first, second, third, fourth] in chunk.iter().skip(1) {
        if first & SHORT_BIT == 0 {
            head = (*first != 0).then_some((*first, *second));
            records.extend(head.map(|(time, names)| (time, [names, *third, *fourth])));
            continue;
        }
        for short in [[*first, *second], [*third, *fourth]] {
            // Those of an older run have none: a newer record has replaced it.
            head = head.filter(|_| short[0] & SHORT_BIT != 0);
            records.extend(head.map(|(time, names)| (time, lengthen(names, short))));
        }
    }
    if let Some([KEPT, kept @ ..]) = chunk.first() {
        // An arrival that is kept is the last event of its endpoint.
        let newest = records.iter().map(|(time, _)| *time).max().unwrap_or(0);
        records.push((newest.max(start), *kept));
    }
    records
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
        let scale = Scale::of(&words);
        let name =
            (0..COMMAND_WORDS).flat_map(|at| word(Field::Command as usize + at).to_ne_bytes());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        let command = String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect();
        let node = u16::try_from(field(Field::Node)).unwrap_or(0);
        let places: Vec<&[u64; RECORD_WORDS]> =
            chunks(words.get(RECORDS..).unwrap_or_default()).collect();
        let mut records: Vec<TraceRecord> = places
            .chunks(CHUNK_RECORDS)
            .take(CHUNKS)
            .flat_map(|chunk| records_of(chunk, scale.start.0))
            .filter_map(|(time, rest)| {
                let (port, peer, event) = decode(rest)?;
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
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::sys::time::now_ns;
    use crate::trace::event::EventKind;
    use crate::trace::ring::{TraceRing, TraceWriter, clock};

    const OWN: PortId = PortId::new(2, 7);
    const PEER: PortId = PortId::new(2, 8);

    fn ring() -> &'static TraceRing {
        Box::leak(Box::new(TraceRing::new("program", Some(5), 2).unwrap()))
    }

    fn put(writer: &mut TraceWriter, event: TraceEvent) {
        writer.record(writer.names(PEER), &event);
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
            put(&mut writers[n % 2], TraceEvent::new(EventKind::SentRing, n as u64, n, 0));
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
        put(&mut few, TraceEvent::new(EventKind::PeerUp, 0, 0, 0));
        for n in 0..3_000_000 {
            put(&mut many, TraceEvent::new(EventKind::Received, n, 8, n));
        }
        let image = TraceImage::parse(&bytes(ring)).unwrap();
        let kept = image.records.len();
        assert!(kept > 1_000_000, "{kept}");
        assert_eq!(image.records[0].event.kind, EventKind::PeerUp, "its chunk is still open");
        assert_eq!(image.records[kept - 1].event.tag, 2_999_999);
        drop(few);
        for n in 0..CHUNK_RECORDS as u64 {
            put(&mut many, TraceEvent::new(EventKind::Received, n, 8, n));
        }
        assert!(TraceImage::parse(&bytes(ring)).is_ok());
    }

    #[test]
    fn a_record_that_changes_between_two_copies_is_dropped() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        for tag in 0..10 {
            put(&mut writer, TraceEvent::new(EventKind::Received, tag, 8, 0));
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

    /// Event with a number: mostly an arrival from one peer, sometimes another kind or peer.
    fn mixed(n: u64) -> (PortId, TraceEvent) {
        let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let kind = match random % 100 {
            0..=1 => EventKind::Unexpected,
            2..=20 => EventKind::SentInline,
            _ => EventKind::Received,
        };
        let peer = if random % 7 == 0 && random % 11 == 0 { OWN } else { PEER };
        let len = if random % 1000 == 0 { 1 << 39 } else { 8 };
        (peer, TraceEvent::new(kind, n, len, 0))
    }

    #[test]
    fn records_of_a_run_are_not_taken_for_those_of_another() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        let mut at = 0;
        for end in [100, 101, 102, 103, 1_500_000, 2_200_000, 2_200_001, 2_200_002, 2_200_003] {
            for n in at..end {
                if n % 5003 == 0 {
                    writer.note_progress((n / 5003 % 8 > 0).then_some(u64::MAX));
                }
                let (peer, event) = mixed(n);
                let names = writer.names(peer);
                let is_recorded = match event.kind {
                    EventKind::Received => writer.try_record_arrival(names, &event),
                    EventKind::SentInline => writer.try_record_send(names, &event),
                    _ => false,
                };
                if !is_recorded {
                    writer.record(names, &event);
                }
            }
            at = end;
            let records = TraceImage::parse(&bytes(ring)).unwrap().records;
            let tags = || records.iter().map(|record| record.event.tag);
            assert!(tags().zip(tags().skip(1)).all(|(tag, next)| next == tag + 1));
            assert_eq!(
                (tags().next_back(), records.len() as u64 >= end.min(1_000_000)),
                (Some(end - 1), true)
            );
            for record in &records {
                let (peer, event) = mixed(record.event.tag);
                assert_eq!(
                    (record.peer, record.event),
                    (peer, TraceEvent { id: record.event.id, ..event })
                );
            }
        }
    }

    #[test]
    fn a_short_record_that_changes_leaves_the_one_before() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        writer.note_progress(Some(u64::MAX));
        for tag in 0..10 {
            put(&mut writer, TraceEvent::new(EventKind::Received, tag, 8, 0));
        }
        // Place 1 has the first one, place 2 the head of a run, place 3 two short ones.
        let place = |at| RECORDS + at * RECORD_WORDS;
        for (word, left) in [(place(3) + 2, 3), (place(3), 2), (place(2), 1)] {
            let mut first = bytes(ring);
            let mut second = first.clone();
            second[8 * word] ^= 1;
            confirm(&mut first, &second);
            let records = TraceImage::parse(&first).unwrap().records;
            let tags: Vec<u64> = records.iter().map(|record| record.event.tag).collect();
            assert_eq!(tags, (0..left).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn arrivals_share_one_reading_with_the_next_event() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        let mut record = |kind, tag| put(&mut writer, TraceEvent::new(kind, tag, 8, 0));
        record(EventKind::SentInline, 0);
        writer.note_progress(Some(0));
        let mut record = |kind, tag| put(&mut writer, TraceEvent::new(kind, tag, 8, 0));
        record(EventKind::Received, 1);
        let image = || TraceImage::parse(&bytes(ring)).unwrap().records;
        let kept = image();
        assert_eq!((kept[1].event.tag, kept[1].ns), (1, kept[0].ns), "the time is not known yet");
        record(EventKind::SentInline, 2);
        (3..68).for_each(|tag| record(EventKind::Received, tag));
        let after = image();
        assert_eq!(after[1].ns, after[2].ns);
        let tags: Vec<u64> = after.iter().map(|record| record.event.tag).collect();
        assert_eq!(tags, (0..68).collect::<Vec<u64>>());
        let mut times: Vec<u64> = after.iter().map(|record| record.ns).collect();
        times.dedup();
        assert_eq!(times.len(), 3, "a reading for 64 arrivals; the last one is kept");
        writer.note_progress(None);
        put(&mut writer, TraceEvent::new(EventKind::Received, 68, 8, 0));
        let last = image();
        assert_eq!((last[67].event.tag, last.len()), (67, 69));
        assert!(last[66].ns < last[67].ns && last[67].ns < last[68].ns);
    }

    /// Records `count` events, each behind a pause. Returns the readings of the clock around each.
    fn timed(
        writer: &mut TraceWriter,
        kind: EventKind,
        count: u64,
        pause: Duration,
    ) -> Vec<(u64, u64)> {
        let mut event = |tag| {
            thread::sleep(pause);
            let (names, event) = (writer.names(PEER), TraceEvent::new(kind, tag, 8, tag));
            let before = clock();
            let is_recorded = match kind {
                EventKind::Received => writer.try_record_arrival(names, &event),
                _ => writer.try_record_send(names, &event),
            };
            if !is_recorded {
                put(writer, event);
            }
            (before, clock())
        };
        (0..count).map(&mut event).collect()
    }

    /// Returns the events of a trace in memory, and its clock.
    fn events(ring: &TraceRing) -> (Vec<TraceRecord>, Scale) {
        let bytes = bytes(ring);
        let words: Vec<u64> = chunks(&bytes).map(|word| u64::from_ne_bytes(*word)).collect();
        (TraceImage::parse(&bytes).unwrap().records, Scale::of(&words))
    }

    #[test]
    fn shared_times_are_within_their_bounds() {
        for (kind, sharers) in [(EventKind::Received, 64), (EventKind::SentInline, 16)] {
            let ring = ring();
            let mut writer = ring.writer(OWN);
            writer.note_progress(Some(u64::MAX));
            let happened = timed(&mut writer, kind, 3000, Duration::ZERO);
            for tag in [3000, 3001] {
                put(&mut writer, TraceEvent::new(EventKind::PeerLost, tag, 8, 0));
            }
            let (records, scale) = events(ring);
            let tags: Vec<u64> = records.iter().map(|record| record.event.tag).collect();
            assert_eq!(tags, (0..=3001).collect::<Vec<u64>>());
            assert!(records.iter().all(|record| record.event.len == 8));
            let mut times: Vec<u64> = records.iter().map(|record| record.ns).collect();
            times.dedup();
            assert!((3000 / sharers..3000 / sharers + 32).contains(&times.len()));
            let mut time_before = 0;
            for (record, (begin, end)) in records.iter().zip(happened) {
                let (begin, end) = (scale.ns(begin).unwrap(), scale.ns(end).unwrap());
                let next = times.iter().find(|time| **time > record.ns).unwrap();
                let is_kept = kind == EventKind::Received && time_before < record.ns;
                let least = if is_kept { time_before } else { record.ns };
                assert!(least <= end && begin <= *next, "{record:?} {begin} {end} {next}");
                time_before = record.ns;
            }
        }
    }

    #[test]
    fn sends_behind_a_pause_have_times_of_their_own() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        writer.note_progress(Some(1000));
        timed(&mut writer, EventKind::SentInline, 100, Duration::ZERO);
        let pause = Duration::from_micros(200);
        let happened = timed(&mut writer, EventKind::SentInline, 40, pause);
        let (records, scale) = events(ring);
        for (record, (begin, end)) in records[100..].iter().zip(happened).skip(15) {
            let bounds = scale.ns(begin).unwrap()..=scale.ns(end).unwrap();
            assert!(bounds.contains(&record.ns), "{record:?} {bounds:?}");
        }
    }

    #[test]
    fn no_time_is_shared_beyond_a_reading_without_events() {
        for kind in [EventKind::Received, EventKind::SentInline] {
            let ring = ring();
            let mut writer = ring.writer(OWN);
            writer.note_progress(Some(u64::MAX));
            timed(&mut writer, kind, 100, Duration::ZERO);
            // The first of these readings is behind events, the second is not.
            writer.note_progress(Some(u64::MAX));
            writer.note_progress(Some(u64::MAX));
            let happened = timed(&mut writer, kind, 1, Duration::from_millis(1));
            put(&mut writer, TraceEvent::new(EventKind::PeerLost, 0, 8, 0));
            let (records, scale) = events(ring);
            assert!(records[100].ns >= scale.ns(happened[0].0).unwrap(), "{kind:?}");
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let ring = ring();
        let mut writer = ring.writer(OWN);
        for tag in 0..96 {
            if tag == 48 {
                writer.note_progress(Some(u64::MAX));
            }
            put(&mut writer, TraceEvent::new(EventKind::Received, tag, 8, 0));
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
