// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Segments of this process.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::c_void;
use std::sync::Arc;

use crate::callback::Callback;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::events::EventReason;
use crate::ffi::entry::{
    Handle, OwnHandle, action, check_flags, guard, need, not_supported, object, put,
};
use crate::flags;
use crate::local_segment::{LocalEvent, LocalSegment, NewSegment};
use crate::objects;
use crate::wire::deadline;

/// `sci_cb_local_segment_t`
type LocalFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32, u32, u32, u32) -> u32>;

/// Legal flags of `SCICreateSegment`.
const CREATE: u32 = flags::USE_CALLBACK
    | flags::EMPTY
    | flags::PRIVATE
    | flags::AUTO_ID
    | flags::BROADCAST
    | flags::ALLOW_UNICAST
    | flags::DMA_GLOBAL;

/// Makes a callback of a C function, if the flags demand one.
///
/// # Errors
/// `IllegalParameter` for NULL.
fn callback(
    flags: u32,
    function: LocalFunction,
    arg: *mut c_void,
    handle: &OwnHandle,
) -> Outcome<Option<Callback<LocalEvent>>> {
    if flags & flags::USE_CALLBACK == 0 {
        return Ok(None);
    }
    let function = function.ok_or(SciError::IllegalParameter)?;
    let (arg, handle) = (arg.expose_provenance(), handle.clone());
    Ok(Some(Callback::new(Box::new(move |event: &LocalEvent| {
        let arg = std::ptr::with_exposed_provenance_mut(arg);
        let (reason, code) = (event.reason as u32, event.status.number());
        // SAFETY: a function of the program with the type of sisci_api.h, and its own argument.
        action(unsafe { function(arg, handle.get(), reason, event.node, event.adapter, code) })
    }))))
}

/// Ends the use of a segment whose handle could not be written.
unsafe fn publish(handle: &OwnHandle, segment: &Arc<LocalSegment>, at: *mut Handle) -> Outcome<()> {
    // SAFETY: the caller's contract.
    unsafe { handle.publish(segment, at, || Ok(())) }.inspect_err(|_| {
        let _ = segment.remove(true);
    })
}

/// `void SCICreateSegment(sci_desc_t sd, sci_local_segment_t *segment, unsigned id, size_t size,
/// sci_cb_local_segment_t callback, void *arg, unsigned flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCICreateSegment(
    sd: Handle,
    segment: *mut Handle,
    id: u32,
    size: usize,
    function: LocalFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let desc = object::<Desc>(sd)?;
        check_flags(flags, CREATE)?;
        let has = |flag| flags & flag != 0;
        let group = has(flags::BROADCAST);
        if ((has(flags::PRIVATE) || has(flags::EMPTY)) && group)
            || (has(flags::ALLOW_UNICAST) && !group)
        {
            return fail(SciError::IllegalFlag);
        }
        need(segment)?;
        let handle = OwnHandle::default();
        let callback = callback(flags, function, arg, &handle)?;
        let made = LocalSegment::new(&desc, NewSegment { id, size, flags, callback })?;
        // SAFETY: by the caller's contract space for a handle.
        unsafe { publish(&handle, &made, segment) }
    });
}

/// `size_t SCIGetLocalSegmentSize(sci_local_segment_t segment)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetLocalSegmentSize(segment: Handle) -> usize {
    guard(std::ptr::null_mut(), 0, || Ok(object::<LocalSegment>(segment)?.size))
}

/// `unsigned SCIGetLocalSegmentId(sci_local_segment_t segment)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetLocalSegmentId(segment: Handle) -> u32 {
    guard(std::ptr::null_mut(), 0, || Ok(object::<LocalSegment>(segment)?.id))
}

/// `void SCIPrepareSegment(sci_local_segment_t segment, unsigned adapter, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIPrepareSegment(segment: Handle, adapter: u32, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, flags::DMA_SOURCE_ONLY)?;
        segment.prepare(adapter)
    });
}

/// `void SCISetSegmentAvailable(sci_local_segment_t segment, unsigned adapter, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCISetSegmentAvailable(segment: Handle, adapter: u32, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, 0)?;
        segment.set_available(adapter)
    });
}

/// `void SCISetSegmentUnavailable(sci_local_segment_t segment, unsigned adapter, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCISetSegmentUnavailable(segment: Handle, adapter: u32, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, flags::FORCE_DISCONNECT | flags::NOTIFY)?;
        let event = match flags {
            0 => None,
            flags::NOTIFY => Some(EventReason::Disconnect),
            _ => Some(EventReason::Lost),
        };
        segment.set_unavailable(adapter, event)
    });
}

/// `void SCIRemoveSegment(sci_local_segment_t segment, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIRemoveSegment(segment: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = object::<LocalSegment>(segment)?;
        check_flags(flags, flags::FORCE_REMOVE)?;
        found.remove(flags & flags::FORCE_REMOVE != 0)?;
        objects::remove(segment.addr());
        Ok(())
    });
}

/// `sci_segment_cb_reason_t SCIWaitForLocalSegmentEvent(sci_local_segment_t segment, unsigned
/// *node, unsigned *adapter, unsigned timeout, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIWaitForLocalSegmentEvent(
    segment: Handle,
    node: *mut u32,
    adapter: *mut u32,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) -> u32 {
    guard(error, 0, || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, 0)?;
        need(node)?;
        need(adapter)?;
        let event = segment.wait_event(deadline(timeout))?;
        // SAFETY: by the caller's contract space for a number.
        unsafe { put(node, event.node) }?;
        // SAFETY: by the caller's contract space for a number.
        unsafe { put(adapter, event.adapter) }?;
        Ok(event.reason as u32)
    })
}

/// `void SCIRegisterSegmentMemory(void *address, size_t size, sci_local_segment_t segment, unsigned
/// flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIRegisterSegmentMemory(
    address: *mut c_void,
    size: usize,
    segment: Handle,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, flags::LOCK_USER_MEM)?;
        segment.fill(address.expose_provenance(), size)
    });
}

/// `void SCIAttachPhysicalMemory(sci_ioaddr_t ioaddress, void *address, unsigned busNo, size_t
/// size, sci_local_segment_t segment, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIAttachPhysicalMemory(
    _ioaddress: u64,
    _address: *mut c_void,
    _bus: u32,
    _size: usize,
    segment: Handle,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        object::<LocalSegment>(segment)?;
        check_flags(flags, flags::CUDA_BUFFER)?;
        not_supported("SCIAttachPhysicalMemory")
    });
}

/// `void SCIShareSegment(sci_local_segment_t segment, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
extern "C" fn SCIShareSegment(segment: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let segment = object::<LocalSegment>(segment)?;
        check_flags(flags, 0)?;
        segment.share()
    });
}

/// `void SCIAttachLocalSegment(sci_desc_t sd, sci_local_segment_t *segment, unsigned id, size_t
/// *size, sci_cb_local_segment_t callback, void *arg, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateSegment`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIAttachLocalSegment(
    sd: Handle,
    segment: *mut Handle,
    id: u32,
    size: *mut usize,
    function: LocalFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let desc = object::<Desc>(sd)?;
        check_flags(flags, flags::USE_CALLBACK)?;
        need(segment)?;
        need(size)?;
        let handle = OwnHandle::default();
        let callback = callback(flags, function, arg, &handle)?;
        let made = LocalSegment::attach(&desc, NewSegment { id, size: 0, flags, callback })?;
        // SAFETY: by the caller's contract space for a handle.
        unsafe { publish(&handle, &made, segment) }?;
        // SAFETY: by the caller's contract space for a size.
        unsafe { put(size, made.size) }
    });
}
