// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Result of a call of `scif.h`.

pub use scif::failure::Failure;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Failure>;
