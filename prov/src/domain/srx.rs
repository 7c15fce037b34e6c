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
use scif_ring::copy::total_len;

use crate::base::errno::Errno;
use crate::domain::calls::{self, split};
use crate::domain::state::DomainState;
use crate::engine::completions::recv_completion;
use crate::engine::peers::sep_source;
use crate::engine::protocols::{recv, srx};
use crate::engine::tables::multi::Multi;
use crate::engine::tables::srx_state::{Unexpected, Waiting};
use crate::engine::types::args::RecvArgs;
use crate::engine::types::envelope::MultiRecvId;
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::ANY;
use crate::state::peer_owner::{PeerRecv, PeerRxEntry, PeerSrx};

/// Posts a receive to a context, or peeks at, claims or discards a message.
///
/// # Errors
/// Errors of the data path.
pub(crate) fn recv(st: &mut DomainState, srx: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    let eps = st.srxs.get(srx).ok_or(fi::FI_EINVAL)?.eps.clone();
    if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
        return look(st, &eps, a);
    }
    let many = a.flags & fi::FI_MULTI_RECV != 0;
    for ep in &eps {
        if let Ok((e, mut env)) = split(st, *ep) {
            if !many && srx::has_unexpected_for(e, &mut env, a)?
                || srx::source_is_dead(e, &mut env, a)?
            {
                let flags = a.flags | e.cfg.rx_always;
                return recv::post(e, &mut env, &RecvArgs { flags, ..*a });
            }
        }
    }
    let state = st.srxs.get_mut(srx).ok_or(fi::FI_EINVAL)?;
    let multi = if many {
        let [base] = a.iov else {
            return Err(fi::FI_EINVAL);
        };
        let multi = Multi::new(*base, a.context);
        Some(state.multis.insert(multi).ok_or(fi::FI_ENOMEM)?)
    } else {
        None
    };
    let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
    state.list(a.tag.is_some()).push_back(Waiting {
        tag,
        ignore,
        src: a.src,
        iov: Iov::new(a.iov),
        len: total_len(a.iov),
        context: a.context,
        flags: a.flags,
        multi,
    });
    if let Some(number) = multi {
        for ep in eps {
            if let Ok((e, mut env)) = split(st, ep) {
                let src = sep_source::wanted_peer(e, &env, a.src)?;
                recv::fill(
                    e,
                    &mut env,
                    MultiRecvId::Shared(number),
                    a.tag.is_some(),
                    (src, tag, ignore),
                );
            }
        }
    }
    Ok(())
}

/// Handles a request about an unexpected message, at the endpoint that has it or else at the first.
fn look(st: &mut DomainState, eps: &[u32], a: &RecvArgs<'_>) -> Result<(), Errno> {
    let (mut first, mut holder) = (None, None);
    for ep in eps {
        if let Ok((e, mut env)) = split(st, *ep) {
            first = first.or(Some(*ep));
            let has = if a.flags & fi::FI_PEEK == 0 {
                e.recv.claimed.contains_key(&a.context)
            } else {
                srx::has_unexpected_for(e, &mut env, a)?
            };
            if has {
                holder = Some(*ep);
                break;
            }
        }
    }
    if holder.is_none() {
        // As for a peek that finds nothing at one endpoint.
        for ep in eps {
            if let Some(e) = st.eps.get_mut(*ep) {
                e.throttle.lift();
            }
            calls::progress(st, *ep);
        }
    }
    let chosen = holder.or(first).ok_or(fi::FI_EOPBADSTATE)?;
    let always = st.eps.get(chosen).map_or(0, |e| e.cfg.rx_always);
    let flags = a.flags | always;
    calls::recv(st, chosen, &RecvArgs { flags, ..*a })
}

/// Cancels the oldest receive with this context that no endpoint has taken, tagged ones first.
/// Operations posted to the endpoints are theirs. Succeeds if none is found.
///
/// # Errors
/// `FI_EAGAIN` for a multi-receive buffer while a message is being copied into it.
pub(crate) fn cancel(st: &mut DomainState, srx: u32, context: usize) -> Result<(), Errno> {
    let state = st.srxs.get_mut(srx).ok_or(fi::FI_EINVAL)?;
    let eps = state.eps.clone();
    for tagged in [true, false] {
        let list = state.list(tagged);
        let Some((at, multi)) = list.entry(|w| w.context == context).map(|(at, w)| (at, w.multi))
        else {
            continue;
        };
        if let Some(number) = multi {
            if state.multis.get(number).is_some_and(Multi::is_filling) {
                return Err(fi::FI_EAGAIN);
            }
        }
        let Some(waiting) = state.list(tagged).remove(at) else {
            continue;
        };
        // Reported at the endpoint that would have taken the receive.
        if let Some((e, mut env)) = eps.first().and_then(|ep| split(st, *ep).ok()) {
            recv_completion::fail_posted(
                e,
                &mut env,
                tagged,
                waiting.posted(ANY, 0),
                fi::FI_ECANCELED,
            );
        } else if let (Some(number), Some(state)) = (multi, st.srxs.get_mut(srx)) {
            state.multis.remove(number);
        }
        return Ok(());
    }
    Ok(())
}

/// Starts the copy of message `number` into a receive of a peer provider.
///
/// # Errors
/// `FI_EINVAL` for an unknown message, `FI_ECONNRESET` for one that was lost with its endpoint.
pub(crate) fn start(
    st: &mut DomainState,
    srx: u32,
    number: u32,
    held: PeerRxEntry,
    place: PeerRecv,
) -> Result<(), Errno> {
    let state = st.srxs.get_mut(srx).ok_or(fi::FI_ECONNRESET)?;
    let found = state.unexpected.remove(number).ok_or(fi::FI_EINVAL)?;
    let message = found.message.ok_or(fi::FI_ECONNRESET)?;
    let ep = holder(st, srx, found.port).ok_or(fi::FI_ECONNRESET)?;
    let (e, mut env) = split(st, ep)?;
    let target = srx::target_of(e, place, found.tagged, held);
    recv::receive_unexpected(e, &mut env, target, message);
    Ok(())
}

/// Drops message `number`, which the peer provider does not want.
pub(crate) fn discard(st: &mut DomainState, srx: u32, number: u32) {
    let found = st.srxs.get_mut(srx).and_then(|s| s.unexpected.remove(number));
    let Some(Unexpected { port, message: Some(message), .. }) = found else {
        return;
    };
    if let Some((e, _)) = holder(st, srx, port).and_then(|ep| split(st, ep).ok()) {
        recv_completion::drop_payload(e, &message);
    }
}

/// Returns the sender of message `number`; `FI_ADDR_UNSPEC` while no address vector names it.
pub(crate) fn source(st: &DomainState, srx: u32, number: u32) -> u64 {
    let found = || {
        let waiting = st.srxs.get(srx)?.unexpected.get(number)?;
        let e = st.eps.get(holder(st, srx, waiting.port)?)?;
        srx::address_of(e, st.avs.get(e.cfg.av)?, waiting.message.as_ref()?.peer)
    };
    found().unwrap_or(fi::FI_ADDR_UNSPEC)
}

/// Returns the peer provider contexts whose endpoints use address vector `av`.
pub(crate) fn owners(st: &DomainState, av: u32) -> Vec<Arc<PeerSrx>> {
    let uses = |ep: &u32| st.eps.get(*ep).is_some_and(|e| e.cfg.av == av);
    st.srxs
        .iter()
        .filter(|(_, srx)| srx.eps.iter().any(uses))
        .filter_map(|(_, srx)| srx.owner.clone())
        .collect()
}

/// Returns the endpoint at `port` that takes from a context.
fn holder(st: &DomainState, srx: u32, port: PortId) -> Option<u32> {
    let eps = &st.srxs.get(srx)?.eps;
    eps.iter().copied().find(|ep| st.eps.get(*ep).is_some_and(|e| e.links.sock.id() == port))
}
