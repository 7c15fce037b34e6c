// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The libfabric provider `scif`: `libscif-fi.so`, one exported symbol, `fi_prov_ini`.
//!
//! One file per fabric object under libfabric's own names. A C call enters through a thunk at the top of the
//! object's file, which recovers the object, turns pointers into safe arguments and calls safe code; the data path
//! is in `data`. Nothing here makes a system call or names an atomic: that is the engine's (`scif`) and the
//! ring's (`scif-ring`) business.
//!
//! Mirrors `rdma/providers/fi_prov.h`.

mod addr;
mod atomic;
mod atomic_ops;
mod attr;
mod av;
mod av_set;
mod cntr;
mod collective;
mod cq;
mod data;
mod domain;
mod entry;
mod env;
mod ep;
mod eq;
mod fabric;
mod getinfo;
mod host;
mod log;
mod mr;
mod msg;
mod peer;
mod pep;
mod poll;
mod reason;
mod resolve;
mod rma;
mod sep;
mod slab;
mod srx;
mod tagged;
mod wait;

pub use scif::logging::take_panics;

use libfabric_sys::{Host, Provider, fi_provider, ofi_prov_context};

/// The provider as the library that loads it knows it.
static PROVIDER: Provider = Provider::new(
    attr::NAME,
    attr::RELEASE,
    attr::FI_VERSION_OWN,
    // A layer of messages over this provider would only be slower than its own.
    ofi_prov_context::NO_LAYERING,
    getinfo::getinfo,
    fabric::open,
    Some(cleanup),
);

/// `struct fi_provider *fi_prov_ini(void)`: what libfabric calls when it has loaded this file.
///
/// # Safety
/// Only a libfabric calls it, and calls `cleanup` before it is unloaded itself.
#[expect(unsafe_code, reason = "the one symbol libfabric looks for")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut fi_provider {
    take_panics();
    // SAFETY: `cleanup` forgets the host, and is called before the host is unloaded.
    entry::guard_or(std::ptr::null_mut(), || start(unsafe { Host::find() }))
}

/// The provider, for the library that calls it: found by `fi_prov_ini`, or one that this crate is linked into.
pub fn start(host: Host) -> *mut fi_provider {
    host::enter(host);
    log::init();
    libfabric_sys::on_unsupported(reason::log_unsupported);
    env::init();
    #[expect(unsafe_code, reason = "a field that the library reads after this call")]
    // SAFETY: this is called where `fi_prov_ini` is, before the library looks at the provider.
    unsafe {
        PROVIDER.set_fi_version(host::claimed_version());
    }
    PROVIDER.as_ptr()
}

/// `void cleanup(void)`: the library is about to go; this file stays mapped (`-z nodelete`).
#[expect(unsafe_code, reason = "the type of C's function pointer")]
unsafe extern "C" fn cleanup() {
    entry::guard_or((), host::leave);
}
