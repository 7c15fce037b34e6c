// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The SCIF driver of a kernel: each call of `scif.h` is one call of the driver, as in the drivers' own library.
//!
//! Not about what the driver does with it: endpoints, windows and errors are the driver's, and nothing is kept here but
//! which driver it is. That is found out once, by asking: mainline Linux (4.2 to 5.9) and MPSS 4 at `/dev/scif`, MPSS 3 at
//! `/dev/mic/scif`. What the drivers get wrong and a program would stumble over is mended here:
//!
//! | driver | defect | here |
//! |---|---|---|
//! | mainline since 4.19 | connect on an unbound endpoint does nothing and says 0 | bound before |
//! | all | bind says that it needs 8 bytes and uses 4 | 8, all zero |
//! | mainline | the list of nodes misses the last one | it is filled in |
//! | mainline | FIXED into a part of another window succeeds, elsewhere | undone; EADDRINUSE |
//! | MPSS 4 | more locked memory than allowed is EAGAIN | ENOMEM, as the others |
//!
//! FIXED at the very offset of another window cannot be told from success on mainline, and makes two windows there.

pub mod abi;
mod call;
mod calls;
mod carry;
mod link;
mod port;
mod reception;
mod relay;
mod sender;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use scif_ring::Mem;

use self::abi::{Call, Encoding};
pub(crate) use self::carry::Kernel;
use crate::addr::PortId;
use crate::config::Config;
use crate::epd::{Failure, FenceSide, PollFd, Result, Signal};
use crate::error::Error;
use crate::sys::descriptor;

/// Where drivers are found.
const DEVICES: [&CStr; 2] = [c"/dev/scif", c"/dev/mic/scif"];
/// More nodes than any driver has.
const NODES: usize = 512;
/// No driver gives a node this number: an entry that was not written.
const UNWRITTEN: u16 = u16::MAX;

/// Which driver it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// Of mainline Linux.
    Mainline,
    /// Of MPSS 3, for the first Xeon Phi.
    Mpss3,
    /// Of MPSS 4, for the second.
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

/// A driver, and the endpoints this process has of it: named by descriptors, as those of [`Endpoints`](crate::epd::Endpoints).
#[derive(Debug)]
pub struct Device {
    path: CString,
    driver: Driver,
}

/// An address as the driver takes it.
fn address(at: usize) -> u64 {
    at as u64
}

/// Devices that were tried, and the more telling of their failures.
#[derive(Clone, Debug)]
pub(crate) struct NoDevice {
    failure: Failure,
    tried: Vec<String>,
}

impl NoDevice {
    fn and(mut self, path: &CStr, failure: Failure) -> NoDevice {
        self.tried.push(format!("{}: {failure}", path.to_string_lossy()));
        // That there is one, and not for us, says more.
        if failure != Failure::Os(Errno::NOENT) {
            self.failure = failure;
        }
        self
    }
}

impl From<NoDevice> for Error {
    fn from(none: NoDevice) -> Error {
        Error::NoDriver {
            tried: none.tried.join(", "),
            errno: Errno::from_raw_os_error(none.failure.raw_os_error()),
        }
    }
}

impl Device {
    /// Finds the driver: at the device the settings name, or at the first that opens.
    ///
    /// # Errors
    /// What opening it said; ENXIO for a version nobody knows.
    pub fn open(config: &Config) -> Result<Device> {
        Device::find(config).map_err(|none| none.failure)
    }

    /// As [`Device::open`], where nothing else will do: a failure is logged.
    ///
    /// # Errors
    /// Errors of [`Device::open`].
    pub(crate) fn demand(config: &Config) -> Result<Device> {
        Device::find(config).map_err(|none| {
            log::warn!("{}", Error::from(none.clone()));
            none.failure
        })
    }

    /// # Errors
    /// Answer of each device.
    pub(crate) fn find(config: &Config) -> std::result::Result<Device, NoDevice> {
        let mut none = NoDevice {
            failure: Failure::Os(Errno::NOENT),
            tried: Vec::new(),
        };
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
                        Ok(driver) => Ok(Device { path, driver }),
                        Err(failure) => Err(none.and(&path, failure)),
                    };
                }
                Err(errno) => none = none.and(&path, errno.into()),
            }
        }
        Err(none)
    }

    /// Which driver it is.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// Whether it does more than open: mainline's is there, and carries nothing, on a machine without a card.
    #[must_use]
    pub fn works(&self) -> bool {
        self.nodes().is_ok_and(|(nodes, _)| !nodes.is_empty())
    }

    fn number(&self, call: Call) -> u32 {
        self.driver.encoding().number(call)
    }

    fn ask<T: call::Argument>(&self, fd: RawFd, call: Call, argument: &mut T) -> Result<()> {
        call::ask(fd, self.driver.encoding(), call, argument)?;
        Ok(())
    }

    /// `scif_open`
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open_endpoint(&self) -> Result<RawFd> {
        Ok(descriptor::release(call::open(&self.path, true)?))
    }

    /// `scif_close`
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`].
    pub fn close(&self, fd: RawFd) -> Result<()> {
        Ok(descriptor::close(fd)?)
    }

    /// `scif_bind`; the port.
    ///
    /// # Errors
    /// The driver's, as of every call below.
    pub fn bind(&self, fd: RawFd, port: u16) -> Result<u16> {
        let mut bind = abi::Bind {
            port: i32::from(port),
            pad: 0,
        };
        self.ask(fd, Call::Bind, &mut bind)?;
        u16::try_from(bind.port).map_err(|_| Failure::Broken)
    }

    /// `scif_listen`
    ///
    /// # Errors
    /// The driver's.
    pub fn listen(&self, fd: RawFd, backlog: i32) -> Result<()> {
        call::tell(fd, self.number(Call::Listen), backlog)?;
        Ok(())
    }

    /// `scif_connect`; the local port.
    ///
    /// # Errors
    /// The driver's.
    pub fn connect(&self, fd: RawFd, dst: PortId) -> Result<u16> {
        match self.bind(fd, 0) {
            // It has a port, or is in a state of which connecting says more.
            Ok(_) | Err(Failure::Os(Errno::INVAL | Errno::ISCONN)) => {}
            Err(failure) => return Err(failure),
        }
        let mut connect = abi::Connect {
            own: abi::Port::default(),
            peer: abi::Port {
                node: dst.node,
                port: dst.port,
            },
        };
        self.ask(fd, Call::Connect, &mut connect)?;
        Ok(connect.own.port)
    }

    /// `scif_accept`; the peer, and the new endpoint.
    ///
    /// # Errors
    /// The driver's.
    pub fn accept(&self, fd: RawFd, wait: bool) -> Result<(PortId, RawFd)> {
        // First: a request that was answered cannot be put back when there is no descriptor left. Not close-on-exec,
        // as in the drivers' library.
        let new = call::open(&self.path, false)?;
        let peer = self.accept_into(fd, new.as_raw_fd(), wait)?;
        Ok((peer, descriptor::release(new)))
    }

    /// The same for an endpoint that is there already, and becomes the new one.
    ///
    /// # Errors
    /// The driver's.
    fn accept_into(&self, fd: RawFd, new: RawFd, wait: bool) -> Result<PortId> {
        let mut accept = abi::Accept {
            flags: if wait { abi::ACCEPT_SYNC } else { 0 },
            ..abi::Accept::default()
        };
        self.ask(fd, Call::AcceptReq, &mut accept)?;
        let mut cookie = abi::Cookie {
            cookie: accept.cookie,
        };
        self.ask(new, Call::AcceptReg, &mut cookie)?;
        Ok(PortId {
            node: accept.peer.node,
            port: accept.peer.port,
        })
    }

    /// `scif_send`; how many bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn send(&self, fd: RawFd, src: &Mem, wait: bool) -> Result<usize> {
        self.message(fd, Call::Send, src, wait)
    }

    /// `scif_recv`; how many bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn receive(&self, fd: RawFd, dst: &Mem, wait: bool) -> Result<usize> {
        self.message(fd, Call::Recv, dst, wait)
    }

    fn message(&self, fd: RawFd, call: Call, mem: &Mem, wait: bool) -> Result<usize> {
        let mut msg = abi::Msg {
            msg: address(mem.as_ptr().expose_provenance()),
            len: i32::try_from(mem.len()).map_err(|_| Failure::Invalid)?,
            flags: if wait { abi::BLOCK } else { 0 },
            out_len: 0,
            pad: 0,
        };
        self.ask(fd, call, &mut msg)?;
        usize::try_from(msg.out_len).map_err(|_| Failure::Broken)
    }

    /// `scif_poll`; how many are ready.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn poll(&self, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
        Ok(descriptor::poll_raw(entries, timeout_ms)?)
    }

    /// The nodes that are online, in ascending order, and our own.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn nodes(&self) -> Result<(Vec<u16>, u16)> {
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
                let mut ids = abi::NodeIds {
                    nodes: first,
                    own: me,
                    len: room,
                    pad: 0,
                };
                self.ask(fd, Call::GetNodeIds, &mut ids)?;
                ids.len
            }
            Encoding::Pointer => {
                let mut ids = abi::NodeIds3 {
                    nodes: first,
                    len: room,
                    pad: 0,
                    own: me,
                };
                self.ask(fd, Call::GetNodeIds, &mut ids)?;
                ids.len
            }
        };
        nodes.truncate(usize::try_from(online).unwrap_or(0));
        complete(&mut nodes);
        Ok((nodes, own))
    }

    /// Whether calls that need a connection may be made.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`], or that it is no endpoint.
    pub fn usable(&self, fd: RawFd) -> Result<()> {
        // The state is looked at before the flags, and of these none is there.
        match self.mark(fd, 0) {
            Err(Failure::Os(Errno::INVAL)) | Ok(_) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Whether a connection is there or was.
    ///
    /// # Errors
    /// As [`usable`](Self::usable), but for a connection that was.
    pub fn receivable(&self, fd: RawFd) -> Result<()> {
        match self.usable(fd) {
            Err(Failure::Os(Errno::CONNRESET)) => Ok(()),
            other => other,
        }
    }

    /// `scif_register`; the offset.
    ///
    /// # Errors
    /// The driver's.
    pub fn register(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<i64> {
        let mut reg = abi::Reg {
            addr: address(addr),
            len: len as u64,
            offset,
            prot,
            flags,
            out_offset: 0,
        };
        match self.ask(fd, Call::Reg, &mut reg) {
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
    ///
    /// # Errors
    /// The driver's.
    pub fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<()> {
        let mut unreg = abi::Unreg {
            offset,
            len: len as u64,
        };
        self.ask(fd, Call::Unreg, &mut unreg)
    }

    /// `scif_mmap`; the address.
    ///
    /// # Errors
    /// Those of mmap(2), and the driver's.
    pub fn map(
        &self,
        fd: RawFd,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize> {
        Ok(call::map(fd, addr, len, prot, flags | libc::MAP_SHARED, offset)?)
    }

    /// `scif_munmap`
    ///
    /// # Errors
    /// Those of munmap(2).
    pub fn unmap(&self, addr: usize, len: usize) -> Result<()> {
        Ok(call::unmap(addr, len)?)
    }

    /// `scif_readfrom`, `scif_writeto` between windows.
    fn transfer(&self, fd: RawFd, call: Call, mut transfer: abi::Transfer) -> Result<()> {
        self.ask(fd, call, &mut transfer)
    }

    /// `scif_readfrom`
    ///
    /// # Errors
    /// The driver's.
    pub fn read_from(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.transfer(fd, Call::ReadFrom, windows(near, len, far, flags))
    }

    /// `scif_writeto`
    ///
    /// # Errors
    /// The driver's.
    pub fn write_to(&self, fd: RawFd, near: i64, len: usize, far: i64, flags: i32) -> Result<()> {
        self.transfer(fd, Call::WriteTo, windows(near, len, far, flags))
    }

    /// `scif_vreadfrom`
    ///
    /// # Errors
    /// The driver's.
    pub fn read_to_memory(&self, fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> Result<()> {
        self.transfer(fd, Call::VReadFrom, memory(addr, len, far, flags))
    }

    /// `scif_vwriteto`
    ///
    /// # Errors
    /// The driver's.
    pub fn write_from_memory(&self, fd: RawFd, addr: usize, len: usize, far: i64, flags: i32) -> Result<()> {
        self.transfer(fd, Call::VWriteTo, memory(addr, len, far, flags))
    }

    fn mark(&self, fd: RawFd, flags: i32) -> Result<i32> {
        let mut mark = 0i32;
        let mut fence = abi::FenceMark {
            flags,
            pad: 0,
            mark: address((&raw mut mark).expose_provenance()),
        };
        self.ask(fd, Call::FenceMark, &mut fence)?;
        Ok(mark)
    }

    /// `scif_fence_mark`; the mark.
    ///
    /// # Errors
    /// The driver's.
    pub fn fence_mark(&self, fd: RawFd, side: FenceSide) -> Result<i32> {
        self.mark(fd, begun_by(side))
    }

    /// `scif_fence_wait`
    ///
    /// # Errors
    /// The driver's.
    pub fn fence_wait(&self, fd: RawFd, mark: i32) -> Result<()> {
        call::tell(fd, self.number(Call::FenceWait), mark)?;
        Ok(())
    }

    /// `scif_fence_signal`
    ///
    /// # Errors
    /// The driver's.
    pub fn fence_signal(
        &self,
        fd: RawFd,
        side: FenceSide,
        local: Option<Signal>,
        remote: Option<Signal>,
    ) -> Result<()> {
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
        self.ask(fd, Call::FenceSignal, &mut fence)
    }
}

fn begun_by(side: FenceSide) -> i32 {
    match side {
        FenceSide::Own => abi::FENCE_INIT_SELF,
        FenceSide::Peer => abi::FENCE_INIT_PEER,
    }
}

fn windows(near: i64, len: usize, far: i64, flags: i32) -> abi::Transfer {
    abi::Transfer {
        loffset: near,
        len: len as u64,
        roffset: far,
        addr: 0,
        flags,
        pad: 0,
    }
}

fn memory(addr: usize, len: usize, far: i64, flags: i32) -> abi::Transfer {
    abi::Transfer {
        loffset: 0,
        len: len as u64,
        roffset: far,
        addr: address(addr),
        flags,
        pad: 0,
    }
}

/// Asks a driver which it is.
fn recognize(probe: &OwnedFd) -> Result<Driver> {
    let fd = probe.as_raw_fd();
    match call::tell(fd, abi::GET_VERSION, 0) {
        Ok(abi::VERSION) => Ok(Driver::Mpss3),
        Ok(_) => Err(Failure::Os(Errno::NXIO)),
        Err(Errno::INVAL) => {
            // A port of its own is free again when the probe is closed.
            let mut bind = abi::Bind::default();
            call::ask(fd, Encoding::Struct, Call::Bind, &mut bind)?;
            match call::tell(fd, Encoding::Struct.number(Call::Listen), 0) {
                Err(Errno::INVAL) => Ok(Driver::Mpss4),
                _ => Ok(Driver::Mainline),
            }
        }
        // Something else has that name.
        Err(errno) => Err(errno.into()),
    }
}

/// Fills in the node that mainline's list misses: it lets as many numbers out as the highest one says, which is one too
/// few exactly if no number below it is missing.
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
    fn what_is_no_driver_is_not_taken_for_one() {
        let device = |path: &str| {
            Device::open(&Config {
                device: Some(path.into()),
                ..Config::default()
            })
        };
        assert_eq!(device("/dev/null").unwrap_err(), Failure::Os(Errno::NOTTY));
        assert_eq!(device("/dev/no such").unwrap_err(), Failure::Os(Errno::NOENT));
        assert_eq!(device("/dev/nu\0ll").unwrap_err(), Failure::Invalid);
    }
}
