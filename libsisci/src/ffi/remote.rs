// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Segments of other processes, and mappings.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::c_void;

use crate::callback::Callback;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{
    Handle, OwnHandle, action, check_flags, guard, need, not_supported, object, put,
};
use crate::flags;
use crate::local_segment::LocalSegment;
use crate::map::{Map, Mapped, Part};
use crate::objects;
use crate::remote_segment::{RemoteEvent, RemoteSegment, Target};
use crate::wire::deadline;

/// `sci_cb_remote_segment_t`
type RemoteFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32, u32) -> u32>;

/// Legal flags of `SCIConnectSegment`.
const CONNECT: u32 = flags::USE_CALLBACK | flags::ASYNCHRONOUS_CONNECT | flags::BROADCAST;
/// Legal flags of `SCIMapRemoteSegment` that this library does not implement.
const MAP_ABSENT: u32 =
    flags::CONDITIONAL_INTERRUPT_MAP | flags::UNCONDITIONAL_DATA_INTERRUPT_MAP | flags::DMOVE_MAP;
/// Legal flags of `SCIMapRemoteSegment`. Hints about hardware have no effect.
const MAP_REMOTE: u32 = flags::FIXED_MAP_ADDR
    | flags::READONLY_MAP
    | flags::LOCK_OPERATION
    | flags::READ_PREFETCH_AGGR_HOLD_MAP
    | flags::READ_PREFETCH_NO_HOLD_MAP
    | flags::IO_MAP_IOSPACE
    | flags::WRITES_DISABLE_GATHER_MAP
    | flags::DISABLE_128_BYTES_PACKETS
    | flags::NO_MEMORY_LOOPBACK_MAP
    | flags::SHARED_MAP
    | flags::WRITE_BACK_CACHE_MAP
    | flags::BROADCAST
    | MAP_ABSENT;
/// Legal flags of `SCIMapLocalSegment`.
const MAP_LOCAL: u32 = flags::FIXED_MAP_ADDR | flags::READONLY_MAP;

fn callback(
    flags: u32,
    function: RemoteFunction,
    arg: *mut c_void,
    handle: &OwnHandle,
) -> Outcome<Option<Callback<RemoteEvent>>> {
    if flags & flags::USE_CALLBACK == 0 {
        return Ok(None);
    }
    let function = function.ok_or(SciError::IllegalParameter)?;
    let (arg, handle) = (arg.expose_provenance(), handle.clone());
    Ok(Some(Callback::new(Box::new(move |event: &RemoteEvent| {
        let arg = std::ptr::with_exposed_provenance_mut(arg);
        // SAFETY: a function of the program with the type of sisci_api.h, and its own argument.
        action(unsafe { function(arg, handle.get(), event.reason as u32, event.status.number()) })
    }))))
}

/// `void SCIConnectSegment(sci_desc_t sd, sci_remote_segment_t *segment, unsigned node, unsigned
/// id, unsigned adapter, sci_cb_remote_segment_t callback, void *arg, unsigned timeout, unsigned
/// flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIConnectSegment(
    sd: Handle,
    segment: *mut Handle,
    node: u32,
    id: u32,
    adapter: u32,
    function: RemoteFunction,
    arg: *mut c_void,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let desc = object::<Desc>(sd)?;
        check_flags(flags, CONNECT)?;
        need(segment)?;
        let handle = OwnHandle::default();
        let callback = callback(flags, function, arg, &handle)?;
        let target = Target { node, id, adapter, flags };
        let made = if flags & flags::ASYNCHRONOUS_CONNECT == 0 {
            RemoteSegment::connect(&desc, target, callback, deadline(timeout))?
        } else {
            RemoteSegment::begin(&desc, target, callback)?
        };
        // SAFETY: by the caller's contract space for a handle.
        unsafe { handle.publish(&made, segment, || made.watch()) }.inspect_err(|_| {
            let _ = made.disconnect();
        })
    });
}

/// `void SCIDisconnectSegment(sci_remote_segment_t segment, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIDisconnectSegment(segment: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = object::<RemoteSegment>(segment)?;
        check_flags(flags, 0)?;
        found.disconnect()?;
        objects::remove(segment.addr());
        Ok(())
    });
}

/// `size_t SCIGetRemoteSegmentSize(sci_remote_segment_t segment)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetRemoteSegmentSize(segment: Handle) -> usize {
    guard(std::ptr::null_mut(), 0, || Ok(object::<RemoteSegment>(segment)?.size()))
}

/// `unsigned SCIGetRemoteSegmentId(sci_remote_segment_t segment)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetRemoteSegmentId(segment: Handle) -> u32 {
    guard(std::ptr::null_mut(), 0, || Ok(object::<RemoteSegment>(segment)?.target.id))
}

/// `unsigned SCIGetRemoteSegmentNodeId(sci_remote_segment_t segment)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetRemoteSegmentNodeId(segment: Handle) -> u32 {
    guard(std::ptr::null_mut(), 0, || Ok(object::<RemoteSegment>(segment)?.target.node))
}

/// `sci_segment_cb_reason_t SCIWaitForRemoteSegmentEvent(sci_remote_segment_t segment, sci_error_t
/// *status, unsigned timeout, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIWaitForRemoteSegmentEvent(
    segment: Handle,
    status: *mut u32,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) -> u32 {
    guard(error, 0, || {
        let segment = object::<RemoteSegment>(segment)?;
        check_flags(flags, 0)?;
        need(status)?;
        let event = segment.wait_event(deadline(timeout))?;
        // SAFETY: by the caller's contract space for a code.
        unsafe { put(status, event.status.number()) }?;
        Ok(event.reason as u32)
    })
}

/// Maps a segment and publishes the mapping.
///
/// # Safety
/// `at` is NULL or space for a handle; a fixed address names memory that the program gives up.
unsafe fn map(
    target: Mapped,
    at: *mut Handle,
    (offset, size): (usize, usize),
    addr: *mut c_void,
    flags: u32,
) -> Outcome<*mut c_void> {
    need(at)?;
    let fixed = (flags & flags::FIXED_MAP_ADDR != 0).then(|| addr.expose_provenance());
    let writable = flags & flags::READONLY_MAP == 0;
    let map = Map::new(target, Part { offset, size, fixed, writable })?;
    // SAFETY: the caller's contract.
    unsafe { OwnHandle::default().publish(&map, at, || Ok(())) }.inspect_err(|_| {
        let _ = map.begin_unmap().and_then(|()| map.finish_unmap());
    })?;
    Ok(std::ptr::with_exposed_provenance_mut(map.addr))
}

/// `volatile void *SCIMapRemoteSegment(sci_remote_segment_t segment, sci_map_t *map, size_t offset,
/// size_t size, void *address, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIMapRemoteSegment(
    segment: Handle,
    at: *mut Handle,
    offset: usize,
    size: usize,
    addr: *mut c_void,
    flags: u32,
    error: *mut u32,
) -> *mut c_void {
    guard(error, std::ptr::null_mut(), || {
        let segment = object::<RemoteSegment>(segment)?;
        check_flags(flags, MAP_REMOTE)?;
        if flags & MAP_ABSENT != 0 {
            return fail(SciError::FlagNotImplemented);
        }
        // SAFETY: by the caller's contract.
        unsafe { map(Mapped::Remote(segment), at, (offset, size), addr, flags) }
    })
}

/// `void *SCIMapLocalSegment(sci_local_segment_t segment, sci_map_t *map, size_t offset, size_t
/// size, void *address, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIMapLocalSegment(
    segment: Handle,
    at: *mut Handle,
    offset: usize,
    size: usize,
    addr: *mut c_void,
    flags: u32,
    error: *mut u32,
) -> *mut c_void {
    guard(error, std::ptr::null_mut(), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, MAP_LOCAL)?;
        // SAFETY: by the caller's contract.
        unsafe { map(Mapped::Local(segment), at, (offset, size), addr, flags) }
    })
}

/// `void SCIUnmapSegment(sci_map_t map, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIUnmapSegment(map: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        object::<Map>(map)?;
        check_flags(flags, 0)?;
        // The handle ends first: a late copy by it finds no address that others may use again.
        objects::take_out(map.addr(), Map::begin_unmap)?.finish_unmap()
    });
}

/// `volatile void *SCIGetMapPointer(sci_map_t map)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetMapPointer(map: Handle) -> *mut c_void {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        Ok(std::ptr::with_exposed_provenance_mut(object::<Map>(map)?.addr))
    })
}

/// `sci_ioaddr_t SCIGetMapPhysAddr(sci_map_t map)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetMapPhysAddr(map: Handle) -> u64 {
    guard(std::ptr::null_mut(), 0, || {
        object::<Map>(map)?;
        not_supported("SCIGetMapPhysAddr")
    })
}

/// `void SCIConnectSCISpace(sci_desc_t sd, unsigned adapter, sci_remote_segment_t *segment,
/// sci_address_t address, size_t size, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIConnectSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIConnectSCISpace(
    _sd: Handle,
    _adapter: u32,
    _segment: *mut Handle,
    _address: u64,
    _size: usize,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCIConnectSCISpace"));
}
