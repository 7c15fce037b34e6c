// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Table of the peers of an endpoint: their numbers, the lookup by port and by address, and the
//! peers with work.
//!
//! A number of the table is always valid, so a lookup by number cannot fail. A number that is out
//! of range is a defect of this library and panics, which poisons the endpoint.
//!
//! Not here: the references that keep a number in use (`peer_sweep`).

use std::collections::HashMap;

use libfabric_sys as fi;
use scif::slab::Slab;
use scif::trace::{EventKind, TraceEvent};
use scif::{ConnId, PortId};

use crate::engine::recorder::Recorder;
use crate::engine::tables::peer::{Peer, PeerWork};
use crate::engine::types::args::EpConfig;
use crate::engine::types::peer_id::{ANY, NOWHERE, PeerId};
use crate::state::av_table::AvState;

/// Number of entries without a connection below which no sweep runs.
pub(crate) const KEPT: usize = 256;
/// Value of [`Peer::life`] in a free entry.
const FREE: u32 = 0;

/// Peers of one endpoint.
#[derive(Debug)]
pub(crate) struct PeerTable {
    entries: Vec<Peer>,
    by_port: HashMap<PortId, PeerId>,
    /// Numbers by `fi_addr_t`, for version `av_version` of the address vector. [`ANY`]: not known.
    by_av: Vec<PeerId>,
    av_version: u64,
    /// Peers with pending operations, control records, fragments or posted writes.
    pub(crate) busy: Vec<PeerId>,
    /// Number of them with nothing but unreported writes.
    unreported: usize,
    /// Number of this endpoint as its own peer, and the connection accepted from itself; set by
    /// loopback traffic (`loopback`).
    pub(crate) own: Option<PeerId>,
    pub(crate) own_rx: Option<ConnId>,
    /// Free numbers, the lowest last.
    free: Vec<PeerId>,
    /// Number of entries without a connection at which the next sweep is due.
    sweep_at: usize,
    /// Connection numbers assigned so far, see [`Peer::life`].
    lives: u32,
    /// Entries assigned so far, which is the number of peers met.
    met: usize,
    /// Recorder of the events of the endpoint, if a report or a trace is wanted.
    pub(crate) recorder: Option<Box<Recorder>>,
}

impl PeerTable {
    pub(crate) fn new() -> PeerTable {
        PeerTable {
            entries: Vec::new(),
            by_port: HashMap::new(),
            by_av: Vec::new(),
            av_version: 0,
            busy: Vec::new(),
            unreported: 0,
            own: None,
            own_rx: None,
            free: Vec::new(),
            sweep_at: KEPT,
            lives: 0,
            met: 0,
            recorder: None,
        }
    }

    /// Returns the entry of a peer, whose number is not [`ANY`].
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "numbers of the table are valid")]
    pub(crate) fn at(&self, peer: PeerId) -> &Peer {
        &self.entries[peer.index()]
    }

    /// Returns the entry of a peer, whose number is not [`ANY`].
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "numbers of the table are valid")]
    pub(crate) fn at_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.entries[peer.index()]
    }

    /// Returns the number of entries, free ones included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the numbers of all entries, free ones included.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.entries.len()).map(PeerId::new)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.entries.iter()
    }

    /// Returns the numbers of the entries in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = PeerId> {
        self.ids().filter(|peer| self.at(*peer).life != FREE)
    }

    /// Returns the entry of `peer`, or `None` for [`ANY`].
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.entries.get(peer.index())
    }

    pub(crate) fn at_port(&self, id: PortId) -> Option<PeerId> {
        self.by_port.get(&id).copied()
    }

    /// Assigns a number to the new peer at `id`.
    pub(crate) fn insert(&mut self, id: PortId) -> PeerId {
        let entry = Peer::new(id, self.next_life());
        self.met += 1;
        let peer = if let Some(peer) = self.free.pop() {
            *self.at_mut(peer) = entry;
            peer
        } else {
            self.entries.push(entry);
            PeerId::new(self.entries.len() - 1)
        };
        self.by_port.insert(id, peer);
        if let Some(recorder) = &mut self.recorder {
            recorder.forget_peer();
        }
        peer
    }

    /// Returns the peer with the address at index `at` of the address vector, if it is known.
    #[inline(always)]
    pub(crate) fn at_addr(&mut self, version: u64, at: usize) -> Option<PeerId> {
        if version != self.av_version {
            self.by_av.clear();
            self.av_version = version;
        }
        self.by_av.get(at).copied().filter(|peer| *peer != ANY)
    }

    /// Notes the peer with the address at index `at` of the address vector.
    pub(crate) fn note_addr(&mut self, at: usize, peer: PeerId) {
        if self.by_av.len() <= at {
            self.by_av.resize(at + 1, ANY);
        }
        if let Some(slot) = self.by_av.get_mut(at) {
            *slot = peer;
        }
    }

    /// Returns the peers that an address of the address vector stands for.
    pub(crate) fn addressed(&self) -> impl Iterator<Item = PeerId> {
        self.by_av.iter().copied()
    }

    /// Records an event with `peer`, or [`ANY`], where events are recorded.
    #[inline(always)]
    pub(crate) fn note(&mut self, peer: PeerId, event: impl FnOnce() -> TraceEvent) {
        if self.recorder.is_some() {
            let event = event();
            if event.err == 0 {
                self.record(peer, event.tag, event.len, event.id, event.kind);
            } else {
                self.record_failed(peer, event);
            }
        }
    }

    /// Records the arrival of a message for a posted receive.
    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, peer: PeerId, tag: u64, len: usize, context: usize) {
        if let Some(recorder) = self.recorder.as_deref_mut() {
            let (len, id) = (len as u64, context as u64);
            let event = TraceEvent { kind: EventKind::Received, tag, len, id, err: 0 };
            if !recorder.try_record_short(peer, event) {
                self.record_arrival(peer, tag, len, id);
            }
        }
    }

    /// Records a message that is sent and complete.
    #[inline(always)]
    pub(crate) fn note_sent(
        &mut self,
        peer: PeerId,
        kind: EventKind,
        tag: u64,
        (len, context): (usize, usize),
    ) {
        if self.recorder.is_some() {
            self.record_sent(peer, tag, len as u64, context as u64, kind);
        }
    }

    /// Records the post of a receive. Not where messages follow each other so closely that only
    /// receives which wait for longer are recorded, by the next ticks.
    #[inline(always)]
    pub(crate) fn note_posted(&mut self, src: PeerId, tag: u64, len: usize, context: usize) {
        if self.recorder.as_ref().is_some_and(|recorder| recorder.records_posts()) {
            self.record(src, tag, len as u64, context as u64, EventKind::RecvPosted);
        }
    }

    /// Records the arrival of a message for a posted receive. Its members are arguments, so that
    /// they stay in registers.
    #[cold]
    #[inline(never)]
    fn record_arrival(&mut self, peer: PeerId, tag: u64, len: u64, id: u64) {
        let event = TraceEvent { kind: EventKind::Received, tag, len, id, err: 0 };
        let recorder = self.recorder.as_deref_mut();
        if !recorder.is_some_and(|recorder| recorder.try_record_arrival(peer, event)) {
            self.record_slow(peer, tag, len, id, EventKind::Received);
        }
    }

    /// Records a message sent.
    #[cold]
    #[inline(never)]
    fn record_sent(&mut self, peer: PeerId, tag: u64, len: u64, id: u64, kind: EventKind) {
        let event = TraceEvent { kind, tag, len, id, err: 0 };
        let recorder = self.recorder.as_deref_mut();
        if !recorder.is_some_and(|recorder| recorder.try_record_send(peer, event)) {
            self.record_slow(peer, tag, len, id, kind);
        }
    }

    /// Records an event.
    #[cold]
    #[inline(never)]
    fn record(&mut self, peer: PeerId, tag: u64, len: u64, id: u64, kind: EventKind) {
        let event = TraceEvent { kind, tag, len, id, err: 0 };
        let recorder = self.recorder.as_deref_mut();
        if !recorder.is_some_and(|recorder| recorder.try_record(peer, event)) {
            self.record_slow(peer, tag, len, id, kind);
        }
    }

    /// Slow path of the others. It has their arguments, in their order, so that the call is a jump.
    #[inline(never)]
    fn record_slow(&mut self, peer: PeerId, tag: u64, len: u64, id: u64, kind: EventKind) {
        self.record_failed(peer, TraceEvent { kind, tag, len, id, err: 0 });
    }

    /// Records an event, which may have an error.
    #[cold]
    #[inline(never)]
    fn record_failed(&mut self, peer: PeerId, event: TraceEvent) {
        let other = self.get(peer).map_or(NOWHERE, |p| p.id);
        if let Some(recorder) = &mut self.recorder {
            recorder.record(peer, other, event);
        }
    }

    /// Adds `peer` to the list of peers with work for each poll.
    #[inline]
    pub(crate) fn mark_busy(&mut self, peer: PeerId) {
        match std::mem::replace(&mut self.at_mut(peer).work, PeerWork::Each) {
            PeerWork::None => self.busy.push(peer),
            PeerWork::Unreported => self.unreported -= 1,
            PeerWork::Each => {}
        }
    }

    /// Adds `peer` to the list of peers with work: a posted write, reported or not.
    #[inline]
    pub(crate) fn mark_posted(&mut self, peer: PeerId, is_reported: bool) {
        if is_reported {
            return self.mark_busy(peer);
        }
        let work = &mut self.at_mut(peer).work;
        if *work == PeerWork::None {
            *work = PeerWork::Unreported;
            self.busy.push(peer);
            self.unreported += 1;
        }
    }

    /// Removes the peer at index `at` from the list of peers with work.
    pub(crate) fn unmark_busy(&mut self, at: usize) {
        let peer = self.busy.swap_remove(at);
        let work = std::mem::replace(&mut self.at_mut(peer).work, PeerWork::None);
        self.unreported -= usize::from(work == PeerWork::Unreported);
    }

    /// Whether a peer has work for full polls only.
    pub(crate) fn has_unreported(&self) -> bool {
        self.unreported > 0
    }

    /// Whether no peer has work for each poll.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.len() == self.unreported
    }

    /// Returns a connection number that no peer of this endpoint has had.
    pub(crate) fn next_life(&mut self) -> u32 {
        self.lives = self.lives.wrapping_add(1).max(FREE + 1);
        self.lives
    }

    /// Clears the state of the connection to `peer`, which has ended.
    pub(crate) fn reset_connection(&mut self, peer: PeerId) {
        let life = self.next_life();
        self.at_mut(peer).reset_connection(life);
    }

    /// Returns the number of peers met. A peer whose entry was freed in between counts again.
    pub(crate) fn met(&self) -> usize {
        self.met
    }

    /// Returns the number of entries in use without one of `conns` connections. Too low where peers
    /// have two.
    fn unconnected(&self, conns: usize) -> usize {
        let in_use = self.entries.len() - self.free.len();
        in_use.saturating_sub(conns)
    }

    /// Whether enough of the entries have none of `conns` connections for a sweep.
    #[inline]
    pub(crate) fn sweep_is_due(&self, conns: usize) -> bool {
        self.unconnected(conns) >= self.sweep_at
    }

    /// Frees the entries that are not in `used`, with `conns` connections in the others.
    pub(crate) fn sweep(&mut self, used: &[bool], conns: usize) {
        for (peer, used) in self.entries.iter_mut().zip(used) {
            if !used && peer.life != FREE {
                let gone = std::mem::replace(peer, Peer::new(NOWHERE, FREE));
                self.by_port.remove(&gone.id);
            }
        }
        // Releases the memory of many departed peers.
        while self.entries.last().is_some_and(|p| p.life == FREE) {
            self.entries.pop();
        }
        let len = self.entries.len();
        self.entries.shrink_to(2 * len);
        self.by_port.shrink_to(2 * len);
        self.free = self.ids().filter(|peer| self.at(*peer).life == FREE).collect();
        self.free.reverse();
        self.sweep_at = KEPT.max(2 * self.unconnected(conns));
    }

    /// Returns the allocated entries, and the number of known ports.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.entries.capacity(), self.by_port.len())
    }
}

/// [`Endpoint::source_of`], for callers that have borrowed other parts of the endpoint.
#[inline(always)]
pub(crate) fn source_in(
    cfg: &EpConfig,
    peers: &mut PeerTable,
    avs: &Slab<AvState>,
    peer: PeerId,
) -> u64 {
    if !cfg.source {
        return fi::FI_ADDR_NOTAVAIL;
    }
    match avs.get(cfg.av) {
        Some(av) => address_in(peers, av, peer),
        None => fi::FI_ADDR_NOTAVAIL,
    }
}

/// Returns the `fi_addr_t` of a peer.
#[inline]
fn address_in(peers: &mut PeerTable, av: &AvState, peer: PeerId) -> u64 {
    let p = peers.at_mut(peer);
    if p.fi_addr_version != av.version {
        let found = av.find(p.id);
        // Other processes may insert the address into a shared vector at any time.
        p.fi_addr_version = if found.is_some() || av.is_own() { av.version } else { u64::MAX };
        p.fi_addr = found.unwrap_or(fi::FI_ADDR_NOTAVAIL);
    }
    p.fi_addr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16) -> PortId {
        PortId::new(1, port)
    }

    #[test]
    fn a_peer_keeps_its_number_through_a_sweep() {
        let mut table = PeerTable::new();
        let peers: Vec<PeerId> = (0..4).map(|at| table.insert(port(at))).collect();
        table.sweep(&[false, true, false, false], 0);
        assert_eq!((table.len(), table.met()), (2, 4), "the end of the table is given back");
        assert_eq!(table.at_port(port(1)), Some(peers[1]));
        assert_eq!(table.at_port(port(0)), None);
        let life = table.at(peers[1]).life;
        let (reused, added) = (table.insert(port(9)), table.insert(port(10)));
        assert_eq!((reused, added), (peers[0], peers[2]), "the lowest free number first");
        assert_eq!((table.at(reused).id, table.at(peers[1]).id), (port(9), port(1)));
        assert!(table.at(reused).life > life, "a connection number is not reused");
    }

    #[test]
    fn a_sweep_is_due_for_many_entries_without_a_connection() {
        let mut table = PeerTable::new();
        let last = u16::try_from(KEPT).unwrap();
        for at in 0..last - 1 {
            table.insert(port(at));
        }
        assert!(!table.sweep_is_due(0));
        table.insert(port(last));
        assert!(table.sweep_is_due(0) && !table.sweep_is_due(1));
        table.sweep(&vec![true; KEPT], 0);
        assert!(!table.sweep_is_due(0), "the next sweep waits for twice as many");
    }

    #[test]
    fn an_address_is_known_for_one_version_of_the_vector() {
        let mut table = PeerTable::new();
        let peer = table.insert(port(3));
        assert_eq!(table.at_addr(7, 2), None);
        table.note_addr(2, peer);
        assert_eq!(table.at_addr(7, 2), Some(peer));
        assert_eq!((table.at_addr(7, 1), table.at_addr(7, 3)), (None, None));
        assert_eq!(table.at_addr(8, 2), None, "the vector has changed");
    }

    #[test]
    fn a_peer_with_work_is_listed_once() {
        let mut table = PeerTable::new();
        let (a, b) = (table.insert(port(1)), table.insert(port(2)));
        [a, b, a].into_iter().for_each(|peer| table.mark_busy(peer));
        assert_eq!(table.busy, [a, b]);
        table.unmark_busy(0);
        table.mark_busy(a);
        assert_eq!(table.busy, [b, a]);
        table.unmark_busy(0);
        table.unmark_busy(0);
        [a, b, a].into_iter().for_each(|peer| table.mark_posted(peer, false));
        assert!(table.busy == [a, b] && table.is_idle() && table.has_unreported());
        table.mark_busy(a);
        table.mark_posted(a, false);
        assert!(table.busy == [a, b] && !table.is_idle());
        table.unmark_busy(0);
        assert!(table.is_idle() && table.has_unreported());
        table.unmark_busy(0);
        assert!(table.is_idle() && !table.has_unreported());
    }
}
