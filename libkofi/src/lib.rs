// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `libkofi.so`: providers register with `kofi.h`, programs call libfabric's functions, and `scif`
//! is built in. A program or a container thus has a fabric without libfabric.
//!
//! The registry itself is the crate `kofi`. This crate is its C interface: `register` and
//! `dl_provider` add providers, `getinfo` and `fabric` call them, `bridge` shows them to a real
//! libfabric. The rest are the other functions of libfabric for programs and providers: infos, the
//! log, parameters, texts.
//!
//! `fi_*` functions have several versions under one name, and two have variable arguments; Rust
//! supports neither. `link/versions.c` implements both, over the functions of `abi`, and
//! `link/link.sh` links the shared libraries.

#![expect(non_camel_case_types, reason = "the names are C's")]

pub mod abi;
pub mod bridge;
mod dl_provider;
mod errors;
mod fabric;
mod ffi;
mod filter;
mod getinfo;
mod heap;
pub mod info;
mod log;
mod nic;
pub mod open;
mod ops;
mod param;
mod provider;
pub mod register;
mod registry;
mod startup;
mod tostr;
mod version;

pub use provider::{kofi_freeinfo_fn, kofi_getinfo_fn, kofi_provider};
pub use version::{KFI_VERSION, KOFI_VERSION, VERSION};
