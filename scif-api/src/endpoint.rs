// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoint of `scif.h`: made by `scif_open` or `scif_accept`, ended by the last close of its
//! descriptor.
//!
//! Not about its lookup (`registry`) or connecting (`connect`). Used by any number of threads and
//! sharers.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};

use scif::logging::warn_about_peer;
use scif::sys::descriptor::{self, Identity};
use scif::sys::fork;
use scif_ring::counter::{AtomicCounter, AtomicFlag};

use crate::failure::{Failure, Result};
use crate::fd_handoff::FdHandoff;
use crate::link::{Link, Pending};
use crate::lock::take;
use crate::sharer::Sharer;
use crate::silent_callers::SilentCallers;
use crate::stat::Stats;
use crate::state::State;
use crate::window::WindowState;
use crate::window::space::OwnBook;
use crate::wire::{HandoffKind, Left};

/// Interval in nanoseconds at which a waiter checks whether an endpoint has ended.
const ENDING_NS: u64 = 10_000_000;

/// Endpoint of `scif.h`.
#[derive(Debug)]
pub(crate) struct Epd {
    id: Identity,
    /// Library's end of the descriptor; a connected peer has a copy.
    pub(crate) bell: OwnedFd,
    /// Identifier of the endpoint in the service thread.
    pub(crate) token: u64,
    pub(crate) sharer: Sharer,
    /// Socket that holds the port; it listens once the endpoint does.
    pub(crate) port_socket: Mutex<Option<OwnedFd>>,
    pub(crate) silent_callers: SilentCallers,
    pub(crate) pending: Mutex<Option<Pending>>,
    link: OnceLock<Link>,
    /// Hand-over of descriptors to other sharers.
    pub(crate) fd_handoff: OnceLock<FdHandoff>,
    /// Number that a stand-in for the device stores at the endpoint.
    pub(crate) label: AtomicCounter,
    pub(crate) windows: WindowState,
    /// Whether its end has begun.
    ended: AtomicFlag,
    /// Whether its end is complete.
    over: AtomicFlag,
    /// Whether the service thread has panicked on it; then the thread ignores it until its close.
    pub(crate) poisoned: AtomicFlag,
}

impl Epd {
    /// Makes an endpoint and its descriptor.
    pub(crate) fn new(token: u64, cloexec: bool, stats: &Stats) -> Result<(Epd, OwnedFd)> {
        let (a, bell) = descriptor::pair(cloexec)?;
        let id = descriptor::identity(&a)?;
        let epd = Epd {
            id,
            bell,
            token,
            sharer: Sharer::new(stats.record(token, id.inode())?)?,
            port_socket: Mutex::new(None),
            silent_callers: SilentCallers::default(),
            pending: Mutex::new(None),
            link: OnceLock::new(),
            fd_handoff: OnceLock::new(),
            label: AtomicCounter::new(0),
            windows: WindowState::default(),
            ended: AtomicFlag::new(false),
            over: AtomicFlag::new(false),
            poisoned: AtomicFlag::new(false),
        };
        Ok((epd, a))
    }

    #[inline]
    pub(crate) fn id(&self) -> Identity {
        self.id
    }

    /// Returns the state. A graceful close of the peer counts before the service thread has handled
    /// it.
    #[inline]
    pub(crate) fn state(&self) -> State {
        match (self.sharer.state(), self.link.get()) {
            (State::Connected, Some(link)) if link.peer_closed() => State::Disconnected,
            (state, _) => state,
        }
    }

    /// Whether a number still names this endpoint.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`] or [`Failure::NotAnEndpoint`] if not.
    pub(crate) fn verify(&self, fd: RawFd) -> Result<()> {
        if descriptor::identify(fd)? == self.id { Ok(()) } else { Err(Failure::NotAnEndpoint) }
    }

    /// Returns the connection that exists or existed.
    #[inline]
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Returns the connection, if calls may use it.
    ///
    /// # Errors
    /// [`Failure::NotConnected`], [`Failure::Reset`].
    #[inline]
    pub(crate) fn connected(&self) -> Result<&Link> {
        self.state().may_use()?;
        self.link.get().ok_or(Failure::NotConnected)
    }

    /// Sets the connection.
    pub(crate) fn set_link(&self, link: Link) {
        self.sharer.record.set_link(link.peer_pid, link.own.inode());
        // A child forked in between would find it half set for ever.
        let _section = fork::section();
        // Set at most once: the state passes through `Connecting` once.
        let _ = self.link.set(link);
    }

    /// Whether the peer has closed, or this side was closed meanwhile.
    #[inline]
    pub(crate) fn over(&self, link: &Link) -> bool {
        self.sharer.state() != State::Connected || link.peer_closed()
    }

    /// Marks the connection as reset: the peer has left, and all calls report it from now on.
    pub(crate) fn disconnect(&self) {
        if self.sharer.pass(State::Connected, State::Disconnected) {
            self.sharer.set_shut(false);
            if !descriptor::hang_up(&self.bell) {
                self.sharer.set_shut(true);
            }
        }
        if let Some(link) = self.link.get() {
            link.disturb();
        }
    }

    /// Whether its last descriptor, in any process, is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.sharer.was_closed() || descriptor::is_closed(&self.bell, self.sharer.is_shut())
    }

    /// Begins the end after the last close. Returns whether this call is the one to end the
    /// endpoint.
    pub(crate) fn ends(&self) -> bool {
        !self.ended.swap(true)
    }

    /// Ends the endpoint with a graceful close.
    pub(crate) fn end(&self) {
        let was = self.sharer.state();
        self.sharer.enter(State::Closing);
        if let Some(link) = self.link.get() {
            if was == State::Connected {
                link.send_bye();
            }
            link.disturb();
        }
        take(&self.pending).take();
        take(&self.port_socket).take();
        self.silent_callers.clear();
        self.set_ended();
    }

    /// Whether a request waits that a call may accept.
    pub(crate) fn has_request(&self) -> bool {
        take(&self.port_socket).as_ref().is_some_and(descriptor::readable)
            || self.silent_callers.any()
    }

    /// Whether its end is complete, or has failed.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Releases the waiters for the end, which is complete or has failed.
    pub(crate) fn set_ended(&self) {
        self.over.set(true);
        self.sharer.happened();
    }

    /// Waits until the end is complete.
    pub(crate) fn wait_ended(&self) {
        loop {
            let event = self.sharer.event();
            if self.is_over() {
                return;
            }
            let _ = self.sharer.wait(event, Some(ENDING_NS));
        }
    }

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
