// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State that the sharers of one endpoint have in common: the threads of a process, and the
//! processes that inherited the descriptor by fork.
//!
//! Not about a peer, which has none of this memory: so locks may lie in it, and its positions are
//! trusted. Made with the endpoint, before any fork of it, and inherited as shared memory.
//!
//! | offset | content |
//! |---|---|
//! | 0, 64, 128 | locks: control, sending, receiving; last word of each: a sharer died inside |
//! | 256 | state |
//! | 260 | event, on which connect and accept sleep |
//! | 264 | port |
//! | 268 | peer |
//! | 272 | the asynchronous connect |
//! | 276 | 1: the descriptor was made to hang up; 2: it was found closed at that time |
//! | 280 | number of packets that sharers have left each other so far (`fd_handoff`) |
//! | 284 | number of the packet that counts (`fd_handoff`) |
//! | 288 | whether the peer was late once in signalling the descriptor |
//! | 296 | deadline of a connect |
//! | 320, 328 | outgoing stream: bytes published, the peer's position as last seen |
//! | 384 | incoming stream: bytes consumed |

use scif::PortId;
use scif::sys::futex;
use scif::sys::lock::SharedLock;
use scif::sys::mmap::Mapping;
use scif_ring::{SharedU32, SharedU64};

use crate::failure::Result;
use crate::stat::Record;
use crate::state::State;

const BYTES: usize = 4096;

/// State of a connect that returned EINPROGRESS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum Async {
    /// No connect, or its result was collected.
    None = 0,
    Running = 1,
    /// Accepted, and not collected yet.
    Done = 2,
    /// Refused, and not collected yet.
    Refused = 3,
}

/// Shared part of one endpoint.
#[derive(Debug)]
pub(crate) struct Sharer {
    pub(crate) control: SharedLock,
    pub(crate) sending: SharedLock,
    pub(crate) receiving: SharedLock,
    state: SharedU32,
    event: SharedU32,
    port: SharedU32,
    peer: SharedU32,
    asynchronous: SharedU32,
    shut: SharedU32,
    pub(crate) leaving: SharedU32,
    pub(crate) left: SharedU32,
    late: SharedU32,
    deadline: SharedU64,
    pub(crate) sent: SharedU64,
    pub(crate) sent_seen: SharedU64,
    pub(crate) received: SharedU64,
    /// Record of this endpoint in the memfd that other processes may read.
    pub(crate) record: Record,
    _map: Mapping,
}

impl Sharer {
    pub(crate) fn new(record: Record) -> Result<Sharer> {
        let map = Mapping::anonymous(BYTES)?;
        Ok(Sharer {
            control: map.lock(0)?,
            sending: map.lock(64)?,
            receiving: map.lock(128)?,
            state: map.word32(256)?,
            event: map.word32(260)?,
            port: map.word32(264)?,
            peer: map.word32(268)?,
            asynchronous: map.word32(272)?,
            shut: map.word32(276)?,
            leaving: map.word32(280)?,
            left: map.word32(284)?,
            late: map.word32(288)?,
            deadline: map.word64(296)?,
            sent: map.word64(320)?,
            sent_seen: map.word64(328)?,
            received: map.word64(384)?,
            record,
            _map: map,
        })
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State::from_word(self.state.get())
    }

    /// Enters a state and wakes its waiters.
    pub(crate) fn enter(&self, state: State) {
        self.state.set(state as u32);
        self.record.set_state(state as u32);
        self.happened();
    }

    /// Enters a state from another one. Returns whether the endpoint was in that one.
    pub(crate) fn pass(&self, from: State, to: State) -> bool {
        let passed = self.state.compare_exchange(from as u32, to as u32);
        if passed {
            self.record.set_state(to as u32);
            self.happened();
        }
        passed
    }

    /// Reports an event for which connect or accept may wait.
    pub(crate) fn happened(&self) {
        self.event.add(1);
        futex::wake_all(&self.event);
    }

    /// Returns the event counter. To be read before the awaited condition is checked; then `wait`.
    pub(crate) fn event(&self) -> u32 {
        self.event.get()
    }

    /// Sleeps until an event after `event` was read.
    pub(crate) fn wait(
        &self,
        event: u32,
        timeout_ns: Option<u64>,
    ) -> std::result::Result<(), rustix::io::Errno> {
        match futex::wait(&self.event, event, timeout_ns) {
            Err(rustix::io::Errno::AGAIN) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        u16::try_from(self.port.get()).unwrap_or(0)
    }

    pub(crate) fn set_port(&self, port: u16) {
        self.port.set(u32::from(port));
        self.record.set_port(port);
    }

    pub(crate) fn set_peer(&self, peer: PortId) {
        self.peer.set(u32::from(peer.node) << 16 | u32::from(peer.port));
        self.record.set_peer(peer);
    }

    /// Returns the port of the peer to which it is connected or connects.
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(crate) fn peer(&self) -> PortId {
        let word = self.peer.get();
        PortId::new((word >> 16) as u16, word as u16)
    }

    pub(crate) fn asynchronous(&self) -> Async {
        match self.asynchronous.get() {
            1 => Async::Running,
            2 => Async::Done,
            3 => Async::Refused,
            _ => Async::None,
        }
    }

    pub(crate) fn set_asynchronous(&self, to: Async) {
        self.asynchronous.set(to as u32);
    }

    /// Returns the deadline of a connect, on the monotonic clock that all sharers have in common.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.get()
    }

    pub(crate) fn set_deadline(&self, at: u64) {
        self.deadline.set(at);
    }

    /// Whether the peer was late once in signalling the descriptor. Its signal may still come when
    /// the stream is empty.
    pub(crate) fn peer_was_late(&self) -> bool {
        self.late.get() != 0
    }

    pub(crate) fn set_peer_late(&self) {
        self.late.set(1);
    }

    /// Whether the descriptor was made to hang up.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.get() != 0
    }

    /// Whether the descriptor was found closed when it was to hang up.
    pub(crate) fn was_closed(&self) -> bool {
        self.shut.get() == 2
    }

    pub(crate) fn set_shut(&self, closed: bool) {
        self.shut.set(1 + u32::from(closed));
    }
}
