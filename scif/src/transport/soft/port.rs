// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A listening socket, the sockets of its connections, and the epoll set that covers all of them.
//!
//! Not about an established connection (`link`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::handshake;
use super::link::{SoftLink, refuse};
use super::names::SocketFile;
use super::node::Soft;
use super::whereabouts::{warn_of_build, warn_of_user};
use super::wire::{self, BadPacket, Greeting, PACKET_MAX, Packet};
use crate::addr::{PortId, dynamic_ports};
use crate::error::{Error, Reason, Refusal, Result};
use crate::export::Writers;
use crate::liveness::ProcessProof;
use crate::segment::{SEGMENT_BYTES, Side, write_header};
use crate::slab::ConnId;
use crate::sys::epoll::Epoll;
use crate::sys::fork::PrivateFd;
use crate::sys::logging::warn_about_peer;
use crate::sys::process::{self, ShownPid};
use crate::sys::time::now_ns;
use crate::sys::unix::{self, Credentials};
use crate::transport::{CloseKind, Opened, Port, Shown, conn_of, token};

/// Maximum number of requests taken from the listener per call. A larger number makes a single
/// progress call longer.
const REQUESTS_PER_CALL: usize = 64;
/// Maximum number of connected sockets without a hello; beyond it the oldest is refused.
const PENDING_HELLO_MAX: usize = 256;
/// Time in nanoseconds for which a connected socket may stay without a hello before it is refused.
const PENDING_HELLO_NS: u64 = 10_000_000_000;
/// Requested length of the kernel's queue of connecting sockets. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Time in nanoseconds for which requests wait before the next attempt, when no descriptor is free.
const PARKED_NS: u64 = 50_000_000;
/// Number of free descriptors required before packets are received, since received descriptors are
/// lost without a free number.
const SPARE_FDS: u64 = 8;

/// Kinds of epoll token.
const CONN: u64 = 0;
const LISTENER: u64 = 1;
const PENDING_HELLO: u64 = 2;

const LISTENER_TOKEN: u64 = LISTENER << 62;

/// A connected socket whose peer has not sent a hello.
#[derive(Debug)]
struct PendingHello {
    serial: u32,
    socket: PrivateFd,
    from: PortId,
    credentials: Credentials,
    since_ns: u64,
}

/// A connected socket with a hello that waits to be accepted.
#[derive(Debug)]
struct PendingAccept {
    socket: PrivateFd,
    from: PortId,
    credentials: Credentials,
    hello: Greeting,
    fds: Vec<OwnedFd>,
}

#[derive(Debug)]
pub(super) struct SoftPort {
    soft: Arc<Soft>,
    id: PortId,
    listener: PrivateFd,
    file: Option<SocketFile>,
    epoll: Arc<Epoll>,
    shown: Arc<Shown>,
    /// Sockets in the order of their arrival.
    pending_hellos: VecDeque<PendingHello>,
    pending_accepts: VecDeque<PendingAccept>,
    /// Number of requests that may be taken from the listener before the next poll.
    requests_left: usize,
    source_serial: u32,
    hello_serial: u32,
    tokens: Vec<u64>,
    /// Time at which the listener was removed from the epoll set. It would keep sleepers awake with
    /// requests that cannot be accepted.
    parked_ns: Option<u64>,
    /// State of a lack of descriptors that has not ended.
    short: Option<Short>,
}

/// A lack of descriptors at a listener: its start, and whether connecting peers are refused.
#[derive(Clone, Copy, Debug)]
struct Short {
    since_ns: u64,
    refusing: bool,
}

impl SoftPort {
    pub(super) fn bind(soft: Arc<Soft>, port: u16, shown: Shown) -> Result<SoftPort> {
        let (listener, file, id) = match port {
            0 => bind_dynamic(&soft)?,
            _ => {
                let id = PortId::new(soft.node, port);
                let (listener, file) = bind_port(&soft, id)?;
                (listener, file, id)
            }
        };
        let epoll = soft.with_descriptor(Epoll::new).map_err(Error::os("epoll_create"))?;
        epoll.add(&listener, LISTENER_TOKEN).map_err(Error::os("epoll_ctl"))?;
        Ok(SoftPort {
            soft,
            id,
            listener,
            file,
            epoll: Arc::new(epoll),
            shown: Arc::new(shown),
            pending_hellos: VecDeque::new(),
            pending_accepts: VecDeque::new(),
            requests_left: 0,
            source_serial: 0,
            hello_serial: 0,
            tokens: Vec::new(),
            parked_ns: None,
            short: None,
        })
    }

    /// Takes waiting requests until one has sent its hello. Not more at once, since each holds
    /// descriptors until it is accepted.
    fn take_requests(&mut self) {
        while self.pending_accepts.is_empty() && self.requests_left > 0 {
            self.requests_left -= 1;
            let socket = match self.soft.with_descriptor(|| unix::accept(&self.listener)) {
                Ok(socket) => PrivateFd::new(socket),
                // Closed before the accept.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.requests_left = 0;
                    break;
                }
                Err(errno) => {
                    log::debug!("accept at {}: {errno}", self.id);
                    self.park();
                    break;
                }
            };
            let Ok(credentials) = unix::credentials(&socket) else {
                continue;
            };
            if !self.soft.admits(credentials.uid) {
                warn_of_user(credentials.uid, self.id);
                refuse(&socket, Reason::Denied);
                continue;
            }
            let Some(from) =
                unix::peer_name(&socket).and_then(|name| self.soft.names.parse_source(&name))
            else {
                // Also a socket that only tests for our presence.
                log::debug!("a socket without a port of ours turned away at {}", self.id);
                continue;
            };
            self.hello_serial = self.hello_serial.wrapping_add(1);
            let pending = PendingHello {
                serial: self.hello_serial,
                socket,
                from,
                credentials,
                since_ns: now_ns(),
            };
            if let Some(pending) = self.receive_hello(pending) {
                self.pending_hellos.push_back(pending);
                if self.pending_hellos.len() > PENDING_HELLO_MAX {
                    self.drop_oldest_hello();
                }
            }
        }
    }

    /// Parks the listener after a lack of descriptors: retries later, and until then lets sleepers
    /// sleep. After a long lack, refuses waiting peers: they would otherwise wait without end or
    /// explanation.
    fn park(&mut self) {
        log::debug!("connections to {} have to wait for descriptors", self.id);
        self.requests_left = 0;
        self.epoll.remove(&self.listener);
        let now = now_ns();
        self.parked_ns = Some(now);
        let short = self.short.get_or_insert(Short { since_ns: now, refusing: false });
        let lasted_ns = now.saturating_sub(short.since_ns);
        if lasted_ns <= self.soft.refuse_after_ns {
            return;
        }
        if !std::mem::replace(&mut short.refusing, true) {
            warn_about_peer!(
                "{}: no free descriptor for connecting peers for {} s; they are refused until \
                 descriptors are closed. Limit of open files: {}. Raise it before the start \
                 (ulimit -Hn)",
                self.id,
                lasted_ns / 1_000_000_000,
                process::nofile()
            );
        }
        let reason = Reason::Refused(Refusal::Resources);
        self.refuse_heard(reason);
        for _ in 0..REQUESTS_PER_CALL {
            if !self.soft.spare.refuse_next(&self.listener, |peer| refuse(peer, reason)) {
                break;
            }
        }
    }

    /// Whether connecting peers without a descriptor are already refused.
    fn is_refusing(&self) -> bool {
        self.short.is_some_and(|short| short.refusing)
    }

    fn unpark(&mut self) {
        self.parked_ns = self.epoll.add(&self.listener, LISTENER_TOKEN).err().map(|_| now_ns());
        let serials: Vec<u32> = self.pending_hellos.iter().map(|pending| pending.serial).collect();
        for serial in serials {
            self.read_hello(serial);
        }
    }

    /// Takes the hello of a socket if it has arrived; otherwise returns the socket.
    fn receive_hello(&mut self, mut pending: PendingHello) -> Option<PendingHello> {
        self.make_room(&pending.socket);
        if process::descriptors_short(&pending.socket, SPARE_FDS) {
            pending.since_ns = now_ns();
            self.epoll.remove(&pending.socket);
            self.park();
            if self.is_refusing() {
                refuse(&pending.socket, Reason::Refused(Refusal::Resources));
                return None;
            }
            return Some(pending);
        }
        self.short = None;
        let mut buffer = [0u8; PACKET_MAX];
        let received = match unix::receive(&pending.socket, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => {
                // Adding a socket that is already in the set changes nothing.
                let id = ConnId { index: pending.serial, generation: 0 };
                let _ = self.epoll.add(&pending.socket, token(PENDING_HELLO, id));
                return Some(pending);
            }
            Err(_) => return None,
            Ok(received) if received.bytes == 0 => return None,
            Ok(received) => received,
        };
        self.epoll.remove(&pending.socket);
        let packet = buffer.get(..received.bytes).map(wire::decode);
        match packet {
            Some(Ok(Packet::Hello(hello)))
                if !received.cut && received.fds.len() == hello.fds() =>
            {
                let PendingHello { socket, from, credentials, .. } = pending;
                self.pending_accepts.push_back(PendingAccept {
                    socket,
                    from,
                    credentials,
                    hello,
                    fds: received.fds,
                });
            }
            Some(Ok(Packet::Hello(_)))
                if received.cut && process::descriptors_short(&pending.socket, SPARE_FDS) =>
            {
                refuse(&pending.socket, Reason::Refused(Refusal::Resources));
            }
            Some(Err(BadPacket::Version(build))) => {
                warn_of_build(pending.credentials.pid, build);
                refuse(&pending.socket, Reason::Refused(Refusal::Version));
            }
            _ => {
                log::debug!("invalid hello packet from {}; connection refused", pending.from);
                refuse(&pending.socket, Reason::Corrupt);
            }
        }
        None
    }

    /// Raises the limit of descriptors before descriptors are received. Descriptors without a free
    /// number are lost, and the packet then appears garbled.
    fn make_room(&self, recent: &impl AsFd) {
        if process::descriptors_short(recent, SPARE_FDS) {
            self.soft.raise_nofile();
        }
    }

    /// Refuses the peers whose sockets are already accepted.
    fn refuse_heard(&mut self, reason: Reason) {
        for pending in self.pending_hellos.drain(..) {
            refuse(&pending.socket, reason);
        }
        for pending in self.pending_accepts.drain(..) {
            refuse(&pending.socket, reason);
        }
    }

    /// Refuses the oldest peer that has not sent a hello.
    fn drop_oldest_hello(&mut self) {
        if let Some(pending) = self.pending_hellos.pop_front() {
            refuse(&pending.socket, Reason::Refused(Refusal::Resources));
        }
    }

    fn read_hello(&mut self, serial: u32) {
        let Some(at) = self.pending_hellos.iter().position(|pending| pending.serial == serial)
        else {
            return;
        };
        let Some(pending) = self.pending_hellos.remove(at) else {
            return;
        };
        if let Some(pending) = self.receive_hello(pending) {
            self.pending_hellos.insert(at, pending);
        }
    }

    fn admit(&mut self, pending: PendingAccept, id: ConnId) -> std::result::Result<Opened, Reason> {
        let PendingAccept { socket, from, credentials, hello, fds } = pending;
        let checked = || {
            let [segment, rest @ ..] = fds.as_slice() else {
                return Err(Reason::Corrupt);
            };
            let segment = handshake::map_segment(segment)?;
            if self.is_impostor(from, credentials)? {
                warn_about_peer!(
                    "{} of user {} connects to {} under the name of {from}, where another process \
                     listens; it is refused",
                    ShownPid(credentials.pid),
                    credentials.uid,
                    self.id
                );
                return Err(Reason::Denied);
            }
            let liveness = ProcessProof::of(credentials.pid);
            let remote = handshake::remote(&self.soft, &hello, rest, &liveness, credentials.uid)?;
            self.epoll
                .add(&socket, token(CONN, id))
                .map_err(|_| Reason::Refused(Refusal::Resources))?;
            Ok((segment, liveness, remote))
        };
        let (segment, liveness, remote) =
            checked().inspect_err(|&reason| refuse(&socket, reason))?;
        let welcome = handshake::greeting(&self.soft, &self.shown, true, id);
        let (epoll, soft, shown) =
            (Arc::clone(&self.epoll), Arc::clone(&self.soft), Arc::clone(&self.shown));
        let link = SoftLink::new(socket, epoll, soft, shown, credentials, Some(welcome));
        Ok(Opened {
            peer: from,
            side: Side::Acceptor,
            segment,
            windows: None,
            link: Box::new(link),
            liveness,
            remote: Some(remote),
        })
    }

    /// Whether a connecting peer of another user has the name of a port at which another process
    /// listens. Replies to that process would then reach the peer.
    ///
    /// Peers of this user are not checked: they may trace each other, and a check costs the named
    /// listener an accept.
    ///
    /// # Errors
    /// [`Refusal::Resources`]: the check is not possible now. A peer may have filled the queue of
    /// the listener whose name it uses.
    fn is_impostor(
        &self,
        from: PortId,
        credentials: Credentials,
    ) -> std::result::Result<bool, Reason> {
        if credentials.uid == self.soft.uid {
            return Ok(false);
        }
        match self.owner(from) {
            Ok(owner) => Ok(is_another(owner, credentials)),
            Err(
                errno @ (Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS),
            ) => {
                warn_about_peer!(
                    "connection of {} of user {} to {} refused: its name {from} could not be \
                     verified: connect(2) to the listener at {from}: {errno}. Check that the \
                     process at {from} runs and accepts; the peer tries again",
                    ShownPid(credentials.pid),
                    credentials.uid,
                    self.id
                );
                Err(Reason::Refused(Refusal::Resources))
            }
            Err(_) => Ok(false),
        }
    }

    /// Returns the process that listens at `port`.
    fn owner(&self, port: PortId) -> std::result::Result<Credentials, Errno> {
        let addr = self.soft.names.listener(port).map_err(|_| Errno::INVAL)?;
        // Without a name of its own, so that it is not taken for a peer.
        let socket = self.soft.with_descriptor(unix::socket)?;
        unix::connect(&socket, &addr)?;
        unix::credentials(&socket)
    }

    /// Returns a socket connected to `dst`, bound to a name that identifies this port.
    fn reach(&mut self, dst: PortId) -> Result<(OwnedFd, unix::Credentials)> {
        let addr = self.soft.names.listener(dst)?;
        let socket = self.soft.with_descriptor(unix::socket).map_err(Error::os("socket"))?;
        let file = self.soft.names.bind_source(&socket, self.id, &mut self.source_serial)?;
        let connected = loop {
            match unix::connect(&socket, &addr) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        if let Some(file) = file {
            file.remove();
        }
        connected.map_err(|errno| match errno {
            Errno::AGAIN => Error::Again,
            Errno::CONNREFUSED | Errno::NOENT => Error::Refused(dst),
            errno => Error::Os { call: "connect", errno },
        })?;
        let credentials = unix::credentials(&socket).map_err(Error::os("SO_PEERCRED"))?;
        if !self.soft.admits(credentials.uid) {
            return Err(Error::Denied { port: dst, uid: credentials.uid });
        }
        Ok((socket, credentials))
    }
}

impl Port for SoftPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        let (socket, credentials) = self.reach(dst)?;
        // For the descriptors of the answer.
        self.make_room(&socket);
        let segment = self.soft.shared_memory("scif:conn", SEGMENT_BYTES, Writers::Peers)?;
        write_header(&segment.map)?;
        let hello = handshake::greeting(&self.soft, &self.shown, false, id);
        let fds = handshake::descriptors(&self.shown, segment.fd.as_ref().map(AsFd::as_fd));
        match unix::send(&socket, hello.encode(), &fds) {
            Ok(()) => {}
            Err(Errno::TOOMANYREFS) => {
                self.soft.raise_nofile();
                return Err(Error::Again);
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => return Err(Error::Again),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => match last_word(&socket) {
                Some(Packet::No(Reason::Denied)) => {
                    return Err(Error::Denied { port: dst, uid: credentials.uid });
                }
                Some(_) => return Err(Error::Refused(dst)),
                // A peer that refuses or closes sends its reason, so this one has died. The link
                // reports that, as it does for a death after the hello.
                None => {}
            },
            Err(errno) => {
                return Err(Error::Os { call: "sendmsg", errno });
            }
        }
        let socket = PrivateFd::new(socket);
        self.epoll.add(&socket, token(CONN, id)).map_err(Error::os("epoll_ctl"))?;
        let (epoll, soft, shown) =
            (Arc::clone(&self.epoll), Arc::clone(&self.soft), Arc::clone(&self.shown));
        let link = SoftLink::new(socket, epoll, soft, shown, credentials, None);
        let liveness = ProcessProof::of(credentials.pid);
        let segment = segment.map;
        Ok(Opened {
            peer: dst,
            side: Side::Opener,
            segment,
            windows: None,
            link: Box::new(link),
            liveness,
            remote: None,
        })
    }

    fn poll(&mut self, ready: &mut Vec<ConnId>) {
        let parked_for = self.parked_ns.map(|since| now_ns().saturating_sub(since));
        let unparked = parked_for.is_some_and(|time| time > PARKED_NS);
        if unparked {
            self.unpark();
        }
        let mut called = false;
        let mut tokens = std::mem::take(&mut self.tokens);
        if let Err(errno) = self.epoll.wait(Some(0), |token| tokens.push(token)) {
            log::debug!("epoll_wait at {}: {errno}", self.id);
        }
        for token in tokens.drain(..) {
            match token >> 62 {
                CONN => ready.push(conn_of(token)),
                LISTENER => {
                    called = true;
                    self.requests_left = REQUESTS_PER_CALL;
                }
                _ => self.read_hello(conn_of(token).index),
            }
        }
        self.tokens = tokens;
        if unparked && !called && self.pending_hellos.is_empty() {
            // No peer waits: the next lack has its own time.
            self.short = None;
        }
        while self
            .pending_hellos
            .front()
            .is_some_and(|pending| now_ns().saturating_sub(pending.since_ns) > PENDING_HELLO_NS)
        {
            self.drop_oldest_hello();
        }
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        loop {
            self.take_requests();
            let pending = self.pending_accepts.pop_front()?;
            let from = pending.from;
            match self.admit(pending, id) {
                Ok(opened) => return Some(opened),
                Err(reason) => log::debug!("{from} not accepted at {}: {reason}", self.id),
            }
        }
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        self.owner(port).map(|credentials| credentials.pid).ok()
    }

    fn whereabouts(&self, port: PortId) -> String {
        self.soft.names.whereabouts(port)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn is_parked(&self) -> bool {
        self.parked_ns.is_some()
    }

    fn close(&mut self, how: CloseKind) {
        // A shutdown of the listener in a forked child would affect the parent as well.
        if how == CloseKind::Abandon || self.listener.is_inherited() {
            return;
        }
        if let Err(errno) = unix::stop_listening(&self.listener) {
            log::debug!("shutdown of the listener at {}: {errno}", self.id);
        }
        self.refuse_heard(Reason::Refused(Refusal::Closed));
        // No further peer joins the waiting ones.
        while self
            .soft
            .spare
            .refuse_next(&self.listener, |peer| refuse(peer, Reason::Refused(Refusal::Closed)))
        {
        }
    }
}

impl Drop for SoftPort {
    fn drop(&mut self) {
        if let Some(file) = self.file.take().filter(|_| !self.listener.is_inherited()) {
            file.remove();
        }
    }
}

/// Whether the listener of a port and a connecting peer are two processes. A process may have
/// changed its user in between. Of a process in another pid namespace only the user is known.
fn is_another(owner: Credentials, caller: Credentials) -> bool {
    if owner.pid > 0 && caller.pid > 0 { owner.pid != caller.pid } else { owner.uid != caller.uid }
}

/// Returns the last packet that a peer sent before it closed.
fn last_word(socket: &OwnedFd) -> Option<Packet> {
    let mut buffer = [0u8; PACKET_MAX];
    let received = match unix::receive(socket, &mut buffer) {
        // Reported once, ahead of the packets that can be read.
        Err(Errno::CONNRESET) => unix::receive(socket, &mut buffer),
        other => other,
    };
    wire::decode(buffer.get(..received.ok()?.bytes)?).ok()
}

fn bind_port(soft: &Soft, id: PortId) -> Result<(PrivateFd, Option<SocketFile>)> {
    let socket = soft.with_descriptor(unix::socket).map_err(Error::os("socket"))?;
    match soft.names.bind_listener(&socket, id, BACKLOG) {
        Ok(file) => Ok((PrivateFd::new(socket), file)),
        Err(Error::Os { errno: Errno::ADDRINUSE, .. }) => Err(Error::PortInUse(id)),
        Err(error) => Err(error),
    }
}

fn bind_dynamic(soft: &Soft) -> Result<(PrivateFd, Option<SocketFile>, PortId)> {
    for port in dynamic_ports() {
        let id = PortId::new(soft.node, port);
        match bind_port(soft, id) {
            Err(Error::PortInUse(_)) => {}
            Err(error) => return Err(error),
            Ok((listener, file)) => return Ok((listener, file, id)),
        }
    }
    Err(Error::NoPorts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_by_its_number_and_else_by_its_user() {
        let of = |pid, uid| Credentials { pid, uid };
        for (owner, caller, another) in [
            (of(7, 1), of(7, 1), false),
            (of(7, 0), of(7, 1), false),
            (of(7, 1), of(8, 1), true),
            (of(7, 1), of(8, 2), true),
            (of(0, 1), of(8, 1), false),
            (of(7, 1), of(0, 1), false),
            (of(0, 1), of(0, 1), false),
            (of(0, 1), of(8, 2), true),
        ] {
            assert_eq!(is_another(owner, caller), another, "{owner:?} {caller:?}");
        }
    }

    #[test]
    fn tokens_come_apart_again() {
        let id = ConnId { index: u32::MAX, generation: (1 << 30) - 1 };
        assert_eq!(conn_of(token(CONN, id)), id);
        assert_eq!(token(LISTENER, id) >> 62, LISTENER);
    }
}
