// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows of an endpoint as segments: memory that this process offers, and windows of the peer.
//!
//! A segment grants reading and writing to whoever connects. The access of a window is checked by
//! the initiator. Not about the frames that announce windows (`endpoint`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use scif_ring::Mem;

use super::abi::SciCode;
use super::frame::WindowCard;
use super::functions::Sci;
use super::library::{Library, LocalSegment, RemoteMap};
use crate::failure::Failure;
use crate::sys::errno::lock;

/// Bit of an access: the peer may read.
const READ: u32 = 1;
/// Bit of an access: the peer may write.
const WRITE: u32 = 2;

/// Bit of an access: the window is for RMA, and the peer maps it when it is announced.
pub(super) const RMA: u32 = 4;

/// Segments on pages of the program, by their first address. Windows on the same pages share a
/// segment.
#[derive(Debug, Default)]
pub(super) struct PageTable {
    segments: Mutex<BTreeMap<usize, PageSegment>>,
}

#[derive(Debug)]
struct PageSegment {
    len: usize,
    segment: LocalSegment,
    /// Number of windows on it.
    users: usize,
}

/// Use of a segment on pages of the program. The last one removes the segment.
#[derive(Debug)]
pub(super) struct PagesUse {
    table: Arc<PageTable>,
    begin: usize,
    /// Offset of the window in the segment.
    pub(super) start: usize,
    /// Id of the segment.
    pub(super) id: u32,
}

impl PagesUse {
    /// Offers pages of the program, by a segment that covers them or by a new one.
    pub(super) fn new(
        table: &Arc<PageTable>,
        library: &Arc<Library>,
        (addr, len): (usize, usize),
    ) -> Sci<PagesUse> {
        let mut segments = lock(&table.segments);
        let end = addr.checked_add(len).ok_or(SciCode::ILLEGAL_ADDRESS)?;
        let is_taken = segments.contains_key(&addr);
        let found = segments.range_mut(..=addr).next_back();
        let (begin, segment) = match found.filter(|(begin, at)| **begin + at.len >= end) {
            Some((begin, segment)) => (*begin, segment),
            // A shorter segment begins there. The target then executes RMA.
            None if is_taken => return Err(SciCode::NOT_AVAILABLE),
            None => {
                let segment = library.segment(None, len, Some(addr))?;
                segment.offer()?;
                let made = PageSegment { len, segment, users: 0 };
                (addr, segments.entry(addr).or_insert(made))
            }
        };
        segment.users += 1;
        let id = segment.segment.id();
        Ok(PagesUse { table: Arc::clone(table), begin, start: addr - begin, id })
    }
}

impl Drop for PagesUse {
    fn drop(&mut self) {
        let mut segments = lock(&self.table.segments);
        let Some(segment) = segments.get_mut(&self.begin) else { return };
        segment.users -= 1;
        if segment.users == 0 {
            // Under the lock: pages of a segment that ends belong to no other yet.
            drop(segments.remove(&self.begin));
        }
    }
}

/// Memory behind a window of this side.
#[derive(Debug)]
pub(super) enum OwnSegment {
    /// Memory of the library, mapped for this process.
    Made(#[expect(dead_code, reason = "kept for its drop")] Arc<LocalSegment>),
    /// Pages of the program.
    Program(#[expect(dead_code, reason = "kept for its drop")] PagesUse),
}

#[derive(Debug)]
enum MapStage {
    /// Not mapped yet, or its owner did not answer.
    Unmapped,
    Mapped(RemoteMap),
    /// Withdrawn by its owner.
    Left,
}

/// Window of the peer.
#[derive(Debug)]
pub(super) struct PeerSegment {
    node: u32,
    card: WindowCard,
    /// Held during a copy, so that its owner waits for that.
    map: Mutex<MapStage>,
}

impl PeerSegment {
    pub(super) fn new(node: u32, card: WindowCard) -> PeerSegment {
        PeerSegment { node, card, map: Mutex::new(MapStage::Unmapped) }
    }

    /// Connects to its segment and maps it for a caller that keeps the mapping. Waits for a stopped
    /// owner, up to the limit in milliseconds.
    pub(super) fn map(&self, library: &Arc<Library>, limit_ms: u32) -> Sci<RemoteMap> {
        library.connect(self.node, self.card.segment, None, limit_ms)?.map()
    }

    /// Maps it for copies.
    pub(super) fn open(&self, library: &Arc<Library>, limit_ms: u32) -> Sci<()> {
        let map = self.map(library, limit_ms)?;
        *lock(&self.map) = MapStage::Mapped(map);
        Ok(())
    }

    /// Whether it is for RMA.
    pub(super) fn is_for_rma(&self) -> bool {
        self.card.access & RMA != 0
    }

    /// Returns the offset of its first byte in its segment.
    pub(super) fn start(&self) -> u64 {
        self.card.start
    }

    /// Copies between memory of this process and the window, at an offset of the peer.
    ///
    /// # Errors
    /// [`Failure::NoWindow`] outside of it, or once it is withdrawn; [`Failure::NotPermitted`];
    /// [`Failure::Reset`] if the peer is gone.
    pub(super) fn copy(&self, near: &Mem, far: i64, is_read: bool) -> Result<(), Failure> {
        let WindowCard { offset, len, start, access, .. } = self.card;
        let within = far.checked_sub(offset).and_then(|within| u64::try_from(within).ok());
        let within = within
            .filter(|within| within.checked_add(near.len() as u64).is_some_and(|end| end <= len));
        let within = within.ok_or(Failure::NoWindow)?;
        if access & if is_read { READ } else { WRITE } == 0 {
            return Err(Failure::NotPermitted);
        }
        let at = start.checked_add(within).and_then(|at| usize::try_from(at).ok());
        let at = at.ok_or(Failure::NoWindow)?;
        match &*lock(&self.map) {
            MapStage::Mapped(map) => Ok(map.copy(near, at, is_read)?),
            _ => Err(Failure::NoWindow),
        }
    }

    /// Leaves the window after a copy in progress.
    pub(super) fn leave(&self) {
        let left = std::mem::replace(&mut *lock(&self.map), MapStage::Left);
        drop(left);
    }
}
