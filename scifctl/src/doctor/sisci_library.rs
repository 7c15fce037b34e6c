// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Probe of a SISCI library: its file, its interface, and the node of the environment. It runs in a
//! process of its own, since a library of a product may stop its process without hardware.
#![expect(unsafe_code, reason = "a library is loaded and some of its functions are called")]

use std::ffi::{CString, c_char, c_void};
use std::io::{self, Write};

use serde_json::json;

use super::library::{loader_error, mapped};
use crate::failure::{Problem, Result};

/// Prefixes of the exported names: with threads, without, and plain.
const BEGINNINGS: [&str; 3] = ["_SISCI_PUBLIC_FUNC_MT_", "_SISCI_PUBLIC_FUNC_ST_", ""];
/// `SCI_ERR_OK`, the code of a success.
const OK: u32 = 0;
/// Space in bytes for the version of the interface. A longer text is cut.
const VERSION_MAX: u32 = 64;
/// Number of adapters that are tried: no host has more.
const ADAPTERS: u32 = 16;

/// `sci_query_string_t`
#[repr(C)]
struct QueryString {
    text: *mut c_char,
    length: u32,
}

type Initialize = unsafe extern "C" fn(u32, *mut u32);
type Terminate = unsafe extern "C" fn();
type LocalNode = unsafe extern "C" fn(u32, *mut u32, u32, *mut u32);
type Query = unsafe extern "C" fn(u32, *mut c_void, u32, *mut u32);

/// Returns the address of an exported name.
fn exported(library: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: `library` is open, and `name` is a C string.
    let at = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// Returns the address of a function.
fn function(library: *mut c_void, name: &str) -> Result<*mut c_void> {
    let found = BEGINNINGS.iter().find_map(|b| exported(library, &format!("{b}{name}")));
    found.ok_or_else(|| Problem::Failed(format!("{name} is not exported")))
}

/// Returns the version of the interface, if the library tells one.
fn version(library: *mut c_void) -> Option<String> {
    let command = exported(library, "_SISCI_PUBLIC_CONST_SCI_Q_API")?;
    // SAFETY: the public header declares an object of this name as `const unsigned int`.
    let command = unsafe { command.cast::<u32>().read() };
    let query = function(library, "SCIQuery").ok()?;
    // SAFETY: the public header declares a function of this name with this type.
    let query = unsafe { std::mem::transmute::<*mut c_void, Query>(query) };
    let mut text = [0_u8; VERSION_MAX as usize];
    let mut asked = QueryString { text: text.as_mut_ptr().cast(), length: VERSION_MAX };
    let mut code = OK;
    // SAFETY: the structure of this command, with space for `length` bytes, and a place for the
    // code.
    unsafe { query(command, (&raw mut asked).cast(), 0, &raw mut code) };
    let text = text.split(|byte| *byte == 0).next()?;
    (code == OK && !text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

/// Loads and initializes a SISCI library, and prints a JSON document with its file, the version of
/// its interface, and the first adapter that has a node id.
pub(super) fn describe(name: &str) -> Result<()> {
    let path = CString::new(name).map_err(|error| Problem::Failed(error.to_string()))?;
    // SAFETY: `path` is a C string; the constructors of the library run in this probe only.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(loader_error("dlopen"));
    }
    let initialize = function(library, "SCIInitialize")?;
    // SAFETY: the public header declares a function of this name with this type.
    let initialize = unsafe { std::mem::transmute::<*mut c_void, Initialize>(initialize) };
    let terminate = function(library, "SCITerminate")?;
    // SAFETY: as above.
    let terminate = unsafe { std::mem::transmute::<*mut c_void, Terminate>(terminate) };
    let local_node = function(library, "SCIGetLocalNodeId")?;
    // SAFETY: as above.
    let local_node = unsafe { std::mem::transmute::<*mut c_void, LocalNode>(local_node) };
    let mut code = OK;
    // SAFETY: a place for the code.
    unsafe { initialize(0, &raw mut code) };
    if code != OK {
        return Err(Problem::Failed(format!("SCIInitialize: {code:#x}")));
    }
    let node = (0..ADAPTERS).find_map(|adapter| {
        let (mut node, mut code) = (0, OK);
        // SAFETY: places for the id and the code.
        unsafe { local_node(adapter, &raw mut node, 0, &raw mut code) };
        (code == OK).then_some((adapter, node))
    });
    let document = json!({
        "file": mapped("/libsisci.so"),
        "version": version(library),
        "adapter": node.map(|(adapter, _)| adapter),
        "node": node.map(|(_, node)| node),
    });
    // SAFETY: takes no argument, and no object of the library exists.
    unsafe { terminate() };
    Ok(writeln!(io::stdout(), "{document}")?)
}
