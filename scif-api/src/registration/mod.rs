// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registration and deletion of windows, and its effect on the pages.
//!
//! Not about using windows. Each registration asks the kernel for the memory that is mapped at the
//! address now, and trusts no record of the library. Private pages are moved into the arena of the
//! connection. They stay in it while a window or a mapping of the peer needs them, and then move
//! back. Other pages are used in place. Source: `scif_register`, `scif_unregister`.

pub(crate) mod page_restore;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use scif::logging::warn_about_peer;
use scif::sys::pages::{self, Area, FileId, PAGE};
use scif::sys::time::now_ns;
use scif::sys::{descriptor, process, thread};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::lock::take;
use crate::registry::Inner;
use crate::window::loans::{Lent, Loan};
use crate::window::mover::without;
use crate::window::table::{OFFSET_MAX, Place, Window};
use crate::wire::Packet;

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;
/// Time in nanoseconds within which a peer has to answer all questions of one call about its
/// mappings. A window without an answer counts as mapped, so its pages stay in the arena until the
/// peer has ended.
const ANSWER_NS: u64 = 1_000_000_000;
/// Limit like `ANSWER_NS` on the service thread, in nanoseconds. Meanwhile every other endpoint of
/// the process waits.
pub(crate) const SERVICE_ANSWER_NS: u64 = 20_000_000;
/// Nanoseconds of waiting after which dead sharers in the middle of a copy are searched for. With
/// less, a short wait pays for the system calls of the search.
const DEATH_NS: u64 = 5_000_000;
/// Number of attempts of a registration when other threads register the same pages. After the last
/// one the call fails.
const TRIES: u32 = 64;

fn aligned(n: u64) -> bool {
    n % (PAGE as u64) == 0
}

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
            return Err(Failure::InUse);
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

/// Deletes the windows of a range (`scif_unregister`). Waits up to `limit_ns` for RMA in progress.
pub(crate) fn unregister(
    inner: &Inner,
    epd: &Arc<Epd>,
    range: (i64, usize),
    limit_ns: u64,
) -> Result<()> {
    let range = valid_range(range)?;
    let link = epd.connected()?;
    let held = epd.sharer.control.lock();
    delete(link, range)?;
    retire(inner, epd, link, &RestLimits::new(ANSWER_NS, limit_ns))?;
    drop(held);
    // The window may have used pages of another connection in place.
    page_restore::take_back(inner);
    Ok(())
}

/// Deletes the windows of a range, without a wait for RMA in progress.
pub(crate) fn hide(epd: &Arc<Epd>, range: (i64, usize)) -> Result<()> {
    let range = valid_range(range)?;
    let link = epd.connected()?;
    let _held = epd.sharer.control.lock();
    delete(link, range)
}

/// Ends `unregister` of windows that were hidden at `since_ns` of the monotonic clock.
pub(crate) fn unregister_hidden(inner: &Inner, epd: &Arc<Epd>, since_ns: u64) -> Result<()> {
    let link = epd.connected()?;
    let held = epd.sharer.control.lock();
    let limits = RestLimits::new(ANSWER_NS, inner.config.window_rest_ns);
    retire(inner, epd, link, &RestLimits { since_ns, ..limits })?;
    drop(held);
    page_restore::take_back(inner);
    Ok(())
}

/// Returns offset and length of a range of whole pages.
fn valid_range((offset, len): (i64, usize)) -> Result<(u64, u64)> {
    let at = u64::try_from(offset).map_err(|_| Failure::Invalid)?;
    let size = len as u64;
    if len == 0 || !aligned(size) || !aligned(at) || size > OFFSET_MAX - at {
        return Err(Failure::Invalid);
    }
    Ok((at, size))
}

/// Marks the windows of a range as deleted, if it has whole windows only. The caller holds the
/// control lock.
fn delete(link: &Link, (at, size): (u64, u64)) -> Result<()> {
    let table = &link.own.table;
    let runs = table.runs(at, size, false, false)?;
    let whole = runs.iter().all(|run| run.skip == 0 && run.len == run.window.len);
    let outside = |at: Option<u64>| at.map_or(Ok(None), |at| table.at(at));
    let ends =
        [(outside(at.checked_sub(1))?, runs.first()), (outside(Some(at + size))?, runs.last())];
    let cut = ends.iter().any(|(beyond, run)| {
        beyond.is_some_and(|beyond| run.is_some_and(|run| run.window.serial == beyond.serial))
    });
    if !whole || cut {
        return Err(Failure::NoWindow);
    }
    table.delete(at, size)
}

/// Limits of a retirement, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RestLimits {
    /// Time of the monotonic clock from which `rest_ns` counts.
    since_ns: u64,
    /// Limit of RMA in progress.
    rest_ns: u64,
    /// Limit of the peer's answer.
    answer_ns: u64,
}

impl RestLimits {
    fn new(answer_ns: u64, rest_ns: u64) -> RestLimits {
        RestLimits { since_ns: now_ns(), rest_ns, answer_ns }
    }
}

/// Finishes the deletion of windows that no RMA can find any more. Waits for RMAs that found
/// them, then releases the pages unless the peer maps them. The caller holds the control lock.
fn retire(inner: &Inner, epd: &Epd, link: &Link, limits: &RestLimits) -> Result<()> {
    let RestLimits { since_ns, rest_ns: limit_ns, answer_ns } = *limits;
    // SYNC POINT: pairs with `OwnTable::copying`. A call that does not see the deletion is seen
    // copying.
    scif_ring::full_fence();
    // Waits for other windows may have used the limit. RMA of a healthy peer ends within the grace.
    let limit_ns = limit_ns.max(now_ns().saturating_sub(since_ns) + limit_ns.min(DEATH_NS));
    loop {
        let long = now_ns().saturating_sub(since_ns);
        if is_at_rest(epd, link, long > DEATH_NS)? {
            break;
        }
        if long > limit_ns && limits.rest_ns < inner.config.window_rest_ns {
            // A loan: no page is released.
            log::debug!("endpoint at port {}: RMA beside the end of a loan", epd.sharer.port());
            break;
        }
        if long > limit_ns {
            warn_about_peer!(
                "endpoint at port {}: RMA on a deleted window has not ended after {:?}; its \
                 pages are released. Look for a stopped process (state T in ps) among the \
                 users of the endpoint",
                epd.sharer.port(),
                Duration::from_nanos(limits.rest_ns)
            );
            break;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    sweep(inner, epd, link, answer_ns)
}

/// Whether no RMA over a connection is queued or copies. `looks`: whether to check for ended
/// processes, which takes system calls.
fn is_at_rest(epd: &Epd, link: &Link, looks: bool) -> Result<bool> {
    let theirs = &link.peer.table.sharers;
    Ok(link.own.table.sharers.at_rest(looks)?
        && (epd.over(link) || theirs.at_rest(looks && theirs.has(link.peer_pid))?))
}

/// Deletes all windows of a closed endpoint. Returns whether RMAs still use them after
/// `waited_ns`, and the end of the endpoint has to wait.
pub(crate) fn are_windows_in_use(inner: &Inner, epd: &Epd, waited_ns: u64) -> bool {
    let rest_ns = inner.config.window_rest_ns;
    let Some(link) = epd.link().filter(|_| waited_ns < rest_ns) else { return false };
    let _held = epd.sharer.control.lock();
    let deleted = link.own.table.delete(0, OFFSET_MAX + 1);
    // SYNC POINT: as in `retire`.
    scif_ring::full_fence();
    let at_rest = deleted.and_then(|()| is_at_rest(epd, link, waited_ns > DEATH_NS));
    at_rest.is_ok_and(|at_rest| !at_rest)
}

/// Releases the pages of deleted windows that the peer does not map any more. Waits at most
/// `answer_ns` for its answers. The caller holds the control lock.
fn sweep(inner: &Inner, epd: &Epd, link: &Link, answer_ns: u64) -> Result<()> {
    let deadline = now_ns() + answer_ns;
    let all = link.own.table.all()?;
    let ever_mapped = link.peer.table.mappings()? != 0;
    let gone: Vec<&Window> = all
        .iter()
        .filter(|window| {
            window.deleted && !(ever_mapped && is_mapped(inner, epd, link, window, deadline))
        })
        .collect();
    if gone.is_empty() {
        return Ok(());
    }
    let is_gone = |window: &Window| gone.binary_search_by_key(&window.offset, |w| w.offset).is_ok();
    epd.windows.forget(&gone);
    epd.windows.give_back(&gone);
    let (gone_ranges, kept_ranges): (Vec<_>, Vec<_>) = all
        .iter()
        .filter_map(|window| Some((is_gone(window), window.in_arena()?)))
        .partition(|(gone, _)| *gone);
    let ranges = |of: Vec<(bool, (u64, u64))>| of.into_iter().map(|(_, range)| range).collect();
    let free = without(ranges(gone_ranges), ranges(kept_ranges));
    // Done before the places are forgotten: if a sharer dies in between, the next one
    // continues.
    page_restore::restore(inner, epd, link, &free)?;
    link.own.table.forget(is_gone)?;
    if gone.iter().any(|window| matches!(window.place, Place::Unmoved { .. })) {
        inner.released_unmoved.add(1);
    }
    Ok(())
}

/// Asks the peer whether it maps a window. Without an answer until `deadline`, it counts as
/// mapped.
fn is_mapped(inner: &Inner, epd: &Epd, link: &Link, window: &Window, deadline: u64) -> bool {
    // Borrowed pages are known to the peer by the serial number of their window.
    let (at, len) = match window.place {
        Place::Arena(at) => (at, window.len),
        Place::Unmoved { .. } if epd.windows.has_borrowed(window.serial) => (u64::MAX, 0),
        Place::Unmoved { .. } => return false,
    };
    // The peer cannot be asked without a connection. Its mappings outlive the connection, but
    // not its processes, so references to the arena count as mappings.
    let outlives = || len == 0 || link.own.is_arena_referred_to();
    if epd.over(link) {
        return outlives();
    }
    if link.peer_pid == process::pid() {
        if let Some(peer) = peer_here(inner, link) {
            // Its questions are answered by the service thread, which may be this thread.
            return peer.link().is_none_or(|back| still_maps(&peer, back, window.serial, at, len));
        }
    }
    link.send_packet(Packet::MappedQuery { serial: window.serial, at, len });
    loop {
        if let Some(mapped) = epd.windows.answer(window.serial) {
            return mapped;
        }
        if epd.over(link) {
            return outlives();
        }
        if now_ns() > deadline {
            return true;
        }
        // The service thread reads packets as well, unless this thread is the service thread.
        descriptor::wait_readable(link.socket(), 1);
        let gone =
            |packet: Option<Packet>| !packet.is_some_and(|packet| take_packet(epd, link, packet));
        if link.receive_packet().is_some_and(gone) {
            epd.disconnect();
        }
    }
}

/// Returns the other end of a connection within this process.
fn peer_here(inner: &Inner, link: &Link) -> Option<Arc<Epd>> {
    let arena = pages::file_id(link.own.arena()).ok()?;
    let sees_it = |peer: &Arc<Epd>| {
        peer.link().is_some_and(|back| pages::file_id(back.peer.arena()) == Ok(arena))
    };
    inner.every().into_iter().find(sees_it)
}

/// Handles a packet of the peer. Returns whether the peer stays connected.
pub(crate) fn take_packet(epd: &Epd, link: &Link, packet: Packet) -> bool {
    match packet {
        Packet::MappedQuery { serial, at, len } => {
            let mapped = still_maps(epd, link, serial, at, len);
            link.send_packet(Packet::Mapped { serial, mapped });
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

/// Deletes all windows of an endpoint that ends.
pub(crate) fn end_windows(inner: &Inner, epd: &Epd) {
    let Some(link) = epd.link() else { return };
    let _held = epd.sharer.control.lock();
    // The service thread has waited before, and serves all endpoints.
    let limits = match thread::is_ours() {
        true => RestLimits::new(SERVICE_ANSWER_NS, SERVICE_ANSWER_NS),
        false => RestLimits::new(ANSWER_NS, inner.config.window_rest_ns),
    };
    let table = &link.own.table;
    let deleted = table.delete(0, OFFSET_MAX + 1);
    let deleted = deleted.and_then(|()| retire(inner, epd, link, &limits));
    if let Err(failure) = deleted {
        log::debug!(
            "endpoint at port {}: deletion of its windows at its close failed: {failure}",
            epd.sharer.port()
        );
    }
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

/// Whether this side maps a range of the peer's arena, or, with length 0, the pages that the peer's
/// window borrowed.
fn still_maps(epd: &Epd, link: &Link, serial: u32, at: u64, len: u64) -> bool {
    let spaces = link.spaces();
    if len == 0 { epd.windows.maps_lent(spaces, serial) } else { epd.windows.maps(spaces, at, len) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;
    use std::time::{Duration, Instant};

    use scif::sys::children;

    use super::*;
    use crate::{Endpoints, Pages, connected, endpoints};

    /// Number of one-page windows, all mapped by the peer. A wait for each would outlast any stall
    /// of the machine.
    const WINDOWS: usize = 20;

    fn is_shared(memory: &Pages) -> bool {
        pages::areas(memory.addr(), memory.addr() + PAGE).unwrap()[0].shared
    }

    /// Registers the windows, maps them from the peer, and stops the peer's service thread for the
    /// connection.
    fn mapped_by_a_mute_peer(
        a: (&Endpoints, RawFd),
        b: (&Endpoints, RawFd),
    ) -> (Pages, Vec<Pages>) {
        let memory = Pages::new(WINDOWS * PAGE).unwrap();
        let mapped = |at: usize| {
            let offset = (at * PAGE) as i64;
            let registered = a.0.register(
                a.1,
                (memory.addr() + at * PAGE, PAGE),
                offset,
                READ | WRITE,
                MAP_FIXED,
            );
            assert_eq!(registered, Ok(offset));
            b.0.map_pages(b.1, PAGE, offset, true).unwrap()
        };
        let mapped = (0..WINDOWS).map(mapped).collect();
        b.0.0.get(b.1).unwrap().poisoned.set(true);
        (memory, mapped)
    }

    /// The second engine represents another process, which has stopped.
    #[test]
    fn unresponsive_peer_is_waited_for_once_a_call() {
        let (first, second) = (endpoints("mute-a", 0), endpoints("mute-a", 0));
        let (a, b) = connected(&first, &second);
        let _mapped = mapped_by_a_mute_peer((&first, a), (&second, b));
        let begin = Instant::now();
        first.close(a).unwrap();
        let limit = Duration::from_nanos(WINDOWS as u64 * ANSWER_NS);
        assert!(begin.elapsed() < limit, "a close took {:?}", begin.elapsed());
    }

    /// Neither side's service thread handles the connection, so the question itself detects the end
    /// of file.
    #[test]
    fn the_end_of_a_peer_answers_questions_about_its_mappings() {
        // A child of another test would have a copy of the arena, whose pages stay then.
        let _alone = children::none();
        let (first, second) = (endpoints("mute-b", 0), endpoints("mute-b", 0));
        let (a, b) = connected(&first, &second);
        let (memory, mapped) = mapped_by_a_mute_peer((&first, a), (&second, b));
        first.0.get(a).unwrap().poisoned.set(true);
        assert!(is_shared(&memory));
        drop(mapped);
        // Without notice, as after a packet that this side could not read.
        second.0.get(b).unwrap().disconnect();
        second.close(b).unwrap();
        assert_eq!(first.unregister(a, 0, WINDOWS * PAGE), Ok(()));
        assert!(!is_shared(&memory));
        first.close(a).unwrap();
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
