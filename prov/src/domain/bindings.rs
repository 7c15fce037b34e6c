// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints that report to a queue or counter, and the wake-ups that their peers send.
//!
//! Mirrors fi_ep_bind of fi_endpoint(3).

use libfabric_sys as fi;
use scif::slab::Slab;

use crate::base::errno::Errno;
use crate::domain::calls;
use crate::domain::state::{DomainState, Target};
use crate::engine::endpoint::Endpoint;
use crate::state::waiters::{WaitState, watch};

/// Requests wake-ups from the peers of `ep`, for one more wait.
pub(crate) fn arm_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep) {
        *count += 1;
        // Armed again even if it is armed: this also polls it before the new sleep.
        calls::arm(st, ep);
    }
}

/// Undoes one [`arm_ep`].
pub(crate) fn disarm_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep).filter(|c| **c > 0) {
        *count -= 1;
        if *count == 0 {
            calls::disarm(st, ep);
        }
    }
}

/// Resets the count of a closed endpoint, whose index may be reused.
pub(crate) fn forget_ep(st: &mut DomainState, ep: u32) {
    if let Some(count) = st.arms.count(ep) {
        *count = 0;
    }
}

#[inline]
pub(crate) fn waits(st: &mut DomainState, target: Target) -> Option<&mut WaitState> {
    match target {
        Target::Cq(index) => st.cqs.get_mut(index).map(|cq| &mut cq.waits),
        Target::Cntr(index) => st.cntrs.get_mut(index).map(|cntr| &mut cntr.waits),
    }
}

/// Calls `what` for each endpoint that reports to `target`.
#[inline]
pub(crate) fn each_ep(
    st: &mut DomainState,
    target: Target,
    mut call: impl FnMut(&mut DomainState, u32),
) {
    let mut at = 0;
    while let Some(ep) = waits(st, target).and_then(|w| w.eps.get(at).copied()) {
        call(st, ep);
        at += 1;
    }
}

/// Returns the wait state of `target`, and the endpoints beside it.
pub(crate) fn split(
    st: &mut DomainState,
    target: Target,
) -> Option<(&Slab<Endpoint>, &mut WaitState)> {
    let DomainState { eps, cqs, cntrs, .. } = st;
    let waits = match target {
        Target::Cq(index) => &mut cqs.get_mut(index)?.waits,
        Target::Cntr(index) => &mut cntrs.get_mut(index)?.waits,
    };
    Some((eps, waits))
}

/// Makes endpoint `ep` report to `target`; repeating it is no error. An enabled endpoint wakes the
/// threads sleeping on `target` at once, any other from [`watch_ep`] on.
///
/// # Errors
/// `FI_EINVAL`: no such object. Errors of the system, when the descriptor of an enabled endpoint
/// cannot be watched.
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
    if enabled {
        if let Err(err) = watch_ep(st, ep) {
            unbind_ep(st, target, ep);
            return Err(err);
        }
    }
    Ok(())
}

/// Makes endpoint `ep`, which is about to be enabled, wake the threads sleeping on its queues and
/// counters.
///
/// # Errors
/// `FI_EINVAL`: no such endpoint. Errors of the system, when the descriptor cannot be watched.
pub(crate) fn watch_ep(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    let DomainState { eps, cqs, cntrs, .. } = st;
    let endpoint = eps.get(ep).ok_or(fi::FI_EINVAL)?;
    let queues = cqs.iter().map(|(_, cq)| &cq.waits);
    let counters = cntrs.iter().map(|(_, cntr)| &cntr.waits);
    for waits in queues.chain(counters).filter(|w| w.eps.contains(&ep)) {
        for slot in &waits.slots {
            // Left from an attempt to enable it that failed half-way.
            slot.waiter.remove(endpoint.links.sock.wait_fd());
            let watched = watch(&slot.waiter, endpoint.links.sock.wait_fd());
            // Waiter slots of short sleeps may miss a wake-up, since these sleeps soon time out.
            if waits.obj.sleeps() {
                watched?;
            }
        }
    }
    Ok(())
}

/// Wakes the threads sleeping on queues and counters of endpoint `ep`, because another thread has
/// consumed its wake-ups without handling them.
pub(crate) fn notify_sleepers(st: &mut DomainState, ep: u32) {
    let DomainState { cqs, cntrs, .. } = st;
    let queues = cqs.iter_mut().map(|(_, cq)| &mut cq.waits);
    let counters = cntrs.iter_mut().map(|(_, cntr)| &mut cntr.waits);
    for waits in queues.chain(counters).filter(|w| w.eps.contains(&ep)) {
        waits.notify();
    }
}

/// Makes every endpoint of the domain, including later ones, report to counter `cntr`. On an error
/// no endpoint is added.
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

/// Whether every endpoint of the domain reports to `target`.
#[cfg(test)]
pub(crate) fn is_wide(st: &DomainState, target: Target) -> bool {
    match target {
        Target::Cq(_) => false,
        Target::Cntr(index) => st.cntrs.get(index).is_some_and(|c| c.waits.is_wide()),
    }
}

/// Makes a new endpoint report to the counters to which every endpoint reports.
pub(crate) fn bind_wide(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    for cntr in 0..st.cntrs.bound() {
        if st.cntrs.get(cntr).is_some_and(|c| c.waits.is_wide()) {
            bind_ep(st, Target::Cntr(cntr), ep)?;
        }
    }
    Ok(())
}

/// Unbinds every endpoint from a counter that is closed.
pub(crate) fn narrow(st: &mut DomainState, cntr: u32) {
    for ep in 0..st.eps.bound() {
        unbind_ep(st, Target::Cntr(cntr), ep);
    }
}

/// Makes endpoint `ep` no longer report to `target`.
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
        for slot in &waits.slots {
            slot.waiter.remove(endpoint.links.sock.wait_fd());
        }
    }
    if watched {
        disarm_ep(st, ep);
    }
}
