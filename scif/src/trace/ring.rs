// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Trace of this process in memory, and its writers, one for each endpoint.
//!
//! The memory is a memfd, so that another process of the same user can read it at any time. Each
//! writer fills a chunk of its own, so writers share no word but the number of chunks taken.

use rustix::io::Errno;
use scif_ring::copy::ticks;
use scif_ring::{RecordCursor, SharedU64, SharedWords};

use crate::addr::PortId;
use crate::sys::fork::{Maker, PrivateFd};
use crate::sys::memfd;
use crate::sys::mmap::Mapping;
use crate::sys::process;
use crate::sys::time::now_ns;
use crate::trace::event::{EventKind, TraceEvent};
use crate::trace::layout::{
    CHUNK_RECORDS, CHUNK_WORDS, CHUNKS, COMMAND_WORDS, Field, MAGIC, RECORDS, STATES, TRACE_BYTES,
    encode,
};

/// Name of the memfd, by which readers find it.
pub(crate) const MEMFD_NAME: &str = "scif-trace";

/// Bytes between a record and the line that is prefetched with it: eight lines. A smaller number
/// prefetches too late; then the next message waits behind the store of its record.
const AHEAD: usize = 512;

/// Number of arrivals that may share one reading of the clock. A larger number saves little and
/// makes more times inexact.
const SHARERS: u32 = 16;

/// Returns the clock of records.
#[inline]
pub(crate) fn clock() -> u64 {
    // These counters are never 0 in practice; other targets have none.
    let counts = cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && !cfg!(miri);
    if counts { ticks() } else { now_ns() }
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
        ring.set(Field::StartTicks, clock());
        ring.set(Field::StartNs, now_ns());
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
        TraceWriter {
            cursor: RecordCursor::full(),
            last: 0,
            left: 0,
            shares: false,
            port: own.port,
            chunk: None,
            ring: self,
        }
    }

    /// Whether the trace belongs to a process that has forked this one.
    pub(crate) fn is_inherited(&self) -> bool {
        self.creator.is_ancestor()
    }

    /// Notes the time of the end, and returns the mapping and the length of its used part. A forked
    /// child has no trace. Makes no system call but that of the clock, so that it can run in a
    /// signal handler.
    pub fn end(&self) -> Option<(&Mapping, usize)> {
        if self.creator.is_ancestor() {
            return None;
        }
        self.set(Field::EndTicks, clock());
        self.set(Field::EndNs, now_ns());
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

/// Writer of the events of one endpoint.
#[derive(Debug)]
pub struct TraceWriter {
    /// Records of the chunk that are not used yet.
    cursor: RecordCursor,
    /// Last reading of the clock.
    last: u64,
    /// Number of arrivals that may still share it.
    left: u32,
    /// Whether arrivals share readings of the clock, with each other and with the next event.
    shares: bool,
    port: u16,
    chunk: Option<usize>,
    ring: &'static TraceRing,
}

impl TraceWriter {
    /// Records an event with the peer at a port, now.
    pub fn record(&mut self, peer: PortId, event: &TraceEvent) {
        let is_shared = event.kind == EventKind::Received && self.shares;
        if self.cursor.keeps() {
            self.put_kept();
            if self.cursor.put(self.words(peer, event), AHEAD) {
                self.left = if is_shared { SHARERS - 2 } else { 0 };
                return;
            }
        }
        let record =
            if is_shared { TraceWriter::try_record_arrival } else { TraceWriter::try_record };
        if !record(self, peer, event) {
            self.begin_chunk();
            // With its time at once: the first record of a chunk orders it among the others.
            self.try_record(peer, event);
        }
    }

    /// Records an event with the peer at a port, now. Returns false if it did nothing, since an
    /// arrival is kept or the chunk is full: [`TraceWriter::record`] does the work.
    #[inline]
    pub fn try_record(&mut self, peer: PortId, event: &TraceEvent) -> bool {
        if self.cursor.is_full() || self.cursor.keeps() {
            return false;
        }
        (self.left, self.last) = (0, clock());
        self.cursor.put(self.words(peer, event), AHEAD)
    }

    /// Records the arrival of a message in the same way, if arrivals share readings of the clock:
    /// with the time of an arrival before it, or to be stored when the time is known.
    #[inline]
    pub fn try_record_arrival(&mut self, peer: PortId, event: &TraceEvent) -> bool {
        if self.left != 0 {
            self.left -= 1;
            return self.cursor.put(self.words(peer, event), AHEAD);
        }
        if !self.shares || self.cursor.keeps() {
            return false;
        }
        let [_, rest @ ..] = self.words(peer, event);
        self.cursor.keep(rest)
    }

    /// Returns the record of an event with the time of the last reading.
    #[inline]
    fn words(&self, peer: PortId, event: &TraceEvent) -> [u64; 4] {
        let [names, tag, size] = encode(self.port, peer, event);
        // SYNC POINT: pairs with the two reads of `TraceImage::confirm`.
        [self.last, names, tag, size]
    }

    /// Reads the clock, and stores the kept arrival with this time. A program answers an arrival
    /// sooner where the clock is read later, behind its next message.
    fn put_kept(&mut self) {
        self.last = clock();
        self.cursor.put_kept(self.last);
    }

    /// Notes that the endpoint makes progress. Determines whether arrivals share readings of the
    /// clock until the next call, with each other and with the next event.
    pub fn note_progress(&mut self, shares: bool) {
        if self.cursor.keeps() {
            self.put_kept();
        }
        (self.left, self.shares) = (0, shares);
    }

    /// Continues with another chunk, if there is one. No time is shared between chunks, since times
    /// order them.
    fn begin_chunk(&mut self) {
        self.release();
        self.left = 0;
        let chunk = self.ring.take_chunk();
        if let Some(cursor) = chunk.and_then(|chunk| self.ring.chunk(chunk)) {
            (self.chunk, self.cursor) = (chunk, cursor);
        }
    }

    fn release(&mut self) {
        if let Some(chunk) = self.chunk.take().filter(|_| !self.ring.creator.is_ancestor()) {
            self.put_kept();
            self.ring.release_chunk(chunk);
        }
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.release();
    }
}
