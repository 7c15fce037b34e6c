// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The data path of a reliable-datagram endpoint: what happens between a posted operation and its completion.
//!
//! The C thunks (`msg`, `tagged`, `rma`, `atomic`) turn libfabric calls into the argument structs here; completions leave
//! through `CqState` and `CntrState`. Everything runs under the domain's gate, in the caller's thread; nothing blocks.
//!
//! * `peer`: who we talk to, and over which connection
//! * `numbers`: the numbers of peers, and when another one gets them
//! * `cm`: the one connection of a connected endpoint
//! * `tx`: messages out, and operations that wait for room
//! * `rx`, `matching`, `peek`: messages in, and the receives they meet
//! * `multi`: buffers of many messages
//! * `unexpected`: how much is kept of messages before their receives
//! * `shared`: receives that several endpoints draw from
//! * `group`: scalable endpoints as sources of messages
//! * `rendezvous`, `streams`: large messages, copied once, by either side or both, or through the ring
//! * `rma`, `atomic`, `atomic_here`, `atomic_line`: one-sided operations, as initiator and as target
//! * `migrate`: memory that peers use hard
//! * `coll`: collective operations
//! * `own`: what an endpoint sends to itself
//! * `deferred`: operations that wait for a counter
//! * `progress`: the polling loop, link events, deaths
//! * `breach`, `parting`: connections that we end, and those whose peers are still copying
//! * `poison`: what a panic leaves behind
//!
//! Semantics: fi_endpoint(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_collective(3), fi_cq(3).

mod atomic;
mod atomic_here;
mod atomic_line;
mod breach;
pub(crate) mod cm;
pub(crate) mod coll;
pub(crate) mod deferred;
mod group;
pub(crate) mod iov;
mod matching;
mod meet;
mod migrate;
mod multi;
mod numbers;
mod ops;
mod own;
mod parting;
mod peek;
mod peer;
mod peer_failure;
mod poison;
mod progress;
mod quick;
mod rendezvous;
mod rma;
mod route;
mod rx;
pub(crate) mod shared;
mod stats;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod tx;
mod unexpected;
pub(crate) mod wire;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{ConnId, Endpoint, LinkEvent, PortId};
use scif_ring::copy::Mem;

use crate::av::AvState;
use crate::cntr::CntrState;
use crate::cq::CqState;
use crate::domain::DomainState;
use crate::mr::MrTable;
use crate::reason::because;
use crate::slab::Slab;

use matching::{Arrived, Queue};
use multi::Multi;
use ops::Ops;
use peer::Peer;
pub(crate) use quick::{Deliver, Queued};
use rendezvous::Incoming;
pub(crate) use stats::Stats;

/// A positive libfabric error number (`FI_E*`).
pub(crate) type Errno = i32;

/// What an endpoint was opened with and bound to.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpConfig {
    pub caps: u64,
    /// Orders the application relies on, of its transmit attributes.
    pub msg_order: u64,
    pub tx_size: usize,
    pub rx_size: usize,
    pub inject_size: usize,
    /// Index of the bound address vector.
    pub av: u32,
    pub tx_cq: Option<u32>,
    pub rx_cq: Option<u32>,
    pub cntr_send: Option<u32>,
    pub cntr_recv: Option<u32>,
    pub cntr_read: Option<u32>,
    pub cntr_write: Option<u32>,
    pub cntr_remote_read: Option<u32>,
    pub cntr_remote_write: Option<u32>,
    /// Room below which a multi-receive buffer is given back.
    pub min_multi_recv: usize,
    pub rma_event: bool,
    /// What our host goes by in addresses.
    pub host: u32,
    /// Report source addresses (`FI_SOURCE`).
    pub source: bool,
    /// Honour source addresses of receives (`FI_DIRECTED_RECV`).
    pub directed: bool,
    /// `FI_COMPLETION` when every receive completes, because the queue was not bound selectively; else 0.
    pub rx_always: u64,
    /// The shared receive context it draws from.
    pub srx: Option<u32>,
    /// Bytes in front of every message that are not the message's; counted in lengths of received ones.
    pub prefix: usize,
    /// That context is another provider's, which is asked only when it lets us make progress.
    pub peer: bool,
    /// Has one peer, by connection (`FI_EP_MSG`).
    pub connected: bool,
    /// Promises no more than to send (`FI_EP_DGRAM`): who posts a message waits for no receive.
    pub datagram: bool,
    /// The receive context of a scalable endpoint, for which a source is a whole endpoint (`group`).
    pub grouped: bool,
    /// With every message something is to be looked at that the shortest way does not look at.
    pub careful: bool,
}

impl EpConfig {
    /// Whether the endpoint was bound to this counter.
    pub(crate) fn counts_in(&self, cntr: u32) -> bool {
        [
            self.cntr_send,
            self.cntr_recv,
            self.cntr_read,
            self.cntr_write,
            self.cntr_remote_read,
            self.cntr_remote_write,
        ]
        .contains(&Some(cntr))
    }
}

/// Completion levels that wait for the target: the message has met its receive and lies in its buffer, or was discarded; the
/// access is done. For a message `FI_DELIVERY_COMPLETE` asks for less, and gets as much.
const AWAITS_TARGET: u64 = fi::FI_DELIVERY_COMPLETE | fi::FI_MATCH_COMPLETE;

/// One message to send. `flags` are final: `FI_COMPLETION` asks for a success completion, `FI_INJECT` says that the buffer
/// is reusable when the call returns.
#[derive(Debug)]
pub(crate) struct SendArgs<'a> {
    pub iov: &'a [Mem],
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub dest: u64,
    pub context: usize,
    pub flags: u64,
}

/// One receive to post, or a `FI_PEEK` / `FI_CLAIM` / `FI_DISCARD` request. `tag` is (tag, ignore).
#[derive(Debug)]
pub(crate) struct RecvArgs<'a> {
    pub iov: &'a [Mem],
    pub src: u64,
    pub tag: Option<(u64, u64)>,
    pub context: usize,
    pub flags: u64,
}

/// A range of a peer's registered memory; `addr` as the region's addressing mode says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[derive(Debug)]
pub(crate) struct RmaArgs<'a> {
    pub write: bool,
    pub iov: &'a [Mem],
    pub rma: &'a [RmaIov],
    pub dest: u64,
    pub data: Option<u64>,
    pub context: usize,
    pub flags: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicKind {
    Write,
    Fetch,
    Compare,
}

/// Effect of an access on the memory of its target, by which the target counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
    /// An atomic that brings the old value back and may store another one.
    ReadWrite,
}

impl Effect {
    /// The effect of an atomic with operation `op` that brings the old value back, or does not.
    fn of_atomic(fetches: bool, op: u32) -> Effect {
        match (fetches, op) {
            (false, _) => Effect::Write,
            (true, fi::FI_ATOMIC_READ) => Effect::Read,
            (true, _) => Effect::ReadWrite,
        }
    }

    /// Counters that count the access, of those of an object: each of them once.
    fn counters(self, read: Option<u32>, write: Option<u32>) -> [Option<u32>; 2] {
        match self {
            Effect::Read => [read, None],
            Effect::Write => [None, write],
            Effect::ReadWrite => [read, write.filter(|_| read != write)],
        }
    }
}

/// One atomic; all lengths in bytes, all lists of the same total length.
#[derive(Debug)]
pub(crate) struct AtomicArgs<'a> {
    pub kind: AtomicKind,
    pub op: u32,
    pub datatype: u32,
    pub operand: &'a [Mem],
    pub compare: &'a [Mem],
    pub result: &'a [Mem],
    pub rma: &'a [RmaIov],
    pub dest: u64,
    pub data: Option<u64>,
    pub context: usize,
    pub flags: u64,
}

/// The parts of a domain that an endpoint's data path touches, borrowed apart from the endpoint.
pub(crate) struct Env<'a> {
    pub cqs: &'a mut Slab<CqState>,
    pub cntrs: &'a mut Slab<CntrState>,
    pub avs: &'a Slab<AvState>,
    pub mrs: &'a mut MrTable,
    pub srxs: &'a mut Slab<shared::SrxState>,
}

/// A connection whose ring is looked at in every poll.
#[derive(Clone, Copy, Debug)]
struct Live {
    conn: ConnId,
    peer: u32,
    empty: u32,
}

/// The data-path state of one endpoint.
pub(crate) struct EpState {
    pub cfg: EpConfig,
    pub sock: Endpoint,
    pub enabled: bool,
    health: poison::Health,
    pub stats: Stats,
    /// Address and context of the C object, to name it in events.
    pub fid: usize,
    pub context: usize,
    /// Told when a peer dies.
    pub eq: Option<Arc<crate::eq::EqShared>>,
    /// Of a connected endpoint only.
    cm: Option<Box<cm::Cm>>,
    /// Of an endpoint with collectives only.
    coll: Option<Box<coll::Coll>>,
    peers: Vec<Peer>,
    by_port: HashMap<PortId, u32>,
    numbers: numbers::Numbers,
    by_av: Vec<u32>,
    av_version: u64,
    /// Who we are among the peers, and the connection we accepted from ourselves, once we talk to ourselves (`own`).
    own: Option<u32>,
    own_rx: Option<ConnId>,
    live: Vec<Live>,
    resting: Vec<Live>,
    resting_next: usize,
    /// Looks until each of them was looked at since the last one came.
    not_swept: usize,
    msg: Queue,
    tagged: Queue,
    multis: Slab<Multi>,
    claimed: HashMap<usize, Arrived>,
    /// Work queued to the domain that is under way here.
    pub notes: Slab<deferred::Note>,
    /// Another provider's entry for the unexpected message that is being taken in.
    unmatched: Option<crate::peer::Held>,
    ops: Ops,
    incoming: Slab<Incoming>,
    incoming_order: VecDeque<u32>,
    incoming_stamp: u32,
    helping: VecDeque<u64>,
    /// Which of those behind the oldest is looked at next.
    help_next: usize,
    /// As a target: what went wrong in a write whose pieces are coming in, by connection.
    write_errors: HashMap<ConnId, Errno>,
    busy: Vec<u32>,
    /// Peers of whom operations that want no answer were executed, and who are to be told.
    done: Vec<u32>,
    /// Receives posted to one source: their peers' lives matter while nothing else is outstanding.
    directed: usize,
    /// The last poll left nothing to read in the queue (see `rx`, on peeks).
    settled: bool,
    /// The last peek found nothing, and nothing was received since.
    peeked: bool,
    /// The last poll stopped before it had seen or copied everything: nobody rings for the rest.
    more: bool,
    /// Polls left in which no more is read of the rings, if there is a backlog, than was received (`progress`).
    catching_up: u32,
    /// Messages received that had waited, since the rings were read that way.
    late: usize,
    limits: unexpected::Limits,
    /// Connections that have ended and are not closed yet.
    parting: Vec<parting::Parting>,
    /// It is being closed, and its rings are not read any more.
    deaf: bool,
    /// Somebody is about to sleep on us, or sleeps.
    armed: bool,
    /// What happened to connections and has to be looked at; empty but for ends that wait for progress.
    links: Vec<LinkEvent>,
    polls: u32,
    last_links_ns: u64,
    last_alive_ns: u64,
    alive_next: usize,
}

impl EpState {
    pub(crate) fn new(cfg: EpConfig, sock: Endpoint) -> EpState {
        let cfg = EpConfig {
            careful: cfg.caps & fi::FI_SOURCE_ERR != 0 || cfg.grouped && cfg.directed,
            ..cfg
        };
        EpState {
            sock,
            enabled: false,
            health: poison::Health::Sound,
            stats: Stats::default(),
            fid: 0,
            context: 0,
            eq: None,
            cm: cfg.connected.then(|| Box::new(cm::Cm::new())),
            coll: (cfg.caps & fi::FI_COLLECTIVE != 0).then(Box::default),
            peers: Vec::new(),
            by_port: HashMap::new(),
            numbers: numbers::Numbers::new(),
            by_av: Vec::new(),
            av_version: 0,
            own: None,
            own_rx: None,
            live: Vec::new(),
            resting: Vec::new(),
            resting_next: 0,
            not_swept: 0,
            msg: Queue::new(),
            tagged: Queue::new(),
            multis: Slab::new(),
            claimed: HashMap::new(),
            notes: Slab::new(),
            unmatched: None,
            ops: Ops::new(scif::now_ns()),
            incoming: Slab::new(),
            incoming_order: VecDeque::new(),
            incoming_stamp: 0,
            helping: VecDeque::new(),
            help_next: 0,
            write_errors: HashMap::new(),
            busy: Vec::new(),
            done: Vec::new(),
            directed: 0,
            settled: false,
            catching_up: 0,
            late: 0,
            parting: Vec::new(),
            limits: unexpected::Limits::new(crate::env::env().unexpected_max),
            peeked: false,
            more: false,
            deaf: false,
            armed: false,
            links: Vec::new(),
            polls: 0,
            last_links_ns: 0,
            last_alive_ns: 0,
            alive_next: 0,
            cfg,
        }
    }

    fn queue(&mut self, tagged: bool) -> &mut Queue {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }
}

#[inline(always)]
fn split(st: &mut DomainState, ep: u32) -> Result<(&mut EpState, Env<'_>), Errno> {
    let DomainState {
        eps,
        cqs,
        cntrs,
        avs,
        mrs,
        srxs,
        ..
    } = st;
    let e = eps.get_mut(ep).ok_or(fi::FI_EINVAL)?;
    // In a forked child the endpoint, its rings and its bell are still those of the parent.
    if !e.enabled || e.sock.forked() {
        return Err(e.refusal());
    }
    let env = Env {
        cqs,
        cntrs,
        avs,
        mrs,
        srxs,
    };
    Ok((e, env))
}

/// Returns the parts that a call on endpoint `ep` works on, as [`split`] does.
///
/// # Errors
/// Those of [`split`], with the reason.
#[inline(always)]
fn usable(st: &mut DomainState, ep: u32) -> Result<(&mut EpState, Env<'_>), Errno> {
    split(st, ep).map_err(not_usable)
}

#[cold]
fn not_usable(errno: Errno) -> Errno {
    match errno {
        fi::FI_EOPBADSTATE => because(errno, format_args!("the endpoint is not enabled (fi_enable)")),
        _ => errno,
    }
}

#[cold]
fn in_no_memory() -> Errno {
    because(
        fi::FI_EFAULT,
        format_args!("a buffer lies in the first {LOWEST} bytes of memory"),
    )
}

/// Nothing is ever mapped in the lowest page (`vm.mmap_min_addr`).
const LOWEST: usize = 4096;

/// Whether bytes shall be where none can be: then the call fails, and not the process. Open MPI 4.1's `cm` sends absolute
/// datatypes (`MPI_BOTTOM`) from address 0, having lost the displacement. Not asked of the buffers of receives, which are
/// posted on the shortest way, and no more than this of any buffer: as with every provider that copies, memory that is not
/// there when it is touched is the process's fault.
#[inline(always)]
fn nowhere(iov: &[Mem]) -> bool {
    iov.iter().any(|m| m.addr() < LOWEST && !m.is_empty())
}

/// Sends a message. `FI_EAGAIN` when the transmit queue is full; errors of delivery come as completions.
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

/// Posts a receive, or looks for, claims or drops a message.
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
        e.post_recv(&mut env, a)
    })
}

/// The same by the general way alone: for what the quick one does not look at, contexts of scalable endpoints and queued work.
pub(crate) fn recv_generally(st: &mut DomainState, ep: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    poison::guarded(st, ep, |st| {
        let (e, mut env) = usable(st, ep)?;
        if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
            return e.post_peek(&mut env, a);
        }
        e.post_recv(&mut env, a)
    })
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

/// Starts an atomic operation; its datatype and operation were validated.
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

/// Cancels the oldest receive or waiting operation with this context: an error entry `FI_ECANCELED`. Nothing found is no error.
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

/// Moves everything that can move. Never blocks.
#[inline]
pub(crate) fn progress(st: &mut DomainState, ep: u32) {
    poison::guarded(st, ep, |st| match split(st, ep) {
        Ok((e, mut env)) => {
            e.progress(&mut env);
            if e.polls.is_multiple_of(progress::CLOCK_EVERY) && env.mrs.has_hot() {
                scif::keep_errno(|| migrate::move_hot(st));
            }
        }
        Err(_) => poison::end(st, ep),
    });
}

/// A number that changes whenever an enabled endpoint is progressed.
pub(crate) fn polls(st: &DomainState, ep: u32) -> Option<u32> {
    st.eps.get(ep).filter(|e| e.enabled).map(|e| e.polls)
}

/// See [`EpState::glance`].
#[inline(always)]
pub(crate) fn glance(st: &mut DomainState, ep: u32, cq: u32, most: usize, to: &mut impl Deliver) -> usize {
    poison::guarded(st, ep, |st| match split(st, ep) {
        Ok((e, mut env)) => e.glance(&mut env, cq, most, to),
        Err(_) => 0,
    })
}

/// Tells peers to wake this endpoint; the caller looks once more before it sleeps on the endpoint's descriptor.
pub(crate) fn arm(st: &mut DomainState, ep: u32) {
    if let Some(e) = st.eps.get_mut(ep) {
        e.sock.arm();
        e.armed = true;
        // A peer that published before it saw its ring at rest rang no bell: nobody sweeps while we sleep.
        e.rouse();
        if e.cm.is_some() {
            cm::settle(st, ep);
        }
    }
}

/// Ends what [`arm`] began.
pub(crate) fn disarm(st: &mut DomainState, ep: u32) {
    if let Some(e) = st.eps.get_mut(ep) {
        if !e.cm.as_ref().is_some_and(|cm| cm.is_told_more()) {
            e.sock.disarm();
        }
        e.armed = false;
        // A sleeper was woken for a reason: look at the rings, and at the links first.
        e.look_now();
        e.last_links_ns = 0;
    }
}

/// Whether only another provider makes progress here: the receives are its own.
pub(crate) fn is_another_s(st: &mut DomainState, ep: u32) -> bool {
    split(st, ep).is_ok_and(|(e, env)| e.draws_from_another(&env))
}

/// Whether wake-ups were taken for somebody who sleeps on what the endpoint feeds, and nobody looked what for.
pub(crate) fn has_wakes(st: &DomainState, ep: u32) -> bool {
    st.eps
        .get(ep)
        .is_some_and(|e| e.armed && (e.sock.bell().any() || !e.links.is_empty()))
}

/// Whether something outstanding needs a look now and then although no peer will ring for it.
pub(crate) fn wants_timer(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| {
        !e.ops.is_empty()
            || !e.incoming_order.is_empty()
            || !e.busy.is_empty()
            || e.directed > 0
            || e.sock.has_parked_callers()
            || e.is_collecting()
    })
}

/// Whether something waits that only looking again moves: room in a ring, a connection to try again.
pub(crate) fn wants_poll(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| !e.busy.is_empty())
}

/// Whether callers wait for a descriptor, for whom only looking again does something.
pub(crate) fn has_parked_callers(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| e.sock.has_parked_callers())
}

/// Whether the last poll left something that the next one can do: not the moment to sleep.
pub(crate) fn has_more(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).is_some_and(|e| e.more)
}

/// Whether a connected peer of any endpoint is inside an RMA on key slot `slot` now. The dead count as not.
pub(crate) fn marked(st: &mut DomainState, slot: u32) -> bool {
    st.eps.iter_mut().any(|(_, e)| e.marking(slot).next().is_some())
}

/// Ends the connections whose peers are inside an RMA on key slot `slot`: they had time to leave.
pub(crate) fn expel(st: &mut DomainState, slot: u32) {
    for ep in 0..st.eps.bound() {
        if let Ok((e, mut env)) = split(st, ep) {
            e.expel(&mut env, slot);
        }
    }
}

/// Ends the endpoint's life: unfinished operations are dropped without completions, connections are closed in order.
pub(crate) fn close(st: &mut DomainState, ep: u32) {
    poison::end(st, ep);
    if let Ok((e, mut env)) = split(st, ep) {
        e.drain_before_close(&mut env);
        let pieces = e.shared_pieces();
        e.let_go();
        e.leave_pieces(&mut env, pieces);
    }
    if let Some(e) = st.eps.remove(ep) {
        let name = format!("{}:{}", e.sock.id().node, e.sock.id().port);
        if crate::env::env().stats {
            crate::log::stats_line(&e.stats.line(&name, e.numbers.met()));
        }
    }
}
