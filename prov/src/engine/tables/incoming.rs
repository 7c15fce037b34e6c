// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large messages in progress, and the parts of a cooperative copy.
//!
//! Not here: the selection of the method, and the replies (`protocols::rendezvous`).

use std::collections::VecDeque;

use scif::slab::Slab;
use scif::{Access, AccessError, ConnId, Connection, RemoteMem};
use scif_ring::ClaimShare;
use scif_ring::copy::Mem;

use crate::engine::tables::rndv_select::RndvProto;
use crate::engine::types::envelope::{MsgEnvelope, RecvTarget};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::rts::{BOTH_SIDES_MIN, Rts};
use crate::engine::types::stats::Stats;

/// Largest part of a cooperative copy in bytes. Together with `TAKE_MAX` it bounds the time of one
/// claim.
const PART_MAX: usize = scif_ring::CLAIM_PART_MAX;
/// Smallest part of a cooperative copy in bytes. With smaller ones the fixed cost of a
/// cross-process copy is noticeable.
pub(crate) const PART_MIN: usize = 16 * 1024;
/// Largest number of parts in one claim. While much is left, larger claims need fewer system calls.
const TAKE_MAX: u32 = 8;

/// State of an incoming large message.
#[derive(Debug)]
pub(crate) enum RndvState {
    /// Pull: this side copies alone.
    Pull { done: usize },
    /// Cooperative copy: both sides claim parts.
    CoopCopy {
        block: usize,
        generation: u32,
        part: usize,
        parts: u32,
        /// Whether this side has repeated the parts that the sender failed to copy.
        repeated: bool,
        /// Bytes that this side copied.
        own: usize,
    },
    /// No more claims are made, but parts of the sender are still open. Fragments follow.
    Draining { block: usize },
    /// Requested as fragments through the ring.
    Fragments { done: usize },
    /// Read by the engine of the network, under this number once it has begun.
    Reading { number: Option<u64> },
    /// Fails with `err` as soon as no part of the sender is open any more (`parting`).
    Ending { block: usize, err: i32 },
    /// Fails with `err` as soon as the network has ended its read (`parting`).
    EndingRead { number: u64, err: i32 },
}

/// Matched large message whose payload is on its way.
#[derive(Debug)]
pub(crate) struct RndvRecv {
    pub(crate) target: RecvTarget,
    pub(crate) arrival: MsgEnvelope,
    pub(crate) rts: Rts,
    pub(crate) want: usize,
    pub(crate) how: RndvState,
    pub(crate) stamp: u32,
    /// Method of the transfer, if there was a choice.
    pub(crate) proto: Option<RndvProto>,
    /// With the ring as method: bytes received at the last check, and the time of the last change.
    pub(crate) heard: (usize, u64),
    /// Time in nanoseconds of the last progress call before the transfer began.
    pub(crate) since_ns: u64,
    /// Keeps the pages of the buffer in place while the sender copies, where pages may migrate.
    pub(crate) _arrival: Option<scif::Arrival>,
}

impl RndvRecv {
    pub(crate) fn peer(&self) -> PeerId {
        self.arrival.peer
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.rts.conn()
    }

    /// Returns the operation number of the sender.
    pub(crate) fn op(&self) -> u64 {
        self.rts.op
    }

    /// Returns the bytes that are known to have arrived.
    pub(crate) fn done(&self) -> usize {
        match self.how {
            RndvState::Pull { done } | RndvState::Fragments { done } => done,
            RndvState::CoopCopy { own, .. } => own,
            RndvState::Draining { .. }
            | RndvState::Ending { .. }
            | RndvState::Reading { .. }
            | RndvState::EndingRead { .. } => 0,
        }
    }

    /// Returns the destination and source of a short message of which nothing is fetched yet, if
    /// each is one range.
    pub(crate) fn short_pull(&self) -> Option<(Mem, RemoteMem)> {
        let is_new = matches!(self.how, RndvState::Pull { done: 0 });
        if !is_new || !(1..BOTH_SIDES_MIN).contains(&self.want) {
            return None;
        }
        let to = self.target.iov.contiguous()?.sub(0, self.want)?;
        Some((to, self.rts.piece(self.want)?))
    }
}

/// Large messages in progress of one endpoint, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    /// Matched large messages, and their indexes, oldest first.
    pub(crate) incoming: Slab<RndvRecv>,
    pub(crate) order: VecDeque<u32>,
    pub(crate) stamp: u32,
    /// Outstanding large sends with a claim block, oldest first.
    pub(crate) coop_sends: VecDeque<u64>,
    /// Index in `coop_sends` of the entry to serve next, behind the oldest ones, which are always
    /// served.
    pub(crate) coop_next: usize,
}

impl Rendezvous {
    /// Whether nothing is in progress.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.coop_sends.is_empty()
    }

    /// Whether a message from `peer` is being fetched.
    pub(crate) fn fetches_from(&self, peer: PeerId) -> bool {
        self.incoming.iter().any(|(_, m)| m.peer() == peer)
    }

    /// Whether a peer may be writing into a buffer that was offered over `conn`.
    pub(crate) fn is_filled_over(&self, conn: ConnId) -> bool {
        self.incoming.iter().any(|(_, m)| m.conn() == conn)
    }

    /// Removes outstanding send `id` from the cooperative copies.
    pub(crate) fn end_coop(&mut self, id: u64) {
        self.coop_sends.retain(|send| *send != id);
    }
}

impl RndvRecv {
    /// Copies the parts that this side can copy, within the budget. Returns whether the message is
    /// complete.
    pub(crate) fn copy(
        &mut self,
        conn: &Connection,
        more: bool,
        budget: &mut usize,
        stats: &mut Stats,
    ) -> Result<bool, AccessError> {
        match &mut self.how {
            RndvState::Pull { done } => {
                while *done < self.want {
                    if *budget == 0 {
                        return Ok(false);
                    }
                    let n = (self.want - *done).min(*budget);
                    self.rts.fetch(conn.memory(), &self.target.iov, *done, n)?;
                    *done += n;
                    *budget -= n;
                    if conn.memory().access() == Access::Mapped {
                        stats.mapped.add(n)
                    } else {
                        stats.process_vm.add(n)
                    }
                }
                Ok(true)
            }
            RndvState::CoopCopy { block, generation, part, parts, repeated, own } => {
                let claim = conn.rx_claim(*block);
                let (most, share) = takes(*parts, more);
                loop {
                    if *budget == 0 {
                        return Ok(false);
                    }
                    let taken = match claim.claim_back(*generation, *parts, most, share) {
                        Some(taken) => taken,
                        None if claim.open_parts() > 0 => return Ok(false),
                        None => match claim.failed_front(*parts) {
                            Some(failed) if !*repeated => {
                                *repeated = true;
                                failed
                            }
                            _ => return Ok(true),
                        },
                    };
                    let off = taken.start as usize * *part;
                    let n = (taken.len() * *part).min(self.want - off);
                    self.rts.fetch(conn.memory(), &self.target.iov, off, n)?;
                    *budget = budget.saturating_sub(n);
                    *own += n;
                    stats.coop_copy.add(n);
                }
            }
            RndvState::Fragments { .. }
            | RndvState::Draining { .. }
            | RndvState::Ending { .. }
            | RndvState::Reading { .. }
            | RndvState::EndingRead { .. } => Ok(false),
        }
    }
}

/// Returns the part size of a cooperative copy. A short message is one claim for each side.
///
/// With other messages in progress the claims are halves. If the message is `alone`, both sides
/// should end together. The receiver then claims more than the sender, by a sixteenth of the
/// message, for two reasons. It starts earlier, by the time a cache line takes to reach the sender.
/// It also reads faster than the sender writes, since its core holds the lines of the buffer.
pub(crate) fn part_size(len: usize, alone: bool) -> usize {
    let part = if alone {
        (len / 2 - len / 32).next_multiple_of(64)
    } else {
        (len / 2).next_multiple_of(4096)
    };
    part.clamp(PART_MIN, PART_MAX)
}

/// Returns the maximum number of parts of one claim, and the share of the rest that it takes. With
/// `more` messages behind this one, both sides need not end together: the side that finishes first
/// continues with the next message. Each side then claims half of the parts at once, up to
/// `TAKE_MAX`. So a message of few parts is always divided at the same place, with one system call
/// for each side.
pub(crate) fn takes(parts: u32, more: bool) -> (u32, ClaimShare) {
    if more {
        (parts.div_ceil(2).min(TAKE_MAX), ClaimShare::All)
    } else {
        (TAKE_MAX, ClaimShare::Half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_message_is_divided_for_a_common_end() {
        let len = 1 << 20;
        assert_eq!(part_size(len, true), PART_MAX.min(len / 2 - len / 32));
        assert_eq!(part_size(len, false), PART_MAX.min(len / 2));
        assert_eq!(part_size(PART_MIN, true), PART_MIN, "a part is not too small");
        assert!(matches!(takes(3, true), (2, ClaimShare::All)));
        assert!(matches!(takes(100, true), (TAKE_MAX, ClaimShare::All)));
        assert!(matches!(takes(3, false), (TAKE_MAX, ClaimShare::Half)));
    }

    #[test]
    fn a_send_leaves_the_cooperative_copies() {
        let mut rndv = Rendezvous::default();
        rndv.coop_sends.extend([7, 8, 9]);
        assert!(!rndv.is_idle());
        rndv.end_coop(8);
        assert_eq!(rndv.coop_sends, [7, 9]);
        [7, 9].into_iter().for_each(|id| rndv.end_coop(id));
        assert!(rndv.is_idle());
    }
}
