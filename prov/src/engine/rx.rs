// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Incoming messages on the slow path, from a ring record to the receive and its completion.
//!
//! A peer may write anything into a record. Lengths are bounded by the ring, numbers are looked up
//! in tables, and an invalid record resets its connection.

use libfabric_sys as fi;
use scif_ring::copy::{Mem, copy_iov, total_len};
use scif_ring::spsc::Record;

use super::envelope::{Many, MsgEnvelope, RecordError, Target};
use super::iov::{Iov, bytes_of, copy_of};
use super::matching::{Arrived, Payload, Posted};
use super::multi::Multi;
use super::ops::NOTED;
use super::peer_id::{ANY, PeerId};
use super::rts::Rts;
use super::wire::{self, Head, Words};
use super::{Effect, Env, EpState, Errno, RecvArgs};
use crate::state::completion::{Completion, CqError};
use scif::ConnId;

impl EpState {
    /// Handles one record from the ring of `peer`.
    pub(crate) fn on_record(
        &mut self,
        env: &mut Env<'_>,
        conn: ConnId,
        peer: PeerId,
        record: &Record,
    ) -> Result<(), RecordError> {
        if record.kind & 0xf0 == wire::EAGER {
            return self.on_eager(env, peer, record);
        }
        let mut words = Words::new(&record.head, record.head_len);
        match record.kind {
            kind if kind & 0xf0 == wire::RTS => self.on_rts(env, conn, peer, record),
            wire::FIN | wire::ACK => {
                let (id, status, bytes) = (words.word(), words.word(), words.word());
                self.on_ack(env, peer, id, status, bytes);
                Ok(())
            }
            wire::CTS => Ok(self.on_cts(peer, &mut words)?),
            wire::STREAM => {
                let (receive, offset) = (words.word(), words.word());
                Ok(self.on_stream(env, peer, receive, offset, record.body)?)
            }
            wire::WRITE => Ok(self.on_write(env, conn, peer, &mut words, record.body)?),
            wire::READ => self.on_read(env, conn, peer, &mut words),
            wire::READ_DATA => {
                let (id, offset) = (words.word(), words.word());
                self.on_read_data(env, peer, id, offset, record.body);
                Ok(())
            }
            wire::ATOMIC => self.on_atomic(env, peer, &mut words, record.body),
            wire::ATOMIC_REPLY => {
                let (id, status, old) = (words.word(), words.word(), words.word());
                self.on_atomic_reply(env, peer, id, status, (old, record.body));
                Ok(())
            }
            wire::ATOMIC_LINE => Ok(self.on_atomic_line(env, peer, &mut words)?),
            wire::DONE => {
                let (stamp, count) = (words.word(), words.word());
                self.on_done(peer, stamp, count);
                Ok(())
            }
            wire::RMA_EVENT => {
                let (flags, data, len, key) =
                    (words.word(), words.word(), words.word(), words.word());
                let data = (flags & wire::F_DATA != 0).then_some(data);
                let effect = match (flags & wire::F_READ != 0, flags & wire::F_MODIFY != 0) {
                    (false, _) => Effect::Write,
                    (true, false) => Effect::Read,
                    (true, true) => Effect::ReadWrite,
                };
                self.rma_event(
                    env,
                    peer,
                    effect,
                    data,
                    usize::try_from(len).unwrap_or(usize::MAX),
                    key,
                );
                Ok(())
            }
            wire::HARD_USE => {
                let (key, uses) = (words.word(), words.word());
                env.mrs.note_remote_use(key, uses);
                Ok(())
            }
            wire::COLL_JOIN..=wire::COLL_ABORT => {
                self.on_coll(env, peer, record.kind, &mut words, record.body)
            }
            #[cfg(test)]
            super::tests::poison::FATAL => {
                super::tests::poison::strike(super::tests::poison::STRUCK)
            }
            _ => Err(RecordError::ProtocolError),
        }
    }

    /// Handles an eager message.
    #[inline]
    fn on_eager(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        record: &Record,
    ) -> Result<(), RecordError> {
        let kind = record.kind;
        let mut words = Words::new(&record.head, record.head_len);
        let tagged = kind & wire::TAGGED != 0;
        let tag = if tagged { words.word() } else { 0 };
        let data = (kind & wire::DATA != 0).then(|| words.word());
        let ack = (kind & wire::WANT_ACK != 0).then(|| words.word());
        let inline = words.rest();
        let is_inline = kind & wire::INLINE != 0;
        let len = if is_inline { inline.len() } else { record.body.len() };
        let arrival = MsgEnvelope { peer, tag, data, len };
        match self.take_target(env, tagged, peer, tag, len) {
            Some(target) => {
                let copied = match (is_inline, target.iov.as_slice()) {
                    (true, [one]) => one.copy_from_slice(inline),
                    (true, many) => scatter(many, inline),
                    (false, to) => {
                        copy_iov(to, 0, std::slice::from_ref(&record.body), 0, target.room)
                    }
                };
                if let Some(id) = ack {
                    self.answer(peer, wire::ACK, Head::new().word(id).word(0), &[]);
                }
                self.complete_recv(env, &target, &arrival, copied.min(target.room), 0);
            }
            None => {
                let (bytes, charge) = self.keep_bytes(env, peer, len, || {
                    if is_inline { copy_of(inline) } else { bytes_of(&record.body) }
                })?;
                let payload = Payload::Here(bytes);
                self.keep(env, tagged, Arrived { peer, tag, data, len, ack, payload, charge })?;
            }
        }
        Ok(())
    }

    /// Handles the announcement of a large message.
    fn on_rts(
        &mut self,
        env: &mut Env<'_>,
        conn: ConnId,
        peer: PeerId,
        record: &Record,
    ) -> Result<(), RecordError> {
        let kind = record.kind;
        let mut words = Words::new(&record.head, record.head_len);
        let tagged = kind & wire::TAGGED != 0;
        let tag = if tagged { words.word() } else { 0 };
        let data = (kind & wire::DATA != 0).then(|| words.word());
        let rts = Rts::decode(conn, &mut words, record.body)?;
        let len = rts.len();
        match self.take_target(env, tagged, peer, tag, len) {
            Some(target) => {
                self.start_incoming(env, target, MsgEnvelope { peer, tag, data, len }, rts)
            }
            None => {
                let ((), charge) = self.keep_bytes(env, peer, rts.kept(), || Some(()))?;
                let payload = Payload::There(rts);
                self.keep(
                    env,
                    tagged,
                    Arrived { peer, tag, data, len, ack: None, payload, charge },
                )?;
            }
        }
        Ok(())
    }

    /// Finds and removes the receive for a message of `len` bytes. Releases multi-receive buffers
    /// that are too full for it.
    #[inline]
    pub(super) fn take_target(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        peer: PeerId,
        tag: u64,
        len: usize,
    ) -> Option<Target> {
        let source = self.known_as(env, peer);
        loop {
            let Some(at) = self.recv.queue(tagged).match_arrival(source, tag) else {
                return self.take_shared(env, tagged, peer, tag, len);
            };
            let multi = self.recv.queue(tagged).posted.get_mut(at)?.multi;
            let Some(many) = multi else {
                let posted = self.recv.take(tagged, at)?;
                return Some(posted.into_target(tagged));
            };
            let Many::Own(number) = many else { return None };
            if let Some(target) = self.carve(env, tagged, at, number, len) {
                return Some(target);
            }
        }
    }

    /// Reserves a part of multi-receive buffer `number`, whose list entry is `at`. Returns `None`
    /// if the message does not fit.
    fn carve(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        at: u32,
        number: u32,
        len: usize,
    ) -> Option<Target> {
        let piece = self.recv.multis.get_mut(number)?.carve(len, self.cfg.min_multi_recv);
        let flags = self.recv.queue(tagged).posted.get_mut(at).map_or(0, |p| p.flags);
        if piece.as_ref().is_none_or(|piece| piece.last) {
            self.recv.take(tagged, at);
            self.retire_many(env, Many::Own(number));
        }
        piece.map(|piece| piece.target(tagged, flags, Many::Own(number)))
    }

    /// Counts a message and writes the completion of its receive. A non-zero `err` is the reason
    /// why the payload is missing.
    #[inline]
    pub(crate) fn complete_recv(
        &mut self,
        env: &mut Env<'_>,
        target: &Target,
        m: &MsgEnvelope,
        copied: usize,
        err: Errno,
    ) {
        self.stats.received.add(copied);
        self.report_recv(env, target, m, copied, err);
    }

    /// Writes the completion of a receive, as [`EpState::complete_recv`] does, of `len` bytes.
    #[inline(always)]
    pub(super) fn report_recv(
        &mut self,
        env: &mut Env<'_>,
        target: &Target,
        m: &MsgEnvelope,
        len: usize,
        err: Errno,
    ) {
        let mut flags = fi::FI_RECV | if target.tagged { fi::FI_TAGGED } else { fi::FI_MSG };
        if m.data.is_some() {
            flags |= fi::FI_REMOTE_CQ_DATA;
        }
        let mut wanted = target.flags & fi::FI_COMPLETION != 0;
        if let Some(many) = target.multi
            && self.end_piece(env, many)
        {
            flags |= fi::FI_MULTI_RECV;
            wanted = true;
        }
        if let Some(held) = &target.entry {
            self.give_back(env, held.clone());
        }
        self.recv.last_peek_missed = false;
        let src = self.source_of(env, m.peer);
        let c = Completion {
            context: target.context,
            flags,
            len: len + self.cfg.prefix,
            buf: target.iov.first_addr(),
            data: m.data.unwrap_or(0),
            tag: m.tag,
            src,
        };
        let unknown = src == fi::FI_ADDR_NOTAVAIL && self.cfg.caps & fi::FI_SOURCE_ERR != 0;
        let err = match err {
            0 if m.len > target.room => fi::FI_ETRUNC,
            0 if unknown => fi::FI_EADDRNOTAVAIL,
            other => other,
        };
        if target.flags & NOTED != 0 {
            let olen = m.len.saturating_sub(target.room);
            self.end_noted(env, c, err, olen, self.cfg.cntr_recv);
            return;
        }
        if let Some(cntr) = self.cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
            if err == 0 { cntr.add(1) } else { cntr.add_err(1) }
        }
        let Some(cq) = self.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) else {
            return;
        };
        if err == 0 {
            if wanted {
                cq.success(c);
            }
        } else {
            let olen = m.len.saturating_sub(target.room);
            cq.error(CqError {
                err_data: match err {
                    // The application can insert this address.
                    fi::FI_EADDRNOTAVAIL => self.name_of(self.peers.at(m.peer).id),
                    _ => Vec::new(),
                },
                ..CqError::new(c, err, olen)
            });
        }
    }

    /// Posts a receive on the slow path, or matches it with an unexpected message.
    #[inline(never)]
    pub(crate) fn post_recv(&mut self, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<(), Errno> {
        let src = self.wanted_peer(env, a.src)?;
        let tagged = a.tag.is_some();
        let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
        let len = total_len(a.iov);
        let multi = if a.flags & fi::FI_MULTI_RECV != 0 {
            let [base] = a.iov else {
                return Err(fi::FI_EINVAL);
            };
            let multi = Multi::new(*base, a.context);
            Some(Many::Own(self.recv.multis.insert(multi).ok_or(fi::FI_ENOMEM)?))
        } else {
            None
        };
        let posted = Posted {
            tag,
            ignore,
            src,
            iov: if a.flags & NOTED == 0 { Iov::new(a.iov) } else { Iov::list(a.iov) },
            len,
            context: a.context,
            flags: a.flags,
            multi,
        };
        if multi.is_none()
            && let Some(at) = self.match_waiting(env, tagged, src, tag, ignore)
        {
            if let Some(m) = self.recv.queue(tagged).unexpected.remove(at) {
                self.receive_unexpected(env, posted.into_target(tagged), m);
            }
            return Ok(());
        }
        if src != ANY
            && self.cfg.watches_sources
            && self.peers.at(src).tx.is_none()
            && !self.peers.at(src).state.has_failed()
            && self.peers.own != Some(src)
        {
            self.recv.unmet.note();
        }
        let at = self.recv.post(tagged, posted);
        if let Some(many) = multi {
            self.fill(env, many, tagged, (src, tag, ignore));
        }
        if src != ANY
            && self.peers.at(src).state.has_failed()
            && let Some(posted) = self.recv.queue(tagged).posted.remove(at)
        {
            self.fail_posted(env, tagged, posted, fi::FI_ECONNRESET);
        }
        Ok(())
    }

    /// Receives an unexpected message into its matched receive.
    pub(super) fn receive_unexpected(&mut self, env: &mut Env<'_>, target: Target, m: Arrived) {
        self.throttle.note_drained();
        let arrival = MsgEnvelope { peer: m.peer, tag: m.tag, data: m.data, len: m.len };
        match m.payload {
            Payload::Here(bytes) => {
                let copied = scatter(target.iov.as_slice(), &bytes).min(target.room);
                if let Some(id) = m.ack {
                    self.answer(m.peer, wire::ACK, Head::new().word(id).word(0), &[]);
                }
                self.complete_recv(env, &target, &arrival, copied, 0);
            }
            Payload::There(rts) => self.start_incoming(env, target, arrival, rts),
        }
    }

    pub(crate) fn cancel_recv(&mut self, env: &mut Env<'_>, context: usize) -> Result<(), Errno> {
        for tagged in [true, false] {
            let Some(at) = self.recv.queue(tagged).posted.find(|p| p.context == context) else {
                continue;
            };
            let multi = self.recv.queue(tagged).posted.get_mut(at).and_then(|p| p.multi);
            if let Some(Many::Own(number)) = multi
                && self.recv.multis.get(number).is_some_and(Multi::is_filling)
            {
                return Err(fi::FI_EAGAIN);
            }
            if let Some(posted) = self.recv.queue(tagged).posted.remove(at) {
                self.fail_posted(env, tagged, posted, fi::FI_ECANCELED);
            }
            return Ok(());
        }
        Ok(())
    }

    /// Fails a receive that was removed from its list.
    pub(crate) fn fail_posted(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        posted: Posted,
        err: Errno,
    ) {
        if posted.src != ANY {
            self.recv.directed -= 1;
        }
        let mut flags = fi::FI_RECV | if tagged { fi::FI_TAGGED } else { fi::FI_MSG };
        if let Some(many) = posted.multi
            && self.unlist_many(env, many)
        {
            flags |= fi::FI_MULTI_RECV;
        }
        let src =
            if posted.src == ANY { fi::FI_ADDR_NOTAVAIL } else { self.source_of(env, posted.src) };
        let c = Completion {
            buf: posted.iov.first_addr(),
            src,
            ..Completion::new(posted.context, flags, posted.tag)
        };
        if posted.flags & NOTED != 0 {
            self.end_noted(env, c, err, 0, self.cfg.cntr_recv);
            return;
        }
        if let Some(cntr) = self.cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
            cntr.add_err(1);
        }
        if let Some(cq) = self.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
            cq.error(CqError::new(c, err, 0));
        }
    }
}

/// Copies local bytes into a scatter list. Returns the number of bytes that fitted.
pub(super) fn scatter(to: &[Mem], bytes: &[u8]) -> usize {
    let mut rest = bytes;
    for piece in to {
        let n = piece.copy_from_slice(rest);
        rest = rest.get(n..).unwrap_or_default();
    }
    bytes.len() - rest.len()
}
