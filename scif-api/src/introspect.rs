// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Inspection of the nodes and endpoints of a host from outside, without disturbing them: nothing
//! is sent or mapped, and no process is queried. The sources are the kernel's list of socket names,
//! and the memfds in which each process publishes its own state.
//!
//! Not about the provider's endpoints: only their ports are visible. Without permission to inspect
//! a process, only its existence is reported. Values may change during a read; each number is
//! correct by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use scif::sys::process;
use scif::{Config, PortId};

use crate::nodes::{domain_of, is_lost, list_twice, marker_deadline, names};
use crate::stat::{MAGIC, NAME, RECORD, RECORDS, RECORDS_MAX, VERSION};
use crate::state::State;
use crate::window::sharers::{SHARER_WORDS, SHARERS_MAX};
use crate::window::table::{ENTRIES, ENTRY_WORDS, Place, SHARERS_AT, WINDOWS_MAX, Window};

/// Number of reads of a table that changes meanwhile after which an error is returned.
const TRIES: usize = 100;

/// One node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// Number of the node.
    pub node: u16,
    /// Whether the node is lost.
    pub lost: bool,
    /// Processes on the node that use `scif.h`.
    pub processes: Vec<i32>,
    /// Ports in use.
    pub ports: Vec<u16>,
}

/// A process that uses `scif.h`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Node of the process.
    pub node: u16,
    /// Error that prevented the inspection, if any.
    pub denied: Option<String>,
    /// Endpoints that the process opened, or shares with the process that forked it.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Endpoint {
    /// Number that distinguishes the endpoints of a process.
    pub number: u32,
    /// Descriptors of the endpoint in this process.
    pub descriptors: Vec<i32>,
    /// State, as the driver names it.
    pub state: &'static str,
    /// Port of the endpoint; 0 if it is not bound.
    pub own: PortId,
    /// Port and process id of the connected peer.
    pub peer: Option<(PortId, i32)>,
    /// Bytes of messages sent.
    pub sent: u64,
    /// Bytes of messages received.
    pub received: u64,
    /// Number and bytes of RMA reads initiated by the endpoint.
    pub reads: (u64, u64),
    /// Number and bytes of RMA writes initiated by the endpoint.
    pub writes: (u64, u64),
    /// Number of RMAs left to the DMA thread, and number of finished ones.
    pub dma: (u64, u64),
    /// Number of mappings of the peer's windows.
    pub mapped: u64,
    /// Registered windows.
    pub windows: Vec<Registered>,
}

/// A registered window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registered {
    /// Offset in the registered address space.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether the peer may read it.
    pub read: bool,
    /// Whether the peer may write it.
    pub write: bool,
    /// Whether the peer may map it: its pages were moved into shared memory.
    pub mappable: bool,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(word(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(word(bytes, at))
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
fn port_id(word: u32) -> PortId {
    PortId::new((word >> 16) as u16, word as u16)
}

fn state_name(word: u32) -> &'static str {
    match State::from_word(word) {
        State::Unbound => "UNBOUND",
        State::Bound => "BOUND",
        State::Listening => "LISTENING",
        State::Connected => "CONNECTED",
        State::Connecting => "CONNECTING",
        State::Closing => "CLOSING",
        State::Disconnected => "DISCONNECTED",
    }
}

/// Returns the nodes of the domain in `config`.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn nodes(config: &Config) -> io::Result<Vec<Node>> {
    let domain = domain_of(config);
    let own = process::uid();
    let list = list_twice()?;
    let deadline = marker_deadline();
    let mut found: BTreeMap<u16, (BTreeSet<i32>, BTreeSet<u16>, bool)> = BTreeMap::new();
    for (node, rest) in names(&list, &domain) {
        let (processes, ports, lost) = found.entry(node).or_default();
        if rest == "lost" {
            *lost = is_lost(&domain, node, deadline, |uid| uid == own || uid == 0);
        } else if let Some(process) = rest.strip_prefix("p/") {
            processes.extend(process.split('.').next().and_then(|pid| pid.parse::<i32>().ok()));
        } else {
            ports.extend(rest.split('/').next().and_then(|port| port.parse::<u16>().ok()));
        }
    }
    Ok(found
        .into_iter()
        .map(|(node, (processes, ports, lost))| Node {
            node,
            lost,
            processes: processes.into_iter().collect(),
            ports: ports.into_iter().collect(),
        })
        .collect())
}

/// Returns the number of processes of each SISCI node of the domain in `config`, as the kernel's
/// list of socket names shows them, also of processes that may not be inspected.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn sisci_nodes(config: &Config) -> io::Result<BTreeMap<u32, usize>> {
    Ok(sisci_nodes_in(&list_twice()?, config))
}

fn sisci_nodes_in(list: &str, config: &Config) -> BTreeMap<u32, usize> {
    let domain = domain_of(config);
    let (prefix, separator) = match &config.runtime_dir {
        None => (format!(" @scif/{domain}/sisci/"), '/'),
        Some(dir) => (format!(" {}", dir.join(format!("{domain}.sisci.")).display()), '.'),
    };
    // A connection waits under the name of its listener, and the list was read twice.
    let mut names = BTreeSet::new();
    for line in list.lines() {
        let Some(rest) = line.split_once(&prefix).map(|(_, rest)| rest) else { continue };
        let mut parts = rest.split(separator);
        if let (Some(node), Some("process"), Some(number), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            if let (Ok(node), Ok(number)) = (node.parse::<u32>(), number.parse::<u32>()) {
                names.insert((node, number));
            }
        }
    }
    names.into_iter().fold(BTreeMap::new(), |mut counts, (node, _)| {
        *counts.entry(node).or_default() += 1;
        counts
    })
}

/// Returns the processes of the domain in `config`, with their published state.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn processes(config: &Config) -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for node in nodes(config)? {
        for pid in node.processes {
            let mut process = Process { pid, node: node.node, ..Process::default() };
            match endpoints(pid) {
                Ok(endpoints) => process.endpoints = endpoints,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    process.denied = Some(format!("{error}; run as its user or as root"));
                }
                Err(error) => process.denied = Some(error.to_string()),
            }
            all.push(process);
        }
    }
    Ok(all)
}

/// Targets of the descriptors of a process.
#[derive(Default)]
struct Descriptors {
    stats: Vec<File>,
    /// Window tables by inode.
    tables: BTreeMap<u64, File>,
    /// Descriptor numbers of sockets by inode.
    sockets: BTreeMap<u64, Vec<i32>>,
}

/// Opens the target of a descriptor `entry`, if it still is `target`. Does not block on another
/// kind of file.
fn opened(entry: &DirEntry, target: &Path) -> io::Result<Option<File>> {
    let only_look = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    match File::options().read(true).custom_flags(only_look).open(entry.path()) {
        Ok(file) => {
            let now = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            Ok((now == target).then_some(file))
        }
        // Closed meanwhile. Another file of this name may have taken its number since.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // An error of the expected target, unless the descriptor has changed meanwhile.
        Err(error) => match fs::read_link(entry.path()) {
            Ok(now) if now == target => Err(error),
            _ => Ok(None),
        },
    }
}

fn descriptors(pid: i32) -> io::Result<Descriptors> {
    let mut found = Descriptors::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // Closed meanwhile: skipped.
        let Ok(entry) = entry else { continue };
        let Ok(link) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = link.to_string_lossy();
        let is = |name: &str| {
            let name = format!("/memfd:{name}");
            target == name || target.starts_with(&format!("{name} "))
        };
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'))
        {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Ok(inode), Some(number)) = (inode.parse(), number) {
                found.sockets.entry(inode).or_default().push(number);
            }
        } else if is(NAME) {
            found.stats.extend(opened(&entry, &link)?);
        } else if is("scif:windows") {
            let Some(file) = opened(&entry, &link)? else {
                continue;
            };
            found.tables.insert(file.metadata()?.ino(), file);
        }
    }
    for numbers in found.sockets.values_mut() {
        numbers.sort_unstable();
    }
    Ok(found)
}

fn endpoints(pid: i32) -> io::Result<Vec<Endpoint>> {
    let found = descriptors(pid)?;
    let mut all = Vec::new();
    for file in &found.stats {
        let mut front = [0; 64];
        match file.read_exact_at(&mut front, 0) {
            // Still being created: the magic number is written last.
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => continue,
            Ok(()) if u64_at(&front, 0) == 0 => continue,
            read => read?,
        }
        if u64_at(&front, 0) != MAGIC || u32_at(&front, 8) != VERSION {
            return Err(io::Error::other(
                "statistics of another version of the library; use the scifctl of that version",
            ));
        }
        let used = usize::try_from(u32_at(&front, 24)).map_or(0, |n| n.min(RECORDS_MAX));
        let mut bytes = vec![0; used * RECORD];
        file.read_exact_at(&mut bytes, RECORDS as u64)?;
        for record in bytes.chunks_exact(RECORD).filter(|record| u32_at(record, 0) != 0) {
            let endpoint = endpoint(record, &found);
            // Endpoint of the parent process, closed in this one.
            if !endpoint.descriptors.is_empty() || u32_at(&front, 12) == pid.unsigned_abs() {
                all.push(endpoint);
            }
        }
    }
    all.sort_by_key(|endpoint| (endpoint.descriptors.first().copied(), endpoint.number));
    Ok(all)
}

fn endpoint(record: &[u8], found: &Descriptors) -> Endpoint {
    let peer = port_id(u32_at(record, 12));
    let mut endpoint = Endpoint {
        number: u32_at(record, 0),
        descriptors: found.sockets.get(&u64_at(record, 16)).cloned().unwrap_or_default(),
        state: state_name(u32_at(record, 4)),
        own: port_id(u32_at(record, 8)),
        peer: (peer != PortId::default()).then_some((peer, u32_at(record, 80) as i32)),
        sent: u64_at(record, 32),
        received: u64_at(record, 40),
        reads: (u64_at(record, 48), u64_at(record, 56)),
        writes: (u64_at(record, 64), u64_at(record, 72)),
        dma: (0, 0),
        mapped: u64_at(record, 88),
        windows: Vec::new(),
    };
    if let Some(table) = found.tables.get(&u64_at(record, 24)) {
        // An unreadable table yields no windows.
        if let Ok((windows, dma)) = table_of(table) {
            (endpoint.windows, endpoint.dma) = (windows, dma);
        }
    }
    endpoint
}

/// Number of bytes before the windows of a table that have a meaning.
const FRONT: usize = SHARERS_AT + SHARERS_MAX * SHARER_WORDS * 8;

/// Returns the windows in a table, the number of queued RMAs, and the number up to which all are
/// finished.
fn table_of(file: &File) -> io::Result<(Vec<Registered>, (u64, u64))> {
    let mut front = [0; FRONT];
    for _ in 0..TRIES {
        file.read_exact_at(&mut front, 0)?;
        let seq = u64_at(&front, 0);
        let count = usize::try_from(u64_at(&front, 8)).map_or(0, |n| n.min(WINDOWS_MAX));
        let mut entries = vec![0; count * ENTRY_WORDS * 8];
        file.read_exact_at(&mut entries, ENTRIES as u64)?;
        let mut again = [0; 8];
        file.read_exact_at(&mut again, 0)?;
        if seq % 2 == 0 && u64::from_le_bytes(again) == seq {
            let windows = merge(
                entries
                    .chunks_exact(ENTRY_WORDS * 8)
                    .filter_map(|entry| {
                        Window::decode(std::array::from_fn(|i| u64_at(entry, i * 8)))
                    })
                    .filter(|window| !window.deleted),
            );
            let queued = u64_at(&front, 64);
            let oldest = (0..SHARERS_MAX)
                .map(|place| u64_at(&front, SHARERS_AT + place * SHARER_WORDS * 8 + 8))
                .filter(|&oldest| oldest != 0)
                .min();
            return Ok((windows, (queued, oldest.map_or(queued, |oldest| oldest - 1))));
        }
    }
    Err(io::Error::other(format!("the window table changed during {TRIES} reads; try again")))
}

/// Merges the parts of a window that lies in several places.
fn merge(windows: impl Iterator<Item = Window>) -> Vec<Registered> {
    let mut all: Vec<(u32, Registered)> = Vec::new();
    for window in windows {
        let mappable = matches!(window.place, Place::Arena(_));
        match all.last_mut() {
            Some((serial, last)) if *serial == window.serial => {
                last.len += window.len;
                last.mappable &= mappable;
            }
            _ => all.push((
                window.serial,
                Registered {
                    offset: window.offset,
                    len: window.len,
                    read: window.read,
                    write: window.write,
                    mappable,
                },
            )),
        }
    }
    all.into_iter().map(|(_, window)| window).collect()
}

#[cfg(test)]
mod tests {
    use scif::sys::memfd;
    use scif_ring::counter::AtomicFlag;

    use super::*;
    use crate::Endpoints;

    #[test]
    fn open_endpoints_are_listed_and_closed_ones_are_not() {
        // A forked child would hold closed descriptors.
        let _alone = scif::sys::children::none();
        let config = Config {
            domain: Some(format!("look-{}", process::pid())),
            node: 5,
            ..Config::default()
        };
        let endpoints = Endpoints::new(config.clone()).unwrap();
        let fd = endpoints.open().unwrap();
        let port = endpoints.bind(fd, 0).unwrap();
        endpoints.listen(fd, 1).unwrap();
        let nodes = nodes(&config).unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!((nodes[0].node, nodes[0].lost), (5, false));
        assert_eq!(nodes[0].processes, [process::pid()]);
        assert!(nodes[0].ports.contains(&port));
        // The only endpoint of this node: endpoints of other tests are in this process too.
        let seen = || {
            let all = processes(&config).unwrap();
            all[0].endpoints.iter().find(|e| e.own.node == 5).cloned()
        };
        let listener = seen().unwrap();
        assert_eq!((listener.state, listener.own), ("LISTENING", PortId::new(5, port)));
        assert_eq!(listener.descriptors, [fd]);
        assert_eq!(listener.peer, None);
        endpoints.close(fd).unwrap();
        assert_eq!(seen(), None);
    }

    #[test]
    fn processes_of_sisci_nodes_are_counted_once() {
        let line = |name: &str| format!("0: 2 0 00010000 0005 01 101 {name}\n");
        let list = [
            "@scif/abc/sisci/8/process/0",
            "@scif/abc/sisci/8/process/0",
            "@scif/abc/sisci/8/process/2",
            "@scif/abc/sisci/4/segment/2",
            "@scif/abc/sisci/x/process/2",
            "@scif/abc/8/process/3",
            "@scif/ab/sisci/12/process/0",
            "/run/s c/abc.sisci.16.process.0",
            "/run/s c/abc.sisci.16.process.0.1",
        ];
        let list: String = list.into_iter().map(line).collect();
        let config = |dir: Option<&str>| Config {
            domain: Some("abc".to_owned()),
            runtime_dir: dir.map(Into::into),
            ..Config::default()
        };
        assert_eq!(sisci_nodes_in(&list, &config(None)), BTreeMap::from([(8, 2)]));
        let in_files = sisci_nodes_in(&list, &config(Some("/run/s c")));
        assert_eq!(in_files, BTreeMap::from([(16, 1)]));
    }

    #[test]
    fn descriptors_change_during_a_listing() {
        let _that_begin = [0, 4096].map(|len| memfd::create(NAME, len).unwrap());
        let end = AtomicFlag::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.get() {
                    drop(memfd::create("scif:windows", 4096).unwrap());
                    drop(rustix::pipe::pipe().unwrap());
                }
            });
            let listings: Vec<_> = (0..2000).map(|_| endpoints(process::pid()).map(drop)).collect();
            end.set(true);
            for listed in listings {
                listed.unwrap();
            }
        });
    }

    #[test]
    fn parts_of_a_window_are_one() {
        let window = |offset, serial, place| Window {
            offset,
            len: 4096,
            place,
            read: true,
            deleted: false,
            write: false,
            serial,
        };
        let merged = merge(
            [
                window(0, 1, Place::Arena(0)),
                window(4096, 1, Place::Unmoved { addr: 4096, pid: 1 }),
                window(8192, 2, Place::Arena(0)),
            ]
            .into_iter(),
        );
        assert_eq!(merged.iter().map(|w| w.len).collect::<Vec<_>>(), [8192, 4096]);
        assert!(!merged[0].mappable && merged[1].mappable);
    }
}
