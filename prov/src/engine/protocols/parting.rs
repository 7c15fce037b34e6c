// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections that have ended while the peer may still be copying.
//!
//! A peer copies from announced memory, and into offered buffers, without this side. After the end
//! of its connection a copy may last as long as its process: the process is stopped, or malicious.
//! The operations with that memory stay pending until the peer has left it or died. The shared
//! memory of the connection stays mapped, since the peer reports there that it has left. Nothing
//! waits meanwhile.
//!
//! Only the close of the endpoint waits, for a bounded time and once for each process. No operation
//! can stay pending after it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use scif::{CloseHow, ConnId, Connection, PortId};

use crate::base::errno::Errno;
use crate::engine::channel::link_set::Parting;
use crate::engine::completions::{completion, recv_completion};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::{network_read, network_rma_end};
use crate::engine::tables::incoming::RndvState;
use crate::engine::tables::op_table::{CtsReason, OpKind};
use crate::engine::types::envelope::{MsgEnvelope, RecvTarget};
use crate::engine::types::peer_id::PeerId;

/// Time in nanoseconds that a close waits for peers that are copying. A stopped peer delays it by
/// this time.
pub(crate) const WITHDRAW_NS: u64 = 100_000_000;
/// Maximum number of remembered processes, and of ports, for which a close has waited in vain.
/// Beyond it the oldest is forgotten, and a close may wait for it again.
const UNRESPONSIVE_MAX: usize = 256;

/// Peers for which a close has waited in vain.
#[derive(Debug)]
struct Unresponsive<T>(Vec<T>);

impl<T: PartialEq> Unresponsive<T> {
    fn has(&self, peer: T) -> bool {
        self.0.contains(&peer)
    }

    fn add(&mut self, peer: T) {
        if self.0.len() == UNRESPONSIVE_MAX {
            self.0.remove(0);
        }
        self.0.push(peer);
    }

    fn forget(&mut self, peer: T) {
        self.0.retain(|other| *other != peer);
    }
}

/// Processes that stayed in a copy, by process id and start time.
static STUCK: Mutex<Unresponsive<(i32, u64)>> = Mutex::new(Unresponsive(Vec::new()));

/// Ports that have neither taken nor refused a connection.
static SILENT: Mutex<Unresponsive<PortId>> = Mutex::new(Unresponsive(Vec::new()));

fn silent() -> MutexGuard<'static, Unresponsive<PortId>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a close has waited in vain for a connection to `port`.
pub(crate) fn is_silent(port: PortId) -> bool {
    silent().has(port)
}

/// Notes that a close has waited in vain for a connection to `port`.
pub(crate) fn note_silent(port: PortId) {
    silent().add(port);
}

/// Notes that `port` has answered a connection.
pub(crate) fn note_answer(port: PortId) {
    silent().forget(port);
}

/// Waits while the peer is `busy`, until `end` at most. Does not wait for a process that was waited
/// for in vain before.
fn wait_for_peer(conn: &mut Connection, end: u64, busy: impl Fn(&Connection) -> bool) {
    let process = conn.peer_process();
    // Peers in this process are not remembered.
    let foreign = process.0 != std::process::id() as i32;
    let stuck = || STUCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut polls = 0;
    while busy(conn) && conn.may_be_copying() {
        if foreign && stuck().has(process) {
            return;
        }
        if scif::now_ns() >= end {
            if foreign {
                stuck().add(process);
            }
            return;
        }
        polls += 1;
        scif::cpu_relax_or_yield(polls);
    }
}

/// Closes a connection that has ended with `err`, now or when its peer is not copying any more.
/// `sent_on_it`: messages to `peer` were announced over it.
pub(crate) fn on_conn_lost(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    peer: PeerId,
    (how, err): (CloseHow, Errno),
    sent_on_it: bool,
) {
    if let Some(c) = ep.links.conn(conn) {
        c.leave();
    }
    fail_incoming(ep, env, conn, err);
    let inside = |c: &mut Connection| c.peer_is_inside() && c.may_be_copying();
    let inside = sent_on_it && ep.links.conn(conn).is_some_and(inside);
    let mut ops = if inside { set_apart(ep, peer) } else { Vec::new() };
    ops.extend(network_rma_end::on_conn_lost(ep, conn, peer, sent_on_it));
    if ops.is_empty() && !is_filled_over(ep, conn) {
        ep.links.sock.close_conn(conn, how);
        return;
    }
    ep.links.parting.push(Parting { conn, peer, how, ops, err });
}

/// Whether the peer or the network may be writing into memory for operations over `conn`.
fn is_filled_over(ep: &Endpoint, conn: ConnId) -> bool {
    ep.rndv.is_filled_over(conn) || ep.rma_target.network.is_filled_over(conn)
}

/// Separates the messages announced to `peer` from later connections with it.
fn set_apart(ep: &mut Endpoint, peer: PeerId) -> Vec<u64> {
    let mut ops = ep.ops.of_peer(peer);
    ops.retain(|id| !is_set_apart(ep, *id));
    ops.retain(|id| {
        let Some(op) = ep.ops.get_mut(*id) else {
            return false;
        };
        let announced = matches!(op.op_kind, OpKind::Message | OpKind::Tagged)
            && (op.kept.is_some() || !op.iov.as_slice().is_empty());
        if announced {
            op.block = None;
            op.asked = CtsReason::Refused;
        }
        announced
    });
    ep.rndv.coop_sends.retain(|id| !ops.contains(id));
    ops
}

/// Returns whether message `id` ends only when its peer has left its memory.
pub(crate) fn is_set_apart(ep: &Endpoint, id: u64) -> bool {
    ep.links.parting.iter().any(|p| p.ops.contains(&id))
}

/// Closes the connections whose peers have left, and ends the operations that waited for that.
#[inline]
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>) {
    if !ep.links.parting.is_empty() {
        close_parted(ep, env);
    }
}

#[cold]
fn close_parted(ep: &mut Endpoint, env: &mut Env<'_>) {
    let mut at = 0;
    while let Some(p) = ep.links.parting.get(at) {
        let (conn, has_ops) = (p.conn, !p.ops.is_empty());
        let is_filled = is_filled_over(ep, conn)
            || p.ops.iter().any(|op| ep.rma_target.network.is_filled_for(*op));
        let inside = |c: &mut Connection| c.peer_is_inside() && c.may_be_copying();
        if is_filled || has_ops && ep.links.conn(conn).is_some_and(inside) {
            at += 1;
            continue;
        }
        let p = ep.links.parting.swap_remove(at);
        ep.links.sock.close_conn(p.conn, p.how);
        for op in p.ops {
            completion::finish_op(ep, env, p.peer, op, p.err);
        }
    }
}

/// Fails the incoming messages of a lost connection. Each receive ends with `err` as soon as
/// its sender cannot write into it any more.
fn fail_incoming(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, err: Errno) {
    let mut at = 0;
    while let Some(index) = ep.rndv.order.get(at).copied() {
        let over_it = ep.rndv.incoming.get_mut(index).is_some_and(|m| m.conn() == conn);
        if !over_it || revoke(ep, index, err) {
            at += 1;
            continue;
        }
        ep.rndv.order.remove(at);
        if let Some(m) = ep.rndv.incoming.remove(index) {
            recv_completion::complete_recv(ep, env, &m.target, &m.arrival, 0, err);
        }
    }
}

/// Revokes the buffer offered for a message. Returns true if its sender is still writing; the
/// receive then ends with `err` afterwards.
pub(crate) fn revoke(ep: &mut Endpoint, index: u32, err: Errno) -> bool {
    let Some(m) = ep.rndv.incoming.get_mut(index) else {
        return false;
    };
    if let RndvState::Reading { number: Some(number) } | RndvState::EndingRead { number, .. } =
        m.how
    {
        m.how = RndvState::EndingRead { number, err };
        let conn = m.conn();
        return network_read::is_writing(ep, conn, number);
    }
    let (RndvState::CoopCopy { block, .. }
    | RndvState::Draining { block }
    | RndvState::Ending { block, .. }) = m.how
    else {
        return false;
    };
    let Some(conn) = ep.links.conn(m.conn()) else {
        return false;
    };
    let claim = conn.rx_claim(block);
    claim.close();
    let open = claim.open_parts() > 0 && conn.may_be_copying();
    if open {
        m.how = RndvState::Ending { block, err };
    }
    open
}

/// Revokes, for a closing endpoint, all announced memory and offered buffers.
pub(crate) fn revoke_all(ep: &mut Endpoint) {
    drop(end_fetches(ep));
}

/// Revokes all announced memory and offered buffers. Returns the receives that were being
/// filled.
pub(crate) fn end_fetches(ep: &mut Endpoint) -> Vec<(RecvTarget, MsgEnvelope)> {
    let end = scif::now_ns() + WITHDRAW_NS;
    let mut fetched = Vec::new();
    while let Some(index) = ep.rndv.order.pop_front() {
        let Some(m) = ep.rndv.incoming.remove(index) else {
            continue;
        };
        if let RndvState::Reading { number: Some(number) } | RndvState::EndingRead { number, .. } =
            m.how
        {
            network_read::finish(ep, m.conn(), number, end);
        }
        if let RndvState::CoopCopy { block, .. }
        | RndvState::Draining { block }
        | RndvState::Ending { block, .. } = m.how
        {
            if let Some(conn) = ep.links.conn(m.conn()) {
                conn.rx_claim(block).close();
                wait_for_peer(conn, end, |conn| conn.rx_claim(block).open_parts() > 0);
            }
        }
        fetched.push((m.target, m.arrival));
    }
    network_rma_end::end_reads(ep, end);
    let conns: Vec<ConnId> = ep.links.sock.conns().collect();
    for conn in &conns {
        if let Some(conn) = ep.links.conn(*conn) {
            conn.leave();
        }
    }
    for conn in conns {
        if let Some(conn) = ep.links.conn(conn) {
            wait_for_peer(conn, end, Connection::peer_is_inside);
        }
    }
    ep.links.parting.clear();
    fetched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_processes_is_remembered() {
        let mut peers = Unresponsive(Vec::new());
        for pid in 1..1000 {
            peers.add((pid, 7));
            assert!(peers.has((pid, 7)) && !peers.has((pid, 8)));
        }
        assert_eq!(peers.0.len(), UNRESPONSIVE_MAX);
        assert!(peers.has((999, 7)) && !peers.has((1, 7)));
    }
}
