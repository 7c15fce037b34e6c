// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_open`: objects that a program opens by name. The only one is `logging`, which imports a log
//! of the program. The cache of registrations that libfabric shares (`mr_cache`) serves providers
//! that this library does not have.
//!
//! Mirrors `fi_import_log` of `rdma/fi_ext.h`.
#![expect(unsafe_code, reason = "objects and tables of functions from C")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::{PoisonError, RwLock};

use libfabric_sys::{
    FI_CLASS_LOG, FI_EALREADY, FI_EBADFLAGS, FI_EINVAL, FI_ENOSYS, FI_OPS_NOSYS, Provider,
    fi_fabric_attr, fi_info, fi_ops, fi_provider, fi_version, fid, fid_fabric, ofi_prov_context,
};

use crate::ffi::{Errno, guard};
use crate::version::VERSION;

/// `struct fi_ops_log`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ops_log {
    pub size: usize,
    pub enabled: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: u32,
            subsys: u32,
            flags: u64,
        ) -> c_int,
    >,
    pub ready: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: u32,
            subsys: u32,
            flags: u64,
            showtime: *mut u64,
        ) -> c_int,
    >,
    pub log: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: u32,
            subsys: u32,
            func: *const c_char,
            line: c_int,
            msg: *const c_char,
        ),
    >,
}

/// `struct fid_logging`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}

/// Log imported by a program, until the program closes it. The library's own functions replace
/// missing ones.
static IMPORTED: RwLock<Option<fi_ops_log>> = RwLock::new(None);

pub(crate) fn imported() -> Option<fi_ops_log> {
    *IMPORTED.read().unwrap_or_else(PoisonError::into_inner)
}

/// Description of the library itself, for logs that require a name.
static CORE: Provider =
    Provider::new(c"core", (VERSION, VERSION), ofi_prov_context::EMPTY, no_infos, no_fabric, None);

unsafe extern "C" fn no_infos(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi_info,
    _info: *mut *mut fi_info,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_fabric(
    _attr: *mut fi_fabric_attr,
    _fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Returns the description that a program's log gets.
pub(crate) fn speaker(prov: *const fi_provider) -> *const fi_provider {
    if prov.is_null() { CORE.as_ptr() } else { prov }
}

static LOG_OPS: fi_ops = fi_ops { close: close_log, bind, ..FI_OPS_NOSYS };
static IMPORTED_OPS: fi_ops = fi_ops { close: close_imported, ..FI_OPS_NOSYS };

/// # Errors
/// `FI_ENOSYS`: an unknown name. `FI_EINVAL`: an interface before 1.13, or an attribute.
/// `FI_EBADFLAGS`: flags. `FI_EALREADY`: a log was imported before.
///
/// # Safety
/// `to` is null or space for an object.
pub(crate) unsafe fn open(
    version: u32,
    name: Option<&CStr>,
    attr_len: usize,
    flags: u64,
    to: *mut *mut fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    if !name.ok_or(FI_EINVAL)?.to_bytes().eq_ignore_ascii_case(b"logging") {
        return Err(FI_ENOSYS);
    }
    if version < fi_version(1, 13) || attr_len != 0 || to.is_null() {
        return Err(FI_EINVAL);
    }
    if flags != 0 {
        return Err(FI_EBADFLAGS);
    }
    if imported().is_some() {
        return Err(FI_EALREADY);
    }
    let log = Box::new(fid { fclass: FI_CLASS_LOG, context, ops: &raw const LOG_OPS });
    // SAFETY: not null; the caller's space for the object.
    unsafe { to.write(Box::into_raw(log)) };
    Ok(())
}

unsafe extern "C" fn close_log(log: *mut fid) -> c_int {
    // SAFETY: made by `open`, closed once by the contract of fi_close.
    drop(unsafe { Box::from_raw(log) });
    0
}

/// `fi_import_fid`: the other object is a program's `struct fid_logging`, whose close function is
/// replaced.
unsafe extern "C" fn bind(_log: *mut fid, other: *mut fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: null or an object, by the contract of fi_import_fid.
        let class = unsafe { other.as_ref() }.map(|other| other.fclass);
        if flags != 0 || class != Some(FI_CLASS_LOG) {
            return Err(FI_EINVAL);
        }
        // SAFETY: an object of that class is a struct fid_logging.
        let logging = unsafe { other.cast::<fid_logging>().as_mut() }.ok_or(FI_EINVAL)?;
        if logging.ops.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the program's table, which begins with its size.
        let size = unsafe { logging.ops.cast::<usize>().read() };
        if size < size_of::<fi_ops_log>() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the program's table, of that size at least.
        let ops = unsafe { logging.ops.read() };
        let mut imported = IMPORTED.write().unwrap_or_else(PoisonError::into_inner);
        if imported.is_some() {
            return Err(FI_EALREADY);
        }
        *imported = Some(ops);
        drop(imported);
        logging.fid.ops = &raw const IMPORTED_OPS;
        Ok(())
    })
}

unsafe extern "C" fn close_imported(_logging: *mut fid) -> c_int {
    guard(|| {
        *IMPORTED.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    })
}

const _: () = assert!(
    size_of::<fi_ops_log>() == 32
        && size_of::<fid_logging>() == size_of::<fid>() + size_of::<*mut u8>()
);
