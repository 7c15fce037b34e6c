// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection: the rings in both directions, the bell of the peer, its keys, its memory, and its life.
//!
//! Not about how it was made (`transport`) nor about what is sent.
//!
//! The way of a record: push it to `tx`, then `notify` once. A peer that polls needs nothing more; one that is
//! idle gets its bell rung, one that sleeps a packet. Before the peer accepted there is no bell, but its
//! listener is readable; and `notify` looks whether it has accepted since, so that no record is left behind
//! between the two.

use std::sync::Arc;

use scif_ring::spsc::{LineTaker, Look};
use scif_ring::{
    BellHandle, Claim, Consumer, KeyEntry, KeyReader, Mark, Mem, Producer, PushError, publish_fence,
};

use crate::addr::PortId;
use crate::error::Reason;
use crate::life::Life;
use crate::memory::{PeerMemory, RemoteMem};
use crate::segment::{Side, Views};
use crate::sys::mmap::{Mapping, OutOfRange};
use crate::sys::pages::PAGE;
use crate::transport::{Farewell, Link, Opened, Remote, Signal};

/// In a mark: not a slot of keys, but all that was announced over the connection.
const ANNOUNCED: u32 = u32::MAX;

/// A connection of an endpoint. Never names a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnId {
    /// Small and dense: fit to index the caller's own table, checked against the whole id.
    pub index: u32,
    /// Counts the uses of the index.
    pub generation: u32,
}

impl ConnId {
    /// The index, as one.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Opened, not accepted yet.
    Starting,
    Up,
    /// What is in the ring can still be read.
    Closed,
}

/// The bell of the peer, and which bit of it is ours.
#[derive(Debug)]
struct PeerBell {
    handle: BellHandle,
    bit: usize,
    _map: Arc<Mapping>,
}

/// The keys of the peer.
#[derive(Debug)]
struct PeerKeys {
    reader: KeyReader,
    _map: Arc<Mapping>,
}

/// One connection of an endpoint.
#[derive(Debug)]
pub struct Connection {
    views: Views,
    bell: Option<PeerBell>,
    /// The peer's going to sleep orders our stores, see `publish_fence`.
    asymmetric: bool,
    state: State,
    peer: PortId,
    initiated: bool,
    keys: Option<PeerKeys>,
    memory: PeerMemory,
    /// What the peer's windows lie in, once it was asked for and came.
    arena: Option<Mapping>,
    /// How often a window was met before it came.
    missed: u32,
    life: Life,
    link: Box<dyn Link>,
    /// What `notify` learned and the endpoint has yet to report.
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
        let Opened {
            peer,
            side,
            segment,
            link,
            life,
            remote,
        } = opened;
        let mut connection = Connection {
            views: Views::new(segment, side)?,
            bell: None,
            asymmetric: false,
            state: State::Starting,
            peer,
            initiated: side == Side::Opener,
            keys: None,
            memory: PeerMemory::none(),
            arena: None,
            missed: 0,
            life,
            link,
            unreported: None,
        };
        if let Some(remote) = remote {
            connection.come_up(remote)?;
        }
        Ok(connection)
    }

    fn come_up(&mut self, remote: Remote) -> Result<(), OutOfRange> {
        let Remote {
            bell,
            bell_bit,
            keys,
            memory,
            asymmetric,
        } = remote;
        self.bell = Some(PeerBell {
            handle: bell.bell_handle()?,
            bit: bell_bit as usize,
            _map: bell,
        });
        self.keys = match keys {
            Some(map) => Some(PeerKeys {
                reader: map.key_reader()?,
                _map: map,
            }),
            None => None,
        };
        self.memory = memory;
        self.asymmetric = asymmetric;
        self.state = State::Up;
        Ok(())
    }

    /// The port at the other end, as the transport vouches for it.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PortId {
        self.peer
    }

    /// The process at the other end; 0 if it cannot be seen from here.
    #[must_use]
    pub fn peer_pid(&self) -> i32 {
        self.life.pid()
    }

    /// The process at the other end for ever: its pid and when it started. Zeros where that cannot be seen.
    #[must_use]
    pub fn peer_process(&self) -> (i32, u64) {
        (self.life.pid(), self.life.start().unwrap_or(0))
    }

    /// Whether both sides know each other: keys and memory of the peer can be used. Records can be pushed before.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether both sides have known each other, now or before the end: if not, nobody has read what was pushed.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.bell.is_some()
    }

    /// Whether the peer has ended it or is gone. Records it has published can still be read.
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

    /// Whether what the ring counts as consumed is what the peer itself has taken.
    #[inline]
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.link.is_direct()
    }

    /// Whether the peer runs `membarrier` before it sleeps, so that our stores need no fence of their own.
    #[inline]
    #[must_use]
    pub fn asymmetric(&self) -> bool {
        self.asymmetric
    }

    /// Our ring to the peer. Not to be swapped for another connection's.
    #[inline]
    pub fn tx(&mut self) -> &mut Producer {
        &mut self.views.tx
    }

    /// The peer's ring to us. Not to be swapped for another connection's.
    #[inline]
    pub fn rx(&mut self) -> &mut Consumer {
        &mut self.views.rx
    }

    /// Publishes a record as [`Producer::push_words`] does; in the line of answers, where it answers one that has just come.
    ///
    /// # Errors
    ///
    /// Those of it.
    #[inline(always)]
    pub fn push_words(
        &mut self,
        kind: u8,
        words: [u64; 2],
        count: usize,
        payload: &Mem,
    ) -> Result<(), PushError> {
        let Views { tx, rx, .. } = &mut self.views;
        if tx.answer_words(kind, words, count, payload, rx.answers_taken()) {
            rx.answered();
            return Ok(());
        }
        tx.push_words(kind, words, count, payload)
    }

    /// Takes a record as [`Consumer::take_line`] does.
    #[inline(always)]
    pub fn take_line(&mut self, taker: impl LineTaker) -> Look {
        let Views { tx, rx, .. } = &mut self.views;
        let look = rx.take_line(taker);
        if look == Look::Taken {
            tx.will_answer(rx.said());
        }
        look
    }

    /// After one or more pushes: sees to it that the peer looks.
    #[inline]
    pub fn notify(&mut self) {
        publish_fence(self.asymmetric);
        let idle = self.views.tx.consumer_idle();
        match &self.bell {
            Some(bell) if !idle && !bell.handle.sleeping() => {}
            _ => self.rouse(idle),
        }
    }

    #[cold]
    fn rouse(&mut self, mut idle: bool) {
        if self.bell.is_none() {
            // The peer reads what is in the ring after it has answered us. So if there is no answer yet, it will
            // find what was pushed before this look; if there is, the bell is known from now on.
            self.look_for_answer();
            publish_fence(self.asymmetric);
            idle = self.views.tx.consumer_idle();
        }
        let Some(bell) = &self.bell else { return };
        if idle {
            bell.handle.ring(bell.bit);
        }
        if bell.handle.sleeping() {
            self.link.wake();
        }
    }

    /// Takes signals until the peer's answer is among them.
    fn look_for_answer(&mut self) {
        while self.state == State::Starting && self.unreported.is_none() {
            match self.pump() {
                None => return,
                Some(Signalled::Woken) => {}
                told => self.unreported = told,
            }
        }
    }

    /// The next change that the endpoint reports.
    pub(crate) fn next_change(&mut self) -> Option<Signalled> {
        match self.unreported.take() {
            Some(told) => Some(told),
            None => self.pump(),
        }
    }

    fn pump(&mut self) -> Option<Signalled> {
        if self.state == State::Closed {
            return None;
        }
        Some(match self.link.pump()? {
            Signal::Wake => Signalled::Woken,
            Signal::Up(remote) => match self.come_up(*remote) {
                Ok(()) => Signalled::Connected,
                Err(OutOfRange) => {
                    self.close(Farewell::Reset);
                    Signalled::Closed(Reason::Corrupt)
                }
            },
            Signal::Shown(map) => {
                // More than one came if it was asked for again before it came: they are the same.
                self.arena.get_or_insert(map);
                Signalled::Woken
            }
            Signal::Closed(reason) => {
                self.state = State::Closed;
                Signalled::Closed(reason)
            }
        })
    }

    /// Whether the endpoint must ask for changes though nothing arrives.
    pub(crate) fn restless(&self) -> bool {
        self.unreported.is_some() || self.state == State::Starting || self.link.unsent()
    }

    /// Whether `next_change` has anything to do without an arrival.
    pub(crate) fn overdue(&self) -> bool {
        self.unreported.is_some() || self.link.unsent()
    }

    pub(crate) fn close(&mut self, how: Farewell) {
        self.link.close(how);
        self.state = State::Closed;
    }

    /// The keys the peer's domain shows; `None` until it is up, or if it shows none.
    #[inline]
    #[must_use]
    pub fn keys(&self) -> Option<&KeyReader> {
        self.keys.as_ref().map(|keys| &keys.reader)
    }

    /// Says "we are in RMA on slot n of the peer's keys".
    #[inline]
    #[must_use]
    pub fn my_mark(&self) -> &Mark {
        &self.views.my_mark
    }

    /// The slot of our keys on which the peer is in RMA.
    #[inline]
    #[must_use]
    pub fn peer_mark(&self) -> &Mark {
        &self.views.peer_mark
    }

    /// Says that we copy from memory that the peer has announced, until [`Connection::exit`]: it waits for that before its
    /// memory is something else. False when it has left, or is dead: there is nothing to copy.
    #[inline]
    #[must_use]
    pub fn enter(&mut self) -> bool {
        self.views.my_mark.set(ANNOUNCED);
        let there = self.views.peer_leave.get().is_none() && self.life.alive_recently();
        if !there {
            self.exit();
        }
        there
    }

    /// We copy no more.
    #[inline]
    pub fn exit(&self) {
        self.views.my_mark.clear();
    }

    /// From now on the peer copies nothing of what was announced over this connection; what it is copying right now ends when
    /// [`Connection::peer_is_inside`] says so.
    pub fn leave(&self) {
        self.views.my_leave.set(ANNOUNCED);
    }

    /// Whether the peer is copying what was announced. It may say so for ever.
    #[must_use]
    pub fn peer_is_inside(&self) -> bool {
        self.views.peer_mark.get() == Some(ANNOUNCED)
    }

    /// The block for sharing the copying of a message we send. Blocks are numbered modulo `CLAIM_BLOCKS`; a view
    /// is not to be kept longer than the connection.
    #[inline]
    #[must_use]
    pub fn tx_claim(&self, block: usize) -> Claim {
        self.views.tx_claims.get(block)
    }

    /// The block for sharing the copying of a message the peer sends; as [`Connection::tx_claim`].
    #[inline]
    #[must_use]
    pub fn rx_claim(&self, block: usize) -> Claim {
        self.views.rx_claims.get(block)
    }

    /// The peer's memory.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &PeerMemory {
        &self.memory
    }

    /// A range of the memory behind a key as memory of ours, where its pages lie in a window that is mapped here.
    #[inline(always)]
    pub fn window(&mut self, entry: &KeyEntry, remote: &RemoteMem) -> Option<Mem> {
        if entry.window == 0 {
            return None;
        }
        let Some(arena) = &self.arena else {
            self.miss();
            return None;
        };
        let within = remote
            .addr
            .checked_sub(entry.base.checked_next_multiple_of(PAGE as u64)?)?;
        if within.checked_add(remote.len)? > entry.window_len {
            return None;
        }
        let at = usize::try_from(entry.window.checked_add(within)?).ok()?;
        arena.bytes(at, remote.len_bytes()).ok()
    }

    /// Asks for the arena when the first window is met, and now and then again.
    #[cold]
    fn miss(&mut self) {
        self.missed = self.missed.wrapping_add(1);
        if self.missed.is_power_of_two() {
            self.link.ask();
        }
    }

    /// The peer's memory, to give it up.
    pub fn memory_mut(&mut self) -> &mut PeerMemory {
        &mut self.memory
    }

    /// Whether the peer's process still runs, as of at most a millisecond ago. `true` also where that cannot be
    /// seen; the socket then is the only proof.
    pub fn alive(&mut self) -> bool {
        self.life.alive()
    }

    /// The same as of some hundredths of a second ago: enough for a look at the peer's memory, which is found by its number.
    #[inline]
    pub fn alive_recently(&mut self) -> bool {
        self.life.alive_recently()
    }

    /// The same as of this call.
    pub fn alive_now(&mut self) -> bool {
        self.life.alive_now()
    }
}
