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

use super::matching::ANY;
use super::{Env, EpState, Errno};

impl EpState {
    /// Returns the source of a receive, as a number for matching.
    ///
    /// # Errors
    /// `FI_EINVAL` for a source that the address vector does not name.
    pub(crate) fn wanted_peer(&mut self, env: &Env<'_>, src: u64) -> Result<u32, Errno> {
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
    pub(crate) fn known_as(&mut self, env: &Env<'_>, peer: u32) -> u32 {
        if self.cfg.grouped {
            self.whole(env, peer)
        } else {
            peer
        }
    }

    #[cold]
    fn whole(&mut self, env: &Env<'_>, peer: u32) -> u32 {
        let id = self.peers.get(peer as usize).map(|p| p.id);
        let av = env.avs.get(self.cfg.av);
        match id.zip(av).and_then(|(id, av)| av.whole(id)) {
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
        src: u32,
        tag: u64,
        ignore: u64,
    ) -> Option<u32> {
        if !self.cfg.grouped || src == ANY {
            return self.queue(tagged).match_posted(src, tag, ignore);
        }
        let peers = u32::try_from(self.peers.len()).unwrap_or(ANY);
        let members: Vec<u32> = (0..peers).filter(|p| self.whole(env, *p) == src).collect();
        self.queue(tagged)
            .unexpected
            .find(|m| members.contains(&m.peer) && (m.tag ^ tag) & !ignore == 0)
    }

    /// Notes that a context of an endpoint was seen, so that the endpoint is alive.
    pub(crate) fn seen(&mut self, env: &Env<'_>, peer: u32) {
        if self.cfg.grouped {
            let whole = self.whole(env, peer);
            if let Some(p) = self.peers.get_mut(whole as usize) {
                p.dead = false;
            }
        }
    }
}
