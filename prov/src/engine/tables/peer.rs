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

use crate::engine::tables::coop_choice::CoopChoice;
use crate::engine::tables::pending::{FragmentedSend, PendingOp};
use crate::engine::tables::posted_writes::PostedWrites;
use crate::engine::tables::rndv_select::RndvSelector;
use crate::engine::types::access_counts::AccessCounter;
use crate::engine::types::peer_state::PeerState;
use crate::engine::types::stats::Stats;
use crate::engine::types::wire::Head;

/// Value of [`ClaimBlocks::free`] when every claim block of a connection is free.
const ALL_BLOCKS: u64 = u64::MAX;
/// Credits: outstanding RMA and atomic operations at one target. The limit bounds the memory of its
/// replies.
pub(crate) const REQUEST_CREDITS: u32 = 1024;
/// Messages to one peer that may await a reply (`ACK`, `CTS` or `FIN`). Further ones stay pending.
pub(crate) const MAX_UNACKED_MSGS: u32 = 256 * 1024;
/// Bytes of replies to one peer that may wait for ring space. Beyond it the peer is not read.
/// Correct peers stay below it.
pub(crate) const REPLY_QUEUE_MAX: usize = 64 << 20;
/// Value of [`TxQueue::reply_bytes`] that stops all reading from a peer, whose reset is due.
pub(crate) const EXHAUSTED: usize = usize::MAX;
const _: () = assert!(EXHAUSTED > REPLY_QUEUE_MAX);
/// Approximate bytes of a queued reply besides its body.
pub(crate) const ANSWER_BYTES: usize = 128;
/// Largest number of reply bytes for a correct peer besides read snapshots: replies to atomics, an
/// error for each segment of a read, and one reply to each message.
const MAX_HONEST_REPLY_BYTES: usize = REQUEST_CREDITS as usize
    * (ANSWER_BYTES + crate::base::atomic_ops::MAX_ATOMIC_BYTES)
    + REQUEST_CREDITS as usize * crate::base::attr::RMA_IOV_LIMIT * ANSWER_BYTES
    + MAX_UNACKED_MSGS as usize * ANSWER_BYTES;
/// Bytes of reads that may be outstanding at one target. They bound the memory of its replies.
pub(crate) const READ_WINDOW: u64 = 1024 * 1024;
/// Bytes of replies to posted reads of one target that may be on their way, half of a ring. With
/// more, replies fill the ring, and the target copies them once more.
pub(crate) const POSTED_READ_WINDOW: u64 = scif_ring::RING_DATA_BYTES as u64 / 2;
/// Number of checks whether the peer has consumed all records, after which both connections stay in
/// use for sending. A check may fail although it has, since it publishes its consumed counters only
/// every 64 records or when it is idle.
pub(crate) const MERGE_TRIES: u8 = 200;

/// Number of a peer's operations without a reply that were executed and not reported yet, with
/// their stamp.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckCount {
    pub(crate) stamp: u64,
    pub(crate) count: u64,
}

/// Control record that found the ring full. Such records keep their order and precede new
/// operations.
#[derive(Debug)]
pub(crate) struct Control {
    pub kind: u8,
    pub head: Head,
    pub body: Vec<u8>,
    /// Bytes counted for the record in [`TxQueue::reply_bytes`].
    pub(crate) counted: usize,
}

/// Work that waits for ring space or a connection, in the order in which it leaves: control
/// records, operations, payloads in fragments.
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    /// Control records that found the ring full.
    pub control: VecDeque<Control>,
    /// Pending operations, oldest first.
    pub pending: VecDeque<PendingOp>,
    /// Payloads that leave in fragments, oldest first.
    pub streams: VecDeque<FragmentedSend>,
    /// Bytes of replies to the peer that wait for ring space.
    pub reply_bytes: usize,
    /// Operations of the network for which later operations wait.
    pub(crate) held: HeldRma,
}

/// Number of RMA operations that the network executes, all of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldRma {
    pub(crate) count: u32,
    /// Whether they are writes.
    pub(crate) write: bool,
}

impl HeldRma {
    pub(crate) fn add(&mut self, write: bool) {
        *self = HeldRma { count: self.count + 1, write };
    }

    pub(crate) fn remove(&mut self) {
        self.count = self.count.saturating_sub(1);
    }
}

impl TxQueue {
    /// Whether nothing waits, so that a new operation may enter the ring at once.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty() && self.held.count == 0
    }

    /// Whether no operation, control record or fragmented payload waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.control.is_empty() && self.streams.is_empty()
    }

    /// Queues the data that a `READ` requested. Returns false if there is no memory.
    #[must_use]
    pub(crate) fn answer_read(&mut self, stream: FragmentedSend) -> bool {
        let room = self.streams.try_reserve(1).is_ok();
        if room {
            self.reply_bytes = self.reply_bytes.saturating_add(ANSWER_BYTES + stream.kept());
            self.streams.push_back(stream);
        }
        room
    }

    /// Removes the first fragmented payload, which is complete.
    pub(crate) fn end_stream(&mut self) {
        if let Some(FragmentedSend::Read { bytes, .. }) = self.streams.pop_front() {
            self.release(ANSWER_BYTES + bytes.len());
        }
    }

    /// Removes the first queued control record, which has entered the ring.
    pub(crate) fn end_control(&mut self) {
        if let Some(answer) = self.control.pop_front() {
            self.release(answer.counted);
        }
    }

    /// Gives back bytes of a reply. A peer that is exhausted remains so until its connection ends.
    fn release(&mut self, bytes: usize) {
        if self.reply_bytes != EXHAUSTED {
            self.reply_bytes = self.reply_bytes.saturating_sub(bytes);
        }
    }

    /// Drops the state of a connection that has ended. Pending operations stay.
    fn reset_connection(&mut self) {
        self.control.clear();
        self.streams.clear();
        self.reply_bytes = 0;
        self.held = HeldRma::default();
    }
}

/// Claim blocks of a transmit connection.
#[derive(Debug)]
pub(crate) struct ClaimBlocks {
    /// Free blocks, one bit each.
    free: u64,
    generation: u32,
}

impl ClaimBlocks {
    const fn new() -> ClaimBlocks {
        ClaimBlocks { free: ALL_BLOCKS, generation: 0 }
    }

    /// Takes a free block. Returns its number and the generation of its next use.
    pub(crate) fn take(&mut self) -> Option<(u8, u32)> {
        let block = u8::try_from(self.free.trailing_zeros()).ok();
        let block = block.filter(|_| self.free != 0)?;
        self.free &= !(1 << block);
        self.generation = ((self.generation + 1) & 0xffff).max(1);
        Some((block, self.generation))
    }

    pub(crate) fn give_back(&mut self, block: u8) {
        self.free |= 1 << block;
    }

    /// Whether no announced message uses a block.
    pub(crate) fn are_all_free(&self) -> bool {
        self.free == ALL_BLOCKS
    }
}

/// One-sided operations in progress between the endpoint and a peer.
#[derive(Debug, Default)]
pub(crate) struct RmaWindow {
    /// Number of RMA and atomic operations that the target has yet to execute.
    pub outstanding: u32,
    /// Bytes of our reads that the target has yet to send.
    pub read_bytes: u64,
    /// Operations of the peer without a reply that were executed here and are not acknowledged yet.
    pub done: AckCount,
    /// Our writes that the target executes without a reply.
    pub posted: PostedWrites,
    /// Counts of our accesses to keys of the peer by system calls, once there were any.
    pub uses: Option<Box<AccessCounter>>,
    /// Choice of the method for large operations, once there was one.
    pub(crate) coop: Option<Box<CoopChoice>>,
}

impl RmaWindow {
    /// Whether the target has yet to execute operations, which direct ones must not overtake.
    #[inline]
    pub(crate) fn is_outstanding(&self) -> bool {
        self.outstanding > 0 || !self.posted.is_empty()
    }
}

/// Bytes that were copied beside the rings of the present connections, by either side or by a
/// network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopiedBytes {
    pub sent: u64,
    pub received: u64,
}

impl CopiedBytes {
    /// Counts bytes that this side has `sent`, or else received.
    pub(crate) fn note(&mut self, sent: bool, len: usize) {
        let bytes = if sent { &mut self.sent } else { &mut self.received };
        *bytes += len as u64;
    }
}

/// Method for large messages with a peer.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    /// Whether the peer requested fragments because it cannot reach our memory.
    pub streamed: bool,
    /// Whether the kernel has denied direct copies with the peer.
    pub no_direct: bool,
    /// Selectors of the method, once there are any.
    pub rndv_select: Option<Box<RndvSelector>>,
    /// Bytes of long eager messages since the peer last received an announced one.
    pub long_bytes: usize,
    /// Bytes of payloads that reached the peer beside the rings, and that came from it.
    pub copied: CopiedBytes,
}

/// Work of progress for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerWork {
    None,
    /// Unreported writes, for full polls only.
    Unreported,
    /// Work for each poll.
    Each,
}

/// Remote endpoint, as this endpoint sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub id: PortId,
    /// Transmit connection.
    pub tx: Option<ConnId>,
    pub queue: TxQueue,
    pub fi_addr: u64,
    pub(crate) fi_addr_version: u64,
    /// Number of the current or next transmit connection, unique among all peers of the endpoint.
    pub life: u32,
    pub blocks: ClaimBlocks,
    pub rma: RmaWindow,
    pub transfer: Transfer,
    pub(crate) state: PeerState,
    /// Bytes of unexpected messages of the peer, once there were any (`unexpected`).
    pub unexpected: Option<Arc<AtomicCounter>>,
    /// Whether the peer is too far ahead in a group. It is not read until this member has caught
    /// up.
    pub ahead: bool,
    /// Work for which the peer is in the list of peers with work.
    pub work: PeerWork,
    /// Attempts left to send over the connection that the peer opened (`merge_conns`).
    pub merge_tries: u8,
}

impl Peer {
    pub(crate) fn new(id: PortId, life: u32) -> Peer {
        Peer {
            id,
            tx: None,
            queue: TxQueue::default(),
            fi_addr: fi::FI_ADDR_NOTAVAIL,
            fi_addr_version: u64::MAX,
            life,
            blocks: ClaimBlocks::new(),
            rma: RmaWindow::default(),
            transfer: Transfer::default(),
            state: PeerState::new(),
            unexpected: None,
            ahead: false,
            work: PeerWork::None,
            merge_tries: MERGE_TRIES,
        }
    }

    /// Whether the peer must not be read now. Either its replies exceed [`REPLY_QUEUE_MAX`], since
    /// it sends requests without reading replies, or it is too far ahead in a group. Correct peers
    /// stay below the limit, so two of them with many mutual requests cannot deadlock.
    #[inline]
    pub(crate) fn over_reply_limit(&self) -> bool {
        self.queue.reply_bytes > REPLY_QUEUE_MAX || self.ahead
    }

    /// Whether a connection or waiting work needs the entry.
    pub(crate) fn is_in_use(&self) -> bool {
        self.tx.is_some() || !self.queue.is_idle()
    }

    /// Whether a connection to the peer is being made and nothing has refused it so far.
    pub(crate) fn is_connecting(&self) -> bool {
        self.tx.is_none() && self.state.is_connecting()
    }

    /// Clears the state of a connection that has ended; the next one has number `life`.
    pub(crate) fn reset_connection(&mut self, life: u32) {
        self.tx = None;
        self.queue.reset_connection();
        self.life = life;
        self.blocks.free = ALL_BLOCKS;
        self.rma.outstanding = 0;
        self.rma.read_bytes = 0;
        self.rma.posted.reset_connection();
        self.rma.coop = None;
        self.transfer.streamed = false;
        self.transfer.rndv_select = None;
        self.transfer.copied = CopiedBytes::default();
        self.state.reset_attempts();
        self.merge_tries = MERGE_TRIES;
    }
}

impl Peer {
    /// Whether nothing is in flight to the peer, except records that it may not have read.
    pub(crate) fn has_nothing_in_flight(&self) -> bool {
        self.queue.is_idle()
            && self.blocks.are_all_free()
            && !self.rma.is_outstanding()
            && self.rma.read_bytes == 0
            && self.queue.reply_bytes == 0
    }
}

const _: () = assert!(scif_ring::CLAIM_BLOCKS == 64);
const _: () = {
    // Each of the posted reads has at least one byte.
    let posted = POSTED_READ_WINDOW * (1 + ANSWER_BYTES as u64);
    assert!(MAX_HONEST_REPLY_BYTES as u64 + READ_WINDOW + posted <= REPLY_QUEUE_MAX as u64);
};

/// Whether the kernel denies direct copies over a connection although the user enabled them.
pub(crate) fn is_denied(conn: &Connection) -> bool {
    crate::base::env::env().process_vm && conn.memory().denial().is_some()
}

/// Logs and counts that the kernel denies direct copies over a connection, unless the user disabled
/// them.
#[cold]
pub(crate) fn note_denial(conn: &Connection, peer: &mut Peer, stats: &mut Stats) {
    let Some(denial) = conn.memory().denial().filter(|_| is_denied(conn)) else {
        return;
    };
    crate::base::log::no_direct_copy(conn.peer(), denial);
    if !std::mem::replace(&mut peer.transfer.no_direct, true) {
        stats.denials.no_direct += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_block_is_taken_once() {
        let mut blocks = ClaimBlocks::new();
        let taken: Vec<u8> = (0..64).filter_map(|_| Some(blocks.take()?.0)).collect();
        assert_eq!(taken, (0..64).collect::<Vec<u8>>());
        assert!(blocks.take().is_none() && !blocks.are_all_free());
        blocks.give_back(7);
        assert_eq!(blocks.take(), Some((7, 65)), "in a new generation");
        (0..64).for_each(|block| blocks.give_back(block));
        assert!(blocks.are_all_free());
    }

    #[test]
    fn a_generation_is_never_zero() {
        let mut blocks = ClaimBlocks::new();
        for _ in 0..0x2_0000 {
            let (block, generation) = blocks.take().unwrap();
            assert!((1..0x1_0000).contains(&generation));
            blocks.give_back(block);
        }
    }

    #[test]
    fn a_reply_that_leaves_does_not_end_the_mark_of_an_exhausted_peer() {
        let mut queue = TxQueue::default();
        let bytes = vec![0; 5].into_boxed_slice();
        assert!(queue.answer_read(FragmentedSend::Read { op: 1, offset: 0, bytes, done: 0 }));
        queue.reply_bytes = EXHAUSTED;
        queue.end_stream();
        assert_eq!(queue.reply_bytes, EXHAUSTED);
        queue.reset_connection();
        assert_eq!(queue.reply_bytes, 0);
    }

    #[test]
    fn replies_count_until_they_are_in_the_ring() {
        let mut queue = TxQueue::default();
        for len in [5, 0] {
            let bytes = vec![0; len].into_boxed_slice();
            assert!(queue.answer_read(FragmentedSend::Read { op: 1, offset: 0, bytes, done: 0 }));
        }
        assert!(queue.is_quiet() && !queue.is_idle());
        assert_eq!(queue.reply_bytes, 2 * ANSWER_BYTES + 5);
        queue.end_stream();
        assert_eq!(queue.reply_bytes, ANSWER_BYTES);
        queue.control.push_back(Control {
            kind: 0,
            head: Head::new(),
            body: Vec::new(),
            counted: 0,
        });
        assert!(!queue.is_quiet());
        queue.reset_connection();
        assert!(queue.is_idle() && queue.reply_bytes == 0);
    }
}
