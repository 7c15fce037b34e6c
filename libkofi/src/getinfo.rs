// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_getinfo`: queries every provider and concatenates the answers, in the order of registration.
//!
//! Behaves as in libfabric, with two differences: names of providers are exact, and no layers are
//! added over them.
//!
//! Mirrors fi_getinfo(3).
#![expect(unsafe_code, reason = "infos are C structures")]

use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use kofi::Call;
use libfabric_sys::{FI_EINVAL, FI_ENODATA, FI_ENOMEM, FI_ENOSYS, FI_PROV_ATTR_ONLY, fi_info};

use crate::ffi::{Errno, strdup, string};
use crate::filter::Filter;
use crate::info::{self, Layout, copy_hints};
use crate::provider::{GetInfoArgs, Vector};
use crate::registry::registry;
use crate::version::VERSION;
use crate::{errors, log, param};

/// Providers selected by the user.
static WANTED: LazyLock<Filter> =
    LazyLock::new(|| Filter::new(param::own(c"FI_PROVIDER").as_deref()));

pub(crate) fn is_wanted(name: &CStr) -> bool {
    WANTED.passes(name.to_bytes())
}

/// Arguments of `fi_getinfo`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) version: u32,
    pub(crate) node: *const c_char,
    pub(crate) service: *const c_char,
    pub(crate) flags: u64,
    pub(crate) hints: *const fi_info,
    pub(crate) info: *mut *mut fi_info,
}

/// `int fi_getinfo(version, node, service, flags, hints, info)`: without an answer the list is
/// null, as in libfabric.
///
/// # Errors
/// `FI_EINVAL`: no space for the answer. `FI_ENOSYS`: an unknown version of libfabric.
/// `FI_ENODATA`: no provider has an answer. `FI_ENOMEM`
///
/// # Safety
/// By the contract of fi_getinfo(3), with infos of that layout.
pub(crate) unsafe fn getinfo(from: &Arguments, layout: &Layout) -> Result<(), Errno> {
    if from.info.is_null() {
        return Err(FI_EINVAL);
    }
    if from.version > VERSION {
        log::warn(format_args!(
            "fi_getinfo for interface version {:#x}: this library has {VERSION:#x}: FI_ENOSYS. Use \
             a newer libkofi",
            from.version
        ));
        return Err(FI_ENOSYS);
    }
    // Programs that free the list even after an error rely on this. SAFETY: not null; the caller's
    // space for the answer.
    unsafe { from.info.write(std::ptr::null_mut()) };
    // SAFETY: null or an info of that layout, by the caller's contract.
    let hints = unsafe { copy_hints(from.hints, layout) }?;
    let answers = if from.flags == FI_PROV_ATTR_ONLY {
        names()?
    } else {
        let args = GetInfoArgs {
            version: from.version,
            // SAFETY: null or a C string, by the caller's contract.
            node: unsafe { string(from.node) },
            // SAFETY: null or a C string, by the caller's contract.
            service: unsafe { string(from.service) },
            flags: from.flags,
            hints: hints.as_ref().map_or(std::ptr::null(), |hints| hints.0.cast_const()),
        };
        // SAFETY: null, or a copy that belongs to this library.
        let hinted = unsafe { hinted_names(args.hints) };
        let found = registry().gather(|call| query(call, &args, &hinted));
        let answers = found.map_err(|last| {
            log::info(format_args!(
                "fi_getinfo: no provider offers an endpoint for these hints ({:?}): FI_ENODATA",
                last.map(errors::text)
            ));
            FI_ENODATA
        })?;
        fitting(answers, &hinted)
    };
    if answers.is_empty() {
        return Err(FI_ENODATA);
    }
    // SAFETY: single infos of this library.
    let list = unsafe { info::chain(&answers) };
    // SAFETY: not null; the caller's space for the answer.
    unsafe { from.info.write(list) };
    Ok(())
}

/// Names in hints.
#[derive(Debug, Default)]
struct Names<'a> {
    provider: Option<&'a CStr>,
    fabric: Option<&'a CStr>,
    domain: Option<&'a CStr>,
}

/// # Safety
/// `hints` is null or an info that stays unchanged during `'a`.
unsafe fn hinted_names<'a>(hints: *const fi_info) -> Names<'a> {
    // SAFETY: null or an info, by the caller's contract.
    let Some(hints) = (unsafe { hints.as_ref() }) else {
        return Names::default();
    };
    // SAFETY: null or an attribute.
    let fabric = unsafe { hints.fabric_attr.as_ref() };
    // SAFETY: null or an attribute.
    let domain = unsafe { hints.domain_attr.as_ref() };
    Names {
        // SAFETY: null or a C string.
        provider: fabric.and_then(|attr| unsafe { string(attr.prov_name) }),
        // SAFETY: null or a C string.
        fabric: fabric.and_then(|attr| unsafe { string(attr.name) }),
        // SAFETY: null or a C string.
        domain: domain.and_then(|attr| unsafe { string(attr.name) }),
    }
}

/// Whether the hints select the provider of this name: one name, or any name except the ones after
/// a `^`. Stacks of several (`a;b`) select none.
fn is_selected(name: &CStr, hinted: Option<&CStr>) -> bool {
    let Some(hinted) = hinted else { return true };
    let parts = hinted.to_bytes().split(|byte| *byte == b';').filter(|part| !part.is_empty());
    let (without, with): (Vec<_>, Vec<_>) = parts.partition(|part| part.first() == Some(&b'^'));
    if without.iter().any(|part| part.get(1..) == Some(name.to_bytes())) {
        return false;
    }
    match with.as_slice() {
        [] => true,
        [only] => *only == name.to_bytes(),
        _ => false,
    }
}

/// Single infos, owned by the caller.
type Infos = Vec<*mut fi_info>;

fn query(call: &Call<Vector>, args: &GetInfoArgs<'_>, hinted: &Names<'_>) -> Result<Infos, Errno> {
    let name = call.name();
    if !is_wanted(name) || !is_selected(name, hinted.provider) || call.interface < args.version {
        return Ok(Vec::new());
    }
    let answers = call.getinfo(args).inspect_err(|errno| {
        log::info(format_args!(
            "provider {} offers no endpoint: {}",
            name.to_string_lossy(),
            errors::text(*errno)
        ));
    })?;
    for &answer in &answers {
        // SAFETY: an info of this library.
        unsafe { tag_owner(answer, call, args.version) };
    }
    Ok(answers)
}

/// Sets the fields that the framework knows and the provider left empty.
///
/// # Safety
/// `info` is an info of this library.
unsafe fn tag_owner(info: *mut fi_info, call: &Call<Vector>, version: u32) {
    // SAFETY: the caller's contract.
    let Some(info) = (unsafe { info.as_ref() }) else {
        return;
    };
    // SAFETY: null or an attribute of the info.
    if let Some(attr) = unsafe { info.fabric_attr.as_mut() } {
        if attr.prov_name.is_null() {
            attr.prov_name = strdup(Some(call.name()));
            attr.prov_version = call.version().0;
        }
        attr.api_version = version;
    }
}

/// Drops the answers whose names of fabric and domain differ from the hints, in case a provider
/// ignored the hints.
fn fitting(answers: Vec<*mut fi_info>, hinted: &Names<'_>) -> Vec<*mut fi_info> {
    let same = |hint: Option<&CStr>, name: Option<&CStr>| {
        hint.is_none_or(|hint| {
            name.is_some_and(|name| name.to_bytes().eq_ignore_ascii_case(hint.to_bytes()))
        })
    };
    let (fitting, other): (Vec<_>, Vec<_>) = answers.into_iter().partition(|&answer| {
        // SAFETY: an info of this library.
        let names = unsafe { hinted_names(answer) };
        same(hinted.fabric, names.fabric) && same(hinted.domain, names.domain)
    });
    for answer in other {
        // SAFETY: an info of this library, in no list.
        unsafe { info::free(answer) };
    }
    fitting
}

/// Returns an info for each provider with only its name and version.
fn names() -> Result<Vec<*mut fi_info>, Errno> {
    let mut answers = Vec::new();
    for call in registry().calls().filter(|call| is_wanted(call.name())) {
        let new = info::alloc();
        if new.is_null() {
            for answer in answers {
                // SAFETY: made below, in no list.
                unsafe { info::free(answer) };
            }
            return Err(FI_ENOMEM);
        }
        // SAFETY: made above.
        unsafe { tag_owner(new, &call, 0) };
        answers.push(new);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hinted_names_are_exact() {
        for (hinted, meant) in [
            (None, true),
            (Some(c"scif"), true),
            (Some(c"SCIF"), false),
            (Some(c"sci"), false),
            (Some(c"scif;ofi_rxm"), false),
            (Some(c"scif;^ofi_rxm"), true),
            (Some(c"^scif"), false),
            (Some(c"^tcp"), true),
        ] {
            assert_eq!(is_selected(c"scif", hinted), meant, "{hinted:?}");
        }
    }
}
