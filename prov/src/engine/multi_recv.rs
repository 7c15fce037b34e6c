// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of multi-receive buffers (`multi`) in progress, and the report of a released buffer.

use libfabric_sys as fi;

use super::envelope::Many;
use super::multi::Multi;
use super::peer_id::PeerId;
use super::{Env, EpState};
use crate::base::slab::Slab;
use crate::state::completion::Completion;

impl EpState {
    /// Returns the table that contains a buffer, and its number there.
    fn table<'a>(
        &'a mut self,
        env: &'a mut Env<'_>,
        many: Many,
    ) -> Option<(&'a mut Slab<Multi>, u32)> {
        match many {
            Many::Own(number) => Some((&mut self.recv.multis, number)),
            Many::Shared(number) => Some((&mut env.srxs.get_mut(self.cfg.srx?)?.multis, number)),
        }
    }

    fn many<'a>(&'a mut self, env: &'a mut Env<'_>, many: Many) -> Option<&'a mut Multi> {
        let (multis, number) = self.table(env, many)?;
        multis.get_mut(number)
    }

    /// Removes a buffer without list entry and without messages in progress. Returns whether it
    /// did.
    fn end_many(&mut self, env: &mut Env<'_>, many: Many) -> bool {
        let Some((multis, number)) = self.table(env, many) else {
            return false;
        };
        let over = multis.get(number).is_some_and(|b| b.retired && !b.is_filling());
        over && multis.remove(number).is_some()
    }

    /// Notes that the list entry of a buffer is gone. Returns true if the buffer was released.
    pub(super) fn unlist_many(&mut self, env: &mut Env<'_>, many: Many) -> bool {
        if let Some(buffer) = self.many(env, many) {
            buffer.retired = true;
        }
        self.end_many(env, many)
    }

    /// Notes that the list entry of a buffer is gone. Reports a release by a completion of its own.
    pub(super) fn retire_many(&mut self, env: &mut Env<'_>, many: Many) {
        let context = self.many(env, many).map(|buffer| buffer.context);
        if self.unlist_many(env, many)
            && let Some(context) = context
        {
            self.tell_given_back(env, context);
        }
    }

    /// Notes that a message of a buffer has ended. Returns true if the buffer was released.
    pub(super) fn end_piece(&mut self, env: &mut Env<'_>, many: Many) -> bool {
        if let Some(buffer) = self.many(env, many) {
            buffer.in_flight = buffer.in_flight.saturating_sub(1);
        }
        self.end_many(env, many)
    }

    fn tell_given_back(&self, env: &mut Env<'_>, context: usize) {
        if let Some(cq) = self.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
            cq.success(Completion::new(context, fi::FI_MULTI_RECV, 0));
        }
    }

    /// Receives unexpected messages into a buffer that was just posted, until it is full.
    pub(super) fn fill(
        &mut self,
        env: &mut Env<'_>,
        many: Many,
        tagged: bool,
        (src, tag, ignore): (PeerId, u64, u64),
    ) {
        while self.many(env, many).is_some_and(|buffer| !buffer.retired)
            && let Some(at) = self.match_waiting(env, tagged, src, tag, ignore)
        {
            let waiting = self.recv.queue(tagged).unexpected.get_mut(at);
            let Some((peer, tag, len)) = waiting.map(|m| (m.peer, m.tag, m.len)) else {
                return;
            };
            let Some(target) = self.take_target(env, tagged, peer, tag, len) else {
                return;
            };
            if let Some(message) = self.recv.queue(tagged).unexpected.remove(at) {
                self.receive_unexpected(env, target, message);
            }
        }
    }

    /// Returns the parts of shared buffers that this endpoint is filling.
    pub(super) fn shared_pieces(&self) -> Vec<(Many, usize)> {
        let pieces = self.rndv.incoming.iter().filter_map(|(_, m)| match m.target.multi {
            Some(many @ Many::Shared(_)) => Some((many, m.target.context)),
            _ => None,
        });
        pieces.collect()
    }

    /// Releases parts of shared buffers when the endpoint closes and no peer writes into them any
    /// more.
    pub(super) fn leave_pieces(&mut self, env: &mut Env<'_>, pieces: Vec<(Many, usize)>) {
        for (many, context) in pieces {
            if self.end_piece(env, many) {
                self.tell_given_back(env, context);
            }
        }
    }
}
