// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scalable endpoints as sources of messages. Each transmit context is a peer of its own, but a
//! receive with a source matches the whole endpoint.
//!
//! Only receive contexts of scalable endpoints use this. Once the address vector names an endpoint,
//! its peers stand for that endpoint, under the peer number of its first port. A receive may name
//! any context, which does not restrict its source.
//!
//! Semantics: fi_endpoint(3), "Scalable Endpoints".

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::types::peer_id::{ANY, PeerId};

/// Returns the source of a receive, as a number for matching.
///
/// # Errors
/// `FI_EINVAL` for a source that the address vector does not name.
pub(crate) fn wanted_peer(ep: &mut Endpoint, env: &Env<'_>, src: u64) -> Result<PeerId, Errno> {
    if !ep.cfg.directed || src == fi::FI_ADDR_UNSPEC {
        return Ok(ANY);
    }
    if !ep.cfg.grouped {
        return peer_conn::peer_of(ep, env, src);
    }
    let av = env.avs.get(ep.cfg.av).ok_or(fi::FI_ENOAV)?;
    let whole = av.port_id(av.without_context(src)).ok_or(fi::FI_EINVAL)?;
    Ok(peer_conn::peer_at(ep, whole))
}

/// Returns the number that messages of `peer` are matched with.
#[inline]
pub(crate) fn match_source(ep: &mut Endpoint, env: &Env<'_>, peer: PeerId) -> PeerId {
    if ep.cfg.grouped { whole(ep, env, peer) } else { peer }
}

#[cold]
fn whole(ep: &mut Endpoint, env: &Env<'_>, peer: PeerId) -> PeerId {
    let id = ep.peers.at(peer).id;
    let av = env.avs.get(ep.cfg.av);
    match av.and_then(|av| av.whole(id)) {
        Some(first) => peer_conn::peer_at(ep, first),
        None => peer,
    }
}

/// Returns the oldest unexpected message for a receive from `src`.
#[inline]
pub(crate) fn match_unexpected(
    ep: &mut Endpoint,
    env: &Env<'_>,
    tagged: bool,
    src: PeerId,
    tag: u64,
    ignore: u64,
) -> Option<u32> {
    if !ep.cfg.grouped || src == ANY {
        return ep.recv.queue(tagged).match_posted(src, tag, ignore);
    }
    let mut members: Vec<PeerId> = ep.peers.ids().collect();
    members.retain(|p| whole(ep, env, *p) == src);
    ep.recv
        .queue(tagged)
        .unexpected
        .find(|m| members.contains(&m.peer) && (m.tag ^ tag) & !ignore == 0)
}

/// Notes that a context of an endpoint was seen, so that the endpoint is alive.
pub(crate) fn seen(ep: &mut Endpoint, env: &Env<'_>, peer: PeerId) {
    if ep.cfg.grouped {
        let whole = whole(ep, env, peer);
        ep.peers.at_mut(whole).state.on_seen();
    }
}
