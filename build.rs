// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Link arguments of the provider: its SONAME, the flag that it is never unmapped, and the folding
//! of identical functions.
//!
//! libfabric unloads providers when it is finalised. A Rust library with thread-locals and a
//! progress thread must stay mapped, hence `-z nodelete`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

/// Makes the linker keep one of several functions with the same code. No code of the provider
/// compares addresses of functions. Only LLVM's linker knows it, which Rust 1.90 and newer use.
const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscif-fi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    if links_with(FOLD) == Some(true) {
        println!("cargo::rustc-cdylib-link-arg={FOLD}");
    }
}

/// Whether an empty library can be linked with an argument; `None` if that cannot be tried.
fn links_with(argument: &str) -> Option<bool> {
    let out = env::var_os("OUT_DIR")?;
    let source = Path::new(&out).join("empty.rs");
    fs::write(&source, "").ok()?;
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    rustc.args(["--crate-type=cdylib", "--target"]).arg(env::var_os("TARGET")?);
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    rustc.arg("-C").arg(format!("link-arg={argument}")).arg("--out-dir").arg(&out).arg(source);
    let status = rustc.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Some(status.ok()?.success())
}
