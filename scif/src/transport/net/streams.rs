// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections of a port over a network, by their tokens.
//!
//! Not about their work (`mux`). A poll finds one connection several times in a row, so the place
//! of the last one is kept. Connections with unsent records are listed, so that a search
//! for them visits no others.

use foldhash::{HashMap, HashMapExt};

use super::stream::NetStream;

/// Place that no connection has.
const NOWHERE: usize = usize::MAX;

/// Connections by token.
#[derive(Debug)]
pub(super) struct NetStreams {
    slots: Vec<Option<NetStream>>,
    free: Vec<usize>,
    places: HashMap<u64, usize>,
    /// Token of the last connection that was found, and its place.
    last: (u64, usize),
    /// Tokens of connections that have or had unsent records.
    unsent: Vec<u64>,
}

impl NetStreams {
    pub(super) fn new() -> NetStreams {
        NetStreams {
            slots: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            last: (0, NOWHERE),
            unsent: Vec::new(),
        }
    }

    /// Adds a connection, whose token no other one has.
    pub(super) fn insert(&mut self, stream: NetStream) {
        let token = stream.token;
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Some(stream);
        }
        self.places.insert(token, place);
        self.note_unsent(token);
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<NetStream> {
        self.last = (0, NOWHERE);
        let place = self.places.remove(&token)?;
        self.free.push(place);
        self.slots.get_mut(place)?.take()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut NetStream> {
        if self.last.0 != token || self.last.1 == NOWHERE {
            self.last = (token, *self.places.get(&token)?);
        }
        self.slots.get_mut(self.last.1)?.as_mut()
    }

    pub(super) fn get(&self, token: u64) -> Option<&NetStream> {
        self.slots.get(*self.places.get(&token)?)?.as_ref()
    }

    /// Lists a connection, if it has unsent records and is not listed.
    #[inline]
    pub(super) fn note_unsent(&mut self, token: u64) {
        let Some(stream) = self.get_mut(token) else { return };
        if stream.has_unsent() && !stream.set_listed_unsent(true) {
            self.unsent.push(token);
        }
    }

    /// Whether a connection has unsent records.
    pub(super) fn has_unsent(&mut self) -> bool {
        let mut unsent = std::mem::take(&mut self.unsent);
        unsent.retain(|token| {
            self.get_mut(*token).is_some_and(|stream| {
                let has_unsent = stream.has_unsent();
                stream.set_listed_unsent(has_unsent);
                has_unsent
            })
        });
        self.unsent = unsent;
        !self.unsent.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NetStream> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NetStream> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::PeerLimits;
    use super::*;
    use crate::addr::PortId;
    use crate::segment::Side;

    fn stream(token: u64) -> NetStream {
        let limits = PeerLimits { refused_ns: 1, silent_ns: 0 };
        NetStream::new((token, PortId::new(0, 1)), Side::Acceptor, limits, None).unwrap()
    }

    #[test]
    fn connections_are_found_by_their_token_until_they_are_removed() {
        let mut streams = NetStreams::new();
        assert!(streams.get_mut(0).is_none());
        // A token may be 0, and a place is used again.
        for token in [0, 7, 9] {
            streams.insert(stream(token));
        }
        for token in [0, 7, 7, 9, 0] {
            assert_eq!(streams.get_mut(token).unwrap().token, token);
        }
        assert_eq!(streams.get_mut(7).unwrap().token, 7);
        assert_eq!(streams.remove(7).unwrap().token, 7);
        assert!(streams.get_mut(7).is_none() && streams.get(7).is_none());
        assert!(streams.remove(7).is_none());
        streams.insert(stream(8));
        assert!(streams.get_mut(7).is_none());
        assert_eq!(streams.get_mut(8).unwrap().token, 8);
        assert_eq!(streams.slots.len(), 3);
        let mut tokens: Vec<u64> = streams.iter().map(|stream| stream.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 8, 9]);
        assert_eq!(streams.iter_mut().count(), 3);
    }
}
