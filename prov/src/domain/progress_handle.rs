// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handle of the progress thread of a domain.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use scif::Waiter;
use scif_ring::counter::AtomicFlag;

use crate::base::errno::{self, Errno};
use crate::engine::endpoint::Endpoint;

/// Handle of the thread, with the wait object on which it sleeps.
pub(crate) struct AutoProgress {
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) stop: Arc<AtomicFlag>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

impl AutoProgress {
    pub(crate) fn new() -> Result<AutoProgress, Errno> {
        let waiter = Waiter::new().map_err(|e| errno::errno(&e))?;
        Ok(AutoProgress {
            waiter: Arc::new(waiter),
            stop: Arc::new(AtomicFlag::new(false)),
            thread: Mutex::new(None),
        })
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.stop.set(true);
        self.waiter.signal();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Panics of the thread were logged already.
            drop(thread.join());
        }
    }

    pub(crate) fn add(&self, ep: &Endpoint) -> Result<(), Errno> {
        self.waiter.add(ep.links.sock.wait_fd()).map_err(|e| errno::errno(&e))?;
        // The thread may be asleep without having armed this endpoint.
        self.waiter.signal();
        Ok(())
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.waiter.signal();
    }

    pub(crate) fn remove(&self, ep: &Endpoint) {
        self.waiter.remove(ep.links.sock.wait_fd());
    }
}
