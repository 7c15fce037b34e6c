// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "shares the multiplexer within one endpoint without a lock")]
//! Multiplexer of an endpoint, as its port and its links share it.
//!
//! Not about its work (`mux`). An [`Endpoint`](crate::Endpoint) owns the port and all links, and
//! gives neither away. It is used by one thread at a time, so a lock would only cost time: two
//! locked instructions for each look at the network, and two for each message.

use std::fmt;
use std::sync::Arc;

use scif_ring::domain_lock::{ElidableLock, ElidableLockGuard};

use super::mux::NetMux;

/// Handle of a multiplexer.
#[derive(Clone)]
pub(super) struct SharedMux {
    mux: Arc<ElidableLock<NetMux>>,
}

impl SharedMux {
    /// Returns the handle for a port, which gives copies to its links only.
    pub(super) fn new(mux: NetMux) -> SharedMux {
        // SAFETY: the port and its links are parts of one `Endpoint`, which is not `Sync`, lends
        // its connections by `&mut self` only, and drops those that it removes. No one swaps the
        // connections of two endpoints. So no two threads use the lock at once.
        SharedMux { mux: Arc::new(unsafe { ElidableLock::elided(mux) }) }
    }

    /// Grants access.
    ///
    /// # Panics
    /// Nested access.
    #[inline]
    pub(super) fn lock(&self) -> ElidableLockGuard<'_, NetMux> {
        self.mux.lock()
    }
}

impl fmt::Debug for SharedMux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMux").finish_non_exhaustive()
    }
}
