// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `libkofi.so`: providers register with `kofi.h`, programs call libfabric's functions, and `scif`
//! is built in. A program or a container thus has a fabric without libfabric.
//!
//! The registry itself is the crate `kofi`. This crate is its C interface: `register` and `adopt`
//! add providers, `getinfo` and `fabric` call them, `bridge` shows them to a real libfabric. The
//! rest are the other functions of libfabric for programs and providers: infos, the log,
//! parameters, texts.
//!
//! `fi_*` functions have several versions under one name, and two have variable arguments; Rust
//! supports neither. `link/versions.c` implements both, over the functions of `abi`, and
//! `link/link.sh` links the shared libraries.

#![expect(non_camel_case_types, reason = "the names are C's")]

pub mod abi;
mod adopt;
pub mod bridge;
mod edge;
mod errors;
mod fabric;
mod filter;
mod getinfo;
pub mod info;
mod log;
mod nic;
pub mod open;
mod ops;
mod param;
mod provider;
pub mod register;
mod tostr;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};
use std::sync::{LazyLock, Once};

use kofi::{Registry, Version};
use libfabric_sys::{Host, Linked, ParamValue, Provider, fi_param_type, fi_version};

pub use provider::{kofi_freeinfo_fn, kofi_getinfo_fn, kofi_provider};

use crate::provider::{Origin, Vector};

/// Supported interface of libfabric.
pub const VERSION: u32 = fi_version(2, 5);
/// Interface version of `kofi_provider_register`.
pub const KOFI_VERSION: Version = Version::new(1, 0);
/// Interface version of `kfi_provider_register`: that of the last kfabric.
pub const KFI_VERSION: Version = Version::new(1, 7);

/// Providers of this process.
static REGISTRY: LazyLock<Registry<Vector>> = LazyLock::new(|| Registry::new(KFI_VERSION));

pub(crate) fn registry() -> &'static Registry<Vector> {
    &REGISTRY
}

/// Adds the initial providers: scif, and the ones in `FI_PROVIDER_PATH`. Runs once, before the
/// first call of a program; providers may have registered before. A call from an adopted file finds
/// the providers added until then.
pub(crate) fn init() {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    static ONCE: Once = Once::new();
    // At the end of a thread the cell is gone, and the thread is not inside.
    if ONCE.is_completed() || INSIDE.try_with(Cell::get).unwrap_or_default() {
        return;
    }
    ONCE.call_once(|| {
        let enter = |inside| INSIDE.try_with(|cell| cell.set(inside)).unwrap_or_default();
        enter(true);
        param::define_own();
        built_in();
        adopt::path();
        enter(false);
    });
}

#[expect(unsafe_code, reason = "the description is a C structure")]
fn built_in() {
    #[cfg(not(test))]
    scif_fi::take_panics();
    let provider = scif_fi::start(Host::linked(Linked {
        version: VERSION,
        // Through the C function, like other providers, so that a log imported by the program is
        // used. SAFETY: a static description.
        log_enabled: |provider, level, subsys| unsafe {
            abi::kofi_abi_log_enabled(provider.as_ptr(), level, subsys) != 0
        },
        log: |provider, level, subsys, func, line, text| {
            let line = c_int::try_from(line).unwrap_or(c_int::MAX);
            // fi_log(3) expects complete lines.
            let text = CString::new([text.to_bytes(), b"\n"].concat()).unwrap_or_default();
            let (func, text) = (func.as_ptr(), text.as_ptr());
            // SAFETY: a static description and two C strings.
            unsafe { abi::kofi_abi_log(provider.as_ptr(), level, subsys, func, line, text) };
        },
        param_define: |provider, parameter, kind: fi_param_type, help| {
            param::define(
                provider.as_ptr().addr(),
                Some(name(provider)),
                parameter,
                kind,
                help,
            )
        },
        param_get: |provider, parameter| -> Result<ParamValue, edge::Errno> {
            param::value(provider.as_ptr().addr(), parameter)
        },
    }));
    // SAFETY: the static description of scif, which does not change any more.
    let Some(description) = (unsafe { provider.as_ref() }) else {
        return;
    };
    let vector = Vector::of_final(description, provider.addr(), Origin::BuiltIn);
    // SAFETY: as above.
    let name = unsafe { provider::name_of(provider) };
    if let Some(vector) = vector {
        // A newer one that a program has registered before stays; this was logged.
        let _ = register::add(KFI_VERSION, name, description.version, vector);
    }
}

#[expect(unsafe_code, reason = "the description is a C structure")]
fn name(provider: &'static Provider) -> &'static CStr {
    // SAFETY: a static description with a static name.
    unsafe { provider::name_of(provider.as_ptr()) }.unwrap_or_default()
}

/// Cleans up the unused providers at the end of the process or of the library.
extern "C" fn fini() {
    edge::guard_or((), || registry().clear());
}

#[used]
#[expect(unsafe_code, reason = "the linker's list of what runs at the end")]
// SAFETY: a function of the type in the list; it does not wait.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;
