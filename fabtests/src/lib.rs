// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Multi-process tests of the provider: a thin client of libfabric ([`fi`]) and a harness that
//! starts, synchronises and ends processes ([`harness`]). The cases belong to the `conformance`
//! program. This crate knows the provider under test by its name only.
//!
//! A function that wraps a call returns the error of the call. Documented are other errors.
#![allow(clippy::missing_errors_doc, reason = "the error of the wrapped call, stated once above")]

pub mod fi;
pub mod harness;
pub mod payload;
pub mod prelude;
pub mod rig;
