// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Socket of one connection: the proof of the peer's liveness, its wake-up, the answer and the
//! close notice.
//!
//! Not about opening it (`SoftPort`). See `unix(7)`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::handshake;
use super::node::Soft;
use super::whereabouts::warn_of_build;
use super::wire::{self, BadPacket, Greeting, PACKET_MAX, Packet};
use crate::error::{Reason, Refusal};
use crate::liveness::ProcessProof;
use crate::segment::Side;
use crate::sys::epoll::Epoll;
use crate::sys::fork::PrivateFd;
use crate::sys::unix::{self, Credentials};
use crate::transport::{CloseKind, Link, LinkUpdate, Shown};

#[derive(Debug)]
pub(super) struct SoftLink {
    /// `None` after the end.
    socket: Option<PrivateFd>,
    epoll: Arc<Epoll>,
    soft: Arc<Soft>,
    shown: Arc<Shown>,
    side: Side,
    answered: bool,
    /// Answer that could not be sent yet, because too many descriptors are in flight.
    welcome: Option<Greeting>,
    peer: Credentials,
    /// Number of arena requests that the peer has not answered.
    asked: u32,
    /// Number of times that our arena was sent to the peer.
    given: u32,
}

/// Maximum number of answers to arena requests. A peer maps the arena once; more answers are needed
/// only after a lost one.
const GIVEN_MAX: u32 = 16;

impl SoftLink {
    pub(super) fn new(
        socket: PrivateFd,
        epoll: Arc<Epoll>,
        soft: Arc<Soft>,
        shown: Arc<Shown>,
        peer: Credentials,
        welcome: Option<Greeting>,
    ) -> SoftLink {
        let side = if welcome.is_some() { Side::Acceptor } else { Side::Opener };
        let mut link = SoftLink {
            socket: Some(socket),
            epoll,
            soft,
            shown,
            side,
            answered: false,
            welcome,
            peer,
            asked: 0,
            given: 0,
        };
        link.send_welcome();
        link
    }

    fn send_welcome(&mut self) {
        let (Some(socket), Some(welcome)) = (&self.socket, &self.welcome) else {
            return;
        };
        match unix::send(socket, welcome.encode(), &handshake::descriptors(&self.shown, None)) {
            Err(Errno::TOOMANYREFS | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                self.soft.raise_nofile();
            }
            // A read detects a peer that has closed.
            Ok(()) | Err(_) => self.welcome = None,
        }
    }

    fn end(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.epoll.remove(&socket);
        }
    }

    fn closed(&mut self, reason: Reason) -> Option<LinkUpdate> {
        if let (Reason::Corrupt, Some(socket)) = (reason, &self.socket) {
            let _ = unix::send(socket, &wire::reset(), &[]);
        }
        self.end();
        Some(LinkUpdate::Closed(reason))
    }

    /// Handles an end of file without a close notice. A listener that closes gracefully refuses
    /// waiting peers first, so the peer died, whatever `/proc` shows: the sockets of a dying
    /// process close before it becomes a zombie.
    fn broken_off(&mut self) -> Option<LinkUpdate> {
        self.closed(Reason::Died)
    }

    /// Answers a request for our arena. Without space for the answer now, the peer requests it
    /// again.
    fn give_arena(&mut self) {
        let fd = self.shown.keys.as_ref().and_then(|keys| keys.arena_fd());
        let (Some(socket), Some(fd)) = (&self.socket, fd) else {
            return;
        };
        if self.given < GIVEN_MAX && unix::send(socket, &[wire::ARENA], &[fd]).is_ok() {
            self.given += 1;
        }
    }

    fn take_arena(&mut self, fds: &[OwnedFd]) -> Option<LinkUpdate> {
        let [fd] = fds else {
            return self.closed(Reason::Corrupt);
        };
        if self.asked == 0 {
            return self.closed(Reason::Corrupt);
        }
        self.asked -= 1;
        match handshake::map_arena(fd, self.peer.pid) {
            Ok(map) => Some(LinkUpdate::Shown(map)),
            Err(Reason::Corrupt) => self.closed(Reason::Corrupt),
            // No address space is left: the peer's memory is then reached in other ways.
            Err(_) => Some(LinkUpdate::Wake),
        }
    }

    /// Whether a greeting or refusal of the listener is still expected.
    fn awaits_answer(&self) -> bool {
        self.side == Side::Opener && !self.answered
    }

    fn answer(&mut self, greeting: &Greeting, fds: &[OwnedFd]) -> Option<LinkUpdate> {
        if !self.awaits_answer() {
            return self.closed(Reason::Corrupt);
        }
        self.answered = true;
        let liveness = ProcessProof::of(self.peer.pid);
        match handshake::remote(&self.soft, greeting, fds, &liveness, self.peer.uid) {
            Ok(remote) => Some(LinkUpdate::Up(Box::new(remote))),
            Err(reason) => self.closed(reason),
        }
    }
}

impl Link for SoftLink {
    fn next_event(&mut self) -> Option<LinkUpdate> {
        if self.welcome.is_some() {
            self.send_welcome();
            if self.welcome.is_none() {
                // Until now the peer had no doorbell to ring: its ring must be polled for records.
                return Some(LinkUpdate::Wake);
            }
        }
        let mut buffer = [0u8; PACKET_MAX];
        let mut retried = false;
        let received = loop {
            match unix::receive(self.socket.as_ref()?, &mut buffer) {
                Ok(received) => break received,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                // Reported once, after the peer closed without reading everything; earlier packets
                // can still be read.
                Err(Errno::CONNRESET) if !retried => retried = true,
                Err(_) => return self.broken_off(),
            }
        };
        if received.bytes == 0 {
            return self.broken_off();
        }
        let packet = buffer.get(..received.bytes).map(wire::decode);
        let packet = match packet.filter(|_| !received.cut) {
            Some(Ok(packet)) => packet,
            Some(Err(BadPacket::Version(build))) if self.awaits_answer() => {
                warn_of_build(self.peer.pid, build);
                return self.closed(Reason::Refused(Refusal::Version));
            }
            _ => return self.closed(Reason::Corrupt),
        };
        match packet {
            Packet::Welcome(greeting) => self.answer(&greeting, &received.fds),
            Packet::Arena => self.take_arena(&received.fds),
            _ if !received.fds.is_empty() => self.closed(Reason::Corrupt),
            Packet::Wake => Some(LinkUpdate::Wake),
            Packet::ArenaRequest => {
                self.give_arena();
                Some(LinkUpdate::Wake)
            }
            Packet::Bye => self.closed(Reason::Orderly),
            Packet::Reset => self.closed(Reason::Reset),
            Packet::No(reason) if self.awaits_answer() => self.closed(reason),
            Packet::No(_) | Packet::Hello(_) => self.closed(Reason::Corrupt),
        }
    }

    fn unsent(&self) -> bool {
        self.welcome.is_some()
    }

    fn wake(&mut self) {
        if let Some(socket) = &self.socket {
            // EAGAIN: the peer has not even read earlier wake-ups.
            let _ = unix::send(socket, &[wire::WAKE], &[]);
        }
    }

    fn request_arena(&mut self) {
        if let Some(socket) = &self.socket {
            if unix::send(socket, &[wire::ARENA_REQUEST], &[]).is_ok() {
                self.asked += 1;
            }
        }
    }

    fn close(&mut self, how: CloseKind) {
        if let Some(socket) = &self.socket {
            let sent = match how {
                CloseKind::Graceful => unix::send(socket, &wire::bye(), &[]),
                CloseKind::Reset => unix::send(socket, &wire::reset(), &[]),
                CloseKind::Abandon => Ok(()),
            };
            if let Err(errno) = sent {
                log::debug!("goodbye not sent: {errno}");
            }
        }
        self.end();
    }
}

/// Refuses a peer, which may have closed already.
pub(super) fn refuse(socket: impl AsFd, reason: Reason) {
    let _ = match reason {
        Reason::Corrupt => unix::send(socket, &wire::reset(), &[]),
        Reason::Refused(Refusal::Version) => unix::send(socket, Greeting::refusal().encode(), &[]),
        _ => unix::send(socket, &wire::no(reason), &[]),
    };
}
