// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Client side of libfabric: the library loaded at run time, and its entry points of
//! `rdma/fabric.h` and `rdma/fi_errno.h`.
//!
//! The inline functions of the headers, which call through the objects' tables, are not included.
#![expect(unsafe_code, reason = "functions are found by name")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::NonNull;

use crate::dl::Handle;
use crate::{fabric_fn, fi_info, getinfo_fn};

/// `void fi_freeinfo(struct fi_info *info)`
pub type freeinfo_fn = unsafe extern "C" fn(info: *mut fi_info);
/// `struct fi_info *fi_dupinfo(const struct fi_info *info)`; null creates an empty one.
pub type dupinfo_fn = unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info;
/// `uint32_t fi_version(void)`
pub type version_fn = unsafe extern "C" fn() -> u32;
/// `const char *fi_strerror(int errnum)`
pub type strerror_fn = unsafe extern "C" fn(errnum: c_int) -> *const c_char;

/// Loaded libfabric with the newest version of each symbol. The pointers are valid until it is
/// dropped.
#[derive(Debug)]
pub struct Lib {
    pub getinfo: getinfo_fn,
    pub freeinfo: freeinfo_fn,
    pub dupinfo: dupinfo_fn,
    pub fabric: fabric_fn,
    pub version: version_fn,
    pub strerror: strerror_fn,
    handle: Handle,
}

impl Lib {
    /// Loads the library, for instance `libfabric.so.1`.
    ///
    /// # Errors
    /// The message of the dynamic linker, or the name of a missing function.
    ///
    /// # Safety
    /// The file is a libfabric. The result is dropped after every object made with it, and no
    /// pointer taken from it is used afterwards.
    pub unsafe fn open(path: &CStr) -> Result<Self, String> {
        // SAFETY: the file is a libfabric, whose initialisers may run at any time.
        let handle = unsafe { Handle::load(path) }?;
        let find = |name: &CStr| {
            handle.symbol(name).ok_or_else(|| format!("no {} in {path:?}", name.to_string_lossy()))
        };
        Ok(Self {
            // SAFETY: the type is that of `fi_getinfo`.
            getinfo: unsafe { transmute::<NonNull<c_void>, getinfo_fn>(find(c"fi_getinfo")?) },
            // SAFETY: the type is that of `fi_freeinfo`.
            freeinfo: unsafe { transmute::<NonNull<c_void>, freeinfo_fn>(find(c"fi_freeinfo")?) },
            // SAFETY: the type is that of `fi_dupinfo`.
            dupinfo: unsafe { transmute::<NonNull<c_void>, dupinfo_fn>(find(c"fi_dupinfo")?) },
            // SAFETY: the type is that of `fi_fabric`.
            fabric: unsafe { transmute::<NonNull<c_void>, fabric_fn>(find(c"fi_fabric")?) },
            // SAFETY: the type is that of `fi_version`.
            version: unsafe { transmute::<NonNull<c_void>, version_fn>(find(c"fi_version")?) },
            // SAFETY: the type is that of `fi_strerror`.
            strerror: unsafe { transmute::<NonNull<c_void>, strerror_fn>(find(c"fi_strerror")?) },
            handle,
        })
    }

    /// Returns the address of another function of the library.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.handle.symbol(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_reported() {
        // SAFETY: the file does not exist.
        let error = unsafe { Lib::open(c"libno-such-fabric.so") }.unwrap_err();
        assert!(error.contains("libno-such-fabric.so"), "{error}");
    }

    #[test]
    fn the_installed_library_answers() {
        // SAFETY: the name is libfabric's; no object is made with it.
        let lib = unsafe { Lib::open(c"libfabric.so.1") }.unwrap();
        // SAFETY: the library is loaded.
        let version = unsafe { (lib.version)() };
        assert!(version >= crate::Host::OLDEST, "{version:#x}");
        // SAFETY: the library is loaded.
        let text = unsafe { (lib.strerror)(crate::FI_ETRUNC) };
        // SAFETY: the function returns a C string for any number.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"Truncation error");
    }
}
