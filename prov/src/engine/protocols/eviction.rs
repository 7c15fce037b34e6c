// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accounting of unexpected messages, and their eviction beyond the limits (`unexpected`).

use std::sync::Arc;

use scif_ring::AtomicCounter;

use crate::base::log::{Subsys, info_about_peer};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::tables::tag_match::UnexpectedMsg;
use crate::engine::tables::unexpected::{
    Charge, DEAD_MAX, Departed, ENTRY_BYTES, PRUNE_AT, SHARE_MIN,
};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;

/// Returns the bytes of unexpected messages of `peer`.
pub(crate) fn unexpected_of(ep: &Endpoint, peer: PeerId) -> u64 {
    ep.peers.at(peer).unexpected.as_ref().map_or(0, |load| load.get())
}

/// Charges an unexpected message of `peer` and allocates its memory.
///
/// # Errors
/// [`RecordError::NoMemory`] if the connection of `peer` itself must be reset.
#[cold]
pub(crate) fn keep_bytes<T>(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    len: usize,
    mut allocate: impl FnMut() -> Option<T>,
) -> Result<(T, Charge), RecordError> {
    let bytes = len as u64 + ENTRY_BYTES;
    loop {
        let load = Arc::clone(ep.peers.at_mut(peer).unexpected.get_or_insert_default());
        let held = load.get() + bytes;
        let limits = &ep.recv.limits;
        if held > limits.max / 2 {
            return Err(RecordError::NoMemory);
        }
        let short = held > SHARE_MIN && limits.process.get() + bytes > limits.max;
        if !short {
            if let Some(place) = allocate() {
                load.add(bytes);
                limits.process.add(bytes);
                let charge = Charge { bytes, peer: load, process: limits.process };
                return Ok((place, charge));
            }
        }
        if !make_room(ep, env, peer) {
            return Err(RecordError::NoMemory);
        }
    }
}

/// Releases memory for a message of `asking`. Returns false if `asking` itself holds the most.
fn make_room(ep: &mut Endpoint, env: &mut Env<'_>, asking: PeerId) -> bool {
    while !ep.recv.limits.departed.is_empty() {
        let Departed { load, .. } = ep.recv.limits.departed.remove(0);
        if load.get() > 0 {
            drop_unexpected(ep, env, &load);
            return true;
        }
    }
    let heaviest = ep.peers.ids().max_by_key(|peer| unexpected_of(ep, *peer));
    let Some(heaviest) =
        heaviest.filter(|peer| *peer != asking && unexpected_of(ep, *peer) > SHARE_MIN)
    else {
        return false;
    };
    peer_conn::exhaust(ep, heaviest);
    drop_unexpected_of(ep, env, heaviest);
    true
}

/// Drops the unexpected messages of `peer`.
pub(crate) fn drop_unexpected_of(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) {
    if let Some(load) = ep.peers.at(peer).unexpected.clone() {
        drop_unexpected(ep, env, &load);
    }
}

/// Drops the messages that are counted in `load`.
fn drop_unexpected(ep: &mut Endpoint, env: &mut Env<'_>, load: &Arc<AtomicCounter>) {
    let is_of_it = |m: &UnexpectedMsg| Arc::ptr_eq(&m.charge.peer, load);
    ep.recv.msg.unexpected.retain(|m| !is_of_it(m));
    ep.recv.tagged.unexpected.retain(|m| !is_of_it(m));
    if let Some(srx) = ep.cfg.srx.and_then(|srx| env.srxs.get_mut(srx)) {
        srx.forget_messages(ep.links.sock.id(), is_of_it);
    }
}

/// Handles the end of the last connection with `peer`. Its messages stay receivable, up to a
/// limit if the peer died.
pub(crate) fn on_conn_lost(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, died: bool) {
    if ep.links.conns_of(peer).next().is_some() {
        // The next incarnation of the peer is connected already and shares the load. Nothing
        // may be dropped.
        return;
    }
    // The peer number may be reused by another peer.
    let left = ep.peers.at_mut(peer).unexpected.take();
    let Some(load) = left.filter(|load| load.get() > 0) else {
        return;
    };
    if died && load.get() > DEAD_MAX {
        info_about_peer(
            Subsys::EpData,
            format_args!(
                "{} bytes of messages that no receive has matched are dropped with their sender, \
                peer {peer}, which died",
                load.get()
            ),
        );
        return drop_unexpected(ep, env, &load);
    }
    let departed = &mut ep.recv.limits.departed;
    if departed.len() >= ep.recv.limits.prune_at {
        departed.retain(|d| d.load.get() > 0);
        ep.recv.limits.prune_at = PRUNE_AT.max(2 * departed.len());
    }
    departed.push(Departed { load, died });
    let dead = |departed: &[Departed]| -> u64 {
        let dead = departed.iter().filter(|d| d.died);
        dead.map(|d| d.load.get()).sum()
    };
    while dead(&ep.recv.limits.departed) > DEAD_MAX {
        let Some(first) = ep.recv.limits.departed.iter().position(|d| d.died) else { break };
        let first = ep.recv.limits.departed.remove(first);
        drop_unexpected(ep, env, &first.load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Bed;

    #[test]
    fn messages_are_charged_to_their_sender_up_to_its_limit() {
        let mut pair = Bed::pair();
        let peer = pair[0].peer();
        pair[0].ep.recv.limits.max = 2 * SHARE_MIN;
        let mut keep = |len| pair[0].run(|ep, env| keep_bytes(ep, env, peer, len, || Some(())));
        let (_, charge) = keep(1000).unwrap();
        assert_eq!(charge.bytes, 1000 + ENTRY_BYTES);
        let share = usize::try_from(SHARE_MIN).unwrap();
        assert!(matches!(keep(share), Err(RecordError::NoMemory)));
        assert_eq!(unexpected_of(&pair[0].ep, peer), charge.bytes);
        drop(charge);
        assert_eq!(unexpected_of(&pair[0].ep, peer), 0);
    }
}
