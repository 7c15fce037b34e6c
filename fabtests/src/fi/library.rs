// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The library: loading it, and its functions that are symbols and not operations of an object.
//!
//! The library is loaded with local visibility, as plugins and language bindings do, and never
//! unloaded.
#![expect(unsafe_code, reason = "a library is loaded and its functions are called")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libfabric_sys as sys;

use super::errno::{self, Errno, Result};

pub(super) type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const sys::fi_info,
    *mut *mut sys::fi_info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut sys::fi_info);
type DupInfo = unsafe extern "C" fn(*const sys::fi_info) -> *mut sys::fi_info;
type RawFabric = *mut sys::fid_fabric;
type OpenFabric =
    unsafe extern "C" fn(*mut sys::fi_fabric_attr, *mut *mut sys::fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;

/// A loaded libfabric.
#[derive(Debug)]
pub struct Lib {
    pub(super) getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    version: u32,
}

/// Returns the number of a version, as `FI_VERSION(major, minor)` does.
pub const fn version(major: u16, minor: u16) -> u32 {
    ((major as u32) << 16) | minor as u32
}

impl Lib {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// The message of the loader.
    pub fn open(path: &Path) -> std::result::Result<&'static Lib, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: `name` is a C string; the constructors of the library are trusted.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("cannot load {}: {}", path.display(), loader_error()));
        }
        let find = |symbol: &std::ffi::CStr| {
            // SAFETY: `handle` is open, and `symbol` is a C string.
            let at = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
            if at.is_null() {
                Err(format!("{}: {}", path.display(), loader_error()))
            } else {
                Ok(at)
            }
        };
        // SAFETY: fi_getinfo has had this prototype since 1.0 (rdma/fabric.h), as have the others
        // below.
        let getinfo = unsafe { std::mem::transmute::<*mut c_void, GetInfo>(find(c"fi_getinfo")?) };
        // SAFETY: the type matches the prototype in rdma/fabric.h.
        let freeinfo =
            unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(find(c"fi_freeinfo")?) };
        // SAFETY: the type matches the prototype in rdma/fabric.h.
        let dupinfo = unsafe { std::mem::transmute::<*mut c_void, DupInfo>(find(c"fi_dupinfo")?) };
        // SAFETY: the type matches the prototype in rdma/fabric.h.
        let fabric = unsafe { std::mem::transmute::<*mut c_void, OpenFabric>(find(c"fi_fabric")?) };
        // SAFETY: the type matches the prototype in rdma/fabric.h.
        let fi_version =
            unsafe { std::mem::transmute::<*mut c_void, Version>(find(c"fi_version")?) };
        // SAFETY: the function takes no argument.
        let version = unsafe { fi_version() };
        let lib = Box::leak(Box::new(Lib { getinfo, freeinfo, dupinfo, fabric, version }));
        super::buf::keep(std::ptr::from_mut(lib));
        Ok(lib)
    }

    /// Version of the interface that the library implements.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Version as text.
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version >> 16, self.version & 0xffff)
    }

    pub(super) fn dup(&self, info: *const sys::fi_info) -> *mut sys::fi_info {
        // SAFETY: `info` is null or an info of this library; null requests an empty one.
        unsafe { (self.dupinfo)(info) }
    }

    /// # Safety
    /// `info` is an info of this library without later uses.
    pub(super) unsafe fn free(&self, info: *mut sys::fi_info) {
        // SAFETY: the caller's contract.
        unsafe { (self.freeinfo)(info) }
    }

    /// # Safety
    /// `attr` belongs to an allocated info.
    pub(super) unsafe fn open_fabric(&self, attr: *mut sys::fi_fabric_attr) -> Result<RawFabric> {
        let mut fabric = ptr::null_mut();
        errno::mark();
        // SAFETY: the caller's contract; the library writes one pointer to `fabric`.
        let code = unsafe { (self.fabric)(attr, &raw mut fabric, ptr::null_mut()) };
        Errno::check_int(code)?;
        Ok(fabric)
    }
}

fn loader_error() -> String {
    // SAFETY: dlerror(3) takes no argument.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: dlerror(3) returns a C string that is valid until the next loader call of this
    // thread.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
