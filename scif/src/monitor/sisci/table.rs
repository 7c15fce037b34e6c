// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory in which this process publishes its SISCI objects.
//!
//! The process reads nothing back, so a foreign write changes displayed values only. A forked child
//! closes the descriptor, and changes no record of its parent.

use std::sync::{Arc, Mutex};

use scif_ring::SharedWords;

use super::layout::{
    self, BYTES, NAME, ObjectKind, ObjectState, PROCESS_WORDS, RECORD_WORDS, RECORDS, TEXT_WORDS,
    process, record,
};
use crate::monitor::layout::UNKNOWN;
use crate::monitor::shown_memory;
use crate::monitor::table::{put, put_text};
use crate::sys::errno::{self, keep_errno};
use crate::sys::fork::{Maker, PrivateFd};
use crate::sys::mmap::Mapping;
use crate::sys::process::{ProcessState, pid, state_of};
use crate::sys::{logging, memfd};

/// Description of a process.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SisciIdentity {
    /// Node id.
    pub node: u32,
    /// Number of adapters.
    pub adapters: u32,
    /// Domain of the process.
    pub domain: String,
    /// Runtime directory, empty for abstract names.
    pub dir: String,
}

/// Values of a new record. The meaning of the words is that of [`record`].
#[derive(Clone, Copy, Debug)]
pub struct ObjectFields {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// State of the object.
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
    pub peers: u64,
    /// Set of flags.
    pub flags: u64,
    /// Process id of the owner of a connected segment.
    pub owner: i32,
    /// Address of a mapping.
    pub address: u64,
}

impl ObjectFields {
    /// Returns the fields of an object without states; words that the kind does not use are 0.
    #[must_use]
    pub fn new(kind: ObjectKind, node: u32, number: u32) -> ObjectFields {
        ObjectFields {
            kind,
            state: ObjectState::Present,
            node,
            number,
            adapter: 0,
            size: 0,
            offset: 0,
            peers: 0,
            flags: 0,
            owner: 0,
            address: 0,
        }
    }
}

/// Records in use.
#[derive(Debug, Default)]
struct FreeRecords {
    /// Indices below `used` that are free.
    free: Vec<usize>,
    /// Number of records that were ever used.
    used: usize,
    /// Serial number of the last object.
    serial: u64,
    /// Number of objects made without a free record.
    unpublished: u64,
}

/// Memory of the records of this process.
#[derive(Debug)]
pub struct ObjectTable {
    map: Mapping,
    /// Descriptor by which readers find the memory.
    _fd: PrivateFd,
    creator: Maker,
    records: Mutex<FreeRecords>,
}

impl ObjectTable {
    /// Creates the memory. Returns `None` where it cannot be had: scifctl then shows nothing of
    /// this process.
    #[must_use]
    pub fn create(identity: &SisciIdentity) -> Option<Arc<ObjectTable>> {
        let made = keep_errno(|| shown_memory::create(NAME, BYTES, memfd::file_limit()));
        let made = made.inspect_err(|reason| {
            logging::warn_about_call!(
                "memory for scifctl: SISCI objects of this process are not shown: {reason}"
            );
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
        put(words, process::NODE, u64::from(identity.node));
        put(words, process::ADAPTERS, u64::from(identity.adapters));
        put_text(words, (process::DOMAIN, TEXT_WORDS), &identity.domain);
        put_text(words, (process::DIR, TEXT_WORDS), &identity.dir);
        put(words, process::MAGIC, layout::MAGIC);
        let (fd, creator) = (PrivateFd::new(fd), Maker::here());
        Some(Arc::new(ObjectTable { map, _fd: fd, creator, records: Mutex::default() }))
    }

    /// Publishes an object until the record is dropped.
    #[must_use]
    pub fn publish(self: &Arc<Self>, fields: &ObjectFields) -> ObjectRecord {
        let Some((index, serial)) = self.take() else { return ObjectRecord::default() };
        let Some(words) = self.words(index) else { return ObjectRecord::default() };
        for (at, value) in [
            (record::KIND, fields.kind as u64),
            (record::STATE, fields.state as u64),
            (record::NODE, u64::from(fields.node)),
            (record::NUMBER, u64::from(fields.number)),
            (record::ADAPTER, fields.adapter),
            (record::SIZE, fields.size),
            (record::OFFSET, fields.offset),
            (record::PEERS, fields.peers),
            (record::FLAGS, fields.flags),
            (record::OWNER, u64::from(fields.owner.unsigned_abs())),
            (record::ADDRESS, fields.address),
            (record::COUNT, 0),
            (record::SERIAL, serial),
        ] {
            put(words, at, value);
        }
        ObjectRecord(Some((Arc::clone(self), index)))
    }

    /// Takes a free record. Returns its index and the serial number of the object.
    fn take(&self) -> Option<(usize, u64)> {
        let mut records = errno::lock(&self.records);
        let page = self.map.words(0, PROCESS_WORDS).ok()?;
        records.serial += 1;
        let serial = records.serial;
        if let Some(index) = records.free.pop() {
            return Some((index, serial));
        }
        if records.used == RECORDS {
            records.unpublished += 1;
            put(page, process::UNPUBLISHED, records.unpublished);
            return None;
        }
        records.used += 1;
        put(page, process::USED, records.used as u64);
        Some((records.used - 1, serial))
    }

    fn words(&self, index: usize) -> Option<SharedWords> {
        self.map.words(8 * (PROCESS_WORDS + index * RECORD_WORDS), RECORD_WORDS).ok()
    }
}

/// Record of an object, freed when dropped. Without published memory its methods have no effect.
#[derive(Debug, Default)]
pub struct ObjectRecord(Option<(Arc<ObjectTable>, usize)>);

impl ObjectRecord {
    /// Stores a state.
    pub fn set_state(&self, state: ObjectState) {
        self.set(record::STATE, state as u64);
    }

    /// Stores a word of [`record`].
    pub fn set(&self, at: usize, value: u64) {
        if let Some(words) = self.words() {
            put(words, at, value);
        }
    }

    /// Counts one more interrupt. The caller holds a lock of the object.
    pub fn count(&self) {
        if let Some(word) = self.words().and_then(|words| words.get(record::COUNT)) {
            word.set_relaxed(word.get_relaxed().wrapping_add(1));
        }
    }

    fn words(&self) -> Option<SharedWords> {
        let (table, index) = self.0.as_ref()?;
        // A forked child shares the memory with its parent.
        if table.creator.is_ancestor() { None } else { table.words(*index) }
    }
}

impl Drop for ObjectRecord {
    fn drop(&mut self) {
        let Some((table, index)) = self.0.take() else { return };
        if table.creator.is_ancestor() {
            return;
        }
        if let Some(words) = table.words(index) {
            put(words, record::SERIAL, 0);
        }
        errno::lock(&table.records).free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{SisciProcess, process_at};
    use super::*;
    use crate::sys::children;

    fn seen(node: u32) -> SisciProcess {
        process_at(pid()).unwrap().into_iter().find(|process| process.node == node).unwrap()
    }

    #[test]
    fn objects_are_shown_until_their_record_is_dropped() {
        let identity = SisciIdentity {
            node: 12,
            adapters: 2,
            domain: "d".repeat(32),
            dir: format!("/{}", "x".repeat(69)),
        };
        let table = ObjectTable::create(&identity).unwrap();
        let process = seen(12);
        assert_eq!((process.pid, process.adapters), (pid(), 2));
        assert_eq!((&process.domain, &process.dir), (&identity.domain, &identity.dir));
        let fields =
            ObjectFields { size: 70, flags: 3, ..ObjectFields::new(ObjectKind::Map, 8, 3) };
        let (one, two) = (table.publish(&fields), table.publish(&fields));
        one.set_state(ObjectState::Lost);
        one.count();
        one.count();
        let objects = seen(12).objects;
        assert_eq!(objects.len(), 2);
        let first = &objects[0];
        assert_eq!((first.kind, first.state), (ObjectKind::Map, ObjectState::Lost));
        assert_eq!((first.node, first.number, first.size, first.count), (8, 3, 70, 2));
        drop(one);
        assert_eq!(seen(12).objects.len(), 1);
        let three = table.publish(&fields);
        let states: Vec<ObjectState> = seen(12).objects.iter().map(|o| o.state).collect();
        assert_eq!(states, [ObjectState::Present; 2], "the free record is used again");
        assert_eq!(errno::lock(&table.records).used, 2);
        drop((two, three));
        assert_eq!(seen(12).objects, []);
    }

    #[test]
    fn objects_without_a_record_are_counted() {
        let identity = SisciIdentity { node: 16, ..SisciIdentity::default() };
        let table = ObjectTable::create(&identity).unwrap();
        let fields = ObjectFields::new(ObjectKind::Segment, 16, 1);
        let all: Vec<ObjectRecord> = (0..RECORDS + 3).map(|_| table.publish(&fields)).collect();
        let process = seen(16);
        assert_eq!((process.objects.len(), process.unpublished), (RECORDS, 3));
        drop(all);
        assert_eq!(seen(16).objects, []);
    }

    #[test]
    fn a_forked_child_changes_nothing() {
        let identity = SisciIdentity { node: 20, ..SisciIdentity::default() };
        let table = ObjectTable::create(&identity).unwrap();
        let record = table.publish(&ObjectFields::new(ObjectKind::Segment, 20, 1));
        let inherited = std::mem::ManuallyDrop::new(record);
        let child = children::in_child(|| {
            inherited.set_state(ObjectState::Lost);
            drop(ObjectRecord(inherited.0.clone()));
            0
        });
        assert_eq!(child.result(), 0);
        let process = seen(20);
        assert_eq!((process.pid, process.objects[0].state), (pid(), ObjectState::Present));
        drop(std::mem::ManuallyDrop::into_inner(inherited));
    }
}
