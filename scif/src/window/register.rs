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
use crate::sys::pages::{self, Area, PAGE, StoreGuard};
use crate::sys::time::now_ns;
use crate::sys::{descriptor, fork, process};

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;
/// How long a peer may take to say whether it maps a window; then it is taken to.
const ANSWER_NS: u64 = 1_000_000_000;
/// How long RMAs on a deleted window may take.
const REST_NS: u64 = 30_000_000_000;

fn aligned(n: u64) -> bool {
    n.is_multiple_of(PAGE as u64)
}

/// Whether the kernel's name for an area is that of memory whose pages can be moved.
fn is_movable(area: &Area) -> bool {
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
        let _held = epd.holder.control.lock();
        let table = &link.own.table;
        if size > OFFSET_MAX {
            return Err(Failure::NoMemory);
        }
        let taken = |epd: &Epd| -> Vec<(u64, u64)> {
            epd.windows
                .lingering()
                .iter()
                .map(|w| (w.offset, w.end()))
                .collect()
        };
        let at = if fixed {
            let at = offset.cast_unsigned();
            let in_way = |taken: &[(u64, u64)]| taken.iter().any(|&(b, e)| b < at + size && e > at);
            if in_way(&taken(epd)) {
                self.sweep(epd, link)?;
            }
            if table.touches(at, size)? || in_way(&taken(epd)) {
                return Err(Failure::InUse);
            }
            at
        } else {
            table.free(size, &taken(epd))?
        };
        let serial = table.next_serial()?;
        let mut next = at;
        for (place, len) in self.find_place(link, addr, len)? {
            table.insert(Window {
                offset: next,
                len,
                place,
                read: prot & READ != 0,
                write: prot & WRITE != 0,
                serial,
            })?;
            next += len;
        }
        Ok(at.cast_signed())
    }

    /// Finds or makes the places of the pages at `addr`.
    fn find_place(&self, link: &Link, addr: usize, len: usize) -> Result<Vec<(Place, u64)>> {
        let end = addr.checked_add(len).ok_or(Failure::BadAddress)?;
        let areas = pages::areas(addr, end).map_err(|_| Failure::NoMemory)?;
        let arena = pages::file_id(link.own.arena())?;
        let mut reached = addr;
        for area in &areas {
            let is_arena = area.name.starts_with("/memfd:scif:arena") && area.file != arena;
            if area.begin > reached || !(area.read || area.write) || (is_arena && !self.is_own_arena(area)) {
                return Err(Failure::BadAddress);
            }
            reached = area.end;
        }
        if reached < end {
            return Err(Failure::BadAddress);
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
                let at = link.own.table.take_arena(size)?;
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
        let all = table.all()?;
        let cut = all.iter().any(|other| {
            runs.iter().any(|run| run.window.serial == other.serial)
                && !(at..at + size).contains(&other.offset)
        });
        if !whole || cut {
            return Err(Failure::NoWindow);
        }
        let gone = table.remove(at, size)?;
        self.retire(epd, link, gone)
    }

    /// Windows that no RMA can find any more: waits for those that had, then gives the pages back unless the peer maps
    /// them. The caller has the control lock.
    fn retire(&self, epd: &Epd, link: &Link, gone: Vec<Window>) -> Result<()> {
        // SYNC POINT: pairs with `OwnTable::copying`: whoever does not see the window gone is seen copying.
        scif_ring::full_fence();
        let begin = now_ns();
        while !(link.own.table.at_rest()? && (link.peer.table.at_rest()? || epd.over(link))) {
            if now_ns() - begin > REST_NS {
                log::warn!("RMAs on a window that is deleted do not end");
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
        for window in gone {
            epd.windows.forget(&window);
            epd.windows.linger(window);
        }
        self.sweep(epd, link)
    }

    /// Gives back the pages of deleted windows that the peer does not map any more. The caller has the control lock.
    fn sweep(&self, epd: &Epd, link: &Link) -> Result<()> {
        for window in epd.windows.lingering() {
            let mapped = link.peer.table.mappings()? != 0 && self.is_mapped(epd, link, window.serial);
            if !mapped {
                epd.windows.lingers_no_more(&window);
                self.give_back(epd, link, &window)?;
            }
        }
        Ok(())
    }

    /// Asks the peer whether it maps a window.
    fn is_mapped(&self, epd: &Epd, link: &Link, serial: u32) -> bool {
        if epd.over(link) {
            // Nobody to ask: its mappings outlive the connection, but not the process.
            return crate::life::Life::of(link.peer_pid).alive();
        }
        link.say(Packet::AskMapped(serial));
        let begin = now_ns();
        loop {
            if let Some(mapped) = epd.windows.answer(serial) {
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

    /// What the peer said over the socket; whether it stays.
    pub(crate) fn take_packet(&self, epd: &Epd, link: &Link, packet: Packet) -> bool {
        match packet {
            Packet::AskMapped(serial) => {
                link.say(Packet::Mapped(
                    serial << 1 | u32::from(epd.windows.maps(link, serial)),
                ));
                true
            }
            Packet::Mapped(answer) => {
                epd.windows.answered(answer);
                true
            }
            Packet::Bye | Packet::Hello | Packet::Welcome | Packet::Refuse => {
                epd.disconnect();
                false
            }
        }
    }

    /// The pages of a window go back to the program, unless another window has them too.
    fn give_back(&self, epd: &Epd, link: &Link, window: &Window) -> Result<()> {
        let Place::Arena(at) = window.place else {
            return Ok(());
        };
        let (begin, end) = (at, at + window.len);
        let mut used: Vec<(u64, u64)> = link
            .own
            .table
            .all()?
            .into_iter()
            .chain(epd.windows.lingering())
            .filter_map(|other| match other.place {
                Place::Arena(at) => Some((at, at + other.len)),
                Place::InPlace { .. } => None,
            })
            .filter(|&(b, e)| b < end && e > begin)
            .collect();
        used.sort_unstable();
        let mut free = begin;
        for (b, e) in used.into_iter().chain([(end, end)]) {
            if b > free {
                self.move_back(link, free, b.min(end))?;
            }
            free = free.max(e);
        }
        Ok(())
    }

    /// Moves the pages of a range of the arena back to wherever the program has them.
    fn move_back(&self, link: &Link, from: u64, to: u64) -> Result<()> {
        let arena = pages::file_id(link.own.arena())?;
        let guard = StoreGuard::new();
        let alone = pages::threads() <= 1 + self.workers.threads();
        let areas = pages::areas(0, usize::MAX).map_err(|_| Failure::NoMemory)?;
        let mut all_moved = true;
        for area in areas.iter().filter(|area| area.shared && area.file == arena) {
            let last = area.offset + (area.end - area.begin) as u64;
            let (first, last) = (from.max(area.offset), to.min(last));
            if first >= last {
                continue;
            }
            let place = |at: u64| usize::try_from(at - area.offset).map_or(area.end, |n| area.begin + n);
            // Without a guard other threads could lose stores: then the pages stay where they are.
            let moved = (alone || guard.is_some())
                && pages::move_back(area, place(first), place(last), guard.as_ref().filter(|_| !alone))
                    .is_ok();
            all_moved &= moved;
        }
        // A forked relative may have the same pages, as memory of its own.
        if all_moved && !fork::has_relatives() {
            pages::discard(link.own.arena().as_fd(), from, to - from);
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
            .remove(0, OFFSET_MAX + 1)
            .and_then(|gone| self.retire(epd, link, gone));
        if let Err(failure) = deleted {
            log::debug!("windows of a closed endpoint: {failure}");
        }
    }
}
