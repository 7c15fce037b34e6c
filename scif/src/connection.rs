// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection: the rings in both directions, the doorbell, keys and memory of the peer, and the
//! liveness of the peer.
//!
//! Not about its establishment (`transport`) nor about the content of records.
//!
//! To send a record, push it to `tx`, then call `notify` once. A polling peer needs nothing more;
//! for an idle one the doorbell is rung, and a sleeping one is sent a packet. Before the peer has
//! accepted no doorbell is known, but its listener is readable. `notify` then checks whether the
//! peer has accepted in the meantime, so that no record is left behind between the two.

use std::sync::Arc;

use scif_ring::spsc::{InlineHandler, PollOutcome};
use scif_ring::{
    BellHandle, Claim, Consumer, HazardPointer, KeyEntry, KeyReader, Mem, Producer, PushError,
    publish_fence,
};

use crate::addr::PortId;
use crate::error::Reason;
use crate::liveness::ProcessProof;
use crate::mapped::{self, MapPolicy, MappedKey, MappedKeys, Unmapped};
use crate::memory::{Access, PeerMemory, RemoteMem};
use crate::outside_body::{LongSend, OutsideBody};
use crate::peer_windows::PeerWindows;
use crate::remote_reads::RemoteReads;
use crate::segment::{Side, Views};
use crate::sys::mmap::{Mapping, OutOfRange};
use crate::sys::pages::PAGE;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, Link, LinkUpdate, Opened, Remote};

/// Value of a mark that stands for all advertised memory of the connection instead of a key slot.
const ANNOUNCED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Opened, not yet accepted.
    Starting,
    Up,
    /// Ended; records in the ring can still be read.
    Closed,
}

/// Doorbell of the peer, and the number of our bit.
#[derive(Debug)]
struct PeerBell {
    handle: BellHandle,
    bit: usize,
    _map: Arc<Mapping>,
}

/// Key table of the peer.
#[derive(Debug)]
struct PeerKeys {
    reader: KeyReader,
    _map: Arc<Mapping>,
}

/// Memory of a peer that is mapped here.
#[derive(Debug, Default)]
struct PeerMaps {
    /// The peer's arena, once it was requested and has arrived.
    arena: Option<Mapping>,
    shared: MappedKeys,
}

/// One connection of an endpoint. Must not be swapped with one of another endpoint.
#[derive(Debug)]
pub struct Connection {
    views: Views,
    bell: Option<PeerBell>,
    /// Whether the peer executes `membarrier` before it sleeps, see `publish_fence`.
    asymmetric: bool,
    state: State,
    peer: PortId,
    initiated: bool,
    keys: Option<PeerKeys>,
    memory: PeerMemory,
    /// Number of accesses to a window before the arena arrived.
    missed: u32,
    /// Memory of the peer that is mapped, once there was any.
    maps: Option<Box<PeerMaps>>,
    liveness: ProcessProof,
    /// Time of [`Connection::leave`].
    left_ns: u64,
    link: Box<dyn Link>,
    /// Change found by `notify` that the endpoint has not reported yet.
    unreported: Option<Signalled>,
}

/// A change of state, as the endpoint reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Signalled {
    Woken,
    Connected,
    Closed(Reason),
}

impl Connection {
    pub(crate) fn new(opened: Opened) -> Result<Connection, OutOfRange> {
        let Opened { peer, side, segment, windows, link, liveness, remote } = opened;
        let mut connection = Connection {
            views: Views::over(segment, windows, side)?,
            bell: None,
            asymmetric: false,
            state: State::Starting,
            peer,
            initiated: side == Side::Opener,
            keys: None,
            memory: PeerMemory::none(),
            missed: 0,
            maps: None,
            liveness,
            left_ns: u64::MAX,
            link,
            unreported: None,
        };
        if let Some(remote) = remote {
            connection.come_up(remote)?;
        }
        Ok(connection)
    }

    fn come_up(&mut self, remote: Remote) -> Result<(), OutOfRange> {
        let Remote { bell, bell_bit, keys, memory, asymmetric } = remote;
        self.bell =
            Some(PeerBell { handle: bell.bell_handle()?, bit: bell_bit as usize, _map: bell });
        self.keys = match keys {
            Some(map) => Some(PeerKeys { reader: map.key_reader()?, _map: map }),
            None => None,
        };
        self.memory = memory;
        self.asymmetric = asymmetric;
        self.state = State::Up;
        Ok(())
    }

    /// Returns the port of the peer, as verified by the transport.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PortId {
        self.peer
    }

    /// Returns the process id of the peer; 0 if it is not visible in this pid namespace.
    #[must_use]
    pub fn peer_pid(&self) -> i32 {
        self.liveness.pid()
    }

    /// Returns the unique identity of the peer process: process id and start time. Zeros where it
    /// is not visible.
    #[must_use]
    pub fn peer_process(&self) -> (i32, u64) {
        (self.liveness.pid(), self.liveness.start().unwrap_or(0))
    }

    /// Whether both sides have exchanged keys and memory. Records can be pushed earlier.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether the connection is or was fully established: if not, the peer has read no record.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.bell.is_some()
    }

    /// Whether the peer has closed the connection or died. Records that it published can still be
    /// read.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether this side opened it.
    #[inline]
    #[must_use]
    pub fn initiated(&self) -> bool {
        self.initiated
    }

    /// Whether the peer itself consumes the records that the ring counts as consumed.
    #[inline]
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.link.is_direct()
    }

    /// Whether a record is to be announced by the doorbell of this side, although no one sleeps.
    pub(crate) fn needs_bell(&self) -> bool {
        // The records of a relay are in the ring before it reports them, and each poll reads an
        // active ring.
        self.is_direct() || self.views.rx.is_idle()
    }

    /// Whether the peer itself counts the records that it has consumed. Otherwise a relay counts
    /// them, and RMA beside the ring may overtake pushed records.
    #[inline]
    #[must_use]
    pub fn is_consumed_by_peer(&self) -> bool {
        self.link.is_consumed_by_peer()
    }

    /// Whether the peer executes `membarrier` before it sleeps, so that our stores need no fence of
    /// their own.
    #[inline]
    #[must_use]
    pub fn asymmetric(&self) -> bool {
        self.asymmetric
    }

    /// Returns the ring to the peer. Must not be swapped with another connection's.
    #[inline]
    pub fn tx(&mut self) -> &mut Producer {
        &mut self.views.tx
    }

    /// Returns the ring from the peer. Must not be swapped with another connection's.
    #[inline]
    pub fn rx(&mut self) -> &mut Consumer {
        &mut self.views.rx
    }

    /// Returns the number of bytes of all records sent: those of whole cache lines of the ring, and
    /// of bodies past it.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.views.tx.bytes() + self.link.outside_bytes().sent
    }

    /// Returns the number of bytes of all records received, counted as in
    /// [`Connection::bytes_sent`].
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.views.rx.bytes() + self.link.outside_bytes().received
    }

    /// Publishes a record like [`Producer::push_words`]; in the reply line, if it replies to a
    /// record just received.
    ///
    /// # Errors
    /// Errors of [`Producer::push_words`].
    #[inline(always)]
    pub fn push_words(
        &mut self,
        kind: u8,
        words: [u64; 2],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let Views { tx, rx, .. } = &mut self.views;
        if tx.push_reply(kind, words, count, payload, rx.replies_taken()) {
            rx.start_poll_delay();
            return Ok(());
        }
        tx.push_words(kind, words, count, payload)
    }

    /// Publishes a record like [`Producer::push_body`].
    ///
    /// # Errors
    ///
    /// Errors of [`Producer::push_body`].
    #[inline(always)]
    pub fn push_body(
        &mut self,
        kind: u8,
        words: [u64; 2],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let Views { tx, rx, .. } = &mut self.views;
        let is_reply = tx.may_reply();
        tx.push_body(kind, words, count, payload)?;
        if is_reply {
            rx.start_poll_delay();
        }
        Ok(())
    }

    /// Sends a record past the ring, where the transport can, with a body of up to `LONG_BODY_MAX`
    /// bytes. `append` appends the body of `len` bytes.
    pub fn send_long(
        &mut self,
        kind: u8,
        head: &[u8],
        len: usize,
        append: &mut dyn FnMut(&mut Vec<u8>),
    ) -> LongSend {
        self.link.send_long((kind, head), len, append)
    }

    /// Returns the body of the next record of the ring, which is of kind `BODY_OUTSIDE`.
    pub fn take_body(&mut self) -> Option<OutsideBody> {
        self.link.take_body(self.views.rx.consumed())
    }

    /// Takes back a body that was handled, for the memory of later ones.
    pub fn give_back(&mut self, body: OutsideBody) {
        self.link.give_back(body);
    }

    /// Takes a record like [`Consumer::poll_inline`].
    #[inline(always)]
    pub fn poll_inline(&mut self, handler: impl InlineHandler) -> PollOutcome {
        let Views { tx, rx, .. } = &mut self.views;
        let outcome = rx.poll_inline(handler);
        if outcome == PollOutcome::Consumed {
            tx.expect_reply(rx.take_peer_ack());
        }
        outcome
    }

    /// Takes a record like [`Consumer::poll_body`].
    #[inline(always)]
    pub fn poll_body(&mut self, handler: impl InlineHandler) -> PollOutcome {
        let Views { tx, rx, .. } = &mut self.views;
        let outcome = rx.poll_body(handler);
        if outcome == PollOutcome::Consumed {
            tx.expect_reply(None);
        }
        outcome
    }

    /// Makes the peer poll its ring. Called after one or more pushes.
    #[inline(always)]
    pub fn notify(&mut self) {
        publish_fence(self.asymmetric);
        let idle = self.views.tx.consumer_idle();
        match &self.bell {
            Some(bell) if !idle && !bell.handle.sleeping() => {}
            _ => self.wake_peer(idle),
        }
    }

    /// Whether the peer neither sleeps nor has its ring idle, so that it may be polling.
    #[inline]
    #[must_use]
    pub fn is_polled(&self) -> bool {
        !self.views.tx.consumer_idle() && self.bell.as_ref().is_some_and(|b| !b.handle.sleeping())
    }

    /// Returns the time of a recent poll of the peer, in nanoseconds of its monotonic clock; 0 for
    /// none.
    #[inline]
    #[must_use]
    pub fn polled_ns(&self) -> u64 {
        self.bell.as_ref().map_or(0, |bell| bell.handle.polled_ns())
    }

    /// Whether the peer started one-sided operations between its last two published polls.
    #[inline]
    #[must_use]
    pub fn is_initiating(&self) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.handle.is_initiating())
    }

    #[cold]
    fn wake_peer(&mut self, mut idle: bool) {
        if self.bell.is_none() {
            // The peer reads the ring after it has sent its accept. If the accept has not arrived
            // yet, the peer will find all records that were pushed before this check. If it has
            // arrived, the doorbell is known from now on.
            self.look_for_answer();
            publish_fence(self.asymmetric);
            idle = self.views.tx.consumer_idle();
        }
        let Some(bell) = &self.bell else { return };
        if idle {
            bell.handle.ring(bell.bit);
        }
        if bell.handle.sleeping() || idle && self.link.rings_by_wake() {
            self.link.wake();
        }
    }

    /// Takes signals until the peer's accept is among them.
    fn look_for_answer(&mut self) {
        while self.state == State::Starting && self.unreported.is_none() {
            match self.next_event() {
                None => return,
                Some(Signalled::Woken) => {}
                told => self.unreported = told,
            }
        }
    }

    /// Returns the next change for the endpoint to report.
    pub(crate) fn next_change(&mut self) -> Option<Signalled> {
        match self.unreported.take() {
            Some(told) => Some(told),
            None => self.next_event(),
        }
    }

    fn next_event(&mut self) -> Option<Signalled> {
        if self.state == State::Closed {
            return None;
        }
        Some(match self.link.next_event()? {
            LinkUpdate::Wake => Signalled::Woken,
            LinkUpdate::Up(remote) => match self.come_up(*remote) {
                Ok(()) => Signalled::Connected,
                Err(OutOfRange) => {
                    self.close(CloseKind::Reset);
                    Signalled::Closed(Reason::Corrupt)
                }
            },
            LinkUpdate::Shown(map) => {
                // Repeated requests before the first arrival bring several copies of one arena.
                self.maps.get_or_insert_default().arena.get_or_insert(map);
                Signalled::Woken
            }
            LinkUpdate::Closed(reason) => {
                self.state = State::Closed;
                Signalled::Closed(reason)
            }
        })
    }

    /// Whether the endpoint must poll for changes although nothing arrives.
    pub(crate) fn needs_poll(&self) -> bool {
        self.unreported.is_some() || self.state == State::Starting || self.link.unsent()
    }

    /// Whether `next_change` can return a change without an arrival.
    pub(crate) fn overdue(&self) -> bool {
        self.unreported.is_some() || self.link.unsent()
    }

    pub(crate) fn close(&mut self, how: CloseKind) {
        self.link.close(how);
        self.state = State::Closed;
    }

    /// Returns the key table of the peer's domain; `None` until the connection is up, or if none is
    /// exported.
    #[inline]
    #[must_use]
    pub fn keys(&self) -> Option<&KeyReader> {
        self.keys.as_ref().map(|keys| &keys.reader)
    }

    /// Returns the windows of the peer's keys; `None` until the connection is up, or where the
    /// transport has none.
    #[inline]
    pub fn windows(&mut self) -> Option<&mut dyn PeerWindows> {
        if self.state == State::Up { self.link.windows() } else { None }
    }

    /// Returns the access to memory of a peer that is reached over a network.
    #[inline]
    pub fn remote_reads(&mut self) -> Option<&mut dyn RemoteReads> {
        self.link.remote_reads()
    }

    /// Returns our mark: "RMA on slot n of the peer's keys is in progress".
    #[inline]
    #[must_use]
    pub fn my_mark(&self) -> &HazardPointer {
        &self.views.my_mark
    }

    /// Returns the peer's mark: the slot of our keys on which the peer executes RMA.
    #[inline]
    #[must_use]
    pub fn peer_mark(&self) -> &HazardPointer {
        &self.views.peer_mark
    }

    /// Announces a copy from memory that the peer has advertised, until [`Connection::exit`]. The
    /// peer waits for that before it reuses the memory. Returns false if the peer has left or is
    /// dead: no copy may start.
    #[inline]
    #[must_use]
    pub fn enter(&mut self) -> bool {
        self.views.my_mark.set(ANNOUNCED);
        let there = self.views.peer_leave.get().is_none() && self.liveness.alive_recently();
        if !there {
            self.exit();
        }
        there
    }

    /// Ends the copy announced by [`Connection::enter`].
    #[inline]
    pub fn exit(&self) {
        self.views.my_mark.clear();
    }

    /// Revokes everything advertised over this connection: the peer starts no further copy.
    /// [`Connection::peer_is_inside`] reports a copy still in progress.
    pub fn leave(&mut self) {
        self.views.my_leave.set(ANNOUNCED);
        self.left_ns = self.left_ns.min(now_ns());
    }

    /// Whether the peer copies advertised memory. A faulty peer may claim this without end.
    #[must_use]
    pub fn peer_is_inside(&self) -> bool {
        self.views.peer_mark.get() == Some(ANNOUNCED)
    }

    /// Returns the claim block for the cooperative copy of a message that we send. Blocks are
    /// numbered modulo `CLAIM_BLOCKS`; a view must not outlive the connection.
    #[inline]
    #[must_use]
    pub fn tx_claim(&self, block: usize) -> Claim {
        self.views.tx_claims.get(block)
    }

    /// Returns the claim block for a message that the peer sends; as [`Connection::tx_claim`].
    #[inline]
    #[must_use]
    pub fn rx_claim(&self, block: usize) -> Claim {
        self.views.rx_claims.get(block)
    }

    /// Returns the peer's memory.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &PeerMemory {
        &self.memory
    }

    /// Returns a range of the memory behind a key as local memory, if its pages lie in a mapped
    /// window.
    #[inline(always)]
    pub fn window(&mut self, entry: &KeyEntry, remote: &RemoteMem) -> Option<Mem> {
        if entry.window == 0 {
            return None;
        }
        let Some(arena) = self.maps.as_ref().and_then(|maps| maps.arena.as_ref()) else {
            self.miss();
            return None;
        };
        let within = remote.addr.checked_sub(entry.base.checked_next_multiple_of(PAGE as u64)?)?;
        if within.checked_add(remote.len)? > entry.window_len {
            return None;
        }
        let at = usize::try_from(entry.window.checked_add(within)?).ok()?;
        arena.bytes(at, remote.len_bytes()).ok()
    }

    /// Returns a range of the memory behind a key as local memory, if it is mapped here: as moved
    /// pages ([`Connection::window`]), or as shared memory ([`Connection::map_key`]).
    #[inline(always)]
    pub fn mapped(
        &mut self,
        place: (u32, u64),
        entry: &KeyEntry,
        remote: &RemoteMem,
    ) -> Option<Mem> {
        if entry.window != 0 {
            return self.window(entry, remote);
        }
        self.maps.as_ref()?.shared.get(place, entry, remote)
    }

    /// Returns a key whose shared memory was mapped here. It may be closed since.
    #[inline(always)]
    #[must_use]
    pub fn mapped_key(&self, key: u64) -> Option<&MappedKey> {
        self.maps.as_ref()?.shared.find(key)
    }

    /// Whether the shared memory behind a key of the key table is mapped here.
    #[inline]
    #[must_use]
    pub fn is_mapped(&self, key: u64, place: (u32, u64)) -> bool {
        self.maps.as_ref().is_some_and(|maps| maps.shared.has(key, place))
    }

    /// Maps the memory behind a key of the peer, if it is shared memory of a kind that `policy`
    /// permits. `write`: the access right that lets peers write. Returns its number of bytes.
    ///
    /// # Errors
    /// An [`Unmapped`]; the memory is then accessed as before.
    pub fn map_key(&mut self, key: u64, write: u64, policy: MapPolicy) -> Result<usize, Unmapped> {
        let found = self.keys().and_then(|keys| keys.find(key));
        let (slot, generation, entry) = found.ok_or(Unmapped::NotShared)?;
        if self.is_mapped(key, (slot, generation)) {
            return Ok(0);
        }
        if self.memory.access() != Access::ProcessVm || policy == MapPolicy::Off {
            return Err(Unmapped::Denied);
        }
        let region = RemoteMem { addr: entry.base, len: entry.len };
        let is_written = entry.access & write != 0;
        let map = mapped::find(self.liveness.pid(), &region, is_written)?.map(policy)?;
        // Until now the process id belonged to the peer, so all that was read describes the peer.
        if !self.liveness.alive_now() {
            return Err(Unmapped::Denied);
        }
        let maps = self.maps.get_or_insert_default();
        maps.shared.insert((slot, generation), entry, map);
        Ok(region.len_bytes())
    }

    /// Unmaps shared memory whose key was closed. Returns whether any other is left.
    pub fn unmap_closed(&mut self) -> bool {
        let (Some(maps), Some(keys)) = (&mut self.maps, &self.keys) else {
            return false;
        };
        maps.shared.retain(|slot, generation| keys.reader.revalidate(slot, generation))
    }

    /// Requests the arena at the first access to a window, and again at growing intervals.
    #[cold]
    fn miss(&mut self) {
        self.missed = self.missed.wrapping_add(1);
        if self.missed.is_power_of_two() {
            self.link.request_arena();
        }
    }

    /// Returns the peer's memory, in order to deny access to it.
    pub fn memory_mut(&mut self) -> &mut PeerMemory {
        &mut self.memory
    }

    /// Verifies that the peer lives, where the transport does not notice its death. To be called
    /// at intervals while the owner waits for the peer. The end of the connection reports a death.
    pub fn probe(&mut self) {
        if self.state == State::Up {
            self.link.probe();
        }
    }

    /// Whether the peer's process still ran at most a millisecond ago. `true` also where that is
    /// not visible; the socket is then the only proof.
    pub fn alive(&mut self) -> bool {
        self.liveness.alive()
    }

    /// Returns whether the peer may still be in a copy: its process runs. If the process cannot be
    /// seen, the answer is false from 50 ms after [`Connection::leave`] on.
    pub fn may_be_copying(&mut self) -> bool {
        self.liveness.outlasts(self.left_ns)
    }

    /// Variant of [`Connection::alive`] with a result at most 50 ms old: sufficient for an access
    /// to the peer's memory by process id.
    #[inline]
    pub fn alive_recently(&mut self) -> bool {
        self.liveness.alive_recently()
    }

    /// Variant of [`Connection::alive`] with a check at this moment.
    pub fn alive_now(&mut self) -> bool {
        self.liveness.alive_now()
    }
}
