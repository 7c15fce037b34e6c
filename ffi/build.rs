// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Compilation of the C shims, and comparison of this crate with the installed libfabric.
//!
//! libfabric is not linked. Its version goes to dependents as `DEP_FABRIC_VERSION`.

#[cfg(feature = "header-check")]
mod build_headers;

/// Advice when a prerequisite is missing.
const INSTALL: &str =
    "install what is needed with: apt install pkg-config libfabric-dev libclang-dev gcc";

/// Version of the oldest headers that have all the types.
const OLDEST: &str = "1.17";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build_headers.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-changed=src");
    if let Err(error) = run() {
        println!("cargo::error={}", error.replace('\n', " "));
    }
}

fn run() -> Result<(), String> {
    let library = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .cargo_metadata(false)
        .probe("libfabric")
        .map_err(|e| {
            format!("no libfabric {OLDEST} or newer found by pkg-config; {INSTALL} ({e})")
        })?;
    println!("cargo::metadata=VERSION={}", library.version);

    #[cfg(feature = "header-check")]
    {
        let out = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
        build_headers::write_checks(&library.include_paths, out.as_ref(), INSTALL)?;
    }

    cc::Build::new()
        .files(["src/shim.c", "src/longdouble.c"])
        .includes(&library.include_paths)
        .flag_if_supported("-fvisibility=hidden")
        .flag_if_supported("-fexceptions")
        .warnings(true)
        .extra_warnings(true)
        .try_compile("scif_ffi")
        .map_err(|e| format!("the C shims do not compile; {INSTALL} ({e})"))
}
