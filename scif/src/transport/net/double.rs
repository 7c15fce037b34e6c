// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Network in memory, for tests: it can delay, refuse, reorder and repeat messages, lose peers, and
//! read memory.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use scif_ring::Mem;

use super::key::JobKey;
use super::mux::NetMux;
use super::outside::OutsideBodies;
use super::wire::{MESSAGE_MAX, NetWire, PeerLimits, ReadPosted, WireEvent, WirePeer};
use crate::carried::{CarriedOp, OpDecoder};
use crate::error;
use crate::remote_reads::{ReadSupport, WireMemory};
use crate::sys::errno::lock;
use crate::transport::LinkUpdate;

/// Kinds of records that are no messages: one-sided operations, with the length of their head, and
/// records of no operation.
pub(super) const ONE_SIDED: u8 = 0x70;
pub(super) const REPLY: u8 = 0x71;

/// Decoder of these records. All others are messages, with the length of their body.
pub(super) const DECODER: OpDecoder = |kind, head, body_len| match kind {
    ONE_SIDED => Some(CarriedOp::OneSided(head.len() as u64)),
    REPLY => None,
    _ => Some(CarriedOp::Message(body_len as u64)),
};

/// Messages to one end, and losses that it has not been told of.
#[derive(Debug, Default)]
struct EndInbox {
    messages: VecDeque<Vec<u8>>,
    lost: Vec<(WirePeer, Vec<u8>)>,
    reads: Vec<Read>,
}

/// Read in progress.
#[derive(Debug)]
struct Read {
    from: WireMemory,
    to: Mem,
    number: u64,
}

/// State of a network.
#[derive(Debug, Default)]
pub(super) struct NetState {
    ends: HashMap<SocketAddrV4, EndInbox>,
    /// Last message that was taken for each name.
    last: HashMap<SocketAddrV4, Vec<u8>>,
    /// Whether messages wait, until the test delivers them.
    pub(super) held: bool,
    /// Number of messages that the network still takes; `None`: no limit.
    pub(super) room: Option<usize>,
    /// Whether the network has no space for any message.
    pub(super) is_full: bool,
    /// Number of messages taken so far.
    pub(super) sent: usize,
    /// Number of messages offered so far.
    pub(super) offered: usize,
    /// Number of names in the address vectors of all ends.
    pub(super) named: usize,
    /// Limit for unanswered pings of ends that are made later; 0 for none.
    pub(super) silent_ns: u64,
    /// Key of ends that are made later.
    pub(super) key: Option<JobKey>,
    /// Memory that can be read, by key.
    pub(super) exposed: HashMap<u64, Mem>,
    keys: u64,
    /// Whether the network has no space for reads.
    pub(super) no_reads: bool,
}

/// A network. Clones are one network.
#[derive(Clone, Debug, Default)]
pub(super) struct NetDouble(Arc<Mutex<NetState>>);

impl NetDouble {
    pub(super) fn state(&self) -> MutexGuard<'_, NetState> {
        lock(&self.0)
    }

    /// Returns the end with that name.
    pub(super) fn end(&self, name: SocketAddrV4) -> Box<dyn NetWire> {
        self.state().ends.insert(name, EndInbox::default());
        let key = self.state().key;
        Box::new(EndDouble { net: self.clone(), name, key, peers: Vec::new() })
    }

    /// Returns the connections over the end with that name.
    pub(super) fn mux(&self, name: SocketAddrV4) -> error::Result<NetMux> {
        NetMux::new(self.end(name), DECODER, 0)
    }

    /// Adds a message that no end has sent.
    pub(super) fn forge(&self, to: SocketAddrV4, message: &[u8]) {
        if let Some(end) = self.state().ends.get_mut(&to) {
            end.messages.push_back(message.to_vec());
        }
    }

    /// Changes the messages that wait for an end.
    pub(super) fn change(&self, to: SocketAddrV4, how: impl FnOnce(&mut VecDeque<Vec<u8>>)) {
        if let Some(end) = self.state().ends.get_mut(&to) {
            how(&mut end.messages);
        }
    }

    /// Makes the network forget an end, and report the loss of the last message to it to `to`, as
    /// one to peer 0.
    pub(super) fn lose(&self, name: SocketAddrV4, to: SocketAddrV4) {
        let last = {
            let mut state = self.state();
            state.ends.remove(&name);
            state.last.get(&name).cloned().unwrap_or_default()
        };
        self.report_loss(to, &last);
    }

    /// Reports the loss of a message to peer 0 of `to`.
    pub(super) fn report_loss(&self, to: SocketAddrV4, message: &[u8]) {
        if let Some(end) = self.state().ends.get_mut(&to) {
            end.lost.push((WirePeer(0), message.to_vec()));
        }
    }
}

/// End of the network.
#[derive(Debug)]
struct EndDouble {
    net: NetDouble,
    name: SocketAddrV4,
    key: Option<JobKey>,
    /// Names of peers, and the number of their uses.
    peers: Vec<(SocketAddrV4, usize)>,
}

impl NetWire for EndDouble {
    fn name(&self) -> SocketAddrV4 {
        self.name
    }

    fn provider(&self) -> &str {
        "double"
    }

    fn limits(&self) -> PeerLimits {
        let silent_ns = self.net.state().silent_ns;
        PeerLimits { refused_ns: 2_000_000_000, silent_ns }
    }

    fn key(&self) -> Option<JobKey> {
        self.key
    }

    fn peer(&mut self, name: SocketAddrV4) -> error::Result<WirePeer> {
        let at = self.peers.iter().position(|peer| peer.0 == name).unwrap_or_else(|| {
            self.peers.push((name, 0));
            self.peers.len() - 1
        });
        self.net.state().named += usize::from(self.peers[at].1 == 0);
        self.peers[at].1 += 1;
        Ok(WirePeer(at as u64))
    }

    fn release(&mut self, peer: WirePeer) {
        let (_, uses) = &mut self.peers[usize::try_from(peer.0).unwrap()];
        *uses = uses.checked_sub(1).expect("released more often than named");
        self.net.state().named -= usize::from(*uses == 0);
    }

    fn buffer(&mut self) -> Vec<u8> {
        Vec::with_capacity(MESSAGE_MAX)
    }

    fn send(&mut self, to: WirePeer, message: Vec<u8>) -> Result<(), Vec<u8>> {
        assert!(message.len() <= MESSAGE_MAX);
        let (to, uses) = &self.peers[usize::try_from(to.0).unwrap()];
        assert!(*uses > 0, "a message to a name that was released");
        let mut state = self.net.state();
        state.offered += 1;
        if state.room == Some(0) || state.is_full {
            return Err(message);
        }
        let Some(end) = state.ends.get_mut(to) else {
            return Err(message);
        };
        end.messages.push_back(message.clone());
        state.last.insert(*to, message);
        state.sent += 1;
        state.room = state.room.map(|room| room - 1);
        Ok(())
    }

    fn poll(&mut self, on: &mut dyn FnMut(WireEvent<'_>)) {
        let mut state = self.net.state();
        if state.held {
            return;
        }
        let Some(end) = state.ends.get_mut(&self.name) else { return };
        let EndInbox { messages, lost, reads } = std::mem::take(end);
        let exposed = state.exposed.clone();
        drop(state);
        for mut message in messages {
            let len = message.len();
            on(WireEvent::Message(&mut message, len));
        }
        for (peer, message) in lost {
            on(WireEvent::Lost(peer, &message));
        }
        for Read { from, to, number } in reads {
            let at = usize::try_from(from.addr).unwrap();
            let memory = exposed.get(&from.key).and_then(|memory| memory.sub(at, to.len()));
            let is_done = memory.is_some_and(|memory| to.copy_from(&memory) == to.len());
            on(WireEvent::ReadEnded { number, is_done });
        }
    }

    fn has_room(&self) -> bool {
        !self.net.state().is_full
    }

    fn read_support(&self) -> ReadSupport {
        ReadSupport::Ordered
    }

    fn expose(&mut self, range: &Mem) -> Option<WireMemory> {
        let mut state = self.net.state();
        state.keys += 1;
        let key = state.keys;
        state.exposed.insert(key, *range);
        Some(WireMemory { addr: 0, key })
    }

    fn revoke(&mut self, key: u64) {
        self.net.state().exposed.remove(&key);
    }

    fn read(&mut self, _: WirePeer, memory: WireMemory, to: &Mem, number: u64) -> ReadPosted {
        let mut state = self.net.state();
        if state.no_reads {
            return ReadPosted::Later;
        }
        match state.ends.get_mut(&self.name) {
            Some(end) => end.reads.push(Read { from: memory, to: *to, number }),
            None => return ReadPosted::Refused,
        }
        ReadPosted::Taken
    }

    fn stop(&mut self) {
        self.net.state().ends.remove(&self.name);
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        false
    }
}

impl Drop for EndDouble {
    fn drop(&mut self) {
        let mut state = self.net.state();
        state.ends.remove(&self.name);
        state.named -= self.peers.iter().filter(|(_, uses)| *uses > 0).count();
    }
}

/// Returns the next change of a connection.
pub(super) fn change(mux: &mut NetMux, token: u64) -> Option<LinkUpdate> {
    mux.next_event(token, &mut OutsideBodies::default())
}
