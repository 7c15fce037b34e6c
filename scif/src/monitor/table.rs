// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory in which this process publishes the records of its endpoints.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use scif_ring::{SharedU64, SharedWords, SnapshotCell, SnapshotWriter};
use zerocopy::{FromBytes, IntoBytes};

use super::kept;
use super::layout::{
    self, BYTES, COUNTER_WORDS, NAME, OPS_WORDS, PEERS_WORDS, PROCESS_WORDS, RECORD_WORDS, RECORDS,
    TEXT_WORDS, UNKNOWN, process, record,
};
use super::report::Seen;
use super::shown_memory;
use crate::addr::PortId;
use crate::sys::errno::{self, keep_errno};
use crate::sys::fork::{self, Maker, PrivateFd};
use crate::sys::mmap::Mapping;
use crate::sys::process::{ProcessState, pid, state_of};
use crate::sys::record::Record;
use crate::sys::time::now_ns;
use crate::sys::{file, logging, memfd};

/// Description of a process, published with its first endpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProcessIdentity {
    /// Rank in its job.
    pub rank: Option<u64>,
    /// Number of ranks of the job.
    pub size: Option<u64>,
    /// Interface version of libfabric: major version in the upper 16 of 32 bits.
    pub libfabric: u32,
    /// Version of the provider.
    pub provider: String,
    /// Launcher whose environment names the rank.
    pub launcher: String,
    /// Identifier of the job.
    pub job: String,
    /// Transport of the connections.
    pub transport: String,
}

#[cfg(test)]
impl ProcessIdentity {
    /// Identity of the process of all tests. The first test publishes it.
    pub(super) fn of_tests() -> ProcessIdentity {
        ProcessIdentity {
            rank: Some(3),
            libfabric: 2 << 16 | 5,
            provider: "0.1".to_owned(),
            job: "job\x1b[2J".to_owned(),
            ..ProcessIdentity::default()
        }
    }
}

/// Memory of the records of this process.
#[derive(Debug)]
struct Table {
    map: Arc<Mapping>,
    /// Descriptor by which readers find the memory; closed in a forked child. Its lock shows that
    /// this process lives. It is not the one of the mapping, which a forked child has as well.
    _fd: PrivateFd,
    creator: Maker,
    /// Number of the endpoint in each record, 0 for a free one.
    used: [u64; RECORDS],
    opened: u64,
    /// Number of records used so far. The memory of the others was never touched.
    touched: usize,
}

/// State of publication in this process.
#[derive(Debug)]
enum Publication {
    None,
    Table(Box<Table>),
    /// No memory could be published in the process that tried.
    Refused(Maker),
}

static PUBLICATION: Mutex<Publication> = Mutex::new(Publication::None);

/// Runs `use_it` with the state of publication. No forked child finds the lock taken.
fn with_publication<T>(use_it: impl FnOnce(&mut Publication) -> T) -> T {
    let _section = fork::section();
    use_it(&mut errno::lock(&PUBLICATION))
}

/// Publishes the description of this process, unless it is published.
pub fn publish_process(identity: impl FnOnce() -> ProcessIdentity) {
    with_publication(|publication| {
        let is_current = match publication {
            Publication::None => false,
            Publication::Table(table) => !table.creator.is_ancestor(),
            Publication::Refused(creator) => !creator.is_ancestor(),
        };
        if !is_current {
            *publication = match keep_errno(|| Table::create(&identity())) {
                Some(table) => Publication::Table(Box::new(table)),
                None => Publication::Refused(Maker::here()),
            };
        }
    });
}

/// Stores a text in `count` words from `at` on, padded with zeros, or cut.
pub(super) fn put_text(words: SharedWords, (at, count): (usize, usize), text: &str) {
    let mut chunks = text.as_bytes().chunks(8);
    for i in 0..count {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(chunks.next().unwrap_or_default()) {
            *to = *from;
        }
        put(words, at + i, u64::from_le_bytes(word));
    }
}

pub(super) fn put(words: SharedWords, at: usize, value: u64) {
    if let Some(word) = words.get(at) {
        word.set(value);
    }
}

impl Table {
    /// Creates the memory. Returns `None` where it cannot be had: scifctl then shows nothing of
    /// this process.
    fn create(identity: &ProcessIdentity) -> Option<Table> {
        let made = shown_memory::create(NAME, BYTES, memfd::file_limit()).and_then(|(fd, map)| {
            // Without /proc the lock also holds while a forked child lives.
            let fd = file::reopen(&fd).unwrap_or(fd);
            file::try_lock(&fd).map_err(|errno| {
                format!("flock(2): {errno}. Permit the call, or raise the limit of memory")
            })?;
            Ok((fd, map))
        });
        let made = made.inspect_err(|reason| {
            logging::warn_about_call!("memory for scifctl: this process is not shown: {reason}");
        });
        let (fd, map) = made.ok()?;
        let words = map.words(0, PROCESS_WORDS).ok()?;
        let start = match state_of(pid()) {
            ProcessState::Seen(stat) => stat.start,
            ProcessState::Gone | ProcessState::Hidden => UNKNOWN,
        };
        put(words, process::VERSION, layout::VERSION);
        put(words, process::PID, u64::from(pid().unsigned_abs()));
        put(words, process::START, start);
        put(words, process::OPENED_NS, now_ns());
        put(words, process::RANK, identity.rank.unwrap_or(UNKNOWN));
        put(words, process::SIZE, identity.size.unwrap_or(UNKNOWN));
        put(words, process::LIBFABRIC, u64::from(identity.libfabric));
        put_text(words, (process::PROVIDER, TEXT_WORDS), &identity.provider);
        put_text(words, (process::LAUNCHER, TEXT_WORDS), &identity.launcher);
        put_text(words, (process::JOB, TEXT_WORDS), &identity.job);
        put_text(words, (process::TRANSPORT, TEXT_WORDS), &identity.transport);
        let command = Seen::of(pid()).map(|seen| seen.command).unwrap_or_default();
        put_text(words, (process::COMMAND, TEXT_WORDS), &command);
        put(words, process::MAGIC, layout::MAGIC);
        Some(Table {
            map: Arc::new(map),
            _fd: PrivateFd::new(fd),
            creator: Maker::here(),
            used: [0; RECORDS],
            opened: 0,
            touched: 0,
        })
    }

    /// Takes a free record. Returns its index and the number of the endpoint.
    fn take(&mut self) -> Option<(usize, u64)> {
        self.opened += 1;
        let Some(at) = self.used.iter().position(|number| *number == 0) else {
            if let Ok(unpublished) = self.map.word64(8 * process::UNPUBLISHED) {
                unpublished.add(1);
            }
            return None;
        };
        *self.used.get_mut(at)? = self.opened;
        self.show_open();
        Some((at, self.opened))
    }

    /// Frees a record.
    fn free(&mut self, at: usize) {
        if let Ok(number) = self.map.word64(Table::offset(at) + 8 * record::NUMBER) {
            number.set(0);
        }
        if let Some(used) = self.used.get_mut(at) {
            *used = 0;
        }
        if self.show_open() == 0 {
            kept::release_all();
        }
    }

    /// Stores the number of open endpoints, and returns it.
    fn show_open(&self) -> usize {
        let open = self.used.iter().filter(|number| **number != 0).count();
        if let Ok(word) = self.map.word64(8 * process::OPEN) {
            word.set(open as u64);
        }
        open
    }

    fn offset(at: usize) -> usize {
        8 * (PROCESS_WORDS + at * RECORD_WORDS)
    }

    fn open<T: FromBytes + IntoBytes>(&mut self) -> Option<(Record<T>, Published)> {
        let (at, number) = self.take()?;
        let offset = Table::offset(at);
        let words = self.map.words(offset, RECORD_WORDS).ok()?;
        if at < self.touched {
            // The record holds the state of a closed endpoint.
            (0..RECORD_WORDS).for_each(|word| put(words, word, 0));
        }
        self.touched = self.touched.max(at + 1);
        let record = Record::mapped(Arc::clone(&self.map), offset, RECORD_WORDS, record::COUNTERS);
        Some((record.ok()?, Published { at, number, creator: self.creator }))
    }
}

/// Record of the table, freed when dropped.
#[derive(Debug)]
struct Published {
    at: usize,
    number: u64,
    creator: Maker,
}

impl Drop for Published {
    fn drop(&mut self) {
        if self.creator.is_ancestor() {
            return;
        }
        with_publication(|publication| {
            if let Publication::Table(table) = publication {
                if table.creator == self.creator {
                    table.free(self.at);
                }
            }
        });
    }
}

/// Record of an endpoint, with counters of type `T`, to which it dereferences. Without published
/// memory it lies in memory of this process alone.
#[derive(Debug)]
pub struct EndpointRecord<T> {
    record: Record<T>,
    progress_ns: SharedU64,
    asleep: SharedU64,
    ops: SnapshotCell,
    peers: SnapshotCell,
    /// Place in the table. Its drop ends the publication.
    published: Option<Published>,
}

impl<T: FromBytes + IntoBytes> EndpointRecord<T> {
    const FITS: () = assert!(size_of::<T>() <= 8 * COUNTER_WORDS);

    /// Opens a record, in the published memory if there is a free one. Readers see it after
    /// [`EndpointRecord::publish`].
    #[must_use]
    #[expect(clippy::missing_panics_doc, clippy::expect_used, reason = "offsets are constants")]
    pub fn open() -> EndpointRecord<T> {
        let () = Self::FITS;
        let opened = with_publication(|publication| match publication {
            Publication::Table(table) if !table.creator.is_ancestor() => table.open::<T>(),
            _ => None,
        });
        let (record, published) = match opened {
            Some((record, published)) => (record, Some(published)),
            None => {
                let record = Record::private(RECORD_WORDS, record::COUNTERS);
                (record.expect("the counters are inside"), None)
            }
        };
        let words = record.words();
        let word = |at| words.get(at).expect("the word is inside");
        let cell = |at, len| SnapshotCell::new(words, at, len).expect("the copies are inside");
        EndpointRecord {
            progress_ns: word(record::PROGRESS_NS),
            asleep: word(record::ASLEEP),
            ops: cell(record::OPS, OPS_WORDS),
            peers: cell(record::PEERS, PEERS_WORDS),
            record,
            published,
        }
    }
}

impl<T> EndpointRecord<T> {
    /// Shows the endpoint to readers, with its address, libfabric's number of its type, and the
    /// provider of its network.
    pub fn publish(&self, port: PortId, ep_type: u32, network: Option<&str>) {
        let Some(published) = &self.published else { return };
        let words = self.record.words();
        let now = now_ns();
        put(words, record::PORT, port_word(port));
        put(words, record::TYPE, u64::from(ep_type));
        put_text(words, (record::NETWORK, TEXT_WORDS), network.unwrap_or_default());
        put(words, record::OPENED_NS, now);
        put(words, record::PROGRESS_NS, now);
        put(words, record::NUMBER, published.number);
    }

    /// Returns the words of the record.
    #[must_use]
    pub fn words(&self) -> SharedWords {
        self.record.words()
    }

    /// Whether readers can see the record.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.published.is_some()
    }

    /// Notes the time of a progress call.
    #[inline(always)]
    pub fn note_progress(&self, now_ns: u64) {
        self.progress_ns.set_relaxed(now_ns);
    }

    /// Notes whether a thread sleeps in the library.
    #[inline]
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.set_relaxed(u64::from(asleep));
    }

    /// Writes a snapshot of the operations.
    pub fn write_ops(&self, fill: impl FnOnce(&SnapshotWriter)) {
        self.ops.write(fill);
    }

    /// Writes a snapshot of the peers.
    pub fn write_peers(&self, fill: impl FnOnce(&SnapshotWriter)) {
        self.peers.write(fill);
    }
}

/// Returns an address as a word: the host in the upper half, 0 for this one.
#[must_use]
pub fn port_word(port: PortId) -> u64 {
    let host = port.network_name().map_or(0, |name| name.ip().to_bits());
    u64::from(host) << 32 | u64::from(port.node) << 16 | u64::from(port.port)
}

impl<T> Deref for EndpointRecord<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.record
    }
}

impl<T> DerefMut for EndpointRecord<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.record
    }
}

#[cfg(test)]
mod tests {
    use scif_ring::AtomicFlag;

    use super::*;
    use crate::sys::children;

    #[test]
    fn a_forked_child_finds_the_table_unlocked() {
        publish_process(ProcessIdentity::of_tests);
        let stop = AtomicFlag::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.get() {
                    with_publication(|_| (0..1000).for_each(|_| std::hint::spin_loop()));
                }
            });
            let child = || children::in_child(|| i32::from(PUBLICATION.try_lock().is_ok()));
            let free = (0..20).all(|_| child().result() == 1);
            stop.set(true);
            assert!(free);
        });
    }
}
