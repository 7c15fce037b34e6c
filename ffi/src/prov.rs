// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures of `rdma/providers/fi_prov.h` and `fi_log.h`: the description of a provider for the
//! library that loads it.
#![expect(unsafe_code, reason = "a provider's description is a static that C writes to")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::offset_of;
use core::ptr;

use crate::{fi_fabric_attr, fi_info, fid_fabric};

/// `enum fi_log_level`: `FI_LOG_WARN` and so on.
pub type fi_log_level = u32;
/// `enum fi_log_subsys`: `FI_LOG_CORE` and so on.
pub type fi_log_subsys = u32;

/// `int getinfo(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct
/// fi_info **)`
pub type getinfo_fn = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;
/// `int fabric(struct fi_fabric_attr *, struct fid_fabric **, void *)`
pub type fabric_fn = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;
/// `void cleanup(void)`
pub type cleanup_fn = unsafe extern "C" fn();

/// `struct ofi_prov_context`, the content of [`fi_provider::context`], with the same layout in
/// every release.
///
/// The library sets `type_` and may set `disable_logging`. It sets `disable_layering` for some
/// providers and never clears it, so a provider that presets it is excluded from `;ofi_rxm` and
/// `;ofi_rxd` stacks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ofi_prov_context {
    pub type_: u32,
    /// C `bool`, declared as a byte since C writes it.
    pub disable_logging: u8,
    /// C `bool`.
    pub disable_layering: u8,
    reserved: [u8; 26],
    /// Zero-sized field with the alignment of `struct fi_context`, which is that of a pointer.
    align: [*mut c_void; 0],
}

impl ofi_prov_context {
    /// Context with no flag set.
    pub const EMPTY: Self =
        Self { type_: 0, disable_logging: 0, disable_layering: 0, reserved: [0; 26], align: [] };

    /// Context that keeps utility providers from being layered over this one, unless an application
    /// names the stack.
    pub const NO_LAYERING: Self = Self { disable_layering: 1, ..Self::EMPTY };
}

/// Result of `fi_prov_ini`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    /// `struct fi_context` in C.
    pub context: ofi_prov_context,
    pub name: *const c_char,
    pub getinfo: Option<getinfo_fn>,
    pub fabric: Option<fabric_fn>,
    pub cleanup: Option<cleanup_fn>,
}

/// [`fi_provider`] in a `static`: Rust initialises it once, then the library owns it and writes to
/// it.
#[repr(transparent)]
#[derive(Debug)]
pub struct Provider(UnsafeCell<fi_provider>);

// SAFETY: with `&Provider` safe code only gets the address; every access through it is `unsafe`
// with its own argument.
unsafe impl Sync for Provider {}

impl Provider {
    pub const fn new(
        name: &'static CStr,
        (version, fi_version): (u32, u32),
        context: ofi_prov_context,
        getinfo: getinfo_fn,
        fabric: fabric_fn,
        cleanup: Option<cleanup_fn>,
    ) -> Self {
        Self(UnsafeCell::new(fi_provider {
            version,
            fi_version,
            context,
            name: name.as_ptr(),
            getinfo: Some(getinfo),
            fabric: Some(fabric),
            cleanup,
        }))
    }

    /// Returns the address for the library, and for its logging and parameter functions.
    pub const fn as_ptr(&'static self) -> *mut fi_provider {
        self.0.get()
    }

    /// Sets the interface version that this provider claims. A library skips providers that claim
    /// less than an application requests, so it is raised to the version of the host before
    /// `fi_prov_ini` returns.
    ///
    /// # Safety
    /// Called only from `fi_prov_ini`: the library calls that under its own lock and reads the
    /// description afterwards.
    pub unsafe fn set_fi_version(&'static self, fi_version: u32) {
        let field =
            self.as_ptr().wrapping_byte_add(offset_of!(fi_provider, fi_version)).cast::<u32>();
        // SAFETY: `field` is the aligned `fi_version` inside `self`, writable through its
        // `UnsafeCell`. No other access happens now, by the caller's contract.
        unsafe { field.write(fi_version) }
    }

    /// Whether `p` is this provider.
    pub fn is(&'static self, p: *const fi_provider) -> bool {
        ptr::eq(self.as_ptr().cast_const(), p)
    }
}

const _: () = {
    assert!(size_of::<ofi_prov_context>() == 32);
    assert!(align_of::<ofi_prov_context>() == align_of::<crate::fi_context>());
    assert!(offset_of!(ofi_prov_context, disable_logging) == 4);
    assert!(offset_of!(ofi_prov_context, disable_layering) == 5);
    assert!(size_of::<fi_provider>() == 72);
    assert!(offset_of!(fi_provider, context) == 8);
    assert!(offset_of!(fi_provider, name) == 40);
};
