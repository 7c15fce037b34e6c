// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Ports and peers of an endpoint: bind, listen, connect, accept.
//!
//! Not about the established connection (`link`). The opener makes the memory and sends it with its
//! first packet. It is connected when the acceptor has answered; the service thread notices the
//! answer. Source: `scif_bind`, `scif_listen`, `scif_connect`, `scif_accept`.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use scif::logging::warn_about_call;
use scif::segment::Side;
use scif::sys::time::now_ns;
use scif::sys::{descriptor, family, process, unix};
use scif::whereabouts::warn_of_user;
use scif::{PortId, dynamic_ports};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::{Link, Parts, Pending, adopt_segment, new_segment};
use crate::lock::take;
use crate::registry::{Inner, Kind};
use crate::sharer::Async;
use crate::state::State;
use crate::window::space::{OwnSpace, PeerSpace};
use crate::wire::{HELLO_FDS, PACKET, Packet, WELCOME_FDS};
use crate::{mainline, messages, nodes, sharing};

/// First port that needs no privilege. Lower ports need CAP_SYS_ADMIN.
const ADMIN_PORT_END: u16 = 1024;
/// Milliseconds that a process of a fork group waits for the hello of an opener that has connected.
/// A silent opener delays `scif_accept` of such a process by that much.
const HELLO_MS: i32 = 3000;
/// Milliseconds that an accept without waiting gives one opener for its hello, which follows its
/// connect. Without them `scif_accept` may return EAGAIN after `scif_poll` has shown a request.
const HELLO_PAUSE_MS: i32 = 5;

/// Number of nodes that exist even without a process: the maximum of mainline's driver. A connect
/// to one of them fails with ECONNREFUSED instead of ENODEV, so a program can retry until its peer
/// runs.
const NODES: u16 = 129;
/// Number of times that the list of names is read before a node counts as absent (ENODEV).
const LISTS: u32 = 3;

fn id(inner: &Inner, port: u16) -> PortId {
    PortId::new(inner.config.node, port)
}

fn admits(inner: &Inner, uid: u32) -> bool {
    uid == inner.uid || inner.config.allow_uids.contains(&uid)
}

/// Makes a socket that holds `port`. EADDRINUSE: the port is taken.
fn port_socket(inner: &Inner, port: u16) -> Result<OwnedFd> {
    let socket = unix::socket()?;
    unix::bind(&socket, &inner.names.listener(id(inner, port))?)?;
    Ok(socket)
}

/// Gives the endpoint a port. The caller holds the control lock and has checked the state.
fn give_port(inner: &Inner, epd: &Epd, port: u16) -> Result<u16> {
    let (socket, port) = if port == 0 {
        first_free(dynamic_ports(), |port| port_socket(inner, port))?
    } else {
        let socket = port_socket(inner, port).map_err(|failure| match failure {
            Failure::Os(Errno::ADDRINUSE) => Failure::Invalid,
            other => other,
        })?;
        (socket, port)
    };
    *take(&epd.port_socket) = Some(socket);
    epd.sharer.set_port(port);
    epd.leave();
    epd.sharer.enter(State::Bound);
    Ok(port)
}

/// Binds to `port`, or to a dynamic one if it is 0. Returns the port.
pub(crate) fn bind(inner: &Inner, epd: &Epd, port: u16) -> Result<u16> {
    if (1..ADMIN_PORT_END).contains(&port) && !process::may_administrate() {
        return Err(Failure::NoAccess);
    }
    let _held = epd.sharer.control.lock();
    epd.state().may_bind()?;
    give_port(inner, epd, port)
}

/// Listens with a queue of `backlog` requests.
pub(crate) fn listen(inner: &Inner, epd: &Arc<Epd>, backlog: i32) -> Result<()> {
    sharing::inherit(inner, epd);
    let _held = epd.sharer.control.lock();
    epd.state().may_listen()?;
    // Without a queue every request is refused, as by a socket that does not listen.
    if backlog > 0 {
        let socket = take(&epd.port_socket);
        let socket = socket.as_ref().ok_or(Failure::Invalid)?;
        // The kernel queues one more than its argument.
        unix::listen(socket, backlog - 1)?;
        inner.watch(epd, Kind::Listener, socket)?;
    }
    sharing::notify_sharers(inner, epd);
    epd.sharer.enter(State::Listening);
    Ok(())
}

/// Returns whether a node exists; a card exists whether or not a program runs on it. A lost
/// node is checked elsewhere.
fn exists(inner: &Inner, node: u16) -> bool {
    let trusted = |uid| uid == inner.uid || uid == 0;
    let listed = || nodes::online(&inner.domain, trusted).is_ok_and(|nodes| nodes.contains(&node));
    // One reading may omit a bound name while other names come and go.
    node < NODES || node == inner.config.node || (0..LISTS).any(|_| listed())
}

/// Connects to `dst` and returns the local port.
pub(crate) fn connect(inner: &Arc<Inner>, epd: &Arc<Epd>, fd: RawFd, dst: PortId) -> Result<u16> {
    let nonblocking = descriptor::is_nonblocking(fd)?;
    sharing::inherit(inner, epd);
    if inner.config.device_traps
        && matches!(epd.sharer.asynchronous(), Async::Done | Async::Refused)
    {
        mainline::flush_connects(inner);
    }
    let held = epd.sharer.control.lock();
    match epd.sharer.asynchronous() {
        Async::None => {}
        Async::Running => return Err(Failure::InProgress),
        Async::Done => {
            epd.sharer.set_asynchronous(Async::None);
            settle_after_collect(epd);
            return Ok(epd.sharer.port());
        }
        Async::Refused => {
            epd.sharer.set_asynchronous(Async::None);
            descriptor::hide_space(fd);
            epd.sharer.enter(State::Bound);
            return Err(refused(inner, epd));
        }
    }
    if inner.is_lost(dst.node) {
        return Err(Failure::NoNode);
    }
    let state = epd.state();
    if let Err(failure) = state.may_connect() {
        return Err(if exists(inner, dst.node) { failure } else { Failure::NoNode });
    }
    if state == State::Unbound {
        if !exists(inner, dst.node) {
            return Err(Failure::NoNode);
        }
        give_port(inner, epd, 0)?;
    }
    // Published before the check: a process that loses the node now finds this endpoint and
    // waits for the control lock.
    epd.sharer.set_peer(dst);
    if inner.is_lost(dst.node) {
        return Err(Failure::NoNode);
    }
    if nonblocking && inner.config.device_traps {
        mainline::connect_later(inner, epd, dst, connect_now)?;
        epd.sharer.set_deadline(u64::MAX);
        epd.sharer.set_asynchronous(Async::Running);
        epd.sharer.enter(State::Connecting);
        return Err(Failure::InProgress);
    }
    let deadline = begin_connect(inner, epd, dst)?;
    if nonblocking {
        epd.sharer.set_asynchronous(Async::Running);
        inner.limit_connect(epd);
    }
    // Sharers wait for the control lock. They are notified now, however this process ends.
    sharing::notify_sharers(inner, epd);
    epd.sharer.enter(State::Connecting);
    drop(held);
    if nonblocking { Err(Failure::InProgress) } else { wait_accepted(inner, epd, deadline) }
}

/// Sends the request and watches for its answer. Returns the deadline. The caller holds the
/// control lock.
pub(crate) fn begin_connect(inner: &Inner, epd: &Arc<Epd>, dst: PortId) -> Result<u64> {
    let pending = request(inner, epd, dst)?;
    // An immediate answer waits for the control lock.
    inner.watch(epd, Kind::Link, &pending.socket)?;
    *take(&epd.pending) = Some(pending);
    epd.leave();
    let deadline = connect_deadline(inner);
    epd.sharer.set_deadline(deadline);
    Ok(deadline)
}

/// Makes the connect of an endpoint, unless the endpoint was closed.
fn connect_now(inner: &Arc<Inner>, epd: &Arc<Epd>, dst: PortId) {
    let _held = epd.sharer.control.lock();
    if epd.sharer.asynchronous() != Async::Running || epd.sharer.state() != State::Connecting {
        return;
    }
    if let Err(failure) = begin_connect(inner, epd, dst) {
        log::debug!(
            "connect of port {} to {dst}: {failure}; the next scif_connect returns the error",
            epd.sharer.port()
        );
        give_up(inner, epd);
    } else {
        inner.limit_connect(epd);
    }
}

/// Shows bytes that arrived before the program collected the result.
fn settle_after_collect(epd: &Epd) {
    if let Some(link) = epd.link() {
        // A thread inside a receiving call updates the descriptor when it leaves.
        if let Some(_receiving) = epd.sharer.receiving.try_lock() {
            messages::show_data(epd, link);
        }
    }
}

/// Sends the request.
fn request(inner: &Inner, epd: &Epd, dst: PortId) -> Result<Pending> {
    let socket = unix::socket()?;
    inner.names.bind_source(&socket, id(inner, epd.sharer.port()), &mut take(&inner.sources))?;
    match unix::connect(&socket, &inner.names.listener(dst)?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::NOENT) => {
            return Err(if exists(inner, dst.node) { Failure::Refused } else { Failure::NoNode });
        }
        Err(errno) => return Err(errno.into()),
    }
    greet(inner, epd, socket, dst)
}

/// Sends the hello over a connected socket.
fn greet(inner: &Inner, epd: &Epd, socket: OwnedFd, dst: PortId) -> Result<Pending> {
    let peer = unix::credentials(&socket)?;
    if !admits(inner, peer.uid) {
        warn_about_call!(
            "connect to {dst} denied (ECONNREFUSED): the listener runs as user {uid}. Add \
             {uid} to SCIF_ALLOW_UIDS, or run both processes as one user",
            uid = peer.uid
        );
        return Err(Failure::Refused);
    }
    let (segment, segment_fd) = new_segment()?;
    let own = match epd.fd_handoff() {
        Some(fd_handoff) => OwnSpace::of(fd_handoff.book())?,
        None => OwnSpace::new()?,
    };
    let (table, arena) = own.show()?;
    match unix::send(
        &socket,
        &Packet::Hello.encode(),
        &[segment_fd.as_fd(), table, arena.as_fd(), epd.bell.as_fd()],
    ) {
        Ok(()) => {}
        // The listener closed in between.
        Err(Errno::PIPE | Errno::CONNRESET) => return Err(Failure::Refused),
        Err(Errno::TOOMANYREFS | Errno::AGAIN) => return Err(Failure::NoMemory),
        Err(errno) => return Err(errno.into()),
    }
    Ok(Pending { segment, segment_fd, own, socket, peer_pid: peer.pid, number: 0 })
}

/// Returns the deadline of a connect that starts now.
fn connect_deadline(inner: &Inner) -> u64 {
    now_ns().saturating_add(inner.config.connect_timeout_ms.saturating_mul(1_000_000))
}

/// Waits for the answer to the request with this `deadline`.
fn wait_accepted(inner: &Inner, epd: &Epd, deadline: u64) -> Result<u16> {
    loop {
        let event = epd.sharer.event();
        match epd.sharer.state() {
            State::Connected | State::Disconnected => return Ok(epd.sharer.port()),
            State::Bound => return Err(refused(inner, epd)),
            State::Closing => return Err(Failure::Interrupted),
            // Another sharer gave the request up and made a new one.
            State::Connecting if epd.sharer.deadline() != deadline => {
                return Err(refused(inner, epd));
            }
            State::Unbound | State::Listening | State::Connecting => {}
        }
        let left = deadline.saturating_sub(now_ns());
        if left == 0 {
            let _held = epd.sharer.control.lock();
            if epd.sharer.state() == State::Connecting && epd.sharer.deadline() == deadline {
                give_up(inner, epd);
            }
            continue;
        }
        // Not interruptible, as in the driver.
        let _ = epd.sharer.wait(event, Some(left));
    }
}

/// Returns the reason why a request was not accepted.
fn refused(inner: &Inner, epd: &Epd) -> Failure {
    if inner.is_lost(epd.sharer.peer().node) { Failure::NoNode } else { Failure::Refused }
}

/// Ends a connect that was not accepted. The caller holds the control lock.
pub(crate) fn give_up(inner: &Inner, epd: &Epd) {
    if let Some(pending) = take(&epd.pending).as_ref() {
        mainline::leave_request(inner, &pending.socket);
    }
    if let Some(pending) = take(&epd.pending).as_ref().filter(|_| epd.fd_handoff().is_some()) {
        // The copies of other sharers must not be accepted any more.
        descriptor::shut(&pending.socket);
    }
    sharing::drop_pending(inner, epd);
    epd.leave();
    if epd.sharer.asynchronous() == Async::Running {
        inner.unlimit_connect(epd);
        epd.sharer.set_asynchronous(Async::Refused);
        descriptor::show_space(&epd.bell);
        epd.sharer.happened();
    } else {
        epd.sharer.enter(State::Bound);
    }
}

/// Gives up a connect if its deadline has passed. Called by the service thread.
pub(crate) fn connect_is_due(inner: &Inner, epd: &Arc<Epd>) {
    let _held = epd.sharer.control.lock();
    let due = || {
        epd.sharer.asynchronous() != Async::Refused
            && epd.sharer.state() == State::Connecting
            && epd.sharer.deadline() <= now_ns()
    };
    if !due() {
        return;
    }
    // Another sharer may have made a request, or died with its answer.
    sharing::inherit_or_warn(inner, epd);
    if due() {
        give_up(inner, epd);
    }
}

/// Handles an event of a request's socket. Called by the service thread.
pub(crate) fn answered(inner: &Inner, epd: &Arc<Epd>) {
    let _held = epd.sharer.control.lock();
    if epd.link().is_some() {
        return;
    }
    let current = take(&epd.pending).as_ref().is_some_and(|pending| epd.is_current(pending));
    if epd.sharer.state() != State::Connecting || !current {
        // Another sharer has handled the answer, or has given up.
        sharing::drop_pending(inner, epd);
        sharing::inherit_or_warn(inner, epd);
        return;
    }
    let mut slot = take(&epd.pending);
    let Some(pending) = slot.as_ref() else { return };
    let mut buffer = [0; PACKET + 1];
    let received = match read_answer(&pending.socket, &mut buffer, epd.fd_handoff().is_some()) {
        Err(Errno::AGAIN | Errno::INTR) => return,
        other => other.ok(),
    };
    let welcome = received.and_then(|received| {
        let packet = buffer.get(..received.bytes).and_then(Packet::decode);
        let fds: Option<[OwnedFd; WELCOME_FDS]> = received.fds.try_into().ok();
        let [table, arena, peer_bell] =
            fds.filter(|_| packet == Some(Packet::Welcome) && !received.cut)?;
        if !descriptor::is_bell(&peer_bell) {
            return None;
        }
        let peer = PeerSpace::adopt(&table, arena).ok()?;
        Some((table, peer, peer_bell))
    });
    let Some(((table, peer, peer_bell), pending)) =
        welcome.and_then(|welcome| Some((welcome, slot.take()?)))
    else {
        drop(slot);
        give_up(inner, epd);
        return;
    };
    drop(slot);
    let parts = Parts {
        segment: pending.segment,
        side: Side::Opener,
        own: pending.own,
        peer,
        peer_bell,
        socket: pending.socket,
        peer_pid: pending.peer_pid,
    };
    let Ok(link) = Link::new(parts, &epd.sharer) else {
        give_up(inner, epd);
        return;
    };
    link.begins();
    if epd.fd_handoff().is_some() {
        epd.leave_link(&link, &pending.segment_fd, &table);
        // The answer was only peeked so far, so that another sharer can take it over if this
        // one dies.
        let _ = unix::skip(link.socket());
    }
    epd.set_link(link);
    sharing::notify_sharers(inner, epd);
    sharing::complete_connect(inner, epd);
}

/// Accepts a request. Returns the peer and the number of the new endpoint's descriptor.
pub(crate) fn accept(
    inner: &Arc<Inner>,
    epd: &Arc<Epd>,
    fd: RawFd,
    wait: bool,
) -> Result<(PortId, RawFd)> {
    sharing::inherit(inner, epd);
    let mut pauses = !wait;
    loop {
        let event = epd.sharer.event();
        epd.state().may_accept()?;
        if let Some(socket) = next_speaker(inner, epd, fd, &mut pauses)? {
            match admit(inner, epd, socket) {
                Ok(Some(accepted)) => return Ok(accepted),
                // The opener has left or was rejected: the request counts as never made.
                Ok(None) if wait => continue,
                Ok(None) => return Err(Failure::Again),
                Err(failure) => return Err(failure),
            }
        }
        if !wait {
            return Err(Failure::Again);
        }
        epd.verify(fd)?;
        epd.sharer.wait(event, None)?;
        if epd.sharer.state() == State::Closing {
            return Err(Failure::Interrupted);
        }
    }
}

/// Returns the next request whose hello has arrived. Others wait among the silent callers, after
/// one pause for the first of them.
fn next_speaker(
    inner: &Inner,
    epd: &Arc<Epd>,
    fd: RawFd,
    pauses: &mut bool,
) -> Result<Option<OwnedFd>> {
    while let Some(socket) = next_request(inner, epd, fd)? {
        // In a fork group another process may be the one that accepts next, without this request.
        if descriptor::readable(&socket) || family::has_fork_group() {
            return Ok(Some(socket));
        }
        if std::mem::take(pauses) {
            descriptor::wait_readable(&socket, HELLO_PAUSE_MS);
            if descriptor::readable(&socket) {
                return Ok(Some(socket));
            }
        }
        if caller_of(inner, epd, &socket).is_some() {
            epd.silent_callers.keep(socket, |socket| inner.watch(epd, Kind::Listener, socket))?;
        }
    }
    Ok(None)
}

/// Returns the next silent caller that has spoken, else the next request of the queue. Makes the
/// descriptor show whether more wait.
fn next_request(inner: &Inner, epd: &Epd, fd: RawFd) -> Result<Option<OwnedFd>> {
    let _held = epd.sharer.control.lock();
    let socket = match epd.silent_callers.next() {
        Some(caller) => {
            inner.unwatch(&caller);
            Some(caller)
        }
        None => match take(&epd.port_socket).as_ref() {
            Some(listener) => accept_next(listener)?,
            None => return Ok(None),
        },
    };
    if !epd.has_request() && epd.verify(fd).is_ok() {
        descriptor::hide_data(fd);
        // A request may have arrived in between, with its byte already removed.
        if epd.has_request() {
            descriptor::show_data(&epd.bell);
        }
    }
    Ok(socket)
}

/// Takes the next request out of a listening socket.
fn accept_next(listener: &OwnedFd) -> Result<Option<OwnedFd>> {
    loop {
        match unix::accept(listener) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            // EINVAL: the socket does not listen, because the backlog is 0.
            Err(Errno::AGAIN | Errno::INVAL) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the process and the port of an opener, if it may connect. Others are refused.
fn caller_of(
    inner: &Inner,
    listener: &Epd,
    socket: &OwnedFd,
) -> Option<(unix::Credentials, PortId)> {
    let caller = unix::credentials(socket).ok()?;
    let from = unix::peer_name(socket).and_then(|name| inner.names.parse_source(&name))?;
    let admin = (1..ADMIN_PORT_END).contains(&from.port);
    let trusted =
        admits(inner, caller.uid) && !(admin && caller.uid != 0 && caller.uid != inner.uid);
    if !admits(inner, caller.uid) {
        warn_of_user(caller.uid, id(inner, listener.sharer.port()));
    }
    if !trusted || inner.is_lost(from.node) {
        let _ = unix::send(socket, &Packet::Refuse.encode(), &[]);
        return None;
    }
    Some((caller, from))
}

/// Makes an endpoint of a request. `None`: the opener has left or was rejected.
fn admit(inner: &Arc<Inner>, listener: &Epd, socket: OwnedFd) -> Result<Option<(PortId, RawFd)>> {
    let Some((caller, from)) = caller_of(inner, listener, &socket) else {
        return Ok(None);
    };
    let Some(fds) = read_hello(&socket)? else {
        return Ok(None);
    };
    mainline::check_request(inner, listener, &socket, from)?;
    let [segment, table, arena, peer_bell] = fds;
    let is_bell = descriptor::is_bell(&peer_bell);
    let (true, Ok(segment), Ok(peer)) =
        (is_bell, adopt_segment(&segment), PeerSpace::adopt(&table, arena))
    else {
        let _ = unix::send(&socket, &Packet::Refuse.encode(), &[]);
        return Ok(None);
    };
    let (epd, a) = inner.new_epd(false)?;
    let own = OwnSpace::new()?;
    let (table, arena) = own.show()?;
    let welcome = Packet::Welcome.encode();
    match unix::send(&socket, &welcome, &[table, arena.as_fd(), epd.bell.as_fd()]) {
        Ok(()) => {}
        Err(Errno::NOMEM | Errno::NOBUFS | Errno::TOOMANYREFS) => {
            return Err(Failure::NoMemory);
        }
        Err(_) => return Ok(None),
    }
    let parts =
        Parts { segment, side: Side::Acceptor, own, peer, peer_bell, socket, peer_pid: caller.pid };
    let link = Link::new(parts, &epd.sharer)?;
    link.begins();
    epd.set_link(link);
    epd.sharer.set_port(listener.sharer.port());
    epd.sharer.set_peer(from);
    epd.sharer.enter(State::Connected);
    let epd = Arc::new(epd);
    if let Some(link) = epd.link() {
        let _receiving = epd.sharer.receiving.lock();
        messages::show_data(&epd, link);
        inner.watch(&epd, Kind::Link, link.socket())?;
    }
    let fd = inner.hand_out(epd, a)?;
    Ok(Some((from, fd)))
}

/// Reads the answer to a request. With `stays` the answer stays in the socket.
fn read_answer(
    socket: &OwnedFd,
    buffer: &mut [u8],
    stays: bool,
) -> std::result::Result<unix::Received, Errno> {
    if stays { unix::peek(socket, buffer) } else { unix::receive(socket, buffer) }
}

/// Returns the first port that `take` accepts.
fn first_free<T>(
    mut ports: impl Iterator<Item = u16>,
    mut take: impl FnMut(u16) -> Result<T>,
) -> Result<(T, u16)> {
    let taken = ports.find_map(|port| match take(port) {
        Ok(taken) => Some(Ok((taken, port))),
        Err(Failure::Os(Errno::ADDRINUSE)) => None,
        Err(other) => Some(Err(other)),
    });
    taken.unwrap_or(Err(Failure::NoPorts))
}

/// Reads the hello of an opener and its descriptors. `None`: the opener has left, or the packet is
/// invalid.
///
/// # Errors
/// EMFILE: this process has no free numbers for the descriptors.
fn read_hello(socket: &OwnedFd) -> Result<Option<[OwnedFd; HELLO_FDS]>> {
    let deadline = now_ns() + HELLO_MS.unsigned_abs() as u64 * 1_000_000;
    loop {
        let mut buffer = [0; PACKET + 1];
        match unix::receive(socket, &mut buffer) {
            Ok(received) => {
                let packet = buffer.get(..received.bytes).and_then(Packet::decode);
                if received.cut && process::descriptors_short(socket, HELLO_FDS as u64) {
                    return Err(Failure::Os(Errno::MFILE));
                }
                let fds = received.fds.try_into().ok();
                return Ok(fds.filter(|_| packet == Some(Packet::Hello) && !received.cut));
            }
            Err(Errno::AGAIN) if now_ns() < deadline => descriptor::wait_readable(socket, HELLO_MS),
            Err(Errno::INTR) => {}
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoints, endpoints};

    /// Makes a listener, and a socket that has connected to it and said nothing.
    fn silent_caller(scif: &Endpoints) -> (RawFd, PortId, OwnedFd) {
        let listener = scif.open().unwrap();
        let dst = PortId::new(0, scif.bind(listener, 0).unwrap());
        scif.listen(listener, 4).unwrap();
        let (inner, socket) = (&scif.0, unix::socket().unwrap());
        let from = PortId::new(0, 4242);
        inner.names.bind_source(&socket, from, &mut take(&inner.sources)).unwrap();
        unix::connect(&socket, &inner.names.listener(dst).unwrap()).unwrap();
        (listener, dst, socket)
    }

    fn shows_request(scif: &Endpoints, fd: RawFd, limit_ms: i32) -> bool {
        let mut entries = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        scif.poll(&mut entries, limit_ms) == Ok(1)
    }

    #[test]
    fn silent_caller_delays_no_accept() {
        const LIMIT_MS: i32 = 60_000;
        let scif = endpoints("silent-caller", 0);
        let (listener, dst, silent) = silent_caller(&scif);
        assert!(shows_request(&scif, listener, LIMIT_MS));
        let begun = now_ns();
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
        assert!(now_ns() - begun < 1_000_000_000, "it waited for the silent caller");
        assert!(!shows_request(&scif, listener, 0) && !descriptor::shows_data(listener));
        let opener = scif.open().unwrap();
        let honest = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| scif.accept(listener, true).unwrap());
            let port = scif.connect(opener, dst).unwrap();
            (port, accepted.join().unwrap().0.port)
        });
        assert_eq!(honest.0, honest.1);
        assert!(now_ns() - begun < 2_000_000_000, "the honest caller waited for the silent one");
        let caller = scif.0.get(scif.open().unwrap()).unwrap();
        let _pending = greet(&scif.0, &caller, silent, dst).unwrap();
        assert!(shows_request(&scif, listener, LIMIT_MS), "it has spoken");
        assert_eq!(scif.accept(listener, false).unwrap().0.port, 4242);
        assert!(!shows_request(&scif, listener, 0));
    }

    #[test]
    fn blocked_accept_serves_late_callers_and_drops_ended_ones() {
        let scif = endpoints("late-caller", 0);
        let (listener, dst, silent) = silent_caller(&scif);
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| scif.accept(listener, true).unwrap().0.port);
            let epd = scif.0.get(listener).unwrap();
            while take(&epd.port_socket).as_ref().is_some_and(descriptor::readable) {
                std::thread::yield_now();
            }
            let caller = scif.0.get(scif.open().unwrap()).unwrap();
            let _pending = greet(&scif.0, &caller, silent, dst).unwrap();
            assert_eq!(accepted.join().unwrap(), 4242);
        });
        let (listener, _, silent) = silent_caller(&scif);
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
        drop(silent);
        assert!(shows_request(&scif, listener, 60_000));
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
        assert!(!shows_request(&scif, listener, 0));
        let (listener, _, silent) = silent_caller(&scif);
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
        scif.close(listener).unwrap();
        assert!(descriptor::readable(&silent), "refused by the close");
    }

    #[test]
    fn ports_are_tried_until_one_is_free_or_none_is_left() {
        let busy = |port: u16| match port {
            1089..=1100 => Err::<(), _>(Failure::Os(Errno::ADDRINUSE)),
            _ => Ok(()),
        };
        assert_eq!(first_free(1089..=u16::MAX, busy), Ok(((), 1101)));
        assert_eq!(first_free(1089..=1100, busy), Err(Failure::NoPorts));
        let broken = |_| Err::<(), _>(Failure::NoMemory);
        assert_eq!(first_free(1089..=1100, broken), Err(Failure::NoMemory));
    }
}
