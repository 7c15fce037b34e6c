// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Versions of the interfaces.

use kofi::Version;
use libfabric_sys::fi_version;

/// Supported interface of libfabric.
pub const VERSION: u32 = fi_version(2, 5);
/// Interface version of `kofi_provider_register`.
pub const KOFI_VERSION: Version = Version::new(1, 0);
/// Interface version of `kfi_provider_register`: that of the last kfabric.
pub const KFI_VERSION: Version = Version::new(1, 7);
