// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! How an endpoint gets a port and a peer: bind, listen, connect, accept.
//!
//! Not about the connection once it is there (`link`). The opener makes the memory and sends it with its first packet;
//! it is connected when the acceptor has answered, which the service thread notices. Source: `scif_bind`, `scif_listen`,
//! `scif_connect`, `scif_accept`.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::endpoint::{Epd, take};
use super::failure::{Failure, Result};
use super::holder::Async;
use super::link::{Link, Parts, adopt_segment, new_segment};
use super::nodes;
use super::registry::{Inner, Kind};
use super::state::State;
use super::wire::{HELLO_FDS, PACKET, Packet, WELCOME_FDS};
use crate::addr::{DYNAMIC_PORTS, PortId};
use crate::segment::Side;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::sys::{descriptor, process, unix};
use crate::window::space::{OwnSpace, PeerSpace};

/// Ports below this one need CAP_SYS_ADMIN.
const ADMIN_PORT_END: u16 = 1024;
/// How long an acceptor waits for the first word of an opener that has connected.
const HELLO_MS: i32 = 3000;

/// A connect that waits to be accepted.
#[derive(Debug)]
pub(crate) struct Pending {
    segment: Mapping,
    own: OwnSpace,
    socket: OwnedFd,
    peer_pid: i32,
}

impl Inner {
    fn id(&self, port: u16) -> PortId {
        PortId {
            node: self.config.node,
            port,
        }
    }

    fn admits(&self, uid: u32) -> bool {
        uid == self.uid || self.config.allow_uids.contains(&uid)
    }

    /// A socket that holds `port`. EADDRINUSE: somebody has it.
    fn port_socket(&self, port: u16) -> Result<OwnedFd> {
        let socket = unix::socket()?;
        unix::bind(&socket, &self.names.listener(self.id(port))?)?;
        Ok(socket)
    }

    fn dynamic_port(&self) -> Result<(OwnedFd, u16)> {
        let (first, last) = (u32::from(*DYNAMIC_PORTS.start()), u32::from(*DYNAMIC_PORTS.end()));
        let count = last - first + 1;
        // From a place of this process's own: so that many processes do not try the same ports.
        let hint = process::pid().cast_unsigned().wrapping_mul(97) % count;
        for step in 0..count {
            let port = u16::try_from(first + (hint + step) % count).unwrap_or(u16::MAX);
            match self.port_socket(port) {
                Ok(socket) => return Ok((socket, port)),
                Err(Failure::Os(Errno::ADDRINUSE)) => {}
                Err(other) => return Err(other),
            }
        }
        Err(Failure::NoPorts)
    }

    /// Gives the endpoint a port. The caller has the control lock and looked at the state.
    fn give_port(&self, epd: &Epd, port: u16) -> Result<u16> {
        let (socket, port) = if port == 0 {
            self.dynamic_port()?
        } else {
            let socket = self.port_socket(port).map_err(|failure| match failure {
                Failure::Os(Errno::ADDRINUSE) => Failure::Invalid,
                other => other,
            })?;
            (socket, port)
        };
        *take(&epd.port_socket) = Some(socket);
        epd.holder.set_port(port);
        epd.holder.enter(State::Bound);
        Ok(port)
    }

    /// Binds to a port, 0 for one of the dynamic ones; the port.
    pub(crate) fn bind(&self, epd: &Epd, port: u16) -> Result<u16> {
        if (1..ADMIN_PORT_END).contains(&port) && !process::may_administrate() {
            return Err(Failure::NoAccess);
        }
        let _held = epd.holder.control.lock();
        epd.state().may_bind()?;
        self.give_port(epd, port)
    }

    /// Listens, with room for `backlog` requests that wait.
    pub(crate) fn listen(&self, epd: &Arc<Epd>, backlog: i32) -> Result<()> {
        let _held = epd.holder.control.lock();
        epd.state().may_listen()?;
        // Without room every request is refused: just what a socket does that does not listen.
        if backlog > 0 {
            let socket = take(&epd.port_socket);
            let socket = socket.as_ref().ok_or(Failure::Invalid)?;
            // The kernel queues one more than it is told.
            unix::listen(socket, backlog - 1)?;
            self.watch(epd, Kind::Listener, socket)?;
        }
        epd.holder.enter(State::Listening);
        Ok(())
    }

    /// Whether a node is online. One's own always is.
    fn is_online(&self, node: u16) -> bool {
        node == self.config.node || nodes::online(&self.domain).is_ok_and(|nodes| nodes.contains(&node))
    }

    /// Connects to `dst`; the local port.
    pub(crate) fn connect(self: &Arc<Self>, epd: &Arc<Epd>, fd: RawFd, dst: PortId) -> Result<u16> {
        let nonblocking = descriptor::is_nonblocking(fd)?;
        let held = epd.holder.control.lock();
        match epd.holder.asynchronous() {
            Async::None => {}
            Async::Running => return Err(Failure::InProgress),
            Async::Done => {
                epd.holder.set_asynchronous(Async::None);
                self.settle_after_collect(epd);
                return Ok(epd.holder.port());
            }
            Async::Refused => {
                epd.holder.set_asynchronous(Async::None);
                descriptor::hide_space(fd);
                epd.holder.enter(State::Bound);
                return Err(Failure::Refused);
            }
        }
        let state = epd.state();
        if let Err(failure) = state.may_connect() {
            return Err(if self.is_online(dst.node) {
                failure
            } else {
                Failure::NoNode
            });
        }
        if state == State::Unbound {
            if !self.is_online(dst.node) {
                return Err(Failure::NoNode);
            }
            self.give_port(epd, 0)?;
        }
        let pending = self.request(epd, dst)?;
        // An answer that comes at once waits for the control lock.
        self.watch(epd, Kind::Link, &pending.socket)?;
        *take(&epd.pending) = Some(pending);
        epd.holder.set_peer(dst);
        if nonblocking {
            epd.holder.set_asynchronous(Async::Running);
        }
        epd.holder.enter(State::Connecting);
        drop(held);
        if nonblocking {
            Err(Failure::InProgress)
        } else {
            self.wait_accepted(epd)
        }
    }

    /// What came before the program asked for the result now counts.
    fn settle_after_collect(&self, epd: &Epd) {
        if let Some(link) = epd.link() {
            let _receiving = epd.holder.receiving.lock();
            super::messages::show_data(epd, link);
        }
    }

    /// Sends the request.
    fn request(&self, epd: &Epd, dst: PortId) -> Result<Pending> {
        let socket = unix::socket()?;
        self.names
            .bind_source(&socket, self.id(epd.holder.port()), &mut take(&self.sources))?;
        match unix::connect(&socket, &self.names.listener(dst)?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::NOENT) => {
                return Err(if self.is_online(dst.node) {
                    Failure::Refused
                } else {
                    Failure::NoNode
                });
            }
            Err(errno) => return Err(errno.into()),
        }
        let who = unix::credentials(&socket)?;
        if !self.admits(who.uid) {
            log::warn!("{dst} belongs to user {}, who is not allowed", who.uid);
            return Err(Failure::Refused);
        }
        let (segment, segment_fd) = new_segment()?;
        let own = OwnSpace::new()?;
        let [table, arena] = own.descriptors();
        match unix::send(
            &socket,
            &Packet::Hello.encode(),
            &[segment_fd.as_fd(), table, arena, epd.bell.as_fd()],
        ) {
            Ok(()) => {}
            // The listener closed in between.
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Failure::Refused),
            Err(Errno::TOOMANYREFS | Errno::AGAIN) => return Err(Failure::NoMemory),
            Err(errno) => return Err(errno.into()),
        }
        Ok(Pending {
            segment,
            own,
            socket,
            peer_pid: who.pid,
        })
    }

    fn wait_accepted(&self, epd: &Epd) -> Result<u16> {
        let deadline = now_ns().saturating_add(self.config.connect_timeout_ms.saturating_mul(1_000_000));
        loop {
            let event = epd.holder.event();
            match epd.holder.state() {
                State::Connected | State::Disconnected => return Ok(epd.holder.port()),
                State::Bound => return Err(Failure::Refused),
                State::Closing => return Err(Failure::Interrupted),
                State::Unbound | State::Listening | State::Connecting => {}
            }
            let left = deadline.saturating_sub(now_ns());
            if left == 0 {
                let _held = epd.holder.control.lock();
                if epd.holder.state() == State::Connecting {
                    self.give_up(epd);
                }
                continue;
            }
            // Not interruptible, as in the driver.
            let _ = epd.holder.wait(event, Some(left));
        }
    }

    /// Ends a connect that nobody accepted. The caller has the control lock.
    fn give_up(&self, epd: &Epd) {
        take(&epd.pending).take();
        if epd.holder.asynchronous() == Async::Running {
            epd.holder.set_asynchronous(Async::Refused);
            descriptor::show_space(&epd.bell);
            epd.holder.happened();
        } else {
            epd.holder.enter(State::Bound);
        }
    }

    /// The socket of a request has news: called by the service thread.
    pub(crate) fn answered(&self, epd: &Epd) {
        let _held = epd.holder.control.lock();
        if epd.holder.state() != State::Connecting {
            return;
        }
        let mut slot = take(&epd.pending);
        let Some(pending) = slot.as_ref() else { return };
        let mut buffer = [0; PACKET + 1];
        let received = match unix::receive(&pending.socket, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            other => other.ok(),
        };
        let link = received.and_then(|received| {
            let packet = buffer.get(..received.bytes).and_then(Packet::decode);
            let fds: Option<[OwnedFd; WELCOME_FDS]> = received.fds.try_into().ok();
            let pending = slot.take()?;
            let [table, arena, peer_bell] =
                fds.filter(|_| packet == Some(Packet::Welcome) && !received.cut)?;
            let parts = Parts {
                segment: pending.segment,
                side: Side::Opener,
                own: pending.own,
                peer: PeerSpace::adopt(&table, arena).ok()?,
                peer_bell,
                socket: pending.socket,
                peer_pid: pending.peer_pid,
            };
            Link::new(parts, &epd.holder).ok()
        });
        slot.take();
        drop(slot);
        let Some(link) = link else {
            self.give_up(epd);
            return;
        };
        epd.set_link(link);
        if epd.holder.asynchronous() == Async::Running {
            epd.holder.set_asynchronous(Async::Done);
        }
        epd.holder.enter(State::Connected);
        descriptor::show_space(&epd.bell);
        if let Some(link) = epd.link().filter(|_| epd.holder.asynchronous() == Async::None) {
            let _receiving = epd.holder.receiving.lock();
            super::messages::show_data(epd, link);
        }
    }

    /// Accepts a request; the peer, and the number of the new endpoint's descriptor.
    pub(crate) fn accept(self: &Arc<Self>, epd: &Epd, fd: RawFd, wait: bool) -> Result<(PortId, RawFd)> {
        loop {
            let event = epd.holder.event();
            epd.state().may_accept()?;
            if let Some(socket) = self.next_request(epd, fd)? {
                match self.admit(epd, socket) {
                    Ok(Some(accepted)) => return Ok(accepted),
                    // Gone, or not to be let in: it never was there.
                    Ok(None) if wait => continue,
                    Ok(None) => return Err(Failure::Again),
                    Err(failure) => return Err(failure),
                }
            }
            if !wait {
                return Err(Failure::Again);
            }
            epd.verify(fd)?;
            epd.holder.wait(event, None)?;
            if epd.holder.state() == State::Closing {
                return Err(Failure::Interrupted);
            }
        }
    }

    /// The next request in the queue, and the descriptor made to show whether there are more.
    fn next_request(&self, epd: &Epd, fd: RawFd) -> Result<Option<OwnedFd>> {
        let _held = epd.holder.control.lock();
        let listener = take(&epd.port_socket);
        let Some(listener) = listener.as_ref() else {
            return Ok(None);
        };
        let socket = loop {
            match unix::accept(listener) {
                Ok(socket) => break Some(socket),
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // EINVAL: it does not listen, since its backlog leaves no room.
                Err(Errno::AGAIN | Errno::INVAL) => break None,
                Err(errno) => return Err(errno.into()),
            }
        };
        if !descriptor::readable(listener) && epd.verify(fd).is_ok() {
            descriptor::hide_data(fd);
            // One may have come in between, and its byte have gone with the others.
            if descriptor::readable(listener) {
                descriptor::show_data(&epd.bell);
            }
        }
        Ok(socket)
    }

    /// Makes an endpoint of a request; `None`: the opener is gone or not to be let in.
    fn admit(self: &Arc<Self>, listener: &Epd, socket: OwnedFd) -> Result<Option<(PortId, RawFd)>> {
        let Ok(who) = unix::credentials(&socket) else {
            return Ok(None);
        };
        let Some(from) = unix::peer_name(&socket).and_then(|name| self.names.parse_source(&name)) else {
            return Ok(None);
        };
        let admin = (1..ADMIN_PORT_END).contains(&from.port);
        if !self.admits(who.uid) || (admin && who.uid != 0 && who.uid != self.uid) {
            let _ = unix::send(&socket, &Packet::Refuse.encode(), &[]);
            return Ok(None);
        }
        let Some(fds) = hear_hello(&socket) else {
            return Ok(None);
        };
        let [segment, table, arena, peer_bell] = fds;
        let (Ok(segment), Ok(peer)) = (adopt_segment(&segment), PeerSpace::adopt(&table, arena)) else {
            let _ = unix::send(&socket, &Packet::Refuse.encode(), &[]);
            return Ok(None);
        };
        let (epd, a) = self.new_epd(false)?;
        let own = OwnSpace::new()?;
        let [table, arena] = own.descriptors();
        let welcome = Packet::Welcome.encode();
        match unix::send(&socket, &welcome, &[table, arena, epd.bell.as_fd()]) {
            Ok(()) => {}
            Err(Errno::NOMEM | Errno::NOBUFS | Errno::TOOMANYREFS) => return Err(Failure::NoMemory),
            Err(_) => return Ok(None),
        }
        let parts = Parts {
            segment,
            side: Side::Acceptor,
            own,
            peer,
            peer_bell,
            socket,
            peer_pid: who.pid,
        };
        epd.set_link(Link::new(parts, &epd.holder)?);
        epd.holder.set_port(listener.holder.port());
        epd.holder.set_peer(from);
        epd.holder.enter(State::Connected);
        let epd = Arc::new(epd);
        if let Some(link) = epd.link() {
            let _receiving = epd.holder.receiving.lock();
            super::messages::show_data(&epd, link);
            self.watch(&epd, Kind::Link, link.socket())?;
        }
        let fd = self.hand_out(epd, a)?;
        Ok(Some((from, fd)))
    }
}

/// The first word of an opener, and what rides along.
fn hear_hello(socket: &OwnedFd) -> Option<[OwnedFd; HELLO_FDS]> {
    let deadline = now_ns() + HELLO_MS.unsigned_abs() as u64 * 1_000_000;
    loop {
        let mut buffer = [0; PACKET + 1];
        match unix::receive(socket, &mut buffer) {
            Ok(received) => {
                let packet = buffer.get(..received.bytes).and_then(Packet::decode);
                let fds = received.fds.try_into().ok();
                return fds.filter(|_| packet == Some(Packet::Hello) && !received.cut);
            }
            Err(Errno::AGAIN) if now_ns() < deadline => descriptor::wait_readable(socket, HELLO_MS),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
