// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The trait between the engine and its transports: sharing of memory, binding of ports, and the
//! control path of a connection.
//!
//! Not about data in the rings, which needs no transport.

pub(crate) mod kernel;
pub(crate) mod local;
pub(crate) mod net;
pub(crate) mod scif;
pub(crate) mod sisci;
pub(crate) mod soft;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::addr::PortId;
use crate::carried::CarriedCounts;
use crate::error::{Error, Reason, Result};
use crate::export::{Shared, Writers};
use crate::keys::SharedKeys;
use crate::liveness::ProcessProof;
use crate::memory::PeerMemory;
use crate::outside_body::{LongSend, OutsideBody, OutsideBytes};
use crate::peer_windows::{PeerWindows, WindowCounts};
use crate::remote_reads::RemoteReads;
use crate::segment::{Side, Windows};
use crate::slab::ConnId;
use crate::sys::mmap::Mapping;

/// Objects that a bound port exports to connecting peers.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) bell: Shared,
    pub(crate) keys: Option<Arc<SharedKeys>>,
}

/// Function that fills a new shared table before others see it.
pub(crate) type Init<'a> = &'a dyn Fn(&Mapping) -> Result<()>;

/// Mapped shared table of one holder. The name lasts as long as any holder.
pub(crate) trait Hold: Send + Sync {
    fn map(&self) -> &Mapping;

    /// Blocks until no other holder has the lock, then takes it until `unlock`.
    fn lock(&self) -> Result<()>;

    fn unlock(&self);
}

debug_by_name!(Hold);

/// A transport of connections.
pub(crate) trait Transport: Send + Sync {
    /// Maps the shared table `name` of `len` bytes. With `make` it is writable, and created by
    /// `make` if it does not exist; without, it is read-only.
    fn shared_table(
        self: Arc<Self>,
        name: &str,
        len: usize,
        make: Option<Init<'_>>,
    ) -> Result<Box<dyn Hold>> {
        let _ = (name, len, make);
        Err(Error::Os { call: "shared tables of this transport", errno: Errno::OPNOTSUPP })
    }

    /// Creates zeroed memory that can be exported to peers.
    fn share(&self, name: &'static str, len: usize, writers: Writers) -> Result<Shared>;

    /// Binds a port and listens; port 0 for a dynamic one.
    fn bind(self: Arc<Self>, port: u16, shown: Shown) -> Result<Box<dyn Port>>;

    /// Returns a hash of this host and of everything else that decides which processes reach each
    /// other by number.
    fn host_hash(&self) -> u32;

    /// Returns the settings that decide which processes this one can meet, for a line of the log.
    fn settings(&self) -> String;
}

debug_by_name!(Transport);

/// A bound, listening port. The endpoint assigns the ids of its connections.
pub(crate) trait Port: Send {
    fn id(&self) -> PortId;

    /// Opens a connection with the given `id`.
    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened>;

    /// Looks for connections to accept, and collects the connections on which data has arrived.
    /// Never blocks.
    fn poll(&mut self, ready: &mut Vec<ConnId>);

    /// Looks at the network of the port alone, as `poll` does. Connections that have got records
    /// and have no other change are collected in `woken`, and their links do not report them.
    /// Returns whether connections over it wait for `accept`.
    fn poll_network(&mut self, ready: &mut Vec<ConnId>, woken: &mut Vec<ConnId>) -> bool {
        let _ = (ready, woken);
        false
    }

    /// Accepts the next connection that `poll` found, with the given `id`; `None` if no more waits.
    /// A request that cannot be accepted is refused and skipped.
    fn accept(&mut self, id: ConnId) -> Option<Opened>;

    /// Returns the process that listens at `port` now; 0 if its id is not visible.
    fn listener(&mut self, port: PortId) -> Option<i32>;

    /// Returns hints for a log line about a missing listener at `port`.
    fn whereabouts(&self, port: PortId) -> String;

    /// Returns a descriptor that is readable when `poll` would find something.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Publishes to all peers that do not share our doorbell whether we sleep.
    fn set_sleeping(&mut self, sleeping: bool) {
        let _ = sleeping;
    }

    /// Whether connecting peers wait for a descriptor, so that `poll` must be repeated although
    /// nothing arrives.
    fn is_parked(&self) -> bool {
        false
    }

    /// Whether a message of another host is expected soon after `now`, so that `poll` should be
    /// called more often. The descriptor reports it as well.
    fn is_expecting(&self, now: u64) -> bool {
        let _ = now;
        false
    }

    /// Sends records that wait for the network, or for a message of their peer. Changes are left to
    /// the next `poll`.
    fn relay(&mut self) {}

    /// Whether records wait as for `relay` at `now`, and may soon be sent.
    fn is_sending(&self, now: u64) -> bool {
        let _ = now;
        false
    }

    /// Returns the provider of the network of the port; `None` without a network.
    fn network_provider(&self) -> Option<&str> {
        None
    }

    /// Returns the numbers of operations with peers on other hosts so far; `None` without a
    /// network.
    fn carried(&self) -> Option<CarriedCounts> {
        None
    }

    /// Whether the descriptor reports all that happens on a network from now on. If not, `poll` is
    /// soon due.
    fn may_sleep(&mut self) -> bool {
        true
    }

    /// Ends the exposure of memory by [`RemoteReads::expose`].
    fn revoke(&mut self, key: u64) {
        let _ = key;
    }

    /// Returns the numbers of windows on the memory of our keys.
    fn window_counts(&self) -> WindowCounts {
        WindowCounts::default()
    }

    /// Stops listening. Unless `how` is `Abandon`, peers that were not accepted are refused.
    fn close(&mut self, how: CloseKind);
}

debug_by_name!(Port);

/// Initial state of a connection on either side.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) peer: PortId,
    pub(crate) side: Side,
    pub(crate) segment: Arc<Mapping>,
    /// Windows with the rings, if these do not lie in the segment.
    pub(crate) windows: Option<Windows>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) liveness: ProcessProof,
    /// Exports of the peer; the opener receives them later.
    pub(crate) remote: Option<Remote>,
}

/// Exports of a peer.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) bell: Arc<Mapping>,
    /// Bit of that doorbell for this connection.
    pub(crate) bell_bit: u32,
    pub(crate) keys: Option<Arc<Mapping>>,
    pub(crate) memory: PeerMemory,
    /// Whether the peer orders our stores by `membarrier` before it sleeps.
    pub(crate) asymmetric: bool,
}

/// Event of a link.
#[derive(Debug)]
pub(crate) enum LinkUpdate {
    /// The peer saw us asleep after it published.
    Wake,
    /// The peer accepted.
    Up(Box<Remote>),
    /// The peer sent its arena.
    Shown(Mapping),
    /// The connection ended; the last event.
    Closed(Reason),
}

/// Returns the epoll token of a connection: the port's kind (below 4) in the two bits above the
/// generation.
fn token(kind: u64, id: ConnId) -> u64 {
    kind << 62 | u64::from(id.generation) << 32 | u64::from(id.index)
}

/// Returns the connection of a token.
#[expect(clippy::cast_possible_truncation, reason = "takes the token apart")]
fn conn_of(token: u64) -> ConnId {
    ConnId { index: token as u32, generation: (token >> 32) as u32 }
}

/// Way to end a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CloseKind {
    /// With a goodbye packet.
    Graceful,
    Reset,
    /// Without notice, like a process that died.
    Abandon,
}

/// The control path of one connection, beside its rings.
pub(crate) trait Link: Send {
    /// Returns the next event, if any. Also retries data that could not be sent earlier.
    fn next_event(&mut self) -> Option<LinkUpdate>;

    /// Whether `next_event` has something to retry although nothing arrived.
    fn unsent(&self) -> bool;

    /// Makes the peer's `wait_fd` readable.
    fn wake(&mut self);

    /// Whether an idle peer is notified by `wake`, since it does not share its doorbell.
    fn rings_by_wake(&self) -> bool {
        false
    }

    /// Sends a record of kind and head `record` past the ring, where the transport can. `append`
    /// appends its body of `len` bytes.
    fn send_long(
        &mut self,
        record: (u8, &[u8]),
        len: usize,
        append: &mut dyn FnMut(&mut Vec<u8>),
    ) -> LongSend {
        let _ = (record, len, append);
        LongSend::Later
    }

    /// Returns the body of record `number`, if it is outside the ring.
    fn take_body(&mut self, number: u64) -> Option<OutsideBody> {
        let _ = number;
        None
    }

    /// Takes back a body that was handled.
    fn give_back(&mut self, body: OutsideBody) {
        drop(body);
    }

    /// Returns the numbers of bytes of bodies that were sent and taken outside the rings.
    fn outside_bytes(&self) -> OutsideBytes {
        OutsideBytes::default()
    }

    /// Whether replies and short writes may depend on the consumption of pushed records: the peer
    /// itself consumes them from memory that both sides share.
    fn is_direct(&self) -> bool {
        true
    }

    /// Returns the windows of the peer's keys, where the transport has them.
    fn windows(&mut self) -> Option<&mut dyn PeerWindows> {
        None
    }

    /// Verifies that the peer lives, where the transport does not notice its death. The result
    /// comes as an event.
    fn probe(&mut self) {}

    /// Returns the access to memory of a peer that is reached over a network.
    fn remote_reads(&mut self) -> Option<&mut dyn RemoteReads> {
        None
    }

    /// Whether the peer itself counts the records that it has consumed. Otherwise the counters tell
    /// of a relay of this process, and RMA beside the ring may overtake pushed records.
    fn is_consumed_by_peer(&self) -> bool {
        true
    }

    /// Requests the arena from the peer, which need not answer.
    fn request_arena(&mut self) {}

    /// Ends the link. Later calls do nothing.
    fn close(&mut self, how: CloseKind);
}

debug_by_name!(Link);
