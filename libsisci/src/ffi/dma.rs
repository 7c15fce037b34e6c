// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! DMA queues.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::c_void;
use std::sync::Arc;

use crate::callback::Callback;
use crate::desc::Desc;
use crate::dma::{DmaQueue, Move, Near, TransferCallback, VECTOR_MAX};
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{
    Handle, OwnHandle, action, check_flags, get, guard, memory, need, not_supported, object,
};
use crate::flags;
use crate::local_segment::LocalSegment;
use crate::objects;
use crate::remote_segment::RemoteSegment;
use crate::wire::deadline;

/// `sci_cb_dma_t`
type DmaFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32) -> u32>;

/// `dis_dma_vec_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct DmaVector {
    size: u32,
    local: u32,
    remote: u32,
    _flags: u32,
}

/// `SCI_DMAQUEUE_ERROR`, returned by calls that fail.
const ERROR: u32 = 5;

/// Legal flags of a start.
const START: u32 = flags::USE_CALLBACK
    | flags::DMA_READ
    | flags::DMA_WAIT
    | flags::DMA_GLOBAL
    | flags::DMA_SYSDMA
    | flags::DMA_ADAPTER
    | flags::DMA_USER_MEM
    | flags::BROADCAST;

/// Makes a callback of a C function, if the flags demand one.
///
/// # Errors
/// `IllegalParameter` for NULL.
fn callback(
    queue: Handle,
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
) -> Outcome<TransferCallback> {
    if flags & flags::USE_CALLBACK == 0 {
        return Ok(None);
    }
    let function = function.ok_or(SciError::IllegalParameter)?;
    let (arg, queue) = (arg.expose_provenance(), queue.addr());
    Ok(Some(Callback::new(Box::new(move |status: &SciError| {
        let arg = std::ptr::with_exposed_provenance_mut(arg);
        let queue = std::ptr::without_provenance_mut(queue);
        // SAFETY: a function of the program with the type of sisci_api.h, and its own argument.
        action(unsafe { function(arg, queue, status.number()) })
    }))))
}

/// Checked arguments of all functions that start a transfer.
struct Start {
    found: Arc<DmaQueue>,
    far: Arc<RemoteSegment>,
    callback: TransferCallback,
}

/// Checks the arguments that all functions that start a transfer have.
///
/// # Errors
/// `IllegalParameter`, `IllegalFlag`.
fn checked(
    (queue, remote): (Handle, Handle),
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
) -> Outcome<Start> {
    let found = object::<DmaQueue>(queue)?;
    let far = object::<RemoteSegment>(remote)?;
    check_flags(flags, START)?;
    Ok(Start { found, far, callback: callback(queue, function, arg, flags)? })
}

/// `void SCICreateDMAQueue(sci_desc_t sd, sci_dma_queue_t *queue, unsigned adapter, unsigned
/// maxEntries, unsigned flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCICreateDMAQueue(
    sd: Handle,
    queue: *mut Handle,
    adapter: u32,
    max_entries: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let desc = object::<Desc>(sd)?;
        let modes = flags::DMA_ADAPTER | flags::DMA_GLOBAL | flags::DMA_SYSDMA;
        check_flags(flags, modes | flags::DMA_USER_MEM | flags::DMA_PHDMA)?;
        if flags & flags::DMA_PHDMA != 0 {
            return fail(SciError::FlagNotImplemented);
        }
        need(queue)?;
        let made = DmaQueue::new(&desc, adapter, max_entries)?;
        // SAFETY: by the caller's contract space for a handle.
        unsafe { OwnHandle::default().publish(&made, queue, || Ok(())) }.inspect_err(|_| {
            let _ = made.remove();
        })
    });
}

/// `void SCIRemoveDMAQueue(sci_dma_queue_t queue, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIRemoveDMAQueue(queue: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = object::<DmaQueue>(queue)?;
        check_flags(flags, 0)?;
        found.remove()?;
        objects::remove(queue.addr());
        Ok(())
    });
}

/// `void SCIStartDmaTransfer(sci_dma_queue_t queue, sci_local_segment_t local, sci_remote_segment_t
/// remote, size_t localOffset, size_t size, size_t remoteOffset, sci_cb_dma_t callback, void *arg,
/// unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIStartDmaTransfer(
    queue: Handle,
    local: Handle,
    remote: Handle,
    local_offset: usize,
    size: usize,
    remote_offset: usize,
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let near = Near::Segment(object::<LocalSegment>(local)?);
        let Start { found, far, callback } = checked((queue, remote), function, arg, flags)?;
        let part = Move { size, local: local_offset, remote: remote_offset };
        found.start((&near, &far), &[part], callback, flags)
    });
}

/// `void SCIStartDmaTransferVec(sci_dma_queue_t queue, sci_local_segment_t local,
/// sci_remote_segment_t remote, size_t count, dis_dma_vec_t *vector, sci_cb_dma_t callback, void
/// *arg, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIStartDmaTransferVec(
    queue: Handle,
    local: Handle,
    remote: Handle,
    count: usize,
    vector: *const c_void,
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let near = Near::Segment(object::<LocalSegment>(local)?);
        let Start { found, far, callback } = checked((queue, remote), function, arg, flags)?;
        need(vector)?;
        if count == 0 {
            return fail(SciError::IllegalParameter);
        }
        if count > VECTOR_MAX as usize {
            return fail(SciError::MaxEntries);
        }
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            let at = vector.cast::<DmaVector>().wrapping_add(i);
            // SAFETY: by the caller's contract `count` entries, and `i` is less.
            let entry = unsafe { get(at) }?;
            parts.push(Move {
                size: entry.size as usize,
                local: entry.local as usize,
                remote: entry.remote as usize,
            });
        }
        found.start((&near, &far), &parts, callback, flags)
    });
}

/// `void SCIStartDmaTransferMem(sci_dma_queue_t queue, void *local, sci_remote_segment_t remote,
/// size_t size, size_t remoteOffset, sci_cb_dma_t callback, void *arg, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIStartDmaTransferMem(
    queue: Handle,
    local: *mut c_void,
    remote: Handle,
    size: usize,
    remote_offset: usize,
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let Start { found, far, callback } = checked((queue, remote), function, arg, flags)?;
        // SAFETY: by the caller's contract memory that stays valid until the end of the transfer.
        let near = Near::User(unsafe { memory(local, size) }?);
        let part = Move { size, local: 0, remote: remote_offset };
        found.start((&near, &far), &[part], callback, flags)
    });
}

/// `DISStartDmaTransfer`, of which only the name is public.
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn DISStartDmaTransfer() {
    guard(std::ptr::null_mut(), (), || not_supported("DISStartDmaTransfer"));
}

/// `DISStartDmaTransferVec`, of which only the name is public.
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn DISStartDmaTransferVec() {
    guard(std::ptr::null_mut(), (), || not_supported("DISStartDmaTransferVec"));
}

/// `sci_dma_queue_state_t SCIDMAQueueState(sci_dma_queue_t queue)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIDMAQueueState(queue: Handle) -> u32 {
    guard(std::ptr::null_mut(), ERROR, || Ok(object::<DmaQueue>(queue)?.poll() as u32))
}

/// Returns the state that a failed call on a queue returns.
fn state_of(queue: Handle) -> u32 {
    guard(std::ptr::null_mut(), ERROR, || Ok(object::<DmaQueue>(queue)?.phase() as u32))
}

/// `sci_dma_queue_state_t SCIWaitForDMAQueue(sci_dma_queue_t queue, unsigned timeout, unsigned
/// flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIWaitForDMAQueue(queue: Handle, timeout: u32, flags: u32, error: *mut u32) -> u32 {
    let state = state_of(queue);
    guard(error, state, || {
        let found = object::<DmaQueue>(queue)?;
        check_flags(flags, 0)?;
        Ok(found.wait(deadline(timeout))? as u32)
    })
}

/// `void SCIAbortDMAQueue(sci_dma_queue_t queue, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIAbortDMAQueue(queue: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = object::<DmaQueue>(queue)?;
        check_flags(flags, 0)?;
        found.abort()
    });
}

/// `sci_dma_queue_state_t SCIEnqueueDMATransfer(sci_dma_queue_t queue, sci_local_segment_t local,
/// sci_remote_segment_t remote, size_t localOffset, size_t remoteOffset, size_t size, unsigned
/// flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIEnqueueDMATransfer(
    queue: Handle,
    local: Handle,
    remote: Handle,
    local_offset: usize,
    remote_offset: usize,
    size: usize,
    flags: u32,
    error: *mut u32,
) -> u32 {
    let state = state_of(queue);
    guard(error, state, || {
        let found = object::<DmaQueue>(queue)?;
        let near = Near::Segment(object::<LocalSegment>(local)?);
        let far = object::<RemoteSegment>(remote)?;
        check_flags(flags, flags::DMA_READ)?;
        let part = Move { size, local: local_offset, remote: remote_offset };
        Ok(found.enqueue(&near, &far, part, flags & flags::DMA_READ != 0)? as u32)
    })
}

/// `void SCIPostDMAQueue(sci_dma_queue_t queue, sci_cb_dma_t callback, void *arg, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIPostDMAQueue(
    queue: Handle,
    function: DmaFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let found = object::<DmaQueue>(queue)?;
        check_flags(flags, flags::USE_CALLBACK)?;
        found.post(callback(queue, function, arg, flags)?)
    });
}

/// `void SCIResetDMAQueue(sci_dma_queue_t queue, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateDMAQueue`.
#[unsafe(no_mangle)]
extern "C" fn SCIResetDMAQueue(queue: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = object::<DmaQueue>(queue)?;
        check_flags(flags, 0)?;
        found.reset()
    });
}

/// Defines functions that fail with `SCI_ERR_NOT_SUPPORTED`.
macro_rules! without_hardware {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: not supported.")]
            // SAFETY: sisci_api.h declares this name with this signature.
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type,)* error: *mut u32) {
                guard(error, (), || not_supported(stringify!($name)));
            }
        )*
    };
}

without_hardware! {
    SCIphDmaEnqueue(_queue: Handle, _size: u32, _ioaddress: u64, _node: u32, _high: u32,
        _low: u32, _flags: u32);
    SCIphDmaStart(_queue: Handle, _function: DmaFunction, _arg: *mut c_void, _flags: u32);
    SCIRequestDMAChannel(_sd: Handle, _channel: *mut Handle, _adapter: u32, _kind: u32, _id: u32,
        _flags: u32);
    SCIAssignDMAChannel(_channel: Handle, _queue: Handle, _flags: u32);
    SCIReturnDMAChannel(_channel: Handle);
    SCIPrepareLocalSegmentForDMA(_channel: Handle, _segment: Handle, _flags: u32);
    SCIUnprepareLocalSegmentForDMA(_channel: Handle, _segment: Handle, _flags: u32);
    SCIPrepareRemoteSegmentForDMA(_channel: Handle, _segment: Handle, _flags: u32);
    SCIUnprepareRemoteSegmentForDMA(_channel: Handle, _segment: Handle, _flags: u32);
}
