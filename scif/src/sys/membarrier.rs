// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The sleeper's side of the sleep/publish ordering: a barrier on every processor that runs a registered
//! process, so that the publishing side needs none. See `membarrier(2)`, MEMBARRIER_CMD_GLOBAL_EXPEDITED.

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

static USABLE: OnceLock<bool> = OnceLock::new();

/// Registers this process as one whose processors the barrier of a peer reaches. `false`: the kernel or a
/// filter refuses, and both sides must fence for themselves.
///
/// The first call takes some milliseconds in a process with threads (the kernel waits for a grace period), so it
/// is made with the first connection and not before; later ones are a load.
pub(crate) fn register() -> bool {
    *USABLE.get_or_init(|| {
        let usable = membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
        if !usable {
            log::info!(
                "membarrier is denied: every send has a fence of its own, which costs some nanoseconds"
            );
        }
        usable
    })
}

/// Orders everything this thread stored before it with everything it loads after it, as seen by every
/// registered process; without membarrier only a fence of this thread.
pub(crate) fn barrier() {
    if USABLE.get().copied().unwrap_or(false) && membarrier(MembarrierCommand::GlobalExpedited).is_ok() {
        return;
    }
    scif_ring::sleeper_fence();
}
