// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Probe of a libfabric: its version and the providers that it lists. It runs in a process of its
//! own, since the libraries of providers may damage or stop a process.
#![expect(unsafe_code, reason = "a library is loaded and two of its functions are called")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::ptr;

use serde_json::{Value, json};

use crate::failure::{Problem, Result};

/// Start of `struct fi_info` (`rdma/fabric.h`), equal in every version of libfabric.
#[repr(C)]
struct Info {
    next: *const Info,
    caps: u64,
    mode: u64,
    addr_format: u32,
    addr_lengths: [usize; 2],
    src_addr: *const c_void,
    dest_addr_and_handle: [*const c_void; 2],
    tx: *const TxAttr,
    rx: *const c_void,
    ep: *const EpAttr,
    domain: *const c_void,
    fabric: *const FabricAttr,
}

/// Start of `struct fi_tx_attr`.
#[repr(C)]
struct TxAttr {
    caps_mode_and_flags: [u64; 3],
    msg_order: u64,
}

/// Start of `struct fi_ep_attr`.
#[repr(C)]
struct EpAttr {
    ep_type: u32,
}

/// Start of `struct fi_fabric_attr`.
#[repr(C)]
struct FabricAttr {
    fabric: *const c_void,
    name: *const c_char,
    provider: *const c_char,
}

const _: () = assert!(std::mem::offset_of!(Info, fabric) == 104);

/// Capability, order, type and address format of endpoints that carry messages between hosts.
const FI_MSG: u64 = 1 << 1;
const FI_ORDER_SAS: u64 = 1 << 8;
const FI_EP_RDM: u32 = 3;
const FI_SOCKADDR_IN: u32 = 2;
/// Flags of `fi_getinfo`: also for providers that FI_PROVIDER hides, and none of utilities.
const HIDDEN: u64 = 1 << 60;
const CORE_ONLY: u64 = 1 << 59;

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

/// Calls `on` with each info of a list and the name of its provider.
fn each(mut list: *const Info, mut on: impl FnMut(&Info, String)) {
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
        on(info, unsafe { CStr::from_ptr(provider) }.to_string_lossy().into_owned());
    }
}

/// Returns the provider names of a list of infos, each once, in the order of the list.
fn names(list: *const Info) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    each(list, |_, name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    names
}

/// Returns the number of properties that an info has of those that messages between hosts need.
/// The next one is the reason not to use it.
fn fitness(info: &Info) -> usize {
    // SAFETY: each info has complete attributes, or null.
    let is_rdm = unsafe { info.ep.as_ref() }.is_some_and(|ep| ep.ep_type == FI_EP_RDM);
    // SAFETY: as above.
    let orders = unsafe { info.tx.as_ref() }.is_some_and(|tx| tx.msg_order & FI_ORDER_SAS != 0);
    let has = [is_rdm && info.caps & FI_MSG != 0, info.addr_format == FI_SOCKADDR_IN, orders];
    has.iter().take_while(|has| **has).count()
}

/// Properties that messages between hosts need.
const NEEDED: [&str; 3] =
    ["reliable datagrams", "addresses of 16 bytes (IPv4)", "order among its messages"];

/// Returns the IPv4 address of an info, if it has one.
fn address(info: &Info) -> Option<Ipv4Addr> {
    let [len, _] = info.addr_lengths;
    if info.src_addr.is_null() || len < 8 || info.addr_format != FI_SOCKADDR_IN {
        return None;
    }
    // SAFETY: the info has an address of `len` bytes. Any alignment is read.
    let bytes = unsafe { info.src_addr.cast::<[u8; 8]>().read_unaligned() };
    let [_, _, _, _, a, b, c, d] = bytes;
    Some(Ipv4Addr::new(a, b, c, d)).filter(|ip| !ip.is_unspecified())
}

/// Returns the providers of a list, each once, with what they lack to carry messages between
/// hosts, and their first address.
fn networks(list: *const Info) -> Vec<Value> {
    let mut best: Vec<(String, usize, Option<Ipv4Addr>)> = Vec::new();
    each(list, |info, name| {
        let fit = fitness(info);
        match best.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, known, ip)) if fit > *known => (*known, *ip) = (fit, address(info)),
            Some(_) => {}
            None => best.push((name, fit, address(info))),
        }
    });
    let object = |(name, fit, ip): &(String, usize, Option<Ipv4Addr>)| {
        let lacks = NEEDED.get(*fit).copied().unwrap_or_default();
        json!({"name": name, "lacks": lacks, "address": ip.map(|ip| ip.to_string())})
    };
    best.iter().map(object).collect()
}

/// Returns the first mapped file with this suffix.
pub(super) fn mapped(suffix: &str) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps.lines().filter_map(|line| line.split_once('/'));
    file.map(|(_, path)| format!("/{path}")).find(|path| path.contains(suffix))
}

/// Loads a libfabric, and prints a JSON document with its version, its file, its providers in their
/// order, the file of scif, and the providers for messages between hosts, also hidden ones.
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
    let query = |flags: u64| {
        let (mut list, none) = (ptr::null(), ptr::null());
        // SAFETY: names, services and hints may be null; the library writes one pointer to `list`.
        let code = unsafe { getinfo(version, none, none, flags, none.cast(), &raw mut list) };
        if code == 0 { list } else { ptr::null() }
    };
    let names = names(query(0));
    // Core providers come first, since the other query lists the layered ones before them.
    let mut networks = networks(query(HIDDEN | CORE_ONLY));
    let layered = self::networks(query(HIDDEN));
    let is_layered = |network: &Value| {
        network.get("name").and_then(Value::as_str).is_some_and(|name| name.contains(';'))
    };
    networks.extend(layered.into_iter().filter(is_layered));
    let scif = names.iter().any(|name| name == "scif");
    let file = mapped("/libfabric.so");
    let scif_file = mapped("/libscif-fi.so").or_else(|| file.clone()).filter(|_| scif);
    let document = json!({
        "version": format!("{}.{}", version >> 16, version & 0xffff),
        "file": file,
        "providers": names,
        "scif": scif_file,
        "networks": networks,
    });
    Ok(writeln!(io::stdout(), "{document}")?)
}
