// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Pending operations of a peer: their limit, their order, and fences.

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif::{ConnId, Connection};

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::tables::pending::PendingOp;
use crate::engine::tables::posted_writes::PostedWrites;
use crate::engine::types::peer_id::PeerId;

/// Result of an attempt to start an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submit {
    /// In the ring or finished; its completion is written or will follow.
    Done,
    /// Not started: no ring space, no connection, or an earlier operation must finish first.
    Retry,
}

/// Checks that one more operation may become pending.
pub(crate) fn check_room(ep: &Endpoint, peer: PeerId) -> Result<(), Errno> {
    let has_room = ep.peers.at(peer).queue.pending.len() < ep.cfg.tx_size.max(1);
    has_room.then_some(()).ok_or(fi::FI_EAGAIN)
}

/// Adds an operation to the pending ones of a peer.
pub(crate) fn defer(ep: &mut Endpoint, peer: PeerId, op: PendingOp) {
    ep.peers.note(peer, || {
        let (tag, len, context) = op.label().map_or((0, 0, 0), |l| (l.tag, l.len, l.context));
        TraceEvent::new(EventKind::Deferred, tag, len, context as u64)
    });
    ep.peers.at_mut(peer).queue.pending.push_back(op);
    ep.peers.mark_busy(peer);
}

/// Whether every earlier operation to this peer is complete, as `FI_FENCE` requires.
pub(crate) fn fence_passed(ep: &mut Endpoint, peer: PeerId) -> bool {
    let p = ep.peers.at(peer);
    if ep.ops.any_incomplete(peer) || !p.rma.posted.is_empty() {
        return false;
    }
    p.tx.is_none_or(|conn| are_messages_consumed(ep, conn, peer))
}

/// Whether the peer has consumed all records sent over `conn`, posted operations and replies to
/// reads aside.
pub(crate) fn are_messages_consumed(ep: &mut Endpoint, conn: ConnId, peer: PeerId) -> bool {
    let one_sided_end = ep.peers.at(peer).rma.posted.one_sided_end;
    let Some(c) = ep.links.conn(conn) else { return true };
    one_sided_end == c.tx().produced() || c.tx().all_consumed()
}

/// Pushes by `push` a record for which RMA operations behind it need not wait: a posted operation,
/// or the reply to a read. Returns an error if the ring has no space.
#[inline(always)]
pub(crate) fn push_one_sided<T, E>(
    c: &mut Connection,
    posted: &mut PostedWrites,
    push: impl FnOnce(&mut Connection) -> Result<T, E>,
) -> Result<T, E> {
    let number = c.tx().produced();
    let follows = posted.one_sided_end == number || c.tx().all_consumed();
    let pushed = push(c)?;
    posted.one_sided_end = if follows { number + 1 } else { 0 };
    Ok(pushed)
}
