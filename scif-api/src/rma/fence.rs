// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion of RMAs: marks to wait for, and values stored at completion.
//!
//! A mark is the number of RMAs that its side had queued, in 31 bits; bit 31 marks the peer's side.
//! The peer's counters are read in its table, so a peer that computes causes no delay. Source:
//! `scif_fence_mark`, `scif_fence_wait`, `scif_fence_signal`.

use std::sync::Arc;

use scif::sys::futex;
use scif::sys::time::{cpu_relax_or_yield, now_ns};
use scif::{FenceSide, Signal};

use super::spots::spots;
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::registry::Inner;
use crate::window::copies::Spot;
use crate::window::table::Table;

const MARK_BITS: u64 = (1 << 31) - 1;

fn table(link: &Link, of_peer: bool) -> &Table {
    if of_peer { &link.peer.table } else { &link.own.table }
}

/// Returns the full number of RMAs for the 31 bits of a mark: the greatest one not above `queued`.
fn whole(mark: u64, queued: u64) -> Result<u64> {
    let whole = queued & !MARK_BITS | mark;
    if whole <= queued {
        Ok(whole)
    } else {
        whole.checked_sub(MARK_BITS + 1).ok_or(Failure::Invalid)
    }
}

/// Returns a mark of the RMAs queued so far (`scif_fence_mark`).
pub(crate) fn fence_mark(epd: &Epd, side: FenceSide) -> Result<i32> {
    let link = epd.connected()?;
    let of_peer = side == FenceSide::Peer;
    let queued = table(link, of_peer).sharers.queued();
    let mark = u32::try_from(queued & MARK_BITS).map_err(|_| Failure::Broken)?;
    Ok((mark | u32::from(of_peer) << 31) as i32)
}

/// Waits for the RMAs of a mark (`scif_fence_wait`).
pub(crate) fn fence_wait(inner: &Inner, epd: &Epd, mark: i32) -> Result<()> {
    let link = epd.connected()?;
    let of_peer = mark < 0;
    let queued = table(link, of_peer).sharers.queued();
    let ticket = whole(u64::from((mark & i32::MAX).unsigned_abs()), queued)?;
    wait_finished(inner, epd, link, of_peer, ticket)
}

/// Waits until all RMAs that this side has queued so far are finished.
pub(crate) fn wait_own(inner: &Inner, epd: &Epd, link: &Link) -> Result<()> {
    wait_finished(inner, epd, link, false, link.own.table.sharers.queued())
}

fn wait_finished(inner: &Inner, epd: &Epd, link: &Link, of_peer: bool, ticket: u64) -> Result<()> {
    let sharers = &table(link, of_peer).sharers;
    let word = link.finished(of_peer);
    let begin = now_ns();
    let mut looks = 0;
    loop {
        let seen = word.get();
        if sharers.finished(ticket, false)? {
            return Ok(());
        }
        if epd.over(link) && of_peer {
            return Err(Failure::Reset);
        }
        if now_ns().saturating_sub(begin) < inner.config.spin_us.saturating_mul(1000) {
            looks += 1;
            cpu_relax_or_yield(looks);
            continue;
        }
        match futex::wait(&word, seen, None) {
            Ok(()) | Err(rustix::io::Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Stores values after the RMAs queued so far (`scif_fence_signal`).
pub(crate) fn fence_signal(
    inner: &Inner,
    epd: &Arc<Epd>,
    side: FenceSide,
    local: Option<Signal>,
    remote: Option<Signal>,
) -> Result<()> {
    let link = epd.connected()?;
    let signals = [(local, false), (remote, true)];
    if local.is_none() && remote.is_none()
        || signals.iter().any(|(signal, _)| signal.is_some_and(|s| s.offset % 4 != 0))
    {
        return Err(Failure::Invalid);
    }
    let copying = link.own.table.copying()?;
    let mut stores: Vec<(Spot, u64)> = Vec::with_capacity(2);
    for (signal, of_peer) in signals {
        let Some(signal) = signal else { continue };
        match target(epd, link, signal, of_peer) {
            Ok(spot) => stores.push((spot, signal.value)),
            // Any failure of a request to the peer has one error.
            Err(_) if side == FenceSide::Peer => return Err(Failure::NoWindow),
            // The local signal is started already.
            Err(failure) => {
                signal_after(inner, epd, link, side, stores)?;
                return Err(failure);
            }
        }
    }
    let done = signal_after(inner, epd, link, side, stores);
    drop(copying);
    done
}

fn signal_after(
    inner: &Inner,
    epd: &Arc<Epd>,
    link: &Link,
    side: FenceSide,
    stores: Vec<(Spot, u64)>,
) -> Result<()> {
    if stores.is_empty() {
        return Ok(());
    }
    match side {
        FenceSide::Own => {
            inner.workers.store_after_own(epd, link, inner.config.dma_channels, stores)
        }
        FenceSide::Peer => inner.workers.store_after_peer(epd, link, stores),
    }
}

/// Returns the target of a signal: eight bytes of one writable window.
fn target(epd: &Epd, link: &Link, signal: Signal, of_peer: bool) -> Result<Spot> {
    let offset = u64::try_from(signal.offset).map_err(|_| Failure::NoWindow)?;
    let runs = table(link, of_peer).runs(offset, 8, false, true)?;
    let [run] = runs.as_slice() else {
        return Err(Failure::NoWindow);
    };
    spots(epd, link, of_peer, std::slice::from_ref(run))?.pop().ok_or(Failure::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_for_queued_rmas() {
        assert_eq!(whole(5, 7), Ok(5));
        assert_eq!(whole(8, 7), Err(Failure::Invalid));
        let wrapped = (3u64 << 31) + 4;
        assert_eq!(whole(4, wrapped), Ok(wrapped));
        assert_eq!(whole(9, wrapped), Ok((2 << 31) + 9), "from before the wrap");
    }
}
