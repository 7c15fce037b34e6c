// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registration of windows, and its effect on the pages.
//!
//! Not about using windows, nor about their deletion (`deletion`). Each registration asks the
//! kernel for the memory that is mapped at the address now, and trusts no record of the library.
//! Private pages are moved into the arena of the connection. They stay in it while a window or a
//! mapping of the peer needs them, and then move back. Other pages are used in place. Source:
//! `scif_register`.

pub(crate) mod deletion;
pub(crate) mod page_restore;

use std::sync::Arc;

use rustix::io::Errno;
use scif::sys::pages::{self, Area, FileId, PAGE};
use scif::sys::process;

use self::deletion::{ANSWER_NS, RestLimits, aligned, retire, sweep};
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::lock::take;
use crate::mainline;
use crate::registry::Inner;
use crate::window::loans::{Lent, Loan};
use crate::window::table::{OFFSET_MAX, Place, Window};

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;
/// Number of attempts of a registration when other threads register the same pages. After the last
/// one the call fails.
const TRIES: u32 = 64;

/// Whether the kernel's name of an area is that of memory with movable pages.
pub(crate) fn is_movable(area: &Area) -> bool {
    let special = ["[stack", "[vdso", "[vvar", "[vsyscall", "/anon_hugepage", "/SYSV", "/dev/"];
    let is_special = special.iter().any(|name| area.name.starts_with(name));
    !area.shared && !is_special && !area.name.contains("huge")
}

/// Registers memory and returns the offset of the window (`scif_register`).
pub(crate) fn register(
    inner: &Inner,
    epd: &Arc<Epd>,
    (addr, len): (usize, usize),
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
    if len == 0 || !aligned(size) || addr % PAGE != 0 {
        return Err(Failure::Invalid);
    }
    let link = epd.connected()?;
    inner.targets.wait_for(addr, len);
    // Pages that can be private again can become part of the new window.
    page_restore::take_back(inner);
    let _held = epd.sharer.control.lock();
    let table = &link.own.table;
    if size > OFFSET_MAX {
        return Err(Failure::NoMemory);
    }
    let wanted = u64::try_from(offset).ok().filter(|&at| fixed || at > 0);
    let at = match wanted {
        Some(at) => place_at(inner, epd, link, at, size, fixed)?,
        None => table.free(size)?,
    };
    if inner.config.memlock {
        count_as_locked(inner, size)?;
    }
    let serial = table.next_serial()?;
    let (mut taken, mut lent) = (Vec::new(), Vec::new());
    let mut found = find_place(inner, link, addr, len, &mut taken, &mut lent);
    for _ in 0..TRIES {
        if found != Err(Failure::Again) {
            break;
        }
        undo(inner, epd, link, at, size, std::mem::take(&mut taken))?;
        lent.clear();
        found = find_place(inner, link, addr, len, &mut taken, &mut lent);
    }
    if found == Err(Failure::Again) {
        found = Err(Failure::NoMemory);
    }
    let made = found.and_then(|places| {
        let is_unmoved = |(place, _): &(Place, u64)| matches!(place, Place::Unmoved { .. });
        // Pages that are being moved back are private again before the window exists.
        let _moving = places.iter().any(is_unmoved).then(|| {
            epd.windows.set_unmoved();
            inner.unmoved.set(true);
            take(&inner.moving)
        });
        borrow(inner, epd, serial, &lent);
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
        Ok(()) => Ok(at as i64),
        Err(failure) => {
            epd.windows.end_loans(serial);
            if let Err(also) = undo(inner, epd, link, at, size, taken) {
                log::debug!(
                    "pages of a failed registration could not be moved back: {also}; the move \
                     is repeated later"
                );
            }
            Err(failure)
        }
    }
}

/// Registers memory in place, for reading, at an offset where no window lies.
pub(crate) fn lend(
    inner: &Inner,
    epd: &Arc<Epd>,
    (addr, len): (usize, usize),
    offset: i64,
) -> Result<()> {
    let at = u64::try_from(offset).map_err(|_| Failure::Invalid)?;
    let size = len as u64;
    let is_whole = aligned(size) && aligned(at) && addr % PAGE == 0;
    if len == 0 || !is_whole || addr.checked_add(len).is_none() || size > OFFSET_MAX - at {
        return Err(Failure::Invalid);
    }
    let link = epd.connected()?;
    let _held = epd.sharer.control.lock();
    let table = &link.own.table;
    if table.touches(at, size)? {
        return Err(Failure::InUse);
    }
    if inner.config.memlock {
        count_as_locked(inner, size)?;
    }
    let serial = table.next_serial()?;
    // Another sharer that deletes the window must find this process.
    table.take_place();
    epd.windows.set_unmoved();
    inner.unmoved.set(true);
    // Pages that are being moved back are private again before the window exists.
    let _moving = take(&inner.moving);
    let place = leave_unmoved(inner, addr);
    table.insert(Window {
        offset: at,
        len: size,
        place,
        read: true,
        write: false,
        deleted: false,
        serial,
    })
}

/// Returns the offset of a window for which the program named one: that one if `fixed`, else
/// the free one nearest to it. The caller holds the control lock.
fn place_at(inner: &Inner, epd: &Epd, link: &Link, at: u64, size: u64, fixed: bool) -> Result<u64> {
    let table = &link.own.table;
    let at = at - at % PAGE as u64;
    if table.touches(at, size)? {
        // Parts of it may be free after a sweep.
        sweep(inner, epd, link, ANSWER_NS)?;
        if fixed && table.touches(at, size)? {
            return mainline::occupied_place(&inner.config, table, at, size);
        }
    }
    if fixed { Ok(at) } else { table.free_near(at, size) }
}

/// Undoes a failed registration: deletes its windows at these offsets. Releases the arena
/// ranges in `taken`, whether or not pages were moved into them. The caller holds the control
/// lock.
fn undo(
    inner: &Inner,
    epd: &Epd,
    link: &Link,
    at: u64,
    size: u64,
    taken: Vec<(u64, u64)>,
) -> Result<()> {
    // A step that fails from here on is repeated later.
    epd.windows.leave(taken);
    inner.left_pages.set(true);
    let table = &link.own.table;
    if table.touches(at, size)? {
        table.delete(at, size)?;
        retire(inner, epd, link, &RestLimits::new(ANSWER_NS, inner.config.window_rest_ns))?;
    }
    // A window that the peer has mapped already keeps its pages.
    page_restore::move_left(inner, epd, link)
}

/// Checks RLIMIT_MEMLOCK against the windows of all endpoints of this process. Each window
/// counts by itself, as in a driver. Two simultaneous registrations may both pass the check.
fn count_as_locked(inner: &Inner, size: u64) -> Result<()> {
    let Some(limit) = process::lockable() else {
        return Ok(());
    };
    let mut locked = size;
    for epd in inner.every() {
        if let Some(link) = epd.link() {
            let windows = link.own.table.all()?;
            locked = windows.iter().fold(locked, |sum, window| sum.saturating_add(window.len));
        }
    }
    if locked > limit {
        return Err(Failure::NoMemory);
    }
    Ok(())
}

/// Returns the areas at the addresses, none of which shows memory of a peer. `arena` is that of
/// the endpoint.
fn areas_of_own(inner: &Inner, arena: FileId, addr: usize, end: usize) -> Result<Vec<Area>> {
    let mut refused = None;
    loop {
        let areas = pages::areas(addr, end).map_err(|_| Failure::NoMemory)?;
        let is_of_peer = |area: &&Area| {
            area.name.starts_with("/memfd:scif:arena")
                && area.file != arena
                && !inner.is_own_arena(area.file)
        };
        match areas.iter().find(is_of_peer).map(|area| area.file) {
            None => return Ok(areas),
            file if file == refused => return Err(Failure::BadAddress),
            // Refused only if seen twice. An endpoint may have ended meanwhile, with its pages
            // moved back.
            file => refused = file,
        }
    }
}

/// Finds or makes the places of the pages at `addr`. `Again`: another thread has moved some
/// meanwhile. Adds the arena ranges it uses to `taken`, also when it fails, because pages may
/// lie in them. Adds pages in the arena of another connection to `lent`.
fn find_place(
    inner: &Inner,
    link: &Link,
    addr: usize,
    len: usize,
    taken: &mut Vec<(u64, u64)>,
    lent: &mut Vec<Lent>,
) -> Result<Vec<(Place, u64)>> {
    let end = addr.checked_add(len).ok_or(Failure::BadAddress)?;
    let arena = pages::file_id(link.own.arena())?;
    let areas = areas_of_own(inner, arena, addr, end)?;
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
    // Checked before any page moves.
    if !link.own.table.has_room(areas.len())? {
        return Err(Failure::NoMemory);
    }
    // Another sharer that deletes the window must find this process: it frees pages in the arena
    // that no process shows.
    let has_place = link.own.table.take_place();
    let mover = page_restore::mover(inner);
    let used = page_restore::used_unmoved(inner);
    let is_used = |begin: usize, end: usize| {
        let (begin, end) = (begin as u64, end as u64);
        used.iter().any(|&(from, to)| from < end && to > begin)
    };
    let mut places = Vec::with_capacity(areas.len());
    for area in &areas {
        let (begin, end) = (area.begin.max(addr), area.end.min(end));
        let size = (end - begin) as u64;
        let place = if area.shared && area.file == arena {
            Place::Arena(area.offset + (begin - area.begin) as u64)
        } else if area.is_of_arena() {
            let part = area.between(begin, end);
            lent.push(Lent { arena: area.file, range: (part.offset, part.last_offset()) });
            leave_unmoved(inner, begin)
        } else if !is_movable(area) || pages::is_stack_in_use(begin, end) || is_used(begin, end) {
            leave_unmoved(inner, begin)
        } else if has_place && mover.may_move_from(area, begin) {
            let wanted = pages::wanted(area, begin, end);
            let at = link.own.table.take_arena(wanted, begin, size)?;
            taken.push((at, at + size));
            let hold = |from, to| page_restore::hold_piece(inner, from, to);
            match pages::move_in(area, begin..end, link.own.arena(), at, mover.guard(), hold) {
                Ok(()) => Place::Arena(at),
                // None has moved.
                Err(Errno::BUSY) => leave_unmoved(inner, begin),
                Err(Errno::FAULT) => return Err(Failure::BadAddress),
                Err(Errno::STALE) => return Err(Failure::Again),
                Err(_) => return Err(Failure::NoMemory),
            }
        } else if inner.config.window_strict {
            return Err(Failure::NoMemory);
        } else {
            leave_unmoved(inner, begin)
        };
        places.push((place, size));
    }
    Ok(places)
}

/// Place of pages that are not moved. Peers access them by `process_vm_*`.
fn leave_unmoved(inner: &Inner, addr: usize) -> Place {
    if inner.config.ptracer && process::yama_scope() == 1 {
        // If this is refused, the peers' RMAs report it.
        let _ = process::allow_any_ptracer();
    }
    Place::Unmoved { addr: addr as u64, pid: process::pid() }
}

/// Records the loans of other connections' arenas to a new window of `borrower`.
fn borrow(inner: &Inner, borrower: &Epd, serial: u32, lent: &[Lent]) {
    for lent in lent {
        let loan = Loan::new(lent.range, serial);
        let lends = |epd: &Arc<Epd>| {
            epd.link().is_some_and(|link| pages::file_id(link.own.arena()) == Ok(lent.arena))
        };
        // The arena of an ended connection counts its references itself.
        if let Some(lender) = inner.every().into_iter().find(lends) {
            lender.windows.lend(Arc::clone(&loan));
        }
        borrower.windows.borrow(loan);
    }
}

#[cfg(test)]
mod tests {
    use scif::sys::children;

    use super::*;
    use crate::{Pages, connected, endpoints};

    fn is_shared(memory: &Pages) -> bool {
        pages::areas(memory.addr(), memory.addr() + PAGE).unwrap()[0].shared
    }

    /// The windows of an endpoint belong to all its sharers, and each may delete those of another.
    #[test]
    fn child_that_deletes_a_window_keeps_the_memory_of_its_parent() {
        let scif = endpoints("child-deletes", 0);
        let (a, _b) = connected(&scif, &scif);
        let memory = Pages::new(PAGE).unwrap();
        memory.write(0, b"kept").unwrap();
        let at = (memory.addr(), PAGE);
        assert_eq!(scif.register(a, at, 0, READ | WRITE, MAP_FIXED), Ok(0));
        assert!(is_shared(&memory));
        let child = children::in_child(|| i32::from(scif.unregister(a, 0, PAGE) == Ok(())));
        assert_eq!(child.result(), 1);
        let mut bytes = [0; 4];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    }

    /// Runs in a child, because it changes the process's limit of descriptors.
    #[test]
    fn pages_of_a_window_that_was_not_made_go_back_when_they_can() {
        let scif = endpoints("undone", 0);
        let (a, _b) = connected(&scif, &scif);
        let memory = Pages::new(PAGE).unwrap();
        let is_shared = || pages::areas(memory.addr(), memory.addr() + PAGE).unwrap()[0].shared;
        let child = children::in_child(|| {
            let epd = scif.0.get(a).unwrap();
            let link = epd.link().unwrap();
            let mut taken = Vec::new();
            let failed = {
                let _held = epd.sharer.control.lock();
                find_place(&scif.0, link, memory.addr(), PAGE, &mut taken, &mut Vec::new())
                    .unwrap();
                let limit = process::limit_nofile(0);
                let undone = undo(&scif.0, &epd, link, 0, PAGE as u64, taken);
                process::limit_nofile(limit);
                undone.is_err()
            };
            let stayed = is_shared();
            page_restore::take_back(&scif.0);
            i32::from(failed && stayed && !is_shared())
        });
        assert_eq!(child.result(), 1);
    }
}
