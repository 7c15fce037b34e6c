// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Move of window pages back to private memory, and the reason to delay it. A window of another
//! connection may use the pages in place. Its peer writes them by `process_vm_*`, which write
//! protection does not block.
//!
//! Not about the deletion of windows (`register`). Pages that stay are tried again when a window is
//! deleted, and before one is made. Windows of another copy of the library in this process are
//! unknown.

use std::os::fd::{AsFd, BorrowedFd};

use scif::sys::pages::{self, Area, StoreGuard};
use scif::sys::time::now_ns;
use scif::sys::{process, thread};

use super::table::Window;
use crate::{Epd, Failure, Inner, Link, Result, take};

/// Nanoseconds after the last attempt to move pages back at which the next one is due, even if
/// `Inner::gone_in_place` has not changed. It finds pages that became free by a deletion in
/// another process of the fork group, or by the end of a temporary failure.
const AGAIN_NS: u64 = 50_000_000;

/// Time of an attempt, and the value of `Inner::gone_in_place` at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    gone: u64,
    now: u64,
}

/// Last attempt to move pages that had to stay.
#[derive(Debug, Default)]
pub(crate) struct TriedBack(Option<Tries>);

impl TriedBack {
    pub(super) fn is_due(&self, now: Tries) -> bool {
        self.0
            .is_none_or(|last| last.gone != now.gone || now.now.saturating_sub(last.now) >= AGAIN_NS)
    }

    pub(super) fn have(&mut self, now: Tries) {
        self.0 = Some(now);
    }
}

/// Permission to move pages now, and the protection to use.
#[derive(Debug)]
pub(crate) struct Mover {
    guard: Option<StoreGuard>,
    alone: bool,
}

impl Mover {
    /// Creates the guard. `ours` is the number of threads of the library.
    fn new(ours: usize) -> Mover {
        // On a thread of the library, the program's threads run beside it.
        let alone = !thread::is_ours() && pages::threads() <= 1 + ours;
        let guard = if alone {
            StoreGuard::not_needed()
        } else {
            StoreGuard::new()
        };
        Mover { guard, alone }
    }

    /// Whether pages may move. Without a guard, other threads could lose stores.
    pub(crate) fn may_move(&self) -> bool {
        self.alone || self.guard.is_some()
    }

    /// Whether the private pages of an area may move, from `at` on. Anonymous pages are not tested,
    /// because the test would split a huge page.
    pub(crate) fn may_move_from(&self, area: &Area, at: usize) -> bool {
        let is_anonymous = area.file.ino == 0;
        let can_hold = |guard: &StoreGuard| !area.write || is_anonymous || pages::can_hold(guard, at);
        self.alone || self.guard.as_ref().is_some_and(can_hold)
    }

    /// Returns the guard that blocks stores of other threads. It is used even if all other threads
    /// belong to the library: registered memory may share a page with the heap of the library.
    pub(crate) fn guard(&self) -> Option<&StoreGuard> {
        self.guard.as_ref()
    }

    /// Moves an area's part of a file range back, except addresses in `used`. Returns the parts of
    /// the file that stay. Moved pages are freed if only this area shows the range (`sole`).
    pub(super) fn back(
        &self,
        area: &Area,
        range: (u64, u64),
        used: &[(u64, u64)],
        file: BorrowedFd<'_>,
        sole: bool,
    ) -> Vec<(u64, u64)> {
        let (first, last) = (range.0.max(area.offset), range.1.min(area.last_offset()));
        if first >= last {
            return Vec::new();
        }
        if !self.may_move() {
            return vec![(first, last)];
        }
        let all = (area.place(first) as u64, area.place(last) as u64);
        let mut moved = without(vec![all], used.to_vec());
        moved.retain(|&(begin, end)| {
            let (Ok(from), Ok(to)) = (usize::try_from(begin), usize::try_from(end)) else {
                return false;
            };
            let moved = if sole {
                pages::move_back_and_free(area, from, to, self.guard(), file)
            } else {
                pages::move_back(area, from, to, self.guard(), Some(file))
            };
            moved
                .inspect_err(|errno| {
                    log::debug!(
                        "pages of a window could not be moved back to private memory: {area:?}: \
                         {errno}; the move is repeated later"
                    );
                })
                .is_ok()
        });
        let stay = without(vec![all], moved).into_iter();
        stay.map(|(begin, end)| (begin.wrapping_add(area.origin()), end.wrapping_add(area.origin())))
            .collect()
    }
}

impl Inner {
    /// Returns the permission to move pages now.
    pub(crate) fn mover(&self) -> Mover {
        // A forked child has no service thread before its first call.
        Mover::new(self.workers.threads() + usize::from(self.started_here()))
    }

    /// Returns the addresses of this process that windows use in place or RMAs write to. The caller
    /// holds `moving`, unless the result may be outdated.
    pub(super) fn used_in_place(&self) -> Vec<(u64, u64)> {
        let mut used = self.targets.ranges();
        if !self.in_place.get() {
            return used;
        }
        let pid = process::pid();
        for epd in self.every() {
            let Some(link) = epd.link().filter(|_| epd.windows.has_in_place()) else {
                continue;
            };
            match link.own.table.all() {
                // Deleted ones too: an RMA that found one may still be copying.
                Ok(windows) => used.extend(windows.iter().filter_map(|window| window.in_place(pid))),
                Err(_) => return vec![(0, u64::MAX)],
            }
        }
        used
    }

    /// Whether a window has pages in the given memory, which consists of these areas. Includes a
    /// deleted window that the peer maps.
    pub(crate) fn lies_in_window(&self, areas: &[Area], begin: usize, end: usize) -> bool {
        let pid = process::pid();
        self.every().iter().filter(|epd| !epd.is_closed()).any(|epd| {
            let Some(link) = epd.link() else { return false };
            let (Ok(windows), Ok(arena)) = (link.own.table.all(), pages::file_id(link.own.arena())) else {
                return true;
            };
            let shown = |(from, to)| {
                areas
                    .iter()
                    .any(|area| area.between(begin, end).shows(arena, from, to))
            };
            let is_at = |(from, to)| from < end as u64 && to > begin as u64;
            let is_one = |window: &Window| {
                window.in_arena().is_some_and(shown) || window.in_place(pid).is_some_and(is_at)
            };
            windows.iter().any(is_one)
        })
    }

    /// Locks out windows in place and RMA writes while pages of the range move. `None` if any of
    /// them uses the range.
    pub(crate) fn hold_piece(&self, begin: usize, end: usize) -> Option<impl Sized + '_> {
        let held = take(&self.moving);
        let (begin, end) = (begin as u64, end as u64);
        let is_used = self
            .used_in_place()
            .iter()
            .any(|&(from, to)| from < end && to > begin);
        (!is_used).then_some(held)
    }

    /// Moves the pages of arena ranges back to all addresses where the program has them, and frees
    /// them in the arena. Pages that must stay are tried again later. The caller holds the control
    /// lock.
    pub(super) fn move_back(&self, epd: &Epd, link: &Link, ranges: &[(u64, u64)]) -> Result<()> {
        let arena = pages::file_id(link.own.arena())?;
        let mover = self.mover();
        let areas = pages::areas_of_program().map_err(|_| Failure::NoMemory)?;
        let here: Vec<&Area> = areas
            .iter()
            .filter(|area| area.shared && area.file == arena)
            .collect();
        let others: Vec<Option<Vec<Area>>> = link
            .own
            .table
            .holders
            .others()
            .into_iter()
            .map(pages::areas_of)
            .collect();
        let mut left = Vec::new();
        let mut for_rma = false;
        for &range in ranges {
            // A child forked before the pages are moved and freed would copy only holes. The lock
            // also orders the move against windows in place.
            let _moving = take(&self.moving);
            let has_rma = self.targets.any();
            let used = self.used_in_place();
            // Another sharer may have the same pages in its memory.
            let elsewhere = |(from, to): (u64, u64)| {
                others.iter().any(|areas| {
                    areas
                        .as_ref()
                        .is_none_or(|areas| areas.iter().any(|area| area.shows(arena, from, to)))
                })
            };
            // Pages that another connection's window uses, or its peer maps, stay in the arena.
            let lent = epd.windows.lent_of(range);
            for range in without(vec![range], lent.clone()) {
                let there: Vec<&Area> = here
                    .iter()
                    .filter(|area| area.shows(arena, range.0, range.1))
                    .copied()
                    .collect();
                let stay: Vec<(u64, u64)> = there
                    .iter()
                    .flat_map(|area| {
                        let (first, last) = (range.0.max(area.offset), range.1.min(area.last_offset()));
                        let shown = there.iter().filter(|area| area.shows(arena, first, last)).count();
                        let sole = shown == 1 && !elsewhere((first, last));
                        mover.back(area, range, &used, link.own.arena(), sole)
                    })
                    .collect();
                for freed in without(vec![range], stay.clone()) {
                    if !elsewhere(freed) {
                        pages::discard(link.own.arena().as_fd(), freed.0, freed.1 - freed.0);
                    }
                }
                for_rma |= has_rma && !stay.is_empty();
                left.extend(stay);
            }
            left.extend(lent);
        }
        if !left.is_empty() {
            epd.windows.leave(left);
            self.left_pages.set(true);
        }
        if for_rma {
            // An RMA ends soon.
            *take(&self.tried_back) = TriedBack::default();
        }
        Ok(())
    }

    /// Moves pages back that had to stay earlier and are free now. The caller holds no lock.
    pub(crate) fn take_back(&self) {
        let tries = Tries {
            gone: self.gone_in_place.get(),
            now: now_ns(),
        };
        self.ended_arenas.move_back(self, tries);
        if !self.left_pages.get() || !take(&self.tried_back).is_due(tries) {
            return;
        }
        if !self.mover().may_move() {
            return;
        }
        take(&self.tried_back).have(tries);
        self.left_pages.set(false);
        for epd in self.every() {
            let Some(link) = epd.link().filter(|_| epd.windows.has_left()) else {
                continue;
            };
            let _held = epd.holder.control.lock();
            if let Err(failure) = self.move_left(&epd, link) {
                log::debug!(
                    "endpoint at port {}: pages of a window could not be moved back to private \
                     memory: {failure}; the move is repeated later",
                    epd.holder.port()
                );
            }
        }
    }

    /// Moves back pages that had to stay. The caller holds the control lock.
    pub(super) fn move_left(&self, epd: &Epd, link: &Link) -> Result<()> {
        // Some may be part of a window again.
        let windows = link.own.table.all()?;
        let kept = windows.iter().filter_map(Window::in_arena).collect();
        let left = without(epd.windows.take_left(), kept);
        self.move_back(epd, link, &left).inspect_err(|_| {
            epd.windows.leave(left);
            self.left_pages.set(true);
        })
    }
}

/// Returns the parts of `of` that are in none of `others`, sorted and merged.
pub(super) fn without(mut of: Vec<(u64, u64)>, mut others: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    of.sort_unstable();
    others.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in of {
        match joined.last_mut() {
            Some((_, last)) if *last >= begin => *last = end.max(*last),
            _ => joined.push((begin, end)),
        }
    }
    let mut out = Vec::new();
    let mut others = others.into_iter().peekable();
    // End of the others, which may reach into a later range.
    let mut reached = 0;
    for (mut begin, end) in joined {
        while let Some(&(from, to)) = others.peek() {
            if from >= end {
                break;
            }
            begin = begin.max(reached);
            if from > begin {
                out.push((begin, from));
            }
            reached = reached.max(to);
            others.next();
        }
        begin = begin.max(reached);
        if begin < end {
            out.push((begin, end));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_others_are_what_no_other_has() {
        assert_eq!(without(vec![(10, 20), (0, 10)], vec![]), [(0, 20)]);
        assert_eq!(
            without(vec![(0, 10), (20, 30)], vec![(5, 25)]),
            [(0, 5), (25, 30)]
        );
        assert_eq!(without(vec![(0, 10)], vec![(0, 10)]), []);
        assert_eq!(
            without(vec![(5, 10)], vec![(0, 6), (8, 9), (10, 90)]),
            [(6, 8), (9, 10)]
        );
        assert_eq!(without(vec![(0, 4), (6, 9)], vec![(0, 7), (1, 2)]), [(7, 9)]);
        for seed in 0..2000u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % n
            };
            let mut some = |n: u64| -> Vec<(u64, u64)> {
                (0..next(n))
                    .map(|_| {
                        let at = next(40);
                        (at, at + 1 + next(9))
                    })
                    .collect()
            };
            let (of, others) = (some(6), some(6));
            let out = without(of.clone(), others.clone());
            let has = |list: &[(u64, u64)], n: u64| list.iter().any(|&(b, e)| (b..e).contains(&n));
            for n in 0..60 {
                assert_eq!(
                    has(&out, n),
                    has(&of, n) && !has(&others, n),
                    "{of:?} {others:?} {out:?}"
                );
            }
        }
    }
}
