// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared receive contexts: receives from which several endpoints take.
//!
//! A receive posted here waits until one of the endpoints has a message without a receive. It then
//! moves to that endpoint and continues as if it had been posted there. An unexpected message waits
//! at its endpoint.
//!
//! Not here: the C object (`srx`).
//!
//! Semantics: fi_endpoint(3), "Shared Contexts".

use std::sync::Arc;

use libfabric_sys as fi;
use scif::PortId;
use scif::trace::{EventKind, TraceEvent};
use scif_ring::copy::total_len;

use crate::base::errno::Errno;
use crate::base::log::{Subsys, warn_about_peer};
use crate::engine::completions::{multi_recv, recv_completion};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::sep_source;
use crate::engine::tables::srx_state::Unexpected;
use crate::engine::tables::tag_match::{Payload, UnexpectedMsg};
use crate::engine::types::args::RecvArgs;
use crate::engine::types::envelope::{MultiRecvId, RecordError, RecvTarget};
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::state::av_table::AvState;
use crate::state::peer_owner::{MatchQuery, PeerRecv, PeerRxEntry, PeerSrx};

/// Whether an unexpected message here matches this receive.
pub(crate) fn has_unexpected_for(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &RecvArgs<'_>,
) -> Result<bool, Errno> {
    let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
    let src = sep_source::wanted_peer(ep, env, a.src)?;
    Ok(sep_source::match_unexpected(ep, env, a.tag.is_some(), src, tag, ignore).is_some())
}

/// Whether the source of a receive has died, so that the receive fails when posted.
pub(crate) fn source_is_dead(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &RecvArgs<'_>,
) -> Result<bool, Errno> {
    let src = sep_source::wanted_peer(ep, env, a.src)?;
    Ok(src != ANY && ep.peers.at(src).state.has_failed())
}

/// Fails the receives of the bound context that are directed to a dead peer, or all of them if
/// so configured.
pub(crate) fn fail_shared(ep: &mut Endpoint, env: &mut Env<'_>, id: PortId, any: bool, err: Errno) {
    let Some(srx) = ep.cfg.srx else { return };
    for tagged in [true, false] {
        let (av, directed) = (env.avs.get(ep.cfg.av), ep.cfg.directed);
        let Some(state) = env.srxs.get_mut(srx) else {
            return;
        };
        let dead = state.list(tagged).extract(|w| {
            if !directed || w.src == fi::FI_ADDR_UNSPEC {
                any
            } else {
                av.and_then(|av| av.port_id(w.src)) == Some(id)
            }
        });
        for waiting in dead {
            let posted = waiting.posted(ANY, ep.cfg.rx_always);
            recv_completion::fail_posted(ep, env, tagged, posted, err);
        }
    }
}

/// Takes the oldest receive of the bound context for a message that matched none at this
/// endpoint.
#[cold]
pub(crate) fn take_shared(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    peer: PeerId,
    tag: u64,
    len: usize,
) -> Option<RecvTarget> {
    let srx = ep.cfg.srx?;
    if let Some(owner) = env.srxs.get(srx).and_then(|s| s.owner.clone()) {
        return request_receive(ep, env, &owner, (tagged, peer), tag, len);
    }
    let from = ep.peers.at(peer).id;
    let directed = ep.cfg.directed;
    let av = env.avs.get(ep.cfg.av);
    loop {
        let list = env.srxs.get_mut(srx)?.list(tagged);
        let (at, multi) = list
            .entry(|w| {
                let heard = !directed || w.src == fi::FI_ADDR_UNSPEC || {
                    av.and_then(|av| av.port_id(w.src)).is_some_and(|id| id == from)
                };
                heard && (w.tag ^ tag) & !w.ignore == 0
            })
            .map(|(at, w)| (at, w.multi))?;
        let Some(number) = multi else {
            let waiting = list.remove(at)?;
            let flags = waiting.flags | ep.cfg.rx_always;
            return Some(RecvTarget::new(tagged, waiting.iov, waiting.len, waiting.context, flags));
        };
        if let Some(target) = carve_shared(ep, env, srx, (tagged, at), number, len) {
            return Some(target);
        }
    }
}

/// Reserves a part of buffer `number` of context `srx`, whose list entry is `at`. Returns
/// `None` if the message does not fit; the buffer is then released.
fn carve_shared(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    srx: u32,
    (tagged, at): (bool, u32),
    number: u32,
    len: usize,
) -> Option<RecvTarget> {
    let state = env.srxs.get_mut(srx)?;
    let min = state.min_multi_recv;
    let piece = state.multis.get_mut(number).and_then(|buffer| buffer.reserve(len, min));
    let list = state.list(tagged);
    let flags = list.get_mut(at).map_or(0, |w| w.flags) | ep.cfg.rx_always;
    if piece.as_ref().is_none_or(|piece| piece.last) {
        list.forget(at);
        multi_recv::release(ep, env, MultiRecvId::Shared(number));
    }
    piece.map(|piece| piece.target(tagged, flags, MultiRecvId::Shared(number)))
}

/// Whether the receives belong to a peer provider. Messages are then received only while that
/// provider makes progress, since only then its lock is held.
pub(crate) fn uses_peer_srx(ep: &Endpoint, env: &Env<'_>) -> bool {
    let srx = ep.cfg.srx.and_then(|srx| env.srxs.get(srx));
    srx.is_some_and(|srx| srx.owner.is_some())
}

/// Returns the address of a peer in the address vector.
pub(crate) fn address_of(ep: &Endpoint, av: &AvState, peer: PeerId) -> Option<u64> {
    av.find(ep.peers.at(peer).id)
}

/// Requests the receive for a message from a peer provider.
fn request_receive(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    owner: &Arc<PeerSrx>,
    (tagged, peer): (bool, PeerId),
    tag: u64,
    len: usize,
) -> Option<RecvTarget> {
    let known = env.avs.get(ep.cfg.av).and_then(|av| address_of(ep, av, peer));
    let asked = MatchQuery { tagged, addr: known.unwrap_or(fi::FI_ADDR_UNSPEC), len, tag };
    match owner.get(asked) {
        Ok((held, Some(place))) => Some(target_of(ep, place, tagged, held)),
        Ok((held, None)) => {
            ep.recv.unmatched = Some(held);
            None
        }
        Err(err) => {
            warn_about_peer(
                Subsys::EpData,
                format_args!(
                    "shared receive context of the peer provider refused a message: {}; the \
                     message is not delivered",
                    crate::base::errno::text(err)
                ),
            );
            None
        }
    }
}

pub(crate) fn target_of(
    ep: &Endpoint,
    place: PeerRecv,
    tagged: bool,
    held: PeerRxEntry,
) -> RecvTarget {
    let room = total_len(&place.iov);
    let flags = place.flags & fi::FI_COMPLETION | ep.cfg.rx_always;
    RecvTarget {
        entry: Some(held),
        ..RecvTarget::new(tagged, Iov::new(&place.iov), room, place.context, flags)
    }
}

/// Enqueues an unexpected message.
pub(crate) fn enqueue_unexpected(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    message: UnexpectedMsg,
) -> Result<(), RecordError> {
    ep.stats.unexpected += 1;
    ep.peers.note(message.peer, || {
        let id = if let Payload::There(rts) = &message.payload { rts.op() } else { 0 };
        TraceEvent::new(EventKind::Unexpected, message.tag, message.len, id)
    });
    let Some(held) = ep.recv.unmatched.take() else {
        let list = &mut ep.recv.queue(tagged).unexpected;
        if !list.reserve() {
            return Err(RecordError::NoMemory);
        }
        list.push_back(message);
        return Ok(());
    };
    let Some(state) = ep.cfg.srx.and_then(|srx| env.srxs.get_mut(srx)) else {
        return Ok(());
    };
    let data = message.data;
    let number = state.unexpected.insert(Unexpected {
        port: ep.links.sock.id(),
        tagged,
        message: Some(message),
    });
    let queued = number.ok_or(fi::FI_ENOMEM).and_then(|number| held.queue(tagged, data, number));
    if let Err(err) = queued {
        warn_about_peer(
            Subsys::EpData,
            format_args!(
                "shared receive context of the peer provider refused an unexpected message: \
                 {}; the message is lost",
                crate::base::errno::text(err)
            ),
        );
        let lost = number.and_then(|number| state.unexpected.remove(number));
        if let Some(message) = lost.and_then(|lost| lost.message) {
            recv_completion::drop_payload(ep, &message);
        }
        held.free();
    }
    Ok(())
}

/// Releases the entry of a peer provider for a message that is not enqueued.
#[cold]
pub(crate) fn free_unmatched(ep: &mut Endpoint) {
    if let Some(held) = ep.recv.unmatched.take() {
        held.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::srx_state::{SrxState, Waiting};
    use crate::engine::tests::Bed;

    #[test]
    fn a_message_takes_the_oldest_receive_with_its_tag() {
        let mut bed = Bed::new(|cfg| cfg.srx = Some(0));
        let mut srx = SrxState::new();
        for (tag, context) in [(1, 10), (2, 20), (2, 30)] {
            let (src, iov) = (fi::FI_ADDR_UNSPEC, Iov::new(&[]));
            let (ignore, len, flags, multi) = (0, 0, 0, None);
            srx.list(true).push_back(Waiting { tag, ignore, src, iov, len, context, flags, multi });
        }
        assert_eq!(bed.srxs.insert(srx), Some(0));
        let id = bed.ep.links.sock.id();
        let peer = crate::engine::peers::peer_conn::peer_at(&mut bed.ep, id);
        let mut take = |tagged, tag| {
            let taken = bed.run(|ep, env| take_shared(ep, env, tagged, peer, tag, 8));
            taken.map(|target| target.context)
        };
        assert_eq!([take(true, 2), take(true, 2), take(true, 2)], [Some(20), Some(30), None]);
        assert_eq!(take(false, 1), None, "another class");
        assert!(!bed.run(|ep, env| uses_peer_srx(ep, env)));
    }
}
