// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that peers use hard moves, while it is registered, into a memfd of its domain that they can map: the arena.
//!
//! Not about when (the provider counts) nor about how pages move (`sys::pages`). A key names its window, the place of its
//! whole pages in the arena; a peer that meets such a key asks for the arena, once, and maps all of it. Pages move only
//! while nobody could store to them unseen: stores of the program are held up, and peers that copy by `process_vm_*` have
//! taken the page before, so there must be none, of this key (its owner has withdrawn it), of another region over the
//! same pages, or of a message on its way there. What is known of that is known here, for all domains of the process: that
//! of another copy of this library is not.
//!
//! INVARIANT: the pages of a window stay where they are while a region lies over any of them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::keys::SharedKeys;
use crate::sys::fork::{self, PrivateFd};
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::pages::{self, FileId, PAGE, StoreGuard};
use crate::sys::smaps;

/// Bytes of an arena: addresses, not memory.
pub(crate) const ARENA_BYTES: usize = 64 << 30;
/// Where the first window may be, and what is free behind each besides its own length: whoever enlarges a mapping of one
/// page finds fresh memory there and no other window.
const GAP: u64 = 1 << 20;

/// What a domain shows its peers of its memory.
#[derive(Debug)]
pub(crate) struct Arena {
    fd: PrivateFd,
    file: FileId,
}

impl Arena {
    pub(crate) fn new() -> Result<Arena, Errno> {
        let fd = memfd::create(pages::WINDOW_NAME, ARENA_BYTES)?;
        memfd::seal(&fd, FIXED_SIZE)?;
        let file = pages::file_id(&fd)?;
        Ok(Arena {
            fd: PrivateFd::new(fd),
            file,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

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

/// Moved pages: where they were, where they are, and the regions over them.
#[derive(Debug)]
struct Window {
    run: Run,
    at: u64,
    arena: Arc<Arena>,
    regions: Vec<u64>,
}

/// All that is known of the memory of this process.
#[derive(Debug)]
struct Places {
    generation: u64,
    next: u64,
    /// Regions that peers may write, whole pages around them.
    regions: BTreeMap<u64, Run>,
    /// Buffers that peers copy messages into.
    arrivals: BTreeMap<u64, Run>,
    /// Those without regions could not move back yet.
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

    /// A free place in an arena.
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

    /// Whether the pages of a region could move: nobody else uses them, and they are of a kind that moves.
    fn may_move(&self, number: u64, run: Run) -> Result<(), Unmoved> {
        let others =
            |runs: &BTreeMap<u64, Run>| runs.iter().any(|(other, at)| *other != number && at.meets(&run));
        let moved = self.windows.iter().any(|window| window.run.meets(&run));
        if others(&self.regions) || others(&self.arrivals) || moved {
            return Err(Unmoved::Busy);
        }
        let here = 0u8;
        if smaps::is_plain(run.begin, run.end, (&raw const here).addr()) {
            Ok(())
        } else {
            Err(Unmoved::Unfit)
        }
    }

    /// Moves back what no region lies over any more and nothing is copied into.
    fn sweep(&mut self) {
        let mut at = 0;
        while let Some(window) = self.windows.get(at) {
            let busy = |runs: &BTreeMap<u64, Run>| runs.values().any(|run| run.meets(&window.run));
            if window.regions.is_empty() && !busy(&self.arrivals) && window.move_back() {
                self.windows.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }
}

fn with_places<T>(run: impl FnOnce(&mut Places) -> T) -> T {
    let _section = fork::section();
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if places.generation != fork::generation() {
        // A forked child has copies of the pages, and none of the regions.
        *places = Places::new(fork::generation());
    }
    run(&mut places)
}

impl Window {
    /// Whether nothing of it is left in the arena.
    fn move_back(&self) -> bool {
        let (from, to) = (self.at, self.at + self.run.len());
        let last = self.run.end - PAGE;
        let is_ours =
            |areas: Vec<pages::Area>| areas.iter().all(|area| area.shows(self.arena.file, from, to));
        if pages::areas(last, self.run.end).is_ok_and(is_ours) {
            pages::set_apart(last, false);
        }
        // Wherever the program has them by now.
        let Ok(areas) = pages::areas_of_program() else {
            return false;
        };
        let here: Vec<_> = areas
            .iter()
            .filter(|area| area.shows(self.arena.file, from, to))
            .collect();
        if !here.is_empty() {
            // Without it stores of other threads could be lost.
            let Some(guard) = StoreGuard::new() else {
                return false;
            };
            for area in here {
                let (begin, end) = (
                    area.place(from.max(area.offset)),
                    area.place(to.min(area.last_offset())),
                );
                let fd = Some(self.arena.fd());
                if let Err(errno) = pages::move_back(area, begin, end, Some(&guard), fd) {
                    log::debug!("pages of a window stay where they are: {errno}");
                    return false;
                }
            }
        }
        pages::discard(self.arena.fd(), from, to - from);
        true
    }
}

/// Why pages did not move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unmoved {
    /// Not memory of the kind that moves.
    Unfit,
    /// Something else is under way on the same pages.
    Busy,
    /// The system does not let us.
    Refused,
}

/// A region that peers may write, whose pages may move as long as it lives. When it goes, no peer may be inside it: they
/// move back when it was the last region over them.
#[derive(Debug)]
pub struct Movable {
    number: u64,
    /// Its whole pages.
    run: Run,
    window: Option<u64>,
}

impl Movable {
    /// Of `len` bytes at `addr`.
    #[must_use]
    pub fn new(addr: usize, len: usize) -> Movable {
        let end = addr.saturating_add(len);
        let around = Run {
            begin: addr - addr % PAGE,
            end: end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX),
        };
        let begin = addr.checked_next_multiple_of(PAGE).unwrap_or(end);
        let run = Run {
            begin,
            end: (end - end % PAGE).max(begin),
        };
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
        Movable {
            number,
            run,
            window: None,
        }
    }

    /// How many whole pages it has.
    #[must_use]
    pub fn pages(&self) -> usize {
        (self.run.end - self.run.begin) / PAGE
    }

    /// Where its whole pages lie in what the domain shows, and how many bytes; zeros: not there.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        self.window.map_or((0, 0), |at| (at, self.run.len()))
    }

    /// Whether they could move now.
    ///
    /// # Errors
    /// As [`Unmoved`] says.
    pub fn may_move(&self) -> Result<(), Unmoved> {
        if self.window.is_some() || self.pages() == 0 {
            return Err(Unmoved::Unfit);
        }
        with_places(|places| places.may_move(self.number, self.run))?;
        StoreGuard::new().map(drop).ok_or(Unmoved::Refused)
    }

    /// Moves its whole pages into the arena of the domain whose keys these are. Its own key is withdrawn meanwhile, and nobody
    /// is inside.
    ///
    /// # Errors
    /// As [`Unmoved`] says; then they are where they were.
    pub fn move_in(&mut self, keys: &SharedKeys) -> Result<(), Unmoved> {
        if self.window.is_some() || self.pages() == 0 {
            return Err(Unmoved::Unfit);
        }
        let (number, run) = (self.number, self.run);
        let at = with_places(|places| {
            places.may_move(number, run)?;
            let guard = StoreGuard::new().ok_or(Unmoved::Refused)?;
            let arena = keys.arena().ok_or(Unmoved::Refused)?;
            let areas = pages::areas(run.begin, run.end).map_err(|_| Unmoved::Refused)?;
            let at = places.place(arena, run.len()).ok_or(Unmoved::Refused)?;
            let window = Window {
                run,
                at,
                arena: Arc::clone(arena),
                regions: vec![number],
            };
            let moved = areas.iter().try_for_each(|area| {
                let (begin, end) = (area.begin.max(run.begin), area.end.min(run.end));
                let offset = at + (begin - run.begin) as u64;
                pages::move_in(area, begin, end, arena.fd(), offset, Some(&guard), pages::freely)
            });
            drop(guard);
            places.windows.push(window);
            if let Err(errno) = moved {
                log::debug!("pages of a region stay where they are: {errno}");
                for window in &mut places.windows {
                    window
                        .regions
                        .retain(|region| *region != number || window.run != run);
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

/// A buffer that a peer copies a message into, by `process_vm_writev`, as long as it lives.
#[derive(Debug)]
pub struct Arrival(u64);

impl Arrival {
    /// Into `len` bytes at `addr`.
    #[must_use]
    pub fn new(addr: usize, len: usize) -> Arrival {
        let run = Run {
            begin: addr,
            end: addr.saturating_add(len),
        };
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
