// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! End of a peer: receives that name it fail, and the event queue reports it.
//!
//! Not here: the end of one connection, and the operations on it (`progress`).

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif::{ConnId, PortId};

use crate::base::errno::Errno;
use crate::base::log::{Subsys, info_about_peer};
use crate::engine::completions::recv_completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::{peer_conn, sep_source};
use crate::engine::protocols::srx;
use crate::engine::tables::tag_match::{Payload, UnexpectedMsg};
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::state::eq_queue::EqError;

/// Handles the loss of a peer for the reason `why`. Receives directed to it fail, or all of
/// them if so configured. The event queue reports its address.
pub(crate) fn fail_peer(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    id: PortId,
    err: Errno,
    why: impl std::fmt::Display,
) {
    ep.peers.note(peer, || TraceEvent::new(EventKind::PeerLost, 0, 0, 0).failed(err));
    let left: Vec<ConnId> = ep.links.conns_of(peer).collect();
    let av_version = env.avs.get(ep.cfg.av).map_or(0, |av| av.version);
    let p = ep.peers.at_mut(peer);
    // Unless the peer has connected again.
    if left.is_empty() {
        p.state.on_failed(av_version);
    } else {
        p.state.on_seen();
    }
    let met = p.state.was_up();
    ep.stats.lost_peers += u64::from(met && left.is_empty());
    let source = sep_source::match_source(ep, env, peer);
    if source != peer && left.is_empty() {
        ep.peers.at_mut(source).state.on_failed(av_version);
    }
    if met {
        info_about_peer(Subsys::EpCtrl, format_args!("peer {id} is lost: {why}"));
    }
    fail_receives_from(ep, env, peer, id, crate::base::env::env().peer_death_any, err);
}

/// Fails the receives directed to a peer, or all of them if `any`. Reports its address to the
/// event queue.
pub(crate) fn fail_receives_from(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    id: PortId,
    any: bool,
    err: Errno,
) {
    let left: Vec<ConnId> = ep.links.conns_of(peer).collect();
    let source = sep_source::match_source(ep, env, peer);
    for tagged in [true, false] {
        let dead =
            ep.recv.queue(tagged).posted.extract(|p| p.src == source || (any && p.src == ANY));
        for posted in dead {
            recv_completion::fail_posted(ep, env, tagged, posted, err);
        }
        // The payload of an announced message is lost with its sender.
        let is_lost = |m: &UnexpectedMsg| match &m.payload {
            Payload::There(rts) => m.peer == peer && !left.contains(&rts.conn()),
            Payload::Here(_) => false,
        };
        ep.recv.queue(tagged).unexpected.retain(|m| !is_lost(m));
    }
    srx::fail_shared(ep, env, id, any, err);
    let addr = env.avs.get(ep.cfg.av).and_then(|av| av.find(id)).unwrap_or(fi::FI_ADDR_NOTAVAIL);
    if let Some(eq) = &ep.eq {
        eq.push_end(EqError {
            fid: ep.fid,
            context: ep.context,
            data: addr,
            err,
            prov_errno: -err,
            err_data: peer_conn::name_of(ep, id),
        });
    }
}
