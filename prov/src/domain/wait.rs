// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleeping until a completion queue or a counter has an event: blocking reads, and descriptors
//! that the application polls.
//!
//! Event queues, which have no endpoints to progress, are in `eq`. No wake-up is lost, because each
//! wait arms the endpoints (peers then send wake-ups), polls once more, and only then sleeps. An
//! event that another thread of this process adds meanwhile signals the sleeper's own eventfd. Each
//! sleeping thread has its own waiter slot, so that one cannot take the other's signal.
//!
//! Mirrors fi_trywait(3); fi_cq_sread of fi_cq(3); fi_cntr_wait of fi_cntr(3).

use std::ffi::c_int;

use libfabric_sys as fi;
use scif::{Woken, cpu_relax_or_yield, now_ns};

use crate::base::errno::{self, Errno};
use crate::domain::bindings::{arm_ep, disarm_ep, each_ep, split, waits};
use crate::domain::state::{DomainShared, DomainState, Target};
use crate::domain::{calls, triggered};
use crate::state::counter::CntrState;
use crate::state::waiters::{MAX_SLEEP_NS, POLL_SLEEP_NS, TIMER_SLEEP_NS};

/// Nanoseconds for which a blocking call polls before it sleeps: about the cost of falling asleep
/// and waking up.
const SPIN_NS: u64 = 20_000;

/// Whether there are entries or changes that the application has not read.
pub(crate) fn has_news(st: &DomainState, target: Target) -> bool {
    match target {
        Target::Cq(index) => st.cqs.get(index).is_some_and(|cq| !cq.is_empty()),
        Target::Cntr(index) => st.cntrs.get(index).is_some_and(CntrState::changed),
    }
}

/// Records that a poll set contains `target`, which cannot be closed meanwhile.
///
/// # Errors
/// `FI_EINVAL`: no such object.
pub(crate) fn hold(st: &mut DomainState, target: Target) -> Result<(), Errno> {
    waits(st, target).ok_or(fi::FI_EINVAL)?.held += 1;
    Ok(())
}

/// Undoes one [`hold`].
pub(crate) fn release(st: &mut DomainState, target: Target) {
    if let Some(waits) = waits(st, target) {
        waits.held = waits.held.saturating_sub(1);
    }
}

/// Makes progress on all endpoints that report to `target`.
#[inline]
pub(crate) fn progress(st: &mut DomainState, target: Target) {
    each_ep(st, target, calls::progress);
}

/// Polls all endpoints that report to `target`. An empty poll costs little, since a program may
/// compute between polls. Returns whether it found one-sided records.
#[inline]
pub(crate) fn poll(st: &mut DomainState, target: Target) -> bool {
    let mut found = false;
    each_ep(st, target, |st, ep| found |= calls::poll(st, ep));
    found
}

/// Polls with [`poll`], and then starts the triggered operations that are due.
#[inline]
pub(crate) fn poll_all(st: &mut DomainState, target: Target) {
    poll(st, target);
    if !st.triggers.is_empty() {
        triggered::run(st);
    }
}

/// Makes progress with [`progress`], and then starts the triggered operations that are due.
pub(crate) fn progress_all(st: &mut DomainState, target: Target) {
    progress(st, target);
    if !st.triggers.is_empty() {
        triggered::run(st);
    }
}

fn start_watching(st: &mut DomainState, target: Target) {
    let Some(w) = waits(st, target) else { return };
    if std::mem::replace(&mut w.watched, true) {
        each_ep(st, target, calls::arm);
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
        if let Some(slot) = w.slots.first_mut().filter(|s| !s.taken) {
            slot.acquire();
        }
    }
    start_watching(st, target);
}

/// Disarms the endpoints after the application polled the descriptor, so that peers need not send
/// wake-ups.
#[cold]
pub(crate) fn disarm_fd(st: &mut DomainState, target: Target) {
    let Some(w) = waits(st, target) else { return };
    if std::mem::take(&mut w.fd_armed) && w.release(0) {
        stop_watching(st, target);
    }
}

/// Prepares the descriptor of `target` for polling, unless `pending` reports an unread entry.
///
/// # Errors
/// `FI_EAGAIN`: there is an entry to read, or an operation that needs polling. `FI_EINVAL`: no wait
/// object.
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
        !pending(st)
            && !must_poll(st, target)
            && !has_more(st, target)
            && !has_parked_callers(st, target)
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

/// Whether an operation waits for which no peer sends a wake-up: a thread that sleeps on a
/// descriptor has no timer.
fn must_poll(st: &mut DomainState, target: Target) -> bool {
    let mut must = st.eps.len() > 1 && {
        let polled = waits(st, target).map_or(Vec::new(), |waits| waits.endpoints().to_vec());
        calls::are_others_sending(st, &polled)
    };
    each_ep(st, target, |st, ep| must |= calls::wants_poll(st, ep));
    must
}

/// Whether a caller waits for a descriptor at an endpoint that reports to `target`. Such a wait
/// ends within `FI_SCIF_CONNECT_TIMEOUT`.
fn has_parked_callers(st: &mut DomainState, target: Target) -> bool {
    let mut parked = false;
    each_ep(st, target, |st, ep| parked |= calls::has_parked_callers(st, ep));
    parked
}

/// Whether the last progress stopped early: unread records remain, for which no peer rings the
/// doorbell.
fn has_more(st: &mut DomainState, target: Target) -> bool {
    let mut more = false;
    each_ep(st, target, |st, ep| more |= calls::has_more(st, ep));
    more
}

/// Makes progress and sleeps until `done` returns a result; `None` after `timeout_ms` (negative:
/// never).
///
/// `done` is called with the domain lock, and the sleep is outside of it. A signal that the program
/// handles ends a wait on a queue like a timeout. It does not end a wait on a counter, since
/// fi_cntr_wait has no result for it.
///
/// # Errors
/// Errors of the system, when there is no descriptor to sleep on.
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
        match sleep_once(dom, target, left, &mut done)? {
            OneSleep::Done(result) => return Ok(Some(result)),
            OneSleep::Interrupted => {
                let mut guard = dom.gate.lock();
                progress_all(&mut guard, target);
                return Ok(done(&mut guard));
            }
            OneSleep::Busy | OneSleep::Woken | OneSleep::Late => {}
        }
        // The event that woke the thread is often the first of several.
        spin_until = now_ns() + SPIN_NS;
        polls = 0;
    }
}

/// Outcome of a short sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// No sleep.
    Not,
    /// Sleep ended by an event.
    Some,
    /// Sleep of full length.
    Whole,
}

/// Sleeps for at most `ns` nanoseconds, until `done` returns a result, in a call that need not
/// wait. Does not sleep while a ring is full, a connection is being opened, or records are unread.
///
/// # Errors
/// Errors of the system, when there is no descriptor to sleep on.
pub(crate) fn nap_for<R>(
    dom: &DomainShared,
    target: Target,
    ns: u64,
    mut done: impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<(Option<R>, WaitOutcome), Errno> {
    if must_poll(&mut dom.gate.lock(), target) {
        return Ok((None, WaitOutcome::Not));
    }
    let slept = match sleep_once(dom, target, Some(ns), &mut done)? {
        OneSleep::Done(result) => return Ok((Some(result), WaitOutcome::Not)),
        OneSleep::Busy => return Ok((None, WaitOutcome::Not)),
        OneSleep::Woken | OneSleep::Interrupted => WaitOutcome::Some,
        OneSleep::Late => WaitOutcome::Whole,
    };
    let mut guard = dom.gate.lock();
    progress_all(&mut guard, target);
    Ok((done(&mut guard), slept))
}

/// Outcome of one sleep.
enum OneSleep<R> {
    /// Result found before it began.
    Done(R),
    /// No sleep, because unread records remain.
    Busy,
    /// Sleep ended by a signal that the program handles.
    Interrupted,
    Woken,
    Late,
}

/// Arms the endpoints, polls once more, and sleeps once.
fn sleep_once<R>(
    dom: &DomainShared,
    target: Target,
    left_ns: Option<u64>,
    done: &mut impl FnMut(&mut DomainState) -> Option<R>,
) -> Result<OneSleep<R>, Errno> {
    let (slot, waiter, sleep_ns) = {
        let mut guard = dom.gate.lock();
        let st = &mut *guard;
        let (eps, waits) = split(st, target).ok_or(fi::FI_EINVAL)?;
        let (slot, waiter) = waits.acquire(|ep| {
            let ep = eps.get(ep).filter(|ep| ep.enabled)?;
            Some(ep.links.sock.wait_fd())
        })?;
        start_watching(st, target);
        progress_all(st, target);
        if let Some(result) = done(st) {
            leave(st, target, slot);
            return Ok(OneSleep::Done(result));
        }
        if has_more(st, target) {
            leave(st, target, slot);
            return Ok(OneSleep::Busy);
        }
        let mut timer = false;
        each_ep(st, target, |st, ep| timer |= calls::wants_timer(st, ep));
        let longest = match timer {
            _ if must_poll(st, target) => POLL_SLEEP_NS,
            true => TIMER_SLEEP_NS,
            false => MAX_SLEEP_NS,
        };
        (slot, waiter, left_ns.map_or(longest, |left| left.min(longest)))
    };
    let began = now_ns();
    let slept = waiter.wait_or_interrupt(Some(sleep_ns));
    let mut guard = dom.gate.lock();
    leave(&mut guard, target, slot);
    each_ep(&mut guard, target, |st, ep| calls::note_sleep(st, ep, began));
    drop(guard);
    match (slept.map_err(|e| errno::errno(&e))?, target) {
        (Woken::Interrupted, Target::Cq(_)) => Ok(OneSleep::Interrupted),
        (Woken::Late, _) => Ok(OneSleep::Late),
        _ => Ok(OneSleep::Woken),
    }
}

fn leave(st: &mut DomainState, target: Target, slot: usize) {
    if waits(st, target).is_some_and(|w| w.release(slot)) {
        stop_watching(st, target);
    }
}
