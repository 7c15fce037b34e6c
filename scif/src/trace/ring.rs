// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Trace of this process in memory, and its writers, one for each endpoint.
//!
//! The memory is a memfd, so that another process of the same user can read it at any time. Each
//! writer fills a chunk of its own, so writers share no word but the number of chunks taken.

use rustix::io::Errno;
use scif_ring::copy::ticks;
use scif_ring::{RecordCursor, Run, SharedU64, SharedWords};

use crate::addr::PortId;
use crate::sys::fork::{Maker, PrivateFd};
use crate::sys::memfd;
use crate::sys::mmap::Mapping;
use crate::sys::process;
use crate::sys::time::now_ns;
use crate::trace::event::{EventKind, TraceEvent};
use crate::trace::layout::{
    CHUNK_RECORDS, CHUNK_WORDS, CHUNKS, COMMAND_WORDS, Field, MAGIC, RECORDS, STATES, TRACE_BYTES,
    TraceNames, encode, shorten,
};

/// Name of the memfd, by which readers find it.
pub(crate) const MEMFD_NAME: &str = "scif-trace";

/// Bytes between a record and the line that is prefetched with it: eight lines. A smaller number
/// prefetches too late; then the next message waits behind the store of its record.
const AHEAD: usize = 512;

/// Number of arrivals that may share one reading of the clock. A larger number saves little and
/// makes more times inexact.
const ARRIVALS: usize = 64;
/// Number of sends that may share one. A larger number makes more times inexact behind a pause: a
/// program that computes between its sends without a poll has no tick which would show it.
const SENDS: usize = 16;

/// Returns the clock of records.
#[inline]
pub(crate) fn clock() -> u64 {
    // These counters are never 0 in practice; other targets have none.
    let counts = cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && !cfg!(miri);
    if counts { ticks() } else { now_ns() }
}

/// Returns the clock of records and that of the system, read at nearly one instant: of several
/// pairs the one that a pause of the thread has not parted.
pub(crate) fn clocks() -> (u64, u64) {
    let pair = |_| {
        let (before, ns) = (clock(), now_ns());
        (clock().saturating_sub(before), before, ns)
    };
    let (_, ticks, ns) = (0..4).map(pair).min().unwrap_or_default();
    (ticks, ns)
}

/// Trace of this process.
#[derive(Debug)]
pub struct TraceRing {
    words: SharedWords,
    map: Mapping,
    creator: Maker,
    /// Keeps the memory visible in /proc.
    _fd: PrivateFd,
}

impl TraceRing {
    /// Creates the trace of this process, a program named `command` with this rank.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(command: &str, rank: Option<u64>, node: u16) -> Result<TraceRing, Errno> {
        let (fd, map) = memfd::create_to_show(MEMFD_NAME, TRACE_BYTES)?;
        map.populate();
        let words = map.words(0, TRACE_BYTES / 8).map_err(|_| Errno::NOMEM)?;
        let ring = TraceRing { words, map, creator: Maker::here(), _fd: PrivateFd::new(fd) };
        ring.set(Field::Pid, u64::from(process::pid().unsigned_abs()));
        ring.set(Field::Rank, rank.map_or(0, |rank| rank.saturating_add(1)));
        ring.set(Field::Node, u64::from(node));
        let mut name = command.bytes().chain(std::iter::repeat(0));
        for at in 0..COMMAND_WORDS {
            let bytes: [u8; 8] = std::array::from_fn(|_| name.next().unwrap_or(0));
            ring.put(Field::Command as usize + at, u64::from_ne_bytes(bytes));
        }
        let (ticks, ns) = clocks();
        ring.set(Field::StartTicks, ticks);
        ring.set(Field::StartNs, ns);
        ring.set(Field::Magic, MAGIC);
        Ok(ring)
    }

    fn set(&self, field: Field, value: u64) {
        self.put(field as usize, value);
    }

    fn put(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.set(value);
        }
    }

    fn word(&self, at: usize) -> Option<SharedU64> {
        self.words.get(at)
    }

    /// Returns a writer for the endpoint at a port.
    #[must_use]
    pub fn writer(&'static self, own: PortId) -> TraceWriter {
        TraceWriter::new(own, Some(self))
    }

    /// Whether the trace belongs to a process that has forked this one.
    pub(crate) fn is_inherited(&self) -> bool {
        self.creator.is_ancestor()
    }

    /// Returns the ticks of the clock of records in a number of nanoseconds, as measured since the
    /// start of the trace.
    fn ticks_in(&self, ns: u64) -> u64 {
        let start = |field: Field| self.word(field as usize).map_or(0, |word| word.get());
        let (ticks, elapsed) = clocks();
        let ticks = ticks.saturating_sub(start(Field::StartTicks));
        ticks.saturating_mul(ns) / elapsed.saturating_sub(start(Field::StartNs)).max(1)
    }

    /// Notes the time of the end, and returns the mapping and the length of its used part. A forked
    /// child has no trace. Makes no system call but that of the clock, so that it can run in a
    /// signal handler.
    pub fn end(&self) -> Option<(&Mapping, usize)> {
        if self.creator.is_ancestor() {
            return None;
        }
        let (ticks, ns) = clocks();
        self.set(Field::EndTicks, ticks);
        self.set(Field::EndNs, ns);
        let taken = self.word(Field::Taken as usize)?.get();
        let chunks = usize::try_from(taken).unwrap_or(CHUNKS).min(CHUNKS);
        Some((&self.map, 8 * (RECORDS + chunks * CHUNK_WORDS)))
    }

    /// Takes a chunk that no other writer fills: the one unused for the longest time.
    fn take_chunk(&self) -> Option<usize> {
        let taken = self.word(Field::Taken as usize)?;
        (0..CHUNKS).find_map(|_| {
            let chunk = usize::try_from(taken.add(1)).ok()? % CHUNKS;
            // SYNC POINT: pairs with the `set` of `release_chunk`. The former writer has finished
            // its last record.
            self.word(STATES + chunk)?.compare_exchange(0, 1).then_some(chunk)
        })
    }

    /// Returns a cursor over the records of a chunk.
    fn chunk(&self, chunk: usize) -> Option<RecordCursor> {
        self.words.records(RECORDS + chunk * CHUNK_WORDS, CHUNK_RECORDS)
    }

    fn release_chunk(&self, chunk: usize) {
        if let Some(state) = self.word(STATES + chunk) {
            state.set(0);
        }
    }
}

/// Whether an event may share the reading of another send.
fn is_send(event: &TraceEvent) -> bool {
    matches!(event.kind, EventKind::SentInline | EventKind::SentRing)
}

/// Sends in close succession, which may share a reading of the clock.
#[derive(Debug, Default)]
struct SendBurst {
    /// Ticks that a send may take on average; 0: none shares a reading.
    longest: u64,
    /// Number of sends that share the last reading with the one that made it.
    sharers: usize,
}

impl SendBurst {
    /// Determines how many sends may share a reading, made `elapsed` ticks after the one before.
    /// The number grows while readings follow each other closely, and is 0 after a pause.
    fn on_reading(&mut self, elapsed: u64) -> usize {
        let is_close = elapsed < self.longest.saturating_mul(self.sharers as u64 + 1);
        self.sharers = if is_close { (2 * self.sharers + 1).min(SENDS - 1) } else { 0 };
        self.sharers
    }
}

/// Writer of the events of one endpoint.
#[derive(Debug)]
pub struct TraceWriter {
    /// Records of the chunk that are not used yet.
    cursor: RecordCursor,
    /// Last reading of the clock.
    last: u64,
    /// Second word of the last record, or of the kept one: short records of a run have it as well.
    head: u64,
    burst: SendBurst,
    /// Whether arrivals share readings of the clock, with each other and with the next event.
    shares: bool,
    /// Place of the next record at the last call of [`TraceWriter::note_progress`].
    noted: usize,
    port: u16,
    chunk: Option<usize>,
    ring: Option<&'static TraceRing>,
}

impl TraceWriter {
    /// Returns a writer that records nothing.
    #[must_use]
    pub fn off(own: PortId) -> TraceWriter {
        TraceWriter::new(own, None)
    }

    fn new(own: PortId, ring: Option<&'static TraceRing>) -> TraceWriter {
        TraceWriter {
            cursor: RecordCursor::full(),
            last: 0,
            head: 0,
            burst: SendBurst::default(),
            shares: false,
            noted: 0,
            port: own.port,
            chunk: None,
            ring,
        }
    }

    /// Whether it records events.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns the names of its endpoint and the peer at a port.
    #[must_use]
    pub fn names(&self, peer: PortId) -> TraceNames {
        TraceNames::new(self.port, peer)
    }

    /// Records an event, now.
    pub fn record(&mut self, names: TraceNames, event: &TraceEvent) {
        let is_recorded = if event.kind == EventKind::Received && self.shares {
            if self.cursor.keeps() {
                self.read_clock();
                self.cursor.begin_run(Run::Arrivals, ARRIVALS - 1);
            }
            self.try_record_arrival(names, event) || self.put_in_run(Run::Arrivals, names, event)
        } else if is_send(event) && self.put_in_run(Run::Sends, names, event) {
            true
        } else {
            let before = self.last;
            self.read_clock();
            if is_send(event) {
                let sharers = self.burst.on_reading(self.last.saturating_sub(before));
                // The first one has the place of two.
                self.cursor.begin_run(Run::Sends, 2 + sharers);
            }
            self.put(names, event)
        };
        if !is_recorded {
            self.begin_chunk();
            // With its time at once: the first record of a chunk orders it among the others.
            self.try_record(names, event);
        }
    }

    /// Records an event, now. Returns false if it did nothing, since an arrival is kept or the
    /// chunk is full: [`TraceWriter::record`] does the work.
    #[inline]
    pub fn try_record(&mut self, names: TraceNames, event: &TraceEvent) -> bool {
        if self.cursor.is_full() || self.cursor.keeps() {
            return false;
        }
        self.last = clock();
        self.cursor.end_runs();
        self.put(names, event)
    }

    /// Records the arrival of a message in the same way, if arrivals share readings of the clock:
    /// with the time of an arrival before it, or to be stored when the time is known.
    #[inline]
    pub fn try_record_arrival(&mut self, names: TraceNames, event: &TraceEvent) -> bool {
        if self.put_short(Run::Arrivals, names, event) {
            return true;
        }
        if !self.shares || self.cursor.keeps() || self.cursor.is_in_run(Run::Arrivals) {
            return false;
        }
        let words = encode(names, event);
        self.cursor.end_runs();
        self.head = words[0];
        self.cursor.keep(words)
    }

    /// Records the arrival of a message in the same way, but only with the time of an arrival of
    /// the same peer before it.
    #[inline(always)]
    pub fn try_record_short(&mut self, names: TraceNames, event: &TraceEvent) -> bool {
        self.put_short(Run::Arrivals, names, event)
    }

    /// Records a message sent in the same way, with the time of a send before it.
    #[inline]
    pub fn try_record_send(&mut self, names: TraceNames, event: &TraceEvent) -> bool {
        self.put_short(Run::Sends, names, event)
    }

    #[inline(always)]
    fn put(&mut self, names: TraceNames, event: &TraceEvent) -> bool {
        let words = self.words(names, event);
        self.head = words[1];
        self.cursor.put(words, AHEAD)
    }

    /// Stores a record in a run, since a short one would not say all of it.
    fn put_in_run(&mut self, run: Run, names: TraceNames, event: &TraceEvent) -> bool {
        let words = self.words(names, event);
        let is_put = self.cursor.put_in_run(run, words, AHEAD);
        if is_put {
            self.head = words[1];
        }
        is_put
    }

    /// Stores a short record, if it differs from the last record in tag, length and number only.
    #[inline(always)]
    fn put_short(&mut self, run: Run, names: TraceNames, event: &TraceEvent) -> bool {
        let words = encode(names, event);
        match shorten(words) {
            // SYNC POINT: as below.
            Some(short) if words[0] == self.head => self.cursor.put_short(run, short, AHEAD),
            _ => false,
        }
    }

    /// Returns the record of an event with the time of the last reading.
    #[inline(always)]
    fn words(&self, names: TraceNames, event: &TraceEvent) -> [u64; 4] {
        let [names, tag, size] = encode(names, event);
        // SYNC POINT: pairs with the two reads of `TraceImage::confirm`.
        [self.last, names, tag, size]
    }

    /// Reads the clock, and stores the kept arrival with this time. A program answers an arrival
    /// sooner where the clock is read later, behind its next message. No event shares the reading
    /// before any more.
    fn read_clock(&mut self) {
        self.last = clock();
        self.cursor.end_runs();
        self.cursor.put_kept(self.last);
    }

    /// Notes that the endpoint makes progress. Determines which events share readings of the clock
    /// until the next call: with `longest_ns`, arrivals with each other and with the next event,
    /// and sends that take fewer nanoseconds on average; without it none. No reading is shared
    /// beyond a call since whose predecessor nothing was recorded: the next event is later.
    pub fn note_progress(&mut self, longest_ns: Option<u64>) {
        if self.cursor.keeps() {
            self.read_clock();
        }
        let place = self.cursor.place();
        if place == core::mem::replace(&mut self.noted, place) {
            self.cursor.end_runs();
        }
        let shares = longest_ns.is_some();
        if shares != self.shares {
            self.cursor.end_runs();
            self.shares = shares;
            let ring = self.ring.zip(longest_ns);
            let longest = ring.map_or(0, |(ring, ns)| ring.ticks_in(ns));
            self.burst = SendBurst { longest, sharers: 0 };
        }
    }

    /// Continues with another chunk, if there is one. No time is shared between chunks, since times
    /// order them.
    fn begin_chunk(&mut self) {
        self.release();
        let Some(ring) = self.ring else { return };
        let chunk = ring.take_chunk();
        if let Some(cursor) = chunk.and_then(|chunk| ring.chunk(chunk)) {
            (self.chunk, self.cursor) = (chunk, cursor);
        }
    }

    fn release(&mut self) {
        let Some(ring) = self.ring.filter(|ring| !ring.creator.is_ancestor()) else { return };
        if let Some(chunk) = self.chunk.take() {
            if self.cursor.keeps() {
                self.read_clock();
            }
            ring.release_chunk(chunk);
        }
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sends_of_a_reading_double_until_a_pause() {
        let mut burst = SendBurst { longest: 100, sharers: 0 };
        let close = [99, 199, 399, 799, 1599, 1599].map(|elapsed| burst.on_reading(elapsed));
        assert_eq!(close, [1, 3, 7, 15, 15, 15]);
        assert_eq!([1600, 99].map(|elapsed| burst.on_reading(elapsed)), [0, 1]);
        assert_eq!([0, 0].map(|elapsed| SendBurst::default().on_reading(elapsed)), [0, 0]);
    }
}
