// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The one trait between the engine and whatever carries it: how memory is shared, how ports are bound, how
//! one connection's ends find and tell each other.
//!
//! Not about what goes through the rings: that needs no transport.

pub(crate) mod kernel;
pub(crate) mod local;
pub(crate) mod soft;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::addr::PortId;
use crate::connection::ConnId;
use crate::error::{Error, Reason, Result};
use crate::keys::SharedKeys;
use crate::life::Life;
use crate::memory::PeerMemory;
use crate::segment::Side;
use crate::sys::fork::PrivateFd;
use crate::sys::mmap::Mapping;

/// Who may write memory that is shown to peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writers {
    Owner,
    Peers,
}

/// Memory of ours that peers can map.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) map: Arc<Mapping>,
    /// What is passed to a peer in another address space.
    pub(crate) fd: Option<PrivateFd>,
}

/// What a bound port shows to whoever connects with it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) bell: Shared,
    pub(crate) keys: Option<Arc<SharedKeys>>,
}

/// Fills a new board before others see it.
pub(crate) type Init<'a> = &'a dyn Fn(&Mapping) -> Result<()>;

/// Memory that whoever knows its name has mapped; the name lasts as long as one of these does.
pub(crate) trait Hold: Debug + Send + Sync {
    fn map(&self) -> &Mapping;

    /// Keeps other holders from taking it until `unlock`.
    fn lock(&self) -> Result<()>;

    fn unlock(&self);
}

/// A way of carrying connections.
pub(crate) trait Transport: Debug + Send + Sync {
    /// Maps the board `name` of `len` bytes: to write it and made if there is none, by `make`; without, only to read it.
    fn board(self: Arc<Self>, name: &str, len: usize, make: Option<Init<'_>>) -> Result<Box<dyn Hold>> {
        let _ = (name, len, make);
        Err(Error::Os {
            call: "boards of this transport",
            errno: Errno::OPNOTSUPP,
        })
    }

    /// Makes memory, zeroed, that can be shown to peers.
    fn share(&self, name: &'static str, len: usize, writers: Writers) -> Result<Shared>;

    /// Binds and listens; port 0 for a dynamic one.
    fn bind(self: Arc<Self>, port: u16, shown: Shown) -> Result<Box<dyn Port>>;

    /// Tells of this host and of whatever else decides who reaches whom by number.
    fn host_hash(&self) -> u32;

    /// Returns the settings that decide which processes this one can meet, for a line of the log.
    fn settings(&self) -> String;
}

/// A bound, listening port. Connections are told apart by the ids the endpoint gives them.
pub(crate) trait Port: Debug + Send {
    fn id(&self) -> PortId;

    /// Opens a connection that will be called `id`.
    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened>;

    /// Looks for connections to accept, and at which of ours something arrived. Never blocks.
    fn poll(&mut self, ready: &mut Vec<ConnId>);

    /// Accepts the next one that `poll` found, to be called `id`. `None`: no more.
    /// A request that cannot be accepted is answered and passed over.
    fn accept(&mut self, id: ConnId) -> Option<Opened>;

    /// Who listens at `port` now; 0 for a process that cannot be seen from here.
    fn listener(&mut self, port: PortId) -> Option<i32>;

    /// Returns what to check when nobody listens at `port`, for a line of the log.
    fn whereabouts(&self, port: PortId) -> String;

    /// Readable when `poll` would find something.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Whether callers wait for a descriptor, so that `poll` has something to do later though nothing arrives.
    fn is_parked(&self) -> bool {
        false
    }

    /// Stops listening. Unless `how` is silent, callers that were not accepted hear that the listener has closed.
    fn close(&mut self, how: Farewell);
}

/// A connection as either side has it at first.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) peer: PortId,
    pub(crate) side: Side,
    pub(crate) segment: Arc<Mapping>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) life: Life,
    /// What the peer shows; the opener learns it later.
    pub(crate) remote: Option<Remote>,
}

/// What a peer shows of itself.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) bell: Arc<Mapping>,
    /// The bit of that bell that stands for this connection.
    pub(crate) bell_bit: u32,
    pub(crate) keys: Option<Arc<Mapping>>,
    pub(crate) memory: PeerMemory,
    /// When the peer goes to sleep it orders our stores by itself.
    pub(crate) asymmetric: bool,
}

/// What came over a link.
#[derive(Debug)]
pub(crate) enum Signal {
    /// The peer saw us asleep after it published.
    Wake,
    /// The peer accepted.
    Up(Box<Remote>),
    /// The peer shows what its windows lie in.
    Shown(Mapping),
    /// Nothing more will come; the last signal.
    Closed(Reason),
}

/// What a port's epoll set says of a connection: its kind, which is the port's own and below 4, in the two bits above the
/// generation.
fn token(kind: u64, id: ConnId) -> u64 {
    kind << 62 | u64::from(id.generation) << 32 | u64::from(id.index)
}

/// The connection a token stands for.
#[expect(clippy::cast_possible_truncation, reason = "takes the token apart")]
fn conn_of(token: u64) -> ConnId {
    ConnId {
        index: token as u32,
        generation: (token >> 32) as u32,
    }
}

/// How a link is ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Farewell {
    Bye,
    Reset,
    /// As if the process had died.
    Silent,
}

/// The control path of one connection, beside its rings.
pub(crate) trait Link: Debug + Send {
    /// The next signal, if one is there. Also retries what could not be sent earlier.
    fn pump(&mut self) -> Option<Signal>;

    /// Whether `pump` has something to retry though nothing arrived.
    fn unsent(&self) -> bool;

    /// Makes the peer's `wait_fd` readable.
    fn wake(&mut self);

    /// Whether the peer itself takes what is pushed, and not somebody here who passes it on.
    fn is_direct(&self) -> bool {
        true
    }

    /// Asks the peer for what its windows lie in. It need not answer.
    fn ask(&mut self) {}

    /// Ends it. Later calls do nothing.
    fn close(&mut self, how: Farewell);
}
