// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Provider in the registry: its dispatch vector, copied at the registration, in one of two forms.
//!
//! The slides of KOFI define `struct kofi_provider`. The kernel's kfabric ended with `struct
//! kfi_provider`, which in user space is libfabric's own `struct fi_provider`, so providers for
//! libfabric can be registered unchanged.
//!
//! Calls into providers are in `getinfo` and `fabric`, their registration is in `register` and
//! `dl_provider`.
#![expect(unsafe_code, reason = "calls C functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use kofi::Provider;
use libfabric_sys::{
    FI_ENODATA, FI_ENOMEM, cleanup_fn, fabric_fn, fi_fabric_attr, fi_info, fi_provider, fid_fabric,
    getinfo_fn,
};

use crate::ffi::{Errno, answered, guard_or};
use crate::info::{self, Layout, copy_hints};
use crate::param;
use crate::version::VERSION;

/// `int getinfo(uint32_t version, const char *node, const int service, uint64_t flags, struct
/// fi_info *hints, struct fi_info **info)`: the form in the slides, with a numeric service.
pub type kofi_getinfo_fn = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: c_int,
    flags: u64,
    hints: *mut fi_info,
    info: *mut *mut fi_info,
) -> c_int;
/// `int freeinfo(struct fi_info *info)`
pub type kofi_freeinfo_fn = unsafe extern "C" fn(info: *mut fi_info) -> c_int;

/// `struct kofi_provider` of `kofi.h`: the dispatch vector of the slides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kofi_provider {
    pub name: *const c_char,
    pub version: u32,
    pub getinfo: Option<kofi_getinfo_fn>,
    pub freeinfo: Option<kofi_freeinfo_fn>,
    pub fabric: Option<fabric_fn>,
}

/// Function that queries infos.
#[derive(Clone, Copy, Debug)]
enum GetInfo {
    Slides(kofi_getinfo_fn),
    Final(getinfo_fn),
}

/// Source of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Part of this library.
    BuiltIn,
    /// Registered by `kofi_provider_register` or `kfi_provider_register`.
    Registered,
    /// Loaded from the file of a libfabric provider.
    Adopted,
}

/// Provider. Its functions may be called until its clean-up, from any thread.
#[derive(Debug)]
pub(crate) struct Vector {
    id: usize,
    pub(crate) origin: Origin,
    /// Interface version of libfabric that it implements; programs that request a newer one do not
    /// see it.
    pub(crate) interface: u32,
    layout: Layout,
    getinfo: Option<GetInfo>,
    freeinfo: Option<kofi_freeinfo_fn>,
    fabric: fabric_fn,
    cleanup: Option<cleanup_fn>,
}

impl Provider for Vector {
    type Id = usize;

    fn id(&self) -> usize {
        self.id
    }

    fn cleanup(&self) {
        param::undefine(self.id);
        if let Some(cleanup) = self.cleanup {
            // SAFETY: the provider's own function, called once and last, as the header promises.
            guard_or((), || unsafe { cleanup() });
        }
    }
}

/// Query of a program with `fi_getinfo`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GetInfoArgs<'a> {
    pub(crate) version: u32,
    pub(crate) node: Option<&'a CStr>,
    pub(crate) service: Option<&'a CStr>,
    pub(crate) flags: u64,
    /// Null, or infos of the current layout, valid as long as the query.
    pub(crate) hints: *const fi_info,
}

impl Vector {
    /// Converts a description; `None` without a function that opens fabrics.
    pub(crate) fn of_slides(provider: &kofi_provider, id: usize) -> Option<Self> {
        Some(Self {
            id,
            origin: Origin::Registered,
            interface: VERSION,
            // The provider may have been compiled with any headers since libfabric 1.17.
            layout: Layout::V1_3,
            getinfo: provider.getinfo.map(GetInfo::Slides),
            freeinfo: provider.freeinfo,
            fabric: provider.fabric?,
            cleanup: None,
        })
    }

    /// Converts a description; `None` without a function that opens fabrics.
    pub(crate) fn of_final(provider: &fi_provider, id: usize, origin: Origin) -> Option<Self> {
        let (interface, layout) = match origin {
            // The version is that of the registry's interface, not of libfabric's.
            Origin::Registered => (VERSION, Layout::V1_3),
            Origin::BuiltIn => (provider.fi_version, Layout::CURRENT),
            Origin::Adopted => (provider.fi_version, Layout::of_interface(provider.fi_version)),
        };
        Some(Self {
            id,
            origin,
            interface,
            layout,
            getinfo: provider.getinfo.map(GetInfo::Final),
            freeinfo: None,
            fabric: provider.fabric?,
            cleanup: provider.cleanup,
        })
    }

    /// Returns the provider's answers as single infos in the current layout, owned by the caller.
    ///
    /// # Errors
    /// Errors of the provider. `FI_ENODATA`: it has no query function, or does not support this
    /// service. `FI_ENOMEM`
    pub(crate) fn getinfo(&self, args: &GetInfoArgs<'_>) -> Result<Vec<*mut fi_info>, Errno> {
        let node = args.node.map_or(ptr::null(), CStr::as_ptr);
        let mut list = ptr::null_mut();
        let code = match self.getinfo.ok_or(FI_ENODATA)? {
            GetInfo::Slides(getinfo) => {
                let service = service_number(args.service)?;
                // A separate copy, since the provider may change it. SAFETY: null, or an info of
                // the current layout.
                let hints = unsafe { copy_hints(args.hints, &Layout::CURRENT) }?;
                let hinted = hints.as_ref().map_or(ptr::null_mut(), |hints| hints.0);
                // SAFETY: the provider's function with arguments of its prototype; it does not keep
                // them.
                unsafe { getinfo(args.version, node, service, args.flags, hinted, &raw mut list) }
            }
            GetInfo::Final(getinfo) => {
                let service = args.service.map_or(ptr::null(), CStr::as_ptr);
                // SAFETY: the provider's function with arguments of its prototype; it does not keep
                // them.
                unsafe {
                    getinfo(args.version, node, service, args.flags, args.hints, &raw mut list)
                }
            }
        };
        answered(code)?;
        let copies = self.copies(list);
        self.release(list);
        copies.ok_or(FI_ENOMEM)
    }

    /// Copies a list into the current layout: a program may have a larger one than the provider was
    /// compiled with, and frees all infos alike.
    fn copies(&self, list: *const fi_info) -> Option<Vec<*mut fi_info>> {
        let dup = match self.origin {
            // The provider may be unloaded, and functions in its objects must not be called then.
            Origin::Registered => info::dup_whole,
            Origin::BuiltIn | Origin::Adopted => info::dup,
        };
        let mut copies = Vec::new();
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an info of the provider's layout.
            let copy = unsafe { dup(at, &self.layout) };
            if copy.is_null() {
                for copy in copies {
                    // SAFETY: made above.
                    unsafe { info::free(copy) };
                }
                return None;
            }
            copies.push(copy);
            // SAFETY: an info of the provider's list, in which `next` is first.
            at = unsafe { at.cast::<*const fi_info>().read() };
        }
        Some(copies)
    }

    /// Returns a list to the provider that made it.
    fn release(&self, list: *mut fi_info) {
        match self.freeinfo {
            _ if list.is_null() => {}
            // SAFETY: the provider's own function, with its own list, once. An error cannot be
            // handled.
            Some(freeinfo) => drop(unsafe { freeinfo(list) }),
            // SAFETY: without a function of its own the list is from C's heap, as the header
            // requires.
            None => unsafe { info::free_of(list, &self.layout) },
        }
    }

    /// Opens a fabric.
    ///
    /// # Errors
    /// Errors of the provider; `FI_ENODATA` when it returns neither an error nor a fabric.
    pub(crate) fn fabric(
        &self,
        attr: &mut fi_fabric_attr,
        context: *mut c_void,
    ) -> Result<*mut fid_fabric, Errno> {
        let mut fabric = ptr::null_mut();
        // SAFETY: the provider's function with arguments of its prototype.
        answered(unsafe { (self.fabric)(attr, &raw mut fabric, context) })?;
        if fabric.is_null() { Err(FI_ENODATA) } else { Ok(fabric) }
    }
}

/// Converts a service to the numeric form of the slides: 0 for none.
fn service_number(service: Option<&CStr>) -> Result<c_int, Errno> {
    let Some(service) = service else { return Ok(0) };
    let text = service.to_str().map_err(|_| FI_ENODATA)?;
    text.parse().map_err(|_| FI_ENODATA)
}

const _: () = {
    assert!(size_of::<kofi_provider>() == 40);
    assert!(size_of::<*const c_void>() == 8);
    // `Provider` and `param` keep the address of a description as a number.
    assert!(size_of::<usize>() == size_of::<*const fi_provider>());
    assert!(FI_ENOMEM == 12 && std::mem::offset_of!(fi_info, next) == 0);
};
