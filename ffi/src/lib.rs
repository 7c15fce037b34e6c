// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rust declarations of libfabric: its structures, its constants, operation tables of "not
//! supported" stubs, and the few functions of the host library that a provider calls.
//!
//! The layout is that of libfabric 2.5 on 64-bit Linux, without the fields for accelerators that
//! 2.6-next added under an unchanged version number. One binary serves hosts from 1.17 on. The user
//! of this crate may read a later field only after a version check; the field's comment states its
//! first version.
//!
//! The crate does not link libfabric and has no undefined `fi_*` symbol: a provider takes the
//! functions from the library that called it ([`Host`]). The crate is not a safe interface to
//! libfabric.
//!
//! Names are taken from libfabric. C enumerations are plain integers, since the other side of the
//! boundary may use values unknown to this version. A member called `type` in C is `type_`.
#![expect(non_camel_case_types, reason = "the names are libfabric's")]

mod atomic;
#[cfg(feature = "client")]
pub mod client;
mod cm;
mod collective;
mod dl;
mod domain;
mod endpoint;
mod eq;
mod errno;
mod flags;
#[cfg(feature = "header-check")]
mod header_check;
mod host;
mod longdouble;
mod nosys;
mod numbers;
mod peer;
mod prov;
mod rma;
mod tagged;
mod trigger;
mod types;
mod zeroed;

pub use atomic::*;
pub use cm::*;
pub use collective::*;
pub use dl::own_file;
pub use domain::*;
pub use endpoint::*;
pub use eq::*;
pub use errno::*;
pub use flags::*;
pub use host::{Host, Linked, Openers, Param, ParamValue};
pub use libc::iovec;
pub use longdouble::LongDouble;
pub use nosys::*;
pub use numbers::*;
pub use peer::*;
pub use prov::*;
pub use rma::*;
pub use tagged::*;
pub use trigger::*;
pub use types::*;
