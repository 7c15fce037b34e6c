// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics on purpose at named places, and waits of tests.

use std::os::fd::RawFd;
use std::sync::Mutex;
use std::time::Instant;

use crate::endpoint::Epd;
use crate::endpoints::Endpoints;
use crate::lock::take;

/// Place in the work of the service thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FaultPoint {
    Request,
    Socket,
    End,
    /// Asynchronous RMA, in a DMA thread.
    Rma,
    /// Store of a fence on the peer's RMAs.
    Signal,
    /// Addition to the watched descriptors, which fails without a panic.
    Watch,
}

/// Endpoints, by the inode of their descriptor, and the places at which the thread panics on
/// them.
static STRUCK: Mutex<Vec<(u64, FaultPoint)>> = Mutex::new(Vec::new());

/// Panics once at a place that [`arm`] has named.
pub(crate) fn strike(epd: &Epd, place: FaultPoint) {
    assert!(!is_struck(epd, place), "on purpose: {place:?}");
}

/// Whether [`arm`] has named the place, once.
pub(crate) fn is_struck(epd: &Epd, place: FaultPoint) -> bool {
    let at = (epd.id().inode(), place);
    let mut struck = take(&STRUCK);
    let before = struck.len();
    struck.retain(|one| *one != at);
    struck.len() < before
}

pub(crate) fn arm(scif: &Endpoints, fd: RawFd, place: FaultPoint) {
    take(&STRUCK).push((scif.0.get(fd).unwrap().id().inode(), place));
}

pub(crate) fn until(condition: &str, so: impl Fn() -> bool) {
    assert!(happens(so), "never: {condition}");
}

/// Waits until `so` holds, for at most 10 s. Returns whether it does.
pub(crate) fn happens(so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !so() {
        if begin.elapsed().as_secs() >= 10 {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    true
}
