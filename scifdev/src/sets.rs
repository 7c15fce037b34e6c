// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! epoll(7) with the wait queues of mainline's driver (`SCIF_DEVICE_TRAPS`).
//!
//! The driver has one queue for a connect in progress, one for requests, one for bytes and one for
//! space. `EPOLL_CTL_ADD` enters the queues of that moment, by the state of the endpoint and the
//! requested events; `EPOLL_CTL_MOD` enters none. A set notices a change only through a queue it is
//! in, or while its ready list still has the endpoint: each `epoll_wait` polls that list again and
//! drops descriptors that are not ready.
//!
//! Endpoints of a set are in a second set below it, with the events of their queues. So other
//! waiters for the outer set (a set around it, poll by a raw system call) are woken as the driver
//! would wake them. The list of ready endpoints is kept here. Not about poll(2) and select(2),
//! which enter the queues anew on each call.
#![expect(unsafe_code, reason = "epoll calls of the C library, with numbers of the program")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};
use scif_api::{Endpoints, Failure, PollFd, Result, WaitsFor};

use crate::{ours, real};

const IN: u32 = bits(libc::EPOLLIN);
const OUT: u32 = bits(libc::EPOLLOUT);
const ALWAYS: u32 = bits(libc::EPOLLERR | libc::EPOLLHUP);
const EDGE: u32 = bits(libc::EPOLLET);
const ONCE: u32 = bits(libc::EPOLLONESHOT);
/// Bits that select the manner of reporting, not the events.
const HOW: u32 = EDGE | ONCE | bits(libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE);
/// Name of the inner set in the outer one; neither an address nor a descriptor number.
const INNER: u64 = 0x5c1f_dead_e770_15e7;
/// Number of events taken from the system per call. With fewer, sets with many ready descriptors
/// need more calls.
const EVENTS_PER_CALL: usize = 64;
/// Pause after a descriptor showed an outdated state: its peer is about to correct it.
const CORRECTING: Duration = Duration::from_micros(100);

/// Queues in which a registration waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each queue of the driver")]
struct Queues {
    connect: bool,
    request: bool,
    data: bool,
    room: bool,
}

impl Queues {
    /// Returns the queues that the driver's poll operation enters in this state for these events.
    fn of(state: WaitsFor, events: u32) -> Queues {
        let mut queues = Queues::default();
        match state {
            WaitsFor::Nothing => {}
            WaitsFor::Connect => queues.connect = true,
            WaitsFor::Request => queues.request = true,
            WaitsFor::Messages => {
                queues.data = events & IN != 0;
                queues.room = events & OUT != 0;
            }
        }
        queues
    }

    /// Returns the events of the descriptor that wake these queues; `None` if no possible event
    /// does.
    fn wakers(self, state: WaitsFor, events: u32) -> Option<u32> {
        let mut wakers = 0;
        if self.data || self.request {
            wakers |= events & IN;
        }
        if self.room {
            wakers |= events & OUT;
        }
        let connecting = self.connect && state == WaitsFor::Connect;
        if connecting {
            wakers |= events & OUT;
        }
        (self.data || self.request || self.room || connecting).then_some(wakers)
    }
}

/// Registration of an endpoint in a set.
#[derive(Clone, Copy, Debug)]
struct Interest {
    events: u32,
    data: u64,
    queues: Queues,
    /// Whether it is on the list of descriptors that may be ready.
    listed: bool,
    /// Events with which the inner set has it.
    real: Option<u32>,
}

impl Interest {
    fn wanted(&self) -> u32 {
        self.events & !HOW
    }

    /// Whether it has reported once and was not changed since (`EPOLLONESHOT`).
    fn is_spent(&self) -> bool {
        self.events & ONCE != 0 && self.wanted() == 0
    }

    /// Returns the events with which the inner set should have it.
    fn due(&self, state: WaitsFor) -> Option<u32> {
        if self.is_spent() {
            return None;
        }
        let how = self.events & EDGE;
        if self.listed && self.events & EDGE == 0 {
            return Some(self.wanted());
        }
        self.queues.wakers(state, self.wanted()).map(|wakers| wakers | how)
    }
}

#[derive(Debug)]
struct EpollSet {
    inner: RawFd,
    /// Process that made it.
    pid: u32,
    interests: BTreeMap<RawFd, Interest>,
    /// First number that the next collection polls. With fewer slots than ready endpoints, each
    /// then gets its turn.
    next: RawFd,
    /// Whether the last collection left no slot for other descriptors, which then come first.
    full: bool,
}

static SETS: Mutex<BTreeMap<RawFd, EpollSet>> = Mutex::new(BTreeMap::new());

fn sets() -> MutexGuard<'static, BTreeMap<RawFd, EpollSet>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed() -> Failure {
    Failure::Os(rustix::io::Errno::from_raw_os_error(real::errno()))
}

fn control(set: RawFd, op: c_int, fd: RawFd, events: u32, data: u64) -> Result<()> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: a live event; wrong numbers are errors.
    let rc = unsafe { real::epoll_ctl(set, op, fd, &raw mut event) };
    if rc == 0 { Ok(()) } else { Err(failed()) }
}

/// Returns the unsigned form of event bits, which epoll uses.
const fn bits(events: i32) -> u32 {
    u32::from_ne_bytes(events.to_ne_bytes())
}

/// Returns the exact bits of an endpoint among the wanted ones.
fn ready(endpoints: &Endpoints, fd: RawFd, wanted: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "poll's bits are epoll's low ones")]
    let events = wanted as i16;
    let mut entry = [PollFd { fd, events, revents: 0 }];
    match ours::inside(|| endpoints.poll(&mut entry, 0)) {
        Ok(_) => entry
            .iter()
            .map(|entry| u32::from(u16::from_ne_bytes(entry.revents.to_ne_bytes())))
            .sum(),
        Err(_) => ALWAYS & bits(libc::EPOLLERR),
    }
}

fn state(endpoints: &Endpoints, fd: RawFd) -> WaitsFor {
    ours::inside(|| endpoints.waits_for(fd)).unwrap_or(WaitsFor::Nothing)
}

impl EpollSet {
    fn new(outer: RawFd) -> Result<EpollSet> {
        // SAFETY: no memory is passed.
        let inner = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if inner < 0 {
            return Err(failed());
        }
        let set = EpollSet {
            inner,
            pid: std::process::id(),
            interests: BTreeMap::new(),
            next: 0,
            full: false,
        };
        control(outer, libc::EPOLL_CTL_ADD, inner, IN, INNER)?;
        Ok(set)
    }

    /// Whether the outer set's number still names the set for which this was made.
    fn is_of(&self, outer: RawFd) -> bool {
        control(outer, libc::EPOLL_CTL_MOD, self.inner, IN, INNER).is_ok()
    }

    /// Updates a registration in the inner set.
    fn realize(&mut self, endpoints: &Endpoints, fd: RawFd, again: bool) -> Result<()> {
        let inner = self.inner;
        let Some(interest) = self.interests.get_mut(&fd) else {
            return Ok(());
        };
        let due = interest.due(state(endpoints, fd));
        let name = u64::from(fd.unsigned_abs());
        match (interest.real, due) {
            (None, Some(events)) => control(inner, libc::EPOLL_CTL_ADD, fd, events, name)?,
            (Some(_), None) => control(inner, libc::EPOLL_CTL_DEL, fd, 0, 0)?,
            (Some(is), Some(events)) if is != events || again => {
                control(inner, libc::EPOLL_CTL_MOD, fd, events, name)?;
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        interest.real = due;
        Ok(())
    }

    /// Collects at most `room` events of the set's endpoints. Returns them, and whether an endpoint
    /// was woken without reason.
    fn collect(&mut self, endpoints: &Endpoints, room: usize) -> Result<(Vec<epoll_event>, bool)> {
        for woken in waited(self.inner, EVENTS_PER_CALL, 0, std::ptr::null())? {
            #[expect(clippy::cast_possible_truncation, reason = "a descriptor's number")]
            let fd = woken.u64 as RawFd;
            if let Some(interest) = self.interests.get_mut(&fd) {
                interest.listed = true;
            }
        }
        let in_turn = self.interests.range(self.next..).chain(self.interests.range(..self.next));
        let listed = in_turn.filter(|(_, interest)| interest.listed);
        let listed: Vec<RawFd> = listed.map(|(fd, _)| *fd).collect();
        let mut events = Vec::new();
        let mut misleading = false;
        for fd in listed {
            if events.len() == room {
                self.next = fd;
                break;
            }
            match self.ask(endpoints, fd) {
                Some(event) => events.push(event),
                None => misleading = true,
            }
        }
        self.full = room > 0 && events.len() == room;
        misleading &= events.is_empty();
        Ok((events, misleading))
    }

    /// Polls a registration, keeps or drops it, and returns its event.
    fn ask(&mut self, endpoints: &Endpoints, fd: RawFd) -> Option<epoll_event> {
        let interest = self.interests.get_mut(&fd)?;
        if interest.is_spent() {
            return None;
        }
        let events = ready(endpoints, fd, interest.wanted()) & (interest.wanted() | ALWAYS);
        interest.listed = events != 0 && interest.events & (EDGE | ONCE) == 0;
        let data = interest.data;
        if events != 0 && interest.events & ONCE != 0 {
            interest.events &= HOW;
        }
        let _ = self.realize(endpoints, fd, false);
        (events != 0).then_some(epoll_event { events, u64: data })
    }
}

impl Drop for EpollSet {
    fn drop(&mut self) {
        // SAFETY: the number belongs to this set.
        unsafe { real::close(self.inner) };
    }
}

/// Implements epoll_ctl(2) on an endpoint.
pub(crate) fn change(
    endpoints: &Endpoints,
    outer: RawFd,
    op: c_int,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Result<()> {
    let mut sets = sets();
    if sets.get(&outer).is_some_and(|set| !set.is_of(outer)) {
        sets.remove(&outer);
    }
    let known = sets.get(&outer).is_some_and(|set| set.interests.contains_key(&fd));
    let exists = |errno| Err(Failure::Os(errno));
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(_)) if known => return exists(rustix::io::Errno::EXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if !known => {
            return exists(rustix::io::Errno::NOENT);
        }
        (libc::EPOLL_CTL_DEL, _) => {
            if let Some(set) = sets.get_mut(&outer) {
                if set.interests.remove(&fd).is_some_and(|was| was.real.is_some()) {
                    control(set.inner, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
                }
            }
            return Ok(());
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(_)) => {}
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return Err(Failure::BadAddress),
        _ => return Err(Failure::Invalid),
    }
    let Some(event) = event else {
        return Err(Failure::BadAddress);
    };
    if !known && !sets.contains_key(&outer) {
        sets.insert(outer, EpollSet::new(outer)?);
        ours::mark_set(outer, true);
    }
    let Some(set) = sets.get_mut(&outer) else {
        return Err(Failure::Broken);
    };
    let queues = match set.interests.get(&fd) {
        Some(interest) => interest.queues,
        None => Queues::of(state(endpoints, fd), event.events),
    };
    let real = set.interests.get(&fd).and_then(|interest| interest.real);
    let mut interest =
        Interest { events: event.events, data: event.u64, queues, listed: false, real };
    interest.listed = ready(endpoints, fd, interest.wanted()) & (interest.wanted() | ALWAYS) != 0;
    set.interests.insert(fd, interest);
    let done = set.realize(endpoints, fd, true);
    if done.is_err() && !known {
        set.interests.remove(&fd);
    }
    done
}

/// Updates the ready lists after a call that may have left an endpoint without bytes, space or a
/// result. They drop it as by a poll. `short`: the call moved less than requested, so an edge after
/// it counts.
pub(crate) fn settle(endpoints: &Endpoints, fd: RawFd, short: bool) {
    if !ours::has_sets() {
        return;
    }
    for set in sets().values_mut() {
        let Some(interest) = set.interests.get_mut(&fd) else {
            continue;
        };
        let edge = interest.events & EDGE != 0;
        if interest.listed && !edge {
            let wanted = interest.wanted();
            interest.listed = ready(endpoints, fd, wanted) & (wanted | ALWAYS) != 0;
        }
        let _ = set.realize(endpoints, fd, edge && short);
    }
}

/// Forgets a number that is closed, or made another file. No lock is taken for a number that is
/// neither an endpoint nor a set: threads of the engine close theirs while they hold locks that
/// [`ready`] takes.
pub(crate) fn forget(fd: RawFd) {
    let is_set = ours::mark_set(fd, false);
    let in_sets = ours::has_sets() && ours::is_marked(fd);
    if !is_set && !in_sets {
        return;
    }
    let mut sets = sets();
    if is_set {
        sets.remove(&fd);
    }
    for set in sets.values_mut() {
        set.interests.remove(&fd);
    }
}

/// Whether a number is a set with endpoints in it.
pub(crate) fn is_set(outer: RawFd) -> bool {
    if !ours::is_set(outer) {
        return false;
    }
    let mut sets = sets();
    let here = std::process::id();
    match sets.get_mut(&outer) {
        Some(set) if set.pid == here => true,
        Some(set) if set.is_of(outer) => {
            set.pid = here;
            true
        }
        _ => {
            sets.remove(&outer);
            ours::mark_set(outer, false);
            false
        }
    }
}

/// Returns events of the system.
fn waited(
    set: RawFd,
    room: usize,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> Result<Vec<epoll_event>> {
    if room == 0 {
        return Ok(Vec::new());
    }
    let mut events = vec![epoll_event { events: 0, u64: 0 }; room.min(EVENTS_PER_CALL)];
    let n = c_int::try_from(events.len()).map_err(|_| Failure::Invalid)?;
    // SAFETY: space for `n` events; the mask is the program's or NULL.
    let rc = unsafe { real::epoll_pwait(set, events.as_mut_ptr(), n, timeout_ms, mask) };
    let count = usize::try_from(rc).map_err(|_| failed())?;
    events.truncate(count);
    Ok(events)
}

/// Returns events of descriptors that are not endpoints.
fn others(set: RawFd, room: usize, ms: c_int, mask: *const sigset_t) -> Result<Vec<epoll_event>> {
    let mut events = waited(set, room, ms, mask)?;
    events.retain(|event| event.u64 != INNER);
    Ok(events)
}

/// Implements epoll_wait(2) on a set with endpoints, for at most `room` events.
pub(crate) fn wait(
    endpoints: &Endpoints,
    outer: RawFd,
    room: usize,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> Result<Vec<epoll_event>> {
    let end = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        let full = sets().get(&outer).is_some_and(|set| set.full);
        let mut events = if full { others(outer, room, 0, mask)? } else { Vec::new() };
        let asked_others = !events.is_empty();
        let (own, misleading) = match sets().get_mut(&outer) {
            Some(set) => set.collect(endpoints, room.saturating_sub(events.len()))?,
            None => (Vec::new(), false),
        };
        events.extend(own);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.map_or(-1, |left| {
            c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
        });
        if misleading {
            std::thread::sleep(CORRECTING);
        }
        let time = if events.is_empty() { left } else { 0 };
        if !asked_others {
            match others(outer, room.saturating_sub(events.len()), time, mask) {
                Ok(others) => events.extend(others),
                Err(_) if !events.is_empty() => {}
                Err(failure) => return Err(failure),
            }
        }
        if !events.is_empty() || left == 0 {
            return Ok(events);
        }
    }
}
