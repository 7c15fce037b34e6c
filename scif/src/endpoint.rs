// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A bound, listening endpoint: opens and accepts connections, detects their ends, sleeps and
//! wakes.
//!
//! Not about the records in the rings. Used by one thread at a time. No call blocks, except that
//! closing over a driver waits for the peers to take all sent data, for at most a second or two.
//! Mirrors `scif_bind`, `scif_listen`, `scif_connect`, `scif_accept` and `scif_close` of `scif.h`.

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use scif_ring::{BELL_BITS, BELL_BYTES, Bell, BellHandle};

use crate::addr::PortId;
use crate::carried::{CarriedCounts, OpDecoder};
use crate::connection::{Connection, Signalled};
use crate::error::{Error, Reason, Result};
use crate::export::Writers;
use crate::keys::Exports;
use crate::node::Node;
use crate::peer_windows::WindowCounts;
use crate::slab::{ConnId, Slab};
use crate::sys::{fork, membarrier};
use crate::transport::net::{NetPort, NetWire};
use crate::transport::{CloseKind, Port, Shown};

/// Maximum number of changes taken from one connection per call, so that a flooding peer cannot
/// occupy us.
const CHANGES_PER_CALL: usize = 16;
/// Maximum number of changes taken by a poll of one connection: more wake-ups than fit into a
/// socket's buffer.
const HEAR_AT_ONCE: usize = 512;

/// Change of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkEvent {
    /// A peer opened a connection, which may already contain records.
    Accepted(ConnId, PortId),
    /// A connection that we opened was accepted.
    Connected(ConnId),
    /// A connection ended. Records that were published can be read until `close_conn`.
    Closed(ConnId, Reason),
}

/// Way to end a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloseHow {
    /// Graceful close: all data was exchanged.
    Orderly,
    /// The peer misbehaved.
    Reset,
}

/// A bound and listening SCIF endpoint.
#[derive(Debug)]
pub struct Endpoint {
    bell: Bell,
    /// Our own doorbell in a peer's view: a wake-up over a link becomes a bit in it.
    own_bell: BellHandle,
    conns: Slab<Connection, ConnId>,
    /// Owns the memory of the doorbell, so it is dropped after the views of it.
    port: Box<dyn Port>,
    id: PortId,
    /// Connections that may have changes although nothing arrives.
    needs_poll: Vec<ConnId>,
    ready: Vec<ConnId>,
    /// Connections with records of other hosts.
    woken: Vec<ConnId>,
    generation: u64,
    silent: bool,
    /// Name by which other hosts reach it over a network.
    network_name: Option<SocketAddrV4>,
}

impl Endpoint {
    /// Takes a port of `node` (0: a dynamic one) and listens on it.
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::NoPorts`], or [`Error::Os`] if descriptors or memory are
    /// short.
    pub fn bind(node: &Arc<Node>, port: u16, exports: Exports) -> Result<Endpoint> {
        Endpoint::bind_over(node, port, exports, None)
    }

    /// Takes a port of `node` as [`Endpoint::bind`], which other hosts reach over a network. The
    /// end of the network has the same port number. The decoder finds the operations to count.
    ///
    /// # Errors
    /// As [`Endpoint::bind`].
    pub fn bind_over(
        node: &Arc<Node>,
        port: u16,
        exports: Exports,
        network: Option<(Box<dyn NetWire>, OpDecoder)>,
    ) -> Result<Endpoint> {
        let bell = node.transport().share("scif:bell", BELL_BYTES, Writers::Peers)?;
        let (owner, own_bell) = (bell.map.bell()?, bell.map.bell_handle()?);
        let network_name = network.as_ref().map(|(wire, _)| wire.name());
        let port = node.transport_arc().bind(port, Shown { bell, keys: exports.keys })?;
        let port = match network {
            Some((wire, decoder)) => Box::new(NetPort::join(port, wire, decoder)?),
            None => port,
        };
        Ok(Endpoint {
            bell: owner,
            conns: Slab::with_generation(0),
            id: port.id(),
            port,
            own_bell,
            needs_poll: Vec::new(),
            ready: Vec::new(),
            woken: Vec::new(),
            generation: fork::generation(),
            silent: false,
            network_name,
        })
    }

    /// Returns the port at which peers find this endpoint.
    #[inline]
    #[must_use]
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Returns the name by which other hosts reach this endpoint; `None` without a network.
    #[must_use]
    pub fn network_name(&self) -> Option<SocketAddrV4> {
        self.network_name
    }

    /// Returns the provider of the network to other hosts; `None` without a network.
    #[must_use]
    pub fn network_provider(&self) -> Option<&str> {
        self.port.network_provider()
    }

    /// Returns the numbers of operations with peers on other hosts so far; `None` without a
    /// network, and in a forked child.
    #[must_use]
    pub fn carried(&self) -> Option<CarriedCounts> {
        // A thread of the parent may have held the lock when the child was forked.
        if self.network_name.is_none() || self.forked() { None } else { self.port.carried() }
    }

    /// Whether a message of another host is expected soon after `now`, so that
    /// [`Endpoint::poll_links`] should be called at each poll.
    #[inline]
    #[must_use]
    pub fn is_expecting(&self, now: u64) -> bool {
        self.network_name.is_some() && !self.forked() && self.port.is_expecting(now)
    }

    /// Sends records to other hosts that wait for the network, or for a message of their peer. For
    /// owners that do not poll this endpoint now, since they poll another one.
    pub fn relay(&mut self) {
        if self.network_name.is_some() && !self.forked() {
            self.port.relay();
        }
    }

    /// Whether [`Endpoint::relay`] is to be called soon after `now`.
    #[must_use]
    pub fn is_sending(&self, now: u64) -> bool {
        self.network_name.is_some() && !self.forked() && self.port.is_sending(now)
    }

    /// Whether this is a forked child of the process that bound the endpoint. A child has no
    /// connections.
    #[inline]
    #[must_use]
    pub fn forked(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Starts a connection, into which records can be pushed at once.
    ///
    /// # Errors
    /// - [`Error::Again`]: the peer cannot accept now, or has not answered yet.
    /// - [`Error::NoNetwork`]: `dst` is on another host, and this endpoint has no network.
    /// - [`Error::Rejected`]: `dst` is on another host and refuses this process.
    /// - [`Error::Unanswered`]: the peer has not answered for a long time.
    /// - [`Error::Refused`]: no endpoint listens at `dst`.
    /// - [`Error::Denied`]: the listener belongs to a user that is not allowed.
    /// - [`Error::Forked`], [`Error::Os`].
    pub fn connect(&mut self, dst: PortId) -> Result<ConnId> {
        if self.forked() {
            return Err(Error::Forked);
        }
        let id = self.conns.next_key().ok_or(Error::Again)?;
        let opened = self.port.connect(dst, id)?;
        let connection = Connection::new(opened)?;
        let id = self.conns.insert(connection).ok_or(Error::Again)?;
        self.needs_poll.push(id);
        Ok(id)
    }

    /// Returns hints for a log line about a missing listener at `port`.
    #[must_use]
    pub fn whereabouts(&self, port: PortId) -> String {
        self.port.whereabouts(port)
    }

    /// Accepts waiting connections, completes handshakes, detects ends and takes wake-ups; appends
    /// the changes to `out`. Returns whether there was anything to do, or another call is soon due.
    pub fn poll_links(&mut self, out: &mut Vec<LinkEvent>) -> bool {
        if self.forked() {
            return false;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.port.poll(&mut ready);
        let mut is_active = !self.needs_poll.is_empty();
        is_active |= self.take_all_changes(ready, out);
        is_active |= self.accept_all(out);
        if !self.needs_poll.is_empty() {
            let mut needs_poll = std::mem::take(&mut self.needs_poll);
            needs_poll.retain(|&id| {
                if self.conns.get(id).is_some_and(Connection::overdue) {
                    self.take_changes(id, out);
                }
                self.conns.get(id).is_some_and(Connection::needs_poll)
            });
            needs_poll.append(&mut self.needs_poll);
            self.needs_poll = needs_poll;
        }
        is_active
    }

    /// Takes the changes of one connection, as `poll_links` does for all.
    pub fn poll_connection(&mut self, id: ConnId, out: &mut Vec<LinkEvent>) {
        if self.forked() {
            return;
        }
        let before = out.len();
        for _ in 0..HEAR_AT_ONCE.div_ceil(CHANGES_PER_CALL) {
            self.take_changes(id, out);
            if out.len() > before {
                return;
            }
        }
    }

    /// Returns the process that listens at `port` now, as known to the kernel; `None` without a
    /// listener, or if it is unknown.
    pub fn listener(&mut self, port: PortId) -> Option<i32> {
        if self.forked() {
            return None;
        }
        self.port.listener(port).filter(|pid| *pid > 0)
    }

    fn adopt(&mut self, opened: crate::transport::Opened, out: &mut Vec<LinkEvent>) {
        let peer = opened.peer;
        let Ok(connection) = Connection::new(opened) else {
            return;
        };
        let needs_poll = connection.needs_poll();
        if let Some(id) = self.conns.insert(connection) {
            if needs_poll {
                self.needs_poll.push(id);
            }
            out.push(LinkEvent::Accepted(id, peer));
        }
    }

    /// Takes messages of other hosts, and appends events of their connections to `out`.
    pub fn poll_network(&mut self, out: &mut Vec<LinkEvent>) {
        if self.forked() {
            return;
        }
        let Endpoint { port, ready, woken, .. } = self;
        let has_requests = port.poll_network(ready, woken);
        while let Some(id) = self.woken.pop() {
            self.note_woken(id);
        }
        if !self.ready.is_empty() {
            let ready = std::mem::take(&mut self.ready);
            self.take_all_changes(ready, out);
        }
        if has_requests {
            self.accept_all(out);
        }
    }

    /// Accepts the connections that wait; returns whether there were any.
    fn accept_all(&mut self, out: &mut Vec<LinkEvent>) -> bool {
        let mut has_accepted = false;
        while let Some(id) = self.conns.next_key() {
            let Some(opened) = self.port.accept(id) else {
                break;
            };
            has_accepted = true;
            self.adopt(opened, out);
        }
        has_accepted
    }

    /// Takes the changes of the connections in `ready`, and keeps its memory. Returns whether there
    /// were any.
    fn take_all_changes(&mut self, mut ready: Vec<ConnId>, out: &mut Vec<LinkEvent>) -> bool {
        let is_active = !ready.is_empty();
        for id in ready.drain(..) {
            self.take_changes(id, out);
        }
        self.ready = ready;
        is_active
    }

    /// Announces the records of a connection to the owner.
    fn note_woken(&mut self, id: ConnId) {
        let Some(connection) = self.conns.get(id) else { return };
        if self.bell.is_sleeping() || connection.needs_bell() {
            self.own_bell.ring(id.index as usize % BELL_BITS);
        }
    }

    fn take_changes(&mut self, id: ConnId, out: &mut Vec<LinkEvent>) {
        for _ in 0..CHANGES_PER_CALL {
            let Some(connection) = self.conns.get_mut(id) else {
                return;
            };
            match connection.next_change() {
                None => break,
                Some(Signalled::Woken) => self.note_woken(id),
                Some(Signalled::Connected) => {
                    // Records pushed so far had no known doorbell to ring.
                    connection.notify();
                    out.push(LinkEvent::Connected(id));
                }
                Some(Signalled::Closed(reason)) => {
                    log::debug!(
                        "connection of {} with {} ended: {reason}",
                        self.id,
                        connection.peer()
                    );
                    out.push(LinkEvent::Closed(id, reason));
                }
            }
        }
    }

    /// Returns a connection, until `close_conn`.
    #[inline]
    pub fn conn(&mut self, id: ConnId) -> Option<&mut Connection> {
        if self.forked() {
            return None;
        }
        self.conns.get_mut(id)
    }

    /// Returns a connection, like [`Endpoint::conn`], for a caller that knows that the endpoint is
    /// not [`forked`](Endpoint::forked).
    #[inline(always)]
    pub fn conn_here(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.conns.get_mut(id)
    }

    /// Returns the ids of all connections.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> {
        let forked = self.forked();
        self.conns.iter().map(|(id, _)| id).filter(move |_| !forked)
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// Ends a connection and removes it.
    pub fn close_conn(&mut self, id: ConnId, how: CloseHow) {
        if let Some(mut connection) = self.conns.remove(id) {
            connection.close(match how {
                _ if self.generation != fork::generation() => CloseKind::Abandon,
                CloseHow::Orderly => CloseKind::Graceful,
                CloseHow::Reset => CloseKind::Reset,
            });
        }
    }

    /// Whether a live peer executes RMA on `slot` of our keys.
    pub fn slot_in_use(&mut self, slot: u32) -> bool {
        if self.forked() {
            return false;
        }
        self.conns
            .iter_mut()
            .any(|(_, c)| c.peer_mark().get() == Some(slot) && !c.is_closed() && c.alive())
    }

    /// Ends the exposure of memory to a peer ([`crate::RemoteReads::expose`]).
    pub fn revoke(&mut self, key: u64) {
        if !self.forked() {
            self.port.revoke(key);
        }
    }

    /// Returns the numbers of windows on the memory of our keys.
    #[must_use]
    pub fn window_counts(&self) -> WindowCounts {
        self.port.window_counts()
    }

    /// Returns the doorbell that our peers ring: bit `b` stands for the connections whose index is
    /// `b` modulo `BELL_BITS`.
    #[inline]
    #[must_use]
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Returns a descriptor that is readable when `poll_links` has work, or a peer woke us.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.port.wait_fd()
    }

    /// Whether connecting peers wait for a descriptor of this process. If so, `poll_links` must be
    /// called at intervals, although `wait_fd` is not readable.
    #[must_use]
    pub fn has_parked_callers(&self) -> bool {
        self.port.is_parked()
    }

    /// Whether [`Endpoint::wait_fd`] reports all that other hosts send from now on. If not,
    /// [`Endpoint::poll_links`] is soon due. For owners that wait without [`Endpoint::arm`] at each
    /// sleep.
    pub fn may_sleep(&mut self) -> bool {
        self.network_name.is_none() || self.forked() || self.port.may_sleep()
    }

    /// Prepares a sleep: peers that publish from now on wake us. The caller then polls the rings
    /// once more, and sleeps on `wait_fd` if they are empty.
    pub fn arm(&mut self) {
        if self.forked() {
            return;
        }
        self.bell.set_sleeping(true);
        self.port.set_sleeping(true);
        membarrier::barrier();
    }

    /// Ends the state set by [`Endpoint::arm`], after a sleep.
    pub fn disarm(&mut self) {
        if self.forked() {
            return;
        }
        self.bell.set_sleeping(false);
        self.port.set_sleeping(false);
    }

    /// Closes without any notice to peers, as a killed process would. For tests of the survivors.
    pub fn abandon(mut self) {
        self.silent = true;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let how =
            if self.silent || self.forked() { CloseKind::Abandon } else { CloseKind::Graceful };
        for (_, connection) in self.conns.iter_mut() {
            connection.close(how);
        }
        self.port.close(how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_move_between_threads() {
        fn assert_send<T: Send>() {}
        assert_send::<Endpoint>();
    }

    #[test]
    fn hot_structs_stay_small() {
        assert!(size_of::<Connection>() <= 512, "{}", size_of::<Connection>());
        assert_eq!(size_of::<ConnId>(), 8);
    }
}
