// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints as `scif.h` has them: named by descriptors, used by calls that may block, shared by fork and dup.
//!
//! Not about C: `libscif` is the edge. Not about the endpoints of the provider either, which poll, never block and start
//! no thread ([`crate::Endpoint`]); both share names, ports and nodes.

mod connect;
mod endpoint;
mod failure;
mod holder;
mod kernel_mode;
mod link;
pub(crate) mod loss;
mod mainline;
mod memory;
mod messages;
pub(crate) mod nodes;
mod numbers;
mod poll;
mod registry;
mod service;
pub(crate) mod stat;
pub(crate) mod state;
mod vault;
mod wire;

use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::io::Errno;
use scif_ring::Mem;

use crate::addr::PortId;
use crate::config::Config;
use crate::logging;
use crate::transport::soft::whereabouts::{note_answer, warn_of_silence};
use crate::window::{Near, Way};
use state::State;

pub use crate::window::{FenceSide, Signal};
pub(crate) use endpoint::{Epd, take};
pub use failure::{Failure, Result};
#[cfg(test)]
pub(crate) use kernel_mode::tests::{connected, endpoints};
pub use kernel_mode::{NodeEvent, PeerPages, PinnedPages};
pub use libc::pollfd as PollFd;
pub(crate) use link::Link;
pub use loss::{Answers, LostNode, ping, restore};
pub use memory::Pages;
pub use poll::{WaitsFor, check_entries};
pub(crate) use registry::Inner;
pub(crate) use wire::Packet;

/// The endpoints of this process.
#[derive(Debug)]
pub struct Endpoints(pub(crate) Arc<Inner>);

impl Endpoints {
    /// Settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Takes part in the node the settings name, until the process ends; starts the service thread.
    ///
    /// # Errors
    /// What the system says when descriptors or threads are short.
    pub fn new(config: Config) -> Result<Endpoints> {
        config.warn();
        Inner::new(config).map(Endpoints)
    }

    /// `scif_open`.
    ///
    /// # Errors
    /// What the system says when descriptors or memory are short.
    pub fn open(&self) -> Result<RawFd> {
        self.0.open()
    }

    /// `scif_close`. Closes any descriptor, as the drivers' does.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`]; [`Failure::Invalid`] while pages got by [`get_pages`](Self::get_pages) are out.
    pub fn close(&self, fd: RawFd) -> Result<()> {
        if self.has_pages_out(fd) {
            return Err(Failure::Invalid);
        }
        self.0.close(fd)?;
        logging::settle();
        Ok(())
    }

    /// `scif_bind`; the port.
    ///
    /// # Errors
    /// [`Failure::NoAccess`], then by state, then [`Failure::Invalid`] for a port in use, [`Failure::NoPorts`].
    pub fn bind(&self, fd: RawFd, port: u16) -> Result<u16> {
        self.0.with(fd, |epd| self.0.bind(epd, port))
    }

    /// `scif_listen`.
    ///
    /// # Errors
    /// By state.
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Result<()> {
        self.0.with(fd, |epd| self.0.listen(epd, backlog))
    }

    /// `scif_connect`; the local port. Returns when the peer has accepted, unless O_NONBLOCK is set.
    ///
    /// # Errors
    /// [`Failure::NoNode`], then by state, then [`Failure::Refused`], [`Failure::InProgress`], [`Failure::NoPorts`].
    pub fn connect(&self, fd: RawFd, dst: PortId) -> Result<u16> {
        let connected = self.0.with(fd, |epd| self.0.connect(epd, fd, dst));
        match &connected {
            Ok(_) => note_answer(dst),
            Err(Failure::Refused | Failure::NoNode) => warn_of_silence(&self.0.names, dst),
            Err(_) => {}
        }
        connected
    }

    /// `scif_accept`; the peer, and the new endpoint. Blocks if `wait`.
    ///
    /// # Errors
    /// By state; [`Failure::Again`], [`Failure::Interrupted`].
    pub fn accept(&self, fd: RawFd, wait: bool) -> Result<(PortId, RawFd)> {
        self.0.with(fd, |epd| self.0.accept(epd, fd, wait))
    }

    /// `scif_send` of at least one byte; how many were sent.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], [`Failure::Interrupted`].
    pub fn send(&self, fd: RawFd, src: &Mem, wait: bool) -> Result<usize> {
        if let Some(all) = messages::send_short(&self.0, fd, src) {
            return Ok(all);
        }
        let spin_ns = self.0.config.spin_us.saturating_mul(1000);
        self.0.with(fd, |epd| messages::send(epd, fd, src, wait, spin_ns))
    }

    /// `scif_recv` of at least one byte; how many were received.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], [`Failure::Interrupted`].
    pub fn receive(&self, fd: RawFd, dst: &Mem, wait: bool) -> Result<usize> {
        let spin_ns = self.0.config.spin_us.saturating_mul(1000);
        self.0
            .with(fd, |epd| messages::receive(epd, fd, dst, wait, spin_ns))
    }

    /// `scif_poll`; how many are ready.
    ///
    /// # Errors
    /// [`Failure::Interrupted`], [`Failure::Invalid`] for more entries than there may be descriptors.
    pub fn poll(&self, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
        self.0.poll(entries, timeout_ms)
    }

    /// The wait queue at which mainline's driver would put a caller of poll(2) on this endpoint.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`], [`Failure::NotAnEndpoint`].
    pub fn waits_for(&self, fd: RawFd) -> Result<WaitsFor> {
        self.0.with(fd, |epd| Ok(poll::waits_for(epd)))
    }

    /// The nodes that are online, in ascending order, and our own.
    ///
    /// # Errors
    /// None so far.
    pub fn nodes(&self) -> Result<(Vec<u16>, u16)> {
        Ok((self.0.nodes()?.into_iter().collect(), self.0.config.node))
    }

    /// Whether calls that need a connection may be made.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`].
    pub fn usable(&self, fd: RawFd) -> Result<()> {
        self.0.with(fd, |epd| epd.connected().map(drop))
    }

    /// Whether a connection is there or was, so that something may be left to receive.
    ///
    /// # Errors
    /// [`Failure::NotConnected`].
    pub fn receivable(&self, fd: RawFd) -> Result<()> {
        self.0.with(fd, |epd| match epd.state() {
            State::Disconnected => Ok(()),
            state => state.may_use(),
        })
    }

    /// `scif_register`; the offset.
    ///
    /// # Errors
    /// [`Failure::Invalid`], then by state, then [`Failure::InUse`], [`Failure::BadAddress`], [`Failure::NoMemory`].
    pub fn register(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64> {
        self.0
            .with(fd, |epd| self.0.register(epd, addr, len, offset, prot, flags))
    }

    /// `scif_unregister`
    ///
    /// # Errors
    /// [`Failure::Invalid`], then by state, then [`Failure::NoWindow`].
    pub fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        self.0.with(fd, |epd| self.0.unregister(epd, offset, len))?;
        self.forget_pinned(fd, offset, len);
        Ok(())
    }

    /// `scif_mmap`; the address.
    ///
    /// # Errors
    /// [`Failure::Invalid`], then by state, then [`Failure::NoWindow`], [`Failure::NotPermitted`], [`Failure::NoMemory`].
    pub fn map(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize> {
        self.0
            .with(fd, |epd| self.0.map(epd, addr, len, offset, prot, flags))
    }

    /// `scif_munmap`: munmap(2), which takes parts of what [`map`](Self::map) gave as well. Where that replaced a part of the
    /// program's memory there is private memory afterwards.
    ///
    /// # Errors
    /// [`Failure::Invalid`] for what is no range of whole pages, [`Failure::NoMemory`] for more mappings than there can be.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<()> {
        self.0.filled.unmap(addr, len).map_err(|error| match error {
            Errno::NOMEM => Failure::NoMemory,
            _ => Failure::Invalid,
        })
    }

    /// `scif_readfrom`
    ///
    /// # Errors
    /// By state, then [`Failure::Invalid`], [`Failure::NoWindow`], [`Failure::NotPermitted`].
    pub fn read_from(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.0.with(fd, |epd| {
            self.0
                .transfer(epd, Way::Read, Near::Window(near), len, far, flags)
        })
    }

    /// `scif_writeto`
    ///
    /// # Errors
    /// As [`Endpoints::read_from`].
    pub fn write_to(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.0.with(fd, |epd| {
            self.0
                .transfer(epd, Way::Write, Near::Window(near), len, far, flags)
        })
    }

    /// `scif_vreadfrom`
    ///
    /// # Errors
    /// As [`Endpoints::read_from`], and [`Failure::BadAddress`].
    pub fn read_to_memory(&self, fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> Result<()> {
        self.0.with(fd, |epd| {
            self.0
                .transfer(epd, Way::Read, Near::Memory(addr), len, far, flags)
        })
    }

    /// `scif_vwriteto`
    ///
    /// # Errors
    /// As [`Endpoints::read_to_memory`].
    pub fn write_from_memory(&self, fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> Result<()> {
        self.0.with(fd, |epd| {
            self.0
                .transfer(epd, Way::Write, Near::Memory(addr), len, far, flags)
        })
    }

    /// `scif_fence_mark`; the mark.
    ///
    /// # Errors
    /// By state.
    pub fn fence_mark(&self, fd: RawFd, side: FenceSide) -> Result<i32> {
        self.0.with(fd, |epd| self.0.fence_mark(epd, side))
    }

    /// `scif_fence_wait`
    ///
    /// # Errors
    /// By state, then [`Failure::Invalid`], [`Failure::Interrupted`].
    pub fn fence_wait(&self, fd: RawFd, mark: i32) -> Result<()> {
        self.0.with(fd, |epd| self.0.fence_wait(epd, mark))
    }

    /// `scif_fence_signal`, with at least one of the signals.
    ///
    /// # Errors
    /// By state, then [`Failure::Invalid`], [`Failure::NoWindow`], [`Failure::NotPermitted`].
    pub fn fence_signal(
        &self,
        fd: RawFd,
        side: FenceSide,
        local: Option<Signal>,
        remote: Option<Signal>,
    ) -> Result<()> {
        self.0
            .with(fd, |epd| self.0.fence_signal(epd, side, local, remote))
    }
}
