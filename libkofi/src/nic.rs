// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! NICs of this library: the hardware description of an info, with functions that stay valid.
//!
//! A NIC is an object that its provider's functions copy and free. A program may keep infos of a
//! provider that is unloaded. Therefore a registered provider's description of its NIC is copied
//! into one of these. The provider's private data (`prov_attr`) cannot be copied and is omitted.
//!
//! Mirrors fi_nic(3).
#![expect(unsafe_code, reason = "C structures in C's heap")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr;

use libfabric_sys::{
    FI_CLASS_NIC, FI_DUP, FI_ENOMEM, FI_ENOSYS, FI_OPS_NOSYS, fi_bus_attr, fi_device_attr,
    fi_link_attr, fi_ops, fid, fid_nic,
};

use crate::ffi::{Errno, guard, guard_or, release};
use crate::heap::{attribute, text};
use crate::tostr;

static OPS: fi_ops = fi_ops { close, control, tostr: to_text, ..FI_OPS_NOSYS };

/// Returns an independent copy; null for null.
///
/// # Errors
/// `FI_ENOMEM`
///
/// # Safety
/// `from` is null or a NIC that stays unchanged during the call.
pub(crate) unsafe fn copy(from: *const fid_nic) -> Result<*mut fid_nic, Errno> {
    // SAFETY: null or a NIC, by the caller's contract.
    let Some(from) = (unsafe { from.as_ref() }) else {
        return Ok(ptr::null_mut());
    };
    // SAFETY: any size is valid.
    let new = unsafe { libc::calloc(1, size_of::<fid_nic>()) }.cast::<fid_nic>();
    // SAFETY: null, or zeroed memory; the only field for which zero is invalid is written first.
    let Some(to) = (unsafe { new.as_mut() }) else {
        return Err(FI_ENOMEM);
    };
    to.fid = fid { fclass: FI_CLASS_NIC, context: from.fid.context, ops: &raw const OPS };
    // SAFETY: the pointers of a NIC, by the caller's contract.
    let filled = unsafe { fill(to, from) };
    if let Err(errno) = filled {
        // SAFETY: made above, with the pointers copied so far.
        unsafe { close(new.cast()) };
        return Err(errno);
    }
    Ok(new)
}

/// # Safety
/// The pointers in `from` are null or the pointers of a NIC; `to` has none.
unsafe fn fill(to: &mut fid_nic, from: &fid_nic) -> Result<(), Errno> {
    // SAFETY: null or an attribute, which never changed.
    to.device_attr = unsafe { attribute(from.device_attr, size_of::<fi_device_attr>()) }?;
    // SAFETY: null, or made by the line above.
    if let Some(device) = unsafe { to.device_attr.as_mut() } {
        let texts = [
            &mut device.name,
            &mut device.device_id,
            &mut device.device_version,
            &mut device.vendor_id,
            &mut device.driver,
            &mut device.firmware,
        ];
        // SAFETY: null or C strings.
        unsafe { own(texts) }?;
    }
    // SAFETY: null or an attribute, which never changed.
    to.bus_attr = unsafe { attribute(from.bus_attr, size_of::<fi_bus_attr>()) }?;
    // SAFETY: null or an attribute, which never changed.
    to.link_attr = unsafe { attribute(from.link_attr, size_of::<fi_link_attr>()) }?;
    // SAFETY: null, or made by the line above.
    if let Some(link) = unsafe { to.link_attr.as_mut() } {
        // SAFETY: null or C strings.
        unsafe { own([&mut link.address, &mut link.network_type]) }?;
    }
    Ok(())
}

/// Replaces texts of another owner by copies. None of the originals is left, even without memory.
///
/// # Safety
/// All are null or C strings.
unsafe fn own<const N: usize>(texts: [&mut *mut c_char; N]) -> Result<(), Errno> {
    let mut all = Ok(());
    for place in texts {
        // SAFETY: null or a C string, by the caller's contract.
        *place = unsafe { text(*place) }.unwrap_or_else(|errno| {
            all = Err(errno);
            ptr::null_mut()
        });
    }
    all
}

unsafe extern "C" fn close(nic: *mut fid) -> c_int {
    // SAFETY: null or a NIC made by `copy`, by the contract of fi_close.
    let Some(&parts) = (unsafe { nic.cast::<fid_nic>().as_ref() }) else {
        return 0;
    };
    // SAFETY: null, or owned by the NIC.
    if let Some(&device) = unsafe { parts.device_attr.as_ref() } {
        for text in [
            device.name,
            device.device_id,
            device.device_version,
            device.vendor_id,
            device.driver,
            device.firmware,
        ] {
            // SAFETY: owned by the attribute.
            unsafe { release(text) };
        }
    }
    // SAFETY: null, or owned by the NIC.
    if let Some(&link) = unsafe { parts.link_attr.as_ref() } {
        for text in [link.address, link.network_type] {
            // SAFETY: owned by the attribute.
            unsafe { release(text) };
        }
    }
    let pieces: [*mut c_void; 4] =
        [parts.device_attr.cast(), parts.bus_attr.cast(), parts.link_attr.cast(), nic.cast()];
    for piece in pieces {
        // SAFETY: owned by the NIC, and finally the NIC itself.
        unsafe { release(piece) };
    }
    0
}

unsafe extern "C" fn control(nic: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        if command != FI_DUP {
            return Err(FI_ENOSYS);
        }
        // SAFETY: a NIC made by `copy`, by the contract of fi_control.
        let new = unsafe { copy(nic.cast()) }?;
        // SAFETY: space for a NIC pointer, by the contract of the command.
        unsafe { arg.cast::<*mut fid_nic>().write(new) };
        Ok(())
    })
}

unsafe extern "C" fn to_text(nic: *const fid, buf: *mut c_char, len: usize) -> c_int {
    guard_or((), || {
        // SAFETY: a NIC made by `copy`, by the contract of the function.
        let text = unsafe { tostr::nic(nic.cast()) };
        // SAFETY: a buffer of that size, by the contract of the function; it contains a text to
        // which this one is appended.
        unsafe { tostr::append(buf, len, &text) };
    });
    0
}
