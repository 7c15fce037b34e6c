// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A listening socket, the sockets of its connections, and the set that waits for all of them.
//!
//! Not about one connection once it is made (`link`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::link::{SoftLink, refuse};
use super::names::SocketFile;
use super::whereabouts::warn_of_user;
use super::wire::{self, Garbled, Greeting, PACKET_MAX, Packet};
use super::{Soft, handshake};
use crate::addr::{DYNAMIC_PORTS, PortId};
use crate::connection::ConnId;
use crate::error::{Error, Reason, Refusal, Result};
use crate::life::Life;
use crate::logging::warn_about_peer;
use crate::segment::{SEGMENT_BYTES, Side, write_header};
use crate::sys::epoll::Epoll;
use crate::sys::fork::PrivateFd;
use crate::sys::process;
use crate::sys::time::now_ns;
use crate::sys::unix::{self, Credentials};
use crate::transport::{Farewell, Opened, Port, Shown, Transport, Writers, conn_of, token};

/// Requests taken from the listener per call.
const REQUESTS_PER_CALL: usize = 64;
/// Connected sockets that have not said hello yet.
const MUTE_MAX: usize = 256;
/// How long they may take.
const MUTE_NS: u64 = 10_000_000_000;
/// What the kernel queues for us; it caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// How long requests wait when there is no descriptor for them.
const PARKED_NS: u64 = 50_000_000;
/// A received descriptor needs a number: so many below the limit must be left.
const SPARE_FDS: u64 = 8;

/// Kinds of epoll token.
const CONN: u64 = 0;
const LISTENER: u64 = 1;
const MUTE: u64 = 2;

const LISTENER_TOKEN: u64 = LISTENER << 62;

/// A connected socket whose peer has said nothing so far.
#[derive(Debug)]
struct Mute {
    serial: u32,
    socket: PrivateFd,
    from: PortId,
    who: Credentials,
    since_ns: u64,
}

/// One that has, and waits to be accepted.
#[derive(Debug)]
struct Guest {
    socket: PrivateFd,
    from: PortId,
    who: Credentials,
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
    /// In the order they came.
    mute: VecDeque<Mute>,
    guests: VecDeque<Guest>,
    /// How many more may be taken from the listener before the next poll.
    requests_left: usize,
    source_serial: u32,
    mute_serial: u32,
    tokens: Vec<u64>,
    /// Since when the listener is not waited for: it would keep sleepers awake with requests that nothing can take.
    parked_ns: Option<u64>,
    /// Start of a lack of descriptors that has not ended, and whether callers are refused because of it.
    short: Option<Short>,
}

/// A lack of descriptors at a listener.
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
                let id = PortId {
                    node: soft.node,
                    port,
                };
                let (listener, file) = bind_port(&soft, id)?;
                (listener, file, id)
            }
        };
        let epoll = soft
            .with_descriptor(Epoll::new)
            .map_err(Error::os("epoll_create"))?;
        epoll
            .add(&listener, LISTENER_TOKEN)
            .map_err(Error::os("epoll_ctl"))?;
        Ok(SoftPort {
            soft,
            id,
            listener,
            file,
            epoll: Arc::new(epoll),
            shown: Arc::new(shown),
            mute: VecDeque::new(),
            guests: VecDeque::new(),
            requests_left: 0,
            source_serial: 0,
            mute_serial: 0,
            tokens: Vec::new(),
            parked_ns: None,
            short: None,
        })
    }

    /// Takes waiting requests until one has said hello. Not more at once: each holds descriptors until it is accepted.
    fn take_requests(&mut self) {
        while self.guests.is_empty() && self.requests_left > 0 {
            self.requests_left -= 1;
            let socket = match self.soft.with_descriptor(|| unix::accept(&self.listener)) {
                Ok(socket) => PrivateFd::new(socket),
                // Gone before we looked.
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
            let Ok(who) = unix::credentials(&socket) else {
                continue;
            };
            if !self.soft.admits(who.uid) {
                warn_of_user(who.uid, self.id);
                refuse(&socket, Reason::Denied);
                continue;
            }
            let Some(from) = unix::peer_name(&socket).and_then(|name| self.soft.names.parse_source(&name))
            else {
                // Also whoever only looks whether we are here.
                log::debug!("a socket without a port of ours turned away at {}", self.id);
                continue;
            };
            self.mute_serial = self.mute_serial.wrapping_add(1);
            let mute = Mute {
                serial: self.mute_serial,
                socket,
                from,
                who,
                since_ns: now_ns(),
            };
            if let Some(mute) = self.hear(mute) {
                self.mute.push_back(mute);
                if self.mute.len() > MUTE_MAX {
                    self.drop_mute();
                }
            }
        }
    }

    /// No descriptor is left for what waits: looks again in a while, and until then lets sleepers sleep. Once the lack has
    /// lasted too long, refuses who waits: a caller would wait for ever, and could not tell why.
    fn park(&mut self) {
        log::debug!("connections to {} have to wait for descriptors", self.id);
        self.requests_left = 0;
        self.epoll.remove(&self.listener);
        let now = now_ns();
        self.parked_ns = Some(now);
        let short = self.short.get_or_insert(Short {
            since_ns: now,
            refusing: false,
        });
        let lasted_ns = now.saturating_sub(short.since_ns);
        if lasted_ns <= self.soft.refuse_after_ns {
            return;
        }
        if !std::mem::replace(&mut short.refusing, true) {
            warn_about_peer!(
                "{} has been without descriptors for its callers for {} s and refuses them until some are closed; the limit of open \
                 files is {}: raise it before the start (ulimit -Hn)",
                self.id,
                lasted_ns / 1_000_000_000,
                process::nofile()
            );
        }
        let reason = Reason::Refused(Refusal::Resources);
        self.refuse_heard(reason);
        for _ in 0..REQUESTS_PER_CALL {
            if !self.soft.spare.refuse_next(&self.listener, reason) {
                break;
            }
        }
    }

    /// Whether callers that find no descriptor are refused by now.
    fn is_refusing(&self) -> bool {
        self.short.is_some_and(|short| short.refusing)
    }

    fn unpark(&mut self) {
        self.parked_ns = self
            .epoll
            .add(&self.listener, LISTENER_TOKEN)
            .err()
            .map(|_| now_ns());
        let serials: Vec<u32> = self.mute.iter().map(|mute| mute.serial).collect();
        for serial in serials {
            self.hear_mute(serial);
        }
    }

    /// Takes the hello of a socket if it is there; gives the socket back if not.
    fn hear(&mut self, mut mute: Mute) -> Option<Mute> {
        self.make_room(&mute.socket);
        if process::descriptors_short(&mute.socket, SPARE_FDS) {
            mute.since_ns = now_ns();
            self.epoll.remove(&mute.socket);
            self.park();
            if self.is_refusing() {
                refuse(&mute.socket, Reason::Refused(Refusal::Resources));
                return None;
            }
            return Some(mute);
        }
        self.short = None;
        let mut buffer = [0u8; PACKET_MAX];
        let received = match unix::receive(&mute.socket, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => {
                // Adding what is in already changes nothing.
                let id = ConnId {
                    index: mute.serial,
                    generation: 0,
                };
                let _ = self.epoll.add(&mute.socket, token(MUTE, id));
                return Some(mute);
            }
            Err(_) => return None,
            Ok(received) if received.bytes == 0 => return None,
            Ok(received) => received,
        };
        self.epoll.remove(&mute.socket);
        let packet = buffer.get(..received.bytes).map(wire::decode);
        match packet {
            Some(Ok(Packet::Hello(hello))) if !received.cut && received.fds.len() == hello.fds() => {
                let Mute {
                    socket, from, who, ..
                } = mute;
                self.guests.push_back(Guest {
                    socket,
                    from,
                    who,
                    hello,
                    fds: received.fds,
                });
            }
            Some(Ok(Packet::Hello(_)))
                if received.cut && process::descriptors_short(&mute.socket, SPARE_FDS) =>
            {
                refuse(&mute.socket, Reason::Refused(Refusal::Resources));
            }
            Some(Err(Garbled::Version)) => refuse(&mute.socket, Reason::Refused(Refusal::Version)),
            _ => {
                log::debug!("hello from {} makes no sense", mute.from);
                refuse(&mute.socket, Reason::Corrupt);
            }
        }
        None
    }

    /// Before descriptors are received: those that find no number are lost, and the packet looks garbled.
    fn make_room(&self, recent: &impl AsFd) {
        if process::descriptors_short(recent, SPARE_FDS) {
            self.soft.raise_nofile();
        }
    }

    /// Refuses the callers whose sockets are held here already.
    fn refuse_heard(&mut self, reason: Reason) {
        for mute in self.mute.drain(..) {
            refuse(&mute.socket, reason);
        }
        for guest in self.guests.drain(..) {
            refuse(&guest.socket, reason);
        }
    }

    /// Gives up the oldest caller that has said nothing.
    fn drop_mute(&mut self) {
        if let Some(mute) = self.mute.pop_front() {
            refuse(&mute.socket, Reason::Refused(Refusal::Resources));
        }
    }

    fn hear_mute(&mut self, serial: u32) {
        let Some(at) = self.mute.iter().position(|mute| mute.serial == serial) else {
            return;
        };
        let Some(mute) = self.mute.remove(at) else { return };
        if let Some(mute) = self.hear(mute) {
            self.mute.insert(at, mute);
        }
    }

    fn admit(&mut self, guest: Guest, id: ConnId) -> std::result::Result<Opened, Reason> {
        let Guest {
            socket,
            from,
            who,
            hello,
            fds,
        } = guest;
        let checked = || {
            let [segment, rest @ ..] = fds.as_slice() else {
                return Err(Reason::Corrupt);
            };
            let segment = handshake::map_segment(segment)?;
            if self.is_impostor(from, who) {
                warn_about_peer!(
                    "process {} of user {} calls {} under the name of {from}, where another process listens; it is refused",
                    who.pid,
                    who.uid,
                    self.id
                );
                return Err(Reason::Denied);
            }
            let life = Life::of(who.pid);
            let remote = handshake::remote(&self.soft, &hello, rest, &life, who.uid)?;
            self.epoll
                .add(&socket, token(CONN, id))
                .map_err(|_| Reason::Refused(Refusal::Resources))?;
            Ok((segment, life, remote))
        };
        let (segment, life, remote) = checked().inspect_err(|&reason| refuse(&socket, reason))?;
        let welcome = handshake::greeting(&self.soft, &self.shown, true, id);
        let (epoll, soft, shown) = (
            Arc::clone(&self.epoll),
            Arc::clone(&self.soft),
            Arc::clone(&self.shown),
        );
        let link = SoftLink::new(socket, epoll, soft, shown, who, Some(welcome));
        Ok(Opened {
            peer: from,
            side: Side::Acceptor,
            segment,
            link: Box::new(link),
            life,
            remote: Some(remote),
        })
    }

    /// Whether a caller of another user bears the name of a port at which another process listens: it would get the answers
    /// meant for that one.
    ///
    /// Callers of this user are not looked at: they may trace each other, and a look costs the named listener an accept.
    fn is_impostor(&self, from: PortId, who: Credentials) -> bool {
        who.uid != self.soft.uid && self.owner(from).is_some_and(|owner| is_another(owner, who))
    }

    /// Process that listens at `port`; `None` where nobody does, or it cannot be told.
    fn owner(&self, port: PortId) -> Option<Credentials> {
        let addr = self.soft.names.listener(port).ok()?;
        // Without a name of its own, so that it is not taken for a peer.
        let socket = self.soft.with_descriptor(unix::socket).ok()?;
        unix::connect(&socket, &addr).ok()?;
        unix::credentials(&socket).ok()
    }

    /// A socket connected to `dst`, bound to a name that says who we are.
    fn reach(&mut self, dst: PortId) -> Result<(OwnedFd, unix::Credentials)> {
        let addr = self.soft.names.listener(dst)?;
        let socket = self
            .soft
            .with_descriptor(unix::socket)
            .map_err(Error::os("socket"))?;
        let file = self
            .soft
            .names
            .bind_source(&socket, self.id, &mut self.source_serial)?;
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
            errno => Error::Os {
                call: "connect",
                errno,
            },
        })?;
        let who = unix::credentials(&socket).map_err(Error::os("SO_PEERCRED"))?;
        if !self.soft.admits(who.uid) {
            return Err(Error::Denied {
                port: dst,
                uid: who.uid,
            });
        }
        Ok((socket, who))
    }
}

impl Port for SoftPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        let (socket, who) = self.reach(dst)?;
        // For the answer.
        self.make_room(&socket);
        let segment = self.soft.share("scif:conn", SEGMENT_BYTES, Writers::Peers)?;
        write_header(&segment.map)?;
        let hello = handshake::greeting(&self.soft, &self.shown, false, id);
        let fds = handshake::descriptors(&self.shown, segment.fd.as_ref().map(AsFd::as_fd));
        unix::send(&socket, hello.encode(), &fds).map_err(|errno| match errno {
            Errno::TOOMANYREFS => {
                self.soft.raise_nofile();
                Error::Again
            }
            Errno::AGAIN | Errno::NOBUFS => Error::Again,
            // It has answered already: it does not want us, whatever we say.
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => match last_word(&socket) {
                Some(Packet::No(Reason::Denied)) => Error::Denied {
                    port: dst,
                    uid: who.uid,
                },
                _ => Error::Refused(dst),
            },
            errno => Error::Os {
                call: "sendmsg",
                errno,
            },
        })?;
        let socket = PrivateFd::new(socket);
        self.epoll
            .add(&socket, token(CONN, id))
            .map_err(Error::os("epoll_ctl"))?;
        let (epoll, soft, shown) = (
            Arc::clone(&self.epoll),
            Arc::clone(&self.soft),
            Arc::clone(&self.shown),
        );
        let link = SoftLink::new(socket, epoll, soft, shown, who, None);
        let life = Life::of(who.pid);
        let segment = segment.map;
        Ok(Opened {
            peer: dst,
            side: Side::Opener,
            segment,
            link: Box::new(link),
            life,
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
                _ => self.hear_mute(conn_of(token).index),
            }
        }
        self.tokens = tokens;
        if unparked && !called && self.mute.is_empty() {
            // No caller waits: the next lack has its own time.
            self.short = None;
        }
        while self
            .mute
            .front()
            .is_some_and(|mute| now_ns().saturating_sub(mute.since_ns) > MUTE_NS)
        {
            self.drop_mute();
        }
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        loop {
            self.take_requests();
            let guest = self.guests.pop_front()?;
            let from = guest.from;
            match self.admit(guest, id) {
                Ok(opened) => return Some(opened),
                Err(reason) => log::debug!("{from} not accepted at {}: {reason}", self.id),
            }
        }
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        self.owner(port).map(|who| who.pid)
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

    fn close(&mut self, how: Farewell) {
        // Shutting down the listener in a forked child would do so in the parent as well.
        if how == Farewell::Silent || self.listener.is_inherited() {
            return;
        }
        if let Err(errno) = unix::stop_listening(&self.listener) {
            log::debug!("shutdown of the listener at {}: {errno}", self.id);
        }
        self.refuse_heard(Reason::Refused(Refusal::Closed));
        // No caller is added to those that wait.
        while self
            .soft
            .spare
            .refuse_next(&self.listener, Reason::Refused(Refusal::Closed))
        {}
    }
}

impl Drop for SoftPort {
    fn drop(&mut self) {
        if let Some(file) = self.file.take().filter(|_| !self.listener.is_inherited()) {
            file.remove();
        }
    }
}

/// Whether the listener of a port and its caller are two processes. A process may have changed its user in between. Of one in
/// another pid namespace only the user is known.
fn is_another(owner: Credentials, caller: Credentials) -> bool {
    if owner.pid > 0 && caller.pid > 0 {
        owner.pid != caller.pid
    } else {
        owner.uid != caller.uid
    }
}

/// What a peer said before it hung up.
fn last_word(socket: &OwnedFd) -> Option<Packet> {
    let mut buffer = [0u8; PACKET_MAX];
    let received = match unix::receive(socket, &mut buffer) {
        // Said once, before what is there to be read.
        Err(Errno::CONNRESET) => unix::receive(socket, &mut buffer),
        other => other,
    };
    wire::decode(buffer.get(..received.ok()?.bytes)?).ok()
}

fn bind_port(soft: &Soft, id: PortId) -> Result<(PrivateFd, Option<SocketFile>)> {
    let socket = soft.with_descriptor(unix::socket).map_err(Error::os("socket"))?;
    match soft.names.bind_listener(&socket, id, BACKLOG) {
        Ok(file) => Ok((PrivateFd::new(socket), file)),
        Err(Error::Os {
            errno: Errno::ADDRINUSE,
            ..
        }) => Err(Error::PortInUse(id)),
        Err(error) => Err(error),
    }
}

/// Takes a dynamic port, starting somewhere that differs between processes.
fn bind_dynamic(soft: &Soft) -> Result<(PrivateFd, Option<SocketFile>, PortId)> {
    let (first, last) = (u32::from(*DYNAMIC_PORTS.start()), u32::from(*DYNAMIC_PORTS.end()));
    let count = last - first + 1;
    // Pids are dense: an odd factor spreads them, some ports apart.
    let hint = process::pid().cast_unsigned().wrapping_mul(97) % count;
    for step in 0..count {
        let port = first + (hint + step) % count;
        let id = PortId {
            node: soft.node,
            port: u16::try_from(port).unwrap_or(u16::MAX),
        };
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
        let id = ConnId {
            index: u32::MAX,
            generation: (1 << 30) - 1,
        };
        assert_eq!(conn_of(token(CONN, id)), id);
        assert_eq!(token(LISTENER, id) >> 62, LISTENER);
    }
}
