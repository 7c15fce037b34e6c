// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peers of an endpoint: one entry per SCIF port it met, with the transmit connection and the work
//! that waits for it.
//!
//! A peer is identified by its port, whether or not an address vector names it. Its number is
//! dense, so that receives and messages can be matched by it. A number is reused only when nothing
//! refers to it (`peer_sweep`).

use std::collections::VecDeque;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{ConnId, Connection, PortId};
use scif_ring::AtomicCounter;
use scif_ring::copy::Mem;

use super::atomic_line::Done;
use super::meet;
use super::migrate::Uses;
use super::peer_id::PeerId;
use super::peer_table::PeerTable;
use super::route::Routes;
use super::stats::Stats;
use super::streams::OutStream;
use super::tx::TxOp;
use super::wire::Head;
use super::{EpConfig, Errno};
use crate::base::slab::Slab;
use crate::state::av_table::AvState;

/// Value of [`Peer::blocks`] when every claim block of a connection is free.
const ALL_BLOCKS: u64 = u64::MAX;
const _: () = assert!(scif_ring::CLAIM_BLOCKS == 64);
/// Credits: outstanding RMA and atomic operations at one target. The limit bounds the memory of its
/// replies.
pub(crate) const REQUESTS_MAX: u32 = 1024;
/// Messages to one peer that may await a reply (`ACK`, `CTS` or `FIN`). Further ones stay pending.
pub(crate) const MESSAGES_MAX: u32 = 256 * 1024;
/// Bytes of replies to one peer that may wait for ring space. Beyond it the peer is not read.
/// Correct peers stay below it.
pub(super) const OWED_MAX: usize = 64 << 20;
/// Approximate bytes of a queued reply besides its body.
pub(super) const ANSWER_BYTES: usize = 128;
/// Largest number of reply bytes for a correct peer besides read snapshots: replies to atomics, an
/// error for each segment of a read, and one reply to each message.
const OWED_BY_THE_RULES: usize = REQUESTS_MAX as usize
    * (ANSWER_BYTES + crate::base::atomic_ops::MAX_ATOMIC_BYTES)
    + REQUESTS_MAX as usize * crate::base::attr::RMA_IOV_LIMIT * ANSWER_BYTES
    + MESSAGES_MAX as usize * ANSWER_BYTES;
const _: () = assert!(OWED_BY_THE_RULES as u64 + super::rma::READ_WINDOW <= OWED_MAX as u64);

/// Control record that found the ring full. Such records keep their order and precede new
/// operations.
#[derive(Debug)]
pub(crate) struct Control {
    pub kind: u8,
    pub head: Head,
    pub body: Vec<u8>,
    /// Bytes counted for the record in [`Peer::owed`].
    pub(super) owed: usize,
}

/// Remote endpoint, as this endpoint sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub id: PortId,
    /// Transmit connection.
    pub tx: Option<ConnId>,
    pub fi_addr: u64,
    fi_addr_version: u64,
    /// Control records that found the ring full.
    pub control: VecDeque<Control>,
    /// Pending operations, oldest first.
    pub pending: VecDeque<TxOp>,
    /// Payloads that leave in fragments, oldest first.
    pub streams: VecDeque<OutStream>,
    /// Free claim blocks of the transmit connection, one bit each.
    pub blocks: u64,
    pub claim_generation: u32,
    /// Number of RMA and atomic operations that the target has yet to execute.
    pub ring_rma: u32,
    /// Number of the current or next transmit connection, unique among all peers of the endpoint.
    pub life: u32,
    /// Operations of the peer without a reply that were executed here and are not acknowledged yet.
    pub done: Done,
    /// Bytes of our reads that the target has yet to send.
    pub read_bytes: u64,
    /// Bytes of replies to the peer that wait for ring space.
    pub owed: usize,
    /// Bytes of unexpected messages of the peer, once there were any (`unexpected`).
    pub unexpected: Option<Arc<AtomicCounter>>,
    /// Whether the peer is too far ahead in a group. It is not read until this member has caught
    /// up.
    pub ahead: bool,
    pub was_up: bool,
    /// Whether a connect has found the listener. A missing listener then means the end of the peer.
    pub(super) listened: bool,
    /// Whether the peer requested fragments because it cannot reach our memory.
    pub streamed: bool,
    /// Whether the kernel has denied direct copies with the peer.
    pub no_direct: bool,
    /// Whether the peer died and has not been seen since. Operations to it and receives from it
    /// fail.
    pub dead: bool,
    /// Whether the peer closed gracefully and has not been seen since. Sends fail, but receives
    /// wait for its return.
    pub left: bool,
    /// Time in nanoseconds since which connects have failed for the current reason; 0: none failed.
    pub(super) refused_since_ns: u64,
    /// Error that prevents a connection to an existing peer; 0 if no listener was found.
    pub(super) hindered: Errno,
    pub(super) retry_at_ns: u64,
    pub busy: bool,
    /// Attempts left to send over the connection that the peer opened (`meet`).
    pub meetings: u8,
    /// Counts of our accesses to keys of the peer by system calls, once there were any.
    pub uses: Option<Box<Uses>>,
    /// Selectors of the method for large messages, once there are any.
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
    pub(super) fn was_there(&self) -> bool {
        self.was_up || self.listened
    }

    /// Whether nothing waits, so that a new operation may enter the ring at once.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty()
    }

    /// Whether the peer must not be read now. Either its replies exceed [`OWED_MAX`], since it
    /// sends requests without reading replies, or it is too far ahead in a group. Correct peers
    /// stay below the limit, so two of them with many mutual requests cannot deadlock.
    #[inline]
    pub(crate) fn overdrawn(&self) -> bool {
        self.owed > OWED_MAX || self.ahead
    }

    /// Queues the data that a `READ` requested. Returns false if there is no memory.
    #[must_use]
    pub(crate) fn answer_read(&mut self, stream: OutStream) -> bool {
        let room = self.streams.try_reserve(1).is_ok();
        if room {
            self.owed = self.owed.saturating_add(ANSWER_BYTES + stream.kept());
            self.streams.push_back(stream);
        }
        room
    }

    /// Removes the first fragmented payload, which is complete.
    pub(crate) fn end_stream(&mut self) {
        if let Some(OutStream::Read { bytes, .. }) = self.streams.pop_front() {
            self.owed = self.owed.saturating_sub(ANSWER_BYTES + bytes.len());
        }
    }

    /// Removes the first queued control record, which has entered the ring.
    pub(crate) fn end_control(&mut self) {
        if let Some(answer) = self.control.pop_front() {
            self.owed = self.owed.saturating_sub(answer.owed);
        }
    }

    /// Whether a connection or waiting work needs the entry.
    pub(super) fn is_in_use(&self) -> bool {
        self.tx.is_some() || !self.is_idle()
    }

    /// Whether no operation, control record or fragmented payload waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && self.streams.is_empty()
    }

    /// Whether a connection to the peer is being made and nothing has refused it so far.
    pub(super) fn is_connecting(&self) -> bool {
        let unanswered = self.refused_since_ns == 0 || self.hindered == fi::FI_ETIMEDOUT;
        self.tx.is_none() && self.retry_at_ns != 0 && unanswered
    }

    /// Whether no announced message uses a block of the transmit connection.
    pub(super) fn has_all_blocks(&self) -> bool {
        self.blocks == ALL_BLOCKS
    }

    /// Clears the state of a connection that is gone; the next one has number `life`.
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

/// Whether the kernel denies direct copies over a connection although the user enabled them.
pub(super) fn is_denied(conn: &Connection) -> bool {
    crate::base::env::env().process_vm && conn.memory().denial().is_some()
}

/// Logs and counts that the kernel denies direct copies over a connection, unless the user disabled
/// them.
#[cold]
pub(super) fn note_denial(conn: &Connection, peer: &mut Peer, stats: &mut Stats) {
    let Some(denial) = conn.memory().denial().filter(|_| is_denied(conn)) else {
        return;
    };
    crate::base::log::no_direct_copy(conn.peer(), denial);
    if !std::mem::replace(&mut peer.no_direct, true) {
        stats.no_direct += 1;
    }
}

/// [`EpState::source_of`], for callers that have borrowed other parts of the endpoint.
#[inline(always)]
pub(crate) fn source_in(cfg: &EpConfig, peers: &mut PeerTable, avs: &Slab<AvState>, peer: PeerId) -> u64 {
    if !cfg.source {
        return fi::FI_ADDR_NOTAVAIL;
    }
    match avs.get(cfg.av) {
        Some(av) => address_in(peers, av, peer),
        None => fi::FI_ADDR_NOTAVAIL,
    }
}

/// Returns the `fi_addr_t` of a peer.
#[inline]
fn address_in(peers: &mut PeerTable, av: &AvState, peer: PeerId) -> u64 {
    let p = peers.at_mut(peer);
    if p.fi_addr_version != av.version {
        let found = av.find(p.id);
        // Other processes may insert the address into a shared vector at any time.
        p.fi_addr_version = if found.is_some() || av.is_own() {
            av.version
        } else {
            u64::MAX
        };
        p.fi_addr = found.unwrap_or(fi::FI_ADDR_NOTAVAIL);
    }
    p.fi_addr
}

/// Returns the bytes of a scatter list in one vector.
pub(crate) fn gather(iov: &[Mem]) -> Vec<u8> {
    let mut out = vec![0; scif_ring::copy::total_len(iov)];
    gather_into(iov, &mut out);
    out
}

/// Returns a vector of `len` zeros, or `None` without memory. For lengths that a peer chooses.
pub(crate) fn zeros(len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

/// Returns a copy of `bytes`, or `None` without memory.
pub(crate) fn copy_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}

/// Returns the bytes of one memory range, or `None` without memory.
pub(crate) fn bytes_of(mem: &Mem) -> Option<Vec<u8>> {
    let mut bytes = zeros(mem.len())?;
    mem.copy_to_slice(&mut bytes);
    Some(bytes)
}

/// Copies the bytes of a scatter list into `out`, as far as they fit.
pub(crate) fn gather_into(iov: &[Mem], out: &mut [u8]) {
    let mut at = 0;
    for piece in iov {
        if let Some(to) = out.get_mut(at..) {
            at += piece.copy_to_slice(to);
        }
    }
}
