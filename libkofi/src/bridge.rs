// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bridge: the providers registered with this library, shown to a real libfabric as its provider
//! `kofi`.
//!
//! libfabric has no call to register a provider at run time. `libkofi-fi.so` (link/bridge.c) is a
//! provider for libfabric that calls this library, if the process has it. A fabric `net` of the
//! provider `toy` has the name `toy/net` in libfabric. scif and adopted providers are omitted,
//! since libfabric can load these itself.
//!
//! Mirrors `rdma/providers/fi_prov.h`.
#![expect(unsafe_code, reason = "a provider's entry points")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libfabric_sys::{
    FI_EINVAL, FI_ENODATA, FI_ENODEV, FI_ENOMEM, Provider, fi_fabric_attr, fi_info, fi_provider,
    fi_version, fid_fabric, ofi_prov_context,
};

use crate::fabric;
use crate::ffi::{Errno, guard, release, strdup, string};
use crate::info::{self, Layout, Owned, copy_hints};
use crate::provider::{GetInfoArgs, Origin};
use crate::registry::registry;

/// Description for libfabric. Its version exceeds any that a program may request; the provider
/// behind it decides.
static BRIDGE: Provider = Provider::new(
    c"kofi",
    (fi_version(0, 1), fi_version(2, 255)),
    ofi_prov_context::NO_LAYERING,
    getinfo,
    open,
    None,
);

/// Whether a description is the one of the bridge.
pub(crate) fn is(provider: *const fi_provider) -> bool {
    BRIDGE.is(provider)
}

/// `struct fi_provider *kofi_bridge(void)`: for `libkofi-fi.so`.
#[unsafe(no_mangle)]
pub extern "C" fn kofi_bridge() -> *mut fi_provider {
    BRIDGE.as_ptr()
}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guard(|| {
        if info.is_null() {
            return Err(FI_EINVAL);
        }
        // The oldest layout, which every library has. SAFETY: null or an info of a libfabric, by
        // the contract of fi_getinfo.
        let hints = unsafe { copy_hints(hints, &Layout::V1_3) }?;
        // SAFETY: null or a C string, by the contract of fi_getinfo.
        let node = unsafe { string(node) };
        // SAFETY: null or a C string, by the contract of fi_getinfo.
        let service = unsafe { string(service) };
        let fabric = hints.as_ref().and_then(forget_names);
        let answers = registry().gather(|call| {
            let fits = match fabric.as_deref().map(fabric::split) {
                None => Some(None),
                Some(Some((provider, net))) if provider == call.name().to_bytes() => {
                    Some(Some(net))
                }
                Some(_) => None,
            };
            let Some(net) = fits.filter(|_| call.origin == Origin::Registered) else {
                return Ok(Vec::new());
            };
            if let (Some(hints), Some(net)) = (&hints, net) {
                // SAFETY: the copy belongs to this library.
                unsafe { set_fabric(hints.0, net) };
            }
            let args = GetInfoArgs {
                version,
                node,
                service,
                flags,
                hints: hints.as_ref().map_or(ptr::null(), |hints| hints.0.cast_const()),
            };
            let answers = call.getinfo(&args)?;
            for &answer in &answers {
                // SAFETY: an info of this library.
                unsafe { set_names(answer, call.name()) };
            }
            Ok::<_, Errno>(answers)
        });
        let answers = answers.map_err(|last| last.unwrap_or(FI_ENODATA))?;
        // SAFETY: single infos of this library.
        let list = unsafe { info::chain(&answers) };
        // SAFETY: not null; the caller's space for the answer.
        unsafe { info.write(list) };
        Ok(())
    })
}

/// Removes the names of provider and fabric from hints, since they are the bridge's. Returns the
/// name of the fabric.
fn forget_names(hints: &Owned) -> Option<CString> {
    // SAFETY: an info of this library.
    let attr = unsafe { hints.0.as_ref() }?.fabric_attr;
    // SAFETY: null or its attribute.
    let attr = unsafe { attr.as_mut() }?;
    // SAFETY: null or a C string.
    let fabric = unsafe { string(attr.name) }.map(CStr::to_owned);
    // SAFETY: in C's heap; set to null with it.
    unsafe { release(std::mem::replace(&mut attr.name, ptr::null_mut())) };
    // SAFETY: in C's heap; set to null with it.
    unsafe { release(std::mem::replace(&mut attr.prov_name, ptr::null_mut())) };
    fabric
}

/// Sets a new name for the fabric of an info.
///
/// # Safety
/// `info` is an info of this library.
unsafe fn set_fabric(info: *mut fi_info, name: &[u8]) {
    let Ok(name) = CString::new(name) else { return };
    // SAFETY: the caller's contract.
    let attr = unsafe { info.as_ref() }.map_or(ptr::null_mut(), |info| info.fabric_attr);
    // SAFETY: null or its attribute.
    if let Some(attr) = unsafe { attr.as_mut() } {
        let old = std::mem::replace(&mut attr.name, strdup(Some(&name)));
        // SAFETY: in C's heap, and not in the info any more.
        unsafe { release(old) };
    }
}

/// Sets the bridge's names in an answer. libfabric sets the provider's name itself, and requires it
/// to be empty.
///
/// # Safety
/// `info` is an info of this library.
unsafe fn set_names(info: *mut fi_info, provider: &CStr) {
    let info_parts = Owned(info);
    let net = forget_names(&info_parts);
    // The info still belongs to the list.
    let info = std::mem::ManuallyDrop::new(info_parts).0;
    let mut name = provider.to_bytes().to_vec();
    name.push(b'/');
    name.extend_from_slice(net.as_deref().unwrap_or_default().to_bytes());
    // SAFETY: the caller's contract.
    unsafe { set_fabric(info, &name) };
}

unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: null or an attribute, by the contract of fi_fabric.
        let attr = unsafe { attr.as_ref() }.ok_or(FI_EINVAL)?;
        // SAFETY: null or a C string, by the contract of fi_fabric.
        let name = unsafe { string(attr.name) }.ok_or(FI_EINVAL)?;
        if fabric.is_null() {
            return Err(FI_EINVAL);
        }
        let (provider, net) = fabric::split(name).ok_or(FI_ENODEV)?;
        let provider = CString::new(provider).map_err(|_| FI_EINVAL)?;
        let net = CString::new(net).map_err(|_| FI_EINVAL)?;
        let call = registry().enter(&provider).ok_or(FI_ENODEV)?;
        let (mut own_net, mut own_provider) = (strdup(Some(&net)), strdup(Some(&provider)));
        let mut own = fi_fabric_attr { name: own_net, prov_name: own_provider, ..*attr };
        let new = if own_net.is_null() || own_provider.is_null() {
            Err(FI_ENOMEM)
        } else {
            fabric::guarded(&call, &mut own, context)
        };
        for text in [&mut own_net, &mut own_provider] {
            // SAFETY: made above; the provider does not keep its attribute.
            unsafe { release(*text) };
        }
        // SAFETY: not null; the caller's space for the result.
        unsafe { fabric.write(new?) };
        Ok(())
    })
}
