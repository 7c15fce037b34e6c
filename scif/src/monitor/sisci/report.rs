// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading of published SISCI objects: of one process, or of all that this user may inspect.
//!
//! The owner of the memory is not trusted. Every word is checked; an object with a wrong kind or
//! state is left out.

use std::fs;
use std::io;

use scif_ring::SharedWords;

use super::layout::{
    self, BYTES, NAME, ObjectKind, ObjectState, PROCESS_WORDS, RECORD_WORDS, RECORDS, TEXT_WORDS,
    process, record,
};
use crate::monitor::report::{Seen, at, text_at};
use crate::sys::memfd;
use crate::sys::mmap::Mapping;

/// Process that uses the library.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SisciProcess {
    /// Process id.
    pub pid: i32,
    /// Command, as the kernel shows it.
    pub command: String,
    /// State letter, as in `/proc/PID/stat`.
    pub state: char,
    /// Version of the published state, if it is not the one that this code reads. The report then
    /// has no more than the identity of the process.
    pub other_version: Option<u64>,
    /// Node id.
    pub node: u32,
    /// Number of adapters.
    pub adapters: u32,
    /// Domain of the process.
    pub domain: String,
    /// Runtime directory, empty for abstract names.
    pub dir: String,
    /// Number of objects that were made without a free record.
    pub unpublished: u64,
    /// Published objects.
    pub objects: Vec<SisciObject>,
}

/// Object of a process. The meaning of the fields is that of [`record`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SisciObject {
    /// Serial number.
    pub serial: u64,
    /// Kind.
    pub kind: ObjectKind,
    /// State.
    pub state: ObjectState,
    /// Node of the segment or interrupt.
    pub node: u32,
    /// Id of the segment, or number of the interrupt.
    pub number: u32,
    /// Adapter, or set of adapters.
    pub adapter: u64,
    /// Bytes of the segment or mapping.
    pub size: u64,
    /// Offset of a mapping in its segment.
    pub offset: u64,
    /// Number of connected processes or owners.
    pub peers: u32,
    /// Set of flags.
    pub flags: u64,
    /// Process id of the owner of a connected segment, if it is visible.
    pub owner: Option<i32>,
    /// Address of a mapping.
    pub address: u64,
    /// Number of delivered or sent interrupts.
    pub count: u64,
}

/// Returns the processes with published objects, as far as this user may see them, by process id.
///
/// # Errors
/// There is no `/proc`.
fn processes() -> io::Result<Vec<SisciProcess>> {
    let mut pids: Vec<i32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids.into_iter().flat_map(|pid| process_at(pid).unwrap_or_default()).collect())
}

/// Returns the processes of a domain, and of a runtime directory, which is empty for abstract
/// names. Those with state of another version come too: their domain is unknown.
///
/// # Errors
/// There is no `/proc`.
pub fn processes_in(domain: &str, dir: &str) -> io::Result<Vec<SisciProcess>> {
    let mut found = processes()?;
    found.retain(|process| {
        process.other_version.is_some() || process.domain == domain && process.dir == dir
    });
    Ok(found)
}

/// Returns the published objects of a process: one report for each library that publishes.
///
/// # Errors
/// The process does not exist, or may not be inspected.
pub fn process_at(pid: i32) -> io::Result<Vec<SisciProcess>> {
    let mut found = Vec::new();
    for fd in memfd::open_named(pid, NAME, usize::MAX)? {
        // An unsealed memfd could shrink under the reader.
        let map = memfd::check(&fd, BYTES, memfd::FIXED_SIZE)
            .ok()
            .and_then(|()| Mapping::shared(&fd, BYTES, false).ok());
        if let (Some(map), Some(seen)) = (map, Seen::of(pid)) {
            found.extend(parse(&map, &seen));
        }
    }
    Ok(found)
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
fn half(word: u64) -> u32 {
    word as u32
}

/// Reads the memory of the process `seen`. Returns `None` if it belongs to another process.
#[must_use]
pub fn parse(map: &Mapping, seen: &Seen) -> Option<SisciProcess> {
    let words = map.words(0, PROCESS_WORDS).ok()?;
    if at(words, process::MAGIC) != layout::MAGIC || !seen.owns(map) {
        return None;
    }
    let report = SisciProcess {
        pid: seen.pid,
        command: seen.command.clone(),
        state: seen.state,
        ..SisciProcess::default()
    };
    let version = at(words, process::VERSION);
    if version != layout::VERSION {
        return Some(SisciProcess { other_version: Some(version), ..report });
    }
    let used = usize::try_from(at(words, process::USED)).unwrap_or(RECORDS).min(RECORDS);
    let mut objects: Vec<SisciObject> = (0..used)
        .filter_map(|index| {
            let offset = 8 * (PROCESS_WORDS + index * RECORD_WORDS);
            object(map.words(offset, RECORD_WORDS).ok()?)
        })
        .collect();
    objects.sort_by_key(|object| object.serial);
    Some(SisciProcess {
        node: half(at(words, process::NODE)),
        adapters: half(at(words, process::ADAPTERS)),
        domain: text_at(words, (process::DOMAIN, TEXT_WORDS)),
        dir: text_at(words, (process::DIR, TEXT_WORDS)),
        unpublished: at(words, process::UNPUBLISHED),
        objects,
        ..report
    })
}

fn object(words: SharedWords) -> Option<SisciObject> {
    let serial = at(words, record::SERIAL);
    if serial == 0 {
        return None;
    }
    let found = SisciObject {
        serial,
        kind: ObjectKind::from_word(at(words, record::KIND))?,
        state: ObjectState::from_word(at(words, record::STATE))?,
        node: half(at(words, record::NODE)),
        number: half(at(words, record::NUMBER)),
        adapter: at(words, record::ADAPTER),
        size: at(words, record::SIZE),
        offset: at(words, record::OFFSET),
        peers: half(at(words, record::PEERS)),
        flags: at(words, record::FLAGS),
        owner: i32::try_from(at(words, record::OWNER)).ok().filter(|pid| *pid > 0),
        address: at(words, record::ADDRESS),
        count: at(words, record::COUNT),
    };
    // Removed during the read, and perhaps reused.
    (at(words, record::SERIAL) == serial).then_some(found)
}
