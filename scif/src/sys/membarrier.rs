// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The sleeper's side of the asymmetric fence between sleep and publication: a barrier on every
//! processor that runs a registered process, so that the publishing side needs none. See
//! `membarrier(2)`, MEMBARRIER_CMD_GLOBAL_EXPEDITED.

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

static USABLE: OnceLock<bool> = OnceLock::new();

/// Registers this process for the barriers of peers. Returns `false` if the kernel or a filter
/// refuses; both sides must then fence for themselves.
///
/// The first call takes some milliseconds in a process with threads, while the kernel waits for a
/// grace period. It is made with the first connection and not earlier; later ones are a load.
pub(crate) fn register() -> bool {
    *USABLE.get_or_init(|| {
        let usable = membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
        if !usable {
            log::info!(
                "membarrier is missing or denied: every send executes a memory fence, some \
                 nanoseconds each. Permit membarrier in the seccomp profile of the container"
            );
        }
        usable
    })
}

/// Orders all earlier stores of this thread before all its later loads, as seen by every registered
/// process; without membarrier, executes only a fence of this thread.
pub(crate) fn barrier() {
    if USABLE.get().copied().unwrap_or(false)
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    {
        return;
    }
    scif_ring::sleeper_fence();
}
