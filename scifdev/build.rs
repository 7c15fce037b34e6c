// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Link argument of the stand-in device: its SONAME, by which packagers find its users.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscifdev.so");
}
