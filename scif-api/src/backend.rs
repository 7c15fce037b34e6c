// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice of the implementation that serves the calls of `scif.h` in this process: the engine, or a
//! driver of the kernel. The only place that chooses.
//!
//! Not about the calls: [`Endpoints`] documents them, and [`Device`] the corrections for drivers.

use std::os::fd::RawFd;

use scif::Device;
use scif::PortId;
use scif::{Carrier, Config};
use scif_ring::Mem;

use crate::{Endpoints, FenceSide, PollFd, Result, Signal};

/// Implementation that serves the calls.
#[derive(Debug)]
pub enum Backend {
    /// The engine of this library, without a driver.
    Soft(Endpoints),
    /// A driver of the kernel.
    Kernel(Device),
}

/// Forwards a call to the implementation in use.
macro_rules! either {
    ($backend:ident, $served:ident => $call:expr) => {
        match $backend {
            Backend::Soft($served) => $call,
            Backend::Kernel($served) => $call,
        }
    };
}

impl Backend {
    /// Chooses by the settings.
    ///
    /// # Errors
    /// The error of opening the driver, where one is required; those of [`Endpoints::new`].
    pub fn new(config: Config) -> Result<Backend> {
        config.warn();
        match config.carrier {
            Carrier::Soft => {}
            Carrier::Kernel => return Device::demand(&config).map(Backend::Kernel),
            Carrier::Auto => {
                if let Some(device) = Device::open(&config).ok().filter(Device::works) {
                    return Ok(Backend::Kernel(device));
                }
            }
        }
        Endpoints::new(config).map(Backend::Soft)
    }

    /// `scif_open`
    ///
    /// # Errors
    /// As [`Endpoints::open`].
    pub fn open(&self) -> Result<RawFd> {
        match self {
            Backend::Soft(endpoints) => endpoints.open(),
            Backend::Kernel(device) => device.open_endpoint(),
        }
    }

    /// `scif_close`
    ///
    /// # Errors
    /// As [`Endpoints::close`].
    pub fn close(&self, fd: RawFd) -> Result<()> {
        either!(self, served => served.close(fd))
    }

    /// `scif_bind`; returns the port.
    ///
    /// # Errors
    /// As [`Endpoints::bind`].
    pub fn bind(&self, fd: RawFd, port: u16) -> Result<u16> {
        either!(self, served => served.bind(fd, port))
    }

    /// `scif_listen`
    ///
    /// # Errors
    /// As [`Endpoints::listen`].
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Result<()> {
        either!(self, served => served.listen(fd, backlog))
    }

    /// `scif_connect`; returns the local port.
    ///
    /// # Errors
    /// As [`Endpoints::connect`].
    pub fn connect(&self, fd: RawFd, dst: PortId) -> Result<u16> {
        either!(self, served => served.connect(fd, dst))
    }

    /// `scif_accept`; returns the peer and the new endpoint.
    ///
    /// # Errors
    /// As [`Endpoints::accept`].
    pub fn accept(&self, fd: RawFd, wait: bool) -> Result<(PortId, RawFd)> {
        either!(self, served => served.accept(fd, wait))
    }

    /// `scif_send` of at least one byte; returns the number of bytes sent.
    ///
    /// # Errors
    /// As [`Endpoints::send`].
    #[inline]
    pub fn send(&self, fd: RawFd, src: &Mem, wait: bool) -> Result<usize> {
        either!(self, served => served.send(fd, src, wait))
    }

    /// `scif_recv` of at least one byte; returns the number of bytes received.
    ///
    /// # Errors
    /// As [`Endpoints::receive`].
    #[inline]
    pub fn receive(&self, fd: RawFd, dst: &Mem, wait: bool) -> Result<usize> {
        either!(self, served => served.receive(fd, dst, wait))
    }

    /// `scif_poll`; returns the number of ready entries.
    ///
    /// # Errors
    /// As [`Endpoints::poll`].
    pub fn poll(&self, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
        either!(self, served => served.poll(entries, timeout_ms))
    }

    /// Returns the online nodes in ascending order, and the own node.
    ///
    /// # Errors
    /// As [`Endpoints::nodes`].
    pub fn nodes(&self) -> Result<(Vec<u16>, u16)> {
        either!(self, served => served.nodes())
    }

    /// Checks that calls that need a connection are permitted.
    ///
    /// # Errors
    /// As [`Endpoints::usable`].
    pub fn usable(&self, fd: RawFd) -> Result<()> {
        either!(self, served => served.usable(fd))
    }

    /// Checks that a connection exists or existed, so that bytes may be left to receive.
    ///
    /// # Errors
    /// As [`Endpoints::receivable`].
    pub fn receivable(&self, fd: RawFd) -> Result<()> {
        either!(self, served => served.receivable(fd))
    }

    /// `scif_register`; returns the offset.
    ///
    /// # Errors
    /// As [`Endpoints::register`].
    pub fn register(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64> {
        either!(self, served => served.register(fd, (addr, len), offset, prot, flags))
    }

    /// `scif_unregister`
    ///
    /// # Errors
    /// As [`Endpoints::unregister`].
    pub fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        either!(self, served => served.unregister(fd, offset, len))
    }

    /// `scif_mmap`; returns the address.
    ///
    /// # Errors
    /// As [`Endpoints::map`].
    pub fn map(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize> {
        either!(self, served => served.map(fd, (addr, len), offset, prot, flags))
    }

    /// `scif_munmap`
    ///
    /// # Errors
    /// As [`Endpoints::unmap`].
    pub fn unmap(&self, addr: usize, len: usize) -> Result<()> {
        either!(self, served => served.unmap(addr, len))
    }

    /// `scif_readfrom`
    ///
    /// # Errors
    /// As [`Endpoints::read_from`].
    pub fn read_from(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        either!(self, served => served.read_from(fd, near, len, far, flags))
    }

    /// `scif_writeto`
    ///
    /// # Errors
    /// As [`Endpoints::write_to`].
    pub fn write_to(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        either!(self, served => served.write_to(fd, near, len, far, flags))
    }

    /// `scif_vreadfrom`
    ///
    /// # Errors
    /// As [`Endpoints::read_to_memory`].
    pub fn read_to_memory(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        either!(self, served => served.read_to_memory(fd, addr, len, far, flags))
    }

    /// `scif_vwriteto`
    ///
    /// # Errors
    /// As [`Endpoints::write_from_memory`].
    pub fn write_from_memory(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        either!(self, served => served.write_from_memory(fd, addr, len, far, flags))
    }

    /// `scif_fence_mark`; returns the mark.
    ///
    /// # Errors
    /// As [`Endpoints::fence_mark`].
    pub fn fence_mark(&self, fd: RawFd, side: FenceSide) -> Result<i32> {
        either!(self, served => served.fence_mark(fd, side))
    }

    /// `scif_fence_wait`
    ///
    /// # Errors
    /// As [`Endpoints::fence_wait`].
    pub fn fence_wait(&self, fd: RawFd, mark: i32) -> Result<()> {
        either!(self, served => served.fence_wait(fd, mark))
    }

    /// `scif_fence_signal`, with at least one of the signals.
    ///
    /// # Errors
    /// As [`Endpoints::fence_signal`].
    pub fn fence_signal(
        &self,
        fd: RawFd,
        side: FenceSide,
        local: Option<Signal>,
        remote: Option<Signal>,
    ) -> Result<()> {
        either!(self, served => served.fence_signal(fd, side, local, remote))
    }
}

#[cfg(test)]
mod tests {
    use scif::failure::Failure;

    use super::*;

    #[test]
    fn a_driver_is_taken_if_there_is_one_and_demanded_if_said_so() {
        // A device that opens, but is no SCIF driver.
        let config = |carrier| Config {
            carrier,
            device: Some("/dev/null".into()),
            domain: Some(format!("backend-{}", scif::sys::process::pid())),
            ..Config::default()
        };
        let demanded = Backend::new(config(Carrier::Kernel)).unwrap_err();
        assert_eq!(demanded, Failure::Os(rustix::io::Errno::NOTTY));
        for carrier in [Carrier::Auto, Carrier::Soft] {
            let backend = Backend::new(config(carrier)).unwrap();
            assert!(matches!(backend, Backend::Soft(_)));
            let fd = backend.open().unwrap();
            assert_eq!(backend.usable(fd), Err(Failure::NotConnected));
            assert_eq!(backend.receivable(fd), Err(Failure::NotConnected));
            backend.close(fd).unwrap();
        }
    }
}
