// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The system calls that reach the SCIF driver: open, ioctl, mmap, poll, close, through the C library's own functions, so
//! that a preloaded library may serve them instead.
//!
//! Not about what is asked (`abi`) nor why. See `ioctl(2)`, `mmap(2)`.
#![expect(
    unsafe_code,
    reason = "system calls with addresses and descriptors of the program"
)]

use std::ffi::{CStr, c_int, c_ulong};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{self, Call, Encoding};
use crate::sys::process::last_errno;

fn answer(rc: c_int) -> Result<c_int, Errno> {
    if rc < 0 { Err(last_errno()) } else { Ok(rc) }
}

/// Opens the device: an endpoint.
pub(super) fn open(path: &CStr, cloexec: bool) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDWR | if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a live C string; nothing is made, so that there is no mode.
    let fd = answer(unsafe { libc::open(path.as_ptr(), flags) })?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The structure a call takes, whatever the encoding.
///
/// # Safety
/// The driver reads and writes no more than the structure under each number in `CALLS`, and where the addresses in it
/// say, which are the program's own and passed on by it for that.
pub(super) unsafe trait Argument: FromBytes + IntoBytes {
    const CALLS: &[Call];
}

// SAFETY: by `struct scif_ioctl` of the drivers, whose sizes and places `abi` compares; this and the others below.
unsafe impl Argument for abi::Bind {
    const CALLS: &[Call] = &[Call::Bind];
}
// SAFETY: as above.
unsafe impl Argument for abi::Connect {
    const CALLS: &[Call] = &[Call::Connect];
}
// SAFETY: as above.
unsafe impl Argument for abi::Accept {
    const CALLS: &[Call] = &[Call::AcceptReq];
}
// SAFETY: as above.
unsafe impl Argument for abi::Cookie {
    const CALLS: &[Call] = &[Call::AcceptReg];
}
// SAFETY: as above.
unsafe impl Argument for abi::Msg {
    const CALLS: &[Call] = &[Call::Send, Call::Recv];
}
// SAFETY: as above.
unsafe impl Argument for abi::Reg {
    const CALLS: &[Call] = &[Call::Reg];
}
// SAFETY: as above.
unsafe impl Argument for abi::Unreg {
    const CALLS: &[Call] = &[Call::Unreg];
}
// SAFETY: as above.
unsafe impl Argument for abi::Transfer {
    const CALLS: &[Call] = &[Call::ReadFrom, Call::WriteTo, Call::VReadFrom, Call::VWriteTo];
}
// SAFETY: as above; `ids` takes care that each generation gets its own.
unsafe impl Argument for abi::NodeIds {
    const CALLS: &[Call] = &[Call::GetNodeIds];
}
// SAFETY: as above.
unsafe impl Argument for abi::NodeIds3 {
    const CALLS: &[Call] = &[Call::GetNodeIds];
}
// SAFETY: as above.
unsafe impl Argument for abi::FenceMark {
    const CALLS: &[Call] = &[Call::FenceMark];
}
// SAFETY: as above.
unsafe impl Argument for abi::FenceSignal {
    const CALLS: &[Call] = &[Call::FenceSignal];
}

/// A call whose argument is a structure.
pub(super) fn ask<T: Argument>(
    fd: RawFd,
    encoding: Encoding,
    call: Call,
    argument: &mut T,
) -> Result<c_int, Errno> {
    if !T::CALLS.contains(&call) {
        return Err(Errno::INVAL);
    }
    let number = c_ulong::from(encoding.number(call));
    // SAFETY: `argument` is live, any bytes are one of it, and it is the one of this call (`Argument`, looked at above).
    answer(unsafe { libc::ioctl(fd, number, std::ptr::from_mut(argument)) })
}

/// A call whose argument is a number, or which has none.
pub(super) fn tell(fd: RawFd, number: u32, value: c_int) -> Result<c_int, Errno> {
    // The driver looks at the low half.
    let value = c_ulong::from(value.cast_unsigned());
    // SAFETY: no memory is named.
    answer(unsafe { libc::ioctl(fd, c_ulong::from(number), value) })
}

/// mmap(2), where the program says.
pub(super) fn map(
    fd: RawFd,
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    offset: i64,
) -> Result<usize, Errno> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the program asks for just this; with MAP_FIXED the range is its own.
    let place = unsafe { libc::mmap(at, len, prot, flags, fd, offset) };
    if place == libc::MAP_FAILED {
        Err(last_errno())
    } else {
        Ok(place.expose_provenance())
    }
}

/// munmap(2), as the program asks.
pub(super) fn unmap(addr: usize, len: usize) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the program names what it mapped and does not use any more.
    answer(unsafe { libc::munmap(at, len) }).map(drop)
}
