// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over a driver: an endpoint of the driver, the greeting at its beginning, and its
//! records in both directions.
//!
//! Not about its establishment (`calls`, `reception`) nor about data for which the driver has no
//! space (`sender`). The driver reports a closed peer: its process, its node, or only this
//! connection. `scif_connect`, `scif_send`, `scif_recv` and `scif_close` of `scif.h`.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use scif_ring::AtomicFlag;

use super::relay::{GREETING, Heard, Incoming, RelayGreeting, Said, relay};
use super::sender::{Lingering, Outlet, Sender, Wire};
use crate::addr::PortId;
use crate::error::{Error, Reason, Result};
use crate::failure::Failure;
use crate::memory::PeerMemory;
use crate::scif_calls::ScifCalls;
use crate::segment::Side;
use crate::slab::ConnId;
use crate::sys::descriptor;
use crate::sys::epoll::{Epoll, Event};
use crate::sys::errno::keep_errno;
use crate::sys::fork::{self, PrivateFd};
use crate::sys::mmap::{Mapping, OutOfRange};
use crate::sys::slice;
use crate::transport::{CloseKind, Link, LinkUpdate, Remote, conn_of, token};

/// Kind of an epoll token that names a connection.
pub(super) const CONN: u64 = 0;
/// Kind of the epoll token of the desk's event.
pub(super) const NEWS: u64 = 1;

/// An endpoint of `scif.h`; a forked child does not have it.
#[derive(Debug)]
pub(super) struct Stream {
    calls: Arc<dyn ScifCalls>,
    fd: Option<PrivateFd>,
}

impl Stream {
    /// Opens a new endpoint.
    pub(super) fn open(calls: &Arc<dyn ScifCalls>) -> std::result::Result<Stream, Failure> {
        // A child forked in between would keep the endpoint.
        let _section = fork::section();
        let fd = descriptor::adopt(calls.open()?);
        Ok(Stream { calls: Arc::clone(calls), fd: Some(PrivateFd::new(fd)) })
    }

    /// Opens a new endpoint of the same implementation.
    pub(super) fn another(&self) -> std::result::Result<Stream, Failure> {
        Stream::open(&self.calls)
    }

    /// Whether this is a forked child's copy.
    fn is_inherited(&self) -> bool {
        self.fd.as_ref().is_some_and(PrivateFd::is_inherited)
    }

    /// Takes a port and listens; returns the port.
    pub(super) fn listen(&self, port: u16, backlog: i32) -> std::result::Result<u16, Failure> {
        let port = self.calls.bind(self.raw(), port)?;
        self.calls.listen(self.raw(), backlog)?;
        Ok(port)
    }

    /// Accepts the next connection into `new`; returns the peer. The driver waits for the answer of
    /// the peer's node.
    pub(super) fn accept(&self, new: &Stream) -> std::result::Result<PortId, Failure> {
        self.calls.accept_into(self.raw(), new.raw())
    }

    /// Connects. The driver blocks the thread for up to 30 s.
    pub(super) fn connect(&self, dst: PortId) -> std::result::Result<(), Failure> {
        self.calls.connect(self.raw(), dst)
    }

    pub(super) fn receive(&self, to: &mut [u8]) -> std::result::Result<usize, Failure> {
        slice::with_bytes_mut(to, |mem| self.calls.receive(self.raw(), mem))
    }
}

impl Wire for Stream {
    fn send(&self, bytes: &[u8]) -> std::result::Result<usize, Failure> {
        slice::with_bytes(bytes, |mem| self.calls.send(self.raw(), mem))
    }

    fn raw(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or(rustix::fs::CWD, AsFd::as_fd)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Not under the lock of a fork: the driver waits for the peer's, and a stand-in device has
        // locks.
        if let Some(fd) = self.fd.take().and_then(PrivateFd::release) {
            self.calls.close(descriptor::release(fd));
        }
    }
}

/// Part of a greeting received so far.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: [u8; GREETING],
    have: usize,
}

impl Arriving {
    /// Receives more of the greeting; returns its content once complete.
    pub(super) fn hear(&mut self, stream: &Stream) -> std::result::Result<Option<Said>, Reason> {
        while let Some(rest) = self.bytes.get_mut(self.have..).filter(|rest| !rest.is_empty()) {
            match stream.receive(rest) {
                Ok(0) | Err(Failure::Interrupted) => return Ok(None),
                Ok(n) => self.have += n,
                Err(_) => return Err(Reason::Died),
            }
        }
        RelayGreeting::decode(self.bytes).map(Some)
    }
}

/// State that the links of a port share with each other and with its threads.
#[derive(Debug)]
pub(super) struct Desk {
    /// Epoll set of the owner. A connection is in it from its beginning to its end, for input
    /// alone: a driver joins the queue of waiters for input when a descriptor is added, and no
    /// other queue later.
    pub(super) epoll: Epoll,
    /// Doorbell whose owner always appears asleep, so that a producer calls the link, which sends.
    bell: Arc<Mapping>,
    /// Event in the set: readable while `news` has connections whose descriptors show no change.
    event: Event,
    /// Connections that the owner must check.
    news: Mutex<Vec<ConnId>>,
    pub(super) sender: Arc<Sender>,
    pub(super) lingering: Arc<Lingering>,
    warned: AtomicFlag,
}

impl Desk {
    pub(super) fn new(bell: Arc<Mapping>, sender: Arc<Sender>) -> Result<Desk> {
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let event = Event::new().map_err(Error::os("eventfd"))?;
        let none = ConnId { index: 0, generation: 0 };
        epoll.add(&event, token(NEWS, none)).map_err(Error::os("epoll_ctl"))?;
        Ok(Desk {
            epoll,
            bell,
            event,
            news: Mutex::default(),
            sender,
            lingering: Arc::default(),
            warned: AtomicFlag::new(false),
        })
    }

    fn news(&self) -> MutexGuard<'_, Vec<ConnId>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the owner.
    pub(super) fn signal(&self) {
        self.event.signal();
    }

    /// Makes the owner check a connection.
    fn post(&self, id: ConnId) {
        self.news().push(id);
        self.signal();
    }

    /// Takes the connections to check.
    pub(super) fn take_news(&self, ready: &mut Vec<ConnId>) {
        self.event.drain();
        ready.append(&mut self.news());
    }

    /// Logs at warn the first time, later at debug.
    pub(super) fn warn_once(&self, text: fmt::Arguments<'_>) {
        if self.warned.swap(true) {
            log::debug!("{text}");
        } else {
            log::warn!("{text}");
        }
    }

    pub(super) fn remote(&self) -> Remote {
        Remote {
            bell: Arc::clone(&self.bell),
            bell_bit: 0,
            keys: None,
            memory: PeerMemory::none(),
            asymmetric: true,
        }
    }
}

#[derive(Debug)]
enum Stage {
    /// The answer of the peer's endpoint has not arrived completely.
    Greeted(Arriving),
    Up,
}

/// Resources of a link until its end.
#[derive(Debug)]
struct Ends {
    stream: Arc<Stream>,
    outlet: Arc<Outlet>,
}

#[derive(Debug)]
pub(super) struct ScifLink {
    /// `None` after the end.
    ends: Option<Ends>,
    stage: Stage,
    incoming: Incoming,
    desk: Arc<Desk>,
    id: ConnId,
}

impl ScifLink {
    /// Returns the link of the opener (`Side::Opener`), which has sent the hello, or of the
    /// acceptor, which has sent the welcome.
    pub(super) fn new(
        desk: &Arc<Desk>,
        stream: Stream,
        segment: &Arc<Mapping>,
        token: u64,
        peer: PortId,
        side: Side,
    ) -> std::result::Result<ScifLink, OutOfRange> {
        let (outgoing, incoming) = relay(segment, side)?;
        let stream = Arc::new(stream);
        let wire = Arc::clone(&stream) as Arc<dyn Wire>;
        let id = conn_of(token);
        let owner = Arc::clone(desk);
        let notify = move || owner.post(id);
        Ok(ScifLink {
            ends: Some(Ends {
                outlet: Outlet::new(wire, peer, outgoing, &desk.sender, &desk.lingering, notify),
                stream,
            }),
            stage: match side {
                Side::Opener => Stage::Greeted(Arriving::default()),
                Side::Acceptor => Stage::Up,
            },
            incoming,
            desk: Arc::clone(desk),
            id,
        })
    }

    fn closed(&mut self, reason: Reason) -> LinkUpdate {
        if reason == Reason::Corrupt
            && let Some(ends) = &self.ends
        {
            ends.outlet.reset();
        }
        self.leave();
        LinkUpdate::Closed(reason)
    }

    /// Gives the stream to the thread, which closes it after all data is sent: closing waits for
    /// the driver.
    fn leave(&mut self) {
        if let Some(ends) = self.ends.take() {
            self.desk.epoll.remove(&ends.stream);
            self.desk.sender.dispose(ends);
        }
    }

    fn hear(&mut self) -> Option<LinkUpdate> {
        let stream = &self.ends.as_ref()?.stream;
        let heard = self.incoming.hear(|to| match stream.receive(to) {
            Err(Failure::Interrupted) => Ok(0),
            got => got,
        });
        if self.incoming.is_full() {
            // No descriptor reports that the ring has space again.
            self.desk.post(self.id);
        }
        match heard {
            Ok(Heard::Nothing) => None,
            Ok(Heard::Records) => Some(LinkUpdate::Wake),
            Ok(Heard::End(reason)) => Some(self.closed(reason)),
            Err(failure) => {
                if failure.errno() != Errno::CONNRESET {
                    log::debug!("scif_recv: {failure}");
                }
                Some(self.closed(Reason::Died))
            }
        }
    }

    fn exchange(&mut self) -> Option<LinkUpdate> {
        let Ends { stream, outlet } = self.ends.as_ref()?;
        // Early records follow our hello, independent of its answer.
        outlet.flush();
        if outlet.failure().is_some() {
            return Some(self.closed(Reason::Died));
        }
        match &mut self.stage {
            Stage::Greeted(arriving) => match arriving.hear(stream) {
                Ok(None) => None,
                Ok(Some(Said::Welcome)) => {
                    self.stage = Stage::Up;
                    Some(LinkUpdate::Up(Box::new(self.desk.remote())))
                }
                Ok(Some(Said::No(reason))) | Err(reason) => Some(self.closed(reason)),
                Ok(Some(Said::Hello(_))) => Some(self.closed(Reason::Corrupt)),
            },
            Stage::Up => self.hear(),
        }
    }

    fn end(&mut self, how: CloseKind) {
        let Some(ends) = &self.ends else { return };
        match how {
            CloseKind::Graceful => ends.outlet.close(),
            CloseKind::Reset => ends.outlet.reset(),
            // A forked child, which has neither the threads nor the descriptors of its parent,
            // takes no lock.
            CloseKind::Abandon if ends.stream.is_inherited() => {
                self.ends = None;
                return;
            }
            CloseKind::Abandon => ends.outlet.abandon(),
        }
        self.leave();
    }
}

// Calls of the driver and waits for the port's threads change errno, so each entry point restores
// it.
impl Link for ScifLink {
    fn is_direct(&self) -> bool {
        false
    }

    fn next_event(&mut self) -> Option<LinkUpdate> {
        keep_errno(|| self.exchange())
    }

    fn unsent(&self) -> bool {
        false
    }

    fn wake(&mut self) {
        if let Some(ends) = &self.ends {
            keep_errno(|| ends.outlet.flush());
        }
    }

    fn close(&mut self, how: CloseKind) {
        keep_errno(|| self.end(how));
    }
}
