// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Thread that stores values when the peer's RMAs are finished. The peer may compute meanwhile and
//! is not involved.
//!
//! Not about this side's own RMAs (`dma`). It sleeps on words that the peers change when an RMA
//! finishes. Source: `scif_fence_signal` with `SCIF_FENCE_INIT_PEER`.

use std::sync::{Arc, Mutex};

use scif::logging::warn_about_peer;
use scif::sys::futex;
use scif::sys::mmap::Mapping;
use scif::sys::thread::{self, contained};
use scif_ring::SharedU32;

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::lock::take;
use crate::window::copies::{Spot, store_all};

/// Interval in nanoseconds between checks for peers that died. A longer one delays the signals
/// after a death.
const LOOK_NS: u64 = 100_000_000;

/// Values to store when the peer has finished its RMAs up to `ticket`.
struct Awaited {
    epd: Arc<Epd>,
    ticket: u64,
    stores: Vec<(Spot, u64)>,
}

/// Fences that the thread waits for.
pub(super) struct FenceSignaller {
    awaited: Mutex<Vec<Awaited>>,
    /// Word that changes when an entry is added.
    news: SharedU32,
    _map: Mapping,
}

impl FenceSignaller {
    pub(super) fn start() -> Result<Arc<FenceSignaller>> {
        let map = Mapping::anonymous(4096)?;
        let fence_signaller =
            Arc::new(FenceSignaller { awaited: Mutex::default(), news: map.word32(0)?, _map: map });
        let runner = Arc::clone(&fence_signaller);
        thread::spawn_quiet("scif-fence", move || runner.run()).map_err(|_| Failure::NoMemory)?;
        Ok(fence_signaller)
    }

    pub(super) fn add(&self, epd: &Arc<Epd>, ticket: u64, stores: Vec<(Spot, u64)>) {
        take(&self.awaited).push(Awaited { epd: Arc::clone(epd), ticket, stores });
        self.news.add(1);
        futex::wake_all(&self.news);
    }

    fn run(&self) {
        loop {
            // Read before the entries are checked, so that a later change ends the sleep.
            let mut words = vec![(self.news, self.news.get())];
            for entry in take(&self.awaited).iter() {
                if let Some(link) = entry.epd.link() {
                    let word = link.finished(true);
                    words.push((word, word.get()));
                }
            }
            let (due, left) = self.take_due();
            for entry in due {
                entry.signal();
            }
            futex::wait_any(&words, (left != 0).then_some(LOOK_NS));
        }
    }

    /// Removes the entries that are due, and drops the ones that never will be. Returns the due
    /// ones and the number of the rest.
    fn take_due(&self) -> (Vec<Awaited>, usize) {
        let mut awaited = take(&self.awaited);
        let (mut due, mut kept, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for entry in awaited.drain(..) {
            match contained(|| entry.progress()) {
                Some(Progress::Due) => due.push(entry),
                Some(Progress::Waits) => kept.push(entry),
                Some(Progress::Never) => {}
                None => failed.push(entry),
            }
        }
        *awaited = kept;
        let left = awaited.len();
        drop(awaited);
        for entry in failed {
            end_after_panic(&entry.epd, "a fence signal");
        }
        (due, left)
    }
}

/// State of the RMAs that an entry waits for.
enum Progress {
    Due,
    Waits,
    /// The RMAs remain unfinished, and the fence never signals.
    Never,
}

impl Awaited {
    fn progress(&self) -> Progress {
        let Some(link) = self.epd.link() else {
            return Progress::Never;
        };
        let sharers = &link.peer.table.sharers;
        let finished = sharers.finished(self.ticket, sharers.has(link.peer_pid)).unwrap_or(false);
        if finished {
            Progress::Due
        } else if self.epd.over(link) {
            Progress::Never
        } else {
            Progress::Waits
        }
    }

    fn signal(&self) {
        let stored = contained(|| {
            #[cfg(test)]
            crate::faults::strike(&self.epd, crate::faults::FaultPoint::Signal);
            store_all(&self.stores)
        });
        match stored {
            Some(Ok(())) => {}
            Some(Err(failure)) => warn_about_peer!(
                "scif_fence_signal of the endpoint at port {}: the value could not be stored: \
                 {failure}. Check that the window at the offset is still registered",
                self.epd.sharer.port()
            ),
            None => end_after_panic(&self.epd, "a fence signal"),
        }
    }
}

/// Ends the connection of an endpoint after a panic in work for it. Both sides then see a reset,
/// and take no missing data for transferred.
#[cold]
pub(super) fn end_after_panic(epd: &Epd, operation: &str) {
    warn_about_peer!(
        "{operation} of the endpoint at port {} was not done because of an internal error; the \
         connection is reset: close the endpoint and open another one",
        epd.sharer.port()
    );
    epd.disconnect();
    if let Some(link) = epd.link() {
        link.cut();
    }
}
