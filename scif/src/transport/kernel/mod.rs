// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The SCIF driver of a kernel: each call of `scif.h` is one call of the driver, as in the drivers'
//! own library.
//!
//! Not about the driver's implementation: endpoints, windows and errors are the driver's. Only the
//! kind of the driver is stored, determined once by queries: mainline Linux (4.2 to 5.9) and MPSS 4
//! at `/dev/scif`, MPSS 3 at `/dev/mic/scif`. Defects of the drivers that would affect a program
//! are corrected:
//!
//! | driver | defect | correction |
//! |---|---|---|
//! | mainline since 4.19 | connect of an unbound endpoint returns 0 without effect | bound before |
//! | all | bind declares an argument of 8 bytes and uses 4 | 8, all zero |
//! | mainline | the list of nodes lacks the last one | added |
//! | mainline | FIXED into a part of another window picks another offset | undone; EADDRINUSE |
//! | MPSS 4 | more locked memory than permitted is EAGAIN | ENOMEM, as the others |
//!
//! FIXED at the exact offset of another window cannot be distinguished from success on mainline,
//! and creates two windows at that offset.

pub mod abi;
mod call;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use libc::pollfd as PollFd;
use rustix::io::Errno;
use scif_ring::Mem;

use self::abi::{Call, Encoding};
use crate::addr::PortId;
use crate::config::Config;
use crate::error::Error;
use crate::failure::Failure;
use crate::fence::{FenceSide, Signal};
use crate::scif_calls::{ScifCalls, WindowKind};
use crate::sys::descriptor;
use crate::sys::mmap::Mapping;
use crate::window_calls::{RmaMode, RmaWay, WindowAccess, WindowCalls};

/// Paths of the drivers' devices.
const DEVICES: [&CStr; 2] = [c"/dev/scif", c"/dev/mic/scif"];
/// Capacity for nodes, above the number of any driver.
const NODES: usize = 512;
/// Value of an entry that the driver did not write. No driver gives a node this number.
const UNWRITTEN: u16 = u16::MAX;

/// Kind of a driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// Mainline Linux.
    Mainline,
    /// MPSS 3, for the first Xeon Phi.
    Mpss3,
    /// MPSS 4, for the second.
    Mpss4,
}

impl Driver {
    fn encoding(self) -> Encoding {
        match self {
            Driver::Mainline | Driver::Mpss4 => Encoding::Struct,
            Driver::Mpss3 => Encoding::Pointer,
        }
    }
}

/// A driver, with endpoints of this process named by descriptors, as in
/// [`Endpoints`](crate::Endpoints).
#[derive(Debug)]
pub struct Device {
    path: CString,
    driver: Driver,
    /// Length in bytes from which RMA is left to DMA, if the user has set it.
    dma_min: Option<u64>,
}

/// Converts an address to the driver's type.
fn address(at: usize) -> u64 {
    at as u64
}

/// Devices that were tried, and the most informative of their failures.
#[derive(Clone, Debug)]
pub(crate) struct NoDevice {
    failure: Failure,
    tried: Vec<String>,
}

impl NoDevice {
    fn and(mut self, path: &CStr, failure: Failure) -> NoDevice {
        self.tried.push(format!("{}: {failure}", path.to_string_lossy()));
        // A device that exists but is not usable is more informative.
        if failure != Failure::Os(Errno::NOENT) {
            self.failure = failure;
        }
        self
    }
}

impl From<NoDevice> for Error {
    fn from(none: NoDevice) -> Error {
        Error::NoDriver { tried: none.tried.join(", "), errno: none.failure.errno() }
    }
}

impl Device {
    /// Finds the driver: at the device in the settings, or at the first usual path that opens.
    ///
    /// # Errors
    /// The error of opening the device; ENXIO for an unknown version.
    pub fn open(config: &Config) -> Result<Device, Failure> {
        Device::find(config).map_err(|none| none.failure)
    }

    /// Variant of [`Device::open`] for a required driver: a failure is logged.
    ///
    /// # Errors
    /// Errors of [`Device::open`].
    pub fn demand(config: &Config) -> Result<Device, Failure> {
        Device::find(config).map_err(|none| {
            log::warn!("{}", Error::from(none.clone()));
            none.failure
        })
    }

    /// Finds the driver, and lists the failed devices otherwise.
    ///
    /// # Errors
    /// Answer of each device.
    pub(crate) fn find(config: &Config) -> Result<Device, NoDevice> {
        let mut none = NoDevice { failure: Failure::Os(Errno::NOENT), tried: Vec::new() };
        let named = match &config.device {
            Some(path) => match CString::new(path.as_os_str().as_bytes()) {
                Ok(path) => Some(path),
                Err(_) => return Err(none.and(c"SCIF_DEVICE", Failure::Invalid)),
            },
            None => None,
        };
        let paths = named.map_or_else(|| DEVICES.map(CStr::to_owned).to_vec(), |path| vec![path]);
        for path in paths {
            match call::open(&path, true) {
                Ok(probe) => {
                    return match recognize(&probe) {
                        Ok(driver) => {
                            let dma_min = config.dma_min_is_set.then_some(config.dma_min);
                            Ok(Device { path, driver, dma_min })
                        }
                        Err(failure) => Err(none.and(&path, failure)),
                    };
                }
                Err(errno) => none = none.and(&path, errno.into()),
            }
        }
        Err(none)
    }

    /// Returns the kind of the driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Returns the path of the device.
    #[must_use]
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// Whether the driver has nodes. Mainline's opens on a machine without a card, but connects
    /// nothing.
    #[must_use]
    pub fn works(&self) -> bool {
        self.nodes().is_ok_and(|(nodes, _)| !nodes.is_empty())
    }

    fn number(&self, call: Call) -> u32 {
        self.driver.encoding().number(call)
    }

    fn call_with_struct<T: call::Argument>(
        &self,
        fd: RawFd,
        call: Call,
        argument: &mut T,
    ) -> Result<(), Failure> {
        call::call_with_struct(fd, self.driver.encoding(), call, argument)?;
        Ok(())
    }
}

/// Defines the RMA calls, from the start of the near range to the transfer that describes it.
macro_rules! rma_calls {
    ($(
        #[doc = $about:literal]
        $name:ident($near:ident: $type:ty), $call:ident, $transfer:ident;
    )*) => {$(
        #[doc = $about]
        pub fn $name(
            &self,
            fd: RawFd,
            $near: $type,
            len: usize,
            far: i64,
            flags: i32,
        ) -> Result<(), Failure> {
            self.transfer(fd, Call::$call, $transfer($near, len, far, flags))
        }
    )*};
}

/// Calls of `scif.h`. Each returns the error of the driver.
#[allow(clippy::missing_errors_doc, reason = "stated once, for all calls")]
impl Device {
    /// `scif_open`
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open_endpoint(&self) -> Result<RawFd, Failure> {
        Ok(descriptor::release(call::open(&self.path, true)?))
    }

    /// `scif_close`
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`].
    pub fn close(&self, fd: RawFd) -> Result<(), Failure> {
        Ok(descriptor::close(fd)?)
    }

    /// `scif_bind`; returns the port.
    pub fn bind(&self, fd: RawFd, port: u16) -> Result<u16, Failure> {
        let mut bind = abi::Bind { port: i32::from(port), pad: 0 };
        self.call_with_struct(fd, Call::Bind, &mut bind)?;
        u16::try_from(bind.port).map_err(|_| Failure::Broken)
    }

    /// `scif_listen`
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Failure> {
        call::call_with_number(fd, self.number(Call::Listen), backlog)?;
        Ok(())
    }

    /// `scif_connect`; returns the local port.
    pub fn connect(&self, fd: RawFd, dst: PortId) -> Result<u16, Failure> {
        match self.bind(fd, 0) {
            // Bound already, or in a state about which connect returns a better error.
            Ok(_) | Err(Failure::Os(Errno::INVAL | Errno::ISCONN)) => {}
            Err(failure) => return Err(failure),
        }
        let mut connect = abi::Connect {
            own: abi::PortAddr::default(),
            peer: abi::PortAddr { node: dst.node, port: dst.port },
        };
        self.call_with_struct(fd, Call::Connect, &mut connect)?;
        Ok(connect.own.port)
    }

    /// `scif_accept`; returns the peer and the new endpoint.
    pub fn accept(&self, fd: RawFd, wait: bool) -> Result<(PortId, RawFd), Failure> {
        // Opened first: an accepted request cannot be returned if no descriptor is left. Not
        // close-on-exec, as in the drivers' library.
        let new = call::open(&self.path, false)?;
        let peer = self.accept_new(fd, new.as_raw_fd(), wait)?;
        Ok((peer, descriptor::release(new)))
    }

    /// Accepts a connection into an existing endpoint `new`; returns the peer.
    fn accept_new(&self, fd: RawFd, new: RawFd, wait: bool) -> Result<PortId, Failure> {
        let mut accept = abi::Accept {
            flags: if wait { abi::ACCEPT_SYNC } else { 0 },
            ..abi::Accept::default()
        };
        self.call_with_struct(fd, Call::AcceptReq, &mut accept)?;
        let mut cookie = abi::Cookie { cookie: accept.cookie };
        self.call_with_struct(new, Call::AcceptReg, &mut cookie)?;
        Ok(PortId::new(accept.peer.node, accept.peer.port))
    }

    /// `scif_send`; returns the number of bytes sent.
    pub fn send(&self, fd: RawFd, src: &Mem, wait: bool) -> Result<usize, Failure> {
        self.message(fd, Call::Send, src, wait)
    }

    /// `scif_recv`; returns the number of bytes received.
    pub fn receive(&self, fd: RawFd, dst: &Mem, wait: bool) -> Result<usize, Failure> {
        self.message(fd, Call::Recv, dst, wait)
    }

    fn message(&self, fd: RawFd, call: Call, mem: &Mem, wait: bool) -> Result<usize, Failure> {
        let mut msg = abi::Msg {
            msg: address(mem.as_ptr().expose_provenance()),
            len: i32::try_from(mem.len()).map_err(|_| Failure::Invalid)?,
            flags: if wait { abi::BLOCK } else { 0 },
            out_len: 0,
            pad: 0,
        };
        self.call_with_struct(fd, call, &mut msg)?;
        usize::try_from(msg.out_len).map_err(|_| Failure::Broken)
    }

    /// `scif_poll`; returns the number of ready entries.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn poll(&self, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize, Failure> {
        Ok(descriptor::poll_raw(entries, timeout_ms)?)
    }

    /// Returns the online nodes in ascending order, and the own node.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn nodes(&self) -> Result<(Vec<u16>, u16), Failure> {
        let any = call::open(&self.path, true)?;
        let mut nodes = vec![UNWRITTEN; NODES];
        let mut own = 0u16;
        let (first, me) = (
            address(nodes.as_mut_ptr().expose_provenance()),
            address((&raw mut own).expose_provenance()),
        );
        let room = i32::try_from(NODES).unwrap_or(i32::MAX);
        let fd = any.as_raw_fd();
        let online = match self.driver.encoding() {
            Encoding::Struct => {
                let mut ids = abi::NodeIds { nodes: first, own: me, len: room, pad: 0 };
                self.call_with_struct(fd, Call::GetNodeIds, &mut ids)?;
                ids.len
            }
            Encoding::Pointer => {
                let mut ids = abi::NodeIds3 { nodes: first, len: room, pad: 0, own: me };
                self.call_with_struct(fd, Call::GetNodeIds, &mut ids)?;
                ids.len
            }
        };
        nodes.truncate(usize::try_from(online).unwrap_or(0));
        complete(&mut nodes);
        Ok((nodes, own))
    }

    /// Checks that calls that need a connection are permitted.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], or the error for a descriptor that is no
    /// endpoint.
    pub fn usable(&self, fd: RawFd) -> Result<(), Failure> {
        // The driver checks the state before the flags, which are invalid.
        match self.mark(fd, 0) {
            Err(Failure::Os(Errno::INVAL)) | Ok(_) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Checks that a connection exists or existed.
    ///
    /// # Errors
    /// Errors of [`usable`](Self::usable), except for a former connection.
    pub fn receivable(&self, fd: RawFd) -> Result<(), Failure> {
        match self.usable(fd) {
            Err(Failure::Os(Errno::CONNRESET)) => Ok(()),
            other => other,
        }
    }

    /// `scif_register`; returns the offset.
    pub fn register(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64, Failure> {
        let mut reg =
            abi::Reg { addr: address(addr), len: len as u64, offset, prot, flags, out_offset: 0 };
        match self.call_with_struct(fd, Call::Reg, &mut reg) {
            Ok(()) => {}
            Err(Failure::Os(Errno::AGAIN)) => return Err(Failure::NoMemory),
            Err(failure) => return Err(failure),
        }
        if flags & abi::MAP_FIXED != 0 && reg.out_offset != offset {
            let _ = self.unregister(fd, reg.out_offset, len);
            return Err(Failure::InUse);
        }
        Ok(reg.out_offset)
    }

    /// `scif_unregister`
    pub fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<(), Failure> {
        let mut unreg = abi::Unreg { offset, len: len as u64 };
        self.call_with_struct(fd, Call::Unreg, &mut unreg)
    }

    /// `scif_mmap`; returns the address.
    ///
    /// # Errors
    /// Errors of mmap(2), and the driver's.
    pub fn map(
        &self,
        fd: RawFd,
        (addr, len): (usize, usize),
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize, Failure> {
        Ok(call::map(fd, addr, len, prot, flags | libc::MAP_SHARED, offset)?)
    }

    /// `scif_munmap`
    ///
    /// # Errors
    /// Errors of munmap(2).
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Failure> {
        Ok(call::unmap(addr, len)?)
    }

    /// Executes one of the four RMA calls.
    fn transfer(&self, fd: RawFd, call: Call, mut transfer: abi::Transfer) -> Result<(), Failure> {
        self.call_with_struct(fd, call, &mut transfer)
    }

    rma_calls! {
        /// `scif_readfrom`
        read_from(near: i64), ReadFrom, windows;
        /// `scif_writeto`
        write_to(near: i64), WriteTo, windows;
        /// `scif_vreadfrom`
        read_to_memory(addr: usize), VReadFrom, memory;
        /// `scif_vwriteto`
        write_from_memory(addr: usize), VWriteTo, memory;
    }

    fn mark(&self, fd: RawFd, flags: i32) -> Result<i32, Failure> {
        let mut mark = 0i32;
        let mut fence =
            abi::FenceMark { flags, pad: 0, mark: address((&raw mut mark).expose_provenance()) };
        self.call_with_struct(fd, Call::FenceMark, &mut fence)?;
        Ok(mark)
    }

    /// `scif_fence_mark`; returns the mark.
    pub fn fence_mark(&self, fd: RawFd, side: FenceSide) -> Result<i32, Failure> {
        self.mark(fd, begun_by(side))
    }

    /// `scif_fence_wait`
    pub fn fence_wait(&self, fd: RawFd, mark: i32) -> Result<(), Failure> {
        call::call_with_number(fd, self.number(Call::FenceWait), mark)?;
        Ok(())
    }

    /// `scif_fence_signal`
    pub fn fence_signal(
        &self,
        fd: RawFd,
        side: FenceSide,
        local: Option<Signal>,
        remote: Option<Signal>,
    ) -> Result<(), Failure> {
        let none = Signal { offset: 0, value: 0 };
        let (near, far) = (local.unwrap_or(none), remote.unwrap_or(none));
        let mut fence = abi::FenceSignal {
            loff: near.offset,
            lval: near.value,
            roff: far.offset,
            rval: far.value,
            flags: begun_by(side)
                | local.map_or(0, |_| abi::SIGNAL_LOCAL)
                | remote.map_or(0, |_| abi::SIGNAL_REMOTE),
            pad: 0,
        };
        self.call_with_struct(fd, Call::FenceSignal, &mut fence)
    }
}

impl ScifCalls for Device {
    fn open(&self) -> Result<RawFd, Failure> {
        self.open_endpoint()
    }

    fn close(&self, fd: RawFd) {
        let _ = Device::close(self, fd);
    }

    fn bind(&self, fd: RawFd, port: u16) -> Result<u16, Failure> {
        Device::bind(self, fd, port)
    }

    fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Failure> {
        Device::listen(self, fd, backlog)
    }

    fn connect(&self, fd: RawFd, dst: PortId) -> Result<(), Failure> {
        Device::connect(self, fd, dst).map(drop)
    }

    fn accept_into(&self, fd: RawFd, new: RawFd) -> Result<PortId, Failure> {
        self.accept_new(fd, new, false)
    }

    fn send(&self, fd: RawFd, src: &Mem) -> Result<usize, Failure> {
        Device::send(self, fd, src, false)
    }

    fn receive(&self, fd: RawFd, dst: &Mem) -> Result<usize, Failure> {
        Device::receive(self, fd, dst, false)
    }

    fn window_kind(&self) -> Option<WindowKind> {
        Some(WindowKind::Pinned)
    }

    fn share(&self, fd: RawFd, len: usize) -> Result<(Mapping, i64), Failure> {
        let map = Mapping::private_for_library(len)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = Device::register(self, fd, (map.address(), len), 0, access, 0)?;
        Ok((map, offset))
    }

    fn map(&self, fd: RawFd, len: usize, offset: i64) -> Result<Mapping, Failure> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        Mapping::for_library(len, true, || Device::map(self, fd, (0, len), offset, access, 0))
    }

    fn key_windows(&self) -> Option<&dyn WindowCalls> {
        Some(self)
    }

    fn nodes(&self) -> Result<(Vec<u16>, u16), Failure> {
        Device::nodes(self)
    }

    fn name(&self) -> String {
        format!("the SCIF driver at {}", self.path.to_string_lossy())
    }
}

impl WindowCalls for Device {
    fn register_at(
        &self,
        fd: RawFd,
        memory: (usize, usize),
        offset: i64,
        access: WindowAccess,
    ) -> Result<(), Failure> {
        let at = Device::register(self, fd, memory, offset, access.flags(), abi::MAP_FIXED)?;
        if at == offset { Ok(()) } else { Err(Failure::Broken) }
    }

    fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<(), Failure> {
        Device::unregister(self, fd, offset, len)
    }

    fn transfer(
        &self,
        fd: RawFd,
        way: RmaWay,
        near: &Mem,
        far: i64,
        mode: RmaMode,
    ) -> Result<(), Failure> {
        let (addr, len) = (near.as_ptr().expose_provenance(), near.len());
        match way {
            RmaWay::Read => self.read_to_memory(fd, addr, len, far, mode.flags()),
            RmaWay::Write => self.write_from_memory(fd, addr, len, far, mode.flags()),
        }
    }

    fn dma_min(&self) -> Option<u64> {
        self.dma_min
    }

    fn signal_after_own(&self, fd: RawFd, signal: Signal) -> Result<(), Failure> {
        Device::fence_signal(self, fd, FenceSide::Own, Some(signal), None)
    }
}

fn begun_by(side: FenceSide) -> i32 {
    match side {
        FenceSide::Own => abi::FENCE_INIT_SELF,
        FenceSide::Peer => abi::FENCE_INIT_PEER,
    }
}

fn windows(near: i64, len: usize, far: i64, flags: i32) -> abi::Transfer {
    abi::Transfer { loffset: near, len: len as u64, roffset: far, addr: 0, flags, pad: 0 }
}

fn memory(addr: usize, len: usize, far: i64, flags: i32) -> abi::Transfer {
    abi::Transfer { loffset: 0, len: len as u64, roffset: far, addr: address(addr), flags, pad: 0 }
}

/// Determines the kind of a driver.
fn recognize(probe: &OwnedFd) -> Result<Driver, Failure> {
    let fd = probe.as_raw_fd();
    match call::call_with_number(fd, abi::GET_VERSION, 0) {
        Ok(abi::VERSION) => Ok(Driver::Mpss3),
        Ok(_) => Err(Failure::Os(Errno::NXIO)),
        Err(Errno::INVAL) => {
            // The port is free again when the probe is closed.
            let mut bind = abi::Bind::default();
            call::call_with_struct(fd, Encoding::Struct, Call::Bind, &mut bind)?;
            match call::call_with_number(fd, Encoding::Struct.number(Call::Listen), 0) {
                Err(Errno::INVAL) => Ok(Driver::Mpss4),
                _ => Ok(Driver::Mainline),
            }
        }
        // Another kind of device has that name.
        Err(errno) => Err(errno.into()),
    }
}

/// Adds the node that mainline's list lacks. The driver writes as many numbers as the highest one,
/// which is one too few exactly if no lower number is missing.
fn complete(nodes: &mut [u16]) {
    for (number, node) in (0..).zip(nodes) {
        if *node == UNWRITTEN {
            *node = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(mut nodes: Vec<u16>) -> Vec<u16> {
        complete(&mut nodes);
        nodes
    }

    #[test]
    fn the_node_that_mainline_misses_is_filled_in() {
        assert_eq!(completed(vec![UNWRITTEN]), [0], "alone");
        assert_eq!(completed(vec![0, UNWRITTEN]), [0, 1], "one card");
        assert_eq!(completed(vec![0, 2]), [0, 2], "a hole: complete");
        assert_eq!(completed(vec![]), []);
    }

    #[test]
    fn other_files_are_not_taken_for_drivers() {
        let device =
            |path: &str| Device::open(&Config { device: Some(path.into()), ..Config::default() });
        assert_eq!(device("/dev/null").unwrap_err(), Failure::Os(Errno::NOTTY));
        assert_eq!(device("/dev/no such").unwrap_err(), Failure::Os(Errno::NOENT));
        assert_eq!(device("/dev/nu\0ll").unwrap_err(), Failure::Invalid);
    }
}
