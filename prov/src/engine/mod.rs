// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Data path of a reliable-datagram endpoint, from a posted operation to its completion.
//!
//! The C thunks (`msg`, `tagged`, `rma`, `atomic`) turn libfabric calls into the argument structs
//! of this module. Completions leave through `CqState` and `CntrState`. Everything runs under the
//! domain lock in the thread of the caller, and nothing blocks.
//!
//! * `endpoint`, `args`, `parts`: state of an endpoint, and what its operations work on
//! * `peer`, `peer_id`, `peer_table`, `peer_sweep`: peers, their numbers and the reuse of these
//! * `cm`: the single connection of a connected endpoint
//! * `tx`: outgoing messages and pending operations
//! * `rx`, `quick`, `matching`, `peek`: incoming messages and tag matching
//! * `multi`: multi-receive buffers
//! * `unexpected`: memory limits of unexpected messages
//! * `shared`: shared receive contexts
//! * `group`: scalable endpoints as sources of messages
//! * `rendezvous`, `streams`, `rndv_select`: large messages, by pull, cooperative copy or fragments
//! * `rma`, `atomic`, `atomic_here`, `atomic_line`: one-sided operations, as initiator and as
//!   target
//! * `migrate`: migration of frequently accessed memory
//! * `coll`: collective operations
//! * `own`: loopback
//! * `deferred`: triggered work
//! * `link_set`, `rx_throttle`: connections and their rings, backpressure
//! * `progress`: polling loop, connection events, failures
//! * `breach`, `parting`: connections that this side ends, and ended ones whose peers still copy
//! * `poison`: state after a panic
//!
//! Semantics: fi_endpoint(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_collective(3),
//! fi_cq(3).

mod access_counts;
mod args;
mod atomic;
mod atomic_here;
mod atomic_line;
mod breach;
pub(crate) mod cm;
pub(crate) mod coll;
mod completion;
pub(crate) mod conn_request;
pub(crate) mod deferred;
mod endpoint;
mod envelope;
mod eviction;
mod group;
pub(crate) mod iov;
mod link_set;
mod matching;
mod meet;
mod migrate;
mod multi;
mod multi_recv;
mod ops;
mod own;
mod parting;
mod parts;
mod peek;
mod peer;
mod peer_conn;
mod peer_failure;
mod peer_id;
mod peer_state;
mod peer_sweep;
mod peer_table;
mod pending;
mod poison;
mod progress;
mod quick;
mod recv_queues;
mod rendezvous;
mod rma;
mod rndv_select;
mod rts;
mod rx;
mod rx_throttle;
pub(crate) mod shared;
mod source_watch;
mod stats;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod tx;
mod unexpected;
mod unmet;
pub(crate) mod wire;

use libfabric_sys as fi;
use scif_ring::copy::Mem;

use crate::base::errno::Errno;
use crate::base::reason::because;
use crate::domain::DomainState;

use args::AWAITS_TARGET;
pub(crate) use args::{AtomicArgs, Effect, EpConfig, RecvArgs, RmaArgs, RmaIov, SendArgs};
pub(crate) use endpoint::EpState;
pub(crate) use parts::Env;
pub(crate) use quick::{Deliver, Queued};
pub(crate) use stats::Stats;

/// Returns an enabled endpoint and the other parts of its domain.
#[inline(always)]
fn split(st: &mut DomainState, ep: u32) -> Result<(&mut EpState, Env<'_>), Errno> {
    let DomainState { eps, cqs, cntrs, avs, mrs, srxs, .. } = st;
    let e = eps.get_mut(ep).ok_or(fi::FI_EINVAL)?;
    // In a forked child the endpoint, its rings and its doorbell still belong to the parent.
    if !e.enabled || e.links.sock.forked() {
        return Err(e.refusal());
    }
    let env = Env { cqs, cntrs, avs, mrs, srxs };
    Ok((e, env))
}

/// Returns the parts that a call on endpoint `ep` works on, as [`split`] does.
///
/// # Errors
/// Errors of [`split`], with a logged reason.
#[inline(always)]
fn usable(st: &mut DomainState, ep: u32) -> Result<(&mut EpState, Env<'_>), Errno> {
    split(st, ep).map_err(not_usable)
}

#[cold]
fn not_usable(errno: Errno) -> Errno {
    match errno {
        fi::FI_EOPBADSTATE => {
            because(errno, format_args!("the endpoint is not enabled (fi_enable)"))
        }
        _ => errno,
    }
}

#[cold]
fn in_no_memory() -> Errno {
    because(fi::FI_EFAULT, format_args!("a buffer lies in the first {LOWEST} bytes of memory"))
}

/// Size in bytes of the first page, in which programs have no memory: `vm.mmap_min_addr` forbids it
/// unless it is 0.
const LOWEST: usize = 4096;

/// Whether a buffer lies where no memory can be mapped. The call then fails, instead of a fault
/// that ends the process. Open MPI 4.1's `cm` sends absolute datatypes (`MPI_BOTTOM`) from address
/// 0, because it loses the displacement. Receive buffers are not checked, since receives are posted
/// on the fast path. Other unmapped addresses fault, as with every provider that copies.
#[inline(always)]
fn nowhere(iov: &[Mem]) -> bool {
    iov.iter().any(|m| m.addr() < LOWEST && !m.is_empty())
}

/// Sends a message. `FI_EAGAIN` if the transmit queue is full. Delivery errors are reported as
/// completions.
#[inline(always)]
pub(crate) fn send(st: &mut DomainState, ep: u32, a: &SendArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if nowhere(a.iov) {
            return Err(in_no_memory());
        }
        let posted = e.post_send(&mut env, a);
        e.loop_back(&mut env);
        posted
    })
}

/// Posts a receive, or peeks at, claims or discards a message.
#[inline(always)]
pub(crate) fn recv(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
            return e.post_peek(&mut env, a);
        }
        if e.post_quick(&mut env, a)? {
            return Ok(());
        }
        e.post_recv(&mut env, a)?;
        hasten(st, ep);
        Ok(())
    })
}

/// Posts a receive on the slow path only, for contexts of scalable endpoints and queued work.
pub(crate) fn recv_generally(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
            return e.post_peek(&mut env, a);
        }
        e.post_recv(&mut env, a)?;
        hasten(st, ep);
        Ok(())
    })
}

/// Wakes the thread of automatic progress if a receive of the endpoint names a source to which it
/// has to connect first.
fn hasten(st: &mut DomainState, ep: u32) {
    if st.eps.get(ep).is_some_and(|e| e.recv.unmet.is_untried()) {
        st.wake_auto();
    }
}

/// Starts an RMA operation.
pub(crate) fn rma(st: &mut DomainState, ep: u32, a: &RmaArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if nowhere(a.iov) {
            return Err(in_no_memory());
        }
        let posted = e.post_rma(&mut env, a);
        e.loop_back(&mut env);
        posted
    })
}

/// Starts an atomic operation with a validated datatype and operation.
pub(crate) fn atomic(st: &mut DomainState, ep: u32, a: &AtomicArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if nowhere(a.operand) || nowhere(a.compare) || nowhere(a.result) {
            return Err(in_no_memory());
        }
        let posted = e.post_atomic(&mut env, a);
        e.loop_back(&mut env);
        posted
    })
}

/// Cancels a triggered operation with this context, or else the oldest receive, tagged ones first.
/// An error entry `FI_ECANCELED` reports it. Succeeds if none is found.
pub(crate) fn cancel(st: &mut DomainState, ep: u32, context: usize) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        if !st.triggers.is_empty() && deferred::cancel(st, ep, context) {
            return Ok(());
        }
        let (e, mut env) = usable(st, ep)?;
        let context = e.noted(context).unwrap_or(context);
        e.cancel_recv(&mut env, context)
    })
}

/// Makes all progress that is possible. Never blocks.
#[inline]
pub(crate) fn progress(st: &mut DomainState, ep: u32) {
    poison::guarded(st, ep, |st| match split(st, ep) {
        Ok((e, mut env)) => {
            e.progress(&mut env);
            if e.links.polls.is_multiple_of(progress::CLOCK_EVERY) && env.mrs.has_hot() {
                scif::keep_errno(|| migrate::move_hot(st));
            }
        }
        Err(_) => poison::end(st, ep),
    });
}

/// Returns a number that changes with every poll of an enabled endpoint.
pub(crate) fn polls(st: &DomainState, ep: u32) -> Option<u32> {
    st.eps.get(ep).filter(|e| e.enabled).map(|e| e.links.polls)
}

/// See [`EpState::glance`].
#[inline(always)]
pub(crate) fn glance(
    st: &mut DomainState,
    ep: u32,
    cq: u32,
    most: usize,
    to: &mut impl Deliver,
) -> usize {
    poison::guarded(st, ep, |st| match split(st, ep) {
        Ok((e, mut env)) => e.glance(&mut env, cq, most, to),
        Err(_) => 0,
    })
}

/// Requests wake-ups from peers. The caller polls once more before it sleeps on the descriptor of
/// the endpoint.
pub(crate) fn arm(st: &mut DomainState, ep: u32) {
    if let Some(e) = st.eps.get_mut(ep) {
        e.links.sock.arm();
        e.links.armed = true;
        // A peer that published before it saw its ring idle rang no doorbell, and a sleeper sweeps
        // no rings.
        e.links.activate_all();
        if e.cm.is_some() {
            cm::settle(st, ep);
        }
    }
}

/// Ends the state that [`arm`] began.
pub(crate) fn disarm(st: &mut DomainState, ep: u32) {
    if let Some(e) = st.eps.get_mut(ep) {
        if !e.cm.as_ref().is_some_and(|cm| cm.is_told_more()) {
            e.links.sock.disarm();
        }
        e.links.armed = false;
        // The sleeper was woken for a reason: poll the rings without delay, and the links first.
        e.links.cancel_poll_delay();
        e.links.last_events_ns = 0;
    }
}

/// Whether only a peer provider makes progress on this endpoint, because it owns the receives.
pub(crate) fn is_another_s(st: &mut DomainState, ep: u32) -> bool {
    split(st, ep).is_ok_and(|(e, env)| e.draws_from_another(&env))
}

/// Whether wake-ups or link events for a sleeper on this endpoint are unhandled.
pub(crate) fn has_wakes(st: &DomainState, ep: u32) -> bool {
    st.eps
        .get(ep)
        .is_some_and(|e| e.links.armed && (e.links.sock.bell().any() || !e.links.events.is_empty()))
}

/// Whether outstanding work needs periodic polls that no doorbell triggers.
pub(crate) fn wants_timer(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| {
        !e.ops.is_empty()
            || !e.rndv.order.is_empty()
            || !e.peers.busy.is_empty()
            || e.recv.directed > 0
            || e.links.sock.has_parked_callers()
            || e.is_collecting()
    })
}

/// Whether pending work advances by polls only: a full ring, a connection to retry, or a source to
/// connect to for the first time.
pub(crate) fn wants_poll(st: &DomainState, ep: u32) -> bool {
    let wants = |e: &EpState| !e.peers.busy.is_empty() || e.recv.unmet.is_untried();
    st.eps.get(ep).is_some_and(wants)
}

/// Whether callers wait for a file descriptor. Only polls serve them.
pub(crate) fn has_parked_callers(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| e.links.sock.has_parked_callers())
}

/// Whether the last poll left work that the next one can do, so that no thread should sleep.
pub(crate) fn has_more(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| e.throttle.more)
}

/// Whether a live, connected peer of any endpoint is executing an RMA on key slot `slot` now.
pub(crate) fn marked(st: &mut DomainState, slot: u32) -> bool {
    st.eps.iter_mut().any(|(_, e)| e.links.conns_accessing(slot).next().is_some())
}

/// Ends the connections of peers that are still executing an RMA on key slot `slot` after their
/// time limit.
pub(crate) fn expel(st: &mut DomainState, slot: u32) {
    for ep in 0..st.eps.bound() {
        if let Ok((e, mut env)) = split(st, ep) {
            e.expel(&mut env, slot);
        }
    }
}

/// Closes the endpoint. Unfinished operations are dropped without completions. Connections are
/// closed gracefully.
pub(crate) fn close(st: &mut DomainState, ep: u32) {
    poison::end(st, ep);
    if let Ok((e, mut env)) = split(st, ep) {
        e.drain_before_close(&mut env);
        let pieces = e.shared_pieces();
        e.let_go();
        e.leave_pieces(&mut env, pieces);
    }
    if let Some(e) = st.eps.remove(ep) {
        let name = format!("{}:{}", e.links.sock.id().node, e.links.sock.id().port);
        if crate::base::env::env().stats {
            crate::base::log::stats_line(&e.stats.line(&name, e.peers.met()));
        }
    }
}
