// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_fabric`: opens a fabric with the provider of a name, and keeps that provider until the fabric is closed.
//!
//! The provider cannot forget its reference, since it never has one: the object it made gets a table of operations
//! like its own but for `close`, and the reference lies behind that table. All other calls go straight to the provider.
//!
//! Mirrors fi_fabric(3).
#![expect(unsafe_code, reason = "objects are C structures with tables of functions")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::size_of;
use std::sync::{Mutex, PoisonError};
use std::{iter, ptr};

use kofi::{Call, Hold};
use libfabric_sys::{FI_EINVAL, FI_ENODEV, FI_EOTHER, fi_fabric_attr, fi_ops, fi_version, fid, fid_fabric};

use crate::edge::{Errno, guard, string};
use crate::info::Layout;
use crate::provider::Vector;
use crate::{init, registry};

/// The table of an open fabric. `ops` is first: the fabric points to it, so its close finds the rest.
#[repr(C)]
struct Guarded {
    ops: fi_ops,
    close: unsafe extern "C" fn(fid: *mut fid) -> c_int,
    /// One for each time the provider gave this fabric; some give one and count.
    holds: Mutex<Vec<Hold<Vector>>>,
}

/// `int fi_fabric(attr, fabric, context)`
///
/// # Errors
/// `FI_EINVAL`: no attribute, no name of provider or fabric, no place for the result. `FI_ENODEV`: no provider has that
/// name. What the provider says.
///
/// # Safety
/// By the contract of fi_fabric(3), with an attribute of that layout.
pub(crate) unsafe fn open(
    attr: *const fi_fabric_attr,
    layout: &Layout,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<(), Errno> {
    init();
    if attr.is_null() || fabric.is_null() {
        return Err(FI_EINVAL);
    }
    let mut own = fi_fabric_attr {
        // What a program without the field may have been written to.
        api_version: fi_version(1, 0),
        ..fi_fabric_attr::ZERO
    };
    // SAFETY: the attribute has as many bytes by the caller's contract, `own` has more.
    unsafe {
        ptr::copy_nonoverlapping(
            attr.cast::<u8>(),
            (&raw mut own).cast::<u8>(),
            layout.fabric_len(),
        );
    }
    // SAFETY: null or a string, by the caller's contract.
    let provider = unsafe { string(own.prov_name) }.ok_or(FI_EINVAL)?;
    if own.name.is_null() {
        return Err(FI_EINVAL);
    }
    let call = registry().enter(provider).ok_or(FI_ENODEV)?;
    let api_version = own.api_version;
    let new = guarded(&call, &mut own, context)?;
    // SAFETY: a fabric that was opened right now.
    if let Some(new) = unsafe { new.as_mut() } {
        new.api_version = api_version;
    }
    // SAFETY: not null; the caller's place for the result.
    unsafe { fabric.write(new) };
    Ok(())
}

/// Opens a fabric that keeps its provider.
///
/// # Errors
/// What the provider says; `FI_EOTHER` when its object has no operations.
pub(crate) fn guarded(
    call: &Call<Vector>,
    attr: &mut fi_fabric_attr,
    context: *mut c_void,
) -> Result<*mut fid_fabric, Errno> {
    let new = call.fabric(attr, context)?;
    // SAFETY: an object that the provider opened right now.
    let head = unsafe { new.cast::<fid>().as_mut() }.ok_or(FI_EOTHER)?;
    // SAFETY: null or the table of an object.
    let ops = unsafe { head.ops.as_ref() }.ok_or(FI_EOTHER)?;
    if ptr::fn_addr_eq(ops.close, close as unsafe extern "C" fn(*mut fid) -> c_int) {
        // SAFETY: only `Guarded` has that close.
        let guarded = unsafe { &*head.ops.cast::<Guarded>() };
        guarded.push(call.hold());
        return Ok(new);
    }
    let table = Guarded {
        ops: fi_ops {
            size: ops.size.min(size_of::<fi_ops>()),
            close,
            ..*ops
        },
        close: ops.close,
        holds: Mutex::new(iter::once(call.hold()).collect()),
    };
    head.ops = Box::into_raw(Box::new(table)).cast_const().cast();
    Ok(new)
}

impl Guarded {
    fn push(&self, hold: Hold<Vector>) {
        self.holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hold);
    }

    fn pop(&self) -> Option<Hold<Vector>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// `int fi_close(fid)` of a fabric: the provider's own, then the provider is let go.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let mut code = 0;
    let guarded = guard(|| {
        // SAFETY: null or an open fabric, by the contract of fi_close.
        let ops = unsafe { fid.as_ref() }.ok_or(FI_EINVAL)?.ops;
        let table = ops.cast_mut().cast::<Guarded>();
        // SAFETY: this close is in no other table.
        let guarded = unsafe { &*table };
        let hold = guarded.pop().ok_or(FI_EINVAL)?;
        // As a call of this thread, who may not wait for itself in it.
        let call = hold.enter();
        let last = guarded
            .holds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
        // SAFETY: the provider's own function for its own object.
        code = unsafe { (guarded.close)(fid) };
        if code != 0 {
            guarded.push(hold);
        } else if last {
            // SAFETY: made by Box::into_raw in `guarded`; the object that pointed to it is gone.
            drop(unsafe { Box::from_raw(table) });
        }
        drop(call);
        Ok(())
    });
    if guarded == 0 { code } else { guarded }
}

/// The part of a name before the first slash, and the part behind.
pub(crate) fn split(name: &CStr) -> Option<(&[u8], &[u8])> {
    let bytes = name.to_bytes();
    let at = bytes.iter().position(|byte| *byte == b'/')?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_at_the_first_slash() {
        assert_eq!(split(c"toy/net/1"), Some((&b"toy"[..], &b"net/1"[..])));
        assert_eq!(split(c"toy"), None);
    }
}
