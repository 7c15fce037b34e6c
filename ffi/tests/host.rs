// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Test with a real libfabric that loads a real provider (`tests/probe/provider.rs`), which must
//! find the library, its log and its parameters.
//!
//! The log is written to standard error. Therefore the library is loaded in a child process, which
//! runs this program again.
#![expect(unsafe_code, reason = "calls libfabric")]

use std::ffi::CStr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, ptr};

use libfabric_sys::client::Lib;

const LIBRARY: &CStr = c"libfabric.so.1";

/// Returns the provider, which cargo builds as an example.
fn probe() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let target = program.ancestors().nth(2).expect("the target directory");
    let probe = target.join("examples/libprobe_fi.so");
    assert!(
        probe.exists(),
        "{} is built by `cargo test` without a choice of targets",
        probe.display()
    );
    probe
}

#[test]
fn a_loaded_provider_reaches_its_host() {
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("probe.{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    symlink(probe(), dir.join("libprobe-fi.so")).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_loads_providers", "--ignored", "--nocapture"])
        .env("FI_PROVIDER_PATH", &dir)
        .env("FI_LOG_LEVEL", "warn")
        .env("FI_PROBE_TEXT", "some words")
        .env("FI_PROBE_NUMBER", "-7")
        .env("FI_PROBE_SIZE", "12345678901")
        .env("FI_PROBE_SWITCH", "yes")
        .env("FI_PROBE_NONSENSE", "perhaps")
        .env_remove("FI_PROBE_UNSET")
        .output()
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let output = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{output}");
    let wanted = [
        "stack Some(\"",
        "100%s enabled true\n",
        "ready [true, false]\n",
        "param \"text\" Ok(String(\"some words\"))\n",
        "param \"number\" Ok(Int(-7))\n",
        "param \"size\" Ok(Size(12345678901))\n",
        "param \"switch\" Ok(Bool(true))\n",
        "param \"nonsense\" Err(22)\n",
        "param \"unset\" Err(61)\n",
        "again true\n",
    ];
    for text in wanted {
        assert!(output.contains(text), "no {text:?} in:\n{output}");
    }
    let paths: Vec<&str> =
        output.split("Some(\"").skip(1).filter_map(|s| s.split('"').next()).collect();
    assert_eq!(paths.len(), 2, "{output}");
    assert!(paths.iter().all(|p| p.contains("libfabric.so")), "{paths:?}");
}

#[test]
#[ignore = "runs in the child of a_loaded_provider_reaches_its_host"]
fn child_loads_providers() {
    // SAFETY: the name is libfabric's; no object is made, and the pointers are used while it is
    // loaded.
    let lib = unsafe { Lib::open(LIBRARY) }.unwrap();
    let mut info = ptr::null_mut();
    // SAFETY: the library is loaded.
    let version = unsafe { (lib.version)() };
    // SAFETY: the library is loaded; null is allowed for optional arguments, and `info` is
    // writable.
    let code =
        unsafe { (lib.getinfo)(version, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut info) };
    assert!(code <= 0, "{code}");
    if !info.is_null() {
        // SAFETY: the list came from this library.
        unsafe { (lib.freeinfo)(info) };
    }
}
