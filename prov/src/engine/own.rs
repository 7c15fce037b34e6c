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

use super::peer_id::PeerId;
use super::rx_throttle::BATCH;
use super::{Env, EpState};

/// Number of socket polls in which the loopback connection comes up: one accepts, one completes the
/// connect.
const LOOKS: usize = 2;
/// Rounds of draining in one call. One operation and its replies need fewer.
const ROUNDS: usize = 4;

impl EpState {
    /// Handles an operation that was just posted, if this endpoint uses loopback.
    #[inline(always)]
    pub(crate) fn loop_back(&mut self, env: &mut Env<'_>) {
        if let Some(own) = self.peers.own {
            self.take_own(env, own);
        }
    }

    #[inline(never)]
    fn take_own(&mut self, env: &mut Env<'_>, own: PeerId) {
        for _ in 0..ROUNDS {
            let Some(conn) = self.own_conn(env, own) else {
                return;
            };
            let Some(c) = self.links.conn(conn) else {
                return;
            };
            if c.rx().ready() {
                self.drain(env, conn, own, BATCH);
                if !self.rma_target.done.is_empty() {
                    self.tell_done();
                }
                // Local operations may wait for this counter: fences, and RMA in message order.
                if let Some(c) = self.links.conn(conn) {
                    c.rx().flush();
                }
            } else if self.peers.at(own).queue.is_idle() {
                return;
            }
            self.flush_peer(env, own);
        }
    }

    /// Returns the accepted end of the loopback connection.
    fn own_conn(&mut self, env: &mut Env<'_>, own: PeerId) -> Option<ConnId> {
        let opened = self.peers.at(own).tx?;
        for _ in 0..LOOKS {
            let up = self.links.conn(opened).is_some_and(|c| c.is_up());
            if up && self.peers.own_rx.is_some_and(|conn| self.links.conn(conn).is_some()) {
                break;
            }
            self.look_at_links(env);
        }
        self.peers.own_rx
    }
}
