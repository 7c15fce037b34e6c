// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rendezvous: large messages that the sender announces (`RTS`) and the receiver fetches.
//!
//! The receiver selects the method. A pull reads the pages of the sender directly, if the kernel
//! permits it. If the sender gave a claim block, the receiver offers its buffer there for a
//! cooperative copy. Both sides then claim parts, the sender from the front, the receiver from the
//! back. A part is copied within the call that claimed it. The receive completes when no claimed
//! part is open. If direct access fails or is slower (`rndv_select`), the receiver requests fragments
//! through the ring (`CTS`, `streams`).

use std::collections::VecDeque;

use libfabric_sys as fi;
use scif::{Access, AccessError, ConnId, Connection, RemoteMem};
use scif_ring::ClaimShare;

use super::envelope::{MsgEnvelope, Target};
use super::ops::Asked;
use super::peer::{is_denied, note_denial};
use super::peer_id::PeerId;
use super::rndv_select::RndvProto;
use super::rts::{BOTH_SIDES_MIN, Rts};
use super::wire::{self, Head};
use super::{Env, EpState, Stats};
use crate::base::slab::Slab;

/// Largest part of a cooperative copy in bytes. Together with `TAKE_MAX` it bounds the time of one
/// claim.
const PART_MAX: usize = scif_ring::CLAIM_PART_MAX;
/// Smallest part of a cooperative copy in bytes. With smaller ones the fixed cost of a
/// cross-process copy is noticeable.
const PART_MIN: usize = 16 * 1024;
/// Largest number of parts in one claim. While much is left, larger claims need fewer system calls.
const TAKE_MAX: u32 = 8;
/// Bytes that one progress call copies before it polls its rings again. A larger budget delays
/// other peers.
const BUDGET: usize = 4 * 1024 * 1024;
/// Number of the oldest large sends that each progress call copies for, besides as many of the
/// others in turn. More of them delay the caller.
const HELP_DEPTH: usize = 4;
/// Time in nanoseconds without a fragment after which a message sent through the ring by choice is
/// pulled.
const SILENCE_NS: u64 = 100_000;

/// State of an incoming large message.
#[derive(Debug)]
pub(super) enum How {
    /// Pull: this side copies alone.
    Alone { done: usize },
    /// Cooperative copy: both sides claim parts.
    Shared {
        block: usize,
        generation: u32,
        part: usize,
        parts: u32,
        /// Whether this side has repeated the parts that the sender failed to copy.
        mended: bool,
        /// Bytes that this side copied.
        own: usize,
    },
    /// No more claims are made, but parts of the sender are still open. Fragments follow.
    Closing { block: usize },
    /// Requested as fragments through the ring.
    Streaming { done: usize },
    /// Fails with `err` as soon as no part of the sender is open any more (`parting`).
    Ending { block: usize, err: i32 },
}

/// Matched large message whose payload is on its way.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) target: Target,
    pub(super) arrival: MsgEnvelope,
    rts: Rts,
    pub(super) want: usize,
    pub(super) how: How,
    pub(super) stamp: u32,
    /// Method of the transfer, if there was a choice.
    proto: Option<RndvProto>,
    /// With the ring as method: bytes received at the last check, and the time of the last change.
    heard: (usize, u64),
    /// Keeps the pages of the buffer in place while the sender copies, where pages may migrate.
    _arrival: Option<scif::Arrival>,
}

impl Incoming {
    pub(crate) fn peer(&self) -> PeerId {
        self.arrival.peer
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.rts.conn()
    }

    /// Returns the operation number of the sender.
    pub(super) fn op(&self) -> u64 {
        self.rts.op
    }
}

/// Large messages in progress of one endpoint, in both directions.
#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    /// Matched large messages, and their indexes, oldest first.
    pub(super) incoming: Slab<Incoming>,
    pub(super) order: VecDeque<u32>,
    stamp: u32,
    /// Outstanding large sends with a claim block, oldest first.
    pub(super) coop_sends: VecDeque<u64>,
    /// Index in `coop_sends` of the entry to serve next, behind the oldest ones, which are always
    /// served.
    coop_next: usize,
}

impl Rendezvous {
    /// Whether nothing is in progress.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.coop_sends.is_empty()
    }

    /// Whether a message from `peer` is being fetched.
    pub(super) fn fetches_from(&self, peer: PeerId) -> bool {
        self.incoming.iter().any(|(_, m)| m.peer() == peer)
    }

    /// Whether a peer may be writing into a buffer that was offered over `conn`.
    pub(super) fn is_filled_over(&self, conn: ConnId) -> bool {
        self.incoming.iter().any(|(_, m)| m.conn() == conn)
    }

    /// Removes outstanding send `id` from the cooperative copies.
    pub(super) fn end_coop(&mut self, id: u64) {
        self.coop_sends.retain(|send| *send != id);
    }
}

/// Result of one step of an incoming message.
enum Step {
    Done,
    Waiting,
    Failed(i32),
}

/// Returns the part size of a cooperative copy. A short message is one claim for each side.
///
/// With other messages in progress the claims are halves. If the message is `alone`, both sides
/// should end together. The receiver then claims more than the sender, by a sixteenth of the
/// message, for two reasons. It starts earlier, by the time a cache line takes to reach the sender.
/// It also reads faster than the sender writes, since its core holds the lines of the buffer.
fn part_size(len: usize, alone: bool) -> usize {
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
fn takes(parts: u32, more: bool) -> (u32, ClaimShare) {
    if more {
        (parts.div_ceil(2).min(TAKE_MAX), ClaimShare::All)
    } else {
        (TAKE_MAX, ClaimShare::Half)
    }
}

impl Incoming {
    /// Copies the parts that this side can copy, within the budget. Returns whether the message is
    /// complete.
    fn copy(
        &mut self,
        conn: &Connection,
        more: bool,
        budget: &mut usize,
        stats: &mut Stats,
    ) -> Result<bool, AccessError> {
        match &mut self.how {
            How::Alone { done } => {
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
            How::Shared { block, generation, part, parts, mended, own } => {
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
                            Some(failed) if !*mended => {
                                *mended = true;
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
                    stats.both_sides.add(n);
                }
            }
            How::Streaming { .. } | How::Closing { .. } | How::Ending { .. } => Ok(false),
        }
    }
}

impl EpState {
    /// Starts the transfer of a matched large message, by the best available method.
    pub(crate) fn start_incoming(
        &mut self,
        env: &mut Env<'_>,
        target: Target,
        arrival: MsgEnvelope,
        rts: Rts,
    ) {
        let want = target.room.min(arrival.len);
        let conn = rts.conn();
        // The end of the connection has been handled and fails no further receive. The sender
        // revokes its announced memory.
        if self.links.is_parting(conn) {
            return self.complete_recv(env, &target, &arrival, 0, fi::FI_ECONNRESET);
        }
        let access = match self.links.conn(conn) {
            Some(c)
                if crate::base::env::env().process_vm || c.memory().access() == Access::Mapped =>
            {
                c.memory().access()
            }
            Some(_) => Access::None,
            // The sender is gone, and the payload with it.
            None => return self.complete_recv(env, &target, &arrival, 0, fi::FI_ECONNRESET),
        };
        let stamp = self.rndv.stamp.wrapping_add(1);
        self.rndv.stamp = stamp;
        let mut how = How::Alone { done: 0 };
        let mut still = None;
        let mut proto = None;
        if access == Access::ProcessVm
            && want >= BOTH_SIDES_MIN
            && crate::base::env::env().coop_copy
            && let (Some((block, generation)), Some(to)) = (rts.block, target.iov.contiguous())
        {
            proto = self.select_proto(arrival.peer, want);
            let part = part_size(want, self.rndv.order.is_empty());
            let parts = u32::try_from(want.div_ceil(part)).unwrap_or(u32::MAX);
            if proto != Some(RndvProto::Fragments)
                && let (Some(c), Ok(part_len)) = (self.links.conn(rts.conn()), u32::try_from(part))
            {
                if crate::base::env::env().migrate {
                    still = Some(scif::Arrival::new(to.addr(), to.len()));
                }
                c.rx_claim(block).offer(generation, to.addr() as u64, want as u64, part_len, parts);
                how = How::Shared { block, generation, part, parts, mended: false, own: 0 };
            }
        }
        let refused = access == Access::None;
        let stream = want > 0 && (refused || proto == Some(RndvProto::Fragments));
        let Some(index) = self.rndv.incoming.insert(Incoming {
            target,
            arrival,
            rts,
            want,
            how,
            stamp,
            proto,
            heard: (0, 0),
            _arrival: still,
        }) else {
            return;
        };
        self.rndv.order.push_back(index);
        if stream {
            let denied = refused && self.links.conn(conn).is_some_and(|c| is_denied(c));
            self.stats.fallbacks += u64::from(denied);
            self.ask_for_stream(index, refused);
        }
    }

    /// Selects the method for a message of `want` bytes that both sides can copy, if there is a
    /// choice.
    fn select_proto(&mut self, peer: PeerId, want: usize) -> Option<RndvProto> {
        let alone = self.rndv.order.is_empty();
        let selector = &mut self.peers.at_mut(peer).transfer.rndv_select;
        selector.get_or_insert_default().choose(want, alone)
    }

    /// Reports the end of a message to the selector of methods, if there was a choice.
    fn report_proto(&mut self, m: &Incoming, failed: bool) {
        let Some(proto) = m.proto else { return };
        let Some(selector) = &mut self.peers.at_mut(m.arrival.peer).transfer.rndv_select else {
            return;
        };
        let helped = match (proto, &m.how) {
            (RndvProto::CoopCopy, How::Shared { own, .. }) if !failed => *own < m.want,
            (RndvProto::Fragments, How::Streaming { .. }) if !failed => true,
            (RndvProto::Fragments, How::Alone { .. }) => return selector.on_sender_stalled(m.want),
            _ => return selector.interrupted(m.want),
        };
        selector.ended(m.want, proto, helped, scif::now_ns());
    }

    /// Falls back to a pull for a message sent through the ring by choice. A sender without a
    /// fragment for `SILENCE_NS` is outside the library. Its later fragments name a receive that no
    /// longer exists.
    fn fetch_after_all(&mut self, index: u32) -> bool {
        let now = scif::now_ns();
        let stamp = self.rndv.stamp.wrapping_add(1);
        // No thread should sleep until then.
        self.throttle.more = true;
        let Some(m) = self.rndv.incoming.get_mut(index) else {
            return false;
        };
        let How::Streaming { done } = m.how else {
            return false;
        };
        let (heard, since) = m.heard;
        if since == 0 || heard != done {
            m.heard = (done, now);
            return false;
        }
        if now.saturating_sub(since) < SILENCE_NS {
            return false;
        }
        self.rndv.stamp = stamp;
        m.stamp = stamp;
        m.how = How::Alone { done };
        true
    }

    /// Copies incoming messages, the oldest first, within the budget of one call.
    pub(crate) fn run_incoming(&mut self, env: &mut Env<'_>) {
        let mut budget = BUDGET;
        let mut at = 0;
        while let Some(index) = self.rndv.order.get(at).copied() {
            match self.step(index, &mut budget) {
                Step::Done => self.end_incoming(env, at, index, 0),
                Step::Failed(err) => self.end_incoming(env, at, index, err),
                Step::Waiting => at += 1,
            }
            if budget == 0 {
                self.throttle.more = true;
                break;
            }
        }
    }

    /// Ends an incoming message: replies `FIN` to the sender and completes the receive.
    pub(super) fn end_incoming(&mut self, env: &mut Env<'_>, at: usize, index: u32, err: i32) {
        if err != 0 && self.withdraw(index, err) {
            return;
        }
        self.rndv.order.remove(at);
        let Some(m) = self.rndv.incoming.remove(index) else {
            return;
        };
        self.report_proto(&m, err != 0);
        let status = u64::from(err.unsigned_abs());
        // After the end of a connection its peer expects no reply.
        if !self.links.is_parting(m.conn()) {
            let head = Head::new().word(m.rts.op).word(status);
            self.answer(m.arrival.peer, wire::FIN, head, &[]);
        }
        let copied = if err == 0 { m.want } else { 0 };
        self.complete_recv(env, &m.target, &m.arrival, copied, err);
    }

    fn step(&mut self, index: u32, budget: &mut usize) -> Step {
        let more = self.rndv.order.len() > 1;
        let Some(m) = self.rndv.incoming.get_mut(index) else {
            return Step::Done;
        };
        if m.want == 0 {
            return Step::Done;
        }
        let Some(conn) = self.links.conn(m.rts.conn) else {
            return Step::Failed(fi::FI_ECONNRESET);
        };
        match &mut m.how {
            How::Streaming { done } if *done == m.want => return Step::Done,
            How::Streaming { .. } if m.proto == Some(RndvProto::Fragments) => {
                return if self.fetch_after_all(index) {
                    self.step(index, budget)
                } else {
                    Step::Waiting
                };
            }
            How::Streaming { .. } => return Step::Waiting,
            How::Closing { block } => {
                if conn.rx_claim(*block).open_parts() == 0 {
                    self.ask_for_stream(index, true);
                }
                return Step::Waiting;
            }
            How::Ending { block, err } => {
                let err = *err;
                return if conn.rx_claim(*block).open_parts() > 0 && conn.may_be_copying() {
                    Step::Waiting
                } else {
                    Step::Failed(err)
                };
            }
            How::Alone { .. } | How::Shared { .. } => {}
        }
        // If the peer has left or died, the end of the connection follows and fails the receive.
        if !conn.enter() {
            return Step::Waiting;
        }
        let copied = m.copy(conn, more, budget, &mut self.stats);
        conn.exit();
        let error = match copied {
            Ok(true) => None,
            Ok(false) => return Step::Waiting,
            Err(error) => Some(error),
        };
        match error {
            None => Step::Done,
            Some(AccessError::Gone) => Step::Failed(fi::FI_ECONNRESET),
            Some(error) => {
                self.stats.fallbacks += 1;
                if matches!(error, AccessError::Denied) {
                    conn.memory_mut().deny();
                    let peer = self.peers.at_mut(m.arrival.peer);
                    note_denial(conn, peer, &mut self.stats);
                } else {
                    crate::base::log::fall_back(conn.peer(), conn.peer_pid(), &error);
                }
                if let How::Shared { block, .. } = m.how {
                    conn.rx_claim(block).close();
                    m.how = How::Closing { block };
                    return Step::Waiting;
                }
                m.proto = None;
                self.ask_for_stream(index, true);
                Step::Waiting
            }
        }
    }

    /// Copies parts, as the sender, of messages whose receivers have offered their buffers.
    pub(crate) fn help(&mut self) {
        let mut at = 0;
        while at < HELP_DEPTH.min(self.rndv.coop_sends.len()) {
            let Some(id) = self.rndv.coop_sends.get(at).copied() else {
                return;
            };
            if self.help_one(id) {
                self.rndv.coop_sends.remove(at);
            } else {
                at += 1;
            }
        }
        // The oldest messages may all be for a peer that makes no progress.
        for _ in HELP_DEPTH..self.rndv.coop_sends.len().min(2 * HELP_DEPTH) {
            let at = match self.rndv.coop_next {
                next if (HELP_DEPTH..self.rndv.coop_sends.len()).contains(&next) => next,
                _ => HELP_DEPTH,
            };
            self.rndv.coop_next = at + 1;
            if let Some(id) = self.rndv.coop_sends.get(at).copied()
                && self.help_one(id)
            {
                self.rndv.coop_sends.remove(at);
                self.rndv.coop_next = at;
            }
        }
    }

    /// Copies parts of one message. Returns true when nothing is left to copy.
    fn help_one(&mut self, id: u64) -> bool {
        let more = self.rndv.coop_sends.len() > 1;
        let Some(op) = self.ops.get_mut(id).filter(|op| op.asked == Asked::Never) else {
            return true;
        };
        let (Some((block, generation)), Some(from)) = (op.block, op.iov.contiguous()) else {
            return true;
        };
        let to = op.peer;
        let p = self.peers.at(to);
        let Some(conn) = p.tx.and_then(|c| self.links.conn(c)) else {
            return true;
        };
        if conn.memory().access() != Access::ProcessVm || !crate::base::env::env().process_vm {
            return conn.is_up();
        }
        if !conn.alive_recently() {
            return true;
        }
        let claim = conn.tx_claim(usize::from(block));
        let Some(offer) = claim.peer_offer(generation) else {
            return false;
        };
        let (part, len) = (offer.part as usize, usize::try_from(offer.len).unwrap_or(0));
        if len > from.len() {
            return true;
        }
        let (most, share) = takes(offer.parts, more);
        // Bounds the work that a malicious receiver can cause in one call.
        let mut left = offer.parts;
        while left > 0
            && let Some(taken) = claim.claim_front(generation, offer.parts, most, share)
        {
            let (off, count) = (taken.start as usize * part, taken.end - taken.start);
            left = left.saturating_sub(count);
            let Some(local) = from.sub(off, (taken.len() * part).min(len.saturating_sub(off)))
            else {
                claim.complete_front(count, false);
                conn.notify();
                return true;
            };
            let remote = RemoteMem {
                addr: offer.dst_addr.wrapping_add(off as u64),
                len: local.len() as u64,
            };
            match conn.memory().write(&[local], &[remote]) {
                Ok(()) => {
                    claim.complete_front(count, true);
                    // The receiver may sleep until the last part is in place.
                    conn.notify();
                    self.stats.both_sides.add(local.len());
                }
                Err(error) => {
                    claim.complete_front(count, false);
                    conn.notify();
                    if matches!(error, AccessError::Denied) {
                        conn.memory_mut().deny();
                        note_denial(conn, self.peers.at_mut(to), &mut self.stats);
                    }
                    return true;
                }
            }
        }
        true
    }
}
