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

use super::envelope::{Many, RecordError, Target};
use super::iov::Iov;
use super::matching::{Arrived, List, Posted};
use super::multi::Multi;
use super::peer_id::{ANY, PeerId};
use super::{Env, EpState, Errno, RecvArgs, split};
use crate::base::attr::MIN_MULTI_RECV;
use crate::base::log::{Subsys, warn_about_peer};
use crate::base::slab::Slab;
use crate::domain::DomainState;
use crate::state::av_table::AvState;
use crate::state::peer_owner::{MatchQuery, PeerRecv, PeerRxEntry, PeerSrx};

/// Receive that no endpoint has taken yet.
#[derive(Debug)]
struct Waiting {
    tag: u64,
    ignore: u64,
    src: u64,
    iov: Iov,
    len: usize,
    context: usize,
    flags: u64,
    /// Number of the multi-receive buffer that this entry stands for, if any.
    multi: Option<u32>,
}

/// Receives of one context, and the endpoints that take from them.
#[derive(Debug)]
pub(crate) struct SrxState {
    msg: List<Waiting>,
    tagged: List<Waiting>,
    /// Multi-receive buffers of the context, until their last message has arrived.
    pub(super) multis: Slab<Multi>,
    /// Free bytes below which such a buffer is released.
    pub min_multi_recv: usize,
    /// Endpoints bound to the context.
    pub eps: Vec<u32>,
    /// Context of a peer provider that this one stands for. The receives then belong to that
    /// provider.
    pub owner: Option<Arc<PeerSrx>>,
    /// Messages whose entries wait at the peer provider.
    unexpected: Slab<Unexpected>,
}

/// Message whose entry waits at a peer provider.
#[derive(Debug)]
struct Unexpected {
    /// Port of the endpoint that holds the message.
    port: PortId,
    tagged: bool,
    /// `None` after the message was dropped, or its endpoint closed.
    message: Option<Arrived>,
}

impl SrxState {
    pub(crate) const fn new() -> SrxState {
        SrxState {
            msg: List::new(),
            tagged: List::new(),
            multis: Slab::new(),
            min_multi_recv: MIN_MULTI_RECV,
            eps: Vec::new(),
            owner: None,
            unexpected: Slab::new(),
        }
    }

    /// Drops the messages of the endpoint at `port`, which is closed.
    pub(crate) fn forget(&mut self, port: Option<PortId>) {
        if let Some(port) = port {
            self.forget_messages(port, |_| true);
        }
    }

    /// Drops the messages at the endpoint at `port` that `dropped` accepts.
    pub(super) fn forget_messages(&mut self, port: PortId, dropped: impl Fn(&Arrived) -> bool) {
        for (_, waiting) in self.unexpected.iter_mut() {
            if waiting.port == port && waiting.message.as_ref().is_some_and(&dropped) {
                waiting.message = None;
            }
        }
    }

    /// Returns the senders of the messages at the endpoint at `port`, with repetitions.
    pub(super) fn peers_at(&self, port: PortId) -> impl Iterator<Item = PeerId> {
        let here = self.unexpected.iter().filter(move |(_, u)| u.port == port);
        here.filter_map(|(_, u)| Some(u.message.as_ref()?.peer))
    }

    fn list(&mut self, tagged: bool) -> &mut List<Waiting> {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }
}

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
        if let Ok((e, mut env)) = split(st, *ep)
            && (!many && e.holds_for(&mut env, a)? || e.mourns_for(&mut env, a)?)
        {
            let flags = a.flags | e.cfg.rx_always;
            return e.post_recv(&mut env, &RecvArgs { flags, ..*a });
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
                let src = e.wanted_peer(&env, a.src)?;
                e.fill(&mut env, Many::Shared(number), a.tag.is_some(), (src, tag, ignore));
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
                e.holds_for(&mut env, a)?
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
            super::progress(st, *ep);
        }
    }
    let chosen = holder.or(first).ok_or(fi::FI_EOPBADSTATE)?;
    let always = st.eps.get(chosen).map_or(0, |e| e.cfg.rx_always);
    let flags = a.flags | always;
    super::recv(st, chosen, &RecvArgs { flags, ..*a })
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
        if let Some(number) = multi
            && state.multis.get(number).is_some_and(Multi::is_filling)
        {
            return Err(fi::FI_EAGAIN);
        }
        let Some(waiting) = state.list(tagged).remove(at) else {
            continue;
        };
        // Reported at the endpoint that would have taken the receive.
        if let Some((e, mut env)) = eps.first().and_then(|ep| split(st, *ep).ok()) {
            e.fail_posted(&mut env, tagged, waiting.posted(ANY, 0), fi::FI_ECANCELED);
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
    let target = e.target_of(place, found.tagged, held);
    e.receive_unexpected(&mut env, target, message);
    Ok(())
}

/// Drops message `number`, which the peer provider does not want.
pub(crate) fn discard(st: &mut DomainState, srx: u32, number: u32) {
    let found = st.srxs.get_mut(srx).and_then(|s| s.unexpected.remove(number));
    let Some(Unexpected { port, message: Some(message), .. }) = found else {
        return;
    };
    if let Some((e, _)) = holder(st, srx, port).and_then(|ep| split(st, ep).ok()) {
        e.drop_payload(&message);
    }
}

/// Returns the sender of message `number`; `FI_ADDR_UNSPEC` while no address vector names it.
pub(crate) fn source(st: &DomainState, srx: u32, number: u32) -> u64 {
    let found = || {
        let waiting = st.srxs.get(srx)?.unexpected.get(number)?;
        let e = st.eps.get(holder(st, srx, waiting.port)?)?;
        e.address_of(st.avs.get(e.cfg.av)?, waiting.message.as_ref()?.peer)
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

impl Waiting {
    fn posted(self, src: PeerId, always: u64) -> Posted {
        Posted {
            tag: self.tag,
            ignore: self.ignore,
            src,
            iov: self.iov,
            len: self.len,
            context: self.context,
            flags: self.flags | always,
            multi: self.multi.map(Many::Shared),
        }
    }
}

impl EpState {
    /// Whether an unexpected message here matches this receive.
    fn holds_for(&mut self, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<bool, Errno> {
        let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
        let src = self.wanted_peer(env, a.src)?;
        Ok(self.match_waiting(env, a.tag.is_some(), src, tag, ignore).is_some())
    }

    /// Whether the source of a receive has died, so that the receive fails when posted.
    fn mourns_for(&mut self, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<bool, Errno> {
        let src = self.wanted_peer(env, a.src)?;
        Ok(src != ANY && self.peers.at(src).state.has_failed())
    }

    /// Fails the receives of the bound context that are directed to a dead peer, or all of them if
    /// so configured.
    pub(super) fn bury_shared(&mut self, env: &mut Env<'_>, id: PortId, any: bool, err: Errno) {
        let Some(srx) = self.cfg.srx else { return };
        for tagged in [true, false] {
            let (av, directed) = (env.avs.get(self.cfg.av), self.cfg.directed);
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
                let posted = waiting.posted(ANY, self.cfg.rx_always);
                self.fail_posted(env, tagged, posted, err);
            }
        }
    }

    /// Takes the oldest receive of the bound context for a message that matched none at this
    /// endpoint.
    #[cold]
    pub(crate) fn take_shared(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        peer: PeerId,
        tag: u64,
        len: usize,
    ) -> Option<Target> {
        let srx = self.cfg.srx?;
        if let Some(owner) = env.srxs.get(srx).and_then(|s| s.owner.clone()) {
            return self.ask_owner(env, &owner, (tagged, peer), tag, len);
        }
        let from = self.peers.at(peer).id;
        let directed = self.cfg.directed;
        let av = env.avs.get(self.cfg.av);
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
                let flags = waiting.flags | self.cfg.rx_always;
                return Some(Target::new(tagged, waiting.iov, waiting.len, waiting.context, flags));
            };
            if let Some(target) = self.carve_shared(env, srx, (tagged, at), number, len) {
                return Some(target);
            }
        }
    }

    /// Reserves a part of buffer `number` of context `srx`, whose list entry is `at`. Returns
    /// `None` if the message does not fit; the buffer is then released.
    fn carve_shared(
        &mut self,
        env: &mut Env<'_>,
        srx: u32,
        (tagged, at): (bool, u32),
        number: u32,
        len: usize,
    ) -> Option<Target> {
        let state = env.srxs.get_mut(srx)?;
        let min = state.min_multi_recv;
        let piece = state.multis.get_mut(number).and_then(|buffer| buffer.carve(len, min));
        let list = state.list(tagged);
        let flags = list.get_mut(at).map_or(0, |w| w.flags) | self.cfg.rx_always;
        if piece.as_ref().is_none_or(|piece| piece.last) {
            list.forget(at);
            self.retire_many(env, Many::Shared(number));
        }
        piece.map(|piece| piece.target(tagged, flags, Many::Shared(number)))
    }

    /// Whether the receives belong to a peer provider. Messages are then received only while that
    /// provider makes progress, since only then its lock is held.
    pub(super) fn draws_from_another(&self, env: &Env<'_>) -> bool {
        let srx = self.cfg.srx.and_then(|srx| env.srxs.get(srx));
        srx.is_some_and(|srx| srx.owner.is_some())
    }

    /// Returns the address of a peer in the address vector.
    fn address_of(&self, av: &AvState, peer: PeerId) -> Option<u64> {
        av.find(self.peers.at(peer).id)
    }

    /// Requests the receive for a message from a peer provider.
    fn ask_owner(
        &mut self,
        env: &mut Env<'_>,
        owner: &Arc<PeerSrx>,
        (tagged, peer): (bool, PeerId),
        tag: u64,
        len: usize,
    ) -> Option<Target> {
        let known = env.avs.get(self.cfg.av).and_then(|av| self.address_of(av, peer));
        let asked = MatchQuery { tagged, addr: known.unwrap_or(fi::FI_ADDR_UNSPEC), len, tag };
        match owner.get(asked) {
            Ok((held, Some(place))) => Some(self.target_of(place, tagged, held)),
            Ok((held, None)) => {
                self.recv.unmatched = Some(held);
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

    fn target_of(&self, place: PeerRecv, tagged: bool, held: PeerRxEntry) -> Target {
        let room = total_len(&place.iov);
        let flags = place.flags & fi::FI_COMPLETION | self.cfg.rx_always;
        Target {
            entry: Some(held),
            ..Target::new(tagged, Iov::new(&place.iov), room, place.context, flags)
        }
    }

    /// Enqueues an unexpected message.
    pub(super) fn keep(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        message: Arrived,
    ) -> Result<(), RecordError> {
        self.stats.unexpected += 1;
        let Some(held) = self.recv.unmatched.take() else {
            let list = &mut self.recv.queue(tagged).unexpected;
            if !list.reserve() {
                return Err(RecordError::NoMemory);
            }
            list.push_back(message);
            return Ok(());
        };
        let Some(state) = self.cfg.srx.and_then(|srx| env.srxs.get_mut(srx)) else {
            return Ok(());
        };
        let data = message.data;
        let number = state.unexpected.insert(Unexpected {
            port: self.links.sock.id(),
            tagged,
            message: Some(message),
        });
        let queued =
            number.ok_or(fi::FI_ENOMEM).and_then(|number| held.queue(tagged, data, number));
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
                self.drop_payload(&message);
            }
            held.free();
        }
        Ok(())
    }

    /// Releases the entry of a peer provider for a message that is not enqueued.
    #[cold]
    pub(super) fn free_unmatched(&mut self) {
        if let Some(held) = self.recv.unmatched.take() {
            held.free();
        }
    }

    /// Releases the entry of a peer provider after the completion of its receive has been
    /// delivered.
    #[cold]
    pub(super) fn give_back(&self, env: &mut Env<'_>, held: PeerRxEntry) {
        let left = match self.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
            Some(cq) => cq.give_back(held),
            None => Some(held),
        };
        if let Some(held) = left {
            held.free();
        }
    }
}
