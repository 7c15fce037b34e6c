// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice of the implementation that serves the calls of `scif.h` in this process: the engine, or a
//! driver of the kernel. The only place that chooses.
//!
//! Not about the calls: [`Endpoints`] documents them, and [`Device`] the corrections for drivers.

use std::os::fd::RawFd;

use scif::failure::Failure;
use scif::sys::mmap::Mapping;
use scif::{
    Carrier, Config, Device, PortId, RmaMode, RmaWay, ScifCalls, WindowAccess, WindowCalls,
    WindowKind,
};
use scif_ring::Mem;

use crate::{Endpoints, FenceSide, PollFd, Result, Signal};

/// SCIF_MAP_FIXED of `scif.h`.
const MAP_FIXED: i32 = 0x10;

/// Implementation that serves the calls.
#[derive(Debug)]
pub enum Backend {
    /// The engine of this library, without a driver.
    Soft(Endpoints),
    /// A driver of the kernel.
    Kernel(Device),
}

/// Defines calls that the implementation in use serves.
macro_rules! forward {
    ($($call:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Backend {
            $(
                #[doc = concat!("See [`Endpoints::", stringify!($call), "`].")]
                ///
                /// # Errors
                #[doc = concat!("As [`Endpoints::", stringify!($call), "`].")]
                #[inline]
                pub fn $call(&self, $($arg: $type),*) -> Result<$result> {
                    match self {
                        Backend::Soft(served) => served.$call($($arg),*),
                        Backend::Kernel(served) => served.$call($($arg),*),
                    }
                }
            )*
        }
    };
}

forward! {
    close(fd: RawFd) -> ();
    bind(fd: RawFd, port: u16) -> u16;
    listen(fd: RawFd, backlog: i32) -> ();
    connect(fd: RawFd, dst: PortId) -> u16;
    accept(fd: RawFd, wait: bool) -> (PortId, RawFd);
    send(fd: RawFd, src: &Mem, wait: bool) -> usize;
    receive(fd: RawFd, dst: &Mem, wait: bool) -> usize;
    poll(entries: &mut [PollFd], timeout_ms: i32) -> usize;
    nodes() -> (Vec<u16>, u16);
    usable(fd: RawFd) -> ();
    receivable(fd: RawFd) -> ();
    register(fd: RawFd, memory: (usize, usize), offset: i64, prot: i32, flags: i32) -> i64;
    unregister(fd: RawFd, offset: i64, len: usize) -> ();
    map(fd: RawFd, place: (usize, usize), offset: i64, prot: i32, flags: i32) -> usize;
    unmap(addr: usize, len: usize) -> ();
    read_from(fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> ();
    write_to(fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> ();
    read_to_memory(fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> ();
    write_from_memory(fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> ();
    fence_mark(fd: RawFd, side: FenceSide) -> i32;
    fence_wait(fd: RawFd, mark: i32) -> ();
    fence_signal(fd: RawFd, side: FenceSide, near: Option<Signal>, far: Option<Signal>) -> ();
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
}

/// Calls of the provider's transport `scif`.
impl ScifCalls for Backend {
    fn open(&self) -> Result<RawFd> {
        Backend::open(self)
    }

    fn close(&self, fd: RawFd) {
        let _ = Backend::close(self, fd);
    }

    fn bind(&self, fd: RawFd, port: u16) -> Result<u16> {
        Backend::bind(self, fd, port)
    }

    fn listen(&self, fd: RawFd, backlog: i32) -> Result<()> {
        Backend::listen(self, fd, backlog)
    }

    fn connect(&self, fd: RawFd, dst: PortId) -> Result<()> {
        Backend::connect(self, fd, dst).map(drop)
    }

    fn accept_into(&self, fd: RawFd, new: RawFd) -> Result<PortId> {
        match self {
            Backend::Soft(endpoints) => {
                let (peer, accepted) = endpoints.accept(fd, false)?;
                endpoints.replace(accepted, new).inspect_err(|_| {
                    let _ = endpoints.close(accepted);
                })?;
                Ok(peer)
            }
            Backend::Kernel(device) => ScifCalls::accept_into(device, fd, new),
        }
    }

    fn send(&self, fd: RawFd, src: &Mem) -> Result<usize> {
        Backend::send(self, fd, src, false)
    }

    fn receive(&self, fd: RawFd, dst: &Mem) -> Result<usize> {
        Backend::receive(self, fd, dst, false)
    }

    fn window_kind(&self) -> Option<WindowKind> {
        match self {
            Backend::Soft(_) => Some(WindowKind::Shared),
            Backend::Kernel(device) => device.window_kind(),
        }
    }

    fn share(&self, fd: RawFd, len: usize) -> Result<(Mapping, i64)> {
        if let Backend::Kernel(device) = self {
            return ScifCalls::share(device, fd, len);
        }
        let map = Mapping::private(len)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = Backend::register(self, fd, (map.address(), len), 0, access, 0)?;
        Ok((map, offset))
    }

    fn map(&self, fd: RawFd, len: usize, offset: i64) -> Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        Mapping::for_library(len, true, || Backend::map(self, fd, (0, len), offset, access, 0))
    }

    fn key_windows(&self) -> Option<&dyn WindowCalls> {
        Some(self)
    }

    fn nodes(&self) -> Result<(Vec<u16>, u16)> {
        Backend::nodes(self)
    }

    fn name(&self) -> String {
        match self {
            Backend::Soft(_) => "the engine of scif.h".to_owned(),
            Backend::Kernel(device) => ScifCalls::name(device),
        }
    }
}

impl WindowCalls for Backend {
    fn register_at(
        &self,
        fd: RawFd,
        memory: (usize, usize),
        offset: i64,
        access: WindowAccess,
    ) -> Result<()> {
        let at = Backend::register(self, fd, memory, offset, access.flags(), MAP_FIXED)?;
        if at == offset { Ok(()) } else { Err(Failure::Broken) }
    }

    fn lend_at(&self, fd: RawFd, memory: (usize, usize), offset: i64) -> Result<()> {
        match self {
            Backend::Soft(endpoints) => endpoints.lend(fd, memory, offset),
            Backend::Kernel(device) => WindowCalls::lend_at(device, fd, memory, offset),
        }
    }

    fn lends_addresses(&self) -> bool {
        matches!(self, Backend::Soft(_))
    }

    fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        Backend::unregister(self, fd, offset, len)
    }

    fn hide(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        match self {
            Backend::Soft(endpoints) => endpoints.hide(fd, offset, len),
            Backend::Kernel(device) => device.hide(fd, offset, len),
        }
    }

    fn unregister_hidden(&self, fd: RawFd, range: (i64, usize), since_ns: u64) -> Result<()> {
        match self {
            Backend::Soft(endpoints) => endpoints.unregister_hidden(fd, range, since_ns),
            Backend::Kernel(device) => device.unregister_hidden(fd, range, since_ns),
        }
    }

    fn end_lent(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        match self {
            Backend::Soft(endpoints) => endpoints.end_lent(fd, offset, len),
            Backend::Kernel(device) => WindowCalls::end_lent(device, fd, offset, len),
        }
    }

    fn transfer(&self, fd: RawFd, way: RmaWay, near: &Mem, far: i64, mode: RmaMode) -> Result<()> {
        let (addr, len) = (near.as_ptr().expose_provenance(), near.len());
        match (self, way) {
            (Backend::Soft(endpoints), _) => {
                endpoints.transfer_lent(fd, way, near, far, mode.flags())
            }
            (Backend::Kernel(_), RmaWay::Read) => {
                self.read_to_memory(fd, addr, len, far, mode.flags())
            }
            (Backend::Kernel(_), RmaWay::Write) => {
                self.write_from_memory(fd, addr, len, far, mode.flags())
            }
        }
    }

    fn dma_min(&self) -> Option<u64> {
        match self {
            Backend::Soft(endpoints) => Some(endpoints.dma_min()),
            Backend::Kernel(device) => WindowCalls::dma_min(device),
        }
    }

    fn signal_after_own(&self, fd: RawFd, signal: Signal) -> Result<()> {
        Backend::fence_signal(self, fd, FenceSide::Own, Some(signal), None)
    }
}

#[cfg(test)]
mod tests {
    use scif::failure::Failure;

    use super::*;

    #[test]
    fn a_peer_maps_memory_registered_by_the_calls() {
        const LEN: usize = 8192;
        let _alone = scif::sys::children::none();
        let config = Config {
            carrier: Carrier::Soft,
            domain: Some(format!("calls-{}", scif::sys::process::pid())),
            ..Config::default()
        };
        let backend = Backend::new(config).unwrap();
        let calls: &dyn ScifCalls = &backend;
        assert_eq!(calls.window_kind(), Some(WindowKind::Shared));
        let listener = calls.open().unwrap();
        let port = calls.bind(listener, 0).unwrap();
        calls.listen(listener, 1).unwrap();
        let (opener, place) = (calls.open().unwrap(), calls.open().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| calls.connect(opener, PortId::new(0, port)).unwrap());
            while calls.accept_into(listener, place) == Err(Failure::Again) {
                std::thread::yield_now();
            }
        });
        let (own, offset) = calls.share(opener, LEN).unwrap();
        let mapped = calls.map(place, LEN, offset).unwrap();
        let (near, far) = (own.bytes(0, 4).unwrap(), mapped.bytes(0, 4).unwrap());
        near.copy_from_slice(&[1, 2, 3, 4]);
        let mut got = [0; 4];
        far.copy_to_slice(&mut got);
        assert_eq!(got, [1, 2, 3, 4], "one memory");
        far.copy_from_slice(&[7; 4]);
        drop(mapped);
        for fd in [place, opener, listener] {
            calls.close(fd);
        }
        near.copy_to_slice(&mut got);
        assert_eq!(got, [7; 4], "still memory of the owner");
    }

    #[test]
    fn driver_is_used_if_present_and_required_by_setting() {
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
