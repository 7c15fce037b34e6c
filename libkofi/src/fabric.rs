// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_fabric`: opens a fabric with the named provider, and keeps a reference to that provider
//! until the fabric is closed.
//!
//! The provider cannot lose this reference, since it never has it. Its object gets a table of
//! operations that differs only in `close`, and the references are in a list of this file. All
//! other calls directly reach the provider.
//!
//! Mirrors fi_fabric(3).
#![expect(unsafe_code, reason = "objects are C structures with tables of functions")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use kofi::{Call, Hold};
use libfabric_sys::{FI_EINVAL, FI_ENODEV, FI_EOTHER, fi_fabric_attr, fi_version, fid, fid_fabric};

use crate::ffi::{Errno, guard, string};
use crate::getinfo::is_wanted;
use crate::info::Layout;
use crate::ops::{CloseFn, OpsTable};
use crate::provider::Vector;
use crate::registry::registry;

/// Operation table of open fabrics. `ops` is first, so that `close` finds the provider's function
/// from the fabric's pointer.
///
/// A table is never freed, and the fabrics of a provider share one. A provider may return one
/// object several times, count, and even keep it when it is closed. Therefore the last use of a
/// table cannot be determined.
#[repr(C)]
struct Guarded {
    ops: OpsTable,
    close: CloseFn,
}

/// Fabric that was opened once, to be closed once.
struct Opened {
    /// Number in the order of all opened fabrics.
    number: u64,
    by: ThreadId,
    /// Providers: its own, and each provider that obtained it from that one during its own opening,
    /// and passed it on.
    providers: Vec<Hold<Vector>>,
}

struct Fabrics {
    /// All different tables.
    tables: Vec<&'static Guarded>,
    /// Open fabrics by address.
    open: BTreeMap<usize, Vec<Opened>>,
    /// Number of the fabric opened last.
    last: u64,
}

static FABRICS: Mutex<Fabrics> =
    Mutex::new(Fabrics { tables: Vec::new(), open: BTreeMap::new(), last: 0 });

/// Locks the list. No function of a provider is called under this lock.
fn fabrics() -> MutexGuard<'static, Fabrics> {
    FABRICS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabrics {
    /// Returns the table that differs from `original` only in `close`.
    fn table(&mut self, original: OpsTable, close_original: CloseFn) -> &'static Guarded {
        let known = self.tables.iter().find(|known| {
            let was = OpsTable { close: Some(known.close), ..known.ops };
            was.addresses() == original.addresses()
        });
        if let Some(known) = known {
            return known;
        }
        let new = Box::leak(Box::new(Guarded {
            ops: OpsTable { close: Some(close), ..original },
            close: close_original,
        }));
        self.tables.push(new);
        new
    }

    /// Records that this call opened the fabric. The call began when `before` was the last number.
    fn opened(&mut self, fabric: usize, call: &Call<Vector>, before: u64) {
        let by = thread::current().id();
        let all = self.open.entry(fabric).or_default();
        let inside = all.iter_mut().rfind(|one| one.number > before && one.by == by);
        if let Some(inside) = inside {
            inside.providers.push(call.hold());
            return;
        }
        self.last += 1;
        all.push(Opened { number: self.last, by, providers: vec![call.hold()] });
    }

    fn take(&mut self, fabric: usize) -> Option<Opened> {
        let all = self.open.get_mut(&fabric)?;
        let one = all.pop();
        if all.is_empty() {
            self.open.remove(&fabric);
        }
        one
    }

    fn give_back(&mut self, fabric: usize, one: Opened) {
        self.open.entry(fabric).or_default().push(one);
    }
}

/// `int fi_fabric(attr, fabric, context)`
///
/// # Errors
/// `FI_EINVAL`: no attribute, no name of provider or fabric, no space for the result. `FI_ENODEV`:
/// no provider has that name, or `FI_PROVIDER` excludes it. Errors of the provider.
///
/// # Safety
/// By the contract of fi_fabric(3), with an attribute of that layout.
pub(crate) unsafe fn open(
    attr: *const fi_fabric_attr,
    layout: &Layout,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<(), Errno> {
    if attr.is_null() || fabric.is_null() {
        return Err(FI_EINVAL);
    }
    let mut own = fi_fabric_attr {
        // Version for a program without the field.
        api_version: fi_version(1, 0),
        ..fi_fabric_attr::ZERO
    };
    // SAFETY: the attribute has this length by the caller's contract, `own` is longer.
    unsafe {
        ptr::copy_nonoverlapping(
            attr.cast::<u8>(),
            (&raw mut own).cast::<u8>(),
            layout.fabric_len(),
        );
    }
    // SAFETY: null or a C string, by the caller's contract.
    let provider = unsafe { string(own.prov_name) }.ok_or(FI_EINVAL)?;
    if own.name.is_null() {
        return Err(FI_EINVAL);
    }
    let call = registry().enter(provider).filter(|call| is_wanted(call.name())).ok_or(FI_ENODEV)?;
    let api_version = own.api_version;
    let new = guarded(&call, &mut own, context)?;
    // Older providers lack the field.
    if call.interface >= fi_version(1, 5) {
        // SAFETY: a newly opened fabric, with the field.
        unsafe { (*new).api_version = api_version };
    }
    // SAFETY: not null; the caller's space for the result.
    unsafe { fabric.write(new) };
    Ok(())
}

/// Opens a fabric that keeps a reference to its provider.
///
/// # Errors
/// Errors of the provider; `FI_EOTHER` when its object cannot be closed.
pub(crate) fn guarded(
    call: &Call<Vector>,
    attr: &mut fi_fabric_attr,
    context: *mut c_void,
) -> Result<*mut fid_fabric, Errno> {
    let before = fabrics().last;
    let new = call.fabric(attr, context)?;
    let mut fabrics = fabrics();
    // SAFETY: an object that the provider has just opened.
    let head = unsafe { new.cast::<fid>().as_mut() }.ok_or(FI_EOTHER)?;
    // SAFETY: null or the table of an object.
    let ops = unsafe { OpsTable::of(head.ops) }.ok_or(FI_EOTHER)?;
    let original = ops.close.ok_or(FI_EOTHER)?;
    if !ptr::fn_addr_eq(original, close as CloseFn) {
        head.ops = ptr::from_ref(fabrics.table(ops, original)).cast();
    }
    fabrics.opened(new.addr(), call, before);
    Ok(new)
}

/// `int fi_close(fid)` of a fabric: calls the provider's function, then releases the provider.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let mut code = 0;
    let guarded = guard(|| {
        // SAFETY: null or an open fabric, by the contract of fi_close.
        let ops = unsafe { fid.as_ref() }.ok_or(FI_EINVAL)?.ops;
        // SAFETY: only the tables of `Guarded` contain this function, and they are never freed.
        let table = unsafe { &*ops.cast::<Guarded>() };
        let opened = fabrics().take(fid.addr()).ok_or(FI_EINVAL)?;
        // Counted as calls of this thread, which must not wait for the provider in them.
        let calls: Vec<_> = opened.providers.iter().map(Hold::enter).collect();
        // SAFETY: the provider's own function for its own object.
        code = unsafe { (table.close)(fid) };
        if code != 0 {
            fabrics().give_back(fid.addr(), opened);
        }
        drop(calls);
        Ok(())
    });
    if guarded == 0 { code } else { guarded }
}

/// Returns the part of a name before the first slash, and the part after it.
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
