// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Migration of memory that peers access frequently: while it is registered, its pages move into a
//! memfd of its domain that peers can map, the arena.
//!
//! Not about the decision to move (the provider counts accesses) nor about the move of pages
//! (`sys::pages`). A key names its window, the offset of its whole pages in the arena. A peer that
//! finds such a key requests the arena once, and maps all of it.
//!
//! Pages move only while no store can be lost. Stores of the program are suspended. Copies of a
//! peer by `process_vm_*` are not, and may have resolved the old page. So there must be none: under
//! this key (its owner has revoked it), to another region over the same pages, or of an arriving
//! message. This module knows the regions and arriving messages of all domains of the process, but
//! not those of another copy of this library.
//! INVARIANT: the pages of a window stay in place while a region covers any of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::arena::{ARENA_BYTES, Arena};
use crate::keys::SharedKeys;
use crate::sys::errno::lock;
use crate::sys::pages::{self, PAGE, WriteFence};
use crate::sys::{fork, smaps};

/// Offset in bytes of the first window, and free space behind each window besides its own length. A
/// program that enlarges a mapping of one page finds fresh memory there instead of another window.
const GAP: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Run {
    begin: usize,
    end: usize,
}

impl Run {
    fn meets(&self, other: &Run) -> bool {
        self.begin < other.end && other.begin < self.end
    }

    fn len(&self) -> u64 {
        (self.end - self.begin) as u64
    }
}

/// Moved pages: their original range, their offset in the arena, and the regions over them.
#[derive(Debug)]
struct Window {
    run: Run,
    at: u64,
    arena: Arc<Arena>,
    regions: Vec<u64>,
}

/// Registry of regions, arriving messages and windows of this process.
#[derive(Debug)]
struct Places {
    generation: u64,
    next: u64,
    /// Regions that peers may write, extended to whole pages.
    regions: BTreeMap<u64, Run>,
    /// Buffers into which peers copy messages.
    arrivals: BTreeMap<u64, Run>,
    /// Moved windows. One without regions could not move back yet.
    windows: Vec<Window>,
}

static PLACES: Mutex<Places> = Mutex::new(Places::new(0));

impl Places {
    const fn new(generation: u64) -> Places {
        Places {
            generation,
            next: 0,
            regions: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            windows: Vec::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a free offset in an arena.
    fn place(&self, arena: &Arc<Arena>, len: u64) -> Option<u64> {
        let mut used: Vec<(u64, u64)> = self
            .windows
            .iter()
            .filter(|window| Arc::ptr_eq(&window.arena, arena))
            .map(|window| (window.at, window.at + 2 * window.run.len() + GAP))
            .collect();
        used.sort_unstable();
        let need = len.checked_mul(2)?.checked_add(GAP)?;
        let mut at = GAP;
        for (from, to) in used {
            if from >= at && from - at >= need {
                break;
            }
            at = at.max(to);
        }
        (at.checked_add(need)? <= ARENA_BYTES as u64).then_some(at)
    }

    /// Checks that the pages of a region can move: they have no other user, and are of a movable
    /// kind.
    fn may_move(&self, number: u64, run: Run) -> Result<(), Unmoved> {
        let others = |runs: &BTreeMap<u64, Run>| {
            runs.iter().any(|(other, at)| *other != number && at.meets(&run))
        };
        let moved = self.windows.iter().any(|window| window.run.meets(&run));
        if others(&self.regions) || others(&self.arrivals) || moved {
            return Err(Unmoved::Busy);
        }
        let here = 0u8;
        if smaps::is_plain(run.begin, run.end, (&raw const here).addr()) {
            Ok(())
        } else {
            Err(Unmoved::BadMemory)
        }
    }

    /// Moves windows back that no region covers and no peer copies into.
    fn sweep(&mut self) {
        let mut at = 0;
        while let Some(window) = self.windows.get(at) {
            let busy = |runs: &BTreeMap<u64, Run>| runs.values().any(|run| run.meets(&window.run));
            if window.regions.is_empty() && !busy(&self.arrivals) && window.restore() {
                self.windows.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }
}

fn with_places<T>(run: impl FnOnce(&mut Places) -> T) -> T {
    let _section = fork::section();
    let mut places = lock(&PLACES);
    if places.generation != fork::generation() {
        // A forked child has copies of the pages, and none of the regions.
        *places = Places::new(fork::generation());
    }
    run(&mut places)
}

impl Window {
    /// Moves the pages back; returns whether none is left in the arena.
    fn restore(&self) -> bool {
        let (from, to) = (self.at, self.at + self.run.len());
        let last = self.run.end - PAGE;
        let is_ours = |areas: Vec<pages::Area>| {
            areas.iter().all(|area| area.shows(self.arena.file, from, to))
        };
        if pages::areas(last, self.run.end).is_ok_and(is_ours) {
            pages::set_apart(last, false);
        }
        // The program may have moved its mapping meanwhile.
        let Ok(areas) = pages::areas_of_program() else {
            return false;
        };
        let here: Vec<_> =
            areas.iter().filter(|area| area.shows(self.arena.file, from, to)).collect();
        if !here.is_empty() {
            // Without the guard, stores of other threads could be lost.
            let Some(guard) = WriteFence::new() else {
                return false;
            };
            for area in here {
                let (begin, end) =
                    (area.place(from.max(area.offset)), area.place(to.min(area.last_offset())));
                let fd = Some(self.arena.fd());
                if let Err(errno) = pages::restore(area, begin, end, Some(&guard), fd) {
                    log::debug!(
                        "pages of a memory region could not be moved back to private memory: \
                         {errno}; the move is repeated later"
                    );
                    return false;
                }
            }
        }
        pages::discard(self.arena.fd(), from, to - from);
        true
    }
}

/// Reason for which pages did not move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unmoved {
    /// Memory of a kind that cannot move.
    BadMemory,
    /// Another operation uses the same pages.
    Busy,
    /// The system denies it.
    Refused,
}

/// A region that peers may write, whose pages may move while it exists. No peer may access it when
/// it is dropped; the pages then move back if no other region covers them.
#[derive(Debug)]
pub struct Movable {
    number: u64,
    /// Whole pages of the region.
    run: Run,
    window: Option<u64>,
}

impl Movable {
    /// Registers `len` bytes at `addr`.
    #[must_use]
    pub fn new(addr: usize, len: usize) -> Movable {
        let end = addr.saturating_add(len);
        let around = Run {
            begin: addr - addr % PAGE,
            end: end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX),
        };
        let begin = addr.checked_next_multiple_of(PAGE).unwrap_or(end);
        let run = Run { begin, end: (end - end % PAGE).max(begin) };
        let number = with_places(|places| {
            let number = places.number();
            places.regions.insert(number, around);
            for window in &mut places.windows {
                if window.run.meets(&around) {
                    window.regions.push(number);
                }
            }
            number
        });
        Movable { number, run, window: None }
    }

    /// Returns its number of whole pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        (self.run.end - self.run.begin) / PAGE
    }

    /// Returns the offset of its whole pages in the exported arena, and their length in bytes;
    /// zeros if they were not moved.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        self.window.map_or((0, 0), |at| (at, self.run.len()))
    }

    /// Checks that the pages can move now.
    ///
    /// # Errors
    /// An [`Unmoved`].
    pub fn may_move(&self) -> Result<(), Unmoved> {
        if self.window.is_some() || self.pages() == 0 {
            return Err(Unmoved::BadMemory);
        }
        with_places(|places| places.may_move(self.number, self.run))?;
        WriteFence::new().map(drop).ok_or(Unmoved::Refused)
    }

    /// Moves its whole pages into the arena of the domain that owns `keys`. The region's own key
    /// must be revoked meanwhile, and no peer may access it.
    ///
    /// # Errors
    /// An [`Unmoved`]; the pages are then in their original place.
    pub fn move_in(&mut self, keys: &SharedKeys) -> Result<(), Unmoved> {
        if self.window.is_some() || self.pages() == 0 {
            return Err(Unmoved::BadMemory);
        }
        let (number, run) = (self.number, self.run);
        let at = with_places(|places| {
            places.may_move(number, run)?;
            let guard = WriteFence::new().ok_or(Unmoved::Refused)?;
            let arena = keys.arena().ok_or(Unmoved::Refused)?;
            let areas = pages::areas(run.begin, run.end).map_err(|_| Unmoved::Refused)?;
            let at = places.place(arena, run.len()).ok_or(Unmoved::Refused)?;
            let window = Window { run, at, arena: Arc::clone(arena), regions: vec![number] };
            let moved = areas.iter().try_for_each(|area| {
                let (begin, end) = (area.begin.max(run.begin), area.end.min(run.end));
                let offset = at + (begin - run.begin) as u64;
                pages::move_in(area, begin..end, arena.fd(), offset, Some(&guard), pages::freely)
            });
            drop(guard);
            places.windows.push(window);
            if let Err(errno) = moved {
                log::debug!(
                    "pages of a memory region did not migrate: {errno}; peers access them by \
                     system calls, which is slower"
                );
                for window in &mut places.windows {
                    window.regions.retain(|region| *region != number || window.run != run);
                }
                places.sweep();
                return Err(Unmoved::Refused);
            }
            pages::set_apart(run.end - PAGE, true);
            Ok(at)
        })?;
        self.window = Some(at);
        Ok(())
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        with_places(|places| {
            if places.regions.remove(&self.number).is_some() && !places.windows.is_empty() {
                for window in &mut places.windows {
                    window.regions.retain(|region| *region != self.number);
                }
                places.sweep();
            }
        });
    }
}

/// A buffer into which a peer copies a message by `process_vm_writev`, while this value exists.
#[derive(Debug)]
pub struct Arrival(u64);

impl Arrival {
    /// Registers `len` bytes at `addr`.
    #[must_use]
    pub fn new(addr: usize, len: usize) -> Arrival {
        let run = Run { begin: addr, end: addr.saturating_add(len) };
        with_places(|places| {
            let number = places.number();
            places.arrivals.insert(number, run);
            Arrival(number)
        })
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        with_places(|places| {
            if places.arrivals.remove(&self.0).is_some() && !places.windows.is_empty() {
                places.sweep();
            }
        });
    }
}
