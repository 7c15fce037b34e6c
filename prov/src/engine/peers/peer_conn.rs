// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transmit connections to peers: lookup of a peer, connects, and control records.
//!
//! Not here: the end of a connection (`progress`).

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif::{ConnId, Error, PortId};

use crate::base::addr;
use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::tables::cm_state::State;
use crate::engine::tables::peer::{ANSWER_BYTES, Control, EXHAUSTED, REQUEST_CREDITS, note_denial};
use crate::engine::tables::peer_table::source_in;
use crate::engine::types::iov::copy_of;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::wire::Head;
use crate::state::av_table::AvState;

/// Time in nanoseconds after which a port without a listener is logged. Processes start at
/// different times, so a shorter one would log normal starts.
const NOTICE_NS: u64 = 2_000_000_000;

/// Notes for a connection that is up whether direct copies are denied over it. Logs the copy path
/// of the first peer.
pub(crate) fn note_access(ep: &mut Endpoint, conn: ConnId, peer: PeerId) {
    if let Some(c) = ep.links.conn(conn) {
        crate::base::log::first_peer(c, crate::base::env::env().process_vm);
        note_denial(c, ep.peers.at_mut(peer), &mut ep.stats);
        let pid = u64::from(c.peer_pid().unsigned_abs());
        ep.peers.note(peer, || TraceEvent::new(EventKind::PeerUp, 0, 0, pid));
    }
}

/// Returns the peer number of a port, new or known.
pub(crate) fn peer_at(ep: &mut Endpoint, id: PortId) -> PeerId {
    if let Some(known) = ep.peers.at_port(id) {
        return known;
    }
    let peer = ep.peers.insert(id);
    if id == ep.links.sock.id() && !ep.cfg.peer {
        ep.peers.own = Some(peer);
    }
    peer
}

/// Returns the peer that an address names.
#[inline(always)]
pub(crate) fn peer_of(ep: &mut Endpoint, env: &Env<'_>, addr: u64) -> Result<PeerId, Errno> {
    let Some(av) = env.avs.get(ep.cfg.av) else {
        return connected_peer(ep);
    };
    let at = usize::try_from(addr).unwrap_or(usize::MAX);
    if let Some(known) = ep.peers.at_addr(av.version, at) {
        return Ok(known);
    }
    resolve(ep, av, addr)
}

/// Returns the peer that `addr` names for the first time since the vector has changed.
fn resolve(ep: &mut Endpoint, av: &AvState, addr: u64) -> Result<PeerId, Errno> {
    let at = usize::try_from(addr).unwrap_or(usize::MAX);
    let id = av.port_id(addr).ok_or(fi::FI_EINVAL)?;
    let peer = peer_at(ep, id);
    ep.peers.at_mut(peer).state.on_inserted(av.inserted_at(addr));
    // An address that also names a context has its upper bits set.
    if at < av.bound() {
        ep.peers.note_addr(at, peer);
    }
    Ok(peer)
}

/// Returns the `fi_addr_t` to report as the source of a message.
#[inline]
pub(crate) fn source_of(ep: &mut Endpoint, env: &Env<'_>, peer: PeerId) -> u64 {
    source_in(&ep.cfg, &mut ep.peers, env.avs, peer)
}

/// Returns the address of a port in the format of address vectors.
pub(crate) fn name_of(ep: &Endpoint, id: PortId) -> Vec<u8> {
    addr::encode_peer(id, ep.cfg.host).to_vec()
}

/// Returns the transmit connection, and opens one if there is none. `None`: not possible yet;
/// progress tries again.
#[inline]
pub(crate) fn tx_conn(ep: &mut Endpoint, peer: PeerId) -> Option<ConnId> {
    match ep.peers.at(peer).tx {
        Some(conn) => Some(conn),
        None => connect(ep, peer),
    }
}

/// Opens the transmit connection, unless the last attempt was too recent.
#[cold]
fn connect(ep: &mut Endpoint, peer: PeerId) -> Option<ConnId> {
    if ep.cm.is_some() {
        return None;
    }
    let p = ep.peers.at_mut(peer);
    let now = scif::now_ns();
    if now < p.state.retry_at_ns {
        return None;
    }
    match ep.links.sock.connect(p.id) {
        Ok(conn) => {
            opened(ep, peer, conn);
            Some(conn)
        }
        Err(error) => {
            p.state.delay_connect(now);
            let connect_errno = match &error {
                Error::Again => return None,
                Error::Refused(_) => 0,
                other => crate::base::errno::errno(other),
            };
            // The network logs refusals for each peer.
            let is_logged = matches!(error, Error::Rejected { .. });
            if p.state.on_connect_failed(now, connect_errno) && connect_errno != 0 && !is_logged {
                crate::base::log::connect_failed(p.id, &error, connect_errno);
            }
            let (id, waited) = (p.id, p.state.failing_for(now));
            if connect_errno == 0 && !p.state.was_there() && waited > NOTICE_NS {
                log_no_listener(ep, id, Some(waited));
            }
            None
        }
    }
}

/// Registers a new connection to `peer` as its transmit connection.
pub(crate) fn opened(ep: &mut Endpoint, peer: PeerId, conn: ConnId) {
    let p = ep.peers.at_mut(peer);
    p.tx = Some(conn);
    p.state.on_listener();
    ep.links.add(conn, peer);
}

/// Logs, once for a port, that connects to it find no listener.
#[cold]
pub(crate) fn log_no_listener(ep: &Endpoint, id: PortId, waited_ns: Option<u64>) {
    crate::base::log::no_listener(id, waited_ns, || ep.links.sock.whereabouts(id));
}

/// Sends a control record: at once if the ring has space and nothing waits before it.
#[inline]
pub(crate) fn control(ep: &mut Endpoint, peer: PeerId, kind: u8, head: Head, body: &[u8]) {
    control_or_queue(ep, peer, kind, head, body, false);
}

/// Sends a control record that answers a request. While queued it counts against the peer.
pub(crate) fn answer(ep: &mut Endpoint, peer: PeerId, kind: u8, head: Head, body: &[u8]) {
    control_or_queue(ep, peer, kind, head, body, true);
}

fn control_or_queue(
    ep: &mut Endpoint,
    peer: PeerId,
    kind: u8,
    head: Head,
    body: &[u8],
    requested: bool,
) {
    let p = ep.peers.at_mut(peer);
    let Some(conn) = p.tx else { return };
    if p.queue.control.is_empty() {
        if let Some(c) = ep.links.conn(conn) {
            if c.tx().push_slice(kind, head.as_slice(), body).is_ok() {
                return ep.links.notify_of_answer(conn);
            }
        }
    }
    let Some(body) = copy_of(body).filter(|_| p.queue.control.try_reserve(1).is_ok()) else {
        return exhaust(ep, peer);
    };
    let counted = if requested { ANSWER_BYTES + body.len() } else { 0 };
    p.queue.reply_bytes = p.queue.reply_bytes.saturating_add(counted);
    p.queue.control.push_back(Control { kind, head, body, counted });
    ep.peers.mark_busy(peer);
}

/// Whether no request credits are left for `peer`.
pub(crate) fn out_of_credits(ep: &Endpoint, peer: PeerId) -> bool {
    ep.peers.at(peer).rma.outstanding >= REQUEST_CREDITS
}

/// Stops reading from `peer`. Its connection is reset at the next housekeeping.
#[cold]
pub(crate) fn exhaust(ep: &mut Endpoint, peer: PeerId) {
    ep.peers.at_mut(peer).queue.reply_bytes = EXHAUSTED;
    ep.recv.limits.exhausted = true;
}

/// Returns the only peer of a connected endpoint, whatever address an operation names.
#[cold]
pub(crate) fn connected_peer(ep: &Endpoint) -> Result<PeerId, Errno> {
    let cm = ep.cm.as_ref().ok_or(fi::FI_ENOAV)?;
    match cm.state {
        State::Idle | State::Connecting => Err(fi::FI_ENOTCONN),
        State::Accepting if cm.peer == ANY => Err(fi::FI_ENOTCONN),
        State::Accepting | State::Up => Ok(cm.peer),
        State::Down => Err(fi::FI_ESHUTDOWN),
    }
}
