// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fabric, as shared by all objects opened on it.

use std::sync::Arc;

use scif::{Maker, Node};
use scif_ring::counter::AtomicCounter;

/// Part of a fabric that all objects opened on it hold.
#[derive(Debug)]
pub(crate) struct FabricShared {
    /// Interface version of the application, which determines the fields of its structures.
    pub(crate) api_version: u32,
    pub(crate) node: Arc<Node>,
    pub(crate) creator: Maker,
    /// Number of open domains.
    pub(crate) domains: AtomicCounter,
}

impl FabricShared {
    pub(crate) fn new(api_version: u32, node: Arc<Node>) -> Arc<FabricShared> {
        Arc::new(FabricShared {
            api_version,
            node,
            creator: Maker::here(),
            domains: AtomicCounter::new(0),
        })
    }
}
