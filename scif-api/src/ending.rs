// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Close of a descriptor, and the end of an endpoint after the close of its last one.

use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError};

use scif::logging::warn_about_peer;
use scif::sys::descriptor;
use scif::sys::thread::contained;

use crate::endpoint::Epd;
use crate::failure::Result;
#[cfg(test)]
use crate::faults;
use crate::lock::take;
use crate::registration::{deletion, page_restore};
use crate::registry::{Inner, Kind};
use crate::sharer::Async;
use crate::{mainline, sharing};

/// Closes a number. The endpoint ends if that was its last descriptor.
pub(crate) fn close(inner: &Arc<Inner>, fd: RawFd) -> Result<()> {
    let Ok(epd) = inner.get(fd) else { return Ok(descriptor::close(fd)?) };
    if inner.config.device_traps && epd.sharer.asynchronous() != Async::None {
        mainline::flush_connects(inner);
    }
    inner.forget(fd);
    // The service thread must not notice the close: its reference would keep descriptors of the
    // endpoint open after this call.
    inner.unwatch(&epd.bell);
    let closed = descriptor::close(fd);
    if epd.is_closed() {
        end(inner, &epd);
        epd.wait_ended();
        // The end may release references to an orphaned arena, or pages that were used in
        // place.
        drop(epd);
        page_restore::take_back(inner);
    } else {
        // The number is closed and cannot be closed again, so this is no error of the call.
        if let Err(failure) = inner.watch_again(&epd, Kind::Descriptor, &epd.bell) {
            log::warn!(
                "endpoint at port {} is no longer watched: epoll_ctl: {failure:?}; a close(2) of \
                 its last descriptor reaches the peer only when this process ends. Call \
                 scif_close, or raise fs.epoll.max_user_watches",
                epd.sharer.port()
            );
        }
        // The last descriptor may have been closed by another thread meanwhile.
        if epd.is_over() {
            inner.unwatch(&epd.bell);
        }
    }
    Ok(closed?)
}

/// Ends an endpoint whose last descriptor is closed. Returns whether it was; then `take_back`
/// may find pages to move.
pub(crate) fn end_if_closed(inner: &Inner, epd: &Arc<Epd>) -> bool {
    let closed = epd.is_closed();
    if closed {
        end(inner, epd);
    }
    closed
}

fn end(inner: &Inner, epd: &Arc<Epd>) {
    sharing::inherit(inner, epd);
    if let Some(link) = epd.link() {
        inner.unwatch(link.socket());
    }
    if !epd.ends() {
        return;
    }
    survive_end(epd, || {
        #[cfg(test)]
        faults::strike(epd, faults::FaultPoint::End);
        deletion::end_windows(inner, epd);
        mainline::look_for_lockup(inner, epd);
        epd.end();
        inner.pins.ended(epd.token);
        if let Some(link) = epd.link() {
            inner.orphan_arenas.keep(&link.own);
        }
    });
    inner.unwatch(&epd.bell);
    // Removed after `orphan_arenas` has the arena: one of the two lists always names the owner
    // of its pages.
    take(&inner.service).watched.remove(&epd.token);
    let mut table = inner.table.write().unwrap_or_else(PoisonError::into_inner);
    for slot in table.iter_mut() {
        if slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, epd)) {
            *slot = None;
        }
    }
    drop(table);
    // Counted last: until then the endpoint's windows are visible in the table.
    if epd.windows.has_unmoved() {
        inner.released_unmoved.add(1);
    }
}

/// Runs the end of an endpoint. A panic leaves the remaining steps undone, but releases all
/// waiters for the end.
fn survive_end(epd: &Epd, end: impl FnOnce()) {
    if contained(end).is_some() {
        return;
    }
    // Frees the peer and the port, if the panic came before.
    let _ = contained(|| epd.end());
    epd.set_ended();
    warn_about_peer!(
        "internal error while the endpoint at port {} was closed; its peer may keep mappings \
         of its memory. Restart both programs and report the error",
        epd.sharer.port()
    );
}

#[cfg(test)]
mod tests {
    use scif::sys::descriptor;

    use crate::faults::{FaultPoint, arm};
    use crate::{connected, endpoints};

    #[test]
    fn a_close_succeeds_though_the_other_descriptors_cannot_be_watched() {
        let scif = endpoints("unwatched", 0);
        let (a, b) = connected(&scif, &scif);
        let (spare, _other) = descriptor::pair(true).unwrap();
        let number = descriptor::release(spare);
        descriptor::replace(a, number).unwrap();
        arm(&scif, a, FaultPoint::Watch);
        assert_eq!(scif.close(a), Ok(()));
        assert_eq!(scif.usable(number), Ok(()));
        assert_eq!(scif.close(number), Ok(()));
        assert_ne!(scif.usable(b), Ok(()));
        scif.close(b).unwrap();
    }
}
