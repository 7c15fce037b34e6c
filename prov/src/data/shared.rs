// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared receive contexts: receives that several endpoints draw from.
//!
//! A receive posted here waits until a message comes to one of the endpoints and finds nothing there; then it moves to that
//! endpoint, and everything goes on as if it had been posted to it. A message that came before it waits at its endpoint.
//!
//! Not here: the C object (`srx`).
//!
//! Semantics: fi_endpoint(3), "Shared Contexts".

use libfabric_sys as fi;
use scif_ring::copy::total_len;

use super::iov::Iov;
use super::matching::{ANY, List, Posted};
use super::rx::Target;
use super::{Env, EpState, Errno, RecvArgs, split};
use crate::domain::DomainState;

/// A receive that no endpoint has yet.
#[derive(Debug)]
struct Waiting {
    tag: u64,
    ignore: u64,
    src: u64,
    iov: Iov,
    len: usize,
    context: usize,
    flags: u64,
}

/// The receives of one context, and who draws from them.
#[derive(Debug)]
pub(crate) struct SrxState {
    msg: List<Waiting>,
    tagged: List<Waiting>,
    /// The endpoints bound to it.
    pub eps: Vec<u32>,
}

impl SrxState {
    pub(crate) const fn new() -> SrxState {
        SrxState {
            msg: List::new(),
            tagged: List::new(),
            eps: Vec::new(),
        }
    }

    fn list(&mut self, tagged: bool) -> &mut List<Waiting> {
        if tagged { &mut self.tagged } else { &mut self.msg }
    }
}

/// Posts a receive to a context, or looks for, claims or drops a message.
///
/// # Errors
/// `FI_EOPNOTSUPP` for a buffer of many messages, and those of the data path.
pub(crate) fn recv(st: &mut DomainState, srx: u32, a: &RecvArgs<'_>) -> Result<(), Errno> {
    if a.flags & fi::FI_MULTI_RECV != 0 {
        return Err(fi::FI_EOPNOTSUPP);
    }
    let eps = st.srxs.get(srx).ok_or(fi::FI_EINVAL)?.eps.clone();
    if a.flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0 {
        return look(st, &eps, a);
    }
    for ep in eps {
        if let Ok((e, mut env)) = split(st, ep)
            && e.holds_for(&mut env, a)?
        {
            let flags = a.flags | e.cfg.rx_always;
            return e.post_recv(&mut env, &RecvArgs { flags, ..*a });
        }
    }
    let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
    let waiting = Waiting {
        tag,
        ignore,
        src: a.src,
        iov: Iov::new(a.iov),
        len: total_len(a.iov),
        context: a.context,
        flags: a.flags,
    };
    let state = st.srxs.get_mut(srx).ok_or(fi::FI_EINVAL)?;
    state.list(a.tag.is_some()).push_back(waiting);
    Ok(())
}

/// A request about a message that is there already: for the endpoint that has it, else for the first.
fn look(st: &mut DomainState, eps: &[u32], a: &RecvArgs<'_>) -> Result<(), Errno> {
    let (mut first, mut holder) = (None, None);
    for ep in eps {
        if let Ok((e, mut env)) = split(st, *ep) {
            first = first.or(Some(*ep));
            let has = if a.flags & fi::FI_PEEK == 0 {
                e.claimed.contains_key(&a.context)
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
        // As a peek that finds nothing at one endpoint.
        for ep in eps {
            super::progress(st, *ep);
        }
    }
    let chosen = holder.or(first).ok_or(fi::FI_EOPBADSTATE)?;
    let always = st.eps.get(chosen).map_or(0, |e| e.cfg.rx_always);
    let flags = a.flags | always;
    super::recv(st, chosen, &RecvArgs { flags, ..*a })
}

/// Cancels the oldest receive with this context, wherever it is by now.
pub(crate) fn cancel(st: &mut DomainState, srx: u32, context: usize) -> Result<(), Errno> {
    let state = st.srxs.get_mut(srx).ok_or(fi::FI_EINVAL)?;
    let eps = state.eps.clone();
    for tagged in [true, false] {
        let list = state.list(tagged);
        let Some(waiting) = list.find(|w| w.context == context).and_then(|at| list.remove(at)) else {
            continue;
        };
        // Told where the receive would have been.
        if let Some((e, mut env)) = eps.first().and_then(|ep| split(st, *ep).ok()) {
            e.fail_posted(&mut env, tagged, waiting.posted(ANY, 0), fi::FI_ECANCELED);
        }
        return Ok(());
    }
    eps.into_iter()
        .try_for_each(|ep| super::cancel(st, ep, context).or(Ok(())))
}

impl Waiting {
    fn posted(self, src: u32, always: u64) -> Posted {
        Posted {
            tag: self.tag,
            ignore: self.ignore,
            src,
            iov: self.iov,
            len: self.len,
            context: self.context,
            flags: self.flags | always,
            multi: None,
        }
    }
}

impl EpState {
    /// The peer a receive is for.
    fn wanted_peer(&mut self, env: &Env<'_>, src: u64) -> Result<u32, Errno> {
        if self.cfg.directed && src != fi::FI_ADDR_UNSPEC {
            self.peer_of(env, src)
        } else {
            Ok(ANY)
        }
    }

    /// Whether a message waits here that this receive takes.
    fn holds_for(&mut self, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<bool, Errno> {
        let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
        let src = self.wanted_peer(env, a.src)?;
        Ok(self
            .queue(a.tag.is_some())
            .match_posted(src, tag, ignore)
            .is_some())
    }

    /// Takes the oldest receive of the bound context for a message that met none here.
    #[cold]
    pub(crate) fn take_shared(
        &mut self,
        env: &mut Env<'_>,
        tagged: bool,
        peer: u32,
        tag: u64,
    ) -> Option<Target> {
        let srx = self.cfg.srx?;
        let from = self.peers.get(peer as usize)?.id;
        let directed = self.cfg.directed;
        let av = env.avs.get(self.cfg.av);
        let list = env.srxs.get_mut(srx)?.list(tagged);
        let at = list.find(|w| {
            let heard = !directed || w.src == fi::FI_ADDR_UNSPEC || {
                av.and_then(|av| av.port_id(w.src)).is_some_and(|id| id == from)
            };
            heard && (w.tag ^ tag) & !w.ignore == 0
        })?;
        let waiting = list.remove(at)?;
        Some(Target {
            tagged,
            iov: waiting.iov,
            room: waiting.len,
            context: waiting.context,
            flags: waiting.flags | self.cfg.rx_always,
            multi: None,
        })
    }
}
