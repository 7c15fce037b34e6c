// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sequences, barriers and copies by the calling processor.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::c_void;

use scif_ring::{Mem, full_fence};

use crate::copy_slots;
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{
    Handle, OwnHandle, check_flags, guard, memory, need, not_supported, object,
};
use crate::flags;
use crate::map::{Map, OFFSET_ALIGN, Sequence};
use crate::objects;

/// `SCI_SEQ_NOT_RETRIABLE`, returned by calls that fail.
const NOT_RETRIABLE: u32 = 2;
/// Number of the only copy routine.
const COPY_ROUTINE: u32 = 0;

/// `void SCICreateMapSequence(sci_map_t map, sci_sequence_t *sequence, unsigned flags, sci_error_t
/// *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCICreateMapSequence(
    map: Handle,
    sequence: *mut Handle,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let map = object::<Map>(map)?;
        check_flags(flags, flags::FAST_BARRIER)?;
        need(sequence)?;
        let made = Sequence::new(map)?;
        // SAFETY: by the caller's contract space for a handle.
        unsafe { OwnHandle::default().publish(&made, sequence, || Ok(())) }.inspect_err(|_| {
            made.remove();
        })
    });
}

/// `void SCIRemoveSequence(sci_sequence_t sequence, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIRemoveSequence(sequence: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        object::<Sequence>(sequence)?;
        check_flags(flags, 0)?;
        objects::take_out::<Sequence>(sequence.addr(), |_| Ok(()))?.remove();
        Ok(())
    });
}

/// `sci_sequence_status_t SCIStartSequence(sci_sequence_t sequence, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIStartSequence(sequence: Handle, flags: u32, error: *mut u32) -> u32 {
    guard(error, NOT_RETRIABLE, || {
        let sequence = object::<Sequence>(sequence)?;
        check_flags(flags, 0)?;
        Ok(sequence.status() as u32)
    })
}

/// `sci_sequence_status_t SCICheckSequence(sci_sequence_t sequence, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCICheckSequence(sequence: Handle, flags: u32, error: *mut u32) -> u32 {
    guard(error, NOT_RETRIABLE, || {
        let sequence = object::<Sequence>(sequence)?;
        check_flags(flags, flags::NO_FLUSH | flags::NO_STORE_BARRIER)?;
        if flags & flags::NO_STORE_BARRIER == 0 {
            full_fence();
        }
        Ok(sequence.check() as u32)
    })
}

/// `void SCIStoreBarrier(sci_sequence_t sequence, unsigned flags)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIStoreBarrier(_sequence: Handle, _flags: u32) {
    full_fence();
}

/// `void SCIFlushReadBuffers(sci_sequence_t sequence)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIFlushReadBuffers(_sequence: Handle) {
    full_fence();
}

/// `void SCIFlush(sci_sequence_t sequence, unsigned flags)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIFlush(_sequence: Handle, _flags: u32) {
    full_fence();
}

/// Range of a mapping.
#[derive(Clone, Copy)]
struct Place {
    addr: usize,
    len: usize,
    writable: bool,
}

impl Place {
    fn of(map: &Map) -> Place {
        Place { addr: map.addr, len: map.len, writable: map.writable }
    }

    /// Returns the address of a range.
    ///
    /// # Errors
    /// `OutOfRange`.
    fn at(&self, offset: usize, len: usize) -> Outcome<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.addr + offset),
            _ => fail(SciError::OutOfRange),
        }
    }
}

/// Fails for an injected fault, if the flags ask for a check.
#[inline]
fn check_faults(map: Handle, flags: u32) -> Outcome<()> {
    if flags & flags::ERROR_CHECK != 0 && object::<Map>(map)?.take_retriable() {
        return fail(SciError::TransferFailed);
    }
    Ok(())
}

/// Fails for an owner that is gone, if the flags ask for a check.
#[inline]
fn check_errors(map: Handle, flags: u32) -> Outcome<()> {
    if flags & flags::ERROR_CHECK == 0 {
        return Ok(());
    }
    full_fence();
    object::<Map>(map)?.check_alive()
}

fn move_bytes(local: &Mem, remote: &Mem, read: bool) {
    let _ = if read { local.copy_from(remote) } else { remote.copy_from(local) };
}

/// Copies between memory of the program and a mapping.
///
/// # Safety
/// `local` is memory of `size` bytes of the program; the mapping is not unmapped meanwhile.
unsafe fn copy(
    place: Place,
    local: *mut c_void,
    offset: usize,
    size: usize,
    flags: u32,
) -> Outcome<()> {
    if offset % OFFSET_ALIGN != 0 {
        return fail(SciError::OffsetAlignment);
    }
    let remote = std::ptr::with_exposed_provenance_mut(place.at(offset, size)?);
    if size == 0 {
        return Ok(());
    }
    let read = flags & flags::BLOCK_READ != 0;
    if !read && !place.writable {
        return fail(SciError::IllegalOperation);
    }
    // SAFETY: the caller's contract.
    let local = unsafe { memory(local, size) }?;
    // SAFETY: `at` checked that the range lies in the mapping; the rest is the caller's contract.
    let remote = unsafe { memory(remote, size) }?;
    move_bytes(&local, &remote, read);
    Ok(())
}

/// Copies from a mapping by known handles, if neither a check nor a failure is due. Returns whether
/// it has.
///
/// # Safety
/// The contract of [`copy`].
unsafe fn read_known(
    (sequence, map): (Handle, Handle),
    (local, size): (*mut c_void, usize),
    offset: usize,
    flags: u32,
) -> bool {
    let slot = copy_slots::find(map.addr(), sequence.addr());
    let is_plain = flags == flags::BLOCK_READ && offset % OFFSET_ALIGN == 0 && !local.is_null();
    let at = slot.filter(|_| is_plain).and_then(|slot| slot.range(offset, size, true));
    let Some(at) = at else { return false };
    // SAFETY: checked that the range lies in the mapping; the rest is the caller's contract.
    let remote = unsafe { Mem::new(std::ptr::with_exposed_provenance_mut(at), size) };
    // SAFETY: not null, and no longer than the mapping; the rest is the caller's contract.
    let local = unsafe { Mem::new(local.cast(), size) };
    local.copy_from(&remote);
    true
}

/// Slow path of [`SCIMemCpy`]. It has the same signature, so that the fast path can jump to it.
///
/// # Safety
/// The contract of [`copy`], and `error` is NULL or space for a sci_error_t.
#[inline(never)]
unsafe extern "C" fn copy_checked(
    sequence: Handle,
    local: *mut c_void,
    map: Handle,
    offset: usize,
    size: usize,
    flags: u32,
    error: *mut u32,
) {
    // SAFETY: by the caller's contract.
    if unsafe { read_known((sequence, map), (local, size), offset, flags) } {
        if !error.is_null() {
            // SAFETY: not null; by the caller's contract space for a sci_error_t.
            unsafe { error.write_unaligned(SciError::Ok.number()) };
        }
        return;
    }
    guard(error, (), || {
        let found = objects::find_for_copy(map.addr(), sequence.addr())?;
        check_flags(flags, flags::BLOCK_READ | flags::ERROR_CHECK)?;
        check_faults(map, flags)?;
        // SAFETY: by the caller's contract.
        unsafe { copy(Place::of(&found), local, offset, size, flags) }?;
        check_errors(map, flags)
    });
}

/// `void SCIMemCpy(sci_sequence_t sequence, void *memory, sci_map_t map, size_t offset, size_t
/// size, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIMemCpy(
    sequence: Handle,
    local: *mut c_void,
    map: Handle,
    offset: usize,
    size: usize,
    flags: u32,
    error: *mut u32,
) {
    // Fast path for copies to a mapping whose handles an earlier copy has checked. It makes no
    // system call, keeps errno and cannot panic. Loads wait for the stores of the copy before, so
    // it has few, and leaves to other functions what needs more of the stack.
    let range = copy_slots::find(map.addr(), sequence.addr())
        .filter(|_| flags == 0 && offset % OFFSET_ALIGN == 0 && !local.is_null())
        .and_then(|slot| Some((slot, slot.range(offset, size, false)?)));
    let Some((slot, at)) = range else {
        // SAFETY: by the caller's contract.
        return unsafe { copy_checked(sequence, local, map, offset, size, flags, error) };
    };
    if !error.is_null() {
        // SAFETY: not null; by the caller's contract space for a sci_error_t.
        unsafe { error.write_unaligned(SciError::Ok.number()) };
    }
    // SAFETY: `range` checked that the bytes lie in the mapping, which by the caller's contract is
    // not unmapped meanwhile.
    let remote = unsafe { Mem::new(std::ptr::with_exposed_provenance_mut(at), size) };
    // SAFETY: not null, no longer than the mapping, and by the caller's contract memory of the
    // program.
    let local = unsafe { Mem::new(local.cast(), size) };
    if !slot.has_fast_strings() || !remote.copy_by_string(&local) {
        // SAFETY: as above.
        unsafe { move_range(remote.as_ptr(), local.as_ptr(), size) };
    }
}

/// Copies by the routine for all lengths. Not inlined: it needs registers, which its caller would
/// have to save. A C function, so that its caller can jump to it.
///
/// # Safety
/// Both ranges of `size` bytes are accessible.
#[inline(never)]
unsafe extern "C" fn move_range(to: *mut u8, from: *mut u8, size: usize) {
    // SAFETY: the caller's contract.
    let to = unsafe { Mem::new(to, size) };
    // SAFETY: as above.
    let from = unsafe { Mem::new(from, size) };
    to.copy_from(&from);
}

/// `void SCIMemCpy_dual(sci_sequence_t sequence1, sci_sequence_t sequence2, void *memory, sci_map_t
/// map1, sci_map_t map2, size_t offset, size_t size, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIMemCpy_dual(
    _sequence1: Handle,
    _sequence2: Handle,
    _local: *mut c_void,
    _map1: Handle,
    _map2: Handle,
    _offset: usize,
    _size: usize,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCIMemCpy_dual"));
}

/// `void SCIMemCopy(void *memory, sci_map_t map, size_t offset, size_t size, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIMemCopy(
    local: *mut c_void,
    map: Handle,
    offset: usize,
    size: usize,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let found = objects::find_for_copy(map.addr(), 0)?;
        check_flags(flags, flags::BLOCK_READ | flags::ERROR_CHECK)?;
        check_faults(map, flags)?;
        // SAFETY: by the caller's contract.
        unsafe { copy(Place::of(&found), local, offset, size, flags) }?;
        check_errors(map, flags)
    });
}

/// `void SCIMemWrite(void *memory, volatile void *remote, size_t size, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIMemWrite(
    local: *mut c_void,
    remote: *mut c_void,
    size: usize,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        check_flags(flags, 0)?;
        // SAFETY: by the caller's contract memory of the program.
        let source = unsafe { memory(local, size) }?;
        // SAFETY: by the caller's contract memory of a mapping.
        let target = unsafe { memory(remote, size) }?;
        target.copy_from(&source);
        Ok(())
    });
}

/// `void SCITransferBlock(sci_map_t source, size_t sourceOffset, sci_map_t target, size_t
/// targetOffset, size_t size, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCITransferBlock(
    source: Handle,
    source_offset: usize,
    target: Handle,
    target_offset: usize,
    size: usize,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let source = object::<Map>(source)?;
        let found = object::<Map>(target)?;
        check_flags(flags, 0)?;
        if source_offset % OFFSET_ALIGN != 0 {
            return fail(SciError::OffsetAlignment);
        }
        let local =
            std::ptr::with_exposed_provenance_mut(Place::of(&source).at(source_offset, size)?);
        check_faults(target, flags::ERROR_CHECK)?;
        // SAFETY: `at` checked the range of the source; by the caller's contract both mappings
        // remain mapped.
        unsafe { copy(Place::of(&found), local, target_offset, size, 0) }?;
        check_errors(target, flags::ERROR_CHECK)
    });
}

/// `void SCITransferBlockAsync(sci_map_t source, size_t sourceOffset, sci_map_t target, size_t
/// targetOffset, size_t size, sci_block_transfer_t *block, sci_cb_block_transfer_t callback, void
/// *arg, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCITransferBlockAsync(
    _source: Handle,
    _source_offset: usize,
    _target: Handle,
    _target_offset: usize,
    _size: usize,
    _block: *mut Handle,
    _callback: Option<unsafe extern "C" fn(*mut c_void, Handle, u32) -> i32>,
    _arg: *mut c_void,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCITransferBlockAsync"));
}

/// `void SCIWaitForBlockTransfer(sci_block_transfer_t block, unsigned timeout, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIWaitForBlockTransfer(_block: Handle, _timeout: u32, _flags: u32, error: *mut u32) {
    guard(error, (), || not_supported("SCIWaitForBlockTransfer"));
}

/// `void SCIAbortBlockTransfer(sci_block_transfer_t block, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCIAbortBlockTransfer(_block: Handle, _flags: u32, error: *mut u32) {
    guard(error, (), || not_supported("SCIAbortBlockTransfer"));
}

/// `void SCICacheSync(sci_map_t map, void *address, size_t size, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SCICacheSync(
    map: Handle,
    _address: *mut c_void,
    _size: usize,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        if !map.is_null() {
            object::<Map>(map)?;
        }
        check_flags(flags, flags::CACHE_FLUSH | flags::CACHE_INVALIDATE)?;
        full_fence();
        Ok(())
    });
}

/// `unsigned GetSciMemCopyFunction(void)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn GetSciMemCopyFunction() -> u32 {
    COPY_ROUTINE
}

/// `void SetSciMemCopyFunction(unsigned number)`
// SAFETY: as `SCICreateMapSequence`.
#[unsafe(no_mangle)]
extern "C" fn SetSciMemCopyFunction(_number: u32) {
    // One routine serves all numbers: it selects by length and processor.
}
