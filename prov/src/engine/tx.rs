// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Outgoing messages, and pending operations of all kinds.
//!
//! A short message travels in the ring: inline if it fits the header of its record, else in the
//! body. A longer one is announced (`rendezvous`). An operation that finds the ring full is pending
//! in the queue of its peer. The queue keeps the order, and nothing overtakes it.

use libfabric_sys as fi;
use scif::Access;
use scif_ring::copy::{Mem, total_len};
use scif_ring::{BODY_MAX, HEAD_MAX};

use super::iov::{Iov, gather};
use super::ops::{Label, NOTED, OutOp, What};
use super::peer::{MESSAGES_MAX, Peer};
use super::peer_id::PeerId;
use super::pending::{Kept, Source, TxOp};
use super::rts::BOTH_SIDES_MIN;
use super::wire;
use super::{AWAITS_TARGET, Env, EpState, Errno, SendArgs};

/// Bytes of datagrams that are kept for receivers. A datagram beyond the limit completes only when
/// its receiver has taken it.
const KEPT_MAX: usize = 64 << 20;

/// Result of an attempt to start an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// In the ring or finished; its completion is written or will follow.
    Sent,
    /// Not started: no ring space, no connection, or an earlier operation must finish first.
    Later,
}

impl EpState {
    /// Sends a message, or makes it pending.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, env: &mut Env<'_>, a: &SendArgs<'_>) -> Result<(), Errno> {
        let peer = self.peer_of(env, a.dest)?;
        if self.send_small(env, peer, a) { Ok(()) } else { self.send_any(env, peer, a) }
    }

    /// Sends an inline message on the fast path, from the arguments straight into the record. The
    /// peer must be connected, with nothing pending. Returns false if nothing was done.
    #[inline(always)]
    fn send_small(&mut self, env: &mut Env<'_>, peer: PeerId, a: &SendArgs<'_>) -> bool {
        let [payload] = a.iov else { return false };
        if a.flags & (fi::FI_FENCE | AWAITS_TARGET | NOTED) != 0 || payload.len() > HEAD_MAX {
            return false;
        }
        let p = self.peers.at(peer);
        let Some(conn) = p.tx.filter(|_| p.queue.is_quiet()).and_then(|id| self.links.conn(id))
        else {
            return false;
        };
        let kind = wire::EAGER | wire::INLINE;
        let pushed = match (a.tag, a.data) {
            (Some(tag), None) => conn.push_words(kind | wire::TAGGED, [tag, 0], 1, payload),
            (Some(tag), Some(data)) => {
                conn.push_words(kind | wire::TAGGED | wire::DATA, [tag, data], 2, payload)
            }
            (None, None) => conn.push_words(kind, [0, 0], 0, payload),
            (None, Some(data)) => conn.push_words(kind | wire::DATA, [data, 0], 1, payload),
        };
        if pushed.is_err() {
            return false;
        }
        conn.notify();
        self.stats.sent.add(payload.len());
        self.stats.inline.add(payload.len());
        let what = What::of(a.tag);
        self.tx_posted(env, what, a.context, a.flags, a.tag.unwrap_or(0), payload.len(), 0);
        true
    }

    /// Sends a message on the slow path, or makes it pending.
    #[inline(never)]
    fn send_any(&mut self, env: &mut Env<'_>, peer: PeerId, a: &SendArgs<'_>) -> Result<(), Errno> {
        let quiet = self.peers.at(peer).queue.is_quiet();
        if quiet && (a.flags & fi::FI_FENCE == 0 || self.fence_passed(peer)) {
            let tried =
                self.try_send(env, peer, Source::User(a.iov), a.tag, a.data, a.context, a.flags);
            if tried == Tried::Sent {
                return Ok(());
            }
        }
        let inject = a.flags & fi::FI_INJECT != 0;
        self.check_room(peer)?;
        let payload = Kept::new(a.iov, inject);
        self.defer(
            peer,
            TxOp::Message { payload, tag: a.tag, data: a.data, context: a.context, flags: a.flags },
        );
        Ok(())
    }

    /// Checks that one more operation may become pending.
    pub(crate) fn check_room(&self, peer: PeerId) -> Result<(), Errno> {
        let has_room = self.peers.at(peer).queue.pending.len() < self.cfg.tx_size.max(1);
        has_room.then_some(()).ok_or(fi::FI_EAGAIN)
    }

    /// Adds an operation to the pending ones of a peer.
    pub(crate) fn defer(&mut self, peer: PeerId, op: TxOp) {
        self.peers.at_mut(peer).queue.pending.push_back(op);
        self.peers.mark_busy(peer);
    }

    /// Whether a completion or counter depends on the placement of the payload at the target.
    fn wants_ack(&self, flags: u64) -> bool {
        flags & AWAITS_TARGET != 0
            && (flags & (fi::FI_COMPLETION | NOTED) != 0 || self.cfg.cntr_send.is_some())
    }

    /// Tries to put a message into the ring, or to announce it.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site each way; a struct would be built only to be taken apart"
    )]
    fn try_send(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        payload: Source<'_>,
        tag: Option<u64>,
        data: Option<u64>,
        context: usize,
        flags: u64,
    ) -> Tried {
        let Some(conn_id) = self.tx_conn(peer) else {
            return Tried::Later;
        };
        let len = payload.len();
        let what = What::of(tag);
        let want_ack = self.wants_ack(flags);
        let Some(conn) = self.links.conn(conn_id) else {
            return Tried::Later;
        };
        let env_cfg = crate::base::env::env();
        // Whether the receiver can copy the payload directly. Otherwise an announced payload would
        // cross the ring anyway.
        let copied_once = || {
            let streamed = self.peers.at(peer).transfer.streamed;
            env_cfg.process_vm && !streamed && conn.memory().access() != Access::None
        };
        let long = len > BODY_MAX || len > env_cfg.eager_size && copied_once();
        if long && flags & fi::FI_INJECT == 0 {
            let Source::User(iov) = payload else {
                return Tried::Later;
            };
            return self.announce(env, peer, iov, tag, data, context, flags);
        }
        let (mut kind, mut head) = wire::envelope(wire::EAGER, tag, data);
        let inline = len + head.as_slice().len() + if want_ack { 8 } else { 0 } <= HEAD_MAX;
        if want_ack {
            if !conn.tx().room(if inline { 0 } else { len })
                || self.ops.messages_to(peer) >= MESSAGES_MAX
            {
                return Tried::Later;
            }
            let label = Label { what, context, flags, tag: tag.unwrap_or(0), len };
            let op = OutOp::new(peer, label, Iov::new(&[]));
            kind |= wire::WANT_ACK;
            head = head.word(self.ops.insert(op));
        }
        let pushed = if inline {
            kind |= wire::INLINE;
            if let Some(tail) = head.tail(len) {
                payload.copy_to(tail);
            }
            conn.tx().push_head(kind, head.as_slice())
        } else {
            match payload {
                Source::User(iov) => conn.tx().push(kind, head.as_slice(), iov, 0, len),
                Source::Copied(bytes) => conn.tx().push_slice(kind, head.as_slice(), bytes),
            }
        };
        if pushed.is_err() {
            return Tried::Later;
        }
        conn.notify();
        self.stats.sent.add(len);
        if inline {
            self.stats.inline.add(len)
        } else {
            self.stats.ring.add(len)
        }
        if !want_ack {
            self.tx_complete(env, what, context, flags, tag.unwrap_or(0), len, 0);
        }
        Tried::Sent
    }

    /// Announces a message whose payload stays here until the receiver fetches it. The payload of a
    /// datagram is copied and the datagram completed: its sender must not wait for a receive that
    /// may never be posted.
    #[expect(clippy::too_many_arguments, reason = "those of `try_send`")]
    fn announce(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        iov: &[Mem],
        tag: Option<u64>,
        data: Option<u64>,
        context: usize,
        flags: u64,
    ) -> Tried {
        let len = total_len(iov);
        if self.ops.messages_to(peer) >= MESSAGES_MAX {
            return Tried::Later;
        }
        let p = self.peers.at_mut(peer);
        let Some(conn) = p.tx.and_then(|id| self.links.conn(id)) else {
            return Tried::Later;
        };
        let keeps = self.cfg.datagram
            && flags & AWAITS_TARGET == 0
            && self.ops.kept().saturating_add(len) <= KEPT_MAX;
        let mut list = Vec::new();
        if iov.len() > 1 && !keeps {
            for piece in iov {
                list.extend_from_slice(&(piece.addr() as u64).to_ne_bytes());
                list.extend_from_slice(&(piece.len() as u64).to_ne_bytes());
            }
        }
        if list.len() > BODY_MAX || !conn.tx().room(list.len()) {
            return Tried::Later;
        }
        let mut block = None;
        if iov.len() == 1 && !keeps && len >= BOTH_SIDES_MIN && crate::base::env::env().coop_copy {
            block = p.blocks.take();
            if let Some((number, generation)) = block {
                conn.tx_claim(usize::from(number)).reset(generation);
            }
        }
        let kept = keeps.then(|| gather(iov).into_boxed_slice());
        let addr = match &kept {
            Some(bytes) => bytes.as_ptr().expose_provenance(),
            None => iov.first().map_or(0, Mem::addr),
        };
        let label = Label { what: What::of(tag), context, flags, tag: tag.unwrap_or(0), len };
        let op = OutOp {
            kept,
            block,
            ..OutOp::new(peer, label, Iov::new(if keeps { &[] } else { iov }))
        };
        let id = self.ops.insert(op);
        let (kind, head) = wire::envelope(wire::RTS, tag, data);
        let misc =
            block.map_or(0, |(b, generation)| (u64::from(b) + 1) | u64::from(generation) << 16);
        let head = head.word(id).word(len as u64).word(addr as u64).word(misc);
        if conn.tx().push_slice(kind, head.as_slice(), &list).is_err() {
            self.ops.remove(id);
            if let Some((block, _)) = block {
                p.blocks.give_back(block);
            }
            return Tried::Later;
        }
        conn.notify();
        if block.is_some() {
            self.rndv.coop_sends.push_back(id);
        }
        self.stats.sent.add(len);
        if keeps {
            self.tx_complete(env, What::of(tag), context, flags, tag.unwrap_or(0), len, 0);
        }
        Tried::Sent
    }

    /// Starts pending work towards `peer`. Returns true when none is left.
    pub(crate) fn flush_peer(&mut self, env: &mut Env<'_>, peer: PeerId) -> bool {
        // Work that failed with its connection is no reason to connect again.
        let idle = |p: &Peer| p.queue.is_quiet() && p.queue.streams.is_empty();
        if idle(self.peers.at(peer)) {
            return true;
        }
        let Some(conn_id) = self.tx_conn(peer) else {
            return false;
        };
        let mut pushed = false;
        let p = self.peers.at_mut(peer);
        while let (Some(record), Some(conn)) = (p.queue.control.front(), self.links.conn(conn_id)) {
            if conn.tx().push_slice(record.kind, record.head.as_slice(), &record.body).is_err() {
                conn.notify();
                return false;
            }
            pushed = true;
            p.queue.end_control();
        }
        // An operation may leave a control record that found the ring full. The next operation must
        // not overtake that record.
        while self.peers.at(peer).queue.control.is_empty()
            && let Some(mut op) = self.peers.at_mut(peer).queue.pending.pop_front()
        {
            if self.try_op(env, peer, &mut op) == Tried::Later {
                self.peers.at_mut(peer).queue.pending.push_front(op);
                break;
            }
            pushed = true;
        }
        pushed |= self.flush_streams(peer, conn_id);
        if pushed && let Some(conn) = self.links.conn(conn_id) {
            conn.notify();
        }
        idle(self.peers.at(peer))
    }

    fn try_op(&mut self, env: &mut Env<'_>, peer: PeerId, op: &mut TxOp) -> Tried {
        match op {
            TxOp::Message { payload, tag, data, context, flags } => {
                if *flags & fi::FI_FENCE != 0 && !self.fence_passed(peer) {
                    return Tried::Later;
                }
                self.try_send(env, peer, payload.source(), *tag, *data, *context, *flags)
            }
            TxOp::Rma(op) => self.try_rma(env, peer, op),
            TxOp::Atomic(op) => self.try_atomic(env, peer, op),
            TxOp::Coll(out) => self.try_coll(env, peer, out),
        }
    }

    /// Whether every earlier operation to this peer is complete, as `FI_FENCE` requires.
    pub(crate) fn fence_passed(&mut self, peer: PeerId) -> bool {
        if self.ops.any_incomplete(peer) {
            return false;
        }
        let conn = self.peers.at(peer).tx;
        conn.and_then(|id| self.links.conn(id)).is_none_or(|c| c.tx().all_consumed())
    }

    /// Fails every operation that is pending towards `peer`.
    pub(crate) fn fail_pending(&mut self, env: &mut Env<'_>, peer: PeerId, err: Errno) {
        let p = self.peers.at_mut(peer);
        for op in std::mem::take(&mut p.queue.pending) {
            // A started operation has a number and is failed by it.
            if op.started().is_none()
                && let Some(l) = op.label()
            {
                self.tx_complete(env, l.what, l.context, l.flags, l.tag, l.len, err);
            }
            if let TxOp::Coll(out) = op {
                self.coll_unsent(env, peer, out.group(), err);
            }
        }
    }
}
