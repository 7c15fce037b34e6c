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

use super::peer_id::{ANY, PeerId};
use super::{Env, EpState, Errno};

impl EpState {
    /// Returns the source of a receive, as a number for matching.
    ///
    /// # Errors
    /// `FI_EINVAL` for a source that the address vector does not name.
    pub(crate) fn wanted_peer(&mut self, env: &Env<'_>, src: u64) -> Result<PeerId, Errno> {
        if !self.cfg.directed || src == fi::FI_ADDR_UNSPEC {
            return Ok(ANY);
        }
        if !self.cfg.grouped {
            return self.peer_of(env, src);
        }
        let av = env.avs.get(self.cfg.av).ok_or(fi::FI_ENOAV)?;
        let whole = av.port_id(av.without_context(src)).ok_or(fi::FI_EINVAL)?;
        Ok(self.peer_at(whole))
    }

    /// Returns the number that messages of `peer` are matched with.
    #[inline]
    pub(crate) fn known_as(&mut self, env: &Env<'_>, peer: PeerId) -> PeerId {
        if self.cfg.grouped { self.whole(env, peer) } else { peer }
    }

    #[cold]
    fn whole(&mut self, env: &Env<'_>, peer: PeerId) -> PeerId {
        let id = self.peers.at(peer).id;
        let av = env.avs.get(self.cfg.av);
        match av.and_then(|av| av.whole(id)) {
            Some(first) => self.peer_at(first),
            None => peer,
        }
    }

    /// Returns the oldest unexpected message for a receive from `src`.
    #[inline]
    pub(crate) fn match_waiting(
        &mut self,
        env: &Env<'_>,
        tagged: bool,
        src: PeerId,
        tag: u64,
        ignore: u64,
    ) -> Option<u32> {
        if !self.cfg.grouped || src == ANY {
            return self.recv.queue(tagged).match_posted(src, tag, ignore);
        }
        let mut members: Vec<PeerId> = self.peers.ids().collect();
        members.retain(|p| self.whole(env, *p) == src);
        self.recv
            .queue(tagged)
            .unexpected
            .find(|m| members.contains(&m.peer) && (m.tag ^ tag) & !ignore == 0)
    }

    /// Notes that a context of an endpoint was seen, so that the endpoint is alive.
    pub(crate) fn seen(&mut self, env: &Env<'_>, peer: PeerId) {
        if self.cfg.grouped {
            let whole = self.whole(env, peer);
            self.peers.at_mut(whole).state.on_seen();
        }
    }
}
