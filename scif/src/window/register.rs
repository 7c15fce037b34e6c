// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Making and deleting windows, and what that means for the pages.
//!
//! Not about using windows. Each registration asks the kernel what lies at the address now and believes no record of
//! ours. Private pages are moved into the arena of the connection, in which they stay while a window or a mapping of the
//! peer needs them, and then move back; others are used where they are. Source: `scif_register`, `scif_unregister`.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::table::{OFFSET_MAX, Place, Window};
use crate::epd::{Epd, Failure, Inner, Link, Packet, Result};
use crate::sys::pages::{self, Area, FileId, PAGE, StoreGuard};
use crate::sys::time::now_ns;
use crate::sys::{descriptor, fork, process};

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;
/// How long a peer may take to say whether it maps a window; then it is taken to.
const ANSWER_NS: u64 = 1_000_000_000;
/// After so long it is looked whether a holder that copies has died.
const DEATH_NS: u64 = 5_000_000;
/// How long RMAs on a deleted window may take.
const REST_NS: u64 = 30_000_000_000;

fn aligned(n: u64) -> bool {
    n.is_multiple_of(PAGE as u64)
}

/// Whether the kernel's name for an area is that of memory whose pages can be moved.
pub(crate) fn is_movable(area: &Area) -> bool {
    let special = [
        "[stack",
        "[vdso",
        "[vvar",
        "[vsyscall",
        "/anon_hugepage",
        "/SYSV",
        "/dev/",
    ];
    !area.shared && !special.iter().any(|name| area.name.starts_with(name)) && !area.name.contains("huge")
}

impl Inner {
    /// `scif_register`; the offset.
    pub(crate) fn register(
        &self,
        epd: &Arc<Epd>,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64> {
        let fixed = flags & MAP_FIXED != 0;
        if flags & !MAP_FIXED != 0 || prot & !(READ | WRITE) != 0 {
            return Err(Failure::Invalid);
        }
        let size = len as u64;
        if fixed && !u64::try_from(offset).is_ok_and(|at| aligned(at) && size <= OFFSET_MAX - at) {
            return Err(Failure::Invalid);
        }
        if len == 0 || !aligned(size) || !addr.is_multiple_of(PAGE) {
            return Err(Failure::Invalid);
        }
        let link = epd.connected()?;
        // What can be private again can be mapped as part of the new window.
        self.ended_arenas.move_back(self.workers.threads());
        let _held = epd.holder.control.lock();
        let table = &link.own.table;
        if size > OFFSET_MAX {
            return Err(Failure::NoMemory);
        }
        let at = if fixed {
            let at = offset.cast_unsigned();
            if table.touches(at, size)? {
                self.sweep(epd, link)?;
                if table.touches(at, size)? {
                    return Err(Failure::InUse);
                }
            }
            at
        } else {
            table.free(size)?
        };
        if self.config.memlock {
            self.count_as_locked(size)?;
        }
        let serial = table.next_serial()?;
        let mut taken = Vec::new();
        let made = self.find_place(link, addr, len, &mut taken).and_then(|places| {
            let mut next = at;
            places.into_iter().try_for_each(|(place, len)| {
                let offset = next;
                next += len;
                table.insert(Window {
                    offset,
                    len,
                    place,
                    read: prot & READ != 0,
                    write: prot & WRITE != 0,
                    deleted: false,
                    serial,
                })
            })
        });
        match made {
            Ok(()) => Ok(at.cast_signed()),
            Err(failure) => {
                if let Err(also) = self.undo(epd, link, at, size, taken) {
                    log::debug!("pages of a window that was not made stay where they are: {also}");
                }
                Err(failure)
            }
        }
    }

    /// Registering has failed half-way: what it made of windows at these offsets goes, and what it has
    /// `taken` of the arena for pages, whether they came or not. The caller has the control lock.
    fn undo(&self, epd: &Epd, link: &Link, at: u64, size: u64, taken: Vec<(u64, u64)>) -> Result<()> {
        let table = &link.own.table;
        if table.touches(at, size)? {
            table.delete(at, size)?;
            self.retire(epd, link)?;
        }
        // A window of it that the peer mapped at once keeps its pages.
        let kept = table.all()?.iter().filter_map(Window::in_arena).collect();
        Self::move_back(link, &without(taken, kept), self.workers.threads())
    }

    /// Refuses what would be more than this process may lock, with all windows of its endpoints, each for itself as a
    /// driver counts them. Two that register at once may both find room.
    fn count_as_locked(&self, size: u64) -> Result<()> {
        let Some(limit) = process::lockable() else {
            return Ok(());
        };
        let mut locked = size;
        for epd in self.every() {
            if let Some(link) = epd.link() {
                let windows = link.own.table.all()?;
                locked = windows
                    .iter()
                    .fold(locked, |sum, window| sum.saturating_add(window.len));
            }
        }
        if locked > limit {
            return Err(Failure::NoMemory);
        }
        Ok(())
    }

    /// What lies at the addresses, of which none is a peer's; `arena` is that of the endpoint.
    fn areas_of_own(&self, arena: FileId, addr: usize, end: usize) -> Result<Vec<Area>> {
        let mut refused = None;
        loop {
            let areas = pages::areas(addr, end).map_err(|_| Failure::NoMemory)?;
            let is_of_peer = |area: &&Area| {
                area.name.starts_with("/memfd:scif:arena")
                    && area.file != arena
                    && !self.is_own_arena(area.file)
            };
            match areas.iter().find(is_of_peer).map(|area| area.file) {
                None => return Ok(areas),
                file if file == refused => return Err(Failure::BadAddress),
                // Or an endpoint ended meanwhile, and its pages are back: then they are not there a second time.
                file => refused = file,
            }
        }
    }

    /// Finds or makes the places of the pages at `addr`. What it takes of the arena it adds to `taken`, also when it fails:
    /// pages may lie there then.
    fn find_place(
        &self,
        link: &Link,
        addr: usize,
        len: usize,
        taken: &mut Vec<(u64, u64)>,
    ) -> Result<Vec<(Place, u64)>> {
        let end = addr.checked_add(len).ok_or(Failure::BadAddress)?;
        let arena = pages::file_id(link.own.arena())?;
        let areas = self.areas_of_own(arena, addr, end)?;
        let mut reached = addr;
        for area in &areas {
            if area.begin > reached || !(area.read || area.write) {
                return Err(Failure::BadAddress);
            }
            reached = area.end;
        }
        if reached < end {
            return Err(Failure::BadAddress);
        }
        // Before anything moves.
        if !link.own.table.has_room(areas.len())? {
            return Err(Failure::NoMemory);
        }
        let here = 0u8;
        let stack = (&raw const here).addr();
        let guard = StoreGuard::new();
        let alone = pages::threads() <= 1 + self.workers.threads();
        let mut places = Vec::with_capacity(areas.len());
        for area in &areas {
            let (begin, end) = (area.begin.max(addr), area.end.min(end));
            let size = (end - begin) as u64;
            let place = if area.shared && area.file == arena {
                Place::Arena(area.offset + (begin - area.begin) as u64)
            } else if !is_movable(area) || (begin..end).contains(&stack) {
                self.in_place(begin)
            } else if alone || guard.is_some() {
                let wanted = pages::wanted(area, begin, end);
                let at = link.own.table.take_arena(wanted, begin, size)?;
                taken.push((at, at + size));
                let guard = guard.as_ref().filter(|_| !alone);
                pages::move_in(area, begin, end, link.own.arena(), at, guard).map_err(
                    |errno| match errno {
                        rustix::io::Errno::FAULT => Failure::BadAddress,
                        _ => Failure::NoMemory,
                    },
                )?;
                Place::Arena(at)
            } else if self.config.window_strict {
                return Err(Failure::NoMemory);
            } else {
                self.say_once_unmoved();
                self.in_place(begin)
            };
            places.push((place, size));
        }
        Ok(places)
    }

    /// Pages that stay where they are: peers reach them by `process_vm_*`.
    fn in_place(&self, addr: usize) -> Place {
        if self.config.ptracer && process::yama_scope() == 1 {
            // Refused: then their RMAs say so.
            let _ = process::allow_any_ptracer();
        }
        Place::InPlace {
            addr: addr as u64,
            pid: process::pid(),
        }
    }

    /// `scif_unregister`
    pub(crate) fn unregister(&self, epd: &Arc<Epd>, offset: i64, len: usize) -> Result<()> {
        let at = u64::try_from(offset).map_err(|_| Failure::Invalid)?;
        let size = len as u64;
        if len == 0 || !aligned(size) || !aligned(at) || size > OFFSET_MAX - at {
            return Err(Failure::Invalid);
        }
        let link = epd.connected()?;
        let _held = epd.holder.control.lock();
        let table = &link.own.table;
        let runs = table.runs(at, size, false, false)?;
        let whole = runs.iter().all(|run| run.skip == 0 && run.len == run.window.len);
        let outside = |at: Option<u64>| at.map_or(Ok(None), |at| table.at(at));
        let ends = [
            (outside(at.checked_sub(1))?, runs.first()),
            (outside(Some(at + size))?, runs.last()),
        ];
        let cut = ends.iter().any(|(beyond, run)| {
            beyond.is_some_and(|beyond| run.is_some_and(|run| run.window.serial == beyond.serial))
        });
        if !whole || cut {
            return Err(Failure::NoWindow);
        }
        table.delete(at, size)?;
        self.retire(epd, link)
    }

    /// Windows that no RMA can find any more: waits for those that had, then gives the pages back unless the peer maps
    /// them. The caller has the control lock.
    fn retire(&self, epd: &Epd, link: &Link) -> Result<()> {
        // SYNC POINT: pairs with `OwnTable::copying`: whoever does not see the window gone is seen copying.
        scif_ring::full_fence();
        let begin = now_ns();
        loop {
            let long = now_ns() - begin;
            let looks = long > DEATH_NS;
            let theirs = &link.peer.table.holders;
            if link.own.table.holders.at_rest(looks)?
                && (epd.over(link) || theirs.at_rest(looks && theirs.has(link.peer_pid))?)
            {
                break;
            }
            if long > REST_NS {
                log::warn!("RMAs on a window that is deleted do not end");
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
        self.sweep(epd, link)
    }

    /// Gives back the pages of deleted windows that the peer does not map any more. The caller has the control lock.
    fn sweep(&self, epd: &Epd, link: &Link) -> Result<()> {
        let all = link.own.table.all()?;
        let ever_mapped = link.peer.table.mappings()? != 0;
        let gone: Vec<&Window> = all
            .iter()
            .filter(|window| window.deleted && !(ever_mapped && self.is_mapped(epd, link, window)))
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        let is_gone = |window: &Window| gone.binary_search_by_key(&window.offset, |w| w.offset).is_ok();
        epd.windows.forget(&gone);
        let (gone_ranges, kept_ranges): (Vec<_>, Vec<_>) = all
            .iter()
            .filter_map(|window| Some((is_gone(window), window.in_arena()?)))
            .partition(|(gone, _)| *gone);
        let ranges = |of: Vec<(bool, (u64, u64))>| of.into_iter().map(|(_, range)| range).collect();
        let free = without(ranges(gone_ranges), ranges(kept_ranges));
        // Before the places are forgotten: a holder that dies in between leaves them to the next one.
        Self::move_back(link, &free, self.workers.threads())?;
        link.own.table.forget(is_gone)
    }

    /// Asks the peer whether it maps a window.
    fn is_mapped(&self, epd: &Epd, link: &Link, window: &Window) -> bool {
        let Place::Arena(at) = window.place else {
            return false;
        };
        if epd.over(link) {
            // Nobody to ask: its mappings outlive the connection, but not its processes.
            return link.own.is_arena_referred_to();
        }
        if link.peer_pid == process::pid()
            && let Some(peer) = self.peer_here(link)
        {
            // Its questions are answered by the service thread, which this may be.
            return peer
                .link()
                .is_none_or(|back| peer.windows.maps(back, at, window.len));
        }
        link.say(Packet::AskMapped {
            serial: window.serial,
            at,
            len: window.len,
        });
        let begin = now_ns();
        loop {
            if let Some(mapped) = epd.windows.answer(window.serial) {
                return mapped;
            }
            if epd.over(link) || now_ns() - begin > ANSWER_NS {
                return true;
            }
            // Also the service thread takes packets, unless this is it.
            descriptor::wait_readable(link.socket(), 1);
            if let Some(Some(heard)) = link.hear() {
                self.take_packet(epd, link, heard);
            }
        }
    }

    /// The other end of a connection within this process.
    fn peer_here(&self, link: &Link) -> Option<Arc<Epd>> {
        let arena = pages::file_id(link.own.arena()).ok()?;
        let sees_it = |peer: &Arc<Epd>| {
            peer.link()
                .is_some_and(|back| pages::file_id(back.peer.arena()) == Ok(arena))
        };
        self.every().into_iter().find(sees_it)
    }

    /// What the peer said over the socket; whether it stays.
    pub(crate) fn take_packet(&self, epd: &Epd, link: &Link, packet: Packet) -> bool {
        match packet {
            Packet::AskMapped { serial, at, len } => {
                let mapped = epd.windows.maps(link, at, len);
                link.say(Packet::Mapped { serial, mapped });
                true
            }
            Packet::Mapped { serial, mapped } => {
                epd.windows.answered(serial, mapped);
                true
            }
            Packet::Bye
            | Packet::Hello
            | Packet::Welcome
            | Packet::Refuse
            | Packet::Lose(_)
            | Packet::Ended(_)
            | Packet::Echo(_)
            | Packet::Restore => {
                epd.disconnect();
                false
            }
        }
    }

    /// Moves the pages of ranges of the arena back to wherever the program has them.
    fn move_back(link: &Link, ranges: &[(u64, u64)], workers: usize) -> Result<()> {
        let arena = pages::file_id(link.own.arena())?;
        let guard = StoreGuard::new();
        let alone = pages::threads() <= 1 + workers;
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
        for &(from, to) in ranges {
            // A child forked before the pages are back and freed would copy nothing but holes.
            let _section = fork::section();
            let mut all_moved = true;
            for area in &here {
                let (first, last) = (from.max(area.offset), to.min(area.last_offset()));
                if first >= last {
                    continue;
                }
                let (begin, end) = (area.place(first), area.place(last));
                // Without a guard other threads could lose stores: then the pages stay where they are.
                let moved = (alone || guard.is_some())
                    && match pages::move_back(
                        area,
                        begin,
                        end,
                        guard.as_ref().filter(|_| !alone),
                        Some(link.own.arena()),
                    ) {
                        Ok(()) => true,
                        Err(errno) => {
                            log::debug!("pages of a window stay where they are: {area:?}: {errno}");
                            false
                        }
                    };
                all_moved &= moved;
            }
            // Another holder may have the same pages, as memory of its own.
            let elsewhere = others.iter().any(|areas| {
                areas
                    .as_ref()
                    .is_none_or(|areas| areas.iter().any(|area| area.shows(arena, from, to)))
            });
            if all_moved && !elsewhere {
                pages::discard(link.own.arena().as_fd(), from, to - from);
            }
        }
        Ok(())
    }

    /// The endpoint ends: all its windows do.
    pub(crate) fn end_windows(&self, epd: &Epd) {
        let Some(link) = epd.link() else { return };
        let _held = epd.holder.control.lock();
        let deleted = link
            .own
            .table
            .delete(0, OFFSET_MAX + 1)
            .and_then(|()| self.retire(epd, link));
        if let Err(failure) = deleted {
            log::debug!("windows of a closed endpoint: {failure}");
        }
    }
}

/// What of some ranges is in none of the others, in order and joined where it touches.
fn without(mut of: Vec<(u64, u64)>, mut others: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
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
    // An end of the others that reached into a later range.
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
