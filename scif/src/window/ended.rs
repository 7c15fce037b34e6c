// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arenas of endpoints that have ended while pages of the program still lie in them: a peer maps some, another holder
//! registered them, a window of another connection has them where they are, or there was no safe way back. And what was pinned and
//! is not any more.
//!
//! Not about endpoints that live, which see to their pages themselves (`register`). The list is this process's own: a
//! forked child has copies of the pages, and none of them in an arena.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use super::back::{Mover, TriedBack, Tries};
use super::space::OwnSpace;
use crate::epd::{Inner, take};
use crate::sys::memfd;
use crate::sys::pages::{self, Area, FileId};

#[derive(Debug)]
struct Arena {
    fd: Arc<OwnedFd>,
    file: FileId,
    /// Whether the kernel counts who has it.
    counted: bool,
    tried: TriedBack,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct EndedArenas(Mutex<Vec<Arena>>);

impl EndedArenas {
    /// An endpoint ends: keeps its arena if the program has pages there, and forgets those where it has none any more.
    pub(crate) fn keep(&self, own: &OwnSpace) {
        if let Some((fd, counted)) = own.used_arena() {
            self.enter(fd, counted);
        }
    }

    /// The same of pages that were pinned, of which no peer has anything.
    pub(crate) fn keep_pinned(&self, fd: &Arc<OwnedFd>) {
        self.enter(Arc::clone(fd), true);
    }

    fn enter(&self, fd: Arc<OwnedFd>, counted: bool) {
        let Ok(file) = pages::file_id(&*fd) else { return };
        let mut arenas = take(&self.0);
        arenas.push(Arena {
            fd,
            file,
            counted,
            tried: TriedBack::default(),
        });
        if let Ok(areas) = pages::areas_of_program() {
            arenas.retain(|arena| areas.iter().any(|area| arena.is_shown_by(area)));
        }
    }

    pub(crate) fn has(&self, file: FileId) -> bool {
        take(&self.0).iter().any(|arena| arena.file == file)
    }

    /// In a forked child: nothing lies there.
    pub(crate) fn forget_all(&self) {
        let gone = std::mem::take(&mut *take(&self.0));
        drop(gone);
    }

    /// Moves pages back that no peer has any more, and no window where they are. An arena is forgotten when all of its are
    /// back, not before: whoever finds pages in it finds it here.
    pub(super) fn move_back(&self, inner: &Inner, now: Tries) {
        // Held all along: two that move the same pages would lose stores.
        let mut arenas = take(&self.0);
        let stays = |arena: &Arena| !arena.tried.is_due(now) || arena.is_referred_to();
        if arenas.iter().all(stays) {
            return;
        }
        let mover = inner.mover();
        if !mover.may_move() {
            return;
        }
        let Ok(areas) = pages::areas_of_program() else {
            return;
        };
        let _moving = take(&inner.moving);
        // What stays for an RMA need not for long.
        let counts = !inner.targets.any();
        let used = inner.used_in_place();
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

    /// Whether none of its pages are left here. Its memory goes with the last who has it.
    fn moves_back(&self, areas: &[Area], mover: &Mover, used: &[(u64, u64)]) -> bool {
        let mut all_moved = true;
        for area in areas.iter().filter(|area| self.is_shown_by(area)) {
            all_moved &= mover
                .back(area, (0, u64::MAX), used, self.fd.as_fd(), false)
                .is_empty();
        }
        all_moved
    }
}
