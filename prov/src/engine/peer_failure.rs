// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! End of a peer: receives that name it fail, and the event queue reports it.
//!
//! Not here: the end of one connection, and the operations on it (`progress`).

use libfabric_sys as fi;
use scif::{ConnId, PortId};

use super::matching::Payload;
use super::peer_id::{ANY, PeerId};
use super::{Env, EpState, Errno};
use crate::base::log::{Subsys, info_about_peer};
use crate::state::eq_queue::EqError;

impl EpState {
    /// Handles the loss of a peer for the reason `why`. Receives directed to it fail, or all of
    /// them if so configured. The event queue reports its address.
    pub(super) fn bury(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        id: PortId,
        err: Errno,
        why: impl std::fmt::Display,
    ) {
        let left: Vec<ConnId> = self.links.conns_of(peer).collect();
        let p = self.peers.at_mut(peer);
        // Unless the peer has connected again.
        if left.is_empty() {
            p.state.on_failed();
        } else {
            p.state.on_seen();
        }
        let met = p.state.was_up();
        let source = self.known_as(env, peer);
        if source != peer && left.is_empty() {
            self.peers.at_mut(source).state.on_failed();
        }
        if met {
            info_about_peer(Subsys::EpCtrl, format_args!("peer {id} is lost: {why}"));
        }
        self.fail_receives_from(env, peer, id, crate::base::env::env().peer_death_any, err);
    }

    /// Fails the receives directed to a peer, or all of them if `any`. Reports its address to the
    /// event queue.
    pub(super) fn fail_receives_from(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        id: PortId,
        any: bool,
        err: Errno,
    ) {
        let left: Vec<ConnId> = self.links.conns_of(peer).collect();
        let source = self.known_as(env, peer);
        for tagged in [true, false] {
            let dead = self
                .recv
                .queue(tagged)
                .posted
                .extract(|p| p.src == source || (any && p.src == ANY));
            for posted in dead {
                self.fail_posted(env, tagged, posted, err);
            }
            // The payload of an announced message is lost with its sender.
            self.recv.queue(tagged).unexpected.retain(
                |m| !matches!(&m.payload, Payload::There(rts) if m.peer == peer && !left.contains(&rts.conn())),
            );
        }
        self.bury_shared(env, id, any, err);
        let addr =
            env.avs.get(self.cfg.av).and_then(|av| av.find(id)).unwrap_or(fi::FI_ADDR_NOTAVAIL);
        if let Some(eq) = &self.eq {
            eq.push_end(EqError {
                fid: self.fid,
                context: self.context,
                data: addr,
                err,
                prov_errno: -err,
                err_data: self.name_of(id),
            });
        }
    }
}
