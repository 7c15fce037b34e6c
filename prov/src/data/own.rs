// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What an endpoint sends to its own address: it has arrived, and was executed, when the call that posts it returns.
//!
//! It takes the ring like everything else, in order behind what went before, and is taken out of it at once. Otherwise a
//! peer's answer to something we sent later could come first: between two senders no order is promised, but programs
//! count on what they do to themselves being done.
//!
//! Large messages are announced at once and copied by progress.

use scif::ConnId;

use super::progress::BATCH;
use super::{Env, EpState};

/// Looks at the sockets until the connection to ourselves is up: one accepts it, one hears of that.
const LOOKS: usize = 2;
/// Ringfuls taken in one call: what one operation puts into the ring, and the answers to it, are fewer.
const ROUNDS: usize = 4;

impl EpState {
    /// Takes in what was just posted, when this endpoint talks to itself.
    #[inline(always)]
    pub(crate) fn loop_back(&mut self, env: &mut Env<'_>) {
        if let Some(own) = self.own {
            self.take_own(env, own);
        }
    }

    #[inline(never)]
    fn take_own(&mut self, env: &mut Env<'_>, own: u32) {
        for _ in 0..ROUNDS {
            let Some(conn) = self.own_conn(env, own) else {
                return;
            };
            let Some(c) = self.sock.conn(conn) else { return };
            if c.rx().ready() {
                self.drain(env, conn, own, BATCH);
                if !self.done.is_empty() {
                    self.tell_done();
                }
                // Operations of ours may wait to hear that: fences, and RMA in the order of messages.
                if let Some(c) = self.sock.conn(conn) {
                    c.rx().flush();
                }
            } else if self.peers.get(own as usize).is_none_or(|p| p.is_idle()) {
                return;
            }
            self.flush_peer(env, own);
        }
    }

    /// The accepted end of our connection to ourselves.
    fn own_conn(&mut self, env: &mut Env<'_>, own: u32) -> Option<ConnId> {
        let opened = self.peers.get(own as usize)?.tx?;
        for _ in 0..LOOKS {
            let up = self.sock.conn(opened).is_some_and(|c| c.is_up());
            if up && self.own_rx.is_some_and(|conn| self.sock.conn(conn).is_some()) {
                break;
            }
            self.look_at_links(env);
        }
        self.own_rx
    }
}
