// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows, mappings, RMA and fences of `scif.h`.

#![expect(unsafe_code, reason = "functions a C program calls by name, with addresses of its own")]

use libc::{c_int, c_void, off_t};
use scif_api::{Failure, FenceSide, Signal};

use crate::entry::guard;

const FAILED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
const INIT_SELF: c_int = 1;
const INIT_PEER: c_int = 2;
const SIGNAL_LOCAL: c_int = 0x10;
const SIGNAL_REMOTE: c_int = 0x20;

/// `off_t scif_register(scif_epd_t epd, void *addr, size_t len, off_t offset, int prot_flags, int
/// map_flags)`
// SAFETY: scif.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_register(
    epd: c_int,
    addr: *mut c_void,
    len: usize,
    offset: off_t,
    prot_flags: c_int,
    map_flags: c_int,
) -> off_t {
    guard(-1, |endpoints| {
        endpoints.register(epd, (addr.expose_provenance(), len), offset, prot_flags, map_flags)
    })
}

/// `int scif_unregister(scif_epd_t epd, off_t offset, size_t len)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
extern "C" fn scif_unregister(epd: c_int, offset: off_t, len: usize) -> c_int {
    guard(-1, |endpoints| endpoints.unregister(epd, offset, len).map(|()| 0))
}

/// `void *scif_mmap(void *addr, size_t len, int prot_flags, int map_flags, scif_epd_t epd, off_t
/// offset)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_mmap(
    addr: *mut c_void,
    len: usize,
    prot_flags: c_int,
    map_flags: c_int,
    epd: c_int,
    offset: off_t,
) -> *mut c_void {
    guard(FAILED, |endpoints| {
        endpoints
            .map(epd, (addr.expose_provenance(), len), offset, prot_flags, map_flags)
            .map(std::ptr::with_exposed_provenance_mut)
    })
}

/// `int scif_munmap(void *addr, size_t len)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_munmap(addr: *mut c_void, len: usize) -> c_int {
    guard(-1, |endpoints| endpoints.unmap(addr.expose_provenance(), len).map(|()| 0))
}

/// `int scif_readfrom(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
extern "C" fn scif_readfrom(
    epd: c_int,
    loffset: off_t,
    len: usize,
    roffset: off_t,
    rma_flags: c_int,
) -> c_int {
    guard(-1, |endpoints| endpoints.read_from(epd, loffset, len, roffset, rma_flags).map(|()| 0))
}

/// `int scif_writeto(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
extern "C" fn scif_writeto(
    epd: c_int,
    loffset: off_t,
    len: usize,
    roffset: off_t,
    rma_flags: c_int,
) -> c_int {
    guard(-1, |endpoints| endpoints.write_to(epd, loffset, len, roffset, rma_flags).map(|()| 0))
}

/// `int scif_vreadfrom(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_vreadfrom(
    epd: c_int,
    addr: *mut c_void,
    len: usize,
    roffset: off_t,
    rma_flags: c_int,
) -> c_int {
    guard(-1, |endpoints| {
        endpoints.read_to_memory(epd, addr.expose_provenance(), len, roffset, rma_flags).map(|()| 0)
    })
}

/// `int scif_vwriteto(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_vwriteto(
    epd: c_int,
    addr: *mut c_void,
    len: usize,
    roffset: off_t,
    rma_flags: c_int,
) -> c_int {
    guard(-1, |endpoints| {
        endpoints
            .write_from_memory(epd, addr.expose_provenance(), len, roffset, rma_flags)
            .map(|()| 0)
    })
}

/// Converts the side that issued the RMAs of a fence.
fn side(flags: c_int) -> Result<FenceSide, Failure> {
    match flags {
        INIT_SELF => Ok(FenceSide::Own),
        INIT_PEER => Ok(FenceSide::Peer),
        _ => Err(Failure::Invalid),
    }
}

/// `int scif_fence_mark(scif_epd_t epd, int flags, int *mark)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_fence_mark(epd: c_int, flags: c_int, mark: *mut c_int) -> c_int {
    guard(-1, |endpoints| {
        endpoints.usable(epd)?;
        let side = side(flags)?;
        if mark.is_null() {
            return Err(Failure::BadAddress);
        }
        let number = endpoints.fence_mark(epd, side)?;
        // SAFETY: not null; by the caller's contract space for an int.
        unsafe { mark.write_unaligned(number) };
        Ok(0)
    })
}

/// `int scif_fence_wait(scif_epd_t epd, int mark)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
extern "C" fn scif_fence_wait(epd: c_int, mark: c_int) -> c_int {
    guard(-1, |endpoints| endpoints.fence_wait(epd, mark).map(|()| 0))
}

/// `int scif_fence_signal(scif_epd_t epd, off_t loff, uint64_t lval, off_t roff, uint64_t rval, int
/// flags)`
// SAFETY: as `scif_register`.
#[unsafe(no_mangle)]
extern "C" fn scif_fence_signal(
    epd: c_int,
    loff: off_t,
    lval: u64,
    roff: off_t,
    rval: u64,
    flags: c_int,
) -> c_int {
    guard(-1, |endpoints| {
        endpoints.usable(epd)?;
        let side = side(flags & !(SIGNAL_LOCAL | SIGNAL_REMOTE))?;
        let local = (flags & SIGNAL_LOCAL != 0).then_some(Signal { offset: loff, value: lval });
        let remote = (flags & SIGNAL_REMOTE != 0).then_some(Signal { offset: roff, value: rval });
        endpoints.fence_signal(epd, side, local, remote).map(|()| 0)
    })
}
