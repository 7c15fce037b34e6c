// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Table of the functions of a SISCI library, by the names of its public interface.
//!
//! A library exports each function under the names of the macros in its header, or plainly. Not
//! about the objects that they make (`library`).
#![expect(unsafe_code, reason = "types of the functions of a C library")]

use std::ffi::{CStr, CString, c_void};

use super::abi::SciCode;

/// Prefixes of the exported names: with threads, without, and plain.
const BEGINNINGS: [&str; 3] = ["_SISCI_PUBLIC_FUNC_MT_", "_SISCI_PUBLIC_FUNC_ST_", ""];

/// Result of a function of the library.
pub(super) type Sci<T> = Result<T, SciCode>;

/// Handle of the library.
pub(super) type Handle = *mut c_void;
pub(super) type DataCallback =
    unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, u32, u32) -> u32;
pub(super) type SegmentCallback = unsafe extern "C" fn(*mut c_void, Handle, u32, u32) -> u32;

/// Defines the table of functions, from the field to the name and the type of the function.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds all functions, or returns the name of the first missing one.
            pub(super) fn find(library: Handle) -> Result<Functions, &'static str> {
                Ok(Functions { $($field: {
                    let at = symbol(library, $name).ok_or($name)?;
                    // SAFETY: the public header declares a function of this name with this type.
                    unsafe {
                        std::mem::transmute::<
                            Handle,
                            unsafe extern "C" fn($($arg),*) $(-> $result)?,
                        >(at)
                    }
                },)* })
            }
        }
    };
}

functions! {
    initialize = "SCIInitialize": fn(u32, *mut u32);
    open = "SCIOpen": fn(*mut Handle, u32, *mut u32);
    close = "SCIClose": fn(Handle, u32, *mut u32);
    local_node = "SCIGetLocalNodeId": fn(u32, *mut u32, u32, *mut u32);
    create_segment = "SCICreateSegment":
        fn(Handle, *mut Handle, u32, usize, *const c_void, *mut c_void, u32, *mut u32);
    segment_id = "SCIGetLocalSegmentId": fn(Handle) -> u32;
    register_memory = "SCIRegisterSegmentMemory": fn(Handle, usize, Handle, u32, *mut u32);
    prepare = "SCIPrepareSegment": fn(Handle, u32, u32, *mut u32);
    set_available = "SCISetSegmentAvailable": fn(Handle, u32, u32, *mut u32);
    set_unavailable = "SCISetSegmentUnavailable": fn(Handle, u32, u32, *mut u32);
    remove_segment = "SCIRemoveSegment": fn(Handle, u32, *mut u32);
    map_local = "SCIMapLocalSegment":
        fn(Handle, *mut Handle, usize, usize, Handle, u32, *mut u32) -> *mut u8;
    connect_segment = "SCIConnectSegment": fn(
        Handle, *mut Handle, u32, u32, u32, Option<SegmentCallback>, *mut c_void, u32, u32, *mut u32
    );
    disconnect_segment = "SCIDisconnectSegment": fn(Handle, u32, *mut u32);
    remote_size = "SCIGetRemoteSegmentSize": fn(Handle) -> usize;
    map_remote = "SCIMapRemoteSegment":
        fn(Handle, *mut Handle, usize, usize, Handle, u32, *mut u32) -> *mut u8;
    unmap = "SCIUnmapSegment": fn(Handle, u32, *mut u32);
    create_sequence = "SCICreateMapSequence": fn(Handle, *mut Handle, u32, *mut u32);
    remove_sequence = "SCIRemoveSequence": fn(Handle, u32, *mut u32);
    start_sequence = "SCIStartSequence": fn(Handle, u32, *mut u32) -> u32;
    check_sequence = "SCICheckSequence": fn(Handle, u32, *mut u32) -> u32;
    copy = "SCIMemCpy": fn(Handle, *mut u8, Handle, usize, usize, u32, *mut u32);
    create_interrupt = "SCICreateDataInterrupt":
        fn(Handle, *mut Handle, u32, *mut u32, Option<DataCallback>, *mut c_void, u32, *mut u32);
    remove_interrupt = "SCIRemoveDataInterrupt": fn(Handle, u32, *mut u32);
    connect_interrupt = "SCIConnectDataInterrupt":
        fn(Handle, *mut Handle, u32, u32, u32, u32, u32, *mut u32);
    disconnect_interrupt = "SCIDisconnectDataInterrupt": fn(Handle, u32, *mut u32);
    trigger = "SCITriggerDataInterrupt": fn(Handle, *const u8, u32, u32, *mut u32);
}

/// Returns the address of a function.
fn symbol(library: Handle, name: &str) -> Option<Handle> {
    BEGINNINGS.iter().find_map(|beginning| {
        let name = CString::new(format!("{beginning}{name}")).ok()?;
        // SAFETY: the handle is open, the name a C string.
        let at = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    })
}

/// Flags whose numbers each library chooses, and exports as objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    pub(super) force_disconnect: u32,
    pub(super) block_read: u32,
}

impl Flags {
    /// Reads all flags, or returns the name of the first missing one.
    pub(super) fn find(library: Handle) -> Result<Flags, &'static str> {
        Ok(Flags {
            force_disconnect: constant(library, "SCI_FLAG_FORCE_DISCONNECT")?,
            block_read: constant(library, "SCI_FLAG_BLOCK_READ")?,
        })
    }
}

/// Reads an exported number.
fn constant(library: Handle, name: &'static str) -> Result<u32, &'static str> {
    let symbol = CString::new(format!("_SISCI_PUBLIC_CONST_{name}")).map_err(|_| name)?;
    // SAFETY: the handle is open, the name a C string.
    let at = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if at.is_null() {
        return Err(name);
    }
    // SAFETY: the public header declares an object of this name as `const unsigned int`.
    Ok(unsafe { at.cast::<u32>().read() })
}

/// Runs a function that writes its code to the argument.
pub(super) fn checked<T>(call: impl FnOnce(*mut u32) -> T) -> Sci<T> {
    let mut code = SciCode::OK.0;
    let result = call(&raw mut code);
    if code == SciCode::OK.0 { Ok(result) } else { Err(SciCode(code)) }
}

/// Returns the loader's text about its last failure.
pub(super) fn load_error() -> String {
    // SAFETY: takes no argument; null, or a text that is valid until the next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "cannot be loaded".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
