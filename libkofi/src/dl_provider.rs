// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loading of providers made for libfabric (`lib*-fi.so`) into the registry, as libfabric itself
//! would load them.
//!
//! Layers over other providers (`ofi_*`, `off_*`, `lnx*`, hooks) are refused, since they need
//! internals of libfabric. A file stays loaded, since its threads and thread-locals may outlive its
//! clean-up.
//!
//! Mirrors "Provider discovery" of fi_provider(7).
#![expect(unsafe_code, reason = "loads files")]

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use kofi::RegisterError;
use libfabric_sys::{FI_EINVAL, FI_ENOENT, FI_ENOSYS, fi_provider, fi_version};

use crate::ffi::{Errno, provider_name};
use crate::provider::{Origin, Vector};
use crate::version::KFI_VERSION;
use crate::{bridge, errors, log, param, register};

/// End of the names of files that libfabric loads.
const SUFFIX: &[u8] = b"fi.so";

/// Oldest interface that libfabric itself accepts.
const OLDEST: u32 = fi_version(1, 3);

/// Adopts the providers in `FI_PROVIDER_PATH`: directories, and files after a `+`, separated by
/// colons.
pub(crate) fn adopt_path() {
    let Some(path) = param::own(c"FI_PROVIDER_PATH") else {
        return;
    };
    let path = path.to_bytes();
    // A leading @ requests the first provider of a name instead of the newest, which is not
    // supported.
    for element in path.strip_prefix(b"@").unwrap_or(path).split(|byte| *byte == b':') {
        if let Some(name) = element.strip_prefix(b"+") {
            try_file(name.to_vec());
        } else if !element.is_empty() {
            directory(element);
        }
    }
}

/// Adopts every provider in a directory, in the order of libfabric.
fn directory(name: &[u8]) {
    let name = std::ffi::OsString::from_vec(name.to_vec());
    let entries = match std::fs::read_dir(Path::new(&name)) {
        Ok(entries) => entries,
        Err(error) => {
            return log::info(format_args!(
                "directory {} cannot be read: {error}; none of its providers is loaded",
                Path::new(&name).display()
            ));
        }
    };
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path().into_os_string().into_vec()))
        .filter(|file| is_provider(file))
        .collect();
    files.sort_unstable_by(|a, b| b.cmp(a));
    files.into_iter().for_each(try_file);
}

fn is_provider(file: &[u8]) -> bool {
    let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.ends_with(SUFFIX) && name.len() > SUFFIX.len()
}

fn try_file(name: Vec<u8>) {
    let Ok(name) = CString::new(name) else { return };
    // SAFETY: the user requested these initialisers with FI_PROVIDER_PATH.
    if let Err(errno) = unsafe { file(&name) } {
        log::info(format_args!(
            "provider file {} is not used: {}",
            name.to_string_lossy(),
            errors::text(errno)
        ));
    }
}

/// Loaded file.
struct Library(*mut c_void);

impl Library {
    fn close(self) {
        // SAFETY: open, and closed once.
        unsafe { libc::dlclose(self.0) };
    }
}

/// Adopts the provider in a file.
///
/// # Errors
/// `FI_ENOENT`: it cannot be loaded, or is no provider. `FI_ENOSYS`: a layer, or older than
/// libfabric accepts. `FI_EINVAL`: it describes no provider. `EEXIST`: it is registered already, in
/// this version or a newer one. `FI_EBUSY`: it was replaced by a newer one, and is still in use.
///
/// # Safety
/// The file's initialisers and its `fi_prov_ini` may run now.
pub(crate) unsafe fn file(name: &CStr) -> Result<(), Errno> {
    // SAFETY: a C string; the initialisers may run by the caller's contract.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        log::warn(format_args!(
            "provider file {} cannot be loaded: dlopen: {}",
            name.to_string_lossy(),
            last_error()
        ));
        return Err(FI_ENOENT);
    }
    let library = Library(library);
    // SAFETY: the handle is open, the name a C string.
    let symbol = unsafe { libc::dlsym(library.0, c"fi_prov_ini".as_ptr()) };
    if symbol.is_null() {
        library.close();
        return Err(FI_ENOENT);
    }
    // SAFETY: the symbol that libfabric calls, with the type it has in libfabric.
    let ini = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut fi_provider>(symbol)
    };
    // SAFETY: the caller's contract.
    let provider = unsafe { ini() };
    // SAFETY: null, or the provider's static description.
    let adopted = unsafe { take(provider) };
    if let Err(why) = &adopted {
        if why.is_unknown() {
            // SAFETY: null, or the description of a provider that is not in use.
            unsafe { discard(provider) };
        }
        library.close();
    }
    adopted.map_err(|why| why.errno())
}

/// Reason for which a provider is refused.
#[derive(Debug, PartialEq, Eq)]
enum AdoptError {
    Useless(Errno),
    Registry(RegisterError),
}

impl AdoptError {
    fn errno(&self) -> Errno {
        match self {
            AdoptError::Useless(errno) => *errno,
            AdoptError::Registry(error) => register::register_errno(error),
        }
    }

    /// Whether the registry does not know this provider. Otherwise another thread may have adopted
    /// the file meanwhile, or a newer one replaced it while it is still in use.
    fn is_unknown(&self) -> bool {
        !matches!(self, AdoptError::Registry(RegisterError::Registered | RegisterError::Draining))
    }
}

/// # Safety
/// `provider` is null or the result of `fi_prov_ini` of a loaded file.
unsafe fn take(provider: *const fi_provider) -> Result<(), AdoptError> {
    const NOTHING: AdoptError = AdoptError::Useless(FI_EINVAL);
    if bridge::is(provider) {
        // The bridge describes this library's own providers to libfabric.
        return Err(NOTHING);
    }
    // SAFETY: null or a description, by the caller's contract.
    let description = unsafe { provider.as_ref() }.ok_or(NOTHING)?;
    // SAFETY: null or a description with a name, by the caller's contract.
    let name = unsafe { provider_name(provider) }.ok_or(NOTHING)?;
    if description.getinfo.is_none() || is_layer(name) || description.fi_version < OLDEST {
        return Err(AdoptError::Useless(FI_ENOSYS));
    }
    let vector = Vector::of_final(description, provider.addr(), Origin::Adopted).ok_or(NOTHING)?;
    let added = register::add(KFI_VERSION, Some(name), description.version, vector);
    added.map_err(AdoptError::Registry)
}

fn is_layer(name: &CStr) -> bool {
    let layers: [&[u8]; 3] = [b"ofi_", b"off_", b"lnx"];
    layers.iter().any(|prefix| name.to_bytes().starts_with(prefix))
}

/// Cleans up a refused provider, as libfabric does.
///
/// # Safety
/// The contract of [`take`]; the provider is not in use.
unsafe fn discard(provider: *const fi_provider) {
    if bridge::is(provider) {
        return;
    }
    param::undefine(provider.addr());
    // SAFETY: null or a description, by the caller's contract.
    if let Some(cleanup) = unsafe { provider.as_ref() }.and_then(|provider| provider.cleanup) {
        // SAFETY: the provider's own function, called once.
        unsafe { cleanup() };
    }
}

/// Returns the dynamic linker's message about its last failure in this thread.
fn last_error() -> String {
    // SAFETY: no requirement; the text belongs to this thread until its next call.
    let text: *const std::ffi::c_char = unsafe { libc::dlerror() };
    // SAFETY: null or a C string.
    let text = unsafe { crate::ffi::string(text.cast::<std::ffi::c_char>()) };
    text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_their_suffix() {
        assert!(is_provider(b"/x/libtoy-fi.so"));
        assert!(is_provider(b"libtoy_fi.so"));
        assert!(!is_provider(b"/x/fi.so"));
        assert!(!is_provider(b"/x/libtoy-fi.so.1"));
        assert!(is_layer(c"ofi_rxm") && is_layer(c"lnx") && !is_layer(c"tcp"));
    }

    #[test]
    fn a_file_without_a_provider_is_refused() {
        // SAFETY: the file does not exist.
        assert_eq!(unsafe { file(c"/no/such-fi.so") }, Err(FI_ENOENT));
        // SAFETY: the C library may be loaded twice.
        assert_eq!(unsafe { file(c"libc.so.6") }, Err(FI_ENOENT));
        // SAFETY: null is allowed.
        let nothing = unsafe { take(std::ptr::null()) };
        assert_eq!(nothing, Err(AdoptError::Useless(FI_EINVAL)));
    }
}
