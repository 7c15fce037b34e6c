// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Probe of a libfabric: its version and the providers that it lists. It runs in a process of its
//! own, since the libraries of providers may damage or stop a process.
#![expect(unsafe_code, reason = "a library is loaded and two of its functions are called")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::ptr;

use serde_json::json;

use crate::failure::{Problem, Result};

/// Start of `struct fi_info` (`rdma/fabric.h`), equal in every version of libfabric.
#[repr(C)]
struct Info {
    next: *const Info,
    caps_and_mode: [u64; 2],
    addr_format: u32,
    addr_lengths: [usize; 2],
    addrs_and_attrs: [*const c_void; 7],
    fabric: *const FabricAttr,
}

/// Start of `struct fi_fabric_attr`.
#[repr(C)]
struct FabricAttr {
    fabric: *const c_void,
    name: *const c_char,
    provider: *const c_char,
}

const _: () = assert!(std::mem::offset_of!(Info, fabric) == 104);

type Version = unsafe extern "C" fn() -> u32;
type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const c_void,
    *mut *const Info,
) -> c_int;

pub(super) fn loader_error(action: &str) -> Problem {
    // SAFETY: dlerror(3) takes no argument.
    let text = unsafe { libc::dlerror() };
    let reason = if text.is_null() {
        "unknown error".into()
    } else {
        // SAFETY: dlerror(3) returns a C string that is valid until the next call of the loader.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    };
    Problem::Failed(format!("{action}: {reason}"))
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void> {
    // SAFETY: `library` is open, and `name` is a C string.
    let at = unsafe { libc::dlsym(library, name.as_ptr()) };
    if at.is_null() { Err(loader_error("dlsym")) } else { Ok(at) }
}

/// Returns the provider names of a list of infos, each once, in the order of the list.
fn names(mut list: *const Info) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    while !list.is_null() {
        // SAFETY: an element of the list of fi_getinfo, which is never freed.
        let info = unsafe { &*list };
        let fabric = info.fabric;
        list = info.next;
        if fabric.is_null() {
            continue;
        }
        // SAFETY: each info has a complete attribute of its fabric, or none.
        let provider = unsafe { (*fabric).provider };
        if provider.is_null() {
            continue;
        }
        // SAFETY: libfabric's names are C strings.
        let name = unsafe { CStr::from_ptr(provider) }.to_string_lossy().into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the first mapped file with this suffix.
pub(super) fn mapped(suffix: &str) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps.lines().filter_map(|line| line.split_once('/'));
    file.map(|(_, path)| format!("/{path}")).find(|path| path.contains(suffix))
}

/// Loads a libfabric, and prints a JSON document with its version, its file, its providers in their
/// order, and the file of scif.
pub(crate) fn describe(name: &str) -> Result<()> {
    let path = CString::new(name).map_err(|error| Problem::Failed(error.to_string()))?;
    // SAFETY: `path` is a C string; the constructors of the library run in this probe only.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(loader_error("dlopen"));
    }
    // SAFETY: fi_version has had this prototype since 1.0 (rdma/fabric.h).
    let version =
        unsafe { std::mem::transmute::<*mut c_void, Version>(symbol(library, c"fi_version")?) };
    // SAFETY: fi_getinfo has had this prototype since 1.0, for any type of hints.
    let getinfo =
        unsafe { std::mem::transmute::<*mut c_void, GetInfo>(symbol(library, c"fi_getinfo")?) };
    // SAFETY: the function takes no argument.
    let version = unsafe { version() };
    let mut list = ptr::null();
    // SAFETY: names, services and hints may be null; the library writes one pointer to `list`.
    let code = unsafe { getinfo(version, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut list) };
    let names = if code == 0 { names(list) } else { Vec::new() };
    let scif = names.iter().any(|name| name == "scif");
    let file = mapped("/libfabric.so");
    let scif_file = mapped("/libscif-fi.so").or_else(|| file.clone()).filter(|_| scif);
    let document = json!({
        "version": format!("{}.{}", version >> 16, version & 0xffff),
        "file": file,
        "providers": names,
        "scif": scif_file,
    });
    Ok(writeln!(io::stdout(), "{document}")?)
}
