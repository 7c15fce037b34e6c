// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Interrupts without and with data.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::c_void;
use std::sync::Arc;

use scif::sys::slice;

use crate::callback::Callback;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{
    Handle, OwnHandle, action, check_flags, get, guard, memory, need, not_supported, object, put,
};
use crate::flags;
use crate::interrupt::{DATA_MAX, Delivery, Interrupt, NewInterrupt};
use crate::node::Kind;
use crate::objects;
use crate::remote_interrupt::RemoteInterrupt;
use crate::wire::deadline;

/// `sci_cb_interrupt_t`
type PlainFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32) -> u32>;
/// `sci_cb_data_interrupt_t`
type DataFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, u32, u32) -> u32>;

/// Makes an interrupt and writes its handle and number.
///
/// # Safety
/// `at` is NULL or space for a handle, `number` NULL or space for a number.
unsafe fn create(
    sd: Handle,
    (at, number): (*mut Handle, *mut u32),
    mut new: NewInterrupt,
    handle: &OwnHandle,
) -> Outcome<()> {
    let desc = object::<Desc>(sd)?;
    need(at)?;
    // SAFETY: the caller's contract.
    let demanded = unsafe { get(number) }?;
    new.fixed = (new.flags & flags::FIXED_INTNO != 0).then_some(demanded);
    let made = Interrupt::new(&desc, new)?;
    let published = || -> Outcome<()> {
        // SAFETY: the caller's contract.
        unsafe { put(number, made.number) }?;
        // SAFETY: the caller's contract.
        unsafe { handle.publish(&made, at, || made.serve()) }
    };
    published().inspect_err(|_| {
        let _ = made.remove();
    })
}

/// Returns an interrupt of one kind.
fn interrupt(handle: Handle, kind: Kind) -> Outcome<Arc<Interrupt>> {
    let found = object::<Interrupt>(handle)?;
    if found.kind == kind { Ok(found) } else { fail(SciError::IllegalParameter) }
}

fn remote(handle: Handle, kind: Kind) -> Outcome<Arc<RemoteInterrupt>> {
    let found = object::<RemoteInterrupt>(handle)?;
    if found.kind == kind { Ok(found) } else { fail(SciError::IllegalParameter) }
}

fn remove(handle: Handle, kind: Kind, flags: u32) -> Outcome<()> {
    let found = interrupt(handle, kind)?;
    check_flags(flags, 0)?;
    found.remove()?;
    objects::remove(handle.addr());
    Ok(())
}

fn disconnect(handle: Handle, kind: Kind, flags: u32) -> Outcome<()> {
    remote(handle, kind)?;
    check_flags(flags, 0)?;
    objects::take_out::<RemoteInterrupt>(handle.addr(), |_| Ok(()))?.disconnect();
    Ok(())
}

/// Connects to an interrupt and writes its handle.
///
/// # Safety
/// `at` is NULL or space for a handle.
unsafe fn connect(
    sd: Handle,
    at: *mut Handle,
    kind: Kind,
    place: (u32, u32, u32),
    timeout: u32,
) -> Outcome<()> {
    let desc = object::<Desc>(sd)?;
    need(at)?;
    let made = RemoteInterrupt::connect(&desc, kind, place, deadline(timeout))?;
    // SAFETY: the caller's contract.
    unsafe { OwnHandle::default().publish(&made, at, || Ok(())) }.inspect_err(|_| {
        made.disconnect();
    })
}

/// `void SCICreateInterrupt(sci_desc_t sd, sci_local_interrupt_t *interrupt, unsigned adapter,
/// unsigned *number, sci_cb_interrupt_t callback, void *arg, unsigned flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCICreateInterrupt(
    sd: Handle,
    at: *mut Handle,
    adapter: u32,
    number: *mut u32,
    function: PlainFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    let legal = flags::USE_CALLBACK | flags::FIXED_INTNO | flags::SHARED_INT | flags::COUNTING_INT;
    guard(error, (), || {
        object::<Desc>(sd)?;
        check_flags(flags, legal)?;
        let handle = OwnHandle::default();
        let mut callback = None;
        if flags & flags::USE_CALLBACK != 0 {
            let function = function.ok_or(SciError::IllegalParameter)?;
            let (arg, own) = (arg.expose_provenance(), handle.clone());
            callback = Some(Callback::new(Box::new(move |_: &Delivery| {
                let arg = std::ptr::with_exposed_provenance_mut(arg);
                // SAFETY: a function of the program with the type of sisci_api.h, and its own
                // argument.
                action(unsafe { function(arg, own.get(), SciError::Ok.number()) })
            })));
        }
        let new = NewInterrupt { kind: Kind::Interrupt, adapter, fixed: None, flags, callback };
        // SAFETY: by the caller's contract.
        unsafe { create(sd, (at, number), new, &handle) }
    });
}

/// `void SCIRemoveInterrupt(sci_local_interrupt_t interrupt, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIRemoveInterrupt(handle: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || remove(handle, Kind::Interrupt, flags));
}

/// `void SCIWaitForInterrupt(sci_local_interrupt_t interrupt, unsigned timeout, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIWaitForInterrupt(handle: Handle, timeout: u32, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = interrupt(handle, Kind::Interrupt)?;
        check_flags(flags, 0)?;
        found.wait(0, deadline(timeout)).map(drop)
    });
}

/// `void SCIConnectInterrupt(sci_desc_t sd, sci_remote_interrupt_t *interrupt, unsigned node,
/// unsigned adapter, unsigned number, unsigned timeout, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIConnectInterrupt(
    sd: Handle,
    at: *mut Handle,
    node: u32,
    adapter: u32,
    number: u32,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        object::<Desc>(sd)?;
        check_flags(flags, flags::COUNTING_INT)?;
        // SAFETY: by the caller's contract.
        unsafe { connect(sd, at, Kind::Interrupt, (node, adapter, number), timeout) }
    });
}

/// `void SCIDisconnectInterrupt(sci_remote_interrupt_t interrupt, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIDisconnectInterrupt(handle: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || disconnect(handle, Kind::Interrupt, flags));
}

/// `void SCITriggerInterrupt(sci_remote_interrupt_t interrupt, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCITriggerInterrupt(handle: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let found = remote(handle, Kind::Interrupt)?;
        check_flags(flags, 0)?;
        found.trigger(&[])
    });
}

/// `void SCICreateDataInterrupt(sci_desc_t sd, sci_local_data_interrupt_t *interrupt, unsigned
/// adapter, unsigned *number, sci_cb_data_interrupt_t callback, void *arg, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCICreateDataInterrupt(
    sd: Handle,
    at: *mut Handle,
    adapter: u32,
    number: *mut u32,
    function: DataFunction,
    arg: *mut c_void,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        object::<Desc>(sd)?;
        check_flags(flags, flags::USE_CALLBACK | flags::FIXED_INTNO)?;
        let handle = OwnHandle::default();
        let mut callback = None;
        if flags & flags::USE_CALLBACK != 0 {
            let function = function.ok_or(SciError::IllegalParameter)?;
            let (arg, own) = (arg.expose_provenance(), handle.clone());
            callback = Some(Callback::new(Box::new(move |data: &Delivery| {
                let arg = std::ptr::with_exposed_provenance_mut(arg);
                // The program may change its copy of the data.
                let mut data = data.clone();
                let len = u32::try_from(data.len()).unwrap_or(0);
                let at = data.as_mut_ptr().cast();
                // SAFETY: a function of the program with the type of sisci_api.h, its own argument,
                // and bytes that live until it returns.
                action(unsafe { function(arg, own.get(), at, len, SciError::Ok.number()) })
            })));
        }
        let new = NewInterrupt { kind: Kind::DataInterrupt, adapter, fixed: None, flags, callback };
        // SAFETY: by the caller's contract.
        unsafe { create(sd, (at, number), new, &handle) }
    });
}

/// `void SCIRemoveDataInterrupt(sci_local_data_interrupt_t interrupt, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIRemoveDataInterrupt(handle: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || remove(handle, Kind::DataInterrupt, flags));
}

/// `void SCIWaitForDataInterrupt(sci_local_data_interrupt_t interrupt, void *data, unsigned
/// *length, unsigned timeout, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIWaitForDataInterrupt(
    handle: Handle,
    data: *mut c_void,
    length: *mut u32,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let found = interrupt(handle, Kind::DataInterrupt)?;
        check_flags(flags, 0)?;
        // SAFETY: by the caller's contract a number.
        let room = unsafe { get(length) }? as usize;
        // SAFETY: by the caller's contract space for `room` bytes.
        let space = unsafe { memory(data, room) }?;
        let received = found.wait(room, deadline(timeout));
        let len = received.as_ref().map_or_else(|_| found.kept_len(), Vec::len);
        if received.is_ok() || len > 0 {
            // SAFETY: by the caller's contract space for a number.
            unsafe { put(length, u32::try_from(len).unwrap_or(0)) }?;
        }
        space.copy_from_slice(&received?);
        Ok(())
    });
}

/// `void SCIConnectDataInterrupt(sci_desc_t sd, sci_remote_data_interrupt_t *interrupt, unsigned
/// node, unsigned adapter, unsigned number, unsigned timeout, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIConnectDataInterrupt(
    sd: Handle,
    at: *mut Handle,
    node: u32,
    adapter: u32,
    number: u32,
    timeout: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        object::<Desc>(sd)?;
        check_flags(flags, 0)?;
        // SAFETY: by the caller's contract.
        unsafe { connect(sd, at, Kind::DataInterrupt, (node, adapter, number), timeout) }
    });
}

/// `void SCIDisconnectDataInterrupt(sci_remote_data_interrupt_t interrupt, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIDisconnectDataInterrupt(handle: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || disconnect(handle, Kind::DataInterrupt, flags));
}

/// `void SCITriggerDataInterrupt(sci_remote_data_interrupt_t interrupt, void *data, unsigned
/// length, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCITriggerDataInterrupt(
    handle: Handle,
    data: *mut c_void,
    length: u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let found = remote(handle, Kind::DataInterrupt)?;
        check_flags(flags, 0)?;
        let len = length as usize;
        if len > DATA_MAX {
            return fail(SciError::OutOfRange);
        }
        let mut bytes = vec![0; len];
        if len > 0 {
            // SAFETY: by the caller's contract `len` bytes of the program.
            let source = unsafe { memory(data, len) }?;
            slice::with_bytes_mut(&mut bytes, |copy| copy.copy_from(&source));
        }
        found.trigger(&bytes)
    });
}

/// `void SCICreateNamedInterrupt(...)`, of which only the name is public.
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCICreateNamedInterrupt() {
    guard(std::ptr::null_mut(), (), || not_supported("SCICreateNamedInterrupt"));
}

/// `void SCIRegisterInterruptFlag(unsigned adapter, sci_local_interrupt_t *interrupt,
/// sci_local_segment_t segment, size_t offset, sci_cb_interrupt_t callback, void *arg, unsigned
/// flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIRegisterInterruptFlag(
    _adapter: u32,
    _at: *mut Handle,
    _segment: Handle,
    _offset: usize,
    _function: PlainFunction,
    _arg: *mut c_void,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCIRegisterInterruptFlag"));
}

/// `void SCIEnableConditionalInterrupt(sci_local_interrupt_t interrupt, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIEnableConditionalInterrupt(_handle: Handle, _flags: u32, error: *mut u32) {
    guard(error, (), || not_supported("SCIEnableConditionalInterrupt"));
}

/// `void SCIDisableConditionalInterrupt(sci_local_interrupt_t interrupt, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIDisableConditionalInterrupt(_handle: Handle, _flags: u32, error: *mut u32) {
    guard(error, (), || not_supported("SCIDisableConditionalInterrupt"));
}

/// `void SCIGetConditionalInterruptTrigCounter(sci_local_interrupt_t interrupt, unsigned *counter,
/// unsigned flags, sci_error_t *error)`
// SAFETY: as `SCICreateInterrupt`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetConditionalInterruptTrigCounter(
    _handle: Handle,
    _counter: *mut u32,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCIGetConditionalInterruptTrigCounter"));
}
