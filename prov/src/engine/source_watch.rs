// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Background connects to the sources of directed receives.
//!
//! A receive that names a peer ends with an error when the peer dies, and only a connection reports
//! the death. So the endpoint connects to each source that has no connection, as a send would do.
//!
//! The endpoint with the lower port connects in the first liveness check after the post, the other
//! one in the second. So two endpoints that wait for each other make one connection, not two
//! (simultaneous open).
//!
//! A refused attempt fails no operation, because the peer may start later. The attempt is repeated
//! after a pause that doubles up to a second (`unmet`). A peer whose listener was found before, and
//! that did not close gracefully, is dead after refusals for `RECONNECT_NS`.
//!
//! Only reliable datagram endpoints watch sources, and only those of their own receives. Receives
//! of a shared context belong to no endpoint before a message matches them. Connected endpoints
//! have their connection, and datagram endpoints promise no delivery.

use libfabric_sys as fi;
use scif::{ConnId, Error, PortId};

use crate::base::errno::errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peer_failure;
use crate::engine::peers::{peer_conn, sep_source};
use crate::engine::protocols::coll_run;
use crate::engine::tables::peer::PeerWork;
use crate::engine::tables::unmet::Unmet;
use crate::engine::types::peer_id::{ANY, PeerId};

/// Notes the end of a connection with `peer`. `was_up`: the peer had accepted it, so earlier
/// refusals no longer count.
pub(crate) fn note_source_lost(ep: &mut Endpoint, peer: PeerId, was_up: bool) {
    if ep.recv.directed > 0 && ep.cfg.watches_sources() && ep.recv.names(peer) {
        ep.recv.unmet.note();
    }
    if was_up {
        ep.recv.unmet.forget(peer);
    }
}

/// Connects to the sources of open receives that have no connection. Called by each liveness
/// check.
pub(crate) fn watch_sources(ep: &mut Endpoint, env: &mut Env<'_>, now_ns: u64) {
    if ep.recv.directed == 0 || ep.links.rx_closed {
        ep.recv.unmet.clear();
        return;
    }
    if ep.recv.unmet.is_closing() {
        return;
    }
    if ep.recv.unmet.wants_scan(ep.recv.directed, now_ns) {
        let sources = unmet_sources(ep, env);
        ep.recv.unmet.set(&sources, ep.links.sock.id(), now_ns);
    }
    let mut unmet = std::mem::take(&mut ep.recv.unmet);
    let (mut gone, mut made) = (Vec::new(), Vec::new());
    unmet.attempt_due(now_ns, |source| {
        if meet_source(ep, source, now_ns, &mut made) {
            gone.push((source.peer, source.id));
        }
    });
    unmet.note_made(&mut made);
    ep.recv.unmet = unmet;
    for (peer, id) in gone {
        peer_failure::fail_peer(
            ep,
            env,
            peer,
            id,
            fi::FI_ECONNRESET,
            "no listener at its address any more",
        );
        coll_run::on_conn_lost(ep, env, peer);
    }
}

/// Returns the sources of open receives without a connection that is up, by ascending peer
/// number.
#[cold]
fn unmet_sources(ep: &mut Endpoint, env: &Env<'_>) -> Vec<(PeerId, PortId)> {
    let own = ep.links.sock.id();
    let posted = ep.recv.msg.posted.iter().chain(ep.recv.tagged.posted.iter());
    let mut sources: Vec<(PeerId, PortId)> = posted
        .filter(|p| p.src != ANY)
        .filter_map(|p| Some((p.src, ep.peers.get(p.src)?)))
        .filter(|(_, p)| !(p.id == own || p.tx.is_some() && p.state.was_up()))
        .map(|(src, p)| (src, p.id))
        .collect();
    sources.sort_unstable();
    sources.dedup();
    if ep.cfg.grouped && !sources.is_empty() {
        // A connection with any context of an endpoint reports its death.
        let linked = ep.links.iter().map(|l| l.peer);
        let up = |peer: &PeerId| ep.peers.at(*peer).state.was_up();
        let linked: Vec<PeerId> = linked.filter(up).collect();
        let linked = linked.into_iter().map(|peer| sep_source::match_source(ep, env, peer));
        let mut linked: Vec<PeerId> = linked.collect();
        linked.sort_unstable();
        sources.retain(|(src, _)| linked.binary_search(src).is_err());
    }
    sources
}

/// Makes one attempt to connect, and adds the connection to `made`. Returns true if a source that
/// was reached before has ended.
#[cold]
fn meet_source(ep: &mut Endpoint, source: &mut Unmet, now: u64, made: &mut Vec<ConnId>) -> bool {
    let (id, peer) = (source.id, source.peer);
    source.begin(now);
    // The number may belong to another peer since the last scan.
    let Some(p) = ep.peers.get(peer).filter(|p| p.id == id) else {
        return false;
    };
    if p.tx.is_some() || p.work != PeerWork::None {
        return false;
    }
    let was_lost = p.state.was_there() && !p.state.has_left();
    let mut refused = false;
    match ep.links.sock.connect(id) {
        Ok(conn) => {
            made.push(conn);
            peer_conn::opened(ep, peer, conn);
        }
        // The backlog of the listener is full: a later call continues the attempt.
        Err(Error::Again) => {
            source.note_full_backlog();
            return false;
        }
        Err(Error::Refused(_)) => refused = true,
        // The network logs refusals.
        Err(Error::Unanswered(_) | Error::Rejected { .. }) => {}
        Err(error) => crate::base::log::connect_failed(id, &error, errno(&error)),
    }
    source.slow_down();
    source.note_answer(refused, now) && was_lost
}
