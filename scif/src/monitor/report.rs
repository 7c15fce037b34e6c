// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading of published state: of one process, or of all that this user may inspect.
//!
//! The owner of the memory is not trusted. Every word is checked, and a wrong one is shown as
//! unknown. The memory cannot shrink under the reader, because an unsealed one is refused.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use scif_ring::{SharedWords, SnapshotCell};

use super::layout::{
    self, BYTES, COUNTER_WORDS, COUNTERS, CopyPath, NAME, OP_WORDS, OPS_LISTED, OPS_WORDS, OpKind,
    OpState, PEER_WORDS, PEERS_LISTED, PEERS_WORDS, PROCESS_WORDS, PeerState, RECORD_WORDS,
    RECORDS, TEXT_WORDS, UNKNOWN, op, ops, peer, peers, process, record,
};
use crate::addr::PortId;
use crate::sys::maps::file_id;
use crate::sys::memfd;
use crate::sys::mmap::Mapping;

/// State letter of a process that has ended, as in `/proc/PID/stat` before it disappears.
pub const ENDED: char = 'X';
/// Number of reads of a snapshot that is overwritten meanwhile, after which it counts as empty. The
/// owner writes at most one each millisecond, besides those before a sleep.
const TRIES: usize = 1000;

/// Process with endpoints of the provider.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProcessReport {
    /// Process id.
    pub pid: i32,
    /// Command, as the kernel shows it.
    pub command: String,
    /// State as in `/proc/PID/stat`: `R`, `S`, `T`, `Z` or another letter; [`ENDED`] after the end.
    pub state: char,
    /// Version of the published state, if it is not the one that this code reads. The report then
    /// has no more than the identity of the process.
    pub other_version: Option<u64>,
    /// Rank in its job.
    pub rank: Option<u64>,
    /// Number of ranks of the job.
    pub size: Option<u64>,
    /// Interface version of libfabric.
    pub libfabric: (u16, u16),
    /// Version of the provider.
    pub provider: String,
    /// Launcher whose environment names the rank.
    pub launcher: String,
    /// Identifier of the job.
    pub job: String,
    /// Transport of the connections.
    pub transport: String,
    /// Number of endpoints that were opened without a free record.
    pub unpublished: u64,
    /// Published endpoints.
    pub endpoints: Vec<EndpointReport>,
}

/// Endpoint of the provider.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointReport {
    /// Number that distinguishes the endpoints of a process.
    pub number: u64,
    /// Address.
    pub port: PortId,
    /// Endpoint type, as libfabric numbers it.
    pub ep_type: u64,
    /// Monotonic time in nanoseconds at which it was opened.
    pub opened_ns: u64,
    /// Monotonic time in nanoseconds of a recent progress call.
    pub progress_ns: u64,
    /// Whether a thread sleeps in the library until the endpoint has an event.
    pub asleep: bool,
    /// Provider of the network to other hosts; empty without a network.
    pub network: String,
    /// Counters at the time of the read, in the order of [`COUNTERS`].
    pub counters: [u64; COUNTERS.len()],
    /// Outstanding operations.
    pub ops: OpsReport,
    /// Number of peers known, and those listed.
    pub known_peers: u64,
    /// Peers listed.
    pub peers: Vec<PeerReport>,
}

/// Outstanding operations of an endpoint at the time of a snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpsReport {
    /// Monotonic time in nanoseconds of the snapshot; 0 before the first.
    pub time_ns: u64,
    /// Receives that wait for a message, besides multi-receive buffers.
    pub receives: u64,
    /// Multi-receive buffers.
    pub multi_recvs: u64,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Payload bytes of unexpected messages in memory of the process.
    pub unexpected_bytes: u64,
    /// Operations that await a reply of their peer.
    pub outstanding: u64,
    /// Operations that wait for ring space or a connection.
    pub pending: u64,
    /// Large messages that are being received.
    pub incoming: u64,
    /// Counters at the time of the snapshot.
    pub counters: [u64; COUNTERS.len()],
    /// Oldest operations of each kind.
    pub listed: Vec<OpReport>,
}

impl Default for OpsReport {
    fn default() -> OpsReport {
        OpsReport {
            time_ns: 0,
            receives: 0,
            multi_recvs: 0,
            unexpected: 0,
            unexpected_bytes: 0,
            outstanding: 0,
            pending: 0,
            incoming: 0,
            counters: [0; COUNTERS.len()],
            listed: Vec::new(),
        }
    }
}

/// Outstanding operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpReport {
    /// Kind of the operation.
    pub kind: OpKind,
    /// State of the operation.
    pub state: OpState,
    /// Address of the peer; `None` for any source.
    pub peer: Option<PortId>,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that a receive ignores.
    pub ignore: u64,
    /// Bytes of the message, or of the receive buffer.
    pub len: u64,
    /// Bytes transferred so far.
    pub done: u64,
    /// Monotonic time in nanoseconds at which a snapshot first contained it.
    pub since_ns: u64,
}

/// Peer of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerReport {
    /// Address.
    pub port: PortId,
    /// State.
    pub state: PeerState,
    /// Path of large messages and RMA.
    pub path: CopyPath,
    /// Process id, if it is visible.
    pub pid: Option<i32>,
    /// Records sent over the present connections.
    pub sent: u64,
    /// Records received over the present connections.
    pub received: u64,
    /// Operations that wait for ring space or a connection.
    pub pending: u64,
    /// Operations that await a reply of the peer.
    pub outstanding: u64,
    /// Number of the error that refuses connections; 0 for none.
    pub errno: u64,
    /// Bytes sent over the present connections: cache lines of the ring, payloads past it, and
    /// copies.
    pub sent_bytes: u64,
    /// Bytes received, counted in the same way.
    pub received_bytes: u64,
}

/// Returns the processes with published state, as far as this user may see them, by process id.
/// Behind them come those that ended with open endpoints, as far as a peer keeps their memory.
///
/// # Errors
/// There is no `/proc`.
pub fn processes() -> io::Result<Vec<ProcessReport>> {
    let mut pids: Vec<i32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let (mut living, mut ended, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
    for pid in pids {
        let Ok((own, others)) = memory_of(pid) else { continue };
        living.extend(own);
        let mut new = |fd: &OwnedFd| file_id(fd).is_ok_and(|id| known.insert((id.minor, id.ino)));
        ended.extend(others.iter().filter(|fd| new(fd)).filter_map(ended_at));
    }
    ended.sort_by_key(|process| process.pid);
    living.extend(ended);
    Ok(living)
}

/// Returns the published state of a process, or `None` if it has published none.
///
/// # Errors
/// The process does not exist, or may not be inspected, and no peer keeps its memory.
pub fn process_at(pid: i32) -> io::Result<Option<ProcessReport>> {
    let living = memory_of(pid).map(|(own, _)| own);
    if matches!(living, Ok(Some(_))) {
        return living;
    }
    // The directory of descriptors of a killed process is gone, or empty until it is reaped.
    let is_it = |process: &ProcessReport| process.pid == pid && process.state == ENDED;
    processes()?.into_iter().find(is_it).map_or(living, |ended| Ok(Some(ended)))
}

/// Returns the state of a process, and the memory of other processes that it keeps.
fn memory_of(pid: i32) -> io::Result<(Option<ProcessReport>, Vec<OwnedFd>)> {
    let (mut own, mut others) = (None, Vec::new());
    for fd in memfd::open_named(pid, NAME, usize::MAX)? {
        let (Some(map), Some(seen)) = (map_of(&fd), Seen::of(pid)) else { continue };
        match parse(&map, &seen) {
            Some(report) => own = Some(report),
            None => others.push(fd),
        }
    }
    Ok((own, others))
}

/// Maps the memory behind a descriptor, unless its owner could shrink it.
pub(super) fn map_of(fd: impl AsFd) -> Option<Mapping> {
    memfd::check(&fd, BYTES, memfd::FIXED_SIZE).ok()?;
    Mapping::shared(&fd, BYTES, false).ok()
}

/// Returns the last state of a process that ended with open endpoints.
fn ended_at(fd: &OwnedFd) -> Option<ProcessReport> {
    if memfd::is_locked(fd) {
        return None;
    }
    let map = map_of(fd)?;
    let words = map.words(0, PROCESS_WORDS).ok()?;
    let own_pid = at(words, process::PID);
    let seen = Seen {
        pid: i32::try_from(own_pid).ok()?,
        own_pid,
        start: at(words, process::START),
        state: ENDED,
        command: text_at(words, (process::COMMAND, TEXT_WORDS)),
    };
    parse(&map, &seen).filter(|report| !report.endpoints.is_empty())
}

/// Identity of a process, as the kernel shows it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Process id of this namespace.
    pub pid: i32,
    /// Process id that the process itself sees.
    pub own_pid: u64,
    /// Start time in clock ticks after boot.
    pub start: u64,
    /// State letter.
    pub state: char,
    /// Command.
    pub command: String,
}

impl Seen {
    /// Whether the process owns a monitoring memory. A descriptor of the memory of another process
    /// may have been passed to it.
    pub(super) fn owns(&self, map: &Mapping) -> bool {
        map.words(0, PROCESS_WORDS).is_ok_and(|words| {
            at(words, process::PID) == self.own_pid
                && [UNKNOWN, self.start].contains(&at(words, process::START))
        })
    }

    /// Returns the identity of a process; `None` if there is none.
    pub(super) fn of(pid: i32) -> Option<Seen> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let begin = text.iter().position(|&byte| byte == b'(')?;
        let after = String::from_utf8_lossy(text.get(end + 1..)?).into_owned();
        let mut fields = after.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let start = fields.nth(18)?.parse().ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let nested = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let own_pid = nested.and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok());
        Some(Seen {
            pid,
            own_pid: own_pid.unwrap_or_else(|| u64::from(pid.unsigned_abs())),
            start,
            state,
            command: printable(text.get(begin + 1..end)?),
        })
    }
}

/// Returns text of another process without control characters, which terminals would obey.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(super) fn at(words: SharedWords, index: usize) -> u64 {
    words.get(index).map_or(0, |word| word.get())
}

/// Returns the text of `count` words from `index` on, with printable characters only.
pub(super) fn text_at(words: SharedWords, (index, count): (usize, usize)) -> String {
    let bytes: Vec<u8> = (index..index + count)
        .flat_map(|index| at(words, index).to_le_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    printable(&bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
fn port_of(word: u64) -> PortId {
    let (host, node, port) = ((word >> 32) as u32, (word >> 16) as u16, word as u16);
    match host {
        0 => PortId::new(node, port),
        host => PortId::abroad(node, SocketAddrV4::new(Ipv4Addr::from_bits(host), port)),
    }
}

/// Reads the memory of the process `seen`. Returns `None` if it belongs to another process.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
pub fn parse(map: &Mapping, seen: &Seen) -> Option<ProcessReport> {
    let words = map.words(0, PROCESS_WORDS).ok()?;
    if at(words, process::MAGIC) != layout::MAGIC || !seen.owns(map) {
        return None;
    }
    let version = at(words, process::VERSION);
    if version != layout::VERSION {
        return Some(ProcessReport {
            pid: seen.pid,
            command: seen.command.clone(),
            state: seen.state,
            other_version: Some(version),
            ..ProcessReport::default()
        });
    }
    let known = |index| Some(at(words, index)).filter(|value| *value != UNKNOWN);
    let libfabric = at(words, process::LIBFABRIC);
    Some(ProcessReport {
        pid: seen.pid,
        command: seen.command.clone(),
        state: seen.state,
        other_version: None,
        rank: known(process::RANK),
        size: known(process::SIZE),
        libfabric: ((libfabric >> 16) as u16, libfabric as u16),
        provider: text_at(words, (process::PROVIDER, TEXT_WORDS)),
        launcher: text_at(words, (process::LAUNCHER, TEXT_WORDS)),
        job: text_at(words, (process::JOB, TEXT_WORDS)),
        transport: text_at(words, (process::TRANSPORT, TEXT_WORDS)),
        unpublished: at(words, process::UNPUBLISHED),
        endpoints: (0..RECORDS)
            .filter_map(|index| {
                let offset = 8 * (PROCESS_WORDS + index * RECORD_WORDS);
                endpoint(map.words(offset, RECORD_WORDS).ok()?)
            })
            .collect(),
    })
}

fn endpoint(words: SharedWords) -> Option<EndpointReport> {
    let number = at(words, record::NUMBER);
    if number == 0 {
        return None;
    }
    let (known_peers, peers) = peers_of(words);
    let ops = ops_of(words);
    let mut counters = [0; COUNTERS.len()];
    for (i, counter) in counters.iter_mut().enumerate() {
        *counter = at(words, record::COUNTERS + i);
    }
    let report = EndpointReport {
        number,
        port: port_of(at(words, record::PORT)),
        ep_type: at(words, record::TYPE),
        opened_ns: at(words, record::OPENED_NS),
        progress_ns: at(words, record::PROGRESS_NS),
        asleep: at(words, record::ASLEEP) != 0,
        network: text_at(words, (record::NETWORK, TEXT_WORDS)),
        counters,
        ops,
        known_peers,
        peers,
    };
    // Closed during the read, and perhaps reused.
    (at(words, record::NUMBER) == number).then_some(report)
}

/// Reads the newest snapshot of `N` words at word `first`.
fn snapshot<const N: usize>(words: SharedWords, first: usize) -> Option<Box<[u64; N]>> {
    let cell = SnapshotCell::new(words, first, N)?;
    let mut copy = Box::new([0; N]);
    (0..TRIES).find_map(|_| cell.read(&mut copy[..])).map(|_| copy)
}

fn ops_of(words: SharedWords) -> OpsReport {
    let Some(copy) = snapshot::<OPS_WORDS>(words, record::OPS) else {
        return OpsReport::default();
    };
    let word = |index: usize| copy.get(index).copied().unwrap_or(0);
    let listed = usize::try_from(word(ops::LISTED)).unwrap_or(0).min(OPS_LISTED);
    let mut counters = [0; COUNTERS.len()];
    for (i, counter) in counters.iter_mut().enumerate() {
        *counter = word(ops::COUNTERS + i);
    }
    OpsReport {
        time_ns: word(ops::TIME_NS),
        receives: word(ops::RECEIVES),
        multi_recvs: word(ops::MULTI_RECVS),
        unexpected: word(ops::UNEXPECTED),
        unexpected_bytes: word(ops::UNEXPECTED_BYTES),
        outstanding: word(ops::OUTSTANDING),
        pending: word(ops::PENDING),
        incoming: word(ops::INCOMING),
        counters,
        listed: (0..listed)
            .filter_map(|index| {
                let of = |field: usize| word(ops::FIRST + index * OP_WORDS + field);
                Some(OpReport {
                    kind: OpKind::from_word(of(op::KIND))?,
                    state: OpState::from_word(of(op::KIND) >> 8)?,
                    peer: Some(of(op::PEER)).filter(|peer| *peer != UNKNOWN).map(port_of),
                    tag: of(op::TAG),
                    ignore: of(op::IGNORE),
                    len: of(op::LEN),
                    done: of(op::DONE),
                    since_ns: of(op::SINCE_NS),
                })
            })
            .collect(),
    }
}

fn peers_of(words: SharedWords) -> (u64, Vec<PeerReport>) {
    let Some(copy) = snapshot::<PEERS_WORDS>(words, record::PEERS) else {
        return (0, Vec::new());
    };
    let word = |index: usize| copy.get(index).copied().unwrap_or(0);
    let listed = usize::try_from(word(peers::LISTED)).unwrap_or(0).min(PEERS_LISTED);
    let peers = (0..listed).filter_map(|index| {
        let of = |field: usize| word(peers::FIRST + index * PEER_WORDS + field);
        Some(PeerReport {
            port: port_of(of(peer::PORT)),
            state: PeerState::from_word(of(peer::STATE))?,
            path: CopyPath::from_word(of(peer::STATE) >> 8)?,
            pid: i32::try_from(of(peer::PID)).ok().filter(|pid| *pid > 0),
            sent: of(peer::SENT),
            received: of(peer::RECEIVED),
            pending: of(peer::PENDING),
            outstanding: of(peer::OUTSTANDING),
            errno: of(peer::ERRNO),
            sent_bytes: of(peer::SENT_BYTES),
            received_bytes: of(peer::RECEIVED_BYTES),
        })
    });
    (word(peers::KNOWN), peers.collect())
}

impl EndpointReport {
    /// Returns the counter with a name of [`COUNTERS`].
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let at = COUNTERS.iter().position(|counter| *counter == name);
        at.and_then(|at| self.counters.get(at).copied()).unwrap_or(0)
    }

    /// Whether operations have started or ended since the snapshot of the outstanding ones.
    #[must_use]
    pub fn has_moved_on(&self) -> bool {
        self.counters != self.ops.counters
    }
}

const _: () = assert!(COUNTERS.len() <= COUNTER_WORDS);

#[cfg(test)]
mod tests {
    use scif_ring::AtomicFlag;

    use super::*;
    use crate::monitor::{EndpointRecord, ProcessIdentity, publish_process};
    use crate::sys::process::pid;

    #[test]
    fn a_process_reads_its_own_endpoints() {
        publish_process(ProcessIdentity::of_tests);
        let mut record: EndpointRecord<[u64; 28]> = EndpointRecord::open();
        let port = PortId::new(4, 700);
        record.publish(port, 3, Some("net"));
        record[0] = 9;
        record.write_ops(|copy| {
            copy.put(ops::LISTED, 2);
            copy.put(ops::RECEIVES, 5);
            copy.put(ops::FIRST + op::KIND, OpKind::RecvTagged as u64 | 1 << 8);
            copy.put(ops::FIRST + op::PEER, UNKNOWN);
            copy.put(ops::FIRST + op::TAG, 77);
        });
        let report = process_at(pid()).unwrap().unwrap();
        assert_eq!((report.rank, report.size, report.libfabric), (Some(3), None, (2, 5)));
        assert_eq!((report.provider.as_str(), report.job.as_str()), ("0.1", "job?[2J"));
        let endpoint = report.endpoints.iter().find(|endpoint| endpoint.port == port).unwrap();
        assert_eq!((endpoint.counter("sent_ops"), endpoint.ops.receives), (9, 5));
        assert!(endpoint.has_moved_on());
        assert_eq!(endpoint.network, "net");
        // The second operation has no kind.
        let [op] = endpoint.ops.listed[..] else { panic!("one operation") };
        assert_eq!((op.kind, op.state, op.tag), (OpKind::RecvTagged, OpState::Unmatched, 77));
        assert!(processes().unwrap().iter().any(|process| process.pid == pid()));
        drop(record);
        let report = process_at(pid()).unwrap().unwrap();
        assert!(report.endpoints.iter().all(|endpoint| endpoint.port != port), "closed");
    }

    /// Counts a message of 8 bytes, and writes a snapshot that agrees with the counters.
    fn count_one(record: &mut EndpointRecord<[u64; 28]>) {
        record[0] += 1;
        record[1] += 8;
        let [sent, bytes, ..] = **record;
        record.write_ops(|copy| {
            copy.put(ops::RECEIVES, sent);
            copy.put(ops::COUNTERS, sent);
            copy.put(ops::COUNTERS + 1, bytes);
        });
    }

    /// Ends a storm also when a check fails.
    struct StopAtEnd<'a>(&'a AtomicFlag);

    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    #[test]
    fn no_read_of_a_storm_is_torn() {
        const READS: usize = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
        publish_process(ProcessIdentity::of_tests);
        let mut record: EndpointRecord<[u64; 28]> = EndpointRecord::open();
        record.publish(PortId::new(4, 701), 3, None);
        let words = record.words();
        let stop = AtomicFlag::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.get() {
                    // Two snapshots at a time overwrite a copy during a read. Without a pause no
                    // read would find one that stays.
                    count_one(&mut record);
                    count_one(&mut record);
                    std::thread::sleep(std::time::Duration::from_micros(5));
                }
            });
            let _stop = StopAtEnd(&stop);
            let (mut last, mut changes, mut reads) = (0, 0, 0);
            // On a busy machine the storm gets few turns while the reader polls.
            while reads < READS || changes <= READS / 1000 && reads < 1000 * READS {
                reads += 1;
                let seen = ops_of(words);
                let [sent, bytes, ..] = seen.counters;
                assert_eq!((bytes, seen.receives), (8 * sent, sent));
                assert!(sent >= last, "an older snapshot");
                changes += usize::from(sent > last);
                last = sent;
            }
            assert!(changes > READS / 1000, "{changes} snapshots seen");
        });
    }

    #[test]
    fn any_words_of_the_owner_can_be_read() {
        let map = Mapping::anonymous(BYTES).unwrap();
        let seen = Seen { own_pid: 5, start: 6, ..Seen::default() };
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let rounds = if cfg!(debug_assertions) { 20 } else { 200 };
        for round in 0..rounds {
            for index in 0..PROCESS_WORDS + 3 * RECORD_WORDS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index as u64);
                let small = [u64::MAX, random >> (round % 64), random % 300, 0];
                let value = small.get((random >> 60) as usize % 4).copied().unwrap_or(0);
                map.word64(8 * index).unwrap().set_relaxed(value);
            }
            assert!(parse(&map, &seen).is_none(), "no magic");
            let header = [
                (process::MAGIC, layout::MAGIC),
                (process::VERSION, layout::VERSION),
                (process::PID, 5),
                (process::START, 6),
            ];
            header.iter().for_each(|(at, value)| map.word64(8 * at).unwrap().set(*value));
            let report = parse(&map, &seen).unwrap();
            for endpoint in &report.endpoints {
                assert!(endpoint.ops.listed.len() <= OPS_LISTED);
                assert!(endpoint.peers.len() <= PEERS_LISTED);
            }
            map.word64(8 * process::VERSION).unwrap().set(layout::VERSION + 1);
            let other = parse(&map, &seen).unwrap();
            assert_eq!(other.other_version, Some(layout::VERSION + 1));
            assert!(other.endpoints.is_empty());
        }
    }
}
