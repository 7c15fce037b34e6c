// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings of segments into the program, and sequences on them.

use std::sync::{Arc, Mutex};

use scif::monitor::sisci::layout::{ObjectKind, flag};
use scif::monitor::sisci::{ObjectFields, ObjectRecord};
use scif::sys::mmap::PAGE;
use scif::sys::pages;

use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::local_segment::LocalSegment;
use crate::lock::take;
use crate::memory::Memory;
use crate::remote_segment::{Phase, RemoteSegment};

/// Alignment in bytes of the offset of a mapping or copy. Other offsets are refused.
pub(crate) const OFFSET_ALIGN: usize = 4;

/// Segment behind a mapping.
#[derive(Clone)]
pub(crate) enum Mapped {
    Local(Arc<LocalSegment>),
    Remote(Arc<RemoteSegment>),
}

impl Mapped {
    fn get(&self) -> Outcome<Arc<Memory>> {
        match self {
            Mapped::Local(segment) => segment.get(),
            Mapped::Remote(segment) => segment.get(),
        }
    }

    fn put(&self) {
        match self {
            Mapped::Local(segment) => segment.put(),
            Mapped::Remote(segment) => segment.put(),
        }
    }

    /// Returns the fields that `scifctl` shows of a mapping at an address.
    fn fields(&self, part: &Part, addr: usize) -> ObjectFields {
        let (node, id, remote) = match self {
            Mapped::Local(segment) => (segment.desc.context.settings.node.number(), segment.id, 0),
            Mapped::Remote(segment) => (segment.target.node, segment.target.id, flag::REMOTE),
        };
        ObjectFields {
            size: part.size as u64,
            offset: part.offset as u64,
            flags: remote | if part.writable { flag::WRITABLE } else { 0 },
            address: addr as u64,
            ..ObjectFields::new(ObjectKind::Map, node, id)
        }
    }

    fn desc(&self) -> &Arc<Desc> {
        match self {
            Mapped::Local(segment) => &segment.desc,
            Mapped::Remote(segment) => &segment.desc,
        }
    }
}

/// Part of a segment to map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: usize,
    pub(crate) size: usize,
    /// Address demanded by the program (`SCI_FLAG_FIXED_MAP_ADDR`).
    pub(crate) fixed: Option<usize>,
    pub(crate) writable: bool,
}

#[derive(Debug, Default)]
struct MapState {
    /// Number of sequences and block transfers that use it.
    uses: usize,
    unmapped: bool,
}

/// Mapping of a segment in the program.
pub(crate) struct Map {
    pub(crate) target: Mapped,
    /// Address of the first byte that the program requested.
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) writable: bool,
    /// Range of whole pages.
    area: (usize, usize),
    state: Mutex<MapState>,
    /// Record for `scifctl`.
    _shown: ObjectRecord,
}

impl Map {
    /// Maps a part of a segment.
    ///
    /// # Errors
    /// `OutOfRange`, `OffsetAlignment`, `SizeAlignment` for no bytes, `IllegalAddress` for a fixed
    /// address that does not fit the offset, `SegmentNotConnected`.
    pub(crate) fn new(target: Mapped, part: Part) -> Outcome<Arc<Map>> {
        let memory = target.get()?;
        let mapped = Map::place(&memory, &part);
        let (addr, area) = mapped.inspect_err(|_| target.put())?;
        let desc = target.desc();
        desc.hold();
        let shown = desc.context.publish(&target.fields(&part, addr));
        Ok(Arc::new(Map {
            _shown: shown,
            target,
            addr,
            len: part.size,
            writable: part.writable,
            area,
            state: Mutex::new(MapState::default()),
        }))
    }

    fn place(memory: &Memory, part: &Part) -> Outcome<(usize, (usize, usize))> {
        if part.size == 0 {
            return fail(SciError::SizeAlignment);
        }
        if part.offset % OFFSET_ALIGN != 0 {
            return fail(SciError::OffsetAlignment);
        }
        memory.check(part.offset, part.size)?;
        let inner = part.offset % PAGE;
        let begin = part.offset - inner;
        let len = (inner + part.size).next_multiple_of(PAGE);
        let hint = part.fixed.map_or(Some(0), |addr| addr.checked_sub(inner));
        let hint = hint.filter(|hint| hint % PAGE == 0).ok_or(SciError::IllegalAddress)?;
        if part.fixed.is_some() && hint == 0 {
            return fail(SciError::IllegalAddress);
        }
        let at = pages::reserve_for_program(hint, len, part.fixed.is_some(), begin as u64)?;
        pages::map_for_program(at, len, true, part.writable, memory.fd(), begin as u64)
            .inspect_err(|_| {
                let _ = pages::unmap(at, len);
            })?;
        Ok((at + inner, (at, len)))
    }

    /// Refuses further users, before the handle ends and the memory is unmapped.
    ///
    /// # Errors
    /// `Busy` while a sequence or transfer uses it.
    pub(crate) fn begin_unmap(&self) -> Outcome<()> {
        let mut state = take(&self.state);
        if state.uses > 0 || state.unmapped {
            return fail(SciError::Busy);
        }
        state.unmapped = true;
        Ok(())
    }

    /// Unmaps the memory after [`Map::begin_unmap`]. No slot of copies has the handle any more.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn finish_unmap(&self) -> Outcome<()> {
        pages::unmap(self.area.0, self.area.1)?;
        self.target.put();
        self.target.desc().release();
        Ok(())
    }

    /// Checks that the memory behind it belongs to a live owner.
    ///
    /// # Errors
    /// `TransferFailed`.
    pub(crate) fn check_alive(&self) -> Outcome<()> {
        match self.status() {
            SequenceStatus::NotRetriable => fail(SciError::TransferFailed),
            _ => Ok(()),
        }
    }

    /// Whether an injected fault has lost the transfers before this check.
    pub(crate) fn take_retriable(&self) -> bool {
        matches!(self.target, Mapped::Remote(_))
            && self.target.desc().context.faults.take_retriable()
    }

    fn status(&self) -> SequenceStatus {
        match &self.target {
            Mapped::Local(_) => SequenceStatus::Ok,
            Mapped::Remote(segment) => match segment.phase() {
                Phase::Operational | Phase::Disconnecting => SequenceStatus::Ok,
                Phase::Connecting | Phase::NotOperational => SequenceStatus::Pending,
                Phase::Lost | Phase::Refused => SequenceStatus::NotRetriable,
            },
        }
    }

    /// Counts a user.
    ///
    /// # Errors
    /// `IllegalParameter` once it is unmapped.
    pub(crate) fn hold(&self) -> Outcome<()> {
        let mut state = take(&self.state);
        if state.unmapped {
            return fail(SciError::IllegalParameter);
        }
        state.uses += 1;
        Ok(())
    }

    /// Ends a use.
    pub(crate) fn release(&self) {
        let mut state = take(&self.state);
        state.uses = state.uses.saturating_sub(1);
    }
}

/// `sci_sequence_status_t`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum SequenceStatus {
    Ok = 0,
    /// Reported by injected faults only.
    Retriable = 1,
    NotRetriable = 2,
    Pending = 3,
}

/// Sequence of accesses to a remote mapping.
pub(crate) struct Sequence {
    pub(crate) map: Arc<Map>,
}

impl Sequence {
    /// Makes a sequence (`SCICreateMapSequence`).
    ///
    /// # Errors
    /// `IllegalParameter` for a mapping of a local segment.
    pub(crate) fn new(map: Arc<Map>) -> Outcome<Arc<Sequence>> {
        if matches!(map.target, Mapped::Local(_)) {
            return fail(SciError::IllegalParameter);
        }
        map.hold()?;
        map.target.desc().hold();
        Ok(Arc::new(Sequence { map }))
    }

    /// Removes it (`SCIRemoveSequence`).
    pub(crate) fn remove(&self) {
        self.map.release();
        self.map.target.desc().release();
    }

    /// Ends the check of a program: the state, or an injected fault.
    pub(crate) fn check(&self) -> SequenceStatus {
        match self.map.status() {
            SequenceStatus::Ok if self.map.take_retriable() => SequenceStatus::Retriable,
            status => status,
        }
    }

    /// Returns its state: all earlier accesses have succeeded, or the owner is gone.
    pub(crate) fn status(&self) -> SequenceStatus {
        self.map.status()
    }
}
