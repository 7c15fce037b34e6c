// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleeping until a completion queue or a counter has something: blocking reads, and descriptors that the application polls.
//!
//! Not about what is waited for, and not about event queues, which have no endpoints to progress (`eq`). Nobody loses a
//! wake-up because each wait is: arm the endpoints (peers then wake us), look once more, and only then sleep. What another
//! thread of this process adds in the meantime rings the sleeper's own event. A sleeper has a seat of its own, so that one
//! cannot take the other's signal.
//!
//! Mirrors fi_trywait(3); fi_cq_sread of fi_cq(3); fi_cntr_wait of fi_cntr(3).

mod seats;
pub(crate) mod set;

use std::ffi::c_int;

use libfabric_sys as fi;
use scif::{Woken, cpu_relax_or_yield, now_ns};

use crate::cntr::CntrState;
use crate::data::{self, EpState, deferred};
use crate::domain::{DomainShared, DomainState};
use crate::entry::{self, Errno};
use crate::slab::Slab;

use seats::watch;
pub(crate) use seats::{WaitObj, Waits, control, poll_list};

/// How long a blocking call polls before it sleeps: about what falling asleep and waking up costs.
const SPIN_NS: u64 = 20_000;
/// The longest sleep while something is outstanding that no peer rings for.
const TIMER_NAP_NS: u64 = 20_000_000;
/// The same while a ring is full or a connection is to be tried again.
const POLL_NAP_NS: u64 = 200_000;
/// The longest sleep of all: a wake-up lost to a peer that died in the wrong moment costs a delay, not a hang.
const NAP_NS: u64 = 1_000_000_000;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Cq(u32),
    Cntr(u32),
}

/// Whether there is something that the application has not read or seen.
pub(crate) fn has_news(st: &DomainState, target: Target) -> bool {
    match target {
        Target::Cq(index) => st.cqs.get(index).is_some_and(|cq| !cq.is_empty()),
        Target::Cntr(index) => st.cntrs.get(index).is_some_and(CntrState::changed),
    }
}

/// A poll set takes `target` in: it cannot be closed meanwhile.
///
/// # Errors
/// `FI_EINVAL`: no such object.
pub(crate) fn hold(st: &mut DomainState, target: Target) -> Result<(), Errno> {
    waits(st, target).ok_or(fi::FI_EINVAL)?.held += 1;
    Ok(())
}

/// Takes one [`hold`] back.
pub(crate) fn release(st: &mut DomainState, target: Target) {
    if let Some(waits) = waits(st, target) {
        waits.held = waits.held.saturating_sub(1);
    }
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

/// Lets endpoint `ep` feed `target`; a second time is no error. An enabled endpoint wakes sleepers of `target` at once, another
/// one from [`watch_ep`] on.
///
/// # Errors
/// `FI_EINVAL`: no such object. The system's, when the descriptor of an enabled endpoint cannot be watched.
pub(crate) fn bind_ep(st: &mut DomainState, target: Target, ep: u32) -> Result<(), Errno> {
    let (eps, waits) = split(st, target).ok_or(fi::FI_EINVAL)?;
    let enabled = eps.get(ep).ok_or(fi::FI_EINVAL)?.enabled;
    if waits.eps.contains(&ep) {
        return Ok(());
    }
    waits.eps.push(ep);
    if waits.watched {
        arm_ep(st, ep);
    }
    if enabled && let Err(err) = watch_ep(st, ep) {
        unbind_ep(st, target, ep);
        return Err(err);
    }
    Ok(())
}

/// Endpoint `ep` is about to be enabled: whoever sleeps on what it feeds is woken by it from now on.
///
/// # Errors
/// `FI_EINVAL`: no such endpoint. The system's, when the descriptor cannot be watched.
pub(crate) fn watch_ep(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    let DomainState { eps, cqs, cntrs, .. } = st;
    let endpoint = eps.get(ep).ok_or(fi::FI_EINVAL)?;
    let queues = cqs.iter().map(|(_, cq)| &cq.waits);
    let counters = cntrs.iter().map(|(_, cntr)| &cntr.waits);
    for waits in queues.chain(counters).filter(|w| w.eps.contains(&ep)) {
        for seat in &waits.seats {
            // Left from an enabling that failed half-way.
            seat.waiter.remove(endpoint.sock.wait_fd());
            let watched = watch(&seat.waiter, endpoint.sock.wait_fd());
            // A nap is over soon, also where nothing can end it.
            if waits.obj.sleeps() {
                watched?;
            }
        }
    }
    Ok(())
}

/// The wake-ups of endpoint `ep` were taken by another thread, which does not look what they were for: whoever sleeps on
/// what it feeds has to.
pub(crate) fn rouse(st: &mut DomainState, ep: u32) {
    let DomainState { cqs, cntrs, .. } = st;
    let queues = cqs.iter_mut().map(|(_, cq)| &mut cq.waits);
    let counters = cntrs.iter_mut().map(|(_, cntr)| &mut cntr.waits);
    for waits in queues.chain(counters).filter(|w| w.eps.contains(&ep)) {
        waits.notify();
    }
}

/// Lets every endpoint of the domain feed counter `cntr`, those to come included: all of them, or none more than before.
///
/// # Errors
/// See [`bind_ep`].
pub(crate) fn widen(st: &mut DomainState, cntr: u32) -> Result<(), Errno> {
    let target = Target::Cntr(cntr);
    let before = waits(st, target).ok_or(fi::FI_EINVAL)?.eps.clone();
    for ep in 0..st.eps.bound() {
        if st.eps.get(ep).is_none() {
            continue;
        }
        if let Err(err) = bind_ep(st, target, ep) {
            for added in (0..ep).filter(|ep| !before.contains(ep)) {
                unbind_ep(st, target, added);
            }
            return Err(err);
        }
    }
    waits(st, target).ok_or(fi::FI_EINVAL)?.wide = true;
    Ok(())
}

/// Whether every endpoint of the domain feeds `target`.
#[cfg(test)]
pub(crate) fn is_wide(st: &DomainState, target: Target) -> bool {
    match target {
        Target::Cq(_) => false,
        Target::Cntr(index) => st.cntrs.get(index).is_some_and(|c| c.waits.is_wide()),
    }
}

/// Lets a new endpoint feed what every endpoint feeds.
///
/// # Errors
/// See [`bind_ep`].
pub(crate) fn bind_wide(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    for cntr in 0..st.cntrs.bound() {
        if st.cntrs.get(cntr).is_some_and(|c| c.waits.is_wide()) {
            bind_ep(st, Target::Cntr(cntr), ep)?;
        }
    }
    Ok(())
}

/// Takes every endpoint from a counter that is closed.
pub(crate) fn narrow(st: &mut DomainState, cntr: u32) {
    for ep in 0..st.eps.bound() {
        unbind_ep(st, Target::Cntr(cntr), ep);
    }
}

/// Endpoint `ep` goes away.
pub(crate) fn unbind_ep(st: &mut DomainState, target: Target, ep: u32) {
    let Some((eps, waits)) = split(st, target) else {
        return;
    };
    let Some(at) = waits.eps.iter().position(|e| *e == ep) else {
        return;
    };
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
    each_ep(st, target, data::progress);
}

/// [`progress`], and then what waits for counters.
pub(crate) fn progress_all(st: &mut DomainState, target: Target) {
    progress(st, target);
    if !st.triggers.is_empty() {
        deferred::run(st);
    }
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
    if waits(st, target).is_none_or(|w| w.waiter().is_none()) {
        return Err(fi::FI_EINVAL);
    }
    disarm_fd(st, target);
    progress_all(st, target);
    let idle = |st: &mut DomainState| {
        !pending(st) && !must_poll(st, target) && !has_more(st, target) && !has_parked_callers(st, target)
    };
    if idle(st) {
        arm_fd(st, target);
        progress_all(st, target);
        if idle(st) {
            return Ok(());
        }
        disarm_fd(st, target);
    }
    Err(fi::FI_EAGAIN)
}

/// Whether something waits that no peer will wake us for: whoever sleeps on a descriptor has no timer.
fn must_poll(st: &mut DomainState, target: Target) -> bool {
    let mut must = false;
    each_ep(st, target, |st, ep| must |= data::wants_poll(st, ep));
    must
}

/// Whether a caller waits for a descriptor at an endpoint that feeds `target`. Such a wait ends within
/// `FI_SCIF_CONNECT_TIMEOUT`.
fn has_parked_callers(st: &mut DomainState, target: Target) -> bool {
    let mut parked = false;
    each_ep(st, target, |st, ep| parked |= data::has_parked_callers(st, ep));
    parked
}

/// Whether the last progress stopped early: what is left is in our hands, and no peer rings for it.
fn has_more(st: &mut DomainState, target: Target) -> bool {
    let mut more = false;
    each_ep(st, target, |st, ep| more |= data::has_more(st, ep));
    more
}

/// Progresses and sleeps until `done` gives something; `None` after `timeout_ms` (negative: never). `done` runs inside the
/// gate, the sleep outside. A signal that the program handles ends the sleep on a queue, as `timeout_ms` does; on a counter
/// it does not, for fi_cntr_wait has no answer that says so.
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
            progress_all(st, target);
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
        match nap(dom, target, left, &mut done)? {
            Nap::Done(result) => return Ok(Some(result)),
            Nap::Interrupted => {
                let mut guard = dom.gate.lock();
                progress_all(&mut guard, target);
                return Ok(done(&mut guard));
            }
            Nap::Busy | Nap::Woken | Nap::Late => {}
        }
        // Woken: what woke us is often the first of several.
        spin_until = now_ns() + SPIN_NS;
        polls = 0;
    }
}

/// How long a short sleep took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// There was none.
    Not,
    /// Somebody ended it.
    Some,
    /// As long as it could.
    Whole,
}

/// A sleep of at most `ns` in a call that need not wait, until `done` gives something; none while a ring is full, a connection
/// is being made, or something is left to do.
///
/// # Errors
/// The system's, when there is no descriptor to sleep on.
pub(crate) fn nap_for<R>(
    dom: &DomainShared,
    target: Target,
    ns: u64,
    mut done: impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<(Option<R>, Slept), Errno> {
    if must_poll(&mut dom.gate.lock(), target) {
        return Ok((None, Slept::Not));
    }
    let slept = match nap(dom, target, Some(ns), &mut done)? {
        Nap::Done(result) => return Ok((Some(result), Slept::Not)),
        Nap::Busy => return Ok((None, Slept::Not)),
        Nap::Woken | Nap::Interrupted => Slept::Some,
        Nap::Late => Slept::Whole,
    };
    let mut guard = dom.gate.lock();
    progress_all(&mut guard, target);
    Ok((done(&mut guard), slept))
}

/// How one sleep ended.
enum Nap<R> {
    /// Before it began.
    Done(R),
    /// The same: there is something left to do.
    Busy,
    /// By a signal that the program handles.
    Interrupted,
    Woken,
    Late,
}

/// One sleep: armed, after one more look.
fn nap<R>(
    dom: &DomainShared,
    target: Target,
    left_ns: Option<u64>,
    done: &mut impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<Nap<R>, Errno> {
    let (seat, waiter, nap_ns) = {
        let mut guard = dom.gate.lock();
        let st = &mut *guard;
        let (eps, waits) = split(st, target).ok_or(fi::FI_EINVAL)?;
        let (seat, waiter) = waits.take_seat(eps)?;
        start_watching(st, target);
        progress_all(st, target);
        if let Some(result) = done(st) {
            leave(st, target, seat);
            return Ok(Nap::Done(result));
        }
        if has_more(st, target) {
            leave(st, target, seat);
            return Ok(Nap::Busy);
        }
        let mut timer = false;
        each_ep(st, target, |st, ep| timer |= data::wants_timer(st, ep));
        let longest = match timer {
            _ if must_poll(st, target) => POLL_NAP_NS,
            true => TIMER_NAP_NS,
            false => NAP_NS,
        };
        (seat, waiter, left_ns.map_or(longest, |left| left.min(longest)))
    };
    let slept = waiter.wait_or_interrupt(Some(nap_ns));
    leave(&mut dom.gate.lock(), target, seat);
    match (slept.map_err(|e| entry::errno(&e))?, target) {
        (Woken::Interrupted, Target::Cq(_)) => Ok(Nap::Interrupted),
        (Woken::Late, _) => Ok(Nap::Late),
        _ => Ok(Nap::Woken),
    }
}

fn leave(st: &mut DomainState, target: Target, seat: usize) {
    if waits(st, target).is_some_and(|w| w.leave_seat(seat)) {
        stop_watching(st, target);
    }
}
