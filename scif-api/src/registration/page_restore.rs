// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Move of window pages back to private memory, and the reason to delay it. A window of another
//! connection may use the pages in place. Its peer writes them by `process_vm_*`, which write
//! protection does not block.
//!
//! Not about the deletion of windows (`registration`). Pages that stay are tried again when a
//! window is deleted, and before one is made. Windows of another copy of the library in this
//! process are unknown.

use std::os::fd::AsFd;

use scif::sys::pages::{self, Area};
use scif::sys::process;
use scif::sys::time::now_ns;

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::lock::take;
use crate::registry::Inner;
use crate::window::mover::{Mover, TriedBack, Tries, without};
use crate::window::table::Window;

/// Returns the permission to move pages now.
pub(crate) fn mover(inner: &Inner) -> Mover {
    // A forked child has no service thread before its first call.
    Mover::new(inner.workers.threads() + usize::from(inner.started_here()))
}

/// Returns the addresses of this process that windows use in place or RMAs write to. The caller
/// holds `moving`, unless the result may be outdated.
pub(super) fn used_unmoved(inner: &Inner) -> Vec<(u64, u64)> {
    let mut used = inner.targets.ranges();
    if !inner.unmoved.get() {
        return used;
    }
    let pid = process::pid();
    for epd in inner.every() {
        let Some(link) = epd.link().filter(|_| epd.windows.has_unmoved()) else {
            continue;
        };
        match link.own.table.all() {
            // Deleted ones too: an RMA that found one may still be copying.
            Ok(windows) => used.extend(windows.iter().filter_map(|window| window.unmoved(pid))),
            Err(_) => return vec![(0, u64::MAX)],
        }
    }
    used
}

/// Whether a window has pages in the given memory, which consists of these areas. Includes a
/// deleted window that the peer maps.
pub(crate) fn lies_in_window(inner: &Inner, areas: &[Area], begin: usize, end: usize) -> bool {
    let pid = process::pid();
    inner.every().iter().filter(|epd| !epd.is_closed()).any(|epd| {
        let Some(link) = epd.link() else { return false };
        let (Ok(windows), Ok(arena)) = (link.own.table.all(), pages::file_id(link.own.arena()))
        else {
            return true;
        };
        let shown =
            |(from, to)| areas.iter().any(|area| area.between(begin, end).shows(arena, from, to));
        let is_at = |(from, to)| from < end as u64 && to > begin as u64;
        let is_one = |window: &Window| {
            window.in_arena().is_some_and(shown) || window.unmoved(pid).is_some_and(is_at)
        };
        windows.iter().any(is_one)
    })
}

/// Locks out windows in place and RMA writes while pages of the range move. `None` if any of
/// them uses the range.
pub(crate) fn hold_piece(inner: &Inner, begin: usize, end: usize) -> Option<impl Sized + '_> {
    let held = take(&inner.moving);
    let (begin, end) = (begin as u64, end as u64);
    let is_used = used_unmoved(inner).iter().any(|&(from, to)| from < end && to > begin);
    (!is_used).then_some(held)
}

/// Moves the pages of arena ranges back to all addresses where the program has them, and frees
/// them in the arena. Pages that must stay are tried again later. The caller holds the control
/// lock.
pub(super) fn restore(inner: &Inner, epd: &Epd, link: &Link, ranges: &[(u64, u64)]) -> Result<()> {
    let arena = pages::file_id(link.own.arena())?;
    let mover = mover(inner);
    let areas = pages::areas_of_program().map_err(|_| Failure::NoMemory)?;
    let here: Vec<&Area> = areas.iter().filter(|area| area.shared && area.file == arena).collect();
    let others: Vec<Option<Vec<Area>>> =
        link.own.table.sharers.others().into_iter().map(pages::areas_of).collect();
    let mut left = Vec::new();
    let mut for_rma = false;
    for &range in ranges {
        // A child forked before the pages are moved and freed would copy only holes. The lock
        // also orders the move against windows in place.
        let _moving = take(&inner.moving);
        let has_rma = inner.targets.any();
        let used = used_unmoved(inner);
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
            let there: Vec<&Area> =
                here.iter().filter(|area| area.shows(arena, range.0, range.1)).copied().collect();
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
        inner.left_pages.set(true);
    }
    if for_rma {
        // An RMA ends soon.
        *take(&inner.tried_back) = TriedBack::default();
    }
    Ok(())
}

/// Moves pages back that had to stay earlier and are free now. The caller holds no lock.
pub(crate) fn take_back(inner: &Inner) {
    let tries = Tries { gone: inner.released_unmoved.get(), now: now_ns() };
    let moves = (&inner.moving, &*inner.targets);
    inner.orphan_arenas.restore(moves, tries, || mover(inner), || used_unmoved(inner));
    if !inner.left_pages.get() || !take(&inner.tried_back).is_due(tries) {
        return;
    }
    if !mover(inner).may_move() {
        return;
    }
    take(&inner.tried_back).have(tries);
    inner.left_pages.set(false);
    for epd in inner.every() {
        let Some(link) = epd.link().filter(|_| epd.windows.has_left()) else {
            continue;
        };
        let _held = epd.sharer.control.lock();
        if let Err(failure) = move_left(inner, &epd, link) {
            log::debug!(
                "endpoint at port {}: pages of a window could not be moved back to private \
                 memory: {failure}; the move is repeated later",
                epd.sharer.port()
            );
        }
    }
}

/// Moves back pages that had to stay. The caller holds the control lock.
pub(super) fn move_left(inner: &Inner, epd: &Epd, link: &Link) -> Result<()> {
    // Some may be part of a window again.
    let windows = link.own.table.all()?;
    let kept = windows.iter().filter_map(Window::in_arena).collect();
    let left = without(epd.windows.take_left(), kept);
    restore(inner, epd, link, &left).inspect_err(|_| {
        epd.windows.leave(left);
        inner.left_pages.set(true);
    })
}
