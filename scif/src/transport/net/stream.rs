// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over a network: records between its rings and messages.
//!
//! Not about the messages of other connections (`mux`). The endpoint has one end of each ring, the
//! stream the other. A record is taken out of the ring only when the peer has credit for it and the
//! message that carries it has space.

use std::sync::Arc;

use scif_ring::layout::BODY_MAX;
use scif_ring::spsc::PushError;
use scif_ring::{Consumer, Producer};
use zerocopy::IntoBytes;

use super::changes::Changes;
use super::frame::{
    FrameHead, FrameKind, HEAD, PortMark, begin, begin_record, long_record, mark_of, next_record,
    record_size, seal,
};
use super::handshake::Handshake;
use super::key::StreamKey;
use super::outside::OutsideBodies;
use super::resting::PageRelease;
use super::watch::PeerWatch;
use super::window::{ReceiveWindow, RecordBody, SendWindow};
use super::wire::{BODY_OUTSIDE, LONG_BODY_MAX, MESSAGE_MAX, NetWire, PeerLimits, WirePeer};
use crate::addr::PortId;
use crate::carried::Tally;
use crate::error::{self, Error, Reason, Refusal};
use crate::outside_body::LongSend;
use crate::segment::{SEGMENT_BYTES, Side, Views, release_rings, write_header};
use crate::slab::ConnId;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;

/// Half of a connection from the ring that the endpoint fills to the network.
#[derive(Debug)]
struct RecordSender {
    ring: Consumer,
    window: SendWindow,
    /// Number of messages sent.
    sequence: u32,
    /// Message that the network could not take.
    waiting: Option<Vec<u8>>,
    /// Whether the last message left records in the ring.
    has_more: bool,
    /// Whether the connection is listed as one with unsent records.
    is_listed: bool,
}

/// Half of a connection from the network to the ring that the endpoint reads.
#[derive(Debug)]
struct RecordReceiver {
    ring: Producer,
    window: ReceiveWindow,
    /// Number of messages received.
    sequence: u32,
    /// Records for which the ring had no space: less than a ringful, by the window.
    stash: Vec<u8>,
    /// Number of records received.
    records: u64,
    outside: OutsideBodies,
}

/// Connection that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) token: u64,
    pub(super) peer: PortId,
    /// Side of this process.
    pub(super) side: Side,
    /// Memory of its rings.
    pub(super) segment: Arc<Mapping>,
}

/// End of a connection by this side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Departure {
    None,
    /// Behind all records.
    Orderly,
    /// At once. Messages of the peer have no meaning any more.
    Reset,
}

/// One connection.
#[derive(Debug)]
pub(super) struct NetStream {
    pub(super) token: u64,
    pub(super) peer: PortId,
    /// `None` until the first message is sent.
    pub(super) to: Option<WirePeer>,
    /// `None` until it is accepted.
    pub(super) id: Option<ConnId>,
    pub(super) changes: Changes,
    /// Whether each poll services it.
    pub(super) listed: bool,
    /// Whether its rings may contain pages, so that it is in the list of resting connections.
    pub(super) has_pages: bool,
    pub(super) watch: PeerWatch,
    /// Message without records that is due: a ping, or the answer to one.
    due: Option<FrameKind>,
    handshake: Handshake,
    /// Proofs of the first messages; `None` without a key.
    key: Option<StreamKey>,
    /// Last message, until it is sent.
    ending: Option<FrameKind>,
    departure: Departure,
    sender: RecordSender,
    receiver: RecordReceiver,
    pub(super) segment: Arc<Mapping>,
}

impl NetStream {
    /// Returns a connection with `peer`, with the opener's end for the endpoint or the acceptor's.
    pub(super) fn new(
        (token, peer): (u64, PortId),
        side: Side,
        limits: PeerLimits,
        key: Option<StreamKey>,
    ) -> error::Result<NetStream> {
        let segment = Arc::new(Mapping::private(SEGMENT_BYTES).map_err(Error::os("mmap"))?);
        write_header(&segment)?;
        let Views { tx, rx, .. } = Views::new(Arc::clone(&segment), side.other())?;
        Ok(NetStream {
            token,
            peer,
            to: None,
            id: None,
            changes: Changes::default(),
            listed: false,
            has_pages: false,
            watch: PeerWatch::new(limits),
            due: None,
            handshake: Handshake::new(side),
            key,
            ending: None,
            departure: Departure::None,
            sender: RecordSender {
                ring: rx,
                window: SendWindow::default(),
                sequence: 0,
                waiting: None,
                has_more: false,
                is_listed: false,
            },
            receiver: RecordReceiver {
                ring: tx,
                window: ReceiveWindow::default(),
                sequence: 0,
                stash: Vec::new(),
                records: 0,
                outside: OutsideBodies::default(),
            },
            segment,
        })
    }

    /// Takes one message of the peer, at time `now`.
    ///
    /// # Errors
    /// Reason for which the connection ends now.
    pub(super) fn receive(
        &mut self,
        head: &FrameHead,
        message: (&mut Vec<u8>, usize),
        now: u64,
        tally: &mut Tally,
        provider: &str,
    ) -> Result<(), Reason> {
        let kind = head.kind().filter(|kind| kind.permits(content(message.0, message.1)));
        let kind = kind.ok_or(Reason::Corrupt)?;
        if kind == FrameKind::Greeting {
            return if self.handshake.note_greeting() { Ok(()) } else { Err(Reason::Corrupt) };
        }
        if self.handshake.is_repeated(kind) {
            return Ok(());
        }
        if kind == FrameKind::Challenge {
            self.take_challenge(content(message.0, message.1));
            return Ok(());
        }
        let expected = self.receiver.sequence;
        if head.sequence() != expected {
            log::warn!(
                "message {} of {} over {provider} was expected to be {expected}: connection reset. \
                 This network lost, repeated or reordered one; use another (FI_SCIF_NET)",
                head.sequence(),
                self.peer
            );
            return Err(Reason::Corrupt);
        }
        self.receiver.sequence = expected.wrapping_add(1);
        self.watch.note_received(now);
        if !self.sender.window.note_credit(head.credit()) {
            return Err(Reason::Corrupt);
        }
        let is_first = self.handshake.note_answer();
        if is_first && !self.handshake.permits_first(kind) {
            return Err(Reason::Corrupt);
        }
        match kind {
            FrameKind::Welcome if is_first => {
                let mark = mark_of(content(message.0, message.1));
                let (mark, proof) = mark.ok_or(Reason::Corrupt)?;
                self.check_proof(proof)?;
                self.watch.note_mark(mark);
                self.changes.up = true;
                // The peer holds its records until it knows that its answer has arrived.
                self.due = Some(FrameKind::Credit);
            }
            FrameKind::Records => self.receiver.take(content(message.0, message.1), tally)?,
            FrameKind::LongRecord => self.receiver.take_long(message.0, message.1, tally)?,
            FrameKind::Credit => {}
            FrameKind::Ping => self.due = Some(FrameKind::Credit),
            FrameKind::Bye => return Err(Reason::Orderly),
            FrameKind::Reset => return Err(Reason::Reset),
            FrameKind::Refusal(refusal) => return Err(Reason::Refused(refusal)),
            FrameKind::Welcome
            | FrameKind::Greeting
            | FrameKind::Challenge
            | FrameKind::Unknown => return Err(Reason::Corrupt),
        }
        self.changes.woken |= matches!(kind, FrameKind::Records | FrameKind::LongRecord);
        Ok(())
    }

    /// Takes a challenge of the peer, which answers a greeting.
    fn take_challenge(&mut self, nonce: &[u8]) {
        if self.key.as_mut().is_some_and(|key| key.take_challenge(nonce)) {
            self.handshake.prove();
        }
    }

    /// Checks the proof in a welcome.
    fn check_proof(&self, proof: &[u8]) -> Result<(), Reason> {
        let is_proved = self.key.map_or(proof.is_empty(), |key| key.is_proved(proof));
        if is_proved { Ok(()) } else { Err(Reason::Refused(Refusal::Key)) }
    }

    /// Notes that the first greeting of the peer has arrived, and the mark of its sender.
    pub(super) fn note_greeting(&mut self, mark: u64) {
        self.receiver.sequence = 1;
        self.watch.note_mark(mark);
        self.watch.note_received(now_ns());
    }

    /// Notes the end of the connection, unless one is noted.
    pub(super) fn end(&mut self, reason: Reason) {
        self.changes.end.get_or_insert(reason);
    }

    /// Pushes records for which the ring had no space before.
    pub(super) fn unstash(&mut self) {
        match self.receiver.unstash() {
            Ok(pushed) => self.changes.woken |= pushed,
            Err(reason) => self.end(reason),
        }
    }

    /// Returns the side of this process.
    pub(super) fn side(&self) -> Side {
        self.handshake.side()
    }

    /// Whether messages of the peer have a meaning.
    pub(super) fn is_receiving(&self) -> bool {
        self.changes.end.is_none() && self.departure != Departure::Reset
    }

    /// Whether this side has ended the connection.
    pub(super) fn has_left(&self) -> bool {
        self.departure != Departure::None
    }

    /// Whether neither side has ended the connection, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.has_left() && self.changes.end.is_none()
    }

    /// Whether all records that arrived are in the ring.
    pub(super) fn has_delivered(&self) -> bool {
        self.receiver.stash.is_empty()
    }

    /// Whether each poll must service it although nothing arrives.
    pub(super) fn is_restless(&self) -> bool {
        self.sender.waiting.is_some()
            || self.handshake.is_due()
            || self.handshake.is_repeating()
            || self.ending.is_some()
            || self.due.is_some()
            || !self.receiver.stash.is_empty()
            || self.receiver.window.is_watched()
    }

    /// Whether a flush has something to do.
    pub(super) fn needs_flush(&mut self) -> bool {
        let consumed = self.receiver.consumed();
        self.sender.waiting.is_some()
            || self.handshake.is_due()
            || self.handshake.is_repeating()
            || self.due.is_some()
            || self.has_left()
            || self.changes.end.is_some()
            || !self.has_pages
            || self.receiver.window.is_due(consumed)
            || !self.sender.is_empty()
    }

    /// Releases the pages of both rings, if nothing is in them and no message has passed since
    /// there were `messages`.
    pub(super) fn rest(&mut self, messages: u64) -> PageRelease {
        let now = u64::from(self.sender.sequence) << 32 | u64::from(self.receiver.sequence);
        if now != messages
            || self.is_restless()
            || !self.sender.is_empty()
            || !self.receiver.ring.all_consumed()
        {
            return PageRelease::Busy(now);
        }
        release_rings(&self.segment);
        self.has_pages = false;
        PageRelease::Done
    }

    /// Ends the connection by this side: with a last message behind all records, or at once.
    pub(super) fn leave(&mut self, orderly: bool) {
        self.departure = if orderly { Departure::Orderly } else { Departure::Reset };
        self.handshake.end();
        self.ending = Some(if orderly { FrameKind::Bye } else { FrameKind::Reset });
        // A reset does not wait for records that the peer has no credit for.
        if !orderly {
            self.sender.discard();
        }
    }

    /// Pings a peer that has answered before, which replies whether it has this connection.
    pub(super) fn ping(&mut self) {
        if self.is_open() && self.watch.has_received() {
            self.due = Some(FrameKind::Ping);
        }
    }

    /// Pings a silent peer for which the owner waits.
    pub(super) fn ping_if_silent(&mut self, now: u64, provider: &str) {
        if !self.is_open() {
            return;
        }
        if self.watch.is_silent(now, self.peer, provider) {
            self.end(Reason::Died);
        } else if self.due.is_none() && self.watch.take_ping(now) {
            self.due = Some(FrameKind::Ping);
        }
    }

    /// Makes a greeting that was lost due again. Returns false if more than that may be lost.
    pub(super) fn greet_again(&mut self) -> bool {
        self.watch.note_lost();
        self.is_open() && self.handshake.retry()
    }

    /// Makes a greeting without an answer due again after a long time, while the owner waits.
    /// Another process may have followed the one that got it before.
    pub(super) fn greet_follower(&mut self, now: u64) {
        self.handshake.ask_follower(now);
    }

    /// Whether the peer knows nothing of the connection: the network has not taken its greeting.
    pub(super) fn is_unannounced(&self) -> bool {
        !self.watch.has_received() && !self.handshake.is_taken()
    }

    /// Whether nothing is left to send.
    pub(super) fn is_finished(&self) -> bool {
        self.ending.is_none() && self.sender.waiting.is_none()
    }

    /// Whether records wait for the network, or for the peer. Before the answer of the peer there
    /// may be some, since the owner announces them later.
    pub(super) fn has_unsent(&self) -> bool {
        let is_over = self.changes.end.is_some();
        let is_unanswered = self.side() == Side::Opener && !self.handshake.may_send();
        !is_over && (is_unanswered || self.sender.waiting.is_some() || self.sender.has_more)
    }

    /// Notes whether the connection is listed as one with unsent records. Returns whether it was.
    pub(super) fn set_listed_unsent(&mut self, is_listed: bool) -> bool {
        std::mem::replace(&mut self.sender.is_listed, is_listed)
    }

    /// Sends as much as the network takes and the peer has credit for.
    ///
    /// # Errors
    /// The peer has no name in this network, or memory for it is short.
    pub(super) fn flush(
        &mut self,
        wire: &mut dyn NetWire,
        own: &PortMark,
        tally: &mut Tally,
    ) -> error::Result<()> {
        let to = match self.to {
            Some(to) => to,
            None => {
                let name = self.peer.network_name().ok_or(Error::Refused(self.peer))?;
                *self.to.insert(wire.peer(name)?)
            }
        };
        loop {
            let (message, is_last) = match self.sender.waiting.take() {
                Some(message) => (message, false),
                None => match self.next_message(wire, own, tally) {
                    Some(next) => next,
                    None => return Ok(()),
                },
            };
            if let Err(message) = wire.send(to, message) {
                self.sender.waiting = Some(message);
                if wire.has_room() {
                    self.note_refused(now_ns(), wire.provider());
                }
                return Ok(());
            }
            self.watch.note_taken();
            if is_last {
                return Ok(());
            }
            if !self.handshake.may_send() {
                self.handshake.note_taken(now_ns());
            }
        }
    }

    /// Sends a record whose body is appended by `append`, `len` bytes, past the ring.
    pub(super) fn send_long(
        &mut self,
        wire: &mut dyn NetWire,
        (kind, record_head): (u8, &[u8]),
        len: usize,
        append: &mut dyn FnMut(&mut Vec<u8>),
        tally: &mut Tally,
    ) -> LongSend {
        let body = RecordBody::long(len);
        let (Some(to), Ok(head_len)) = (self.to, u8::try_from(record_head.len())) else {
            return LongSend::Later;
        };
        if !self.is_open()
            || !self.handshake.may_send()
            || self.handshake.is_due()
            || self.sender.waiting.is_some()
            || len > LONG_BODY_MAX
        {
            return LongSend::Later;
        }
        if !self.sender.is_empty() {
            return LongSend::Behind;
        }
        if !self.sender.window.has_room(body) {
            return LongSend::Later;
        }
        // Any message is a sign of life. A ping asks for an answer.
        if self.due == Some(FrameKind::Credit) {
            self.due = None;
        }
        let mut message = self.begin_message(wire, FrameKind::LongRecord);
        begin_record(&mut message, kind, head_len, len);
        message.extend_from_slice(record_head);
        append(&mut message);
        seal(&mut message);
        self.sender.window.note_sent(body);
        tally.note_sent(kind, record_head, len);
        match wire.send(to, message) {
            Ok(()) => self.watch.note_taken(),
            Err(message) => {
                self.sender.waiting = Some(message);
                if wire.has_room() {
                    self.note_refused(now_ns(), wire.provider());
                }
            }
        }
        LongSend::Sent
    }

    /// Returns a message of that kind without content, which has the next number and the credit.
    fn begin_message(&mut self, wire: &mut dyn NetWire, kind: FrameKind) -> Vec<u8> {
        let consumed = self.receiver.consumed();
        let credit = self.receiver.window.credit(consumed);
        let mut message = wire.buffer();
        let sequence = self.sender.sequence;
        begin(&mut message, FrameHead::new(kind, self.token, sequence, credit));
        self.sender.sequence = sequence.wrapping_add(1);
        message
    }

    /// Moves the bodies outside the ring to `to`.
    pub(super) fn move_bodies(&mut self, to: &mut OutsideBodies) {
        self.receiver.outside.move_to(to);
    }

    /// Notes that the network does not take a message. Ends the connection to a dead peer.
    fn note_refused(&mut self, now: u64, provider: &str) {
        if self.watch.note_refused(now, self.peer, provider) {
            log::debug!(
                "{provider} takes no message to {} any more: it has died. Check its host; if that \
                 is up, raise FI_SCIF_NET_TIMEOUT",
                self.peer
            );
            self.sender.waiting = None;
            self.end(Reason::Died);
        }
    }

    /// Returns the next message to send, and whether none follows it.
    fn next_message(
        &mut self,
        wire: &mut dyn NetWire,
        own: &PortMark,
        tally: &mut Tally,
    ) -> Option<(Vec<u8>, bool)> {
        let consumed = self.receiver.consumed();
        if self.handshake.is_repeating() {
            self.handshake.check(now_ns());
        }
        if !self.handshake.may_send() && self.due.take() == Some(FrameKind::Ping) {
            self.handshake.ask();
        }
        let first = self.handshake.take_due();
        let next = self.sender.next_body();
        self.sender.has_more = next.is_some();
        let kind = if let Some(first) = first {
            first
        } else if !self.handshake.may_send() {
            return None;
        } else if self.due == Some(FrameKind::Ping) && !self.has_left() {
            FrameKind::Ping
        } else if next.is_some_and(|body| self.sender.window.has_room(body)) {
            FrameKind::Records
        } else if next.is_none() && self.ending.is_some() {
            self.ending.take()?
        } else if self.has_left() {
            return None;
        } else if let Some(due) = self.due {
            due
        } else if self.receiver.window.is_due(consumed) {
            FrameKind::Credit
        } else {
            return None;
        };
        // Any message is a sign of life, and asks the network for its peer.
        self.due = None;
        // A first message has number 0, also when it is repeated.
        if first.is_some() {
            self.sender.sequence = 0;
        }
        let mut message = self.begin_message(wire, kind);
        let mut is_last = false;
        match kind {
            FrameKind::Greeting | FrameKind::Ping => {
                message.extend_from_slice(own.greeting.as_bytes());
            }
            _ => {}
        }
        match kind {
            FrameKind::Greeting | FrameKind::Welcome => {
                message.extend(own.mark.to_le_bytes());
                if let Some(key) = &self.key {
                    message.extend_from_slice(key.proof().as_bytes());
                }
            }
            // It takes along what else is due.
            FrameKind::Records => {
                self.sender.has_more = !self.sender.gather(&mut message, tally);
                is_last = !self.sender.has_more && self.ending.is_none();
            }
            _ => {}
        }
        seal(&mut message);
        Some((message, is_last))
    }
}

impl RecordSender {
    /// Returns the body of the next record.
    fn next_body(&mut self) -> Option<RecordBody> {
        // Only our own endpoint pushes into this ring, so it contains valid records only.
        let record = self.ring.peek().ok()??;
        Some(RecordBody::in_ring(record.body.len()))
    }

    fn is_empty(&mut self) -> bool {
        self.next_body().is_none()
    }

    /// Appends records, as many as credit and message have space for. Returns whether these are
    /// all.
    fn gather(&mut self, message: &mut Vec<u8>, tally: &mut Tally) -> bool {
        let mut are_all = true;
        while let Ok(Some(record)) = self.ring.peek() {
            let body = record.body.len();
            let size = record_size(usize::from(record.head_len), body);
            let in_ring = RecordBody::in_ring(body);
            if message.len() + size > MESSAGE_MAX || !self.window.has_room(in_ring) {
                are_all = false;
                break;
            }
            begin_record(message, record.kind, record.head_len, body);
            message.extend_from_slice(record.head());
            record.body.append_to(message);
            tally.note_sent(record.kind, record.head(), body);
            self.window.note_sent(in_ring);
            self.ring.advance();
        }
        self.ring.flush();
        are_all
    }

    fn discard(&mut self) {
        while let Ok(Some(_)) = self.ring.peek() {
            self.ring.advance();
        }
        self.ring.flush();
    }
}

impl RecordReceiver {
    fn consumed(&mut self) -> u64 {
        // Records in the stash are not in the ring, so not consumed.
        self.ring.consumed()
    }

    /// Takes the records of one message.
    fn take(&mut self, bytes: &[u8], tally: &mut Tally) -> Result<(), Reason> {
        let mut rest = bytes;
        let mut all_fit = self.stash.is_empty();
        while !rest.is_empty() {
            let (record, size) = next_record(rest).ok_or(Reason::Corrupt)?;
            if !self.window.note_received(RecordBody::in_ring(record.body.len())) {
                return Err(Reason::Corrupt);
            }
            self.records += 1;
            tally.note_received(record.kind, record.head, record.body.len());
            if all_fit {
                match self.ring.push_slice(record.kind, record.head, record.body) {
                    Ok(()) => {}
                    Err(PushError::Full) => all_fit = false,
                    Err(PushError::TooLong) => return Err(Reason::Corrupt),
                }
            }
            let (taken, later) = rest.split_at_checked(size).ok_or(Reason::Corrupt)?;
            if !all_fit {
                self.stash.extend_from_slice(taken);
            }
            rest = later;
        }
        Ok(())
    }

    /// Takes the record of a message that has one with a long body. The ring gets it without.
    fn take_long(
        &mut self,
        message: &mut Vec<u8>,
        len: usize,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        let record = long_record(content(message, len)).ok_or(Reason::Corrupt)?;
        if !self.window.note_received(RecordBody::long(record.body.len())) {
            return Err(Reason::Corrupt);
        }
        tally.note_received(record.kind, record.head, record.body.len());
        let (kind, body) = (record.kind, len - record.body.len()..len);
        let pushed = if self.stash.is_empty() {
            self.ring.push_slice(BODY_OUTSIDE, record.head, &[])
        } else {
            Err(PushError::Full)
        };
        match pushed {
            Ok(()) => {}
            Err(PushError::Full) => {
                #[expect(clippy::cast_possible_truncation, reason = "at most HEAD_MAX")]
                begin_record(&mut self.stash, BODY_OUTSIDE, record.head.len() as u8, 0);
                self.stash.extend_from_slice(record.head);
            }
            Err(PushError::TooLong) => return Err(Reason::Corrupt),
        }
        self.outside.add((self.records, kind), message, body);
        self.records += 1;
        Ok(())
    }

    /// Pushes records of the stash; returns whether one was pushed.
    fn unstash(&mut self) -> Result<bool, Reason> {
        let mut used = 0;
        while let Some(bytes) = self.stash.get(used..).filter(|bytes| !bytes.is_empty()) {
            let (record, size) = next_record(bytes).ok_or(Reason::Corrupt)?;
            match self.ring.push_slice(record.kind, record.head, record.body) {
                Ok(()) => used += size,
                Err(PushError::Full) => break,
                Err(PushError::TooLong) => return Err(Reason::Corrupt),
            }
        }
        // At once: under steady traffic the stash may never become empty.
        self.stash.drain(..used);
        Ok(used > 0)
    }
}

/// Returns the content of a message of `len` bytes, behind its head.
fn content(message: &[u8], len: usize) -> &[u8] {
    message.get(HEAD..len).unwrap_or_default()
}

const _: () = assert!(BODY_MAX < MESSAGE_MAX);

#[cfg(test)]
mod tests {
    use scif_ring::layout::RING_DATA_BYTES;

    use super::*;

    #[test]
    fn the_stash_of_a_slow_reader_has_less_than_a_ringful() {
        let peer = PortId::new(0, 1);
        let limits = PeerLimits { refused_ns: 1, silent_ns: 0 };
        let mut stream = NetStream::new((1, peer), Side::Acceptor, limits, None).unwrap();
        let segment = Arc::clone(&stream.segment);
        let mut rx = Views::new(segment, Side::Acceptor).unwrap().rx;
        // The ring pads each body to whole lines, so it takes one less than the credits permit.
        let body = 10_900;
        let mut record = Vec::new();
        begin_record(&mut record, 7, 0, body);
        record.resize(record_size(0, body), 5);
        let (receiver, mut tally) = (&mut stream.receiver, Tally::new(|_, _, _| None));
        let (mut sent, mut read, mut stashed) = (0_u64, 0_u64, 0);
        for _ in 0..2000 {
            let consumed = receiver.consumed();
            receiver.window.credit(consumed);
            // As many as the peer has credit for.
            while (sent - consumed + 1) * body as u64 <= RING_DATA_BYTES as u64 {
                receiver.take(&record, &mut tally).unwrap();
                sent += 1;
            }
            stashed = stashed.max(receiver.stash.len());
            assert!(receiver.stash.len() < RING_DATA_BYTES);
            if rx.peek().unwrap().is_some() {
                rx.advance();
                rx.flush();
                read += 1;
            }
            receiver.unstash().unwrap();
        }
        assert!(stashed > 0 && read > 1000 && sent - read <= 7, "{sent} sent, {read} read");
    }

    /// Number of pages of the segment that are present, by `proc_pid_pagemap(5)`.
    fn present_pages(segment: &Mapping) -> usize {
        use std::os::unix::fs::FileExt;
        let mut entries = vec![0; SEGMENT_BYTES / 4096 * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, (segment.address() / 4096 * 8) as u64).unwrap();
        entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    #[test]
    fn a_connection_that_rests_releases_its_rings_and_works_again() {
        let limits = PeerLimits { refused_ns: 1, silent_ns: 0 };
        let peer = PortId::new(0, 1);
        let mut stream = NetStream::new((1, peer), Side::Acceptor, limits, None).unwrap();
        let _greeting = stream.handshake.take_due();
        let mut tally = Tally::new(|_, _, _| None);
        let mut ends = Views::new(Arc::clone(&stream.segment), Side::Acceptor).unwrap();
        let mut record = Vec::new();
        begin_record(&mut record, 7, 0, 8000);
        record.resize(record_size(0, 8000), 5);
        let mut sent_count = 0;
        for _ in 0..3 {
            for _ in 0..100 {
                sent_count += 1;
                stream.receiver.take(&record, &mut tally).unwrap();
                assert_eq!(stream.rest(0), PageRelease::Busy(0), "a record is in the ring");
                assert_eq!(ends.rx.peek().unwrap().unwrap().body.len(), 8000);
                ends.rx.advance();
                ends.rx.flush();
                let consumed = stream.receiver.consumed();
                stream.receiver.window.credit(consumed);
                ends.tx.push_slice(9, b"head", &[3; 900]).unwrap();
                assert_eq!(stream.rest(0), PageRelease::Busy(0), "a record is to be sent");
                let mut message = Vec::new();
                stream.sender.gather(&mut message, &mut tally);
                let (sent, _) = next_record(&message).unwrap();
                assert_eq!((sent.kind, sent.head, sent.body), (9, &b"head"[..], &[3; 900][..]));
                assert!(stream.sender.window.note_credit(sent_count));
            }
            assert!(present_pages(&stream.segment) > 20);
            assert_eq!(stream.rest(1), PageRelease::Busy(0), "used since the last look");
            assert_eq!(stream.rest(0), PageRelease::Done);
            assert!(present_pages(&stream.segment) <= 3);
        }
    }
}
