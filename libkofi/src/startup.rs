// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Start and end of the library: the initial providers, and the clean-up of all.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};
use std::sync::Once;

use libfabric_sys::{Host, Linked, ParamValue, Provider, fi_param_type};

use crate::ffi::{Errno, guard_or, provider_name};
use crate::provider::{Origin, Vector};
use crate::registry::registry;
use crate::version::{KFI_VERSION, VERSION};
use crate::{dl_provider, log, param, register};

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
        dl_provider::adopt_path();
        enter(false);
    });
}

#[expect(unsafe_code, reason = "the description is a C structure")]
fn built_in() {
    #[cfg(not(test))]
    scif_fi::take_panics();
    let provider = scif_fi::start(Host::linked(Linked {
        version: VERSION,
        // A panic of the program's log does not reach the provider.
        log_enabled: |prov, level, subsys| {
            // SAFETY: a static description.
            guard_or(Default::default(), || unsafe { log::enabled(prov.as_ptr(), level, subsys) })
        },
        log: |provider, level, subsys, (func, line), text| {
            let line = c_int::try_from(line).unwrap_or(c_int::MAX);
            // fi_log(3) expects complete lines.
            let text = CString::new([text.to_bytes(), b"\n"].concat()).unwrap_or_default();
            let (func, text) = (func.as_ptr(), text.as_ptr());
            // SAFETY: a static description and two C strings.
            guard_or((), || unsafe {
                log::write(provider.as_ptr(), level, subsys, func, line, text)
            });
        },
        param_define: |provider, parameter, kind: fi_param_type, help| {
            param::define(provider.as_ptr().addr(), Some(name(provider)), parameter, kind, help)
        },
        param_get: |provider, parameter| -> Result<ParamValue, Errno> {
            param::value(provider.as_ptr().addr(), parameter)
        },
    }));
    // SAFETY: the static description of scif, which does not change any more.
    let Some(description) = (unsafe { provider.as_ref() }) else {
        return;
    };
    let vector = Vector::of_final(description, provider.addr(), Origin::BuiltIn);
    // SAFETY: as above.
    let name = unsafe { provider_name(provider) };
    if let Some(vector) = vector {
        // A newer one that a program has registered before stays; this was logged.
        let _ = register::add(KFI_VERSION, name, description.version, vector);
    }
}

#[expect(unsafe_code, reason = "the description is a C structure")]
fn name(provider: &'static Provider) -> &'static CStr {
    // SAFETY: a static description with a static name.
    unsafe { provider_name(provider.as_ptr()) }.unwrap_or_default()
}

/// Cleans up the unused providers at the end of the process or of the library.
extern "C" fn fini() {
    guard_or((), || registry().clear());
}

#[used]
#[expect(unsafe_code, reason = "the linker's list of what runs at the end")]
// SAFETY: a function of the type in the list; it does not wait.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;
