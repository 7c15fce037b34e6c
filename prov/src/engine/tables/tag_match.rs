// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tag matching of posted receives and unexpected messages, oldest first.
//!
//! Tagged and untagged messages never match each other, so each class has its own pair of lists. A
//! list keeps arrival order, with O(1) removal at any position. A search starts at the oldest
//! entry. Not here: the work after a match (`recv`).

use std::mem::ManuallyDrop;

use scif_ring::copy::Mem;

use crate::engine::tables::unexpected::Charge;
use crate::engine::types::envelope::{MultiRecvId, RecvTarget};
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::rts;

const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    prev: u32,
    next: u32,
    value: Option<T>,
}

/// Doubly linked list in a vector. An index stays valid until its entry is removed.
#[derive(Debug)]
pub(crate) struct List<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    head: u32,
    tail: u32,
    len: usize,
}

impl<T> List<T> {
    pub(crate) const fn new() -> List<T> {
        List { nodes: Vec::new(), free: NIL, head: NIL, tail: NIL, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn node(&self, at: u32) -> Option<&Node<T>> {
        self.nodes.get(at as usize)
    }

    #[inline]
    fn node_mut(&mut self, at: u32) -> Option<&mut Node<T>> {
        self.nodes.get_mut(at as usize)
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, value: T) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        let (at, tail) = (self.free, self.tail);
        // The node is found first, so that the fields are written directly into it.
        let Some(node) = self.node_mut(at) else {
            return NIL;
        };
        let free = std::mem::replace(&mut node.next, NIL);
        node.prev = tail;
        // A free node has no value to drop.
        let _none = ManuallyDrop::new(node.value.replace(value));
        self.free = free;
        match self.node_mut(tail) {
            Some(last) => last.next = at,
            None => self.head = at,
        }
        self.tail = at;
        self.len += 1;
        at
    }

    /// Adds a free node.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.free = u32::try_from(self.nodes.len()).unwrap_or(NIL);
        self.nodes.push(Node { prev: NIL, next: NIL, value: None });
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.node_mut(at)?.value.take()?;
        self.unlink(at);
        Some(value)
    }

    /// Removes an entry in place that owns nothing, so that it need not be dropped.
    #[inline(always)]
    fn release(&mut self, at: u32) {
        if let Some(node) = self.node_mut(at) {
            let _owns_nothing = ManuallyDrop::new(node.value.take());
            self.unlink(at);
        }
    }

    /// Drops an entry in place, without moving it out.
    #[inline(always)]
    pub(crate) fn forget(&mut self, at: u32) {
        if let Some(node) = self.node_mut(at) {
            if node.value.is_some() {
                node.value = None;
                self.unlink(at);
            }
        }
    }

    /// Removes an emptied node from the chain.
    #[inline(always)]
    fn unlink(&mut self, at: u32) {
        let free = self.free;
        let Some(node) = self.node_mut(at) else {
            return;
        };
        let (prev, next) = (node.prev, node.next);
        node.next = free;
        self.free = at;
        match self.node_mut(prev) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match self.node_mut(next) {
            Some(after) => after.prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.node_mut(at)?.value.as_mut()
    }

    /// Iterates over all entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.value.as_ref())
    }

    /// Iterates over all entries, oldest first.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = &T> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let node = self.node(at)?;
            at = node.next;
            node.value.as_ref()
        })
    }

    /// Iterates over all entries, newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &T> {
        let mut at = self.tail;
        std::iter::from_fn(move || {
            let node = self.node(at)?;
            at = node.prev;
            node.value.as_ref()
        })
    }

    /// Iterates over all entries, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.nodes.iter_mut().filter_map(|node| node.value.as_mut())
    }

    /// Returns the oldest entry that `wanted` accepts, and its index.
    #[inline(always)]
    pub(crate) fn entry(&self, mut wanted: impl FnMut(&T) -> bool) -> Option<(u32, &T)> {
        let mut at = self.head;
        while let Some(node) = self.node(at) {
            if let Some(value) = &node.value {
                if wanted(value) {
                    return Some((at, value));
                }
            }
            at = node.next;
        }
        None
    }

    /// Returns the index of the oldest entry that `wanted` accepts.
    #[inline]
    pub(crate) fn find(&self, wanted: impl FnMut(&T) -> bool) -> Option<u32> {
        self.entry(wanted).map(|(at, _)| at)
    }

    /// Reserves space for the next entry. Returns false if there is no memory.
    pub(crate) fn reserve(&mut self) -> bool {
        self.free != NIL || self.nodes.try_reserve(1).is_ok()
    }

    /// Drops every entry that `keep` refuses.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut at = self.head;
        while let Some(node) = self.node(at) {
            let next = node.next;
            if node.value.as_ref().is_some_and(|value| !keep(value)) {
                self.forget(at);
            }
            at = next;
        }
    }

    /// Removes every entry that `wanted` accepts, oldest first.
    pub(crate) fn extract(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        let mut at = self.head;
        while let Some(node) = self.node(at) {
            let next = node.next;
            if node.value.as_ref().is_some_and(&mut wanted) {
                out.extend(self.remove(at));
            }
            at = next;
        }
        out
    }
}

/// Receive that waits for its message.
#[derive(Debug)]
pub(crate) struct PostedRecv {
    pub tag: u64,
    pub ignore: u64,
    /// Peer number, or [`ANY`].
    pub src: PeerId,
    pub iov: Iov,
    pub len: usize,
    pub context: usize,
    pub flags: u64,
    /// Time in nanoseconds of the last progress call before it was posted.
    pub since_ns: u64,
    /// Multi-receive buffer that this entry stands for, if any.
    pub multi: Option<MultiRecvId>,
}

impl PostedRecv {
    /// Returns the receive as the destination of its message.
    pub(crate) fn into_target(self, tagged: bool) -> RecvTarget {
        RecvTarget::new(tagged, self.iov, self.len, self.context, self.flags)
    }
}

/// Receive for one plain buffer, once it has its message.
pub(crate) struct PlainRecv {
    pub to: Mem,
    pub context: usize,
    pub flags: u64,
    pub src: PeerId,
}

/// Location of the payload of an unexpected message.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Copied out of the ring, into memory of this process alone.
    Here(Vec<u8>),
    /// Still with the sender.
    There(rts::Rts),
}

/// Unexpected message, or the description of a message that has just arrived.
#[derive(Debug)]
pub(crate) struct UnexpectedMsg {
    pub peer: PeerId,
    pub tag: u64,
    pub data: Option<u64>,
    pub len: usize,
    /// Operation number that the sender wants acknowledged.
    pub ack: Option<u64>,
    pub payload: Payload,
    /// Time in nanoseconds of the progress call that received it.
    pub since_ns: u64,
    /// Memory charged for the message while it waits.
    pub charge: Charge,
}

/// Lists of one class of messages, tagged or untagged.
#[derive(Debug)]
pub(crate) struct Queue {
    pub posted: List<PostedRecv>,
    pub unexpected: List<UnexpectedMsg>,
}

impl Queue {
    pub(crate) const fn new() -> Queue {
        Queue { posted: List::new(), unexpected: List::new() }
    }

    /// Returns the oldest receive for a message from `peer` with `tag`, and its index.
    #[inline(always)]
    pub(crate) fn receive_for(&self, peer: PeerId, tag: u64) -> Option<(u32, &PostedRecv)> {
        self.posted.entry(|p| (p.src == ANY || p.src == peer) && (p.tag ^ tag) & !p.ignore == 0)
    }

    /// Removes that receive if it has one plain buffer of at least `len` bytes. Returns the first
    /// `len` bytes of the buffer.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, peer: PeerId, tag: u64, len: usize) -> Option<PlainRecv> {
        let (at, posted) = self.receive_for(peer, tag)?;
        let &PostedRecv { iov: Iov::One([to]), multi: None, context, flags, src, .. } = posted
        else {
            return None;
        };
        let to = to.sub(0, len)?;
        self.posted.release(at);
        Some(PlainRecv { to, context, flags, src })
    }

    /// Returns the index of that receive.
    #[inline]
    pub(crate) fn match_arrival(&self, peer: PeerId, tag: u64) -> Option<u32> {
        self.receive_for(peer, tag).map(|(at, _)| at)
    }

    /// Returns the oldest unexpected message for a receive from `src`.
    #[inline]
    pub(crate) fn match_posted(&self, src: PeerId, tag: u64, ignore: u64) -> Option<u32> {
        if self.unexpected.len() == 0 {
            return None;
        }
        self.unexpected.find(|m| (src == ANY || m.peer == src) && (m.tag ^ tag) & !ignore == 0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_order_through_removals_and_reuse() {
        let mut list = List::new();
        let a = list.push_back(1);
        let b = list.push_back(2);
        let c = list.push_back(3);
        assert_eq!(list.remove(b), Some(2));
        assert_eq!(list.remove(b), None, "removed once");
        let d = list.push_back(4);
        assert_eq!(d, b, "the free place is used again");
        assert_eq!(list.oldest().copied().collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(list.extract(|_| true), vec![1, 3, 4]);
        assert_eq!(list.len(), 0);
        assert_eq!(list.find(|_| true), None);
        let _ = (a, c);
        list.push_back(5);
        assert_eq!(list.extract(|v| *v == 5), vec![5]);
    }

    pub(crate) fn posted(tag: u64, ignore: u64, src: PeerId) -> PostedRecv {
        PostedRecv {
            tag,
            ignore,
            src,
            iov: Iov::new(&[]),
            len: 0,
            context: 0,
            flags: 0,
            since_ns: 0,
            multi: None,
        }
    }

    #[test]
    fn the_oldest_receive_that_fits_is_taken() {
        let mut q = Queue::new();
        let directed = q.posted.push_back(posted(1, 0, PeerId::new(7)));
        let any = q.posted.push_back(posted(0, u64::MAX, ANY));
        let exact = q.posted.push_back(posted(1, 0, ANY));
        assert_eq!(q.match_arrival(PeerId::new(7), 1), Some(directed));
        assert_eq!(
            q.match_arrival(PeerId::new(8), 1),
            Some(any),
            "a wildcard posted earlier goes first"
        );
        q.posted.remove(any);
        assert_eq!(q.match_arrival(PeerId::new(8), 1), Some(exact));
        assert_eq!(q.match_arrival(PeerId::new(8), 2), None);
    }
}
