// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! System calls to the SCIF driver: open, ioctl, mmap, poll, close. They use the C library's own
//! functions, so that a preloaded library can serve them instead.
//!
//! Not about the arguments (`abi`) nor about the purpose. See `ioctl(2)`, `mmap(2)`.
#![expect(unsafe_code, reason = "system calls with addresses and descriptors of the program")]

use std::ffi::{CStr, c_int, c_ulong};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{self, Call, Encoding};
use crate::sys::process::last_errno;

fn answer(rc: c_int) -> Result<c_int, Errno> {
    if rc < 0 { Err(last_errno()) } else { Ok(rc) }
}

/// Opens the device, which creates an endpoint.
pub(super) fn open(path: &CStr, cloexec: bool) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDWR | if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a live C string; no file is created, so no mode is needed.
    let fd = answer(unsafe { libc::open(path.as_ptr(), flags) })?;
    // SAFETY: just created, and owned by this function alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Structure that is the argument of a call, in any encoding.
///
/// # Safety
/// Under each number in `CALLS` the driver accesses only the structure and the memory at the
/// addresses in it. The program owns that memory and passed the addresses for this purpose.
pub(super) unsafe trait Argument: FromBytes + IntoBytes {
    const CALLS: &[Call];
}

// SAFETY: by `struct scif_ioctl` of the drivers, whose sizes and offsets `abi` compares; the same
// holds for the others below.
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
// SAFETY: as above; `nodes` selects the structure of the driver's generation.
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

/// Executes a call whose argument is a structure.
pub(super) fn call_with_struct<T: Argument>(
    fd: RawFd,
    encoding: Encoding,
    call: Call,
    argument: &mut T,
) -> Result<c_int, Errno> {
    if !T::CALLS.contains(&call) {
        return Err(Errno::INVAL);
    }
    let number = c_ulong::from(encoding.number(call));
    // SAFETY: `argument` is live, is valid for any bytes, and has the type of this call
    // (`Argument`, checked above).
    answer(unsafe { libc::ioctl(fd, number, std::ptr::from_mut(argument)) })
}

/// Executes a call whose argument is a number, or which has none.
pub(super) fn call_with_number(fd: RawFd, number: u32, value: c_int) -> Result<c_int, Errno> {
    // The driver uses the low half only.
    let value = c_ulong::from(u32::from_ne_bytes(value.to_ne_bytes()));
    // SAFETY: the call passes no address.
    answer(unsafe { libc::ioctl(fd, c_ulong::from(number), value) })
}

/// Calls mmap(2) with the program's address.
pub(super) fn map(
    fd: RawFd,
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    offset: i64,
) -> Result<usize, Errno> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the program requests exactly this mapping; with MAP_FIXED the range is its own.
    let place = unsafe { libc::mmap(at, len, prot, flags, fd, offset) };
    if place == libc::MAP_FAILED { Err(last_errno()) } else { Ok(place.expose_provenance()) }
}

/// Calls munmap(2) on the program's request.
pub(super) fn unmap(addr: usize, len: usize) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the program passes a range that it mapped and no longer uses.
    answer(unsafe { libc::munmap(at, len) }).map(drop)
}
