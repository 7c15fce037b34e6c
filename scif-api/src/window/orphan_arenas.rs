// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arenas of ended endpoints that still hold pages of the program, and memory that was pinned.
//! Reasons: a peer maps the pages, another sharer registered them, a window of another connection
//! uses them in place, or they could not be moved safely.
//!
//! Not about existing endpoints, which move their pages themselves (`registration`). The list
//! belongs to this process: a forked child has copies of the pages, none of them in an arena.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use scif::sys::memfd;
use scif::sys::pages::{self, Area, FileId};

use super::inflight_dsts::InflightDsts;
use super::mover::{Mover, TriedBack, Tries};
use super::space::OwnSpace;
use crate::lock::take;

#[derive(Debug)]
struct Arena {
    fd: Arc<OwnedFd>,
    file: FileId,
    /// Whether the kernel counts the owners of the arena.
    counted: bool,
    tried: TriedBack,
}

/// Arenas of ended endpoints that still hold pages of the program.
#[derive(Debug, Default)]
pub(crate) struct OrphanArenas(Mutex<Vec<Arena>>);

impl OrphanArenas {
    /// Keeps the arena of an endpoint that ends if the program has pages in it. Forgets arenas
    /// without pages of the program.
    pub(crate) fn keep(&self, own: &OwnSpace) {
        if let Some((fd, counted)) = own.used_arena() {
            self.enter(fd, counted);
        }
    }

    /// Keeps the memory of unpinned pages, to which no peer has access.
    pub(crate) fn keep_pinned(&self, fd: &Arc<OwnedFd>) {
        self.enter(Arc::clone(fd), true);
    }

    fn enter(&self, fd: Arc<OwnedFd>, counted: bool) {
        let Ok(file) = pages::file_id(&*fd) else {
            return;
        };
        let mut arenas = take(&self.0);
        arenas.push(Arena { fd, file, counted, tried: TriedBack::default() });
        if let Ok(areas) = pages::areas_of_program() {
            arenas.retain(|arena| areas.iter().any(|area| arena.is_shown_by(area)));
        }
    }

    pub(crate) fn has(&self, file: FileId) -> bool {
        take(&self.0).iter().any(|arena| arena.file == file)
    }

    /// Forgets all arenas in a forked child, which has no pages in them.
    pub(crate) fn forget_all(&self) {
        let gone = std::mem::take(&mut *take(&self.0));
        drop(gone);
    }

    /// Moves pages back that no peer and no window in place uses any more. An arena is forgotten
    /// only when all its pages are back: a thread that finds pages in it must find it in this list.
    ///
    /// The lock `moving` is held while pages move. `mover` makes the guard, and `used` returns the
    /// addresses that must stay.
    pub(crate) fn restore(
        &self,
        (moving, targets): (&Mutex<()>, &InflightDsts),
        now: Tries,
        mover: impl FnOnce() -> Mover,
        used: impl FnOnce() -> Vec<(u64, u64)>,
    ) {
        // Held during the whole move: two threads that move the same pages would lose stores.
        let mut arenas = take(&self.0);
        let stays = |arena: &Arena| !arena.tried.is_due(now) || arena.is_referred_to();
        if arenas.iter().all(stays) {
            return;
        }
        let mover = mover();
        if !mover.may_move() {
            return;
        }
        let Ok(areas) = pages::areas_of_program() else {
            return;
        };
        let _moving = take(moving);
        // Pages that stay for an RMA do so only briefly.
        let counts = !targets.any();
        let used = used();
        arenas.retain_mut(|arena| {
            if stays(arena) {
                return true;
            }
            let all_moved = arena.moves_back(&areas, &mover, &used);
            if counts {
                arena.tried.have(now);
            }
            !all_moved
        });
    }
}

impl Arena {
    fn is_shown_by(&self, area: &Area) -> bool {
        area.shared && area.file == self.file
    }

    /// Whether a peer has it, or a mapping of it.
    fn is_referred_to(&self) -> bool {
        !self.counted || memfd::is_shared(&*self.fd)
    }

    /// Moves all pages back. Returns whether none is left in the arena. The memory is freed with
    /// its last reference.
    fn moves_back(&self, areas: &[Area], mover: &Mover, used: &[(u64, u64)]) -> bool {
        let mut all_moved = true;
        for area in areas.iter().filter(|area| self.is_shown_by(area)) {
            all_moved &= mover.back(area, (0, u64::MAX), used, self.fd.as_fd(), false).is_empty();
        }
        all_moved
    }
}
