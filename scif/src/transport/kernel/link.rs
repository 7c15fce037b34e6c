// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over a driver: an endpoint of it, the greeting at its beginning, and the relay between its stream and the
//! rings.
//!
//! Not about finding who calls (`port`). The driver says that a peer is gone: its process, its node, or only this
//! connection. `scif_connect` without waiting, `scif_send`, `scif_recv` and `scif_close` of `scif.h`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::relay::{GREETING, Greeting, Heard, Relay, Said};
use super::{Device, call};
use crate::addr::PortId;
use crate::epd::Failure;
use crate::error::{Error, Reason, Refusal};
use crate::memory::PeerMemory;
use crate::segment::Side;
use crate::sys::epoll::Epoll;
use crate::sys::fork::PrivateFd;
use crate::sys::mmap::{Mapping, OutOfRange};
use crate::sys::time::now_ns;
use crate::sys::{descriptor, slice};
use crate::transport::{Farewell, Link, Remote, Signal};

/// How long an end in order waits until everything is sent: whoever closes holds others up meanwhile.
const FAREWELL_NS: u64 = 1_000_000_000;

/// An endpoint of the driver, not blocking; a forked child does not have it.
#[derive(Debug)]
pub(super) struct Stream {
    device: Arc<Device>,
    fd: Option<PrivateFd>,
}

impl Stream {
    /// A new endpoint.
    pub(super) fn open(device: &Arc<Device>) -> Result<Stream, Failure> {
        Stream::own(device, call::open(device.path(), true)?)
    }

    fn own(device: &Arc<Device>, fd: OwnedFd) -> Result<Stream, Failure> {
        descriptor::make_private(&fd)?;
        Ok(Stream {
            device: Arc::clone(device),
            fd: Some(PrivateFd::new(fd)),
        })
    }

    fn raw(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    /// Takes a port and listens; the port.
    pub(super) fn listen(&self, port: u16, backlog: i32) -> Result<u16, Failure> {
        let port = self.device.bind(self.raw(), port)?;
        self.device.listen(self.raw(), backlog)?;
        Ok(port)
    }

    /// The next who calls, and by which endpoint; `None`: nobody.
    pub(super) fn accept(&self) -> Result<Option<(PortId, Stream)>, Failure> {
        match self.device.accept(self.raw(), false) {
            Ok((peer, fd)) => Ok(Some((peer, Stream::own(&self.device, call::adopt(fd))?))),
            Err(failure) if errno(&failure) == Errno::AGAIN => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Calls, or hears what came of that: true when it is connected.
    pub(super) fn connect(&self, dst: PortId) -> Result<bool, Failure> {
        match self.device.connect(self.raw(), dst) {
            Ok(_) => Ok(true),
            Err(failure) => match errno(&failure) {
                Errno::INPROGRESS | Errno::INTR => Ok(false),
                _ => Err(failure),
            },
        }
    }

    /// Waits for room, or for what came of a call.
    pub(super) fn wait_room(&self, limit_ms: i32) {
        let mut entry = [libc::pollfd {
            fd: self.raw(),
            events: libc::POLLOUT,
            revents: 0,
        }];
        let _ = self.device.poll(&mut entry, limit_ms);
    }

    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Failure> {
        slice::with_bytes(bytes, |mem| self.device.send(self.raw(), mem, false))
    }

    pub(super) fn receive(&self, to: &mut [u8]) -> Result<usize, Failure> {
        slice::with_bytes_mut(to, |mem| self.device.receive(self.raw(), mem, false))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or(rustix::fs::CWD, AsFd::as_fd)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Not under the lock that a fork takes: the driver waits for the peer's, and what stands in for one has locks.
        drop(self.fd.take().and_then(PrivateFd::release));
    }
}

/// Milliseconds until then, 0 once it is past.
fn left_ms(end: u64) -> i32 {
    let left = end.saturating_sub(now_ns()).div_ceil(1_000_000);
    i32::try_from(left).unwrap_or(i32::MAX)
}

/// The number behind a failure.
pub(super) fn errno(failure: &Failure) -> Errno {
    Errno::from_raw_os_error(failure.raw_os_error())
}

/// What a call that failed says of whom it was made to.
pub(super) fn refused(failure: &Failure, dst: PortId) -> Error {
    match errno(failure) {
        Errno::CONNREFUSED | Errno::NODEV | Errno::TIMEDOUT => Error::Refused(dst),
        Errno::NOSPC => Error::NoPorts,
        errno => Error::Os {
            call: "scif_connect",
            errno,
        },
    }
}

/// A greeting as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: [u8; GREETING],
    have: usize,
}

impl Arriving {
    /// What it says, once it is all there.
    pub(super) fn hear(&mut self, stream: &Stream) -> Result<Option<Said>, Reason> {
        while let Some(rest) = self.bytes.get_mut(self.have..).filter(|rest| !rest.is_empty()) {
            match stream.receive(rest) {
                Ok(0) | Err(Failure::Interrupted) => return Ok(None),
                Ok(n) => self.have += n,
                Err(_) => return Err(Reason::Died),
            }
        }
        Greeting::decode(self.bytes).map(Some)
    }
}

#[derive(Debug)]
enum Stage {
    /// Called; the driver has not said yet whether it is taken.
    Calling(PortId),
    /// Connected; the peer's endpoint has not looked yet.
    Greeted(Arriving),
    Up,
}

/// What the links of a port have in common.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) epoll: Epoll,
    /// Where the port listens.
    pub(super) port: u16,
    /// A bell whose owner always sleeps: whoever pushes is to tell the link, which sends.
    pub(super) bell: Arc<Mapping>,
}

impl Desk {
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
pub(super) struct KernelLink {
    /// `None`: ended.
    stream: Option<Stream>,
    stage: Stage,
    relay: Relay,
    desk: Arc<Desk>,
    token: u64,
    /// Whether the set also waits for room.
    wants_room: bool,
}

impl KernelLink {
    /// Of who called `dst`; `connected`: and was heard.
    pub(super) fn opener(
        desk: &Arc<Desk>,
        stream: Stream,
        segment: &Arc<Mapping>,
        token: u64,
        dst: PortId,
        connected: bool,
    ) -> Result<KernelLink, OutOfRange> {
        let mut link = KernelLink {
            stage: Stage::Calling(dst),
            relay: Relay::new(Arc::clone(segment), Side::Opener)?,
            stream: Some(stream),
            desk: Arc::clone(desk),
            token,
            wants_room: true,
        };
        if connected {
            link.greet();
        }
        Ok(link)
    }

    /// Of who was called and has read the hello.
    pub(super) fn acceptor(
        desk: &Arc<Desk>,
        stream: Stream,
        segment: &Arc<Mapping>,
        token: u64,
    ) -> Result<KernelLink, OutOfRange> {
        Ok(KernelLink {
            stage: Stage::Up,
            relay: Relay::new(Arc::clone(segment), Side::Acceptor)?,
            stream: Some(stream),
            desk: Arc::clone(desk),
            token,
            wants_room: false,
        })
    }

    /// The first bytes find an empty queue; if not even that, the end is heard by receiving.
    fn greet(&mut self) {
        if let Some(stream) = &self.stream {
            let greeting = Greeting::hello(self.desk.port).encode();
            while matches!(stream.send(&greeting), Err(Failure::Interrupted)) {}
        }
        self.stage = Stage::Greeted(Arriving::default());
        self.want_room(false);
    }

    fn want_room(&mut self, wanted: bool) {
        if self.wants_room != wanted
            && let Some(stream) = &self.stream
        {
            self.wants_room = wanted;
            if let Err(errno) = self.desk.epoll.change(stream, self.token, wanted) {
                log::debug!("epoll_ctl: {errno}");
            }
        }
    }

    /// A look at the link is due when the stream has room again; at once, where records wait for room in our own ring, of
    /// which no descriptor tells.
    fn watch_room(&mut self, done: bool) {
        self.want_room(!done || self.relay.is_full());
    }

    fn closed(&mut self, reason: Reason) -> Signal {
        if reason == Reason::Corrupt {
            self.relay.end(false);
            self.flush();
        }
        self.leave();
        Signal::Closed(reason)
    }

    fn leave(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.desk.epoll.remove(&stream);
        }
    }

    /// Sends what there is room for. True: all of it, or there is nobody any more.
    fn flush(&mut self) -> bool {
        let Some(stream) = &self.stream else { return true };
        let done = self.relay.flush(|bytes| match stream.send(bytes) {
            Err(Failure::Interrupted) => Ok(0),
            sent => sent,
        });
        // That the peer is gone is heard by receiving.
        let done = done.unwrap_or(true);
        self.watch_room(done);
        done
    }

    fn collect(&mut self, dst: PortId) -> Option<Signal> {
        match self.stream.as_ref()?.connect(dst) {
            Ok(false) => None,
            Ok(true) => {
                self.greet();
                self.pump()
            }
            Err(failure) => {
                log::debug!("connecting to {dst}: {failure}");
                Some(self.closed(match refused(&failure, dst) {
                    Error::Refused(_) => Reason::Refused(Refusal::Closed),
                    _ => Reason::Refused(Refusal::Resources),
                }))
            }
        }
    }

    fn hear(&mut self) -> Option<Signal> {
        let done = self.flush();
        let stream = self.stream.as_ref()?;
        let heard = self.relay.hear(|to| match stream.receive(to) {
            Err(Failure::Interrupted) => Ok(0),
            got => got,
        });
        self.watch_room(done);
        match heard {
            Ok(Heard::Nothing) => None,
            Ok(Heard::Records) => Some(Signal::Wake),
            Ok(Heard::End(reason)) => Some(self.closed(reason)),
            Err(_) => Some(self.closed(Reason::Died)),
        }
    }
}

impl Link for KernelLink {
    fn is_direct(&self) -> bool {
        false
    }

    fn pump(&mut self) -> Option<Signal> {
        let stream = self.stream.as_ref()?;
        match &mut self.stage {
            Stage::Calling(dst) => {
                let dst = *dst;
                self.collect(dst)
            }
            Stage::Greeted(arriving) => match arriving.hear(stream) {
                Ok(None) => None,
                Ok(Some(Said::Welcome)) => {
                    self.stage = Stage::Up;
                    Some(Signal::Up(Box::new(self.desk.remote())))
                }
                Ok(Some(Said::No(reason))) | Err(reason) => Some(self.closed(reason)),
                Ok(Some(Said::Hello(_))) => Some(self.closed(Reason::Corrupt)),
            },
            Stage::Up => self.hear(),
        }
    }

    fn unsent(&self) -> bool {
        // What came of a call is asked for: not every driver's descriptor shows it in every set.
        matches!(self.stage, Stage::Calling(_)) && self.stream.is_some()
    }

    fn wake(&mut self) {
        if matches!(self.stage, Stage::Up) {
            self.flush();
        }
    }

    fn close(&mut self, how: Farewell) {
        match how {
            Farewell::Bye => {
                let end = now_ns() + FAREWELL_NS;
                if self.is_greeted_by(end) && self.flush_all(end) {
                    self.relay.end(true);
                    self.flush_all(end);
                }
            }
            Farewell::Reset if matches!(self.stage, Stage::Up) => {
                self.relay.end(false);
                self.flush();
            }
            Farewell::Reset | Farewell::Silent => {}
        }
        self.leave();
    }
}

impl KernelLink {
    /// Whether what was pushed may be sent: behind our greeting, whatever the answer. A call that carries nothing is not
    /// waited for.
    fn is_greeted_by(&mut self, end: u64) -> bool {
        while let Stage::Calling(dst) = self.stage {
            let Some(stream) = self.stream.as_ref().filter(|_| self.relay.has_records()) else {
                return false;
            };
            match stream.connect(dst) {
                Ok(true) => self.greet(),
                Ok(false) => {
                    let left = left_ms(end);
                    if left == 0 {
                        log::debug!("{dst} did not answer before the end, and gets nothing");
                        return false;
                    }
                    stream.wait_room(left);
                }
                Err(failure) => {
                    log::debug!("connecting to {dst}: {failure}");
                    return false;
                }
            }
        }
        self.stream.is_some()
    }

    /// Sends everything, if the peer takes it until `end`. True: it has, or there is nobody any more.
    fn flush_all(&mut self, end: u64) -> bool {
        while !self.flush() {
            let Some(stream) = &self.stream else { return true };
            let left = left_ms(end);
            if left == 0 {
                log::debug!("a peer did not take the last of what was sent to it");
                return false;
            }
            stream.wait_room(left);
        }
        true
    }
}
