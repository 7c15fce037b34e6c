// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Descriptors that this process takes over from another sharer of an endpoint, see `fd_handoff`.
//!
//! Not about leaving them to other sharers (`endpoint`). All of it happens under the control lock.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use scif::logging::warn_about_peer;
use scif::segment::Side;
use scif::sys::{descriptor, epoll};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::fd_handoff::FdHandoff;
use crate::link::{Link, Parts, Pending, adopt_segment};
use crate::lock::take;
use crate::messages;
use crate::registry::{Inner, Kind};
use crate::sharer::Async;
use crate::state::State;
use crate::window::space::{OwnSpace, PeerSpace};
use crate::wire::{HandoffKind, Left};

/// Makes the link of a connection that another sharer made.
fn link_of(epd: &Epd, fd_handoff: &FdHandoff, left: Left, fds: Vec<OwnedFd>) -> Result<Link> {
    let [_, segment, own, socket, table, arena, peer_bell]: [OwnedFd; 7] =
        fds.try_into().map_err(|_| Failure::Broken)?;
    let parts = Parts {
        segment: adopt_segment(&segment)?,
        side: Side::Opener,
        own: OwnSpace::inherit(fd_handoff.book(), own, left.counted),
        peer: PeerSpace::adopt(&table, arena)?,
        peer_bell,
        socket,
        peer_pid: left.peer_pid,
    };
    Link::new(parts, &epd.sharer)
}

/// Makes the pending request that another sharer sent.
fn pending_of(fd_handoff: &FdHandoff, left: Left, fds: Vec<OwnedFd>) -> Result<Pending> {
    let [_, segment_fd, own, socket]: [OwnedFd; 4] = fds.try_into().map_err(|_| Failure::Broken)?;
    Ok(Pending {
        segment: adopt_segment(&segment_fd)?,
        segment_fd,
        own: OwnSpace::inherit(fd_handoff.book(), own, left.counted),
        socket,
        peer_pid: left.peer_pid,
        number: left.number,
    })
}

/// Notifies the other sharers that a packet was left.
pub(crate) fn notify_sharers(inner: &Inner, epd: &Epd) {
    if epd.fd_handoff().is_some() {
        epoll::signal(&inner.family);
    }
}

/// Takes over descriptors that another sharer left. Returns true if there were any, or if the
/// endpoint already has its connection.
#[cold]
pub(crate) fn inherit(inner: &Inner, epd: &Arc<Epd>) -> bool {
    if epd.fd_handoff().is_none() {
        return false;
    }
    // A link comes once and is final, so a process that has it need not wait for the control
    // lock.
    if epd.link().is_some() {
        return true;
    }
    let _held = epd.sharer.control.lock();
    if epd.link().is_some() {
        return true;
    }
    inherit_or_warn(inner, epd)
}

/// Does the work of `inherit`, and logs a failure. The caller holds the control lock.
pub(crate) fn inherit_or_warn(inner: &Inner, epd: &Arc<Epd>) -> bool {
    inherit_held(inner, epd).unwrap_or_else(|failure| {
        warn_about_peer!(
            "endpoint at port {}: descriptors from a process that shares it could not be taken \
             over: {failure}; this process cannot use it. Raise the limits of open files and \
             of memory (ulimit -n, ulimit -v)",
            epd.sharer.port()
        );
        false
    })
}

/// Does the work of `inherit`. The caller holds the control lock.
fn inherit_held(inner: &Inner, epd: &Arc<Epd>) -> Result<bool> {
    let Some(fd_handoff) = epd.fd_handoff().filter(|_| epd.link().is_none()) else {
        return Ok(false);
    };
    let state = epd.sharer.state();
    let Some((left, mut fds)) = fd_handoff.fetch(&epd.sharer) else {
        return Ok(false);
    };
    let mut found = false;
    if take(&epd.port_socket).is_none() && !fds.is_empty() {
        *take(&epd.port_socket) = Some(fds.swap_remove(0));
        return inherit_held(inner, epd).map(|_| true);
    }
    match (left.kind, state) {
        (HandoffKind::Port, State::Listening) => {
            let socket = take(&epd.port_socket);
            if let Some(socket) = socket.as_ref() {
                inner.watch_again(epd, Kind::Listener, socket)?;
            }
        }
        (HandoffKind::Request, State::Connecting) => {
            let known = take(&epd.pending).as_ref().map(|pending| pending.number);
            if known != Some(left.number) {
                drop_pending(inner, epd);
                let pending = pending_of(fd_handoff, left, fds)?;
                inner.watch(epd, Kind::Link, &pending.socket)?;
                *take(&epd.pending) = Some(pending);
                // The process that waits for the answer may die, inside a call or not.
                inner.limit_connect(epd);
                found = true;
            }
        }
        (HandoffKind::Connection, State::Connecting | State::Connected | State::Disconnected) => {
            drop_pending(inner, epd);
            let link = link_of(epd, fd_handoff, left, fds)?;
            link.own.table.take_place();
            if state == State::Connecting {
                link.drop_welcome();
            }
            epd.set_link(link);
            if state == State::Connecting {
                // The sharer that took the answer died before it recorded the state.
                complete_connect(inner, epd);
            }
            if let Some(link) = epd.link() {
                inner.watch(epd, Kind::Link, link.socket())?;
            }
            found = true;
        }
        _ => {}
    }
    Ok(found)
}

/// Forgets a request. The caller holds the control lock.
pub(crate) fn drop_pending(inner: &Inner, epd: &Epd) {
    if let Some(pending) = take(&epd.pending).take() {
        // Other sharers may keep the socket open: then closing it does not remove it from the
        // watched ones.
        inner.unwatch(&pending.socket);
    }
}

/// Completes a connect: the request was accepted, and the link is set. The caller holds the
/// control lock.
pub(crate) fn complete_connect(inner: &Inner, epd: &Epd) {
    if epd.sharer.asynchronous() == Async::Running {
        inner.unlimit_connect(epd);
        epd.sharer.set_asynchronous(Async::Done);
    }
    if let Some(link) = epd.link().filter(|_| epd.sharer.asynchronous() == Async::None) {
        // Taken before any thread can be inside a receiving call, which holds the lock until
        // bytes arrive.
        let _receiving = epd.sharer.receiving.lock();
        messages::show_data(epd, link);
    }
    // Set first: a thread that sees the new state may check the descriptor.
    descriptor::show_space(&epd.bell);
    epd.sharer.enter(State::Connected);
}
