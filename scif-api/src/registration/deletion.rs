// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Deletion of windows: the wait for RMA in progress on them and for mappings of the peer, then the
//! release of their pages. Source: `scif_unregister`.
//!
//! Not about the return of the pages to private memory (`page_restore`).

use std::sync::Arc;
use std::time::Duration;

use scif::logging::warn_about_peer;
use scif::sys::pages::{self, PAGE};
use scif::sys::time::now_ns;
use scif::sys::{descriptor, process, thread};

use super::page_restore;
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::registry::Inner;
use crate::window::mover::without;
use crate::window::table::{OFFSET_MAX, Place, Window};
use crate::wire::Packet;

/// Time in nanoseconds within which a peer has to answer all questions of one call about its
/// mappings. A window without an answer counts as mapped, so its pages stay in the arena until the
/// peer has ended.
pub(super) const ANSWER_NS: u64 = 1_000_000_000;
/// Limit like `ANSWER_NS` on the service thread, in nanoseconds. Meanwhile every other endpoint of
/// the process waits.
pub(crate) const SERVICE_ANSWER_NS: u64 = 20_000_000;
/// Nanoseconds of waiting after which dead sharers in the middle of a copy are searched for. With
/// less, a short wait pays for the system calls of the search.
const DEATH_NS: u64 = 5_000_000;

pub(super) fn aligned(n: u64) -> bool {
    n % (PAGE as u64) == 0
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

/// Deletes the windows of a range, without a wait for RMA in progress. They keep their pages until
/// [`unregister_hidden`].
pub(crate) fn hide(epd: &Arc<Epd>, range: (i64, usize)) -> Result<()> {
    let range = valid_range(range)?;
    let link = epd.connected()?;
    let _held = epd.sharer.control.lock();
    delete(link, range)?;
    epd.windows.hide(range);
    Ok(())
}

/// Ends `unregister` of windows that were hidden at `since_ns` of the monotonic clock. Waits
/// without the control lock, since other windows of the connection may be hidden meanwhile.
pub(crate) fn unregister_hidden(
    inner: &Inner,
    epd: &Arc<Epd>,
    range: (i64, usize),
    since_ns: u64,
) -> Result<()> {
    let range = valid_range(range)?;
    let link = epd.connected()?;
    let limits = RestLimits::new(ANSWER_NS, inner.config.window_rest_ns);
    let waited = wait_for_rest(inner, epd, link, &RestLimits { since_ns, ..limits });
    let held = epd.sharer.control.lock();
    epd.windows.end_hiding(range);
    waited?;
    sweep(inner, epd, link, ANSWER_NS)?;
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
pub(super) struct RestLimits {
    /// Time of the monotonic clock from which `rest_ns` counts.
    since_ns: u64,
    /// Limit of RMA in progress.
    rest_ns: u64,
    /// Limit of the peer's answer.
    answer_ns: u64,
}

impl RestLimits {
    pub(super) fn new(answer_ns: u64, rest_ns: u64) -> RestLimits {
        RestLimits { since_ns: now_ns(), rest_ns, answer_ns }
    }
}

/// Finishes the deletion of windows that no RMA can find any more. Waits for RMAs that found
/// them, then releases the pages unless the peer maps them. The caller holds the control lock.
pub(super) fn retire(inner: &Inner, epd: &Epd, link: &Link, limits: &RestLimits) -> Result<()> {
    wait_for_rest(inner, epd, link, limits)?;
    sweep(inner, epd, link, limits.answer_ns)
}

/// Waits until all RMAs have ended that may have found windows before their deletion, or until the
/// limit is over.
fn wait_for_rest(inner: &Inner, epd: &Epd, link: &Link, limits: &RestLimits) -> Result<()> {
    let RestLimits { since_ns, rest_ns: limit_ns, .. } = *limits;
    // SYNC POINT: pairs with `OwnTable::copying`. A call that does not see the deletion is seen
    // copying.
    scif_ring::full_fence();
    // Waits for other windows may have used the limit. RMA of a healthy peer ends within the grace.
    let limit_ns = limit_ns.max(now_ns().saturating_sub(since_ns) + limit_ns.min(DEATH_NS));
    let mut last = None;
    loop {
        let long = now_ns().saturating_sub(since_ns);
        if have_ended(epd, link, &mut last, long > DEATH_NS)? {
            return Ok(());
        }
        if long > limit_ns && limits.rest_ns < inner.config.window_rest_ns {
            // A loan: no page is released.
            log::debug!("endpoint at port {}: RMA beside the end of a loan", epd.sharer.port());
            return Ok(());
        }
        if long > limit_ns {
            warn_about_peer!(
                "endpoint at port {}: RMA on a deleted window has not ended after {:?}; its \
                 pages are released. Look for a stopped process (state T in ps) among the \
                 users of the endpoint",
                epd.sharer.port(),
                Duration::from_nanos(limits.rest_ns)
            );
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Whether all RMAs have ended that may have found windows before their deletion. `last`: numbers
/// of the last queued ones of both sides, once no call is left that looked up windows before it. A
/// peer that always has RMA in progress is not waited for. `looks`: as in [`is_at_rest`].
fn have_ended(epd: &Epd, link: &Link, last: &mut Option<[u64; 2]>, looks: bool) -> Result<bool> {
    let (own, theirs) = (&link.own.table.sharers, &link.peer.table.sharers);
    let (is_over, looks_there) = (epd.over(link), looks && theirs.has(link.peer_pid));
    if last.is_none() && own.copy_none(looks)? && (is_over || theirs.copy_none(looks_there)?) {
        *last = Some([own.queued(), theirs.queued()]);
    }
    let Some([own_last, their_last]) = *last else { return Ok(false) };
    Ok(own.finished(own_last, looks)? && (is_over || theirs.finished(their_last, looks_there)?))
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
    // SYNC POINT: as in `wait_for_rest`.
    scif_ring::full_fence();
    let at_rest = deleted.and_then(|()| is_at_rest(epd, link, waited_ns > DEATH_NS));
    at_rest.is_ok_and(|at_rest| !at_rest)
}

/// Releases the pages of deleted windows that the peer does not map any more, except hidden ones,
/// on which RMA may be in progress. Waits at most `answer_ns` for the answers of the peer. The
/// caller holds the control lock.
pub(super) fn sweep(inner: &Inner, epd: &Epd, link: &Link, answer_ns: u64) -> Result<()> {
    let deadline = now_ns() + answer_ns;
    let all = link.own.table.all()?;
    let ever_mapped = link.peer.table.mappings()? != 0;
    let gone: Vec<&Window> = all
        .iter()
        .filter(|window| {
            window.deleted
                && !epd.windows.is_hidden(window.offset)
                && !(ever_mapped && is_mapped(inner, epd, link, window, deadline))
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
    epd.windows.end_hiding((0, OFFSET_MAX + 1));
    let deleted = deleted.and_then(|()| retire(inner, epd, link, &limits));
    if let Err(failure) = deleted {
        log::debug!(
            "endpoint at port {}: deletion of its windows at its close failed: {failure}",
            epd.sharer.port()
        );
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

    const MAP_FIXED: i32 = 0x10;
    const READ_WRITE: i32 = 3;

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
            let registered =
                a.0.register(a.1, (memory.addr() + at * PAGE, PAGE), offset, READ_WRITE, MAP_FIXED);
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

    /// Registers two pages at offsets 0 and `PAGE`, and begins a copy of the peer.
    fn copied_by_a_peer(
        a: (&Endpoints, RawFd),
        b: (&Endpoints, RawFd),
    ) -> (Pages, crate::window::sharers::Copying) {
        let memory = Pages::new(2 * PAGE).unwrap();
        for at in [0, PAGE] {
            let offset = at as i64;
            let page = (memory.addr() + at, PAGE);
            assert_eq!(a.0.register(a.1, page, offset, READ_WRITE, MAP_FIXED), Ok(offset));
        }
        let copying = b.0.0.get(b.1).unwrap().link().unwrap().own.table.copying().unwrap();
        (memory, copying)
    }

    fn are_shared(memory: &Pages) -> [bool; 2] {
        [0, PAGE].map(|at| {
            let page = memory.addr() + at;
            pages::areas(page, page + PAGE).unwrap()[0].shared
        })
    }

    #[test]
    fn a_wait_for_rma_delays_no_other_deletion() {
        let _alone = children::none();
        let (first, second) = (endpoints("two-closes", 0), endpoints("two-closes", 0));
        let (a, b) = connected(&first, &second);
        let (memory, copying) = copied_by_a_peer((&first, a), (&second, b));
        let (told, calls) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (first, also) = (&first, told.clone());
            first.hide(a, 0, PAGE).unwrap();
            scope.spawn(move || {
                told.send("wait").unwrap();
                first.unregister_hidden(a, (0, PAGE), now_ns()).unwrap();
                told.send("end").unwrap();
            });
            assert_eq!(calls.recv(), Ok("wait"));
            // It now waits for the copy.
            std::thread::sleep(Duration::from_millis(20));
            scope.spawn(move || {
                let hidden = first.hide(a, PAGE as i64, PAGE);
                also.send(if hidden.is_ok() { "hidden" } else { "refused" }).unwrap();
            });
            let next = calls.recv_timeout(Duration::from_secs(10));
            drop(copying);
            assert_eq!(next, Ok("hidden"));
            assert_eq!(calls.recv(), Ok("end"));
        });
        assert_eq!(are_shared(&memory), [false, true], "the other window has its own end");
        first.unregister_hidden(a, (PAGE as i64, PAGE), now_ns()).unwrap();
        assert_eq!(are_shared(&memory), [false; 2]);
    }

    #[test]
    fn a_hidden_window_keeps_its_pages_when_another_one_ends() {
        let _alone = children::none();
        let (first, second) = (endpoints("hidden", 0), endpoints("hidden", 0));
        let (a, b) = connected(&first, &second);
        let (memory, copying) = copied_by_a_peer((&first, a), (&second, b));
        first.hide(a, 0, PAGE).unwrap();
        // The limit of a loan, after which nobody waits for the copy.
        first.end_lent(a, PAGE as i64, PAGE).unwrap();
        assert_eq!(are_shared(&memory), [true, false], "the peer copies");
        drop(copying);
        first.unregister_hidden(a, (0, PAGE), now_ns()).unwrap();
        assert_eq!(are_shared(&memory), [false; 2]);
    }

    #[test]
    fn a_peer_that_always_transfers_delays_no_deletion() {
        let _alone = children::none();
        let (first, second) = (endpoints("stream", 0), endpoints("stream", 0));
        let (a, b) = connected(&first, &second);
        let (memory, copying) = copied_by_a_peer((&first, a), (&second, b));
        drop(copying);
        let peer = second.0.get(b).unwrap();
        let queue = || peer.link().unwrap().own.table.queue().unwrap().unwrap();
        let finish = |ticket| peer.link().unwrap().own.table.finish(ticket).unwrap();
        let mut before = queue();
        std::thread::scope(|scope| {
            let (told, ended) = std::sync::mpsc::channel();
            let first = &first;
            scope.spawn(move || told.send(first.unregister(a, 0, PAGE)).unwrap());
            let end = Instant::now() + Duration::from_secs(10);
            let mut result = Err(std::sync::mpsc::TryRecvError::Empty);
            while result.is_err() && Instant::now() < end {
                let next = queue();
                finish(std::mem::replace(&mut before, next));
                result = ended.try_recv();
            }
            finish(before);
            assert_eq!(result, Ok(Ok(())));
        });
        assert_eq!(are_shared(&memory), [false, true]);
    }
}
