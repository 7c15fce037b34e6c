// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of `scif.h` on the endpoints of a process, each with its steps in another module.

use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::io::Errno;
use scif::sys::pages::PAGE;
use scif::sys::slice;
use scif::whereabouts::{note_answer, warn_of_silence};
use scif::{Config, FenceSide, PortId, RmaWay, Signal, logging};
use scif_ring::Mem;

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::memory::Pages;
use crate::poll::{PollFd, WaitsFor};
use crate::registration::{self, deletion};
use crate::registry::Inner;
use crate::rma::{self, Near, Way, fence, map};
use crate::state::State;
use crate::{connect, ending, mainline, messages, poll, service, sharing};

/// Endpoints of this process.
#[derive(Debug)]
pub struct Endpoints(pub(crate) Arc<Inner>);

impl Endpoints {
    /// Settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Joins the node of the settings until the process ends, and starts the service thread.
    ///
    /// # Errors
    /// Errors of the system when descriptors or threads are short.
    pub fn new(config: Config) -> Result<Endpoints> {
        config.warn();
        let inner = Inner::new(config, service::serve)?;
        mainline::report_kept_ports(&inner);
        Ok(Endpoints(inner))
    }

    /// Opens an endpoint and returns its descriptor (`scif_open`).
    ///
    /// # Errors
    /// Errors of the system when descriptors or memory are short.
    pub fn open(&self) -> Result<RawFd> {
        self.0.open()
    }

    /// Closes a descriptor (`scif_close`); any descriptor of the process, as the drivers' library
    /// does.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`]; [`Failure::Invalid`] while pages from
    /// [`get_pages`](Self::get_pages) are in use.
    pub fn close(&self, fd: RawFd) -> Result<()> {
        if self.0.pins.has_peer_pages(|| self.token(fd)) {
            return Err(Failure::Invalid);
        }
        ending::close(&self.0, fd)?;
        logging::settle();
        Ok(())
    }

    /// Binds an endpoint and returns its port (`scif_bind`).
    ///
    /// # Errors
    /// [`Failure::NoAccess`], then errors of the endpoint's state, then [`Failure::Invalid`] for a
    /// port in use, [`Failure::NoPorts`].
    pub fn bind(&self, fd: RawFd, port: u16) -> Result<u16> {
        self.with(fd, |epd| connect::bind(&self.0, epd, port))
    }

    /// Makes a bound endpoint listen (`scif_listen`).
    ///
    /// # Errors
    /// Errors of the endpoint's state.
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Result<()> {
        self.with(fd, |epd| connect::listen(&self.0, epd, backlog))
    }

    /// Connects an endpoint and returns its local port (`scif_connect`). Blocks until the peer has
    /// accepted, unless O_NONBLOCK is set.
    ///
    /// # Errors
    /// [`Failure::NoNode`], then errors of the endpoint's state, then [`Failure::Refused`],
    /// [`Failure::InProgress`], [`Failure::NoPorts`].
    pub fn connect(&self, fd: RawFd, dst: PortId) -> Result<u16> {
        let connected = self.with(fd, |epd| connect::connect(&self.0, epd, fd, dst));
        match &connected {
            Ok(_) => note_answer(dst),
            Err(Failure::Refused | Failure::NoNode) => warn_of_silence(&self.0.names, dst),
            Err(_) => {}
        }
        connected
    }

    /// Accepts a request and returns the peer and the new descriptor (`scif_accept`). Blocks if
    /// `wait`.
    ///
    /// # Errors
    /// Errors of the endpoint's state; [`Failure::Again`], [`Failure::Interrupted`].
    pub fn accept(&self, fd: RawFd, wait: bool) -> Result<(PortId, RawFd)> {
        self.with(fd, |epd| connect::accept(&self.0, epd, fd, wait))
    }

    /// Sends at least one byte and returns the number of bytes sent (`scif_send`).
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], [`Failure::Interrupted`].
    pub fn send(&self, fd: RawFd, src: &Mem, wait: bool) -> Result<usize> {
        if let Some(all) = messages::send_short(&self.0, fd, src) {
            return Ok(all);
        }
        let spin_ns = self.0.config.spin_us.saturating_mul(1000);
        self.with(fd, |epd| messages::send(epd, fd, src, wait, spin_ns))
    }

    /// Receives at least one byte and returns the number of bytes received (`scif_recv`).
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], [`Failure::Interrupted`].
    pub fn receive(&self, fd: RawFd, dst: &Mem, wait: bool) -> Result<usize> {
        let spin_ns = self.0.config.spin_us.saturating_mul(1000);
        self.with(fd, |epd| messages::receive(epd, fd, dst, wait, spin_ns))
    }

    /// Waits for events and returns the number of ready entries (`scif_poll`).
    ///
    /// # Errors
    /// [`Failure::Interrupted`], [`Failure::Invalid`] for more entries than the limit of
    /// descriptors.
    pub fn poll(&self, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
        poll::poll(&self.0, entries, timeout_ms)
    }

    /// Returns the wait queue at which mainline's driver would put a caller of poll(2) on this
    /// endpoint.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`], [`Failure::NotAnEndpoint`].
    pub fn waits_for(&self, fd: RawFd) -> Result<WaitsFor> {
        self.with(fd, |epd| Ok(poll::waits_for(epd)))
    }

    /// Whether an endpoint has a port.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`], [`Failure::NotAnEndpoint`].
    pub fn is_bound(&self, fd: RawFd) -> Result<bool> {
        self.with(fd, |epd| Ok(epd.state() != State::Unbound))
    }

    /// Whether this process maps a window of an endpoint's peer.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`], [`Failure::NotAnEndpoint`].
    pub fn is_mapping(&self, fd: RawFd) -> Result<bool> {
        self.with(fd, |epd| Ok(epd.windows.is_anything_mapped()))
    }

    /// Returns the nodes that are online, in ascending order, and the own node.
    ///
    /// # Errors
    /// None at present.
    pub fn nodes(&self) -> Result<(Vec<u16>, u16)> {
        Ok((self.0.nodes()?.into_iter().collect(), self.0.config.node))
    }

    /// Returns the length in bytes from which the caller should leave RMA to a DMA thread. Unless
    /// the user has set it, none: the thread copies no faster, and competes for the processor.
    #[must_use]
    pub fn dma_min(&self) -> u64 {
        let config = &self.0.config;
        if config.dma_min_is_set { config.dma_min } else { u64::MAX }
    }

    /// Whether an endpoint is connected, so that calls which need a connection are allowed.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`].
    pub fn usable(&self, fd: RawFd) -> Result<()> {
        self.with(fd, |epd| epd.connected().map(drop))
    }

    /// Whether an endpoint is or was connected, so that bytes may be left to receive.
    ///
    /// # Errors
    /// [`Failure::NotConnected`].
    pub fn receivable(&self, fd: RawFd) -> Result<()> {
        self.with(fd, |epd| match epd.state() {
            State::Disconnected => Ok(()),
            state => state.may_use(),
        })
    }

    /// Registers memory and returns the offset of its window (`scif_register`).
    ///
    /// # Errors
    /// [`Failure::Invalid`], then errors of the endpoint's state, then [`Failure::InUse`],
    /// [`Failure::BadAddress`], [`Failure::NoMemory`].
    pub fn register(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64> {
        self.with(fd, |epd| registration::register(&self.0, epd, (addr, len), offset, prot, flags))
    }

    /// Registers memory for reading at a free offset, without moving its pages. RMA of the peer
    /// accesses the memory that the addresses have at that time.
    ///
    /// # Errors
    /// As [`Endpoints::register`].
    pub(crate) fn lend(&self, fd: RawFd, memory: (usize, usize), offset: i64) -> Result<()> {
        self.with(fd, |epd| registration::lend(&self.0, epd, memory, offset))
    }

    /// Deletes the windows of a range (`scif_unregister`).
    ///
    /// # Errors
    /// [`Failure::Invalid`], then errors of the endpoint's state, then [`Failure::NoWindow`].
    pub fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        let limit_ns = self.0.config.window_rest_ns;
        self.with(fd, |epd| deletion::unregister(&self.0, epd, (offset, len), limit_ns))?;
        self.0.pins.forget(|| self.token(fd), offset, len);
        Ok(())
    }

    /// Deletes the windows of a range without a wait for RMA in progress. Their pages stay until
    /// [`Endpoints::unregister_hidden`].
    ///
    /// # Errors
    /// Errors of [`Endpoints::unregister`].
    pub(crate) fn hide(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        self.with(fd, |epd| deletion::hide(epd, (offset, len)))
    }

    /// Ends `unregister` of a range that was hidden at `since_ns` of the monotonic clock.
    ///
    /// # Errors
    /// Errors of the endpoint's state.
    pub(crate) fn unregister_hidden(
        &self,
        fd: RawFd,
        (offset, len): (i64, usize),
        since_ns: u64,
    ) -> Result<()> {
        self.with(fd, |epd| deletion::unregister_hidden(&self.0, epd, (offset, len), since_ns))?;
        self.0.pins.forget(|| self.token(fd), offset, len);
        Ok(())
    }

    /// Deletes a window of [`Endpoints::lend`]. It has no pages to release, so a stopped reader
    /// delays the caller for a short time only.
    ///
    /// # Errors
    /// Errors of [`Endpoints::unregister`].
    pub(crate) fn end_lent(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        let limit_ns = deletion::SERVICE_ANSWER_NS;
        self.with(fd, |epd| deletion::unregister(&self.0, epd, (offset, len), limit_ns))
    }

    /// Maps windows of the peer and returns the address (`scif_mmap`).
    ///
    /// # Errors
    /// [`Failure::Invalid`], then errors of the endpoint's state, then [`Failure::NoWindow`],
    /// [`Failure::NotPermitted`], [`Failure::NoMemory`].
    pub fn map(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize> {
        self.with(fd, |epd| map::map(&self.0, epd, (addr, len), offset, prot, flags))
    }

    /// Unmaps a range by munmap(2); parts of a mapping from [`map`](Self::map) as well
    /// (`scif_munmap`). A part that had replaced memory of the program is private memory
    /// afterwards.
    ///
    /// # Errors
    /// [`Failure::Invalid`] unless the range is whole pages, [`Failure::NoMemory`] above the limit
    /// of mappings.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<()> {
        self.0.filled.unmap(addr, len).map_err(|error| match error {
            Errno::NOMEM => Failure::NoMemory,
            _ => Failure::Invalid,
        })
    }

    /// Copies from windows of the peer into an own window (`scif_readfrom`).
    ///
    /// # Errors
    /// Errors of the endpoint's state, then [`Failure::Invalid`], [`Failure::NoWindow`],
    /// [`Failure::NotPermitted`].
    pub fn read_from(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.with(fd, |epd| {
            rma::transfer(&self.0, epd, Way::Read, Near::Window(near), (far, len), flags)
        })
    }

    /// Copies from an own window into windows of the peer (`scif_writeto`).
    ///
    /// # Errors
    /// As [`Endpoints::read_from`].
    pub fn write_to(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.with(fd, |epd| {
            rma::transfer(&self.0, epd, Way::Write, Near::Window(near), (far, len), flags)
        })
    }

    /// Copies from windows of the peer into memory of the program (`scif_vreadfrom`).
    ///
    /// # Errors
    /// As [`Endpoints::read_from`], and [`Failure::BadAddress`].
    pub fn read_to_memory(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        self.with(fd, |epd| {
            rma::transfer(&self.0, epd, Way::Read, Near::Memory(addr), (far, len), flags)
        })
    }

    /// Copies from memory of the program into windows of the peer (`scif_vwriteto`).
    ///
    /// # Errors
    /// As [`Endpoints::read_to_memory`].
    pub fn write_from_memory(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        self.with(fd, |epd| {
            rma::transfer(&self.0, epd, Way::Write, Near::Memory(addr), (far, len), flags)
        })
    }

    /// Copies between memory that the caller answers for and windows of the peer. Without DMA this
    /// takes one copy and no system call, so absent memory is a fault of this process.
    ///
    /// # Errors
    /// As [`Endpoints::read_to_memory`].
    pub(crate) fn transfer_lent(
        &self,
        fd: RawFd,
        way: RmaWay,
        near: &Mem,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        let way = match way {
            RmaWay::Read => Way::Read,
            RmaWay::Write => Way::Write,
        };
        self.with(fd, |epd| {
            rma::transfer(&self.0, epd, way, Near::Lent(*near), (far, near.len()), flags)
        })
    }

    /// Marks the RMAs issued so far and returns the mark (`scif_fence_mark`).
    ///
    /// # Errors
    /// Errors of the endpoint's state.
    pub fn fence_mark(&self, fd: RawFd, side: FenceSide) -> Result<i32> {
        self.with(fd, |epd| fence::fence_mark(epd, side))
    }

    /// Waits for the RMAs of a mark (`scif_fence_wait`).
    ///
    /// # Errors
    /// Errors of the endpoint's state, then [`Failure::Invalid`], [`Failure::Interrupted`].
    pub fn fence_wait(&self, fd: RawFd, mark: i32) -> Result<()> {
        self.with(fd, |epd| fence::fence_wait(&self.0, epd, mark))
    }

    /// Stores values at the end of the RMAs issued so far, with at least one signal
    /// (`scif_fence_signal`).
    ///
    /// # Errors
    /// Errors of the endpoint's state, then [`Failure::Invalid`], [`Failure::NoWindow`],
    /// [`Failure::NotPermitted`].
    pub fn fence_signal(
        &self,
        fd: RawFd,
        side: FenceSide,
        local: Option<Signal>,
        remote: Option<Signal>,
    ) -> Result<()> {
        self.with(fd, |epd| fence::fence_signal(&self.0, epd, side, local, remote))
    }

    /// Sends a slice and returns the number of bytes sent (`scif_send`).
    ///
    /// # Errors
    /// As [`Endpoints::send`].
    pub fn send_bytes(&self, fd: RawFd, bytes: &[u8], wait: bool) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        slice::with_bytes(bytes, |mem| self.send(fd, mem, wait))
    }

    /// Receives into a slice and returns the number of bytes received (`scif_recv`).
    ///
    /// # Errors
    /// As [`Endpoints::receive`].
    pub fn receive_bytes(&self, fd: RawFd, bytes: &mut [u8], wait: bool) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        slice::with_bytes_mut(bytes, |mem| self.receive(fd, mem, wait))
    }

    /// Maps windows of the peer at an address that the kernel chooses (`scif_mmap`).
    ///
    /// An access to the pages after the peer's node was lost raises SIGBUS.
    ///
    /// # Errors
    /// As [`Endpoints::map`].
    pub fn map_pages(&self, fd: RawFd, len: usize, offset: i64, write: bool) -> Result<Pages> {
        let addr = self.map(fd, (0, len), offset, if write { 3 } else { 1 }, 0)?;
        Pages::adopt(addr, len.next_multiple_of(PAGE), write)
    }

    fn token(&self, fd: RawFd) -> Option<u64> {
        self.0.get(fd).ok().map(|epd| epd.token)
    }

    /// Runs a call on the endpoint of a number. Repeats it if the number now names another
    /// endpoint.
    pub(crate) fn with<T>(&self, fd: RawFd, call: impl Fn(&Arc<Epd>) -> Result<T>) -> Result<T> {
        let epd = self.0.get(fd)?;
        match call(&epd) {
            Err(Failure::NotAnEndpoint | Failure::BadDescriptor | Failure::NotConnected)
                if epd.verify(fd).is_err() =>
            {
                call(&self.0.identify(fd)?)
            }
            // Another sharer may have connected it.
            Err(Failure::NotConnected) if sharing::inherit(&self.0, &epd) => call(&epd),
            other => other,
        }
    }
}
