// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registry of this process.

use std::sync::LazyLock;

use kofi::Registry;

use crate::provider::Vector;
use crate::version::KFI_VERSION;

/// Providers of this process.
static REGISTRY: LazyLock<Registry<Vector>> = LazyLock::new(|| Registry::new(KFI_VERSION));

pub(crate) fn registry() -> &'static Registry<Vector> {
    &REGISTRY
}
