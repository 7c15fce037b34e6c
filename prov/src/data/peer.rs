// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Whom an endpoint talks to: one entry per SCIF port it met, with the connection it sends on and what waits for room there.
//!
//! A peer is known by its port, whether or not an address vector names it. Its number is dense, so that receives and messages
//! can be matched by it, and another peer gets it only when nothing refers to it (`numbers`).

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{ConnId, Connection, Error, PortId};
use scif_ring::Count;
use scif_ring::copy::Mem;

use super::atomic_line::Done;
use super::matching::ANY;
use super::meet;
use super::migrate::Uses;
use super::route::Routes;
use super::stats::Stats;
use super::streams::OutStream;
use super::tx::TxOp;
use super::wire::Head;
use super::{Env, EpConfig, EpState, Errno, Live};
use crate::av::AvState;
use crate::slab::Slab;

/// How long a connect is retried towards a port nobody listens on, when the peer was there before: it died, or restarts
/// right now. For one that was never seen the user may say (`FI_SCIF_CONNECT_TIMEOUT`).
const RECONNECT_NS: u64 = 50_000_000;
/// Pause between two tries.
const RETRY_NS: u64 = 50_000;
/// Time of tries, in nanoseconds, after which a port without a listener is logged: processes start at different times.
const NOTICE_NS: u64 = 2_000_000_000;
/// Every claim block of a connection is free.
const ALL_BLOCKS: u64 = u64::MAX;
const _: () = assert!(scif_ring::CLAIM_BLOCKS == 64);
/// RMA and atomics of ours that one target may have to execute: what its answers may take there has a bound.
pub(crate) const REQUESTS_MAX: u32 = 1024;
/// Messages of ours whose answers one peer may owe us: that they were placed, how they are wanted, that they were fetched.
pub(crate) const MESSAGES_MAX: u32 = 256 * 1024;
/// Answers to the requests of one peer that wait for room, in bytes. Correct peers ask for less at a time.
pub(super) const OWED_MAX: usize = 64 << 20;
/// What an answer takes besides its body, about.
const ANSWER_BYTES: usize = 128;
/// The most that a correct peer can be owed besides snapshots: the answers of atomics, an error for each piece of a read, and
/// one answer at a time to each of its messages.
const OWED_BY_THE_RULES: usize = REQUESTS_MAX as usize * (ANSWER_BYTES + crate::atomic_ops::MAX_ATOMIC_BYTES)
    + REQUESTS_MAX as usize * crate::attr::RMA_IOV_LIMIT * ANSWER_BYTES
    + MESSAGES_MAX as usize * ANSWER_BYTES;
const _: () = assert!(OWED_BY_THE_RULES as u64 + super::rma::READ_WINDOW <= OWED_MAX as u64);

/// A record of ours that found the ring full: answers to the peer, which keep their order and go before new operations.
#[derive(Debug)]
pub(crate) struct Control {
    pub kind: u8,
    pub head: Head,
    pub body: Vec<u8>,
    /// What it counts for in [`Peer::owed`].
    owed: usize,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub id: PortId,
    pub tx: Option<ConnId>,
    pub fi_addr: u64,
    fi_addr_version: u64,
    pub control: VecDeque<Control>,
    pub pending: VecDeque<TxOp>,
    pub streams: VecDeque<OutStream>,
    /// Free claim blocks of the transmit connection, one bit each.
    pub blocks: u64,
    pub claim_generation: u32,
    /// Our RMA and atomics that the target has yet to execute.
    pub ring_rma: u32,
    /// Number of the connection on which we send or will, among those of all peers of the endpoint.
    pub life: u32,
    /// Its operations without an answer that were executed here and not told.
    pub done: Done,
    /// Bytes of our reads that the target has yet to send.
    pub read_bytes: u64,
    /// Bytes of answers to its requests that wait for room.
    pub owed: usize,
    /// Bytes of its messages that have met no receive, once there were any (`unexpected`).
    pub unexpected: Option<Arc<Count>>,
    /// It is so far ahead in a group that nothing more is read of it until we have caught up.
    pub ahead: bool,
    pub was_up: bool,
    /// A connect has found its listener, so a lack of one is its end, not its late start.
    listened: bool,
    /// It asked for a payload through the ring because it cannot reach our memory.
    pub streamed: bool,
    /// The kernel has denied direct copies with it.
    pub no_direct: bool,
    /// It died, and nothing of it was seen since: what is directed to it fails.
    pub dead: bool,
    /// It closed in order, and nothing of it was seen since: what is sent to it fails, but receives wait for its return.
    pub left: bool,
    refused_since_ns: u64,
    /// What keeps us from connecting to it though it is there; 0: it is not.
    hindered: Errno,
    retry_at_ns: u64,
    pub busy: bool,
    /// How often it is yet to be seen whether we can send over its connection as well (`meet`).
    pub meetings: u8,
    /// How hard its keys are used, once one is.
    pub uses: Option<Box<Uses>>,
    /// Which way its large messages take, once there are any.
    pub routes: Option<Box<Routes>>,
}

impl Peer {
    pub(super) fn new(id: PortId, life: u32) -> Peer {
        Peer {
            id,
            tx: None,
            fi_addr: fi::FI_ADDR_NOTAVAIL,
            fi_addr_version: u64::MAX,
            control: VecDeque::new(),
            pending: VecDeque::new(),
            streams: VecDeque::new(),
            blocks: ALL_BLOCKS,
            claim_generation: 0,
            ring_rma: 0,
            life,
            done: Done::default(),
            read_bytes: 0,
            owed: 0,
            unexpected: None,
            ahead: false,
            was_up: false,
            listened: false,
            streamed: false,
            no_direct: false,
            dead: false,
            left: false,
            refused_since_ns: 0,
            hindered: 0,
            retry_at_ns: 0,
            busy: false,
            meetings: meet::TRIES,
            uses: None,
            routes: None,
        }
    }

    /// Returns whether this endpoint has found the peer at its port before.
    fn was_there(&self) -> bool {
        self.was_up || self.listened
    }

    /// Nothing waits: a new operation may go straight to the ring.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty()
    }

    /// It asks without taking answers: no more is read of it until it takes some. No correct peer comes that far, so two
    /// that ask much of each other never wait for each other. Or it is too far ahead in a group.
    #[inline]
    pub(crate) fn overdrawn(&self) -> bool {
        self.owed > OWED_MAX || self.ahead
    }

    /// Queues what a `READ` asked for. False: there is no memory for it.
    #[must_use]
    pub(crate) fn answer_read(&mut self, stream: OutStream) -> bool {
        let room = self.streams.try_reserve(1).is_ok();
        if room {
            self.owed = self.owed.saturating_add(ANSWER_BYTES + stream.kept());
            self.streams.push_back(stream);
        }
        room
    }

    /// The first stream is done.
    pub(crate) fn end_stream(&mut self) {
        if let Some(OutStream::Read { bytes, .. }) = self.streams.pop_front() {
            self.owed = self.owed.saturating_sub(ANSWER_BYTES + bytes.len());
        }
    }

    /// The first answer that found the ring full has found room.
    pub(crate) fn end_control(&mut self) {
        if let Some(answer) = self.control.pop_front() {
            self.owed = self.owed.saturating_sub(answer.owed);
        }
    }

    /// Whether a connection or waiting work needs the entry.
    pub(super) fn is_in_use(&self) -> bool {
        self.tx.is_some() || !self.is_idle()
    }

    /// The same, and nothing is owed to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && self.streams.is_empty()
    }

    /// Whether a connection to it is being made that nothing has refused so far.
    pub(super) fn is_connecting(&self) -> bool {
        let unanswered = self.refused_since_ns == 0 || self.hindered == fi::FI_ETIMEDOUT;
        self.tx.is_none() && self.retry_at_ns != 0 && unanswered
    }

    /// Whether no message of ours is announced with a block of the transmit connection.
    pub(super) fn has_all_blocks(&self) -> bool {
        self.blocks == ALL_BLOCKS
    }

    /// Forgets what belonged to a connection that is gone; the next one is number `life`.
    pub(crate) fn reset_connection(&mut self, life: u32) {
        self.tx = None;
        self.streamed = false;
        self.routes = None;
        self.control.clear();
        self.streams.clear();
        self.blocks = ALL_BLOCKS;
        self.meetings = meet::TRIES;
        self.ring_rma = 0;
        self.life = life;
        self.read_bytes = 0;
        self.owed = 0;
        self.refused_since_ns = 0;
        self.retry_at_ns = 0;
    }
}

/// Whether the kernel denies direct copies over a connection, and the user wants them.
pub(super) fn is_denied(conn: &Connection) -> bool {
    crate::env::env().process_vm && conn.memory().denial().is_some()
}

/// Logs and counts that the kernel denies direct copies over a connection, unless the user wants none.
#[cold]
pub(super) fn note_denial(conn: &Connection, peer: Option<&mut Peer>, stats: &mut Stats) {
    let Some(denial) = conn.memory().denial().filter(|_| is_denied(conn)) else {
        return;
    };
    crate::log::no_direct_copy(conn.peer(), denial);
    if let Some(peer) = peer
        && !std::mem::replace(&mut peer.no_direct, true)
    {
        stats.no_direct += 1;
    }
}

impl EpState {
    /// Notes of a connection that is up whether direct copies are denied over it.
    pub(super) fn note_access(&mut self, conn: ConnId, peer: u32) {
        if let Some(c) = self.sock.conn(conn) {
            note_denial(c, self.peers.get_mut(peer as usize), &mut self.stats);
        }
    }

    /// The peer number of a port, new or known.
    pub(crate) fn peer_at(&mut self, id: PortId) -> u32 {
        if let Some(known) = self.by_port.get(&id) {
            return *known;
        }
        let number = self.new_number(id);
        self.by_port.insert(id, number);
        if id == self.sock.id() && !self.cfg.peer {
            self.own = Some(number);
        }
        number
    }

    /// The peer an address names.
    #[inline(always)]
    pub(crate) fn peer_of(&mut self, env: &Env<'_>, addr: u64) -> Result<u32, Errno> {
        let Some(av) = env.avs.get(self.cfg.av) else {
            return self.connected_peer();
        };
        if av.version != self.av_version {
            self.by_av.clear();
            self.av_version = av.version;
        }
        let at = usize::try_from(addr).unwrap_or(usize::MAX);
        match self.by_av.get(at) {
            Some(number) if *number != ANY => Ok(*number),
            _ => {
                let id = av.port_id(addr).ok_or(fi::FI_EINVAL)?;
                let number = self.peer_at(id);
                // An address that names a context as well has its upper bits set.
                if at >= av.bound() {
                    return Ok(number);
                }
                if self.by_av.len() <= at {
                    self.by_av.resize(at + 1, ANY);
                }
                if let Some(slot) = self.by_av.get_mut(at) {
                    *slot = number;
                }
                Ok(number)
            }
        }
    }

    /// The `fi_addr_t` to report as a message's source.
    #[inline]
    pub(crate) fn source_of(&mut self, env: &Env<'_>, peer: u32) -> u64 {
        source_in(&self.cfg, &mut self.peers, env.avs, peer)
    }

    /// The address of a port, as an address vector takes it.
    pub(crate) fn name_of(&self, id: PortId) -> Vec<u8> {
        crate::addr::encode(Ipv4Addr::LOCALHOST, id, self.cfg.host).to_vec()
    }

    /// The connection to send on, made now if there is none. None: not yet, try again from progress.
    #[inline]
    pub(crate) fn tx_conn(&mut self, peer: u32) -> Option<ConnId> {
        match self.peers.get(peer as usize)?.tx {
            Some(conn) => Some(conn),
            None => self.connect(peer),
        }
    }

    #[cold]
    fn connect(&mut self, peer: u32) -> Option<ConnId> {
        if self.cm.is_some() {
            return None;
        }
        let p = self.peers.get_mut(peer as usize)?;
        let now = scif::now_ns();
        if now < p.retry_at_ns {
            return None;
        }
        match self.sock.connect(p.id) {
            Ok(conn) => {
                p.tx = Some(conn);
                p.dead = false;
                p.left = false;
                p.listened = true;
                p.refused_since_ns = 0;
                self.live.push(Live { conn, peer, empty: 0 });
                Some(conn)
            }
            Err(error) => {
                p.retry_at_ns = now + RETRY_NS;
                let hindered = match &error {
                    Error::Again => return None,
                    Error::Refused(_) => 0,
                    other => crate::entry::errno(other),
                };
                // Each of the two, that it is not there and that we cannot get there, has its time.
                if p.refused_since_ns == 0 || (p.hindered == 0) != (hindered == 0) {
                    p.refused_since_ns = now;
                    if hindered != 0 {
                        crate::log::hindered(p.id, &error, hindered);
                    }
                }
                p.hindered = hindered;
                let (id, waited) = (p.id, now - p.refused_since_ns);
                if hindered == 0 && !p.was_there() && waited > NOTICE_NS {
                    self.nobody_listens(id, Some(waited));
                }
                None
            }
        }
    }

    /// Logs, once for a port, that connects to it find no listener.
    #[cold]
    pub(super) fn nobody_listens(&self, id: PortId, waited_ns: Option<u64>) {
        crate::log::nobody_listens(id, waited_ns, || self.sock.whereabouts(id));
    }

    /// What operations to `peer` shall fail with since connecting to it has failed for so long, and whether it is gone: else it is
    /// there, and we cannot get there.
    fn connect_expired(&self, peer: u32, now_ns: u64) -> Option<(Errno, bool)> {
        self.peers.get(peer as usize).and_then(|p| {
            let first = crate::env::env().connect_timeout_ns;
            let limit = if p.was_there() && p.hindered == 0 {
                RECONNECT_NS.min(first)
            } else {
                first
            };
            let expired = p.tx.is_none()
                && p.refused_since_ns != 0
                && now_ns.saturating_sub(p.refused_since_ns) > limit;
            expired.then_some(match p.hindered {
                0 if p.was_there() => (fi::FI_ECONNRESET, true),
                0 => (fi::FI_ECONNREFUSED, true),
                why => (why, false),
            })
        })
    }

    /// Fails what waits for connections that have found no listener for too long.
    pub(super) fn expire_connects(&mut self, env: &mut Env<'_>, now: u64) {
        let mut at = 0;
        while let Some(peer) = self.busy.get(at).copied() {
            at += 1;
            if let Some((err, gone)) = self.connect_expired(peer, now) {
                let Some(p) = self.peers.get_mut(peer as usize) else {
                    continue;
                };
                let waited = now.saturating_sub(p.refused_since_ns);
                p.reset_connection(self.numbers.next_life());
                let (id, left, met) = (p.id, p.left, p.was_there());
                if gone && !met {
                    self.nobody_listens(id, Some(waited));
                }
                self.fail_pending(env, peer, err);
                if gone && !left {
                    self.bury(env, peer, id, err);
                }
                self.coll_lost(env, peer);
            }
        }
    }

    /// Puts `peer` on the list that progress looks at.
    pub(crate) fn make_busy(&mut self, peer: u32) {
        if let Some(p) = self.peers.get_mut(peer as usize)
            && !p.busy
        {
            p.busy = true;
            self.busy.push(peer);
        }
    }

    /// Sends a notice: at once when the ring has room and nothing waits before it.
    #[inline]
    pub(crate) fn control(&mut self, peer: u32, kind: u8, head: Head, body: &[u8]) {
        self.control_or_queue(peer, kind, head, body, false);
    }

    /// The same as the answer to a request, which counts against the peer while it waits.
    pub(crate) fn answer(&mut self, peer: u32, kind: u8, head: Head, body: &[u8]) {
        self.control_or_queue(peer, kind, head, body, true);
    }

    fn control_or_queue(&mut self, peer: u32, kind: u8, head: Head, body: &[u8], requested: bool) {
        let Some(p) = self.peers.get_mut(peer as usize) else {
            return;
        };
        let Some(conn) = p.tx else { return };
        if p.control.is_empty()
            && let Some(c) = self.sock.conn(conn)
            && c.tx().push_slice(kind, head.as_slice(), body).is_ok()
        {
            c.notify();
            return;
        }
        let Some(body) = copy_of(body).filter(|_| p.control.try_reserve(1).is_ok()) else {
            return self.exhaust(peer);
        };
        let owed = if requested { ANSWER_BYTES + body.len() } else { 0 };
        p.owed = p.owed.saturating_add(owed);
        p.control.push_back(Control {
            kind,
            head,
            body,
            owed,
        });
        self.make_busy(peer);
    }

    /// Whether `peer` has as much of our RMA and atomics to execute as it may have at a time.
    pub(crate) fn asked_enough(&self, peer: u32) -> bool {
        self.peers
            .get(peer as usize)
            .is_some_and(|p| p.ring_rma >= REQUESTS_MAX)
    }

    /// The connections whose living peers mark key slot `slot` as in use.
    pub(crate) fn marking(&mut self, slot: u32) -> impl Iterator<Item = ConnId> {
        let conns: Vec<ConnId> = self.live.iter().chain(&self.resting).map(|l| l.conn).collect();
        conns.into_iter().filter(move |id| {
            self.sock
                .conn(*id)
                .is_some_and(|c| c.peer_mark().get() == Some(slot) && c.alive())
        })
    }
}

/// [`EpState::source_of`], where the rest of the endpoint is in use.
#[inline]
pub(crate) fn source_in(cfg: &EpConfig, peers: &mut [Peer], avs: &Slab<AvState>, peer: u32) -> u64 {
    if !cfg.source {
        return fi::FI_ADDR_NOTAVAIL;
    }
    let (Some(av), Some(p)) = (avs.get(cfg.av), peers.get_mut(peer as usize)) else {
        return fi::FI_ADDR_NOTAVAIL;
    };
    if p.fi_addr_version != av.version {
        let found = av.find(p.id);
        // Into a shared vector others may put it next.
        p.fi_addr_version = if found.is_some() || av.is_own() {
            av.version
        } else {
            u64::MAX
        };
        p.fi_addr = found.unwrap_or(fi::FI_ADDR_NOTAVAIL);
    }
    p.fi_addr
}

/// The bytes of a scatter list, gathered into one vector.
pub(crate) fn gather(iov: &[Mem]) -> Vec<u8> {
    let mut out = vec![0; scif_ring::copy::total_len(iov)];
    gather_into(iov, &mut out);
    out
}

/// A vector of `len` zeros; `None` where there is no memory for it. For lengths that a peer chooses.
pub(crate) fn zeros(len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

/// A copy of `bytes`; `None` where there is no memory for it.
pub(crate) fn copy_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}

/// The bytes of one piece of memory as a vector; `None` where there is no memory for it.
pub(crate) fn bytes_of(mem: &Mem) -> Option<Vec<u8>> {
    let mut bytes = zeros(mem.len())?;
    mem.copy_to_slice(&mut bytes);
    Some(bytes)
}

/// [`gather`] as far as they fit into `out`.
pub(crate) fn gather_into(iov: &[Mem], out: &mut [u8]) {
    let mut at = 0;
    for piece in iov {
        if let Some(to) = out.get_mut(at..) {
            at += piece.copy_to_slice(to);
        }
    }
}
