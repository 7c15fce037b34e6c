// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Multiplexer of the connections of a port over one endpoint of a network.
//!
//! Not about the records of a connection (`stream`). Each process that reaches the network endpoint
//! can send a greeting under any name. A random token of 64 bits in each message keeps others out
//! of a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use scif_ring::{BELL_BYTES, Mem};
use zerocopy::IntoBytes;

use super::dead_names::DeadNames;
use super::expectation::Expectation;
use super::frame::{
    FrameHead, FrameKind, HEAD, NetGreeting, PortMark, begin, mark_of, new_token, open, seal,
};
use super::key::OwnKey;
use super::outside::OutsideBodies;
use super::pending::{PendingConnects, PendingState};
use super::reads::NetReads;
use super::replies::{StrayReplies, StrayReply};
use super::resting::{PageRelease, RestingList};
use super::stream::{Accepted, NetStream};
use super::streams::NetStreams;
use super::wire::{NetWire, PeerLimits, ReadPosted, WireEvent, WirePeer};
use crate::addr::PortId;
use crate::carried::{CarriedCounts, OpDecoder, Tally};
use crate::error::{Error, Reason, Refusal, Result};
use crate::memory::PeerMemory;
use crate::outside_body::LongSend;
use crate::remote_reads::{ReadBegun, ReadState, ReadSupport, WireMemory};
use crate::segment::Side;
use crate::slab::ConnId;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate, Remote};

/// Maximum number of connections that wait to be accepted; further ones are refused.
const BACKLOG: usize = 4096;

/// State of a port over a network.
#[derive(Debug)]
pub(super) struct NetMux {
    wire: Box<dyn NetWire>,
    pub(super) own: PortMark,
    /// Doorbell whose owner always appears asleep, so that a producer calls the link, which sends.
    bell: Arc<Mapping>,
    table: StreamTable,
}

/// Connections, without the network.
#[derive(Debug)]
struct StreamTable {
    limits: PeerLimits,
    streams: NetStreams,
    /// Tokens of the connections that each poll services.
    listed: Vec<u64>,
    /// Connections to accept.
    requests: VecDeque<u64>,
    /// Replies to messages of no connection.
    replies: StrayReplies,
    key: OwnKey,
    /// Connections of this side whose peers have not proved the key.
    pending: PendingConnects,
    dead: DeadNames,
    /// Connections with changes.
    ready: Vec<u64>,
    reads: NetReads,
    resting: RestingList,
    expectation: Expectation,
    tally: Tally,
    /// Provider of the network, for lines of the log.
    provider: String,
}

impl NetMux {
    pub(super) fn new(wire: Box<dyn NetWire>, decoder: OpDecoder, node: u16) -> Result<NetMux> {
        let bell = Arc::new(Mapping::private(BELL_BYTES).map_err(Error::os("mmap"))?);
        bell.bell()?.set_sleeping(true);
        let table = StreamTable::new(&*wire, Tally::new(decoder));
        let own = PortMark { greeting: NetGreeting::new(node, wire.name()), mark: new_token() };
        Ok(NetMux { wire, own, bell, table })
    }

    pub(super) fn wire(&mut self) -> &mut dyn NetWire {
        &mut *self.wire
    }

    /// Begins a connection to `dst`; returns its token and the memory of its rings.
    ///
    /// # Errors
    /// With a key `Again`, until the peer has proved that it has the key too.
    pub(super) fn connect(&mut self, dst: PortId, id: ConnId) -> Result<(u64, Arc<Mapping>)> {
        if let Some(token) = self.table.pending.token(dst) {
            return self.claim((token, dst), id);
        }
        let refusal = dst.network_name().and_then(|to| self.table.replies.refusal(to, now_ns()));
        if let Some(refusal) = refusal {
            return Err(Error::Rejected { port: dst, refusal });
        }
        self.reach(dst)?;
        let is_proved = self.table.key.is_required();
        let begun = self.begin(dst, (!is_proved).then_some(id))?;
        if is_proved {
            self.table.pending.add(dst, begun.0);
            return Err(Error::Again);
        }
        Ok(begun)
    }

    fn begin(&mut self, dst: PortId, id: Option<ConnId>) -> Result<(u64, Arc<Mapping>)> {
        let token = new_token();
        let key = self.table.key.of_opener(token, dst.network_name().ok_or(Error::Refused(dst))?);
        let mut stream = NetStream::new((token, dst), Side::Opener, self.table.limits, key)?;
        stream.id = id;
        let segment = Arc::clone(&stream.segment);
        stream.flush(&mut *self.wire, &self.own, &mut self.table.tally)?;
        self.table.streams.insert(stream);
        self.table.list(token);
        self.table.expectation.note_received(now_ns());
        Ok((token, segment))
    }

    /// Returns a pending connection, once its peer has answered.
    ///
    /// # Errors
    /// The peer has not answered, has refused, or has died.
    fn claim(&mut self, (token, dst): (u64, PortId), id: ConnId) -> Result<(u64, Arc<Mapping>)> {
        let Some(stream) = self.table.streams.get_mut(token) else {
            self.table.pending.remove(dst);
            return Err(Error::Again);
        };
        if let Some(reason) = stream.changes.end {
            self.table.pending.remove(dst);
            self.end_unclaimed(token);
            return Err(match reason {
                Reason::Refused(refusal @ (Refusal::Key | Refusal::Version)) => {
                    Error::Rejected { port: dst, refusal }
                }
                Reason::Refused(Refusal::Resources) | Reason::Exhausted => Error::Again,
                _ => Error::Refused(dst),
            });
        }
        if !stream.changes.up {
            stream.greet_follower(now_ns());
            self.table.list(token);
            return Err(Error::Again);
        }
        stream.id = Some(id);
        let segment = Arc::clone(&stream.segment);
        self.table.pending.remove(dst);
        self.table.ready.push(token);
        Ok((token, segment))
    }

    /// Removes a pending connection that has ended.
    fn end_unclaimed(&mut self, token: u64) {
        let Some(stream) = self.table.streams.get(token) else { return };
        let (reason, peer) = (stream.changes.end, stream.peer);
        self.close(token, CloseKind::Abandon);
        if matches!(reason, Some(Reason::Died | Reason::Orderly)) {
            self.note_end(peer);
        }
    }

    /// Ends the wait of pending connections that nobody asks for. They are accepted like those of
    /// peers, which may send over them.
    fn release_unclaimed(&mut self, now: u64) {
        let StreamTable { pending, streams, .. } = &mut self.table;
        let unclaimed = pending.take_unclaimed(now, |peer, token| match streams.get(token) {
            Some(stream) if stream.changes.end.is_some() => PendingState::Answered,
            Some(stream) if !stream.changes.up => PendingState::Unanswered,
            _ if streams.iter().any(|s| s.peer == peer && s.id.is_some() && s.is_open()) => {
                PendingState::Superseded
            }
            _ => PendingState::Answered,
        });
        for token in unclaimed {
            let stream = self.table.streams.get_mut(token);
            match stream.filter(|stream| stream.changes.end.is_none()) {
                Some(stream) => {
                    stream.changes.up = false;
                    self.table.requests.push_back(token);
                }
                None => self.end_unclaimed(token),
            }
        }
    }

    /// Offers the network a message to a process at the name of a dead one.
    ///
    /// # Errors
    /// The network has not taken it so far, or has refused it for too long.
    fn reach(&mut self, dst: PortId) -> Result<()> {
        let NetMux { wire, table, own, .. } = self;
        let Some(name) = dst.network_name() else { return Ok(()) };
        let Some(dead) = table.dead.get_mut(name) else { return Ok(()) };
        let mut is_reached = dead.is_heard();
        if !is_reached && dead.take_attempt(now_ns()) {
            let mut message = wire.buffer();
            begin(&mut message, FrameHead::new(FrameKind::Ping, new_token(), 0, 0));
            message.extend_from_slice(own.greeting.as_bytes());
            seal(&mut message);
            is_reached = wire.send(dead.to, message).is_ok();
            if !is_reached && wire.has_room() {
                dead.note_refused();
            }
        }
        if !is_reached {
            return Err(if dead.is_refused() { Error::Refused(dst) } else { Error::Again });
        }
        if let Some(to) = table.dead.remove(name) {
            wire.release(to);
        }
        Ok(())
    }

    /// Notes the death of a process, or the close of its endpoint.
    fn note_end(&mut self, peer: PortId) {
        let Some(name) = peer.network_name() else { return };
        let Ok(to) = self.wire.peer(name) else { return };
        if let Some(displaced) = self.table.dead.note_end(name, to) {
            self.wire.release(displaced);
        }
    }

    /// Whether connections wait to be accepted.
    pub(super) fn has_requests(&self) -> bool {
        !self.table.requests.is_empty()
    }

    /// Accepts the next connection.
    pub(super) fn accept(&mut self, id: ConnId) -> Option<Accepted> {
        while let Some(token) = self.table.requests.pop_front() {
            let Some(stream) = self.table.streams.get_mut(token) else { continue };
            stream.id = Some(id);
            let (peer, side) = (stream.peer, stream.side());
            let accepted = Accepted { token, peer, side, segment: Arc::clone(&stream.segment) };
            if stream.changes.is_any() {
                self.table.ready.push(token);
            }
            self.flush(token);
            return Some(accepted);
        }
        None
    }

    /// Takes messages, sends what waits, and appends the connections with changes to `ready`.
    pub(super) fn poll(&mut self, ready: &mut Vec<ConnId>) {
        self.take_messages();
        let StreamTable { ready: changed, streams, .. } = &mut self.table;
        // `accept` reports one that is not accepted yet.
        ready.extend(changed.drain(..).filter_map(|token| streams.get(token)?.id));
    }

    /// Polls as [`NetMux::poll`], but appends the connections that have got records and have no
    /// other change to `woken`. Their links do not report these records.
    pub(super) fn poll_records(&mut self, ready: &mut Vec<ConnId>, woken: &mut Vec<ConnId>) {
        self.take_messages();
        let StreamTable { ready: changed, streams, .. } = &mut self.table;
        while let Some(token) = changed.pop() {
            let Some(stream) = streams.get_mut(token) else { continue };
            let Some(id) = stream.id else { continue };
            if stream.changes.take_woken_alone() { &mut *woken } else { &mut *ready }.push(id);
        }
    }

    fn take_messages(&mut self) {
        let NetMux { wire, table, .. } = self;
        wire.poll(&mut |event| table.on_event(event));
        if table.resting.is_due() {
            table.release_resting(now_ns());
        }
        if !self.table.pending.is_empty() {
            self.release_unclaimed(now_ns());
        }
        for at in (0..self.table.listed.len()).rev() {
            let Some(token) = self.table.listed.get(at).copied() else { continue };
            self.service(token, at);
        }
        if !self.table.replies.is_empty() {
            self.answer_all();
        }
    }

    /// Answers the greetings and pings that no connection has taken.
    #[cold]
    fn answer_all(&mut self) {
        for answer in self.table.replies.take() {
            self.answer_unconnected(&answer);
        }
    }

    fn service(&mut self, token: u64, at: usize) {
        let Some(stream) = self.table.streams.get_mut(token) else {
            self.table.listed.swap_remove(at);
            return;
        };
        if !stream.has_delivered() {
            stream.unstash();
        }
        let stream = if stream.needs_flush() {
            self.flush(token);
            let Some(stream) = self.table.streams.get_mut(token) else { return };
            stream
        } else {
            stream
        };
        if stream.changes.is_any() {
            self.table.ready.push(token);
        }
        if !stream.is_restless() {
            stream.listed = false;
            self.table.listed.swap_remove(at);
        }
    }

    /// Sends the records that the owner has pushed.
    pub(super) fn send(&mut self, token: u64) {
        self.table.expectation.note_sent();
        self.flush(token);
    }

    /// Sends what waits in a connection. Removes one that this side has ended, once all is sent.
    pub(super) fn flush(&mut self, token: u64) {
        let Some(stream) = self.table.streams.get_mut(token) else { return };
        let was_open = stream.changes.end.is_none();
        if was_open {
            let flushed = stream.flush(&mut *self.wire, &self.own, &mut self.table.tally);
            if let Err(error) = flushed {
                log::warn!(
                    "connection to {}: {} cannot send: {error}; connection reset. Set FI_SCIF_NET \
                     alike on all hosts, and raise the limit of memory (ulimit -v)",
                    stream.peer,
                    self.wire.provider()
                );
                stream.end(Reason::Exhausted);
            }
            if !std::mem::replace(&mut stream.has_pages, true) {
                self.table.resting.add(token, now_ns());
            }
        }
        let (has_ended, is_restless) = (stream.changes.end.is_some(), stream.is_restless());
        let is_over = stream.has_left() && (stream.is_finished() || has_ended);
        // An end noted earlier has ended its twins too, or spared them.
        if was_open && has_ended {
            self.table.ready.push(token);
            self.table.end_twins(token);
        }
        if is_over {
            self.remove(token);
        } else if !has_ended && is_restless {
            self.table.list(token);
        }
        self.table.streams.note_unsent(token);
    }

    /// Answers a message whose token no connection has: a greeting not accepted, or a ping.
    fn answer_unconnected(&mut self, answer: &StrayReply) {
        if !self.table.replies.permits(answer) {
            return;
        }
        let Ok(to) = self.wire.peer(answer.to) else { return };
        let mut message = self.wire.buffer();
        begin(&mut message, FrameHead::new(answer.kind, answer.token, 0, 0));
        match answer.kind {
            FrameKind::Challenge => message.extend(self.table.key.nonce.to_le_bytes()),
            FrameKind::Refusal(Refusal::Version) => {
                message.extend_from_slice(self.own.greeting.as_bytes());
            }
            FrameKind::Unknown => message.extend(self.own.mark.to_le_bytes()),
            _ => {}
        }
        seal(&mut message);
        // A ping is repeated.
        if self.wire.send(to, message).is_err() {
            log::debug!(
                "answer to {} was not taken by {}: that peer waits until its own timeout",
                answer.to,
                self.wire.provider()
            );
        }
        self.wire.release(to);
    }

    /// Pings a silent peer, and ends its connection after too many pings without an answer.
    pub(super) fn probe(&mut self, token: u64, now: u64) {
        if let Some(stream) = self.table.streams.get_mut(token) {
            let was_open = stream.changes.end.is_none();
            stream.ping_if_silent(now, self.wire.provider());
            if was_open && stream.changes.end.is_some() {
                self.table.ready.push(token);
                self.table.end_twins(token);
            }
            self.flush(token);
        }
    }

    /// Returns the next change of a connection, and moves its bodies outside the ring to `bodies`.
    pub(super) fn next_event(
        &mut self,
        token: u64,
        bodies: &mut OutsideBodies,
    ) -> Option<LinkUpdate> {
        let stream = self.table.streams.get_mut(token)?;
        stream.move_bodies(bodies);
        if std::mem::take(&mut stream.changes.up) {
            return Some(LinkUpdate::Up(Box::new(self.remote())));
        }
        if std::mem::take(&mut stream.changes.woken) {
            return Some(LinkUpdate::Wake);
        }
        if !stream.has_delivered() {
            return None;
        }
        let (reason, peer) = (stream.changes.end?, stream.peer);
        self.close(token, CloseKind::Abandon);
        if matches!(reason, Reason::Died | Reason::Orderly) {
            self.note_end(peer);
        }
        Some(LinkUpdate::Closed(reason))
    }

    /// Sends a record past the ring of a connection, see [`NetStream::send_long`].
    pub(super) fn send_long(
        &mut self,
        token: u64,
        record: (u8, &[u8]),
        len: usize,
        append: &mut dyn FnMut(&mut Vec<u8>),
    ) -> LongSend {
        // Records in the ring precede it.
        self.send(token);
        let NetMux { wire, table, .. } = self;
        let Some(stream) = table.streams.get_mut(token) else { return LongSend::Later };
        let sent = stream.send_long(&mut **wire, record, len, append, &mut table.tally);
        if stream.is_restless() {
            table.list(token);
        }
        table.streams.note_unsent(token);
        sent
    }

    /// Moves the bodies outside the ring of a connection to `to`.
    pub(super) fn move_bodies(&mut self, token: u64, to: &mut OutsideBodies) {
        if let Some(stream) = self.table.streams.get_mut(token) {
            stream.move_bodies(to);
        }
    }

    /// Returns the exports of a peer.
    pub(super) fn remote(&self) -> Remote {
        Remote {
            bell: Arc::clone(&self.bell),
            bell_bit: 0,
            keys: None,
            memory: PeerMemory::none(),
            asymmetric: true,
        }
    }

    fn remove(&mut self, token: u64) {
        self.revoke_all(token);
        let Some(mut removed) = self.table.streams.remove(token) else { return };
        let mut bodies = OutsideBodies::default();
        removed.move_bodies(&mut bodies);
        self.give_back(&mut bodies);
        if let Some(to) = removed.to {
            self.wire.release(to);
        }
    }

    /// Gives the buffers of bodies back to the network.
    pub(super) fn give_back(&mut self, bodies: &mut OutsideBodies) {
        bodies.drain().for_each(|body| self.wire.give_back(body.into_buffer()));
    }

    fn revoke_all(&mut self, token: u64) {
        for key in self.table.reads.revoke_all(token) {
            self.wire.revoke(key);
        }
    }

    /// Returns the numbers of operations with all peers so far.
    pub(super) fn counts(&self) -> CarriedCounts {
        self.table.tally.counts
    }

    /// Returns the ability of the network to read memory of peers.
    pub(super) fn read_support(&self) -> ReadSupport {
        self.wire.read_support()
    }

    /// Lets the peer of a connection read a range of memory.
    pub(super) fn expose(&mut self, token: u64, range: &Mem) -> Option<WireMemory> {
        self.table.streams.get(token).filter(|stream| stream.is_open())?;
        let exposed = self.wire.expose(range)?;
        self.table.reads.note_exposed(exposed.key, token, now_ns());
        Some(exposed)
    }

    /// Ends the exposure of memory.
    pub(super) fn revoke(&mut self, key: u64) {
        if self.table.reads.revoke(key) {
            self.wire.revoke(key);
        }
    }

    /// Begins to read memory of the peer of a connection.
    pub(super) fn read(&mut self, token: u64, from: WireMemory, to: &Mem) -> ReadBegun {
        let NetMux { wire, table, .. } = self;
        let open = table.streams.get(token).filter(|stream| stream.is_open());
        let Some(peer) = open.and_then(|stream| stream.to) else { return ReadBegun::Refused };
        match wire.read(peer, from, to, table.reads.next_number()) {
            ReadPosted::Taken => {
                table.tally.counts.reads.add(to.len() as u64);
                ReadBegun::Reading(table.reads.note_begun())
            }
            ReadPosted::Later => ReadBegun::Later,
            ReadPosted::Refused => ReadBegun::Refused,
        }
    }

    pub(super) fn read_state(&mut self, number: u64) -> ReadState {
        self.table.reads.state(number)
    }

    /// Waits for the end of a read over a connection. After `end_ns`, ends the network.
    pub(super) fn finish_read(&mut self, token: u64, number: u64, end_ns: u64) {
        let NetMux { wire, table, .. } = self;
        while table.reads.is_open(number) {
            wire.poll(&mut |event| table.on_event(event));
            if now_ns() < end_ns {
                std::thread::yield_now();
                continue;
            }
            let peer = table.streams.get(token).map(|stream| stream.peer.to_string());
            log::warn!(
                "{} has not answered a read over {} in time; this endpoint reaches no other host \
                 any more. Check that its process runs and its host is up",
                peer.as_deref().unwrap_or("a peer that has left"),
                wire.provider()
            );
            wire.stop();
            table.reads.note_stopped();
        }
        table.reads.state(number);
    }

    /// Ends a connection by this side.
    pub(super) fn close(&mut self, token: u64, how: CloseKind) {
        self.revoke_all(token);
        let Some(stream) = self.table.streams.get_mut(token) else { return };
        match how {
            CloseKind::Abandon => {
                let corrupt = stream.changes.end == Some(Reason::Corrupt);
                stream.changes.end = None;
                if !corrupt {
                    self.remove(token);
                    return;
                }
                // The peer does not know yet.
                stream.leave(false);
            }
            CloseKind::Graceful => stream.leave(true),
            // The peer knows nothing of it.
            CloseKind::Reset if stream.is_unannounced() => return self.remove(token),
            CloseKind::Reset => stream.leave(false),
        }
        self.flush(token);
    }

    /// Refuses the connections that were not accepted, and ends those that are pending.
    pub(super) fn refuse_all(&mut self) {
        for token in self.table.pending.take_all() {
            self.close(token, CloseKind::Reset);
        }
        for token in std::mem::take(&mut self.table.requests) {
            let name = self.table.streams.get(token).and_then(|stream| stream.peer.network_name());
            self.remove(token);
            if let Some(name) = name {
                let kind = FrameKind::Refusal(Refusal::Closed);
                self.answer_unconnected(&StrayReply { to: name, token, kind });
            }
        }
    }

    /// Returns the number of peers with a line in the log.
    #[cfg(test)]
    pub(super) fn logged_names(&self) -> usize {
        self.table.replies.logged_names()
    }

    /// Whether everything is sent, by all connections.
    pub(super) fn is_quiet(&self) -> bool {
        self.wire.is_quiet() && self.table.streams.iter().all(NetStream::is_finished)
    }

    /// Returns the time of the last message, if records wait to be sent.
    pub(super) fn unsent_since(&mut self) -> Option<u64> {
        self.table.streams.has_unsent().then_some(self.table.expectation.received_ns())
    }

    /// Whether a message is expected soon.
    pub(super) fn is_expecting(&mut self, now: u64) -> bool {
        self.table.expectation.is_due(now)
            || !self.table.listed.is_empty()
            || self.table.reads.is_expecting(now, self.table.expectation.received_ns())
    }

    /// Whether the owner may sleep until the network's descriptor is readable.
    pub(super) fn may_sleep(&mut self) -> bool {
        let StreamTable { listed, ready, requests, pending, .. } = &self.table;
        listed.is_empty()
            && ready.is_empty()
            && requests.is_empty()
            && pending.are_unanswered()
            && self.wire.may_sleep()
    }
}

impl StreamTable {
    fn new(wire: &dyn NetWire, tally: Tally) -> StreamTable {
        StreamTable {
            limits: wire.limits(),
            streams: NetStreams::new(),
            listed: Vec::new(),
            requests: VecDeque::new(),
            replies: StrayReplies::new(wire.provider()),
            key: OwnKey::new(wire.key(), wire.name(), new_token()),
            pending: PendingConnects::new(),
            dead: DeadNames::default(),
            ready: Vec::new(),
            reads: NetReads::default(),
            resting: RestingList::default(),
            expectation: Expectation::default(),
            tally,
            provider: wire.provider().to_owned(),
        }
    }

    fn list(&mut self, token: u64) {
        if let Some(stream) = self.streams.get_mut(token) {
            if !std::mem::replace(&mut stream.listed, true) {
                self.listed.push(token);
            }
        }
    }

    /// Releases the pages of connections that rest.
    fn release_resting(&mut self, now: u64) {
        let StreamTable { streams, resting, .. } = self;
        resting.visit(now, |token, messages| {
            streams.get_mut(token).map_or(PageRelease::Done, |stream| stream.rest(messages))
        });
    }

    fn on_event(&mut self, event: WireEvent<'_>) {
        match event {
            WireEvent::Message(message, len) => {
                let Some((head, _)) = message.get(..len).and_then(open) else {
                    log::debug!(
                        "message of {len} bytes over {}: invalid; ignored. Its sender is unknown: \
                         keep others off the network of the job",
                        self.provider
                    );
                    return;
                };
                self.expectation.note_received(now_ns());
                self.on_message(&head, message, len);
            }
            WireEvent::Lost(peer, message) => self.on_lost(peer, message),
            WireEvent::ReadEnded { number, is_done } => {
                self.expectation.note_received(now_ns());
                self.reads.note_ended(number, is_done);
            }
        }
    }

    fn on_message(&mut self, head: &FrameHead, message: &mut Vec<u8>, len: usize) {
        let rest = message.get(HEAD..len).unwrap_or_default();
        let (token, now) = (head.token(), self.expectation.received_ns());
        let Some(stream) = self.streams.get_mut(token) else {
            if head.kind() == Some(FrameKind::Greeting) {
                return self.on_greeting(head, rest);
            }
            // Of a connection that this side has ended, or of a former process.
            if head.kind() == Some(FrameKind::Ping) {
                if let Some((greeting, _)) = NetGreeting::decode(rest) {
                    self.replies.push(greeting.name(), token, FrameKind::Unknown);
                }
            }
            return;
        };
        if !stream.is_receiving() {
            return;
        }
        let unknown = (head.kind() == Some(FrameKind::Unknown)).then(|| mark_of(rest)).flatten();
        if let Some((mark, _)) = unknown {
            stream.end(Reason::Died);
            let peer = stream.peer;
            // It may be the same process. Only one at its name gets greetings of this side.
            if stream.side() == Side::Opener && !stream.watch.is_of_mark(mark) {
                self.end_twins(token);
            }
            self.probe_all(|stream| stream.peer == peer);
        } else if let Err(reason) =
            stream.receive(head, (message, len), now, &mut self.tally, &self.provider)
        {
            stream.end(reason);
            if let (Reason::Refused(refusal), Some(name)) = (reason, stream.peer.network_name()) {
                let content = message.get(HEAD..len).unwrap_or_default();
                self.replies.note_refusal(name, refusal, content, now);
            }
        }
        // The poll reports its changes. A credit may let more be sent.
        self.list(token);
    }

    fn on_greeting(&mut self, head: &FrameHead, rest: &[u8]) {
        let token = head.token();
        let Some((greeting, rest)) = NetGreeting::decode(rest) else {
            log::debug!(
                "greeting over {}: invalid; ignored. Its sender is unknown: keep others off the \
                 network of the job",
                self.provider
            );
            return;
        };
        let name = greeting.name();
        if let Some(answer) = self.replies.unfit(&self.key, token, (&greeting, rest)) {
            return self.replies.push(name, token, answer);
        }
        if self.requests.len() >= BACKLOG {
            return self.replies.push(name, token, FrameKind::Refusal(Refusal::Resources));
        }
        let from = greeting.sender();
        self.replies.forget_refusal(name);
        self.dead.note_heard(name);
        // It may be a new process at the address of a dead one.
        self.probe_all(|stream| stream.peer == from);
        let key = self.key.of_acceptor(token, name);
        match NetStream::new((token, from), Side::Acceptor, self.limits, key) {
            Ok(mut stream) => {
                stream.note_greeting(mark_of(rest).map_or(0, |(mark, _)| mark));
                self.streams.insert(stream);
                self.key.note_accepted(token, new_token);
                self.requests.push_back(token);
            }
            Err(error) => {
                log::warn!(
                    "connection of {name} over {} refused: {error}. Raise the limits of memory and \
                     files (ulimit -v, -n)",
                    self.provider
                );
                self.replies.push(name, token, FrameKind::Refusal(Refusal::Resources));
            }
        }
    }

    fn probe_all(&mut self, concerns: impl Fn(&NetStream) -> bool) {
        let StreamTable { streams, listed, .. } = self;
        for stream in streams.iter_mut().filter(|stream| concerns(stream)) {
            stream.ping();
            if !std::mem::replace(&mut stream.listed, true) {
                listed.push(stream.token);
            }
        }
    }

    /// Ends the connection of a message that is lost. The others of that process end too, and those
    /// of a later one at its name do not.
    fn on_lost(&mut self, peer: WirePeer, message: &[u8]) {
        let token = open(message).map(|(head, _)| head.token());
        if let Some(stream) = token.and_then(|token| self.streams.get_mut(token)) {
            if !stream.greet_again() {
                stream.end(Reason::Died);
                self.ready.push(stream.token);
            }
        }
        self.end_twins(token.unwrap_or_default());
        self.probe_all(|stream| stream.to == Some(peer));
    }

    /// Ends the other connections of a process, if it has died. Records sent over one of them would
    /// be lost without an error. A hostile process may use the mark of another one, or its name.
    fn end_twins(&mut self, token: u64) {
        let StreamTable { streams, ready, .. } = self;
        let died = streams.get(token).filter(|dead| dead.changes.end == Some(Reason::Died));
        let Some((mark, peer)) = died.map(|dead| (dead.watch.mark(), dead.peer)) else { return };
        for stream in streams.iter_mut().filter(|stream| stream.watch.is_of_mark(mark)) {
            if stream.peer == peer && stream.changes.end.is_none() {
                stream.end(Reason::Died);
                ready.push(stream.token);
            }
        }
    }
}
