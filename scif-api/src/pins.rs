// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows made of pinned pages, and pages of the peer in use, by endpoint.
//!
//! Not about pinning (`kernel_mode`).

use std::any::Any;
use std::sync::{Arc, Mutex};

use scif::sorted::SortedMap;
use scif::sys::process;

use crate::endpoint::Epd;
use crate::link::Link;
use crate::lock::take;
use crate::window::table::Window;

/// Window made of pinned pages.
#[derive(Debug)]
struct PinnedWindow {
    token: u64,
    offset: i64,
    len: usize,
    _pin: Arc<dyn Any + Send + Sync>,
}

/// Pages in use, which keep pins or endpoints.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    windows: Mutex<Vec<PinnedWindow>>,
    /// Number of `PeerPages` in use, by token of the endpoint.
    peer_pages: Mutex<SortedMap<u64, usize>>,
}

impl Pins {
    /// Records a window made of the pinned pages at `address`. The window keeps `pin`.
    pub(crate) fn registered(
        &self,
        epd: &Epd,
        offset: i64,
        (address, len): (usize, usize),
        pin: Arc<dyn Any + Send + Sync>,
    ) {
        let begins = |window: Window| window.unmoved(process::pid()).map(|(begin, _)| begin);
        let is_other = |window: Option<Window>| window.and_then(begins) != Some(address as u64);
        let mut pinned = take(&self.windows);
        // A thread that deletes the window checks this list afterwards, or already did.
        let at = |link: &Link| link.own.table.at(offset.unsigned_abs());
        if !epd.link().is_some_and(|link| at(link).is_ok_and(is_other)) {
            pinned.push(PinnedWindow { token: epd.token, offset, len, _pin: pin });
        }
    }

    /// Forgets the windows of an endpoint that ended.
    pub(crate) fn ended(&self, token: u64) {
        self.take_out(|pinned| pinned.token == token);
    }

    /// Forgets the windows selected by `gone`. Their pages are released without the lock.
    fn take_out(&self, gone: impl Fn(&PinnedWindow) -> bool) {
        let mut windows = take(&self.windows);
        let (out, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *windows).into_iter().partition(gone);
        *windows = kept;
        drop(windows);
        drop(out);
    }

    /// Releases the pins of deleted windows of the endpoint with the token that `token` returns.
    pub(crate) fn forget(&self, token: impl FnOnce() -> Option<u64>, offset: i64, len: usize) {
        if take(&self.windows).is_empty() {
            return;
        }
        let Some(token) = token() else { return };
        let end = |offset: i64, len| {
            i64::try_from(len).map_or(i64::MAX, |len: i64| offset.saturating_add(len))
        };
        self.take_out(|one| {
            one.token == token
                && one.offset >= offset
                && end(one.offset, one.len) <= end(offset, len)
        });
    }

    /// Returns the number of windows.
    #[cfg(test)]
    pub(crate) fn windows(&self) -> usize {
        take(&self.windows).len()
    }

    /// Counts pages of the peer, which prevent the close of their endpoint.
    pub(crate) fn get_peer_pages(&self, token: u64) {
        *take(&self.peer_pages).get_or_insert_with(token, || 0) += 1;
    }

    /// Undoes one [`Pins::get_peer_pages`].
    pub(crate) fn put_peer_pages(&self, token: u64) {
        let mut out = take(&self.peer_pages);
        if let Some(n) = out.get_mut(&token) {
            *n -= 1;
            if *n == 0 {
                out.remove(&token);
            }
        }
    }

    /// Whether pages of the peer are in use at the endpoint with the token that `token` returns.
    pub(crate) fn has_peer_pages(&self, token: impl FnOnce() -> Option<u64>) -> bool {
        let out = take(&self.peer_pages);
        !out.is_empty() && token().is_some_and(|token| out.contains_key(&token))
    }
}
