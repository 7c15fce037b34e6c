// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! An endpoint of `scif.h` as a byte stream, and the greetings that arrive on it.
//!
//! Not about frames (`relay`) nor about windows (`windows`). `scif_connect`, `scif_send`,
//! `scif_recv` and `scif_close` of `scif.h`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::relay::{GREETING, GreetingKind, RelayGreeting};
use super::sender::Wire;
use crate::addr::PortId;
use crate::error::Reason;
use crate::failure::Failure;
use crate::scif_calls::ScifCalls;
use crate::sys::descriptor;
use crate::sys::fork::{self, PrivateFd};
use crate::sys::mmap::Mapping;
use crate::sys::slice;

/// An endpoint of `scif.h`; a forked child does not have it.
#[derive(Debug)]
pub(super) struct Stream {
    calls: Arc<dyn ScifCalls>,
    fd: Option<PrivateFd>,
    /// Memory registered at the endpoint. Unmapped after the close, which moves its pages.
    window: Option<Arc<Mapping>>,
    /// Mapping of the peer's window.
    mapping: Option<Arc<Mapping>>,
}

impl Stream {
    /// Opens a new endpoint.
    pub(super) fn open(calls: &Arc<dyn ScifCalls>) -> std::result::Result<Stream, Failure> {
        // A child forked in between would keep the endpoint.
        let _section = fork::section();
        let fd = descriptor::adopt(calls.open()?);
        Ok(Stream {
            calls: Arc::clone(calls),
            fd: Some(PrivateFd::new(fd)),
            window: None,
            mapping: None,
        })
    }

    /// Opens a new endpoint of the same implementation.
    pub(super) fn another(&self) -> std::result::Result<Stream, Failure> {
        Stream::open(&self.calls)
    }

    /// Whether this is a forked child's copy.
    pub(super) fn is_inherited(&self) -> bool {
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

    /// Sends a greeting, which finds an empty queue. A peer that has closed is no error: what it
    /// sent before can still be received.
    pub(super) fn greet(&self, greeting: &RelayGreeting) -> std::result::Result<(), Failure> {
        loop {
            let Err(failure) = self.send(&greeting.encode()) else { return Ok(()) };
            match failure.errno() {
                Errno::INTR => {}
                Errno::CONNRESET | Errno::NOTCONN => return Ok(()),
                _ => return Err(failure),
            }
        }
    }

    /// Returns the calls and the endpoint, for windows.
    pub(super) fn parts(&self) -> (&dyn ScifCalls, RawFd) {
        (&*self.calls, self.raw())
    }

    /// Keeps registered memory mapped until the endpoint is closed.
    pub(super) fn keep(&mut self, window: &Arc<Mapping>) {
        self.window = Some(Arc::clone(window));
    }

    /// Notes the mapping of the peer's window. If a driver served it, it is detached before the
    /// close: the driver would not tell the peer of the close otherwise.
    pub(super) fn keep_mapping(&mut self, mapping: &Arc<Mapping>) {
        self.mapping = Some(Arc::clone(mapping));
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
            if let Some(mapping) = self.mapping.take() {
                mapping.detach();
            }
            self.calls.close(descriptor::release(fd));
        }
    }
}

/// Part of a greeting received so far.
#[derive(Debug)]
pub(super) struct Arriving {
    bytes: [u8; GREETING],
    have: usize,
}

impl Default for Arriving {
    fn default() -> Arriving {
        Arriving { bytes: [0; GREETING], have: 0 }
    }
}

impl Arriving {
    /// Receives more of the greeting; returns its content once complete.
    pub(super) fn read(
        &mut self,
        stream: &Stream,
    ) -> std::result::Result<Option<GreetingKind>, Reason> {
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
