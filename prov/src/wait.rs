// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "answers fi_control through the caller's pointers")]
//! Sleeping until a completion queue or a counter has something: blocking reads, and descriptors that the application polls.
//!
//! Not about what is waited for, and not about event queues, which have no endpoints to progress (`eq`). Nobody loses a
//! wake-up because each wait is: arm the endpoints (peers then wake us), look once more, and only then sleep. What another
//! thread of this process adds in the meantime rings the sleeper's own event. A sleeper has a seat of its own, so that one
//! cannot take the other's signal.
//!
//! Mirrors fi_trywait(3); fi_cq_sread of fi_cq(3); fi_cntr_wait of fi_cntr(3).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{Waiter, cpu_relax_or_yield, now_ns};

use crate::data::{self, EpState};
use crate::domain::{DomainShared, DomainState};
use crate::entry::{self, Errno};
use crate::slab::Slab;

/// How long a blocking call polls before it sleeps: about what falling asleep and waking up costs.
const SPIN_NS: u64 = 20_000;
/// The longest sleep while something is outstanding that no peer rings for.
const TIMER_NAP_NS: u64 = 20_000_000;
/// The longest sleep of all: a wake-up lost to a peer that died in the wrong moment costs a delay, not a hang.
const NAP_NS: u64 = 1_000_000_000;

/// The wait object of a queue or counter, as far as it makes a difference here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitObj {
    /// Nobody may wait.
    None,
    /// Blocking calls only; how is our choice.
    Unspec,
    /// A descriptor for the application to poll.
    Fd,
    /// The same as a list of one descriptor.
    PollFd,
    /// Blocking calls poll and yield.
    Yield,
}

impl WaitObj {
    /// # Errors
    /// `FI_EINVAL` for wait sets, mutexes and unknown objects.
    pub(crate) fn from_c(obj: fi::fi_wait_obj) -> Result<WaitObj, Errno> {
        match obj {
            fi::FI_WAIT_NONE => Ok(WaitObj::None),
            fi::FI_WAIT_UNSPEC => Ok(WaitObj::Unspec),
            fi::FI_WAIT_FD => Ok(WaitObj::Fd),
            fi::FI_WAIT_POLLFD => Ok(WaitObj::PollFd),
            fi::FI_WAIT_YIELD => Ok(WaitObj::Yield),
            _ => Err(fi::FI_EINVAL),
        }
    }

    /// What `FI_GETWAITOBJ` answers: a descriptor is what UNSPEC got.
    pub(crate) fn to_c(self) -> fi::fi_wait_obj {
        match self {
            WaitObj::None => fi::FI_WAIT_NONE,
            WaitObj::Unspec | WaitObj::Fd => fi::FI_WAIT_FD,
            WaitObj::PollFd => fi::FI_WAIT_POLLFD,
            WaitObj::Yield => fi::FI_WAIT_YIELD,
        }
    }

    fn sleeps(self) -> bool {
        matches!(self, WaitObj::Unspec | WaitObj::Fd | WaitObj::PollFd)
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Cq(u32),
    Cntr(u32),
}

/// A place to sleep: endpoints' descriptors and an event of its own.
#[derive(Debug)]
struct Seat {
    waiter: Arc<Waiter>,
    taken: bool,
    /// Its event was signalled and not drained since.
    rung: bool,
}

/// The waiting side of a queue or counter: which endpoints feed it, and who wants to know.
#[derive(Debug)]
pub(crate) struct Waits {
    obj: WaitObj,
    eps: Vec<u32>,
    /// Somebody sleeps or polls the descriptor. Then, and only then, every endpoint in `eps` is armed once for this.
    watched: bool,
    /// The application polls the descriptor of the first seat.
    fd_armed: bool,
    seats: Vec<Seat>,
}

impl Waits {
    /// # Errors
    /// The system's, when there is no descriptor left.
    pub(crate) fn new(obj: WaitObj) -> Result<Waits, Errno> {
        let mut waits = Waits { obj, eps: Vec::new(), watched: false, fd_armed: false, seats: Vec::new() };
        if obj.sleeps() {
            waits.seats.push(Seat { waiter: new_waiter()?, taken: false, rung: false });
        }
        Ok(waits)
    }

    /// For a queue nobody waits on.
    #[cfg(test)]
    pub(crate) fn none() -> Waits {
        Waits { obj: WaitObj::None, eps: Vec::new(), watched: false, fd_armed: false, seats: Vec::new() }
    }

    pub(crate) fn obj(&self) -> WaitObj {
        self.obj
    }

    /// The endpoints that feed this.
    pub(crate) fn endpoints(&self) -> &[u32] {
        &self.eps
    }

    /// Something was added: wakes whoever sleeps.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if self.watched {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        for seat in self.seats.iter_mut().filter(|s| s.taken && !s.rung) {
            seat.rung = true;
            seat.waiter.signal();
        }
    }

    /// Whether a descriptor was handed to the application and is waiting for a wake-up.
    #[inline]
    pub(crate) fn fd_is_armed(&self) -> bool {
        self.fd_armed
    }

    /// The waiter whose descriptor the application may poll.
    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.seats.first().map(|s| &s.waiter)
    }

    /// The descriptor of `FI_GETWAIT`.
    pub(crate) fn raw_fd(&self) -> Option<c_int> {
        self.waiter().map(|w| w.fd().as_raw_fd())
    }

    /// Finds a free seat, or makes one.
    fn take_seat(&mut self, eps: &Slab<EpState>) -> Result<(usize, Arc<Waiter>), Errno> {
        let free = self.seats.iter().position(|s| !s.taken);
        let at = match free {
            Some(at) => at,
            None => {
                let waiter = new_waiter()?;
                for ep in self.eps.iter().filter_map(|ep| eps.get(*ep)) {
                    watch(&waiter, ep.sock.wait_fd())?;
                }
                self.seats.push(Seat { waiter, taken: false, rung: false });
                self.seats.len() - 1
            }
        };
        let seat = self.seats.get_mut(at).ok_or(fi::FI_EINVAL)?;
        seat.sit();
        Ok((at, Arc::clone(&seat.waiter)))
    }

    /// Gives a seat back; true when nobody is left.
    fn leave_seat(&mut self, at: usize) -> bool {
        if let Some(seat) = self.seats.get_mut(at) {
            seat.stand_up();
            if at == 0 && self.fd_armed {
                // The application polls the same descriptor: it has to look, too.
                seat.taken = true;
                seat.rung = true;
                seat.waiter.signal();
            }
        }
        !self.seats.iter().any(|s| s.taken)
    }
}

impl Seat {
    /// Old signals do not count: whoever sits down looks before sleeping.
    fn sit(&mut self) {
        self.taken = true;
        self.rung = false;
        self.waiter.drain();
    }

    fn stand_up(&mut self) {
        if self.rung {
            self.waiter.drain();
        }
        self.rung = false;
        self.taken = false;
    }
}

fn new_waiter() -> Result<Arc<Waiter>, Errno> {
    Waiter::new().map(Arc::new).map_err(|e| entry::errno(&e))
}

fn watch(waiter: &Waiter, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    waiter.add(fd).map_err(|e| entry::errno(&e))
}

/// `FI_GETWAIT` and `FI_GETWAITOBJ` of a queue or counter.
///
/// # Errors
/// `FI_ENODATA`: there is no wait object. `FI_ETOOSMALL`: no room in the list of descriptors. `FI_ENOSYS`: another command.
///
/// # Safety
/// `arg` is null or what the command takes: `int *` or `struct fi_wait_pollfd *`; `enum fi_wait_obj *`.
pub(crate) unsafe fn control(waits: &Waits, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
    match command {
        fi::FI_GETWAITOBJ => {
            // SAFETY: null or room for an enum, by the caller's contract.
            unsafe { entry::put(arg.cast(), waits.obj.to_c()) }
        }
        fi::FI_GETWAIT => {
            let fd = waits.raw_fd().ok_or(fi::FI_ENODATA)?;
            if waits.obj == WaitObj::PollFd {
                // SAFETY: null or a list of descriptors, by the caller's contract.
                return unsafe { poll_list(fd, arg.cast()) };
            }
            // SAFETY: null or room for an int, by the caller's contract.
            unsafe { entry::put(arg.cast(), fd) }
        }
        _ => Err(fi::FI_ENOSYS),
    }
}

/// # Safety
/// `list` is null or a `struct fi_wait_pollfd` with room for as many descriptors as it says.
unsafe fn poll_list(fd: c_int, list: *mut fi::fi_wait_pollfd) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let list = unsafe { list.as_mut() }.ok_or(fi::FI_EINVAL)?;
    let room = std::mem::replace(&mut list.nfds, 1);
    // The list never changes.
    list.change_index = 1;
    if room == 0 {
        return Err(fi::FI_ETOOSMALL);
    }
    // SAFETY: null or room for one, by the caller's contract.
    unsafe { entry::put(list.fd, libc::pollfd { fd, events: libc::POLLIN, revents: 0 }) }
}

/// How many waits want each endpoint armed.
#[derive(Debug, Default)]
pub(crate) struct Arms(Vec<u32>);

impl Arms {
    fn count(&mut self, ep: u32) -> Option<&mut u32> {
        let at = ep as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0.get_mut(at)
    }
}

/// Asks the peers of `ep` to wake us, once more than before.
pub(crate) fn arm_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep) {
        *count += 1;
        // Also when it is armed already: this is the look that precedes the new sleep.
        data::arm(st, ep);
    }
}

/// Takes one [`arm_ep`] back.
pub(crate) fn disarm_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep).filter(|c| **c > 0) {
        *count -= 1;
        if *count == 0 {
            data::disarm(st, ep);
        }
    }
}

/// Endpoint `ep` is gone: its index may come back as another one.
pub(crate) fn forget_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep) {
        *count = 0;
    }
}

#[inline]
fn waits(st: &mut DomainState, target: Target) -> Option<&mut Waits> {
    match target {
        Target::Cq(index) => st.cqs.get_mut(index).map(|cq| &mut cq.waits),
        Target::Cntr(index) => st.cntrs.get_mut(index).map(|cntr| &mut cntr.waits),
    }
}

/// Does `what` for each endpoint that feeds `target`.
#[inline]
fn each_ep(st: &mut DomainState, target: Target, mut what: impl FnMut(&mut DomainState, u32)) {
    let mut at = 0;
    while let Some(ep) = waits(st, target).and_then(|w| w.eps.get(at).copied()) {
        what(st, ep);
        at += 1;
    }
}

/// The waiting side of `target`, and the endpoints beside it.
fn split(st: &mut DomainState, target: Target) -> Option<(&Slab<EpState>, &mut Waits)> {
    let DomainState { eps, cqs, cntrs, .. } = st;
    let waits = match target {
        Target::Cq(index) => &mut cqs.get_mut(index)?.waits,
        Target::Cntr(index) => &mut cntrs.get_mut(index)?.waits,
    };
    Some((eps, waits))
}

/// Lets endpoint `ep` feed `target`; a second time is no error.
///
/// # Errors
/// `FI_EINVAL`: no such object. The system's, when the descriptor cannot be watched.
pub(crate) fn bind_ep(st: &mut DomainState, target: Target, ep: u32) -> Result<(), Errno> {
    let (eps, waits) = split(st, target).ok_or(fi::FI_EINVAL)?;
    let endpoint = eps.get(ep).ok_or(fi::FI_EINVAL)?;
    if waits.eps.contains(&ep) {
        return Ok(());
    }
    for seat in &waits.seats {
        watch(&seat.waiter, endpoint.sock.wait_fd())?;
    }
    waits.eps.push(ep);
    if waits.watched {
        arm_ep(st, ep);
    }
    Ok(())
}

/// Endpoint `ep` goes away.
pub(crate) fn unbind_ep(st: &mut DomainState, target: Target, ep: u32) {
    let Some((eps, waits)) = split(st, target) else { return };
    let Some(at) = waits.eps.iter().position(|e| *e == ep) else { return };
    waits.eps.swap_remove(at);
    let watched = waits.watched;
    if let Some(endpoint) = eps.get(ep) {
        for seat in &waits.seats {
            seat.waiter.remove(endpoint.sock.wait_fd());
        }
    }
    if watched {
        disarm_ep(st, ep);
    }
}

/// Moves everything that can move on the endpoints that feed `target`.
#[inline]
pub(crate) fn progress(st: &mut DomainState, target: Target) {
    st.polls = st.polls.wrapping_add(1);
    each_ep(st, target, data::progress);
}

fn start_watching(st: &mut DomainState, target: Target) {
    let Some(w) = waits(st, target) else { return };
    if std::mem::replace(&mut w.watched, true) {
        each_ep(st, target, data::arm);
    } else {
        each_ep(st, target, arm_ep);
    }
}

fn stop_watching(st: &mut DomainState, target: Target) {
    if waits(st, target).is_some_and(|w| std::mem::replace(&mut w.watched, false)) {
        each_ep(st, target, disarm_ep);
    }
}

fn arm_fd(st: &mut DomainState, target: Target) {
    if let Some(w) = waits(st, target) {
        w.fd_armed = true;
        if let Some(seat) = w.seats.first_mut().filter(|s| !s.taken) {
            seat.sit();
        }
    }
    start_watching(st, target);
}

/// The application is back from polling the descriptor: peers need not wake us any more.
#[cold]
pub(crate) fn disarm_fd(st: &mut DomainState, target: Target) {
    let Some(w) = waits(st, target) else { return };
    if std::mem::take(&mut w.fd_armed) && w.leave_seat(0) {
        stop_watching(st, target);
    }
}

/// Makes the descriptor of `target` ready for polling, unless something is there already. `pending` says whether.
///
/// # Errors
/// `FI_EAGAIN`: there is something to read. `FI_EINVAL`: no wait object.
pub(crate) fn try_wait(
    dom: &DomainShared,
    target: Target,
    pending: impl Fn(&DomainState) -> bool,
) -> Result<(), Errno> {
    let mut guard = dom.gate.lock();
    let st = &mut *guard;
    if waits(st, target).is_none_or(|w| w.seats.is_empty()) {
        return Err(fi::FI_EINVAL);
    }
    disarm_fd(st, target);
    progress(st, target);
    if !pending(st) {
        arm_fd(st, target);
        progress(st, target);
        if !pending(st) {
            return Ok(());
        }
        disarm_fd(st, target);
    }
    Err(fi::FI_EAGAIN)
}

/// Progresses and sleeps until `done` gives something; `None` after `timeout_ms` (negative: never). `done` runs inside the
/// gate, the sleep outside.
///
/// # Errors
/// The system's, when there is no descriptor to sleep on.
pub(crate) fn block<R>(
    dom: &DomainShared,
    target: Target,
    timeout_ms: c_int,
    mut done: impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<Option<R>, Errno> {
    let began = now_ns();
    let deadline = u64::try_from(timeout_ms).ok().map(|ms| began + ms * 1_000_000);
    let mut spin_until = began + SPIN_NS;
    let mut polls = 0;
    loop {
        let sleeps = {
            let mut guard = dom.gate.lock();
            let st = &mut *guard;
            progress(st, target);
            if let Some(result) = done(st) {
                return Ok(Some(result));
            }
            waits(st, target).is_some_and(|w| w.obj.sleeps())
        };
        let now = now_ns();
        let left = deadline.map(|d| d.saturating_sub(now));
        if left == Some(0) {
            return Ok(None);
        }
        if !sleeps || now < spin_until {
            polls += 1;
            cpu_relax_or_yield(polls);
            continue;
        }
        if let Some(result) = nap(dom, target, left, &mut done)? {
            return Ok(Some(result));
        }
        // Woken: what woke us is often the first of several.
        spin_until = now_ns() + SPIN_NS;
        polls = 0;
    }
}

/// One sleep of [`block`].
fn nap<R>(
    dom: &DomainShared,
    target: Target,
    left_ns: Option<u64>,
    done: &mut impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<Option<R>, Errno> {
    let (seat, waiter, nap_ns) = {
        let mut guard = dom.gate.lock();
        let st = &mut *guard;
        let (eps, waits) = split(st, target).ok_or(fi::FI_EINVAL)?;
        let (seat, waiter) = waits.take_seat(eps)?;
        start_watching(st, target);
        progress(st, target);
        if let Some(result) = done(st) {
            leave(st, target, seat);
            return Ok(Some(result));
        }
        let mut timer = false;
        each_ep(st, target, |st, ep| timer |= data::wants_timer(st, ep));
        let longest = if timer { TIMER_NAP_NS } else { NAP_NS };
        (seat, waiter, left_ns.map_or(longest, |left| left.min(longest)))
    };
    let slept = waiter.wait(Some(nap_ns));
    leave(&mut dom.gate.lock(), target, seat);
    slept.map_err(|e| entry::errno(&e))?;
    Ok(None)
}

fn leave(st: &mut DomainState, target: Target, seat: usize) {
    if waits(st, target).is_some_and(|w| w.leave_seat(seat)) {
        stop_watching(st, target);
    }
}
