// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls on the endpoints of a domain: posted operations, polls, waits, close.
//!
//! The C functions turn libfabric calls into the argument structs of the engine. Everything runs
//! under the domain lock in the thread of the caller, and nothing blocks.
//!
//! Semantics: fi_endpoint(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_cq(3).

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::slab::Slab;
use scif_ring::copy::Mem;

use crate::base::env::StatsReport;
use crate::base::errno::Errno;
use crate::base::log::{Subsys, warn};
use crate::base::reason::because;
use crate::domain::migrate;
use crate::domain::state::DomainState;
use crate::engine::channel::link_set::{Repeated, TICK_POLLS};
use crate::engine::completions::multi_recv;
use crate::engine::endpoint::{Endpoint, Health};
use crate::engine::fast_path::{self, CompletionSink, DirectPoll};
use crate::engine::parts::Env;
use crate::engine::protocols::{atomic, cm, coll_run, parting, posted_write, recv, send, srx};
use crate::engine::short_poll::{self, Polled};
use crate::engine::types::args::{AtomicArgs, RecvArgs, RmaArgs, SendArgs};
use crate::engine::{connections, loopback, monitor, peek, poison, progress};

/// Size in bytes of the first page, in which programs have no memory: `vm.mmap_min_addr` forbids it
/// unless it is 0.
const MMAP_MIN_ADDR: usize = 4096;

/// Poisons its endpoint when dropped, which happens only during unwinding.
struct Unwound<'a> {
    st: &'a mut DomainState,
    ep: u32,
}

impl Unwound<'_> {
    /// Ends the guard without effect, since no panic has occurred.
    #[inline(always)]
    fn disarm(self) {
        let _kept = ManuallyDrop::new(self);
    }
}

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(e) = self.st.eps.get_mut(self.ep) {
            e.enabled = false;
            e.health = Health::Poisoned;
        }
    }
}

/// Returns an enabled endpoint and the other parts of its domain, unless this is a forked child.
#[inline(always)]
pub(crate) fn split(st: &mut DomainState, ep: u32) -> Result<(&mut Endpoint, Env<'_>), Errno> {
    let (e, env) = enabled(st, ep)?;
    // In a forked child the endpoint, its rings and its doorbell still belong to the parent.
    if e.links.sock.forked() {
        return Err(e.refusal());
    }
    Ok((e, env))
}

/// Returns an enabled endpoint and the other parts of its domain, for a call that has already
/// refused a forked child.
#[inline(always)]
fn enabled(st: &mut DomainState, ep: u32) -> Result<(&mut Endpoint, Env<'_>), Errno> {
    let DomainState { eps, cqs, cntrs, avs, mrs, srxs, .. } = st;
    let e = eps.get_mut(ep).ok_or(fi::FI_EINVAL)?;
    if !e.enabled {
        return Err(e.refusal());
    }
    let env = Env { cqs, cntrs, avs, mrs, srxs };
    Ok((e, env))
}

/// Returns the parts that a call on endpoint `ep` works on, as [`enabled`] does.
///
/// # Errors
/// Errors of [`enabled`], with a logged reason.
#[inline(always)]
pub(crate) fn usable(st: &mut DomainState, ep: u32) -> Result<(&mut Endpoint, Env<'_>), Errno> {
    enabled(st, ep).map_err(not_usable)
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
    because(
        fi::FI_EFAULT,
        format_args!("a buffer lies in the first {MMAP_MIN_ADDR} bytes of memory"),
    )
}

/// Whether a buffer lies where no memory can be mapped. The call then fails, instead of a fault
/// that ends the process. Open MPI 4.1's `cm` sends absolute datatypes (`MPI_BOTTOM`) from address
/// 0, because it loses the displacement. Receive buffers are not checked, since receives are posted
/// on the fast path. Other unmapped addresses fault, as with every provider that copies.
#[inline(always)]
pub(crate) fn is_null_range(iov: &[Mem]) -> bool {
    iov.iter().any(|m| m.addr() < MMAP_MIN_ADDR && !m.is_empty())
}

/// Sends a message. `FI_EAGAIN` if the transmit queue is full. Delivery errors are reported as
/// completions.
#[inline(always)]
pub(crate) fn send(st: &mut DomainState, ep: u32, a: &SendArgs<'_>) -> Result<(), Errno> {
    let unwound = Unwound { st, ep };
    let sent = send_fast(unwound.st, ep, a);
    unwound.disarm();
    // Copies of the arguments, so that the fast path keeps its own in registers.
    if sent? { Ok(()) } else { send_slow(st, ep, &SendArgs { ..*a }) }
}

/// Sends a message on the fast path. Returns false if it did nothing.
#[inline(always)]
fn send_fast(st: &mut DomainState, ep: u32, a: &SendArgs<'_>) -> Result<bool, Errno> {
    let (e, mut env) = usable(st, ep)?;
    if is_null_range(a.iov) {
        return Err(in_no_memory());
    }
    Ok(e.peers.own.is_none() && send::send_small(e, &mut env, a)?)
}

#[inline(never)]
fn send_slow(st: &mut DomainState, ep: u32, a: &SendArgs<'_>) -> Result<(), Errno> {
    guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        let posted = send::post(e, &mut env, a);
        loopback::progress_loopback(e, &mut env);
        posted
    })
}

/// Posts a receive, or peeks at, claims or discards a message.
#[inline(always)]
pub(crate) fn recv(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    let unwound = Unwound { st, ep };
    let posted = recv_fast(unwound.st, ep, a);
    unwound.disarm();
    if posted? { Ok(()) } else { recv_slow(st, ep, &RecvArgs { ..*a }) }
}

/// Posts a receive on the fast path. Returns false if it did nothing.
#[inline(always)]
fn recv_fast(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<bool, Errno> {
    let (e, env) = usable(st, ep)?;
    Ok(a.flags & (fi::FI_PEEK | fi::FI_CLAIM) == 0 && fast_path::post_recv_fast(e, &env, a)?)
}

/// Posts a receive on the slow path only, for contexts of scalable endpoints and queued work.
#[inline(never)]
pub(crate) fn recv_slow(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
            return peek::post_peek(e, &mut env, a);
        }
        recv::post(e, &mut env, a)?;
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
#[inline(always)]
pub(crate) fn rma(st: &mut DomainState, ep: u32, a: &RmaArgs<'_>) -> Result<(), Errno> {
    let unwound = Unwound { st, ep };
    let started = rma_fast(unwound.st, ep, a);
    unwound.disarm();
    if started? {
        return Ok(());
    }
    // Copies of the arguments, so that the fast path keeps its own in registers.
    match (a.iov, a.rma) {
        ([payload], [segment]) => {
            rma_slow(st, ep, &RmaArgs { iov: &[*payload], rma: &[*segment], ..*a })
        }
        _ => rma_slow(st, ep, a),
    }
}

/// Starts a write that repeats the last one. Returns false if it did nothing.
#[inline(always)]
fn rma_fast(st: &mut DomainState, ep: u32, a: &RmaArgs<'_>) -> Result<bool, Errno> {
    let (e, env) = usable(st, ep)?;
    if is_null_range(a.iov) {
        return Err(in_no_memory());
    }
    Ok(e.peers.own.is_none() && posted_write::post_again(e, &env, a)?)
}

#[inline(never)]
fn rma_slow(st: &mut DomainState, ep: u32, a: &RmaArgs<'_>) -> Result<(), Errno> {
    guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        let posted = posted_write::post(e, &mut env, a);
        loopback::progress_loopback(e, &mut env);
        posted
    })
}

/// Starts an atomic operation with a validated datatype and operation.
pub(crate) fn atomic(st: &mut DomainState, ep: u32, a: &AtomicArgs<'_>) -> Result<(), Errno> {
    guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if is_null_range(a.operand) || is_null_range(a.compare) || is_null_range(a.result) {
            return Err(in_no_memory());
        }
        let posted = atomic::post(e, &mut env, a);
        loopback::progress_loopback(e, &mut env);
        posted
    })
}

/// Makes all progress that is possible. Never blocks.
#[inline]
pub(crate) fn progress(st: &mut DomainState, ep: u32) {
    guarded(st, ep, |st| match split(st, ep) {
        Ok((e, mut env)) => {
            progress::progress(e, &mut env);
            let is_relay_due = e.links.take_relay_due();
            if e.links.polls % TICK_POLLS == 0 && env.mrs.has_hot() {
                scif::keep_errno(|| migrate::migrate_candidate(st));
            }
            if is_relay_due {
                relay_others(st, ep);
            }
        }
        Err(_) => end(st, ep),
    });
}

/// Lets the endpoints of the domain except `ep`, which was polled, send to other hosts. Within a
/// host, a record is in a ring of its peer once its operation completes. Between hosts it may wait
/// for the network, or for a message of the peer. A program that polls one context of a scalable
/// endpoint may wait for the effect of what it has sent by another one.
#[cold]
fn relay_others(st: &mut DomainState, ep: u32) {
    if st.eps.len() < 2 {
        return;
    }
    for other in (0..st.eps.bound()).filter(|other| *other != ep) {
        guarded(st, other, |st| {
            let Ok((e, mut env)) = split(st, other) else { return };
            e.links.sock.relay();
            let is_waiting = !e.peers.busy.is_empty() && e.links.sock.network_name().is_some();
            // Receives of a peer provider need its lock.
            if is_waiting && !srx::uses_peer_srx(e, &env) {
                progress::progress(e, &mut env);
            }
        });
    }
}

/// Whether endpoints of the domain other than `polled` soon send to other hosts. No descriptor of
/// `polled` reports what they wait for.
pub(crate) fn are_others_sending(st: &mut DomainState, polled: &[u32]) -> bool {
    let now = scif::now_ns();
    st.eps.iter().any(|(at, e)| !polled.contains(&at) && e.enabled && e.links.sock.is_sending(now))
}

/// Returns a number that changes with every poll of an enabled endpoint.
pub(crate) fn polls(st: &DomainState, ep: u32) -> Option<u32> {
    st.eps.get(ep).filter(|e| e.enabled).map(|e| e.links.polls)
}

/// Makes progress, unless a poll of the rings finds nothing to do but one-sided records. Returns
/// whether it found some.
#[inline]
pub(crate) fn poll(st: &mut DomainState, ep: u32) -> bool {
    let polled = guarded(st, ep, |st| {
        split(st, ep).map_or(Polled::Due, |(e, mut env)| short_poll::poll(e, &mut env))
    });
    if polled == Polled::Due {
        progress(st, ep);
    }
    polled == Polled::OneSided
}

/// Polls the rings, for a call that has already refused a forked child. Returns true if there was
/// nothing to do.
#[inline(always)]
pub(crate) fn poll_empty(st: &mut DomainState, ep: u32) -> bool {
    guarded(st, ep, |st| enabled(st, ep).is_ok_and(|(e, env)| fast_path::poll_empty(e, &env)))
}

/// Repeats a poll of endpoint `ep` that found nothing to do, if no call has changed the domain
/// since.
#[inline(always)]
pub(crate) fn poll_again(eps: &mut Slab<Endpoint>, ep: u32) -> Repeated {
    eps.get_mut(ep).map_or(Repeated::Other, |e| e.links.poll_again())
}

/// Continues a repeated poll of endpoint `ep` at ring `at`, which may hold a record, for a read
/// whose last poll was a direct one.
#[inline(always)]
pub(crate) fn receive_at<D: CompletionSink>(
    st: &mut DomainState,
    (ep, at): (u32, usize),
    cq: u32,
    most: usize,
    to: D,
) -> DirectPoll {
    guarded(st, ep, |st| match enabled(st, ep) {
        Ok((e, mut env)) => fast_path::poll_from(e, &mut env, (cq, at), most, to),
        Err(_) => DirectPoll::Declined,
    })
}

/// See [`fast_path::poll_direct`].
#[inline(always)]
pub(crate) fn poll_direct<D: CompletionSink>(
    st: &mut DomainState,
    ep: u32,
    cq: u32,
    most: usize,
    to: D,
) -> DirectPoll {
    let unwound = Unwound { st, ep };
    let polled = poll_enabled(unwound.st, ep, cq, most, to);
    unwound.disarm();
    polled
}

#[inline(always)]
fn poll_enabled<D: CompletionSink>(
    st: &mut DomainState,
    ep: u32,
    cq: u32,
    most: usize,
    to: D,
) -> DirectPoll {
    let Ok((e, mut env)) = enabled(st, ep) else {
        return DirectPoll::Declined;
    };
    if e.links.is_clock_due(e.links.polls.wrapping_add(1)) {
        let polled = poll_with_timed_work(e, &mut env.again(), cq, most, to);
        if e.links.take_relay_due() {
            relay_others(st, ep);
        }
        return polled;
    }
    fast_path::poll_direct(e, &mut env, cq, most, to)
}

/// Does the timed work, and then polls the rings directly. A poll that receives no message leaves
/// the rest to a full one. So one-sided records of one ring do not hold up the other rings.
#[inline(never)]
fn poll_with_timed_work<D: CompletionSink>(
    e: &mut Endpoint,
    env: &mut Env<'_>,
    cq: u32,
    most: usize,
    to: D,
) -> DirectPoll {
    if env.mrs.has_hot() {
        return DirectPoll::Declined;
    }
    e.links.polls = e.links.polls.wrapping_add(1);
    let needs_full_poll = progress::housekeeping(e, env);
    if e.links.sock.bell().any() {
        e.links.activate_rung();
    }
    // The entries of ended connections come first.
    if env.cqs.get(cq).is_none_or(|cq| !cq.is_empty()) {
        return DirectPoll::Declined;
    }
    match fast_path::poll_direct(e, env, cq, most, to) {
        DirectPoll::Empty | DirectPoll::Busy | DirectPoll::OneSided if needs_full_poll => {
            DirectPoll::Declined
        }
        DirectPoll::Busy | DirectPoll::Declined if !needs_full_poll => {
            // A second look at the network would delay the answer to what the first one found.
            progress::advance(e, env);
            DirectPoll::Progressed
        }
        polled => polled,
    }
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
        monitor::note_sleep(e);
        if e.cm.is_some() {
            if let Ok((e, mut env)) = split(st, ep) {
                cm::progress(e, &mut env);
            }
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
        e.stats.record().set_asleep(false);
        // The sleeper was woken for a reason: poll the rings without delay, and the links first.
        e.links.cancel_poll_delay();
        e.links.expect_events();
    }
}

/// Whether only a peer provider makes progress on this endpoint, because it owns the receives.
pub(crate) fn uses_peer_srx(st: &mut DomainState, ep: u32) -> bool {
    split(st, ep).is_ok_and(|(e, env)| srx::uses_peer_srx(e, &env))
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
            || coll_run::is_collecting(e)
    })
}

/// Whether pending work advances by polls only: a full ring, a connection to retry, or a source to
/// connect to for the first time.
pub(crate) fn wants_poll(st: &DomainState, ep: u32) -> bool {
    let wants = |e: &Endpoint| !e.peers.busy.is_empty() || e.recv.unmet.is_untried();
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

/// Whether the last full poll has handled records of other hosts.
pub(crate) fn has_far_records(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| e.links.has_far_records())
}

/// Notes in the recorder of the endpoint that a thread slept from `began` until now.
pub(crate) fn note_sleep(st: &mut DomainState, ep: u32, began: u64) {
    if let Some(recorder) = st.eps.get_mut(ep).and_then(|e| e.peers.recorder.as_mut()) {
        recorder.slept(began);
    }
}

/// Ends the connections of peers that are still executing an RMA on key slot `slot` after their
/// time limit.
pub(crate) fn evict_accessors(st: &mut DomainState, slot: u32) {
    for ep in 0..st.eps.bound() {
        if let Ok((e, mut env)) = split(st, ep) {
            connections::evict_accessors(e, &mut env, slot);
        }
    }
}

/// Ends accesses of peers on other hosts to removed region `key`, unless they have begun. Returns
/// whether others are left.
pub(crate) fn revoke_from_network(st: &mut DomainState, key: u64) -> bool {
    st.eps.iter_mut().fold(false, |is_any, (_, e)| e.rma_target.network.revoke(key) || is_any)
}

/// Advances accesses of peers on other hosts to a removed region, or ends them if they are `late`.
/// Returns whether any are left.
pub(crate) fn settle_network(st: &mut DomainState, key: u64, late: bool) -> bool {
    let mut is_any = false;
    for ep in 0..st.eps.bound() {
        let is_left = |st: &DomainState| {
            // The accesses are those of the parent process.
            let own = st.eps.get(ep).filter(|e| e.enabled && !e.links.sock.forked());
            own.is_some_and(|e| e.rma_target.network.is_revoking(key))
        };
        if !is_left(st) {
            continue;
        }
        // Receives of a peer provider need its lock.
        if !uses_peer_srx(st, ep) {
            progress(st, ep);
        }
        if late {
            if let Ok((e, mut env)) = split(st, ep) {
                connections::evict_readers(e, &mut env, key);
            }
        }
        is_any |= is_left(st);
    }
    is_any
}

/// Closes the endpoint. Unfinished operations are dropped without completions. Connections are
/// closed gracefully.
pub(crate) fn close(st: &mut DomainState, ep: u32) {
    end(st, ep);
    if let Ok((e, mut env)) = split(st, ep) {
        progress::drain_before_close(e, &mut env);
        let pieces = multi_recv::shared_pieces(e);
        parting::revoke_all(e);
        multi_recv::leave_pieces(e, &mut env, pieces);
    }
    if let Some(mut e) = st.eps.remove(ep) {
        monitor::note_foreign(&mut e);
        let name = format!("{}:{}", e.links.sock.id().node, e.links.sock.id().port);
        if crate::base::env::env().stats == StatsReport::Line {
            let counts = e.links.sock.window_counts();
            let line = e.stats.counters().line(&name, e.peers.met(), counts);
            crate::base::log::stats_line(&line);
        }
    }
}

/// Runs `body`. A panic in it poisons endpoint `ep`. Costs nothing without a panic.
#[inline(always)]
pub(crate) fn guarded<R>(
    st: &mut DomainState,
    ep: u32,
    body: impl FnOnce(&mut DomainState) -> R,
) -> R {
    let unwound = Unwound { st, ep };
    let done = body(unwound.st);
    unwound.disarm();
    done
}

/// Ends the operations of endpoint `ep`, if it is poisoned and they have not ended yet.
#[cold]
pub(crate) fn end(st: &mut DomainState, ep: u32) {
    let DomainState { eps, cqs, cntrs, avs, mrs, srxs, .. } = st;
    let Some(e) = eps.get_mut(ep).filter(|e| e.health == Health::Poisoned) else {
        return;
    };
    // Set first: a second panic ends the attempt, and there is no third.
    e.health = Health::Drained;
    let mut env = Env { cqs, cntrs, avs, mrs, srxs };
    let ended = catch_unwind(AssertUnwindSafe(|| poison::end_everything(e, &mut env)));
    let all = if ended.is_ok() { "all" } else { "some" };
    warn(
        Subsys::EpData,
        format_args!(
            "endpoint {} cannot be used any more after an internal error: {all} of its operations \
            end with FI_EOTHER",
            e.links.sock.id()
        ),
    );
}
