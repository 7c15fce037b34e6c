// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Link arguments of the provider: its SONAME, and the flag that it is never unmapped.
//!
//! libfabric unloads providers when it is finalised. A Rust library with thread-locals and a
//! progress thread must stay mapped, hence `-z nodelete`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscif-fi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
