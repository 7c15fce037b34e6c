// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows of an endpoint as segments: memory that this process offers, and windows of the peer.
//!
//! A segment grants reading and writing to whoever connects. The access of a window is checked by
//! the initiator. Not about the frames that announce windows (`endpoint`).

use std::sync::{Arc, Mutex, TryLockError};

use scif_ring::{AtomicFlag, Mem};

use super::abi::SciCode;
use super::frame::WindowCard;
use super::functions::Sci;
use super::library::{Library, LocalSegment, RemoteMap};
use crate::failure::Failure;
use crate::sorted::SortedMap;
use crate::sys::errno::lock;

/// Bit of an access: the peer may read.
const READ: u32 = 1;
/// Bit of an access: the peer may write.
const WRITE: u32 = 2;

/// Bit of an access: the window is for RMA, and the peer maps it when it is announced.
pub(super) const RMA: u32 = 4;

/// Segments `S` on pages of the program, by their first address. Windows on the same pages share a
/// segment.
#[derive(Debug)]
pub(super) struct PageTable<S = LocalSegment> {
    segments: Mutex<SortedMap<usize, PageSegment<S>>>,
}

impl<S> Default for PageTable<S> {
    fn default() -> PageTable<S> {
        PageTable { segments: Mutex::default() }
    }
}

#[derive(Debug)]
struct PageSegment<S> {
    len: usize,
    id: u32,
    /// `None` while its removal is in progress.
    segment: Option<S>,
    /// Number of windows on it.
    users: usize,
}

/// Use of a segment on pages of the program. The last one removes the segment.
#[derive(Debug)]
pub(super) struct PagesUse<S = LocalSegment> {
    table: Arc<PageTable<S>>,
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
        memory: (usize, usize),
    ) -> Sci<PagesUse> {
        PagesUse::with(table, memory, || {
            let segment = library.segment(None, memory.1, Some(memory.0))?;
            segment.offer()?;
            Ok((segment.id(), segment))
        })
    }
}

impl<S> PagesUse<S> {
    /// Variant of [`PagesUse::new`] with the means to make a segment and its id.
    ///
    /// # Errors
    /// `NOT_AVAILABLE` for pages of which a shorter segment begins with the first, or a removed one
    /// is not gone yet. The target then executes RMA.
    fn with(
        table: &Arc<PageTable<S>>,
        (addr, len): (usize, usize),
        make: impl FnOnce() -> Sci<(u32, S)>,
    ) -> Sci<PagesUse<S>> {
        let mut segments = lock(&table.segments);
        let end = addr.checked_add(len).ok_or(SciCode::ILLEGAL_ADDRESS)?;
        let is_taken = segments.contains_key(&addr);
        let found = segments.at_or_before_mut(&addr);
        let (begin, segment) = match found.filter(|(begin, at)| **begin + at.len >= end) {
            Some((begin, segment)) if segment.segment.is_some() => (*begin, segment),
            Some(_) => return Err(SciCode::NOT_AVAILABLE),
            None if is_taken => return Err(SciCode::NOT_AVAILABLE),
            None => {
                let (id, segment) = make()?;
                let made = PageSegment { len, id, segment: Some(segment), users: 0 };
                (addr, segments.get_or_insert_with(addr, || made))
            }
        };
        segment.users += 1;
        let id = segment.id;
        Ok(PagesUse { table: Arc::clone(table), begin, start: addr - begin, id })
    }
}

impl<S> Drop for PagesUse<S> {
    fn drop(&mut self) {
        let ended = {
            let mut segments = lock(&self.table.segments);
            let Some(segment) = segments.get_mut(&self.begin) else { return };
            segment.users -= 1;
            if segment.users > 0 {
                return;
            }
            segment.segment.take()
        };
        // Without the lock, since the removal of a segment in use takes up to a second. The entry
        // remains meanwhile: these pages belong to no other segment yet.
        drop(ended);
        lock(&self.table.segments).remove(&self.begin);
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
    /// Set once its owner has withdrawn it: no further copy begins.
    is_withdrawn: AtomicFlag,
    /// Held during a copy, so that its owner waits for that.
    map: Mutex<MapStage>,
}

impl PeerSegment {
    pub(super) fn new(node: u32, card: WindowCard) -> PeerSegment {
        let map = Mutex::new(MapStage::Unmapped);
        PeerSegment { node, card, is_withdrawn: AtomicFlag::new(false), map }
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
        if self.is_withdrawn.get() {
            return Err(Failure::NoWindow);
        }
        match &*lock(&self.map) {
            MapStage::Mapped(map) => Ok(map.copy(near, at, is_read)?),
            _ => Err(Failure::NoWindow),
        }
    }

    /// Leaves the window, unless a copy is in progress. Returns whether it has been left; the
    /// caller then tries again. Later copies fail in any case.
    pub(super) fn try_leave(&self) -> bool {
        self.is_withdrawn.set(true);
        let left = match self.map.try_lock() {
            Ok(mut stage) => std::mem::replace(&mut *stage, MapStage::Left),
            Err(TryLockError::Poisoned(stage)) => {
                std::mem::replace(&mut *stage.into_inner(), MapStage::Left)
            }
            Err(TryLockError::WouldBlock) => return false,
        };
        drop(left);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    /// Segment whose removal takes as long as the test wants.
    struct SlowSegment(Option<Receiver<()>>);

    impl Drop for SlowSegment {
        fn drop(&mut self) {
            if let Some(removed) = self.0.take() {
                removed.recv().unwrap();
            }
        }
    }

    #[test]
    fn a_slow_removal_delays_no_other_segment() {
        let table: Arc<PageTable<SlowSegment>> = Arc::default();
        let (remove, removed) = channel();
        let slow = PagesUse::with(&table, (8192, 4096), || Ok((1, SlowSegment(Some(removed)))));
        let slow = slow.unwrap();
        let shared = PagesUse::with(&table, (8192, 4096), || Err(SciCode::SYSTEM)).unwrap();
        assert_eq!((slow.id, shared.id, shared.start), (1, 1, 0));
        drop(shared);
        let remover = std::thread::spawn(move || drop(slow));
        let is_removed = |table: &PageTable<SlowSegment>| {
            lock(&table.segments).get(&8192).is_some_and(|segment| segment.segment.is_none())
        };
        let (told, ended) = channel();
        let other = Arc::clone(&table);
        std::thread::spawn(move || {
            while !is_removed(&other) {
                std::thread::yield_now();
            }
            let make = |id| PagesUse::with(&other, (4096, 4096), || Ok((id, SlowSegment(None))));
            let same = PagesUse::with(&other, (8192, 4096), || Ok((9, SlowSegment(None))));
            told.send((make(2).unwrap().id, same.err())).unwrap();
        });
        let seen = ended.recv_timeout(Duration::from_secs(60));
        remove.send(()).unwrap();
        remover.join().unwrap();
        assert_eq!(seen, Ok((2, Some(SciCode::NOT_AVAILABLE))));
        let again = PagesUse::with(&table, (8192, 4096), || Ok((3, SlowSegment(None))));
        assert_eq!(again.unwrap().id, 3);
        assert!(lock(&table.segments).is_empty());
    }

    #[test]
    fn a_copy_in_progress_does_not_block_the_service_thread() {
        let card = WindowCard { offset: 0, len: 8, start: 0, segment: 1, access: READ | WRITE };
        let window = PeerSegment::new(4, card);
        let copying = lock(&window.map);
        assert!(!window.try_leave(), "a copy is in progress");
        drop(copying);
        let failed = window.copy(&Mem::empty(), 0, true);
        assert_eq!(failed, Err(Failure::NoWindow), "no copy begins after the withdrawal");
        assert!(window.try_leave());
        assert!(matches!(*lock(&window.map), MapStage::Left));
    }
}
