// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transmit connections to peers: lookup of a peer, connects, and control records.
//!
//! Not here: the end of a connection (`progress`).

use std::net::Ipv4Addr;

use libfabric_sys as fi;
use scif::{ConnId, Error, PortId};

use super::iov::copy_of;
use super::peer::{ANSWER_BYTES, Control, REQUESTS_MAX, note_denial};
use super::peer_id::PeerId;
use super::peer_table::source_in;
use super::wire::Head;
use super::{Env, EpState, Errno};

/// Time in nanoseconds after which a port without a listener is logged. Processes start at
/// different times, so a shorter one would log normal starts.
const NOTICE_NS: u64 = 2_000_000_000;

impl EpState {
    /// Notes for a connection that is up whether direct copies are denied over it.
    pub(super) fn note_access(&mut self, conn: ConnId, peer: PeerId) {
        if let Some(c) = self.links.conn(conn) {
            note_denial(c, self.peers.at_mut(peer), &mut self.stats);
        }
    }

    /// Returns the peer number of a port, new or known.
    pub(crate) fn peer_at(&mut self, id: PortId) -> PeerId {
        if let Some(known) = self.peers.at_port(id) {
            return known;
        }
        let peer = self.peers.insert(id);
        if id == self.links.sock.id() && !self.cfg.peer {
            self.peers.own = Some(peer);
        }
        peer
    }

    /// Returns the peer that an address names.
    #[inline(always)]
    pub(crate) fn peer_of(&mut self, env: &Env<'_>, addr: u64) -> Result<PeerId, Errno> {
        let Some(av) = env.avs.get(self.cfg.av) else {
            return self.connected_peer();
        };
        let at = usize::try_from(addr).unwrap_or(usize::MAX);
        if let Some(known) = self.peers.at_addr(av.version, at) {
            return Ok(known);
        }
        let id = av.port_id(addr).ok_or(fi::FI_EINVAL)?;
        let peer = self.peer_at(id);
        // An address that also names a context has its upper bits set.
        if at < av.bound() {
            self.peers.note_addr(at, peer);
        }
        Ok(peer)
    }

    /// Returns the `fi_addr_t` to report as the source of a message.
    #[inline]
    pub(crate) fn source_of(&mut self, env: &Env<'_>, peer: PeerId) -> u64 {
        source_in(&self.cfg, &mut self.peers, env.avs, peer)
    }

    /// Returns the address of a port in the format of address vectors.
    pub(crate) fn name_of(&self, id: PortId) -> Vec<u8> {
        crate::base::addr::encode(Ipv4Addr::LOCALHOST, id, self.cfg.host).to_vec()
    }

    /// Returns the transmit connection, and opens one if there is none. `None`: not possible yet;
    /// progress tries again.
    #[inline]
    pub(crate) fn tx_conn(&mut self, peer: PeerId) -> Option<ConnId> {
        match self.peers.at(peer).tx {
            Some(conn) => Some(conn),
            None => self.connect(peer),
        }
    }

    /// Opens the transmit connection, unless the last attempt was too recent.
    #[cold]
    fn connect(&mut self, peer: PeerId) -> Option<ConnId> {
        if self.cm.is_some() {
            return None;
        }
        let p = self.peers.at_mut(peer);
        let now = scif::now_ns();
        if now < p.state.retry_at_ns {
            return None;
        }
        match self.links.sock.connect(p.id) {
            Ok(conn) => {
                self.opened(peer, conn);
                Some(conn)
            }
            Err(error) => {
                p.state.delay_connect(now);
                let hindered = match &error {
                    Error::Again => return None,
                    Error::Refused(_) => 0,
                    other => crate::base::errno::errno(other),
                };
                if p.state.on_connect_failed(now, hindered) && hindered != 0 {
                    crate::base::log::connect_failed(p.id, &error, hindered);
                }
                let (id, waited) = (p.id, p.state.failing_for(now));
                if hindered == 0 && !p.state.was_there() && waited > NOTICE_NS {
                    self.nobody_listens(id, Some(waited));
                }
                None
            }
        }
    }

    /// Registers a new connection to `peer` as its transmit connection.
    pub(super) fn opened(&mut self, peer: PeerId, conn: ConnId) {
        let p = self.peers.at_mut(peer);
        p.tx = Some(conn);
        p.state.on_listener();
        self.links.add(conn, peer);
    }

    /// Logs, once for a port, that connects to it find no listener.
    #[cold]
    pub(super) fn nobody_listens(&self, id: PortId, waited_ns: Option<u64>) {
        crate::base::log::no_listener(id, waited_ns, || self.links.sock.whereabouts(id));
    }

    /// Returns the error for operations to `peer` once connects have failed for too long. The flag
    /// is true if the peer is gone, and false if it exists but cannot be reached.
    fn connect_expired(&self, peer: PeerId, now_ns: u64) -> Option<(Errno, bool)> {
        let p = self.peers.at(peer);
        let timeout = crate::base::env::env().connect_timeout_ns;
        p.state.expired(now_ns, timeout).filter(|_| p.tx.is_none())
    }

    /// Fails work that waits for connections without a listener for too long.
    pub(super) fn expire_connects(&mut self, env: &mut Env<'_>, now: u64) {
        let mut at = 0;
        while let Some(peer) = self.peers.busy.get(at).copied() {
            at += 1;
            if let Some((err, gone)) = self.connect_expired(peer, now) {
                let waited = self.peers.at(peer).state.failing_for(now);
                self.peers.reset_connection(peer);
                let p = self.peers.at(peer);
                let (id, left, met) = (p.id, p.state.has_left(), p.state.was_there());
                if gone && !met {
                    self.nobody_listens(id, Some(waited));
                }
                self.fail_pending(env, peer, err);
                if gone && !left {
                    self.bury(env, peer, id, err, "no listener at its address any more");
                }
                self.coll_lost(env, peer);
            }
        }
    }

    /// Sends a control record: at once if the ring has space and nothing waits before it.
    #[inline]
    pub(crate) fn control(&mut self, peer: PeerId, kind: u8, head: Head, body: &[u8]) {
        self.control_or_queue(peer, kind, head, body, false);
    }

    /// Sends a control record that answers a request. While queued it counts against the peer.
    pub(crate) fn answer(&mut self, peer: PeerId, kind: u8, head: Head, body: &[u8]) {
        self.control_or_queue(peer, kind, head, body, true);
    }

    fn control_or_queue(
        &mut self,
        peer: PeerId,
        kind: u8,
        head: Head,
        body: &[u8],
        requested: bool,
    ) {
        let p = self.peers.at_mut(peer);
        let Some(conn) = p.tx else { return };
        if p.queue.control.is_empty()
            && let Some(c) = self.links.conn(conn)
            && c.tx().push_slice(kind, head.as_slice(), body).is_ok()
        {
            c.notify();
            return;
        }
        let Some(body) = copy_of(body).filter(|_| p.queue.control.try_reserve(1).is_ok()) else {
            return self.exhaust(peer);
        };
        let owed = if requested { ANSWER_BYTES + body.len() } else { 0 };
        p.queue.reply_bytes = p.queue.reply_bytes.saturating_add(owed);
        p.queue.control.push_back(Control { kind, head, body, owed });
        self.peers.mark_busy(peer);
    }

    /// Whether no request credits are left for `peer`.
    pub(crate) fn out_of_credits(&self, peer: PeerId) -> bool {
        self.peers.at(peer).rma.outstanding >= REQUESTS_MAX
    }
}
