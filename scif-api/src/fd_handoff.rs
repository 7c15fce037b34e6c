// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hand-over of the descriptors of an endpoint that gets a port or a peer after a fork, to its
//! other sharers.
//!
//! Not about state that all sharers have anyway: memory (`sharer`), and descriptors from before the
//! fork. A hand-off is a pair of sockets that only sharers have. It is made before the fork of an
//! endpoint that is not connected and does not listen. One packet lies in it, with all descriptors
//! of the endpoint. Each sharer takes copies by MSG_PEEK, whichever sharer dies meanwhile; a sharer
//! that changes the endpoint replaces the packet. The peer has none of this. Source: section 3.5.1
//! of the User Guide.
//!
//! All of it happens under the control lock. The number of the valid packet lies in the memory of
//! the sharers, and is set after the packet was sent. Packets with other numbers were left by a
//! sharer that died in between, and are skipped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::failure::{Failure, Result};
use rustix::io::Errno;
use scif::logging::warn_about_peer;
use scif::segment::Side;
use scif::sys::{descriptor, epoll, fork, unix};

use super::connect::Pending;
use super::endpoint::{Epd, take};
use super::link::{Link, Parts, adopt_segment};
use super::registry::{Inner, Kind};
use super::sharer::{Async, Sharer};
use super::state::State;
use super::wire::{HANDOFF_BYTES, HandoffKind, Left};
use crate::window::space::{OwnBook, OwnSpace, PeerSpace};

/// Pair of sockets, see the head of the file.
#[derive(Debug)]
pub(crate) struct FdHandoff {
    to: OwnedFd,
    from: OwnedFd,
    /// Window table of the future connection. It is made in advance, because the seals of a table
    /// prevent a sharer from mapping one that another makes.
    book: OwnBook,
}

impl FdHandoff {
    fn new(book: OwnBook) -> Result<FdHandoff> {
        let (to, from) = unix::pair()?;
        Ok(FdHandoff { to, from, book })
    }

    /// Returns the window table for a connection to be made.
    pub(crate) fn book(&self) -> OwnBook {
        self.book.clone()
    }

    /// Replaces the packet and returns its number.
    fn leave(&self, sharer: &Sharer, mut left: Left, fds: &[BorrowedFd<'_>]) -> u32 {
        left.number = sharer.leaving.add(1).wrapping_add(1);
        if let Err(errno) = unix::send(&self.to, &left.encode(), fds) {
            // Limit of descriptors in flight: the other sharers do without.
            warn_about_peer!(
                "endpoint at port {}: its descriptors could not be passed to the processes that \
                 share it: sendmsg: {errno}; they cannot use it. Raise the limit of open files \
                 (ulimit -n), which also limits descriptors in flight",
                sharer.port()
            );
        }
        sharer.left.set(left.number);
        self.skip_to(left.number);
        left.number
    }

    /// Drops the packets before the given one.
    fn skip_to(&self, number: u32) {
        let first = || {
            let mut bytes = [0; HANDOFF_BYTES];
            unix::peek(&self.from, &mut bytes).map(|_| Left::decode(bytes))
        };
        while let Ok(Some(left)) = first() {
            if left.number == number || unix::skip(&self.from).is_err() {
                return;
            }
        }
    }

    /// Returns copies of the valid packet.
    fn fetch(&self, sharer: &Sharer) -> Option<(Left, Vec<OwnedFd>)> {
        let number = sharer.left.get();
        loop {
            let mut bytes = [0; HANDOFF_BYTES];
            let received = match unix::peek(&self.from, &mut bytes) {
                Err(Errno::INTR) => continue,
                other => other.ok()?,
            };
            let left = Left::decode(bytes)?;
            if left.number == number {
                if received.cut {
                    warn_about_peer!(
                        "endpoint at port {}: no free descriptors to take it over from another \
                         process: EMFILE. Raise the limit of open files (ulimit -n)",
                        sharer.port()
                    );
                    return None;
                }
                return Some((left, received.fds));
            }
            unix::skip(&self.from).ok()?;
        }
    }
}

impl Epd {
    /// Returns the hand-off, if the endpoint was forked before it was connected or listened.
    pub(crate) fn fd_handoff(&self) -> Option<&FdHandoff> {
        self.fd_handoff.get()
    }

    /// Gives the endpoint a hand-off, if a child forked now would otherwise miss later changes. The
    /// caller holds no lock for which the owner of the control lock may wait.
    pub(crate) fn prepare(&self) {
        let may_change = |state| matches!(state, State::Unbound | State::Bound | State::Connecting);
        if self.fd_handoff().is_some() || !may_change(self.sharer.state()) {
            return;
        }
        let _held = self.sharer.control.lock();
        if !may_change(self.sharer.state()) {
            return;
        }
        let book = take(&self.pending).as_ref().map(|pending| pending.own.book());
        match book.map_or_else(OwnBook::new, Ok).and_then(FdHandoff::new) {
            Ok(fd_handoff) => {
                // The control lock is held, so no other thread sets it.
                let _ = self.fd_handoff.set(fd_handoff);
                self.leave();
            }
            Err(failure) => {
                warn_about_peer!(
                    "endpoint at port {}: preparation for fork failed: {failure}; a forked child \
                     will not see a connection made later. Raise the limit of open files (ulimit \
                     -n), or connect before the fork",
                    self.sharer.port()
                );
            }
        }
    }

    /// Leaves a port, or a pending request, to the other sharers. The caller holds the control
    /// lock.
    pub(crate) fn leave(&self) {
        let Some(fd_handoff) = self.fd_handoff() else {
            return;
        };
        let port = take(&self.port_socket);
        let Some(port) = port.as_ref() else { return };
        let mut pending = take(&self.pending);
        if let Some(pending) = pending.as_mut() {
            let left = Left::new(HandoffKind::Request, pending.peer_pid, pending.own.is_counted());
            let fds = [
                port.as_fd(),
                pending.segment_fd.as_fd(),
                pending.own.arena(),
                pending.socket.as_fd(),
            ];
            pending.number = fd_handoff.leave(&self.sharer, left, &fds);
        } else {
            fd_handoff.leave(&self.sharer, Left::new(HandoffKind::Port, 0, false), &[port.as_fd()]);
        }
    }

    /// Leaves a connection to the other sharers. The caller holds the control lock.
    pub(crate) fn leave_link(&self, link: &Link, segment: &OwnedFd, table: &OwnedFd) {
        let Some(fd_handoff) = self.fd_handoff() else {
            return;
        };
        let port = take(&self.port_socket);
        let Some(port) = port.as_ref() else { return };
        let left = Left::new(HandoffKind::Connection, link.peer_pid, link.own.is_counted());
        let fds = [
            port.as_fd(),
            segment.as_fd(),
            link.own.arena(),
            link.socket(),
            table.as_fd(),
            link.peer.arena(),
            link.peer_bell(),
        ];
        fd_handoff.leave(&self.sharer, left, &fds);
        link.own.table.take_place();
    }

    /// Whether a request of this process is the valid one.
    pub(crate) fn is_current(&self, pending: &Pending) -> bool {
        self.fd_handoff().is_none() || pending.number == self.sharer.left.get()
    }
}

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

impl Inner {
    /// Registers the preparation of endpoints that a forked child will share.
    pub(crate) fn prepare_to_fork(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        fork::prepare_to_fork(move || {
            if let Some(inner) = inner.upgrade() {
                inner.every().iter().for_each(|epd| epd.prepare());
            }
        });
    }

    /// Notifies the other sharers that a packet was left.
    pub(crate) fn tell_holders(&self, epd: &Epd) {
        if epd.fd_handoff().is_some() {
            epoll::signal(&self.family);
        }
    }

    /// Takes over descriptors that another sharer left. Returns true if there were any, or if the
    /// endpoint already has its connection.
    #[cold]
    pub(crate) fn inherit(&self, epd: &Arc<Epd>) -> bool {
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
        self.inherit_or_warn(epd)
    }

    /// Does the work of `inherit`, and logs a failure. The caller holds the control lock.
    pub(crate) fn inherit_or_warn(&self, epd: &Arc<Epd>) -> bool {
        self.inherit_held(epd).unwrap_or_else(|failure| {
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
    fn inherit_held(&self, epd: &Arc<Epd>) -> Result<bool> {
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
            return self.inherit_held(epd).map(|_| true);
        }
        match (left.kind, state) {
            (HandoffKind::Port, State::Listening) => {
                let socket = take(&epd.port_socket);
                if let Some(socket) = socket.as_ref() {
                    self.watch_again(epd, Kind::Listener, socket)?;
                }
            }
            (HandoffKind::Request, State::Connecting) => {
                let known = take(&epd.pending).as_ref().map(|pending| pending.number);
                if known != Some(left.number) {
                    self.drop_pending(epd);
                    let pending = pending_of(fd_handoff, left, fds)?;
                    self.watch(epd, Kind::Link, &pending.socket)?;
                    *take(&epd.pending) = Some(pending);
                    // The process that waits for the answer may die, inside a call or not.
                    self.limit_connect(epd);
                    found = true;
                }
            }
            (
                HandoffKind::Connection,
                State::Connecting | State::Connected | State::Disconnected,
            ) => {
                self.drop_pending(epd);
                let link = link_of(epd, fd_handoff, left, fds)?;
                link.own.table.take_place();
                if state == State::Connecting {
                    link.drop_welcome();
                }
                epd.set_link(link);
                if state == State::Connecting {
                    // The sharer that took the answer died before it recorded the state.
                    self.connected(epd);
                }
                if let Some(link) = epd.link() {
                    self.watch(epd, Kind::Link, link.socket())?;
                }
                found = true;
            }
            _ => {}
        }
        Ok(found)
    }

    /// Forgets a request. The caller holds the control lock.
    pub(crate) fn drop_pending(&self, epd: &Epd) {
        if let Some(pending) = take(&epd.pending).take() {
            // Other sharers may keep the socket open: then closing it does not remove it from the
            // watched ones.
            self.unwatch(&pending.socket);
        }
    }

    /// Completes a connect: the request was accepted, and the link is set. The caller holds the
    /// control lock.
    pub(crate) fn connected(&self, epd: &Epd) {
        if epd.sharer.asynchronous() == Async::Running {
            self.unlimit_connect(epd);
            epd.sharer.set_asynchronous(Async::Done);
        }
        if let Some(link) = epd.link().filter(|_| epd.sharer.asynchronous() == Async::None) {
            // Taken before any thread can be inside a receiving call, which holds the lock until
            // bytes arrive.
            let _receiving = epd.sharer.receiving.lock();
            super::messages::show_data(epd, link);
        }
        // Set first: a thread that sees the new state may check the descriptor.
        descriptor::show_space(&epd.bell);
        epd.sharer.enter(State::Connected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd_handoff() -> (FdHandoff, Epd) {
        let stats = super::super::stat::Stats::new(0).unwrap();
        let (epd, _a) = Epd::new(1, true, &stats).unwrap();
        (FdHandoff::new(OwnBook::new().unwrap()).unwrap(), epd)
    }

    fn leave(fd_handoff: &FdHandoff, epd: &Epd, pid: i32) -> u32 {
        let fd = scif::sys::memfd::create("scif-test", 4096).unwrap();
        fd_handoff.leave(&epd.sharer, Left::new(HandoffKind::Port, pid, true), &[fd.as_fd()])
    }

    #[test]
    fn the_last_packet_can_be_fetched_any_number_of_times() {
        let (fd_handoff, epd) = fd_handoff();
        assert!(fd_handoff.fetch(&epd.sharer).is_none());
        for pid in 1..40 {
            leave(&fd_handoff, &epd, pid);
            for _ in 0..3 {
                let (left, fds) = fd_handoff.fetch(&epd.sharer).unwrap();
                assert_eq!(
                    (left.peer_pid, left.kind, left.counted),
                    (pid, HandoffKind::Port, true)
                );
                assert_eq!(fds.len(), 1);
            }
        }
    }

    #[test]
    fn a_death_while_publishing_keeps_the_former_packet() {
        let (fd_handoff, epd) = fd_handoff();
        leave(&fd_handoff, &epd, 1);
        // Sent, but its number was not stored.
        let mut dead = Left::new(HandoffKind::Port, 2, false);
        dead.number = epd.sharer.leaving.add(1) + 1;
        unix::send(&fd_handoff.to, &dead.encode(), &[]).unwrap();
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 1);
        // Sent with its number stored, but the former packet was not removed.
        let mut dead = Left::new(HandoffKind::Port, 3, false);
        dead.number = epd.sharer.leaving.add(1) + 1;
        unix::send(&fd_handoff.to, &dead.encode(), &[]).unwrap();
        epd.sharer.left.set(dead.number);
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 3);
        leave(&fd_handoff, &epd, 4);
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 4);
        assert!(unix::skip(&fd_handoff.from).is_ok());
        assert!(unix::skip(&fd_handoff.from).is_err(), "one packet");
    }
}
