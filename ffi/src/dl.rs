// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Objects mapped into this process, and their symbols: the part of `dlfcn.h` and `link.h` that
//! [`crate::Host`] and the client need.
//!
//! `dlsym` on a handle also searches the dependencies of the object. [`Handle::own_symbol`] does
//! not, which distinguishes an object that *is* a library from one that uses it.
#![expect(unsafe_code, reason = "calls the dynamic linker")]

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use std::ffi::CString;

/// Mapped object: the program or a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Path from which it was loaded, `argv[0]` for the program itself.
    pub(crate) path: CString,
    /// Address at which it is mapped.
    pub(crate) base: usize,
}

/// Returns the path of the file into which this crate was linked.
#[must_use]
pub fn own_file() -> Option<CString> {
    Object::own().map(|object| object.path)
}

impl Object {
    pub(crate) fn containing(addr: *const c_void) -> Option<Self> {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `info` is writable; `dladdr` takes any address.
        let found = unsafe { libc::dladdr(addr, info.as_mut_ptr()) };
        // SAFETY: `info` was zeroed, which is a value of this structure of pointers.
        let info = unsafe { info.assume_init() };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: after success `dli_fname` is a C string, valid as long as the object is mapped;
        // `addr` is in use.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(Self { path: path.to_owned(), base: info.dli_fbase.addr() })
    }

    /// Returns the object into which this crate was linked.
    pub(crate) fn own() -> Option<Self> {
        let here: fn() -> Option<Self> = Self::own;
        Self::containing(here as *const c_void)
    }

    /// Returns all mapped objects, in the order in which they were loaded.
    pub(crate) fn all() -> Vec<Self> {
        let mut starts = Vec::<usize>::new();
        // SAFETY: `add_start` matches the prototype and gets the vector, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(add_start), (&raw mut starts).cast()) };
        // Outside of the callback, which runs under the dynamic linker's lock.
        starts
            .into_iter()
            .filter_map(|start| Self::containing(ptr::without_provenance(start)))
            .collect()
    }

    /// Returns a reference to the mapped object, without loading any.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the path is a C string; with RTLD_NOLOAD no code of a new object runs.
        let handle = unsafe { libc::dlopen(self.path.as_ptr(), flags) };
        let handle = NonNull::new(handle).or_else(|| {
            // The program can't be opened by its path. SAFETY: a null path stands for the program.
            NonNull::new(unsafe { libc::dlopen(ptr::null(), flags) })
        });
        handle.map(Handle)
    }
}

/// Adds the lowest mapped address of one object to a `Vec<usize>`.
unsafe extern "C" fn add_start(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    starts: *mut c_void,
) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a valid structure for the time of the call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the dynamic linker's own table, `dlpi_phnum` entries long.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let first = headers.iter().find(|h| h.p_type == libc::PT_LOAD);
    let start = first.and_then(|h| usize::try_from(info.dlpi_addr.wrapping_add(h.p_vaddr)).ok());
    // SAFETY: `starts` is the vector that `Object::all` lends to this call only.
    let starts = unsafe { &mut *starts.cast::<Vec<usize>>() };
    starts.extend(start);
    0
}

/// Reference to a loaded object, as returned by `dlopen`; dropping it closes the object.
#[derive(Debug)]
pub(crate) struct Handle(NonNull<c_void>);

// SAFETY: the dynamic linker's functions may be called with a handle from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; they lock.
unsafe impl Sync for Handle {}

impl Handle {
    /// Loads a library.
    ///
    /// # Safety
    /// The initialisers of the library may run now.
    #[cfg(feature = "client")]
    pub(crate) unsafe fn load(path: &CStr) -> Result<Self, String> {
        // SAFETY: the path is a C string; the initialisers may run by the caller's contract.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(last_error)
    }

    /// Returns the address of `name` in the object or its dependencies.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the name a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    /// Returns the address of `name` if `object`, whose handle this is, defines it itself.
    pub(crate) fn own_symbol(&self, object: &Object, name: &CStr) -> Option<NonNull<c_void>> {
        let symbol = self.symbol(name)?;
        let definer = Object::containing(symbol.as_ptr())?;
        (definer.base == object.base).then_some(symbol)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open and not used any more.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// Returns the dynamic linker's message about its last failure in this thread.
#[cfg(feature = "client")]
fn last_error() -> String {
    // SAFETY: no requirement; the result belongs to this thread until its next call.
    let text: *const core::ffi::c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::from("unknown error of the dynamic linker");
    }
    // SAFETY: a non-null result is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" {
    fn scif_ffi_frames(ip: *mut *mut c_void, room: usize) -> usize;
}

/// Returns the return addresses on this thread's stack, innermost first.
pub(crate) fn frames() -> Vec<*const c_void> {
    /// Maximum number of frames, more than on any path from a loading library to this code.
    const ROOM: usize = 64;
    let mut ip = [ptr::null_mut::<c_void>(); ROOM];
    // SAFETY: `ip` has `ROOM` elements.
    let count = unsafe { scif_ffi_frames(ip.as_mut_ptr(), ROOM) };
    ip.into_iter().take(count).map(<*mut c_void>::cast_const).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_leads_through_the_test_program() {
        let own = Object::own().unwrap();
        let frames = frames();
        assert!(frames.len() > 2, "{frames:?}");
        assert!(frames.iter().any(|&ip| Object::containing(ip) == Some(own.clone())));
    }

    #[test]
    fn all_objects_include_program_and_libc() {
        let all = Object::all();
        println!("{} objects mapped", all.len());
        assert!(all.contains(&Object::own().unwrap()));
        let libc = Object::containing(libc::dlsym as *const c_void).unwrap();
        assert!(all.contains(&libc), "{libc:?} not in {all:?}");
    }

    #[test]
    fn only_the_definer_defines() {
        let own = Object::own().unwrap();
        let libc = Object::containing(libc::dlsym as *const c_void).unwrap();
        assert!(libc.handle().unwrap().own_symbol(&libc, c"getpid").is_some());
        let handle = own.handle().unwrap();
        assert!(handle.symbol(c"getpid").is_some());
        assert_eq!(handle.own_symbol(&own, c"getpid"), None);
    }
}
