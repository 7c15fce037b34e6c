// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Merge of two connections between the same two endpoints into one for sending.
//!
//! After a simultaneous open each side sends over its own connection. A message and its reply then
//! share no reply line (`scif_ring::spsc`). So the side with the higher port changes to the
//! connection of the other side. It changes while nothing of its own is in flight, so that later
//! records cannot overtake earlier ones. The other connection stays open and is still polled.
//!
//! Not here: the end of connections.

use scif::ConnId;

use crate::engine::endpoint::Endpoint;
use crate::engine::types::peer_id::PeerId;

/// Handles a record of `peer` over `conn`, while `tx` is used for sending. Returns the
/// connection to send on from now on.
#[cold]
pub(crate) fn merge_conns(ep: &mut Endpoint, peer: PeerId, tx: ConnId, conn: ConnId) -> ConnId {
    let ours = ep.links.sock.id();
    let p = ep.peers.at_mut(peer);
    if p.merge_tries == 0 {
        return tx;
    }
    let theirs =
        ep.links.sock.conn(conn).is_some_and(|c| c.is_up() && c.is_direct() && !c.initiated());
    if p.id >= ours || !theirs {
        p.merge_tries = 0;
        return tx;
    }
    if !p.has_nothing_in_flight() || ep.ops.any_of_peer(peer) {
        return tx;
    }
    p.merge_tries -= 1;
    let taken = ep
        .links
        .sock
        .conn(tx)
        .is_some_and(|c| c.is_up() && c.is_direct() && c.initiated() && c.tx().all_consumed());
    if !taken {
        return tx;
    }
    p.merge_tries = 0;
    p.rma.posted.reset_connection();
    p.tx = Some(conn);
    conn
}
