// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `scif_poll`: poll(2) with the exact bits of each endpoint.
//!
//! Not about poll(2), select and epoll on the descriptors, which differ in two states. An endpoint
//! that is not connected shows nothing instead of ERR; a disconnected one shows IN for ever. The
//! descriptors wake a sleeping `scif_poll`. Source: `scif_poll`, and the poll operation of the
//! driver.

use std::sync::Arc;

use rustix::io::Errno;
use scif::sys::descriptor;
use scif::sys::time::now_ns;

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::lock::take;
use crate::registry::Inner;
use crate::sharer::Async;
use crate::state::State;
use crate::{messages, sharing};

pub(crate) use libc::pollfd as PollFd;

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;
const ERR: i16 = libc::POLLERR;
const HUP: i16 = libc::POLLHUP;

/// Wait queue of mainline's driver at which its poll operation puts a caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitsFor {
    /// None: the endpoint has an error to show and no queue.
    Nothing,
    /// The result of a connect that returned EINPROGRESS and was not collected.
    Connect,
    /// A connection request.
    Request,
    /// Bytes to receive, or space to send.
    Messages,
}

/// Returns the queue of an endpoint's present state.
pub(crate) fn waits_for(epd: &Epd) -> WaitsFor {
    match (epd.sharer.asynchronous(), epd.sharer.state()) {
        (Async::Running | Async::Done | Async::Refused, _) => WaitsFor::Connect,
        (Async::None, State::Listening) => WaitsFor::Request,
        (Async::None, State::Connected | State::Disconnected) => WaitsFor::Messages,
        (Async::None, State::Unbound | State::Bound | State::Connecting | State::Closing) => {
            WaitsFor::Nothing
        }
    }
}

/// Events of an endpoint, masked by the requested ones.
fn bits(epd: &Epd, events: i16) -> i16 {
    let all = match (epd.sharer.asynchronous(), epd.sharer.state()) {
        (Async::Running, _) => 0,
        (Async::Done | Async::Refused, _) => OUT,
        (Async::None, State::Listening) if epd.has_request() => IN,
        (Async::None, State::Listening) => 0,
        (Async::None, State::Connected | State::Disconnected) => epd.link().map_or(ERR, |link| {
            let over = if epd.over(link) { HUP } else { 0 };
            let data = if link.rx.ready() == Ok(0) { 0 } else { IN };
            let room = if link.tx.room() == Ok(0) { 0 } else { OUT };
            data | room | over
        }),
        (Async::None, State::Unbound | State::Bound | State::Connecting | State::Closing) => ERR,
    };
    all & (events | ERR | HUP)
}

/// Makes a descriptor show the current state, unless a sharer inside a call is about to.
fn correct(epd: &Epd, fd: i32) {
    if let Some(link) = epd.link() {
        let _ = messages::recover(epd, link, fd);
    }
}

/// Checks an array of entries that a program passes to `scif_poll`.
///
/// # Errors
/// [`Failure::Invalid`] for more entries than the limit of descriptors, [`Failure::BadAddress`].
pub fn check_entries(at: usize, n: u32) -> Result<()> {
    descriptor::check_polled(at, n).map_err(failure)
}

/// Converts an error of poll(2).
fn failure(errno: Errno) -> Failure {
    match errno {
        Errno::INVAL => Failure::Invalid,
        Errno::FAULT => Failure::BadAddress,
        other => other.into(),
    }
}

/// Fetches a port or a peer that another sharer may have obtained.
fn look_again(inner: &Inner, epd: &Arc<Epd>) {
    if epd.link().is_some() || epd.fd_handoff().is_none() {
        return;
    }
    let unknown = match epd.sharer.state() {
        State::Connected | State::Disconnected => true,
        State::Listening => take(&epd.port_socket).is_none(),
        State::Connecting => take(&epd.pending).is_none(),
        State::Unbound | State::Bound | State::Closing => false,
    };
    if unknown {
        sharing::inherit(inner, epd);
    }
}

/// Waits until an entry is ready or `timeout_ms` has passed (negative: for ever). Returns the
/// number of ready entries.
pub(crate) fn poll(inner: &Arc<Inner>, entries: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
    let endpoints: Vec<Option<Arc<Epd>>> =
        entries.iter().map(|entry| inner.get(entry.fd).ok()).collect();
    let deadline = u64::try_from(timeout_ms).ok().map(|ms| now_ns().saturating_add(ms * 1_000_000));
    let mut wait_ms = 0;
    loop {
        descriptor::poll_raw(entries, wait_ms).map_err(failure)?;
        let mut ready = 0;
        let mut misleading = false;
        for (entry, endpoint) in entries.iter_mut().zip(&endpoints) {
            if let Some(epd) = endpoint {
                look_again(inner, epd);
                let shown = entry.revents & (entry.events | HUP);
                entry.revents = bits(epd, entry.events);
                if entry.revents == 0 && shown != 0 {
                    correct(epd, entry.fd);
                    misleading = true;
                }
            }
            ready += usize::from(entry.revents != 0);
        }
        let now = now_ns();
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        if ready != 0 || left == Some(0) {
            return Ok(ready);
        }
        wait_ms = left.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        if misleading {
            // Another thread is inside a call on it and will correct the descriptor.
            std::thread::sleep(std::time::Duration::from_micros(100));
            wait_ms = wait_ms.clamp(-1, 1).abs();
        }
    }
}
