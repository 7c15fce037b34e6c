// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sequences, barriers and copies by the calling processor.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::cell::Cell;
use std::ffi::c_void;

use scif_ring::{Mem, full_fence};

use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{
    Handle, OwnHandle, check_flags, guard, memory, need, not_supported, object,
};
use crate::flags;
use crate::map::{Map, OFFSET_ALIGN, Sequence};
use crate::objects::{self, Moment};

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

/// Mapping that a thread copied to last. Its next copy to it needs no look at the table of handles.
#[derive(Clone, Copy)]
struct LastCopy {
    sequence: usize,
    map: usize,
    moment: Moment,
    place: Place,
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

thread_local! {
    static LAST_COPY: Cell<Option<LastCopy>> = const { Cell::new(None) };
}

/// Checks the handles of a copy and returns the place of the mapping.
#[inline]
fn checked_place(sequence: Handle, map: Handle) -> Outcome<Place> {
    let (sequence_at, map_at, moment) = (sequence.addr(), map.addr(), Moment::now());
    if let Some(last) = LAST_COPY.get() {
        if (last.sequence, last.map) == (sequence_at, map_at) && last.moment == moment {
            return Ok(last.place);
        }
    }
    found_place(sequence, map, moment)
}

/// Looks up the handles of a copy, and remembers them for the next one.
#[cold]
fn found_place(sequence: Handle, map: Handle, moment: Moment) -> Outcome<Place> {
    let found = object::<Map>(map)?;
    if !sequence.is_null() {
        object::<Sequence>(sequence)?;
    }
    let place = Place::of(&found);
    let (sequence, map) = (sequence.addr(), map.addr());
    LAST_COPY.set(Some(LastCopy { sequence, map, moment, place }));
    Ok(place)
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

/// Fast path of [`copy`] for the handles of the last copy of this thread, if neither a check nor a
/// failure is due. Returns whether it has copied. The path makes no system call and cannot panic,
/// so [`guard`], a quarter of the time of 4 KiB, is not needed.
///
/// # Safety
/// The contract of [`copy`].
#[inline]
unsafe fn copy_again(
    (sequence, map): (Handle, Handle),
    local: *mut c_void,
    offset: usize,
    size: usize,
    flags: u32,
) -> bool {
    let Some(last) = LAST_COPY.get() else { return false };
    let LastCopy { moment, place, .. } = last;
    let is_last = (last.sequence, last.map) == (sequence.addr(), map.addr());
    let read = flags == flags::BLOCK_READ;
    let is_plain = (flags == 0 && place.writable || read) && offset % OFFSET_ALIGN == 0;
    let is_inside = offset <= place.len && size <= place.len - offset;
    if !is_last || !is_plain || !is_inside || local.is_null() || moment != Moment::now() {
        return false;
    }
    let remote = std::ptr::with_exposed_provenance_mut(place.addr + offset);
    // SAFETY: checked that the range lies in the mapping; the rest is the caller's contract.
    let remote = unsafe { Mem::new(remote, size) };
    // SAFETY: not null, and no longer than the mapping; the rest is the caller's contract.
    let local = unsafe { Mem::new(local.cast(), size) };
    move_bytes(&local, &remote, read);
    true
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
    // SAFETY: by the caller's contract.
    if unsafe { copy_again((sequence, map), local, offset, size, flags) } {
        if !error.is_null() {
            // SAFETY: not null; by the caller's contract space for a sci_error_t.
            unsafe { error.write_unaligned(SciError::Ok.number()) };
        }
        return;
    }
    guard(error, (), || {
        let place = checked_place(sequence, map)?;
        check_flags(flags, flags::BLOCK_READ | flags::ERROR_CHECK)?;
        check_faults(map, flags)?;
        // SAFETY: by the caller's contract.
        unsafe { copy(place, local, offset, size, flags) }?;
        check_errors(map, flags)
    });
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
        let place = checked_place(std::ptr::null_mut(), map)?;
        check_flags(flags, flags::BLOCK_READ | flags::ERROR_CHECK)?;
        check_faults(map, flags)?;
        // SAFETY: by the caller's contract.
        unsafe { copy(place, local, offset, size, flags) }?;
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
