// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics that tests cause on purpose.

use crate::engine::types::envelope::RecordError;

/// Kind of a record that makes its receiver panic.
pub(crate) const FATAL: u8 = 0xfa;
/// Value of `inject_size` of an endpoint that panics in every progress call.
pub(crate) const STRUCK: usize = 0xdead;

/// Panics for [`STRUCK`].
pub(crate) fn strike(size: usize) -> Result<(), RecordError> {
    assert!(size != STRUCK, "on purpose");
    Ok(())
}
