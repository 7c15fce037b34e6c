// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loopback: operations of an endpoint on its own address. They have arrived and are executed when
//! the posting call returns.
//!
//! A loopback operation enters the ring like any other, in order, and is handled at once. Otherwise
//! the reply of a peer to a later operation could arrive first. No order is promised between two
//! senders, but programs rely on the end of operations on themselves.
//!
//! Large messages are announced at once and copied by progress.

use scif::ConnId;

use crate::engine::channel::rx_throttle::BATCH;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::atomic_inline;
use crate::engine::types::peer_id::PeerId;
use crate::engine::{connections, dispatch};

/// Number of socket polls in which the loopback connection comes up: one accepts, one completes the
/// connect.
const LOOKS: usize = 2;
/// Rounds of draining in one call. One operation and its replies need fewer.
const ROUNDS: usize = 4;

/// Handles an operation that was just posted, if this endpoint uses loopback.
#[inline(always)]
pub(crate) fn progress_loopback(ep: &mut Endpoint, env: &mut Env<'_>) {
    if let Some(own) = ep.peers.own {
        drain_loopback(ep, env, own);
    }
}

#[inline(never)]
fn drain_loopback(ep: &mut Endpoint, env: &mut Env<'_>, own: PeerId) {
    for _ in 0..ROUNDS {
        let Some(conn) = own_conn(ep, env, own) else {
            return;
        };
        let Some(c) = ep.links.conn(conn) else {
            return;
        };
        if c.rx().ready() {
            connections::drain(ep, env, conn, own, BATCH);
            if !ep.rma_target.done.is_empty() {
                atomic_inline::progress(ep);
            }
            // Local operations may wait for this counter: fences, and RMA in message order.
            if let Some(c) = ep.links.conn(conn) {
                c.rx().flush();
            }
        } else if ep.peers.at(own).queue.is_idle() {
            return;
        }
        dispatch::flush_peer(ep, env, own);
    }
}

/// Returns the accepted end of the loopback connection.
fn own_conn(ep: &mut Endpoint, env: &mut Env<'_>, own: PeerId) -> Option<ConnId> {
    let opened = ep.peers.at(own).tx?;
    for _ in 0..LOOKS {
        let up = ep.links.conn(opened).is_some_and(|c| c.is_up());
        if up && ep.peers.own_rx.is_some_and(|conn| ep.links.conn(conn).is_some()) {
            break;
        }
        connections::poll_connections(ep, env);
    }
    ep.peers.own_rx
}
