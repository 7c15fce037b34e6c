// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages of members that wait for their operation, with limits on their memory.
//!
//! Members may start an operation long before this one, and a correct member may be far ahead.
//! There is still a limit for each member. Beyond it the member is not read until an operation is
//! posted or its group ends. Messages of a posted operation are not subject to the limit.
//!
//! Not here: the use of a message by its operation (`super`).

use std::collections::{HashMap, VecDeque};

use scif_ring::copy::Mem;

use crate::engine::types::peer_id::PeerId;

/// Waiting messages of one member beyond which the member is not read.
pub(crate) const WAITING_MAX: usize = 1 << 16;
/// Waiting bytes of one member beyond which the member is not read.
pub(crate) const BYTES_MAX: usize = 1 << 30;

/// Group, operation and sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) id: u64,
    pub(crate) seq: u64,
    pub(crate) peer: PeerId,
}

/// Message, complete or partial.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) len: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes.len() == self.len
    }
}

/// Memory held by one member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// Result of adding a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The message is complete.
    Whole,
    Part,
    /// A first fragment inside an unfinished message, or a later fragment without a first one.
    OutOfPlace {
        begun: bool,
    },
    /// An invalid fragment.
    Invalid,
    /// No memory is left.
    NoMemory,
}

/// Waiting messages, with the memory held by each member.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) waiting: HashMap<Key, VecDeque<Message>>,
    pub(crate) loads: HashMap<PeerId, Load>,
}

impl Inbox {
    /// Adds the fragment at `offset` of a message of `len` bytes.
    pub(crate) fn put(&mut self, key: Key, len: usize, offset: usize, body: &Mem) -> Put {
        let last = self.waiting.get(&key).and_then(VecDeque::back);
        let begun = last.is_some_and(|m| !m.is_whole());
        if begun == (offset == 0) {
            return Put::OutOfPlace { begun };
        }
        let known = if begun { last.map_or(0, |m| m.len) } else { len };
        let at = if begun { last.map_or(0, |m| m.bytes.len()) } else { 0 };
        let fits = known == len && offset == at && body.len() <= len - at;
        if !fits || (body.is_empty() && len > 0) {
            return Put::Invalid;
        }
        let load = self.loads.entry(key.peer).or_default();
        let messages = self.waiting.entry(key).or_default();
        if !begun {
            if messages.try_reserve(1).is_err() {
                return Put::NoMemory;
            }
            load.messages += 1;
            messages.push_back(Message { len, bytes: Vec::new() });
        }
        let Some(message) = messages.back_mut() else {
            return Put::Invalid;
        };
        if message.bytes.try_reserve(body.len()).is_err() {
            return Put::NoMemory;
        }
        load.bytes += body.len();
        message.bytes.resize(at + body.len(), 0);
        if let Some(place) = message.bytes.get_mut(at..) {
            body.copy_to_slice(place);
        }
        if message.is_whole() { Put::Whole } else { Put::Part }
    }

    /// Returns the number of messages, a partial one included.
    pub(crate) fn waiting(&self, key: Key) -> usize {
        self.waiting.get(&key).map_or(0, VecDeque::len)
    }

    /// Returns the members with messages here.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.loads.keys().copied()
    }

    /// Whether a member has reached its limit.
    pub(crate) fn is_full_of(&self, peer: PeerId) -> bool {
        self.loads
            .get(&peer)
            .is_some_and(|load| load.messages >= WAITING_MAX || load.bytes >= BYTES_MAX)
    }

    /// Returns the next complete message of a member for an operation.
    pub(crate) fn take(&mut self, key: Key) -> Option<Vec<u8>> {
        let messages = self.waiting.get_mut(&key)?;
        if !messages.front()?.is_whole() {
            return None;
        }
        let message = messages.pop_front()?;
        if messages.is_empty() {
            self.waiting.remove(&key);
        }
        unload(&mut self.loads, key.peer, &message);
        Some(message.bytes)
    }

    /// Drops the messages of groups that `keep` refuses.
    pub(crate) fn retain_groups(&mut self, keep: impl Fn(u64) -> bool) {
        self.retain(|key, _| keep(key.id));
    }

    /// Drops the partial messages of a member that has ended.
    pub(crate) fn forget_parts(&mut self, peer: PeerId) {
        self.retain(|key, message| key.peer != peer || message.is_whole());
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Key, &Message) -> bool) {
        let Inbox { waiting, loads } = self;
        waiting.retain(|key, messages| {
            messages.retain(|message| {
                let keep = keep(key, message);
                if !keep {
                    unload(loads, key.peer, message);
                }
                keep
            });
            !messages.is_empty()
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Subtracts a removed message of `peer` from its load.
fn unload(loads: &mut HashMap<PeerId, Load>, peer: PeerId, message: &Message) {
    let Some(load) = loads.get_mut(&peer) else {
        return;
    };
    load.messages -= 1;
    load.bytes -= message.bytes.len();
    if load.messages == 0 {
        loads.remove(&peer);
    }
}
