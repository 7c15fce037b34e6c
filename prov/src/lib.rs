// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The libfabric provider `scif`: `libscif-fi.so`, with one exported symbol, `fi_prov_ini`.
//!
//! One file per fabric object, under libfabric's names. A C call enters through a function at the
//! top of the object's file. This function recovers the object, turns pointers into safe arguments
//! and calls safe code. The data path is in `data`. This crate makes no system call and uses no
//! atomic directly: these are in the engine (`scif`) and the rings (`scif-ring`).
//!
//! Mirrors `rdma/providers/fi_prov.h`.

mod base;
mod domain;
mod engine;
mod net;
mod objects;
mod state;

pub use scif::logging::take_panics;

use libfabric_sys::{Host, Provider, fi_provider, ofi_prov_context};

use base::{attr, entry, env, host, log, reason};
use objects::{fabric, getinfo};

/// Allocator of this library. Progress of a connection may fail to allocate in a call that
/// succeeds.
#[global_allocator]
static ALLOCATOR: scif::ErrnoKeepingAllocator = scif::ErrnoKeepingAllocator;

/// Description of the provider for the library that loads it.
static PROVIDER: Provider = Provider::new(
    attr::NAME,
    (attr::RELEASE, attr::FI_VERSION_OWN),
    // A message layer over this provider would only be slower than its own messages.
    ofi_prov_context::NO_LAYERING,
    getinfo::getinfo,
    fabric::open,
    Some(cleanup),
);

/// `fi_prov_ini`: entry point that libfabric calls after it has loaded this file.
///
/// # Safety
/// Called by a libfabric only, which calls `cleanup` before it is unloaded itself.
#[expect(unsafe_code, reason = "the one symbol libfabric looks for")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut fi_provider {
    take_panics();
    // SAFETY: `cleanup` drops the host, and is called before the host is unloaded.
    entry::guard_or(std::ptr::null_mut(), || start(unsafe { Host::find() }))
}

/// Returns the provider to the library that calls it: the host of `fi_prov_ini`, or one into which
/// this crate is linked.
pub fn start(host: Host) -> *mut fi_provider {
    host::enter(host, &PROVIDER);
    log::init();
    libfabric_sys::on_unsupported(reason::log_unsupported);
    env::init();
    #[expect(unsafe_code, reason = "a field that the library reads after this call")]
    // SAFETY: called only from `fi_prov_ini` or its equivalent, before the library reads the
    // provider.
    unsafe {
        PROVIDER.set_fi_version(host::claimed_version());
    }
    PROVIDER.as_ptr()
}

/// `cleanup`: called before the library is unloaded; this file stays mapped (`-z nodelete`).
#[expect(unsafe_code, reason = "the type of C's function pointer")]
unsafe extern "C" fn cleanup() {
    entry::guard_or((), host::leave);
}
