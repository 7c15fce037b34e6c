// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages of members that wait for their operation, and how much of them is kept.
//!
//! Members may begin an operation long before we do, and a correct one may be far ahead. What one member may leave here has a
//! bound all the same: nothing more is read of it then until an operation is posted or its group ends. Messages of an
//! operation that is posted do not count against it, however long they are.
//!
//! Not here: what an operation does with a message (`super`).

use std::collections::{HashMap, VecDeque};

use scif_ring::copy::Mem;

/// Messages of one member beyond which nothing more is read of it.
pub(in crate::data) const MESSAGES_MAX: usize = 1 << 16;
/// The same in bytes.
pub(in crate::data) const BYTES_MAX: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) id: u64,
    pub(super) seq: u64,
    pub(super) peer: u32,
}

/// A message, whole or as far as it has come.
#[derive(Debug)]
struct Message {
    len: usize,
    bytes: Vec<u8>,
}

impl Message {
    fn is_whole(&self) -> bool {
        self.bytes.len() == self.len
    }
}

/// What one member has here.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    messages: usize,
    bytes: usize,
}

/// What became of a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// The message is complete.
    Whole,
    Part,
    /// It is the beginning of what has begun, or goes on with what has not.
    OutOfPlace {
        begun: bool,
    },
    /// It makes no sense.
    Nonsense,
    /// No memory is left for it.
    NoMemory,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: HashMap<Key, VecDeque<Message>>,
    loads: HashMap<u32, Load>,
}

impl Inbox {
    /// Adds the piece at `offset` of a message of `len` bytes.
    pub(super) fn put(&mut self, key: Key, len: usize, offset: usize, body: &Mem) -> Put {
        let last = self.waiting.get(&key).and_then(VecDeque::back);
        let begun = last.is_some_and(|m| !m.is_whole());
        if begun == (offset == 0) {
            return Put::OutOfPlace { begun };
        }
        let known = if begun { last.map_or(0, |m| m.len) } else { len };
        let at = if begun {
            last.map_or(0, |m| m.bytes.len())
        } else {
            0
        };
        let fits = known == len && offset == at && body.len() <= len - at;
        if !fits || (body.is_empty() && len > 0) {
            return Put::Nonsense;
        }
        let load = self.loads.entry(key.peer).or_default();
        let messages = self.waiting.entry(key).or_default();
        if !begun {
            if messages.try_reserve(1).is_err() {
                return Put::NoMemory;
            }
            load.messages += 1;
            messages.push_back(Message {
                len,
                bytes: Vec::new(),
            });
        }
        let Some(message) = messages.back_mut() else {
            return Put::Nonsense;
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

    /// How many messages there are, the one that is coming included.
    pub(super) fn waiting(&self, key: Key) -> usize {
        self.waiting.get(&key).map_or(0, VecDeque::len)
    }

    /// Members that have left something here.
    pub(super) fn peers(&self) -> impl Iterator<Item = u32> {
        self.loads.keys().copied()
    }

    /// Whether a member has left as much here as one may.
    pub(super) fn is_full_of(&self, peer: u32) -> bool {
        self.loads
            .get(&peer)
            .is_some_and(|load| load.messages >= MESSAGES_MAX || load.bytes >= BYTES_MAX)
    }

    /// The next whole message of a member for an operation.
    pub(super) fn take(&mut self, key: Key) -> Option<Vec<u8>> {
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

    /// Forgets the messages of groups that are not to be kept.
    pub(super) fn retain_groups(&mut self, keep: impl Fn(u64) -> bool) {
        self.retain(|key, _| keep(key.id));
    }

    /// A member is gone: what has not wholly come never will.
    pub(super) fn forget_parts(&mut self, peer: u32) {
        self.retain(|key, message| key.peer != peer || message.is_whole());
    }

    fn retain(&mut self, keep: impl Fn(&Key, &Message) -> bool) {
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
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// A message of `peer` is here no more.
fn unload(loads: &mut HashMap<u32, Load>, peer: u32, message: &Message) {
    let Some(load) = loads.get_mut(&peer) else { return };
    load.messages -= 1;
    load.bytes -= message.bytes.len();
    if load.messages == 0 {
        loads.remove(&peer);
    }
}
