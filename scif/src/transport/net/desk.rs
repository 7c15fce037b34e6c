// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! All connections of a port over a network, and the port's end of that network.
//!
//! Not about the records of a connection (`stream`). Whoever reaches the end of the network can
//! greet, and names its own port. A random number of 64 bits in each message keeps others out of a
//! connection.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddrV4;
use std::sync::Arc;

use scif_ring::{BELL_BYTES, Mem};

use super::frame::{FrameHead, FrameKind, NetGreeting, begin, open, seal};
use super::reads::NetReads;
use super::stream::NetStream;
use super::wire::{NetWire, ReadPosted, WireEvent, WirePeer};
use crate::addr::PortId;
use crate::error::{Error, Reason, Refusal, Result};
use crate::memory::PeerMemory;
use crate::remote_reads::{ReadBegun, ReadState, WireMemory};
use crate::segment::Side;
use crate::slab::ConnId;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, LinkUpdate, Remote};

/// Maximum number of connections that wait to be accepted; further ones are refused.
const BACKLOG: usize = 4096;
/// Time in nanoseconds after the last message for which more are expected. A longer one slows
/// traffic inside the host, a shorter one delays answers of peers that compute in between.
const EXPECT_NS: u64 = 200_000;

/// State of a port over a network.
#[derive(Debug)]
pub(super) struct NetDesk {
    wire: Box<dyn NetWire>,
    node: u16,
    /// Doorbell whose owner always appears asleep, so that a producer calls the link, which sends.
    bell: Arc<Mapping>,
    book: Book,
}

/// Connections, without the network.
#[derive(Debug, Default)]
struct Book {
    streams: HashMap<u64, NetStream>,
    /// Connections at which each poll looks.
    listed: Vec<u64>,
    /// Connections to accept.
    requests: VecDeque<u64>,
    /// Greetings that are answered with a refusal.
    refused: Vec<(PortId, u64, Refusal)>,
    /// Pings of connections that do not exist here, to be answered.
    unknown: Vec<(SocketAddrV4, u64)>,
    /// Connections with changes.
    ready: Vec<u64>,
    reads: NetReads,
    /// Time of the last message.
    received_ns: u64,
}

impl NetDesk {
    pub(super) fn new(wire: Box<dyn NetWire>, node: u16) -> Result<NetDesk> {
        let bell = Arc::new(Mapping::private(BELL_BYTES).map_err(Error::os("mmap"))?);
        bell.bell()?.set_sleeping(true);
        Ok(NetDesk { wire, node, bell, book: Book::default() })
    }

    pub(super) fn wire(&mut self) -> &mut dyn NetWire {
        &mut *self.wire
    }

    /// Begins a connection to `dst`; returns its token and the memory of its rings.
    pub(super) fn connect(&mut self, dst: PortId, id: ConnId) -> Result<(u64, Arc<Mapping>)> {
        let token = RandomState::new().build_hasher().finish();
        let mut stream = NetStream::new(token, dst, Side::Opener)?;
        stream.id = Some(id);
        let segment = Arc::clone(&stream.segment);
        stream.flush(&mut *self.wire, self.node)?;
        self.book.streams.insert(token, stream);
        self.book.list(token);
        self.book.received_ns = now_ns();
        Ok((token, segment))
    }

    /// Accepts the next connection; returns its token, its peer and the memory of its rings.
    pub(super) fn accept(&mut self, id: ConnId) -> Option<(u64, PortId, Arc<Mapping>)> {
        while let Some(token) = self.book.requests.pop_front() {
            let Some(stream) = self.book.streams.get_mut(&token) else { continue };
            stream.id = Some(id);
            let accepted = (token, stream.peer, Arc::clone(&stream.segment));
            if stream.changes.woken || stream.changes.end.is_some() {
                self.book.ready.push(token);
            }
            self.flush(token);
            return Some(accepted);
        }
        None
    }

    /// Takes messages, sends what waits, and appends the connections with changes to `ready`.
    pub(super) fn poll(&mut self, ready: &mut Vec<ConnId>) {
        let NetDesk { wire, book, .. } = self;
        wire.poll(&mut |event| book.take(event));
        for at in (0..self.book.listed.len()).rev() {
            let Some(token) = self.book.listed.get(at).copied() else { continue };
            self.look_at(token, at);
        }
        for (port, token, refusal) in std::mem::take(&mut self.book.refused) {
            self.refuse(port, token, refusal);
        }
        for (name, token) in std::mem::take(&mut self.book.unknown) {
            self.disown(name, token);
        }
        for token in std::mem::take(&mut self.book.ready) {
            let Some(stream) = self.book.streams.get(&token) else { continue };
            // `accept` reports one that is not accepted yet.
            ready.extend(stream.id);
        }
    }

    fn look_at(&mut self, token: u64, at: usize) {
        let Some(stream) = self.book.streams.get_mut(&token) else {
            self.book.listed.swap_remove(at);
            return;
        };
        if !stream.has_delivered() {
            stream.unstash();
        }
        self.flush(token);
        let Some(stream) = self.book.streams.get_mut(&token) else { return };
        if stream.changes.woken || stream.changes.end.is_some() {
            self.book.ready.push(token);
        }
        if !stream.is_restless() {
            stream.listed = false;
            self.book.listed.swap_remove(at);
        }
    }

    /// Sends what waits in a connection. Removes one that this side has ended, once all is sent.
    pub(super) fn flush(&mut self, token: u64) {
        let Some(stream) = self.book.streams.get_mut(&token) else { return };
        let was_open = stream.changes.end.is_none();
        if was_open && let Err(error) = stream.flush(&mut *self.wire, self.node) {
            log::warn!(
                "connection to {}: {} cannot send: {error}; connection reset",
                stream.peer,
                self.wire.provider()
            );
            stream.end(Reason::Exhausted);
        }
        if stream.left && (stream.is_finished() || stream.changes.end.is_some()) {
            self.remove(token);
        } else if stream.changes.end.is_some() {
            if was_open {
                self.book.ready.push(token);
            }
        } else if stream.is_restless() {
            self.book.list(token);
        }
    }

    fn refuse(&mut self, port: PortId, token: u64, refusal: Refusal) {
        let Some(name) = port.network_name() else { return };
        let Ok(to) = self.wire.peer(name) else { return };
        let mut message = self.wire.buffer();
        begin(&mut message, FrameHead::new(FrameKind::Refusal(refusal), token, 0, 0));
        seal(&mut message);
        if self.wire.send(to, message).is_err() {
            log::debug!("refusal of {port} was not sent; that peer waits until its own timeout");
        }
    }

    /// Tells a peer that one of its connections does not exist here.
    fn disown(&mut self, name: SocketAddrV4, token: u64) {
        let Ok(to) = self.wire.peer(name) else { return };
        let mut message = self.wire.buffer();
        begin(&mut message, FrameHead::new(FrameKind::Unknown, token, 0, 0));
        seal(&mut message);
        // If it is lost, the peer asks again.
        let _ = self.wire.send(to, message);
    }

    /// Asks the peer of a connection for a sign of life, if it has been silent.
    pub(super) fn probe(&mut self, token: u64, now: u64) {
        if let Some(stream) = self.book.streams.get_mut(&token) {
            stream.ping_if_silent(now);
            self.flush(token);
        }
    }

    /// Returns the next change of a connection.
    pub(super) fn next_event(&mut self, token: u64) -> Option<LinkUpdate> {
        self.flush(token);
        let stream = self.book.streams.get_mut(&token)?;
        if std::mem::take(&mut stream.changes.up) {
            return Some(LinkUpdate::Up(Box::new(self.remote())));
        }
        if std::mem::take(&mut stream.changes.woken) {
            return Some(LinkUpdate::Wake);
        }
        if !stream.has_delivered() {
            return None;
        }
        let reason = stream.changes.end?;
        self.close(token, CloseKind::Abandon);
        Some(LinkUpdate::Closed(reason))
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
        self.book.streams.remove(&token);
    }

    fn revoke_all(&mut self, token: u64) {
        for key in self.book.reads.revoke_all(token) {
            self.wire.revoke(key);
        }
    }

    /// Lets the peer of a connection read a range of memory.
    pub(super) fn expose(&mut self, token: u64, range: &Mem) -> Option<WireMemory> {
        self.book.streams.get(&token).filter(|stream| stream.is_open())?;
        let exposed = self.wire.expose(range)?;
        self.book.reads.note_exposed(exposed.key, token);
        Some(exposed)
    }

    /// Ends the exposure of memory.
    pub(super) fn revoke(&mut self, key: u64) {
        if self.book.reads.revoke(key) {
            self.wire.revoke(key);
        }
    }

    /// Begins to read memory of the peer of a connection.
    pub(super) fn read(&mut self, token: u64, from: WireMemory, to: &Mem) -> ReadBegun {
        let NetDesk { wire, book, .. } = self;
        let open = book.streams.get(&token).filter(|stream| stream.is_open());
        let Some(peer) = open.and_then(|stream| stream.to) else { return ReadBegun::Refused };
        match wire.read(peer, from, to, book.reads.next_number()) {
            ReadPosted::Taken => ReadBegun::Reading(book.reads.note_begun()),
            ReadPosted::Later => ReadBegun::Later,
            ReadPosted::Refused => ReadBegun::Refused,
        }
    }

    pub(super) fn read_state(&mut self, number: u64) -> ReadState {
        self.book.reads.state(number)
    }

    /// Waits for the end of a read. After `end_ns`, ends the network.
    pub(super) fn finish_read(&mut self, number: u64, end_ns: u64) {
        let NetDesk { wire, book, .. } = self;
        while book.reads.is_open(number) {
            wire.poll(&mut |event| book.take(event));
            if now_ns() < end_ns {
                std::thread::yield_now();
                continue;
            }
            log::warn!(
                "a peer has not answered a read over {} in time; this endpoint reaches no other \
                 host any more. Check that the other processes of the job run",
                wire.provider()
            );
            wire.stop();
            book.reads.note_stopped();
        }
        book.reads.state(number);
    }

    /// Ends a connection by this side.
    pub(super) fn close(&mut self, token: u64, how: CloseKind) {
        self.revoke_all(token);
        let Some(stream) = self.book.streams.get_mut(&token) else { return };
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
            CloseKind::Reset => stream.leave(false),
        }
        self.flush(token);
    }

    /// Refuses the connections that were not accepted.
    pub(super) fn refuse_all(&mut self) {
        for token in std::mem::take(&mut self.book.requests) {
            if let Some(stream) = self.book.streams.remove(&token) {
                self.refuse(stream.peer, token, Refusal::Closed);
            }
        }
    }

    /// Whether everything is sent, by all connections.
    pub(super) fn is_quiet(&self) -> bool {
        self.wire.is_quiet() && self.book.streams.values().all(NetStream::is_finished)
    }

    /// Whether a message is expected soon.
    pub(super) fn is_expecting(&self, now: u64) -> bool {
        now.saturating_sub(self.book.received_ns) < EXPECT_NS
            || !self.book.listed.is_empty()
            || self.book.reads.is_expecting()
    }

    /// Whether the owner may sleep until the network's descriptor is readable.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.book.listed.is_empty() && self.book.ready.is_empty() && self.wire.may_sleep()
    }
}

impl Book {
    fn list(&mut self, token: u64) {
        if let Some(stream) = self.streams.get_mut(&token)
            && !std::mem::replace(&mut stream.listed, true)
        {
            self.listed.push(token);
        }
    }

    fn take(&mut self, event: WireEvent<'_>) {
        match event {
            WireEvent::Message(message) => {
                let Some((head, rest)) = open(message) else {
                    log::debug!(
                        "message of {} bytes from the network: invalid; ignored",
                        message.len()
                    );
                    return;
                };
                self.received_ns = now_ns();
                self.on_message(&head, rest);
            }
            WireEvent::Lost(peer) => self.on_lost(peer),
            WireEvent::ReadEnded { number, is_done } => {
                self.received_ns = now_ns();
                self.reads.note_ended(number, is_done);
            }
        }
    }

    fn on_message(&mut self, head: &FrameHead, rest: &[u8]) {
        let token = head.token();
        if head.kind() == Some(FrameKind::Greeting) && !self.streams.contains_key(&token) {
            return self.on_greeting(head, rest);
        }
        let Some(stream) = self.streams.get_mut(&token) else {
            // Of a connection that this side has ended, or of a former process.
            if head.kind() == Some(FrameKind::Ping)
                && let Some((_, from)) = NetGreeting::decode(rest)
            {
                self.unknown.extend(from.network_name().map(|name| (name, token)));
            }
            return;
        };
        if stream.changes.end.is_some() {
            return;
        }
        if head.kind() == Some(FrameKind::Unknown) {
            stream.end(Reason::Died);
        } else if let Err(reason) = stream.receive(head, rest) {
            stream.end(reason);
        }
        self.ready.push(token);
        // A credit may let more be sent.
        self.list(token);
    }

    fn on_greeting(&mut self, head: &FrameHead, rest: &[u8]) {
        let token = head.token();
        let Some((greeting, from)) = NetGreeting::decode(rest) else {
            log::debug!("greeting from the network: invalid; ignored");
            return;
        };
        if !greeting.is_understood(from) {
            return self.refused.push((from, token, Refusal::Version));
        }
        if self.requests.len() >= BACKLOG {
            return self.refused.push((from, token, Refusal::Resources));
        }
        self.doubt(from);
        match NetStream::new(token, from, Side::Acceptor) {
            Ok(mut stream) => {
                stream.note_greeting();
                self.streams.insert(token, stream);
                self.requests.push_back(token);
            }
            Err(error) => {
                log::warn!(
                    "connection of {from} refused: {error}. Raise the limits of memory and files"
                );
                self.refused.push((from, token, Refusal::Resources));
            }
        }
    }

    /// Asks a peer that connects whether it still has its other connections: it may be a new
    /// process at the address of a dead one.
    fn doubt(&mut self, peer: PortId) {
        let Book { streams, listed, .. } = self;
        for stream in streams.values_mut().filter(|stream| stream.peer == peer) {
            stream.ping();
            if !std::mem::replace(&mut stream.listed, true) {
                listed.push(stream.token);
            }
        }
    }

    fn on_lost(&mut self, peer: WirePeer) {
        let Book { streams, ready, .. } = self;
        for stream in streams.values_mut().filter(|stream| stream.to == Some(peer)) {
            stream.end(Reason::Died);
            ready.push(stream.token);
        }
    }
}
